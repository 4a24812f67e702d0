"""The charts of a field report: FPS against watts, joules a frame, stage shares, and the course of a campaign.

Nothing from a file is drawn as text but numbers: curves are named in the legends.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from edgegs.bench import field_labels as labels
from edgegs.bench.field_course import courses
from edgegs.bench.field_data import Campaign
from edgegs.bench.field_plan import Colours, Plan, titled
from edgegs.bench.field_stats import Group, Interval
from edgegs.bench.report_plots import SERIES, Legend

#: Charts of stage shares.
MAX_SHARES = 24
#: With more points than this only the ends of a curve carry their number of splats.
_MAX_LABELS = 16
_MARKERS = "osD^vPX*"


def plans(campaigns: Sequence[Campaign], groups: Sequence[Group]) -> List[Plan]:
    """All charts there are figures for."""
    found: List[Optional[Plan]] = []
    charts, differ = labels.facets(groups), labels.varying(groups)
    for number, chart in enumerate(charts, 1):
        where = labels.common(chart, differ) if len(charts) > 1 else ""
        suffix = f"-{number}" if len(charts) > 1 else ""
        found += [_efficiency(chart, where, suffix), _energy(chart, where, suffix), _rate(chart, where, suffix)]
    with_stages = [one for one in labels.series(groups).values() if any(group.stage_share for group in one)]
    for number, members in enumerate(with_stages[:MAX_SHARES], 1):
        found.append(_shares(members, labels.name_of(members[0], differ, False), f"-{number}"))
    for number, campaign in enumerate(campaigns, 1):
        found += courses(campaign, f"-{number}" if len(campaigns) > 1 else "", len(campaigns) > 1)
    return [plan for plan in found if plan is not None]


# ---- over configurations ---------------------------------------------------------------------------------------


def _curves(chart: Sequence[Group], figure: str) -> List[Tuple[str, str, str, List[Group]]]:
    """(name, colour, marker, configurations by splats) of each curve that has this figure."""
    differ = labels.varying(chart)
    found: List[Tuple[str, str, str, List[Group]]] = []
    for members in labels.series(chart).values():
        known = [one for one in members if one.values(figure)]
        if known:
            at = len(found) % len(SERIES)
            found.append((labels.name_of(known[0], differ, False), SERIES[at], _MARKERS[at], known))
    return found


def _bars(one: Interval) -> Tuple[float, float]:
    """How far the interval reaches below and above; 0 without one."""
    if one.low is None or one.high is None:
        return 0.0, 0.0
    return one.mean - one.low, one.high - one.mean


def _efficiency(chart: Sequence[Group], where: str, suffix: str) -> Optional[Plan]:
    curves = _curves(chart, "mean_w")
    if not curves:
        return None
    legend = [Legend(name, colour, "") for name, colour, _, _ in curves]
    invalid = [run for group in chart for run in group.invalid if run.energy]
    if invalid:
        legend.append(Legend("× invalid run: shown, in no mean", "--hot", "dash"))
    n_points = sum(len(members) for _, _, _, members in curves)

    def draw(axes: Any, colours: Colours) -> None:
        for _, colour, marker, members in curves:
            watts = [one.of("mean_w") for one in members]
            rates = [one.of("fps") for one in members]
            both = [(x, y, one) for x, y, one in zip(watts, rates, members) if x is not None and y is not None]
            xs, ys = [x.mean for x, _, _ in both], [y.mean for _, y, _ in both]
            x_bars = np.asarray([_bars(x) for x, _, _ in both]).T
            y_bars = np.asarray([_bars(y) for _, y, _ in both]).T
            hue = colours[colour]
            axes.errorbar(
                xs, ys, yerr=y_bars, xerr=x_bars, color=hue, marker=marker, markersize=4.5, linewidth=1.3, capsize=2.5
            )
            for index, (x, y, one) in enumerate(both):
                if n_points <= _MAX_LABELS or index in (0, len(both) - 1):
                    axes.annotate(
                        labels.splats(one["splats"]),
                        (x.mean, y.mean),
                        xytext=(5, 5),
                        textcoords="offset points",
                        fontsize=8,
                        color=colours["--mark"],
                    )
        for run in invalid:
            assert run.energy is not None
            axes.plot(run.energy.mean_w, run.fps, "x", color=colours["--hot"], markersize=7, markeredgewidth=1.6)
        _rates_axis(axes, [one for _, _, _, members in curves for one in members], "fps")

    note = (
        "A point is the mean over the valid repeats of a configuration, with its 95 % t interval in both directions; "
        "numbers are splats. Further up is faster, further left takes less."
    )
    title = titled("Frames a second against watts", where)
    return Plan("fps-watts" + suffix, title, note, legend, "mean power, W", "FPS", draw)


def _energy(chart: Sequence[Group], where: str, suffix: str) -> Optional[Plan]:
    curves = _curves(chart, "j_per_frame")
    if not curves:
        return None
    legend = [Legend(name, colour, "") for name, colour, _, _ in curves]
    net = any(one.values("net_j_per_frame") for _, _, _, members in curves for one in members)
    if net:
        legend.append(Legend("net of idle", "--fg", "dash"))

    def draw(axes: Any, colours: Colours) -> None:
        for _, colour, marker, members in curves:
            _over_splats(axes, members, "j_per_frame", colours[colour], marker)
            _over_splats(axes, members, "net_j_per_frame", colours[colour], "", dashed=True)
        _rates_axis(axes, [one for _, _, _, members in curves for one in members], "j_per_frame")

    note = "Means over the valid repeats with 95 % t intervals, the rail's joules over the frames of the same window."
    title = titled("Energy a frame", where)
    return Plan("joules" + suffix, title, note, legend, "splats", "J a frame", draw)


def _rate(chart: Sequence[Group], where: str, suffix: str) -> Optional[Plan]:
    curves = _curves(chart, "fps")
    if not curves:
        return None

    def draw(axes: Any, colours: Colours) -> None:
        for _, colour, marker, members in curves:
            _over_splats(axes, members, "fps", colours[colour], marker)
        _rates_axis(axes, [one for _, _, _, members in curves for one in members], "fps")

    legend = [Legend(name, colour, "") for name, colour, _, _ in curves]
    note = "Means over the valid repeats with 95 % t intervals."
    return Plan("fps" + suffix, titled("Frames a second", where), note, legend, "splats", "FPS", draw)


def _rates_axis(axes: Any, members: Sequence[Group], figure: str) -> None:
    """From 0, or logarithmic where the small ones would lie on the floor."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    means = [found.mean for found in (one.of(figure) for one in members) if found is not None and found.mean > 0]
    if len(means) < 2 or max(means) < 15 * min(means):
        axes.set_ylim(bottom=0)
        return
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())


def _over_splats(axes: Any, members: List[Group], figure: str, hue: str, marker: str, dashed: bool = False) -> None:
    known = [(one["splats"], one.of(figure)) for one in members]
    points = [(n, found) for n, found in known if isinstance(n, (int, float)) and n > 0 and found is not None]
    if not points:
        return
    style: Dict[str, Any] = {"linewidth": 1.4, "capsize": 2.5}
    if dashed:
        style = {"linewidth": 1.1, "linestyle": (0, (3, 2))}
    bars = None if dashed else np.asarray([_bars(found) for _, found in points]).T
    axes.errorbar(
        [n for n, _ in points],
        [found.mean for _, found in points],
        yerr=bars,
        color=hue,
        marker=marker or None,
        markersize=4.5,
        **style,
    )
    _splat_axis(axes, [n for n, _ in points])


def _splat_axis(axes: Any, values: List[float]) -> None:
    """A logarithmic axis whose ticks are the counts that were measured, as far as they have room."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axes.set_xscale("log")
    seen = sorted(set(values) | set(getattr(axes, "_edgegs_splats", ())))
    axes._edgegs_splats = seen
    ticks: List[float] = []
    least = (seen[-1] / seen[0]) ** (1 / 8) if len(seen) > 1 else 1.0
    for n in seen:
        if not ticks or n / ticks[-1] >= max(least, 1.01):
            ticks.append(n)
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: labels.splats(round(value))))
    axes.set_xlim(seen[0] / 1.15, seen[-1] * 1.15)


def _shares(members: List[Group], name: str, suffix: str) -> Optional[Plan]:
    """Stacked bars, one a splat count: the figure by which 3DGS on a Nano is usually explained."""
    shares = [(labels.splats(one["splats"]), one.stage_share) for one in members if one.stage_share]
    stages = list(dict.fromkeys(stage for _, share in shares for stage in share))[: len(SERIES)]
    legend = [Legend(stage, colour, "area") for stage, colour in zip(stages, SERIES)]

    def draw(axes: Any, colours: Colours) -> None:
        base = np.zeros(len(shares))
        for stage, colour in zip(stages, SERIES):
            heights = np.asarray([100 * share.get(stage, 0.0) for _, share in shares])
            axes.bar(range(len(shares)), heights, 0.72, bottom=base, color=colours[colour], linewidth=0)
            for index, (low, height) in enumerate(zip(base, heights)):
                if height >= 9 and len(shares) <= 8:
                    axes.text(index, low + height / 2, f"{height:.0f}", ha="center", va="center", fontsize=8,
                              color=colours["--sheet"])  # fmt: skip
            base = base + heights
        axes.set_xticks(range(len(shares)))
        axes.set_xticklabels([label for label, _ in shares])
        axes.set_ylim(0, 100)
        axes.set_xlim(-0.6, len(shares) - 0.4)

    title = titled("Stage shares", name if name != "all" else "")
    return Plan("stages" + suffix, title, "", legend, "splats", "% of the stages", draw, small=True)
