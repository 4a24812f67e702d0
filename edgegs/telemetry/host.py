"""Facts about this process and its kernel: boot, clock, memory, versions."""

from __future__ import annotations

import ctypes
import datetime
import os
import platform
import uuid
from typing import Dict, Optional

import numpy as np

_TIME_ERROR = 5  # adjtimex(2): the clock is not synchronised
_LIBC = ctypes.CDLL(None)
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)


def boot_id() -> str:
    """The kernel's id of this boot, as 36 characters; a fresh one where the kernel does not tell."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return str(uuid.UUID(file.read().strip()))
    except (OSError, ValueError):
        return str(uuid.uuid4())


def rfc3339(wall_ns: int) -> str:
    """UTC time stamp with milliseconds, as ``2025-07-01T12:00:00.250Z``; "" outside the years 1 to 9999."""
    try:
        stamp = _EPOCH + datetime.timedelta(microseconds=wall_ns // 1000)
    except OverflowError:
        return ""
    return stamp.strftime("%Y-%m-%dT%H:%M:%S.") + f"{stamp.microsecond // 1000:03d}Z"


def clock_synced() -> Optional[bool]:
    """Whether the kernel holds the wall clock for synchronised; None where we may not ask."""
    try:
        # struct timex with modes = 0 only reads. 512 bytes are more than any architecture's.
        state = _LIBC.adjtimex(ctypes.create_string_buffer(512))
    except AttributeError:
        state = -1
    if state < 0:
        return True if os.path.exists("/run/systemd/timesync/synchronized") else None
    return bool(state != _TIME_ERROR)


def memory() -> Dict[str, int]:
    """This process: ``rss_bytes``, ``descriptors``, ``threads``; what cannot be read is left out."""
    found: Dict[str, int] = {}
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            found["rss_bytes"] = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        pass
    for name, folder in (("descriptors", "/proc/self/fd"), ("threads", "/proc/self/task")):
        try:
            found[name] = len(os.listdir(folder))
        except OSError:
            pass
    return found


def versions() -> Dict[str, str]:
    """Kernel, machine and the versions of Python and NumPy."""
    return {
        "kernel": platform.release(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }
