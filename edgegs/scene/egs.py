"""Packed scenes (.egs; see edgegs/pack/egs.py and docs/egs.md): nothing is decoded, the file holds the arrays.

The sections are read into fresh arrays and not mapped: a file that is cut short under a map (an interrupted copy over
it, a full disk, a card pulled out) kills the process with SIGBUS, where a short read is an error message. Reading 40 MB
costs milliseconds, and the pages of the file's cache can go where those of a map in use cannot.
"""

from __future__ import annotations

import hashlib
import os
from typing import BinaryIO, Callable, Iterator, List, NamedTuple, Optional, Tuple

import numpy as np

from edgegs.errors import SceneError
from edgegs.pack.about import About, decode_about
from edgegs.pack.egs import PAGE, VERSION, EgsHeader, Section, parse_header
from edgegs.pack.order import cut_levels, left_out, no_importance
from edgegs.pack.packed import PackedScene
from edgegs.scene.builder import check_memory
from edgegs.scene.reading import Reading, Unchanged, refuse_holes

_BLOCK_BYTES = 4 << 20


class EgsInfo(NamedTuple):
    """What a packed file says of itself, without its splats."""

    header: EgsHeader
    levels: Tuple[int, ...]
    about: About


def read_egs(file: BinaryIO, path: str, how: Reading) -> PackedScene:
    """Read a packed scene, or the prefix of it that ``how.max_gaussians`` asks for and no byte of the others.

    The sections' checksums are not looked at (see ``verify``): no value of theirs can hurt a kernel, and every number
    that steers anything is checked. ``file_sha256`` is that of the header page, which holds a digest of every section;
    ``format`` is "egs" and the version, the source's own is in ``read_info``; the bounds are those of the whole file.

    Raises:
        SceneError: damaged, cut short, of a newer version, too large, or without the order that a budget needs.
    """
    unchanged = Unchanged(file, path)
    header = _header(file, path, unchanged.n_bytes)
    how.check_count(header.n_splats, path, "the header")
    if how.frame not in (None, "rdf"):
        raise SceneError(f"{path}: packed scenes are always 'rdf'; give frame {how.frame!r} when the scene is packed")
    n = header.n_splats
    if how.max_gaussians is not None and how.max_gaussians < n:
        n = how.max_gaussians
        if not header.is_scored:
            raise no_importance(path, n, header.n_splats)
    levels, about = _small_sections(file, path, header)
    halves = header.sections["halves"]  # which hold the quaternions: those are never zero
    refuse_holes(file, halves.offset, halves.offset + 16 * n, path)

    sections = header.sections
    n_sh_bytes = sections["sh"].n_bytes // header.n_splats
    total = n * (12 + 16 + n_sh_bytes + 4)
    check_memory(path, n, total, "set scene.max_gaussians, or pack it smaller")
    arrays = {
        "means": np.empty((n, 3), "<f4"),
        "halves": np.empty((n, 8), "<f2"),
        "sh": np.empty((n, n_sh_bytes), np.int8),
        "rows": np.empty(n, "<u4"),
    }
    done = 0
    for name, array in arrays.items():
        for n_bytes in _read_blocks(file, path, sections[name], array):
            done += n_bytes
            how.report(n * done // total, n)
    if int(arrays["rows"].max()) >= header.n_rows:
        raise SceneError(f"{path}: section rows: one is beyond the source's {header.n_rows:,}; pack the scene again")
    unchanged.check()
    warnings = list(about.warnings)
    if n < header.n_splats:
        warnings.append(left_out(n, header.n_splats))
    return PackedScene(
        arrays["means"], arrays["halves"], arrays["sh"], header.sh_scales, header.half_scale, arrays["rows"],
        header.sh_degree, cut_levels(levels, n), header.is_scored,
        header.center, header.radius, header.low, header.high,
        path, f"egs {VERSION}", header.n_rows, dict(about.dropped), warnings, header.sha256,
        header.vertical_axis, header.antialiased,
    )  # fmt: skip


def read_info(file: BinaryIO, path: str) -> EgsInfo:
    """The header, the levels and what the packer wrote about the scene; raises SceneError."""
    header = _header(file, path, os.fstat(file.fileno()).st_size)
    return EgsInfo(header, *_small_sections(file, path, header))


def read_chunks(file: BinaryIO, path: str) -> np.ndarray:
    """(ceil(N / 256), 7) float32: ``chunk_bounds`` of the whole file, as stored; raises SceneError."""
    header = _header(file, path, os.fstat(file.fileno()).st_size)
    section = header.sections["chunks"]
    chunks = np.empty((section.n_bytes // 28, 7), "<f4")
    for _ in _read_blocks(file, path, section, chunks):
        pass
    return chunks


def verify(file: BinaryIO, path: str, progress: Optional[Callable[[int, int], None]] = None) -> EgsHeader:
    """Read the whole file and compare every byte with its checksum.

    Args:
        progress: called as ``progress(bytes_done, n_bytes)``.

    Raises:
        SceneError: naming the sections that are damaged.
    """
    unchanged = Unchanged(file, path)
    header = _header(file, path, unchanged.n_bytes)
    damaged: List[str] = []
    position = PAGE
    block = np.empty(_BLOCK_BYTES, np.uint8)
    for section in header.sections.values():
        padding = np.empty(section.offset - position, np.uint8)
        _read_exactly(file, path, padding, position, section.name)
        digest = hashlib.sha256()
        for start in range(0, section.n_bytes, _BLOCK_BYTES):
            part = block[: section.n_bytes - start]
            _read_exactly(file, path, part, section.offset + start, section.name)
            digest.update(part.data)
            if progress is not None:
                progress(section.offset + start + len(part), unchanged.n_bytes)
        if digest.digest() != section.sha256 or padding.any():
            damaged.append(section.name)
        position = section.offset + section.n_bytes
    unchanged.check()
    if damaged:
        raise SceneError(f"{path}: damaged: checksum of {', '.join(damaged)}; copy or pack the scene again")
    _small_sections(file, path, header)
    return header


def _header(file: BinaryIO, path: str, size: int) -> EgsHeader:
    return parse_header(os.pread(file.fileno(), PAGE, 0), size, path)


def _small_sections(file: BinaryIO, path: str, header: EgsHeader) -> Tuple[Tuple[int, ...], About]:
    blob = np.empty(header.sections["about"].n_bytes, np.uint8)
    _read_exactly(file, path, blob, header.sections["about"].offset, "about")
    about = decode_about(blob.tobytes(), header.n_rows, path)
    ends = np.empty(header.n_levels, "<u8")
    _read_exactly(file, path, ends, header.sections["levels"].offset, "levels")
    levels = tuple(int(end) for end in ends)
    if levels[-1] != header.n_splats or any(a >= b for a, b in zip((0, *levels), levels)):
        raise SceneError(
            f"{path}: section levels: its counts do not rise to the {header.n_splats:,} splats; pack the scene again"
        )
    return levels, about


def _read_blocks(file: BinaryIO, path: str, section: Section, array: np.ndarray) -> Iterator[int]:
    """Fill an array from the beginning of a section; yields the bytes of each block that was read."""
    data = array.reshape(-1).view(np.uint8)
    for start in range(0, len(data), _BLOCK_BYTES):
        part = data[start : start + _BLOCK_BYTES]
        _read_exactly(file, path, part, section.offset + start, section.name)
        yield len(part)


def _read_exactly(file: BinaryIO, path: str, array: np.ndarray, offset: int, name: str) -> None:
    left = array.reshape(-1).view(np.uint8).data
    while left:
        n = os.preadv(file.fileno(), [left], offset)
        if not n:
            raise SceneError(f"{path}: ends inside section {name}, at byte {offset:,}; try again once it is written")
        left, offset = left[n:], offset + n
