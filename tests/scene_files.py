"""Hand-made scene files: right ones through plyfile, wrong ones byte by byte."""

from __future__ import annotations

from pathlib import Path
from typing import Dict, List, Optional, Sequence

import numpy as np
from plyfile import PlyData, PlyElement

REQUIRED = (
    "x", "y", "z", "f_dc_0", "f_dc_1", "f_dc_2", "opacity",
    "scale_0", "scale_1", "scale_2", "rot_0", "rot_1", "rot_2", "rot_3",
)  # fmt: skip

RGB = ("red", "green", "blue")


def raw_rows(
    n: int, degree: int = 0, seed: int = 0, kind: str = "f4", order: Optional[Sequence[str]] = None
) -> np.ndarray:
    """A structured array of n plausible rows as a 3DGS PLY stores them."""
    k = (degree + 1) ** 2 - 1
    names = list(order or (*REQUIRED, *(f"f_rest_{i}" for i in range(3 * k))))
    rng = np.random.default_rng(seed)
    rows = np.zeros(n, [(name, kind) for name in names])
    for name in sorted(names):  # the values belong to the names, whatever the order
        rows[name] = rng.normal(0, 1, n)
    for name in ("scale_0", "scale_1", "scale_2"):
        if name in names:
            rows[name] -= 4
    return rows


def write_rows(
    path: Path, rows: np.ndarray, text: bool = False, order: str = "<", comments: Sequence[str] = ()
) -> Path:
    PlyData([PlyElement.describe(rows, "vertex")], text=text, byte_order=order, comments=list(comments)).write(
        str(path)
    )
    return path


def header(
    n: object, properties: Sequence[str] = REQUIRED, form: str = "binary_little_endian", kind: str = "float"
) -> bytes:
    lines = ["ply", f"format {form} 1.0", f"element vertex {n}"]
    lines += [f"property {kind} {name}" for name in properties]
    return ("\n".join(lines) + "\nend_header\n").encode()


def good_bytes(n: int = 3) -> bytes:
    """A small right file to spoil."""
    return header(n) + np.stack([raw_rows(n)[name] for name in REQUIRED], axis=1).astype("<f4").tobytes()


def expected(rows: np.ndarray, degree: int) -> Dict[str, np.ndarray]:
    """The specification, in float64 and one row at a time."""
    k = (degree + 1) ** 2
    out: Dict[str, List[object]] = {"means": [], "scales": [], "quats": [], "opacities": [], "sh": []}
    for row in rows:
        quat = np.array([float(row[f"rot_{i}"]) for i in range(4)])
        sh = np.zeros((k, 3))
        for c in range(3):
            sh[0, c] = row[f"f_dc_{c}"]
            for j in range(k - 1):
                sh[1 + j, c] = row[f"f_rest_{c * (k - 1) + j}"]
        out["means"].append([float(row[name]) for name in "xyz"])
        out["scales"].append([np.exp(float(row[f"scale_{i}"])) for i in range(3)])
        out["quats"].append(quat / np.sqrt((quat**2).sum()))
        out["opacities"].append(1 / (1 + np.exp(-float(row["opacity"]))))
        out["sh"].append(sh)
    return {name: np.array(values) for name, values in out.items()}
