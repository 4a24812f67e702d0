"""The roofline as a picture: both ceilings of the device, and a point for each stage of each row."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

from edgegs.errors import AccessError, OutputError, UsageError

WIDTH, HEIGHT, DPI = 9.0, 5.6, 150
#: Left, bottom, width and height within the picture; a label's size in points, of which a letter is 0.6 wide.
AXES, LABEL = (0.085, 0.11, 0.885, 0.785), 8.5
#: Of rows, one after the other; and of ceilings, text and grid. The report page's colours in its light form.
COLOURS = ("#2f6fde", "#e08a00", "#1d9a6c", "#c2418c", "#7a56d6", "#0c9bb3", "#9a6b30", "#5b6670")
INK, SOFT, GRID = "#1b2126", "#5b6670", "#dde2e6"
#: Powers of ten shown beyond the outermost point or corner.
MARGIN = 0.5


class Point(NamedTuple):
    """``intensity``: operations a byte; ``rate``: operations a second; ``row``: index in the document."""

    stage: str
    row: int
    intensity: float
    rate: float


def available() -> bool:
    """Whether matplotlib can be imported."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


def check(path: Path) -> None:
    """Refuse, before minutes are spent on measuring, a picture that cannot be drawn or written.

    Raises:
        UsageError: not a .png, or matplotlib is missing. OutputError: there is no such folder.
    """
    if path.suffix.lower() != ".png":
        raise UsageError(f"--plot {path}: the picture is a PNG; name it something.png")
    if not path.parent.is_dir():
        raise OutputError(f"{path}: there is no folder {path.parent}; create it")
    if not available():
        raise UsageError("--plot needs matplotlib: `pip install 'edgegs[report]'`")


def points(document: Dict[str, Any]) -> Tuple[str, List[Point], List[str]]:
    """What an operation is, in words; the points; and the stages that have no operation, by name.

    All instructions of all lanes where they were counted for every stage (``slots``), else FP32.
    """
    stages = [(index, stage) for index, row in enumerate(document["rows"]) for stage in row["stages"]]
    all_counted = all(stage["slots"] is not None for _, stage in stages)
    width = document["ceilings"]["warp_width"]
    found, none = [], []
    for index, stage in stages:
        operations = stage["slots"] * width if all_counted else stage["fp32"]
        if operations > 0 and stage["bytes"] > 0:
            rate = operations / (stage["ms"] * 1e-3)
            found.append(Point(stage["stage"], index, operations / stage["bytes"], rate))
        elif stage["stage"] not in none:
            none.append(stage["stage"])
    return "instructions of lanes" if all_counted else "FP32 operations of lanes", found, none


def draw(document: Dict[str, Any], path: Path) -> None:
    """Write the picture.

    Raises:
        AccessError, OutputError: the file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    unit, found, none = points(document)
    ceilings = document["ceilings"]
    figure = Figure(figsize=(WIDTH, HEIGHT))
    FigureCanvasAgg(figure)
    axes = figure.add_axes(AXES)
    axes.set_xscale("log")
    axes.set_yscale("log")
    peak, bandwidth = ceilings["fma_per_s"], ceilings["bytes_per_s"]
    corner = peak / bandwidth
    left = min([point.intensity for point in found] + [corner]) / 10**MARGIN
    right = max([point.intensity for point in found] + [corner]) * 10 ** (2 * MARGIN)
    axes.plot([left, corner, right], [left * bandwidth, peak, peak], color=INK, linewidth=1.8, zorder=2)
    middle = (left * corner) ** 0.5
    _name(axes, (middle, middle * bandwidth), f"copy {bandwidth / 1e9:,.0f} GB/s", "right", (-8, 2))
    _name(axes, (right, peak), f"multiply-adds {peak / 1e9:,.0f} G/s", "right", (-4, 6))
    for index, row in enumerate(document["rows"]):
        colour = COLOURS[index % len(COLOURS)]
        mine = [point for point in found if point.row == index]
        label = "{}, {}x{}: {:.3f} ms".format(row["name"], row["width"], row["height"], row["total_ms"])
        x, y = [point.intensity for point in mine], [point.rate for point in mine]
        axes.scatter(x, y, s=44, color=colour, label=label, zorder=3)
    bottom = min([point.rate for point in found] + [left * bandwidth]) / 10**MARGIN
    top = peak * 10**MARGIN
    axes.set_xlim(left, right)
    axes.set_ylim(bottom, top)
    texts = [
        f"{point.stage} {100 * point.rate / min(peak, point.intensity * bandwidth):.0f} %" for point in found
    ]
    for point, text, drop in zip(found, texts, _drops(found, texts, (left, right), (bottom, top))):
        axes.annotate(
            text,
            (point.intensity, point.rate),
            xytext=(7, -3 - drop),
            textcoords="offset points",
            fontsize=LABEL,
            color=COLOURS[point.row % len(COLOURS)],
        )
    axes.set_xlabel(f"{unit} per byte" + (f"     (none: {', '.join(none)})" if none else ""), color=INK)
    axes.set_ylabel(f"{unit} per second", color=INK)
    # its dots are no stages: in a frame of their own
    axes.legend(loc="lower right", fontsize=8.5, frameon=True, edgecolor=GRID, labelcolor=INK)
    scene = document["scene"]
    title = "{}, {:,} splats, on {}".format(scene["path"], scene["n_splats"], document["device"])
    axes.set_title(title + "\nper cent: of the ceiling over the point", fontsize=10, color=INK, loc="left")
    axes.grid(True, which="major", color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(colors=SOFT, which="both")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    try:
        figure.savefig(str(path), dpi=DPI, metadata={"Software": None})
    except PermissionError:
        raise AccessError(f"{path}: permission denied") from None
    except OSError as error:
        raise OutputError(f"{path}: cannot be written ({error.strerror})") from None


def _drops(
    found: Sequence[Point], texts: Sequence[str], x_range: Tuple[float, float], y_range: Tuple[float, float]
) -> List[float]:
    """How far each label stands below its point, in points of print, so that none covers another."""

    def place(value: float, limits: Tuple[float, float], inches: float) -> float:
        low, high = (math.log10(limit) for limit in limits)
        return (math.log10(value) - low) / (high - low) * inches * 72

    taken: List[Tuple[float, float, float]] = []
    drops = [0.0] * len(found)
    for index in sorted(range(len(found)), key=lambda i: -found[i].rate):
        x = place(found[index].intensity, x_range, WIDTH * AXES[2])
        y = place(found[index].rate, y_range, HEIGHT * AXES[3])
        width, free = 0.6 * LABEL * len(texts[index]), False
        while not free:
            at = y - drops[index]
            free = not any(x < x2 + w2 and x2 < x + width and abs(at - y2) < LABEL + 2 for x2, y2, w2 in taken)
            drops[index] += 0.0 if free else 2.0
        taken.append((x, y - drops[index], width))
    return drops


def _name(axes: Any, at: Tuple[float, float], text: str, side: str, offset: Tuple[int, int]) -> None:
    axes.annotate(text, at, xytext=offset, textcoords="offset points", ha=side, fontsize=9, color=SOFT)
