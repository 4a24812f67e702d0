"""From a Scene to the device's layout: what the kernels' storage axis reads."""

from __future__ import annotations

from typing import Dict

from edgegs.backends.base import Backend, Buffer
from edgegs.scene import Scene


def upload_fp32(backend: Backend, scene: Scene) -> Dict[str, Buffer]:
    """Storage ``fp32``: every attribute as it is, one array each, 4 bytes a number.

    Returns the pointer fields of FrameParams (cuda/params.h) by name.
    """
    arrays = {
        "splat_means": scene.means,
        "splat_scales": scene.scales,
        "splat_quats": scene.quats,
        "splat_opacities": scene.opacities,
        "splat_sh": scene.sh,
    }
    buffers = {}
    for name, array in arrays.items():
        buffers[name] = backend.alloc(name, array.shape, "f4")
        backend.upload(buffers[name], array)
    return buffers


UPLOADS = {"fp32": upload_fp32}
