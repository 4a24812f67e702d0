"""A video as live picture: order and pace, a file replaced or removed, and files that mean harm."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import struct
import subprocess
import sys

import cv2
import numpy as np
import pytest
from capture_support import FakeTime, file_uri, wait_for

from edgegs.capture import Capture
from edgegs.capture import sources as module
from edgegs.capture.sources import VideoSource, create
from edgegs.errors import AccessError, InputError
from edgegs.sinks.backoff import Backoff

FPS = 25.0


def write_video(path, n_frames, codec="MJPG", fps=FPS, size=(64, 48), first=20):
    """Frame k is grey, ``first`` + 20 k."""
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*codec), fps, size)
    assert writer.isOpened()
    for k in range(n_frames):
        writer.write(np.full((size[1], size[0], 3), first + 20 * k, np.uint8))
    writer.release()
    return path


def video(path, time=None):
    source = VideoSource(file_uri(path, "video"), (time or FakeTime()).timing)
    source.open()
    return source


def first_picture(source):
    try:
        source.open()
        return source.read()
    finally:
        source.close()


def level(image):
    """Which frame of ``write_video`` (first = 20) this is."""
    assert image.dtype == np.uint8
    assert image.shape[2] == 3
    assert int(image.max()) - int(image.min()) <= 4
    return round((float(image.mean()) - 20) / 20)


@pytest.mark.parametrize(("suffix", "codec"), [("avi", "MJPG"), ("mp4", "mp4v"), ("mkv", "mp4v"), ("webm", "VP80")])
def test_video_loops_in_order_at_its_own_pace(tmp_path, suffix, codec):
    time = FakeTime()
    source = video(write_video(tmp_path / f"a.{suffix}", 8, codec), time)
    began = time.time
    got, times = [], []
    for _ in range(20):
        got.append(level(source.read()))
        times.append((time.time - began) * FPS)
    source.close()
    assert got == [k % 8 for k in range(20)]
    np.testing.assert_allclose(times, range(20), atol=1e-6)


def test_late_reader_gets_the_picture_of_the_time(tmp_path):
    time = FakeTime()
    source = video(write_video(tmp_path / "a.avi", 8), time)
    assert level(source.read()) == 0
    time.time += 4.5 / FPS
    assert level(source.read()) == 4
    assert level(source.read()) == 5
    time.time += 100.0  # the board slept: the video goes on where it was, without a rush
    assert level(source.read()) == 6
    before = time.time
    assert level(source.read()) == 7
    assert time.time - before == pytest.approx(1 / FPS)


def test_slow_video_says_that_its_picture_still_holds(tmp_path):
    time = FakeTime()
    path = write_video(tmp_path / "a.mkv", 4, "mp4v", fps=1.0)
    source = video(path, time)
    period = source._period
    assert period == pytest.approx(1.0, rel=0.01)
    assert level(source.read()) == 0
    before = time.time
    assert source.read() is None
    assert time.time - before == module.LOOK_S  # well below the time after which a picture is withdrawn
    assert level(source.read()) == 1
    assert time.time - before == pytest.approx(period)


def test_single_picture_is_no_busy_loop(tmp_path):
    time = FakeTime()
    source = video(write_video(tmp_path / "a.avi", 1), time)
    n_pictures = 0
    began = time.time
    while time.time < began + 10:
        n_pictures += source.read() is not None
    assert 9 <= n_pictures <= 13


def test_new_file_of_the_name_is_taken_at_the_end_of_a_pass(tmp_path):
    path = write_video(tmp_path / "a.avi", 3)
    source = video(path)
    assert level(source.read()) == 0
    os.replace(str(write_video(tmp_path / "b.avi", 2, first=120)), str(path))
    assert [level(source.read()) for _ in range(5)] == [1, 2, 5, 6, 5]


def test_removed_video(tmp_path):
    path = write_video(tmp_path / "a.avi", 2)
    source = video(path)
    path.unlink()
    assert [level(source.read()) for _ in range(2)] == [0, 1]
    with pytest.raises(InputError, match=f"^background file://{path}: no such file; check the path$"):
        source.read()


def test_video_removed_and_back(tmp_path):
    path = write_video(tmp_path / "a.avi", 2)
    capture = Capture(file_uri(path, "video"), 32, 24)
    capture._backoff = Backoff(0.02, 0.05)
    capture.start()
    try:
        wait_for(lambda: capture.latest() is not None)
        assert capture.latest().shape == (24, 32, 3)
        os.rename(str(path), str(tmp_path / "away"))
        wait_for(lambda: capture.status()["state"] == "retrying")
        assert capture.status()["last_error"] == "no such file; check the path"
        os.rename(str(tmp_path / "away"), str(path))
        wait_for(lambda: capture.status()["state"] == "up")
        assert capture.status()["reconnects"] == 1
    finally:
        capture.close()
    assert not capture._thread.is_alive()


def test_truncated_video_plays_what_is_there(tmp_path):
    whole = write_video(tmp_path / "a.avi", 8, size=(1280, 720)).read_bytes()
    path = tmp_path / "cut.avi"
    path.write_bytes(whole[: len(whole) * 2 // 3])
    source = video(path)
    got = [level(source.read()[:8]) for _ in range(12)]  # the last picture has an upper part only
    n_left = got.index(0, 1)
    assert 2 <= n_left < 8
    assert got == [k % n_left for k in range(12)]


def broken_videos(folder):
    whole = write_video(folder / "whole.mp4", 8, "mp4v").read_bytes()
    yield "empty", b""
    yield "no index", whole[: len(whole) // 2]
    yield "text", b"#EXTM3U\nhttp://127.0.0.1:9/x.ts\n" * 10
    yield "noise", np.random.default_rng(1).bytes(100000)


def test_broken_videos(tmp_path):
    n_open = len(os.listdir("/proc/self/fd"))
    for name, data in broken_videos(tmp_path):
        path = tmp_path / "x.mp4"
        path.write_bytes(data)
        with pytest.raises(InputError) as caught:
            video(path).read()
        assert str(caught.value).startswith(f"background file://{path}: not a video that OpenCV can read"), name
    assert len(os.listdir("/proc/self/fd")) == n_open


def test_damage_is_said_by_us_only(tmp_path):
    """In a process of its own: OpenCV decides when it first uses FFmpeg how much that may say."""
    whole = write_video(tmp_path / "whole.mp4", 8, "mp4v", size=(640, 480)).read_bytes()
    (tmp_path / "a.mp4").write_bytes(whole[: len(whole) // 2])
    whole = write_video(tmp_path / "whole.avi", 8, size=(640, 480)).read_bytes()
    (tmp_path / "a.avi").write_bytes(whole[: len(whole) * 2 // 3])
    script = (
        "import sys, time; from edgegs.capture import CaptureUri\n"
        "from edgegs.capture.base import Timing; from edgegs.capture.sources import VideoSource\n"
        "for path in sys.argv[1:]:\n"
        "    source = VideoSource(CaptureUri(path, 'video', path), Timing(lambda: 0.0, lambda s: True))\n"
        "    try:\n"
        "        source.open()\n"
        "        for _ in range(12): source.read()\n"
        "        print('plays')\n"
        "    except Exception as error: print(type(error).__name__)\n"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OPENCV")}
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "a.mp4"), str(tmp_path / "a.avi")],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        timeout=60,
    )
    assert done.stdout.decode() == "InputError\nplays\n"


def test_video_without_a_picture(tmp_path):
    data = bytearray(write_video(tmp_path / "a.avi", 3).read_bytes())
    while b"\xff\xd8" in data:
        at = data.index(b"\xff\xd8")
        end = data.index(b"\xff\xd9", at) + 2
        data[at:end] = bytes(end - at)
    (tmp_path / "b.avi").write_bytes(data)
    with pytest.raises(InputError, match=r"not a video|no picture that can be decoded"):
        first_picture(VideoSource(file_uri(tmp_path / "b.avi", "video"), FakeTime().timing))


def test_enormous_video_is_refused_before_it_is_decoded(tmp_path):
    """12000 x 12000: 432 MB a picture, from a file of some kilobytes."""
    data = bytearray(write_video(tmp_path / "a.avi", 3).read_bytes())
    replace_all(data, struct.pack("<II", 64, 48), struct.pack("<II", 12000, 12000))
    replace_all(data, struct.pack(">BHH", 8, 48, 64), struct.pack(">BHH", 8, 12000, 12000))
    (tmp_path / "b.avi").write_bytes(data)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match=r"12000 x 12000 pixels are too many \(at most 64 million\); scale it down"):
        first_picture(VideoSource(file_uri(tmp_path / "b.avi", "video"), FakeTime().timing))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


def test_video_whose_header_lies(tmp_path):
    data = bytearray(write_video(tmp_path / "a.avi", 3).read_bytes())
    replace_all(data, struct.pack("<II", 64, 48), struct.pack("<II", 100000, 100000))
    (tmp_path / "b.avi").write_bytes(data)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with contextlib.suppress(InputError):  # FFmpeg may refuse it, or believe the pictures instead
        assert first_picture(VideoSource(file_uri(tmp_path / "b.avi", "video"), FakeTime().timing)).shape == (48, 64, 3)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


def replace_all(data, old, new):
    assert old in data
    while old in data:
        at = data.index(old)
        data[at : at + len(old)] = new


@pytest.mark.parametrize("kind", ["video", "picture"])
def test_what_is_no_file(tmp_path, kind):
    (tmp_path / "folder.mp4").mkdir()
    os.mkfifo(str(tmp_path / "fifo.mp4"))
    (tmp_path / "zero.mp4").symlink_to("/dev/zero")
    (tmp_path / "loop.mp4").symlink_to("loop.mp4")
    for name, says in (
        ("folder", "is a folder, not a regular file"),
        ("fifo", "is a FIFO, not a regular file"),
        ("zero", "is a character device, not a regular file"),
        ("loop", "cannot be opened: Too many levels of symbolic links"),
        ("none", "no such file; check the path"),
    ):
        source = create(file_uri(tmp_path / f"{name}.mp4", kind), 64, 48, "cover", 30.0, FakeTime().timing)
        with pytest.raises(InputError, match=f": {says}"):
            first_picture(source)


def test_forbidden_file(tmp_path, monkeypatch):
    def forbidden(path, *_):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr("edgegs.files.os.open", forbidden)
    for kind in ("video", "picture"):
        source = create(file_uri(tmp_path / "x", kind), 64, 48, "cover", 30.0, FakeTime().timing)
        with pytest.raises(AccessError, match="permission denied; let this user read it"):
            first_picture(source)


def test_path_that_ffmpeg_would_take_for_an_address(tmp_path):
    (tmp_path / "http:").mkdir()
    (tmp_path / "http:" / "%03d.avi").write_bytes(write_video(tmp_path / "a.avi", 2).read_bytes())
    assert level(video(f"{tmp_path}/http:/%03d.avi").read()) == 0


def test_h264_with_reordered_pictures_loops_in_order(tmp_path):
    """The kind of file that people have: an .mp4 of x264, with B-pictures."""
    if shutil.which("gst-launch-1.0") is None:
        pytest.skip("no gst-launch-1.0 (gstreamer1.0-tools): an H.264 video is not tested")
    raw, path = tmp_path / "raw.y4m", tmp_path / "a.mp4"
    with raw.open("wb") as file:
        file.write(b"YUV4MPEG2 W64 H48 F25:1 Ip A1:1 C420\n")
        for k in range(8):
            luma = np.full(64 * 48, 16 + (20 + 20 * k) * 219 // 255, np.uint8)
            file.write(b"FRAME\n" + luma.tobytes() + bytes([128]) * (64 * 48 // 2))
    pipeline = ["filesrc", f"location={raw}", "!", "y4mdec", "!", "x264enc", "bframes=2", "!", "mp4mux", "!"]
    done = subprocess.run(
        ["gst-launch-1.0", "-q", *pipeline, "filesink", f"location={path}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=30,
    )
    if done.returncode != 0:
        pytest.skip("GStreamer lacks y4mdec, x264enc or mp4mux (plugins bad, ugly, good): H.264 is not tested")
    source = video(path)
    got = [level(source.read()) for _ in range(20)]
    source.close()
    assert got == [k % 8 for k in range(20)]
