"""Memory over days: what loading leaves behind is given back when it is done, not when chance wills."""

from __future__ import annotations

import ctypes
import gc

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
