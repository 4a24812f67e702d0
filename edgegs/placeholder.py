"""The picture that outputs show while there is none: a stream that stops is taken for dead by who watches it."""

from __future__ import annotations

import threading
import time
from typing import Callable, Optional, Sequence, Tuple

import numpy as np

from edgegs.frame import Frame
from edgegs.outputs import PacedOutput

#: Placeholder pictures a second: enough for a player not to give up, little enough for a board that is loading.
FPS = 5.0
_DARK, _GREY, _LIGHT = (24, 20, 18), (96, 88, 80), (200, 196, 190)  # BGR


def picture(width: int, height: int, text: str, share: Optional[float] = None) -> np.ndarray:
    """(height, width, 3) uint8 BGR: dark, with a line of ASCII text and how much is done (0..1, or None)."""
    import cv2  # only here: a run without outputs to look at needs none

    image = np.empty((height, width, 3), np.uint8)
    image[:] = _DARK
    text = text.encode("ascii", "replace").decode("ascii")
    font = cv2.FONT_HERSHEY_SIMPLEX
    (wide, _), _ = cv2.getTextSize(text, font, 1.0, 2)
    scale = min(height / 480.0, 0.86 * width / max(wide, 1))
    thickness = max(1, round(2 * scale))
    (wide, tall), _ = cv2.getTextSize(text, font, scale, thickness)
    middle = height // 2
    cv2.putText(image, text, ((width - wide) // 2, middle), font, scale, _LIGHT, thickness, cv2.LINE_AA)
    if share is not None:
        left, right, top = width // 5, width - width // 5, middle + tall
        bottom = top + max(2, height // 120)
        image[top:bottom, left:right] = _GREY
        image[top:bottom, left : left + round((right - left) * min(max(share, 0.0), 1.0))] = _LIGHT
    return image


class Placeholder:
    """Offers a placeholder to every output that people watch, from ``start`` to ``stop``, by a thread of its own.

    Args:
        outputs: all of the run; those whose sink is not ``live`` get none.
        width, height: of the pictures.
        says: returns the line of text and the share that is done (0..1, or None).
    """

    def __init__(
        self, outputs: Sequence[PacedOutput], width: int, height: int, says: Callable[[], Tuple[str, Optional[float]]]
    ) -> None:
        self._outputs = [output for output in outputs if output.runner.sink.live]
        self._width, self._height, self._says = width, height, says
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="edgegs-placeholder", daemon=True)

    def start(self) -> None:
        if self._outputs:
            self._thread.start()

    def stop(self) -> None:
        """Offer no more; none is offered once this has returned."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        shown, image = None, None
        while not self._stop.is_set():
            says = self._says()
            if image is None or says != shown:
                shown, image = says, picture(self._width, self._height, *says)
            frame = Frame(image, 0, time.monotonic_ns(), 0.0, placeholder=True)
            for output in self._outputs:
                output.runner.offer(frame)
            self._stop.wait(1.0 / FPS)
