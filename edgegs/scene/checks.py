"""What may be opened as a scene at all: a regular, readable, non-empty file that looks like a PLY."""

from __future__ import annotations

import os
import stat
from typing import BinaryIO

from edgegs.errors import AccessError, InputError, SceneError

#: Rows a file may promise. Ten times the largest published scenes; a sparse file passes every size check.
DEFAULT_CAP = 20_000_000

_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
    (stat.S_ISSOCK, "a socket"),
)

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
    try:
        # O_NONBLOCK: opening a FIFO would otherwise wait for a writer before its kind could be checked.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except PermissionError as error:
        raise AccessError(f"{path}: permission denied; make it readable for this user (see 'ls -l', 'id')") from error
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file; check scene.path") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{path}: cannot be opened: {reason}") from error
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            kind = next((text for test, text in _KINDS if test(mode)), "not a regular file")
            raise InputError(f"{path}: is {kind}; a scene must be a regular file")
        if os.fstat(descriptor).st_size == 0:
            raise SceneError(f"{path}: the file is empty; copy or export it again")
        return os.fdopen(descriptor, "rb", buffering=0)
    except BaseException:
        os.close(descriptor)
        raise


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
