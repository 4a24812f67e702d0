"""Poses over UDP: one JSON object a datagram (see ``pose_message``).

Anyone who reaches the port moves the camera: there is no password. So it listens on the loopback address unless the
configuration says otherwise, and then a firewall or a tunnel decides who may send; MQTT has passwords and TLS.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import ipaddress
import logging
import select
import socket
import threading
import time
from typing import Any, Deque, Optional, Tuple

from edgegs.camera.live import BURST, ROUND_S, Received
from edgegs.camera.pose_message import MAX_BYTES
from edgegs.errors import ConfigError, DeviceError
from edgegs.sinks.uri import is_loopback

_log = logging.getLogger("edgegs.camera")

RECEIVE_BUFFER = 16 << 10  # bytes: some forty poses; the kernel drops what a flood brings beyond, and nobody pays
DRAIN = 64  # datagrams a look


class Udp(Received):
    """Listens on a port. Opened again, with back-off, while the port is taken or the address not this machine's.

    Args:
        host: the address to listen on; ``0.0.0.0`` or ``::`` for all. port: 0 takes any free one, see ``port``.
        others: of ``Received``.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 5151, **others: Any) -> None:
        super().__init__(f"udp://{_bracketed(host)}:{port}", **others)
        self._host, self._asked_port = host, port
        self._socket: Optional[socket.socket] = None
        self._waker: Optional[Tuple[socket.socket, socket.socket]] = None  # the ends to write to, and to wait for

    @property
    def port(self) -> int:
        """The port it listens on; differs from the one asked for only where that is 0 and the link is up."""
        opened = self._socket
        return self._asked_port if opened is None else int(opened.getsockname()[1])

    def open(self) -> None:
        if self._thread is not None:
            return
        if _is_multicast(self._host):
            raise ConfigError(f"camera {self.address}: a multicast address; write this machine's own, or 0.0.0.0")
        if not is_loopback(self._host):
            _log.warning("camera %s: whoever reaches this port moves the camera; let a firewall decide", self.address)
        if not _needs_look_up(self._host):  # a look-up may take seconds: that is left to the thread
            with contextlib.suppress(DeviceError):  # what is wrong for now only is told by the thread
                self._socket = self._bind()
        self._waker = socket.socketpair()
        super().open()

    def close(self) -> None:
        thread = self._thread
        super().close()
        waker, self._waker = self._waker, None
        if waker is not None and (thread is None or not thread.is_alive()):
            for end in waker:
                end.close()

    def _bind(self) -> socket.socket:
        opened: Optional[socket.socket] = None
        try:
            found = socket.getaddrinfo(self._host, self._asked_port, type=socket.SOCK_DGRAM, flags=socket.AI_PASSIVE)
            family, kind, protocol, _, address = found[0]
            # No SO_REUSEADDR: with UDP it would share the port with whoever has it.
            opened = socket.socket(family, kind, protocol)
            if family == socket.AF_INET6 and self._host == "::":
                opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
            opened.setblocking(False)
            opened.bind(address)
            return opened
        except OSError as error:
            if opened is not None:
                opened.close()
            raise self._explained(error) from None

    def _explained(self, error: OSError) -> Exception:
        if isinstance(error, socket.gaierror):
            return DeviceError(f"{self._host} is not a known address: {error.strerror}")
        if isinstance(error, PermissionError):
            text = f"camera {self.address}: this user may not open port {self._asked_port}"
            return ConfigError(text + "; choose a camera.path.port from 1024 up")
        if error.errno == errno.EADDRINUSE:
            port = self._asked_port
            return DeviceError(f"port {port} is in use; see by whom: ss -lunp 'sport = :{port}'")
        if error.errno == errno.EADDRNOTAVAIL:
            return DeviceError(f"{self._host} is not an address of this machine; see: ip address")
        return DeviceError(f"cannot listen: {error.strerror}")

    def _listen(self, stopping: threading.Event) -> None:
        if self._socket is None:
            self._socket = self._bind()
        opened, waker = self._socket, self._waker
        try:
            self._is_up()
            poll = select.poll()
            poll.register(opened, select.POLLIN)
            if waker is not None:
                poll.register(waker[1], select.POLLIN)
            while not stopping.is_set():
                poll.poll()
                began = time.monotonic()
                newest, n = _drain(opened)
                if n:
                    self._take(newest, n)
                stopping.wait(max(0.0, began + ROUND_S - time.monotonic()))
        finally:
            self._socket = None
            opened.close()

    def _wake(self) -> None:
        if self._waker is not None:
            self._waker[0].send(b"x")


def _drain(opened: socket.socket) -> Tuple[Deque[Tuple[bytes, str]], int]:
    """The newest datagrams that wait, with their senders, and how many there were."""
    found: Deque[Tuple[bytes, Any]] = collections.deque(maxlen=BURST)
    n = 0
    while n < DRAIN:
        try:
            found.append(opened.recvfrom(MAX_BYTES + 1))
        except BlockingIOError:
            break
        n += 1
    return collections.deque((raw, f"{_bracketed(sender[0])}:{sender[1]}") for raw, sender in found), n


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _needs_look_up(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host.lower() != "localhost"
    return False


def _is_multicast(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_multicast
    except ValueError:
        return False
