"""The unit, its drop-ins and the first configuration, as systemd and edgegs see them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from install_support import CHECKOUT


@pytest.fixture
def units(tmp_path):
    """The unit, with a program that is there, and a function that adds drop-ins."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed (apt install systemd)")
    words = (CHECKOUT / "systemd/edgegs.service").read_text().replace("/opt/edgegs/venv/bin/edgegs", "/bin/true")
    (tmp_path / "edgegs.service").write_text(words)
    folder = tmp_path / "edgegs.service.d"
    folder.mkdir()

    def add(*names: str) -> Path:
        for name in names:
            shutil.copy(str(CHECKOUT / "systemd" / name), str(folder / name))
        return tmp_path / "edgegs.service"

    return add


@pytest.mark.parametrize("names", [[], ["tegra.conf", "csi.conf"], ["kiosk.conf"], ["old-systemd.conf"]])
def test_systemd_has_nothing_to_say_of_the_unit(units, names):
    done = subprocess.run(["systemd-analyze", "verify", str(units(*names))], capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize(("names", "most"), [([], 1.6), (["old-systemd.conf"], 1.9)])
def test_the_unit_is_hardened(units, names, most):
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(units(*names))]
    done = subprocess.run(command, capture_output=True, text=True)
    if "--offline" in done.stderr:
        pytest.skip("this systemd-analyze cannot judge a file (needs systemd 250)")
    score = float(re.search(r"exposure level for \S+: ([0-9.]+)", done.stdout).group(1))
    assert score <= most, done.stdout


def test_comments_in_units_start_their_lines():
    for path in (CHECKOUT / "systemd").iterdir():
        if path.suffix in (".service", ".conf"):
            for line in path.read_text().splitlines():
                assert line.startswith("#") or "#" not in line, f"{path.name}: {line}"


def test_the_first_configuration_is_one(tmp_path):
    from edgegs.config import load_config

    config = load_config(CHECKOUT / "jetson" / "edgegs.yaml")
    assert str(config.scene.path) == "/var/lib/edgegs/scenes/room.ply"
