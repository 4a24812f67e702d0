"""The camera that keys and mouse steer: which way each moves it, how smoothly, and what it ignores."""

from __future__ import annotations

import math
from typing import Any, Tuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgegs.camera import InputEvent, PosePath, build_path, look_at
from edgegs.camera.interactive import MAX_COORDINATE, MAX_PITCH, PRESS_S, SMOOTH_S, SPEED_RANGE, SPEED_STEP, Interactive
from edgegs.camera.pose import Camera

HOME = {"eye": [0, -1, -4], "target": [0, 0, 0]}
UP = np.array([0.0, -1.0, 0.0])
BOUNDS = ((0.0, 0.0, 0.0), 2.0)


class Clock:
    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


def make(**more: Any) -> Tuple[PosePath, Clock]:
    clock = Clock()
    given_ = {"kind": "interactive", "home": HOME, "up": UP.tolist(), "speed": 1.0, "clock": clock, **more}
    path = build_path(given_, 640, 480, scene_bounds=BOUNDS)
    path.open()
    path.camera_at(0)
    return path, clock


def settle(path: PosePath, clock: Clock) -> Camera:
    clock.now += 100.0
    return path.camera_at(0)


def key(name: str) -> InputEvent:
    return InputEvent("key", key=name)


def drag(button: str, dx: float, dy: float) -> InputEvent:
    return InputEvent("drag", dx=dx, dy=dy, button=button)


def project(camera: Camera, point: Any) -> np.ndarray:
    x, y, z, _ = camera.viewmat @ np.array([*point, 1.0])
    return (camera.K @ np.array([x / z, y / z, 1.0]))[:2]


LEVEL_AHEAD, RIGHT = np.array([0, 0, 1.0]), np.array([1.0, 0, 0])


# ---- keys


@pytest.mark.parametrize(
    ("names", "way"),
    [
        (("w", "up"), LEVEL_AHEAD),
        (("s", "down"), -LEVEL_AHEAD),
        (("d", "right"), RIGHT),
        (("a", "left"), -RIGHT),
        (("r",), UP),
        (("f",), -UP),
    ],
)
def test_keys_move_level_and_leave_the_view(names: Tuple[str, ...], way: np.ndarray) -> None:
    for name in names:
        path, clock = make()
        before = path.camera_at(0)
        assert path.handle(key(name))
        after = settle(path, clock)
        np.testing.assert_allclose(after.eye - before.eye, PRESS_S * way, atol=1e-9)
        np.testing.assert_allclose(after.viewmat[:3, :3], before.viewmat[:3, :3], atol=1e-9)


def test_a_held_key_moves_at_the_speed_whatever_its_repeat_rate() -> None:
    for rate in (10, 30, 60):
        path, clock = make(speed=2.0)
        start = path.camera_at(0).eye
        path.handle(key("w"))
        for _ in range(3 * rate):
            clock.now += 1 / rate
            path.handle(key("w"))
        moved = np.linalg.norm(settle(path, clock).eye - start)
        assert moved == pytest.approx(2.0 * (3 + PRESS_S), rel=1e-9), rate


def test_motion_is_smooth() -> None:
    """A press is no jump: each picture takes a share of what is left."""
    path, clock = make()
    start = path.camera_at(0).eye
    path.handle(key("w"))
    assert np.linalg.norm(path.camera_at(0).eye - start) == 0
    clock.now += 1 / 60
    first = np.linalg.norm(path.camera_at(0).eye - start)
    assert first == pytest.approx(PRESS_S * (1 - math.exp(-1 / 60 / SMOOTH_S)), rel=1e-9)


def test_speed_keys_have_limits() -> None:
    path, _ = make()
    assert path.handle(key("+"))
    assert path.status()["speed"] == SPEED_STEP
    assert path.handle(key("="))
    assert path.handle(key("-"))
    assert path.handle(key("_"))
    assert path.status()["speed"] == pytest.approx(1.0)
    for _ in range(1000):
        path.handle(key("+"))
    assert path.status()["speed"] == SPEED_RANGE
    for _ in range(2000):
        path.handle(key("-"))
    assert path.status()["speed"] == 1 / SPEED_RANGE
    assert make(speed=None)[0].status()["speed"] == pytest.approx(0.6)


@pytest.mark.parametrize(
    "event",
    [
        *(key(name) for name in ("q", "o", " ", "escape", "", "W", "é")),
        drag("", 1, 1),
        drag("left", math.nan, 0),
        drag("right", 0, math.inf),
        InputEvent("wheel", steps=math.nan),
        InputEvent("pinch"),
    ],
)
def test_what_means_nothing_moves_nothing(event: InputEvent) -> None:
    path, clock = make()
    before = path.camera_at(0)
    assert path.handle(event) is False
    np.testing.assert_array_equal(settle(path, clock).viewmat, before.viewmat)
    assert path.status()["events"] == 0


def test_paths_that_nobody_steers_take_no_events() -> None:
    for settings_ in ({"kind": "orbit"}, {"kind": "fixed", **HOME}, {"kind": "udp"}):
        path = build_path(settings_, 64, 48)
        assert path.handle(key("w")) is False


# ---- mouse


def test_looking_around_keeps_the_place_and_the_picture_under_the_pointer() -> None:
    path, clock = make(home={"eye": [0, 0, -4], "target": [0, 0, 0]})
    before = path.camera_at(0)
    assert path.handle(drag("left", 0.02, 0.01))
    after = settle(path, clock)
    np.testing.assert_allclose(after.eye, before.eye, atol=1e-9)
    moved = project(after, [0, 0, 0]) - project(before, [0, 0, 0])
    # Angle by angle, so near the middle a little less than the pointer: 60 degrees against 2 tan 30 degrees.
    share = math.radians(60) / (2 * math.tan(math.radians(30)))
    np.testing.assert_allclose(moved, [0.02 * 480 * share, 0.01 * 480 * share], rtol=0.01)


def test_pitch_stops_before_the_pole() -> None:
    path, clock = make()
    for dy, sign in ((5.0, 1), (-20.0, -1)):
        for _ in range(5):
            path.handle(drag("left", 0, dy))
        camera = settle(path, clock)
        assert camera.viewmat[2, :3] @ UP == pytest.approx(sign * math.sin(MAX_PITCH), abs=1e-9)
        assert -camera.viewmat[1, :3] @ UP > 0  # never upside down


def test_shifting_keeps_the_middle_of_the_scene_under_the_pointer() -> None:
    path, clock = make()
    before = path.camera_at(0)
    assert path.handle(drag("right", 0.1, -0.05))
    after = settle(path, clock)
    np.testing.assert_allclose(after.viewmat[:3, :3], before.viewmat[:3, :3], atol=1e-9)
    moved = project(after, [0, 0, 0]) - project(before, [0, 0, 0])
    np.testing.assert_allclose(moved, [48, -24], atol=1e-6)


@pytest.mark.parametrize(
    ("event", "nearer"),
    [
        (InputEvent("wheel", steps=1), True),
        (InputEvent("wheel", steps=-1), False),
        (drag("middle", 0.3, -0.1), True),
        (drag("middle", 0.3, 0.1), False),
    ],
)
def test_wheel_and_middle_button_move_along_the_sight(event: InputEvent, nearer: bool) -> None:
    path, clock = make()
    before = path.camera_at(0)
    assert path.handle(event)
    after = settle(path, clock)
    by = after.eye - before.eye
    along = float(by @ before.viewmat[2, :3])
    assert (along > 0) == nearer
    assert abs(along) == pytest.approx(np.linalg.norm(by))
    assert 0.2 < abs(along) < 1


def test_notches_forth_and_back_cancel() -> None:
    path, clock = make()
    before = path.camera_at(0).eye
    for steps in (1, 2, -3):
        path.handle(InputEvent("wheel", steps=steps))
    np.testing.assert_allclose(settle(path, clock).eye, before, atol=1e-9)


# ---- home


def test_home_is_reached_the_shorter_way() -> None:
    path, clock = make()
    home = path.camera_at(0).viewmat
    for _ in range(7):  # seven times 60 degrees to the right: one turn and a sixth
        path.handle(drag("left", -1.0, 0))
    path.handle(key("w"))
    turned = settle(path, clock)
    assert path.handle(key("h"))
    angles = []
    for _ in range(200):
        clock.now += 0.02
        camera = path.camera_at(0)
        angles.append(math.acos(min(1.0, float(camera.viewmat[2, :3] @ turned.viewmat[2, :3]))))
    assert max(angles) < math.radians(61)
    np.testing.assert_allclose(path.camera_at(0).viewmat, home, atol=1e-6)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_home_that_looks_straight_down_or_up_keeps_its_picture(sign: int) -> None:
    home = {"eye": [0, -4 * sign, 0], "target": [0, 0, 0]}
    path, _ = make(home=home)
    found, want = path.camera_at(0).viewmat[:3, :3], look_at(home["eye"], home["target"], UP)[:3, :3]
    angle = math.degrees(math.acos((np.trace(found @ want.T) - 1) / 2))
    assert angle == pytest.approx(1.0, abs=0.01)


# ---- anything a window may send

events = st.builds(
    InputEvent,
    st.sampled_from(["key", "drag", "wheel"]),
    st.sampled_from([*"wasdrfh+-", "up", "left"]),
    st.floats(),
    st.floats(),
    st.sampled_from(["left", "middle", "right"]),
    st.floats(),
)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.tuples(events, st.floats(0, 1)), max_size=30), st.tuples(*[st.floats(-1, 1)] * 3))
def test_always_a_level_camera_within_the_world(sent: Any, up: Tuple[float, float, float]) -> None:
    if np.linalg.norm(up) < 1e-3:
        return
    path, clock = make(up=up)
    upward = np.array(up) / np.linalg.norm(up)
    assert isinstance(path, Interactive)
    for event, passed in sent:
        path.handle(event)
        clock.now += passed
        camera = path.camera_at(0)
        assert np.isfinite(camera.viewmat).all()
        assert np.abs(camera.eye).max() <= MAX_COORDINATE * 1.001
        rotation = camera.viewmat[:3, :3]
        np.testing.assert_allclose(rotation @ rotation.T, np.eye(3), atol=1e-9)
        assert abs(rotation[0] @ upward) < 1e-9
        assert -rotation[1] @ upward > 0
