"""How ``status`` and ``snapshot`` ask a running edgegs: over HTTP, at its mjpeg: output."""

from __future__ import annotations

import argparse
import http.client
import queue
import socket
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple, Optional, Union
from urllib.parse import urlsplit

from edgegs.cli.options import bounded
from edgegs.errors import AccessError, DeviceError, InputError, UsageError
from edgegs.findings import one_line

DEFAULT_URL = "http://127.0.0.1:8080"
#: An answer longer than this is none of edgegs: a picture of 8192 x 8192 takes less.
MAX_BYTES = 64 << 20
MAX_TOKEN_BYTES = 4096


class Answer(NamedTuple):
    """Content type (lower case) and body of an answer of status 200."""

    content_type: str
    body: bytes


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--url",
        default=DEFAULT_URL,
        help=f"address of its mjpeg: output, as http:// or mjpeg:// (default {DEFAULT_URL})",
    )
    parser.add_argument("--token-file", metavar="F", help="file that holds the token, as http.token_file")
    parser.add_argument(
        "--timeout", type=bounded(0.1, 600), metavar="S", default=10.0, help="give up after so many seconds (10)"
    )


def ask(args: argparse.Namespace, path: str) -> Answer:
    """The answer to ``path``.

    Raises:
        UsageError: ``--url`` is no address. DeviceError (69): nobody answers, not in time, not as edgegs does, or that
            there is nothing yet. AccessError (77): a token is needed, or is wrong. InputError: no token in the file.
    """
    url = base_url(args.url)
    headers = {"Accept-Encoding": "identity"}
    if args.token_file is not None:
        headers["Authorization"] = "Bearer " + read_token(args.token_file)
    request = urllib.request.Request(url + path, headers=headers)
    answers: queue.Queue[Union[Answer, Exception]] = queue.Queue()

    def work() -> None:
        try:
            answers.put(_fetch(request, args.timeout))
        except Exception as error:  # told by the thread that waits
            answers.put(error)

    # urllib's time-out is for each step, and a look-up of a name has none: a thread that is left alone when it hangs
    threading.Thread(target=work, name="edgegs ask", daemon=True).start()
    try:
        answer = answers.get(timeout=args.timeout)
    except queue.Empty:
        raise DeviceError(f"{url}: no answer within {args.timeout:g} s; is it the address of edgegs?") from None
    if isinstance(answer, Exception):
        raise _explained(answer, url, args.token_file) from None
    return answer


def base_url(text: str) -> str:
    """``http://HOST:PORT`` of what people write: with a slash at the end, as mjpeg://, or without a scheme."""
    written = text if "://" in text else "http://" + text
    hint = f"write http://HOST:PORT, such as {DEFAULT_URL}"
    try:
        parts = urlsplit(written)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise UsageError(f"--url {ascii(text)[1:-1]}: {error}; {hint}") from None
    scheme = {"http": "http", "https": "https", "mjpeg": "http"}.get(parts.scheme)
    if scheme is None or not host or not written.isascii() or not written.isprintable() or " " in written:
        raise UsageError(f"--url {ascii(text)[1:-1]}: is no address; {hint}")
    if "@" in parts.netloc or parts.query or parts.fragment:
        # not repeated: it may hold a token
        raise UsageError("--url: takes no token and no password; put the token into a file and name it: --token-file F")
    if parts.path not in ("", "/"):
        raise UsageError(f"--url {text}: takes no path; {hint}")
    bracketed = f"[{host}]" if ":" in host else host
    return f"{scheme}://{bracketed}" + ("" if port is None else f":{port}")


def read_token(path: str) -> str:
    """The token in a file of one line."""
    from edgegs.files import read_regular

    token = read_regular(Path(path), MAX_TOKEN_BYTES, "--token-file").decode("ascii", "replace").strip()
    if not token or not all("!" <= letter <= "~" for letter in token):
        raise InputError(f"--token-file {path}: must hold one line of printable ASCII without spaces")
    return token


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """The token is for the address it was meant for."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _fetch(request: urllib.request.Request, timeout_s: float) -> Answer:
    # no proxy: what is asked is this machine, or one beside it
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)
    try:
        with opener.open(request, timeout=timeout_s) as answer:
            body = answer.read(MAX_BYTES + 1)
            length = answer.headers.get("Content-Length")
            if length is not None and length.isdigit() and len(body) < int(length):
                raise http.client.IncompleteRead(body)
            if len(body) > MAX_BYTES:
                raise _Foreign(f"sends more than {MAX_BYTES >> 20} MiB")
            return Answer(str(answer.headers.get_content_type()).lower(), body)
    except urllib.error.HTTPError as error:
        with error:
            raise _Refused(error.code, error.read(4096).decode("utf-8", "replace")) from None


class _Foreign(Exception):
    """This is not edgegs."""


class _Refused(Exception):
    def __init__(self, status: int, says: str) -> None:
        super().__init__(status)
        self.status, self.says = status, one_line(says)[:200]


def foreign(url: str, why: str) -> DeviceError:
    """The error for an answer that edgegs does not give."""
    return DeviceError(f"{url}: does not answer as edgegs does ({why}); name its mjpeg: output's address with --url")


def _explained(error: Exception, url: str, token_file: Optional[str]) -> Exception:
    if isinstance(error, _Refused):
        return _refusal(error, url, token_file)
    if isinstance(error, (_Foreign, http.client.HTTPException)):
        return foreign(url, one_line(str(error))[:200] or type(error).__name__)
    reason = getattr(error, "reason", error)
    if isinstance(reason, (TimeoutError, socket.timeout)):  # the same from Python 3.10 on
        return DeviceError(f"{url}: does not answer; is it the address of edgegs?")
    if isinstance(reason, ConnectionRefusedError):
        return DeviceError(
            f"{url}: nothing listens there; is edgegs running, with an mjpeg: output at this address? "
            "See `systemctl status edgegs`, or name another address with --url"
        )
    if isinstance(error, OSError):
        says = one_line(str(getattr(reason, "strerror", None) or reason))
        return DeviceError(f"{url}: cannot be asked: {says}; check the address given with --url")
    return error


def _refusal(error: _Refused, url: str, token_file: Optional[str]) -> Exception:
    if error.status == 401:
        if token_file is None:
            return AccessError(f"{url}: wants a token; name the file that http.token_file names: --token-file F")
        return AccessError(f"{url}: does not take the token in {token_file}; compare it with http.token_file's file")
    if error.status == 403:
        return AccessError(f"{url}: refuses: {error.says}")
    if error.status == 503:
        return DeviceError(f"{url}: has nothing to give: {error.says}; try again, or see `edgegs status` and its log")
    return foreign(url, f"status {error.status}")
