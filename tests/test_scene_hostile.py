"""Wrong files: every one ends in one clear message of the right class, soon, and in little memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Dict, List, Tuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from scene_files import REQUIRED, RGB, good_bytes, header, raw_rows, write_rows
from scene_limits import limited
from scene_mutations import loaded_or_refused, mutations

from edgegs.errors import AccessError, EdgegsError, InputError, SceneError
from edgegs.scene import load

#: File of ../shared/data/hostile/gaussian-ply -> SH degree and count where it is good, else words of the message.
SHARED: Dict[str, object] = {
    "degree-1-sh.ply": (1, 1),
    "degree-2-sh.ply": (2, 1),
    "degree-3-sh.ply": (3, 1),
    "degree-4-sh.ply": (3, 1),  # with a warning, see test_scene_ply
    "duplicate-sh-index.ply": "f_rest_00 is not a valid",
    "empty-vertex.ply": "zero splats",
    "invalid-sh-name.ply": "f_rest_1x is not a valid",
    "list-property.ply": "opacity is a list",
    "mesh-not-gaussian.ply": "a mesh, not a 3DGS scene: lacks f_dc_0…2, opacity, scale_0…2, rot_0…3",
    "missing-opacity.ply": "lacks opacity",
    "nan-opacity-binary-le.ply": "none of its 1 rows",
    "non-contiguous-sh.ply": "f_rest_2 is missing though f_rest_3 is there",
    "one-gaussian-ascii.ply": (0, 1),
    "one-gaussian-ascii.ply.golden.usda": "not a scene",
    "one-gaussian-binary-le.ply": (0, 1),
    "out-of-range-double.ply": "1 with a position beyond float32",
    "overflow-scale.ply": "1 with a scale too large for float32",
    "reordered-properties.ply": (1, 1),
    "sh-count-not-rgb.ply": "2 f_rest properties fit no SH degree",
    "sh-invalid-degree.ply": "6 f_rest properties fit no SH degree",
    "three-gaussian-binary-le.ply": (1, 3),
    "truncated-binary-le.ply": "holds 0 of the 1 splats",
}


def test_the_table_covers_the_folder(shared_data: Path) -> None:
    assert sorted(SHARED) == sorted(path.name for path in (shared_data / "hostile" / "gaussian-ply").iterdir())


@pytest.mark.parametrize("name", sorted(SHARED))
def test_shared_hostile_files(shared_data: Path, name: str) -> None:
    path = str(shared_data / "hostile" / "gaussian-ply" / name)
    outcome = SHARED[name]
    if isinstance(outcome, str):
        with pytest.raises(SceneError) as caught:
            load(path)
        message = str(caught.value)
        assert message.startswith(path + ": ")
        assert outcome in message
        assert "\n" not in message
    else:
        scene = load(path)
        assert (scene.sh_degree, scene.n_splats) == outcome


def test_values_of_the_good_shared_files(shared_data: Path) -> None:
    folder = shared_data / "hostile" / "gaussian-ply"
    one = load(folder / "one-gaussian-ascii.ply")  # its golden .usda says the same in another frame
    np.testing.assert_allclose(one.scales, [[1, 2, 0.5]], rtol=1e-6)
    assert (one.means.tolist(), one.quats.tolist(), one.opacities.tolist()) == ([[1, 2, 3]], [[1, 0, 0, 0]], [0.5])
    np.testing.assert_allclose(one.sh, [[[0.1, 0.2, 0.3]]], rtol=1e-6)
    # Channel-major in the file: R 1 2 3, G 4 5 6, B 7 8 9.
    for name in ("degree-1-sh.ply", "reordered-properties.ply"):
        assert load(folder / name).sh[0, 1:].tolist() == [[1, 4, 7], [2, 5, 8], [3, 6, 9]]


def without(*names: str) -> bytes:
    kept = [name for name in REQUIRED if name not in names]
    return header(1, kept) + bytes(4 * len(kept))


def with_line(line: bytes, at: bytes = b"element vertex") -> bytes:
    return good_bytes().replace(at, line + b"\n" + at, 1)


MADE: Dict[str, Tuple[bytes, str]] = {
    # Not a scene at all; what begins as another format is its reader's to refuse.
    "text": (b"hello", "not a scene"),
    "upper case": (b"PLY\n" + good_bytes()[4:], "first line must be 'ply'"),
    "html": (b"<!DOCTYPE html>", "web page"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
    # Headers.
    "only ply": (b"ply\n", "ends inside its header"),
    "cut header": (good_bytes()[:100], "ends inside its header"),
    "no end": (b"ply\n" + b"comment x\n" * 20_000, "no 'end_header' in the first 64 KiB"),
    "one long comment": (b"ply\ncomment " + b"x" * 5_000_000, "no 'end_header' in the first 64 KiB"),
    "nul blob": (b"ply\n" + bytes(5_000_000), "no 'end_header' in the first 64 KiB"),
    "no format": (b"ply\nelement vertex 1\nend_header\n", "line 2: expected 'format"),
    "nothing": (b"ply\nend_header\n", "no 'format' line"),
    "format 2.0": (good_bytes().replace(b" 1.0", b" 2.0"), "line 2: expected 'format ascii"),
    "middle endian": (good_bytes().replace(b"little", b"middle"), "line 2: expected 'format ascii"),
    "format twice": (with_line(b"format ascii 1.0"), "line 3: a second or late 'format'"),
    "keyword": (with_line(b"elemental x"), "line 3: unknown keyword 'elemental'"),
    "half": (good_bytes().replace(b"float opacity", b"half opacity"), "unknown type 'half' of property opacity"),
    "property first": (with_line(b"property float x"), "line 3: a property before any element"),
    "property short": (good_bytes().replace(b"float opacity", b"opacity"), "expected 'property TYPE NAME'"),
    "property twice": (good_bytes().replace(b"float opacity", b"float x"), "property x is declared twice"),
    "element twice": (with_line(b"element vertex 1"), "line 4: element vertex is declared twice"),
    "property name": (good_bytes().replace(b"opacity", b"opac\xe9ty"), "plain ASCII"),
    "escape codes": (with_line(b"\x1b[31mred 1"), r"unknown keyword '?[31mred'"),
    "257 properties": (header(1, [f"p{i}" for i in range(257)]), "more than 256 properties"),
    "no elements": (b"ply\nformat ascii 1.0\nend_header\n", "no element 'vertex' (elements: none)"),
    "other element": (header(1).replace(b"vertex", b"point"), "no element 'vertex' (elements: point)"),
    "no properties": (header(5, ()), "lacks x, y, z"),
    # Counts that lie.
    "one too many": (good_bytes().replace(b"vertex 3", b"vertex 4"), "holds 3 of the 4 splats that header line 3"),
    "cut data": (good_bytes()[:-1], "holds 2 of the 3 splats"),
    "no data": (header(1), "holds 0 of the 1 splats"),
    "under the cap": (header(19_000_000) + bytes(500), "holds 8 of the 19,000,000 splats"),
    "over the cap": (header(20_000_001) + bytes(500), "promises 20,000,001 splats, and the limit is 20,000,000"),
    "10^12": (header(10**12), "the limit is 20,000,000"),
    "2^63": (header(2**63), "must be a whole number below 10^18"),
    "5000 digits": (header("9" * 5000), "must be a whole number below 10^18"),
    "negative": (header(-1), "not '-1'"),
    "fraction": (header("5.0"), "not '5.0'"),
    "hexadecimal": (header("0x10"), "not '0x10'"),
    "earlier element": (
        with_line(b"element big 999999999999\nproperty double w"), "holds 0 of the 3 splats"
    ),
    "ascii 2e9": (header(2_000_000_000, form="ascii") + b"1 2 3\n", "the limit is 20,000,000"),
    "ascii 10M": (header(10_000_000, form="ascii") + b"1 2 3\n", "at most 0 of the 10,000,000 splats"),
    # ASCII rows.
    "ascii cut": (header(2, form="ascii") + b"1 " * 14 + b"\n" + b" " * 40, "ends after 1 of 2 rows"),
    "ascii short row": (header(2, form="ascii") + (b"1 " * 14 + b"\n" + b"1 " * 13), "row 1 has 13 values"),
    "ascii long row": (header(2, form="ascii") + (b"1 " * 15 + b"\n") * 2, "row 0 has 15 values"),
    "ascii word": (header(2, form="ascii") + b"1 " * 14 + b"\n" + b"1 " * 13 + b"one", "row 1: 'one' is not a number"),
    "ascii comment": (header(1, form="ascii") + b"1 " * 13 + b"1 # x", "row 0 has 16 values"),
    "ascii binary": (header(1, form="ascii") + bytes(range(128, 256)), "row 0 has "),
    "ascii endless line": (header(2, form="ascii") + b"1" * 200_000, "row 0 of element vertex is over 64 KiB"),
    "ascii blank lines": (header(2, form="ascii") + b"1 " * 14 + b"\n" * 2000, "blank lines before row 1"),
    "ascii rows before": (header(1, form="ascii").replace(b"element", b"element a 1000001\nproperty int a\nelement")
                          + b"1 " * 14, "1,000,001 rows of other elements come before"),
    "ascii short before": (header(1, form="ascii").replace(b"element", b"element a 99\nproperty int a\nelement")
                           + b"1 " * 14, "at most 0 of the 1 splats"),
    # Another kind of scene.
    "point cloud": (header(1, ("x", "y", "z")) + bytes(12), "a point cloud, not a 3DGS scene"),
    "photo cloud": (without("opacity", "scale_0", "scale_1", "scale_2", "rot_0", "rot_1", "rot_2", "rot_3"),
                    "lacks opacity, scale_0…2, rot_0…3"),
    "part of rot": (without("rot_1", "rot_3"), "lacks rot_1, rot_3"),
    "photo cloud of colours": (header(1, (*"xyz", *RGB)) + bytes(24), "a point cloud, not a 3DGS scene: lacks opacity"),
    "one scale": (without("scale_1", "scale_2"), "lacks scale_1, scale_2"),
    "2DGS without rotation": (without("scale_2", "rot_0"), "lacks rot_0;"),
    "rgb float": (header(1, [*REQUIRED[:3], *RGB, *REQUIRED[6:]]) + bytes(56), "red is float; a colour must be uchar"),
    "two colours": (header(1, [*REQUIRED[:3], *RGB[:2], *REQUIRED[6:]]) + bytes(56), "lacks f_dc_0…2;"),
    "half of f_dc": (header(1, [*REQUIRED[:4], *RGB, *REQUIRED[6:]]) + bytes(60), "lacks f_dc_1, f_dc_2;"),
    "scaffold": (header(1, ["x", "y", "z", "f_anchor_feat_0"]) + bytes(16), "Scaffold-GS"),
    "packed alone": (header(1, ["packed_position"], kind="uint") + bytes(4), "without element chunk"),
    "mode": (with_line(b"comment SplatRenderMode: banana"), "'SplatRenderMode: banana'"),
    "modes": (with_line(b"comment SplatRenderMode: mip 2dgs"), "'SplatRenderMode: mip 2dgs'"),
    "faces first": (with_line(b"element face 2\nproperty list uchar int i"), "element face with lists comes before"),
    "list beside": (good_bytes().replace(b"end_header", b"property list uchar int near\nend_header"), "near is a list"),
    "zero rotations": (header(4) + bytes(4 * 56), "none of its 4 rows can be drawn (4 with a zero rotation)"),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(MADE))
def test_made_files(tmp_path: Path, name: str) -> None:
    data, words = MADE[name]
    path = tmp_path / "bad.ply"
    path.write_bytes(data)
    with pytest.raises(SceneError) as caught:
        load(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert all(part in message for part in words.split(".*"))
    assert message.isprintable()
    assert len(message) < 500


def test_the_cap_is_the_callers(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.ply", raw_rows(5))
    assert load(path, cap=5).n_splats == 5
    with pytest.raises(SceneError, match="promises 5 splats, and the limit is 4"):
        load(path, cap=4)


def test_every_cut_of_a_good_file(tmp_path: Path) -> None:
    """A download may stop at any byte."""
    for data in (good_bytes(2), write_rows(tmp_path / "t.ply", raw_rows(2), text=True).read_bytes()):
        path = tmp_path / "cut.ply"
        for length in range(len(data)):
            path.write_bytes(data[:length])
            try:
                scene = load(path)
            except SceneError:
                continue
            # Only the last digits of a text file can go unnoticed.
            assert b"ascii" in data
            assert b" " not in data[length:]
            assert scene.n_splats == 2


def _seeds() -> List[bytes]:
    names = [name for name in REQUIRED if name != "scale_2" and "f_dc" not in name]
    colours = b"".join(b"property uchar " + name.encode() + b"\n" for name in RGB)
    flat = header(2, names).replace(b"end_header", colours + b"end_header")
    row = [raw_rows(3)[name] for name in REQUIRED]
    text = header(3, form="ascii") + b"".join(" ".join(map(str, values)).encode() + b"\n" for values in zip(*row))
    degree_1 = header(2, [*REQUIRED, *(f"f_rest_{i}" for i in range(9))]) + np.full(46, 0.5, "<f4").tobytes()
    comment = b"comment SplatRenderMode: mip\nelement vertex"
    return [good_bytes(4).replace(b"element vertex", comment), text, flat + b"\x3d" * 2 * 43, degree_1]


@settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=mutations(_seeds()))
def test_spoiled_bytes_never_escape_as_another_error(tmp_path: Path, data: bytes) -> None:
    loaded_or_refused(tmp_path / "spoiled.ply", data)


def test_what_is_spoiled_was_good(tmp_path: Path) -> None:
    for data in _seeds():
        (tmp_path / "a.ply").write_bytes(data)
        assert load(tmp_path / "a.ply").n_splats >= 2


def test_what_is_not_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "empty.ply").touch()
    (tmp_path / "loop").symlink_to("loop")
    cases = [
        (tmp_path, InputError, "is a folder"),
        (tmp_path / "fifo", InputError, "is a FIFO, not a regular file"),  # must not wait for a writer
        (Path("/dev/zero"), InputError, "character device"),
        (tmp_path / "missing.ply", InputError, "no such file"),
        (tmp_path / "empty.ply" / "x", InputError, "cannot be opened"),
        (tmp_path / "loop", InputError, "cannot be opened"),
        (tmp_path / ("n" * 300), InputError, "cannot be opened"),
        (Path("nul\0byte"), InputError, "cannot be opened"),
        (tmp_path / "empty.ply", SceneError, "is empty"),
    ]
    for path, kind, words in cases:
        with pytest.raises(kind) as caught:
            load(path)
        assert words in str(caught.value)
    codes = {InputError: 66, SceneError: 65, AccessError: 77}
    assert all(kind.exit_code == code for kind, code in codes.items())


def test_a_link_to_a_scene_is_a_scene(tmp_path: Path) -> None:
    (tmp_path / "link.ply").symlink_to(write_rows(tmp_path / "a.ply", raw_rows(2)))
    assert load(tmp_path / "link.ply").n_splats == 2


def test_no_permission(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.ply", raw_rows(2))
    path.chmod(0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)  # root may read everything
    try:
        with pytest.raises(AccessError, match="permission denied"):
            load(path)
    finally:
        os.seteuid(user)


def test_a_file_that_changes_while_it_is_read(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.ply", raw_rows(70_000))
    with pytest.raises(SceneError, match="changed while it was read"):
        load(path, progress=lambda done, total: os.utime(path, ns=(1, done)))

    def cut(done: int, total: int) -> None:
        os.truncate(path, 2_000_000)

    with pytest.raises(SceneError, match=r"ends after 35,\d\d\d of 70,000 splats"):
        load(path, progress=cut)


def sparse(path: Path, head: bytes, size: int) -> Path:
    with open(path, "wb") as file:
        file.write(head)
        file.truncate(size)
    return path


def test_the_worst_files_are_refused_soon_and_small(tmp_path: Path) -> None:
    n = 19_000_000
    before = with_line(b"element big %d\nproperty double w" % (1 << 37))
    before = before.split(b"end_header")[0] + b"end_header\n"
    files = {
        "sparse": (sparse(tmp_path / "sparse.ply", header(n), len(header(n)) + 56 * n), "sparse file"),
        "sparse tail": (sparse(tmp_path / "tail.ply", good_bytes(), 1 << 40), "bytes follow the 3 splats"),
        "sparse before": (sparse(tmp_path / "before.ply", before, len(before) + (1 << 40)), "sparse file"),
        "header only": (tmp_path / "header.ply", "holds 0 of the 19,000,000 splats"),
        "comment": (tmp_path / "comment.ply", "first 64 KiB"),
    }
    with open(files["sparse before"][0], "ab") as file:
        file.write(good_bytes().split(b"end_header\n")[1])
    files["header only"][0].write_bytes(header(n))
    files["comment"][0].write_bytes(b"ply\ncomment " + b"x" * 20_000_000)
    for path, words in files.values():
        message, peak, grown, seconds = limited(path)
        assert words in message
        assert peak < 300
        assert grown < 40
        assert seconds < 2  # of processor time, not of the clock: it would be minutes if the count were believed


def test_a_big_file_of_bad_rows_costs_a_block_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "nan.ply"
    block = np.full((100_000, 14), np.nan, "<f4").tobytes()
    with open(path, "wb") as file:
        file.write(header(2_000_000))
        for _ in range(20):
            file.write(block)
    message, peak, grown, _ = limited(path)
    assert "none of its 2,000,000 rows can be drawn" in message
    assert peak < 300
    assert grown < 60


def test_memory_of_a_good_file(tmp_path: Path) -> None:
    """The peak is under 1.5 times the decoded scene and 20 MiB of blocks."""
    n = 300_000
    names = [*REQUIRED[:3], "nx", "ny", "nz", *REQUIRED[3:6], *(f"f_rest_{i}" for i in range(45)), *REQUIRED[6:]]
    block = np.random.default_rng(0).random((20_000, len(names)), np.float32).tobytes()
    path = tmp_path / "a.ply"
    with open(path, "wb") as file:
        file.write(header(n, names))
        for _ in range(n // 20_000):
            file.write(block)
    decoded = n * 4 * (3 + 3 + 4 + 1 + 48) / 2**20
    message, _, grown, _ = limited(path)
    assert message == f"{n}"
    assert decoded < grown + 10
    assert grown < 1.5 * decoded + 20
    message, _, grown, _ = limited(path, max_gaussians=1000)
    assert message == "1000"
    assert grown < 60


@pytest.mark.parametrize("text", [False, True])
def test_memory_of_wide_rows(tmp_path: Path, text: bool) -> None:
    """A block of as many rows as of a scene would be 67 MB in binary, and ten times that in text."""
    names = [*REQUIRED, *(f"p{i}" for i in range(242))]
    path = tmp_path / "a.ply"
    with open(path, "wb") as file:
        if text:
            file.write(header(3000, names, "ascii"))
            row = " ".join(["1"] * 14 + ["1." + "0" * 60] * 242) + "\n"
            file.write(row.encode() * 3000)
        else:
            file.write(header(40_000, names, kind="double"))
            file.write(np.ones(256 * 40_000).tobytes())
    message, _, grown, seconds = limited(path)
    assert message == ("3000" if text else "40000")
    assert grown < 40 + 20 * (not text)
    assert seconds < 4


def test_axes_that_nobody_knows(tmp_path: Path) -> None:
    (tmp_path / "a.ply").write_bytes(good_bytes())
    assert load(tmp_path / "a.ply", frame="rub").means[0, 1] == -load(tmp_path / "a.ply").means[0, 1]
    with pytest.raises(ValueError, match="frame must be one of rdf, rub, not 'luf'"):
        load(tmp_path / "a.ply", frame="luf")


def test_a_tail_that_grows_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.ply"
    path.write_bytes(good_bytes() + b"x" * 10)

    def grow(done: int, total: int) -> None:
        with open(path, "ab") as file:
            file.truncate(1 << 40)

    with pytest.raises(SceneError, match="changed while it was read"):
        load(path, progress=grow)


def test_every_message_is_an_edgegs_error() -> None:
    assert all(issubclass(kind, EdgegsError) for kind in (SceneError, InputError, AccessError))
