"""A process under watch: started as a service is, read from /proc, told by signals, heard at systemd's socket."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

WATCHDOG_S = 20.0
#: What a reload ends with in the log of the service.
TAKEN, REFUSED = "the new configuration is in use", "the configuration in use stays"


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class Service:
    """``edgegs run`` with a runtime directory and a notify socket.

    Args:
        command: the program and its arguments. folder: for its output, status and socket.
        environment: more environment variables.
    """

    def __init__(self, command: Sequence[str], folder: Path, environment: Dict[str, str]) -> None:
        self._runtime = folder / "runtime"
        self._runtime.mkdir()
        self._status_file = self._runtime / "status.json"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(folder / "notify"))
        self._socket.setblocking(False)
        self.notices: Dict[str, int] = {}
        self._pinged: Optional[float] = None
        self.longest_silence_s = 0.0
        self.stderr_path = folder / "stderr.txt"
        self._seen, self._tail = 0, ""
        self.taken = self.refused = 0
        self.descendants: Dict[int, str] = {}
        given = {
            "RUNTIME_DIRECTORY": str(self._runtime),
            "NOTIFY_SOCKET": str(folder / "notify"),
            "WATCHDOG_USEC": str(int(WATCHDOG_S * 1e6)),
        }
        with open(str(folder / "stdout.txt"), "wb") as out, open(str(self.stderr_path), "wb") as err:
            self.process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env={**os.environ, **given, **environment},
                start_new_session=True,
                preexec_fn=_die_with_parent,  # this program has one thread
            )
        self.pid = self.process.pid

    @property
    def runs(self) -> bool:
        return self.process.poll() is None

    # ---- what it says ---------------------------------------------------------------------------------------

    def listen(self) -> None:
        """Take what came at the notify socket and in the log since the last call."""
        while True:
            try:
                message = self._socket.recv(4096).decode("utf-8", "replace")
            except BlockingIOError:
                break
            for line in message.splitlines():
                word = line.partition("=")[0]
                self.notices[word] = self.notices.get(word, 0) + 1
                if word == "WATCHDOG":
                    self._ping()
        with open(str(self.stderr_path), encoding="utf-8", errors="replace") as file:
            file.seek(self._seen)
            text = self._tail + file.read()
            self._seen = file.tell()
        lines = text.split("\n")
        self._tail = lines.pop()
        self.taken += sum(TAKEN in line for line in lines)
        self.refused += sum(REFUSED in line for line in lines)

    def _ping(self) -> None:
        now = time.monotonic()
        if self._pinged is not None:
            self.longest_silence_s = max(self.longest_silence_s, now - self._pinged)
        self._pinged = now

    def tracebacks(self) -> int:
        return self.stderr_path.read_text(encoding="utf-8", errors="replace").count("Traceback (most recent call")

    def status(self, timeout_s: float = 10.0) -> Dict[str, Any]:
        """What it writes when it is sent USR1; empty when it does not answer in time."""
        before = self._inode()
        self.send(signal.SIGUSR1)
        until = time.monotonic() + timeout_s
        while time.monotonic() < until and self.runs:
            if self._inode() != before:
                found = json.loads(self._status_file.read_text(encoding="utf-8"))
                assert isinstance(found, dict)
                return found
            time.sleep(0.005)
        return {}

    def _inode(self) -> Optional[Tuple[int, int]]:
        try:
            found = os.stat(str(self._status_file))
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns

    def send(self, number: int) -> None:
        if self.runs:
            os.kill(self.pid, number)

    # ---- what /proc says ------------------------------------------------------------------------------------

    def memory(self) -> Dict[str, Any]:
        """``rss_kb``, ``anon_kb`` and ``pss_kb`` of the process alone; None where the kernel does not tell."""
        status = self._fields("status")
        return {
            "rss_kb": status.get("VmRSS"),
            "anon_kb": status.get("RssAnon"),
            "pss_kb": self._fields("smaps_rollup").get("Pss"),
        }

    def counts(self) -> Tuple[int, int]:
        """How many descriptors and threads it has."""
        return len(os.listdir(f"/proc/{self.pid}/fd")), len(os.listdir(f"/proc/{self.pid}/task"))

    def children(self) -> List[Tuple[int, str, str]]:
        """(process, name, state) of each child, and of theirs."""
        parents: Dict[int, List[Tuple[int, str, str]]] = {}
        for name in os.listdir("/proc"):
            if not name.isdigit():
                continue
            with contextlib.suppress(OSError, ValueError):
                stat = Path("/proc", name, "stat").read_text(encoding="utf-8", errors="replace")
                comm, rest = stat[stat.index("(") + 1 : stat.rindex(")")], stat[stat.rindex(")") + 2 :].split()
                parents.setdefault(int(rest[1]), []).append((int(name), comm, rest[0]))
        found: List[Tuple[int, str, str]] = []
        waiting = [self.pid]
        while waiting:
            below = parents.get(waiting.pop(), [])
            found += below
            waiting += [child[0] for child in below]
        self.descendants.update((child[0], child[1]) for child in found)
        return found

    def orphans(self) -> List[str]:
        """Names of children that still run although it has ended."""
        found = []
        for pid, name in self.descendants.items():
            with contextlib.suppress(OSError):
                environ = Path("/proc", str(pid), "environ").read_bytes()
                if str(self._runtime).encode() in environ:  # not another process that was given the number since
                    found.append(name)
        return found

    def _fields(self, name: str) -> Dict[str, int]:
        found: Dict[str, int] = {}
        with contextlib.suppress(OSError):
            for line in Path("/proc", str(self.pid), name).read_text(encoding="utf-8", errors="replace").splitlines():
                words = line.split()
                if len(words) >= 2 and words[0].endswith(":") and words[1].isdigit():
                    found[words[0][:-1]] = int(words[1])
        return found

    def finish(self, timeout_s: float) -> Tuple[Optional[int], float]:
        """Ask it to end: (exit code, None when it had to be killed; seconds)."""
        began = time.monotonic()
        self.send(signal.SIGTERM)
        try:
            code: Optional[int] = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            code = None
            self.kill()
        took = time.monotonic() - began
        self.listen()
        return code, took

    def kill(self) -> None:
        if self.runs:
            self.process.kill()
            self.process.wait()
        self._socket.close()
