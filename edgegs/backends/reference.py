"""The reference backend: the float64 twins (twin.py) behind the backend interface. Slow, plain, needs only NumPy."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, Sequence

import numpy as np

from edgegs.backends import twin
from edgegs.backends.base import Backend, Buffer, Params
from edgegs.errors import DeviceError
from edgegs.kernels.headers import structs


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
        wrong = twin.run(kernel, params.fields)
        if wrong:
            raise DeviceError(wrong)

    def mark(self) -> float:
        return time.perf_counter()

    def elapsed_ms(self, start: float, end: float) -> float:
        return (end - start) * 1e3

    def close(self) -> None:
        pass
