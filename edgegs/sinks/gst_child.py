"""A child process that is fed raw frames: started, fed, watched, finished or killed.

Why a child, and not ``cv2.VideoWriter`` with GStreamer inside this process? An encoder that hangs, which hardware
encoders do, cannot be interrupted or replaced there; a child can be killed, and takes its memory and its device
with it. (OpenCV's wheels have no GStreamer anyhow.) The copy through the pipe costs about a millisecond a frame.

The child never outlives edgegs: its input ends when edgegs dies, by whatever cause, and the kernel kills it then
(``PR_SET_PDEATHSIG``), even where it hangs.
"""

from __future__ import annotations

import collections
import contextlib
import fcntl
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
from typing import Deque, List, Mapping, Optional, Sequence

from edgegs.errors import OutputError

_log = logging.getLogger("edgegs.sinks")

#: Runs in the child before the program: the kernel kills the process when its parent is gone. A program of its own
#: and not ``preexec_fn``, which runs Python between fork and exec of a process with many threads, and may hang.
_TIE = (
    "import ctypes,os,sys\n"
    "ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)\n"  # PR_SET_PDEATHSIG, SIGKILL
    "if os.getppid() != int(sys.argv[1]): sys.exit(1)\n"
    "os.execv(sys.argv[2], sys.argv[2:])\n"
)
_F_SETPIPE_SZ = 1031  # fcntl.F_SETPIPE_SZ came with Python 3.10
_PIPE_BYTES = 1 << 20
_LINES, _LINE_BYTES = 20, 1000
_SHOWN = 300


class Child:
    """One child. Made and used by one thread; ``kill`` alone may come from others.

    Args:
        command: absolute path of the program, and its arguments. No shell is involved.
        what: the child as messages name it.
        stall_s: a child that takes no byte for so long has stalled.
        pass_fds: descriptors that the child inherits.
        env: more environment variables.

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
        self._what, self._stall_s = what, stall_s
        self._lock = threading.Lock()  # between reaping and killing: a reaped number may be another process's
        self._lines: Deque[str] = collections.deque(maxlen=_LINES)
        self._tail = b""
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _TIE, str(os.getpid()), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                bufsize=0,
                pass_fds=tuple(pass_fds),
                start_new_session=True,  # Ctrl-C in a terminal must not reach it: edgegs finishes it
                env={**os.environ, "LC_ALL": "C", **(env or {})},  # its messages are looked at
            )
        except OSError as error:
            raise OutputError(f"{what} cannot be started: {error.strerror}") from error
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._log = self._process.stdin, self._process.stdout
        for pipe in (self._stdin, self._log):
            os.set_blocking(pipe.fileno(), False)
        with contextlib.suppress(OSError):  # more than a user's share, or more than the system allows
            fcntl.fcntl(self._stdin.fileno(), _F_SETPIPE_SZ, _PIPE_BYTES)

    @property
    def pid(self) -> int:
        return self._process.pid

    def says(self, word: str, timeout_s: float) -> bool:
        """Whether the child prints a line with ``word`` within the time. OutputError when it has ended without."""
        deadline = time.monotonic() + timeout_s
        while True:
            ended = self._ended()
            self._listen(0.0 if ended else min(0.05, timeout_s))
            if any(word in line for line in self._lines):
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
        return OutputError(f"{self._what} is not ready after {waited_s:g} s{self._words()}")

    def feed(self, data: memoryview) -> None:
        """Write all of ``data`` (bytes) to the child's input.

        Raises:
            OutputError: the child has ended, or has stalled.
        """
        if self._ended():
            raise self._death()
        poll = select.poll()
        poll.register(self._stdin, select.POLLOUT)
        poll.register(self._log, select.POLLIN)
        writable = self._stdin.fileno()
        progress = time.monotonic()
        while data:
            left = progress + self._stall_s - time.monotonic()
            if left <= 0:
                raise OutputError(f"{self._what} has stalled: no progress for {self._stall_s:g} s{self._words()}")
            for descriptor, event in poll.poll(left * 1000):
                if descriptor != writable:
                    if not self._read_log():
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
        ran = not self._ended()
        self._stdin.close()
        deadline = time.monotonic() + timeout_s
        while not self._ended():
            if time.monotonic() > deadline:
                self.kill()
                self.reap()
                raise OutputError(f"{self._what} did not finish within {timeout_s:g} s{self._words()}")
            self._listen(0.02)
        status = self._process.returncode
        death = self._death() if status else None
        self.reap()
        if death is None:
            return
        if not (live and ran and status > 0):
            raise death
        _log.debug("at its end: %s", death)

    def kill(self) -> None:
        """End the child at once. Does not wait; harmless when it has ended."""
        with self._lock:
            if self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)

    def reap(self) -> None:
        """Kill what still runs, wait for it and close the pipes."""
        self.kill()
        deadline = time.monotonic() + 2.0  # a process inside a driver's call cannot be killed
        while not self._ended() and time.monotonic() < deadline:
            self._listen(0.02)
        self._stdin.close()
        self._log.close()

    # ---- what it says, and how it ended -----------------------------------------------------------------

    def _ended(self) -> bool:
        with self._lock:
            return self._process.poll() is not None

    def _listen(self, timeout_s: float) -> None:
        """Read what the child prints; waits for it up to ``timeout_s``."""
        if self._log.closed:
            return
        poll = select.poll()
        poll.register(self._log, select.POLLIN)
        if poll.poll(timeout_s * 1000) and not self._read_log():
            time.sleep(min(timeout_s, 0.005))  # at its end, the pipe is always ready

    def _read_log(self) -> bool:
        """Keep the last lines; False at the end."""
        try:
            data = os.read(self._log.fileno(), 1 << 16)
        except BlockingIOError:
            return True
        *whole, self._tail = (self._tail + data).split(b"\n")
        self._tail = self._tail[-_LINE_BYTES:]
        for line in whole:
            text = line[:_LINE_BYTES].decode("utf-8", "replace").strip()
            if text:
                self._lines.append(text)
        return bool(data)

    def _death(self) -> OutputError:
        """The error of a child that has closed its input or has ended; reads its last words."""
        deadline = time.monotonic() + 1.0
        while not self._ended() and time.monotonic() < deadline:
            self._listen(0.02)
        while not self._log.closed and self._readable() and self._read_log():
            pass
        status = self._process.returncode
        if status is None:
            how = "takes no more frames"
        elif status < 0:
            how = f"was ended by signal {-status}"
        else:
            how = "has ended" if status == 0 else f"failed (status {status})"
        return OutputError(f"{self._what} {how}{self._words()}")

    def _readable(self) -> bool:
        poll = select.poll()
        poll.register(self._log, select.POLLIN)
        return bool(poll.poll(0))

    def _words(self) -> str:
        """The child's errors, or else its last words, as the end of a message."""
        lines: List[str] = list(self._lines)
        errors = [line for line in lines if line.startswith(("ERROR", "edgegs-rtsp:", "WARNING: erroneous"))]
        text = "; ".join(errors or lines[-2:])
        return ": " + (text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…") if text else ""
