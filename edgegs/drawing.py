"""What frames are drawn with: a scene on a device, a camera that moves through it, a picture behind it.

Made from a configuration, step by step, because each step may fail for a reason of its own, and because a reload makes
only what has changed.
"""

from __future__ import annotations

import logging
import os
import threading
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Callable, Dict, NamedTuple, Optional, Tuple

import numpy as np

from edgegs.backends import create, severity
from edgegs.backends.base import Backend
from edgegs.camera import Camera, InputEvent, PosePath, build_path
from edgegs.choosing import choose_variant, decided, task_of
from edgegs.config import Config
from edgegs.errors import DeviceError, DeviceLost, EdgegsError
from edgegs.frame import Frame
from edgegs.governor import Ladder, Setting, build_ladder
from edgegs.kernels.variants import variant
from edgegs.pack import AnyScene, PackedScene
from edgegs.pack.prepare import OpenBackend, prepare
from edgegs.renderer import Renderer, Ticket
from edgegs.tuned import Board

if TYPE_CHECKING:
    from edgegs.capture import Capture

log = logging.getLogger(__name__)

Signature = Tuple[int, int, int]


class SceneFacts(NamedTuple):
    """What is kept of a scene once its arrays are on the device.

    Attributes:
        path, sha256, n_splats: for the log and ``/status``.
        bounds, up: for a camera path that leaves them open; see ``Scene``.
        signature: of its file when it was read: a file that was replaced has another one. None: unknown.
        levels: rising counts of splats of which a prefix is the best choice; empty without an order of importance.
        sh_degree: of view-dependent colour.
        variant: that it was prepared for, and is drawn with: ``auto`` where that leaves it to the renderer.
        board: that it was prepared for.
    """

    path: str
    sha256: str
    n_splats: int
    bounds: Tuple[np.ndarray, float]
    up: Tuple[float, float, float]
    signature: Optional[Signature]
    levels: Tuple[int, ...] = ()
    sh_degree: int = 0
    variant: str = "auto"
    board: Board = Board()


def load_scene(
    config: Config, board: Board, open_scorer: OpenBackend, progress: Callable[[int, int], None]
) -> Tuple[AnyScene, SceneFacts]:
    """Read the scene of a configuration and say what was dropped of it.

    Args:
        board: what will draw it.
        open_scorer: gives a backend that may draw meanwhile; used where ``scene.max_gaussians`` has to choose.
        progress: called as ``progress(done, of)``; may raise, to end that.

    Raises:
        SceneError, InputError, AccessError, DeviceError: as ``edgegs.pack.prepare``.
    """
    settings = config.scene
    log.info("loading %s", settings.path)
    seen = signature(settings.path)
    task = task_of(config, board)
    name, answer = choose_variant(config, task, progress)
    if answer is not None:
        log.info("%s", answer.says())
    storage = variant(name, board.backend).storage
    scene = prepare(settings.path, task.wish._replace(storage=storage), open_scorer, progress)
    for warning in scene.warnings:
        log.warning("%s", warning)
    for cause, rows in scene.dropped.items():
        log.warning("%s: dropped %d of %d rows: %s", settings.path, rows, scene.n_rows, cause)
    return scene, facts_of(scene, seen, name, board)


def facts_of(scene: AnyScene, seen: Optional[Signature], variant_name: str, board: Board) -> SceneFacts:
    """What is kept of a scene; the arguments as the attributes of ``SceneFacts``."""
    levels = scene.levels if isinstance(scene, PackedScene) and scene.is_scored else ()
    return SceneFacts(
        scene.path, scene.sha256, scene.n_splats, scene.bounds(), scene.up, seen, levels, scene.sh_degree,
        variant_name, board,
    )  # fmt: skip


def signature(path: str) -> Optional[Signature]:
    """Tells a file from the one that replaces it."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def open_backend(config: Config) -> Backend:
    """Open what draws and say why it was chosen; raises DeviceError."""
    backend, why = create(config.render.backend, config.render.threads)
    log.log(severity(config.render.backend, backend), "%s", why)
    return backend


def make_renderer(backend: Backend, scene: AnyScene, config: Config) -> Renderer:
    """Bring a scene to the device; raises DeviceError when it does not fit, and leaves nothing behind."""
    camera, render = config.camera, config.render
    return Renderer(
        backend,
        scene,
        camera.width,
        camera.height,
        render.variant,
        render.background,
        takes_backdrop=camera.background is not None,
    )


def make_path(config: Config, scene: SceneFacts) -> PosePath:
    """The camera's path, not opened yet; errors as ``build_path``."""
    camera = config.camera
    return build_path(
        {"kind": "orbit", "up": scene.up} if camera.path is None else camera.path.model_dump(),
        camera.width,
        camera.height,
        camera.fov_y_deg,
        camera.near,
        camera.far,
        scene_bounds=scene.bounds,
    )


def make_capture(config: Config) -> Optional[Capture]:
    """The live picture behind the scene, not started yet; None where there is none."""
    camera = config.camera
    if camera.background is None:
        return None
    from edgegs.capture import Capture  # brings OpenCV, which a run without a background may not need

    source = camera.background
    return Capture(source.uri, camera.width, camera.height, fit=source.fit, fps=source.fps)


class Show:
    """A scene on a device, the camera that moves through it, and the picture behind it. The loop's thread owns it.

    Args:
        config: what to show.
        progress: called as ``progress(done, of)`` while a scene is read or scored; may raise, to end that.

    Attributes:
        n_faults: how often the device was opened again.
        setting: at what quality frames are drawn that begin from now on; None: all there is.
    """

    def __init__(self, config: Config, progress: Callable[[int, int], None]) -> None:
        self.config = config
        self.scene: Optional[SceneFacts] = None
        self.facts: Dict[str, Any] = {}
        self.n_faults = 0
        self.setting: Optional[Setting] = None
        self._progress = progress
        self._backend: Optional[Backend] = None
        self._renderer: Optional[Renderer] = None
        self._path: Optional[PosePath] = None
        self._camera: Optional[Camera] = None
        self._capture: Optional[Capture] = None

    def open_backend(self) -> None:
        """Open what draws; raises DeviceError."""
        self._backend = open_backend(self.config)

    def load(self) -> AnyScene:
        """Read the scene, after ``open_backend``; errors as ``load_scene``."""
        backend = self._backend
        assert backend is not None
        scene, self.scene = load_scene(self.config, Board.of(backend), lambda: nullcontext(backend), self._progress)
        return scene

    def open_inputs(self) -> None:
        """Open what moves the camera, and the picture behind; after ``load``."""
        assert self.scene is not None
        self._path = make_path(self.config, self.scene)
        self._path.open()
        self._capture = make_capture(self.config)
        if self._capture is not None:
            self._capture.start()

    def bring(self, scene: AnyScene) -> None:
        """Bring the scene to the device; raises DeviceError."""
        assert self._backend is not None
        assert self.scene is not None
        self._renderer = make_renderer(self._backend, scene, decided(self.config, self.scene.variant))
        self._describe()

    def reopen_device(self) -> None:
        """Let go of a device that failed, whatever it says, and open it again with the scene.

        Raises:
            DeviceLost: it cannot be opened again by this process. After a fault of a kernel (an illegal address, a
                launch that timed out) CUDA refuses every new context to the process, so another one has to go on.
            DeviceError: it can, but the scene finds no room there.
        """
        self.n_faults += 1
        name = self.config.render.backend if self._backend is None else self._backend.name
        for part in (self._renderer, self._backend):
            try:
                if part is not None:
                    part.close()
            except Exception as error:  # the context is gone: nothing of it can be freed in order
                log.debug("closing a device that failed: %s", error)
        self._renderer = self._backend = None
        try:
            self._backend = create(name, self.config.render.threads)[0]
        except DeviceError as error:
            raise DeviceLost(str(error)) from None
        self.bring(self.load())

    @property
    def depth(self) -> int:
        """Frames worth having under way at once."""
        return self._drawn_with.backend.depth

    @property
    def device_bytes(self) -> int:
        """Device memory that is in use here; 0 while there is no device."""
        return 0 if self._renderer is None else self._renderer.device_bytes

    @property
    def _drawn_with(self) -> Renderer:
        assert self._renderer is not None
        return self._renderer

    @property
    def gpu(self) -> Optional[str]:
        """PCI bus id of the card that draws; None where none does."""
        return getattr(self._backend, "pci_bus_id", None)

    @property
    def backend_name(self) -> str:
        """Who draws: cuda, host or reference."""
        assert self._backend is not None
        return self._backend.name

    def begin(self, path_s: float, paused: bool = False) -> Ticket:
        """Begin the frame of a moment of the camera path, seconds; raises DeviceError.

        While ``paused`` the camera stays where it was, whatever moves it.
        """
        if self._camera is None or not paused:
            assert self._path is not None
            self._camera = self._path.camera_at(path_s)
        backdrop = None if self._capture is None else self._capture.latest()
        setting = self.setting
        if setting is None:
            return self._drawn_with.submit(self._camera, backdrop)
        camera = _smaller(self._camera, setting.scale)
        if backdrop is not None and (camera.width, camera.height) != backdrop.shape[1::-1]:
            import cv2  # whoever has a backdrop has OpenCV

            backdrop = cv2.resize(backdrop, (camera.width, camera.height), interpolation=cv2.INTER_AREA)
        return self._drawn_with.submit(camera, backdrop, setting.n_splats, setting.sh_degree)

    def ladder(self, target_fps: Optional[float]) -> Ladder:
        """The steps of quality that this scene and renderer have to give up; ``target_fps`` is to be held."""
        scene = self.scene
        assert scene is not None
        fps = self.config.render.target_fps
        axes = (*self._drawn_with.axes, "fps")
        return build_ladder(scene.n_splats, scene.levels, scene.sh_degree, fps, target_fps, axes)

    def collect(self, ticket: Ticket) -> Frame:
        """Wait for a frame; raises DeviceError."""
        return self._drawn_with.collect(ticket)

    def handle(self, event: InputEvent) -> None:
        """Hand a key or a drag to the camera."""
        if self._path is not None:
            self._path.handle(event)

    def swap(self, config: Config, scene: Optional[AnyScene], facts: SceneFacts) -> None:
        """Show what another configuration says, from the next frame on; no frame may be under way.

        What may fail comes first, and leaves everything as it was. The old scene is let go of when the new one is on
        the device, so both must fit there.

        Args:
            scene: to bring to the device; None where the one that is there stays.
            facts: of the scene that is shown from now on.
        """
        assert self._backend is not None
        old = self.config.camera
        path = make_path(config, facts) if config.camera != old or scene is not None else None
        capture = self._capture
        if _behind(config) != _behind(self.config):
            capture = make_capture(config)
        if scene is not None:
            renderer = make_renderer(self._backend, scene, decided(config, facts.variant))
            self._drawn_with.close()
            self._renderer = renderer
        self.config, self.scene = config, facts
        self._describe()
        if path is not None:
            if self._path is not None:
                self._path.close()  # before the new one opens, which may listen at the same port
            self._path, self._camera = path, None
            try:
                path.open()
            except EdgegsError as error:  # the old one is gone: this one shows its home
                log.error("camera.path: %s", error)
        if capture is not self._capture:
            lost, self._capture = self._capture, capture
            _replace_capture(lost, capture)

    def _describe(self) -> None:
        """Facts for the log's start record and ``/status``."""
        assert self._backend is not None and self._renderer is not None and self.scene is not None  # noqa: PT018
        self.facts = {
            "scene": self.scene.path,
            "variant": self._renderer.variant.name,
            "width": self._renderer.width,
            "height": self._renderer.height,
            **self._backend.describe(),
        }

    def status(self) -> Dict[str, Any]:
        """The show's part of ``/status``; may be called from any thread."""
        result: Dict[str, Any] = dict(self.facts, device_faults=self.n_faults)
        path, capture = self._path, self._capture
        if self._renderer is not None:
            result["gpu_memory_bytes"] = self.device_bytes
        if path is not None and path.status():
            result["camera"] = path.status()
        if capture is not None:
            result["background"] = capture.status()
        return result

    def close_capture(self) -> None:
        """Let go of the live picture; may take seconds, so it is done beside the outputs."""
        if self._capture is not None:
            self._capture.close()

    def close(self) -> None:
        """Let go of everything else, in the opposite order; one part that cannot close keeps no other open."""
        for part in (self._path, self._renderer, self._backend):
            try:
                if part is not None:
                    part.close()
            except Exception:
                log.exception("shutdown")


def _smaller(camera: Camera, scale: float) -> Camera:
    """The same view with sides of ``scale`` times as many pixels; even numbers, as videos want them."""
    if scale >= 1:
        return camera
    width, height = (max(2, 2 * round(scale * side / 2)) for side in (camera.width, camera.height))
    return camera.with_size(width, height)


def _behind(config: Config) -> Any:
    camera = config.camera
    return camera.background, camera.width, camera.height


def _replace_capture(lost: Optional[Capture], found: Optional[Capture]) -> None:
    """Close one and start the other, which may be the same device, beside the loop."""

    def replace() -> None:
        if lost is not None:
            lost.close()
        if found is not None:
            found.start()

    threading.Thread(target=replace, name="edgegs-capture swap", daemon=True).start()
