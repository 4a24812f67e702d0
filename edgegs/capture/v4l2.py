"""A camera behind a V4L2 node, through OpenCV: the newest picture only.

*unconfirmed on hardware*: no camera was at hand. On a board, this confirms it (then unplug the camera for ten seconds
and plug it in again: "retrying", then "up")::

    python3 -c "
    import logging, time; from edgegs.capture import Capture, parse
    logging.basicConfig(level=logging.INFO)
    capture = Capture(parse('v4l2:///dev/video0'), 1280, 720); capture.start()
    while True: time.sleep(1); print(capture.status(), capture.latest() is not None)"
"""

from __future__ import annotations

import errno
import os
from typing import Any, Callable, Optional

import cv2
import numpy as np

from edgegs.capture.base import Source, Timing, too_large
from edgegs.capture.fit import as_bgr
from edgegs.capture.quiet import quiet
from edgegs.capture.uri import CaptureUri
from edgegs.errors import AccessError, DeviceError
from edgegs.sinks import v4l2_api as api

_LIST = "`edgegs devices` lists cameras"
#: Raw pictures (two bytes a pixel) beyond this many bytes a second do not fit through USB 2: ask for MJPG then.
RAW_LIMIT = 25e6
#: A picture may come early by this share of the period.
_SLACK = 0.25
#: So many broken pictures in a row and the camera is opened again.
_MOST_BROKEN = 30
#: Pictures that the driver may hold. With one it has nothing to fill while that one is being decoded, and MJPG comes
#: at half the rate (measured: 15 instead of 30 a second); more would let old pictures wait. *unconfirmed on hardware*
_BUFFERS = 2


def check_node(path: str, shown: str) -> None:
    """Make sure that a camera can be opened, with a reason where not: OpenCV gives none.

    Raises:
        DeviceError: no such device, or not a camera. AccessError: no permission.
    """
    try:
        descriptor = api.open_node(path, os.O_NONBLOCK)
        try:
            capability = api.query_capability(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise _explained(error, shown) from None
    if not capability.caps & (api.CAP_VIDEO_CAPTURE | api.CAP_VIDEO_CAPTURE_MPLANE):
        raise DeviceError(f"{shown}: not a camera: it gives no pictures (most cameras have a second node); {_LIST}")


def _explained(error: OSError, shown: str) -> Exception:
    if error.errno == errno.ENOENT:
        return DeviceError(f"{shown}: no such device; is the camera plugged in? {_LIST}")
    if isinstance(error, PermissionError):
        return AccessError(f"{shown}: permission denied; add the user to the group video: `usermod -aG video USER`")
    if error.errno == errno.EBUSY:
        return DeviceError(f"{shown}: in use by another program; `fuser -v DEVICE` names it")
    if error.errno in (errno.ENODEV, errno.ENXIO):
        return DeviceError(f"{shown}: the node is there, its device is not; plug the camera in again")
    if error.errno == errno.ENOTTY:
        return DeviceError(f"{shown}: not a video device; {_LIST}")
    return DeviceError(f"{shown}: cannot be opened: {error.strerror or error}; see `dmesg`")


class V4l2Source(Source):
    """Reads continuously, so that no old picture waits in the driver.

    Args:
        width, height: asked for; the driver gives the nearest it has.
        fps: asked for; pictures beyond it are left out before they are decoded.
        open_capture: (path, cv2.CAP_V4L2) -> a ``cv2.VideoCapture``.
        check: (path, shown): raises what hinders the opening.
    """

    def __init__(
        self,
        uri: CaptureUri,
        timing: Timing,
        width: int,
        height: int,
        fps: float,
        open_capture: Callable[[str, int], Any] = cv2.VideoCapture,
        check: Callable[[str, str], None] = check_node,
    ) -> None:
        super().__init__(uri, timing)
        self._width, self._height, self._fps = width, height, fps
        self._open_capture, self._check = open_capture, check
        self._capture: Optional[Any] = None
        self._due: Optional[float] = None

    def open(self) -> None:
        self._check(self.uri.path, self.shown)
        # names under /dev/v4l/by-id stay when numbers change: follow them anew each time
        path = os.path.realpath(self.uri.path)
        with quiet():
            self._capture = capture = self._open_capture(path, cv2.CAP_V4L2)
        if not capture.isOpened():
            raise DeviceError(
                f"{self.shown}: OpenCV cannot capture from it: in use by another program (`fuser -v {path}`), or "
                f"without a format that it knows (`v4l2-ctl -d {path} --list-formats-ext`)"
            )
        capture.set(cv2.CAP_PROP_BUFFERSIZE, _BUFFERS)
        if 2 * self._width * self._height * self._fps > RAW_LIMIT:
            capture.set(cv2.CAP_PROP_FOURCC, int.from_bytes(b"MJPG", "little"))
        capture.set(cv2.CAP_PROP_FRAME_WIDTH, self._width)
        capture.set(cv2.CAP_PROP_FRAME_HEIGHT, self._height)
        capture.set(cv2.CAP_PROP_FPS, self._fps)
        wrong = too_large(capture.get(cv2.CAP_PROP_FRAME_WIDTH), capture.get(cv2.CAP_PROP_FRAME_HEIGHT))
        if wrong is not None:
            raise DeviceError(f"{self.shown}: {wrong}")
        self._due = None

    def read(self) -> Optional[np.ndarray]:
        for _ in range(_MOST_BROKEN):
            if not self._grab_due():
                return None
            done, image = self._capture.retrieve()  # type: ignore[union-attr]
            if done and image is not None and image.size:
                try:
                    return as_bgr(image)
                except ValueError as error:
                    raise DeviceError(f"{self.shown}: gives {error}, not 8-bit colour or grey") from None
        raise DeviceError(f"{self.shown}: {_MOST_BROKEN} broken pictures in a row; check its cable")

    def _grab_due(self) -> bool:
        """Take pictures from the driver until one is due; False when the capture is being closed."""
        if self._capture is None:
            raise DeviceError(f"{self.shown}: not open")
        slack = _SLACK / self._fps
        while self.timing.pause(0.0):
            if not self._capture.grab():
                raise DeviceError(f"{self.shown}: gives no more pictures; is the camera still plugged in?")
            now = self.timing.now()
            due = now if self._due is None else self._due
            if now >= due - slack:
                # from beat to beat, not from picture to picture, which would lower the mean rate
                self._due = max(due, now - slack) + 1.0 / self._fps
                return True
        return False

    def close(self) -> None:
        capture, self._capture = self._capture, None
        if capture is not None:
            capture.release()
