"""Opening and reading: which source a URI means, and the two that are files.

What a file holds is not trusted: only regular files are opened, and sizes are looked at before anything of that size is
allocated. A picture should be replaced by renaming another to its name; one that is written in place may be read half.
"""

from __future__ import annotations

import io
import os
import struct
from typing import Any, Optional, Tuple

import cv2
import numpy as np

from edgegs.capture.base import Source, Timing, too_large
from edgegs.capture.child import csi_source
from edgegs.capture.fit import as_bgr
from edgegs.capture.quiet import quiet, quieten_ffmpeg
from edgegs.capture.uri import CaptureUri
from edgegs.capture.v4l2 import V4l2Source
from edgegs.errors import InputError
from edgegs.files import open_regular

#: A picture file may have so many bytes.
MAX_BYTES = 128 << 20
#: How often a picture file is looked at for changes, and how long a source waits at most before it says that the
#: picture still holds, seconds.
LOOK_S = 0.5
#: A video that is behind its time by more goes on from where it is, slower, instead of leaving out pictures, seconds.
_LATE_S = 0.25
#: Rate of a video that does not say a believable one.
_USUAL_FPS = 25.0
#: A video of a single picture is opened again only so often, seconds.
_SINGLE_S = 1.0


def create(uri: CaptureUri, width: int, height: int, fit: str, fps: float, timing: Timing) -> Source:
    """The source that a URI means, not open yet.

    Args:
        width, height, fps: of what the pictures are for: cameras are asked for something near.
        fit: how pictures will be fitted to that size (``fit.FITS``).
    """
    if uri.kind == "v4l2":
        return V4l2Source(uri, timing, width, height, fps)
    if uri.kind == "csi":
        return csi_source(uri, timing, width, height, fit, fps)
    return (VideoSource if uri.kind == "video" else PictureSource)(uri, timing)


class VideoSource(Source):
    """A video at its own pace, again and again; a new file of the same name is taken at the end of a pass."""

    def __init__(self, uri: CaptureUri, timing: Timing) -> None:
        super().__init__(uri, timing)
        quieten_ffmpeg()
        self._capture: Optional[Any] = None
        self._n_read = 0  # in this pass
        self._period = 1.0 / _USUAL_FPS
        self._due: Optional[float] = None

    def open(self) -> None:
        self._due = None
        self._begin_pass()

    def _begin_pass(self) -> None:
        # FFmpeg is given the descriptor: it would take some paths for addresses, and wait for a FIFO's writer
        with open_regular(self.uri.path, self.shown) as file, quiet():
            capture = cv2.VideoCapture(f"/proc/self/fd/{file.fileno()}", cv2.CAP_FFMPEG)
        if not capture.isOpened():
            raise InputError(f"{self.shown}: not a video that OpenCV can read, or a damaged one; see `ffprobe FILE`")
        self._capture, self._n_read = capture, 0
        self._check_size()
        fps = capture.get(cv2.CAP_PROP_FPS)
        self._period = 1.0 / (fps if 0.1 <= fps <= 240.0 else _USUAL_FPS)

    def read(self) -> Optional[np.ndarray]:
        now = self.timing.now()
        if self._due is None:
            self._due = now
        wait = self._due - now
        if not self.timing.pause(max(0.0, min(wait, LOOK_S))) or wait > LOOK_S:
            return None
        late = self.timing.now() - self._due
        if late > _LATE_S:
            self._due, late = self._due + late, 0.0
        n_skipped = max(0, int(late / self._period))
        for _ in range(n_skipped + 1):
            self._grab()
            self._due += self._period
        return self._retrieve()

    def _grab(self) -> None:
        """Go on to the next picture, from the last to the first."""
        if self._capture is not None and self._capture.grab():
            self._n_read += 1
            return
        is_single = self._n_read == 1
        self.close()
        self._begin_pass()
        if not self._capture.grab():  # type: ignore[union-attr]
            raise InputError(f"{self.shown}: holds no picture that can be decoded; see `ffprobe FILE`")
        self._n_read = 1
        if is_single:
            self._period = max(self._period, _SINGLE_S)

    def _retrieve(self) -> np.ndarray:
        self._check_size()  # again: it may change within a video
        done, image = self._capture.retrieve()  # type: ignore[union-attr]
        if not done or image is None or image.size == 0:
            raise InputError(f"{self.shown}: picture {self._n_read} cannot be decoded; see `ffprobe FILE`")
        return as_bgr(image)

    def _check_size(self) -> None:
        capture: Any = self._capture
        wrong = too_large(capture.get(cv2.CAP_PROP_FRAME_WIDTH), capture.get(cv2.CAP_PROP_FRAME_HEIGHT))
        if wrong is not None:
            raise InputError(f"{self.shown}: {wrong}")

    def close(self) -> None:
        capture, self._capture = self._capture, None
        if capture is not None:
            capture.release()


class PictureSource(Source):
    """One picture, read again when its file changes."""

    def __init__(self, uri: CaptureUri, timing: Timing) -> None:
        super().__init__(uri, timing)
        self._shown_state: Optional[Tuple[int, ...]] = None  # of the file that was read last

    def open(self) -> None:
        self._shown_state = None

    def read(self) -> Optional[np.ndarray]:
        if self._shown_state is not None:
            if not self.timing.pause(LOOK_S):
                return None
            with open_regular(self.uri.path, self.shown) as file:
                if _state(file) == self._shown_state:
                    return None
        # the descriptor's state, and before reading: what changes meanwhile is seen the next time
        with open_regular(self.uri.path, self.shown) as file:
            state = _state(file)
            try:
                with io.BufferedReader(file) as reader:
                    data = reader.read(MAX_BYTES + 1)
            except OSError as error:
                raise InputError(f"{self.shown}: cannot be read: {error.strerror}; check the disk") from None
        image = decode(data, self.shown)
        self._shown_state = state
        return image


def _state(file: io.FileIO) -> Tuple[int, ...]:
    status = os.fstat(file.fileno())
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def decode(data: bytes, shown: str) -> np.ndarray:
    """The picture in the bytes of a PNG or JPEG file, (height, width, 3) uint8 BGR, upright.

    Args:
        shown: the file, as messages name it.

    Raises:
        InputError: another format, too large, incomplete or damaged.
    """
    if len(data) > MAX_BYTES:
        raise InputError(f"{shown}: more than {MAX_BYTES >> 20} MiB; scale the picture down")
    size = picture_size(data)
    if size is None:
        raise InputError(f"{shown}: neither PNG nor JPEG, or a damaged one; save it again as one of these")
    wrong = too_large(*size)
    if wrong is not None:
        raise InputError(f"{shown}: {wrong}")
    end = b"IEND" if data[:1] == b"\x89" else b"\xff\xd9"
    if data.rfind(end) < 0:  # OpenCV would fill the rest with grey
        raise InputError(f"{shown}: the picture is incomplete; rename a complete one to this name")
    try:
        image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    except cv2.error:
        image = None
    if image is None:
        raise InputError(f"{shown}: the picture is damaged; save it again")
    return image


def picture_size(data: bytes) -> Optional[Tuple[int, int]]:
    """(width, height) that a PNG's or JPEG's header says, in pixels; None for anything else."""
    if data[:8] == b"\x89PNG\r\n\x1a\n" and data[12:16] == b"IHDR" and len(data) >= 24:
        width, height = struct.unpack_from(">II", data, 16)
        return (width, height) if width and height else None
    if data[:2] != b"\xff\xd8":
        return None
    at = 2
    while at + 9 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF:  # padding
            at += 1
        elif marker == 0x01 or 0xD0 <= marker <= 0xD7:  # without a length
            at += 2
        elif 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):  # start of frame
            height, width = struct.unpack_from(">HH", data, at + 5)
            return (width, height) if width and height else None
        elif marker in (0xD9, 0xDA):  # the end, or pixels before any size
            return None
        else:
            at += 2 + struct.unpack_from(">H", data, at + 2)[0]
    return None
