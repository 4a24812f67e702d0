"""nvcc, the compiler of the CUDA toolkits: on PATH, or where toolkits are installed; several may be there.

An nvcc that meets another release's ptxas on PATH fails, or builds with it and says nothing. So each is run with the
folder of its own ptxas first on PATH, and one that has none of its own release is not used at all.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from edgegs.errors import DeviceError
from edgegs.kernels.toolchains import (
    PROBE_TIMEOUT_S,
    Compiled,
    GpuToolchain,
    ask,
    by_version,
    parse_ptxas,
    run_compiler,
)

#: Where toolkits lie that are not on PATH: JetPack's and NVIDIA's packages, then Debian's and Ubuntu's.
PATTERNS = ("/usr/local/cuda/bin/nvcc", "/usr/local/cuda-*/bin/nvcc", "/usr/lib/nvidia-cuda-toolkit/bin/nvcc")

INSTALL = "nvcc not found: install a CUDA toolkit, or put its bin folder on PATH"

_RELEASE = re.compile(r"release (\d+)\.(\d+)(?:, V([\d.]+))?")


class Release(NamedTuple):
    """(11, 8) and "11.8.89"."""

    number: Tuple[int, int]
    words: str


class Nvcc(GpuToolchain):
    """One nvcc with the ptxas of its release. Raises DeviceError where it cannot be used."""

    def __init__(self, path: str, timeout_s: float = PROBE_TIMEOUT_S) -> None:
        self.path = path
        self._timeout_s = timeout_s
        release = _release_of(path, None, timeout_s)
        self.name = "nvcc {}.{}".format(*release.number)
        self.home = _home_of(path, timeout_s)
        self._env, self.ptxas = self._environment(release)
        self._known: Optional[List[str]] = None

    def _environment(self, release: Release) -> Tuple[Dict[str, str], str]:
        """The environment with the folder of the matching ptxas first on PATH, and that ptxas's version."""
        on_path = [folder for folder in os.environ.get("PATH", os.defpath).split(os.pathsep) if folder]
        met = []
        for folder in dict.fromkeys([self.home, os.path.dirname(self.path), *on_path]):
            program = os.path.join(folder, "ptxas")
            if not os.access(program, os.X_OK):
                continue
            try:
                its = _release_of(program, None, self._timeout_s)
            except DeviceError:
                continue
            if its.number == release.number:
                return dict(os.environ, PATH=os.pathsep.join([folder, self.home, *on_path])), its.words
            met.append(f"{program} is {its.words}")
        raise DeviceError(f"{self.name} ({self.path}) has no ptxas of its release" + "".join("; " + one for one in met))

    def architectures(self) -> List[str]:
        if self._known is None:
            try:
                listed = ask([self.path, "--list-gpu-arch"], self._env, self._timeout_s)
                numbers = re.findall(r"^compute_([0-9]+)$", listed, re.MULTILINE)
            except DeviceError:  # the option came with CUDA 11
                numbers = self._from_help()
            self._known = [f"sm_{number}" for number in sorted({int(number) for number in numbers})]
        return self._known

    def _from_help(self) -> List[str]:
        """From the allowed values of --gpu-architecture and --gpu-code; its examples name other ones, too."""
        try:
            text = ask([self.path, "--help"], self._env, self._timeout_s)
        except DeviceError:
            return []
        lists = re.findall(r"Allowed values for this option:(.*?)\.\s*(?:\n\s*\n|\n-|$)", text, re.DOTALL)
        return re.findall(r"'sm_([0-9]+)'", " ".join(lists))

    def flags(self, arch: str, kind: str) -> List[str]:
        # constants are computed by plain constexpr functions, which NVRTC takes for device code and nvcc for the host's
        flags = ["-std=c++14", "--expt-relaxed-constexpr"]
        if kind == "ptx":
            return [*flags, "-ptx", "-arch=" + arch.replace("sm_", "compute_")]
        return [*flags, "-cubin", "-arch=" + arch, "-Xptxas", "-v"]

    def compile(self, source: Path, arch: str, kind: str) -> Compiled:
        try:
            with tempfile.TemporaryDirectory(prefix="edgegs-nvcc-") as scratch:
                output = Path(scratch) / ("image." + kind)
                flags = self.flags(arch, kind)
                command = [self.path, *flags, "-I" + str(source.parent), "-o", str(output), str(source)]
                image, words = run_compiler(command, output, self._env)
        except DeviceError as error:
            hint = ""
            if re.search(r"host compiler|unsupported GNU|unsupported clang", str(error)):
                hint = "\n(name a compiler that it accepts: NVCC_PREPEND_FLAGS='-ccbin g++-11')"
            raise DeviceError(f"{self.name} cannot compile {source.name} for {arch}:\n{error}{hint}") from None
        except OSError as error:
            where = tempfile.gettempdir()
            raise DeviceError(f"no room for {self.name} in {where} ({error.strerror}); set TMPDIR") from None
        if kind == "ptx":
            return Compiled(image + b"\0", words, {})  # the driver reads PTX up to a NUL, and NVRTC's ends in one
        return Compiled(image, words, parse_ptxas(words))


def _release_of(program: str, env: Optional[Dict[str, str]], timeout_s: float) -> Release:
    words = ask([program, "--version"], env, timeout_s)
    match = _RELEASE.search(words)
    if match is None:
        raise DeviceError(f"{program} does not say which release it is")
    major, minor = int(match.group(1)), int(match.group(2))
    return Release((major, minor), match.group(3) or f"{major}.{minor}")


def _home_of(path: str, timeout_s: float) -> str:
    """The folder of the program itself: what is on PATH may be a script that calls it."""
    command = [path, "--dryrun", "-x", "cu", "-c", os.devnull, "-o", os.devnull]
    try:
        told = re.search(r"_HERE_=(\S.*)", ask(command, None, timeout_s))
    except DeviceError:
        told = None
    return os.path.realpath(told.group(1).strip() if told else os.path.dirname(os.path.realpath(path)))


def find_nvcc(
    timeout_s: float = PROBE_TIMEOUT_S, patterns: Sequence[str] = PATTERNS
) -> Tuple[List[GpuToolchain], List[str]]:
    """The nvccs of this machine, one a toolkit, and why others were passed over; those on PATH come first."""
    paths: List[str] = []
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        on_path = shutil.which("nvcc", path=folder) if folder else None
        paths += [on_path] if on_path else []
    for pattern in patterns:
        paths += by_version([path for path in glob.glob(pattern) if os.access(path, os.X_OK)])
    found: List[Nvcc] = []
    missing: List[str] = []
    seen = set()
    for path in paths:
        real = os.path.realpath(path)
        if real in seen:
            continue
        seen.add(real)
        try:
            compiler = Nvcc(path, timeout_s)
        except DeviceError as error:
            missing.append(str(error))
            continue
        if compiler.home not in (other.home for other in found):
            found.append(compiler)
    if not found and not missing:
        missing.append(INSTALL)
    return list(found), missing
