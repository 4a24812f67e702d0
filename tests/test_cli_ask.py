"""``edgegs status`` and ``edgegs snapshot`` against a real server, and against everything that is none."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import threading
import time

import cv2
import pytest
from web_support import HEIGHT, WIDTH, frame, serving

from edgegs.cli import ask, main
from edgegs.cli.status import lines
from edgegs.errors import UsageError

TOKEN = "0123456789abcdef"
STATUS = {
    "version": "0.1.0",
    "scene": "/data/lobby.ply",
    "variant": "best",
    "width": 640,
    "height": 480,
    "backend": "cuda",
    "device": "NVIDIA Tegra X1",
    "n_splats": 300000,
    "n_visible": 210000,
    "n_instances": 900000,
    "fps": 14.96,
    "uptime_s": 3725.4,
    "frame_ms": {"p50": 66.1, "p95": 70.25},
    "stages": {"project": {"p50": 4.5, "p95": 5.0}, "rasterize": {"p50": 41.0, "p95": 44.0}},
    "temp_c": {"GPU-therm": 61.5, "CPU-therm": 58.0},
    "power_w": {"VDD_IN": 7.25},
    "throttle": ["thermal"],
    "camera": {"kind": "udp", "state": "stale"},
    "outputs": [
        {"name": "screen", "state": "up", "required": True, "frames_written": 9, "frames_dropped": 0},
        {"uri": "file://a", "state": "retrying", "frames_written": 2, "frames_dropped": 7, "last_error": "\x1b[1mgone"},
    ],
    "log": {"path": "/var/lib/edgegs/runs/a.jsonl", "error": None},
}


@pytest.fixture
def serve():
    with serving() as start:
        yield start


def url(sink):
    return f"http://127.0.0.1:{sink.port}"


def fails(capsys, *arguments):
    """(exit code, what it says) of a command that must say one line."""
    try:
        code = main(list(arguments))
    except SystemExit as stop:  # argparse
        return stop.code, capsys.readouterr().err
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("edgegs: error: ")
    return code, captured.err


@contextlib.contextmanager
def answering(content, wait_s=0.0):
    """The address of a server that takes one connection and sends these bytes, all or (with ``wait_s``) one by one."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(20)
    stop = threading.Event()

    def work():
        with contextlib.suppress(OSError):
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(20)
                connection.recv(65536)
                for at in range(len(content)) if wait_s else ():
                    if stop.wait(wait_s):
                        return
                    connection.sendall(content[at : at + 1])
                if not wait_s:
                    connection.sendall(content)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        stop.set()
        listener.close()
        thread.join(20)


def page(body, kind="text/html", status="200 OK", fields=""):
    head = f"HTTP/1.0 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{fields}\r\n"
    return head.encode("ascii") + body


# ---- snapshot -------------------------------------------------------------------------------------------


def test_snapshot_saves_the_latest_frame(serve, tmp_path, capsys):
    sink = serve(quality=95)
    for index in (3, 7):
        sink.write(frame(index))
    out = tmp_path / "out.jpg"
    out.write_text("an older one")
    assert main(["snapshot", "--url", url(sink), "-o", str(out)]) == 0
    assert capsys.readouterr().out == f"{out}\n"
    image = cv2.imread(str(out))
    assert image.shape == (HEIGHT, WIDTH, 3)
    assert abs(float(image.mean()) - 70) < 2
    assert os.listdir(str(tmp_path)) == ["out.jpg"]


@pytest.mark.parametrize("form", ["mjpeg://127.0.0.1:{}", "127.0.0.1:{}", "http://localhost:{}/", "HTTP://127.0.0.1:{}"])
def test_addresses_as_people_write_them(serve, tmp_path, form):
    sink = serve()
    sink.write(frame(1))
    assert main(["snapshot", "--url", form.format(sink.port), "-o", str(tmp_path / "a.JPEG")]) == 0


def test_no_frame_yet(serve, tmp_path, capsys):
    code, says = fails(capsys, "snapshot", "--url", url(serve()), "-o", str(tmp_path / "out.jpg"))
    assert code == 69
    assert "no frame yet" in says
    assert "try again" in says
    assert os.listdir(str(tmp_path)) == []


def test_token(serve, tmp_path, capsys):
    sink = serve(token=TOKEN)
    sink.write(frame(1))
    arguments = ["snapshot", "--url", url(sink), "-o", str(tmp_path / "out.jpg")]
    code, says = fails(capsys, *arguments)
    assert code == 77
    assert "--token-file" in says
    file = tmp_path / "token"
    file.write_text("another-token-of-16\n")
    code, says = fails(capsys, *arguments, "--token-file", str(file))
    assert code == 77
    assert str(file) in says
    assert "another-token" not in says
    file.write_text(TOKEN + "\n")
    assert main([*arguments, "--token-file", str(file)]) == 0
    capsys.readouterr()
    for content in ("", "two words", "line\nbreak", "grün"):
        file.write_text(content, encoding="utf-8")
        assert fails(capsys, *arguments, "--token-file", str(file))[0] == 66
    assert fails(capsys, *arguments, "--token-file", str(tmp_path / "nowhere"))[0] == 66


@pytest.mark.parametrize(
    ("out", "code", "words"),
    [
        ("out.png", 2, "must end in .jpg"),
        ("nowhere/out.jpg", 73, "cannot be written (No such file or directory)"),
        ("folder.jpg", 73, "cannot be written"),
    ],
)
def test_files_that_cannot_be_written(serve, tmp_path, capsys, out, code, words):
    sink = serve()
    sink.write(frame(1))
    (tmp_path / "folder.jpg").mkdir()
    got, says = fails(capsys, "snapshot", "--url", url(sink), "-o", str(tmp_path / out))
    assert got == code
    assert words in says
    assert os.listdir(str(tmp_path)) == ["folder.jpg"]


# ---- status ---------------------------------------------------------------------------------------------


def test_status_as_a_table(serve, capsys):
    assert main(["status", "--url", url(serve(status=lambda: STATUS))]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told == [
        "scene        /data/lobby.ply, 300000 splats, 210000 visible, 900000 instances",
        "drawn by     cuda, NVIDIA Tegra X1, best",
        "picture      640x480, 15.0 FPS, 66.10 ms a frame (p95 70.25), up 1 h 02 min",
        "  project    4.50 ms (p95 5.00)",
        "  rasterize  41.00 ms (p95 44.00)",
        "temperature  GPU-therm 61.5 °C, CPU-therm 58.0 °C",
        "power        VDD_IN 7.25 W",
        "camera       kind udp, state stale",
        "throttled    thermal",
        "output       screen: up, required, 9 frames",
        "output       file://a: retrying, 2 frames, 7 dropped; \\x1b[1mgone",
        "log          /var/lib/edgegs/runs/a.jsonl",
    ]


def test_status_as_json(serve, capsys):
    assert main(["status", "--json", "--url", url(serve(status=lambda: STATUS))]) == 0
    assert json.loads(capsys.readouterr().out) == STATUS


def test_status_of_a_plain_sink(serve, capsys):
    sink = serve()
    assert main(["status", "--url", url(sink)]) == 0
    sink.write(frame(1))
    assert main(["status", "--url", url(sink)]) == 0
    assert "picture      64x48" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", [None, [], "text", 7, True, {"p50": "x"}, [1, None, {}], {"a": [1]}])
def test_status_of_another_version(wrong):
    for key in STATUS:
        told = lines(dict(STATUS, **{key: wrong}))
        assert all(isinstance(name, str) and isinstance(text, str) for name, text in told)
        assert len(told) >= 8
    assert lines({}) == []


# ---- whoever answers, or does not -----------------------------------------------------------------------


def test_nobody_listens(capsys):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    code, says = fails(capsys, "status", "--url", f"http://127.0.0.1:{port}")
    assert code == 69
    assert "nothing listens there" in says
    assert "systemctl status edgegs" in says


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (page(b"<html>a router</html>"), "sends no JSON object"),
        (page(b"[1]", "application/json"), "sends no JSON object"),
        (page(b"{" * 100000, "application/json"), "sends no JSON object"),
        (page(b"gone", status="404 Not Found"), "status 404"),
        (page(b"x", status="302 Found", fields="Location: http://127.0.0.1:1/\r\n"), "status 302"),
        (page(b'{"a": 1}')[:-3], "does not answer as edgegs does"),
        (b"SSH-2.0-OpenSSH_8.9\r\n", "does not answer as edgegs does"),
        (b"", "does not answer as edgegs does"),
        (page(b"no\x1b[1m\n", status="403 Forbidden"), "refuses: no\\x1b[1m"),
    ],
)
def test_something_else_listens(capsys, content, words):
    with answering(content) as address:
        code, says = fails(capsys, "status", "--url", address)
    assert code == (77 if b"403" in content else 69)
    assert words in says


@pytest.mark.parametrize("kind", ["image/jpeg", "text/html"])
def test_a_snapshot_that_is_none(tmp_path, capsys, kind):
    with answering(page(b"<html>", kind)) as address:
        code, says = fails(capsys, "snapshot", "--url", address, "-o", str(tmp_path / "out.jpg"))
    assert code == 69
    assert "sends no JPEG" in says
    assert os.listdir(str(tmp_path)) == []


@pytest.mark.parametrize("content", [b"HTTP/1.0 200 OK\r\n" + b"X: 1\r\n" * 1000, b""], ids=["drop by drop", "silence"])
def test_an_answer_that_does_not_end(capsys, content):
    """Every single byte comes in time: only the whole is late."""
    with answering(content or b"x", wait_s=0.05 if content else 20) as address:
        code, says = fails(capsys, "status", "--url", address, "--timeout", "0.4")
    assert code == 69
    assert "answer" in says


def test_a_name_that_cannot_be_looked_up(capsys, monkeypatch):
    def nowhere(*args, **kwargs):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", nowhere)
    code, says = fails(capsys, "status", "--url", "http://nowhere.invalid:8080")
    assert code == 69
    assert "Name or service not known" in says
    hang = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: hang.wait(20) and nowhere())
    before = time.monotonic()
    code, says = fails(capsys, "status", "--url", "http://nowhere.invalid:8080", "--timeout", "0.2")
    hang.set()
    assert code == 69
    assert "no answer within 0.2 s" in says
    assert time.monotonic() - before < 15


def test_no_proxy_is_asked(serve, monkeypatch, capsys):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert main(["status", "--url", url(serve(status=lambda: STATUS))]) == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is no address"),
        ("ftp://127.0.0.1", "is no address"),
        ("http://", "is no address"),
        ("http://127.0.0.1:99999", "http://HOST:PORT"),
        ("http://[::1", "http://HOST:PORT"),
        ("http://a b", "is no address"),
        ("http://a\r\nX:1", "http://HOST:PORT"),
        ("http://grün:80", "is no address"),
        ("http://127.0.0.1:80/stream.mjpg", "takes no path"),
    ],
)
def test_addresses_that_are_none(capsys, text, words):
    code, says = fails(capsys, "status", "--url", text)
    assert code == 2
    assert words in says


@pytest.mark.parametrize("text", ["http://127.0.0.1:80/?token=s3cret", "http://me:s3cret@127.0.0.1:80"])
def test_a_secret_in_an_address_is_not_repeated(text):
    with pytest.raises(UsageError) as caught:
        ask.base_url(text)
    assert "s3cret" not in str(caught.value)
    assert "--token-file" in str(caught.value)


def test_ipv6_addresses_keep_their_brackets():
    assert ask.base_url("mjpeg://[::1]:8080") == "http://[::1]:8080"
    assert ask.base_url("https://lobby.example.org") == "https://lobby.example.org"


def test_time_out_is_a_number_of_a_range():
    parser = argparse.ArgumentParser()
    ask.add_options(parser)
    assert parser.parse_args([]).url == ask.DEFAULT_URL
    with pytest.raises(SystemExit):
        parser.parse_args(["--timeout", "0"])


def test_a_service_without_a_port_is_read_from_what_it_leaves(tmp_path, monkeypatch, capsys):
    with socket.socket() as taken:  # nobody answers at the default port
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setattr("edgegs.cli.status.DEFAULT_URL", f"http://127.0.0.1:{taken.getsockname()[1]}")
        command = ["status", "--url", f"http://127.0.0.1:{taken.getsockname()[1]}"]
        monkeypatch.setattr("edgegs.cli.status.SERVICE_FOLDER", str(tmp_path))
        monkeypatch.delenv("RUNTIME_DIRECTORY", raising=False)
        assert main(command) == 69
        left = dict(STATUS, state="drawing", not_ready="screen: no frame yet")
        (tmp_path / "status.json").write_text(json.dumps(left))
        capsys.readouterr()
        assert main(command) == 0
        shown = capsys.readouterr().out
        assert "drawing, not ready: screen: no frame yet" in shown
        assert "lobby.ply" in shown
        os.utime(str(tmp_path / "status.json"), (1, 1))  # left by one that is gone
        assert main(command) == 69
