"""From a Scene to the device's layout: what the kernels' storage axis reads."""

from __future__ import annotations

from typing import Any, Dict, NamedTuple, Tuple

import numpy as np

from edgegs.backends.base import Backend
from edgegs.scene import Scene

#: Largest FP16 number that scales are brought under, leaving room for rounding up.
HALF_MAX = 60000.0


class PackedScene(NamedTuple):
    """Storage ``packed`` as arrays; bytes of one splat: 12 + 16 + 4 ceil(3 (D + 1)^2 / 4), 76 at degree 3.

    Attributes:
        halves: (N, 8) float16: quaternion w x y z, scales x y z over ``half_scale``, opacity.
        sh_bytes: (N, W) int8: coefficient by coefficient, RGB innermost, padded with 0 to whole words.
        sh_scales: (4, 3) float32: what one step of a degree's and channel's byte is worth.
        half_scale: power of two that the scales were divided by, so that the largest fits FP16.
    """

    halves: np.ndarray
    sh_bytes: np.ndarray
    sh_scales: np.ndarray
    half_scale: float


def pack(scene: Scene) -> PackedScene:
    """Quantise a scene: FP16 shapes, INT8 SH (symmetric, one scale for each degree and channel; RoofGS, IV-A)."""
    n = scene.n_splats
    largest = float(scene.scales.max()) if n else 1.0
    half_scale = float(2.0 ** np.ceil(np.log2(max(largest, 1e-30) / HALF_MAX)))
    halves = np.empty((n, 8), np.float16)
    halves[:, :4] = scene.quats
    halves[:, 4:7] = scene.scales / np.float32(half_scale)
    halves[:, 7] = scene.opacities
    sh_scales = np.zeros((4, 3), np.float32)
    n_values = 3 * (scene.sh_degree + 1) ** 2
    sh_bytes = np.zeros((n, -(-n_values // 4) * 4), np.int8)
    for degree in range(scene.sh_degree + 1):
        first, last = degree**2, (degree + 1) ** 2
        band = scene.sh[:, first:last]
        sh_scales[degree] = np.abs(band).max(axis=(0, 1), initial=0.0) / 127
        steps = band / np.where(sh_scales[degree] > 0, sh_scales[degree], 1)
        sh_bytes[:, 3 * first : 3 * last] = np.clip(np.rint(steps), -127, 127).reshape(n, 3 * (last - first))
    return PackedScene(halves, sh_bytes, sh_scales, half_scale)


def upload_fp32(backend: Backend, scene: Scene) -> Dict[str, Any]:
    """Storage ``fp32``: every attribute as it is, one array each, 4 bytes a number."""
    names = {"splat_scales": "scales", "splat_quats": "quats", "splat_opacities": "opacities", "splat_sh": "sh"}
    return _upload(backend, {field: (getattr(scene, name), "f4") for field, name in names.items()})


def upload_packed(backend: Backend, scene: Scene) -> Dict[str, Any]:
    """Storage ``packed``; see ``PackedScene``."""
    packed = pack(scene)
    arrays = {
        "splat_halves": (packed.halves.view(np.uint16), "u2"),
        "splat_sh_words": (packed.sh_bytes.view("<u4"), "u4"),
    }
    numbers = {"sh_scales": packed.sh_scales.reshape(-1), "half_scale": packed.half_scale}
    return {**_upload(backend, arrays), **numbers, "sh_words": packed.sh_bytes.shape[1] // 4}


def _upload(backend: Backend, arrays: Dict[str, Tuple[np.ndarray, str]]) -> Dict[str, Any]:
    fields = {}
    for name, (array, dtype) in arrays.items():
        fields[name] = backend.alloc(name, array.shape, dtype)
        backend.upload(fields[name], array)
    return fields


UPLOADS = {"fp32": upload_fp32, "packed": upload_packed}


def scene_bytes(scene: Scene, storage: str) -> int:
    """Bytes that a scene takes on the device."""
    if storage == "fp32":
        return scene.nbytes
    return scene.n_splats * (12 + 16 + -(-3 * (scene.sh_degree + 1) ** 2 // 4) * 4)


def upload(backend: Backend, scene: Scene, storage: str) -> Dict[str, Any]:
    """Put a scene on the device; returns the fields of FrameParams (cuda/params.h) that describe it, by name.

    Raises:
        DeviceError: it does not fit.
    """
    return {**_upload(backend, {"splat_means": (scene.means, "f4")}), **UPLOADS[storage](backend, scene)}
