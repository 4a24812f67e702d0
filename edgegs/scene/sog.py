"""SOG scenes, v1 and v2: a zip (.sog), a meta.json with its planes beside it, or a streamed scene (lod-meta.json)."""

from __future__ import annotations

import contextlib
import os
from typing import Any, BinaryIO, Dict, Iterable, Iterator, List, Tuple

import numpy as np

from edgegs.errors import InputError, SceneError
from edgegs.scene.builder import RawBlock, SceneBuilder
from edgegs.scene.checks import open_scene_file
from edgegs.scene.model import Scene
from edgegs.scene.reading import BLOCK_ROWS, Reading, Unchanged
from edgegs.scene.sog_files import INDEX, META, FolderFiles, ZipFiles, is_missing, open_inside
from edgegs.scene.sog_lod import MAX_INDEX_BYTES, Part, Plan, is_index, parse_index, trained_alike
from edgegs.scene.sog_meta import MAX_META_BYTES, SogMeta, parse_json, parse_meta
from edgegs.scene.sog_planes import Files, Planes, read_planes

_IDENTITY = (1.0, 0.0, 0.0, 0.0)
_PALETTE_ROWS = 1 << 12  # looked up at once: NumPy makes 8 bytes of every byte meanwhile
_FIRST_TAG = 252  # alpha of the quaternions: 252 + which of w, x, y, z was left out, the largest


def read_sog(file: BinaryIO, path: str, how: Reading) -> Scene:
    """Read a bundled SOG scene from an open unbuffered zip file; see ``edgegs.scene.load``."""
    files = ZipFiles(file, path)
    meta = parse_meta(parse_json(files.read(META, MAX_META_BYTES), f"{path}: {META}"), f"{path}: {META}")
    return _read_whole(files, meta, path, how)


def read_sog_json(file: BinaryIO, path: str, how: Reading) -> Scene:
    """Read an unbundled SOG scene from its open meta.json, or a streamed one from its lod-meta.json.

    The other files are opened beside ``path``.
    """
    unchanged = Unchanged(file, path)
    if unchanged.n_bytes > MAX_INDEX_BYTES:
        raise SceneError(f"{path}: {unchanged.n_bytes:,} bytes; the limit of a {INDEX} is {MAX_INDEX_BYTES:,}")
    data = os.pread(file.fileno(), MAX_INDEX_BYTES, 0)
    unchanged.check()
    content = parse_json(data, path)
    files = FolderFiles(os.path.dirname(path), path)
    if is_index(content):
        files.add(INDEX, data)
        return _read_streamed(files, content, path, how)
    if len(data) > MAX_META_BYTES:
        raise SceneError(f"{path}: {len(data):,} bytes; the limit of a {META} is {MAX_META_BYTES:,}")
    files.add(META, data)
    return _read_whole(files, parse_meta(content, path), path, how)


def read_sog_folder(folder: str, how: Reading) -> Scene:
    """Read the folder of an unbundled or streamed SOG scene.

    Raises:
        InputError: there is neither a meta.json nor a lod-meta.json in it. Otherwise as ``read_sog_json``.
    """
    for name in (INDEX, META):
        path = os.path.join(folder, name)
        if not is_missing(path):
            with open_scene_file(path) as file:
                return read_sog_json(file, path, how)
    raise InputError(f"{folder}: is a folder, and holds neither {META} nor {INDEX} (SOG); name a file")


def _read_whole(files: Files, meta: SogMeta, path: str, how: Reading) -> Scene:
    how.check_count(meta.count, path, "its count")
    planes = read_planes(files, meta)
    builder = SceneBuilder(
        path,
        f"sog v{meta.version}",
        meta.count,
        planes.sh_degree,
        how.max_gaussians,
        antialiased=meta.model == "antialiased",
        frame=how.frame or "rdf",
    )
    for warning in meta.warnings:
        builder.warn(warning)
    n_done = 0
    for block in _blocks(meta, planes, [(0, meta.count)], planes.sh_degree):
        builder.add(block)
        n_done += len(block.logits)
        how.report(n_done, meta.count)
    return builder.finish(files.finish())


def _read_streamed(index: FolderFiles, content: Dict[str, Any], path: str, how: Reading) -> Scene:
    """Two passes over the parts: the first only reads what they promise, so that the scene is allocated once."""
    plan = parse_index(content, path)
    counts, sh_degree, model = _promises(plan, path)
    n_rows = plan.n_rows + sum(count for part, count in zip(plan.parts, counts) if part.ranges is None)
    how.check_count(n_rows, path, "the tree")
    how.check_count(sum(counts), path, f"its {len(plan.parts):,} files")  # rows beside the wanted ones cost time, too
    builder = SceneBuilder(
        path,
        "sog streamed",
        n_rows,
        sh_degree,
        how.max_gaussians,
        antialiased=model == "antialiased",
        frame=how.frame or "rdf",
    )
    for warning in plan.warnings:
        builder.warn(warning)
    n_done = 0
    for part, count in zip(plan.parts, counts):
        with _opened(part, path) as (files, meta):
            if meta.count != count or (meta.bands or 0) > sh_degree:
                raise SceneError(f"{files.shown}: the file changed while it was read; try again once it is written")
            for warning in meta.warnings:
                builder.warn(f"{part.name}: {warning}")
            planes = read_planes(files, meta)
            for block in _blocks(meta, planes, part.ranges or [(0, count)], sh_degree):
                builder.add(block)
                n_done += len(block.logits)
                how.report(n_done, n_rows)
            del planes
            index.add(part.name, bytes.fromhex(files.finish()))
    return builder.finish(index.finish())


def _promises(plan: Plan, path: str) -> Tuple[List[int], int, str]:
    """The count of each part of a streamed scene, the highest SH degree, and how they were trained."""
    sh_degree = 0
    models: List[str] = []
    counts: List[int] = []
    for part in plan.parts:
        with _opened(part, path) as (files, meta):
            if meta.version != 2:
                raise SceneError(f"{files.shown}: SOG 1 in a streamed scene; edgegs reads SOG 2 there")
            if part.ranges is not None:
                models.append(meta.model)
                if part.ranges[-1][1] > meta.count:
                    raise SceneError(
                        f"{path}: wants rows up to {part.ranges[-1][1]:,} of {part.name!a}, which has {meta.count:,}"
                    )
            sh_degree = max(sh_degree, meta.bands or 0)
            counts.append(meta.count)
    return counts, sh_degree, trained_alike(plan, models, path)


@contextlib.contextmanager
def _opened(part: Part, index: str) -> Iterator[Tuple[Files, SogMeta]]:
    """Files and checked meta of a part: the folder that its meta.json lies in, or a bundle."""
    path = os.path.join(os.path.dirname(index), *part.name.split("/"))
    with open_inside(path, f"{index}: {part.name!a}") as file:
        files: Files
        if os.pread(file.fileno(), 4, 0) == b"PK\x03\x04":
            files, name = ZipFiles(file, path), META
        else:
            files, name = FolderFiles(os.path.dirname(path), path), os.path.basename(path)
        where = path if isinstance(files, FolderFiles) else f"{path}: {META}"
        meta = parse_meta(parse_json(files.read(name, MAX_META_BYTES), where), where)
        if meta.count < 1:
            raise SceneError(f"{where}: a scene of zero splats; export it again")
        yield files, meta


def _blocks(
    meta: SogMeta, planes: Planes, ranges: Iterable[Tuple[int, int]], sh_degree: int
) -> Iterator[RawBlock]:
    """The rows of some (start, stop) within the count, with zeros in the bands up to ``sh_degree`` that lack."""
    palette = _palette(meta, planes, (sh_degree + 1) ** 2 - 1)
    for first, last in ranges:
        for start in range(first, last, BLOCK_ROWS):
            yield _block(meta, planes, palette, slice(start, min(last, start + BLOCK_ROWS)))


def _palette(meta: SogMeta, planes: Planes, k: int) -> np.ndarray:
    """(P + 1, k, 3) float32 coefficients above degree 0; the last row, zeros, is for labels beyond the palette."""
    if planes.palette is None:
        return np.zeros((1, k, 3), np.float32)
    n, k_there = planes.palette.shape[:2]
    palette = np.zeros((n + 1, k, 3), np.float32)
    for start in range(0, n, _PALETTE_ROWS):
        rows = slice(start, min(n, start + _PALETTE_ROWS))
        palette[rows, :k_there] = meta.sh_table[planes.palette[rows]]
    return palette


def _block(meta: SogMeta, planes: Planes, palette: np.ndarray, part: slice) -> RawBlock:
    sixteen = planes.low[part] + planes.high[part].astype(np.float64) * 256
    with np.errstate(over="ignore", invalid="ignore"):  # beyond any number: the builder leaves such rows out
        logarithms = meta.low + (meta.high - meta.low) * (sixteen / 65535)
        means = np.sign(logarithms) * np.expm1(np.abs(logarithms))
    axes = np.arange(3)
    color = planes.sh0[part]
    n, k = len(color), palette.shape[1] + 1
    sh = np.empty((n, k, 3), np.float32)
    sh[:, 0] = meta.color_table[color[:, :3], axes]
    if planes.labels is None:
        sh[:, 1:] = 0
    else:
        sh[:, 1:] = palette[np.minimum(planes.labels[part].astype(np.intp), len(palette) - 1)]
    return RawBlock(
        means,
        meta.scale_table[planes.scales[part], axes],
        _quats(planes.quats[part]),
        meta.logit_table[color[:, 3]],
        sh,
    )


def _quats(pixels: np.ndarray) -> np.ndarray:
    """(n, 4) float64, w first, of (n, 4) bytes: three components, and which the fourth is; else no rotation."""
    three = (pixels[:, :3] / 255 * 2 - 1) / np.sqrt(2)
    largest = np.sqrt(np.maximum(0, 1 - (three * three).sum(axis=1)))
    quats = np.empty((len(pixels), 4))
    quats[:] = _IDENTITY
    for i in range(4):
        rows = np.flatnonzero(pixels[:, 3] == _FIRST_TAG + i)
        others: List[int] = [j for j in range(4) if j != i]
        quats[rows[:, None], others] = three[rows]
        quats[rows, i] = largest[rows]
    return quats
