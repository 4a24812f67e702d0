"""``mjpeg://``: what it refuses, and how it starts and stops."""

from __future__ import annotations

import http.client
import socket
import threading
import time

import pytest
from web_support import HEIGHT, PATHS, WAIT, WIDTH, Viewer, ask, frame, raw, serving, until

from edgegs.errors import AccessError, DeviceError
from edgegs.sinks import SinkRunner, create_sink, web_handler, web_server


@pytest.fixture
def serve():
    with serving() as start:
        yield start


# ---- refusals -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "BREW"])
def test_other_methods(serve, method):
    status, fields, _ = ask(serve(), "/status", method=method, body=b"x" * 100000)
    assert (status, fields["allow"]) == (405, "GET, HEAD")


def test_refusal_reaches_a_client_that_is_still_sending(serve, monkeypatch):
    monkeypatch.setattr(web_handler, "_LINGER_S", WAIT)
    with socket.create_connection(("127.0.0.1", serve().port), timeout=WAIT) as connection:
        connection.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50000\r\n\r\n")
        assert b"".join(iter(lambda: connection.recv(65536), b"")).startswith(b"HTTP/1.0 405 ")
        for _ in range(10):
            connection.sendall(b"x" * 5000)  # would be reset by a server that has closed already
            time.sleep(0.005)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:8080", 200),
        ("localhost.", 200),
        ("127.0.0.1:1", 200),
        ("[::1]:8080", 200),
        ("lobby.example.org", 200),  # given as an option
        ("evil.example.org", 403),
        ("localhost.evil.org", 403),
        ("127.0.0.1.evil.org", 403),
        ("127.0.0.1@evil.org", 403),
        ("localhost:80:80", 403),
        ("", 403),
        ("127.0.0.2", 403),
        ("0.0.0.0", 403),
    ],
)
def test_host_allow_list(serve, host, status):
    sink = serve(hosts=["Lobby.example.org"])
    assert ask(sink, "/status", headers={"Host": host})[0] == status


def test_host_must_be_there_once(serve):
    sink = serve()
    assert raw(sink, b"GET /status HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.0 400 ")
    two = b"GET /status HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n"
    assert raw(sink, two).startswith(b"HTTP/1.0 400 ")


def test_own_address_is_a_good_host_on_a_wildcard_address(serve):
    sink = serve("mjpeg://0.0.0.0:0", token="t")
    bearer = {"Authorization": "Bearer t"}
    assert ask(sink, "/healthz", headers={"Host": "127.0.0.1", **bearer})[0] == 200
    assert ask(sink, "/healthz", headers={"Host": socket.gethostname(), **bearer})[0] == 200
    assert ask(sink, "/healthz", headers={"Host": "0.0.0.0", **bearer})[0] == 403
    for address, status in (("127.0.0.3", 200), ("127.0.0.4", 403)):  # reached as .3: that name, no other
        connection = http.client.HTTPConnection("127.0.0.3", sink.port, timeout=WAIT)
        connection.request("GET", "/healthz", headers={"Host": address, **bearer})
        assert connection.getresponse().status == status
        connection.close()


def test_other_sites_may_not_embed(serve):
    sink = serve()
    fetch = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}
    assert ask(sink, "/stream.mjpg", headers=fetch)[0] == 403
    assert ask(sink, "/", headers={**fetch, "Sec-Fetch-Mode": "navigate"})[0] == 200


@pytest.mark.parametrize("path", PATHS)
def test_token_guards_everything(serve, path):
    sink = serve(token="s3cret tökén")
    sink.write(frame(0))
    for headers, query in (
        ({}, ""),
        ({}, "?token="),
        ({}, "?token=s3cret"),
        ({}, "?" + "&".join(["a=1"] * 9) + "&token=s3cret"),
        ({"Authorization": "Bearer wrong"}, "?token=s3cret%20t%C3%B6k%C3%A9n"),
        ({"Authorization": "Basic czNjcmV0"}, ""),
    ):
        status, fields, _ = ask(sink, path + query, headers=headers)
        assert (status, fields["www-authenticate"]) == (401, "Bearer")
    wanted = 404 if path == "/metrics" else 200
    assert ask(sink, path + "?token=s3cret%20t%C3%B6k%C3%A9n", method="HEAD")[0] == wanted


def test_bearer_token_and_unknown_path(serve):
    sink = serve(token="abc")
    assert ask(sink, "/status", headers={"Authorization": "Bearer abc"})[0] == 200
    assert ask(sink, "/status", headers={"Authorization": "bearer abc"})[0] == 200
    assert ask(sink, "/nothing")[0] == 401  # without the token not even that is told


@pytest.mark.parametrize(
    "path",
    [
        "/../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "//etc/passwd",
        "/page.html",
        "/status/",
        "/Status",
        "*",
        "http://localhost/status",
        "/%00",
        "/stream.mjpg%0d%0aX:1",
        "/snapshot.jpg;x",
    ],
)
def test_no_path_reaches_the_file_system(serve, path):
    status, _, body = ask(serve(), path)
    assert status == 404
    assert b"root:" not in body


def test_huge_heads_are_refused(serve):
    sink = serve()
    line = raw(sink, b"GET /" + b"a" * 100000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert line.startswith(b"HTTP/1.0 414 ")
    one = raw(sink, b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 100000 + b"\r\n\r\n")
    assert one.startswith(b"HTTP/1.0 431 ")
    many = raw(sink, b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: 1\r\n" * 120 + b"\r\n")
    assert many.startswith(b"HTTP/1.0 431 ")


@pytest.mark.parametrize(
    "data",
    [
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\r\n\r\n",
        b"GET /\r\n\r\n",
        b"\xff\xfe / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost localhost\r\n\r\n",
    ],
)
def test_nonsense_is_refused_quietly(serve, data, caplog):
    sink = serve()
    answer = raw(sink, data)
    assert answer == b"" or answer[9:12] in (b"400", b"405", b"505")
    assert b"\xff" not in answer
    assert ask(sink, "/healthz")[0] == 200
    assert caplog.records == []


# ---- starting and stopping ------------------------------------------------------------------------------


def test_port_in_use_names_the_port_and_how_to_find_who(serve):
    sink = serve()
    with pytest.raises(DeviceError) as caught:
        create_sink(f"mjpeg://127.0.0.1:{sink.port}").open(WIDTH, HEIGHT, 30.0)
    assert f"port {sink.port} is in use" in str(caught.value)
    assert f"ss -ltnp 'sport = :{sink.port}'" in str(caught.value)
    assert caught.value.exit_code == 69


def test_port_in_use_is_retried_by_the_runner_until_it_is_free(serve):
    first = serve()
    runner = SinkRunner(create_sink(f"mjpeg://127.0.0.1:{first.port}"), WIDTH, HEIGHT, 30.0, backoff_s=(0.02, 0.02))
    runner.start()
    assert runner.wait_attempted(WAIT)
    assert runner.state == "retrying"
    assert isinstance(runner.error, DeviceError)
    first.close()
    runner.offer(frame(0))
    assert runner.wait_delivered(WAIT)
    assert runner.state == "up"
    assert ask(runner.sink, "/readyz")[0] == 200
    assert runner.stop(WAIT)


def test_foreign_address(serve):
    with pytest.raises(DeviceError, match="cannot listen"):
        create_sink("mjpeg://192.0.2.1:8080", token="t").open(WIDTH, HEIGHT, 30.0)


def test_unknown_name_and_forbidden_port(monkeypatch):
    def nowhere(*args, **kwargs):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", nowhere)
    with pytest.raises(DeviceError, match="not a known address"):
        create_sink("mjpeg://nowhere.invalid:8080", token="t").open(WIDTH, HEIGHT, 30.0)
    monkeypatch.undo()

    def forbidden(self):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(web_server.WebServer, "server_bind", forbidden)
    with pytest.raises(AccessError, match="may not open port 80; choose one from 1024 up"):
        create_sink("mjpeg://127.0.0.1:80").open(WIDTH, HEIGHT, 30.0)


def test_close_frees_port_and_threads_under_live_clients():
    before = set(threading.enumerate())
    sink = create_sink("mjpeg://127.0.0.1:0")
    sink.open(WIDTH, HEIGHT, 30.0)
    port = sink.port
    sink.write(frame(0))
    viewers = [Viewer(sink) for _ in range(3)]
    for viewer in viewers:
        assert viewer.head()[0] == 200
    silent = socket.create_connection(("127.0.0.1", port))
    until(lambda: len(sink._server._connections) == 4)
    sink.close()
    assert set(threading.enumerate()) == before
    again = create_sink(f"mjpeg://127.0.0.1:{port}")
    again.open(WIDTH, HEIGHT, 30.0)
    again.close()
    again.close()  # harmless
    assert set(threading.enumerate()) == before
    for connection in (*viewers, silent):
        connection.close()


def test_ipv6_loopback():
    sink = create_sink("mjpeg://[::1]:0")
    try:
        sink.open(WIDTH, HEIGHT, 30.0)
    except DeviceError:
        pytest.skip("no IPv6 loopback on this machine")
    connection = http.client.HTTPConnection("::1", sink.port, timeout=WAIT)
    connection.request("GET", "/healthz")
    assert connection.getresponse().status == 200
    connection.close()
    sink.close()
