"""``v4l2://`` against a stand-in for the kernel module, which a test machine cannot load.

What the stand-in models, after the driver's source (releases 0.12 and 0.13: "12"; 0.14 and 0.15: "15") and the
kernel's video core: what QUERYCAP says with and without exclusive_caps, and who loses which capability when; S_FMT
(clamps to max_width/max_height, unknown formats, the format that a viewer or keep_format holds, EBUSY and EINVAL beside
another writer, sizeimage rounded up to pages by 12); STREAMON (12: makes the writer; 15: EINVAL without buffers);
S_PARM; write (short where the buffer is smaller, EINVAL before a format, EBUSY beside another writer in 15); ENODEV on
every descriptor once the device is gone. Not modelled: viewers, mmap, state that outlives the process, and that the
real module refuses to be unloaded while a writer has it open.

On a board, the real thing:

    sudo modprobe v4l2loopback devices=1 video_nr=10 card_label=edgegs exclusive_caps=1
    edgegs run CONFIG --set 'outputs=["v4l2://label/edgegs"]' &
    v4l2-ctl --device /dev/video10 --all        # YUYV, the configured size, the rate; "Video Capture" while it runs
    ffplay /dev/video10                         # the picture; colours right, no green edge
    kill %1; edgegs run … again                 # with ffplay still open: its picture goes on
"""

from __future__ import annotations

import pytest
from images import psnr
from v4l2_support import PSNR_DB, StandIn, build, decode, picture

from edgegs.errors import ConfigError
from edgegs.sinks import create_sink, sink_options
from edgegs.sinks.v4l2 import I420, Yuyv

OPENING = [
    "open video10",
    "QUERYCAP",
    "S_FMT type=2 64x48 YUYV field=1 line=128 size=6144 colour=8/1/2/2",
    "S_PARM type=2 1/30",
    "STREAMON type=2 -> 0",
]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return build(tmp_path_factory.mktemp("stand_in"))


@pytest.fixture
def board(tmp_path, library):
    return StandIn(tmp_path / "board", library)


ONE_FRAME = """
sink = create_sink("v4l2:///dev/video10")
def all_of_it():
    sink.open(64, 48, 30.0)
    sink.write(frame(0))
tell(attempt(all_of_it))
sink.close()
"""

# ---- what is asked of the driver --------------------------------------------------------------------------


@pytest.mark.parametrize("exclusive_caps", [0, 1])
@pytest.mark.parametrize("version", [12, 15])
def test_exact_calls_and_bytes(board, version, exclusive_caps):
    board.plug(version=version, exclusive_caps=exclusive_caps)
    assert board.run(
        """
sink = create_sink("v4l2:///dev/video10")
for first in (0, 2):  # opened twice: what the last writer left must not keep the next one out
    sink.open(64, 48, 30.0)
    sink.write(frame(first))
    sink.write(frame(first + 1))
    sink.close()
    sink.close()  # harmless
tell([sink.live, attempt(sink.write, frame(0))])
"""
    ) == [True, ["OutputError", "output v4l2:///dev/video10: not open"]]
    opening = [line.replace("-> 0", "-> EINVAL") for line in OPENING] if version == 15 else OPENING
    once = [*opening, "write video10 6144 -> 6144", "write video10 6144 -> 6144", "close video10"]
    assert board.log() == once + once
    got = board.frame()
    assert got == bytes(Yuyv(64, 48).convert(picture(3)))
    assert psnr(decode(got, "yuyv"), picture(3)) > PSNR_DB


def test_i420_and_a_broken_frame_rate(board):
    board.plug(version=15)
    assert board.run(
        """
sink = create_sink("v4l2:///dev/video10", pixel_format="i420")
sink.open(70, 46, 29.97)
sink.write(frame(1, 70, 46))
sink.close()
tell("done")
"""
    ) == "done"
    assert board.log()[2:4] == [
        "S_FMT type=2 70x46 YU12 field=1 line=70 size=4830 colour=8/1/2/2",
        "S_PARM type=2 100/2997",
    ]
    got = board.frame()
    assert got == bytes(I420(70, 46).convert(picture(1, 70, 46)))
    assert psnr(decode(got, "i420", 70, 46), picture(1, 70, 46)) > PSNR_DB


def test_capability_lost_by_a_writer_without_streamon(board):
    """Until 0.13 such a device says neither capture nor output, for good; it can be written to all the same."""
    board.plug(version=12, exclusive_caps=1, lost_output=1)
    assert board.run(ONE_FRAME) is None
    assert board.log()[-2:] == ["write video10 6144 -> 6144", "close video10"]


@pytest.mark.parametrize("settings", [{"no_device_caps": 1}, {"reader": 1, "held": "64x48 YUYV"}])
def test_old_kernel_and_waiting_viewer(board, settings):
    board.plug(**settings)
    assert board.run(ONE_FRAME) is None


# ---- refusals ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "kind", "parts"),
    [
        (
            {"driver": "uvcvideo", "card": "HD Webcam", "caps": 0x04000001},
            "DeviceError",
            ["/dev/video10 is a camera", "HD Webcam", "not a v4l2loopback device", "no loopback here", "modprobe"],
        ),
        (
            {"driver": "bcm2835-codec", "card": "codec", "caps": 0x04000002},  # writes pictures, but is no camera
            "DeviceError",
            ["driver bcm2835-codec", "not a v4l2loopback device"],
        ),
        ({"driver": ""}, "DeviceError", ["not a video device"]),
        (
            {"version": 12, "exclusive_caps": 1, "writer": 1, "held": "64x48 YUYV"},
            "DeviceError",
            ["another program", "fuser"],
        ),
        ({"version": 15, "exclusive_caps": 1, "writer": 1}, "DeviceError", ["another program", "keep_format=0"]),
        ({"version": 15, "writer": 1, "held": "64x48 YUYV"}, "DeviceError", ["another program writes", "fuser -v"]),
        ({"version": 12, "reader": 1, "held": "32x24 YUYV"}, "DeviceError", ["stays at 32x24 YUYV", "64x48 YUYV"]),
        ({"version": 15, "keep_format": 1, "held": "64x48 YU12"}, "DeviceError", ["stays at 64x48 YU12", "keep_f"]),
        ({"version": 12, "max_width": 32}, "DeviceError", ["stays at 32x48 YUYV", "max_width=64"]),
    ],
)
def test_refused(board, settings, kind, parts):
    board.plug(**settings)
    error = board.run(ONE_FRAME)
    assert (error or [None])[0] == kind, error
    assert error[1].startswith("output v4l2:///dev/video10: ")
    assert "\n" not in error[1]
    for part in parts:
        assert part in error[1]
    assert board.log()[-1] == "close video10"  # nothing is left open
    assert not any(line.startswith("write") for line in board.log())


@pytest.mark.parametrize(
    ("faults", "kind", "parts"),
    [
        ({"open_errno": 13}, "AccessError", ["may not open /dev/video10", "usermod -aG video"]),
        ({"open_errno": 16}, "DeviceError", ["another program", "fuser -v /dev/video10"]),
        ({"open_errno": 5}, "DeviceError", ["cannot open /dev/video10", "Input/output error"]),
        ({"write_errno": 5}, "OutputError", ["took no frame", "Input/output error"]),
        ({"write_errno": 16}, "DeviceError", ["another program writes"]),
        ({"short": 1000}, "OutputError", ["took 1000 of a frame's 6144 bytes", "fuser"]),
    ],
)
def test_faults(board, faults, kind, parts):
    board.plug()
    board.fault(**faults)
    error = board.run(ONE_FRAME)
    assert (error or [None])[0] == kind, error
    for part in parts:
        assert part in error[1]


def test_interrupted_writes_are_repeated(board):
    board.plug()
    board.fault(eintr=3)
    assert board.run(ONE_FRAME) is None
    assert board.log()[-2] == "write video10 6144 -> 6144"


def test_other_devices_are_never_opened(board):
    """Opening /dev/watchdog would reset the board a minute later."""
    board.plug(major=10, card="watchdog")
    kind, text = board.run(ONE_FRAME)
    assert kind == "DeviceError"
    assert "v4l2:///dev/video10: /dev/video10 is not a video device; there is no loopback here; sudo modprobe" in text
    found, by_label = board.run('tell([v4l2_devices.devices(), attempt(v4l2_devices.find_label, "watchdog")])')
    assert "Inappropriate ioctl for device" in found[0][2]
    assert "Inappropriate ioctl for device" in by_label[1]
    assert not (board.folder / "log").exists()


def test_missing_device(board):
    board.plug(3, card="other")
    kind, text = board.run(ONE_FRAME)
    assert kind == "DeviceError"
    assert 'there is no /dev/video10; loopbacks here: /dev/video3 "other"' in text
    assert "sudo modprobe v4l2loopback devices=1 video_nr=10 card_label=edgegs exclusive_caps=1" in text
    assert "l4t" not in text
    (board.folder / "nv_tegra_release").write_text("# R32 (release), REVISION: 7.1\n")
    assert "apt install nvidia-l4t-kernel-headers v4l2loopback-dkms" in board.run(ONE_FRAME)[1]
    (board.folder / "module").mkdir()
    assert "sudo modprobe -r v4l2loopback && sudo modprobe v4l2loopback" in board.run(ONE_FRAME)[1]


@pytest.mark.parametrize(("width", "height", "name"), [(641, 480, "camera.width"), (640, 481, "camera.height")])
@pytest.mark.parametrize("pixel_format", ["yuyv", "i420"])
def test_odd_size_is_a_configuration_error(width, height, name, pixel_format):
    sink = create_sink("v4l2:///dev/video10", pixel_format=pixel_format)
    with pytest.raises(ConfigError, match=f"{name} is [0-9]+; .* even .* write [0-9]+ or [0-9]+"):
        sink.open(width, height, 30.0)


@pytest.mark.parametrize("value", ["rgb24", "YUYV", 3, None, ["yuyv"]])
def test_unknown_pixel_format(value):
    assert sink_options("v4l2://label/edgegs") == ("pixel_format",)
    with pytest.raises(ConfigError, match=r"pixel_format is .*; expected yuyv or i420"):
        create_sink("v4l2:///dev/video10", pixel_format=value)


# ---- by label, and coming back ------------------------------------------------------------------------------


def test_label(board):
    board.plug(0, driver="uvcvideo", card="edgegs", caps=0x04000001)  # a camera of the same name is passed over
    board.plug(7, card="edgegs 2")
    board.plug(11, card="edgegs")
    board.plug(12, card="möbel " + "x" * 24)  # 31 bytes, as long as a label can be
    code = """
def send(label):
    sink = create_sink("v4l2://label/" + label)
    sink.open(64, 48, 30.0)
    sink.write(frame(0))
    sink.close()
tell([attempt(send, label) for label in ("edgegs", "edgegs 2", "m\\u00f6bel " + "x" * 24, "nobody")])
"""
    *sent, (kind, text) = board.run(code)
    assert sent == [None] * 3
    assert [line for line in board.log() if line.startswith("write")] == [
        f"write video{number} 6144 -> 6144" for number in (11, 7, 12)
    ]
    assert kind == "DeviceError"
    assert text.startswith('output v4l2://label/nobody: no loopback has the label "nobody"; loopbacks here: ')
    assert '/dev/video7 "edgegs 2", /dev/video11 "edgegs"' in text
    assert "card_label=nobody" in text

    board.device(11).unlink()
    (board.folder / "sys/video11/name").unlink()
    board.plug(13, card="edgegs 2")
    board.fault(12, open_errno=13)
    camera, double, denied, _ = board.run(code)
    assert "/dev/video0 has it, but is a uvcvideo device" in camera[1]
    assert '/dev/video7 and /dev/video13 both have the label "edgegs 2"; write v4l2:///dev/video7' in double[1]
    assert denied[0] == "AccessError"
    assert "may not open /dev/video12" in denied[1]


def test_runner_brings_it_back_under_another_number(board):
    """Vanishes (ENODEV on the open descriptor), is missing, comes back as another number; counted, nothing raised."""
    board.plug(10, version=12, exclusive_caps=1)
    told = board.run(
        """
runner = SinkRunner(create_sink("v4l2://label/edgegs"), 64, 48, 30.0, backoff_s=(0.01, 0.05))
runner.start()
states = []
def feed_until(state, written=0):
    for index in range(3000):
        runner.offer(frame(index % 4))
        now = runner.status()
        if now["state"] == state and now["frames_written"] >= written:
            break
        time.sleep(0.005)
    states.append([now["state"], now["last_error"]])
feed_until("up", 3)
unplug(10)
feed_until("retrying")
wait_for(lambda: "no loopback" in (runner.status()["last_error"] or ""), "tries again and looks for the label")
plug(42, driver="v4l2 loopback", card="edgegs", version=15, exclusive_caps=1)
feed_until("up", runner.status()["frames_written"] + 3)
fault(42, write_errno=5)
feed_until("retrying")
fault(42)
feed_until("up", runner.status()["frames_written"] + 3)
stopped = runner.stop(5)
tell([states, stopped, runner.status()])
"""
    )
    states, stopped, status = told
    assert [state for state, _ in states] == ["up", "retrying", "up", "retrying", "up"]
    assert "/dev/video10 is gone" in states[1][1] or "no loopback" in states[1][1]
    assert "/dev/video42 took no frame: Input/output error" in states[3][1]
    assert stopped
    assert status["state"] == "stopped"
    assert status["reconnects"] >= 2
    log = board.log()
    assert "write video10 6144 -> ENODEV" in log
    assert "write video42 6144 -> EIO" in log
    assert len([line for line in log if line.startswith("open")]) == len([line for line in log if "close" in line])
    assert len(board.frame(42)) == 6144


def test_runner_gives_up_on_an_odd_size(board):
    board.plug()
    state, error = board.run(
        """
runner = SinkRunner(create_sink("v4l2:///dev/video10"), 63, 48, 30.0)
runner.start()
runner.wait_attempted(10)
tell([runner.state, runner.status()["last_error"]])
runner.stop(5)
"""
    )
    assert state == "failed"
    assert "camera.width is 63" in error


@pytest.mark.parametrize("version", [12, 15])
def test_two_outputs_on_one_device(board, version):
    """Until 0.13 the driver would take frames of both in turn."""
    board.plug(version=version)
    first, kind_and_text, after = board.run(
        """
one, two = create_sink("v4l2:///dev/video10"), create_sink("v4l2://label/edgegs")
one.open(64, 48, 30.0)
one.write(frame(0))
refused = attempt(two.open, 64, 48, 30.0)
first = attempt(one.write, frame(1))
one.close()
tell([first, refused, attempt(two.open, 64, 48, 30.0)])
"""
    )
    assert [first, after] == [None, None]
    assert kind_and_text[0] == "DeviceError"
    assert "another output of edgegs writes to /dev/video10" in kind_and_text[1]
