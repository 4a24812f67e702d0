"""Windows of frames, energy over a window, and the sampler's thread."""

from __future__ import annotations

import threading
from typing import Dict

import numpy as np
import pytest

from edgegs.frame import STAGES, Frame
from edgegs.telemetry.energy import EnergyMeter
from edgegs.telemetry.readings import Collector, Power, Readings
from edgegs.telemetry.sampler import Sampler
from edgegs.telemetry.window import MAX_FRAMES, StageWindow

IMAGE = np.zeros((1, 1, 3), np.uint8)
SECOND = 10**9


def frame(milliseconds: float, index: int = 0, **fields) -> Frame:
    stages = {stage: milliseconds * (number + 1) / 20 for number, stage in enumerate(STAGES)}
    return Frame(IMAGE, index, 0, milliseconds, stages, **fields)


def test_percentiles_are_numpys_and_by_stage() -> None:
    rng = np.random.default_rng(11)
    times = rng.gamma(4.0, 5.0, 137)
    window = StageWindow(5 * SECOND)
    for index, value in enumerate(times):
        window.add(frame(float(value), index, n_splats=1000, n_visible=index, n_instances=7, redraws=index % 2))
    got = window.cut(7 * SECOND).summary()
    assert (got["frames"], got["window_s"], got["fps"]) == (137, 2.0, 68.5)
    assert got["frame_ms"] == {
        "p50": pytest.approx(np.percentile(times, 50), abs=1e-3),
        "p95": pytest.approx(np.percentile(times, 95), abs=1e-3),
        "max": pytest.approx(times.max(), abs=1e-3),
        "mean": pytest.approx(times.mean(), abs=1e-3),
    }
    assert list(got["stage_ms"]) == list(STAGES)
    assert got["stage_ms"]["sort"]["p95"] == pytest.approx(np.percentile(times * 3 / 20, 95), abs=1e-3)
    assert (got["n_splats"], got["n_visible"], got["n_instances"], got["redraws"]) == (1000, 68, 7, 68)


def test_one_frame_is_all_its_percentiles() -> None:
    window = StageWindow(0)
    window.add(frame(40.0))
    got = window.cut(SECOND).summary()
    assert set(got["frame_ms"].values()) == {40.0}


def test_an_empty_window_has_no_times() -> None:
    got = StageWindow(0).cut(SECOND).summary()
    assert got == {"window_s": 1.0, "frames": 0, "fps": 0.0, "dropped": {}, "redraws": 0}


def test_a_window_starts_where_the_last_one_ended() -> None:
    window = StageWindow(SECOND)
    window.add(frame(1.0))
    window.drop("mjpeg", 2)
    window.drop("mjpeg", 3, "client")
    window.drop("display")
    first = window.cut(2 * SECOND).summary()
    assert first["dropped"] == {"mjpeg": {"slow": 2, "client": 3}, "display": {"slow": 1}}
    second = window.cut(5 * SECOND).summary()
    assert (second["window_s"], second["frames"], second["dropped"]) == (3.0, 0, {})


def test_frames_from_many_threads_are_all_counted() -> None:
    window = StageWindow(0)
    summaries = []

    def draw() -> None:
        for index in range(300):
            window.add(frame(1.0, index))
            window.drop("out")

    threads = [threading.Thread(target=draw) for _ in range(4)]
    for thread in threads:
        thread.start()
    for second in range(1, 30):
        summaries.append(window.cut(second * SECOND).summary())
    for thread in threads:
        thread.join()
    summaries.append(window.cut(30 * SECOND).summary())
    assert sum(one["frames"] for one in summaries) == 1200
    assert sum(one["dropped"].get("out", {}).get("slow", 0) for one in summaries) == 1200


def test_a_window_that_is_never_closed_stays_bounded() -> None:
    window = StageWindow(0)
    one = frame(1.0)
    for _ in range(MAX_FRAMES + 10):
        window.add(one)
    assert len(window._rows) == MAX_FRAMES
    assert window.cut(SECOND).summary()["frames"] == MAX_FRAMES + 10


# ---- energy -----------------------------------------------------------------------------------------


def joules(meter: EnergyMeter, begin_ns: int, end_ns: int) -> Dict[str, float]:
    measured = meter.measure(begin_ns, end_ns)
    return {rail: one.joules for rail, one in measured.items() if one.joules is not None}


def test_energy_is_the_trapezoid_clipped_to_the_window() -> None:
    meter = EnergyMeter(max_gap_s=3)
    for second, watts in ((0, 4.0), (1, 6.0), (2, 6.0), (3, 2.0)):
        meter.add("VDD_IN", second * SECOND, Power(watts, "x"))
    # 0.5..1: from 5 to 6 W; 1..2: 6 W; 2..2.5: from 6 to 4 W
    expected = 5.5 * 0.5 + 6.0 + 5.0 * 0.5
    assert joules(meter, SECOND // 2, 5 * SECOND // 2)["VDD_IN"] == pytest.approx(expected)
    assert joules(meter, 5 * SECOND // 2, 3 * SECOND)["VDD_IN"] == pytest.approx(3.0 * 0.5)


def test_neighbouring_windows_add_up_to_the_whole() -> None:
    rng = np.random.default_rng(3)
    whole, parts = EnergyMeter(3), EnergyMeter(3)
    times = np.cumsum(rng.integers(50_000_000, 150_000_000, 60))
    for t_ns, watts in zip(times, rng.uniform(3, 9, 60)):
        for meter in (whole, parts):
            meter.add("r", int(t_ns), Power(float(watts), "x"))
    edges = np.linspace(int(times[0]), int(times[-1]), 8).astype(np.int64)
    each = [joules(parts, int(a), int(b))["r"] for a, b in zip(edges, edges[1:])]
    assert sum(each) == pytest.approx(joules(whole, int(edges[0]), int(edges[-1]))["r"], rel=1e-9)


def test_a_gap_is_not_bridged() -> None:
    meter = EnergyMeter(max_gap_s=3)
    meter.add("r", 0, Power(5.0, "x"))
    meter.add("r", 4 * SECOND, Power(5.0, "x"))
    assert joules(meter, 0, SECOND) == {}
    meter.add("r", 5 * SECOND, Power(5.0, "x"))
    assert joules(meter, 4 * SECOND, 5 * SECOND) == {"r": pytest.approx(5.0)}


def test_a_counter_counts_its_own_energy_even_over_a_gap() -> None:
    meter = EnergyMeter(max_gap_s=3)
    meter.add("package-0", 0, Power(1.0, "rapl_counter"))
    meter.add("package-0", 10 * SECOND, Power(7.0, "rapl_counter", energy_j=70.0))
    assert joules(meter, 0, 10 * SECOND)["package-0"] == pytest.approx(70.0)


def test_the_first_milliseconds_of_a_run_do_not_cost_a_window_its_energy() -> None:
    meter = EnergyMeter(max_gap_s=3)
    meter.add("r", 20_000_000, Power(5.0, "x"))
    meter.add("r", SECOND + 10, Power(5.0, "x"))
    assert joules(meter, 0, SECOND)["r"] == pytest.approx(5.0)


# ---- the thread -------------------------------------------------------------------------------------


class Counting(Collector):
    name = "counting"

    def __init__(self) -> None:
        self.reads = 0
        self.closed = False
        self.enough = threading.Event()

    def _read(self, readings: Readings) -> None:
        self.reads += 1
        readings.state = "usable"
        readings.temp_c["t"] = float(self.reads)
        if self.reads >= 3:
            self.enough.set()

    def close(self) -> None:
        self.closed = True


def test_the_sampler_ticks_and_ends_with_a_last_tick() -> None:
    threads = set(threading.enumerate())
    collector = Counting()
    begun, seen = [], []
    sampler = Sampler([collector], 0.005, begun.append, seen.append)
    assert sampler.latest is None
    sampler.start()
    with pytest.raises(RuntimeError):
        sampler.start()
    assert collector.enough.wait(10)
    before = collector.reads
    assert sampler.stop()
    assert set(threading.enumerate()) == threads
    assert collector.closed
    assert collector.reads > before  # the tick that ends the last window
    assert len(begun) == len(seen) == collector.reads
    assert begun == sorted(begun)
    assert sampler.latest is seen[-1]
    assert all(start <= sample.t_mono_ns for start, sample in zip(begun, seen))


def test_a_stop_during_a_tick_still_ends_the_last_window() -> None:
    inside, go_on = threading.Event(), threading.Event()

    class Slow(Collector):
        name = "slow"

        def _read(self, readings: Readings) -> None:
            inside.set()
            go_on.wait(10)

    begun = []
    sampler = Sampler([Slow()], 3600, begun.append)
    sampler.start()
    assert inside.wait(10)
    stopper = threading.Thread(target=sampler.stop)
    stopper.start()
    assert sampler._stop.wait(10)  # stopped while the first tick reads its sensor
    go_on.set()
    stopper.join(10)
    assert not stopper.is_alive()
    assert len(begun) == 2  # frames drawn during the first tick are in a window, too


def test_the_sampler_outlives_a_callback_that_raises(caplog: pytest.LogCaptureFixture) -> None:
    collector = Counting()

    def fail(_: object) -> None:
        raise ValueError("no")

    sampler = Sampler([collector], 0.005, on_sample=fail)
    sampler.start()
    assert collector.enough.wait(10)
    assert sampler.stop()
    assert "telemetry tick failed" in caplog.text


@pytest.mark.parametrize("interval", [0, -1, float("nan")])
def test_an_interval_must_be_positive(interval: float) -> None:
    with pytest.raises(ValueError, match="interval_s"):
        Sampler([], interval)
