"""What may be shown of a configuration: no passwords, no tokens, nothing that breaks a line."""

from __future__ import annotations

import re
from typing import Any, Dict, Match

MASK = "***"

#: Words that make a key's value, or a URI's query parameter, a secret; ``…_file`` holds a path and is none.
_SECRET_WORD = r"token|password|passwd|passphrase|secret|api_?key|credentials?|auth"
_SECRET_KEY = re.compile(rf"(^|[_.])({_SECRET_WORD})s?($|\.)", re.IGNORECASE)
_QUERY = re.compile(rf"([?&;](?:\w*_)?(?:{_SECRET_WORD})=)[^&;\s]+", re.IGNORECASE)
_SCHEME = re.compile(r"\w:/{0,2}(?=[^@/])")


def mask_text(text: str) -> str:
    """``text`` with the credentials of every URI in it replaced: ``rtsp://***@host/x``, ``?token=***``."""
    return _QUERY.sub(r"\1" + MASK, re.sub(r"\S+", _mask_userinfo, text))


def _mask_userinfo(word: Match[str]) -> str:
    text = word.group()
    # Up to the last @: a password may hold a slash or an @ itself, and hiding too much does no harm.
    end = text.rfind("@")
    scheme = _SCHEME.search(text, 0, end) if end > 0 else None
    return text if scheme is None else text[: scheme.end()] + MASK + text[end:]


def is_secret_key(key: str) -> bool:
    """Whether a key, dotted or not, known or not, holds something that must not be shown."""
    return _SECRET_KEY.search(key) is not None


def masked(value: Any) -> Any:
    """Plain data (dicts, lists, scalars) with every secret replaced."""
    if isinstance(value, dict):
        result: Dict[Any, Any] = {}
        for key, item in value.items():
            hide = item is not None and is_secret_key(str(key))
            result[key] = MASK if hide else masked(item)
        return result
    if isinstance(value, (list, tuple)):
        return [masked(item) for item in value]
    return mask_text(value) if isinstance(value, str) else value


def one_line(text: str) -> str:
    """``text`` with line breaks, control and unprintable characters as escapes, for terminals and logs."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)
