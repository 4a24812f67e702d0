"""What the renderer asks of a backend: memory, launches and clocks. Three implementations, one renderer."""

from __future__ import annotations

import abc
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np


class Buffer:
    """Device memory of a fixed shape and dtype; ``address`` is what a kernel's pointer field receives.

    ``staging`` is the backend's: host memory for copies of this buffer, which must not outlive it.
    """

    __slots__ = ("address", "dtype", "label", "memory", "shape", "staging")

    def __init__(self, label: str, shape: Tuple[int, ...], dtype: Any, memory: Any, address: int) -> None:
        self.label = label
        self.shape = shape
        self.dtype = np.dtype(dtype)
        self.memory = memory
        self.address = address
        self.staging: Dict[int, np.ndarray] = {}

    @property
    def n_bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


class Fetch:
    """Arrays on their way back from the device. This one is there already; backends may return a later one."""

    def __init__(self, arrays: List[np.ndarray]) -> None:
        self._arrays = arrays

    def wait(self) -> List[np.ndarray]:
        """The arrays, in the order asked; they are the caller's."""
        return self._arrays


class Params(abc.ABC):
    """One parameter struct of cuda/params.h, filled once and changed field by field."""

    @abc.abstractmethod
    def set(self, **fields: Any) -> None:
        """Change fields: a Buffer (or None, the null pointer) for a pointer, numbers for the rest."""


class Backend(abc.ABC):
    """Thin: allocate, upload, launch, mark time, read back. Not thread-safe: one thread owns it."""

    #: ``reference``, ``host`` or ``cuda``
    name: str
    #: what draws, in words ("AMD EPYC, 2 threads")
    device: str
    #: the image in use, in words
    image: str
    #: blocks of a launch whose work is partitioned, whatever its size (see share_of_block in collectives.cuh)
    n_blocks: int
    #: frames worth having under way at once: 1 where launching waits, 2 where the device works by itself
    depth: int = 1
    #: whether the image in use has the kernels for tensor cores
    has_tensor_cores: bool = False
    #: and whether they are expected to be faster: what ``auto`` takes where nothing was measured
    prefers_tensor_cores: bool = False

    @abc.abstractmethod
    def alloc(self, label: str, shape: Sequence[int], dtype: Any) -> Buffer:
        """Uninitialised device memory. Raises DeviceError with what was asked and what there is."""

    @abc.abstractmethod
    def free(self, buffer: Buffer) -> None: ...

    @abc.abstractmethod
    def upload(self, buffer: Buffer, array: np.ndarray) -> None:
        """Copy an array of the buffer's shape to the device, converting to its dtype."""

    def send(self, buffer: Buffer, array: np.ndarray) -> None:
        """Begin to copy an array of the buffer's shape and dtype, before whatever is launched next.

        The buffer's last copy must have been used up; the array may change once that has been collected.
        """
        self.upload(buffer, array)

    @abc.abstractmethod
    def download(self, buffer: Buffer) -> np.ndarray:
        """A copy of the buffer's content, after everything launched before."""

    def fetch(self, buffers: Sequence[Buffer]) -> Fetch:
        """Begin to read buffers back, after everything launched before; the device may go on meanwhile."""
        return Fetch([self.download(buffer) for buffer in buffers])

    @abc.abstractmethod
    def params(self, struct: str, **fields: Any) -> Params:
        """A parameter struct of that name; fields not given are zero."""

    @abc.abstractmethod
    def launch(self, kernel: str, n_blocks: int, params: Params) -> None:
        """Run a kernel (a name of cuda/edgegs.cu) on ``n_blocks`` blocks of its own size."""

    @abc.abstractmethod
    def mark(self) -> Any:
        """A point in the stream of launches."""

    @abc.abstractmethod
    def elapsed_ms(self, start: Any, end: Any) -> float:
        """Milliseconds between two marks, once both are reached."""

    def free_memory(self) -> Optional[int]:
        """Bytes that can still be allocated; None where nobody knows."""
        return None

    @abc.abstractmethod
    def close(self) -> None:
        """Give everything back; may be called twice."""

    def __enter__(self) -> Backend:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def describe(self) -> Dict[str, str]:
        """For the log's start record."""
        return {"backend": self.name, "device": self.device, "image": self.image}
