"""Which H.264 encoders and other GStreamer parts this machine has, found without starting any of them.

An encoder of the Tegra chips is usable when GStreamer knows the element *and* its device is there: the Orin Nano
has the element and no encoder (dusty-nv/jetson-utils#197), and building a pipeline to find out may hang the whole
board (insight-platform/Savant#497). So ``gst-inspect-1.0`` is asked, with a time-out, and /dev is looked at.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from edgegs.errors import ConfigError, DeviceError
from edgegs.findings import OK, WARNING, Finding

#: In order of preference: the chip's own encoder costs no CPU time.
NVV4L2, OMX, X264 = ENCODERS = ("nvv4l2h264enc", "omxh264enc", "x264enc")
#: The encoder's node: up to L4T 35 (docs.nvidia.com, "V4L2 Video Encoder"), and since L4T 36.
_NODES = ("nvhost-msenc", "v4l2-nvenc")
#: Element -> Debian's and Ubuntu's package that holds it.
_PACKAGES = {
    X264: "gstreamer1.0-plugins-ugly",
    "fdsrc": "gstreamer1.0-plugins-base",  # of GStreamer's core: missing only where all of it is
    "fdsink": "gstreamer1.0-plugins-base",
    "queue": "gstreamer1.0-plugins-base",
    "appsrc": "gstreamer1.0-plugins-base",
    "rawvideoparse": "gstreamer1.0-plugins-bad",  # in -base since 1.20; both are installed together
    "capssetter": "gstreamer1.0-plugins-good",
    "h264parse": "gstreamer1.0-plugins-bad",
    "rtph264pay": "gstreamer1.0-plugins-good",
    "udpsink": "gstreamer1.0-plugins-good",
    "mp4mux": "gstreamer1.0-plugins-good",
    "matroskamux": "gstreamer1.0-plugins-good",
    "rtspclientsink": "gstreamer1.0-rtsp",
}
_L4T = "nvidia-l4t-gstreamer"
#: All that the streams and videos of edgegs use.
INSTALL = (
    "sudo apt install gstreamer1.0-tools gstreamer1.0-plugins-base gstreamer1.0-plugins-good "
    "gstreamer1.0-plugins-bad gstreamer1.0-plugins-ugly gstreamer1.0-rtsp"
)
INSTALL_SERVER = "sudo apt install python3-gi gir1.2-gst-rtsp-server-1.0"
#: The first call after an installation reads every plug-in: many seconds on a Nano.
INSPECT_S = 30.0
#: An answer "not there" is believed for so long: whoever installs what was missing need not restart edgegs.
_ABSENT_S = 30.0

_PROBE = (
    "import gi\n"
    "gi.require_version('Gst', '1.0')\n"
    "gi.require_version('GstRtspServer', '1.0')\n"
    "from gi.repository import Gst, GstRtspServer\n"
)


class _Answer(NamedTuple):
    there: bool
    why: str
    at: float


_lock = threading.Lock()
_answers: Dict[Tuple[str, str], _Answer] = {}


def forget() -> None:
    """Ask everything anew."""
    with _lock:
        _answers.clear()


def program(name: str) -> str:
    """Path of ``gst-launch-1.0`` or ``gst-inspect-1.0``; DeviceError where it is not installed."""
    path = shutil.which(name)
    if path is None:
        raise DeviceError(f"{name} not found: {INSTALL}")
    return path


def why_no_element(name: str) -> Optional[str]:
    """None when GStreamer has this element, else the reason; asked once per process."""
    try:
        inspect = program("gst-inspect-1.0")
    except DeviceError as error:
        return str(error)
    return _ask((inspect, name), [inspect, name], f"GStreamer has no {name}")


def why_no_encoder(name: str, dev: str = "/dev") -> Optional[str]:
    """None when the encoder can be used, else the reason and the remedy. Starts no encoder.

    Args:
        name: one of ``ENCODERS``.
        dev: folder of the device nodes.
    """
    why = why_no_element(name)
    if why is not None:
        return f"{why}{_remedy(name)}"
    if name == X264:
        return None
    node = next((path for path in (os.path.join(dev, one) for one in _NODES) if os.path.exists(path)), None)
    if node is None:
        return "installed, but this board has no video encoder (no {})".format(
            " or ".join(os.path.join(dev, one) for one in _NODES)
        )
    if not os.access(node, os.R_OK | os.W_OK):
        return f"this user may not open {node}; add it to the group video"
    why = why_no_element("nvvidconv")
    return None if why is None else f"{why}: sudo apt install {_L4T}"


def choose(name: str = "auto", dev: str = "/dev") -> str:
    """The encoder to use: the first of ``ENCODERS`` that can be used, or ``name`` itself.

    Raises:
        DeviceError: none, or not this one; names the reasons.
    """
    reasons = []
    for one in ENCODERS if name == "auto" else (name,):
        why = why_no_encoder(one, dev)
        if why is None:
            return one
        if shutil.which("gst-inspect-1.0") is None:  # the same for all of them
            raise DeviceError(why)
        reasons.append(f"{one}: {why}")
    raise DeviceError("no H.264 encoder; " + "; ".join(reasons))


def need(elements: Sequence[str]) -> None:
    """Raises DeviceError naming those elements that GStreamer does not have, and the command that installs them."""
    missing = [(name, why) for name, why in ((name, why_no_element(name)) for name in elements) if why is not None]
    if not missing:
        return
    packages = sorted({_PACKAGES[name] for name, _ in missing if name in _PACKAGES})
    remedy = (": sudo apt install " + " ".join(packages)) if packages else ""
    raise DeviceError("; ".join(why for _, why in missing) + remedy)


def rtsp_python() -> str:
    """A Python that has gst-rtsp-server: this one, else the system's. Asked in a process of its own.

    Raises:
        DeviceError: neither has; names the packages.
    """
    reasons = []
    for path in dict.fromkeys([sys.executable, "/usr/bin/python3"]):
        if not path or not os.path.exists(path):
            continue
        why = _ask((path, "rtsp"), [path, "-I", "-c", _PROBE], "not there")
        if why is None:
            return path
        reasons.append(f"{path}: {why}")
    raise DeviceError(f"serving RTSP needs gst-rtsp-server: {INSTALL_SERVER} ({'; '.join(reasons) or 'no python3'})")


def devices(dev: str = "/dev") -> List[Finding]:
    """What can encode and stream here, for ``edgegs devices``; one line for each encoder and one for RTSP."""
    for name in ("gst-launch-1.0", "gst-inspect-1.0"):
        if shutil.which(name) is None:
            says = f"{name} not found: no rtp: and rtsp: outputs, and videos are written by OpenCV"
            return [Finding("encoder", WARNING, says, INSTALL)]
    found = []
    for name in ENCODERS:
        why = why_no_encoder(name, dev)
        says, _, fix = (why or "usable").partition(": sudo ")
        found.append(Finding("encoder", WARNING if why else OK, f"{name}: {says}", "sudo " + fix if fix else ""))
    try:
        found.append(Finding("encoder", OK, f"RTSP can be served, by {rtsp_python()}"))
    except DeviceError as error:
        found.append(Finding("encoder", WARNING, f"RTSP cannot be served: {error}", INSTALL_SERVER))
    return found


def check_encoder(uri: str, name: object, others: Sequence[str] = ()) -> str:
    """``name`` when it is "auto", one of ``ENCODERS`` or of ``others``; else ConfigError naming output and option."""
    allowed = ("auto", *ENCODERS, *others)
    if not isinstance(name, str) or name not in allowed:
        raise ConfigError(f"output {uri}: encoder is {name!r}; expected one of {', '.join(allowed)}")
    return name


def _remedy(name: str) -> str:
    if shutil.which("gst-inspect-1.0") is None:
        return ""  # said already
    if name == X264:
        return f": sudo apt install {_PACKAGES[X264]}"
    return f"; it comes with JetPack ({_L4T})" if name == NVV4L2 else "; it comes with JetPack 4 only"


def _ask(key: Tuple[str, str], command: Sequence[str], absent: str) -> Optional[str]:
    """None when the command succeeds, else why not. Answers are kept; "no" for a while only."""
    with _lock:  # asked by several outputs at once: the first one's answer serves all
        known = _answers.get(key)
        if known is not None and (known.there or time.monotonic() - known.at < _ABSENT_S):
            return None if known.there else known.why
        why = _run(command, absent)
        _answers[key] = _Answer(why is None, why or "", time.monotonic())
        return why


def _run(command: Sequence[str], absent: str) -> Optional[str]:
    try:
        done = subprocess.run(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=INSPECT_S,
            start_new_session=True,
        )
    except subprocess.TimeoutExpired:
        return f"{os.path.basename(command[0])} does not answer within {INSPECT_S:g} s"
    except OSError as error:
        return f"{command[0]} does not run: {error.strerror}"
    if done.returncode == 0:
        return None
    if done.returncode < 0:
        return f"{os.path.basename(command[0])} was ended by signal {-done.returncode}"
    words = done.stderr.decode("utf-8", "replace").strip().splitlines()
    is_python = len(command) > 2
    return words[-1] if is_python and words else absent
