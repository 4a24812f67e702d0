"""The daemon from inside, on a clock of its own: the order of frames, pacing, signals, what a run ends with."""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import scenes

import edgegs.daemon
import edgegs.drawing
import edgegs.outputs
from edgegs.camera import InputEvent
from edgegs.config import load_config
from edgegs.daemon import Daemon
from edgegs.errors import AccessError, ConfigError, DeviceError, OutputError
from edgegs.frame import STAGES, Frame
from edgegs.outputs import PacedOutput, not_ready, read_token, undelivered
from edgegs.scene import write_ply
from edgegs.sinks import Sink
from edgegs.summary import summary


@pytest.fixture
def make_daemon(tmp_path):
    def make(extra="", outputs='["null:"]'):
        write_ply(str(tmp_path / "cloud.ply"), scenes.cloud(300))
        path = tmp_path / "edgegs.yaml"
        path.write_text(
            "scene: {path: cloud.ply}\ncamera: {width: 32, height: 32}\ntelemetry: {log: {dir: null}}\n"
            f"outputs: {outputs}\n{extra}"
        )
        return Daemon(load_config(str(path)))

    return make


def frame(index=0, stage_ms=1.0, redraws=0):
    picture = np.zeros((2, 2, 3), np.uint8)
    times = dict.fromkeys(STAGES, stage_ms)
    return Frame(picture, index, index * 10**7, 5 * stage_ms, times, redraws=redraws)


# ---- the loop -------------------------------------------------------------------------------------------


class Clock:
    """Stands in for the module ``time``; moves only when somebody works or sleeps."""

    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now

    def monotonic_ns(self):
        return int(self.now * 1e9)

    def sleep(self, seconds):
        self.now += seconds


class FakeShow:
    """Draws frames one after the other, by itself when ``depth`` is 2."""

    def __init__(self, clock, depth, draw_s):
        self.clock, self.draw_s = clock, draw_s
        self.depth = depth
        self.log, self.times, self.events = [], [], []
        self.n = self.n_frames = 0
        self.idle_at = 0.0
        self.on_submit = lambda index: None

    def handle(self, event):
        self.events.append(event)

    def begin(self, path_s, paused=False):
        self.times.append(path_s)
        index, self.n = self.n, self.n + 1
        assert index - self.n_frames < self.depth, "more frames under way than there is room for"
        self.on_submit(index)
        self.log.append(f"begin {index}")
        draw_s = self.draw_s(index) if callable(self.draw_s) else self.draw_s
        self.idle_at = max(self.idle_at, self.clock.now) + draw_s
        if self.depth == 1:
            self.clock.now = self.idle_at
        return SimpleNamespace(index=index, done=self.idle_at, draw_s=draw_s)

    def collect(self, ticket):
        assert ticket.index == self.n_frames, "collected out of order"
        self.n_frames += 1
        self.clock.now = max(self.clock.now, ticket.done)
        return frame(ticket.index, 200 * ticket.draw_s)


class FakeOutput:
    label = "fake"

    def __init__(self, renderer, deliver_s):
        self.renderer, self.deliver_s = renderer, deliver_s
        self.frames = []
        self.runner = SimpleNamespace(
            state="up",
            first_delivery=threading.Event(),
            status=lambda: {"last_error": None},
            required=False,
            gave_up=False,
        )

    def new_drops(self):
        return {}

    def offer(self, frame, now):
        self.renderer.log.append(f"deliver {frame.index}")
        self.renderer.clock.now += self.deliver_s
        self.frames.append(frame.index)


@pytest.fixture
def loop(make_daemon, monkeypatch):
    def run(depth, draw_s, deliver_s=0.0, target_fps=0, frames=None, duration_s=None, on_submit=None):
        daemon = make_daemon(f"render: {{target_fps: {target_fps}}}\n")
        clock = Clock()
        monkeypatch.setattr(edgegs.daemon, "time", clock)
        renderer = FakeShow(clock, depth, draw_s)
        output = FakeOutput(renderer, deliver_s)
        if on_submit:
            renderer.on_submit = lambda index: on_submit(daemon, index)
        daemon._outputs.all = [output]
        daemon._show = renderer
        daemon._telemetry = SimpleNamespace(frame=lambda frame: None, event=lambda kind, **fields: None)
        daemon._loop(frames, duration_s)
        assert output.frames == list(range(renderer.n)), "frames were lost or came out of order"
        return renderer

    return run


def test_without_a_target_the_next_frame_is_begun_before_the_last_is_delivered(loop):
    renderer = loop(depth=2, draw_s=0.02, deliver_s=0.01, frames=4)
    begins_and_deliveries = ["begin 0", "begin 1", "deliver 0", "begin 2", "deliver 1", "begin 3", "deliver 2"]
    assert renderer.log == [*begins_and_deliveries, "deliver 3"]


def test_a_backend_that_draws_while_one_waits_gets_one_frame_at_a_time(loop):
    assert loop(depth=1, draw_s=0.02, frames=2).log == ["begin 0", "deliver 0", "begin 1", "deliver 1"]


def test_overlap_hides_the_delivery(loop):
    assert loop(depth=1, draw_s=0.025, deliver_s=0.015, duration_s=1.0).n == 25
    assert loop(depth=2, draw_s=0.025, deliver_s=0.015, duration_s=1.0).n in (40, 41)


def test_with_time_to_spare_every_frame_is_delivered_at_once(loop):
    renderer = loop(depth=2, draw_s=0.01, deliver_s=0.005, target_fps=20, frames=3)
    assert renderer.log == ["begin 0", "deliver 0", "begin 1", "deliver 1", "begin 2", "deliver 2"]


def test_a_target_that_only_overlap_can_hold_is_held_and_not_exceeded(loop):
    renderer = loop(depth=2, draw_s=0.025, deliver_s=0.015, target_fps=30, duration_s=10.0)
    assert 298 <= renderer.n <= 301
    last = renderer.n - 1  # still overlapping
    assert renderer.log[-3:] == [f"begin {last}", f"deliver {last - 1}", f"deliver {last}"]


def test_overlap_ends_when_the_scene_gets_light_again(loop):
    renderer = loop(depth=2, draw_s=lambda n: 0.04 if n < 5 else 0.005, target_fps=30, frames=12)
    log = renderer.log
    assert log.index("begin 3") < log.index("deliver 2")
    assert log[-4:] == ["begin 10", "deliver 10", "begin 11", "deliver 11"]


@pytest.mark.parametrize("depth", [1, 2])
def test_frames_counts_deliveries_and_a_stop_loses_none(loop, depth):
    assert loop(depth, 0.01, frames=1).n_frames == 1
    assert loop(depth, 0.01, frames=7).n_frames == 7

    def stop(daemon, index):
        if index == 4:
            daemon.stop("SIGTERM")

    renderer = loop(depth, 0.01, frames=100, on_submit=stop)
    assert renderer.n == renderer.n_frames == 5


# ---- what people do at a window -------------------------------------------------------------------------


def key(name):
    return InputEvent("key", key=name)


def test_space_stops_the_path_and_not_the_picture(loop):
    def press(daemon, index):
        if index in (3, 6):
            daemon._inputs.append(key(" "))

    renderer = loop(depth=1, draw_s=0.01, target_fps=10, frames=10, on_submit=press)
    assert renderer.n == 10
    # seen with the frame after it: 4, 5 and 6 show the same moment, and the path goes on from there
    assert renderer.times == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4, 0.4, 0.4, 0.4, 0.5, 0.6])


def test_q_ends_the_run_and_the_rest_moves_the_camera(loop):
    drag = InputEvent("drag", dx=0.1, dy=-0.2, button="left")

    def press(daemon, index):
        if index == 2:
            for event in (key("w"), drag, key("q"), key("s")):
                daemon._inputs.append(event)

    renderer = loop(depth=1, draw_s=0.01, frames=100, on_submit=press)
    assert renderer.n == renderer.n_frames == 3
    assert renderer.events == [key("w"), drag, key("s")]


def test_q_ends_a_run_that_still_loads(make_daemon, monkeypatch):
    daemon = make_daemon("render: {backend: reference}\n")

    def load(*arguments, **options):
        daemon._inputs.append(key("q"))
        return real(*arguments, **options)

    real = edgegs.drawing.prepare
    monkeypatch.setattr(edgegs.drawing, "prepare", load)
    assert daemon.run(frames=1) == 0
    assert daemon.frame is None


# ---- pacing of one output -------------------------------------------------------------------------------


def offered(fps, times):
    taken = []
    runner = SimpleNamespace(offer=lambda frame: taken.append(frame))
    output = PacedOutput(runner, "label", fps)
    for now in times:
        output.offer(now, now)
    return taken


def test_the_limit_holds_from_the_first_frame():
    times = [1000 + n / 100 for n in range(301)]
    taken = offered(5, times)
    assert len(taken) == 16
    assert taken[1] - taken[0] > 0.14


def test_the_limit_holds_after_a_gap():
    times = [1000 + n / 100 for n in range(100)] + [1010 + n / 100 for n in range(100)]
    taken = [now for now in offered(5, times) if now >= 1010]
    assert len(taken) <= 6
    assert taken[1] - taken[0] > 0.14


def test_the_mean_rate_is_the_limit_when_it_does_not_divide_the_frame_rate():
    assert len(offered(30, [1000 + n / 40 for n in range(4000)])) == pytest.approx(3000, abs=2)


def test_a_limit_equal_to_the_frame_rate_loses_no_frame():
    jitter = np.random.default_rng(5).uniform(-0.004, 0.004, 3000)
    assert len(offered(30, 1000 + np.arange(3000) / 30 + jitter)) == 3000
    assert len(offered(None, [1.0, 1.0, 1.0])) == 3


# ---- signals --------------------------------------------------------------------------------------------

STEPS = ("create_sink", "create", "prepare", "Renderer", "Telemetry")
MODULES = {"create_sink": edgegs.outputs, "Telemetry": edgegs.daemon}


@pytest.mark.parametrize(("step", "when"), [("prepare", "before"), *[(step, "after") for step in STEPS]])
def test_a_signal_while_starting_ends_it_after_that_step(make_daemon, monkeypatch, step, when):
    done = []

    def watched(name, function):
        def call(*arguments, **options):
            if (name, "before") == (step, when):
                os.kill(os.getpid(), signal.SIGTERM)
            result = function(*arguments, **options)
            done.append(name)
            if (name, "after") == (step, when):
                os.kill(os.getpid(), signal.SIGTERM)
            return result

        return call

    for name in STEPS:
        module = MODULES.get(name, edgegs.drawing)
        monkeypatch.setattr(module, name, watched(name, getattr(module, name)))
    daemon = make_daemon("render: {backend: reference}\n", '["null:", {uri: "null:", name: second}]')
    before = signal.getsignal(signal.SIGTERM)
    assert daemon.run(frames=1) == 0
    assert daemon.frame is None
    # told before, a scene is not even read to its end
    assert list(dict.fromkeys(done)) == list(STEPS[: STEPS.index(step) + (when == "after")])
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("first", [[signal.SIGTERM], [], ["closing"]])
def test_a_second_interrupt_ends_the_process_whatever_came_before(make_daemon, monkeypatch, first):
    exits = []
    monkeypatch.setattr(os, "_exit", exits.append)
    daemon = make_daemon()
    daemon._signals.handle()
    try:
        for number in first:
            if number == "closing":
                daemon.stop("finished")
            else:
                os.kill(os.getpid(), number)
        os.kill(os.getpid(), signal.SIGINT)
        assert exits == []
        os.kill(os.getpid(), signal.SIGTERM)
        assert exits == []
        os.kill(os.getpid(), signal.SIGINT)
        assert exits == [130]
    finally:
        daemon._signals.restore()


# ---- before and after -----------------------------------------------------------------------------------


def test_the_token_is_checked_before_the_scene_is_read(make_daemon, monkeypatch, tmp_path):
    monkeypatch.setattr(edgegs.drawing, "prepare", lambda *_, **__: pytest.fail("the scene was read"))
    daemon = make_daemon("http: {token_file: token}\n")
    with pytest.raises(ConfigError, match="no such file") as caught:
        daemon.run(frames=1)
    assert str(caught.value).count("http.token_file") == 1
    for wrong in (b"short", b"two lines of text\nare not one", b"\xff" * 20, b"a" * 5000):
        (tmp_path / "token").write_bytes(wrong)
        with pytest.raises(ConfigError, match="one line of at least 16") as caught:
            daemon.run(frames=1)
        assert str(caught.value).count("http.token_file") == 1
    (tmp_path / "token").write_bytes(b"0123456789abcdef\n")
    assert read_token(str(tmp_path / "token")) == "0123456789abcdef"


@pytest.mark.parametrize(("asked", "level"), [("auto", logging.WARNING), ("reference", logging.INFO)])
def test_falling_back_to_the_reference_is_a_warning(make_daemon, monkeypatch, caplog, asked, level):
    from edgegs.backends.reference import ReferenceBackend

    why = "backend reference, NumPy (no cuda: x; no host: y)"
    monkeypatch.setattr(edgegs.drawing, "create", lambda *_: (ReferenceBackend(), why))
    with caplog.at_level(logging.INFO):
        assert make_daemon(f"render: {{backend: {asked}}}\n").run(frames=1) == 0
    assert [record.levelno for record in caplog.records if record.message == why] == [level]


def ended(label, written=0, error=None, required=False):
    status = {"frames_written": written, "last_error": None if error is None else str(error), "frames_dropped": 0}
    runner = SimpleNamespace(required=required, error=error, status=lambda: status)
    return PacedOutput(runner, label, None)


@pytest.mark.parametrize(
    ("outputs", "code", "words"),
    [
        ([ended("a", 3), ended("b", 0, OutputError("full"))], None, ""),
        ([ended("a", 0, DeviceError("taken")), ended("b", 3, required=True)], None, ""),
        ([ended("a", 3), ended("b", 0, OutputError("full"), required=True)], 73, "b: full"),
        ([ended("a", 0, DeviceError("taken")), ended("b", 0, OutputError("full"))], 69, "a (nor to 1 more): taken"),
        ([ended("a", 0, AccessError("no"))], 77, "a: no"),
        ([ended("a", 0, PermissionError(13, "no"))], 77, "a: [Errno 13] no"),
        ([ended("a", 0, OSError(28, "full"))], 73, "a: [Errno 28] full"),
        ([ended("a", 1), ended("b", 0, DeviceError("x"), True), ended("c", 1, None, True)], 69, "b: x"),
    ],
)
def test_what_a_run_that_delivered_nothing_ends_with(outputs, code, words):
    for finished in (True, False):
        failure = undelivered(outputs, finished)
        assert (failure and failure.exit_code) == code
        assert failure is None or str(failure) == "no frame was delivered to " + words


def test_an_output_that_had_no_time_is_a_failure_only_of_a_run_that_finished():
    assert undelivered([ended("a")], finished=False) is None
    assert undelivered([ended("a")], finished=True).exit_code == 73


def test_a_required_output_that_is_down_at_the_end_is_a_failure_of_a_run_that_finished():
    outputs = [ended("a", 5, OSError(28, "full"), required=True), ended("b", 5)]
    failure = undelivered(outputs, finished=True)
    assert (failure.exit_code, str(failure)) == (73, "frames were lost at the end of a: [Errno 28] full")
    assert undelivered(outputs, finished=False) is None, "a stop finds many an output down"
    assert undelivered([ended("a", 5, OSError(28, "full")), ended("b", 5)], finished=True) is None


class Doomed(Sink):
    """Never opens, or fails when it is closed."""

    def __init__(self, uri, opening=None, closing=None):
        super().__init__(uri)
        self.opening, self.closing = opening, closing

    @classmethod
    def from_uri(cls, uri, **options):
        return cls(uri.text)

    def open(self, width, height, fps):
        if self.opening:
            raise self.opening

    def write(self, frame):
        pass

    def close(self):
        error, self.closing = self.closing, None
        if error:
            raise error


@pytest.mark.parametrize(
    ("outputs", "ends"),
    [
        ('[{uri: "null:", required: true, name: doomed}, {uri: "null:", name: fine}]', True),
        ('[{uri: "null:", name: doomed}]', True),
        ('[{uri: "null:", name: doomed}, {uri: "null:", name: fine}]', False),
    ],
)
def test_a_needed_output_that_fails_for_good_ends_the_run(make_daemon, monkeypatch, outputs, ends):
    real = edgegs.outputs.create_sink

    def create_sink(uri, **options):
        wrong = ConfigError("output null:: no such size")
        made.append(real(uri, **options) if made else Doomed("null:", opening=wrong))
        return made[-1]

    made = []
    monkeypatch.setattr(edgegs.outputs, "create_sink", create_sink)
    daemon = make_daemon("render: {backend: reference, target_fps: 50}\n", outputs)
    if not ends:
        assert daemon.run(frames=20) == 0
        return
    with pytest.raises(ConfigError, match="no such size"):
        daemon.run(frames=10**9)


def test_an_output_that_cannot_finish_says_so(make_daemon, monkeypatch, caplog):
    def create_sink(uri, **options):
        return Doomed("null:", closing=OutputError("the last 20 frames are lost"))

    monkeypatch.setattr(edgegs.outputs, "create_sink", create_sink)
    extra = "render: {backend: reference, target_fps: 50}\n"
    assert make_daemon(extra).run(frames=5) == 0
    assert "output null:: the last 20 frames are lost" in [record.message for record in caplog.records]
    assert make_daemon(extra, '[{uri: "null:", required: true}]').run(frames=5) == 73


def test_the_log_ends_after_the_outputs_have_told_what_they_dropped(make_daemon, monkeypatch, tmp_path):
    class Stuck(Doomed):
        def write(self, frame):
            released.wait(20)
            raise OutputError("gone")

    released = threading.Event()
    monkeypatch.setattr(edgegs.outputs, "create_sink", lambda uri, **options: Stuck("null:"))
    make_daemon("render: {backend: reference, target_fps: 100}\n")
    daemon = Daemon(load_config(str(tmp_path / "edgegs.yaml"), ["telemetry.log.dir=runs"]))
    stop = edgegs.outputs.stop
    monkeypatch.setattr(edgegs.outputs, "stop", lambda *arguments: (released.set(), stop(*arguments)))
    daemon.run(frames=6)
    (run,) = (tmp_path / "runs").iterdir()
    last = json.loads((run / "telemetry.jsonl").read_text().splitlines()[-1])
    status = daemon.outputs[0].status()
    assert last["type"] == "stop"
    assert last["dropped"]["null:"] == {reason: n for reason, n in status["dropped"].items() if n}
    assert status["frames_dropped"] == 6


def test_slow_outputs_are_not_taken_for_dead():
    def ready(fps, age):
        status = {"last_write_age_s": age}
        runner = SimpleNamespace(required=True, fps=fps, status=lambda: status)
        return not_ready([PacedOutput(runner, "a", None)])

    assert ready(30.0, 4.9) is None
    assert ready(30.0, 5.1) == "a: no frame for 5 s"
    assert ready(0.1, 29.0) is None
    assert ready(0.1, 31.0) == "a: no frame for 31 s"


def test_health_is_a_matter_of_frames(make_daemon):
    daemon = make_daemon("render: {target_fps: 0.2}\n")
    assert daemon.not_healthy() is None, "it still starts"
    daemon._first_ns = time.monotonic_ns() - int(14e9)
    assert daemon.not_healthy() is None
    daemon._first_ns -= int(2e9)
    assert daemon.not_healthy() == "no frame was drawn for 16 s"
    daemon.frame = frame()
    assert "no frame was drawn for" in daemon.not_healthy()


def test_the_summary_tells_of_redraws():
    assert "redraws" not in summary([frame()], 1, 0, [])
    assert "0 instances, 2 redraws\n" in summary([frame(redraws=2)], 1, 2, [])
