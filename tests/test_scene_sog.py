"""SOG scenes: values against the specification, and real files against their PLY."""

from __future__ import annotations

import functools
import hashlib
import re
import zipfile
from pathlib import Path
from typing import List

import numpy as np
import pytest
from sog_files import ARRAYS, Sog, check, limited, read, refused, same, webp, write_zip

from edgegs.scene import Scene, load
from edgegs.scene.reading import BLOCK_ROWS


@functools.lru_cache(maxsize=None)
def real(path: Path) -> Scene:
    return read(path)


def test_values_of_the_good_shared_files(shared_data: Path) -> None:
    folder = shared_data / "hostile" / "gaussian-sog"
    golden = (folder / "decode-degree1.sog.golden.usda").read_text()

    def values(attribute: str) -> np.ndarray:
        line = re.search(rf"\b{attribute} = \[(.*)\]", golden)
        assert line is not None
        return np.array([float(number) for number in re.findall(r"[-+.\de]+", line.group(1))])

    scene = read(folder / "decode-degree1.sog", frame="rub")  # USD's axes are y up: half a turn, either way
    assert scene.n_splats == 2
    np.testing.assert_allclose(scene.means.ravel(), values("positions"), rtol=1e-4)
    np.testing.assert_allclose(scene.scales.ravel(), values("scales"), rtol=1e-6)
    np.testing.assert_allclose(scene.quats.ravel(), values("orientations"), atol=1e-6)
    np.testing.assert_allclose(scene.opacities, values("opacities"), rtol=1e-6)
    np.testing.assert_allclose(scene.sh.ravel(), values("radiance:sphericalHarmonicsCoefficients"), atol=1e-6)
    # The same, but its palette has one centroid, and the second splat's label is 1.
    short = read(folder / "labels-out-of-range.sog", frame="rub")
    assert short.sh[0].tolist() == scene.sh[0].tolist()
    assert short.sh[1, 0].tolist() == scene.sh[1, 0].tolist()
    assert not short.sh[1, 1:].any()
    assert read(folder / "bad-quat-tag.sog").quats.tolist() == [[1, 0, 0, 0]]
    stored = read(folder / "kit-multi-degree3.sog")
    for other in ("kit-multi-degree3-deflated.sog", "unbundled-kit-multi-degree3"):
        same(read(folder / other), stored)


@pytest.mark.parametrize("name", ["degree1-offgrid", "degree3-exact"])
def test_equivalence_with_ply(shared_data: Path, name: str) -> None:
    folder = shared_data / "equivalence"
    sog, ply = read(folder / f"equiv-{name}.sog"), load(folder / f"equiv-{name}-binary-le.ply")
    assert (sog.n_splats, sog.sh_degree) == (ply.n_splats, ply.sh_degree)
    np.testing.assert_allclose(sog.means, ply.means, rtol=1e-4, atol=2e-4)  # 16 bits of the logarithm's range
    np.testing.assert_allclose(sog.scales, ply.scales, rtol=1e-5)
    assert np.abs((sog.quats * ply.quats).sum(axis=1)).min() > 0.9999  # 8 bits a component
    np.testing.assert_allclose(sog.opacities, ply.opacities, atol=0.5 / 255 + 1e-6)
    np.testing.assert_allclose(sog.sh, ply.sh, atol=1e-6)


@pytest.mark.parametrize(
    ("sog", "ply"), [("playbot_lod1", "playbot_lod1_250k_sh2"), ("playbot_lod3", "playbot_lod3_31k_sh2")]
)
def test_a_ply_that_was_decoded_from_the_sog(shared_data: Path, sog: str, ply: str) -> None:
    """Another decoder's float32 values."""
    one, two = real(shared_data / "sog" / f"{sog}.sog"), load(shared_data / "ply" / f"{ply}.ply")
    assert one.n_splats == two.n_splats
    for name in ARRAYS:
        np.testing.assert_allclose(getattr(one, name), getattr(two, name), rtol=1e-6, atol=1.2e-7, err_msg=name)


@pytest.mark.parametrize("name", ["leica-sofort", "yashica-t4"])
def test_a_sog_that_was_made_from_the_ply(shared_data: Path, name: str) -> None:
    """The converter reordered the rows: each of the PLY's is looked up by its opacity, position and colour."""
    sog = real(shared_data / "sog" / f"{name}-top8192.sog")
    ply = load(shared_data / "ply" / f"{name}-top8192.ply")
    assert (sog.n_splats, sog.sh_degree) == (8192, 3)
    part = slice(None, None, 16)
    means = ply.means[part]
    key = sum(np.square(means[:, None, c] - sog.means[None, :, c]) for c in range(3)) * 1e6
    key += sum(np.square(ply.sh[part, None, 0, c] - sog.sh[None, :, 0, c]) for c in range(3))
    near = key.argmin(axis=1)
    assert len(np.unique(near)) > 508  # a few lie in the same place
    step = np.ptp(np.sign(ply.means) * np.log1p(np.abs(ply.means)), axis=0) / 65535
    assert (np.abs(sog.means[near] - means) <= 1.01 * step * (1 + np.abs(means)) + 1e-6).all()
    assert np.quantile(np.abs(np.log(sog.scales[near] / ply.scales[part])), 0.99) < 0.1
    assert np.quantile(np.abs((sog.quats[near] * ply.quats[part]).sum(axis=1)), 0.01) > 0.9998
    np.testing.assert_allclose(sog.opacities[near], ply.opacities[part], atol=0.01)
    assert np.quantile(np.abs(sog.sh[near, 0] - ply.sh[part, 0]), 0.99) < 0.03
    assert np.abs(sog.sh[near, 1:] - ply.sh[part, 1:]).mean() < 0.03  # a palette, as large as the scene


#: Of MANIFEST.md.
COUNTS = {
    "karangkidul_tile3": (524_320, 3), "karangkidul_tile4": (524_624, 3), "karangkidul_tile5": (524_471, 3),
    "karangkidul_tile6": (524_320, 3), "leica-sofort-top8192": (8_192, 3), "playbot_lod0": (500_000, 2),
    "playbot_lod1": (250_000, 2), "playbot_lod3": (31_000, 2), "playbot_lod4": (8_406, 2), "playbot_lod5": (3_000, 2),
    "playbot_lod6": (1_873, 2), "yashica-t4-top8192": (8_192, 3),
}  # fmt: skip
_MEASURED = "karangkidul_tile3"


def test_counts_of_all_real_files(shared_data: Path) -> None:
    assert {path.stem for path in (shared_data / "sog").iterdir()} == set(COUNTS)
    for name in sorted(set(COUNTS) - {_MEASURED}):
        scene = real(shared_data / "sog" / f"{name}.sog")
        assert (scene.n_splats, scene.sh_degree, scene.dropped) == (*COUNTS[name], {})


def test_memory_of_a_real_file(shared_data: Path) -> None:
    [[(_, outcome)], _, grown] = limited(shared_data / "sog" / f"{_MEASURED}.sog")
    nbytes, *counts = map(int, outcome.split())
    assert tuple(counts) == COUNTS[_MEASURED]
    assert grown < 1.5 * nbytes / 2**20 + 20


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("degree", [0, 1, 2, 3])
def test_every_value(tmp_path: Path, version: int, degree: int) -> None:
    sog = Sog(123, degree, seed=degree, version=version)
    stored = read(sog.zip(tmp_path / "a.sog"))
    assert (stored.format, stored.n_rows, stored.sh_degree) == (f"sog v{version}", 123, degree)
    assert (stored.vertical_axis, stored.antialiased) == ("y", False)
    check(stored, sog.expected())
    assert stored.sha256 == hashlib.sha256((tmp_path / "a.sog").read_bytes()).hexdigest()
    same(read(sog.zip(tmp_path / "deflated.sog", zipfile.ZIP_DEFLATED)), stored)
    folder = sog.folder(tmp_path / "folder")
    same(read(folder), stored)
    same(read(folder / "meta.json"), stored)


def test_more_than_one_block_and_a_budget(tmp_path: Path) -> None:
    sog = Sog(BLOCK_ROWS + 77, 1, width=512)
    path = sog.zip(tmp_path / "a.sog")
    steps: List[int] = []
    scene = read(path, progress=lambda done, total: steps.append(done))
    assert steps == [BLOCK_ROWS, BLOCK_ROWS + 77]
    tail = Sog(3, 1)
    tail.meta, tail.pixels["shN_centroids"] = sog.meta, sog.pixels["shN_centroids"]
    for name in tail.pixels:
        if name != "shN_centroids":
            tail.pixels[name] = sog.pixels[name].reshape(-1, 1, sog.pixels[name].shape[2])[BLOCK_ROWS + 74 :][:3]
    for name, values in tail.expected().items():
        np.testing.assert_allclose(getattr(scene, name)[-3:], values, rtol=2e-6, atol=2e-7)
    score = scene.opacities * scene.scales.max(axis=1).astype(np.float64) ** 2
    best = np.sort(np.argsort(-score, kind="stable")[:500])
    np.testing.assert_array_equal(read(path, max_gaussians=500).means, scene.means[best])


def test_the_digest_of_a_folder(tmp_path: Path) -> None:
    sog = Sog(5, 1)
    one, two = read(sog.folder(tmp_path / "one")), read(sog.folder(tmp_path / "two"))
    assert one.file_sha256 == two.file_sha256
    assert len(one.file_sha256) == 64
    assert read(tmp_path / "one" / "meta.json").file_sha256 == one.file_sha256
    (tmp_path / "two" / "notes.txt").write_text("not a part of it")
    assert read(tmp_path / "two").file_sha256 == one.file_sha256
    sog.pixels["sh0"][0, 0, 0] ^= 1
    assert read(sog.folder(tmp_path / "three")).file_sha256 != one.file_sha256


def test_planes_without_alpha_and_colours_under_alpha_0(tmp_path: Path) -> None:
    sog = Sog(40, 0)
    sog.pixels["quats"], sog.pixels["sh0"] = sog.pixels["quats"][..., :3], sog.pixels["sh0"][..., :3]
    check(read(sog.zip(tmp_path / "rgb.sog")), sog.expected())
    sog = Sog(40, 1)
    sog.pixels["sh0"][..., 3] = 0
    for name in ("means_l", "means_u", "scales", "shN_labels", "shN_centroids"):
        pixels = sog.pixels[name]
        sog.pixels[name] = np.concatenate([pixels, np.zeros((*pixels.shape[:2], 1), np.uint8)], axis=2)
    scene = read(sog.zip(tmp_path / "transparent.sog"))
    check(scene, sog.expected())
    np.testing.assert_allclose(scene.opacities, 1e-6, rtol=1e-3)


def test_a_colour_profile_is_not_applied(tmp_path: Path) -> None:
    from PIL import ImageCms

    sog = Sog(40, 0)
    files = sog.files()
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB")).tobytes()
    files["sh0.webp"] = webp(sog.pixels["sh0"], icc_profile=profile)
    assert b"ICCP" in files["sh0.webp"]
    check(read(write_zip(tmp_path / "a.sog", files)), sog.expected())


def test_frames(tmp_path: Path) -> None:
    path = Sog(9, 1).zip(tmp_path / "a.sog")
    rdf, rub = read(path), read(path, frame="rub")
    np.testing.assert_array_equal(rub.means, rdf.means * [1, -1, -1])
    np.testing.assert_array_equal(rub.sh[:, 1], -rdf.sh[:, 1])
    same(read(path, frame="rdf"), rdf)


def test_models(tmp_path: Path) -> None:
    sog = Sog(3)
    for model, antialiased, n_warnings in (
        ("default", False, 0), ("antialiased", True, 0), ("2dgs", False, 1), ("new", False, 1),
    ):  # fmt: skip
        sog.meta["model"] = model
        scene = read(sog.zip(tmp_path / "a.sog"))
        assert (scene.antialiased, len(scene.warnings)) == (antialiased, n_warnings)
    sog.meta["model"] = 5
    refused(sog.zip(tmp_path / "a.sog"), "model must be a text, not 5")


def test_codebooks_with_null(tmp_path: Path) -> None:
    sog = Sog(64)
    book = sog.meta["sh0"]["codebook"]
    sog.pixels["sh0"][..., :3] = np.arange(64).reshape(8, 8, 1)
    book[0] = None
    scene = read(sog.zip(tmp_path / "first.sog"))
    np.testing.assert_allclose(scene.sh[0, 0], book[1] + (book[1] - book[255]) / 255, rtol=1e-6)
    assert scene.n_splats == 64
    assert scene.warnings == []
    book[7] = None
    scene = read(sog.zip(tmp_path / "inside.sog"))
    assert scene.dropped == {"with a non-finite colour": 1}
    assert "1 of the 256 entries of sh0.codebook are null" in scene.warnings[0]


def test_counts_as_floats_a_byte_order_mark_and_other_keys(tmp_path: Path) -> None:
    sog = Sog(12, 1)
    sog.meta.update({"count": 12.0, "asset": {"generator": "x"}, "new": [[[]]]})
    files = sog.files()
    files["meta.json"] = b"\xef\xbb\xbf" + files["meta.json"]
    check(read(write_zip(tmp_path / "a.sog", files)), sog.expected())
    sog.meta["shN"]["bands"] = 0
    assert read(sog.zip(tmp_path / "b.sog")).sh_degree == 0


def test_memory_at_degree_0(tmp_path: Path) -> None:
    """Where the planes weigh most against the scene."""
    sog = Sog(64)
    sog.pixels = {name: np.tile(pixels, (125, 125, 1)) for name, pixels in sog.pixels.items()}
    sog.meta["count"] = 1_000_000
    [[(_, outcome)], _, grown] = limited(sog.zip(tmp_path / "a.sog"))
    assert outcome == "56000000 1000000 0"
    assert grown < 1.5 * 56_000_000 / 2**20 + 20
