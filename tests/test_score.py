"""What a splat matters to a frame: the scores, and the opacity of antialiased scenes, against the twin and by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import scenes

from edgegs.backends.host import HostBackend
from edgegs.backends.reference import ReferenceBackend
from edgegs.renderer import Renderer

STEP = 2.0**-24


def scored(backend, scene, cameras, variant="exact"):
    first = cameras[0]
    renderer = Renderer(backend, scene, first.width, first.height, variant, keep_float=True, keep_scores=True)
    frames = [renderer.score(camera) for camera in cameras]
    scores = renderer.scores()
    renderer.close()
    return scores, frames


@pytest.mark.parametrize("n", [1, 33, 600])
@pytest.mark.parametrize("variant", ["baseline", "exact", "packed-split-tight-fast-dual"])
def test_scores_are_the_twins(backend, n, variant):
    scene = scenes.cloud(n, seed=n)
    cameras = [scenes.camera()]
    found, _ = scored(backend, scene, cameras, variant)
    expected, _ = scored(ReferenceBackend(), scene, cameras, variant)
    assert n == 1 or (expected > 0).sum() > n / 4
    # a pixel at the threshold of alpha counts or not: 1/255 squared, for each of a few
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=8 / 255**2)
    assert np.abs(found - expected).mean() < 1e-4 * max(1.0, expected.mean())


def test_all_host_builds_give_equal_scores(kernels):
    scene = scenes.cloud(600, seed=3)
    cameras = [scenes.camera()]
    with HostBackend() as fast, HostBackend(arch="host-check") as check:
        fast_scores, _ = scored(fast, scene, cameras)
        check_scores, _ = scored(check, scene, cameras)
    np.testing.assert_array_equal(fast_scores, check_scores)


def test_scores_add_up_over_frames_and_leave_the_picture_alone(any_backend):
    scene = scenes.cloud(200, seed=5)
    once, (frame,) = scored(any_backend, scene, [scenes.camera()])
    twice, frames = scored(any_backend, scene, [scenes.camera(), scenes.camera()])
    np.testing.assert_array_equal(2 * once, twice)
    np.testing.assert_array_equal(frames[1].image, frame.image)


def test_a_hidden_splat_scores_nothing_and_one_alone_what_its_alphas_say(any_backend):
    scene = scenes.cloud(1, seed=1)
    camera = scenes.camera()
    position = -camera.viewmat[:3, :3].T @ camera.viewmat[:3, 3]
    forward = camera.viewmat[2, :3]
    # a wall of ten opaque splats, then one behind them
    n = 11
    means = np.array([position + forward * (2.0 + 0.05 * i) for i in range(n)], np.float32)
    scales = np.full((n, 3), 3.0, np.float32)
    scales[-1] = 0.05
    scene = dataclasses.replace(
        scene,
        means=means,
        scales=scales,
        quats=np.tile(np.float32([1, 0, 0, 0]), (n, 1)),
        opacities=np.full(n, 0.99, np.float32),
        sh=np.zeros((n, 1, 3), np.float32),
        sh_degree=0,
    )
    scores, _ = scored(any_backend, scene, [camera])
    assert scores[0] > 0.9 * camera.width * camera.height * 0.98
    assert scores[-1] == 0
    alone = dataclasses.replace(
        scene,
        means=means[-1:],
        scales=scales[-1:],
        quats=scene.quats[-1:],
        opacities=scene.opacities[-1:],
        sh=scene.sh[-1:],
    )
    scores, (frame,) = scored(any_backend, alone, [camera])
    expected = ((1 - frame.transmittance.astype(np.float64)) ** 2).sum()
    assert expected > 0.5
    np.testing.assert_allclose(scores[0], expected, rtol=1e-3)


def test_a_frame_drawn_again_for_want_of_room_counts_once(any_backend):
    scene = scenes.cloud(200, seed=5)
    camera = scenes.camera()
    expected, _ = scored(any_backend, scene, [camera])
    renderer = Renderer(any_backend, scene, camera.width, camera.height, "exact", keep_scores=True)
    renderer._grow(1)
    frame = renderer.score(camera)
    assert frame.redraws == 1
    np.testing.assert_array_equal(renderer.scores(), expected)
    renderer.close()


def test_a_renderer_that_keeps_no_scores_says_so(host):
    camera = scenes.camera()
    renderer = Renderer(host, scenes.cloud(1, seed=1), camera.width, camera.height, "exact")
    with pytest.raises(ValueError, match="keep_scores"):
        renderer.score(camera)
    renderer.close()
    with pytest.raises(ValueError, match="another key than bins"):
        scored(host, scenes.cloud(1, seed=1), [camera], "best")


# --- antialiased scenes ---


@pytest.mark.parametrize(
    "variant", ["baseline", "exact", "packed-packed32-tight-fast-dual", "packed-split-tight-fast-dual"]
)
def test_an_antialiased_scene_is_drawn_as_the_twin_draws_it(backend, variant):
    scene = dataclasses.replace(scenes.cloud(300, seed=9), antialiased=True)
    _, (found,) = scored(backend, scene, [scenes.camera()], variant)
    _, (expected,) = scored(ReferenceBackend(), scene, [scenes.camera()], variant)
    difference = np.abs(found.image.astype(int) - expected.image.astype(int))
    assert (difference > 1).mean() < 2e-3
    _, (plain,) = scored(backend, dataclasses.replace(scene, antialiased=False), [scenes.camera()], variant)
    assert np.abs(found.image.astype(int) - plain.image.astype(int)).max() > 8  # it matters


@pytest.mark.parametrize("sigma", [0.01, 0.1, 1.0])
def test_a_round_splat_is_dimmed_by_the_share_of_its_area_before_the_blur(any_backend, sigma):
    camera = scenes.camera()
    position = -camera.viewmat[:3, :3].T @ camera.viewmat[:3, 3]
    scene = dataclasses.replace(
        scenes.cloud(1, seed=1),
        means=(position + 8.0 * camera.viewmat[2, :3])[None].astype(np.float32),
        scales=np.full((1, 3), sigma, np.float32),
        quats=np.float32([[1, 0, 0, 0]]),
        opacities=np.float32([0.9]),
        antialiased=True,
    )
    renderer = Renderer(any_backend, scene, camera.width, camera.height, "baseline")
    renderer.render(camera)
    x, y = (sigma * camera.K[i, i] / 8.0 for i in range(2))
    expected = 0.9 * x * y / np.sqrt((x * x + 0.3) * (y * y + 0.3))
    np.testing.assert_allclose(renderer.read("splat_conics")[0, 3], expected, rtol=1e-3)
    renderer.close()
