"""The packed file: the same bytes everywhere, and back as it went in. Wrong ones: test_pack_egs_hostile.py."""

from __future__ import annotations

import hashlib
import os
import re
import resource
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Dict, List, Tuple

import numpy as np
import pytest
import scenes
from packed_scenes import ABOUT, packed, read, refusal, written

from edgegs.errors import OutputError, SceneError
from edgegs.files import replacing
from edgegs.pack import PackedScene, quantise
from edgegs.pack.about import MAX_ABOUT_BYTES
from edgegs.pack.egs import HEADER, PAGE, SECTION, SECTIONS, layout, write_egs
from edgegs.pack.order import arrange, chunk_bounds, prefix
from edgegs.scene import load
from edgegs.scene.egs import read_chunks, read_info, verify

ROOT = Path(__file__).resolve().parent.parent


def assert_same(a: PackedScene, b: PackedScene, but: Tuple[str, ...] = ()) -> None:
    for item in fields(PackedScene):
        if item.name not in but:
            left, right = getattr(a, item.name), getattr(b, item.name)
            assert np.array_equal(left, right), item.name
            assert not isinstance(left, np.ndarray) or left.dtype == right.dtype, item.name


# What goes in comes out.


@pytest.mark.parametrize("degree", [0, 1, 2, 3])
@pytest.mark.parametrize("n", [1, 2, 255, 256, 257, 1024, 1500])
def test_round_trip(tmp_path: Path, n: int, degree: int) -> None:
    scene = packed(n, degree, scored=n % 2 == 0)
    path = tmp_path / "scene.egs"
    write_egs(str(path), scene, ABOUT)
    back = load(path)
    assert isinstance(back, PackedScene)
    assert_same(back, scene, ("path", "format", "file_sha256"))
    assert (back.path, back.format) == (str(path), "egs 1")
    with open(path, "rb", buffering=0) as file:
        info = read_info(file, str(path))
        assert np.array_equal(read_chunks(file, str(path)), chunk_bounds(scene))
        header = verify(file, str(path))
    assert (info.about.about, info.about.format, info.levels) == (ABOUT, scene.format, scene.levels)
    assert info.header.source_sha256 == "5a" * 32
    assert back.file_sha256 == header.sha256 == hashlib.sha256(path.read_bytes()[:PAGE]).hexdigest()
    assert os.listdir(tmp_path) == ["scene.egs"]


def test_a_real_packing_draws_the_same(tmp_path: Path) -> None:
    scene = scenes.cloud(5000)
    order, levels = arrange(scene.means, np.arange(5000.0))
    before = quantise(scene, order, levels)
    write_egs(str(tmp_path / "a.egs"), before)
    after = load(tmp_path / "a.egs")
    for name in ("means", "scales", "quats", "opacities", "sh"):
        assert np.array_equal(getattr(after.unpacked(), name), getattr(before.unpacked(), name))
    assert (after.bounds()[1], after.nbytes, after.up) == (before.bounds()[1], before.nbytes, before.up)
    with open(tmp_path / "a.egs", "rb", buffering=0) as file:
        assert read_info(file, "").header.source_sha256 == ""  # made, not read


def test_the_device_takes_the_sections_as_they_are(tmp_path: Path) -> None:
    scene = packed(300)
    content = written(tmp_path, scene)
    places = {name: content[offset : offset + size] for name, offset, size in layout(300, 3, 3, 0)}
    assert places["means"] == scene.means.tobytes()
    assert places["halves"] == scene.halves.view(np.uint16).tobytes()
    assert places["sh"] == scene.sh_bytes.view("<u4").tobytes()


# The same bytes.


def test_golden_bytes(tmp_path: Path) -> None:
    """Every interpreter, NumPy and processor has to write this very file."""
    content = written(tmp_path)
    assert hashlib.sha256(content).hexdigest() == "5c421ef1563a8a4b2cfafc350f8c4370670379b8b3417049020e8b6aaa22f292"
    assert written(tmp_path) == content
    moved = replace(packed(), path="/elsewhere/same.ply", dropped={"a": 1, "with a zero rotation": 350})
    assert written(tmp_path, moved, dict(reversed(list(ABOUT.items())))) == content
    for word in (b"somewhere", b"machine", os.fsencode(tmp_path.name)):
        assert word not in content


def test_the_page_says_what_the_code_says() -> None:
    text = (ROOT / "docs" / "egs.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| (\d+) \| `(\w+)` \|", text, re.MULTILINE)
    expected = [
        (str(offset), str(kind.itemsize), name)
        for dtype in (HEADER, SECTION)
        for name, (kind, offset) in ((name, dtype.fields[name][:2]) for name in dtype.names)
    ]
    assert rows == expected
    assert re.findall(r"^\| `(\w+)` \| (?:4,096|next page) \|", text, re.MULTILINE) == list(SECTIONS)


# Writing.


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = written(tmp_path)
    path = str(tmp_path / "scene.egs")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))  # a disk that is full in the middle of a section
    try:
        with pytest.raises(OutputError, match=r"scene\.egs: cannot be written: File too large"):
            write_egs(path, packed(2000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    def fail(error: type) -> None:
        with replacing(path) as file:
            file.write(b"half")
            raise error

    for error in (KeyboardInterrupt, ZeroDivisionError, SceneError):
        with pytest.raises(error):
            fail(error)
    monkeypatch.setattr(os, "fsync", lambda descriptor: (_ for _ in ()).throw(OSError(5, "Input/output error")))
    with pytest.raises(OutputError, match="Input/output error"):
        write_egs(path, packed(2000))
    assert os.listdir(tmp_path) == ["scene.egs"]
    assert (tmp_path / "scene.egs").read_bytes() == old


def test_a_killed_write_leaves_the_old_file(tmp_path: Path) -> None:
    old = written(tmp_path)
    code = (
        "import os, sys\nfrom edgegs.files import replacing\n"
        "with replacing(sys.argv[1]) as file:\n    file.write(b'x' * 100_000)\n    os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "scene.egs")], cwd=ROOT, timeout=60, check=False)
    assert (tmp_path / "scene.egs").read_bytes() == old
    assert len([name for name in os.listdir(tmp_path) if name.endswith(".part")]) == 1


def test_names_up_to_the_longest(tmp_path: Path) -> None:
    name = "ü" * 125 + ".egs"
    write_egs(str(tmp_path / name), packed(2))
    assert os.listdir(tmp_path) == [name]
    with pytest.raises(OutputError, match="File name too long"):
        write_egs(str(tmp_path / ("ü" + name)), packed(2))


@pytest.mark.parametrize(
    "wrong",
    [
        {"means": np.zeros((700, 2), np.float32)},
        {"halves": np.zeros((700, 8), np.float32)},
        {"sh_bytes": np.zeros((700, 12), np.int8)},
        {"rows": np.zeros(699, np.uint32)},
        {"levels": (10, 10, 700)},
        {"levels": (10, 20)},
        {"levels": ()},
        {"vertical_axis": "x"},
        {"warnings": ["x" * MAX_ABOUT_BYTES]},
    ],
)
def test_what_is_no_packed_scene_is_not_written(tmp_path: Path, wrong: Dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        write_egs(str(tmp_path / "a.egs"), replace(packed(), **wrong))
    for bad in ({"a": float("nan")}, {1: 2}):
        with pytest.raises(ValueError):
            write_egs(str(tmp_path / "a.egs"), packed(), bad)
    for unreadable in ({"half_scale": 0.3}, {"radius": np.inf}, {"n_rows": 3}, {"is_scored": False}):
        with pytest.raises(SceneError, match="header field"):
            write_egs(str(tmp_path / "a.egs"), replace(packed(), **unreadable))
    assert os.listdir(tmp_path) == []


def test_texts_can_be_printed(tmp_path: Path) -> None:
    """A hostile source's words, kept in the file, must not reach a terminal as escape codes."""
    scene = replace(packed(2), warnings=["\x1b[2J gone\n\ud800"], dropped={"a\tb": 1}, format="p\x00")
    back = read(written(tmp_path, scene, {"k\r": ["\x9b"]}))
    assert (back.warnings, back.dropped) == (["\\x1b[2J gone\\n\\ud800"], {"a\\tb": 1})


# Prefixes.


def test_a_budget_reads_its_prefix_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = packed(3000, levels=(512, 1024, 2048, 3000))
    content = written(tmp_path, scene)
    whole = read(content)
    places = {name: (offset, size) for name, offset, size in layout(3000, 3, 4, 0)}
    row_bytes = {"means": 12, "halves": 16, "sh": 48, "rows": 4}
    real = os.preadv
    got: List[Tuple[int, int]] = []

    def counted(descriptor: int, buffers: List[Any], offset: int) -> int:
        n = real(descriptor, buffers, offset)
        got.append((offset, n))
        return n

    for n in (1, 511, 512, 513, 2999):
        spoiled = bytearray(content)
        for name, width in row_bytes.items():
            offset, size = places[name]
            spoiled[offset + n * width : offset + size] = b"\xff" * (size - n * width)
        with monkeypatch.context() as patch:
            patch.setattr(os, "preadv", counted)
            got.clear()
            part = read(bytes(spoiled), n)
        assert_same(part, prefix(whole, n), ("file_sha256",))
        assert part.means.base is None or part.means.base.nbytes == 12 * n
        for offset, n_read in got:
            name = max((o, name) for name, (o, _) in places.items() if o <= offset)[1]
            if name in row_bytes:
                assert offset + n_read <= places[name][0] + n * row_bytes[name]
        assert sum(n_read for offset, n_read in got if offset < places["chunks"][0]) == 80 * n
    assert_same(read(content, 3000), whole)
    assert_same(read(content, 10**12), whole)


def test_a_budget_needs_an_order_of_importance(tmp_path: Path) -> None:
    content = written(tmp_path, packed(300, scored=False))
    assert read(content, 300).n_splats == 300
    assert "'edgegs pack --budget 299'" in refusal(content, max_gaussians=299)


def test_cap_frame_and_progress(tmp_path: Path) -> None:
    content = written(tmp_path)
    assert "the limit is 699" in refusal(content, cap=699)
    assert read(content, frame="rdf").n_splats == 700
    assert "always 'rdf'" in refusal(content, frame="rub")
    seen: List[Tuple[int, int]] = []
    read(content, 600, progress=lambda done, n: seen.append((done, n)))
    assert seen == sorted(seen)
    assert seen[-1] == (600, 600)


_PEAK = """
import sys, time
from edgegs.scene import load
import edgegs.scene.egs
def peak():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))
before, start = peak(), time.perf_counter()
scene = load(sys.argv[1])
took = time.perf_counter() - start
print(scene.n_splats, took, peak() - before, scene.nbytes + scene.rows.nbytes)
"""


def test_half_a_million_splats_cost_their_size(tmp_path: Path) -> None:
    path = tmp_path / "large.egs"
    few = packed(5000)
    many = {name: np.concatenate([getattr(few, name)] * 100) for name in ("means", "halves", "sh_bytes", "rows")}
    write_egs(str(path), replace(few, levels=(250_000, 500_000), n_rows=500_000, **many))
    result = subprocess.run(
        [sys.executable, "-c", _PEAK, str(path)], cwd=ROOT, stdout=subprocess.PIPE, timeout=120, check=True
    )
    n, took, peak_kb, n_bytes = (float(word) for word in result.stdout.split())
    print(f"{n:,.0f} splats: {took * 1e3:.0f} ms, peak {peak_kb / 1e3:.0f} MB over {n_bytes / 1e6:.0f} MB of arrays")
    assert n == 500_000
    assert 0.9 * n_bytes < 1024 * peak_kb < 1.1 * n_bytes + 20e6
