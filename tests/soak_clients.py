"""Clients of an ``mjpeg://`` output, good and bad, many at a time; and datagrams for a camera that UDP moves."""

from __future__ import annotations

import collections
import contextlib
import json
import random
import selectors
import socket
import struct
import time
from typing import Callable, Counter, Dict, List, Optional

#: What a client may be; "reader" and the pages are people's, the others happen to every open port.
PAGES = ("/", "/status", "/metrics", "/history", "/snapshot.jpg", "/healthz", "/readyz")
KINDS = ("reader", "page", "never", "half-open", "silent", "malformed", "reset", "no-token")
_MALFORMED = (
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)),  # a TLS hello
    b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    b"POST /status HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello",
    b"GET /../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /%00 HTTP/9.9\r\n\r\n",
    b"\r\n" * 40,
    b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 20000 + b"\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: elsewhere.example\r\n\r\n",
)


class Client:
    """One connection: sends what its kind sends, then reads or does not."""

    def __init__(self, port: int, kind: str, token: str, rng: random.Random) -> None:
        self.kind = kind
        self.answer = bytearray()
        self.n_bytes = 0
        self.ended = False
        self._sent = False
        path = rng.choice(PAGES) if kind == "page" else "/stream.mjpg"
        right = "" if kind == "no-token" else f"Authorization: Bearer {token}\r\n"
        self._request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{right}\r\n".encode("ascii")
        if kind == "half-open":
            self._request = self._request[: rng.randrange(1, 20)]
        elif kind == "malformed":
            self._request = rng.choice(_MALFORMED)
        self.socket = socket.socket()
        if kind == "never":
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.setblocking(False)
        self.socket.connect_ex(("127.0.0.1", port))

    @property
    def events(self) -> int:
        if not self._sent and self.kind != "silent":
            return selectors.EVENT_WRITE
        return 0 if self.kind in ("never", "silent") else selectors.EVENT_READ

    def act(self) -> None:
        """Go on, as far as that is possible now."""
        try:
            if self.events & selectors.EVENT_WRITE:
                self._request = self._request[self.socket.send(self._request) :]
                self._sent = not self._request
                return
            part = self.socket.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            part = b""
        self.n_bytes += len(part)
        self.answer += part[: 64 - len(self.answer)] if len(self.answer) < 64 else b""
        self.ended = not part

    def close(self) -> str:
        """End it; returns what it was answered: the status, "nothing", or "refused"."""
        if self.kind == "reset":
            with contextlib.suppress(OSError):
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()
        status = bytes(self.answer[9:12]).decode("ascii", "replace")
        return status if self.answer.startswith(b"HTTP/1.") else "nothing"


def wave(
    ports: List[int], token: str, n: int, seconds: float, rng: random.Random, meanwhile: Callable[[], None]
) -> Dict[str, Counter]:
    """``n`` clients at once for so long: {kind: {answer: how many}}. ``meanwhile`` is called about every 50 ms."""
    found: Dict[str, Counter] = {kind: collections.Counter() for kind in KINDS}
    clients = [Client(rng.choice(ports), KINDS[i % len(KINDS)], token, rng) for i in range(n)]
    with selectors.DefaultSelector() as selector:
        registered: Dict[Client, int] = {}
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for client in clients:
                events = 0 if client.ended else client.events
                if registered.get(client, 0) != events:
                    if registered.get(client):
                        selector.unregister(client.socket)
                    if events:
                        selector.register(client.socket, events, client)
                    registered[client] = events
            for key, _ in selector.select(0.05):
                key.data.act()
            meanwhile()
            time.sleep(0.002)  # readers of a fast stream would take the processor from it
    for client in clients:
        found[client.kind][client.close()] += 1
    return found


def ask(port: int, path: str, token: str, timeout_s: float = 5.0) -> Optional[bytes]:
    """The answer to one request, head and all; None when there is none."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=timeout_s) as connection:
            request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n"
            connection.sendall(request.encode("ascii"))
            return b"".join(iter(lambda: connection.recv(65536), b""))
    except OSError:
        return None


def send_poses(port: int, n: int, rng: random.Random) -> None:
    """``n`` datagrams, every second of them a pose, the others what a network brings."""
    bad = (
        b"",
        b"\x00" * 100,
        b"{" * 1000,
        b'{"position": [0, 0, NaN], "look_at": [0, 0, 0]}',
        b'{"position": [0, 0, 1e999], "look_at": [0, 0, 0]}',
        b'{"position": [0, 0], "look_at": "there"}',
        b'{"positoin": [0, 0, 0]}',
        b"x" * 3000,
        bytes(rng.randrange(256) for _ in range(50)),
    )
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for i in range(n):
            eye = [round(rng.uniform(-1.0, 1.0), 3) for _ in range(3)]
            good = json.dumps({"position": eye, "look_at": [0.0, 0.0, 4.0]}).encode("ascii")
            with contextlib.suppress(OSError):  # nobody listens just now
                sender.sendto(rng.choice(bad) if i % 2 else good, ("127.0.0.1", port))
