"""From a file to what is drawn: read, cut to a budget by importance, packed where the kernels want it so."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
from typing import Callable, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from edgegs.backends.base import Backend
from edgegs.camera import Camera
from edgegs.errors import DeviceError
from edgegs.pack.cache import SceneCache, digest_of
from edgegs.pack.importance import importance
from edgegs.pack.order import arrange, prefix, sizes
from edgegs.pack.packed import PackedScene, quantise
from edgegs.pack.upload import AnyScene
from edgegs.pack.views import scoring_views
from edgegs.scene import Scene, kind_of, load
from edgegs.scene.builder import TooLarge

log = logging.getLogger(__name__)

_SAY_EVERY_S = 10.0

#: Views that a scene is scored from where nobody named any, and their size in pixels.
N_VIEWS = 48
#: Views of a cameras.json that are used at most.
MAX_VIEWS = 96
VIEW_SIZE = (480, 360)
_LARGEST = "the largest and most opaque"

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

    A scene of which only some splats are wanted, and that does not fit memory whole, or not the device that would score
    it, is cut by the least opacity · (largest scale)² instead: a worse choice, and said so.

    Args:
        open_backend: gives a backend to score with, if that is needed.
        progress: called as ``progress(done, of)`` for each step anew, every few seconds; what it raises ends the work.

    Raises:
        SceneError, InputError, AccessError: as ``edgegs.scene.load``.
    """
    if kind_of(path) == "egs":
        return load(path, wish.max_gaussians, progress=progress, frame=wish.frame)
    if wish.storage == "fp32" and wish.max_gaussians is None:
        return load(path, frame=wish.frame, progress=progress)
    return _Preparation(path, wish, open_backend, progress).outcome()


class _Preparation:
    """A scene on its way through the cache, or into it."""

    def __init__(self, path: str, wish: Wish, open_backend: OpenBackend, progress: Optional[Progress]) -> None:
        self._path, self._wish, self._open_backend, self._progress = path, wish, open_backend, progress
        self._is_packed = wish.storage == "packed"

    def outcome(self) -> AnyScene:
        digest = digest_of(self._path, self._progress)
        known = self._find(digest) if digest else None
        if known is not None and self._is_packed:
            return known
        try:
            scene = self._load(None)
        except TooLarge as error:
            if known is not None:
                return known
            if self._wish.max_gaussians is None:
                raise
            log.warning("%s; reading only %d splats of it, %s", error, self._wish.max_gaussians, _LARGEST)
            scene = self._load(self._wish.max_gaussians)
            return quantise(scene, arrange(scene.means)[0], None, None, self._progress) if self._is_packed else scene
        if scene.sha256 != digest:  # it is of several files, or was replaced meanwhile
            known = self._find(scene.sha256)
        if known is None:
            return self._made(scene)
        return known if self._is_packed else _cut(scene, known.rows)

    def _find(self, digest: str) -> Optional[PackedScene]:
        """What was packed of that content before; it is still that content."""
        kept = SceneCache(digest, self._wish.options).find(self._wish.max_gaussians, self._progress)
        return None if kept is None else dataclasses.replace(kept, path=self._path, file_sha256=digest)

    def _load(self, max_gaussians: Optional[int]) -> Scene:
        return load(self._path, max_gaussians, frame=self._wish.frame, progress=self._progress).unpacked()

    def _made(self, scene: Scene) -> AnyScene:
        """Of a scene that was never packed before."""
        n = self._wish.max_gaussians
        if n is None or scene.n_splats <= n:
            return self._packed(scene, *arrange(scene.means)) if self._is_packed else scene
        try:
            scores = self._scores(scene, n)
        except DeviceError as error:
            log.warning("%s; choosing %s", error, _LARGEST)
            rows, _ = arrange(scene.means, np.zeros(scene.n_splats), sizes(scene), n)
            cut = _cut(scene, rows)
            return quantise(cut, arrange(cut.means)[0], None, None, self._progress) if self._is_packed else cut
        packed = prefix(self._packed(scene, *arrange(scene.means, scores, sizes(scene))), n)
        return packed if self._is_packed else _cut(scene, packed.rows)

    def _scores(self, scene: Scene, n: int) -> np.ndarray:
        with self._open_backend() as backend:
            if backend.name == "reference":
                raise DeviceError("no kernels to score with, and NumPy would take minutes (run `edgegs kernels build`)")
            views = self._wish.views or scoring_views(scene, N_VIEWS, *VIEW_SIZE)
            log.info("choosing %d of %d splats by what %d views show", n, scene.n_splats, len(views))
            scores = importance(scene, views, backend, _told(self._progress))
        if not scores.any():
            log.warning("%s: not one of %d views sees any of it; choosing %s", self._path, len(views), _LARGEST)
        return scores

    def _packed(self, scene: Scene, order: np.ndarray, levels: Tuple[int, ...]) -> PackedScene:
        """All of a scene, also kept for the next time."""
        is_scored = self._wish.max_gaussians is not None and scene.n_splats > self._wish.max_gaussians
        packed = quantise(scene, order, levels if is_scored else None, None, self._progress)
        SceneCache(scene.sha256, self._wish.options).keep(packed, self._progress)
        return packed


def _told(progress: Optional[Progress]) -> Progress:
    """Also tells the log, where that takes long."""
    said = time.monotonic()

    def tell(done: int, of: int) -> None:
        nonlocal said
        if progress is not None:
            progress(done, of)
        if time.monotonic() - said >= _SAY_EVERY_S:
            said = time.monotonic()
            log.info("choosing: %d of %d views", done, of)

    return tell


def _cut(scene: Scene, rows: np.ndarray) -> Scene:
    """Those rows of a scene, in the order of the file."""
    if len(rows) == scene.n_splats:
        return scene
    left_out = f"max_gaussians {len(rows):,}: left out {scene.n_splats - len(rows):,} splats that matter least"
    return dataclasses.replace(scene.take(np.sort(rows)), warnings=[*scene.warnings, left_out])
