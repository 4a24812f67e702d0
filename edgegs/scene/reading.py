"""What every reader shares: how a scene is to be read, what bytes of it mean, and a file that is hashed as it is."""

from __future__ import annotations

import hashlib
import io
import os
from dataclasses import dataclass
from typing import BinaryIO, Callable, Optional, Tuple

import numpy as np

from edgegs.errors import SceneError

#: Splats that a file may promise. Ten times the largest published scenes; a sparse file passes every size check.
DEFAULT_CAP = 20_000_000
#: Splats that a reader hands over at once: bounds what it takes beside the scene.
BLOCK_ROWS = 1 << 15
_HASHED_BYTES = 1 << 20

#: The spherical harmonic of degree 0: colour = 0.5 + SH_C0 · f_dc.
SH_C0 = 0.28209479177387814
_LEVELS = np.arange(256) / 255
#: Byte of a colour -> f_dc, (256,) float32.
F_DC = ((_LEVELS - 0.5) / SH_C0).astype(np.float32)
with np.errstate(divide="ignore"):
    #: Byte of alpha -> logit, (256,) float32; 0 and 255 are -inf and +inf, which are legal.
    LOGITS = (np.log(_LEVELS) - np.log1p(-_LEVELS)).astype(np.float32)
#: What a user is told of a scene of SH degree 4.
DEGREE_4 = "SH degree 4: the fourth band is left out, and degree 3 is drawn"


@dataclass(frozen=True)
class Reading:
    """How a scene is to be read.

    Attributes:
        max_gaussians: keep at most this many splats (see ``SceneBuilder``); None keeps all.
        cap: refuse a file that promises more splats than this, before anything is allocated for them.
        progress: called as ``progress(rows_done, n_rows)`` after each block; what it raises ends the reading.
        frame: the axes that the file was written in, "rdf" or "rub"; None: what its format says.
    """

    max_gaussians: Optional[int] = None
    cap: int = DEFAULT_CAP
    progress: Optional[Callable[[int, int], None]] = None
    frame: Optional[str] = None

    def report(self, rows_done: int, n_rows: int) -> None:
        if self.progress is not None:
            self.progress(rows_done, n_rows)

    def check_count(self, n_rows: int, path: str, where: str) -> None:
        """Raise SceneError for a count of zero or one beyond the cap; ``where`` says what made the promise."""
        if n_rows < 1:
            raise SceneError(f"{path}: {where}: a scene of zero splats; export it again")
        if n_rows > self.cap:
            raise SceneError(
                f"{path}: {where} promises {n_rows:,} splats, and the limit is {self.cap:,}; reduce the scene first"
            )


class HashingReader(io.RawIOBase):
    """A file read once, in order, whose every byte goes into a digest (sha256)."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        self._file = file
        self.digest = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:  # type: ignore[no-untyped-def, override]
        n = self._file.readinto(buffer) or 0  # type: ignore[attr-defined]
        self.digest.update(memoryview(buffer)[:n])
        return n


def add_file(digest: hashlib._Hash, file: BinaryIO, n_bytes: int) -> None:
    """Put a file's ``n_bytes`` into a digest, a block at a time; the file's position stays."""
    for offset in range(0, n_bytes, _HASHED_BYTES):
        digest.update(os.pread(file.fileno(), min(_HASHED_BYTES, n_bytes - offset), offset))


def refuse_holes(file: BinaryIO, start: int, end: int, path: str) -> None:
    """Raise SceneError if something between two bytes was never written: a hole costs its maker nothing.

    Only for bytes that no scene has as zeros over a whole page: careful copies make holes of those.
    """
    try:
        hole = os.lseek(file.fileno(), start, os.SEEK_HOLE)
    except (OSError, AttributeError):  # a file system, or system, that cannot tell
        return
    finally:
        os.lseek(file.fileno(), 0, os.SEEK_SET)
    if hole < end:
        raise SceneError(
            f"{path}: a sparse file: nothing was ever written at byte {hole:,} of {os.fstat(file.fileno()).st_size:,}; "
            "is the copy or download complete?"
        )


class Unchanged:
    """Notices a file that is written to while it is read.

    Use: made before the first byte is read; ``check`` after the last.
    """

    def __init__(self, file: BinaryIO, path: str) -> None:
        self._file, self._path = file, path
        self._before = self._signature()

    @property
    def n_bytes(self) -> int:
        """Size of the file, bytes."""
        return self._before[0]

    def _signature(self) -> Tuple[int, int]:
        found = os.fstat(self._file.fileno())
        return found.st_size, found.st_mtime_ns

    def check(self) -> None:
        """Raise SceneError if the file was written to meanwhile."""
        if self._signature() != self._before:
            raise SceneError(f"{self._path}: the file changed while it was read; try again once it is written")
