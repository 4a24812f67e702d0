"""Starts the process that owns a window (``display_window``), hands it pictures, and tells why it ended."""

from __future__ import annotations

import collections
import contextlib
import json
import logging
import mmap
import os
import selectors
import signal
import socket
import subprocess
import tempfile
import threading
from typing import Any, Callable, Deque, Dict

import numpy as np

from edgegs.findings import python_command, python_environment
from edgegs.sinks.display_window import SLOTS

_log = logging.getLogger("edgegs.sinks")
_START = "from edgegs.sinks.display_window import start; start()"
#: What a process gets to end in peace, and to be gone after a kill, seconds.
_PEACE_S, _GONE_S = 1.0, 2.0


class ChildError(Exception):
    """The window's process ended or does not answer: the reason."""


class WindowProcess:
    """The process, two slots of shared memory, a socket, and one thread that listens.

    Args:
        display: the X server. settings: for ``display_window.Window``; width and height are among them.
        heard: called from the listening thread with each message that is not about frames.

    Raises:
        ChildError: from here, ``wait_ready`` and ``show``. OSError: from here: the process cannot be started.
    """

    def __init__(self, display: str, settings: Dict[str, Any], heard: Callable[[Dict[str, Any]], None]) -> None:
        height, width = settings["height"], settings["width"]
        self._heard = heard
        self._changed = threading.Condition()  # guards the next four
        self._ready = self._ended = False
        self._taken = 0
        self._error = ""
        self._words: Deque[str] = collections.deque(maxlen=8)
        self._sent = 0
        with contextlib.ExitStack() as undo:
            memory = _memory(SLOTS * height * width * 3)
            undo.callback(os.close, memory)
            self._mapping = mmap.mmap(memory, SLOTS * height * width * 3)
            self._slots = np.frombuffer(self._mapping, np.uint8).reshape(SLOTS, height, width, 3)
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            undo.callback(theirs.close)
            self._control = ours
            try:
                self._process = subprocess.Popen(
                    python_command(_START, str(theirs.fileno()), str(memory), str(os.getpid())),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    pass_fds=(theirs.fileno(), memory),
                    env=dict(python_environment(), DISPLAY=display),
                    start_new_session=True,  # Ctrl+C ends edgegs, which then closes the window
                )
            except BaseException:
                ours.close()
                raise
        self._thread = threading.Thread(target=self._listen, name="edgegs-display", daemon=True)
        self._thread.start()
        self.send(settings)

    def wait_ready(self, timeout_s: float) -> None:
        """Wait until the window is on the screen."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._ready or self._ended, timeout_s):
                raise ChildError(f"the window's process is not ready after {timeout_s:g} s")
            if self._ready and not self._ended:
                return
        raise ChildError(self._why())

    def show(self, image: np.ndarray, timeout_s: float) -> None:
        """Hand over a picture, (height, width, 3) uint8; returns when it is being drawn."""
        # the child draws from the other slot until it says that it has taken this one
        slot = self._sent % SLOTS
        np.copyto(self._slots[slot], image)
        self._sent += 1
        if not self.send({"frame": slot}):
            self._end_of_talk()
        with self._changed:
            if not self._changed.wait_for(lambda: self._taken >= self._sent or self._ended, timeout_s):
                raise ChildError(f"the window has taken no picture for {timeout_s:g} s")
            if not self._ended:
                return
        raise ChildError(self._why())

    def send(self, message: Dict[str, Any]) -> bool:
        """One message to the window, without waiting; False when it cannot be sent. From any thread."""
        try:
            self._control.send(json.dumps(message).encode("utf-8"), socket.MSG_DONTWAIT)
        except OSError:
            return False
        return True

    def stop(self) -> None:
        """End the process: politely, then not; afterwards nothing of it is left."""
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)
        try:
            self._process.wait(_PEACE_S)
        except subprocess.TimeoutExpired:
            self.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_GONE_S)
        if threading.current_thread() is not self._thread:
            self._thread.join(_GONE_S)
        del self._slots
        with contextlib.suppress(BufferError):
            self._mapping.close()

    def kill(self) -> None:
        """At once; from any thread."""
        self._process.kill()

    def _end_of_talk(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _why(self) -> str:
        """Why the process has ended: its own words, its last lines on stderr, or the signal."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_PEACE_S)
        if threading.current_thread() is not self._thread:
            self._thread.join(_PEACE_S)  # it reads to the end of what the process wrote
        if self._error:
            return self._error
        status = self._process.poll()
        words = " / ".join(self._words)
        if status is None:
            how = "the window's process no longer listens"
        elif status < 0:
            how = f"the window's process was ended by {_signal_name(-status)}"
        else:
            how = f"the window's process ended with status {status}"
        return f"{how}: {words}" if words else how

    # ---- the listening thread ---------------------------------------------------------------------------

    def _listen(self) -> None:
        assert self._process.stderr is not None
        stderr = self._process.stderr.fileno()
        rest = b""
        with self._control, self._process.stderr, selectors.DefaultSelector() as selector:  # closed here only
            selector.register(self._control, selectors.EVENT_READ)
            selector.register(stderr, selectors.EVENT_READ)
            while selector.get_map():
                for key, _ in selector.select():
                    data = self._read(key.fileobj)
                    if not data:
                        selector.unregister(key.fileobj)
                        if key.fileobj is self._control:
                            self._end_of_talk()
                    elif key.fileobj is self._control:
                        self._message(json.loads(data.decode("utf-8")))
                    else:
                        *lines, rest = (rest + data).split(b"\n")
                        rest = rest[-2000:]
                        self._remember(lines)
        self._remember([rest])

    def _read(self, source: Any) -> bytes:
        with contextlib.suppress(OSError):
            return source.recv(65536) if source is self._control else os.read(source, 65536)
        return b""

    def _remember(self, lines: Any) -> None:
        for line in lines:
            text = " ".join(line.decode("utf-8", "replace").split())
            if text:
                self._words.append(text[:300])

    def _message(self, message: Dict[str, Any]) -> None:
        with self._changed:
            if "taken" in message:
                self._taken = message["taken"]
            elif "ready" in message:
                self._ready = True
            elif "error" in message:
                self._error = message["error"]
            self._changed.notify_all()
        if not {"taken", "ready", "error"} & set(message):
            try:
                self._heard(message)
            except Exception:  # a listener's mistake must not silence the window
                _log.exception("display: what was done at the window could not be passed on")


def _memory(size: int) -> int:
    """A descriptor of ``size`` bytes of memory without a name: gone with the last process that holds it."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("edgegs-display")
    else:  # a Python built for an older C library
        folder = "/dev/shm" if os.path.isdir("/dev/shm") else None
        descriptor, path = tempfile.mkstemp(prefix="edgegs-display-", dir=folder)
        os.unlink(path)
    os.ftruncate(descriptor, size)
    return descriptor


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
