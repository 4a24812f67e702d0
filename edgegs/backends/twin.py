"""The specification of every kernel: one NumPy float64 function each, same names, same parameters.

Slow and plain. ``p`` holds the fields of the parameter struct (cuda/params.h) as arrays and numbers. The kernels
are compared with these functions stage by stage, and whole pictures with whole pictures. Key ``bins``: twin_bins.py.
Formulas: Kerbl et al. 2023 (3DGS); Zwicker et al. 2001 (EWA splatting).
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Callable, Optional, Tuple

import numpy as np

from edgegs.kernels.headers import constants

#: Pixels: x begin, y begin, x end, y end.
Box = Tuple[int, int, int, int]
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


def covariances_2d(p: SimpleNamespace, t: np.ndarray, scales: np.ndarray, quats: np.ndarray) -> np.ndarray:
    """cov2d = J W R S S^T R^T W^T J^T + blur I, (N, 2, 2) in pixels^2; t is (N, 3) in camera space."""
    z = t[:, 2]
    x = np.clip(t[:, 0] / z, -p.slope_x_max, p.slope_x_max) * z
    y = np.clip(t[:, 1] / z, -p.slope_y_max, p.slope_y_max) * z
    zero = np.zeros_like(z)
    jacobian = np.stack(
        [np.stack([p.fx / z, zero, -p.fx * x / z**2], 1), np.stack([zero, p.fy / z, -p.fy * y / z**2], 1)], 1
    )
    a = jacobian @ p.viewmat.reshape(3, 4)[:, :3] @ rotation_matrices(quats) * scales[:, None, :]
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


def attributes(p: SimpleNamespace, storage: str) -> SimpleNamespace:
    """Scales (N, 3), quats (N, 4), opacities (N,) and SH (N, K, 3) in float64, as the storage keeps them."""
    n_coefficients = (p.sh_degree + 1) ** 2
    if storage == "fp32":
        sh = p.splat_sh.reshape(-1, n_coefficients, 3)
        return SimpleNamespace(scales=p.splat_scales, quats=p.splat_quats, opacities=p.splat_opacities, sh=sh)
    halves = p.splat_halves.view(np.float16).astype(np.float64)
    steps = p.splat_sh_words.view(np.int8).reshape(p.n_splats, 4 * p.sh_words)[:, : 3 * n_coefficients]
    degrees = np.floor(np.sqrt(np.arange(n_coefficients))).astype(int)
    sh = steps.reshape(-1, n_coefficients, 3) * p.sh_scales.reshape(4, 3)[degrees]
    scales = halves[:, 4:7] * p.half_scale
    return SimpleNamespace(scales=scales, quats=halves[:, :4], opacities=halves[:, 7], sh=sh)


def projections(p: SimpleNamespace, storage: str) -> SimpleNamespace:
    """World-space Gaussians on the screen, before anything is looked for there.

    Returns:
        ``kept`` (N,) bool, whether a splat can be drawn; ``means2d`` (N, 2), ``depths`` (N,), ``cov`` (N, 2, 2),
        ``det`` (N,), ``opacities`` (N,), ``colours`` (N, 3).
    """
    a = attributes(p, storage)
    t = camera_points(p)
    opacities = a.opacities
    with np.errstate(all="ignore"):
        kept = (t[:, 2] > p.near_plane) & (t[:, 2] < p.far_plane)
        t[~kept] = [0.0, 0.0, 1.0]
        cov = covariances_2d(p, t, a.scales, a.quats)
        det = cov[:, 0, 0] * cov[:, 1, 1] - cov[:, 0, 1] ** 2
        means2d = t[:, :2] / t[:, 2:] * [p.fx, p.fy] + [p.cx, p.cy]
        kept &= (det > 0) & np.isfinite(det) & (np.abs(means2d) < 1e9).all(axis=1)
        directions = p.splat_means - p.camera_position
        directions = directions / np.linalg.norm(directions, axis=1, keepdims=True)
        if p.antialiased:  # Mip-Splatting (Yu et al. 2024), eq. 12
            sharp = cov - C.COV2D_BLUR * np.eye(2)
            sharp_det = np.maximum(sharp[:, 0, 0] * sharp[:, 1, 1] - sharp[:, 0, 1] ** 2, 0)
            opacities = opacities * np.sqrt(sharp_det / det)
    colours = np.einsum("nk,nkc->nc", sh_basis(p.sh_degree, directions), a.sh) + C.SH_OFFSET
    colours = np.clip(np.nan_to_num(colours, nan=0.0), 0, C.COLOUR_MAX)
    return SimpleNamespace(
        kept=kept, means2d=means2d, depths=t[:, 2], cov=cov, det=det, opacities=opacities, colours=colours
    )


def project_all(p: SimpleNamespace, storage: str, culling: str) -> SimpleNamespace:
    """World-space Gaussians -> 2D means, depths, conics and colours in ``p``; returns each splat's rows of tiles."""
    s = projections(p, storage)
    p.splat_means2d[:] = s.means2d
    p.splat_depths[:] = s.depths
    p.splat_colors[:] = s.colours
    p.splat_conics[:, 3] = s.opacities
    with np.errstate(all="ignore"):
        p.splat_conics[:, 0] = s.cov[:, 1, 1] / s.det
        p.splat_conics[:, 1] = -s.cov[:, 0, 1] / s.det
        p.splat_conics[:, 2] = s.cov[:, 0, 0] / s.det
        if culling == "radius":
            rows = rows_of_rects(tile_rects(s.means2d, np.ceil(radii(s.cov)), p.n_tiles_x, p.n_tiles_y), s.kept)
        else:
            rows = rows_of_ellipses(p, s.cov, s.kept)
    return rows


def rows_of_rects(rects: np.ndarray, kept: np.ndarray) -> SimpleNamespace:
    """Rows of tiles of rectangles: ``splat``, ``y``, ``begin``, ``end`` (R,) each, in the order of splats, then y."""
    heights = np.where(kept & (rects[:, 2] > rects[:, 0]), np.maximum(rects[:, 3] - rects[:, 1], 0), 0)
    splat = np.repeat(np.arange(len(rects)), heights)
    y = rects[splat, 1] + np.arange(len(splat)) - np.repeat(np.cumsum(heights) - heights, heights)
    return SimpleNamespace(splat=splat, y=y, begin=rects[splat, 0], end=rects[splat, 2], rects=rects)


def bounds_squared(opacities: np.ndarray) -> np.ndarray:
    """Squared Mahalanobis distance where alpha falls to 1/255, with the kernels' slack; 0 where nothing is drawn."""
    t = 2 * np.log(np.maximum(opacities / C.ALPHA_MIN, 1e-300))
    return np.where(t > 0, t + C.TIGHT_SLACK, np.where(t > -C.TIGHT_SLACK, C.TIGHT_SLACK, 0))


def tiles_with_centres(low: np.ndarray, high: np.ndarray, n_tiles: int) -> Tuple[np.ndarray, np.ndarray]:
    """Tiles (begin, end) that have a pixel centre in [low, high]."""
    first, last = np.ceil(low - 0.5), np.floor(high - 0.5)
    begin = np.clip(np.floor(first / C.TILE_SIZE), 0, n_tiles)
    end = np.clip(np.floor(last / C.TILE_SIZE) + 1, 0, n_tiles)
    return begin.astype(np.int64), np.where(last >= first, np.maximum(end, begin), begin).astype(np.int64)


def rows_of_ellipses(p: SimpleNamespace, cov: np.ndarray, kept: np.ndarray) -> SimpleNamespace:
    """Rows of tiles that the ellipses reach where alpha is at least 1/255 (see CullTight in cuda/cull.cuh)."""
    u, v = p.splat_means2d.T
    xx, xy, yy, opacities = p.splat_conics.T
    t = bounds_squared(opacities)
    width, height = np.sqrt(t * cov[:, 0, 0]), np.sqrt(t * cov[:, 1, 1])
    x_begin, x_end = tiles_with_centres(u - width, u + width, p.n_tiles_x)
    y_begin, y_end = tiles_with_centres(v - height, v + height, p.n_tiles_y)
    drawn = kept & (t > 0)
    rows = rows_of_rects(np.stack([x_begin, y_begin, np.where(drawn, x_end, x_begin), y_end], axis=1), drawn)
    s = rows.splat
    low = np.clip(rows.y * C.TILE_SIZE + 0.5 - v[s], -height[s], height[s])
    high = np.clip(rows.y * C.TILE_SIZE + C.TILE_SIZE - 0.5 - v[s], -height[s], height[s])

    def edge(lean: np.ndarray, side: float) -> np.ndarray:
        d = np.clip(lean, low, high)
        root = np.sqrt(np.maximum(xx[s] * t[s] * (1 - (d / height[s]) ** 2), 0))
        return u[s] + (-xy[s] * d + side * root) / xx[s]

    lean = xy[s] * width[s] / yy[s]
    begin, end = tiles_with_centres(edge(lean, -1), edge(-lean, 1), p.n_tiles_x)
    rows.begin = np.maximum(begin, x_begin[s])
    rows.end = np.maximum(np.minimum(end, x_end[s]), rows.begin)
    return rows


def project(p: SimpleNamespace, storage: str, culling: str) -> None:
    """Stage project: also tile counts, and the rows of tiles for duplicate (``p.rows``, the twin's own)."""
    p.rows = project_all(p, storage, culling)
    p.splat_n_tiles[:] = np.bincount(p.rows.splat, p.rows.end - p.rows.begin, p.n_splats)
    p.splat_rects[:] = p.rows.rects
    p.block_counts[:] = 0
    p.block_counts[0] = [p.splat_n_tiles.sum(dtype=np.int64), (p.splat_n_tiles > 0).sum()]


def instances_of(p: SimpleNamespace, rows: SimpleNamespace) -> Tuple[np.ndarray, np.ndarray]:
    """Instances (splat, tile), each (I,) int64, of rows of tiles, in their order."""
    widths = rows.end - rows.begin
    row = np.repeat(np.arange(len(widths)), widths)
    x = rows.begin[row] + np.arange(len(row)) - np.repeat(np.cumsum(widths) - widths, widths)
    return rows.splat[row], rows.y[row] * p.n_tiles_x + x


def write_instances(p: SimpleNamespace, splats: np.ndarray, keys: np.ndarray) -> None:
    """All that fit; the count goes on."""
    p.n_instances[0] = len(splats)
    n = min(len(splats), p.instance_capacity)
    p.instance_keys_unsorted[:n] = keys[:n]
    p.instance_splats_unsorted[:n] = splats[:n]


def duplicate_ref64(p: SimpleNamespace) -> None:
    """One instance for each tile of each splat, in the order of splats, then rows, then columns."""
    splats, tiles = instances_of(p, p.rows)
    p.n_visible[0] = (p.splat_n_tiles > 0).sum()
    bits = p.splat_depths[splats].astype(np.float32).view(np.uint32)
    write_instances(p, splats, tiles.astype(np.uint64) << np.uint64(32) | bits)


def project_packed32(p: SimpleNamespace, storage: str, culling: str) -> None:
    """Stages project and duplicate at once; the key holds the tile and the quantised depth (RoofGS, IV-A2)."""
    rows = project_all(p, storage, culling)
    splats, tiles = instances_of(p, rows)
    p.n_visible[0] = len(np.unique(splats))
    # the bits of a float rise like its logarithm: near depths get the finer steps
    rise = p.splat_depths[splats].astype(np.float32).view(np.int32).astype(np.int64) - int(p.depth_begin)
    steps = np.floor(rise * p.depth_scale)
    steps = np.clip(steps, 0, 2**p.depth_bits - 1).astype(np.uint32)
    write_instances(p, splats, tiles.astype(np.uint32) << np.uint32(p.depth_bits) | steps)


def sort_compact(p: SimpleNamespace) -> None:
    """The visible splats, in their order, with the bits of their depth."""
    visible = np.nonzero(p.splat_n_tiles > 0)[0]
    p.n_visible[0] = len(visible)
    p.visible_splats_unsorted[: len(visible)] = visible
    p.visible_depths[: len(visible)] = p.splat_depths[visible].astype(np.float32).view(np.uint32)


def duplicate_count(p: SimpleNamespace) -> None:
    """The twin needs no counts of shares."""


def duplicate_split(p: SimpleNamespace) -> None:
    """Instances in the order of the sorted splats; the key is the tile alone."""
    splats, tiles = instances_of(p, p.rows)
    rank = np.empty(p.n_splats, np.int64)
    n_visible = int(p.n_visible[0])
    rank[p.visible_splats[:n_visible]] = np.arange(n_visible)
    order = np.argsort(rank[splats], kind="stable")
    write_instances(p, splats[order], tiles[order])


def sort_count(p: SimpleNamespace) -> None:
    """The twin needs no table: scatter sorts by the digit at once."""


def sort_scan(p: SimpleNamespace) -> None:
    """See sort_count."""


def sort_scatter(p: SimpleNamespace) -> None:
    """One stable pass by the digit of ``n_bits`` bits from ``first_bit``."""
    n_items = min(int(p.n_items[0]), p.capacity)
    keys = p.keys_in[:n_items].astype(np.uint64)
    order = np.argsort(keys >> np.uint64(p.first_bit) & np.uint64((1 << p.n_bits) - 1), kind="stable")
    p.keys_out[:n_items] = p.keys_in[:n_items][order]
    p.values_out[:n_items] = p.values_in[:n_items][order]


def ranges(p: SimpleNamespace, key: str) -> None:
    """First instance of each tile, and after the last tile the end of all."""
    n_instances = min(int(p.n_instances[0]), p.instance_capacity)
    shift = {"ref64": 32, "packed32": p.depth_bits, "split": 0}[key]
    tiles = p.instance_keys[:n_instances].astype(np.uint64) >> np.uint64(shift)
    p.tile_starts[:] = np.searchsorted(tiles, np.arange(p.n_tiles_x * p.n_tiles_y + 1, dtype=np.uint64))


def rasterize(p: SimpleNamespace) -> None:
    """Front-to-back compositing of each tile's list; the rules are in cuda/constants.h."""
    for tile in range(p.n_tiles_x * p.n_tiles_y):
        box, centres, splats = tile_of(p, tile)
        write_pixels(p, box, *composite(splats, partial(alphas_of, p), p.splat_colors, centres))


def write_pixels(p: SimpleNamespace, box: Box, rgb: np.ndarray, transmittance: np.ndarray) -> None:
    """RGB (P, 3) and transmittance (P,) of a box's pixels, over the background or the backdrop."""
    x0, y0, x1, y1 = box
    shape = (y1 - y0, x1 - x0)
    behind = p.background
    if p.pixel_backdrop is not None:
        behind = p.pixel_backdrop[y0:y1, x0:x1, ::-1].reshape(-1, 3) / 255
    rgb = rgb + transmittance[:, None] * behind
    byte = np.floor(np.clip(rgb[:, ::-1], 0, 1) * 255 + 0.5).astype(np.uint8)
    p.pixel_bgr[y0:y1, x0:x1] = byte.reshape(*shape, 3)
    if p.pixel_rgb is not None:
        p.pixel_rgb[y0:y1, x0:x1] = rgb.reshape(*shape, 3)
    if p.pixel_transmittance is not None:
        p.pixel_transmittance[y0:y1, x0:x1] = transmittance.reshape(shape)


def box_of(p: SimpleNamespace, x0: int, y0: int, width: int, height: int) -> Tuple[Box, np.ndarray]:
    """The pixels of a rectangle that the picture has, and their centres (P, 2), row by row."""
    x1, y1 = min(x0 + width, p.width), min(y0 + height, p.height)
    grid = np.meshgrid(np.arange(x0, x1) + 0.5, np.arange(y0, y1) + 0.5)
    return (x0, y0, x1, y1), np.stack(grid, axis=-1).reshape(-1, 2)


def tile_of(p: SimpleNamespace, tile: int) -> Tuple[Box, np.ndarray, np.ndarray]:
    """A tile's pixels, their centres (P, 2), and its splats (S,) in order."""
    x0, y0 = tile % p.n_tiles_x * C.TILE_SIZE, tile // p.n_tiles_x * C.TILE_SIZE
    splats = p.instance_splats[p.tile_starts[tile] : p.tile_starts[tile + 1]]
    return (*box_of(p, x0, y0, C.TILE_SIZE, C.TILE_SIZE), splats)


def alphas_of(p: SimpleNamespace, splats: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """alpha of splats (S,) at pixel centres (P, 2) -> (S, P); 0 where it is below 1/255 (skipped)."""
    dx = centres[None, :, 0] - p.splat_means2d[splats, 0][:, None]
    dy = centres[None, :, 1] - p.splat_means2d[splats, 1][:, None]
    xx, xy, yy, opacity = (p.splat_conics[splats, i][:, None] for i in range(4))
    power = -0.5 * (xx * dx * dx + yy * dy * dy) - xy * dx * dy
    alpha = np.minimum(C.ALPHA_MAX, opacity * np.exp(np.minimum(power, 0)))
    return np.where((power <= 0) & (alpha >= C.ALPHA_MIN), alpha, 0)


def score(p: SimpleNamespace) -> None:
    """Add each splat's sum of (T alpha)^2 over the pixels of the frame just drawn, in whole steps."""
    for tile in range(p.n_tiles_x * p.n_tiles_y):

        def add(splats: np.ndarray, weights: np.ndarray) -> None:
            steps = np.floor(weights**2 * C.SCORE_STEPS + 0.5).astype(np.uint64)
            np.add.at(p.splat_scores, splats, steps.sum(axis=1))

        _, centres, splats = tile_of(p, tile)
        composite(splats, partial(alphas_of, p), p.splat_colors, centres, add)


def composite(
    splats: np.ndarray,
    alphas: Callable[[np.ndarray, np.ndarray], np.ndarray],
    colours: np.ndarray,
    centres: np.ndarray,
    note: Optional[Callable[[np.ndarray, np.ndarray], None]] = None,
) -> Tuple[np.ndarray, np.ndarray]:
    """Splats (S,) front to back at pixel centres (P, 2) -> RGB (P, 3) and transmittance (P,), no background.

    Args:
        alphas: of splats (S',) at the centres, (S', P).
        colours: of all splats, (N, 3) RGB.
        note: is told the weights T alpha of some splats (S',) at all pixels, (S', P), for all of them in turn.
    """
    rgb = np.zeros((len(centres), 3))
    transmittance = np.ones(len(centres))
    alive = np.ones(len(centres), bool)
    for first in range(0, len(splats), 64):
        step = splats[first : first + 64]
        alpha = alphas(step, centres) * alive
        after = transmittance * np.cumprod(1 - alpha, axis=0)
        before = np.concatenate([transmittance[None], after[:-1]])
        # a pixel stops at the first splat that would take it under the minimum, and does not draw it
        stops = (after < C.TRANSMITTANCE_MIN) & (alpha > 0)
        drawn = np.cumsum(stops, axis=0) == 0
        weights = before * alpha * drawn
        rgb += np.einsum("sp,sc->pc", weights, colours[step])
        if note is not None:
            note(step, weights)
        transmittance = transmittance * np.prod(np.where(drawn, 1 - alpha, 1), axis=0)
        alive &= drawn[-1]
        if not alive.any():
            break
    return rgb, transmittance
