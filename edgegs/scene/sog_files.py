"""Where the files of a SOG scene lie: in a zip archive, or in a folder. Nothing is ever unpacked to disk."""

from __future__ import annotations

import hashlib
import io
import os
import struct
import zipfile
import zlib
from collections import Counter
from typing import IO, BinaryIO, List, Optional, cast

from edgegs.errors import InputError, SceneError
from edgegs.files import open_regular
from edgegs.scene.reading import Unchanged, add_file
from edgegs.scene.sog_meta import clip

META = "meta.json"
INDEX = "lod-meta.json"

#: Most that zipfile may ask of the file at once: it reads the whole list of contents before looking at it.
_MAX_READ = 1 << 20
_STEP = 1 << 18
# Planes are compressed data already. What shrinks further by this is no plane, and above this size no small matter.
_MAX_RATIO, _RATIO_FREE_BYTES = 30, 1 << 20
_READABLE = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_ENCRYPTED = 0x1
#: What zipfile raises for archives that are not what they say, beside BadZipFile.
_BROKEN = (
    zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, RuntimeError, ValueError,
    OverflowError, IndexError, KeyError,
)  # fmt: skip


class FolderFiles:
    """The files of an unbundled scene. Its digest covers the names and bytes of what was read, in that order."""

    def __init__(self, folder: str, shown: str) -> None:
        """``folder``: where the files lie, "" for the working one; ``shown``: the scene, as messages name it."""
        self._folder, self.shown = folder, shown
        self._digest = hashlib.sha256()

    def read(self, name: str, limit: int, field: str = "") -> bytes:
        """At most ``limit`` bytes of the file ``name``, a plain name; more, or no such file, is a SceneError."""
        shown = f"{self.shown}: {clip(name)}"
        says = f"{field} names it; " if field else ""
        with open_inside(os.path.join(self._folder, name), shown, says) as file:
            unchanged = Unchanged(file, shown)
            _check_size(unchanged.n_bytes, limit, shown)
            data = _read_up_to(cast(IO[bytes], file), limit + 1)
            _check_size(len(data), limit, shown)
            unchanged.check()
        self.add(name, data)
        return data

    def add(self, name: str, data: bytes) -> None:
        """Count a file as read."""
        for part in (name.encode("utf-8", "surrogatepass"), data):
            self._digest.update(struct.pack("<Q", len(part)))
            self._digest.update(part)

    def finish(self) -> str:
        """Hex digest of all that was read."""
        return self._digest.hexdigest()


def open_inside(path: str, shown: str, says: str = "") -> io.FileIO:
    """Open a file that a scene is made of, unbuffered; that it is not there is the scene's fault (SceneError)."""
    if is_missing(path):
        raise SceneError(f"{shown}: is missing; {says}copy or export the scene again")
    try:
        return open_regular(path, shown)
    except InputError as error:
        raise SceneError(str(error)) from None


def is_missing(path: str) -> bool:
    """Whether nothing has that name; what cannot be looked at is not missing."""
    try:
        os.lstat(path)
    except FileNotFoundError:
        return True
    except (OSError, ValueError):
        pass
    return False


class ZipFiles:
    """The files of a bundled scene. Its digest is the archive's."""

    def __init__(self, file: BinaryIO, shown: str) -> None:
        """``file``: unbuffered; stays the caller's to close. Raises SceneError for what is no sound archive."""
        self.shown, self._file = shown, file
        self._unchanged = Unchanged(file, shown)
        try:
            self._archive = zipfile.ZipFile(_Window(file, self._unchanged.n_bytes))
        except _BROKEN as error:
            complete = "is the copy or download complete?"
            raise SceneError(f"{shown}: a damaged zip archive ({one_line(error)}); {complete}") from None
        # zipfile ends a name at a zero byte: only the name as it stands in the archive may match.
        names = Counter(info.orig_filename for info in self._archive.infolist())
        twice = next((name for name, n in names.items() if n > 1), None)
        if twice is not None:
            raise SceneError(f"{shown}: holds {clip(twice)} more than once; which one is meant cannot be told")
        self._infos = {info.orig_filename: info for info in self._archive.infolist()}
        if META not in self._infos:
            raise SceneError(f"{shown}: {self._explain_no_meta()}")

    def _explain_no_meta(self) -> str:
        names = list(self._infos)
        if any(name.rsplit("/", 1)[-1] == INDEX for name in names):
            return f"a zipped streamed SOG scene; unpack it, and name the {INDEX} in it"
        inside: Optional[str] = next((name for name in names if name.endswith(f"/{META}")), None)
        if inside is not None:
            return f"{META} lies in a folder of the archive ({clip(inside)}); unpack it, and name that {META}"
        return f"a zip archive without {META}: no SOG scene"

    def read(self, name: str, limit: int, field: str = "") -> bytes:
        """As ``FolderFiles.read``."""
        info = self._infos.get(name)
        if info is None:
            raise SceneError(f"{self.shown}: {clip(name)}: is not in the archive; {field} names it; export it again")
        shown = f"{self.shown}: {clip(name)}"
        if info.flag_bits & _ENCRYPTED:
            raise SceneError(f"{shown}: is encrypted; pack the archive again without a password")
        if info.compress_type not in _READABLE:
            raise SceneError(
                f"{shown}: compressed by method {info.compress_type}; edgegs reads stored and deflated: zip it again"
            )
        _check_size(info.file_size, limit, shown)
        if info.file_size > max(_RATIO_FREE_BYTES, _MAX_RATIO * info.compress_size):
            raise SceneError(
                f"{shown}: {info.compress_size:,} bytes that claim to unpack to {info.file_size:,}: a zip bomb"
            )
        try:
            with self._archive.open(info) as member:
                data = _read_up_to(member, limit + 1)
        except _BROKEN as error:
            raise SceneError(f"{shown}: cannot be unpacked ({one_line(error)}); copy or download it again") from None
        if len(data) != info.file_size:
            raise SceneError(f"{shown}: {len(data):,} bytes where the archive promises {info.file_size:,}")
        return data

    def finish(self) -> str:
        """Hex digest of the archive."""
        digest = hashlib.sha256()
        add_file(digest, self._file, self._unchanged.n_bytes)
        self._unchanged.check()
        return digest.hexdigest()


class _Window(io.RawIOBase):
    """A file as zipfile wants it, that moves no offset and refuses to read much at once."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        super().__init__()
        self._descriptor, self._size, self._at = file.fileno(), size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        if not 0 <= start + offset <= self._size:
            # Both an OSError, which zipfile looks out for, and a ValueError.
            raise io.UnsupportedOperation(f"points to byte {start + offset:,} of {self._size:,}")
        self._at = start + offset
        return self._at

    def read(self, n: Optional[int] = -1) -> bytes:
        n = self._size - self._at if n is None or n < 0 else n
        if n > _MAX_READ:
            raise ValueError(f"a list of contents of {n:,} bytes")
        data = os.pread(self._descriptor, n, self._at)
        self._at += len(data)
        return data


def _check_size(n_bytes: int, limit: int, shown: str) -> None:
    if n_bytes > limit:
        raise SceneError(f"{shown}: {n_bytes:,} bytes or more, and what it should hold needs at most {limit:,}")


def _read_up_to(file: IO[bytes], limit: int) -> bytes:
    pieces: List[bytes] = []
    left = limit
    while left > 0:
        piece = file.read(min(left, _STEP))
        if not piece:
            break
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def one_line(error: BaseException) -> str:
    """A library's message as part of ours: one line, no endless one."""
    return ascii(str(error) or type(error).__name__)[1:-1][:200]
