"""Which image a machine takes.

A GPU takes an exact cubin, else one of the same major and a lower minor, else the highest PTX that is not above it: a
cubin runs on its own compute capability and on later minors of the same major; PTX runs on every later GPU (the driver
compiles it when it is loaded). Source: CUDA C++ Programming Guide, "Application Compatibility"; it does not promise
later minors on Tegra, whose driver then refuses, and the next candidate is tried. The host takes the first library
that was built from this source for a processor like this one.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Tuple

from edgegs.errors import DeviceError
from edgegs.kernels.manifest import (
    HOST_ARCHS,
    REBUILD,
    Image,
    image_dirs,
    is_gpu_arch,
    read_content,
    read_manifest,
    source_hash,
)
from edgegs.kernels.toolchains import cpu_flags

log = logging.getLogger(__name__)


class Candidate(NamedTuple):
    """An image, and where it lies."""

    image: Image
    folder: Path

    @property
    def path(self) -> Path:
        return self.folder / self.image.file


class Verdict(NamedTuple):
    """Whether an image is the one that this machine would take, and why (not)."""

    selected: bool
    why: str


def every_image() -> Tuple[List[Candidate], List[str]]:
    """All images of all folders, and why a folder could not be read: one sentence for each such folder."""
    found: List[Candidate] = []
    reasons: List[str] = []
    for folder in image_dirs():
        try:
            found += [Candidate(image, folder) for image in read_manifest(folder)]
        except DeviceError as error:
            reasons.append(str(error))
    return found, reasons


def capability_of(arch: str) -> Tuple[int, int]:
    """``sm_53`` -> (5, 3), ``sm_120`` -> (12, 0)."""
    digits = arch[len("sm_") :]
    return int(digits[:-1]), int(digits[-1])


def fits(image: Image, capability: Tuple[int, int]) -> bool:
    """Whether a GPU of that compute capability can run the image at all."""
    if not is_gpu_arch(image.arch):
        return False
    built_for = capability_of(image.arch)
    if image.kind == "cubin":
        return built_for[0] == capability[0] and built_for[1] <= capability[1]
    return built_for <= capability


def candidates(capability: Tuple[int, int], only: Optional[str] = None) -> List[Candidate]:
    """Images that may run on a GPU of that compute capability, the best first.

    Of equally good ones this user's own build stands before the installation's. A folder that cannot be read is
    passed over with a warning.

    Args:
        capability: of the GPU, (major, minor).
        only: name of an image's file; every other is left out (tests and comparisons).

    Raises:
        DeviceError: there is none, and a folder could not be read.
    """
    found, reasons = every_image()
    order = ranked([one for one in found if only in (None, one.image.file)], capability)
    if reasons and not order:
        raise DeviceError("; ".join(reasons))
    for reason in reasons:
        log.warning("%s", reason)
    return order


def ranked(found: List[Candidate], capability: Tuple[int, int]) -> List[Candidate]:
    """Those of ``found`` that the GPU can run, the best first; equals keep their order."""

    def rank(candidate: Candidate) -> Tuple[bool, int, int]:
        major, minor = capability_of(candidate.image.arch)
        return candidate.image.kind != "cubin", -major, -minor

    return sorted((one for one in found if fits(one.image, capability)), key=rank)


def read_image(candidate: Candidate) -> bytes:
    """The image's bytes; DeviceError when it is stale, missing or damaged."""
    try:
        return read_content(candidate.folder, candidate.image)
    except DeviceError as error:
        raise DeviceError(f"{error}; {REBUILD}") from None


def find_library(arch: str = "host") -> Path:
    """The first usable library of that host build; DeviceError says why there is none and what to run."""
    found, reasons = every_image()
    unreadable = list(reasons)
    for candidate in found:
        if candidate.image.arch != arch:
            continue
        reason = why_not(candidate)
        if not reason:
            for passed_over in unreadable:
                log.warning("%s", passed_over)
            return candidate.path
        reasons.append(reason)
    rebuild = REBUILD if arch == "host" else f"{REBUILD[:-1]} --arch {arch}`"
    raise DeviceError("the {} kernels are not usable: {}; {}".format(arch, "; ".join(reasons) or "not built", rebuild))


def why_not(candidate: Candidate) -> str:
    """Why this machine cannot load a host image; empty when it can."""
    # before the bytes: another processor's image is not damaged, and a source of another version needs no look at it
    missing = set(candidate.image.cpu_flags) - set(cpu_flags())
    if missing and candidate.image.source_hash == source_hash():
        return "built for another processor (this one lacks {})".format(", ".join(sorted(missing)[:4]))
    try:
        read_content(candidate.folder, candidate.image)
    except DeviceError as error:
        return str(error)
    return ""


def verdicts(found: List[Candidate], capability: Optional[Tuple[int, int]], no_gpu: str = "") -> Dict[Path, Verdict]:
    """For every image, whether this machine would take it and why (not).

    A GPU takes one; so does the host backend, for each of its builds. Whether the driver accepts the GPU's image is
    known only when it is loaded.

    Args:
        found: the images, in the order of their folders.
        capability: the GPU's, or None where there is none; ``no_gpu`` then says why.
    """
    result: Dict[Path, Verdict] = {}
    for arch in HOST_ARCHS:
        taken = False
        for candidate in (one for one in found if one.image.arch == arch):
            reason = why_not(candidate) or ("an earlier folder has one" if taken else "")
            result[candidate.path] = Verdict(not reason, reason or "runs on this processor")
            taken = taken or not reason
    taken = False
    for candidate in ranked(found, capability) if capability else []:
        try:
            read_image(candidate)
        except DeviceError as error:
            result[candidate.path] = Verdict(False, str(error))
            continue
        exact = capability_of(candidate.image.arch) == capability
        words = "built for this GPU" if exact else "the nearest to this GPU"
        result[candidate.path] = Verdict(not taken, "next, should the driver refuse a better one" if taken else words)
        taken = True
    for candidate in found:
        other = "for another GPU than this sm_{}{}".format(*capability) if capability else no_gpu or "no GPU here"
        result.setdefault(candidate.path, Verdict(False, other))
    return result
