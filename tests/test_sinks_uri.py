"""Output URIs, the registry of sinks, and the option checks that need no device."""

from __future__ import annotations

import subprocess
import sys

import pytest

from edgegs.errors import ConfigError
from edgegs.sinks import SCHEMES, OutputUri, Sink, create_sink, sink_options
from edgegs.sinks.file import _CODECS, FileSink, NumberedSink, PictureSink, VideoSink
from edgegs.sinks.uri import VIDEO_SUFFIXES, Scheme, UriError, is_loopback, parse, split_frame_number
from edgegs.sinks.web import MjpegSink

FORMS = "null:, file://, mjpeg://, display://, v4l2://, rtp://, rtsp://"


@pytest.mark.parametrize(
    ("uri", "parts"),
    [
        ("null:", OutputUri("null:", "null", "null")),
        ("null://", OutputUri("null:", "null", "null")),
        ("NULL:", OutputUri("null:", "null", "null")),
        ("file:///data/out.mp4", OutputUri("file:///data/out.mp4", "file", "video", path="/data/out.mp4")),
        # never percent-decoded
        ("file://o/f_%06d.png", OutputUri("file://o/f_%06d.png", "file", "frames", path="o/f_%06d.png")),
        ("FILE:///a b/ü.PNG", OutputUri("file:///a b/ü.PNG", "file", "image", path="/a b/ü.PNG")),
        ("mjpeg://h:08080/", OutputUri("mjpeg://h:8080", "mjpeg", "mjpeg", host="h", port=8080)),
        ("mjpeg://[::1]:0", OutputUri("mjpeg://[::1]:0", "mjpeg", "mjpeg", host="::1", port=0)),
        ("display://0", OutputUri("display://0", "display", "display")),
        ("Display://01/", OutputUri("display://1", "display", "display", index=1)),
        ("v4l2:///dev/video10", OutputUri("v4l2:///dev/video10", "v4l2", "v4l2", path="/dev/video10")),
        ("v4l2:///dev/v4l/a:1", OutputUri("v4l2:///dev/v4l/a:1", "v4l2", "v4l2", path="/dev/v4l/a:1")),
        ("v4l2://label/My cam", OutputUri("v4l2://label/My cam", "v4l2", "v4l2", name="My cam")),
        ("rtp://[ff02::1]:5000", OutputUri("rtp://[ff02::1]:5000", "rtp", "rtp", host="ff02::1", port=5000)),
        ("rtp://nano.local:5000/", OutputUri("rtp://nano.local:5000", "rtp", "rtp", host="nano.local", port=5000)),
        ("rtsp://@:8554/live", OutputUri("rtsp://@:8554/live", "rtsp", "rtsp-server", port=8554, name="live")),
        (
            "rtsp://@127.0.0.1:8554/a/b",
            OutputUri("rtsp://@127.0.0.1:8554/a/b", "rtsp", "rtsp-server", host="127.0.0.1", port=8554, name="a/b"),
        ),
        ("rtsp://h:8554/a", OutputUri("rtsp://h:8554/a", "rtsp", "rtsp-client", host="h", port=8554, name="a")),
    ],
)
def test_parse(uri, parts):
    assert parse(uri) == parts
    assert parse(parts.text) == parts
    assert str(parts) == parts.text


def test_with_path():
    there = parse("file://f_%d.jpg").with_path("/there/f_%d.jpg")
    assert there == parse("file:///there/f_%d.jpg")
    assert there.is_jpeg
    assert there.is_file


@pytest.mark.parametrize(
    ("name", "parts"),
    [("f_%06d.png", ("f_", 6, ".png")), ("%d.jpg", ("", 1, ".jpg")), ("1%09d2.png", ("1", 9, "2.png"))],
)
def test_frame_number(name, parts):
    assert split_frame_number(name) == parts


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("", "output '': an empty output; supported: " + FORMS),
        (None, "supported: " + FORMS),
        (5, "supported: " + FORMS),
        ("screen://0", "did you mean display:?"),
        ("display://", "not a monitor; write display://0"),
        ("display://:0", "not a monitor"),
        ("display:0", "not a monitor"),
        ("display://0/x", "not a monitor"),
        ("/dev/video3", "write v4l2:///dev/video3"),
        ("v4l2://video3", "not a device; write v4l2:///dev/video10, or v4l2://label/NAME"),
        ("v4l2:///etc/passwd", "not a device"),
        ("v4l2:///dev/../etc/passwd", "not a device"),
        ("v4l2://label/", "not a device"),
        ("v4l2://label/" + "ü" * 16, "not a device"),
        ("rtp://10.0.0.1", "no port"),
        ("rtp://:5000", "no host"),
        ("rtp://10.0.0.1:0", "there is no port 0"),
        ("rtp://10.0.0:5000", "10.0.0 is no IP address"),
        ("rtp://10.0.0.1:5000/live", "takes no path; write rtp://10.0.0.1:5000"),
        ("rtsp://@:8554", "no name after the port"),
        ("rtsp://@:8554/a b", "not a stream's name"),
        ("rtsp://@:8554/../x?y", "not a stream's name"),
        ("rtsp://me:secret@h:8554/live", "output rtsp://***@h:8554/live: an address takes no user"),
        ("mjepg://127.0.0.1:1", "did you mean mjpeg:?"),
        ("out.png", "write file://out.png"),
        ("file:///a\nb.png", "control character"),
        ("file://", "an empty path"),
        ("file:///data/", "a file name without a type"),
        ("file:///data/.mp4", "a file name without a type"),
        ("file:///data/out.gif", "videos end in"),
        ("file://~/out.mp4", "~ is not expanded"),
        ("file:///$HOME/out.mp4", "variables ($…) are not expanded"),
        ("file:///out_%03d.mp4", "a numbered video"),
        ("file:///frame_%s.png", "write one %d"),
        ("file:///frame_%d_%d.png", "write one %d"),
        ("file:///frame_%6d.png", "write one %d"),
        ("file:///frame_%00d.png", "write one %d"),
        ("file:///100%.png", "write one %d"),
        ("file:///100%/a.png", "a % in the name of a folder"),
        ("null:x", "nothing after its colon"),
        ("mjpeg://127.0.0.1", "no port; write mjpeg://127.0.0.1:8080"),
        ("mjpeg://:8080", "no host"),
        ("mjpeg://127.0.0.1:65536", "there is no port 65536"),
        ("mjpeg://127.0.0.1:80/live", "takes no path; write mjpeg://127.0.0.1:80"),
        ("mjpeg://user:secret@127.0.0.1:80", "output mjpeg://***@127.0.0.1:80: an address takes no user"),
        ("mjpeg://user:\nsecret@127.0.0.1:80", "output mjpeg://***@127.0.0.1:80: the URI holds a control"),
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
    assert "secret" not in str(caught.value)


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
    assert sink.uri == parse(uri).text
    assert type(create_sink(parse(uri))) is kind


def test_every_scheme_is_a_sink():
    for scheme in SCHEMES:
        uri = {
            "null": "null:",
            "file": "file:///a.png",
            "mjpeg": "mjpeg://127.0.0.1:1",
            "display": "display://0",
            "v4l2": "v4l2:///dev/video10",
            "rtp": "rtp://127.0.0.1:5000",
            "rtsp": "rtsp://@:8554/live",
        }[scheme]
        assert isinstance(create_sink(uri), Sink)
        assert isinstance(sink_options(uri), tuple)
    assert sink_options("file:///a.png") == sink_options(parse("file:///a.png")) == FileSink.OPTIONS


def test_a_scheme_is_added_in_one_place(monkeypatch):
    def wall(rest, slashes):
        return OutputUri(f"wall://{rest}", "wall", "wall", host=rest)

    monkeypatch.setitem(SCHEMES, "wall", Scheme("wall://", "edgegs.sinks.null:NullSink", wall))
    assert create_sink("WALL://7").uri == "wall://7"
    for text, suggestion in (
        ("floor://0", f"supported: {FORMS}, wall://"),
        ("wal://7", f"did you mean wall:? supported: {FORMS}, wall://"),
        ("wall", "write wall://…"),
    ):
        with pytest.raises(UriError) as caught:
            parse(text)
        assert caught.value.suggestion == suggestion


def test_every_video_suffix_has_codecs():
    assert set(_CODECS) == set(VIDEO_SUFFIXES)


def test_token_makes_any_address_legal():
    assert create_sink("mjpeg://0.0.0.0:8080", token="t").uri == "mjpeg://0.0.0.0:8080"


@pytest.mark.parametrize(
    ("host", "answer"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True), ("LOCALHOST", True)]
    + [(host, False) for host in ("0.0.0.0", "::", "10.0.0.1", "localhost.example.org", "127.0.0.1.nip.io")],
)
def test_is_loopback(host, answer):
    assert is_loopback(host) is answer


@pytest.mark.parametrize(
    "code",
    [
        "from edgegs.sinks import create_sink; create_sink('null:')",
        "from edgegs.sinks.uri import parse; parse('mjpeg://127.0.0.1:1'); parse('file:///a.png')",
        "import edgegs.config",
    ],
)
def test_needs_neither_opencv_nor_a_server(code):
    code = f"import sys; {code}; print(bool(set(sys.modules) & {{'cv2', 'http.server'}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
