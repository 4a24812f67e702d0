"""Energy over exactly a window of monotonic time, and what of it a frame, the scene and a stage cost.

A rail's power readings are joined by straight lines and integrated; the lines are cut where the window begins and ends.
A rail that has an energy counter of its own contributes the counter's joules instead, and how far the integral is from
them is kept. Two readings too far apart are not joined, and a window with such a hole has no energy: absent is better
than invented. Nothing here knows the wall clock.
"""

from __future__ import annotations

import math
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from edgegs.telemetry.readings import Power, Sample

#: Share of a window that must lie between readings that belong together.
MIN_COVERAGE = 0.9

#: How energy is split up among stages; stands beside every such figure.
ATTRIBUTION = "share of time: an attribution, not a measurement"

#: Where ``by_stage`` puts the energy of the time in which no stage ran.
BETWEEN = "between"

#: Power from the difference of an energy counter has a method that ends in this.
_COUNTER = "_counter"


class Segment(NamedTuple):
    """Power running linearly from ``w0`` at ``t0`` to ``w1`` at ``t1`` (nanoseconds, watts)."""

    t0: int
    w0: float
    t1: int
    w1: float

    def joules(self, begin: int, end: int) -> float:
        """Integral over the part between begin and end; both must lie inside the segment."""
        slope = (self.w1 - self.w0) / (self.t1 - self.t0)
        first = self.w0 + slope * (begin - self.t0)
        last = self.w0 + slope * (end - self.t0)
        return (first + last) / 2 * (end - begin) / 1e9


class Integral(NamedTuple):
    """Energy of a window.

    Attributes:
        joules: None where the window is not covered well enough; ``invalid`` then says why.
        coverage: share of the window between readings that were joined. hole_s: its longest stretch without.
    """

    joules: Optional[float]
    coverage: float
    hole_s: float
    invalid: str


class RailEnergy(NamedTuple):
    """One rail's energy over a window.

    Attributes:
        joules: the counter's where there is one, else the integral's; None where neither is valid, see ``invalid``.
        watts: mean over the window.
        method: how ``joules`` were come by: a power's method, or one that ends in "_counter".
        counter_j, integral_j: both, where the rail has them.
        disagreement: the integral's relative distance from the counter, 0.02 when it is 2 % above; None without both.
        invalid: why there are no joules.
    """

    joules: Optional[float]
    watts: Optional[float]
    method: str
    counter_j: Optional[float]
    integral_j: Optional[float]
    disagreement: Optional[float]
    invalid: str


def join(points: Iterable[Tuple[int, float]], max_gap_s: float) -> List[Segment]:
    """Lines through (monotonic nanoseconds, watts), but none between two that are further apart than ``max_gap_s``.

    A point that is not later than the one before it is left out.
    """
    segments: List[Segment] = []
    before: Optional[Tuple[int, float]] = None
    for t_ns, watts in points:
        if before is not None:
            if t_ns <= before[0]:
                continue
            if t_ns - before[0] <= max_gap_s * 1e9:
                segments.append(Segment(before[0], before[1], t_ns, watts))
        before = (t_ns, watts)
    return segments


def integrate(segments: Iterable[Segment], begin_ns: int, end_ns: int, max_gap_s: float) -> Integral:
    """Energy between two monotonic times.

    The edges that no reading brackets count as the rest did, as long as they are short: holes above ``max_gap_s`` or
    above a tenth of the window make it invalid.

    Args:
        segments: in order of time, not overlapping. One that is longer than ``max_gap_s`` (an energy counter that was
            read late) counts only if nine tenths of it lie within the window: how it was spent in there is not known.
    """
    length = end_ns - begin_ns
    if length <= 0:
        return Integral(None, 0.0, 0.0, "the window has no length")
    joules, covered, hole, reached = 0.0, 0, 0, begin_ns
    for segment in segments:
        begin, end = max(begin_ns, segment.t0), min(end_ns, segment.t1)
        long = segment.t1 - segment.t0 > max_gap_s * 1e9
        if end <= begin or (long and end - begin < MIN_COVERAGE * (segment.t1 - segment.t0)):
            continue
        joules += segment.joules(begin, end)
        covered += end - begin
        hole = max(hole, begin - reached)
        reached = end
    hole = max(hole, end_ns - reached)
    coverage, hole_s = covered / length, hole / 1e9
    invalid = ""
    if not covered:
        invalid = "no readings"
    elif hole > max_gap_s * 1e9:
        invalid = f"no reading for {hole_s:.3g} s (limit {max_gap_s:.3g} s)"
    elif coverage < MIN_COVERAGE:
        invalid = f"readings cover {coverage:.0%} of the window (limit {MIN_COVERAGE:.0%})"
    return Integral(None if invalid else joules / coverage, coverage, hole_s, invalid)


def rail_energy(integral: Integral, counter: Optional[Integral], method: str, seconds: float) -> RailEnergy:
    """The counter's figure if it is valid, else the integral's, with how far they are apart.

    A counter that stood still while power was drawn is not believed.

    Args:
        counter: None where the rail has none. method: of the power readings.
    """
    counted = counter.joules if counter is not None else None
    integrated = integral.joules
    stuck = counted == 0.0 and (integrated or 0.0) > 0.0
    joules = integrated if counted is None or stuck else counted
    if joules is None:
        own = method.endswith(_COUNTER) and counter is not None
        invalid = counter.invalid if own and counter is not None else integral.invalid
        return RailEnergy(None, None, method, counted, integrated, None, invalid)
    if joules is counted and not method.endswith(_COUNTER):
        method = method.partition("_")[0] + _COUNTER
    apart = integrated / counted - 1.0 if counted and integrated is not None else None
    return RailEnergy(joules, joules / seconds, method, counted, integrated, apart, "")


def record_fields(energies: Dict[str, RailEnergy]) -> Dict[str, Dict[str, Any]]:
    """The energies of a window as fields of its record; a field without content is absent.

    Returns:
        ``power_w`` {rail: {w: mean watts, method}}, ``energy_j`` {rail: joules}, ``energy_off`` {rail: how far the
        integral of the power is from the counter, relative}, ``energy_invalid`` {rail: why it has no energy}.
    """
    valid = {rail: one for rail, one in energies.items() if one.joules is not None}
    fields: Dict[str, Dict[str, Any]] = {
        "power_w": {rail: {"w": round(one.watts or 0.0, 4), "method": one.method} for rail, one in valid.items()},
        "energy_j": {rail: round(one.joules or 0.0, 5) for rail, one in valid.items()},
        "energy_off": {
            rail: round(one.disagreement, 4) for rail, one in valid.items() if one.disagreement is not None
        },
        "energy_invalid": {rail: one.invalid for rail, one in energies.items() if one.invalid},
    }
    return {name: content for name, content in fields.items() if content}


class EnergyMeter:
    """Collects readings and gives the energy of any window that has not been asked for yet.

    Args:
        max_gap_s: two readings further apart than this are not joined.
    """

    def __init__(self, max_gap_s: float) -> None:
        self._max_gap_s = max_gap_s
        self._rails: Dict[str, _Rail] = {}

    def take(self, sample: Sample) -> None:
        """Take a sample's readings of all rails. A value that was sent before the sample's time holds until then."""
        for rail, power in sample.power_w.items():
            t_ns = sample.power_t_ns[rail]
            self.add(rail, t_ns, power)
            if t_ns < sample.t_mono_ns:
                self.add(rail, sample.t_mono_ns, Power(power.watts, power.method))  # not a counter's joules again

    def add(self, rail: str, t_ns: int, power: Power) -> None:
        """Take one reading of a rail at monotonic nanoseconds; one that is not later than its last is left out."""
        self._rails.setdefault(rail, _Rail()).add(t_ns, power, self._max_gap_s)

    def measure(self, begin_ns: int, end_ns: int) -> Dict[str, RailEnergy]:
        """Energy by rail between two monotonic times; then everything before ``end_ns`` is forgotten.

        A rail that has been read at some time is there, if only with the reason why it has no energy.
        """
        found: Dict[str, RailEnergy] = {}
        seconds = (end_ns - begin_ns) / 1e9
        for name, rail in self._rails.items():
            integral = integrate(rail.integral, begin_ns, end_ns, self._max_gap_s)
            counter = integrate(rail.counter, begin_ns, end_ns, self._max_gap_s) if rail.counter else None
            found[name] = rail_energy(integral, counter, rail.method, seconds)
            rail.forget(end_ns)
        return found


class _Rail:
    """The readings of one rail: lines of its power, and steps of its energy counter."""

    def __init__(self) -> None:
        self.integral: List[Segment] = []
        self.counter: List[Segment] = []
        self.method = ""
        self._last: Optional[Tuple[int, float]] = None

    def add(self, t_ns: int, power: Power, max_gap_s: float) -> None:
        before, measured = self._last, not power.method.endswith(_COUNTER)
        if before is not None and t_ns <= before[0]:
            return
        self._last, self.method = (t_ns, power.watts), power.method
        if before is None:
            return
        if power.energy_j is not None:
            length = t_ns - before[0]
            if not measured and power.watts > 0:
                # The watts are the counter's own mean, and so tell how long it counted: one that was set to zero on the
                # way counted for less than the time since the last reading.
                length = min(length, max(1, round(power.energy_j / power.watts * 1e9)))
            watts = power.energy_j / (length / 1e9)
            self.counter.append(Segment(t_ns - length, watts, t_ns, watts))
        if measured or power.energy_j is None:  # else the watts are the counter's own and would only repeat it
            self.integral += join((before, (t_ns, power.watts)), max_gap_s)

    def forget(self, end_ns: int) -> None:
        self.integral = [segment for segment in self.integral if segment.t1 > end_ns]
        self.counter = [segment for segment in self.counter if segment.t1 > end_ns]


# ---- what a frame costs --------------------------------------------------------------------------------------


class Idle(NamedTuple):
    """A machine's power with the scene loaded and nothing drawn.

    Attributes:
        watts: mean. spread_w: standard deviation of the readings' (or windows') means. n: how many these were.
    """

    watts: float
    spread_w: float
    n: int


class FrameEnergy(NamedTuple):
    """Joules a frame: ``gross`` of everything, ``net`` of idle with the spread that the idle's own gives it."""

    gross: float
    net: Optional[float]
    net_spread: Optional[float]


def idle_baseline(watts: Sequence[float]) -> Idle:
    """The baseline from mean powers of equally long idle windows, at least two.

    Raises:
        ValueError: fewer than two, or one that is not a finite power.
    """
    values = np.asarray(watts, dtype=np.float64)
    if values.size < 2:
        raise ValueError(f"an idle baseline takes at least two windows, not {values.size}: one has no spread")
    if not np.isfinite(values).all() or (values < 0).any():
        raise ValueError("an idle window has no finite power")
    return Idle(float(values.mean()), float(values.std(ddof=1)), int(values.size))


def per_frame(joules: float, seconds: float, frames: int, idle: Optional[Idle] = None) -> Optional[FrameEnergy]:
    """Joules a frame of a window; None where no frame was drawn.

    ``net`` may come out below zero: then the baseline was not this machine's idle, and hiding that would help nobody.
    """
    if frames <= 0:
        return None
    gross = joules / frames
    if idle is None:
        return FrameEnergy(gross, None, None)
    return FrameEnergy(gross, (joules - idle.watts * seconds) / frames, idle.spread_w * seconds / frames)


def by_stage(joules: float, seconds: float, stage_s: Dict[str, float]) -> Dict[str, float]:
    """``joules`` of a window split up by share of time; see ``ATTRIBUTION``.

    Args:
        seconds: length of the window. stage_s: seconds spent in each stage, as ``WindowData.stage_s`` gives them.

    Returns:
        Joules by stage, and under ``BETWEEN`` those of the time in which no stage ran. They add up to ``joules``.
        Stages that overlap, and so take longer than the window, share all of it.
    """
    spent = math.fsum(stage_s.values())
    whole = max(seconds, spent)
    if not whole > 0:
        return {}
    shares = {stage: joules * time_s / whole for stage, time_s in stage_s.items()}
    shares[BETWEEN] = joules * (whole - spent) / whole
    return shares
