"""Memory over days: what loading leaves behind is given back when it is done, not when chance wills."""

from __future__ import annotations

import ctypes
import gc
from typing import Optional

_LIBC = ctypes.CDLL(None)


def tidy() -> None:
    """Give back what loading left behind; takes tens of milliseconds.

    Cycles, which Python else keeps until they are a quarter of its heap; and the free pages that they and ended threads
    leave scattered over glibc's heaps.
    """
    gc.collect()
    if hasattr(_LIBC, "malloc_trim"):  # musl has none
        _LIBC.malloc_trim(0)


def settle() -> None:
    """``tidy`` at the end of startup; what is there now stays, and no later collection looks through it again."""
    tidy()
    gc.freeze()


def available() -> Optional[int]:
    """Bytes that can still be had, swap included; None where the system does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            sizes = dict(line.split(":", 1) for line in file)
        return 1024 * sum(int(sizes[name].split()[0]) for name in ("MemAvailable", "SwapFree"))
    except (OSError, ValueError, KeyError):
        return None
