"""Light for the synthetic room: a small radiosity solver over the surfaces' own grids.

From every grid vertex some rays are shot into its hemisphere. What they meet is remembered, so that one set of
rays gives the sky's light, contact shadows, three bounces of colour bleeding, and, projected to spherical
harmonics, the blurred mirror image that glossy surfaces show. The cost does not depend on the number of splats.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, List, NamedTuple, Sequence, Tuple

import numpy as np

from edgegs.scene.synth_math import sh_basis
from edgegs.scene.synth_surfaces import Surface, unit

_N_RAYS = 64
_N_BOUNCES = 3
_VOXEL = 0.12
_OFF_SURFACE = 0.012
_PAINT_BLUR = 0.1  # a vertex stands for a patch of about this size
_CHUNK = 1 << 14
#: Soften the SH projection's ringing, per degree.
_WINDOW = np.repeat([1.0, 0.92, 0.72, 0.45], [1, 3, 5, 7])[:, None]


class Lamp(NamedTuple):
    """A small glowing thing: light leaves evenly from ``points`` (k, 3), ``intensity`` (3,) in all."""

    points: np.ndarray
    intensity: np.ndarray


@dataclass
class Space:
    """What light meets: the room's walls, boxes and ellipsoids in it, panes in its +y wall, sun, sky, lamps."""

    low: np.ndarray
    high: np.ndarray
    boxes: List[Tuple[np.ndarray, np.ndarray]]
    ellipsoids: List[Tuple[np.ndarray, np.ndarray]]
    panes: List[Tuple[float, float, float, float]]  # x0, x1, z0, z1
    pane_y: float
    sun: np.ndarray  # unit, towards the sun
    sun_irradiance: np.ndarray
    sky: Callable[[np.ndarray], np.ndarray]  # radiance (n, 3) of directions (n, 3)
    lamps: List[Lamp]


class Baked(NamedTuple):
    """Per surface and grid vertex."""

    irradiance: np.ndarray  # (nu * nv, 3), all but the sun's own
    mirror: np.ndarray  # (nu * nv, 16, 3) SH of the mirrored radiance, by the direction from the camera


def bake(surfaces: Sequence[Surface], space: Space) -> List[Baked]:
    """Light every grid vertex of the surfaces that do not emit. Deterministic."""
    rng = np.random.default_rng(1)
    sizes = [surface.points[..., 0].size for surface in surfaces]
    cuts = np.cumsum(sizes)[:-1]
    points = np.concatenate([s.points.reshape(-1, 3) for s in surfaces])
    normals = np.concatenate([s.normals.reshape(-1, 3) for s in surfaces])
    albedo = np.concatenate([s.paint(s.points.reshape(-1, 3), s.uv.reshape(-1, 2), _PAINT_BLUR) for s in surfaces])
    emits = np.repeat([s.emits for s in surfaces], sizes)
    through = np.repeat([s.through for s in surfaces], sizes)

    direct = lamp_light(points, normals, space)
    sun = sun_light(points, normals, space, through)
    directions, meets, sky = _gather(points, normals, space, rng)
    behind = np.flatnonzero(through > 0)
    if len(behind):
        back = _gather(points[behind], -normals[behind], space, rng)[2].mean(axis=1)
        direct[behind] += np.pi * through[behind, None] * back
        direct[behind] += through[behind, None] * lamp_light(points[behind], -normals[behind], space)

    irradiance = direct + np.pi * sky.mean(axis=1)
    seen = sky
    for _ in range(_N_BOUNCES):
        radiosity = np.where(emits[:, None], albedo, albedo / np.pi * (irradiance + sun))
        radiosity = np.concatenate([radiosity, radiosity.mean(axis=0, keepdims=True)])
        seen = sky + np.where(meets[:, :, None] >= -1, radiosity[meets], 0.0)
        irradiance = direct + np.pi * seen.mean(axis=1)
    mirror = _mirror(normals, directions, seen)
    baked = []
    for surface, e, m in zip(surfaces, np.split(irradiance, cuts), np.split(mirror, cuts)):
        shape = surface.points.shape[:2]
        e = _smooth(e.reshape(*shape, 3)).reshape(-1, 3)
        m = _smooth(m.reshape(*shape, 48)).reshape(-1, 16, 3)
        baked.append(Baked(e, m))
    return baked


def lamp_light(points: np.ndarray, normals: np.ndarray, space: Space) -> np.ndarray:
    """(n, 3) irradiance that arrives straight from the lamps."""
    total = np.zeros((len(points), 3))
    origins = points + _OFF_SURFACE * normals
    for lamp in space.lamps:
        for place in lamp.points:
            to = place - origins
            distance2 = np.maximum((to * to).sum(axis=1), 0.02)
            cosine = np.maximum((to * normals).sum(axis=1), 0) / np.sqrt(distance2)
            lit = np.flatnonzero(cosine > 0)
            clear = ~_blocked(origins[lit], to[lit], 1.0, space)
            strength = np.zeros(len(points))
            strength[lit] = cosine[lit] / distance2[lit] * clear
            total += strength[:, None] * (lamp.intensity / len(lamp.points))
    return total


def sun_light(points: np.ndarray, normals: np.ndarray, space: Space, through: np.ndarray) -> np.ndarray:
    """(n, 3) irradiance that arrives straight from the sun, through the panes and past the furniture."""
    slope = space.sun
    cosine = normals @ slope
    cosine = np.where(cosine < 0, -through * cosine, cosine)
    reach = (space.pane_y - points[:, 1]) / slope[1]
    x, z = points[:, 0] + reach * slope[0], points[:, 2] + reach * slope[2]
    # The sun is half a degree wide, and the panes' frames are not razors: a soft edge.
    soft = 0.012 + 0.006 * np.abs(reach)
    open_share = np.zeros(len(points))
    for x0, x1, z0, z1 in space.panes:
        inside = np.minimum(np.minimum(x - x0, x1 - x), np.minimum(z - z0, z1 - z))
        open_share += np.clip(0.5 + inside / (2 * soft), 0, 1)
    lit = np.flatnonzero((open_share > 0) & (cosine > 0))
    origins = points[lit] + _OFF_SURFACE * np.where(normals[lit] @ slope > 0, 1, -1)[:, None] * normals[lit]
    clear = ~_blocked(origins, np.broadcast_to(slope, origins.shape), np.inf, space)
    strength = np.zeros(len(points))
    strength[lit] = np.minimum(open_share[lit], 1) * cosine[lit] * clear
    return strength[:, None] * space.sun_irradiance


def _gather(
    points: np.ndarray, normals: np.ndarray, space: Space, rng: np.random.Generator
) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cosine-distributed rays: directions (n, r, 3), the vertex each meets (n, r), and its sky light (n, r, 3).

    A meeting is an index into all vertices, -1 where a surface was met that has no vertex near (take the
    mean), -2 for the sky.
    """
    n, side = len(points), int(np.sqrt(_N_RAYS))
    lookup = _VertexMap(points, normals, space)
    directions = np.empty((n, _N_RAYS, 3), np.float32)
    meets = np.empty((n, _N_RAYS), np.int32)
    sky = np.zeros((n, _N_RAYS, 3), np.float32)
    inside_low, inside_high = space.low + _OFF_SURFACE, space.high - _OFF_SURFACE
    origins = np.clip(points + _OFF_SURFACE * normals, inside_low, inside_high)
    i, j = np.divmod(np.arange(_N_RAYS), side)
    step = max(1, _CHUNK // _N_RAYS)
    for start in range(0, n, step):
        part = slice(start, min(n, start + step))
        m = part.stop - part.start
        shift = rng.random((2, m, _N_RAYS))
        radius = np.sqrt((i + shift[0]) / side)
        phi = 2 * np.pi * (j + shift[1]) / side
        w = normals[part]
        u = unit(np.cross(w, np.where(np.abs(w[:, :1]) < 0.8, [1.0, 0, 0], [0, 1.0, 0])))
        v = np.cross(w, u)
        rays = (radius * np.cos(phi))[..., None] * u[:, None] + (radius * np.sin(phi))[..., None] * v[:, None]
        rays += np.sqrt(np.maximum(0, 1 - radius * radius))[..., None] * w[:, None]
        flat = rays.reshape(-1, 3)
        hit, facing, outside = _trace(np.repeat(origins[part], _N_RAYS, axis=0), flat, space)
        found = np.where(outside, -2, lookup.find(hit, facing))
        directions[part] = rays
        meets[part] = found.reshape(m, _N_RAYS)
        sky[part] = np.where(outside[:, None], space.sky(flat), 0.0).reshape(m, _N_RAYS, 3)
    return directions, meets, sky


def _mirror(normals: np.ndarray, directions: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """(n, 16, 3) SH of what a mirror would show, as a function of the direction from the camera."""
    mirror = np.empty((len(normals), 16, 3))
    step = max(1, _CHUNK // directions.shape[1])
    for start in range(0, len(normals), step):
        part = slice(start, start + step)
        w, d = normals[part, None], directions[part].astype(np.float64)
        cosine = (w * d).sum(axis=2, keepdims=True)
        # Rays come with density cosine / pi; weigh them back to an even one. The camera's ray is d with its
        # normal part turned round; the half space behind the surface gets the same values (it is never
        # looked at from there), for an even function rings less.
        weights = np.pi / np.maximum(cosine, 0.12) / d.shape[1]
        fresnel = 1 + 4 * (1 - np.clip(cosine, 0, 1)) ** 4
        light = seen[part] * weights * fresnel
        light = np.minimum(light, 8 * np.pi / d.shape[1])
        basis = sh_basis(d.reshape(-1, 3)) + sh_basis((d - 2 * cosine * w).reshape(-1, 3))
        basis = basis.reshape(*d.shape[:2], 16)
        mirror[part] = np.einsum("nrk,nrc->nkc", basis, light) * _WINDOW
    return mirror


class _VertexMap:
    """Finds a vertex near a point that faces the same way, through a coarse voxel grid."""

    def __init__(self, points: np.ndarray, normals: np.ndarray, space: Space) -> None:
        self._low = space.low - _VOXEL
        self._shape = np.ceil((space.high - space.low) / _VOXEL).astype(int) + 2
        table = np.full((*self._shape, 6), -1, np.int32)
        facing = 2 * np.argmax(np.abs(normals), axis=1)
        facing += normals[np.arange(len(normals)), facing // 2] > 0
        key = (*self._cell(points).T, facing)
        table[key] = np.arange(len(points))
        for _ in range(3):  # fill what lies between vertices from the neighbours
            for axis in range(3):
                for shift in (1, -1):
                    moved = np.roll(table, shift, axis=axis)
                    table = np.where(table < 0, moved, table)
        self._table = table

    def _cell(self, points: np.ndarray) -> np.ndarray:
        return np.clip(((points - self._low) / _VOXEL).astype(int), 0, self._shape - 1)

    def find(self, points: np.ndarray, facing: np.ndarray) -> np.ndarray:
        key = (*self._cell(points).T, facing)
        return self._table[key]


def _trace(origins: np.ndarray, directions: np.ndarray, space: Space) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Nearest meeting of each ray: point (n, 3), facing (n,) 0..5, and whether it leaves through a pane."""
    rays = _Rays(origins, directions)
    o, d, row = rays.origins, rays.directions, np.arange(len(origins))
    ahead = np.where(d > 0, space.high[:, None] - o, space.low[:, None] - o) * rays.inverse
    axis = np.argmin(ahead, axis=0)
    t = ahead[axis, row]
    facing = 2 * axis + (d[axis, row] < 0)
    x, _, z = o + t * d
    outside = np.zeros(len(origins), bool)
    for x0, x1, z0, z1 in space.panes:
        outside |= (x > x0) & (x < x1) & (z > z0) & (z < z1)
    outside &= (axis == 1) & (d[1] > 0)
    for low, high in space.boxes:
        enter, leave = rays.slabs(low, high)
        hit = np.flatnonzero((enter < leave) & (enter > 0) & (enter < t))
        t[hit], outside[hit] = enter[hit], False
        near = np.where(d[:, hit] > 0, low[:, None] - o[:, hit], high[:, None] - o[:, hit]) * rays.inverse[:, hit]
        side = np.argmax(near, axis=0)
        facing[hit] = 2 * side + (d[side, hit] < 0)
    for center, radii in space.ellipsoids:
        enter = rays.sphere(center, radii)
        hit = np.flatnonzero((enter > 0) & (enter < t))
        t[hit], outside[hit] = enter[hit], False
        normal = (o[:, hit] + enter[hit] * d[:, hit] - center[:, None]) / (radii * radii)[:, None]
        side = np.argmax(np.abs(normal), axis=0)
        facing[hit] = 2 * side + (normal[side, np.arange(len(hit))] > 0)
    return (o + t * d).T, facing, outside


def _blocked(origins: np.ndarray, directions: np.ndarray, reach: float, space: Space) -> np.ndarray:
    """(n,) bool: something stands within ``reach`` lengths of ``directions``."""
    blocked = np.zeros(len(origins), bool)
    for start in range(0, len(origins), _CHUNK):
        part = slice(start, start + _CHUNK)
        rays = _Rays(origins[part], directions[part])
        for low, high in space.boxes:
            enter, leave = rays.slabs(low, high)
            blocked[part] |= (enter < leave) & (enter > 0) & (enter < reach)
        for center, radii in space.ellipsoids:
            enter = rays.sphere(center, radii)
            blocked[part] |= (enter > 0) & (enter < reach)
    return blocked


class _Rays:
    """Rays stored by component, (3, n) float32, which NumPy works through several times faster than (n, 3)."""

    def __init__(self, origins: np.ndarray, directions: np.ndarray) -> None:
        self.origins = np.ascontiguousarray(origins.T, np.float32)
        d = np.ascontiguousarray(directions.T, np.float32)
        self.directions = np.where(np.abs(d) < 1e-7, np.float32(1e-7), d)
        self.inverse = 1 / self.directions

    def slabs(self, low: np.ndarray, high: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
        """Where each ray enters and leaves a box; it misses when it leaves first."""
        n = self.origins.shape[1]
        enter, leave = np.full(n, -np.inf, np.float32), np.full(n, np.inf, np.float32)
        for o, inverse, lo, hi in zip(self.origins, self.inverse, low, high):
            a, b = (np.float32(lo) - o) * inverse, (np.float32(hi) - o) * inverse
            np.maximum(enter, np.minimum(a, b), out=enter)
            np.minimum(leave, np.maximum(a, b), out=leave)
        return enter, leave

    def sphere(self, center: np.ndarray, radii: np.ndarray) -> np.ndarray:
        """Where each ray enters an ellipsoid; -1 where it misses."""
        a, b, c = np.float32(0), np.float32(0), np.float32(-1)
        for o, d, middle, radius in zip(self.origins, self.directions, center, radii):
            along, across = d / np.float32(radius), (o - np.float32(middle)) / np.float32(radius)
            a, b, c = a + along * along, b + across * along, c + across * across
        root = b * b - a * c
        return np.where(root > 0, (-b - np.sqrt(np.maximum(root, 0))) / a, np.float32(-1))


def _smooth(values: np.ndarray) -> np.ndarray:
    """Two passes of 1-2-1 along both axes of (nu, nv, c): the rays' noise goes, the light stays."""
    for _ in range(2):
        for axis in (0, 1):
            if values.shape[axis] < 4:
                continue
            first, last = np.take(values, [0], axis=axis), np.take(values, [-1], axis=axis)
            padded = np.concatenate([first, values, last], axis=axis)
            n = values.shape[axis]
            a, b, c = (np.take(padded, np.arange(k, k + n), axis=axis) for k in range(3))
            values = (a + 2 * b + c) / 4
    return values
