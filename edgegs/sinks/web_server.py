"""The HTTP server behind ``mjpeg://``: ``http.server`` with every thread, byte and second bounded.

One connection is one request and one thread: there is no keep-alive that would hold threads for nothing. A
request has 16 KiB and five seconds for its head, an answer or a frame ten seconds to leave; a thread ends
when its client does not keep up with that. When all places are taken, a client that has connected and said
nothing for a while gives way to the next; where there is none, the next is answered 503.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import http.server
import logging
import socket
import socketserver
import sys
import threading
import time
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Callable, Deque, Dict, FrozenSet, Optional, Tuple

from edgegs.errors import AccessError, DeviceError
from edgegs.sinks.backoff import LogLimiter
from edgegs.sinks.web_handler import Handler, load_page, response_head

_log = logging.getLogger("edgegs.sinks.web")

_STOP_S = 3.0
_SPARE_CONNECTIONS = 16  # beside the streams: pages, status, snapshots, probes
_SILENT_S = 0.25  # a client that has sent no head for so long has no claim to its place
_REFUSED_S = 1.0  # a refused client has so long to read why
_REFUSED = 32  # so many refused clients are waited for at a time


@dataclass(frozen=True)
class Site:
    """What is served; see ``MjpegSink`` for each field. ``hub`` is a ``FrameHub``."""

    hub: Any
    status: Callable[[], Dict[str, Any]]
    healthy: Callable[[], Optional[str]]
    ready: Callable[[], Optional[str]]
    metrics: Optional[Callable[[], bytes]]
    history: Callable[[Optional[float]], Dict[str, Any]]
    token: Optional[str]
    hosts: FrozenSet[str]
    max_clients: int


class WebServer(http.server.HTTPServer):
    """Listens from its construction on, serves from ``start`` to ``stop``.

    Raises:
        DeviceError: the port is taken, or the address is not this machine's.
        AccessError: a port that this user may not open.
    """

    allow_reuse_address = True  # after a restart, connections of the last run may linger in TIME_WAIT
    allow_reuse_port = False  # never share a port with somebody else
    request_queue_size = 128  # a burst waits here, not for its second attempt a second later

    def __init__(self, uri: str, host: str, port: int, site: Site) -> None:
        self.site = site
        self.page, self.page_policy = load_page()
        self.streams = threading.BoundedSemaphore(site.max_clients)
        self._limit = site.max_clients + _SPARE_CONNECTIONS
        self._refused: Deque[Tuple[float, socket.socket]] = collections.deque()  # of the accepting thread alone
        self._lock = threading.Lock()  # guards the three below
        self._limiter = LogLimiter()
        self._connections: Dict[socket.socket, threading.Thread] = {}
        self._silent: Dict[socket.socket, float] = {}  # those without a head yet, oldest first, and since when
        self._accepting = threading.Thread(target=self._accept, name="edgegs-http", daemon=True)
        self._stopping = False
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            self.address_family = found[0][0]
            address: Any = found[0][4]
            super().__init__(address, Handler)
        except socket.gaierror as error:
            raise DeviceError(f"output {uri}: {host} is not a known address: {error.strerror}") from error
        except PermissionError as error:
            raise AccessError(f"output {uri}: this user may not open port {port}; choose one from 1024 up") from error
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise DeviceError(
                    f"output {uri}: port {port} is in use; see by whom: ss -ltnp 'sport = :{port}'"
                ) from error
            raise DeviceError(f"output {uri}: cannot listen: {error.strerror}; see: ip address") from error

    def server_bind(self) -> None:
        # Not HTTPServer's: it looks the host's name up, which takes seconds on a board without a network.
        socketserver.TCPServer.server_bind(self)
        self.port = int(self.server_address[1])

    def start(self) -> None:
        self._accepting.start()

    def stop(self) -> None:
        """Free the port, cut every connection and wait for the threads, in seconds in any case."""
        self._stopping = True
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)  # ends the wait for a connection at once, without polling
        self._accepting.join(_STOP_S)
        self.server_close()
        with self._lock:
            connections = dict(self._connections)
        for connection in connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # gone already
        until = time.monotonic() + _STOP_S
        for thread in connections.values():
            thread.join(max(0.0, until - time.monotonic()))

    def _accept(self) -> None:
        while not self._stopping:
            self.timeout = _REFUSED_S if self._refused else None
            self.handle_request()
            while self._refused and time.monotonic() - self._refused[0][0] >= _REFUSED_S:
                self._refused.popleft()[1].close()
        for _, refused in self._refused:
            refused.close()

    def get_request(self) -> Tuple[socket.socket, Any]:
        try:
            return super().get_request()
        except OSError:
            if not self._stopping:
                time.sleep(0.1)  # out of descriptors: the listener stays readable, and the loop would spin
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        thread = threading.Thread(
            target=self._serve, args=(request, client_address), name="edgegs-http client", daemon=True
        )
        with self._lock:
            full = len(self._connections) >= self._limit and not self._make_room()
            if not full:
                self._connections[request] = thread
                self._silent[request] = time.monotonic()
        if full:
            self._refuse(request)
        else:
            thread.start()

    def _make_room(self) -> bool:
        """Cut the client that has been silent longest, if for long enough. The caller holds ``_lock``."""
        oldest = next(iter(self._silent), None)
        if oldest is None or time.monotonic() - self._silent[oldest] < _SILENT_S:
            return False
        del self._silent[oldest]
        with contextlib.suppress(OSError):
            oldest.shutdown(socket.SHUT_RDWR)  # its thread wakes, and ends
        return True

    def _refuse(self, request: socket.socket) -> None:
        """Answer 503. In the accepting thread: nothing here waits."""
        request.setblocking(False)
        fields = {"Retry-After": "5", "Content-Length": "0"}
        with contextlib.suppress(OSError):
            request.send(response_head(HTTPStatus.SERVICE_UNAVAILABLE, fields))
            request.shutdown(socket.SHUT_WR)
        # Not closed at once: the request is still on its way, and would be answered by a reset.
        self._refused.append((time.monotonic(), request))
        if len(self._refused) > _REFUSED:
            self._refused.popleft()[1].close()

    def head_came(self, connection: socket.socket) -> None:
        """The client has said what it wants: it keeps its place."""
        with self._lock:
            self._silent.pop(connection, None)

    def _serve(self, request: Any, client_address: Any) -> None:
        try:
            self.finish_request(request, client_address)
        except (OSError, EOFError):
            pass  # the client left, did not keep up, or the server stops
        except Exception as error:
            self.complain("request", error)
        finally:
            self.shutdown_request(request)
            self._forget(request)

    def _forget(self, request: Any) -> None:
        with self._lock:
            self._connections.pop(request, None)
            self._silent.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        self._forget(request)
        self.complain("connection", sys.exc_info()[1])

    def complain(self, what: str, error: Optional[BaseException]) -> None:
        """Log a fault of ours, not too often: a page asks again every second."""
        with self._lock:
            unsaid = self._limiter.allow(time.monotonic())
        if unsaid is not None:
            _log.warning("%s: %s (%d more not logged)", what, error, unsaid, exc_info=error)
