"""The room to look at: late sun through two windows, a lamp already lit.

z up, metres; x from -4 to 4, y from -3.5 to 3.5, floor at 0, ceiling at 3. The windows are in the +y wall.
``synth_furniture`` says what stands where, ``synth_light`` lights it, and this file spreads the splats.
"""

from __future__ import annotations

import functools
from typing import List, Optional, Tuple

import numpy as np

from edgegs.scene.synth_furniture import furnish
from edgegs.scene.synth_light import Baked, Space, bake, sun_light
from edgegs.scene.synth_math import dc_from_rgb, even_points, quats_from_axes, shares
from edgegs.scene.synth_surfaces import Samples, Surface, sample

EYE, TARGET, FOCAL_OVER_WIDTH = (-3.25, -2.9, 1.58), (0.95, 1.35, 0.95), 0.56
ORBIT_CENTER, ORBIT_RADIUS, ORBIT_HEIGHT = (0.45, -0.1, 0.85), 2.3, 0.8

_BLOCK = 1 << 15
_SHELL_SHARE = 0.05


@functools.lru_cache(maxsize=1)
def _lit_room() -> Tuple[List[Surface], List[Surface], Space, List[Baked]]:
    inside, outside, space = furnish()
    return inside, outside, space, bake(inside, space)


def fill(arrays: Tuple[np.ndarray, ...], seed: int) -> None:
    """Fill means, scales, quats, opacities and sh (n, 16, 3), float32, in place."""
    inside, outside, space, baked = _lit_room()
    n = len(arrays[0])
    n_shell = round(_SHELL_SHARE * n)
    start = 0
    for surfaces, total in ((inside, n - n_shell), (outside, n_shell)):
        areas = np.array([surface.cell_areas.sum() for surface in surfaces])
        counts = shares(total, areas * [surface.density for surface in surfaces])
        for i, (surface, count) in enumerate(zip(surfaces, counts)):
            rng = np.random.default_rng([seed, i, len(surfaces)])
            shift = rng.random(2)
            for first in range(0, int(count), _BLOCK):
                last = min(int(count), first + _BLOCK)
                places = even_points(first, last, shift, surface.size[0] / surface.size[1])
                places = (places + rng.normal(0, 0.06, places.shape) / np.sqrt(count)) % 1.0
                spacing = np.sqrt(areas[i] / count)
                strip = _strip_axis(surface, spacing)
                if strip is not None:
                    places[:, strip] = 0.5 + 0.1 * (places[:, strip] - 0.5)
                lit = baked[i] if surfaces is inside else None
                part = slice(start, start + last - first)
                _write(arrays, part, rng, surface, sample(surface, places), spacing, lit, space)
                start = part.stop


def _write(
    arrays: Tuple[np.ndarray, ...],
    part: slice,
    rng: np.random.Generator,
    surface: Surface,
    at: Samples,
    spacing: float,
    lit: Optional[Baked],
    space: Space,
) -> None:
    means, scales, quats, opacities, sh = arrays
    n = len(at.points)
    means[part] = at.points
    quats[part] = quats_from_axes(at.tangents, np.cross(at.normals, at.tangents), at.normals)
    # 0.68 of the spacing closes the surface; log-normal, but little, or holes open.
    sigma = 0.68 * spacing * np.exp(rng.normal(0, 0.08, (n, 2)))
    sigma *= np.sqrt(surface.stretch) ** np.array([1.0, -1.0])
    strip = _strip_axis(surface, spacing)
    if strip is not None:
        width = surface.size[strip]
        sigma[:, strip], sigma[:, 1 - strip] = 0.40 * width, 0.80 * spacing * spacing / width
    elif surface.open_edges:
        sigma = np.minimum(sigma, np.maximum(0.22 * spacing, 0.75 * at.border))
    scales[part, :2] = sigma
    scales[part, 2] = np.minimum(0.06 * spacing, 0.004) + 1e-4
    if surface.tube_radius and spacing > 3 * surface.tube_radius:
        # Too few splats to go round: a row of cigars along the middle.
        means[part] = at.points - surface.tube_radius * at.normals
        scales[part, 0] = scales[part, 2] = 0.7 * surface.tube_radius
        scales[part, 1] = 0.62 * spacing * max(1.0, spacing / (2 * np.pi * surface.tube_radius))
    opacities[part] = np.clip(rng.beta(14, 1.0, n), 0.05, 0.995)
    albedo = surface.paint(at.points, at.uv, spacing)
    sh[part] = 0.0
    if surface.emits or lit is None:
        sh[part, 0] = dc_from_rgb(_display(albedo))
        return
    irradiance = at.mix(lit.irradiance) + sun_light(at.points, at.normals, space, np.full(n, surface.through))
    radiance = albedo / np.pi * irradiance
    mirror = np.zeros((n, 16, 3))
    if surface.gloss > 0:
        mirror = surface.gloss * at.mix(lit.mirror)
        radiance = radiance + np.maximum(mirror[:, 0], 0) * 0.28209479
    shown = _display(radiance)
    # The picture's tone curve bends; follow its tangent for what changes with the view.
    slope = (_display(radiance * 1.05 + 1e-4) - shown) / (radiance * 0.05 + 1e-4)
    coefficients = np.minimum(slope, 3.0)[:, None, :] * mirror
    sh[part] = coefficients
    sh[part, 0] = dc_from_rgb(shown)


def _strip_axis(surface: Surface, spacing: float) -> Optional[int]:
    """The axis across a surface so narrow that one row of splats, as wide as it is, draws it best; else None."""
    axis = int(np.argmin(surface.size))
    return axis if surface.open_edges and surface.size[axis] < 2.2 * spacing else None


def _display(radiance: np.ndarray) -> np.ndarray:
    """Linear radiance to the 0..1 of a screen: a filmic curve (Narkowicz's fit of ACES), then sRGB's gamma."""
    x = np.maximum(radiance, 0)
    y = x * (2.51 * x + 0.03) / (x * (2.43 * x + 0.59) + 0.14)
    return np.clip(y, 0, 1) ** (1 / 2.2)
