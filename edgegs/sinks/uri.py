"""Output URIs: what each scheme's may look like, checked without touching file, device or network.

    null:                            no output
    file:///data/out.mkv             a video; frame_%06d.png: numbered pictures; latest.jpg: one picture
    mjpeg://127.0.0.1:8080           HTTP server
    display://0                      full-screen window on a monitor, the first is 0
    v4l2:///dev/video10              virtual camera (v4l2loopback); v4l2://label/NAME: the one with this label
    rtp://192.168.1.20:5000          H.264 sent to a host, or to a multicast group
    rtsp://@:8554/live               H.264 served; rtsp://HOST:8554/live: sent to an RTSP server

A ``file://`` URI is ``file://`` and then a path as it stands: absolute when it starts with a slash, else
relative (``file://out.mp4``, ``file://../out/demo.mp4``). There is no host part and no %-escape: ``%`` belongs
to the frame number of ``frame_%06d.png``.

``SCHEMES``, at the end, is the one place where a scheme is added.
"""

from __future__ import annotations

import dataclasses
import difflib
import ipaddress
import os
import re
from dataclasses import dataclass
from typing import Callable, Dict, NamedTuple, Tuple

from edgegs.files import CONTROL, check_path

#: What people call a scheme elsewhere.
_OTHER_NAMES = {"http": "mjpeg", "https": "mjpeg", "screen": "display", "window": "display", "udp": "rtp"}
VIDEO_SUFFIXES = (".mp4", ".avi", ".mkv")
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg")


class UriError(ValueError):
    """A wrong URI: what is wrong, and what to write instead."""

    def __init__(self, text: str, suggestion: str) -> None:
        super().__init__(text)
        self.text = text
        self.suggestion = suggestion


@dataclass(frozen=True)
class OutputUri:
    """A checked output URI in its parts; ``str`` of it is ``text``.

    Attributes:
        text: normalised.
        scheme: a key of ``SCHEMES``.
        kind: "null", "video" (one file), "frames" (numbered pictures), "image" (one picture, overwritten), "mjpeg"
            (HTTP server), "display", "v4l2", "rtp", "rtsp-server" (serves) or "rtsp-client" (sends to a server).
        path: of the file kinds, of "frames" with the %d pattern in its name; device node of a "v4l2" without a name.
            Else empty.
        host, port: of the network kinds, an IPv6 host without brackets; an "rtsp-server" listens on every address
            when its host is empty; port 0 of "mjpeg" lets the system choose. Else empty and 0.
        name: card label of a "v4l2"; path of an "rtsp-…", without its first slash. Else empty.
        index: monitor of a "display", from 0.
    """

    text: str
    scheme: str
    kind: str
    path: str = ""
    host: str = ""
    port: int = 0
    name: str = ""
    index: int = 0

    def __str__(self) -> str:
        return self.text

    def with_path(self, path: str) -> OutputUri:
        """The same output at another path, which is not checked."""
        return dataclasses.replace(self, text=f"{self.scheme}://{path}", path=path)

    @property
    def is_jpeg(self) -> bool:
        """Whether what leaves edgegs here is JPEG."""
        return self.kind == "mjpeg" or self.path.lower().endswith((".jpg", ".jpeg"))

    @property
    def is_file(self) -> bool:
        """Whether ``path`` is one of the user's files (a device node is none)."""
        return self.scheme == "file"

    @property
    def listens(self) -> bool:
        """Whether this output takes a TCP port of this machine for itself."""
        return self.kind == "rtsp-server" or (self.kind == "mjpeg" and self.port != 0)

    @property
    def needs_token(self) -> bool:
        """Whether other machines can ask this output over HTTP."""
        return self.kind == "mjpeg" and not is_loopback(self.host)


class Scheme(NamedTuple):
    """What edgegs knows about a scheme.

    Attributes:
        form: how its URIs begin.
        sink: "module:class"; imported when first used: ``null:`` needs no OpenCV.
        parse: (what follows the colon and the slashes, whether there were two slashes) -> the parts, or UriError.
    """

    form: str
    sink: str
    parse: Callable[[str, bool], OutputUri]


def parse(uri: str) -> OutputUri:
    """Check an output URI and take it apart.

    Args:
        uri: such as ``null:``, ``file:///data/frame_%06d.png`` or ``mjpeg://127.0.0.1:8080``.

    Raises:
        UriError: not a URI that this version supports.
    """
    if not isinstance(uri, str):
        raise UriError("not text", _supported())
    if not uri:
        raise UriError("an empty output", _supported())
    if CONTROL.search(uri):
        raise UriError("the URI holds a control character", "remove it")
    match = re.fullmatch(r"([A-Za-z][A-Za-z0-9+.-]*):(//)?(.*)", uri)
    if match is None:
        raise UriError("not a URI", _for_bare_text(uri))
    name, slashes, rest = match.group(1).lower(), match.group(2), match.group(3)
    if name in SCHEMES:
        return SCHEMES[name].parse(rest, bool(slashes))
    close = _OTHER_NAMES.get(name) or next(iter(difflib.get_close_matches(name, SCHEMES, 1)), "")
    raise UriError(f"unknown scheme {name}:", (f"did you mean {close}:? " if close else "") + _supported())


def is_loopback(host: str) -> bool:
    """Whether ``host`` can be reached from this machine only. A name other than localhost counts as not."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def split_frame_number(name: str) -> Tuple[str, int, str]:
    """What stands before the ``%d`` of a file name, the least number of digits, and what stands after it.

    Raises:
        UriError: not exactly one ``%d`` or ``%0Nd``.
    """
    match = re.fullmatch(r"([^%]*)%(?:0([1-9]))?d([^%]*)", name)
    if match is None:
        raise UriError("not a frame number", "write one %d or %06d, as in frame_%06d.png")
    return match.group(1), int(match.group(2) or 1), match.group(3)


def _supported() -> str:
    return "supported: " + ", ".join(scheme.form for scheme in SCHEMES.values())


def _for_bare_text(uri: str) -> str:
    if uri in SCHEMES:
        form = SCHEMES[uri].form
        return f"write {form}…" if form.endswith("//") else f'write "{form}"'
    if uri.lower().endswith(VIDEO_SUFFIXES + IMAGE_SUFFIXES):
        return f"write file://{uri} for a file"
    if uri.startswith("/dev/"):
        return f"write v4l2://{uri} for a virtual camera"
    if re.fullmatch(r"[^/\s]+:[0-9]+", uri):
        return f"write mjpeg://{uri} for a stream"
    return _supported()


def _null(rest: str, slashes: bool) -> OutputUri:
    if rest:
        raise UriError("null: takes nothing after its colon", 'write "null:"')
    return OutputUri("null:", "null", "null")


def _file(path: str, slashes: bool) -> OutputUri:
    if not slashes:
        raise UriError("file: needs two slashes", "write file://" + path)
    if path.lower().startswith("localhost/"):
        raise UriError("file:// takes no host", "write file://" + path[len("localhost") :])
    wrong = check_path(path)
    if wrong is not None:
        raise UriError(*wrong)
    folder, name = os.path.split(path)
    suffix = os.path.splitext(name)[1].lower()
    if suffix not in VIDEO_SUFFIXES + IMAGE_SUFFIXES:
        raise UriError(
            f"a file of the type {suffix}" if suffix else "a file name without a type",
            "videos end in {}, pictures in {}".format(", ".join(VIDEO_SUFFIXES), ", ".join(IMAGE_SUFFIXES)),
        )
    if "%" in folder:
        raise UriError("a % in the name of a folder", "number the file's name only, as in frame_%06d.png")
    kind = "video" if suffix in VIDEO_SUFFIXES else "image"
    if "%" in name:
        if kind == "video":
            raise UriError("a numbered video", "number pictures, as in frame_%06d.png")
        split_frame_number(name)
        kind = "frames"
    return OutputUri("file://" + path, "file", kind, path=path)


_USUAL_PORTS = {"mjpeg": "8080", "rtp": "5000", "rtsp": "8554/live"}


def _address(rest: str, scheme: str, example: str, any_port: bool = False) -> Tuple[str, str, int, str]:
    """``HOST:PORT`` or ``HOST:PORT/PATH`` -> host as written, host without brackets, port, path without its slash."""
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]*)(?::([0-9]*))?(?:/(.*))?", rest)
    if match is None:
        raise UriError("not an address", example)
    host, port, path = match.groups()
    if not host:
        raise UriError("no host", example)
    if not port:
        raise UriError("no port", f"write {scheme}://{host}:{_USUAL_PORTS[scheme]}")
    if len(port) > 5 or not (0 if any_port else 1) <= int(port) <= 65535:
        raise UriError(f"there is no port {port[:20]}", f"ports go from {0 if any_port else 1} to 65535")
    bare = host.strip("[]")
    if host != bare or re.fullmatch(r"[0-9.]+", bare):
        try:
            ipaddress.ip_address(bare)
        except ValueError:
            raise UriError(f"{bare} is no IP address", example) from None
    return host, bare, int(port), path or ""


def _mjpeg(rest: str, slashes: bool) -> OutputUri:
    example = "write mjpeg://HOST:PORT, such as mjpeg://127.0.0.1:8080"
    if not slashes:
        raise UriError("mjpeg: needs two slashes", example)
    if "@" in rest:
        raise UriError("an address takes no user and password", "name a file with a token in http.token_file")
    if rest.startswith(":"):
        raise UriError("no host", "write 127.0.0.1 for this machine only, 0.0.0.0 for everybody")
    host, bare, port, path = _address(rest, "mjpeg", example, any_port=True)
    if path:
        raise UriError("an address takes no path", f"write mjpeg://{host}:{port}")
    return OutputUri(f"mjpeg://{host}:{port}", "mjpeg", "mjpeg", host=bare, port=port)


def _display(rest: str, slashes: bool) -> OutputUri:
    match = re.fullmatch(r"([0-9]{1,2})/?", rest)
    if match is None or not slashes:
        raise UriError("not a monitor", "write display://0 for the first monitor, display://1 for the next")
    index = int(match.group(1))
    return OutputUri(f"display://{index}", "display", "display", index=index)


def _v4l2(rest: str, slashes: bool) -> OutputUri:
    example = "write v4l2:///dev/video10, or v4l2://label/NAME"
    if not slashes:
        raise UriError("v4l2: needs two slashes", example)
    if rest.startswith("/"):
        wrong = check_path(rest)
        if wrong is not None:
            raise UriError(*wrong)
        if not re.fullmatch(r"/dev/(?:[A-Za-z0-9._:-]+/)*[A-Za-z0-9._:-]+", rest) or "/.." in rest:
            raise UriError("not a device", example)
        return OutputUri("v4l2://" + rest, "v4l2", "v4l2", path=rest)
    match = re.fullmatch(r"label/([^/]{1,31})/?", rest)  # the driver keeps 31 bytes of a label
    if match is None or len(match.group(1).encode("utf-8")) > 31:
        raise UriError("not a device", example)
    return OutputUri("v4l2://label/" + match.group(1), "v4l2", "v4l2", name=match.group(1))


def _rtp(rest: str, slashes: bool) -> OutputUri:
    example = "write rtp://HOST:PORT, such as rtp://192.168.1.20:5000"
    if not slashes:
        raise UriError("rtp: needs two slashes", example)
    host, bare, port, path = _address(rest, "rtp", example)
    if path:
        raise UriError("an address takes no path", f"write rtp://{host}:{port}")
    return OutputUri(f"rtp://{host}:{port}", "rtp", "rtp", host=bare, port=port)


def _rtsp(rest: str, slashes: bool) -> OutputUri:
    example = "write rtsp://@:8554/live to serve, rtsp://HOST:8554/live to send to a server"
    if not slashes:
        raise UriError("rtsp: needs two slashes", example)
    user, at, address = rest.rpartition("@")
    if user:
        raise UriError("an address takes no user and password", "let the server take this machine's address")
    serves = bool(at)
    listens = serves and address.startswith(":")  # on every address of this machine
    host, bare, port, path = _address("any" + address if listens else address, "rtsp", example)
    if listens:
        host = bare = ""
    if not re.fullmatch(r"[A-Za-z0-9._-]+(?:/[A-Za-z0-9._-]+)*", path):
        raise UriError("no name after the port" if not path else "not a stream's name", example)
    kind = "rtsp-server" if serves else "rtsp-client"
    return OutputUri(f"rtsp://{at}{host}:{port}/{path}", "rtsp", kind, host=bare, port=port, name=path)


SCHEMES: Dict[str, Scheme] = {
    "null": Scheme("null:", "edgegs.sinks.null:NullSink", _null),
    "file": Scheme("file://", "edgegs.sinks.file:FileSink", _file),
    "mjpeg": Scheme("mjpeg://", "edgegs.sinks.web:MjpegSink", _mjpeg),
    "display": Scheme("display://", "edgegs.sinks.display:DisplaySink", _display),
    "v4l2": Scheme("v4l2://", "edgegs.sinks.v4l2:V4l2Sink", _v4l2),
    "rtp": Scheme("rtp://", "edgegs.sinks.stream:StreamSink", _rtp),
    "rtsp": Scheme("rtsp://", "edgegs.sinks.stream:StreamSink", _rtsp),
}
