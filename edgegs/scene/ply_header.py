"""A strict reader of PLY headers: bounded, and right about every number before anybody allocates.

plyfile reads a header byte by byte, decodes it as ASCII, and believes its counts (a 1.5 KB file can ask
for 924 GiB). So the header is read here first, as latin-1, and plyfile only ever sees what passed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Dict, List, Optional, Tuple

from edgegs.errors import SceneError
from edgegs.scene.checks import begins_ply, not_a_scene

MAX_HEADER_BYTES = 64 * 1024
MAX_PROPERTIES = 256

FORMATS = ("ascii", "binary_little_endian", "binary_big_endian")

#: PLY type name -> bytes a value takes in a binary file.
TYPE_BYTES: Dict[str, int] = {
    "char": 1, "uchar": 1, "short": 2, "ushort": 2, "int": 4, "uint": 4, "float": 4, "double": 8,
    "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "float32": 4, "float64": 8,
}  # fmt: skip

_COUNT = re.compile(r"[0-9]{1,18}")
_NAME = re.compile(r"[!-~]+")
_BOM = b"\xef\xbb\xbf"


@dataclass
class Element:
    """One ``element`` line and its properties.

    ``properties`` maps a name to its PLY type, "list" for a list property. ``line`` is its header line.
    """

    name: str
    count: int
    line: int
    properties: Dict[str, str] = field(default_factory=dict)

    @property
    def has_list(self) -> bool:
        return "list" in self.properties.values()

    @property
    def row_bytes(self) -> int:
        """Bytes a row takes in a binary file; the least it can take if it has a list."""
        return sum(TYPE_BYTES.get(kind, 1) for kind in self.properties.values())


@dataclass
class Header:
    """A checked header. ``n_bytes`` is its length, that is, where the data starts."""

    format: str
    elements: List[Element]
    comments: List[str]
    n_bytes: int

    def element(self, name: str) -> Optional[Element]:
        return next((element for element in self.elements if element.name == name), None)


def parse_header(head: bytes, path: str) -> Header:
    """Parse a header from the file's first bytes (at least ``MAX_HEADER_BYTES`` of them, or all there are).

    Tolerates a byte-order mark, CRLF and lone CR line ends, trailing blanks, blank lines, comments anywhere
    and any bytes in them. Raises SceneError, naming the header line, for everything else that the format
    does not allow.
    """
    skipped = len(_BOM) if head.startswith(_BOM) else 0  # a text editor on Windows puts one there
    head = head[skipped:]
    if not begins_ply(head):
        raise not_a_scene(head, path)
    lines, n_bytes = _split(head, path)
    header = Header("", [], [], n_bytes + skipped)
    n_properties = 0
    for number, line in enumerate(lines, start=1):
        words = line.split()
        if number == 1 or not words:
            continue
        keyword = words[0]
        where = f"{path}: header line {number}"
        if keyword in ("comment", "obj_info"):
            header.comments.append(line.strip()[len(keyword) :].strip())
        elif keyword == "format":
            if header.format or header.elements:
                raise SceneError(f"{where}: a second or late 'format' line")
            header.format = _format(words, where)
        elif not header.format:
            raise SceneError(f"{where}: expected 'format …', found '{clip(line)}'")
        elif keyword == "element":
            header.elements.append(_element(words, number, where, header.elements))
        elif keyword == "property":
            n_properties += 1
            if n_properties > MAX_PROPERTIES:
                raise SceneError(f"{where}: more than {MAX_PROPERTIES} properties; no 3DGS scene")
            _property(words, where, header.elements)
        else:
            raise SceneError(f"{where}: unknown keyword '{clip(keyword)}'")
    if not header.format:
        raise SceneError(f"{path}: the header has no 'format' line")
    return header


def _split(head: bytes, path: str) -> Tuple[List[str], int]:
    """The lines before ``end_header``, and the offset of the first byte after its line end."""
    first_cr, first_lf = head.find(b"\r"), head.find(b"\n")
    lone_cr = first_cr >= 0 and first_lf != first_cr + 1 and not 0 <= first_lf < first_cr
    end_of_line = b"\r" if lone_cr else b"\n"
    lines: List[str] = []
    start = 0
    while start < min(len(head), MAX_HEADER_BYTES):
        stop = head.find(end_of_line, start, MAX_HEADER_BYTES)
        last = stop < 0
        line = head[start : min(len(head), MAX_HEADER_BYTES) if last else stop].decode("latin-1").rstrip()
        if line == "end_header" and (not last or len(head) == start + len(line)):
            return lines, len(head) if last else stop + 1
        if last:
            break
        lines.append(line)
        start = stop + 1
    if len(head) >= MAX_HEADER_BYTES:
        raise SceneError(f"{path}: no 'end_header' in the first {MAX_HEADER_BYTES // 1024} KiB")
    raise SceneError(f"{path}: the file ends inside its header (line {len(lines) + 1}); copy or export it again")


def _format(words: List[str], where: str) -> str:
    if len(words) != 3 or words[1] not in FORMATS or words[2] != "1.0":
        raise SceneError(
            "{}: expected 'format ascii|binary_little_endian|binary_big_endian 1.0', found '{}'".format(
                where, clip(" ".join(words))
            )
        )
    return words[1]


def _element(words: List[str], number: int, where: str, earlier: List[Element]) -> Element:
    if len(words) != 3 or not _NAME.fullmatch(words[1]):
        raise SceneError(f"{where}: expected 'element NAME COUNT'")
    if not _COUNT.fullmatch(words[2]):
        raise SceneError(
            f"{where}: the count of element {clip(words[1])} must be a whole number below 10^18, not '{clip(words[2])}'"
        )
    if any(element.name == words[1] for element in earlier):
        raise SceneError(f"{where}: element {clip(words[1])} is declared twice")
    return Element(words[1], int(words[2]), number)


def _property(words: List[str], where: str, elements: List[Element]) -> None:
    if not elements:
        raise SceneError(f"{where}: a property before any element")
    is_list = len(words) == 5 and words[1] == "list"
    if not is_list and len(words) != 3:
        raise SceneError(f"{where}: expected 'property TYPE NAME'")
    name = words[-1]
    for kind in words[2:4] if is_list else words[1:2]:
        if kind not in TYPE_BYTES:
            raise SceneError(f"{where}: unknown type '{clip(kind)}' of property {clip(name)}")
    if not _NAME.fullmatch(name):
        raise SceneError(f"{where}: a property name must be plain ASCII, not '{clip(name)}'")
    if name in elements[-1].properties:
        raise SceneError(f"{where}: property {clip(name)} is declared twice")
    elements[-1].properties[name] = "list" if is_list else words[1]


def clip(text: str) -> str:
    """Text from a file, safe to print: short, and without control characters."""
    shown = "".join(c if c.isprintable() else "?" for c in text[:60])
    return shown + ("…" if len(text) > 60 else "")
