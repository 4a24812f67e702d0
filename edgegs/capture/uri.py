"""Where a live picture comes from: what its URI may look like, checked without touching file or device.

    v4l2:///dev/video0       a camera
    csi://0                  a camera on the board's ribbon connector, by its sensor number (Jetson)
    file:///data/loop.mp4    a video, again and again; or one picture
"""

from __future__ import annotations

import dataclasses
import os
import re
from dataclasses import dataclass
from typing import Tuple

from edgegs.files import CONTROL, check_path
from edgegs.sinks.uri import UriError

VIDEO_SUFFIXES = (".mp4", ".mkv", ".avi", ".mov", ".webm")
PICTURE_SUFFIXES = (".jpg", ".jpeg", ".png")
_EXAMPLES = "write v4l2:///dev/video0, csi://0 or file:///data/loop.mp4"


@dataclass(frozen=True)
class CaptureUri:
    """A checked source in its parts; ``str`` of it is ``text``.

    Attributes:
        text: normalised.
        kind: "v4l2", "csi", "video" or "picture".
        path: device node of "v4l2", else the file's; empty for "csi".
        index: sensor of "csi".
    """

    text: str
    kind: str
    path: str = ""
    index: int = 0

    def __str__(self) -> str:
        return self.text

    @property
    def is_file(self) -> bool:
        return self.kind in ("video", "picture")

    def with_path(self, path: str) -> CaptureUri:
        """The same source at another path, which is not checked."""
        return dataclasses.replace(self, text="file://" + path, path=path)


def parse(uri: str) -> CaptureUri:
    """Check a source's URI and take it apart.

    Raises:
        UriError: not a source that this version supports.
    """
    if CONTROL.search(uri):
        raise UriError("the URI holds a control character", "remove it")
    scheme, colon, rest = uri.partition("://")
    scheme = scheme.lower()
    if not colon or scheme not in ("v4l2", "csi", "file"):
        if uri.startswith("/dev/"):
            raise UriError("not a URI", f"write v4l2://{uri}")
        raise UriError(f"unknown scheme {scheme}:" if colon else "not a URI", _EXAMPLES)
    if scheme == "csi":
        if not re.fullmatch(r"[0-9]{1,2}", rest):
            raise UriError("not the number of a sensor", "write csi://0 for the first camera")
        return CaptureUri(f"csi://{int(rest)}", "csi", index=int(rest))
    wrong = check_path(rest)
    if wrong is not None:
        raise UriError(*wrong)
    if scheme == "v4l2":
        if not re.fullmatch(r"/dev/(?:[A-Za-z0-9._:-]+/)*[A-Za-z0-9._:-]+", rest) or "/.." in rest:
            raise UriError("not a device", "write v4l2:///dev/video0")
        return CaptureUri("v4l2://" + rest, "v4l2", rest)
    return CaptureUri("file://" + rest, *_file_kind(rest))


def _file_kind(path: str) -> Tuple[str, str]:
    suffix = os.path.splitext(path)[1].lower()
    if suffix in VIDEO_SUFFIXES:
        return "video", path
    if suffix in PICTURE_SUFFIXES:
        return "picture", path
    raise UriError(
        f"a file of the type {suffix}" if suffix else "a file name without a type",
        "videos end in {}, pictures in {}".format(", ".join(VIDEO_SUFFIXES), ", ".join(PICTURE_SUFFIXES)),
    )
