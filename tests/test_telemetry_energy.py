"""Energy of a window against integrals known in closed form; what a frame and a stage cost."""

from __future__ import annotations

import itertools
import math
import time
from pathlib import Path
from typing import Callable, List, Optional, Tuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgegs.frame import Frame
from edgegs.telemetry import Telemetry, read_log
from edgegs.telemetry.energy import (
    BETWEEN,
    EnergyMeter,
    FrameEnergy,
    Idle,
    Integral,
    RailEnergy,
    Segment,
    by_stage,
    idle_baseline,
    integrate,
    join,
    per_frame,
    rail_energy,
    record_fields,
)
from edgegs.telemetry.readings import Power, Sample
from edgegs.telemetry.window import MAX_FRAMES, StageWindow

SECOND = 10**9
#: A board that has been up for a year: nanoseconds no longer fit a float.
LATE = 400 * 86400 * SECOND + 1
GAP_S = 3.0


def ns(seconds: float) -> int:
    return LATE + round(seconds * 1e9)


def points(power: Callable[[float], float], seconds: float, step_s: float) -> List[Tuple[int, float]]:
    return [(ns(t), power(t)) for t in np.arange(0.0, seconds + step_s / 2, step_s)]


def measured(readings: List[Tuple[int, float]], begin_s: float, end_s: float, max_gap_s: float = GAP_S) -> Integral:
    return integrate(join(readings, max_gap_s), ns(begin_s), ns(end_s), max_gap_s)


# ---- the integral -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("begin", "end"), [(0.0, 10.0), (0.25, 9.75), (3.3, 3.4), (1.999999999, 2.000000001)])
def test_constant_power(begin: float, end: float) -> None:
    got = measured(points(lambda t: 5.0, 10, 1.0), begin, end)
    assert got == (pytest.approx(5.0 * (end - begin), rel=1e-6), 1.0, 0.0, "")


@pytest.mark.parametrize(("begin", "end"), [(0.0, 10.0), (0.25, 9.6), (2.0, 2.5), (4.4, 7.1)])
def test_a_ramp_is_exact_wherever_it_is_cut(begin: float, end: float) -> None:
    got = measured(points(lambda t: 2.0 + 0.7 * t, 10, 1.0), begin, end)
    expected = 2.0 * (end - begin) + 0.35 * (end**2 - begin**2)
    assert got.joules == pytest.approx(expected, rel=1e-9)


def test_a_step_costs_at_most_half_a_step_of_time() -> None:
    got = measured(points(lambda t: 2.0 if t < 5.05 else 9.0, 10, 0.1), 0.0, 10.0)
    exact = 2.0 * 5.05 + 9.0 * 4.95
    assert got.joules == pytest.approx(exact, abs=7.0 * 0.05 + 1e-9)
    # and it lies between the readings beside it, not smeared over the window
    assert measured(points(lambda t: 2.0 if t < 5.05 else 9.0, 10, 0.1), 0.0, 5.0).joules == pytest.approx(10.0)


def test_a_sine_converges() -> None:
    exact = 5.0 * 7.0 + 3.0 * (1 - math.cos(7.0))
    errors = [
        abs(measured(points(lambda t: 5.0 + 3.0 * math.sin(t), 7, step), 0.0, 7.0).joules - exact)
        for step in (0.5, 0.25, 0.125)
    ]
    assert errors[0] / errors[1] == pytest.approx(4.0, rel=0.1)  # of second order
    assert errors[1] / errors[2] == pytest.approx(4.0, rel=0.1)


@given(
    st.lists(st.tuples(st.floats(0.01, 2.9), st.floats(0.0, 50.0)), min_size=3, max_size=30),
    st.lists(st.floats(0.0, 1.0), min_size=1, max_size=5),
)
def test_windows_that_meet_add_up(steps: List[Tuple[float, float]], cuts: List[float]) -> None:
    times = np.cumsum([step for step, _ in steps])
    readings = [(ns(t), watts) for t, (_, watts) in zip(times, steps)]
    begin, end = readings[0][0], readings[-1][0]
    edges = sorted({begin, end, *(begin + round(cut * (end - begin)) for cut in cuts)})
    segments = join(readings, GAP_S)
    parts = [integrate(segments, a, b, GAP_S).joules for a, b in zip(edges, edges[1:])]
    assert math.fsum(parts) == pytest.approx(integrate(segments, begin, end, GAP_S).joules, rel=1e-9, abs=1e-9)


def test_readings_that_do_not_rise_in_time_are_left_out() -> None:
    readings = points(lambda t: 4.0, 5, 1.0)
    jumbled = [*readings[:3], (readings[1][0], 900.0), (readings[2][0], 900.0), *readings[3:]]
    assert measured(jumbled, 0.0, 5.0) == measured(readings, 0.0, 5.0)


# ---- holes ------------------------------------------------------------------------------------------


def without(readings: List[Tuple[int, float]], begin_s: float, end_s: float) -> List[Tuple[int, float]]:
    return [(t, watts) for t, watts in readings if not ns(begin_s) < t < ns(end_s)]


def test_a_missing_reading_is_bridged() -> None:
    readings = without(points(lambda t: 2.0 + t, 120, 1.0), 60.5, 62.5)  # 2.5 s are without
    got = measured(readings, 0.0, 120.0)
    assert (got.joules, got.invalid) == (pytest.approx(240 + 7200), "")


def test_a_hole_makes_the_window_invalid_with_the_reason() -> None:
    readings = without(points(lambda t: 5.0, 120, 1.0), 60.0, 64.0)
    got = measured(readings, 0.0, 120.0)
    assert got.joules is None
    assert got.invalid == "no reading for 4 s (limit 3 s)"
    assert (got.hole_s, got.coverage) == (4.0, pytest.approx(116 / 120))
    # the windows beside it are as good as ever
    assert measured(readings, 0.0, 60.0).joules == pytest.approx(300.0)
    assert measured(readings, 64.0, 120.0).joules == pytest.approx(280.0)


@pytest.mark.parametrize(
    ("first", "last", "invalid"),
    [
        (0.05, 10.0, ""),
        (0.0, 9.9, ""),
        (0.9, 10.0, ""),
        (1.2, 10.0, "readings cover 88% of the window (limit 90%)"),
        (0.0, 8.8, "readings cover 88% of the window (limit 90%)"),
        (0.6, 9.4, "readings cover 88% of the window (limit 90%)"),
        (4.0, 10.0, "no reading for 4 s (limit 3 s)"),
        (0.0, 5.0, "no reading for 5 s (limit 3 s)"),
        (20.0, 30.0, "no readings"),
    ],
)
def test_edges_without_readings(first: float, last: float, invalid: str) -> None:
    readings = [(ns(t), 6.0) for t in np.arange(first, last + 1e-6, (last - first) / 8)]
    got = measured(readings, 0.0, 10.0)
    assert got.invalid == invalid
    assert got.joules == (None if invalid else pytest.approx(60.0))  # a short edge counts as the rest did


def test_a_long_window_does_not_forgive_a_long_edge() -> None:
    assert measured(points(lambda t: 6.0, 120, 1.0), -4.0, 120.0).invalid == "no reading for 4 s (limit 3 s)"


@pytest.mark.parametrize("length", [0, -1])
def test_a_window_without_length(length: int) -> None:
    got = integrate(join(points(lambda t: 6.0, 5, 1.0), GAP_S), ns(2), ns(2) + length, GAP_S)
    assert got.joules is None
    assert got.invalid == "the window has no length"


def test_a_count_over_a_hole_counts_for_the_window_that_holds_it() -> None:
    step = [Segment(ns(0.0), 7.0, ns(10.0), 7.0)]
    assert integrate(step, ns(0.01), ns(10.01), GAP_S).joules == pytest.approx(70.0)
    # how much of it fell into these two is not known
    assert integrate(step, ns(0.0), ns(5.0), GAP_S).invalid == "no readings"
    assert integrate(step, ns(5.0), ns(10.0), GAP_S).joules is None


# ---- counter and integral ---------------------------------------------------------------------------


def whole(joules: Optional[float]) -> Integral:
    return Integral(joules, 1.0, 0.0, "" if joules is not None else "no readings")


@pytest.mark.parametrize(
    ("integral", "counter", "method", "expected"),
    [
        (100.0, 80.0, "nvml_instant", RailEnergy(80.0, 8.0, "nvml_counter", 80.0, 100.0, pytest.approx(0.25), "")),
        (None, 80.0, "nvml_instant", RailEnergy(80.0, 8.0, "nvml_counter", 80.0, None, None, "")),
        (100.0, None, "nvml_instant", RailEnergy(100.0, 10.0, "nvml_instant", None, 100.0, None, "")),
        (100.0, 0.0, "nvml_average", RailEnergy(100.0, 10.0, "nvml_average", 0.0, 100.0, None, "")),
        (None, 80.0, "rapl_counter", RailEnergy(80.0, 8.0, "rapl_counter", 80.0, None, None, "")),
        (None, None, "rapl_counter", RailEnergy(None, None, "rapl_counter", None, None, None, "no readings")),
    ],
)
def test_the_counter_is_preferred_and_the_disagreement_kept(integral, counter, method, expected) -> None:
    assert rail_energy(whole(integral), whole(counter), method, 10.0) == expected


def fed(meter: EnergyMeter, seconds: float, step_s: float, counter: Callable[[float], Optional[float]]) -> EnergyMeter:
    """A meter with 10 W instant power and a counter of joules since the start."""
    before: Optional[float] = None
    for t in np.arange(0.0, seconds + step_s / 2, step_s):
        now = counter(float(t))
        joules = now - before if now is not None and before is not None else None
        meter.add("gpu", ns(t), Power(10.0, "nvml_instant", joules))
        before = now
    return meter


def test_the_meter_takes_the_counter_and_says_how_far_the_integral_is_off() -> None:
    got = fed(EnergyMeter(GAP_S), 20, 1.0, lambda t: 9.5 * t).measure(ns(5.5), ns(15.5))["gpu"]
    assert got == RailEnergy(
        pytest.approx(95.0), pytest.approx(9.5), "nvml_counter", pytest.approx(95.0), pytest.approx(100.0),
        pytest.approx(100 / 95 - 1), "",
    )  # fmt: skip


def test_a_counter_that_counts_in_steps_adds_up() -> None:
    meter = fed(EnergyMeter(GAP_S), 10, 0.02, lambda t: 1.0 * int(t * 10 + 1e-6))
    got = meter.measure(ns(0.0), ns(10.0))["gpu"]
    assert got.joules == pytest.approx(100.0)
    assert got.disagreement == pytest.approx(0.0, abs=1e-6)


def test_a_counter_that_fails_on_the_way_leaves_the_integral() -> None:
    meter = fed(EnergyMeter(GAP_S), 20, 1.0, lambda t: 9.5 * t if t < 8 else None)
    got = meter.measure(ns(0.0), ns(20.0))["gpu"]
    assert (got.joules, got.method) == (pytest.approx(200.0), "nvml_instant")
    assert got.counter_j is None


def test_a_counter_that_misses_one_reading_counts_nothing_twice() -> None:
    meter = fed(EnergyMeter(GAP_S), 20, 1.0, lambda t: None if t == 10.0 else 9.5 * t)
    got = meter.measure(ns(0.0), ns(20.0))["gpu"]
    # two of twenty seconds have no count: the others stand for them
    assert got.joules == pytest.approx(9.5 * 20)


def test_a_rail_that_fell_silent_says_so() -> None:
    meter = fed(EnergyMeter(GAP_S), 5, 1.0, lambda t: None)
    assert meter.measure(ns(0.0), ns(5.0))["gpu"].joules == pytest.approx(50.0)
    got = meter.measure(ns(5.0), ns(9.0))
    assert (got["gpu"].joules, got["gpu"].invalid) == (None, "no readings")
    assert meter.measure(ns(9.0), ns(12.0))["gpu"].joules is None


def test_a_counters_own_power_is_not_held_against_it() -> None:
    meter = EnergyMeter(GAP_S)
    for second in range(6):
        meter.add("package-0", ns(second), Power(20.0, "rapl_counter", 20.0))
    got = meter.measure(ns(0.0), ns(5.0))["package-0"]
    assert (got.joules, got.method, got.integral_j, got.disagreement) == (100.0, "rapl_counter", None, None)
    for second in (6, 12, 13):
        meter.add("package-0", ns(second), Power(20.0, "rapl_counter", None))
    assert meter.measure(ns(5.0), ns(13.0))["package-0"].joules is None


def test_a_counter_that_was_set_to_zero_counts_from_there_on() -> None:
    """Its collector tells no joules of the period with the reset; those of the next one are of that one alone."""
    meter = EnergyMeter(GAP_S)
    for second in (0, 1, 2, 4, 5):  # it was set to zero between 2 and 3
        meter.add("package-0", ns(second), Power(20.0, "rapl_counter", 20.0))
    got = meter.measure(ns(3.0), ns(5.0))["package-0"]
    assert (got.joules, got.watts) == (pytest.approx(40.0), pytest.approx(20.0))


def test_a_value_that_was_sent_holds_until_the_samples_time_and_counts_once() -> None:
    meter = EnergyMeter(GAP_S)
    for tick, sent, watts in ((1.0, 0.9, 4.0), (2.0, 0.9, 4.0), (3.0, 2.1, 6.0)):
        sample = Sample(ns(tick), power_w={"VDD_IN": Power(watts, "jtop")}, power_t_ns={"VDD_IN": ns(sent)})
        meter.take(sample)
    got = meter.measure(ns(1.0), ns(3.0))["VDD_IN"]
    assert got.joules == pytest.approx(4.0 * 1.0 + 5.0 * 0.1 + 6.0 * 0.9)


def test_what_a_record_says_of_energies() -> None:
    meter = fed(EnergyMeter(GAP_S), 10, 1.0, lambda t: 9.5 * t)
    for second in (0, 1, 2, 3, 4, 9):
        meter.add("VDD_IN", ns(second), Power(4.0, "ina3221_hwmon"))
    for second in range(11):
        meter.add("VDD_CPU", ns(second), Power(1.0, "ina3221_hwmon"))
    assert record_fields(meter.measure(ns(0.0), ns(10.0))) == {
        "power_w": {"gpu": {"w": 9.5, "method": "nvml_counter"}, "VDD_CPU": {"w": 1.0, "method": "ina3221_hwmon"}},
        "energy_j": {"gpu": 95.0, "VDD_CPU": 10.0},
        "energy_off": {"gpu": 0.0526},
        "energy_invalid": {"VDD_IN": "no reading for 6 s (limit 3 s)"},
    }
    assert record_fields({}) == {}


def test_a_meter_that_runs_for_long_keeps_nothing() -> None:
    meter = EnergyMeter(GAP_S)
    for second in range(2000):
        meter.add("gpu", ns(second), Power(10.0, "nvml_instant", 10.0))
        meter.measure(ns(second - 1), ns(second))
    rail = meter._rails["gpu"]
    assert len(rail.integral) + len(rail.counter) <= 2


# ---- a frame ----------------------------------------------------------------------------------------


def test_a_baseline_has_a_spread() -> None:
    assert idle_baseline([3.0, 3.2, 3.4]) == Idle(pytest.approx(3.2), pytest.approx(0.2), 3)
    assert idle_baseline((2.0, 2.0)).spread_w == 0.0
    for bad in ([], [3.0], [3.0, math.nan], [3.0, math.inf], [3.0, -1.0]):
        with pytest.raises(ValueError, match="idle"):
            idle_baseline(bad)


def test_joules_a_frame_gross_and_net() -> None:
    # 120 s at 8 W, 25 frames a second, 3 W idle: 0.32 J a frame, of which 0.2 J are drawing
    got = per_frame(960.0, 120.0, 3000, Idle(3.0, 0.15, 5))
    assert got == FrameEnergy(pytest.approx(0.32), pytest.approx(0.2), pytest.approx(0.006))
    assert per_frame(960.0, 120.0, 3000) == FrameEnergy(pytest.approx(0.32), None, None)
    assert per_frame(960.0, 120.0, 0, Idle(3.0, 0.15, 5)) is None
    assert per_frame(300.0, 120.0, 3000, Idle(3.0, 0.15, 5)).net == pytest.approx(-0.02)  # not dressed up as 0


def test_stages_share_by_time_and_add_up() -> None:
    got = by_stage(100.0, 10.0, {"project": 1.0, "sort": 2.0, "rasterize": 5.0})
    assert got == {
        "project": pytest.approx(10.0),
        "sort": pytest.approx(20.0),
        "rasterize": pytest.approx(50.0),
        BETWEEN: pytest.approx(20.0),
    }
    overlapping = by_stage(100.0, 10.0, {"sort": 5.0, "rasterize": 15.0})
    assert overlapping == {"sort": pytest.approx(25.0), "rasterize": pytest.approx(75.0), BETWEEN: 0.0}
    assert by_stage(100.0, 10.0, {}) == {BETWEEN: 100.0}
    assert by_stage(0.0, 0.0, {}) == {}


def frame(**stages: float) -> Frame:
    return Frame(np.zeros((1, 1, 3), np.uint8), 0, 0, sum(stages.values()), stages)


def test_a_window_knows_the_time_of_its_stages() -> None:
    window = StageWindow(SECOND)
    window.add(frame(sort=4.0, project=1.0, own=0.5))
    window.add(frame(project=2.0, rasterize=10.0))
    data = window.cut(3 * SECOND)
    assert data.seconds == 2.0
    spent = data.stage_s()
    assert list(spent) == ["project", "sort", "rasterize", "own"]
    assert spent == {name: pytest.approx(s) for name, s in zip(spent, (0.003, 0.004, 0.010, 0.0005))}
    assert window.cut(4 * SECOND).stage_s() == {}


def test_frames_that_are_not_kept_count_as_the_others() -> None:
    window, one = StageWindow(0), frame(project=2.0)
    for _ in range(MAX_FRAMES + 1000):
        window.add(one)
    assert window.cut(SECOND).stage_s() == {"project": pytest.approx(2e-3 * (MAX_FRAMES + 1000))}


# ---- clocks -----------------------------------------------------------------------------------------


def test_a_wall_clock_that_is_stepped_changes_no_joule(tmp_path: Path) -> None:
    nano = Path(__file__).parent / "data" / "sysfs" / "nano"
    wall = itertools.cycle((1_700_000_000 * SECOND, 1_700_007_200 * SECOND))  # two hours to and fro with every look
    telemetry = Telemetry(
        sysfs_root=str(nano),
        source="sysfs",
        interval_s=0.02,
        log_dir=str(tmp_path / "runs"),
        min_free_mb=0.0,
        wall_ns=wall.__next__,
    )
    telemetry.start({})
    path, windows, deadline = telemetry.log_path, set(), time.monotonic() + 20
    while len(windows) < 6:
        assert time.monotonic() < deadline, "waited for 20 s"
        windows.add(telemetry.snapshot()["window"].get("t_mono_ns"))
        time.sleep(0.005)
    telemetry.stop("end")
    assert path is not None
    found = [record for record in read_log(path) if record["type"] == "window"]
    assert len(found) >= 5
    for one in found:
        assert one["power_w"]["POM_5V_IN"]["w"] == pytest.approx(5.084, abs=1e-3)
        assert one["energy_j"]["POM_5V_IN"] == pytest.approx(5.084 * one["window_s"], abs=1e-4)
