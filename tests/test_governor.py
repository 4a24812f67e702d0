"""The governor on a simulated board: limits held, quality given back, no oscillation, whatever the board."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thermal_plant import CLOSED_CASE, CRITICAL_C, FAN, Plant, change, simulate

from edgegs.governor import Governor, Limits, board_power, build_ladder, hottest, rung_at
from edgegs.governor.control import URGENT_DWELL_S
from edgegs.governor.ladder import MIN_SPLATS, with_ceiling, work_ratio
from edgegs.governor.limits import FPS_TOLERANCE, FpsWatch, PowerWatch, TempWatch
from edgegs.pack.order import level_ends

N = 50_000
HOUR = 3600
#: A limit that looks ahead, with sensors of half degrees, goes over by no more than this, degrees.
OVERSHOOT_C = 1.0


def ladder_for(limits, loop_fps=30.0):
    return build_ladder(N, level_ends(N), 3, loop_fps, limits.target_fps)


def play(limits, seconds, script=None, **plant):
    ladder = ladder_for(limits, plant.get("loop_fps", 30.0))
    board = Plant(ladder[0].setting, **plant)
    governor = Governor(limits, ladder)
    return simulate(board, governor, seconds, script), board, governor


def assert_calm(run, per_hour=24, apart_s=180.0):
    """No more than so many steps in any hour, and no way there, back and there again within ``apart_s``."""
    for step in run.steps:
        assert len(run.steps_between(step["t_s"], step["t_s"] + HOUR)) <= per_hour
    turns = [b for a, b in zip(run.steps, run.steps[1:]) if a["action"] != b["action"]]
    for first, third in zip(turns, turns[2:]):
        assert third["t_s"] - first["t_s"] > apart_s, "it goes to and fro"


def assert_dwell(run):
    for a, b in zip(run.steps, run.steps[1:]):
        least = 30.0 if b["action"] == "up" else {"temp": URGENT_DWELL_S, "power": 6.0, "fps": 6.0}[b["limit"]]
        assert b["t_s"] - a["t_s"] >= least


def actions(run):
    return [(note["action"], note["limit"]) for note in run.notes]


# ---- the ladder -----------------------------------------------------------------------------------------


def test_each_rung_gives_up_one_thing_more_and_costs_more() -> None:
    ladder = build_ladder(300_000, level_ends(300_000), 3, 30.0, 25.0)
    assert ladder[0] == ((1.0, 300_000, 3, None), "", 0.0)
    fields = {"scale": "scale", "splats": "n_splats", "sh_degree": "sh_degree", "fps": "fps"}
    for before, rung in zip(ladder, ladder[1:]):
        old, new = before.setting._asdict(), rung.setting._asdict()
        changed = [name for name in old if old[name] != new[name]]
        assert changed == [fields[rung.axis]]
        assert (new[changed[0]] or 0) < (old[changed[0]] or math.inf)
        assert rung.cost > before.cost
        assert new["n_splats"] in level_ends(300_000)
    assert ladder[1].setting.fps == 25.0, "frames that nobody asked for go first"
    assert ladder[-1].setting.fps < 25.0, "those that somebody asked for go last"


@pytest.mark.parametrize(
    ("arguments", "axes"),
    [
        (dict(n_splats=N, levels=(N,), sh_degree=0, fps=30.0), {"scale", "fps"}),  # an order of place
        (dict(n_splats=0), {"scale", "fps"}),
        (dict(n_splats=300, levels=(256, 300), sh_degree=1, fps=30.0), {"scale", "sh_degree", "fps"}),
        (dict(n_splats=N, levels=level_ends(N), sh_degree=3, axes=("splats",)), {"splats"}),
        (dict(n_splats=N, levels=level_ends(N), sh_degree=3, axes=()), set()),
    ],
)
def test_the_ladder_has_the_axes_that_there_are(arguments, axes) -> None:
    ladder = build_ladder(**arguments)
    assert {rung.axis for rung in ladder[1:]} == axes
    assert all(rung.setting.n_splats in (arguments["n_splats"], *range(MIN_SPLATS, N)) for rung in ladder)
    governor = Governor(Limits(max_power_w=1.0), ladder)
    for second in range(200):
        governor.observe(float(second), 30.0, 20.0, 5.0)
    assert governor.rung == len(ladder) - 1


def test_a_loop_at_its_target_has_no_luxury_to_give_up() -> None:
    ladder = build_ladder(N, level_ends(N), 0, 25.0, 25.0)
    assert ladder[1].axis == "scale"
    assert [rung.setting.fps for rung in ladder if rung.axis == "fps"] == [20.0, 16.25, 12.5, 8.25]


def test_a_ceiling_lowers_all_rungs_but_the_first() -> None:
    ladder = build_ladder(N, level_ends(N), 3, 30.0)
    capped = with_ceiling(ladder, 15.0)
    assert capped[0] == ladder[0]
    for old, new in zip(ladder[1:], capped[1:]):
        assert new.setting.fps == (15.0 if old.setting.fps is None else pytest.approx(old.setting.fps / 2, abs=0.01))
        assert new.setting._replace(fps=None) == old.setting._replace(fps=None)
    caps = [[rung.setting.fps for rung in some if rung.axis == "fps"] for some in (ladder, with_ceiling(ladder, 90.0))]
    assert caps[0] == caps[1]


def test_work_ratios_are_of_pixels_and_splats() -> None:
    ladder = build_ladder(N, level_ends(N), 0, 30.0)
    for before, rung in zip(ladder, ladder[1:]):
        assert work_ratio(before.setting, rung.setting, 1.0, 0.2) >= work_ratio(before.setting, rung.setting, 0.7, 0.05)
        assert work_ratio(before.setting, rung.setting, 0.7, 0.05) >= 1.0


def test_another_ladder_is_entered_where_the_picture_costs_as_much() -> None:
    packed, plain = ladder_for(Limits()), build_ladder(N, (), 0, 30.0)
    for index, rung in enumerate(packed):
        found = rung_at(plain, rung.cost)
        assert plain[found].cost <= rung.cost
        assert found + 1 == len(plain) or plain[found + 1].cost > rung.cost
        assert rung_at(packed, rung.cost) == index


# ---- temperature ----------------------------------------------------------------------------------------


def test_a_cool_start_gives_nothing_up() -> None:
    run, board, _ = play(Limits(max_temp_c=80.0), HOUR)
    assert run.steps == []
    assert run.notes == []
    assert 50 < board.die_t < 60, "as warm as people's tegrastats lines are"


def test_the_plant_throttles_where_nothing_is_held() -> None:
    ladder = ladder_for(Limits())
    run = simulate(Plant(ladder[0].setting, ambient_c=45.0, sink_r=CLOSED_CASE), None, HOUR)
    assert run.column("clock").min() < 1
    assert 97 < run.column("temp_c")[-600:].mean() < CRITICAL_C


@pytest.mark.parametrize("ambient_c", [35.0, 45.0])
def test_hot_ambient_is_held_and_stays_so(ambient_c) -> None:
    run, board, governor = play(Limits(max_temp_c=80.0), 2 * HOUR, ambient_c=ambient_c, sink_r=CLOSED_CASE)
    assert run.column("temp_c").max() <= 80.0 + OVERSHOOT_C
    assert run.column("temp_c", HOUR).max() <= 80.5
    assert run.column("clock").min() == 1, "the board itself never had to throttle"
    assert run.steps[0]["reason"].endswith(" s"), "the first step looked ahead"
    assert run.column("temp_c")[int(run.steps[0]["t_s"])] < 80
    assert len(run.steps_between(HOUR)) <= 4, "a trial or two"
    assert_calm(run)
    assert_dwell(run)
    # nothing is given up in vain: two rungs better would be too hot in the end
    rung = max(0, governor.rung - 2)
    assert board.end_temp_c(governor.ladder[rung].setting) > 80 - 4 - 1


def test_fan_failure_and_repair() -> None:
    script = {1200: change(sink_r=CLOSED_CASE), 5400: change(sink_r=FAN)}
    run, _, governor = play(Limits(max_temp_c=80.0), 2 * HOUR, script, ambient_c=35.0, sink_r=FAN)
    assert run.steps_between(0, 1200) == []
    assert run.column("temp_c").max() <= 80.0 + OVERSHOOT_C
    assert sum(step["action"] == "up" for step in run.steps_between(1200, 5400)) <= 1, "one trial, perhaps"
    assert run.steps_between(5400)[0]["t_s"] < 5400 + 60, "a repaired fan is noticed at once"
    assert all(step["action"] == "up" for step in run.steps_between(5400))
    assert governor.rung == 0, "all quality is back"
    assert_calm(run)
    assert_dwell(run)


def test_what_cannot_be_held_is_said_once_and_the_lowest_rung_kept() -> None:
    run, _, governor = play(Limits(max_temp_c=80.0), HOUR, ambient_c=70.0, sink_r=CLOSED_CASE)
    assert governor.rung == len(governor.ladder) - 1
    assert actions(run) == [("unheld", "temp")]
    assert "nothing is left" in run.notes[0]["reason"]
    assert governor.status()["limits"]["temp"]["held"] is False
    assert_calm(run)


def test_what_could_not_be_held_is_told_when_it_is_again() -> None:
    script = {1800: change(ambient_c=25.0, sink_r=FAN)}
    run, _, governor = play(Limits(max_temp_c=80.0), HOUR, script, ambient_c=70.0, sink_r=CLOSED_CASE)
    assert actions(run) == [("unheld", "temp"), ("held", "temp")]
    assert governor.rung == 0


def test_what_could_not_be_held_is_not_held_again_because_its_sensor_vanished() -> None:
    script = {1800: change(temp_works=False)}
    run, _, governor = play(Limits(max_temp_c=80.0), HOUR, script, ambient_c=70.0, sink_r=CLOSED_CASE)
    assert actions(run) == [("unheld", "temp"), ("sensor_lost", "temp")]
    assert governor.status()["limits"]["temp"]["held"] is None


def test_what_could_not_be_held_is_not_held_again_because_nobody_looked() -> None:
    limits = Limits(max_temp_c=80.0)
    governor = Governor(limits, ladder_for(limits), 99)
    for second in (*range(60), *range(1000, 1060)):
        governor.observe(float(second), 30.0, 20.0, None, 95.0)
    assert [note["action"] for note in governor.notes()] == ["unheld"]


def test_far_above_the_limit_steps_are_large_and_quick() -> None:
    ladder = ladder_for(Limits(max_temp_c=80.0))
    governor = Governor(Limits(max_temp_c=80.0), ladder)
    steps = [governor.observe(float(t), 30.0, 20.0, None, 90.0) for t in range(60)]
    rungs = [step.rung for step in steps if step is not None]
    assert rungs[0] == 4
    assert len(rungs) >= 4


def test_a_line_through_noise_of_half_degrees_does_not_press() -> None:
    governor = Governor(Limits(max_temp_c=80.0), ladder_for(Limits(max_temp_c=80.0)))
    rng = np.random.default_rng(5)
    for second in range(HOUR):
        temp = round(2 * (78.6 + 0.2 * rng.standard_normal())) / 2
        assert governor.observe(float(second), 30.0, 20.0, None, temp) is None


# ---- frames a second ------------------------------------------------------------------------------------


def test_a_scene_that_doubles_its_work_and_halves_it_again() -> None:
    script = {600: change(work_ms=120.0), 1800: change(work_ms=58.0)}
    run, _, governor = play(Limits(target_fps=15.0), HOUR, script)
    assert run.steps_between(0, 600) == []
    assert run.column("fps", 660, 1800).min() >= FPS_TOLERANCE * 15
    assert governor.rung == 0
    assert run.steps[-1]["t_s"] < 1800 + 180, "back within minutes"
    assert_calm(run)
    assert_dwell(run)


def test_fewer_frames_are_no_help_to_frames_a_second() -> None:
    run, board, governor = play(Limits(target_fps=25.0), 600, work_ms=2000.0)
    assert governor.setting.fps == 25.0, "the cap at the target, and none below it"
    assert governor.rung < len(governor.ladder) - 1
    assert actions(run) == [("unheld", "fps")]
    assert board.fps() < 25


def test_noisy_rates_cost_a_step_or_two_but_no_quiet() -> None:
    run, _, _ = play(Limits(target_fps=25.0), HOUR, noise=0.1)
    clean, _, _ = play(Limits(target_fps=25.0), 600, noise=0.0)
    assert run.column("fps", 120).min() >= FPS_TOLERANCE * 25
    assert run.rows[-1]["rung"] <= clean.rows[-1]["rung"] + 2
    assert len(run.steps_between(120)) <= 4
    assert_calm(run, per_hour=10)


def test_a_loop_that_something_else_holds_up_keeps_its_picture() -> None:
    governor = Governor(Limits(target_fps=25.0), ladder_for(Limits(target_fps=25.0)))
    for second in range(300):
        assert governor.observe(float(second), 15.0, 12.0) is None
    (note,) = governor.notes()
    assert (note["action"], note["limit"]) == ("unheld", "fps")
    assert note["reason"].endswith("83.3 could be drawn: something else holds them up")
    assert governor.status()["limits"]["fps"]["held"] is False


def test_a_scene_that_becomes_more_work_is_not_something_else() -> None:
    governor = Governor(Limits(target_fps=20.0), ladder_for(Limits(target_fps=20.0)))
    for second in range(110):
        work_ms = 25.0 if second < 100 else 60.0
        governor.observe(float(second), min(20.0, 1000.0 / work_ms), work_ms)
    assert governor.rung > 0
    assert governor.notes() == []


def test_what_something_else_holds_up_gets_its_quality_back() -> None:
    governor = Governor(Limits(target_fps=25.0), ladder_for(Limits(target_fps=25.0)), 5)
    for second in range(600):
        governor.observe(float(second), 15.0, 12.0)
    assert governor.rung == 0


@pytest.mark.parametrize("look_s", [1.0, 3.0, 9.0])
def test_frames_that_take_seconds_are_governed_too(look_s) -> None:
    governor = Governor(Limits(target_fps=5.0), ladder_for(Limits(target_fps=5.0)))
    for second in np.arange(0.0, 200.0, look_s):
        governor.observe(second, 1 / look_s, 1000.0 * look_s)
    assert governor.rung > 3
    for second in np.arange(200.0, 3000.0, look_s):
        governor.observe(second, 5.0, 20.0)
    assert governor.rung == 0


def test_no_quality_is_given_back_while_no_frame_is_drawn() -> None:
    governor = Governor(Limits(target_fps=25.0), ladder_for(Limits(target_fps=25.0)), 5)
    for second in range(30):
        assert governor.observe(float(second), 25.0, 10.0) is None  # not for long enough yet
    for second in range(30, 60):
        assert governor.observe(float(second), None) is None
    assert governor.rung == 5


@pytest.mark.parametrize("swing_s", [20.0, 60.0, 180.0])
def test_a_camera_that_goes_round_does_not_take_the_governor_with_it(swing_s) -> None:
    run, _, _ = play(Limits(target_fps=18.0), 2 * HOUR, swing=0.4, swing_s=swing_s)
    assert_calm(run, per_hour=16, apart_s=90.0)
    assert len(run.steps_between(HOUR)) <= 6
    late = run.column("fps", HOUR)
    assert (late >= FPS_TOLERANCE * 18).mean() > 0.97


# ---- watts ----------------------------------------------------------------------------------------------


def test_watts_are_held() -> None:
    run, _, governor = play(Limits(max_power_w=6.0), 2 * HOUR)
    assert run.column("power_w", 60).max() <= 6.0 * 1.01
    assert run.column("power_w", HOUR).mean() > 5.0, "but not by far"
    before = run.column("fps", 0, 10).mean()
    assert governor.setting.fps == pytest.approx(before, rel=0.05), "what is saved does not go into more frames"
    assert_calm(run)
    assert_dwell(run)


def test_three_limits_at_once() -> None:
    script = {1200: change(sink_r=CLOSED_CASE), 5400: change(sink_r=FAN)}
    limits = Limits(target_fps=20.0, max_power_w=7.0, max_temp_c=75.0)
    run, _, _ = play(limits, 2 * HOUR, script, ambient_c=35.0, sink_r=FAN)
    assert {step["limit"] for step in run.steps if step["action"] == "down"} == {"fps", "power", "temp"}
    assert run.column("temp_c").max() <= 75.0 + OVERSHOOT_C
    assert run.column("power_w", 60).max() <= 7.0 * 1.01
    assert run.column("fps", 60).min() >= FPS_TOLERANCE * 20
    hot, cool = run.column("rung", 5390, 5400)[0], run.rows[-1]["rung"]
    assert cool < hot
    assert_calm(run)


def test_a_limit_that_may_step_now_does_not_wait_for_one_that_presses_more() -> None:
    limits = Limits(target_fps=20.0, max_temp_c=80.0)
    governor = Governor(limits, ladder_for(limits))
    steps = []
    for second in range(40):  # a degree too warm, frames a little too few
        step = governor.observe(float(second), 18.5, 54.0, None, 81.0)
        steps += [] if step is None else [(second, step.event["limit"])]
    assert [limit for _, limit in steps[:2]] == ["temp", "fps"]
    assert steps[1][0] - steps[0][0] < URGENT_DWELL_S


# ---- sensors --------------------------------------------------------------------------------------------


def test_a_lost_thermometer_holds_the_rung_and_says_so() -> None:
    script = {600: change(temp_works=False), 700: change(sink_r=FAN, ambient_c=20.0), 1800: change(temp_works=True)}
    run, _, governor = play(Limits(max_temp_c=80.0), HOUR, script, ambient_c=60.0, sink_r=CLOSED_CASE)
    assert run.steps_between(606, 1800) == [], "cool as it is, nobody knows"
    assert ("sensor_lost", "temp") in actions(run)
    assert ("sensor_back", "temp") in actions(run)
    assert actions(run).count(("sensor_lost", "temp")) == 1
    assert governor.rung == 0


def test_a_lost_thermometer_does_not_stop_the_other_limits() -> None:
    script = {100: change(temp_works=False), 300: change(work_ms=150.0)}
    run, _, _ = play(Limits(target_fps=15.0, max_temp_c=80.0), 900, script)
    assert run.steps_between(300)
    assert run.column("fps", 400).min() >= FPS_TOLERANCE * 15
    assert all(step["action"] == "down" for step in run.steps)


def test_a_board_without_a_power_sensor_says_so_and_holds_the_rest() -> None:
    run, _, governor = play(
        Limits(max_power_w=3.0, max_temp_c=80.0), 2 * HOUR, ambient_c=45.0, sink_r=CLOSED_CASE, power_works=False
    )
    assert actions(run) == [("limit_off", "power")]
    assert run.notes[0]["t_s"] < 20
    assert run.column("temp_c").max() <= 80.0 + OVERSHOOT_C
    limits = governor.status()["limits"]
    assert (limits["power"]["state"], limits["power"]["held"]) == ("absent", None)
    assert (limits["temp"]["state"], limits["temp"]["held"]) == ("present", True)


def test_nothing_counts_as_held_before_it_was_measured() -> None:
    limits = Limits(target_fps=20.0, max_power_w=6.0, max_temp_c=80.0)
    governor = Governor(limits, ladder_for(limits))
    assert [limit["held"] for limit in governor.status()["limits"].values()] == [None] * 3
    governor.observe(0.0, 30.0, 20.0, None, 50.0)
    held = {name: limit["held"] for name, limit in governor.status()["limits"].items()}
    assert held == {"temp": True, "power": None, "fps": True}


def test_quality_given_up_for_a_limit_that_nothing_measures_comes_back() -> None:
    limits = Limits(max_temp_c=80.0)
    governor = Governor(limits, ladder_for(limits), 3)  # as a reload leaves it
    for second in range(10 * 60):
        governor.observe(float(second), 30.0, 20.0)
    assert governor.rung == 0
    assert [note["action"] for note in governor.notes()] == ["limit_off"]


def test_a_power_sensor_that_comes_later_is_used() -> None:
    run, _, governor = play(Limits(max_power_w=6.0), 600, {100: change(power_works=True)}, power_works=False)
    assert actions(run) == [("limit_off", "power"), ("limit_on", "power")]
    assert governor.rung > 0


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_reading_that_is_no_number_is_no_reading(value) -> None:
    limits = Limits(target_fps=20.0, max_power_w=6.0, max_temp_c=80.0)
    governor = Governor(limits, ladder_for(limits))
    for second in range(60):
        assert governor.observe(float(second), value, value, value, value) is None
    assert {note["action"] for note in governor.notes()} == {"limit_off"}
    assert governor.status()["limits"]["temp"]["value"] is None


def test_only_a_rail_that_is_the_total_is_the_boards_power() -> None:
    rails = {"POM_5V_IN": {"w": 4.1}, "POM_5V_GPU": {"w": 1.2}}
    assert board_power({"power_w": rails, "total_rail": "POM_5V_IN"}) == 4.1
    assert board_power({"power_w": rails}) is None
    assert board_power({"power_w": {}, "total_rail": "POM_5V_IN"}) is None
    assert board_power({}) is None


def test_a_wireless_card_does_not_slow_the_picture() -> None:
    assert hottest({"CPU-therm": 58.5, "GPU-therm": 56.0, "iwlwifi": 71.0}) == 58.5
    assert hottest({"iwlwifi": 71.0}) == 71.0
    assert hottest({}) is None


# ---- time -----------------------------------------------------------------------------------------------


def test_an_observation_that_is_not_later_is_left_out() -> None:
    limits = Limits(max_temp_c=80.0)
    governor = Governor(limits, ladder_for(limits))
    for t in (5.0, 4.0, 5.0, -1.0):
        assert governor.observe(t, 30.0, 20.0, None, 95.0) is None
    assert governor.rung == 0


def test_after_a_gap_old_values_do_not_count() -> None:
    limits = Limits(target_fps=25.0)
    governor = Governor(limits, ladder_for(limits))
    for second in range(11):
        assert governor.observe(float(second), 10.0, 100.0) is None  # nothing is settled yet
    for second in range(1000, 1100):
        assert governor.observe(float(second), 30.0, 20.0) is None


def test_a_governor_may_begin_where_another_ended() -> None:
    limits = Limits(max_temp_c=80.0)
    ladder = ladder_for(limits)
    assert Governor(limits, ladder, 3).setting == ladder[3].setting
    assert Governor(limits, ladder, 99).rung == len(ladder) - 1
    idle = Governor(Limits(), ladder, 3)
    assert [idle.observe(float(t), 1.0, 900.0, 50.0, 120.0) for t in range(99)] == [None] * 99


# ---- what it says ---------------------------------------------------------------------------------------


def test_every_step_is_an_event_with_its_reason() -> None:
    run, _, governor = play(Limits(max_power_w=6.0), 60)
    event = {name: value for name, value in run.steps[0].items() if name != "t_s"}
    assert set(event) == {
        "kind", "action", "rung", "of", "before", "axis", "scale", "n_splats", "sh_degree", "fps_cap", "limit",
        "value", "bound", "reason",
    }  # fmt: skip
    assert event["kind"] == "governor"
    assert (event["action"], event["limit"], event["bound"]) == ("down", "power", 6.0)
    assert event["reason"].endswith("W, at most 6 W")
    assert event["axis"] == "scale+sh_degree+splats"
    assert event["reason"].startswith(f"{event['value']:.2f} W"), "one figure, of one span"
    status = governor.status()
    assert (status["rung"], status["of"]) == (governor.rung, len(governor.ladder) - 1)
    assert status["steps"]["down"] == len(run.steps)
    assert status["reason"] == run.steps[-1]["reason"]
    assert status["limits"]["power"]["state"] == "present"


@pytest.mark.parametrize("limits", [Limits(target_fps=20.0), Limits(max_power_w=6.0), Limits(max_temp_c=60.0)])
def test_value_and_reason_of_a_step_are_one_figure(limits) -> None:
    run, _, _ = play(limits, 900, {300: change(work_ms=120.0)}, noise=0.05, ambient_c=35.0)
    downs = [step for step in run.steps if step["action"] == "down"]
    assert downs
    for step in downs:
        figure = step["reason"].split()[0]
        assert figure == f"{step['value']:.{len(figure.split('.')[1])}f}"
    assert all(step["value"] is None for step in run.steps if step["action"] == "up")


def test_notes_tell_where_they_were_taken() -> None:
    run, _, governor = play(Limits(max_temp_c=80.0), HOUR, ambient_c=70.0, sink_r=CLOSED_CASE)
    assert [(note["rung"], note["of"]) for note in run.notes] == [(len(governor.ladder) - 1,) * 2]


def test_the_same_plant_twice_is_the_same_run() -> None:
    limits = Limits(target_fps=20.0, max_power_w=6.5, max_temp_c=60.0)
    runs = [play(limits, 1200, ambient_c=35.0, seed=3)[0] for _ in range(2)]
    assert runs[0] == runs[1]
    assert runs[0].steps


# ---- any board ------------------------------------------------------------------------------------------


@st.composite
def boards(draw):
    number = lambda low, high: draw(st.floats(low, high).map(lambda x: round(x, 2)))  # noqa: E731
    return dict(
        work_ms=number(8.0, 200.0),
        fixed_ms=number(0.5, 8.0),
        exponent=number(0.5, 1.0),
        loop_fps=draw(st.sampled_from([0.0, 15.0, 30.0, 60.0])),
        ambient_c=number(-10.0, 60.0),
        sink_r=number(1.0, 10.0),
        idle_w=number(0.8, 3.0),
        frame_j=number(0.01, 0.08),
        gpu_w=number(1.0, 8.0),
        die_r=number(0.3, 1.5),
        die_c=number(2.0, 10.0),
        sink_c=number(40.0, 300.0),
        noise=draw(st.sampled_from([0.0, 0.02, 0.05])),
        seed=draw(st.integers(0, 1000)),
    )


@st.composite
def wishes(draw):
    limits = Limits(
        draw(st.one_of(st.none(), st.sampled_from([10.0, 15.0, 25.0]))),
        draw(st.one_of(st.none(), st.sampled_from([3.0, 5.0, 7.0]))),
        draw(st.sampled_from([60.0, 70.0, 80.0])),
    )
    return limits


@given(boards(), wishes())
@settings(max_examples=12, deadline=None, derandomize=True, database=None)
def test_any_board_is_held_or_told_and_quiet(board, limits) -> None:
    run, plant, governor = play(limits, 5400, **board)
    assert_dwell(run)
    assert_calm(run, per_hour=2 * len(governor.ladder) + 8, apart_s=60.0)
    assert len(run.steps_between(3600)) <= 10
    unheld = {note["limit"] for note in run.notes if note["action"] == "unheld"}
    if "temp" not in unheld:
        assert run.column("temp_c", 1800).max() <= limits.max_temp_c + 1.5
        assert not plant.is_dead
    if limits.max_power_w is not None and "power" not in unheld:
        assert run.column("power_w", 1800).mean() <= 1.01 * limits.max_power_w
    if limits.target_fps is not None and not unheld and governor.setting.fps in (None, limits.target_fps):
        wanted = min(limits.target_fps, board["loop_fps"] or math.inf)
        assert np.median(run.column("fps", 3600)) >= 0.93 * wanted
    for name, held in ((name, limit["held"]) for name, limit in governor.status()["limits"].items()):
        assert held or name in unheld


@given(st.lists(st.tuples(*[st.one_of(st.none(), st.floats(allow_nan=True, width=32))] * 4), max_size=60))
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
def test_no_reading_whatever_makes_it_fail(readings) -> None:
    limits = Limits(target_fps=20.0, max_power_w=6.0, max_temp_c=80.0)
    governor = Governor(limits, ladder_for(limits), 5)
    for second, (fps, work_ms, power_w, temp_c) in enumerate(readings):
        step = governor.observe(1.5 * second, fps, work_ms, power_w, temp_c)
        assert step is None or (step.rung == governor.rung and step.rung != step.before)
        governor.status()
        governor.notes()
    assert 0 <= governor.rung < len(governor.ladder)


def test_watches_know_no_value_before_there_are_any() -> None:
    setting = ladder_for(Limits())[0].setting
    for watch in (FpsWatch(20.0), PowerWatch(6.0), TempWatch(80.0)):
        watch.begin(0.0)
        assert (watch.settled(1.0), watch.level(1.0), watch.pressure(1.0, setting)) == (None, None, None)
