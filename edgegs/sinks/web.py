"""``mjpeg://HOST:PORT``: the picture and the figures in a browser.

    /                page to look at: the stream, stage times, power, temperature, outputs
    /stream.mjpg     endless multipart/x-mixed-replace; /snapshot.jpg: the latest frame
    /status          JSON, what ``status`` returns; /history: the last minutes' figures, what ``history`` returns
    /metrics         what ``metrics`` returns (Prometheus text), when given
    /healthz, /readyz  200, or 503 with the reason why not

Served by the standard library, not by aiohttp: this is the output a first run shows, so it must work with
the core dependencies alone on an aarch64 board with Python 3.8; it serves a handful of viewers, of which
each costs one thread that mostly sleeps in ``send``; and OpenCV lets go of the interpreter while it
encodes. What ``http.server`` lacks (bounded threads and times, small requests, no reverse look-up) is in
``web_server``.

A picture is encoded when the first viewer asks for it, once for all of them; without a viewer nothing is
encoded. A viewer gets the latest frame whenever it can take one and misses the others, so a slow one delays
nobody. There is no TLS: beyond loopback use a tunnel or a proxy, and a token in any case.
"""

from __future__ import annotations

import socket
import threading
from typing import Any, Callable, Dict, Iterable, Optional, Tuple

from edgegs.errors import ConfigError
from edgegs.frame import Frame
from edgegs.sinks.base import Sink, check_int
from edgegs.sinks.pictures import encode
from edgegs.sinks.uri import OutputUri, is_loopback
from edgegs.sinks.web_server import Site, WebServer


class FrameHub:
    """Holds the latest frame, and its JPEG once somebody has asked for it. Every method is thread-safe."""

    def __init__(self, quality: int) -> None:
        self._quality = quality
        self._encoding = threading.Lock()  # one thread encodes, the others wait for its result
        self._jpeg: Tuple[int, bytes] = (0, b"")
        self._changed = threading.Condition()
        self._number = 0
        self._closed = False
        self.frame: Optional[Frame] = None
        #: How many pictures were encoded.
        self.encoded = 0

    def publish(self, frame: Frame) -> None:
        with self._changed:
            self._number += 1
            self.frame = frame
            self._changed.notify_all()

    def close(self) -> None:
        """Send everybody who waits away."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def latest(self, seen: Optional[int] = None) -> Optional[Tuple[int, bytes]]:
        """Number and JPEG of the latest frame; None before the first.

        Args:
            seen: who has seen this one takes a newer one that was being encoded for somebody else just now, though
                it may no longer be the latest: or else viewers of a fast renderer would each encode their own.
        """
        at_once = self._encoding.acquire(blocking=False)
        if not at_once:
            self._encoding.acquire()
        try:
            if not at_once and seen is not None and self._jpeg[0] > seen:
                return self._jpeg
            with self._changed:
                number, frame = self._number, self.frame
            if frame is None:
                return None
            if self._jpeg[0] != number:
                self._jpeg = (number, encode(frame.image, ".jpg", self._quality))
                self.encoded += 1
            return self._jpeg
        finally:
            self._encoding.release()

    def wait_newer(self, number: int, timeout: float) -> bool:
        """Wait for a frame after ``number``; False when there is none in time. EOFError once closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._number > number, timeout)
            if self._closed:
                raise EOFError
            return self._number > number


class MjpegSink(Sink):
    """Serves the frames it is given over HTTP.

    Options:
        status: returns the dict behind ``/status``; without one the size of the picture is told.
        token: required as ``Authorization: Bearer`` or ``?token=`` by every request when set. An address that
            other machines can reach needs one.
        quality: JPEG quality, 1..100. max_clients: streams at a time, 1..64; one more is answered 503.
        hosts: further names by which browsers may call this server ("lobby.example.org"). Its address, loopback
            names and, beyond loopback, the machine's own name are always allowed; any other is refused (a
            foreign page could otherwise read the answers, by pointing its own name at this address).
        healthy, ready: return None when all is well, or else the reason, for ``/healthz`` and ``/readyz``. Without them
            the one says yes, and the other once there is a frame.
        metrics: returns the Prometheus text.
        history: ``Telemetry.history``; called with the time after which figures are wanted, or None for all.
            An empty dict means that none are kept: then the page's curves begin when it is opened.
    """

    live = True
    OPTIONS = ("status", "token", "quality", "max_clients", "hosts", "healthy", "ready", "metrics", "history")

    def __init__(
        self,
        uri: str,
        host: str,
        port: int,
        *,
        status: Optional[Callable[[], Dict[str, Any]]] = None,
        token: Optional[str] = None,
        quality: int = 80,
        max_clients: int = 8,
        hosts: Iterable[str] = (),
        healthy: Optional[Callable[[], Optional[str]]] = None,
        ready: Optional[Callable[[], Optional[str]]] = None,
        metrics: Optional[Callable[[], bytes]] = None,
        history: Optional[Callable[[Optional[float]], Dict[str, Any]]] = None,
    ) -> None:
        super().__init__(uri)
        self._quality = check_int(uri, "quality", quality, 1, 100)
        self._max_clients = check_int(uri, "max_clients", max_clients, 1, 64)
        if token is not None and (not isinstance(token, str) or not token or not token.isprintable()):
            raise ConfigError(f"output {uri}: the token is empty or has control characters")
        if token is None and not is_loopback(host):
            raise ConfigError(
                f"output {uri}: {host} can be reached from other machines, so it needs a token "
                "(http.token_file); or use 127.0.0.1"
            )
        self._host = "127.0.0.1" if host.lower() == "localhost" else host
        self._asked_port = port
        names = {"localhost", "127.0.0.1", "::1", *hosts}
        if not is_loopback(host):
            names |= {host, socket.gethostname(), socket.gethostname() + ".local"} - {"0.0.0.0", "::"}
        self._hosts = frozenset(name.lower() for name in names)
        self._token, self._metrics = token, metrics
        self._history = history or (lambda after: {})
        self._hub = FrameHub(self._quality)
        self._status = status or self._size
        self._healthy = healthy or (lambda: None)
        self._ready = ready or (lambda: "no frame yet" if self._hub.frame is None else None)
        self._server: Optional[WebServer] = None

    @classmethod
    def from_uri(cls, uri: OutputUri, **options: Any) -> MjpegSink:
        return cls(uri.text, uri.host, uri.port, **options)

    @property
    def port(self) -> int:
        """The port it listens on; differs from the URI's only for port 0, "any free one"."""
        return self._asked_port if self._server is None else self._server.port

    @property
    def hub(self) -> FrameHub:
        return self._hub

    def open(self, width: int, height: int, fps: float) -> None:
        self._hub = FrameHub(self._quality)
        site = Site(
            hub=self._hub,
            status=self._status,
            healthy=self._healthy,
            ready=self._ready,
            metrics=self._metrics,
            history=self._history,
            token=self._token,
            hosts=self._hosts,
            max_clients=self._max_clients,
        )
        self._server = WebServer(self.uri, self._host, self._asked_port, site)
        self._server.start()

    def write(self, frame: Frame) -> None:
        self._hub.publish(frame)

    def close(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            self._hub.close()
            server.stop()

    def _size(self) -> Dict[str, Any]:
        frame = self._hub.frame
        return {} if frame is None else {"width": frame.image.shape[1], "height": frame.image.shape[0]}
