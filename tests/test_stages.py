"""Each stage of the kernels against its float64 twin, at sizes around warp and block edges."""

from __future__ import annotations

import numpy as np
import pytest
import scenes
import tolerances
from images import rect_in_doubt, reference_fields

from edgegs.backends import twin
from edgegs.backends.reference import ReferenceBackend
from edgegs.renderer import Renderer

SIZES = (0, 1, 31, 32, 33, 255, 256, 257, 700)


def both(backend, scene, camera):
    """The scene drawn by the kernels and by the twin."""
    renderers = [
        Renderer(b, scene, camera.width, camera.height, "baseline", keep_float=True)
        for b in (backend, ReferenceBackend())
    ]
    return [(renderer, renderer.render(camera)) for renderer in renderers]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("sh_degree", [0, 1, 2, 3])
def test_project(backend, size, sh_degree):
    scene = scenes.cloud(size, seed=size + sh_degree, sh_degree=sh_degree)
    (kernels, _), (reference, _) = both(backend, scene, scenes.camera())
    p = reference_fields(reference)
    n_tiles = kernels.read("splat_n_tiles")
    sure = ~rect_in_doubt(p)
    assert size < 40 or sure.mean() > 0.9
    np.testing.assert_array_equal(n_tiles[sure], p.splat_n_tiles[sure])

    seen = (n_tiles > 0) & (p.splat_n_tiles > 0)
    assert size < 31 or seen.any()
    both_sure = seen & sure
    np.testing.assert_array_equal(kernels.read("splat_rects")[both_sure], p.splat_rects[both_sure])
    np.testing.assert_allclose(kernels.read("splat_depths")[seen], p.splat_depths[seen], rtol=tolerances.DEPTH_RELATIVE)
    # far outside the frame a position is thousands of pixels and matters to nobody
    np.testing.assert_allclose(
        kernels.read("splat_means2d")[seen], p.splat_means2d[seen], rtol=1e-5, atol=tolerances.MEAN2D_PIXELS
    )
    conics = p.splat_conics[seen]
    largest = np.abs(conics[:, :3]).max(axis=1, keepdims=True) if len(conics) else 1
    error = np.abs(kernels.read("splat_conics")[seen] - conics) / largest
    assert np.all(error[:, :3] < tolerances.CONIC_RELATIVE)
    np.testing.assert_array_equal(kernels.read("splat_conics")[seen][:, 3], scene.opacities[seen])
    np.testing.assert_allclose(
        kernels.read("splat_colors")[seen], p.splat_colors[seen], atol=tolerances.COLOUR_ABSOLUTE
    )


@pytest.mark.parametrize("size", SIZES)
def test_duplicate_sort_and_ranges_are_exact(backend, size):
    scene = scenes.cloud(size, seed=100 + size)
    renderer = Renderer(backend, scene, 96, 80, "baseline")
    frame = renderer.render(scenes.camera())
    n_tiles = renderer.read("splat_n_tiles").astype(int)
    rects, depths = renderer.read("splat_rects").astype(int), renderer.read("splat_depths")
    assert (frame.n_instances, frame.n_visible) == (n_tiles.sum(), (n_tiles > 0).sum())

    expected = []
    for splat in np.nonzero(n_tiles)[0]:
        x0, y0, x1, y1 = rects[splat]
        expected += [(y * 6 + x, depths[splat], splat) for y in range(y0, y1) for x in range(x0, x1)]
    expected.sort()  # by tile, then depth, then splat
    keys = renderer.read("instance_keys")[: frame.n_instances]
    np.testing.assert_array_equal(renderer.read("instance_splats")[: frame.n_instances], [e[2] for e in expected])
    np.testing.assert_array_equal(keys >> np.uint64(32), [e[0] for e in expected])
    np.testing.assert_array_equal(
        (keys & np.uint64(0xFFFFFFFF)).astype(np.uint32).view(np.float32), [e[1] for e in expected]
    )

    starts = renderer.read("tile_starts")
    assert len(starts) == 6 * 5 + 1
    np.testing.assert_array_equal(starts, np.searchsorted([e[0] for e in expected], np.arange(31)))


@pytest.mark.parametrize("size", [1, 257, 700])
def test_rasterize_from_the_same_lists(backend, size):
    scene = scenes.cloud(size, seed=7 + size, size=0.1)
    (kernels, frame), (reference, _) = both(backend, scene, scenes.camera())
    # the twin composites the lists and projections that the kernels made: nothing can differ but arithmetic
    p = reference_fields(reference)
    for name in ("splat_means2d", "splat_conics", "splat_colors", "splat_depths"):
        with np.errstate(invalid="ignore"):  # rows of splats that are not visible were never written
            setattr(p, name, kernels.read(name).astype(np.float64))
    p.instance_splats, p.tile_starts = kernels.read("instance_splats"), kernels.read("tile_starts")
    twin.rasterize(p)
    steps = np.abs(frame.image.astype(int) - p.pixel_bgr)
    assert steps.max() <= tolerances.IMAGE_MAX_STEPS
    np.testing.assert_allclose(frame.image_f32, p.pixel_rgb, atol=2e-3)
    assert np.median(np.abs(frame.image_f32 - p.pixel_rgb)) < 1e-6


def test_exp_exact_shows_in_alpha_as_exactly_as_a_float_can(host):
    # through one wide opaque splat: alpha = opacity e^power along a row of pixels
    scene = scenes.one(scale=(0.3, 0.3, 0.01), opacity=0.95)
    (_, frame), (_, reference) = both(host, scene, scenes.camera(256, 16, 200.0))
    alpha, expected = 1 - frame.transmittance.astype(np.float64), 1 - reference.transmittance
    drawn = (alpha > 0) & (expected > 0)
    assert drawn.sum() > 1000
    # 1 - (1 - alpha) loses absolute precision, not relative: compare there, with the power's own rounding
    np.testing.assert_allclose(alpha[drawn], expected[drawn], atol=tolerances.EXP_ALPHA_ABSOLUTE)


@pytest.mark.parametrize("size", [(96, 80), (40, 200)])
def test_the_jacobian_is_clamped_at_so_much_more_than_the_half_view(size):
    """Kernels and twin are told where: both would be wrong together."""
    renderer = Renderer(ReferenceBackend(), scenes.cloud(1), *size, "baseline")
    camera = scenes.camera(*size, focal=70.0)
    renderer.render(camera)
    p = reference_fields(renderer)
    half_views = np.array(size) / 2 / 70.0
    np.testing.assert_allclose([p.slope_x_max, p.slope_y_max], 1.3 * half_views, rtol=1e-6)


def test_n_tiles_counts_as_the_original_counts():
    # u = 40.5 - 0.5 = 40, radius ceil(3 sqrt(lambda)): tiles floor((40 - r) / 16) .. floor((40 + r + 15) / 16)
    radius = np.array([3.0, 8.0, 9.0])
    rects = twin.tile_rects(np.full((3, 2), 40.5), radius, 10, 10)
    np.testing.assert_array_equal(rects, [[2, 2, 3, 3], [2, 2, 3, 3], [1, 1, 4, 4]])
