"""Received poses: following, holding, flying home, late and bad messages; and UDP with real sockets.

``docs/poses.md`` and the arithmetic of ``jetson/ros2_pose.py`` are tested at the end.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import math
import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np
import pytest

from edgegs.camera import build_path, look_at
from edgegs.camera.live import BURST, SEQ_RESTART, Received, slerp
from edgegs.camera.pose import quaternion, rotation_matrix
from edgegs.camera.pose_message import parse_pose
from edgegs.camera.udp import Udp
from edgegs.errors import ConfigError, DeviceError

ROOT = Path(__file__).resolve().parent.parent
BOUNDS = ((1.0, 2.0, 3.0), 2.0)
HOME = {"eye": [0, 0, -4], "target": [0, 0, 0]}
OBLIQUE = {"eye": [0.5, -2, -4], "target": [0, 0, 0]}


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Puppet(Received):
    """Received without a network: tests are its listener."""

    def _listen(self, stopping: threading.Event) -> None:
        stopping.wait()

    def _wake(self) -> None:
        pass

    def send(self, *messages: Any) -> None:
        raw = [m if isinstance(m, bytes) else json.dumps(m).encode() for m in messages]
        self._take([(r, "tester") for r in raw[-BURST:]], len(raw))


def puppet(clock: Clock, **more: Any) -> Puppet:
    fixed = build_path({"kind": "fixed", **HOME}, 64, 48)
    lens = build_path({"kind": "udp", "home": HOME}, 64, 48)._lens  # type: ignore[attr-defined]
    settings: Dict[str, Any] = {"hold_s": 1.0, "return_s": 2.0, "smooth_s": 0.0, **more}
    return Puppet("test:", lens, fixed.camera_at(0), (0, -1, 0), clock=clock, **settings)


def at(x: float, **more: Any) -> Dict[str, Any]:
    return {"position": [x, 0, -4], "quaternion": [1, 0, 0, 0], **more}


def wait_for(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "did not happen in time"
        time.sleep(0.005)


# ---- home


@pytest.mark.parametrize("kind", ["udp", "mqtt", "interactive"])
@pytest.mark.parametrize("up", [(0.0, -1.0, 0.0), (0.0, 0.0, 2.0)])
def test_home_is_where_an_orbit_begins_or_what_is_written(kind: str, up: Any) -> None:
    if kind == "mqtt":
        pytest.importorskip("paho.mqtt.client", reason="paho-mqtt is not installed: MQTT is not tested")
    path = build_path({"kind": kind, "home": None, "up": up}, 64, 48, scene_bounds=BOUNDS)
    orbit = build_path({"kind": "orbit", "up": up}, 64, 48, scene_bounds=BOUNDS)
    np.testing.assert_allclose(path.camera_at(5).viewmat, orbit.camera_at(0).viewmat, atol=1e-12)
    np.testing.assert_array_equal(path.camera_at(5).K, orbit.camera_at(0).K)
    path = build_path({"kind": kind, "home": OBLIQUE, "up": up}, 64, 48, 70, 0.1, 9, scene_bounds=BOUNDS)
    camera = path.camera_at(0)
    np.testing.assert_allclose(camera.viewmat, look_at(OBLIQUE["eye"], OBLIQUE["target"], up), atol=1e-12)
    assert (camera.near, camera.far, camera.width) == (0.1, 9, 64)
    assert camera.fov_y_deg == pytest.approx(70)


# ---- following, holding, returning


def test_state_machine_and_pose_by_the_clock() -> None:
    clock = Clock()
    path = puppet(clock)
    home = path.camera_at(0).viewmat
    assert path.status()["state"] == "home"
    assert path.status()["age_s"] is None
    path.send(at(3.0))
    for passed, state, x in (
        (0.0, "live", 3.0),
        (0.4, "live", 3.0),
        (0.6, "holding", 3.0),
        (1.0, "holding", 3.0),
        (1.5, "returning", 3.0 * (1 - 0.15625)),  # a quarter of the time: 3/16 - 2/64
        (2.0, "returning", 1.5),
        (2.5, "returning", 3.0 * 0.15625),
        (3.0, "home", 0.0),
        (99.0, "home", 0.0),
    ):
        clock.now = 1000.0 + passed
        assert path.status()["state"] == state, passed
        assert path.camera_at(0).eye[0] == pytest.approx(x, abs=1e-9), passed
    assert path.status()["age_s"] == 99.0
    np.testing.assert_array_equal(path.camera_at(0).viewmat, home)


def test_every_message_starts_the_hold_anew_and_ends_a_return() -> None:
    clock = Clock()
    path = puppet(clock)
    path.camera_at(0)
    for _ in range(5):
        path.send(at(3.0))
        clock.now += 0.9
        assert path.camera_at(0).eye[0] == 3.0
    clock.now += 1.0
    assert 0 < path.camera_at(0).eye[0] < 3.0
    path.send(at(2.0))
    assert path.status()["state"] == "live"
    assert path.camera_at(0).eye[0] == 2.0


def test_pictures_that_come_rarely_show_the_same_flight() -> None:
    """A long pause of the render loop across hold and return ends where steady drawing does."""
    ends: List[Any] = []
    for n in (1, 250):
        clock = Clock()
        path = puppet(clock, smooth_s=0.3)
        path.camera_at(0)
        path.send(at(3.0, fov_y_deg=90))
        for _ in range(n):
            clock.now += 2.5 / n
            camera = path.camera_at(0)
        ends.append((camera.viewmat, camera.K))
    np.testing.assert_allclose(ends[0][0], ends[1][0], atol=1e-9)
    np.testing.assert_allclose(ends[0][1], ends[1][1], atol=1e-9)


def test_bad_messages_do_not_keep_a_pose_alive() -> None:
    clock = Clock()
    path = puppet(clock)
    path.send(at(3.0))
    for _ in range(20):
        clock.now += 0.5
        path.send(b"{}")
    assert path.status()["state"] == "home"
    assert path.status()["bad"] == 20


@pytest.mark.parametrize(("hold_s", "return_s"), [(0.0, 0.0), (0.0, 1.0), (1.0, 0.0)])
def test_zero_times(hold_s: float, return_s: float) -> None:
    clock = Clock()
    path = puppet(clock, hold_s=hold_s, return_s=return_s)
    path.camera_at(0)
    path.send(at(3.0))
    assert path.camera_at(0).eye[0] == 3.0
    clock.now += hold_s + return_s + 1e-6
    assert path.camera_at(0).eye[0] == 0.0
    assert path.status()["state"] == "home"


def angle(a: np.ndarray, b: np.ndarray) -> float:
    """Between two view matrices, radians."""
    return float(np.arccos(np.clip((np.trace(a[:3, :3] @ b[:3, :3].T) - 1) / 2, -1, 1)))


def test_no_step_is_larger_than_the_smoothing_allows() -> None:
    """Messages that jump at random, gaps in which it returns: each picture's step is bounded by its time."""
    rng = np.random.default_rng(4)
    clock, smooth_s, dt = Clock(), 0.1, 1 / 60
    path = puppet(clock, smooth_s=smooth_s, hold_s=0.2, return_s=0.5)
    share = 1 - math.exp(-dt / smooth_s)
    ease = 1.5 * dt / 0.5  # the steepest part of a return
    before = path.camera_at(0)
    largest = 0.0
    for i in range(600):
        if i % 100 < 40 and rng.random() < 0.3:
            q = rng.normal(size=4)
            path.send({"position": rng.uniform(-5, 5, 3).tolist(), "quaternion": q.tolist(), "fov_y_deg": 80})
        clock.now += dt
        camera = path.camera_at(0)
        moved = float(np.linalg.norm(camera.eye - before.eye))
        largest = max(largest, moved)
        assert moved <= max(share, ease) * 2 * 5 * math.sqrt(3) + 1e-9
        assert angle(camera.viewmat, before.viewmat) <= max(share, ease) * math.pi + 1e-6
        assert abs(camera.fov_y_deg - before.fov_y_deg) <= max(share, ease) * 20 + 1e-9
        np.testing.assert_allclose(camera.viewmat[:3, :3] @ camera.viewmat[:3, :3].T, np.eye(3), atol=1e-9)
        before = camera
    assert largest > 0.1


def test_smoothing_is_exponential_whatever_the_frame_rate() -> None:
    for n in (1, 7):
        clock = Clock()
        path = puppet(clock, smooth_s=0.2)
        path.camera_at(0)
        path.send(at(4.0))
        for _ in range(n):
            clock.now += 0.3 / n
            eye = path.camera_at(0).eye
        assert eye[0] == pytest.approx(4 * (1 - math.exp(-1.5)), abs=1e-9)


def test_first_picture_shows_what_was_received_before_it() -> None:
    path = puppet(Clock(), smooth_s=0.5)
    path.send(at(4.0))
    assert path.camera_at(0).eye[0] == 4.0


def test_fov_holds_for_its_message_only() -> None:
    path = puppet(Clock())
    path.send(at(1.0, fov_y_deg=100))
    assert path.camera_at(0).fov_y_deg == pytest.approx(100)
    path.send(at(1.0))
    assert path.camera_at(0).fov_y_deg == pytest.approx(60)


def test_slerp_takes_the_shorter_way_at_even_speed() -> None:
    a = np.array([1.0, 0, 0, 0])
    for degrees in (1e-4, 10, 90, 179):
        half = math.radians(degrees) / 2
        b = np.array([math.cos(half), 0, math.sin(half), 0])
        for sign in (1, -1):
            middle = slerp(a, sign * b, 0.25)
            np.testing.assert_allclose(middle * np.sign(middle[0]), [math.cos(half / 4), 0, math.sin(half / 4), 0],
                                       atol=1e-12)  # fmt: skip
    assert np.isfinite(slerp(a, -a, 0.5)).all()


# ---- late messages


def test_an_overtaken_message_is_dropped_and_a_restarted_sender_is_not() -> None:
    clock = Clock()
    path = puppet(clock)
    path.send(at(1.0, seq=5000), at(2.0, seq=4999))
    assert path.camera_at(0).eye[0] == 1.0
    assert path.status()["late"] == 1
    path.send(at(3.0, seq=5000))  # the same again: no reason to drop it
    assert path.camera_at(0).eye[0] == 3.0
    path.send(at(4.0, seq=5000 - SEQ_RESTART))
    assert path.status()["late"] == 2
    path.send(at(5.0, seq=5000 - SEQ_RESTART - 1))
    assert path.camera_at(0).eye[0] == 5.0
    for _ in range(3):  # late ones do not count as good: after a second without a good one, any is taken
        clock.now += 0.4
        path.send(at(6.0, seq=1 + 5000 - SEQ_RESTART - 900))
    assert path.camera_at(0).eye[0] == 6.0
    assert path.status()["late"] == 4
    path.send(at(7.0))  # without seq: taken
    assert path.camera_at(0).eye[0] == 7.0


# ---- complaints


def test_complaints_are_few_and_say_who_and_why(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    path = puppet(clock)
    with caplog.at_level(logging.INFO, "edgegs.camera"):
        for _ in range(500):
            path.send({**at(1.0), "fov": 3})
        assert len(caplog.records) == 3
        clock.now += 61
        path.send(b"\x00\xff")
    assert "camera test:: bad message from tester: unknown key 'fov'; did you mean fov_y_deg?" in caplog.text
    assert "(497 more like this not logged)" in caplog.text
    status = path.status()
    assert (status["received"], status["bad"], status["late"], status["skipped"]) == (501, 501, 0, 0)
    assert status["last_error"].startswith("bad message from tester: ")


def test_of_a_burst_the_newest_are_looked_at() -> None:
    path = puppet(Clock())
    path.send(*(at(float(i)) for i in range(50)), b"bad")
    assert path.camera_at(0).eye[0] == 49.0
    status = path.status()
    assert (status["received"], status["bad"], status["skipped"]) == (51, 1, 51 - BURST)


# ---- a real socket


@pytest.fixture
def opened() -> Iterator[List[Received]]:
    paths: List[Received] = []
    yield paths
    for path in paths:
        path.close()
        path.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "edgegs-pose"]


def udp(opened: List[Received], host: str = "127.0.0.1", port: int = 0, **more: Any) -> Udp:
    settings = {"kind": "udp", "host": host, "port": port, "home": HOME, "smooth_s": 0.0, "hold_s": 60.0, **more}
    path = build_path(settings, 64, 48)
    assert isinstance(path, Udp)
    opened.append(path)
    path.open()
    return path


def send(path: Udp, *messages: Any, host: str = "127.0.0.1") -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sender:
        for message in messages:
            raw = message if isinstance(message, bytes) else json.dumps(message).encode()
            sender.sendto(raw, (host, path.port))


def test_udp_moves_the_camera(opened: List[Received]) -> None:
    path = udp(opened)
    assert path.status()["link"] in ("closed", "up")  # its thread may not have begun
    assert path.camera_at(0).eye[2] == -4
    send(path, {"position": [0, -1, -2], "look_at": [0, 0, 0]})
    wait_for(lambda: path.status()["state"] == "live")
    np.testing.assert_allclose(path.camera_at(0).viewmat, look_at([0, -1, -2], [0, 0, 0]), atol=1e-12)
    assert path.status()["link"] == "up"
    send(path, b"", b"x" * 2049, b"y" * 8000)
    wait_for(lambda: path.status()["bad"] == 3)
    assert re.match(r"bad message from 127\.0\.0\.1:\d+: larger than 2048 bytes", path.status()["last_error"])
    send(path, at(9.0))
    wait_for(lambda: path.camera_at(0).eye[0] == 9.0)
    path.close()
    assert path.status()["link"] == "closed"
    path.open()
    send(path, at(8.0))
    wait_for(lambda: path.camera_at(0).eye[0] == 8.0)


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="no IPv6 loopback address here")
def test_udp_over_ipv6(opened: List[Received]) -> None:
    path = udp(opened, "::1")
    send(path, b"?", host="::1")
    wait_for(lambda: path.status()["bad"] == 1)
    assert path.status()["last_error"].startswith("bad message from [::1]:")
    both = udp(opened, "::")
    for host in ("::1", "127.0.0.1"):
        send(both, at(1.0), host=host)
    wait_for(lambda: both.status()["received"] == 2)


def test_a_flood_costs_a_bounded_share(opened: List[Received]) -> None:
    """Ten thousand at once: few are looked at, the newest counts, and asking for the camera goes on meanwhile."""
    path = udp(opened)
    send(path, at(1.0))
    wait_for(lambda: path.status()["state"] == "live")
    asked = 0
    began = time.monotonic()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        raw = json.dumps(at(2.0)).encode()
        for i in range(10000):
            sender.sendto(raw, ("127.0.0.1", path.port))
            if i % 100 == 0:
                path.camera_at(0)
                asked += 1
    seconds = time.monotonic() - began
    wait_for(lambda: path.camera_at(0).eye[0] == 2.0)
    status = path.status()
    looked_at = status["received"] - status["skipped"]
    # At most BURST a round of 5 ms, and the rounds before and after.
    assert looked_at <= BURST * (seconds / 0.005 + 4)
    assert asked == 100

    def arrived() -> bool:
        send(path, at(3.0))  # again and again: the kernel may drop it while its buffer is full
        return path.camera_at(0).eye[0] == 3.0

    wait_for(arrived)


def test_a_taken_port_is_retried_until_it_is_free(opened: List[Received], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "edgegs.camera"):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
            taken.bind(("127.0.0.1", 0))
            port = taken.getsockname()[1]
            lens = puppet(Clock())._lens
            home = build_path({"kind": "fixed", **HOME}, 64, 48).camera_at(0)
            path = Udp("127.0.0.1", port, lens=lens, home=home, up=(0, -1, 0), backoff_s=(0.05, 0.1), smooth_s=0.0)
            opened.append(path)
            path.open()
            wait_for(lambda: path.status()["link"] == "retrying")
            assert path.status()["last_error"] == f"port {port} is in use; see by whom: ss -lunp 'sport = :{port}'"
            assert path.camera_at(0).eye[2] == -4
        wait_for(lambda: path.status()["link"] == "up")
        assert path.status()["last_error"] is None
        wait_for(lambda: f"camera udp://127.0.0.1:{port}: listening" in caplog.text)
    assert f"camera udp://127.0.0.1:{port}: port {port} is in use" in caplog.text
    send(path, at(1.0))
    wait_for(lambda: path.status()["state"] == "live")


@pytest.mark.parametrize(
    ("host", "words"),
    [
        ("192.0.2.7", "192.0.2.7 is not an address of this machine; see: ip address"),
        ("no-such-host.invalid", "no-such-host.invalid is not a known address"),
    ],
)
def test_an_address_that_may_come_is_waited_for(opened: List[Received], host: str, words: str) -> None:
    path = udp(opened, host, 5151)
    wait_for(lambda: path.status()["link"] == "retrying", 20)
    assert words in path.status()["last_error"]
    path.close()


def test_what_cannot_heal_is_said_at_once(opened: List[Received], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="multicast"):
        udp(opened, "239.1.2.3", 5151)
    path = udp(opened)
    path.close()

    def refuse(self: socket.socket, address: Any) -> None:
        raise PermissionError(13, "Permission denied")

    class Refusing(socket.socket):
        bind = refuse

    monkeypatch.setattr(socket, "socket", Refusing)
    with pytest.raises(ConfigError, match=r"may not open port 80; choose a camera\.path\.port from 1024"):
        udp(opened, port=80)


def test_a_listener_that_dies_is_started_again(opened: List[Received], caplog: pytest.LogCaptureFixture) -> None:
    fates: List[Optional[Exception]] = [DeviceError("no luck"), RuntimeError("a bug"), None]

    class Flaky(Puppet):
        def _listen(self, stopping: threading.Event) -> None:
            fate = fates.pop(0)
            if fate is not None:
                raise fate
            self._is_up()
            stopping.wait()

    base = puppet(Clock())
    path = Flaky("test:", base._lens, base._home_camera, (0, -1, 0), backoff_s=(0.01, 0.01))
    path._wake = lambda: path._stopping.set()  # type: ignore[method-assign]
    opened.append(path)
    with caplog.at_level(logging.INFO, "edgegs.camera"):
        path.open()
        wait_for(lambda: "listening" in caplog.text)
        assert path.status()["link"] == "up"
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.INFO]
    assert said == ["camera test:: no luck; retrying", "camera test:: RuntimeError: a bug; retrying",
                    "camera test:: listening"]  # fmt: skip


# ---- the recipes


def ros2_pose() -> Any:
    spec = importlib.util.spec_from_file_location("ros2_pose", ROOT / "jetson" / "ros2_pose.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def matrix_rpy(roll: float, pitch: float, yaw: float) -> np.ndarray:
    (cr, sr), (cp, sp), (cy, sy) = ((math.cos(math.radians(a)), math.sin(math.radians(a))) for a in (roll, pitch, yaw))
    about_x = np.array([[1, 0, 0], [0, cr, -sr], [0, sr, cr]])
    about_y = np.array([[cp, 0, sp], [0, 1, 0], [-sp, 0, cp]])
    about_z = np.array([[cy, -sy, 0], [sy, cy, 0], [0, 0, 1]])
    return about_z @ about_y @ about_x


# Columns: a camera's right, down and forward, in a body's x ahead, y left, z up.
BODY_FROM_CAMERA = np.array([[0, 0, 1], [-1, 0, 0], [0, -1, 0]])


def test_ros_pose_is_the_product_of_its_matrices() -> None:
    ros, rng = ros2_pose(), np.random.default_rng(7)
    for optical in (False, True):
        for _ in range(50):
            body, turn = (matrix_rpy(*rng.uniform(-180, 180, 3)) for _ in range(2))
            mount_rpy, position, mount = rng.uniform(-180, 180, 3), rng.normal(size=3), rng.normal(size=3)
            scale, shift = rng.uniform(0.1, 10), rng.normal(size=3)
            scene = np.eye(4)
            scene[:3, :3], scene[:3, 3] = scale * turn, shift
            placed, q = ros.camera_pose(
                position.tolist(),
                (3 * quaternion(body)).tolist(),
                mount.tolist(),
                ros.from_rpy(*mount_rpy),
                optical,
                ros.similarity(scene.tolist()),
            )
            np.testing.assert_allclose(placed, scale * turn @ (position + body @ mount) + shift, atol=1e-9)
            axes = np.eye(3) if optical else BODY_FROM_CAMERA
            want = turn @ body @ matrix_rpy(*mount_rpy) @ axes
            np.testing.assert_allclose(rotation_matrix(np.array(q)), want, atol=1e-9)


def test_ros_robot_that_looks_along_x_sees_what_is_there() -> None:
    """A robot at the origin, unturned: ahead is the map's x, the picture's top is the map's z."""
    ros = ros2_pose()
    placed, q = ros.camera_pose((1.0, 0.0, 0.0), (1.0, 0.0, 0.0, 0.0))
    assert placed == (1.0, 0.0, 0.0)
    message = parse_pose(ros.datagram(placed, q, 3, 75.0))
    want = look_at([1, 0, 0], [2, 0, 0], [0, 0, 1])[:3, :3].T
    np.testing.assert_allclose(rotation_matrix(message.quaternion), want, atol=1e-12)
    assert (message.fov_y_deg, message.seq) == (75.0, 3)


@pytest.mark.parametrize(
    "matrix",
    [None, [[1]], np.diag([1, 1, -1, 1]).tolist(), np.diag([1, 2, 1, 1]).tolist(), np.zeros((4, 4)).tolist(),
     np.diag([1, 1, 1, 2]).tolist(), [[1, 0.1, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]],
     [[math.nan] * 4] * 4, [["1", 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]],
)  # fmt: skip
def test_ros_map_to_scene_must_be_a_similarity(matrix: Any) -> None:
    with pytest.raises(ValueError):
        ros2_pose().similarity(matrix)


def test_ros_pace() -> None:
    ros, clock = ros2_pose(), Clock()
    pace = ros.Pace(10, clock)
    sent = 0
    for _ in range(1000):
        sent += pace.due()
        clock.now += 0.003
    assert 29 <= sent <= 31
    same = ros.Pace(10, clock)
    sent = 0
    for i in range(100):
        clock.now = 2000 + 0.1 * i + 0.0002 * (i % 2)
        sent += same.due()
    assert sent == 100


def test_ros_sender_reaches_the_camera(opened: List[Received], tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    ros, path = ros2_pose(), udp(opened)
    file = tmp_path / "map_to_scene.json"
    file.write_text(json.dumps([[0, -2, 0, 0], [0, 0, -2, 0], [2, 0, 0, 0], [0, 0, 0, 1]]))
    options = ["--port", str(path.port), "--map-to-scene", str(file), "--rate", "1000", "--mount", "0", "0", "0.5"]
    sender = ros.Sender(ros.parse_options(options))
    try:
        sender.send((0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 0.0))
        assert "pose not sent: the orientation is no rotation" in capsys.readouterr().err
        time.sleep(0.002)
        sender.send((1.0, 0.0, 0.0), (1.0, 0.0, 0.0, 0.0))
    finally:
        sender.close()
    wait_for(lambda: path.status()["state"] == "live")
    # A metre ahead and half a metre up in the map, in a scene of two units a metre whose y points down.
    np.testing.assert_allclose(path.camera_at(0).viewmat, look_at([0, -1, 2], [0, -1, 9]), atol=1e-12)
    with pytest.raises(SystemExit):
        ros.parse_options(["--map-to-scene", str(tmp_path / "none.json")])
    assert "none.json" in capsys.readouterr().err


def test_ros_adapter_without_ros_says_what_to_source() -> None:
    if importlib.util.find_spec("rclpy") is not None:
        pytest.skip("ROS 2 is here: its absence is not tested")
    script = str(ROOT / "jetson" / "ros2_pose.py")
    done = subprocess.run([sys.executable, script], stdin=subprocess.DEVNULL, capture_output=True, timeout=30)
    assert done.returncode == 69
    assert b"source /opt/ros/" in done.stderr
    assert b"Traceback" not in done.stderr


def blocks(language: str) -> List[str]:
    text = (ROOT / "docs" / "poses.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.M | re.S)


def test_messages_of_the_recipe_are_taken() -> None:
    messages = [line for block in blocks("json") for line in block.splitlines()]
    assert len(messages) >= 3
    for line in messages:
        parse_pose(line.encode())


def test_sender_of_the_recipe_moves_the_camera(opened: List[Received]) -> None:
    path = udp(opened)
    (script,) = (block for block in blocks("python") if "SOCK_DGRAM" in block)
    assert "5151" in script
    script = script.replace("5151", str(path.port)).replace("range(1000)", "range(3)")
    subprocess.run([sys.executable, "-c", script], stdin=subprocess.DEVNULL, timeout=30, check=True)
    wait_for(lambda: path.status()["received"] == 3)
    assert path.status()["bad"] == 0


def aligned(seen: Sequence[Any], wanted: Sequence[Any]) -> np.ndarray:
    (script,) = (block for block in blocks("python") if "svd" in block)
    scope: Dict[str, Any] = {}
    exec(script.split("if __name__")[0], scope)
    return scope["align"](seen, wanted)


def test_alignment_of_the_recipe_finds_the_transform() -> None:
    rng = np.random.default_rng(3)
    cases: List[Tuple[np.ndarray, float]] = [(rng.normal(size=(n, 3)), 1e-9) for n in (3, 4, 12)]
    flat = rng.normal(size=(9, 3))
    flat[:, 2] = 0  # a robot's points lie in a plane
    cases.append((flat, 1e-9))
    for points, tolerance in cases:
        scene = np.eye(4)
        scene[:3, :3], scene[:3, 3] = 3.5 * matrix_rpy(20, -100, 50), [1, -2, 3]
        found = aligned(points, points @ scene[:3, :3].T + scene[:3, 3])
        np.testing.assert_allclose(found, scene, atol=tolerance)
        ros2_pose().similarity(found.tolist())
