"""The roofline in text."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence

from edgegs.bench.ladder import caption
from edgegs.bench.roofline import BANDWIDTH, EXP2, ISSUE, MULTIPLY_ADD, SHARED

HEAD = ["", "ms", "MB", "GB/s", "%copy", "M fp32", "G/s", "%fma", "M 2^x", "%2^x"]
HEAD += ["M slots", "%issue", "%shared", "fp32/B", "bound by"]
SIGNS = {"events": " ", "back to back": "*", "difference": "-"}
COUNTED = "{n_visible:,} visible splats, {n_instances:,} instances, {n_listed:,} in {n_lists:,} lists"
LEGEND = "ms: * back to back, - the difference of two sequences, else by events"


def text(document: Dict[str, Any]) -> str:
    """The ceilings, then a table a row of the document."""
    c = document["ceilings"]
    parts = [
        "copy {:,.1f} GB/s".format(c["bytes_per_s"] / 1e9),
        "multiply-adds {:,.1f} G/s ({:,.2f} TFLOP/s)".format(c["fma_per_s"] / 1e9, c["fma_per_s"] * 2e-12),
        "2^x {:,.2f} G/s".format(c["exp2_per_s"] / 1e9),
        "shared memory {:,.2f} G loads of 16 bytes/s".format(c["shared_loads_per_s"] / 1e9),
    ]
    if c["warp_width"] > 1:
        parts.append("issue {:,.1f} G warp instructions/s".format(c["fma_per_s"] / c["warp_width"] / 1e9))
    lines = ["ceilings: " + "; ".join(parts)]
    for row in document["rows"]:
        counters = row["counters"]
        lines += [
            "",
            "{}; {}".format(row["name"], caption(document, [{**row, "psnr_to": None}])),
            COUNTED.format(**counters),
            *columns([HEAD, *(_cells(stage) for stage in row["stages"])]),
            "{:.3f} ms in all. {}".format(row["total_ms"], LEGEND),
        ]
    return "\n".join(lines)


def _cells(stage: Dict[str, Any]) -> List[str]:
    percent = stage["percent"]

    def per_cent(name: str) -> str:
        return f"{percent[name]:.1f}" if percent.get(name) else ""

    return [
        stage["stage"],
        f"{stage['ms']:.4f}" + SIGNS[stage["how"]],
        f"{stage['bytes'] / 1e6:.2f}",
        f"{stage['bytes_per_s'] / 1e9:.1f}",
        per_cent(BANDWIDTH),
        millions(stage["fp32"]),
        f"{stage['fp32_per_s'] / 1e9:.1f}" if stage["fp32"] else "",
        per_cent(MULTIPLY_ADD),
        millions(stage["exp2"]),
        per_cent(EXP2),
        millions(stage["slots"]),
        per_cent(ISSUE),
        per_cent(SHARED),
        f"{stage['fp32_per_byte']:.2f}" if stage["fp32_per_byte"] else "",
        bound(stage),
    ]


def bound(stage: Dict[str, Any]) -> str:
    """In words: the ceiling, or that none is near and which is the nearest."""
    nearest, percent = stage["nearest"], stage["percent"][stage["nearest"]]
    if stage["bound"] != nearest:
        return f"{stage['bound']} ({percent:.0f} % of {nearest})"
    return f"{nearest}, in cache" if nearest == BANDWIDTH and percent > 100 else nearest


def millions(value: Optional[float]) -> str:
    return f"{value / 1e6:.2f}" if value else ""


def columns(lines: Sequence[List[str]]) -> List[str]:
    """Columns side by side; those that no row has a word for are left out, and the last is to the left."""
    shown = [i for i in range(len(lines[0])) if any(line[i] for line in lines[1:])]
    width = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    last = len(lines[0]) - 1
    return [
        "  ".join(line[i].ljust(width[i]) if i in (0, last) else line[i].rjust(width[i]) for i in shown).rstrip()
        for line in lines
    ]
