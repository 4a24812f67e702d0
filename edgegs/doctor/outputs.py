"""Screens, virtual cameras, cameras and encoders: what a configuration names, or, without one, what is in the way.

A part that nobody has asked for is a note, one that an output needs a warning, one that a required output needs a
problem. `edgegs devices` lists all that can be used.
"""

from __future__ import annotations

import os
import platform
from typing import TYPE_CHECKING, Any, Callable, List, Optional, Sequence

from edgegs.doctor.machine import Machine
from edgegs.doctor.service import Unit
from edgegs.findings import OK, Finding, ask_python, note, problem, warning

if TYPE_CHECKING:
    from edgegs.config import Config, Output

Tell = Callable[[str, str, str, str], Finding]

#: How long an X server may take to answer, seconds.
X_S = 3.0
_GUI = "import cv2; from edgegs.sinks.display_window import gui; print(gui(cv2.getBuildInformation()) or 'none')"
_GROUP = 'sudo usermod -aG video "$USER", then log in again (a service: SupplementaryGroups=video)'


def severity(named: bool, required: bool) -> Tell:
    return problem if required else warning if named else note


def of_kinds(config: Optional[Config], *kinds: str) -> List[Output]:
    return [output for output in (config.outputs if config else ()) if output.uri.kind in kinds]


def outputs(machine: Machine, config: Optional[Config], its: Unit) -> List[Finding]:
    """
    Args:
        config: the configuration to look at, if any.
        its: the service's unit, whose environment counts as well; empty where the configuration is another's.
    """
    return [
        *displays(machine, of_kinds(config, "display"), its),
        *loopbacks(machine, of_kinds(config, "v4l2")),
        *cameras(machine, config, its),
        *encoders(machine, of_kinds(config, "video", "rtp", "rtsp-server", "rtsp-client")),
    ]


def displays(machine: Machine, named: Sequence[Output], its: Unit) -> List[Finding]:
    from edgegs.sinks import x11

    tell = severity(bool(named), any(output.required for output in named))
    findings = _connectors(machine, tell) if named else []
    if named and its.yes("PrivateTmp"):
        says = "the unit's PrivateTmp=yes hides /tmp/.X11-unix: the service reaches no screen"
        fix = "sudo systemctl edit edgegs: PrivateTmp=no and ReadWritePaths=/tmp (systemd/kiosk.conf has both)"
        findings.append(tell("display", "display-private-tmp", says, fix))
    own = next((output.x_display for output in named if output.x_display), None)
    display = own or machine.environ.get("DISPLAY") or its.environment(machine).get("DISPLAY", "")
    if not display:
        return [*findings, tell("display", "display-unset", "DISPLAY is not set", _which(x11))]
    try:
        server = x11.X11(display, X_S)
        try:
            monitors = server.monitors()
        finally:
            server.close()
    except x11.X11Error as error:
        if error.refused:
            return [*findings, (tell if named else warning)("display", "display-refused", str(error), _cookie(machine))]
        # a display that is set but dead is worse than none: everything that looks for a screen tries it
        return [*findings, (tell if named else warning)("display", "display-dead", str(error), _which(x11))]
    numbers = [monitor.number for monitor in monitors]
    there = ", ".join(map(str, monitors)) or "none"
    findings.append(Finding("display", OK, f"X server {display} answers; monitors: {there}"))
    for output in named:
        if output.uri.index not in numbers:
            says = f"{output.label}: the X server {display} has no monitor {output.uri.index} (it has {there})"
            findings.append(tell("display", "monitor-missing", says, "xrandr --auto, or name another in outputs"))
    if named:
        findings += _windows(machine, tell)
    return findings


def _which(x11: Any) -> str:
    there = x11.answering()
    if there:
        return f"export DISPLAY={there[0]} (in outputs: x_display; in a service: Environment=DISPLAY={there[0]})"
    return "start an X server: a desktop, or startx; needed only for display: outputs"


def _cookie(machine: Machine) -> str:
    path = machine.environ.get("XAUTHORITY", "")
    if path and not os.access(path, os.R_OK):
        return f"unset XAUTHORITY: {path} is not there, or may not be read by this user"
    return "export XAUTHORITY=/home/USER/.Xauthority of who runs the desktop, or there: xhost +si:localuser:$USER"


def _connectors(machine: Machine, tell: Tell) -> List[Finding]:
    states = {}
    for path in machine.find("sys/class/drm/card*-*/status"):
        name = os.path.basename(os.path.dirname(path))
        if "Writeback" not in name:
            states[name.partition("-")[2]] = machine.read(path)
    if not states or "connected" in states.values():
        return []
    words = ", ".join(f"{name} {state}" for name, state in states.items())
    fix = "plug one in, and switch it on before the board: some boards look once only"
    return [tell("display", "monitor-unplugged", f"no monitor is plugged in: {words}", fix)]


def _windows(machine: Machine, tell: Tell) -> List[Finding]:
    findings = []
    said, why = ask_python(_GUI, 8.0)
    if said.strip() in ("", "none"):
        fix = "pip uninstall opencv-python-headless, then pip install --force-reinstall opencv-python"
        says = f"OpenCV has no windows{': ' + why if why else ''}"
        findings.append(tell("display", "opencv-headless", says, fix))
    platform_name = machine.environ.get("QT_QPA_PLATFORM", "")
    if platform_name and not platform_name.startswith("xcb"):
        says = f"QT_QPA_PLATFORM is {platform_name}: OpenCV's Qt opens no window on an X server"
        findings.append(tell("display", "qt-platform", says, "unset QT_QPA_PLATFORM"))
    return findings


def loopbacks(machine: Machine, named: Sequence[Output]) -> List[Finding]:
    """Virtual cameras by their names in sysfs; none is opened."""
    nodes = _video_nodes(machine)
    own = [name for name in nodes if machine.exists(f"sys/class/video4linux/{name}/max_openers")]
    if not named:
        if own or not machine.is_tegra:
            return []  # `edgegs devices` lists them; nobody asked for one
        return [note("loopback", *_no_loopback(machine, "no virtual camera (v4l2loopback)"))]
    findings = []
    for output in named:
        tell = severity(True, output.required)
        if output.uri.path:
            matching = [name for name in nodes if name == os.path.basename(output.uri.path)]
        else:
            matching = [name for name in own if _card(machine, name) == output.uri.name]
        if not matching:
            says = f"{output.label}: there is no such virtual camera"
            findings.append(tell("loopback", *_no_loopback(machine, says)))
        elif matching[0] not in own:
            card = _card(machine, matching[0]) or "another device"
            says = f"{output.label}: /dev/{matching[0]} is no virtual camera, but {card}"
            fix = "edgegs devices lists the virtual cameras; write v4l2://label/NAME: numbers change"
            findings.append(tell("loopback", "loopback-other", says, fix))
        elif not machine.exists(f"dev/{matching[0]}"):
            says = f"{output.label}: the kernel has it, but it is not in /dev"
            findings.append(tell("loopback", "video-not-in-container", says, f"start with --device /dev/{matching[0]}"))
        elif not os.access(machine.path(f"dev/{matching[0]}"), os.R_OK | os.W_OK):
            says = f"{output.label}: this user may not open /dev/{matching[0]}"
            findings.append(tell("loopback", "video-permission", says, _GROUP))
        else:
            findings.append(Finding("loopback", OK, f"{output.label}: /dev/{matching[0]}"))
    return findings


def _no_loopback(machine: Machine, says: str) -> Sequence[str]:
    """(code, says, fix): the module is not loaded, not built, or cannot be built."""
    load = "sudo modprobe v4l2loopback devices=1 video_nr=10 card_label=edgegs exclusive_caps=1"
    release = platform.release() if machine.is_real else (machine.names("lib/modules") or [""])[0]
    modules = f"lib/modules/{release}"
    if machine.exists("sys/module/v4l2loopback"):
        fix = f"end what uses the others, then sudo modprobe -r v4l2loopback && {load}"
        return "loopback-missing", f"{says}: the module is loaded with others", fix
    built = [*machine.find(f"{modules}/updates/dkms/v4l2loopback.ko*"), *machine.find(f"{modules}/*/v4l2loopback.ko*")]
    built += [*machine.find(f"{modules}/kernel/drivers/media/*/v4l2loopback.ko*")]
    if built:
        return "loopback-missing", f"{says}: the module is not loaded", load
    if not machine.exists(f"{modules}/build"):
        headers = "nvidia-l4t-kernel-headers" if machine.is_tegra else "linux-headers-$(uname -r)"
        fix = f"sudo apt install {headers} v4l2loopback-dkms, then {load}"
        return "loopback-headers", f"{says}: its module cannot be built, the kernel's headers are missing", fix
    fix = f"sudo apt install v4l2loopback-dkms, then {load}"
    return "loopback-missing", f"{says}: v4l2loopback is not installed", fix


def _card(machine: Machine, name: str) -> str:
    return machine.read(f"sys/class/video4linux/{name}/name")


def _video_nodes(machine: Machine) -> List[str]:
    return [name for name in machine.names("sys/class/video4linux") if name.startswith("video")]


def cameras(machine: Machine, config: Optional[Config], its: Unit) -> List[Finding]:
    """The camera of camera.background, and NVIDIA's daemon behind ribbon cameras."""
    background = config.camera.background if config else None
    kind = background.uri.kind if background else ""
    findings: List[Finding] = []
    if background is not None and kind == "v4l2":
        node = background.uri.path
        if not machine.exists(node):
            says = f"camera.background: {node} is not there"
            findings.append(warning("camera", "camera-missing", says, "edgegs devices lists the cameras; plug it in"))
        elif not os.access(machine.path(node), os.R_OK | os.W_OK):
            says = f"camera.background: this user may not open {node}"
            findings.append(warning("camera", "video-permission", says, _GROUP))
    ribbon = any(_card(machine, name).startswith("vi-output") for name in _video_nodes(machine))
    if kind == "csi" and not ribbon and machine.is_tegra and not machine.in_container:
        says = "camera.background: the kernel knows no camera on the ribbon connector"
        fix = "switch off, seat the ribbon, then sudo /opt/nvidia/jetson-io/jetson-io.py to name the sensor"
        findings.append(warning("camera", "camera-missing", says, fix))
    if kind == "csi" or ribbon:
        tell: Tell = severity(kind == "csi", False)
        if not machine.exists("tmp/argus_socket"):
            says = "nvargus-daemon does not run (no /tmp/argus_socket): csi:// gives no picture"
            fix = "sudo systemctl restart nvargus-daemon"
            findings.append(tell("camera", "argus-dead", says, fix))
        elif its.yes("PrivateTmp"):
            says = "the unit's PrivateTmp=yes hides /tmp/argus_socket: csi:// gives the service no picture"
            findings.append(tell("camera", "argus-private-tmp", says, "sudo systemctl edit edgegs: PrivateTmp=no"))
    return findings


def encoders(machine: Machine, named: Sequence[Output]) -> List[Finding]:
    """Asked of GStreamer only where an output needs one: its first answer takes seconds on a board."""
    if not named:
        return []
    from edgegs.errors import DeviceError
    from edgegs.sinks import encoders as gstreamer

    findings: List[Finding] = []
    for output in named:
        if output.encoder == "opencv":
            continue
        # a video without GStreamer is written by OpenCV
        falls_back = output.uri.kind == "video" and output.encoder in (None, "auto")
        tell = note if falls_back else severity(True, output.required)
        try:
            taken = gstreamer.choose(output.encoder or "auto", machine.path("dev"))
            findings.append(Finding("encoder", OK, f"{output.label}: {taken}"))
            if output.uri.kind == "rtsp-server":
                gstreamer.rtsp_python()
        except DeviceError as error:
            says = f"{output.label}: {error}"
            if "gst-launch-1.0 not found" in says or "gst-inspect-1.0 not found" in says:
                findings.append(tell("encoder", "gstreamer-missing", says.partition(": sudo")[0], gstreamer.INSTALL))
            elif str(error).startswith("serving RTSP"):
                findings.append(tell("encoder", "rtsp-server-missing", says, gstreamer.INSTALL_SERVER))
            elif "may not open" in says:
                findings.append(tell("encoder", "encoder-permission", says, _GROUP))
            else:
                fix = "sudo apt install gstreamer1.0-plugins-ugly (x264enc), and encoder: auto"
                findings.append(tell("encoder", "encoder-missing", says, fix))
    return findings
