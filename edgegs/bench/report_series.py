"""Checked values, distributions and curves: what a report sums up, each in bounded memory."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Dict, Iterable, List, Optional, Tuple

#: Different names (stages, sensors, rails, outputs) that are kept of each kind, and their length.
MAX_NAMES, MAX_NAME = 32, 64

#: Points of a curve.
MAX_BINS = 480


def number(value: Any) -> Optional[float]:
    """A finite number as float, else None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def count(value: Any) -> int:
    """A sensible number of things, else 0."""
    found = number(value)
    return int(found) if found is not None and 0 <= found < 1e15 else 0


def mapping(value: Any) -> Dict[str, Any]:
    """The dictionary with bounded names, or an empty one."""
    if not isinstance(value, dict):
        return {}
    return {str(key)[:MAX_NAME]: item for key, item in list(value.items())[:MAX_NAMES]}


def room(table: Dict[str, Any], name: str) -> bool:
    """Whether ``name`` is in the table or still fits."""
    return name in table or len(table) < MAX_NAMES


class Distribution:
    """Milliseconds of many windows, from each window's p50, p95, max and mean.

    A window's values are taken to lie on straight lines through its quantiles, mirrored below the median.
    With one frame a window, or equal frames, the result is exact; otherwise it is an estimate.
    """

    def __init__(self) -> None:
        self.frames = 0
        self.max = 0.0
        self._sum = 0.0
        self._weights: Dict[float, float] = {}

    @property
    def mean(self) -> float:
        return self._sum / self.frames if self.frames else 0.0

    def add(self, figures: Dict[str, Any], frames: int) -> Optional[float]:
        """Take a window of ``frames`` frames; returns its mean, None when the figures are not usable."""
        p50, p95, top = (number(figures.get(name)) for name in ("p50", "p95", "max"))
        if frames <= 0 or p50 is None or p95 is None or top is None or not 0 <= p50 <= p95 <= top < 1e9:
            return None
        mean = number(figures.get("mean"))
        mean = p50 if mean is None or not 0 <= mean <= top else mean
        self.frames += frames
        self.max = max(self.max, top)
        self._sum += mean * frames
        knots = ((0.0, max(0.0, 2 * p50 - p95)), (0.5, p50), (0.95, p95), (1.0, top))
        steps = min(frames, 20)
        for step in range(steps):
            # Four digits bound the table's size and cost 0.05 per cent.
            value = float(f"{_interpolate(knots, (step + 0.5) / steps):.4g}")
            self._weights[value] = self._weights.get(value, 0.0) + frames / steps
        return mean

    def percentile(self, share: float) -> float:
        """The value below which ``share`` (0..1) of the frames lie."""
        target, passed = share * self.frames, 0.0
        value = 0.0
        for value in sorted(self._weights):
            passed += self._weights[value]
            if passed >= target - 1e-9:
                break
        return value


def _interpolate(knots: Iterable[Tuple[float, float]], at: float) -> float:
    points = list(knots)
    for (x0, y0), (x1, y1) in zip(points, points[1:]):
        if at <= x1:
            return y0 + (y1 - y0) * (at - x0) / (x1 - x0)
    return points[-1][1]


@dataclass
class Extent:
    """Lowest, highest and weighted mean of a value."""

    low: float = math.inf
    high: float = -math.inf
    total: float = 0.0
    weight: float = 0.0

    def add(self, value: float, weight: float = 1.0) -> None:
        self.low, self.high = min(self.low, value), max(self.high, value)
        self.total += value * weight
        self.weight += weight

    def join(self, other: Extent) -> None:
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        self.total += other.total
        self.weight += other.weight

    @property
    def mean(self) -> float:
        return self.total / self.weight if self.weight > 0 else math.nan


@dataclass
class Rail:
    """A rail's energy over the windows in which it is known, and the frames drawn in these."""

    method: str = ""
    joules: float = 0.0
    seconds: float = 0.0
    frames: int = 0
    watts: Extent = field(default_factory=Extent)

    @property
    def mean_w(self) -> float:
        return self.joules / self.seconds if self.seconds > 0 else math.nan

    @property
    def joules_per_frame(self) -> Optional[float]:
        return self.joules / self.frames if self.frames else None


class TimeBins:
    """Curves over time with at most ``MAX_BINS`` points: when they run out, neighbours are joined."""

    def __init__(self, width_s: float = 1.0) -> None:
        self.width_s = width_s
        self.bins: Dict[int, Dict[Tuple[str, str], Extent]] = {}

    def add(self, t_s: float, key: Tuple[str, str], value: float, weight: float) -> None:
        """Add a value of curve ``key`` = (kind, name) at ``t_s`` seconds from the start."""
        if not 0 <= t_s < 1e10:
            return
        while t_s / self.width_s >= MAX_BINS:
            self.width_s *= 2
            joined: Dict[int, Dict[Tuple[str, str], Extent]] = {}
            for index, curves in self.bins.items():
                target = joined.setdefault(index // 2, {})
                for name, extent in curves.items():
                    target.setdefault(name, Extent()).join(extent)
            self.bins = joined
        self.bins.setdefault(int(t_s / self.width_s), {}).setdefault(key, Extent()).add(value, weight)

    def fill(self, key: Tuple[str, str], like: Tuple[str, str], value: float) -> None:
        """Give curve ``key`` one value wherever curve ``like`` has one so far."""
        for curves in self.bins.values():
            if like in curves:
                curves.setdefault(key, Extent()).add(value, curves[like].weight)

    def curve(self, kind: str, name: str) -> Tuple[List[float], List[Extent]]:
        """Times (s, the bins' middles) and values of a curve, without the bins that have none."""
        indices = sorted(index for index, curves in self.bins.items() if (kind, name) in curves)
        times = [(index + 0.5) * self.width_s for index in indices]
        return times, [self.bins[index][kind, name] for index in indices]

    def names(self, kind: str) -> List[str]:
        """The curves of a kind, in the order in which they appeared."""
        seen: Dict[str, None] = {}
        for index in sorted(self.bins):
            for found, name in self.bins[index]:
                if found == kind:
                    seen.setdefault(name)
        return list(seen)
