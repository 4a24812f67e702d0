"""A minimal Debian in a folder, made once a session, and commands run in it (systemd-nspawn): for tests that install
edgegs for real, or boot it. A test that cannot have one is skipped, with the reason."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import List, Sequence

import pytest

SUITE = "bookworm"
#: What a desktop or a board has before edgegs comes: systemd, Python, a C++ compiler, libraries of OpenCV's wheel.
PACKAGES = (
    *("systemd", "systemd-sysv", "dbus", "udev", "procps", "ca-certificates"),
    *("python3", "python3-venv", "g++", "libgl1", "libglib2.0-0"),
)
#: The Python of that Debian.
PYTHON = "3.11"
CHECKOUT = Path(__file__).resolve().parent.parent
#: What the installer needs of a checkout.
PARTS = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "edgegs", "cuda", "configs", "systemd", "jetson")
MAKE_TIMEOUT_S = 300.0


@functools.lru_cache(maxsize=None)
def _made() -> Path:
    """The pristine root of this session; copies of it are used."""
    for program, package in (("mmdebstrap", "mmdebstrap"), ("systemd-nspawn", "systemd-container")):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed (apt install {package}): no Debian in a folder")
    if os.geteuid() != 0:
        pytest.skip("a Debian in a folder needs root")
    folder = Path(tempfile.mkdtemp(prefix="edgegs-rootfs-"))
    _cleanup.append(folder)
    root = folder / "root"
    command = ["mmdebstrap", "--quiet", "--variant=minbase", "--include=" + ",".join(PACKAGES), SUITE, str(root)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=MAKE_TIMEOUT_S, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        pytest.skip(f"no Debian in a folder within {MAKE_TIMEOUT_S:g} s: a slow network?")
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no word why"])[-1]
        pytest.skip(f"mmdebstrap cannot make a Debian in a folder (no network?): {last}")
    probe = subprocess.run(nspawn(root, "true"), capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    if probe.returncode != 0:
        pytest.skip(f"systemd-nspawn does not work here: {probe.stderr.strip()}")
    return root


_cleanup: List[Path] = []


@functools.lru_cache(maxsize=None)
def wheels() -> Path:
    """A folder with what `install.sh --offline-wheels` needs in that Debian, as a person would fill it."""
    folder = Path(tempfile.mkdtemp(prefix="edgegs-wheels-"))
    _cleanup.append(folder)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(folder), "--only-binary=:all:"]
    command += ["--python-version", PYTHON, "--implementation", "cp", "setuptools>=64", "wheel", *_requirements()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=MAKE_TIMEOUT_S, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        pytest.skip("pip cannot download the wheels (no network?): " + done.stderr.strip()[-300:])
    return folder


def _requirements() -> List[str]:
    """The dependencies as pyproject.toml states them."""
    words = (CHECKOUT / "pyproject.toml").read_text(encoding="utf-8")
    block = words.split("\ndependencies = [", 1)[1].split("]", 1)[0]
    return [line.strip().strip(",").strip('"') for line in block.strip().splitlines()]


def fresh(folder: Path) -> Path:
    """A root of one's own in ``folder``, with the checkout in /src and the wheels in /wheels; or a skip."""
    made, offline = _made(), wheels()
    root = folder / "rootfs"
    subprocess.run(["cp", "-a", "--reflink=auto", str(made), str(root)], check=True, stdin=subprocess.DEVNULL)
    shutil.copytree(str(offline), str(root / "wheels"))
    source = root / "src"
    source.mkdir()
    ignore = shutil.ignore_patterns("__pycache__", "ledger")
    for name in PARTS:
        if (CHECKOUT / name).is_dir():
            shutil.copytree(str(CHECKOUT / name), str(source / name), ignore=ignore)
        else:
            shutil.copy(str(CHECKOUT / name), str(source / name))
    return root


def nspawn(root: Path, *command: str) -> List[str]:
    """The command line that runs ``command`` in the root, without booting it; it dies with whoever started it."""
    options = ["--quiet", "--register=no", "--keep-unit", "--pipe", "--as-pid2", "--setenv=LANG=C.UTF-8"]
    return ["systemd-nspawn", "-D", str(root), *options, *command]


def run(root: Path, *command: str, timeout_s: float = 300.0) -> subprocess.CompletedProcess[str]:
    """Run a command in the root; its stdout and stderr, and nspawn's own words, are one."""
    return subprocess.run(
        nspawn(root, *command),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
    )


@atexit.register
def remove_all(folders: Sequence[Path] = ()) -> None:
    """Delete what was made, and ``folders``; done at the end of the session, too."""
    for folder in (*_cleanup, *folders):
        shutil.rmtree(str(folder), ignore_errors=True)
    _cleanup.clear()
    _made.cache_clear()
    wheels.cache_clear()
