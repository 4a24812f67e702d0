"""A real X server without a monitor, and pictures of its screen."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Optional

import numpy as np
import pytest

TOOLS = {"Xvfb": "xvfb", "xdotool": "xdotool", "xrandr": "x11-xserver-utils"}
WAIT = 15.0  # seconds until a test that would hang fails instead


def need_tools() -> None:
    for tool, package in TOOLS.items():
        if shutil.which(tool) is None:
            pytest.skip(f"no {tool}: a display is not tested (apt install {package})")


class Xvfb:
    """One X server on a free display number, or on the one given."""

    def __init__(self, size: str = "320x240", display: Optional[str] = None, *more: str) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="edgegs-xvfb-"))
        read, write = os.pipe()
        # without -noreset the server would end, and reset itself, with its last client
        command = ["Xvfb", *([display] if display else ["-displayfd", str(write)])]
        command += ["-screen", "0", size + "x24", "-nolisten", "tcp", "-noreset"]
        command += ["-fbdir", str(self._folder), *more]
        self.process = subprocess.Popen(
            command,
            pass_fds=(write,),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(write)
        try:
            if display is None:
                display = ":" + self._number(read)
        except BaseException:
            self.kill()
            raise
        finally:
            os.close(read)
        self.display = display

    @staticmethod
    def _number(read: int) -> str:
        told = b""
        while not told.endswith(b"\n"):  # it comes in two pieces, and the server ends when nobody takes the second
            ready, _, _ = select.select([read], [], [], WAIT)
            piece = os.read(read, 16) if ready else b""
            assert piece, "Xvfb does not start"
            told += piece
        return told.decode().strip()

    def __enter__(self) -> Xvfb:
        return self

    def __exit__(self, *_) -> None:
        self.stop()

    def stop(self) -> None:
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(WAIT)
        self.kill()

    def kill(self) -> None:
        """With -9: the socket file stays behind."""
        self.process.kill()
        self.process.wait(WAIT)
        shutil.rmtree(self._folder, ignore_errors=True)

    def run(self, *command: str) -> bytes:
        """What an X tool prints."""
        done = subprocess.run(
            command,
            env=dict(os.environ, DISPLAY=self.display),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=WAIT,
        )
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout

    def screenshot(self) -> np.ndarray:
        """The whole screen with its cursor, (height, width, 3) uint8 BGR, out of the server's memory."""
        dump = (self._folder / "Xvfb_screen0").read_bytes()
        header = np.frombuffer(dump, ">u4", 25)
        length, width, height, bits, row, colours = (int(header[i]) for i in (0, 4, 5, 11, 12, 19))
        assert bits == 32
        pixels = np.frombuffer(dump, np.uint8, row * height, length + 12 * colours)
        return pixels.reshape(height, row // 4, 4)[:, :width, :3]


def eventually(check, what: str = "") -> None:
    """Wait until ``check()`` is true."""
    until = time.monotonic() + WAIT
    while not check():
        assert time.monotonic() < until, what or "it does not happen"
        time.sleep(0.02)
