"""The part of Linux's video interface that edgegs uses: numbers and structures of <linux/videodev2.h>.

The layouts hold on x86-64, aarch64 and 32-bit ARM alike: every field is 32 bits wide, and the one structure whose size
depends on the machine (``Format``, whose union holds pointers elsewhere) is aligned as a pointer is there.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import stat
from typing import Any, List, Tuple

U8, U32 = ctypes.c_uint8, ctypes.c_uint32

VIDEO_MAJOR = 81  # of the device numbers of video4linux

CAPTURE, OUTPUT = 1, 2  # V4L2_BUF_TYPE_VIDEO_…
FIELD_NONE = 1
CAP_VIDEO_CAPTURE = 0x00000001
CAP_VIDEO_OUTPUT = 0x00000002
CAP_VIDEO_CAPTURE_MPLANE = 0x00001000
CAP_VIDEO_M2M_MPLANE = 0x00004000
CAP_VIDEO_M2M = 0x00008000
CAP_DEVICE_CAPS = 0x80000000
COLORSPACE_SRGB = 8
YCBCR_ENC_601 = 1
QUANTIZATION_LIM_RANGE = 2
XFER_FUNC_SRGB = 2
PIX_FMT_PRIV_MAGIC = 0xFEEDCAFE  # says that the colour fields after ``priv`` are filled in
FRMSIZE_TYPE_DISCRETE = 1


def fourcc(text: str) -> int:
    """``"YUYV"`` -> its 32-bit code."""
    return int.from_bytes(text.encode("ascii"), "little")


def fourcc_text(code: int) -> str:
    """A 32-bit code -> its four characters, without what cannot be printed."""
    letters = (code & 0x7FFFFFFF).to_bytes(4, "little").decode("latin-1")
    return "".join(letter if letter.isprintable() else "?" for letter in letters).strip()


PIX_FMT_YUYV = fourcc("YUYV")
PIX_FMT_YUV420 = fourcc("YU12")  # I420


class Capability(ctypes.Structure):
    _fields_ = [
        ("driver", ctypes.c_char * 16),
        ("card", ctypes.c_char * 32),
        ("bus_info", ctypes.c_char * 32),
        ("version", U32),
        ("capabilities", U32),
        ("device_caps", U32),
        ("reserved", U32 * 3),
    ]

    @property
    def caps(self) -> int:
        """What this device node can do, where the kernel tells it apart from the whole device."""
        return int(self.device_caps if self.capabilities & CAP_DEVICE_CAPS else self.capabilities)


class PixFormat(ctypes.Structure):
    _fields_ = [
        ("width", U32),
        ("height", U32),
        ("pixelformat", U32),
        ("field", U32),
        ("bytesperline", U32),
        ("sizeimage", U32),
        ("colorspace", U32),
        ("priv", U32),
        ("flags", U32),
        ("ycbcr_enc", U32),
        ("quantization", U32),
        ("xfer_func", U32),
    ]


class _FormatUnion(ctypes.Union):
    _fields_ = [("pix", PixFormat), ("raw_data", U8 * 200), ("_pointer", ctypes.c_void_p)]


class Format(ctypes.Structure):
    _fields_ = [("type", U32), ("fmt", _FormatUnion)]


class Fract(ctypes.Structure):
    _fields_ = [("numerator", U32), ("denominator", U32)]


class OutputParm(ctypes.Structure):
    _fields_ = [
        ("capability", U32),
        ("outputmode", U32),
        ("timeperframe", Fract),
        ("extendedmode", U32),
        ("writebuffers", U32),
        ("reserved", U32 * 4),
    ]


class _ParmUnion(ctypes.Union):
    _fields_ = [("output", OutputParm), ("raw_data", U8 * 200)]


class StreamParm(ctypes.Structure):
    _fields_ = [("type", U32), ("parm", _ParmUnion)]


class FmtDesc(ctypes.Structure):
    _fields_ = [
        ("index", U32),
        ("type", U32),
        ("flags", U32),
        ("description", U8 * 32),
        ("pixelformat", U32),
        ("mbus_code", U32),
        ("reserved", U32 * 3),
    ]


class FrmSizeEnum(ctypes.Structure):
    """``size``: width and height when ``type`` is discrete; else min, max and step of the width, then of the height."""

    _fields_ = [("index", U32), ("pixel_format", U32), ("type", U32), ("size", U32 * 6), ("reserved", U32 * 2)]


def _request(direction: int, number: int, size: int) -> int:
    # asm-generic/ioctl.h, which x86 and ARM share: direction (1 write, 2 read), size, letter, number.
    return direction << 30 | size << 16 | ord("V") << 8 | number


QUERYCAP = _request(2, 0, ctypes.sizeof(Capability))
ENUM_FMT = _request(3, 2, ctypes.sizeof(FmtDesc))
S_FMT = _request(3, 5, ctypes.sizeof(Format))
STREAMON = _request(1, 18, ctypes.sizeof(ctypes.c_int))
S_PARM = _request(3, 22, ctypes.sizeof(StreamParm))
ENUM_FRAMESIZES = _request(3, 74, ctypes.sizeof(FrmSizeEnum))


def open_node(path: str, flags: int = 0) -> int:
    """Open a video device for reading and writing. Nothing else is opened: with some devices that alone does something
    (a watchdog starts, and resets the board).

    Args:
        flags: such as ``os.O_NONBLOCK``.

    Raises:
        OSError: ENOTTY when this is no video device.
    """
    node = os.stat(path)
    if not stat.S_ISCHR(node.st_mode) or os.major(node.st_rdev) != VIDEO_MAJOR:
        raise OSError(errno.ENOTTY, os.strerror(errno.ENOTTY), path)
    return os.open(path, os.O_RDWR | flags)


def call(fd: int, request: int, argument: Any) -> None:
    """One ioctl; ``argument`` is a ctypes object that the driver may fill in. Raises OSError."""
    while True:
        try:
            fcntl.ioctl(fd, request, argument, True)
            return
        except InterruptedError:  # Python repeats an interrupted write by itself, but not an ioctl
            continue


def query_capability(fd: int) -> Capability:
    """Who the driver is and what the device can do.

    Raises:
        OSError: ENOTTY when this is no video device.
    """
    capability = Capability()
    call(fd, QUERYCAP, capability)
    return capability


def text(value: bytes) -> str:
    """A driver's string, which may have been cut within a character."""
    return value.decode("utf-8", "replace")


def capture_formats(fd: int) -> List[Tuple[str, int, int]]:
    """A camera's (fourcc, width, height), one for each pixel format: its largest size, 0 x 0 where it tells none."""
    found = []
    for index in range(64):
        description = FmtDesc(index=index, type=CAPTURE)
        if not _answers(fd, ENUM_FMT, description):
            break
        width, height = _largest(fd, description.pixelformat)
        found.append((fourcc_text(description.pixelformat), width, height))
    return found


def _largest(fd: int, pixel_format: int) -> Tuple[int, int]:
    best = (0, 0)
    for index in range(256):
        size = FrmSizeEnum(index=index, pixel_format=pixel_format)
        if not _answers(fd, ENUM_FRAMESIZES, size):
            break
        if size.type != FRMSIZE_TYPE_DISCRETE:
            return size.size[1], size.size[4]
        best = max(best, (size.size[0], size.size[1]), key=lambda pair: pair[0] * pair[1])
    return best


def _answers(fd: int, request: int, argument: Any) -> bool:
    """Whether the driver had an answer; EINVAL ends a list, ENOTTY says that it keeps none."""
    try:
        call(fd, request, argument)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOTTY):
            return False
        raise
    return True
