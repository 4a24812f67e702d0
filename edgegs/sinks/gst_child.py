"""A child process that is fed raw frames: started, fed, watched, finished or killed.

Why a child, and not ``cv2.VideoWriter`` with GStreamer inside this process? An encoder that hangs, which hardware
encoders do, cannot be interrupted or replaced there; a child can be killed, and takes its memory and its device
with it. (OpenCV's wheels have no GStreamer anyhow.) The copy through the pipe costs about a millisecond a frame.
"""

from __future__ import annotations

import logging
import os
import select
import subprocess
import time
from typing import Mapping, Optional, Sequence

from edgegs.children import TiedChild, widen
from edgegs.errors import OutputError

_log = logging.getLogger("edgegs.sinks")


class Child(TiedChild):
    """One child. Made and used by one thread; ``kill`` alone may come from others.

    Args:
        stall_s: a child that takes no byte for so long has stalled.
        command, what, pass_fds, env: of ``TiedChild``.

    Raises:
        OutputError: it cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        what: str,
        stall_s: float,
        pass_fds: Sequence[int] = (),
        env: Optional[Mapping[str, str]] = None,
    ) -> None:
        self._stall_s = stall_s
        try:
            super().__init__(command, what, subprocess.PIPE, pass_fds, env)
        except OSError as error:
            raise OutputError(f"{what} cannot be started: {error.strerror}") from error
        assert self.process.stdin is not None
        self._stdin = self.process.stdin
        os.set_blocking(self._stdin.fileno(), False)
        widen(self._stdin.fileno())

    def says(self, word: str, timeout_s: float) -> bool:
        """Whether the child prints a line with ``word`` within the time. OutputError when it has ended without."""
        deadline = time.monotonic() + timeout_s
        while True:
            ended = self.ended()
            self.listen(0.0 if ended else min(0.05, timeout_s))
            if any(word in line for line in self.lines):
                return True
            if ended:
                raise self._death()
            if time.monotonic() > deadline:
                return False

    def wait_said(self, word: str, timeout_s: float) -> None:
        """Wait until the child has printed a line with ``word``.

        Raises:
            OutputError: it ended, or did not say so in time. It still runs then: ``kill`` it.
        """
        if not self.says(word, timeout_s):
            raise self.not_ready(timeout_s)

    def not_ready(self, waited_s: float) -> OutputError:
        """The error of a child that was waited for in vain."""
        return OutputError(f"{self.what} is not ready after {waited_s:g} s{self.words()}")

    def feed(self, data: memoryview) -> None:
        """Write all of ``data`` (bytes) to the child's input.

        Raises:
            OutputError: the child has ended, or has stalled and was killed.
        """
        if self.ended():
            raise self._death()
        poll = select.poll()
        poll.register(self._stdin, select.POLLOUT)
        log = self.log
        if log is not None:
            poll.register(log, select.POLLIN)
        writable = self._stdin.fileno()
        progress = time.monotonic()
        while data:
            left = progress + self._stall_s - time.monotonic()
            if left <= 0:
                self.kill()  # it has to be replaced, and must not be waited for once more when its output is closed
                raise OutputError(f"{self.what} has stalled: no progress for {self._stall_s:g} s{self.words()}")
            for descriptor, event in poll.poll(left * 1000):
                if descriptor != writable:
                    if not self.read_log() and self.log is None:
                        poll.unregister(descriptor)
                elif event & select.POLLOUT:
                    try:
                        data = data[os.write(writable, data) :]
                    except BlockingIOError:
                        continue
                    except BrokenPipeError:
                        raise self._death() from None
                    progress = time.monotonic()
                elif event:
                    raise self._death()

    def finish(self, timeout_s: float, live: bool = False) -> None:
        """End the child's input, and wait until it has written everything and ended. Kills it when that takes longer.

        Args:
            live: there is nothing to complete, so that a good-bye that fails is logged only: rtspclientsink's does,
                once in a dozen times, when the server closes the connection first.

        Raises:
            OutputError: it had ended before, ended by a signal or (unless ``live``) with an error, or had to be killed.
        """
        ran = not self.ended()
        self._stdin.close()
        deadline = time.monotonic() + timeout_s
        while not self.ended():
            if time.monotonic() > deadline:
                self.reap()
                raise OutputError(f"{self.what} did not finish within {timeout_s:g} s{self.words()}")
            self.listen(0.02)
        status = self.returncode
        death = self._death() if status else None
        self.reap()
        if status is None or death is None:
            return
        if not (live and ran and status > 0):
            raise death
        _log.debug("at its end: %s", death)

    def reap(self, timeout_s: float = 2.0) -> None:
        """Kill what still runs, wait for it and close the pipes."""
        super().reap(timeout_s)
        self._stdin.close()

    def _death(self) -> OutputError:
        """The error of a child that has closed its input or has ended."""
        return OutputError(self.last_words("takes no more frames"))
