"""Runs a piece of Python with the stand-in for v4l2loopback (see v4l2_stand_in.c) preloaded."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

WIDTH, HEIGHT = 64, 48
# The smooth picture comes back with 38 dB or more. A swapped U and V, full instead of limited range, or
# the next frame gives less than 27 dB.
PSNR_DB = 36.0
HERE = Path(__file__).resolve().parent
#: Before the piece under test: sysfs and the other roots replaced, and a moving picture whose three channels differ.
PRELUDE = """
import json, os, sys, threading, time
from pathlib import Path
import cv2, numpy as np
from edgegs.frame import Frame
from edgegs.sinks import SinkRunner, create_sink, v4l2_api, v4l2_devices
ROOT = Path(os.environ["V4L2_STAND_IN"])
v4l2_devices.SYS_CLASS = str(ROOT / "sys")
v4l2_devices.DEV = "/dev"
v4l2_devices.MODULE = str(ROOT / "module")
v4l2_devices.TEGRA_RELEASE = str(ROOT / "nv_tegra_release")
v4l2_devices.ARGUS_SOCKET = str(ROOT / "argus_socket")
cv2.setNumThreads(1)

def frame(index=0, width=64, height=48):
    y, x = np.mgrid[:height, :width].astype(np.float64)
    image = np.empty((height, width, 3), np.uint8)
    image[..., 0] = 255 * x / width
    image[..., 1] = 255 * y / height
    image[..., 2] = 127 + 120 * np.sin((x + 9 * index) * 2 * np.pi / width)
    return Frame(image, index, index * 33_000_000, 1.0)

def attempt(function, *arguments):
    try:
        return function(*arguments)
    except Exception as error:
        return [type(error).__name__, str(error)]

def wait_for(condition, what, seconds=15):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, what
        time.sleep(0.005)

def plug(number, **settings):
    (ROOT / "sys" / f"video{number}").mkdir(parents=True, exist_ok=True)
    (ROOT / "sys" / f"video{number}" / "name").write_text(settings.get("card", "") + "\\n")
    new = ROOT / "new"
    new.write_text("".join(f"{key}={value}\\n" for key, value in settings.items()))
    os.rename(str(new), str(ROOT / "dev" / f"video{number}"))

def unplug(number):
    os.unlink(str(ROOT / "dev" / f"video{number}"))
    (ROOT / "sys" / f"video{number}" / "name").unlink()
    (ROOT / "sys" / f"video{number}").rmdir()

def fault(number, **settings):
    new = ROOT / "new"
    new.write_text("".join(f"{key}={value}\\n" for key, value in settings.items()))
    os.rename(str(new), str(ROOT / "faults" / f"video{number}"))

def tell(value):
    sys.stdout.write(json.dumps(value) + "\\n")
"""


def picture(index=0, width=WIDTH, height=HEIGHT):
    """As PRELUDE's frame."""
    y, x = np.mgrid[:height, :width].astype(np.float64)
    image = np.empty((height, width, 3), np.uint8)
    image[..., 0] = 255 * x / width
    image[..., 1] = 255 * y / height
    image[..., 2] = 127 + 120 * np.sin((x + 9 * index) * 2 * np.pi / width)
    return image


def decode(data, pixel_format, width=WIDTH, height=HEIGHT):
    planes = np.frombuffer(data, np.uint8)
    if pixel_format == "i420":
        return cv2.cvtColor(planes.reshape(height * 3 // 2, width), cv2.COLOR_YUV2BGR_I420)
    return cv2.cvtColor(planes.reshape(height, width, 2), cv2.COLOR_YUV2BGR_YUY2)


def build(folder):
    """Compile the stand-in; skips where that cannot be done."""
    compiler = c_compiler()
    library = folder / "v4l2_stand_in.so"
    command = [compiler, "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", str(library)]
    done = subprocess.run(
        [*command, str(HERE / "v4l2_stand_in.c"), "-ldl", "-lpthread"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return library


def c_compiler():
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler (apt install gcc): v4l2:// is not tested")
    if not sys.platform.startswith("linux"):
        pytest.skip("v4l2:// exists on Linux only")
    probe = subprocess.run(
        [compiler, "-fsyntax-only", "-x", "c", "-"],
        input="#include <linux/videodev2.h>\n",
        capture_output=True,
        text=True,
        timeout=60,
    )
    if probe.returncode != 0:
        pytest.skip("no <linux/videodev2.h> (apt install linux-libc-dev): v4l2:// is not tested")
    return compiler


class StandIn:
    """A folder full of made-up video devices, and the processes that see them under /dev."""

    def __init__(self, folder, library):
        self.folder, self._library = folder, library
        for name in ("dev", "sys", "faults", "frames"):
            (folder / name).mkdir(parents=True)

    def plug(self, number=10, driver="v4l2 loopback", card="edgegs", **settings):
        """A device appears: a loopback, unless told otherwise."""
        name = self.folder / "sys" / f"video{number}" / "name"
        name.parent.mkdir(parents=True, exist_ok=True)
        name.write_text(card + "\n")
        lines = dict(settings, driver=driver, card=card)
        self.device(number).write_text("".join(f"{key}={value}\n" for key, value in lines.items()))

    def fault(self, number=10, **settings):
        text = "".join(f"{key}={value}\n" for key, value in settings.items())
        (self.folder / "faults" / f"video{number}").write_text(text)

    def device(self, number=10):
        return self.folder / "dev" / f"video{number}"

    def run(self, code, timeout=30):
        """Run ``code`` after PRELUDE; what it ``tell``s."""
        environment = dict(os.environ, LD_PRELOAD=str(self._library), V4L2_STAND_IN=str(self.folder))
        environment["PYTHONPATH"] = os.pathsep.join([str(HERE.parent), environment.get("PYTHONPATH", "")])
        done = subprocess.run(
            [sys.executable, "-c", PRELUDE + code],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=environment,
            timeout=timeout,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    def log(self):
        """Every call, in order, errors by name."""
        text = (self.folder / "log").read_text()
        named = re.sub(r"errno (\d+)", lambda match: errno.errorcode.get(int(match.group(1)), "0"), text)
        return named.splitlines()

    def frame(self, number=10):
        """Bytes of the last frame that the device got."""
        return (self.folder / "frames" / f"video{number}").read_bytes()
