"""What the HTTP server behind ``mjpeg://`` answers.

GET and HEAD only, for exact paths, from memory: no request ever reaches the file system. Every answer forbids
caching, embedding and guessing of its type; the page's policy allows its own style and script by hash.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import http.server
import io
import ipaddress
import json
import math
import pkgutil
import re
import socket
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Callable, Dict, Optional, Tuple
from urllib.parse import parse_qs

from edgegs.errors import DeviceError

if TYPE_CHECKING:
    from edgegs.sinks.web_server import WebServer

_HEAD_BYTES = 16384
_HEAD_END = re.compile(rb"\r?\n\r?\n")
_HEAD_S = 5.0
_SEND_S = 10.0
_LINGER_S = 0.5
_KEEP_ALIVE_S = 5.0  # without a new frame for so long a viewer gets the last one again
# A slow viewer sees what lies in the socket's buffer before anything newer: keep it to a few pictures.
_SEND_BUFFER = 256 * 1024
_BOUNDARY = b"--edgegs-frame\r\n"
_NO_CONTENT = "default-src 'none'; frame-ancestors 'none'"


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers one request. Of the base class only the parsing of the head is used."""

    server: WebServer
    _streaming = False

    def setup(self) -> None:
        self.connection: socket.socket = self.request
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)

    def finish(self) -> None:
        pass  # the server closes the connection

    def handle(self) -> None:
        head = self._read_head()
        self.connection.settimeout(_SEND_S)  # for a whole ``sendall``, however many parts it takes
        if head is None:
            return
        self.server.head_came(self.connection)
        self.rfile = io.BytesIO(head)
        self.raw_requestline = self.rfile.readline()
        self.command = ""
        if not _HEAD_END.search(head):
            self.send_error(431 if self.raw_requestline.endswith(b"\n") else 414)
        elif self.parse_request():
            self._answer()

    def _read_head(self) -> Optional[bytes]:
        """What came until the empty line, or the first ``_HEAD_BYTES``; None when the client gives up or dawdles."""
        head = bytearray()
        until = time.monotonic() + _HEAD_S
        while len(head) < _HEAD_BYTES and not _HEAD_END.search(head):
            left = until - time.monotonic()
            if left <= 0:  # bytes that keep dripping in never meet the time-out
                return None
            self.connection.settimeout(left)
            part = self.connection.recv(_HEAD_BYTES - len(head))
            if not part:
                return None
            head += part
        return bytes(head)

    def _answer(self) -> None:
        path = self.path.partition("?")[0]
        if self.command not in ("GET", "HEAD"):
            return self._refuse(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD", Allow="GET, HEAD")
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1:
            return self._refuse(HTTPStatus.BAD_REQUEST, "expected one Host header")
        if not self._is_own_name(hosts[0]):
            return self._refuse(HTTPStatus.FORBIDDEN, "the Host header names another server (option hosts)")
        fetch = self.headers.get("Sec-Fetch-Site"), self.headers.get("Sec-Fetch-Mode")
        if fetch[0] == "cross-site" and fetch[1] != "navigate":
            return self._refuse(HTTPStatus.FORBIDDEN, "other sites may not embed this one")
        if not self._has_token():
            reason = "a token is required: /?token=…"
            return self._refuse(HTTPStatus.UNAUTHORIZED, reason, WWW_Authenticate="Bearer")
        route = _ROUTES.get(path)
        if route is None:
            return self._refuse(HTTPStatus.NOT_FOUND, "no such page; there are " + " ".join(_ROUTES))
        try:
            route(self)
        except EOFError:
            raise
        except Exception as error:
            self.server.complain(path, error)
            if not self._streaming:
                self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, "this could not be read; see the log")

    def _is_own_name(self, header: str) -> bool:
        match = re.fullmatch(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9._-]+))(?::[0-9]{1,5})?", header.strip().lower())
        if match is None:
            return False
        host = match.group(1) or match.group(2).rstrip(".")
        return host in self.server.site.hosts or host == _address(self.connection)

    def _has_token(self) -> bool:
        token = self.server.site.token
        if token is None:
            return True
        scheme, _, given = self.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            given = self._query("token")
        return hmac.compare_digest(given.strip().encode("utf-8", "replace"), token.encode("utf-8"))

    def _query(self, name: str) -> str:
        """The first value of that name behind the path's question mark; "" when there is none."""
        try:
            return parse_qs(self.path.partition("?")[2], max_num_fields=8).get(name, [""])[0]
        except ValueError:  # more fields than any of our own addresses has
            return ""

    # ---- the pages --------------------------------------------------------------------------------------

    def _page(self) -> None:
        self._send(self.server.page, "text/html; charset=utf-8", policy=self.server.page_policy)

    def _status(self) -> None:
        self._send_json(self.server.site.status())

    def _history(self) -> None:
        after = self._query("after")
        try:
            seconds = float(after) if after else None
        except ValueError:
            self._refuse(HTTPStatus.BAD_REQUEST, "after: expected seconds, as in an earlier answer's t")
            return
        self._send_json(self.server.site.history(seconds))

    def _metrics(self) -> None:
        if self.server.site.metrics is None:
            self._refuse(HTTPStatus.NOT_FOUND, "metrics are not served here")
            return
        self._send(self.server.site.metrics(), "text/plain; version=0.0.4; charset=utf-8")

    def _healthz(self) -> None:
        self._probe(self.server.site.healthy())

    def _readyz(self) -> None:
        self._probe(self.server.site.ready())

    def _probe(self, reason: Optional[str]) -> None:
        if reason is None:
            self._send(b"ok\n", "text/plain; charset=utf-8")
        else:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, reason)

    def _snapshot(self) -> None:
        picture = self.server.site.hub.latest()
        if picture is None:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "no frame yet", Retry_After="1")
        else:
            self._send(picture[1], "image/jpeg")

    def _stream(self) -> None:
        head = response_head(
            HTTPStatus.OK,
            {"Content-Type": "multipart/x-mixed-replace; boundary=edgegs-frame"},
        )
        if self.command == "HEAD":
            self._put(head)
            return
        if not self.server.streams.acquire(blocking=False):
            self._refuse(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"{self.server.site.max_clients} viewers already (max_clients)",
                Retry_After="5",
            )
            return
        try:
            self._streaming = True
            self._put(head + _BOUNDARY)
            self._send_frames()
        finally:
            self.server.streams.release()

    def _send_frames(self) -> None:
        hub = self.server.site.hub
        seen = 0
        while hub.wait_newer(seen, _KEEP_ALIVE_S) or not self._has_left():
            picture = hub.latest(seen)
            if picture is None:
                continue
            seen, jpeg = picture
            # The boundary goes out with the picture it ends: browsers show a picture when they see its end.
            part = f"Content-Type: image/jpeg\r\nContent-Length: {len(jpeg)}\r\n\r\n".encode("ascii")
            self._put(b"".join((part, jpeg, b"\r\n", _BOUNDARY)))

    def _has_left(self) -> bool:
        return self._peek() == b""

    def _has_unread(self) -> bool:
        """Whether the client sent more than one request or a body, which nobody is going to read."""
        return bool(self._peek())

    def _peek(self) -> Optional[bytes]:
        """A byte that the client sent, b"" when it has left, None when it is silent as it should be."""
        try:
            self.connection.setblocking(False)
            return self.connection.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return None
        except OSError:
            return b""
        finally:
            self.connection.settimeout(_SEND_S)

    # ---- answers ----------------------------------------------------------------------------------------

    def _send(self, body: bytes, content_type: str, policy: str = _NO_CONTENT) -> None:
        head = response_head(HTTPStatus.OK, {"Content-Type": content_type, "Content-Length": str(len(body))}, policy)
        self._put(head if self.command == "HEAD" else head + body)
        if self._has_unread():
            self._linger()

    def _send_json(self, value: Any) -> None:
        text = json.dumps(plain(value), ensure_ascii=False, separators=(",", ":"))
        self._send(text.encode("utf-8", "replace"), "application/json")

    def _refuse(self, status: HTTPStatus, reason: str, **headers: str) -> None:
        body = (reason + "\n").encode("utf-8")
        fields = {"Content-Type": "text/plain; charset=utf-8", "Content-Length": str(len(body))}
        fields.update({name.replace("_", "-"): value for name, value in headers.items()})
        head = response_head(status, fields)
        self._put(head if self.command == "HEAD" else head + body)
        self._linger()

    def _put(self, data: bytes) -> None:
        """Send; EOFError when the client has left or does not keep up."""
        try:
            self.connection.sendall(data)
        except OSError as error:
            raise EOFError from error

    def _linger(self) -> None:
        """Take what the client still sends: closing on unread bytes would reset the answer away."""
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            self.connection.settimeout(_LINGER_S)
            for _ in range(64):
                if not self.connection.recv(_HEAD_BYTES):
                    break

    def send_error(self, code: int, message: Optional[str] = None, explain: Optional[str] = None) -> None:
        """Called by ``parse_request`` for a head it cannot read; nothing of the request is repeated."""
        status = HTTPStatus(code)
        self._refuse(status, status.phrase.lower())

    def log_message(self, format: str, *args: Any) -> None:
        pass  # a viewer is no event; and a request may hold the token


_ROUTES: Dict[str, Callable[[Handler], None]] = {
    "/": Handler._page,
    "/stream.mjpg": Handler._stream,
    "/snapshot.jpg": Handler._snapshot,
    "/status": Handler._status,
    "/history": Handler._history,
    "/metrics": Handler._metrics,
    "/healthz": Handler._healthz,
    "/readyz": Handler._readyz,
}


def response_head(status: HTTPStatus, fields: Dict[str, str], policy: str = _NO_CONTENT) -> bytes:
    lines = [f"HTTP/1.0 {status.value} {status.phrase}"]
    lines += [f"{name}: {value}" for name, value in fields.items()]
    lines += [
        "Connection: close",
        "Cache-Control: no-store",
        f"Content-Security-Policy: {policy}",
        "Cross-Origin-Resource-Policy: same-origin",
        "Referrer-Policy: no-referrer",
        "X-Content-Type-Options: nosniff",
        "X-Frame-Options: DENY",
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")


def _address(connection: socket.socket) -> str:
    """The address at which the client reached this machine, as it stands in a Host header."""
    address = ipaddress.ip_address(str(connection.getsockname()[0]).partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


def load_page() -> Tuple[bytes, str]:
    """The page, style and script put into it, and a content security policy that allows exactly those two."""
    page = _part("page.html")
    inline = {}
    for tag, name in (("style", "page.css"), ("script", "page.js")):
        part = _part(name)
        opening, closing = f"<{tag}>".encode("ascii"), f"</{tag}>".encode("ascii")
        page = page.replace(opening + closing, opening + part + closing)
        inline[tag] = "'sha256-" + base64.b64encode(hashlib.sha256(part).digest()).decode("ascii") + "'"
    policy = (
        "default-src 'none'; img-src 'self' data:; connect-src 'self'; "
        f"style-src {inline['style']}; script-src {inline['script']}; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return page, policy


def _part(name: str) -> bytes:
    try:
        part = pkgutil.get_data("edgegs.sinks", name)
    except OSError:
        part = None
    if part is None:
        raise DeviceError(f"edgegs is installed without a part of its page (edgegs/sinks/{name}); install it again")
    return part


def plain(value: Any) -> Any:
    """``value`` as JSON can say it: NumPy scalars as numbers, NaN and infinity as None, keys as text."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if hasattr(value, "item"):
        return plain(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value)
