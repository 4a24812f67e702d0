"""Camera paths: a time in seconds -> a camera. All arguments are plain numbers and dicts.

Adding a kind of path is one ``PosePath`` subclass here (or in a file of its own, where it needs more than a clock), one
line in ``build_path``, and one model in ``edgegs/config/camera_paths.py``.
"""

from __future__ import annotations

import abc
import math
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np

from edgegs.camera.cameras_json import load_cameras_json
from edgegs.camera.inputs import InputEvent
from edgegs.camera.pose import (
    FAR,
    NEAR,
    Camera,
    facing,
    intrinsics,
    look_at,
    quaternion,
    rotation_matrix,
    view_matrix,
)
from edgegs.camera.spline import Spline
from edgegs.errors import UsageError

Y_DOWN_UP = (0.0, -1.0, 0.0)  # a 3DGS scene's y axis points down
ORBIT_ELEVATION_DEG = 15.0  # how far above the centre an orbit runs by default, seen from the centre
ORBIT_PERIOD_S = 20.0
KEYFRAMES_PERIOD_S = 20.0

Bounds = Tuple[Union[Sequence[float], np.ndarray], float]


class PosePath(abc.ABC):
    """A camera that moves.

    The kinds in this file are stateless: the same time gives the same camera, in any order, from any thread. Those that
    the world moves (network, window) are opened before and closed after use.

    Attributes:
        period_s: seconds after which the path repeats, or its length where it ends; None where that has no meaning.
    """

    period_s: Optional[float] = None

    @abc.abstractmethod
    def camera_at(self, t_s: float) -> Camera:
        """The camera ``t_s`` seconds after the start. Any finite time is valid. Never waits."""

    def open(self) -> None:  # noqa: B027 (a path of a file has nothing to open)
        """Begin to listen. Raises ConfigError for what cannot heal; other faults are retried and told in ``status``."""

    def close(self) -> None:  # noqa: B027
        """Let go of everything; may be called twice."""

    def handle(self, event: InputEvent) -> bool:
        """Take a key, drag or wheel of a window; returns whether it meant anything to this camera."""
        return False

    def status(self) -> Dict[str, Any]:
        """Figures for ``/status``; empty where there are none."""
        return {}


class Lens:
    """What a path's cameras have in common: size in pixels, vertical field of view, near and far planes."""

    def __init__(self, width: int, height: int, fov_y_deg: float, near: float, far: float) -> None:
        self.width, self.height, self.fov_y_deg, self.near, self.far = width, height, fov_y_deg, near, far
        self.K = intrinsics(width, height, fov_y_deg)

    def camera(self, viewmat: np.ndarray, fov_y_deg: Optional[float] = None) -> Camera:
        K = self.K if fov_y_deg is None else intrinsics(self.width, self.height, fov_y_deg)
        return Camera(viewmat, K, self.width, self.height, self.near, self.far)


class Fixed(PosePath):
    """A camera that stands still."""

    def __init__(self, lens: Lens, eye: Sequence[float], target: Sequence[float], up: Sequence[float]) -> None:
        self._camera = lens.camera(look_at(eye, target, up))

    def camera_at(self, t_s: float) -> Camera:
        return self._camera


class Orbit(PosePath):
    """A circle at constant speed, anticlockwise when seen from above (from where ``up`` points).

    Args:
        center: middle of the circle, before ``height`` lifts it along ``up``.
        radius: of the circle, scene units, more than 0.
        height: of the circle above ``center``, scene units.
        up: upward direction, any length but zero.
        start_deg: where on the circle time 0 is. 0 is the side of -z (of -y where ``up`` is the z axis).
        look_down_deg: None to look at ``center``; else how far below the horizon the camera looks, inwards.
    """

    def __init__(
        self,
        lens: Lens,
        center: Sequence[float],
        radius: float,
        height: float,
        up: Sequence[float] = Y_DOWN_UP,
        period_s: float = ORBIT_PERIOD_S,
        start_deg: float = 0.0,
        look_down_deg: Optional[float] = None,
    ) -> None:
        self._lens = lens
        self._center = np.asarray(center, dtype=np.float64)
        self._up = np.asarray(up, dtype=np.float64)
        norm = np.linalg.norm(self._up)
        if not radius > 0 or not period_s > 0 or not norm > 0:
            raise UsageError("camera: an orbit needs a radius, a period and an upward direction that are not 0")
        self._up = self._up / norm
        self._radius, self._height, self.period_s = radius, height, period_s
        self._start, self._look_down_deg = math.radians(start_deg), look_down_deg
        # The horizontal part of -z; where z is vertical, of -y.
        reference = np.array([0.0, 0.0, -1.0])
        if abs(reference @ self._up) > 0.999:
            reference = np.array([0.0, -1.0, 0.0])
        reference = reference - (reference @ self._up) * self._up
        self._first = reference / np.linalg.norm(reference)
        self._second = np.cross(self._up, self._first)

    def camera_at(self, t_s: float) -> Camera:
        assert self.period_s is not None
        angle = self._start + 2 * math.pi * math.fmod(t_s, self.period_s) / self.period_s
        outward = math.cos(angle) * self._first + math.sin(angle) * self._second
        eye = self._center + self._radius * outward + self._height * self._up
        target = self._center
        if self._look_down_deg is not None:
            down = math.radians(self._look_down_deg)
            target = eye - (math.cos(down) * outward + math.sin(down) * self._up) * self._radius
        return self._lens.camera(look_at(eye, target, self._up))


class Keyframes(PosePath):
    """A smooth flight through poses: eye and target follow splines, and the one looks at the other.

    Args:
        keys: mappings with ``eye``, ``target``, and optionally ``time_s`` (in all or none; from 0, rising)
            and ``fov_y_deg`` (else the lens's).
        loop: whether the last key leads back to the first; else the camera stays at the last.
        period_s: of the loop, or, without times, of the whole path. None: 20 s without times; with them, the
            way back takes as long as the legs do on average.
    """

    def __init__(
        self,
        lens: Lens,
        keys: Sequence[Mapping[str, Any]],
        loop: bool = True,
        period_s: Optional[float] = None,
        up: Sequence[float] = Y_DOWN_UP,
    ) -> None:
        if len(keys) < 2:
            raise UsageError("camera: a path needs at least 2 keys")
        self._lens = lens
        self._up = np.asarray(up, dtype=np.float64)
        times, self.period_s = _key_times([key.get("time_s") for key in keys], loop, period_s)
        eyes = np.array([key["eye"] for key in keys], dtype=np.float64)
        targets = np.array([key["target"] for key in keys], dtype=np.float64)
        forwards = np.array([look_at(eye, target, up)[2, :3] for eye, target in zip(eyes, targets)])
        fovs = [key.get("fov_y_deg") or lens.fov_y_deg for key in keys]
        wrap = self.period_s if loop else None
        self._eye, self._target = Spline(times, eyes, wrap), Spline(times, targets, wrap)
        self._forward = Spline(times, forwards, wrap)
        self._fov = Spline(times, np.array(fovs)[:, None], wrap) if len(set(fovs)) > 1 else None
        self._fov_range = (min(fovs), max(fovs))
        self._fov_y_deg = fovs[0]
        # Nearer than this to its target, an eye on its way looks where its keys look: no sudden turn about.
        self._too_near = 1e-3 * float(np.linalg.norm(targets - eyes, axis=1).min())

    def camera_at(self, t_s: float) -> Camera:
        eye = self._eye.at(t_s)
        forward = self._target.at(t_s) - eye
        if np.linalg.norm(forward) < self._too_near:
            forward = self._forward.at(t_s)
            if np.linalg.norm(forward) < 1e-9:
                forward = np.array([0.0, 0.0, 1.0])
        viewmat = view_matrix(eye, facing(forward / np.linalg.norm(forward), self._up))
        fov_y_deg = self._fov_y_deg
        if self._fov is not None:  # a spline may swing past its keys; an angle must not
            fov_y_deg = float(np.clip(self._fov.at(t_s)[0], *self._fov_range))
        return self._lens.camera(viewmat, fov_y_deg)


def _key_times(
    given: Sequence[Optional[float]], loop: bool, period_s: Optional[float]
) -> Tuple[Union[np.ndarray, List[float]], float]:
    """Times of the keys, and the path's period."""
    n = len(given)
    times = [time for time in given if time is not None]
    if not times:
        period_s = KEYFRAMES_PERIOD_S if period_s is None else period_s
        return np.arange(n) * (period_s / (n if loop else n - 1)), period_s
    if len(times) != n or times[0] != 0 or any(b <= a for a, b in zip(times, times[1:])):
        raise UsageError("camera: give every key a time_s or none; the first is 0, and they rise")
    if not loop:
        return times, times[-1]
    if period_s is None:
        period_s = times[-1] * n / (n - 1)
    if period_s <= times[-1]:
        raise UsageError("camera: period_s must be more than the last key's time_s")
    return times, period_s


class Views(PosePath):
    """From view to view, such as those of a training.

    Args:
        views: at least one.
        view_s: seconds from one view to the next.
        loop: whether the last view leads back to the first; else the camera stays there.
        smooth: whether the camera flies between the views, or jumps from one to the next after ``view_s``.
    """

    def __init__(self, views: Sequence[Camera], view_s: float = 2.0, loop: bool = True, smooth: bool = True) -> None:
        if not views or not view_s > 0:
            raise UsageError("camera: a path needs at least one view, and time for it")
        if len({(view.width, view.height) for view in views}) > 1:
            raise UsageError("camera: the views of a path must have one size")
        self._views, self._view_s, self._loop = list(views), view_s, loop
        n = len(views)
        self.period_s = n * view_s
        self._smooth = smooth and n > 1
        if not self._smooth:
            return
        if not loop:
            self.period_s -= view_s
        times, wrap = np.arange(n) * view_s, self.period_s if loop else None
        self._eye = Spline(times, np.array([view.eye for view in views]), wrap)
        turns = np.array([quaternion(view.viewmat[:3, :3]) for view in views])
        self._turn = Spline(times, turns, wrap, signless=True)
        lenses = np.array([view.K.ravel() for view in views])
        self._K, self._K_range = Spline(times, lenses, wrap), (lenses.min(axis=0), lenses.max(axis=0))

    def camera_at(self, t_s: float) -> Camera:
        n = len(self._views)
        nearest = math.floor(max(t_s, 0.0) / self._view_s) if not self._loop else math.floor(t_s / self._view_s)
        view = self._views[nearest % n if self._loop else min(nearest, n - 1)]
        if not self._smooth:
            return view
        viewmat = view_matrix(self._eye.at(t_s), rotation_matrix(self._turn.at(t_s)))
        K = np.clip(self._K.at(t_s), *self._K_range).reshape(3, 3)
        return Camera(viewmat, K, view.width, view.height, view.near, view.far)


def build_path(
    path: Optional[Mapping[str, Any]],
    width: int,
    height: int,
    fov_y_deg: float = 60.0,
    near: float = NEAR,
    far: float = FAR,
    scene_bounds: Optional[Bounds] = None,
) -> PosePath:
    """The path that a configuration describes.

    Args:
        path: ``kind`` (orbit, fixed, keyframes, cameras_json, udp, mqtt, interactive) and that kind's keys, as in the
            configuration's ``camera.path``; None for an orbit around what the scene's bounds show.
        width, height: of the picture, pixels.
        fov_y_deg: vertical field of view; views from a cameras.json keep their own.
        near, far: of every camera.
        scene_bounds: ``Scene.bounds()``: centre (3,) and radius, for an orbit or a home that leaves them open.

    Raises:
        UsageError: an impossible path.
        ConfigError: a path that cannot work here, such as mqtt without its package.
        InputError, AccessError, SceneError: a cameras.json is missing, unreadable or wrong.
    """
    settings: Dict[str, Any] = dict(path) if path is not None else {"kind": "orbit"}
    kind = settings.pop("kind", None)
    lens = Lens(width, height, fov_y_deg, near, far)
    if kind == "orbit":
        return _orbit(lens, settings, scene_bounds)
    if kind == "fixed":
        return Fixed(lens, settings["eye"], settings["target"], settings.get("up", Y_DOWN_UP))
    if kind == "keyframes":
        return Keyframes(lens, **settings)
    if kind == "cameras_json":
        file = settings.pop("path")
        views = [view.with_size(width, height).with_planes(near, far) for view in load_cameras_json(file)]
        return Views(views, **settings)
    if kind in ("udp", "mqtt", "interactive"):
        return _live(kind, lens, settings, scene_bounds)
    kinds = "orbit, fixed, keyframes, cameras_json, udp, mqtt, interactive"
    raise UsageError(f"camera: unknown kind of path {kind!r}; {kinds}")


def _live(kind: str, lens: Lens, settings: Dict[str, Any], bounds: Optional[Bounds]) -> PosePath:
    """A camera that the world moves. Its home, where it leaves that open, is where an orbit would begin."""
    # Imported here: those files need this one.
    from edgegs.camera.interactive import Interactive
    from edgegs.camera.mqtt import Mqtt
    from edgegs.camera.udp import Udp

    home, up = settings.pop("home", None), settings.setdefault("up", Y_DOWN_UP)
    start = Fixed(lens, home["eye"], home["target"], up) if home is not None else _orbit(lens, {"up": up}, bounds)
    settings.update(lens=lens, home=start.camera_at(0.0))
    if kind == "interactive":
        return Interactive(scene_bounds=bounds, **settings)
    return Mqtt(**settings) if kind == "mqtt" else Udp(**settings)


def _orbit(lens: Lens, settings: Mapping[str, Any], bounds: Optional[Bounds]) -> Orbit:
    """An orbit with what it leaves open (missing or None) taken from the scene: all of it is in view."""
    given = {key: value for key, value in settings.items() if value is not None}
    center, extent = bounds if bounds is not None else ((0.0, 0.0, 0.0), 1.0)
    if not (math.isfinite(extent) and extent > 0):
        extent = 1.0  # a single splat has no extent
    elevation = math.radians(ORBIT_ELEVATION_DEG)
    half_fov = math.atan(math.tan(math.radians(lens.fov_y_deg) / 2) * min(1.0, lens.width / lens.height))
    distance = max(extent / math.sin(half_fov), extent + 2 * lens.near)
    given.setdefault("center", center)
    given.setdefault("radius", distance * math.cos(elevation))
    given.setdefault("height", given["radius"] * math.tan(elevation))
    return Orbit(lens, **given)
