"""The live file of a run: appended to, made durable, and closed by a new name when it is full."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from typing import List, Optional

from edgegs.telemetry import runlog

#: Others look at the lock for microseconds.
_LOCK_TRIES, _LOCK_WAIT_S = 100, 0.01


class LiveFile:
    """Appends lines to ``folder``'s live file. Every method but ``close`` raises OSError as the disk says.

    Not for two threads. The disk may go and come back between any two calls.

    Attributes:
        size: bytes in the file. dirty: whether something was written that may not be on the disk yet.
    """

    def __init__(self, log_dir: str, folder: str) -> None:
        self.folder = folder
        self.path = os.path.join(folder, runlog.LIVE)
        self.size = 0
        self.dirty = False
        self._log_dir = log_dir
        # A log on a disk of its own must not move to the disk below when that one is unmounted.
        self._mount = runlog.mount_point(folder)
        self._descriptor: Optional[int] = None
        self._torn = False
        self._new_name = False

    def ensure(self) -> None:
        """Open the file, unless it is open and still what its name leads to."""
        if self._is_own():
            return
        self.close()
        if not os.path.ismount(self._mount):
            raise OSError(errno.ENODEV, f"the log's disk is not mounted on {self._mount} any more")
        for folder in (self._log_dir, self.folder):
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder, 0o755)
                runlog.sync_folder(os.path.dirname(folder))
        descriptor = self._open_and_lock()
        self.size = os.fstat(descriptor).st_size
        # A disk that lost power alone may come back with a torn line at our end.
        self._torn = self.size > 0 and os.pread(descriptor, 1, self.size - 1) != b"\n"
        self._new_name = True

    def _open_and_lock(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        for _ in range(_LOCK_TRIES):
            self._descriptor = os.open(self.path, flags, 0o644)
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:  # another process is asking, this moment, whether the file is live
                time.sleep(_LOCK_WAIT_S)
            except OSError:  # a file system without locks still takes a log
                return self._descriptor
            else:
                if self._is_own():
                    return self._descriptor
            self.close()
        raise OSError(errno.EBUSY, "another process holds the live log")

    def _is_own(self) -> bool:
        """Whether the name leads to what we write to: a disk may have been unmounted, a folder deleted."""
        if self._descriptor is None:
            return False
        with contextlib.suppress(OSError):
            return os.path.samestat(os.stat(self.path), os.fstat(self._descriptor))
        return False

    def append(self, lines: List[bytes]) -> None:
        """Write the lines, all or none where the disk lets us."""
        assert self._descriptor is not None
        data = (b"\n" if self._torn else b"") + b"".join(lines)
        written = 0
        self.dirty = True
        try:
            while written < len(data):
                written += os.write(self._descriptor, data[written:])
        except OSError:
            if written:
                self._take_back(written)
            raise
        self._torn = False
        self.size += len(data)

    def _take_back(self, written: int) -> None:
        """Undo a write that stopped half-way; where that fails, the next one ends the torn line first."""
        assert self._descriptor is not None
        try:
            os.ftruncate(self._descriptor, self.size)
        except OSError:
            self._torn = True
            self.size += written

    def sync(self) -> None:
        """Make everything written so far durable, the file's name included."""
        assert self._descriptor is not None
        os.fsync(self._descriptor)
        if self._new_name:
            runlog.sync_folder(self.folder)
            self._new_name = False
        self.dirty = False

    def rotate(self) -> None:
        """Close the file under its final name, durably, and begin a new one."""
        if self.dirty:
            self.sync()
        os.rename(self.path, runlog.closed_name(self.folder))
        runlog.sync_folder(self.folder)
        self.ensure()

    def close(self) -> None:
        """Give the descriptor (and with it the lock) back; what was not synced is not."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(descriptor)
