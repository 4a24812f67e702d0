"""The specification of every kernel: one NumPy float64 function each, same names, same parameters.

Slow and plain. ``p`` holds the fields of the parameter struct (cuda/params.h) as arrays and numbers. The kernels
are compared with these functions stage by stage, and whole pictures with whole pictures.
Formulas: Kerbl et al. 2023 (3DGS); Zwicker et al. 2001 (EWA splatting).
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Optional, Tuple

import numpy as np

from edgegs.kernels.headers import constants

C = SimpleNamespace(**constants())
#: Degree-0 to degree-3 real spherical harmonics are sums of these.
SH_C0 = 0.28209479177387814
SH_C1 = 0.4886025119029199


def sh_basis(degree: int, directions: np.ndarray) -> np.ndarray:
    """Real spherical harmonics in 3DGS's order and signs: (N, 3) unit vectors -> (N, (degree + 1)^2).

    Source: Sloan, "Efficient Spherical Harmonic Evaluation" (2013).
    """
    x, y, z = directions.T
    basis = [np.full_like(x, SH_C0)]
    if degree >= 1:
        basis += [-SH_C1 * y, SH_C1 * z, -SH_C1 * x]
    if degree >= 2:
        c = 1.0925484305920792
        basis += [c * x * y, -c * y * z, 0.31539156525252005 * (2 * z * z - x * x - y * y)]
        basis += [-c * x * z, 0.5 * c * (x * x - y * y)]
    if degree >= 3:
        a, b, c = 0.5900435899266435, 2.890611442640554, 0.4570457994644658
        basis += [-a * y * (3 * x * x - y * y), b * x * y * z, -c * y * (4 * z * z - x * x - y * y)]
        basis += [0.3731763325901154 * z * (2 * z * z - 3 * x * x - 3 * y * y), -c * x * (4 * z * z - x * x - y * y)]
        basis += [0.5 * b * z * (x * x - y * y), -a * x * (x * x - 3 * y * y)]
    return np.stack(basis, axis=1)


def rotation_matrices(quats: np.ndarray) -> np.ndarray:
    """Unit quaternions (N, 4), w first -> rotation matrices (N, 3, 3)."""
    w, x, y, z = quats.T
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    return np.stack([np.stack(row, axis=1) for row in rows], axis=1)


def camera_points(p: SimpleNamespace) -> np.ndarray:
    """Means in camera space, (N, 3)."""
    viewmat = p.viewmat.reshape(3, 4)
    return p.splat_means @ viewmat[:, :3].T + viewmat[:, 3]


def covariances_2d(p: SimpleNamespace, t: np.ndarray) -> np.ndarray:
    """cov2d = J W R S S^T R^T W^T J^T + blur I, (N, 2, 2) in pixels^2; t is (N, 3) in camera space."""
    limit_x = C.FRUSTUM_SLACK * 0.5 * p.width / p.fx
    limit_y = C.FRUSTUM_SLACK * 0.5 * p.height / p.fy
    z = t[:, 2]
    x = np.clip(t[:, 0] / z, -limit_x, limit_x) * z
    y = np.clip(t[:, 1] / z, -limit_y, limit_y) * z
    zero = np.zeros_like(z)
    jacobian = np.stack(
        [np.stack([p.fx / z, zero, -p.fx * x / z**2], 1), np.stack([zero, p.fy / z, -p.fy * y / z**2], 1)], 1
    )
    a = jacobian @ p.viewmat.reshape(3, 4)[:, :3] @ rotation_matrices(p.splat_quats) * p.splat_scales[:, None, :]
    return a @ a.transpose(0, 2, 1) + C.COV2D_BLUR * np.eye(2)


def radii(cov: np.ndarray) -> np.ndarray:
    """3-sigma radius before rounding up, (N,) pixels, of 2D covariances (N, 2, 2)."""
    middle = 0.5 * (cov[:, 0, 0] + cov[:, 1, 1])
    half_difference = 0.5 * (cov[:, 0, 0] - cov[:, 1, 1])
    discriminant = half_difference**2 + cov[:, 0, 1] ** 2
    return C.RADIUS_SIGMAS * np.sqrt(middle + np.sqrt(np.maximum(C.EIGENVALUE_FLOOR, discriminant)))


def tile_rects(means2d: np.ndarray, radius: np.ndarray, n_tiles_x: int, n_tiles_y: int) -> np.ndarray:
    """The original's square of whole pixels -> (N, 4) tiles: x begin, y begin, x end, y end."""
    low = np.floor((means2d - 0.5 - radius[:, None]) / C.TILE_SIZE)
    high = np.floor((means2d - 0.5 + radius[:, None] + C.TILE_SIZE - 1) / C.TILE_SIZE)
    rects = np.concatenate([low, high], axis=1)
    return np.clip(rects, 0, np.array([n_tiles_x, n_tiles_y] * 2)).astype(np.int64)


def project_fp32_radius(p: SimpleNamespace) -> None:
    """World-space Gaussians -> 2D means, depths, conics, colours, tile rectangles and counts."""
    n_coefficients = (p.sh_degree + 1) ** 2
    p.splat_n_tiles[:] = 0
    p.block_counts[:] = 0
    if p.n_splats == 0:
        return
    t = camera_points(p)
    with np.errstate(all="ignore"):
        kept = (t[:, 2] > p.near_plane) & (t[:, 2] < p.far_plane)
        t[~kept] = [0.0, 0.0, 1.0]
        cov = covariances_2d(p, t)
        det = cov[:, 0, 0] * cov[:, 1, 1] - cov[:, 0, 1] ** 2
        means2d = t[:, :2] / t[:, 2:] * [p.fx, p.fy] + [p.cx, p.cy]
        rects = tile_rects(means2d, np.ceil(radii(cov)), p.n_tiles_x, p.n_tiles_y)
        sizes = np.maximum(rects[:, 2:] - rects[:, :2], 0)
        kept &= (det > 0) & np.isfinite(det) & (np.abs(means2d) < 1e9).all(axis=1)
    n_tiles = np.where(kept, sizes[:, 0] * sizes[:, 1], 0)

    directions = p.splat_means - p.camera_position
    with np.errstate(all="ignore"):
        directions = directions / np.linalg.norm(directions, axis=1, keepdims=True)
    basis = sh_basis(p.sh_degree, directions)
    colours = np.einsum("nk,nkc->nc", basis, p.splat_sh.reshape(-1, n_coefficients, 3)) + C.SH_OFFSET

    p.splat_means2d[:] = means2d
    p.splat_depths[:] = t[:, 2]
    p.splat_conics[:, 0] = cov[:, 1, 1] / det
    p.splat_conics[:, 1] = -cov[:, 0, 1] / det
    p.splat_conics[:, 2] = cov[:, 0, 0] / det
    p.splat_conics[:, 3] = p.splat_opacities
    p.splat_colors[:] = np.maximum(colours, 0)
    p.splat_rects[:] = rects
    p.splat_n_tiles[:] = n_tiles
    p.block_counts[0] = [n_tiles.sum(), (n_tiles > 0).sum()]


def duplicate_ref64(p: SimpleNamespace) -> None:
    """One instance for each tile of each splat, in the order of splats, then rows, then columns."""
    n_tiles = p.splat_n_tiles.astype(np.int64)
    splats = np.repeat(np.arange(p.n_splats), n_tiles)
    p.counters[:] = [len(splats), (n_tiles > 0).sum()]
    splats = splats[: p.instance_capacity]
    first = np.cumsum(n_tiles) - n_tiles
    index = np.arange(len(splats)) - first[splats]
    rects = p.splat_rects[splats].astype(np.int64)
    columns = rects[:, 2] - rects[:, 0]
    tiles = (rects[:, 1] + index // columns) * p.n_tiles_x + rects[:, 0] + index % columns
    depth_bits = p.splat_depths[splats].astype(np.float32).view(np.uint32)
    p.instance_keys_unsorted[: len(splats)] = tiles.astype(np.uint64) << np.uint64(32) | depth_bits
    p.instance_splats_unsorted[: len(splats)] = splats


def sort_count_64(p: SimpleNamespace) -> None:
    """The twin needs no table: scatter sorts by the digit at once."""


def sort_scan_rows(p: SimpleNamespace) -> None:
    """See sort_count_64."""


def sort_scatter_64(p: SimpleNamespace) -> None:
    """One stable pass by the digit of ``n_bits`` bits from ``first_bit``."""
    n_items = min(int(p.n_items[0]), p.capacity)
    digits = p.keys_in[:n_items] >> np.uint64(p.first_bit) & np.uint64((1 << p.n_bits) - 1)
    order = np.argsort(digits, kind="stable")
    p.keys_out[:n_items] = p.keys_in[:n_items][order]
    p.values_out[:n_items] = p.values_in[:n_items][order]


def ranges_ref64(p: SimpleNamespace) -> None:
    """First instance of each tile, and after the last tile the end of all."""
    n_instances = min(int(p.counters[0]), p.instance_capacity)
    tiles = p.instance_keys[:n_instances] >> np.uint64(32)
    p.tile_starts[:] = np.searchsorted(tiles, np.arange(p.n_tiles_x * p.n_tiles_y + 1, dtype=np.uint64))


def rasterize_block_exact(p: SimpleNamespace) -> None:
    """Front-to-back compositing of each tile's list; see kernels' rules in cuda/constants.h."""
    for tile in range(p.n_tiles_x * p.n_tiles_y):
        x0, y0 = tile % p.n_tiles_x * C.TILE_SIZE, tile // p.n_tiles_x * C.TILE_SIZE
        x1, y1 = min(x0 + C.TILE_SIZE, p.width), min(y0 + C.TILE_SIZE, p.height)
        centres = np.stack(np.meshgrid(np.arange(x0, x1) + 0.5, np.arange(y0, y1) + 0.5), axis=-1).reshape(-1, 2)
        splats = p.instance_splats[p.tile_starts[tile] : p.tile_starts[tile + 1]]
        rgb, transmittance = composite(p, splats, centres)
        rgb = rgb + transmittance[:, None] * p.background
        shape = (y1 - y0, x1 - x0)
        byte = np.floor(np.clip(rgb[:, ::-1], 0, 1) * 255 + 0.5).astype(np.uint8)
        p.pixel_bgr[y0:y1, x0:x1] = byte.reshape(*shape, 3)
        if p.pixel_rgb is not None:
            p.pixel_rgb[y0:y1, x0:x1] = rgb.reshape(*shape, 3)
        if p.pixel_transmittance is not None:
            p.pixel_transmittance[y0:y1, x0:x1] = transmittance.reshape(shape)


def alphas_of(p: SimpleNamespace, splats: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """alpha of splats (S,) at pixel centres (P, 2) -> (S, P); 0 where it is below 1/255 (skipped)."""
    dx = centres[None, :, 0] - p.splat_means2d[splats, 0][:, None]
    dy = centres[None, :, 1] - p.splat_means2d[splats, 1][:, None]
    xx, xy, yy, opacity = (p.splat_conics[splats, i][:, None] for i in range(4))
    power = -0.5 * (xx * dx * dx + yy * dy * dy) - xy * dx * dy
    alpha = np.minimum(C.ALPHA_MAX, opacity * np.exp(np.minimum(power, 0)))
    return np.where((power <= 0) & (alpha >= C.ALPHA_MIN), alpha, 0)


def composite(p: SimpleNamespace, splats: np.ndarray, centres: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    """Splats (S,) front to back at pixel centres (P, 2) -> RGB (P, 3) and transmittance (P,), no background."""
    rgb = np.zeros((len(centres), 3))
    transmittance = np.ones(len(centres))
    alive = np.ones(len(centres), bool)
    for first in range(0, len(splats), 64):
        step = splats[first : first + 64]
        alpha = alphas_of(p, step, centres) * alive
        after = transmittance * np.cumprod(1 - alpha, axis=0)
        before = np.concatenate([transmittance[None], after[:-1]])
        # a pixel stops at the first splat that would take it under the minimum, and does not draw it
        stops = (after < C.TRANSMITTANCE_MIN) & (alpha > 0)
        drawn = np.cumsum(stops, axis=0) == 0
        rgb += np.einsum("sp,sc->pc", before * alpha * drawn, p.splat_colors[step])
        transmittance = transmittance * np.prod(np.where(drawn, 1 - alpha, 1), axis=0)
        alive &= drawn[-1]
        if not alive.any():
            break
    return rgb, transmittance


KERNELS = {
    function.__name__: function
    for function in (
        project_fp32_radius,
        duplicate_ref64,
        sort_count_64,
        sort_scan_rows,
        sort_scatter_64,
        ranges_ref64,
        rasterize_block_exact,
    )
}


def run(kernel: str, p: SimpleNamespace) -> Optional[str]:
    """Run the twin of a kernel entry; returns what is wrong when there is none."""
    if kernel not in KERNELS:
        return f"the reference has no twin of {kernel}"
    KERNELS[kernel](p)
    return None
