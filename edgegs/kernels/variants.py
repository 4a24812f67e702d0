"""The variants: named, complete choices along the axes in which the pipeline can differ.

Entry names in cuda/edgegs.cu are the stage and the axes that change it; a variant therefore *is* its list
of entries, and no other code needs to know the axes.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Dict, Tuple

from edgegs.errors import DeviceError


@dataclass(frozen=True)
class Variant:
    """One choice along each axis; ``design`` names the axes' choices."""

    name: str
    storage: str
    key: str
    culling: str
    exponential: str
    raster: str
    says: str

    @property
    def key_bits(self) -> int:
        """Bits of one sort key."""
        return {"ref64": 64}[self.key]

    @property
    def entries(self) -> Dict[str, str]:
        """Kernel entry of each launch, in the order of a frame."""
        return {
            "project": f"project_{self.storage}_{self.culling}",
            "duplicate": f"duplicate_{self.key}",
            "sort_count": f"sort_count_{self.key_bits}",
            "sort_scan": "sort_scan_rows",
            "sort_scatter": f"sort_scatter_{self.key_bits}",
            "ranges": f"ranges_{self.key}",
            "rasterize": f"rasterize_{self.raster}_{self.exponential}",
        }

    def sort_bits(self, n_tiles: int) -> int:
        """Bits of a key that can differ between instances: 32 of depth and those of the tile."""
        return 32 + max(1, (n_tiles - 1).bit_length())


BASELINE = Variant(
    "baseline", "fp32", "ref64", "radius", "exact", "block", "the original 3DGS pipeline: every ratio's denominator"
)

VARIANTS: Dict[str, Variant] = {v.name: v for v in (BASELINE,)}


def variant(name: str) -> Variant:
    """The variant of that name; ``auto`` is the default one."""
    if name == "auto":
        return BASELINE
    if name not in VARIANTS:
        close = difflib.get_close_matches(name, VARIANTS, 1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise DeviceError("render.variant: no variant {!r}{} (there are: {})".format(name, hint, ", ".join(VARIANTS)))
    return VARIANTS[name]


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
