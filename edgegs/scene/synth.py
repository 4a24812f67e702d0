"""Synthetic scenes: ``dial`` (a load with one knob) and ``room`` (a picture worth looking at).

Same kind, n, seed and preset: same arrays, on the same machine and NumPy. Both are drawn in blocks, so that ten
million splats need little more memory than their own arrays.

Frames. dial: the camera's own, x right, y down, z forward, camera at the origin. room: z up, in metres.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple, Tuple

import numpy as np

from edgegs.scene import synth_h200, synth_room
from edgegs.scene.model import Scene
from edgegs.scene.synth_math import dc_from_rgb, random_quats

KINDS = ("dial", "room")
PRESETS = ("default", "h200")
MAX_SPLATS = 10_000_000

_BLOCK = 1 << 18
_DIAL_WIDTH, _DIAL_HEIGHT, _DIAL_FOCAL = 640, 480, 500.0
#: Median projected sigma of a dial splat, pixels: calibrated to 13 tiles of 16x16 a splat at 640x480.
_DIAL_SIGMA_PX = 5.79


class Orbit(NamedTuple):
    """A camera path that shows a scene well: circle ``center`` at ``radius``, ``height`` above it along ``up``."""

    center: Tuple[float, float, float]
    radius: float
    height: float
    up: Tuple[float, float, float]


def dial(n: int, seed: int = 0) -> Scene:
    """n splats spread evenly through the view frustum of ``dial_camera``, at depths 1 to 10.

    Image position and depth are uniform; sigma is 5.79·z/f·U(0.5, 1.5) on each axis, rotation uniform,
    opacity U(0.05, 0.95). A splat touches 13 tiles of 16x16 at 640x480 by the original's 3-sigma rule,
    whatever n is (``tiles_per_splat``).
    """
    arrays = _empty(n)
    means, scales, quats, opacities, sh = arrays
    for block, start in enumerate(range(0, n, _BLOCK)):
        part = slice(start, min(n, start + _BLOCK))
        m = part.stop - part.start
        rng = np.random.default_rng([seed, block])
        z = rng.uniform(1, 10, m)
        means[part, 0] = (rng.uniform(0, _DIAL_WIDTH, m) - _DIAL_WIDTH / 2) * z / _DIAL_FOCAL
        means[part, 1] = (rng.uniform(0, _DIAL_HEIGHT, m) - _DIAL_HEIGHT / 2) * z / _DIAL_FOCAL
        means[part, 2] = z
        scales[part] = (_DIAL_SIGMA_PX * z / _DIAL_FOCAL)[:, None] * rng.uniform(0.5, 1.5, (m, 3))
        quats[part] = random_quats(rng, m)
        opacities[part] = rng.uniform(0.05, 0.95, m)
        sh[part, 0] = dc_from_rgb(rng.uniform(0.1, 0.9, (m, 3)))
        sh[part, 1:4] = rng.normal(0, 0.10, (m, 3, 3))
        sh[part, 4:9] = rng.normal(0, 0.06, (m, 5, 3))
        sh[part, 9:] = rng.normal(0, 0.04, (m, 7, 3))
    return _scene(arrays, "dial", "default", n, seed)


def room(n: int, seed: int = 0, preset: str = "default") -> Scene:
    """A room of n splats on its surfaces, 5 % of them far outside its windows.

    Presets: "default", a furnished room with baked light, made to be looked at; "h200", a room of plain
    walls, 294 rectangles and 100 ellipsoids with the statistics of trained scenes (half of the splats nearly
    transparent), made to be measured.
    """
    arrays = _empty(n)
    fill = {"default": synth_room.fill, "h200": synth_h200.fill}[preset]
    fill(arrays, seed)
    return _scene(arrays, "room", preset, n, seed)


def dial_camera(width: int = _DIAL_WIDTH, height: int = _DIAL_HEIGHT) -> Tuple[np.ndarray, np.ndarray]:
    """(viewmat (4, 4), K (3, 3)) float64: identity, f = 500 at 640x480 and in proportion to the width."""
    focal = _DIAL_FOCAL * width / _DIAL_WIDTH
    return np.eye(4), np.array([[focal, 0, width / 2], [0, focal, height / 2], [0, 0, 1.0]])


def room_camera(width: int, height: int, preset: str = "default") -> Tuple[np.ndarray, np.ndarray]:
    """(viewmat (4, 4), K (3, 3)) float64 of the room's view, from one of its corners."""
    if preset == "h200":
        eye, target, focal = synth_h200.EYE, synth_h200.TARGET, 1200 * width / 1920
    else:
        eye, target = synth_room.EYE, synth_room.TARGET
        focal = synth_room.FOCAL_OVER_WIDTH * width
    viewmat = _look_at(np.array(eye), np.array(target), np.array([0, 0, 1.0]))
    return viewmat, np.array([[focal, 0, width / 2], [0, focal, height / 2], [0, 0, 1.0]])


def room_orbit(preset: str = "default") -> Orbit:
    """An orbit inside the room that passes through no furniture (preset "default") and no wall."""
    if preset == "h200":
        return Orbit((0.0, 0.0, -0.3), 4.0, 0.8, (0.0, 0.0, 1.0))
    return Orbit(synth_room.ORBIT_CENTER, synth_room.ORBIT_RADIUS, synth_room.ORBIT_HEIGHT, (0.0, 0.0, 1.0))


def tiles_per_splat(scene: Scene, camera: Any, tile: int = 16) -> np.ndarray:
    """(N,) int64: tiles each splat touches by the original renderer's 3-sigma rule, in float64.

    Args:
        camera: anything with ``viewmat`` (4, 4), ``K`` (3, 3), ``width``, ``height`` and ``near``, such as
            edgegs.camera.Camera.
    """
    counts = np.zeros(scene.n_splats, np.int64)
    for start in range(0, scene.n_splats, _BLOCK):
        part = slice(start, start + _BLOCK)
        counts[part] = _tiles(scene.means[part], scene.scales[part], scene.quats[part], camera, tile)
    return counts


def _tiles(means: np.ndarray, scales: np.ndarray, quats: np.ndarray, camera: Any, tile: int) -> np.ndarray:
    rotation = np.asarray(camera.viewmat, np.float64)[:3, :3]
    t = means.astype(np.float64) @ rotation.T + np.asarray(camera.viewmat, np.float64)[:3, 3]
    visible = t[:, 2] > camera.near
    z = np.where(visible, t[:, 2], 1.0)
    fx, fy, cx, cy = camera.K[0][0], camera.K[1][1], camera.K[0][2], camera.K[1][2]
    limit_x, limit_y = 1.3 * camera.width / (2 * fx), 1.3 * camera.height / (2 * fy)
    x = np.clip(t[:, 0] / z, -limit_x, limit_x)
    y = np.clip(t[:, 1] / z, -limit_y, limit_y)
    jacobian = np.zeros((len(z), 2, 3))
    jacobian[:, 0, 0], jacobian[:, 0, 2] = fx / z, -fx * x / z
    jacobian[:, 1, 1], jacobian[:, 1, 2] = fy / z, -fy * y / z
    # A = J W R S; cov2d = A Aᵀ + 0.3 I
    a = jacobian @ rotation @ _matrices(quats.astype(np.float64)) * scales.astype(np.float64)[:, None, :]
    cov2d = a @ a.transpose(0, 2, 1) + 0.3 * np.eye(2)
    mid = (cov2d[:, 0, 0] + cov2d[:, 1, 1]) / 2
    det = cov2d[:, 0, 0] * cov2d[:, 1, 1] - cov2d[:, 0, 1] ** 2
    radius = np.ceil(3 * np.sqrt(mid + np.sqrt(np.maximum(0.1, mid * mid - det))))
    count = np.where(visible, 1, 0)
    for pixel, extent in (
        (fx * t[:, 0] / z + cx - 0.5, camera.width),
        (fy * t[:, 1] / z + cy - 0.5, camera.height),
    ):
        n_tiles = -(-extent // tile)
        first = np.clip(np.floor((pixel - radius) / tile), 0, n_tiles)
        last = np.clip(np.floor((pixel + radius + tile - 1) / tile), 0, n_tiles)
        count = count * np.maximum(last - first, 0).astype(np.int64)
    return count


def _matrices(quats: np.ndarray) -> np.ndarray:
    """(n, 3, 3) rotation matrices of unit quaternions, w first."""
    w, x, y, z = quats.T
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    return np.stack([np.stack(row, axis=1) for row in rows], axis=1)


def _look_at(eye: np.ndarray, target: np.ndarray, up: np.ndarray) -> np.ndarray:
    """World-to-camera (4, 4) of a camera at ``eye``; x right, y down, z towards ``target``."""
    z = (target - eye) / np.linalg.norm(target - eye)
    x = np.cross(z, up)
    x /= np.linalg.norm(x)
    viewmat = np.eye(4)
    viewmat[:3, :3] = [x, np.cross(z, x), z]
    viewmat[:3, 3] = -viewmat[:3, :3] @ eye
    return viewmat


def with_sh_degree(scene: Scene, degree: int) -> Scene:
    """The same scene with its colour's higher degrees cut off, down to ``degree`` (0..3)."""
    k = (degree + 1) ** 2
    if k >= scene.sh.shape[1]:
        return scene
    return replace(scene, sh=np.ascontiguousarray(scene.sh[:, :k]), sh_degree=degree)


def _empty(n: int) -> Tuple[np.ndarray, ...]:
    if not 1 <= n <= MAX_SPLATS:
        raise ValueError(f"n must lie in 1..{MAX_SPLATS}, not {n}")
    shapes: Tuple[Tuple[int, ...], ...] = ((3,), (3,), (4,), (), (16, 3))
    return tuple(np.empty((n, *shape), np.float32) for shape in shapes)


def _scene(arrays: Tuple[np.ndarray, ...], kind: str, preset: str, n: int, seed: int) -> Scene:
    means, scales, quats, opacities, sh = arrays
    path = f"synth:{kind}?n={n}&seed={seed}&preset={preset}"
    axis = "z" if kind == "room" else "y"
    return Scene(means, scales, quats, opacities, sh, 3, path, "synth", n, vertical_axis=axis)
