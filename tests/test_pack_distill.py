"""Fine-tuning a reduced scene: what it is told, what it keeps, and, where torch is, the whole loop.

gsplat draws on GPUs only. In its place stands a dense rasteriser of a few lines, with gradients by torch and gsplat's
arguments; it is itself held against the reference renderer.
"""

from __future__ import annotations

import dataclasses
import types

import numpy as np
import pytest
import scenes
from images import psnr

from edgegs.backends.reference import ReferenceBackend
from edgegs.camera import Camera, look_at
from edgegs.errors import DeviceError
from edgegs.pack import distill as subject
from edgegs.renderer import Renderer

FIELDS = ("means", "scales", "quats", "opacities", "sh")


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="no torch: the fine-tuning itself is not tested")


def ring(n: int, size: int = 40) -> list:
    """Cameras before the cloud, side by side."""
    target = np.array([0.0, 0.0, 3.0])
    eyes = [[np.sin(a), 0.3 * np.cos(3 * a), 0.4 * np.cos(a) - 0.8] for a in np.linspace(-0.8, 0.8, n)]
    return [scenes.camera(size, size - 8, 0.9 * size, look_at(eye, target)) for eye in eyes]


def cloud(n: int, sh_degree: int = 1, seed: int = 3):
    rng = np.random.default_rng(seed)
    quats = rng.normal(size=(n, 4))
    sh = 0.1 * rng.normal(size=(n, (sh_degree + 1) ** 2, 3))
    sh[:, 0] = rng.uniform(-1.5, 1.5, (n, 3))
    return scenes.scene(
        rng.uniform([-1, -1, 2], [1, 1, 4], (n, 3)),
        np.exp(rng.normal(-2.2, 0.4, (n, 3))),
        quats / np.linalg.norm(quats, axis=1, keepdims=True),
        rng.uniform(0.1, 0.98, n),
        sh,
    )


def cut(scene, rows):
    return scenes.scene(*(getattr(scene, name)[rows] for name in FIELDS))


def test_parameters_and_back():
    scene = scenes.cloud(50, seed=1)
    back = subject.scene_of(scene, subject.parameters(scene))
    for name in ("means", "quats", "sh"):
        np.testing.assert_allclose(getattr(back, name), getattr(scene, name), atol=1e-6)
    np.testing.assert_allclose(back.scales, scene.scales, rtol=2e-6)
    np.testing.assert_allclose(back.opacities, np.minimum(scene.opacities, 0.99), rtol=1e-5)
    assert (back.sh_degree, back.path, back.file_sha256) == (3, scene.path, "")


def test_what_was_optimised_becomes_a_legal_scene():
    scene = scenes.cloud(6, seed=1)
    arrays = {name: np.array(array) for name, array in subject.parameters(scene).items()}
    arrays["means"][0, 1] = np.nan
    arrays["quats"][1] = 0
    arrays["quats"][2] *= 7
    arrays["log_scales"][3] = [-200, 200, 0]
    arrays["logits"][4] = 400
    back = subject.scene_of(scene, arrays)
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(back, name)[:2], getattr(scene, name)[:2])
        assert np.isfinite(getattr(back, name)).all()
    np.testing.assert_allclose(np.linalg.norm(back.quats, axis=1), 1, rtol=1e-6)
    assert np.isfinite(np.square(back.scales)).all()
    assert back.scales.min() > 0
    assert 0 < back.opacities.min() <= back.opacities.max() < 1


def test_rates_are_those_of_3dgs():
    first, last = subject.rates(0, 500, 2.5), subject.rates(499, 500, 2.5)
    assert first == {
        "means": 2.5 * 1.6e-4,
        "log_scales": 5e-3,
        "quats": 1e-3,
        "logits": 2.5e-2,
        "sh_dc": 2.5e-3,
        "sh_rest": 1.25e-4,
    }
    assert last == pytest.approx({**first, "means": 2.5 * 1.6e-6})
    assert subject.rates(0, 1, 2.5) == first
    assert set(first) == set(subject.parameters(scenes.cloud(3)))


@pytest.mark.parametrize(("n", "n_validation"), [(1, 1), (2, 1), (7, 1), (16, 2), (64, 8), (500, 8)])
def test_validation_views_are_apart_from_the_others(n, n_validation):
    cameras = ring(n)
    training, validation = subject.split_views(cameras)
    assert len(validation) == n_validation
    if n > 1:
        assert len(training) == n - n_validation
        assert not {id(camera) for camera in training} & {id(camera) for camera in validation}


def test_spread_and_jitter():
    cameras = [Camera(look_at([x, 0, 0], [x, 0, 1]), np.eye(3), 8, 8) for x in (0.0, 1.0, 2.0, 3.0, 4.0)]
    extent, shift = subject.view_spread(cameras, 100.0)
    assert (extent, shift) == (pytest.approx(2.2), pytest.approx(0.25))
    assert subject.view_spread(cameras, 1.0)[1] == pytest.approx(0.02)
    assert subject.view_spread(cameras[:1], 5.0) == (5.0, pytest.approx(0.1))
    assert subject.view_spread([cameras[0], cameras[0]], 5.0) == (5.0, 0.0)
    rng = np.random.RandomState(0)
    moved = [subject.jittered(cameras[1], rng, 0.25) for _ in range(300)]
    for camera in moved[:10]:
        np.testing.assert_allclose(camera.viewmat[:3, :3] @ camera.viewmat[:3, :3].T, np.eye(3), atol=1e-12)
    np.testing.assert_allclose(np.std([camera.eye for camera in moved], axis=0), 0.25, rtol=0.15)
    cosines = [moved_camera.viewmat[2, :3] @ cameras[1].viewmat[2, :3] for moved_camera in moved]
    assert 1.0 < np.degrees(np.arccos(np.mean(cosines))) < 4.0


@pytest.mark.parametrize("missing", ["torch", "gsplat"])
def test_a_missing_package_is_named(monkeypatch, missing):
    monkeypatch.setattr(subject.importlib.util, "find_spec", lambda name: None if name == missing else object())
    scene = scenes.cloud(4)
    says = rf"^--distill: {missing} is not installed; `pip install 'edgegs\[distill\]'` .* NVIDIA GPU"
    with pytest.raises(DeviceError, match=says):
        subject.distill(scene, scene, ring(2), 1)


def test_without_a_gpu_the_process_says_so(torch, monkeypatch):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    monkeypatch.setattr(subject, "check_installed", lambda: None)
    with pytest.raises(DeviceError, match=r"^--distill: RuntimeError: this torch sees no NVIDIA GPU"):
        subject.distill(scenes.cloud(4), scenes.cloud(4), ring(2), 1)


def answers(pipe, job):
    """In the process's place: two steps, and a scene of half the size."""
    full, reduced, cameras, steps = job
    assert isinstance(cameras, tuple)
    for step in (1, 2):
        pipe.send(("step", step))
    arrays = {**subject.parameters(reduced), "means": full.means / 2}
    pipe.send(("done", (arrays, (20.0, 24.0), steps)))


def test_what_the_process_finds_comes_back(monkeypatch):
    monkeypatch.setattr(subject, "check_installed", lambda: None)
    monkeypatch.setattr(subject, "_serve", answers)
    scene, seen = scenes.cloud(5), []
    result = subject.distilled(scene, scene, ring(2), 7, lambda step, steps: seen.append((step, steps)))
    assert seen == [(1, 7), (2, 7)]
    np.testing.assert_array_equal(result.scene.means, scene.means / 2)
    assert (result.before_db, result.after_db, result.best_step, result.scene.warnings) == (20.0, 24.0, 7, [])


def test_a_process_that_ends_without_a_word_is_an_error(monkeypatch):
    monkeypatch.setattr(subject, "check_installed", lambda: None)
    monkeypatch.setattr(subject, "_serve", filter)  # takes both arguments, and ends
    with pytest.raises(DeviceError, match="ended without a word"):
        subject.distill(scenes.cloud(4), scenes.cloud(4), ring(2), 1)


def test_gsplat_without_a_compiler_is_told(monkeypatch):
    monkeypatch.setattr(subject.importlib, "import_module", lambda name: types.SimpleNamespace(_C=None))
    with pytest.raises(RuntimeError, match="no CUDA toolkit"):
        subject._check_compiled()
    monkeypatch.setattr(subject.importlib, "import_module", lambda name: types.SimpleNamespace(_C=types))
    subject._check_compiled()


def test_nothing_to_do_is_the_callers_mistake():
    scene = scenes.cloud(4)
    for arguments in ((scene, scene, [], 1), (scene, scene, ring(2), 0), (scene, scenes.cloud(0), ring(2), 1)):
        with pytest.raises(ValueError):
            subject.distill(*arguments)


def test_input_is_kept_when_nothing_was_better():
    scene = scenes.cloud(9)
    kept = subject._judged(scene, 500, subject.parameters(scenes.cloud(9, seed=5)), (31.25, 31.25), 0)
    for name in FIELDS:
        assert getattr(kept.scene, name) is getattr(scene, name)
    assert kept.scene.warnings == [
        "distilling: none of 500 steps was better than the scene as it was (31.25 dB); left as it was"
    ]
    assert (kept.before_db, kept.after_db, kept.best_step) == (31.25, 31.25, 0)


def dense(torch):
    """gsplat's ``rasterization`` of a few splats, every one at every pixel."""

    def rasterization(
        means, quats, scales, opacities, colors, viewmats, Ks, width, height, near_plane, far_plane, eps2d, sh_degree,
        packed, backgrounds, rasterize_mode,
    ):  # fmt: skip
        assert rasterize_mode in ("classic", "antialiased")
        assert not packed
        view, K = viewmats[0], Ks[0]
        t = means @ view[:3, :3].T + view[:3, 3]
        x, y, z = t.unbind(1)
        w, i, j, k = torch.nn.functional.normalize(quats, dim=1).unbind(1)
        turn = torch.stack(
            [1 - 2 * (j * j + k * k), 2 * (i * j - w * k), 2 * (i * k + w * j),
             2 * (i * j + w * k), 1 - 2 * (i * i + k * k), 2 * (j * k - w * i),
             2 * (i * k - w * j), 2 * (j * k + w * i), 1 - 2 * (i * i + j * j)], 1
        ).reshape(-1, 3, 3)  # fmt: skip
        lens = 0.65 * width / K[0, 0], 0.65 * height / K[1, 1]
        tx, ty = (z * (value / z).clamp(-limit, limit) for value, limit in zip((x, y), lens))
        zero = torch.zeros_like(z)
        jacobian = torch.stack(
            [K[0, 0] / z, zero, -K[0, 0] * tx / z**2, zero, K[1, 1] / z, -K[1, 1] * ty / z**2], 1
        ).reshape(-1, 2, 3)
        half = jacobian @ view[:3, :3] @ turn * scales[:, None]
        sharp = half @ half.transpose(1, 2)
        blurred = sharp + eps2d * torch.eye(2)
        if rasterize_mode == "antialiased":
            opacities = opacities * (torch.linalg.det(sharp).clamp(min=0) / torch.linalg.det(blurred)).sqrt()
        conic = torch.linalg.inv(blurred)
        eye = -view[:3, :3].T @ view[:3, 3]
        dx, dy, dz = torch.nn.functional.normalize(means - eye, dim=1).unbind(1)
        one = torch.ones_like(dx)
        basis = torch.stack([0.28209479 * one, -0.48860251 * dy, 0.48860251 * dz, -0.48860251 * dx], 1)
        assert sh_degree <= 1
        colours = ((basis[:, : colors.shape[1], None] * colors).sum(1) + 0.5).clamp(min=0)
        v, u = torch.meshgrid(torch.arange(height) + 0.5, torch.arange(width) + 0.5, indexing="ij")
        centres = torch.stack([K[0, 0] * x / z + K[0, 2], K[1, 1] * y / z + K[1, 2]], 1)
        order = torch.argsort(z.detach())
        order = order[(z[order] > near_plane) & (z[order] < far_plane)]
        delta = torch.stack([u, v], 2)[:, :, None] - centres[order]
        power = -0.5 * torch.einsum("hwni,nij,hwnj->hwn", delta, conic[order], delta)
        alpha = (opacities[order] * power.exp()).clamp(max=0.999)
        alpha = torch.where(alpha < 1 / 255, torch.zeros_like(alpha), alpha)
        through = torch.cumprod(torch.cat([torch.ones(height, width, 1), 1 - alpha], 2), 2)
        image = (through[..., :-1, None] * alpha[..., None] * colours[order]).sum(2)
        return (image + through[..., -1:] * backgrounds[0])[None], None, {}

    return rasterization


def one_thread(torch):
    torch.set_num_threads(1)  # pictures of 40 pixels: more threads only wait for each other


@pytest.mark.parametrize("antialiased", [False, True])
def test_both_scenes_are_drawn_as_edgegs_draws_them(torch, antialiased):
    one_thread(torch)
    scene = dataclasses.replace(cloud(60), antialiased=antialiased)
    drawn = []

    def watch(**arguments):
        colours, *rest = dense(torch)(**arguments)
        drawn.append((arguments["viewmats"].numpy()[0], colours[0].detach().numpy()))
        return (colours, *rest)

    cameras = ring(3)
    arrays, (before, _), _ = subject.tune(torch, watch, "cpu", scene, scene, cameras, 1, lambda step: None)
    assert set(arrays) == set(subject.RATES)
    assert before == 100.0  # the same scene: the same picture
    renderer = Renderer(ReferenceBackend(), scene, 40, 32, keep_float=True)
    viewmat, image = drawn[0]
    camera = next(c for c in cameras if np.allclose(c.viewmat, viewmat, atol=1e-6))
    assert psnr(renderer.render(camera).image_f32, image) > 60


def test_loop_makes_a_reduced_scene_better_on_views_it_never_trained_with(torch):
    one_thread(torch)
    full = cloud(40)
    reduced = cut(full, np.arange(0, 40, 2))
    steps, reports = 60, []
    arrays, (before, after), best = subject.tune(
        torch, dense(torch), "cpu", full, reduced, ring(9), steps, reports.append
    )
    assert after > before + 1.0
    assert best > steps // 2
    assert reports == list(range(1, steps + 1))
    result = subject._judged(reduced, steps, arrays, (before, after), best).scene
    assert (result.n_splats, result.sh_degree, result.warnings) == (20, 1, [])

    held_out = ring(9)[1::3]
    pictures = []
    for scene in (full, reduced, result):
        renderer = Renderer(ReferenceBackend(), scene, 40, 32, keep_float=True)
        pictures.append([renderer.render(camera).image_f32 for camera in held_out])
    gains = [psnr(new, full_) - psnr(old, full_) for full_, old, new in zip(*pictures[:2], pictures[2])]
    assert min(gains) > 0.5, gains


def test_a_scene_that_cannot_be_bettered_comes_back_as_it_was(torch):
    one_thread(torch)
    full = cloud(20, sh_degree=0)
    arrays, (before, after), best = subject.tune(
        torch, dense(torch), "cpu", full, full, ring(2, 24), 4, lambda step: None
    )
    assert (before, after, best) == (100.0, 100.0, 0)
    for name, array in subject.parameters(full).items():
        np.testing.assert_array_equal(arrays[name], array)


def test_a_gradient_that_is_no_number_spoils_nothing(torch):
    one_thread(torch)
    full = cloud(20)
    plain = dense(torch)

    def broken(**arguments):
        if arguments["means"].requires_grad:
            row = torch.tensor([3])
            arguments["means"].register_hook(lambda gradient: gradient.clone().index_fill_(0, row, np.nan))
        return plain(**arguments)

    reduced = cut(full, np.arange(10))
    arrays, (before, after), _ = subject.tune(torch, broken, "cpu", full, reduced, ring(4, 24), 10, lambda step: None)
    assert after > before
    assert all(np.isfinite(array).all() for array in arrays.values())
    np.testing.assert_array_equal(arrays["means"][3], reduced.means[3])


def test_ssim_is_that_of_wang_with_black_around(torch):
    import cv2

    rng = np.random.default_rng(0)
    one, other = rng.uniform(size=(2, 23, 31, 3)).astype(np.float32)
    other = 0.7 * one + 0.3 * other

    def blur(picture):
        at = np.arange(11) - 5
        taps = np.exp(-(at**2) / (2 * 1.5**2))
        taps /= taps.sum()
        return cv2.sepFilter2D(picture.astype(np.float64), -1, taps, taps, borderType=cv2.BORDER_CONSTANT)

    m1, m2 = blur(one), blur(other)
    v1, v2, cov = (blur(p * q) - mp * mq for p, q, mp, mq in
                   ((one, one, m1, m1), (other, other, m2, m2), (one, other, m1, m2)))  # fmt: skip
    wanted = ((2 * m1 * m2 + 1e-4) * (2 * cov + 9e-4) / ((m1**2 + m2**2 + 1e-4) * (v1 + v2 + 9e-4))).mean()
    window = subject.ssim_window(torch, "cpu")
    a, b = torch.from_numpy(one), torch.from_numpy(other)
    assert float(subject.ssim(torch, a, b, window)) == pytest.approx(wanted, abs=1e-5)
    assert float(subject.ssim(torch, a, a, window)) == pytest.approx(1.0, abs=1e-6)
    assert float(subject.difference(torch, a, a, window)) == pytest.approx(0.0, abs=1e-6)
    loss = float(subject.difference(torch, a, b, window))
    assert loss == pytest.approx(0.8 * np.abs(one - other).mean() + 0.2 * (1 - wanted), abs=1e-5)
