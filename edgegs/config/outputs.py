"""Output URIs: what each scheme's may look like, checked without touching file, device or network.

A ``file://`` URI is ``file://`` and then a path as it stands: absolute when it starts with a slash
(``file:///var/lib/edgegs/out.mp4``), else relative to the configuration file's folder (``file://out.mp4``,
``file://../out/demo.mp4``). There is no host part and no %-escape: ``%`` belongs to the frame number of
``frame_%06d.png``.
"""

from __future__ import annotations

import difflib
import ipaddress
import os
import re
from dataclasses import dataclass
from typing import Optional, Tuple

SUPPORTED = ("null:", "file://", "mjpeg://")
_LATER = ("display", "v4l2", "rtp", "rtsp")
_KNOWN = ("null", "file", "mjpeg", *_LATER)
VIDEO_SUFFIXES = (".mp4", ".avi", ".mkv")
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")  # and what is no character: half a surrogate pair


class UriError(ValueError):
    """A wrong URI: what is wrong, and what to write instead."""

    def __init__(self, text: str, suggestion: str) -> None:
        super().__init__(text)
        self.text = text
        self.suggestion = suggestion


@dataclass(frozen=True)
class OutputTarget:
    """A checked output URI.

    Attributes:
        uri: normalised; a file's path in it is absolute when a base folder was given.
        kind: "null", "video" (one file), "frames" (numbered pictures), "image" (one picture, overwritten) or
            "mjpeg" (HTTP server).
        path: of the file kinds; of "frames" with the %d pattern in its name.
        host, port: of "mjpeg"; port 0 lets the system choose.
    """

    uri: str
    kind: str
    path: Optional[str] = None
    host: Optional[str] = None
    port: Optional[int] = None

    @property
    def is_jpeg(self) -> bool:
        """Whether what leaves edgegs here is JPEG."""
        return self.kind == "mjpeg" or (self.path or "").lower().endswith((".jpg", ".jpeg"))

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the output. A name other than localhost counts as reachable."""
        if self.host is None or self.host.lower() == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def parse_output(uri: str, base_dir: Optional[str] = None) -> OutputTarget:
    """Check an output URI.

    Args:
        uri: such as ``null:``, ``file:///data/frame_%06d.png`` or ``mjpeg://127.0.0.1:8080``.
        base_dir: folder that a relative file path is resolved against; None leaves it relative.

    Raises:
        UriError: not a URI that this version supports.
    """
    if not uri:
        raise UriError("an empty output", "supported: " + ", ".join(SUPPORTED))
    if _CONTROL.search(uri):
        raise UriError("the URI holds a control character", "remove it")
    match = re.fullmatch(r"([A-Za-z][A-Za-z0-9+.-]*):(//)?(.*)", uri)
    if match is None:
        raise UriError("not a URI", _for_bare_text(uri))
    scheme, slashes, rest = match.group(1).lower(), match.group(2), match.group(3)
    if scheme == "null":
        if rest:
            raise UriError("null: takes nothing after its colon", 'write "null:"')
        return split_output("null:")
    if scheme == "file":
        if not slashes:
            raise UriError("file: needs two slashes", "write file://" + rest)
        return _file(rest, base_dir)
    if scheme == "mjpeg":
        return _mjpeg(rest, bool(slashes))
    if scheme in _LATER:
        raise UriError(
            f"outputs of the scheme {scheme}: are not supported by this version",
            "supported: " + ", ".join(SUPPORTED),
        )
    close = "mjpeg" if scheme in ("http", "https") else next(iter(difflib.get_close_matches(scheme, _KNOWN, 1)), None)
    meant = f"did you mean {close}:? " if close else ""
    raise UriError(f"unknown scheme {scheme}:", meant + "supported: " + ", ".join(SUPPORTED))


def _for_bare_text(uri: str) -> str:
    if uri in _KNOWN:
        return 'write "null:"' if uri == "null" else f"write {uri}://…"
    if uri.lower().endswith(VIDEO_SUFFIXES + IMAGE_SUFFIXES):
        return f"write file://{uri} for a file"
    if re.fullmatch(r"[^/\s]+:[0-9]+", uri):
        return f"write mjpeg://{uri} for a stream"
    return "supported: " + ", ".join(SUPPORTED)


def check_path(path: str) -> Optional[Tuple[str, str]]:
    """What is wrong with a path of the configuration, and what to do; None when nothing is."""
    if not path.strip():
        return "an empty path", "write a path"
    if _CONTROL.search(path):
        return "the path holds a control character", "remove it"
    if path.startswith("~"):
        return "~ is not expanded", "write the folder's full path"
    if "$" in path:
        return "variables ($…) are not expanded", "write the full path"
    return None


def resolve(path: str, base_dir: Optional[str]) -> str:
    """``path`` against ``base_dir``, without ``..``; as it stands where no base is given."""
    return path if base_dir is None else os.path.normpath(os.path.join(base_dir, path))


def _file(path: str, base_dir: Optional[str]) -> OutputTarget:
    if path.lower().startswith("localhost/"):
        raise UriError("file:// takes no host", "write file://" + path[len("localhost") :])
    wrong = check_path(path)
    if wrong is not None:
        raise UriError(*wrong)
    folder, name = os.path.split(path)
    suffix = _suffix(name)
    if suffix not in VIDEO_SUFFIXES + IMAGE_SUFFIXES:
        raise UriError(
            f"a file of the type {suffix}" if suffix else "a file name without a type",
            "videos end in {}, pictures in {}".format(", ".join(VIDEO_SUFFIXES), ", ".join(IMAGE_SUFFIXES)),
        )
    if "%" in folder:
        raise UriError("a % in the name of a folder", "number the file's name only, as in frame_%06d.png")
    resolved = resolve(path, base_dir)
    if "%" in name:
        if suffix in VIDEO_SUFFIXES:
            raise UriError("a numbered video", "number pictures, as in frame_%06d.png")
        if re.fullmatch(r"[^%]*%(0[1-9])?d[^%]*", name) is None:
            raise UriError("not a frame number", "write one %d or %06d, as in frame_%06d.png")
        if "%" in os.path.dirname(resolved):
            raise UriError("the configuration's folder has a % in its name", "write frames to another folder")
    return split_output("file://" + resolved)


def _suffix(path: str) -> str:
    return os.path.splitext(path)[1].lower()


def _mjpeg(rest: str, slashes: bool) -> OutputTarget:
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
    return split_output(f"mjpeg://{host}:{int(port)}")


def split_output(uri: str) -> OutputTarget:
    """The parts of a URI as ``parse_output`` normalises it; not checked again."""
    if uri == "null:":
        return OutputTarget(uri, "null")
    scheme, _, rest = uri.partition("://")
    if scheme == "mjpeg":
        host, _, port = rest.rpartition(":")
        return OutputTarget(uri, "mjpeg", host=host.strip("[]"), port=int(port))
    kind = "video"
    if _suffix(rest) in IMAGE_SUFFIXES:
        kind = "frames" if "%" in os.path.basename(rest) else "image"
    return OutputTarget(uri, kind, path=rest)
