"""3DGS scenes as PLY: ascii or binary, any property order, SH degree 0 to 3; and the writer.

plyfile turns the checked header into a dtype. The rows are read in blocks and not through plyfile's memory
map, for two reasons: a file cut short under a map kills the process (SIGBUS) where a short read is an error
message, and blocks bound the memory. Its text reader takes 30 times as long as NumPy's.
"""

from __future__ import annotations

import io
import os
import re
import stat
import tempfile
from typing import BinaryIO, Callable, Dict, Iterator, List, Optional, Sequence

import numpy as np
from plyfile import PlyData, PlyParseError

from edgegs.errors import AccessError, OutputError, SceneError
from edgegs.scene.builder import MIN_SIGMA, RawBlock, SceneBuilder
from edgegs.scene.model import Scene
from edgegs.scene.ply_header import MAX_HEADER_BYTES, Element, Header, clip, parse_header
from edgegs.scene.ply_layout import check_layout, vertical_axis
from edgegs.scene.reading import BLOCK_ROWS, HashingReader, Reading, Unchanged

_ASCII_BLOCK_ROWS = 1 << 12
_MAX_LINE = 64 * 1024
#: Bytes after the last row that are still hashed and warned about rather than refused.
_MAX_TAIL_BYTES = 1 << 28
_EXTRA = "after the {:,} splats that the header promises, {} are ignored"
_Columns = Dict[str, np.ndarray]  # property -> one value a row
_BYTE_ORDER = {"ascii": "=", "binary_little_endian": "<", "binary_big_endian": ">"}


def read_ply(file: BinaryIO, path: str, how: Reading) -> Scene:
    """Read a 3DGS PLY from an open unbuffered file; see ``edgegs.scene.load``."""
    unchanged = Unchanged(file, path)
    header = parse_header(os.pread(file.fileno(), MAX_HEADER_BYTES, 0), path)
    vertex, sh_degree = check_layout(header, path)
    _check_size(file, header, vertex, unchanged.n_bytes, path, how.cap)

    hashing = HashingReader(file)
    reader = io.BufferedReader(hashing, 1 << 16)
    _skip(reader, header.n_bytes)
    builder = SceneBuilder(
        path,
        f"ply {header.format}",
        vertex.count,
        sh_degree,
        how.max_gaussians,
        vertical_axis(header.comments),
        frame=how.frame or "rdf",
    )
    blocks = _ascii_blocks if header.format == "ascii" else _binary_blocks
    n_done = 0
    for columns in blocks(reader, header, vertex, path, builder.warn):
        builder.add(_raw_block(columns, sh_degree))
        n_done += len(columns["x"])
        how.report(n_done, vertex.count)
    unchanged.check()
    return builder.finish(hashing.digest.hexdigest())


def _check_size(file: BinaryIO, header: Header, vertex: Element, size: int, path: str, cap: int) -> None:
    """Compare the counts with the cap, the file's size and its holes; all numbers are Python ints."""
    if vertex.count == 0:
        raise SceneError(f"{path}: header line {vertex.line}: a scene of zero splats")
    if vertex.count > cap:
        raise SceneError(
            f"{path}: header line {vertex.line} promises {vertex.count:,} splats, and the limit is "
            f"{cap:,}; reduce the scene first"
        )
    start = header.n_bytes
    if header.format == "ascii":
        # A value takes a digit and a separator at least; the last separator may be missing.
        n_present = (size - start + 1) // (2 * len(vertex.properties))
        end = size
    else:
        for element in header.elements[: header.elements.index(vertex)]:
            start += element.count * element.row_bytes
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
    hole = _first_hole(file, start)
    if hole is not None and hole < end:
        raise SceneError(
            f"{path}: a sparse file: nothing was ever written at byte {hole:,} of {size:,}; "
            "is the copy or download complete?"
        )


def _first_hole(file: BinaryIO, start: int) -> Optional[int]:
    """Offset of the first hole at or after ``start``; None where the system cannot tell."""
    try:
        return os.lseek(file.fileno(), start, os.SEEK_HOLE)
    except (OSError, AttributeError):
        return None
    finally:
        os.lseek(file.fileno(), 0, os.SEEK_SET)


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
    for start in range(0, vertex.count, BLOCK_ROWS):
        n = min(BLOCK_ROWS, vertex.count - start)
        data = reader.read(n * dtype.itemsize)
        if len(data) < n * dtype.itemsize:
            n_read = start + len(data) // dtype.itemsize
            raise SceneError(f"{path}: ends after {n_read:,} of {vertex.count:,} splats")
        rows = np.frombuffer(data, dtype)
        yield {name: rows[name] for name in vertex.properties}
    n_tail = _skip(reader, None)
    later = header.elements[header.elements.index(vertex) + 1 :]
    n_extra = n_tail - sum(element.count * element.row_bytes for element in later)
    if n_extra > 0 and not any(element.has_list for element in later):
        warn(_EXTRA.format(vertex.count, f"{n_extra:,} bytes"))


def _ascii_blocks(
    reader: BinaryIO, header: Header, vertex: Element, path: str, warn: Callable[[str], None]
) -> Iterator[_Columns]:
    # Latin-1 never fails, and universal newlines cover CRLF and lone CR.
    text = io.TextIOWrapper(reader, encoding="latin-1", newline=None)
    for element in header.elements[: header.elements.index(vertex)]:
        for row in range(element.count if element.properties else 0):
            _ascii_line(text, path, element, row)
    for start in range(0, vertex.count, _ASCII_BLOCK_ROWS):
        n = min(_ASCII_BLOCK_ROWS, vertex.count - start)
        lines = [_ascii_line(text, path, vertex, start + i) for i in range(n)]
        values = _ascii_values(lines, start, len(vertex.properties), path)
        yield {name: values[:, i] for i, name in enumerate(vertex.properties)}
    extra = False
    for piece in iter(lambda: text.read(_MAX_LINE), ""):
        extra = extra or not piece.isspace()
    if extra and header.elements[-1] is vertex:
        warn(_EXTRA.format(vertex.count, "further lines"))


def _ascii_line(text: io.TextIOWrapper, path: str, element: Element, row: int) -> str:
    while True:
        line = text.readline(_MAX_LINE)
        if not line:
            raise SceneError(
                f"{path}: ends after {row:,} of {element.count:,} rows of element {clip(element.name)}; "
                "is the copy or download complete?"
            )
        if len(line) >= _MAX_LINE:
            raise SceneError(f"{path}: row {row:,} of element {clip(element.name)} is over 64 KiB")
        if not line.isspace():
            return line


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


def _skip(reader: BinaryIO, n_bytes: Optional[int]) -> int:
    """Read and forget ``n_bytes`` (None: everything left), for the digest; returns how many there were."""
    n_skipped = 0
    while n_bytes is None or n_skipped < n_bytes:
        n_wanted = 1 << 20 if n_bytes is None else min(1 << 20, n_bytes - n_skipped)
        data = reader.read(n_wanted)
        if not data:
            break
        n_skipped += len(data)
    return n_skipped


def _raw_block(columns: _Columns, sh_degree: int) -> RawBlock:
    """Columns by name to the arrays of a RawBlock; f_rest is channel-major in the file."""
    k_rest = (sh_degree + 1) ** 2 - 1
    sh_names = [f"f_dc_{c}" for c in range(3)]
    sh_names += [f"f_rest_{c * k_rest + k}" for k in range(k_rest) for c in range(3)]
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
    for i, name in enumerate(names):
        stacked[:, i] = columns[name]
    return stacked


def write_ply(path: str, scene: Scene, comments: Sequence[str] = ()) -> None:
    """Write the standard 3DGS PLY: binary little-endian float32, in the order Inria's trainer writes.

    Opacity goes back to its logit and sigma to its logarithm. The file appears complete or not at all.

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
    lines += [f"comment {comment}" for comment in (*comments, f"Vertical axis: {scene.vertical_axis}")]
    lines += [f"element vertex {scene.n_splats}"]
    lines += [f"property float {name}" for name in names] + ["end_header", ""]
    check_output(path)
    target = os.path.realpath(path)
    folder, name = os.path.split(target)
    temporary = ""
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=f".{name}.", suffix=".part", dir=folder)
        with os.fdopen(descriptor, "wb") as file:
            file.write("\n".join(lines).encode("ascii"))
            for start in range(0, scene.n_splats, BLOCK_ROWS):
                file.write(_rows(scene, slice(start, start + BLOCK_ROWS), len(names)))
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, target)
    except OSError as error:
        if temporary and os.path.exists(temporary):
            os.unlink(temporary)
        kind = AccessError if isinstance(error, PermissionError) else OutputError
        raise kind(f"{path}: cannot be written: {error.strerror or error}") from error
    except BaseException:
        if temporary and os.path.exists(temporary):
            os.unlink(temporary)
        raise


def check_output(path: str) -> None:
    """Raise OutputError or AccessError now if a file cannot be written there, before the work and not after."""
    target = os.path.realpath(path)
    folder = os.path.dirname(target)
    effective = os.access in os.supports_effective_ids
    try:
        if not stat.S_ISDIR(os.stat(folder).st_mode):
            raise OutputError(f"{path}: {folder} is not a folder")
    except FileNotFoundError as error:
        raise OutputError(f"{path}: there is no folder {folder}; create it first") from error
    except PermissionError as error:
        raise AccessError(f"{path}: no permission to look into {folder}") from error
    except (OSError, ValueError) as error:
        raise OutputError(f"{path}: cannot be written: {getattr(error, 'strerror', None) or error}") from error
    if os.path.isdir(target):
        raise OutputError(f"{path}: is a directory; name a file in it")
    if os.path.lexists(target) and not os.path.isfile(target):
        # Renaming over it would replace /dev/null or a FIFO by a file.
        raise OutputError(f"{path}: exists and is not a regular file; name another output")
    if not os.access(folder, os.W_OK | os.X_OK, effective_ids=effective):
        raise AccessError(f"{path}: no permission to write in {folder}")


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


def _umask() -> int:
    """The process's umask, which can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
