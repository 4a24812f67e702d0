"""Budgets: which way is taken, that it is the best of those tried, and what `edgegs pack` says and writes."""

from __future__ import annotations

import hashlib
import json
import math
import sys

import numpy as np
import pytest
import scenes

import edgegs.pack.prepare
from edgegs.camera import build_path
from edgegs.cli import main
from edgegs.pack.quality import Judge
from edgegs.pack.reduce import Budget, Reducer
from edgegs.pack.upload import splat_bytes
from edgegs.scene import load, write_ply

SIZE = (64, 48)


def orbit(scene, times):
    path = build_path({"kind": "orbit", "up": scene.up}, *SIZE, 60.0, scene_bounds=scene.bounds())
    return [path.camera_at(time) for time in times]


@pytest.fixture(scope="module")
def cloud():
    return scenes.cloud(1500, seed=2, sh_degree=2)


@pytest.fixture
def reducer(cloud, host):
    said = []

    def say(what):
        said.append(what)
        return lambda done, of: None

    made = Reducer(cloud, host, orbit(cloud, range(0, 20, 2)), orbit(cloud, [1.0, 7.0, 13.0]), say)
    made.said = said
    return made


def test_everything_is_kept_where_there_is_no_budget(reducer, cloud):
    (only,) = reducer.candidates(Budget())
    assert (only.how, only.packed.n_splats, only.packed.is_scored) == ("all", 1500, True)
    assert only.psnr_db > 48.9
    np.testing.assert_array_equal(np.sort(only.packed.rows), np.arange(1500))


def test_both_ways_are_tried_and_the_better_comes_first(reducer, cloud, host):
    found = reducer.candidates(Budget(n=300))
    assert {candidate.how for candidate in found} == {"prune", "merge"}
    assert all(candidate.packed.n_splats == 300 for candidate in found)
    assert found[0].psnr_db >= found[1].psnr_db
    judge = Judge(cloud, orbit(cloud, [1.0, 7.0, 13.0]), host)
    for candidate in found:
        assert judge.psnr_db(candidate.packed) == pytest.approx(candidate.psnr_db)
    assert any("merging" in what for what in reducer.said)


@pytest.mark.parametrize("way", ["prune", "merge"])
def test_one_way_alone_is_taken_where_it_is_asked_for(reducer, way):
    assert [candidate.how for candidate in reducer.candidates(Budget(n=400), way)] == [way]


@pytest.mark.parametrize("way", ["auto", "prune", "merge"])
def test_a_budget_that_all_fit_keeps_all_whatever_the_way(reducer, way):
    assert [candidate.how for candidate in reducer.candidates(Budget(n=5000), way)] == ["all"]


def test_merging_takes_fewer_bands_where_not_one_splat_has_room_for_all(reducer):
    (found,) = reducer.candidates(Budget(n_bytes=splat_bytes(1, "packed")), "merge")
    assert (found.packed.n_splats, found.packed.sh_degree) == (1, 0)


def test_pruning_keeps_the_most_important(reducer):
    (found,) = reducer.candidates(Budget(n=400), "prune")
    least = reducer.scores[found.packed.rows].min()
    left_out = np.setdiff1d(np.arange(1500), found.packed.rows)
    assert reducer.scores[left_out].max() <= least


def test_a_budget_of_bytes_weighs_bands_of_sh_against_splats(reducer):
    n_bytes = 500 * splat_bytes(2, "packed")
    found = reducer.candidates(Budget(n_bytes=n_bytes))
    assert all(candidate.packed.nbytes <= n_bytes for candidate in found)
    pruned = {c.packed.sh_degree: c.packed.n_splats for c in found if c.how == "prune"}
    assert pruned == {d: n_bytes // splat_bytes(d, "packed") for d in range(3)}
    with pytest.raises(ValueError, match="not one splat"):
        reducer.candidates(Budget(n_bytes=10))


def test_the_degree_asked_for_is_never_exceeded(reducer):
    assert {c.packed.sh_degree for c in reducer.candidates(Budget(n=500), sh_degree=1)} == {1}


def test_cameras_stand_where_they_stood_for_the_whole_scene(reducer, cloud):
    for candidate in reducer.candidates(Budget(n=200)):
        np.testing.assert_array_equal(candidate.packed.bounds()[0], cloud.bounds()[0])
        assert candidate.packed.bounds()[1] == cloud.bounds()[1]
    part = cloud.take(np.arange(10))
    assert part.bounds()[1] == cloud.bounds()[1]


# --- the verb ---


@pytest.fixture
def few_views(monkeypatch):
    monkeypatch.setattr(edgegs.pack.prepare, "N_VIEWS", 6)
    monkeypatch.setattr(edgegs.pack.prepare, "VIEW_SIZE", SIZE)


@pytest.fixture
def ply(tmp_path, cloud):
    path = str(tmp_path / "scene.ply")
    write_ply(path, cloud)
    return path


def pack(capsys, *args):
    code = main(["pack", *map(str, args), "--backend", "host"])
    out, err = capsys.readouterr()
    return code, out, err


def test_pack_writes_a_file_that_loads_and_says_what_it_did(kernels, few_views, ply, tmp_path, capsys):
    out = tmp_path / "scene.egs"
    code, text, _ = pack(capsys, ply, "-o", out, "--budget", 500, "--json")
    assert code == 0
    facts = json.loads(text)
    packed = load(out)
    assert (facts["n_splats"], packed.n_splats, facts["source_splats"]) == (500, 500, 1500)
    assert {c["reduced"] for c in facts["candidates"]} == {"prune", "merge"}
    assert facts["psnr_db"] == max(c["psnr_db"] for c in facts["candidates"])
    assert facts["file_bytes"] == out.stat().st_size
    assert packed.is_scored
    code, text, _ = pack(capsys, ply, "-o", out)
    assert code == 0
    assert "1,500 of 1,500 splats" in text
    assert "dB" in text


def test_pack_gives_the_same_bytes_for_the_same_scene(kernels, few_views, ply, tmp_path, capsys):
    digests = set()
    for name in ("a.egs", "b.egs"):
        assert pack(capsys, ply, "-o", tmp_path / name, "--budget", 700)[0] == 0
        digests.add(hashlib.sha256((tmp_path / name).read_bytes()).hexdigest())
    assert len(digests) == 1


def test_several_files_are_one_scene(kernels, few_views, ply, tmp_path, capsys):
    other = str(tmp_path / "other.ply")
    write_ply(other, scenes.cloud(300, seed=7))
    out = tmp_path / "both.egs"
    assert pack(capsys, ply, other, "-o", out)[0] == 0
    assert load(out).n_splats == 1800


def test_pack_scores_by_the_views_of_a_training(kernels, few_views, ply, tmp_path, capsys, cloud):
    views = []
    for i, camera in enumerate(orbit(cloud, range(0, 20, 2))):
        pose = np.linalg.inv(camera.viewmat)
        views.append({
            "id": i, "img_name": f"{i}", "width": 64, "height": 48, "position": pose[:3, 3].tolist(),
            "rotation": pose[:3, :3].tolist(), "fx": camera.K[0, 0], "fy": camera.K[1, 1],
        })  # fmt: skip
    file = tmp_path / "cameras.json"
    file.write_text(json.dumps(views))
    code, text, _ = pack(capsys, ply, "-o", tmp_path / "x.egs", "--views", file, "--budget", 500, "--json")
    assert code == 0
    assert json.loads(text)["views"] == {"scored": 8, "held_out": 2, "from": "of cameras.json"}


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["-o", "{tmp}/no/folder.egs"], 73, "there is no folder"),
        (["-o", "{ply}"], 2, "must end in .egs"),
        (["-o", "{tmp}/x.egs", "--views", "{tmp}/away.json"], 2, "sees any of the scene"),
        (["-o", "{tmp}/x.egs", "--reduce", "merge"], 2, "needs --budget"),
        (["-o", "{tmp}/x.egs", "--distill"], 2, "needs --budget"),
        (["-o", "{tmp}/x.egs", "--budget-mb", "0.001"], 0, ""),
        (["-o", "{tmp}/x.egs", "--views", "{tmp}/none.json"], 66, "no such file"),
        (["-o", "{tmp}/x.egs", "--budget", "0"], 2, "from 1 to"),
    ],
)
def test_what_cannot_work_is_refused_and_writes_nothing(
    kernels, few_views, ply, tmp_path, capsys, args, code, says
):
    away = {"id": 0, "img_name": "0", "width": 64, "height": 48, "position": [1e4, 0, 0], "fx": 60.0, "fy": 60.0}
    views = [{**away, "rotation": [[0, 0, 1], [0, 1, 0], [-1, 0, 0]]}] * 2
    (tmp_path / "away.json").write_text(json.dumps(views))
    before = set(tmp_path.rglob("*"))
    try:
        found, _, err = pack(capsys, ply, *[arg.format(tmp=tmp_path, ply=ply) for arg in args])
    except SystemExit as stop:
        found, err = stop.code, capsys.readouterr().err
    assert found == code, err
    assert says in err
    assert "Traceback" not in err
    if code:
        assert set(tmp_path.rglob("*")) == before


@pytest.mark.skipif("torch" in sys.modules, reason="torch is here")
def test_distilling_without_torch_names_what_to_install(kernels, ply, tmp_path, capsys):
    pytest.importorskip("importlib.util")
    import importlib.util

    if importlib.util.find_spec("torch") and importlib.util.find_spec("gsplat"):
        pytest.skip("torch and gsplat are installed")
    code, _, err = pack(capsys, ply, "-o", tmp_path / "x.egs", "--budget", 500, "--distill")
    assert code == 69
    assert "edgegs[distill]" in err
    assert not (tmp_path / "x.egs").exists()


def test_psnr_of_an_equal_scene_is_no_number_in_json():
    from edgegs.cli.pack import _finite

    assert _finite(math.inf) is None
    assert _finite(40.12345) == 40.123
