"""The JSON section of a packed file: what a person wants to know of the scene, and no kernel."""

from __future__ import annotations

import json
from typing import Any, Dict, List, Mapping, NamedTuple

from edgegs.errors import SceneError
from edgegs.files import CONTROL

MAX_ABOUT_BYTES = 1 << 20


class About(NamedTuple):
    """What the section holds, by its keys."""

    about: Dict[str, Any]  # the packer's own words
    dropped: Dict[str, int]
    format: str  # of the source
    warnings: List[str]


def encode_about(about: About) -> bytes:
    """Canonical JSON: sorted keys, no spaces, ASCII; raises ValueError for what is none, or is too long."""
    blob = _canonical(_printable(about._asdict()))
    if len(blob) > MAX_ABOUT_BYTES:
        raise ValueError(f"what a packed scene tells about itself takes {len(blob):,} bytes; the limit is 1 MiB")
    return blob


def decode_about(blob: bytes, n_rows: int, path: str) -> About:
    """Read and check the JSON section; raises SceneError.

    Its texts can be printed: no control characters.
    """
    try:
        value = json.loads(blob.decode("ascii"), parse_int=_short_int)
        if _canonical(_printable(value)) != blob:
            raise ValueError("not in canonical form")
        if not isinstance(value, dict) or set(value) != set(About._fields):
            raise ValueError(f"its keys are not {', '.join(About._fields)}")
        about = About(**value)
        for name, right in (
            ("about", isinstance(about.about, dict)),
            ("format", isinstance(about.format, str)),
            ("warnings", _all(about.warnings, list, str)),
            ("dropped", _all(about.dropped, dict, str) and _all(list(about.dropped.values()), list, int)),
            ("dropped", all(0 <= count <= n_rows for count in about.dropped.values())),
        ):
            if not right:
                raise ValueError(f"{name} is of a wrong kind")
    except (ValueError, RecursionError, AttributeError, TypeError) as error:
        reason = "nested too deep" if isinstance(error, RecursionError) else ascii(str(error))[1:-1][:200]
        raise SceneError(
            f"{path}: section about is not the JSON that edgegs writes ({reason}); is the copy or download complete?"
        ) from error
    return about


def _all(values: Any, kind: type, item: type) -> bool:
    return isinstance(values, kind) and all(type(value) is item for value in values)  # type: ignore[attr-defined]


def _short_int(text: str) -> int:
    if len(text) > 20:
        raise ValueError("a number of over 20 digits")  # whose conversion would take time that grows as its square
    return int(text)


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def _printable(value: Any) -> Any:
    """The same, with control characters (and half surrogate pairs) of texts and keys as escapes."""
    if isinstance(value, str):
        return CONTROL.sub(lambda found: ascii(found.group())[1:-1], value)
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise ValueError("keys of JSON objects are texts")
        return {_printable(key): _printable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_printable(item) for item in value]
    return value
