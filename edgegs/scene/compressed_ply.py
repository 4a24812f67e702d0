"""SuperSplat's compressed PLY: 16 bytes a splat, within bounds that 256 neighbours share, and a byte an SH coefficient.

Three elements: "chunk" holds the bounds of each 256 splats, "vertex" four packed words a splat, "sh" (optional) the
higher bands as bytes. The SH of a splat lie behind all vertices; so the file is read once in order for its digest, and
then a block at a time from two places, and never whole.
"""

from __future__ import annotations

import hashlib
import os
from typing import BinaryIO, Dict, Sequence

import numpy as np

from edgegs.errors import SceneError
from edgegs.scene.builder import RawBlock, SceneBuilder
from edgegs.scene.model import Scene
from edgegs.scene.ply_header import MAX_HEADER_BYTES, TYPE_BYTES, Element, Header, parse_header
from edgegs.scene.ply_layout import CHUNK_ROWS, PACKED, CompressedLayout, compressed_layout
from edgegs.scene.reading import BLOCK_ROWS, LOGITS, SH_C0, Reading, Unchanged, add_file, refuse_holes

_BLOCK_BYTES = 16 << 20
#: Byte of "sh" -> coefficient, -4 to 4.
_COEFFICIENTS = ((np.array([0, *(np.arange(1, 255) + 0.5), 256]) / 256 - 0.5) * 8).astype(np.float32)
#: Index of the largest component of (w, x, y, z) -> where it and the three that are stored belong.
_PLACES = np.array([[0, 1, 2, 3], [1, 0, 2, 3], [2, 0, 1, 3], [3, 0, 1, 2]])


def read_compressed_ply(file: BinaryIO, path: str, how: Reading) -> Scene:
    """Read a compressed PLY from an open unbuffered file; see ``edgegs.scene.load``."""
    unchanged = Unchanged(file, path)
    header = parse_header(os.pread(file.fileno(), MAX_HEADER_BYTES, 0), path)
    layout = compressed_layout(header, path)
    n = layout.vertex.count
    how.check_count(n, path, f"header line {layout.vertex.line}")
    starts = _check_size(file, header, unchanged.n_bytes, path)

    digest = hashlib.sha256()
    add_file(digest, file, unchanged.n_bytes)
    builder = SceneBuilder(
        path,
        "compressed.ply",
        n,
        layout.sh_degree,
        how.max_gaussians,
        layout.vertical_axis,
        layout.antialiased,
        how.frame or "rdf",
    )
    for warning in layout.warnings:
        builder.warn(warning)

    elements = [layout.vertex, *([layout.sh] if layout.sh else [])]
    n_block = min(BLOCK_ROWS, *(_BLOCK_BYTES // element.row_bytes for element in elements))
    n_block -= n_block % CHUNK_ROWS  # and never 0: a row is 2 KiB at most

    def columns(element: Element, names: Sequence[str], kind: str, start: int, stop: int) -> np.ndarray:
        data = _read(file, starts[element.name] + start * element.row_bytes, (stop - start) * element.row_bytes, path)
        return _columns(data, element, names, kind)

    rest_names = [f"f_rest_{i}" for i in range(layout.n_rest)]
    for start in range(0, n, n_block):
        stop = min(n, start + n_block)
        bounds = columns(layout.chunk, layout.bounds, "<f4", start // CHUNK_ROWS, -(-stop // CHUNK_ROWS))
        packed = columns(layout.vertex, PACKED, "<u4", start, stop)
        rest = np.empty((stop - start, 0), np.uint8)
        if layout.sh is not None:
            rest = columns(layout.sh, rest_names, "u1", start, stop)
        builder.add(_raw_block(bounds, packed, rest, layout))
        how.report(stop, n)
    unchanged.check()
    return builder.finish(digest.hexdigest())


def _check_size(file: BinaryIO, header: Header, size: int, path: str) -> Dict[str, int]:
    """Offset of each element's first row, once the header's counts add up to the file's size, to the byte."""
    starts = {}
    end = header.n_bytes
    for element in header.elements:
        starts[element.name] = end
        end += element.count * element.row_bytes
    if size < end:
        raise SceneError(
            f"{path}: holds {size:,} of the {end:,} bytes that its header promises; is the copy or download complete?"
        )
    if size > end:  # were a count too low, what follows it would be read from the wrong place
        raise SceneError(
            f"{path}: {size - end:,} bytes more than its header promises: a count is wrong, or something was "
            "appended; export it again"
        )
    refuse_holes(file, header.n_bytes, end, path)
    return starts


def _read(file: BinaryIO, offset: int, n_bytes: int, path: str) -> bytes:
    data = os.pread(file.fileno(), n_bytes, offset)
    if len(data) < n_bytes:
        raise SceneError(f"{path}: ends at byte {offset + len(data):,}: it was cut while it was read")
    return data


def _columns(data: bytes, element: Element, names: Sequence[str], kind: str) -> np.ndarray:
    """Rows of an element to (n, len(names)) of the NumPy type ``kind``, which all of the names have."""
    offsets: Dict[str, int] = {}
    end = 0
    for name, ply_type in element.properties.items():
        offsets[name] = end
        end += TYPE_BYTES[ply_type]
    dtype = np.dtype(
        {"names": list(names), "formats": [kind] * len(names), "offsets": [offsets[n] for n in names], "itemsize": end}
    )
    rows = np.frombuffer(data, dtype)
    out = np.empty((len(rows), len(names)), kind)
    for i, name in enumerate(names):
        out[:, i] = rows[name]
    return out


def _raw_block(bounds: np.ndarray, packed: np.ndarray, rest: np.ndarray, layout: CompressedLayout) -> RawBlock:
    """Decode a block that starts at a chunk; in float64, as other programs do, and float32 in the end.

    Args:
        bounds: (ceil(n / 256), 12 or 18) float32. packed: (n, 4) uint32. rest: (n, n_rest) uint8.
    """
    n = len(packed)
    # -inf is legal (a flat splat), but -inf · 0 is no number.
    with np.errstate(invalid="ignore"):  # a signalling NaN is a NaN like any other
        wide = bounds.astype(np.float64)
    wide[:, 6:12] = np.maximum(wide[:, 6:12], np.finfo(np.float32).min)
    wide = np.repeat(wide, CHUNK_ROWS, axis=0)[:n]
    position, rotation, scale, colour = packed.T
    rgb = _bits(colour, (24, 16, 8), (8, 8, 8))
    k_rest = (layout.sh_degree + 1) ** 2 - 1
    sh = np.empty((n, k_rest + 1, 3), np.float32)
    with np.errstate(all="ignore"):  # bounds that are no numbers: the builder counts such rows
        if wide.shape[1] > 12:
            rgb = _between(wide[:, 12:], rgb)
        sh[:, 0] = (rgb - 0.5) / SH_C0
        means = _between(wide[:, :6], _bits(position, (21, 11, 0), (11, 10, 11))).astype(np.float32)
        log_scales = _between(wide[:, 6:12], _bits(scale, (21, 11, 0), (11, 10, 11))).astype(np.float32)
    sh[:, 1:] = _COEFFICIENTS[rest].reshape(n, 3, -1)[:, :, :k_rest].transpose(0, 2, 1)
    return RawBlock(means, log_scales, _quats(rotation), LOGITS[colour & 255], sh)


def _bits(words: np.ndarray, shifts: Sequence[int], widths: Sequence[int]) -> np.ndarray:
    """(n,) uint32 to (n, 3) float64, 0 to 1: fields of ``widths`` bits whose lowest is bit ``shifts``."""
    fields = [((words >> shift) & ((1 << width) - 1)) / ((1 << width) - 1) for shift, width in zip(shifts, widths)]
    return np.stack(fields, axis=1)


def _between(bounds: np.ndarray, t: np.ndarray) -> np.ndarray:
    """(n, 6) lowest and highest, and (n, 3) 0 to 1, to (n, 3)."""
    return bounds[:, :3] * (1 - t) + bounds[:, 3:] * t


def _quats(words: np.ndarray) -> np.ndarray:
    """(n,) uint32 to (n, 4) float64, w first: three of 10 bits, and which component is the largest, left out."""
    small = (_bits(words, (20, 10, 0), (10, 10, 10)) - 0.5) * np.sqrt(2)
    largest = np.sqrt(np.maximum(0, 1 - (small * small).sum(axis=1)))
    quats = np.empty((len(words), 4))
    np.put_along_axis(quats, _PLACES[words >> 30], np.column_stack([largest, small]), axis=1)
    return quats
