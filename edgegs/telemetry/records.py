"""A record as one line of strict JSON."""

from __future__ import annotations

import json
import math
from typing import Any, Dict, List

#: A record that was made before its run had a name carries this; ``with_run_id`` fills it in.
_UNNAMED = b'"run_id":""'


def encode(record: Dict[str, Any]) -> bytes:
    """One line of strict JSON: no NaN, no line break inside; unknown types become strings."""
    return json.dumps(_plain(record), separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"


def with_run_id(line: bytes, run_id: str) -> bytes:
    """``line`` with the empty run id of its envelope filled in; one that has a run id stays as it is.

    Only the first place counts: what stands before it in the envelope are numbers and escaped strings.
    """
    return line.replace(_UNNAMED, b'"run_id":"' + run_id.encode("ascii") + b'"', 1)


def is_start(line: bytes) -> bool:
    """Whether the line is a start record."""
    return b'"type":"start"' in line[:48]


def fitting(lines: List[bytes], first: int, room: int) -> int:
    """How many lines from ``first`` on fit into ``room`` bytes (at least one)."""
    count = size = 0
    for line in lines[first:]:
        if count and size + len(line) > room:
            break
        count += 1
        size += len(line)
    return count


def _plain(value: Any, depth: int = 0) -> Any:
    """``value`` in JSON's types; a number that is not finite becomes null."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if depth > 16:  # nothing of ours is; even str() could run out of stack on it
        return "..."
    if isinstance(value, dict):
        return {str(key): _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item, depth + 1) for item in value]
    if hasattr(value, "item") and getattr(value, "size", 0) == 1:  # a NumPy scalar
        return _plain(value.item(), depth + 1)
    if hasattr(value, "tolist"):
        return _plain(value.tolist(), depth + 1)
    return str(value)
