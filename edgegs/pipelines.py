"""The two pipelines: the buffers of their stages, and the launches of a frame in their order.

    tiles   project -> duplicate -> sort -> ranges -> rasterize    keys ref64, packed32, split
    bins    project -> fill -> sort -> rasterize                   key bins

Which kernel each launch runs follows from the variant (edgegs/kernels/variants.py).
"""

from __future__ import annotations

import abc
from typing import Dict, Iterator, List, NamedTuple, Sequence, Tuple

import numpy as np

from edgegs.backends.base import Backend, Buffer, Params
from edgegs.errors import DeviceError
from edgegs.kernels.variants import Variant, depth_bits, digit_plan
from edgegs.room import DIGITS, TILE, C, n_tiles

#: Bits of a float depth that can differ: depths are positive.
DEPTH_KEY_BITS = 31
#: Blocks of project_bins that fill a multiprocessor, of the eight that ``Backend.n_blocks`` counts.
PROJECTING_SHARE = 1 / 2
#: lists_fill has larger blocks: a quarter as many.
FILLING_SHARE = 1 / 4
#: Those that sort lists are half as many; a quarter, where the lists are few and long: no more of them than this share
#: of the blocks, and so many splats of the scene for each. Measured on sm_90.
SORTING_SHARE, FEW_SORTING_SHARE = 1 / 2, 1 / 4
FEW_LISTS_SHARE, LONG_LIST_SPLATS = 1 / 2, 400
#: Bins of a picture: what `divide` of cuda/bins.cuh is exact for.
MAX_PICTURE_BINS = 1 << 21
#: Fewest splats that a block projects at a time: a warp.
MIN_STEP = 32


class Launch(NamedTuple):
    """One kernel launch of a frame, and the stage that its time counts for."""

    stage: str
    kernel: str
    n_blocks: int
    params: Params


class Pipeline(abc.ABC):
    """Buffers by their names in FrameParams (cuda/params.h).

    Args:
        width, height: of the largest picture, pixels.

    Attributes:
        buffers: of the splats, the tiles or bins, and the counters.
        outputs: what the sort leaves for the rasterizer; once ``grow`` was called.
    """

    def __init__(self, backend: Backend, variant: Variant, n_splats: int, width: int, height: int) -> None:
        self._backend, self._variant, self._n_splats = backend, variant, n_splats
        self.buffers: Dict[str, Buffer] = {}
        self.outputs: Dict[str, Buffer] = {}
        self._of_instances: List[Buffer] = []
        self._capacity = 0
        self._alloc("n_instances", (1,), "u8")
        self._alloc("n_visible", (1,), "u8")

    @abc.abstractmethod
    def grow(self, n_instances: int) -> None:
        """Make room for ``n_instances``, in place of the room there was."""

    @abc.abstractmethod
    def plan(self, frame: Params, width: int, height: int) -> List[Launch]:
        """The launches of a picture of that size; fills the fields of ``frame`` that follow from it."""

    def all_buffers(self) -> List[Buffer]:
        """To be freed, and counted."""
        return [*self.buffers.values(), *self._of_instances]

    def _alloc(self, name: str, shape: Sequence[int], dtype: str, clear: bool = False) -> None:
        self.buffers[name] = self._backend.alloc(name, shape, dtype)
        if clear:
            self._backend.upload(self.buffers[name], np.zeros(tuple(shape), dtype))

    def _start_growing(self, n_instances: int) -> None:
        buffers, self._of_instances, self.outputs = self._of_instances, [], {}
        for buffer in buffers:
            self._backend.free(buffer)
        self._capacity = n_instances

    def _instance_buffer(self, label: str, dtype: str, *shape: int) -> Buffer:
        buffer = self._backend.alloc(label, (self._capacity, *shape), dtype)
        self._of_instances.append(buffer)
        return buffer


class TilePipeline(Pipeline):
    """An instance for each splat and 16x16 tile, sorted by tile and depth: after the original."""

    def __init__(self, backend: Backend, variant: Variant, n_splats: int, width: int, height: int) -> None:
        super().__init__(backend, variant, n_splats, width, height)
        n = n_splats
        self._alloc("splat_means2d", (n, 2), "f4")
        self._alloc("splat_depths", (n,), "f4")
        self._alloc("splat_conics", (n, 4), "f4")
        self._alloc("splat_colors", (n, 3), "f4")
        self._alloc("tile_starts", (n_tiles(width, height) + 1,), "u4")
        #: blocks of the kernel that projects and duplicates at once
        self.n_links = -(-n // int(C["PROJECT_THREADS"])) if variant.key == "packed32" else 0
        if variant.key == "packed32":
            self._alloc("block_chain", (max(1, self.n_links),), "u8", clear=True)
            self._alloc("block_ticket", (1,), "u4", clear=True)
            for name in ("n_instances", "n_visible"):  # a scene without splats launches nothing that writes them
                backend.upload(self.buffers[name], np.zeros(1, "u8"))
        else:
            self._alloc("splat_rects", (n, 4), "u2")
            self._alloc("splat_n_tiles", (n,), "u4")
            self._alloc("block_counts", (backend.n_blocks, 2), "u8")
            if variant.culling == "tight":
                self._alloc("splat_extents", (n, 2), "f4")
        self._visible: Tuple[List[Buffer], List[Buffer]] = ([], [])
        if variant.key == "split":
            depths = [backend.alloc("visible_depths", (n,), "u4") for _ in range(2)]
            self._visible = (depths, [backend.alloc("visible_splats", (n,), "u4") for _ in range(2)])
        self._digits = {
            "digit_block_counts": backend.alloc("digit_block_counts", (DIGITS, backend.n_blocks), "u4"),
            "digit_totals": backend.alloc("digit_totals", (DIGITS,), "u4"),
        }

    def all_buffers(self) -> List[Buffer]:
        return [*super().all_buffers(), *self._visible[0], *self._visible[1], *self._digits.values()]

    def grow(self, n_instances: int) -> None:
        """Two buffers of keys and two of splat indices, used in turn by the sort."""
        self._start_growing(n_instances)
        dtype = f"u{self._variant.key_bits // 8}"
        self._keys = [self._instance_buffer("instance_keys", dtype) for _ in range(2)]
        self._splats = [self._instance_buffer("instance_splats", "u4") for _ in range(2)]

    def plan(self, frame: Params, width: int, height: int) -> List[Launch]:
        keys, splats, tiles = self._keys, self._splats, n_tiles(width, height)
        digits = digit_plan(self._variant.sort_bits(tiles), int(C["SORT_DIGIT_BITS"]))
        last = len(digits) % 2
        self.outputs = {"instance_keys": keys[last], "instance_splats": splats[last]}
        frame.set(
            instance_keys_unsorted=keys[0],
            instance_splats_unsorted=splats[0],
            instance_capacity=self._capacity,
            width=width,
            height=height,
            n_tiles_x=-(-width // TILE),
            n_tiles_y=-(-height // TILE),
            depth_bits=depth_bits(tiles),
            n_links=self.n_links,
            **self.outputs,
        )
        sort = list(self._sort("sort", keys, splats, digits, "n_instances", self._capacity))
        return list(self._launches(frame, sort, tiles))

    def _launches(self, frame: Params, sort: List[Launch], tiles: int) -> Iterator[Launch]:
        """A frame, top to bottom; ``sort`` are the launches that sort the instances."""
        entries, n_blocks = self._variant.entries, self._backend.n_blocks

        if self._variant.key == "packed32":
            if self.n_links:
                yield Launch("project", entries["project"], self.n_links, frame)
        else:
            yield Launch("project", entries["project"], n_blocks, frame)
        if self._variant.key == "split":
            yield Launch("sort", entries["compact"], n_blocks, frame)
            yield from self._sort_visible(frame)
            yield Launch("duplicate", entries["count"], n_blocks, frame)
        if "duplicate" in entries:
            yield Launch("duplicate", entries["duplicate"], n_blocks, frame)

        yield from sort

        yield Launch("ranges", entries["ranges"], -(-(tiles + 1) // int(C["RANGES_THREADS"])), frame)

        yield Launch("rasterize", entries["rasterize"], tiles, frame)

    def _sort_visible(self, frame: Params) -> Iterator[Launch]:
        """Key ``split``: the visible splats by depth."""
        depths, orders = self._visible
        digits = digit_plan(DEPTH_KEY_BITS, int(C["SORT_DIGIT_BITS"]))
        frame.set(
            visible_depths=depths[0],
            visible_splats_unsorted=orders[0],
            visible_splats=orders[len(digits) % 2],
        )
        return self._sort("depth", depths, orders, digits, "n_visible", self._n_splats)

    def _sort(
        self,
        kind: str,
        keys: List[Buffer],
        values: List[Buffer],
        digits: Sequence[Tuple[int, int]],
        n_items: str,
        capacity: int,
    ) -> Iterator[Launch]:
        """A radix sort of (keys[0], values[0]), each pass from one buffer to the other."""
        entries, n_blocks = self._variant.entries, self._backend.n_blocks
        for index, (first_bit, n_bits) in enumerate(digits):
            params = self._backend.params(
                "SortParams",
                keys_in=keys[index % 2],
                values_in=values[index % 2],
                keys_out=keys[1 - index % 2],
                values_out=values[1 - index % 2],
                n_items=self.buffers[n_items],
                capacity=capacity,
                n_blocks=n_blocks,
                first_bit=first_bit,
                n_bits=n_bits,
                **self._digits,
            )
            yield Launch("sort", entries[f"{kind}_count"], n_blocks, params)
            yield Launch("sort", entries["sort_scan"], DIGITS, params)
            yield Launch("sort", entries[f"{kind}_scatter"], n_blocks, params)


class BinPipeline(Pipeline):
    """A list for each coarse bin, sorted in shared memory (cuda/bins.cuh)."""

    def __init__(self, backend: Backend, variant: Variant, n_splats: int, width: int, height: int) -> None:
        super().__init__(backend, variant, n_splats, width, height)
        n_bins_x, n_bins_y = self._bins(width, height)
        if n_bins_x * n_bins_y > MAX_PICTURE_BINS:
            raise DeviceError(f"a picture of {width}x{height} has too many bins; make it smaller")
        self._alloc("splat_records", (n_splats, 8), "u4")
        self._alloc("bin_counts", (n_bins_x * n_bins_y,), "u4", clear=True)
        self._alloc("bin_starts", (n_bins_x * n_bins_y + 1,), "u4")
        self._alloc("bin_order", (n_bins_x * n_bins_y, 4), "u4")
        self._alloc("list_shares", (n_bins_x * n_bins_y + backend.n_blocks, 4), "u4")
        self._alloc("block_ticket", (1,), "u4", clear=True)
        self._alloc("step_ticket", (1,), "u4", clear=True)
        self._alloc("instance_ticket", (1,), "u8", clear=True)
        self._alloc("visible_ticket", (1,), "u8", clear=True)

    def _bins(self, width: int, height: int) -> Tuple[int, int]:
        return -(-width // self._variant.bin_size), -(-height // self._variant.bin_size)

    def grow(self, n_instances: int) -> None:
        self._start_growing(n_instances)
        self._unsorted = {name: self._instance_buffer(name, "u4", 4) for name in ("bin_instances", "list_entries")}
        self._lists = {"bin_lists": self._instance_buffer("bin_lists", "u4", 2)}

    def plan(self, frame: Params, width: int, height: int) -> List[Launch]:
        self.outputs = {**self._unsorted, **self._lists}
        n_bins_x, n_bins_y = self._bins(width, height)
        n_blocks, n_lists = self._backend.n_blocks, n_bins_x * n_bins_y
        is_few = n_lists <= n_blocks * FEW_LISTS_SHARE and self._n_splats >= n_lists * LONG_LIST_SPLATS
        n_sharing = max(1, int(n_blocks * (FEW_SORTING_SHARE if is_few else SORTING_SHARE)))
        n_projecting = max(1, int(n_blocks * PROJECTING_SHARE))
        step = int(C["BINS_THREADS"])
        while step > MIN_STEP and self._n_splats < step * n_projecting:  # a small scene is spread over all blocks
            step //= 2
        frame.set(
            instance_capacity=self._capacity,
            width=width,
            height=height,
            n_bins_x=n_bins_x,
            n_bins_y=n_bins_y,
            bin_shift=self._variant.bin_size.bit_length() - 1,
            bins_step=step,
            n_list_shares=n_lists + n_sharing,
            **self.outputs,
        )
        entries = self._variant.entries
        n_patches = n_lists * int(C["BIN_COLUMNS"]) * self._variant.bin_size // int(C["PATCH_HEIGHT"])
        patches_a_block = int(C["PATCH_THREADS"]) // 32  # one a warp
        return [
            Launch("project", entries["project"], n_projecting, frame),
            Launch("duplicate", entries["fill"], max(2, int(n_blocks * FILLING_SHARE)), frame),
            Launch("sort", entries["sort_few" if is_few else "sort"], n_lists + n_sharing, frame),
            Launch("rasterize", entries["rasterize"], -(-n_patches // patches_a_block), frame),
        ]


def make_pipeline(backend: Backend, variant: Variant, n_splats: int, width: int, height: int) -> Pipeline:
    """The pipeline that draws the variant."""
    kind = BinPipeline if variant.key == "bins" else TilePipeline
    return kind(backend, variant, n_splats, width, height)
