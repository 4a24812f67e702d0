"""NVRTC, the run-time compiler: a library, from its PyPI wheel or a CUDA toolkit, called through ctypes.

It needs no other part of a toolkit and no host compiler. Releases before 11.1 make PTX only, and releases before 11.2
do not tell what they can compile for (JetPack 4.6 has 10.2).
"""

from __future__ import annotations

import ctypes
import glob
import importlib.util
import os
from pathlib import Path
from typing import List, Sequence, Tuple

from edgegs.errors import DeviceError
from edgegs.kernels.toolchains import Compiled, GpuToolchain, by_version, parse_ptxas

#: Of toolkits: NVIDIA's own packages, the distributions', and the layout of other processors'.
PATTERNS = (
    "/usr/local/cuda/lib64/libnvrtc.so*",
    "/usr/local/cuda-*/lib64/libnvrtc.so*",
    "/usr/local/cuda-*/targets/*/lib/libnvrtc.so*",
    "/usr/lib/*-linux-gnu/libnvrtc.so*",
)

INSTALL = "NVRTC not found: `pip install 'nvidia-cuda-nvrtc-cu12<13'` (x86-64), or install a CUDA toolkit"


class Nvrtc(GpuToolchain):
    """One NVRTC library. Raises DeviceError where it cannot be loaded."""

    def __init__(self, path: str) -> None:
        self.path = path
        major, minor = ctypes.c_int(), ctypes.c_int()
        try:
            self._lib = ctypes.CDLL(path)
            self._lib.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        except (OSError, AttributeError) as error:
            raise DeviceError(f"{path} cannot be loaded as NVRTC ({error})") from None
        self.version = (major.value, minor.value)
        self.name = "nvrtc {}.{}".format(*self.version)

    def architectures(self) -> List[str]:
        if not hasattr(self._lib, "nvrtcGetNumSupportedArchs"):
            return []
        count = ctypes.c_int()
        if self._lib.nvrtcGetNumSupportedArchs(ctypes.byref(count)) != 0 or count.value <= 0:
            return []
        numbers = (ctypes.c_int * count.value)()
        if self._lib.nvrtcGetSupportedArchs(numbers) != 0:
            return []
        return [f"sm_{number}" for number in sorted(numbers)]

    def flags(self, arch: str, kind: str) -> List[str]:
        target = arch if kind == "cubin" else arch.replace("sm_", "compute_")
        flags = ["--gpu-architecture=" + target, "--std=c++14", "-default-device"]
        return flags + (["--ptxas-options=-v"] if kind == "cubin" else [])  # releases of PTX only do not know it

    def compile(self, source: Path, arch: str, kind: str) -> Compiled:
        if kind == "cubin" and not hasattr(self._lib, "nvrtcGetCUBIN"):
            raise DeviceError(f"{self.name} makes PTX only (11.1 is the first that makes cubins)")
        program = ctypes.c_void_p()
        try:
            text = source.read_bytes()
        except OSError as error:
            raise DeviceError(f"{source}: {error.strerror}; install edgegs again") from None
        self._check(
            self._call("nvrtcCreateProgram")(
                ctypes.byref(program), ctypes.c_char_p(text), source.name.encode(), 0, None, None
            ),
            "nvrtcCreateProgram",
        )
        try:
            flags = [*self.flags(arch, kind), "-I" + str(source.parent)]
            options = (ctypes.c_char_p * len(flags))(*[os.fsencode(flag) for flag in flags])
            result = self._call("nvrtcCompileProgram")(program, len(flags), options)
            log = self._read(program, "nvrtcGetProgramLog").rstrip(b"\0").decode("utf-8", "replace").strip()
            if result != 0:
                raise DeviceError(f"{self.name} refuses {source.name} for {arch}:\n{log or result}")
            image = self._read(program, "nvrtcGetCUBIN" if kind == "cubin" else "nvrtcGetPTX")
            if not image.strip(b"\0"):
                raise DeviceError(f"{self.name} gives an empty {kind} for {arch}")
            return Compiled(image, log, parse_ptxas(log) if kind == "cubin" else {})
        finally:
            self._call("nvrtcDestroyProgram")(ctypes.byref(program))

    def _call(self, name: str) -> ctypes._NamedFuncPointer:
        try:
            return getattr(self._lib, name)  # type: ignore[no-any-return]
        except AttributeError:
            raise DeviceError(f"{self.name} has no {name} ({self.path})") from None

    def _read(self, program: ctypes.c_void_p, getter: str) -> bytes:
        size = ctypes.c_size_t()
        self._check(self._call(getter + "Size")(program, ctypes.byref(size)), getter + "Size")
        buffer = ctypes.create_string_buffer(size.value)
        self._check(self._call(getter)(program, buffer), getter)
        return buffer.raw

    def _check(self, result: int, call: str) -> None:
        if result != 0:
            raise DeviceError(f"{call} failed with NVRTC error {result} ({self.path})")


def find_nvrtc(patterns: Sequence[str] = PATTERNS) -> Tuple[List[GpuToolchain], List[str]]:
    """The NVRTC libraries of this machine, one a release, and why others were passed over; wheels come first."""
    paths: List[str] = []
    for folder in _wheel_folders():
        paths += by_version(glob.glob(os.path.join(glob.escape(folder), "lib", "libnvrtc.so.*")))
    for pattern in patterns:
        paths += by_version(glob.glob(pattern))
    found: List[GpuToolchain] = []
    missing: List[str] = []
    seen = set()
    for path in paths:
        real = os.path.realpath(path)
        if real in seen or "builtins" in os.path.basename(path) or ".alt." in os.path.basename(path):
            continue
        seen.add(real)
        try:
            library = Nvrtc(path)
        except DeviceError as error:
            missing.append(str(error))
            continue
        if library.name not in (other.name for other in found):
            found.append(library)
    if not found and not missing:
        missing.append(INSTALL)
    return found, missing


def _wheel_folders() -> List[str]:
    """Where the wheels lie: up to CUDA 12 each in a package of its own, from 13 on one for all."""
    folders: List[str] = []
    for package in ("nvidia.cuda_nvrtc", "nvidia.cu13"):
        try:
            spec = importlib.util.find_spec(package)
        except (ImportError, ValueError, AttributeError):
            continue
        if spec is not None:
            folders += list(spec.submodule_search_locations or [])
    return folders
