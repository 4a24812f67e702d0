"""The daemon: startup, tick, shutdown.

Startup opens the outputs that people watch, which show a placeholder meanwhile, loads the scene, opens a backend,
starts telemetry and the other outputs. A tick takes what came from windows and camera, draws one frame and hands it to
every output, none of which it waits for. Shutdown closes all of it, whatever failed.
Only this file (and the command line) reads the configuration.
"""

from __future__ import annotations

import collections
import logging
import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any, Callable, Deque, Dict, List, NamedTuple, Optional, Tuple

from edgegs import __version__, outputs
from edgegs.backends import create, severity
from edgegs.camera import InputEvent, PathClock, PosePath, build_path
from edgegs.config import Config
from edgegs.errors import AccessError, OutputError
from edgegs.frame import Frame
from edgegs.outputs import PacedOutput, read_token
from edgegs.placeholder import Placeholder
from edgegs.renderer import Renderer, Ticket
from edgegs.scene import Scene, load
from edgegs.summary import figures, summary
from edgegs.telemetry import Telemetry
from edgegs.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from edgegs.capture import Capture

log = logging.getLogger(__name__)

#: Outputs get so long to finish, all together, seconds: the run has to end within the unit's TimeoutStopSec of 15,
#: and the frame under way, the run log and the device need their time, too.
STOP_S = 5.0
#: Frames stop overlapping when one would take less than this share of the period by itself. Not 1, because that time
#: is an estimate, without the picture's way back.
SPARE = 0.8
#: Frames that the summary's percentiles are taken over.
SUMMARY_FRAMES = 4096
#: A loop that has not finished a frame for so long (or for three periods) is not healthy, seconds.
HEALTHY_S = 10.0
#: Keys and drags that may wait for the next frame; older ones give way.
MAX_INPUTS = 1024


class _Stopped(Exception):
    """The run was told to stop while it was still starting."""


class UnderWay(NamedTuple):
    """A frame that was begun: when, and how long it took to begin it, seconds."""

    ticket: Ticket
    began: float
    begin_s: float


class Daemon:
    """Draws what a configuration says until told to stop; see ``run``."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.frame: Optional[Frame] = None
        self.outputs: List[PacedOutput] = []
        self._stop_reason: Optional[str] = None
        self._n_interrupts = 0
        self._states: Dict[str, str] = {}
        self._is_out = False
        self._n_redraws = 0
        self._recent: Deque[Frame] = collections.deque(maxlen=SUMMARY_FRAMES)
        self._first_ns = 0
        self._facts: Dict[str, Any] = {}
        self._telemetry: Optional[Telemetry] = None
        self._path: Optional[PosePath] = None
        self._capture: Optional[Capture] = None
        self._inputs: Deque[InputEvent] = collections.deque(maxlen=MAX_INPUTS)
        self._placeholder: Optional[Placeholder] = None
        self._loading: Tuple[str, Optional[float]] = ("starting", None)
        self._metrics = Metrics(self.status, self._snapshot)

    def stop(self, reason: str) -> None:
        """Ask the loop to end after the frame that it is drawing; safe in a signal handler."""
        if self._stop_reason is None:
            self._stop_reason = reason

    def run(self, frames: Optional[int] = None, duration_s: Optional[float] = None) -> int:
        """Draw until stopped, or for so many frames or seconds.

        Returns:
            The exit code: 0, or that of an output which should have had frames and wrote none.
        """
        restore = self._handle_signals()
        closing: List[Callable[[], None]] = []
        reason = "fault"
        try:
            self._make_outputs()
            self._start_outputs(live=True)
            camera = self.config.camera
            self._placeholder = Placeholder(self.outputs, camera.width, camera.height, lambda: self._loading)
            self._placeholder.start()
            scene = self._load_scene()
            renderer, path = self._start_renderer(scene, closing)
            telemetry = self._start_telemetry(scene, renderer, closing)
            del scene  # its arrays are on the device now
            self._start_outputs(live=False)
            self._loop(renderer, path, telemetry, frames, duration_s)
            reason = "finished"
        except _Stopped:
            pass
        finally:
            finished = self._stop_reason is None
            self._stop_reason = self._stop_reason or reason
            closing.append(self._stop_outputs)  # before the log ends, which tells what they dropped
            for close in reversed(closing):
                try:
                    close()
                except Exception:  # one part that cannot close must not keep the others open
                    log.exception("shutdown")
            restore()
        failure = outputs.undelivered(self.outputs, finished)
        if failure is None or self.frame is None:
            return 0
        log.error("error: %s", failure)
        return failure.exit_code

    # ---- startup ----------------------------------------------------------------------------------------

    def _handle_signals(self) -> Callable[[], None]:
        """TERM and INT end the run cleanly; a second INT ends the process at once, whatever it is doing."""

        def handle(number: int, _: Any) -> None:
            self._n_interrupts += number == signal.SIGINT
            if self._n_interrupts > 1:
                os._exit(130)
            self.stop(signal.Signals(number).name)

        before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}

        def restore() -> None:
            for number, handler in before.items():
                signal.signal(number, handler)

        return restore

    def _go_on(self) -> None:
        """Called between the steps of startup, which may take minutes: ends it when told to stop."""
        while self._inputs:
            if self._inputs.popleft().key == "q":
                self.stop("key q")
        if self._stop_reason is not None:
            raise _Stopped

    def _progress(self, rows_done: int, n_rows: int) -> None:
        self._loading = (self._loading[0], rows_done / n_rows if n_rows else None)
        self._go_on()

    def _load_scene(self) -> Scene:
        self._go_on()
        settings = self.config.scene
        log.info("loading %s", settings.path)
        self._loading = ("loading " + os.path.basename(settings.path), None)
        scene = load(settings.path, max_gaussians=settings.max_gaussians, progress=self._progress)
        self._loading = ("starting", None)
        for warning in scene.warnings:
            log.warning("%s", warning)
        for cause, rows in scene.dropped.items():
            log.warning("%s: dropped %d of %d rows: %s", settings.path, rows, scene.n_rows, cause)
        return scene

    def _start_renderer(self, scene: Scene, closing: List[Callable[[], None]]) -> Any:
        camera, render = self.config.camera, self.config.render
        path = build_path(
            {"kind": "orbit", "up": scene.up} if camera.path is None else camera.path.model_dump(),
            camera.width,
            camera.height,
            camera.fov_y_deg,
            camera.near,
            camera.far,
            scene_bounds=scene.bounds(),
        )
        self._path = path
        closing.append(path.close)
        path.open()
        if camera.background is not None:
            from edgegs.capture import Capture  # brings OpenCV, which a run without a background may not need

            source = camera.background
            self._capture = Capture(source.uri, camera.width, camera.height, fit=source.fit, fps=source.fps)
            self._capture.start()
        self._go_on()
        backend, why = create(render.backend, render.threads)
        closing.append(backend.close)
        log.log(severity(render.backend, backend), "%s", why)
        self._go_on()
        renderer = Renderer(
            backend,
            scene,
            camera.width,
            camera.height,
            render.variant,
            render.background,
            takes_backdrop=self._capture is not None,
        )
        closing.append(renderer.close)
        self._facts = {
            "scene": scene.path,
            "variant": renderer.variant.name,
            "width": camera.width,
            "height": camera.height,
            **backend.describe(),
        }
        return renderer, path

    def _start_telemetry(self, scene: Scene, renderer: Renderer, closing: List[Callable[[], None]]) -> Telemetry:
        self._go_on()
        settings = self.config.telemetry

        def open_telemetry(log_dir: Optional[str]) -> Telemetry:
            return Telemetry(
                sysfs_root=str(settings.sysfs_root),
                source=settings.source,
                interval_s=settings.interval_s,
                log_dir=log_dir,
                max_mb=settings.log.max_mb,
                rotate_mb=settings.log.rotate_mb,
                flush_s=settings.log.flush_s,
            )

        try:
            telemetry = open_telemetry(None if settings.log.dir is None else str(settings.log.dir))
        except (OutputError, AccessError) as error:
            # the picture matters more than its log: say so, in the log of the service and in /status
            log.error("no run log is kept: %s", error)
            telemetry = open_telemetry(None)
        self._telemetry = telemetry
        closing.append(lambda: telemetry.stop(self._stop_reason or "stopped"))
        telemetry.start(
            {
                "edgegs": __version__,
                "config_hash": self.config.sha256(),
                "scene": {"path": scene.path, "sha256": scene.sha256, "n_splats": scene.n_splats},
                **{name: value for name, value in self._facts.items() if name != "scene"},
            }
        )
        if telemetry.log_path:
            log.info("run log: %s", telemetry.log_path)
        return telemetry

    def _make_outputs(self) -> None:
        camera, render = self.config.camera, self.config.render
        token_file = self.config.http.token_file
        offered = {
            "status": self.status,
            "ready": self.not_ready,
            "healthy": self.not_healthy,
            "metrics": self._metrics.render,
            "history": self._history,
            "token": None if token_file is None else read_token(token_file),
            "on_input": self._inputs.append,
        }
        for settings in self.config.outputs:
            self._go_on()
            fps = render.target_fps or 30.0
            self.outputs.append(outputs.make_output(settings, camera.width, camera.height, fps, offered))

    def _start_outputs(self, live: bool) -> None:
        """Open the outputs that people watch, or the others: those begin with the first frame of the scene."""
        self._go_on()
        for output in self.outputs:
            if output.runner.sink.live == live:
                output.runner.start()

    def _stop_outputs(self) -> None:
        """Finish outputs and camera side by side: none of them may use up the others' time."""
        if self._placeholder is not None:
            self._placeholder.stop()
        closing = None
        if self._capture is not None:
            closing = threading.Thread(target=self._capture.close)
            closing.start()
        outputs.stop(self.outputs, STOP_S)
        for output in self.outputs:
            self._report_drops(output)
        if closing is not None:
            closing.join()

    # ---- tick -------------------------------------------------------------------------------------------

    def _loop(
        self,
        renderer: Renderer,
        path: PosePath,
        telemetry: Telemetry,
        frames: Optional[int],
        duration_s: Optional[float],
    ) -> None:
        """Draw where the path is now, deliver, wait for the beat.

        A device that works by itself (``backend.depth`` 2) draws the next frame while this thread delivers the one
        before. That costs latency, so it is done only where drawing and delivering in turn would miss the beat.
        """
        target_fps = self.config.render.target_fps
        period = 1.0 / target_fps if target_fps else 0.0
        started = next_tick = time.monotonic()
        path_clock = PathClock(started)
        self._first_ns = time.monotonic_ns()
        under_way: Deque[UnderWay] = collections.deque()
        n_begun = 0
        overlaps = not period
        while self._stop_reason is None and n_begun != frames:
            now = time.monotonic()
            if duration_s is not None and now - started >= duration_s:
                break
            self._take_inputs(path, path_clock, now)
            if self._stop_reason is not None:
                break
            backdrop = None if self._capture is None else self._capture.latest()
            ticket = renderer.submit(path.camera_at(path_clock.at(now)), backdrop)
            under_way.append(UnderWay(ticket, now, time.monotonic() - now))
            n_begun += 1
            if len(under_way) > (renderer.backend.depth - 1 if overlaps else 0):
                in_turn_s = self._deliver(renderer, under_way.popleft(), telemetry)
                overlaps = in_turn_s > SPARE * period if overlaps else time.monotonic() - now > period
            while under_way and not overlaps:
                self._deliver(renderer, under_way.popleft(), telemetry)
            # a late frame moves the beat: frames that were missed are not made up for
            next_tick = max(next_tick + period, time.monotonic())
            self._sleep_until(next_tick)
        while under_way:
            self._deliver(renderer, under_way.popleft(), telemetry)

    def _take_inputs(self, path: PosePath, path_clock: PathClock, now: float) -> None:
        """What people did at windows since the last frame: q ends the run, space pauses, the rest is the camera's."""
        while self._inputs:
            event = self._inputs.popleft()
            if event.kind == "key" and event.key == "q":
                self.stop("key q")
            elif event.kind == "key" and event.key == " ":
                path_clock.toggle(now)
            else:
                path.handle(event)

    def _deliver(self, renderer: Renderer, begun: UnderWay, telemetry: Telemetry) -> float:
        """Wait for a frame and hand it to everyone; returns what it would cost without overlap, seconds."""
        frame = renderer.collect(begun.ticket)
        drawn = time.monotonic()
        self.frame = frame
        self._n_redraws += frame.redraws
        self._recent.append(figures(frame))
        telemetry.frame(frame)
        self._metrics.frame(frame)
        if self._placeholder is not None:
            self._placeholder.stop()
            self._placeholder = None
        for output in self.outputs:
            output.offer(frame, begun.began)
            self._report_drops(output)
            state = output.runner.state
            if state != self._states.get(output.label, "starting"):
                error = output.runner.status()["last_error"]
                telemetry.event("output", output=output.label, state=state, error=error)
                self._states[output.label] = state
        outputs.check_hope(self.outputs)
        if not self._is_out and any(output.runner.first_delivery.is_set() for output in self.outputs):
            self._is_out = True
            log.info("the first frame is out, %.1f s after start", (time.monotonic_ns() - self._first_ns) / 1e9)
        # not frame_ms: a frame that waits behind another takes longer without being more work
        return begun.begin_s + sum(frame.stage_ms.values()) / 1e3 + time.monotonic() - drawn

    def _sleep_until(self, tick: float) -> None:
        while self._stop_reason is None:
            left = tick - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(left, 0.1))  # a signal is seen within a tenth of a second

    def _report_drops(self, output: PacedOutput) -> None:
        if self._telemetry is None:
            return
        for reason, n in output.new_drops().items():
            self._telemetry.dropped(output.label, n, reason)

    # ---- what it says about itself -----------------------------------------------------------------------

    def status(self) -> Dict[str, Any]:
        """The dict behind ``/status`` and the page: facts, the last window's figures, outputs."""
        result: Dict[str, Any] = dict(self._facts, version=__version__)
        result["outputs"] = [output.status() for output in self.outputs]
        if self._path is not None and self._path.status():
            result["camera"] = self._path.status()
        if self._capture is not None:
            result["background"] = self._capture.status()
        telemetry, frame = self._telemetry, self.frame
        if frame is not None:
            result.update(n_splats=frame.n_splats, n_visible=frame.n_visible, n_instances=frame.n_instances)
            result.update(frames=frame.index + 1, uptime_s=round((time.monotonic_ns() - self._first_ns) / 1e9, 1))
        if telemetry is not None:
            snapshot = telemetry.snapshot()
            window = snapshot["window"]
            result.update(
                fps=window.get("fps"),
                frame_ms=window.get("frame_ms"),
                stages=window.get("stage_ms"),
                temp_c=window.get("temp_c"),
                power_w={rail: power["w"] for rail, power in window.get("power_w", {}).items()},
                throttle=window.get("throttle"),
                run_id=snapshot["run_id"],
                log=snapshot["log"],
            )
        return result

    def not_ready(self) -> Optional[str]:
        """None when the run serves its outputs; else the reason."""
        return outputs.not_ready(self.outputs)

    def not_healthy(self) -> Optional[str]:
        """None while the loop draws, or still starts; else the reason."""
        if not self._first_ns:
            return None  # it still starts
        since_ns = self._first_ns if self.frame is None else self.frame.t_mono_ns
        age = (time.monotonic_ns() - since_ns) / 1e9
        target_fps = self.config.render.target_fps
        patience = max(HEALTHY_S, 3.0 / target_fps if target_fps else 0.0)
        return None if age <= patience else f"no frame was drawn for {age:.0f} s"

    def _snapshot(self) -> Dict[str, Any]:
        return {} if self._telemetry is None else self._telemetry.snapshot()

    def _history(self, after_s: Optional[float] = None) -> Dict[str, Any]:
        return {} if self._telemetry is None else self._telemetry.history(after_s)

    def summary(self) -> str:
        """A table of the stage times of the last frames, for people."""
        return summary(self._recent, self._n_redraws, self.outputs)

    @property
    def log_path(self) -> Optional[str]:
        return self._telemetry.log_path if self._telemetry else None
