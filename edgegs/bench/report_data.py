"""What a telemetry log says, summed up record by record in bounded memory.

Logs come from disks that lost power and may come from strangers: every value is checked before use, what
does not fit is ignored, and no name or series grows without limit.
"""

from __future__ import annotations

import json
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Tuple

from edgegs.bench.report_series import (
    MAX_NAME,
    MAX_NAMES,
    Distribution,
    Extent,
    Rail,
    TimeBins,
    count,
    mapping,
    number,
    room,
)
from edgegs.frame import STAGES

#: Events kept with their text, and its length; all are counted.
MAX_EVENTS, MAX_DETAIL = 300, 300

#: Longer ladders of quality than this there are not.
MAX_RUNGS = 1000

#: A rise of the hottest sensor beyond this says that the run began before the board was warm.
SETTLED_C = 3.0

#: Shorter than this, a mean power is an anecdote.
MIN_POWER_S = 120.0


class Event(NamedTuple):
    """Something that happened ``t_s`` seconds after the run's start."""

    t_s: float
    kind: str
    detail: str


def _event(t_s: float, record: Dict[str, Any]) -> Event:
    hidden = ("schema", "type", "seq", "boot_id", "run_id", "t_mono_ns", "t_wall", "clock_synced", "kind")
    shown = [name for name in record if name not in hidden and record[name] is not None][:MAX_NAMES]
    detail = ", ".join(f"{name[:MAX_NAME]} {_plain(record[name])[:MAX_DETAIL]}" for name in shown)
    return Event(t_s, str(record.get("kind"))[:MAX_NAME], detail[:MAX_DETAIL])


def _plain(value: Any) -> str:
    """A value of an event as people write it."""
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else json.dumps(value)


class Governed:
    """What the governor did in a run.

    Attributes:
        rung: the step of quality in use. of: the last one there ever was: another scene may have more, or fewer.
        steps: how many there were, by direction.
        unheld, unmeasured: limits that could not be held at some time, or had no sensor.
    """

    def __init__(self) -> None:
        self.rung = self.of = 0
        self.steps = {"down": 0, "up": 0}
        self.unheld: Dict[str, None] = {}
        self.unmeasured: Dict[str, None] = {}

    def take(self, record: Dict[str, Any]) -> None:
        self.rung, self.of = count(record.get("rung")), max(self.of, count(record.get("of")))
        action, limit = record.get("action"), record.get("limit")
        if action in ("down", "up"):
            self.steps[action] += 1
        table = {"unheld": self.unheld, "limit_off": self.unmeasured}.get(str(action))
        if table is not None and isinstance(limit, str) and room(table, limit):
            table.setdefault(limit[:MAX_NAME])


class Run:
    """One run of a log, filled by ``take`` record by record."""

    def __init__(self, run_id: str, boot_id: str) -> None:
        self.run_id, self.boot_id = run_id, boot_id
        self.start: Dict[str, Any] = {}
        self.stop: Dict[str, Any] = {}
        self.windows = self.frames = self.redraws = 0
        self.seconds = 0.0
        self.dropped: Dict[str, Dict[str, int]] = {}
        self.frame = Distribution()
        self.stages: Dict[str, Distribution] = {}
        self.counts: Dict[str, Extent] = {}
        self.temps: Dict[str, Extent] = {}
        self.clocks: Dict[str, Extent] = {}
        self.rails: Dict[str, Rail] = {}
        self.total_rail: Optional[str] = None
        self.throttled: Dict[str, float] = {}
        self.throttled_s = 0.0
        self.throttle_known = False
        self.events: List[Event] = []
        self.n_events = 0
        self.governed: Optional[Governed] = None
        self.rss = Extent()
        self.rss_first: Optional[float] = None
        self.rss_last: Optional[float] = None
        self.bins = TimeBins()
        self.lost = 0
        self.gaps = 0
        self.wall_first = self.wall_last = ""
        self.synced: Optional[bool] = None
        self._origin: Optional[int] = None
        self._last_t: Optional[int] = None
        self._next_seq: Optional[int] = None

    def take(self, record: Dict[str, Any]) -> None:
        """Add one record."""
        t_ns = record.get("t_mono_ns")
        if isinstance(t_ns, bool) or not isinstance(t_ns, int) or not 0 <= t_ns < 1 << 63:
            return
        kind = record["type"]
        if record.get("repeated"):  # a rotated file says again what is running
            if not self.start:
                self.start = record
            return
        self._count_lost(record.get("seq"))
        if self._origin is None:
            seconds = number(record.get("window_s")) or 0.0
            self._origin = max(0, t_ns - int(min(max(seconds, 0.0), 1e6) * 1e9))
        t_s = (t_ns - self._origin) / 1e9
        wall = str(record.get("t_wall") or "")[:40]
        self.wall_first = self.wall_first or wall
        self.wall_last = wall or self.wall_last
        if isinstance(record.get("clock_synced"), bool):
            self.synced = record["clock_synced"]
        if kind == "start":
            self.start = record
        elif kind == "stop":
            self.stop = record
        elif kind == "event":
            self.n_events += 1
            if len(self.events) < MAX_EVENTS:
                self.events.append(_event(t_s, record))
            if record.get("kind") == "governor":
                self._governor(record)
        elif kind == "window":
            self._window(record, t_ns, t_s)

    def _governor(self, record: Dict[str, Any]) -> None:
        rung, of, before = (number(record.get(name)) for name in ("rung", "of", "before"))
        if rung is None or of is None or not 0 <= rung <= of <= MAX_RUNGS:
            return
        if self.governed is None:  # until its first record it was where that one began
            self.governed = Governed()
            self.bins.fill(("rung", ""), ("fps", ""), before if before is not None and 0 <= before <= of else rung)
        self.governed.take(record)

    def _count_lost(self, seq: Any) -> None:
        if isinstance(seq, bool) or not isinstance(seq, int):
            return
        if self._next_seq is not None and seq > self._next_seq:
            self.lost += min(seq - self._next_seq, 1 << 40)
        self._next_seq = seq + 1

    def _window(self, record: Dict[str, Any], t_ns: int, t_s: float) -> None:
        seconds = number(record.get("window_s"))
        if seconds is None or not 0 < seconds < 1e6:
            return
        interval = number(self.start.get("interval_s")) or seconds
        if self._last_t is not None and t_ns - self._last_t > 3e9 * interval:
            self.gaps += 1
        self._last_t = t_ns
        middle = max(0.0, t_s - seconds / 2)
        frames = count(record.get("frames"))
        self.windows += 1
        self.seconds += seconds
        self.frames += frames
        self.redraws += count(record.get("redraws"))
        self.bins.add(middle, ("fps", ""), frames / seconds, seconds)
        if self.governed is not None:
            self.bins.add(middle, ("rung", ""), self.governed.rung, seconds)
        for output, reasons in mapping(record.get("dropped")).items():
            if room(self.dropped, output):
                table = self.dropped.setdefault(output, {})
                for reason, n in mapping(reasons).items():
                    if room(table, reason):
                        table[reason] = table.get(reason, 0) + count(n)
        self._stages(record, frames, middle)
        self._sensors(record, frames, seconds, middle)

    def _stages(self, record: Dict[str, Any], frames: int, middle: float) -> None:
        mean = self.frame.add(mapping(record.get("frame_ms")), frames)
        if mean is None:
            return
        rest = mean
        for stage, figures in mapping(record.get("stage_ms")).items():
            if not room(self.stages, stage):
                continue
            stage_mean = self.stages.setdefault(stage, Distribution()).add(mapping(figures), frames)
            if stage_mean is not None:
                rest -= stage_mean
                self.bins.add(middle, ("stage", stage), stage_mean, frames)
        self.bins.add(middle, ("other", ""), max(0.0, rest), frames)
        self.bins.add(middle, ("p95", ""), number(record["frame_ms"].get("p95")) or 0.0, frames)
        for name in ("n_splats", "n_visible", "n_instances"):
            value = number(record.get(name))
            if value is not None and 0 <= value < 1e15:
                self.counts.setdefault(name, Extent()).add(value, frames)

    def _sensors(self, record: Dict[str, Any], frames: int, seconds: float, middle: float) -> None:
        for kind, source, table, limit in (
            ("temp", "temp_c", self.temps, 1e3),
            ("clk", "clk_hz", self.clocks, 1e12),
        ):
            for name, raw in mapping(record.get(source)).items():
                value = number(raw)
                if value is not None and abs(value) < limit and room(table, name):
                    table.setdefault(name, Extent()).add(value, seconds)
                    self.bins.add(middle, (kind, name), value, seconds)
        methods = mapping(record.get("power_w"))
        for name, raw in mapping(record.get("energy_j")).items():
            joules = number(raw)
            if joules is None or not 0 <= joules < 1e9 or not room(self.rails, name):
                continue
            rail = self.rails.setdefault(name, Rail())
            rail.method = str(mapping(methods.get(name)).get("method") or rail.method)[:MAX_NAME]
            rail.joules += joules
            rail.seconds += seconds
            rail.frames += frames
            rail.watts.add(joules / seconds, seconds)
            self.bins.add(middle, ("power", name), joules / seconds, seconds)
        if isinstance(record.get("total_rail"), str):
            self.total_rail = record["total_rail"][:MAX_NAME]
        causes = record.get("throttle")
        if isinstance(causes, list):
            self.throttle_known = True
            self.bins.add(middle, ("throttled", ""), 1.0 if causes else 0.0, seconds)
            self.throttled_s += seconds if causes else 0.0
            for cause in {str(one)[:MAX_NAME] for one in causes[:MAX_NAMES]}:
                if room(self.throttled, cause):
                    self.throttled[cause] = self.throttled.get(cause, 0.0) + seconds
        rss = number(mapping(record.get("mem")).get("rss_bytes"))
        if rss is not None and 0 < rss < 1e15:
            self.rss.add(rss, seconds)
            self.rss_first = rss if self.rss_first is None else self.rss_first
            self.rss_last = rss

    # ---- what follows from it ----------------------------------------------------------------------

    @property
    def fps(self) -> float:
        return self.frames / self.seconds if self.seconds > 0 else 0.0

    def stage_names(self) -> List[str]:
        """The pipeline's order first, whatever else the log has behind it."""
        known = [stage for stage in STAGES if stage in self.stages]
        return known + [stage for stage in self.stages if stage not in STAGES]

    def other_ms(self) -> float:
        """Mean milliseconds of a frame outside its stages."""
        return max(0.0, self.frame.mean - sum(stage.mean for stage in self.stages.values()))

    def total(self) -> Optional[Rail]:
        """The rail that is the board's total, where the board has one."""
        return self.rails.get(self.total_rail) if self.total_rail else None

    def rungs(self) -> Extent:
        """The governor's steps over the run, weighted by time."""
        whole = Extent()
        for extent in self.bins.curve("rung", "")[1]:
            whole.join(extent)
        return whole

    def power_doubts(self) -> List[str]:
        """Why the power figures are not fit for comparing; empty when nothing speaks against them."""
        if not self.rails:
            return []
        doubts = []
        if self.throttled_s > 0:
            causes = ", ".join(sorted(self.throttled))
            doubts.append(f"throttled for {self.throttled_s:.0f} of {self.seconds:.0f} s ({causes})")
        gpu = self.clocks.get("gpu")
        if self.start.get("gpu_clock_pinned") is True and gpu and gpu.high - gpu.low > 0.001 * gpu.high:
            doubts.append("the GPU clock moved although it was pinned")
        if self.gaps:
            doubts.append(f"gaps of more than three windows in the record: {self.gaps}")
        if self.seconds < MIN_POWER_S:
            doubts.append(f"only {self.seconds:.0f} s measured, fewer than {MIN_POWER_S:.0f}")
        rise = self._rise()
        if rise is not None and rise[1] > SETTLED_C:
            doubts.append("the start was not settled: {} rose by {:.1f} C".format(*rise))
        return doubts

    def _rise(self) -> Optional[Tuple[str, float]]:
        """The hottest sensor, and how far its mean of the last tenth lies above that of the first."""
        if not self.temps:
            return None
        hottest = max(self.temps, key=lambda name: self.temps[name].high)
        _, values = self.bins.curve("temp", hottest)
        tenth = max(1, len(values) // 10)
        first, last = Extent(), Extent()
        for value in values[:tenth]:
            first.join(value)
        for value in values[-tenth:]:
            last.join(value)
        return hottest, last.mean - first.mean


def load(records: Iterable[Dict[str, Any]]) -> List[Run]:
    """The runs in a stream of records, in the order of their first record; runs without a window, too."""
    runs: Dict[Tuple[str, str], Run] = {}
    for record in records:
        key = (str(record.get("run_id") or "?")[:MAX_NAME], str(record.get("boot_id") or "?")[:MAX_NAME])
        if key not in runs:
            if len(runs) >= MAX_NAMES:
                continue
            runs[key] = Run(*key)
        runs[key].take(record)
    return list(runs.values())
