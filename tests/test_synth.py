"""Synthetic scenes: their laws, their determinism, and ``edgegs synth``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Tuple

import numpy as np
import pytest

from edgegs.camera import Camera
from edgegs.cli import main
from edgegs.scene import Scene, load
from edgegs.scene import synth as scenes
from edgegs.scene.synth_math import even_points, noise, quats_from_axes, random_quats, sh_basis, shares
from edgegs.scene.synth_surfaces import rectangle, revolution, sample

ROOT = Path(__file__).resolve().parent.parent


def dial_view() -> Camera:
    viewmat, K = scenes.dial_camera(640, 480)
    return Camera(viewmat, K, 640, 480)


def check(scene: Scene, n: int) -> None:
    assert (scene.n_splats, scene.sh_degree, scene.sh.shape) == (n, 3, (n, 16, 3))
    for name in ("means", "scales", "quats", "opacities", "sh"):
        assert np.isfinite(getattr(scene, name)).all(), name
    assert (scene.scales > 0).all()
    assert ((scene.opacities > 0) & (scene.opacities < 1)).all()
    np.testing.assert_allclose(np.linalg.norm(scene.quats, axis=1), 1, atol=1e-5)


@pytest.mark.parametrize("n", [1, 2, 3, 31, 1000])
@pytest.mark.parametrize("kind", ["dial", "room", "h200"])
def test_any_count(kind: str, n: int) -> None:
    scene = scenes.dial(n, 5) if kind == "dial" else scenes.room(n, 5, "h200" if kind == "h200" else "default")
    check(scene, n)
    assert scene.bounds()[1] > 0


@pytest.mark.parametrize("make", [scenes.dial, scenes.room, lambda n, seed: scenes.room(n, seed, "h200")])
def test_same_seed_same_bytes(make) -> None:  # type: ignore[no-untyped-def]
    first, again, other = make(3000, 1), make(3000, 1), make(3000, 2)
    assert first.sha256 == again.sha256
    assert first.sha256 != other.sha256


@pytest.mark.parametrize("n", [0, -1, 10_000_001])
def test_counts_out_of_range(n: int) -> None:
    for make in (scenes.dial, scenes.room):
        with pytest.raises(ValueError, match="must lie in"):
            make(n)


def test_dial_is_the_law() -> None:
    scene = scenes.dial(300_000, 0)  # more than one block
    x, y, z = scene.means.astype(np.float64).T
    u, v = 500 * x / z + 320, 500 * y / z + 240
    for values, low, high in ((u, 0, 640), (v, 0, 480), (z, 1, 10), (scene.opacities, 0.05, 0.95)):
        assert low - 1e-3 <= values.min() < low + 0.01 * (high - low)
        assert high + 1e-3 >= values.max() > high - 0.01 * (high - low)
        # The mean of a uniform law, within six of its standard errors.
        assert abs(values.mean() - (low + high) / 2) < 6 * (high - low) / np.sqrt(12 * len(values))
    factor = scene.scales / (5.79 * z / 500)[:, None]
    assert 0.4999 < factor.min() < 0.501
    assert 1.499 < factor.max() < 1.5001
    assert abs(np.corrcoef(factor[:, 0], factor[:, 1])[0, 1]) < 0.02  # each axis by itself
    assert scene.sh[:, 1:].std() > 0.03  # colour varies with the view


def test_dial_calibration() -> None:
    """13 tiles of 16x16 a splat at 640x480, whatever the count."""
    for n in (5_000, 50_000):
        tiles = scenes.tiles_per_splat(scenes.dial(n), dial_view())
        assert abs(tiles.mean() - 13) < 0.3


def one(mean: Tuple[float, float, float], scale: float) -> Scene:
    scene = scenes.dial(1)
    scene.means[0], scene.scales[0], scene.quats[0] = mean, scale, (1, 0, 0, 0)
    return scene


def test_tiles_by_hand() -> None:
    camera = dial_view()
    # sigma 0.01·500/5 = 1 px, cov 1.3, lambda 1.3 + sqrt(0.1), r = ceil(3·1.2712) = 4. The pixel (320, 240) less
    # half a pixel is 319.5: tiles from floor(315.5/16) = 19 to floor((323.5 + 15)/16) = 21, so 2; 235.5 and 243.5
    # give 14 to 16, so 2.
    assert scenes.tiles_per_splat(one((0, 0, 5), 0.01), camera).tolist() == [4]
    # In the middle of a tile: pixel (328, 248), 327.5 ± 4 and 247.5 ± 4 stay inside 20 and 15.
    assert scenes.tiles_per_splat(one((0.08, 0.08, 5), 0.01), camera).tolist() == [1]
    assert scenes.tiles_per_splat(one((0, 0, 5), 50.0), camera).tolist() == [40 * 30]  # the whole grid, clamped
    assert scenes.tiles_per_splat(one((0, 0, 0.1), 0.01), camera).tolist() == [0]  # before the near plane
    assert scenes.tiles_per_splat(one((0, 0, -5), 0.01), camera).tolist() == [0]
    assert scenes.tiles_per_splat(one((50, 0, 5), 0.01), camera).tolist() == [0]  # off to the side


def test_cameras() -> None:
    viewmat, K = scenes.dial_camera()
    np.testing.assert_array_equal(viewmat, np.eye(4))
    np.testing.assert_array_equal(K, [[500, 0, 320], [0, 500, 240], [0, 0, 1]])
    viewmat, K = scenes.room_camera(1920, 1080, "h200")
    assert K[0, 0] == K[1, 1] == 1200
    np.testing.assert_allclose(viewmat @ [-5.2, -5.2, 0.5, 1], [0, 0, 0, 1], atol=1e-12)
    x, y, z, _ = viewmat @ [2, 2, -0.3, 1]
    assert z > 0
    assert max(abs(x), abs(y)) < 1e-12
    for preset in scenes.PRESETS:
        viewmat, K = scenes.room_camera(640, 480, preset)
        np.testing.assert_allclose(viewmat[:3, :3] @ viewmat[:3, :3].T, np.eye(3), atol=1e-12)
        assert (viewmat[:3, :3] @ [0, 0, 1])[1] < -0.9  # the world's up is the picture's up


def test_h200_statistics() -> None:
    n = 100_000
    scene = scenes.room(n, 0, "h200")
    distance = np.linalg.norm(scene.means, axis=1)
    shell = distance > 20
    assert shell.sum() == round(0.05 * n)
    assert (distance[shell] >= 24 - 1e-3).all()
    assert (distance[shell] <= 36 + 1e-3).all()
    inside = scene.means[~shell]
    assert (np.abs(inside) <= np.array([6, 6, 3]) + 1e-4).all()
    scales = scene.scales[~shell].astype(np.float64)
    # Splats on the walls and the ceiling, whose area is known, give the spacing (boxes stand on the floor).
    on_wall = (np.abs(np.abs(inside[:, :2]) - 6) < 1e-5).any(axis=1) | (inside[:, 2] > 3 - 1e-5)
    spacing = np.sqrt((144 + 4 * 72) / on_wall.sum())
    assert abs(np.median(scales[:, :2]) / spacing / 0.6 - 1) < 0.03
    assert abs(np.median(scales[:, 2]) / np.median(scales[:, :2]) / 0.2 - 1) < 0.03
    logs = np.log(scales)
    assert abs(logs[:, 0].std() - np.sqrt(0.5)) < 0.01
    assert abs(np.cov(logs[:, 0], logs[:, 1])[0, 1] - 0.25) < 0.01  # what the axes share
    logits = np.log(scene.opacities / (1 - scene.opacities))
    assert abs((logits > 0.4).mean() - 0.5) < 0.02
    assert abs(np.median(logits[logits > 0.4]) - 3.0) < 0.1
    assert abs(np.median(logits[logits < 0.4]) + 2.2) < 0.1


def test_h200_costs_as_published() -> None:
    """A million splats at 1920x1080: 66 % visible, 12.2 instances of each by the original's rule."""
    scene = scenes.room(1_000_000, 0, "h200")
    viewmat, K = scenes.room_camera(1920, 1080, "h200")
    tiles = scenes.tiles_per_splat(scene, Camera(viewmat, K, 1920, 1080))
    n_visible = np.count_nonzero(tiles)
    assert abs(n_visible / 1_000_000 - 0.66) < 0.01
    assert abs(tiles.sum() / n_visible - 12.2) < 0.3


@pytest.mark.parametrize("seed", range(8))
def test_h200_camera_stands_free(seed: int) -> None:
    """Nothing encloses the eye, and what is in the picture is far enough not to fill it."""
    scene = scenes.room(60_000, seed, "h200")
    viewmat, K = scenes.room_camera(1920, 1080, "h200")
    points = scene.means @ viewmat[:3, :3].T + viewmat[:3, 3]
    distance = np.linalg.norm(points, axis=1)
    assert distance.min() > 0.79  # the two walls behind it
    seen = points[:, 2] > 0.2
    pixels = points[seen] @ K.T
    inside = ((pixels[:, :2] >= 0) & (pixels[:, :2] < pixels[:, 2:] * [1920, 1080])).all(axis=1)
    assert distance[seen][inside].min() > 1.19
    assert (distance[seen][inside] > 5).mean() > 0.5


def test_room_default_is_a_closed_room() -> None:
    n = 40_000
    scene = scenes.room(n, 0)
    check(scene, n)
    outside = np.linalg.norm(scene.means[:, :2], axis=1) > 20
    assert outside.sum() == round(0.05 * n)
    assert (np.abs(scene.means[~outside]) <= [4.4, 3.9, 3.4]).all()
    assert np.median(scene.opacities) > 0.9
    color = scene.sh[:, 0] * 0.28209479 + 0.5
    assert 0.1 < color.mean() < 0.7
    assert color.std() > 0.1
    assert scene.sh[:, 1:].std() > 0.005  # glossy floor, table and vase
    # Hardly any direction of the picture is empty.
    viewmat, K = scenes.room_camera(32, 18)
    points = scene.means @ viewmat[:3, :3].T + viewmat[:3, 3]
    seen = points[points[:, 2] > 0.2]
    pixels = seen @ K.T
    pixels = (pixels[:, :2] / pixels[:, 2:]).astype(int)
    inside = ((pixels >= 0) & (pixels < [32, 18])).all(axis=1)
    assert len(np.unique(pixels[inside], axis=0)) > 0.98 * 32 * 18


def test_orbit_is_free_of_furniture() -> None:
    scene = scenes.room(60_000)
    orbit = scenes.room_orbit()
    for angle in np.linspace(0, 2 * np.pi, 48, endpoint=False):
        circle = np.array([orbit.radius * np.cos(angle), orbit.radius * np.sin(angle), orbit.height])
        eye = np.array(orbit.center) + circle
        assert np.linalg.norm(scene.means - eye, axis=1).min() > 0.25


def test_sh_degree_is_cut_not_changed() -> None:
    scene = scenes.dial(50)
    for degree in range(4):
        cut = scenes.with_sh_degree(scene, degree)
        assert (cut.sh_degree, cut.sh.shape[1]) == (degree, (degree + 1) ** 2)
        np.testing.assert_array_equal(cut.sh, scene.sh[:, : (degree + 1) ** 2])


def test_sh_basis_is_orthonormal() -> None:
    """Over a sphere of even points, the mean of B_i·B_j is 1/4π where i = j and 0 elsewhere."""
    n = 40_000
    z = 1 - (2 * np.arange(n) + 1) / n
    phi = np.arange(n) * np.pi * (3 - np.sqrt(5))
    r = np.sqrt(1 - z * z)
    basis = sh_basis(np.stack([r * np.cos(phi), r * np.sin(phi), z], axis=1))
    np.testing.assert_allclose(basis.T @ basis / n * 4 * np.pi, np.eye(16), atol=1e-3)


def test_quats_from_axes() -> None:
    rng = np.random.default_rng(0)
    axes = np.concatenate([np.linalg.qr(rng.standard_normal((500, 3, 3)))[0], [np.eye(3), np.diag([1.0, -1, -1])]])
    axes[..., 2] *= np.sign(np.linalg.det(axes))[:, None]
    quats = quats_from_axes(axes[..., 0], axes[..., 1], axes[..., 2])
    np.testing.assert_allclose(scenes._matrices(quats), axes, atol=1e-12)
    assert np.abs(random_quats(rng, 20_000).mean(axis=0)).max() < 0.02


def test_shares_add_up() -> None:
    rng = np.random.default_rng(0)
    for n in (0, 1, 7, 1000):
        weights = rng.random(37)
        parts = shares(n, weights)
        assert parts.sum() == n
        assert (parts >= 0).all()
        assert np.abs(parts - weights / weights.sum() * n).max() <= 1


@pytest.mark.parametrize("aspect", [0.02, 0.4, 1.0, 3.0, 50.0])
def test_even_points_leave_no_gap(aspect: float) -> None:
    n = 2000
    points = even_points(0, n, np.array([0.3, 0.6]), aspect)
    assert ((points >= 0) & (points < 1)).all()
    stretched = points * [np.sqrt(aspect), 1 / np.sqrt(aspect)]  # area 1, spacing sqrt(1/n)
    rng = np.random.default_rng(0)
    probes = rng.uniform(0.05, 0.95, (300, 2)) * [np.sqrt(aspect), 1 / np.sqrt(aspect)]
    gaps = np.sqrt(((probes[:, None] - stretched[None]) ** 2).sum(axis=2).min(axis=1))
    assert gaps.max() < 1.6 / np.sqrt(n)
    np.testing.assert_array_equal(even_points(700, 900, np.array([0.3, 0.6]), aspect), points[700:900])


def test_samples_lie_on_the_surface() -> None:
    def grey(points: np.ndarray, uv: np.ndarray, blur: float) -> np.ndarray:
        return np.full((len(points), 3), 0.5)

    places = np.random.default_rng(0).random((4000, 2))
    flat = sample(rectangle((1, 2, 3), (2, 0, 0), (0, 1, 0), 0.3, grey), places)
    np.testing.assert_allclose(flat.points, np.array([1, 2, 3]) + places @ [[2, 0, 0], [0, 1, 0]], atol=1e-9)
    np.testing.assert_allclose(flat.normals, np.tile([0, 0, 1.0], (4000, 1)), atol=1e-12)
    np.testing.assert_allclose(flat.border, np.minimum(places, 1 - places) * [2, 1], atol=1e-9)
    # A cone, narrow at the top: even by area means that half of its points lie below 1 - 1/sqrt(2) of its height.
    profile = [(1 - h, h) for h in np.linspace(0, 1, 30)]
    cone = sample(revolution((0, 0, 0), profile, grey, n=48), places)
    assert abs((cone.points[:, 2] < 1 - np.sqrt(0.5)).mean() - 0.5) < 0.03
    assert (cone.normals[:, 2] > 0.69).all()  # outward and up, 45 degrees
    np.testing.assert_allclose((cone.normals * cone.tangents).sum(axis=1), 0, atol=1e-9)


def test_noise_fades_with_blur() -> None:
    points = np.random.default_rng(0).uniform(-20, 20, (20_000, 3))
    spread = [noise(points, 4.0, 3, blur).std() for blur in (0.0, 0.05, 0.2, 1.0)]
    assert spread[0] > spread[1] > spread[2] > spread[3] == 0
    assert np.abs(noise(points, 4.0, 3)).max() <= 1


def test_cli_dial(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "dial.ply"
    assert main(["synth", "dial", "-n", "20k", "--seed", "4", "-o", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{path}: dial, 20,000 splats, seed 4, SH degree 3, 4.7 MB on the device")
    assert abs(float(lines[1].split()[0]) - 13) < 0.3
    np.testing.assert_array_equal(load(path).means, scenes.dial(20_000, 4).means)
    again = tmp_path / "again.ply"
    assert main(["synth", "dial", "-n", "20_000", "--seed", "4", "-o", str(again)]) == 0
    assert again.read_bytes() == path.read_bytes()


@pytest.mark.parametrize(("preset", "degree"), [("default", 3), ("h200", 1)])
def test_cli_room(tmp_path: Path, capsys: pytest.CaptureFixture[str], preset: str, degree: int) -> None:
    path = tmp_path / "room.ply"
    arguments = ["synth", "room", "-n", "500", "--preset", preset, "--sh-degree", str(degree), "-o", str(path)]
    assert main(arguments) == 0
    assert f"room, 500 splats, seed 0, SH degree {degree}" in capsys.readouterr().out
    scene = load(path)
    assert (scene.n_splats, scene.sh_degree, scene.up) == (500, degree, (0, 0, 1))


@pytest.mark.parametrize("count", ["0", "-5", "10000001", "11M", "1.5", "many", "1e3", "9" * 40])
def test_cli_refuses_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str], count: str) -> None:
    path = tmp_path / "a.ply"
    assert main(["synth", "dial", f"-n={count}", "-o", str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"-n {count}: must be a whole number from 1 to 10,000,000" in captured.err
    assert not path.exists()


def test_cli_errors_end_without_a_traceback(tmp_path: Path) -> None:
    for arguments, code, words in (
        (["synth", "dial", "-n", "5", "-o", str(tmp_path / "no" / "a.ply")], 73, "there is no folder"),
        (["synth", "dial", "-n", "5", "-o", str(tmp_path)], 73, "is a directory"),
        (["synth", "dial", "-n", "5", "--seed", "-1", "-o", "a.ply"], 2, "must not be negative"),
        (["synth", "cube", "-n", "5", "-o", "a.ply"], 2, "invalid choice: 'cube'"),
        (["synth", "dial", "-n", "5"], 2, "-o/--output"),
    ):
        command = [sys.executable, "-m", "edgegs", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60, check=False)
        assert done.returncode == code
        assert words in done.stderr
        assert "Traceback" not in done.stderr
        assert done.stdout == ""


def test_the_command_line_knows_the_same_kinds() -> None:
    from edgegs.cli import synth

    assert (synth.KINDS, synth.PRESETS, synth.MAX_SPLATS) == (scenes.KINDS, scenes.PRESETS, scenes.MAX_SPLATS)
