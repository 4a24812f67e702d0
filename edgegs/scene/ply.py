"""3DGS scenes as PLY: ascii or binary, any property order, SH degree 0 to 4; and the writer.

plyfile turns the checked header into a dtype. The rows are read in blocks and not through plyfile's memory
map, for two reasons: a file cut short under a map kills the process (SIGBUS) where a short read is an error
message, and blocks bound the memory. Its text reader takes 30 times as long as NumPy's.
"""

from __future__ import annotations

import io
import os
import re
from typing import BinaryIO, Callable, Dict, Iterator, List, Sequence

import numpy as np
from plyfile import PlyData, PlyParseError

from edgegs.errors import SceneError
from edgegs.files import replacing
from edgegs.scene.builder import MIN_SIGMA, RawBlock, SceneBuilder
from edgegs.scene.model import Scene
from edgegs.scene.ply_header import MAX_HEADER_BYTES, Element, Header, clip, parse_header
from edgegs.scene.ply_layout import RGB, Layout, is_compressed, plain_layout
from edgegs.scene.reading import BLOCK_ROWS, SH_C0, HashingReader, Reading, Unchanged, refuse_holes

_ASCII_BLOCK_ROWS = 1 << 12
#: A block ends early at this many bytes: rows may be far longer than those of a scene.
_BLOCK_BYTES = 16 << 20
_MAX_LINE = 64 * 1024
_MAX_ROWS_BEFORE = 1_000_000
#: Bytes after the last row that are still hashed and warned about rather than refused.
_MAX_TAIL_BYTES = 1 << 28
_EXTRA = "after the {:,} splats that the header promises, {} are ignored"
_Columns = Dict[str, np.ndarray]  # property -> one value a row
_BYTE_ORDER = {"ascii": "=", "binary_little_endian": "<", "binary_big_endian": ">"}


def read_ply(file: BinaryIO, path: str, how: Reading) -> Scene:
    """Read a 3DGS PLY from an open unbuffered file; see ``edgegs.scene.load``."""
    unchanged = Unchanged(file, path)
    header = parse_header(os.pread(file.fileno(), MAX_HEADER_BYTES, 0), path)
    if is_compressed(header):
        from edgegs.scene.compressed_ply import read_compressed_ply

        return read_compressed_ply(file, path, how)
    layout = plain_layout(header, path)
    vertex = layout.vertex
    how.check_count(vertex.count, path, f"header line {vertex.line}")
    _check_size(file, header, vertex, unchanged.n_bytes, path)

    hashing = HashingReader(file)
    reader = io.BufferedReader(hashing, 1 << 16)
    _skip(reader, header.n_bytes)
    builder = SceneBuilder(
        path,
        f"ply {header.format}",
        vertex.count,
        layout.sh_degree,
        how.max_gaussians,
        layout.vertical_axis,
        layout.antialiased,
        how.frame or "rdf",
    )
    for warning in layout.warnings:
        builder.warn(warning)
    blocks = _ascii_blocks if header.format == "ascii" else _binary_blocks
    n_done = 0
    for columns in blocks(reader, header, vertex, path, builder.warn):
        builder.add(_raw_block(columns, layout))
        n_done += len(columns["x"])
        how.report(n_done, vertex.count)
    unchanged.check()
    return builder.finish(hashing.digest.hexdigest())


def _check_size(file: BinaryIO, header: Header, vertex: Element, size: int, path: str) -> None:
    """Compare the counts with the file's size and its holes; all numbers are Python ints."""
    before = [element for element in header.elements[: header.elements.index(vertex)] if element.properties]
    start = header.n_bytes
    if header.format == "ascii":
        n_before = sum(element.count for element in before)
        if n_before > _MAX_ROWS_BEFORE:
            raise SceneError(
                f"{path}: {n_before:,} rows of other elements come before the splats, and the limit is "
                f"{_MAX_ROWS_BEFORE:,}; write it as a binary PLY"
            )
        # A value takes a digit and a separator at least; the last separator may be missing.
        start += sum(2 * element.count * len(element.properties) for element in before)
        n_present = max(0, size - start + 1) // (2 * len(vertex.properties))
        end = size
    else:
        start += sum(element.count * element.row_bytes for element in before)
        n_present = max(0, size - start) // vertex.row_bytes
        end = start + vertex.count * vertex.row_bytes
    if n_present < vertex.count:
        raise SceneError(
            "{}: holds {}{:,} of the {:,} splats that header line {} promises; "
            "is the copy or download complete?".format(
                path, "at most " if header.format == "ascii" else "", n_present, vertex.count, vertex.line
            )
        )
    if size - end > _MAX_TAIL_BYTES:
        raise SceneError(
            f"{path}: {size - end:,} bytes follow the {vertex.count:,} splats that header line {vertex.line} "
            "promises; not a 3DGS scene"
        )
    refuse_holes(file, header.n_bytes, end, path)


def _dtype(header: Header, vertex: Element, path: str) -> np.dtype:
    """Let plyfile turn the vertex element, and nothing else of the header, into a NumPy dtype."""
    lines = ["ply", f"format {header.format} 1.0", "element vertex 0"]
    lines += [f"property {kind} {name}" for name, kind in vertex.properties.items()]
    stream = io.BytesIO("\n".join([*lines, "end_header", ""]).encode("ascii"))
    try:
        return PlyData.read(stream)["vertex"].dtype(_BYTE_ORDER[header.format])
    except (PlyParseError, ValueError, KeyError, OverflowError, MemoryError) as error:
        raise SceneError(f"{path}: plyfile refuses its header: {error}") from error


def _binary_blocks(
    reader: BinaryIO, header: Header, vertex: Element, path: str, warn: Callable[[str], None]
) -> Iterator[_Columns]:
    dtype = _dtype(header, vertex, path)
    for element in header.elements[: header.elements.index(vertex)]:
        _skip(reader, element.count * element.row_bytes)
    n_block = min(BLOCK_ROWS, _BLOCK_BYTES // dtype.itemsize)
    for start in range(0, vertex.count, n_block):
        n = min(n_block, vertex.count - start)
        data = reader.read(n * dtype.itemsize)
        if len(data) < n * dtype.itemsize:
            n_read = start + len(data) // dtype.itemsize
            raise SceneError(f"{path}: ends after {n_read:,} of {vertex.count:,} splats")
        rows = np.frombuffer(data, dtype)
        yield {name: rows[name] for name in vertex.properties}
    n_tail = _skip(reader, _MAX_TAIL_BYTES)  # all there is: see _check_size
    later = header.elements[header.elements.index(vertex) + 1 :]
    n_extra = n_tail - sum(element.count * element.row_bytes for element in later)
    if n_extra > 0 and not any(element.has_list for element in later):
        warn(_EXTRA.format(vertex.count, f"{n_extra:,} bytes"))


def _ascii_blocks(
    reader: BinaryIO, header: Header, vertex: Element, path: str, warn: Callable[[str], None]
) -> Iterator[_Columns]:
    text = _TextRows(reader, path)
    for element in header.elements[: header.elements.index(vertex)]:
        for row in range(element.count if element.properties else 0):
            text.row(element, row)
    start = 0
    while start < vertex.count:
        lines: List[str] = []
        room = _BLOCK_BYTES // 4  # NumPy's text reader takes a few times as much
        while room > 0 and len(lines) < min(_ASCII_BLOCK_ROWS, vertex.count - start):
            lines.append(text.row(vertex, start + len(lines)))
            room -= len(lines[-1])
        values = _ascii_values(lines, start, len(vertex.properties), path)
        yield {name: values[:, i] for i, name in enumerate(vertex.properties)}
        start += len(lines)
    if text.more() and header.elements[-1] is vertex:
        warn(_EXTRA.format(vertex.count, "further lines"))


class _TextRows:
    """The rows of a text file. Blank lines between them count for nothing, but not without end."""

    def __init__(self, reader: BinaryIO, path: str) -> None:
        # Latin-1 never fails, and universal newlines cover CRLF and lone CR.
        self._text = io.TextIOWrapper(reader, encoding="latin-1", newline=None)
        self._path = path
        self._n_blank_left = 1000

    def row(self, element: Element, row: int) -> str:
        """The next line that is not blank; ``element`` and ``row`` are for messages."""
        while True:
            line = self._text.readline(_MAX_LINE)
            if not line:
                raise SceneError(
                    f"{self._path}: ends after {row:,} of {element.count:,} rows of element {clip(element.name)}; "
                    "is the copy or download complete?"
                )
            if len(line) >= _MAX_LINE:
                raise SceneError(f"{self._path}: row {row:,} of element {clip(element.name)} is over 64 KiB")
            if not line.isspace():
                self._n_blank_left += 4
                return line
            self._n_blank_left -= 1
            if self._n_blank_left < 0:
                name = clip(element.name)
                raise SceneError(f"{self._path}: little but blank lines before row {row:,} of element {name}")

    def more(self) -> bool:
        """Read to the end, for the digest: is there anything but blanks?"""
        found, n_read = False, 0
        for piece in iter(lambda: self._text.read(_MAX_LINE), ""):
            found = found or not piece.isspace()
            n_read += len(piece)
            if n_read > _MAX_TAIL_BYTES:
                raise SceneError(f"{self._path}: over {n_read - 1:,} bytes follow the last splat; not a 3DGS scene")
        return found


def _ascii_values(lines: List[str], start: int, n_columns: int, path: str) -> np.ndarray:
    """(n, n_columns) float64. Float64 also for "float" columns, so that 1e39 is seen, not made infinite."""
    try:
        values = np.loadtxt(lines, dtype=np.float64, comments=None, ndmin=2)
        if values.shape == (len(lines), n_columns):
            return values
    except ValueError:
        pass
    for i, line in enumerate(lines):  # find the row to name; only ever run on a bad file
        words = line.split()
        if len(words) != n_columns:
            raise SceneError(
                f"{path}: row {start + i:,} has {len(words)} values, and the header declares {n_columns} properties"
            )
        for word in words:
            if not re.fullmatch(r"[-+]?(inf(inity)?|nan|(\d+\.?\d*|\.\d+)(e[-+]?\d+)?)", word, re.IGNORECASE):
                raise SceneError(f"{path}: row {start + i:,}: {word[:40]!a} is not a number")
    last = start + len(lines) - 1
    raise SceneError(f"{path}: rows {start:,} to {last:,} cannot be read as numbers")


def _skip(reader: BinaryIO, n_bytes: int) -> int:
    """Read and forget at most ``n_bytes``, for the digest; returns how many there were."""
    n_skipped = 0
    while n_skipped < n_bytes:
        data = reader.read(min(1 << 20, n_bytes - n_skipped))
        if not data:
            break
        n_skipped += len(data)
    return n_skipped


def _raw_block(columns: _Columns, layout: Layout) -> RawBlock:
    """Columns by name to the arrays of a RawBlock; f_rest is channel-major in the file."""
    columns = dict(columns)
    if layout.flat:
        columns["scale_2"] = np.full(len(columns["x"]), -np.inf, np.float32)
    for c, name in enumerate(RGB if layout.rgb else ()):
        columns[f"f_dc_{c}"] = (columns[name] / 255 - 0.5) / SH_C0
    k_rest = (layout.sh_degree + 1) ** 2 - 1
    sh_names = [f"f_dc_{c}" for c in range(3)]
    sh_names += [f"f_rest_{c * (layout.n_rest // 3) + k}" for k in range(k_rest) for c in range(3)]
    return RawBlock(
        _stack(columns, ["x", "y", "z"]),
        _stack(columns, ["scale_0", "scale_1", "scale_2"]),
        _stack(columns, ["rot_0", "rot_1", "rot_2", "rot_3"]),
        _stack(columns, ["opacity"])[:, 0],
        _stack(columns, sh_names).reshape(-1, k_rest + 1, 3),
    )


def _stack(columns: _Columns, names: List[str]) -> np.ndarray:
    """(n, len(names)) float32, or float64 where a column could not be held in float32."""
    wide = any(np.promote_types(columns[name].dtype, np.float32) == np.float64 for name in names)
    stacked = np.empty((len(columns[names[0]]), len(names)), np.float64 if wide else np.float32)
    with np.errstate(invalid="ignore"):  # a signalling NaN is a NaN like any other
        for i, name in enumerate(names):
            stacked[:, i] = columns[name]
    return stacked


def write_ply(path: str, scene: Scene, comments: Sequence[str] = ()) -> None:
    """Write the standard 3DGS PLY: binary little-endian float32, in the order Inria's trainer writes.

    Opacity goes back to its logit and sigma to its logarithm; comments carry the vertical axis and, of an antialiased
    scene, "SplatRenderMode: mip", as Brush writes it. The file appears complete or not at all.

    Args:
        comments: header comment lines, ASCII, without line ends.

    Raises:
        OutputError: the file cannot be created or written. AccessError: no permission.
    """
    k_rest = (scene.sh_degree + 1) ** 2 - 1
    names = ["x", "y", "z", "nx", "ny", "nz", "f_dc_0", "f_dc_1", "f_dc_2"]
    names += [f"f_rest_{i}" for i in range(3 * k_rest)]
    names += ["opacity", "scale_0", "scale_1", "scale_2", "rot_0", "rot_1", "rot_2", "rot_3"]
    lines = ["ply", "format binary_little_endian 1.0"]
    mode = ["SplatRenderMode: mip"] if scene.antialiased else []
    lines += [f"comment {comment}" for comment in (*comments, f"Vertical axis: {scene.vertical_axis}", *mode)]
    lines += [f"element vertex {scene.n_splats}"]
    lines += [f"property float {name}" for name in names] + ["end_header", ""]
    with replacing(path) as file:
        file.write("\n".join(lines).encode("ascii"))
        for start in range(0, scene.n_splats, BLOCK_ROWS):
            file.write(_rows(scene, slice(start, start + BLOCK_ROWS), len(names)))


def _rows(scene: Scene, part: slice, n_columns: int) -> bytes:
    opacities = scene.opacities[part].astype(np.float64)
    rows = np.zeros((len(opacities), n_columns), "<f4")
    rows[:, 0:3] = scene.means[part]
    rows[:, 6:9] = scene.sh[part, 0]
    rows[:, 9:-8] = scene.sh[part, 1:].transpose(0, 2, 1).reshape(len(opacities), -1)
    rows[:, -8] = np.log(opacities) - np.log1p(-opacities)
    rows[:, -7:-4] = np.log(np.maximum(scene.scales[part].astype(np.float64), MIN_SIGMA))
    rows[:, -4:] = scene.quats[part]
    return rows.tobytes()
