"""How configurations are called: what differs between them tells them apart, the rest is said once."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence, Tuple

from edgegs.bench.field_stats import Group

#: What tells one curve from another, in the order in which it is said.
DIMENSIONS = ("board", "scene", "size", "variant", "power_mode", "fps_cap")

#: Curves in one chart; more are put into a further chart.
MAX_SERIES = 8


def splats(n: Any) -> str:
    """25k, 1.5M; "?" where it is not known."""
    if not isinstance(n, (int, float)) or isinstance(n, bool):
        return "?"
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if n >= size:
            return f"{n / size:.4g}{letter}"
    return f"{n:g}"


def word(group: Group, dimension: str) -> str:
    """One property of a configuration as people say it."""
    if dimension == "board":
        return group.campaign.board
    if dimension == "scene":
        return group.scene_name
    if dimension == "size":
        return "{}×{}".format(group["width"], group["height"])
    if dimension == "variant":
        return str(group["variant"] or "?")
    if dimension == "fps_cap":
        cap = group["fps_cap"]
        return f"cap {cap:g} FPS" if isinstance(cap, (int, float)) and cap else "no cap"
    mode = group["power_mode"]
    said = next((run.board_power_mode for run in group.runs + group.invalid if run.board_power_mode), "")
    if mode is None:
        return f"mode {said}" if said else "mode as it was"
    return f"mode {said if said.split()[:1] == [str(mode)] else mode}"  # a board may be in another than was asked for


def varying(groups: Sequence[Group]) -> List[str]:
    """The dimensions in which these differ."""
    return [name for name in DIMENSIONS if len({word(group, name) for group in groups}) > 1]


def common(groups: Sequence[Group], among: Sequence[str] = DIMENSIONS) -> str:
    """What they have in common, in words; of these dimensions only."""
    differ = varying(groups)
    return " · ".join(word(groups[0], name) for name in DIMENSIONS if name in among and name not in differ)


def name_of(group: Group, dimensions: Sequence[str], with_splats: bool = True) -> str:
    """A configuration by the dimensions given, and its splats."""
    parts = [word(group, name) for name in DIMENSIONS if name in dimensions]
    parts += [splats(group["splats"]) + " splats"] if with_splats else []
    return " · ".join(parts) or "all"


def series(groups: Sequence[Group]) -> Dict[Tuple[str, ...], List[Group]]:
    """Curves: configurations that differ in nothing but their splats, these rising."""
    found: Dict[Tuple[str, ...], List[Group]] = {}
    for group in groups:
        found.setdefault(tuple(word(group, name) for name in DIMENSIONS), []).append(group)
    for members in found.values():
        members.sort(key=lambda one: one["splats"] if isinstance(one["splats"], (int, float)) else 0)
    return found


def facets(groups: Sequence[Group]) -> List[List[Group]]:
    """Charts: one a scene, and more where there would be too many curves in one."""
    charts = [list(groups)]
    for dimension in ("scene", "board", "size", "power_mode", "fps_cap", "variant"):
        split: List[List[Group]] = []
        for chart in charts:
            if dimension != "scene" and len(series(chart)) <= MAX_SERIES:
                split.append(chart)
                continue
            by_word: Dict[str, List[Group]] = {}
            for group in chart:
                by_word.setdefault(word(group, dimension), []).append(group)
            split += by_word.values()
        charts = split
    return charts
