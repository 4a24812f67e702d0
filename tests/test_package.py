"""An installed edgegs (not a checkout) has its kernels' sources, configurations and units, and draws."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The checkout's tracked files, installed with pip into a folder of their own."""
    source = tmp_path_factory.mktemp("source")
    listed = subprocess.run(["git", "ls-files"], cwd=str(ROOT), capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("not a git checkout: there is no list of what belongs to it")
    for name in listed.stdout.splitlines():
        if not name.startswith("tests/") and (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(str(ROOT / name), str(source / name))
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--quiet", "--target", str(target), str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target


def run(installed, tmp_path, *arguments):
    environment = dict(os.environ, PYTHONPATH=str(installed), EDGEGS_CACHE=str(tmp_path / "cache"))
    command = [sys.executable, "-m", "edgegs", *arguments]
    return subprocess.run(command, cwd=str(tmp_path), env=environment, capture_output=True, text=True)


def test_everything_it_needs_travels(installed):
    data = installed / "edgegs" / "data"
    for folder in ("cuda", "configs", "systemd"):
        shipped = {p.relative_to(data / folder).as_posix() for p in (data / folder).rglob("*") if p.is_file()}
        own = {p.relative_to(ROOT / folder).as_posix() for p in (ROOT / folder).rglob("*") if p.is_file()}
        assert shipped == own, folder
    assert (data / "jetson" / "boards.yaml").is_file()
    for name in ("page.html", "page.css", "page.js"):
        assert (installed / "edgegs" / "sinks" / name).is_file()


def test_it_draws_with_the_kernels_built_while_installing(installed, tmp_path):
    done = run(installed, tmp_path, "kernels", "list", "--json")
    assert done.returncode == 0, done.stderr
    images = json.loads(done.stdout)["images"]
    host = [image for image in images if image["arch"] == "host"]
    assert len(host) == 1
    assert host[0]["current"]
    assert str(installed) in host[0]["path"]
    assert run(installed, tmp_path, "synth", "dial", "-n", "500", "-o", "dial.ply").returncode == 0
    drawing = ["render", "dial.ply", "-o", "dial.png", "--size", "64x48", "--backend", "host", "--json"]
    done = run(installed, tmp_path, *drawing)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["backend"] == "host"
    assert (tmp_path / "dial.png").stat().st_size > 100
    assert not (tmp_path / "cache").exists(), "nothing had to be built again"
