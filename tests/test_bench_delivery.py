"""The delivery bench, and that the loop never waits for an output. Counts are judged, and times only by a median."""

from __future__ import annotations

import gzip
import json
import logging
import os
import shutil
import socket
import statistics
import subprocess
import sys
import threading
import time

import cv2
import numpy as np
import pytest

from edgegs.bench import delivery, delivery_table, ledger
from edgegs.bench.cpu import cpu_s
from edgegs.bench.delivery_pictures import pictures
from edgegs.cli import main
from edgegs.errors import ConfigError, OutputError
from edgegs.frame import Frame
from edgegs.outputs import PacedOutput
from edgegs.sinks import Sink, SinkRunner
from edgegs.sinks.pictures import encode
from edgegs.sinks.runner import UP
from edgegs.sinks.uri import parse

WAIT = 20.0
SHORT = ["--size", "64x48", "--duration", "0.2", "--fps", "100"]
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def document_of(capsys, *arguments):
    assert main(["bench", "--outputs", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


# ---- the bench ------------------------------------------------------------------------------------------


def test_pictures_are_always_the_same_and_go_round():
    images = pictures(320, 180, 8)
    assert len(images) == 8
    assert all(image.shape == (180, 320, 3) and image.dtype == np.uint8 for image in images)
    assert all(image.flags.c_contiguous for image in images)
    assert [a.tobytes() for a in images] == [b.tobytes() for b in pictures(320, 180, 8)]
    steps = [np.abs(images[i].astype(int) - images[(i + 1) % 8]).mean() for i in range(8)]
    assert all(0.5 < step < 30 for step in steps)  # all of the picture moves, a little at a time
    assert pictures(1, 1, 2)[0].shape == (1, 1, 3)


def test_pictures_are_work_for_an_encoder():
    (image,) = pictures(640, 360, 1)
    share = len(encode(image, ".jpg", 80)) / image.nbytes
    assert 0.01 < share < 0.1  # a flat picture takes 0.005, noise 0.4


def test_rows_of_null_and_file(tmp_path, capsys):
    document = document_of(capsys, "null:", f"file://{tmp_path}/f_%03d.jpg", *SHORT)
    assert (document["kind"], document["fps"], document["duration_s"]) == ("delivery", 100, 0.2)
    null, files = document["rows"]
    assert (null["output"], null["clients"], null["reason"]) == ("null:", None, None)
    for row in (null, files):
        most, paced = row["flat_out"], row["paced"]
        assert most["fps"] == pytest.approx(most["frames"] / most["seconds"], rel=0.01)
        assert 0 <= most["frame_ms"]["p50"] <= most["frame_ms"]["p95"]
        assert paced["frames"] >= 2
        assert paced["delivered"] + paced["dropped"] <= paced["frames"]
        assert 0 < paced["offer_us"]["p50"] <= paced["offer_us"]["p95"] <= paced["offer_us"]["max"]
        assert (row["width"], row["height"]) == (64, 48)
    # one first frame each, and what waited at the end is written after the count
    n_files = len(list(tmp_path.glob("f_*.jpg")))
    assert 0 <= n_files - 2 - files["flat_out"]["frames"] - files["paced"]["delivered"] <= 12


def test_flat_out_writes_every_frame_of_a_video_once(tmp_path):
    uri = parse(f"file://{tmp_path}/x.avi")
    (row,), _ = delivery.measure([uri], (64, 48), 5.0, 0.2, lambda text: None)
    assert row["reason"] is None
    video = cv2.VideoCapture(str(tmp_path / "x.1.avi"))  # the paced one moved it aside
    n_frames = int(video.get(cv2.CAP_PROP_FRAME_COUNT))
    video.release()
    assert 1 <= n_frames - row["flat_out"]["frames"] <= 3
    assert n_frames > 5, "more than the nominal rate in that time"


def test_stream_with_and_without_a_client(capsys):
    document = document_of(capsys, "mjpeg://127.0.0.1:0", *SHORT)
    alone, read = document["rows"]
    assert (alone["clients"], read["clients"]) == (0, 1)
    assert (alone["reason"], read["reason"]) == (None, None)
    assert read["flat_out"]["frames"] >= 2
    assert read["paced"]["delivered"] >= 1
    names = [line.split("  ")[0] for line in delivery_table.text_table(document).splitlines()]
    assert "mjpeg://127.0.0.1:0, 1 client" in names


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def test_a_client_that_gets_nothing_is_a_reason(monkeypatch):
    class Silent(OwnSink):
        good = 10**9

    for kind, words in (("mjpeg://127.0.0.1:{}", "the client got no further"), ("rtsp://@127.0.0.1:{}/a", "no client")):
        monkeypatch.setattr(delivery, "create_sink", Silent)
        monkeypatch.setattr(shutil, "which", lambda name: None)
        rows, _ = delivery.measure([parse(kind.format(free_port()))], (16, 16), 50.0, 0.05, lambda text: None)
        assert [row["clients"] for row in rows] == [0, 1]
        assert rows[0]["reason"] is None
        assert words in rows[1]["reason"]


def test_rtsp_with_a_client():
    if shutil.which("gst-launch-1.0") is None:
        pytest.skip("no gst-launch-1.0 (gstreamer1.0-tools): the RTSP client is not tested")
    from edgegs.sinks.encoders import devices

    if not [one for one in devices() if one.state == "ok" and "RTSP" in one.says]:
        pytest.skip("no RTSP server (gir1.2-gst-rtsp-server-1.0, python3-gi): the RTSP client is not tested")
    uri = parse(f"rtsp://@127.0.0.1:{free_port()}/live")
    rows, _ = delivery.measure([uri], (64, 48), 30.0, 0.5, lambda text: None)
    assert [row["reason"] for row in rows] == [None, None]
    assert rows[1]["flat_out"]["frames"] >= 1
    assert rows[1]["paced"]["delivered"] <= rows[1]["paced"]["frames"] + 3


def test_an_output_that_cannot_be_opened_is_a_row(tmp_path, capsys):
    (tmp_path / "taken").write_text("")
    document = document_of(capsys, f"file://{tmp_path}/taken/x.avi", "null:", *SHORT)
    closed, null = document["rows"]
    assert (closed["flat_out"], closed["paced"]) == (None, None)
    assert "taken" in closed["reason"]
    assert null["reason"] is None
    assert null["flat_out"]["frames"] > 0
    for table in (delivery_table.text_table(document), delivery_table.markdown(document)):
        assert "not measured: " in table


class OwnSink(Sink):
    """Takes ``good`` frames, then raises."""

    good = 3

    def __init__(self, uri):
        super().__init__(str(uri))
        self.n = 0

    @classmethod
    def from_uri(cls, uri, **options):
        return cls(uri)

    def open(self, width, height, fps):
        pass

    def write(self, frame):
        self.n += 1
        if self.n > self.good:
            raise OutputError("the cable is out")


@pytest.mark.parametrize("good", [0, 1, 3])
def test_an_output_that_fails_on_the_way(monkeypatch, good):
    monkeypatch.setattr(OwnSink, "good", good)
    monkeypatch.setattr(delivery, "create_sink", OwnSink)
    (row,), _ = delivery.measure([parse("null:")], (16, 16), 50.0, 5.0, lambda text: None)
    assert row["reason"] == "the cable is out"
    assert row["paced"] is None


def test_an_output_that_does_not_close(monkeypatch):
    let_go = threading.Event()

    class Stuck(OwnSink):
        good = 10**9

        def close(self):
            let_go.wait(WAIT)

    monkeypatch.setattr(delivery, "STOP_S", 0.1)
    monkeypatch.setattr(delivery, "create_sink", Stuck)
    try:
        (row,), _ = delivery.measure([parse("null:")], (16, 16), 50.0, 0.1, lambda text: None)
    finally:
        let_go.set()
    assert row["reason"] == "did not close within 0.1 s"
    assert row["flat_out"]["frames"] > 0


def test_a_missing_library_is_a_reason(monkeypatch, capsys):
    def no_library(uri, **options):
        raise ImportError("libGL.so.1: cannot open shared object file")

    monkeypatch.setattr(delivery, "create_sink", no_library)
    assert "libGL.so.1" in document_of(capsys, "null:", *SHORT)["rows"][0]["reason"]


def test_ledger_and_tables(tmp_path, capsys):
    folder = tmp_path / "row"
    document = document_of(capsys, "null:", *SHORT, "--size", "32x24", "--ledger", str(folder))
    assert ledger.read(folder) == document
    assert [(row["width"], row["height"]) for row in document["rows"]] == [(64, 48), (32, 24)]
    assert set(document["jpeg_kb"]) == {"64x48", "32x24"}
    for name in ("schema", "date", "version", "commit", "device", "pictures"):
        assert name in document
    with gzip.open(folder / "raw.jsonl.gz", "rt") as file:
        raw = [json.loads(line) for line in file]
    small = [one for one in raw if one["width"] == 32]
    times = [one["frame_ms"] for one in small if one["phase"] == "flat_out"]
    offers = [one["offer_us"] for one in small if one["phase"] == "paced"]
    row = document["rows"][1]
    assert row["flat_out"]["frame_ms"]["p95"] == pytest.approx(np.percentile(times, 95), abs=2e-5)
    assert row["paced"]["offer_us"]["max"] == max(offers)
    assert len(offers) == row["paced"]["frames"]
    assert main(["bench", "--from-ledger", str(folder), "--markdown"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("| output | FPS | ms p50 | ms p95 | CPU ms | at 100 FPS | dropped |")
    assert len({line.count("|") for line in lines if line.startswith("|")}) == 1
    assert [line.split("|")[1].strip() for line in lines if line.startswith("| `")] == ["`null:`"] * 2
    assert main(["bench", "--from-ledger", str(folder)]) == 0
    assert "64x48" in capsys.readouterr().out


def test_a_ledger_of_a_later_kind(tmp_path, capsys):
    (tmp_path / "row.json").write_text('{"schema": 1, "kind": "weather", "rows": [1]}')
    assert main(["bench", "--from-ledger", str(tmp_path)]) == 65
    assert "'weather'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["dial", "--outputs", "null:"], "leave scene out"),
        (["--outputs", "null:", "-n", "5", "--ladder"], "leave -n, --ladder out"),
        (["--outputs", "null:", "--backend", "host"], "leave --backend out"),
        (["--outputs", "null:", "--repeats", "5"], "leave --repeats out"),
        (["--outputs", "null:", "nul:"], "unknown scheme nul:"),
        (["--outputs", "mjpeg://0.0.0.0:8080"], "needs a token"),
        (["--outputs"], "expected at least one argument"),
        (["--outputs", "null:", "--fps", "0"], "from 0.1 to 1000"),
        (["--outputs", "null:", "--duration", "nan"], "from 0.05 to 3600"),
        (["--fps", "30"], "add --outputs"),
        (["--duration", "3"], "add --outputs"),
        (["--from-ledger", "./row", "--outputs", "null:"], "measures nothing"),
    ],
)
def test_bad_input_is_one_clear_error(capsys, arguments, words):
    try:
        got = main(["bench", *arguments])
    except SystemExit as stop:  # argparse
        got = stop.code
    assert got == 2
    error = capsys.readouterr().err
    assert words in error
    assert "Traceback" not in error


def test_processor_time_of_children_counts_while_they_live_and_after():
    burn = "import time\nwhile time.process_time() < 0.4: pass\nprint('done', flush=True); input()"
    before = cpu_s()
    child = subprocess.Popen([sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout.readline() == b"done\n"
        alive = cpu_s() - before
        child.communicate(b"\n", timeout=WAIT)
    finally:
        child.kill()
        child.wait()
    assert alive > 0.35
    assert cpu_s() - before >= alive - 0.05  # ticks of a living process are of 10 ms


# ---- the loop never waits -------------------------------------------------------------------------------


class Blocked(OwnSink):
    good = 10**9

    def __init__(self, let_go):
        super().__init__("null:")
        self.let_go, self.begun = let_go, threading.Event()

    def write(self, frame):
        self.begun.set()
        self.let_go.wait(WAIT)
        super().write(frame)


class Raising(OwnSink):
    """Fails at every step, at once, again and again."""

    def __init__(self, where):
        super().__init__("null:")
        self.where, self.n_failed = where, 0

    def _fail(self):
        self.n_failed += 1
        raise OutputError("no\n" * 50)

    def open(self, width, height, fps):
        if self.where == "open":
            self._fail()

    def write(self, frame):
        self._fail()

    def close(self):
        self._fail()


class Spinning(OwnSink):
    """Never lets go of the interpreter by itself."""

    good = 10**9

    def write(self, frame):
        end = time.thread_time() + 0.02
        while time.thread_time() < end:
            pass
        super().write(frame)


@pytest.fixture
def output():
    """Gives a function that starts a paced output around a sink."""
    started = []

    def start(sink, **options):
        runner = SinkRunner(sink, 16, 16, 30.0, **options)
        runner.start()
        started.append(runner)
        return PacedOutput(runner, "it", None)

    yield start
    for runner in started:
        runner.stop(WAIT)


def offer_all(outputs, n):
    """Offer ``n`` frames to each as the daemon does, milliseconds apart; microseconds of each offer."""
    took = []
    for index in range(n):
        frame = Frame(np.zeros((16, 16, 3), np.uint8), index, time.monotonic_ns(), 1.0)
        for one in outputs:
            before = time.perf_counter()
            one.offer(frame, time.monotonic())
            took.append((time.perf_counter() - before) * 1e6)
        time.sleep(0.001)
    return took


def test_a_blocked_output_holds_up_neither_the_loop_nor_another(output):
    let_go = threading.Event()
    blocked, free = Blocked(let_go), OwnSink("null:")
    free.good = 10**9
    outputs = [output(blocked), output(free)]
    try:
        offer_all(outputs, 1)
        assert blocked.begun.wait(WAIT)
        took = offer_all(outputs, 200)
        assert blocked.n == 0, "every offer came back while the first write was still under way"
        assert statistics.median(took) < 1000
        dropped = outputs[0].runner.status()["dropped"]
        assert dropped == {"slow": 199, "down": 0}
        assert outputs[1].new_drops().get("down", 0) == 0
    finally:
        let_go.set()
    assert outputs[1].runner.wait_delivered(WAIT)
    assert outputs[1].runner.state == UP


@pytest.mark.parametrize("where", ["open", "write"])
def test_an_output_that_floods_with_failures(output, caplog, where):
    caplog.set_level(logging.INFO)
    sink = Raising(where)
    one = output(sink, backoff_s=(1e-6, 1e-6))
    took = offer_all([one], 200)
    assert len(took) == 200
    assert statistics.median(took) < 1000
    limit = time.monotonic() + WAIT
    while sink.n_failed < 20:
        offer_all([one], 1)
        assert time.monotonic() < limit
    assert len(caplog.records) <= 20, "the log is no part of the flood"
    assert one.runner.status()["frames_written"] == 0


def test_an_output_that_never_lets_go(output):
    sinks = [Spinning("null:") for _ in range(3)]
    outputs = [output(sink) for sink in sinks]
    took = offer_all(outputs, 40)
    assert len(took) == 120
    n_seen = [one.runner.status()["frames_written"] + one.runner.status()["frames_dropped"] for one in outputs]
    assert all(n > 0 for n in n_seen)


def test_an_output_that_can_never_work_is_given_up(output):
    class Wrong(OwnSink):
        def open(self, width, height, fps):
            raise ConfigError("never")

    one = output(Wrong("null:"))
    assert one.runner.wait_attempted(WAIT)
    assert len(offer_all([one], 50)) == 50
    assert one.runner.state == "failed"
