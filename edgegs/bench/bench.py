"""Draw the same view with several contenders, side by side, and keep the time of every frame.

Contenders take turns: a few frames of one, a few of the next, round after round, so that a clock that drops or a
neighbour that wakes up slows all of them and not the one that was last.
"""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Callable, Deque, Dict, List, NamedTuple, Optional, Sequence, Tuple, cast

import numpy as np

from edgegs.backends.base import Backend, Buffer
from edgegs.backends.reference import ReferenceBackend
from edgegs.camera import Camera
from edgegs.errors import DeviceError
from edgegs.kernels.variants import AXES, LADDER, Variant, variant
from edgegs.pack.order import arrange
from edgegs.renderer import Renderer, Ticket
from edgegs.scene import Scene

#: Frames measured in a turn. One more is drawn before them: it finds the caches as another contender left them.
TURN = 5
#: Frames drawn in a row, for the frame rate of a backend that works on several at once.
BURST = 20


class Sample(NamedTuple):
    """Milliseconds of one frame: of each stage, of all of them, and from submission to the picture."""

    stage_ms: Dict[str, float]
    total_ms: float
    frame_ms: float


class Contender:
    """Whoever draws the view. ``draw`` once before asking for what follows from a frame.

    Attributes:
        name: unique among the contenders of a run.
        kind: ``variant`` or ``peer``.
        choices: axis -> choice of a variant; None for others.
        in_flight: frames that it works on at once in ``burst``.
        n_visible, n_instances: of the view; None where unknown.
        memory_bytes: of its buffers on the device; None where unknown.
    """

    name: str
    kind: str = "peer"
    choices: Optional[Dict[str, str]] = None
    in_flight: int = 1
    n_visible: Optional[int] = None
    n_instances: Optional[int] = None
    memory_bytes: Optional[int] = None

    def draw(self) -> Sample:
        """One frame, waited for."""
        raise NotImplementedError

    def burst(self, n_frames: int) -> float:
        """Frames a second, each submitted before the one before it is collected."""
        raise NotImplementedError

    def queued_ms(self, n_frames: int) -> Optional[float]:
        """Milliseconds of the device a frame, of frames in a row that nobody reads; None where that is not known."""
        return None

    def picture(self) -> np.ndarray:
        """(height, width, 3) uint8 BGR: the last frame."""
        raise NotImplementedError

    def close(self) -> None:
        """Give everything back."""


class _Metered:
    """A backend that counts the bytes it hands out."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.n_bytes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def alloc(self, label: str, shape: Sequence[int], dtype: Any) -> Buffer:
        buffer = self._backend.alloc(label, shape, dtype)
        self.n_bytes += buffer.n_bytes
        return buffer

    def free(self, buffer: Buffer) -> None:
        self._backend.free(buffer)
        self.n_bytes -= buffer.n_bytes


class RendererContender(Contender):
    """A renderer of ours, which ``__init__`` makes, and its last picture, which ``draw`` keeps."""

    kind = "variant"
    _renderer: Renderer
    _image: np.ndarray

    def queued_ms(self, n_frames: int) -> Optional[float]:
        """None where the backend works on one frame at a time: its stages' times are as good."""
        return self._renderer.queued_ms(n_frames) if self._renderer.backend.depth > 1 else None

    def picture(self) -> np.ndarray:
        return self._image

    def close(self) -> None:
        self._renderer.close()


class VariantContender(RendererContender):
    """One variant of the pipeline on one backend, which stays the caller's to close."""

    def __init__(self, backend: Backend, scene: Scene, camera: Camera, chosen: Variant) -> None:
        self.name = chosen.name
        self.choices = choices_of(chosen)
        self.in_flight = backend.depth
        self._camera = camera
        self._meter = _Metered(backend)
        meter = cast(Backend, self._meter)
        try:
            self._renderer = Renderer(meter, scene, camera.width, camera.height, combination(chosen))
        except DeviceError as error:
            raise DeviceError(f"{self.name}: {error}") from None

    def draw(self) -> Sample:
        try:
            frame = self._renderer.render(self._camera)
        except DeviceError as error:
            raise DeviceError(f"{self.name}: {error}") from None
        self._image, self.n_visible, self.n_instances = frame.image, frame.n_visible, frame.n_instances
        self.memory_bytes = self._meter.n_bytes
        return Sample(frame.stage_ms, sum(frame.stage_ms.values()), frame.frame_ms)

    def burst(self, n_frames: int) -> float:
        under_way: Deque[Ticket] = deque()
        arrivals: List[float] = []
        for _ in range(n_frames):
            if len(under_way) == self.in_flight:
                self._renderer.collect(under_way.popleft())
                arrivals.append(time.perf_counter())
            under_way.append(self._renderer.submit(self._camera))
        while under_way:
            self._renderer.collect(under_way.popleft())
            arrivals.append(time.perf_counter())
        # from the first picture on: filling the pipeline is no part of its rate
        return (len(arrivals) - 1) / (arrivals[-1] - arrivals[0])


def compared_ms(queued: Sequence[Optional[float]], total: Sequence[float]) -> List[float]:
    """The milliseconds a frame by which contenders are compared: in a queue that nobody reads where that is known of
    all of them, else all stages together."""
    known = [ms for ms in queued if ms]
    return known if len(known) == len(total) else list(total)


@dataclass
class Measurement:
    """What a contender's frames took, in the order drawn. ``rounds[i]`` is the round of ``samples[i]``, from 0."""

    contender: Contender
    samples: List[Sample] = field(default_factory=list)
    rounds: List[int] = field(default_factory=list)
    burst_fps: List[float] = field(default_factory=list)
    queued_ms: List[float] = field(default_factory=list)


def measure(
    contenders: Sequence[Contender],
    warmup: int,
    repeats: int,
    progress: Optional[Callable[[int, int], None]] = None,
) -> List[Measurement]:
    """Draw ``repeats`` frames with each contender, in turns of ``TURN``; each round begins with another one.

    Args:
        contenders: in the order of the result.
        warmup: frames drawn by each before anything is kept.
        repeats: frames kept of each.
        progress: called as ``progress(rounds_done, n_rounds)``.
    """
    measurements = [Measurement(contender) for contender in contenders]
    for contender in contenders:
        for _ in range(warmup):
            contender.draw()
    n_rounds = -(-repeats // TURN)
    for round_ in range(n_rounds):
        if progress:
            progress(round_, n_rounds)
        first = round_ % len(measurements)
        for measurement in measurements[first:] + measurements[:first]:
            contender = measurement.contender
            contender.draw()
            for _ in range(min(TURN, repeats - round_ * TURN)):
                measurement.samples.append(contender.draw())
                measurement.rounds.append(round_)
            if contender.in_flight > 1:
                measurement.burst_fps.append(contender.burst(BURST))
            queued = contender.queued_ms(BURST)
            if queued is not None:
                measurement.queued_ms.append(queued)
    if progress:
        progress(n_rounds, n_rounds)
    return measurements


def resolve(name: str, backend: str = "host", prefers_wide: bool = False, tensor_cores: bool = False) -> Variant:
    """The variant of that name: a rung of the ladder, a named one, a combination of choices, or ``auto``
    (the backend's default; see ``edgegs.kernels.variants.variant``).

    Raises:
        DeviceError: there is none.
    """
    for rung in LADDER:
        if rung.name == name:
            return rung
    return variant(name, backend, False, prefers_wide, tensor_cores)


def arranged(scene: Scene) -> Scene:
    """The scene in the order in which a packed one is kept (see edgegs/pack/order.py): neighbours side by side."""
    order, _ = arrange(scene.means)
    fields = ("means", "scales", "quats", "opacities", "sh")
    return dataclasses.replace(scene, **{name: getattr(scene, name)[order] for name in fields})


def choices_of(chosen: Variant) -> Dict[str, str]:
    """axis -> choice."""
    return {axis: getattr(chosen, axis) for axis in AXES}


def combination(chosen: Variant) -> str:
    """The variant's name by its choices, which every part understands."""
    return "-".join(choices_of(chosen).values())


def twin_picture(scene: Scene, camera: Camera, culling: str) -> np.ndarray:
    """(height, width, 3) uint8 BGR: the view by the float64 twin of the original pipeline with that culling."""
    with ReferenceBackend() as backend:
        renderer = Renderer(backend, scene, camera.width, camera.height, f"fp32-ref64-{culling}-exact-block")
        return renderer.render(camera).image


def compare(picture: np.ndarray, expected: np.ndarray) -> Tuple[Optional[float], int]:
    """PSNR in dB between two uint8 pictures (None when they are equal), and their largest difference in steps."""
    difference = picture.astype(np.float64) - expected
    error = float(np.mean(difference**2))
    return (None if error == 0 else float(10 * np.log10(255**2 / error))), int(np.abs(difference).max())
