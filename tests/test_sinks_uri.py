"""Output URIs, the registry of sinks, and the option checks that need no device."""

from __future__ import annotations

import subprocess
import sys

import pytest

from edgegs.errors import ConfigError
from edgegs.sinks import SCHEMES, Sink, create_sink, parse_uri, sink_options
from edgegs.sinks.file import FileSink, NumberedSink, PictureSink, VideoSink
from edgegs.sinks.web import MjpegSink, is_loopback


@pytest.mark.parametrize(
    ("uri", "scheme", "rest"),
    [
        ("null:", "null", ""),
        ("null://", "null", ""),
        ("NULL:", "null", ""),
        ("file:///data/out.mp4", "file", "/data/out.mp4"),
        ("file://out/frame_%06d.png", "file", "out/frame_%06d.png"),  # never percent-decoded
        ("file:///with space/ü.png", "file", "/with space/ü.png"),
        ("mjpeg://127.0.0.1:8080", "mjpeg", "127.0.0.1:8080"),
    ],
)
def test_parse(uri, scheme, rest):
    parsed = parse_uri(uri)
    assert (parsed.text, parsed.scheme, parsed.rest) == (uri, scheme, rest)


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("", "supported: file:, mjpeg:, null:"),
        (None, "supported: file:, mjpeg:, null:"),
        ("display://0", "not supported by this version; supported: file:, mjpeg:, null:"),
        ("mjepg://127.0.0.1:1", "did you mean mjpeg:?"),
        ("out.png", "write file://out.png"),
        ("file:///a\nb.png", "control characters"),
        ("file://", "file name"),
        ("file:///data/", "file name"),
        ("file:///data/.mp4", "file name"),
        ("file:///data/out.gif", "ends in"),
        ("file://~/out.mp4", "~ is not expanded"),
        ("file:///out_%03d.mp4", "a video has one name"),
        ("file:///frame_%s.png", "one number"),
        ("file:///frame_%d_%d.png", "one number"),
        ("file:///frame_%6d.png", "one number"),
        ("file:///100%.png", "one number"),
        ("null:x", "nothing after the colon"),
        ("mjpeg://127.0.0.1", "HOST:PORT"),
        ("mjpeg://:8080", "HOST:PORT"),
        ("mjpeg://127.0.0.1:65536", "HOST:PORT"),
        ("mjpeg://127.0.0.1:80/live", "HOST:PORT"),
        ("mjpeg://user:secret@127.0.0.1:80", "HOST:PORT"),
        ("mjpeg://0.0.0.0:8080", "needs a token"),
        ("mjpeg://[::]:8080", "needs a token"),
        ("mjpeg://192.168.1.7:8080", "needs a token"),
        ("mjpeg://jetson.local:8080", "needs a token"),
    ],
)
def test_refused(uri, says):
    with pytest.raises(ConfigError) as caught:
        create_sink(uri)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("uri", "options", "says"),
    [
        ("null:", {"quality": 3}, "unknown option quality; null: outputs have no options"),
        ("file:///x.png", {"token": "t"}, "unknown option token; file: outputs have queue"),
        ("file:///x.png", {"codec": "MJPG"}, "codec is for videos only"),
        ("file:///x.mkv", {"quality": 90}, "quality is for pictures only"),
        ("file:///x.mkv", {"codec": "MJPEG"}, "four characters"),
        ("file:///x.mkv", {"queue": 0}, "queue is 0; expected a whole number from 1 to 64"),
        ("file:///x.mkv", {"queue": True}, "queue is True"),
        ("file:///x.jpg", {"quality": 101}, "quality is 101"),
        ("mjpeg://127.0.0.1:1", {"max_clients": 0}, "max_clients is 0"),
        ("mjpeg://127.0.0.1:1", {"token": ""}, "token is empty"),
        ("mjpeg://127.0.0.1:1", {"token": "a\nb"}, "control characters"),
    ],
)
def test_options_refused(uri, options, says):
    with pytest.raises(ConfigError) as caught:
        create_sink(uri, **options)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("uri", "kind", "queue"),
    [
        ("file:///a.mp4", VideoSink, 8),
        ("file:///a.MKV", VideoSink, 8),
        ("file:///a.avi", VideoSink, 8),
        ("file:///a_%d.jpg", NumberedSink, 8),
        ("file:///a.jpeg", PictureSink, 1),
        ("mjpeg://[::1]:8080/", MjpegSink, 1),
    ],
)
def test_kind_and_queue(uri, kind, queue):
    sink = create_sink(uri)
    assert type(sink) is kind
    assert sink.queue == queue
    assert sink.uri == uri


def test_every_scheme_is_a_sink():
    for scheme in SCHEMES:
        uri = {"null": "null:", "file": "file:///a.png", "mjpeg": "mjpeg://127.0.0.1:1"}[scheme]
        assert isinstance(create_sink(uri), Sink)
        assert isinstance(sink_options(uri), tuple)
    assert sink_options("file:///a.png") == FileSink.OPTIONS


def test_token_makes_any_address_legal():
    assert create_sink("mjpeg://0.0.0.0:8080", token="t").uri == "mjpeg://0.0.0.0:8080"


@pytest.mark.parametrize(
    ("host", "answer"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True), ("LOCALHOST", True)]
    + [(host, False) for host in ("0.0.0.0", "::", "10.0.0.1", "localhost.example.org", "127.0.0.1.nip.io")],
)
def test_is_loopback(host, answer):
    assert is_loopback(host) is answer


def test_null_output_needs_no_opencv():
    code = "import sys; from edgegs.sinks import create_sink; create_sink('null:'); print('cv2' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
