"""The daemon: startup, tick, shutdown.

Startup opens the outputs that people watch, which show a placeholder meanwhile, loads the scene, opens a backend,
starts telemetry and the other outputs. A tick takes what came from windows, camera and signals, draws one frame and
hands it to every output, none of which it waits for. A device that fails is opened again, with the scene; another
configuration (HUP) is loaded beside the loop and swapped in between two frames. Shutdown closes all of it, whatever
failed. Only this file, what it makes things with (``drawing``, ``outputs``, ``reload``) and the command line read the
configuration.
"""

from __future__ import annotations

import collections
import json
import logging
import os
import signal
import threading
import time
from typing import Any, Callable, Deque, Dict, List, NamedTuple, Optional, Sequence, Tuple

from edgegs import __version__, outputs
from edgegs.camera import InputEvent, PathClock
from edgegs.config import Config
from edgegs.drawing import Show
from edgegs.errors import ConfigError, DeviceError, DeviceLost, EdgegsError
from edgegs.frame import Frame
from edgegs.governing import Governing
from edgegs.memory import settle, tidy
from edgegs.notify import Notifier
from edgegs.outputs import OutputSet, PacedOutput
from edgegs.placeholder import Placeholder
from edgegs.reload import Reload
from edgegs.renderer import Ticket
from edgegs.signals import Signals
from edgegs.status import in_a_line, leave, window_figures
from edgegs.summary import figures, summary
from edgegs.telemetry import Telemetry
from edgegs.telemetry.metrics import Metrics
from edgegs.telemetry.textfile import Textfile

log = logging.getLogger(__name__)

#: Frames stop overlapping when one would take less than this share of the period by itself. Not 1, because that time
#: is an estimate, without the picture's way back.
SPARE = 0.8
#: Frames that the summary's percentiles are taken over.
SUMMARY_FRAMES = 4096
#: A loop that has not finished a frame for so long (or for three periods) is not healthy, seconds.
HEALTHY_S = 10.0
#: Seconds between two versions of the textfile, at least: nobody scrapes more often.
MIN_TEXTFILE_S = 5.0
#: Keys and drags that may wait for the next frame; older ones give way.
MAX_INPUTS = 1024
#: So many failures of the device within so many seconds are mended by opening it again; one more ends the run.
MAX_FAULTS, FAULTS_WITHIN_S = 3, 600.0


class _Stopped(Exception):
    """The run was told to stop while it was still starting."""


class UnderWay(NamedTuple):
    """A frame that was begun: when, and how long it took to begin it, seconds."""

    ticket: Ticket
    began: float
    begin_s: float


class Daemon:
    """Draws what a configuration says until told to stop; see ``run``.

    Args:
        config: to begin with.
        reread: returns the configuration as it is written now, for HUP; None where it cannot be read again.
        faults: when the device failed lately, in the processes before this one; monotonic seconds.
    """

    def __init__(
        self, config: Config, reread: Optional[Callable[[], Config]] = None, faults: Sequence[float] = ()
    ) -> None:
        self.config = config
        self.frame: Optional[Frame] = None
        self._reread = reread
        self._notifier = Notifier()
        self._stop_reason: Optional[str] = None
        self._signals = Signals(self.stop)
        self._hup = False
        self._show = Show(config, self._progress)
        self._telemetry: Optional[Telemetry] = None
        self._textfile: Optional[Textfile] = None
        self._governing = Governing(self._snapshot, self._event)
        self._reload: Optional[Reload] = None
        self._reload_result: Dict[str, Any] = {}
        self._faults: Deque[float] = collections.deque(faults)
        self._states: Dict[str, str] = {}
        self._is_out = False
        self._n_frames = self._n_redraws = 0
        self._recent: Deque[Frame] = collections.deque(maxlen=SUMMARY_FRAMES)
        self._started_ns, self._first_ns = time.monotonic_ns(), 0
        self._inputs: Deque[InputEvent] = collections.deque(maxlen=MAX_INPUTS)
        self._placeholder: Optional[Placeholder] = None
        self._loading: Tuple[str, Optional[float]] = ("starting", None)
        self._metrics = Metrics(self.status, self._snapshot)
        self._outputs = OutputSet(
            {
                "status": self.status,
                "ready": self.not_ready,
                "healthy": self.not_healthy,
                "metrics": self._metrics.render,
                "history": self._history,
                "on_input": self._inputs.append,
            }
        )

    @property
    def outputs(self) -> List[PacedOutput]:
        return self._outputs.all

    def stop(self, reason: str) -> None:
        """Ask the loop to end after the frame that it is drawing; safe in a signal handler."""
        if self._stop_reason is None:
            self._stop_reason = reason

    def run(self, frames: Optional[int] = None, duration_s: Optional[float] = None) -> int:
        """Draw until stopped, or for so many frames or seconds.

        Returns:
            The exit code: 0, or that of an output which should have had frames and wrote none.
        """
        self._signals.handle()
        reason = "fault"
        try:
            self._start()
            self._loop(frames, duration_s)
            reason = "finished"
        except _Stopped:
            pass
        finally:
            finished = self._stop_reason is None
            self._stop_reason = self._stop_reason or reason
            self._close()
            self._signals.restore()
        failure = outputs.undelivered(self.outputs, finished)
        if failure is None or self.frame is None:
            return 0
        log.error("error: %s", failure)
        return failure.exit_code

    # ---- startup and shutdown -----------------------------------------------------------------------------

    def _start(self) -> None:
        self._outputs.make(self.config)
        self._go_on()
        self._outputs.start(live=True)
        camera = self.config.camera
        self._placeholder = Placeholder(self.outputs, camera.width, camera.height, lambda: self._loading)
        self._placeholder.start()
        self._go_on()
        self._loading = ("loading " + os.path.basename(self.config.scene.path), None)
        self._show.open_backend()
        self._go_on()
        scene = self._show.load()
        self._loading = ("starting", None)
        self._go_on()
        self._show.open_inputs()
        self._show.bring(scene)
        del scene  # its arrays are on the device now
        self._governing.begin(self.config.governor, self._show)
        self._go_on()
        self._start_telemetry()
        self._go_on()
        self._outputs.start(live=False)

    def _go_on(self) -> None:
        """Called between the steps of startup, which may take minutes: ends it when told to stop."""
        while self._inputs:
            if self._inputs.popleft().key == "q":
                self.stop("key q")
        if self._stop_reason is not None:
            raise _Stopped

    def _progress(self, rows_done: int, n_rows: int) -> None:
        self._loading = (self._loading[0], rows_done / n_rows if n_rows else None)
        self._notifier.progress()
        self._go_on()

    def _start_telemetry(self) -> None:
        settings = self.config.telemetry
        telemetry = Telemetry(
            sysfs_root=settings.sysfs_root,
            source=settings.source,
            interval_s=settings.interval_s,
            log_dir=settings.log.dir,
            max_mb=settings.log.max_mb,
            rotate_mb=settings.log.rotate_mb,
            flush_s=settings.log.flush_s,
            min_free_mb=settings.log.min_free_mb,
        )
        self._telemetry = telemetry
        gpu = self._show.gpu
        if gpu is not None:
            telemetry.select_gpu(gpu)
        telemetry.start(self._start_record())
        if settings.textfile is not None:
            self._textfile = Textfile(settings.textfile, self._metrics.render, max(MIN_TEXTFILE_S, settings.interval_s))
            self._textfile.start()
        if telemetry.log_path:
            log.info("run log: %s", telemetry.log_path)

    def _start_record(self) -> Dict[str, Any]:
        scene = self._show.scene
        assert scene is not None
        return {
            "edgegs": __version__,
            "config_hash": self.config.sha256(),
            "scene": {"path": scene.path, "sha256": scene.sha256, "n_splats": scene.n_splats},
            **{name: value for name, value in self._show.facts.items() if name != "scene"},
        }

    def _close(self) -> None:
        """Close everything, outputs before the log, which tells what they dropped."""
        self._notifier.stopping(self._stop_reason or "stopping")
        steps: List[Callable[[], None]] = [self._stop_outputs]
        if self._textfile is not None:
            steps.append(self._textfile.stop)
        if self._telemetry is not None:
            telemetry = self._telemetry
            steps.append(lambda: telemetry.stop(self._stop_reason or "stopped"))
        for step in (*steps, self._show.close, self._notifier.close):
            try:
                step()
            except Exception:  # one part that cannot close must not keep the others open
                log.exception("shutdown")

    def _stop_outputs(self) -> None:
        """Finish outputs and camera side by side: none of them may use up the others' time."""
        if self._placeholder is not None:
            self._placeholder.stop()
        if self._reload is not None:
            self._reload.abandon()
        closing = threading.Thread(target=self._show.close_capture)
        closing.start()
        self._outputs.stop()
        for output in self.outputs:
            self._report_drops(output)
        closing.join()

    # ---- tick -------------------------------------------------------------------------------------------

    def _loop(self, frames: Optional[int], duration_s: Optional[float]) -> None:
        """Draw where the path is now, deliver, wait for the beat.

        A device that works by itself (``backend.depth`` 2) draws the next frame while this thread delivers the one
        before. That costs latency, so it is done only where drawing and delivering in turn would miss the beat.
        """
        started = next_tick = time.monotonic()
        path_clock = PathClock(started)
        self._first_ns = time.monotonic_ns()
        under_way: Deque[UnderWay] = collections.deque()
        n_begun = 0
        overlaps = not self.config.render.target_fps
        while self._stop_reason is None and n_begun != frames:
            now = time.monotonic()
            if duration_s is not None and now - started >= duration_s:
                break
            self._take_inputs(path_clock, now)
            if self._stop_reason is not None:
                break
            self._governing.look(now)
            target_fps = self._governing.capped(self.config.render.target_fps)
            period = 1.0 / target_fps if target_fps else 0.0
            try:
                self._take_orders(under_way)
                under_way.append(self._begin(path_clock, now))
                n_begun += 1
                depth = self._show.depth
                if len(under_way) > (depth - 1 if overlaps else 0):
                    in_turn_s = self._deliver(under_way.popleft())
                    overlaps = in_turn_s > SPARE * period if overlaps else time.monotonic() - now > period
                while under_way and not overlaps:
                    self._deliver(under_way.popleft())
            except DeviceError as error:
                under_way.clear()
                self._recover(error)
                continue
            # a late frame moves the beat: frames that were missed are not made up for
            next_tick = max(next_tick + period, time.monotonic())
            self._sleep_until(next_tick)
        while under_way:
            self._deliver(under_way.popleft())

    def _take_inputs(self, path_clock: PathClock, now: float) -> None:
        """What people did at windows since the last frame: q ends the run, space pauses, the rest is the camera's."""
        while self._inputs:
            event = self._inputs.popleft()
            if event.kind == "key" and event.key == "q":
                self.stop("key q")
            elif event.kind == "key" and event.key == " ":
                path_clock.toggle(now)
            else:
                self._show.handle(event)

    def _begin(self, path_clock: PathClock, now: float) -> UnderWay:
        ticket = self._show.begin(path_clock.at(now), path_clock.is_paused)
        return UnderWay(ticket, now, time.monotonic() - now)

    def _deliver(self, begun: UnderWay) -> float:
        """Wait for a frame and hand it to everyone; returns what it would cost without overlap, seconds."""
        frame = self._show.collect(begun.ticket)
        drawn = time.monotonic()
        self.frame = frame
        self._n_frames += 1
        self._n_redraws += frame.redraws
        self._recent.append(figures(frame))
        if self._telemetry is not None:
            self._telemetry.frame(frame)
        self._metrics.frame(frame)
        if self._placeholder is not None:
            self._placeholder.stop()
            self._placeholder = None
        for output in self.outputs:
            output.offer(frame, begun.began)
            self._report(output)
        outputs.check_hope(self.outputs)
        self._tell_systemd()
        # not frame_ms: a frame that waits behind another takes longer without being more work
        in_turn_s = begun.begin_s + sum(frame.stage_ms.values()) / 1e3 + time.monotonic() - drawn
        self._governing.drawn(in_turn_s)
        return in_turn_s

    def _tell_systemd(self) -> None:
        """Ready once a frame has reached an output; alive because one was drawn."""
        self._notifier.alive()
        if not self._is_out and any(output.runner.first_delivery.is_set() for output in self.outputs):
            self._is_out = True
            settle()
            log.info("the first frame is out, %.1f s after start", (time.monotonic_ns() - self._first_ns) / 1e9)
        if self._is_out and self._reload is None:
            self._notifier.ready("drawing")
        if self._notifier.is_due():
            status = self.status()
            self._notifier.status(in_a_line(status))
            leave(status)

    def _sleep_until(self, tick: float) -> None:
        while self._stop_reason is None:
            left = tick - time.monotonic()
            if left <= 0:
                return
            self._notifier.alive()  # at a low rate the beat is far away, and waiting for it is as it should be
            time.sleep(min(left, 0.1))  # a signal is seen within a tenth of a second

    def _report(self, output: PacedOutput) -> None:
        """Tell the log what an output dropped, and that its state has changed."""
        self._report_drops(output)
        state = output.runner.state
        if state != self._states.get(output.label, "starting"):
            self._event("output", output=output.label, state=state, error=output.runner.status()["last_error"])
            self._states[output.label] = state

    def _report_drops(self, output: PacedOutput) -> None:
        if self._telemetry is None:
            return
        for reason, n in output.new_drops().items():
            self._telemetry.dropped(output.label, n, reason)

    def _event(self, kind: str, **fields: Any) -> None:
        if self._telemetry is not None:
            self._telemetry.event(kind, **fields)

    # ---- a device that fails, another configuration ---------------------------------------------------------

    def _recover(self, error: DeviceError) -> None:
        """Open the device again, with the scene.

        Raises:
            DeviceLost: only another process can. DeviceError: it has failed too often of late.
        """
        failure: Optional[DeviceError] = error
        while failure is not None and self._stop_reason is None:
            now = time.monotonic()
            self._faults.append(now)
            while now - self._faults[0] > FAULTS_WITHIN_S:
                self._faults.popleft()
            n = len(self._faults)
            self._event("device_fault", error=str(failure), of_late=n)
            if n > MAX_FAULTS:
                raise DeviceError(f"{failure}; it failed {n} times within {FAULTS_WITHIN_S / 60:.0f} minutes")
            log.error("%s; opening the device again (%d of %d)", failure, n, MAX_FAULTS)
            self._sleep_until(now + 2.0 ** (n - 1) - 1.0)
            try:
                self._show.reopen_device()
                failure = None
                log.info("the device draws again")
            except DeviceLost:
                raise
            except DeviceError as again:
                failure = again
            except _Stopped:
                pass

    @property
    def faults(self) -> List[float]:
        """When the device failed lately, monotonic seconds."""
        return list(self._faults)

    def _take_orders(self, under_way: Deque[UnderWay]) -> None:
        """What signals asked for: HUP reads the configuration again, USR1 writes the status."""
        if self._signals.take(signal.SIGUSR1) and not leave(self.status()):
            log.info("status: %s", json.dumps(self.status(), default=str))
        self._hup |= self._signals.take(signal.SIGHUP)  # kept while another reload is under way
        if self._hup and self._reload is None:
            self._hup = False
            self._notifier.reloading()
            if self._reread is None or self._show.scene is None:
                self._reloaded(ConfigError("this run's configuration cannot be read again"))
            else:
                log.info("reading the configuration again")
                self._reload = Reload(self._reread, self.config, self._show.scene, self._show.backend_name)
        if self._reload is not None and self._reload.is_done:
            error = self._reload.error
            if error is None:
                while under_way:  # they belong to the renderer that may go
                    self._deliver(under_way.popleft())
                try:
                    self._swap(self._reload)
                except EdgegsError as refused:
                    error = refused
            self._reload = None
            self._reloaded(error)

    def _swap(self, reload: Reload) -> None:
        """Take a new configuration into use. What may fail comes first, and leaves everything as it was."""
        old, new = self.config, reload.config
        use_outputs = self._outputs.plan(old, new)
        self._show.swap(new, reload.scene, reload.facts)
        use_outputs()
        self.config = new
        self._governing.begin(new.governor, self._show)
        if new.telemetry != old.telemetry:
            if self._telemetry is not None:
                self._telemetry.stop("reload")
            self._start_telemetry()

    def _reloaded(self, error: Optional[EdgegsError]) -> None:
        """Say how a reload ended; everything is as it was where there is an error."""
        tidy()
        self._reload_result = {"successful": error is None, "error": None if error is None else str(error)}
        if error is None:
            log.info("the new configuration is in use")
            self._event("reload", **self._start_record())
        else:
            log.error("the configuration in use stays: %s", error)
            self._event("reload_failed", error=str(error))

    # ---- what it says about itself -----------------------------------------------------------------------

    def status(self) -> Dict[str, Any]:
        """The dict behind ``/status`` and the page: facts, the last window's figures, outputs."""
        result: Dict[str, Any] = {"scene": self.config.scene.path, **self._show.status()}
        result.update(version=__version__, pid=os.getpid(), state=self._state(), not_ready=self.not_ready())
        result["uptime_s"] = round((time.monotonic_ns() - self._started_ns) / 1e9, 1)
        result["outputs"] = [output.status() for output in self.outputs]
        result["last_reload"] = dict(self._reload_result)
        telemetry, frame = self._telemetry, self.frame
        governor = self._governing.status()
        if governor is not None:
            result["governor"] = governor
        if frame is not None:
            result.update(n_splats=frame.n_splats, n_visible=frame.n_visible, n_instances=frame.n_instances)
            result["frames"] = self._n_frames
        if telemetry is not None:
            result.update(window_figures(telemetry.snapshot()))
        return result

    def _state(self) -> str:
        """loading …, starting, drawing, reloading or stopping."""
        if self._stop_reason is not None:
            return "stopping"
        if self.frame is None:
            text, share = self._loading
            return text if share is None else f"{text}, {share:.0%}"
        return "drawing" if self._reload is None else "reloading"

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
        return summary(self._recent, self._n_frames, self._n_redraws, self.outputs)

    @property
    def log_path(self) -> Optional[str]:
        return self._telemetry.log_path if self._telemetry else None
