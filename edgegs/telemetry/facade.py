"""Telemetry as the daemon sees it: frames and events go in, records and a live snapshot come out."""

from __future__ import annotations

import collections
import logging
import threading
import time
from typing import Any, Callable, Deque, Dict, Optional, Union

from edgegs.frame import Frame
from edgegs.sinks.backoff import LogLimiter
from edgegs.telemetry import host
from edgegs.telemetry.board import identify
from edgegs.telemetry.energy import EnergyMeter, RailEnergy, record_fields
from edgegs.telemetry.history import History
from edgegs.telemetry.nvml import NvmlCollector
from edgegs.telemetry.power import rail_note
from edgegs.telemetry.reader import SensorReader
from edgegs.telemetry.readings import ABSENT, UNREADABLE, Sample
from edgegs.telemetry.recorder import Recorder
from edgegs.telemetry.sampler import Sampler
from edgegs.telemetry.sources import SOURCES, make_collectors, told
from edgegs.telemetry.window import StageWindow, WindowData

__all__ = ["SOURCES", "Telemetry", "make_collectors"]

log = logging.getLogger("edgegs.telemetry")

#: The wall clock was stepped when it moved this much against the monotonic one within a window (a clock
#: that is only slewed moves half a millisecond a second).
CLOCK_STEP_S = 0.25

#: Events that a snapshot shows.
_RECENT_EVENTS = 20

#: Samples after which a source that was asked for should have answered.
_PATIENCE = 5

#: Kinds of values whose source is watched: where it changes, that is an event.
_WATCHED = {"power_w": "power", "temp_c": "temperatures", "clk_hz": "clocks", "load": "load"}


class Telemetry:
    """Samples sensors, sums up frames by window, and records both side by side.

    Args:
        sysfs_root: where sysfs is mounted. source: one of ``SOURCES``; see ``make_collectors``.
        interval_s: length of a window and distance of the sensors' readings.
        log_dir: folder of the runs; None records nothing. max_mb, rotate_mb, flush_s, min_free_mb: see
            ``Recorder``. A disk that is not there yet is tried again and again; see ``snapshot``.
        read_timeout_s: how long a sensor may take before it is left alone.
        nv_tegra_release, nvpmodel_status, nvpmodel_conf: where Jetson Linux says what it is.
        tegrastats, connect_jtop: as of ``make_collectors``.

    Raises:
        ConfigError: unknown source.

    ``frame``, ``dropped``, ``event``, ``snapshot`` and ``history`` may be called from any thread, take microseconds and
    never raise for want of a sensor or a disk.
    """

    def __init__(
        self,
        sysfs_root: str = "/sys",
        source: str = "auto",
        interval_s: float = 1.0,
        log_dir: Optional[str] = None,
        max_mb: float = 256.0,
        rotate_mb: float = 16.0,
        flush_s: float = 10.0,
        min_free_mb: float = 64.0,
        read_timeout_s: float = 0.5,
        nv_tegra_release: str = "/etc/nv_tegra_release",
        nvpmodel_status: str = "/var/lib/nvpmodel/status",
        nvpmodel_conf: str = "/etc/nvpmodel.conf",
        wall_ns: Callable[[], int] = time.time_ns,
        tegrastats: str = "tegrastats",
        connect_jtop: Optional[Callable[[float], Any]] = None,
    ) -> None:
        self.board = identify(sysfs_root, nv_tegra_release, nvpmodel_status, nvpmodel_conf)
        reader = SensorReader(read_timeout_s)
        collectors = make_collectors(source, sysfs_root, reader, self.board, interval_s, tegrastats, connect_jtop)
        self._source, self._collectors = source, collectors
        self._interval_s = interval_s
        self._wall_ns = wall_ns
        self._sampler = Sampler(collectors, interval_s, self._cut, self._sampled, reader)
        self._window = StageWindow()
        self._energy = EnergyMeter(max_gap_s=3 * interval_s)
        self._changes = LogLimiter()
        self._n_samples = 0
        self._history = History()
        self._closed: Optional[WindowData] = None
        self._clock_offset: Optional[int] = None
        self._previous: Optional[Sample] = None
        self._started_ns = 0
        self._begun = False

        self._lock = threading.Lock()  # guards what snapshot() shows
        self._info: Dict[str, Any] = {}
        self._latest: Dict[str, Any] = {}
        self._sensors: Dict[str, Dict[str, Any]] = {}
        self._events: Deque[Dict[str, Any]] = collections.deque(maxlen=_RECENT_EVENTS)
        self._frames = 0
        self._redraws = 0
        self._dropped: Dict[str, Dict[str, int]] = {}
        self._energy_j: Dict[str, float] = {}
        self._throttled: Dict[str, int] = {}
        self._throttled_s: Dict[str, float] = {}
        self._running = False

        self._recorder: Optional[Recorder] = None
        if log_dir is not None:
            self._recorder = Recorder(
                log_dir,
                max_mb=max_mb,
                rotate_mb=rotate_mb,
                flush_s=flush_s,
                min_free_mb=min_free_mb,
                on_state=self._show_event,
            )

    @property
    def run_id(self) -> Optional[str]:
        """Name of the run in the log folder; None without a log, or as long as its disk is not there."""
        return (self._recorder.run_id or None) if self._recorder else None

    @property
    def log_path(self) -> Optional[str]:
        """The live log file; None without a log, or as long as its disk is not there."""
        return (self._recorder.path or None) if self._recorder else None

    def start(self, info: Dict[str, Any]) -> None:
        """Begin the run. ``info`` goes into the start record beside what telemetry finds out itself:
        scene (path, sha256, n_splats), config_hash, backend, variant, image, version, driver …
        """
        sample = self._sampler.sample()
        facts: Dict[str, Any] = dict(self.board.facts(), **host.versions())
        facts["interval_s"] = self._interval_s
        facts["source"] = self._source
        facts["sources"] = told(sample.sources)
        facts["sensors"] = _sensor_states(sample)
        if sample.total_rail:
            facts["total_rail"] = sample.total_rail
        notes = {rail: rail_note(rail) for rail in sample.power_w if rail_note(rail)}
        if notes:
            facts["rail_notes"] = notes
        facts["clk_limits_hz"] = sample.clk_limits_hz
        if "gpu" in sample.clk_limits_hz:
            low, high = sample.clk_limits_hz["gpu"]
            facts["gpu_clock_pinned"] = low == high
        facts.update(info)
        with self._lock:
            self._info = facts
            self._sensors = facts["sensors"]
            self._running = True
            self._throttled = dict.fromkeys(sample.throttle_known, 0)
            self._throttled.update({cause: 1 for cause in sample.throttle or []})
        self._previous = sample
        self._energy.take(sample)
        self._record("start", facts)
        for cause in sample.throttle or []:
            self.event("throttle_on", cause=cause)
        now = time.monotonic_ns()
        self._started_ns = now
        self._clock_offset = self._wall_ns() - now
        self._window.cut(now)
        self._sampler.start()

    def select_gpu(self, device: Union[int, str]) -> None:
        """Read the graphics card that draws: PCI bus id, UUID or NVML's number. Nothing happens where none is read."""
        for collector in self._collectors:
            if isinstance(collector, NvmlCollector):
                collector.select(device)

    def frame(self, frame: Frame) -> None:
        """Count one drawn frame with its stage times."""
        self._window.add(frame)

    def dropped(self, output: str, n: int = 1, reason: str = "slow") -> None:
        """Count ``n`` frames that an output did not get."""
        self._window.drop(output, n, reason)

    def event(self, kind: str, **fields: Any) -> None:
        """Record that something happened (an output failed, the configuration was reloaded …)."""
        self._record("event", dict(fields, kind=kind))
        self._show_event(kind, fields)

    def _show_event(self, kind: str, fields: Dict[str, Any]) -> None:
        shown = dict(fields, kind=kind, t_mono_ns=time.monotonic_ns(), t_wall=host.rfc3339(self._wall_ns()))
        with self._lock:
            self._events.append(shown)

    def snapshot(self) -> Dict[str, Any]:
        """The state now, for ``/status`` and the web page.

        Returns:
            ``run_id``, ``running``, ``uptime_s``, ``info`` (the start record's facts), ``window`` (the
            last window's record; empty before the first), ``sensors`` {collector: {state, cause}},
            ``totals`` {frames, redraws, dropped, energy_j, throttle_events, throttle_s}, ``events`` (newest last),
            ``log`` (``Recorder.status``) or None. Do not change what is inside. ``window.sources`` says where the
            window's values come from; see ``told``.
        """
        with self._lock:
            result = {
                "run_id": self.run_id,
                "running": self._running,
                "uptime_s": (time.monotonic_ns() - self._started_ns) / 1e9 if self._started_ns else 0.0,
                "info": self._info,
                "window": self._latest,
                "sensors": self._sensors,
                "totals": self._totals(),
                "events": list(self._events),
            }
        result["log"] = self._recorder.status() if self._recorder else None
        return result

    def history(self, after_s: Optional[float] = None) -> Dict[str, Any]:
        """The last minutes for the page: ``History.since``, ``total_rail`` where the board has one, and ``run``, which
        differs from one run to the next: monotonic times of different runs may not be compared.
        """
        with self._lock:
            total_rail = self._latest.get("total_rail")
        return dict(self._history.since(after_s), run=str(self._started_ns), total_rail=total_rail)

    def stop(self, reason: str = "stopped") -> None:
        """End the last window, write the stop record, close the log and end the threads."""
        if self._running:
            self._sampler.stop()
            with self._lock:
                self._running = False
                totals = self._totals()
            uptime = (time.monotonic_ns() - self._started_ns) / 1e9
            self._record("stop", dict(totals, reason=reason, uptime_s=round(uptime, 3)))
        if self._recorder is not None:
            self._recorder.close()

    # ---- the sampler's thread ----------------------------------------------------------------------

    def _cut(self, t_ns: int) -> None:
        """The window ends before the sensors are read, so that slow sensors do not lengthen it."""
        if self._begun:
            self._closed = self._window.cut(t_ns)
        self._begun = True  # the first tick comes at once and ends no window

    def _sampled(self, sample: Sample) -> None:
        self._tell_of_source(sample)
        self._energy.take(sample)
        self._watch(sample)
        data, self._closed = self._closed, None
        if data is None:
            return
        energies = self._energy.measure(data.begin_ns, data.end_ns)
        joules = {rail: one.joules for rail, one in energies.items() if one.joules is not None}
        record = data.summary()
        record.update(_sensor_fields(sample, energies))
        record["mem"] = host.memory()
        self._record("window", record, data.end_ns)
        self._history.add(data.end_ns, record)
        with self._lock:
            self._latest = dict(record, t_mono_ns=data.end_ns, t_wall=host.rfc3339(self._wall_ns()))
            self._sensors = _sensor_states(sample)
            self._frames += data.frames
            self._redraws += data.redraws
            for output, reasons in data.dropped.items():
                total = dict(self._dropped.get(output, {}))
                for cause, n in reasons.items():
                    total[cause] = total.get(cause, 0) + n
                self._dropped[output] = total
            for rail, energy in joules.items():
                self._energy_j[rail] = self._energy_j.get(rail, 0.0) + energy

    def _tell_of_source(self, sample: Sample) -> None:
        """Say once that a source which was asked for by name gives nothing, when it has had the time to."""
        self._n_samples += 1
        asked = sample.collectors.get(self._source)
        if self._n_samples == _PATIENCE and asked is not None and not asked.success:
            log.warning("telemetry.source %s gives nothing: %s", self._source, asked.cause or "it is not here")

    def _watch(self, sample: Sample) -> None:
        """Turn changes since the previous sample into events."""
        offset = self._wall_ns() - time.monotonic_ns()
        if self._clock_offset is not None and abs(offset - self._clock_offset) >= CLOCK_STEP_S * 1e9:
            self.event("clock_step", step_s=round((offset - self._clock_offset) / 1e9, 3))
        self._clock_offset = offset
        before, self._previous = self._previous, sample
        if before is None:
            return
        was, now = set(before.throttle or []), set(sample.throttle or [])
        passed_s = (sample.t_mono_ns - before.t_mono_ns) / 1e9
        with self._lock:
            for cause in sample.throttle_known:  # from 0 on: a counter that appears with its first event hides that one
                self._throttled.setdefault(cause, 0)
            for cause in now:
                self._throttled_s[cause] = self._throttled_s.get(cause, 0.0) + passed_s
            for cause in now - was:
                counted = sample.throttle_counts.get(cause, 1)
                self._throttled[cause] = self._throttled.get(cause, 0) + counted
            for cause in now & was:
                self._throttled[cause] = self._throttled.get(cause, 0) + sample.throttle_counts.get(cause, 0)
        for cause in sorted(now - was):
            self.event("throttle_on", cause=cause)
        for cause in sorted(was - now):
            self.event("throttle_off", cause=cause)
        for domain, limits in sample.clk_limits_hz.items():
            if before.clk_limits_hz.get(domain, limits) != limits:
                self.event("clock_limits", domain=domain, min_hz=limits[0], max_hz=limits[1])
        for name, readings in sample.collectors.items():
            old = before.collectors.get(name)
            if old is not None and old.state != readings.state:
                self.event("sensor", collector=name, state=readings.state, cause=readings.cause)
        self._watch_sources(told(before.sources), told(sample.sources), sample)

    def _watch_sources(self, was: Dict[str, str], now: Dict[str, str], sample: Sample) -> None:
        for kind, values in _WATCHED.items():
            old, new = was.get(kind), now.get(kind)
            if old == new:
                continue
            self.event("source", values=kind, source=new, before=old)
            of_old = [one for one in sample.collectors.values() if old == (one.source or one.collector)]
            causes = "; ".join(one.cause for one in of_old if one.state == UNREADABLE)
            cause = f" ({causes})" if causes else ""
            kept_back = self._changes.allow(time.monotonic()) if old is not None else None
            if kept_back is not None:
                log.warning("telemetry: %s from %s, no longer from %s%s", values, new or "nowhere", old, cause)

    def _record(self, kind: str, fields: Dict[str, Any], t_mono_ns: Optional[int] = None) -> None:
        if self._recorder is not None:
            self._recorder.write(kind, fields, t_mono_ns)

    def _totals(self) -> Dict[str, Any]:
        return {
            "frames": self._frames,
            "redraws": self._redraws,
            "dropped": {output: dict(reasons) for output, reasons in self._dropped.items()},
            "energy_j": {rail: round(joules, 3) for rail, joules in self._energy_j.items()},
            "throttle_events": dict(self._throttled),
            "throttle_s": {cause: round(seconds, 3) for cause, seconds in self._throttled_s.items()},
        }


def _sensor_fields(sample: Sample, energies: Dict[str, RailEnergy]) -> Dict[str, Any]:
    """The sensors' part of a window record; what is not known is left out.

    A rail's power is its mean over exactly the window: its energy divided by the window's length.
    """
    fields: Dict[str, Any] = {
        **record_fields(energies),
        "temp_c": {name: round(degrees, 2) for name, degrees in sample.temp_c.items()},
        "clk_hz": {name: int(hertz) for name, hertz in sample.clk_hz.items()},
        "load": {name: round(load, 3) for name, load in sample.load.items()},
        "ram_bytes": {name: int(size) for name, size in sample.ram_bytes.items()},
        "details": sample.details,
        "sources": told(sample.sources),
    }
    if sample.total_rail and sample.total_rail in fields.get("power_w", {}):
        fields["total_rail"] = sample.total_rail
    known = {name: value for name, value in fields.items() if value}
    if sample.throttle is not None:  # an empty list says that it was looked for and not seen
        known["throttle"] = sample.throttle
    return known


def _sensor_states(sample: Sample) -> Dict[str, Dict[str, Any]]:
    """{collector: {state, cause, failed, age_s}}; ``age_s`` of values that were sent to us before the tick."""
    states: Dict[str, Dict[str, Any]] = {}
    for name, readings in sample.collectors.items():
        states[name] = {"state": readings.state}
        if readings.cause and readings.state != ABSENT:
            states[name]["cause"] = readings.cause
        if readings.failed:
            states[name]["failed"] = dict(readings.failed)
        if readings.success and readings.t_mono_ns < sample.t_mono_ns:
            states[name]["age_s"] = round((sample.t_mono_ns - readings.t_mono_ns) / 1e9, 3)
    return states
