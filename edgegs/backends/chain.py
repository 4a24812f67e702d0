"""Launches that begin before the one before them ends, for which pycuda has no call.

From compute capability 9.0 on a launch's blocks can take their places while the last blocks of the one before still
run; they wait there until it has ended (cuda/platform.cuh: ``wait_for_previous``), so that no time passes between the
two. That is ``cuLaunchKernelEx`` with one attribute (CUDA Driver API, "Programmatic Stream Serialization"), called by
ctypes.
"""

from __future__ import annotations

import ctypes
from typing import Dict, Tuple

from edgegs.errors import DeviceError

#: What an image must be built for: earlier ones do not wait.
CAPABILITY = (9, 0)
#: How the names of the kernels begin that wait: those of key ``bins``. To launch another one so would be a race.
CHAINED = ("project_bins_", "lists_", "rasterize_patch", "rasterize_tensor")
#: CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION of cuda.h.
SERIALIZATION = 6


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute; its value is a union of 64 bytes."""

    _fields_ = [
        ("id", ctypes.c_uint),
        ("padding", ctypes.c_char * 4),
        ("value", ctypes.c_int),
        ("rest", ctypes.c_char * 60),
    ]


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("n_attributes", ctypes.c_uint),
    ]


class Chain:
    """The chained kernels of an image, in the thread's current context, on one stream.

    Args:
        image: a cubin or PTX built for ``CAPABILITY`` or later.
        stream: its CUstream.

    Raises DeviceError where the driver has no such launches (before CUDA 11.8), and what it says at any call.
    """

    def __init__(self, image: bytes, stream: int) -> None:
        try:
            self._driver = ctypes.CDLL("libcuda.so.1")
            self._launch = self._driver.cuLaunchKernelEx
        except (OSError, AttributeError) as error:
            raise DeviceError(f"the driver cannot chain launches: {error}") from None
        self._launch.argtypes = [ctypes.POINTER(_Config), ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
        self._stream = stream
        self._attribute = _Attribute(id=SERIALIZATION, value=1)
        self._module = ctypes.c_void_p()
        self._check(self._driver.cuModuleLoadData(ctypes.byref(self._module), image))
        self._functions: Dict[str, Tuple[ctypes.c_void_p, _Config]] = {}
        self._address = ctypes.c_void_p()
        self._arguments = ctypes.pointer(self._address)

    def launch(self, kernel: str, n_blocks: int, threads: int, address: int) -> None:
        """Launch it with the struct of parameters that lies at ``address``, which is copied; does not wait."""
        if kernel not in self._functions:
            function = ctypes.c_void_p()
            self._check(self._driver.cuModuleGetFunction(ctypes.byref(function), self._module, kernel.encode()))
            config = _Config(stream=self._stream, attributes=ctypes.pointer(self._attribute), n_attributes=1)
            config.grid[:] = [1, 1, 1]
            config.block[:] = [threads, 1, 1]
            self._functions[kernel] = (function, config)
        function, config = self._functions[kernel]
        config.grid[0] = n_blocks
        self._address.value = address
        self._check(self._launch(config, function, self._arguments, None))

    def _check(self, result: int) -> None:
        if result == 0:
            return
        name = ctypes.c_char_p()
        self._driver.cuGetErrorName(result, ctypes.byref(name))
        raise DeviceError((name.value or b"CUDA error").decode() + f" ({result})")
