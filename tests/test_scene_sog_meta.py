"""Wrong meta.json and wrong planes of SOG scenes: each ends in one clear message."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, Callable, Dict

import numpy as np
import pytest
from sog_files import Sog, check, read, refused, webp, write_zip

from edgegs.errors import SceneError
from edgegs.scene.sog_planes import webp_size


def broken(change: Callable[[Dict[str, Any]], object]) -> Callable[[Sog], None]:
    return lambda sog: (change(sog.meta), None)[1]


#: What is done to a good scene of degree 1, and words of the message.
META: Dict[str, Any] = {
    "count missing": (broken(lambda m: m.pop("count")), "count must be a whole number from 0 to 2^53, not missing"),
    "count text": (broken(lambda m: m.update(count="12")), "count must be a whole number from 0 to 2^53, not '12'"),
    "count true": (broken(lambda m: m.update(count=True)), "not True"),
    "count negative": (broken(lambda m: m.update(count=-1)), "not -1"),
    "count fraction": (broken(lambda m: m.update(count=1.5)), "not 1.5"),
    "count beyond the cap": (broken(lambda m: m.update(count=20_000_001)), "promises 20,000,001 splats, and the limit"),
    "count of many digits": (broken(lambda m: m.update(count=10**4000)), "not inf"),
    "version text": (broken(lambda m: m.update(version="2")), "version must be a whole number"),
    "version 1": (broken(lambda m: m.update(version=1)), "version 1; edgegs reads SOG 2, and 1 (which has no version"),
    "means a list": (broken(lambda m: m.update(means=[])), "means is missing or no object"),
    "scales missing": (broken(lambda m: m.pop("scales")), "scales is missing or no object"),
    "mins short": (broken(lambda m: m["means"]["mins"].pop()), "means.mins must be 3 numbers, and is 2 entries"),
    "mins null": (broken(lambda m: m["means"].update(mins=[0, None, 0])), "means.mins[1] must be a finite number"),
    "maxs infinite": (broken(lambda m: m["means"].update(maxs=[0, 1e400, 0])), "no valid JSON (Infinity is no JSON"),
    "codebook text": (broken(lambda m: m["sh0"]["codebook"].__setitem__(3, "x")), "sh0.codebook[3] must be a finite"),
    "codebook missing": (broken(lambda m: m["shN"].pop("codebook")), "shN.codebook must be 256 numbers"),
    "palette too large": (broken(lambda m: m["shN"].update(count=129)), "holds 128 centroids, and shN.count is 129"),
    "palette 0": (broken(lambda m: m["shN"].update(count=0)), "shN.count must be a whole number from 1 to 65,536"),
    "bands and width": (broken(lambda m: m["shN"].update(bands=2)), "192 pixels wide; a row is 192, 512 or 960 for"),
    "one means file": (broken(lambda m: m["means"]["files"].pop()), "means.files must be 2 file names, and is 1"),
    "no scales file": (broken(lambda m: m["scales"].update(files=[])), "scales.files must be 1 file name, and is 0"),
    "files a text": (broken(lambda m: m["sh0"].update(files="sh0.webp")), "sh0.files must be 1 file name"),
    "meta as a plane": (broken(lambda m: m["sh0"].update(files=["meta.json"])), "'meta.json': no WebP picture"),
    "all positions infinite": (broken(lambda m: m["means"].update(mins=[9e9] * 3, maxs=[9e9] * 3)), "a non-finite"),
    "all scales huge": (broken(lambda m: m["scales"].update(codebook=[1e300] * 256)), "with a non-finite scale"),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(META))
def test_wrong_meta(tmp_path: Path, name: str) -> None:
    change, words = META[name]
    sog = Sog(12, 1)
    change(sog)
    refused(sog.zip(tmp_path / "bad.sog"), words)
    refused(sog.folder(tmp_path / "bad") / "meta.json", words)


@pytest.mark.parametrize(
    "name",
    ["", " ", ".", "..", "a/b.webp", "a\\b.webp", "/etc/passwd", "C:x", "x\0.webp", "x\n", "CON", "nul", "com1.webp",
     "Aux.", "x" * 256, " x", "x.", "\ud800", "x?", 5, None, ["x"]],
)  # fmt: skip
def test_names_that_are_no_plain_names(tmp_path: Path, name: Any) -> None:
    sog = Sog(3)
    sog.meta["quats"]["files"] = [name]
    refused(sog.zip(tmp_path / "bad.sog"), "quats.files[0] must be ")


@pytest.mark.parametrize("name", ["räder.webp", "a b.webp", "console.webp", "com10", ".x.webp", "…"])
def test_names_that_are(tmp_path: Path, name: str) -> None:
    sog = Sog(3)
    sog.meta["quats"]["files"] = [name]
    files = sog.files()
    files[name] = files.pop("quats.webp")
    check(read(write_zip(tmp_path / "a.sog", files)), sog.expected())


JSON: Dict[str, Any] = {
    "cut": (b'{"version": 2, "count"', "no valid JSON"),
    "empty": (b"", "no valid JSON"),
    "a list": (b"[]", "holds no JSON object"),
    "nan": (b'{"version": NaN}', "NaN is no JSON number"),
    "not utf-8": (b'{"version": "\xff"}', "no valid JSON"),
    "deep": (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "nested too deeply"),
    "too large": (b" " * ((1 << 20) + 1), "1,048,577 bytes"),
    "digits": (b'{"version": ' + b"9" * 1_000_000 + b"}", "lacks 'means'"),
}


@pytest.mark.parametrize("name", sorted(JSON))
def test_wrong_json(tmp_path: Path, name: str) -> None:
    data, words = JSON[name]
    refused(write_zip(tmp_path / "bad.sog", {"meta.json": data}), words)
    (tmp_path / "meta.json").write_bytes(data)
    if name != "too large":  # the same limit, once it is known that it is no lod-meta.json
        refused(tmp_path / "meta.json", words)


def riff(*chunks: bytes) -> bytes:
    return b"RIFF" + struct.pack("<I", 4 + sum(map(len, chunks))) + b"WEBP" + b"".join(chunks)


def chunk(kind: bytes, data: bytes) -> bytes:
    return kind + struct.pack("<I", len(data)) + data + b"\0" * (len(data) & 1)


def vp8l(width: int, height: int, rest: bytes = bytes(20)) -> bytes:
    return chunk(b"VP8L", b"\x2f" + struct.pack("<I", width - 1 | height - 1 << 14) + rest)


PLANES: Dict[str, Any] = {
    "empty": (b"", "no WebP picture"),
    "png": (b"\x89PNG\r\n\x1a\n" + bytes(50), "no WebP picture"),
    "wave": (b"RIFF\x24\0\0\0WAVE" + bytes(50), "no WebP picture"),
    "no chunks": (riff(), "without a lossless picture"),
    "lossy": (webp(np.zeros((2, 8, 3), np.uint8), lossless=False), "a lossy WebP picture"),
    "lossy behind": (riff(vp8l(8, 2), chunk(b"VP8 ", bytes(10))), "a lossy WebP picture"),
    "animated": (riff(chunk(b"VP8X", bytes(10)), chunk(b"ANIM", bytes(6))), "an animated WebP"),
    "two pictures": (riff(vp8l(8, 2), vp8l(8, 2)), "a damaged WebP picture"),
    "signature": (riff(chunk(b"VP8L", bytes(20))), "a damaged WebP picture"),
    "short chunk": (riff(chunk(b"VP8L", b"\x2f")), "a damaged WebP picture"),
    "nothing in it": (riff(vp8l(8, 2, b"\xff" * 20)), "cannot be decoded"),
    "cut": (webp(np.zeros((2, 8, 4), np.uint8))[:-3], "is the copy or download complete?"),
    "bomb": (riff(vp8l(16384, 16384)), "16384 x 16384 pixels for 12 splats: far too large"),
    "other shape": (webp(np.zeros((8, 2, 4), np.uint8)), "2 x 8 pixels, but 'means_l.webp' has 8 x 2"),
    "small": (webp(np.zeros((1, 8, 4), np.uint8)), "8 x 1 pixels are too few for the 12 splats"),
    "long": (bytes(1 << 20), "bytes or more, and what it should hold needs at most"),
}


@pytest.mark.parametrize("name", sorted(PLANES))
def test_wrong_planes(tmp_path: Path, name: str) -> None:
    data, words = PLANES[name]
    files = {**Sog(12, 1).files(), "quats.webp": data}
    assert "'quats.webp'" in refused(write_zip(tmp_path / "bad.sog", files), words)
    folder = Sog(12, 1).folder(tmp_path / "bad")
    (folder / "quats.webp").write_bytes(data)
    refused(folder / "meta.json", words)


def test_a_palette_that_is_too_tall(tmp_path: Path) -> None:
    files = {**Sog(12, 1).files(), "shN_centroids.webp": riff(vp8l(192, 1025))}
    refused(write_zip(tmp_path / "bad.sog", files), "1,025 rows; labels can only name the first 1,024")


def test_every_cut_of_a_plane(tmp_path: Path) -> None:
    data = webp(Sog(12).pixels["sh0"])
    assert webp_size(data, "x") == (8, 2)
    for length in range(len(data)):
        with pytest.raises(SceneError, match=r"^x: "):
            webp_size(data[:length], "x")
