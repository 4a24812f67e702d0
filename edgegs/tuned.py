"""What ``edgegs tune`` found, remembered: which variant draws a scene fastest on this board, at one size.

An answer is a small file of its own, named after what it holds for: board, kernels, scene, size, and how good the
picture must be. Like the packed scenes beside it, the folder may be lost, full, read-only or shared with other
processes at any time: that costs speed, never a picture.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional

from edgegs.backends.base import Backend
from edgegs.errors import DeviceError, EdgegsError
from edgegs.files import forget_oldest, read_regular, replacing
from edgegs.kernels.manifest import source_hash, writing
from edgegs.kernels.variants import variant
from edgegs.pack.cache import digest_of
from edgegs.pack.prepare import Wish
from edgegs.paths import cache_dir

log = logging.getLogger(__name__)

#: dB to the exact picture that ``auto`` keeps to: what RoofGS gives up, 0.028 dB, where a scene is 27 dB from the
#: photographs. Only a configuration that allows less is ever drawn with the exponential ``bits``.
MIN_PSNR_DB = 48.9
#: Changes when the same file would mean something else.
SCHEMA = 1
#: Answers kept; the ones used longest ago go first.
KEPT = 64
MAX_BYTES = 64 << 10
#: A file that was begun so long ago and never finished is one of a process that was killed, seconds.
_ABANDONED_S = 24 * 3600.0
#: What an unpacked SOG's folder is told by: its values' ranges and tables are of one content.
_SOG_FILES = ("meta.json", "lod-meta.json")

Progress = Callable[[int, int], None]


class Board(NamedTuple):
    """What draws.

    Attributes:
        backend: ``cuda``, ``host`` or ``reference``.
        device: as the backend calls it; "" knows no answers.
        driver: of a GPU; "" elsewhere.
    """

    backend: str = "host"
    device: str = ""
    driver: str = ""

    @classmethod
    def of(cls, backend: Backend) -> Board:
        """Of an open backend."""
        if backend.name != "cuda":
            return cls(backend.name, backend.device)
        from edgegs.bench.ledger import driver

        return cls(backend.name, backend.device, driver() or "")


class Task(NamedTuple):
    """What an answer is for, but for the scene's content.

    Attributes:
        width, height: of the picture, pixels.
        wish: how the scene is wanted; its storage does not matter: it follows from the answer.
        min_psnr_db: to the exact picture, of each view.
    """

    board: Board
    width: int
    height: int
    wish: Wish = Wish()
    min_psnr_db: float = MIN_PSNR_DB

    def facts(self) -> Dict[str, Any]:
        """As they stand in an answer's file."""
        options = hashlib.sha256(self.wish.options.encode()).hexdigest()[:16]
        return {
            "schema": SCHEMA,
            **self.board._asdict(),
            "kernels": source_hash(),
            "width": self.width,
            "height": self.height,
            "max_gaussians": self.wish.max_gaussians,
            "scene_options": options,
            "min_psnr_db": self.min_psnr_db,
        }


class Answer(NamedTuple):
    """The variant that was fastest among those whose pictures are good enough.

    Attributes:
        variant: its name, or its choices.
        date: when that was measured, UTC.
        total_ms: a frame, as ``Row.ms`` of ``edgegs.bench.tune``: the mean over the views of each one's median.
        ratio_to_baseline: how many times faster than the original's pipeline; None where that found no room.
        psnr_db: the lowest of any view to the exact picture; None where no pixel differs.
        n_views: measured.
    """

    variant: str
    date: str
    total_ms: float
    ratio_to_baseline: Optional[float]
    psnr_db: Optional[float]
    n_views: int

    def says(self) -> str:
        """In a line."""
        ratio = "" if self.ratio_to_baseline is None else f", {self.ratio_to_baseline:.2f} times as fast as baseline"
        quality = "no pixel differs" if self.psnr_db is None else f"{self.psnr_db:.1f} dB at least"
        found = f"{self.total_ms:.3f} ms{ratio}, {quality}"
        return f"variant {self.variant}, as `edgegs tune` measured on {self.date}: {found}"


def scene_digest(path: str, progress: Optional[Progress] = None) -> str:
    """Tells a scene's content: sha256 of its file, of a folder's or a .gltf's describing one; "" where unreadable.

    Args:
        progress: as ``edgegs.pack.cache.digest_of``.
    """
    if os.path.isdir(path):
        found = [file for file in (os.path.join(path, name) for name in _SOG_FILES) if os.path.isfile(file)]
        return digest_of(found[0], progress) if found else ""
    return digest_of(path, progress)


def find(task: Task, path: str, progress: Optional[Progress] = None, digest: str = "") -> Optional[Answer]:
    """The answer that holds for a scene on this board; None where there is none, or none that can be read.

    The scene is read, for its digest, only where answers for everything else exist.

    Args:
        path: of the scene.
        progress: as ``scene_digest``.
        digest: of the scene, where that is known.
    """
    try:
        stem = _stem(task)
        if not task.board.device or not any(_folder().glob(stem + "-*.json")):
            return None
        digest = digest or scene_digest(path, progress)
        file = _folder() / _name(stem, digest)
        if not digest or not file.is_file():
            return None
        answer = _read(file, task, digest)
    except (EdgegsError, OSError, ValueError) as error:
        log.warning("what `edgegs tune` found is left aside: %s; run it again", error)
        return None
    with contextlib.suppress(OSError):  # somebody else's, or a file system that is read-only
        os.utime(file)
    return answer


def keep(task: Task, digest: str, answer: Answer) -> Path:
    """Remember an answer in place of an earlier one for the same; returns its file.

    Args:
        digest: ``scene_digest``.

    Raises:
        AccessError, OutputError: it cannot be written; the message names the folder.
    """
    folder = check_room()
    file = folder / _name(_stem(task), digest)
    document = {**task.facts(), "scene": digest, **answer._asdict()}
    with replacing(str(file)) as out:
        out.write((json.dumps(document, indent=1) + "\n").encode())
    forget_oldest(file, KEPT, lambda facts: facts.st_mtime_ns, _ABANDONED_S)
    return file


def check_room() -> Path:
    """The folder of the answers, made if need be; AccessError or OutputError, beforehand, if none can be kept there."""
    folder = _folder()
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(str(folder), os.W_OK | os.X_OK):
            raise PermissionError
    return folder


def _folder() -> Path:
    return cache_dir() / "tuned"


def _stem(task: Task) -> str:
    return hashlib.sha256(json.dumps(task.facts(), sort_keys=True).encode()).hexdigest()[:24]


def _name(stem: str, digest: str) -> str:
    return f"{stem}-{digest[:24]}.json"


def _read(file: Path, task: Task, digest: str) -> Answer:
    """The answer in a file; InputError, AccessError or ValueError unless it is one of ours, for exactly this."""
    content = read_regular(file, MAX_BYTES + 1, "answer")
    try:
        if len(content) > MAX_BYTES:
            raise ValueError("is too long")
        document = json.loads(content.decode("utf-8"))
        if not isinstance(document, dict):
            raise ValueError("is no mapping")
        for name, expected in {**task.facts(), "scene": digest}.items():
            if document.get(name) != expected:
                raise ValueError(f"{name} is not {expected!r}")
        values: List[Any] = [document.get(name) for name in Answer._fields]
        answer = Answer(*values)
        if not _is_possible(answer, task):
            raise ValueError("variant, or what was measured of it, is not what `edgegs tune` writes")
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file}: {error}") from None
    return answer


def _is_possible(answer: Answer, task: Task) -> bool:
    """Whether an answer can be one of ours. A folder that others may write to decides on no worse a picture."""
    if not isinstance(answer.variant, str) or answer.variant == "auto" or not isinstance(answer.date, str):
        return False
    try:
        chosen = variant(answer.variant, task.board.backend)
    except DeviceError:
        return False
    numbers = [answer.total_ms, answer.n_views]
    numbers += [value for value in (answer.ratio_to_baseline, answer.psnr_db) if value is not None]
    return (
        all(isinstance(number, (int, float)) and 0 < number < 1e9 for number in numbers)
        and (answer.psnr_db is None or answer.psnr_db >= task.min_psnr_db)
        and (chosen.exponential != "bits" or allows_bits(task.min_psnr_db))
    )


def allows_bits(min_psnr_db: float) -> bool:
    """Whether the exponential that is made of a float's bits may be used at all."""
    return min_psnr_db < MIN_PSNR_DB
