"""``mjpeg://``: every endpoint over a real socket; slow, silent and too many viewers."""

from __future__ import annotations

import json
import logging
import re
import socket
import threading

import cv2
import numpy as np
import pytest
from web_support import HEIGHT, PATHS, WAIT, WIDTH, Viewer, ask, frame, raw, serving, until

from edgegs.sinks import web, web_handler, web_server
from edgegs.sinks.web_handler import plain

STATUS = {"fps": 27.5, "stages": {"sort": {"p50": 6.0}}, "temp_c": {"GPU": float("nan")}, "n": np.int64(3)}


@pytest.fixture
def serve():
    with serving() as start:
        yield start


# ---- endpoints ------------------------------------------------------------------------------------------


def test_page_is_self_contained_and_its_policy_matches_it(serve):
    status, fields, body = ask(serve(), "/")
    text = body.decode("utf-8")
    assert status == 200
    assert fields["content-type"] == "text/html; charset=utf-8"
    assert not re.search(r"(src|href)\s*=\s*[\"']?(https?:)?//", text)
    assert "url(" not in text
    assert "style=" not in text  # the policy would refuse it
    assert not re.search(r"\son[a-z]+\s*=", text)
    policy = fields["content-security-policy"]
    assert policy.count("'sha256-") == text.count("<script>") + text.count("<style>") == 2
    assert "unsafe" not in policy
    for stage in ("project", "duplicate", "sort", "ranges", "rasterize"):
        assert f'"{stage}"' in text


@pytest.mark.parametrize("path", PATHS)
def test_headers_of_every_answer(serve, path):
    sink = serve()
    sink.write(frame(0))
    status, fields, body = ask(sink, path, method="HEAD")
    assert status == (404 if path == "/metrics" else 200)
    assert body == b""
    assert fields["cache-control"] == "no-store"
    assert fields["x-content-type-options"] == "nosniff"
    assert fields["cross-origin-resource-policy"] == "same-origin"
    assert "default-src 'none'" in fields["content-security-policy"]
    assert "server" not in fields
    assert not any(name.startswith("access-control") for name in fields)


def test_status_is_what_the_callable_says_as_strict_json(serve):
    status, fields, body = ask(serve(status=lambda: STATUS), "/status")
    assert (status, fields["content-type"]) == (200, "application/json")
    assert json.loads(body) == {**STATUS, "temp_c": {"GPU": None}, "n": 3}
    assert b"NaN" not in body


def test_status_without_a_callable_is_the_size_of_the_picture(serve):
    sink = serve()
    assert json.loads(ask(sink, "/status")[2]) == {}
    sink.write(frame(0))
    assert json.loads(ask(sink, "/status")[2]) == {"width": WIDTH, "height": HEIGHT}


def test_faulty_callables_are_500_and_logged_without_a_flood(serve, caplog):
    def broken():
        raise OSError("sensor bus hangs")

    sink = serve(status=broken, healthy=broken, ready=broken, metrics=broken)
    with caplog.at_level(logging.WARNING, "edgegs.sinks.web"):
        for path in ("/status", "/healthz", "/readyz", "/metrics") * 3:
            status, _, body = ask(sink, path)
            assert status == 500
            assert b"sensor bus" not in body
    assert len([record for record in caplog.records if "sensor bus hangs" in record.message]) == 3


def test_history_is_what_the_callable_says(serve):
    asked = []

    def history(after):
        asked.append(after)
        return {"t": [1.5], "fps": [float("nan")], "run": "7"}

    sink = serve(history=history)
    assert json.loads(ask(sink, "/history")[2]) == {"t": [1.5], "fps": [None], "run": "7"}
    for query in ("?after=12.25", "?after=-1&n=1", "?after=nan", "?after="):
        assert ask(sink, "/history" + query)[0] == 200
    assert asked[:3] == [None, 12.25, -1.0]
    assert asked[4] is None
    status, _, body = ask(sink, "/history?after=soon")
    assert (status, body[:6]) == (400, b"after:")
    assert len(asked) == 5
    assert json.loads(ask(serve(), "/history")[2]) == {}  # none is kept here


def test_snapshot_is_the_latest_frame(serve):
    sink = serve(quality=95)
    status, fields, _ = ask(sink, "/snapshot.jpg")
    assert (status, fields["retry-after"]) == (503, "1")
    for index in (3, 7):
        sink.write(frame(index))
        status, fields, body = ask(sink, "/snapshot.jpg")
        assert (status, fields["content-type"]) == (200, "image/jpeg")
        image = cv2.imdecode(np.frombuffer(body, np.uint8), cv2.IMREAD_COLOR)
        assert image.shape == (HEIGHT, WIDTH, 3)
        assert np.abs(image.astype(int) - index * 10).max() <= 2


def test_stream_shows_frames_as_they_come(serve):
    sink = serve(quality=95)
    sink.write(frame(1))
    viewer = Viewer(sink)
    status, fields = viewer.head()
    assert status == 200
    assert fields["content-type"] == "multipart/x-mixed-replace; boundary=edgegs-frame"
    for index in range(1, 6):
        if index > 1:
            sink.write(frame(index))
        assert np.abs(viewer.next().astype(int) - index * 10).max() <= 2
    sink.close()
    assert viewer.next() is None  # a clean end
    viewer.close()


def test_still_picture_is_sent_again(serve, monkeypatch):
    monkeypatch.setattr(web_handler, "_KEEP_ALIVE_S", 0.02)
    sink = serve()
    sink.write(frame(1))
    viewer = Viewer(sink)
    viewer.head()
    assert all(viewer.next() is not None for _ in range(3))
    assert sink.hub.encoded == 1
    viewer.close()


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_probes(serve, path):
    reasons = [None, "no frame for 12 s"]
    sink = serve(**{path[1:-1].replace("health", "healthy"): lambda: reasons.pop(0)})
    assert ask(sink, path)[::2] == (200, b"ok\n")
    assert ask(sink, path)[::2] == (503, b"no frame for 12 s\n")


def test_ready_by_default_means_that_a_frame_came(serve):
    sink = serve()
    assert ask(sink, "/healthz")[0] == 200
    assert ask(sink, "/readyz")[::2] == (503, b"no frame yet\n")
    sink.write(frame(0))
    assert ask(sink, "/readyz")[::2] == (200, b"ok\n")


def test_metrics(serve):
    status, fields, body = ask(serve(metrics=lambda: b"edgegs_up 1\n"), "/metrics")
    assert (status, body) == (200, b"edgegs_up 1\n")
    assert fields["content-type"].startswith("text/plain; version=0.0.4")


# ---- encoding -------------------------------------------------------------------------------------------


def test_nothing_is_encoded_without_a_viewer_and_once_for_many(serve):
    sink = serve()
    for index in range(50):
        sink.write(frame(index))
    assert sink.hub.encoded == 0
    viewers = [Viewer(sink) for _ in range(4)]
    for viewer in viewers:
        viewer.head()
        viewer.next()
    assert sink.hub.encoded == 1
    sink.write(frame(51))
    for viewer in viewers:
        viewer.next()
    ask(sink, "/snapshot.jpg")
    assert sink.hub.encoded == 2
    for viewer in viewers:
        viewer.close()


def test_viewers_that_wait_for_the_encoder_share_its_picture(monkeypatch):
    encoding, go_on = threading.Event(), threading.Event()

    def slowly(image, suffix, quality):
        encoding.set()
        assert go_on.wait(WAIT)
        return bytes([image[0, 0, 0]])

    class CountingLock:
        def __init__(self):
            self.lock, self.waiting = threading.Lock(), 0
            self.release = self.lock.release

        def acquire(self, blocking=True):
            self.waiting += blocking
            return self.lock.acquire(blocking)

    monkeypatch.setattr(web, "encode", slowly)
    hub = web.FrameHub(80)
    hub._encoding = CountingLock()
    hub.publish(frame(1))
    pictures = []
    threads = [threading.Thread(target=lambda: pictures.append(hub.latest(0))) for _ in range(4)]
    threads[0].start()
    assert encoding.wait(WAIT)
    for thread in threads[1:]:
        thread.start()
    hub.publish(frame(2))
    until(lambda: hub._encoding.waiting == 3)
    go_on.set()
    for thread in threads:
        thread.join(WAIT)
    assert pictures == [(1, b"\x0a")] * 4
    assert hub.encoded == 1
    assert hub.latest(0) == hub.latest() == (2, b"\x14")  # nobody was encoding: the latest


def test_viewer_that_never_reads_delays_nobody(serve, monkeypatch):
    monkeypatch.setattr(web_handler, "_SEND_S", 1.0)
    noise = np.random.default_rng(7).integers(0, 256, (480, 640, 3), np.uint8)  # about 300 KB a picture
    sink = serve(max_clients=2)
    asleep = Viewer(sink, receive_buffer=4096)
    awake = Viewer(sink)
    awake.head()
    seen = 0
    for index in range(25):  # far more than the buffers between hold
        sink.write(frame(index, noise))
        assert awake.next() is not None
        seen += 1
    assert seen == 25
    assert sink.hub.encoded == 25
    awake.close()

    def sleeper_is_cut_off():
        sink.write(frame(99, noise))
        return not sink._server._connections

    until(sleeper_is_cut_off)
    asleep.close()


def test_viewers_beyond_the_cap_get_503_and_places_are_given_back(serve):
    sink = serve(max_clients=2)
    sink.write(frame(0))
    viewers = [Viewer(sink) for _ in range(2)]
    for viewer in viewers:
        assert viewer.head()[0] == 200
    status, fields, body = ask(sink, "/stream.mjpg")
    assert (status, fields["retry-after"]) == (503, "5")
    assert b"max_clients" in body
    assert ask(sink, "/status")[0] == 200  # everything else is still served
    assert ask(sink, "/stream.mjpg", method="HEAD")[0] == 200
    viewers.pop().close()

    def place_is_free():
        sink.write(frame(1))
        viewer = Viewer(sink)
        status = viewer.head()[0]
        viewer.close()
        return status == 200

    until(place_is_free)
    viewers.pop().close()


def test_viewer_that_leaves_before_the_first_frame_is_noticed(serve, monkeypatch):
    monkeypatch.setattr(web_handler, "_KEEP_ALIVE_S", 0.02)
    sink = serve()
    viewer = Viewer(sink)
    assert viewer.head()[0] == 200
    assert len(sink._server._connections) == 1
    viewer.close()
    until(lambda: not sink._server._connections)


def test_connections_are_bounded(serve, monkeypatch):
    monkeypatch.setattr(web_server, "_SPARE_CONNECTIONS", 3)
    monkeypatch.setattr(web_server, "_SILENT_S", WAIT)
    sink = serve(max_clients=1)
    silent = [socket.create_connection(("127.0.0.1", sink.port), timeout=WAIT) for _ in range(4)]
    until(lambda: len(sink._server._connections) == 4)
    with socket.create_connection(("127.0.0.1", sink.port), timeout=WAIT) as one_more:
        assert one_more.recv(65536).startswith(b"HTTP/1.0 503 ")
    silent.pop().close()
    until(lambda: len(sink._server._connections) == 3)
    assert ask(sink, "/healthz")[0] == 200
    for connection in silent:
        connection.close()


def test_head_that_does_not_come_in_time_is_cut(serve, monkeypatch):
    monkeypatch.setattr(web_handler, "_HEAD_S", 0.1)
    sink = serve()
    assert raw(sink, b"GET / HTTP/1.1\r\nHost: local") == b""


def test_plain_values():
    given = {1: (np.float32(0.5), float("inf"), None, True), "path": object, "array": [np.bool_(True)]}
    told = plain(given)
    assert told["1"] == [0.5, None, None, True]
    assert told["array"] == [True]
    assert isinstance(told["path"], str)
