"""What every reader shares: how a scene is to be read, and a file that is hashed while it is."""

from __future__ import annotations

import hashlib
import io
import os
from dataclasses import dataclass
from typing import BinaryIO, Callable, Optional, Tuple

from edgegs.errors import SceneError

#: Splats that a file may promise. Ten times the largest published scenes; a sparse file passes every size check.
DEFAULT_CAP = 20_000_000
#: Splats that a reader hands over at once: bounds what it takes beside the scene.
BLOCK_ROWS = 1 << 15


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
            raise SceneError(f"{path}: {where}: a scene of zero splats")
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
