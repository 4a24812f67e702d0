"""Compressed PLY files made by hand, and what they mean, one Python number at a time."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Dict, List, Optional, Sequence

import numpy as np

C0 = 0.28209479177387814
BOUNDS = [f"{end}_{a}" for end in ("min", "max") for a in "xyz"]
BOUNDS += [f"{end}_scale_{a}" for end in ("min", "max") for a in "xyz"]
COLOURS = [f"{end}_{a}" for end in ("min", "max") for a in "rgb"]
PACKED = ["packed_position", "packed_rotation", "packed_scale", "packed_color"]
TYPES = {"f4": "float", "u4": "uint", "u1": "uchar", "f8": "double", "i4": "int"}

Elements = Dict[str, np.ndarray]


def elements(n: int, n_rest: int = 0, colours: bool = True, seed: int = 0) -> Elements:
    """Random words within plausible bounds, as structured arrays."""
    rng = np.random.default_rng(seed)
    names = [*BOUNDS, *(COLOURS if colours else [])]
    chunk = np.zeros(-(-n // 256), [(name, "<f4") for name in names])
    for name in names:
        low = -8 if "scale" in name else -0.2 if name in COLOURS else -3
        chunk[name] = rng.uniform(0, 1, len(chunk)) + low + 1.5 * name.startswith("max")
    vertex = np.zeros(n, [(name, "<u4") for name in PACKED])
    for name in PACKED:
        vertex[name] = rng.integers(0, 1 << 32, n, dtype=np.uint32)
    out = {"chunk": chunk, "vertex": vertex}
    if n_rest:
        out["sh"] = np.zeros(n, [(f"f_rest_{i}", "u1") for i in range(n_rest)])
        for i in range(n_rest):
            out["sh"][f"f_rest_{i}"] = rng.integers(0, 256, n)
    return out


def encode(parts: Elements, comments: Sequence[str] = (), counts: Optional[Dict[str, object]] = None) -> bytes:
    lines = ["ply", "format binary_little_endian 1.0", *(f"comment {comment}" for comment in comments)]
    for name, rows in parts.items():
        lines.append(f"element {name} {(counts or {}).get(name, len(rows))}")
        lines += [f"property {TYPES[rows.dtype[p].str[1:]]} {p}" for p in rows.dtype.names]
    return ("\n".join([*lines, "end_header"]) + "\n").encode() + b"".join(rows.tobytes() for rows in parts.values())


def write(path: Path, parts: Elements, comments: Sequence[str] = ()) -> Path:
    path.write_bytes(encode(parts, comments))
    return path


def specified(parts: Elements) -> Dict[str, np.ndarray]:
    """The specification, one splat and one Python number at a time: ln sigma, and logit with its infinities."""
    out: Dict[str, List[object]] = {"means": [], "log_scales": [], "quats": [], "logits": [], "sh": []}
    n_rest = len(parts["sh"].dtype.names) if "sh" in parts else 0

    def between(low: float, high: float, t: float) -> float:
        return low * (1 - t) + high * t

    for i, row in enumerate(parts["vertex"]):
        chunk = {name: float(parts["chunk"][i // 256][name]) for name in parts["chunk"].dtype.names}
        position, rotation, scale, colour = (int(row[name]) for name in PACKED)
        mean, log_scale = [], []
        for axis, shift, top in (("x", 21, 2047), ("y", 11, 1023), ("z", 0, 2047)):
            t = (position >> shift & top) / top
            mean.append(between(chunk[f"min_{axis}"], chunk[f"max_{axis}"], t))
            t = (scale >> shift & top) / top
            log_scale.append(between(chunk[f"min_scale_{axis}"], chunk[f"max_scale_{axis}"], t))
        three = [((rotation >> shift & 1023) / 1023 - 0.5) * math.sqrt(2) for shift in (20, 10, 0)]
        quat = list(three)
        quat.insert(rotation >> 30, math.sqrt(max(0.0, 1 - sum(v * v for v in three))))
        dc = []
        for letter, shift in (("r", 24), ("g", 16), ("b", 8)):
            c = (colour >> shift & 255) / 255
            if f"min_{letter}" in chunk:
                c = between(chunk[f"min_{letter}"], chunk[f"max_{letter}"], c)
            dc.append((c - 0.5) / C0)
        alpha = (colour & 255) / 255
        logit = -math.inf if alpha == 0 else math.inf if alpha == 1 else math.log(alpha / (1 - alpha))
        sh = [dc]
        for k in range(min(15, n_rest // 3)):
            coefficient = []
            for c in range(3):
                byte = int(parts["sh"][i][f"f_rest_{c * (n_rest // 3) + k}"])
                n = 0.0 if byte == 0 else 1.0 if byte == 255 else (byte + 0.5) / 256
                coefficient.append((n - 0.5) * 8)
            sh.append(coefficient)
        for name, value in zip(out, (mean, log_scale, quat, logit, sh)):
            out[name].append(value)
    return {name: np.array(values) for name, values in out.items()}
