"""What the room's surfaces are made of: each function returns a Paint (see synth_surfaces)."""

from __future__ import annotations

from typing import Tuple

import numpy as np

from edgegs.scene.synth_math import cell_value, noise
from edgegs.scene.synth_surfaces import Paint, Vector


def srgb(r: float, g: float, b: float) -> np.ndarray:
    """Linear colour of an sRGB triple given in 0..255, as a colour picker shows it."""
    return (np.array([r, g, b]) / 255.0) ** 2.2


def _fade(period: float, blur: float) -> float:
    """How much of a pattern with this period is left when it is drawn with splats ``blur`` apart."""
    return float(np.exp(-((1.6 * blur / period) ** 2)))


def plain(color: Vector, roughness: float = 0.04, frequency: float = 3.0) -> Paint:
    """One colour, a little uneven: plaster, lacquer, paper."""

    def paint(points: np.ndarray, uv: np.ndarray, blur: float) -> np.ndarray:
        return np.asarray(color) * (1 + roughness * noise(points, frequency, 3, blur))[:, None]

    return paint


def fabric(color: Vector, contrast: float = 0.16) -> Paint:
    """A coarse weave over soft patches."""

    def paint(points: np.ndarray, uv: np.ndarray, blur: float) -> np.ndarray:
        weave = _fade(0.015, blur) * np.sin(uv[:, 0] * 420) * np.sin(uv[:, 1] * 420)
        return np.asarray(color) * (1 + contrast * noise(points, 16, 2, blur) + 0.10 * weave)[:, None]

    return paint


def wood(color: Vector, axis: int = 0, contrast: float = 0.35) -> Paint:
    """Grain along one axis of space."""
    squeeze = np.full(3, 26.0)
    squeeze[axis] = 1.6

    def paint(points: np.ndarray, uv: np.ndarray, blur: float) -> np.ndarray:
        grain = noise(points * squeeze, 1.0, 3, 26 * blur)
        return np.asarray(color) * (1 + contrast * grain)[:, None] * (1 + 0.10 * noise(points, 1.3))[:, None]

    return paint


def parquet(width: float = 0.13, ratio: int = 4) -> Paint:
    """Oak laid as a herringbone at 45 degrees; every plank its own tint."""
    light, dark = srgb(186, 142, 100), srgb(104, 68, 42)

    def paint(points: np.ndarray, uv: np.ndarray, blur: float) -> np.ndarray:
        x = (points[:, 0] + points[:, 1]) / (np.sqrt(2) * width)
        y = (points[:, 1] - points[:, 0]) / (np.sqrt(2) * width)
        i, j = np.floor(x), np.floor(y)
        k = np.mod(i - j, 2 * ratio)
        lying = k < ratio
        first_i = np.where(lying, i - k, i)
        first_j = np.where(lying, j, j - (2 * ratio - 1 - k))
        along = np.where(lying, x - first_i, y - first_j) / ratio
        across = np.where(lying, y - j, x - i)
        tint = cell_value(first_i, first_j, 3)
        rows = np.stack([along * 2, across * 9, 40 * tint], axis=1)
        grain = noise(rows, 1.0, 3, 9 * blur / width)
        mix = np.clip(0.5 + 0.95 * (tint - 0.5) + 0.30 * grain, 0, 1)[:, None]
        gap = np.minimum(np.minimum(across, 1 - across), ratio * np.minimum(along, 1 - along)) * width
        soft = max(0.004, 0.6 * blur)
        seam = 1 - 0.6 * min(1.0, 0.008 / soft) * np.clip(1 - gap / soft, 0, 1)
        return (dark + (light - dark) * mix) * seam[:, None]

    return paint


def kilim(center: Tuple[float, float], half: Tuple[float, float]) -> Paint:
    """A woven rug: borders, then nested stepped diamonds."""
    palette = np.stack(
        [
            srgb(132, 38, 36), srgb(222, 188, 140), srgb(30, 62, 84), srgb(176, 72, 44),
            srgb(228, 206, 170), srgb(112, 30, 34), srgb(204, 142, 62), srgb(36, 74, 82),
        ]
    )  # fmt: skip

    def paint(points: np.ndarray, uv: np.ndarray, blur: float) -> np.ndarray:
        x = (points[:, 0] - center[0]) / half[0]
        y = (points[:, 1] - center[1]) / half[1]
        edge = np.minimum((1 - np.abs(x)) * half[0], (1 - np.abs(y)) * half[1])
        step_x, step_y = np.floor(np.abs(x) * half[0] / 0.05), np.floor(np.abs(y) * half[1] / 0.05)
        fold = np.abs(np.mod(step_x, 22) - 11)
        band = np.mod(fold + step_y, 16)
        index = np.select(
            [band < 2, band < 3, band < 6, band < 7, band < 10, band < 11, band < 14], [1, 2, 3, 4, 0, 6, 7], 5
        )
        teeth = np.mod(np.floor((points[:, 0] + points[:, 1]) / 0.06), 2)
        index = np.where(edge < 0.30, np.where(teeth > 0, 4, 2), index)
        index = np.where((edge < 0.22) | (edge > 0.30) & (edge < 0.34), 0, index)
        index = np.where((edge < 0.10) & (edge > 0.06), 6, index)
        wool = 1 + 0.16 * noise(points, 30, 2, blur) + 0.08 * _fade(0.009, blur) * np.sin(points[:, 1] * 700)
        return palette[index.astype(int)] * wool[:, None]

    return paint


def books(seed: int) -> Paint:
    """Spines side by side along u; each has a colour, a lighter title band and a dark gap beside it."""
    palette = np.stack(
        [
            srgb(150, 48, 38), srgb(38, 66, 92), srgb(206, 172, 112), srgb(58, 92, 72), srgb(224, 214, 196),
            srgb(86, 40, 62), srgb(196, 110, 52), srgb(46, 46, 52), srgb(120, 144, 150), srgb(168, 142, 60),
        ]
    )  # fmt: skip

    def paint(points: np.ndarray, uv: np.ndarray, blur: float) -> np.ndarray:
        place = uv[:, 0] / 0.042 + 0.35 * np.sin(np.floor(uv[:, 0] / 0.042) * 1.7)
        book = np.floor(place)
        salt = np.zeros_like(book) + seed
        color = palette[(cell_value(book, salt, 1) * len(palette)).astype(int)]
        band = np.abs(uv[:, 1] - 0.16 - 0.08 * cell_value(book, salt, 2)) < 0.018
        top = 0.24 + 0.07 * cell_value(book, salt, 4)
        color = np.where(band[:, None], 0.4 * color + 0.45, color)
        color = color * np.where(np.abs(place - book - 0.5) > 0.43, 0.35, 1.0)[:, None]
        return np.where((uv[:, 1] > top)[:, None], 0.03, color)

    return paint


def painting(kind: int, width: float, height: float) -> Paint:
    """Abstract pictures for the frames, by number."""

    def paint(points: np.ndarray, uv: np.ndarray, blur: float) -> np.ndarray:
        s, t = uv[:, 0] / width, uv[:, 1] / height
        return np.clip(_PICTURES[kind % len(_PICTURES)](s, t, width / height), 0.004, 0.95)

    return paint


def _layer(base: np.ndarray, mask: np.ndarray, color: np.ndarray) -> np.ndarray:
    return base + np.clip(mask, 0, 1)[:, None] * (color - base)


def _at(s: np.ndarray, t: np.ndarray) -> np.ndarray:
    return np.stack([s, t, 0 * s], axis=1)


def _dunes(s: np.ndarray, t: np.ndarray, aspect: float) -> np.ndarray:
    """A low sun over ranges of hills, the nearest the darkest."""
    sky = srgb(250, 214, 160) + (srgb(214, 96, 66) - srgb(250, 214, 160)) * t[:, None]
    disc = np.hypot((s - 0.63) * aspect, t - 0.66)
    picture = _layer(sky, (0.15 - disc) / 0.01, srgb(252, 238, 206))
    ranges = [srgb(206, 120, 92), srgb(150, 78, 84), srgb(86, 52, 78), srgb(36, 30, 56)]
    for i, color in enumerate(ranges):
        ridge = 0.52 - 0.13 * i + 0.09 * noise(_at(s * 2.2 + 5 * i, 0 * s), 1.0, 3)
        picture = _layer(picture, (ridge - t) / 0.01, color)
    return picture


def _circles(s: np.ndarray, t: np.ndarray, aspect: float) -> np.ndarray:
    """Concentric rings in a grid of squares."""
    palette = np.stack(
        [
            srgb(216, 70, 52),
            srgb(244, 190, 72),
            srgb(34, 88, 110),
            srgb(238, 224, 196),
            srgb(60, 132, 118),
            srgb(28, 34, 60),
        ]
    )
    n = 3
    x, y = s * n, t * max(1, round(n / aspect))
    i, j = np.floor(x), np.floor(y)
    ring = np.floor(np.hypot(x - i - 0.5, y - j - 0.5) * 8.5 + 0.4 * noise(_at(s, t), 7))
    pick = cell_value(i * 7 + ring, j * 13 + ring, 11)
    return palette[(pick * len(palette)).astype(int)] * (1 + 0.1 * noise(_at(s, t), 40, 2))[:, None]


def _panels(s: np.ndarray, t: np.ndarray, aspect: float) -> np.ndarray:
    """Primary panels between black bars."""
    picture = np.broadcast_to(srgb(240, 234, 220), (len(s), 3)).copy()
    for lo_s, hi_s, lo_t, hi_t, color in (
        (0.34, 1.0, 0.42, 1.0, srgb(200, 36, 30)), (0.0, 0.34, 0.0, 0.30, srgb(30, 60, 140)),
        (0.78, 1.0, 0.0, 0.16, srgb(242, 196, 48)),
    ):  # fmt: skip
        inside = (s >= lo_s) & (s < hi_s) & (t >= lo_t) & (t < hi_t)
        picture = _layer(picture, inside.astype(float), color)
    for bar in (
        np.abs(s - 0.34),
        np.abs(t - 0.42),
        np.where(s < 0.34, np.abs(t - 0.72), 1),
        np.where(s > 0.34, np.abs(s - 0.78) + (t > 0.42), 1),
        np.where(s > 0.78, np.abs(t - 0.16), 1),
        np.where(s < 0.34, np.abs(t - 0.30), 1),
    ):
        picture = _layer(picture, (0.014 - bar) / 0.004, srgb(20, 20, 22))
    return picture


def _sea(s: np.ndarray, t: np.ndarray, aspect: float) -> np.ndarray:
    """Loose strokes of sea and sky."""
    swirl = noise(_at(s * 2, t * 7), 1.0, 4)
    sky = srgb(168, 204, 216) + 0.35 * swirl[:, None] * srgb(255, 240, 220)
    deep = srgb(24, 84, 112) + (0.22 + 0.5 * np.clip(swirl, 0, 1))[:, None] * srgb(120, 190, 190)
    picture = _layer(sky, (0.48 + 0.03 * swirl - t) / 0.02, deep)
    return _layer(picture, (0.13 + 0.06 * swirl - t) / 0.03, srgb(226, 204, 164))


_PICTURES = (_dunes, _circles, _panels, _sea)


def leaf(color: Vector) -> Paint:
    """Green, lighter along the middle and towards the tip."""

    def paint(points: np.ndarray, uv: np.ndarray, blur: float) -> np.ndarray:
        rib = np.exp(-(((uv[:, 1] - uv[:, 1].mean()) / 0.012) ** 2))
        return np.asarray(color) * (1 + 0.9 * rib + 0.25 * noise(points, 9, 2, blur))[:, None]

    return paint
