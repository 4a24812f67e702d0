"""PSNR of one scene's pictures against another's."""

from __future__ import annotations

import dataclasses
import math
from typing import List, Tuple

import images
import numpy as np
import pytest
import scenes

from edgegs.backends.base import Backend
from edgegs.camera import Camera, look_at
from edgegs.pack import quantise
from edgegs.pack.quality import STEPS, Judge, decibels, mean_squared_error, psnr_against
from edgegs.renderer import Renderer


def cameras(*sizes: Tuple[int, int]) -> List[Camera]:
    sides = [look_at((x, -0.2, 0), (0, 0, 4)) for x in (-1.0, 0.0, 1.0)]
    return [scenes.camera(*size, viewmat=sides[i % 3]) for i, size in enumerate(sizes)]


SIZES = ((96, 80), (64, 48), (96, 80))


def test_known_errors_give_known_decibels() -> None:
    assert decibels(1.0) == 0
    assert decibels(0.01) == pytest.approx(20)
    assert decibels(0.0) == math.inf
    dark = np.zeros((4, 5, 3), np.uint16)
    light = np.full((4, 5, 3), STEPS, np.uint16)
    assert mean_squared_error(dark, light) == mean_squared_error(light, dark) == 1
    one = dark.copy()
    one[0, 0, 0] = STEPS
    assert mean_squared_error(dark, one) == pytest.approx(1 / 60)


def test_the_same_scene_differs_nowhere(host: Backend) -> None:
    report = psnr_against(scenes.cloud(300), scenes.cloud(300), cameras(*SIZES), host)
    assert report.psnr_db == math.inf
    assert report.views_db == (math.inf,) * 3


def test_backgrounds_alone_differ_by_what_they_are(host: Backend) -> None:
    """Nothing in view: both pictures are the background; a splat that fills the picture is 0.5 of white."""
    behind = scenes.one(mean=(0, 0, -5))
    wall = scenes.one(scale=(500, 500, 1e-3), opacity=0.5, colour=(1, 1, 1))
    camera = scenes.camera()
    assert psnr_against(behind, wall, [camera], host).psnr_db == pytest.approx(-20 * math.log10(0.5), abs=1e-3)
    white = psnr_against(behind, wall, [camera], host, background=(1, 1, 1)).psnr_db
    assert white > 90  # white before white


def test_pictures_are_clipped_and_the_mean_is_of_errors(host: Backend) -> None:
    full, reduced = scenes.cloud(400, seed=1), scenes.cloud(400, seed=2)
    full = dataclasses.replace(full, sh=full.sh * np.float32(1.5))
    report = psnr_against(full, reduced, cameras(*SIZES), host)
    errors = []
    for camera, found in zip(cameras(*SIZES), report.views_db):
        pictures = []
        for scene in (full, reduced):
            renderer = Renderer(host, scene, camera.width, camera.height, "exact", keep_float=True)
            pictures.append(renderer.render(camera).image_f32)
            renderer.close()
        assert pictures[0].max() > 1.0  # else nothing is told about clipping
        assert found == pytest.approx(images.psnr(*pictures), abs=1e-3)
        errors.append(10 ** (-found / 10))
    assert report.psnr_db == pytest.approx(decibels(float(np.mean(errors))))
    assert report.views_db[report.worst] == min(report.views_db)


def test_a_judge_draws_the_whole_scene_once(host: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    real = Renderer.render
    monkeypatch.setattr(Renderer, "render", lambda self, *args: (drawn.append(self.n_splats), real(self, *args))[1])
    full = scenes.cloud(300)
    told: List[Tuple[int, int]] = []
    judge = Judge(full, cameras(*SIZES), host, progress=lambda done, of: told.append((done, of)))
    assert drawn == [300] * 3
    assert told == [(1, 3), (2, 3), (3, 3)]
    half = full.take(np.arange(150))
    first = judge.psnr_db(half)
    assert judge.compare(half).psnr_db == first < judge.psnr_db(full) == math.inf
    assert drawn == [300] * 3 + [150] * 6 + [300] * 3


def test_packed_scenes_are_judged_too(host: Backend) -> None:
    scene = scenes.cloud(300)
    packed = quantise(scene)
    db = psnr_against(scene, packed, cameras(*SIZES), host).psnr_db
    assert 30 < db < 100
    assert psnr_against(packed, packed.unpacked(), cameras(*SIZES), host).psnr_db > 60  # unit quaternions in the one


def test_antialiased_scenes_are_drawn_as_such(host: Backend) -> None:
    scene = scenes.cloud(300, size=0.005)
    other = dataclasses.replace(scene, antialiased=True)
    assert psnr_against(scene, other, cameras(*SIZES), host).psnr_db < 60


def test_no_view_no_judgement(host: Backend) -> None:
    with pytest.raises(ValueError, match="no view"):
        Judge(scenes.one(), [], host)
