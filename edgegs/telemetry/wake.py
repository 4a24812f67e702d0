"""A wait that a stepped wall clock cannot stretch."""

from __future__ import annotations

import contextlib
import math
import select
import socket
import threading


class Wakeup:
    """An event to wait for with a time-out that the kernel takes by the monotonic clock.

    Before Python 3.11 ``threading``'s time-outs are deadlines of the wall clock: where that is set back by an
    hour, as may happen on a board without a clock battery, a wait of ten seconds lasts an hour and ten seconds.
    ``set`` may be called from any thread, ``wait`` from one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # a set() must not reach a descriptor that is somebody else's by now
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._poll = select.poll()
        self._poll.register(self._reader, select.POLLIN)

    def set(self) -> None:
        """End the present wait, or the next one."""
        with self._lock, contextlib.suppress(OSError):  # full: it will wake anyway; closed: nobody waits
            self._writer.send(b"\0")

    def wait(self, timeout_s: float) -> bool:
        """Wait to be woken; False when ``timeout_s`` has passed instead."""
        woken = bool(self._poll.poll(math.ceil(min(max(timeout_s, 0.0), 1e6) * 1e3)))
        with contextlib.suppress(BlockingIOError):
            while len(self._reader.recv(4096)) == 4096:
                pass
        return woken

    def close(self) -> None:
        """Give the descriptors back; ``set`` does nothing from now on."""
        with self._lock:
            self._reader.close()
            self._writer.close()
