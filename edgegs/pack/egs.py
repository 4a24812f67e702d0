"""The file of a packed scene, byte by byte, and its writer; the reader is edgegs/scene/egs.py.

One header page, then sections that are exactly what the device takes, each on a page of its own. ``docs/egs.md`` has
the same in words and tables. The same scene gives the same bytes: no times, no paths, no padding but zeros.
"""

from __future__ import annotations

import hashlib
import math
import os
import zlib
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Tuple

import numpy as np

from edgegs.errors import SceneError
from edgegs.files import replacing
from edgegs.pack.about import MAX_ABOUT_BYTES, About, encode_about
from edgegs.pack.order import chunk_bounds
from edgegs.pack.packed import CHUNK, PackedScene

#: First bytes of the file. The line end shows a transfer that "mended" line ends.
MAGIC = b"EGSPACK\n"
VERSION = 1
#: Least version of edgegs that reads this version of the format.
NEEDS = b"0.1.0"
PAGE = 4096
MAX_LEVELS = 4096
#: Bytes written between two signs of progress; a slow card takes a second for them.
_PIECE = 8 << 20

_SCORED, _ANTIALIASED, _VERTICAL_Z = 1, 2, 4
_MAX_ROWS = 1 << 32  # rows are uint32
#: Where half_scale lies: sigma and its square, a covariance entry, must be numbers of float32.
_HALF_SCALE = (2.0**-126, 2.0**49)
_MAX_SH_SCALE = float(np.finfo(np.float32).max) / 128  # times any byte it is finite
_MAX_LENGTH = 4 * float(np.finfo(np.float32).max)

SECTION = np.dtype([("name", "S16"), ("offset", "<u8"), ("n_bytes", "<u8"), ("sha256", "u1", (32,))])
#: In the order of the file. What is read whole comes after what is read in part; JSON last, which no file that was
#: cut off and filled up with zeros has.
SECTIONS = ("means", "halves", "sh", "rows", "chunks", "levels", "about")

#: The header page. Of every version of the format: magic, version, header_bytes, needs, and the CRC-32 of the first
#: page's other bytes in its last four.
HEADER = np.dtype(
    [
        ("magic", "S8"),
        ("version", "<u4"),
        ("header_bytes", "<u4"),
        ("needs", "S16"),
        ("n_splats", "<u8"),
        ("n_rows", "<u8"),
        ("sh_degree", "<u4"),
        ("flags", "<u4"),
        ("n_levels", "<u4"),
        ("n_sections", "<u4"),
        ("half_scale", "<f8"),
        ("radius", "<f8"),
        ("center", "<f8", (3,)),
        ("low", "<f4", (3,)),
        ("high", "<f4", (3,)),
        ("sh_scales", "<f4", (4, 3)),
        ("source_sha256", "u1", (32,)),
        ("sections", SECTION, (len(SECTIONS),)),
        ("reserved", "u1", (PAGE - 660,)),
        ("crc32", "<u4"),
    ]
)
assert HEADER.itemsize == PAGE


class Section(NamedTuple):
    """Where a part of the file lies."""

    name: str
    offset: int
    n_bytes: int
    sha256: bytes


@dataclass(frozen=True)
class EgsHeader:
    """A header page that was found consistent, with itself and with the size of its file.

    Attributes:
        sha256: hex digest of the page, which holds those of all sections: what identifies the file.
        source_sha256: hex digest of what the scene was packed from; empty for a generated scene.
        The others are as in ``PackedScene``.
    """

    n_splats: int
    n_rows: int
    sh_degree: int
    n_levels: int
    is_scored: bool
    antialiased: bool
    vertical_axis: str
    half_scale: float
    radius: float
    center: np.ndarray
    low: np.ndarray
    high: np.ndarray
    sh_scales: np.ndarray
    source_sha256: str
    sections: Dict[str, Section]
    sha256: str


def write_egs(
    path: str,
    packed: PackedScene,
    about: Optional[Mapping[str, Any]] = None,
    progress: Optional[Callable[[int, int], None]] = None,
) -> None:
    """Write a packed scene; the file appears complete and synced, or not at all.

    Args:
        about: what else the file should tell, as JSON; up to 1 MiB. Without times and paths in it, the file depends
            on the scene alone. Control characters in texts are written as escapes.
        progress: called as ``progress(bytes_done, n_bytes)``, what is done being on the disk; what it raises ends the
            writing.

    Raises:
        OutputError, AccessError: it cannot be written. ValueError: no scene that the format can hold.
    """
    _check(packed)
    blob = encode_about(About(dict(about or {}), packed.dropped, packed.format, packed.warnings))
    n, n_levels = packed.n_splats, len(packed.levels)
    arrays = (
        packed.means.astype("<f4", copy=False),
        packed.halves.astype("<f2", copy=False),
        packed.sh_bytes,
        packed.rows.astype("<u4", copy=False),
        chunk_bounds(packed).astype("<f4", copy=False),
        np.array(packed.levels, "<u8"),
        np.frombuffer(blob, np.uint8),
    )
    content = [np.ascontiguousarray(array).reshape(-1).view(np.uint8).data for array in arrays]
    places = layout(n, packed.sh_degree, n_levels, len(blob))
    digests = [hashlib.sha256(data).digest() for data in content]
    page = _page(packed, [Section(*place, digest) for place, digest in zip(places, digests)])
    _, last, n_bytes = places[-1]
    parse_header(page, last + n_bytes, path)  # what could not be read is not written
    with replacing(path) as file:
        position = file.write(page)
        for (_, offset, _), data in zip(places, content):
            file.write(bytes(offset - position))
            position = offset
            for start in range(0, len(data), _PIECE):
                position += file.write(data[start : start + _PIECE])
                if progress is not None:
                    file.flush()
                    os.fdatasync(file.fileno())  # else the sync at the end takes as long as all of it, without a sign
                    progress(position, last + n_bytes)


def layout(n_splats: int, sh_degree: int, n_levels: int, about_bytes: int) -> List[Tuple[str, int, int]]:
    """Name, offset and bytes of every section. There is one such file for given numbers, so no other is accepted."""
    sh_words = -(-3 * (sh_degree + 1) ** 2 // 4)
    sizes = (12, 16, 4 * sh_words, 4)
    n_bytes = [n_splats * size for size in sizes]
    n_bytes += [-(-n_splats // CHUNK) * 28, 8 * n_levels, about_bytes]
    places = []
    offset = PAGE
    for name, size in zip(SECTIONS, n_bytes):
        places.append((name, offset, size))
        offset += -(-size // PAGE) * PAGE
    return places


@np.errstate(all="ignore")  # signalling NaNs
def parse_header(page: bytes, size: int, path: str) -> EgsHeader:
    """Check a file's first page against itself and the file's size.

    Args:
        page: the first 4,096 bytes, less where the file ends before.
        size: of the file, bytes.

    Raises:
        SceneError: one sentence that names the field.
    """
    if page[: len(MAGIC)] != MAGIC:
        raise SceneError(f"{path}: not a packed scene (.egs): it does not begin with {MAGIC!r}; was it sent as text?")
    if len(page) < PAGE:
        raise SceneError(f"{path}: ends inside its header, after {len(page):,} bytes; is the copy complete?")
    page = page[:PAGE]
    record = np.frombuffer(page, HEADER)[0]
    if zlib.crc32(page[:-4]) != int(record["crc32"]):
        raise SceneError(f"{path}: the header is damaged (its CRC-32 is wrong); copy or pack the scene again")

    def fault(name: str, why: str) -> SceneError:
        return SceneError(f"{path}: header field {name}: {why}; pack the scene again")

    version = int(record["version"])
    if version > VERSION:
        needs = ascii(record["needs"].decode("latin-1"))[1:-1]
        raise SceneError(
            f"{path}: version {version} of the format, and this edgegs reads version {VERSION}: install edgegs "
            f"{needs} or newer, or pack the scene again here"
        )
    n_splats, n_rows, sh_degree, flags, n_levels, n_sections = (
        int(record[name]) for name in ("n_splats", "n_rows", "sh_degree", "flags", "n_levels", "n_sections")
    )
    half_scale, radius = float(record["half_scale"]), float(record["radius"])
    for name, wrong, why in (
        ("version", version != VERSION, f"{version} is none"),
        ("header_bytes", int(record["header_bytes"]) != PAGE, f"must be {PAGE}"),
        ("needs", record["needs"] != NEEDS, f"must be {NEEDS.decode()}"),
        ("n_splats", not 1 <= n_splats <= _MAX_ROWS, f"{n_splats:,} is not 1 to {_MAX_ROWS:,}"),
        ("n_rows", not n_splats <= n_rows <= _MAX_ROWS, f"{n_rows:,} is not n_splats to {_MAX_ROWS:,}"),
        ("sh_degree", sh_degree > 3, f"{sh_degree} is not 0 to 3"),
        ("flags", flags > 7, f"unknown bits in {flags:#x}"),
        ("n_levels", not 1 <= n_levels <= min(n_splats, MAX_LEVELS), f"{n_levels:,} is impossible"),
        ("n_levels", n_levels > 1 and not flags & _SCORED, f"{n_levels:,}, and the order is not one of importance"),
        ("n_sections", n_sections != len(SECTIONS), f"{n_sections} is not {len(SECTIONS)}"),
        ("half_scale", not _HALF_SCALE[0] <= half_scale <= _HALF_SCALE[1], "out of range"),
        ("half_scale", math.frexp(half_scale)[0] != 0.5, "not a power of two"),
        ("radius", not 0 <= radius <= _MAX_LENGTH, "out of range"),
        ("center", not (np.abs(record["center"]) <= _MAX_LENGTH).all(), "out of range"),
        ("low", not np.isfinite(record["low"]).all(), "not finite"),
        ("high", not np.isfinite(record["high"]).all(), "not finite"),
        ("high", not (record["low"] <= record["high"]).all(), "below low"),
        ("sh_scales", not ((record["sh_scales"] >= 0) & (record["sh_scales"] <= _MAX_SH_SCALE)).all(), "out of range"),
        ("reserved", bool(record["reserved"].any()), "must be zeros"),
    ):
        if wrong:
            raise fault(name, why)

    sections = [
        Section(s["name"].decode("latin-1"), int(s["offset"]), int(s["n_bytes"]), s["sha256"].tobytes())
        for s in record["sections"]
    ]
    about_bytes = sections[-1].n_bytes
    if not 1 <= about_bytes <= MAX_ABOUT_BYTES:
        raise fault("sections[about].n_bytes", f"{about_bytes:,} is not 1 to {MAX_ABOUT_BYTES:,}")
    for section, (name, offset, n_bytes) in zip(sections, layout(n_splats, sh_degree, n_levels, about_bytes)):
        for field, value, right in (
            ("name", section.name, name), ("offset", section.offset, offset), ("n_bytes", section.n_bytes, n_bytes),
        ):  # fmt: skip
            if value != right:
                raise fault(f"sections[{name}].{field}", f"must be {right} for {n_splats:,} splats")
    end = sections[-1].offset + about_bytes
    if size < end:
        raise SceneError(
            f"{path}: ends at byte {size:,} of the {end:,} that its header promises; is the copy or download complete?"
        )
    if size > end:
        raise SceneError(f"{path}: {size - end:,} bytes follow the {end:,} of its header; copy or pack it again")
    source = record["source_sha256"].tobytes()
    return EgsHeader(
        n_splats, n_rows, sh_degree, n_levels,
        bool(flags & _SCORED), bool(flags & _ANTIALIASED), "z" if flags & _VERTICAL_Z else "y",
        half_scale, radius, record["center"].astype(np.float64), record["low"].astype(np.float32),
        record["high"].astype(np.float32), record["sh_scales"].astype(np.float32),
        source.hex() if any(source) else "", {section.name: section for section in sections},
        hashlib.sha256(page).hexdigest(),
    )  # fmt: skip


def _page(packed: PackedScene, sections: List[Section]) -> bytes:
    record = np.zeros(1, HEADER)
    flags = _SCORED * packed.is_scored + _ANTIALIASED * packed.antialiased + _VERTICAL_Z * (packed.vertical_axis == "z")
    values = {
        "magic": MAGIC, "version": VERSION, "header_bytes": PAGE, "needs": NEEDS,
        "n_splats": packed.n_splats, "n_rows": packed.n_rows, "sh_degree": packed.sh_degree, "flags": flags,
        "n_levels": len(packed.levels), "n_sections": len(sections), "half_scale": packed.half_scale,
        "radius": packed.radius, "center": packed.center, "low": packed.low, "high": packed.high,
        "sh_scales": packed.sh_scales,
        "source_sha256": np.frombuffer(bytes.fromhex(packed.file_sha256) or bytes(32), np.uint8),
    }  # fmt: skip
    for name, value in values.items():
        record[name] = value
    for slot, section in zip(record["sections"][0], sections):
        slot["name"], slot["offset"], slot["n_bytes"] = section.name.encode("ascii"), section.offset, section.n_bytes
        slot["sha256"] = np.frombuffer(section.sha256, np.uint8)
    record["crc32"] = zlib.crc32(record.tobytes()[:-4])
    return record.tobytes()


def _check(packed: PackedScene) -> None:
    """Raise ValueError unless the arrays are what ``PackedScene`` says, and the levels, too."""
    n, n_sh = packed.n_splats, 3 * (packed.sh_degree + 1) ** 2
    for name, shape, dtype in (
        ("means", (n, 3), np.float32), ("halves", (n, 8), np.float16), ("rows", (n,), np.uint32),
        ("sh_bytes", (n, -(-n_sh // 4) * 4), np.int8), ("sh_scales", (4, 3), np.float32),
    ):  # fmt: skip
        array = getattr(packed, name)
        if array.shape != shape or array.dtype != dtype:
            raise ValueError(f"PackedScene.{name} must be {np.dtype(dtype)} {shape}, not {array.dtype} {array.shape}")
    levels = packed.levels
    if n < 1 or not levels or levels[-1] != n or any(a >= b for a, b in zip((0, *levels), levels)):
        raise ValueError(f"PackedScene.levels must rise from 1 or more to {n}, not be {levels}")
    if packed.vertical_axis not in ("y", "z"):
        raise ValueError(f"PackedScene.vertical_axis must be y or z, not {packed.vertical_axis!r}")
