"""In which order a packed scene lies in memory and in its file, so that any budget is a prefix of it.

With an order of importance the splats are cut into *levels*: the first holds the 256 most important, each further
one about a quarter of what lies before it. Inside a level splats lie along a Morton curve, in chunks of 256
neighbours, and the chunks in van der Corput order: one from the curve's beginning, one from its middle, from its
quarters, its eighths … A prefix that ends inside a level thus holds all that is more important than the level, and
of the level an even share of everywhere, instead of one end of the room.
"""

from __future__ import annotations

import dataclasses
from typing import List, Optional, Tuple

import numpy as np

from edgegs.errors import SceneError
from edgegs.pack.packed import CHUNK, PackedScene
from edgegs.scene.model import Scene

#: Splats of the first level: a chunk.
FIRST_LEVEL = CHUNK
#: Each further level multiplies the count so far by about this. A prefix that ends inside a level has the whole of
#: the levels before it right, which is about four fifths of itself.
LEVEL_GROWTH = 1.25
#: Bits of a Morton code for each axis.
_AXIS_BITS = 21
#: Share of the rows, on either side of each axis, that lie outside the box in which Morton cells are even.
_TAIL = 0.05
_SAMPLE = 1 << 18


def arrange(
    means: np.ndarray,
    scores: Optional[np.ndarray] = None,
    sizes: Optional[np.ndarray] = None,
    keep: Optional[int] = None,
) -> Tuple[np.ndarray, Tuple[int, ...]]:
    """The order to store splats in. Deterministic; the same for every version of NumPy.

    Args:
        means: (N, 3) float32, finite.
        scores: (N,) how much each one matters, finite and not negative; None: order by place alone.
        sizes: (N,) decides between equal scores, larger first, and so orders what no view saw (score 0). Those come
            last of all; opacity · (largest scale)² suits, the rule by which ``SceneBuilder`` keeps a budget: where a
            viewer goes where no view was scored, a large and solid splat is missed first. None: by row.
        keep: only so many, the most important; needs ``scores``. None keeps all.

    Returns:
        order: (N or keep,) uint32, rows of ``means``, each at most once. Without scores: along the Morton curve.
            With scores: level by level, see above; a partial chunk is the last of all.
        levels: rising counts; the last is the whole.
    """
    if not np.isfinite(means).all():
        raise ValueError("means must be finite")
    if scores is None:
        if keep is not None or sizes is not None:
            raise ValueError("without scores there is nothing to keep a part by")
        return np.argsort(morton(means), kind="stable").astype(np.uint32), (len(means),)
    for values, name in ((scores, "scores"), (sizes, "sizes")):
        if values is not None and (values.shape != (len(means),) or not ((values >= 0) & (values < np.inf)).all()):
            raise ValueError(f"{name} must be one finite number >= 0 for each of the {len(means)} splats")
    # Stable sorts throughout: equal ones stay in the order of their rows.
    if sizes is None:
        ranked = np.argsort(-scores.astype(np.float64), kind="stable")
    else:
        ranked = np.lexsort((-sizes.astype(np.float64), -scores.astype(np.float64)))
    ranked = ranked[:keep]
    levels = level_ends(len(ranked))

    level_of_row = np.full(len(means), len(levels), np.uint16)  # those not kept: behind the last level
    level_of_row[ranked] = np.repeat(np.arange(len(levels), dtype=np.uint16), np.diff((0, *levels)))
    by_place = np.argsort(morton(means), kind="stable")
    order = by_place[np.argsort(level_of_row[by_place], kind="stable")][: len(ranked)].astype(np.uint32)
    start = 0
    for stop in levels:
        n_chunks = (stop - start) // CHUNK
        whole = order[start : start + n_chunks * CHUNK].reshape(n_chunks, CHUNK)
        whole[:] = whole[van_der_corput(n_chunks)]
        start = stop
    return order, levels


def sizes(scene: Scene) -> np.ndarray:
    """(N,) what decides between splats of equal importance: opacity · (largest scale)²."""
    return scene.opacities * scene.scales.max(axis=1).astype(np.float64) ** 2


def level_ends(n: int) -> Tuple[int, ...]:
    """Cumulative counts of the levels of n splats: multiples of CHUNK, but for the last, which is n."""
    ends: List[int] = []
    end, step = 0, FIRST_LEVEL
    while True:
        end += step
        step = max(1, round(end * (LEVEL_GROWTH - 1) / CHUNK)) * CHUNK
        if n - end < step // 2:  # what is left, less than half a level, joins this one
            return (*ends, n)
        ends.append(end)


def van_der_corput(n: int) -> np.ndarray:
    """(n,) a permutation of 0 … n - 1 of which every beginning is spread evenly: by their bits in reverse."""
    numbers = np.arange(n, dtype=np.uint64)
    reverse = np.zeros_like(numbers)
    for bit in range(max(n - 1, 0).bit_length()):
        reverse = (reverse << np.uint64(1)) | ((numbers >> np.uint64(bit)) & np.uint64(1))
    return np.argsort(reverse, kind="stable")


def morton(means: np.ndarray) -> np.ndarray:
    """(N,) uint64 Morton codes, 21 bits an axis.

    Cells are cubes of one size in the box that holds 90 % of the means on each axis, and grow outside it (x becomes
    2 - 1/x, as mip-NeRF 360 contracts space): a floater a million units away neither coarsens the room's cells nor
    falls into one with all other floaters.
    """
    codes = np.zeros(len(means), np.uint64)
    if not len(means):
        return codes
    # Order statistics and no interpolated percentiles: those differ in the last bit between versions of NumPy.
    sample = np.sort(means[:: -(-len(means) // _SAMPLE)].astype(np.float64), axis=0)
    tail = int(_TAIL * len(sample))
    low, high = sample[tail], sample[len(sample) - 1 - tail]
    half = float((high - low).max()) / 2 or 1.0
    for axis in range(3):
        x = (means[:, axis].astype(np.float64) - (low[axis] + high[axis]) / 2) / half
        outside = np.abs(x) > 1
        x[outside] = np.copysign(2 - 1 / np.abs(x[outside]), x[outside])
        cells = np.clip((x + 2) * (1 << (_AXIS_BITS - 2)), 0, (1 << _AXIS_BITS) - 1).astype(np.uint64)
        codes |= _spread(cells) << np.uint64(axis)
    return codes


def _spread(x: np.ndarray) -> np.ndarray:
    """Two zero bits between any two of the 21 bits of x."""
    for shift, mask in (
        (32, 0x1F00000000FFFF), (16, 0x1F0000FF0000FF), (8, 0x100F00F00F00F00F),
        (4, 0x10C30C30C30C30C3), (2, 0x1249249249249249),
    ):  # fmt: skip
        x = (x | (x << np.uint64(shift))) & np.uint64(mask)
    return x


def chunk_bounds(packed: PackedScene) -> np.ndarray:
    """(ceil(N / 256), 7) float32: of each chunk the lowest and highest mean, x y z each, and the largest sigma."""
    starts = np.arange(0, packed.n_splats, CHUNK)
    bounds = np.empty((len(starts), 7), np.float32)
    bounds[:, 0:3] = np.minimum.reduceat(packed.means, starts, axis=0)
    bounds[:, 3:6] = np.maximum.reduceat(packed.means, starts, axis=0)
    # FP16 times a power of two: exact in float32.
    largest = np.maximum.reduceat(packed.halves[:, 4:7].max(axis=1), starts)
    bounds[:, 6] = largest.astype(np.float32) * np.float32(packed.half_scale)
    return bounds


def cut_levels(levels: Tuple[int, ...], n: int) -> Tuple[int, ...]:
    """The levels of the first n splats."""
    return (*(end for end in levels if end < n), n)


def prefix(packed: PackedScene, n: int) -> PackedScene:
    """The n most important splats; ``packed`` itself where it holds no more.

    The arrays are views, which keep those of ``packed`` alive. The bounds stay those of the whole.

    Raises:
        SceneError: the order is not one of importance.
    """
    if n < 1:
        raise ValueError(f"a prefix holds at least 1 splat, not {n}")
    if n >= packed.n_splats:
        return packed
    if not packed.is_scored:
        raise no_importance(packed.path, n, packed.n_splats)
    return dataclasses.replace(
        packed,
        means=packed.means[:n],
        halves=packed.halves[:n],
        sh_bytes=packed.sh_bytes[:n],
        rows=packed.rows[:n],
        levels=cut_levels(packed.levels, n),
        dropped=dict(packed.dropped),
        warnings=[*packed.warnings, left_out(n, packed.n_splats)],
    )


def left_out(n: int, n_splats: int) -> str:
    """The warning of a scene of which only the first n splats are drawn."""
    return f"max_gaussians {n:,}: left out {n_splats - n:,} splats, the least important by the order they are packed in"


def no_importance(path: str, n: int, n_splats: int) -> SceneError:
    """The refusal to draw a part of a scene whose order says nothing of importance."""
    return SceneError(
        f"{path}: packed in an order of place, not of importance: the best {n:,} of its {n_splats:,} splats are not "
        f"known; pack the scene again with 'edgegs pack --budget {n}'"
    )
