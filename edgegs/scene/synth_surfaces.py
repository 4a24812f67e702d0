"""Surfaces of the synthetic room: every one is a grid of points that can be lit and sampled alike.

A grid (nu, nv, 3) is a lightmap's texels and a sampling domain at once: light is computed at its vertices,
splats are spread evenly over its cells, and what a splat needs is interpolated between four vertices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

Vector = Union[Sequence[float], np.ndarray]

#: Linear albedo (n, 3) from positions (n, 3), surface coordinates in metres (n, 2), and the splats' spacing in
#: metres: detail finer than that must fade, or neighbouring splats would show it as noise.
Paint = Callable[[np.ndarray, np.ndarray, float], np.ndarray]


@dataclass
class Surface:
    """One surface.

    Attributes:
        points, normals: (nu, nv, 3). uv: (nu, nv, 2) surface coordinates, metres.
        paint: linear albedo; for an emitter its linear radiance.
        density: splats per square metre, relative to the other surfaces.
        gloss: share of light reflected as in a blurred mirror, at normal incidence.
        emits: the paint is the radiance, no light is added.
        through: share of light coming through from behind (leaves, curtains).
        open_edges: draw splats near the border narrower, so that it stays crisp.
        stretch: sigma along u over sigma along v.
        tube_radius: of a rod; u runs round it. 0 for anything else.
    """

    points: np.ndarray
    normals: np.ndarray
    uv: np.ndarray
    paint: Paint
    density: float = 1.0
    gloss: float = 0.0
    emits: bool = False
    through: float = 0.0
    open_edges: bool = True
    stretch: float = 1.0
    tube_radius: float = 0.0

    @property
    def size(self) -> Tuple[float, float]:
        """Mean length along u and along v, metres."""
        p = self.points
        along_u = np.linalg.norm(np.diff(p, axis=0), axis=2).sum(axis=0).mean()
        return float(along_u), float(np.linalg.norm(np.diff(p, axis=1), axis=2).sum(axis=1).mean())

    @property
    def cell_areas(self) -> np.ndarray:
        """(nu - 1, nv - 1) square metres."""
        p = self.points
        diagonal_a, diagonal_b = p[1:, 1:] - p[:-1, :-1], p[1:, :-1] - p[:-1, 1:]
        return np.linalg.norm(np.cross(diagonal_a, diagonal_b), axis=2) / 2


class Samples(NamedTuple):
    """Points on a surface. ``corners`` (n, 4) index the flattened grid, ``weights`` (n, 4) add up to one."""

    corners: np.ndarray
    weights: np.ndarray
    points: np.ndarray
    normals: np.ndarray
    tangents: np.ndarray  # (n, 3) unit, along u
    uv: np.ndarray
    border: np.ndarray  # (n, 2) metres to the nearer border along u and v

    def mix(self, values: np.ndarray) -> np.ndarray:
        """Interpolate values (nu * nv, …) given at the vertices."""
        shape = (-1, 4) + (1,) * (values.ndim - 1)
        return (values[self.corners] * self.weights.reshape(shape)).sum(axis=1)


def sample(surface: Surface, places: np.ndarray) -> Samples:
    """Map ``places`` (n, 2) in [0, 1)², evenly by area, to points of the surface."""
    nu, nv = surface.points.shape[:2]
    areas = surface.cell_areas
    i, fu = _invert(np.broadcast_to(areas.sum(axis=1), (1, nu - 1)), np.zeros(len(places), int), places[:, 0])
    j, fv = _invert(areas, i, places[:, 1])
    corners = np.stack([i * nv + j, i * nv + j + 1, (i + 1) * nv + j, (i + 1) * nv + j + 1], axis=1)
    weights = np.stack([(1 - fu) * (1 - fv), (1 - fu) * fv, fu * (1 - fv), fu * fv], axis=1)

    def mix(values: np.ndarray) -> np.ndarray:
        return (values.reshape(nu * nv, -1)[corners] * weights[:, :, None]).sum(axis=1)

    p = surface.points.reshape(-1, 3)
    along_u = (p[corners[:, 2]] - p[corners[:, 0]]) * (1 - fv)[:, None]
    along_u += (p[corners[:, 3]] - p[corners[:, 1]]) * fv[:, None]
    along_v = (p[corners[:, 1]] - p[corners[:, 0]]) * (1 - fu)[:, None]
    along_v += (p[corners[:, 3]] - p[corners[:, 2]]) * fu[:, None]
    normals = unit(mix(surface.normals))
    tangents = unit(along_u - (along_u * normals).sum(axis=1, keepdims=True) * normals)
    to_u = np.minimum(i + fu, nu - 1 - i - fu) * np.linalg.norm(along_u, axis=1)
    to_v = np.minimum(j + fv, nv - 1 - j - fv) * np.linalg.norm(along_v, axis=1)
    border = np.stack([to_u, to_v], axis=1)
    return Samples(corners, weights, mix(surface.points), normals, tangents, mix(surface.uv), border)


def _invert(areas: np.ndarray, row: np.ndarray, place: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    """Cell and fraction at which the running area of the given row reaches ``place`` of its total."""
    n = areas.shape[1]
    total = areas.sum(axis=1, keepdims=True)
    # One sorted array for all rows: row r runs from r to r + 1.
    running = np.cumsum(areas / total, axis=1)
    running[:, -1] = 1.0
    edges = (running + np.arange(len(areas))[:, None]).ravel()
    cell = np.searchsorted(edges, row + np.minimum(place, 1 - 1e-12), side="right")
    cell = np.minimum(cell - row * n, n - 1)
    upper = running[row, cell]
    lower = np.where(cell > 0, running[row, cell - 1], 0.0)
    return cell, np.clip((place - lower) / np.maximum(upper - lower, 1e-12), 0, 1)


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


def grid(points: np.ndarray, paint: Paint, outward: Optional[Vector] = None, **options) -> Surface:
    """A surface from a grid of points; normals point away from ``outward`` (None: along du x dv)."""
    du, dv = np.gradient(points, axis=0), np.gradient(points, axis=1)
    normals = unit(np.cross(du, dv))
    if outward is not None:
        flip = ((points - np.asarray(outward)) * normals).sum(axis=2).mean() < 0
        normals = -normals if flip else normals
    lengths_u = np.linalg.norm(np.diff(points, axis=0), axis=2).mean(axis=1)
    lengths_v = np.linalg.norm(np.diff(points, axis=1), axis=2).mean(axis=0)
    u, v = np.append(0, np.cumsum(lengths_u)), np.append(0, np.cumsum(lengths_v))
    uv = np.stack(np.meshgrid(u, v, indexing="ij"), axis=2)
    return Surface(points, normals, uv, paint, **options)


def rectangle(origin: Vector, edge_u: Vector, edge_v: Vector, step: float, paint: Paint, **options) -> Surface:
    """Its normal is edge_u x edge_v; ``step`` is the lightmap's texel, metres."""
    o, eu, ev = (np.asarray(a, float) for a in (origin, edge_u, edge_v))
    nu, nv = (max(2, int(np.ceil(np.linalg.norm(e) / step)) + 1) for e in (eu, ev))
    s, t = np.linspace(0, 1, nu)[:, None, None], np.linspace(0, 1, nv)[None, :, None]
    return grid(o + s * eu + t * ev, paint, **options)


def box(low: Vector, high: Vector, paint: Paint, step: float = 0.12, skip: str = "", **options) -> List[Surface]:
    """The faces of a box; ``skip`` names those left out, of "-x +x -y +y -z +z"."""
    lo, hi = np.asarray(low, float), np.asarray(high, float)
    faces = []
    for axis in range(3):
        a, b = (axis + 1) % 3, (axis + 2) % 3
        ea, eb = np.zeros(3), np.zeros(3)
        ea[a], eb[b] = hi[a] - lo[a], hi[b] - lo[b]
        for sign in "-+":
            if sign + "xyz"[axis] in skip.split():
                continue
            origin = lo.copy()
            if sign == "+":
                origin[axis] = hi[axis]
                faces.append(rectangle(origin, ea, eb, step, paint, **options))
            else:
                faces.append(rectangle(origin, eb, ea, step, paint, **options))
    return faces


def cushion(center: Vector, half: Vector, paint: Paint, power: float = 0.45, n: int = 13, **options) -> Surface:
    """A superellipsoid: power 1 is an ellipsoid, towards 0 a box with rounded edges."""
    phi = np.linspace(0, 2 * np.pi, 2 * n + 1)[:, None]
    theta = np.linspace(-np.pi / 2 + 0.02, np.pi / 2 - 0.02, n)[None, :]

    def curve(value: np.ndarray) -> np.ndarray:
        return np.sign(value) * np.abs(value) ** power

    unit_points = np.stack(
        [
            curve(np.cos(theta)) * curve(np.cos(phi)),
            curve(np.cos(theta)) * curve(np.sin(phi)),
            curve(np.sin(theta)) + 0 * phi,
        ],
        axis=2,
    )
    c, h = np.asarray(center, float), np.asarray(half, float)
    surface = grid(c + unit_points * h, paint, open_edges=False, **options)
    # The exact normal of the implicit form; finite differences fail where the grid is squeezed.
    gradient = np.sign(unit_points) * np.abs(unit_points) ** (2 / power - 1)
    surface.normals = unit(gradient / h)
    return surface


def revolution(center: Vector, profile: Sequence[Tuple[float, float]], paint: Paint, n: int = 24, **options) -> Surface:
    """A profile of (radius, height) turned about the vertical axis through ``center``."""
    r, z = np.array(profile, float).T
    phi = np.linspace(0, 2 * np.pi, n + 1)[:, None]
    r = np.maximum(r, 1e-3)
    points = np.stack([np.cos(phi) * r, np.sin(phi) * r, z + 0 * phi], axis=2) + np.asarray(center, float)
    surface = grid(points, paint, open_edges=False, **options)
    # Outward is to the right of the way the profile runs: a profile is given from bottom to top.
    dr, dz = np.gradient(r), np.gradient(z)
    surface.normals = unit(np.stack([np.cos(phi) * dz, np.sin(phi) * dz, -dr + 0 * phi], axis=2))
    return surface
