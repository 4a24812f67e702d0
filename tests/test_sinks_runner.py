"""The thread that drives a sink: latest frame wins, failures are survived, stopping is bounded."""

from __future__ import annotations

import logging
import threading
import time

import numpy as np

from edgegs.errors import ConfigError, DeviceError, OutputError
from edgegs.frame import Frame
from edgegs.sinks import Sink, SinkRunner, create_sink
from edgegs.sinks.runner import Clock

WAIT = 20.0  # seconds until a test that would hang fails instead


def frame(index, width=8, height=6):
    return Frame(np.full((height, width, 3), index % 256, np.uint8), index, time.monotonic_ns(), 1.0)


class ScriptedSink(Sink):
    """Opens and writes as told; a write may be held at a gate."""

    def __init__(self, opens=(), writes=(), gated=False, uri="test:"):
        super().__init__(uri)
        self.opens, self.writes = list(opens), list(writes)  # one entry a call: an exception, or None
        self.gate = threading.Semaphore(0) if gated else None
        self.entered = threading.Semaphore(0)
        self.wrote = threading.Semaphore(0)
        self.got, self.calls = [], []
        self.interrupted = threading.Event()

    @classmethod
    def from_uri(cls, uri, **options):
        return cls()

    def open(self, width, height, fps):
        self.calls.append(("open", width, height, fps))
        self._play(self.opens)

    def write(self, frame):
        self.entered.release()
        if self.gate is not None:
            self.gate.acquire()
        self._play(self.writes)
        self.got.append(frame)
        self.wrote.release()

    def close(self):
        self.calls.append(("close",))

    def interrupt(self):
        self.interrupted.set()

    @staticmethod
    def _play(script):
        outcome = script.pop(0) if script else None
        if outcome is not None:
            raise outcome


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


def acquire(semaphore, times=1):
    for _ in range(times):
        assert semaphore.acquire(timeout=WAIT)


def until(condition):
    limit = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.001)


def running(sink, **options):
    runner = SinkRunner(sink, 8, 6, 30.0, **options)
    runner.start()
    return runner


def test_latest_frame_wins_and_drops_are_counted():
    sink = ScriptedSink(gated=True)
    runner = running(sink)
    assert runner.wait_attempted(WAIT)
    runner.offer(frame(0))
    acquire(sink.entered)  # frame 0 is being written, slowly
    for index in range(1, 100):
        runner.offer(frame(index))
    for _ in range(2):
        sink.gate.release()
    acquire(sink.wrote, 2)
    assert [f.index for f in sink.got] == [0, 99]
    assert runner.stop(WAIT)
    status = runner.status()
    assert (status["frames_written"], status["frames_dropped"]) == (2, 98)
    assert status["dropped"] == {"slow": 98, "down": 0}
    assert status["state"] == "stopped"


def test_queue_keeps_order_and_drops_the_oldest():
    sink = ScriptedSink(gated=True)
    sink.queue = 3
    runner = running(sink)
    assert runner.wait_attempted(WAIT)
    runner.offer(frame(0))
    acquire(sink.entered)
    for index in range(1, 6):
        runner.offer(frame(index))
    for _ in range(4):
        sink.gate.release()
    acquire(sink.wrote, 4)
    assert [f.index for f in sink.got] == [0, 3, 4, 5]
    assert runner.stop(WAIT)
    assert runner.status()["frames_dropped"] == 2


def test_offer_does_not_wait_for_a_hung_sink():
    sink = ScriptedSink(gated=True)
    runner = running(sink)
    runner.offer(frame(0))
    acquire(sink.entered)
    done = threading.Event()
    threading.Thread(target=lambda: ([runner.offer(frame(i)) for i in range(1000)], done.set())).start()
    assert done.wait(WAIT)
    sink.gate.release()
    sink.gate.release()
    assert runner.stop(WAIT)


def test_delivery_is_reported_only_after_a_write():
    sink = ScriptedSink(gated=True)
    runner = running(sink)
    assert runner.wait_attempted(WAIT)
    assert runner.state == "up"
    assert not runner.wait_delivered(0)
    runner.offer(frame(0))
    acquire(sink.entered)
    assert not runner.first_delivery.is_set()
    sink.gate.release()
    assert runner.wait_delivered(WAIT)
    assert runner.status()["last_write_age_s"] >= 0
    assert runner.stop(WAIT)


def test_open_is_retried_with_back_off_and_the_latest_frame_is_kept():
    clock = FakeClock()
    sink = ScriptedSink(opens=[DeviceError("output test:: unplugged")] * 8)
    runner = SinkRunner(sink, 8, 6, 30.0, clock=clock)
    runner.offer(frame(6))
    runner.offer(frame(7))
    runner.start()
    acquire(sink.wrote)
    assert clock.waits == [1, 2, 4, 8, 16, 30, 30, 30]
    assert [f.index for f in sink.got] == [7]
    assert runner.state == "up"
    assert runner.error is None
    assert runner.stop(WAIT)
    status = runner.status()
    assert status["dropped"] == {"slow": 0, "down": 1}
    assert status["reconnects"] == 0  # it had never been up before


def test_first_failure_is_there_for_the_daemon_to_judge():
    gate = threading.Event()

    class HeldClock(FakeClock):
        def wait(self, condition, timeout):
            gate.set()
            Clock.wait(self, condition, WAIT)

    error = DeviceError("output test:: port 1 is in use")
    sink = ScriptedSink(opens=[error])
    runner = running(sink, required=True, clock=HeldClock())
    assert gate.wait(WAIT)
    assert sink.calls == [("open", 8, 6, 30.0), ("close",)]  # nothing half open stays behind
    assert runner.wait_attempted(WAIT)
    assert runner.state == "retrying"
    assert runner.error is error
    assert runner.error.exit_code == 69
    assert runner.status()["last_error"] == "port 1 is in use"  # the output is named once
    assert runner.status()["required"] is True
    assert runner.stop(WAIT)  # wakes from the back-off at once
    assert runner.state == "stopped"


def test_write_error_reconnects():
    clock = FakeClock()
    sink = ScriptedSink(writes=[None, OutputError("gone"), None])
    runner = running(sink, clock=clock)
    runner.offer(frame(0))
    acquire(sink.wrote)
    runner.offer(frame(1))  # fails
    acquire(sink.entered, 2)
    until(lambda: runner.status()["reconnects"] == 1)
    runner.offer(frame(2))
    acquire(sink.wrote)
    assert runner.stop(WAIT)
    assert [f.index for f in sink.got] == [0, 2]
    assert [call[0] for call in sink.calls] == ["open", "close", "open", "close"]
    status = runner.status()
    assert (status["frames_written"], status["reconnects"], status["dropped"]["down"]) == (2, 1, 1)
    assert clock.waits == [1]


def test_after_a_long_time_up_the_first_retry_comes_soon_again():
    clock = FakeClock()
    sink = ScriptedSink(opens=[OutputError("no")] * 3, writes=[None, OutputError("gone")])
    runner = running(sink, clock=clock)
    runner.offer(frame(0))
    acquire(sink.wrote)
    assert clock.waits == [1, 2, 4]
    clock.time += 30
    runner.offer(frame(1))  # fails
    until(lambda: runner.status()["reconnects"] == 1)
    assert clock.waits == [1, 2, 4, 1]
    assert runner.stop(WAIT)


def test_configuration_error_is_final():
    sink = ScriptedSink(opens=[ConfigError("never")])
    runner = running(sink, clock=FakeClock())
    runner._thread.join(WAIT)
    assert runner.state == "failed"
    for index in range(5):
        runner.offer(frame(index))
    assert runner.stop(WAIT)
    assert runner.state == "failed"
    assert sum(call[0] == "open" for call in sink.calls) == 1


def test_unforeseen_exception_is_survived_and_named():
    clock = FakeClock()
    sink = ScriptedSink(opens=[ZeroDivisionError("division by zero")], writes=[KeyError("x")])
    runner = running(sink, clock=clock)
    runner.offer(frame(0))
    acquire(sink.entered)
    until(lambda: runner.status()["reconnects"] == 1)
    runner.offer(frame(1))
    acquire(sink.wrote)
    assert runner.stop(WAIT)
    assert [f.index for f in sink.got] == [1]


def test_stop_flushes_what_waits():
    sink = ScriptedSink()
    sink.queue = 8
    runner = SinkRunner(sink, 8, 6, 30.0)
    runner.start()
    assert runner.wait_attempted(WAIT)
    for index in range(5):
        runner.offer(frame(index))
    assert runner.stop(WAIT)
    assert [f.index for f in sink.got] == [0, 1, 2, 3, 4]
    assert sink.calls[-1] == ("close",)
    runner.offer(frame(9))  # after the end: ignored
    assert runner.status()["frames_dropped"] == 0


def test_stop_is_bounded_when_the_sink_hangs():
    sink = ScriptedSink(gated=True)
    runner = running(sink)
    runner.offer(frame(0))
    acquire(sink.entered)
    assert runner.stop(timeout=0.2) is False
    assert sink.interrupted.is_set()
    assert runner._thread.daemon  # so the process can end all the same
    sink.gate.release()
    runner._thread.join(WAIT)
    assert not runner._thread.is_alive()


def test_interrupt_frees_a_sink_that_hangs_at_stop():
    class Interruptible(ScriptedSink):
        def interrupt(self):
            super().interrupt()
            self.gate.release()

    sink = Interruptible(gated=True)
    runner = running(sink)
    runner.offer(frame(0))
    acquire(sink.entered)
    assert runner.stop(timeout=1.0) is True


def test_stall_shows_as_failed_is_interrupted_once_and_heals():
    class MovableClock(Clock):
        offset = 0.0

        def now(self):
            return self.offset

    clock = MovableClock()
    sink = ScriptedSink(gated=True)
    runner = running(sink, clock=clock, stall_s=10.0)
    runner.offer(frame(0))
    acquire(sink.entered)
    assert runner.state == "up"
    clock.offset = 10.5
    assert runner.state == "failed"
    assert "does not answer" in runner.status()["last_error"]
    assert runner.error.exit_code == 73
    runner.offer(frame(1))
    assert sink.interrupted.is_set()
    sink.interrupted.clear()
    runner.offer(frame(2))
    assert not sink.interrupted.is_set()
    sink.gate.release()
    acquire(sink.wrote)
    sink.gate.release()
    acquire(sink.wrote)
    assert runner.state == "up"
    assert runner.stop(WAIT)


def test_interrupt_that_raises_does_not_reach_the_renderer():
    class Rude(ScriptedSink):
        def interrupt(self):
            raise RuntimeError("no")

    clock = FakeClock()
    sink = Rude(gated=True)
    runner = running(sink, clock=clock)
    runner.offer(frame(0))
    acquire(sink.entered)
    clock.time += 100
    runner.offer(frame(1))
    sink.gate.release()
    sink.gate.release()
    assert runner.stop(WAIT)


def test_one_broken_output_leaves_the_others_alone(tmp_path):
    broken = running(ScriptedSink(opens=[OutputError("no")] * 1000, uri="test:broken"))
    hung = running(ScriptedSink(gated=True, uri="test:hung"))
    good = running(create_sink(f"file://{tmp_path}/p_%d.png"))
    assert good.wait_attempted(WAIT)
    for index in range(5):
        for runner in (broken, hung, good):
            runner.offer(frame(index))
    assert good.stop(WAIT)
    assert len(list(tmp_path.iterdir())) == 5
    assert broken.state == "retrying"
    assert broken.stop(WAIT)
    hung.sink.gate.release()
    hung.sink.gate.release()
    assert hung.stop(WAIT)


def test_frame_of_another_size_is_scaled_to_the_output():
    sink = ScriptedSink()
    sink.queue = 8
    runner = running(sink)
    assert runner.wait_attempted(WAIT)
    for size in ((4, 3), (8, 6), (32, 24)):
        runner.offer(frame(200, *size))
    assert runner.stop(WAIT)
    assert [f.image.shape for f in sink.got] == [(6, 8, 3)] * 3
    assert all((f.image == 200).all() for f in sink.got)
    assert sink.calls[0] == ("open", 8, 6, 30.0)


def test_stop_before_start_and_twice():
    runner = SinkRunner(ScriptedSink(), 8, 6, 30.0)
    assert runner.stop(1.0)
    runner = running(ScriptedSink())
    assert runner.stop(WAIT)
    assert runner.stop(WAIT)


def test_broken_device_does_not_flood_the_log(caplog):
    caplog.set_level(logging.INFO, "edgegs.sinks")
    clock = FakeClock()
    sink = ScriptedSink(writes=[OutputError("gone")] * 200)
    runner = running(sink, clock=clock, backoff_s=(0.01, 0.01))
    for index in range(200):
        runner.offer(frame(index))
        acquire(sink.entered)
    assert runner.stop(WAIT)
    lines = [record.message for record in caplog.records]
    assert sum("gone" in line for line in lines) <= 8
    assert sum(line.endswith(": up") for line in lines) <= 6


def test_the_logs_last_word_is_true_after_an_outage_that_used_its_lines_up(caplog):
    caplog.set_level(logging.INFO, "edgegs.sinks")
    clock = FakeClock()
    # down for long, so that all lines of that kind are used up; up again; then down once more
    sink = ScriptedSink(opens=[DeviceError("no device")] * 8, writes=[None, OutputError("unplugged")])
    runner = running(sink, clock=clock, backoff_s=(0.01, 0.01))
    for index in range(2):
        runner.offer(frame(index))
        acquire(sink.entered)
    assert runner.stop(WAIT)
    lines = [record.message for record in caplog.records]
    assert sum("no device" in line for line in lines) < 8
    first_up = next(index for index, line in enumerate(lines) if line.endswith(": up"))
    assert "unplugged" in lines[first_up + 1]
