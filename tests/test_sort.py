"""The radix sort: exact and stable at every size around block, warp and step edges, on every build."""

from __future__ import annotations

import numpy as np
import pytest

from edgegs.kernels.headers import constants
from edgegs.kernels.variants import digit_plan

C = constants()
STEP = C["SORT_THREADS"] * C["SORT_ITEMS_PER_THREAD"]
HOST_STEP = C["SORT_ITEMS_HOST_FAST"]
SIZES = (
    0,
    1,
    31,
    32,
    33,
    255,
    256,
    257,
    HOST_STEP - 1,
    HOST_STEP,
    HOST_STEP + 1,
    STEP - 1,
    STEP,
    STEP + 1,
    3 * STEP + 7,
)


def sort(backend, keys, values, n_bits, capacity=None, n_items=None):
    """Run the launches of a sort as the renderer does; returns sorted keys and values."""
    capacity = len(keys) if capacity is None else capacity
    n_items = len(keys) if n_items is None else n_items
    room = max(1, len(keys))
    key_buffers = [backend.alloc("keys", (room,), "u8") for _ in range(2)]
    value_buffers = [backend.alloc("values", (room,), "u4") for _ in range(2)]
    counts = backend.alloc("counts", (C["SORT_DIGITS"], backend.n_blocks), "u4")
    totals = backend.alloc("totals", (C["SORT_DIGITS"],), "u4")
    counter = backend.alloc("counter", (2,), "u8")
    backend.upload(counter, np.array([n_items, 12345], np.uint64))
    if len(keys):
        backend.upload(key_buffers[0], keys)
        backend.upload(value_buffers[0], values)
        backend.upload(key_buffers[1], np.full(room, 2**64 - 1, np.uint64))
    plan = digit_plan(n_bits, C["SORT_DIGIT_BITS"])
    for index, (first_bit, bits) in enumerate(plan):
        here, there = index % 2, 1 - index % 2
        params = backend.params(
            "SortParams",
            keys_in=key_buffers[here],
            values_in=value_buffers[here],
            keys_out=key_buffers[there],
            values_out=value_buffers[there],
            digit_block_counts=counts,
            digit_totals=totals,
            n_items=counter,
            capacity=capacity,
            n_blocks=backend.n_blocks,
            first_bit=first_bit,
            n_bits=bits,
        )
        backend.launch("sort_count_64", backend.n_blocks, params)
        backend.launch("sort_scan_rows", C["SORT_DIGITS"], params)
        backend.launch("sort_scatter_64", backend.n_blocks, params)
    last = len(plan) % 2
    n = min(n_items, capacity)
    return backend.download(key_buffers[last])[:n], backend.download(value_buffers[last])[:n]


@pytest.mark.parametrize("size", SIZES)
def test_sorts_exactly_and_keeps_the_order_of_equal_keys(any_backend, size):
    rng = np.random.default_rng(size)
    n_bits = 43
    keys = rng.integers(0, 2**n_bits, size, dtype=np.uint64)
    keys[rng.random(size) < 0.5] &= np.uint64(0x7)  # many equal keys
    values = np.arange(size, dtype=np.uint32)
    sorted_keys, sorted_values = sort(any_backend, keys, values, n_bits)
    order = np.argsort(keys, kind="stable")
    np.testing.assert_array_equal(sorted_keys, keys[order])
    np.testing.assert_array_equal(sorted_values, values[order])


@pytest.mark.parametrize("n_bits", [1, 7, 8, 9, 33, 64])
@pytest.mark.parametrize("pattern", ["random", "equal", "rising", "falling"])
def test_every_width_and_pattern(backend, n_bits, pattern):
    rng = np.random.default_rng(n_bits)
    size = 5000
    top = 2**n_bits - 1
    keys = {
        "random": rng.integers(0, top, size, dtype=np.uint64, endpoint=True),
        "equal": np.full(size, top, np.uint64),
        "rising": np.sort(rng.integers(0, top, size, dtype=np.uint64, endpoint=True)),
        "falling": np.sort(rng.integers(0, top, size, dtype=np.uint64, endpoint=True))[::-1].copy(),
    }[pattern]
    sorted_keys, sorted_values = sort(backend, keys, np.arange(size, dtype=np.uint32), n_bits)
    order = np.argsort(keys, kind="stable")
    np.testing.assert_array_equal(sorted_keys, keys[order])
    np.testing.assert_array_equal(sorted_values, order)


def test_the_count_on_the_device_is_capped_by_the_capacity(any_backend):
    keys = np.arange(1000, dtype=np.uint64)[::-1].copy()
    sorted_keys, _ = sort(any_backend, keys, np.arange(1000, dtype=np.uint32), 10, capacity=600, n_items=10**12)
    np.testing.assert_array_equal(sorted_keys, np.sort(keys[:600]))


def test_plans_cover_all_bits_once():
    for n_bits in range(1, 65):
        plan = digit_plan(n_bits, 8)
        assert [first for first, _ in plan] == list(np.cumsum([0] + [bits for _, bits in plan])[:-1])
        assert sum(bits for _, bits in plan) == n_bits
        assert all(1 <= bits <= 8 for _, bits in plan)
        assert len(plan) == -(-n_bits // 8)
