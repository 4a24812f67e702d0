"""Scenes as .splat: real ones against the same scenes as PLY, the layout byte by byte, and what is none."""

from __future__ import annotations

import hashlib
import os
import struct
from pathlib import Path

import numpy as np
import pytest
from scene_files import good_bytes
from scene_limits import limited

from edgegs.errors import SceneError
from edgegs.scene import Scene, load
from edgegs.scene.checks import open_scene_file
from edgegs.scene.reading import Reading
from edgegs.scene.splat import looks_like_splat, read_splat, why_not_splat

PLAIN = Reading()
C0 = 0.28209479177387814
PAIRS = [
    ("plant_plant.splat", "plant_114k_sh0.ply", 113_648),
    ("academic_tarot_cards_academic_tarot_cards.splat", "tarot_115k_sh0.ply", 114_865),
]


def read(path: Path, how: Reading = PLAIN) -> Scene:
    with open_scene_file(str(path)) as file:
        return read_splat(file, str(path), how)


def row(mean=(1, 2, 3), scale=(0.1, 0.2, 0.3), rgba=(255, 128, 0, 200), quat=(128, 128, 128, 255)) -> bytes:
    return struct.pack("<6f8B", *mean, *scale, *rgba, *quat)


def written(path: Path, *rows: bytes) -> Path:
    path.write_bytes(b"".join(rows))
    return path


@pytest.mark.parametrize(("name", "ply", "count"), PAIRS)
def test_real_scenes(shared_data: Path, name: str, ply: str, count: int) -> None:
    path = shared_data / "splat" / name
    scene, same = load(path), load(shared_data / "ply" / ply)
    assert (scene.n_splats, scene.n_rows, scene.sh_degree, scene.format) == (count, count, 0, "splat")
    assert not scene.warnings
    assert not scene.dropped
    assert scene.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    np.testing.assert_array_equal(scene.means, same.means)
    np.testing.assert_allclose(scene.scales, same.scales, rtol=1e-6)
    np.testing.assert_allclose(scene.opacities, same.opacities, atol=2e-6)
    np.testing.assert_allclose(scene.sh, same.sh, atol=1e-5)
    assert np.abs((scene.quats * same.quats).sum(axis=1)).min() > 0.9999
    assert looks_like_splat(path.read_bytes()[:4096], path.stat().st_size)


def test_a_row_byte_by_byte(tmp_path: Path) -> None:
    scene = read(written(tmp_path / "a.splat", row(), row(quat=(192, 64, 128, 128), rgba=(0, 1, 254, 1))))
    assert scene.means.tolist() == [[1, 2, 3]] * 2
    np.testing.assert_allclose(scene.scales, [[0.1, 0.2, 0.3]] * 2, rtol=1e-6)
    half = np.sqrt(0.5)
    np.testing.assert_allclose(scene.quats, [[0, 0, 0, 1], [half, -half, 0, 0]], atol=1e-7)
    np.testing.assert_allclose(scene.opacities, [200 / 255, 1 / 255], rtol=1e-6)
    np.testing.assert_allclose(
        0.5 + C0 * scene.sh[:, 0], np.array([[255, 128, 0], [0, 1, 254]]) / 255, atol=1e-6
    )


def test_extremes_are_legal(tmp_path: Path) -> None:
    scene = read(
        written(
            tmp_path / "a.splat",
            row(rgba=(0, 0, 0, 255)),
            row(rgba=(0, 0, 0, 0)),
            row(scale=(0, 0.1, 0.1)),
            row(quat=(128, 128, 128, 128)),
            row(quat=(0, 128, 128, 128)),
        )
    )
    assert scene.n_splats == 5
    assert 0.9999 < scene.opacities[0] < 1
    assert 0 < scene.opacities[1] < 1e-6
    assert 0 < scene.scales[2, 0] <= 1e-8
    assert scene.quats[3:].tolist() == [[1, 0, 0, 0], [-1, 0, 0, 0]]


def test_rows_that_cannot_be_drawn(tmp_path: Path) -> None:
    scene = read(
        written(
            tmp_path / "a.splat",
            row(),
            row(scale=(-0.1, 0.1, 0.1)),
            row(scale=(np.nan, 0.1, 0.1)),
            row(scale=(np.inf, 0.1, 0.1)),
            row(mean=(0, np.nan, 0)),
        )
    )
    assert scene.n_splats == 1
    assert scene.dropped == {"with a non-finite scale": 3, "with a non-finite position": 1}


@pytest.mark.parametrize("n", [1, 32_767, 32_768, 32_769])
def test_sizes_round_the_block(tmp_path: Path, n: int) -> None:
    rows = np.frombuffer(row() * n, np.uint8).reshape(n, 32).copy()
    rows[:, 24] = np.arange(n) % 256
    steps = []
    scene = read(written(tmp_path / "a.splat", rows.tobytes()), Reading(progress=lambda done, all_: steps.append(done)))
    np.testing.assert_allclose(0.5 + C0 * scene.sh[:, 0, 0], np.arange(n) % 256 / 255, atol=1e-6)
    assert steps[-1] == n


def test_frames_and_budgets(tmp_path: Path) -> None:
    path = written(tmp_path / "a.splat", row(), row(scale=(9, 9, 9)))
    assert read(path, Reading(frame="rub")).means.tolist() == [[1, -2, -3]] * 2
    assert read(path, Reading(max_gaussians=1)).scales[0, 0] == 9
    with pytest.raises(SceneError, match=r"the file's size \(64 bytes\) promises 2 splats, and the limit is 1"):
        read(path, Reading(cap=1))


def test_cut_and_changing_files(tmp_path: Path) -> None:
    with pytest.raises(SceneError, match="2 rows of 32 bytes and 31 bytes over; is the copy or download complete"):
        read(written(tmp_path / "a.splat", row(), row(), row()[:31]))
    with pytest.raises(SceneError, match="0 rows of 32 bytes and 31 bytes over"):
        read(written(tmp_path / "a.splat", row()[:31]))
    path = written(tmp_path / "a.splat", row() * 70_000)
    with pytest.raises(SceneError, match=r"ends after \d\d,\d\d\d of 70,000 splats"):
        read(path, Reading(progress=lambda done, all_: os.truncate(path, 1_100_000)))
    path = written(tmp_path / "a.splat", row())
    with pytest.raises(SceneError, match="changed while it was read"):
        read(path, Reading(progress=lambda done, all_: os.utime(path, ns=(1, 1))))
    with open(path, "wb") as file:
        file.write(row())
        file.truncate(32 * 19_000_000)
    with pytest.raises(SceneError, match="a sparse file"):
        read(path)


def test_what_is_no_splat() -> None:
    rng = np.random.default_rng(4)
    cases = {
        "hello": "it has 5 bytes, and one row takes 32",
        "text": "positions beyond 1e9",
        "zeros": "no unit quaternions",
        "random": "positions beyond 1e9",
        "pixels": "positions beyond 1e9",
        "floats": "no unit quaternions",
    }
    contents = {
        "hello": b"hello",
        "text": b"It was a bright cold day in April, and the clocks were striking thirteen. " * 50,
        "zeros": bytes(4096),
        "random": rng.bytes(4096),
        "pixels": b"\xff" * 4096,
        "floats": np.ones(1024, "<f4").tobytes(),
        "ply": good_bytes(20),
        "gzip": b"\x1f\x8b\x08\x00" + rng.bytes(1000),
    }
    for name, content in contents.items():
        why = why_not_splat(content, len(content))
        assert cases.get(name, "read as rows of a .splat") in why
        assert not looks_like_splat(content, len(content))
    assert not looks_like_splat(row(scale=(-1, 1, 1)), 32)
    assert not looks_like_splat(row(mean=(1, 2, 1e12)), 32)
    assert not looks_like_splat(row(mean=(1, 2, 1e-30)), 32)
    assert not looks_like_splat(row(scale=(1e-30, 1, 1)), 32)
    assert not looks_like_splat(row(quat=(255, 255, 128, 128)), 32)
    assert not looks_like_splat(row(), 31)
    assert not looks_like_splat(row()[:31], 64)


def test_chance_hardly_ever_looks_like_one() -> None:
    rng = np.random.default_rng(5)
    assert sum(looks_like_splat(rng.bytes(64), 64) for _ in range(3000)) == 0


def test_by_content_and_not_by_name(tmp_path: Path) -> None:
    assert load(written(tmp_path / "a.ply", row(), row())).n_splats == 2
    with pytest.raises(SceneError, match="2 rows of 32 bytes and 9 bytes over"):
        load(written(tmp_path / "a.splat", row(), row(), row()[:9]))
    with pytest.raises(SceneError, match=r"not a \.splat scene: read as rows of a \.splat, its beginning has"):
        load(written(tmp_path / "a.splat", b"no splats but words " * 20))
    with pytest.raises(SceneError, match=r"a\.bin: not a scene; it is of no known kind"):
        load(written(tmp_path / "a.bin", b"no splats but words " * 20))


def test_memory(tmp_path: Path) -> None:
    """The peak is under 1.5 times the decoded scene and 20 MiB of blocks."""
    n = 600_000
    path = written(tmp_path / "a.splat", row() * n)
    decoded = n * 4 * (11 + 3) / 2**20
    message, _, grown, _ = limited(path)
    assert message == f"{n}"
    assert decoded < grown + 10
    assert grown < 1.5 * decoded + 20


def test_what_looks_like_one() -> None:
    assert looks_like_splat(row(), 32)
    assert looks_like_splat(row(), 50)  # cut short: the reader says so
    assert looks_like_splat(row(quat=(128, 128, 128, 128), scale=(0, 0, 0), mean=(0, 0, 0)), 32)
    assert looks_like_splat(row() * 95 + row(mean=(np.nan, 0, 0)) * 5, 3200)
    assert not looks_like_splat(row() * 80 + row(mean=(np.nan, 0, 0)) * 20, 3200)
