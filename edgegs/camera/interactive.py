"""A camera that people steer with the keys and the mouse of a display's window.

    w s, up down       forward, back: level, whatever the pitch     left button    look around
    a d, left right    sideways                                     right button   shift the picture
    r f                up, down                                     middle, wheel  nearer, farther
    h                  home                                         + -            faster, slower

The picture follows the pointer: what one drags stays below it. The horizon stays level. (``space``, ``q`` and ``o``
belong to the program and to the window.)
"""

from __future__ import annotations

import math
import threading
import time
from typing import Any, Callable, Dict, NamedTuple, Optional, Sequence

import numpy as np

from edgegs.camera.inputs import InputEvent
from edgegs.camera.paths import Bounds, Lens, PosePath
from edgegs.camera.pose import Camera, facing, view_matrix

SMOOTH_S = 0.08  # time constant of the way from where the camera is to where a key sent it
PRESS_S = 0.1  # a single press moves as far as a key held for so long
REPEAT_S = 0.15  # a press that follows the last one of its key by less is the key's auto-repeat: it is held
WHEEL_SHARE = 0.1  # of the distance to what is looked at, a notch
SPEED_STEP = 1.25  # of + and -
SPEED_RANGE = 64.0  # times the speed it began with, and that part of it
MAX_PITCH = math.radians(89)
MAX_COORDINATE = 1e9

#: key -> right, up, forward
_MOVES: Dict[str, Sequence[float]] = {
    "w": (0, 0, 1),
    "up": (0, 0, 1),
    "s": (0, 0, -1),
    "down": (0, 0, -1),
    "a": (-1, 0, 0),
    "left": (-1, 0, 0),
    "d": (1, 0, 0),
    "right": (1, 0, 0),
    "r": (0, 1, 0),
    "f": (0, -1, 0),
}
_FASTER, _SLOWER = ("+", "="), ("-", "_")  # the second: the same key with or without shift


class _View(NamedTuple):
    """eye (3,) float64, scene units; yaw about the upward axis and pitch above the horizon, radians."""

    eye: np.ndarray
    yaw: float
    pitch: float


class Interactive(PosePath):
    """Moves by ``handle``, smoothly.

    Args:
        lens: of all its cameras.
        home: where it begins, and where the key h leads. Straight up or down counts as 1 degree off that.
        up: (3,) upward direction, any length but zero.
        speed: of a held key, scene units a second; None: from the scene's size.
        scene_bounds: ``Scene.bounds()``: centre (3,) and radius.
        clock: seconds that never go back.
    """

    def __init__(
        self,
        lens: Lens,
        home: Camera,
        up: Sequence[float],
        speed: Optional[float] = None,
        scene_bounds: Optional[Bounds] = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        center, extent = scene_bounds if scene_bounds is not None else ((0.0, 0.0, 0.0), 1.0)
        extent = extent if math.isfinite(extent) and extent > 0 else 1.0
        self._lens, self._clock = lens, clock
        self._center, self._extent = np.asarray(center, dtype=np.float64), extent
        self._up = np.asarray(up, dtype=np.float64) / np.linalg.norm(np.asarray(up, dtype=np.float64))
        level = np.eye(3)[np.argmin(np.abs(self._up))]
        self._ahead = level - (level @ self._up) * self._up
        self._ahead /= np.linalg.norm(self._ahead)
        self._aside = np.cross(self._ahead, self._up)  # to the right of _ahead
        # A third of the scene's radius a second: across a room at a walk.
        self._first_speed = self._speed = 0.3 * extent if speed is None else speed
        forward = home.viewmat[2, :3]
        pitch = math.asin(float(np.clip(forward @ self._up, -1.0, 1.0)))
        if abs(pitch) > MAX_PITCH:  # then the picture's upper or lower edge tells where ahead is
            forward = home.viewmat[1, :3] * math.copysign(1.0, pitch)
        yaw = math.atan2(float(forward @ self._aside), float(forward @ self._ahead))
        self._home = _View(home.eye, yaw, float(np.clip(pitch, -MAX_PITCH, MAX_PITCH)))
        self._lock = threading.Lock()  # guards everything below
        self._target = self._shown = self._home
        self._moved_at: Optional[float] = None
        self._pressed: Dict[str, float] = {}
        self._n_events = 0

    def camera_at(self, t_s: float) -> Camera:
        """The camera now; ``t_s`` has no meaning here."""
        with self._lock:
            now = self._clock()
            passed = 0.0 if self._moved_at is None else max(0.0, now - self._moved_at)
            self._moved_at = now
            share = -math.expm1(-passed / SMOOTH_S)
            a, b = self._shown, self._target
            self._shown = a = _View(
                a.eye + share * (b.eye - a.eye), a.yaw + share * (b.yaw - a.yaw), a.pitch + share * (b.pitch - a.pitch)
            )
        return self._lens.camera(view_matrix(a.eye, facing(self._forward(a), self._up)))

    def handle(self, event: InputEvent) -> bool:
        with self._lock:
            known = self._handle(event)
            self._n_events += known
        return known

    def status(self) -> Dict[str, Any]:
        """``eye``: (3,) scene units; ``speed``: scene units a second; ``events``: how many meant something."""
        with self._lock:
            eye = [round(float(x), 6) for x in self._shown.eye]
            return {"source": "interactive", "eye": eye, "speed": self._speed, "events": self._n_events}

    # ---- the caller holds the lock ----------------------------------------------------------------------

    def _handle(self, event: InputEvent) -> bool:
        if event.kind == "key":
            return self._key(event.key)
        if event.kind == "wheel" and math.isfinite(event.steps):
            # A share of what is left, so that notches forth and back cancel.
            distance = self._distance()
            self._shift(self._forward(self._target) * distance * (1.0 - (1.0 - WHEEL_SHARE) ** _small(event.steps)))
            return True
        if event.kind == "drag" and math.isfinite(event.dx) and math.isfinite(event.dy):
            return self._drag(event.button, _small(event.dx), _small(event.dy))
        return False

    def _key(self, key: str) -> bool:
        if key in _MOVES:
            now = self._clock()
            held_s = now - self._pressed.get(key, -math.inf)
            self._pressed[key] = now
            step = self._speed * (held_s if held_s <= REPEAT_S else PRESS_S)
            right, up, forward = _MOVES[key]
            ahead, aside = self._level(self._target.yaw)
            self._shift(step * (right * aside + up * self._up + forward * ahead))
        elif key in _FASTER or key in _SLOWER:
            factor = SPEED_STEP if key in _FASTER else 1 / SPEED_STEP
            low, high = self._first_speed / SPEED_RANGE, self._first_speed * SPEED_RANGE
            self._speed = min(max(self._speed * factor, low), high)
        elif key == "h":
            # Home as seen from here: the shorter way round.
            turns = round((self._shown.yaw - self._home.yaw) / (2 * math.pi))
            self._target = self._home._replace(yaw=self._home.yaw + turns * 2 * math.pi)
        else:
            return False
        return True

    def _drag(self, button: str, dx: float, dy: float) -> bool:
        view, fov_y = self._target, math.radians(self._lens.fov_y_deg)
        if button == "left":
            pitch = min(max(view.pitch + dy * fov_y, -MAX_PITCH), MAX_PITCH)
            self._target = view._replace(yaw=view.yaw - dx * fov_y, pitch=pitch)
        elif button == "right":
            right, down, _ = facing(self._forward(view), self._up)
            height = 2 * self._distance() * math.tan(fov_y / 2)  # of the picture, where one looks
            self._shift(-height * (dx * right + dy * down))
        elif button == "middle":
            self._shift(-dy * self._distance() * self._forward(view))
        else:
            return False
        return True

    def _distance(self) -> float:
        """How far away the thing is that people mean: the scene's middle, or a little when one is inside of it."""
        return max(float(np.linalg.norm(self._target.eye - self._center)), 0.1 * self._extent)

    def _level(self, yaw: float) -> Any:
        """Unit vectors ahead and to the right, both level."""
        ahead = math.cos(yaw) * self._ahead + math.sin(yaw) * self._aside
        return ahead, np.cross(ahead, self._up)

    def _forward(self, view: _View) -> np.ndarray:
        return math.cos(view.pitch) * self._level(view.yaw)[0] + math.sin(view.pitch) * self._up

    def _shift(self, by: np.ndarray) -> None:
        eye = np.clip(self._target.eye + by, -MAX_COORDINATE, MAX_COORDINATE)
        self._target = self._target._replace(eye=eye)


def _small(value: float) -> float:
    """A device that goes mad must not throw the camera out of the world."""
    return min(max(value, -10.0), 10.0)
