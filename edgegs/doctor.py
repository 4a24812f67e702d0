"""`edgegs doctor`: look at everything that a run needs, and name the command that mends what is missing.

Checks run side by side, each in a thread that is left alone when it hangs, and each failure of a check is a finding.
Nothing is built, written or changed.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import sys
import time
from pathlib import Path
from typing import Callable, Dict, List, Optional, Tuple

from edgegs.errors import AccessError
from edgegs.findings import OK, PROBLEM, WARNING, Finding, ask_python, side_by_side

#: All checks together may take so long; what has not answered by then is a problem of its own, seconds.
DEADLINE_S = 12.0
#: A sensor that takes longer hangs, seconds.
SENSOR_TIMEOUT_S = 0.3
#: A cache of all images takes some 20 MB.
LOW_DISK_BYTES = 100e6
#: Under this, memory and swap together, compilers are killed on a board.
LOW_MEMORY_BYTES = 5.5e9
#: Under this, free memory, a scene of half a million splats does not fit.
LOW_FREE_BYTES = 400e6

#: Distribution, module, and the extra that brings it ("" for what every run needs).
PACKAGES = (
    ("numpy", "numpy", ""),
    ("PyYAML", "yaml", ""),
    ("plyfile", "plyfile", ""),
    ("pydantic", "pydantic", ""),
    ("prometheus-client", "prometheus_client", ""),
    ("pycuda", "pycuda", "cuda"),
    ("jetson-stats", "jtop", "jetson"),
    ("nvidia-ml-py", "pynvml", "nvidia"),
    ("paho-mqtt", "paho.mqtt", "mqtt"),
    ("matplotlib", "matplotlib", "report"),
)

_ASK_OPENCV = "import json, cv2; print(json.dumps([cv2.__version__, cv2.getBuildInformation()]))"

SWAP = "sudo fallocate -l 4G /swapfile && sudo chmod 600 /swapfile && sudo mkswap /swapfile && sudo swapon /swapfile"


def examine(root: str = "/", deadline_s: float = DEADLINE_S) -> List[Finding]:
    """All findings, in a fixed order; never raises, and takes at most ``deadline_s``.

    Args:
        root: where ``dev``, ``proc``, ``sys`` and ``etc`` lie.
    """
    checks: Dict[str, Callable[[], List[Finding]]] = {
        "python": lambda: python(root),
        "packages": packages,
        "gpu": lambda: _gpu_and_images(root),
        "toolchains": _toolchains,
        "opencv": opencv,
        "sensors": lambda: sensors(root),
        "cache": cache,
        "memory": lambda: memory(root),
    }
    return side_by_side(checks, deadline_s)


def _gpu_and_images(root: str) -> List[Finding]:
    from edgegs.kernels.health import gpu_and_images

    return gpu_and_images(root)


def _toolchains() -> List[Finding]:
    from edgegs.kernels.health import toolchains

    return toolchains()


def python(root: str = "/") -> List[Finding]:
    """The interpreter, and what the Nano's needs in its environment."""
    says = f"{platform.python_version()} ({sys.executable}), {platform.machine()}"
    findings = [Finding("python", OK, says)]
    compatible = _read(os.path.join(root, "proc/device-tree/compatible"))
    if "nvidia,tegra210" in compatible and os.environ.get("OPENBLAS_CORETYPE") != "ARMV8":
        says = "OPENBLAS_CORETYPE is not set: NumPy may die with 'Illegal instruction' on this processor"
        findings.append(Finding("python", WARNING, says, "export OPENBLAS_CORETYPE=ARMV8"))
    return findings


def packages() -> List[Finding]:
    """Versions of the packages, against what this edgegs asks for."""
    from edgegs import __version__

    needs = _requirements()
    present: List[str] = []
    findings: List[Finding] = []
    absent: List[str] = []
    for distribution, module, extra in PACKAGES:
        version = _version(distribution, module)
        least = needs.get(distribution.lower(), "")
        if version is None:
            if extra:
                absent.append(f"{distribution} (edgegs[{extra}])")
            else:
                fix = f"{sys.executable} -m pip install '{distribution}{'>=' + least if least else ''}'"
                findings.append(Finding("packages", PROBLEM, f"{distribution} is missing", fix))
        elif least and _numbers(version) < _numbers(least):
            state = WARNING if extra else PROBLEM
            fix = f"{sys.executable} -m pip install --upgrade '{distribution}>={least}'"
            findings.append(Finding("packages", state, f"{distribution} {version} is older than {least}", fix))
        else:
            present.append(f"{distribution} {version}".strip())
    says = ", ".join([f"edgegs {__version__}", *present])
    says += "; optional and absent: " + ", ".join(absent) if absent else ""
    return [Finding("packages", OK, says), *findings]


def _requirements() -> Dict[str, str]:
    """Least versions by lower-case distribution, as the installed edgegs states them; empty in a bare checkout."""
    from importlib import metadata

    try:
        lines = metadata.requires("edgegs") or []
    except metadata.PackageNotFoundError:
        return {}
    found = (re.match(r"([A-Za-z0-9._-]+)[^;]*?>=\s*([0-9.]+)", line) for line in lines)
    return {match.group(1).lower(): match.group(2) for match in found if match}


def _version(distribution: str, module: str) -> Optional[str]:
    """None when it is not installed; "" when it is, but does not say its version (a board's system packages)."""
    from importlib import metadata, util

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        pass
    try:
        return "" if util.find_spec(module) is not None else None
    except (ImportError, ValueError):
        return None


def _numbers(version: str) -> Tuple[int, ...]:
    """(1, 24) for "1.24.0" and "1.24": what a comparison needs; a version without numbers is above all others."""
    numbers = [int(number) for number in re.findall(r"\d+", version.split("+")[0])[:3]]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers) if re.search(r"\d", version) else (sys.maxsize,)


def opencv() -> List[Finding]:
    """OpenCV, and whether this build of it has GStreamer and FFmpeg."""
    answer, reason = ask_python(_ASK_OPENCV, DEADLINE_S / 2)
    if reason:
        return [Finding("opencv", PROBLEM, f"cv2 cannot be imported: {reason}", _opencv_fix(reason))]
    version, words = json.loads(answer)

    def built(name: str) -> str:
        match = re.search(rf"^\s*{name}:\s*(\S.*)$", words, re.MULTILINE)
        return match.group(1).strip() if match else "NO"

    codecs = [f"{name} {built(name)}" for name in ("FFMPEG", "avcodec", "JPEG", "PNG")]
    codecs = [text[:60] for text in codecs if not text.endswith(" NO")]
    gstreamer = built("GStreamer")
    findings = [Finding("opencv", OK, f"cv2 {version}, GStreamer {gstreamer}; " + (", ".join(codecs) or "no codecs"))]
    if not built("FFMPEG").startswith("YES") and not gstreamer.startswith("YES"):
        fix = f"{sys.executable} -m pip install opencv-python"
        findings.append(Finding("opencv", WARNING, "this build writes no video files (no FFmpeg, no GStreamer)", fix))
    if not gstreamer.startswith("YES") and shutil.which("gst-launch-1.0") is None:
        says = "no GStreamer, neither in cv2 nor as gst-launch-1.0: rtp: and rtsp: outputs need it"
        fix = "sudo apt install gstreamer1.0-tools gstreamer1.0-plugins-good gstreamer1.0-plugins-bad"
        findings.append(Finding("opencv", WARNING, says, fix))
    return findings


def _opencv_fix(reason: str) -> str:
    if "static TLS" in reason:
        library = re.search(r"(/\S*\.so[.0-9]*)", reason)
        return "export LD_PRELOAD={}".format(library.group(1) if library else "/usr/lib/aarch64-linux-gnu/libgomp.so.1")
    if "signal 4" in reason:
        return "export OPENBLAS_CORETYPE=ARMV8"
    if "libGL" in reason or "libgthread" in reason or "libglib" in reason:
        return "sudo apt install libgl1 libglib2.0-0"
    again = "" if "No module named" in reason else "--force-reinstall "
    return f"{sys.executable} -m pip install {again}opencv-python"


def sensors(root: str = "/") -> List[Finding]:
    """What the collectors of the telemetry can read on this machine."""
    from edgegs.telemetry.board import identify
    from edgegs.telemetry.facade import make_collectors
    from edgegs.telemetry.reader import SensorReader
    from edgegs.telemetry.readings import UNREADABLE, USABLE, merge

    sysfs = os.path.join(root, "sys")
    collectors = make_collectors("auto", sysfs, SensorReader(SENSOR_TIMEOUT_S), identify(sysfs))
    try:
        sample = merge(time.monotonic_ns(), [collector.collect() for collector in collectors])
    finally:
        for collector in collectors:
            collector.close()
    usable = [name for name, one in sample.collectors.items() if one.state == USABLE]
    counts = [f"{len(sample.temp_c)} temperatures", f"{len(sample.clk_hz)} clocks"]
    counts += ["power of " + ", ".join(sample.power_w)] if sample.power_w else []
    says = "{} ({})".format(", ".join(usable), ", ".join(counts)) if usable else "none is found here"
    findings = [Finding("sensors", OK, says)]
    for name, one in sample.collectors.items():
        if one.state == UNREADABLE:
            fix = "run as root to compare, or let the service's user read it" if "permission" in one.cause else ""
            findings.append(Finding("sensors", WARNING, f"{name} is here, but cannot be read: {one.cause}", fix))
    power = [name for name in ("ina3221", "rapl") if name in usable]
    if not power and not any("ina3221" in one.says or "rapl" in one.says for one in findings[1:]):
        findings.append(Finding("sensors", WARNING, "nothing here tells power: the log will have no watts"))
    return findings


def cache() -> List[Finding]:
    """Whether kernels can be built into the cache."""
    from edgegs.paths import cache_dir

    try:
        folder = cache_dir()
    except AccessError as error:
        return [Finding("cache", WARNING, str(error), "export EDGEGS_CACHE=/var/cache/edgegs")]
    there = folder.absolute()
    while not os.path.lexists(str(there)) and there != there.parent:
        there = there.parent
    if not os.path.isdir(str(there)):
        return [Finding("cache", WARNING, f"{there} is in the way of {folder}: no folder", f"rm {there}")]
    if not os.access(str(there), os.W_OK | os.X_OK):
        fix = f"sudo chown $USER {there}, or export EDGEGS_CACHE to a folder of yours"
        return [Finding("cache", WARNING, f"{folder}: kernels cannot be built, {there} is not writable", fix)]
    free = shutil.disk_usage(str(there)).free
    if free < LOW_DISK_BYTES:
        return [Finding("cache", WARNING, f"{folder}: only {free / 1e6:.0f} MB are free there", f"du -sh {there}/*")]
    return [Finding("cache", OK, f"{folder} can be written, {free / 1e9:.1f} GB free")]


def memory(root: str = "/") -> List[Finding]:
    """Memory and swap."""
    words = _read(os.path.join(root, "proc/meminfo"))
    sizes = {name: int(kb) * 1024 for name, kb in re.findall(r"^(\w+):\s+(\d+) kB", words, re.MULTILINE)}
    if "MemTotal" not in sizes:
        return [Finding("memory", WARNING, "/proc/meminfo does not tell")]
    total, swap = sizes["MemTotal"], sizes.get("SwapTotal", 0)
    free = sizes.get("MemAvailable", sizes.get("MemFree", total))
    says = f"{total / 1e9:.1f} GB, {free / 1e9:.1f} GB available, swap {swap / 1e9:.1f} GB"
    findings = [Finding("memory", OK, says)]
    if total + swap < LOW_MEMORY_BYTES:
        says = "compilers may be killed for want of memory while kernels are built"
        findings.append(Finding("memory", WARNING, says, SWAP))
    if free < LOW_FREE_BYTES:
        says = "little memory is free: a large scene may not fit"
        fix = "sudo systemctl isolate multi-user.target (closes the desktop), or lower scene.max_gaussians"
        findings.append(Finding("memory", WARNING, says, fix))
    return findings


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
