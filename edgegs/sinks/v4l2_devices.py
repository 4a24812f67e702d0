"""What lies under /dev/video*: cameras, virtual cameras (v4l2loopback), and which of them can be used.

A virtual camera is known by its driver and its card label, not by its number: numbers are given out in the order in
which drivers load, and change when a camera is plugged in.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from typing import Iterator, List, NamedTuple, Optional

from edgegs.errors import AccessError, DeviceError
from edgegs.findings import OK, WARNING, Finding
from edgegs.sinks import v4l2_api as api

SYS_CLASS = "/sys/class/video4linux"
DEV = "/dev"
MODULE = "/sys/module/v4l2loopback"
TEGRA_RELEASE = "/etc/nv_tegra_release"
ARGUS_SOCKET = "/tmp/argus_socket"

LOOPBACK_DRIVER = "v4l2 loopback"
GROUP_ADVICE = 'sudo usermod -aG video "$USER", then log in again (a service: SupplementaryGroups=video)'


class Node(NamedTuple):
    """One /dev/videoN.

    Attributes:
        path: such as /dev/video10.
        name: what sysfs calls it; of a loopback: its card label.
        driver: as the driver calls itself, or its kernel module where the device could not be asked; "" if unknown.
        card: card label, "" where the device could not be asked.
        caps: V4L2_CAP_… bits, 0 where the device could not be asked.
        formats: of a camera, such as "MJPG up to 1920x1080".
        error: why it could not be asked.
    """

    path: str
    name: str
    driver: str = ""
    card: str = ""
    caps: int = 0
    formats: str = ""
    error: Optional[OSError] = None

    @property
    def is_loopback(self) -> bool:
        return self.driver == LOOPBACK_DRIVER

    @property
    def is_camera(self) -> bool:
        codec = api.CAP_VIDEO_M2M | api.CAP_VIDEO_M2M_MPLANE
        capture = api.CAP_VIDEO_CAPTURE | api.CAP_VIDEO_CAPTURE_MPLANE
        return not self.is_loopback and bool(self.caps & capture) and not self.caps & codec


@contextlib.contextmanager
def opened(path: str) -> Iterator[int]:
    """The device's file descriptor, closed again at the end. Raises OSError."""
    fd = api.open_node(path, os.O_NONBLOCK)
    try:
        yield fd
    finally:
        os.close(fd)


def nodes() -> List[Node]:
    """Every /dev/video*, by number, each asked what it is. Nothing is changed on any of them."""
    return [_ask(path) for path in _paths()]


def find_label(label: str) -> str:
    """Path of the loopback with this card label.

    Raises:
        DeviceError: there is none, or more than one. AccessError: it may not be opened.
    """
    named = [path for path in _paths() if _name(path) == label]
    asked = [_ask(path) for path in named]
    found = [node.path for node in asked if node.is_loopback and node.card == label]
    if len(found) == 1:
        return found[0]
    if found:
        raise DeviceError(f'{" and ".join(found)} both have the label "{label}"; write v4l2://{found[0]}')
    for node in asked:
        if isinstance(node.error, PermissionError):
            raise AccessError(f"this user may not open {node.path}; {GROUP_ADVICE}")
        if node.error is not None:
            raise DeviceError(f'{node.path} has the label "{label}": {node.error.strerror}')
    why = f" ({asked[0].path} has it, but is a {asked[0].driver} device)" if asked else ""
    raise DeviceError(f'no loopback has the label "{label}"{why}; {what_there_is()}; {how_to_load(label=label)}')


def what_there_is() -> str:
    """The loopbacks of this machine, for an error message."""
    there = [f'{node.path} "{node.card or node.name}"' for node in nodes() if node.is_loopback]
    return "loopbacks here: " + ", ".join(there) if there else "there is no loopback here"


def how_to_load(number: int = 10, label: str = "edgegs") -> str:
    """The command that makes a virtual camera, and what must be installed for it."""
    command = f"modprobe v4l2loopback devices=1 video_nr={number} card_label={shlex.quote(label)} exclusive_caps=1"
    if os.path.isdir(MODULE):
        return f"end what uses the loopbacks, then sudo modprobe -r v4l2loopback && sudo {command}"
    packages = "v4l2loopback-dkms"
    if os.path.exists(TEGRA_RELEASE):
        packages = "nvidia-l4t-kernel-headers " + packages  # the module is built against the board's own kernel
    return f"sudo {command} (where there is no such module: sudo apt install {packages})"


def devices() -> List[Finding]:
    """Findings "camera" and "loopback" for ``edgegs devices``: each device, how to name it, or why it is of no use."""
    all_nodes = nodes()
    asked = [node for node in all_nodes if node.error is None]
    findings = [_camera(node) for node in asked if node.is_camera]
    findings += [_unusable("camera", node) for node in all_nodes if node.error and not node.is_loopback]
    if not findings:
        findings.append(Finding("camera", OK, "none; needed only for camera.background"))
    findings += _argus(all_nodes)
    loopbacks = [_loopback(node) for node in all_nodes if node.is_loopback]
    if not loopbacks:
        loopbacks = [Finding("loopback", WARNING, "no virtual camera (v4l2loopback)", how_to_load())]
    findings += loopbacks
    other = [f"{node.path} ({node.card})" for node in asked if not node.is_camera and not node.is_loopback]
    if other:
        findings.append(Finding("video", OK, "neither camera nor loopback (metadata, codec): " + ", ".join(other)))
    return findings


def _paths() -> List[str]:
    try:
        names = os.listdir(SYS_CLASS)
    except OSError:  # no sysfs in some containers
        names = []
    with contextlib.suppress(OSError):
        names += os.listdir(DEV)
    numbers = {int(name[5:]) for name in names if re.fullmatch(r"video[0-9]{1,4}", name)}
    return [f"{DEV}/video{number}" for number in sorted(numbers)]


def _sys(path: str) -> str:
    return os.path.join(SYS_CLASS, os.path.basename(path))


def _name(path: str) -> str:
    try:
        with open(os.path.join(_sys(path), "name"), "rb") as file:
            return api.text(file.read(256).rstrip(b"\n"))
    except OSError:
        return ""


def _ask(path: str) -> Node:
    name = _name(path)
    try:
        with opened(path) as fd:
            capability = api.query_capability(fd)
            node = Node(path, name, api.text(capability.driver), api.text(capability.card), capability.caps)
            if node.is_camera:
                node = node._replace(formats=_formats(fd))
            return node
    except OSError as error:
        return Node(path, name, _driver_by_sysfs(path), error=error)


def _driver_by_sysfs(path: str) -> str:
    if os.path.exists(os.path.join(_sys(path), "max_openers")):  # an attribute of v4l2loopback's own
        return LOOPBACK_DRIVER
    link = os.path.join(_sys(path), "device", "driver")
    return os.path.basename(os.path.realpath(link)) if os.path.exists(link) else ""


def _formats(fd: int) -> str:
    try:
        found = api.capture_formats(fd)
    except OSError:
        return ""
    return ", ".join(f"{name} up to {width}x{height}" if width else name for name, width, height in found)


def _camera(node: Node) -> Finding:
    formats = f"; {node.formats}" if node.formats else ""
    if node.driver == "tegra-video":
        says = f"{node.path}: {node.card}, a sensor on the ribbon connector{formats}; use csi://N (through argus)"
        return Finding("camera", OK, says)
    return Finding("camera", OK, f"{node.path}: {node.card} ({node.driver}){formats}; use v4l2://{node.path}")


def _argus(all_nodes: List[Node]) -> List[Finding]:
    """A ribbon camera's picture goes through NVIDIA's daemon, which the device node does not show."""
    if not any(node.driver == "tegra-video" for node in all_nodes):
        return []
    if os.path.exists(ARGUS_SOCKET):
        return [Finding("camera", OK, f"nvargus-daemon answers at {ARGUS_SOCKET}")]
    says = f"nvargus-daemon does not run: there is no {ARGUS_SOCKET}, so csi:// gives no picture"
    return [Finding("camera", WARNING, says, "sudo systemctl restart nvargus-daemon (a service: PrivateTmp=no)")]


def _loopback(node: Node) -> Finding:
    if node.error is not None:
        return _unusable("loopback", node)
    uris = f"v4l2://{node.path}"
    if node.card and "/" not in node.card and node.card.isprintable() and "\ufffd" not in node.card:
        uris += f" or v4l2://label/{node.card}"
    if not node.caps & api.CAP_VIDEO_OUTPUT and node.caps & api.CAP_VIDEO_CAPTURE:
        says = f'{node.path}: "{node.card}" is being written to (by whom: sudo fuser -v {node.path})'
        return Finding("loopback", OK, says)
    return Finding("loopback", OK, f'{node.path}: "{node.card}"; use {uris}')


def _unusable(check: str, node: Node) -> Finding:
    name = f' "{node.name}"' if node.name else ""
    driver = f" ({node.driver})" if node.driver else ""
    if isinstance(node.error, PermissionError):
        return Finding(check, WARNING, f"{node.path}{name}{driver}: this user may not open it", GROUP_ADVICE)
    if isinstance(node.error, FileNotFoundError):
        says = f"{node.path}{name}{driver}: the kernel has it, but it is not in {DEV}"
        return Finding(check, WARNING, says, f"in a container: pass it on with --device {node.path}")
    why = node.error.strerror if node.error is not None else "no answer"
    return Finding(check, WARNING, f"{node.path}{name}{driver}: {why}", f"sudo fuser -v {node.path} shows who uses it")
