"""Compile the kernels: GPU images by nvcc or NVRTC, the host library by a C++ compiler; a manifest describes them.

What cannot be built is a row with its reason, not a failure: a board has no use for most of the rows.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Callable, List, NamedTuple, Optional, Sequence, Tuple

from edgegs.errors import DeviceError, UsageError
from edgegs.kernels.manifest import HOST_ARCHS, Image, is_gpu_arch, source_hash, store, writing
from edgegs.kernels.toolchains import TOOLCHAINS, HostCompiler, Toolchains, cpu_flags, find_toolchains
from edgegs.kernels.variants import VARIANTS, drawable
from edgegs.paths import cache_dir, shipped

#: Built when nothing is asked for: the two GPUs that edgegs is made for, and this machine's processor.
DEFAULT_ARCHS = ("host", "sm_53", "sm_89")
#: Compute capability, times ten, from which images have kernels for tensor cores (HAS_TENSOR_CORES in platform.cuh).
TENSOR_CORES_FROM = 80


class Outcome(NamedTuple):
    """One row of the table of what was built: the image, or why there is none."""

    arch: str
    kind: str
    image: Optional[Image]
    reason: str


def build(
    archs: Sequence[str] = DEFAULT_ARCHS,
    toolchain: str = "auto",
    folder: Optional[Path] = None,
    progress: Callable[[str], None] = lambda line: None,
) -> List[Outcome]:
    """Build images of every kernel for each of ``archs`` into ``folder`` (default: the cache).

    Images of other architectures already in the folder stay if they are of the same source. Each image is entered as
    soon as it is made, so that an interrupted build keeps what it has.

    Args:
        archs: ``host``, ``host-check``, ``host-check-sanitized`` or ``sm_NN`` (a cubin and PTX each).
        toolchain: of the GPU images: ``auto`` (the first that can), ``nvcc`` or ``nvrtc``.

    Raises:
        UsageError: no such architecture or toolchain.
        AccessError, OutputError: the folder cannot be written; the message names it.
    """
    for arch in archs:
        if arch not in HOST_ARCHS and not is_gpu_arch(arch):
            raise UsageError(
                "--arch {}: expected sm_NN (such as sm_53) or one of {}".format(arch, ", ".join(HOST_ARCHS))
            )
    if toolchain not in TOOLCHAINS:
        raise UsageError("--toolchain {}: expected one of {}".format(toolchain, ", ".join(TOOLCHAINS)))
    folder = folder or cache_dir() / "kernels"
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)

    compilers: Optional[Toolchains] = None
    outcomes: List[Outcome] = []
    for arch in dict.fromkeys(archs):
        progress(f"building {arch} …")
        if arch in HOST_ARCHS:
            outcomes.append(_build_host(arch, folder))
            continue
        compilers = compilers or find_toolchains(toolchain)
        outcomes += [_build_gpu(arch, kind, compilers, folder) for kind in ("cubin", "ptx")]
    return outcomes


def _build_gpu(arch: str, kind: str, compilers: Toolchains, folder: Path) -> Outcome:
    """By the first compiler that can; one architecture and kind a call, because a board's memory is small."""
    reasons: List[str] = []
    for compiler in compilers.found:
        cannot = compiler.why_not(arch)
        if cannot:
            reasons.append(cannot)
            continue
        try:
            compiled = compiler.compile(shipped("cuda") / "edgegs.cu", arch, kind)
        except DeviceError as error:
            reasons.append(str(error))
            continue
        drawn = _variants(int(arch.partition("_")[2]) >= TENSOR_CORES_FROM)
        image = Image(f"{arch}.{kind}", arch, kind, drawn, compiler.name, compiler.flags(arch, kind), "", "")
        image.source_hash = source_hash()
        image.entries = compiled.entries
        image.ptxas = compiler.ptxas if kind == "cubin" else ""
        store(folder, image, compiled.image)
        return Outcome(arch, kind, image, "")
    return Outcome(arch, kind, None, _joined(reasons + compilers.missing))


def _variants(tensor_cores: bool) -> List[str]:
    """Names of those that an image draws."""
    return [one.name for one in drawable(VARIANTS.values(), tensor_cores)]


def _joined(reasons: Sequence[str]) -> str:
    """One line of what each compiler says, and after it, in full, what takes more than a line."""
    if len(reasons) == 1:
        return reasons[0]
    heads = [reason.splitlines()[0].rstrip(":") for reason in reasons]
    return "\n".join(["; ".join(heads), *(reason for reason in reasons if "\n" in reason)])


def _build_host(arch: str, folder: Path) -> Outcome:
    check, sanitize = arch != "host", arch.endswith("sanitized")
    try:
        compiler = HostCompiler()
        with writing(folder), tempfile.TemporaryDirectory(dir=str(folder)) as scratch:
            content = compiler.compile(shipped("cuda"), Path(scratch) / (arch + ".so"), check, sanitize)
    except DeviceError as error:
        return Outcome(arch, "so", None, str(error))
    flags = compiler.flags(check, sanitize)
    image = Image(arch + ".so", arch, "so", _variants(check), compiler.name, flags, source_hash(), "")
    image.cpu_flags = cpu_flags()
    store(folder, image, content)
    return Outcome(arch, "so", image, "")


def table(outcomes: Sequence[Outcome]) -> str:
    """What was built, by what, and what was not and why: one row an image."""
    rows: List[Tuple[str, str, str]] = []
    for outcome in outcomes:
        image = outcome.image
        if image is None:
            rows.append((outcome.arch, outcome.kind, "not built: " + outcome.reason.splitlines()[0]))
        else:
            ptxas = f" (ptxas {image.ptxas})" if image.ptxas else ""
            rows.append((outcome.arch, outcome.kind, f"built by {image.compiler}{ptxas}"))
    width = max([len(row[0]) for row in rows] + [4])
    return "\n".join("  {:<{}}  {:<5}  {}".format(arch, width, kind, words) for arch, kind, words in rows)
