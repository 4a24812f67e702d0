"""The doctor's look at GPU, driver, compilers and kernel images."""

from __future__ import annotations

import glob
import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, List, Optional

from edgegs.errors import DeviceError, EdgegsError
from edgegs.findings import OK, PROBLEM, WARNING, Finding
from edgegs.kernels import gpu
from edgegs.kernels.build import DEFAULT_ARCHS
from edgegs.kernels.manifest import is_gpu_arch
from edgegs.kernels.select import every_image, verdicts
from edgegs.kernels.toolchains import GpuToolchain, HostCompiler, ask, find_toolchains

if TYPE_CHECKING:
    from edgegs.telemetry.board import Board

#: Device nodes without which no CUDA program runs: a PC's, then a Jetson's.
DEVICE_NODES = ("dev/nvidiactl", "dev/nvidia0", "dev/nvmap", "dev/nvhost-ctrl-gpu", "dev/nvhost-gpu")
#: How long one program may take to answer, seconds.
ASK_TIMEOUT_S = 5.0


def gpu_and_images(root: str = "/") -> List[Finding]:
    """GPU, driver, and which images this machine would take.

    Args:
        root: where ``dev``, ``proc``, ``sys`` and ``etc`` lie.
    """
    from edgegs.telemetry.board import identify

    board = identify(os.path.join(root, "sys"), os.path.join(root, "etc", "nv_tegra_release"))
    device, reason = gpu.detect(ASK_TIMEOUT_S)
    return [*_gpu(root, board, device, reason), *_driver(root, board), *_images(device, reason)]


def _gpu(root: str, board: Board, device: Optional[gpu.Gpu], reason: str) -> List[Finding]:
    if device is not None:
        says = "{}, sm_{}{}, {:.1f} GB; the driver knows CUDA {}".format(
            device.name, *device.capability, device.memory_bytes / 1e9, device.cuda
        )
        return [Finding("gpu", OK, says)]
    # /dev/nvidiactl alone says nothing: tools make it on machines without a GPU
    on_bus = _pci_gpus(root) or [path for path in _nodes(root) if path.endswith("nvidia0")]
    if not board.is_tegra and not on_bus:
        return [Finding("gpu", OK, "no NVIDIA GPU here: the host backend draws")]
    name = (board.model or "a Tegra board") if board.is_tegra else "NVIDIA GPU " + ", ".join(on_bus)
    closed = [node for node in _nodes(root) if not os.access(node, os.R_OK | os.W_OK)]
    if "pycuda cannot be imported" in reason:
        fix = "pip install 'edgegs[cuda]'" + (" (with /usr/local/cuda/bin on PATH)" if board.is_tegra else "")
        return [Finding("gpu", WARNING, f"{name} is not used: {reason}", fix)]
    if closed:
        says = f"{name} is not used: this user may not open {', '.join(closed)}"
        return [Finding("gpu", PROBLEM, says, "sudo usermod -aG video,render $USER, then log in again")]
    fix = "" if board.is_tegra else "nvidia-smi (it may say more); install the driver, or reboot after its upgrade"
    fix = fix or "sudo dmesg | grep -i nv (it may say more); reboot, or write JetPack again"
    return [Finding("gpu", PROBLEM, f"{name} is not usable: {reason}", fix)]


def _pci_gpus(root: str) -> List[str]:
    """PCI addresses of NVIDIA's display and compute controllers."""
    found = []
    for folder in sorted(glob.glob(os.path.join(glob.escape(root), "sys/bus/pci/devices/*"))):
        if _text(folder, "vendor") == "0x10de" and _text(folder, "class").startswith("0x03"):
            found.append(os.path.basename(folder))
    return found


def _nodes(root: str) -> List[str]:
    paths = [os.path.join(root, node) for node in DEVICE_NODES]
    return [path for path in paths if os.path.exists(path)]


def _driver(root: str, board: Board) -> List[Finding]:
    """Releases of the driver, of Jetson Linux, and what nvidia-smi says, where each is there."""
    findings = []
    if board.is_tegra:
        facts = [board.model or "Tegra", f"Jetson Linux {board.l4t or 'of unknown release'}"]
        facts += [f"power mode {board.power_mode}"] if board.power_mode else []
        findings.append(Finding("board", OK, ", ".join(facts)))
    words = _text(root, "proc/driver/nvidia/version")
    match = re.search(r"Kernel Module\S*\s+(?:for \S+\s+)?([0-9.]+)", words)
    version = board.driver or (match.group(1) if match else "")
    if version:
        findings.append(Finding("driver", OK, f"NVIDIA kernel module {version}"))
    elif _pci_gpus(root):
        fix = "sudo modprobe nvidia, or install the driver (Ubuntu: sudo ubuntu-drivers install)"
        findings.append(Finding("driver", PROBLEM, "an NVIDIA GPU is here, but its kernel module is not loaded", fix))
    program = shutil.which("nvidia-smi")
    if program and (version or _pci_gpus(root)):
        try:
            query = [program, "--query-gpu=name,driver_version", "--format=csv,noheader"]
            lines = ask(query, timeout_s=ASK_TIMEOUT_S).splitlines()
            findings.append(Finding("nvidia-smi", OK, "; ".join(line.strip() for line in lines) or "no GPU"))
        except DeviceError as error:
            fix = "reboot: the driver was changed under its kernel module" if "mismatch" in str(error) else "nvidia-smi"
            findings.append(Finding("nvidia-smi", WARNING, str(error), fix))
    return findings


def _images(device: Optional[gpu.Gpu], no_gpu: str) -> List[Finding]:
    found, reasons = every_image()
    findings = [Finding("images", WARNING, reason.rpartition("; run")[0], "edgegs kernels build") for reason in reasons]
    judged = verdicts(found, device.capability if device else None, no_gpu)
    gpu_taken = None
    if device is not None:
        arch = "sm_{}{}".format(*device.capability)
        mine = [(one, judged[one.path]) for one in found if is_gpu_arch(one.image.arch)]
        gpu_taken = next((pair for pair in mine if pair[1].selected), None)
        if gpu_taken:
            one, verdict = gpu_taken
            findings.append(Finding("images", OK, f"the GPU takes {one.path}, {verdict.why} (by {one.image.compiler})"))
        else:
            why = "; ".join(f"{one.image.file}: {verdict.why}" for one, verdict in mine) or "none is built"
            says = f"none for this GPU ({arch}): {why}"
            findings.append(Finding("images", PROBLEM, says, f"edgegs kernels build --arch {arch}"))
    hosts = [(one, judged[one.path]) for one in found if one.image.arch == "host"]
    host_taken = next((one for one, verdict in hosts if verdict.selected), None)
    if host_taken:
        says = f"the host backend takes {host_taken.path} (by {host_taken.image.compiler})"
        findings.append(Finding("images", OK, says))
    else:
        why = "; ".join(verdict.why for _, verdict in hosts) or "not built"
        state = WARNING if gpu_taken else PROBLEM
        says = f"none for the host backend: {why}"
        findings.append(Finding("images", state, says, "edgegs kernels build --arch host"))
    return findings


def toolchains() -> List[Finding]:
    """Every compiler of GPU images, and for which of the default GPUs it compiles; then the host's."""
    compilers = find_toolchains("auto", ASK_TIMEOUT_S)
    findings = [Finding("toolchains", OK, _describe(compiler)) for compiler in compilers.found]
    for reason in compilers.missing:
        absent = " not found: " in reason
        if not absent:
            findings.append(Finding("toolchains", WARNING, reason, "install that toolkit again, or take it off PATH"))
    if not compilers.found:
        says = "none for GPU images: needed only to build them here"
        findings.append(Finding("toolchains", OK, says, "pip install 'edgegs[cuda]' brings NVRTC (x86-64)"))
    try:
        findings.append(Finding("compiler", OK, HostCompiler(ASK_TIMEOUT_S).name))
    except EdgegsError as error:
        fix = "sudo apt install g++" if "CXX" not in os.environ else "unset CXX, or name a compiler that runs"
        findings.append(Finding("compiler", WARNING, str(error), fix))
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


def _text(folder: str, name: str) -> str:
    try:
        return Path(folder, name).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
