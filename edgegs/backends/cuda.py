"""The CUDA backend: the only file that imports pycuda.

One thread owns the context. Launches and small copies go to one stream, pictures come back on another, so that the
next frame is drawn while the last one is read. Images are loaded from buffers; nothing is compiled here.
"""

from __future__ import annotations

import contextlib
import logging
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np

from edgegs.backends.base import Buffer, Fetch, Params
from edgegs.backends.chain import CAPABILITY, CHAINED, Chain
from edgegs.backends.structs import StructBackend, StructParams
from edgegs.errors import DeviceError
from edgegs.kernels.headers import constants
from edgegs.kernels.select import Candidate, candidates, capability_of, read_image
from edgegs.kernels.variants import BLOCKS_PER_MULTIPROCESSOR

try:
    import pycuda.driver as driver
except ImportError as import_error:  # the extra `cuda` is not installed, or libcuda.so is missing
    driver = None
    missing = str(import_error)
else:
    missing = ""

log = logging.getLogger(__name__)

C = constants()
#: Threads a block, by the beginning of a kernel's name; the first that fits counts.
THREADS = {
    "project_bins": "BINS_THREADS",
    "project": "PROJECT_THREADS",
    "duplicate": "DUPLICATE_THREADS",
    "lists_fill": "FILL_THREADS",
    "lists_sort_few": "FEW_LISTS_THREADS",
    "lists_sort": "LIST_THREADS",
    "sort_compact": "DUPLICATE_THREADS",
    "sort": "SORT_THREADS",
    "ranges": "RANGES_THREADS",
    "rasterize_block": "RASTERIZE_THREADS",
    "rasterize_dual": "DUAL_THREADS",
    "rasterize_patch": "PATCH_THREADS",
    "rasterize_tensor": "PATCH_THREADS",
    "count_patch": "PATCH_THREADS",
    "score": "RASTERIZE_THREADS",
    "ceiling": "CEILING_THREADS",
}
#: Compute capabilities of GeForce (and its siblings) that sum products of halves as floats at half the rate: their
#: tensor cores would be busy as long as the other units are without them (192 clocks for 8 splats and 64 pixels against
#: 180 slots). Predicted; `edgegs tune` tries both.
HALF_RATE = ((8, 6), (8, 9), (12, 0))
#: Copies up to this size go in line with the launches; larger ones beside them, bytes.
SMALL = 4096


@contextlib.contextmanager
def driver_errors(doing: str) -> Iterator[None]:
    """The driver's errors as ours: a GPU that is lost may say so at any call."""
    try:
        yield
    except driver.Error as error:
        raise DeviceError(f"the GPU failed while {doing}: {error}") from None


class CudaFetch(Fetch):
    """Copies to page-locked memory that are complete when ``done`` is."""

    def __init__(self, staged: List[np.ndarray], done: Any) -> None:
        self._staged = staged
        self._done = done

    def wait(self) -> List[np.ndarray]:
        with driver_errors("drawing a frame"):
            self._done.synchronize()
        # out of the staging memory, which the next frame in this slot reuses
        return [array.copy() for array in self._staged]


class CudaBackend(StructBackend):
    """Raises DeviceError when there is no GPU, no image for it, or no pycuda; the message says what to do."""

    name = "cuda"
    depth = 2

    def __init__(self, index: int = 0, image: Optional[str] = None) -> None:
        if driver is None:
            raise DeviceError(f"pycuda cannot be imported ({missing}); `pip install 'edgegs[cuda]'`")
        try:
            driver.init()
            n_devices = driver.Device.count()
            if n_devices <= index:
                raise DeviceError(f"there are {n_devices} CUDA devices, none with index {index}")
            device = driver.Device(index)
            self._context = device.make_context(driver.ctx_flags.SCHED_BLOCKING_SYNC)
        except driver.Error as error:
            raise DeviceError(f"no usable NVIDIA GPU: {error}; `nvidia-smi` or `edgegs doctor` may tell why") from None
        self._open = True
        try:
            major, minor = device.compute_capability()
            self.compute_capability = (major, minor)
            self.pci_bus_id = str(device.pci_bus_id())
            self.is_integrated = bool(device.get_attribute(driver.device_attribute.INTEGRATED))
            candidate, content, self._module = self._load(image)
            self.image = candidate.image.file
            self.has_tensor_cores = self._has("rasterize_tensor8_fast")
            self.prefers_tensor_cores = self.has_tensor_cores and (major, minor) not in HALF_RATE
            attribute = driver.device_attribute
            self.n_blocks = BLOCKS_PER_MULTIPROCESSOR * device.get_attribute(attribute.MULTIPROCESSOR_COUNT)
            self._compute, self._copy = driver.Stream(), driver.Stream()
            self._chain = self._make_chain(candidate, content)
        except BaseException:
            self.close()
            raise
        self.device = f"{device.name()}, compute capability {major}.{minor}"
        self._functions: Dict[str, Any] = {}
        self._n_fetches = 0

    def _load(self, image: Optional[str]) -> Tuple[Candidate, bytes, Any]:
        """The first image that the driver takes, its bytes, its module; what it says of the others is for the error."""
        refusals = []
        for candidate in candidates(self.compute_capability, image):
            try:
                content = read_image(candidate)
                return candidate, content, driver.module_from_buffer(content)
            except (driver.Error, DeviceError) as error:
                refusals.append(f"{candidate.image.file}: {error}")
        capability = "sm_{}{}".format(*self.compute_capability)
        why = "; ".join(refusals) or "none is built for it"
        build = f"run `edgegs kernels build --arch {capability}`"
        raise DeviceError(f"no kernel image runs on this GPU ({capability}): {why}; {build}")

    def _make_chain(self, candidate: Candidate, content: bytes) -> Optional[Chain]:
        if capability_of(candidate.image.arch) < CAPABILITY:
            return None
        try:
            return Chain(content, self._compute.handle)
        except DeviceError as error:
            log.info("launches are not chained: %s", error)
            return None

    def _has(self, kernel: str) -> bool:
        try:
            self._module.get_function(kernel)
        except driver.LogicError:  # an image for earlier GPUs leaves some out
            return False
        return True

    def alloc(self, label: str, shape: Sequence[int], dtype: Any) -> Buffer:
        shape = tuple(int(n) for n in shape)
        n_bytes = int(np.prod(shape, dtype=object)) * np.dtype(dtype).itemsize
        try:
            memory = driver.mem_alloc(max(1, n_bytes))
        except driver.MemoryError:
            free, total = driver.mem_get_info()
            raise DeviceError(
                f"{label}: {n_bytes / 1e6:.0f} MB of GPU memory asked, {free / 1e6:.0f} of {total / 1e6:.0f} MB are "
                "free; lower scene.max_gaussians or the picture size"
            ) from None
        return Buffer(label, shape, dtype, memory, int(memory))

    def free(self, buffer: Buffer) -> None:
        buffer.staging.clear()
        if buffer.memory is not None:
            buffer.memory.free()
            buffer.memory = None

    def upload(self, buffer: Buffer, array: np.ndarray) -> None:
        if buffer.n_bytes:
            with driver_errors(f"uploading {buffer.label}"):
                driver.memcpy_htod(buffer.memory, np.ascontiguousarray(array, buffer.dtype))

    def send(self, buffer: Buffer, array: np.ndarray) -> None:
        with driver_errors(f"sending {buffer.label}"):
            memory = self._stage(buffer, 0)
            memory[...] = array
            driver.memcpy_htod_async(buffer.memory, memory, self._compute)

    def download(self, buffer: Buffer) -> np.ndarray:
        array = np.empty(buffer.shape, buffer.dtype)
        with driver_errors(f"reading {buffer.label}"):
            self._compute.synchronize()
            if buffer.n_bytes:
                driver.memcpy_dtoh(array, buffer.memory)
        return array

    def fetch(self, buffers: Sequence[Buffer]) -> Fetch:
        with driver_errors("reading a frame"):
            return self._fetch(buffers)

    def _fetch(self, buffers: Sequence[Buffer]) -> Fetch:
        self._copy.wait_for_event(self.mark())
        self._n_fetches += 1
        staged = []
        for buffer in buffers:
            # the next frame writes the counters again, so small buffers are copied in line, and each frame under
            # way has staging memory of its own
            small = buffer.n_bytes <= SMALL
            memory = self._stage(buffer, self._n_fetches % (self.depth + 1) if small else 0)
            driver.memcpy_dtoh_async(memory, buffer.memory, self._compute if small else self._copy)
            staged.append(memory)
        self._copy.wait_for_event(self.mark())
        done = driver.Event()
        done.record(self._copy)
        return CudaFetch(staged, done)

    def _stage(self, buffer: Buffer, turn: int) -> np.ndarray:
        """Page-locked memory for a copy; pageable on integrated GPUs, whose CPUs read that many times faster."""
        if turn not in buffer.staging:
            make = np.empty if self.is_integrated else driver.pagelocked_empty
            buffer.staging[turn] = make(buffer.shape, buffer.dtype)
        return buffer.staging[turn]

    def launch(self, kernel: str, n_blocks: int, params: Params) -> None:
        assert isinstance(params, StructParams)
        threads = 0
        try:
            if kernel not in self._functions:
                threads = next(int(C[name]) for start, name in THREADS.items() if kernel.startswith(start))
                function = self._module.get_function(kernel)
                function.prepare([params.record.dtype])
                self._functions[kernel] = (function, (threads, 1, 1))
            function, block = self._functions[kernel]
            threads = block[0]
            if self._chain is not None and kernel.startswith(CHAINED):
                self._chain.launch(kernel, n_blocks, threads, params.address)
            else:
                function.prepared_async_call((n_blocks, 1), block, self._compute, params.record.tobytes())
        except (driver.Error, DeviceError) as error:
            raise DeviceError(f"{kernel} <<<{n_blocks}, {threads}>>> of {self.image}: {error}") from None

    def mark(self) -> Any:
        with driver_errors("drawing a frame"):
            event = driver.Event()
            event.record(self._compute)
        return event

    def elapsed_ms(self, start: Any, end: Any) -> float:
        with driver_errors("timing a frame"):
            return float(end.time_since(start))

    def free_memory(self) -> int:
        return int(driver.mem_get_info()[0])

    def close(self) -> None:
        if self._open:
            self._open = False
            self._context.pop()
            self._context.detach()
