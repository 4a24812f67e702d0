"""The room to measure with: plain surfaces, and the statistics of trained scenes.

Half-size 6 x 6 x 3, six walls, 294 rectangles (49 boxes) and 100 ellipsoids inside, 5 % of the splats in a shell of
radius 24 to 36. Splats are shared out by area, evenly at random; their spacing is sqrt(area / count), of all the
surfaces together and of the shell. Median sigma is 0.6 of the spacing, log-normal (0.5 shared by the axes, 0.5 of
each axis), a fifth of that along the normal. Opacity has two humps: logit N(3, 1.2) or N(-2.2, 1).

The sizes of the boxes and ellipsoids were chosen so that two figures hold for a million splats, seed 0, at 1920x1080
from ``synth.room_camera``: 66 % visible, and 12.2 tiles a visible splat (``synth.tiles_per_splat``). With other
seeds it is 60 to 70 % and 11 to 13.3.
"""

from __future__ import annotations

from typing import Sequence, Tuple

import numpy as np

from edgegs.scene.synth_math import dc_from_rgb, quats_from_axes, random_quats, sh_basis, shares

HALF_SIZE = np.array([6.0, 6.0, 3.0])
N_RECTANGLES, N_ELLIPSOIDS = 294, 100
SHELL_SHARE, SHELL_RADII = 0.05, (24.0, 36.0)
EYE, TARGET = (-5.2, -5.2, 0.5), (2.0, 2.0, -0.3)
BOX_HALF_EDGES, ELLIPSOID_RADII = (0.2, 1.2), (0.2, 0.8)
#: No ellipsoid's centre is nearer to the eye: at least 1.2 stay free. Boxes end at least 1.1 below the eye.
_CLEARANCE = 2.0
_BLOCK = 1 << 17
#: Legendre moments 2π∫exp(4(x - 1)) P_l(x) dx, a specular lobe 40 degrees wide, for degrees 0 to 3.
_LOBE = np.array([1.570, 1.179, 0.686, 0.321])
_DEGREE = np.repeat(np.arange(4), [1, 3, 5, 7])


def fill(arrays: Tuple[np.ndarray, ...], seed: int) -> None:
    """Fill means, scales, quats, opacities and sh (n, 16, 3), float32, in place."""
    n = len(arrays[0])
    n_shell = round(SHELL_SHARE * n)
    rng = np.random.default_rng([seed, 0])
    rectangles = np.concatenate([_walls(), _furniture(rng)])
    radii = rng.uniform(*ELLIPSOID_RADII, (N_ELLIPSOIDS, 3))
    centers = _places(rng)
    frames = _matrices(rng, N_ELLIPSOIDS)
    areas = [4 * float(np.linalg.norm(np.cross(r[1], r[2]))) for r in rectangles]
    areas += [float(_ellipsoid_area(r)) for r in radii]
    colors = rng.uniform(0.15, 0.85, (len(areas), 3))
    glosses = rng.uniform(0.0, 0.35, len(areas))
    counts = shares(n - n_shell, areas)
    spacing = np.sqrt(np.sum(areas) / max(1, n - n_shell))
    start = 0
    for i, count in enumerate(counts):
        for first in range(0, int(count), _BLOCK):
            m = min(_BLOCK, int(count) - first)
            if i < len(rectangles):
                center, half_u, half_v = rectangles[i]
                place = rng.uniform(-1, 1, (m, 2))
                points = center + place[:, :1] * half_u + place[:, 1:] * half_v
                normals = np.broadcast_to(_unit(np.cross(half_u, half_v)), (m, 3))
            else:
                j = i - len(rectangles)
                sphere = _unit(rng.standard_normal((m, 3)))
                points = centers[j] + (sphere * radii[j]) @ frames[j].T
                normals = _unit((sphere / radii[j]) @ frames[j].T)
            part = slice(start, start + m)
            _write(arrays, part, rng, points, normals, spacing, colors[i], glosses[i])
            start += m
    for first in range(start, n, _BLOCK):
        part = slice(first, min(n, first + _BLOCK))
        outward = _unit(rng.standard_normal((part.stop - part.start, 3)))
        points = outward * rng.uniform(*SHELL_RADII, len(outward))[:, None]
        sky = np.array([0.45, 0.6, 0.8]) + 0.2 * outward[:, 2:]
        shell_spacing = np.sqrt(4 * np.pi * 30.0**2 / n_shell)
        _write(arrays, part, rng, points, outward, shell_spacing, sky, 0.0)


def _write(
    arrays: Tuple[np.ndarray, ...],
    part: slice,
    rng: np.random.Generator,
    points: np.ndarray,
    normals: np.ndarray,
    spacing: float,
    color: np.ndarray,
    gloss: float,
) -> None:
    means, scales, quats, opacities, sh = arrays
    n = len(points)
    means[part] = points
    spread = 0.5 * rng.standard_normal((n, 1)) + 0.5 * rng.standard_normal((n, 3))
    scales[part] = 0.6 * spacing * np.exp(spread) * (1.0, 1.0, 0.2)
    u = _unit(np.cross(normals, rng.standard_normal((n, 3))))
    quats[part] = quats_from_axes(u, np.cross(normals, u), normals)
    solid = rng.random(n) < 0.5
    logits = np.where(solid, rng.normal(3.0, 1.2, n), rng.normal(-2.2, 1.0, n))
    opacities[part] = 1 / (1 + np.exp(-np.clip(logits, -15, 15)))
    light = 0.75 + 0.25 * normals[:, 2:]
    sh[part, 0] = dc_from_rgb(np.clip(color * light + rng.normal(0, 0.04, (n, 3)), 0.02, 0.98))
    # The lobe points where a camera would look from, having met the light above reflected by the surface.
    above = np.array([0.3, 0.2, 0.93])
    axis = _unit(above - 2 * (normals @ above)[:, None] * normals)
    lobe = sh_basis(axis) * _LOBE[_DEGREE]
    sh[part, 1:] = (gloss * lobe[:, 1:])[:, :, None] + rng.normal(0, 0.02, (n, 15, 3))


def _walls() -> np.ndarray:
    """(6, 3, 3): centre and two half edges of each wall."""
    walls = []
    for axis in range(3):
        for sign in (-1.0, 1.0):
            u, v = np.eye(3)[(axis + 1) % 3], np.eye(3)[(axis + 2) % 3]
            walls.append([sign * HALF_SIZE * np.eye(3)[axis], u * HALF_SIZE, v * HALF_SIZE])
    return np.array(walls)


def _furniture(rng: np.random.Generator) -> np.ndarray:
    """(N_RECTANGLES, 3, 3): the six faces of 49 boxes that stand on the floor, turned about the vertical."""
    n = N_RECTANGLES // 6
    half = rng.uniform(*BOX_HALF_EDGES, (n, 3))
    angle = rng.uniform(0, np.pi, n)
    reach = np.hypot(half[:, 0], half[:, 1])  # whichever way it is turned, it stays within the walls
    centers = rng.uniform(-1, 1, (n, 3)) * (HALF_SIZE - reach[:, None])
    centers[:, 2] = half[:, 2] - HALF_SIZE[2]
    faces = []
    for center, (a, b, c), turn in zip(centers, half, angle):
        axes = np.array([[np.cos(turn), np.sin(turn), 0], [-np.sin(turn), np.cos(turn), 0], [0, 0, 1]])
        edges = axes * np.array([[a], [b], [c]])
        for axis in range(3):
            u, v = edges[(axis + 1) % 3], edges[(axis + 2) % 3]
            faces += [[center - edges[axis], v, u], [center + edges[axis], u, v]]
    return np.array(faces)


def _places(rng: np.random.Generator) -> np.ndarray:
    """(N_ELLIPSOIDS, 3): centres anywhere in the room that keep the ellipsoids within the walls and off the eye."""
    centers = rng.uniform(-1, 1, (2 * N_ELLIPSOIDS, 3)) * (HALF_SIZE - ELLIPSOID_RADII[1])
    far = np.linalg.norm(centers - EYE, axis=1) > _CLEARANCE  # some two in a hundred are not
    return centers[far][:N_ELLIPSOIDS]


def _matrices(rng: np.random.Generator, n: int) -> np.ndarray:
    """(n, 3, 3) random rotations, axes in the columns."""
    w, x, y, z = random_quats(rng, n).T
    u = np.stack([1 - 2 * (y * y + z * z), 2 * (x * y + w * z), 2 * (x * z - w * y)], axis=1)
    v = np.stack([2 * (x * y - w * z), 1 - 2 * (x * x + z * z), 2 * (y * z + w * x)], axis=1)
    return np.stack([u, v, np.cross(u, v)], axis=2)


def _ellipsoid_area(radii: Sequence[float]) -> float:
    """Knud Thomsen's approximation, within 1.1 %."""
    a, b, c = radii
    p = 1.6075
    return 4 * np.pi * (((a * b) ** p + (a * c) ** p + (b * c) ** p) / 3) ** (1 / p)


def _unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
