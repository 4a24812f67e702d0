"""A chart of the field report as a plan, and rendered: as SVG that takes the page's colours, or as PNG."""

from __future__ import annotations

import io
import re
from typing import Any, Callable, Dict, List, NamedTuple, Tuple

from edgegs.bench.report_plots import PLACEHOLDER, Legend, dress, inline
from edgegs.bench.report_style import STYLE

#: (class in the page, width, height in inches).
SIZES = (("wide", 10.4, 3.9), ("narrow", 4.3, 3.4))
SMALL = (("wide", 5.0, 2.6), ("narrow", 4.3, 2.6))

#: name of a colour -> what the chart carries; PNG files take the page's light ones.
Colours = Dict[str, str]
Draw = Callable[[Any, Colours], None]
_LIGHT = dict(re.findall(r"(--[a-z0-9]+): (#[0-9a-f]{6})", STYLE.split("}")[0]))


class Plan(NamedTuple):
    """A chart to be drawn. ``slug`` names its file; ``draw(axes, colours)`` fills the axes."""

    slug: str
    title: str
    note: str
    legend: List[Legend]
    x_label: str
    y_label: str
    draw: Draw
    small: bool = False


def titled(title: str, where: str) -> str:
    return f"{title}: {where}" if where else title


def _figure(plan: Plan, width: float, height: float, colours: Colours, with_legend: bool) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    right, top = 0.22 / width, 0.16 / height
    if with_legend:
        top = (0.5 + 0.2 * -(-len(plan.legend) // 3)) / height
    axes = figure.add_axes((0.7 / width, 0.62 / height, 1 - 0.7 / width - right, 1 - 0.62 / height - top))
    plan.draw(axes, colours)
    dress(axes)
    # a second time, since these may be a PNG's own colours
    for spine in axes.spines.values():
        spine.set_color(colours["--grid"])
    axes.grid(True, axis="y", color=colours["--grid"], linewidth=0.7)
    axes.tick_params(colors=colours["--fg"])
    axes.set_xlabel(plan.x_label, color=colours["--fg"], labelpad=5)
    axes.set_ylabel(plan.y_label, color=colours["--fg"], labelpad=5)
    if with_legend:
        _draw_legend(figure, plan, colours)
    return figure


def _draw_legend(figure: Any, plan: Plan, colours: Colours) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: List[Any] = []
    for entry in plan.legend:
        hue, name = colours[entry.colour], entry.name.replace("$", r"\$")
        if entry.style == "area":
            handles.append(Patch(color=hue, label=name))
        else:
            handles.append(Line2D([], [], color=hue, linestyle="--" if entry.style == "dash" else "-", label=name))
    figure.suptitle(plan.title.replace("$", r"\$"), fontsize=11, x=0.02, y=0.985, ha="left", color=colours["--fg"])
    if handles:
        place = {"loc": "upper left", "bbox_to_anchor": (0.01, 0.94)}
        figure.legend(handles=handles, ncols=3, frameon=False, fontsize=8, **place)


def svgs(plan: Plan, prefix: str) -> List[Tuple[str, str]]:
    """(class in the page, SVG) of each size, coloured by the page. ``prefix`` keeps ids apart within a page."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    colours = {**PLACEHOLDER, "--sheet": "#ffffff"}
    found = []
    for name, width, height in SMALL if plan.small else SIZES:
        own = f"{prefix}{name}"
        with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": own, "font.size": 9.5}):
            figure = _figure(plan, width, height, colours, with_legend=False)
            FigureCanvasSVG(figure)
            file = io.StringIO()
            empty = dict.fromkeys(("Creator", "Date", "Format", "Type"))
            figure.savefig(file, format="svg", transparent=True, metadata=empty)
        found.append((name, inline(file.getvalue(), own, plan.slug)))
    return found


def png(plan: Plan) -> bytes:
    """The chart with its title and legend, 1560 pixels wide (small ones 900), on white."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    width, height = (6.0, 3.9) if plan.small else (10.4, 5.2)
    with matplotlib.rc_context({"font.size": 9.5}):
        figure = _figure(plan, width, height, {**_LIGHT, "--sheet": "#ffffff"}, with_legend=True)
        FigureCanvasAgg(figure)
        file = io.BytesIO()
        figure.savefig(file, format="png", dpi=150, facecolor="white")
    return file.getvalue()
