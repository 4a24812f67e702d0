"""From measured frames to rows, and from rows to tables: the ablation ladder and its ratios.

A row is plain JSON:

    width, height     of the picture
    name, kind        ``variant`` or ``peer``; the row named ``baseline`` is every ratio's denominator
    choices, says     what a variant chose along each axis, and what it adds in words
    is_rung           whether it stands in the ladder
    stage_ms          stage -> {p50, p95}, frames drawn one at a time; 0 where another stage does the work, {} for peers
    total_ms          sum of the stages' p50 (a peer's: p50 of its time on the device)
    queued_ms         {p50, p95}: of the device a frame, of frames in a row that nobody reads; null where unknown
    frame_ms          {p50, p95} from submission to the picture in the host's memory
    fps, in_flight    frames a second with that many frames under way
    n_visible, n_instances, memory_bytes    null where unknown
    ratio_to_previous, ratio_to_baseline    how many times faster: the other's queued_ms over this one's;
                      their total_ms where either has none
    psnr_db, psnr_to, max_step              psnr_db is null when the pictures are equal (max_step 0) or psnr_to is null
"""

from __future__ import annotations

import re
from typing import Any, Dict, List, Optional, Sequence

import numpy as np

from edgegs.bench.bench import Measurement, combination, compare, compared_ms, twin_picture
from edgegs.camera import Camera
from edgegs.frame import STAGES
from edgegs.kernels.variants import BASELINE, LADDER
from edgegs.scene import Scene

Row = Dict[str, Any]

#: Largest picture and scene that the float64 twin draws in half a minute; beyond, baseline's picture takes its place.
MAX_TWIN_PIXELS = 640 * 480
MAX_TWIN_SPLATS = 100_000


def twin_is_affordable(scene: Scene, camera: Camera) -> bool:
    """Whether pictures of this view are compared with the twin's."""
    return camera.width * camera.height <= MAX_TWIN_PIXELS and scene.n_splats <= MAX_TWIN_SPLATS


def make_rows(measurements: Sequence[Measurement], scene: Scene, camera: Camera, ladder: bool) -> List[Row]:
    """One row a measurement, in their order.

    Args:
        measurements: one of them is of ``baseline``, or no ratio is known.
        scene, camera: what was drawn.
        ladder: whether the rungs are to be compared with the one before.
    """
    rows = [_times(measurement, camera) for measurement in measurements]
    _add_ratios(rows, ladder)
    _add_quality(rows, measurements, scene, camera)
    return rows


def percentiles(values: Sequence[float]) -> Dict[str, float]:
    """p50 and p95, by linear interpolation."""
    p50, p95 = np.percentile(np.asarray(values, np.float64), [50, 95])
    return {"p50": round(float(p50), 5), "p95": round(float(p95), 5)}


def _times(measurement: Measurement, camera: Camera) -> Row:
    contender, samples = measurement.contender, measurement.samples
    stages = {
        stage: percentiles([sample.stage_ms[stage] for sample in samples])
        for stage in STAGES
        if stage in samples[0].stage_ms
    }
    total_ms = sum(stage["p50"] for stage in stages.values())
    if not stages:
        total_ms = percentiles([sample.total_ms for sample in samples])["p50"]
    frame_ms = percentiles([sample.frame_ms for sample in samples])
    fps = float(np.median(measurement.burst_fps)) if measurement.burst_fps else _over(1e3, frame_ms["p50"])
    rung = next((rung for rung in LADDER if rung.name == contender.name), None)
    return {
        "width": camera.width,
        "height": camera.height,
        "name": contender.name,
        "kind": contender.kind,
        "choices": contender.choices,
        "says": rung.says if rung else "",
        "is_rung": rung is not None,
        "stage_ms": stages,
        "total_ms": round(total_ms, 5),
        "queued_ms": percentiles(measurement.queued_ms) if measurement.queued_ms else None,
        "frame_ms": frame_ms,
        "fps": None if fps is None else round(fps, 3),
        "in_flight": contender.in_flight,
        "n_visible": contender.n_visible,
        "n_instances": contender.n_instances,
        "memory_bytes": contender.memory_bytes,
    }


def _add_ratios(rows: Sequence[Row], ladder: bool) -> None:
    baseline = next((row for row in rows if row["name"] == BASELINE.name), None)
    previous: Optional[Row] = None
    for row in rows:
        row["ratio_to_previous"] = row["ratio_to_baseline"] = None
        if ladder and row["is_rung"]:
            row["ratio_to_previous"] = _ratio(previous, row)
            previous = row
        row["ratio_to_baseline"] = _ratio(baseline, row)


def _over(a: float, b: float) -> Optional[float]:
    return a / b if b > 0 else None


def _ratio(other: Optional[Row], row: Row) -> Optional[float]:
    if other is None:
        return None
    queued = [one["queued_ms"]["p50"] if one["queued_ms"] else None for one in (other, row)]
    ratio = _over(*compared_ms(queued, [other["total_ms"], row["total_ms"]]))
    return None if ratio is None else round(ratio, 4)


def _add_quality(rows: Sequence[Row], measurements: Sequence[Measurement], scene: Scene, camera: Camera) -> None:
    """PSNR of each picture: to the twin of the variant's own culling, or to baseline's picture where that costs too
    much. Peers, which cull in ways of their own, are compared with the twin of the original."""
    pictures = [measurement.contender.picture() for measurement in measurements]
    by_name = {row["name"]: picture for row, picture in zip(rows, pictures)}
    twins: Dict[str, np.ndarray] = {}
    for row, picture in zip(rows, pictures):
        row["psnr_db"] = row["psnr_to"] = row["max_step"] = None
        if twin_is_affordable(scene, camera):
            culling = row["choices"]["culling"] if row["choices"] else BASELINE.culling
            if culling not in twins:
                twins[culling] = twin_picture(scene, camera, culling)
            expected, row["psnr_to"] = twins[culling], "twin"
        elif BASELINE.name in by_name and row["name"] != BASELINE.name:
            expected, row["psnr_to"] = by_name[BASELINE.name], BASELINE.name
        else:
            continue
        psnr_db, row["max_step"] = compare(picture, expected)
        row["psnr_db"] = None if psnr_db is None else round(psnr_db, 2)


def milliseconds(value: float) -> str:
    """Three digits that matter, and a dash for a stage that was not run."""
    if value == 0:
        return "–"
    return f"{value:.3f}" if value < 10 else f"{value:.1f}"


def cells(row: Row) -> List[str]:
    """The row as texts, in the order of ``HEAD``."""
    stages = [milliseconds(row["stage_ms"][stage]["p50"]) if row["stage_ms"] else "" for stage in STAGES]
    return [
        row["name"],
        *stages,
        milliseconds(row["total_ms"]),
        milliseconds(row["queued_ms"]["p50"]) if row.get("queued_ms") else "",
        milliseconds(row["frame_ms"]["p50"]),
        milliseconds(row["frame_ms"]["p95"]),
        "" if row["fps"] is None else f"{row['fps']:.1f}",
        _times_faster(row["ratio_to_previous"]),
        _times_faster(row["ratio_to_baseline"]),
        _quality(row),
    ]


HEAD = ["", *STAGES, "total", "queued", "frame", "p95", "FPS", "×previous", "×baseline", "PSNR dB"]


def _times_faster(ratio: Optional[float]) -> str:
    return "" if ratio is None else f"{ratio:.2f}"


def _quality(row: Row) -> str:
    if row["psnr_to"] is None:
        return ""
    return "equal" if row["psnr_db"] is None else f"{row['psnr_db']:.1f}"


def by_size(rows: Sequence[Row]) -> List[List[Row]]:
    """Rows of one picture size together, in their order."""
    sizes: Dict[Any, List[Row]] = {}
    for row in rows:
        sizes.setdefault((row["width"], row["height"]), []).append(row)
    return list(sizes.values())


def caption(document: Dict[str, Any], rows: Sequence[Row]) -> str:
    """One line about the rows of one size: what was drawn, by what, how often."""
    scene, commit = document["scene"], document["commit"]
    references = {row["psnr_to"] for row in rows}
    parts = [
        "{}, {:,} splats, {}x{}".format(scene["path"], scene["n_splats"], rows[0]["width"], rows[0]["height"]),
        document["device"],
        "driver {}".format(document["driver"]) if document["driver"] else "",
        "commit " + re.sub(r"^(\w{12})\w*", r"\1", commit) if commit else "",
        "{} warm-up and {} measured frames each, p50 in ms".format(document["warmup"], document["repeats"]),
        "PSNR to the float64 twin of the same culling" if "twin" in references else "",
        "PSNR to baseline's picture" if BASELINE.name in references else "",
    ]
    return "; ".join(part for part in parts if part)


def text_table(document: Dict[str, Any]) -> str:
    """The rows of a document for a terminal, a table a size."""
    blocks = []
    for rows in by_size(document["rows"]):
        lines = [HEAD, *(cells(row) for row in rows)]
        widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
        # a column that no row has a word for is left out
        shown = [column for column in range(len(HEAD)) if any(line[column] for line in lines[1:])]
        table = [
            "  ".join(line[i].ljust(widths[i]) if i == 0 else line[i].rjust(widths[i]) for i in shown).rstrip()
            for line in lines
        ]
        blocks.append("\n".join([caption(document, rows), *table]))
    return "\n\n".join(blocks)


def markdown(document: Dict[str, Any]) -> str:
    """The rows of a document as Markdown tables, each with its caption below."""
    blocks = []
    for rows in by_size(document["rows"]):
        lines = [cells(row) for row in rows]
        shown = [column for column in range(len(HEAD)) if any(line[column] for line in lines)]
        rule = ["---" if column == 0 else "---:" for column in shown]
        head = [HEAD[column] or "ms" for column in shown]
        table = [head, rule, *([f"`{line[0]}`", *(line[i] for i in shown[1:])] for line in lines)]
        table_lines = ["| " + " | ".join(line) + " |" for line in table]
        blocks.append("\n".join([*table_lines, "", caption(document, rows) + "."]))
    return "\n\n".join(blocks)


def unique(chosen: Sequence[Any]) -> List[Any]:
    """Variants without those that choose what an earlier one did: the same work under two names is measured once."""
    seen: Dict[str, Any] = {}
    for one in chosen:
        seen.setdefault(combination(one), one)
    return list(seen.values())
