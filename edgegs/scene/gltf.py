"""Splats in glTF 2.0: .glb and .gltf with the extension KHR_gaussian_splatting (kernel "ellipse").

A mesh primitive of points carries POSITION and, under the extension's prefix, ROTATION (x y z w), SCALE (linear),
OPACITY (0..1) and SH_DEGREE_l_COEF_m (RGB). Every primitive that the scene's nodes show becomes part of one scene,
where the node's transform puts it. How the file holds bytes is ``gltf_file.py``'s part.
"""

from __future__ import annotations

import contextlib
from typing import Any, BinaryIO, Dict, Iterator, List, NamedTuple, Tuple

import numpy as np

from edgegs.camera.pose import quaternion, rotation_matrix
from edgegs.errors import SceneError
from edgegs.scene.builder import RawBlock, SceneBuilder
from edgegs.scene.gltf_file import Accessor, GltfFile
from edgegs.scene.model import Scene
from edgegs.scene.ply_header import clip
from edgegs.scene.reading import BLOCK_ROWS, DEGREE_4, Reading
from edgegs.scene.synth_math import sh_basis

NAME = "KHR_gaussian_splatting"
#: Extensions that a file may require: the second only lets POSITION be of integers.
_KNOWN = (NAME, "KHR_mesh_quantization")
_EXPORT = f"export it again with plain {NAME} attributes, or as .ply"
_MAX_NODES = 10_000
_MAX_PARTS = 1000
#: One VEC3 of floats, the SH of degree 0, which every splat has to itself.
_MIN_SPLAT_BYTES = 12
#: Splats that even a small file may show several times.
_SPARE_SPLATS = 4096
_SAME = 1e-3  # relative: columns of one length, axes at right angles

_FLOAT = (5126, False)
_SIGNED = (_FLOAT, (5120, True), (5122, True))
_UNSIGNED = (_FLOAT, (5121, True), (5123, True))
_WHOLE = ((5121, False), (5123, False))
_ATTRIBUTES = {
    "POSITION": ("VEC3", (*_SIGNED, *_UNSIGNED, (5120, False), (5122, False), *_WHOLE)),
    f"{NAME}:ROTATION": ("VEC4", _SIGNED),
    f"{NAME}:SCALE": ("VEC3", (*_UNSIGNED, *_WHOLE)),
    f"{NAME}:OPACITY": ("SCALAR", _UNSIGNED),
}


class _Part(NamedTuple):
    """A primitive where a node puts it."""

    attributes: Dict[str, Accessor]
    sh: List[Accessor]
    n_rows: int
    matrix: np.ndarray  # (4, 4) float64, of the node


def read_gltf(file: BinaryIO, path: str, how: Reading) -> Scene:
    """Read the splats of a .glb or .gltf from an open unbuffered file; see ``edgegs.scene.load``.

    The digest of the scene is of the file's bytes, followed by those of the .bin files that it names.
    """
    with contextlib.ExitStack() as stack:
        gltf = GltfFile(file, path, stack)
        required = [name for name in gltf.items("extensionsRequired") if name not in _KNOWN]
        if required:
            raise SceneError(f"{path}: requires the glTF extension {clip(str(required[0]))}, {_why(str(required[0]))}")
        notes: List[str] = []
        parts = _parts(gltf, notes)
        if not parts:
            raise SceneError(f"{path}: none of its nodes shows a mesh with {NAME}; a mesh or point cloud, not a scene")
        n_rows = sum(part.n_rows for part in parts)
        how.check_count(n_rows, path, "the sum of its accessors")
        if n_rows > max(_SPARE_SPLATS, gltf.n_bytes // _MIN_SPLAT_BYTES):
            raise SceneError(
                f"{path}: its nodes show {n_rows:,} splats, more than its {gltf.n_bytes:,} bytes can hold: "
                "the same ones many times over; export each once"
            )
        degrees = [round(len(part.sh) ** 0.5) - 1 for part in parts]
        builder = SceneBuilder(
            path, f"gltf {gltf.kind}", n_rows, max(degrees), how.max_gaussians, frame=how.frame or "rub"
        )
        for note in dict.fromkeys(notes):
            builder.warn(note)
        n_done = 0
        for part in parts:
            for block in _blocks(gltf, part, (max(degrees) + 1) ** 2):
                builder.add(block)
                n_done += len(block.logits)
                how.report(n_done, n_rows)
        return builder.finish(gltf.digest())


def _why(extension: str) -> str:
    if "spz" in extension.lower():
        return f"splats compressed as SPZ inside glTF, which this version cannot read; {_EXPORT} or .spz"
    return f"which this version cannot read; {_EXPORT}"


def _placed_meshes(gltf: GltfFile) -> Iterator[Tuple[int, int, np.ndarray]]:
    """(mesh, node, its global matrix) of every node of the default scene that shows a mesh."""
    nodes = gltf.objects("nodes")
    if len(nodes) > _MAX_NODES:
        raise gltf.error(f"{len(nodes):,} nodes; the limit is {_MAX_NODES:,}")
    scenes = gltf.objects("scenes")
    if scenes:
        index = gltf.index(gltf.json, "scene", scenes, "scene", default=0)
        roots = gltf.indices(scenes[index], "nodes", nodes, f"scenes[{index}]")
    else:
        children = {i for n, node in enumerate(nodes) for i in gltf.indices(node, "children", nodes, f"nodes[{n}]")}
        roots = [n for n in range(len(nodes)) if n not in children]
    meshes = gltf.objects("meshes")
    seen = set()
    waiting = [(n, np.eye(4)) for n in reversed(roots)]
    while waiting:
        n, above = waiting.pop()
        if n in seen:
            raise gltf.error(f"nodes[{n}] has two parents, or is its own ancestor")
        seen.add(n)
        with np.errstate(all="ignore"):  # what became infinite is refused where it would be used
            matrix = above @ _local_matrix(gltf, nodes[n], n)
        waiting += [(child, matrix) for child in reversed(gltf.indices(nodes[n], "children", nodes, f"nodes[{n}]"))]
        if "mesh" in nodes[n]:
            yield gltf.index(nodes[n], "mesh", meshes, f"nodes[{n}]"), n, matrix


def _local_matrix(gltf: GltfFile, node: Dict[str, Any], n: int) -> np.ndarray:
    if "matrix" in node:
        return gltf.numbers(node, "matrix", 16, f"nodes[{n}]").reshape(4, 4).T
    matrix = np.eye(4)
    if "rotation" in node:
        x, y, z, w = gltf.numbers(node, "rotation", 4, f"nodes[{n}]")
        if not 1e-6 < x * x + y * y + z * z + w * w < 1e6:
            raise gltf.error(f"nodes[{n}].rotation is no unit quaternion")
        matrix[:3, :3] = rotation_matrix(np.array([w, x, y, z]))
    if "scale" in node:
        matrix[:3, :3] *= gltf.numbers(node, "scale", 3, f"nodes[{n}]")
    if "translation" in node:
        matrix[:3, 3] = gltf.numbers(node, "translation", 3, f"nodes[{n}]")
    return matrix


def _check_matrix(gltf: GltfFile, matrix: np.ndarray, n: int) -> None:
    """Raise SceneError unless it is a translation, a rotation and one positive scale."""
    linear = matrix[:3, :3]
    with np.errstate(all="ignore"):  # compared so that a NaN fails
        lengths = np.sqrt((linear * linear).sum(axis=0))
        even = np.isfinite(matrix).all() and 1e-12 < lengths.min() < 1e12
        even = even and lengths.max() <= lengths.min() * (1 + _SAME)
    if even:
        turn = linear / lengths
        even = np.abs(turn.T @ turn - np.eye(3)).max() <= _SAME and np.linalg.det(turn) > 0
    if not even:
        raise gltf.error(
            f"nodes[{n}] is stretched, sheared, mirrored or of no size (its scales are "
            f"{', '.join(f'{length:.4g}' for length in lengths)}); give it one positive scale, or apply its transform "
            "to the splats in the program that wrote the file"
        )


def _extensions(thing: Dict[str, Any]) -> Dict[str, Any]:
    found = thing.get("extensions")
    return found if isinstance(found, dict) else {}


def _parts(gltf: GltfFile, notes: List[str]) -> List[_Part]:
    """Every primitive with splats, as often as a node shows it."""
    parts: List[_Part] = []
    known: Dict[int, List[_Part]] = {}  # mesh -> its primitives, looked at once however many nodes show them
    for mesh, n, matrix in _placed_meshes(gltf):
        if mesh not in known:
            known[mesh] = list(_splats(gltf, mesh, notes))
        if known[mesh]:
            _check_matrix(gltf, matrix, n)
        parts += [part._replace(matrix=matrix) for part in known[mesh]]
        if len(parts) > _MAX_PARTS:
            raise gltf.error(f"over {_MAX_PARTS:,} primitives with splats; export it in fewer pieces")
    return parts


def _splats(gltf: GltfFile, mesh: int, notes: List[str]) -> Iterator[_Part]:
    for p, primitive in enumerate(gltf.part(gltf.objects("meshes")[mesh], "primitives")):
        extension = _extensions(primitive).get(NAME)
        if extension is None:
            notes.append("its meshes and plain points are left out")
            continue
        where = f"meshes[{mesh}].primitives[{p}]"
        if not isinstance(extension, dict) or primitive.get("mode", 4) != 0:
            raise gltf.error(f"{where}: splats must be points (mode 0)")
        _check_kind(gltf, extension, where, notes)
        yield _part(gltf, primitive.get("attributes"), where, notes)


def _check_kind(gltf: GltfFile, extension: Dict[str, Any], where: str, notes: List[str]) -> None:
    for inner in _extensions(extension):
        if "compression" in inner:
            raise gltf.error(f"{where}: the extension {clip(inner)}, {_why(inner)}")
        notes.append(f"the extension {clip(inner)} inside {NAME} is unknown and left out")
    for key, expected in (("kernel", "ellipse"), ("projection", "perspective")):
        value = extension.get(key, expected)
        if value != expected:
            notes.append(f"its {key} {clip(str(value))} is unknown: drawn as '{expected}'")
    space = extension.get("colorSpace", "srgb_rec709_display")
    if space != "srgb_rec709_display":
        notes.append(f"its colours are in {clip(str(space))}, and are drawn as sRGB: too dark, or off in hue")


def _part(gltf: GltfFile, names: Any, where: str, notes: List[str]) -> _Part:
    if not isinstance(names, dict):
        raise gltf.error(f"{where}.attributes must be an object")
    missing = [name for name in (*_ATTRIBUTES, f"{NAME}:SH_DEGREE_0_COEF_0") if name not in names]
    if missing:
        raise gltf.error(f"{where} lacks {missing[0]}; {_EXPORT}")
    attributes = {
        name: gltf.accessor(names[name], kind, allowed, f"{where} {name}")
        for name, (kind, allowed) in _ATTRIBUTES.items()
    }
    sh: List[Accessor] = []
    degree = max(d for d in range(4) if any(name.startswith(f"{NAME}:SH_DEGREE_{d}_COEF_") for name in names))
    for d in range(degree + 1):
        for m in range(2 * d + 1):
            name = f"{NAME}:SH_DEGREE_{d}_COEF_{m}"
            if name not in names:
                raise gltf.error(f"{where} lacks {name}, though it has SH of degree {degree}; export it again")
            sh.append(gltf.accessor(names[name], "VEC3", (_FLOAT,), f"{where} {name}"))
    if any(name.startswith(f"{NAME}:SH_DEGREE_4_") for name in names):
        notes.append(DEGREE_4)
    gltf.refuse_holes(attributes[f"{NAME}:ROTATION"])  # no quaternion is zero; all of some SH coefficient may be
    n_rows = attributes["POSITION"].n_rows
    for accessor in (*attributes.values(), *sh):
        if accessor.n_rows != n_rows:
            raise gltf.error(f"{accessor.where} has {accessor.n_rows:,} values, and POSITION has {n_rows:,}")
    return _Part(attributes, sh, n_rows, np.eye(4))


def _blocks(gltf: GltfFile, part: _Part, k: int) -> Iterator[RawBlock]:
    """The part's rows with its node's transform applied, and SH padded with zeros to ``k`` coefficients."""
    scale = float(np.sqrt((part.matrix[:3, 0] ** 2).sum()))
    turn = part.matrix[:3, :3] / scale
    moved = not np.array_equal(part.matrix, np.eye(4))
    turned = np.abs(turn - np.eye(3)).max() > 1e-9
    for start in range(0, part.n_rows, BLOCK_ROWS):
        stop = min(part.n_rows, start + BLOCK_ROWS)
        means, quats, scales, opacities = (gltf.values(a, start, stop) for a in part.attributes.values())
        quats = quats[:, [3, 0, 1, 2]]
        sh = np.zeros((stop - start, k, 3), np.float32)
        for i, accessor in enumerate(part.sh):
            sh[:, i] = gltf.values(accessor, start, stop)
        with np.errstate(all="ignore"):  # ln 0 is -inf, of a negative number NaN: the builder's part
            log_scales = np.log(scales) + np.float32(np.log(scale))
            alphas = opacities[:, 0].astype(np.float64)
            logits = np.log(alphas) - np.log1p(-alphas)
            if moved:
                means = means.astype(np.float64) @ part.matrix[:3, :3].T + part.matrix[:3, 3]
            if turned:
                quats = _product(quaternion(turn), quats)
                sh = _turn_sh(sh, turn)
        yield RawBlock(means, log_scales, quats, logits, sh)


def _product(q: np.ndarray, quats: np.ndarray) -> np.ndarray:
    """(n, 4) quaternions q · quats, w first."""
    w, x, y, z = q
    left = np.array([[w, -x, -y, -z], [x, w, -z, y], [y, z, w, -x], [z, -y, x, w]])
    return quats.astype(np.float64) @ left.T


def _turn_sh(sh: np.ndarray, turn: np.ndarray) -> np.ndarray:
    """(n, K, 3) coefficients of the splats turned by (3, 3) ``turn``: colour from R d is what it was from d."""
    directions = np.random.default_rng(1).normal(size=(64, 3))
    directions /= np.sqrt((directions * directions).sum(axis=1, keepdims=True))
    before, after = sh_basis(directions @ turn), sh_basis(directions)  # rows d are R^T d before
    turned = sh.copy()
    for d in range(1, round(sh.shape[1] ** 0.5)):
        band = slice(d * d, (d + 1) ** 2)
        rotation = np.linalg.lstsq(after[:, band], before[:, band], rcond=None)[0].astype(np.float32)
        turned[:, band] = np.einsum("ij,njc->nic", rotation, sh[:, band])
    return turned
