"""What each stage of a frame must move and compute, counted from the frame's own counters and, by hand, from cuda/*.

Bytes are compulsory traffic: each array that a kernel reads or writes counts once a launch, as far as the kernel
touches it; what it reads again is expected in a cache. Small tables (a few words a block, bin or tile) count, too.
``fp32`` are additions, multiplications and multiply-adds of lanes (a multiply-add is one, as for ncu), ``exp2`` the 2^x
of lanes, ``slots`` the instructions of warps: those, and loads, integers, conversions, votes, branches.
The terms below were counted from the sources, and held against nvcc's code for sm_90; a comment says from what.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Dict, NamedTuple, Optional

from edgegs.bench.counting import FrameCounts
from edgegs.kernels.headers import constants
from edgegs.kernels.variants import Variant, digit_plan
from edgegs.pack.upload import splat_bytes
from edgegs.pipelines import DEPTH_KEY_BITS
from edgegs.room import COLOUR, CONIC, DEPTH, DIGITS, EXTENT, MEANS2D, RECT, TILE_COUNT

C = constants()
STOP_EVERY, PATCH_HEIGHT = int(C["STOP_EVERY"]), int(C["PATCH_HEIGHT"])
DIGIT_BITS = int(C["SORT_DIGIT_BITS"])
WARP = 32
#: Of one: a splat's record and an instance of key bins, an index or mask, a pixel of the picture; bytes.
RECORD, INSTANCE, WORD, PIXEL = 32, 16, 4, 3
#: Of one splat without its SH: mean, shape, opacity; bytes.
SHAPE = {"fp32": 44, "packed": 28}

# --- FP32 of one splat (project.cuh, bins.cuh) ---
#: project_splat up to the test of depth: three rows of three products and a sum; packed: three scales times their unit.
TRANSFORM = {"fp32": 12, "packed": 15}
#: The rest of project_splat: slopes 2, J W 14, R 27, J W R S 24, its dot and cross products 21, the position's sums and
#: products 6.
COVARIANCE = 94
#: project_record: 6; bound_ellipse: 16.
ELLIPSE = 22
#: Cull::bound and the conic: some 20 in either choice. Counting the rows of tiles (tight) is in ROW_OF_TILES.
BOUND = 20
#: CullTight::row, with two edges and two log2f of the opacity.
ROW_OF_TILES = 60
#: sh_basis, beyond the degree before: 3, then squares 3 and five polynomials, then seven.
BASIS = (0, 3, 14, 21)
#: view_colour: the direction 9 and three offsets.
DIRECTION = 12
#: One instance of key bins: whose it is 8, the bin's place in the ellipse 9; and each row of patches (patches_of_bin).
BIN_OF_ELLIPSE, ROW_OF_PATCHES = 17, 19

# --- slots of a warp (a rough count: what a compiler makes of integers and addresses differs by a fifth or so) ---
#: project_step: loads and transform 47, covariance 152, record and ellipse 114, the block's sum and the stores 86, and
#: colour: 70 and half as much again as its FP32.
PROJECT_SLOTS, COLOUR_SLOTS = 399, 70
#: Of 32 instances: search for the owner 45, the ellipse from shared memory 76, the store 22; and each row of patches.
INSTANCE_SLOTS, ROW_SLOTS = 143, 37
#: fill_lists, of 32 instances: reading and counting 35, placing 30, the block's share of the lists' counts 10.
FILL_SLOTS = 75
#: sort_lists, of 32 entries: nearest and farthest 8, counted 16, moved 23, moved to their place 60; and of each turn of
#: the loop over a bucket 6. Of a list: each of 16 warps clears, sums and waits. Of 32 entries looked at to split a list
#: longer than shared memory: 90.
SORT_SLOTS, TURN_SLOTS, LIST_SLOTS, SCAN_SLOTS = 107, 6, 16 * 250, 90

# --- rasterize_patch, a warp and one splat (patch.cuh) ---
#: A thread's: flat 2, slope 1; and of each pair of rows: middle 1, two ends 2, and twice weight 1, transmittance 1,
#: colour 3.
SPLAT_FP32, PAIR_FP32 = 2 + 1, 1 + 2 + 2 * (1 + 1 + 3)
#: Beside those: a 2^x a pixel and three loads of the staged splat (16, 16 and 4 bytes).
BLEND_LOADS = 3
#: After STOP_EVERY splats: the greatest transmittance, the vote, and the loop.
STEP_SLOTS = 13
#: A row of 32 list entries: mask, vote and queue.
WALK_SLOTS = 25
#: tensor.cuh, a pixel and splat: the weight and the transmittance, and with 2^x, half of a conversion, an eighth of a
#: product for the polynomials and for each half of the colours; loads of a splat; a batch.
TENSOR_PIXEL_FP32, TENSOR_PIXEL_SLOTS, TENSOR_LOADS, TENSOR_FOLD_SLOTS = 2, 2 + 1 + 1 / 2 + 4 / 8, 1, 160
#: fold_record: FP32 of a lane; and a batch of 32 with its queue, loads and stores.
FOLD_FP32, FOLD_SLOTS = 17, 90
#: A warp's start and end: the layout 90, and each of a thread's pixels written.
PATCH_SLOTS, PIXEL_SLOTS = 90, 60
#: write_pixel: transmittance 1, background 6, three clamps and roundings 6.
WRITE_FP32 = 13

# --- rasterize_block and rasterize_dual, one pixel and splat (rasterize.cuh) ---
#: The power, before the branch that leaves out what alpha does not reach; dual: with half of what two pixels share.
POWER_FP32 = {"block": 7, "dual": 6}
#: Behind it: opacity, 1 - alpha, transmittance, weight, colour 3.
COMPOSITE_FP32 = 7
#: e^x or 2^x without the hardware's 2^x.
EXPONENTIAL_FP32 = {"exact": 5, "fast": 1, "bits": 2}
#: stage_splat, fold_splat: of one instance.
STAGE_FP32 = {"block": 3, "dual": 16}


@dataclass(frozen=True)
class Counters(FrameCounts):
    """What one frame took, measured; evaluations are 0 for key ``bins``, whose kernels count what they blend.

    Attributes:
        n_blocks: of a partitioned launch.
        n_listed: instances in the lists of bins or tiles: of bins those whose mask is not empty.
        n_lists: bins or tiles.
        n_rows: key bins: rows of patches with a patch of an entry's mask, over all entries.
        walked, picked, blended: key bins: ``Renderer.patch_counts``.
    """

    n_blocks: int
    n_listed: int
    n_lists: int
    n_rows: int = 0
    walked: int = 0
    picked: int = 0
    blended: int = 0


class Work(NamedTuple):
    """What a stage must do: bytes moved, FP32 and 2^x of lanes, slots of warps and warps' loads from shared memory. The
    last two are None where they are not counted."""

    bytes: float
    fp32: float = 0
    exp2: float = 0
    slots: Optional[float] = None
    shared_loads: Optional[float] = None


def work_of(variant: Variant, n: Counters, warps: bool) -> Dict[str, Work]:
    """Stage -> work, for the stages that the variant has.

    Args:
        warps: the kernels run in warps of 32 (a GPU); on the host a thread owns a patch.
    """
    work = _of_bins(variant, n) if variant.key == "bins" else _of_tiles(variant, n)
    if not warps:
        work = {stage: one._replace(slots=None, shared_loads=None) for stage, one in work.items()}
    return work


def colour_fp32(storage: str, degree: int) -> int:
    """view_colour: the direction, the basis, and a multiply-add a coefficient; packed: a sum to make each a float, and
    each degree's scale."""
    coefficients = 3 * (degree + 1) ** 2
    packed = coefficients + 3 * (degree + 1) if storage == "packed" else 0
    return DIRECTION + sum(BASIS[: degree + 1]) + coefficients + packed


def scene_bytes(variant: Variant, n: Counters) -> int:
    """What project reads: every splat's shape, and the SH of those that are visible."""
    shape = SHAPE[variant.storage]
    return n.n_splats * shape + n.n_visible * (splat_bytes(n.sh_degree, variant.storage) - shape)


def _of_bins(variant: Variant, n: Counters) -> Dict[str, Work]:
    table = WORD * n.n_lists
    visible, instances, entries = n.n_visible, n.n_instances, n.n_listed
    rows_of_instance = n.n_rows / max(1, entries)
    colour = colour_fp32(variant.storage, n.sh_degree)
    # counts of bins are added to, read, and cleared; starts written
    project = scene_bytes(variant, n) + visible * RECORD + instances * INSTANCE + 16 * n.n_blocks + 2 * table
    fp32 = n.n_splats * TRANSFORM[variant.storage] + visible * (COVARIANCE + ELLIPSE + colour)
    fp32 += round(instances * (BIN_OF_ELLIPSE + ROW_OF_PATCHES * rows_of_instance))
    # a warp takes the longest way of any of its splats; packed ones lie beside their neighbours, seen or not together
    coloured = visible if variant.storage == "packed" else n.n_splats
    slots = (n.n_splats * PROJECT_SLOTS + coloured * (COLOUR_SLOTS + 1.5 * colour)) / WARP
    slots += instances / WARP * (INSTANCE_SLOTS + ROW_SLOTS * rows_of_instance)
    fill = (instances + entries) * INSTANCE + 11 * table  # starts, counts twice; the order, the shares
    sort = entries * (INSTANCE + 2 * WORD) + 5 * table
    sort_slots = (entries * SORT_SLOTS + n.n_scanned * SCAN_SLOTS) / WARP
    sort_slots += n.n_turns * TURN_SLOTS + n.n_lists * LIST_SLOTS
    return {
        "project": Work(project, fp32, 0, slots),
        "duplicate": Work(fill, 0, 0, instances / WARP * FILL_SLOTS),
        # bucket_of, three times: depth times scale
        "sort": Work(sort, 3 * entries, 0, sort_slots),
        "rasterize": _of_patches(variant, n),
    }


def _of_patches(variant: Variant, n: Counters) -> Work:
    width = variant.bin_size // int(C["BIN_COLUMNS"])
    pixels = width * PATCH_HEIGHT
    of_thread = pixels // WARP
    # entries that are walked, splats that are picked: each once, though many patches do
    moved = 2 * WORD * min(n.walked, n.n_listed) + RECORD * min(n.picked, n.n_visible)
    moved += 4 * WORD * n.n_lists + PIXEL * n.width * n.height
    blend, fold, loads = SPLAT_FP32 + PAIR_FP32 * of_thread // 2, FOLD_SLOTS, BLEND_LOADS
    blend_slots: float = blend + of_thread + BLEND_LOADS
    if variant.needs_tensor_cores:
        blend, fold, loads = TENSOR_PIXEL_FP32 * of_thread, TENSOR_FOLD_SLOTS, TENSOR_LOADS
        blend_slots = TENSOR_LOADS + TENSOR_PIXEL_SLOTS * of_thread
    fp32 = n.blended * blend * WARP + n.picked * FOLD_FP32 + n.width * n.height * WRITE_FP32
    n_patches = -(-n.width // width) * -(-n.height // PATCH_HEIGHT)
    slots = n.blended * (blend_slots + STEP_SLOTS / STOP_EVERY)
    # the last batch of a patch is a half, on average
    slots += (n.walked * WALK_SLOTS + (n.picked + n_patches * WARP / 2) * fold) / WARP
    slots += n_patches * (PATCH_SLOTS + of_thread * PIXEL_SLOTS)
    return Work(moved, fp32, n.blended * pixels, slots, n.blended * loads)


def _of_tiles(variant: Variant, n: Counters) -> Dict[str, Work]:
    key = variant.key_bits // 8
    visible, instances, pixels = n.n_visible, n.n_instances, n.width * n.height
    tight = variant.culling == "tight"
    footprint = RECT + (MEANS2D + CONIC + EXTENT if tight else 0)  # Cull::read
    project = scene_bytes(variant, n) + visible * (MEANS2D + DEPTH + CONIC + COLOUR)  # write_splat
    fp32 = n.n_splats * TRANSFORM[variant.storage]
    # rows of tiles: at least one a splat
    row = ROW_OF_TILES if tight else 0
    fp32 += visible * (COVARIANCE + BOUND + colour_fp32(variant.storage, n.sh_degree) + row)
    work: Dict[str, Work] = {}
    if variant.key == "packed32":
        # a link of the chain for each block: written, read, cleared in stage ranges
        links = 8 * -(-n.n_splats // int(C["PROJECT_THREADS"]))
        work["project"] = Work(project + instances * (key + WORD) + 2 * links, fp32 + visible * row)
    else:
        project += visible * (RECT + EXTENT * tight) + n.n_splats * TILE_COUNT + 16 * n.n_blocks
        work["project"] = Work(project, fp32)
        # split: counts once for the sum, once for the places, both by way of the order
        read = n.n_splats * TILE_COUNT + visible * DEPTH if variant.key == "ref64" else visible * 4 * WORD
        moved = read + visible * footprint + instances * (key + WORD) + 32 * n.n_blocks
        work["duplicate"] = Work(moved, visible * row)
    n_tiles = n.n_lists
    passes = len(digit_plan(variant.sort_bits(n_tiles), DIGIT_BITS))
    sort = _radix_bytes(instances, key, passes, n.n_blocks)
    if variant.key == "split":
        sort += n.n_splats * TILE_COUNT + visible * (DEPTH + 2 * WORD)  # compact
        sort += _radix_bytes(visible, 4, len(digit_plan(DEPTH_KEY_BITS, DIGIT_BITS)), n.n_blocks)
    work["sort"] = Work(sort)
    # a binary search a tile: a word each time, or every key
    found = min(instances, (n_tiles + 1) * math.ceil(math.log2(instances + 1)))
    work["ranges"] = Work(WORD * (n_tiles + 1) + key * found)
    moved = WORD * (n_tiles + 1 + n.n_listed) + visible * (MEANS2D + CONIC + COLOUR) + PIXEL * pixels
    fp32 = n.n_evaluations * POWER_FP32[variant.raster] + pixels * WRITE_FP32 + n.n_listed * STAGE_FP32[variant.raster]
    fp32 += n.n_reached * (COMPOSITE_FP32 + EXPONENTIAL_FP32[variant.exponential])
    work["rasterize"] = Work(moved, fp32, 0 if variant.exponential == "bits" else n.n_reached)
    return work


def _radix_bytes(n_items: int, key: int, passes: int, n_blocks: int) -> int:
    """A pass: keys counted, keys and values read, and written; the table of digits written, scanned, and read."""
    return passes * (n_items * (3 * key + 2 * WORD) + 4 * WORD * DIGITS * n_blocks)
