"""Which format a scene file has, told by its first bytes, and the reader of each.

A reader is ``read(file, path, how)`` and returns a ``Scene`` or ``PackedScene``: ``file`` is open, unbuffered, regular
and not empty, at its start; ``how`` is a ``Reading``. It raises SceneError for what is wrong with the content, and may
let OSError pass.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, BinaryIO, Callable

from edgegs.errors import InputError, SceneError
from edgegs.scene.checks import begins_ply, not_a_scene
from edgegs.scene.reading import Reading

if TYPE_CHECKING:
    from edgegs.pack import AnyScene

#: What a format's files begin with.
_MAGIC = {
    "egs": (b"EGSPACK\n",),
    "spz": (b"NGSP", b"\x1f\x8b"),
    "sog": (b"PK\x03\x04", b"PK\x05\x06"),
    "gltf": (b"glTF",),
}
_HEAD_BYTES = 1 << 16
_BOM = b"\xef\xbb\xbf"
_SOG_FILES = ("meta.json", "lod-meta.json")
_SOG_WORDS = (b'"means"', b'"lodLevels"', b'"filenames"')

Reader = Callable[[BinaryIO, str, Reading], "AnyScene"]

#: Format -> module and function of its reader; imported when needed: some bring packages that a board may lack.
_READERS = {
    "ply": ("edgegs.scene.ply", "read_ply"),  # which hands on what its header says is compressed
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
    head = os.pread(file.fileno(), _HEAD_BYTES, 0)
    for kind, magics in _MAGIC.items():
        if head.startswith(magics):
            return kind
    text = head[len(_BOM) :] if head.startswith(_BOM) else head
    if begins_ply(text):
        return "ply"
    if text.lstrip().startswith(b"{"):
        return "sog json" if any(word in text for word in _SOG_WORDS) else "gltf"
    from edgegs.scene.splat import looks_like_splat, why_not_splat

    size = os.fstat(file.fileno()).st_size
    if looks_like_splat(head, size):
        return "splat"
    if path.lower().endswith(".splat"):
        raise SceneError(f"{path}: not a .splat scene: {why_not_splat(head, size)}; export it again")
    raise not_a_scene(text, path)


def check_folder(path: str) -> None:
    """Raise InputError for a folder that is no scene: one that holds no unpacked SOG."""
    if not any(os.path.isfile(os.path.join(path, name)) for name in _SOG_FILES):
        raise InputError(f"{path}: is a folder, not a regular file; name a file (or the folder of a SOG's meta.json)")


def read_folder(path: str, how: Reading) -> AnyScene:
    """Read a scene that is a folder; see ``check_folder``."""
    check_folder(path)
    from edgegs.scene.sog import read_sog_folder

    return read_sog_folder(path, how)
