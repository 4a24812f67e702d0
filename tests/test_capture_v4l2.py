"""A camera through OpenCV. No camera is here: a stand-in behaves as ``cv2.VideoCapture`` does, and fails as it does."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
import threading

import cv2
import numpy as np
import pytest
from capture_support import WAIT, FakeTime, wait_for

from edgegs.capture import Capture, parse
from edgegs.capture.base import Timing
from edgegs.capture.sources import create
from edgegs.capture.v4l2 import V4l2Source, check_node
from edgegs.errors import AccessError, DeviceError
from edgegs.sinks import v4l2_api
from edgegs.sinks.backoff import Backoff

URI = parse("v4l2:///dev/video0")
SHOWN = "background v4l2:///dev/video0"


class FakeCapture:
    """``cv2.VideoCapture`` of a camera of 640 x 480 that gives ``script``: grey levels, None where broken."""

    def __init__(self, script, time=None, period=0.0, opened=True, shape=(480, 640, 3), blocks=None):
        self.script, self.time, self.period, self.opened = list(script), time, period, opened
        self.shape, self.blocks = shape, blocks
        self.sets, self.made_with, self.released = [], None, 0
        self.n_retrieved = 0

    def __call__(self, *arguments):
        self.made_with = arguments
        return self

    def isOpened(self):
        return self.opened

    def set(self, name, value):
        self.sets.append((name, value))
        return False  # what a driver does with a wish is its own affair

    def get(self, name):
        return {cv2.CAP_PROP_FRAME_WIDTH: self.shape[1], cv2.CAP_PROP_FRAME_HEIGHT: self.shape[0]}[name]

    def grab(self):
        if self.blocks is not None and not self.script:
            self.blocks.wait(WAIT)
        if not self.script:
            return False
        if self.time is not None:
            self.time.time += self.period
        self.now = self.script.pop(0)
        return True

    def retrieve(self):
        self.n_retrieved += 1
        return (False, None) if self.now is None else (True, np.full(self.shape, self.now, np.uint8))

    def release(self):
        self.released += 1


def opened(fake, time, width=640, height=480, fps=30.0):
    source = V4l2Source(URI, time.timing, width, height, fps, open_capture=fake, check=lambda path, shown: None)
    source.open()
    return source


def test_what_the_camera_is_asked_for():
    for size, asks_mjpg in (((640, 480), False), ((1280, 720), True)):
        fake = FakeCapture([1])
        opened(fake, FakeTime(), *size)
        assert fake.made_with == ("/dev/video0", cv2.CAP_V4L2)
        wishes = dict(fake.sets)
        assert wishes[cv2.CAP_PROP_BUFFERSIZE] == 2  # one is decoded while the other is filled
        assert (wishes[cv2.CAP_PROP_FRAME_WIDTH], wishes[cv2.CAP_PROP_FRAME_HEIGHT]) == size
        assert wishes[cv2.CAP_PROP_FPS] == 30.0
        assert (wishes.get(cv2.CAP_PROP_FOURCC) == cv2.VideoWriter_fourcc(*"MJPG")) is asks_mjpg
        names = [name for name, _ in fake.sets]
        if asks_mjpg:  # the sizes on offer depend on it
            assert names.index(cv2.CAP_PROP_FOURCC) < names.index(cv2.CAP_PROP_FRAME_WIDTH)


def test_link_is_followed_at_each_opening(tmp_path):
    link = tmp_path / "usb-camera"
    fake = FakeCapture([1, 2])
    source = V4l2Source(
        URI.with_path(str(link)), FakeTime().timing, 64, 48, 30.0, open_capture=fake, check=lambda path, shown: None
    )
    for name in ("video3", "video4"):
        link.symlink_to(tmp_path / name)
        source.open()
        assert fake.made_with[0] == os.path.realpath(str(tmp_path / name))
        source.close()
        link.unlink()


def test_pictures_beyond_the_rate_are_not_decoded():
    time = FakeTime()
    fake = FakeCapture(range(1, 61), time, period=1 / 60)
    source = opened(fake, time, fps=20.0)
    got = [int(source.read()[0, 0, 0]) for _ in range(20)]
    assert got == list(range(1, 60, 3))
    assert fake.n_retrieved == 20


def test_camera_slower_than_the_rate_loses_nothing():
    time = FakeTime()
    source = opened(FakeCapture(range(1, 11), time, period=1 / 15), time, fps=30.0)
    assert [int(source.read()[0, 0, 0]) for _ in range(10)] == list(range(1, 11))


def test_camera_of_the_same_rate_with_jitter_loses_nothing():
    time = FakeTime()
    fake = FakeCapture(range(1, 41), time)
    source = opened(fake, time, fps=30.0)
    got = []
    for k in range(40):
        fake.period = (1 + (0.2 if k % 2 else -0.2)) / 30
        got.append(int(source.read()[0, 0, 0]))
    assert got == list(range(1, 41))


def test_broken_pictures_are_passed_over_and_many_are_an_error():
    time = FakeTime()
    source = opened(FakeCapture([None] * 29 + [7] + [None] * 30, time, period=0.1), time)
    assert int(source.read()[0, 0, 0]) == 7
    with pytest.raises(DeviceError, match=f"^{SHOWN}: 30 broken pictures in a row; check its cable$"):
        source.read()


def test_unplugged():
    source = opened(FakeCapture([]), FakeTime())
    with pytest.raises(DeviceError, match=f"^{SHOWN}: gives no more pictures; is the camera still plugged in"):
        source.read()


def test_cannot_capture():
    fake = FakeCapture([], opened=False)
    with pytest.raises(DeviceError, match=f"^{SHOWN}: OpenCV cannot capture from it: in use .*fuser -v /dev/video0"):
        opened(fake, FakeTime())


@pytest.mark.parametrize(
    ("shape", "says"), [((480, 640), None), ((480, 640, 2), r"gives pictures of shape \(480, 640, 2\)")]
)
def test_grey_and_strange_cameras(shape, says):
    source = opened(FakeCapture([9], shape=shape), FakeTime())
    if says is None:
        assert (source.read() == np.full((480, 640, 3), 9)).all()
    else:
        with pytest.raises(DeviceError, match=says):
            source.read()


def test_enormous_pictures_are_refused():
    with pytest.raises(DeviceError, match="100000 x 100000 pixels are too many"):
        opened(FakeCapture([1], shape=(100000, 100000, 3)), FakeTime())


def test_closing():
    time = FakeTime()
    fake = FakeCapture([1])
    source = opened(fake, time)
    time.closing = True
    assert source.read() is None
    source.close()
    source.close()
    assert fake.released == 1
    with pytest.raises(DeviceError, match="not open"):
        source.read()


def test_camera_that_blocks_is_lost_and_comes_back():
    """Unplugged: OpenCV's grab hangs for ten seconds, then says no. Plugged in again: the next opening works."""
    unplugged = threading.Event()
    cameras = [
        FakeCapture([10], blocks=unplugged),
        FakeCapture([], opened=False),
        FakeCapture([20], blocks=threading.Event()),
    ]
    back = threading.Event()
    captures = iter(cameras)

    def open_capture(path, backend):
        camera = next(captures)
        if camera is cameras[2]:
            back.set()
        return camera

    capture = Capture(URI, 640, 480)
    capture._backoff = Backoff(0.01, 0.02)
    timing = Timing(capture._clock.now, capture._pause)
    capture._source = V4l2Source(URI, timing, 640, 480, 30.0, open_capture, check=lambda path, shown: None)
    capture.start()
    try:
        wait_for(lambda: capture.latest() is not None)
        assert (capture.latest() == 10).all()
        unplugged.set()
        assert back.wait(WAIT)
        wait_for(lambda: capture.status()["frames"] == 2)
        assert (capture.latest() == 20).all()
        wait_for(lambda: capture.status()["reconnects"] == 1)
        assert [camera.released for camera in cameras] == [1, 1, 0]
    finally:
        cameras[2].blocks.set()
        capture.close()
    assert not capture._thread.is_alive()
    assert cameras[2].released == 1


# ---- the node -------------------------------------------------------------------------------------------


def says(path):
    with pytest.raises((DeviceError, AccessError)) as caught:
        check_node(str(path), SHOWN)
    text = str(caught.value)
    assert text.startswith(SHOWN + ": ")
    assert text.isprintable()
    return type(caught.value), text[len(SHOWN) + 2 :]


def test_absent_node(tmp_path):
    kind, text = says(tmp_path / "video0")
    assert kind is DeviceError
    assert text == "no such device; is the camera plugged in? `edgegs devices` lists cameras"


def test_not_a_video_device(tmp_path):
    file, fifo = tmp_path / "file", tmp_path / "fifo"
    file.write_text("x")
    os.mkfifo(str(fifo))
    for path in ("/dev/null", "/dev/zero", file, fifo, tmp_path):
        assert says(path) == (DeviceError, "not a video device; `edgegs devices` lists cameras")


def test_other_devices_are_never_opened(monkeypatch):
    """Opening /dev/watchdog would reboot the board a minute later."""
    monkeypatch.setattr(os, "open", lambda *_: pytest.fail("opened"))
    assert says("/dev/null")[0] is DeviceError


@pytest.fixture
def node(monkeypatch):
    """Stands in for /dev/video0: (error of open, error of ioctl, capabilities, device_caps) -> its path."""

    def make(opening=None, asking=None, capabilities=0, device_caps=0):
        real_stat, real_open = os.stat, os.open
        fields = (stat.S_IFCHR | 0o660, 1, 1, 1, 0, 44, 0, 0, 0, 0)
        video = os.stat_result(fields, {"st_rdev": os.makedev(81, 0)})

        def fake_stat(path, **more):
            return video if path == "/dev/video0" else real_stat(path, **more)

        def fake_open(path, *arguments, **more):
            if path != "/dev/video0":
                return real_open(path, *arguments, **more)
            if opening:
                raise OSError(opening, os.strerror(opening), path)
            return real_open("/dev/null", os.O_RDWR)

        def fake_ioctl(descriptor, request, answer, mutate):
            assert request == 2 << 30 | 104 << 16 | ord("V") << 8  # _IOR('V', 0, struct v4l2_capability)
            assert ctypes.sizeof(answer) == 104
            if asking:
                raise OSError(asking, os.strerror(asking))
            struct.pack_into("=II", answer, 84, capabilities, device_caps)

        monkeypatch.setattr(os, "stat", fake_stat)
        monkeypatch.setattr(os, "open", fake_open)
        monkeypatch.setattr(v4l2_api.fcntl, "ioctl", fake_ioctl)
        return "/dev/video0"

    return make


@pytest.mark.parametrize(
    ("code", "kind", "text"),
    [
        (errno.EACCES, AccessError, "permission denied; add the user to the group video"),
        (errno.EPERM, AccessError, "permission denied"),
        (errno.EBUSY, DeviceError, "in use by another program; `fuser -v "),
        (errno.ENODEV, DeviceError, "the node is there, its device is not"),
        (errno.ENXIO, DeviceError, "the node is there, its device is not"),
        (errno.EIO, DeviceError, "cannot be opened: Input/output error; see `dmesg`"),
    ],
)
def test_node_that_cannot_be_opened(node, code, kind, text):
    got = says(node(opening=code))
    assert got[0] is kind
    assert text in got[1]


def test_node_that_is_no_camera(node):
    assert "not a video device" in says(node(asking=errno.ENOTTY))[1]
    assert "the node is there, its device is not" in says(node(asking=errno.ENODEV))[1]
    for capabilities, device_caps in ((0x04200002, 0), (0x84A00001, 0x04A00000)):  # an output; a metadata node
        text = says(node(capabilities=capabilities, device_caps=device_caps))[1]
        assert text.startswith("not a camera: it gives no pictures (most cameras have a second node)")


def test_camera(node):
    n_open = len(os.listdir("/proc/self/fd"))
    for capabilities, device_caps in ((0x04000001, 0), (0x84A00001, 0x04200001), (0x84201000, 0x04201000)):
        check_node(node(capabilities=capabilities, device_caps=device_caps), SHOWN)
    assert len(os.listdir("/proc/self/fd")) == n_open


def test_real_node_without_a_device(tmp_path):
    path = tmp_path / "video0"
    try:
        os.mknod(str(path), stat.S_IFCHR | 0o600, os.makedev(81, 63))
    except OSError as error:
        pytest.skip(f"this user may not make device nodes ({error.strerror}): the real ENXIO is not tested")
    kind, text = says(path)
    assert kind in (DeviceError, AccessError)  # a container may forbid it instead
    assert "its device is not" in text or "permission denied" in text


def test_real_opencv_on_an_absent_camera_is_silent(capfd):
    if os.path.exists("/dev/video63"):
        pytest.skip("there is a /dev/video63: the absent camera is not tested")
    before = cv2.utils.logging.getLogLevel()
    source = V4l2Source(
        parse("v4l2:///dev/video63"), FakeTime().timing, 64, 48, 30.0, check=lambda path, shown: None
    )
    with pytest.raises(DeviceError, match="OpenCV cannot capture from it"):
        source.open()
    assert capfd.readouterr() == ("", "")
    assert cv2.utils.logging.getLogLevel() == before


def test_create_asks_for_the_size_of_the_render():
    source = create(URI, 863, 480, "cover", 25.0, FakeTime().timing)
    assert isinstance(source, V4l2Source)
    assert (source._width, source._height, source._fps) == (863, 480, 25.0)
