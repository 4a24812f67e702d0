"""The order of a packed scene: levels by importance, chunks by place, prefixes that are even."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Tuple

import numpy as np
import pytest
import scenes
from hypothesis import given, settings
from hypothesis import strategies as st

from edgegs.errors import SceneError
from edgegs.pack import CHUNK, quantise
from edgegs.pack.order import (
    FIRST_LEVEL,
    arrange,
    chunk_bounds,
    cut_levels,
    level_ends,
    morton,
    prefix,
    van_der_corput,
)


def numbers(n: int, factor: int, modulus: int) -> np.ndarray:
    """(n,) whole numbers without any pattern that matters here; the same everywhere."""
    mixed = (np.arange(n, dtype=np.uint64) + np.uint64(factor << 32)) * np.uint64(0x9E3779B97F4A7C15)
    for shift, odd in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):  # splitmix64
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(odd)
    return ((mixed >> np.uint64(31)) % np.uint64(modulus)).astype(np.int64)


def cube(n: int) -> np.ndarray:
    """(n, 3) float32 in [0, 1)."""
    return np.stack([numbers(n, axis + 1, 1 << 20) for axis in range(3)], axis=1).astype(np.float32) / (1 << 20)


@pytest.mark.parametrize("n", [1, 255, 256, 257, 4096, 4607, 4608, 5000, 5760, 30_011])
def test_levels_are_cut_by_score_and_chunks_by_place(n: int) -> None:
    means, scores = cube(n), numbers(n, 9, 1000).astype(np.float64)  # many equal ones
    order, levels = arrange(means, scores)
    assert order.dtype == np.uint32
    assert np.array_equal(np.sort(order), np.arange(n))
    assert levels == level_ends(n)
    ranked = np.argsort(-scores, kind="stable")
    codes = morton(means)
    start = 0
    for end in levels:
        level = order[start:end]
        assert set(level.tolist()) == set(ranked[start:end].tolist())  # by score, then by row
        by_place = level[np.lexsort((level, codes[level]))]
        n_chunks = len(level) // CHUNK
        for i, j in enumerate(van_der_corput(n_chunks)):
            chunk = slice(CHUNK * i, CHUNK * (i + 1))
            assert np.array_equal(level[chunk], by_place[CHUNK * j : CHUNK * (j + 1)])
        assert np.array_equal(level[n_chunks * CHUNK :], by_place[n_chunks * CHUNK :])  # the partial one last
        start = end


@given(st.integers(1, 5_000_000))
def test_levels_grow_by_a_quarter(n: int) -> None:
    levels = level_ends(n)
    assert levels[0] == FIRST_LEVEL or (levels == (n,) and n < 1.5 * FIRST_LEVEL)
    assert levels[-1] == n
    assert all(end % CHUNK == 0 for end in levels[:-1])
    growth = [b / a for a, b in zip(levels, levels[1:]) if a >= 16 * CHUNK]
    assert all(1.23 < g < 1.27 for g in growth[:-1])
    assert not growth or 1.12 < growth[-1] < 1.46  # what joins is under half a level, in whole chunks
    # the first ones are as fine as chunks allow
    assert all(b - a == CHUNK for a, b in zip(levels[:-1], levels[1:-1]) if b <= 4 * CHUNK)


@given(st.integers(0, 3000))
def test_van_der_corput_is_even_from_its_beginning(n: int) -> None:
    sequence = van_der_corput(n)
    assert np.array_equal(np.sort(sequence), np.arange(n))
    for n_first in (1, 2, 3, n // 7, n // 3, n // 2):
        if 0 < n_first < n:
            gaps = np.diff(np.concatenate(([-1], np.sort(sequence[:n_first]), [n])))
            assert gaps.max() <= 4 * n / n_first + 1


def test_any_prefix_spans_the_space() -> None:
    n = 60_000
    means = cube(n)
    order, levels = arrange(means, numbers(n, 5, 1 << 30).astype(np.float64))
    starts = (0, *levels)
    for start, end in zip(starts, levels):
        if end - start < 16 * CHUNK:
            continue  # of fewer chunks each is a large part of space
        half = order[start : start + (end - start) // 2]
        low, high = means[half].min(axis=0), means[half].max(axis=0)
        assert (high - low).min() > 0.9, (start, end)
        octants = (means[half] > 0.5) @ [1, 2, 4]
        assert np.bincount(octants, minlength=8).min() > 0.5 * len(half) / 8
    # What the chunks' order is for: along the curve alone, a part of a level is a part of the space.
    last = order[starts[-2] : levels[-1]]
    along = last[np.argsort(morton(means)[last])]
    cut_off = along[: len(along) // 3]
    assert (means[cut_off].max(axis=0) - means[cut_off].min(axis=0)).min() < 0.6


def typical_chunk(means: np.ndarray) -> float:
    """Median volume of the boxes of a Morton order's chunks."""
    order, _ = arrange(means)
    chunks = means[order[: len(order) // CHUNK * CHUNK]].reshape(-1, CHUNK, 3)
    return float(np.median((chunks.max(axis=1) - chunks.min(axis=1)).prod(axis=1)))


def test_chunks_are_compact() -> None:
    means = cube(60_000)
    assert typical_chunk(means) < 3 * CHUNK / len(means)
    far = np.concatenate([means, np.float32([[1e7, 0, 0], [0, -3e9, 0]])])  # floaters coarsen nothing
    assert typical_chunk(far) == pytest.approx(typical_chunk(means), rel=0.02)


def test_unseen_splats_come_last_by_size() -> None:
    n = 9000
    scores = np.where(np.arange(n) % 3 == 0, 1.0 + numbers(n, 3, 100), 0.0)
    sizes = numbers(n, 4, 50).astype(np.float32)
    order, levels = arrange(cube(n), scores, sizes)
    ranked = sorted(range(n), key=lambda row: (-scores[row], -sizes[row], row))
    start = 0
    for end in levels:
        assert set(order[start:end].tolist()) == set(ranked[start:end])
        start = end
    assert set(order[:4096].tolist()) > set(np.flatnonzero(scores).tolist())
    kept, kept_levels = arrange(cube(n), scores, sizes, keep=4500)
    assert set(kept.tolist()) == set(ranked[:4500])
    assert kept_levels == level_ends(4500)
    assert len(arrange(cube(n), scores, keep=10 * n)[0]) == n


def test_without_scores_it_is_morton_order() -> None:
    means = np.round(cube(5000) * 8)  # many splats in one place
    order, levels = arrange(means)
    assert levels == (5000,)
    assert np.array_equal(order, np.lexsort((np.arange(5000), morton(means))))


@pytest.mark.parametrize("scored", [False, True])
def test_the_order_is_the_same_everywhere(scored: bool) -> None:
    """Every interpreter, NumPy and processor has to pass this one."""
    means = (cube(20_000) - 0.5) * np.float32([8, 4, 2])
    means[::1000] *= 1e6
    scores = numbers(20_000, 7, 5000).astype(np.float64) if scored else None
    order, _ = arrange(means, scores)
    digest = hashlib.sha256(order.astype("<u4").tobytes()).hexdigest()
    assert digest[:16] == ("5d8855165f1cf04a" if scored else "27ef1abaf5da4463")


def test_morton_codes_interleave_and_never_fall_along_an_axis() -> None:
    axis = np.array([-1e30, -1e6, -3, -1, -0.5, 0, 0.25, 1, 2, 1e6, 1e30], np.float32)
    for k in range(3):
        means = np.zeros((len(axis) + 2000, 3), np.float32)
        means[: len(axis), k] = axis
        means[len(axis) :] = cube(2000) * 2 - 1
        codes = morton(means)[: len(axis)]
        assert (np.diff(codes.astype(np.float64)) >= 0).all()
        assert len(set(codes.tolist())) >= len(axis) - 2  # 1e6 away is told from 3 away, 1e30 perhaps not from 1e6
    grid = np.stack(np.meshgrid(*[[-1.0, 1.0]] * 3, indexing="ij"), axis=-1).reshape(-1, 3).astype(np.float32)
    assert (np.diff(morton(grid[:, ::-1])[np.arange(8)].astype(np.float64)) > 0).all()  # x is the lowest bit


@pytest.mark.parametrize("n", [0, 1, 2, 300])
@pytest.mark.parametrize("where", [0.0, 7.5, 3e38])
def test_splats_in_one_place(n: int, where: float) -> None:
    means = np.full((n, 3), where, np.float32)
    assert arrange(means)[0].tolist() == list(range(n))
    assert arrange(means, np.ones(n))[0].tolist() == list(range(n))


def test_what_cannot_be_arranged() -> None:
    means = cube(4)
    for bad in (np.float64([1, np.nan, 0, 0]), np.float64([1, -1, 0, 0]), np.float64([np.inf, 1, 1, 1]), np.ones(3)):
        with pytest.raises(ValueError, match="scores must be"):
            arrange(means, bad)
        with pytest.raises(ValueError, match="sizes must be"):
            arrange(means, np.ones(4), bad)
    with pytest.raises(ValueError, match="nothing to keep"):
        arrange(means, keep=2)
    means[2, 1] = np.nan
    with pytest.raises(ValueError, match="finite"):
        arrange(means)


def packed(n: int = 10_000, scored: bool = True) -> Tuple[np.ndarray, object]:
    scene = scenes.cloud(n, sh_degree=1)
    scores = numbers(n, 2, 1000).astype(np.float64)
    order, levels = arrange(scene.means, scores)
    return scores, quantise(scene, order, levels if scored else None)


def test_prefixes() -> None:
    scores, whole = packed()
    for n in (1, 255, 4096, 4097, 5000, 9999):
        part = prefix(whole, n)
        assert (part.n_splats, part.levels[-1], part.is_scored) == (n, n, True)
        for name in ("means", "halves", "sh_bytes", "rows"):
            assert np.array_equal(getattr(part, name), getattr(whole, name)[:n])
        assert part.levels == cut_levels(whole.levels, n)
        assert list(part.levels) == sorted(set(part.levels))
        assert part.warnings == [
            f"max_gaussians {n:,}: left out {10_000 - n:,} splats, the least important by the order they are packed in"
        ]
        assert part.unpacked().n_splats == n
        inner = max((end for end in whole.levels if end <= n), default=0)  # whole levels hold the best
        assert inner == 0 or scores[part.rows[:inner]].min() >= scores[whole.rows[inner:]].max()
    assert whole.warnings == []
    assert prefix(whole, 10_000) is whole
    assert prefix(whole, 10**30) is whole
    again = prefix(prefix(whole, 6000), 500)
    assert np.array_equal(again.rows, whole.rows[:500])
    for n in (0, -1):
        with pytest.raises(ValueError):
            prefix(whole, n)


def test_no_prefix_without_importance() -> None:
    _, whole = packed(300, scored=False)
    assert prefix(whole, 300) is whole
    with pytest.raises(SceneError, match=r"order of place.*'edgegs pack --budget 299'"):
        prefix(whole, 299)


@pytest.mark.parametrize("n", [1, 256, 257, 1000])
def test_chunk_bounds_hold_every_splat(n: int) -> None:
    whole = quantise(scenes.cloud(n, size=3.0))
    whole = replace(whole, half_scale=whole.half_scale * 4)
    bounds = chunk_bounds(whole)
    assert bounds.shape == (-(-n // CHUNK), 7)
    for i, chunk in enumerate(bounds):
        rows = slice(CHUNK * i, CHUNK * (i + 1))
        assert np.array_equal(chunk[:3], whole.means[rows].min(axis=0))
        assert np.array_equal(chunk[3:6], whole.means[rows].max(axis=0))
        assert chunk[6] == whole.unpacked().scales[rows].max()


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_scores_give_a_permutation(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 600))
    values = data.draw(st.lists(st.floats(0, 1e300), min_size=1, max_size=9))  # few, so many equal ones
    scores = np.array([values[i] for i in numbers(n, 8, len(values))])
    sizes = st.floats(width=32, allow_nan=False, allow_infinity=False)
    size = np.array(data.draw(st.lists(sizes, min_size=3, max_size=3)), np.float32)
    order, levels = arrange(cube(n) * size, scores)
    assert np.array_equal(np.sort(order), np.arange(n))
    assert levels[-1] == n
