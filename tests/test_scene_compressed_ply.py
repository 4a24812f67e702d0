"""Compressed PLY: every bit as specified, against the real pair of files, and wrong ones refused."""

from __future__ import annotations

import hashlib
import math
import os
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple

import numpy as np
import pytest
from compressed_files import BOUNDS, C0, COLOURS, PACKED, Elements, elements, encode, specified, write
from hypothesis import HealthCheck, given, settings
from plyfile import PlyData
from scene_limits import limited
from scene_mutations import loaded_or_refused, mutations

from edgegs.errors import SceneError
from edgegs.scene import Scene, load
from edgegs.scene.compressed_ply import read_compressed_ply
from edgegs.scene.ply_header import parse_header
from edgegs.scene.ply_layout import is_compressed
from edgegs.scene.reading import Reading


def same(scene: Scene, parts: Elements) -> None:
    want = specified(parts)
    np.testing.assert_array_equal(scene.means, want["means"].astype(np.float32))
    np.testing.assert_array_equal(scene.sh, want["sh"].astype(np.float32))
    np.testing.assert_allclose(scene.scales, np.exp(want["log_scales"]), rtol=2e-6)
    quats = want["quats"] / np.linalg.norm(want["quats"], axis=1, keepdims=True)
    np.testing.assert_allclose(scene.quats, quats, atol=1e-7)
    np.testing.assert_allclose(scene.opacities, 1 / (1 + np.exp(-np.clip(want["logits"], -16, 16))), rtol=1e-6)


@pytest.mark.parametrize(("n_rest", "degree"), [(0, 0), (9, 1), (24, 2), (45, 3), (72, 3)])
@pytest.mark.parametrize("colours", [True, False])
def test_every_bit(tmp_path: Path, n_rest: int, degree: int, colours: bool) -> None:
    """Two and a bit chunks, both headers, every degree."""
    parts = elements(600, n_rest, colours)
    path = write(tmp_path / "a.ply", parts)
    scene = load(path)
    assert (scene.n_splats, scene.n_rows, scene.sh_degree, scene.format) == (600, 600, degree, "compressed.ply")
    warned = ["SH degree 4: the fourth band is left out, and degree 3 is drawn"] if n_rest == 72 else []
    assert (scene.warnings, scene.dropped) == (warned, {})
    assert scene.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    same(scene, parts)


def test_known_words(tmp_path: Path) -> None:
    """Numbers worked out by hand."""
    parts = elements(6)
    for name in BOUNDS:
        parts["chunk"][name] = {"min": -1.0, "max": 3.0}[name[:3]] - 5 * ("scale" in name)
    for name in COLOURS:
        parts["chunk"][name] = {"min": 0.0, "max": 2.0}[name[:3]]
    parts["vertex"]["packed_position"] = [0, 0xFFFFFFFF, 2047 << 21, 1023 << 11, 2047, 1 << 21]
    parts["vertex"]["packed_scale"] = [0, 0xFFFFFFFF, 2047 << 21, 1023 << 11, 2047, 1 << 11]
    zero = 512 << 20 | 512 << 10 | 511  # as near to 0, 0, 0 as ten bits come
    parts["vertex"]["packed_rotation"] = [zero, 1 << 30 | zero, 2 << 30 | zero, 3 << 30 | zero, 1023 << 20, 0]
    parts["vertex"]["packed_color"] = [0, 0xFFFFFFFF, 0x00FF0080, 0xFF000001, 0x0000FFFE, 0x33CC66FF]
    scene = load(write(tmp_path / "a.ply", parts))
    same(scene, parts)
    step = 4 / 2047
    means = [[-1, -1, -1], [3, 3, 3], [3, -1, -1], [-1, 3, -1], [-1, -1, 3], [-1 + step, -1, -1]]
    np.testing.assert_allclose(scene.means, means, atol=1e-6)
    ln_sigma = np.array([[-6, -6, -6], [-2, -2, -2], [-2, -6, -6], [-6, -2, -6], [-6, -6, -2], [-6, -6 + 4 / 1023, -6]])
    np.testing.assert_allclose(np.log(scene.scales), ln_sigma, atol=1e-5)
    np.testing.assert_allclose(scene.quats[:4], np.eye(4), atol=1e-3)  # w, x, y, z is the largest
    half = math.sqrt(0.5)  # a sum of squares over 1, as no writer makes: no root of less than nothing
    np.testing.assert_allclose(scene.quats[4:], [[0, *([half] + [-half] * 2) / np.sqrt(1.5)], [0, *[-(3**-0.5)] * 3]])
    rgb = np.array([[0, 0, 0], [2, 2, 2], [0, 2, 0], [2, 0, 0], [0, 0, 2], [0.4, 1.6, 0.8]])
    np.testing.assert_allclose(scene.sh[:, 0], (rgb - 0.5) / C0, atol=1e-6)
    alphas = [1 / (1 + math.exp(16)), 1 / (1 + math.exp(-16)), 128 / 255, 1 / 255, 254 / 255]
    np.testing.assert_allclose(scene.opacities[:5], alphas, rtol=1e-6)


def test_every_sh_byte(tmp_path: Path) -> None:
    parts = elements(256, 9)
    parts["sh"]["f_rest_4"] = np.arange(256)  # channel 1 of 3, second coefficient
    got = load(write(tmp_path / "a.ply", parts)).sh[:, 2, 1]
    assert (got[0], got[255], got[128], got[1]) == (-4, 4, 8 * 128.5 / 256 - 4, 8 * 1.5 / 256 - 4)
    assert (np.diff(got) > 0).all()


@pytest.mark.parametrize("n", [1, 255, 256, 257, 512, 32_767, 32_768, 32_769, 70_001])
def test_sizes_round_chunk_and_block(tmp_path: Path, n: int) -> None:
    parts = elements(n, 9)
    seen: List[Tuple[int, int]] = []
    scene = load(write(tmp_path / "a.ply", parts), progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (n, n)
    assert len(seen) == -(-n // 32_768)
    picked = np.unique(np.clip([0, 254, 255, 256, 32_767, 32_768, 65_535, 65_536, n - 1], 0, n - 1))
    for i in picked:
        one = {
            "chunk": parts["chunk"][i // 256 : i // 256 + 1],
            "vertex": parts["vertex"][i : i + 1],
            "sh": parts["sh"][i : i + 1],
        }
        want = specified(one)
        np.testing.assert_array_equal(scene.means[i], want["means"][0].astype(np.float32))
        np.testing.assert_array_equal(scene.sh[i], want["sh"][0].astype(np.float32))


def test_columns_go_by_name(tmp_path: Path) -> None:
    """Other orders of properties and elements, and things that are not needed."""
    parts = elements(300, 24)
    plain = load(write(tmp_path / "a.ply", parts))
    rng = np.random.default_rng(5)
    mixed: Elements = {}
    for name in ("extra", "sh", "vertex", "more", "chunk"):
        rows = parts.get(name, np.zeros(7, "<f8, u1"))
        fields = [(p, rows.dtype[p].str) for p in rows.dtype.names]
        if name in parts:
            fields += [("unused", "<f8"), ("spare", "u1")]
            fields = [fields[i] for i in rng.permutation(len(fields))]
        mixed[name] = np.ones(len(rows), fields)
        for p in rows.dtype.names:
            mixed[name][p] = rows[p]
    scene = load(write(tmp_path / "b.ply", mixed))
    assert scene.warnings == []
    for array in ("means", "scales", "quats", "opacities", "sh"):
        np.testing.assert_array_equal(getattr(scene, array), getattr(plain, array))


def test_the_widest_rows(tmp_path: Path) -> None:
    parts = elements(9000)
    wide = np.zeros(9000, [*((name, "<u4") for name in PACKED), *((f"p{i}", "<f8") for i in range(230))])
    for name in PACKED:
        wide[name] = parts["vertex"][name]
    plain = load(write(tmp_path / "a.ply", parts))
    scene = load(write(tmp_path / "b.ply", {**parts, "vertex": wide}))
    np.testing.assert_array_equal(scene.means, plain.means)


def test_comments_carry_meaning(tmp_path: Path) -> None:
    scene = load(write(tmp_path / "a.ply", elements(3), ["SplatRenderMode: mip", "Vertical axis: z"]))
    assert (scene.antialiased, scene.vertical_axis, scene.warnings) == (True, "z", [])
    scene = load(write(tmp_path / "a.ply", elements(3), ["SplatRenderMode: 2dgs"]))
    assert (scene.antialiased, scene.vertical_axis, len(scene.warnings)) == (False, "y", 1)


def test_frame_and_budget_and_cap(tmp_path: Path) -> None:
    parts = elements(700, 9)
    path = write(tmp_path / "a.ply", parts)
    plain, turned = load(path), load(path, frame="rub")
    np.testing.assert_array_equal(turned.means, plain.means * np.float32([1, -1, -1]))
    few = load(path, max_gaussians=50)
    score = plain.opacities * plain.scales.max(axis=1).astype(np.float64) ** 2
    np.testing.assert_array_equal(few.means, plain.means[np.sort(np.argsort(-score, kind="stable")[:50])])
    assert load(path, cap=700).n_splats == 700
    with pytest.raises(SceneError, match="promises 700 splats, and the limit is 699"):
        load(path, cap=699)


def test_bounds_that_are_no_numbers(tmp_path: Path) -> None:
    """NaN spoils its chunk alone; a flat splat's ln sigma of -inf is legal, whether one bound is it or both."""
    parts = elements(600)
    parts["chunk"]["min_x"][0] = np.nan
    parts["chunk"]["max_g"][1] = np.inf
    parts["chunk"]["min_scale_z"][2] = parts["chunk"]["max_scale_z"][2] = -np.inf
    parts["chunk"]["min_scale_y"][2] = -np.inf
    parts["vertex"]["packed_scale"][599] = 0xFFFFFFFF
    scene = load(write(tmp_path / "a.ply", parts))
    assert scene.dropped == {"with a non-finite position": 256, "with a non-finite colour": 256}
    assert (scene.n_splats, scene.n_rows) == (88, 600)
    np.testing.assert_allclose(scene.scales[:, 2], 1e-9, rtol=1e-5)
    np.testing.assert_allclose(scene.scales[87, 1], np.exp(parts["chunk"]["max_scale_y"][2]), rtol=1e-5)


def test_the_real_pair(shared_data: Path) -> None:
    """The same scene as .ply, in another order: every value within half a step of its chunk."""
    path = shared_data / "compressed_ply" / "playbot_lod3_31k_sh2.compressed.ply"
    ours, plain = load(path), load(shared_data / "ply" / "playbot_lod3_31k_sh2.ply")
    assert (ours.n_splats, ours.sh_degree, ours.dropped, ours.warnings) == (31_000, 2, {}, [])
    chunk = PlyData.read(str(path))["chunk"].data

    def steps(infix: str, letters: str, tops: Sequence[int]) -> np.ndarray:
        """(N, 3): what one more in the packed word is, for each splat and axis."""
        spans = [chunk[f"max_{infix}{a}"].astype(float) - chunk[f"min_{infix}{a}"] for a in letters]
        return (np.stack(spans, axis=1) / tops)[np.arange(31_000) // 256]

    step = steps("", "xyz", (2047, 1023, 2047))
    order = np.argsort(plain.means[:, 0])
    sorted_x = plain.means[order, 0].astype(float)
    reach = 0.51 * step[:, 0] + 1e-6
    first, last = (np.searchsorted(sorted_x, ours.means[:, 0] + sign * reach) for sign in (-1, 1))
    match = np.empty(31_000, int)
    for i in range(31_000):
        near = order[first[i] : last[i]]
        near = near[np.abs(plain.opacities[near] - ours.opacities[i]) < 1e-3]  # a byte in both
        assert len(near)
        match[i] = near[(np.abs(plain.means[near] - ours.means[i]) / step[i]).max(axis=1).argmin()]
    assert len(np.unique(match)) == 31_000
    assert (np.abs(ours.means - plain.means[match]) <= 0.5 * step + 1e-6).all()
    step = steps("scale_", "xyz", (2047, 1023, 2047))
    assert (np.abs(np.log(ours.scales) - np.log(plain.scales[match])) <= 0.5 * step + 1e-5).all()
    step = steps("", "rgb", (255, 255, 255)) / C0
    assert (np.abs(ours.sh[:, 0] - plain.sh[match, 0]) <= 0.5 * step + 1e-6).all()
    assert np.abs(ours.sh[:, 1:] - plain.sh[match, 1:]).max() <= 0.5 * 8 / 256 + 1e-6
    assert np.abs((ours.quats * plain.quats[match]).sum(axis=1)).min() > 1 - 4 * (2**-0.5 / 1023) ** 2 - 1e-6
    np.testing.assert_allclose(ours.opacities, plain.opacities[match], rtol=1e-6)


def test_the_content_decides_and_not_the_name(tmp_path: Path, shared_data: Path) -> None:
    real = (shared_data / "compressed_ply" / "playbot_lod3_31k_sh2.compressed.ply").read_bytes()
    (tmp_path / "a.ply").write_bytes(real)
    assert load(tmp_path / "a.ply").format == "compressed.ply"
    plain = shared_data / "ply" / "leica-sofort-top8192.ply"
    (tmp_path / "b.compressed.ply").symlink_to(plain)
    assert load(tmp_path / "b.compressed.ply").format == "ply binary_little_endian"
    assert is_compressed(parse_header(real[:65_536], "a"))
    assert not is_compressed(parse_header(plain.read_bytes()[:65_536], "b"))
    with open(plain, "rb", buffering=0) as file, pytest.raises(SceneError, match="not a compressed PLY"):
        read_compressed_ply(file, str(plain), Reading())


def spoil(
    old: str = "", new: str = "", n_rest: int = 9, counts: Optional[Dict[str, object]] = None, tail: bytes = b""
) -> bytes:
    data = encode(elements(300, n_rest), counts=counts)
    assert old.encode() in data
    return data.replace(old.encode(), new.encode(), 1) + tail


def part(*names: str) -> bytes:
    parts = elements(300, 9)
    return encode({name: parts[name] for name in names})


FLOAT = "property float "
BAD: Dict[str, Tuple[bytes, str]] = {
    "zero": (encode(elements(0)), "a scene of zero splats"),
    "big endian": (spoil("little", "big"), "in format binary_big_endian; its packed words are only ever written bin"),
    "ascii": (spoil("binary_little_endian", "ascii"), "in format ascii; its packed words"),
    "no chunk": (part("vertex", "sh"), "without element chunk"),
    "no colour word": (spoil("packed_color", "colour"), "element vertex of a compressed PLY lacks packed_color"),
    "no bound": (spoil("max_scale_y", "max_size_y"), "element chunk of a compressed PLY lacks max_scale_y"),
    "half of the colours": (spoil("max_b", "max_a"), "element chunk of a compressed PLY lacks max_b"),
    "signed word": (spoil("uint packed_scale", "int packed_scale"), "packed_scale of element vertex .* is int, and mu"),
    "short word": (spoil("uint packed_rotation", "ushort packed_rotation"), "is ushort, and must be uint"),
    "double bound": (spoil("float min_x", "double min_x"), "min_x of element chunk .* is double, and must be float"),
    "list word": (spoil("uint packed_scale", "list uchar uint packed_scale"), "packed_scale .* is list"),
    "float sh": (spoil("uchar f_rest_3", "float f_rest_3"), "f_rest_3 of element sh .* is float, and must be uchar"),
    "lists": (spoil("element vertex", "element f 1\nproperty list uchar int i\nelement vertex"), "element f has lists"),
    "10 sh": (spoil("end_header", "property uchar f_rest_9\nend_header"), "10 f_rest properties fit no SH degree"),
    "gap in sh": (spoil("uchar f_rest_3", "uchar f_rest_9"), "f_rest_3 is missing though f_rest_4 is there"),
    "sh name": (spoil("f_rest_3", "f_rest_03"), "f_rest_03 is not a valid"),
    "chunk too few": (spoil(counts={"chunk": 1}), "1 rows of element chunk; it must be 2, one for each 256 of the 3"),
    "chunk too many": (spoil(counts={"chunk": 3}), "promises 3 rows of element chunk; it must be 2"),
    "sh too few": (spoil(counts={"sh": 299}), "299 rows of element sh; it must be 300, one for each of the 300 spl"),
    "vertex too few": (spoil(counts={"vertex": 299}), "rows of element sh; it must be 299"),
    "all too few": (spoil(counts={"vertex": 299, "sh": 299}), "25 bytes more than its header promises"),
    "all too many": (spoil(counts={"vertex": 301, "sh": 301}), "is the copy or download complete?"),
    "a billion": (spoil(n_rest=0, counts={"vertex": 10**9, "chunk": 3906250}), "the limit is 20,000,000"),
    "10^17": (spoil(n_rest=0, counts={"vertex": 10**17, "chunk": 390625 * 10**9}), "the limit is 20,000,000"),
    "under the cap": (spoil(n_rest=0, counts={"vertex": 19_999_744, "chunk": 78_124}), "bytes that its header p"),
    "a huge other": (spoil("element vertex", "element w 999999999\nproperty double d\nelement vertex"), "complete?"),
    "cut": (spoil()[:-1], "is the copy or download complete?"),
    "appended": (spoil(tail=b"x"), "1 bytes more than its header promises"),
    "mode": (spoil("element chunk", "comment SplatRenderMode: other\nelement chunk"), "'SplatRenderMode: other'"),
    "no numbers": (spoil().split(b"end_header\n")[0] + b"end_header\n" + b"\xff" * (2 * 72 + 300 * 25),
                   "none of its 300 rows can be drawn (300 with a non-finite position)"),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(BAD))
def test_wrong_files(tmp_path: Path, name: str) -> None:
    data, words = BAD[name]
    path = tmp_path / "bad.compressed.ply"
    path.write_bytes(data)
    with pytest.raises(SceneError) as caught:
        load(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert all(piece in message for piece in words.split(" .* "))
    assert message.isprintable()
    assert len(message) < 500


def test_every_cut(tmp_path: Path) -> None:
    data = encode(elements(3, 9))
    path = tmp_path / "a.ply"
    n_head = data.index(b"end_header")
    for length in (*range(0, n_head, 9), *range(n_head, len(data))):
        path.write_bytes(data[:length])
        with pytest.raises(SceneError):
            load(path)


def test_a_file_that_changes_while_it_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.ply", elements(70_000))
    with pytest.raises(SceneError, match="changed while it was read"):
        load(path, progress=lambda done, total: os.utime(path, ns=(1, done)))
    with pytest.raises(SceneError, match=r"ends at byte 600,000: it was cut while it was read"):
        load(path, progress=lambda done, total: os.truncate(path, 600_000))


def big(n: int, n_rest: int) -> bytes:
    """A header of n splats, a multiple of 256."""
    empty = {name: rows[:0] for name, rows in elements(256, n_rest).items()}
    return encode(empty, counts={"chunk": n // 256, "vertex": n, "sh": n})


def test_memory(tmp_path: Path) -> None:
    """The peak is under 1.5 times the decoded scene and 20 MiB of blocks."""
    n = 300_032
    path = tmp_path / "a.ply"
    with open(path, "wb") as file:
        file.write(big(n, 45))
        for rows in elements(256, 45).values():
            file.write(rows.tobytes() * (n // 256))
    decoded = n * 4 * (3 + 3 + 4 + 1 + 48) / 2**20
    message, _, grown, _ = limited(path)
    assert message == f"{n}"
    assert decoded < grown + 10
    assert grown < 1.5 * decoded + 20
    message, _, grown, _ = limited(path, max_gaussians=1000)
    assert message == "1000"
    assert grown < 60


def test_a_sparse_file_costs_nothing(tmp_path: Path) -> None:
    n = 19_999_744
    path = tmp_path / "a.ply"
    with open(path, "wb") as file:
        file.write(big(n, 0))
        file.truncate(len(big(n, 0)) + 72 * (n // 256) + 16 * n)
    message, peak, grown, seconds = limited(path)
    assert "sparse file" in message
    assert peak < 300
    assert grown < 40
    assert seconds < 2


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=mutations([encode(elements(3, 9)), encode(elements(300, 0, colours=False)), encode(elements(2, 72))]))
def test_spoiled_files_never_escape_as_another_error(tmp_path: Path, data: bytes) -> None:
    loaded_or_refused(tmp_path / "a.ply", data)
