"""Right files: real ones, every encoding and order, against plyfile and a row-by-row specification."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from plyfile import PlyData
from scene_files import REQUIRED, RGB, expected, good_bytes, header, raw_rows, write_rows

from edgegs.errors import SceneError
from edgegs.scene import Scene, load, write_ply

ARRAYS = ("means", "scales", "quats", "opacities", "sh")

REAL = {
    "playbot_lod1_250k_sh2.ply": (250_000, 2),
    "playbot_lod3_31k_sh2.ply": (31_000, 2),
    "plant_114k_sh0.ply": (113_648, 0),
    "tarot_115k_sh0.ply": (114_865, 0),
    "leica-sofort-top8192.ply": (8192, 3),
    "yashica-t4-top8192.ply": (8192, 3),
}


def same(scene: Scene, rows: np.ndarray, degree: int) -> None:
    for name, values in expected(rows, degree).items():
        got = getattr(scene, name)
        assert got.dtype == np.float32
        # float32 carries 6e-8, exp and the quaternion's norm a few times that.
        np.testing.assert_allclose(got, values, rtol=1e-6, atol=1e-7, err_msg=name)


@pytest.mark.parametrize("name", sorted(REAL))
def test_real_scenes(shared_data: Path, name: str) -> None:
    path = shared_data / "ply" / name
    scene = load(path)
    count, degree = REAL[name]
    assert (scene.n_splats, scene.sh_degree, scene.n_rows) == (count, degree, count)
    assert scene.format == "ply binary_little_endian"
    assert not scene.dropped
    assert not scene.warnings
    assert scene.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    picked = np.linspace(0, count - 1, 97).astype(int)
    rows = PlyData.read(str(path))["vertex"].data[picked]
    for array, values in expected(rows, degree).items():
        # Clamping ends at logit 16, beyond which float32 has no numbers below 1.
        np.testing.assert_allclose(getattr(scene, array)[picked], values, rtol=1e-6, atol=2e-7, err_msg=array)
    for array in ARRAYS:
        assert np.isfinite(getattr(scene, array)).all()
    assert np.abs(np.linalg.norm(scene.quats, axis=1) - 1).max() < 1e-6
    assert scene.opacities.min() > 0
    assert scene.opacities.max() < 1


@pytest.mark.parametrize(("name", "count", "degree"), [("degree1-offgrid", 3, 1), ("degree3-exact", 4, 3)])
def test_equivalence_files(shared_data: Path, name: str, count: int, degree: int) -> None:
    path = shared_data / "equivalence" / f"equiv-{name}-binary-le.ply"
    scene = load(path)
    assert (scene.n_splats, scene.sh_degree) == (count, degree)
    same(scene, PlyData.read(str(path))["vertex"].data, degree)


@pytest.mark.parametrize("degree", range(4))
@pytest.mark.parametrize(("text", "order"), [(False, "<"), (False, ">"), (True, "=")])
def test_every_encoding_and_degree(tmp_path: Path, degree: int, text: bool, order: str) -> None:
    rows = raw_rows(33, degree)
    scene = load(write_rows(tmp_path / "a.ply", rows, text, order))
    assert scene.sh_degree == degree
    same(scene, rows, degree)


@pytest.mark.parametrize("n", [1, 2, 32_767, 32_768, 32_769, 65_537])
def test_sizes_round_the_block(tmp_path: Path, n: int) -> None:
    rows = raw_rows(n)
    scene = load(write_rows(tmp_path / "a.ply", rows))
    np.testing.assert_array_equal(scene.means, np.stack([rows[a] for a in "xyz"], axis=1))
    np.testing.assert_array_equal(scene.sh[:, 0, 2], rows["f_dc_2"])


@pytest.mark.parametrize("n", [4095, 4096, 4097])
def test_ascii_sizes_round_the_block(tmp_path: Path, n: int) -> None:
    rows = raw_rows(n)
    scene = load(write_rows(tmp_path / "a.ply", rows, text=True))
    np.testing.assert_array_equal(scene.means, np.stack([rows[a] for a in "xyz"], axis=1))


def test_properties_go_by_name(tmp_path: Path) -> None:
    names = [*REQUIRED, *(f"f_rest_{i}" for i in range(9))]
    shuffled = [names[i] for i in np.random.default_rng(3).permutation(len(names))]
    alphabetical = sorted(names)  # as Brush writes: f_rest_0, f_rest_1, …, opacity, rot, scale, x
    extra = ["nx", "transform", *names, "confidence"]
    plain = load(write_rows(tmp_path / "a.ply", raw_rows(20, 1)))
    for order in (shuffled, alphabetical):
        scene = load(write_rows(tmp_path / "b.ply", raw_rows(20, 1, order=order)))
        for array in ARRAYS:
            np.testing.assert_array_equal(getattr(scene, array), getattr(plain, array))
    rows = raw_rows(20, 1, order=extra)
    same(load(write_rows(tmp_path / "c.ply", rows)), rows, 1)


def test_double_and_mixed_types(tmp_path: Path) -> None:
    rows = raw_rows(40, 1, kind="f8")
    same(load(write_rows(tmp_path / "a.ply", rows)), rows, 1)
    mixed = np.zeros(2, [(name, "i2" if name == "x" else "f8" if name == "rot_0" else "f4") for name in REQUIRED])
    mixed["x"], mixed["rot_0"] = (-7, 300), 2.0
    scene = load(write_rows(tmp_path / "b.ply", mixed, order=">"))
    assert scene.means[:, 0].tolist() == [-7, 300]
    assert scene.quats.tolist() == [[1, 0, 0, 0]] * 2


HEADERS = {
    "crlf": lambda data: data.split(b"end_header\n")[0].replace(b"\n", b"\r\n") + b"end_header\r\n",
    "lone cr": lambda data: data.split(b"end_header\n")[0].replace(b"\n", b"\r") + b"end_header\r",
    "trailing blanks": lambda data: data.split(b"end_header\n")[0].replace(b"\n", b"  \t\n") + b"end_header \n",
    "padded count": lambda data: (
        data.split(b"end_header\n")[0].replace(b"vertex 3", b"vertex  0003 ") + b"end_header\n"
    ),
    "comments": lambda data: (
        data.split(b"end_header\n")[0].replace(
            b"element", b"comment caf\xe9 \xff\x00\x01 \nobj_info x\ncomment\n\nelement"
        )
        + b"comment element vertex 9\nend_header\n"
    ),
    "byte-order mark": lambda data: b"\xef\xbb\xbf" + data.split(b"end_header\n")[0] + b"end_header\n",
}


@pytest.mark.parametrize("how", sorted(HEADERS))
def test_headers_people_write(tmp_path: Path, how: str) -> None:
    data = good_bytes()
    path = tmp_path / "a.ply"
    path.write_bytes(HEADERS[how](data) + data.split(b"end_header\n")[1])
    same(load(path), raw_rows(3), 0)


@pytest.mark.parametrize("first_byte", [b"\n", b"\r", b" ", b"\x00"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_data_starts_right_after_the_header(tmp_path: Path, first_byte: bytes, end: bytes) -> None:
    """Values whose bytes look like line ends must not be taken for one."""
    head = header(1).replace(b"\n", end)
    body = first_byte + np.ones(14, "<f4").tobytes()[1:]
    path = tmp_path / "a.ply"
    path.write_bytes(head + body)
    assert load(path).means[0, 0] == np.frombuffer(body, "<f4")[0]


def test_ascii_as_editors_leave_it(tmp_path: Path) -> None:
    rows = raw_rows(3)
    text = write_rows(tmp_path / "a.ply", rows, text=True).read_text()
    head, body = text.split("end_header\n")
    lines = body.strip().split("\n")
    for newline in ("\n", "\r\n", "\r"):
        path = tmp_path / "b.ply"
        ragged = (newline + newline).join("  " + line.replace(" ", " \t ") + " " for line in lines)
        path.write_bytes((head + "end_header\n").replace("\n", newline).encode() + ragged.encode())
        same(load(path), rows, 0)


@pytest.mark.parametrize("text", [False, True])
def test_other_elements(tmp_path: Path, text: bool) -> None:
    """Before the splats: skipped by size. After them: ignored, whatever they are."""
    rows = raw_rows(5)
    data = write_rows(tmp_path / "a.ply", rows, text).read_bytes()
    head, body = data.split(b"end_header\n")
    before = b"7 8\n9 10\n" if text else np.zeros(2, "<i4, <f8").tobytes()
    head = head.replace(b"element vertex", b"element time 2\nproperty int t\nproperty double w\nelement vertex")
    head += b"element face 1\nproperty list uchar int vertex_indices\nelement empty 0\n"
    tail = b"3 0 1 2\n" if text else b"\x03" + bytes(12)
    path = tmp_path / "b.ply"
    path.write_bytes(head + b"end_header\n" + before + body + tail)
    scene = load(path)
    assert scene.warnings == []
    same(scene, rows, 0)


def test_empty_list_element_may_come_first(tmp_path: Path) -> None:
    data = good_bytes()
    path = tmp_path / "a.ply"
    path.write_bytes(data.replace(b"element vertex", b"element face 0\nproperty list uchar int i\nelement vertex"))
    assert load(path).n_splats == 3


@pytest.mark.parametrize("text", [False, True])
def test_bytes_after_the_last_row_are_a_warning(tmp_path: Path, text: bool) -> None:
    path = write_rows(tmp_path / "a.ply", raw_rows(3), text)
    data = path.read_bytes() + (b"1 2 3\n" if text else b"123456")
    path.write_bytes(data)
    scene = load(path)
    assert scene.n_splats == 3
    assert [("further lines" if text else "6 bytes") in text_ for text_ in scene.warnings] == [True]
    assert scene.sha256 == hashlib.sha256(data).hexdigest()


AXES = [([], (0, -1, 0)), (["Vertical axis: y"], (0, -1, 0)), (["Vertical Axis: z"], (0, 0, 1))]


@pytest.mark.parametrize(("comments", "up"), AXES)
def test_vertical_axis(tmp_path: Path, comments: list, up: tuple) -> None:
    assert load(write_rows(tmp_path / "a.ply", raw_rows(3), comments=comments)).up == up


MODES = [
    ([], False, 0),
    (["SplatRenderMode: default", "antialiased 0"], False, 0),
    (["Exported from Brush", "  SPLATRENDERMODE:  MIP  "], True, 0),
    (["antialiased 1"], True, 0),
    (["antialiased: true"], True, 0),
    (["antialiased 1", "SplatRenderMode: default"], False, 0),  # the last word counts, as in splat-transform
    (["SplatRenderMode: default", "antialiased 1"], True, 0),
    (["SplatRenderMode:", "antialiased by hand", "SplatRenderModes"], False, 0),
    (["SplatRenderMode: 2dgs"], False, 1),
]


@pytest.mark.parametrize(("comments", "antialiased", "n_warnings"), MODES)
@pytest.mark.parametrize("text", [False, True])
def test_render_modes(tmp_path: Path, comments: list, antialiased: bool, n_warnings: int, text: bool) -> None:
    scene = load(write_rows(tmp_path / "a.ply", raw_rows(3), text, comments=comments))
    assert (scene.antialiased, len(scene.warnings)) == (antialiased, n_warnings)
    assert all("drawn as flat ellipsoids" in text_ for text_ in scene.warnings)
    same(scene, raw_rows(3), 0)


@pytest.mark.parametrize("comments", [[], ["SplatRenderMode: 2dgs"], ["SplatRenderMode: mip"]])
@pytest.mark.parametrize(("text", "order"), [(False, "<"), (False, ">"), (True, "=")])
def test_2dgs_is_flat(tmp_path: Path, comments: list, text: bool, order: str) -> None:
    """No scale_2: the third axis of a 2D splat is its normal."""
    rows = raw_rows(40, 1)
    names = [name for name in rows.dtype.names if name != "scale_2"]
    flat = np.zeros(40, [(name, "f4") for name in names])
    for name in names:
        flat[name] = rows[name]
    scene = load(write_rows(tmp_path / "a.ply", flat, text, order, comments))
    assert scene.warnings == ["no scale_2: a 2DGS scene, drawn as flat ellipsoids"]
    assert (scene.dropped, scene.antialiased) == ({}, False)
    np.testing.assert_allclose(scene.scales[:, 2], 1e-9, rtol=1e-5)
    rows["scale_2"] = np.log(1e-9)
    same(scene, rows, 1)


@pytest.mark.parametrize("degree", [0, 1])
@pytest.mark.parametrize(("text", "order"), [(False, "<"), (False, ">"), (True, "=")])
def test_uchar_colours(tmp_path: Path, degree: int, text: bool, order: str) -> None:
    plain = raw_rows(256, degree)
    kinds = [(name, "u1" if name in RGB else "f4") for name in (*RGB, *plain.dtype.names) if "f_dc" not in name]
    rows = np.zeros(256, kinds)
    for name in rows.dtype.names[3:]:
        rows[name] = plain[name]
    for c, name in enumerate(RGB):
        rows[name] = np.roll(np.arange(256), 7 * c)
        plain[f"f_dc_{c}"] = [(int(byte) / 255 - 0.5) / 0.28209479177387814 for byte in rows[name]]
    scene = load(write_rows(tmp_path / "a.ply", rows, text, order))
    assert (scene.warnings, scene.sh_degree) == ([], degree)
    same(scene, plain, degree)
    shown = 0.5 + 0.28209479177387814 * scene.sh[:, 0].astype(np.float64)
    np.testing.assert_array_equal(np.rint(shown * 255), np.stack([rows[name] for name in RGB], axis=1))


def test_f_dc_comes_before_colours(tmp_path: Path) -> None:
    rows = raw_rows(5, order=[*REQUIRED, *RGB])
    same(load(write_rows(tmp_path / "a.ply", rows)), rows, 0)


@pytest.mark.parametrize("text", [False, True])
def test_degree_4_is_drawn_as_degree_3(tmp_path: Path, text: bool) -> None:
    rows = raw_rows(30, 4)
    scene = load(write_rows(tmp_path / "a.ply", rows, text))
    assert (scene.sh_degree, scene.warnings) == (
        3,
        ["SH degree 4: the fourth band is left out, and degree 3 is drawn"],
    )
    np.testing.assert_array_equal(scene.sh[:, 15, 1], rows["f_rest_38"])  # channel 1 of 24, coefficient 14
    np.testing.assert_array_equal(scene.sh, expected(rows, 4)["sh"][:, :16].astype(np.float32))


def test_antialiasing_survives_the_round_trip(tmp_path: Path) -> None:
    first = load(write_rows(tmp_path / "a.ply", raw_rows(5), comments=["antialiased 1"]))
    write_ply(str(tmp_path / "b.ply"), first)
    assert b"\ncomment SplatRenderMode: mip\n" in (tmp_path / "b.ply").read_bytes()
    assert load(tmp_path / "b.ply").antialiased
    write_ply(str(tmp_path / "c.ply"), load(write_rows(tmp_path / "a.ply", raw_rows(5))))
    assert not load(tmp_path / "c.ply").antialiased


def test_infinities_that_are_legal(tmp_path: Path) -> None:
    """Exporters write alpha 255 as a logit of +inf, and a flat splat as ln sigma = -inf."""
    for text in (False, True):
        rows = raw_rows(4)
        rows["opacity"] = [np.inf, -np.inf, 1e30, 0]
        rows["scale_2"] = [-np.inf, -1e30, -1, -1]
        scene = load(write_rows(tmp_path / "a.ply", rows, text))
        assert scene.dropped == {}
        assert scene.n_splats == 4
        assert 0.9999 < scene.opacities[0] == scene.opacities[2] < 1
        assert 0 < scene.opacities[1] < 1e-6
        assert scene.opacities[3] == 0.5
        np.testing.assert_allclose(scene.scales[:2, 2], 1e-9, rtol=1e-5)


FAULTS = [
    ("x", np.nan, "with a non-finite position"),
    ("z", -np.inf, "with a non-finite position"),
    ("y", 1e39, "with a position beyond float32"),
    ("rot_2", np.inf, "with a non-finite rotation"),
    ("scale_1", np.nan, "with a non-finite scale"),
    ("scale_1", np.inf, "with a non-finite scale"),
    ("scale_1", 45.0, "with a scale too large for float32"),
    ("opacity", np.nan, "with a non-finite opacity"),
    ("f_dc_1", np.inf, "with a non-finite colour"),
    ("f_rest_8", np.nan, "with a non-finite colour"),
    ("f_rest_0", -1e39, "with a colour beyond float32"),
]


@pytest.mark.parametrize(("name", "value", "cause"), FAULTS)
@pytest.mark.parametrize("text", [False, True])
def test_rows_left_out_are_counted_by_cause(tmp_path: Path, name: str, value: float, cause: str, text: bool) -> None:
    rows = raw_rows(50, 1, kind="f8")
    rows[name][[7, 30]] = value
    scene = load(write_rows(tmp_path / "a.ply", rows, text))
    assert scene.dropped == {cause: 2}
    assert (scene.n_splats, scene.n_rows) == (48, 50)
    assert scene.warnings == [f"2 of 50 rows left out: 2 {cause}"]
    same(scene, np.delete(rows, [7, 30]), 1)


def test_zero_rotation_and_first_cause(tmp_path: Path) -> None:
    rows = raw_rows(10)
    for i in range(4):
        rows[f"rot_{i}"][3] = 0
        rows[f"rot_{i}"][5] = 1e-20  # tiny, but a direction, if float64 looks at it: refused as zero all the same
        rows[f"rot_{i}"][6] = 1e-9
    rows["x"][3] = np.nan  # a row with two faults counts once
    scene = load(write_rows(tmp_path / "a.ply", rows))
    assert scene.dropped == {"with a non-finite position": 1, "with a zero rotation": 1}
    assert scene.n_splats == 8
    assert np.abs(np.linalg.norm(scene.quats, axis=1) - 1).max() < 1e-6


def test_all_rows_bad(tmp_path: Path) -> None:
    rows = raw_rows(6)
    rows["x"] = np.nan
    rows["x"][0], rows["opacity"][0] = 0, np.nan
    with pytest.raises(SceneError, match=r"none of its 6 rows .*5 with a non-finite position, 1 with a non-finite op"):
        load(write_rows(tmp_path / "a.ply", rows))


def test_suspicious_scales_are_a_warning(tmp_path: Path) -> None:
    rows = raw_rows(200)
    for i in range(3):
        rows[f"scale_{i}"] = np.abs(rows[f"scale_{i}"]) + 1
    assert any("without the logarithm" in text for text in load(write_rows(tmp_path / "a.ply", rows)).warnings)
    rows["scale_0"][0] = -1
    assert any("millimetres" in text for text in load(write_rows(tmp_path / "a.ply", rows)).warnings)


def test_progress(tmp_path: Path) -> None:
    seen = []
    path = write_rows(tmp_path / "a.ply", raw_rows(70_000))
    load(path, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(32_768, 70_000), (65_536, 70_000), (70_000, 70_000)]
