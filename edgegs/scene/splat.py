"""Scenes as .splat files (antimatter15's layout): rows of 32 bytes, no header and no SH beyond the colour.

A row is position (3 float32), sigma (3 float32, linear), red, green, blue, alpha (a byte each), and a quaternion
w x y z (a byte each, 128 is 0). Nothing in the file says that it is one, so its first rows have to look like it.
"""

from __future__ import annotations

import io
from typing import BinaryIO

import numpy as np

from edgegs.errors import SceneError
from edgegs.scene.builder import RawBlock, SceneBuilder
from edgegs.scene.model import Scene
from edgegs.scene.reading import BLOCK_ROWS, F_DC, LOGITS, HashingReader, Reading, Unchanged, refuse_holes

ROW = np.dtype([("mean", "<f4", 3), ("scale", "<f4", 3), ("rgba", "u1", 4), ("quat", "u1", 4)])

# What rows of real scenes stay within by far, and chance does not: a random float32 is beyond 1e9 or below 1e-20
# more often than not, and four random bytes are a quaternion of norm 1 once in seven times.
_FARTHEST = 1e9
_LARGEST = 1e6
_LEAST = 1e-20
_NORMS = (0.9, 1.1)
_PLAUSIBLE_SHARE = 0.9

_QUATS = ((np.arange(256) - 128) / 128).astype(np.float32)


def why_not_splat(head: bytes, size: int) -> str:
    """What tells a file from a .splat, in words for its owner; empty when its first rows look like one.

    Args:
        head: the file's first bytes, as many as there are at hand.
        size: bytes of the whole file.
    """
    if size < ROW.itemsize:
        return f"it has {size:,} bytes, and one row takes {ROW.itemsize}"
    rows = np.frombuffer(head, ROW, len(head) // ROW.itemsize)
    if not len(rows):
        return "its first row is not there"
    # A writer may leave out what it cannot express, but not in most rows.
    quats = _QUATS[rows["quat"]]
    norm = np.sqrt((quats * quats).sum(axis=1, keepdims=True))
    with np.errstate(all="ignore"):
        far = np.abs(rows["mean"])
        tests = (
            ("positions beyond 1e9 or not finite", far <= _FARTHEST),
            ("positions of no size", (far == 0) | (far >= _LEAST)),
            ("negative, enormous or non-finite scales", (rows["scale"] >= 0) & (rows["scale"] <= _LARGEST)),
            ("scales of no size", (rows["scale"] == 0) | (rows["scale"] >= _LEAST)),
            ("rotations that are no unit quaternions", (norm == 0) | ((norm > _NORMS[0]) & (norm < _NORMS[1]))),
        )  # fmt: skip
    good = np.ones(len(rows), bool)
    for text, passed in tests:
        good &= passed.all(axis=1)
        if np.count_nonzero(good) < _PLAUSIBLE_SHARE * len(rows):
            return f"read as rows of a .splat, its beginning has {text}"
    return ""


def looks_like_splat(head: bytes, size: int) -> bool:
    """Whether a file that begins with ``head`` and has ``size`` bytes may be a .splat, whole or cut short."""
    return not why_not_splat(head, size)


def read_splat(file: BinaryIO, path: str, how: Reading) -> Scene:
    """Read a .splat from an open unbuffered file; see ``edgegs.scene.load``."""
    unchanged = Unchanged(file, path)
    n_rows, left_over = divmod(unchanged.n_bytes, ROW.itemsize)
    if left_over:
        raise SceneError(
            f"{path}: {n_rows:,} rows of {ROW.itemsize} bytes and {left_over} bytes over; "
            "is the copy or download complete?"
        )
    how.check_count(n_rows, path, f"the file's size ({unchanged.n_bytes:,} bytes)")
    refuse_holes(file, 0, unchanged.n_bytes, path)
    hashing = HashingReader(file)
    reader = io.BufferedReader(hashing, 1 << 16)
    builder = SceneBuilder(path, "splat", n_rows, 0, how.max_gaussians, frame=how.frame or "rdf")
    for start in range(0, n_rows, BLOCK_ROWS):
        n = min(BLOCK_ROWS, n_rows - start)
        data = reader.read(n * ROW.itemsize)
        if len(data) < n * ROW.itemsize:
            raise SceneError(f"{path}: ends after {start + len(data) // ROW.itemsize:,} of {n_rows:,} splats")
        builder.add(_raw_block(np.frombuffer(data, ROW)))
        how.report(start + n, n_rows)
    unchanged.check()
    return builder.finish(hashing.digest.hexdigest())


def _raw_block(rows: np.ndarray) -> RawBlock:
    with np.errstate(all="ignore"):  # the logarithm of 0 is -inf, which is legal; of a negative number NaN
        log_scales = np.log(rows["scale"])
    quats = _QUATS[rows["quat"]]
    quats[~quats.any(axis=1), 0] = 1
    return RawBlock(rows["mean"], log_scales, quats, LOGITS[rows["rgba"][:, 3]], F_DC[rows["rgba"][:, None, :3]])
