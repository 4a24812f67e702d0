"""The compilers: nvcc and NVRTC for the GPU images, a C++14 compiler for the host.

Only the standard library is needed here and in nvcc.py and nvrtc.py: the installer uses them before anything else is
installed.
"""

from __future__ import annotations

import abc
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from edgegs.errors import DeviceError

#: How long a compiler may take to say what it is, seconds: the first start from a board's SD card is slow.
PROBE_TIMEOUT_S = 20.0

TOOLCHAINS = ("auto", "nvcc", "nvrtc")


class Compiled(NamedTuple):
    """An image's bytes, the compiler's words, and per entry registers, spill_bytes and shared_bytes."""

    image: bytes
    log: str
    entries: Dict[str, Dict[str, int]]


class GpuToolchain(abc.ABC):
    """A compiler of GPU images; making one raises DeviceError when it cannot be used at all."""

    #: kind and release, such as "nvcc 11.8"
    name: str
    #: where it lies
    path: str
    #: version of the assembler that makes cubins, where that is a program of its own
    ptxas: str = ""

    @abc.abstractmethod
    def architectures(self) -> List[str]:
        """What it can compile for, such as ``sm_53``, in ascending order; empty when it cannot tell."""

    @abc.abstractmethod
    def flags(self, arch: str, kind: str) -> List[str]:
        """The options it is called with."""

    @abc.abstractmethod
    def compile(self, source: Path, arch: str, kind: str) -> Compiled:
        """Compile to a cubin or PTX (``kind``); a refusal is a DeviceError with the compiler's own words."""

    def why_not(self, arch: str) -> str:
        """Why it cannot compile for ``arch``; empty when it can, or when it cannot tell."""
        known = self.architectures()
        if not known or arch in known:
            return ""
        return f"{self.name} cannot compile for {arch} (it knows {known[0]} to {known[-1]})"


class Toolchains(NamedTuple):
    """The GPU compilers of this machine, the first choice first, and why others that were looked for are missing."""

    found: List[GpuToolchain]
    missing: List[str]


def find_toolchains(which: str = "auto", timeout_s: float = PROBE_TIMEOUT_S) -> Toolchains:
    """The compilers that ``--toolchain which`` may use, in the order in which they are asked.

    ``auto`` asks NVRTC first, because it needs no host compiler. A Tegra board asks nvcc first: its driver knows the
    toolkit that came with it, and may refuse what a newer one makes.
    """
    from edgegs.kernels.nvcc import find_nvcc
    from edgegs.kernels.nvrtc import find_nvrtc

    order = [which] if which != "auto" else (["nvcc", "nvrtc"] if is_tegra() else ["nvrtc", "nvcc"])
    found: List[GpuToolchain] = []
    missing: List[str] = []
    for kind in order:
        here, reasons = find_nvcc(timeout_s) if kind == "nvcc" else find_nvrtc()
        found += here
        missing += reasons
    return Toolchains(found, missing)


def is_tegra(compatible: str = "/proc/device-tree/compatible") -> bool:
    """Whether this is a Jetson (or another Tegra board)."""
    try:
        return b"nvidia,tegra" in Path(compatible).read_bytes()
    except OSError:
        return False


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


def by_version(paths: Sequence[str]) -> List[str]:
    """Paths with the highest version number first: cuda-12.10 stands before cuda-12.9, and both before cuda-9.2."""

    def numbers(path: str) -> Tuple[List[int], str]:
        return [int(number) for number in re.findall(r"[0-9]+", path)], path

    return sorted(paths, key=numbers, reverse=True)


def _run(command: Sequence[str], env: Optional[Mapping[str, str]], timeout_s: Optional[float]) -> Tuple[int, str]:
    """Exit status and output of a program; DeviceError when it does not run or hangs."""
    try:
        done = subprocess.run(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=None if env is None else dict(env),
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        raise DeviceError(f"{command[0]} does not answer within {timeout_s:g} s") from None
    except (OSError, ValueError) as error:
        raise DeviceError(f"{command[0]} does not run: {getattr(error, 'strerror', None) or error}") from None
    return done.returncode, done.stdout.decode("utf-8", "replace").strip()


def ask(command: Sequence[str], env: Optional[Mapping[str, str]] = None, timeout_s: float = PROBE_TIMEOUT_S) -> str:
    """What a program prints; DeviceError when it does not run, fails or hangs."""
    status, words = _run(command, env, timeout_s)
    if status != 0:
        last = words.splitlines()[-1] if words else f"exit status {status}"
        raise DeviceError(f"{' '.join(command[:2])} fails: {last}")
    return words


def run_compiler(command: Sequence[str], output: Path, env: Optional[Mapping[str, str]] = None) -> Tuple[bytes, str]:
    """Run a compiler that writes ``output``; returns its bytes and the compiler's words.

    Raises:
        DeviceError: it does not run, refuses (the message holds its words), or writes no file.
    """
    status, words = _run(command, env, None)
    if status < 0:
        killed = f"killed by signal {-status}; is memory short? add swap, or close what else runs"
        words = f"{words}\n{killed}" if words else killed
    if status != 0:
        raise DeviceError(words or f"exit status {status}, and no word why")
    try:
        content = output.read_bytes()
    except OSError:
        content = b""
    if not content:
        raise DeviceError(words or "it says that all is well, but wrote no file")
    return content, words


class HostCompiler:
    """A C++14 compiler for the host backend: ``$CXX`` (a command line, such as ``ccache g++``), else g++ or clang++.

    Raises DeviceError where none is found.
    """

    SANITIZERS = ("-fsanitize=address,undefined,float-cast-overflow", "-fno-sanitize-recover=all", "-g")

    def __init__(self, timeout_s: float = PROBE_TIMEOUT_S) -> None:
        self.command = os.environ.get("CXX", "").strip() or shutil.which("g++") or shutil.which("clang++") or ""
        if not self.command:
            raise DeviceError("no C++ compiler found: `apt install g++`, or name one in CXX")
        try:
            self.argv = shlex.split(self.command)
        except ValueError as error:
            raise DeviceError(f"CXX={self.command!r} is no command line ({error}); name a compiler in it") from None
        try:
            words = ask([*self.argv, "--version"], timeout_s=timeout_s)
        except DeviceError as error:
            raise DeviceError(f"the C++ compiler {self.command!r} cannot be used: {error}") from None
        self.name = words.splitlines()[0] if words else self.command

    def flags(self, check: bool, sanitize: bool) -> List[str]:
        flags = ["-std=c++14", "-O1" if sanitize else "-O3", "-march=native", "-fPIC", "-pthread"]
        # g++ would fuse multiply and add where it sees fit; the two host builds must round alike
        flags += ["-ffp-contract=off", "-fno-math-errno", "-Wall", "-Wextra", "-DEDGEGS_HOST"]
        flags += ["-DEDGEGS_HOST_CHECK"] if check else []
        return flags + (list(self.SANITIZERS) if sanitize else [])

    def compile(self, sources: Path, output: Path, check: bool, sanitize: bool) -> bytes:
        """Build the shared library as ``output``, and return its bytes; DeviceError has the compiler's words."""
        files = ["host/runtime.cpp"] + (["host/fibers.cpp"] if check else [])
        command = [*self.argv, *self.flags(check, sanitize), "-shared", "-o", str(output), "-I" + str(sources)]
        command += [str(sources / name) for name in files] + ["-x", "c++", str(sources / "edgegs.cu")]
        try:
            return run_compiler(command, output)[0]
        except DeviceError as error:
            raise DeviceError(f"{self.command} cannot build the host kernels:\n{error}") from None


def cpu_flags() -> List[str]:
    """The instruction-set extensions of this machine's processor, as Linux names them."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    match = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", text, re.MULTILINE)
    return sorted(match.group(1).split()) if match else []
