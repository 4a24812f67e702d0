"""The placeholder: outputs that people watch show it while a scene loads; files never hold one."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from edgegs.frame import Frame
from edgegs.outputs import PacedOutput, not_ready
from edgegs.placeholder import Placeholder, picture
from edgegs.sinks import Sink, SinkRunner

WAIT = 20.0  # seconds until a test that would hang fails instead


class Screen(Sink):
    live = True

    def __init__(self, uri="screen:"):
        super().__init__(uri)
        self.got = []
        self.arrived = threading.Semaphore(0)

    @classmethod
    def from_uri(cls, uri, **options):
        return cls()

    def open(self, width, height, fps):
        pass

    def write(self, frame):
        self.got.append(frame)
        self.arrived.release()


class Film(Screen):
    live = False


@pytest.fixture
def outputs():
    made = []

    def make(*sinks):
        for sink in sinks:
            runner = SinkRunner(sink, 64, 48, 30.0, required=True)
            runner.start()
            made.append(PacedOutput(runner, sink.uri, None))
        return made

    yield make
    for output in made:
        output.runner.stop(WAIT)


def test_screens_show_it_until_the_scene_comes_and_films_do_not(outputs):
    screen, film = Screen(), Film("film:")
    made = outputs(screen, film)
    told = [("loading a.ply", 0.25)]
    placeholder = Placeholder(made, 64, 48, lambda: told[0])
    placeholder.start()
    assert screen.arrived.acquire(timeout=WAIT)
    told[0] = ("loading a.ply", 0.75)
    until = time.monotonic() + WAIT
    while np.array_equal(screen.got[-1].image, screen.got[0].image) and time.monotonic() < until:
        screen.arrived.acquire(timeout=1.0)
    assert not np.array_equal(screen.got[-1].image, screen.got[0].image), "the bar moved"
    placeholder.stop()
    shown = len(screen.got)
    assert all(frame.placeholder for frame in screen.got)
    # shown, but not delivered: nobody may take the output for ready
    status = made[0].runner.status()
    assert (status["state"], status["frames_written"], status["last_write_age_s"]) == ("up", 0, None)
    assert not made[0].runner.first_delivery.is_set()
    assert not_ready(made) == "screen:: no frame yet; film:: no frame yet"

    first = Frame(np.zeros((48, 64, 3), np.uint8), 0, time.monotonic_ns(), 1.0)
    for output in made:
        output.offer(first, time.monotonic())
    assert all(output.runner.wait_delivered(WAIT) for output in made)
    assert screen.got[-1] is first
    assert [frame.placeholder for frame in screen.got].count(True) <= shown + 1
    assert film.got == [first]
    assert not_ready(made) is None
    assert all(output.runner.status()["frames_dropped"] == 0 for output in made)


def test_a_placeholder_that_gives_way_is_no_dropped_frame():
    class Slow(Screen):
        gate = threading.Event()

        def write(self, frame):
            self.gate.wait(WAIT)
            super().write(frame)

    sink = Slow()
    runner = SinkRunner(sink, 64, 48, 30.0)
    empty = Frame(np.zeros((48, 64, 3), np.uint8), 0, 0, 0.0, placeholder=True)
    for _ in range(4):
        runner.offer(empty)
    real = Frame(empty.image, 0, 0, 1.0)
    runner.offer(real)
    assert runner.status()["frames_dropped"] == 0
    runner.offer(real)
    assert runner.status()["frames_dropped"] == 1
    runner.start()
    sink.gate.set()
    assert runner.stop(WAIT)
    assert [frame.placeholder for frame in sink.got] == [False]


def test_nothing_runs_where_nobody_watches(outputs):
    placeholder = Placeholder(outputs(Film()), 64, 48, lambda: pytest.fail("nobody asked"))
    placeholder.start()
    placeholder.stop()
    placeholder.stop()


@pytest.mark.parametrize("size", [(16, 16), (640, 360), (360, 640), (8192, 16)])
@pytest.mark.parametrize("text", ["", "loading lobby.ply", "loading " + "long" * 60 + ".ply", "loading Wüste.ply"])
def test_the_picture_fits_any_size(size, text):
    image = picture(*size, text, 0.5)
    assert image.shape == (size[1], size[0], 3)
    assert image.dtype == np.uint8
    assert image.max() > 60, "the bar at least can be seen"
    if size == (640, 360) and "lobby" in text:
        columns = np.nonzero(image.max(axis=2) > 150)[1]
        assert columns.min() > 0
        assert columns.max() < 639
        assert np.array_equal(picture(*size, text, 7.0), picture(*size, text, 1.0))
