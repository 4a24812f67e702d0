"""From a file to what is drawn: what is read, chosen, packed and kept for the next time."""

from __future__ import annotations

import json
import os
import zipfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import scenes

import edgegs.pack.cache
import edgegs.pack.prepare
from edgegs.errors import AccessError, DeviceError, SceneError
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
    assert SceneCache("content 0").find() is None
    assert SceneCache(f"content {KEPT + 2}").find() is not None


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


def test_one_kept_by_another_run_is_named_as_its_source(ply, cache, scorer):
    first, again = (prepare(ply, Wish("packed", 300), scorer) for _ in range(2))
    assert first.sha256 == again.sha256 == load(ply).sha256


def test_a_budget_that_all_fit_is_packed_once(ply, cache, scorer, monkeypatch):
    prepare(ply, Wish("packed", 5000), scorer)
    monkeypatch.setattr(edgegs.pack.prepare, "load", lambda *_, **__: pytest.fail("the scene was read again"))
    assert prepare(ply, Wish("packed", 5000), scorer).n_splats == 1200


def test_one_kept_whole_is_no_answer_to_a_smaller_budget_and_stays(ply, cache, scorer):
    prepare(ply, Wish("packed"), scorer)
    assert prepare(ply, Wish("packed", 300), scorer).n_splats == 300
    assert scorer.calls == 1
    assert len(list(cache.iterdir())) == 2


def test_what_was_cut_while_it_was_read_is_not_kept_for_the_whole(ply, cache, scorer, monkeypatch):
    import edgegs.scene.builder

    with monkeypatch.context() as patch:
        patch.setattr(edgegs.scene.builder, "available_memory", lambda: 1000 * 4 * (11 + 12))
        patch.setattr(edgegs.scene.builder, "_SPARE_ROWS", 10)
        assert prepare(ply, Wish("packed", 200), scorer).n_splats == 200
    assert prepare(ply, Wish("packed"), scorer).n_splats == 1200


def test_what_no_longer_fits_memory_is_drawn_from_the_pack(ply, cache, scorer, monkeypatch):
    import edgegs.scene.builder

    chosen = prepare(ply, Wish("fp32", 200), scorer)
    monkeypatch.setattr(edgegs.scene.builder, "available_memory", lambda: 1000 * 4 * (11 + 12))
    again = prepare(ply, Wish("fp32", 200), scorer)
    assert set(map(tuple, again.means)) == set(map(tuple, chosen.means))


@pytest.mark.parametrize("storage", ["fp32", "packed"])
def test_what_the_device_has_no_room_to_score_is_cut_by_size_and_not_kept(ply, cache, storage, caplog):
    def no_room():
        raise DeviceError("no room")

    scene = prepare(ply, Wish(storage, 200), no_room)
    largest = load(ply, max_gaussians=200)
    assert set(map(tuple, scene.means)) == set(map(tuple, largest.means))
    assert "no room; choosing the largest and most opaque" in caplog.text
    assert not cache.exists()


def test_a_scene_of_several_files_is_known_by_all_of_them(tmp_path, cache, scorer, shared_data):
    for kind in ("file", "folder"):
        folder = tmp_path / kind
        with zipfile.ZipFile(shared_data / "sog" / "leica-sofort-top8192.sog") as bundle:
            bundle.extractall(folder)
        path = str(folder / "meta.json" if kind == "file" else folder)
        first = prepare(path, Wish("packed"), scorer)
        colours = Path(json.loads((folder / "meta.json").read_text())["sh0"]["files"][0])
        from PIL import Image

        with Image.open(folder / colours) as picture:
            picture.convert("RGBA").rotate(180).save(folder / colours, lossless=True)
        assert not np.array_equal(prepare(path, Wish("packed"), scorer).sh_bytes, first.sh_bytes)


def test_a_file_replaced_while_it_is_looked_up_is_kept_as_what_it_is(ply, cache, scorer, monkeypatch, tmp_path):
    old = Path(ply).read_bytes()
    real = edgegs.pack.prepare.digest_of

    def replaced(*args):
        found = real(*args)
        write_ply(ply, scenes.cloud(700, seed=5))
        return found

    with monkeypatch.context() as patch:
        patch.setattr(edgegs.pack.prepare, "digest_of", replaced)
        assert prepare(ply, Wish("packed"), scorer).n_splats == 700
    Path(ply).write_bytes(old)
    assert prepare(ply, Wish("packed"), scorer).n_splats == 1200


def test_progress_is_told_of_every_step(tmp_path, cache, scorer):
    """A service that starts is given up by systemd where there is no sign for half a minute."""
    path = str(tmp_path / "large.ply")
    write_ply(path, scenes.cloud(60_000, seed=4, sh_degree=3))
    told = []
    prepare(path, Wish("packed", 300), scorer, lambda done, of: told.append((done, of)))
    steps = {of for _, of in told}
    assert {os.path.getsize(path), 60_000, 6, next(cache.iterdir()).stat().st_size} <= steps
    assert len([done for done, of in told if of == os.path.getsize(path)]) >= 3
    assert all(0 <= done <= of for done, of in told)


def test_reading_from_the_cache_disturbs_nobody_who_reads_it(ply, cache, scorer):
    prepare(ply, Wish("packed"), scorer)
    (file,) = cache.iterdir()
    os.utime(file, (1000, 1000))
    prepare(ply, Wish("packed"), scorer)
    assert file.stat().st_mtime == 1000  # else the other one takes it for a file that is written to
    assert file.stat().st_atime > 1000  # but used it was


def test_a_cache_that_can_only_be_read_serves(ply, cache, scorer, monkeypatch):
    prepare(ply, Wish("packed"), scorer)

    def refused(*_, **__):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "utime", refused)
    monkeypatch.setattr(edgegs.pack.prepare, "load", lambda *_, **__: pytest.fail("the scene was read again"))
    assert prepare(ply, Wish("packed"), scorer).n_splats == 1200


def test_a_user_without_a_home_has_no_cache_and_a_picture(ply, scorer, monkeypatch, caplog):
    def homeless():
        raise AccessError("this user has no home folder")

    monkeypatch.setattr(edgegs.pack.cache, "cache_dir", homeless)
    assert prepare(ply, Wish("packed"), scorer).n_splats == 1200
    assert "no home folder" in caplog.text


def test_a_wrong_clock_forgets_nothing_new_and_the_abandoned_goes(cache):
    packed = quantise(scenes.cloud(10, seed=1))
    for i in range(KEPT):
        SceneCache(f"content {i}").keep(packed)
        for path in cache.iterdir():
            os.utime(path, (4e9, 4e9))  # written while the clock was ahead
    for name, when in ((".x.part", 0), (".y.part", 4e9)):
        (cache / name).write_bytes(b"")
        os.utime(cache / name, (when, when))
    SceneCache("new").keep(packed)
    assert SceneCache("new").find() is not None
    assert len(list(cache.glob("*.egs"))) == KEPT
    assert [path.name for path in cache.glob("*.part")] == [".y.part"]


def test_axes_of_a_packed_file_are_refused(tmp_path, scorer):
    path = str(tmp_path / "scene.egs")
    write_egs(path, quantise(scenes.cloud(10)))
    with pytest.raises(SceneError, match="rdf"):
        prepare(path, Wish("packed", frame="rub"), scorer)


def test_scoring_gives_all_of_the_device_back(ply, cache, scorer, host, monkeypatch):
    live, real_alloc, real_free = set(), host.alloc, host.free

    def alloc(*args):
        buffer = real_alloc(*args)
        live.add(id(buffer))
        return buffer

    monkeypatch.setattr(host, "alloc", alloc)
    monkeypatch.setattr(host, "free", lambda buffer: (live.discard(id(buffer)), real_free(buffer)))

    def stop(done, of):
        if of == 6:
            assert live
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(ply, Wish("fp32", 100), scorer, stop)
    assert not live
    prepare(ply, Wish("fp32", 100), scorer)
    assert not live


def test_views_that_see_nothing_choose_nothing(ply, cache, scorer, caplog):
    camera = scenes.camera()
    away = np.array(camera.viewmat)
    away[2, 3] -= 1e6  # all of it lies behind
    from dataclasses import replace

    scene = prepare(ply, Wish(max_gaussians=100, views=[replace(camera, viewmat=away)]), scorer)
    assert scene.n_splats == 100
    assert "not one of 1 views sees any of it" in caplog.text


def test_numpy_scores_nothing_and_says_what_to_do(ply, cache, caplog):
    from contextlib import nullcontext

    from edgegs.backends.reference import ReferenceBackend

    scene = prepare(ply, Wish(max_gaussians=100), lambda: nullcontext(ReferenceBackend()))
    assert scene.n_splats == 100
    assert "edgegs kernels build" in caplog.text
    assert not cache.exists() or not list(cache.iterdir())
