"""Numbers and structs that host code shares with the kernels, read from cuda/constants.h and cuda/params.h.

No number and no field is written twice: this module parses the headers. It needs only the standard
library until a dtype is asked for, because the installer imports it before NumPy is there.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Dict, List, NamedTuple, Optional, Union

from edgegs.errors import EdgegsError
from edgegs.paths import shipped

if TYPE_CHECKING:
    import numpy as np

_DEFINE = re.compile(r"^#define\s+([A-Z][A-Z0-9_]*)\s+([-+0-9.eE]+)f?\s+//\s*(\S.*)$")
_STRUCT = re.compile(r"^struct\s+(\w+)\s*\{$")
_FIELD = re.compile(r"^(?:const\s+)?(\w+)\s+(\*?)(\w+)(?:\[(\d+)\])?;")
_SCALARS = {"void": "u1", "float": "<f4", "uint8": "u1", "uint16": "<u2", "uint32": "<u4", "uint64": "<u8"}


class Field(NamedTuple):
    """One field of a parameter struct; ``element`` is the NumPy type code of what it holds or points to."""

    name: str
    element: str
    is_pointer: bool
    length: Optional[int]


@lru_cache(maxsize=None)
def constants() -> Dict[str, Union[int, float]]:
    """Every ``#define NAME value // unit, reason`` of constants.h."""
    found: Dict[str, Union[int, float]] = {}
    path = shipped("cuda") / "constants.h"
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.startswith("#define"):
            continue
        match = _DEFINE.match(line)
        if match is None or match.group(1) in found:
            raise EdgegsError(f"{path}:{number}: not a new `#define NAME value // reason`")
        text = match.group(2)
        found[match.group(1)] = int(text) if re.match(r"^-?\d+$", text) else float(text)
    return found


@lru_cache(maxsize=None)
def structs() -> Dict[str, List[Field]]:
    """The structs of params.h, each a list of its fields in order."""
    found: Dict[str, List[Field]] = {}
    current: Optional[List[Field]] = None
    path = shipped("cuda") / "params.h"
    for number, raw in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        line = raw.strip()
        opening = _STRUCT.match(line)
        if opening:
            current = found.setdefault(opening.group(1), [])
        elif line == "};":
            current = None
        elif current is not None and line and not line.startswith("//"):
            field = _FIELD.match(line)
            if field is None:
                raise EdgegsError(f"{path}:{number}: cannot read the field {line!r}")
            element, star, name, length = field.groups()
            code = _SCALARS.get(element, "u1") if star else _SCALARS[element]  # a pointer may be to a struct
            current.append(Field(name, code, bool(star), int(length) if length else None))
    return found


def struct_dtype(name: str) -> np.dtype:
    """The NumPy dtype of a parameter struct, laid out as a C compiler lays it out."""
    import numpy as np

    fields = []
    for field in structs()[name]:
        code = "<u8" if field.is_pointer else field.element
        fields.append((field.name, code, (field.length,)) if field.length else (field.name, code))
    return np.dtype(fields, align=True)
