"""The daemon: startup, tick, shutdown.

Startup loads the scene, opens a backend, starts outputs and telemetry. A tick draws one frame where the camera
path is now and hands it to every output, none of which it waits for. Shutdown closes all of it, whatever failed.
Only this file (and the command line) reads the configuration.
"""

from __future__ import annotations

import collections
import logging
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any, Callable, Deque, Dict, List, Optional

import numpy as np

from edgegs import __version__
from edgegs.backends import create
from edgegs.camera import PosePath, build_path
from edgegs.config import Config, Output
from edgegs.errors import AccessError, ConfigError, InputError, OutputError
from edgegs.files import read_regular
from edgegs.frame import STAGES, Frame
from edgegs.renderer import Renderer
from edgegs.scene import Scene, load
from edgegs.sinks import SinkRunner, create_sink, sink_options
from edgegs.telemetry import Telemetry

log = logging.getLogger(__name__)

#: An output that took no frame for so long is not ready, seconds.
READY_S = 5.0
#: Outputs get so long to finish, all together, seconds: half of what systemd may be told to wait.
STOP_S = 5.0
#: Frames that the summary's percentiles are taken over.
SUMMARY_FRAMES = 4096
#: A token file holds one line.
MAX_TOKEN_BYTES = 4096


class PacedOutput:
    """One output of the configuration: its runner, and at most ``fps`` of the frames."""

    def __init__(self, runner: SinkRunner, label: str, fps: Optional[float]) -> None:
        self.runner = runner
        self.label = label
        self._period = 0.0 if fps is None else 1.0 / fps
        self._next = 0.0
        self._reported: Dict[str, int] = {}

    def offer(self, frame: Frame, now: float) -> None:
        if now < self._next:
            return
        # frames come at their own times: keep the mean rate, but never owe a burst
        self._next = max(self._next + self._period, now - self._period) if self._period else now
        self.runner.offer(frame)

    def new_drops(self) -> Dict[str, int]:
        """Frames dropped since the last call, by reason."""
        dropped = self.runner.status()["dropped"]
        new = {reason: n - self._reported.get(reason, 0) for reason, n in dropped.items()}
        self._reported = dropped
        return {reason: n for reason, n in new.items() if n > 0}

    def status(self) -> Dict[str, Any]:
        return dict(self.runner.status(), name=self.label)


class Daemon:
    """Draws what a configuration says until told to stop; see ``run``."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.frame: Optional[Frame] = None
        self.outputs: List[PacedOutput] = []
        self._stop_reason: Optional[str] = None
        self._recent: Deque[Frame] = collections.deque(maxlen=SUMMARY_FRAMES)
        self._first_ns = 0
        self._facts: Dict[str, Any] = {}
        self._telemetry: Optional[Telemetry] = None

    def stop(self, reason: str) -> None:
        """Ask the loop to end after the frame that it is drawing; safe in a signal handler."""
        if self._stop_reason is None:
            self._stop_reason = reason

    def run(self, frames: Optional[int] = None, duration_s: Optional[float] = None) -> int:
        """Draw until stopped, or for so many frames or seconds; returns the exit code."""
        restore = self._handle_signals()
        closing: List[Callable[[], None]] = []
        reason = "fault"
        try:
            scene = self._load_scene()
            renderer, path = self._start_renderer(scene, closing)
            telemetry = self._start_telemetry(scene, renderer, closing)
            del scene  # its arrays are on the device now
            self._start_outputs(closing)
            self._loop(renderer, path, telemetry, frames, duration_s)
            reason = self._stop_reason or "finished"
        finally:
            self._stop_reason = self._stop_reason or reason
            for close in reversed(closing):
                try:
                    close()
                except Exception:  # one part that cannot close must not keep the others open
                    log.exception("shutdown")
            restore()
        return 0

    # ---- startup ----------------------------------------------------------------------------------------

    def _handle_signals(self) -> Callable[[], None]:
        """TERM and INT end the loop cleanly; a second INT ends the process at once."""

        def handle(number: int, _: Any) -> None:
            if number == signal.SIGINT and self._stop_reason == "SIGINT":
                os._exit(130)
            self.stop(signal.Signals(number).name)

        before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}

        def restore() -> None:
            for number, handler in before.items():
                signal.signal(number, handler)

        return restore

    def _load_scene(self) -> Scene:
        settings = self.config.scene
        log.info("loading %s", settings.path)
        scene = load(settings.path, max_gaussians=settings.max_gaussians)
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
        backend, why = create(render.backend, render.threads)
        log.info("%s", why)
        closing.append(backend.close)
        renderer = Renderer(backend, scene, camera.width, camera.height, render.variant, render.background)
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

    def _start_outputs(self, closing: List[Callable[[], None]]) -> None:
        def stop_outputs() -> None:
            stopping = [threading.Thread(target=output.runner.stop, args=(STOP_S,)) for output in self.outputs]
            for thread in stopping:  # side by side: one that hangs must not use up the others' time
                thread.start()
            for thread in stopping:
                thread.join()
            for output in self.outputs:
                self._report_drops(output)

        closing.append(stop_outputs)
        for settings in self.config.outputs:
            sink = create_sink(settings.uri, **self._sink_options(settings))
            fps = self.config.render.target_fps or 30.0
            runner = SinkRunner(
                sink,
                self.config.camera.width,
                self.config.camera.height,
                min(fps, settings.fps or fps),
                required=settings.required,
            )
            self.outputs.append(PacedOutput(runner, settings.label, settings.fps))
            runner.start()

    def _sink_options(self, settings: Output) -> Dict[str, Any]:
        offered: Dict[str, Any] = {"status": self.status, "ready": self.not_ready, "token": self._token()}
        if settings.quality is not None:
            offered["quality"] = settings.quality
        known = sink_options(settings.uri)
        return {name: value for name, value in offered.items() if name in known}

    def _token(self) -> Optional[str]:
        file = self.config.http.token_file
        if file is None:
            return None
        try:
            token = read_regular(Path(file), MAX_TOKEN_BYTES, "http.token_file").decode("ascii").strip()
        except UnicodeDecodeError:
            token = ""
        except InputError as error:
            raise ConfigError(f"http.token_file: {error}") from None
        if len(token) < 16 or not token.isprintable() or " " in token:
            raise ConfigError(
                f"{file}: http.token_file must hold one line of at least 16 printable characters; "
                "`openssl rand -hex 16 > FILE` makes one"
            )
        return token

    # ---- tick -------------------------------------------------------------------------------------------

    def _loop(
        self,
        renderer: Renderer,
        path: PosePath,
        telemetry: Telemetry,
        frames: Optional[int],
        duration_s: Optional[float],
    ) -> None:
        target_fps = self.config.render.target_fps
        period = 1.0 / target_fps if target_fps else 0.0
        started = next_tick = time.monotonic()
        self._first_ns = time.monotonic_ns()
        states: Dict[str, str] = {}
        delivered = False
        while self._stop_reason is None:
            now = time.monotonic()
            if frames is not None and renderer.n_frames >= frames:
                break
            if duration_s is not None and now - started >= duration_s:
                break
            frame = renderer.render(path.camera_at(now - started))
            self.frame = frame
            self._recent.append(frame_without_picture(frame))
            telemetry.frame(frame)
            for output in self.outputs:
                output.offer(frame, now)
                self._report_drops(output)
                state = output.runner.state
                if state != states.get(output.label, "starting"):
                    error = output.runner.status()["last_error"]
                    telemetry.event("output", output=output.label, state=state, error=error)
                    states[output.label] = state
            if not delivered and any(output.runner.first_delivery.is_set() for output in self.outputs):
                delivered = True
                log.info("the first frame is out, %.1f s after start", time.monotonic() - started)
            # a late frame moves the beat: frames that were missed are not made up for
            next_tick = max(next_tick + period, time.monotonic())
            self._sleep_until(next_tick)

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
        """None when every required output (or any, if none is required) took a frame lately; else the reason."""
        required = [output for output in self.outputs if output.runner.required]
        reasons = []
        for output in required or self.outputs:
            age = output.runner.status()["last_write_age_s"]
            if age is not None and age <= READY_S:
                if not required:
                    return None
            else:
                reasons.append(
                    "{}: {}".format(output.label, "no frame yet" if age is None else f"no frame for {age:.0f} s")
                )
        return "; ".join(reasons) or None

    def summary(self) -> str:
        """A table of the stage times of the last frames, for people."""
        if not self._recent:
            return "no frame was drawn"
        last = self._recent[-1]
        seconds = (last.t_mono_ns - self._recent[0].t_mono_ns) / 1e9
        fps = (len(self._recent) - 1) / seconds if seconds > 0 else 0.0
        lines = [
            f"{last.index + 1} frames; the last {len(self._recent)}: {fps:.1f} FPS, {last.n_splats} splats, "
            f"{last.n_visible} visible, {last.n_instances} instances",
            "{:<10} {:>9} {:>9} {:>9} {:>7}".format("stage", "p50 ms", "p95 ms", "max ms", "share"),
        ]
        total = sum(frame.frame_ms for frame in self._recent)
        for stage in (*STAGES, "frame"):
            ms = np.array([f.frame_ms if stage == "frame" else f.stage_ms[stage] for f in self._recent])
            p50, p95 = np.percentile(ms, (50, 95))
            row = "{:<10} {:>9.2f} {:>9.2f} {:>9.2f} {:>6.1f}%"
            lines.append(row.format(stage, p50, p95, ms.max(), 100 * ms.sum() / total))
        for output in self.outputs:
            status = output.status()
            fault = f"; {status['last_error']}" if status["last_error"] else ""
            written, dropped = status["frames_written"], status["frames_dropped"]
            lines.append(f"{output.label}: {written} frames written, {dropped} dropped{fault}")
        return "\n".join(lines)

    @property
    def log_path(self) -> Optional[str]:
        return self._telemetry.log_path if self._telemetry else None


def frame_without_picture(frame: Frame) -> Frame:
    """The frame's figures alone: the summary keeps thousands."""
    empty = np.empty((0, 0, 3), np.uint8)
    return Frame(
        empty,
        frame.index,
        frame.t_mono_ns,
        frame.frame_ms,
        frame.stage_ms,
        frame.n_splats,
        frame.n_visible,
        frame.n_instances,
        frame.redraws,
    )
