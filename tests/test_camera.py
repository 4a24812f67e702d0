"""Cameras and their paths: conventions, smoothness, loops; and cameras.json, right and wrong."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any, Dict, List

import numpy as np
import pytest

from edgegs.camera import (
    FAR,
    NEAR,
    Camera,
    PosePath,
    Views,
    build_path,
    intrinsics,
    load_cameras_json,
    look_at,
)
from edgegs.camera.pose import quaternion, rotation_matrix
from edgegs.camera.spline import Spline
from edgegs.errors import InputError, SceneError, UsageError

BOUNDS = ((1.0, 2.0, 3.0), 2.0)
EXACT = {"rtol": 0.0, "atol": 1e-12}  # float64, values near 1, a few dozen operations


def project(camera: Camera, point: Any) -> np.ndarray:
    """(x, y, depth) of a world point, pixels."""
    x, y, z, _ = camera.viewmat @ np.array([*point, 1.0])
    u, v, _ = camera.K @ np.array([x / z, y / z, 1.0])
    return np.array([u, v, z])


def assert_rotation(viewmat: np.ndarray) -> None:
    rotation = viewmat[:3, :3]
    np.testing.assert_allclose(rotation @ rotation.T, np.eye(3), **EXACT)
    assert np.linalg.det(rotation) > 0
    np.testing.assert_array_equal(viewmat[3], [0, 0, 0, 1])


def step(path: PosePath, t_s: float, dt_s: float) -> float:
    """Largest change of the view matrix and K (in picture widths) within ``dt_s``."""
    a, b = path.camera_at(t_s), path.camera_at(t_s + dt_s)
    return max(float(np.abs(a.viewmat - b.viewmat).max()), float(np.abs(a.K - b.K).max()) / a.width)


# ---- one camera


def test_look_at_identity() -> None:
    """y down: a camera at the origin that looks along z, with -y up, sees the world as it is."""
    np.testing.assert_allclose(look_at([0, 0, 0], [0, 0, 5], [0, -1, 0]), np.eye(4), **EXACT)


def test_look_at_right_is_right_and_up_is_up() -> None:
    camera = Camera(look_at([0, -5, 0], [0, 0, 0], [0, 0, 1]), intrinsics(640, 480, 60), 640, 480)
    np.testing.assert_allclose(project(camera, [0, 0, 0]), [320, 240, 5], rtol=1e-12)
    assert project(camera, [1, 0, 0])[0] > 320  # looking along +y with z up, x is to the right
    assert project(camera, [0, 0, 1])[1] < 240  # and z towards the top, where y is small
    np.testing.assert_allclose(camera.eye, [0, -5, 0], **EXACT)


def test_look_at_random_poses() -> None:
    rng = np.random.default_rng(1)
    for _ in range(200):
        eye, target, up = rng.normal(size=(3, 3))
        viewmat = look_at(eye, target, up)
        assert_rotation(viewmat)
        seen = viewmat @ np.array([*target, 1.0])
        np.testing.assert_allclose(seen[:2], 0, atol=1e-12)
        assert seen[2] == pytest.approx(np.linalg.norm(target - eye))
        assert (viewmat[:3, :3] @ up)[0] == pytest.approx(0, abs=1e-12)  # up has no sideways part,
        assert (viewmat[:3, :3] @ up)[1] < 1e-12  # and points up in the picture


@pytest.mark.parametrize("up", [[0, 0, 1], [0, 0, -3], [0, 0, 0], [0, 0, 1e-30]])
def test_look_at_with_degenerate_up(up: List[float]) -> None:
    viewmat = look_at([1, 2, 3], [1, 2, 9], up)
    assert_rotation(viewmat)
    np.testing.assert_allclose(viewmat[2, :3], [0, 0, 1], **EXACT)


@pytest.mark.parametrize(
    ("eye", "target", "up", "words"),
    [
        ([1, 2, 3], [1, 2, 3], [0, 1, 0], "the same point"),
        ([1e9, 0, 0], [1e9, 1e-6, 0], [0, 1, 0], "the same point"),
        ([math.nan, 0, 0], [1, 0, 0], [0, 1, 0], "finite"),
        ([0, 0, 0], [math.inf, 0, 0], [0, 1, 0], "finite"),
    ],
)
def test_look_at_refuses(eye: Any, target: Any, up: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        look_at(eye, target, up)


def test_intrinsics() -> None:
    K = intrinsics(640, 480, 90)
    np.testing.assert_allclose(K, [[240, 0, 320], [0, 240, 240], [0, 0, 1]], rtol=1e-12)
    camera = Camera(np.eye(4), K, 640, 480)
    assert camera.fov_y_deg == pytest.approx(90)
    assert (camera.near, camera.far) == (NEAR, FAR) == (0.2, 1e10)
    for wrong in ((0, 480, 60), (640, 480, 0), (640, 480, 180), (640, 480, math.nan)):
        with pytest.raises(UsageError):
            intrinsics(*wrong)


def test_camera_is_read_only_and_checks_shapes() -> None:
    viewmat = np.eye(4, dtype=np.float32)
    camera = Camera(viewmat, intrinsics(64, 48, 60), 64, 48)
    viewmat[0, 3] = 7
    assert camera.viewmat[0, 3] == 0
    assert camera.viewmat.dtype == camera.K.dtype == np.float64
    with pytest.raises(ValueError, match="read-only"):
        camera.viewmat[0, 0] = 2
    with pytest.raises(ValueError, match="shape"):
        Camera(np.eye(3), np.eye(3), 64, 48)


def test_with_size_keeps_the_vertical_field_of_view() -> None:
    K = np.array([[500.0, 0, 330], [0, 510, 235], [0, 0, 1]])  # an off-centre principal point
    camera = Camera(look_at([0, 0, -3], [0, 0, 0]), K, 640, 480, near=0.5, name="x")
    wide = camera.with_size(1920, 960)
    assert (wide.width, wide.height, wide.near, wide.name) == (1920, 960, 0.5, "x")
    assert wide.fov_y_deg == pytest.approx(camera.fov_y_deg)
    np.testing.assert_allclose(wide.K, [[1000, 0, 980], [0, 1020, 470], [0, 0, 1]], rtol=1e-12)
    # A point keeps its place relative to the picture's middle, in picture heights.
    before, after = project(camera, [0.3, -0.2, 0.5]), project(wide, [0.3, -0.2, 0.5])
    np.testing.assert_allclose((after[:2] - [960, 480]) / 960, (before[:2] - [320, 240]) / 480, **EXACT)
    np.testing.assert_allclose(wide.with_size(640, 480).K, camera.K, rtol=1e-12)


def test_quaternions_go_round() -> None:
    rng = np.random.default_rng(2)
    axes = [np.eye(4)[i] for i in range(4)]  # half turns: where one of the four formulas divides by zero
    for q in [*axes, *rng.normal(size=(100, 4))]:
        rotation = rotation_matrix(q)
        again = quaternion(rotation)
        assert abs(again @ q) == pytest.approx(np.linalg.norm(q))
        np.testing.assert_allclose(rotation_matrix(again), rotation, **EXACT)


# ---- paths


def test_fixed() -> None:
    settings = {"kind": "fixed", "eye": [0, -1, -4], "target": [0, 0, 0], "up": [0, -1, 0]}
    path = build_path(settings, 320, 200, 50, 0.1, 9)
    camera = path.camera_at(0)
    assert path.period_s is None
    assert path.camera_at(1e6) is camera
    assert (camera.width, camera.height, camera.near, camera.far) == (320, 200, 0.1, 9)
    assert camera.fov_y_deg == pytest.approx(50)
    np.testing.assert_allclose(project(camera, [0, 0, 0])[:2], [160, 100], rtol=1e-12)


@pytest.mark.parametrize("size", [(640, 480), (200, 900)])
def test_without_a_path_the_whole_scene_is_in_view(size: Any) -> None:
    path = build_path(None, *size, scene_bounds=BOUNDS)
    assert path.period_s == 20
    center, radius = np.array(BOUNDS[0]), BOUNDS[1]
    directions = np.random.default_rng(3).normal(size=(300, 3))
    shell = center + radius * 0.999 * directions / np.linalg.norm(directions, axis=1, keepdims=True)
    for t_s in (0.0, 3.3, 12.0):
        camera = path.camera_at(t_s)
        np.testing.assert_allclose(project(camera, center)[:2], np.array(size) / 2, rtol=1e-9)
        seen = np.array([project(camera, point) for point in shell])
        assert (seen[:, 2] > camera.near).all()
        assert (seen[:, :2] >= 0).all()
        assert (seen[:, :2] <= size).all()
        assert camera.eye[1] < center[1]  # y down: above the scene, looking down at it
        assert camera.viewmat[2, 1] > 0


@pytest.mark.parametrize("extent", [0.0, math.nan, math.inf, 1e-9])
def test_orbit_around_a_scene_without_extent(extent: float) -> None:
    camera = build_path(None, 64, 48, scene_bounds=((0, 0, 0), extent)).camera_at(1)
    assert_rotation(camera.viewmat)
    assert project(camera, [0, 0, 0])[2] > camera.near


ORBIT: Dict[str, Any] = {
    "kind": "orbit", "period_s": 8.0, "center": [1, 2, 3], "radius": 2.0, "height": 0.5, "up": [0, 0, 4],
    "start_deg": 0.0, "look_down_deg": None,
}  # fmt: skip


def test_orbit_is_the_circle_it_says() -> None:
    path = build_path(ORBIT, 64, 48)
    at = [path.camera_at(t).eye for t in (0, 2, 4, 6)]
    # Seen from above (+z), anticlockwise from -y.
    np.testing.assert_allclose(at, [[1, 0, 3.5], [3, 2, 3.5], [1, 4, 3.5], [-1, 2, 3.5]], **EXACT)
    started = build_path({**ORBIT, "start_deg": 90}, 64, 48)
    np.testing.assert_allclose(started.camera_at(0).viewmat, path.camera_at(2).viewmat, **EXACT)


def test_orbit_y_down_starts_in_front() -> None:
    path = build_path({**ORBIT, "up": [0, -1, 0], "center": [0, 0, 0]}, 64, 48)
    np.testing.assert_allclose(path.camera_at(0).eye, [0, -0.5, -2], **EXACT)


def test_orbit_closes_and_is_periodic() -> None:
    path = build_path(ORBIT, 64, 48)
    first = path.camera_at(0).viewmat
    for t_s in (8, -8, 8e6):
        np.testing.assert_allclose(path.camera_at(t_s).viewmat, first, **EXACT)
    for t_s in np.linspace(0, 8, 50):
        assert_rotation(path.camera_at(t_s).viewmat)
        assert step(path, t_s, 1e-3) < 5e-3  # 2·pi·radius/period is 1.6 a second


@pytest.mark.parametrize("down", [0.0, 30.0, -45.0])
def test_orbit_looks_down_as_told(down: float) -> None:
    path = build_path({**ORBIT, "look_down_deg": down}, 64, 48)
    forward = path.camera_at(1.7).viewmat[2, :3]
    assert math.degrees(math.asin(-forward[2])) == pytest.approx(down, abs=1e-9)
    inward = np.array([1, 2]) - path.camera_at(1.7).eye[:2]
    assert forward[:2] @ inward > 0


def test_orbit_takes_from_the_scene_only_what_is_open() -> None:
    path = build_path({"kind": "orbit", "radius": 5.0, "center": None}, 64, 48, scene_bounds=BOUNDS)
    eye = path.camera_at(0).eye - np.array(BOUNDS[0])
    assert math.hypot(eye[0], eye[2]) == pytest.approx(5)
    assert -eye[1] == pytest.approx(5 * math.tan(math.radians(15)))


KEYS: List[Dict[str, Any]] = [
    {"eye": [0, -1, -4], "target": [0, 0, 0], "fov_y_deg": 40},
    {"eye": [4, -1, 0], "target": [0, 0.5, 0], "fov_y_deg": 60},
    {"eye": [1, -3, 4], "target": [1, 0, 0], "fov_y_deg": None},
    {"eye": [-4, -1, 1], "target": [0, 0, 1], "fov_y_deg": 40},
]


def keyframes(times: Any = None, **more: Any) -> PosePath:
    keys = [dict(key, time_s=times[i] if times else None) for i, key in enumerate(KEYS)]
    return build_path({"kind": "keyframes", "keys": keys, "up": [0, -1, 0], **more}, 64, 48, fov_y_deg=55)


@pytest.mark.parametrize(
    ("times", "more", "expected", "period_s"),
    [
        (None, {"period_s": 8.0}, [0, 2, 4, 6], 8),
        (None, {"period_s": 6.0, "loop": False}, [0, 2, 4, 6], 6),
        (None, {}, [0, 5, 10, 15], 20),
        ([0, 1, 5, 6], {"period_s": 9.0}, [0, 1, 5, 6], 9),
        ([0, 1, 5, 6], {}, [0, 1, 5, 6], 8),
        ([0, 1, 5, 6], {"loop": False}, [0, 1, 5, 6], 6),
    ],
)
def test_keyframes_pass_through_their_keys(times: Any, more: Any, expected: Any, period_s: float) -> None:
    path = keyframes(times, **more)
    assert path.period_s == pytest.approx(period_s)
    for key, t_s in zip(KEYS, expected):
        camera = path.camera_at(t_s)
        np.testing.assert_allclose(camera.viewmat, look_at(key["eye"], key["target"]), **EXACT)
        assert camera.fov_y_deg == pytest.approx(key["fov_y_deg"] or 55)


@pytest.mark.parametrize("loop", [True, False])
@pytest.mark.parametrize("times", [None, [0, 1, 9, 10]])
def test_keyframes_are_smooth(times: Any, loop: bool) -> None:
    path = keyframes(times, loop=loop)
    assert path.period_s is not None
    for t_s in np.linspace(-1, path.period_s + 1, 400):
        camera = path.camera_at(t_s)
        assert_rotation(camera.viewmat)
        assert 40 - 1e-9 <= camera.fov_y_deg <= 60 + 1e-9
        assert abs(camera.viewmat[0, 1]) < 1e-12  # the horizon stays level
    # Continuous everywhere: ten times finer steps change ten times less.
    for t_s in np.linspace(-0.5, path.period_s + 0.5, 200):
        assert step(path, t_s, 1e-4) < 1e-2
        assert step(path, t_s, 1e-5) < 1e-3


def test_keyframes_loop_without_a_seam() -> None:
    path = keyframes([0, 1, 5, 6], period_s=9.0)
    for t_s in (0.0, 0.5, 4.0):
        np.testing.assert_allclose(path.camera_at(t_s + 9).viewmat, path.camera_at(t_s).viewmat, **EXACT)
        np.testing.assert_allclose(path.camera_at(t_s - 9).viewmat, path.camera_at(t_s).viewmat, **EXACT)
    # The speed, too, is the same on both sides of every key, the loop's end among them.
    h = 1e-6
    for t_s in (0, 1, 5, 6, 9):
        eyes = [path.camera_at(t_s + d).eye for d in (-h, 0, h)]
        np.testing.assert_allclose((eyes[1] - eyes[0]) / h, (eyes[2] - eyes[1]) / h, atol=1e-3)


def test_keyframes_without_loop_stay_at_the_end() -> None:
    path = keyframes(loop=False)
    np.testing.assert_array_equal(path.camera_at(1e9).viewmat, path.camera_at(20).viewmat)
    np.testing.assert_array_equal(path.camera_at(-5).viewmat, path.camera_at(0).viewmat)


def test_keyframes_through_their_own_target() -> None:
    """The eye flies straight through what it looks at: every camera on the way is still a camera."""
    keys = [{"eye": [0, 0, -1], "target": [0, 0, 0]}, {"eye": [0, 0, 1], "target": [0, 0, 0]}]
    path = build_path({"kind": "keyframes", "keys": keys, "loop": False, "period_s": 2.0}, 64, 48)
    for t_s in np.linspace(0, 2, 201):
        assert_rotation(path.camera_at(t_s).viewmat)


@pytest.mark.parametrize(
    "settings",
    [
        {"keys": KEYS[:1]},
        {"keys": [dict(KEYS[0], time_s=0), KEYS[1]]},
        {"keys": [dict(KEYS[0], time_s=1), dict(KEYS[1], time_s=2)]},
        {"keys": [dict(KEYS[0], time_s=0), dict(KEYS[1], time_s=0)]},
        {"keys": [dict(KEYS[0], time_s=0), dict(KEYS[1], time_s=2)], "period_s": 2},
        {"keys": [dict(KEYS[0], target=KEYS[0]["eye"]), KEYS[1]]},
    ],
)
def test_impossible_keyframes(settings: Any) -> None:
    with pytest.raises(UsageError, match="camera: "):
        build_path({"kind": "keyframes", **settings}, 64, 48)


def test_other_impossible_paths() -> None:
    with pytest.raises(UsageError, match="unknown kind of path 'spiral'; orbit, fixed"):
        build_path({"kind": "spiral"}, 64, 48)
    with pytest.raises(UsageError, match="an orbit needs"):
        build_path({**ORBIT, "radius": 0}, 64, 48)
    with pytest.raises(UsageError, match="at least one view"):
        Views([])
    views = [Camera(np.eye(4), intrinsics(w, 48, 60), w, 48) for w in (64, 65)]
    with pytest.raises(UsageError, match="one size"):
        Views(views)


def test_spline_of_a_straight_line_is_straight() -> None:
    """Uneven steps, even speed: a straight line stays straight, with constant speed, to its ends."""
    times = [0.0, 1.0, 1.5, 4.0]
    spline = Spline(times, np.outer(times, [1.0, -2.0]), None)
    for t_s in np.linspace(0, 4, 41):
        np.testing.assert_allclose(spline.at(t_s), [t_s, -2 * t_s], **EXACT)


def test_spline_of_a_parabola_is_one() -> None:
    """Between inner keys, at uneven steps: the slopes there are those of the parabola itself."""
    times = np.array([0.0, 1.0, 1.5, 4.0, 4.5])
    spline = Spline(times, (times**2)[:, None], None)
    for t_s in np.linspace(1, 4, 31):
        np.testing.assert_allclose(spline.at(t_s), [t_s**2], **EXACT)


# ---- cameras.json


def view(**changes: Any) -> Dict[str, Any]:
    base = {"id": 0, "img_name": "a", "width": 640, "height": 480, "position": [1, 2, 3], "fx": 500.0, "fy": 510.0}
    base["rotation"] = [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    base.update(changes)
    return {key: value for key, value in base.items() if value is not ...}


def write(tmp_path: Path, data: Any) -> str:
    path = tmp_path / "cameras.json"
    path.write_bytes(data if isinstance(data, bytes) else json.dumps(data).encode())
    return str(path)


def test_real_cameras(shared_data: Path) -> None:
    file = shared_data / "photos" / "snowmiku" / "cameras.json"
    cameras = load_cameras_json(file)
    raw = json.loads(file.read_text())
    assert len(cameras) == len(raw) == 97
    for camera, entry in zip(cameras, raw):
        assert_rotation(camera.viewmat)
        assert (camera.width, camera.height, camera.name) == (989, 742, entry["img_name"])
        np.testing.assert_allclose(camera.eye, entry["position"], **EXACT)
        np.testing.assert_allclose(camera.viewmat[:3, :3].T, entry["rotation"], atol=1e-9)
        assert (camera.K[0, 2], camera.K[1, 2]) == (989 / 2, 742 / 2)
    # All of them look at the same object: the lines of sight pass close to one point, in front of each.
    eyes = np.array([camera.eye for camera in cameras])
    forward = np.array([camera.viewmat[2, :3] for camera in cameras])
    across = np.eye(3) - forward[:, :, None] * forward[:, None, :]
    focus = np.linalg.solve(across.sum(axis=0), (across @ eyes[:, :, None]).sum(axis=0))[:, 0]
    seen = np.array([project(camera, focus) for camera in cameras])
    assert (seen[:, 2] > 0).all()
    assert (seen[:, :2] > 0).all()
    assert (seen[:, :2] < [989, 742]).all()


def test_real_path(shared_data: Path) -> None:
    file = shared_data / "photos" / "snowmiku" / "cameras.json"
    settings = {"kind": "cameras_json", "path": str(file), "view_s": 0.5, "loop": True, "smooth": True}
    path = build_path(settings, 320, 240, near=0.3, far=50)
    assert path.period_s == pytest.approx(97 * 0.5)
    for i, wanted in enumerate(load_cameras_json(file)):
        camera = path.camera_at(i * 0.5)
        np.testing.assert_allclose(camera.viewmat, wanted.viewmat, atol=1e-9)
        np.testing.assert_allclose(camera.K, wanted.with_size(320, 240).K, rtol=1e-12)
        assert (camera.width, camera.height, camera.near, camera.far) == (320, 240, 0.3, 50)
    for t_s in np.linspace(-1, 50, 300):
        assert_rotation(path.camera_at(t_s).viewmat)
        assert step(path, t_s, 1e-5) < 1e-3


def test_views_one_by_one(tmp_path: Path) -> None:
    file = write(tmp_path, [view(position=[i, 0, 0], img_name=str(i)) for i in range(3)])
    settings = {"kind": "cameras_json", "path": file, "view_s": 2.0, "smooth": False}
    path = build_path(settings, 320, 240)
    assert [path.camera_at(t).name for t in (0, 1.9, 2, 4, 5.9, 6, -0.1)] == ["0", "0", "1", "2", "2", "0", "2"]
    stop = build_path({**settings, "loop": False}, 320, 240)
    assert [stop.camera_at(t).name for t in (-1, 0, 2, 4, 99)] == ["0", "0", "1", "2", "2"]


def test_one_view_stands_still(tmp_path: Path) -> None:
    path = build_path({"kind": "cameras_json", "path": write(tmp_path, [view()])}, 320, 240)
    np.testing.assert_array_equal(path.camera_at(7.7).eye, [1, 2, 3])


def test_views_turn_the_short_way(tmp_path: Path) -> None:
    """Quaternions of neighbours may differ in sign; the camera must not turn round the long way for it."""
    turns = [math.radians(degrees) for degrees in (0, 90, 180, 270)]
    rotations = [[[math.cos(a), 0, math.sin(a)], [0, 1, 0], [-math.sin(a), 0, math.cos(a)]] for a in turns]
    file = write(tmp_path, [view(rotation=rotation) for rotation in rotations])
    path = build_path({"kind": "cameras_json", "path": file, "view_s": 1.0, "loop": True}, 64, 48)
    for t_s in np.linspace(0, 4, 81):
        forward = path.camera_at(t_s).viewmat[2, :3]
        angle = math.degrees(math.atan2(forward[0], forward[2])) % 360
        assert abs((angle - 90 * t_s + 180) % 360 - 180) < 3
        assert abs(forward[1]) < 1e-9


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "cameras.json:1: column 1: not JSON"),
        (b"[\n{]", "cameras.json:2: column 2: not JSON"),
        (b"\xff", "not a cameras.json"),
        (b"[" * 100_000, "not a cameras.json"),
        (b'[{"fx": NaN}]', "NaN is no finite number"),
        ({}, "expected a list of views"),
        ([], "expected a list of views"),
        ([view(), 3], "view 1: expected an object"),
        ([view(), view(fx=...)], "view 1: fx is missing"),
        ([view(position=...)], "view 0: position is missing"),
        ([view(position=[1, 2])], "view 0: position must be 3 numbers"),
        ([view(position=[1, 2, "3"])], "view 0: position must be 3 numbers"),
        ([view(position=[1, 2, 1e300])], "view 0: position must be 3 numbers, each finite and below 1e12"),
        ([view(rotation=[[1, 0, 0], [0, 1, 0]])], "view 0: rotation must be 3 x 3 numbers"),
        ([view(rotation=[[1, 0, 0], [0, 1, 0], [0, 0, 2]])], "view 0: rotation is no rotation"),
        ([view(rotation=[[0] * 3] * 3)], "view 0: rotation is no rotation"),
        ([view(rotation=[[1, 0, 0], [0, 1, 0], [0, 0, -1]])], "view 0: rotation mirrors"),
        ([view(width=640.5)], "view 0: width is 640.5; expected 1 to 65536 whole pixels"),
        ([view(width=True)], "view 0: width is True"),
        ([view(height=0)], "view 0: height is 0"),
        ([view(height=10**400)], "view 0: height is 1000"),
        (b'[{"width": 1e999}]', "view 0: width is inf"),
        ([view(fy=0)], "view 0: fy is 0; expected a focal length"),
        ([view(fy="500")], "view 0: fy must be a number"),
        ([view(fy=-1e-9)], "view 0: fy is -1e-09"),
    ],
)
def test_bad_cameras_json(tmp_path: Path, data: Any, words: str) -> None:
    with pytest.raises(SceneError) as caught:
        load_cameras_json(write(tmp_path, data))
    assert words in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path / "cameras.json"))
    assert "\n" not in str(caught.value)


def test_each_axis_has_its_own_focal_length(tmp_path: Path) -> None:
    (camera,) = load_cameras_json(write(tmp_path, [view()]))
    np.testing.assert_array_equal(camera.K, [[500, 0, 320], [0, 510, 240], [0, 0, 1]])


def test_slightly_rounded_rotation_is_repaired(tmp_path: Path) -> None:
    cos, sin = 0.866, 0.5  # of 30 degrees, to three digits
    rounded = [[cos, 0, sin], [0, 1, 0], [-sin, 0, cos]]
    (camera,) = load_cameras_json(write(tmp_path, [view(rotation=rounded)]))
    assert_rotation(camera.viewmat)


def test_cameras_json_that_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for name, words in (("none", "no such file"), (".", "a folder"), ("fifo", "not a regular")):
        with pytest.raises(InputError, match=words):
            load_cameras_json(tmp_path / name)
