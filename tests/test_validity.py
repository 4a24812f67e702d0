"""When a run of a sweep counts: every rule on its own, at its limit, and what it says."""

from __future__ import annotations

import dataclasses

import pytest

from edgegs.bench import validity
from edgegs.bench.campaign import Rules
from edgegs.bench.sweep_energy import Baselines, energy_fields, energy_of
from edgegs.bench.sweep_sensors import Load, figures, other_load, read_load, series
from edgegs.bench.validity import Evidence, judge, notes
from edgegs.telemetry.readings import ABSENT, UNREADABLE, USABLE, Power, Readings, Sample

RULES = Rules(min_measure_s=60.0)
S = 10**9
N = 121  # readings a second apart: one before the window, one at its end


def sample(second, **changes):
    """A quiet Nano at second ``second``; its clocks are pinned."""
    t_ns = int(second * S)
    one = Sample(t_ns, {"ina3221": Readings("ina3221", t_ns, USABLE)})
    one.power_w = {"POM_5V_IN": Power(5.0, "ina3221_iio"), "POM_5V_GPU": Power(2.0, "ina3221_iio")}
    one.power_t_ns = {"POM_5V_IN": t_ns, "POM_5V_GPU": t_ns}
    one.total_rail = "POM_5V_IN"
    one.temp_c = {"CPU-therm": 50.0, "GPU-therm": 48.0, "thermal-fan-est": 49.0}
    one.clk_hz = {"gpu": 921.6e6, "cpu0": 1479e6}
    one.clk_limits_hz = {"gpu": (921.6e6, 921.6e6), "cpu0": (102e6, 1479e6)}
    one.throttle = []
    for name, value in changes.items():
        setattr(one, name, value)
    return one


def evidence(samples=None, **changes):
    """A good measurement from second 0.5 to second 120."""
    samples = [sample(second) for second in range(N)] if samples is None else samples
    begin_ns, end_ns = changes.pop("begin_ns", S // 2), changes.pop("end_ns", 120 * S)
    known = {
        "energy": energy_of(samples, begin_ns, end_ns, 3.0),
        "rails": ["POM_5V_IN", "POM_5V_GPU"],
        "frames": 1200,
        "slope_c_per_min": 0.3,
        "other_load": 0.01,
        **changes,
    }
    return Evidence(begin_ns, end_ns, 1.0, samples, **known)


def with_change(at, **changes):
    return evidence([sample(second, **(changes if second in at else {})) for second in range(N)])


def codes(reasons):
    return [reason.code for reason in reasons]


def test_a_good_run_is_valid_and_has_nothing_to_say():
    assert judge(evidence(), RULES) == []
    assert notes(evidence()) == []


def lost(rails):
    kept = {rail: Power(5.0, "ina3221_iio") for rail in ("POM_5V_IN", "POM_5V_GPU") if rail not in rails}
    return with_change(range(30, 60), power_w=kept)


CASES = {
    "throttled": (with_change([60], throttle=["cooling:gpu-balanced"]), "cooling:gpu-balanced in 1 of 120 readings"),
    "clock_limits_changed": (
        with_change(range(60, N), clk_limits_hz={"gpu": (640e6, 640e6)}, clk_hz={"gpu": 640e6}),
        "gpu were changed (922 to 640 MHz)",
    ),
    "clock_moved": (with_change([60], clk_hz={"gpu": 844.8e6}), "pinned to 922 MHz and ran at 845 MHz"),
    "not_settled": (evidence(slope_c_per_min=-2.5), "moved by -2.5 C a minute"),
    "temperature_drift": (
        evidence([sample(second, temp_c={"CPU-therm": 50 + second / 20}) for second in range(N)]),
        "CPU-therm drifted by +4.5 C",
    ),
    "too_short": (evidence(end_ns=60 * S), "measured for 59.5 s, less than 60 s"),
    "too_few_frames": (evidence(frames=99), "99 pictures, fewer than 100"),
    "sample_gap": (
        evidence([sample(second) for second in range(N) if not 60 <= second < 64], rails=[]),
        "not read for 5.0 s",
    ),
    "power_lost": (lost(["POM_5V_GPU"]), "of POM_5V_GPU (no reading for 31 s"),
    "power_method_changed": (
        with_change(range(60, N), power_w={rail: Power(5.0, "jtop") for rail in ("POM_5V_IN", "POM_5V_GPU")}),
        "POM_5V_IN was read in different ways (ina3221_iio, jtop)",
    ),
    "other_load": (evidence(other_load=0.11), "other processes took 11% of the processor"),
    "power_mode_changed": (evidence(modes=("0 (MAXN)", "1 (5W)")), "went from 0 (MAXN) to 1 (5W)"),
    "suspended": (evidence(suspended_s=30.0), "slept for 30.0 s"),
}


@pytest.mark.parametrize("code", sorted(CASES))
def test_each_rule_finds_its_fault_and_only_that(code):
    one, words = CASES[code]
    (reason,) = judge(one, RULES)
    assert reason.code == code
    assert words in reason.text


def test_every_rule_has_a_case():
    tested = {code.replace("_changed", "").replace("temperature", "temp") for code in CASES} | {"too_few_samples"}
    names = {rule.__name__[1:] for rule in validity.RULES}
    assert names <= tested, names - tested


@pytest.mark.parametrize(
    "changes",
    [
        {"slope_c_per_min": 2.0},
        {"frames": 100},
        {"other_load": 0.1},
        {"other_load": None},
        {"suspended_s": 0.05},
        {"end_ns": 61 * S},
        {"modes": (None, "1 (5W)"), "power_mode": 1},
        {"modes": (None, None), "power_mode": 1},
    ],
)
def test_at_the_limit_and_where_nothing_is_known_a_run_is_valid(changes):
    assert judge(evidence(**changes), RULES) == []


def test_too_few_readings_are_told_where_there_are_sensors_at_all():
    few = [sample(second) for second in (0, 30, 60, 90, 120)]
    slow = dataclasses.replace(evidence(few), interval_s=30.0)
    slow = dataclasses.replace(slow, energy=energy_of(few, S // 2, 120 * S, 90.0))
    assert codes(judge(slow, RULES)) == ["too_few_samples"]
    nothing = [Sample(second * S, {"thermal": Readings("thermal", 0, ABSENT)}) for second in (0, 120)]
    assert judge(evidence(nothing, rails=[], slope_c_per_min=None), RULES) == []


def test_an_idle_baseline_needs_no_pictures_and_fewer_readings():
    short = evidence(frames=None, end_ns=31 * S)
    assert judge(short, RULES) == []
    assert codes(judge(dataclasses.replace(short, end_ns=20 * S), RULES)) == ["too_few_samples"]


def test_what_began_before_the_run_does_not_count_and_what_is_told_after_it_does():
    before = [sample(0, throttle=["oc_alarm"]), *(sample(second) for second in range(1, N))]
    assert judge(evidence(before), RULES) == []
    after = [*(sample(second) for second in range(N)), sample(N, throttle=["oc_alarm"])]
    assert codes(judge(evidence(after), RULES)) == ["throttled"]


def test_a_mode_that_is_not_the_one_asked_for():
    assert codes(judge(evidence(power_mode=1, modes=("0 (MAXN)", "0 (MAXN)")), RULES)) == ["power_mode_changed"]
    assert judge(evidence(power_mode=1, modes=("1 (5W)", "1 (5W)")), RULES) == []
    assert codes(judge(evidence(power_mode=1, modes=("10", "10")), RULES)) == ["power_mode_changed"]


def test_a_start_that_nobody_could_judge_is_not_settled():
    """Temperatures are read, but so seldom that their slope before the start is not known."""
    (reason,) = judge(evidence(slope_c_per_min=None), RULES)
    assert reason.code == "not_settled"
    assert "fewer than 4 times" in reason.text
    blind = evidence([sample(second, temp_c={}) for second in range(N)], slope_c_per_min=None)
    assert judge(blind, RULES) == []
    assert codes(notes(blind)) == ["temperature_unknown"]


def test_several_faults_are_all_told():
    one = evidence(frames=1, other_load=0.9, slope_c_per_min=9.0)
    assert codes(judge(one, RULES)) == ["not_settled", "too_few_frames", "other_load"]


def test_no_power_at_all_is_a_note_and_losing_it_is_a_fault():
    without = [sample(second, power_w={}, power_t_ns={}) for second in range(N)]
    assert judge(evidence(without, rails=[]), RULES) == []
    assert codes(notes(evidence(without, rails=[]))) == ["no_power"]
    assert codes(judge(evidence(without), RULES)) == ["power_lost"]


def test_notes():
    free = [sample(second, clk_limits_hz={"gpu": (76.8e6, 921.6e6)}) for second in range(N)]
    assert codes(notes(evidence(free))) == ["clocks_not_pinned"]
    blind = [sample(second, throttle=None, temp_c={}) for second in range(N)]
    expected = ["throttling_unknown", "temperature_unknown", "other_load_unknown"]
    assert codes(notes(evidence(blind, slope_c_per_min=None, other_load=None))) == expected
    assert codes(notes(evidence(fps_cap=30.0))) == ["cap_not_reached"]
    assert notes(evidence(fps_cap=10.0)) == []


def test_only_sensors_of_the_chip_are_watched_where_there_are_some():
    assert validity.watched([sample(0)]) == ["CPU-therm", "GPU-therm"]
    names = {"nvme:Composite": 1.0, "wifi": 2.0}
    assert validity.watched([sample(0, temp_c=names)]) == list(names)
    assert validity.watched([sample(0, temp_c={"tj-thermal": 1.0, "adjust": 2.0})]) == ["tj-thermal"]


def test_slope_is_degrees_a_minute_of_the_fastest():
    courses = [{"CPU-therm": 50 + second / 30, "GPU-therm": 50 - second / 20} for second in range(20)]
    rising = [sample(second, temp_c=course) for second, course in enumerate(courses)]
    assert validity.slope(rising) == pytest.approx(-3.0)
    assert validity.slope(rising[:3]) is None
    assert validity.slope([]) is None


def test_figures_of_a_window():
    samples = [sample(second, temp_c={"CPU-therm": 50.0 + (second > 60)}) for second in range(N)]
    samples[5].power_w = {}  # one reading is missing
    got = figures(evidence(samples))
    assert got["samples"] == 120
    assert got["power"]["POM_5V_IN"] == {
        "mean_w": 5.0,
        "sd_w": 0.0,
        "min_w": 5.0,
        "max_w": 5.0,
        "n": 119,
        "energy_j": pytest.approx(5.0 * 119.5, abs=1e-3),
        "method": "ina3221_iio",
    }
    assert got["temp_c"]["CPU-therm"] == {"start": 50.0, "end": 51.0, "min": 50.0, "max": 51.0, "mean": 50.5}
    assert got["pinned"] == ["gpu"]
    assert got["clk_limits_hz"]["cpu0"] == [102e6, 1479e6]
    assert got["throttle"] == {}


def test_series_have_equal_columns_and_gaps_are_none():
    samples = [sample(second) for second in range(4)]
    samples[2].power_w = {}
    pictures = [int(second * S) for second in (0.5, 1.0, 1.5, 2.9)]
    got = series(samples, 1 * S, pictures)
    assert got["t_s"] == [-1.0, 0.0, 1.0, 2.0]
    assert got["power_w"]["POM_5V_IN"] == [5.0, 5.0, None, 5.0]
    assert got["fps"] == [None, 2.0, 1.0, 1.0]
    assert got["throttle"] == [[], [], [], []]
    assert "fps" not in series(samples, 0, [])


def test_energy_of_a_picture_whole_and_above_idle():
    one = evidence()
    idle = {"idle_id": "idle-1", "power": {"POM_5V_IN": {"mean_w": 2.0, "sd_w": 0.1, "n": 60}}}
    got = energy_fields(one, "POM_5V_IN", idle, {"sort": 50.0, "rasterize": 50.0})
    assert (got["rail"], got["mean_w"], got["idle_w"], got["idle_id"]) == ("POM_5V_IN", 5.0, 2.0, "idle-1")
    assert got["j_per_frame"] == pytest.approx(5.0 * 119.5 / 1200, abs=1e-6)
    assert got["net_j_per_frame"] == pytest.approx(3.0 * 119.5 / 1200, abs=1e-6)
    assert got["net_j_spread"] == pytest.approx(0.1 * 119.5 / 1200, abs=1e-6)
    assert got["stage_j"] == {"sort": 250.0, "rasterize": 250.0, "between": pytest.approx(97.5)}
    assert "attribution" in got["stage_j_method"]
    assert energy_fields(one, "POM_5V_IN")["net_w"] is None
    assert energy_fields(one, "VDD_IN", idle) is None
    assert energy_fields(one, None, idle) is None
    idle = energy_fields(dataclasses.replace(one, frames=None), "POM_5V_IN", None)
    assert set(idle) == {"rail", "mean_w", "energy_j"}


def test_baselines_are_due_before_the_first_run_of_a_mode_and_when_they_are_old():
    now = [0.0]
    baselines = Baselines(3600.0, lambda: now[0])
    assert baselines.is_due(None)
    baselines.take(None, {"valid": True, "idle_id": "idle-1"})
    assert not baselines.is_due(None)
    assert baselines.is_due(1)
    now[0] = 3600.0
    assert baselines.is_due(None)
    assert baselines.of(None)["idle_id"] == "idle-1", "asking changes nothing"
    for left in (True, True, False):  # an invalid one is tried again, but not for ever
        baselines.take(None, {"valid": False})
        assert baselines.of(None) is None
        assert baselines.is_due(None) is left
    now[0] = 7200.0
    assert baselines.is_due(None)


def test_other_load_is_what_is_left_of_all_cores(tmp_path):
    assert other_load(Load(10.0, 5.0, 100.0), Load(20.0, 10.0, 120.0)) == 0.25
    assert other_load(Load(10.0, 5.0, 100.0), Load(12.0, 8.0, 120.0)) == 0.0
    assert other_load(None, Load(1, 1, 1)) is None
    assert other_load(Load(1, 1, 1), Load(1, 1, 1)) is None
    mine = read_load("/proc")
    assert mine is not None
    assert 0 < mine.own_s < mine.busy_s < mine.possible_s
    assert read_load(str(tmp_path)) is None


def test_a_collector_that_is_there_and_fails_is_no_sensor():
    one = sample(0, collectors={"ina3221": Readings("ina3221", 0, UNREADABLE)})
    assert not evidence([one], energy={}).has_sensors
