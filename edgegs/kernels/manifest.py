"""What was built: images of the kernels in a folder, and a manifest.json beside them that describes each."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import tempfile
from dataclasses import asdict, dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional

from edgegs.errors import AccessError, DeviceError, InputError, OutputError
from edgegs.files import read_regular
from edgegs.paths import cache_dir, shipped

MANIFEST = "manifest.json"
SCHEMA = 1
REBUILD = "run `edgegs kernels build`"
#: Architectures that are no GPU's: the fast build, and the two that check the kernels' rules.
HOST_ARCHS = ("host", "host-check", "host-check-sanitized")
#: A manifest of a dozen images takes 100 KB; an image is a few MB.
MAX_MANIFEST_BYTES = 16 << 20

_GPU_ARCH = re.compile(r"sm_[0-9]{2,3}")
_KINDS = ("cubin", "ptx", "so")


def is_gpu_arch(arch: str) -> bool:
    """Whether ``arch`` has the form of a GPU's, such as ``sm_53``."""
    return _GPU_ARCH.fullmatch(arch) is not None


@dataclass
class Image:
    """One compiled image. ``entries`` maps each kernel to its registers, spill_bytes and shared_bytes
    (empty for host images, which have none, and for PTX, where the driver decides). ``ptxas`` is the version of
    the assembler, where it is a program of its own and was used."""

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
    ptxas: str = ""

    def worst(self, what: str) -> Optional[int]:
        """Largest value of ``what`` over the entries; None where it is not known before load."""
        return max((entry[what] for entry in self.entries.values() if what in entry), default=None)


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
    try:
        own = [cache_dir() / "kernels"]
    except AccessError:  # no home folder: this user has built nothing
        own = []
    return [*own, shipped("images")]


def read_manifest(folder: Path) -> List[Image]:
    """The images of a folder; none if it has no manifest. An unreadable or damaged one is a DeviceError."""
    path = folder / MANIFEST
    try:
        os.stat(str(path))
    except FileNotFoundError:
        return []
    except OSError:  # something is in the way: reading says what
        pass
    try:
        content = read_regular(path, MAX_MANIFEST_BYTES, "manifest")
        document = json.loads(content.decode("utf-8"))
    except (InputError, AccessError) as error:
        raise DeviceError(f"{error}; {REBUILD}") from None
    except (ValueError, RecursionError) as error:
        raise DeviceError(f"{path}: cannot be read ({error}); {REBUILD}") from None
    try:
        if document["schema"] != SCHEMA:
            raise ValueError("schema {!r}, not {}".format(document["schema"], SCHEMA))
        return [_image(row) for row in document["images"]]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DeviceError(f"{path}: not a manifest of this version ({error}); {REBUILD}") from None


def _image(row: Dict[str, Any]) -> Image:
    """An image from its row; raises KeyError, TypeError or ValueError where a field is missing or of a wrong kind."""
    known = {f.name for f in fields(Image)}
    image = Image(**{name: value for name, value in row.items() if name in known})
    for name in ("file", "arch", "kind", "compiler", "source_hash", "sha256", "ptxas"):
        if not isinstance(getattr(image, name), str):
            raise TypeError(f"{name} is not a text")
    for name in ("variants", "flags", "cpu_flags"):
        value = getattr(image, name)
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise TypeError(f"{name} is not a list of texts")
    counts = [count for entry in image.entries.values() for count in entry.values()]
    if not all(isinstance(count, int) for count in counts):
        raise TypeError("entries hold something that is not a count")
    if not image.file or image.file in (".", "..") or "/" in image.file or "\0" in image.file:
        raise ValueError(f"file {image.file!r} is not the name of a file")
    if image.kind not in _KINDS or not (image.arch in HOST_ARCHS or is_gpu_arch(image.arch)):
        raise ValueError(f"an image of kind {image.kind!r} for {image.arch!r}")
    return image


def read_content(folder: Path, image: Image) -> bytes:
    """The bytes of an image; DeviceError when it is stale, missing, unreadable or damaged."""
    path = folder / image.file
    if image.source_hash != source_hash():
        raise DeviceError("built from another version of the source")
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise DeviceError(f"missing ({path} is gone)") from None
    except OSError as error:
        raise DeviceError(f"unreadable ({path}: {error.strerror})") from None
    if hashlib.sha256(content).hexdigest() != image.sha256:
        raise DeviceError(f"damaged ({path} does not match its manifest)")
    return content


def store(folder: Path, image: Image, content: bytes) -> None:
    """Write an image and enter it in the folder's manifest; ``image.sha256`` is set here.

    Other images stay if they are of the same source. Builds that run at the same time take turns, and a running
    process keeps the file that it has mapped.

    Raises:
        AccessError, OutputError: the folder cannot be written; the message names it.
    """
    image.sha256 = hashlib.sha256(content).hexdigest()
    with writing(folder), _locked(folder):
        _replace(folder / image.file, content)
        try:
            kept = [i for i in read_manifest(folder) if i.file != image.file and i.source_hash == source_hash()]
        except DeviceError:  # a damaged manifest: building is its repair
            kept = []
        document = {"schema": SCHEMA, "images": [asdict(one) for one in [*kept, image]]}
        _replace(folder / MANIFEST, (json.dumps(document, indent=1) + "\n").encode("utf-8"))


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One writer of the folder at a time. The folder itself is the lock, so that none is left behind."""
    descriptor = os.open(str(folder), os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _replace(path: Path, content: bytes) -> None:
    """Replace a file at once, never leaving half of it."""
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=str(path.parent))
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), 0o644)  # mkstemp's files are the owner's alone; the service reads these
        os.replace(temporary, str(path))
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turns what the system says of a folder that cannot be written into AccessError or OutputError."""
    try:
        yield
    except PermissionError:
        raise AccessError(f"{folder}: permission denied; set EDGEGS_CACHE to a folder of yours") from None
    except OSError as error:
        raise OutputError(
            f"{folder}: cannot be written ({error.strerror}); make room there, or set EDGEGS_CACHE"
        ) from None
