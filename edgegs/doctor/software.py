"""Python, pip, packages and OpenCV; and the settings in the environment that decide whether they can be loaded."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import sys
import sysconfig
from typing import Dict, List, Optional, Tuple

from edgegs.doctor.machine import Machine
from edgegs.findings import OK, Finding, ask_python, note, problem, warning

#: The first import of a large package from a board's SD card is slow, seconds.
IMPORT_S = 8.0
#: Older ones see no manylinux2014 wheel and compile NumPy.
LEAST_PIP = (19, 3)

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

_ASK_NUMPY = "import numpy; numpy.ones((8, 8)) @ numpy.ones((8, 8))"
_ASK_OPENCV = "import json, cv2; print(json.dumps([cv2.__version__, cv2.getBuildInformation()]))"
_CORETYPE = "export OPENBLAS_CORETYPE=ARMV8"


def python(machine: Machine) -> List[Finding]:
    """The interpreter, its pip, and what the Nano's needs in its environment."""
    says = f"{platform.python_version()} ({sys.executable}), {platform.machine()}"
    findings = [Finding("python", OK, says)]
    if machine.is_nano and machine.environ.get("OPENBLAS_CORETYPE") != "ARMV8":
        says = "OPENBLAS_CORETYPE is not set: NumPy may die with 'Illegal instruction' on this processor"
        findings.append(warning("python", "openblas-coretype", says, _CORETYPE))
    for library in re.split(r"[: ]+", machine.environ.get("LD_PRELOAD", "")):
        if "/" in library and "$" not in library and not machine.exists(library):
            says = f"LD_PRELOAD names {library}, which is not there: every program complains, and nothing is preloaded"
            findings.append(warning("python", "ld-preload-missing", says, "unset LD_PRELOAD, or correct the path"))
    pip = _version("pip", "pip")
    if pip and _numbers(pip) < LEAST_PIP:
        fix = f"{sys.executable} -m pip install --upgrade 'pip{_newest_pip()}'"
        says = f"pip {pip} sees no manylinux2014 wheels: it would compile NumPy and OpenCV here"
        findings.append(warning("python", "pip-old", says, fix))
    if _version("UNKNOWN", "") is not None:
        fix = f"{sys.executable} -m pip uninstall -y UNKNOWN; pip install --upgrade 'pip{_newest_pip()}'; install again"
        says = "a package named UNKNOWN is installed: an old pip made it of one that it could not read"
        findings.append(warning("python", "package-unknown", says, fix))
    return findings


def _newest_pip() -> str:
    return "<=25.0.1" if sys.version_info < (3, 9) else ""


def packages(machine: Machine) -> List[Finding]:
    """Versions of the packages, against what this edgegs asks for; and whether NumPy runs."""
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
                findings.append(problem("packages", "package-missing", f"{distribution} is missing", fix))
        elif least and _numbers(version) < _numbers(least):
            tell = warning if extra else problem
            fix = f"{sys.executable} -m pip install --upgrade '{distribution}>={least}'"
            findings.append(tell("packages", "package-old", f"{distribution} {version} is older than {least}", fix))
        else:
            present.append(f"{distribution} {version}".strip())
    says = ", ".join([f"edgegs {__version__}", *present])
    says += "; optional and absent: " + ", ".join(absent) if absent else ""
    if _version("numpy", "numpy") is not None:
        findings += numpy()
    if _version("pycuda", "pycuda") is None and machine.is_tegra:
        findings += pycuda_build(machine)
    return [Finding("packages", OK, says), *findings]


def numpy() -> List[Finding]:
    """Whether NumPy can be imported and multiplies: OpenBLAS chooses its instructions by the processor."""
    _, reason = ask_python(_ASK_NUMPY, IMPORT_S)
    if not reason:
        return []
    if "signal 4" in reason:
        says = "NumPy dies with 'Illegal instruction': OpenBLAS takes this processor for another"
        fix = f"{_CORETYPE} (in a service: Environment=OPENBLAS_CORETYPE=ARMV8)"
        return [problem("packages", "illegal-instruction", says, fix)]
    fix = f"{sys.executable} -m pip install --force-reinstall numpy"
    return [problem("packages", "numpy-broken", f"NumPy cannot be used: {reason}", fix)]


def pycuda_build(machine: Machine) -> List[Finding]:
    """What is missing to compile pycuda on a board: headers of CUDA and of Python."""
    findings = []
    if not machine.find("usr/local/cuda*/include/cuda.h") and not machine.exists("usr/include/cuda.h"):
        says = "pycuda cannot be compiled here: there is no cuda.h below /usr/local/cuda*"
        fix = "sudo apt install nvidia-cuda-dev, or sudo apt install nvidia-jetpack"
        findings.append(warning("packages", "cuda-headers-missing", says, fix))
    if not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")):
        version = "{}.{}".format(*sys.version_info)
        says = f"pycuda cannot be compiled here: Python.h of Python {version} is missing"
        findings.append(warning("packages", "python-headers-missing", says, f"sudo apt install python{version}-dev"))
    return findings


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
        return metadata.version(distribution) or ""
    except metadata.PackageNotFoundError:
        pass
    try:
        return "" if module and util.find_spec(module) is not None else None
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
    answer, reason = ask_python(_ASK_OPENCV, IMPORT_S)
    if reason:
        return [_broken_opencv(reason)]
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
        says = "this build writes no video files (no FFmpeg, no GStreamer)"
        findings.append(warning("opencv", "opencv-no-video", says, fix))
    if not gstreamer.startswith("YES") and shutil.which("gst-launch-1.0") is None:
        says = "no GStreamer, neither in cv2 nor as gst-launch-1.0: rtp: and rtsp: outputs need it"
        fix = "sudo apt install gstreamer1.0-tools gstreamer1.0-plugins-good gstreamer1.0-plugins-bad"
        findings.append(note("opencv", "gstreamer-missing", says, fix))
    return findings


def _broken_opencv(reason: str) -> Finding:
    says = f"cv2 cannot be imported: {reason}"
    if "static TLS" in reason:
        library = re.search(r"(/\S*\.so[.0-9]*)", reason)
        preload = library.group(1) if library else "/usr/lib/aarch64-linux-gnu/libgomp.so.1"
        return problem("opencv", "static-tls", says, f"export LD_PRELOAD={preload}")
    if "signal 4" in reason:
        return problem("opencv", "illegal-instruction", says, _CORETYPE)
    if "libGL" in reason or "libgthread" in reason or "libglib" in reason:
        return problem("opencv", "opencv-libraries", says, "sudo apt install libgl1 libglib2.0-0")
    if "No module named" in reason:
        return problem("opencv", "package-missing", says, f"{sys.executable} -m pip install opencv-python")
    fix = f"{sys.executable} -m pip install --force-reinstall opencv-python"
    return problem("opencv", "opencv-broken", says, fix)
