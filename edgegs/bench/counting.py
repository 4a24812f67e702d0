"""What one frame takes, counted: splats, instances, and how often a warp evaluates a splat at its pixels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Tuple, Union

import numpy as np

from edgegs.backends.base import Backend
from edgegs.camera import Camera
from edgegs.kernels.headers import constants
from edgegs.kernels.variants import BIN_SIZES, Variant
from edgegs.pack import AnyScene
from edgegs.renderer import Renderer
from edgegs.room import TILE

C = constants()
#: Pixels of a tile's row of 16 that one warp works on until all its pixels are finished, as rows.
WARP_ROWS = {"block": 32 // TILE, "dual": 2 * 32 // TILE}
#: Pixels of one warp's patch.
PATCH_PIXELS = {raster: side // int(C["BIN_COLUMNS"]) * int(C["PATCH_HEIGHT"]) for raster, side in BIN_SIZES.items()}
#: Pairs of pixel and splat that are looked at, at most; beyond, every k-th tile stands for the others. Half a second.
MAX_LOOKED_AT = 1 << 24
#: Lists longer than the sort's shared memory are sorted a range at a time, which holds at least half of it.
LIST_CAPACITY, LIST_BUCKETS = int(C["LIST_CAPACITY"]), int(C["LIST_BUCKETS"])
_STEP = 64


@dataclass(frozen=True)
class FrameCounts:
    """What is counted of a frame whatever for: by ``count_frame`` and for the roofline.

    Attributes:
        width, height: pixels. sh_degree: drawn.
        n_splats, n_visible, n_instances: exact; see ``Frame``. Of key ``bins``, instances are of bins.
        n_evaluations: pixels that warps evaluate splats at, finished ones of a busy warp included.
        n_reached: those of evaluations where a pixel of the warp is drawn at: elsewhere a branch leaves the loop early.
        n_scanned: of key ``bins``: entries that are looked through to split lists longer than shared memory, at most.
        n_turns: of key ``bins``: turns of the loop by which warps of the sort find places within buckets of depth: few
            where depths are spread.
    """

    width: int
    height: int
    sh_degree: int
    n_splats: int
    n_visible: int
    n_instances: int
    n_evaluations: int
    n_reached: int
    n_scanned: int
    n_turns: int


@dataclass(frozen=True)
class Counts(FrameCounts):
    """What one frame takes, for predictions.

    Attributes:
        n_evaluations_max: evaluations if no pixel ever finished, and no splat was left out before.
        n_tiles, n_tiles_counted: with a splat in them; how many of those ``n_evaluations`` was counted in. Of key
            ``bins``: bins with a splat, all of them.
        n_busy, n_patches, n_entries, n_walked, n_picked: of key ``bins``: rows of 32 splats with a visible one, which a
            warp projects; patches of the picture; splats in the lists; list entries that patches looked at; splats that
            they staged.
        n_sorted: of key ``bins``: ranges of lists that are sorted at a time.
    """

    n_evaluations_max: int
    n_tiles: int
    n_tiles_counted: int
    n_busy: int = 0
    n_patches: int = 0
    n_entries: int = 0
    n_walked: int = 0
    n_picked: int = 0
    n_sorted: int = 0


def count_frame(backend: Backend, scene: AnyScene, variant: Variant, camera: Camera) -> Counts:
    """Draw one frame with a variant's kernels and count; raises DeviceError when it does not fit here."""
    renderer = Renderer(backend, scene, camera.width, camera.height, variant.name)
    try:
        frame = renderer.render(camera)
        counted = _of_bins(renderer) if variant.key == "bins" else _evaluations(renderer, variant.raster)
        return Counts(
            width=camera.width, height=camera.height, sh_degree=scene.sh_degree, n_splats=frame.n_splats,
            n_visible=frame.n_visible, n_instances=frame.n_instances, **counted,
        )  # fmt: skip
    finally:
        renderer.close()


def _of_bins(renderer: Renderer) -> Dict[str, int]:
    """The counts of key ``bins``, exact: the kernels count themselves."""
    choice, n_bins_x = renderer.variant, -(-renderer.width // renderer.variant.bin_size)
    sizes = np.diff(renderer.read("bin_starts").astype(np.int64))
    pixels = PATCH_PIXELS[choice.raster]
    # pixels of the picture in each bin: their patches look at every entry, at most
    bins, side, patch_height = np.arange(len(sizes)), choice.bin_size, int(C["PATCH_HEIGHT"])
    across = -(-np.minimum(side, renderer.width - bins % n_bins_x * side) // (pixels // patch_height))
    down = -(-np.minimum(side, renderer.height - bins // n_bins_x * side) // patch_height)
    found = renderer.patch_counts()
    n_sorted, n_scanned = list_ranges(sizes)
    in_lists = renderer.read("bin_lists")[: int(sizes.sum()), 0]
    return {
        "n_busy": len(np.unique(in_lists // 32)),
        "n_evaluations": found["blended"] * pixels,
        "n_reached": found["blended"] * pixels,
        "n_evaluations_max": int((sizes * across * down).sum()) * pixels,
        "n_tiles": int((sizes > 0).sum()),
        "n_tiles_counted": int((sizes > 0).sum()),
        "n_patches": int((across * down).sum()),
        "n_entries": int(sizes.sum()),
        "n_walked": found["walked"],
        "n_picked": found["picked"],
        "n_sorted": n_sorted,
        "n_scanned": n_scanned,
        "n_turns": bucket_turns(renderer.read("list_entries")[: int(sizes.sum()), 0], sizes),
    }


def is_dealt(sizes: np.ndarray, sharers: Union[int, np.ndarray] = 1) -> np.ndarray:
    """Whether lists of these lengths are dealt into parts before they are sorted (sort_lists of cuda/lists.cuh)."""
    return (sizes > 2 * LIST_CAPACITY) | (np.asarray(sharers) > 1)


def list_ranges(sizes: np.ndarray, sharers: Union[int, np.ndarray] = 1) -> Tuple[int, int]:
    """Ranges in which lists of these lengths are sorted, and entries looked through to find them, at most.

    A range of a long list holds at least half of ``LIST_CAPACITY``; three quarters are taken here. One longer than two
    of it, or shared, is dealt into its ranges at once, by each of its ``sharers`` (blocks; a small GPU has one a list).
    """
    dealt = is_dealt(sizes, sharers)
    ranges = np.where(sizes > LIST_CAPACITY, -(-4 * sizes // (3 * LIST_CAPACITY)), 1)
    ranges = np.where(dealt, -(-2 * sizes // LIST_CAPACITY), ranges)
    ranges = np.where(sizes > 0, ranges, 0)
    looks = np.where(dealt, sharers, ranges)
    return int(ranges.sum()), int((looks * sizes)[sizes > LIST_CAPACITY].sum())


def bucket_turns(depths: np.ndarray, sizes: np.ndarray) -> int:
    """Turns of a warp's loop over the bucket of each of its 32 entries: as many as the fullest of them holds.

    Args:
        depths: (I,) uint32, bits of the depths, list by list. sizes: (B,) of the lists. Longer ones than shared memory
            are counted by even parts of half of it: nearly what they are dealt into.
    """
    if len(depths) == 0:
        return 0
    lists = np.repeat(np.arange(len(sizes)), sizes)
    order = np.lexsort((depths, lists))
    depths = depths[order].astype(np.float32)
    ranks = np.arange(len(lists)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    parts = np.where(np.repeat(sizes, sizes) > LIST_CAPACITY, ranks // (LIST_CAPACITY // 2), 0)
    starts = np.flatnonzero(np.diff(lists, prepend=-1) | np.diff(parts, prepend=-1))
    lengths = np.diff(starts, append=len(depths))
    nearest, farthest = np.repeat(depths[starts], lengths), np.repeat(depths[starts + lengths - 1], lengths)
    buckets = (depths - nearest) * (LIST_BUCKETS / (farthest - nearest + 1))
    buckets = np.minimum(buckets, LIST_BUCKETS - 1).astype(np.int64)
    buckets += np.repeat(np.arange(len(starts)), lengths) * LIST_BUCKETS
    firsts = np.flatnonzero(np.diff(buckets, prepend=-1))
    held = np.diff(firsts, append=len(buckets))
    places = np.arange(len(buckets)) - np.repeat(starts, lengths)
    return int(np.maximum.reduceat(np.repeat(held, held), np.flatnonzero(places % 32 == 0)).sum())


def _evaluations(renderer: Renderer, raster: str) -> Dict[str, int]:
    """The counts of the other keys; tiles that stand for others are taken evenly from few to many splats."""
    starts = renderer.read("tile_starts").astype(np.int64)
    splats, means2d, conics = (renderer.read(name) for name in ("instance_splats", "splat_means2d", "splat_conics"))
    sizes = np.diff(starts)
    tiles = np.flatnonzero(sizes)
    most = int(sizes.sum()) * TILE * TILE
    step = max(1, -(-most // MAX_LOOKED_AT))
    looked_at = tiles[np.argsort(sizes[tiles], kind="stable")][step // 2 :: step]
    n_tiles_x = -(-renderer.width // TILE)
    total = reached = 0
    for tile in looked_at:
        left, top = int(tile) % n_tiles_x * TILE, int(tile) // n_tiles_x * TILE
        inside = (min(TILE, renderer.height - top), min(TILE, renderer.width - left))
        ids = splats[starts[tile] : starts[tile + 1]]
        with np.errstate(all="ignore"):  # a splat of kilometres may overflow: it does so in the kernels, too
            evaluated, drawn = _of_tile(means2d, conics, ids, left, top, inside, WARP_ROWS[raster])
        total, reached = total + evaluated, reached + drawn
    scale = len(tiles) / max(1, len(looked_at))
    return {
        "n_evaluations": round(total * scale),
        "n_reached": round(reached * scale),
        "n_scanned": 0,
        "n_turns": 0,
        "n_evaluations_max": most,
        "n_tiles": len(tiles),
        "n_tiles_counted": len(looked_at),
    }


def _of_tile(
    means2d: np.ndarray, conics: np.ndarray, ids: np.ndarray, left: int, top: int, inside: Tuple[int, int], rows: int
) -> Tuple[int, int]:
    """Evaluations of one tile and those that reach a pixel; the tile's splats are ``ids`` from front to back.

    Args:
        inside: its rows and columns that the picture has; the others are finished from the start.
        rows: of the tile, that one warp works on.
    """
    n_pieces = TILE // rows
    x = (left + np.arange(TILE) + 0.5).astype(np.float32)
    y = (top + np.arange(TILE) + 0.5).astype(np.float32)
    transmittance = np.zeros((TILE, TILE), np.float32)
    transmittance[: inside[0], : inside[1]] = 1
    n_blended = np.zeros((TILE, TILE), np.int64)  # splats of the list that each pixel looks at before it is finished
    reaches = np.zeros((n_pieces, len(ids)), bool)
    for first in range(0, len(ids), _STEP):
        part = ids[first : first + _STEP]
        dx, dy = x - means2d[part, :1], y - means2d[part, 1:]
        xx, xy, yy, opacity = (conics[part, i][:, None, None] for i in range(4))
        dx, dy = dx[:, None, :], dy[:, :, None]
        alpha: Any = opacity * np.exp(-0.5 * (xx * dx * dx + yy * dy * dy) - xy * dx * dy)
        alpha = np.minimum(alpha, np.float32(C["ALPHA_MAX"]))
        alpha[~(alpha >= C["ALPHA_MIN"])] = 0
        left_over = transmittance * np.cumprod(1 - alpha, axis=0)
        before = np.concatenate([transmittance[None], left_over[:-1]])
        drawn = (alpha > 0) & (before >= C["TRANSMITTANCE_MIN"])
        reaches[:, first : first + len(part)] = drawn.reshape(len(part), n_pieces, -1).any(axis=2).T
        n_blended += (left_over >= C["TRANSMITTANCE_MIN"]).sum(axis=0)
        transmittance = left_over[-1]
        if transmittance.max() < C["TRANSMITTANCE_MIN"]:
            break
    # the splat that would finish a pixel is evaluated, too; a warp goes on until its last pixel is finished
    n_blended[: inside[0], : inside[1]] += 1
    ends = np.minimum(n_blended.reshape(n_pieces, -1).max(axis=1), len(ids))
    reached = sum(int(reaches[piece, :end].sum()) for piece, end in enumerate(ends))
    return int(ends.sum()) * rows * TILE, reached * rows * TILE
