"""One frame, top to bottom: camera, launches (edgegs/pipelines.py), picture.

Counts stay on the device; the host learns them with the finished picture. When the instances outgrew their
buffer, the frame is drawn again with a larger one: a frame is right or an error, never short of a splat.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from edgegs.backends.base import Backend, Buffer, Fetch, Params
from edgegs.camera import Camera
from edgegs.errors import DeviceError
from edgegs.frame import STAGES, Frame
from edgegs.kernels.variants import depth_bits, suits_wide, variant
from edgegs.pack import AnyScene, PackedScene, upload
from edgegs.pipelines import Launch, make_pipeline
from edgegs.room import MAX_INSTANCES, TILE, C, first_capacity, grown_capacity, most_splats, n_tiles, renderer_bytes


@dataclass
class Ticket:
    """A frame under way: where it is drawn, when it began, and what is coming back."""

    camera: Camera
    backdrop: Optional[np.ndarray]
    n_splats: int
    sh_degree: int
    slot: int
    started: float
    capacity: int
    marks: List[Tuple[str, Any, Any]]
    fetch: Fetch


class Renderer:
    """Draws one scene on one backend, at most at one size, and at less quality where a frame asks for it.

    Args:
        backend: who runs the kernels; stays the caller's to close.
        scene: is copied to the device, and not kept.
        width, height: of the largest picture, pixels.
        variant_name: see edgegs/kernels/variants.py.
        background: RGB, 0..1.
        keep_float: also give each frame's ``image_f32`` and ``transmittance``.
        takes_backdrop: whether a frame may be drawn over a picture (see ``submit``).
        keep_scores: add up how much each splat matters to the frames drawn by ``score``.
    """

    def __init__(
        self,
        backend: Backend,
        scene: AnyScene,
        width: int,
        height: int,
        variant_name: str = "auto",
        background: Sequence[float] = (0.0, 0.0, 0.0),
        keep_float: bool = False,
        takes_backdrop: bool = False,
        keep_scores: bool = False,
    ) -> None:
        self.backend = backend
        self.width, self.height = int(width), int(height)
        wide = suits_wide(scene.n_splats, self.width, self.height, backend.n_blocks)
        packed = isinstance(scene, PackedScene)
        self.variant = variant(variant_name, backend.name, packed, wide, backend.prefers_tensor_cores)
        if self.variant.needs_tensor_cores and not backend.has_tensor_cores:
            why = "only GPUs have them"
            if backend.name == "cuda":
                why = f"{backend.image} was not built for them (compute capability 8.0 or later)"
            raise DeviceError(f"render.variant: {self.variant.name!r} needs tensor cores, and {why}; write auto")
        self.n_splats, self.sh_degree = scene.n_splats, scene.sh_degree
        self.n_frames = 0
        self._size = (self.width, self.height)
        if max(self._size) > 0xFFFF * TILE:
            raise DeviceError(f"a picture of {self.width}x{self.height} has too many tiles")
        n = self.n_splats
        if keep_scores and self.variant.key == "bins":
            raise ValueError("scores are added up tile by tile: another key than bins")
        self._check_room(scene.sh_degree, takes_backdrop, keep_float, keep_scores)
        # the sizes below are products of Python integers: nothing wraps before MAX_INSTANCES refuses it
        self._pipeline = make_pipeline(backend, self.variant, n, self.width, self.height)
        self._buffers = dict(self._pipeline.buffers)
        self._scores: Optional[Buffer] = None
        if keep_scores:
            self._scores = self._buffers["splat_scores"] = backend.alloc("splat_scores", (n,), "u8")
            backend.upload(self._scores, np.zeros(n, np.uint64))
        # pictures have a slot for each frame that may be under way: one is read back while the next is drawn
        pictures: Dict[str, Any] = {"pixel_bgr": ((self.height, self.width, 3), "u1")}
        if keep_float:
            pictures["pixel_rgb"] = ((self.height, self.width, 3), "f4")
            pictures["pixel_transmittance"] = ((self.height, self.width), "f4")
        self._slots = [
            {name: backend.alloc(name, shape, dtype) for name, (shape, dtype) in pictures.items()}
            for _ in range(backend.depth)
        ]
        shape, dtype = pictures["pixel_bgr"]
        self._backdrops = [backend.alloc("pixel_backdrop", shape, dtype) for _ in self._slots if takes_backdrop]
        self._free_slots = list(range(backend.depth))
        self._scene = upload(backend, scene, self.variant.storage)
        self._sphere = bounding_sphere(scene)
        self._frame: Params = backend.params(
            "FrameParams",
            **self._buffers,
            **self._scene,
            background=[float(value) for value in background],
            n_splats=n,
            sh_degree=scene.sh_degree,
            antialiased=int(scene.antialiased),
        )
        self._plan: List[Launch] = []
        self._grow(first_capacity(n, self.variant.key))

    @property
    def axes(self) -> Tuple[str, ...]:
        """What frames may be drawn with less of: "scale" (a smaller camera), "splats" and "sh_degree" of ``submit``."""
        if self.backend.name == "reference":  # its twins take whole arrays
            return ()
        # fp32 rows of coefficients are as long as the degree that is drawn says
        return ("scale", "splats", "sh_degree") if self.variant.storage == "packed" else ("scale", "splats")

    @property
    def _n_tiles(self) -> int:
        """Tiles of the picture that is drawn now."""
        return n_tiles(*self._size)

    def _check_room(self, sh_degree: int, *keeps: bool) -> None:
        """Refuse a scene that cannot fit before anything is allocated, and say which budget would fit.

        Args:
            keeps: the last arguments of ``renderer_bytes``.
        """
        room = self.backend.free_memory()
        if room is None:
            return
        free, n_blocks, depth = room, self.backend.n_blocks, self.backend.depth

        def needed(n: int) -> int:
            return renderer_bytes(n, sh_degree, self.variant, self.width, self.height, n_blocks, depth, 0, *keeps)

        if needed(self.n_splats) > free:
            fits = most_splats(self.n_splats, lambda n: needed(n) <= free)
            raise DeviceError(
                f"{self.n_splats:,} splats need {needed(self.n_splats) / 1e6:.0f} MB of device memory, "
                f"{free / 1e6:.0f} MB are free; "
                + (f"scene.max_gaussians: {fits} would fit" if fits else "make the picture smaller")
            )

    def _grow(self, n_instances: int) -> None:
        if n_instances > MAX_INSTANCES:
            raise DeviceError(
                f"this view needs {n_instances:,} splat-tile pairs, more than {MAX_INSTANCES:,}; "
                "lower scene.max_gaussians or the picture size"
            )
        self._plan = []
        self._pipeline.grow(n_instances)
        self._capacity = n_instances
        self._plan = self._pipeline.plan(self._frame, *self._size)

    def render(self, camera: Camera, backdrop: Optional[np.ndarray] = None) -> Frame:
        """Draw one frame and wait for it; see ``submit``."""
        return self.collect(self.submit(camera, backdrop))

    def score(self, camera: Camera) -> Frame:
        """Draw a frame, wait for it, and add each splat's sum of (T · alpha)² over its pixels to ``scores``."""
        if "splat_scores" not in self._buffers:
            raise ValueError("this renderer was made without keep_scores")
        frame = self.render(camera)
        self.backend.launch("score_exact", self._n_tiles, self._frame)
        return frame

    def scores(self) -> np.ndarray:
        """(N,) float64: each splat's sum over frames and pixels of (T · alpha)², its share in what is seen."""
        return self.read("splat_scores").astype(np.float64) / C["SCORE_STEPS"]

    @property
    def launches(self) -> List[Launch]:
        """The launches of a frame like the last one, in their order."""
        return list(self._plan)

    def queued_ms(self, n_frames: int) -> float:
        """Milliseconds of the device for one of ``n_frames`` like the last one, launched one after the other.

        Nothing is read back, and no mark stands between the stages: what the kernels take where the host keeps ahead of
        them. The frame before must have been collected.
        """
        start = self.backend.mark()
        for _ in range(n_frames):
            for step in self._plan:
                self.backend.launch(step.kernel, step.n_blocks, step.params)
        end = self.backend.mark()
        self.backend.download(self._buffers["n_instances"])  # waits
        return self.backend.elapsed_ms(start, end) / n_frames

    def patch_counts(self) -> Dict[str, int]:
        """What drawing the last frame's patches took (key ``bins``), drawn and counted once more.

        Returns:
            ``walked``: list entries that patches looked at; ``picked``: of those, splats that touch the patch and came
            before all its pixels were finished; ``blended``: picked ones, and those that fill up a step, at each of its
            pixels.
        """
        if self.variant.key != "bins":
            raise ValueError(f"key {self.variant.key} has no patches")
        counts = self.backend.alloc("patch_counts", (3,), "u8")
        try:
            self.backend.upload(counts, np.zeros(3, np.uint64))
            self._frame.set(patch_counts=counts)
            step = self._plan[-1]
            self.backend.launch(self.variant.counting_entry, step.n_blocks, step.params)
            names = ("walked", "picked", "blended")
            found = dict(zip(names, (int(count) for count in self.backend.download(counts))))
        finally:
            self._frame.set(patch_counts=None)
            self.backend.free(counts)
        return found

    def submit(
        self,
        camera: Camera,
        backdrop: Optional[np.ndarray] = None,
        n_splats: Optional[int] = None,
        sh_degree: Optional[int] = None,
    ) -> Ticket:
        """Begin a frame. At most ``backend.depth`` may be under way; ``collect`` them in their order.

        Args:
            camera: of the renderer's size, or smaller: its picture is then drawn that small (see ``axes``).
            backdrop: (height, width, 3) uint8 BGR of the camera's size behind the splats, in place of the background's
                colour. Must not change until the frame is collected.
            n_splats: draw only so many, the first of the scene; None: all.
            sh_degree: of view-dependent colour; None: the scene's.
        """
        if backdrop is not None and not self._backdrops:
            raise ValueError("this renderer was made without takes_backdrop")
        if backdrop is not None and (backdrop.shape != (camera.height, camera.width, 3) or backdrop.dtype != np.uint8):
            raise ValueError(f"the backdrop is {backdrop.shape} {backdrop.dtype}")
        n = self.n_splats if n_splats is None else min(max(n_splats, 0), self.n_splats)
        degree = self.sh_degree if sh_degree is None else min(max(sh_degree, 0), self.sh_degree)
        less = {"splats": n < self.n_splats, "sh_degree": degree < self.sh_degree}
        if any(less[axis] and axis not in self.axes for axis in less):
            raise ValueError(f"{self.backend.name} with storage {self.variant.storage} cannot draw less than the scene")
        return self._draw(camera, backdrop, n, degree, self._free_slots.pop(), time.perf_counter())

    def _draw(
        self, camera: Camera, backdrop: Optional[np.ndarray], n_splats: int, sh_degree: int, slot: int, started: float
    ) -> Ticket:
        behind = None
        if backdrop is not None:
            behind = self._backdrops[slot]
            self.backend.send(behind, _at_the_start(backdrop, behind.shape))
        self._look_through(camera)
        self._frame.set(pixel_backdrop=behind, n_splats=n_splats, sh_degree=sh_degree, **self._slots[slot])
        marks = self._launch()
        counts = [self._buffers["n_instances"], self._buffers["n_visible"]]
        fetch = self.backend.fetch([*counts, *self._slots[slot].values()])
        return Ticket(camera, backdrop, n_splats, sh_degree, slot, started, self._capacity, marks, fetch)

    def collect(self, ticket: Ticket) -> Frame:
        """Wait for a frame; when its instances outgrew the buffer, grow it and draw the frame again."""
        redraws = 0
        while True:
            (n_instances, *_), (n_visible, *_), *pictures = ticket.fetch.wait()
            n_instances, n_visible = int(n_instances), int(n_visible)
            if n_instances <= ticket.capacity:
                break
            if n_instances > self._capacity:  # else a frame collected meanwhile has made the room
                self._grow(grown_capacity(n_instances))
            ticket = self._draw(
                ticket.camera, ticket.backdrop, ticket.n_splats, ticket.sh_degree, ticket.slot, ticket.started
            )
            redraws += 1
        self._free_slots.append(ticket.slot)
        size = (ticket.camera.height, ticket.camera.width)
        arrays = {name: _from_the_start(array, size) for name, array in zip(self._slots[ticket.slot], pictures)}
        stage_ms = dict.fromkeys(STAGES, 0.0)
        for stage, start, end in ticket.marks:
            stage_ms[stage] += self.backend.elapsed_ms(start, end)
        self.n_frames += 1
        return Frame(
            image=arrays["pixel_bgr"],
            index=self.n_frames - 1,
            t_mono_ns=time.monotonic_ns(),
            frame_ms=(time.perf_counter() - ticket.started) * 1e3,
            stage_ms=stage_ms,
            n_splats=ticket.n_splats,
            n_visible=n_visible,
            n_instances=n_instances,
            redraws=redraws,
            image_f32=arrays.get("pixel_rgb"),
            transmittance=arrays.get("pixel_transmittance"),
        )

    def _look_through(self, camera: Camera) -> None:
        size = (camera.width, camera.height)
        if size != self._size:
            smaller = 0 < size[0] <= self.width and 0 < size[1] <= self.height
            if size != (self.width, self.height) and not (smaller and "scale" in self.axes):
                raise ValueError(f"the camera is {camera.width}x{camera.height}")
            self._size = size
            self._plan = self._pipeline.plan(self._frame, *size)
        viewmat = np.asarray(camera.viewmat, np.float64)
        position = -viewmat[:3, :3].T @ viewmat[:3, 3]
        # packed32 quantises depth between the nearest and farthest that the scene's extent allows from here, by the
        # bits of the float, which rise like its logarithm: one floater far away does not coarsen what is near
        centre, radius = self._sphere
        distance = float(np.linalg.norm(position - centre))
        nearest = max(camera.near, distance - radius)
        farthest = max(min(camera.far, distance + radius), nearest)
        begin, end = (int(np.float32(depth).view(np.uint32)) for depth in (nearest, farthest))
        self._frame.set(
            viewmat=viewmat[:3].reshape(-1),
            camera_position=position,
            fx=camera.K[0, 0],
            fy=camera.K[1, 1],
            cx=camera.K[0, 2],
            cy=camera.K[1, 2],
            slope_x_max=C["FRUSTUM_SLACK"] * 0.5 * camera.width / camera.K[0, 0],
            slope_y_max=C["FRUSTUM_SLACK"] * 0.5 * camera.height / camera.K[1, 1],
            near_plane=camera.near,
            far_plane=camera.far,
            depth_begin=begin,
            depth_scale=(2 ** depth_bits(self._n_tiles) - 1) / max(end - begin, 1),
        )

    def _launch(self) -> List[Tuple[str, Any, Any]]:
        """The launches of a frame; returns (stage, mark before, mark after) of each run of one stage."""
        launch, mark = self.backend.launch, self.backend.mark
        marks: List[Tuple[str, Any, Any]] = []
        stage: Optional[str] = None
        start = mark()
        for step in self._plan:
            if stage is not None and step.stage != stage:
                end = mark()
                marks.append((stage, start, end))
                start = end
            stage = step.stage
            launch(step.kernel, step.n_blocks, step.params)
        marks.append((str(stage), start, mark()))
        return marks

    def read(self, name: str) -> np.ndarray:
        """A copy of one of the last frame's arrays, by its name in FrameParams (tests and measurements)."""
        return self.backend.download({**self._buffers, **self._pipeline.outputs}[name])

    def _all_buffers(self) -> List[Buffer]:
        buffers = [buffer for slot in self._slots for buffer in slot.values()]
        buffers += [*self._backdrops, *self._pipeline.all_buffers(), *([self._scores] if self._scores else [])]
        return buffers + [value for value in self._scene.values() if isinstance(value, Buffer)]

    @property
    def device_bytes(self) -> int:
        """Device memory in use, bytes."""
        return sum(buffer.n_bytes for buffer in self._all_buffers())

    def close(self) -> None:
        """Free the device memory; the backend stays open."""
        for buffer in self._all_buffers():
            self.backend.free(buffer)
        self._plan = []


def _from_the_start(array: np.ndarray, size: Tuple[int, int]) -> np.ndarray:
    """(height, width, …) of a smaller picture, which stands row by row at the start of a larger one's memory."""
    if array.shape[:2] == size:
        return array
    shape = (*size, *array.shape[2:])
    return array.reshape(-1)[: int(np.prod(shape))].reshape(shape)


def _at_the_start(picture: np.ndarray, shape: Tuple[int, ...]) -> np.ndarray:
    """The inverse; a picture of the full size is handed on as it is."""
    if picture.shape == shape:
        return picture
    whole = np.zeros(shape, picture.dtype)
    whole.reshape(-1)[: picture.size] = picture.reshape(-1)
    return whole


def bounding_sphere(scene: AnyScene) -> Tuple[np.ndarray, float]:
    """Centre (3,) and radius of a sphere that holds every splat's centre."""
    if scene.n_splats == 0:
        return np.zeros(3), 1.0
    low, high = (corner.astype(np.float64) for corner in scene.raw_bounds())
    return (low + high) / 2, float(np.linalg.norm(high - low)) / 2 + 1e-6
