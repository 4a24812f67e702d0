"""A child process that never outlives us: started without a shell, listened to, asked to end or killed, and reaped.

The kernel kills it when edgegs dies, by whatever cause and even where the child hangs (``PR_SET_PDEATHSIG``). It has a
session of its own: Ctrl-C in a terminal must not reach it, edgegs ends it in order. What it prints, on stdout and
stderr, is kept for the message that says why it ended.
"""

from __future__ import annotations

import collections
import contextlib
import fcntl
import os
import select
import signal
import subprocess
import sys
import threading
import time
from typing import Deque, Mapping, Optional, Sequence

#: Runs before the program, as a program of its own: ``preexec_fn`` runs Python between fork and exec of a process with
#: many threads, and may deadlock.
_TIE = (
    "import ctypes,os,sys\n"
    "ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)\n"  # PR_SET_PDEATHSIG, SIGKILL
    "if os.getppid() != int(sys.argv[1]): sys.exit(1)\n"
    "os.execvp(sys.argv[2], sys.argv[2:])\n"
)
_F_SETPIPE_SZ = 1031  # fcntl.F_SETPIPE_SZ came with Python 3.10
_PIPE_BYTES = 1 << 20
_LINES, _LINE_BYTES = 20, 1000
_SHOWN = 300
#: How lines begin that a GStreamer child prints while all is well.
_CHATTER = (
    *("Redistribute", "New clock", "Setting pipeline", "Progress", "Pipeline is", "Prerolled", "Got context"),
    "edgegs-rtsp: ready",
)


class TiedChild:
    """One child. Made and used by one thread; ``kill`` alone may come from others.

    Args:
        command: the program, searched for on PATH unless it is a path, and its arguments.
        what: the child as messages name it.
        stdin: as ``subprocess.Popen`` takes it.
        pass_fds: descriptors that the child inherits; it gets no others.
        env: more environment variables.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        what: str,
        stdin: int = subprocess.DEVNULL,
        pass_fds: Sequence[int] = (),
        env: Optional[Mapping[str, str]] = None,
    ) -> None:
        self.what = what
        #: The last lines that it printed.
        self.lines: Deque[str] = collections.deque(maxlen=_LINES)
        self._tail = b""
        self._killed = False
        self._lock = threading.Lock()  # between reaping and killing: a reaped number may be another process's
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _TIE, str(os.getpid()), *command],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
            pass_fds=tuple(pass_fds),
            start_new_session=True,
            env={**os.environ, "LC_ALL": "C", **(env or {})},  # its messages are looked at
        )
        assert self.process.stdout is not None
        self._log = self.process.stdout
        os.set_blocking(self._log.fileno(), False)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def returncode(self) -> Optional[int]:
        """As of ``subprocess.Popen``; None until it has been reaped."""
        return self.process.returncode

    def ended(self) -> bool:
        """Whether it has ended; reaps it then."""
        with self._lock:
            return self.process.poll() is not None

    # ---- what it says -----------------------------------------------------------------------------------

    @property
    def log(self) -> Optional[int]:
        """The descriptor to poll for what it prints, None at its end; then call ``read_log``."""
        return None if self._log.closed else self._log.fileno()

    def read_log(self) -> bool:
        """Keep what it has printed, without waiting; False when there is nothing now, or at the end."""
        if self._log.closed:
            return False
        try:
            data = os.read(self._log.fileno(), 1 << 16)
        except BlockingIOError:
            return False
        if not data:
            self._log.close()
        *whole, self._tail = (self._tail + (data or b"\n")).split(b"\n")
        self._tail = self._tail[-_LINE_BYTES:]
        for line in whole:
            text = line[:_LINE_BYTES].decode("utf-8", "replace").strip()
            if text:
                self.lines.append(text)
        return bool(data)

    def listen(self, timeout_s: float) -> None:
        """Wait for what it prints, up to ``timeout_s``."""
        log = self.log
        if log is None:
            time.sleep(min(timeout_s, 0.005))
            return
        poll = select.poll()
        poll.register(log, select.POLLIN)
        if poll.poll(timeout_s * 1000):
            self.read_log()

    def words(self) -> str:
        """Its errors, or else its last words, as the end of a message; empty when it said nothing that matters."""
        lines = [*self.lines, self._tail.decode("utf-8", "replace").strip()]
        lines = [line for line in lines if line and not line.startswith(_CHATTER)]
        errors = [line for line in lines if "error" in line.lower() or "erroneous" in line]
        text = "; ".join(errors or lines[-1:])
        return ": " + (text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…") if text else ""

    def last_words(self, otherwise: str) -> str:
        """How it ended, and its last words, both waited for a moment; ``otherwise`` when it still runs."""
        deadline = time.monotonic() + 1.0
        while not self.ended() and time.monotonic() < deadline:
            self.listen(0.02)
        while self.read_log():
            pass
        status = self.returncode
        if status is None:
            how = otherwise
        elif self._killed and status == -signal.SIGKILL:
            how = "gave no answer and was killed"
        else:
            how = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
        return f"{self.what} {how}{self.words()}"

    # ---- its end ----------------------------------------------------------------------------------------

    def kill(self) -> None:
        """End it at once, with what it may have started. Does not wait; harmless when it has been reaped."""
        with self._lock:
            if self.process.returncode is None:
                self._killed = True
                self._signal(signal.SIGKILL)

    def interrupt(self, timeout_s: float) -> None:
        """Ask it to end as Ctrl-C does, and wait up to ``timeout_s``; ``reap`` it then."""
        if self.returncode is not None:
            return
        self._signal(signal.SIGINT)
        deadline = time.monotonic() + timeout_s
        # Left unreaped, so that its number still names its group when ``reap`` kills what it may have started.
        while not os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if time.monotonic() > deadline:
                return
            self.listen(0.02)

    def reap(self, timeout_s: float = 2.0) -> None:
        """Kill what still runs, wait for it and close its log. One stuck inside a driver's call is left behind."""
        self.kill()
        deadline = time.monotonic() + timeout_s
        while not self.ended() and time.monotonic() < deadline:
            self.listen(0.02)
        self._log.close()

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)


def widen(pipe: int) -> None:
    """Let a pipe hold a megabyte, where the system allows it: fewer turns for each picture."""
    with contextlib.suppress(OSError):  # more than a user's share, or more than the system allows
        fcntl.fcntl(pipe, _F_SETPIPE_SZ, _PIPE_BYTES)
