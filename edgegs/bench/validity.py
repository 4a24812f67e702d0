"""When a run counts, and when it does not: rules over what was seen while it was measured. Nothing here measures.

A run that breaks a rule is kept, with the reason. The limits are the campaign's (``campaign.Rules``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from edgegs.telemetry.energy import RailEnergy
from edgegs.telemetry.readings import Sample

if TYPE_CHECKING:
    from edgegs.bench.campaign import Rules

#: Sensors that follow the load: the processor's and the GPU's. Where a board has none of these names, all are watched.
_OF_THE_CHIP = re.compile(r"cpu|gpu|soc|(^|[^a-z])tj|package|tctl|tdie|coretemp|k10temp", re.IGNORECASE)
#: A machine that slept: the monotonic clock stands still then, and no gap shows.
_MAX_SUSPENDED_S = 0.1
#: Fewer readings than this have no slope.
_SLOPE_POINTS = 4
#: A rate limit counts as held from this share on.
_HELD = 0.97


class Reason(NamedTuple):
    """``code``: a word for programs. ``text``: for people."""

    code: str
    text: str


@dataclass(frozen=True)
class Evidence:
    """What is known about one measurement.

    Attributes:
        begin_ns, end_ns: of the window, monotonic.
        interval_s: distance that the readings should have.
        samples: the sensors' readings from the last at or before ``begin_ns`` to the first at or after ``end_ns``, in
            order, as far as there are any.
        energy: of the window, by rail; one whose readings do not cover the window has no joules, and says why.
        rails: rails that have been read at any time on this machine.
        frames: pictures finished in the window; None for an idle baseline.
        fps_cap: as asked for; 0 is none.
        slope_c_per_min: how fast the fastest sensor moved at the end of the warm-up; None where nothing was read.
        other_load: share of all cores that other processes took; None where unknown.
        suspended_s: how long the machine slept.
        power_mode: number of nvpmodel that was asked for. modes: what the board said before and after; None where it
            does not say.
    """

    begin_ns: int
    end_ns: int
    interval_s: float
    samples: Sequence[Sample] = ()
    energy: Dict[str, RailEnergy] = field(default_factory=dict)
    rails: Sequence[str] = ()
    frames: Optional[int] = None
    fps_cap: float = 0.0
    slope_c_per_min: Optional[float] = None
    other_load: Optional[float] = None
    suspended_s: float = 0.0
    power_mode: Optional[int] = None
    modes: Tuple[Optional[str], Optional[str]] = (None, None)

    @property
    def window_s(self) -> float:
        return (self.end_ns - self.begin_ns) / 1e9

    @property
    def energy_j(self) -> Dict[str, float]:
        """Joules of the rails whose readings cover the window."""
        return {rail: energy.joules for rail, energy in self.energy.items() if energy.joules is not None}

    @property
    def is_idle(self) -> bool:
        return self.frames is None

    def inside(self) -> List[Sample]:
        """The readings within the window."""
        return [one for one in self.samples if self.begin_ns <= one.t_mono_ns <= self.end_ns]

    def since_begin(self) -> List[Sample]:
        """The readings that tell about the window: counters are read after what they count."""
        return [one for one in self.samples if one.t_mono_ns >= self.begin_ns]

    @property
    def has_sensors(self) -> bool:
        return any(readings.success for one in self.samples for readings in one.collectors.values())


def judge(evidence: Evidence, rules: Rules) -> List[Reason]:
    """Why a measurement is invalid; empty when it is valid."""
    return [reason for rule in RULES for reason in rule(evidence, rules)]


def notes(evidence: Evidence) -> List[Reason]:
    """What one should know about a measurement that may be valid all the same."""
    found = []
    if not evidence.energy_j:
        found.append(Reason("no_power", "no power was read: there are no watts and no joules"))
    if all(one.throttle is None for one in evidence.samples):
        found.append(Reason("throttling_unknown", "nothing on this machine tells whether it throttles"))
    if not evidence.is_idle and not watched(evidence.samples):
        found.append(Reason("temperature_unknown", "no temperature was read: it may have been rising"))
    if evidence.other_load is None:
        found.append(Reason("other_load_unknown", "what other processes took of the processor could not be read"))
    main = _main_domain(evidence)
    if main is not None and main not in pinned(evidence.samples):
        text = f"the clock of {main} was free to move: compare only with runs on the same board and mode"
        found.append(Reason("clocks_not_pinned", text))
    if evidence.frames is not None and evidence.fps_cap > 0:
        fps = evidence.frames / evidence.window_s
        if fps < _HELD * evidence.fps_cap:
            found.append(Reason("cap_not_reached", f"{fps:.1f} FPS: the limit of {evidence.fps_cap:g} was not reached"))
    return found


# ---- the rules: each gives its reasons, at most one of a kind ----------------------------------------------


def _too_short(evidence: Evidence, rules: Rules) -> Iterator[Reason]:
    if not evidence.is_idle and evidence.window_s < rules.min_measure_s:
        text = f"measured for {evidence.window_s:.1f} s, less than {rules.min_measure_s:g} s"
        yield Reason("too_short", text)


def _too_few_frames(evidence: Evidence, rules: Rules) -> Iterator[Reason]:
    if evidence.frames is not None and evidence.frames < rules.min_frames:
        yield Reason("too_few_frames", f"{evidence.frames} pictures, fewer than {rules.min_frames}: measure longer")


def _too_few_samples(evidence: Evidence, rules: Rules) -> Iterator[Reason]:
    least = rules.min_idle_samples if evidence.is_idle else rules.min_samples
    n = len(evidence.inside())
    if evidence.has_sensors and n < least:
        yield Reason("too_few_samples", f"{n} readings of the sensors, fewer than {least}")


def _sample_gap(evidence: Evidence, rules: Rules) -> Iterator[Reason]:
    """Between two readings, or between an edge of the window and the reading next to it."""
    if not evidence.has_sensors:
        return
    times = [evidence.begin_ns, *(one.t_mono_ns for one in evidence.inside()), evidence.end_ns]
    gap_s = float(np.max(np.diff(times))) / 1e9
    if gap_s > rules.max_gap_periods * evidence.interval_s:
        text = f"the sensors were not read for {gap_s:.1f} s, more than {rules.max_gap_periods:g} periods"
        yield Reason("sample_gap", text)


def _power_lost(evidence: Evidence, rules: Rules) -> Iterator[Reason]:
    lost = [rail for rail in evidence.rails if rail not in evidence.energy_j]
    if lost:
        known = evidence.energy.get(lost[0])
        why = f" ({known.invalid})" if known else ""
        yield Reason("power_lost", "no power over the whole window of {}{}".format(", ".join(lost), why))


def _power_method(evidence: Evidence, rules: Rules) -> Iterator[Reason]:
    for rail in evidence.energy_j:
        methods = sorted({one.power_w[rail].method for one in evidence.samples if rail in one.power_w})
        if len(methods) > 1:
            text = "{} was read in different ways ({}), which need not agree".format(rail, ", ".join(methods))
            yield Reason("power_method_changed", text)
            return


def _throttled(evidence: Evidence, rules: Rules) -> Iterator[Reason]:
    counts = throttle_counts(evidence) or {}
    if counts:
        causes = ", ".join(f"{cause} in {n} of {len(evidence.since_begin())} readings" for cause, n in counts.items())
        yield Reason("throttled", f"throttled: {causes}; cool it better, use a stronger supply or a lower mode")


def _clock_limits(evidence: Evidence, rules: Rules) -> Iterator[Reason]:
    limits: Dict[str, List[Tuple[float, float]]] = {}
    for one in evidence.samples:
        for domain, pair in one.clk_limits_hz.items():
            seen = limits.setdefault(domain, [])
            if pair not in seen:
                seen.append(pair)
    for domain, seen in limits.items():
        if len(seen) > 1:
            (_, old), (_, new) = seen[0], seen[1]
            if old == new:
                old, new = seen[0][0], seen[1][0]
            text = f"the limits of the clock of {domain} were changed ({old / 1e6:.0f} to {new / 1e6:.0f} MHz)"
            yield Reason("clock_limits_changed", text)
            return


def _clock_moved(evidence: Evidence, rules: Rules) -> Iterator[Reason]:
    for domain in pinned(evidence.samples):
        target = next(one.clk_limits_hz[domain][1] for one in evidence.samples if domain in one.clk_limits_hz)
        clocks = [one.clk_hz[domain] for one in evidence.inside() if domain in one.clk_hz]
        away = max(clocks, key=lambda hertz: abs(hertz - target), default=target)
        if abs(away - target) > rules.max_clock_change * target:
            text = f"the clock of {domain} is pinned to {target / 1e6:.0f} MHz and ran at {away / 1e6:.0f} MHz"
            yield Reason("clock_moved", text)
            return


def _not_settled(evidence: Evidence, rules: Rules) -> Iterator[Reason]:
    moved, most = evidence.slope_c_per_min, rules.max_temp_slope_c_per_min
    if moved is not None and abs(moved) > most:
        text = f"the temperature still moved by {moved:+.1f} C a minute at the start (limit {most:g})"
        yield Reason("not_settled", text)
    elif moved is None and watched(evidence.samples):
        text = f"the temperature was read fewer than {_SLOPE_POINTS} times before the start: whether it stood still is"
        yield Reason("not_settled", text + " not known; warm up longer, or lower telemetry.interval_s")


def _temp_drift(evidence: Evidence, rules: Rules) -> Iterator[Reason]:
    drifts = {}
    for sensor in watched(evidence.samples):
        values = [one.temp_c[sensor] for one in evidence.inside() if sensor in one.temp_c]
        n = -(-len(values) // 4)
        if n:
            drifts[sensor] = float(np.mean(values[-n:]) - np.mean(values[:n]))
    if drifts:
        sensor, drift = max(drifts.items(), key=lambda item: abs(item[1]))
        if abs(drift) > rules.max_temp_drift_c:
            text = f"{sensor} drifted by {drift:+.1f} C from the first to the last quarter"
            yield Reason("temperature_drift", f"{text} (limit {rules.max_temp_drift_c:g}): warm up longer")


def _other_load(evidence: Evidence, rules: Rules) -> Iterator[Reason]:
    share = evidence.other_load
    if share is not None and share > rules.max_other_load:
        text = f"other processes took {share:.0%} of the processor (limit {rules.max_other_load:.0%})"
        yield Reason("other_load", text + ": see top, and end them")


def _power_mode(evidence: Evidence, rules: Rules) -> Iterator[Reason]:
    before, after = evidence.modes
    if before is not None and after is not None and before != after:
        yield Reason("power_mode_changed", f"the power mode went from {before} to {after}")
    elif evidence.power_mode is not None and after is not None and after.split()[0] != str(evidence.power_mode):
        yield Reason("power_mode_changed", f"the board is in power mode {after}, not {evidence.power_mode}")


def _suspended(evidence: Evidence, rules: Rules) -> Iterator[Reason]:
    if evidence.suspended_s > _MAX_SUSPENDED_S:
        yield Reason("suspended", f"the machine slept for {evidence.suspended_s:.1f} s")


RULES: Tuple[Callable[[Evidence, Any], Iterator[Reason]], ...] = (
    _throttled,
    _clock_limits,
    _clock_moved,
    _not_settled,
    _temp_drift,
    _too_short,
    _too_few_frames,
    _too_few_samples,
    _sample_gap,
    _power_lost,
    _power_method,
    _other_load,
    _power_mode,
    _suspended,
)


# ---- what the rules, and the runner, look at ---------------------------------------------------------------


def throttle_counts(evidence: Evidence) -> Optional[Dict[str, int]]:
    """Cause -> readings that saw it; None where nothing can tell."""
    seen = [one.throttle for one in evidence.since_begin() if one.throttle is not None]
    if not seen:
        return None
    causes = sorted({cause for one in seen for cause in one})
    return {cause: sum(cause in one for one in seen) for cause in causes}


def pinned(samples: Sequence[Sample]) -> List[str]:
    """Clock domains that could only run at one frequency, the same in all readings."""
    limits: Dict[str, List[float]] = {}
    for one in samples:
        for domain, pair in one.clk_limits_hz.items():
            limits.setdefault(domain, []).extend(pair)
    return sorted(domain for domain, values in limits.items() if min(values) == max(values))


def _main_domain(evidence: Evidence) -> Optional[str]:
    domains = sorted({domain for one in evidence.samples for domain in one.clk_limits_hz})
    return "gpu" if "gpu" in domains else next(iter(domains), None)


def watched(samples: Sequence[Sample]) -> List[str]:
    """Temperature sensors that a judgement about heat may rest on."""
    names = list(dict.fromkeys(name for one in samples for name in one.temp_c))
    return [name for name in names if _OF_THE_CHIP.search(name)] or names


def slope(samples: Sequence[Sample]) -> Optional[float]:
    """Degrees a minute of the watched sensor that moves fastest, by least squares; None with fewer than 4 readings."""
    slopes = []
    for sensor in watched(samples):
        points = [(one.t_mono_ns / 6e10, one.temp_c[sensor]) for one in samples if sensor in one.temp_c]
        if len(points) >= _SLOPE_POINTS:
            minutes, degrees = np.asarray(points).T
            minutes = minutes - minutes.mean()
            slopes.append(float(minutes @ (degrees - degrees.mean()) / (minutes @ minutes)))
    return max(slopes, key=abs, default=None)
