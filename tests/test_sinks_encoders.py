"""Probing of encoders: fake ``gst-inspect-1.0`` programs and device nodes, and the real ones."""

from __future__ import annotations

import os
import shutil

import pytest
from gst_support import GST, need_rtsp

from edgegs.errors import DeviceError
from edgegs.findings import OK, WARNING
from edgegs.sinks import encoders

CHIP = ("nvv4l2h264enc", "omxh264enc", "x264enc", "nvvidconv")


@pytest.fixture(autouse=True)
def _fresh():
    encoders.forget()
    yield
    encoders.forget()


@pytest.fixture
def gstreamer(tmp_path, monkeypatch):
    """Makes the only program on PATH a gst-inspect-1.0 that knows these elements, and notes what it is asked."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def make(*elements, body=None):
        for name in ("gst-inspect-1.0", "gst-launch-1.0"):
            path = folder / name
            known = "|".join(elements) or "none"
            asked = tmp_path / "asked"
            path.write_text(body or f'#!/bin/sh\necho "$1" >> {asked}\ncase "$1" in {known}) exit 0;; esac\nexit 1\n')
            path.chmod(0o755)
        encoders.forget()

    make.asked = lambda: (tmp_path / "asked").read_text().split()
    return make


@pytest.fixture
def dev(tmp_path):
    folder = tmp_path / "dev"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("node", ["nvhost-msenc", "v4l2-nvenc"])
def test_chip_is_preferred_where_its_device_is_there(gstreamer, dev, node):
    gstreamer(*CHIP)
    (dev / node).touch()
    assert encoders.choose(dev=str(dev)) == "nvv4l2h264enc"
    assert encoders.choose("x264enc", dev=str(dev)) == "x264enc"
    gstreamer("omxh264enc", "x264enc", "nvvidconv")
    assert encoders.choose(dev=str(dev)) == "omxh264enc"


def test_orin_nano_has_the_element_and_no_encoder(gstreamer, dev):
    gstreamer(*CHIP)
    assert encoders.choose(dev=str(dev)) == "x264enc"
    with pytest.raises(DeviceError, match=r"nvv4l2h264enc: installed, but this board has no video encoder \(no "):
        encoders.choose("nvv4l2h264enc", dev=str(dev))


def test_chip_without_its_converter(gstreamer, dev):
    gstreamer("nvv4l2h264enc", "x264enc")
    (dev / "v4l2-nvenc").touch()
    assert encoders.choose(dev=str(dev)) == "x264enc"
    assert "nvidia-l4t-gstreamer" in encoders.why_no_encoder("nvv4l2h264enc", str(dev))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to act as somebody else")
def test_device_that_this_user_may_not_open(gstreamer, dev, monkeypatch):
    gstreamer(*CHIP)
    (dev / "v4l2-nvenc").touch()
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # permissions do not bind root
    monkeypatch.setattr(shutil, "which", lambda name: str(dev.parent / "bin" / name))
    assert encoders.why_no_encoder("nvv4l2h264enc", str(dev)).endswith("add it to the group video")


def test_no_encoder_at_all_gives_every_reason(gstreamer, dev):
    gstreamer()
    with pytest.raises(DeviceError) as caught:
        encoders.choose(dev=str(dev))
    text = str(caught.value)
    assert text.startswith("no H.264 encoder; nvv4l2h264enc: ")
    assert "x264enc: GStreamer has no x264enc: sudo apt install gstreamer1.0-plugins-ugly" in text


def test_answers_are_asked_once_and_no_is_not_believed_for_ever(gstreamer, dev, monkeypatch):
    gstreamer()
    assert encoders.why_no_element("x264enc") is not None
    assert encoders.why_no_element("x264enc") is not None
    assert gstreamer.asked() == ["x264enc"]
    monkeypatch.setattr(encoders, "_ABSENT_S", 0.0)
    assert encoders.why_no_element("x264enc") is not None
    assert gstreamer.asked() == ["x264enc"] * 2
    gstreamer("x264enc")
    assert [encoders.why_no_element("x264enc") for _ in range(3)] == [None] * 3
    assert gstreamer.asked() == ["x264enc"] * 3


def test_inspect_that_hangs(gstreamer, monkeypatch):
    gstreamer(body="#!/bin/sh\nexec /bin/sleep 60\n")
    monkeypatch.setattr(encoders, "INSPECT_S", 0.2)
    assert encoders.why_no_element("x264enc") == "gst-inspect-1.0 does not answer within 0.2 s"


def test_inspect_that_does_not_run(gstreamer):
    gstreamer(body="#!/no/such/shell\n")
    assert "does not run" in encoders.why_no_element("x264enc")


def test_missing_elements_are_named_with_their_packages(gstreamer):
    gstreamer("queue")
    with pytest.raises(DeviceError) as caught:
        encoders.need(["queue", "mp4mux", "h264parse"])
    assert str(caught.value) == (
        "GStreamer has no mp4mux; GStreamer has no h264parse: "
        "sudo apt install gstreamer1.0-plugins-bad gstreamer1.0-plugins-good"
    )
    encoders.need(["queue"])


def test_devices_of_a_board(gstreamer, dev, monkeypatch):
    gstreamer(*CHIP[:1], *CHIP[2:])
    (dev / "nvhost-msenc").touch()
    monkeypatch.setattr(encoders, "_PROBE", "import no_such_module")
    found = encoders.devices(str(dev))
    assert [one.check for one in found] == ["encoder"] * 4
    assert [one.state for one in found] == [OK, WARNING, OK, WARNING]
    assert found[0].says == "nvv4l2h264enc: usable"
    assert "JetPack 4 only" in found[1].says
    assert found[3].fix == encoders.INSTALL_SERVER
    assert "no_such_module" in found[3].says


def test_devices_without_gstreamer(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    (one,) = encoders.devices()
    assert one.state == WARNING
    assert one.says.startswith("gst-launch-1.0 not found")
    assert one.fix.startswith("sudo apt install gstreamer1.0-tools")


def test_devices_where_only_x264_is_missing(gstreamer, dev):
    gstreamer("queue")
    x264 = encoders.devices(str(dev))[2]
    assert (x264.says, x264.fix) == ("x264enc: GStreamer has no x264enc", "sudo apt install gstreamer1.0-plugins-ugly")


@GST
def test_real_gstreamer_of_this_machine():
    if encoders.why_no_element("x264enc") is not None:
        pytest.skip("no x264enc: gstreamer1.0-plugins-ugly")
    assert encoders.choose("x264enc") == "x264enc"
    assert encoders.why_no_element("no-such-element") == "GStreamer has no no-such-element"
    assert encoders.choose() in encoders.ENCODERS


def test_real_python_with_gst_rtsp_server():
    assert os.access(need_rtsp(), os.X_OK)
