"""``v4l2://``: a virtual camera that other programs open like a real one, by the kernel module v4l2loopback.

    v4l2:///dev/video10      this device
    v4l2://label/edgegs      the one with this card label, whatever its number is today

No GStreamer: open the device, set its format, and write one frame at a time. What the driver's versions (0.10 on
Ubuntu 18.04 up to 0.15) do differently, and what follows from it:

- Until 0.13 a device loaded with ``exclusive_caps=1`` can be opened for writing again only if its last writer had
  called STREAMON; since 0.14 STREAMON without buffers is EINVAL, and ``write`` starts the stream. So it is called, and
  that answer is accepted. STREAMOFF is not: a viewer would lose the format between two runs.
- Until 0.13 nothing keeps two programs from writing to one device in turn. A lock on the device does that between
  outputs of edgegs.
- As long as a viewer, or the driver's keep_format, holds a format, S_FMT answers with that one instead of an error.
- A device that never says "output" and "capture" at once (``exclusive_caps=1``, which browsers ask for) says
  "capture" only while somebody writes. Saying neither is left over from a writer without STREAMON, and harmless.

Colour: BT.601, limited range, sRGB transfer, which is what cameras send and viewers expect. The size must be even,
because two columns and two rows share a colour in I420, and most viewers turn YUYV into that. Dropping a column
instead would hide from the user that the picture is not the one configured.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
from fractions import Fraction
from typing import Any, Dict, NoReturn, Optional, Type

import cv2
import numpy as np

from edgegs.errors import AccessError, ConfigError, DeviceError, EdgegsError, OutputError
from edgegs.frame import Frame
from edgegs.sinks import v4l2_api as api
from edgegs.sinks import v4l2_devices as video
from edgegs.sinks.base import Sink
from edgegs.sinks.uri import OutputUri

_log = logging.getLogger("edgegs.sinks")


class I420:
    """(height, width, 3) uint8 BGR -> planar 4:2:0: all Y, then U and V of a quarter of the size each.

    Args:
        width, height: even.
    """

    fourcc = api.PIX_FMT_YUV420
    bytes_per_line = 1  # of the Y plane, per pixel; as V4L2 counts it

    def __init__(self, width: int, height: int) -> None:
        self._planes = np.empty((height * 3 // 2, width), np.uint8)
        self.data = self._planes.reshape(-1).data

    def convert(self, image: np.ndarray) -> memoryview:
        """The frame's bytes, in a buffer that the next call overwrites."""
        cv2.cvtColor(image, cv2.COLOR_BGR2YUV_I420, dst=self._planes)
        return self.data


class Yuyv:
    """(height, width, 3) uint8 BGR -> packed Y U Y V; two rows share their colour, as in I420.

    Why through I420: at 1280x720 on one x86-64 core OpenCV's own BGR2YUV_YUY2 (from 4.10 on; not vectorised before 5)
    takes 1.6 to 7 ms, a matrix product for every row's own colour 6 ms, and this 0.5 ms, with any OpenCV from 4.5 on.
    What it gives up is 1 to 3 dB against BGR2YUV_YUY2 on photographs that come back with 48 dB or more.

    Args:
        width, height: even.
    """

    fourcc = api.PIX_FMT_YUYV
    bytes_per_line = 2

    def __init__(self, width: int, height: int) -> None:
        half = (height // 2, width // 2)
        self._planes = np.empty((height * 3 // 2, width), np.uint8)
        luma, chroma = self._planes[:height], self._planes[height:].reshape(2, *half)
        self._luma = (luma[0::2], luma[1::2])
        self._u, self._v = chroma
        self._uv = np.empty((*half, 2), np.uint8)
        self._uv_row = self._uv.reshape(height // 2, width)  # U V U V …: one of them beside each Y
        packed = np.empty((height, width, 2), np.uint8)
        self._rows = (packed[0::2], packed[1::2])
        self.data = packed.reshape(-1).data

    def convert(self, image: np.ndarray) -> memoryview:
        """The frame's bytes, in a buffer that the next call overwrites."""
        cv2.cvtColor(image, cv2.COLOR_BGR2YUV_I420, dst=self._planes)
        cv2.merge((self._u, self._v), dst=self._uv)
        for luma, rows in zip(self._luma, self._rows):
            cv2.merge((luma, self._uv_row), dst=rows)
        return self.data


PIXEL_FORMATS: Dict[str, Type[Any]] = {"yuyv": Yuyv, "i420": I420}


class V4l2Sink(Sink):
    """A virtual camera.

    Options:
        pixel_format: "yuyv" (every viewer reads it) or "i420" (a quarter less to copy).
    """

    OPTIONS = ("pixel_format",)
    live = True

    def __init__(self, uri: str, path: str = "", label: str = "", pixel_format: str = "yuyv") -> None:
        super().__init__(uri)
        if not isinstance(pixel_format, str) or pixel_format not in PIXEL_FORMATS:
            raise ConfigError(f"output {uri}: pixel_format is {pixel_format!r}; expected " + " or ".join(PIXEL_FORMATS))
        self._device, self._label = path, label
        self._format = PIXEL_FORMATS[pixel_format]
        self._fd: Optional[int] = None
        self._path = path
        self._converter: Any = None

    @classmethod
    def from_uri(cls, uri: OutputUri, **options: Any) -> V4l2Sink:
        return cls(uri.text, uri.path, uri.name, **options)

    def open(self, width: int, height: int, fps: float) -> None:
        for name, value in (("width", width), ("height", height)):
            if value % 2:
                raise ConfigError(
                    f"output {self.uri}: camera.{name} is {value}; a virtual camera needs an even {name}: "
                    f"write {value - 1 or 2} or {value + 1}"
                )
        self.close()
        if self._label:
            try:
                self._path = video.find_label(self._label)
            except EdgegsError as error:
                raise type(error)(f"output {self.uri}: {error}") from error
        fd = self._open_device()
        try:
            self._lock(fd)
            self._check_driver(fd)
            self._set_format(fd, width, height)
            self._set_rate(fd, fps)
            self._stream_on(fd)
            self._converter = self._format(width, height)
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd

    def write(self, frame: Frame) -> None:
        fd = self._fd
        if fd is None:
            raise OutputError(f"output {self.uri}: not open")
        data = self._converter.convert(frame.image)
        try:
            written = os.write(fd, data)
        except OSError as error:
            if error.errno == errno.EBUSY:
                raise DeviceError(f"output {self.uri}: {self._used_by_others()}") from error
            gone = f"{self._path} is gone" if error.errno == errno.ENODEV else f"{self._path} took no frame"
            raise OutputError(f"output {self.uri}: {gone}: {_why(error)}") from error
        if written != len(data):
            raise OutputError(
                f"output {self.uri}: {self._path} took {written} of a frame's {len(data)} bytes: "
                f"its format was changed by another program (sudo fuser -v {self._path})"
            )

    def close(self) -> None:
        fd, self._fd, self._converter = self._fd, None, None
        if fd is not None:
            os.close(fd)

    def _open_device(self) -> int:
        try:
            return api.open_node(self._path)
        except OSError as error:
            self._cannot_open(error)

    def _cannot_open(self, error: OSError) -> NoReturn:
        if isinstance(error, PermissionError):
            raise AccessError(
                f"output {self.uri}: this user may not open {self._path}; {video.GROUP_ADVICE}"
            ) from error
        if error.errno in (errno.ENOENT, errno.ENODEV, errno.ENXIO):
            number = re.search(r"/video([0-9]+)$", self._path)
            how = video.how_to_load(int(number.group(1))) if number else video.how_to_load()
            raise DeviceError(
                f"output {self.uri}: there is no {self._path}; {video.what_there_is()}; {how}"
            ) from error
        if error.errno == errno.EBUSY:
            raise DeviceError(f"output {self.uri}: {self._used_by_others()}") from error
        if error.errno == errno.ENOTTY:
            raise DeviceError(
                f"output {self.uri}: {self._path} is not a video device; {video.what_there_is()}; {video.how_to_load()}"
            ) from error
        raise DeviceError(f"output {self.uri}: cannot open {self._path}: {_why(error)}") from error

    def _lock(self, fd: int) -> None:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DeviceError(
                f"output {self.uri}: another output of edgegs writes to {self._path}; "
                f"give each its own device (sudo fuser -v {self._path} shows the process)"
            ) from error
        except OSError as error:  # a file system without locks: go on without
            _log.debug("output %s: cannot lock %s: %s", self.uri, self._path, error)

    def _check_driver(self, fd: int) -> None:
        try:
            capability = api.query_capability(fd)
        except OSError as error:
            raise DeviceError(f"output {self.uri}: {self._path} is not a video device ({_why(error)})") from error
        driver, card, caps = api.text(capability.driver), api.text(capability.card), capability.caps
        if driver != video.LOOPBACK_DRIVER:
            kind = "a camera" if caps & api.CAP_VIDEO_CAPTURE else "a device"
            raise DeviceError(
                f'output {self.uri}: {self._path} is {kind} ("{card}", driver {driver}), not a v4l2loopback device; '
                f"{video.what_there_is()}; {video.how_to_load()}"
            )
        if self._label and card != self._label:  # renumbered since it was found
            raise DeviceError(f'output {self.uri}: {self._path} now has the label "{card}"')
        if caps & api.CAP_VIDEO_CAPTURE and not caps & api.CAP_VIDEO_OUTPUT:
            raise DeviceError(
                f"output {self.uri}: {self._used_by_others()}; where nobody does, "
                f"sudo v4l2-ctl -d {self._path} -c keep_format=0, or reload the module (sudo modprobe -r v4l2loopback)"
            )

    def _set_format(self, fd: int, width: int, height: int) -> None:
        line = width * self._format.bytes_per_line
        size = line * height if self._format is Yuyv else line * height * 3 // 2
        asked = api.Format(type=api.OUTPUT)
        asked.fmt.pix = api.PixFormat(
            width=width,
            height=height,
            pixelformat=self._format.fourcc,
            field=api.FIELD_NONE,
            bytesperline=line,
            sizeimage=size,
            colorspace=api.COLORSPACE_SRGB,
            priv=api.PIX_FMT_PRIV_MAGIC,
            ycbcr_enc=api.YCBCR_ENC_601,
            quantization=api.QUANTIZATION_LIM_RANGE,
            xfer_func=api.XFER_FUNC_SRGB,
        )
        wanted = f"{width}x{height} {api.fourcc_text(self._format.fourcc)}"
        try:
            api.call(fd, api.S_FMT, asked)
        except OSError as error:
            if error.errno == errno.EBUSY:
                raise DeviceError(f"output {self.uri}: {self._used_by_others()}") from error
            raise DeviceError(f"output {self.uri}: {self._path} refuses {wanted}: {_why(error)}") from error
        got = asked.fmt.pix
        if (got.width, got.height, got.pixelformat) != (width, height, self._format.fourcc):
            held = f"{got.width}x{got.height} {api.fourcc_text(got.pixelformat)}"
            raise DeviceError(
                f"output {self.uri}: {self._path} stays at {held} instead of {wanted}; close its viewers "
                f"(sudo fuser -v {self._path}), or sudo v4l2-ctl -d {self._path} -c keep_format=0, or load the module "
                f"with max_width={width} max_height={height}"
            )
        if got.bytesperline != line or got.sizeimage < size:
            raise DeviceError(
                f"output {self.uri}: {self._path} wants lines of {got.bytesperline} bytes and frames of "
                f"{got.sizeimage} for {wanted}; edgegs writes {line} and {size}"
            )

    def _set_rate(self, fd: int, fps: float) -> None:
        """Tell viewers the nominal rate; a driver that refuses it still shows the picture."""
        rate = Fraction(fps).limit_denominator(1001)
        if rate <= 0:
            return
        parameters = api.StreamParm(type=api.OUTPUT)
        parameters.parm.output.timeperframe = api.Fract(rate.denominator, rate.numerator)
        try:
            api.call(fd, api.S_PARM, parameters)
        except OSError as error:
            _log.debug("output %s: %s takes no frame rate: %s", self.uri, self._path, error)

    def _stream_on(self, fd: int) -> None:
        try:
            api.call(fd, api.STREAMON, api.ctypes.c_int(api.OUTPUT))
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise DeviceError(f"output {self.uri}: {self._path} does not start: {_why(error)}") from error

    def _used_by_others(self) -> str:
        return f"another program writes to {self._path}; end it (sudo fuser -v {self._path} shows who)"


def _why(error: OSError) -> str:
    return error.strerror or str(error)
