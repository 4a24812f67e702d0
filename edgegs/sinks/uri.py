"""Output URIs: what each scheme's may look like, checked without touching file, device or network.

    null:                            no output
    file:///data/out.mkv             a video; frame_%06d.png: numbered pictures; latest.jpg: one picture
    mjpeg://127.0.0.1:8080           HTTP server

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
        kind: "null", "video" (one file), "frames" (numbered pictures), "image" (one picture, overwritten) or
            "mjpeg" (HTTP server).
        path: of the file kinds; of "frames" with the %d pattern in its name. Else empty.
        host, port: of "mjpeg", an IPv6 host without brackets; port 0 lets the system choose. Else empty and 0.
    """

    text: str
    scheme: str
    kind: str
    path: str = ""
    host: str = ""
    port: int = 0

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
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the output."""
        return not self.host or is_loopback(self.host)


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
    if name in PLANNED:
        raise UriError(f"outputs of the scheme {name}: are not supported by this version", _supported())
    known = (*SCHEMES, *PLANNED)
    close = "mjpeg" if name in ("http", "https") else next(iter(difflib.get_close_matches(name, known, 1)), "")
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
    if uri in SCHEMES or uri in PLANNED:
        form = SCHEMES[uri].form if uri in SCHEMES else uri + "://"
        return f"write {form}…" if form.endswith("//") else f'write "{form}"'
    if uri.lower().endswith(VIDEO_SUFFIXES + IMAGE_SUFFIXES):
        return f"write file://{uri} for a file"
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


def _mjpeg(rest: str, slashes: bool) -> OutputUri:
    example = "write mjpeg://HOST:PORT, such as mjpeg://127.0.0.1:8080"
    if not slashes:
        raise UriError("mjpeg: needs two slashes", example)
    if "@" in rest:
        raise UriError("an address takes no user and password", "name a file with a token in http.token_file")
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]*)(?::([0-9]*))?(?:/(.*))?", rest)
    if match is None:
        raise UriError("not an address", example)
    host, port, path = match.groups()
    if path:
        raise UriError("an address takes no path", "write mjpeg://{}:{}".format(host or "HOST", port or "PORT"))
    if not host:
        raise UriError("no host", "write 127.0.0.1 for this machine only, 0.0.0.0 for everybody")
    if not port:
        raise UriError("no port", f"write mjpeg://{host}:8080")
    if len(port) > 5 or int(port) > 65535:
        raise UriError(f"there is no port {port[:20]}", "ports go up to 65535")
    bare = host.strip("[]")
    if host != bare or re.fullmatch(r"[0-9.]+", bare):
        try:
            ipaddress.ip_address(bare)
        except ValueError:
            raise UriError(f"{bare} is no IP address", example) from None
    return OutputUri(f"mjpeg://{host}:{int(port)}", "mjpeg", "mjpeg", host=bare, port=int(port))


SCHEMES: Dict[str, Scheme] = {
    "null": Scheme("null:", "edgegs.sinks.null:NullSink", _null),
    "file": Scheme("file://", "edgegs.sinks.file:FileSink", _file),
    "mjpeg": Scheme("mjpeg://", "edgegs.sinks.web:MjpegSink", _mjpeg),
}
#: Known by name only, so that their users are not told of a typing error.
PLANNED = ("display", "v4l2", "rtp", "rtsp")
