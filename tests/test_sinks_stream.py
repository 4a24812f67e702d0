"""``rtp://`` and ``rtsp://``: what real receivers decode, and children that die, hang or are missing."""

from __future__ import annotations

import ast
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import cv2
import numpy as np
import pytest
from gst_support import (
    GST,
    RECORD_SERVER,
    WAIT,
    Packets,
    Playing,
    Receiver,
    Viewer,
    cut,
    drawn,
    frame,
    free_port,
    gone,
    need,
    need_rtsp,
    number,
    numbered,
    psnr,
    smooth,
    stuck_viewer,
    wait_until,
)

from edgegs.errors import ConfigError, DeviceError, OutputError
from edgegs.sinks import SinkRunner, create_sink, encoders, gst_pipeline, h264, stream
from edgegs.sinks.gst_pipeline import Video

WIDTH, HEIGHT = 320, 240
# H.264 at 4 Mbit/s on these pictures: 38 dB or more was measured; wrong colours or another picture give less than 25.
PSNR_DB = 30.0
ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def _no_child_left():
    yield
    assert children() == []


def children():
    """Command lines of this process's children that still run."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            words = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if fields[1] == str(os.getpid()) and fields[0] != "Z" and (b"gst-launch" in words or b"rtsp_server" in words):
            found.append(words)
    return found


def opened(uri, width=WIDTH, height=HEIGHT, fps=30.0, **options):
    sink = create_sink(uri, **{"bitrate_kbps": 4000, **options})
    sink.open(width, height, fps)
    return sink


def write_many(sink, one, count, pause=0.0):
    for _ in range(count):
        sink.write(one)
        time.sleep(pause)


# ---- RTP ------------------------------------------------------------------------------------------------


@GST
@pytest.mark.parametrize(
    ("picture", "width", "height"),
    [
        (smooth, WIDTH, HEIGHT),
        (drawn, WIDTH, HEIGHT),
        (smooth, 640, 640),  # above 576 lines GStreamer guesses another colour matrix, if it is not told
    ],
)
def test_rtp_is_decoded_to_the_picture_that_was_sent(picture, width, height):
    image = picture(width, height)
    port = free_port(socket.SOCK_DGRAM)
    sink = opened(f"rtp://127.0.0.1:{port}", width, height)
    with Receiver(port, width, height) as receiver, Playing(sink.write, lambda _: image) as playing:
        received = [receiver.read() for _ in range(10)][-1]
    sink.close()
    assert playing.error is None
    assert psnr(received, image) >= PSNR_DB
    assert psnr(received, image[..., ::-1]) < PSNR_DB  # the bar tells RGB from BGR


@GST
def test_who_comes_late_gets_a_picture_within_two_keyframe_intervals(tmp_path):
    port = free_port(socket.SOCK_DGRAM)
    sink = opened(f"rtp://127.0.0.1:{port}", keyframe_interval_s=0.5)
    for index in range(40):  # nobody listens
        sink.write(frame(numbered(index, WIDTH, HEIGHT)))
    time.sleep(0.5)  # they have left, too
    late = Packets(port)
    for index in range(40, 70):  # two intervals of 15 frames
        sink.write(frame(numbered(index, WIDTH, HEIGHT)))
        time.sleep(0.005)
    units = [unit for _, unit in late.read_all()]
    sink.close()
    late.close()
    kinds = [unit[0] & 31 for unit in units]
    start = kinds.index(7)  # parameter sets ...
    assert kinds[start + 1] == 8
    assert 5 in kinds[start + 2 : start + 5]  # ... and at once a key frame
    path = tmp_path / "late.h264"
    path.write_bytes(b"".join(b"\0\0\0\1" + unit for unit in units[start:]))
    capture = cv2.VideoCapture(str(path))
    images = []
    while True:
        there, image = capture.read()
        if not there:
            break
        images.append(image)
    capture.release()
    numbers = [number(image) for image in images]
    assert numbers == list(range(numbers[0], 70))
    assert numbers[0] <= 40 + 15
    assert psnr(images[0], numbered(numbers[0], WIDTH, HEIGHT)) >= PSNR_DB


@GST
@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_rtp_time_stamps_follow_the_clock_not_the_frame_rate(host):
    port = free_port(socket.SOCK_DGRAM)
    try:
        packets = Packets(port, host.strip("[]"))
    except OSError:
        pytest.skip("no IPv6 on this machine")
    sink = opened(f"rtp://{host}:{port}", 98, 50)  # rows that GStreamer itself would pad
    sent = []
    for gap in (0.0, 0.05, 0.4, 0.05, 0.8):
        time.sleep(gap)
        sent.append(time.monotonic())
        sink.write(frame(smooth(98, 50)))
    packets.read_all()
    sink.close()
    packets.close()
    stamps = packets.stamps()
    assert len(stamps) == 5
    # A slow machine moves both alike; counted in frames, the last stamp would be 4/30 s.
    assert stamps[-1] == pytest.approx(sent[-1] - sent[0], abs=0.5)
    assert stamps[2] - stamps[1] > 0.15
    assert stamps[4] - stamps[3] > 0.4


@GST
def test_rtp_to_nobody_goes_on():
    sink = opened(f"rtp://127.0.0.1:{free_port(socket.SOCK_DGRAM)}")
    for index in range(60):  # the machine there answers "port unreachable"
        sink.write(frame(numbered(index, WIDTH, HEIGHT)))
    sink.close()
    sink.close()  # harmless


def test_unknown_host_is_said_not_ignored():
    sink = create_sink("rtp://no-such-host.invalid:5000")
    if encoders.why_no_encoder("x264enc") is not None:
        pytest.skip("no x264enc: gstreamer1.0-plugins-ugly")
    with pytest.raises(DeviceError, match=r"^output rtp://no-such-host.invalid:5000: .*not a known address"):
        sink.open(WIDTH, HEIGHT, 30.0)


# ---- RTSP, served ---------------------------------------------------------------------------------------


def watch(url, pictures=5):
    """The last of the first pictures that a client gets."""
    capture = cv2.VideoCapture(url, cv2.CAP_FFMPEG, [cv2.CAP_PROP_OPEN_TIMEOUT_MSEC, 15000])
    try:
        assert capture.isOpened()
        for _ in range(pictures):
            there, image = capture.read()
            assert there
        return image
    finally:
        capture.release()


@GST
def test_rtsp_is_served_to_several_who_come_and_go():
    need_rtsp()
    image = smooth(WIDTH, HEIGHT)
    port = free_port()
    sink = opened(f"rtsp://@127.0.0.1:{port}/lobby/live")
    url = f"rtsp://127.0.0.1:{port}/lobby/live"
    with Playing(sink.write, lambda _: image) as playing:
        first = cv2.VideoCapture(url, cv2.CAP_FFMPEG)
        assert first.read()[0]
        assert psnr(watch(url), image) >= PSNR_DB  # a second one, while the first stays
        assert first.read()[0]
        first.release()
        assert psnr(watch(url), image) >= PSNR_DB  # and again, after both had left
        with socket.create_connection(("127.0.0.1", port), WAIT) as client:
            client.sendall(f"DESCRIBE rtsp://127.0.0.1:{port}/other RTSP/1.0\r\nCSeq: 1\r\n\r\n".encode())
            assert b" 404 " in client.recv(1000)
        assert playing.error is None
    sink.close()
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port), 1.0)


@pytest.fixture
def crowd(monkeypatch):
    """A server of much data, so that buffers fill at once; gives its port."""
    need_rtsp()
    monkeypatch.setattr(stream, "VIEWER_STALL_S", 2.0)
    monkeypatch.setenv("OPENCV_FFMPEG_CAPTURE_OPTIONS", "rtsp_transport;udp")
    noise = np.random.default_rng(1).integers(0, 255, (4, HEIGHT, WIDTH, 3), np.uint8)
    port = free_port()
    sink = opened(f"rtsp://@127.0.0.1:{port}/live", bitrate_kbps=30000)
    with Playing(sink.write, lambda index: noise[index % 4]) as playing:
        yield port
    assert playing.error is None
    sink.close()


@GST
def test_viewer_that_never_reads_holds_up_nobody(crowd, monkeypatch):
    url = f"rtsp://127.0.0.1:{crowd}/live"
    with Viewer(url) as other:
        assert other.sees()
        with stuck_viewer(crowd) as stuck:
            counts = []
            assert wait_until(lambda: counts.append(other.n) or cut(stuck))
            # One count in 20 ms: all but the last second of the two for which it took nothing.
            assert counts[-1] - counts[-min(75, len(counts))] >= 5
        assert other.sees()
        monkeypatch.setenv("OPENCV_FFMPEG_CAPTURE_OPTIONS", "rtsp_transport;tcp")
        with Viewer(url) as late:  # over TCP, where the other one's data had been waiting
            assert late.sees()
            assert other.sees()


@GST
def test_who_comes_while_the_only_viewer_is_stuck_sees_pictures(crowd):
    with stuck_viewer(crowd) as stuck:
        time.sleep(1.5)  # all buffers are full by now
        assert not cut(stuck)
        with Viewer(f"rtsp://127.0.0.1:{crowd}/live") as other:
            assert other.sees()


@GST
def test_rtsp_connections_are_bounded():
    need_rtsp()
    port = free_port()
    sink = opened(f"rtsp://@127.0.0.1:{port}/live")
    folder = Path(f"/proc/{sink._child.pid}/fd")
    idle = [socket.create_connection(("127.0.0.1", port), WAIT) for _ in range(45)]
    assert wait_until(lambda: sum(map(cut, idle)) == 45 - 32)
    assert wait_until(lambda: len(list(folder.iterdir())) <= 10 + 2 * 32)
    welcome = next(one for one in idle if not cut(one))
    welcome.sendall(f"OPTIONS rtsp://127.0.0.1:{port}/live RTSP/1.0\r\nCSeq: 1\r\n\r\n".encode())
    assert b" 200 " in welcome.recv(1000)
    for one in idle:
        one.close()
    assert wait_until(lambda: len(list(folder.iterdir())) <= 10)
    with Playing(sink.write, lambda _: smooth(WIDTH, HEIGHT)):
        assert watch(f"rtsp://127.0.0.1:{port}/live", 1) is not None
    sink.close()


@GST
def test_rtsp_port_in_use():
    need_rtsp()
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen(1)
        port = other.getsockname()[1]
        with pytest.raises(DeviceError, match=f"port {port} is in use"):
            opened(f"rtsp://@127.0.0.1:{port}/live")


@GST
def test_rtsp_address_of_another_machine():
    need_rtsp()
    with pytest.raises(DeviceError, match=r"cannot listen on 192\.0\.2\.1"):
        opened("rtsp://@192.0.2.1:8554/live")


def test_rtsp_server_is_written_for_python_3_6():
    """JetPack 4.6's system Python, which runs it."""
    ast.parse(Path(stream._SERVER).read_text(encoding="utf-8"), feature_version=(3, 6))


# ---- RTSP, published ------------------------------------------------------------------------------------


@GST
def test_rtsp_is_published_to_a_server(tmp_path):
    python = need_rtsp()
    need("rtspclientsink", "avdec_h264")
    image = smooth(WIDTH, HEIGHT)
    port = free_port()
    raw = tmp_path / "raw"
    server = subprocess.Popen(
        [python, "-I", "-c", RECORD_SERVER, str(port), str(raw)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert server.stdout.readline() == b"ready\n"
        size = image.nbytes
        sink = create_sink(f"rtsp://127.0.0.1:{port}/live", bitrate_kbps=4000)
        runner = SinkRunner(sink, WIDTH, HEIGHT, 30.0, backoff_s=(0.05, 0.1))
        runner.start()
        with Playing(runner.offer, lambda _: image):
            assert wait_until(lambda: raw.exists() and raw.stat().st_size >= 10 * size)
        assert runner.status()["reconnects"] == 0
        assert runner.stop(WAIT)
        received = np.frombuffer(raw.read_bytes()[9 * size : 10 * size], np.uint8).reshape(image.shape)
        assert psnr(received, image) >= PSNR_DB
    finally:
        server.kill()
        server.communicate()


@GST
def test_server_to_publish_to_that_does_not_answer(monkeypatch):
    need("rtspclientsink")
    monkeypatch.setattr(stream, "CONNECT_S", 0.5)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(1)
        with pytest.raises(OutputError, match=r"GStreamer is not ready after 0\.5 s"):
            opened(f"rtsp://127.0.0.1:{silent.getsockname()[1]}/live")


# ---- children that die, hang, are missing ---------------------------------------------------------------


@GST
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_dead_or_stalled_child_is_replaced(monkeypatch, how):
    monkeypatch.setattr(stream, "STALL_S", 1.0)
    port = free_port(socket.SOCK_DGRAM)
    sink = create_sink(f"rtp://127.0.0.1:{port}")
    runner = SinkRunner(sink, 640, 480, 30.0, backoff_s=(0.05, 0.1))
    runner.start()
    image = smooth(640, 480)
    with Receiver(port, 640, 480) as receiver, Playing(runner.offer, lambda _: image):
        assert receiver.read() is not None
        first = sink._child.pid
        os.kill(first, how)
        assert wait_until(lambda: runner.status()["reconnects"] >= 1)
        assert gone(first)
        while receiver.read(0.2) is not None and runner.state != "up":
            pass
        assert psnr(receiver.read(), image) >= PSNR_DB
    assert runner.stop(WAIT)


@GST
def test_messages_of_dead_and_stalled_children(monkeypatch):
    monkeypatch.setattr(stream, "STALL_S", 0.3)
    uri = f"rtp://127.0.0.1:{free_port(socket.SOCK_DGRAM)}"
    image = frame(smooth(640, 480))
    stalled = "has stalled: no progress for 0.3 s"
    for how, words in ((signal.SIGKILL, "was ended by signal 9"), (signal.SIGSTOP, stalled)):
        sink = opened(uri, 640, 480)
        os.kill(sink._child.pid, how)
        with pytest.raises(OutputError, match=f"^output {uri}: GStreamer {words}"):
            write_many(sink, image, 20)
        monkeypatch.setattr(stream, "FINISH_S", 0.1)
        with pytest.raises(OutputError):
            sink.close()
        with pytest.raises(OutputError, match="not open"):
            sink.write(image)


GOODBYE = """echo New clock, PREROLLED
while read -r line; do :; done
echo ERROR: the server has hung up first
exit 1
"""


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Puts a shell script in the place of gst-launch-1.0, beside a gst-inspect-1.0 that knows everything."""
    folder = tmp_path / "bin"
    folder.mkdir()

    def make(launch):
        for name, body in (("gst-inspect-1.0", "exit 0"), ("gst-launch-1.0", launch)):
            (folder / name).write_text("#!/bin/sh\n" + body)
            (folder / name).chmod(0o755)
        monkeypatch.setenv("PATH", str(folder))

    return make


READY = "import sys; print('edgegs-rtsp: ready', flush=True); sys.stdin.buffer.read()\n"


@pytest.mark.parametrize(
    ("host", "warns"), [("", True), ("[::]", True), ("localhost", False), ("127.0.0.1", False)]
)
def test_serving_more_than_this_machine_is_warned_of_once(programs, tmp_path, monkeypatch, caplog, host, warns):
    programs("exit 0")
    (tmp_path / "server.py").write_text(READY)
    monkeypatch.setattr(stream, "_SERVER", tmp_path / "server.py")
    monkeypatch.setattr(stream, "check_listen", lambda address, port: None)
    monkeypatch.setattr(encoders, "rtsp_python", lambda: sys.executable)
    uri = f"rtsp://@{host}:8554/live"
    sink = create_sink(uri, encoder="x264enc")
    for _ in range(2):
        sink.open(64, 48, 30.0)
        sink.close()
    words = f"output {uri}: whoever reaches this port can watch; let a firewall decide"
    assert [record.getMessage() for record in caplog.records] == [words] * warns


def test_slow_and_mute_servers_end_before_the_runner_loses_patience(programs, tmp_path, monkeypatch):
    assert stream.StreamSink.stall_s >= encoders.INSPECT_S + max(h264.START_S, stream.CONNECT_S)
    assert h264.CALL_S >= h264.FILE_FINISH_S
    programs("exit 0")
    (tmp_path / "server.py").write_text("import sys; sys.stdin.buffer.read()\n")
    monkeypatch.setattr(stream, "_SERVER", tmp_path / "server.py")
    monkeypatch.setattr(stream, "START_S", 0.5)
    monkeypatch.setattr(encoders, "rtsp_python", lambda: sys.executable)
    runner = SinkRunner(create_sink(f"rtsp://@127.0.0.1:{free_port()}/live", encoder="x264enc"), 64, 48, 30.0)
    runner.start()
    assert runner.wait_attempted(WAIT)
    assert str(runner.error).endswith("/live: the RTSP server is not ready after 0.5 s")
    assert runner.stop(WAIT)


def test_frames_beyond_the_rate_of_a_published_stream_are_told(programs):
    programs("echo New clock: GstSystemClock\nexec /bin/cat >/dev/null\n")
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(1)
        sink = create_sink(f"rtsp://127.0.0.1:{server.getsockname()[1]}/live", encoder="x264enc")
        sink.open(64, 48, 10.0)
    image = smooth(64, 48)
    written = [sink.write(frame(image, k, seconds)) for k, seconds in enumerate((1.0, 1.01, 1.1, 1.11, 1.12, 1.2))]
    assert [taken is not False for taken in written] == [True, True, True, False, False, True]
    sink.close()


CHATTER = """for line in 'Setting pipeline to PAUSED ...' 'Pipeline is PREROLLED ...' 'Progress: (connect) x' \\
    'Redistribute latency...' 'New clock: GstSystemClock'; do echo "$line"; done
"""


@pytest.mark.parametrize(
    ("says", "end"),
    [
        ("exit 3", "GStreamer ended with status 3"),
        ("echo out of luck; echo 'Redistribute latency...'; exit 3", "GStreamer ended with status 3: out of luck"),
        ("echo ERROR: no; echo New clock; exit 1", "GStreamer ended with status 1: ERROR: no"),
    ],
)
def test_last_words_are_no_chatter(programs, says, end):
    programs(CHATTER + "/bin/dd bs=1 count=1 >/dev/null 2>&1\n" + says)
    sink = opened("rtp://127.0.0.1:5000", 64, 48, encoder="x264enc")
    with pytest.raises(OutputError, match=rf"^output rtp://127\.0\.0\.1:5000: {end}$"):
        write_many(sink, frame(smooth(64, 48)), 2000, 0.005)
    sink._drop()


def test_child_that_we_killed_gave_no_answer(programs):
    programs(CHATTER + "exec /bin/sleep 60")
    sink = opened("rtp://127.0.0.1:5000", 64, 48, encoder="x264enc")
    sink.interrupt()
    with pytest.raises(OutputError, match=r"^output rtp://127\.0\.0\.1:5000: GStreamer gave no answer and was killed$"):
        sink.close()


@pytest.mark.parametrize(("uri", "raises"), [("rtp://127.0.0.1:5000", False), ("file:///{}/out.mp4", True)])
def test_good_bye_that_fails_matters_to_a_file_only(programs, tmp_path, uri, raises):
    programs(GOODBYE)
    sink = opened(uri.format(tmp_path), 64, 48, encoder="x264enc")
    sink.write(frame(smooth(64, 48)))
    if raises:
        with pytest.raises(OutputError, match="ERROR: the server has hung up first"):
            sink.close()
    else:
        sink.close()


@GST
def test_interrupt_ends_a_blocked_write():
    sink = opened(f"rtp://127.0.0.1:{free_port(socket.SOCK_DGRAM)}", 640, 480)
    child = sink._child.pid
    os.kill(child, signal.SIGSTOP)
    with Playing(sink.write, lambda _: smooth(640, 480)) as playing:
        time.sleep(0.5)  # its pipe is full by now
        sink.interrupt()
        assert wait_until(lambda: playing.error is not None, stream.STALL_S / 2)
    assert "gave no answer" in str(playing.error)
    with pytest.raises(OutputError):
        sink.close()
    sink.interrupt()  # harmless
    assert gone(child)


SCRIPT = """
import os, signal, sys, time
from edgegs.sinks import create_sink
import numpy as np
from edgegs.frame import Frame
pids = []
for uri in sys.argv[1:]:
    sink = create_sink(uri)
    sink.open(64, 48, 30.0)
    sink.write(Frame(np.zeros((48, 64, 3), np.uint8), 0, 0, 1.0))
    pids.append((sink._child if hasattr(sink, "_child") else sink._writer).pid)
os.kill(pids[0], signal.SIGSTOP)  # one that hangs cannot notice that its input has ended
print(*pids, flush=True)
time.sleep(60)
"""


@GST
def test_no_child_outlives_a_killed_parent(tmp_path):
    need_rtsp()
    uris = [f"rtp://127.0.0.1:{free_port(socket.SOCK_DGRAM)}", f"rtsp://@127.0.0.1:{free_port()}/live"]
    uris.append(f"file://{tmp_path}/out.mp4")
    parent = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, *uris], stdout=subprocess.PIPE, env=dict(os.environ, PYTHONPATH=str(ROOT))
    )
    pids = [int(word) for word in parent.stdout.readline().split()]
    assert len(pids) == 3
    assert not any(gone(pid) for pid in pids)
    parent.kill()
    parent.communicate()
    left = not wait_until(lambda: all(gone(pid) for pid in pids))
    for pid in pids:
        if not gone(pid):
            os.kill(pid, signal.SIGKILL)
    assert not left


@pytest.mark.parametrize("uri", ["rtp://127.0.0.1:5000", "rtsp://@:8554/live", "rtsp://127.0.0.1:8554/live"])
def test_without_gstreamer_the_message_says_what_to_install(monkeypatch, tmp_path, uri):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DeviceError, match=rf"^output {uri}: gst-inspect-1\.0 not found: sudo apt install gstreamer1.0"):
        create_sink(uri).open(WIDTH, HEIGHT, 30.0)


@GST
def test_without_gst_rtsp_server_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setattr(encoders, "_PROBE", "import no_such_module")
    encoders.forget()
    with pytest.raises(DeviceError, match=r"sudo apt install python3-gi gir1.2-gst-rtsp-server-1.0"):
        opened(f"rtsp://@127.0.0.1:{free_port()}/live")
    encoders.forget()


# ---- options and pipelines ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"encoder": "h264"}, "encoder is 'h264'; expected one of auto, nvv4l2h264enc"),
        ({"encoder": "opencv"}, "encoder is 'opencv'"),
        ({"bitrate_kbps": 10}, "bitrate_kbps is 10; expected a whole number from 50 to 200000"),
        ({"keyframe_interval_s": 0}, "keyframe_interval_s is 0; expected seconds from 0.1 to 60"),
        ({"keyframe_interval_s": float("nan")}, "keyframe_interval_s is nan"),
        ({"quality": 3}, "unknown option quality"),
    ],
)
def test_wrong_options(options, words):
    with pytest.raises(ConfigError, match=words):
        create_sink("rtp://127.0.0.1:5000", **options)


def test_streams_are_live():
    assert create_sink("rtp://127.0.0.1:5000").live
    assert not create_sink("file:///tmp/out.mp4").live


def video(encoder, **changes):
    return Video(**{**dict(width=1280, height=720, fps=30.0, encoder=encoder, bitrate_kbps=4000,
                           keyframe_interval_s=2.0), **changes})  # fmt: skip


def test_pipelines_of_the_chips_encoders():
    """Unconfirmed on hardware; that they stay what the documents say is tested."""
    text = " ".join(gst_pipeline.rtp(video("nvv4l2h264enc"), "239.1.1.1", 5000))
    assert (
        "! nvvidconv ! video/x-raw(memory:NVMM),format=NV12 ! nvv4l2h264enc bitrate=4000000 iframeinterval=60 "
        "idrinterval=60 insert-sps-pps=true maxperf-enable=true ! h264parse config-interval=-1 ! rtph264pay" in text
    )
    assert text.endswith("udpsink host=239.1.1.1 port=5000 auto-multicast=true ttl-mc=1 sync=false async=false")
    text = " ".join(gst_pipeline.file(video("omxh264enc"), ".mkv", 7))
    assert "omxh264enc control-rate=2 bitrate=4000000 iframeinterval=60 ! h264parse" in text
    assert text.endswith("! matroskamux ! fdsink fd=7 sync=false")


def test_elements_of_a_pipeline():
    assert gst_pipeline.elements(gst_pipeline.file(video("nvv4l2h264enc"), ".mp4", 7)) == [
        "fdsrc", "rawvideoparse", "capssetter", "queue", "nvvidconv", "nvv4l2h264enc", "h264parse", "mp4mux", "fdsink",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("fps", "rate"),
    [(30.0, "30"), (29.97, "30000/1001"), (59.94, "60000/1001"), (12.5, "25/2"), (0.5, "1/2"), (1e-9, "1/1000")],
)
def test_frame_rates(fps, rate):
    assert str(video("x264enc", fps=fps).rate) == rate


@pytest.mark.parametrize("host", ["a b", "x ! fakesink", '"', "a=b", ""])
def test_nothing_odd_gets_into_a_pipeline(host):
    with pytest.raises(ConfigError):
        gst_pipeline.rtp(video("x264enc"), host, 5000)
    with pytest.raises(ConfigError):
        gst_pipeline.rtsp_client(video("x264enc"), "host", 5000, host + " ")


def test_default_bit_rate():
    assert gst_pipeline.default_bitrate_kbps(1280, 720, 30.0) == 2765
    assert gst_pipeline.default_bitrate_kbps(320, 240, 30.0) == 500


def test_publishing_to_nobody_says_so():
    with socket.socket() as taken:  # bound, so that nobody else listens there
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        sink = create_sink(f"rtsp://127.0.0.1:{port}/live")
        with pytest.raises(DeviceError, match=rf"nothing listens at 127\.0\.0\.1:{port}; is the RTSP server running"):
            sink.open(64, 48, 30.0)
