"""A client for ``mjpeg://`` sinks; shared by the tests of the web output."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import time

import cv2
import numpy as np

from edgegs.frame import Frame
from edgegs.sinks import create_sink

WAIT = 20.0  # seconds until a test that would hang fails instead
WIDTH, HEIGHT = 64, 48
PATHS = ("/", "/stream.mjpg", "/snapshot.jpg", "/status", "/history", "/metrics", "/healthz", "/readyz")


def picture(value, width=WIDTH, height=HEIGHT):
    return np.full((height, width, 3), value, np.uint8)


def frame(index, image=None):
    image = picture(index * 10 % 256) if image is None else image
    return Frame(image, index, time.monotonic_ns(), 12.5, {"sort": 6.0}, 10, 9, 8)


def until(condition):
    limit = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.002)


@contextlib.contextmanager
def serving():
    """Gives a function that starts sinks on free ports; checks that each one's threads end with it."""
    before = set(threading.enumerate())
    sinks = []

    def start(uri="mjpeg://127.0.0.1:0", **options):
        sink = create_sink(uri, **options)
        sink.open(WIDTH, HEIGHT, 30.0)
        sinks.append(sink)
        return sink

    try:
        yield start
    finally:
        for sink in sinks:
            sink.close()
    assert set(threading.enumerate()) <= before


def ask(sink, path="/", method="GET", headers=None, body=None):
    """(status, headers in lower case, body) of one request."""
    connection = http.client.HTTPConnection("127.0.0.1", sink.port, timeout=WAIT)
    try:
        connection.request(method, path, body=body, headers=headers or {})
        answer = connection.getresponse()
        fields = {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, fields, answer.read()
    finally:
        connection.close()


def raw(sink, data):
    """Everything that comes back for these bytes."""
    with socket.create_connection(("127.0.0.1", sink.port), timeout=WAIT) as connection:
        connection.sendall(data)
        return b"".join(iter(lambda: connection.recv(65536), b""))


class Viewer:
    """Reads /stream.mjpg part by part."""

    def __init__(self, sink, path="/stream.mjpg", receive_buffer=None):
        self.socket = socket.socket()
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(WAIT)
        self.socket.connect(("127.0.0.1", sink.port))
        self.socket.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode("ascii"))
        self.file = self.socket.makefile("rb")

    def head(self):
        status = int(self.file.readline().split()[1])
        fields = {}
        for line in iter(self.file.readline, b"\r\n"):
            name, _, value = line.decode().partition(":")
            fields[name.lower()] = value.strip()
        return status, fields

    def next(self):
        """The next picture; None at the end of the stream."""
        line = self.file.readline()
        while line in (b"\r\n", b"--edgegs-frame\r\n"):
            line = self.file.readline()
        if not line:
            return None
        assert line == b"Content-Type: image/jpeg\r\n"
        length = int(self.file.readline().split(b":")[1])
        assert self.file.readline() == b"\r\n"
        return cv2.imdecode(np.frombuffer(self.file.read(length), np.uint8), cv2.IMREAD_COLOR)

    def close(self):
        self.file.close()
        self.socket.close()
