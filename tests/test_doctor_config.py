"""The doctor's look at a configuration and what it names: scene, secrets, folders, ports, screens, cameras."""

from __future__ import annotations

import json
import os
import shutil
import socket
import struct

import pytest
from config_texts import MINIMAL
from machines import World, desktop, recorded_nano, run_cases

from edgegs import doctor
from edgegs.cli import main
from edgegs.doctor import configuration, outputs, ports
from edgegs.doctor.machine import Account
from edgegs.errors import DeviceError
from edgegs.findings import OK, PROBLEM, WARNING
from edgegs.scene import write_ply
from edgegs.scene.synth import dial
from edgegs.sinks import encoders, x11


@pytest.fixture
def world(tmp_path, monkeypatch):
    return World(tmp_path, monkeypatch)


def look(world, text=MINIMAL, prepare=None, scene=True):
    """Findings of the configuration check over a file below the made-up root, which ``prepare`` makes worse before."""
    path = world.write("etc/edgegs/edgegs.yaml", text)
    if scene:
        write_ply(str(path.parent / "a.ply"), dial(40))
    if prepare:
        prepare(world)
    world.patch.setattr(outputs, "ask_python", lambda script, timeout_s: ("QT5", ""))
    return doctor._configuration(world.machine, str(path))


# ---- one case of each finding ------------------------------------------------------------------------


def _config(text=MINIMAL, prepare=None, **options):
    return lambda world: look(world, text, prepare, **options)


def _output(uri, prepare=None, keys="required: true"):
    return _config(MINIMAL.replace('["null:"]', f"[{{uri: '{uri}', {keys}}}]"), prepare)


def _closed(name):
    """The file's owner has no say when root looks: open() itself refuses."""

    def prepare(world):
        opened = os.open

        def refuse(path, *rest, **more):
            if str(path).endswith(name):
                raise PermissionError(13, "Permission denied", path)
            return opened(path, *rest, **more)

        world.patch.setattr(os, "open", refuse)

    return prepare


def _no_access(name):
    def prepare(world):
        allowed = os.access
        world.patch.setattr(os, "access", lambda path, mode, **_: not str(path).endswith(name) and allowed(path, mode))

    return prepare


def _low(free):
    def prepare(world):
        usage = shutil.disk_usage(str(world.tmp_path))._replace(free=free)
        world.patch.setattr(shutil, "disk_usage", lambda path: usage)

    return prepare


def _token(content, mode):
    def case(world):
        path = world.write("etc/edgegs/token", content)
        path.chmod(mode)
        return look(world, MINIMAL + "http: {token_file: token}\n")

    return case


def _service_user(world):
    """The service's user is another than whoever owns the file."""
    recorded_nano(world.root)
    world.unit(User="edgegs")
    (world.root / "etc/edgegs/edgegs.yaml").chmod(0o600)


def _service_tmp(world):
    """The tests' files lie below /tmp."""
    recorded_nano(world.root)
    world.unit(User="root", PrivateTmp="yes")
    world.patch.setattr(configuration, "is_below", lambda path, folder: path.endswith("a.ply") and folder == "/tmp")


def _read_only(world):
    world.write("proc/mounts", f"/dev/sda1 / ext4 rw 0 0\n/dev/sdb1 {world.root} ext4 ro 0 0\n")


def _not_mounted(world):
    world.write("proc/mounts", "/dev/sda1 / ext4 rw 0 0\n")
    world.write("etc/fstab", f"UUID=1-2 {world.root}/etc ext4 defaults 0 2\n")


def _listening(world):
    recorded_nano(world.root)
    row = "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4242 1 0 100"
    world.write("proc/net/tcp", f"  sl  local_address\n{row}\n")
    world.write("proc/77/cmdline", "/usr/bin/grafana\0server\0")
    (world.root / "proc/77/fd").mkdir()
    (world.root / "proc/77/fd/5").symlink_to("socket:[4242]")


def _unprivileged(world):
    world.patch.setattr(os, "geteuid", lambda: 1000)


class _Server:
    def __init__(self, display, timeout_s=3.0):
        if display == ":7":
            raise x11.X11Error("the X server :7 refuses: no authorization", refused=True)
        if display != ":0":
            raise x11.X11Error(f"no X server at {display}")

    def monitors(self):
        return [x11.Monitor(0, "HDMI-0", 0, 0, 1920, 1080)]

    def close(self):
        pass


def _screen(display="", **environ):
    def prepare(world):
        world.patch.setattr(x11, "X11", _Server)
        world.patch.setattr(x11, "answering", lambda timeout_s=0.5: [":0"])
        world.environ.update({"DISPLAY": display} if display else {}, **environ)

    return prepare


def _screen_of_the_service(world):
    _screen(":0")(world)
    world.unit(User="root", PrivateTmp="yes")
    world.patch.setattr(configuration, "_hidden_from", lambda its, path: "")


def _unplugged(world):
    _screen(":0")(world)
    world.write("sys/class/drm/card0-HDMI-A-1/status", "disconnected\n")


def _headless(world):
    _screen(":0")(world)
    path = world.write("etc/edgegs/edgegs.yaml", MINIMAL.replace("null:", "display://0"))
    world.patch.setattr(outputs, "ask_python", lambda script, timeout_s: ("none\n", ""))
    return doctor._configuration(world.machine, str(path))


def _video(name="Dummy", loopback=True, node=True, card="edgegs"):
    def prepare(world):
        world.write("sys/class/video4linux/video10/name", card + "\n")
        if loopback:
            world.write("sys/class/video4linux/video10/max_openers", "10\n")
        if node:
            world.write("dev/video10")

    return prepare


def _ribbon(world):
    recorded_nano(world.root)
    world.write("sys/class/video4linux/video0/name", "vi-output, imx219 7-0010\n")


def _ribbon_hidden(world):
    _ribbon(world)
    world.write("tmp/argus_socket")
    world.unit(PrivateTmp="yes")


def _gstreamer(words, choose=True):
    def prepare(world):
        def fail(*_):
            raise DeviceError(words)

        world.patch.setattr(encoders, "choose", fail if choose else lambda name, dev: "x264enc")
        world.patch.setattr(encoders, "rtsp_python", fail)

    return prepare


def _no_mqtt(world):
    from edgegs.doctor import software

    known = software._version
    world.patch.setattr(software, "_version", lambda name, module: None if name == "paho-mqtt" else known(name, module))


def _both(*prepares):
    def prepare(world):
        for one in prepares:
            one(world)

    return prepare




def _background(uri):
    return MINIMAL.replace("height: 480", f"height: 480, background: '{uri}'")


_NO_ENCODER = "no H.264 encoder; nvv4l2h264enc: installed, but this board has no video encoder"
_CLOSED_ENCODER = "omxh264enc: this user may not open /dev/nvhost-msenc"
_NO_RTSP = "serving RTSP needs gst-rtsp-server: sudo apt install …"

CASES = {
    "config-missing": lambda world: doctor._configuration(world.machine, str(world.root / "none.yaml")),
    "config-unreadable": _config(prepare=_closed("edgegs.yaml")),
    "config-invalid": _config("scene: {path: a.ply}\nsceen: {}\n"),
    "scene-missing": _config(scene=False),
    "scene-unreadable": _config(prepare=_closed("a.ply")),
    "scene-invalid": _config(MINIMAL.replace("a.ply", "edgegs.yaml")),
    "token-invalid": _token("short\n", 0o600),
    "token-unreadable": _config(MINIMAL + "http: {token_file: token}\n", _closed("token")),
    "token-readable-by-all": _token("0123456789abcdef0123456789abcdef\n", 0o644),
    "service-cannot-read": _config(prepare=_service_user),
    "service-hides-files": _config(prepare=_service_tmp),
    "output-folder-missing": _output("file://gone/out.mkv", keys="required: true, encoder: opencv"),
    "output-folder-closed": _output("file://out.mkv", _no_access("/edgegs"), keys="encoder: opencv"),
    "output-disk-full": _output("file://out.mkv", _low(20_000_000), keys="encoder: opencv"),
    "log-not-writable": _config(prepare=_no_access("/edgegs")),
    "log-read-only": _config(prepare=_read_only),
    "log-disk-full": _config(prepare=_low(10_000_000)),
    "log-disk-not-mounted": _config(prepare=_not_mounted),
    "port-in-use": _output("mjpeg://127.0.0.1:8080", _listening),
    "port-privileged": _output("mjpeg://127.0.0.1:80", _unprivileged),
    "mqtt-missing": _config(MINIMAL.replace("height: 480", "height: 480, path: {kind: mqtt}"), _no_mqtt),
    "display-unset": _output("display://0", _screen()),
    "display-dead": _output("display://0", _screen(":3")),
    "display-refused": _output("display://0", _screen(":7", XAUTHORITY="/home/gone/.Xauthority")),
    "display-private-tmp": _output("display://0", _screen_of_the_service),
    "monitor-missing": _output("display://2", _screen(":0")),
    "monitor-unplugged": _output("display://0", _unplugged),
    "opencv-headless": _headless,
    "qt-platform": _output("display://0", _screen(":0", QT_QPA_PLATFORM="wayland")),
    "loopback-missing": _output("v4l2://label/edgegs", lambda world: world.write("lib/modules/4.9.253/build/Makefile")),
    "loopback-headers": _output("v4l2:///dev/video10", lambda world: recorded_nano(world.root)),
    "loopback-other": _output("v4l2:///dev/video10", _video(loopback=False, card="HD Webcam")),
    "video-permission": _output("v4l2://label/edgegs", _both(_video(), _no_access("dev/video10"))),
    "video-not-in-container": _output("v4l2://label/edgegs", _video(node=False)),
    "camera-missing": _config(_background("v4l2:///dev/video7")),
    "argus-dead": _config(_background("csi://0"), _ribbon),
    "argus-private-tmp": _config(_background("csi://0"), _ribbon_hidden),
    "gstreamer-missing": _output("rtp://127.0.0.1:5000", _gstreamer("gst-inspect-1.0 not found: sudo apt install x")),
    "rtsp-server-missing": _output("rtsp://@:8554/live", _gstreamer(_NO_RTSP, choose=False)),
    "encoder-missing": _output("rtp://127.0.0.1:5000", _gstreamer(_NO_ENCODER)),
    "encoder-permission": _output("rtp://127.0.0.1:5000", _gstreamer(_CLOSED_ENCODER)),
}


@pytest.mark.parametrize("code", CASES)
def test_each_finding(code, tmp_path, monkeypatch):
    run_cases(CASES, code, tmp_path, monkeypatch)


# ---- severity ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("keys", "state"), [("required: true", PROBLEM), ("required: false", WARNING)])
def test_what_a_required_output_needs_is_a_problem(world, keys, state):
    found = _output("display://0", _screen(":3"), keys=keys)(world)
    assert [one.state for one in found if one.code == "display-dead"] == [state]


def test_what_nobody_asked_for_is_no_fault(world):
    desktop(world.root)
    _screen()(world)
    found = doctor._configuration(world.machine, None)
    assert {one.state for one in found} == {OK}
    assert [one.code for one in found] == ["display-unset"]


def test_a_display_that_is_set_but_dead_is_told_without_a_configuration(world):
    _screen(":3")(world)
    (one,) = doctor._configuration(world.machine, None)
    assert (one.code, one.state) == ("display-dead", WARNING)
    assert "DISPLAY=:0" in one.fix


def test_a_right_configuration(world):
    found = look(world)
    assert [one.check for one in found if one.state == OK][:3] == ["config", "scene", "log"]
    assert {one.state for one in found} == {OK}


def _header(*properties, count=3):
    lines = [f"property {kind} {name}" for kind, name in properties]
    return "\n".join(["ply", "format binary_little_endian 1.0", f"element vertex {count}", *lines, "end_header", ""])


_XYZ = [("float", name) for name in "xyz"]
_SPLAT = [*_XYZ, *(("float", name) for name in ("f_dc_0", "f_dc_1", "f_dc_2", "opacity", "scale_0", "scale_1",
                                                "scale_2", "rot_0", "rot_1", "rot_2", "rot_3"))]  # fmt: skip


@pytest.mark.parametrize(
    ("head", "words"),
    [
        (_header(*_XYZ), "a point cloud, not a 3DGS scene: lacks f_dc_0…2, opacity, scale_0…2, rot_0…3"),
        (_header(*_SPLAT[:-1]), "lacks rot_3"),
        (_header(*_SPLAT, count=0), "a scene of zero splats"),
        (_header(("uint", "packed_position")), "a compressed PLY without element chunk"),
    ],
)
def test_a_ply_that_is_no_scene_is_told_by_its_header(world, head, words):
    found = look(world, prepare=lambda world: world.write("etc/edgegs/a.ply", head))
    (one,) = [one for one in found if one.code == "scene-invalid"]
    assert words in one.says
    assert one.state == PROBLEM


def test_scenes_by_what_they_are(world):
    (one,) = [one for one in look(world) if one.check == "scene"]
    assert one.says.endswith("a.ply: 40 splats of SH degree 3 (ply)")
    splat = struct.pack("<6f8B", 1, 2, 3, 0.1, 0.1, 0.1, 255, 255, 255, 255, 255, 128, 128, 128)
    path = world.root / "etc/edgegs/a.ply"
    (one,) = [one for one in look(world, prepare=lambda _: path.write_bytes(splat)) if one.check == "scene"]
    assert one.says.endswith("a scene (splat)")
    path.unlink()
    path.mkdir()
    (one,) = [one for one in look(world, scene=False) if one.check == "scene"]
    assert (one.code, one.state) == ("scene-missing", PROBLEM)
    (path / "meta.json").write_text("{}")
    (one,) = [one for one in look(world, scene=False) if one.check == "scene"]
    assert one.says.endswith("a scene (folder)")


def test_the_services_own_configuration_is_looked_at_unasked(world):
    world.write("etc/edgegs/edgegs.yaml", "outputs: 7\n")
    found = doctor._configuration(world.machine, None)
    assert {one.code for one in found if one.state == PROBLEM} == {"config-invalid"}
    _closed("edgegs.yaml")(world)
    one = doctor._configuration(world.machine, None)[0]
    assert (one.code, one.state) == ("config-unreadable", OK), "a user need not see it"


def test_a_loopback_that_is_there(world):
    found = _output("v4l2://label/edgegs", _video())(world)
    assert "/dev/video10" in next(one.says for one in found if one.check == "loopback")


def test_a_folder_that_the_unit_protects_is_opened_in_the_unit(world):
    def protected(world):
        world.unit(User="root", ProtectSystem="strict", StateDirectory="edgegs")

    found = _output("file://out.mkv", protected, keys="encoder: opencv")(world)
    (one,) = [one for one in found if one.code == "output-folder-closed"]
    assert "ProtectSystem=strict" in one.says
    assert f"ReadWritePaths={world.root}/etc/edgegs" in one.fix


def test_another_configuration_than_the_services_is_this_users(world):
    world.unit(User="edgegs", PrivateTmp="yes", ExecStart="{ argv[]=/opt/edgegs run /srv/other.yaml ; }")
    assert {one.state for one in look(world)} == {OK}


# ---- ports -------------------------------------------------------------------------------------------


def test_edgegs_itself_may_hold_its_port(world):
    _listening(world)
    world.write("proc/77/cmdline", "/opt/edgegs/bin/python\0/opt/edgegs/bin/edgegs\0run\0")
    found = _output("mjpeg://127.0.0.1:8080")(world)
    assert any("edgegs itself holds it, 77" in one.says for one in found if one.check == "ports")


@pytest.mark.parametrize(
    ("host", "port", "is_taken"),
    [
        ("127.0.0.1", 8080, True),
        ("localhost", 8080, True),
        ("0.0.0.0", 8080, True),
        ("", 8080, True),
        ("192.168.1.9", 8080, False),
        ("127.0.0.1", 8081, False),
    ],
)
def test_which_addresses_collide(world, host, port, is_taken):
    _listening(world)
    assert bool(ports.taken_by(world.machine, "tcp", host, port)) == is_taken


def test_this_machines_ports():
    from edgegs.doctor.machine import Machine

    with socket.socket() as listening, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as bound:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        bound.bind(("0.0.0.0", 0))
        for kind, one in (("tcp", listening), ("udp", bound)):
            (found,) = ports.taken_by(Machine(), kind, "127.0.0.1", one.getsockname()[1])
            assert ports.owner(Machine(), found.inode).startswith(f"{os.getpid()} (")
        assert not ports.taken_by(Machine(), "tcp", "127.0.0.2", listening.getsockname()[1])


# ---- the service's user ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "uid", "gids", "may"),
    [
        (0o640, 0, (), True),
        (0o640, 1, (), False),
        (0o640, 1, ("gid",), True),
        (0o644, None, (), True),
        (0o604, 1, ("gid",), False),  # the group's bits count for its members, even when they give less
    ],
)
def test_whom_the_bits_let_in(tmp_path, mode, uid, gids, may):
    path = tmp_path / "file"
    path.write_text("")
    path.chmod(mode)
    status = path.stat()
    account = Account("x", uid, frozenset(status.st_gid for _ in gids))
    assert account.may(status, 4) == may


def test_a_closed_folder_above_is_named(tmp_path):
    folder = tmp_path / "closed"
    folder.mkdir()
    (folder / "scene.ply").write_text("")
    folder.chmod(0o700)
    account = Account("edgegs", 990, frozenset([990]))
    above = [*reversed(folder.parents), folder]  # pytest's own folders are closed as well
    first = next(one for one in above if not account.may(one.stat(), 1))
    assert configuration._closed(account, str(folder / "scene.ply")) == str(first)
    assert configuration._closed(account._replace(uid=0), str(folder / "scene.ply")) == ""


# ---- the command -------------------------------------------------------------------------------------


def test_the_command_looks_at_the_configuration_it_is_given(monkeypatch, capsys, tmp_path):
    seen = []
    monkeypatch.setattr(doctor, "examine", lambda config=None: seen.append(config) or [])
    assert main(["doctor", "--config", "kiosk.yaml", "--json"]) == 0
    assert seen == ["kiosk.yaml"]
    assert json.loads(capsys.readouterr().out) == {"findings": [], "n_problems": 0, "n_warnings": 0}
    assert main(["doctor", "--force"]) == 2
