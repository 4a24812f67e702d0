"""Packed scenes that were made before, kept by the content that they were made from.

The cache may be lost, full or read-only at any time: that costs time, never a picture.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from pathlib import Path
from typing import List, Optional

from edgegs.errors import EdgegsError
from edgegs.pack.egs import write_egs
from edgegs.pack.packed import PackedScene
from edgegs.paths import cache_dir
from edgegs.scene import load

log = logging.getLogger(__name__)

#: Scenes kept; the ones used longest ago go first.
KEPT = 8
#: Changes when packing the same content would give another file.
_RECIPE = 1
_PIECE = 1 << 20


def digest_of(path: str) -> Optional[str]:
    """sha256 of a scene's bytes, or of all files in its folder by name; None where it cannot be read."""
    digest = hashlib.sha256()
    try:
        if not os.path.isdir(path):
            _add(digest, path)
            return digest.hexdigest()
        for name in sorted(os.listdir(path)):
            if os.path.isfile(os.path.join(path, name)):
                digest.update(os.fsencode(name) + b"\0")
                _add(digest, os.path.join(path, name))
        return digest.hexdigest()
    except OSError:
        return None


def _add(digest: hashlib._Hash, path: str) -> None:
    with open(path, "rb", buffering=0) as file:
        for piece in iter(lambda: file.read(_PIECE), b""):
            digest.update(piece)


class SceneCache:
    """The packed forms of one content.

    Args:
        digest: of the content, hex.
        options: whatever else decides what is packed, such as the axes that it is read with.
    """

    def __init__(self, digest: str, options: str = "") -> None:
        self._name = hashlib.sha256(f"{_RECIPE} {digest} {options}".encode()).hexdigest()[:40]

    @classmethod
    def of(cls, path: str, options: str = "") -> Optional[SceneCache]:
        """The cache of what lies at ``path`` now; None where it cannot be read."""
        digest = digest_of(path)
        return None if digest is None else cls(digest, options)

    def find(self, scored: bool, max_gaussians: Optional[int] = None) -> Optional[PackedScene]:
        """The packed scene; None where there is none, or none that can be read.

        Args:
            scored: whether it has to be in an order of importance.
            max_gaussians: at most so many of its most important splats.
        """
        for path in self._paths(scored):
            try:
                if not path.is_file():
                    continue
                found = load(path, max_gaussians=max_gaussians)
                os.utime(path)
            except (EdgegsError, OSError) as error:
                log.warning("%s", error)
                with contextlib.suppress(OSError):
                    path.unlink()
                continue
            if isinstance(found, PackedScene):
                log.info("packed before: %s", path)
                return found
        return None

    def keep(self, packed: PackedScene) -> None:
        """Keep a packed scene for the next time; a failure is only logged."""
        try:
            path = self._paths(packed.is_scored)[0]
            path.parent.mkdir(parents=True, exist_ok=True)
            write_egs(str(path), packed, {})
            _forget_oldest(path.parent)
            log.info("packed for the next time: %s", path)
        except (EdgegsError, OSError) as error:
            log.warning("the packed scene cannot be kept, so the next start takes as long: %s", error)

    def _paths(self, scored: bool) -> List[Path]:
        """Where it may be, best first: an order of importance serves those who need none."""
        try:
            folder = cache_dir() / "scenes"
        except EdgegsError:
            return []
        ordered, placed = (folder / f"{self._name}{kind}.egs" for kind in ("-scored", ""))
        return [ordered] if scored else [placed, ordered]


def _forget_oldest(folder: Path) -> None:
    files = sorted(folder.glob("*.egs"), key=lambda path: path.stat().st_mtime)
    for path in files[:-KEPT]:
        path.unlink()
