"""URIs of live pictures."""

from __future__ import annotations

import subprocess
import sys

import pytest

from edgegs.capture import CaptureUri, parse
from edgegs.capture.uri import PICTURE_SUFFIXES, VIDEO_SUFFIXES
from edgegs.sinks.uri import UriError


@pytest.mark.parametrize(
    ("uri", "parts"),
    [
        ("v4l2:///dev/video0", CaptureUri("v4l2:///dev/video0", "v4l2", "/dev/video0")),
        (
            "V4L2:///dev/v4l/by-id/usb-046d_C920-index0",
            CaptureUri("v4l2:///dev/v4l/by-id/usb-046d_C920-index0", "v4l2", "/dev/v4l/by-id/usb-046d_C920-index0"),
        ),
        ("csi://0", CaptureUri("csi://0", "csi")),
        ("CSI://07", CaptureUri("csi://7", "csi", index=7)),
        ("file:///data/loop.mp4", CaptureUri("file:///data/loop.mp4", "video", "/data/loop.mp4")),
        ("file://a b/ü%20.WebM", CaptureUri("file://a b/ü%20.WebM", "video", "a b/ü%20.WebM")),  # never decoded
        ("File:///x/y.JPG", CaptureUri("file:///x/y.JPG", "picture", "/x/y.JPG")),
    ],
)
def test_parse(uri, parts):
    assert parse(uri) == parts
    assert parse(parts.text) == parts
    assert str(parts) == parts.text


@pytest.mark.parametrize("suffix", VIDEO_SUFFIXES + PICTURE_SUFFIXES)
def test_every_suffix_is_one_kind(suffix):
    assert parse("file://a" + suffix).kind == ("video" if suffix in VIDEO_SUFFIXES else "picture")


def test_is_file_and_with_path():
    there = parse("file://loop.mkv").with_path("/there/loop.mkv")
    assert there == parse("file:///there/loop.mkv")
    assert [parse(uri).is_file for uri in ("v4l2:///dev/video0", "csi://0", "file://a.png")] == [False, False, True]


@pytest.mark.parametrize(
    ("uri", "says", "suggests"),
    [
        ("", "not a URI", "write v4l2:///dev/video0, csi://0 or file:///data/loop.mp4"),
        ("camera", "not a URI", "write v4l2:///dev/video0"),
        ("/dev/video0", "not a URI", "write v4l2:///dev/video0"),
        ("http://127.0.0.1/x.mp4", "unknown scheme http:", "csi://0"),
        ("v4l2:/dev/video0", "not a URI", "write v4l2:///dev/video0"),
        ("v4l2://", "an empty path", "write a path"),
        ("v4l2:///dev/../etc/passwd", "not a device", "write v4l2:///dev/video0"),
        ("v4l2:///dev/video0/", "not a device", ""),
        ("v4l2:///tmp/video0", "not a device", ""),
        ("v4l2://label/NAME", "not a device", ""),
        ("csi://", "not the number of a sensor", "write csi://0"),
        ("csi://-1", "not the number of a sensor", ""),
        ("csi://100", "not the number of a sensor", ""),
        ("csi://١", "not the number of a sensor", ""),
        ("file://", "an empty path", "write a path"),
        ("file://~/a.mp4", "~ is not expanded", "full path"),
        ("file://$HOME/a.mp4", "variables", "full path"),
        ("file:///a", "a file name without a type", ".webm"),
        ("file:///a.gif", "a file of the type .gif", ".png"),
        ("file:///a.mp4\n", "a control character", "remove it"),
        ("file:///\x00.mp4", "a control character", "remove it"),
    ],
)
def test_refused(uri, says, suggests):
    with pytest.raises(UriError) as caught:
        parse(uri)
    assert says in caught.value.text
    assert suggests in caught.value.suggestion


def test_checking_a_uri_needs_no_opencv():
    script = "import sys, edgegs.capture as c; c.parse('csi://0'); sys.exit('cv2' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 0


def test_public_names():
    import edgegs.capture as package

    assert sorted(package.__all__) == ["Capture", "CaptureUri", "parse"]
    assert package.Capture.__name__ == "Capture"
    with pytest.raises(AttributeError, match="nothing"):
        _ = package.nothing
