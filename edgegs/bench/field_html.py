"""The field report as one HTML file that needs nothing else: no script, no address, charts drawn into it.

Everything that came from a file passes through ``escape``.
"""

from __future__ import annotations

import json
from html import escape
from typing import List, Optional, Tuple

from edgegs import __version__
from edgegs.bench import field_labels as labels
from edgegs.bench import field_plots as plots
from edgegs.bench import report_plots
from edgegs.bench.field_data import PARAMS, Campaign, Measured
from edgegs.bench.field_plan import svgs
from edgegs.bench.field_report import (
    COMPARISONS,
    METHOD,
    NO_CHARTS,
    Field,
    facts,
    invalid,
    joule_digits,
    loosened,
    names,
    plus_minus,
    power_missing,
    problems,
    ratio,
    state,
)
from edgegs.bench.field_stats import Group
from edgegs.bench.report_html import box, table_of
from edgegs.bench.report_style import STYLE

_STYLE = """
.valid { color: var(--s3); } .invalid { color: var(--hot); }
pre { overflow-x: auto; font-size: 12.5px; margin: 0; }
.pair { display: grid; gap: 0 14px; grid-template-columns: repeat(2, minmax(0, 1fr)); }
figure .note { margin: 0 0 6px; }
td.undecided { color: var(--soft); }
.compare { min-width: 640px; } .compare td { white-space: normal; }
.dense { font-size: 13.5px; } .dense td, .dense th { padding-left: 10px; }
@media (max-width: 700px) { .pair { grid-template-columns: minmax(0, 1fr); } }
"""
#: Tables longer than this are folded; invalid runs that are listed.
_FOLD, _MAX_LISTED = 14, 400


def page(field: Field) -> Tuple[str, Optional[str]]:
    """The whole page, and what is missing in it (None when nothing is)."""
    with_charts = report_plots.available()
    boards = [one.board for one in field.campaigns]
    title = "Power against FPS"
    parts = [
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>{title}: {escape(', '.join(boards))}</title>",
        f"<style>{STYLE}{_STYLE}</style>\n</head>\n<body>\n<main>",
        "<header><p class=kicker>{}</p>".format(escape(" · ".join(one.name for one in field.campaigns if one.name))),
        f"<h1>{title}</h1><p class=sub>{escape(', '.join(boards))}</p>",
        f"<p class=sub>{escape(_common(field, boards))}</p></header>",
        _cards(field),
        _notes(field),
        _charts(field) if with_charts else box("warn", [escape(NO_CHARTS)]),
        _configurations(field),
        _comparisons(field),
        _invalid(field),
        *[_board(one) for one in field.campaigns],
    ]
    sources = ", ".join(f"<code>{escape(one.path)}</code>" for one in field.campaigns)
    parts.append(f"<footer>{escape(METHOD)}<br>Made by edgegs {escape(__version__)} from {sources}</footer>")
    parts.append("</main>\n</body>\n</html>\n")
    return "\n".join(part for part in parts if part), None if with_charts else NO_CHARTS


def _common(field: Field, boards: List[str]) -> str:
    return " · ".join(part for part in labels.common(field.groups).split(" · ") if part not in boards)


def _cards(field: Field) -> str:
    runs = [run for one in field.campaigns for run in one.runs]
    n_valid = sum(run.valid for run in runs)
    cards = [
        ("Valid runs", f"{n_valid} of {len(runs)}", f"{len(field.groups)} configurations"),
    ]
    differ = labels.varying(field.groups)

    def best(figure: str, lowest: bool) -> Optional[Tuple[Group, float]]:
        known = [(group, group.of(figure)) for group in field.groups]
        means = [(group, found.mean) for group, found in known if found is not None]
        return (min if lowest else max)(means, key=lambda pair: pair[1]) if means else None

    for title, figure, lowest, digits, unit in (
        ("Fastest", "fps", False, 1, " FPS"),
        ("Least energy a frame", "j_per_frame", True, 4, " J"),
        ("Most power", "mean_w", False, 2, " W"),
        ("Hottest", "hottest_c", False, 1, " °C"),
    ):
        found = best(figure, lowest)
        if found is not None:
            cards.append((title, f"{found[1]:.{digits}f}{unit}", labels.name_of(found[0], differ)))
    body = "".join(
        "<div class=card><b>{}</b><strong>{}</strong><span>{}</span></div>".format(*map(escape, card)) for card in cards
    )
    return f'<div class="cards">{body}</div>'


def _notes(field: Field) -> str:
    boxes = []
    n_invalid = sum(len(group.invalid) for group in field.groups)
    if n_invalid:
        which = "1 run is" if n_invalid == 1 else f"{n_invalid} runs are"
        text = f"{which} invalid and in no mean; each stands below with its reason"
        boxes.append(box("bad", [f"<strong>{text}.</strong>"]))
    for campaign in field.campaigns:
        if loosened(campaign):
            boxes.append(box("bad", [f"<strong>{escape(campaign.board)}: {escape(loosened(campaign))}.</strong>"]))
    notes = []
    if power_missing(field):
        notes.append("No watts: " + power_missing(field))
    for campaign in field.campaigns:
        if campaign.ended != "complete":
            notes.append(f"{campaign.board}: the campaign is not complete: {state(campaign)}.")
    few = [group for group in field.groups if 0 < len(group.runs) < 5]
    if few:
        notes.append(f"{len(few)} of {len(field.groups)} configurations have fewer than five valid repeats.")
    runs = [run for campaign in field.campaigns for run in campaign.runs]
    for code in sorted({one.code for run in runs for one in run.notes}):
        texts = [one.text for run in runs for one in run.notes if one.code == code]
        such = "" if len(set(texts)) == 1 else "such as: "
        notes.append(f"{len(texts)} of {len(runs)} runs: {such}{texts[0] or code}.")
    notes += problems(field)
    if notes:
        boxes.append(box("warn", [escape(note) for note in notes]))
    return "\n".join(boxes)


def _charts(field: Field) -> str:
    large: List[str] = []
    small: List[str] = []
    place = 0
    for number, plan in enumerate(plots.plans(field.campaigns, field.groups)):
        legend = "".join(
            f'<li><i class="{entry.style or "line"}" style="--c:var({entry.colour})"></i>{escape(entry.name)}</li>'
            for entry in plan.legend
        )
        pictures = "".join(f'<div class="{name}">{svg}</div>' for name, svg in svgs(plan, f"f{number}"))
        note = f"<p class=note>{escape(plan.note)}</p>" if plan.note else ""
        caption = f"<span>{escape(plan.title)}</span><ul class=legend>{legend}</ul>"
        figure = f'<figure id="{plan.slug}"><figcaption>{caption}</figcaption>{note}{pictures}</figure>'
        (small if plan.small else large).append(figure)
        if plan.small and len(small) == 1:
            place = len(large)
    if small:
        # where the first of the small ones stood: after what is over configurations, before what is over time
        large.insert(place, '<div class="pair">{}</div>'.format("\n".join(small)))
    return "\n".join(large)


def _configurations(field: Field) -> str:
    differ = labels.varying(field.groups)
    rows = []
    for group in field.groups:
        n = len(group.runs) + len(group.invalid)
        joules = group.of("j_per_frame")
        digits = joule_digits(group)
        p95, hottest = group.of("frame_p95_ms"), group.of("hottest_c")
        rows.append(
            [
                escape(labels.name_of(group, differ)),
                '<span class="{}">{} of {}</span>'.format("invalid" if group.invalid else "valid", len(group.runs), n),
                plus_minus(group.of("fps"), 2),
                "–" if p95 is None else f"{p95.mean:.1f}",
                plus_minus(group.of("mean_w"), 2),
                plus_minus(joules, digits),
                plus_minus(group.of("net_j_per_frame"), digits),
                "–" if hottest is None else f"{hottest.mean:.1f}",
            ]
        )
    head = ["Configuration", "valid", "FPS", "p95 ms", "W", "J/frame", "net of idle", "hottest °C"]
    return table_of("Every configuration", head, rows, "Means over the valid repeats, ± 95 % t interval.", "dense")


def _comparisons(field: Field) -> str:
    rows = []
    for one in field.comparisons:
        if one.ratio is None:
            continue
        what, common = names(field, one.a, one.b)
        figure = {"fps": "FPS", "mean_w": "watts", "j_per_frame": "J/frame"}[one.figure]
        verdict = f"<b>{escape(one.verdict)}</b>" if one.decided else escape(one.verdict)
        runs = f"{len(one.b.runs)}\u00a0/\u00a0{len(one.a.runs)}"
        change = escape(ratio(one)).replace(" %", "\u00a0%")
        rows.append([escape(what), escape(common), figure, change, runs, verdict])
    if not rows:
        return ""
    when = "A verdict stands only where the 95 % interval of the ratio leaves 1 out and both have three valid runs."
    note = f"{COMPARISONS} {when}"
    table = table_of(
        "Comparisons", ["What", "with", "figure", "change (95 %)", "runs", "verdict"], rows, note, "words compare"
    )
    return table if len(rows) <= _FOLD else f"<details open><summary>Comparisons</summary>{table}</details>"


def _invalid(field: Field) -> str:
    several = len(field.campaigns) > 1
    rows = [
        [escape(f"{one.board}: {run}" if several else run), escape(reasons)]
        for one in field.campaigns
        for run, reasons in invalid(one)
    ]
    if not rows:
        return ""
    note = "" if len(rows) <= _MAX_LISTED else f"The first {_MAX_LISTED} of {len(rows)}."
    return table_of("Invalid runs, in no mean", ["Run", "Why"], rows[:_MAX_LISTED], note, "words")


def _board(campaign: Campaign) -> str:
    """Exactly what was measured on one board."""
    parts = [f"<h2>{escape(campaign.board)}</h2><p class=sub>{escape(state(campaign))}</p>"]
    shown: List[List[Tuple[str, str]]] = []
    for number, session in campaign.sessions.items():
        pairs = list(facts(session).items())
        if pairs in shown:
            continue  # a campaign that was continued: the same machine, as the sweep makes sure
        shown.append(pairs)
        rows = [[escape(name), escape(value)] for name, value in pairs]
        title = "What was measured" + (f", from session {number} on" if len(shown) > 1 else "")
        parts.append(table_of(title, ["", ""], rows, first="words facts"))
    scenes = {tuple(sorted((key, str(value)) for key, value in run.scene.items())) for run in campaign.runs}
    rows = [[escape(dict(one).get(key, "–")) for key in ("path", "n_splats", "sh_degree", "format", "sha256")]
            for one in sorted(scenes)]  # fmt: skip
    parts.append(table_of("Scenes as drawn", ["Scene", "splats", "SH degree", "format", "sha256"], rows, first="words"))
    variants = {(str(run.key[PARAMS.index("variant")]), tuple(run.choices.items())) for run in campaign.runs}
    rows = [
        [escape(name), escape(", ".join(f"{axis} {choice}" for axis, choice in choices))]
        for name, choices in sorted(variants)
        if choices
    ]
    parts.append(table_of("Variants as drawn", ["Variant", "choices"], rows, first="words"))
    parts.append(_runs(campaign))
    settings = json.dumps(campaign.settings, indent=2, ensure_ascii=False, default=str)[:20_000]
    shown_settings = f"<div class=part><pre>{escape(settings)}</pre></div>"
    parts.append(f"<details><summary>The campaign's settings</summary>{shown_settings}</details>")
    return '<section class="run">{}</section>'.format("\n".join(parts))


def _runs(campaign: Campaign) -> str:
    measured = sorted(campaign.measured, key=lambda one: (one.boot_id, one.t_end_s))[:2000]
    rows = [_run(one) for one in measured]
    head = ["Run", "state", "FPS", "W", "J/frame", "GPU MHz", "°C", "ended"]
    table = table_of("Every run, in the order measured", head, rows)
    return f"<details><summary>Every run ({len(campaign.measured)})</summary>{table}</details>"


def _run(one: Measured) -> List[str]:
    codes = " ".join(reason.code for reason in one.reasons)
    told = "valid" if one.valid else f"invalid: {codes}" if codes else "invalid"
    if not one.latest:
        told += ", measured again"
    watts = one.energy.mean_w if one.energy else None
    gpu = one.clk_hz.get("gpu", {}).get("mean")
    return [
        escape(one.run_id if one.attempt == 1 else f"{one.run_id} (attempt {one.attempt})"),
        '<span class="{}">{}</span>'.format("valid" if one.valid else "invalid", escape(told)),
        "idle" if one.kind == "idle" else f"{one.fps:.2f}",
        "–" if watts is None else f"{watts:.3f}",
        "–" if one.energy is None else f"{one.energy.j_per_frame:.5f}",
        "–" if gpu is None else f"{gpu / 1e6:.0f}",
        "–" if one.hottest_c is None else f"{one.hottest_c:.1f}",
        escape(one.t_wall),
    ]
