"""Key ``bins``: records, masks and lists stage by stage; pictures against the exact ones; what no other key has."""

from __future__ import annotations

import dataclasses
from functools import lru_cache
from types import SimpleNamespace

import numpy as np
import pytest
import scenes
import tolerances
from conftest import open_backend
from images import psnr, reference_fields

from edgegs.backends import twin_bins
from edgegs.backends.reference import ReferenceBackend
from edgegs.camera import look_at
from edgegs.errors import DeviceError
from edgegs.kernels.headers import constants
from edgegs.kernels.variants import variant
from edgegs.renderer import Renderer
from edgegs.scene import load

C = constants()
FP32 = ("fp32-bins-tight-fast-patch8", "fp32-bins-tight-fast-patch16")
NAMES = (*FP32, "best", "wide")
#: Drawn where there are tensor cores, or a build that takes them to pieces.
TENSOR = ("fp32-bins-tight-fast-tensor8", "fp32-bins-tight-fast-tensor16")


# --- scenes ---


def stack(n, depths, opacity=0.01, size=0.02, seed=0):
    """n small splats near the middle of the view, at those depths."""
    rng = np.random.default_rng(seed)
    z = np.broadcast_to(np.asarray(depths, np.float64), n)
    xy = rng.uniform(-0.03, 0.03, (n, 2)) * z[:, None]
    quats = rng.normal(size=(n, 4))
    quats /= np.linalg.norm(quats, axis=1, keepdims=True)
    return scenes.scene(np.column_stack([xy, z]), np.full((n, 3), size) * z[:, None], quats, np.full(n, opacity),
                        rng.uniform(-1.5, 1.7, (n, 1, 3)))  # fmt: skip


def needles(n=80, seed=0, opacity=0.7):
    """Long thin splats, turned about the line of sight, whose middles lie along the edges of the picture."""
    rng = np.random.default_rng(seed)
    turn, side, along = rng.uniform(0, np.pi, n), rng.integers(0, 4, n), rng.uniform(-1.1, 1.1, n)
    z = rng.uniform(1.5, 4.0, n)
    across = np.where(side % 2, 1.0, -1.0) * rng.uniform(0.95, 1.05, n)
    x, y = np.where(side < 2, along, across) * 0.53, np.where(side < 2, across, along) * 0.44
    quats = np.column_stack([np.cos(turn / 2), 0 * turn, 0 * turn, np.sin(turn / 2)])
    scales = np.column_stack([rng.uniform(0.3, 3.0, n), np.full(n, 0.002), np.full(n, 0.002)]) * z[:, None]
    return scenes.scene(np.column_stack([x * z, y * z, z]), scales, quats, np.full(n, opacity),
                        rng.uniform(-1.5, 1.7, (n, 1, 3)))  # fmt: skip


def faint(n=300, seed=0):
    """Half of them just over 1/255, half under it."""
    cloud = scenes.cloud(n, seed=seed, size=0.2)
    cloud.opacities[:] = np.float32(1 / 255) * np.where(np.arange(n) % 2, 1.2, 0.999).astype(np.float32)
    return cloud


def giants():
    """Larger than the picture, one of them by far; one nearly in the near plane; small ones among them."""
    colours = [(0.2 * i, 0.5, 0.7) for i in range(4)]
    walls = [scenes.one((0, 0, 1 + i), (10.0**i,) * 3, opacity=0.3, colour=colour) for i, colour in enumerate(colours)]
    at_near = scenes.one(mean=(0.01, 0, 0.2001), scale=(0.1, 0.1, 0.1), opacity=0.4)
    sideways = scenes.one(mean=(50, 0, 0.3), scale=(5, 5, 5))
    return scenes.join(*walls, at_near, sideways, scenes.cloud(100, seed=5, sh_degree=0))


def antialiased():
    return dataclasses.replace(scenes.cloud(400, seed=9, size=0.02), antialiased=True)


def one_far():
    """A cloud and one splat so far behind that many of the others share a bucket of depths."""
    cloud = scenes.cloud(500, seed=8, sh_degree=0, size=0.08)
    return scenes.join(cloud, scenes.one(mean=(0, 0, 5e9)))


SCENES = {
    "cloud": lambda: scenes.cloud(700, seed=3, size=0.08),
    "needles": needles,
    "faint": faint,
    "giants": giants,
    "antialiased": antialiased,
    "one far": one_far,
    "sparse": lambda: scenes.cloud(100, seed=11, size=0.05),
    "one splat": lambda: scenes.one(scale=(0.2, 0.1, 0.1)),
    "nothing": lambda: scenes.cloud(0),
    "equal depths": lambda: stack(900, 2.0, opacity=0.4),
    "threes of equal depths": lambda: stack(600, 1 + np.random.default_rng(2).permutation(600) // 3 / 99),
    "equal and one far": lambda: stack(512, np.where(np.arange(512) == 100, 5e9, 2 + np.arange(512) % 7 * 2e-7)),
    "long": lambda: stack(9000, np.random.default_rng(1).uniform(1, 9, 9000)),
    "long and equal": lambda: stack(4500, np.where(np.arange(4500) % 3, 2.0, 3.0)),
}


def skip_without_tensor_cores(backend, name):
    if variant(name).needs_tensor_cores and not backend.has_tensor_cores:
        pytest.skip(f"{backend.image} has no kernels for tensor cores")


def bins_of(renderer):
    """Bins of the picture that was drawn last, in x and y."""
    return tuple(-(-side // renderer.variant.bin_size) for side in renderer._size)


def draw(backend, scene, camera, name, **options):
    skip_without_tensor_cores(backend, name)
    renderer = Renderer(backend, scene, camera.width, camera.height, name, keep_float=True, **options)
    return renderer, renderer.render(camera)


@lru_cache(maxsize=None)
def exact_frame(case, size, name):
    """The twin's picture, drawn once for all backends."""
    return draw(ReferenceBackend(), SCENES[case](), scenes.camera(*size), name)[1]


# --- what the kernels left behind ---


def emitted(renderer, frame):
    """The instances (I,): ``depth`` bits, ``splat``, ``mask``, ``bin``, by bin, then depth, then splat."""
    rows = renderer.read("bin_instances")[: frame.n_instances]
    rows = rows[np.lexsort((rows[:, 1], rows[:, 0], rows[:, 3]))]
    return SimpleNamespace(depth=rows[:, 0], splat=rows[:, 1].astype(np.int64), mask=rows[:, 2], bin=rows[:, 3])


def assert_lists_hold_what_was_emitted(renderer, frame):
    """Exactly: each bin's instances that touch a patch, front to back, equal depths by the splat's index."""
    found = emitted(renderer, frame)
    some = found.mask != 0
    n_bins = int(np.prod(bins_of(renderer)))
    starts = renderer.read("bin_starts")[: n_bins + 1]
    np.testing.assert_array_equal(starts, np.searchsorted(found.bin[some], np.arange(n_bins + 1)))
    n = int(starts[-1])
    np.testing.assert_array_equal(renderer.read("bin_lists")[:n], np.stack([found.splat, found.mask], axis=1)[some])
    between_frames = ["bin_counts", *(name for name in renderer._buffers if name.endswith("ticket"))]
    assert len(between_frames) > 2
    for name in between_frames:
        assert not renderer.read(name).any(), f"{name} is cleared for the next frame"
    return np.diff(starts.astype(np.int64))


def twins_view(renderer, size, name):
    """The twin's parameters for a picture, with the records that the kernels made."""
    p = SimpleNamespace(width=size[0], height=size[1], splat_records=renderer.read("splat_records"))
    p.bin_shift = variant(name).bin_size.bit_length() - 1
    p.n_bins_x, p.n_bins_y = bins_of(renderer)
    return p


def drawn_splats(n_splats, found):
    """(N,) bool: the splats that have an instance; the records of the others were never written."""
    drawn = np.zeros(n_splats, bool)
    drawn[found.splat] = True
    return drawn


def count_bits(masks):
    return int(np.unpackbits(np.ascontiguousarray(masks).view(np.uint8)).sum())


# --- stage by stage ---


@pytest.mark.parametrize("name", ["fp32-bins-tight-fast-patch8", "wide"])
@pytest.mark.parametrize(("n", "degree"), [(0, 0), (1, 1), (33, 2), (257, 3), (700, 0)])
def test_records_are_the_twins(backend, name, n, degree):
    scene, camera = scenes.cloud(n, seed=n + degree, sh_degree=degree), scenes.camera()
    renderer, frame = draw(backend, scene, camera, name)
    reference, expected_frame = draw(ReferenceBackend(), scene, camera, name)
    found_at = drawn_splats(n, emitted(renderer, frame))
    expected_at = drawn_splats(n, emitted(reference, expected_frame))
    assert frame.n_visible == found_at.sum()
    assert (found_at != expected_at).sum() <= 1 + n // 500, "edges of the picture, within rounding"
    assert n < 33 or expected_at.mean() > 0.3
    both = found_at & expected_at
    found, expected = (twin_bins.read_records(r.read("splat_records")[both]) for r in (renderer, reference))
    np.testing.assert_allclose(found.depth, expected.depth, rtol=tolerances.DEPTH_RELATIVE)
    for axis in ("u", "v"):
        np.testing.assert_allclose(
            getattr(found, axis), getattr(expected, axis), rtol=1e-5, atol=tolerances.MEAN2D_PIXELS
        )
    for part in ("xx", "yy"):
        assert (getattr(expected, part) < 0).all()
        np.testing.assert_allclose(getattr(found, part), getattr(expected, part), rtol=tolerances.CONIC_RELATIVE)
    np.testing.assert_allclose(found.lean, expected.lean, rtol=tolerances.CONIC_RELATIVE, atol=1e-4)
    np.testing.assert_allclose(found.log2_opacity, expected.log2_opacity, atol=1.01 / C["OPACITY_STEPS"])
    np.testing.assert_allclose(found.colours, expected.colours, rtol=2**-10, atol=2 * tolerances.COLOUR_ABSOLUTE)
    opacities = np.minimum(scene.opacities[both], C["ALPHA_MAX"])
    np.testing.assert_allclose(found.log2_opacity, np.log2(opacities), atol=2**-10 / np.log(2) + 1 / C["OPACITY_STEPS"])


@pytest.mark.parametrize("name", FP32)
@pytest.mark.parametrize("case", ["cloud", "needles", "faint", "giants", "antialiased"])
def test_masks_are_the_twins_and_forget_no_patch_that_alpha_reaches(backend, case, name):
    size = (97, 81)
    scene = SCENES[case]()
    renderer, frame = draw(backend, scene, scenes.camera(*size), name)
    assert_lists_hold_what_was_emitted(renderer, frame)
    found, p = emitted(renderer, frame), twins_view(renderer, size, name)
    drawn = drawn_splats(scene.n_splats, found)
    pairs = np.zeros((int(np.prod(bins_of(renderer))), scene.n_splats), np.uint32)
    expected = pairs.copy()
    pairs[found.bin, found.splat] = found.mask
    splat, bin_, mask = twin_bins.instances_of(p, drawn)
    expected[bin_, splat] = mask
    # an ellipse's end within a thousandth of a pixel of a pixel's centre
    assert count_bits(pairs ^ expected) <= 2 + count_bits(expected) // 400
    assert count_bits(expected & ~pairs) <= 2, "the kernels take a hair more"

    # by brute force: alpha at every pixel of the picture
    records = twin_bins.read_records(p.splat_records)
    patch_width, bin_size = variant(name).bin_size // C["BIN_COLUMNS"], variant(name).bin_size
    x, y = np.meshgrid(np.arange(size[0]), np.arange(size[1]))
    centres = np.stack([x.ravel() + 0.5, y.ravel() + 0.5], axis=1)
    bins = (y // bin_size * p.n_bins_x + x // bin_size).ravel()
    bits = (y % bin_size // C["PATCH_HEIGHT"] * C["BIN_COLUMNS"] + x % bin_size // patch_width).ravel()
    needed = np.zeros_like(pairs)
    for one in np.nonzero(drawn)[0]:
        reached = twin_bins.record_alphas(records, np.array([one]), centres)[0] >= 1.0001 * C["ALPHA_MIN"]
        np.bitwise_or.at(needed[:, one], bins[reached], np.uint32(1) << bits[reached].astype(np.uint32))
    assert count_bits(needed & ~pairs) == 0
    assert count_bits(needed) > 100
    if case != "giants":  # a bin's mask has patches outside the picture, too
        assert count_bits(pairs) <= 1.5 * count_bits(needed) + 40, "those of the ellipse, not of a box"


@pytest.mark.parametrize(
    "case", ["equal depths", "threes of equal depths", "equal and one far", "one far", "long", "long and equal"]
)
def test_each_list_is_front_to_back_with_ties_by_index(backend, case):
    name, size = FP32[1], (64, 64)
    scene = SCENES[case]()
    renderer, frame = draw(backend, scene, scenes.camera(*size), name)
    longest = assert_lists_hold_what_was_emitted(renderer, frame).max()
    if case.startswith("long"):
        assert longest > C["LIST_CAPACITY"], "more than one segment"
    if case == "long":
        assert longest > 2 * C["LIST_CAPACITY"]
    reference = exact_frame(case, size, name)
    assert psnr(frame.image, reference.image) >= 60
    again = renderer.render(scenes.camera(*size))
    np.testing.assert_array_equal(frame.image_f32, again.image_f32)


@pytest.mark.parametrize("n", [1, 2, 3, *(C["LIST_SKEW"] + more for more in (-1, 0, 1, 2)), 255, 256, 257])
def test_lists_of_a_crowd_of_depths(backend, n):
    """So many splats in one bucket: from some on, a list is sorted in another way."""
    depths = 2 + np.random.default_rng(n).integers(0, 4, n) * 3e-7  # next to each other, many equal
    both = scenes.join(stack(n, depths, seed=n), stack(1, 900.0, seed=1), stack(n, depths + 6e-7, seed=n + 1))
    renderer, frame = draw(backend, both, scenes.camera(32, 32), FP32[0])
    assert assert_lists_hold_what_was_emitted(renderer, frame).max() == 2 * n + 1


LONG, LONGEST = 2 * C["LIST_CAPACITY"], C["LIST_PARTS"] * C["LIST_CAPACITY"] // 2


@pytest.mark.parametrize(
    "n", [*(LONG + more for more in (0, 1, 2048)), *(LONGEST + more for more in (-1, 0, 1, 70_000))]
)
@pytest.mark.parametrize("n_depths", [101, 10**9])
@pytest.mark.parametrize("drawn_by", ["host", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_lists_that_are_dealt_into_parts(kernels, drawn_by, n, n_depths):
    """One bin's list at the edges of parts and of their number; few depths leave the last buckets empty."""
    depths = 2 + np.random.default_rng(n).integers(0, n_depths, n) * (5 / n_depths if n_depths > 1000 else 3e-7)
    with open_backend(drawn_by) as backend:
        renderer, frame = draw(backend, stack(n, depths, size=0.005), scenes.camera(32, 32), FP32[0])
        assert assert_lists_hold_what_was_emitted(renderer, frame).max() == n
        np.testing.assert_array_equal(renderer.render(scenes.camera(32, 32)).image_f32, frame.image_f32)
        renderer.close()


def test_several_blocks_sort_a_long_list(backend):
    depths = np.random.default_rng(1).uniform(1, 9, 9000)
    scene = scenes.join(stack(9000, depths), scenes.cloud(400, sh_degree=0))
    renderer, _ = draw(backend, scene, scenes.camera(97, 81), FP32[0])
    starts = renderer.read("bin_starts").astype(int)
    n_shares = int(renderer._frame.record["n_list_shares"])
    sizes, shares = np.diff(starts), renderer.read("list_shares")[:n_shares].astype(int)
    sharers = twin_bins.sharers_of(sizes, len(shares) - len(sizes))
    assert sharers[np.argmax(sizes)] > 1
    expected = [(starts[i], starts[i + 1], j, n) for i, n in enumerate(sharers) for j in range(n)]
    begin, end = shares[:, 0], shares[:, 1]
    assert sorted(map(tuple, shares[end > begin])) == sorted(one for one in expected if one[0] < one[1])
    lengths = (end - begin)[: len(expected)]
    assert (lengths[1:] <= 1.25 * lengths[:-1] + 1).all(), "the longest first, by classes"
    assert (shares[len(expected) :] == (0, 0, 0, 1)).all()


@pytest.mark.parametrize("n_sharing", [1, 7, 264])
def test_shares_never_outnumber_the_blocks(n_sharing):
    rng = np.random.default_rng(n_sharing)
    for scale in (10, 1_000, 100_000):
        sizes = (rng.pareto(1.0, 500) * scale).astype(np.int64)
        sharers = twin_bins.sharers_of(sizes, n_sharing)
        assert sharers.sum() <= len(sizes) + n_sharing
        assert (sharers[sizes <= C["LIST_CAPACITY"]] == 1).all()


# --- pictures ---

CASES = [
    *((case, (97, 81)) for case in ("cloud", "needles", "faint", "giants", "antialiased", "one far", "nothing")),
    *(("cloud", size) for size in ((1, 1), (33, 17), (65, 129))),
    ("needles", (65, 129)),
    ("one splat", (33, 17)),
]


@pytest.mark.parametrize("name", [*NAMES, *TENSOR, "tensor"])
@pytest.mark.parametrize(("case", "size"), CASES)
def test_pictures_are_near_the_exact_ones_and_the_twins(backend, case, size, name):
    storage = variant(name).storage
    scene = SCENES[case]()
    _, frame = draw(backend, scene, scenes.camera(*size), name)
    twins = exact_frame(case, size, name)
    assert (frame.n_splats, frame.redraws) == (scene.n_splats, 0)
    assert frame.n_visible == pytest.approx(twins.n_visible, abs=1 + scene.n_splats // 300)
    assert frame.n_instances == pytest.approx(twins.n_instances, rel=0.01, abs=3)
    assert psnr(frame.image_f32, twins.image_f32) >= 60
    # a splat whose alpha is at 1/255 is drawn or not
    assert np.abs(frame.transmittance - twins.transmittance).max() < 2.1 * C["ALPHA_MIN"]
    exact = exact_frame(case, size, f"{storage}-split-tight-exact-dual")
    if case == "nothing":
        assert (frame.n_visible, frame.n_instances, frame.image.max()) == (0, 0, 0)
        np.testing.assert_array_equal(frame.image, exact.image)
        return
    assert size == (1, 1) or exact.image.max() > 0
    assert psnr(frame.image_f32, exact.image_f32) >= tolerances.BINS_MIN_PSNR
    assert np.abs(frame.image.astype(int) - exact.image).max() <= 1
    original = exact_frame(case, size, "baseline")
    if storage == "fp32":
        assert psnr(frame.image_f32, original.image_f32) >= tolerances.BINS_MIN_PSNR
    elif case != "needles":  # which need more digits of a rotation than FP16 has
        assert psnr(frame.image_f32, original.image_f32) >= tolerances.PACKED_MIN_PSNR


@pytest.mark.parametrize("name", [*NAMES, *TENSOR, "tensor"])
@pytest.mark.parametrize(("n_sheets", "is_hidden"), [(2, False), (3, True)])
def test_what_stands_behind_an_opaque_patch_is_taken_to_have_its_colour(backend, n_sheets, is_hidden, name):
    opacity, front = 0.9, (0.9, 0.5, 0.1)  # two sheets let 1/100 through, three less than PATCH_OPAQUE
    sheets = [scenes.one((0, 0, 2 + i), (1000, 1000, 0.01), opacity=opacity, colour=front) for i in range(n_sheets)]
    behind = [scenes.one((0, 0, 20 + i), (1000, 1000, 0.01), colour=(0, 1, 0)) for i in range(C["STOP_EVERY"])]
    renderer, frame = draw(backend, scenes.join(*sheets, *behind), scenes.camera(33, 17), name, background=(0, 0, 1))
    renderer.close()
    if is_hidden:
        assert not frame.transmittance.any()
        np.testing.assert_allclose(frame.image_f32, np.broadcast_to(np.float32(front), (17, 33, 3)), atol=2e-3)
    else:
        green = 0.5 * 0.99 + 0.01
        np.testing.assert_allclose(frame.image_f32[..., 1], green, atol=1e-3)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("case", ["cloud", "needles", "giants", "equal depths"])
def test_all_host_builds_give_equal_bytes(kernels, case, name):
    scene, camera = SCENES[case](), scenes.camera(97, 81)
    drawn = []
    for build in ("host", "host-check", "host-check-shuffled"):
        with open_backend(build) as backend:
            renderer, frame = draw(backend, scene, camera, name)
            found = emitted(renderer, frame)
            drawn.append((frame, found, renderer.patch_counts()))
            renderer.close()
    (first, emitted_first, _), *others = drawn
    for frame, found, _ in others:
        for array in ("image", "image_f32", "transmittance"):
            np.testing.assert_array_equal(getattr(frame, array), getattr(first, array))
        for field in ("depth", "splat", "mask", "bin"):
            np.testing.assert_array_equal(getattr(found, field), getattr(emitted_first, field))
        assert (frame.n_visible, frame.n_instances) == (first.n_visible, first.n_instances)
    assert others[0][2] == others[1][2], "counts, whatever the order of threads"


@pytest.mark.parametrize(
    "scene_name",
    ["leica-sofort-top8192.ply", "yashica-t4-top8192.ply", "playbot_lod3_31k_sh2.ply", "plant_114k_sh0.ply",
     "tarot_115k_sh0.ply", "playbot_lod1_250k_sh2.ply"],
)  # fmt: skip
@pytest.mark.parametrize("drawn_by", ["host", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_real_scenes_meet_the_bars(kernels, shared_data, scene_name, drawn_by):
    scene = load(shared_data / "ply" / scene_name)
    camera = scenes.around(scene.bounds(), 320, 180, 156.0)
    with open_backend(drawn_by) as backend:

        def picture(name):
            renderer = Renderer(backend, scene, 320, 180, name)
            image = renderer.render(camera).image
            renderer.close()
            return image

        exact, packed = picture("exact"), picture("packed-split-tight-exact-dual")
        assert (exact.max(axis=2) > 20).mean() > 0.02, "the camera must see the scene"
        found = {name: picture(name) for name in NAMES}
        if backend.has_tensor_cores:
            found.update((name, picture(name)) for name in (*TENSOR, "tensor", "tensor-wide"))
    for name in {*FP32, *TENSOR} & set(found):
        assert psnr(found[name], exact) >= tolerances.BINS_MIN_PSNR, name
    for name in {"best", "wide", "tensor", "tensor-wide"} & set(found):
        assert psnr(found[name], exact) >= tolerances.PACKED_MIN_PSNR, name
        assert psnr(found[name], packed) >= tolerances.BINS_MIN_PSNR, name


# --- sizes, counts, and what frames leave to the next ---


def row_of_splats(width, n, seed=0):
    """n splats along a picture that is very wide and 8 pixels high, and a camera for it."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-0.5, 0.5, n) * width
    scene = stack(n, 100.0, opacity=0.6, size=0.03, seed=seed)
    scene.means[:, 0], scene.means[:, 1] = x, rng.uniform(-4, 4, n)
    return scene, scenes.camera(width, 8, focal=100.0)


@pytest.mark.parametrize(
    ("build", "name", "width"),
    [
        *(("host", *shape) for shape in ((FP32[0], 66_000), (FP32[1], 131_200), (FP32[0], 65_536))),
        ("host-check-shuffled", FP32[0], 66_000),
        ("host-check", TENSOR[0], 66_000),
        *(
            pytest.param("cuda", *shape, marks=pytest.mark.cuda)
            for shape in ((FP32[0], 66_000), (FP32[1], 131_200), (TENSOR[0], 66_000), (TENSOR[1], 131_200))
        ),
    ],
)
def test_more_bins_than_a_block_counts_for_itself(host, build, name, width):
    n_bins = -(-width // variant(name).bin_size)
    assert (n_bins > C["MAX_BINS"]) == (width != 65_536)
    scene, camera = row_of_splats(width, 900)
    with open_backend(build) as backend:
        renderer, frame = draw(backend, scene, camera, name)
        assert (assert_lists_hold_what_was_emitted(renderer, frame) > 0).sum() > 500
        renderer._grow(16)
        redrawn = renderer.render(camera)
        assert redrawn.redraws == 1
        np.testing.assert_array_equal(frame.image_f32, redrawn.image_f32)
    exact = Renderer(host, scene, width, 8, "exact").render(camera)
    # positions of tens of thousands of pixels are right to 1/256
    assert psnr(frame.image, exact.image) >= 55


@pytest.mark.parametrize("name", NAMES)
def test_instances_that_outgrow_their_room_are_drawn_again(any_backend, name):
    scene, camera = scenes.cloud(600, seed=6, size=0.1), scenes.camera(97, 81)
    fresh, expected = draw(any_backend, scene, camera, name)
    renderer = Renderer(any_backend, scene, 97, 81, name, keep_float=True)
    for room in (1, 100, expected.n_instances - 1):
        renderer._grow(room)
        frame = renderer.render(camera)
        assert frame.redraws == 1
        assert frame.n_instances == expected.n_instances
        np.testing.assert_array_equal(frame.image_f32, expected.image_f32)
    renderer._grow(expected.n_instances)
    assert renderer.render(camera).redraws == 0
    np.testing.assert_array_equal(emitted(renderer, frame).mask, emitted(fresh, expected).mask)


@pytest.mark.parametrize("name", ["best", FP32[1], *TENSOR])
def test_smaller_pictures_and_fewer_splats_in_turn_with_the_whole(backend, name):
    scene = scenes.cloud(500, seed=7, size=0.08)
    renderer, whole = draw(backend, scene, scenes.camera(97, 81), name)
    for size, n in (((33, 17), 500), ((97, 81), 40), ((64, 64), 257), ((1, 1), 0), ((97, 81), 0)):
        less = scenes.scene(*(getattr(scene, k)[:n] for k in ("means", "scales", "quats", "opacities", "sh")))
        frame = renderer.collect(renderer.submit(scenes.camera(*size), n_splats=n))
        assert frame.n_splats == n
        assert_lists_hold_what_was_emitted(renderer, frame)
        if variant(name).storage == "fp32":  # the steps of packed SH are those of the whole scene
            alone = draw(backend, less, scenes.camera(*size), name)[1]
            np.testing.assert_array_equal(frame.image_f32, alone.image_f32)
            assert (frame.n_visible, frame.n_instances) == (alone.n_visible, alone.n_instances)
        np.testing.assert_array_equal(renderer.render(scenes.camera(97, 81)).image_f32, whole.image_f32)


@pytest.mark.parametrize("name", [*FP32, *TENSOR])
def test_splats_are_blended_over_a_backdrop(backend, name):
    scene, size = SCENES["sparse"](), (97, 81)
    camera = scenes.camera(*size)
    behind = np.random.default_rng(1).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    skip_without_tensor_cores(backend, name)
    renderer = Renderer(backend, scene, *size, name, (0.2, 0.4, 0.9), keep_float=True, takes_backdrop=True)
    over, alone = renderer.render(camera, behind), renderer.render(camera)
    exact = exact_frame("sparse", size, name)
    rgb, left = exact.image_f32, exact.transmittance[..., None]
    assert left.max() > 0.5
    assert psnr(over.image_f32, rgb + left * (behind[..., ::-1] / 255)) >= 60
    assert psnr(alone.image_f32, rgb + left * [0.2, 0.4, 0.9]) >= 60


@pytest.mark.parametrize("field", ["means", "scales", "quats"])
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf, 1e38, 2e18, 1e-42])
@pytest.mark.parametrize("name", [FP32[0], TENSOR[0]])
def test_poisoned_splats_never_spoil_their_neighbours(backend, name, field, poison):
    clean, camera = scenes.cloud(100, seed=2), scenes.camera()
    bad = scenes.cloud(1, seed=3)
    bad.means[:] = [0, 0, 1e5]  # behind everything: it may only show where nothing else is
    getattr(bad, field)[...] = poison
    renderer, frame = draw(backend, scenes.join(clean, bad), camera, name)
    _, expected = draw(backend, clean, camera, name)
    assert_lists_hold_what_was_emitted(renderer, frame)
    assert frame.n_instances <= expected.n_instances + 9
    assert np.isfinite(frame.image_f32).all()
    changed = (frame.image != expected.image).any(axis=2)
    assert (expected.transmittance[changed] > 1e-4).all()


@pytest.mark.parametrize("name", [*NAMES, *TENSOR])
def test_another_view_between_leaves_nothing_behind(backend, name):
    scene, camera = SCENES["cloud"](), scenes.camera()
    renderer, first = draw(backend, scene, camera, name)
    renderer.render(dataclasses.replace(camera, viewmat=look_at((3, 0, 5), (0, 0, 5))))
    again = renderer.render(camera)
    np.testing.assert_array_equal(first.image_f32, again.image_f32)
    assert (first.n_visible, first.n_instances) == (again.n_visible, again.n_instances)


@pytest.mark.parametrize("name", TENSOR)
def test_tensor_cores_draw_what_the_other_units_do(backend, name):
    """The same lists, and products of halves: no needle and no cloud differs by more than halves explain."""
    for case in ("cloud", "needles", "giants", "faint", "equal depths"):
        _, frame = draw(backend, SCENES[case](), scenes.camera(97, 81), name)
        _, other = draw(backend, SCENES[case](), scenes.camera(97, 81), name.replace("tensor", "patch"))
        assert psnr(frame.image_f32, other.image_f32) >= 75, case
        assert np.abs(frame.image_f32 - other.image_f32).max() < 2.5 / 255, case
        assert np.abs(frame.transmittance - other.transmittance).max() < 2.1 * C["ALPHA_MIN"]
        assert (frame.n_visible, frame.n_instances) == (other.n_visible, other.n_instances)


def test_tensor_cores_that_are_not_there_are_told(host):
    with pytest.raises(DeviceError, match=r"'tensor' needs tensor cores, and only GPUs have them; write auto"):
        Renderer(host, scenes.cloud(3), 32, 32, "tensor")


# --- what drawing takes ---


@pytest.mark.parametrize("name", FP32)
@pytest.mark.parametrize("opacity", [0.015, 0.99])
def test_patch_counts_are_those_of_the_lists(backend, name, opacity):
    size = (96, 80)  # whole patches
    scene = scenes.cloud(600, seed=4, size=0.2)
    scene.opacities[:] = opacity
    renderer, _ = draw(backend, scene, scenes.camera(*size), name)
    found = renderer.patch_counts()
    reference, _ = draw(ReferenceBackend(), scene, scenes.camera(*size), name)
    expected = reference.patch_counts()
    p = reference_fields(reference)
    touching = np.array([len(places) for _, _, places, _ in twin_bins.patches(p)])
    whole_steps = int((-(-touching // C["STOP_EVERY"]) * C["STOP_EVERY"]).sum())
    assert found["blended"] == pytest.approx(expected["blended"], rel=0.01)
    assert found["picked"] <= touching.sum() + 2
    if opacity < 0.02:  # nothing is ever finished: all is picked, and every list walked to its end
        assert found["picked"] == pytest.approx(touching.sum(), abs=3)
        assert found["blended"] == pytest.approx(whole_steps, rel=0.002)
    else:
        assert found["blended"] < 0.7 * whole_steps
    assert 0 < found["picked"] <= found["walked"]


def test_host_builds_count_the_same(kernels):
    """But for the entries looked at, which are so many at a time as a warp is wide."""
    scene, camera = scenes.cloud(900, seed=4, size=0.2), scenes.camera(96, 80)
    for name in FP32:
        counts = []
        for build in ("host", "host-check"):
            with open_backend(build) as backend:
                counts.append(draw(backend, scene, camera, name)[0].patch_counts())
        for count in ("picked", "blended"):
            assert counts[0][count] == counts[1][count], name


def test_only_bins_have_patches(host):
    renderer, _ = draw(host, scenes.cloud(10), scenes.camera(), "exact")
    with pytest.raises(ValueError, match="no patches"):
        renderer.patch_counts()
