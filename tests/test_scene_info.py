"""``edgegs info``: what it prints, as text and as JSON, and how it fails."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scene_files import raw_rows, write_rows

from edgegs.cli import main

ROOT = Path(__file__).resolve().parent.parent


def spoiled(path: Path) -> Path:
    rows = raw_rows(100, 1)
    rows["x"][3:5] = np.nan
    rows["opacity"][7] = -9
    for i in range(3):
        rows[f"scale_{i}"][8] = 9
    return write_rows(path, rows)


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = spoiled(tmp_path / "a.ply")
    assert main(["info", str(path), "--json"]) == 0
    captured = capsys.readouterr()
    facts = json.loads(captured.out, parse_constant=pytest.fail)  # no NaN, no Infinity
    assert captured.out.count("\n") == 1
    assert (facts["n_splats"], facts["n_rows"], facts["sh_degree"]) == (98, 100, 1)
    assert facts["format"] == "ply binary_little_endian"
    assert facts["path"] == str(path)
    assert facts["dropped"] == {"with a non-finite position": 2}
    assert len(facts["warnings"]) == 1
    assert facts["n_giant"] == 1
    assert facts["n_never_drawn"] == 1
    assert facts["device_bytes"] == 98 * 4 * (3 + 3 + 4 + 1 + 12)
    assert facts["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert facts["vertical_axis"] == "y"
    assert facts["bounds"]["radius"] > 0
    for axis in range(3):
        assert facts["bounds"]["low"][axis] <= facts["bounds"]["center"][axis] <= facts["bounds"]["high"][axis]
    for name in ("opacity", "scale"):
        quantiles = [facts[name][q] for q in ("min", "p5", "median", "p95", "max")]
        assert quantiles == sorted(quantiles)
    assert facts["scale"]["max"] == pytest.approx(np.exp(9))


def test_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = spoiled(tmp_path / "a.ply")
    assert main(["info", str(path)]) == 0
    text = capsys.readouterr().out
    for words in (
        str(path),
        "98 of 100 rows",
        "2 with a non-finite position",
        "SH degree 1",
        "1 splats with a sigma over the radius",
        "warning  2 of 100 rows left out",
    ):
        assert words in text


def test_real_scene(shared_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(shared_data / "ply" / "leica-sofort-top8192.ply"), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["n_splats"], facts["sh_degree"], facts["warnings"]) == (8192, 3, [])


def test_failures_end_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "cut.ply").write_bytes(write_rows(tmp_path / "a.ply", raw_rows(9)).read_bytes()[:-1])
    for path, code, words in (
        (tmp_path / "cut.ply", 65, "holds 8 of the 9 splats"),
        (tmp_path / "missing.ply", 66, "no such file"),
        (tmp_path, 66, "is a folder"),
    ):
        command = [sys.executable, "-m", "edgegs", "info", str(path), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60, check=False)
        assert done.returncode == code
        assert done.stdout == ""
        assert done.stderr.splitlines() == [line for line in done.stderr.splitlines() if words in line]
        assert done.stderr.startswith(f"edgegs: error: {path}: ")
