"""Wrong packed files: whatever is changed in one, a scene comes out of it or a SceneError, in little memory."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tracemalloc
import zlib
from pathlib import Path
from typing import Any, List, Optional, Tuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from packed_scenes import check, packed, read, refusal, written

from edgegs.errors import InputError, SceneError
from edgegs.pack.egs import HEADER, MAGIC, PAGE, SECTION, SECTIONS, layout
from edgegs.pack.order import prefix
from edgegs.scene import load


@pytest.fixture(scope="module")
def blob(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return written(tmp_path_factory.mktemp("egs"), packed(5))


def spoil(content: bytes, name: str, value: Any, index: Any = 0) -> bytes:
    """The file with another value in its header, and a CRC-32 that agrees."""
    header = np.frombuffer(content[:PAGE], HEADER).copy()
    slot = header
    for part in name.split(".")[:-1]:
        slot = slot[part]
    if name.startswith("sections"):
        slot = slot[0]
    slot[name.split(".")[-1]][index] = value
    header["crc32"] = zlib.crc32(header.tobytes()[:-4])
    return header.tobytes() + content[PAGE:]


NAN = float("nan")
HOSTILE = [
    ("version", 0, 0, "version"), ("version", 2, 0, "install edgegs 0.1.0 or newer"),
    ("version", 2**32 - 1, 0, "version 4294967295 of the format"), ("header_bytes", 0, 0, "must be 4096"),
    ("header_bytes", 8192, 0, "must be 4096"), ("needs", b"9.9", 0, "must be 0.1.0"),
    ("n_splats", 0, 0, "n_splats: 0 is not"), ("n_splats", 4, 0, "n_levels|must be"), ("n_splats", 6, 0, "must be"),
    ("n_splats", 2**32, 0, "n_rows"), ("n_splats", 2**64 - 1, 0, "n_splats: 18,446"), ("n_rows", 4, 0, "n_rows"),
    ("n_rows", 2**64 - 1, 0, "n_rows"), ("sh_degree", 4, 0, "4 is not 0 to 3"), ("sh_degree", 2, 0, "must be"),
    ("sh_degree", 2**32 - 1, 0, "is not 0 to 3"), ("flags", 8, 0, "unknown bits"), ("flags", 0, 0, "not one of imp"),
    ("n_levels", 0, 0, "0 is impossible"), ("n_levels", 2, 0, r"\[levels\].n_bytes"), ("n_levels", 6, 0, "impossible"),
    ("n_levels", 2**32 - 1, 0, "impossible"), ("n_sections", 6, 0, "is not 7"), ("n_sections", 2**31, 0, "is not 7"),
    ("half_scale", 0, 0, "half_scale"), ("half_scale", -0.5, 0, "half_scale"), ("half_scale", 0.75, 0, "power of two"),
    ("half_scale", NAN, 0, "half_scale"), ("half_scale", np.inf, 0, "half_scale"), ("half_scale", 2.0**50, 0, "half"),
    ("half_scale", 5e-324, 0, "half_scale"), ("radius", NAN, 0, "radius"), ("radius", -1, 0, "radius"),
    ("radius", np.inf, 0, "radius"), ("radius", 1e300, 0, "radius"), ("center", NAN, (0, 2), "center"),
    ("center", -np.inf, (0, 0), "center"), ("center", 1e300, (0, 1), "center"), ("low", NAN, (0, 1), "low"),
    ("low", 99, (0, 1), "below low"), ("high", -1, (0, 2), "below low"), ("high", np.inf, (0, 2), "high: not finite"),
    ("sh_scales", NAN, (0, 3, 2), "sh_scales"), ("sh_scales", -1, (0, 0, 0), "sh_scales"),
    ("sh_scales", 3e36, (0, 1, 1), "sh_scales"), ("reserved", 1, (0, 3000), "reserved"),
    ("sections.name", b"Means", 0, r"\[means\].name"), ("sections.name", b"", 6, r"\[about\].name"),
    ("sections.offset", 0, 0, r"\[means\].offset: must be 4096"), ("sections.offset", 2**64 - 1, 3, r"\[rows\].offset"),
    ("sections.n_bytes", 0, 1, r"\[halves\].n_bytes"), ("sections.n_bytes", 2**64 - 1, 2, r"\[sh\].n_bytes"),
    ("sections.n_bytes", 0, 6, r"\[about\].n_bytes: 0 is"), ("sections.n_bytes", 2**63, 6, r"\[about\].n_bytes"),
    ("sections.n_bytes", 20, 6, "bytes follow"), ("sections.n_bytes", 1000, 6, "is the copy or download complete"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value", "index", "words"), HOSTILE)
def test_every_header_field(blob: bytes, name: str, value: Any, index: Any, words: str) -> None:
    assert re.search(words, refusal(spoil(blob, name, value, index)))


def test_the_table_covers_the_header() -> None:
    checked = {name for name, *_ in HOSTILE}
    # Whatever these say is true of some file; the sections' digests are compared by verify.
    free = {"magic", "crc32", "source_sha256", "sections.sha256"}
    names = {name for name in HEADER.names if name != "sections"} | {f"sections.{name}" for name in SECTION.names}
    assert checked | free == names


def test_signalling_nans_are_refused(blob: bytes) -> None:
    for field, size in (("low", 4), ("radius", 8), ("center", 8), ("sh_scales", 4), ("half_scale", 8)):
        content = bytearray(blob)
        offset = HEADER.fields[field][1]
        content[offset : offset + size] = (0x7FA00000 if size == 4 else 0x7FF4000000000000).to_bytes(size, "little")
        content[PAGE - 4 : PAGE] = zlib.crc32(bytes(content[: PAGE - 4])).to_bytes(4, "little")
        assert field in refusal(bytes(content))


def test_a_newer_version_is_told_from_a_damaged_file(blob: bytes) -> None:
    header = np.frombuffer(blob[:PAGE], HEADER).copy()
    header["version"], header["needs"], header["header_bytes"] = 3, b"2.5", 8192
    header["crc32"] = zlib.crc32(header.tobytes()[:-4])
    assert "install edgegs 2.5 or newer" in refusal(header.tobytes() + bytes(9000))
    header["needs"] = b"\x1b[2J"
    header["crc32"] = zlib.crc32(header.tobytes()[:-4])
    assert "\x1b" not in refusal(header.tobytes())
    header["n_rows"] += 1
    assert "CRC-32" in refusal(header.tobytes() + bytes(9000))


def test_sent_as_text(blob: bytes) -> None:
    assert "sent as text" in refusal(blob.replace(b"\n", b"\r\n", 1))


def test_truncated_anywhere(blob: bytes, tmp_path: Path) -> None:
    edges = [(offset, offset + size) for _, offset, size in layout(5, 3, 3, len(blob))]
    ends = {*range(len(MAGIC), PAGE), *(edge + i for pair in edges for edge in pair for i in (-1, 0, 1))}
    for end in sorted(end for end in ends if end < len(blob)):
        for function in (read, check):
            message = refusal(blob[:end], function)
            assert "complete?" in message, end
    for end in range(len(MAGIC)):
        assert "not a packed scene" in refusal(blob[:end])
    assert "1 bytes follow" in refusal(blob + b"\0")
    path = tmp_path / "cut.egs"
    path.write_bytes(blob[:5000])
    with pytest.raises(SceneError, match=r"cut\.egs: ends at byte 5,000"):
        load(path)


def test_every_flipped_byte_is_found(blob: bytes) -> None:
    check(blob)
    used = {i for _, offset, size in layout(5, 3, 3, 0) for i in range(offset, offset + size)}
    places = layout(5, 3, 3, 0)
    used |= set(range(places[-1][1], len(blob)))
    names = {offset: name for name, offset, _ in places}
    padding = range(PAGE + 7, len(blob), 257)
    for i in sorted({*range(0, PAGE, 3), *used, *padding}):
        spoiled = bytearray(blob)
        spoiled[i] ^= 1 << (i % 8)
        message = refusal(bytes(spoiled), check)
        if i in used and names[max(o for o in names if o <= i)] not in ("levels", "about"):
            assert "damaged: checksum of " + names[max(o for o in names if o <= i)] in message
    every = bytearray(blob)
    for _, offset, _ in places[:-1]:
        every[offset] ^= 1
    assert "checksum of means, halves, sh, rows, chunks, levels;" in refusal(bytes(every), check)


def with_section(content: bytes, name: str, data: bytes) -> bytes:
    """The file with another section of the same or (about) any size, and all digests right."""
    header = np.frombuffer(content[:PAGE], HEADER).copy()
    slot = header["sections"][0][SECTIONS.index(name)]
    start = int(slot["offset"])
    if name == "about":
        content = content[:start] + data
    slot["n_bytes"], slot["sha256"] = len(data), np.frombuffer(hashlib.sha256(data).digest(), np.uint8)
    header["crc32"] = zlib.crc32(header.tobytes()[:-4])
    return header.tobytes() + content[PAGE:start] + data + content[start + len(data) :]


@pytest.mark.parametrize("levels", [(0, 2, 5), (1, 1, 5), (3, 2, 5), (1, 2, 4), (1, 2, 2**64 - 1), (2**63, 2**63, 5)])
def test_levels_that_do_not_rise(blob: bytes, levels: Tuple[int, ...]) -> None:
    spoiled = with_section(blob, "levels", np.array(levels, "<u8").tobytes())
    assert "section levels" in refusal(spoiled)
    assert "section levels" in refusal(spoiled, check)


def test_rows_beyond_the_source(blob: bytes) -> None:
    assert "section rows" in refusal(with_section(blob, "rows", np.array([0, 1, 2, 3, 10], "<u4").tobytes()))


GOOD_ABOUT = {"about": {}, "dropped": {}, "format": "ply", "warnings": []}


@pytest.mark.parametrize(
    "data",
    [
        b"{", b"[]", b"null", b"\0" * 50, b"\xff\xfe{}", b"{}", b"1" * 100_000, b"[" * 100_000, b'{"a":' * 50_000,
        json.dumps(GOOD_ABOUT).encode(),
        *(
            json.dumps({**GOOD_ABOUT, **wrong}, sort_keys=True, separators=(",", ":")).encode()
            for wrong in (
                {"more": 1}, {"about": []}, {"format": 3}, {"warnings": {}}, {"warnings": [1]}, {"dropped": []},
                {"dropped": {"a": True}}, {"dropped": {"a": 1.0}}, {"dropped": {"a": -1}}, {"dropped": {"a": 11}},
                {"warnings": ["\x1b[2J"]}, {"about": {"\n": 1}}, {"about": {"a": float("nan")}},
                {"about": {"a": 10**30}}, {"about": {"a": ["\ud800"]}},
            )
        ),
        b'{"about":{},"about":{},"dropped":{},"format":"ply","warnings":[]}',
        b'{"about":{"a":1e999},"dropped":{},"format":"ply","warnings":[]}',
    ],
)  # fmt: skip
def test_json_that_edgegs_does_not_write(blob: bytes, data: bytes) -> None:
    good = json.dumps(GOOD_ABOUT, sort_keys=True, separators=(",", ":")).encode()
    assert read(with_section(blob, "about", good)).warnings == []
    assert "section about" in refusal(with_section(blob, "about", data))


def test_values_of_the_sections_steer_nothing(blob: bytes) -> None:
    """All bits set is NaN in every float; loading such a file and cutting it is safe."""
    spoiled = bytearray(blob)
    for name, offset, size in layout(5, 3, 3, 0):
        if name in ("means", "halves", "sh", "chunks"):
            spoiled[offset : offset + size] = b"\xff" * size
    scene = read(bytes(spoiled))
    assert np.isnan(scene.means).all()
    assert prefix(scene, 2).n_splats == 2
    assert np.isfinite(scene.bounds()[0]).all()
    assert np.isfinite(scene.raw_bounds()[1]).all()


def test_sparse_files_are_refused(tmp_path: Path) -> None:
    """A kilobyte on the disk that promises a gigabyte: refused before anything is allocated."""
    n = 15_000_000
    base = np.frombuffer(written(tmp_path, packed(5, scored=False))[:PAGE], HEADER).copy()
    about = json.dumps(GOOD_ABOUT, sort_keys=True, separators=(",", ":")).encode()
    base["n_splats"] = base["n_rows"] = n
    places = layout(n, 3, 1, len(about))
    for slot, (_, offset, size) in zip(base["sections"][0], places):
        slot["offset"], slot["n_bytes"] = offset, size
    base["crc32"] = zlib.crc32(base.tobytes()[:-4])
    path = tmp_path / "bomb.egs"
    with open(path, "wb") as file:
        file.write(base.tobytes())
        file.seek(places[-2][1])
        file.write(np.array([n], "<u8").tobytes())
        file.seek(places[-1][1])
        file.write(about)
    if os.stat(path).st_blocks * 512 > 1 << 20:
        pytest.skip("this file system keeps no holes")
    tracemalloc.start()
    try:
        with pytest.raises(SceneError, match="sparse file"):
            load(path)
        assert tracemalloc.get_traced_memory()[1] < 5e6
    finally:
        tracemalloc.stop()


def test_a_file_that_changes_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "scene.egs"
    written(tmp_path, packed(60_000))
    for size, words in ((100_000, "ends inside section"), (10_000_000, "changed while")):
        written(tmp_path, packed(60_000))
        with pytest.raises(SceneError, match=words):
            load(path, progress=lambda done, n, size=size: os.truncate(path, size))
    with pytest.raises(InputError):
        load(tmp_path / "none.egs")


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    changes=st.lists(st.tuples(st.integers(0, 1 << 16), st.binary(min_size=1, max_size=9)), max_size=6),
    header_only=st.booleans(),
    end=st.integers(0, 1 << 16) | st.none(),
    mended=st.booleans(),
    budget=st.none() | st.integers(1, 9),
)
def test_mutations_give_a_scene_or_a_scene_error(
    blob: bytes, changes: List[Tuple[int, bytes]], header_only: bool, end: Optional[int], mended: bool, budget: int
) -> None:
    content = bytearray(blob)
    for at, data in changes:
        at %= 656 if header_only else len(content)
        content[at : at + len(data)] = data
    if mended:
        content[PAGE - 4 : PAGE] = zlib.crc32(bytes(content[: PAGE - 4])).to_bytes(4, "little")
    spoiled = bytes(content if end is None else content[:end])
    try:
        scene = read(spoiled, budget)
        assert 1 <= scene.n_splats <= 5
        with np.errstate(all="ignore"):  # unverified halves may be NaN
            assert scene.unpacked().n_splats == scene.n_splats
    except SceneError:
        pass
    try:
        check(spoiled)
        assert spoiled == blob or mended
    except SceneError:
        pass
