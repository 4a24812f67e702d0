"""What may be opened as a scene at all: a regular, readable, non-empty file that looks like a PLY."""

from __future__ import annotations

import os
from typing import BinaryIO

from edgegs.errors import SceneError
from edgegs.files import open_regular

# First bytes of what people pass by mistake, or hope for.
_MAGIC = (
    (b"\x1f\x8b", "gzip data (an SPZ scene, or a compressed file)"),
    (b"NGSP", "an SPZ scene"),
    (b"PK\x03\x04", "a zip archive (a SOG scene?)"),
    (b"glTF", "a binary glTF"),
    (b"RIFF", "a WebP or other RIFF file"),
    (b"\x89PNG", "a PNG picture"),
    (b"\xff\xd8\xff", "a JPEG picture"),
    (b"\x7fELF", "a program"),
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself: run 'git lfs pull'"),
    (b"<", "a web page or XML, not a scene: was the download refused?"),
    (b"{", "JSON"),
)


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


def refuse_unless_ply(head: bytes, path: str) -> None:
    """Raise SceneError naming what the file is, unless ``head`` (its first bytes) begins a PLY."""
    if head.startswith(b"ply") and head[3:4] in (b"\n", b"\r", b" ", b"\t"):
        return
    kind = next((text for magic, text in _MAGIC if head.lstrip(b"\xef\xbb\xbf \r\n").startswith(magic)), None)
    if kind is None and head[:3].lower() == b"ply":
        kind = "damaged: the first line must be 'ply'"
    raise SceneError(
        "{}: not a PLY file; it is {}. edgegs reads 3DGS scenes as .ply; export or convert it to that".format(
            path, kind or "of no known kind (the first line is not 'ply')"
        )
    )
