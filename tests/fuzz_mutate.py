"""Ways to spoil a scene file: blindly, and with its structure put right again so that the change is reached."""

from __future__ import annotations

import copy
import functools
import io
import json
import marshal
import random
import struct
import zipfile
import zlib
from typing import Any, Callable, Dict, List

_EDGES = (0, 1, 2, 3, 7, 8, 127, 128, 255, 256, 257, 65535, 65536, 1 << 24, (1 << 31) - 1, 1 << 31, (1 << 32) - 1,
          20_000_000, 20_000_001, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)  # fmt: skip
_FLOATS = (0.0, -0.0, 1.0, -1.0, 1e-45, 1e38, 3e38, -1e38, 88.0, 89.0, -104.0, 1e300, float("inf"), float("nan"))
_SINGLES = tuple(struct.pack("<f", value) for value in _FLOATS[:11])
_WORDS = (b"nan", b"inf", b"-1", b"1e999", b"99999999999999999999", b"0", b"\xff", b"list", b"uchar", b"double",
          b"vertex", b"chunk", b"sh", b"end_header", b"ascii", b"binary_big_endian", b"comment", b"\x1b[31m",
          b"")  # fmt: skip
_VALUES = (None, True, False, 0, 1, -1, 2, 3, 5, 255, 256, 257, 65536, 5121, 5123, 5126, 1 << 31, 1 << 53, 10**17,
           0.5, -0.0, 1e39, 1e308, "", "0", "../a.webp", "/dev/zero", "a\x00b", "\x1b[31m", "\ud800", "meta.json",
           [], {}, [[]], [0, 0, 0], {"": None}, "SCALAR", "VEC3", "VEC4", "data:,", "data:;base64,AAAA")  # fmt: skip


def spoil(rng: random.Random, data: bytes, n_most: int = 4) -> bytes:
    """A few changes of bytes, anywhere; counts and sizes no longer fit."""
    out = bytearray(data)
    for _ in range(rng.randint(1, n_most)):
        kind = rng.randrange(10)
        at = rng.randrange(len(out)) if out else 0
        if kind < 3 and out:
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 3 and out:
            out[at] = rng.choice((0, 1, 127, 128, 254, 255, rng.randrange(256)))
        elif kind < 6 and out:
            out[at : at + 4] = word(rng)[: max(0, len(out) - at)]
        elif kind == 6:
            del out[at : at + rng.choice((1, 2, 4, 31, 32, 33, 1000))]
        elif kind == 7:
            out[at:at] = out[at : at + rng.choice((1, 4, 32, 256))] or b"\0"
        elif kind == 8:
            del out[at:]
        else:
            out += rng.choice((b"\0", b"\0" * 64, bytes(out[:64]), b"\xff" * 33))
    return bytes(out)


def word(rng: random.Random) -> bytes:
    """1, 2, 4 or 8 bytes that are at the edge of something, or any."""
    kind = rng.randrange(6)
    if kind == 0:
        return rng.choice((b"\0\0\x80\x7f", b"\1\0\x80\x7f", b"\0\0\xc0\xff", *_SINGLES))  # infinite, NaN of both kinds
    if kind == 1:
        return struct.pack("<d", rng.choice(_FLOATS))
    if kind == 2:
        return rng.getrandbits(32).to_bytes(4, "little")
    size = (1, 2, 4, 8)[rng.randrange(4)]
    return (rng.choice(_EDGES) & ((1 << 8 * size) - 1)).to_bytes(size, "little")


def overwrite(rng: random.Random, data: bytes, start: int = 0, stop: int = 1 << 30) -> bytes:
    """One to three values changed in place, aligned to 4 mostly; the size stays."""
    out = bytearray(data)
    stop = min(stop, len(out))
    for _ in range(rng.randint(1, 3)):
        if stop <= start:
            break
        at = rng.randrange(start, stop)
        if rng.random() < 0.7:
            at = max(start, at & ~3)
        new = word(rng)[: stop - at]
        out[at : at + len(new)] = new
    return bytes(out)


def text_lines(rng: random.Random, data: bytes) -> bytes:
    """A PLY: lines and words of its header, or bytes after it."""
    head, mark, body = data.partition(b"end_header\n")
    if not mark or rng.random() < 0.2:
        return spoil(rng, data)
    if rng.random() < 0.4:
        return head + mark + (overwrite(rng, body) if rng.random() < 0.8 else spoil(rng, body))
    lines = head.split(b"\n")
    for _ in range(rng.randint(1, 3)):
        i = rng.randrange(len(lines))
        kind = rng.randrange(7)
        if kind == 0:
            lines.insert(i, lines[rng.randrange(len(lines))])
        elif kind == 1 and len(lines) > 1:
            del lines[i]
        elif kind == 2:
            j = rng.randrange(len(lines))
            lines[i], lines[j] = lines[j], lines[i]
        else:
            words = lines[i].split(b" ")
            j = rng.randrange(len(words))
            words[j] = rng.choice((rng.choice(_WORDS), str(rng.choice(_EDGES)).encode(), spoil(rng, words[j], 2)))
            lines[i] = b" ".join(words)
    return b"\n".join(lines) + mark + body


def tree(rng: random.Random, root: Any, n_most: int = 3) -> Any:
    """A JSON document with a few of its values changed, moved, doubled or gone. Changes ``root``."""
    for _ in range(rng.randint(1, n_most)):
        here, depth = root, 0
        while True:
            if not isinstance(here, (dict, list)) or not here:
                break
            keys: Any = list(here) if isinstance(here, dict) else range(len(here))
            key = rng.choice(keys)
            below = here[key]
            if isinstance(below, (dict, list)) and below and rng.random() < 0.8 and depth < 12:
                here, depth = below, depth + 1
                continue
            kind = rng.randrange(8)
            if kind == 0:
                del here[key]
            elif kind == 1:
                here[key] = [below] * (1 if isinstance(below, (dict, list)) else rng.choice((1, 2, 300)))
            elif kind == 2:
                here[key] = copy.deepcopy(here[rng.choice(keys)])
            elif kind == 3 and isinstance(below, (int, float)) and not isinstance(below, bool):
                here[key] = rng.choice((below + 1, below - 1, -below, below * 2, below / 3, below * 1_000_000_007))
            elif kind == 4 and isinstance(below, list):
                here[key] = rng.choice((copy.deepcopy(below) + below, below[:-1], below[::-1], below[:1]))
            elif kind == 5 and isinstance(here, dict):
                here[rng.choice(("", "x", key + "0", key[:-1]))] = here.pop(key)
            else:
                here[key] = copy.deepcopy(rng.choice(_VALUES))
            break
    return root


@functools.lru_cache(maxsize=256)
def _parsed(text: bytes) -> bytes:
    """The document in a form that is read faster than JSON; empty when it is none."""
    try:
        return marshal.dumps(json.loads(text))
    except (ValueError, RecursionError):
        return b""


def json_text(rng: random.Random, text: bytes) -> bytes:
    parsed = _parsed(text)
    if not parsed:
        return spoil(rng, text)
    out = json.dumps(tree(rng, marshal.loads(parsed))).encode()
    if rng.random() < 0.1:
        out = spoil(rng, out, 2)
    elif rng.random() < 0.02:
        out = out.replace(b"0", rng.choice((b"NaN", b"1" * 5000, b"[" * 3000, b"1e-400", b"-0")), 1)
    return out


def spz(rng: random.Random, data: bytes) -> bytes:
    if rng.random() < 0.15:
        return spoil(rng, data)
    if data[:4] == b"NGSP" and len(data) >= 32:
        return _spz_4(rng, data)
    try:
        inner = zlib.decompressobj(31).decompress(data, 1 << 20)
    except zlib.error:
        return spoil(rng, data)
    inner = overwrite(rng, inner, 0, 16) if rng.random() < 0.5 else inner
    inner = rng.choice((overwrite, spoil))(rng, inner)
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)
    out = packer.compress(inner) + packer.flush()
    return overwrite(rng, out, len(out) - 8) if rng.random() < 0.03 else out


def _spz_4(rng: random.Random, data: bytes) -> bytes:
    try:
        import zstandard
    except ImportError:
        return spoil(rng, data)
    n_streams, table = data[15], struct.unpack_from("<I", data, 16)[0]
    if table + 16 * n_streams > len(data):
        return spoil(rng, data)
    entries = [list(struct.unpack_from("<QQ", data, table + 16 * i)) for i in range(n_streams)]
    start = table + 16 * n_streams
    streams: List[bytes] = []
    for n_packed, _ in entries:
        streams.append(data[start : start + n_packed])
        start += n_packed
    head = data[:table]
    if rng.random() < 0.5:
        head = overwrite(rng, head)
    if streams:
        i = rng.randrange(len(streams))
        kind = rng.randrange(5)
        if kind == 0:
            streams[i] = spoil(rng, streams[i])
        elif kind < 4:
            try:
                raw = zstandard.ZstdDecompressor().decompress(streams[i], max_output_size=1 << 20)
            except zstandard.ZstdError:
                raw = streams[i]
            raw = rng.choice((overwrite, spoil))(rng, raw)
            packer = zstandard.ZstdCompressor(level=1, write_content_size=rng.random() < 0.5)
            streams[i] = packer.compress(raw)
            entries[i] = [len(streams[i]), len(raw) if rng.random() < 0.7 else entries[i][1]]
    out = head + b"".join(struct.pack("<QQ", *entry) for entry in entries)
    if rng.random() < 0.2:
        out = overwrite(rng, out, len(head))
    return out + b"".join(streams)


@functools.lru_cache(maxsize=64)
def _unzipped(data: bytes) -> Dict[str, bytes]:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return {info.filename: archive.read(info) for info in archive.infolist() if info.file_size < 1 << 20}
    except Exception:  # whatever it is, it can still be spoilt as bytes
        return {}


def sog(rng: random.Random, data: bytes) -> bytes:
    members = dict(_unzipped(data))
    if rng.random() < 0.15 or not members:
        return spoil(rng, data)
    for _ in range(rng.randint(1, 2)):
        names = list(members) or ["meta.json"]
        name = rng.choice(names)
        kind = rng.randrange(10)
        if kind < 5:
            members["meta.json"] = json_text(rng, members.get("meta.json", b"{}"))
        elif kind == 5:
            members[name] = spoil(rng, members.get(name, b""))
        elif kind == 6:
            members[name] = members.get(rng.choice(names), b"")
        elif kind == 7:
            members.pop(name, None)
        elif kind == 8:
            members[rng.choice(("../x", "/x", "x" * 200, name + "2", name.upper(), "a/b"))] = members.pop(name, b"")
        else:
            members[name] = _picture(rng)
    from fuzz_seeds import zipped

    out = zipped(members, rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)))
    return spoil(rng, out, 1) if rng.random() < 0.05 else out


_pictures: Dict[Any, bytes] = {}


def _picture(rng: random.Random) -> bytes:
    key = (
        rng.choice((1, 2, 64, 192, 512, 960)), rng.choice((1, 2, 3, 40)), rng.choice(("RGB", "RGBA", "L")),
        rng.random() < 0.7,
    )  # fmt: skip
    if key not in _pictures:
        from fuzz_seeds import webp

        _pictures[key] = webp(key[0], key[1], 5, key[2], key[3])
    return _pictures[key]


def gltf(rng: random.Random, data: bytes) -> bytes:
    if rng.random() < 0.1:
        return spoil(rng, data)
    if data[:4] != b"glTF":
        return json_text(rng, data)
    n_json = struct.unpack_from("<I", data, 12)[0] if len(data) >= 20 else 0
    text, binary = data[20 : 20 + n_json], data[28 + n_json :]
    if rng.random() < 0.8:
        text = json_text(rng, text)
    else:
        binary = rng.choice((overwrite, spoil))(rng, binary)
    from gltf_files import glb_of

    out = glb_of(text, binary)
    return overwrite(rng, out, 0, 20) if rng.random() < 0.1 else out


def egs(rng: random.Random, data: bytes) -> bytes:
    """Header words with the checksum put right, and sections with their digests put right."""
    import hashlib

    import numpy as np

    from edgegs.pack.egs import HEADER, PAGE

    if rng.random() < 0.15 or len(data) < PAGE:
        return spoil(rng, data)
    page, rest = bytearray(data[:PAGE]), data[PAGE:]
    if rng.random() < 0.5:
        rest = rng.choice((overwrite, spoil))(rng, rest)
    field = rng.choice([name for name in HEADER.names or () if name not in ("crc32", "reserved")])
    if rng.random() < 0.7:
        start = (HEADER.fields or {})[field][1]
        page = bytearray(overwrite(rng, bytes(page), start, start + (HEADER.fields or {})[field][0].itemsize))
    header = np.frombuffer(page, HEADER)[0]
    if rng.random() < 0.8:
        sections = header["sections"]
        for i in range(len(sections)):
            offset, n_bytes = int(sections[i]["offset"]), int(sections[i]["n_bytes"])
            if sections[i]["name"] == b"about" and rng.random() < 0.3:
                blob = json_text(rng, data[offset : offset + n_bytes])
                rest = rest[: max(0, offset - PAGE)] + blob
                at = (HEADER.fields or {})["sections"][1] + i * sections.dtype.itemsize + 24
                page[at : at + 8] = struct.pack("<Q", len(blob))
                n_bytes = len(blob)
            if offset >= PAGE and n_bytes <= len(rest):
                digest = hashlib.sha256(rest[offset - PAGE : offset - PAGE + n_bytes]).digest()
                at = (HEADER.fields or {})["sections"][1] + i * sections.dtype.itemsize + 32
                page[at : at + 32] = digest
    if rng.random() < 0.95:
        page[-4:] = struct.pack("<I", zlib.crc32(bytes(page[:-4])))
    return bytes(page) + rest


#: Reader -> its way of spoiling a file.
MUTATORS: Dict[str, Callable[[random.Random, bytes], bytes]] = {
    "ply": text_lines,
    "compressed.ply": text_lines,
    "splat": lambda rng, data: rng.choice((overwrite, overwrite, spoil))(rng, data),
    "spz": spz,
    "sog": sog,
    "sog json": json_text,
    "gltf": gltf,
    "egs": egs,
}
