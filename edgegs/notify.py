"""What a service tells systemd (sd_notify(3)): one datagram to the socket that ``NOTIFY_SOCKET`` names.

Without that variable nothing is sent, and everything here is free. Written out because it is ten lines: the packages
that do it are unmaintained or need a C library.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from typing import Mapping, Optional

log = logging.getLogger(__name__)

#: Start-up is given so long from each sign of progress, seconds; and so long from the first sign in all, because what
#: makes progress for ever is broken, too.
EXTENSION_S, MOST_EXTENSION_S = 30.0, 1800.0
#: Between two extensions, and between two lines of status, seconds.
_EVERY_S = 5.0


class Notifier:
    """The service's side. Called from one thread; never raises and never waits."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._socket: Optional[socket.socket] = None
        self._is_ready = False
        self._ping_s = self._watchdog_s(environ)
        self._pinged = self._extended = self._said = float("-inf")
        self._first_extension: Optional[float] = None
        path = environ.get("NOTIFY_SOCKET", "")
        if path[:1] not in ("/", "@"):
            return
        try:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)
            self._socket.connect("\0" + path[1:] if path[0] == "@" else path)
        except OSError as error:
            self.close()
            log.warning("systemd cannot be told anything: %s: %s", path, error.strerror)

    @property
    def is_heard(self) -> bool:
        """Whether there is anybody to tell."""
        return self._socket is not None

    def ready(self, text: str) -> None:
        """The service does what it is for. Sent once; after ``reloading`` once more."""
        if not self._is_ready:
            self._is_ready = True
            self._first_extension = None  # a device that is opened again later has the whole time again
            self._send("READY=1", f"STATUS={text}")

    def reloading(self) -> None:
        """Another configuration is being read; ``ready`` ends it."""
        if self._is_ready:
            self._is_ready = False
            self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self, text: str) -> None:
        self._send("STOPPING=1", f"STATUS={text}")

    def alive(self) -> None:
        """There was progress since the last call: pings the watchdog at half of its time."""
        if self._ping_s is None:
            return
        now = time.monotonic()
        if now - self._pinged >= self._ping_s:
            self._pinged = now
            self._send("WATCHDOG=1")

    def progress(self) -> None:
        """Starting takes longer, and gets on."""
        now = time.monotonic()
        if now - self._extended < _EVERY_S:
            return
        self._extended = now
        if self._first_extension is None:
            self._first_extension = now
        if now - self._first_extension < MOST_EXTENSION_S:
            self._send(f"EXTEND_TIMEOUT_USEC={int(EXTENSION_S * 1e6)}")
            self.alive()

    def is_due(self) -> bool:
        """Whether somebody hears it, and it is time for another ``status``."""
        return self._socket is not None and time.monotonic() - self._said >= _EVERY_S

    def status(self, text: str) -> None:
        """A line for ``systemctl status``."""
        self._said = time.monotonic()
        self._send(f"STATUS={text}")

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, *lines: str) -> None:
        if self._socket is None:
            return
        try:
            self._socket.send("\n".join(" ".join(line.split("\n")) for line in lines).encode("utf-8", "replace"))
        except OSError as error:  # full for a moment, or systemd is being replaced: the next one may arrive
            log.debug("sd_notify: %s", error)

    @staticmethod
    def _watchdog_s(environ: Mapping[str, str]) -> Optional[float]:
        """Half of the time that systemd allows between two signs of life, seconds; None where it expects none."""
        try:
            allowed_us = int(environ.get("WATCHDOG_USEC", "0"))
            meant = int(environ.get("WATCHDOG_PID", os.getpid()))
        except ValueError:
            return None
        return allowed_us / 2e6 if allowed_us > 0 and meant == os.getpid() else None
