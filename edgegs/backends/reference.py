"""The reference backend: the float64 twins (twin.py, twin_bins.py) behind the backend interface. Slow, plain, needs
only NumPy.
"""

from __future__ import annotations

import time
from functools import partial
from types import SimpleNamespace
from typing import Any, Callable, Dict, Sequence

import numpy as np

from edgegs.backends import twin, twin_bins
from edgegs.backends.base import Backend, Buffer, Params
from edgegs.errors import DeviceError
from edgegs.kernels.headers import structs
from edgegs.kernels.variants import AXES, BIN_SIZES, KEY_BITS


def _kernels() -> Dict[str, Callable[[SimpleNamespace], None]]:
    """The twin of every entry of cuda/edgegs.cu, by its name."""
    kernels: Dict[str, Callable[[SimpleNamespace], None]] = {
        "sort_compact": twin.sort_compact,
        "sort_scan_rows": twin.sort_scan,
        "duplicate_count": twin.duplicate_count,
        "lists_fill": twin_bins.fill_lists,
        "lists_sort": twin_bins.sort_lists,
        "lists_sort_few": twin_bins.sort_lists,
        "score_exact": twin.score,
    }
    for storage in AXES["storage"]:
        for culling in AXES["culling"]:
            kernels[f"project_{storage}_{culling}"] = partial(twin.project, storage=storage, culling=culling)
            fused = partial(twin.project_packed32, storage=storage, culling=culling)
            kernels[f"project_packed32_{storage}_{culling}"] = fused
        kernels[f"project_bins_{storage}"] = partial(twin_bins.project_bins, storage=storage)
    for culling in AXES["culling"]:
        kernels[f"duplicate_ref64_{culling}"] = twin.duplicate_ref64
        kernels[f"duplicate_split_{culling}"] = twin.duplicate_split
    for key, bits in KEY_BITS.items():
        if bits:
            kernels[f"sort_count_{bits}"] = twin.sort_count
            kernels[f"sort_scatter_{bits}"] = twin.sort_scatter
            kernels[f"ranges_{key}"] = partial(twin.ranges, key=key)
    for raster in AXES["raster"]:
        if raster in BIN_SIZES:
            kernels[f"rasterize_{raster}_fast"] = twin_bins.rasterize_patches
            if raster.startswith("patch"):
                kernels[f"count_{raster}"] = twin_bins.count_patches
            continue
        for exponential in AXES["exponential"]:
            kernels[f"rasterize_{raster}_{exponential}"] = twin.rasterize  # they differ in arithmetic alone
    return kernels


KERNELS = _kernels()


class ReferenceParams(Params):
    def __init__(self, struct: str) -> None:
        self.fields = SimpleNamespace()
        for field in structs()[struct]:
            empty = None if field.is_pointer else (np.zeros(field.length) if field.length else 0)
            setattr(self.fields, field.name, empty)

    def set(self, **fields: Any) -> None:
        for name, value in fields.items():
            if not hasattr(self.fields, name):
                raise KeyError(name)
            if isinstance(value, Buffer):
                value = value.memory
            elif value is not None and np.ndim(value):
                value = np.asarray(value, np.float64)
            setattr(self.fields, name, value)


class ReferenceBackend(Backend):
    """Float buffers are float64 here: what the float32 kernels round, the reference keeps."""

    name = "reference"
    device = "NumPy " + np.__version__
    image = "edgegs/backends/twin.py"
    n_blocks = 1
    has_tensor_cores = True

    def alloc(self, label: str, shape: Sequence[int], dtype: Any) -> Buffer:
        dtype = np.float64 if np.dtype(dtype).kind == "f" else dtype
        try:
            memory = np.zeros(tuple(shape), dtype)
        except (MemoryError, ValueError):
            raise DeviceError(f"{label}: an array of {tuple(shape)} cannot be had") from None
        return Buffer(label, tuple(shape), dtype, memory, memory.ctypes.data)

    def free(self, buffer: Buffer) -> None:
        buffer.memory = None

    def upload(self, buffer: Buffer, array: np.ndarray) -> None:
        buffer.memory[...] = array

    def download(self, buffer: Buffer) -> np.ndarray:
        return np.array(buffer.memory)

    def params(self, struct: str, **fields: Any) -> ReferenceParams:
        params = ReferenceParams(struct)
        params.set(**fields)
        return params

    def launch(self, kernel: str, n_blocks: int, params: Params) -> None:
        assert isinstance(params, ReferenceParams)
        if kernel not in KERNELS:
            raise DeviceError(f"the reference has no twin of {kernel}")
        KERNELS[kernel](params.fields)

    def mark(self) -> float:
        return time.perf_counter()

    def elapsed_ms(self, start: float, end: float) -> float:
        return (end - start) * 1e3

    def close(self) -> None:
        pass
