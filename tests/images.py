"""The image bar: how two pictures of the same view are compared, and what counts as a threshold's fault."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import tolerances

from edgegs.backends import twin
from edgegs.renderer import Renderer


def psnr(a: np.ndarray, b: np.ndarray) -> float:
    """dB between two pictures, of bytes or of floats; floats are clipped to 0..1. Infinite when equal."""
    one, other = (p / 255.0 if p.dtype == np.uint8 else np.clip(p, 0, 1) for p in (a, b))
    error = np.mean((one - other) ** 2)
    return float("inf") if error == 0 else float(-10 * np.log10(error))


def reference_fields(renderer: Renderer) -> SimpleNamespace:
    """The parameters and arrays of the reference renderer's last frame."""
    return renderer._frame.fields  # type: ignore[attr-defined]


def is_on_threshold(p: SimpleNamespace, x: int, y: int) -> bool:
    """Whether float32 may decide differently at this pixel: a splat's alpha at 1/255, the transmittance at its
    minimum, two splats at the same depth, or a splat whose square ends within rounding of this tile."""
    tile = y // twin.C.TILE_SIZE * p.n_tiles_x + x // twin.C.TILE_SIZE
    centre = np.array([[x + 0.5, y + 0.5]])
    splats = p.instance_splats[p.tile_starts[tile] : p.tile_starts[tile + 1]]
    alpha = raw_alphas(p, splats, centre)[:, 0]
    if np.any(np.abs(alpha * 255 - 1) < tolerances.ALPHA_BAND_RELATIVE):
        return True
    drawn = np.where(alpha >= twin.C.ALPHA_MIN, np.minimum(alpha, twin.C.ALPHA_MAX), 0)
    after = np.cumprod(1 - drawn)
    near_stop = np.abs(after / twin.C.TRANSMITTANCE_MIN - 1) < tolerances.TRANSMITTANCE_BAND_RELATIVE
    if np.any(near_stop & (drawn > 0)):
        return True
    shown = splats[drawn > 0]
    depths = p.splat_depths[shown]
    if np.any(np.diff(depths) < tolerances.DEPTH_BAND_RELATIVE * depths[1:]):
        return True
    return bool(
        np.isin(
            np.nonzero(raw_alphas(p, np.arange(p.n_splats), centre)[:, 0] >= 0.99 * twin.C.ALPHA_MIN),
            np.nonzero(rect_in_doubt(p)),
        ).any()
    )


def raw_alphas(p: SimpleNamespace, splats: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """opacity * e^power, without the cut at 1/255."""
    d = centres[None] - p.splat_means2d[splats][:, None]
    conic = p.splat_conics[splats][:, None]
    power = (
        -0.5 * (conic[..., 0] * d[..., 0] ** 2 + conic[..., 2] * d[..., 1] ** 2) - conic[..., 1] * d[..., 0] * d[..., 1]
    )
    return np.where(power <= 0, conic[..., 3] * np.exp(np.minimum(power, 0)), 0)


def rect_in_doubt(p: SimpleNamespace) -> np.ndarray:
    """Splats (N,) whose tile rectangle rounding may change: the radius near an integer, or an edge near a tile's."""
    with np.errstate(all="ignore"):
        t = twin.camera_points(p)
        t[~(t[:, 2] > p.near_plane)] = [0, 0, 1]
        radius = twin.radii(twin.covariances_2d(p, t, p.splat_scales, p.splat_quats))
        band = tolerances.RECT_BAND_PIXELS * np.maximum(1, radius / 100)
        edges = np.concatenate(
            [
                p.splat_means2d - 0.5 - np.ceil(radius)[:, None],
                p.splat_means2d - 0.5 + np.ceil(radius)[:, None] + twin.C.TILE_SIZE - 1,
            ],
            axis=1,
        )
        off = np.abs(edges / twin.C.TILE_SIZE - np.round(edges / twin.C.TILE_SIZE)) * twin.C.TILE_SIZE
        doubt = (np.abs(radius - np.round(radius)) < band) | (off < band[:, None]).any(axis=1)
    return doubt | (np.abs(t[:, 2] - p.near_plane) < 1e-5)


def assert_meets_bar(frame, reference, renderer: Renderer) -> None:
    """The bar for exact variants: one step outside the counted band, and PSNR."""
    steps = np.abs(frame.image.astype(int) - reference.image).max(axis=2)
    off = np.argwhere(steps > tolerances.IMAGE_MAX_STEPS)
    fields = reference_fields(renderer)
    assert len(off) <= tolerances.IMAGE_BAND_SHARE * steps.size + 1, f"{len(off)} pixels off by up to {steps.max()}"
    for y, x in off:
        assert is_on_threshold(fields, x, y), f"pixel {x},{y} is off by {steps[y, x]} and on no threshold"
    assert psnr(frame.image_f32, reference.image_f32) >= tolerances.IMAGE_MIN_PSNR
