"""From a scene to the device: what the kernels' storage axis reads."""

from __future__ import annotations

from typing import Any, Dict, Tuple, Union

import numpy as np

from edgegs.backends.base import Backend
from edgegs.pack.packed import PackedScene, quantise
from edgegs.scene.model import Scene

#: A scene in either form; both say the same of themselves.
AnyScene = Union[Scene, PackedScene]


def upload_fp32(backend: Backend, scene: AnyScene) -> Dict[str, Any]:
    """Storage ``fp32``: every attribute as it is, one array each, 4 bytes a number."""
    scene = scene.unpacked()
    names = {"splat_scales": "scales", "splat_quats": "quats", "splat_opacities": "opacities", "splat_sh": "sh"}
    return _upload(backend, {field: (getattr(scene, name), "f4") for field, name in names.items()})


def upload_packed(backend: Backend, scene: AnyScene) -> Dict[str, Any]:
    """Storage ``packed``; see ``PackedScene``."""
    packed = scene if isinstance(scene, PackedScene) else quantise(scene)
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


def scene_bytes(scene: AnyScene, storage: str) -> int:
    """Bytes that a scene takes on the device."""
    return scene.n_splats * splat_bytes(scene.sh_degree, storage)


def splat_bytes(sh_degree: int, storage: str) -> int:
    """Bytes that a splat takes on the device."""
    n_sh = 3 * (sh_degree + 1) ** 2
    return 4 * (11 + n_sh) if storage == "fp32" else 12 + 16 + -(-n_sh // 4) * 4


def upload(backend: Backend, scene: AnyScene, storage: str) -> Dict[str, Any]:
    """Put a scene on the device; returns the fields of FrameParams (cuda/params.h) that describe it, by name.

    Raises:
        DeviceError: it does not fit.
    """
    return {**_upload(backend, {"splat_means": (scene.means, "f4")}), **UPLOADS[storage](backend, scene)}
