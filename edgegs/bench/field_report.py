"""Field reports: the table, JSON, CSV, PNG files and the page made of one or many sweeps' results."""

from __future__ import annotations

import csv
import io
import math
import os
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from edgegs.bench import field_labels as labels
from edgegs.bench.field_data import PARAMS, Campaign, load
from edgegs.bench.field_stats import (
    COMPARED,
    FIGURES,
    Comparison,
    Group,
    Interval,
    compare,
    groups,
    named,
    pairs,
    percent,
)
from edgegs.bench.report_series import mapping, number
from edgegs.errors import AccessError, OutputError, UsageError
from edgegs.files import check_output, replacing, write_at_once
from edgegs.findings import one_line
from edgegs.frame import STAGES

NO_CHARTS = "no charts: matplotlib is not installed; get it with: pip install 'edgegs[report]'"
METHOD = (
    "± and intervals are 95 % Student t intervals over the valid repeats (a repeat is one figure); comparisons are "
    "Welch's on the logarithms. One comparison in twenty shows a difference where there is none. Net figures of many "
    "runs rest on one idle baseline, whose own uncertainty is in no interval."
)
COMPARISONS = "Comparisons: what the first named does against the second (--compare A B: B against A)."
#: Facts of a session that say exactly what was measured, in the order shown.
FACTS = (
    ("board", "board"),
    ("compatible", "compatible"),
    ("l4t", "Jetson Linux"),
    ("kernel", "kernel"),
    ("machine", "machine"),
    ("device", "device"),
    ("driver", "driver"),
    ("backend", "backend"),
    ("power_mode", "power mode at the start"),
    ("pinned", "clocks pinned"),
    ("clk_limits_hz", "clock limits, MHz"),
    ("rail", "power rail"),
    ("rail_note", "what the rail leaves out"),
    ("interval_s", "sensors read every, s"),
    ("image", "kernel image"),
    ("image_sha256", "kernel image sha256"),
    ("source_hash", "kernel source"),
    ("compiler", "compiler"),
    ("compiler_flags", "compiler flags"),
    ("version", "edgegs"),
    ("commit", "commit"),
    ("python", "Python"),
    ("numpy", "NumPy"),
)


class Field(NamedTuple):
    """What a report is made of."""

    campaigns: List[Campaign]
    groups: List[Group]
    comparisons: List[Comparison]


def read(paths: Sequence[str], compared: Optional[Sequence[str]] = None) -> Field:
    """Read the results, and compare.

    Args:
        compared: two configurations, each as ``named`` takes it; None: see ``pairs``.

    Raises:
        InputError, AccessError, SceneError: of a file. UsageError: no such configuration.
    """
    campaigns = load(list(paths))
    found = groups(campaigns)
    chosen = pairs(found)
    if compared:
        first, second = (named(found, name) for name in compared)
        if first is second:
            raise UsageError(f"--compare: {compared[0]} and {compared[1]} are the same configuration")
        chosen = [(first, second)]
    return Field(campaigns, found, [compare(a, b, figure) for a, b in chosen for figure, _, _ in COMPARED])


# ---- words and figures -----------------------------------------------------------------------------------------


def plus_minus(found: Optional[Interval], digits: int, missing: str = "–") -> str:
    """A mean with half its interval's width."""
    if found is None:
        return missing
    text = f"{found.mean:.{digits}f}"
    return text if found.high is None else f"{text} ±{found.high - found.mean:.{digits}f}"


def joule_digits(group: Group) -> int:
    """Decimals that tell a configuration's joules a frame from others'."""
    joules = group.of("j_per_frame")
    return 2 if joules is None or joules.mean >= 1 else 4 if joules.mean >= 0.01 else 6


def ratio(comparison: Comparison) -> str:
    """The change with its interval."""
    found = comparison.ratio
    if found is None:
        return "–"
    if found.low is None or found.high is None:
        return percent(found.mean)
    return f"{percent(found.mean)} ({percent(found.low)} to {percent(found.high)})"


def names(field: Field, a: Group, b: Group) -> Tuple[str, str]:
    """Two configurations by what differs between them, and what they have in common and others have not."""
    differ = labels.varying([a, b])
    with_splats = a["splats"] != b["splats"]
    common = [labels.common([a, b], labels.varying(field.groups))]
    common += [] if with_splats else [labels.splats(a["splats"]) + " splats"]
    told = [labels.name_of(one, differ, with_splats) for one in (a, b)]
    return f"{told[1]} against {told[0]}", " · ".join(part for part in common if part)


def invalid(campaign: Campaign) -> List[Tuple[str, str]]:
    """(run or baseline, reasons) of what does not count."""
    found = []
    for one in campaign.measured:
        if not one.valid and one.latest:
            reasons = "; ".join(reason.text or reason.code for reason in one.reasons)
            found.append((one.run_id, reasons or "marked invalid without a reason"))
    return found


def power_missing(field: Field) -> str:
    """Why there are no watts at all; "" where there are some."""
    if any(group.values("mean_w") for group in field.groups):
        return ""
    told = [run.power_missing for campaign in field.campaigns for run in campaign.runs if run.power_missing]
    return told[0] if told else "no valid run has a power figure"


def state(campaign: Campaign) -> str:
    """How far the campaign has come."""
    runs = campaign.runs
    text = f"{sum(run.valid for run in runs)} valid and {sum(not run.valid for run in runs)} invalid runs"
    if campaign.n_runs:
        text += f" of {campaign.n_runs}"
    if campaign.ended == "complete":
        return text
    ends = {"": "not finished", "error": "ended by an error"}
    return f"{text}; {ends.get(campaign.ended, f'stopped by {campaign.ended}')}"


def loosened(campaign: Campaign) -> str:
    """The rules that were less strict than edgegs's own, in words; "" when none was."""
    from edgegs.bench.campaign import Rules

    given, found = mapping(campaign.settings.get("rules")), []
    for name, known in Rules.model_fields.items():
        value = number(given.get(name))
        if value is not None and (value < known.default if name.startswith("min_") else value > known.default):
            found.append(f"{name} {value:g} instead of {known.default:g}")
    return "validity rules were loosened: " + ", ".join(found) if found else ""


def problems(field: Field) -> List[str]:
    """What of the files could not be used, for warnings."""
    found = []
    for campaign in field.campaigns:
        if campaign.torn or campaign.garbage:
            found.append(f"{campaign.path}: {campaign.torn} torn and {campaign.garbage} unusable lines left out")
            found += ["  " + problem for problem in campaign.problems]
    return [one_line(text) for text in found]


def table(field: Field) -> str:
    """The figures as plain text."""
    lines: List[str] = []
    for campaign in field.campaigns:
        lines.append(f"{campaign.board}: {campaign.name or os.path.basename(campaign.path)}: {state(campaign)}")
        if loosened(campaign):
            lines.append("  " + loosened(campaign))
    differ = labels.varying(field.groups)
    lines += ["  " + labels.common(field.groups), ""]
    head = ("configuration", "valid", "FPS", "W", "J/frame", "net J/frame", "p95 ms", "°C")
    rows = [head]
    for group in field.groups:
        digits = joule_digits(group)
        hottest, p95 = group.of("hottest_c"), group.of("frame_p95_ms")
        rows.append(
            (
                labels.name_of(group, differ),
                f"{len(group.runs)}/{len(group.runs) + len(group.invalid)}",
                plus_minus(group.of("fps"), 2),
                plus_minus(group.of("mean_w"), 2),
                plus_minus(group.of("j_per_frame"), digits),
                plus_minus(group.of("net_j_per_frame"), digits),
                "–" if p95 is None else f"{p95.mean:.1f}",
                "–" if hottest is None else f"{hottest.mean:.1f}",
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))]
        lines.append("  " + "  ".join(cells).rstrip())
    if power_missing(field):
        lines.append("  power: " + power_missing(field))
    if any(comparison.ratio is not None for comparison in field.comparisons):
        lines += ["", "  " + COMPARISONS]
    for comparison in field.comparisons:
        if comparison.ratio is not None:
            told = ", ".join(part for part in names(field, comparison.a, comparison.b) if part)
            lines.append(f"  {told}: {comparison.figure} {ratio(comparison)}: {comparison.verdict}")
    for campaign in field.campaigns:
        lines += [f"  INVALID {run}: {reasons}" for run, reasons in invalid(campaign)]
    lines += ["", "  " + METHOD]
    return "\n".join("".join(letter if letter.isprintable() else "?" for letter in line) for line in lines)


def summary(field: Field) -> Dict[str, Any]:
    """The same as plain values."""
    return {
        "campaigns": [
            {
                "path": one.path,
                "board": one.board,
                "name": one.name,
                "state": state(one),
                "loosened": loosened(one),
                "sessions": {str(number): facts(record) for number, record in one.sessions.items()},
                "settings": one.settings,
                "invalid": [{"run_id": run, "reasons": reasons} for run, reasons in invalid(one)],
                "torn": one.torn,
                "garbage": one.garbage,
            }
            for one in field.campaigns
        ],
        "configurations": [row(group) for group in field.groups],
        "comparisons": [
            {
                "a": one.a.name,
                "b": one.b.name,
                "a_board": one.a.campaign.board,
                "b_board": one.b.campaign.board,
                "figure": one.figure,
                "ratio": None if one.ratio is None else one.ratio._asdict(),
                "decided": one.decided,
                "verdict": one.verdict,
            }
            for one in field.comparisons
        ],
        "method": METHOD,
    }


def facts(session: Dict[str, Any]) -> Dict[str, str]:
    """What a session's line says was measured, for display; unknown ones are absent."""
    known: Dict[str, str] = {}
    for key, name in FACTS:
        value = session.get(key)
        if isinstance(value, dict):
            value = ", ".join(f"{domain} {_megahertz(limits)}" for domain, limits in list(value.items())[:32])
        elif isinstance(value, list):
            value = (" " if key == "compiler_flags" else ", ").join(map(str, value[:32]))
        if value not in (None, ""):
            known[name] = str(value)[:400]
    return known


def _megahertz(limits: Any) -> str:
    """The lowest and the highest clock, once where they are the same."""
    ends = [number(one) for one in limits[:2]] if isinstance(limits, list) else []
    return " to ".join(dict.fromkeys("?" if one is None else f"{one / 1e6:.0f}" for one in ends))


def row(group: Group) -> Dict[str, Any]:
    """A configuration as one flat row: what it is, how often it was measured, means with their intervals, shares."""
    session = group.campaign.session_of(next(iter(group.runs + group.invalid)))
    campaign = group.campaign
    cells: Dict[str, Any] = {"board": campaign.board, "campaign": campaign.name, "configuration": group.name}
    cells.update(zip(PARAMS, group.key))
    cells.update({key: session.get(key) for key in ("backend", "device", "driver", "l4t", "version", "image_sha256")})
    cells.update(n_valid=len(group.runs), n_invalid=len(group.invalid))
    codes = {reason.code for run in group.invalid for reason in run.reasons}
    cells["invalid_reasons"] = " ".join(sorted(codes))
    for figure in FIGURES:
        found = group.of(figure) or Interval(math.nan, None, None, 0)
        cells[figure] = None if math.isnan(found.mean) else round(found.mean, 6)
        for end in ("low", "high"):
            value = getattr(found, end)
            cells[f"{figure}_{end}"] = None if value is None else round(value, 6)
    share = group.stage_share
    cells.update({f"share_{stage}": round(share[stage], 5) if stage in share else None for stage in STAGES})
    return cells


# ---- files -----------------------------------------------------------------------------------------------------


def write_csv(path: str, field: Field) -> None:
    """One line a configuration. Raises OutputError, AccessError."""
    text = io.StringIO()
    rows = [row(group) for group in field.groups]
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_at_once(path, text.getvalue().encode("utf-8"))


def write_png(folder: str, field: Field) -> List[str]:
    """Every chart as a file in ``folder``, which is made if need be.

    Raises:
        OutputError: no matplotlib, or it cannot be written. AccessError.
    """
    from edgegs.bench import field_plan, field_plots, report_plots

    if not report_plots.available():
        raise OutputError(f"{folder}: {NO_CHARTS}")
    try:
        os.makedirs(folder, exist_ok=True)
    except PermissionError:
        raise AccessError(f"{folder}: permission denied; name a folder you may make") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise OutputError(f"{folder}: the folder cannot be made: {reason}") from None
    written = []
    for plan in field_plots.plans(field.campaigns, field.groups):
        written.append(os.path.join(folder, plan.slug + ".png"))
        write_at_once(written[-1], field_plan.png(plan))
    return written


def write_page(path: str, field: Field) -> Optional[str]:
    """The page, whole or not at all; returns what is missing in it, else None. Raises OutputError, AccessError."""
    from edgegs.bench.field_html import page

    check_output(path)  # before the work, not after
    text, missing = page(field)
    with replacing(path) as file:
        file.write(text.encode("utf-8"))
    return missing
