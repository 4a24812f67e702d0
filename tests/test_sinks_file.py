"""``file://``: what lies on the disk afterwards, read back picture by picture."""

from __future__ import annotations

import os
import resource
import signal
import tempfile
import threading
import time
from pathlib import Path

import cv2
import numpy as np
import pytest
from gst_support import GST, Playing, numbered, wait_until
from gst_support import number as number_in
from images import psnr

from edgegs import files
from edgegs.errors import AccessError, ConfigError, DeviceError, OutputError
from edgegs.frame import Frame
from edgegs.sinks import SinkRunner, create_sink, h264
from edgegs.sinks import file as file_module
from edgegs.sinks.runner import Clock
from edgegs.sinks.uri import parse

WAIT = 20.0
WIDTH, HEIGHT = 96, 64
BIG = (240, 120)  # of pictures that carry their number
# MPEG-4 and MJPEG at OpenCV's default rate on these smooth pictures: 34.6 dB or more was measured; 30 leaves room
# for other FFmpeg builds and is far above what a swapped channel, a shifted or a neighbouring frame gives (< 26).
VIDEO_PSNR_DB = 30.0


def picture(index, width=WIDTH, height=HEIGHT):
    """A smooth moving gradient whose three channels all differ."""
    y, x = np.mgrid[:height, :width].astype(np.float64)
    image = np.empty((height, width, 3), np.uint8)
    image[..., 0] = 255 * x / width
    image[..., 1] = 255 * y / height
    image[..., 2] = 127 + 120 * np.sin((x + 24 * index) * 2 * np.pi / width)
    return image


def frame(index, width=WIDTH, height=HEIGHT, seconds=None):
    """The index-th frame, at ``seconds`` (default: in step with 30 frames a second)."""
    seconds = index / 30 if seconds is None else seconds
    return Frame(picture(index, width, height), index, int(seconds * 1e9), 1.0)


def write(uri, count, **options):
    """Write ``count`` frames straight through a sink."""
    sink = create_sink(uri, **options)
    sink.open(WIDTH, HEIGHT, 30.0)
    for index in range(count):
        sink.write(frame(index))
    sink.close()


def read_video(path):
    capture = cv2.VideoCapture(str(path))
    frames = []
    while True:
        there, image = capture.read()
        if not there:
            capture.release()
            return frames
        frames.append(image)


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


# ---- videos ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".avi"])
def test_video_reads_back_frame_by_frame(tmp_path, suffix):
    path = tmp_path / ("out" + suffix)
    write(f"file://{path}", 20)
    frames = read_video(path)
    assert len(frames) == 20
    for index, image in enumerate(frames):
        assert image.shape == (HEIGHT, WIDTH, 3)
        assert psnr(image, picture(index)) > VIDEO_PSNR_DB
    assert psnr(frames[0], picture(1)) < VIDEO_PSNR_DB  # the bar can tell neighbours apart
    assert psnr(frames[0], picture(0)[..., ::-1]) < VIDEO_PSNR_DB  # and RGB from BGR
    capture = cv2.VideoCapture(str(path))
    assert capture.get(cv2.CAP_PROP_FPS) == pytest.approx(30.0)
    assert names(tmp_path) == [path.name]


def test_named_codec(tmp_path):
    write(f"file://{tmp_path}/out.avi", 3, codec="FFV1")
    frames = read_video(tmp_path / "out.avi")
    assert [np.abs(image.astype(int) - picture(i)).max() <= 3 for i, image in enumerate(frames)] == [True] * 3


def test_codec_that_opencv_cannot_write_is_an_error(tmp_path):
    sink = create_sink(f"file://{tmp_path}/out.mkv", codec="ZZZZ")
    with pytest.raises(OutputError, match=r"cannot write \.mkv"):
        sink.open(WIDTH, HEIGHT, 30.0)
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("suffix", "encoder", "readable"),
    [
        (".mp4", "opencv", False),
        (".mkv", "opencv", True),
        (".avi", "opencv", True),
        pytest.param(".mp4", "x264enc", True, marks=GST),
        pytest.param(".mkv", "x264enc", True, marks=GST),
    ],
)
def test_video_cut_short_by_a_power_cut(tmp_path, suffix, encoder, readable):
    """What the module says about the formats is so."""
    path = tmp_path / ("out" + suffix)
    write(f"file://{path}", 120, encoder=encoder)
    whole = path.read_bytes()
    counts = []
    for share in (0.55, 0.67, 0.83):
        path.write_bytes(whole[: int(len(whole) * share)])
        counts.append(len(read_video(path)))
        images = read_video(path)
        for index in (0, len(images) - 5) if readable else ():
            assert psnr(images[index], picture(index)) > VIDEO_PSNR_DB
    assert all(count >= 30 for count in counts) if readable else counts == [0, 0, 0]
    assert counts == sorted(counts)


# ---- H.264 ----------------------------------------------------------------------------------------------


def numbers_of(path, width=BIG[0], height=BIG[1]):
    images = read_video(path)
    for image in images:
        assert image.shape == (height, width, 3)
    return [number_in(image) for image in images]


def record(sink, count, start=0):
    for index in range(start, start + count):
        sink.write(Frame(numbered(index, BIG[0], BIG[1]), index, int(index / 30 * 1e9), 1.0))


@GST
@pytest.mark.parametrize("suffix", [".mp4", ".mkv"])
def test_h264_holds_every_frame_in_order(tmp_path, suffix):
    path = tmp_path / ("out" + suffix)
    sink = create_sink(f"file://{path}", encoder="x264enc", keyframe_interval_s=0.5)
    sink.open(BIG[0], BIG[1], 30.0)
    record(sink, 100)
    sink.close()
    assert numbers_of(path) == list(range(100))
    for index, image in enumerate(read_video(path)):
        assert psnr(image, numbered(index, BIG[0], BIG[1])) >= VIDEO_PSNR_DB
    capture = cv2.VideoCapture(str(path))
    assert int(capture.get(cv2.CAP_PROP_FOURCC)).to_bytes(4, "little") in (b"h264", b"avc1")
    assert capture.get(cv2.CAP_PROP_FPS) == pytest.approx(30.0)
    capture.release()


@GST
@pytest.mark.parametrize("suffix", [".mp4", ".mkv"])
def test_h264_of_a_child_that_is_killed_is_readable_and_the_next_one_has_another_name(tmp_path, suffix):
    path = tmp_path / ("out" + suffix)
    sink = create_sink(f"file://{path}")
    runner = SinkRunner(sink, BIG[0], BIG[1], 30.0, backoff_s=(0.05, 0.1))
    runner.start()
    assert runner.wait_attempted(WAIT)
    with Playing(runner.offer, lambda index: numbered(index, BIG[0], BIG[1])):
        assert wait_until(lambda: path.stat().st_size > 5000 and len(read_video(path)) >= 30)
        os.kill(sink._writer.pid, signal.SIGKILL)
        assert wait_until(lambda: runner.status()["reconnects"] == 1)
        before = runner.status()["frames_written"]
        assert wait_until(lambda: runner.status()["frames_written"] >= before + 40)
    assert runner.stop(WAIT)
    older = path.with_name("out.1" + suffix)
    assert names(tmp_path) == sorted([older.name, path.name])
    for one in (older, path):
        numbers = numbers_of(one)
        assert len(numbers) >= 30
        assert numbers == sorted(numbers)


@GST
def test_h264_path_is_never_parsed(tmp_path):
    folder = tmp_path / "a b ' \" ! fakesink"
    folder.mkdir()
    for name in ('"q" = ü\\ ! x.mp4', "location='$(touch y)' ; 漢.mkv", "-e.mp4"):
        sink = create_sink(parse("file://x.mp4").with_path(str(folder / name)), encoder="x264enc")
        sink.open(WIDTH, HEIGHT, 30.0)
        sink.write(frame(0))
        sink.close()
        assert psnr(read_video(folder / name)[0], picture(0)) > VIDEO_PSNR_DB
    assert len(names(folder)) == 3
    assert names(tmp_path) == [folder.name]


@GST
def test_h264_leaves_out_the_last_row_and_column_of_an_odd_size(tmp_path):
    sink = create_sink(f"file://{tmp_path}/out.mp4", encoder="x264enc")
    sink.open(99, 51, 30.0)
    for index in range(5):
        sink.write(frame(index, 99, 51))
    sink.close()
    images = read_video(tmp_path / "out.mp4")
    assert [image.shape for image in images] == [(50, 98, 3)] * 5
    assert psnr(images[4], picture(4, 99, 51)[:50, :98]) > VIDEO_PSNR_DB


@GST
def test_h264_bit_rate(tmp_path):
    rng = np.random.default_rng(1)
    noise = [cv2.resize(rng.integers(0, 255, (60, 80, 3), np.uint8), (320, 240)) for _ in range(30)]
    sizes = []
    for rate in (300, 3000):
        sink = create_sink(f"file://{tmp_path}/{rate}.mp4", encoder="x264enc", bitrate_kbps=rate)
        sink.open(320, 240, 30.0)
        for index, image in enumerate(noise):
            sink.write(Frame(image, index, int(index / 30 * 1e9), 1.0))
        sink.close()
        sizes.append((tmp_path / f"{rate}.mp4").stat().st_size)
    assert sizes[1] > 2 * sizes[0]


@GST
@pytest.mark.parametrize("suffix", [".mp4", ".mkv"])
def test_h264_encoder_that_fails_at_once_again_and_again_leaves_nothing(tmp_path, suffix):
    path = tmp_path / ("out" + suffix)
    write(f"file://{path}", 3, encoder="x264enc")
    before = path.read_bytes()
    for _ in range(3):
        sink = create_sink(f"file://{path}", encoder="x264enc")
        sink.open(*BIG, 30.0)
        record(sink, 1)
        sink.interrupt()
        with pytest.raises(OutputError, match=f"^output file://{path}: GStreamer gave no answer and was killed"):
            record(sink, 50)
        with pytest.raises(OutputError, match="was killed"):
            sink.close()
    assert names(tmp_path) == ["out" + suffix]
    assert path.read_bytes() == before


def test_h264_child_that_never_gets_ready_can_be_interrupted(tmp_path, monkeypatch):
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, body in (("gst-inspect-1.0", "exit 0"), ("gst-launch-1.0", "exec /bin/sleep 60")):
        (folder / name).write_text("#!/bin/sh\n" + body + "\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    sink = create_sink(f"file://{tmp_path}/out.mp4", encoder="x264enc")
    errors = []

    def opening():
        try:
            sink.open(WIDTH, HEIGHT, 30.0)
        except OutputError as error:
            errors.append(str(error))

    thread = threading.Thread(target=opening)
    thread.start()
    assert wait_until(lambda: sink._writer is not None)
    sink.interrupt()
    thread.join(WAIT)
    assert errors == [f"output file://{tmp_path}/out.mp4: GStreamer gave no answer and was killed"]
    assert names(tmp_path) == ["bin"]


def test_without_gstreamer_opencv_writes_and_the_log_says_why(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    path = tmp_path / "out.mp4"
    sink = create_sink(f"file://{path}", bitrate_kbps=1000)
    with caplog.at_level("INFO", "edgegs.sinks"):
        for _ in range(2):
            sink.open(WIDTH, HEIGHT, 30.0)
            sink.write(frame(0))
            sink.close()
    assert len(read_video(path)) == 1
    assert names(tmp_path) == ["out.1.mp4", "out.mp4"]
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"output file://{path}: not H.264 but OpenCV's mp4v: gst-inspect-1.0 not found: sudo apt")


def test_encoder_that_is_required_and_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    sink = create_sink(f"file://{tmp_path}/out.mp4", encoder="x264enc")
    with pytest.raises(DeviceError, match=r"^output file://.*out\.mp4: gst-inspect-1.0 not found"):
        sink.open(WIDTH, HEIGHT, 30.0)
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("a.avi", {"encoder": "x264enc"}, "an .avi cannot hold H.264"),
        ("a.mp4", {"encoder": "x264enc", "codec": "MJPG"}, "codec and encoder exclude each other"),
        ("a.mp4", {"encoder": "mp4v"}, "expected one of auto, nvv4l2h264enc, omxh264enc, x264enc, opencv"),
        ("a.mp4", {"keyframe_interval_s": "1"}, "keyframe_interval_s is '1'"),
        ("a.png", {"encoder": "auto"}, "encoder is for videos only"),
        ("a_%d.png", {"bitrate_kbps": 100}, "bitrate_kbps is for videos only"),
    ],
)
def test_wrong_video_options(name, options, words):
    with pytest.raises(ConfigError, match=words):
        create_sink(f"file:///tmp/{name}", **options)


def test_older_video_is_moved_aside_never_overwritten(tmp_path):
    path = tmp_path / "out.mkv"
    for count in (3, 5, 7):
        write(f"file://{path}", count)
    assert names(tmp_path) == ["out.1.mkv", "out.2.mkv", "out.mkv"]
    counts = [len(read_video(tmp_path / name)) for name in names(tmp_path)]
    assert counts == [3, 5, 7]


def test_video_without_a_frame_leaves_the_older_one_in_place(tmp_path):
    path = tmp_path / "out.mp4"
    write(f"file://{path}", 3)
    before = path.read_bytes()
    write(f"file://{path}", 0)
    with pytest.raises(OutputError):
        create_sink(f"file://{path}", codec="ZZZZ").open(WIDTH, HEIGHT, 30.0)
    assert names(tmp_path) == ["out.mp4"]
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", ["out.mp4", "out.mkv", "out.avi", "out.jpg"])
def test_link_whose_target_is_not_there_is_an_error_and_stays(tmp_path, name):
    """Its disk is not mounted: recording to the link's own disk instead would fill the system's."""
    link, target = tmp_path / name, tmp_path / "disk" / name
    link.symlink_to(target)
    sink = create_sink(f"file://{link}")
    for _ in range(2):
        with pytest.raises(OutputError, match=f"symbolic link to {target}, which is not there .*is its disk mounted"):
            sink.open(WIDTH, HEIGHT, 30.0)
        assert names(tmp_path) == [name]
        assert os.readlink(str(link)) == str(target)
    runner = SinkRunner(sink, WIDTH, HEIGHT, 30.0, backoff_s=(0.01, 0.01))
    runner.start()
    assert runner.wait_attempted(WAIT)
    link.unlink()
    assert wait_until(lambda: runner.state == "up")  # it was tried again
    assert runner.stop(WAIT)


@pytest.mark.parametrize("name", ["out.mp4", "out.avi", "out.jpg"])
def test_link_to_a_file_is_an_error_and_both_stay(tmp_path, name):
    link, target = tmp_path / name, tmp_path / "target"
    target.write_bytes(b"precious")
    link.symlink_to("target")
    with pytest.raises(OutputError, match=f"{link} is a symbolic link to {target}; name that file, or remove the link"):
        create_sink(f"file://{link}").open(WIDTH, HEIGHT, 30.0)
    assert names(tmp_path) == [name, "target"]
    assert link.is_symlink()
    assert target.read_bytes() == b"precious"


def test_link_to_a_folder_is_followed(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "runs").symlink_to(tmp_path / "disk")
    write(f"file://{tmp_path}/runs/out.avi", 2)
    assert names(tmp_path / "disk") == ["out.avi"]


@pytest.mark.parametrize("appears", ["file", "link"])
@pytest.mark.parametrize("suffix", [".mkv", ".avi"])
def test_what_appears_between_two_looks_is_neither_written_over_nor_removed(tmp_path, monkeypatch, suffix, appears):
    path, victim = tmp_path / ("out" + suffix), tmp_path / "victim"
    write(f"file://{path}", 3)
    before = path.read_bytes()
    sink = create_sink(f"file://{path}")
    move_aside = sink._move_aside

    def then_it_appears():
        older = move_aside()
        if appears == "file":
            path.write_bytes(b"somebody else's")
        else:
            path.symlink_to(victim)
        return older

    monkeypatch.setattr(sink, "_move_aside", then_it_appears)
    with pytest.raises(OutputError, match=f"cannot write {path}: File exists"):
        sink.open(WIDTH, HEIGHT, 30.0)
    sink.close()
    older = path.with_name("out.1" + suffix)
    assert names(tmp_path) == [older.name, path.name]
    assert older.read_bytes() == before
    if appears == "file":
        assert path.read_bytes() == b"somebody else's"
    else:
        assert path.is_symlink()


def test_video_file_deleted_meanwhile(tmp_path):
    sink = create_sink(f"file://{tmp_path}/out.mkv")
    sink.open(WIDTH, HEIGHT, 30.0)
    sink.write(frame(0))
    (tmp_path / "out.mkv").unlink()
    with pytest.raises(OutputError, match="the file is gone"):
        sink.write(frame(1))
    with pytest.raises(OutputError, match="1 frames were lost"):
        sink.close()
    sink.close()  # harmless


def test_write_without_open(tmp_path):
    with pytest.raises(OutputError, match="not open"):
        create_sink(f"file://{tmp_path}/out.mkv").write(frame(0))


# ---- pictures -------------------------------------------------------------------------------------------


def test_numbered_pictures_are_exact_and_go_on_after_the_last(tmp_path):
    uri = f"file://{tmp_path}/frame_%06d.png"
    write(uri, 3)
    write(uri, 2)
    (tmp_path / "frame_x.png").write_bytes(b"not one of ours")
    write(uri, 1)
    assert names(tmp_path) == [f"frame_{number:06d}.png" for number in range(6)] + ["frame_x.png"]
    for number, index in enumerate((0, 1, 2, 0, 1, 0)):
        assert np.array_equal(cv2.imread(str(tmp_path / f"frame_{number:06d}.png")), picture(index))


@pytest.mark.parametrize(("pattern", "first"), [("a%d.png", "a0.png"), ("%03d.jpg", "000.jpg")])
def test_number_patterns(tmp_path, pattern, first):
    write(f"file://{tmp_path}/{pattern}", 1)
    assert names(tmp_path) == [first]


@pytest.mark.parametrize(("name", "made"), [("a.png", "a.png"), ("%d.png", "0.png"), ("a.mkv", "a.mkv")])
def test_percent_in_a_folder_is_just_a_folder(tmp_path, name, made):
    # Refused where it is written in a URI, but a relative path may come to lie in such a folder.
    write(parse(f"file://{name}").with_path(f"{tmp_path}/100%/{name}"), 1)
    assert names(tmp_path / "100%") == [made]


def test_jpeg_quality(tmp_path):
    write(f"file://{tmp_path}/low.jpg", 1, quality=20)
    write(f"file://{tmp_path}/high.jpg", 1, quality=95)
    low, high = (psnr(cv2.imread(str(tmp_path / name)), picture(0)) for name in ("low.jpg", "high.jpg"))
    assert high > low + 3 > 33
    assert (tmp_path / "low.jpg").stat().st_size < (tmp_path / "high.jpg").stat().st_size


def test_single_picture_is_never_seen_half(tmp_path):
    path = tmp_path / "latest.png"
    sink = create_sink(f"file://{path}")
    sink.open(WIDTH, HEIGHT, 30.0)
    sink.write(frame(0))
    done = threading.Event()

    def writing():
        for index in range(150):
            sink.write(frame(index % 4))
        done.set()

    thread = threading.Thread(target=writing)
    thread.start()
    wanted = [picture(index) for index in range(4)]
    seen = 0
    while not done.is_set() or seen == 0:
        image = cv2.imdecode(np.frombuffer(path.read_bytes(), np.uint8), cv2.IMREAD_COLOR)
        assert any(np.array_equal(image, one) for one in wanted)
        seen += 1
    thread.join()
    assert names(tmp_path) == ["latest.png"]


def test_failed_picture_leaves_the_last_good_one(tmp_path):
    path = tmp_path / "latest.png"
    sink = create_sink(f"file://{path}")
    sink.open(WIDTH, HEIGHT, 30.0)
    sink.write(frame(0))

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))  # the kernel takes so many bytes, and no more
    try:
        with pytest.raises(OutputError, match="File too large"):
            sink.write(frame(1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert np.array_equal(cv2.imread(str(path)), picture(0))
    assert names(tmp_path) == ["latest.png"]


def test_temporary_name_of_a_picture_is_never_written_through(tmp_path):
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    path = tmp_path / "latest.png"
    (tmp_path / ".latest.png.part").symlink_to(victim)
    write(f"file://{path}", 1)
    assert victim.read_bytes() == b"precious"
    assert np.array_equal(cv2.imread(str(path)), picture(0))
    assert not path.is_symlink()
    assert names(tmp_path) == ["latest.png", "victim"]


def test_write_at_once_is_never_led_astray(tmp_path, monkeypatch):
    victim, path = tmp_path / "victim", tmp_path / "status.json"
    victim.write_bytes(b"precious")
    temporary = tmp_path / f"status.json.{os.getpid()}.new"
    temporary.symlink_to(victim)
    files.write_at_once(str(path), b"new")
    assert (victim.read_bytes(), path.read_bytes()) == (b"precious", b"new")
    assert names(tmp_path) == ["status.json", "victim"]
    temporary.symlink_to(victim)
    with monkeypatch.context() as patch:
        patch.setattr(files.os, "unlink", lambda path: None)  # as if it were planted between removing and opening
        with pytest.raises(OutputError, match="File exists"):
            files.write_at_once(str(path), b"newer")
    assert (victim.read_bytes(), path.read_bytes()) == (b"precious", b"new")
    temporary.unlink()
    temporary.mkdir()  # what cannot be removed is not ours to replace
    with pytest.raises((OutputError, AccessError), match=str(path)):
        files.write_at_once(str(path), b"newer")
    assert names(tmp_path) == ["status.json", temporary.name, "victim"]
    assert path.read_bytes() == b"new"


# ---- folders, permissions, space ------------------------------------------------------------------------


def test_one_missing_folder_is_created(tmp_path):
    write(f"file://{tmp_path}/runs/out.mkv", 2)
    assert len(read_video(tmp_path / "runs" / "out.mkv")) == 2


def test_deeper_missing_folder_means_an_absent_disk(tmp_path):
    sink = create_sink(f"file://{tmp_path}/media/disk/out.mkv")
    with pytest.raises(OutputError, match="create it, or mount its disk"):
        sink.open(WIDTH, HEIGHT, 30.0)
    assert names(tmp_path) == []


@pytest.mark.parametrize("name", ["out.mkv", "out.png", "out_%d.png"])
def test_folder_that_is_a_file(tmp_path, name):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OutputError, match="cannot create folder"):
        create_sink(f"file://{tmp_path}/file/{name}").open(WIDTH, HEIGHT, 30.0)


def test_file_name_that_is_a_folder(tmp_path):
    (tmp_path / "out.mkv").mkdir()
    with pytest.raises(OutputError, match="is a folder"):
        create_sink(f"file://{tmp_path}/out.mkv").open(WIDTH, HEIGHT, 30.0)


@pytest.mark.parametrize("name", ["out.mkv", "out.png", "out_%d.png"])
def test_too_little_space(tmp_path, name):
    sink = create_sink(f"file://{tmp_path}/{name}", min_free_mb=1 << 24)
    with pytest.raises(OutputError, match=r"must stay free \(min_free_mb\)"):
        sink.open(WIDTH, HEIGHT, 30.0)


def test_disk_that_fills_up_finishes_the_video(tmp_path, monkeypatch):
    sink = create_sink(f"file://{tmp_path}/out.mp4")
    sink.open(WIDTH, HEIGHT, 30.0)
    for index in range(5):
        sink.write(frame(index))
    monkeypatch.setattr(file_module, "_CHECK_S", 0.0)
    sink._min_free = 1 << 62
    with pytest.raises(OutputError, match="must stay free"):
        sink.write(frame(5))
    sink.close()
    assert len(read_video(tmp_path / "out.mp4")) == 5


@pytest.fixture
def open_folder():
    """A folder that an unprivileged user can reach (pytest's own is closed to others)."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o777)
        yield Path(name)


@pytest.fixture
def unprivileged():
    """Permissions do not bind root: act as nobody."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


class ManualClock(Clock):
    """Back-off ends when the test says so."""

    def __init__(self):
        self.waiting = threading.Event()
        self.skipped = 0.0

    def now(self):
        return time.monotonic() + self.skipped

    def wait(self, condition, timeout):
        self.waiting.set()
        condition.wait(timeout)


def test_read_only_folder_retries_heals_and_leaves_the_others_alone(open_folder, unprivileged):
    closed = open_folder / "closed"
    closed.mkdir()
    closed.chmod(0o555)
    clock = ManualClock()
    broken = SinkRunner(create_sink(f"file://{closed}/a_%d.png"), WIDTH, HEIGHT, 30.0, clock=clock)
    good = SinkRunner(create_sink(f"file://{open_folder}/b_%d.png"), WIDTH, HEIGHT, 30.0)
    for runner in (broken, good):
        runner.start()
    assert clock.waiting.wait(WAIT)
    assert broken.state == "retrying"
    assert isinstance(broken.error, AccessError)
    assert broken.error.exit_code == 77
    assert str(closed) in broken.status()["last_error"]
    for index in range(3):
        for runner in (broken, good):
            runner.offer(frame(index))
    assert good.wait_delivered(WAIT)
    assert not broken.first_delivery.is_set()

    closed.chmod(0o755)
    clock.skipped = 60.0
    broken.offer(frame(3))  # wakes the waiting thread, which sees that the time is over
    assert broken.wait_delivered(WAIT)
    assert broken.state == "up"
    assert all(runner.stop(WAIT) for runner in (broken, good))
    assert len(names(closed)) == 4
    assert {"b_0.png", "b_1.png", "b_2.png"} <= set(names(open_folder))


def test_video_gets_every_frame_through_a_runner_that_keeps_up(tmp_path):
    runner = SinkRunner(create_sink(f"file://{tmp_path}/out.mkv", queue=40), WIDTH, HEIGHT, 30.0)
    runner.start()
    assert runner.wait_attempted(WAIT)
    for index in range(40):
        runner.offer(frame(index))
    assert runner.stop(WAIT)
    frames = read_video(tmp_path / "out.mkv")
    assert len(frames) == 40
    assert all(psnr(image, picture(index)) > VIDEO_PSNR_DB for index, image in enumerate(frames))
    assert runner.status()["frames_dropped"] == 0


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([0, 1 / 30, 2 / 30, 3 / 30], [0, 1, 2, 3]),
        ([0, 0.1, 0.2], [0, 1, 1, 1, 2, 2, 2]),  # ten a second: each later frame fills three slots
        ([0, 0.02, 0.08, 0.1], [0, 1, 2, 3]),  # jitter loses and repeats nothing
        ([0, 0.001, 0.002, 0.003, 0.1], [0, 1, 4, 4]),  # too many: those beyond the rate are left out
        ([0, 60, 60 + 1 / 30], [0, 1, 2]),  # a minute without frames is cut
    ],
)
def test_a_video_keeps_step_with_the_clock(tmp_path, times, expected):
    written = []

    class Writer:
        def isOpened(self):
            return True

        def write(self, image):
            written.append(next(i for i in range(10) if np.array_equal(image, picture(i, WIDTH, HEIGHT))))

        def release(self):
            pass

    path = tmp_path / "out.avi"
    sink = create_sink(f"file://{path}")
    sink.open(WIDTH, HEIGHT, 30.0)
    sink._writer.release()
    sink._writer = Writer()
    for index, seconds in enumerate(times):
        sink.write(frame(index, seconds=seconds))
    sink.close()
    assert written == expected


@pytest.mark.parametrize("name", ["out.avi", pytest.param("out.mkv", marks=GST)])
def test_frames_beyond_the_rate_of_a_video_are_told_of(tmp_path, name):
    """300 frames at 100 a second, into a film of 30 a second."""
    sink = create_sink(f"file://{tmp_path}/{name}")
    sink.open(WIDTH, HEIGHT, 30.0)
    taken = [sink.write(frame(index, seconds=index / 100)) for index in range(300)]
    sink.close()
    assert set(taken) == {True, False}
    assert len(read_video(tmp_path / name)) == sum(taken)
    assert 88 <= sum(taken) <= 92


def test_frames_beyond_the_rate_of_a_video_are_counted_as_dropped(tmp_path):
    runner = SinkRunner(create_sink(f"file://{tmp_path}/out.avi", queue=60), WIDTH, HEIGHT, 30.0)
    runner.start()
    assert runner.wait_attempted(WAIT)
    for index in range(60):
        runner.offer(frame(index, seconds=index / 100))
    assert runner.stop(WAIT)
    status = runner.status()
    assert status["frames_written"] == len(read_video(tmp_path / "out.avi")) < 22
    assert status["dropped"]["rate"] == status["frames_dropped"] == 60 - status["frames_written"]


def test_a_video_may_take_its_time_to_start_and_to_finish(tmp_path):
    sink = create_sink(f"file://{tmp_path}/out.mp4")
    assert sink.stall_s > max(h264.START_S, h264.FILE_FINISH_S)
    assert SinkRunner(sink, WIDTH, HEIGHT, 30.0)._stall_s == sink.stall_s
