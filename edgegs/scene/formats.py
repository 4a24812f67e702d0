"""Which format a scene file has, told by its first bytes, and the reader of each.

A reader is ``read(file, path, how) -> Scene``: ``file`` is open, unbuffered, regular and not empty, at its start;
``how`` is a ``Reading``. It raises SceneError for what is wrong with the content, and may let OSError pass.
"""

from __future__ import annotations

import importlib
import os
from typing import BinaryIO, Callable

from edgegs.errors import InputError
from edgegs.scene.checks import refuse_unless_ply
from edgegs.scene.model import Scene
from edgegs.scene.reading import Reading

_BOM = b"\xef\xbb\xbf"

Reader = Callable[[BinaryIO, str, Reading], Scene]

#: Format -> module and function of its reader; imported when needed: some bring packages that a board may lack.
_READERS = {
    "ply": ("edgegs.scene.ply", "read_ply"),
    "compressed.ply": ("edgegs.scene.compressed_ply", "read_compressed_ply"),
    "splat": ("edgegs.scene.splat", "read_splat"),
    "spz": ("edgegs.scene.spz", "read_spz"),
    "sog": ("edgegs.scene.sog", "read_sog"),
    "sog json": ("edgegs.scene.sog", "read_sog_json"),
    "gltf": ("edgegs.scene.gltf", "read_gltf"),
    "egs": ("edgegs.scene.egs", "read_egs"),
}


def reader_of(kind: str) -> Reader:
    """The reader of a format that ``identify`` named."""
    module, name = _READERS[kind]
    reader: Reader = getattr(importlib.import_module(module), name)
    return reader


def identify(file: BinaryIO, path: str) -> str:
    """The format of an open scene file, a key of the readers; raises SceneError for none of them."""
    head = os.pread(file.fileno(), 4096, 0)
    if head.startswith(_BOM):
        head = head[len(_BOM) :]
    refuse_unless_ply(head, path)
    return "ply"


def read_folder(path: str, how: Reading) -> Scene:
    """Read a scene that is a folder."""
    raise InputError(f"{path}: is a folder, not a regular file; name a file")
