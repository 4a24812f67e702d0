"""The two containers of SPZ: one gzip stream (versions 1 to 3), or a table and a ZSTD stream for each array (4).

Both are used alike: ``read_header``; ``check``, which goes through the whole file once, hashes it, and keeps nothing
of it; then ``read``, which goes through every array side by side, from places of their own. A stream is never
unpacked further than the array's size and one byte, whatever it would unpack to.
"""

from __future__ import annotations

import os
import struct
import zlib
from typing import Any, BinaryIO, Callable, List, Optional, Sequence, Tuple, Union

from edgegs.errors import SceneError
from edgegs.scene.reading import HashingReader

#: Bytes of extensions that are read; those known take 20.
MAX_EXTENSION_BYTES = 1 << 20
#: Bytes that the fields of a gzip header may take: a file name or comment has no length.
MAX_GZIP_HEADER_BYTES = 1 << 20
#: Largest window of a ZSTD stream, as many bytes as each of the six may hold on to: that of level 20.
MAX_WINDOW_BYTES = 1 << 25

_PIECE = 1 << 16
_SKIP = 1 << 18
_DEFLATE_RATIO = 1032  # no byte of a deflate stream unpacks to more
_V4_HEADER_BYTES = 32
_CUT = "is the copy or download complete?"
_Tick = Callable[[], None]
_Pull = Callable[[int], bytes]  # up to n bytes more of a file, none at its end


def _puller(file: BinaryIO, offset: int) -> _Pull:
    """Reads the file from ``offset`` on, whoever else reads it elsewhere."""
    descriptor = file.fileno()

    def pull(n: int) -> bytes:
        nonlocal offset
        data = os.pread(descriptor, n, offset)
        offset += len(data)
        return data

    return pull


def _skip(stream: Union[_Inflater, _Unpacker], n: int, n_rows: int, path: str, name: str, tick: _Tick) -> None:
    """Unpack an array of ``n`` bytes and forget it; raises SceneError if there is less."""
    n_done = 0
    while n_done < n:
        n_read = len(stream.read(min(_SKIP, n - n_done)))
        if not n_read:
            raise SceneError(
                f"{path}: its {name} end after {n_done:,} of the {n:,} bytes that the {n_rows:,} splats promised by "
                f"its header take; {_CUT}"
            )
        n_done += n_read
        tick()


class _Inflater:
    """A gzip stream that is unpacked as far as it is asked to, and can be forked anywhere."""

    def __init__(self, pull: _Pull, path: str, forked: Optional[_Inflater] = None) -> None:
        self._pull, self._path = pull, path
        self.stream: Any = forked.stream.copy() if forked else zlib.decompressobj(wbits=31)

    def fork(self, pull: _Pull) -> _Inflater:
        """Another one at the same place; its ``pull`` begins after what this one pulled."""
        return _Inflater(pull, self._path, self)

    def read(self, n: int) -> bytes:
        """The next ``n`` bytes; fewer at the end of the stream or of the file."""
        pieces: List[bytes] = []
        while n > 0 and not self.stream.eof:
            packed = self.stream.unconsumed_tail or self._pull(_PIECE)
            if not packed:
                break
            try:
                piece = self.stream.decompress(packed, n)
            except zlib.error as error:
                raise SceneError(f"{self._path}: {_gzip_fault(str(error))}; copy or export it again") from error
            n -= len(piece)
            pieces.append(piece)
        return b"".join(pieces)


def _gzip_fault(text: str) -> str:
    if "header crc" in text:
        return "damaged: its gzip header does not have its own checksum"
    if "data check" in text:
        return "damaged: its content does not have the checksum (CRC-32) that gzip noted"
    if "length check" in text:
        return "damaged: its content does not have the size (ISIZE) that gzip noted"
    return f"damaged: its gzip stream cannot be unpacked ({text.rpartition(': ')[2]})"


class GzipContainer:
    """Versions 1 to 3: header, arrays and extensions in one gzip stream."""

    def __init__(self, file: BinaryIO, path: str, size: int) -> None:
        self._file, self._path, self._size = file, path, size
        self._hashing = HashingReader(file)
        self._pulled = 0
        self._in_header = True
        self._inflater = _Inflater(self._pull, path)
        self._arrays: List[_Inflater] = []

    @property
    def sha256(self) -> str:
        return self._hashing.digest.hexdigest()

    def _pull(self, n: int) -> bytes:
        if self._in_header and self._pulled >= MAX_GZIP_HEADER_BYTES:
            raise SceneError(f"{self._path}: gzip data without content in its first MiB; not an SPZ scene")
        data = self._hashing.read(n) or b""
        self._pulled += len(data)
        return data

    def read_header(self, n: int) -> bytes:
        """The first ``n`` bytes of the content, fewer if there are fewer; raises SceneError if there are none."""
        head = self._inflater.read(n)
        if not head and not self._inflater.stream.eof:
            raise SceneError(f"{self._path}: ends inside its gzip header; {_CUT}")
        self._in_header = False
        return head

    def check(self, n_rows: int, row_bytes: Sequence[int], names: Sequence[str], extended: bool, tick: _Tick) -> bytes:
        """Go through the rest of the file; see ``ZstdContainer.check``."""
        path, total = self._path, n_rows * sum(row_bytes)
        if total > self._size * _DEFLATE_RATIO:
            raise SceneError(
                f"{path}: its header promises {n_rows:,} splats, and {self._size:,} bytes of gzip hold at most "
                f"{self._size * _DEFLATE_RATIO // sum(row_bytes):,}; {_CUT}"
            )
        if self._size > 2 * total + 2 * MAX_GZIP_HEADER_BYTES:
            raise SceneError(
                f"{path}: {self._size:,} bytes for {n_rows:,} splats that unpack to {total:,}; not an SPZ scene"
            )
        for name, n_bytes in zip(names, row_bytes):
            self._arrays.append(self._inflater.fork(_puller(self._file, self._pulled)))
            _skip(self._inflater, n_rows * n_bytes, n_rows, path, name, tick)
        rest = self._inflater.read(MAX_EXTENSION_BYTES + 1 if extended else 1)
        if rest and not extended:
            raise SceneError(
                f"{path}: its content goes on after the {n_rows:,} splats that its header promises; "
                "export the scene again"
            )
        if len(rest) > MAX_EXTENSION_BYTES:
            raise SceneError(f"{path}: more than {MAX_EXTENSION_BYTES >> 20} MiB of extensions; export it without them")
        if not self._inflater.stream.eof:
            raise SceneError(f"{path}: ends inside its gzip stream; {_CUT}")
        n_after = len(self._inflater.stream.unused_data) + self._size - self._pulled
        if n_after:
            raise SceneError(f"{path}: {n_after:,} bytes follow its gzip stream; export the scene again")
        return rest

    def read(self, array: int, n: int) -> bytes:
        """The next ``n`` bytes of an array, after ``check``."""
        return self._arrays[array].read(n)


class ZstdContainer:
    """Version 4: a plain header, extensions, a table of contents, and a ZSTD stream for each array."""

    def __init__(self, file: BinaryIO, path: str, size: int) -> None:
        self._file, self._path, self._size = file, path, size
        self._hashing = HashingReader(file)
        self._header = b""
        self._arrays: List[_Unpacker] = []

    @property
    def sha256(self) -> str:
        return self._hashing.digest.hexdigest()

    def read_header(self, n: int) -> bytes:
        """The first ``n`` bytes of the file, fewer if there are fewer."""
        self._header = self._take(_V4_HEADER_BYTES)
        return self._header[:n]

    def _take(self, n: int) -> bytes:
        """The next ``n`` bytes of the file, fewer at its end."""
        data = b""
        while len(data) < n:
            piece = self._hashing.read(n - len(data))
            if not piece:
                break
            data += piece
        return data

    def check(self, n_rows: int, row_bytes: Sequence[int], names: Sequence[str], extended: bool, tick: _Tick) -> bytes:
        """Go through the rest of the file once, and forget it: is it all there, and as it should be?

        Args:
            n_rows: splats that the header promises.
            row_bytes: bytes a splat takes in each of the arrays.
            names: of the arrays, for messages.
            extended: the header says that there are extensions.
            tick: called now and then; what it raises ends the check.

        Returns:
            The extensions, at most ``MAX_EXTENSION_BYTES``.

        Raises:
            SceneError: anything else than the arrays, complete, and the extensions; naming it.
        """
        extensions, sizes = self._read_table(n_rows, row_bytes, names)
        start = self._size - sum(n_packed for n_packed, _ in sizes)
        for name, (n_packed, n_raw) in zip(names, sizes):
            self._check_stream(name, n_packed, n_raw, n_rows, tick)
            self._arrays.append(_Unpacker(_Slice(_puller(self._file, start), n_packed), self._path, name))
            start += n_packed
        return extensions if extended else b""

    def _read_table(
        self, n_rows: int, row_bytes: Sequence[int], names: Sequence[str]
    ) -> Tuple[bytes, List[Tuple[int, int]]]:
        """The extensions, and (packed, unpacked) bytes of each stream, which together end where the file does."""
        path = self._path
        if len(self._header) < _V4_HEADER_BYTES:
            raise SceneError(f"{path}: ends inside its header; {_CUT}")
        n_streams, table_offset = self._header[15], struct.unpack_from("<I", self._header, 16)[0]
        if n_streams != len(row_bytes):
            raise SceneError(
                f"{path}: its header says {n_streams} streams, and its SH degree makes them {len(row_bytes)}; "
                "export the scene again"
            )
        n_extension = table_offset - _V4_HEADER_BYTES
        if not 0 <= n_extension <= MAX_EXTENSION_BYTES:
            raise SceneError(
                f"{path}: its header says that the table of contents begins at byte {table_offset:,}; it must be "
                f"{_V4_HEADER_BYTES} or, after extensions, at most {MAX_EXTENSION_BYTES >> 20} MiB more"
            )
        extensions, table = self._take(n_extension), self._take(16 * n_streams)
        if len(table) < 16 * n_streams:
            raise SceneError(f"{path}: ends inside its table of contents; {_CUT}")
        entries = [struct.unpack_from("<QQ", table, 16 * i) for i in range(n_streams)]
        end = table_offset + len(table) + sum(n_packed for n_packed, _ in entries)
        for name, n_bytes, (_, n_raw) in zip(names, row_bytes, entries):
            if n_raw != n_rows * n_bytes:
                raise SceneError(
                    f"{path}: its table of contents says {n_raw:,} bytes of {name}, and the {n_rows:,} splats that its "
                    f"header promises take {n_rows * n_bytes:,}; export the scene again"
                )
        if end > self._size:
            raise SceneError(
                f"{path}: holds {self._size:,} of the {end:,} bytes that its table of contents promises; {_CUT}"
            )
        if end < self._size:
            raise SceneError(f"{path}: {self._size - end:,} bytes follow its last stream; export the scene again")
        for name, (n_packed, n_raw) in zip(names, entries):
            if n_packed > 2 * n_raw + _PIECE:
                raise SceneError(f"{path}: {n_packed:,} bytes of ZSTD for {n_raw:,} bytes of {name}; export it again")
        return extensions, entries

    def _check_stream(self, name: str, n_packed: int, n_raw: int, n_rows: int, tick: _Tick) -> None:
        stream = _Unpacker(_Slice(lambda n: self._hashing.read(n) or b"", n_packed), self._path, name)
        _skip(stream, n_raw, n_rows, self._path, name, tick)
        if stream.read(1):  # which also takes whatever of the stream is left
            raise SceneError(
                f"{self._path}: its {name} unpack to more than the {n_raw:,} bytes of its table of contents; "
                "export the scene again"
            )

    def read(self, array: int, n: int) -> bytes:
        """The next ``n`` bytes of an array, after ``check``."""
        return self._arrays[array].read(n)


class _Slice:
    """So many bytes of a file, as something that zstandard can read."""

    def __init__(self, pull: _Pull, left: int) -> None:
        self._pull, self._left = pull, left

    def read(self, n: int = -1) -> bytes:
        data = self._pull(min(n if n >= 0 else _PIECE, self._left)) if self._left else b""
        self._left -= len(data)
        return data


class _Unpacker:
    """A ZSTD stream that is unpacked as far as it is asked to."""

    def __init__(self, source: _Slice, path: str, name: str) -> None:
        try:
            import zstandard
        except ImportError as error:
            raise SceneError(
                f"{path}: SPZ version 4 needs the package zstandard: pip install 'edgegs[spz]' (or export version 3)"
            ) from error
        self._fault: Any = zstandard.ZstdError
        self._path, self._name = path, name
        unpacker = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)
        # Across frames, so that whatever follows the first is noticed.
        self._stream = unpacker.stream_reader(source, read_size=_PIECE, read_across_frames=True)  # type: ignore[arg-type]

    def read(self, n: int) -> bytes:
        """The next ``n`` bytes; fewer at the end of the stream."""
        pieces: List[bytes] = []
        while n > 0:
            try:
                piece = self._stream.read(n)
            except self._fault as error:
                text = str(error).rpartition(": ")[2]
                if "too much memory" in text:
                    raise SceneError(
                        f"{self._path}: its {self._name} are compressed with a ZSTD window of over "
                        f"{MAX_WINDOW_BYTES >> 20} MiB; compress the scene at level 19 or less"
                    ) from error
                raise SceneError(
                    f"{self._path}: its {self._name} cannot be unpacked (ZSTD: {text}); copy or export it again"
                ) from error
            if not piece:
                break
            n -= len(piece)
            pieces.append(piece)
        return b"".join(pieces)
