"""Receivers and pictures for the tests of streams: what arrives, decoded again."""

from __future__ import annotations

import os
import select
import shutil
import socket
import subprocess
import threading
import time
from pathlib import Path

import cv2
import numpy as np
import pytest

from edgegs.frame import Frame
from edgegs.sinks import encoders

WAIT = 20.0
GST = pytest.mark.skipif(shutil.which("gst-launch-1.0") is None, reason="no gst-launch-1.0: gstreamer1.0-tools")


def need(*elements):
    """Skip where GStreamer lacks an element that only the tests use."""
    for name in elements:
        why = encoders.why_no_element(name)
        if why is not None:
            pytest.skip(why)


def need_rtsp():
    try:
        return encoders.rtsp_python()
    except Exception as error:
        pytest.skip(str(error))


def smooth(width, height):
    """A smooth picture whose three channels all differ."""
    y, x = np.mgrid[:height, :width].astype(np.float64)
    image = np.empty((height, width, 3), np.uint8)
    image[..., 0] = 255 * x / width
    image[..., 1] = 255 * y / height
    image[..., 2] = 127 + 120 * np.sin(x * 2 * np.pi / width)
    return image


def drawn(width, height):
    """A picture that edgegs drew: the room of the documentation."""
    path = Path(__file__).resolve().parent.parent / "docs" / "room.jpg"
    image = cv2.imread(str(path))
    if image is None:
        pytest.skip("no docs/room.jpg beside the tests")
    return cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)


def numbered(index, width, height):
    """The smooth picture with ``index`` drawn as 12 black and white blocks along its top."""
    image = smooth(width, height)
    block = width // 12
    for bit in range(12):
        image[: height // 4, bit * block : (bit + 1) * block] = 255 * (index >> bit & 1)
    return image


def number(image):
    """The index in a ``numbered`` picture."""
    height, width = image.shape[:2]
    block = width // 12
    middles = [image[height // 8, bit * block + block // 2].mean() for bit in range(12)]
    return sum(1 << bit for bit, value in enumerate(middles) if value > 127)


def psnr(one, other):
    error = np.mean((one.astype(np.float64) - other) ** 2)
    return 10 * np.log10(255**2 / max(error, 1e-12))


def frame(image, index=0, seconds=0.0):
    return Frame(image, index, int(seconds * 1e9), 1.0)


def free_port(kind=socket.SOCK_STREAM):
    with socket.socket(socket.AF_INET, kind) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until(condition, timeout=WAIT):
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False


def gone(pid):
    """Whether a process has ended (a zombie has)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


class Playing:
    """Feeds a sink, or a runner by ``offer``, at about 30 frames a second, from a thread."""

    def __init__(self, write, picture):
        self._write, self._picture = write, picture
        self._stop = threading.Event()
        self.error = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        index = 0
        try:
            while not self._stop.wait(1 / 30):
                self._write(frame(self._picture(index), index, time.monotonic()))
                index += 1
        except Exception as error:
            self.error = error

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join(WAIT)


class Viewer:
    """Counts the pictures that an RTSP client decodes, in a thread. Set OPENCV_FFMPEG_CAPTURE_OPTIONS for UDP."""

    def __init__(self, url):
        self.n = 0
        self._url, self._stop = url, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        capture = cv2.VideoCapture(self._url, cv2.CAP_FFMPEG, [cv2.CAP_PROP_OPEN_TIMEOUT_MSEC, 15000])
        while not self._stop.is_set() and capture.read()[0]:
            self.n += 1
        capture.release()

    def sees(self, more=10):
        """Whether so many more pictures come."""
        before = self.n
        return wait_until(lambda: self.n >= before + more)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join(WAIT)


def stuck_viewer(port, name="live"):
    """A connection that has asked for a stream over TCP and reads nothing of it."""
    viewer = socket.socket()
    viewer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    viewer.settimeout(WAIT)
    viewer.connect(("127.0.0.1", port))
    url = f"rtsp://127.0.0.1:{port}/{name}"
    session = ""
    for index, (request, more) in enumerate(
        [("DESCRIBE " + url, ""), (f"SETUP {url}/stream=0", "Transport: RTP/AVP/TCP;unicast;interleaved=0-1\r\n")]
    ):
        viewer.sendall(f"{request} RTSP/1.0\r\nCSeq: {index}\r\n{more}\r\n".encode())
        answer = viewer.recv(4096).decode()
        assert " 200 " in answer, answer
        session = "".join(line.split(";")[0] for line in answer.splitlines() if line.startswith("Session:"))
    viewer.sendall(f"PLAY {url} RTSP/1.0\r\nCSeq: 2\r\n{session}\r\n\r\n".encode())
    return viewer


def cut(connection):
    """Whether the other side has closed a connection; nothing is read."""
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    return bool(poll.poll(0))


class Receiver:
    """A ``gst-launch-1.0`` child that receives RTP, decodes it and gives BGR pictures."""

    def __init__(self, port, width, height):
        need("rtph264depay", "avdec_h264", "videoconvert", "udpsrc")
        self._shape = (height, width, 3)
        caps = "application/x-rtp,media=video,clock-rate=90000,encoding-name=H264,payload=96"
        chain = (
            f"udpsrc address=127.0.0.1 port={port} caps={caps} ! rtph264depay ! avdec_h264 ! "
            "videoconvert ! video/x-raw,format=BGR ! fdsink fd=1 sync=false"
        )
        self._process = subprocess.Popen(
            ["gst-launch-1.0", "-q", *chain.split()], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, bufsize=0
        )

    def read(self, timeout=WAIT):
        """The next picture; None when none comes."""
        data, size = b"", int(np.prod(self._shape))
        deadline = time.monotonic() + timeout
        descriptor = self._process.stdout.fileno()
        while len(data) < size:
            if not select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
                return None
            more = os.read(descriptor, size - len(data))
            if not more:
                return None
            data += more
        return np.frombuffer(data, np.uint8).reshape(self._shape)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()


class Packets:
    """RTP as it arrives at a socket: time stamps and NAL units (RFC 6184), without any GStreamer."""

    def __init__(self, port, host="127.0.0.1"):
        self._socket = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((host, port))
        self._socket.settimeout(0.5)
        self.units = []  # (time stamp of the picture in 1/90000 s, NAL unit)

    def read_all(self):
        """Take in packets until none comes for half a second."""
        fragments = b""
        while True:
            try:
                packet = self._socket.recv(65536)
            except socket.timeout:
                return self.units
            stamp, payload = int.from_bytes(packet[4:8], "big"), packet[12:]
            kind = payload[0] & 31
            if kind == 24:  # several units in one packet
                at = 1
                while at + 2 < len(payload):
                    size = int.from_bytes(payload[at : at + 2], "big")
                    self.units.append((stamp, payload[at + 2 : at + 2 + size]))
                    at += 2 + size
            elif kind == 28:  # a part of a unit
                if payload[1] & 0x80:
                    fragments = bytes([payload[0] & 0xE0 | payload[1] & 31])
                fragments += payload[2:]
                if payload[1] & 0x40:
                    self.units.append((stamp, fragments))
            else:
                self.units.append((stamp, payload))

    def stamps(self):
        """Time stamps of the pictures, each once, in seconds from the first."""
        found = list(dict.fromkeys(stamp for stamp, unit in self.units if unit[0] & 31 in (1, 5)))
        return [((stamp - found[0]) % 2**32) / 90000 for stamp in found]

    def close(self):
        self._socket.close()


#: A server to publish to; argv: port, and the file that gets the decoded pictures.
RECORD_SERVER = """
import sys, threading, gi
gi.require_version("Gst", "1.0")
gi.require_version("GstRtspServer", "1.0")
from gi.repository import GLib, Gst, GstRtspServer
Gst.init(None)
server = GstRtspServer.RTSPServer()
server.set_address("127.0.0.1")
server.set_service(sys.argv[1])
factory = GstRtspServer.RTSPMediaFactory()
factory.set_transport_mode(GstRtspServer.RTSPTransportMode.RECORD)
factory.set_launch("( rtph264depay name=depay0 ! avdec_h264 ! videoconvert ! video/x-raw,format=BGR ! "
                   "filesink sync=false async=false buffer-mode=2 location=" + sys.argv[2] + " )")
server.get_mount_points().add_factory("/live", factory)
assert server.attach(None)
loop = GLib.MainLoop()
threading.Thread(target=lambda: (sys.stdin.read(), loop.quit()), daemon=True).start()
print("ready", flush=True)
loop.run()
"""
