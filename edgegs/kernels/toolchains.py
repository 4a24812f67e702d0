"""The compilers: NVRTC for the GPU images (from its PyPI wheel or a CUDA toolkit), a C++14 compiler for the host.

Only the standard library is needed here: the installer uses this module before anything else is installed.
"""

from __future__ import annotations

import ctypes
import glob
import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional

from edgegs.errors import DeviceError


class Compiled(NamedTuple):
    """An image's bytes, the compiler's words, and per entry registers, spill_bytes and shared_bytes."""

    image: bytes
    log: str
    entries: Dict[str, Dict[str, int]]


def parse_ptxas(log: str) -> Dict[str, Dict[str, int]]:
    """Registers, spills and shared memory of every entry, from the words of ``ptxas -v``."""
    entries: Dict[str, Dict[str, int]] = {}
    name = None
    for line in log.splitlines():
        started = re.search(r"(?:Compiling entry function|Function properties for) '?(\w+)'?", line)
        if started:
            name = started.group(1)
            entries.setdefault(name, {"registers": 0, "spill_bytes": 0, "shared_bytes": 0})
        if name is None:
            continue
        spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line)
        if spills:
            entries[name]["spill_bytes"] = int(spills.group(1)) + int(spills.group(2))
        used = re.search(r"Used (\d+) registers", line)
        if used:
            entries[name]["registers"] = int(used.group(1))
            shared = re.search(r"(\d+) bytes smem", line)
            entries[name]["shared_bytes"] = int(shared.group(1)) if shared else 0
    return entries


class Nvrtc:
    """NVRTC through ctypes. Raises DeviceError where no library is found."""

    def __init__(self) -> None:
        self.path = _find_nvrtc()
        if self.path is None:
            raise DeviceError(
                "NVRTC not found: `pip install nvidia-cuda-nvrtc-cu12` (x86-64), or install a CUDA toolkit"
            )
        self._lib = ctypes.CDLL(self.path)
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._lib.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        self.version = f"{major.value}.{minor.value}"
        self.name = "nvrtc " + self.version

    def architectures(self) -> List[str]:
        """What it can compile for, such as ``sm_53``."""
        count = ctypes.c_int()
        if self._lib.nvrtcGetNumSupportedArchs(ctypes.byref(count)) != 0:
            return []
        numbers = (ctypes.c_int * count.value)()
        self._lib.nvrtcGetSupportedArchs(numbers)
        return [f"sm_{number}" for number in numbers]

    def flags(self, arch: str, kind: str) -> List[str]:
        target = arch if kind == "cubin" else arch.replace("sm_", "compute_")
        return ["--gpu-architecture=" + target, "--std=c++14", "--ptxas-options=-v", "-default-device"]

    def compile(self, source: Path, arch: str, kind: str) -> Compiled:
        """Compile to a cubin or PTX (``kind``); a refusal is a DeviceError with the compiler's own words."""
        program = ctypes.c_void_p()
        text = source.read_bytes()
        self._check(
            self._lib.nvrtcCreateProgram(
                ctypes.byref(program), ctypes.c_char_p(text), source.name.encode(), 0, None, None
            ),
            "nvrtcCreateProgram",
        )
        try:
            flags = [*self.flags(arch, kind), "-I" + str(source.parent)]
            options = (ctypes.c_char_p * len(flags))(*[flag.encode() for flag in flags])
            result = self._lib.nvrtcCompileProgram(program, len(flags), options)
            log = self._read(program, "nvrtcGetProgramLog").rstrip(b"\0").decode("utf-8", "replace").strip()
            if result != 0:
                raise DeviceError(f"{self.name} refuses {source.name} for {arch}:\n{log or result}")
            image = self._read(program, "nvrtcGetCUBIN" if kind == "cubin" else "nvrtcGetPTX")
            return Compiled(image, log, parse_ptxas(log) if kind == "cubin" else {})
        finally:
            self._lib.nvrtcDestroyProgram(ctypes.byref(program))

    def _read(self, program: ctypes.c_void_p, getter: str) -> bytes:
        size = ctypes.c_size_t()
        self._check(getattr(self._lib, getter + "Size")(program, ctypes.byref(size)), getter + "Size")
        buffer = ctypes.create_string_buffer(size.value)
        self._check(getattr(self._lib, getter)(program, buffer), getter)
        return buffer.raw

    def _check(self, result: int, call: str) -> None:
        if result != 0:
            raise DeviceError(f"{call} failed with NVRTC error {result} ({self.path})")


def _find_nvrtc() -> Optional[str]:
    candidates: List[str] = []
    try:
        spec = importlib.util.find_spec("nvidia.cuda_nvrtc")
    except ImportError:
        spec = None
    for folder in (spec.submodule_search_locations or []) if spec else []:
        candidates += sorted(glob.glob(os.path.join(folder, "lib", "libnvrtc.so.*")))
    for pattern in ("/usr/local/cuda*/lib64/libnvrtc.so*", "/usr/lib/*-linux-gnu/libnvrtc.so*"):
        candidates += sorted(glob.glob(pattern), reverse=True)
    for candidate in candidates:
        if "builtins" in candidate or ".alt" in candidate:
            continue
        try:
            ctypes.CDLL(candidate)
            return candidate
        except OSError:
            continue
    return None


class HostCompiler:
    """A C++14 compiler for the host backend. Raises DeviceError where none is found."""

    SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g")

    def __init__(self) -> None:
        self.command = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++") or ""
        if not self.command:
            raise DeviceError("no C++ compiler found: `apt install g++`, or name one in CXX")
        try:
            done = subprocess.run(
                [self.command, "--version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=True, text=True
            )
        except (OSError, subprocess.CalledProcessError) as error:
            raise DeviceError(f"the C++ compiler {self.command!r} does not run: {error}") from None
        self.name = done.stdout.splitlines()[0]

    def flags(self, check: bool, sanitize: bool) -> List[str]:
        flags = ["-std=c++14", "-O1" if sanitize else "-O3", "-march=native", "-fPIC", "-pthread"]
        # g++ would fuse multiply and add where it sees fit; the two host builds must round alike
        flags += ["-ffp-contract=off", "-fno-math-errno", "-Wall", "-Wextra", "-DEDGEGS_HOST"]
        flags += ["-DEDGEGS_HOST_CHECK"] if check else []
        return flags + (list(self.SANITIZERS) if sanitize else [])

    def compile(self, sources: Path, output: Path, check: bool, sanitize: bool) -> str:
        """Build the shared library; returns the compiler's words, or raises DeviceError with them."""
        files = ["host/runtime.cpp"] + (["host/fibers.cpp"] if check else [])
        command = [self.command, *self.flags(check, sanitize), "-shared", "-o", str(output), "-I" + str(sources)]
        command += [str(sources / name) for name in files] + ["-x", "c++", str(sources / "edgegs.cu")]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            raise DeviceError(f"{self.command} cannot build the host kernels:\n{done.stdout.strip()}")
        return done.stdout.strip()


def cpu_flags() -> List[str]:
    """The instruction-set extensions of this machine's processor, as Linux names them."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    match = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", text, re.MULTILINE)
    return sorted(match.group(1).split()) if match else []
