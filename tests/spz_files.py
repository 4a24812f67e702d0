"""Hand-made SPZ files: a splat at a time, from the format's description; right ones, and the parts of wrong ones."""

from __future__ import annotations

import math
import struct
import zlib
from typing import Dict, List, Optional, Sequence, Tuple

import numpy as np
import pytest

Arrays = List[bytes]  # positions, alphas, colours, scales, rotations and, above degree 0, harmonics

#: From x right, y up, z back to x right, y down, z forward: signs of the 16 harmonics, by l and m.
TURN_SH = [1, -1, -1, 1, -1, 1, 1, -1, 1, -1, 1, -1, -1, 1, -1, 1]


def random_splats(n: int, degree: int, seed: int = 0) -> Dict[str, np.ndarray]:
    """Values (right, up, back) that every version can hold exactly, but for the rotations."""
    rng = np.random.default_rng(seed)
    quats = rng.normal(0, 1, (n, 4))
    return {
        "means": rng.integers(-2000, 2000, (n, 3)) / 1024,  # eleven bits: float16 has them
        "opacities": rng.integers(1, 255, n) / 255,
        "f_dc": (rng.integers(0, 256, (n, 3)) / 255 - 0.5) / 0.15,
        "log_scales": rng.integers(0, 256, (n, 3)) / 16 - 10,
        "quats": quats / np.sqrt((quats**2).sum(axis=1, keepdims=True)),  # w first
        "f_rest": rng.integers(-128, 128, (n, (degree + 1) ** 2 - 1, 3)) / 128,
    }


def encode(splats: Dict[str, np.ndarray], version: int, fractional_bits: int = 12) -> Arrays:
    """The arrays of a file that holds these splats."""
    arrays = [bytearray() for _ in range(6)]
    for i in range(len(splats["means"])):
        for value in splats["means"][i]:
            if version == 1:
                arrays[0] += struct.pack("<e", value)
            else:
                arrays[0] += (round(value * 2**fractional_bits) & 0xFFFFFF).to_bytes(3, "little")
        arrays[1].append(round(splats["opacities"][i] * 255))
        arrays[2] += bytes(round((value * 0.15 + 0.5) * 255) for value in splats["f_dc"][i])
        arrays[3] += bytes(round((value + 10) * 16) for value in splats["log_scales"][i])
        arrays[4] += (first_three if version < 3 else smallest_three)(*splats["quats"][i])
        arrays[5] += bytes(round(value * 128) + 128 for value in splats["f_rest"][i].reshape(-1))
    return [bytes(array) for array in arrays if array]


def first_three(w: float, x: float, y: float, z: float) -> bytes:
    sign = -1 if w < 0 else 1
    return bytes(min(255, max(0, round(sign * value * 127.5 + 127.5))) for value in (x, y, z))


def smallest_three(w: float, x: float, y: float, z: float) -> bytes:
    values = [x, y, z, w]
    largest = max(range(4), key=lambda i: abs(values[i]))
    packed = largest
    for i, value in enumerate(values):
        if i != largest:
            magnitude = int(511 * abs(value) / math.sqrt(0.5) + 0.5)
            packed = packed << 10 | ((value < 0) != (values[largest] < 0)) << 9 | magnitude
    return struct.pack("<I", packed)


def random_arrays(n: int, degree: int, version: int, seed: int = 0) -> Arrays:
    """Any bytes at all (in version 1, finite positions)."""
    rng = np.random.default_rng(seed)
    k = (degree + 1) ** 2 - 1
    arrays = [rng.integers(0, 256, n * size, dtype=np.uint8).tobytes() for size in row_bytes(version, degree)[:5]]
    if version == 1:
        arrays[0] = rng.normal(0, 5, 3 * n).astype("<f2").tobytes()
    return arrays + [rng.integers(0, 256, 3 * k * n, dtype=np.uint8).tobytes()] * (k > 0)


def row_bytes(version: int, degree: int) -> List[int]:
    sizes = [6 if version == 1 else 9, 1, 3, 3, 4 if version >= 3 else 3]
    return sizes + [3 * ((degree + 1) ** 2 - 1)] * (degree > 0)


def expected(
    arrays: Arrays, version: int, degree: int, fractional_bits: int = 12, rows: Optional[Sequence[int]] = None
) -> Dict[str, np.ndarray]:
    """The format's description in float64, one splat at a time, turned to right, down, forward; degree 3 at most."""
    sizes = row_bytes(version, degree)
    kept = min((degree + 1) ** 2, 16)
    out: Dict[str, list] = {"means": [], "scales": [], "quats": [], "opacities": [], "sh": []}
    for row in range(len(arrays[1])) if rows is None else rows:
        position, (alpha,), colour, scale, rotation, *harmonics = (
            array[row * size : (row + 1) * size] for array, size in zip(arrays, sizes)
        )
        if version == 1:
            x, y, z = struct.unpack("<3e", position)
        else:
            x, y, z = (
                int.from_bytes(position[i : i + 3], "little", signed=True) / 2**fractional_bits for i in (0, 3, 6)
            )
        if version < 3:
            quat = [value / 127.5 - 1 for value in rotation]
            quat.append(math.sqrt(max(0, 1 - sum(value**2 for value in quat))))
        else:
            quat = _smallest_three_back(int.from_bytes(rotation, "little"))
        norm = math.sqrt(sum(value**2 for value in quat))
        sh = [[(value / 255 - 0.5) / 0.15 for value in colour]]
        sh += [[(harmonics[0][3 * k + c] - 128) / 128 for c in range(3)] for k in range(kept - 1)]
        out["means"].append([x, -y, -z])
        out["scales"].append([math.exp(value / 16 - 10) for value in scale])
        out["quats"].append([quat[3] / norm, quat[0] / norm, -quat[1] / norm, -quat[2] / norm])
        out["opacities"].append(alpha / 255)
        out["sh"].append([[sign * value for value in values] for sign, values in zip(TURN_SH, sh)])
    return {name: np.array(values) for name, values in out.items()}


def _smallest_three_back(packed: int) -> List[float]:
    largest = packed >> 30
    quat = [0.0] * 4
    for i in (3, 2, 1, 0):
        if i != largest:
            quat[i] = (packed & 511) / 511 * math.sqrt(0.5) * (-1 if packed & 512 else 1)
            packed >>= 10
    quat[largest] = math.sqrt(max(0, 1 - sum(value**2 for value in quat)))
    return quat


def header(version: int, n: int, degree: int, fractional_bits: int = 12, flags: int = 0, last: int = 0) -> bytes:
    """The 16 bytes that all versions begin with; ``last`` is the number of streams in version 4."""
    return b"NGSP" + struct.pack("<IIBBBB", version, n, degree, fractional_bits, flags, last)


def gzip_member(
    content: bytes, crc: Optional[int] = None, n_bytes: Optional[int] = None, name: bytes = b"", level: int = 6
) -> bytes:
    packer = zlib.compressobj(level, zlib.DEFLATED, -15)
    body = packer.compress(content) + packer.flush()
    head = b"\x1f\x8b\x08" + (b"\x08" if name else b"\0") + bytes(5) + b"\xff" + (name + b"\0" if name else b"")
    trailer = zlib.crc32(content) if crc is None else crc, len(content) if n_bytes is None else n_bytes
    return head + body + struct.pack("<II", *trailer)


def zstd_stream(data: bytes, level: int = 3, window_log: int = 0) -> bytes:
    zstandard = pytest.importorskip("zstandard", reason="zstandard is not installed: pip install 'edgegs[spz]'")
    if window_log:  # without a content size, or the window would be cut down to it
        parameters = zstandard.ZstdCompressionParameters(window_log=window_log, strategy=1)
        packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
        return packer.compress(data) + packer.flush()
    return zstandard.ZstdCompressor(level=level, write_checksum=True).compress(data)


def v4_file(
    head: bytes, streams: Sequence[bytes], raw: Sequence[int], extensions: bytes = b"", table_offset: int = -1
) -> bytes:
    """``streams`` are packed already, ``raw`` what the table says of their sizes."""
    offset = 32 + len(extensions) if table_offset < 0 else table_offset
    table = b"".join(struct.pack("<QQ", len(stream), size) for stream, size in zip(streams, raw))
    return head + struct.pack("<I", offset) + bytes(12) + extensions + table + b"".join(streams)


def spz_bytes(
    arrays: Arrays, version: int, degree: int, fractional_bits: int = 12, flags: int = 0, extensions: bytes = b""
) -> bytes:
    """A whole right file."""
    flags |= 2 if extensions else 0
    n = len(arrays[1])
    if version < 4:
        return gzip_member(header(version, n, degree, fractional_bits, flags) + b"".join(arrays) + extensions)
    head = header(version, n, degree, fractional_bits, flags, len(arrays))
    return v4_file(head, [zstd_stream(array) for array in arrays], [len(array) for array in arrays], extensions)


def extension(kind: int, payload: bytes) -> bytes:
    return struct.pack("<II", kind, len(payload)) + payload


def axes(value: int) -> bytes:
    return extension(0xADBE0003, struct.pack("<I", value))


def good_file(version: int = 2, n: int = 3, degree: int = 1, seed: int = 0) -> Tuple[bytes, Arrays]:
    arrays = random_arrays(n, degree, version, seed)
    return spz_bytes(arrays, version, degree), arrays
