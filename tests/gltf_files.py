"""Small glTF files with splats, and wrong ones made from them."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any, Dict, List, Optional, Tuple

import numpy as np

from edgegs.scene import Scene
from edgegs.scene.frames import turn_means, turn_quats, turn_sh

PREFIX = "KHR_gaussian_splatting"
Document = Dict[str, Any]


def document(scene: Scene, frame: str = "rub") -> Tuple[Document, bytes]:
    """(document, bytes of its only buffer): a node with one primitive of float32 attributes."""
    means, quats, sh = scene.means, scene.quats, scene.sh
    if frame == "rub":
        means, quats, sh = turn_means(means), turn_quats(quats), turn_sh(sh)
    columns: List[Tuple[str, np.ndarray]] = [
        ("POSITION", means),
        (f"{PREFIX}:ROTATION", quats[:, [1, 2, 3, 0]]),
        (f"{PREFIX}:SCALE", scene.scales),
        (f"{PREFIX}:OPACITY", scene.opacities),
    ]
    k = 0
    for degree in range(scene.sh_degree + 1):
        for m in range(2 * degree + 1):
            columns.append((f"{PREFIX}:SH_DEGREE_{degree}_COEF_{m}", sh[:, k]))
            k += 1
    made: Document = {
        "asset": {"version": "2.0"},
        "extensionsUsed": [PREFIX],
        "scene": 0,
        "scenes": [{"nodes": [0]}],
        "nodes": [{"mesh": 0}],
        "meshes": [{"primitives": [{"mode": 0, "attributes": {}, "extensions": {PREFIX: kind()}}]}],
        "accessors": [],
        "bufferViews": [],
        "buffers": [{"byteLength": 0}],
    }
    data = b""
    for name, values in columns:
        data += add(made, name, values, len(data))
    made["buffers"][0]["byteLength"] = len(data)
    return made, data


def kind() -> Document:
    return {"kernel": "ellipse", "colorSpace": "srgb_rec709_display"}


def add(made: Document, name: str, values: np.ndarray, offset: int, component: int = 5126, **more: Any) -> bytes:
    """An attribute of the first primitive, its data at ``offset``; returns the data."""
    dtype = {5120: "<i1", 5121: "<u1", 5122: "<i2", 5123: "<u2", 5126: "<f4"}[component]
    data = np.ascontiguousarray(values, dtype).tobytes()
    made["meshes"][0]["primitives"][0]["attributes"][name] = len(made["accessors"])
    width = 1 if values.ndim == 1 else values.shape[1]
    made["accessors"].append(
        {
            "bufferView": len(made["bufferViews"]),
            "componentType": component,
            "count": len(values),
            "type": {1: "SCALAR", 3: "VEC3", 4: "VEC4"}[width],
            **more,
        }
    )
    made["bufferViews"].append({"buffer": 0, "byteOffset": offset, "byteLength": len(data)})
    return data


def glb(made: Document, data: Optional[bytes]) -> bytes:
    text = json.dumps(made).encode()
    return glb_of(text, data)


def glb_of(text: bytes, data: Optional[bytes]) -> bytes:
    text += b" " * (-len(text) % 4)
    chunks = struct.pack("<I4s", len(text), b"JSON") + text
    if data is not None:
        data += bytes(-len(data) % 4)
        chunks += struct.pack("<I4s", len(data), b"BIN\0") + data
    return struct.pack("<4sII", b"glTF", 2, 12 + len(chunks)) + chunks


def gltf(made: Document, data: bytes, media: str = "application/octet-stream") -> bytes:
    """The document with its data inside."""
    buffer = {**made["buffers"][0], "uri": f"data:{media};base64,{base64.b64encode(data).decode()}"}
    return json.dumps({**made, "buffers": [buffer]}).encode()
