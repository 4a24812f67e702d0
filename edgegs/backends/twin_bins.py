"""The specification of key ``bins`` (cuda/bins.cuh, cuda/patch.cuh), as twin.py is that of the other kernels.

A list entry is a splat with a mask of the patches that it may touch; the twin blends just those pixels, exactly, so
that a patch that a mask forgets is a hole in its pictures too.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Iterator, Tuple

import numpy as np

from edgegs.backends.twin import Box, C, box_of, composite, projections, write_pixels

#: The words of a record that are floats, in their order.
FLOATS = ("u", "v", "lean", "xx", "yy")
#: Entries that a warp looks at together.
WALK = 32 * C.WALK_ROWS


def read_records(words: np.ndarray) -> SimpleNamespace:
    """Records (N, 8) uint32 in float64: ``u``, ``v``, ``lean``, ``xx``, ``yy``, ``log2_opacity``, ``depth`` (N,) and
    ``colours`` (N, 3). log2(alpha) = log2_opacity + xx (dx + lean dy)^2 + yy dy^2, both squares negative."""
    with np.errstate(all="ignore"):  # the rows of splats that are not drawn were never written
        floats = np.ascontiguousarray(words).view(np.float32).astype(np.float64)
        halves = np.ascontiguousarray(words[:, 5:7]).view(np.float16).astype(np.float64)
    fields = dict(zip(FLOATS, floats.T), depth=floats[:, 7], colours=halves[:, [1, 2, 3]])
    return SimpleNamespace(log2_opacity=(words[:, 5] & 0xFFFF) / -C.OPACITY_STEPS, **fields)


def write_records(p: SimpleNamespace, s: SimpleNamespace) -> np.ndarray:
    """The records of projections into ``p``; returns which splats can reach 1/255, (N,) bool."""
    with np.errstate(all="ignore"):
        # the clamp of alpha is made on the opacity
        steps = -np.log2(np.minimum(s.opacities, C.ALPHA_MAX)) * C.OPACITY_STEPS
        drawn = s.kept & (steps < C.OPACITY_STEPS * C.LOG2_255)
        variance_y, log2_e = s.cov[:, 1, 1], np.log2(np.e)
        xx, yy = -0.5 * log2_e * variance_y / s.det, -0.5 * log2_e / variance_y
        floats = np.stack([*s.means2d.T, -s.cov[:, 0, 1] / variance_y, xx, yy], axis=1)
    halves = p.splat_records[:, 5:7].copy().view(np.float16)
    halves[:, 1:] = s.colours
    p.splat_records[:, :5] = np.where(drawn[:, None], floats, 0).astype(np.float32).view(np.uint32)
    p.splat_records[:, 5:7] = halves.view(np.uint32)
    p.splat_records[:, 5] &= np.uint32(0xFFFF0000)
    p.splat_records[:, 5] |= np.floor(np.where(drawn, steps, 0) + 0.5).astype(np.uint32)
    p.splat_records[:, 7] = s.depths.astype(np.float32).view(np.uint32)
    return drawn


def bins_with_centres(low: np.ndarray, high: np.ndarray, n_pixels: int, size: int) -> Tuple[np.ndarray, np.ndarray]:
    """Bins (begin, end) that have a pixel centre of the picture in [low, high]."""
    first, last = np.ceil(low - 0.5), np.floor(high - 0.5)
    some = (last >= first) & (last >= 0) & (first < n_pixels)
    begin = np.where(some, np.clip(first, 0, n_pixels - 1) // size, 0).astype(np.int64)
    return begin, np.where(some, np.clip(last, 0, n_pixels - 1) // size + 1, begin).astype(np.int64)


def ellipses(records: SimpleNamespace) -> SimpleNamespace:
    """Where alpha reaches 1/255: ``reach``, half ``width`` and ``height`` of the box, and the ``turn``, the height over
    the centre at which the ellipse reaches farthest to the right, (N,) each."""
    reach = records.log2_opacity + C.LOG2_255 + C.REACH_SLACK
    variance_y = -1 / records.yy
    covariance = -records.lean * variance_y
    variance_x = -1 / records.xx - records.lean * covariance
    width, height = np.sqrt(reach * variance_x), np.sqrt(reach * variance_y)
    return SimpleNamespace(reach=reach, width=width, height=height, turn=covariance / variance_x * width)


def patch_masks(p: SimpleNamespace, records: SimpleNamespace, e: SimpleNamespace, splat: np.ndarray,
                bin_x: np.ndarray, bin_y: np.ndarray) -> np.ndarray:  # fmt: skip
    """Masks (I,) uint32 of bins' patches, row by row, for some of the splats.

    In each row of patches that the ellipse comes to, those are taken that have a pixel centre on both sides of it, or
    within: between the left and right end of the slice that the row's pixel centres bound.
    """
    size = 1 << p.bin_shift
    patch_width = size // C.BIN_COLUMNS
    reach, height, turn = e.reach[splat], e.height[splat], e.turn[splat]
    xx, yy, lean, u = (getattr(records, name)[splat] for name in ("xx", "yy", "lean", "u"))
    top = bin_y * size + 0.5 - records.v[splat]  # of the first pixel centres, over the ellipse's
    first_centre = bin_x * size + 0.5
    masks = np.zeros(len(splat), np.uint32)
    for row in range(size // C.PATCH_HEIGHT):
        low = top + row * C.PATCH_HEIGHT
        touched = (low + C.PATCH_HEIGHT > -height) & (low <= height)
        ends = []
        for side in (-1, 1):
            d = np.clip(np.clip(side * turn, low, low + C.PATCH_HEIGHT - 1), -height, height)
            chord = np.sqrt(np.maximum((reach + yy * d * d) / -xx, 0))
            ends.append(u - lean * d + side * chord - first_centre)
        for column in range(C.BIN_COLUMNS):
            begins, ends_at = column * patch_width, column * patch_width + patch_width - 1
            inside = touched & (ends[1] >= begins) & (ends[0] <= ends_at)
            masks |= inside.astype(np.uint32) << np.uint32(C.BIN_COLUMNS * row + column)
    return masks


def instances_of(p: SimpleNamespace, drawn: np.ndarray) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One for each bin of the box around each of the splats that are ``drawn`` (N,): splats, bins, masks, (I,) each."""
    records, size = read_records(p.splat_records), 1 << p.bin_shift
    with np.errstate(all="ignore"):
        e = ellipses(records)
        x_begin, x_end = bins_with_centres(records.u - e.width, records.u + e.width, p.width, size)
        y_begin, y_end = bins_with_centres(records.v - e.height, records.v + e.height, p.height, size)
    widths = x_end - x_begin
    counts = np.where(drawn, widths * (y_end - y_begin), 0)
    splat = np.repeat(np.arange(len(counts)), counts)
    index = np.arange(len(splat)) - np.repeat(np.cumsum(counts) - counts, counts)
    x, y = x_begin[splat] + index % widths[splat], y_begin[splat] + index // widths[splat]
    return splat, y * p.n_bins_x + x, patch_masks(p, records, e, splat, x, y)


def project_bins(p: SimpleNamespace, storage: str) -> None:
    """Each splat's record and its instances, in the order of splats, then rows, then columns; the lists' starts."""
    s = projections(p, storage)
    splat, bin_, mask = instances_of(p, write_records(p, s))
    p.n_visible[0] = len(np.unique(splat))
    p.n_instances[0] = len(splat)
    n = min(len(splat), p.instance_capacity)  # all that fit; the count goes on
    columns = (p.splat_records[splat, 7], splat, mask, bin_)
    p.bin_instances[:n] = np.stack(columns, axis=1)[:n] if n else 0
    n_bins = p.n_bins_x * p.n_bins_y
    counts = np.bincount(bin_[:n][mask[:n] != 0], minlength=n_bins)
    p.bin_starts[: n_bins + 1] = np.concatenate([[0], np.cumsum(counts)])


def sharers_of(sizes: np.ndarray, n_sharing: int) -> np.ndarray:
    """(B,) int64: blocks that sort each list of ``sizes`` (B,); there are ``n_sharing`` more of them than lists."""
    fair = max(C.LIST_CAPACITY // 2, int(sizes.sum()) // n_sharing + 1)
    return np.where(sizes > C.LIST_CAPACITY, np.minimum(-(-sizes // fair), C.LIST_PARTS), 1)


def fill_lists(p: SimpleNamespace) -> None:
    """The instances that touch a patch, bin by bin; the bins, and the shares of lists, the longest lists first."""
    emitted = p.bin_instances[: min(int(p.n_instances[0]), p.instance_capacity)]
    touching = emitted[emitted[:, 2] != 0]
    p.list_entries[: len(touching)] = touching[np.argsort(touching[:, 3], kind="stable")]
    n_bins = p.n_bins_x * p.n_bins_y
    sizes = np.diff(p.bin_starts[: n_bins + 1].astype(np.int64))
    bins = np.argsort(-sizes, kind="stable")
    x, y = bins % p.n_bins_x << p.bin_shift, bins // p.n_bins_x << p.bin_shift
    p.bin_order[:n_bins] = np.stack([p.bin_starts[bins], p.bin_starts[bins + 1], x, y], axis=1)
    counts = sharers_of(sizes, p.n_list_shares - n_bins)[bins]
    shares = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    found = [p.bin_starts[bins].repeat(counts), p.bin_starts[bins + 1].repeat(counts), shares, counts.repeat(counts)]
    p.list_shares[: len(shares)] = np.stack(found, axis=1)
    p.list_shares[len(shares) : p.n_list_shares] = (0, 0, 0, 1)


def sort_lists(p: SimpleNamespace) -> None:
    """Each list front to back, equal depths by the splat's index."""
    entries = p.list_entries[: p.bin_starts[p.n_bins_x * p.n_bins_y]]
    entries = entries[np.lexsort((entries[:, 1], entries[:, 0], entries[:, 3]))]
    p.bin_lists[: len(entries)] = entries[:, 1:3]


def patches(p: SimpleNamespace) -> Iterator[Tuple[Box, np.ndarray, np.ndarray, int]]:
    """Each patch's pixels, their centres (P, 2), the places of its splats in their bin's list, and the list's start."""
    size = 1 << p.bin_shift
    patch_width = size // C.BIN_COLUMNS
    for bin_ in range(p.n_bins_x * p.n_bins_y):
        begin, end = (int(place) for place in p.bin_starts[bin_ : bin_ + 2])
        masks = p.bin_lists[begin:end, 1]
        for bit in range(C.BIN_COLUMNS * size // C.PATCH_HEIGHT):
            x = bin_ % p.n_bins_x * size + bit % C.BIN_COLUMNS * patch_width
            y = bin_ // p.n_bins_x * size + bit // C.BIN_COLUMNS * C.PATCH_HEIGHT
            if x < p.width and y < p.height:
                box, centres = box_of(p, x, y, patch_width, C.PATCH_HEIGHT)
                yield box, centres, np.nonzero(masks >> np.uint32(bit) & np.uint32(1))[0], begin


def record_alphas(records: SimpleNamespace, splats: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """alpha of splats (S,) at pixel centres (P, 2) -> (S, P); 0 where it is below 1/255 (skipped)."""
    u, v, lean, xx, yy, log2_opacity = (getattr(records, name)[splats][:, None] for name in (*FLOATS, "log2_opacity"))
    dx, dy = centres[None, :, 0] - u, centres[None, :, 1] - v
    alpha = np.exp2(log2_opacity + xx * (dx + lean * dy) ** 2 + yy * dy * dy)
    return np.where(alpha >= C.ALPHA_MIN, alpha, 0)


def rasterize_patches(p: SimpleNamespace) -> None:
    """Front-to-back compositing of each patch's splats, pixel by pixel by the rules of cuda/constants.h."""
    records = read_records(p.splat_records)
    for box, centres, places, begin in patches(p):
        splats = p.bin_lists[begin + places, 0]
        write_pixels(p, box, *composite(splats, partial(record_alphas, records), records.colours, centres))


def count_patches(p: SimpleNamespace) -> None:
    """What a warp of 32 looks at, picks and blends until all its pixels are finished, asked after every few splats."""
    records = read_records(p.splat_records)
    steps_a_batch = C.PATCH_BATCH // C.STOP_EVERY
    lengths = np.diff(p.bin_starts.astype(np.int64))
    for (x, y, _, _), centres, places, begin in patches(p):
        length = int(lengths[(y >> p.bin_shift) * p.n_bins_x + (x >> p.bin_shift)])
        transmittance = np.ones(len(centres))
        walked, picked, n_steps = length, len(places), 0
        for first in range(0, len(places), C.STOP_EVERY):
            step = p.bin_lists[begin + places[first : first + C.STOP_EVERY], 0]
            transmittance *= np.prod(1 - record_alphas(records, step, centres), axis=0)
            n_steps += 1
            if transmittance.max() < C.PATCH_OPAQUE:
                picked = min(picked, C.PATCH_BATCH * -(-n_steps // steps_a_batch))
                if picked % C.PATCH_BATCH == 0:  # else the list came to its end first
                    walked = min(length, (int(places[picked - 1]) // WALK + 1) * WALK)
                break
        p.patch_counts += np.array([walked, picked, n_steps * C.STOP_EVERY], np.uint64)
