"""Splats in glTF: what the extension's text says, node transforms, and wrong files."""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import os
import struct
import time
from pathlib import Path
from typing import Any, Callable, Dict, Optional, Tuple

import numpy as np
import pytest
from gltf_files import PREFIX, Document, add, document, glb, glb_of, gltf
from scene_limits import limited
from scenes import cloud

from edgegs.backends.twin import rotation_matrices
from edgegs.errors import InputError, SceneError
from edgegs.scene import Scene, load
from edgegs.scene.frames import turn_means, turn_quats
from edgegs.scene.reading import Reading
from edgegs.scene.synth_math import sh_basis

PLAIN = Reading()
ARRAYS = ("means", "scales", "quats", "opacities", "sh")


def read(path: Path, how: Reading = PLAIN) -> Scene:
    return load(path, how.max_gaussians, how.cap, how.progress, how.frame)


def decoded(tmp_path: Path, content: bytes, how: Reading = PLAIN) -> Scene:
    path = tmp_path / "a.glb"
    path.write_bytes(content)
    return read(path, how)


def same(a: Scene, b: Scene, atol: float = 2e-6) -> None:
    for name in ARRAYS:
        np.testing.assert_allclose(getattr(a, name), getattr(b, name), rtol=2e-6, atol=atol, err_msg=name)


@pytest.mark.parametrize("degree", range(4))
def test_binary_and_text(tmp_path: Path, degree: int) -> None:
    scene = cloud(50, sh_degree=degree)
    made, data = document(scene)
    binary = decoded(tmp_path, glb(made, data))
    same(binary, scene)
    assert (binary.sh_degree, binary.n_rows, binary.format) == (degree, 50, "gltf binary")
    assert not binary.warnings
    assert binary.sha256 == hashlib.sha256(glb(made, data)).hexdigest()
    text = decoded(tmp_path, b"\xef\xbb\xbf" + gltf(made, data, "application/gltf-buffer"))
    same(text, binary, 0)
    assert text.format == "gltf text"


def test_data_beside_the_file(tmp_path: Path) -> None:
    scene = cloud(9)
    made, data = document(scene)
    made["buffers"][0]["uri"] = "my%20splats.bin"
    (tmp_path / "my splats.bin").write_bytes(data)
    content = json.dumps(made).encode()
    got = decoded(tmp_path, content)
    same(got, scene)
    assert got.sha256 == hashlib.sha256(content + data).hexdigest()  # other data are another scene
    (tmp_path / "my splats.bin").write_bytes(data[:-1])
    with pytest.raises(SceneError, match=r"buffers\[0\] has 2,\d\d\d of the 2,\d\d\d bytes promised"):
        decoded(tmp_path, content)
    os.unlink(tmp_path / "my splats.bin")
    with pytest.raises(InputError, match=r"a\.glb: buffers\[0\]: my splats\.bin beside it: no such file"):
        decoded(tmp_path, content)


@pytest.mark.parametrize(
    "name", ["../a.bin", "/etc/passwd", "%2e%2e%2fa.bin", "a\\b.bin", "..", "", "http://x/a.bin", "a%00b", "file:a"]
)
def test_no_name_leads_elsewhere(tmp_path: Path, name: str) -> None:
    made, _ = document(cloud(1))
    made["buffers"][0]["uri"] = name
    with pytest.raises(SceneError, match="must be the name of a file in the same folder"):
        decoded(tmp_path, json.dumps(made).encode())


def test_integers_as_the_extension_allows(tmp_path: Path) -> None:
    scene = cloud(40, sh_degree=0)
    quats = turn_quats(scene.quats)[:, [1, 2, 3, 0]]
    largest = float(scene.scales.max())
    cases: Dict[str, Tuple[str, np.ndarray, int, bool]] = {
        "bytes": (f"{PREFIX}:ROTATION", np.round(quats * 127), 5120, True),
        "shorts": (f"{PREFIX}:ROTATION", np.round(quats * 32767), 5122, True),
        "alpha": (f"{PREFIX}:OPACITY", np.round(scene.opacities * 255), 5121, True),
        "alpha 16": (f"{PREFIX}:OPACITY", np.round(scene.opacities * 65535), 5123, True),
        "scale": (f"{PREFIX}:SCALE", np.maximum(1, np.round(scene.scales / largest * 65535)), 5123, True),
        "whole": (f"{PREFIX}:SCALE", np.arange(1, 121).reshape(40, 3), 5121, False),
        "place": ("POSITION", np.arange(-60, 60).reshape(40, 3), 5120, False),
        "place 16": ("POSITION", np.arange(-60, 60).reshape(40, 3) * 500, 5122, True),
    }
    for case, (name, values, component, normalized) in cases.items():
        made, data = document(scene)
        made["extensionsRequired"] = [PREFIX, "KHR_mesh_quantization"]
        more = {"normalized": True} if normalized else {}
        data += add(made, name, values, len(data), component, **more)
        made["buffers"][0]["byteLength"] = len(data)
        got = decoded(tmp_path, glb(made, data))
        if case in ("bytes", "shorts"):
            assert np.abs((got.quats * scene.quats).sum(axis=1)).min() > (0.9998 if case == "bytes" else 0.999999)
        elif name.endswith("OPACITY"):
            np.testing.assert_allclose(got.opacities, scene.opacities, atol=0.003 if case == "alpha" else 1e-5)
        elif case == "scale":
            np.testing.assert_allclose(got.scales, values / 65535, rtol=1e-6)
        elif case == "whole":
            np.testing.assert_allclose(got.scales, values, rtol=2e-6)
        else:
            expected = turn_means(values.astype(np.float32) / (32767 if normalized else 1))
            np.testing.assert_allclose(got.means, expected, rtol=1e-6)


def test_extremes(tmp_path: Path) -> None:
    scene = cloud(6, sh_degree=0)
    made, data = document(scene)
    opacities = np.array([0, 1, -0.1, 1.1, np.nan, 0.5])
    data += add(made, f"{PREFIX}:OPACITY", opacities, len(data))
    scales = np.ones((6, 3))
    scales[0, 0], scales[5, 0] = 0, -1
    data += add(made, f"{PREFIX}:SCALE", scales, len(data))
    made["buffers"][0]["byteLength"] = len(data)
    got = decoded(tmp_path, glb(made, data))
    assert got.n_splats == 2
    assert got.opacities[0] < 1e-6
    assert got.opacities[1] > 0.9999
    assert 0 < got.scales[0, 0] < 1e-8
    assert got.dropped == {"with a non-finite opacity": 3, "with a non-finite scale": 1}


def test_every_kind_of_nan(tmp_path: Path) -> None:
    """A signalling NaN makes NumPy warn when it is turned into float64; no warning may come of a file."""
    made, data = document(cloud(4, sh_degree=1))
    made["nodes"][0]["rotation"] = [0, 0, 0.6, 0.8]
    for view in made["bufferViews"]:
        at = view["byteOffset"]
        for row, bits in enumerate((0x7F800001, 0xFFBFFFFF, 0x7FC00000)):
            width = view["byteLength"] // 4
            data = data[: at + row * width] + struct.pack("<I", bits) + data[at + row * width + 4 :]
    got = decoded(tmp_path, glb(made, data))
    assert (got.n_splats, got.n_rows) == (1, 4)


def test_interleaved_and_shared(tmp_path: Path) -> None:
    scene = cloud(33, sh_degree=1)
    made, data = document(scene)
    packed = np.zeros((33, 56), "u1")
    offset = 0
    for accessor, view in zip(made["accessors"][:4], made["bufferViews"][:4]):
        width = {"SCALAR": 4, "VEC3": 12, "VEC4": 16}[accessor["type"]]
        start = view["byteOffset"]
        packed[:, offset : offset + width] = np.frombuffer(data[start : start + 33 * width], "u1").reshape(33, width)
        accessor.update(bufferView=len(made["bufferViews"]), byteOffset=offset)
        offset += width
    made["bufferViews"].append({"buffer": 0, "byteOffset": len(data), "byteLength": packed.size, "byteStride": 56})
    data += packed.tobytes()
    made["buffers"][0]["byteLength"] = len(data)
    same(decoded(tmp_path, glb(made, data)), scene)


def turned(matrix: np.ndarray, scene: Scene, got: Scene) -> None:
    """``got`` is ``scene`` under the 4 x 4 matrix, both in glTF's axes: places, shapes, and colours from anywhere."""
    linear = matrix[:3, :3]
    scale = np.cbrt(np.linalg.det(linear))
    np.testing.assert_allclose(got.means, scene.means @ linear.T + matrix[:3, 3], atol=1e-4)
    np.testing.assert_allclose(got.scales, scene.scales * scale, rtol=1e-4)
    np.testing.assert_allclose(got.opacities, scene.opacities, rtol=1e-5)
    before, after = (rotation_matrices(s.quats.astype(np.float64)) * s.scales[:, None] for s in (scene, got))
    covariance = linear @ (before @ before.transpose(0, 2, 1)) @ linear.T
    np.testing.assert_allclose(after @ after.transpose(0, 2, 1), covariance, rtol=1e-3, atol=1e-5)
    directions = np.random.default_rng(9).normal(size=(20, 3))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    colours = np.einsum("dk,nkc->dnc", sh_basis(directions @ linear / scale), scene.sh)
    np.testing.assert_allclose(np.einsum("dk,nkc->dnc", sh_basis(directions), got.sh), colours, atol=1e-5)


def test_node_transforms(tmp_path: Path) -> None:
    scene = cloud(30)
    made, data = document(scene, frame="rdf")  # as stored; read with the same axes, so that nothing else turns
    node: Document = {"mesh": 0, "translation": [1, 2, 3], "rotation": [0.5, 0.5, -0.5, 0.5], "scale": [2, 2, 2]}
    made["nodes"] = [{"children": [1], "translation": [0, 0, 7], "rotation": [0.6, 0, 0, 0.8]}, node]
    got = decoded(tmp_path, glb(made, data), Reading(frame="rdf"))
    parent, child = np.eye(4), np.eye(4)
    parent[:3, :3] = [[1, 0, 0], [0, 0.28, -0.96], [0, 0.96, 0.28]]
    parent[2, 3] = 7
    child[:3] = [[0, 2, 0, 1], [0, 0, -2, 2], [-2, 0, 0, 3]]
    turned(parent @ child, scene, got)
    made["nodes"] = [{"mesh": 0, "matrix": (parent @ child).T.reshape(-1).tolist()}]
    same(decoded(tmp_path, glb(made, data), Reading(frame="rdf")), got, 1e-5)
    # And the frame: what the file has in glTF's axes is turned after the node's transform.
    rub = decoded(tmp_path, glb(made, data))
    np.testing.assert_array_equal(rub.means, turn_means(got.means))


@pytest.mark.parametrize(
    "transform",
    [
        {"scale": [1, 1, 2]}, {"scale": [1, 1, -1]}, {"scale": [-1, -1, -1]}, {"scale": [0, 0, 0]},
        {"scale": [1e29, 1e29, 1e29]},
        {"matrix": [1, 1, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1]},
        {"matrix": [1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1]},
    ],
)  # fmt: skip
def test_transforms_under_which_splats_are_none(tmp_path: Path, transform: Document) -> None:
    made, data = document(cloud(2))
    made["nodes"] = [{"mesh": 0, **transform}]
    with pytest.raises(SceneError, match=r"nodes\[0\] is stretched, sheared, mirrored or of no size"):
        decoded(tmp_path, glb(made, data))


def test_parts_become_one_scene(tmp_path: Path) -> None:
    low, high = cloud(20, 1, sh_degree=0), cloud(7, 2, sh_degree=2)
    made, data = document(low)
    second, more = document(high)
    offset = len(data)
    for view in second["bufferViews"]:
        view["byteOffset"] += offset
    for accessor in second["accessors"]:
        accessor["bufferView"] += len(made["bufferViews"])
    primitive = second["meshes"][0]["primitives"][0]
    primitive["attributes"] = {k: v + len(made["accessors"]) for k, v in primitive["attributes"].items()}
    made["bufferViews"] += second["bufferViews"]
    made["accessors"] += second["accessors"]
    made["meshes"][0]["primitives"] += [primitive, {"mode": 4, "attributes": {"POSITION": 0}}]
    made["nodes"] = [{"mesh": 0}, {"mesh": 0, "translation": [100, 0, 0]}, {"camera": 0}]
    made["scenes"] = [{"nodes": []}, {"nodes": [0, 1, 2]}]
    made["scene"] = 1
    made["buffers"][0]["byteLength"] = offset + len(more)
    got = decoded(tmp_path, glb(made, data + more))
    assert (got.n_splats, got.sh_degree) == (54, 2)
    np.testing.assert_allclose(got.means[:20], low.means, rtol=1e-6)
    np.testing.assert_allclose(got.means[47:], high.means + np.float32([100, 0, 0]), rtol=1e-6)
    np.testing.assert_allclose(got.sh[20:27], high.sh, rtol=1e-6)
    assert not got.sh[:20, 1:].any()
    assert got.warnings == ["its meshes and plain points are left out"]
    del made["scenes"], made["scene"]
    assert decoded(tmp_path, glb(made, data + more)).n_splats == 54


def test_what_it_warns_about(tmp_path: Path) -> None:
    made, data = document(cloud(2, sh_degree=3))
    primitive = made["meshes"][0]["primitives"][0]
    primitive["attributes"][f"{PREFIX}:SH_DEGREE_4_COEF_0"] = 4
    primitive["extensions"][PREFIX] = {"kernel": "box", "colorSpace": "lin_rec709_display", "extensions": {"X_y": {}}}
    got = decoded(tmp_path, glb(made, data))
    assert got.warnings == [
        f"the extension X_y inside {PREFIX} is unknown and left out",
        "its kernel box is unknown: drawn as 'ellipse'",
        "its colours are in lin_rec709_display, and are drawn as sRGB: too dark, or off in hue",
        "SH degree 4: the fourth band is left out, and degree 3 is drawn",
    ]


def accessor(key: str, value: Any, n: int = 0) -> Callable[[Document], None]:
    return lambda made: made["accessors"][n].update({key: value})


def view(key: str, value: Any) -> Callable[[Document], None]:
    return lambda made: made["bufferViews"][0].update({key: value})


def top(key: str, value: Any) -> Callable[[Document], None]:
    return lambda made: made.update({key: value})


def primitive(key: str, value: Any) -> Callable[[Document], None]:
    return lambda made: made["meshes"][0]["primitives"][0].update({key: value})


def without(name: str) -> Callable[[Document], None]:
    return lambda made: made["meshes"][0]["primitives"][0]["attributes"].pop(name)


SPZ = "KHR_gaussian_splatting_compression_spz_2"
WRONG: Dict[str, Tuple[Callable[[Document], Any], str]] = {
    "required": (top("extensionsRequired", [PREFIX, "KHR_draco_x"]), "requires the glTF extension KHR_draco_x, which"),
    "spz required": (top("extensionsRequired", [SPZ]), f"extension {SPZ}, splats compressed as SPZ inside glTF"),
    "spz": (primitive("extensions", {PREFIX: {"extensions": {SPZ: {"bufferView": 0}}}}), "compressed as SPZ"),
    "no splats": (primitive("extensions", {}), "none of its nodes shows a mesh with KHR_gaussian_splatting"),
    "not shown": (top("scenes", [{"nodes": []}]), "none of its nodes"),
    "triangles": (primitive("mode", 4), r"meshes[0].primitives[0]: splats must be points"),
    "version": (top("asset", {"version": "1.0"}), "asset.version must be 2.x, not 1.0"),
    "no asset": (top("asset", None), "JSON, but no scene: a glTF has 'asset'"),
    "no opacity": (without(f"{PREFIX}:OPACITY"), f"lacks {PREFIX}:OPACITY"),
    "no colour": (without(f"{PREFIX}:SH_DEGREE_0_COEF_0"), f"lacks {PREFIX}:SH_DEGREE_0_COEF_0"),
    "part of a degree": (without(f"{PREFIX}:SH_DEGREE_2_COEF_3"), "SH_DEGREE_2_COEF_3, though it has SH of degree 3"),
    "no degree 1": (
        lambda made: [without(f"{PREFIX}:SH_DEGREE_1_COEF_{m}")(made) for m in range(3)],
        "SH_DEGREE_1_COEF_0, though it has SH of degree 3",
    ),
    "attributes": (primitive("attributes", [0]), "attributes must be an object"),
    "attribute": (primitive("attributes", {"POSITION": 99}), "lacks KHR_gaussian_splatting:ROTATION"),
    "count": (accessor("count", 4), "POSITION promises 4 values, and bufferViews[0] has 36 bytes"),
    "fewer": (accessor("count", 2), "ROTATION has 3 values, and POSITION has 2"),
    "huge count": (accessor("count", 10**17), "count must be a whole number"),
    "large count": (accessor("count", 19_000_000), "promises 19,000,000 values"),
    "zero": (accessor("count", 0), "promises 0 values"),
    "negative": (accessor("count", -1), "count must be a whole number from 0, not -1"),
    "fraction": (accessor("count", 3.0), "count must be a whole number from 0, not 3.0"),
    "bool": (accessor("count", True), "not True"),
    "text": (accessor("count", "3\x1b[31m"), "not 3?[31m"),
    "type": (accessor("type", "VEC4"), "POSITION must be VEC3, not VEC4"),
    "list type": (accessor("type", [[]]), "POSITION must be VEC3, not [[]]"),
    "component": (accessor("componentType", 5125), "numbers of type 5125 (plain) are not allowed here"),
    "list component": (accessor("componentType", [5126]), "numbers of type [5126]"),
    "normalized": (accessor("normalized", True), "numbers of type 5126 (normalized)"),
    "normalized list": (accessor("normalized", [1]), "are not allowed here"),
    "whole opacity": (accessor("componentType", 5121, 3), "OPACITY: numbers of type 5121 (plain)"),
    "signed scale": (accessor("componentType", 5120, 2), "SCALE: numbers of type 5120 (plain)"),
    "short sh": (accessor("componentType", 5122, 5), "SH_DEGREE_1_COEF_0: numbers of type 5122"),
    "sparse": (accessor("sparse", {"count": 1}), "is sparse"),
    "no view": (lambda made: made["accessors"][0].pop("bufferView"), "has no data of its own"),
    "view": (accessor("bufferView", 99), "bufferView is 99, and there are 20"),
    "offset": (accessor("byteOffset", 1), "promises 3 values"),
    "stride": (view("byteStride", 4), "a byteStride of 4 does not suit values of 12 bytes"),
    "long stride": (view("byteStride", 256), "a byteStride of 256 does not suit"),
    "far": (view("byteOffset", 10**15), "lie beyond buffers[0]"),
    "long": (view("byteLength", 10**15), "lie beyond buffers[0]"),
    "buffer": (view("buffer", 1), "buffer is 1, and there are 1"),
    "lying buffer": (top("buffers", [{"byteLength": 10**12}]), "of the 1,000,000,000,000 bytes promised"),
    "uri": (top("buffers", [{"byteLength": 1, "uri": 5}]), "uri must be text"),
    "data": (top("buffers", [{"byteLength": 1, "uri": "data:x,y"}]), "must be base64"),
    "base64": (top("buffers", [{"byteLength": 1, "uri": "data:;base64,????"}]), "damaged base64"),
    "no chunk": (top("buffers", [{"byteLength": 1}, {"byteLength": 1}]), "buffers[1] has no uri and no chunk"),
    "65 buffers": (top("buffers", [{"byteLength": 1}] * 65), "65 buffers; the limit is 64"),
    "nodes": (top("nodes", {}), "nodes must be a list of objects"),
    "node": (top("nodes", [5]), "nodes must be a list of objects"),
    "mesh": (top("nodes", [{"mesh": 1}]), "mesh is 1, and there are 1"),
    "scene": (top("scene", 1), "scene is 1, and there are 1"),
    "root": (top("scenes", [{"nodes": [7]}]), "scenes[0]: nodes names 7, and there are 1"),
    "roots": (top("scenes", [{"nodes": [0, 0]}]), "at most 1 numbers"),
    "cycle": (top("nodes", [{"mesh": 0, "children": [0]}]), "two parents, or is its own ancestor"),
    "10,001 nodes": (top("nodes", [{"mesh": 0}] * 10_001), "10,001 nodes; the limit is 10,000"),
    "translation": (top("nodes", [{"mesh": 0, "translation": [1, 2]}]), "translation must be 3 numbers"),
    "words": (top("nodes", [{"mesh": 0, "scale": ["1", "1", "1"]}]), "scale must be 3 numbers"),
    "rotation": (top("nodes", [{"mesh": 0, "rotation": [0, 0, 0, 0]}]), "rotation is no unit quaternion"),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(WRONG))
def test_wrong_documents(tmp_path: Path, name: str) -> None:
    change, words = WRONG[name]
    made, data = document(cloud(3))
    change(made)
    path = tmp_path / "a.glb"
    path.write_bytes(glb(made, data))
    with pytest.raises(SceneError) as caught:
        read(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert words in message
    assert message.isprintable()
    assert len(message) < 500


def test_wrong_containers(tmp_path: Path) -> None:
    made, data = document(cloud(3))
    whole = glb(made, data)
    n_json = struct.unpack_from("<I", whole, 12)[0]
    cases = {
        b"glTF": "ends inside its header",
        whole[:-1]: "bytes that its header promises; is the copy complete?",
        whole[:4] + struct.pack("<I", 1) + whole[8:]: "a binary glTF of version 1",
        whole[:16] + b"BIN\0" + whole[20:]: "first chunk must be JSON",
        whole[:12] + b"\xff\xff\xff\xff" + whole[16:]: "lie within the file",
        whole[: 20 + n_json] + b"\xff\xff\xff\x7f" + whole[24 + n_json :]: "its second chunk promises 2,147,483,647",
        glb_of(b"{", None): "its JSON cannot be read",
        glb_of(b'{"a": "\xff"}', None): "its JSON cannot be read",
        glb_of(b'{"a": NaN}', None): "NaN is no number",
        glb_of(b'{"a": ' + b"9" * 100_000 + b"}", None): "a number of 100,000 digits",
        glb_of(b"[]", None): "it must be an object",
        glb_of(b"[" * 100_000, None): "its JSON cannot be read",
        glb_of(b" " * 3_000_000, None): "bytes of JSON; the limit is 2,097,152",
        b"{" + b" " * 3_000_000 + b"}": "bytes of JSON beside its data",
        glb(made, None): "buffers[0] has no uri and no chunk",
    }
    for content, words in cases.items():
        with pytest.raises(SceneError) as caught:
            decoded(tmp_path, content)
        assert words in str(caught.value)


def test_every_cut_is_noticed(tmp_path: Path) -> None:
    made, data = document(cloud(1, sh_degree=0))
    for content in (glb(made, data), gltf(made, data)):
        for length in range(4, len(content) - 1, 3):
            with pytest.raises(SceneError):
                decoded(tmp_path, content[:length])


def seconds(content: bytes, tmp_path: Path, words: Optional[str]) -> float:
    began = time.process_time()
    if words is None:
        decoded(tmp_path, content)
    else:
        with pytest.raises(SceneError, match=words):
            decoded(tmp_path, content)
    return time.process_time() - began


def test_small_files_cannot_grow(tmp_path: Path) -> None:
    """What a file shows again and again is refused before it is decoded; and no JSON is followed for long."""
    made, data = document(cloud(5000, sh_degree=0))
    often = copy.deepcopy(made)
    often["nodes"] = [{"mesh": 0}] * 900
    often["scenes"] = [{"nodes": list(range(900))}]
    worst = [seconds(glb(often, data), tmp_path, "4,500,000 splats, more than its 280,000 bytes can hold")]
    often["nodes"] = [{"mesh": 0}] * 1001
    often["scenes"] = [{"nodes": list(range(1001))}]
    worst.append(seconds(glb(often, data), tmp_path, "over 1,000 primitives"))
    # Empty objects and lists are what takes most memory a byte of JSON, nodes what takes most time.
    made["meshes"].append({"primitives": []})
    made["nodes"] = [{"mesh": 0}] + [{"mesh": 1, "rotation": [0.6, 0, 0, 0.8]}] * 9999
    made["scenes"] = [{"nodes": list(range(10_000))}]
    room = (2 << 20) - len(json.dumps(made)) - 20
    made["extras"] = [{}] * (room // 4)
    worst.append(seconds(glb(made, data), tmp_path, None))
    assert max(worst) < 2


def test_embedded_data_are_bounded(tmp_path: Path) -> None:
    scene = cloud(20_000, sh_degree=1)
    made, data = document(scene)
    assert len(data) > 1 << 20
    same(decoded(tmp_path, gltf(made, data)), scene, 1e-5)
    path = tmp_path / "a.gltf"
    with open(path, "wb") as file:
        file.write(b"{")
        file.truncate((64 << 20) + 1)
    with pytest.raises(SceneError, match=r"the limit is 67,108,864: export it as \.glb"):
        read(path)


def test_data_named_many_times(tmp_path: Path) -> None:
    """A buffer's bytes count once: else a small file could promise splats, and take memory, as often as it names it."""
    made, data = document(cloud(50, sh_degree=0))
    text = json.loads(gltf(made, data))
    text["buffers"].append({"byteLength": len(data), "uri": "@"})
    again = json.dumps(text).replace('"@"', '"\\u0064ata:0"').encode()
    with pytest.raises(SceneError, match=r"buffers\[1\]: data within the file must be base64"):
        decoded(tmp_path, again)
    (tmp_path / "a.bin").write_bytes(data)
    os.link(tmp_path / "a.bin", tmp_path / "b.bin")
    for name in ("a.bin", "b.bin"):
        made["buffers"] = [{"byteLength": len(data), "uri": "a.bin"}, {"byteLength": len(data), "uri": name}]
        with pytest.raises(SceneError, match=rf"buffers\[1\]: uri '{name}' is a file that is used already"):
            decoded(tmp_path, json.dumps(made).encode())


def test_holes(tmp_path: Path) -> None:
    """SH that are zero may be a hole, as careful copies make them; rotations that are one were never written."""
    scene = cloud(20_000, sh_degree=1)
    scene.sh[:, 1:] = 0
    made, data = document(scene)
    content = glb(made, data)
    path = tmp_path / "a.glb"
    for i, words in ((len(made["bufferViews"]) - 1, None), (1, "a sparse file")):
        start = len(content) - len(data) + made["bufferViews"][i]["byteOffset"]
        stop = start + made["bufferViews"][i]["byteLength"]
        with open(path, "wb") as file:
            file.write(content[:start])
            file.truncate(stop)
            file.seek(stop)
            file.write(content[stop:])
        if words is None:
            same(read(path), scene)
        else:
            with pytest.raises(SceneError, match=words):
                read(path)


def test_memory(tmp_path: Path) -> None:
    """The peak is under 1.5 times the decoded scene and 20 MiB of blocks."""
    n = 150_000
    made, data = document(cloud(n, sh_degree=2))
    path = tmp_path / "a.glb"
    path.write_bytes(glb(made, data))
    decoded_mb = n * 4 * (11 + 27) / 2**20
    message, _, grown, _ = limited(path)
    assert message == f"{n}"
    assert decoded_mb < grown + 10
    assert grown < 1.5 * decoded_mb + 20


def test_a_file_that_changes(tmp_path: Path) -> None:
    made, data = document(cloud(40_000, sh_degree=0))
    path = tmp_path / "a.glb"
    path.write_bytes(glb(made, data))
    with pytest.raises(SceneError, match="changed while it was read"):
        read(path, Reading(progress=lambda done, total: os.utime(path, ns=(1, 1))))
    with pytest.raises(SceneError, match="changed while it was read"):
        read(path, Reading(progress=lambda done, total: os.truncate(path, 10_000)))
    (tmp_path / "b.bin").write_bytes(data)
    made["buffers"][0]["uri"] = "b.bin"
    path.write_bytes(json.dumps(made).encode())
    with pytest.raises(SceneError, match=r"b\.bin: the file changed while it was read"):
        read(path, Reading(progress=lambda done, total: os.utime(tmp_path / "b.bin", ns=(1, 1))))


def test_the_cap_and_the_budget(tmp_path: Path) -> None:
    made, data = document(cloud(30))
    assert decoded(tmp_path, glb(made, data), Reading(max_gaussians=7)).n_splats == 7
    with pytest.raises(SceneError, match="the sum of its accessors promises 30 splats, and the limit is 29"):
        decoded(tmp_path, glb(made, data), Reading(cap=29))


def test_a_uri_written_with_escapes(tmp_path: Path) -> None:
    """JSON may write any letter as an escape: the data are found all the same."""
    scene = cloud(2, sh_degree=0)
    made, data = document(scene)
    uri = "data:application\\/octet-stream;base64," + base64.b64encode(data).decode().replace("/", "\\/")
    content = json.dumps(made).replace('"buffers": [{', '"buffers": [{"uri": "' + uri + '", ', 1)
    same(decoded(tmp_path, content.encode()), scene)
