"""Small scenes for the tests, made of arrays, and cameras to look at them."""

from __future__ import annotations

import numpy as np

from edgegs.camera import Camera, look_at
from edgegs.scene import Scene

IDENTITY = np.eye(4)


def camera(width: int = 96, height: int = 80, focal: float = 90.0, viewmat: np.ndarray = IDENTITY) -> Camera:
    K = np.array([[focal, 0, width / 2], [0, focal, height / 2], [0, 0, 1.0]])
    return Camera(viewmat=viewmat, K=K, width=width, height=height)


def scene(means, scales, quats, opacities, sh) -> Scene:
    sh = np.ascontiguousarray(sh, np.float32)
    return Scene(
        means=np.asarray(means, np.float32),
        scales=np.asarray(scales, np.float32),
        quats=np.asarray(quats, np.float32),
        opacities=np.asarray(opacities, np.float32),
        sh=sh,
        sh_degree=round(sh.shape[1] ** 0.5) - 1,
        path="(test)",
        format="test",
        n_rows=len(sh),
        dropped={},
        warnings=[],
    )


def cloud(n: int, seed: int = 0, sh_degree: int = 3, size: float = 0.05) -> Scene:
    """n splats through the frustum of ``camera()`` and a little beyond, some behind it, all sizes and opacities."""
    rng = np.random.default_rng(seed)
    z = rng.uniform(-1.0, 9.0, n)
    xy = rng.uniform(-0.7, 0.7, (n, 2)) * np.abs(z)[:, None]
    quats = rng.normal(size=(n, 4))
    quats /= np.linalg.norm(quats, axis=1, keepdims=True)
    sh = rng.normal(size=(n, (sh_degree + 1) ** 2, 3)) * 0.2
    sh[:, 0] = rng.uniform(-1.5, 1.7, (n, 3))
    scales = size * np.exp(rng.normal(size=(n, 3))) * np.abs(z)[:, None]
    return scene(np.column_stack([xy, z]), scales, quats, rng.uniform(0.002, 0.999, n), sh)


def one(mean=(0.0, 0.0, 2.0), scale=(0.1, 0.1, 0.1), quat=(1.0, 0, 0, 0), opacity=0.8, colour=(0.9, 0.5, 0.1)) -> Scene:
    """One splat of one colour."""
    dc = (np.asarray(colour) - 0.5) / 0.28209479177387814
    return scene([mean], [scale], [quat], [opacity], dc.reshape(1, 1, 3))


def join(*parts: Scene) -> Scene:
    return scene(
        *(np.concatenate([getattr(p, name) for p in parts]) for name in ("means", "scales", "quats", "opacities", "sh"))
    )


def around(bounds, width: int, height: int, focal: float) -> Camera:
    """A camera that sees what the bounds hold, from above and a little to the side."""
    centre, radius = bounds
    eye = np.asarray(centre) + radius * np.array([0.6, -0.5, -1.9])
    return camera(width, height, focal, look_at(eye, centre))
