"""SPZ: files of every version and degree against the format's description, real files, and wrong ones."""

from __future__ import annotations

import hashlib
import os
import re
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any, Dict, List, Tuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from spz_files import (
    Arrays,
    axes,
    encode,
    expected,
    extension,
    good_file,
    gzip_member,
    header,
    random_arrays,
    random_splats,
    row_bytes,
    spz_bytes,
    v4_file,
    zstd_stream,
)  # fmt: skip

from edgegs.errors import SceneError
from edgegs.scene import Scene, load
from edgegs.scene.checks import open_scene_file
from edgegs.scene.reading import Reading
from edgegs.scene.spz import read_spz

ROOT = Path(__file__).resolve().parent.parent
VERSIONS = [1, 2, 3, 4]
DEGREES = range(5)


def read(path: object, **how: Any) -> Scene:
    with open_scene_file(str(path)) as file:
        return read_spz(file, str(path), Reading(**how))


def read_bytes(folder: Path, data: bytes, **how: Any) -> Scene:
    path = folder / "a.spz"
    path.write_bytes(data)
    return read(path, **how)


def same(scene: Scene, want: Dict[str, np.ndarray], atol: float = 1e-6) -> None:
    for name, values in want.items():
        np.testing.assert_allclose(getattr(scene, name), values, rtol=1e-6, atol=atol, err_msg=name)


# --- Right files -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("degree", DEGREES)
@pytest.mark.parametrize("version", VERSIONS)
def test_values_come_back(tmp_path: Path, version: int, degree: int) -> None:
    splats = random_splats(29, degree)
    data = spz_bytes(encode(splats, version), version, degree)
    scene = read_bytes(tmp_path, data, frame="rdf")  # as they were written: not turned
    np.testing.assert_array_equal(scene.means, splats["means"].astype(np.float32))
    np.testing.assert_allclose(scene.opacities, splats["opacities"], rtol=2e-6)
    np.testing.assert_allclose(scene.scales, np.exp(splats["log_scales"]), rtol=1e-6)
    np.testing.assert_allclose(scene.sh[:, 0], splats["f_dc"], rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(scene.sh[:, 1:], splats["f_rest"][:, :15])
    # A small w is the root of what is left of 1: half a step of a byte moves it by up to sqrt(2·3/255).
    nearest = np.abs((scene.quats * splats["quats"]).sum(axis=1))
    assert nearest.min() > (0.985 if version < 3 else 0.999998)
    assert np.median(nearest) > 0.9999
    assert (scene.format, scene.n_rows, scene.sh_degree) == (f"spz v{version}", 29, min(degree, 3))
    assert scene.sha256 == hashlib.sha256(data).hexdigest()
    assert not scene.antialiased
    assert scene.vertical_axis == "y"
    assert len(scene.warnings) == (degree == 4)
    assert all("SH degree 4" in text for text in scene.warnings)


@pytest.mark.parametrize("degree", DEGREES)
@pytest.mark.parametrize("version", VERSIONS)
def test_any_bytes_are_what_the_format_says(tmp_path: Path, version: int, degree: int) -> None:
    arrays = random_arrays(300, degree, version)
    # Logits are cut off at ±16, so that alphas of 0 and 255 are near 0 and 1 only.
    same(read_bytes(tmp_path, spz_bytes(arrays, version, degree)), expected(arrays, version, degree))


@pytest.mark.parametrize("version", [2, 4])
@pytest.mark.parametrize("n", [1, 32_767, 32_768, 32_769, 65_537])
def test_sizes_round_the_block(tmp_path: Path, version: int, n: int) -> None:
    arrays = random_arrays(n, 1, version)
    seen: List[Tuple[int, int]] = []
    data = spz_bytes(arrays, version, 1)
    scene = read_bytes(tmp_path, data, progress=lambda done, total: seen.append((done, total)))
    assert scene.n_splats == n
    assert seen == sorted(seen)
    assert seen[-1] == (n, n)
    rows = sorted({0, n // 3, n - 1, *(row for row in (32_767, 32_768, 65_535, 65_536) if row < n)})
    want = expected(arrays, version, 1, rows=rows)
    for name, values in want.items():
        np.testing.assert_allclose(getattr(scene, name)[rows], values, rtol=1e-6, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("version", VERSIONS)
def test_long_runs(tmp_path: Path, version: int) -> None:
    """Packed a hundredfold and more, so that a few bytes of input are many of output."""
    n = 70_000
    few = random_arrays(7, 2, version)
    arrays = [array * (n // 7) for array in few]
    arrays[3] = bytes(few[3][:3]) * n
    scene = read_bytes(tmp_path, spz_bytes(arrays, version, 2))
    assert (tmp_path / "a.spz").stat().st_size < sum(map(len, arrays)) / 100
    want = expected([*few[:3], few[3][:3] * 7, *few[4:]], version, 2)
    for i in range(7):
        for name, values in want.items():
            np.testing.assert_allclose(getattr(scene, name)[i::7], np.broadcast_to(
                values[i], getattr(scene, name)[i::7].shape), rtol=1e-6, atol=1e-6, err_msg=name)  # fmt: skip


@pytest.mark.parametrize("bits", [0, 1, 12, 24, 31])
def test_fractional_bits(tmp_path: Path, bits: int) -> None:
    arrays = random_arrays(50, 0, 2)
    arrays[0] = b"\xff\xff\x7f\x00\x00\x80\xff\xff\xff" + arrays[0][9:]  # the largest, the least, and -1
    scene = read_bytes(tmp_path, spz_bytes(arrays, 2, 0, fractional_bits=bits))
    np.testing.assert_array_equal(scene.means, expected(arrays, 2, 0, bits)["means"])
    np.testing.assert_array_equal(scene.means[0] * 2.0**bits, [2**23 - 1, 2**23, 1])


def test_transparent_and_opaque_bytes(tmp_path: Path) -> None:
    arrays = random_arrays(3, 0, 2)
    arrays[1] = bytes([0, 255, 128])
    scene = read_bytes(tmp_path, spz_bytes(arrays, 2, 0))
    assert not scene.dropped  # the most opaque splats are infinite logits, and legal
    assert 0 < scene.opacities[0] < 1e-6
    assert 1 - 1e-6 < scene.opacities[1] < 1


def test_the_flag_for_antialiasing(tmp_path: Path) -> None:
    for version in VERSIONS:
        arrays = random_arrays(3, 1, version)
        assert read_bytes(tmp_path, spz_bytes(arrays, version, 1, flags=1)).antialiased
    scene = read_bytes(tmp_path, spz_bytes(random_arrays(3, 1, 2), 2, 1, flags=0x84))
    assert (scene.antialiased, scene.warnings) == (False, ["flags 0x84 of its header are unknown, and ignored"])


def test_float16_positions_that_are_no_numbers_are_dropped(tmp_path: Path) -> None:
    arrays = random_arrays(4, 0, 1)
    arrays[0] = struct.pack("<12e", 1, 2, 3, np.inf, 0, 0, 0, np.nan, 0, 65504, 0, 0)
    scene = read_bytes(tmp_path, spz_bytes(arrays, 1, 0))
    assert scene.dropped == {"with a non-finite position": 2}
    assert scene.means.tolist() == [[1, -2, -3], [65504, 0, 0]]


def test_a_budget(tmp_path: Path) -> None:
    arrays = random_arrays(200, 1, 3)
    path = tmp_path / "a.spz"
    whole = read_bytes(tmp_path, spz_bytes(arrays, 3, 1))
    part = read(path, max_gaussians=50)
    score = whole.opacities * whole.scales.max(axis=1).astype(np.float64) ** 2
    kept = np.sort(np.argsort(-score, kind="stable")[:50])
    np.testing.assert_array_equal(part.means, whole.means[kept])
    with pytest.raises(SceneError, match="its header promises 200 splats, and the limit is 199"):
        read(path, cap=199)


def test_a_long_file_name_in_the_gzip_header(tmp_path: Path) -> None:
    content = header(2, 3, 1) + b"".join(random_arrays(3, 1, 2))
    assert read_bytes(tmp_path, gzip_member(content, name=b"n" * 70_000)).n_splats == 3
    assert read_bytes(tmp_path, gzip_member(content, name=b"n" * 900_000)).n_splats == 3
    with pytest.raises(SceneError, match="gzip data without content in its first MiB"):
        read_bytes(tmp_path, gzip_member(content, name=b"n" * 1_100_000))


# --- Axes and extensions -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_axes(tmp_path: Path, version: int) -> None:
    arrays = random_arrays(9, 3, version)
    turned, raw = (read_bytes(tmp_path, spz_bytes(arrays, version, 3), frame=frame) for frame in ("rub", "rdf"))
    same(turned, expected(arrays, version, 3))
    np.testing.assert_array_equal(raw.means * [1, -1, -1], turned.means)
    np.testing.assert_array_equal(raw.sh[:, 1], -turned.sh[:, 1])  # y
    np.testing.assert_array_equal(raw.sh[:, 3], turned.sh[:, 3])  # x
    other = extension(0xADBE0002, bytes(12)) + extension(0x12340001, b"")
    for extensions, want in ((axes(4), turned), (axes(6), raw), (axes(0), turned), (other, turned),
                             (other + axes(6), raw), (axes(6) + axes(4) + other, raw)):  # fmt: skip
        scene = read_bytes(tmp_path, spz_bytes(arrays, version, 3, extensions=extensions))
        np.testing.assert_array_equal(scene.means, want.means)
        np.testing.assert_array_equal(scene.quats, want.quats)
        np.testing.assert_array_equal(scene.sh, want.sh)
        assert not scene.warnings
    # Whoever names the axes is right, whatever the file says.
    for extensions in (axes(6), axes(7)):
        scene = read_bytes(tmp_path, spz_bytes(arrays, version, 3, extensions=extensions), frame="rub")
        np.testing.assert_array_equal(scene.means, turned.means)
    words = r"its axes are LUF \(an extension says so\), and edgegs reads RUB .*: `--frame rdf\|rub` .* scene.frame"
    with pytest.raises(SceneError, match=words):
        read_bytes(tmp_path, spz_bytes(arrays, version, 3, extensions=axes(7)))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("extensions", "words"),
    [
        (b"EXTBYTES", "cannot be read"),
        (b"short", "cannot be read"),
        (extension(1, b"") + b"\0", "cannot be read"),
        (struct.pack("<II", 0xADBE0003, 2**32 - 1) + bytes(4), "cannot be read"),
        (axes(17), "no known value"),
        (axes(2**32 - 1), "no known value"),
        (extension(0xADBE0003, b"\4"), "no known value"),
        (extension(0xADBE0003, bytes(100)), "no known value"),
    ],
)
def test_extensions_that_cannot_be_read_are_ignored(
    tmp_path: Path, version: int, extensions: bytes, words: str
) -> None:
    arrays = random_arrays(3, 1, version)
    scene = read_bytes(tmp_path, spz_bytes(arrays, version, 1, extensions=extensions))
    same(scene, expected(arrays, version, 1))
    assert len(scene.warnings) == 1
    assert words in scene.warnings[0]
    assert ("`--frame rdf|rub`" in scene.warnings[0]) == (words == "no known value")


@pytest.mark.parametrize("version", [3, 4])
def test_extensions_are_bounded(tmp_path: Path, version: int) -> None:
    arrays = random_arrays(3, 1, version)
    many = extension(1, b"") * (1 << 17)
    assert read_bytes(tmp_path, spz_bytes(arrays, version, 1, extensions=many)).n_splats == 3
    with pytest.raises(SceneError, match="at most 1 MiB more" if version == 4 else "more than 1 MiB of extensions"):
        read_bytes(tmp_path, spz_bytes(arrays, version, 1, extensions=many + b"\0"))


# --- Files of others ---------------------------------------------------------------------------------------------

#: File of ../shared/data/hostile/gaussian-spz -> version, SH degree and count where it is good, else words.
SHARED: Dict[str, object] = {
    "bad-crc-v2.spz": "checksum (CRC-32) that gzip noted",
    "bad-fhcrc-v2.spz": "its gzip header does not have its own checksum",
    "bad-isize-v2.spz": "size (ISIZE) that gzip noted",
    "corrupt-deflate.spz": "its gzip stream cannot be unpacked (invalid block type)",
    "count-exceeds-stream-v2.spz": "promises 1,000,000 splats, and 55 bytes of gzip hold at most 2,987",
    "decode-degree1-v2.spz": (2, 1, 2),
    "decode-degree3-v2.spz": (2, 3, 2),
    "decode-degree4-v2.spz": (2, 3, 1),
    "decode-nonfinite-v1.spz": "none of its 1 rows can be drawn (1 with a non-finite position)",
    "decode-v1.spz": (1, 0, 1),
    "decode-v3.spz": (3, 0, 1),
    "degree3-v2.spz": (2, 3, 1),
    "degree4-v2.spz": (2, 3, 1),
    "empty-points-v2.spz": "a scene of zero splats",
    "extensions-v2.spz": (2, 0, 1),
    "gzip-not-spz.spz": "gzip data, but no SPZ scene",
    "header-fields-v2.spz": (2, 0, 1),
    "huge-count-v2.spz": "promises 2,147,483,648 splats, and the limit is 20,000,000",
    "long-fname-v2.spz": (2, 0, 1),
    "minimal-v1.spz": (1, 0, 1),
    "minimal-v2.spz": (2, 0, 1),
    "minimal-v3.spz": (3, 0, 1),
    "not-spz.spz": "begins neither as gzip does nor with 'NGSP'",
    "plaintext-v2.spz": "SPZ version 2 that is not compressed",
    "plaintext-v4.spz": "ends inside its table of contents",  # a header, and 64 bytes of anything
    "sh-degree-5-v2.spz": "SH degree 5, and SPZ has 0 to 4",
    "short-stream.spz": "does not begin with 'NGSP'",
    "three-points-degree1-v2.spz": (2, 1, 3),
    "trailing-after-member-v2.spz": "8 bytes follow its gzip stream",
    "trailing-decompressed-v2.spz": "goes on after the 1 splats that its header promises",
    "truncated-deflate-v2.spz": "its alphas end after 2 of the 3 bytes",
    "truncated-gzip-header.spz": "ends inside its gzip header",
    "truncated-payload-v2.spz": "its colours end after 0 of the 9 bytes",
    "version-0.spz": "SPZ version 0, and edgegs reads versions 1 to 4",
    "version-5.spz": "SPZ version 5, and edgegs reads versions 1 to 4",
}


@pytest.fixture
def hostile(shared_data: Path) -> Path:
    return shared_data / "hostile" / "gaussian-spz"


def test_the_table_covers_the_folder(hostile: Path) -> None:
    assert sorted(SHARED) == sorted(path.name for path in hostile.iterdir() if path.suffix == ".spz")


@pytest.mark.parametrize("name", sorted(SHARED))
def test_shared_hostile_files(hostile: Path, name: str) -> None:
    path, outcome = str(hostile / name), SHARED[name]
    if isinstance(outcome, str):
        with pytest.raises(SceneError) as caught:
            read(path)
        assert str(caught.value).startswith(path + ": ")
        assert outcome in str(caught.value)
        assert "\n" not in str(caught.value)
        return
    scene = read(path)
    version, degree, count = outcome  # type: ignore[misc]
    assert (scene.format, scene.sh_degree, scene.n_splats) == (f"spz v{version}", degree, count)
    # Their content, by zlib's own module and the description.
    content = zlib.decompress(Path(path).read_bytes(), 31)
    file_degree, start = content[12], 16
    arrays: Arrays = []
    for size in row_bytes(version, file_degree):
        arrays.append(content[start : start + count * size])
        start += count * size
    same(scene, expected(arrays, version, file_degree, content[13]))
    assert scene.antialiased == bool(content[14] & 1)
    assert any("degree 4" in text for text in scene.warnings) == (file_degree == 4)
    assert any("extensions cannot be read" in text for text in scene.warnings) == (name == "extensions-v2.spz")


def test_the_golden_file(hostile: Path) -> None:
    """Another decoder's answer; its axes are the file's own."""
    name = "decode-degree1-v2.spz"
    text = (hostile / f"{name}.golden.usda").read_text()
    values: Dict[str, np.ndarray] = {}
    for key, shown in re.findall(r"\] (\S+) = \[(.*)\]", text):
        values[key] = np.array([float(word) for word in re.findall(r"[-+.e\d]+", shown)])
    scene = read(hostile / name, frame="rdf")
    np.testing.assert_allclose(scene.means.reshape(-1), values["positions"])
    np.testing.assert_allclose(scene.opacities, values["opacities"], rtol=1e-6)
    np.testing.assert_allclose(scene.scales.reshape(-1), values["scales"], rtol=1e-6)
    np.testing.assert_allclose(scene.quats.reshape(-1), values["orientations"], atol=1e-6)
    golden = values["radiance:sphericalHarmonicsCoefficients"]
    np.testing.assert_allclose(scene.sh.reshape(-1), golden, atol=1e-6)


def test_what_the_decode_files_were_made_from(hostile: Path) -> None:
    scene = read(hostile / "decode-degree3-v2.spz")
    assert scene.means.tolist() == [[0.5, -1, 1.5], [-2, -0.75, -3]]
    np.testing.assert_allclose(scene.opacities, [0.25, 0.75], atol=1 / 510)
    np.testing.assert_allclose(scene.sh[:, 0], [[0.2, -0.2, 0.4], [-0.4, 0.1, -0.1]], atol=1 / 76.5)
    np.testing.assert_allclose(np.log(scene.scales), [[0, 0, 0], [1, -1, 0.5]], atol=1e-6)
    np.testing.assert_allclose(scene.quats, [[1, 0, 0, 0], [0.5, 0.5, -0.5, -0.5]], atol=0.01)
    k = np.arange(15)
    first = np.stack([(k + 1) / 32, -(k + 2) / 32, (k + 3) / 64], axis=1)
    signs = np.array([-1, -1, 1, -1, 1, 1, -1, 1, -1, 1, -1, -1, 1, -1, 1])[:, None]
    np.testing.assert_array_equal(scene.sh[0, 1:], signs * first)
    np.testing.assert_array_equal(scene.sh[1, 1:], signs * np.stack([-first[:, 0], first[:, 2], first[:, 1]], axis=1))
    old, new = read(hostile / "decode-v1.spz"), read(hostile / "decode-v3.spz")
    assert (old.means.tolist(), new.means.tolist()) == ([[1.5, 2.5, -0.75]], [[2, 1, -0.5]])
    np.testing.assert_allclose(old.quats, [[0.92387953, 0.38268343, 0, 0]], atol=0.006)
    np.testing.assert_allclose(np.abs(new.quats), [[0.2, 0.8, 0.4, 0.4]], atol=0.002)
    assert (new.quats[0] * [1, 1, -1, -1] > 0).all()


@pytest.mark.parametrize(
    ("name", "exact"), [("degree1-offgrid-v2", False), ("degree3-exact-v2", True), ("degree3-exact-v3", True)]
)
def test_the_same_scene_as_ply(shared_data: Path, name: str, exact: bool) -> None:
    """These files are right, up, back, as the format has it, and their PLY right, down, forward."""
    folder = shared_data / "equivalence"
    ply = load(folder / f"equiv-{name.rpartition('-')[0]}-binary-le.ply")
    spz = read(folder / f"equiv-{name}.spz")
    assert (spz.n_splats, spz.sh_degree) == (ply.n_splats, ply.sh_degree)
    np.testing.assert_allclose(spz.means, ply.means, rtol=0, atol=1e-6 if exact else 0.5 / 4096)
    np.testing.assert_allclose(np.log(spz.scales), np.log(ply.scales), atol=2e-6 if exact else 1 / 32)
    np.testing.assert_allclose(spz.opacities, ply.opacities, atol=1e-6 if exact else 1 / 510)
    np.testing.assert_allclose(spz.sh[:, 0], ply.sh[:, 0], atol=1e-6 if exact else 1 / 76.5)
    np.testing.assert_allclose(spz.sh[:, 1:], ply.sh[:, 1:], atol=1e-6 if exact else 1 / 256)
    same_way = np.sign((spz.quats * ply.quats).sum(axis=1, keepdims=True))
    np.testing.assert_allclose(spz.quats * same_way, ply.quats, atol=8e-3)
    assert np.abs(read(folder / f"equiv-{name}.spz", frame="rdf").means - ply.means).max() > 1


@pytest.mark.parametrize(
    ("name", "version", "count", "antialiased"),
    [("leica-sofort-top8192", 2, 8192, True), ("yashica-t4-top8192", 2, 8192, True), ("metal3", 3, 3, False)],
)
def test_real_files(shared_data: Path, name: str, version: int, count: int, antialiased: bool) -> None:
    path = shared_data / "spz" / f"{name}.spz"
    scene = read(path)
    assert (scene.format, scene.n_splats, scene.n_rows) == (f"spz v{version}", count, count)
    assert (scene.sh_degree, scene.antialiased, scene.warnings) == (3, antialiased, [])
    assert scene.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    content = zlib.decompress(path.read_bytes(), 31)
    arrays: Arrays = []
    start = 16
    for size in row_bytes(version, 3):
        arrays.append(content[start : start + count * size])
        start += count * size
    rows = np.linspace(0, count - 1, min(count, 199)).astype(int)
    for array, values in expected(arrays, version, 3, content[13], rows).items():
        np.testing.assert_allclose(getattr(scene, array)[rows], values, rtol=1e-6, atol=1e-6, err_msg=array)
    if count > 3:  # a capture: splats much smaller than itself, and these are its most opaque
        assert np.median(scene.scales) < scene.bounds()[1] / 10
        assert scene.opacities.min() > 0.6


# --- Wrong files -------------------------------------------------------------------------------------------------

_ARRAYS = random_arrays(3, 1, 2)
_CONTENT = header(2, 3, 1) + b"".join(_ARRAYS)
_GZIP = gzip_member(_CONTENT)

GZIP: Dict[str, Tuple[bytes, str]] = {
    "empty content": (gzip_member(b""), "does not begin with 'NGSP'"),
    "ply in it": (gzip_member(b"ply\nformat ascii 1.0\n"), "run 'gunzip' first"),
    "only magic": (gzip_member(b"NGSP"), "ends inside its header"),
    "15 bytes": (gzip_member(_CONTENT[:15]), "ends inside its header"),
    "no arrays": (gzip_member(_CONTENT[:16]), "its positions end after 0 of the 27 bytes that the 3 splats"),
    "one byte less": (gzip_member(_CONTENT[:-1]), "its spherical harmonics end after 26 of the 27 bytes"),
    "one byte more": (gzip_member(_CONTENT + b"\0"), "goes on after the 3 splats"),
    "one splat less": (gzip_member(header(2, 2, 1) + _CONTENT[16:]), "goes on after the 2 splats"),
    "one splat more": (gzip_member(header(2, 4, 1) + _CONTENT[16:]), "end after"),
    "other version": (gzip_member(header(3, 3, 1) + _CONTENT[16:]), "its spherical harmonics end after 24 of"),
    "version 4": (gzip_member(header(4, 3, 1, last=6) + _CONTENT[16:]), "version 4 packed once more with gzip"),
    "version 2^32-1": (gzip_member(header(2**32 - 1, 3, 1)), "SPZ version 4294967295"),
    "crc": (gzip_member(_CONTENT, crc=1), "CRC-32"),
    "size": (gzip_member(_CONTENT, n_bytes=1), "ISIZE"),
    "trailer cut": (_GZIP[:-1], "ends inside its gzip stream"),
    "no trailer": (_GZIP[:-8], "ends inside its gzip stream"),
    "zeros after": (_GZIP + bytes(512), "512 bytes follow its gzip stream"),
    "many after": (_GZIP + bytes(200_000), "200,000 bytes follow its gzip stream"),
    "too many after": (_GZIP + bytes(3_000_000), "bytes for 3 splats that unpack to 84; not an SPZ scene"),
    "twice": (_GZIP + _GZIP, "follow its gzip stream"),
    "gzip twice": (gzip_member(_GZIP), "does not begin with 'NGSP'"),
    "method 7": (b"\x1f\x8b\x07" + _GZIP[3:], "cannot be unpacked (unknown compression method)"),
    "fractional bits": (gzip_member(header(2, 3, 1, 32) + _CONTENT[16:]), "32 fractional bits, and positions have 24"),
    "degree 255": (gzip_member(header(2, 3, 255) + _CONTENT[16:]), "SH degree 255"),
    "cap": (gzip_member(header(2, 20_000_001, 1) + _CONTENT[16:]), "promises 20,000,001 splats, and the limit is"),
    "under the cap": (gzip_member(header(2, 20_000_000, 1) + _CONTENT[16:]), "of gzip hold at most"),
}  # fmt: skip


def v4(version: int = 4, n: int = 3, degree: int = 1, n_streams: int = 6, **changed: Any) -> bytes:
    """A version 4 file of three splats of degree 1, with something changed."""
    arrays = random_arrays(3, 1, 4)
    streams = [zstd_stream(array) for array in arrays]
    raw = [len(array) for array in arrays]
    for i, stream in changed.pop("streams", {}).items():
        streams[i] = stream
    for i, size in changed.pop("raw", {}).items():
        raw[i] = size
    return v4_file(header(version, n, degree, last=n_streams), streams, raw, **changed)


def v4_cases() -> Dict[str, Tuple[bytes, str]]:
    good = v4()
    table_says_more = good[:32] + struct.pack("<Q", 2**64 - 1) + good[40:]
    return {
        "only magic": (b"NGSP", "ends inside its header"),
        "31 bytes": (good[:31], "ends inside its header"),
        "32 bytes": (good[:32], "ends inside its table of contents"),
        "cut": (good[:-1], f"holds {len(good) - 1:,} of the {len(good):,} bytes that its table of contents promises"),
        "one byte more": (good + b"\0", "1 bytes follow its last stream"),
        "version 3": (v4(version=3), "SPZ version 3 that is not compressed"),
        "version 6": (v4(version=6), "SPZ version 6"),
        "five streams": (v4(n_streams=5), "5 streams, and its SH degree makes them 6"),
        "no streams": (v4(n_streams=0), "0 streams"),
        "degree 0": (v4(degree=0), "6 streams, and its SH degree makes them 5"),
        "degree 2": (v4(degree=2), "27 bytes of spherical harmonics, and the 3 splats that its header promises"),
        "more splats": (v4(n=4), "27 bytes of positions, and the 4 splats that its header promises take 36"),
        "20 M splats": (v4(n=20_000_000), "27 bytes of positions, and the 20,000,000 splats"),
        "cap": (v4(n=20_000_001), "the limit is 20,000,000"),
        "no splats": (v4(n=0), "zero splats"),
        "raw 2^64": (v4(raw={5: 2**64 - 1}), "18,446,744,073,709,551,615 bytes of spherical harmonics"),
        "packed 2^64": (table_says_more, "bytes that its table of contents promises"),
        "table at 0": (v4(table_offset=0), "begins at byte 0; it must be 32"),
        "table at 31": (v4(table_offset=31), "begins at byte 31"),
        "table at 33": (v4(table_offset=33), "its table of contents says"),
        "table far": (v4(table_offset=2**32 - 1), "begins at byte 4,294,967,295"),
        "table after the end": (v4(table_offset=5000), "ends inside its table of contents"),
        "empty stream": (v4(streams={1: b""}), "its alphas end after 0 of the 3 bytes"),
        "not zstd": (v4(streams={2: b"not zstd at all"}), "its colours cannot be unpacked (ZSTD: Unknown frame"),
        "short stream": (v4(streams={3: zstd_stream(bytes(8))}), "its scales end after 8 of the 9 bytes"),
        "cut stream": (v4(streams={3: zstd_stream(bytes(9))[:-6]}), "its scales end after"),
        "long stream": (v4(streams={4: zstd_stream(bytes(13))}), "its rotations unpack to more than the 12 bytes"),
        "two frames": (v4(streams={4: zstd_stream(bytes(12)) + zstd_stream(b"x")}), "its rotations unpack to more"),
        "junk in the stream": (v4(streams={4: zstd_stream(bytes(12)) + b"JUNK"}), "its rotations cannot be unpacked"),
        "checksum": (v4(streams={0: zstd_stream(bytes(27))[:-1] + b"?"}), "doesn't match checksum"),
        "padded": (v4(streams={1: zstd_stream(bytes(3)) + bytes(70_000)}), "bytes of ZSTD for 3 bytes of alphas"),
        "window": (v4(streams={1: zstd_stream(bytes(3), window_log=26)}), "a ZSTD window of over 32 MiB"),
    }  # fmt: skip


def refused(folder: Path, data: bytes, words: str) -> None:
    with pytest.raises(SceneError) as caught:
        read_bytes(folder, data)
    message = str(caught.value)
    assert message.startswith(f"{folder / 'a.spz'}: ")
    assert words in message
    assert message.isprintable()
    assert len(message) < 500


@pytest.mark.parametrize("name", sorted(GZIP))
def test_wrong_gzip_files(tmp_path: Path, name: str) -> None:
    refused(tmp_path, *GZIP[name])


def test_wrong_version_4_files(tmp_path: Path) -> None:
    assert read_bytes(tmp_path, v4()).n_splats == 3
    assert read_bytes(tmp_path, v4(streams={1: zstd_stream(bytes(3), window_log=25)})).n_splats == 3
    for data, words in v4_cases().values():
        refused(tmp_path, data, words)


def test_neither_gzip_nor_spz(tmp_path: Path) -> None:
    for data in (b"x", b"\x1f", b"NGS", b"ply\n", bytes(5000), b"\x28\xb5\x2f\xfd" + bytes(40)):
        refused(tmp_path, data, "begins neither as gzip does nor with 'NGSP'")
    refused(tmp_path, b"\x1f\x8b", "ends inside its gzip header")


@pytest.mark.parametrize("version", VERSIONS)
def test_every_cut_of_a_good_file(tmp_path: Path, version: int) -> None:
    data, _ = good_file(version)
    for length in range(1, len(data)):
        with pytest.raises(SceneError):
            read_bytes(tmp_path, data[:length])


def test_without_the_package_zstandard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    assert read_bytes(tmp_path, good_file(3)[0]).n_splats == 3
    monkeypatch.undo()
    data = good_file(4)[0]
    monkeypatch.setitem(sys.modules, "zstandard", None)
    refused(tmp_path, data, "needs the package zstandard: pip install 'edgegs[spz]'")


@pytest.mark.parametrize("version", [2, 4])
def test_a_file_that_changes_while_it_is_read(tmp_path: Path, version: int) -> None:
    path = tmp_path / "a.spz"
    data = spz_bytes(random_arrays(70_000, 0, version), version, 0)

    def change(at: int, how: str) -> None:
        path.write_bytes(data)

        def progress(done: int, total: int) -> None:
            if done >= at:
                if how == "touch":
                    os.utime(path, ns=(1, done))
                else:
                    with open(path, "r+b") as file:
                        file.truncate(len(data) // 2)
                        if how == "overwrite":
                            file.write(bytes(len(data)))

        with pytest.raises(SceneError, match=r"changed while it was read|cannot be unpacked|end after"):
            read(path, progress=progress)

    for at in (0, 1):  # while it is checked, and while it is decoded
        for how in ("touch", "cut", "overwrite"):
            change(at, how)


def test_whoever_follows_the_progress_can_end_it(tmp_path: Path) -> None:
    class EnoughError(Exception):
        pass

    def stop(done: int, total: int) -> None:
        raise EnoughError

    with pytest.raises(EnoughError):
        read_bytes(tmp_path, good_file(2)[0], progress=stop)


# --- Limits ------------------------------------------------------------------------------------------------------

# Reads the files named on the command line under limits; after each its message, its processor seconds, and the
# peak of memory so far above the bare program come back.
_LIMITED = """
import resource, sys, time
resource.setrlimit(resource.RLIMIT_CPU, (30, 30))
try:
    import zstandard
except ImportError:
    pass
from edgegs.errors import EdgegsError
from edgegs.scene.checks import open_scene_file
from edgegs.scene.reading import Reading
from edgegs.scene.spz import read_spz

def peak():  # of this program alone; ru_maxrss would begin with its parent's
    return next(int(line.split()[1]) / 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))

before = peak()
for path in sys.argv[1:]:
    began = time.process_time()
    try:
        with open_scene_file(path) as file:
            print(read_spz(file, path, Reading()).n_splats)
    except EdgegsError as error:
        print(error)
    print(time.process_time() - began, peak() - before, peak())
"""


def limited(*paths: Path) -> List[Tuple[str, float, float, float]]:
    """(message, processor seconds, MiB above the bare program, MiB) for each file, read one after another."""
    command = [sys.executable, "-c", _LIMITED, *map(str, paths)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env=environment, check=False, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 2 * len(paths)
    return [(lines[i], *map(float, lines[i + 1].split())) for i in range(0, len(lines), 2)]  # type: ignore[misc]


def test_the_shared_files_are_small_and_quick(hostile: Path) -> None:
    for _, seconds, grown, peak in limited(*(hostile / name for name in sorted(SHARED))):
        assert seconds < 2  # of processor time, not of the clock
        assert peak < 300
        assert grown < 30


def test_bombs_and_lies_take_no_memory(tmp_path: Path) -> None:
    """What a file unpacks to is never kept, whatever its header promises; nothing is allocated for its count."""
    n = 3_000_000
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    bomb = packer.compress(header(2, n, 0))
    for _ in range(19 * n // 1_000_000 - 1):
        bomb += packer.compress(bytes(1_000_000))
    bomb += packer.compress(bytes(1_000_000 - 1)) + packer.flush()  # one byte short
    huge = zstd_stream(bytes(1 << 29))  # half a GiB in 16 KiB
    sizes = [n * size for size in row_bytes(4, 0)]
    streams = [zstd_stream(bytes(size)) for size in sizes]
    files = {
        "gzip": (bomb, "its rotations end after 8,999,999 of the 9,000,000 bytes"),
        "long": (gzip_member(header(2, 1, 0) + bytes(19) + bytes(60_000_000), level=1), "goes on after the 1 splats"),
        "extensions": (
            gzip_member(header(2, 1, 0, flags=2) + bytes(19) + bytes(60_000_000), level=1), "more than 1 MiB"
        ),
        "zstd": (v4(streams={0: huge}), "its positions unpack to more than the 27 bytes"),
        "zstd short": (
            v4_file(header(4, n, 0, last=5), [*streams[:4], zstd_stream(bytes(sizes[4] - 1))], sizes),
            "its rotations end after 11,999,999 of the 12,000,000 bytes",
        ),
        "lie": (gzip_member(header(2, 70_000, 3) + bytes(19)) + bytes(5000), "positions end after 19 of the 630,000"),
    }  # fmt: skip
    paths = []
    for name, (data, _) in files.items():
        paths.append(tmp_path / f"{name}.spz")
        paths[-1].write_bytes(data)
    for (message, seconds, grown, peak), (_, words) in zip(limited(*paths), files.values()):
        assert words in message
        assert seconds < 2
        assert peak < 300
        assert grown < 40


def test_a_sparse_file_of_a_tebibyte(tmp_path: Path) -> None:
    for data, words in ((good_file(2)[0], "not an SPZ scene"), (good_file(4)[0], "bytes follow its last stream")):
        path = tmp_path / "sparse.spz"
        with open(path, "wb") as file:
            file.write(data)
            file.truncate(1 << 40)
        with pytest.raises(SceneError, match=words):
            read(path)


@pytest.mark.parametrize(("version", "degree"), [(2, 0), (3, 3), (4, 3), (4, 4)])
def test_memory_of_a_good_file(tmp_path: Path, version: int, degree: int) -> None:
    """Little more than the decoded scene: what it unpacks to is never there at once."""
    n = 300_000 if degree == 0 else 80_000
    path = tmp_path / "a.spz"
    path.write_bytes(spz_bytes(random_arrays(n, degree, version), version, degree))
    decoded = n * 4 * (3 + 3 + 4 + 1 + 3 * (min(degree, 3) + 1) ** 2) / 2**20
    ((message, _, grown, _),) = limited(path)
    assert message == str(n)
    assert decoded < grown + 10
    assert grown < 1.5 * decoded + 20


# --- Chance ------------------------------------------------------------------------------------------------------

_FUZZ = settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
_SPOILS = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255), st.sampled_from(["set", "cut", "insert"])),
                   min_size=1, max_size=6)  # fmt: skip


def spoil(data: bytes, spoils: List[Tuple[int, int, str]]) -> bytes:
    for place, value, how in spoils:
        at = place % (len(data) + 1)
        rest = {"set": at + 1, "cut": at + 1 + value, "insert": at}[how]
        data = data[:at] + (b"" if how == "cut" else bytes([value])) + data[rest:]
    return data


def only_scene_error(folder: Path, data: bytes) -> None:
    path = folder / "fuzz.spz"
    path.write_bytes(data or b"\0")
    try:
        scene = read(path)
    except SceneError as error:
        message = str(error)
        assert message.startswith(f"{path}: ")
        assert message.isprintable()
    else:
        assert np.isfinite(scene.means).all()
        assert np.isfinite(scene.sh).all()
        assert (scene.scales > 0).all()


@_FUZZ
@given(version=st.integers(1, 4), degree=st.integers(0, 4), spoils=_SPOILS)
def test_fuzz_files(tmp_path_factory: Any, version: int, degree: int, spoils: List[Tuple[int, int, str]]) -> None:
    extensions = axes(6) + extension(1, b"x")
    data = spz_bytes(random_arrays(5, degree, version), version, degree, extensions=extensions)
    only_scene_error(tmp_path_factory.getbasetemp(), spoil(data, spoils))


@_FUZZ
@given(version=st.integers(1, 3), degree=st.integers(0, 4), spoils=_SPOILS)
def test_fuzz_content(tmp_path_factory: Any, version: int, degree: int, spoils: List[Tuple[int, int, str]]) -> None:
    """Spoilt before it is packed, so that gzip's checksum is right."""
    content = header(version, 5, degree, flags=2) + b"".join(random_arrays(5, degree, version)) + axes(4)
    only_scene_error(tmp_path_factory.getbasetemp(), gzip_member(spoil(content, spoils)))


@_FUZZ
@given(place=st.integers(0, 127), value=st.integers(0, 255), spoils=_SPOILS)
def test_fuzz_version_4(tmp_path_factory: Any, place: int, value: int, spoils: List[Tuple[int, int, str]]) -> None:
    """A byte of header or table, and what is in one of the streams."""
    arrays = random_arrays(3, 1, 4)
    streams = [zstd_stream(array) for array in arrays]
    streams[value % 6] = zstd_stream(spoil(arrays[value % 6], spoils))
    data = bytearray(v4_file(header(4, 3, 1, last=6), streams, [len(array) for array in arrays]))
    data[place] = value
    only_scene_error(tmp_path_factory.getbasetemp(), bytes(data))


def test_a_fuzzed_file_can_be_good(tmp_path: Path) -> None:
    """So the tests above do decode some of theirs."""
    data, arrays = good_file(3)
    assert read_bytes(tmp_path, spoil(data, [(4, 7, "set")])).n_splats == 3  # the time in gzip's header
    same(read_bytes(tmp_path, data), expected(arrays, 3, 1))
