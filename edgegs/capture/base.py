"""The interface of a source of pictures, and what all of them need."""

from __future__ import annotations

import abc
from typing import Callable, NamedTuple, Optional

import numpy as np

from edgegs.capture.uri import CaptureUri

#: Larger pictures are refused: this many take 200 MB as BGR, and OpenCV's own limit of 2^30 is more than a board has.
MAX_PIXELS = 1 << 26


class Timing(NamedTuple):
    """How a source tells the time and waits.

    Attributes:
        now: seconds, monotonic.
        pause: waits so many seconds, or less when the capture is being closed; False when it is.
    """

    now: Callable[[], float]
    pause: Callable[[float], bool]


class Source(abc.ABC):
    """Opened, read and closed by the one thread of a ``Capture``; may be opened again after ``close``.

    Messages of errors begin with ``shown``.
    """

    def __init__(self, uri: CaptureUri, timing: Timing) -> None:
        self.uri = uri
        self.shown = f"background {uri}"
        self.timing = timing

    @abc.abstractmethod
    def open(self) -> None:
        """Get ready to read.

        Raises:
            EdgegsError: not possible now; ``close`` is called, and ``open`` again later.
        """

    @abc.abstractmethod
    def read(self) -> Optional[np.ndarray]:
        """Wait for the next picture, at its time.

        Returns:
            (height, width, 3) uint8 BGR, which nobody writes to again; None when the picture before it still holds.

        Raises:
            EdgegsError: the source is gone; ``close`` is called, and ``open`` again later.
        """

    def close(self) -> None:  # noqa: B027 (a source may have nothing to close)
        """Let go of everything. Harmless when not open."""


def too_large(width: float, height: float) -> Optional[str]:
    """Why pictures of this size are refused; None when they are not."""
    if 0 <= width * height <= MAX_PIXELS:
        return None
    return f"{width:.0f} x {height:.0f} pixels are too many (at most {MAX_PIXELS >> 20} million); scale it down"
