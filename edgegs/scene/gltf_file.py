"""How a glTF 2.0 file holds bytes: chunks, buffers, buffer views and accessors, each checked before it is used."""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import json
import math
import os
import re
import struct
from typing import Any, BinaryIO, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union
from urllib.parse import unquote

import numpy as np

from edgegs.errors import SceneError
from edgegs.files import CONTROL, open_regular
from edgegs.scene.ply_header import clip
from edgegs.scene.reading import Unchanged, add_file, refuse_holes

#: JSON beside embedded data. Parsed, it takes some thirty times its size; a file of splats has a few kilobytes.
MAX_JSON_BYTES = 2 << 20
#: A .gltf whose data stand in the JSON is held in memory whole.
MAX_TEXT_BYTES = 64 << 20
MAX_BUFFERS = 64
_MAX_DIGITS = 18

_COMPONENTS: Dict[int, str] = {5120: "<i1", 5121: "<u1", 5122: "<i2", 5123: "<u2", 5126: "<f4"}
_WIDTHS = {"SCALAR": 1, "VEC3": 3, "VEC4": 4}
_DATA = re.compile(rb'"data:[^"\\]*"')  # found in the text, so that the parser never sees megabytes of base64


class Accessor(NamedTuple):
    """``n_rows`` values that lie within their buffer, ``stride`` bytes apart."""

    buffer: int
    offset: int  # bytes, in the buffer
    stride: int
    n_rows: int
    width: int
    dtype: np.dtype
    normalized: bool
    where: str


    def span(self, n_rows: int) -> int:
        """Bytes from a row's first to the last one's end, ``n_rows`` on."""
        return (n_rows - 1) * self.stride + self.width * self.dtype.itemsize


class _InFile(NamedTuple):
    """Bytes that stay in a file until they are asked for."""

    file: BinaryIO
    start: int
    n_bytes: int


class GltfFile:
    """A .glb or .gltf open for reading.

    Attributes:
        json: the parsed document.
        kind: "binary" or "text".
        n_bytes: of all buffers.
    """

    def __init__(self, file: BinaryIO, path: str, stack: contextlib.ExitStack) -> None:
        """Files that it opens are closed with ``stack``.

        Raises:
            SceneError: no well-formed glTF 2.0. InputError, AccessError: a .bin that it names cannot be read.
        """
        self._path, self._stack = path, stack
        self._files = [(file, Unchanged(file, path))]
        self._embedded: List[bytes] = []
        self._binary: Optional[_InFile] = None
        self._lists: Dict[str, List[Dict[str, Any]]] = {}
        size = self._files[0][1].n_bytes
        if os.pread(file.fileno(), 4, 0) == b"glTF":
            self.kind, text = "binary", self._read_chunks(file, size)
        else:
            self.kind, text = "text", self._read_text(file, size)
        self.json = self._parse(text)
        if not isinstance(self.json.get("asset"), dict):
            raise self.error("JSON, but no scene: a glTF has 'asset', a SOG's meta.json 'means'; name another file")
        version = self.json["asset"]
        version = version.get("version") if isinstance(version, dict) else None
        if not isinstance(version, str) or not version.startswith("2."):
            raise self.error(f"asset.version must be 2.x, not {clip(str(version))}: this version reads glTF 2.0")
        buffers = self.objects("buffers")
        if len(buffers) > MAX_BUFFERS:
            raise self.error(f"{len(buffers):,} buffers; the limit is {MAX_BUFFERS}")
        self._buffers = [self._buffer(buffer, i) for i, buffer in enumerate(buffers)]
        self.n_bytes = sum(len(b) if isinstance(b, bytes) else b.n_bytes for b in self._buffers)

    def error(self, text: str) -> SceneError:
        return SceneError(f"{self._path}: {text}")

    def digest(self) -> str:
        """Sha256 of all bytes of the files, in order; raises SceneError if one changed since it was opened."""
        digest = hashlib.sha256()
        for file, unchanged in self._files:
            add_file(digest, file, unchanged.n_bytes)
            unchanged.check()
        return digest.hexdigest()

    # --- the document

    def _read_chunks(self, file: BinaryIO, size: int) -> bytes:
        header = os.pread(file.fileno(), 20, 0)
        if len(header) < 20:
            raise self.error("ends inside its header; is the copy or download complete?")
        _, version, length, json_length, json_type = struct.unpack("<5I", header)
        if version != 2:
            raise self.error(f"a binary glTF of version {version}; this version reads 2")
        if length > size:
            raise self.error(f"has {size:,} of the {length:,} bytes that its header promises; is the copy complete?")
        if json_type != 0x4E4F534A or json_length > length - 20:
            raise self.error("its first chunk must be JSON, and lie within the file")
        if json_length > MAX_JSON_BYTES:
            raise self.error(f"{json_length:,} bytes of JSON; the limit is {MAX_JSON_BYTES:,}")
        start = 20 + json_length
        chunk = os.pread(file.fileno(), 8, start) if start + 8 <= length else b""
        if len(chunk) == 8:
            n_bytes, kind = struct.unpack("<2I", chunk)
            if n_bytes > length - start - 8:
                raise self.error(f"its second chunk promises {n_bytes:,} bytes, and {length - start - 8:,} are there")
            if kind == 0x004E4942:
                self._binary = _InFile(file, start + 8, n_bytes)
        return os.pread(file.fileno(), json_length, 20)

    def _read_text(self, file: BinaryIO, size: int) -> bytes:
        if size > MAX_TEXT_BYTES:
            raise self.error(f"{size:,} bytes of JSON; the limit is {MAX_TEXT_BYTES:,}: export it as .glb")
        text = os.pread(file.fileno(), size, 0)

        def taken(match: Any) -> bytes:
            self._embedded.append(match.group()[1:-1])
            return b'"data:%d"' % (len(self._embedded) - 1)

        text = _DATA.sub(taken, text)
        if len(text) > MAX_JSON_BYTES:
            raise self.error(f"{len(text):,} bytes of JSON beside its data; the limit is {MAX_JSON_BYTES:,}")
        return text

    def _parse(self, text: bytes) -> Dict[str, Any]:
        def whole(digits: str) -> int:
            if len(digits) > _MAX_DIGITS:
                raise ValueError(f"a number of {len(digits):,} digits")
            return int(digits)

        def never(word: str) -> float:
            raise ValueError(f"{word} is no number")

        try:
            document = json.loads(text.decode("utf-8-sig"), parse_int=whole, parse_constant=never)
        except (ValueError, RecursionError) as error:
            raise self.error(f"its JSON cannot be read: {clip(str(error))}; export it again") from None
        if not isinstance(document, dict):
            raise self.error("JSON, but no glTF: it must be an object")
        return document

    def items(self, key: str) -> List[Any]:
        """A list at the top of the document; empty when there is none."""
        found = self.json.get(key, [])
        if not isinstance(found, list):
            raise self.error(f"{key} must be a list")
        return found

    def objects(self, key: str) -> List[Dict[str, Any]]:
        """A list of objects at the top of the document; empty when there is none."""
        if key not in self._lists:  # looked through once, however often it is asked for
            self._lists[key] = self.part(self.json, key)
        return self._lists[key]

    def part(self, owner: Dict[str, Any], key: str) -> List[Dict[str, Any]]:
        """A list of objects in an object; empty when there is none."""
        found = owner.get(key, [])
        if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
            raise self.error(f"{key} must be a list of objects")
        return found

    def integer(self, owner: Dict[str, Any], key: str, where: str, default: Optional[int] = None) -> int:
        value = owner.get(key, default)
        if type(value) is not int or not 0 <= value < 1 << 53:
            raise self.error(f"{where}: {key} must be a whole number from 0, not {clip(str(value))}")
        return value

    def index(
        self, owner: Dict[str, Any], key: str, items: Sequence[Any], where: str, default: Optional[int] = None
    ) -> int:
        value = self.integer(owner, key, where, default)
        if value >= len(items):
            raise self.error(f"{where}: {key} is {value}, and there are {len(items)}")
        return value

    def indices(self, owner: Dict[str, Any], key: str, items: Sequence[Any], where: str) -> List[int]:
        """A list of different indices into ``items``; empty when there is none."""
        found = owner.get(key, [])
        if not isinstance(found, list) or len(found) > len(items):
            raise self.error(f"{where}: {key} must be a list of at most {len(items)} numbers")
        for item in found:
            if type(item) is not int or not 0 <= item < len(items):
                raise self.error(f"{where}: {key} names {clip(str(item))}, and there are {len(items)}")
        return found

    def numbers(self, owner: Dict[str, Any], key: str, n: int, where: str) -> np.ndarray:
        """(n,) finite float64."""
        found = owner.get(key)
        good = isinstance(found, list) and len(found) == n and all(type(x) in (int, float) for x in found)
        if not good or not all(math.isfinite(x) and abs(x) < 1e30 for x in found):  # type: ignore[union-attr]
            raise self.error(f"{where}: {key} must be {n} numbers")
        return np.array(found, np.float64)

    # --- the data

    def _buffer(self, buffer: Dict[str, Any], i: int) -> Union[bytes, _InFile]:
        where = f"buffers[{i}]"
        promised = self.integer(buffer, "byteLength", where)
        uri = buffer.get("uri")
        if uri is None:
            found: Union[bytes, _InFile, None] = self._binary if i == 0 else None
            if found is None:
                raise self.error(f"{where} has no uri and no chunk: its data lie elsewhere, or are compressed")
        elif not isinstance(uri, str):
            raise self.error(f"{where}: uri must be text")
        elif uri.startswith("data:"):
            found = self._decoded(uri, where)
        else:
            found = self._beside(uri, where)
        n_bytes = len(found) if isinstance(found, bytes) else found.n_bytes
        if n_bytes < promised:
            raise self.error(f"{where} has {n_bytes:,} of the {promised:,} bytes promised; is the copy complete?")
        return found

    def _decoded(self, uri: str, where: str) -> bytes:
        rest = uri[len("data:") :]
        held = self.kind == "text" and rest.isdecimal() and len(rest) < 9 and int(rest) < len(self._embedded)
        data = uri.encode("utf-8", "replace")
        if held:  # only once: a small file could name it many times over
            data, self._embedded[int(rest)] = self._embedded[int(rest)], b""
        head, comma, body = data.partition(b",")
        if not comma or not head.endswith(b";base64"):
            raise self.error(f"{where}: data within the file must be base64")
        try:
            return base64.b64decode(body + b"=" * (-len(body) % 4), validate=True)
        except (binascii.Error, ValueError):
            raise self.error(f"{where}: damaged base64 data; export it again") from None

    def _beside(self, uri: str, where: str) -> _InFile:
        """A file in the same folder: any other place a scene file has no business to name."""
        name = unquote(uri)
        if not name or name in (".", "..") or re.search(r"[/\\:]", name) or CONTROL.search(name):
            raise self.error(f"{where}: uri '{clip(uri)}' must be the name of a file in the same folder")
        beside = os.path.join(os.path.dirname(self._path), name)
        file = self._stack.enter_context(open_regular(beside, f"{self._path}: {where}: {clip(name)} beside it"))
        if any(os.path.samestat(os.fstat(file.fileno()), os.fstat(other.fileno())) for other, _ in self._files):
            raise self.error(f"{where}: uri '{clip(uri)}' is a file that is used already; export it as one buffer")
        unchanged = Unchanged(file, beside)
        self._files.append((file, unchanged))
        return _InFile(file, 0, unchanged.n_bytes)

    def accessor(self, index: Any, kind: str, allowed: Sequence[Tuple[int, bool]], where: str) -> Accessor:
        """Accessor ``index``, if it is of type ``kind`` and an allowed (componentType, normalized)."""
        accessors, views = self.objects("accessors"), self.objects("bufferViews")
        accessor = accessors[self.index({"accessor": index}, "accessor", accessors, where)]
        if accessor.get("type") != kind:
            raise self.error(f"{where} must be {kind}, not {clip(str(accessor.get('type')))}")
        component = accessor.get("componentType")
        if type(component) is not int or (component, accessor.get("normalized", False)) not in allowed:
            state = "normalized" if accessor.get("normalized") is True else "plain"
            raise self.error(f"{where}: numbers of type {clip(str(component))} ({state}) are not allowed here")
        if "sparse" in accessor or "bufferView" not in accessor:
            raise self.error(f"{where} is sparse or has no data of its own, which this version cannot read")
        view_index = self.index(accessor, "bufferView", views, where)
        view, at = views[view_index], f"bufferViews[{view_index}]"
        buffer = self.index(view, "buffer", self._buffers, at)
        start, length = self.integer(view, "byteOffset", at, 0), self.integer(view, "byteLength", at)
        held = self._buffers[buffer]
        if start + length > (len(held) if isinstance(held, bytes) else held.n_bytes):
            raise self.error(f"{at}: bytes {start:,} to {start + length:,} lie beyond buffers[{buffer}]")
        dtype, width = np.dtype(_COMPONENTS[component]), _WIDTHS[kind]
        row = width * dtype.itemsize
        stride = self.integer(view, "byteStride", at, row)
        if not row <= stride <= 252:
            raise self.error(f"{at}: a byteStride of {stride:,} does not suit values of {row} bytes")
        count, offset = self.integer(accessor, "count", where), self.integer(accessor, "byteOffset", where, 0)
        if count < 1 or offset + (count - 1) * stride + row > length:
            raise self.error(f"{where} promises {count:,} values, and {at} has {length:,} bytes")
        return Accessor(buffer, start + offset, stride, count, width, dtype, accessor.get("normalized") is True, where)

    def refuse_holes(self, accessor: Accessor) -> None:
        """Raise SceneError where the file's maker never wrote the values of an accessor; none of them may be zero."""
        held = self._buffers[accessor.buffer]
        if not isinstance(held, bytes):
            start = held.start + accessor.offset
            refuse_holes(held.file, start, start + accessor.span(accessor.n_rows), self._path)

    def values(self, accessor: Accessor, start: int, stop: int) -> np.ndarray:
        """(stop - start, width) float32 of the accessor's rows, normalized integers scaled."""
        n, offset = stop - start, accessor.offset + start * accessor.stride
        n_bytes = accessor.span(n)
        held = self._buffers[accessor.buffer]
        if isinstance(held, bytes):
            data = held[offset : offset + n_bytes]
        else:
            data = os.pread(held.file.fileno(), n_bytes, held.start + offset)
        if len(data) < n_bytes:
            raise self.error(f"{accessor.where}: the file ends at row {start:,}; it changed while it was read")
        strides = (accessor.stride, accessor.dtype.itemsize)
        raw = np.ndarray((n, accessor.width), accessor.dtype, data, 0, strides)
        if not accessor.normalized:
            return raw.astype(np.float32)
        limit = np.iinfo(accessor.dtype).max
        return np.maximum(raw.astype(np.float32) / np.float32(limit), np.float32(-1))
