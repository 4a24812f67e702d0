"""The report's charts: inline SVG by matplotlib, coloured by the page so that they follow light and dark.

Nothing from the log is drawn as text: curves are named in the page's legends, events by their numbers.
"""

from __future__ import annotations

import io
import re
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from edgegs.bench.report_data import Run
from edgegs.bench.report_series import TimeBins

#: Colours that the SVG carries and the page's style sheet replaces: series, text, grid, and marks.
SERIES = [f"--s{index}" for index in range(1, 9)]
PLACEHOLDER = {name: f"#0f0f{16 + index:02x}" for index, name in enumerate(SERIES)}
PLACEHOLDER.update({"--fg": "#0f0f01", "--grid": "#0f0f02", "--hot": "#0f0f03", "--mark": "#0f0f04"})

#: Curves in one chart; more would not be told apart.
MAX_SERIES = len(SERIES)

#: Events marked in a chart; all of them stand in the table.
MAX_MARKS = 40

#: (class in the page, width, height in inches): charts are drawn for a desktop and for a phone.
SIZES = (("wide", 10.4, 2.9), ("narrow", 4.3, 2.9))


class Legend(NamedTuple):
    """A curve's name, its colour variable, and its dash ("" = line, "area" = filled)."""

    name: str
    colour: str
    style: str


class Chart(NamedTuple):
    """A chart with its legend: ``svgs`` is one per entry of ``SIZES``."""

    title: str
    unit: str
    legend: List[Legend]
    svgs: List[str]


def available() -> bool:
    """Whether matplotlib can be imported."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


def charts(run: Run, prefix: str) -> List[Chart]:
    """All charts the run has data for. ``prefix`` keeps the SVGs' ids apart within a page."""
    found = [_stages(run), _fps(run), _curves(run, "temp", "Temperature", "°C", 1.0)]
    found += [_power(run), _curves(run, "clk", "Clocks", "MHz", 1e-6), _governor(run)]
    result = []
    for number, plan in enumerate(one for one in found if one is not None):
        sizes = [(name, width, height * plan.height) for name, width, height in SIZES]
        svgs = [_svg(run, plan, width, height, f"{prefix}{number}{name}") for name, width, height in sizes]
        result.append(Chart(plan.title, plan.unit, plan.legend, svgs))
    return result


class _Plan(NamedTuple):
    title: str
    unit: str
    legend: List[Legend]
    draw: Callable[[Any, float], None]  # (axes, seconds per unit of the time axis)
    height: float = 1.0  # against the other charts


def _grid(bins: TimeBins, kind: str, name: str, scale: float = 1.0) -> Tuple[List[float], List[float]]:
    """A curve on the run's whole grid, with NaN where a bin is empty, so that gaps stay gaps."""
    last = max(bins.bins, default=-1)
    times = [(index + 0.5) * bins.width_s for index in range(last + 1)]
    values = []
    for index in range(last + 1):
        extent = bins.bins.get(index, {}).get((kind, name))
        values.append(extent.mean * scale if extent is not None else float("nan"))
    return times, values


def _stages(run: Run) -> Optional[_Plan]:
    names = run.stage_names()[: MAX_SERIES - 1]
    if not names:
        return None
    legend = [Legend(name, colour, "area") for name, colour in zip(names, SERIES)]
    legend += [Legend("other", "--s8", "area"), Legend("frame, p95 of its window", "--fg", "dash")]

    def draw(axes: Any, unit_s: float) -> None:
        times, p95 = _grid(run.bins, "p95", "")
        layers = [_grid(run.bins, "stage", name)[1] for name in names] + [_grid(run.bins, "other", "")[1]]
        colours = [PLACEHOLDER[entry.colour] for entry in legend[:-1]]
        base = [0.0] * len(times)
        x = [t / unit_s for t in times]
        for layer, colour in zip(layers, colours):
            top = [low + (value if value == value else 0.0) for low, value in zip(base, layer)]
            drawn = [value == value for value in p95]
            axes.fill_between(x, base, top, where=drawn, color=colour, linewidth=0.3, step=_step(x))
            base = top
        axes.plot(x, p95, color=PLACEHOLDER["--fg"], linewidth=1.0, linestyle=(0, (3, 2)))
        axes.set_ylim(bottom=0)

    return _Plan("Where a frame's time goes", "ms", legend, draw)


def _step(x: List[float]) -> Optional[str]:
    """A single bin has no width unless it is drawn as a step."""
    return "mid" if len(x) < 3 else None


def _fps(run: Run) -> Optional[_Plan]:
    if not run.windows:
        return None

    def draw(axes: Any, unit_s: float) -> None:
        times, values = _grid(run.bins, "fps", "")
        x = [t / unit_s for t in times]
        spread = [run.bins.bins.get(index, {}).get(("fps", "")) for index in range(len(times))]
        low = [one.low if one else float("nan") for one in spread]
        high = [one.high if one else float("nan") for one in spread]
        colour = PLACEHOLDER["--s1"]
        axes.fill_between(x, low, high, color=colour, alpha=0.25, linewidth=0)
        axes.plot(x, values, color=colour, linewidth=1.4, marker="o" if len(x) < 3 else None)
        axes.set_ylim(bottom=0)

    return _Plan("Frames a second", "FPS", [Legend("mean; band: lowest to highest window", "--s1", "")], draw)


def _curves(run: Run, kind: str, title: str, unit: str, scale: float) -> Optional[_Plan]:
    names = run.bins.names(kind)[:MAX_SERIES]
    if not names:
        return None

    def draw(axes: Any, unit_s: float) -> None:
        for name, colour in zip(names, SERIES):
            times, values = _grid(run.bins, kind, name, scale)
            x = [t / unit_s for t in times]
            axes.plot(x, values, color=PLACEHOLDER[colour], linewidth=1.4, marker="o" if len(x) < 3 else None)
        if kind == "clk":
            axes.set_ylim(bottom=0)

    return _Plan(title, unit, [Legend(name, colour, "") for name, colour in zip(names, SERIES)], draw)


def _power(run: Run) -> Optional[_Plan]:
    names = run.bins.names("power")
    names = sorted(names, key=lambda name: name != run.total_rail)[:MAX_SERIES]
    if not names:
        return None

    def label(name: str) -> str:
        return name + " (total)" if name == run.total_rail else name

    def draw(axes: Any, unit_s: float) -> None:
        for name, colour in zip(names, SERIES):
            times, values = _grid(run.bins, "power", name)
            x = [t / unit_s for t in times]
            width = 2.0 if name == run.total_rail else 1.2
            axes.plot(x, values, color=PLACEHOLDER[colour], linewidth=width, marker="o" if len(x) < 3 else None)
        axes.set_ylim(bottom=0)

    return _Plan("Power", "W", [Legend(label(name), c, "") for name, c in zip(names, SERIES)], draw)


def _governor(run: Run) -> Optional[_Plan]:
    governed = run.governed
    if governed is None or not run.windows:
        return None

    def draw(axes: Any, unit_s: float) -> None:
        from matplotlib.ticker import MaxNLocator

        times, rungs = _grid(run.bins, "rung", "")
        x = [t / unit_s for t in times]
        colour, known = PLACEHOLDER["--s5"], [rung == rung for rung in rungs]
        filled = [rung if rung == rung else 0.0 for rung in rungs]
        axes.fill_between(x, filled, where=known, color=colour, alpha=0.25, linewidth=0, step="mid")
        axes.plot(x, rungs, color=colour, linewidth=1.4, drawstyle="steps-mid", marker="o" if len(x) < 3 else None)
        axes.set_ylim(0, max(1, governed.of))
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))

    legend = [Legend("in use; 0: nothing given up", "--s5", "")]
    return _Plan("Governor", f"steps of quality given up, of {governed.of}", legend, draw, 0.6)


def marks(run: Run) -> List[Tuple[int, float]]:
    """(number in the table, seconds) of the events that charts mark; throttling is shaded instead."""
    found = [
        (number, event.t_s) for number, event in enumerate(run.events, 1) if not event.kind.startswith("throttle_")
    ]
    return found[:MAX_MARKS]


def _time_unit(seconds: float) -> Tuple[str, float]:
    if seconds < 180:
        return "s", 1.0
    return ("min", 60.0) if seconds < 3 * 3600 else ("h", 3600.0)


def _svg(run: Run, plan: _Plan, width: float, height: float, prefix: str) -> str:
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    end = (max(run.bins.bins, default=0) + 1) * run.bins.width_s
    unit, unit_s = _time_unit(end)
    style: Dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": prefix,
        "font.size": 9.5,
        "path.simplify": True,
    }
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(width, height))
        FigureCanvasSVG(figure)
        left, right = 0.62 / width, 0.2 / width
        bottom, top = 0.32 / height, 0.2 / height
        axes = figure.add_axes((left, bottom, 1 - left - right, 1 - bottom - top))
        plan.draw(axes, unit_s)
        axes.set_xlim(0, end / unit_s)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g} {unit}" if value else "0")
        axes.xaxis.set_major_locator(MaxNLocator(nbins=int(width), min_n_ticks=2))
        _shade(run, axes, unit_s)
        _mark(run, axes, unit_s, end, width)
        dress(axes)
        file = io.StringIO()
        empty = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(file, format="svg", transparent=True, metadata=empty)
    return inline(file.getvalue(), prefix, f"{plan.title} over time")


def _shade(run: Run, axes: Any, unit_s: float) -> None:
    spans: List[List[int]] = []
    for index in sorted(run.bins.bins):
        throttled = run.bins.bins[index].get(("throttled", ""))
        if throttled is not None and throttled.high > 0:
            if spans and spans[-1][1] == index:
                spans[-1][1] = index + 1
            else:
                spans.append([index, index + 1])
    for first, last in spans:
        begin, end = (index * run.bins.width_s / unit_s for index in (first, last))
        axes.axvspan(begin, end, color=PLACEHOLDER["--hot"], alpha=0.22, linewidth=0, zorder=0)


def _mark(run: Run, axes: Any, unit_s: float, end: float, width: float) -> None:
    labelled = -1.0
    for number, t_s in marks(run):
        axes.axvline(t_s / unit_s, color=PLACEHOLDER["--mark"], linewidth=0.9, linestyle=(0, (1, 2)))
        if labelled < 0 or (t_s - labelled) / end * width > 0.22:  # numbers must not touch
            axes.annotate(
                str(number),
                (t_s / unit_s, 1.0),
                xycoords=("data", "axes fraction"),
                xytext=(0, 2),
                textcoords="offset points",
                ha="center",
                va="bottom",
                fontsize=8.5,
                color=PLACEHOLDER["--mark"],
            )
            labelled = t_s


def dress(axes: Any) -> None:
    """Axes in the page's colours, without a frame."""
    foreground, grid = PLACEHOLDER["--fg"], PLACEHOLDER["--grid"]
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(grid)
    axes.grid(True, axis="y", color=grid, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(colors=foreground, length=0)
    axes.tick_params(axis="x", length=3, color=grid)
    if axes.get_yscale() == "linear":
        axes.locator_params(axis="y", nbins=5)


def inline(svg: str, prefix: str, label: str) -> str:
    """matplotlib's document as an element of the page: no prolog, no addresses, own ids, page colours."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<style[^>]*>.*?</style>", "", svg, flags=re.DOTALL)  # it would style the whole page
    svg = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", svg)
    svg = svg.replace("xlink:href", "href").replace(" \n", " ")
    svg = re.sub(r'\bid="', f'id="{prefix}-', svg)
    svg = re.sub(r'href="#', f'href="#{prefix}-', svg)
    svg = re.sub(r"url\(#", f"url(#{prefix}-", svg)
    for name, colour in PLACEHOLDER.items():
        svg = svg.replace(colour, f"var({name})")
    svg = re.sub(r'\s(width|height)="[\d.]+pt"', "", svg, count=2)
    return svg.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)
