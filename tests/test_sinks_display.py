"""``display://``: what is on the screen of a real X server, what people do at it, and every way it can be missing."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from xvfb import WAIT, Xvfb, eventually, need_tools

from edgegs.camera.inputs import InputEvent
from edgegs.errors import AccessError, ConfigError, DeviceError, OutputError
from edgegs.findings import OK, PROBLEM, WARNING, ask_python
from edgegs.frame import Frame
from edgegs.sinks import SinkRunner, create_sink, display, x11
from edgegs.sinks.display_input import key_name, to_picture
from edgegs.sinks.display_overlay import overlay_lines
from edgegs.sinks.display_window import connectors, fit, gui

WIDTH, HEIGHT = 320, 240
STATUS = {"fps": 29.84, "power_w": {"VDD_IN": 7.31, "VDD_CPU": 2.0}, "temp_c": {"CPU": 48.0, "GPU": 51.4}}


@pytest.fixture(scope="module")
def server():
    need_tools()
    with Xvfb(f"{WIDTH}x{HEIGHT}") as running:
        yield running


@pytest.fixture
def opened(server, request):
    """Opens sinks and closes them at the end of the test."""
    made = []

    def open_sink(uri="display://0", width=WIDTH, height=HEIGHT, **options):
        options.setdefault("x_display", server.display)
        sink = create_sink(uri, **options)
        made.append(sink)
        sink.open(width, height, 30.0)
        return sink

    yield open_sink
    for sink in made:
        sink.close()


def frame(width=WIDTH, height=HEIGHT, seed=0):
    image = np.random.default_rng(seed).integers(1, 256, (height, width, 3), np.uint8)
    return Frame(image, seed, time.monotonic_ns(), 1.0)


def shows(server, image):
    eventually(lambda: np.array_equal(server.screenshot(), image), "the screen does not show the frame")


def write_on(sink):
    """Writes until it fails."""
    until = time.monotonic() + WAIT
    while time.monotonic() < until:
        sink.write(frame())


def pid_of(sink):
    return sink._child._process.pid


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


# ---- pictures ------------------------------------------------------------------------------------------------


def test_shows_each_frame_as_it_is(server, opened):
    sink = opened()
    for seed in range(5):
        given = frame(seed=seed)
        sink.write(given)
        shows(server, given.image)


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_turns_clockwise(server, opened, turns):
    size = (HEIGHT, WIDTH) if turns % 2 else (WIDTH, HEIGHT)
    sink = opened(width=size[0], height=size[1], rotation_deg=90 * turns)
    given = frame(*size)
    sink.write(given)
    shows(server, np.rot90(given.image, -turns))


def test_another_aspect_ratio_gets_black_bars(server, opened):
    sink = opened(width=200, height=HEIGHT)
    given = frame(200)
    sink.write(given)
    expected = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    expected[:, 60:260] = given.image
    shows(server, expected)


def test_a_small_picture_is_enlarged_in_its_own_aspect_ratio(server, opened):
    sink = opened(width=80, height=30)
    given = Frame(np.full((30, 80, 3), (10, 120, 250), np.uint8), 0, 0, 1.0)
    sink.write(given)
    expected = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    expected[60:180] = (10, 120, 250)
    shows(server, expected)


def test_a_frame_of_another_size_is_refused(opened):
    with pytest.raises(OutputError, match="100x240 in a window of 320x240"):
        opened().write(frame(100))


def test_overlay_is_toggled_by_its_key_and_leaves_no_trace(server, opened):
    told = []
    sink = opened(status=lambda: told.append(1) or STATUS, on_input=told.append, width=200)
    given = frame(200)
    sink.write(given)
    plain = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    plain[:, 60:260] = given.image
    shows(server, plain)
    assert not told  # no figures are asked for while nobody sees them
    server.run("xdotool", "mousemove", "100", "100", "key", "o")
    eventually(lambda: (server.screenshot() != plain).any(), "no overlay")
    changed = (server.screenshot() != plain).any(axis=2)
    assert changed[:5, :5].any(axis=None) or changed[:40, :100].any()
    assert not changed[HEIGHT // 2 :].any()
    assert not changed[:, WIDTH // 2 + 40 :].any()
    server.run("xdotool", "key", "o")
    shows(server, plain)
    assert set(told) == {1}  # "o" itself is not passed on


def test_overlay_turns_with_the_picture(server, opened):
    sink = opened(width=HEIGHT, height=WIDTH, rotation_deg=90, overlay=True, status=lambda: STATUS)
    given = frame(HEIGHT, WIDTH)
    sink.write(given)
    turned = np.rot90(given.image, -1)
    eventually(lambda: 0 < (server.screenshot() != turned).any(axis=2).mean() < 0.3, "no overlay")
    changed = (server.screenshot() != turned).any(axis=2)
    assert changed[:40, -40:].mean() > 0.9
    assert not changed[:, : WIDTH // 2].any()


def test_overlay_lines_leave_out_what_is_not_known():
    assert overlay_lines(STATUS) == ["29.8 FPS", "7.3 W  VDD_IN", "51 C  GPU"]
    assert overlay_lines({"fps": None, "power_w": None, "temp_c": {"GPU": float("nan")}}) == []
    assert overlay_lines({"fps": 0.0, "power_w": {"b": 2, "a": 1.04}}) == ["0.0 FPS", "1.0 W  a", "2.0 W  b"]


def test_a_status_that_fails_costs_no_picture(server, opened):
    def fails():
        raise RuntimeError("no figures")

    given = frame()
    opened(overlay=True, status=fails).write(given)
    shows(server, given.image)


# ---- people --------------------------------------------------------------------------------------------------


def test_keys_drags_and_the_wheel_are_passed_on_and_change_no_picture(server, opened):
    events = []
    sink = opened(on_input=events.append)
    given = frame()
    sink.write(given)
    shows(server, given.image)
    server.run("xdotool", "mousemove", "100", "100")
    for key in ("q", "space", "Left", "Down", "W", "plus", "Escape"):
        server.run("xdotool", "key", key)
    server.run("xdotool", "mousedown", "1", "mousemove", "124", "88", "mouseup", "1")
    server.run("xdotool", "click", "4", "click", "4", "click", "5")
    eventually(lambda: sum(event.kind == "wheel" for event in events) >= 1)
    eventually(lambda: sum(event.steps for event in events) == 1, str(events))
    keys = [event.key for event in events if event.kind == "key"]
    assert keys == ["q", " ", "left", "down", "w", "+", "escape"]
    drags = [event for event in events if event.kind == "drag"]
    assert {event.button for event in drags} == {"left"}
    assert sum(event.dx for event in drags) == pytest.approx(24 / HEIGHT)
    assert sum(event.dy for event in drags) == pytest.approx(-12 / HEIGHT)
    server.run("xdotool", "click", "3", "key", "ctrl+plus")
    shows(server, given.image)  # Qt would have zoomed, or opened a menu


def test_without_keys_nothing_that_people_do_has_an_effect(server, opened):
    events = []
    sink = opened(keys=False, on_input=events.append, status=lambda: STATUS)
    given = frame()
    sink.write(given)
    shows(server, given.image)
    server.run("xdotool", "mousemove", "100", "100", "key", "o", "key", "q", "key", "space", "key", "Escape")
    server.run("xdotool", "mousedown", "1", "mousemove", "124", "88", "mouseup", "1", "click", "4", "click", "5")
    for seed in range(3):  # the window has seen all that by the time it shows these
        sink.write(frame(seed=seed))
        shows(server, frame(seed=seed).image)
    assert events == []
    assert cursor_alpha(server) == 0


def test_drags_are_told_in_the_turned_picture(server, opened):
    events = []
    opened(width=HEIGHT, height=WIDTH, rotation_deg=90, on_input=events.append)
    server.run("xdotool", "mousemove", "100", "100", "mousedown", "3", "mousemove", "100", "132", "mouseup", "3")
    eventually(lambda: sum(event.dx for event in events) == pytest.approx(32 / WIDTH), str(events))
    assert all(event.kind == "drag" and event.button == "right" and event.dy == 0 for event in events)


@pytest.mark.parametrize("rotation", [0, 90, 180, 270])
def test_movements_in_the_turned_picture(rotation):
    marks = np.zeros((5, 5), int)
    marks[1, 3] = 1  # right 1, up 1 of the middle
    y, x = np.argwhere(np.rot90(marks, -rotation // 90))[0] - 2
    assert to_picture(x, y, rotation) == (1, -1)


def test_a_listener_that_fails_does_not_silence_the_window(server, opened, caplog):
    heard = []

    def listen(event):
        heard.append(event)
        raise RuntimeError("mistake")

    sink = opened(on_input=listen)
    server.run("xdotool", "mousemove", "50", "50", "key", "a", "key", "b")
    eventually(lambda: len(heard) == 2)
    assert heard[1] == InputEvent("key", key="b")
    sink.write(frame())
    assert "could not be passed on" in caplog.text


def test_key_names():
    assert key_name((0x6F, 0x4F), 0) == key_name((0x6F, 0x4F), 1) == "o"
    assert key_name((0x3D, 0x2B), 1) == "+"
    assert key_name((0x3D, 0x2B), 4) == ""
    assert key_name((0xFFB5, 0), 0) == "5"
    assert key_name((0x61, 0x41, 0x01000444, 0x01000424), 1 << 13) == "ф"
    assert key_name((), 0) == key_name((0xFFE1,), 0) == ""


def test_the_cursor_is_hidden(server, opened):
    server.run("xdotool", "mousemove", "30", "30")
    sink = opened()
    sink.write(frame())
    assert cursor_alpha(server) == 0
    sink.close()
    eventually(lambda: cursor_alpha(server) > 0, "the cursor does not come back")


def cursor_alpha(server):
    """Sum of the opacity of the cursor's pixels, by XFixesGetCursorImage."""
    connection = x11.X11(server.display)
    try:
        xfixes = connection._extension("XFIXES")
        assert connection.ask(xfixes, struct.pack("<II", 4, 0), 0)
        reply = connection.ask(xfixes, b"", 4)
        width, height = struct.unpack_from("<HH", reply, 12)
        return int((np.frombuffer(reply, np.uint32, width * height, 32) >> 24).sum())
    finally:
        connection.close()


# ---- monitors ------------------------------------------------------------------------------------------------


def test_second_monitor_goes_and_comes_back(opened, tmp_path, monkeypatch, caplog):
    caplog.set_level("INFO")
    status = tmp_path / "card0-HDMI-A-1" / "status"
    status.parent.mkdir()
    status.write_text("connected\n")
    monkeypatch.setattr(display, "DRM_ROOT", str(tmp_path))
    with Xvfb("320x120") as wide:
        wide.run("xrandr", "--setmonitor", "LEFT", "160/40x120/30+0+0", "screen")
        wide.run("xrandr", "--setmonitor", "RIGHT", "160/40x120/30+160+0", "none")
        sink = opened("display://1", 160, 120, x_display=wide.display)
        with pytest.raises(DeviceError, match=r"no monitor 2; it has 0 \(LEFT, 160x120 at 0,0\), 1 \(RIGHT"):
            opened("display://2", x_display=wide.display)
        given, black = frame(160, 120), np.zeros((120, 160, 3), np.uint8)
        sink.write(given)
        shows(wide, np.concatenate([black, given.image], axis=1))

        wide.run("xrandr", "--delmonitor", "RIGHT")
        status.write_text("disconnected\n")
        eventually(lambda: "RIGHT, 160x120 at 160,0) is gone" in caplog.text)
        sink.write(frame(160, 120, seed=1))  # drawing goes on
        wide.run("xrandr", "--setmonitor", "AGAIN", "200/40x120/30+120+0", "none")
        status.write_text("connected\n")
        eventually(lambda: "connector HDMI-A-1 connected" in caplog.text)
        wanted = np.zeros((120, 320, 3), np.uint8)
        wanted[:, 140:300] = frame(160, 120, seed=1).image
        shows(wide, wanted)
        sink.close()


def test_a_window_that_was_moved_goes_back(server, opened):
    sink = opened()
    given = frame()
    sink.write(given)
    shows(server, given.image)
    connection = x11.X11(server.display)
    connection.place(connection.find(f"edgegs display://0 {pid_of(sink)}"), 50, 40, 100, 80)
    connection.monitors()
    connection.close()
    shows(server, given.image)


def test_devices_names_every_monitor(server, tmp_path, monkeypatch):
    for name, state in (("card0-HDMI-A-1", "connected"), ("card0-DP-1", "disconnected")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "status").write_text(state + "\n")
    monkeypatch.setattr(display, "DRM_ROOT", str(tmp_path))
    plugged, monitor = display.devices(server.display)
    assert plugged[:4] == ("display", OK, "connectors: DP-1 disconnected, HDMI-A-1 connected", "")
    assert monitor[:3] == ("display", OK, f"display://0: screen, 320x240, of X server {server.display}")

    (tmp_path / "card0-HDMI-A-1" / "status").write_text("disconnected\n")
    monkeypatch.delenv("DISPLAY", raising=False)
    plugged, missing = display.devices()
    assert plugged.state == WARNING
    assert missing.says == "DISPLAY is not set"
    assert server.display in missing.fix
    dead = display.devices(":7777")[-1]
    assert (dead.state, dead.says) == (WARNING, "there is no X server :7777")
    monkeypatch.setattr(display, "ask_python", lambda script, timeout_s: ("none\n", ""))
    headless = display.devices(server.display)[-1]
    assert headless.state == PROBLEM
    assert "opencv-python-headless" in headless.fix
    assert connectors(str(tmp_path / "absent")) == {}


def test_recognises_opencv_without_windows():
    assert gui("  GUI:                           QT5\n    QT:  YES") == "QT5"
    assert gui("  GUI:                           NONE\n    VTK support:  NO") == ""
    assert gui("  GUI: \n    QT:                          YES (ver 5.15.0)\n") == "QT"
    assert gui("  GUI: \n    GTK+:                        YES (ver 3.22)\n") == "GTK+"
    assert gui("  GUI: \n    GTK+:                        NO\n") == ""


@pytest.mark.parametrize(
    ("picture", "canvas", "expected"),
    [
        ((1280, 720), (1280, 720), (0, 0, 1280, 720)),
        ((640, 480), (1280, 720), (160, 0, 960, 720)),
        ((720, 1280), (1280, 720), (438, 0, 405, 720)),
        ((4000, 1), (320, 240), (0, 120, 320, 1)),
    ],
)
def test_fit(picture, canvas, expected):
    x, y, width, height = fit(*picture, *canvas)
    assert (width, height) == expected[2:]
    assert abs(x - expected[0]) <= 1
    assert abs(y - expected[1]) <= 1


# ---- faults --------------------------------------------------------------------------------------------------


def reason(x_display, uri="display://0"):
    sink = create_sink(uri, x_display=x_display)
    try:
        with pytest.raises((DeviceError, AccessError)) as caught:
            sink.open(WIDTH, HEIGHT, 30.0)
    finally:
        sink.close()
    assert str(caught.value).startswith(f"output {uri}: ")
    return str(caught.value)


def test_an_unset_display_names_those_that_answer(server, monkeypatch):
    monkeypatch.delenv("DISPLAY", raising=False)
    assert "DISPLAY is not set" in reason(None)
    assert server.display in reason(None)
    monkeypatch.setenv("DISPLAY", server.display)
    sink = create_sink("display://0")
    sink.open(WIDTH, HEIGHT, 30.0)
    sink.close()
    monkeypatch.setattr(x11, "SOCKETS", "/nowhere")
    monkeypatch.delenv("DISPLAY")
    assert "no X server answers on this machine" in reason(None)


def test_a_server_whose_file_is_hidden_is_found(server, tmp_path, monkeypatch):
    """A service with a /tmp of its own sees no file of the X server; its abstract socket is there all the same."""
    monkeypatch.setattr(x11.os, "listdir", lambda path: [])
    monkeypatch.delenv("DISPLAY", raising=False)
    assert server.display in x11.answering()
    assert server.display in reason(None)
    inode = "0000000000000000: 00000002 00000000 00010000 0001 01 7 @"
    names = ("X" + server.display[1:], "X4x", "X", "a\n\n b")
    listed = [f"{x11.SOCKETS}/{name}" for name in names] + ["/elsewhere/X5"]
    (tmp_path / "unix").write_text("Num RefCount …\n" + "".join(f"{inode}{name}\n" for name in listed * 2))
    monkeypatch.setattr(x11, "PROC_UNIX", str(tmp_path / "unix"))
    assert x11.answering() == [server.display]
    monkeypatch.setattr(x11, "PROC_UNIX", str(tmp_path / "absent"))
    assert x11.answering() == []


def test_dead_and_wrong_displays(server, tmp_path, monkeypatch):
    assert "there is no X server :7777" in reason(":7777")
    assert "is no X display" in reason("garbage:x")
    assert "has no screen 3; leave .3 out" in reason(server.display + ".3")
    assert "nobody answers at X display 127.0.0.1:59000" in reason("127.0.0.1:59000")
    monkeypatch.setattr(x11, "SOCKETS", str(tmp_path))
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(tmp_path / "X5"))
    assert f"nobody answers at X display :5 ({tmp_path}/X5 was left behind)" in reason(":5")


def test_a_server_that_hangs_or_talks_nonsense(tmp_path, monkeypatch):
    monkeypatch.setattr(x11, "SOCKETS", str(tmp_path))
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "X6"))
        silent.listen(1)
        with pytest.raises(x11.X11Error, match=r"does not answer within 0\.2 s"):
            x11.X11(":6", timeout_s=0.2)
    with socket.socket(socket.AF_UNIX) as closer:
        closer.bind(str(tmp_path / "X7"))
        closer.listen(1)
        thread = threading.Thread(target=lambda: closer.accept()[0].close())
        thread.start()
        with pytest.raises(x11.X11Error, match="is gone"):
            x11.X11(":7", timeout_s=WAIT)
        thread.join(WAIT)


def test_a_server_that_refuses_this_user(server, tmp_path, monkeypatch):
    hostname = socket.gethostname().encode()
    cookie = bytes(range(16))
    parts = (hostname, b"", b"MIT-MAGIC-COOKIE-1", cookie)
    entry = struct.pack(">H", 256) + b"".join(struct.pack(">H", len(part)) + part for part in parts)
    (tmp_path / "auth").write_bytes(entry)
    (tmp_path / "torn").write_bytes(entry[:20])
    with Xvfb("64x48", None, "-auth", str(tmp_path / "auth")) as guarded:
        for path in ("absent", "torn"):
            monkeypatch.setenv("XAUTHORITY", str(tmp_path / path))
            text = reason(guarded.display)
            assert "refuses this user" in text
            assert "set XAUTHORITY" in text
        assert guarded.display in x11.answering()
        monkeypatch.setenv("XAUTHORITY", str(tmp_path / "auth"))
        sink = create_sink("display://0", x_display=guarded.display)
        sink.open(64, 48, 30.0)
        sink.write(frame(64, 48))
        shows(guarded, frame(64, 48).image)
        sink.close()


def test_opencv_without_windows_is_a_reason(server, tmp_path, monkeypatch):
    (tmp_path / "cv2.py").write_text("def getBuildInformation():\n    return '  GUI:      NONE\\n'\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert "this OpenCV has no windows" in reason(server.display)


def test_a_process_that_aborts_is_a_reason(server, tmp_path, monkeypatch):
    (tmp_path / "cv2.py").write_text("import os\nos.write(2, b'could not load xcb\\n')\nos.abort()\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert "ended by SIGABRT: could not load xcb" in reason(server.display)


def test_what_lies_in_the_working_directory_is_not_imported(server, opened, tmp_path, monkeypatch):
    for name in ("cv2", "socket", "numpy"):
        (tmp_path / (name + ".py")).write_text("import os\nos.write(2, b'a stray file\\n')\nos.abort()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)  # "." in there would be somebody's wish
    sink = opened()
    sink.write(frame())
    shows(server, frame().image)
    assert display.devices(server.display)[-1].state == OK
    assert ask_python("import cv2, socket; print(int(socket.AF_UNIX), bool(cv2.imread))", WAIT)[0] == "1 True\n"
    monkeypatch.setenv("PYTHONSAFEPATH", "1")  # from Python 3.11 on there is nothing to leave out then
    assert ask_python("import edgegs; print(edgegs.__name__)", WAIT)[0] == "edgegs\n"


@pytest.mark.parametrize(
    ("option", "value"),
    [("rotation_deg", 45), ("rotation_deg", True), ("overlay", 1), ("keys", 0), ("x_display", 0), ("x_display", "eDP")],
)
def test_wrong_options(option, value):
    with pytest.raises(ConfigError, match=option):
        create_sink("display://0", **{option: value})


def test_a_killed_window_is_named_and_opened_again(server, opened):
    sink = opened()
    os.kill(pid_of(sink), signal.SIGKILL)
    with pytest.raises(OutputError, match="ended by SIGKILL"):
        write_on(sink)
    sink.close()
    sink.open(WIDTH, HEIGHT, 30.0)
    sink.write(frame(seed=3))
    shows(server, frame(seed=3).image)


def test_x_server_killed_and_restarted():
    need_tools()
    first = Xvfb("160x120")
    second = None
    runner = SinkRunner(create_sink("display://0", x_display=first.display), 160, 120, 30.0, backoff_s=(0.1, 0.2))
    try:
        runner.start()
        runner.offer(frame(160, 120, seed=1))
        assert runner.wait_delivered(WAIT), runner.status()
        shows(first, frame(160, 120, seed=1).image)
        first.kill()
        eventually(lambda: runner.offer(frame(160, 120)) or runner.state == "retrying", "the loss is not seen")
        assert "X" in runner.status()["last_error"]
        second = Xvfb("160x120", first.display)
        given = frame(160, 120, seed=2)
        eventually(lambda: runner.offer(given) or runner.state == "up", str(runner.status()))
        shows(second, given.image)
        assert runner.status()["reconnects"] >= 1
    finally:
        stopped = runner.stop(WAIT)
        first.kill()
        if second is not None:
            second.stop()
    assert stopped


# ---- ends ----------------------------------------------------------------------------------------------------


def test_close_leaves_nothing(server, opened):
    before = len(os.listdir("/proc/self/fd"))
    threads = threading.active_count()
    sink = opened()
    pid = pid_of(sink)
    sink.write(frame())
    sink.close()
    assert not os.path.exists(f"/proc/{pid}")
    assert threading.active_count() == threads
    assert len(os.listdir("/proc/self/fd")) == before
    sink.close()
    with pytest.raises(OutputError, match="not open"):
        sink.write(frame())


def test_interrupt_frees_a_write_to_a_hung_window(server, opened):
    sink = opened()
    pid = pid_of(sink)
    os.kill(pid, signal.SIGSTOP)
    threading.Timer(0.3, sink.interrupt).start()
    with pytest.raises(OutputError, match="SIGKILL"):
        write_on(sink)
    sink.close()
    assert not os.path.exists(f"/proc/{pid}")


def test_the_window_ends_with_its_parent(server):
    script = (
        "import sys, time\n"
        "from edgegs.sinks import create_sink\n"
        f"sink = create_sink('display://0', x_display={server.display!r})\n"
        "sink.open(32, 24, 30.0)\n"
        "print(sink._child._process.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, cwd=os.getcwd())
    try:
        child = int(parent.stdout.readline())
        assert is_running(child)
    finally:
        parent.kill()
        parent.wait(WAIT)
        parent.stdout.close()
    eventually(lambda: not is_running(child), "the window outlives edgegs")
