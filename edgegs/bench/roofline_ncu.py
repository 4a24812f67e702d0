"""What ncu measured (``ncu --csv --page raw``) beside what was counted for a roofline."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

from edgegs.bench.roofline import Row
from edgegs.bench.roofline_table import columns, millions
from edgegs.errors import SceneError, UsageError
from edgegs.files import read_regular

MAX_CSV_BYTES = 64 << 20
#: What of ncu's metrics is compared: columns that are added up over a stage's kernels.
TIME, DRAM, INSTRUCTIONS = "gpu__time_duration.sum", "dram__bytes.sum", "smsp__inst_executed.sum"
FP32 = [f"smsp__sass_thread_inst_executed_op_{name}_pred_on.sum" for name in ("ffma", "fadd", "fmul")]
DRAM_PARTS = ["dram__bytes_read.sum", "dram__bytes_write.sum"]
CACHE = "lts__t_bytes.sum"
#: Not added but averaged over a stage's kernels, weighted by their time.
THROUGHPUTS = {
    "sm_percent": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "dram_percent": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
}
COMPARED = {TIME, DRAM, INSTRUCTIONS, CACHE, *FP32, *DRAM_PARTS, *THROUGHPUTS.values()}
#: ncu writes some prefix of its own choice before those, unless told `--print-units base`.
UNITS = {
    "": 1.0, "byte": 1.0, "inst": 1.0, "%": 1.0, "nsecond": 1e-9, "ns": 1e-9, "usecond": 1e-6, "us": 1e-6,
    "msecond": 1e-3, "ms": 1e-3, "second": 1.0, "s": 1.0,
}  # fmt: skip
PREFIXES = {"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


class KernelRun(NamedTuple):
    """One launch that ncu measured: base units (bytes, seconds, instructions, per cent) by metric."""

    kernel: str
    metrics: Dict[str, float]


def read(path: Path) -> List[KernelRun]:
    """The launches in a file of ``ncu --csv --page raw``; what ncu and the program print before the table is skipped.

    Raises:
        InputError, AccessError: it cannot be read. SceneError (65): it is not such a file; the message says what to do.
    """
    content = read_regular(path, MAX_CSV_BYTES, "CSV file of ncu").decode("utf-8", "replace")
    lines = content.splitlines()
    first = next((i for i, line in enumerate(lines) if '"Kernel Name"' in line or line.startswith("ID,")), None)
    if first is None:
        raise SceneError(f'{path}: has no line with "Kernel Name"; write it with `ncu --csv --page raw`')
    # what ncu and the program say after it is left out, too: cells stand in quotes
    numbers = [i for i in range(first, len(lines)) if i == first or lines[i].startswith('"')]
    table = list(csv.reader(io.StringIO("\n".join(lines[i] for i in numbers))))
    head = table[0]
    if "Metric Name" in head:
        raise SceneError(f"{path}: is of another page; add `--page raw` to ncu's options")
    if TIME not in head or "Kernel Name" not in head:
        raise SceneError(f"{path}:{first + 1}: lacks the column {TIME!r}; see docs/roofline.md for ncu's metrics")
    units = table[1] if len(table) > 1 else []
    runs = []
    for i, cells in zip(numbers[2:], table[2:]):
        if len(cells) != len(head):
            raise SceneError(f"{path}:{i + 1}: has {len(cells)} columns where the first line has {len(head)}")
        metrics = {
            name: _number(path, i + 1, name, unit, cell)
            for name, unit, cell in zip(head, units, cells)
            if name in COMPARED and cell
        }
        runs.append(KernelRun(cells[head.index("Kernel Name")].split("(")[0].strip(), metrics))
    if not runs:
        raise SceneError(f"{path}: holds no launch; did ncu's --kernel-name or --launch-skip leave them all out?")
    return runs


def _number(path: Path, number: int, name: str, unit: str, cell: str) -> float:
    base, factor = unit, 1.0
    if base not in UNITS and base[:1] in PREFIXES:
        base, factor = base[1:], PREFIXES[base[0]]
    if base not in UNITS:
        raise SceneError(f"{path}:{number}: {name} is in {unit!r}, which is not known here; add `--print-units base`")
    try:
        return float(cell.replace(",", "")) * factor * UNITS[base]
    except ValueError:
        raise SceneError(f"{path}:{number}: {name} is {cell!r}, which is no number") from None


def compare(row: Row, runs: Sequence[KernelRun]) -> List[Dict[str, Any]]:
    """Of each stage, what was counted and what ncu measured a frame; None where the file has not all of it.

    Raises:
        UsageError: the file has none of the row's kernels.
    """
    compared = []
    dram = [DRAM] if any(DRAM in run.metrics for run in runs) else DRAM_PARTS
    for stage in row["stages"]:
        measured: Dict[str, Optional[float]] = {
            "ms": _sum(stage, runs, [TIME], 1e3),
            "bytes": _sum(stage, runs, dram),
            "cache_bytes": _sum(stage, runs, [CACHE]),
            "slots": _sum(stage, runs, [INSTRUCTIONS]),
            "fp32": _sum(stage, runs, FP32),
        }
        for name, metric in THROUGHPUTS.items():
            weighted = _sum(stage, runs, [metric], weight=TIME)
            measured[name] = weighted / measured["ms"] * 1e3 if weighted is not None and measured["ms"] else None
        counted = {name: stage[name] for name in ("ms", "bytes", "slots", "fp32")}
        compared.append({"stage": stage["stage"], "counted": counted, "measured": measured})
    if all(one["measured"]["ms"] is None for one in compared):
        kernels = ", ".join(sorted({kernel for stage in row["stages"] for kernel in stage["kernels"]}))
        found = ", ".join(sorted({run.kernel for run in runs})[:6])
        raise UsageError(f"--compare-ncu: the file is of {found}; the row has {kernels}: take the same variant")
    return compared


def _sum(
    stage: Dict[str, Any], runs: Sequence[KernelRun], metrics: Sequence[str], scale: float = 1.0, weight: str = ""
) -> Optional[float]:
    """A frame's: the mean over a kernel's launches in the file, times its launches a frame."""
    total = 0.0
    for kernel, launches in stage["kernels"].items():
        found = [run.metrics for run in runs if run.kernel == kernel]
        if not found or any(metric not in one for one in found for metric in metrics):
            return None
        values = [sum(one[metric] for metric in metrics) * (one.get(weight, 0.0) if weight else 1.0) for one in found]
        total += sum(values) / len(values) * launches
    return total * scale


def text(compared: Sequence[Dict[str, Any]]) -> str:
    """Counted beside measured, and the one over the other."""
    head = ["counted : ncu", "ms", "ncu", "MB", "DRAM", "ratio", "L2 MB", "M slots", "ncu", "ratio"]
    head += ["M fp32", "ncu", "ratio", "%SM", "%DRAM", ""]
    lines = [head]
    for one in compared:
        counted, measured = one["counted"], one["measured"]
        lines.append(
            [
                one["stage"],
                f"{counted['ms']:.4f}",
                "" if measured["ms"] is None else f"{measured['ms']:.4f}",
                *_pair(counted["bytes"], measured["bytes"]),
                millions(measured["cache_bytes"]),
                *_pair(counted["slots"], measured["slots"]),
                *_pair(counted["fp32"], measured["fp32"]),
                "" if measured["sm_percent"] is None else f"{measured['sm_percent']:.1f}",
                "" if measured["dram_percent"] is None else f"{measured['dram_percent']:.1f}",
                "",
            ]
        )
    return "\n".join([*columns(lines), "ratio: counted over measured"])


def _pair(counted: Optional[float], measured: Optional[float]) -> List[str]:
    ratio = f"{counted / measured:.2f}" if counted and measured else ""
    return [millions(counted), millions(measured), ratio]
