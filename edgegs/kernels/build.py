"""Compile the kernels: GPU images by NVRTC, the host library by a C++ compiler; a manifest says what came of it.

What cannot be built is a row with its reason, not a failure: a board has no use for most of the rows.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Callable, List, NamedTuple, Optional, Sequence, Tuple

from edgegs.errors import AccessError, DeviceError, OutputError, UsageError
from edgegs.kernels.manifest import Image, file_sha256, read_manifest, source_hash, write_manifest
from edgegs.kernels.toolchains import HostCompiler, Nvrtc, cpu_flags
from edgegs.kernels.variants import VARIANTS
from edgegs.paths import cache_dir, shipped

#: Built when nothing is asked for: the two GPUs that edgegs is made for, and this machine's processor.
DEFAULT_ARCHS = ("host", "sm_53", "sm_89")
HOST_ARCHS = ("host", "host-check", "host-check-sanitized")


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

    ``archs`` are ``host``, ``host-check``, ``host-check-sanitized`` or ``sm_NN`` (a cubin and PTX each).
    Images of other architectures already in the folder stay if they are of the same source.
    """
    folder = folder or cache_dir() / "kernels"
    for arch in archs:
        if arch not in HOST_ARCHS and not (arch.startswith("sm_") and arch[3:].isdigit()):
            raise UsageError(
                "--arch {}: expected sm_NN (such as sm_53) or one of {}".format(arch, ", ".join(HOST_ARCHS))
            )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except PermissionError:
        raise AccessError(f"{folder}: permission denied; set EDGEGS_CACHE to a folder of yours") from None
    except OSError as error:
        raise OutputError(f"{folder}: cannot be created ({error.strerror})") from None

    outcomes: List[Outcome] = []
    for arch in dict.fromkeys(archs):
        progress(f"building {arch} …")
        outcomes += _build_host(arch, folder) if arch in HOST_ARCHS else _build_gpu(arch, toolchain, folder)
    built = [outcome.image for outcome in outcomes if outcome.image is not None]
    files = {image.file for image in built}
    try:
        kept = [i for i in read_manifest(folder) if i.file not in files and i.source_hash == source_hash()]
    except DeviceError:  # a damaged manifest: building is its repair
        kept = []
    write_manifest(folder, kept + built)
    return outcomes


def _build_gpu(arch: str, toolchain: str, folder: Path) -> List[Outcome]:
    kinds = ("cubin", "ptx")
    try:
        compiler = Nvrtc()
    except DeviceError as error:
        return [Outcome(arch, kind, None, str(error)) for kind in kinds]
    if arch not in compiler.architectures():
        known = compiler.architectures()
        reason = f"{compiler.name} cannot compile for {arch} (it knows {known[0]} to {known[-1]})"
        return [Outcome(arch, kind, None, reason) for kind in kinds]
    outcomes = []
    for kind in kinds:
        try:
            compiled = compiler.compile(shipped("cuda") / "edgegs.cu", arch, kind)
        except DeviceError as error:
            outcomes.append(Outcome(arch, kind, None, str(error)))
            continue
        path = _write(folder, f"{arch}.{kind}", compiled.image)
        flags = compiler.flags(arch, kind)
        image = Image(path.name, arch, kind, list(VARIANTS), compiler.name, flags, source_hash(), file_sha256(path))
        image.entries = compiled.entries
        outcomes.append(Outcome(arch, kind, image, ""))
    return outcomes


def _build_host(arch: str, folder: Path) -> List[Outcome]:
    check, sanitize = arch != "host", arch.endswith("sanitized")
    try:
        compiler = HostCompiler()
        with tempfile.TemporaryDirectory(dir=str(folder)) as scratch:
            path = Path(scratch) / (arch + ".so")
            compiler.compile(shipped("cuda"), path, check, sanitize)
            path = _write(folder, path.name, path.read_bytes())
    except DeviceError as error:
        return [Outcome(arch, "so", None, str(error))]
    flags = compiler.flags(check, sanitize)
    image = Image(path.name, arch, "so", list(VARIANTS), compiler.name, flags, source_hash(), file_sha256(path))
    image.cpu_flags = cpu_flags()
    return [Outcome(arch, "so", image, "")]


def _write(folder: Path, name: str, content: bytes) -> Path:
    """Write through a temporary name, so that a running process keeps the image it has mapped."""
    path = folder / name
    temporary = folder / (name + ".new")
    try:
        temporary.write_bytes(content)
        os.replace(str(temporary), str(path))
    except PermissionError:
        raise AccessError(f"{path}: permission denied; set EDGEGS_CACHE to a folder of yours") from None
    except OSError as error:
        raise OutputError(f"{path}: cannot be written ({error.strerror})") from None
    return path


def table(outcomes: Sequence[Outcome]) -> str:
    """What was built, by what, and what was not and why: one row an image."""
    rows: List[Tuple[str, str, str]] = []
    for outcome in outcomes:
        if outcome.image is None:
            rows.append((outcome.arch, outcome.kind, "not built: " + outcome.reason.splitlines()[0]))
        else:
            rows.append((outcome.arch, outcome.kind, "built by " + outcome.image.compiler))
    width = max([len(row[0]) for row in rows] + [4])
    return "\n".join("  {:<{}}  {:<5}  {}".format(arch, width, kind, words) for arch, kind, words in rows)
