"""Scenes: every reader turns one file format into the same ``Scene`` (see ``model.py``).

``load`` is the only way in. It trusts nothing about a file: see ``checks.py`` (what may be opened at all),
``formats.py`` (which reader a content belongs to) and ``builder.py`` (which rows may be drawn).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Callable, Optional, Union

from edgegs.errors import InputError
from edgegs.scene.checks import open_scene_file
from edgegs.scene.formats import check_folder, identify, read_folder, reader_of
from edgegs.scene.frames import FRAMES
from edgegs.scene.model import Scene
from edgegs.scene.ply import write_ply
from edgegs.scene.reading import DEFAULT_CAP, Reading

if TYPE_CHECKING:
    from edgegs.pack import AnyScene

__all__ = ["DEFAULT_CAP", "Scene", "kind_of", "load", "write_ply"]


def load(
    path: Union[str, os.PathLike[str]],
    max_gaussians: Optional[int] = None,
    cap: int = DEFAULT_CAP,
    progress: Optional[Callable[[int, int], None]] = None,
    frame: Optional[str] = None,
) -> AnyScene:
    """Read a scene: a ``PackedScene`` from an .egs file, else a ``Scene``.

    Args:
        path: a regular file, or the folder of an unbundled SOG scene; the content, not the name, says what it is.
        max_gaussians: keep at most this many splats: of an .egs file the most important ones, of any other those
            with the largest opacity · (largest scale)², in file order, equal ones by position in the file (``edgegs.
            pack.prepare`` chooses better ones). None keeps all.
        cap: refuse a file that promises more splats than this, before anything is allocated for them.
        progress: called as ``progress(rows_done, n_rows)`` after each block.
        frame: the axes that the file was written in, "rdf" (x right, y down, z forward) or "rub" (x right, y up,
            z back); None: what its format says. Scenes in memory are always "rdf".

    Raises:
        SceneError: the content is wrong. InputError: missing, or not a readable regular file.
        AccessError: no permission.
    """
    if frame not in (None, *FRAMES):
        raise ValueError(f"frame must be one of {', '.join(FRAMES)}, not {frame!r}")
    if max_gaussians is not None and max_gaussians < 1:
        raise ValueError(f"max_gaussians must be at least 1, not {max_gaussians}")
    name = os.fspath(path)
    how = Reading(max_gaussians, cap, progress, frame)
    try:
        if os.path.isdir(name):
            return read_folder(name, how)
        with open_scene_file(name) as file:
            return reader_of(identify(file, name))(file, name, how)
    except OSError as error:
        raise InputError(f"{name}: cannot be read: {error.strerror or error}") from error


def kind_of(path: Union[str, os.PathLike[str]]) -> str:
    """The format of a scene by its first bytes: ply, splat, spz, sog, sog json, gltf or egs; of a folder "folder".

    Raises:
        SceneError, InputError, AccessError: as ``load``.
    """
    name = os.fspath(path)
    if os.path.isdir(name):
        check_folder(name)
        return "folder"
    with open_scene_file(name) as file:
        return identify(file, name)
