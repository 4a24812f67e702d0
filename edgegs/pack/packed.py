"""A scene quantised as storage ``packed`` has it, and back."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Callable, Dict, Iterator, List, Optional, Tuple

import numpy as np

from edgegs.scene.model import Scene, up_of

#: Largest FP16 number that scales are brought under, leaving room for rounding up.
HALF_MAX = 60000.0
#: Splats of a chunk: chunk i is rows 256 i … 256 i + 255.
CHUNK = 256
#: Splats whose coefficients are quantised at once: bounds what that takes beside the scene and its packed form.
_BLOCK = 1 << 15


@dataclass(frozen=True, eq=False)
class PackedScene:
    """A scene in the layout that the kernels' storage ``packed`` reads.

    Bytes of one splat: 12 + 16 + 4 ceil(3 (D + 1)^2 / 4), 76 at degree 3. Whatever ``Scene`` says of itself is said
    here by the same names. Every prefix of the rows is the best choice of that many splats that the order knows.

    Attributes:
        means: (N, 3) float32.
        halves: (N, 8) float16: quaternion w x y z, scales x y z over ``half_scale``, opacity.
        sh_bytes: (N, W) int8: coefficient by coefficient, RGB innermost, padded with 0 to whole words.
        sh_scales: (4, 3) float32: what one step of a degree's and channel's byte is worth.
        half_scale: power of two that the scales were divided by, so that the largest fits FP16.
        rows: (N,) uint32: which of the source's splats each one is, counted as its reader keeps them.
        levels: rising counts, the last is N: rows below ``levels[i]`` are at least as important as those above.
        is_scored: whether the order is one of importance; else it is one of place alone, with one level.
        center, radius: as ``Scene.bounds`` of the whole source, float64.
        low, high: (3,) float32: raw bounds of the means.
    """

    means: np.ndarray
    halves: np.ndarray
    sh_bytes: np.ndarray
    sh_scales: np.ndarray
    half_scale: float
    rows: np.ndarray
    sh_degree: int
    levels: Tuple[int, ...]
    is_scored: bool
    center: np.ndarray
    radius: float
    low: np.ndarray
    high: np.ndarray
    path: str
    format: str
    n_rows: int
    dropped: Dict[str, int] = field(default_factory=dict)
    warnings: List[str] = field(default_factory=list)
    file_sha256: str = ""
    vertical_axis: str = "y"
    antialiased: bool = False

    @property
    def n_splats(self) -> int:
        return len(self.means)

    @property
    def nbytes(self) -> int:
        """Bytes that it takes on the device as storage ``packed``."""
        return self.means.nbytes + self.halves.nbytes + self.sh_bytes.nbytes

    @property
    def sha256(self) -> str:
        """Hex digest of the file that it was read from."""
        return self.file_sha256

    @property
    def up(self) -> Tuple[float, float, float]:
        """As ``Scene.up``."""
        return up_of(self.vertical_axis)

    def bounds(self) -> Tuple[np.ndarray, float]:
        """As ``Scene.bounds``, of the scene that this one was packed from."""
        return self.center, self.radius

    def raw_bounds(self) -> Tuple[np.ndarray, np.ndarray]:
        """As ``Scene.raw_bounds``."""
        return self.low, self.high

    def unpacked(self) -> Scene:
        """The same splats, in the same order, as float32."""
        return self._unpacked

    @functools.cached_property
    def _unpacked(self) -> Scene:
        with np.errstate(all="ignore"):  # a file's arrays are not looked at before: the kernels take any number
            return self._unpack()

    def _unpack(self) -> Scene:
        n, k = self.n_splats, (self.sh_degree + 1) ** 2
        halves = self.halves.astype(np.float32)
        quats = halves[:, :4]
        norm = np.sqrt((quats * quats).sum(axis=1, keepdims=True))
        steps = np.repeat(self.sh_scales[: self.sh_degree + 1], [2 * d + 1 for d in range(self.sh_degree + 1)], axis=0)
        sh = self.sh_bytes[:, : 3 * k].reshape(n, k, 3).astype(np.float32) * steps
        return Scene(
            np.ascontiguousarray(self.means),
            np.ascontiguousarray(halves[:, 4:7] * np.float32(self.half_scale)),
            np.ascontiguousarray(np.divide(quats, norm, out=np.zeros_like(quats), where=norm > 0)),
            np.ascontiguousarray(halves[:, 7]),
            np.ascontiguousarray(sh),
            self.sh_degree, self.path, self.format, self.n_rows, dict(self.dropped), list(self.warnings),
            self.file_sha256, self.vertical_axis, self.antialiased,
        )  # fmt: skip


def quantise(
    scene: Scene,
    order: Optional[np.ndarray] = None,
    levels: Optional[Tuple[int, ...]] = None,
    sh_degree: Optional[int] = None,
    progress: Optional[Callable[[int, int], None]] = None,
) -> PackedScene:
    """Quantise a scene: FP16 shapes, INT8 SH (symmetric, one scale for each degree and channel; RoofGS, IV-A).

    Args:
        order: (M,) rows of ``scene`` in the order to store them; None: all, as they are.
        levels: see ``PackedScene``; None: the order is not one of importance.
        sh_degree: leave out the bands above; None keeps them.
        progress: called as ``progress(splats_done, n_splats)``.
    """
    degree = scene.sh_degree if sh_degree is None else min(sh_degree, scene.sh_degree)
    rows = np.arange(scene.n_splats, dtype=np.uint32) if order is None else order.astype(np.uint32)
    means, scales = scene.means[rows], scene.scales[rows]
    n = len(rows)
    largest = float(scales.max()) if n else 1.0
    half_scale = float(2.0 ** np.ceil(np.log2(max(largest, 1e-30) / HALF_MAX)))
    halves = np.empty((n, 8), np.float16)
    halves[:, :4] = scene.quats[rows]
    halves[:, 4:7] = scales / np.float32(half_scale)
    halves[:, 7] = scene.opacities[rows]
    n_values = 3 * (degree + 1) ** 2
    sh_bytes = np.zeros((n, -(-n_values // 4) * 4), np.int8)
    bands = np.repeat(np.arange(degree + 1), [2 * band + 1 for band in range(degree + 1)])
    largest_of = np.zeros((len(bands), 3), np.float32)
    for part in _blocks(n):
        np.maximum(largest_of, np.abs(scene.sh[rows[part], : len(bands)]).max(axis=0), out=largest_of)
    sh_scales = np.zeros((4, 3), np.float32)
    np.maximum.at(sh_scales, bands, largest_of)
    sh_scales /= 127
    units = np.where(sh_scales > 0, sh_scales, 1)[bands]
    for part in _blocks(n):
        steps = scene.sh[rows[part], : len(bands)] / units
        sh_bytes[part, :n_values] = np.clip(np.rint(steps), -127, 127).reshape(-1, n_values)
        if progress is not None:
            progress(min(part.stop, n), n)
    center, radius = scene.bounds() if scene.n_splats else (np.zeros(3), 1.0)
    low, high = (means.min(axis=0), means.max(axis=0)) if n else (np.zeros(3, np.float32), np.zeros(3, np.float32))
    return PackedScene(
        means, halves, sh_bytes, sh_scales, half_scale, rows, degree, levels or (n,), levels is not None,
        center, radius, low, high, scene.path, scene.format, scene.n_rows, dict(scene.dropped),
        list(scene.warnings), scene.file_sha256, scene.vertical_axis, scene.antialiased,
    )  # fmt: skip


def _blocks(n: int) -> Iterator[slice]:
    """n rows, some at a time."""
    return (slice(start, start + _BLOCK) for start in range(0, n, _BLOCK))
