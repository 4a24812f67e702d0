"""Prometheus metrics: what ``/metrics`` says.

Frames are counted as they are drawn; everything else is read when somebody asks, from what the daemon and its
telemetry know anyway. A value that is not known is an absent series, never 0 and never an old one.

The histograms are our own: a list and a sum under one lock. ``prometheus_client``'s lock each of theirs and take
three times as long for a frame with five stages (5.6 against 1.9 microseconds on a desktop), and this is in the loop.
"""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_left
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from edgegs.frame import Frame
from edgegs.telemetry.readings import ABSENT, USABLE, unique

#: Seconds. A frame that holds the beat of 60, 30 or 15 a second falls below 17, 34 or 67 ms.
FRAME_BUCKETS = (0.001, 0.002, 0.004, 0.008, 0.012, 0.017, 0.025, 0.034, 0.05, 0.067, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
#: Seconds: from the ranges of a small scene on a large GPU to the reference renderer.
STAGE_BUCKETS = (2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
#: Figures of a window that ended longer ago than this, or three of its lengths, are not shown as today's, seconds.
STALE_S = 15.0

#: Facts of the status that become labels of edgegs_build_info.
_BUILD_FACTS = ("version", "backend", "variant", "device", "image")


class _Histogram:
    """Counts of durations by bucket, and their sum in seconds."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        if 0.0 <= seconds < 1e9:  # not NaN or infinite, which would stay in the sum for ever
            self._counts[bisect_left(self._bounds, seconds)] += 1
            self._sum += seconds

    def cumulative(self) -> Tuple[List[Tuple[str, float]], float]:
        """[(upper bound, count up to it)], sum."""
        buckets, total = [], 0
        for bound, count in zip((*self._bounds, float("inf")), self._counts):
            total += count
            buckets.append(("+Inf" if bound == float("inf") else repr(bound), float(total)))
        return buckets, self._sum


class Metrics:
    """Counts frames, and says everything as Prometheus text. ``frame`` and ``render`` may be called from any thread.

    Args:
        status: the dict behind ``/status`` (facts, ``n_splats``, ``outputs``, perhaps ``gpu_memory_bytes``).
        snapshot: ``Telemetry.snapshot``, or None where there is no telemetry.
        proc: where proc is mounted.
    """

    def __init__(
        self,
        status: Callable[[], Dict[str, Any]],
        snapshot: Optional[Callable[[], Dict[str, Any]]] = None,
        proc: str = "/proc",
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._status, self._snapshot = status, snapshot
        self._proc, self._clock_ns = proc, clock_ns
        self._lock = threading.Lock()  # guards the four below
        self._frames = 0
        self._redraws = 0
        self._frame_time = _Histogram(FRAME_BUCKETS)
        self._stage_times: Dict[str, _Histogram] = {}
        self._registry = CollectorRegistry()
        self._registry.register(_Families(self._collect))
        ProcessCollector(namespace="edgegs", proc=proc, registry=self._registry)

    def frame(self, frame: Frame) -> None:
        """Count one drawn frame, in microseconds."""
        with self._lock:
            self._frames += 1
            self._redraws += frame.redraws
            self._frame_time.add(frame.frame_ms / 1e3)
            for stage, milliseconds in frame.stage_ms.items():
                times = self._stage_times.get(stage)
                if times is None:
                    times = self._stage_times[stage] = _Histogram(STAGE_BUCKETS)
                times.add(milliseconds / 1e3)

    def render(self) -> bytes:
        """The whole exposition, text format 0.0.4."""
        return generate_latest(self._registry)

    # ---- the families ------------------------------------------------------------------------------------

    def _collect(self) -> Iterator[Metric]:
        status = self._status()
        snapshot = self._snapshot() if self._snapshot is not None else {}
        yield _build_info(status)
        yield from self._of_frames()
        yield from _of_outputs(status.get("outputs") or [])
        yield from self._of_sensors(snapshot)
        yield from _of_governor(status.get("governor"))
        yield from _of_log(snapshot.get("log"))
        yield from _known(
            "edgegs_config_last_reload_successful",
            "Whether the last new configuration was taken into use.",
            (status.get("last_reload") or {}).get("successful"),
        )
        if "device_faults" in status:
            yield CounterMetricFamily(
                "edgegs_device_faults", "Failures of the device that were survived.", status["device_faults"]
            )
        yield from _known("edgegs_scene_gaussians", "Splats of the scene that is drawn.", status.get("n_splats"))
        yield from _known(
            "edgegs_gpu_memory_bytes", "GPU memory that edgegs has allocated.", status.get("gpu_memory_bytes")
        )
        yield from _known("edgegs_process_threads", "Number of threads of the process.", self._n_threads())

    def _of_frames(self) -> Iterator[Metric]:
        frame = HistogramMetricFamily("edgegs_frame_duration_seconds", "Time from submission to the finished picture.")
        stage = HistogramMetricFamily("edgegs_stage_duration_seconds", "Time of a stage of a frame.", labels=["stage"])
        with self._lock:
            frames, redraws = self._frames, self._redraws
            frame.add_metric([], *self._frame_time.cumulative())
            for name, times in self._stage_times.items():
                stage.add_metric([_label(name)], *times.cumulative())
        yield CounterMetricFamily("edgegs_frames_rendered", "Frames drawn.", frames)
        yield CounterMetricFamily(
            "edgegs_frame_redraws", "Frames drawn again because the instance buffer had to grow.", redraws
        )
        yield frame
        if stage.samples:
            yield stage

    def _of_sensors(self, snapshot: Dict[str, Any]) -> Iterator[Metric]:
        window: Dict[str, Any] = snapshot.get("window") or {}
        age_s = (self._clock_ns() - window.get("t_mono_ns", 0)) / 1e9
        if age_s > max(STALE_S, 3 * window.get("window_s", 0.0)):
            window = {}
        totals = snapshot.get("totals") or {}
        sensors = snapshot.get("sensors") or {}
        power = {rail: figures["w"] for rail, figures in window.get("power_w", {}).items()}
        read = {
            name: state["state"] == USABLE for name, state in sensors.items() if state.get("state", ABSENT) != ABSENT
        }
        yield from _gauges("edgegs_power_watts", "Mean power of a rail over the last window.", "rail", power)
        yield from _counters(
            "edgegs_energy_joules", "Energy of a rail since the start.", "rail", totals.get("energy_j")
        )
        yield from _gauges("edgegs_temperature_celsius", "Temperature.", "sensor", window.get("temp_c"))
        yield from _gauges("edgegs_clock_hertz", "Clock frequency.", "domain", window.get("clk_hz"))
        yield from _gauges("edgegs_load_ratio", "Share of time at work, 0 to 1.", "domain", window.get("load"))
        yield from _counters(
            "edgegs_throttle_events", "Times that throttling began.", "cause", totals.get("throttle_events")
        )
        yield from _gauges(
            "edgegs_sensor_read_success", "Whether a group of sensors that is there could be read.", "sensor", read
        )

    def _n_threads(self) -> Optional[int]:
        try:
            return len(os.listdir(os.path.join(self._proc, "self", "task")))
        except OSError:
            return None


class _Families(Collector):
    """What a registry asks; describes nothing beforehand, so that registering asks nobody."""

    def __init__(self, collect: Callable[[], Iterator[Metric]]) -> None:
        self._collect = collect

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        return self._collect()


def _build_info(status: Dict[str, Any]) -> Metric:
    facts = {name: _label(status[name]) for name in _BUILD_FACTS if status.get(name)}
    return InfoMetricFamily("edgegs_build", "Which edgegs this is and what it draws with.", value=facts)


def _of_outputs(outputs: Sequence[Dict[str, Any]]) -> Iterator[Metric]:
    up = GaugeMetricFamily("edgegs_output_up", "Whether the output takes frames.", labels=["output"])
    written = CounterMetricFamily("edgegs_output_frames_written", "Frames delivered.", labels=["output"])
    reconnects = CounterMetricFamily("edgegs_output_reconnects", "Times opened again.", labels=["output"])
    dropped = CounterMetricFamily(
        "edgegs_frames_dropped",
        "Frames an output did not get: it was slow, or down.",
        labels=["output", "reason"],
    )
    names: List[str] = []
    for output in outputs:
        # one name twice would make two equal series, and Prometheus refuse them all
        names.append(unique(_label(output.get("name") or output.get("uri")), names))
        up.add_metric([names[-1]], 1.0 if output.get("state") == "up" else 0.0)
        written.add_metric([names[-1]], output.get("frames_written", 0))
        reconnects.add_metric([names[-1]], output.get("reconnects", 0))
        for reason, n in output.get("dropped", {}).items():
            dropped.add_metric([names[-1], _label(reason)], n)
    return (family for family in (up, written, reconnects, dropped) if family.samples)


def _of_governor(governor: Optional[Dict[str, Any]]) -> Iterator[Metric]:
    if governor is None:
        return
    yield from _known("edgegs_governor_rung", "Step of quality in use; 0 is the best.", governor["rung"])
    yield from _known("edgegs_governor_last_rung", "The lowest step of quality.", governor["of"])
    yield from _known("edgegs_governor_scale_ratio", "Drawn sides against the picture's.", governor["scale"])
    yield from _known("edgegs_governor_gaussians", "Splats that are drawn at most.", governor["n_splats"])
    yield from _known("edgegs_governor_sh_degree", "Degree of view-dependent colour.", governor["sh_degree"])
    yield from _known("edgegs_governor_fps_cap", "Most frames a second, where lowered.", governor["fps_cap"])
    yield from _counters("edgegs_governor_steps", "Changes of quality.", "direction", governor["steps"])
    limits = governor["limits"].items()
    bounds = {name: limit["bound"] for name, limit in limits}
    held = {name: limit["held"] for name, limit in limits if limit["state"] == "present"}
    yield from _gauges("edgegs_governor_limit", "What is to be held: FPS, watts, degrees Celsius.", "limit", bounds)
    yield from _gauges("edgegs_governor_limit_held", "Whether steps of quality suffice to hold it.", "limit", held)


def _of_log(log: Optional[Dict[str, Any]]) -> Iterator[Metric]:
    if log is not None:
        yield GaugeMetricFamily("edgegs_log_up", "Whether the run log can be written.", float(log.get("state") == "ok"))
        yield CounterMetricFamily(
            "edgegs_log_records_dropped", "Records that the run log lost.", log.get("dropped_records", 0)
        )


def _known(name: str, text: str, value: Optional[float]) -> Iterator[Metric]:
    if value is not None:
        yield GaugeMetricFamily(name, text, float(value))


def _gauges(name: str, text: str, label: str, values: Optional[Dict[str, Any]]) -> Iterator[Metric]:
    return _labelled(GaugeMetricFamily(name, text, labels=[label]), values)


def _counters(name: str, text: str, label: str, values: Optional[Dict[str, Any]]) -> Iterator[Metric]:
    return _labelled(CounterMetricFamily(name, text, labels=[label]), values)


def _labelled(family: Any, values: Optional[Dict[str, Any]]) -> Iterator[Metric]:
    for name, value in (values or {}).items():
        family.add_metric([_label(name)], float(value))
    if family.samples:
        yield family


def _label(value: Any) -> str:
    """Text that can be sent: a file name that is not UTF-8 must not end the whole exposition."""
    return str(value).encode("utf-8", "replace").decode("utf-8")
