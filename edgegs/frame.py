"""What one drawn frame is: the picture, and what it cost."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, Optional

import numpy as np

#: The pipeline's stages, in the order in which they run (see cuda/README.md).
STAGES = ("project", "duplicate", "sort", "ranges", "rasterize")


@dataclass(frozen=True)
class Frame:
    """One rendered frame.

    Attributes:
        image: (height, width, 3) uint8, BGR (OpenCV's order), C-contiguous. Never written to again.
        index: number of the frame since the renderer started, from 0.
        t_mono_ns: ``time.monotonic_ns()`` when the frame was complete.
        frame_ms: wall time from submission to the finished picture, milliseconds.
        stage_ms: milliseconds of each of ``STAGES``.
        n_splats: splats in the scene. n_visible: with at least one tile. n_instances: splat-tile pairs.
        redraws: how often the frame was drawn again because the instance buffer had to grow.
        image_f32: (height, width, 3) float32 RGB in 0..1 before rounding, when asked for.
        placeholder: drawn without a scene, while it loads.
        transmittance: (height, width) float32, what is left of the background, when asked for.
    """

    image: np.ndarray
    index: int
    t_mono_ns: int
    frame_ms: float
    stage_ms: Dict[str, float] = field(default_factory=dict)
    n_splats: int = 0
    n_visible: int = 0
    n_instances: int = 0
    redraws: int = 0
    placeholder: bool = False
    image_f32: Optional[np.ndarray] = None
    transmittance: Optional[np.ndarray] = None
