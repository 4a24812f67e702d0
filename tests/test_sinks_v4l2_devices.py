"""The list of cameras and virtual cameras, against made-up devices (see v4l2_stand_in.c)."""

from __future__ import annotations

import pytest
from v4l2_support import StandIn, build

from edgegs.sinks import v4l2_devices


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return build(tmp_path_factory.mktemp("stand_in"))


@pytest.fixture
def board(tmp_path, library):
    return StandIn(tmp_path / "board", library)


def test_list_of_devices(board):
    formats = "YUYV:640x480,MJPG:1280x720,MJPG:1920x1080"
    board.plug(0, driver="uvcvideo", card="HD Webcam", caps=0x04000001, formats=formats)
    board.plug(1, driver="uvcvideo", card="HD Webcam", caps=0x04800000, whole=1)  # its metadata
    board.plug(2, driver="tegra-video", card="vi-output, imx219 7-0010", caps=0x04000001)
    board.plug(3, driver="uvcvideo", card="Denied", caps=0x04000001)
    board.fault(3, open_errno=13)
    (board.folder / "drivers/uvcvideo").mkdir(parents=True)
    (board.folder / "sys/video3/device").mkdir()
    (board.folder / "sys/video3/device/driver").symlink_to(board.folder / "drivers/uvcvideo")
    board.plug(10, card="edgegs", exclusive_caps=1, version=15)
    board.plug(11, card="a/b", exclusive_caps=1, version=15, writer=1)
    board.plug(12, card="Closed")
    (board.folder / "sys/video12/max_openers").write_text("10\n")
    board.fault(12, open_errno=13)
    board.plug(20, card="Elsewhere")
    board.device(20).unlink()
    found = board.run("tell([list(one) for one in v4l2_devices.devices()])")
    by_text = {check + " " + says: (state, fix) for check, state, says, fix, _ in found}
    denied = ("warning", v4l2_devices.GROUP_ADVICE)
    assert by_text == {
        "camera /dev/video0: HD Webcam (uvcvideo); YUYV up to 640x480, MJPG up to 1920x1080; "
        "use v4l2:///dev/video0": ("ok", ""),
        "camera /dev/video2: vi-output, imx219 7-0010, a sensor on the ribbon connector; use csi://N (through argus)": (
            "ok",
            "",
        ),
        f"camera nvargus-daemon does not run: there is no {board.folder}/argus_socket, so csi:// gives no picture": (
            "warning",
            "sudo systemctl restart nvargus-daemon (a service: PrivateTmp=no)",
        ),
        'loopback /dev/video10: "edgegs"; use v4l2:///dev/video10 or v4l2://label/edgegs': ("ok", ""),
        'loopback /dev/video11: "a/b" is being written to (by whom: sudo fuser -v /dev/video11)': ("ok", ""),
        'loopback /dev/video12 "Closed" (v4l2 loopback): this user may not open it': denied,
        'camera /dev/video3 "Denied" (uvcvideo): this user may not open it': denied,
        'camera /dev/video20 "Elsewhere": the kernel has it, but it is not in /dev': (
            "warning",
            "in a container: pass it on with --device /dev/video20",
        ),
        "video neither camera nor loopback (metadata, codec): /dev/video1 (HD Webcam)": ("ok", ""),
    }
    assert not any(line.startswith(("S_FMT", "STREAMON", "S_PARM", "write")) for line in board.log())
    assert len([x for x in board.log() if x.startswith("close")]) == 5


def test_list_of_no_devices(tmp_path, monkeypatch):
    for name in ("SYS_CLASS", "DEV", "MODULE", "TEGRA_RELEASE"):
        monkeypatch.setattr(v4l2_devices, name, str(tmp_path / name))
    camera, loopback = v4l2_devices.devices()
    assert (camera.check, camera.state) == ("camera", "ok")
    assert "none" in camera.says
    assert (loopback.check, loopback.state) == ("loopback", "warning")
    assert "modprobe v4l2loopback devices=1 video_nr=10 card_label=edgegs exclusive_caps=1" in loopback.fix


@pytest.mark.parametrize(
    ("label", "written"),
    [("edgegs", "card_label=edgegs "), ("my cam", "card_label='my cam' "), ("it's", "card_label='it'\"'\"'s' ")],
)
def test_command_can_be_pasted(label, written):
    assert written in v4l2_devices.how_to_load(label=label)
