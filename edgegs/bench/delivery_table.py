"""What the delivery bench found, for people; the rows are described in ``edgegs.bench.delivery``."""

from __future__ import annotations

import re
from typing import Any, Dict, List, Sequence

from edgegs.bench.ladder import by_size

Row = Dict[str, Any]

#: Flat out: up to CPU ms; the others: paced.
HEAD = (
    "output",
    "FPS",
    "ms p50",
    "ms p95",
    "CPU ms",
    "at {fps:g} FPS",
    "dropped",
    "CPU ms",
    "offer µs p50",
    "p95",
    "longest",
)
LEGEND = (
    "FPS, ms and CPU ms a frame: as fast as the output takes frames; then at {fps:g} FPS offered: FPS delivered, "
    "frames dropped, CPU ms a frame, and how long the loop's thread was held up by offering one"
)


def cells(row: Row) -> List[str]:
    """One a column of ``HEAD``; a dash where nothing was measured."""
    most, paced = row["flat_out"], row["paced"]
    line = [name_of(row)]
    if most is None:
        line += ["–"] * 4
    else:
        times = most["frame_ms"]
        line += [_figure(most["fps"]), _figure(times["p50"]), _figure(times["p95"]), _figure(most["cpu_ms"])]
    if paced is None:
        return line + ["–"] * 6
    cpu, offer = paced["cpu_ms"], paced["offer_us"]
    line += [f"{paced['delivered_fps']:.1f}", str(paced["dropped"]), "–" if cpu is None else _figure(cpu)]
    return line + [f"{offer[key]:.0f}" for key in ("p50", "p95", "max")]


def caption(document: Dict[str, Any], rows: Sequence[Row]) -> str:
    """One line about the rows of one size."""
    commit = document["commit"]
    parts = [
        "{}x{}, {} pictures in turn (each {} KB as JPEG of quality 80)".format(
            rows[0]["width"], rows[0]["height"], document["pictures"], _of_size(document, rows[0])
        ),
        "{:g} s flat out and {:g} s paced".format(document["duration_s"], document["duration_s"]),
        document["device"],
        "commit " + re.sub(r"^(\w{12})\w*", r"\1", commit) if commit else "",
    ]
    return "; ".join(part for part in parts if part)


def text_table(document: Dict[str, Any]) -> str:
    """A table a size, for a terminal."""
    blocks = []
    for rows in by_size(document["rows"]):
        lines = [_head(document), *(cells(row) for row in rows)]
        widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
        table = [
            "  ".join(line[i].rjust(widths[i]) if i else line[i].ljust(widths[i]) for i in range(len(HEAD)))
            for line in lines
        ]
        reasons = [f"{name_of(row)}: {_reason(row)}" for row in rows if row["reason"]]
        blocks.append("\n".join([caption(document, rows), *table, *reasons]))
    return "\n\n".join(blocks)


def markdown(document: Dict[str, Any]) -> str:
    """A Markdown table a size, with its caption and the reasons below."""
    blocks = []
    for rows in by_size(document["rows"]):
        rule = ["---", *["---:"] * (len(HEAD) - 1)]
        table = ["| " + " | ".join(line) + " |" for line in (_head(document), rule, *map(_markdown_cells, rows))]
        reasons = [f"- `{row['output']}`: {_reason(row)}" for row in rows if row["reason"]]
        legend = LEGEND.format(fps=document["fps"])
        end = [*reasons, "", f"{caption(document, rows)}. {legend}."]
        blocks.append("\n".join([*table, *([""] if reasons else []), *end]))
    return "\n\n".join(blocks)


def _markdown_cells(row: Row) -> List[str]:
    line = cells(row)
    uri = row["output"]
    return [f"`{uri}`{line[0][len(uri) :]}", *line[1:]]


def _head(document: Dict[str, Any]) -> List[str]:
    return [word.format(fps=document["fps"]) for word in HEAD]


def _of_size(document: Dict[str, Any], row: Row) -> str:
    return "{:.0f}".format(document["jpeg_kb"]["{}x{}".format(row["width"], row["height"])])


def _reason(row: Row) -> str:
    return ("failed: " if row["flat_out"] or row["paced"] else "not measured: ") + str(row["reason"])


def name_of(row: Row) -> str:
    """The output, as a table names it."""
    clients = {None: "", 0: ", no client", 1: ", 1 client"}[row["clients"]]
    return str(row["output"]) + clients


def _figure(value: float) -> str:
    """Three digits, without a point from 100 up."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
