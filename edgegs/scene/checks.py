"""What may be opened as a scene at all, a regular file that can be read; and what one is that holds none."""

from __future__ import annotations

import os
from typing import BinaryIO

from edgegs.errors import SceneError
from edgegs.files import open_regular

# First bytes of what people pass by mistake.
_MAGIC = (
    (b"RIFF", "a WebP or other RIFF file"),
    (b"\x89PNG", "a PNG picture"),
    (b"\xff\xd8\xff", "a JPEG picture"),
    (b"\x7fELF", "a program"),
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself: run 'git lfs pull'"),
    (b"<", "a web page or XML (was the download refused?)"),
    (b"%PDF", "a PDF document"),
    (b"7z\xbc\xaf", "a 7-Zip archive: unpack it"),
    (b"Rar!", "a RAR archive: unpack it"),
    (b"\xfd7zXZ", "an xz archive: unpack it"),
    (b"\x28\xb5\x2f\xfd", "Zstandard data: unpack it"),
)
_FORMATS = ".ply, .compressed.ply, .splat, .spz, .sog, .glb, .gltf and .egs"


def open_scene_file(path: str) -> BinaryIO:
    """Open ``path`` unbuffered for reading; never blocks on a FIFO.

    Raises:
        InputError: missing, not a regular file, or unreadable. AccessError: no permission.
        SceneError: empty.
    """
    file = open_regular(path, path)
    if os.fstat(file.fileno()).st_size == 0:
        file.close()
        raise SceneError(f"{path}: the file is empty; copy or export it again")
    return file


def begins_ply(head: bytes) -> bool:
    """Whether a file's first bytes begin a PLY."""
    return head.startswith(b"ply") and head[3:4] in (b"\n", b"\r", b" ", b"\t")


def not_a_scene(head: bytes, path: str) -> SceneError:
    """The error that says what a file is which no reader knows; ``head``: its first bytes."""
    kind = next((text for magic, text in _MAGIC if head.lstrip(b"\xef\xbb\xbf \r\n").startswith(magic)), None)
    if kind is None and head[:3].lower() == b"ply":
        kind = "damaged: the first line must be 'ply'"
    return SceneError(
        f"{path}: not a scene; it is {kind or 'of no known kind'}. edgegs reads {_FORMATS}: export or convert it to one"
    )
