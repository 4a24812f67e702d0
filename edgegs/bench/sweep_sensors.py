"""The sensors of a sweep: read all the time by their own thread; any window's figures are asked for afterwards."""

from __future__ import annotations

import collections
import os
import threading
import time
from typing import Any, Callable, Deque, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from edgegs.bench import validity
from edgegs.bench.campaign import MAX_READINGS, Sensing
from edgegs.telemetry.board import Board
from edgegs.telemetry.power import rail_note
from edgegs.telemetry.reader import SensorReader
from edgegs.telemetry.readings import ABSENT, Sample
from edgegs.telemetry.sampler import Sampler
from edgegs.telemetry.sources import make_collectors, told

#: A temperature's course is judged over at least so many readings.
_SLOPE_SAMPLES = 10
#: Periods that are waited for the reading behind the end of a window.
_TAIL_PERIODS = 3
#: A sensor that does not answer for so long is left alone for that reading.
_READ_TIMEOUT_S = 0.5


class Load(NamedTuple):
    """Seconds of processor time since the boot: of all processes, of this one, and that all cores could give."""

    busy_s: float
    own_s: float
    possible_s: float


def read_load(proc_root: str) -> Optional[Load]:
    """The processor's counters now; None where /proc does not tell."""
    try:
        with open(os.path.join(proc_root, "stat"), encoding="ascii", errors="replace") as file:
            total = [int(word) for word in file.readline().split()[1:9]]
        with open(os.path.join(proc_root, "self", "stat"), encoding="utf-8", errors="replace") as file:
            own = file.read().rpartition(")")[2].split()
        ticks = float(os.sysconf("SC_CLK_TCK"))
        idle = total[3] + total[4]  # idle, iowait
        return Load((sum(total) - idle) / ticks, (int(own[11]) + int(own[12])) / ticks, sum(total) / ticks)
    except (OSError, ValueError, IndexError):
        return None


def other_load(before: Optional[Load], after: Optional[Load]) -> Optional[float]:
    """Share of all cores, 0 to 1, that other processes took in between; None where unknown."""
    if before is None or after is None or after.possible_s <= before.possible_s:
        return None
    others = (after.busy_s - before.busy_s) - (after.own_s - before.own_s)
    return min(1.0, max(0.0, others / (after.possible_s - before.possible_s)))


def suspended_ns() -> int:
    """Nanoseconds that the machine has slept since its boot."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()


class Surroundings(NamedTuple):
    """What must not change while something is measured; taken before and after.

    Attributes:
        load: processor time. slept_ns: that the machine slept since its boot. mode: the board's power mode.
    """

    load: Optional[Load]
    slept_ns: int
    mode: Optional[str]

    @classmethod
    def now(cls, proc_root: str, mode: Optional[str]) -> Surroundings:
        return cls(read_load(proc_root), suspended_ns(), mode)

    def changes(self, after: Surroundings) -> Dict[str, Any]:
        """Fields of ``validity.Evidence``."""
        return {
            "other_load": other_load(self.load, after.load),
            "suspended_s": (after.slept_ns - self.slept_ns) / 1e9,
            "modes": (self.mode, after.mode),
        }


class Sensors:
    """Reads the sensors every ``interval_s`` from ``start`` to ``stop`` and keeps what they said.

    Args:
        sensing: the campaign's ``telemetry``.
        board: whose sensors they are.
    """

    def __init__(self, sensing: Sensing, board: Board) -> None:
        self._sensing = sensing
        reader = SensorReader(_READ_TIMEOUT_S)
        collectors = make_collectors(sensing.source, sensing.sysfs_root, reader, board, sensing.interval_s)
        self._samples: Deque[Sample] = collections.deque(maxlen=MAX_READINGS + 100)
        self._lock = threading.Lock()
        self._sampler = Sampler(collectors, sensing.interval_s, None, self._take, reader)
        self.rails: List[str] = []

    def start(self) -> None:
        self._sampler.start()

    def stop(self) -> None:
        self._sampler.stop()

    def _take(self, sample: Sample) -> None:
        with self._lock:
            self._samples.append(sample)
            self.rails += [rail for rail in sample.power_w if rail not in self.rails]

    @property
    def latest(self) -> Optional[Sample]:
        """The newest reading; None before the first."""
        return self._sampler.latest

    def since(self, t_ns: int) -> List[Sample]:
        """The last reading at or before ``t_ns``, and all after it."""
        found: List[Sample] = []
        with self._lock:
            for sample in reversed(self._samples):
                found.append(sample)
                if sample.t_mono_ns <= t_ns:
                    break
        return found[::-1]

    def forget(self) -> None:
        """Let go of all readings but the newest."""
        with self._lock:
            while len(self._samples) > 1:
                self._samples.popleft()

    def covers(self, end_ns: int) -> bool:
        """Whether there is a reading behind the end of a window, or none is to be expected any more."""
        latest = self.latest
        if latest is not None and latest.t_mono_ns >= end_ns:
            return True
        return time.monotonic_ns() - end_ns > _TAIL_PERIODS * self._sensing.interval_s * 1e9

    def steadiness(
        self, least_s: float, most_s: float, max_slope_c_per_min: float
    ) -> Iterator[Tuple[bool, Optional[float]]]:
        """Asked again and again: whether to go on (the temperature is steady, or has had its time), and its slope."""
        began_ns = time.monotonic_ns()
        span_ns = int(max(least_s, _SLOPE_SAMPLES * self._sensing.interval_s) * 1e9)
        slope: Optional[float] = None
        seen: Optional[Sample] = None
        while True:
            now_ns = time.monotonic_ns()
            latest = self.latest
            if latest is not seen:
                seen = latest
                recent = [one for one in self.since(now_ns - span_ns) if one.t_mono_ns >= began_ns]
                slope = validity.slope(recent)
            is_steady = slope is not None and abs(slope) <= max_slope_c_per_min
            has_none = latest is not None and not latest.temp_c
            took_s = (now_ns - began_ns) / 1e9
            yield took_s >= most_s or (took_s >= least_s and (is_steady or has_none)), slope

    def rail(self) -> Optional[str]:
        """Whose watts count: as the campaign says; else the board's total, the GPU's own, or the only one."""
        if self._sensing.rail != "auto":
            return self._sensing.rail
        with self._lock:
            totals = [sample.total_rail for sample in self._samples if sample.total_rail]
        if totals:
            return totals[-1]
        if "gpu" in self.rails:
            return "gpu"
        return self.rails[0] if len(self.rails) == 1 else None

    def facts(self) -> Dict[str, Any]:
        """What there is to read, for the results."""
        sample = self.latest
        rail = self.rail()
        facts: Dict[str, Any] = {"interval_s": self._sensing.interval_s, "sensors": {}, "rail": rail}
        if rail is not None:
            facts["rail_note"] = rail_note(rail)
        if sample is not None:
            for name, readings in sample.collectors.items():
                if readings.state != ABSENT:
                    cause = {"cause": readings.cause} if readings.cause else {}
                    facts["sensors"][name] = dict(cause, state=readings.state)
            facts["clk_limits_hz"] = {domain: list(pair) for domain, pair in sample.clk_limits_hz.items()}
            facts["pinned"] = validity.pinned([sample])
        return facts

    def why_no_power(self) -> str:
        """What the collectors say about the missing watts."""
        if self._sensing.source == "none":
            return "telemetry.source is none"
        sample = self.latest
        causes = []
        for name, readings in (sample.collectors if sample else {}).items():
            if readings.state != ABSENT and readings.cause and not readings.success:
                causes.append(f"{name}: {readings.cause}")
        return "; ".join(causes) or "this machine has no power monitor that edgegs can read"


def figures(evidence: validity.Evidence) -> Dict[str, Any]:
    """What the sensors said within a window, summed up: ``power``, ``temp_c``, ``clk_hz``, ``load`` …"""
    inside = evidence.inside()
    power: Dict[str, Dict[str, Any]] = {}
    for rail, energy in evidence.energy.items():
        if energy.joules is None:
            continue
        watts = [one.power_w[rail].watts for one in inside if rail in one.power_w]
        power[rail] = {
            "mean_w": round(energy.joules / evidence.window_s, 5),
            "sd_w": round(float(np.std(watts, ddof=1)), 5) if len(watts) > 1 else None,
            "min_w": round(min(watts), 5) if watts else None,
            "max_w": round(max(watts), 5) if watts else None,
            "n": len(watts),
            "energy_j": round(energy.joules, 5),
            "method": energy.method,
        }
        if energy.counter_j is not None and energy.integral_j is not None:
            power[rail].update(counter_j=round(energy.counter_j, 5), integral_j=round(energy.integral_j, 5))
    limits: Dict[str, List[float]] = {}
    for one in evidence.samples:
        limits.update((domain, list(pair)) for domain, pair in one.clk_limits_hz.items())
    return {
        "samples": len(inside),
        "power": power,
        "temp_c": {name: _course(values) for name, values in _columns(inside, "temp_c")},
        "clk_hz": {name: _range(values) for name, values in _columns(inside, "clk_hz")},
        "clk_limits_hz": limits,
        "pinned": validity.pinned(evidence.samples),
        "load": {name: round(float(np.mean(values)), 4) for name, values in _columns(inside, "load")},
        "throttle": validity.throttle_counts(evidence),
        "sources": told(inside[-1].sources) if inside else {},
    }


def _columns(samples: Iterable[Sample], what: str) -> List[Tuple[str, List[float]]]:
    columns: Dict[str, List[float]] = {}
    for one in samples:
        for name, value in getattr(one, what).items():
            columns.setdefault(name, []).append(value)
    return list(columns.items())


def _range(values: Sequence[float]) -> Dict[str, float]:
    return {"min": min(values), "max": max(values), "mean": round(float(np.mean(values)), 3)}


def _course(values: Sequence[float]) -> Dict[str, float]:
    return dict({"start": values[0], "end": values[-1]}, **_range(values))


def series(samples: Sequence[Sample], begin_ns: int, pictures_ns: Sequence[int]) -> Dict[str, Any]:
    """The readings one by one, as columns of equal length; None where a value was not read.

    Args:
        begin_ns: from when ``t_s`` counts.
        pictures_ns: when each picture was finished, rising.
    """
    columns: Dict[str, Any] = {"t_s": [round((one.t_mono_ns - begin_ns) / 1e9, 3) for one in samples]}
    kinds: Tuple[Tuple[str, Callable[[Any], float]], ...] = (
        ("power_w", lambda power: round(power.watts, 4)),
        ("temp_c", lambda degrees: round(degrees, 2)),
        ("clk_hz", int),
        ("load", lambda load: round(load, 3)),
    )
    for kind, plain in kinds:
        names = dict.fromkeys(name for one in samples for name in getattr(one, kind))
        readings = [getattr(one, kind) for one in samples]
        columns[kind] = {
            name: [plain(values[name]) if name in values else None for values in readings] for name in names
        }
    columns["throttle"] = [one.throttle for one in samples]
    if pictures_ns:
        counts = np.searchsorted(np.asarray(pictures_ns), [one.t_mono_ns for one in samples], side="right")
        rates: List[Optional[float]] = [None]
        for before, after, n in zip(samples, samples[1:], np.diff(counts)):
            rates.append(round(float(n) / ((after.t_mono_ns - before.t_mono_ns) / 1e9), 3))
        columns["fps"] = rates[: len(samples)]
    return columns
