"""Metrics in a file: for boards that open no port, collected by node_exporter's textfile collector."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
from typing import Callable, Optional

from edgegs.files import replace
from edgegs.telemetry.wake import Wakeup

log = logging.getLogger(__name__)

SUFFIX = ".prom"
#: For all to read: the collector is another user.
_MODE = 0o644
#: Seconds that the end of a run waits for a disk.
_STOP_S = 3.0


def fault(path: str) -> Optional[str]:
    """What is wrong with a path as a textfile; None when nothing is. Looks at no file."""
    if not path.endswith(SUFFIX):
        return f"node_exporter's textfile collector reads only names that end in {SUFFIX}"
    return None


class Textfile:
    """Writes the exposition to a file every ``interval_s``, each time whole, from a thread of its own.

    A reader sees the old file or the new one, never a part. When the run ends the file is removed: node_exporter would
    go on telling its figures as today's. After a crash ``node_textfile_mtime_seconds`` tells how old they are.

    Args:
        path: ends in ``.prom``; its folder exists, or is tried again each time. The file beside it that is written
            first has a name that the collector does not read.
        render: returns the exposition; a failure of it is logged and tried again.
        interval_s: at least 0.1.
    """

    def __init__(self, path: str, render: Callable[[], bytes], interval_s: float = 15.0) -> None:
        self._path, self._render, self._interval_s = path, render, max(0.1, interval_s)
        folder, name = os.path.split(path)
        self._temporary = os.path.join(folder, f".{name}.{os.getpid()}.new")
        self._stopping = False
        self._wake: Optional[Wakeup] = None
        self._thread = threading.Thread(target=self._work, name="edgegs-textfile", daemon=True)
        self._error: Optional[str] = None

    @property
    def error(self) -> Optional[str]:
        """Why the file could not be written the last time; None when it was."""
        return self._error

    def start(self) -> None:
        self._wake = Wakeup()
        self._thread.start()

    def stop(self) -> None:
        """End the thread and remove the file; takes no longer than a few seconds, and never raises."""
        self._stopping = True
        if self._wake is None:
            self._remove()
        else:
            self._wake.set()
            self._thread.join(_STOP_S)  # one that a disk holds longer removes the file when that comes back

    def write(self) -> bool:
        """Write once; False when that failed, with the reason in ``error`` (logged when it is a new one)."""
        try:
            replace(self._path, self._render(), self._temporary, _MODE)
        except Exception as error:  # a full disk or a broken sensor must not end the thread
            told = _told(error)
            if told != self._error:
                log.warning("telemetry.textfile: %s: %s; tried again every %g s", self._path, told, self._interval_s)
            self._error = told
            return False
        if self._error is not None:
            log.info("telemetry.textfile: %s: is written again", self._path)
        self._error = None
        return True

    def _work(self) -> None:
        assert self._wake is not None
        while not self._stopping:
            self.write()
            self._wake.wait(self._interval_s)
        self._remove()
        self._wake.close()

    def _remove(self) -> None:
        for path in (self._path, self._temporary):
            with contextlib.suppress(OSError):  # never written, or its disk is gone
                os.unlink(path)


def _told(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno is not None:
        if error.errno in (errno.EACCES, errno.EPERM):
            return "permission denied; let this user write in its folder"
        return os.strerror(error.errno)
    return f"{type(error).__name__}: {error}"
