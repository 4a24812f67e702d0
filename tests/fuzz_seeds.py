"""Small right files of every format, made here, and those of ../shared/data: what the fuzzer starts from."""

from __future__ import annotations

import gzip
import io
import json
import os
import struct
import tempfile
import zipfile
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional

import numpy as np


class Seeds(NamedTuple):
    """``file_name``: what the fuzzed file is called. ``files``: its contents. ``beside``: other files of its folder."""

    file_name: str
    files: List[bytes]
    beside: Dict[str, bytes]


def seeds(reader: str, shared: Optional[Path]) -> Seeds:
    """Of a reader by the name that ``edgegs.scene.formats`` has for it; ``shared``: the folder of real data, if any."""
    name, made = {
        "ply": ("scene.ply", _ply),
        "compressed.ply": ("scene.compressed.ply", _compressed_ply),
        "splat": ("scene.splat", _splat),
        "spz": ("scene.spz", _spz),
        "sog": ("scene.sog", _sog),
        "sog json": ("meta.json", _sog_json),
        "gltf": ("scene.glb", _gltf),
        "egs": ("scene.egs", _egs),
    }[reader]
    files = made()
    folder = {"ply": "gaussian-ply", "spz": "gaussian-spz", "sog": "gaussian-sog"}.get(reader)
    if shared is not None and folder is not None:
        for path in sorted((shared / "hostile" / folder).iterdir()) + sorted((shared / "equivalence").iterdir()):
            if path.suffix == f".{reader}" and path.stat().st_size < 32_000:
                files.append(path.read_bytes())
    return Seeds(name, files, {**_planes(3, 1), "part.sog": _sog()[0]} if reader == "sog json" else {})


def _columns(n: int, degree: int) -> Dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    names = ["x", "y", "z", "f_dc_0", "f_dc_1", "f_dc_2", "opacity"]
    names += [f"scale_{i}" for i in range(3)] + [f"rot_{i}" for i in range(4)]
    names += [f"f_rest_{i}" for i in range(3 * ((degree + 1) ** 2 - 1))]
    return {name: rng.normal(-3 if name.startswith("scale") else 0, 1, n).astype("<f4") for name in names}


def _ply() -> List[bytes]:
    files = []
    little, big = "binary_little_endian", "binary_big_endian"
    for degree, form in ((0, little), (1, big), (1, "ascii"), (2, little)):
        columns = _columns(3, degree)
        lines = ["ply", f"format {form} 1.0", "comment Vertical axis: y", "element vertex 3"]
        lines += [f"property float {name}" for name in columns]
        lines += ["element extra 1", "property uchar w", "end_header", ""]
        rows = np.stack(list(columns.values()), axis=1)
        if form == "ascii":
            data = ("\n".join(" ".join(f"{v:.3g}" for v in row) for row in rows) + "\n7\n").encode()
        else:
            data = rows.astype(">f4" if "big" in form else "<f4").tobytes() + b"\7"
        files.append("\n".join(lines).encode() + data)
    columns = _columns(2, 1)
    kinds = [("double" if i % 3 == 0 else "float", "<f8" if i % 3 == 0 else "<f4") for i in range(len(columns))]
    lines = ["ply", f"format {little} 1.0", "element vertex 2"]
    lines += [f"property {kind} {name}" for (kind, _), name in zip(kinds, columns)] + ["end_header", ""]
    mixed = np.zeros(2, [(name, kind) for (_, kind), name in zip(kinds, columns)])
    for name, values in columns.items():
        mixed[name] = values
    files.append("\n".join(lines).encode() + mixed.tobytes())
    columns = {k: v for k, v in _columns(2, 0).items() if k != "scale_2"}  # 2DGS
    lines = ["ply", "format binary_little_endian 1.0", "comment SplatRenderMode: mip", "element vertex 2"]
    lines += [f"property float {name}" for name in columns] + ["end_header", ""]
    files.append("\n".join(lines).encode() + np.stack(list(columns.values()), axis=1).tobytes())
    rgb = [f"property float {axis}" for axis in "xyz"] + [f"property uchar {c}" for c in ("red", "green", "blue")]
    rest = [f"property float {name}" for name in list(_columns(1, 0))[6:]]
    lines = ["ply", "format binary_little_endian 1.0", "element vertex 1", *rgb, *rest, "end_header", ""]
    files.append("\n".join(lines).encode() + struct.pack("<3f3B8f", 1, 2, 3, 9, 99, 200, 0, -3, -3, -3, 1, 0, 0, 0))
    return files


def _compressed_ply() -> List[bytes]:
    rng = np.random.default_rng(8)
    files = []
    for n_rest, colour_bounds in ((0, False), (0, True), (9, True), (45, True)):
        n, n_chunks = (3, 1) if n_rest else (257, 2)
        bounds = [f"{side}_{axis}" for side in ("min", "max") for axis in "xyz"]
        bounds += [f"{side}_scale_{axis}" for side in ("min", "max") for axis in "xyz"]
        bounds += [f"{side}_{channel}" for side in ("min", "max") for channel in "rgb"] if colour_bounds else []
        lines = ["ply", "format binary_little_endian 1.0", f"element chunk {n_chunks}"]
        lines += [f"property float {name}" for name in bounds] + [f"element vertex {n}"]
        lines += [f"property uint packed_{name}" for name in ("position", "rotation", "scale", "color")]
        if n_rest:
            lines += [f"element sh {n}"] + [f"property uchar f_rest_{i}" for i in range(n_rest)]
        chunk = np.array([-1.0] * 3 + [1.0] * 3 + [-6.0] * 3 + [-2.0] * 3 + [0.0] * 3 + [1.0] * 3, "<f4")
        data = chunk[: len(bounds)].tobytes() * n_chunks + rng.bytes(16 * n + n * n_rest)
        files.append("\n".join([*lines, "end_header", ""]).encode() + data)
    return files


def _splat() -> List[bytes]:
    rows = [
        struct.pack("<6f8B", i, -i, 0.5, 0.01, 0.1 * i, 0, 255, i, 9, 255 - i, *quat)
        for i, quat in enumerate([(255, 128, 128, 128), (128, 128, 128, 128), (192, 192, 192, 192), (64, 192, 64, 192)])
    ]
    return [rows[0], b"".join(rows), b"".join(rows) * 20]


def _spz() -> List[bytes]:
    rng = np.random.default_rng(9)
    files = []
    for version, degree, n in ((1, 0, 2), (2, 1, 3), (3, 3, 2), (2, 4, 1), (4, 0, 3), (4, 2, 3)):
        k = (degree + 1) ** 2 - 1
        sizes = [6 if version == 1 else 9, 1, 3, 3, 3 if version < 3 else 4, 3 * k]
        arrays = [rng.bytes(n * size) for size in sizes if size]
        if version == 1:
            arrays[0] = rng.normal(size=(n, 3)).astype("<f2").tobytes()
        head = struct.pack("<IIIBBB", 0x5053474E, version, n, degree, 12, 1)
        if version < 4:
            files.append(gzip.compress(head + b"\0" + b"".join(arrays), mtime=0))
            continue
        try:
            import zstandard
        except ImportError:
            continue
        packed = [zstandard.ZstdCompressor(level=1).compress(array) for array in arrays]
        table = b"".join(struct.pack("<QQ", len(p), len(a)) for p, a in zip(packed, arrays))
        files.append(head + bytes([len(arrays)]) + struct.pack("<I12x", 32) + table + b"".join(packed))
    return files


def webp(width: int, height: int, seed: int, mode: str = "RGBA", lossless: bool = True) -> bytes:
    """A picture of random pixels; alpha as a quaternion's tag has it."""
    from PIL import Image

    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 4)).astype(np.uint8)
    pixels[..., 3] = 252 + pixels[..., 3] % 4
    stream = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(stream, "WEBP", lossless=lossless, exact=True, method=0)
    return stream.getvalue()


def _meta(n: int, bands: int, version: int = 2) -> bytes:
    codebook = [i % 7 - 4 for i in range(256)]
    meta: Dict[str, Any] = {
        "means": {"mins": [-1, -1, -1], "maxs": [1, 1, 1], "files": ["means_l.webp", "means_u.webp"]},
        "scales": {"codebook": codebook, "files": ["scales.webp"]},
        "quats": {"files": ["quats.webp"]},
        "sh0": {"codebook": codebook, "files": ["sh0.webp"]},
    }
    if version == 2:
        meta.update(version=2, count=n, antialias=True)
    else:
        meta["means"]["shape"] = [n, 3]
        meta["scales"] = {"mins": [-6] * 3, "maxs": [-2] * 3, "files": ["scales.webp"]}
        meta["sh0"] = {"mins": [-1] * 3 + [-4], "maxs": [1] * 3 + [4], "files": ["sh0.webp"]}
    if bands:
        meta["shN"] = {"count": 64, "bands": bands, "codebook": codebook, "files": ["c.webp", "l.webp"]}
        if version == 1:
            meta["shN"] = {"mins": -1, "maxs": 1, "files": ["c.webp", "l.webp"]}
    return json.dumps(meta).encode()


def _planes(n: int, bands: int) -> Dict[str, bytes]:
    names = ["means_l", "means_u", "scales", "quats", "sh0"]
    try:
        made = {f"{name}.webp": webp(2, (n + 1) // 2, i) for i, name in enumerate(names)}
        if bands:
            made["c.webp"] = webp(64 * ((bands + 1) ** 2 - 1), 1, 10)
            made["l.webp"] = webp(2, (n + 1) // 2, 11)
    except ImportError:
        return {}
    return made


def zipped(members: Dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name), data, compression)
    return stream.getvalue()


def _sog() -> List[bytes]:
    return [
        zipped({"meta.json": _meta(3, 0), **_planes(3, 0)}),
        zipped({"meta.json": _meta(3, 1), **_planes(3, 1)}, zipfile.ZIP_DEFLATED),
        zipped({"meta.json": _meta(4, 1, version=1), **_planes(4, 1)}),
    ]


def _sog_json() -> List[bytes]:
    streamed = {
        "lodLevels": 2,
        "filenames": ["part.sog"],
        "tree": {"bound": {"min": [0] * 3, "max": [1] * 3}, "lods": {"0": {"file": 0, "offset": 0, "count": 2}}},
    }
    return [_meta(3, 1), _meta(3, 0), _meta(3, 1, version=1), json.dumps(streamed).encode()]


def _gltf() -> List[bytes]:
    from gltf_files import document, glb, gltf
    from scenes import cloud

    made = [document(cloud(3, sh_degree=degree)) for degree in (0, 1)]
    made[1][0]["nodes"][0].update(rotation=[0, 0.6, 0, 0.8], translation=[1, 2, 3], scale=[2, 2, 2])
    return [glb(*made[0]), glb(*made[1]), gltf(*made[0])]


def _egs() -> List[bytes]:
    from scenes import cloud

    from edgegs.pack.egs import write_egs
    from edgegs.pack.packed import quantise

    files = []
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "a.egs")
        for n, degree in ((3, 0), (300, 1)):
            write_egs(path, quantise(cloud(n, sh_degree=degree)))
            files.append(Path(path).read_bytes())
    return files
