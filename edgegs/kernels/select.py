"""Which image a GPU takes: an exact cubin, else one of the same major and a lower minor, else PTX.

A cubin runs on its own compute capability and on later minors of the same major; PTX runs on every later GPU (the
driver compiles it when it is loaded). Source: CUDA C++ Programming Guide, "Application Compatibility".
"""

from __future__ import annotations

from pathlib import Path
from typing import List, NamedTuple, Optional, Tuple

from edgegs.errors import DeviceError
from edgegs.kernels.manifest import REBUILD, Image, file_sha256, image_dirs, read_manifest, source_hash


class Candidate(NamedTuple):
    """An image, and where it lies."""

    image: Image
    folder: Path


def capability_of(arch: str) -> Tuple[int, int]:
    """``sm_53`` -> (5, 3), ``sm_120`` -> (12, 0)."""
    digits = arch[len("sm_") :]
    return int(digits[:-1]), int(digits[-1])


def candidates(capability: Tuple[int, int], only: Optional[str] = None) -> List[Candidate]:
    """Images that may run on a GPU of that compute capability, the best first.

    Args:
        capability: of the GPU, (major, minor).
        only: name of an image's file; every other is left out (tests and comparisons).
    """
    found = []
    for order, folder in enumerate(image_dirs()):
        for image in read_manifest(folder):
            if not image.arch.startswith("sm_") or (only is not None and image.file != only):
                continue
            built_for = capability_of(image.arch)
            if image.kind == "cubin":
                fits = built_for[0] == capability[0] and built_for[1] <= capability[1]
            else:
                fits = built_for <= capability
            if fits:
                rank = (image.kind != "cubin", (-built_for[0], -built_for[1]), order)
                found.append((rank, Candidate(image, folder)))
    return [candidate for _, candidate in sorted(found, key=lambda pair: pair[0])]


def read_image(candidate: Candidate) -> bytes:
    """The image's bytes; DeviceError when it is stale, missing or damaged."""
    image, path = candidate.image, candidate.folder / candidate.image.file
    if image.source_hash != source_hash():
        raise DeviceError(f"built from another version of the source; {REBUILD}")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DeviceError(f"{path}: {error.strerror}; {REBUILD}") from None
    if file_sha256(path) != image.sha256:
        raise DeviceError(f"{path} is damaged; {REBUILD}")
    return content
