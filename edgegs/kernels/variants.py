"""The variants: named, complete choices along the axes in which the pipeline can differ.

Entry names in cuda/edgegs.cu are the stage and the axes that change it, so a variant's entries follow from its
choices. Any combination that goes together can be asked for by its choices, such as ``packed-split-tight-fast-dual``.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Dict, Iterable, List, Tuple

from edgegs.errors import DeviceError

#: The axes, in the order of a combination's name, with their choices; the first is the original's.
AXES: Dict[str, Tuple[str, ...]] = {
    "storage": ("fp32", "packed"),
    "key": ("ref64", "packed32", "split", "bins"),
    "culling": ("radius", "tight"),
    "exponential": ("exact", "fast", "bits"),
    "raster": ("block", "dual", "patch8", "patch16", "tensor8", "tensor16"),
}

#: Bits of a sort key; the lists of ``bins`` are sorted in place of one long array.
KEY_BITS = {"ref64": 64, "packed32": 32, "split": 16, "bins": 0}
#: Pixels a side of the coarse bins, by the raster that walks their lists.
BIN_SIZES = {"patch8": 32, "patch16": 64, "tensor8": 32, "tensor16": 64}
#: Most bits of quantised depth: what a float counts exactly.
MAX_DEPTH_BITS = 24


@dataclass(frozen=True)
class Variant:
    """One choice along each of ``AXES``."""

    name: str
    storage: str
    key: str
    culling: str
    exponential: str
    raster: str
    says: str = ""

    @property
    def key_bits(self) -> int:
        """Bits of one sort key."""
        return KEY_BITS[self.key]

    @property
    def entries(self) -> Dict[str, str]:
        """Kernel entry of each kind of launch."""
        entries = {"rasterize": f"rasterize_{self.raster}_{self.exponential}"}
        if self.key == "bins":
            entries.update(project=f"project_bins_{self.storage}", fill="lists_fill")
            entries.update(sort="lists_sort", sort_few="lists_sort_few")
            return entries
        entries["ranges"] = f"ranges_{self.key}"
        if self.key == "packed32":
            entries["project"] = f"project_packed32_{self.storage}_{self.culling}"
        else:
            entries["project"] = f"project_{self.storage}_{self.culling}"
            entries["duplicate"] = f"duplicate_{self.key}_{self.culling}"
        if self.key == "split":
            entries.update(compact="sort_compact", count="duplicate_count")
            entries.update(depth_count="sort_count_32", depth_scatter="sort_scatter_32")
        entries["sort_count"] = f"sort_count_{self.key_bits}"
        entries["sort_scan"] = "sort_scan_rows"
        entries["sort_scatter"] = f"sort_scatter_{self.key_bits}"
        return entries

    @property
    def counting_entry(self) -> str:
        """Key ``bins``: the kernel that counts what its rasterizer does; tensor cores are given the same patches."""
        return "count_patch{}".format("16" if self.raster.endswith("16") else "8")

    @property
    def bin_size(self) -> int:
        """Pixels a side of key ``bins``' bins; 0 for the other keys."""
        return BIN_SIZES.get(self.raster, 0)

    @property
    def needs_tensor_cores(self) -> bool:
        """Whether only GPUs of compute capability 8.0 and later draw it (cuda/tensor.cuh)."""
        return self.raster.startswith("tensor")

    @property
    def is_possible(self) -> bool:
        """Whether the choices go together: patches are rasterized from bins, and both know one culling and one 2^x."""
        if (self.key == "bins") != (self.raster in BIN_SIZES):
            return False
        return self.key != "bins" or (self.culling == "tight" and self.exponential == "fast")

    @property
    def is_exact(self) -> bool:
        """Whether its pictures meet the bar of exact variants (see the tests' tolerances)."""
        return self.storage == "fp32" and self.key != "packed32" and self.exponential == "exact"

    def sort_bits(self, n_tiles: int) -> int:
        """Bits of a key that can differ between instances."""
        depth = {"ref64": 32, "packed32": depth_bits(n_tiles), "split": 0}[self.key]
        return depth + tile_bits(n_tiles)


def tile_bits(n_tiles: int) -> int:
    """Bits that number ``n_tiles`` tiles: ceil(log2 n_tiles), at least 1."""
    return max(1, (n_tiles - 1).bit_length())


def depth_bits(n_tiles: int) -> int:
    """Bits of depth in a ``packed32`` key: what the tiles leave of 32, at most ``MAX_DEPTH_BITS``."""
    return min(MAX_DEPTH_BITS, 32 - tile_bits(n_tiles))


BASELINE = Variant(
    "baseline", "fp32", "ref64", "radius", "exact", "block", "the original 3DGS pipeline: every ratio's denominator"
)
ROOFGS = Variant("roofgs", "packed", "packed32", "tight", "bits", "dual", "every technique of the RoofGS paper")
BEST = Variant("best", "packed", "bins", "tight", "fast", "patch8", "lists of coarse bins, a warp a patch")
WIDE = Variant("wide", "packed", "bins", "tight", "fast", "patch16", "the same in bins of 64 pixels: faster at 4K")

TENSOR = Variant("tensor", "packed", "bins", "tight", "fast", "tensor8", "best, blended by tensor cores")
TENSOR_WIDE = Variant("tensor-wide", "packed", "bins", "tight", "fast", "tensor16", "wide, blended by tensor cores")

BEST_FP32 = Variant("best-fp32", "fp32", "bins", "tight", "fast", "patch8", "best without packing: for processors")
EXACT = Variant("exact", "fp32", "split", "tight", "exact", "dual", "the fastest that changes nothing but the culling")

VARIANTS: Dict[str, Variant] = {
    v.name: v for v in (BASELINE, EXACT, ROOFGS, BEST_FP32, BEST, WIDE, TENSOR, TENSOR_WIDE)
}

#: What ``auto`` takes where nothing was measured. On GPUs by measurement on sm_90, predicted for others; on the host
#: packing gains nothing.
DEFAULTS = {"cuda": BEST, "host": BEST_FP32, "reference": EXACT}
#: Blocks of a partitioned launch for each multiprocessor: 8 of 256 threads fill one.
BLOCKS_PER_MULTIPROCESSOR = 8
#: ``wide`` in place of ``best`` where each block of a partitioned launch has so many pixels: measured on sm_90 (1,056
#: blocks) between 1920x1080 (6 % slower) and 3840x2160 (a quarter faster); a Nano (8 blocks) has more at any size.
WIDE_PIXELS_A_BLOCK = 4_000
#: And where there are no more splats for each of its bins than a list that is sorted at once may hold.
WIDE_SPLATS_A_BIN = 4_096

#: The ablation ladder: from the original, one technique more a rung.
LADDER: Tuple[Variant, ...] = (
    BASELINE,
    Variant("+tight", "fp32", "ref64", "tight", "exact", "block", "opacity-aware ellipses instead of squares"),
    Variant("+packed", "packed", "ref64", "tight", "exact", "block", "76 instead of 236 bytes a splat"),
    Variant("+packed32", "packed", "packed32", "tight", "exact", "block", "32-bit keys, project and duplicate fused"),
    Variant("+dual", "packed", "packed32", "tight", "exact", "dual", "two pixels a thread, folded polynomial"),
    ROOFGS,
    Variant("+fast", "packed", "packed32", "tight", "fast", "dual", "the hardware's 2^x instead of Schraudolph's bits"),
    Variant("+split", "packed", "split", "tight", "fast", "dual", "depth sort of splats, then 16-bit tile keys"),
    BEST,
    WIDE,
    TENSOR,
    TENSOR_WIDE,
)


def suits_wide(n_splats: int, width: int, height: int, n_blocks: int) -> bool:
    """Whether ``auto`` takes ``wide`` on a GPU.

    Args:
        n_blocks: of the backend, ``Backend.n_blocks``.
    """
    n_bins = -(-width // WIDE.bin_size) * -(-height // WIDE.bin_size)
    return width * height >= WIDE_PIXELS_A_BLOCK * n_blocks and n_splats <= WIDE_SPLATS_A_BIN * n_bins


def gpu_default(n_splats: int, width: int, height: int, n_sms: int, tensor_cores: bool = False) -> Variant:
    """What ``auto`` takes on a GPU of ``n_sms`` multiprocessors where nothing was measured."""
    wide = suits_wide(n_splats, width, height, BLOCKS_PER_MULTIPROCESSOR * n_sms)
    return variant("auto", "cuda", prefers_wide=wide, tensor_cores=tensor_cores)


def variant(
    name: str, backend: str = "host", is_packed: bool = False, prefers_wide: bool = False, tensor_cores: bool = False
) -> Variant:
    """The variant of that name, or of that combination of choices; ``auto`` is the backend's default.

    Args:
        is_packed: the scene is packed already: ``auto`` leaves it so, where it does not matter for speed.
        prefers_wide: ``auto`` on a GPU is ``wide``; see ``suits_wide``.
        tensor_cores: ``auto`` on a GPU uses them.
    """
    if name == "auto":
        chosen = DEFAULTS[backend]
        if chosen is BEST and tensor_cores:
            return TENSOR_WIDE if prefers_wide else TENSOR
        if chosen is BEST and prefers_wide:
            return WIDE
        if is_packed and chosen.storage != "packed":
            return variant("-".join(["packed", *(getattr(chosen, axis) for axis in list(AXES)[1:])]))
        return chosen
    if name in VARIANTS:
        return VARIANTS[name]
    choices = name.split("-")
    if len(choices) == len(AXES) and all(c in axis for c, axis in zip(choices, AXES.values())):
        made = Variant(name, *choices)
        if not made.is_possible:
            raise DeviceError(
                f"render.variant: {name!r}: key bins goes with tight, fast and a patch raster, and they with it "
                f"({', '.join(BIN_SIZES)})"
            )
        return made
    close = difflib.get_close_matches(name, VARIANTS, 1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    axes = "-".join("|".join(axis) for axis in AXES.values())
    raise DeviceError(f"render.variant: no variant {name!r}{hint} (there are: {', '.join(VARIANTS)}, and {axes})")


def drawable(variants: Iterable[Variant], tensor_cores: bool) -> List[Variant]:
    """Those that a device with or without tensor cores can draw."""
    return [one for one in variants if tensor_cores or not one.needs_tensor_cores]


def combinations(tensor_cores: bool = False) -> List[Variant]:
    """Every combination of the axes' choices; those for tensor cores only if asked for."""
    names = [""]
    for axis in AXES.values():
        names = [f"{name}-{choice}" if name else choice for name in names for choice in axis]
    made = (Variant(name, *name.split("-")) for name in names)
    return drawable((one for one in made if one.is_possible), tensor_cores)


def digit_plan(n_bits: int, digit_bits: int) -> Tuple[Tuple[int, int], ...]:
    """Passes of a radix sort over ``n_bits``: (first bit, bits), as even as they can be."""
    n_passes = -(-n_bits // digit_bits)
    plan = []
    first = 0
    for index in range(n_passes):
        bits = (n_bits - first) // (n_passes - index)
        plan.append((first, bits))
        first += bits
    return tuple(plan)
