"""SPZ scenes, versions 1 to 4: bytes per attribute, attribute after attribute, compressed.

The file is gone through twice (see ``spz_streams.py``): once to check all of it, in constant memory, and once more
to decode it block by block, every attribute from its own place. So nothing is allocated for a file that is not
sound, and a reading takes no more memory than the scene and one block.
"""

from __future__ import annotations

import os
import struct
from typing import BinaryIO, List, NamedTuple, Optional

import numpy as np

from edgegs.errors import SceneError
from edgegs.scene.builder import RawBlock, SceneBuilder
from edgegs.scene.model import Scene
from edgegs.scene.reading import BLOCK_ROWS, DEGREE_4, LOGITS, Reading, Unchanged
from edgegs.scene.spz_streams import GzipContainer, ZstdContainer

MAGIC = b"NGSP"
VERSIONS = (1, 2, 3, 4)
_FIRST_PLAIN_VERSION = 4
_HEADER_BYTES = 16
_ANTIALIASED, _EXTENDED = 1, 2
_FILE_SH_DEGREE, _SH_DEGREE = 4, 3  # the highest that a file may have, and that edgegs draws
_MAX_FRACTIONAL_BITS = 31
_NAMES = ("positions", "alphas", "colours", "scales", "rotations", "spherical harmonics")

# Extension that says which axes the file has, and its values: 0 says "unspecified", and so the format's own.
_COORDINATE_SYSTEM = 0xADBE0003
_SYSTEMS = (
    "", "LDB", "RDB", "LUB", "RUB", "LDF", "RDF", "LUF", "RUF", "LBD", "RBD", "LBU", "RBU", "LFD", "RFD", "LFU", "RFU",
)  # fmt: skip

_OPTION = "`--frame rdf|rub` (in a configuration scene.frame)"

# What a byte stands for, float32.
_BYTES = np.arange(256, dtype=np.float64)
_COLOURS = ((_BYTES / 255 - 0.5) / 0.15).astype(np.float32)  # 0.15, not the 0.282 of the degree-0 harmonic
_LOG_SCALES = (_BYTES / 16 - 10).astype(np.float32)
_HARMONICS = ((_BYTES - 128) / 128).astype(np.float32)
_AXES = _BYTES / 127.5 - 1  # float64 until w is found: a small w takes it all
_FIELDS = np.arange(1024)  # ten bits: a sign, and nine of magnitude
_SMALLEST_THREE = np.where(_FIELDS & 512, -1.0, 1.0) * (_FIELDS & 511) * (np.sqrt(0.5) / 511)
# Where the three 10-bit fields, lowest first, go in (x, y, z, w) when the largest is component 0, 1, 2 or 3.
_FIELDS_TO = np.array([[3, 2, 1], [3, 2, 0], [3, 1, 0], [2, 1, 0]])


class _Header(NamedTuple):
    version: int
    n_rows: int
    sh_degree: int  # in the file, 0 to 4
    fractional_bits: int
    flags: int

    @property
    def row_bytes(self) -> List[int]:
        """Bytes a splat takes in each of the arrays; five of them without harmonics, else six."""
        sizes = [6 if self.version == 1 else 9, 1, 3, 3, 3 if self.version < 3 else 4]
        if self.sh_degree:
            sizes.append(3 * ((self.sh_degree + 1) ** 2 - 1))
        return sizes


def read_spz(file: BinaryIO, path: str, how: Reading) -> Scene:
    """Read an SPZ scene from an open unbuffered file; see ``edgegs.scene.load``.

    Version 4 needs the package zstandard. Without an extension that says otherwise its axes are right, up, back.
    """
    unchanged = Unchanged(file, path)
    head = os.pread(file.fileno(), len(MAGIC), 0)
    plain = head == MAGIC
    if not plain and head[:2] != b"\x1f\x8b":
        raise SceneError(f"{path}: not an SPZ scene: it begins neither as gzip does nor with 'NGSP'; export it again")
    container = (ZstdContainer if plain else GzipContainer)(file, path, unchanged.n_bytes)
    header = _parse_header(container.read_header(_HEADER_BYTES), path, plain)
    how.check_count(header.n_rows, path, "its header")

    def tick() -> None:
        how.report(0, header.n_rows)

    extensions = container.check(header.n_rows, header.row_bytes, _NAMES, bool(header.flags & _EXTENDED), tick)
    unchanged.check()
    warnings: List[str] = []
    frame = how.frame or _frame(extensions, path, warnings) or "rub"
    degree = min(header.sh_degree, _SH_DEGREE)
    if degree < header.sh_degree:
        warnings.append(DEGREE_4)
    unknown = header.flags & ~(_ANTIALIASED | _EXTENDED)
    if unknown:
        warnings.append(f"flags 0x{unknown:02x} of its header are unknown, and ignored")
    builder = SceneBuilder(
        path,
        f"spz v{header.version}",
        header.n_rows,
        degree,
        how.max_gaussians,
        antialiased=bool(header.flags & _ANTIALIASED),
        frame=frame,
    )
    for text in warnings:
        builder.warn(text)
    for start in range(0, header.n_rows, BLOCK_ROWS):
        n = min(BLOCK_ROWS, header.n_rows - start)
        arrays = []
        for i, n_bytes in enumerate(header.row_bytes):
            data = container.read(i, n * n_bytes)
            if len(data) != n * n_bytes:  # it was all there a moment ago
                unchanged.check()
                raise SceneError(f"{path}: its {_NAMES[i]} cannot be read twice; is the disk sound?")
            arrays.append(np.frombuffer(data, np.uint8).reshape(n, n_bytes))
        builder.add(_raw_block(header, degree, arrays))
        how.report(start + n, header.n_rows)
    unchanged.check()
    return builder.finish(container.sha256)


def _parse_header(head: bytes, path: str, plain: bool) -> _Header:
    """The first 16 bytes of the content; ``plain``: the file itself begins with them, and not in gzip."""
    if not head.startswith(MAGIC):
        raise SceneError(
            f"{path}: gzip data, but no SPZ scene: its content does not begin with 'NGSP'; if a scene of another "
            "kind is packed in it, run 'gunzip' first"
        )
    if len(head) < _HEADER_BYTES:
        raise SceneError(f"{path}: ends inside its header; is the copy or download complete?")
    version, n_rows, sh_degree, fractional_bits, flags = struct.unpack_from("<IIBBB", head, len(MAGIC))
    if version not in VERSIONS:
        raise SceneError(
            f"{path}: SPZ version {version}, and edgegs reads versions {VERSIONS[0]} to {VERSIONS[-1]}; "
            "export the scene as one of them"
        )
    if plain and version < _FIRST_PLAIN_VERSION:
        raise SceneError(
            f"{path}: SPZ version {version} that is not compressed: versions before 4 are one gzip stream; "
            "compress it with 'gzip', or export it again"
        )
    if not plain and version >= _FIRST_PLAIN_VERSION:
        raise SceneError(f"{path}: SPZ version {version} packed once more with gzip; run 'gunzip' first")
    if sh_degree > _FILE_SH_DEGREE:
        raise SceneError(f"{path}: its header says SH degree {sh_degree}, and SPZ has 0 to 4; export the scene again")
    if fractional_bits > _MAX_FRACTIONAL_BITS:
        raise SceneError(
            f"{path}: its header says {fractional_bits} fractional bits, and positions have 24 bits in all; "
            "export the scene again"
        )
    return _Header(version, n_rows, sh_degree, fractional_bits, flags)


def _frame(extensions: bytes, path: str, warnings: List[str]) -> Optional[str]:
    """The axes that an extension names, None when none does.

    Records of u32 type, u32 length, payload; the first that names axes counts. What cannot be read is ignored:
    extensions only ever add to a scene.
    """
    offset, end = 0, len(extensions)
    while end - offset >= 8:
        kind, n_bytes = struct.unpack_from("<II", extensions, offset)
        if n_bytes > end - offset - 8:
            break
        if kind == _COORDINATE_SYSTEM:
            return _axes(extensions[offset + 8 : offset + 8 + n_bytes], path, warnings)
        offset += 8 + n_bytes
    if offset < end:
        warnings.append("its extensions cannot be read, and are ignored")
    return None


def _axes(payload: bytes, path: str, warnings: List[str]) -> Optional[str]:
    value = int.from_bytes(payload, "little")
    if len(payload) != 4 or value >= len(_SYSTEMS):
        warnings.append(
            "its extension for the axes holds no known value; they are taken as right, up, back: if that is wrong, say "
            f"{_OPTION}"
        )
        return None
    name = _SYSTEMS[value]
    if name not in ("", "RUB", "RDF"):
        raise SceneError(
            f"{path}: its axes are {name} (an extension says so), and edgegs reads RUB (right, up, back) and RDF "
            f"(right, down, forward); convert the scene, or say which of the two to take it for: {_OPTION}"
        )
    return name.lower() or None


def _raw_block(header: _Header, degree: int, arrays: List[np.ndarray]) -> RawBlock:
    """(n, bytes) uint8 of each attribute to the arrays of a RawBlock, which are float32."""
    positions, alphas, colours, scales, rotations = arrays[:5]
    k = (degree + 1) ** 2
    sh = np.empty((len(alphas), k, 3), np.float32)
    sh[:, 0] = _COLOURS[colours]
    if k > 1:
        sh[:, 1:] = _HARMONICS[arrays[5][:, : 3 * (k - 1)]].reshape(-1, k - 1, 3)
    return RawBlock(
        _means_v1(positions) if header.version == 1 else _means(positions, header.fractional_bits),
        _LOG_SCALES[scales],
        _quats_v1(rotations) if header.version < 3 else _quats(rotations),
        LOGITS[alphas[:, 0]],
        sh,
    )


def _means_v1(positions: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(positions).view("<f2").astype(np.float32)


def _means(positions: np.ndarray, fractional_bits: int) -> np.ndarray:
    """(n, 3) float32, exact: three 24-bit integers in units of 2^-fractional_bits."""
    wide = np.zeros((len(positions), 3, 4), np.uint8)
    wide[:, :, 1:] = positions.reshape(-1, 3, 3)
    fixed = wide.view("<i4")[:, :, 0] >> 8  # keeps the sign
    return fixed.astype(np.float32) * np.float32(2.0**-fractional_bits)


def _quats_v1(rotations: np.ndarray) -> np.ndarray:
    """(n, 4) w first: x, y, z are stored, w is what is missing to a unit quaternion."""
    quats = np.empty((len(rotations), 4), np.float32)
    axes = _AXES[rotations]
    quats[:, 1:] = axes
    quats[:, 0] = np.sqrt(np.maximum(0, 1 - (axes**2).sum(axis=1)))
    return quats


def _quats(rotations: np.ndarray) -> np.ndarray:
    """(n, 4) w first: the three smallest are stored, and which of (x, y, z, w) is the largest."""
    packed = np.ascontiguousarray(rotations).view("<u4")[:, 0]
    largest = (packed >> 30).astype(np.intp)
    fields = np.stack([packed & 1023, (packed >> 10) & 1023, (packed >> 20) & 1023], axis=1)
    small = _SMALLEST_THREE[fields]
    rows = np.arange(len(packed))
    quats = np.empty((len(packed), 4), np.float32)
    quats[rows[:, None], _FIELDS_TO[largest]] = small
    quats[rows, largest] = np.sqrt(np.maximum(0, 1 - (small**2).sum(axis=1)))
    return quats[:, [3, 0, 1, 2]]
