"""Packed scenes that were made before, kept by the content that they were made from.

The cache may be lost, full, read-only or shared with other processes at any time: that costs time, never a picture.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import time
from pathlib import Path
from typing import Callable, List, Optional, Tuple

from edgegs.errors import EdgegsError, SceneError
from edgegs.files import forget_oldest, open_regular
from edgegs.pack.egs import write_egs
from edgegs.pack.packed import PackedScene
from edgegs.paths import cache_dir
from edgegs.scene import load
from edgegs.scene.builder import TooLarge

log = logging.getLogger(__name__)

#: Scenes kept; the ones used longest ago go first.
KEPT = 8
#: Changes when packing the same content would give another file.
_RECIPE = 2
_PIECE = 4 << 20
#: A file that was begun so long ago and never finished is one of a process that was killed, seconds.
_ABANDONED_S = 24 * 3600.0

Progress = Callable[[int, int], None]


def digest_of(path: str, progress: Optional[Progress] = None) -> str:
    """sha256 of a file, which is what most readers say of a scene; "" for what cannot be read, such as a folder.

    Args:
        progress: called as ``progress(bytes_done, n_bytes)``; what it raises ends the reading.
    """
    digest = hashlib.sha256()
    try:
        with open_regular(path, path) as file:
            n_done, n_bytes = 0, os.fstat(file.fileno()).st_size
            for piece in iter(lambda: file.read(_PIECE), b""):
                digest.update(piece)
                n_done += len(piece)
                if progress is not None:
                    progress(n_done, max(n_done, n_bytes))
    except (EdgegsError, OSError):
        return ""
    return digest.hexdigest()


class SceneCache:
    """The packed forms of one content.

    Args:
        digest: of the content, hex, as its reader says it (``Scene.sha256``).
        options: whatever else decides what is packed, such as the axes that it is read with.
    """

    def __init__(self, digest: str, options: str = "") -> None:
        self._name = hashlib.sha256(f"{_RECIPE} {digest} {options}".encode()).hexdigest()[:40]

    def find(self, max_gaussians: Optional[int] = None, progress: Optional[Progress] = None) -> Optional[PackedScene]:
        """The packed scene; None where there is none, or none that can be read.

        Args:
            max_gaussians: at most so many of its most important splats.
            progress: as ``edgegs.scene.load``.
        """
        for path, is_scored in self._paths(max_gaussians is not None):
            try:
                if not path.is_file():
                    continue
                found = load(path, max_gaussians if is_scored else None, progress=progress)
            except TooLarge as error:  # of today's memory, not of the file
                log.warning("%s", error)
                continue
            except (EdgegsError, OSError) as error:
                log.warning("%s", error)
                if isinstance(error, SceneError):
                    with contextlib.suppress(OSError):
                        path.unlink()
                continue
            if isinstance(found, PackedScene) and found.n_splats <= (max_gaussians or found.n_splats):
                _used(path)
                log.info("packed before: %s", path)
                return found
        return None

    def keep(self, packed: PackedScene, progress: Optional[Progress] = None) -> None:
        """Keep a packed scene for the next time; a failure is only logged.

        Args:
            progress: as ``write_egs``.
        """
        try:
            folder = cache_dir() / "scenes"
            path = folder / self._file_name(packed.is_scored)
            folder.mkdir(parents=True, exist_ok=True)
            write_egs(str(path), packed, progress=progress)
        except (EdgegsError, OSError, ValueError) as error:
            log.warning("the packed scene cannot be kept, so the next start takes as long: %s", error)
            return
        log.info("packed for the next time: %s", path)
        forget_oldest(path, KEPT, lambda facts: facts.st_atime_ns, _ABANDONED_S)

    def _file_name(self, is_scored: bool) -> str:
        return f"{self._name}-scored.egs" if is_scored else f"{self._name}.egs"

    def _paths(self, is_cut: bool) -> List[Tuple[Path, bool]]:
        """Where it may be, best first, and whether in an order of importance; that serves those who need none, too, and
        one without serves those whose budget holds all."""
        try:
            folder = cache_dir() / "scenes"
        except EdgegsError:
            return []
        return [(folder / self._file_name(is_scored), is_scored) for is_scored in (is_cut, not is_cut)]


def _used(path: Path) -> None:
    """Note that a file was used: in the time of its last access, because another process may be reading it, and takes a
    file whose time of change moves for one that is written to."""
    with contextlib.suppress(OSError):  # somebody else's, or a file system that is read-only
        os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))
