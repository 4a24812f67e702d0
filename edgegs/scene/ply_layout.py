"""Is this PLY a 3DGS scene that can be drawn right? If not: what is it, in words its owner understands."""

from __future__ import annotations

import re
from typing import List, Tuple

from edgegs.errors import SceneError
from edgegs.scene.ply_header import Element, Header, clip

REQUIRED = (
    "x", "y", "z", "f_dc_0", "f_dc_1", "f_dc_2", "opacity",
    "scale_0", "scale_1", "scale_2", "rot_0", "rot_1", "rot_2", "rot_3",
)  # fmt: skip

#: Number of f_rest properties -> SH degree.
SH_DEGREES = {0: 0, 9: 1, 24: 2, 45: 3}

_F_REST = re.compile(r"f_rest_(0|[1-9][0-9]{0,3})")
_CONVERT = "convert it to a standard 3DGS .ply, for example with SuperSplat or splat-transform"


def check_layout(header: Header, path: str) -> Tuple[Element, int]:
    """The vertex element and the SH degree of a 3DGS scene; SceneError for anything else."""
    vertex = header.element("vertex")
    if vertex is None:
        names = ", ".join(element.name for element in header.elements)
        raise SceneError(f"{path}: has no element 'vertex' (elements: {clip(names) or 'none'}); not a 3DGS scene")
    if "packed_position" in vertex.properties:
        raise SceneError(
            f"{path}: a compressed PLY (SuperSplat's packed_position, chunks), which this version cannot "
            f"read; {_CONVERT}"
        )
    _check_required(header, vertex, path)
    used = [*REQUIRED, *(name for name in vertex.properties if name.startswith("f_rest"))]
    lists = [name for name, kind in vertex.properties.items() if kind == "list"]
    for name in lists:
        what = "needs one number a splat" if name in used else "a list beside splats cannot be read"
        raise SceneError(f"{path}: property {clip(name)} is a list; {what}")
    before = header.elements[: header.elements.index(vertex)]
    for element in before:
        if element.has_list and element.count and header.format != "ascii":
            raise SceneError(f"{path}: element {clip(element.name)} with lists comes before the splats; {_CONVERT}")
    degree = _sh_degree(vertex, path)
    _check_render_mode(header.comments, path)
    return vertex, degree


def _check_required(header: Header, vertex: Element, path: str) -> None:
    has = vertex.properties
    missing = [name for name in REQUIRED if name not in has]
    if not missing:
        return
    if any(name.startswith("f_anchor_feat") for name in has):
        raise SceneError(
            f"{path}: Scaffold-GS anchors; only its neural networks turn them into splats. Export a 3DGS .ply"
        )
    if missing == ["scale_2"]:
        raise SceneError(f"{path}: a 2DGS scene (flat splats, no scale_2); this version cannot read it: {_CONVERT}")
    if missing == ["f_dc_0", "f_dc_1", "f_dc_2"] and {"red", "green", "blue"} <= set(has):
        raise SceneError(
            f"{path}: colours are red/green/blue instead of f_dc_0…2; this version cannot read it: {_CONVERT}"
        )
    splat_names = ("opacity", "scale_0", "rot_0", "f_dc_0")
    if not any(name in has for name in splat_names):
        faces = header.element("face")
        kind = "a mesh" if faces is not None and faces.count else "a point cloud"
        raise SceneError(
            f"{path}: {kind}, not a 3DGS scene: lacks {_groups(missing)}. Train or export Gaussian splats from it first"
        )
    raise SceneError(f"{path}: not a complete 3DGS scene: lacks {_groups(missing)}; export it again")


def _groups(missing: List[str]) -> str:
    """Whole groups in short, the rest by name: "opacity, scale_0…2, rot_0…3"."""
    text = ", ".join(missing)
    for stem, last in (("f_dc", 2), ("scale", 2), ("rot", 3)):
        whole = ", ".join(f"{stem}_{i}" for i in range(last + 1))
        text = text.replace(whole, f"{stem}_0…{last}")
    return text


def _sh_degree(vertex: Element, path: str) -> int:
    names = [name for name in vertex.properties if name.startswith("f_rest")]
    for name in names:
        if not _F_REST.fullmatch(name):
            raise SceneError(f"{path}: property {clip(name)} is not a valid f_rest_N name")
    indices = sorted(int(name[len("f_rest_") :]) for name in names)
    for expected, index in enumerate(indices):
        if index != expected:
            raise SceneError(f"{path}: f_rest_{expected} is missing though f_rest_{index} is there; export it again")
    if len(names) == 72:
        raise SceneError(
            f"{path}: SH degree 4 (72 f_rest properties); edgegs draws up to degree 3. Export with a lower degree"
        )
    if len(names) not in SH_DEGREES:
        raise SceneError(f"{path}: {len(names)} f_rest properties fit no SH degree (0, 9, 24 or 45 are degree 0 to 3)")
    return SH_DEGREES[len(names)]


def _check_render_mode(comments: List[str], path: str) -> None:
    """Refuse scenes trained for another rasteriser: drawn by this one they would look subtly wrong."""
    for comment in comments:
        words = comment.lower().replace(":", " ").replace("=", " ").split()
        if words[:1] == ["splatrendermode"] and words[1:] not in ([], ["default"]):
            raise SceneError(
                f"{path}: its header says 'SplatRenderMode: {clip(words[1])}', trained for another way "
                f"of drawing, which this version lacks; {_CONVERT}"
            )
        if words[:1] == ["antialiased"] and words[1:] in (["1"], ["true"]):
            raise SceneError(
                f"{path}: its header says 'antialiased 1' (mip-splatting), which this version cannot draw; {_CONVERT}"
            )


def vertical_axis(comments: List[str]) -> str:
    """Return "z" where a comment such as nerfstudio's "Vertical Axis: z" says so, else "y"."""
    for comment in comments:
        words = comment.lower().replace(":", " ").replace("=", " ").split()
        if words[:3] == ["vertical", "axis", "z"]:
            return "z"
    return "y"
