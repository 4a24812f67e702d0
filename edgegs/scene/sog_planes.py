"""The planes of a SOG scene: lossless WebP pictures whose pixels are numbers, looked at before they are decoded."""

from __future__ import annotations

import io
import struct
from typing import Any, Dict, NamedTuple, Optional, Tuple, Union

import numpy as np

from edgegs.errors import EdgegsError, SceneError
from edgegs.scene.builder import check_memory
from edgegs.scene.sog_files import FolderFiles, ZipFiles, one_line
from edgegs.scene.sog_meta import MAX_PALETTE, PALETTE_COLUMNS, SogMeta, clip

#: Width of the centroids' plane -> SH degree.
_BANDS = {PALETTE_COLUMNS * ((degree + 1) ** 2 - 1): degree for degree in (1, 2, 3)}
# Planes are padded to a multiple of four, or to a power of two, on each side.
_MAX_PADDING, _FREE_PIXELS = 4, 1 << 16
# A lossless WebP is never much larger than its pixels; and there may be a colour profile and the like.
_BYTES_PER_PIXEL, _FREE_BYTES = 5, 1 << 18
_MAX_CHUNKS = 64  # of a WebP: the picture, and what may describe it
_BYTES_PER_SPLAT, _BYTES_PER_DECODED_PIXEL = 19, 24

Files = Union[FolderFiles, ZipFiles]


class Planes(NamedTuple):
    """Bytes of the planes: n splats, row i is splat i. ``labels`` and ``palette`` are None without SH bands."""

    low: np.ndarray  # (n, 3) uint8
    high: np.ndarray  # (n, 3) uint8
    scales: np.ndarray  # (n, 3) uint8
    quats: np.ndarray  # (n, 4) uint8
    sh0: np.ndarray  # (n, 4) uint8
    labels: Optional[np.ndarray]  # (n,) uint16
    palette: Optional[np.ndarray]  # (P, K, 3) uint8
    sh_degree: int


def read_planes(files: Files, meta: SogMeta) -> Planes:
    """Fetch all planes, check every header against the count, and only then decode one after the other.

    Memory: 19 bytes a splat at the end; while a plane is decoded, some 24 bytes a pixel of that plane beside what
    has been decoded by then. That there is so much is checked before.
    """
    check_memory(files.shown, meta.count, (_BYTES_PER_SPLAT + _BYTES_PER_DECODED_PIXEL) * meta.count)
    wanted = {
        "means.files[0]": (meta.means[0], 3), "means.files[1]": (meta.means[1], 3),
        "scales.files[0]": (meta.scales, 3), "quats.files[0]": (meta.quats, 4), "sh0.files[0]": (meta.sh0, 4),
    }  # fmt: skip
    if meta.labels:
        wanted["shN.files[1]"] = (meta.labels, 2)
    webp = _require_pillow(files.shown)
    max_pixels = _MAX_PADDING * meta.count + _FREE_PIXELS
    max_bytes = _BYTES_PER_PIXEL * (meta.count + _FREE_PIXELS) + _FREE_BYTES  # padding is all alike, and takes none
    found: Dict[str, bytes] = {}
    first = (0, 0)
    for field, (name, _) in wanted.items():
        found[field] = data = files.read(name, max_bytes, field)
        size = webp_size(data, f"{files.shown}: {clip(name)}")
        first = first if any(first) else size
        _check_plane(size, first, meta, max_pixels, files.shown, name)
    n_bytes = _BYTES_PER_SPLAT * meta.count + _BYTES_PER_DECODED_PIXEL * first[0] * first[1]
    check_memory(files.shown, meta.count, n_bytes)
    sh_degree, palette = 0, None
    if meta.centroids:
        sh_degree, palette = _read_palette(webp, files, meta)
    rows = {}
    for field, (name, n_channels) in wanted.items():
        pixels = _decode(webp, found.pop(field), f"{files.shown}: {clip(name)}")
        rows[field] = _channels(pixels.reshape(-1, pixels.shape[2])[: meta.count], n_channels)
        del pixels
    labels = rows["shN.files[1]"].view("<u2")[:, 0] if meta.labels else None
    return Planes(
        rows["means.files[0]"], rows["means.files[1]"], rows["scales.files[0]"], rows["quats.files[0]"],
        rows["sh0.files[0]"], labels, palette, sh_degree,
    )  # fmt: skip


def _check_plane(
    size: Tuple[int, int], first: Tuple[int, int], meta: SogMeta, max_pixels: int, shown: str, name: str
) -> None:
    width, height = size
    where = f"{shown}: {clip(name)}: {width} x {height} pixels"
    if width * height < meta.count:
        raise SceneError(f"{where} are too few for the {meta.count:,} splats that the count promises; export it again")
    if width * height > max_pixels:
        raise SceneError(f"{where} for {meta.count:,} splats: far too large; export it again")
    if size != first:
        raise SceneError(f"{where}, but {clip(meta.means[0])} has {first[0]} x {first[1]}; export it again")


def _read_palette(webp: Any, files: Files, meta: SogMeta) -> Tuple[int, np.ndarray]:
    """SH degree, and the (P, K, 3) uint8 centroids."""
    where = f"{files.shown}: {clip(meta.centroids)}"
    max_rows = MAX_PALETTE // PALETTE_COLUMNS
    limit = _BYTES_PER_PIXEL * max(_BANDS) * max_rows + _FREE_BYTES
    data = files.read(meta.centroids, limit, "shN.files[0]")
    width, height = webp_size(data, where)
    degree = _BANDS.get(width)
    if degree is None or meta.bands not in (None, degree):
        bands = "" if meta.bands is None else f" for the {meta.bands} that shN.bands says"
        raise SceneError(f"{where}: {width} pixels wide; a row is 192, 512 or 960 for 1, 2 or 3 SH bands{bands}")
    if height > max_rows:
        raise SceneError(f"{where}: {height:,} rows; labels can only name the first {max_rows:,}")
    palette = PALETTE_COLUMNS * height if meta.palette is None else meta.palette
    if palette > PALETTE_COLUMNS * height:
        raise SceneError(f"{where}: holds {PALETTE_COLUMNS * height:,} centroids, and shN.count is {palette:,}")
    pixels = _channels(_decode(webp, data, where).reshape(width * height, -1), 3)
    return degree, pixels.reshape(PALETTE_COLUMNS * height, width // PALETTE_COLUMNS, 3)[:palette]


def webp_size(data: bytes, where: str) -> Tuple[int, int]:
    """(width, height) of a still, lossless WebP, from its chunks; any other content is a SceneError."""
    if data[:4] != b"RIFF" or data[8:12] != b"WEBP":
        raise SceneError(f"{where}: no WebP picture; edgegs reads SOG planes as lossless WebP")
    (size,) = struct.unpack_from("<I", data, 4)
    if size + 8 > len(data):
        raise SceneError(f"{where}: ends after {len(data):,} of {size + 8:,} bytes; is the copy or download complete?")
    at, found, n_chunks = 12, None, 0
    while at + 8 <= size + 8:
        n_chunks += 1
        if n_chunks > _MAX_CHUNKS:
            raise SceneError(f"{where}: a WebP of over {_MAX_CHUNKS} parts; a plane is one lossless picture")
        kind, length = data[at : at + 4], struct.unpack_from("<I", data, at + 4)[0]
        if kind == b"VP8 ":
            raise SceneError(f"{where}: a lossy WebP picture, which spoils the numbers in it; export it as lossless")
        if kind in (b"ANIM", b"ANMF"):
            raise SceneError(f"{where}: an animated WebP; a plane is one lossless picture")
        if kind == b"VP8L":
            if found is not None or data[at + 8 : at + 9] != b"\x2f" or length < 5:
                raise SceneError(f"{where}: a damaged WebP picture; copy or export it again")
            (bits,) = struct.unpack_from("<I", data.ljust(at + 13, b"\0"), at + 9)
            found = ((bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)
        at += 8 + length + (length & 1)
    if found is None:
        raise SceneError(f"{where}: a WebP without a lossless picture (VP8L); copy or export it again")
    return found


def _require_pillow(shown: str) -> Any:
    """Pillow's WebP plugin, which unlike ``Image.open`` has no limit of its own: sizes are checked before."""
    try:
        from PIL import WebPImagePlugin, features
    except ImportError as error:
        raise SceneError(f"{shown}: SOG scenes need Pillow ({error}); pip install 'edgegs[sog]'") from None
    if not features.check("webp"):
        raise SceneError(
            f"{shown}: this Pillow was built without WebP; pip install --force-reinstall --only-binary :all: Pillow"
        )
    return WebPImagePlugin


def _decode(webp: Any, data: bytes, where: str) -> np.ndarray:
    """(height, width, 3 or 4) uint8, as stored: no colour profile applied, colours of transparent pixels kept."""
    size = webp_size(data, where)
    try:
        with webp.WebPImageFile(io.BytesIO(data)) as image:
            if image.size != size or image.mode not in ("RGB", "RGBA"):
                raise ValueError(f"decoded as {image.mode} {image.size}")
            return np.asarray(image)
    except MemoryError as error:
        raise EdgegsError(f"{where}: not enough memory for {size[0]:,} x {size[1]:,} pixels") from error
    except Exception as error:  # Pillow's decoders raise whatever their libraries do
        raise SceneError(f"{where}: cannot be decoded ({one_line(error)}); copy or export it again") from None


def _channels(pixels: np.ndarray, n: int) -> np.ndarray:
    """(rows, n) uint8 of (rows, 3 or 4), contiguous. Writers leave out an alpha of 255 everywhere."""
    rows = np.full((len(pixels), n), 255, np.uint8)
    n_there = min(n, pixels.shape[1])
    rows[:, :n_there] = pixels[:, :n_there]
    return rows
