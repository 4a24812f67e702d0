"""Pictures from a child's pipe: whole, from a real GStreamer, and with a child that dies, stalls or will not end."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from capture_support import WAIT, FakeTime, wait_for

from edgegs.capture import Capture, parse
from edgegs.capture import child as module
from edgegs.capture.base import Timing
from edgegs.capture.child import FD, ChildSource, csi_sizes, csi_source
from edgegs.capture.sources import create
from edgegs.errors import DeviceError
from edgegs.sinks.backoff import Backoff

URI = parse("csi://0")
SIZE = (32, 24)
NO_GST = shutil.which("gst-launch-1.0") is None
needs_gst = pytest.mark.skipif(NO_GST, reason="no gst-launch-1.0 (gstreamer1.0-tools): the real child is not tested")


def python(script):
    """A child that runs ``script``; ``out`` is the pipe, ``picture(k)`` a BGRx picture of that level."""
    prelude = (
        f"import os, signal, sys, time; out = os.fdopen({FD}, 'wb', 0); "
        f"picture = lambda k: bytes([k, k + 1, k + 2, 255]) * {SIZE[0] * SIZE[1]}\n"
    )
    return [sys.executable, "-c", prelude + script]


def source_of(command, **options):
    return ChildSource(URI, FakeTime().timing, command, *SIZE, **options)


@pytest.fixture
def opened():
    sources = []

    def make(command, **options):
        source = source_of(command, **options)
        sources.append(source)
        source.open()
        return source

    yield make
    for source in sources:
        child = source._child
        source.close()
        assert child is None or child.returncode is not None


def gst(*, n_pictures=-1, pattern="red", size=SIZE, element="videotestsrc"):
    caps = "video/x-raw,format=BGRx,width={},height={},framerate=30/1".format(*size)
    start = ["gst-launch-1.0", "-q", element, "is-live=true", f"pattern={pattern}", f"num-buffers={n_pictures}"]
    return [*start, "!", caps, "!", "fdsink", f"fd={FD}", "sync=false"]


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_whole_pictures_from_ragged_writes(opened):
    source = opened(
        python(
            "print('GST_ARGUS: chatter', flush=True)\n"
            "data = b''.join(picture(k) for k in range(5))\n"
            "for at in range(0, len(data), 1000): out.write(data[at:at + 1000])\n"
            "time.sleep(60)"
        )
    )
    pictures = [source.read() for _ in range(5)]
    for k, picture in enumerate(pictures):
        assert picture.shape == (SIZE[1], SIZE[0], 3)
        assert picture.dtype == np.uint8
        assert (picture == [k, k + 1, k + 2]).all()


@needs_gst
def test_real_pictures(opened):
    source = opened(gst())
    picture = source.read()
    assert picture.shape == (SIZE[1], SIZE[0], 3)
    assert (picture == [0, 0, 255]).all()


@needs_gst
def test_real_pipeline_that_ends_or_is_wrong(opened):
    source = opened(gst(n_pictures=2))
    source.read()
    source.read()
    with pytest.raises(DeviceError, match=r"^background csi://0: gst-launch-1.0 ended with status 0"):
        source.read()
    source = opened(gst(element="nosuchelement"))
    with pytest.raises(DeviceError, match=r"gst-launch-1.0 ended with status 1: .*no element .nosuchelement"):
        source.read()


@needs_gst
def test_killed_child_is_replaced():
    capture = Capture(URI, 16, 12, source=None, fps=30.0)
    capture._backoff = Backoff(0.05, 0.1)
    timing = Timing(capture._clock.now, capture._pause)
    capture._source = source = ChildSource(URI, timing, gst(), *SIZE, next_s=1.0)
    capture.start()
    try:
        wait_for(lambda: capture.latest() is not None)
        assert (capture.latest() == [0, 0, 255]).all()
        first = source._child.pid
        os.kill(first, signal.SIGKILL)
        wait_for(lambda: capture.status()["reconnects"] >= 1)
        assert source._child.pid != first
        assert not is_running(first)
        second = source._child.pid
        os.kill(second, signal.SIGSTOP)  # a stalled one is silent: it is withdrawn, then replaced
        wait_for(lambda: capture.status()["reconnects"] >= 2)
        assert not is_running(second)
        third = source._child.pid
    finally:
        capture.close()
    assert not capture._thread.is_alive()
    assert not is_running(third)


def test_child_that_dies_is_named_with_its_last_words(opened):
    source = opened(python("print('ERROR: sensor 0 is in use', file=sys.stderr); print('goodbye'); sys.exit(3)"))
    name = os.path.basename(sys.executable)
    with pytest.raises(DeviceError) as caught:
        source.read()
    assert str(caught.value) == f"background csi://0: {name} ended with status 3: ERROR: sensor 0 is in use"
    source = opened(
        python("out.write(picture(1)[:50]); print('a\\n\\nlast words', end='', flush=True); os.kill(os.getpid(), 9)")
    )
    with pytest.raises(DeviceError, match=r"was ended by signal 9: last words$"):
        source.read()


def test_silent_child(opened):
    source = opened(python("print('waiting for nvargus', flush=True); time.sleep(60)"), first_s=1.0)
    with pytest.raises(DeviceError, match=r"^background csi://0: no picture for 1 s: waiting for nvargus$"):
        source.read()
    source = opened(python("out.write(picture(1) + picture(2)[:9]); time.sleep(60)"), next_s=0.2)
    assert source.read() is not None
    with pytest.raises(DeviceError, match=r"^background csi://0: no picture for 0.2 s$"):
        source.read()


def test_chatter_does_not_hold_up_the_child(opened):
    source = opened(
        python("for k in range(3000): print('x' * 99)\nsys.stdout.flush(); out.write(picture(7)); time.sleep(60)")
    )
    assert (source.read() == [7, 8, 9]).all()


def test_child_that_closed_its_stdout(opened):
    source = opened(python("os.close(1); os.close(2); out.write(picture(7)); time.sleep(60)"), next_s=0.2)
    assert (source.read() == [7, 8, 9]).all()
    with pytest.raises(DeviceError, match=r"no picture for"):
        source.read()


def test_child_is_asked_to_end_and_killed_when_it_does_not(opened, tmp_path):
    note = tmp_path / "note"
    source = opened(
        python(
            f"def bye(*_): open({str(note)!r}, 'w').write('bye'); sys.exit(0)\n"
            "signal.signal(signal.SIGINT, bye); out.write(picture(1)); time.sleep(60)"
        )
    )
    source.read()
    source.close()
    assert note.read_text() == "bye"
    source = opened(python("signal.signal(signal.SIGINT, signal.SIG_IGN); out.write(picture(1)); time.sleep(60)"))
    source.read()
    child = source._child
    began = time.monotonic()
    source.close()
    assert child.returncode == -signal.SIGKILL
    assert time.monotonic() - began < 3.0


def test_descriptors_are_closed():
    before = sorted(os.listdir("/proc/self/fd"))
    for command in (python("out.write(picture(1)); time.sleep(60)"), python("sys.exit(1)")):
        source = source_of(command)
        source.open()
        try:
            source.read()
        except DeviceError:
            pass
        source.close()
        source.close()
    assert sorted(os.listdir("/proc/self/fd")) == before
    with pytest.raises(DeviceError, match=r"not open"):
        source.read()


def test_child_has_no_other_descriptor_of_ours(opened, tmp_path):
    with (tmp_path / "secret").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        source = opened(
            python("print(' '.join(map(os.readlink, ('/proc/self/fd/%s' % n for n in range(3)))), flush=True)\n"
                   "print('error: %d' % len(os.listdir('/proc/self/fd')), flush=True)")
        )
        with pytest.raises(DeviceError, match=r"error: 5$"):  # 0, 1, 2, the pipe, and the listing itself
            source.read()
        assert any(line.startswith("/dev/null pipe:") for line in source._child.lines)


def test_child_dies_with_us(tmp_path):
    """Also when nobody had the time to end it."""
    script = (
        "import sys, time; from edgegs.capture import parse; from edgegs.capture.base import Timing\n"
        "from edgegs.capture.child import ChildSource\n"
        "source = ChildSource(parse('csi://0'), Timing(time.monotonic, lambda s: True), sys.argv[1:], 32, 24)\n"
        "source.open(); source.read(); print(source._child.pid, flush=True); time.sleep(60)"
    )
    command = python("out.write(picture(1))\nwhile True: time.sleep(1)")
    with subprocess.Popen([sys.executable, "-c", script, *command], stdout=subprocess.PIPE) as parent:
        try:
            child = int(parent.stdout.readline())
            assert is_running(child)
        finally:
            parent.kill()
    wait_for(lambda: not is_running(child))


def test_not_installed():
    with pytest.raises(DeviceError, match=r"^background csi://0: no-such-program is not installed; `apt install"):
        source_of(["no-such-program"]).open()


def test_closing_ends_a_wait(opened):
    time_ = FakeTime()
    source = ChildSource(URI, time_.timing, python("time.sleep(60)"), *SIZE)
    source.open()
    time_.closing = True
    assert source.read() is None
    source.close()


# ---- the camera on the ribbon connector -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "fit", "sizes"),
    [
        ((1280, 720), "cover", ((1280, 720), (1280, 720))),
        ((640, 480), "cover", ((1280, 720), (854, 480))),
        ((640, 480), "contain", ((1280, 720), (640, 360))),
        ((640, 480), "stretch", ((1280, 720), (640, 480))),
        ((1281, 720), "cover", ((1920, 1080), (1282, 722))),
        ((3840, 2160), "cover", ((1920, 1080), (1920, 1080))),  # enlarged later
        ((1, 1), "contain", ((1280, 720), (16, 16))),
    ],
)
def test_csi_sizes(size, fit, sizes):
    assert csi_sizes(*size, fit) == sizes


def test_csi_pipeline(tmp_path, monkeypatch):
    source = csi_source(parse("csi://1"), FakeTime().timing, 640, 480, "cover", 24.0)
    text = " ".join(source._command)
    assert text.startswith("gst-launch-1.0 -q nvarguscamerasrc sensor-id=1 ! video/x-raw(memory:NVMM),width=1280,")
    assert "framerate=24/1 ! queue max-size-buffers=1 leaky=downstream ! nvvidconv ! video/x-raw,format=BGRx," in text
    assert text.endswith("! fdsink fd={fd} sync=false")
    assert source._shape == (480, 854, 4)
    monkeypatch.setattr(module, "ARGUS_SOCKET", str(tmp_path / "none"))
    with pytest.raises(DeviceError, match=r"^background csi://1: nvargus-daemon is not there .*`systemctl restart"):
        source.open()


@needs_gst
def test_csi_without_its_elements(tmp_path, monkeypatch, caplog):
    """The daemon's socket is there, NVIDIA's elements are not: what a wrong container looks like."""
    if not subprocess.run(["gst-inspect-1.0", "nvarguscamerasrc"], stdout=subprocess.DEVNULL, timeout=WAIT).returncode:
        pytest.skip("there is an nvarguscamerasrc: its absence is not tested")
    caplog.set_level(logging.WARNING)
    (tmp_path / "socket").touch()
    monkeypatch.setattr(module, "ARGUS_SOCKET", str(tmp_path / "socket"))
    source = create(URI, *SIZE, "cover", 30.0, FakeTime().timing)
    source.open()
    with pytest.raises(DeviceError, match=r"no element .nvarguscamerasrc"):
        source.read()
    source.close()
