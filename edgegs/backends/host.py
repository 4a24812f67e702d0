"""The host backend: the kernels of cuda/, compiled for this machine's processor, called through ctypes.

``host`` is the fast build (one thread owns a tile); ``host-check`` runs every CUDA thread as a fiber and
checks barriers, collectives and shared memory (cuda/host/).
"""

from __future__ import annotations

import ctypes
import os
import platform
import time
from pathlib import Path
from typing import Any, List, Optional, Sequence

import numpy as np

from edgegs.backends.base import Buffer, Params
from edgegs.backends.structs import StructBackend, StructParams
from edgegs.errors import DeviceError, EdgegsError, UsageError
from edgegs.kernels.manifest import REBUILD
from edgegs.kernels.select import find_library

#: Most threads that may be asked for: no machine has more processors, and each takes memory for its stack.
MAX_THREADS = 1024
#: Most blocks of a partitioned launch: the sort keeps a row of counters for each.
MAX_BLOCKS = 512


class HostBackend(StructBackend):
    """Runs on ``threads`` operating-system threads (0: as many as this process may use).

    Raises:
        UsageError: ``threads`` is not from 0 to 1024, or the fast build is asked to shuffle.
        DeviceError: there is no usable library, or the system refuses so many threads; the message says what to do.
    """

    name = "host"

    def __init__(self, threads: int = 0, arch: str = "host", shuffle_seed: int = 0) -> None:
        self._pool: Optional[int] = None
        if not 0 <= threads <= MAX_THREADS:
            raise UsageError(f"{threads} threads: expected 0 (all that this process may use) to {MAX_THREADS}")
        path = find_library(arch)
        try:
            self._lib = ctypes.CDLL(str(path))
        except OSError as error:
            raise DeviceError(f"{path}: cannot be loaded ({error}); {REBUILD}") from None
        self._lib.edgegs_host_create.restype = ctypes.c_void_p
        self._lib.edgegs_host_create.argtypes = [ctypes.c_int]
        self._lib.edgegs_host_destroy.argtypes = [ctypes.c_void_p]
        self._lib.edgegs_host_launch.argtypes = [
            ctypes.c_void_p,
            ctypes.c_char_p,
            ctypes.c_uint,
            ctypes.c_void_p,
            ctypes.c_size_t,
            ctypes.c_char_p,
            ctypes.c_size_t,
        ]
        self._lib.edgegs_host_kernel.restype = ctypes.c_char_p
        self._lib.edgegs_host_kernel.argtypes = [ctypes.c_uint]
        if shuffle_seed:
            if arch == "host":
                raise UsageError("only the host-check builds can shuffle the order of threads")
            self._lib.edgegs_host_shuffle.argtypes = [ctypes.c_uint64]
            self._lib.edgegs_host_shuffle(shuffle_seed)
        n_threads = threads or min(len(os.sched_getaffinity(0)), MAX_THREADS)
        self._pool = self._lib.edgegs_host_create(n_threads) or None
        if self._pool is None:
            raise DeviceError(f"{n_threads} threads cannot be started here; ask for fewer (render.threads, --threads)")
        self.device = "{}, {} thread{}".format(processor(), n_threads, "" if n_threads == 1 else "s")
        self.image = path.name
        self.has_tensor_cores = arch != "host"  # the checking builds take them to pieces
        # a few shares a thread: enough to balance, few enough that their tables stay small
        self.n_blocks = min(8 * n_threads, MAX_BLOCKS)

    def kernels(self) -> Sequence[str]:
        """Names of the entries in the library."""
        names: List[str] = []
        while True:
            name = self._lib.edgegs_host_kernel(len(names))
            if name is None:
                return sorted(names)
            names.append(name.decode())

    def alloc(self, label: str, shape: Sequence[int], dtype: Any) -> Buffer:
        shape = tuple(int(n) for n in shape)
        n_bytes = int(np.prod(shape, dtype=object)) * np.dtype(dtype).itemsize if shape else 0
        try:
            # not zeroed: pages that no kernel touches cost nothing
            memory = np.empty(shape, dtype)
        except (MemoryError, ValueError):
            raise DeviceError(
                f"{label}: {n_bytes / 1e6:.0f} MB cannot be had; lower scene.max_gaussians or the picture size"
            ) from None
        return Buffer(label, shape, dtype, memory, memory.ctypes.data)

    def free(self, buffer: Buffer) -> None:
        buffer.memory = None
        buffer.address = 0

    def upload(self, buffer: Buffer, array: np.ndarray) -> None:
        buffer.memory[...] = array

    def download(self, buffer: Buffer) -> np.ndarray:
        return np.array(buffer.memory)

    def launch(self, kernel: str, n_blocks: int, params: Params) -> None:
        assert isinstance(params, StructParams)
        if self._pool is None:
            raise EdgegsError("the host backend is closed")
        message = ctypes.create_string_buffer(512)
        if self._lib.edgegs_host_launch(
            self._pool, kernel.encode(), n_blocks, params.address, params.record.nbytes, message, len(message)
        ):
            raise DeviceError(message.value.decode("utf-8", "replace"))

    def mark(self) -> float:
        return time.perf_counter()

    def elapsed_ms(self, start: float, end: float) -> float:
        return (end - start) * 1e3

    def close(self) -> None:
        if self._pool is not None:
            self._lib.edgegs_host_destroy(self._pool)
            self._pool = None


def processor() -> str:
    """The processor's name, as people know it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.lower().startswith(("model name", "hardware")):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.machine()
