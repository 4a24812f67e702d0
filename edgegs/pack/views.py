"""From where a scene is judged: views to score its splats by, and others to measure the outcome on.

Two layouts. An object, or a town from the air, is looked at from ``outside``: an orbit at several heights and
distances. A room is looked at from ``inside``: free places between its walls, several directions from each. Which of
the two a scene is, is told from how much of what surrounds its free places is blocked (``layout_of``). The views of a
training's cameras.json know better than either.

Every sequence is fixed: the same scene and size give the same cameras. Scored and held-out views are never the same.
"""

from __future__ import annotations

import math
import os
from typing import List, Optional, Tuple, Union

import numpy as np

from edgegs.camera import NEAR, Camera, intrinsics, load_cameras_json, look_at
from edgegs.errors import UsageError
from edgegs.pack.occupancy import Occupancy
from edgegs.scene.model import BOUNDS_PERCENTILES, Scene

LAYOUTS = ("outside", "inside")
#: Vertical fields of view, degrees: the one that edgegs draws with by default, and a wider one to see a room.
FOV_DEG = {"outside": 60.0, "inside": 75.0}
#: Inside is where this share of the free places has more than half of its surroundings blocked. Measured: 0.0 to 0.42
#: for objects and towns, 0.79 to 0.95 for rooms.
ENCLOSED_SHARE = 0.6
N_PLACES = 512
N_DIRECTIONS = 192
#: Distances of an orbit, in those at which the scene just fits the picture; the held-out ones are not among the first.
DISTANCES = {False: (1.0, 0.8, 0.65), True: (0.9, 0.72)}
#: Elevations of an orbit, degrees. Nobody looks at a flat scene (height under this part of its width) from below.
ELEVATIONS_DEG = (-20.0, 70.0)
FLAT_ELEVATIONS_DEG = (5.0, 75.0)
FLAT = 0.5
#: Directions from a place inside: a quarter turn from one to the next, and these elevations in turn.
INSIDE_TURNS = 4
INSIDE_ELEVATIONS_DEG = (-20.0, 5.0, -5.0, 15.0)
#: Of 3DGS's own evaluation: every eighth photograph is held out.
HOLD_OUT_EVERY = 8
_GOLDEN_ANGLE = math.pi * (3 - math.sqrt(5))


def layout_of(scene: Scene) -> str:
    """"inside" for a scene that surrounds its viewer (a room), "outside" for one to be looked at (an object, a town).

    From free places spread evenly over the scene's middle, rays go in all directions: in a room most of them end at
    something, around an object most leave. A closed, hollow object is taken for a room.
    """
    return _Places(scene).layout


def scoring_views(
    scene: Scene, n: int, width: int, height: int, layout: Optional[str] = None
) -> List[Camera]:
    """n cameras of width x height pixels that together see what can be seen of a scene.

    Args:
        layout: "outside" or "inside"; None: ``layout_of`` tells.
    """
    return _views(scene, n, width, height, layout, False)


def held_out_views(
    scene: Scene, n: int, width: int, height: int, layout: Optional[str] = None
) -> List[Camera]:
    """n cameras like those of ``scoring_views``, none of them where one of those is."""
    return _views(scene, n, width, height, layout, True)


def training_views(
    path: Union[str, os.PathLike[str]], max_side: int = 640, max_views: Optional[int] = None
) -> Tuple[List[Camera], List[Camera]]:
    """The views of a training's cameras.json: those to score by, and every eighth, held out.

    Args:
        max_side: larger pictures are scaled down, so that neither side is longer. Pixels.
        max_views: take at most so many, evenly from the whole file.

    Returns:
        Scored and held-out cameras; a file with one view has it in both.

    Raises:
        InputError, AccessError, SceneError: as ``load_cameras_json``.
    """
    views = [fitted(view, max_side) for view in load_cameras_json(path)]
    if max_views is not None and len(views) > max_views:
        views = [views[index] for index in np.arange(max_views) * len(views) // max_views]
    held_out = views[::HOLD_OUT_EVERY]
    scored = [view for index, view in enumerate(views) if index % HOLD_OUT_EVERY]
    return scored or held_out, held_out


def fitted(view: Camera, max_side: int) -> Camera:
    """The same view, scaled down where a side is longer than ``max_side`` pixels."""
    scale = max_side / max(view.width, view.height)
    if scale >= 1:
        return view
    return view.with_size(max(1, round(view.width * scale)), max(1, round(view.height * scale)))


def _views(scene: Scene, n: int, width: int, height: int, layout: Optional[str], is_held_out: bool) -> List[Camera]:
    if layout is not None and layout not in LAYOUTS:
        raise UsageError(f"no layout {layout!r} of views (there are: {', '.join(LAYOUTS)})")
    if n < 1 or scene.n_splats == 0:
        return []
    places = _Places(scene) if layout != "outside" else None
    if places is not None and (layout or places.layout) == "inside":
        return _inside(scene, places, n, width, height, is_held_out)
    return _outside(scene, n, width, height, is_held_out)


def _horizon(scene: Scene) -> np.ndarray:
    """(3, 3): unit vectors, rows east, north and up, of the scene's frame."""
    up = np.asarray(scene.up, np.float64)
    north = np.array([0.0, 0.0, 1.0]) if abs(up[2]) < 0.5 else np.array([0.0, 1.0, 0.0])
    return np.stack([np.cross(north, up), north, up])


def _outside(scene: Scene, n: int, width: int, height: int, is_held_out: bool) -> List[Camera]:
    """A spiral of constant density over a band of the sphere around the scene, nearer and farther in turn."""
    center, radius = scene.bounds()
    fov = FOV_DEG["outside"]
    half_fov = math.atan(math.tan(math.radians(fov) / 2) * min(1.0, width / height))
    low, high = np.sin(np.radians(FLAT_ELEVATIONS_DEG if _is_flat(scene) else ELEVATIONS_DEG))
    horizon = _horizon(scene)
    factors, K = DISTANCES[is_held_out], intrinsics(width, height, fov)
    cameras = []
    for index in range(n):
        rise = low + (high - low) * (index + 0.5) / n
        azimuth = (index + (0.5 if is_held_out else 0.0)) * _GOLDEN_ANGLE
        level = math.sqrt(1 - rise * rise)
        outward = np.array([math.cos(azimuth) * level, math.sin(azimuth) * level, rise]) @ horizon
        distance = max(factors[index % len(factors)] * radius / math.sin(half_fov), radius + 2 * NEAR)
        cameras.append(Camera(look_at(center + distance * outward, center, horizon[2]), K, width, height))
    return cameras


def _is_flat(scene: Scene) -> bool:
    step = max(1, scene.n_splats >> 17)
    low, high = np.percentile(scene.means[::step] @ _horizon(scene).T.astype(np.float32), BOUNDS_PERCENTILES, axis=0)
    return bool(high[2] - low[2] < FLAT * max(high[:2] - low[:2]))


def _inside(
    scene: Scene, places: _Places, n: int, width: int, height: int, is_held_out: bool
) -> List[Camera]:
    """Some directions from each of some places; scored and held-out views share no place."""
    fov, horizon = FOV_DEG["inside"], _horizon(scene)
    eyes = places.choose(-(-n // INSIDE_TURNS) if not is_held_out else n, is_held_out)
    K = intrinsics(width, height, fov)
    cameras = []
    for index in range(n):
        place, turn = index % len(eyes), index // len(eyes)
        azimuth = place * _GOLDEN_ANGLE + 2 * math.pi * turn / INSIDE_TURNS
        elevation = math.radians(INSIDE_ELEVATIONS_DEG[(place + turn) % len(INSIDE_ELEVATIONS_DEG)])
        level = math.cos(elevation)
        forward = np.array([math.cos(azimuth) * level, math.sin(azimuth) * level, math.sin(elevation)]) @ horizon
        eye = eyes[place]
        cameras.append(Camera(look_at(eye, eye + forward * places.reach, horizon[2]), K, width, height))
    return cameras


class _Places:
    """Where in a scene a viewer could stand, and how enclosed each of these places is."""

    def __init__(self, scene: Scene) -> None:
        occupancy = Occupancy(scene)
        size = occupancy.high - occupancy.low
        self._low, self._size = occupancy.low, size
        self.reach = float(np.linalg.norm(size))
        self._points = occupancy.low + size * (0.1 + 0.8 * _halton(N_PLACES))
        self._points = self._points[occupancy.is_free(self._points)]
        directions = _sphere(N_DIRECTIONS)
        blocked, distances = occupancy.look(self._points, directions)
        self._blocked = blocked.mean(axis=1)
        # as good as the nearest thing, but for one direction in ten
        self._clearance = np.percentile(np.minimum(distances, self.reach), 10, axis=1)
        self._min_clearance = max(3 * occupancy.cell, 2 * NEAR)

    @property
    def layout(self) -> str:
        if not len(self._points):
            return "outside"
        return "inside" if float(np.mean(self._blocked > 0.5)) >= ENCLOSED_SHARE else "outside"

    def choose(self, n: int, is_held_out: bool) -> np.ndarray:
        """(m, 3), m from 1 to n: enclosed places away from matter, every second one for held-out views."""
        points = self._points
        if not len(points):  # filled to the brim
            points = self._low + self._size * (0.1 + 0.8 * _halton(N_PLACES))
        else:
            for share in (1.0, 0.5, 0.25, 0.0):  # a narrow scene has no places as good as are hoped for
                good = (self._blocked > 0.5 * min(1.0, 2 * share)) & (self._clearance >= share * self._min_clearance)
                if good.sum() >= 2 * n or share == 0.0:
                    points = points[good] if good.any() else points
                    break
        mine = points[1::2] if is_held_out else points[::2]
        return (mine if len(mine) else points)[:n]


def _halton(n: int) -> np.ndarray:
    """(n, 3) points that fill the unit cube evenly, whatever n is."""
    points = np.zeros((n, 3))
    for axis, base in enumerate((2, 3, 5)):
        digits, weight = np.arange(1, n + 1), 1.0
        while digits.any():
            weight /= base
            points[:, axis] += weight * (digits % base)
            digits //= base
    return points


def _sphere(n: int) -> np.ndarray:
    """(n, 3) unit vectors, evenly over the sphere."""
    index = np.arange(n) + 0.5
    z = 1 - 2 * index / n
    level, azimuth = np.sqrt(1 - z * z), index * _GOLDEN_ANGLE
    return np.stack([level * np.cos(azimuth), level * np.sin(azimuth), z], axis=1)
