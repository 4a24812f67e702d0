"""Other renderers, drawn beside ours: gsplat of PyPI, where it and a torch with CUDA are installed.

A peer runs in a process of its own, so that its CUDA context, its compiler and its crashes stay its own. Only one of
both processes works at a time: the peer draws when asked.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import multiprocessing
import os
import time
from typing import Any, Dict, Tuple

import numpy as np

from edgegs.bench.bench import Contender, Sample
from edgegs.camera import Camera
from edgegs.errors import DeviceError
from edgegs.scene import Scene

PEERS = ("gsplat",)
#: Draws by which the faster of gsplat's two modes is found.
TRIAL = 10


def open_peer(name: str, backend_name: str, scene: Scene, camera: Camera) -> Contender:
    """A peer ready to draw.

    Raises:
        DeviceError: it cannot be measured here; the message says why, in one line.
    """
    assert name in PEERS
    if backend_name != "cuda":
        raise DeviceError(f"peer {name}: not measured: it needs a GPU, and the backend here is {backend_name}")
    for package in ("torch", name):
        if importlib.util.find_spec(package) is None:
            raise DeviceError(f"peer {name}: not measured: {package} is not installed; `pip install torch {name}`")
    return GsplatPeer(scene, camera)


class GsplatPeer(Contender):
    """gsplat's ``rasterization`` of the same splats and view, at its own defaults."""

    def __init__(self, scene: Scene, camera: Camera) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, scene, camera), daemon=True)
        self._process.start()
        theirs.close()
        try:
            self.name, self.n_instances = self._answer()
        except BaseException:
            self.close()
            raise

    def _answer(self) -> Any:
        try:
            done, answer = self._pipe.recv()
        except (EOFError, OSError):
            done, answer = False, "its process ended"
        if not done:
            raise DeviceError(f"peer gsplat: not measured: {answer}")
        return answer

    def _ask(self, what: str) -> Any:
        with contextlib.suppress(OSError):  # a process that has gone is told by the missing answer
            self._pipe.send(what)
        return self._answer()

    def draw(self) -> Sample:
        total_ms, frame_ms, self.memory_bytes = self._ask("draw")
        return Sample({}, total_ms, frame_ms)

    def picture(self) -> np.ndarray:
        return np.asarray(self._ask("picture"))

    def close(self) -> None:
        self._pipe.close()
        self._process.join(5)
        if self._process.is_alive():
            self._process.terminate()
            self._process.join()


def serve(pipe: Any, scene: Scene, camera: Camera) -> None:
    """The peer's process: answers (True, answer) to each question, (False, why) when something fails, then ends."""
    os.dup2(2, 1)  # what its compiler prints is no part of the answer on stdout
    try:
        gsplat = _Gsplat(scene, camera)
        pipe.send((True, (gsplat.name, gsplat.n_instances)))
        while True:
            question = pipe.recv()
            pipe.send((True, gsplat.draw() if question == "draw" else gsplat.image))
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        return
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        with contextlib.suppress(OSError):
            pipe.send((False, f"{type(error).__name__}: {lines[0]}"))


class _Gsplat:
    def __init__(self, scene: Scene, camera: Camera) -> None:
        torch: Any = importlib.import_module("torch")
        if not torch.cuda.is_available():
            raise RuntimeError("this torch sees no CUDA device")
        gsplat: Any = importlib.import_module("gsplat")
        self._torch, self._rasterization = torch, gsplat.rasterization
        self._splats: Dict[str, Any] = {
            name: torch.from_numpy(np.array(array, np.float32)).cuda()
            for name, array in (
                ("means", scene.means),
                ("quats", scene.quats),
                ("scales", scene.scales),
                ("opacities", scene.opacities),
                ("colors", scene.sh),
                ("viewmats", camera.viewmat[None]),
                ("Ks", camera.K[None]),
            )
        }
        self._view: Dict[str, Any] = {
            "width": camera.width,
            "height": camera.height,
            "near_plane": camera.near,
            "far_plane": camera.far,
            "sh_degree": scene.sh_degree,
        }
        self.image = np.zeros((camera.height, camera.width, 3), np.uint8)
        self.n_instances = 0
        # which of its modes is faster depends on the scene: it is shown at its best
        modes = {packed: self._trial(packed) for packed in (True, False)}
        self._view["packed"] = modes[True] <= modes[False]
        mode = "packed" if self._view["packed"] else "unpacked"
        self.name = f"gsplat {gsplat.__version__} {mode}"

    def _trial(self, packed: bool) -> float:
        self._view["packed"] = packed
        return float(np.median([self.draw()[0] for _ in range(2 * TRIAL)][TRIAL:]))

    def draw(self) -> Tuple[float, float, int]:
        """(ms on the device until the bytes are there, ms until the host has them, bytes of device memory)."""
        torch = self._torch
        began = time.perf_counter()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        with torch.no_grad():
            start.record()
            colors, _, meta = self._rasterization(**self._splats, **self._view)
            image = (colors[0].clamp(0, 1) * 255 + 0.5).to(torch.uint8).flip(-1).contiguous()
            end.record()
            self.image = image.cpu().numpy()
        frame_ms = (time.perf_counter() - began) * 1e3
        self.n_instances = int(meta["flatten_ids"].numel())
        return float(start.elapsed_time(end)), frame_ms, int(torch.cuda.max_memory_allocated())
