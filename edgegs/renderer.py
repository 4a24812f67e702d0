"""One frame, top to bottom: the launches in the order of cuda/edgegs.cu.

    project -> duplicate -> sort -> ranges -> rasterize

Counts stay on the device; the host learns them with the finished picture. When the instances outgrew their
buffer, the frame is drawn again with a larger one: a frame is right or an error, never short of a splat.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any, Dict, List, Sequence

import numpy as np

from edgegs.backends.base import Backend, Buffer, Fetch, Params
from edgegs.camera import Camera
from edgegs.errors import DeviceError
from edgegs.frame import STAGES, Frame
from edgegs.kernels.headers import constants
from edgegs.kernels.variants import digit_plan, variant
from edgegs.pack import UPLOADS
from edgegs.scene import Scene

C = constants()
TILE = int(C["TILE_SIZE"])
#: Instances are counted in 32 bits on the device.
MAX_INSTANCES = 2**31 - 1
#: First guess of instances a splat; a wrong one costs one frame drawn twice.
INSTANCES_PER_SPLAT = 4
GROWTH = 1.25


@dataclass
class Ticket:
    """A frame under way: where it is drawn, when it began, and what is coming back."""

    camera: Camera
    slot: int
    started: float
    capacity: int
    marks: List[Any]
    fetch: Fetch


class Renderer:
    """Draws one scene at one size on one backend.

    Args:
        backend: who runs the kernels; stays the caller's to close.
        scene: is copied to the device, and not kept.
        width, height: of the picture, pixels.
        variant_name: see edgegs/kernels/variants.py.
        background: RGB, 0..1.
        keep_float: also give each frame's ``image_f32`` and ``transmittance``.
    """

    def __init__(
        self,
        backend: Backend,
        scene: Scene,
        width: int,
        height: int,
        variant_name: str = "auto",
        background: Sequence[float] = (0.0, 0.0, 0.0),
        keep_float: bool = False,
    ) -> None:
        self.backend = backend
        self.variant = variant(variant_name)
        self.width, self.height = int(width), int(height)
        self.n_splats = scene.n_splats
        self.n_frames = 0
        self._n_tiles_x, self._n_tiles_y = -(-self.width // TILE), -(-self.height // TILE)
        self._n_tiles = self._n_tiles_x * self._n_tiles_y
        if max(self._n_tiles_x, self._n_tiles_y) > 0xFFFF:
            raise DeviceError(f"a picture of {self.width}x{self.height} has too many tiles")
        self._entries = self.variant.entries
        self._buffers: Dict[str, Buffer] = {}
        self._instance_buffers: List[Buffer] = []
        n = self.n_splats
        # the sizes below are products of Python integers: nothing wraps before MAX_INSTANCES refuses it
        self._alloc("splat_means2d", (n, 2), "f4")
        self._alloc("splat_depths", (n,), "f4")
        self._alloc("splat_conics", (n, 4), "f4")
        self._alloc("splat_colors", (n, 3), "f4")
        self._alloc("splat_rects", (n, 4), "u2")
        self._alloc("splat_n_tiles", (n,), "u4")
        self._alloc("block_counts", (backend.n_blocks, 2), "u8")
        self._alloc("counters", (2,), "u8")
        self._alloc("tile_starts", (self._n_tiles + 1,), "u4")
        # pictures have a slot for each frame that may be under way: one is read back while the next is drawn
        pictures: Dict[str, Any] = {"pixel_bgr": ((self.height, self.width, 3), "u1")}
        if keep_float:
            pictures["pixel_rgb"] = ((self.height, self.width, 3), "f4")
            pictures["pixel_transmittance"] = ((self.height, self.width), "f4")
        self._slots = [
            {name: backend.alloc(name, shape, dtype) for name, (shape, dtype) in pictures.items()}
            for _ in range(backend.depth)
        ]
        self._free_slots = list(range(backend.depth))
        self._n_digits = int(C["SORT_DIGITS"])
        self._digits = {
            "digit_block_counts": backend.alloc("digit_block_counts", (self._n_digits, backend.n_blocks), "u4"),
            "digit_totals": backend.alloc("digit_totals", (self._n_digits,), "u4"),
        }
        self._buffers.update(UPLOADS[self.variant.storage](backend, scene))
        self._frame: Params = backend.params(
            "FrameParams",
            **self._buffers,
            background=[float(value) for value in background],
            n_splats=n,
            sh_degree=scene.sh_degree,
            width=self.width,
            height=self.height,
            n_tiles_x=self._n_tiles_x,
            n_tiles_y=self._n_tiles_y,
        )
        self._plan = digit_plan(self.variant.sort_bits(self._n_tiles), int(C["SORT_DIGIT_BITS"]))
        self._sorts: List[Params] = []
        self._grow(max(1 << 14, INSTANCES_PER_SPLAT * n))

    def _alloc(self, name: str, shape: Sequence[int], dtype: str) -> None:
        self._buffers[name] = self.backend.alloc(name, shape, dtype)

    def _grow(self, n_instances: int) -> None:
        """Make room for ``n_instances``: two buffers of keys and two of splat indices, used in turn by the sort."""
        if n_instances > MAX_INSTANCES:
            raise DeviceError(
                f"this view needs {n_instances:,} splat-tile pairs, more than {MAX_INSTANCES:,}; "
                "lower scene.max_gaussians or the picture size"
            )
        for buffer in self._instance_buffers:
            self.backend.free(buffer)
        self._capacity = n_instances
        key = f"u{self.variant.key_bits // 8}"
        keys = [self.backend.alloc("instance_keys", (n_instances,), key) for _ in range(2)]
        splats = [self.backend.alloc("instance_splats", (n_instances,), "u4") for _ in range(2)]
        self._instance_buffers = keys + splats
        last = len(self._plan) % 2
        self._frame.set(
            instance_keys_unsorted=keys[0],
            instance_splats_unsorted=splats[0],
            instance_keys=keys[last],
            instance_splats=splats[last],
            instance_capacity=n_instances,
        )
        self._sorts = [
            self.backend.params(
                "SortParams",
                keys_in=keys[index % 2],
                values_in=splats[index % 2],
                keys_out=keys[1 - index % 2],
                values_out=splats[1 - index % 2],
                **self._digits,
                n_items=self._buffers["counters"],
                capacity=n_instances,
                n_blocks=self.backend.n_blocks,
                first_bit=first_bit,
                n_bits=n_bits,
            )
            for index, (first_bit, n_bits) in enumerate(self._plan)
        ]

    def render(self, camera: Camera) -> Frame:
        """Draw one frame and wait for it; ``camera``'s size must be the renderer's."""
        return self.collect(self.submit(camera))

    def submit(self, camera: Camera) -> Ticket:
        """Begin a frame. At most ``backend.depth`` may be under way; ``collect`` them in their order."""
        return self._draw(camera, self._free_slots.pop(), time.perf_counter())

    def _draw(self, camera: Camera, slot: int, started: float) -> Ticket:
        self._frame.set(**self._slots[slot])
        self._look_through(camera)
        marks = self._launch()
        fetch = self.backend.fetch([self._buffers["counters"], *self._slots[slot].values()])
        return Ticket(camera, slot, started, self._capacity, marks, fetch)

    def collect(self, ticket: Ticket) -> Frame:
        """Wait for a frame; when its instances outgrew the buffer, grow it and draw the frame again."""
        redraws = 0
        while True:
            counters, *pictures = ticket.fetch.wait()
            n_instances, n_visible = (int(value) for value in counters)
            if n_instances <= ticket.capacity:
                break
            if n_instances > self._capacity:  # else a frame collected meanwhile has made the room
                self._grow(max(n_instances, min(MAX_INSTANCES, math.ceil(n_instances * GROWTH))))
            ticket = self._draw(ticket.camera, ticket.slot, ticket.started)
            redraws += 1
        self._free_slots.append(ticket.slot)
        arrays = dict(zip(self._slots[ticket.slot], pictures))
        marks = ticket.marks
        self.n_frames += 1
        return Frame(
            image=arrays["pixel_bgr"],
            index=self.n_frames - 1,
            t_mono_ns=time.monotonic_ns(),
            frame_ms=(time.perf_counter() - ticket.started) * 1e3,
            stage_ms={
                stage: self.backend.elapsed_ms(start, end) for stage, start, end in zip(STAGES, marks, marks[1:])
            },
            n_splats=self.n_splats,
            n_visible=n_visible,
            n_instances=n_instances,
            redraws=redraws,
            image_f32=arrays.get("pixel_rgb"),
            transmittance=arrays.get("pixel_transmittance"),
        )

    def _look_through(self, camera: Camera) -> None:
        if (camera.width, camera.height) != (self.width, self.height):
            raise ValueError(f"the camera is {camera.width}x{camera.height}")
        viewmat = np.asarray(camera.viewmat, np.float64)
        self._frame.set(
            viewmat=viewmat[:3].reshape(-1),
            camera_position=-viewmat[:3, :3].T @ viewmat[:3, 3],
            fx=camera.K[0, 0],
            fy=camera.K[1, 1],
            cx=camera.K[0, 2],
            cy=camera.K[1, 2],
            near_plane=camera.near,
            far_plane=camera.far,
        )

    def _launch(self) -> List[Any]:
        """The launches of a frame; returns six marks around the five stages."""
        launch, mark, entries, frame = self.backend.launch, self.backend.mark, self._entries, self._frame
        n_blocks = self.backend.n_blocks
        marks = [mark()]

        launch(entries["project"], n_blocks, frame)
        marks.append(mark())

        launch(entries["duplicate"], n_blocks, frame)
        marks.append(mark())

        for digit in self._sorts:
            launch(entries["sort_count"], n_blocks, digit)
            launch(entries["sort_scan"], self._n_digits, digit)
            launch(entries["sort_scatter"], n_blocks, digit)
        marks.append(mark())

        launch(entries["ranges"], -(-(self._n_tiles + 1) // int(C["RANGES_THREADS"])), frame)
        marks.append(mark())

        launch(entries["rasterize"], self._n_tiles, frame)
        marks.append(mark())
        return marks

    def read(self, name: str) -> np.ndarray:
        """A copy of one of the last frame's arrays, by its name in FrameParams (tests and measurements)."""
        last = len(self._plan) % 2
        instances = {"instance_keys": self._instance_buffers[last], "instance_splats": self._instance_buffers[2 + last]}
        return self.backend.download({**self._buffers, **instances}[name])

    def close(self) -> None:
        """Free the device memory; the backend stays open."""
        pictures = [buffer for slot in self._slots for buffer in slot.values()]
        for buffer in [*self._buffers.values(), *self._instance_buffers, *pictures, *self._digits.values()]:
            self.backend.free(buffer)
        self._buffers, self._instance_buffers, self._slots = {}, [], []
