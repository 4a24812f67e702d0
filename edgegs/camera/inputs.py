"""What people do at a window: keys, drags, the wheel, as the window's sink hands them on; and the time they pause."""

from __future__ import annotations

from typing import NamedTuple, Optional


class InputEvent(NamedTuple):
    """One event.

    Attributes:
        kind: "key", "drag" or "wheel".
        key: of "key": a printable character in lower case, or "left", "right", "up", "down", "escape".
        dx, dy: of "drag": how far the pointer moved right and down, as a share of the picture's height.
        button: of "drag": "left", "middle" or "right".
        steps: of "wheel": notches, positive away from the user.
    """

    kind: str
    key: str = ""
    dx: float = 0.0
    dy: float = 0.0
    button: str = ""
    steps: float = 0.0


class PathClock:
    """The camera path's time: seconds since the first frame, less those for which the run was paused."""

    def __init__(self, now: float) -> None:
        self._began = now
        self._paused_at: Optional[float] = None

    def toggle(self, now: float) -> None:
        """Pause, or go on."""
        if self._paused_at is None:
            self._paused_at = now
        else:
            self._began += now - self._paused_at
            self._paused_at = None

    @property
    def is_paused(self) -> bool:
        return self._paused_at is not None

    def at(self, now: float) -> float:
        return (now if self._paused_at is None else self._paused_at) - self._began
