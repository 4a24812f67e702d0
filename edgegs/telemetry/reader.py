"""Read sensor files in a worker thread, because some sensors never answer.

A zone of a powered-down engine can block its reader in the kernel for ever. The worker takes the block;
the caller waits a bounded time, marks that file as hung and goes on with a new worker. A hung file is
not read again until its read has returned.
"""

from __future__ import annotations

import errno
import os
import queue
import threading
import time
from typing import Dict, Iterable, List, Optional, Union

#: A sysfs attribute is at most one page.
_PAGE = 4096

Result = Union[bytes, OSError]


class _Batch:
    """Files handed to one worker; ``lock`` guards what the caller and the worker both touch."""

    def __init__(self, paths: List[str]) -> None:
        self.paths = paths
        self.lock = threading.Lock()
        self.results: Dict[str, Result] = {}
        self.position = 0
        self.since = time.monotonic()
        self.abandoned = False
        self.done = threading.Event()


class SensorReader:
    """Bounded reads of sensor files.

    Args:
        timeout_s: how long one file may take before it counts as hung.
        max_hung: how many stuck worker threads are accepted; beyond that nothing is read any more.
    """

    def __init__(self, timeout_s: float = 0.5, max_hung: int = 16) -> None:
        self._timeout_s = timeout_s
        self._max_hung = max_hung
        self._turn = threading.Lock()
        self._hung_lock = threading.Lock()
        self._hung: Dict[str, float] = {}
        self._jobs: Optional[queue.SimpleQueue[Optional[_Batch]]] = None
        self._worker: Optional[threading.Thread] = None

    def hung(self) -> List[str]:
        """The files whose read has not returned."""
        with self._hung_lock:
            return sorted(self._hung)

    def read(self, paths: Iterable[str]) -> Dict[str, Result]:
        """Content (bytes) or ``OSError`` of each path; a hung one is a ``TimeoutError``.

        Takes at most about three time-outs in all, however many files hang.
        """
        wanted = list(dict.fromkeys(paths))
        with self._turn:
            return self._read(wanted)

    def _read(self, wanted: List[str]) -> Dict[str, Result]:
        results: Dict[str, Result] = {}
        with self._hung_lock:
            hung = dict(self._hung)
        for path in wanted:
            if path in hung:
                waited = time.monotonic() - hung[path]
                results[path] = _timed_out(path, f"no answer for {waited:.0f} s")
        rest = [path for path in wanted if path not in hung]
        give_up = time.monotonic() + 2 * self._timeout_s
        while rest:
            if time.monotonic() > give_up or len(self.hung()) >= self._max_hung:
                for path in rest:
                    results[path] = _timed_out(path, "not read: other sensors hang")
                break
            batch = _Batch(rest)
            self._submit(batch)
            rest = self._await(batch)
            results.update(batch.results)
        return results

    def _await(self, batch: _Batch) -> List[str]:
        """Wait for the batch; returns the paths left over behind a hung one (whose worker is given up)."""
        while True:
            with batch.lock:
                left = batch.since + self._timeout_s - time.monotonic()
                if left <= 0 and batch.position < len(batch.paths):
                    batch.abandoned = True
                    stuck = batch.paths[batch.position]
                    message = f"no answer within {self._timeout_s:g} s"
                    batch.results[stuck] = _timed_out(stuck, message)
                    with self._hung_lock:
                        self._hung[stuck] = batch.since
                    self._jobs = self._worker = None
                    return batch.paths[batch.position + 1 :]
            if batch.done.wait(max(left, 0.001)):
                return []

    def _submit(self, batch: _Batch) -> None:
        if self._jobs is None:
            self._jobs = queue.SimpleQueue()
            self._worker = threading.Thread(
                target=self._work, args=(self._jobs,), name="edgegs-sensor-read", daemon=True
            )
            self._worker.start()
        self._jobs.put(batch)

    def _work(self, jobs: queue.SimpleQueue[Optional[_Batch]]) -> None:
        while True:
            batch = jobs.get()
            if batch is None:
                return
            for path in batch.paths:
                result = _read_file(path)
                with batch.lock:
                    if batch.abandoned:
                        with self._hung_lock:
                            self._hung.pop(path, None)
                        return
                    batch.results[path] = result
                    batch.position += 1
                    batch.since = time.monotonic()
            batch.done.set()

    def close(self) -> None:
        """End the idle worker. A stuck one is a daemon thread and ends with its read or the process."""
        with self._turn:
            jobs, worker = self._jobs, self._worker
            self._jobs = self._worker = None
        if jobs is not None and worker is not None:
            jobs.put(None)
            worker.join(self._timeout_s)


def _read_file(path: str) -> Result:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(descriptor, _PAGE)
        finally:
            os.close(descriptor)
    except OSError as error:
        return error


def _timed_out(path: str, message: str) -> OSError:
    return TimeoutError(errno.ETIMEDOUT, message, path)


def text(result: Result) -> str:
    """The content as stripped text; NUL bytes (device tree strings) count as white space. Raises OSError."""
    if isinstance(result, OSError):
        raise result
    return result.decode("utf-8", "replace").replace("\0", " ").strip()


def number(result: Result) -> int:
    """The content as an integer. Raises OSError as read, or ValueError when it is no number."""
    return int(text(result))


def describe(error: Exception) -> str:
    """Why a sensor has no value, in a few words."""
    if isinstance(error, PermissionError):
        return "permission denied"
    if isinstance(error, OSError):
        if error.errno == errno.EAGAIN:
            return "offline (EAGAIN)"
        return error.strerror or str(error)
    return "no number" if isinstance(error, ValueError) else str(error)
