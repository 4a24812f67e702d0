"""From a file to what is drawn: read, cut to a budget by importance, packed where the kernels want it so."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from typing import Callable, NamedTuple, Optional, Sequence

import numpy as np

from edgegs.backends.base import Backend
from edgegs.camera import Camera
from edgegs.pack.cache import SceneCache
from edgegs.pack.importance import importance
from edgegs.pack.order import arrange, prefix, sizes
from edgegs.pack.packed import quantise
from edgegs.pack.upload import AnyScene
from edgegs.pack.views import scoring_views
from edgegs.scene import Scene, kind_of, load
from edgegs.scene.builder import TooLarge

log = logging.getLogger(__name__)

#: Views that a scene is scored from where nobody named any, and their size in pixels.
N_VIEWS = 48
#: Views of a cameras.json that are used at most.
MAX_VIEWS = 96
VIEW_SIZE = (480, 360)

Progress = Callable[[int, int], None]
OpenBackend = Callable[[], "contextlib.AbstractContextManager[Backend]"]


class Wish(NamedTuple):
    """How a scene is wanted.

    Attributes:
        storage: of the variant that draws it, "fp32" or "packed".
        max_gaussians: at most so many splats, the most important ones; None takes all.
        frame: as ``edgegs.scene.load``.
        views: what importance is judged from; None: views made for the scene.
    """

    storage: str = "fp32"
    max_gaussians: Optional[int] = None
    frame: Optional[str] = None
    views: Optional[Sequence[Camera]] = None

    @property
    def options(self) -> str:
        """Whatever of this changes the whole packed scene, as text."""
        views = self.views if self.max_gaussians is not None and self.views is not None else ()
        return repr((self.frame, [(v.viewmat.tolist(), v.K.tolist(), v.width, v.height) for v in views]))


def prepare(path: str, wish: Wish, open_backend: OpenBackend, progress: Optional[Progress] = None) -> AnyScene:
    """Read a scene as it is wanted. What had to be worked out for that is kept for the next time.

    A scene that does not fit memory whole, but of which only some splats are wanted, is cut while it is read, by the
    least opacity · (largest scale)²: a worse choice, and said so.

    Args:
        open_backend: gives a backend to score with, if that is needed.
        progress: called as ``progress(done, of)`` while reading, and again while scoring.

    Raises:
        SceneError, InputError, AccessError: as ``edgegs.scene.load``. DeviceError: it cannot be scored here.
    """
    is_cut = wish.max_gaussians is not None
    if kind_of(path) == "egs":
        return load(path, wish.max_gaussians, progress=progress)
    if wish.storage == "fp32" and not is_cut:
        return load(path, frame=wish.frame, progress=progress)
    cache = SceneCache.of(path, wish.options)
    kept = None if cache is None else cache.find(is_cut, wish.max_gaussians)
    if kept is not None and wish.storage == "packed":
        return dataclasses.replace(kept, path=path)
    try:
        scene = load(path, frame=wish.frame, progress=progress)
    except TooLarge as error:
        if not is_cut:
            raise
        log.warning("%s; reading only %d splats of it, the largest and most opaque", error, wish.max_gaussians)
        scene = load(path, wish.max_gaussians, frame=wish.frame, progress=progress)
    assert isinstance(scene, Scene)
    if kept is not None:
        return _cut(scene, kept.rows)
    if not is_cut or scene.n_splats <= wish.max_gaussians:  # type: ignore[operator]
        if wish.storage == "fp32":
            return scene
        packed = quantise(scene, arrange(scene.means)[0])
        if cache is not None:
            cache.keep(packed)
        return packed
    with open_backend() as backend:
        views = wish.views or scoring_views(scene, N_VIEWS, *VIEW_SIZE)
        log.info("choosing %d of %d splats by what %d views show", wish.max_gaussians, scene.n_splats, len(views))
        order, levels = arrange(scene.means, importance(scene, views, backend, progress), sizes(scene))
    packed = quantise(scene, order, levels)
    if cache is not None:
        cache.keep(packed)
    kept = prefix(packed, int(wish.max_gaussians or 0))
    return kept if wish.storage == "packed" else _cut(scene, kept.rows)


def _cut(scene: Scene, rows: np.ndarray) -> Scene:
    """Those rows of a scene, in the order of the file."""
    left_out = f"max_gaussians {len(rows):,}: left out {scene.n_splats - len(rows):,} splats that matter least"
    return dataclasses.replace(scene.take(np.sort(rows)), warnings=[*scene.warnings, left_out])
