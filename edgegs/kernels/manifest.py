"""What was built: images of the kernels in a folder, and a manifest.json beside them that describes each."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Dict, List, Optional

from edgegs.errors import DeviceError
from edgegs.paths import cache_dir, shipped

MANIFEST = "manifest.json"
SCHEMA = 1
REBUILD = "run `edgegs kernels build`"


@dataclass
class Image:
    """One compiled image. ``entries`` maps each kernel to its registers, spill_bytes and shared_bytes
    (empty for host images, which have none, and for PTX, where the driver decides)."""

    file: str
    arch: str
    kind: str  # cubin, ptx or so
    variants: List[str]
    compiler: str
    flags: List[str]
    source_hash: str
    sha256: str
    cpu_flags: List[str] = field(default_factory=list)
    entries: Dict[str, Dict[str, int]] = field(default_factory=dict)

    def worst(self, what: str) -> Optional[int]:
        """Largest value of ``what`` over the entries; None where it is not known before load."""
        return max((entry[what] for entry in self.entries.values()), default=None)


@lru_cache(maxsize=None)
def source_hash() -> str:
    """SHA-256 over the kernel sources, names included, in a fixed order."""
    digest = hashlib.sha256()
    root = shipped("cuda")
    for path in sorted(root.rglob("*")):
        if path.suffix in (".cu", ".cuh", ".h", ".hpp", ".cpp"):
            digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def image_dirs() -> List[Path]:
    """Where images are looked for: what this user built, then what the installation built."""
    return [cache_dir() / "kernels", shipped("images")]


def read_manifest(folder: Path) -> List[Image]:
    """The images of a folder; none if it has no manifest. A damaged one is an error that names it."""
    path = folder / MANIFEST
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise DeviceError(f"{path}: cannot be read ({error}); {REBUILD}") from None
    try:
        if document["schema"] != SCHEMA:
            return []
        return [Image(**image) for image in document["images"]]
    except (KeyError, TypeError) as error:
        raise DeviceError(f"{path}: not a manifest of this version ({error}); {REBUILD}") from None


def write_manifest(folder: Path, images: List[Image]) -> None:
    """Replace the folder's manifest at once, never leaving half of one."""
    document = {"schema": SCHEMA, "images": [asdict(image) for image in images]}
    temporary = folder / (MANIFEST + ".new")
    temporary.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    os.replace(str(temporary), str(folder / MANIFEST))


def file_sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
