"""The report as one HTML file that needs nothing else: no script, no address, charts drawn into it.

Everything that came from a log passes through ``escape``.
"""

from __future__ import annotations

from html import escape
from typing import Any, Dict, Iterable, List, Optional, Tuple

from edgegs import __version__
from edgegs.bench import report_plots as plots
from edgegs.bench.report import (
    Log,
    ended,
    facts,
    finite,
    power_absent,
    problems_text,
    share,
    total_note,
)
from edgegs.bench.report_data import MAX_EVENTS, Run
from edgegs.bench.report_style import STYLE
from edgegs.telemetry.power import rail_note
from edgegs.words import duration

MISSING_CHARTS = "no charts: matplotlib is not installed; get it with: pip install 'edgegs[report]'"

#: Tables longer than this are folded.
_FOLD = 12


def page(logs: List[Log]) -> Tuple[str, Optional[str]]:
    """The whole page, and what is missing in it (None when nothing is)."""
    with_charts = plots.available()
    runs = [(log, run) for log in logs for run in log.runs]
    title = "edgegs run report" if len(runs) == 1 else f"edgegs report of {len(runs)} runs"
    parts = [
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>{title}</title>",
        f"<style>{STYLE}</style>\n</head>\n<body>\n<main>",
    ]
    if len(runs) > 1:
        parts.append(f"<h1>{title}</h1>")
        parts.append(_compare([run for _, run in runs]))
    for index, (log, run) in enumerate(runs):
        parts.append(_run(log, run, index, with_charts, alone=len(runs) == 1))
    parts.append(f"<footer>Made by edgegs {escape(__version__)} from {_sources(logs)}</footer>")
    parts.append("</main>\n</body>\n</html>\n")
    return "\n".join(parts), None if with_charts else MISSING_CHARTS


def _sources(logs: List[Log]) -> str:
    return ", ".join(f"<code>{escape(log.path)}</code>" for log in logs)


def _run(log: Log, run: Run, index: int, with_charts: bool, alone: bool) -> str:
    known = facts(run)
    level = "h1" if alone else "h2"
    subtitle = [known[name] for name in ("board", "backend", "variant") if name in known]
    return "\n".join(
        [
            f'<section class="run" id="run{index + 1}">',
            f"<header><p class=kicker>Run {escape(run.run_id)}</p>",
            "<{0}>{1}</{0}>".format(level, escape(known.get("scene", "Telemetry of a run"))),
            "<p class=sub>{}</p></header>".format(" · ".join(escape(one) for one in subtitle)),
            _cards(run),
            _notes(log, run),
            _charts(run, index) if with_charts else box("warn", [escape(MISSING_CHARTS)]),
            _stage_table(run),
            '<div class="columns">',
            _power_table(run),
            _temperature_table(run),
            _output_table(run),
            _clock_table(run),
            "</div>",
            _event_table(run),
            _facts_table(run, known),
            "</section>",
        ]
    )


def _cards(run: Run) -> str:
    cards = [("Frames a second", finite(run.fps, "{:.1f}") if run.seconds else "–", _count(run.frames, "frame"))]
    if run.frame.frames:
        cards.append(("Frame time, p50", f"{run.frame.percentile(0.5):.1f} ms", _p95(run)))
    total = run.total()
    if total is not None:
        per_frame = total.joules_per_frame
        below = f"{run.total_rail} · {total.method}"
        cards.append(("Mean power", finite(total.mean_w, "{:.2f} W"), below))
        if per_frame is not None:
            cards.append(("Energy a frame", f"{per_frame:.3f} J", f"{total.joules:.1f} J in all"))
    if run.temps:
        hottest = max(run.temps, key=lambda name: run.temps[name].high)
        cards.append(("Hottest", f"{run.temps[hottest].high:.1f} °C", hottest))
    throttled = "unknown" if not run.throttle_known else duration(run.throttled_s) if run.throttled_s else "never"
    cards.append(("Throttled", throttled, ", ".join(run.throttled) or f"of {duration(run.seconds)}"))
    rungs = run.rungs()
    if run.governed is not None and rungs.weight:
        told = "{down} steps down, {up} up".format(**run.governed.steps)
        cards.append(("Governor, mean step", f"{rungs.mean:.1f} of {run.governed.of}", told))
    body = "".join(
        "<div class=card><b>{}</b><strong>{}</strong><span>{}</span></div>".format(*map(escape, card)) for card in cards
    )
    return f'<div class="cards">{body}</div>'


def _p95(run: Run) -> str:
    return f"p95 {run.frame.percentile(0.95):.1f} ms, longest {run.frame.max:.1f} ms"


def _notes(log: Log, run: Run) -> str:
    boxes = []
    doubts = run.power_doubts()
    if doubts:
        head = "<strong>The power figures are not valid for comparison:</strong>"
        boxes.append(box("bad", [head + " " + escape("; ".join(doubts)) + "."]))
    notes = []
    if run.lost:
        notes.append(f"Records missing in the log (numbers skipped): {run.lost}.")
    if run.gaps and not doubts:
        notes.append(f"Gaps of more than three windows: {run.gaps}.")
    if run.synced is False:
        notes.append("The board's clock was not synchronised: the times of day may be wrong, durations are not.")
    if run.governed is not None and run.governed.unheld:
        notes.append("The governor could not hold at some time: {}.".format(", ".join(run.governed.unheld)))
    if run.governed is not None and run.governed.unmeasured:
        notes.append("The governor had no reading of: {}.".format(", ".join(run.governed.unmeasured)))
    if not run.windows:
        notes.append("The log has no window yet: nothing was measured.")
    notes += problems_text(log)
    if notes:
        boxes.append(box("warn", [escape(note) for note in notes]))
    return "\n".join(boxes)


def box(kind: str, lines: Iterable[str]) -> str:
    """A coloured box ("bad" or "warn") of escaped paragraphs."""
    return '<div class="box {}">{}</div>'.format(kind, "".join(f"<p>{line}</p>" for line in lines))


def _charts(run: Run, index: int) -> str:
    parts = []
    for chart in plots.charts(run, f"r{index}c"):
        legend = "".join(
            '<li><i class="{}" style="--c:var({})"></i>{}</li>'.format(
                entry.style or "line", entry.colour, escape(entry.name)
            )
            for entry in chart.legend
        )
        svgs = "".join(f'<div class="{name}">{svg}</div>' for (name, _, _), svg in zip(plots.SIZES, chart.svgs))
        caption = f"<span>{escape(chart.title)}, {escape(chart.unit)}</span><ul class=legend>{legend}</ul>"
        parts.append(f"<figure><figcaption>{caption}</figcaption>{svgs}</figure>")
    key = []
    if run.throttled_s > 0:
        key.append("<span class=hot></span>throttled")
    if plots.marks(run):
        key.append("<span class=mark></span>event, by its number in the table below")
    if key and parts:
        parts.insert(0, "<p class=key>{}</p>".format(" &nbsp; ".join(key)))
    return "\n".join(parts)


def table_of(title: str, head: List[str], rows: List[List[str]], note: str = "", first: str = "") -> str:
    """A table from escaped cells; all columns but the first are numbers."""
    if not rows:
        return ""
    header = "".join(f"<th>{cell}</th>" for cell in head)
    body = "".join("<tr>{}</tr>".format("".join(f"<td>{cell}</td>" for cell in row)) for row in rows)
    return (
        '<div class=part><h3>{}</h3><div class=scroll><table class="{}"><thead><tr>{}</tr></thead>'
        "<tbody>{}</tbody></table></div>{}</div>"
    ).format(title, first or "figures", header, body, f"<p class=note>{note}</p>" if note else "")


def _stage_table(run: Run) -> str:
    if not run.frame.frames:
        return ""
    rows = []
    for name in run.stage_names():
        rows.append([escape(name), *_milliseconds(run.stages[name]), _bar(share(run, name))])
    if run.stages and run.frame.mean > 0:
        rest = run.other_ms()
        rows.append(["other", "", "", "", f"{rest:.2f}", _bar(rest / run.frame.mean)])
    rows.append(["<b>frame</b>", *_milliseconds(run.frame), _bar(1.0)])
    note = (
        f"Milliseconds over all {run.frame.frames:,} frames. p50 and p95 are put together from the windows' "
        "percentiles; mean and max are exact. “other” is the frame's time outside its stages."
    )
    return table_of("Stages", ["Stage", "p50", "p95", "max", "mean", "share"], rows, note)


def _milliseconds(distribution: Any) -> List[str]:
    values = (
        distribution.percentile(0.5),
        distribution.percentile(0.95),
        distribution.max,
        distribution.mean,
    )
    return [f"{value:.2f}" for value in values]


def _bar(part: float) -> str:
    percent = max(0.0, min(100.0, 100 * part))
    return f'<span class=bar style="--p:{percent:.1f}%"></span><span class=pc>{100 * part:.1f} %</span>'


def _power_table(run: Run) -> str:
    if not run.rails:
        return f"<div class=part><h3>Power</h3><p class=absent>{escape(power_absent(run))}</p></div>"
    rows = []
    for name in sorted(run.rails, key=lambda rail: rail != run.total_rail):
        rail = run.rails[name]
        per_frame = rail.joules_per_frame
        rows.append(
            [
                escape(name) + (" <small>total</small>" if name == run.total_rail else ""),
                finite(rail.mean_w, "{:.2f}"),
                f"{rail.watts.low:.2f}–{rail.watts.high:.2f}",
                f"{rail.joules:.1f}",
                f"{per_frame:.4f}" if per_frame is not None else "–",
            ]
        )
    methods = ", ".join(sorted({rail.method for rail in run.rails.values()}))
    note = f"Measured by {methods}; energy is integrated over the windows; {total_note(run)}."
    return table_of("Power", ["Rail", "mean W", "range W", "J", "J/frame"], rows, escape(note), "third-is-extra")


def _temperature_table(run: Run) -> str:
    if not run.temps:
        return "<div class=part><h3>Temperature</h3><p class=absent>absent: no sensor was read</p></div>"
    rows = [[escape(name), f"{e.low:.1f}", f"{e.mean:.1f}", f"{e.high:.1f}"] for name, e in run.temps.items()]
    return table_of("Temperature, °C", ["Sensor", "min", "mean", "max"], rows)


def _output_table(run: Run) -> str:
    rows = [
        [escape(output), f"{n:,}", escape(reason)]
        for output, reasons in run.dropped.items()
        for reason, n in reasons.items()
    ]
    rows = rows or [["none", "0", ""]]
    counts = []
    for name in ("n_splats", "n_visible", "n_instances"):
        if name in run.counts:
            counts.append(f"{name} {run.counts[name].mean:,.0f}")
    note = _count(run.redraws, "redraw") + "." + (" Means: " + ", ".join(counts) + "." if counts else "")
    return table_of("Dropped frames", ["Output", "frames", "reason"], rows, escape(note))


def _clock_table(run: Run) -> str:
    rows = [
        [escape(name)] + [f"{value / 1e6:.0f}" for value in (e.low, e.mean, e.high)] for name, e in run.clocks.items()
    ]
    return table_of("Clocks, MHz", ["Domain", "min", "mean", "max"], rows)


def _event_table(run: Run) -> str:
    rows = [
        [str(number), escape(duration(event.t_s)), escape(event.kind), escape(event.detail)]
        for number, event in enumerate(run.events, 1)
    ]
    if not rows:
        return ""
    note = ""
    if run.n_events > MAX_EVENTS:
        note = f"The first {MAX_EVENTS} of {run.n_events:,} events."
    table = table_of("Events", ["#", "at", "what", "detail"], rows, note, first="words")
    if len(rows) > _FOLD:
        return f"<details><summary>{run.n_events:,} events</summary>{table}</details>"
    return table


def _facts_table(run: Run, known: Dict[str, str]) -> str:
    pairs = list(known.items())
    pairs += [("started", run.wall_first), ("recorded", duration(run.seconds)), ("ended", ended(run))]
    notes = {name: rail_note(name) for name in run.rails if rail_note(name)}
    pairs += [(f"{name} is", note) for name, note in notes.items()]
    if run.rss_first is not None and run.rss_last is not None:
        first, last, most = (value / 1e6 for value in (run.rss_first, run.rss_last, run.rss.high))
        pairs.append(("memory (RSS)", f"{first:.1f} MB at first, {last:.1f} MB at last, {most:.1f} MB at most"))
    pairs += [("run", run.run_id), ("boot", run.boot_id)]
    rows = [[escape(name), escape(str(value))] for name, value in pairs if value]
    return table_of("What was running", ["", ""], rows, first="words facts")


def _compare(runs: List[Run]) -> str:
    rows = []
    for index, run in enumerate(runs, 1):
        total = run.total()
        per_frame = total.joules_per_frame if total else None
        known = facts(run)
        rows.append(
            [
                f'<a href="#run{index}">{escape(run.run_id)}</a>',
                escape(" · ".join(known[name] for name in ("board", "scene", "variant") if name in known)),
                finite(run.fps, "{:.1f}"),
                f"{run.frame.percentile(0.95):.1f}" if run.frame.frames else "–",
                finite(total.mean_w, "{:.2f}") if total else "absent",
                f"{per_frame:.4f}" if per_frame is not None else "absent",
                "no" if run.power_doubts() else "yes" if run.rails else "–",
            ]
        )
    head = ["Run", "What", "FPS", "p95 ms", "mean W", "J/frame", "power valid"]
    return table_of("Side by side", head, rows, first="figures second-is-words")


def _count(n: int, noun: str) -> str:
    return "{:,} {}{}".format(n, noun, "" if n == 1 else "s")
