"""Every variant against the float64 twin of the same culling, by the image bar; the proofs of the approximations."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import scenes
import tolerances
from conftest import open_backend
from images import assert_meets_bar, psnr

from edgegs.backends import twin
from edgegs.backends.reference import KERNELS, ReferenceBackend
from edgegs.errors import DeviceError
from edgegs.kernels import variants
from edgegs.kernels.variants import (
    AXES,
    BASELINE,
    BEST,
    LADDER,
    ROOFGS,
    WIDE,
    combinations,
    depth_bits,
    gpu_default,
    suits_wide,
    tile_bits,
    variant,
)
from edgegs.pack import quantise as pack
from edgegs.renderer import Renderer
from edgegs.scene import load
from edgegs.scene.model import ARRAYS

ALL = [v.name for v in combinations()]
TENSOR = [v.name for v in combinations(tensor_cores=True) if v.needs_tensor_cores]
DRAWN_BY = ["host", "host-check-shuffled", pytest.param("cuda", marks=pytest.mark.cuda)]
NAMED = ["baseline", "exact", "roofgs", "best", "wide"]


def exact_image(scene, camera, culling):
    """The float64 picture that a variant of that culling is compared with, and its renderer."""
    renderer = Renderer(
        ReferenceBackend(), scene, camera.width, camera.height, f"fp32-ref64-{culling}-exact-block", keep_float=True
    )
    return renderer.render(camera), renderer


@pytest.fixture(scope="module")
def exact_clouds():
    """Pictures of one cloud by the twin, for each culling; drawn once."""
    scene, camera = scenes.cloud(600, seed=21, size=0.08), scenes.camera(97, 81)
    return scene, camera, {culling: exact_image(scene, camera, culling) for culling in ("radius", "tight")}


def assert_within_bar(name, frame, expected, renderer):
    """The bar of kernels' quality for that variant (kernels.md's table, in tests/tolerances.py)."""
    v = variant(name)
    if v.is_exact:
        assert_meets_bar(frame, expected, renderer)
        return
    assert np.isfinite(frame.image_f32).all()
    floor = tolerances.BITS_MIN_PSNR if v.exponential == "bits" else tolerances.PACKED_MIN_PSNR
    if (v.key, v.storage) == ("bins", "fp32"):
        floor = tolerances.BINS_MIN_PSNR
    assert psnr(frame.image_f32, expected.image_f32) >= floor


@pytest.mark.parametrize("drawn_by", DRAWN_BY)
@pytest.mark.parametrize("name", [*ALL, *TENSOR])
def test_every_combination_draws_the_cloud(kernels, exact_clouds, name, drawn_by):
    scene, camera, exact = exact_clouds
    expected, reference = exact[variant(name).culling]
    with open_backend(drawn_by) as backend:
        if name in TENSOR and not backend.has_tensor_cores:
            pytest.skip("no tensor cores")
        renderer = Renderer(backend, scene, camera.width, camera.height, name, keep_float=True)
        frame = renderer.render(camera)
        again = renderer.render(camera)
    assert_within_bar(name, frame, expected, reference)
    np.testing.assert_array_equal(frame.image, again.image)
    np.testing.assert_array_equal(frame.image_f32, again.image_f32)
    if variant(name).key == "bins":  # they count bins, not tiles
        expected = Renderer(ReferenceBackend(), scene, camera.width, camera.height, name).render(camera)
    assert abs(frame.n_instances - expected.n_instances) <= 0.01 * expected.n_instances + 5


@pytest.mark.parametrize("name", [*NAMED, "fp32-bins-tight-fast-patch8", "fp32-packed32-radius-fast-dual"])
@pytest.mark.parametrize("n", [0, 1, 33, 257, 1500])
def test_host_builds_give_equal_bytes(kernels, name, n):
    scene, camera = scenes.cloud(n, seed=n, size=0.1), scenes.camera(97, 81)
    frames = []
    for drawn_by in ("host", "host-check", "host-check-shuffled"):
        with open_backend(drawn_by) as backend:
            frames.append(Renderer(backend, scene, 97, 81, name, keep_float=True).render(camera))
    for frame in frames[1:]:
        np.testing.assert_array_equal(frame.image_f32, frames[0].image_f32)
        assert (frame.n_visible, frame.n_instances) == (frames[0].n_visible, frames[0].n_instances)


@pytest.mark.parametrize("drawn_by", ["host", pytest.param("cuda", marks=pytest.mark.cuda)])
@pytest.mark.parametrize(
    "scene_name",
    ["leica-sofort-top8192.ply", "yashica-t4-top8192.ply", "playbot_lod3_31k_sh2.ply", "plant_114k_sh0.ply",
     "tarot_115k_sh0.ply", "playbot_lod1_250k_sh2.ply"],
)  # fmt: skip
def test_every_variant_on_every_real_scene(kernels, shared_data, scene_name, drawn_by):
    scene = load(shared_data / "ply" / scene_name)
    camera = scenes.around(scene.bounds(), 160, 90, 78.0)
    with open_backend(drawn_by) as backend:  # first: it skips where there is no GPU
        exact = {culling: exact_image(scene, camera, culling) for culling in ("radius", "tight")}
        for name in ALL:
            renderer = Renderer(backend, scene, 160, 90, name, keep_float=True)
            frame = renderer.render(camera)
            renderer.close()
            expected, reference = exact[variant(name).culling]
            try:
                assert_within_bar(name, frame, expected, reference)
            except AssertionError as error:
                raise AssertionError(f"{name}: {error}") from None


@pytest.mark.parametrize("raster", ["block", "dual"])
def test_fast_differs_from_exact_in_at_most_one_byte_in_100_000(host, raster):
    differing = total = 0
    for seed in range(6):
        scene, camera = scenes.cloud(4000, seed=seed, size=0.06), scenes.camera(320, 240, 300.0)
        exact, fast = (
            Renderer(host, scene, 320, 240, f"fp32-split-tight-{e}-{raster}").render(camera).image.astype(int)
            for e in ("exact", "fast")
        )
        assert np.abs(exact - fast).max() <= 1
        differing += int((exact != fast).sum())
        total += exact.size
    assert total > 1_000_000
    assert differing <= total / 100_000, f"{differing} of {total} bytes differ"


def schraudolph(x: np.ndarray) -> np.ndarray:
    """RoofGS's e^x: I(P) = floor(2^23 (P / ln 2 + 127 - 0.045677)) as the bits of a float."""
    steps = np.floor(2.0**23 * (x / np.log(2) + 127 - 0.045677)).astype(np.int32)
    return steps.view(np.float32).astype(np.float64)


def test_schraudolphs_relative_error_over_the_range_that_is_drawn():
    x = np.linspace(-np.log(255), 0, 1_000_001)
    relative = schraudolph(x) / np.exp(x) - 1
    assert np.abs(relative).max() < 0.0312  # the paper says "about 0.03"
    assert np.abs(relative).max() > 0.0311  # no better, either: the test looks at the right thing
    assert pytest.approx(127 - 0.045677, abs=1e-6) == twin.C.BITS_BIAS


def test_schraudolphs_pixel_error_is_bounded_whatever_the_number_of_blends():
    # |dC| <= eps for colours in 0..1 (RoofGS, appendix): worst random stacks, errors at their worst as well
    rng = np.random.default_rng(0)
    for n in (1, 2, 5, 30, 300):
        power = rng.uniform(-np.log(255), 0, (4000, n))
        opacity = rng.uniform(1 / 255, 0.99, (4000, n))
        colour = rng.integers(0, 2, (4000, n)).astype(float)
        pictures = []
        for e in (np.exp, schraudolph):
            alpha = np.minimum(0.99, opacity * e(power))
            before = np.cumprod(np.concatenate([np.ones((4000, 1)), 1 - alpha[:, :-1]], axis=1), axis=1)
            pictures.append((before * alpha * colour).sum(axis=1))
        assert np.abs(pictures[0] - pictures[1]).max() <= 0.03


@pytest.mark.parametrize(
    ("width", "height", "tiles", "depth"), [(640, 480, 11, 21), (1920, 1080, 13, 19), (3840, 2160, 15, 17)]
)
def test_the_bits_of_a_packed_key(width, height, tiles, depth):
    n_tiles = -(-width // 16) * -(-height // 16)
    assert (tile_bits(n_tiles), depth_bits(n_tiles)) == (tiles, depth)
    assert ROOFGS.sort_bits(n_tiles) == 32


@pytest.mark.parametrize("size", [(640, 480), (3840, 2160)])
def test_depth_quantisation_is_monotone_and_as_fine_as_it_should_be(host, size):
    # splats one behind the other, nearer together than a step and farther apart
    n = 3000
    z = np.sort(np.random.default_rng(1).uniform(1, 9, n)).astype(np.float32)
    line = scenes.scene(np.column_stack([0 * z, 0 * z, z]), np.full((n, 3), 1e-4), np.tile([1, 0, 0, 0], (n, 1)),
                        np.full(n, 0.5), np.zeros((n, 1, 3)))  # fmt: skip
    camera = scenes.camera(*size, focal=300.0)
    renderer = Renderer(host, line, *size, "fp32-packed32-radius-exact-block")
    frame = renderer.render(camera)
    bits = depth_bits(-(-size[0] // 16) * -(-size[1] // 16))
    keys = renderer.read("instance_keys")[: frame.n_instances]
    steps = (keys & np.uint32(2**bits - 1)).astype(np.int64)
    order = renderer.read("instance_splats")[: frame.n_instances]
    depths = renderer.read("splat_depths")
    assert (np.diff(z[order][keys >> bits == keys[0] >> bits]) >= 0).all()  # tile by tile front to back
    bits_of = depths.view(np.int32).astype(np.int64)
    span = int(bits_of[-1] - bits_of[0])
    for splat, step in zip(order, steps):
        exact = (bits_of[splat] - bits_of[0]) / span * (2**bits - 1)
        # float32 counts steps to within 2^-23 of their number; the range is a little wider than the line
        assert abs(step - exact) <= 2 + exact * 2e-6 + 2**bits * 1e-6
    far_apart = np.diff(bits_of) > 3 * span / (2**bits - 1)
    of_splat = np.zeros(n, np.int64)
    of_splat[order] = steps
    assert (np.diff(of_splat)[far_apart] > 0).all()


@pytest.mark.parametrize(
    "variant", ["roofgs", "best", "packed-packed32-tight-fast-dual", "fp32-packed32-tight-exact-dual"]
)
def test_a_floater_far_away_does_not_mix_up_what_is_near(any_backend, variant):
    cloud = scenes.cloud(600, seed=8)
    floater = scenes.scene([[0, 0, 3e6]], [[1, 1, 1]], [[1, 0, 0, 0]], [0.5], np.zeros((1, *cloud.sh.shape[1:])))
    arrays = {name: np.concatenate([getattr(cloud, name), getattr(floater, name)]) for name in ARRAYS}
    both = dataclasses.replace(cloud, **arrays)
    pictures = []
    for scene, name in ((cloud, "exact"), (both, variant)):
        renderer = Renderer(any_backend, scene, 96, 80, name, keep_float=True)
        pictures.append(np.clip(renderer.render(scenes.camera()).image_f32, 0, 1))
        renderer.close()
    bar = tolerances.BITS_MIN_PSNR if variant == "roofgs" else tolerances.PACKED_MIN_PSNR
    assert -10 * np.log10(np.square(pictures[0] - pictures[1]).mean()) >= bar


@pytest.mark.parametrize("sh_degree", [0, 1, 2, 3])
def test_packed_sh_error_is_at_most_half_a_step_of_its_degree(sh_degree):
    scene = scenes.cloud(5000, seed=sh_degree, sh_degree=sh_degree)
    packed = pack(scene)
    n = (sh_degree + 1) ** 2
    values = packed.sh_bytes[:, : 3 * n].reshape(-1, n, 3).astype(np.float64)
    for degree in range(sh_degree + 1):
        band = slice(degree**2, (degree + 1) ** 2)
        step = np.abs(scene.sh[:, band].astype(np.float64)).max(axis=(0, 1)) / 127
        np.testing.assert_allclose(packed.sh_scales[degree], step, rtol=1e-6)
        error = np.abs(values[:, band] * packed.sh_scales[degree] - scene.sh[:, band])
        assert (error <= 0.5001 * step + 1e-7).all()
        assert np.abs(values[:, band]).max() == 127
    n_bytes = scene.means[0].nbytes + packed.halves[0].nbytes + packed.sh_bytes[0].nbytes
    assert n_bytes == 12 + 16 + {0: 4, 1: 12, 2: 28, 3: 48}[sh_degree]
    assert n_bytes <= 76


@pytest.mark.parametrize("scale", [1e-6, 1e-2, 1.0, 1e4, 1e6])
def test_packed_shapes_keep_their_digits_at_every_scale(scale):
    scene = scenes.cloud(500, seed=3)
    scene.scales[:] = scene.scales * np.float32(scale)
    packed = pack(scene)
    halves = packed.halves.astype(np.float64)
    large = scene.scales > scene.scales.max() * 1e-6
    np.testing.assert_allclose((halves[:, 4:7] * packed.half_scale)[large], scene.scales[large], rtol=2**-10)
    np.testing.assert_allclose(halves[:, :4], scene.quats, atol=2**-11)
    np.testing.assert_allclose(halves[:, 7], scene.opacities, rtol=2**-10)


@pytest.mark.parametrize("seed", range(8))
def test_tight_culling_drops_nothing_that_alpha_reaches(host, seed):
    """Each pixel where alpha >= 1/255 by the float64 twin lies in a tile that has the splat; and few tiles are idle."""
    rng = np.random.default_rng(seed)
    scene, camera = scenes.cloud(400, seed=seed, size=[0.004, 0.03, 0.3][seed % 3]), scenes.camera(200, 160, 150.0)
    scene.opacities[:100] = np.float32(1 / 255) * (1 + rng.uniform(-0.01, 0.05, 100)).astype(np.float32)
    scene.scales[100:200, 0] *= 40  # long thin ones
    renderer = Renderer(host, scene, 200, 160, "fp32-ref64-tight-exact-block")
    frame = renderer.render(camera)
    instances = set(zip(*(a.tolist() for a in instance_list(renderer, frame))))
    reference = Renderer(ReferenceBackend(), scene, 200, 160, "fp32-ref64-radius-exact-block")
    reference.render(camera)
    p = reference._frame.fields
    x, y = np.meshgrid(np.arange(200) + 0.5, np.arange(160) + 0.5)
    centres = np.stack([x.ravel(), y.ravel()], axis=1)
    tiles = ((centres[:, 1] // 16) * 13 + centres[:, 0] // 16).astype(int)
    seen = np.nonzero(scene.means[:, 2] > 0.201)[0]
    reached = idle = 0
    for splat in seen:
        needed = set(np.unique(tiles[twin.alphas_of(p, np.array([splat]), centres)[0] > 0]).tolist())
        missing = {tile for tile in needed if (splat, tile) not in instances}
        assert not missing, f"splat {splat} reaches tiles {missing}"
        reached += len(needed)
        idle += sum(1 for s, t in instances if s == splat and t not in needed)
    assert reached > 200
    assert idle <= 0.15 * reached + 20, "the tiles are those of the ellipse, not of a box"


def instance_list(renderer, frame):
    keys = renderer.read("instance_keys")[: frame.n_instances]
    return renderer.read("instance_splats")[: frame.n_instances], (keys >> np.uint64(32)).astype(np.int64)


@pytest.mark.parametrize("name", ["best", "packed-split-tight-fast-dual", "packed-packed32-tight-bits-dual"])
def test_growing_works_in_every_pipeline(any_backend, name):
    cloud = scenes.cloud(5000, seed=1, sh_degree=0)
    cloud.means[:, 2] = np.linspace(1, 2, 5000)
    cloud.means[:, :2] = 0
    cloud.scales[:] = 3
    cloud.opacities[:] = 0.01
    renderer = Renderer(any_backend, cloud, 96, 80, name)
    first = renderer.render(scenes.camera())
    assert first.redraws == 1
    again = renderer.render(scenes.camera())
    assert again.redraws == 0
    np.testing.assert_array_equal(first.image, again.image)


def test_names_of_variants():
    assert BASELINE.entries["project"] == "project_fp32_radius"
    # two storages, three keys of tiles, two cullings, three exponentials, two rasters; and the bins
    assert len(ALL) == len(set(ALL)) == 2 * 3 * 2 * 3 * 2 + 2 * 2
    assert len(TENSOR) == 2 * 2
    assert LADDER[0] is BASELINE
    assert ROOFGS in LADDER
    assert LADDER[-4:] == (BEST, WIDE, variants.TENSOR, variants.TENSOR_WIDE)
    assert (BEST.bin_size, WIDE.bin_size, BASELINE.bin_size) == (32, 64, 0)
    for before, after in zip(LADDER, LADDER[1:]):
        assert before.entries != after.entries


@pytest.mark.parametrize(
    "name",
    [
        "packed-split-tight-fast-patch8",
        "packed-bins-tight-fast-dual",
        "fp32-bins-radius-fast-patch16",
        "fp32-bins-tight-exact-patch16",
        "fp32-bins-tight-bits-patch8",
    ],
)
def test_choices_that_do_not_go_together_are_refused(name):
    with pytest.raises(DeviceError, match="key bins goes with tight, fast and a patch raster"):
        variant(name)
    assert name not in ALL


@pytest.mark.parametrize("name", ["fused", "packed-split-tight-fast-warp", "bins"])
def test_unknown_names_are_refused(name):
    with pytest.raises(DeviceError, match="no variant"):
        variant(name)


def test_auto_takes_the_wide_bins_where_a_multiprocessor_has_many_pixels():
    h200, nano = 8 * 132, 8 * 1
    assert not suits_wide(1_000_000, 1920, 1080, h200)
    assert suits_wide(1_000_000, 3840, 2160, h200)
    assert suits_wide(4_000_000, 3840, 2160, h200)
    assert suits_wide(50_000, 640, 480, nano)
    assert not suits_wide(742_000, 863, 480, nano), "its lists would be too long"
    assert variant("auto", "cuda") is BEST
    assert variant("auto", "cuda", prefers_wide=True) is WIDE
    assert variant("auto", "cuda", tensor_cores=True) is variants.TENSOR
    assert variant("auto", "cuda", prefers_wide=True, tensor_cores=True) is variants.TENSOR_WIDE
    assert gpu_default(1_000_000, 3840, 2160, 132, tensor_cores=True) is variants.TENSOR_WIDE
    for prefers_wide in (False, True):
        on_host = variant("auto", "host", prefers_wide=prefers_wide)
        assert [getattr(on_host, axis) for axis in AXES] == ["fp32", "bins", "tight", "fast", "patch8"]
    assert variant("auto", "reference", prefers_wide=True).name == "exact"
    assert variant("auto", "reference", is_packed=True).name == "packed-split-tight-exact-dual"


def test_every_entry_has_a_twin(host, kernels):
    with open_backend("host-check") as backend:
        of_frames = {kernel for kernel in backend.kernels() if not kernel.startswith("ceiling_")}
    assert set(KERNELS) == of_frames
    assert {entry for v in combinations(tensor_cores=True) for entry in v.entries.values()} <= of_frames
    assert of_frames - set(host.kernels()) == {"rasterize_tensor8_fast", "rasterize_tensor16_fast"}
