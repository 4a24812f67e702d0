"""From a file to what is drawn: what is read, chosen, packed and kept for the next time."""

from __future__ import annotations

import os
from contextlib import contextmanager

import numpy as np
import pytest
import scenes

import edgegs.pack.cache
import edgegs.pack.prepare
from edgegs.errors import SceneError
from edgegs.pack import PackedScene
from edgegs.pack.cache import KEPT, SceneCache
from edgegs.pack.egs import write_egs
from edgegs.pack.packed import quantise
from edgegs.pack.prepare import Wish, prepare
from edgegs.scene import Scene, load, write_ply
from edgegs.scene.builder import TooLarge


@pytest.fixture
def cache(host, tmp_path, monkeypatch):  # the host's kernels are looked up before
    monkeypatch.setenv("EDGEGS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "scenes"


@pytest.fixture
def scorer(host, monkeypatch):
    """Gives the host backend, and counts how often it was asked for. Few small views: that suffices here."""
    monkeypatch.setattr(edgegs.pack.prepare, "N_VIEWS", 6)
    monkeypatch.setattr(edgegs.pack.prepare, "VIEW_SIZE", (64, 48))

    @contextmanager
    def open_backend():
        open_backend.calls += 1
        yield host

    open_backend.calls = 0
    return open_backend


@pytest.fixture
def ply(tmp_path):
    path = str(tmp_path / "scene.ply")
    write_ply(path, scenes.cloud(1200, seed=4, sh_degree=1))
    return path


def test_float32_without_a_budget_is_the_file_as_it_is(ply, cache, scorer):
    scene = prepare(ply, Wish(), scorer)
    np.testing.assert_array_equal(scene.means, load(ply).means)
    assert scorer.calls == 0
    assert not cache.exists()


def test_packed_storage_is_packed_once_and_found_again(ply, cache, scorer, monkeypatch):
    first = prepare(ply, Wish("packed"), scorer)
    assert isinstance(first, PackedScene)
    assert not first.is_scored
    assert len(list(cache.iterdir())) == 1
    monkeypatch.setattr(edgegs.pack.prepare, "load", lambda *_, **__: pytest.fail("the scene was read again"))
    again = prepare(ply, Wish("packed"), scorer)
    for name in ("means", "halves", "sh_bytes", "rows", "sh_scales"):
        np.testing.assert_array_equal(getattr(again, name), getattr(first, name))
    assert (again.path, again.n_splats, again.bounds()[1]) == (ply, 1200, first.bounds()[1])
    assert scorer.calls == 0


def test_another_content_under_the_same_name_is_not_taken_for_the_old_one(ply, cache, scorer):
    prepare(ply, Wish("packed"), scorer)
    write_ply(ply, scenes.cloud(700, seed=5))
    assert prepare(ply, Wish("packed"), scorer).n_splats == 700


@pytest.mark.parametrize("storage", ["fp32", "packed"])
def test_a_budget_takes_what_matters_most_and_is_worked_out_once(ply, cache, scorer, storage):
    first = prepare(ply, Wish(storage, 300), scorer)
    assert first.n_splats == 300
    assert scorer.calls == 1
    assert any("left out 900 splats" in warning for warning in first.warnings)
    again = prepare(ply, Wish(storage, 300), scorer)
    other = prepare(ply, Wish("packed" if storage == "fp32" else "fp32", 300), scorer)
    smaller = prepare(ply, Wish(storage, 100), scorer)
    assert scorer.calls == 1  # any budget is a prefix of what was worked out
    assert set(map(tuple, again.means)) == set(map(tuple, first.means)) == set(map(tuple, other.means))
    assert set(map(tuple, smaller.means)) <= set(map(tuple, first.means))
    assert smaller.n_splats == 100


def test_the_chosen_look_more_like_the_scene_than_the_largest(ply, cache, scorer, host):
    full = load(ply)
    from edgegs.camera import build_path
    from edgegs.renderer import Renderer

    orbit = build_path({"kind": "orbit", "up": full.up}, 96, 80, 60.0, scene_bounds=full.bounds())
    camera, views = orbit.camera_at(3.0), [orbit.camera_at(t) for t in range(0, 20, 2)]

    def picture(scene):
        renderer = Renderer(host, scene, 96, 80, "exact")
        image = renderer.render(camera).image.astype(float)
        renderer.close()
        return image

    whole = picture(full)
    chosen = np.square(picture(prepare(ply, Wish(max_gaussians=600, views=views), scorer)) - whole).mean()
    largest = np.square(picture(load(ply, max_gaussians=600)) - whole).mean()
    assert chosen < 0.7 * largest


def test_a_budget_that_all_fit_scores_nothing(ply, cache, scorer):
    assert prepare(ply, Wish("fp32", 1200), scorer).n_splats == 1200
    assert prepare(ply, Wish("packed", 5000), scorer).n_splats == 1200
    assert scorer.calls == 0


def test_other_axes_and_other_views_are_other_scenes(ply, cache, scorer):
    as_it_is = prepare(ply, Wish("packed"), scorer)
    turned = prepare(ply, Wish("packed", frame="rub"), scorer)
    assert as_it_is.means[:, 1].sum() == pytest.approx(-turned.means[:, 1].sum(), rel=1e-3)
    prepare(ply, Wish("packed", 300), scorer)
    prepare(ply, Wish("packed", 300, views=[scenes.camera()]), scorer)
    assert scorer.calls == 2


def test_a_packed_file_is_read_as_it_is_and_needs_no_cache(tmp_path, ply, cache, scorer):
    path = str(tmp_path / "scene.egs")
    write_egs(path, quantise(load(ply), np.arange(1200)[::-1], (600, 1200)))
    assert prepare(path, Wish("packed"), scorer).n_splats == 1200
    assert prepare(path, Wish("fp32", 500), scorer).n_splats == 500
    assert not cache.exists()
    write_egs(path, quantise(load(ply)))
    with pytest.raises(SceneError, match="importance"):
        prepare(path, Wish("packed", 500), scorer)


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty", "folder"])
def test_a_damaged_cache_costs_time_and_nothing_else(ply, cache, scorer, damage):
    first = prepare(ply, Wish("packed"), scorer)
    (file,) = cache.iterdir()
    content = bytearray(file.read_bytes())
    if damage == "truncate":
        file.write_bytes(content[: len(content) // 2])
    elif damage == "flip":
        content[100] ^= 1
        file.write_bytes(content)
    elif damage == "empty":
        file.write_bytes(b"")
    else:
        file.unlink()
        file.mkdir()
    again = prepare(ply, Wish("packed"), scorer)
    np.testing.assert_array_equal(again.means, first.means)


def test_a_cache_that_cannot_be_written_costs_nothing_else(ply, tmp_path, cache, scorer, monkeypatch, caplog):
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    monkeypatch.setenv("EDGEGS_CACHE", str(blocked))
    assert prepare(ply, Wish("packed"), scorer).n_splats == 1200
    assert "cannot be kept" in caplog.text


def test_the_cache_keeps_the_scenes_used_last(tmp_path, cache):
    packed = quantise(scenes.cloud(10, seed=1))
    stamps = iter(range(1000))
    for i in range(KEPT + 3):
        SceneCache(f"content {i}").keep(packed)
        for path in cache.iterdir():
            if path.stat().st_mtime > 10_000:
                os.utime(path, (next(stamps),) * 2)
    assert len(list(cache.iterdir())) == KEPT
    assert SceneCache("content 0").find(False) is None
    assert SceneCache(f"content {KEPT + 2}").find(False) is not None


def test_what_does_not_fit_memory_is_refused_or_cut_while_it_is_read(ply, cache, scorer, monkeypatch, caplog):
    import edgegs.scene.builder

    row = 4 * (11 + 12)
    monkeypatch.setattr(edgegs.scene.builder, "available_memory", lambda: 1000 * row)
    with pytest.raises(TooLarge, match="edgegs pack"):
        prepare(ply, Wish(), scorer)
    monkeypatch.setattr(edgegs.scene.builder, "_SPARE_ROWS", 10)
    scene = prepare(ply, Wish(max_gaussians=200), scorer)
    assert isinstance(scene, Scene)
    assert scene.n_splats == 200
    assert "largest and most opaque" in caplog.text


def test_what_progress_raises_ends_the_choosing(ply, cache, scorer):
    class Enough(Exception):
        pass

    def progress(done, of):
        if of == 6:
            raise Enough

    with pytest.raises(Enough):
        prepare(ply, Wish("fp32", 100), scorer, progress)
    assert not cache.exists() or not list(cache.iterdir())
