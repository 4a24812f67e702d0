"""What the window writes over a corner of the picture: frames a second, watts, degrees."""

from __future__ import annotations

import math
from typing import Any, Dict, List, Tuple

import numpy as np

from edgegs.telemetry.power import TOTAL_RAILS

#: Rails that are shown where none of them is the total.
_MOST_RAILS = 4
#: cv2.rotate's code for each rotation, clockwise; and the corner (right, bottom) where the picture's first row begins.
_TURNS = {90: 0, 180: 1, 270: 2}
_CORNERS = {0: (False, False), 90: (True, False), 180: (True, True), 270: (False, True)}
#: Share of the picture that shines through the overlay's ground.
_GROUND = 0.3


def overlay_lines(status: Dict[str, Any]) -> List[str]:
    """The overlay's text from the daemon's status; what is not known is left out.

    The rail that is the board's total stands alone: the others are parts of it. Of the sensors the hottest counts.
    """
    lines = []
    fps = _numbers({"fps": status.get("fps")})
    if fps:
        lines.append("{:.1f} FPS".format(fps["fps"]))
    power = _numbers(status.get("power_w"))
    total = [rail for rail in TOTAL_RAILS if rail in power]
    for rail in total[:1] or sorted(power)[:_MOST_RAILS]:
        lines.append(f"{power[rail]:.1f} W  {rail}")
    temperatures = _numbers(status.get("temp_c"))
    if temperatures:
        hottest = max(sorted(temperatures), key=lambda name: temperatures[name])
        lines.append(f"{temperatures[hottest]:.0f} C  {hottest}")
    return [line.encode("ascii", "replace").decode("ascii") for line in lines]  # OpenCV's font has no others


def turn(image: np.ndarray, rotation_deg: int) -> np.ndarray:
    """``image`` rotated clockwise by 0, 90, 180 or 270 degrees."""
    if rotation_deg == 0:
        return image
    import cv2

    return cv2.rotate(image, _TURNS[rotation_deg])


class Overlay:
    """Draws lines of text on a darkened ground; the text is rendered once, not for each frame.

    Args:
        rotation_deg: of the picture, clockwise: the text turns with it.
    """

    def __init__(self, rotation_deg: int) -> None:
        self._rotation_deg = rotation_deg
        self._lines: List[str] = []
        self._made_for: Tuple[int, List[str]] = (0, [])
        self._patch = np.zeros((0, 0, 3), np.uint8)

    def say(self, lines: List[str]) -> None:
        self._lines = list(lines)

    def draw(self, canvas: np.ndarray) -> None:
        """Write over the corner of ``canvas`` (H, W, 3) uint8 where the picture's first pixel is."""
        import cv2

        if not self._lines:
            return
        short = min(canvas.shape[:2])
        if self._made_for != (short, self._lines):
            self._patch = turn(_render(self._lines, short), self._rotation_deg)
            self._made_for = (short, list(self._lines))
        height, width = (min(a, b) for a, b in zip(self._patch.shape[:2], canvas.shape[:2]))
        right, bottom = _CORNERS[self._rotation_deg]
        y = canvas.shape[0] - height if bottom else 0
        x = canvas.shape[1] - width if right else 0
        ground = canvas[y : y + height, x : x + width]
        ground[:] = cv2.addWeighted(ground, _GROUND, self._patch[:height, :width], 1.0, 0.0)


def _render(lines: List[str], short: int) -> np.ndarray:
    """White text on black, its size after the short side of the screen in pixels."""
    import cv2

    font, scale = cv2.FONT_HERSHEY_SIMPLEX, max(0.45, short / 1200.0)
    thickness = max(1, round(2 * scale))
    step = round(34 * scale)
    widths = [cv2.getTextSize(line, font, scale, thickness)[0][0] for line in lines]
    patch = np.zeros((step * len(lines) + step // 2, max(widths) + step, 3), np.uint8)
    for i, line in enumerate(lines):
        at = (step // 2, step * (i + 1))
        cv2.putText(patch, line, at, font, scale, (255, 255, 255), thickness, cv2.LINE_AA)
    return patch


def _numbers(values: Any) -> Dict[str, float]:
    """Those of a dict's values that are finite numbers; a dict such as {"GPU": None} holds none."""
    found: Dict[str, float] = {}
    for name, value in (values or {}).items():
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            found[str(name)] = float(value)
    return found
