"""How far the pictures of a scene made smaller are from those of the whole one."""

from __future__ import annotations

import math
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from edgegs.backends.base import Backend
from edgegs.camera import Camera
from edgegs.pack.packed import PackedScene
from edgegs.pack.upload import AnyScene
from edgegs.renderer import Renderer

#: Draw the scenes, each as it lies in memory: what differs is the scenes, not what a fast variant makes of them.
VARIANT, PACKED_VARIANT = "exact", "packed-split-tight-exact-dual"
#: Pictures are kept with this many steps from 0 to 1 (16 bits): their rounding is 107 dB down.
STEPS = 65535

Progress = Callable[[int, int], None]


class QualityReport(NamedTuple):
    """PSNR of one scene's pictures against another's.

    Attributes:
        psnr_db: over all views: of the mean of their mean squared errors. Infinite where no pixel differs.
        views_db: of each view, in the order of the cameras.
    """

    psnr_db: float
    views_db: Tuple[float, ...]

    @property
    def worst(self) -> int:
        """The view that differs most."""
        return int(np.argmin(self.views_db))


class Judge:
    """Compares scenes with one whole scene, whose pictures are drawn once.

    Pictures are what a viewer gets, before it is rounded to bytes: the float picture, clipped to 0..1, kept in 16
    bits. It takes 6 bytes a pixel and view; the scenes are on the device one at a time.

    Args:
        full: what to compare with; not kept.
        cameras: at least one, of any sizes.
        backend: draws; stays the caller's.
        background: RGB, 0..1.
        progress: called as ``progress(views_done, n_views)`` after each view; what it raises ends the drawing.

    Raises:
        DeviceError: the scene does not fit.
    """

    def __init__(
        self,
        full: AnyScene,
        cameras: Sequence[Camera],
        backend: Backend,
        background: Sequence[float] = (0.0, 0.0, 0.0),
        progress: Optional[Progress] = None,
    ) -> None:
        if not cameras:
            raise ValueError("there is no view to judge by")
        self._cameras, self._backend, self._background = list(cameras), backend, tuple(background)
        self._pictures: List[np.ndarray] = [np.empty((0, 0, 3), np.uint16)] * len(cameras)

        def keep(index: int, picture: np.ndarray) -> None:
            self._pictures[index] = picture

        self._draw(full, keep, progress)

    def compare(self, scene: AnyScene, progress: Optional[Progress] = None) -> QualityReport:
        """PSNR of a scene's pictures against the whole one's.

        Raises:
            DeviceError: the scene does not fit.
        """
        errors = np.zeros(len(self._cameras))

        def measure(index: int, picture: np.ndarray) -> None:
            errors[index] = mean_squared_error(picture, self._pictures[index])

        self._draw(scene, measure, progress)
        return QualityReport(decibels(float(errors.mean())), tuple(decibels(float(error)) for error in errors))

    def psnr_db(self, scene: AnyScene) -> float:
        """dB over all views; see ``QualityReport``."""
        return self.compare(scene).psnr_db

    def _draw(
        self, scene: AnyScene, take: Callable[[int, np.ndarray], None], progress: Optional[Progress]
    ) -> None:
        """Call ``take`` with each view's number and picture (height, width, 3) uint16, RGB."""
        by_size: Dict[Tuple[int, int], List[int]] = {}
        for index, camera in enumerate(self._cameras):
            by_size.setdefault((camera.width, camera.height), []).append(index)
        variant = PACKED_VARIANT if isinstance(scene, PackedScene) else VARIANT
        n_done = 0
        for (width, height), views in by_size.items():
            renderer = Renderer(
                self._backend, scene, width, height, variant, background=self._background, keep_float=True
            )
            try:
                for index in views:
                    picture = renderer.render(self._cameras[index]).image_f32
                    assert picture is not None
                    take(index, np.rint(np.clip(picture, 0, 1) * STEPS).astype(np.uint16))
                    n_done += 1
                    if progress is not None:
                        progress(n_done, len(self._cameras))
            finally:
                renderer.close()


def psnr_against(
    full: AnyScene,
    reduced: AnyScene,
    cameras: Sequence[Camera],
    backend: Backend,
    background: Sequence[float] = (0.0, 0.0, 0.0),
) -> QualityReport:
    """PSNR of ``reduced`` against ``full``: ``Judge`` for one comparison."""
    return Judge(full, cameras, backend, background).compare(reduced)


def mean_squared_error(one: np.ndarray, other: np.ndarray) -> float:
    """Of two pictures uint16, as if they were 0..1."""
    difference = one.astype(np.int32) - other
    return float(np.mean(np.square(difference, dtype=np.float64))) / STEPS**2


def decibels(error: float) -> float:
    """PSNR, dB, of a mean squared error of values from 0 to 1."""
    return -10 * math.log10(error) if error > 0 else math.inf
