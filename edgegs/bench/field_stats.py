"""Means with intervals over the repeats of a configuration, and comparisons that say only what the intervals allow.

Intervals are 95 % Student t intervals over the repeats: each repeat is one figure, whatever number of frames it drew,
since frames of one run share its temperature and its clocks. With three to ten repeats a bootstrap would be too narrow.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from edgegs.bench.field_data import PARAMS, Campaign, Measured
from edgegs.errors import UsageError

CONFIDENCE = 0.95
#: Fewer valid repeats than this are no ground for a verdict.
MIN_REPEATS = 3
#: Relative: what was really measured several times differs by more than this.
_STUCK = 1e-9


class Interval(NamedTuple):
    """A mean and the interval around it; ``low`` and ``high`` are None for a single figure."""

    mean: float
    low: Optional[float]
    high: Optional[float]
    n: int


@lru_cache(maxsize=1)
def _nodes() -> Tuple[np.ndarray, np.ndarray]:
    nodes, weights = np.polynomial.legendre.leggauss(96)
    return nodes, weights


@lru_cache(maxsize=4096)
def t_quantile(df: float, confidence: float = CONFIDENCE) -> float:
    """The t that |T| stays below with this probability; ``df`` >= 1 need not be whole.

    With T = sqrt(df) tan(a) the density of T becomes proportional to cos(a)^(df-1), smooth on a bounded range.
    """
    nodes, weights = _nodes()

    def mass(angle: float) -> float:
        angles = (nodes + 1) * angle / 2
        return float(weights @ np.cos(angles) ** (df - 1)) * angle / 2

    whole, low, high = mass(math.pi / 2), 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if mass(middle) < confidence * whole else (low, middle)
    return math.sqrt(df) * math.tan(low)


def interval(values: Sequence[float]) -> Optional[Interval]:
    """Mean and t interval; None without a value."""
    if not values:
        return None
    data = np.asarray(values, dtype=np.float64)
    mean, n = float(data.mean()), len(data)
    if n < 2:
        return Interval(mean, None, None, n)
    half = t_quantile(n - 1) * float(data.std(ddof=1)) / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, n)


@dataclass
class Group:
    """The runs of one configuration on one board.

    Attributes:
        name: ``run_id`` without the repeat; unique within its campaign.
        runs: those that count. invalid: those that do not.
        scene_id: the same for the same scene on every board. scene_name: for people, different for different scenes.
    """

    campaign: Campaign
    key: Tuple[Any, ...]
    name: str
    runs: List[Measured] = field(default_factory=list)
    invalid: List[Measured] = field(default_factory=list)
    scene_id: str = ""
    scene_name: str = ""

    def __getitem__(self, param: str) -> Any:
        return self.key[PARAMS.index(param)]

    def of(self, figure: str) -> Optional[Interval]:
        """A figure over the valid repeats: a name of ``FIGURES``."""
        return interval(self.values(figure))

    def values(self, figure: str) -> List[float]:
        found = [FIGURES[figure](run) for run in self.runs]
        return [value for value in found if value is not None]

    @property
    def stage_share(self) -> Dict[str, float]:
        """stage -> its part of the stages' time, mean over the valid repeats."""
        sums: Dict[str, float] = {}
        for run in self.runs:
            total = sum(run.stage_ms.values())
            for stage, milliseconds in run.stage_ms.items():
                if total > 0:
                    sums[stage] = sums.get(stage, 0.0) + milliseconds / total / len(self.runs)
        return sums


#: What is told of a run as one figure; None where it was not measured.
FIGURES: Dict[str, Callable[[Measured], Optional[float]]] = {
    "fps": lambda run: run.fps,
    "frame_p50_ms": lambda run: run.frame_ms.get("p50"),
    "frame_p95_ms": lambda run: run.frame_ms.get("p95"),
    "frame_p99_ms": lambda run: run.frame_ms.get("p99"),
    "mean_w": lambda run: run.energy.mean_w if run.energy else None,
    "j_per_frame": lambda run: run.energy.j_per_frame if run.energy else None,
    "net_j_per_frame": lambda run: run.energy.net_j_per_frame if run.energy else None,
    "idle_w": lambda run: run.energy.idle_w if run.energy else None,
    "hottest_c": lambda run: run.hottest_c,
}


def groups(campaigns: Sequence[Campaign]) -> List[Group]:
    """One a configuration and board, in the order of board, scene, size, mode, cap, variant and splats."""
    found: Dict[Tuple[Any, ...], Group] = {}
    for campaign in campaigns:
        for run in campaign.runs:
            name = re.sub(r"-r\d+$", "", run.run_id)
            group = found.setdefault((campaign.path, name), Group(campaign, run.key, name))
            if run.scene and not group.runs:
                group.key = run.key  # a run that failed does not know how many splats it would have drawn
            (group.runs if run.valid else group.invalid).append(run)
    _name_scenes(list(found.values()))
    order = ("scene", "width", "height", "power_mode", "fps_cap", "variant", "splats")
    place = {id(campaign): index for index, campaign in enumerate(campaigns)}
    return sorted(found.values(), key=lambda one: (place[id(one.campaign)], [_sortable(one[param]) for param in order]))


def _name_scenes(found: Sequence[Group]) -> None:
    """Files are told apart by their content: boards keep them in other places, and trainers give all the same name."""
    contents: Dict[Tuple[str, str], str] = {}
    for group in found:
        for run in group.runs + group.invalid:
            if run.scene.get("format") not in (None, "synth"):
                contents[(group.campaign.path, str(group["scene"]))] = str(run.scene.get("sha256"))
    paths: Dict[str, str] = {}
    for group in found:
        path = str(group["scene"] or "?")
        group.scene_id = contents.get((group.campaign.path, path), path)
        paths.setdefault(group.scene_id, path)
    for depth in range(1, 10):
        names = {one: _tail(path, depth) for one, path in paths.items()}
        if len(set(names.values())) == len(names):
            break
    else:  # one path, and another file there on another board
        names = {one: _tail(path, 1) for one, path in paths.items()}
        known = list(names.values())
        names = {one: name if known.count(name) == 1 else f"{name} ({one[:8]})" for one, name in names.items()}
    for group in found:
        group.scene_name = names[group.scene_id]


def _tail(path: str, depth: int) -> str:
    """A file's name, from 2 on with the folder so far above it."""
    parts = path.split("/")[-depth:]
    return "/".join(parts if len(parts) < 3 else [parts[0], "…", parts[-1]])


def _sortable(value: Any) -> Tuple[int, float, str]:
    if isinstance(value, (int, float)):
        return 0, float(value), ""
    return (1, 0.0, value) if isinstance(value, str) else (-1, 0.0, "")


class Comparison(NamedTuple):
    """``b`` against ``a`` in one figure: ratio b/a with its interval, and what may be said."""

    a: Group
    b: Group
    figure: str
    ratio: Optional[Interval]
    verdict: str

    @property
    def decided(self) -> bool:
        """Whether the interval allows a verdict."""
        return not self.verdict.startswith("no verdict")


#: Compared figures: (name, what more of it is called, what less of it is called).
COMPARED = (
    ("fps", "faster", "slower"),
    ("mean_w", "more power", "less power"),
    ("j_per_frame", "more energy a frame", "less energy a frame"),
)


def compare(a: Group, b: Group, figure: str) -> Comparison:
    """Welch's test on the logarithms, so that the interval is of the ratio b/a."""
    more, less = next((up, down) for name, up, down in COMPARED if name == figure)
    first, second = ([value for value in one.values(figure) if value > 0] for one in (a, b))
    if not first or not second:
        return Comparison(a, b, figure, None, "no verdict: not measured in both")
    logs = [np.log(np.asarray(values)) for values in (first, second)]
    ratio = math.exp(float(logs[1].mean() - logs[0].mean()))
    n = min(len(first), len(second))
    if n < 2:
        return Comparison(a, b, figure, Interval(ratio, None, None, n), "no verdict: a single valid run of one")
    parts = [float(values.var(ddof=1)) / len(values) for values in logs]
    error = math.sqrt(sum(parts))
    half = 0.0
    if error > 0:
        df = sum(parts) ** 2 / sum(part**2 / (len(values) - 1) for part, values in zip(parts, logs))
        half = min(t_quantile(max(1.0, df)) * error, 50.0)
    found = Interval(ratio, ratio * math.exp(-half), ratio * math.exp(half), n)
    if n < MIN_REPEATS:
        return Comparison(a, b, figure, found, f"no verdict: fewer than {MIN_REPEATS} valid runs of one")
    if error < _STUCK and half < abs(math.log(ratio)):
        return Comparison(a, b, figure, found, "no verdict: the repeats do not differ at all; is a sensor stuck?")
    if half >= abs(math.log(ratio)):
        return Comparison(a, b, figure, found, "no verdict: 0 % lies within the interval")
    if ratio >= 2 and figure == "fps":
        return Comparison(a, b, figure, found, f"{ratio:.2f} times as fast")
    if ratio >= 2:
        return Comparison(a, b, figure, found, f"{ratio:.2f} times the {more.replace('more ', '')}")
    return Comparison(a, b, figure, found, f"{100 * abs(ratio - 1):.1f} % {more if ratio > 1 else less}")


def percent(ratio: float) -> str:
    """A ratio as a change."""
    return f"{100 * (ratio - 1):+.1f} %"


def pairs(found: Sequence[Group]) -> List[Tuple[Group, Group]]:
    """What is compared unless somebody names two: variants with the baseline, and boards with the first board."""
    result = []
    by_rest: Dict[Tuple[Any, ...], List[Group]] = {}
    for group in found:
        rest = tuple(group[param] for param in PARAMS if param != "variant")
        by_rest.setdefault((group.campaign.path, *rest), []).append(group)
    for members in by_rest.values():
        reference = next((one for one in members if one["variant"] == "baseline"), members[0])
        result += [(reference, one) for one in members if one is not reference]
    first: Dict[Tuple[Any, ...], Group] = {}
    for group in found:
        reference = first.setdefault((group.scene_id, *group.key[1:]), group)
        if reference is not group:
            result.append((reference, group))
    return result


def named(found: Sequence[Group], name: str) -> Group:
    """The configuration that somebody names: the run's id with or without the repeat, or BOARD:NAME.

    Raises:
        UsageError: none, or several, are called that.
    """
    board, _, wanted = name.rpartition(":")
    wanted = re.sub(r"-r\d+$", "", wanted)
    hits = [one for one in found if one.name == wanted and board in ("", one.campaign.board, one.campaign.path)]
    if len(hits) == 1:
        return hits[0]
    if hits:
        boards = ", ".join(f"{one.campaign.board!r}" for one in hits)
        raise UsageError(f"--compare {name}: was measured on several boards ({boards}); write BOARD:{wanted}")
    known = ", ".join(dict.fromkeys(one.name for one in found))
    raise UsageError(f"--compare {name}: no such configuration in these files; there are: {known[:1500]}")
