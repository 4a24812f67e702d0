"""Scene: its bounds, its budget, its digest; and the writer's round trip."""

from __future__ import annotations

import os
import stat
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Set

import numpy as np
import pytest
from plyfile import PlyData
from scene_files import raw_rows, write_rows

from edgegs.errors import AccessError, OutputError
from edgegs.scene import Scene, load, write_ply
from edgegs.scene.synth import dial, room, with_sh_degree

ARRAYS = ("means", "scales", "quats", "opacities", "sh")


def scene_of(means: np.ndarray, sigma: float = 0.01, degree: int = 0) -> Scene:
    n = len(means)
    return Scene(
        np.ascontiguousarray(means, np.float32),
        np.full((n, 3), sigma, np.float32),
        np.tile(np.float32([1, 0, 0, 0]), (n, 1)),
        np.full(n, 0.5, np.float32),
        np.zeros((n, (degree + 1) ** 2, 3), np.float32),
        degree,
        "here",
        "made",
        n,
    )


def test_scene_is_frozen_and_checked() -> None:
    scene = scene_of(np.zeros((4, 3)))
    with pytest.raises(FrozenInstanceError):
        scene.sh_degree = 1  # type: ignore[misc]
    for name, wrong in (
        ("means", np.zeros((4, 3))),
        ("scales", np.zeros((3, 3), np.float32)),
        ("quats", np.zeros((4, 3), np.float32)),
        ("opacities", np.zeros((4, 1), np.float32)),
        ("sh", np.zeros((4, 3), np.float32)),
        ("means", np.zeros((3, 4), np.float32).T),
    ):
        with pytest.raises(ValueError, match=f"Scene.{name} must be C-contiguous float32"):
            replace(scene, **{name: wrong})
    assert (scene.n_splats, scene.nbytes) == (4, 4 * 4 * (3 + 3 + 4 + 1 + 3))


def test_bounds_are_robust() -> None:
    rng = np.random.default_rng(0)
    means = rng.uniform(-1, 1, (5000, 3)) + np.array([10, 0, -3])
    center, radius = scene_of(means).bounds()
    assert np.abs(center - [10, 0, -3]).max() < 0.05
    assert 1.0 < radius < np.sqrt(3)
    means[:50] = 1e6 * rng.standard_normal((50, 3))  # one in a hundred, very far
    far = scene_of(means)
    assert np.abs(far.bounds()[0] - center).max() < 0.05
    assert far.bounds()[1] < 1.1 * radius
    assert far.raw_bounds()[1].max() > 1e6
    scales = far.scales.copy()
    scales[7] = 1e4
    giant = replace(far, scales=scales)
    assert giant.bounds()[1] == far.bounds()[1]
    assert np.flatnonzero(giant.giants()).tolist() == [7]
    assert not far.giants().any()


@pytest.mark.parametrize("means", [[[1, 2, 3]], [[1, 2, 3]] * 9, [[0, 0, 0], [4, 0, 0]]])
def test_bounds_of_very_little(means: list) -> None:
    center, radius = scene_of(np.array(means, float)).bounds()
    assert np.abs(center - np.mean(means, axis=0)).max() < 1e-6
    assert radius >= 0.03 * 0.999


def test_bounds_of_many_are_sampled_alike() -> None:
    means = np.random.default_rng(1).standard_normal((600_000, 3))
    few, many = scene_of(means[:50_000]).bounds(), scene_of(means).bounds()
    assert abs(few[1] / many[1] - 1) < 0.02


def test_sha256_of_a_made_scene_covers_every_array() -> None:
    scene = scene_of(np.zeros((2, 3)), degree=1)
    digests: Set[str] = {scene.sha256}
    for name in ARRAYS:
        array = getattr(scene, name).copy()
        array.flat[0] += 1
        digests.add(replace(scene, **{name: array}).sha256)
    assert len(digests) == 6
    assert replace(scene, path="elsewhere").sha256 == scene.sha256


def chosen(rows: np.ndarray, k: int) -> np.ndarray:
    """The specification of max_gaussians, by one sort over all rows."""
    opacity = (1 / (1 + np.exp(-rows["opacity"]))).astype(np.float32)
    scale = np.exp(np.max([rows[f"scale_{i}"] for i in range(3)], axis=0)).astype(np.float64)
    return np.sort(np.argsort(-(opacity * scale * scale), kind="stable")[:k])


@pytest.mark.parametrize("k", [1, 999, 30_000, 140_000, 150_000, 200_000])
def test_budget_keeps_the_largest_in_file_order(tmp_path: Path, k: int) -> None:
    rows = raw_rows(150_000)
    rows["x"] = np.arange(len(rows))
    # Few distinct values, so that many scores are equal and the first of equals must win.
    rows["opacity"] = np.round(rows["opacity"])
    for i in range(3):
        rows[f"scale_{i}"] = np.round(rows[f"scale_{i}"])
    scene = load(write_rows(tmp_path / "a.ply", rows), max_gaussians=k)
    assert scene.n_splats == min(k, len(rows))
    np.testing.assert_array_equal(scene.means[:, 0], chosen(rows, k))
    left_out = len(rows) - scene.n_splats
    assert scene.warnings == (
        [f"max_gaussians {k:,}: left out {left_out:,} splats, those with the least opacity · (largest scale)²"]
        if left_out
        else []
    )
    assert scene.n_rows == 150_000


def test_budget_counts_only_usable_rows(tmp_path: Path) -> None:
    rows = raw_rows(10)
    rows["x"][:4] = np.nan
    assert load(write_rows(tmp_path / "a.ply", rows), max_gaussians=6).warnings[0].startswith("4 of 10 rows left out")
    assert load(tmp_path / "a.ply", max_gaussians=6).n_splats == 6
    assert load(tmp_path / "a.ply", max_gaussians=5).n_splats == 5
    with pytest.raises(ValueError, match="at least 1"):
        load(tmp_path / "a.ply", max_gaussians=0)


@pytest.mark.parametrize("degree", range(4))
def test_write_and_load(tmp_path: Path, degree: int) -> None:
    scene = with_sh_degree(dial(40_000, 3), degree)
    path = tmp_path / "out.ply"
    write_ply(str(path), scene, ["made by a test"])
    back = load(path)
    assert (back.sh_degree, back.n_splats, back.warnings) == (degree, 40_000, [])
    np.testing.assert_array_equal(back.means, scene.means)
    np.testing.assert_array_equal(back.sh, scene.sh)
    # A logarithm and its inverse in float32: a few units in the last place of ln sigma.
    np.testing.assert_allclose(back.scales, scene.scales, rtol=2e-6)
    np.testing.assert_allclose(back.opacities, scene.opacities, rtol=1e-6)
    np.testing.assert_allclose(back.quats, scene.quats, atol=1e-6)
    assert os.listdir(tmp_path) == ["out.ply"]


def test_the_file_is_inrias(tmp_path: Path) -> None:
    scene = dial(5, 1)
    path = tmp_path / "out.ply"
    write_ply(str(path), scene)
    vertex = PlyData.read(str(path))["vertex"]
    names = ["x", "y", "z", "nx", "ny", "nz", "f_dc_0", "f_dc_1", "f_dc_2", *(f"f_rest_{i}" for i in range(45))]
    names += ["opacity", "scale_0", "scale_1", "scale_2", "rot_0", "rot_1", "rot_2", "rot_3"]
    assert [p.name for p in vertex.properties] == names
    assert len(names) == 62
    assert {p.val_dtype for p in vertex.properties} == {"f4"}
    assert not any(vertex[name].any() for name in ("nx", "ny", "nz"))
    assert vertex["f_rest_17"][4] == scene.sh[4, 1 + 2, 1]  # 17 = channel 1 · 15 + 2
    assert path.stat().st_size < 5 * 248 + 2000


def test_extremes_survive_the_round_trip(tmp_path: Path) -> None:
    rows = raw_rows(2)
    rows["opacity"] = [np.inf, -np.inf]
    rows["scale_0"] = -np.inf
    first = load(write_rows(tmp_path / "a.ply", rows))
    write_ply(str(tmp_path / "b.ply"), first)
    again = load(tmp_path / "b.ply")
    np.testing.assert_allclose(again.opacities, first.opacities, rtol=1e-5)
    np.testing.assert_allclose(again.scales, first.scales, rtol=2e-6)


def test_up_survives_the_round_trip(tmp_path: Path) -> None:
    write_ply(str(tmp_path / "a.ply"), room(20, preset="h200"))
    write_ply(str(tmp_path / "b.ply"), dial(20))
    assert load(tmp_path / "a.ply").up == (0, 0, 1)
    assert load(tmp_path / "b.ply").up == (0, -1, 0)


def test_writing_replaces_whole_files_only(tmp_path: Path) -> None:
    path = tmp_path / "out.ply"
    path.write_text("old")
    link = tmp_path / "link.ply"
    link.symlink_to(path)
    write_ply(str(link), dial(3))
    assert link.is_symlink()
    assert load(path).n_splats == 3
    mask = os.umask(0o027)
    try:
        write_ply(str(path), dial(4))
    finally:
        os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_where_nothing_can_be_written(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path, words in (
        (tmp_path, "is a directory"),
        (tmp_path / "fifo", "not a regular file"),
        (Path("/dev/null"), "not a regular file"),
        (tmp_path / "no" / "such.ply", "there is no folder"),
        (tmp_path / "fifo" / "a.ply", "is not a folder|cannot be written"),
        (tmp_path / ("n" * 300), "cannot be written"),
    ):
        with pytest.raises(OutputError, match=words):
            write_ply(str(path), dial(1))
    assert os.listdir(tmp_path) == ["fifo"]
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o500)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        with pytest.raises(AccessError, match="no permission to "):
            write_ply(str(folder / "a.ply"), dial(1))
    finally:
        os.seteuid(user)


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out.ply"
    write_ply(str(path), dial(3))

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match=r"out\.ply: cannot be written: No space left on device"):
        write_ply(str(path), dial(9))
    assert os.listdir(tmp_path) == ["out.ply"]
    assert load(path).n_splats == 3
