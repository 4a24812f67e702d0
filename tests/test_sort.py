"""The radix sort: exact and stable at every size around block, warp and step edges, on every build."""

from __future__ import annotations

import numpy as np
import pytest

from edgegs.kernels.headers import constants
from edgegs.kernels.variants import digit_plan

C = constants()
#: Items of a block's step by bits of the key, and the same where one thread owns the block.
STEPS = {
    64: C["SORT_THREADS"] * C["SORT_ITEMS_64"],
    32: C["SORT_THREADS"] * C["SORT_ITEMS_32"],
    16: C["SORT_THREADS"] * C["SORT_ITEMS_32"],
}
HOST_STEP = C["SORT_ITEMS_HOST_FAST"]
STEP = STEPS[64]
WARP_ITEMS = 32 * C["SORT_ITEMS_64"]
SIZES = (
    0,
    1,
    31,
    32,
    33,
    255,
    256,
    257,
    WARP_ITEMS - 1,
    WARP_ITEMS + 1,
    HOST_STEP - 1,
    HOST_STEP,
    HOST_STEP + 1,
    STEP - 1,
    STEP,
    STEP + 1,
    3 * STEP + 7,
)


def sort(backend, keys, values, n_bits, capacity=None, n_items=None, n_blocks=None):
    """Run the launches of a sort as the renderer does; returns sorted keys and values."""
    capacity = len(keys) if capacity is None else capacity
    n_items = len(keys) if n_items is None else n_items
    n_blocks = backend.n_blocks if n_blocks is None else n_blocks
    room, width = max(1, len(keys)), 8 * keys.dtype.itemsize
    key_buffers = [backend.alloc("keys", (room,), keys.dtype) for _ in range(2)]
    value_buffers = [backend.alloc("values", (room,), "u4") for _ in range(2)]
    counts = backend.alloc("counts", (C["SORT_DIGITS"], n_blocks), "u4")
    totals = backend.alloc("totals", (C["SORT_DIGITS"],), "u4")
    counter = backend.alloc("counter", (2,), "u8")
    backend.upload(counter, np.array([n_items, 12345], np.uint64))
    if len(keys):
        backend.upload(key_buffers[0], keys)
        backend.upload(value_buffers[0], values)
        backend.upload(key_buffers[1], np.full(room, 2**width - 1, keys.dtype))
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
            n_blocks=n_blocks,
            first_bit=first_bit,
            n_bits=bits,
        )
        backend.launch(f"sort_count_{width}", n_blocks, params)
        backend.launch("sort_scan_rows", C["SORT_DIGITS"], params)
        backend.launch(f"sort_scatter_{width}", n_blocks, params)
    last = len(plan) % 2
    n = min(n_items, capacity)
    return backend.download(key_buffers[last])[:n], backend.download(value_buffers[last])[:n]


def sorts_exactly(backend, keys, n_bits, **options):
    """The order is that of a stable sort, to the item."""
    sorted_keys, sorted_values = sort(backend, keys, np.arange(len(keys), dtype=np.uint32), n_bits, **options)
    order = np.argsort(keys, kind="stable")
    np.testing.assert_array_equal(sorted_keys, keys[order])
    np.testing.assert_array_equal(sorted_values, order)


def some_equal(size, n_bits, width):
    """Random keys, many of them equal."""
    rng = np.random.default_rng(size)
    keys = rng.integers(0, 2**n_bits - 1, size, dtype=np.uint64, endpoint=True)
    keys[rng.random(size) < 0.5] &= np.uint64(0x7)
    return keys.astype(f"u{width // 8}")


@pytest.mark.parametrize("size", SIZES)
def test_sorts_exactly_and_keeps_the_order_of_equal_keys(any_backend, size):
    sorts_exactly(any_backend, some_equal(size, 43, 64), 43)


@pytest.mark.parametrize("beyond", [-1, 0, 1])
@pytest.mark.parametrize(("width", "n_bits"), [(16, 13), (32, 27)])
def test_other_key_widths_at_the_edges_of_their_steps(backend, width, n_bits, beyond):
    for size in (5, 2 * STEPS[width] + beyond):
        sorts_exactly(backend, some_equal(size, n_bits, width), n_bits)


@pytest.mark.parametrize("n_blocks", [1, 2, 3, 257, 600])
@pytest.mark.parametrize("width", [16, 32, 64])
def test_any_number_of_blocks(backend, width, n_blocks):
    """Few: several steps a block, the last cut short. Many: most have nothing, and a thread scans several."""
    sorts_exactly(backend, some_equal(3 * STEPS[width] + 7, 16, width), 16, n_blocks=n_blocks)


@pytest.mark.parametrize("width", [16, 32, 64])
def test_items_of_the_highest_digit_come_before_what_fills_a_step(backend, width):
    for size in (1, 100, STEPS[width] - 1, STEPS[width] + 33):
        sorts_exactly(backend, np.full(size, 2**width - 1, f"u{width // 8}"), width)


@pytest.mark.parametrize("bits", range(1, 9))
def test_a_pass_sorts_by_its_own_bits_only(backend, bits):
    keys = np.random.default_rng(bits).integers(0, 2**16, 1000, dtype=np.uint16)
    sorted_keys, sorted_values = sort(backend, keys, np.arange(1000, dtype=np.uint32), bits, n_blocks=2)
    order = np.argsort(keys & (2**bits - 1), kind="stable")
    np.testing.assert_array_equal(sorted_keys, keys[order])
    np.testing.assert_array_equal(sorted_values, order)


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
    sorts_exactly(backend, keys, n_bits)


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
