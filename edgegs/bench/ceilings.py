"""What a device can do at most, measured: bytes copied, multiply-adds, 2^x and loads from shared memory in a second.

The kernels are cuda/ceilings.cuh; the host backend measures its processor with the same ones.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import numpy as np

from edgegs.backends.base import Backend, Buffer, Params
from edgegs.errors import DeviceError
from edgegs.kernels.headers import constants

C = constants()
CHAINS, STEPS = int(C["CEILING_CHAINS"]), int(C["CEILING_STEPS"])
THREADS, WORDS = int(C["CEILING_THREADS"]), int(C["CEILING_WORDS"])
#: Bytes that a block copies at a time, in a buffer.
COPY_BYTES = 16 * int(C["COPY_STEP"])
#: Of each of the two buffers of the copy: some times the largest caches (an H200's is 50 MB, an RTX 4090's 72), but a
#: small share of the memory that is free: on a board the host's copies of them take as much again.
LARGEST_COPY = {"cuda": 256 << 20, "host": 128 << 20}
SHARE_OF_MEMORY = 32
#: Milliseconds of one launch that is measured: long against the clock's steps, short against a clock that drifts.
LAUNCH_MS = 5.0
REPEATS = 9
MAX_REPEATS_OF_LOOP = 1 << 24
#: Backends with compiled kernels.
BACKENDS = ("cuda", "host")


class Ceilings(NamedTuple):
    """Medians.

    Attributes:
        bytes_per_s: of a copy, read and written, of buffers larger than the caches.
        fma_per_s: FP32 multiply-adds of lanes; two operations each.
        exp2_per_s: the fast 2^x of lanes.
        shared_loads_per_s: of 16 bytes from shared memory, one for a whole warp (host: one a thread).
        warp_width: lanes of an instruction, as the counts of stages see it: 32 on GPUs, 1 on the host.
    """

    bytes_per_s: float
    fma_per_s: float
    exp2_per_s: float
    shared_loads_per_s: float
    warp_width: int

    @property
    def slots_per_s(self) -> float:
        """Instructions of warps: what multiply-adds reach, which all schedulers issue without a pause.

        Right where a multiprocessor has an FP32 lane for each lane that it can issue (sm_5x, sm_61, sm_86 to sm_90);
        half of the truth where it has half as many (sm_60, sm_7x, sm_80).
        """
        return self.fma_per_s / self.warp_width


def check_backend(backend: Backend) -> None:
    """Raises DeviceError for a backend that runs no kernels."""
    if backend.name not in BACKENDS:
        raise DeviceError(
            f"backend {backend.name} runs no kernels, so there is nothing to measure; "
            "run `edgegs kernels build --arch host`, then take --backend host"
        )


def measure(
    backend: Backend,
    repeats: int = REPEATS,
    launch_ms: float = LAUNCH_MS,
    copy_bytes: Optional[int] = None,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Tuple[Ceilings, Dict[str, List[float]]]:
    """The ceilings, and every repeat's value of each, by its name.

    Args:
        launch_ms: how long a launch is made, milliseconds.
        copy_bytes: of each buffer of the copy; None: larger than caches.

    Raises:
        DeviceError: no kernels, no room for the buffers, or the copy came out wrong.
    """
    check_backend(backend)
    with Bench(backend, copy_bytes) as bench:
        samples = {}
        for index, name in enumerate(KERNELS):
            progress(index, len(KERNELS))
            samples[name] = bench.samples(name, repeats, launch_ms)
        progress(len(KERNELS), len(KERNELS))
    # what other work takes away is no ceiling: the best counts
    best = {name: float(max(values)) for name, values in samples.items()}
    return Ceilings(warp_width=32 if backend.name == "cuda" else 1, **best), samples


#: What is measured -> its kernel.
KERNELS = {
    "bytes_per_s": "ceiling_copy",
    "fma_per_s": "ceiling_multiply_add",
    "exp2_per_s": "ceiling_exp2",
    "shared_loads_per_s": "ceiling_shared",
}


class Bench:
    """The kernels' buffers on a backend; a context manager that gives them back."""

    def __init__(self, backend: Backend, copy_bytes: Optional[int] = None) -> None:
        self._backend = backend
        self._buffers: List[Buffer] = []
        try:
            self._allocate(copy_bytes)
        except DeviceError:
            self.close()
            raise

    def _allocate(self, copy_bytes: Optional[int]) -> None:
        backend, room = self._backend, self._backend.free_memory()
        wanted = LARGEST_COPY[backend.name] if copy_bytes is None else copy_bytes
        if room is not None:
            wanted = min(wanted, room // SHARE_OF_MEMORY)
        self.n_steps = max(1, wanted // COPY_BYTES)
        shape = (self.n_steps, COPY_BYTES // 4)
        self._from, self._to = self._alloc("copied from", shape, "u4"), self._alloc("copied to", shape, "u4")
        results = self._alloc("results", (backend.n_blocks, THREADS), "f4")
        self._n_workers = self._alloc("workers", (1,), "u4")
        # numbers that repeat after 16 MB: no copy of a page that stands twice is right
        some = np.random.default_rng(0).integers(0, 1 << 32, min(shape[0], 1024) * shape[1], np.uint32)
        self._content = np.resize(some, shape)
        backend.upload(self._from, self._content)
        backend.upload(self._to, np.zeros(shape, np.uint32))
        self._params: Params = backend.params(
            "CeilingParams",
            words_in=self._from,
            words_out=self._to,
            results=results,
            n_workers=self._n_workers,
            factor=0.75,
            addend=0.25,
        )

    def _alloc(self, label: str, shape: Tuple[int, ...], dtype: str) -> Buffer:
        self._buffers.append(self._backend.alloc(label, shape, dtype))
        return self._buffers[-1]

    def launch(self, name: str, n_repeats: int) -> None:
        """One launch of the kernel that measures ``name``; does not wait."""
        self._params.set(n_repeats=n_repeats)
        self._backend.launch(KERNELS[name], self._backend.n_blocks, self._params)

    def time_ms(self, name: str, n_repeats: int) -> float:
        """Milliseconds of one launch."""
        start = self._backend.mark()
        self.launch(name, n_repeats)
        end = self._backend.mark()
        self._wait()
        return self._backend.elapsed_ms(start, end)

    def _wait(self) -> None:
        self._backend.download(self._n_workers)

    def samples(self, name: str, repeats: int, launch_ms: float) -> List[float]:
        """``repeats`` values of what the name says, a second."""
        if name == "bytes_per_s":
            n_repeats, amount = self.n_steps, 2.0 * COPY_BYTES * self.n_steps
            self.time_ms(name, n_repeats)  # pages are touched for the first time
            if not np.array_equal(self._backend.download(self._to), self._content):
                raise DeviceError(f"{self._backend.device}: a copy in its memory came out wrong; is the memory sound?")
        else:
            n_repeats = self.repeats_for(name, launch_ms)
            chains = 1 if name == "shared_loads_per_s" else CHAINS
            n_workers = int(self._backend.download(self._n_workers)[0])
            amount = float(n_workers) * chains * STEPS * n_repeats
        times = [max(self.time_ms(name, n_repeats), 1e-6) for _ in range(repeats)]
        return [amount / (ms * 1e-3) for ms in times]

    def repeats_for(self, name: str, launch_ms: float) -> int:
        """Rounds of the kernel's loop that take so long."""
        n_repeats = 1
        while True:
            ms = self.time_ms(name, n_repeats)
            if ms >= launch_ms / 2 or n_repeats >= MAX_REPEATS_OF_LOOP:
                return max(1, min(MAX_REPEATS_OF_LOOP, round(n_repeats * launch_ms / max(ms, 1e-6))))
            n_repeats *= 4

    def close(self) -> None:
        for buffer in self._buffers:
            self._backend.free(buffer)
        self._buffers = []

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
