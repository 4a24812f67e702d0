"""What a scene is in memory, whatever file it came from."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Tuple

import numpy as np

#: Percentiles that bound a scene: what lies outside (floaters, far background) does not steer a camera.
BOUNDS_PERCENTILES = (5.0, 95.0)
_BOUNDS_SAMPLE = 1 << 18  # percentiles of more rows cost time and change nothing that matters

#: A scene's arrays, each with a row a splat.
ARRAYS = ("means", "scales", "quats", "opacities", "sh")


@dataclass(frozen=True, eq=False)
class Scene:
    """A decoded scene. All arrays are float32 and C-contiguous; N splats, K = (sh_degree + 1)².

    Attributes:
        means: (N, 3) positions, x right, y down, z forward, in the file's unit.
        scales: (N, 3) standard deviation along each axis of the splat, same unit (after exp).
        quats: (N, 4) unit quaternions, w first.
        opacities: (N,) in (0, 1) (after sigmoid).
        sh: (N, K, 3) spherical harmonics; ``sh[:, 0]`` is the file's f_dc, colour = 0.5 + SH(direction).
        sh_degree: 0 to 3.
        path: where it was read from; "synth:…" for a generated scene.
        format: what it was read from, e.g. "ply binary_little_endian" or "synth".
        n_rows: rows in the file, dropped ones included.
        dropped: cause -> rows left out for it; empty when nothing was.
        warnings: whatever a user should hear about, one sentence each.
        file_sha256: hex digest of the file; empty for a generated scene (see ``sha256``).
        vertical_axis: "y" (up is -y, as COLMAP and most captures have it) or "z" (up is +z), as the file says.
        antialiased: trained with its opacity scaled for what the blur of a pixel adds to a splat (mip-splatting;
            gsplat's "antialiased"): it is drawn so, too.
        source_bounds: ``bounds()`` of the scene that this one is a part or a smaller form of: cameras stand where they
            stood for it.
    """

    means: np.ndarray
    scales: np.ndarray
    quats: np.ndarray
    opacities: np.ndarray
    sh: np.ndarray
    sh_degree: int
    path: str
    format: str
    n_rows: int
    dropped: Dict[str, int] = field(default_factory=dict)
    warnings: List[str] = field(default_factory=list)
    file_sha256: str = ""
    vertical_axis: str = "y"
    antialiased: bool = False
    source_bounds: Optional[Tuple[np.ndarray, float]] = None

    def __post_init__(self) -> None:
        n, k = len(self.means), (self.sh_degree + 1) ** 2
        shapes = {"means": (n, 3), "scales": (n, 3), "quats": (n, 4), "opacities": (n,), "sh": (n, k, 3)}
        for name, shape in shapes.items():
            array = getattr(self, name)
            if array.shape != shape or array.dtype != np.float32 or not array.flags.c_contiguous:
                raise ValueError(f"Scene.{name} must be C-contiguous float32 {shape}, not {array.dtype} {array.shape}")

    @property
    def n_splats(self) -> int:
        return len(self.means)

    @property
    def nbytes(self) -> int:
        """Bytes of the five arrays, which is also what they take on the device as float32."""
        return sum(getattr(self, name).nbytes for name in ARRAYS)

    @functools.cached_property
    def sha256(self) -> str:
        """Hex digest of the file's bytes; for a generated scene, of its arrays."""
        if self.file_sha256:
            return self.file_sha256
        digest = hashlib.sha256()
        for name in ARRAYS:
            digest.update(getattr(self, name).reshape(-1).view(np.uint8).data)
        return digest.hexdigest()

    def bounds(self) -> Tuple[np.ndarray, float]:
        """Centre (3,) float64 and radius of where the scene is, untouched by a few far or giant splats.

        The centre is the middle of the 5th to 95th percentile on each axis; the radius holds 95 % of the
        centres, and is never less than three of a typical splat's standard deviations.
        """
        return self._bounds

    @functools.cached_property
    def _bounds(self) -> Tuple[np.ndarray, float]:
        if self.source_bounds is not None:
            return self.source_bounds
        step = -(-self.n_splats // _BOUNDS_SAMPLE)
        means = self.means[::step].astype(np.float64)
        low, high = np.percentile(means, BOUNDS_PERCENTILES, axis=0)
        center = (low + high) / 2
        distance = np.sqrt(((means - center) ** 2).sum(axis=1))
        sigma = float(np.median(self.scales[::step].max(axis=1)))
        return center, max(float(np.percentile(distance, BOUNDS_PERCENTILES[1])), 3 * sigma)

    @property
    def up(self) -> Tuple[float, float, float]:
        """Unit vector that points up in the scene's frame."""
        return up_of(self.vertical_axis)

    def take(self, rows: np.ndarray) -> Scene:
        """Those of its splats, (M,) indices or (N,) bool, in that order; what the file is said to hold stays."""
        arrays: Dict[str, Any] = {name: np.ascontiguousarray(getattr(self, name)[rows]) for name in ARRAYS}
        return dataclasses.replace(self, source_bounds=self.bounds(), **arrays)

    def unpacked(self) -> Scene:
        """Itself: a ``PackedScene`` has to be unpacked first."""
        return self

    def raw_bounds(self) -> Tuple[np.ndarray, np.ndarray]:
        """Lowest and highest corner, (3,) float32 each, of all means."""
        return self.means.min(axis=0), self.means.max(axis=0)

    def giants(self) -> np.ndarray:
        """(N,) bool: splats whose largest standard deviation exceeds the whole scene's robust radius."""
        return self.scales.max(axis=1) > self.bounds()[1]


def up_of(vertical_axis: str) -> Tuple[float, float, float]:
    """Unit vector that points up where the vertical axis is "y" (downwards) or "z" (upwards)."""
    return (0.0, 0.0, 1.0) if vertical_axis == "z" else (0.0, -1.0, 0.0)
