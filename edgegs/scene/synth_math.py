"""Small vectorised helpers of the synthetic scenes: SH basis, rotations, noise, even sampling."""

from __future__ import annotations

from typing import Sequence, Union

import numpy as np

_C0 = 0.28209479177387814
_C1 = 0.4886025119029199
_C2 = (1.0925484305920792, -1.0925484305920792, 0.31539156525252005, -1.0925484305920792, 0.5462742152960396)
_C3 = (
    -0.5900435899266435, 2.890611442640554, -0.4570457994644658, 0.3731763325901154,
    -0.4570457994644658, 1.445305721320277, -0.5900435899266435,
)  # fmt: skip


def sh_basis(directions: np.ndarray) -> np.ndarray:
    """(n, 16) real SH up to degree 3 of (n, 3) unit directions, with the signs of the 3DGS format."""
    x, y, z = directions.T
    xx, yy, zz = x * x, y * y, z * z
    return np.stack(
        [
            np.full_like(x, _C0),
            -_C1 * y, _C1 * z, -_C1 * x,
            _C2[0] * x * y, _C2[1] * y * z, _C2[2] * (2 * zz - xx - yy), _C2[3] * x * z, _C2[4] * (xx - yy),
            _C3[0] * y * (3 * xx - yy), _C3[1] * x * y * z, _C3[2] * y * (4 * zz - xx - yy),
            _C3[3] * z * (2 * zz - 3 * xx - 3 * yy), _C3[4] * x * (4 * zz - xx - yy),
            _C3[5] * z * (xx - yy), _C3[6] * x * (xx - 3 * yy),
        ],
        axis=1,
    )  # fmt: skip


def dc_from_rgb(rgb: np.ndarray) -> np.ndarray:
    """The f_dc coefficient that draws ``rgb`` (0..1) from every side."""
    return (rgb - 0.5) / _C0


def random_quats(rng: np.random.Generator, n: int) -> np.ndarray:
    """(n, 4) uniformly distributed unit quaternions."""
    quats = rng.standard_normal((n, 4))
    return quats / np.linalg.norm(quats, axis=1, keepdims=True)


def quats_from_axes(u: np.ndarray, v: np.ndarray, w: np.ndarray) -> np.ndarray:
    """(n, 4) unit quaternions, w first, of the rotations whose columns are the orthonormal u, v, w (n, 3)."""
    m00, m11, m22 = u[:, 0], v[:, 1], w[:, 2]
    # Four candidates, each exact up to its own scale; the longest is the best conditioned.
    xy, xz, yz = v[:, 0] + u[:, 1], w[:, 0] + u[:, 2], w[:, 1] + v[:, 2]
    wx, wy, wz = v[:, 2] - w[:, 1], w[:, 0] - u[:, 2], u[:, 1] - v[:, 0]
    candidates = np.stack(
        [
            np.stack([1 + m00 + m11 + m22, wx, wy, wz], axis=1),
            np.stack([wx, 1 + m00 - m11 - m22, xy, xz], axis=1),
            np.stack([wy, xy, 1 - m00 + m11 - m22, yz], axis=1),
            np.stack([wz, xz, yz, 1 - m00 - m11 + m22], axis=1),
        ],
        axis=1,
    )
    best = np.argmax(candidates[:, np.arange(4), np.arange(4)], axis=1)
    quats = candidates[np.arange(len(u)), best]
    return quats / np.linalg.norm(quats, axis=1, keepdims=True)


def shares(n: int, weights: Union[Sequence[float], np.ndarray]) -> np.ndarray:
    """Split n into whole numbers in proportion to ``weights``; they add up to n."""
    edges = np.rint(np.cumsum(weights) / np.sum(weights) * n).astype(np.int64)
    return np.diff(edges, prepend=0)


def even_points(start: int, stop: int, shift: np.ndarray, aspect: float) -> np.ndarray:
    """(stop - start, 2) points in [0, 1)², even at any count, unlike random ones, once the square is stretched.

    The R2 sequence (M. Roberts, "The unreasonable effectiveness of quasirandom sequences"), dealt out in turn to
    as many near-squares in a row as the stretched square's ``aspect`` (length along u over v) makes room for.
    """
    g = 1.32471795724474602596  # the plastic number
    n_squares = max(1, round(max(aspect, 1 / aspect)))
    index = np.arange(start, stop, dtype=np.int64)
    square = (index % n_squares).astype(np.float64)
    points = ((index // n_squares + 1)[:, None] * np.array([1 / g, 1 / (g * g)]) + shift) % 1.0
    points = (points + square[:, None] * [0.618033989, 0.754877666]) % 1.0
    long = 0 if aspect >= 1 else 1
    points[:, long] = (square + points[:, long]) / n_squares
    return points


def _hash(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Integer lattice coordinates to floats in [0, 1)."""
    h = x.astype(np.uint32) * np.uint32(0x8DA6B343)
    h ^= y.astype(np.uint32) * np.uint32(0xD8163841)
    h ^= z.astype(np.uint32) * np.uint32(0xCB1AB31F)
    h = (h ^ (h >> np.uint32(15))) * np.uint32(0x2C1B3C6D)
    h = (h ^ (h >> np.uint32(12))) * np.uint32(0x297A2D39)
    return (h ^ (h >> np.uint32(15))).astype(np.float64) / 2.0**32


def cell_value(x: np.ndarray, y: np.ndarray, salt: int = 0) -> np.ndarray:
    """One random number in [0, 1) for each whole (x, y): the tint of a plank, of a book."""
    return _hash(np.asarray(x, np.int64), np.asarray(y, np.int64), np.full(np.shape(x), salt, np.int64))


def noise(points: np.ndarray, frequency: float, octaves: int = 1, blur: float = 0.0) -> np.ndarray:
    """(n,) smooth value noise in about [-1, 1] at (n, 3) points; each octave doubles the frequency.

    Octaves finer than ``blur``, in the points' unit, fade out.
    """
    total = np.zeros(len(points))
    weight, norm = 1.0, 0.0
    for octave in range(octaves):
        kept = float(np.exp(-((0.8 * blur * frequency * 2**octave) ** 2)))
        if kept < 0.02:
            norm += weight
            weight *= 0.5
            continue
        p = points * (frequency * 2**octave) + 17.3 * octave
        base = np.floor(p)
        f = p - base
        f = f * f * (3 - 2 * f)
        cell = base.astype(np.int64)
        value = np.zeros(len(points))
        for corner in range(8):
            offset = np.array([corner & 1, corner >> 1 & 1, corner >> 2])
            part = np.where(offset, f, 1 - f).prod(axis=1)
            value += part * _hash(*(cell + offset).T)
        total += weight * kept * (2 * value - 1)
        norm += weight
        weight *= 0.5
    return total / norm
