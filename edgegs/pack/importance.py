"""How much each splat matters: its share in what is seen, summed over views and pixels."""

from __future__ import annotations

from typing import Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np

from edgegs.backends.base import Backend
from edgegs.camera import Camera
from edgegs.pack.upload import AnyScene
from edgegs.renderer import Renderer

#: Draws and scores alike on every backend: nothing is approximated but where a tile's edge is reached.
VARIANT = "exact"


def importance(
    scene: AnyScene,
    cameras: Sequence[Camera],
    backend: Backend,
    progress: Optional[Callable[[int, int], None]] = None,
) -> np.ndarray:
    """(N,) float64: Σ over views and pixels of (T · alpha)², T the transmittance before the splat.

    Every view counts the same, whatever its size: the sum over its pixels is divided by their number.

    Args:
        progress: called as ``progress(views_done, n_views)`` after each view; what it raises ends the scoring.

    Raises:
        DeviceError: the scene does not fit.
    """
    scores = np.zeros(scene.n_splats)
    by_size: Dict[Tuple[int, int], List[Camera]] = {}
    for camera in cameras:
        by_size.setdefault((camera.width, camera.height), []).append(camera)
    n_done = 0
    for (width, height), views in by_size.items():
        renderer = Renderer(backend, scene, width, height, VARIANT, keep_scores=True)
        try:
            for camera in views:
                renderer.score(camera)
                n_done += 1
                if progress is not None:
                    progress(n_done, len(cameras))
            scores += renderer.scores() / (width * height)
        finally:
            renderer.close()
    return scores
