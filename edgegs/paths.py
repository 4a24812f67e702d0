"""Where edgegs finds what it ships (kernel sources, configurations, units) and keeps what it builds."""

from __future__ import annotations

import os
from pathlib import Path

from edgegs.errors import AccessError

_PACKAGE = Path(__file__).resolve().parent


def shipped(name: str) -> Path:
    """Folder ``name`` ("cuda", "configs", "systemd"): inside an installed package, or the checkout's own."""
    packaged = _PACKAGE / "data" / name
    return packaged if packaged.is_dir() else _PACKAGE.parent / name


def cache_dir() -> Path:
    """``$EDGEGS_CACHE``, else systemd's ``$CACHE_DIRECTORY``, else ``~/.cache/edgegs``.

    Raises:
        AccessError: none of these is set, and the user has no home folder.
    """
    for variable in ("EDGEGS_CACHE", "CACHE_DIRECTORY"):
        value = os.environ.get(variable)
        if value:
            return Path(value)
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "edgegs"
    except (KeyError, RuntimeError):  # no HOME, and no such user: pathlib's words differ by its version
        raise AccessError("this user has no home folder to keep kernels in; set EDGEGS_CACHE to a folder") from None
