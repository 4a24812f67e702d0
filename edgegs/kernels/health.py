"""The doctor's look at GPU, driver, compilers and kernel images."""

from __future__ import annotations

import os
import re
import shutil
from typing import TYPE_CHECKING, List, Optional, Tuple

from edgegs.doctor.machine import Machine
from edgegs.errors import DeviceError, EdgegsError
from edgegs.findings import OK, Finding, note, problem, warning
from edgegs.kernels import gpu
from edgegs.kernels.build import DEFAULT_ARCHS
from edgegs.kernels.manifest import Image, is_gpu_arch, source_hash
from edgegs.kernels.select import Candidate, every_image, verdicts
from edgegs.kernels.toolchains import GpuToolchain, HostCompiler, ask, find_toolchains

if TYPE_CHECKING:
    from edgegs.telemetry.board import Board

#: Device nodes without which no CUDA program runs: a PC's, then a Jetson's.
DEVICE_NODES = ("dev/nvidiactl", "dev/nvidia0", "dev/nvmap", "dev/nvhost-ctrl-gpu", "dev/nvhost-gpu")
#: How long one program may take to answer, seconds.
ASK_TIMEOUT_S = 5.0
#: Where JetPack keeps the driver's library.
TEGRA_LIBCUDA = "usr/lib/aarch64-linux-gnu/tegra/libcuda.so*"


def gpu_and_images(root: str = "/") -> List[Finding]:
    """GPU, driver, and which images this machine would take.

    Args:
        root: where ``dev``, ``proc``, ``sys`` and ``etc`` lie.
    """
    from edgegs.telemetry.board import identify

    machine = Machine(root)
    board = identify(machine.path("sys"), machine.path("etc/nv_tegra_release"))
    device, reason = gpu.detect(ASK_TIMEOUT_S)
    return [*_gpu(machine, board, device, reason), *_driver(machine, board), *_images(device, reason)]


def _gpu(machine: Machine, board: Board, device: Optional[gpu.Gpu], reason: str) -> List[Finding]:
    if device is not None:
        says = "{}, sm_{}{}, {:.1f} GB; the driver knows CUDA {}".format(
            device.name, *device.capability, device.memory_bytes / 1e9, device.cuda
        )
        return [Finding("gpu", OK, says)]
    # /dev/nvidiactl alone says nothing: tools make it on machines without a GPU
    on_bus = _pci_gpus(machine) or [path for path in _nodes(machine) if path.endswith("nvidia0")]
    if not board.is_tegra and not on_bus:
        return [Finding("gpu", OK, "no NVIDIA GPU here: the host backend draws")]
    name = (board.model or "a Tegra board") if board.is_tegra else "NVIDIA GPU " + ", ".join(on_bus)
    says = f"{name} is not used: {reason}"
    if "pycuda cannot be imported" in reason:
        return [_without_pycuda(machine, board, says), *_stubs(machine)]
    if machine.in_container and not _nodes(machine):
        fix = "start the container with --gpus all (a PC) or --runtime nvidia (a Jetson)"
        return [warning("gpu", "gpu-not-in-container", f"{name} was not passed on to this container", fix)]
    closed = [node for node in _nodes(machine) if not os.access(node, os.R_OK | os.W_OK)]
    if closed:
        says = f"{name} is not used: this user may not open {', '.join(closed)}"
        fix = "sudo usermod -aG video,render $USER, then log in again"
        return [problem("gpu", "gpu-permission", says, fix)]
    if not board.is_tegra and machine.exists("proc/driver/nvidia/version") and not machine.exists("dev/nvidia-uvm"):
        says = f"{name} is not usable: /dev/nvidia-uvm is missing ({reason})"
        return [problem("gpu", "uvm-missing", says, "sudo nvidia-modprobe -u -c=0, or sudo modprobe nvidia-uvm")]
    fix = "" if board.is_tegra else "nvidia-smi (it may say more); install the driver, or reboot after its upgrade"
    fix = fix or "sudo dmesg | grep -i nv (it may say more); reboot, or write JetPack again"
    return [problem("gpu", "gpu-refused", f"{name} is not usable: {reason}", fix), *_stubs(machine)]


def _without_pycuda(machine: Machine, board: Board, says: str) -> Finding:
    if "libcuda" in says or (board.is_tegra and machine.exists("usr/lib") and not machine.find(TEGRA_LIBCUDA)):
        fix = "install the NVIDIA driver (Ubuntu: sudo ubuntu-drivers install)"
        if board.is_tegra:
            fix = "sudo apt install --reinstall nvidia-l4t-cuda (it brings libcuda.so)"
        return warning("gpu", "libcuda-missing", f"{says}; the driver's library libcuda.so is not found", fix)
    fix = "pip install 'edgegs[cuda]'" + (" (with /usr/local/cuda/bin on PATH)" if board.is_tegra else "")
    if "No module named 'pycuda" in says:
        return warning("gpu", "pycuda-missing", says, fix)
    fix = "pip install --force-reinstall --no-cache-dir --no-binary pycuda pycuda"
    return warning("gpu", "pycuda-broken", says, fix)


def _stubs(machine: Machine) -> List[Finding]:
    """A toolkit's stub of libcuda is for linking; loaded in the driver's place it refuses every call."""
    folders = machine.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    stubs = [folder for folder in folders if "stubs" in folder.split("/")]
    if not stubs:
        return []
    says = f"LD_LIBRARY_PATH holds {', '.join(stubs)}: its libcuda.so is a stub that refuses every call"
    return [problem("gpu", "stub-library", says, "unset LD_LIBRARY_PATH, or take that folder out of it")]


def _pci_gpus(machine: Machine) -> List[str]:
    """PCI addresses of NVIDIA's display and compute controllers."""
    found = []
    for folder in machine.find("sys/bus/pci/devices/*"):
        if machine.read(f"{folder}/vendor") == "0x10de" and machine.read(f"{folder}/class").startswith("0x03"):
            found.append(os.path.basename(folder))
    return found


def _nodes(machine: Machine) -> List[str]:
    paths = [machine.path(node) for node in DEVICE_NODES]
    return [path for path in paths if os.path.exists(path)]


def _driver(machine: Machine, board: Board) -> List[Finding]:
    """Releases of the driver, of Jetson Linux, and what nvidia-smi says, where each is there."""
    findings = []
    if board.is_tegra:
        facts = [board.model or "Tegra", f"Jetson Linux {board.l4t or 'of unknown release'}"]
        findings.append(Finding("board", OK, ", ".join(facts)))
    words = machine.read("proc/driver/nvidia/version")
    match = re.search(r"Kernel Module\S*\s+(?:for \S+\s+)?([0-9.]+)", words)
    version = board.driver or (match.group(1) if match else "")
    gpus = _pci_gpus(machine)
    if version:
        findings.append(Finding("driver", OK, f"NVIDIA kernel module {version}"))
    elif gpus and not machine.in_container:
        fix = "sudo modprobe nvidia, or install the driver (Ubuntu: sudo ubuntu-drivers install)"
        says = "an NVIDIA GPU is here, but its kernel module is not loaded"
        findings.append(problem("driver", "driver-missing", says, fix))
    program = shutil.which("nvidia-smi")
    if program and (version or gpus):
        try:
            query = [program, "--query-gpu=name,driver_version", "--format=csv,noheader"]
            lines = ask(query, timeout_s=ASK_TIMEOUT_S).splitlines()
            findings.append(Finding("nvidia-smi", OK, "; ".join(line.strip() for line in lines) or "no GPU"))
        except DeviceError as error:
            if "mismatch" in str(error):
                fix = "reboot: the driver was changed under its kernel module"
                findings.append(warning("nvidia-smi", "driver-mismatch", str(error), fix))
            else:
                findings.append(warning("nvidia-smi", "nvidia-smi-fails", str(error), "nvidia-smi"))
    return findings


def _images(device: Optional[gpu.Gpu], no_gpu: str) -> List[Finding]:
    found, reasons = every_image()
    findings = [
        warning("images", "images-unreadable", reason.rpartition("; run")[0], "edgegs kernels build")
        for reason in reasons
    ]
    judged = verdicts(found, device.capability if device else None, no_gpu)
    gpu_taken = None
    if device is not None:
        arch = "sm_{}{}".format(*device.capability)
        mine = [(one, judged[one.path]) for one in found if is_gpu_arch(one.image.arch)]
        gpu_taken = next((pair for pair in mine if pair[1].selected), None)
        fix = f"edgegs kernels build --arch {arch}"
        if gpu_taken:
            one, verdict = gpu_taken
            findings.append(Finding("images", OK, f"the GPU takes {one.path}, {verdict.why} (by {one.image.compiler})"))
            newer = _newer_than(device, one.image)
            if newer:
                says = f"{one.image.file} is by {newer}, and the driver knows CUDA {device.cuda} only: it may refuse it"
                findings.append(warning("images", "image-newer-than-driver", says, fix + " --toolchain nvcc"))
        else:
            why = "; ".join(f"{one.image.file}: {verdict.why}" for one, verdict in mine) or "none is built"
            says = f"none for this GPU ({arch}): {why}"
            code = "gpu-image-stale" if _all_stale([one for one, _ in mine]) else "gpu-image-missing"
            findings.append(problem("images", code, says, fix))
    hosts = [(one, judged[one.path]) for one in found if one.image.arch == "host"]
    host_taken = next((one for one, verdict in hosts if verdict.selected), None)
    if host_taken:
        says = f"the host backend takes {host_taken.path} (by {host_taken.image.compiler})"
        findings.append(Finding("images", OK, says))
    else:
        why = "; ".join(verdict.why for _, verdict in hosts) or "not built"
        tell = warning if gpu_taken else problem
        says = f"none for the host backend: {why}"
        code = "host-image-stale" if _all_stale([one for one, _ in hosts]) else "host-image-missing"
        findings.append(tell("images", code, says, "edgegs kernels build --arch host"))
    return findings


def _all_stale(candidates: List[Candidate]) -> bool:
    return bool(candidates) and all(one.image.source_hash != source_hash() for one in candidates)


def _newer_than(device: gpu.Gpu, image: Image) -> str:
    """The compiler, where its release is above what the driver knows. A cubin runs on a driver of the same major
    release from CUDA 11 on; PTX needs a driver that knows its version."""
    made = _release(image.compiler)
    knows = _release(device.cuda)
    if made is None or knows is None:
        return ""
    by_major = image.kind == "cubin" and knows >= (11, 0)
    return image.compiler if (made[:1] > knows[:1] if by_major else made > knows) else ""


def _release(words: str) -> Optional[Tuple[int, int]]:
    match = re.search(r"\b(\d+)\.(\d+)", words)
    return (int(match.group(1)), int(match.group(2))) if match else None


def toolchains() -> List[Finding]:
    """Every compiler of GPU images, and for which of the default GPUs it compiles; then the host's."""
    compilers = find_toolchains("auto", ASK_TIMEOUT_S)
    findings = [Finding("toolchains", OK, _describe(compiler)) for compiler in compilers.found]
    for reason in compilers.missing:
        if "has no ptxas of its release" in reason:
            fix = "put that toolkit's own bin folder first on PATH, or install it whole"
            findings.append(warning("toolchains", "ptxas-mixed", reason, fix))
        elif " not found: " not in reason:
            fix = "install that toolkit again, or take it off PATH"
            findings.append(warning("toolchains", "toolchain-broken", reason, fix))
    if not compilers.found:
        says = "none for GPU images: needed only to build them here"
        fix = "pip install 'edgegs[cuda]' brings NVRTC (x86-64)"
        findings.append(note("toolchains", "toolchain-missing", says, fix))
    try:
        findings.append(Finding("compiler", OK, HostCompiler(ASK_TIMEOUT_S).name))
    except EdgegsError as error:
        fix = "sudo apt install g++" if "CXX" not in os.environ else "unset CXX, or name a compiler that runs"
        findings.append(warning("compiler", "compiler-missing", str(error), fix))
    return findings


def _describe(compiler: GpuToolchain) -> str:
    known = compiler.architectures()
    says = f"{compiler.name} ({compiler.path})"
    if not known:
        return says + ", does not tell for which GPUs it compiles"
    wanted = [arch for arch in DEFAULT_ARCHS if is_gpu_arch(arch)]
    answers = ", ".join(f"{arch} {'yes' if arch in known else 'no'}" for arch in wanted)
    ptxas = f", ptxas {compiler.ptxas}" if compiler.ptxas else ""
    return f"{says}{ptxas}: {known[0]} to {known[-1]}; {answers}"
