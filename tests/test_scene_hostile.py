"""Wrong files: every one ends in one clear message of the right class, soon, and in little memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Dict, Tuple

import numpy as np
import pytest
from scene_files import REQUIRED, good_bytes, header, raw_rows, write_rows

from edgegs.errors import AccessError, EdgegsError, InputError, SceneError
from edgegs.scene import load

ROOT = Path(__file__).resolve().parent.parent

#: File of ../shared/data/hostile/gaussian-ply -> SH degree and count where it is good, else words of the message.
SHARED: Dict[str, object] = {
    "degree-1-sh.ply": (1, 1),
    "degree-2-sh.ply": (2, 1),
    "degree-3-sh.ply": (3, 1),
    "degree-4-sh.ply": "SH degree 4",
    "duplicate-sh-index.ply": "f_rest_00 is not a valid",
    "empty-vertex.ply": "zero splats",
    "invalid-sh-name.ply": "f_rest_1x is not a valid",
    "list-property.ply": "opacity is a list",
    "mesh-not-gaussian.ply": "a mesh, not a 3DGS scene: lacks f_dc_0…2, opacity, scale_0…2, rot_0…3",
    "missing-opacity.ply": "lacks opacity",
    "nan-opacity-binary-le.ply": "none of its 1 rows",
    "non-contiguous-sh.ply": "f_rest_2 is missing though f_rest_3 is there",
    "one-gaussian-ascii.ply": (0, 1),
    "one-gaussian-ascii.ply.golden.usda": "not a PLY file",
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
    # Not a PLY at all.
    "text": (b"hello", "not a PLY file"),
    "upper case": (b"PLY\n" + good_bytes()[4:], "first line must be 'ply'"),
    "gzip": (b"\x1f\x8b\x08" + bytes(50), "gzip data"),
    "zip": (b"PK\x03\x04" + bytes(50), "SOG"),
    "html": (b"<!DOCTYPE html>", "web page"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
    "zeros": (bytes(1 << 20), "not a PLY file"),
    "splat": (np.ones(64, "<f4").tobytes(), "not a PLY file"),
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
    # Another kind of scene.
    "point cloud": (header(1, ("x", "y", "z")) + bytes(12), "a point cloud, not a 3DGS scene"),
    "photo cloud": (without("opacity", "scale_0", "scale_1", "scale_2", "rot_0", "rot_1", "rot_2", "rot_3"),
                    "lacks opacity, scale_0…2, rot_0…3"),
    "part of rot": (without("rot_1", "rot_3"), "lacks rot_1, rot_3"),
    "2DGS": (without("scale_2"), "a 2DGS scene"),
    "rgb": (header(1, [*REQUIRED[:3], "red", "green", "blue", *REQUIRED[6:]]) + bytes(56), "red/green/blue instead"),
    "scaffold": (header(1, ["x", "y", "z", "f_anchor_feat_0"]) + bytes(16), "Scaffold-GS"),
    "compressed": (header(1, ["packed_position"], kind="uint") + bytes(4), "compressed PLY"),
    "mip": (with_line(b"comment SplatRenderMode: mip"), "'SplatRenderMode: mip'"),
    "2dgs mode": (with_line(b"comment SplatRenderMode: 2dgs"), "'SplatRenderMode: 2dgs'"),
    "antialiased": (with_line(b"comment antialiased 1"), "'antialiased 1'"),
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


def test_real_compressed_scene(shared_data: Path) -> None:
    with pytest.raises(SceneError, match="compressed PLY"):
        load(shared_data / "compressed_ply" / "playbot_lod3_31k_sh2.compressed.ply")


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


@pytest.mark.parametrize("seed", range(4))
def test_spoiled_bytes_never_escape_as_another_error(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    binary, text = good_bytes(4), write_rows(tmp_path / "t.ply", raw_rows(4), text=True).read_bytes()
    path = tmp_path / "spoiled.ply"
    for _ in range(150):
        data = bytearray(binary if rng.random() < 0.6 else text)
        for _ in range(int(rng.integers(1, 6))):
            data[int(rng.integers(len(data)))] = int(rng.integers(256))
        path.write_bytes(data)
        try:
            scene = load(path)
        except SceneError as error:
            assert str(error).startswith(str(path))  # noqa: PT017
        else:
            assert np.isfinite(scene.means).all()
            assert np.isfinite(scene.sh).all()
            assert (scene.scales > 0).all()


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


# Loads argv[1] under limits: 8 s of processor time kill it, and its peak memory and message come back.
_LIMITED = """
import resource, sys, time
resource.setrlimit(resource.RLIMIT_CPU, (8, 8))
from edgegs.errors import EdgegsError
from edgegs.scene import load

def peak():  # of this program alone; ru_maxrss would begin with its parent's
    return next(int(line.split()[1]) // 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))

before, began = peak(), time.process_time()
try:
    print(load(sys.argv[1]).n_splats)
except EdgegsError as error:
    print(error)
seconds = time.process_time() - began
print(peak(), peak() - before)
print(seconds)
"""


def limited(path: Path) -> Tuple[str, int, int, float]:
    """(message, peak MiB, MiB above the bare interpreter, processor seconds) of a load in its own process."""
    command = [sys.executable, "-c", _LIMITED, str(path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    message, memory, seconds = done.stdout.splitlines()
    peak, grown = memory.split()
    return message, int(peak), int(grown), float(seconds)


def sparse(path: Path, head: bytes, size: int) -> Path:
    with open(path, "wb") as file:
        file.write(head)
        file.truncate(size)
    return path


def test_the_worst_files_are_refused_soon_and_small(tmp_path: Path) -> None:
    n = 19_000_000
    files = {
        "sparse": (sparse(tmp_path / "sparse.ply", header(n), len(header(n)) + 56 * n), "sparse file"),
        "sparse tail": (sparse(tmp_path / "tail.ply", good_bytes(), 1 << 40), "bytes follow the 3 splats"),
        "header only": (tmp_path / "header.ply", "holds 0 of the 19,000,000 splats"),
        "comment": (tmp_path / "comment.ply", "first 64 KiB"),
    }
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
    """The peak stays under 2.5 times the decoded scene."""
    rows = raw_rows(200_000, 3)
    path = write_rows(tmp_path / "a.ply", rows)
    decoded = 200_000 * 4 * (3 + 3 + 4 + 1 + 48) / 2**20
    _, _, grown, _ = limited(path)
    assert decoded < grown + 10
    assert grown < 2.5 * decoded


def test_every_message_is_an_edgegs_error() -> None:
    assert all(issubclass(kind, EdgegsError) for kind in (SceneError, InputError, AccessError))
