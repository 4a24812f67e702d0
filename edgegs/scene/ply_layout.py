"""Is this PLY a 3DGS scene that can be drawn right? If not: what is it, in words its owner understands."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import List, Optional, Sequence, Tuple

from edgegs.errors import SceneError
from edgegs.scene.ply_header import Element, Header, clip
from edgegs.scene.reading import DEGREE_4

REQUIRED = (
    "x", "y", "z", "f_dc_0", "f_dc_1", "f_dc_2", "opacity",
    "scale_0", "scale_1", "scale_2", "rot_0", "rot_1", "rot_2", "rot_3",
)  # fmt: skip
#: What may stand in for f_dc_0…2, as uchar.
RGB = ("red", "green", "blue")

PACKED = ("packed_position", "packed_rotation", "packed_scale", "packed_color")
#: Bounds of a chunk of a compressed PLY, lowest then highest; the last row is missing in files up to 2024.
CHUNK_BOUNDS = (
    ("min_x", "min_y", "min_z", "max_x", "max_y", "max_z"),
    ("min_scale_x", "min_scale_y", "min_scale_z", "max_scale_x", "max_scale_y", "max_scale_z"),
    ("min_r", "min_g", "min_b", "max_r", "max_g", "max_b"),
)
#: Splats in a chunk of a compressed PLY; the last one may be short.
CHUNK_ROWS = 256

#: Number of f_rest properties -> SH degree that is drawn.
SH_DEGREES = {0: 0, 9: 1, 24: 2, 45: 3, 72: 3}

_F_REST = re.compile(r"f_rest_(0|[1-9][0-9]{0,3})")
_CONVERT = "convert it to a standard 3DGS .ply, for example with SuperSplat or splat-transform"


@dataclass(frozen=True)
class Layout:
    """What a checked header says of its splats.

    Attributes:
        vertex: the element of the splats.
        sh_degree: SH degree that is drawn, 0 to 3.
        n_rest: f_rest values of a splat in the file: of degree 4, more than are drawn.
        flat: no scale_2 (2DGS): its ln sigma is -inf.
        rgb: uchar red, green, blue instead of f_dc.
        antialiased: as in ``Scene``.
        vertical_axis: as in ``Scene``.
        warnings: what a user should hear about.
    """

    vertex: Element
    sh_degree: int
    n_rest: int
    flat: bool
    rgb: bool
    antialiased: bool
    vertical_axis: str
    warnings: Tuple[str, ...]


@dataclass(frozen=True)
class CompressedLayout(Layout):
    """The same of a compressed PLY.

    Attributes:
        chunk: the element of the bounds.
        sh: the element of f_rest; None for degree 0.
        bounds: the names of the bounds that a chunk has, 12, or 18 with those of the colours.
    """

    chunk: Element
    sh: Optional[Element]
    bounds: Tuple[str, ...]


def is_compressed(header: Header) -> bool:
    """Is it SuperSplat's compressed PLY? The file's name says nothing: plain ones are named so, too."""
    vertex = header.element("vertex")
    return vertex is not None and "packed_position" in vertex.properties


def layout_of(header: Header, path: str) -> Layout:
    """The layout of a 3DGS scene, compressed or not; SceneError for anything else."""
    return compressed_layout(header, path) if is_compressed(header) else plain_layout(header, path)


def plain_layout(header: Header, path: str) -> Layout:
    """The layout of a 3DGS scene that is not compressed; SceneError for anything else."""
    vertex = header.element("vertex")
    if vertex is None:
        names = ", ".join(element.name for element in header.elements)
        raise SceneError(f"{path}: has no element 'vertex' (elements: {clip(names) or 'none'}); not a 3DGS scene")
    flat = "scale_2" not in vertex.properties
    rgb = not any(name in vertex.properties for name in REQUIRED[3:6])
    _check_required(header, vertex, path)
    used = [*REQUIRED, *(RGB if rgb else ()), *(name for name in vertex.properties if name.startswith("f_rest"))]
    lists = [name for name, kind in vertex.properties.items() if kind == "list"]
    for name in lists:
        what = "needs one number a splat" if name in used else "a list beside splats cannot be read"
        raise SceneError(f"{path}: property {clip(name)} is a list; {what}: export it again")
    for name in RGB if rgb else ():
        if vertex.properties[name] not in ("uchar", "uint8"):
            raise SceneError(
                f"{path}: property {name} is {vertex.properties[name]}; a colour must be uchar, 0 to 255, or f_dc_0…2"
            )
    before = header.elements[: header.elements.index(vertex)]
    for element in before:
        if element.has_list and element.count and header.format != "ascii":
            raise SceneError(f"{path}: element {clip(element.name)} with lists comes before the splats; {_CONVERT}")
    degree, n_rest, warnings = _sh_degree(vertex, path)
    mode = _render_mode(header.comments, path)
    if flat:
        warnings.append("no scale_2: a 2DGS scene, drawn as flat ellipsoids")
    elif mode == "2dgs":
        warnings.append("its header says 'SplatRenderMode: 2dgs': drawn as flat ellipsoids")
    # A missing column is better evidence than a comment.
    antialiased = mode == "mip" and not flat
    axis = vertical_axis(header.comments)
    return Layout(vertex, degree, n_rest, flat, rgb, antialiased, axis, tuple(warnings))


def _check_required(header: Header, vertex: Element, path: str) -> None:
    has = vertex.properties
    spared = set()
    if "scale_0" in has and "scale_1" in has:
        spared.add("scale_2")
    if all(name in has for name in RGB) and not any(name in has for name in REQUIRED[3:6]):
        spared.update(REQUIRED[3:6])
    missing = [name for name in REQUIRED if name not in has and name not in spared]
    if not missing:
        return
    if any(name.startswith("f_anchor_feat") for name in has):
        raise SceneError(
            f"{path}: Scaffold-GS anchors; only its neural networks turn them into splats. Export a 3DGS .ply"
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


def _sh_degree(element: Element, path: str) -> Tuple[int, int, List[str]]:
    """SH degree that is drawn, f_rest properties in the file, and warnings."""
    names = [name for name in element.properties if name.startswith("f_rest")]
    for name in names:
        if not _F_REST.fullmatch(name):
            raise SceneError(f"{path}: property {clip(name)} is not a valid f_rest_N name; export it again")
    indices = sorted(int(name[len("f_rest_") :]) for name in names)
    for expected, index in enumerate(indices):
        if index != expected:
            raise SceneError(f"{path}: f_rest_{expected} is missing though f_rest_{index} is there; export it again")
    if len(names) not in SH_DEGREES:
        raise SceneError(
            f"{path}: {len(names)} f_rest properties fit no SH degree (0, 9, 24, 45 or 72 are degree 0 to 4); export "
            "it again"
        )
    warnings = [DEGREE_4] if len(names) == 72 else []
    return SH_DEGREES[len(names)], len(names), warnings


def _render_mode(comments: Sequence[str], path: str) -> str:
    """The way of drawing that a scene was trained for: "default", "mip" or "2dgs"; the last word counts.

    Brush and splat-transform write "SplatRenderMode: mip", Postshot "antialiased 1".
    """
    mode = "default"
    for comment in comments:
        words = comment.lower().replace(":", " ").replace("=", " ").split()
        if words[:1] == ["splatrendermode"] and len(words) > 1:
            mode = words[1]
            if mode not in ("default", "mip", "2dgs") or len(words) > 2:
                said = clip(" ".join(words[1:]))
                raise SceneError(
                    f"{path}: its header says 'SplatRenderMode: {said}', a way of drawing that edgegs lacks "
                    f"(it has default, mip and 2dgs); {_CONVERT}"
                )
        elif words[:1] == ["antialiased"] and len(words) == 2:
            mode = "mip" if words[1] in ("1", "true") else "default"
    return mode


def vertical_axis(comments: Sequence[str]) -> str:
    """Return "z" where a comment such as nerfstudio's "Vertical Axis: z" says so, else "y"."""
    for comment in comments:
        words = comment.lower().replace(":", " ").replace("=", " ").split()
        if words[:3] == ["vertical", "axis", "z"]:
            return "z"
    return "y"


def compressed_layout(header: Header, path: str) -> CompressedLayout:
    """The layout of SuperSplat's compressed PLY; SceneError for a header that is not one, or contradicts itself."""
    vertex, chunk, sh = (header.element(name) for name in ("vertex", "chunk", "sh"))
    if vertex is None or not is_compressed(header):
        raise SceneError(f"{path}: not a compressed PLY: its element vertex has no packed_position")
    if header.format != "binary_little_endian":
        raise SceneError(
            f"{path}: a compressed PLY in format {header.format}; its packed words are only ever written "
            "binary_little_endian: export it again"
        )
    if chunk is None:
        raise SceneError(f"{path}: a compressed PLY without element chunk, the bounds of its splats; export it again")
    colours = any(name in chunk.properties for name in CHUNK_BOUNDS[2])
    bounds = sum(CHUNK_BOUNDS[: 3 if colours else 2], ())
    _check_columns(vertex, PACKED, ("uint", "uint32"), path)
    _check_columns(chunk, bounds, ("float", "float32"), path)
    for element in header.elements:
        if element.has_list and element.count:
            raise SceneError(f"{path}: element {clip(element.name)} has lists, which no compressed PLY has; {_CONVERT}")
    _check_rows(chunk, -(-vertex.count // CHUNK_ROWS), f"one for each {CHUNK_ROWS} of", vertex, path)
    degree, n_rest = 0, 0
    warnings: List[str] = []
    if sh is not None:
        degree, n_rest, warnings = _sh_degree(sh, path)
        _check_columns(sh, [f"f_rest_{i}" for i in range(n_rest)], ("uchar", "uint8"), path)
        _check_rows(sh, vertex.count, "one for each of", vertex, path)
    mode = _render_mode(header.comments, path)
    if mode == "2dgs":
        warnings.append("its header says 'SplatRenderMode: 2dgs': drawn as flat ellipsoids")
    return CompressedLayout(
        vertex, degree, n_rest, False, False, mode == "mip", vertical_axis(header.comments), tuple(warnings),
        chunk, sh if n_rest else None, bounds,
    )  # fmt: skip


def _check_columns(element: Element, names: Sequence[str], kinds: Sequence[str], path: str) -> None:
    missing = [name for name in names if name not in element.properties]
    if missing:
        raise SceneError(
            f"{path}: element {element.name} of a compressed PLY lacks {', '.join(missing)}; export it again"
        )
    for name in names:
        if element.properties[name] not in kinds:
            raise SceneError(
                f"{path}: {name} of element {element.name} of a compressed PLY is {element.properties[name]}, "
                f"and must be {kinds[0]}; export it again"
            )


def _check_rows(element: Element, expected: int, why: str, vertex: Element, path: str) -> None:
    if element.count != expected:
        raise SceneError(
            f"{path}: header line {element.line} promises {element.count:,} rows of element {element.name}; it must be "
            f"{expected:,}, {why} the {vertex.count:,} splats of header line {vertex.line}. Export it again"
        )
