"""The device memory that a renderer takes, counted before it is made."""

from __future__ import annotations

import math
from typing import Callable

from edgegs.kernels.headers import constants
from edgegs.kernels.variants import Variant
from edgegs.pack.upload import splat_bytes

C = constants()
TILE = int(C["TILE_SIZE"])
DIGITS = int(C["SORT_DIGITS"])
#: First guess of instances a splat, and of all, at least; a wrong one costs one frame drawn twice.
TILES_PER_SPLAT, BINS_PER_SPLAT, MIN_INSTANCES = 4, 2, 1 << 14
#: Instances are counted in 32 bits on the device.
MAX_INSTANCES = 2**31 - 1
GROWTH = 1.25
#: What the stages keep of a splat: 2D mean, depth, conic, colour, rectangle of tiles, their number, extent; bytes.
MEANS2D, DEPTH, CONIC, COLOUR, RECT, TILE_COUNT, EXTENT = 8, 4, 16, 12, 8, 4, 8
#: Key ``bins``, bytes: a splat's record; an instance as it is emitted, in its list, and in the sorted list; a bin's
#: count, its list's place in the order, and a share of its sorting; the tickets of blocks, instances, visible splats
#: and steps.
RECORD, BIN_INSTANCE, LIST_ENTRY, SORTED_ENTRY, OF_BIN, TICKETS = 32, 16, 16, 8, 4 + 16 + 16, 4 + 8 + 8 + 4


def n_tiles(width: int, height: int) -> int:
    """Tiles of a picture."""
    return -(-width // TILE) * -(-height // TILE)


def splat_stage_bytes(choice: Variant) -> int:
    """What the stages keep of a splat, bytes."""
    if choice.key == "bins":
        return RECORD
    of_all = MEANS2D + DEPTH + CONIC + COLOUR
    if choice.key == "packed32":
        return of_all
    sorted_by_depth = 2 * (4 + 4) if choice.key == "split" else 0
    return of_all + RECT + TILE_COUNT + (EXTENT if choice.culling == "tight" else 0) + sorted_by_depth


def instance_bytes(choice: Variant) -> int:
    """What the stages keep of an instance, bytes."""
    if choice.key == "bins":
        return BIN_INSTANCE + LIST_ENTRY + SORTED_ENTRY
    return 2 * (choice.key_bits // 8 + 4)


def first_capacity(n_splats: int, key: str) -> int:
    """Instances that a new renderer makes room for."""
    return max(MIN_INSTANCES, (BINS_PER_SPLAT if key == "bins" else TILES_PER_SPLAT) * n_splats)


def grown_capacity(n_instances: int) -> int:
    """Instances that it makes room for when a frame had so many, too many for the room there was."""
    return max(n_instances, min(MAX_INSTANCES, math.ceil(n_instances * GROWTH)))


def renderer_bytes(
    n_splats: int,
    sh_degree: int,
    choice: Variant,
    width: int,
    height: int,
    n_blocks: int,
    depth: int = 1,
    n_instances: int = 0,
    takes_backdrop: bool = False,
    keep_float: bool = False,
    keep_scores: bool = False,
) -> int:
    """``Renderer.device_bytes`` of a scene, without making it.

    Args:
        n_blocks, depth: of the backend.
        n_instances: the most that a frame has had.
    """
    n, pixels = n_splats, width * height
    total = n * (splat_bytes(sh_degree, choice.storage) + splat_stage_bytes(choice) + 8 * keep_scores)
    total += 8 + 8
    if choice.key == "bins":
        n_bins = -(-width // choice.bin_size) * -(-height // choice.bin_size)
        total += OF_BIN * n_bins + 4 * (n_bins + 1) + 16 * n_blocks + TICKETS
    else:
        total += 4 * (n_tiles(width, height) + 1)
        total += 8 * max(1, -(-n // int(C["PROJECT_THREADS"]))) + 4 if choice.key == "packed32" else 16 * n_blocks
        total += 4 * DIGITS * n_blocks + 4 * DIGITS
    total += depth * pixels * (3 + 3 * takes_backdrop + 16 * keep_float)
    capacity = first_capacity(n, choice.key)
    if n_instances > capacity:
        capacity = grown_capacity(n_instances)
    return total + capacity * instance_bytes(choice)


def most_splats(n: int, fits: Callable[[int], bool]) -> int:
    """The largest count up to ``n`` that fits, 0 where none does; fitting is monotone."""
    low, high = 0, n
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low if fits(low) else 0
