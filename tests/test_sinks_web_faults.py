"""``mjpeg://`` under clients that mean harm, or are merely asleep: the loop and the other viewers notice nothing."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import numpy as np
import pytest
from web_support import WAIT, Viewer, ask, frame, raw, serving, until

from edgegs.sinks import SinkRunner, create_sink, web_handler, web_server


@pytest.fixture
def serve():
    with serving() as start:
        yield start


@contextlib.contextmanager
def running(**options):
    """A runner over a sink on a free port, which is up."""
    sink = create_sink("mjpeg://127.0.0.1:0", **options)
    runner = SinkRunner(sink, 640, 480, 50.0)
    runner.start()
    try:
        assert runner.wait_attempted(WAIT)
        assert runner.state == "up"
        yield runner
    finally:
        assert runner.stop(WAIT)


def offered_fps(runner, pictures, frames=60, fps=100.0):
    """Frames a second that a loop at a fixed beat reaches while it offers each of them to the output."""
    begun = tick = time.monotonic()
    for index in range(frames):
        runner.offer(frame(index, pictures[index % len(pictures)]))
        tick = max(tick + 1.0 / fps, time.monotonic())
        time.sleep(max(0.0, tick - time.monotonic()))
    return frames / (time.monotonic() - begun)


def test_loop_keeps_its_rate_beside_a_client_that_never_reads():
    pictures = np.random.default_rng(3).integers(0, 256, (4, 480, 640, 3), np.uint8)  # about 300 KB each as JPEG
    with running(max_clients=2) as runner:
        rates = []
        for _ in range(5):  # this machine has other work, too: one quiet second decides
            alone = offered_fps(runner, pictures)
            asleep = Viewer(runner.sink, receive_buffer=4096)
            until(lambda: runner.sink.hub.encoded > 0)
            beside = offered_fps(runner, pictures)
            rates.append(beside / alone)
            asleep.close()
            if rates[-1] > 0.95:
                break
        assert rates[-1] > 0.95
        status = runner.status()
        assert status["frames_written"] + status["frames_dropped"] > 0
        assert status["state"] == "up"


def test_second_viewer_gets_fresh_frames_beside_one_that_never_reads():
    with running(max_clients=2, quality=95) as runner:
        noise = np.random.default_rng(4).integers(0, 256, (480, 640, 3), np.uint8)
        runner.offer(frame(0, noise))
        asleep = Viewer(runner.sink, receive_buffer=4096)
        until(lambda: runner.sink.hub.encoded == 1)
        for index in range(1, 20):  # until every buffer to the sleeper is full
            runner.offer(frame(index, noise))
            until(lambda index=index: runner.status()["frames_written"] > index)
            time.sleep(0.005)
        assert runner.sink.hub.encoded < 10
        awake = Viewer(runner.sink)
        assert awake.head()[0] == 200
        awake.next()
        for index in range(1, 20):
            runner.offer(frame(index, np.full((480, 640, 3), 10 * index, np.uint8)))
            assert np.abs(awake.next().astype(int) - 10 * index).max() <= 2  # this one, and none before it
        asleep.close()
        awake.close()


def test_hundred_viewers_at_once(serve):
    before = threading.active_count()
    sink = serve(max_clients=8)
    sink.write(frame(0))
    together = threading.Barrier(100)
    answers = []

    def view():
        together.wait(WAIT)
        try:
            viewer = Viewer(sink)
            status, fields = viewer.head()
            answers.append((status, fields.get("retry-after"), viewer))
        except OSError as error:
            answers.append((error, None, None))

    threads = [threading.Thread(target=view) for _ in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert [error for error, _, _ in answers if isinstance(error, OSError)] == []
    assert sorted(status for status, _, _ in answers) == [200] * 8 + [503] * 92
    assert {after for status, after, _ in answers if status == 503} == {"5"}
    for status, _, viewer in answers:
        if status == 503:
            viewer.close()
    until(lambda: len(sink._server._connections) == 8)
    assert [ask(sink, path)[0] for path in ("/", "/status", "/snapshot.jpg", "/healthz")] == [200] * 4
    assert threading.active_count() < before + 8 + 16 + 10
    for status, _, viewer in answers:
        if status == 200:
            assert viewer.next() is not None
            viewer.close()


def test_silent_clients_give_way_to_one_that_speaks(serve, monkeypatch):
    monkeypatch.setattr(web_server, "_SILENT_S", 0.05)
    sink = serve(max_clients=1)
    silent = [socket.create_connection(("127.0.0.1", sink.port), timeout=WAIT) for _ in range(40)]
    until(lambda: len(sink._server._connections) == 17)  # the others were refused
    for _ in range(3):
        time.sleep(0.06)
        assert ask(sink, "/healthz")[0] == 200
    assert len(sink._server._connections) <= 17
    for connection in silent:
        connection.close()
    until(lambda: not sink._server._connections)


def test_clients_that_were_served_are_never_cut_for_a_newcomer(serve, monkeypatch):
    monkeypatch.setattr(web_server, "_SPARE_CONNECTIONS", 0)
    monkeypatch.setattr(web_server, "_SILENT_S", 0.0)
    sink = serve(max_clients=2)
    sink.write(frame(1))
    viewers = [Viewer(sink) for _ in range(2)]
    for viewer in viewers:
        viewer.head()
    for _ in range(5):
        assert raw(sink, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").startswith(b"HTTP/1.0 503 ")
    sink.write(frame(2))
    for viewer in viewers:
        assert viewer.next() is not None
        viewer.close()


def test_head_that_drips_in_is_cut(serve, monkeypatch):
    monkeypatch.setattr(web_handler, "_HEAD_S", 0.2)
    sink = serve()
    with socket.create_connection(("127.0.0.1", sink.port), timeout=WAIT) as connection:
        until_cut = time.monotonic() + WAIT
        connection.sendall(b"GET / HTTP/1.1\r\nX: ")
        with pytest.raises(OSError):  # noqa: PT012 (the cut comes after one of many sends)
            while time.monotonic() < until_cut:
                connection.sendall(b"a")
                time.sleep(0.0005)
    until(lambda: not sink._server._connections)


def test_refused_clients_are_let_go_of(serve, monkeypatch):
    monkeypatch.setattr(web_server, "_SPARE_CONNECTIONS", 0)
    monkeypatch.setattr(web_server, "_SILENT_S", WAIT)
    monkeypatch.setattr(web_server, "_REFUSED_S", 0.05)
    monkeypatch.setattr(web_server, "_REFUSED", 4)
    sink = serve(max_clients=1)
    holder = socket.create_connection(("127.0.0.1", sink.port), timeout=WAIT)
    until(lambda: len(sink._server._connections) == 1)
    refused = [socket.create_connection(("127.0.0.1", sink.port), timeout=WAIT) for _ in range(10)]
    for connection in refused:
        assert connection.recv(4096).startswith(b"HTTP/1.0 503 ")
    assert len(sink._server._refused) <= 4
    until(lambda: not sink._server._refused)
    for connection in (*refused, holder):
        connection.close()


@pytest.mark.parametrize("path", ["/", "/status"])
def test_pipelined_requests_get_one_whole_answer(serve, path):
    request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode("ascii")
    sink = serve()
    answer = raw(sink, request * 300)  # more than is read of a head: unread bytes must not reset the answer away
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.0 200 ")
    assert len(body) == int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
    assert answer.count(b"HTTP/1.0 200") == 1


@pytest.mark.parametrize("path", ["/%73tatus", "/status%3f", "/%2fstatus", "/status%00", "/st%61tus/..", "/./status"])
def test_other_spellings_of_a_path_are_no_paths(serve, path):
    assert ask(serve(), path)[0] == 404


def test_client_that_vanishes_without_a_word_is_cut_once_its_buffer_is_full(serve, monkeypatch):
    monkeypatch.setattr(web_handler, "_SEND_S", 0.3)
    noise = np.random.default_rng(5).integers(0, 256, (480, 640, 3), np.uint8)
    sink = serve()
    gone = Viewer(sink, receive_buffer=4096)  # as behind a cable that was pulled: acknowledges nothing more
    until(lambda: len(sink._server._connections) == 1)

    def is_cut():
        sink.write(frame(1, noise))
        return not sink._server._connections

    until(is_cut)
    assert sink._server.streams._value == 8  # its place is free again
    gone.close()
