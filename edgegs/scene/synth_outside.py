"""Outside the synthetic room's windows: a lake, hills and a late sky; and the light that comes from there."""

from __future__ import annotations

from typing import List

import numpy as np

from edgegs.scene.synth_math import noise
from edgegs.scene.synth_shell import SUN
from edgegs.scene.synth_surfaces import Paint, Surface, grid, unit


def sky_light(directions: np.ndarray) -> np.ndarray:
    """Radiance that comes in through the panes: blue above, warm haze at the horizon, dim ground."""
    up = directions[:, 2:]
    blue, haze, ground = np.array([1.7, 2.5, 3.9]), np.array([2.8, 3.0, 3.4]), np.array([0.75, 0.8, 0.6])
    above = haze + (blue - haze) * np.clip(up / 0.55, 0, 1)
    return np.where(up > 0, above, ground)


def outside() -> List[Surface]:
    """Late light over a lake, three ranges of hills and a few trees, all of it far away."""
    azimuth = np.linspace(np.radians(18), np.radians(162), 145)[:, None]  # from +x round to -x
    sun_azimuth = np.arctan2(SUN[1], SUN[0])

    def ring(radius: float, low: np.ndarray, high: np.ndarray, n: int, what: Paint, **options) -> Surface:
        t = np.linspace(0, 1, n)[None, :]
        z = low + (high - low) * t
        points = np.stack([radius * np.cos(azimuth) + 0 * t, radius * np.sin(azimuth) + 0 * t, z], axis=2)
        return grid(points, what, emits=True, **options)

    def evening(height: np.ndarray) -> np.ndarray:
        """Gold at 0, pale at 0.4, blue at 1: (n, 1) to (n, 3)."""
        stops = np.array([[0.85, 0.50, 0.23], [0.60, 0.57, 0.50], [0.11, 0.24, 0.50]])
        return np.stack([np.interp(height[:, 0], [0, 0.4, 1], channel) for channel in stops.T], axis=1)

    def sky(points: np.ndarray, uv: np.ndarray, blur: float) -> np.ndarray:
        direction = unit(points - [0, 0, 1.5])
        up = np.clip(direction[:, 2:], 0, 1)
        color = evening(up / 0.36)
        toward = np.clip(direction @ unit(SUN * [1, 1, 0.35]), 0, 1)[:, None]
        cloud = np.clip(noise(points * [0.10, 0.10, 0.34], 1.0, 4) - 0.12, 0, 1)[:, None]
        color = color + cloud * (np.array([0.95, 0.72, 0.56]) - color) * 0.8
        return color + np.array([1.6, 1.0, 0.45]) * toward**24 + np.array([0.30, 0.15, 0.05]) * toward**5

    def hills(near: np.ndarray, far: np.ndarray, seed: float) -> Paint:
        def what(points: np.ndarray, uv: np.ndarray, blur: float) -> np.ndarray:
            rough = noise(points * [0.5, 0.5, 0.9] + seed, 1.0, 4)[:, None]
            toward = np.clip(1 - np.abs(np.arctan2(points[:, 1:2], points[:, :1]) - sun_azimuth) / 1.2, 0, 1)
            height = np.clip((points[:, 2:] + 3) / 8, 0, 1)
            color = near + (far - near) * (0.35 + 0.5 * toward)
            return np.maximum(color * (1 + 0.35 * rough) * (0.75 + 0.5 * height), 0.004)

        return what

    def ridge(seed: float, base: float, swing: float) -> np.ndarray:
        at = np.concatenate([azimuth * 4 + seed, 0 * azimuth, 0 * azimuth], axis=1)
        return (base + swing * noise(at, 1.0, 4))[:, None]

    def lake(points: np.ndarray, uv: np.ndarray, blur: float) -> np.ndarray:
        depth = np.clip((1.6 - points[:, 2:]) / 5.0, 0, 1)
        ripple = noise(points * [0.25, 0.25, 3.5], 1.0, 4)[:, None]
        color = 0.72 * evening(0.15 + 1.1 * depth)
        toward = np.arctan2(points[:, 1:2], points[:, :1]) - sun_azimuth
        return np.maximum(color * (1 + 0.28 * ripple) + [1.2, 0.75, 0.36] * np.exp(-((toward / 0.14) ** 2)), 0.01)

    flat = np.ones((len(azimuth), 1))
    far, middle, near = ridge(3.1, 4.3, 2.8), ridge(7.7, 2.4, 1.5), ridge(12.4, -2.2, 0.9)
    trees = (
        2.6 * np.clip(noise(np.concatenate([azimuth * 26, 0 * azimuth, 0 * azimuth], axis=1), 1.0, 3), 0, 1)[:, None]
    )
    sunlit = np.array([1.0, 0.70, 0.50])
    return [
        ring(36, -2 * flat, 19 * flat, 40, sky, density=1.0, stretch=1.8),
        ring(33, 0.6 * flat, far, 8, hills(np.array([0.13, 0.15, 0.25]), 0.38 * sunlit, 1.0), density=2.4, stretch=1.5),
        ring(31, 0.6 * flat, middle, 8, hills(np.array([0.045, 0.065, 0.11]), 0.15 * sunlit, 2.0), density=2.8),
        ring(29, -8 * flat, 1.25 * flat, 14, lake, density=1.4, stretch=3.0),
        ring(25, -9 * flat, near + trees, 14, hills(np.array([0.05, 0.085, 0.04]), np.array([0.20, 0.20, 0.07]), 3.0),
             density=2.4),
    ]  # fmt: skip
