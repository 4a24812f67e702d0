"""Scenes: every reader turns one file format into the same ``Scene`` (see ``model.py``).

``load`` is the only way in. It trusts nothing about a file: see ``checks.py`` (what may be opened at all),
``ply_header.py`` (what a header may claim) and ``builder.py`` (which rows may be drawn).
"""

from __future__ import annotations

import os
from typing import Callable, Optional, Union

from edgegs.scene.checks import DEFAULT_CAP, open_scene_file
from edgegs.scene.model import Scene
from edgegs.scene.ply import read_ply, write_ply

__all__ = ["DEFAULT_CAP", "Scene", "load", "write_ply"]


def load(
    path: Union[str, os.PathLike[str]],
    max_gaussians: Optional[int] = None,
    cap: int = DEFAULT_CAP,
    progress: Optional[Callable[[int, int], None]] = None,
) -> Scene:
    """Read a scene file.

    Args:
        path: a regular file; its content, not its name, says what it is.
        max_gaussians: keep at most this many splats: those with the largest opacity · (largest scale)²,
            in file order, equal ones by position in the file. None keeps all.
        cap: refuse a file that promises more rows than this, before anything is allocated for them.
        progress: called as ``progress(rows_done, n_rows)`` after each block.

    Raises:
        SceneError: the content is wrong. InputError: missing, or not a readable regular file.
        AccessError: no permission.
    """
    if max_gaussians is not None and max_gaussians < 1:
        raise ValueError(f"max_gaussians must be at least 1, not {max_gaussians}")
    name = os.fspath(path)
    with open_scene_file(name) as file:
        return read_ply(file, name, max_gaussians, cap, progress)
