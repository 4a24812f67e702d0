"""Arithmetic of many Gaussians at once: rotations, covariances and back. Keeps the precision it is given."""

from __future__ import annotations

from typing import Tuple

import numpy as np


def rotation_matrices(quats: np.ndarray) -> np.ndarray:
    """(n, 3, 3) rotations of unit quaternions (n, 4), w first; the columns are the splats' axes."""
    w, x, y, z = quats.T
    rotations = np.empty((len(quats), 3, 3), quats.dtype)
    rotations[:, 0, 0] = 1 - 2 * (y * y + z * z)
    rotations[:, 0, 1] = 2 * (x * y - w * z)
    rotations[:, 0, 2] = 2 * (x * z + w * y)
    rotations[:, 1, 0] = 2 * (x * y + w * z)
    rotations[:, 1, 1] = 1 - 2 * (x * x + z * z)
    rotations[:, 1, 2] = 2 * (y * z - w * x)
    rotations[:, 2, 0] = 2 * (x * z - w * y)
    rotations[:, 2, 1] = 2 * (y * z + w * x)
    rotations[:, 2, 2] = 1 - 2 * (x * x + y * y)
    return rotations


def quaternions(rotations: np.ndarray) -> np.ndarray:
    """(n, 4) unit quaternions, w first and not negative, of rotations (n, 3, 3)."""
    m = rotations
    n = len(m)
    # Four times the outer product of the quaternion with itself, row by row; the row of the largest component loses
    # no digits.
    products = np.empty((n, 4, 4), m.dtype)
    xx, yy, zz = m[:, 0, 0], m[:, 1, 1], m[:, 2, 2]
    products[:, 0, 0] = 1 + xx + yy + zz
    products[:, 1, 1] = 1 + xx - yy - zz
    products[:, 2, 2] = 1 - xx + yy - zz
    products[:, 3, 3] = 1 - xx - yy + zz
    for i, j, value in (
        (0, 1, m[:, 2, 1] - m[:, 1, 2]),
        (0, 2, m[:, 0, 2] - m[:, 2, 0]),
        (0, 3, m[:, 1, 0] - m[:, 0, 1]),
        (1, 2, m[:, 1, 0] + m[:, 0, 1]),
        (1, 3, m[:, 0, 2] + m[:, 2, 0]),
        (2, 3, m[:, 2, 1] + m[:, 1, 2]),
    ):
        products[:, i, j] = products[:, j, i] = value
    largest = np.einsum("nii->ni", products).argmax(axis=1)
    quats = products[np.arange(n), largest]
    quats /= np.linalg.norm(quats, axis=1, keepdims=True)
    return np.where(quats[:, :1] < 0, -quats, quats)


def covariances(scales: np.ndarray, quats: np.ndarray) -> np.ndarray:
    """(n, 3, 3) covariances of splats with standard deviations (n, 3) along the axes of unit quaternions (n, 4)."""
    axes = rotation_matrices(quats) * scales[:, None, :]
    return axes @ axes.transpose(0, 2, 1)


def shapes(covariance: np.ndarray, min_sigma: float) -> Tuple[np.ndarray, np.ndarray]:
    """Standard deviations (n, 3), rising and none below ``min_sigma``, and quaternions (n, 4) of covariances (n, 3, 3).

    A covariance that rounding has made slightly indefinite is taken as flat.
    """
    variances, axes = np.linalg.eigh(covariance)
    axes[np.linalg.det(axes) < 0, :, 0] *= -1  # a mirrored axis is the same ellipsoid
    return np.maximum(np.sqrt(np.maximum(variances, 0)), min_sigma), quaternions(axes)


def mean_shadows(scales: np.ndarray) -> np.ndarray:
    """(n,) product of two standard deviations of a splat's shadow, averaged over directions, about.

    Of a disc the exact mean is half of what it is from the front, of a ball it is the square of its sigma. Between,
    Knud Thomsen's formula for an ellipsoid's surface (a quarter of it is the mean shadow) is within 1.1 %.
    """
    power = 1.6075
    a, b, c = scales.T
    return (((a * b) ** power + (b * c) ** power + (c * a) ** power) / 3) ** (1 / power)
