"""The charts of a campaign over time: temperatures, clocks and power, with what was throttled, invalid and idle."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from edgegs.bench.field_data import Campaign, Measured
from edgegs.bench.field_plan import Colours, Plan, titled
from edgegs.bench.report_plots import SERIES, Legend

#: Points of a curve, and boots of a campaign that get charts.
MAX_POINTS, MAX_BOOTS = 900, 4


class Course(NamedTuple):
    """A boot's readings in a row: times in s from the first, {kind: {name: values}}, spans of (begin, end)."""

    times: np.ndarray
    columns: Dict[str, Dict[str, np.ndarray]]
    throttled: List[Tuple[float, float]]
    invalid: List[Tuple[float, float]]
    idle: List[Tuple[float, float]]


def course_of(measured: Sequence[Measured]) -> Optional[Course]:
    with_series = [one for one in measured if one.series.get("t_s")]
    if not with_series:
        return None
    with_series.sort(key=lambda one: one.t_end_s)
    begins = [one.t_end_s - one.window_s for one in with_series]
    times = [np.asarray(one.series["t_s"], np.float64) + begin for one, begin in zip(with_series, begins)]
    zero = min(float(part.min()) for part in times)
    # an empty reading between two runs keeps the curves apart
    joined = np.concatenate([np.append(part, part[-1]) for part in times]) - zero
    columns: Dict[str, Dict[str, np.ndarray]] = {}
    for kind in ("temp_c", "clk_hz", "power_w", "fps"):
        names = dict.fromkeys(name for one in with_series for name in one.series.get(kind, {}))
        for name in list(names)[: len(SERIES)]:
            parts = []
            for one, part in zip(with_series, times):
                column = one.series.get(kind, {}).get(name) or [None] * len(part)
                parts.append(np.asarray([*column, None], np.float64))  # None becomes NaN
            columns.setdefault(kind, {})[name] = np.concatenate(parts)
    spans: Dict[str, List[Tuple[float, float]]] = {"throttled": [], "invalid": [], "idle": []}
    for one, part, begin in zip(with_series, times, begins):
        span = (begin - zero, one.t_end_s - zero)
        if one.kind == "idle":
            spans["idle"].append(span)
        elif not one.valid:
            spans["invalid"].append(span)
        spans["throttled"] += _throttled(part - zero, one.series.get("throttle") or [])
    return Course(joined, columns, spans["throttled"], spans["invalid"], spans["idle"])


def _throttled(times: np.ndarray, seen: Sequence[Optional[bool]]) -> List[Tuple[float, float]]:
    """Spans from the reading before one that saw throttling to that one."""
    spans: List[Tuple[float, float]] = []
    for index, one in enumerate(seen):
        if one:
            begin = float(times[max(0, index - 1)])
            if spans and spans[-1][1] >= begin:
                spans[-1] = (spans[-1][0], float(times[index]))
            else:
                spans.append((begin, float(times[index])))
    return spans


def thinned(times: np.ndarray, values: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    """Means of at most ``MAX_POINTS`` equal spans of time; a span without a reading is a gap."""
    if len(times) <= MAX_POINTS:
        return times, values
    width = float(times[-1]) / MAX_POINTS or 1.0
    known = np.isfinite(values)
    index = np.clip((times[known] / width).astype(int), 0, MAX_POINTS - 1)
    n = np.bincount(index, minlength=MAX_POINTS)
    sums = np.bincount(index, weights=values[known], minlength=MAX_POINTS)
    return (np.arange(MAX_POINTS) + 0.5) * width, sums / np.where(n > 0, n, np.nan)


def courses(campaign: Campaign, suffix: str, several: bool) -> List[Optional[Plan]]:
    boots = list(dict.fromkeys(one.boot_id for one in campaign.measured))[-MAX_BOOTS:]
    found: List[Optional[Plan]] = []
    for number, boot in enumerate(boots, 1):
        course = course_of([one for one in campaign.measured if one.boot_id == boot])
        if course is None:
            continue
        where = [campaign.board] * several + [f"boot {number} of {len(boots)}"] * (len(boots) > 1)
        end = suffix + (f"-boot{number}" if len(boots) > 1 else "")
        for kind, title, unit, scale in (
            ("temp_c", "Temperature", "°C", 1.0),
            ("clk_hz", "Clocks", "MHz", 1e-6),
            ("power_w", "Power", "W", 1.0),
        ):
            if kind in course.columns:
                name = titled(f"{title} over the campaign", ", ".join(where))
                found.append(_over_time(course, kind, name, unit, scale, kind.split("_")[0] + end))
    return found


def _over_time(course: Course, kind: str, title: str, unit: str, scale: float, slug: str) -> Plan:
    columns = course.columns[kind]
    legend = [Legend(name, colour, "") for name, colour in zip(columns, SERIES)]
    for spans, name, colour in (
        (course.throttled, "throttled", "--hot"),
        (course.invalid, "invalid run", "--s2"),
        (course.idle, "idle baseline", "--s8"),
    ):
        if spans:
            legend.append(Legend(name, colour, "area"))
    length = float(course.times[-1])
    unit_name, unit_s = ("s", 1.0) if length < 300 else ("min", 60.0) if length < 3 * 3600 else ("h", 3600.0)

    def draw(axes: Any, colours: Colours) -> None:
        for spans, colour, alpha in (
            (course.idle, "--s8", 0.16),
            (course.invalid, "--s2", 0.16),
            (course.throttled, "--hot", 0.45),
        ):
            for begin, end in spans:
                # the edge keeps seconds of throttling visible in a campaign of hours
                width = 1.2 if colour == "--hot" else 0.0
                hue = colours[colour]
                axes.axvspan(begin / unit_s, end / unit_s, color=hue, alpha=alpha, linewidth=width, zorder=0)
        for (_, values), colour in zip(columns.items(), SERIES):
            times, means = thinned(course.times, values)
            axes.plot(times / unit_s, means * scale, color=colours[colour], linewidth=1.2)
        axes.set_xlim(0, max(length / unit_s, 1e-3))
        if kind != "temp_c":
            axes.set_ylim(bottom=0)

    return Plan(slug, title, "", legend, f"time, {unit_name}", unit, draw)
