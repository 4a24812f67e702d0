"""OpenCV's own lines on stderr, where our errors say the same once and in better words."""

from __future__ import annotations

import contextlib
import os
from typing import Iterator

import cv2

_SILENT = 0


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without OpenCV's warnings while something is being opened; they come back afterwards.

    The level belongs to the whole process: keep what is inside short.
    """
    logging = getattr(getattr(cv2, "utils", None), "logging", None) or cv2
    if not hasattr(logging, "setLogLevel"):  # an OpenCV built without it
        yield
        return
    before = logging.setLogLevel(_SILENT)
    try:
        yield
    finally:
        logging.setLogLevel(before)


def quieten_ffmpeg() -> None:
    """Ask OpenCV to let FFmpeg print nothing, unless the user asked for something else.

    A damaged video makes FFmpeg print a line per packet, hundreds a second, for as long as the video loops. OpenCV
    looks at this variable once, when it first uses FFmpeg: call this before.
    """
    os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")
