"""What a sweep draws: scenes and views as the daemon would have them, pictures at a rate, and what they took."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Callable, Deque, Dict, Generator, List, Optional

import numpy as np

from edgegs.backends.base import Backend
from edgegs.bench.campaign import MADE
from edgegs.camera import Camera, build_path
from edgegs.frame import STAGES, Frame
from edgegs.kernels.variants import Variant
from edgegs.pack import AnyScene
from edgegs.renderer import Renderer, Ticket

log = logging.getLogger(__name__)

_FOV_Y_DEG = 60.0


@dataclass
class Drawn:
    """Something that is drawn, on the device. ``depth``: pictures that are worked on at once."""

    renderer: Renderer
    camera: Camera
    scene: AnyScene
    variant: Variant
    depth: int

    def facts(self) -> Dict[str, Any]:
        """What of the scene stands in the results."""
        return {name: getattr(self.scene, name) for name in ("format", "sha256", "n_splats", "sh_degree")}

    def frames(self, fps_cap: float, pause: Callable[[float], Any]) -> Generator[Frame, None, None]:
        """Pictures as they are finished, as fast as they come or at the cap, without end. Close it.

        Args:
            fps_cap: pictures a second at most; 0 is none.
            pause: waits for so many seconds; may raise to end all. Called before each picture.
        """
        under_way: Deque[Ticket] = deque()
        period_s = 1.0 / fps_cap if fps_cap > 0 else 0.0
        due = time.monotonic()
        try:
            while True:
                if under_way and (len(under_way) == self.depth or time.monotonic() < due):
                    yield self.renderer.collect(under_way.popleft())
                    continue
                pause(due - time.monotonic() if period_s else 0.0)
                if period_s:  # a late picture is not made up for
                    due = max(due + period_s, time.monotonic())
                under_way.append(self.renderer.submit(self.camera))
        finally:
            while under_way:
                self.renderer.collect(under_way.popleft())


@dataclass
class Pictures:
    """What the frames of a measurement took, in the order finished."""

    t_ns: List[int] = field(default_factory=list)
    frame_ms: List[float] = field(default_factory=list)
    stage_ms: Dict[str, List[float]] = field(default_factory=dict)
    n_visible: int = 0
    n_instances: int = 0
    redraws: int = 0

    def add(self, frame: Frame) -> None:
        self.t_ns.append(frame.t_mono_ns)
        self.frame_ms.append(frame.frame_ms)
        for stage, milliseconds in frame.stage_ms.items():
            self.stage_ms.setdefault(stage, []).append(milliseconds)
        self.n_visible += frame.n_visible
        self.n_instances += frame.n_instances
        self.redraws += frame.redraws

    def stage_s(self) -> Dict[str, float]:
        """Seconds that each stage took of all."""
        return {stage: sum(times) / 1e3 for stage, times in self.stage_ms.items()}

    def figures(self, begin_ns: int, end_ns: int) -> Dict[str, Any]:
        """The window's figures, from the picture finished at ``begin_ns`` to the one at ``end_ns``."""
        n = len(self.t_ns)
        window_s = (end_ns - begin_ns) / 1e9
        return {
            "window_s": round(window_s, 6),
            "frames": n,
            "fps": round(n / window_s, 4),
            "frame_ms": _percentiles(self.frame_ms),
            "interval_ms": _percentiles(np.diff([begin_ns, *self.t_ns]) / 1e6),
            "stage_ms": {stage: _percentiles(self.stage_ms[stage]) for stage in STAGES if stage in self.stage_ms},
            "n_visible": round(self.n_visible / n),
            "n_instances": round(self.n_instances / n),
            "redraws": self.redraws,
        }


def _percentiles(values: Any) -> Dict[str, float]:
    values = np.asarray(values, np.float64)
    p50, p95, p99 = np.percentile(values, (50, 95, 99))
    named = (("p50", p50), ("p95", p95), ("p99", p99), ("max", values.max()), ("mean", values.mean()))
    return {name: round(float(value), 5) for name, value in named}


def read_scene(path: str, splats: Optional[int], storage: str, backend: Backend) -> AnyScene:
    """A scene, made or read, in the form in which the daemon would draw it."""
    from edgegs.pack.order import arrange
    from edgegs.pack.packed import quantise
    from edgegs.pack.prepare import Wish, prepare
    from edgegs.scene.synth import dial, room

    if path in MADE:
        assert splats is not None  # the campaign's model asks for it
        made = dial(splats, 0) if path == "dial" else room(splats, 0)
        return quantise(made, arrange(made.means)[0]) if storage == "packed" else made
    scene = prepare(path, Wish(storage, splats), lambda: contextlib.nullcontext(backend))
    for warning in scene.warnings:
        log.warning("%s", warning)
    return scene.unpacked() if storage == "fp32" else scene


def camera_of(path: str, scene: AnyScene, width: int, height: int) -> Camera:
    """The view that belongs to a scene: its own, or the first of the orbit that ``edgegs run`` would make."""
    from edgegs.scene.synth import dial_camera, room_camera

    if path in MADE:
        return Camera(*(dial_camera if path == "dial" else room_camera)(width, height), width, height)
    orbit = {"kind": "orbit", "up": scene.up}
    return build_path(orbit, width, height, _FOV_Y_DEG, scene_bounds=scene.bounds()).camera_at(0.0)
