"""The thread behind the live picture: newest wins, a lost camera is withdrawn and found again, closing is bounded."""

from __future__ import annotations

import logging
import threading
import time

import numpy as np
import pytest

from edgegs.capture import Capture, parse
from edgegs.capture import capture as module
from edgegs.capture.base import Source
from edgegs.errors import DeviceError
from edgegs.sinks.runner import Clock

WAIT = 20.0  # seconds until a test that would hang fails instead
URI = parse("v4l2:///dev/video0")


class FakeClock(Clock):
    """Waiting takes no time, and moves the clock."""

    def __init__(self):
        self.time = 1000.0
        self.waits = []

    def now(self):
        return self.time

    def wait(self, condition, timeout):
        self.waits.append(timeout)
        self.time += timeout


class ScriptedSource(Source):
    """Each open and read plays the next entry: an exception, a level of grey, None (still holds), or a function."""

    def __init__(self, opens=(), reads=()):
        super().__init__(URI, None)
        self.opens, self.reads = list(opens), list(reads)
        self.calls = []
        self.idle, self.go_on = threading.Semaphore(0), threading.Semaphore(0)

    def open(self):
        self.calls.append("open")
        self._play(self.opens.pop(0) if self.opens else None)

    def read(self):
        if not self.reads:
            self.idle.release()  # hangs here, like a driver, until the test goes on
            self.go_on.acquire()
        return self._play(self.reads.pop(0) if self.reads else None)

    def close(self):
        self.calls.append("close")

    @staticmethod
    def _play(entry):
        if callable(entry):
            entry = entry()
        if isinstance(entry, Exception):
            raise entry
        return None if entry is None else np.full((6, 8, 3), entry, np.uint8)

    def wait_idle(self):
        assert self.idle.acquire(timeout=WAIT)

    def play(self, *reads):
        """Let a hanging read go on with these, and wait until they are used up."""
        self.reads.extend(reads)
        self.go_on.release()
        self.wait_idle()


@pytest.fixture
def started():
    """(source) -> its running capture of 4 x 3 pixels, and its clock."""
    captures = []

    def start(source, **options):
        clock = FakeClock()
        capture = Capture(URI, 4, 3, clock=clock, source=source, **options)
        captures.append((capture, source))
        capture.start()
        return capture, clock

    yield start
    for capture, source in captures:
        capture._stopping = True
        source.go_on.release()
        capture._thread.join(WAIT)
        assert not capture._thread.is_alive()


def lost(text="lost"):
    return DeviceError(f"background {URI}: {text}")


def test_newest_picture_of_the_right_size(started):
    source = ScriptedSource(reads=[10, 20, 30])
    capture, _ = started(source)
    source.wait_idle()
    picture = capture.latest()
    assert picture.shape == (3, 4, 3)
    assert picture.dtype == np.uint8
    assert picture.flags.c_contiguous
    assert (picture == 30).all()
    assert capture.latest() is picture
    source.play(40)
    assert (capture.latest() == 40).all()
    assert (picture == 30).all()  # what was handed out is never written to again


def test_nothing_before_the_first_picture():
    capture = Capture(URI, 4, 3, source=ScriptedSource())
    assert capture.latest() is None
    assert capture.status() == {
        "uri": "v4l2:///dev/video0",
        "state": "starting",
        "fps": 0.0,
        "frames": 0,
        "reconnects": 0,
        "last_error": None,
        "age_s": None,
    }
    capture.close()
    capture.close()
    assert capture.status()["state"] == "stopped"


def test_silent_source_is_withdrawn_and_comes_back(started):
    source = ScriptedSource(reads=[10])
    capture, clock = started(source)
    source.wait_idle()
    clock.time += module.LOST_S
    assert (capture.latest() == 10).all()
    assert capture.status()["state"] == "up"
    clock.time += 0.5
    assert capture.latest() is None
    status = capture.status()
    assert (status["state"], status["age_s"], status["fps"]) == ("retrying", 2.5, 0.0)
    assert status["last_error"] == "no picture for 2 s"
    source.play(20)
    assert (capture.latest() == 20).all()
    assert capture.status()["state"] == "up"
    assert capture.status()["last_error"] is None


def test_picture_that_still_holds_is_not_withdrawn(started):
    source = ScriptedSource(reads=[10])
    capture, clock = started(source)
    source.wait_idle()
    clock.time += 100
    source.play(None)
    assert (capture.latest() == 10).all()
    assert capture.status()["age_s"] == 0.0
    assert capture.status()["frames"] == 1


def test_source_that_hangs_while_it_opens_is_reported(started):
    gate = threading.Semaphore(0)
    source = ScriptedSource(opens=[lambda: gate.acquire() and None], reads=[10])
    capture, clock = started(source)
    try:
        deadline = time.monotonic() + WAIT
        while not source.calls and time.monotonic() < deadline:
            time.sleep(0.001)
        clock.time += module.SLOW_S
        assert capture.status()["state"] == "starting"
        clock.time += 1
        assert capture.status()["state"] == "retrying"
        assert capture.status()["last_error"] == "does not answer for 11 s"
    finally:
        gate.release()
    source.wait_idle()
    assert capture.status()["state"] == "up"


def test_retries_with_back_off_and_says_so(started, caplog):
    caplog.set_level(logging.INFO, "edgegs.capture")
    source = ScriptedSource(opens=[lost("no such device")] * 7, reads=[10])
    capture, clock = started(source)
    source.wait_idle()
    assert clock.waits == [1, 2, 4, 8, 16, 30, 30]
    assert source.calls == ["open", "close"] * 7 + ["open"]
    assert capture.status()["state"] == "up"
    assert capture.status()["reconnects"] == 0
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0] == "background v4l2:///dev/video0: no such device; retrying"
    assert len([line for line in lines if "retrying" in line]) == 4  # three at once, then one a minute
    assert lines[-1] == "background v4l2:///dev/video0: up"


def test_lost_and_back(started, caplog):
    caplog.set_level(logging.INFO, "edgegs.capture")
    source = ScriptedSource(reads=[10, lost("unplugged"), 20])
    capture, clock = started(source)
    source.wait_idle()
    assert source.calls == ["open", "close", "open"]
    assert (capture.latest() == 20).all()
    assert capture.status()["reconnects"] == 1
    assert capture.status()["frames"] == 2
    assert clock.waits == [1]
    clock.time += 40  # up for longer than the longest wait: the waits start over
    source.play(lost(), lost(), 30)
    assert clock.waits == [1, 1, 2]
    assert [record.getMessage().partition(": ")[2] for record in caplog.records[:3]] == [
        "up",
        "unplugged; retrying",
        "up",
    ]


def test_camera_that_gives_one_picture_and_fails_is_not_tried_every_second(started):
    source = ScriptedSource(reads=[10, lost()] * 7 + [10])
    _, clock = started(source)
    source.wait_idle()
    assert clock.waits == [1, 2, 4, 8, 16, 30, 30]


def test_picture_outlives_a_short_loss_only(started):
    seen, ready = [], threading.Event()
    source = ScriptedSource(reads=[10, lost()])
    source.opens = [
        lambda: ready.wait(WAIT) and None,
        lambda: seen.append(capture.latest()) or lost(),
        lambda: seen.append(capture.latest()),
    ]
    capture, _ = started(source)
    ready.set()
    source.wait_idle()
    assert (seen[0] == 10).all()  # after one second
    assert seen[1] is None  # after three
    status = capture.status()
    assert (status["state"], status["last_error"]) == ("retrying", "lost")


def test_any_exception_is_survived(started):
    source = ScriptedSource(reads=[MemoryError("too much"), ZeroDivisionError("x"), 10])
    capture, _ = started(source)
    source.wait_idle()
    assert (capture.latest() == 10).all()


def test_unforeseen_error_is_named(started):
    source = ScriptedSource(opens=[None, lambda: None], reads=[ZeroDivisionError("a\nb")])
    capture, _ = started(source)
    source.wait_idle()
    assert capture.status()["last_error"] == "ZeroDivisionError: a b"


def test_rate(started):
    source = ScriptedSource()
    capture, clock = started(source)
    source.wait_idle()
    for _ in range(50):
        clock.time += 0.05
        source.play(10)
    assert capture.status()["fps"] == 20.0
    clock.time += 60  # a gap is no rate
    source.play(10)
    assert capture.status()["fps"] == 0.0
    clock.time += 0.1
    source.play(10)
    assert capture.status()["fps"] == 10.0
    assert capture.status()["frames"] == 52


def test_close_leaves_a_hanging_source_behind(caplog, monkeypatch):
    monkeypatch.setattr(module, "CLOSE_S", 0.1)
    source = ScriptedSource(reads=[10])
    capture = Capture(URI, 4, 3, source=source)
    capture.start()
    source.wait_idle()
    assert capture.latest() is not None
    capture.close()
    assert capture._thread.is_alive()
    assert capture._thread.daemon
    assert "background v4l2:///dev/video0: did not close within 0.1 s; leaving it" in caplog.text
    assert capture.latest() is None
    assert capture.status()["state"] == "stopped"
    capture.close()
    source.reads.append(20)  # the driver answers at last: the thread tidies up, and shows nothing
    source.go_on.release()
    capture._thread.join(WAIT)
    assert not capture._thread.is_alive()
    assert source.calls[-1] == "close"
    assert capture.latest() is None
    assert capture.status()["state"] == "stopped"


def test_close_ends_a_wait_between_attempts():
    source = ScriptedSource(opens=[lost()] * 99)
    capture = Capture(URI, 4, 3, source=source)
    capture.start()
    deadline = time.monotonic() + WAIT
    while capture.status()["state"] != "retrying" and time.monotonic() < deadline:
        time.sleep(0.001)
    capture.close()
    assert not capture._thread.is_alive()
    assert source.calls == ["open", "close"]


def test_arguments():
    with pytest.raises(ValueError, match="fit is 'fill'; expected one of cover, contain, stretch"):
        Capture(URI, 4, 3, fit="fill")
    for wrong in ((0, 3, 30.0), (4, -1, 30.0), (4, 3, 0.0), (4, 3, float("nan"))):
        with pytest.raises(ValueError, match="pixels at"):
            Capture(URI, wrong[0], wrong[1], fps=wrong[2])
