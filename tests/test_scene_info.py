"""``edgegs info``: what it prints, as text and as JSON, what it advises, and how it fails."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List

import numpy as np
import pytest
import scenes
from scene_files import raw_rows, write_rows

from edgegs.cli import info, main
from edgegs.cli.scene_facts import SAMPLE, _quantiles, advise, describe
from edgegs.errors import DeviceError, SceneError
from edgegs.pack import PackedScene, quantise
from edgegs.pack.egs import write_egs
from edgegs.pack.order import arrange
from edgegs.scene import Scene, load, write_ply

ROOT = Path(__file__).resolve().parent.parent


def spoiled(path: Path) -> Path:
    rows = raw_rows(100, 1)
    rows["x"][3:5] = np.nan
    rows["opacity"][7] = -9
    for i in range(3):
        rows[f"scale_{i}"][8] = 9
    return write_rows(path, rows)


def facts_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> Dict[str, Any]:
    assert main(["info", *arguments, "--json"]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    found: Dict[str, Any] = json.loads(out, parse_constant=pytest.fail)  # no NaN, no Infinity
    return found


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = spoiled(tmp_path / "a.ply")
    facts = facts_of(capsys, str(path))
    assert (facts["n_splats"], facts["n_rows"], facts["sh_degree"]) == (98, 100, 1)
    assert facts["format"] == "ply binary_little_endian"
    assert facts["path"] == str(path)
    assert facts["dropped"] == {"with a non-finite position": 2}
    assert len(facts["warnings"]) == 1
    assert facts["n_giant"] == 1
    assert facts["n_never_drawn"] == 1
    assert facts["device_bytes"] == 98 * 4 * (3 + 3 + 4 + 1 + 12)
    assert facts["packed_bytes"] == 98 * (12 + 16 + 12)
    assert facts["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert facts["vertical_axis"] == "y"
    assert facts["antialiased"] is False
    assert facts["frame"] is None
    assert "cost" not in facts
    assert "pack" not in facts
    assert facts["bounds"]["radius"] > 0
    for axis in range(3):
        assert facts["bounds"]["low"][axis] <= facts["bounds"]["center"][axis] <= facts["bounds"]["high"][axis]
    for name in ("opacity", "scale", "flatness"):
        quantiles = [facts[name][q] for q in ("min", "p5", "median", "p95", "max")]
        assert quantiles == sorted(quantiles)
    assert facts["scale"]["max"] == pytest.approx(np.exp(9))
    assert facts["flatness"]["max"] <= 1


def test_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = spoiled(tmp_path / "a.ply")
    assert main(["info", str(path)]) == 0
    text = capsys.readouterr().out
    for words in (
        f"scene      {path}",
        "98 of 100 rows",
        "left out   2 with a non-finite position",
        "SH degree 1",
        "giants     1 splats with a sigma over the radius",
        "warning    2 of 100 rows left out",
        "advice     1 splats are larger than the whole scene",
    ):
        assert words in text.splitlines() or words in text
    assert "board" not in text


def grid() -> Scene:
    """200 splats on a line: every number of the text is known."""
    means = np.zeros((200, 3))
    means[:, 0] = np.linspace(1, 3, 200)
    ones = np.ones((200, 1))
    scales, quats = ones * [0.01, 0.02, 0.04], ones * [1.0, 0, 0, 0]
    made = scenes.scene(means, scales, quats, ones[:, 0] * 0.5, np.zeros((200, 1, 3)))
    return dataclasses.replace(made, path="grid.ply", format="ply ascii", n_rows=200, file_sha256="ab" * 32)


def test_the_whole_text() -> None:
    facts = describe(grid(), 320, 240)
    facts["advice"] = advise(facts)
    assert info.text(facts).splitlines() == [
        "scene      grid.ply",
        "format     ply ascii, SH degree 0, y vertical",
        "splats     200 of 200 rows",
        "centre     (2, 0, 0), radius 0.9503 (90 % on each axis)",
        "extent     (1, 0, 0) to (3, 0, 0)",
        "opacity    0.5 … 0.5 … median 0.5 … 0.5 … 0.5; 0 under 1/255, never drawn",
        "sigma      0.04 … 0.04 … median 0.04 … 0.04 … 0.04 (largest axis)",
        "giants     0 splats with a sigma over the radius",
        "memory     11.2 kB as float32, 6.4 kB packed; 1.1 MB with all buffers of 320x240 by variant best",
        f"sha256     {'ab' * 32}",
    ]


def test_statistics_of_many_are_sampled_but_the_ends_are_exact() -> None:
    values = np.linspace(0, 1, 3 * SAMPLE + 1, dtype=np.float32)
    values[1], values[2] = -1, 2
    found = _quantiles(values)
    assert (found["min"], found["max"]) == (-1, 2)
    assert found["median"] == pytest.approx(0.5, abs=1e-4)
    assert found["p95"] == pytest.approx(0.95, abs=1e-4)


# --- advice ---


def told(scene: Any, **more: Any) -> List[str]:
    return advise({**describe(scene), **more})


def test_a_scene_without_faults_gets_no_advice() -> None:
    assert told(grid()) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"opacities": [0.001] * 10 + [0.5] * 190}, r"5 % of the splats are never drawn .* X.egs --budget 190`"),
        ({"scales": [[2, 2, 2]] * 1 + [[0.01, 0.01, 0.01]] * 199}, r"1 splats are larger than the whole scene"),
        ({"scales": [[0.2, 0.2, 0.2]] * 200}, r"half of the splats have a sigma over a tenth"),
        ({"means": [[0, 0, 40]] + [[x / 199, 0, 0] for x in range(199)]}, r"the farthest splat is 8\d radii from"),
        ({"antialiased": True}, r"trained with antialiasing"),
        ({"format": "spz v3"}, r"SPZ files do not say how their axes point.*--frame rdf"),
    ],
)  # fmt: skip
def test_each_advice(change: Dict[str, Any], words: str) -> None:
    change = {name: np.array(value, np.float32) if isinstance(value, list) else value for name, value in change.items()}
    found = told(dataclasses.replace(grid(), **change))
    assert len(found) == 1
    assert re.search(words, found[0]), found[0]


def test_axes_that_were_chosen_are_no_guess() -> None:
    chosen = describe(dataclasses.replace(grid(), format="spz v3"), frame="rdf")
    assert advise(chosen) == []


PACK = "`edgegs pack grid.ply -o X.egs"
COST = {
    "title": "Jetson Nano",
    "memory": {"fits": True, "fits_while_loading": True, "max_splats": 200},
    "target_fps": 25.0,
    "predicted_fps": 30.0,
    "predicted_max_splats": 200,
}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, []),
        ({"predicted_fps": 9.0, "predicted_max_splats": 137}, [
            f"under 25 FPS on Jetson Nano (predicted): {PACK} --budget 130` is predicted to reach it"]),
        ({"predicted_fps": 9.0, "predicted_max_splats": 9}, [
            "under 25 FPS on Jetson Nano (predicted), whatever the number of splats: make the picture smaller"]),
        ({"memory": {"fits": False, "fits_while_loading": False, "max_splats": 123}}, [
            f"too large for the memory of Jetson Nano: {PACK} --budget 123` fits"]),
        ({"memory": {"fits": False, "fits_while_loading": False, "max_splats": 0}}, [
            "too large for the memory of Jetson Nano: the picture alone does not fit; make it smaller"]),
        ({"memory": {"fits": True, "fits_while_loading": False, "max_splats": 200}}, [
            f"fits Jetson Nano, but not while it is loaded there: {PACK}`, on a larger machine"]),
    ],
)  # fmt: skip
def test_advice_about_a_board(change: Dict[str, Any], words: List[str]) -> None:
    assert told(grid(), cost={**COST, **change}) == words


def test_advice_without_a_prediction() -> None:
    assert told(grid(), cost={"title": "Jetson Nano", "memory": COST["memory"]}) == []


# --- boards ---


def test_a_board(kernels: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "cloud.ply")
    write_ply(path, scenes.cloud(500))
    facts = facts_of(capsys, path, "--board", "nano", "--size", "160x120", "--threads", "1")
    cost = facts["cost"]
    assert (cost["board"], cost["arch"], cost["variant"]) == ("nano", "sm_53", "best")
    assert (cost["width"], cost["height"]) == (160, 120)
    assert cost["memory"]["fits"] is True
    assert cost["counts"]["n_visible"] > 100
    assert set(cost["predicted_ms"]) == {"project", "duplicate", "sort", "ranges", "rasterize"}
    assert cost["predicted_fps"] > 0
    assert cost["calibration"]["board"] == "nano"
    assert facts["renderer"]["width"] == 160
    assert main(["info", path, "--board", "nano", "--size", "160x120"]) == 0
    text = capsys.readouterr().out
    assert "\nboard      Jetson Nano (sm_53), 160x120, variant best\n           fits: " in text
    lines = text.splitlines()
    timed = [line for line in lines if " FPS" in line or re.search(r"\d ms\b", line)]
    assert len(timed) == 2
    assert timed[0].startswith("predicted  ")
    assert timed[1].startswith("           a model, calibrated on 64 ms published for a Jetson Nano")
    first, last = lines.index(timed[0]), lines.index(timed[1])
    assert all(line.startswith("           ") for line in lines[first + 1 : last + 1]), "it belongs to the predicted"
    assert "of the GPU alone" in text
    assert main(["info", path, "--board", "orin-nano", "--size", "160x120"]) == 0
    assert "; another architecture, so a rougher guess" in capsys.readouterr().out


def test_memory_only_where_the_kernels_cannot_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def create(*_: object, **__: object) -> None:
        raise DeviceError("no C++ compiler")

    monkeypatch.setattr("edgegs.backends.create", create)
    path = str(tmp_path / "cloud.ply")
    write_ply(path, scenes.cloud(50))
    cost = facts_of(capsys, path, "--board", "nano")["cost"]
    assert cost["not_predicted"] == "no C++ compiler"
    assert cost["memory"]["fits"] is True
    assert not any(name.startswith("predicted") for name in cost)
    assert main(["info", path, "--board", "nano"]) == 0
    text = capsys.readouterr().out
    assert "predicted  memory only: no C++ compiler" in text
    assert "FPS" not in text


def test_an_unknown_board_is_refused_before_the_scene(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(tmp_path / "missing.ply"), "--board", "nanno"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("edgegs: error: no board 'nanno'; did you mean 'nano'? (there are: nano, ")


# --- packed scenes ---


def packed(path: Path, scored: bool) -> PackedScene:
    scene = scenes.cloud(6000, sh_degree=1)
    scores = np.linspace(1, 2, 6000) if scored else None
    order, levels = arrange(scene.means, scores)
    write_egs(str(path), quantise(scene, order, levels if scored else None), {"views": 3})
    found = load(str(path))
    assert isinstance(found, PackedScene)
    return found


def test_a_packed_scene(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.egs"
    scene = packed(path, scored=True)
    facts = facts_of(capsys, str(path))
    pack = facts["pack"]
    assert pack["is_scored"] is True
    assert pack["levels"] == list(scene.levels)
    assert pack["levels"][-1] == 6000
    assert pack["n_chunks"] == 24
    assert pack["checksums"] == "verified"
    assert pack["source_format"] == "test"
    assert pack["about"] == {"views": 3}
    assert pack["sections"]["means"] == 6000 * 12
    assert sum(pack["sections"].values()) < path.stat().st_size
    assert facts["packed_bytes"] == scene.nbytes
    assert facts["device_bytes"] == 6000 * 4 * (11 + 12)
    assert facts["bounds"]["radius"] == pytest.approx(scenes.cloud(6000, sh_degree=1).bounds()[1])
    assert main(["info", str(path)]) == 0
    text = capsys.readouterr().out
    levels = f"by importance, {len(scene.levels)} levels: 256 … 6,000"
    assert f"pack       of test; {levels}; 24 chunks; checksums verified" in text
    assert "sections   means 72.0 kB, halves 96.0 kB" in text


def test_a_pack_without_scores_says_what_it_cannot(tmp_path: Path) -> None:
    facts = describe(packed(tmp_path / "a.egs", scored=False))
    assert facts["pack"]["is_scored"] is False
    assert any("packed without scores" in words for words in advise(facts))
    assert "by place alone, without scores" in info.text({**facts, "advice": []})


def test_a_budget_of_a_pack_is_a_setting(tmp_path: Path) -> None:
    facts = describe(packed(tmp_path / "a.egs", scored=True))
    found = advise({**facts, "cost": {**COST, "predicted_fps": 9.0, "predicted_max_splats": 4321}})
    assert "under 25 FPS on Jetson Nano (predicted): `scene.max_gaussians: 4300` is predicted to reach it" in found


def test_a_damaged_pack_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.egs"
    packed(path, scored=True)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))
    assert main(["info", str(path)]) == SceneError.exit_code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.match(f"edgegs: error: {re.escape(str(path))}: damaged: checksum of ", captured.err)


# --- files ---


@pytest.mark.parametrize(
    ("name", "n_splats", "sh_degree"),
    [
        ("ply/leica-sofort-top8192.ply", 8192, 3),
        ("compressed_ply/playbot_lod3_31k_sh2.compressed.ply", 31_000, 2),
        ("splat/plant_plant.splat", 113_648, 0),
        ("spz/leica-sofort-top8192.spz", 8192, 3),
        ("sog/playbot_lod4.sog", 8406, 2),
    ],
)  # fmt: skip
def test_real_scenes(
    shared_data: Path, capsys: pytest.CaptureFixture[str], name: str, n_splats: int, sh_degree: int
) -> None:
    if name.endswith(".sog"):
        pytest.importorskip("PIL", reason="Pillow is not installed: SOG is not tested")
    facts = facts_of(capsys, str(shared_data / name))
    assert (facts["n_splats"], facts["sh_degree"], facts["warnings"]) == (n_splats, sh_degree, [])
    assert any("axes" in words for words in facts["advice"]) == name.endswith(".spz")
    turned = facts_of(capsys, str(shared_data / name), "--frame", "rub")
    assert turned["frame"] == "rub"
    sign = 1 if name.endswith(".spz") else -1  # an SPZ is turned anyway
    assert turned["bounds"]["center"][1] == pytest.approx(sign * facts["bounds"]["center"][1], abs=1e-4)


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
