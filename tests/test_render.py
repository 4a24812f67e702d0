"""Whole pictures: the image bar on synthetic and real scenes, and what must not change a picture."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import scenes
from conftest import open_backend
from images import assert_meets_bar, psnr

from edgegs.backends.reference import ReferenceBackend
from edgegs.camera import Camera, look_at
from edgegs.errors import DeviceError
from edgegs.frame import STAGES
from edgegs.renderer import Renderer
from edgegs.scene import load


def draw(backend, scene, camera, variant="baseline", **options):
    renderer = Renderer(backend, scene, camera.width, camera.height, variant, keep_float=True, **options)
    return renderer.render(camera)


REAL = (
    "leica-sofort-top8192.ply",
    "yashica-t4-top8192.ply",
    "playbot_lod3_31k_sh2.ply",
    "plant_114k_sh0.ply",
    "tarot_115k_sh0.ply",
    "playbot_lod1_250k_sh2.ply",
)


@pytest.mark.parametrize("drawn_by", ["host", pytest.param("cuda", marks=pytest.mark.cuda)])
@pytest.mark.parametrize("name", REAL)
def test_real_scenes_meet_the_image_bar(kernels, shared_data, name, drawn_by):
    scene = load(shared_data / "ply" / name)
    camera = scenes.around(scene.bounds(), 640, 360, 312.0)
    with open_backend(drawn_by) as backend:  # first: it skips where there is no GPU
        reference = Renderer(ReferenceBackend(), scene, 640, 360, "baseline", keep_float=True)
        expected = reference.render(camera)
        frame = draw(backend, scene, camera)
    assert frame.n_visible == pytest.approx(expected.n_visible, abs=3)
    assert (expected.image.max(axis=2) > 20).mean() > 0.02, "the camera must see the scene"
    assert_meets_bar(frame, expected, reference)


@pytest.mark.parametrize("size", [(96, 80), (97, 81), (16, 16), (1, 1), (33, 17)])
@pytest.mark.parametrize("n", [1, 33, 600])
def test_clouds_meet_the_image_bar(backend, size, n):
    scene, camera = scenes.cloud(n, seed=n), scenes.camera(*size)
    reference = Renderer(ReferenceBackend(), scene, *size, "baseline", keep_float=True)
    assert_meets_bar(draw(backend, scene, camera), reference.render(camera), reference)


@pytest.mark.parametrize("n", [1, 33, 600])
def test_all_host_builds_give_equal_bytes(kernels, n):
    scene, camera = scenes.cloud(n, seed=40 + n, size=0.1), scenes.camera(97, 81)
    frames = []
    for name in ("host", "host-check", "host-check-shuffled"):
        with open_backend(name) as backend:
            frames.append(draw(backend, scene, camera))
    for frame in frames[1:]:
        np.testing.assert_array_equal(frame.image, frames[0].image)
        np.testing.assert_array_equal(frame.image_f32, frames[0].image_f32)
        np.testing.assert_array_equal(frame.transmittance, frames[0].transmittance)


def test_twice_is_identical(any_backend):
    scene, camera = scenes.cloud(500), scenes.camera()
    renderer = Renderer(any_backend, scene, 96, 80, "baseline")
    first = renderer.render(camera)
    renderer.render(dataclasses.replace(camera, viewmat=look_at((3, 0, 5), (0, 0, 5))))
    again = renderer.render(camera)
    np.testing.assert_array_equal(first.image, again.image)
    assert (first.n_visible, first.n_instances) == (again.n_visible, again.n_instances)


def test_no_splats_give_the_background(any_backend):
    frame = draw(any_backend, scenes.cloud(0), scenes.camera(), background=(1.0, 0.5, 0.0))
    assert (frame.image == [0, 128, 255]).all()
    assert (frame.transmittance == 1).all()
    assert (frame.n_splats, frame.n_visible, frame.n_instances) == (0, 0, 0)


def test_one_splat_is_where_and_what_it_should_be(any_backend):
    frame = draw(any_backend, scenes.one(mean=(0.5, -0.25, 2.0), colour=(0.9, 0.5, 0.1)), scenes.camera(96, 80, 96.0))
    x, y = 48 + 96 * 0.5 / 2, 40 - 96 * 0.25 / 2
    weight = 1 - frame.transmittance.astype(float)
    rows, columns = np.mgrid[0:80, 0:96] + 0.5
    assert np.average(columns, weights=weight) == pytest.approx(x, abs=0.02)
    assert np.average(rows, weights=weight) == pytest.approx(y, abs=0.02)
    brightest = frame.image_f32[int(y), int(x)] / weight[int(y), int(x)]
    np.testing.assert_allclose(brightest, [0.9, 0.5, 0.1], atol=1e-5)
    assert weight.max() == pytest.approx(0.8, abs=0.01)


def test_splats_hidden_behind_or_outside_change_nothing(any_backend):
    seen, camera = scenes.cloud(200, seed=3), scenes.camera()
    covered = scenes.join(
        *[scenes.one(mean=(0, 0, 0.5 + 0.01 * i), scale=(9, 9, 0.001), opacity=0.99) for i in range(4)]
    )
    behind = scenes.cloud(200, seed=5)
    keep = behind.means[:, 2] > 1.0
    behind = scenes.scene(
        *(getattr(behind, k)[keep] for k in ("means", "scales", "quats", "opacities")), behind.sh[keep][:, :1]
    )
    np.testing.assert_array_equal(
        draw(any_backend, covered, camera).image, draw(any_backend, scenes.join(covered, behind), camera).image
    )
    outside = scenes.cloud(50, seed=9, size=0.001)
    outside.means[:, 2] = -np.abs(outside.means[:, 2]) - 1
    np.testing.assert_array_equal(
        draw(any_backend, seen, camera).image, draw(any_backend, scenes.join(outside, seen), camera).image
    )


def test_the_order_of_distinct_depths_does_not_matter(backend):
    scene, camera = scenes.cloud(300, seed=12), scenes.camera()
    order = np.random.default_rng(0).permutation(300)
    shuffled = scenes.scene(*(getattr(scene, k)[order] for k in ("means", "scales", "quats", "opacities", "sh")))
    np.testing.assert_array_equal(draw(backend, scene, camera).image, draw(backend, shuffled, camera).image)


def test_equal_depths_keep_the_order_of_splats(any_backend):
    near = scenes.one(colour=(1, 0, 0), opacity=0.9)
    other = scenes.one(colour=(0, 0, 1), opacity=0.9)
    red_first = draw(any_backend, scenes.join(near, other), scenes.camera()).image_f32[40, 48]
    blue_first = draw(any_backend, scenes.join(other, near), scenes.camera()).image_f32[40, 48]
    assert red_first[0] > 5 * red_first[2]
    assert blue_first[2] > 5 * blue_first[0]


@pytest.mark.parametrize("field", ["means", "scales", "quats", "opacities", "sh"])
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf, 1e38, 1e-42])
def test_poisoned_splats_never_spoil_their_neighbours(backend, field, poison):
    """A reader drops such rows; the kernels must hold all the same."""
    clean, camera = scenes.cloud(100, seed=2), scenes.camera()
    bad = scenes.cloud(1, seed=3)
    bad.means[:] = [0, 0, 1e5]  # behind everything: a finite poison may only show where nothing else is
    getattr(bad, field)[...] = poison
    frame = draw(backend, scenes.join(clean, bad), camera)
    expected = draw(backend, clean, camera)
    assert frame.n_instances <= expected.n_instances + 30
    if field in ("means", "scales", "quats"):
        changed = (frame.image != expected.image).any(axis=2)
        assert (expected.transmittance[changed] > 1e-4).all()
    assert np.isfinite(frame.image_f32[expected.transmittance < 1e-4]).all()


def test_giant_splats_and_edges_of_the_frustum(backend):
    giant = scenes.one(mean=(0, 0, 1), scale=(1e4, 1e4, 1e4), opacity=0.5)
    at_near = scenes.one(mean=(0.01, 0, 0.2001), scale=(0.1, 0.1, 0.1))
    sideways = scenes.one(mean=(50, 0, 0.3), scale=(5, 5, 5))
    scene, camera = scenes.join(giant, at_near, sideways), scenes.camera()
    reference = Renderer(ReferenceBackend(), scene, 96, 80, "baseline", keep_float=True)
    expected = reference.render(camera)
    frame = draw(backend, scene, camera)
    assert np.isfinite(frame.image_f32).all()
    assert_meets_bar(frame, expected, reference)


def test_too_many_instances_grow_the_buffer_and_redraw(any_backend):
    # 5,000 splats over the whole of 30 tiles: 150,000 instances, more than the first guess holds
    cloud = scenes.cloud(5000, seed=1, sh_degree=0)
    cloud.means[:, 2] = np.linspace(1, 2, 5000)
    cloud.means[:, :2] = 0
    cloud.scales[:] = 3
    cloud.opacities[:] = 0.01
    renderer = Renderer(any_backend, cloud, 96, 80, "baseline", keep_float=True)
    first = renderer.render(scenes.camera())
    assert first.redraws == 1
    assert first.n_instances == 5000 * 30
    again = renderer.render(scenes.camera())
    assert again.redraws == 0
    np.testing.assert_array_equal(first.image, again.image)
    roomy = Renderer(any_backend, cloud, 96, 80, "baseline", keep_float=True)
    roomy._grow(200_000)
    np.testing.assert_array_equal(roomy.render(scenes.camera()).image_f32, first.image_f32)


@pytest.mark.parametrize("variant", ["exact", "best"])
def test_counts_beyond_32_bits_are_an_error_not_a_wrap(host, monkeypatch, variant):
    monkeypatch.setattr("edgegs.renderer.MAX_INSTANCES", 100)
    monkeypatch.setattr("edgegs.room.BINS_PER_SPLAT", 0)
    renderer = Renderer.__new__(Renderer)
    with pytest.raises(DeviceError, match="splat-tile pairs"):
        Renderer.__init__(renderer, host, scenes.cloud(10), 96, 80, variant)


def test_frame_says_what_it_cost(any_backend):
    frame = draw(any_backend, scenes.cloud(300), scenes.camera())
    assert tuple(frame.stage_ms) == STAGES
    assert all(value >= 0 for value in frame.stage_ms.values())
    assert sum(frame.stage_ms.values()) <= frame.frame_ms
    assert frame.image.shape == (80, 96, 3)
    assert frame.image.dtype == np.uint8


def test_background_shines_through(any_backend):
    scene, camera = scenes.cloud(300), scenes.camera()
    black = draw(any_backend, scene, camera)
    white = draw(any_backend, scene, camera, background=(1, 1, 1))
    np.testing.assert_allclose(
        white.image_f32 - black.image_f32, np.repeat(black.transmittance[..., None], 3, axis=2), atol=1e-6
    )
    assert psnr(black.image_f32, white.image_f32) < 30


def test_far_and_near_planes_cut(any_backend):
    scene = scenes.cloud(300)
    near = Camera(viewmat=np.eye(4), K=scenes.camera().K, width=96, height=80, near=3.0, far=4.0)
    frame = draw(any_backend, scene, near)
    inside = ((scene.means[:, 2] > 3) & (scene.means[:, 2] < 4)).sum()
    assert 0 < frame.n_visible <= inside


def stripes(width, height, seed):
    """A picture to draw over, (height, width, 3) uint8 BGR."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.mark.parametrize("variant", ["baseline", "fp32-ref64-radius-exact-dual"])
@pytest.mark.parametrize("size", [(96, 80), (97, 81)])
def test_splats_are_composited_over_a_backdrop(backend, variant, size):
    scene, camera = scenes.cloud(600, seed=3), scenes.camera(*size)
    behind = stripes(*size, seed=1)
    reference = Renderer(ReferenceBackend(), scene, *size, "baseline", keep_float=True, takes_backdrop=True)
    expected = reference.render(camera, behind)
    alone = reference.render(camera)  # the same renderer, without one: its background's colour
    shown = alone.image_f32 + alone.transmittance[..., None] * (behind[..., ::-1] / 255)
    np.testing.assert_allclose(expected.image_f32, shown, atol=1e-12)
    renderer = Renderer(backend, scene, *size, variant, keep_float=True, takes_backdrop=True)
    assert_meets_bar(renderer.render(camera, behind), expected, reference)
    assert_meets_bar(renderer.render(camera), alone, reference)


def test_nothing_in_view_leaves_the_backdrop_as_it_is(any_backend):
    scene, camera = scenes.one(mean=(0, 0, -5)), scenes.camera(97, 81)
    behind = stripes(97, 81, seed=2)
    renderer = Renderer(any_backend, scene, 97, 81, "auto", takes_backdrop=True)
    np.testing.assert_array_equal(renderer.render(camera, behind).image, behind)


def test_each_frame_under_way_keeps_its_own_backdrop(any_backend):
    scene, camera = scenes.cloud(300), scenes.camera()
    renderer = Renderer(any_backend, scene, 96, 80, "auto", takes_backdrop=True)
    behind = [stripes(96, 80, seed=seed) for seed in range(6)]
    alone = [renderer.render(camera, one).image for one in behind]
    under_way, drawn = [], []
    for one in behind:
        under_way.append(renderer.submit(camera, one))
        if len(under_way) == any_backend.depth:
            drawn.append(renderer.collect(under_way.pop(0)).image)
    drawn += [renderer.collect(ticket).image for ticket in under_way]
    np.testing.assert_array_equal(drawn, alone)


def test_a_frame_drawn_again_keeps_its_backdrop(any_backend, monkeypatch):
    scene, camera, behind = scenes.cloud(600), scenes.camera(), stripes(96, 80, seed=4)
    expected = Renderer(any_backend, scene, 96, 80, "auto", takes_backdrop=True).render(camera, behind)
    renderer = Renderer(any_backend, scene, 96, 80, "auto", takes_backdrop=True)
    renderer._grow(16)
    again = renderer.render(camera, behind)
    assert again.redraws == 1
    np.testing.assert_array_equal(again.image, expected.image)


def test_a_wrong_backdrop_is_refused(host):
    scene, camera = scenes.cloud(10), scenes.camera()
    with pytest.raises(ValueError, match="takes_backdrop"):
        Renderer(host, scene, 96, 80).submit(camera, stripes(96, 80, seed=0))
    renderer = Renderer(host, scene, 96, 80, takes_backdrop=True)
    for wrong in (stripes(80, 96, seed=0), stripes(96, 80, seed=0).astype(np.float32)):
        with pytest.raises(ValueError, match="backdrop is"):
            renderer.submit(camera, wrong)
