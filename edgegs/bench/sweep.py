"""A field campaign, run by run: settle, warm up, measure with the sensors beside it, write the line, next.

What a sweep is stopped in is lost, and made again by the same command; nothing else is. docs/field.md describes the
results; ``validity`` says when a run counts.
"""

from __future__ import annotations

import contextlib
import logging
import time
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

import numpy as np

from edgegs.backends.base import Backend
from edgegs.bench import ledger, sweep_sensors, validity
from edgegs.bench.bench import choices_of, combination, resolve
from edgegs.bench.campaign import MADE, Campaign, Configuration, Planned
from edgegs.bench.sweep_drawing import Drawn, Pictures, camera_of, read_scene
from edgegs.bench.sweep_energy import Baselines, energy_fields, energy_of
from edgegs.bench.sweep_modes import PowerModes
from edgegs.bench.sweep_results import Results, in_words, reasons_as_plain
from edgegs.bench.sweep_sensors import Sensors, Surroundings
from edgegs.bench.validity import Evidence, Reason
from edgegs.errors import ConfigError, DeviceError, DeviceLost
from edgegs.kernels.variants import Variant
from edgegs.pack import AnyScene
from edgegs.renderer import Renderer
from edgegs.scene.synth import dial
from edgegs.telemetry import host
from edgegs.telemetry.board import Board, identify

log = logging.getLogger(__name__)

#: Longest sleep before somebody looks whether to stop.
_NAP_S = 0.1
#: The first readings are waited for so long; where jtop or tegrastats may have to be started, longer.
_READINGS_S, _PROGRAM_S = 5.0, 25.0


class Stopped(Exception):
    """Somebody asked for the end; the run under way is given up."""


class Places(NamedTuple):
    """Where Jetson Linux says what it is."""

    nv_tegra_release: str = "/etc/nv_tegra_release"
    nvpmodel_status: str = "/var/lib/nvpmodel/status"
    nvpmodel_conf: str = "/etc/nvpmodel.conf"


class Hooks(NamedTuple):
    """What the runner asks and tells.

    Attributes:
        stopped: name of the signal that asks for the end; None to go on.
        began: called with the number of the run, how many there are, its label and the seconds that all will take.
        progress: called as ``progress(seconds_done, seconds_of_this_run)``, often.
        finished: called with a run's outcome in words.
    """

    stopped: Callable[[], Optional[str]] = lambda: None
    began: Callable[[int, int, str, float], None] = lambda *_: None
    progress: Callable[[float, float], None] = lambda *_: None
    finished: Callable[[str], None] = lambda _: None


class Sweep:
    """The runs of a campaign that are still to be made.

    Args:
        campaign: what to measure. results: open, and this campaign's.
        backend: who draws; stays the caller's to close.
        modes: the helper that switches power modes, if the campaign has any.
        retry_invalid: make invalid runs again, too.

    Raises:
        DeviceError: there is no such variant.
    """

    def __init__(
        self,
        campaign: Campaign,
        results: Results,
        backend: Backend,
        modes: Optional[PowerModes] = None,
        retry_invalid: bool = False,
        hooks: Optional[Hooks] = None,
        places: Optional[Places] = None,
    ) -> None:
        self._campaign, self._results, self._backend = campaign, results, backend
        self._modes, self._hooks, self._places = modes, hooks or Hooks(), places or Places()
        self._variants = {name: resolve(name, backend.name) for name in campaign.variants}
        self._sensors = Sensors(campaign.telemetry, self._board())
        self._plan = campaign.plan()
        done = results.done(retry_invalid)
        self._todo = [planned for planned in self._plan if planned.run_id not in done]
        self._session = 1 + len(results.of("session"))
        self._rail: Optional[str] = None
        self._scene: Optional[Tuple[Tuple[Any, ...], AnyScene]] = None
        self._baselines = Baselines(campaign.idle_every_s)
        self._n_done = 0
        self._took: List[float] = []
        self._began = self._lasts = 0.0

    def run(self) -> str:
        """Make the runs; returns how it ended: ``complete``, or the signal that stopped it.

        Raises:
            EdgegsError: it cannot go on; everything that was measured is in the results.
        """
        reason = "error"
        self._sensors.start()
        try:
            self._begin_session()
            for planned in self._todo:
                self._one(planned)
            reason = "complete"
        except Stopped as stop:
            reason = str(stop)
        finally:
            self._sensors.stop()
            self._results.end(reason, len(self._plan))
        return reason

    def left_s(self) -> float:
        """Seconds that what is left will take, about: as the runs before took, or else as planned."""
        left = self._todo[self._n_done :]
        n_due = sum(self._baselines.is_due(mode) for mode in {planned.power_mode for planned in left})
        each_s = float(np.mean(self._took)) if self._took else self._campaign.run_s
        return self._campaign.lasts_s(len(left) * each_s, n_due)

    # ---- a session -------------------------------------------------------------------------------------

    def _begin_session(self) -> None:
        self._wait_for_readings()
        facts: Dict[str, Any] = {"session": self._session, **self._board().facts(), **host.versions()}
        provenance = ledger.provenance(self._backend, dial(1))  # each run tells of its own scene
        # the board's driver is that of the GPU, too, where both are known
        facts.update((key, value) for key, value in provenance.items() if key not in ("schema", "date", "scene"))
        facts.update(self._sensors.facts())
        self._rail = facts["rail"]
        rails, wanted = ", ".join(self._sensors.rails), self._campaign.telemetry.rail
        if not rails:
            source = self._campaign.telemetry.source
            log.warning("nothing here tells watts (telemetry.source: %s): frame rates alone", source)
        elif wanted != "auto" and wanted not in self._sensors.rails:
            raise ConfigError(f"telemetry.rail: there is no rail {wanted} here; there are {rails}")
        elif self._rail is None:
            log.warning("no single rail is this machine's total: name one of %s as telemetry.rail", rails)
        self._results.check_session(facts)
        self._results.append("session", facts)

    def _board(self) -> Board:
        return identify(self._campaign.telemetry.sysfs_root, *self._places)

    # ---- one run ---------------------------------------------------------------------------------------

    def _one(self, planned: Planned) -> None:
        campaign = self._campaign
        began = self._began = time.monotonic()
        self._lasts = campaign.run_s
        self._hooks.began(self._n_done + 1, len(self._todo), planned.label, self.left_s())
        self._check()
        if self._modes is not None:
            self._modes.set(planned.power_mode)
        try:
            with self._opened(planned.configuration) as drawn:
                began += self._idle_if_due(planned, drawn)
                self._began = time.monotonic()
                fields = self._measure(planned, drawn)
        except DeviceLost:
            raise
        except DeviceError as error:
            # a scene too large for the board, say: the others may go
            reason = Reason("failed", str(error))
            fields = {"valid": False, "reasons": reasons_as_plain([reason]), "notes": []}
        attempts = sum(run["run_id"] == planned.run_id for run in self._results.of("run"))
        which = {
            "run_id": planned.run_id,
            "params": planned.params(),
            "repeat": planned.repeat,
            "attempt": attempts + 1,
            "order": planned.order,
            "session": self._session,
        }
        record = self._results.append("run", dict(which, **fields))
        self._n_done += 1
        if "fps" in record:
            self._took.append(time.monotonic() - began)
        self._sensors.forget()
        self._hooks.finished(in_words(record))

    @contextlib.contextmanager
    def _opened(self, configuration: Configuration) -> Iterator[Drawn]:
        variant = self._variants[configuration.variant]
        scene = self._load(configuration, variant)
        width, height = configuration.width, configuration.height
        camera = camera_of(configuration.scene, scene, width, height)
        with contextlib.closing(Renderer(self._backend, scene, width, height, combination(variant))) as renderer:
            yield Drawn(renderer, camera, scene, variant, self._backend.depth)

    def _load(self, configuration: Configuration, variant: Variant) -> AnyScene:
        """The scene as the daemon would draw it; the last one is kept."""
        which = (configuration.scene, configuration.splats, variant.storage)
        if self._scene is None or self._scene[0] != which:
            self._scene = None  # two would not fit a small board
            scene = read_scene(*which, self._backend)
            if configuration.scene not in MADE:
                self._results.check_scene(configuration.scene, scene.sha256)
            self._scene = (which, scene)
        return self._scene[1]

    def _measure(self, planned: Planned, drawn: Drawn) -> Dict[str, Any]:
        campaign, cap = self._campaign, planned.configuration.fps_cap
        settle_s = self._pause(campaign.settle_s)
        warm, measured = Pictures(), Pictures()
        with contextlib.closing(drawn.frames(cap, self._pause)) as frames:
            warm_began = time.monotonic()
            slope: Optional[float] = None
            steady = self._steadiness(campaign.warmup_s)
            for frame in frames:
                warm.add(frame)
                done, slope = next(steady)
                if done:
                    break
            before = self._surroundings()
            warm.add(next(frames))  # the window begins with a picture
            begin_ns, end_ns = warm.t_ns[-1], 0
            warmup_s = begin_ns / 1e9 - warm_began
            self._lasts = time.monotonic() - self._began + campaign.measure_s
            for frame in frames:
                measured.add(frame)
                if frame.t_mono_ns - begin_ns >= campaign.measure_s * 1e9:
                    end_ns = frame.t_mono_ns
                    break
            after = self._surroundings()
            # drawn on, until the reading behind the end: between a busy and an idle one the watts would be too few
            for _ in frames:
                if self._sensors.covers(end_ns):
                    break
        known = dict(before.changes(after), slope_c_per_min=slope, power_mode=planned.power_mode)
        evidence = self._evidence(begin_ns, end_ns, frames=len(measured.t_ns), fps_cap=cap, **known)
        fields = measured.figures(begin_ns, end_ns)
        fields.update(self._judged(evidence))
        idle = self._baselines.of(planned.power_mode)
        fields.update(
            scene=dict(drawn.facts(), path=planned.configuration.scene),
            choices=choices_of(drawn.variant),
            in_flight=drawn.depth,
            settle_s=round(settle_s, 3),
            warmup_s=round(warmup_s, 3),
            energy=energy_fields(evidence, self._rail, idle, measured.stage_s()),
        )
        samples = self._sensors.since(int(warm_began * 1e9))
        fields["series"] = sweep_sensors.series(samples, begin_ns, [*warm.t_ns, *measured.t_ns])
        return fields

    # ---- the idle baseline -----------------------------------------------------------------------------

    def _idle_if_due(self, planned: Planned, drawn: Drawn) -> float:
        """Measure the baseline if there is to be one; returns the seconds that it took."""
        mode, began = planned.power_mode, time.monotonic()
        if self._campaign.idle_s == 0 or not self._baselines.is_due(mode):
            return 0.0
        fields = self._measure_idle(planned)
        which = {
            "idle_id": f"idle-{1 + len(self._results.of('idle'))}",
            "session": self._session,
            "params": {"scene": planned.configuration.scene, "splats": drawn.scene.n_splats, "power_mode": mode},
        }
        record = self._results.append("idle", dict(which, **fields))
        self._baselines.take(mode, record)
        if not record["valid"]:
            log.warning("the idle baseline is invalid: %s", "; ".join(one["text"] for one in record["reasons"]))
        return time.monotonic() - began

    def _measure_idle(self, planned: Planned) -> Dict[str, Any]:
        campaign = self._campaign
        self._lasts += campaign.settle_s + campaign.idle_s
        began = time.monotonic()
        steady = self._steadiness(campaign.settle_s)
        done, slope = next(steady)
        while not done:
            self._pause(_NAP_S)
            done, slope = next(steady)
        before = self._surroundings()
        begin_ns = time.monotonic_ns()
        self._pause(campaign.idle_s)
        end_ns = time.monotonic_ns()
        after = self._surroundings()
        while not self._sensors.covers(end_ns):
            self._pause(_NAP_S / 10)
        known = dict(before.changes(after), slope_c_per_min=slope, power_mode=planned.power_mode)
        evidence = self._evidence(begin_ns, end_ns, **known)
        settle_s = round(begin_ns / 1e9 - began, 3)
        fields: Dict[str, Any] = {"settle_s": settle_s, "window_s": round(evidence.window_s, 6)}
        fields.update(self._judged(evidence))
        fields["energy"] = energy_fields(evidence, self._rail)
        fields["series"] = sweep_sensors.series(evidence.samples, begin_ns, [])
        return fields

    # ---- what both do ----------------------------------------------------------------------------------

    def _surroundings(self) -> Surroundings:
        return Surroundings.now(self._campaign.telemetry.proc_root, self._board().power_mode)

    def _evidence(self, begin_ns: int, end_ns: int, **known: Any) -> Evidence:
        interval_s = self._campaign.telemetry.interval_s
        samples = self._sensors.since(begin_ns)
        behind = next((i for i, one in enumerate(samples) if one.t_mono_ns >= end_ns), len(samples))
        samples = samples[: behind + 1]
        joules = energy_of(samples, begin_ns, end_ns, self._campaign.rules.max_gap_periods * interval_s)
        rails = list(self._sensors.rails)
        return Evidence(begin_ns, end_ns, interval_s, samples, joules, rails, **known)

    def _judged(self, evidence: Evidence) -> Dict[str, Any]:
        reasons = validity.judge(evidence, self._campaign.rules)
        fields = sweep_sensors.figures(evidence)
        self._rail = self._rail or self._sensors.rail()  # the watts may have come late
        if not fields["power"]:
            fields["power_missing"] = self._sensors.why_no_power()
        share = evidence.other_load
        fields.update(
            board_power_mode=evidence.modes[1],
            other_load=None if share is None else round(share, 4),
            valid=not reasons,
            reasons=reasons_as_plain(reasons),
            notes=reasons_as_plain(validity.notes(evidence)),
        )
        return fields

    def _steadiness(self, least_s: float) -> Iterator[Tuple[bool, Optional[float]]]:
        most_s, slope = self._campaign.warmup_max_s, self._campaign.rules.max_temp_slope_c_per_min
        return self._sensors.steadiness(least_s, max(least_s, most_s), slope)

    def _wait_for_readings(self) -> None:
        """Two of each sensor: a counter needs them; and on a Jetson for a program that is asked for the watts."""
        sensing, began = self._campaign.telemetry, time.monotonic()
        is_asked = self._board().is_tegra and sensing.source not in ("sysfs", "none")
        while True:
            took_s = time.monotonic() - began
            enough = len(self._sensors.since(0)) >= 2 and (self._sensors.rails or not is_asked)
            if enough or took_s > 2 * sensing.interval_s + (_PROGRAM_S if is_asked else _READINGS_S):
                return
            self._pause(_NAP_S / 10)

    def _pause(self, seconds: float) -> float:
        """Wait, and look whether to stop; returns how long it took."""
        began = time.monotonic()
        while True:
            self._check()
            left = began + seconds - time.monotonic()
            if left <= 0:
                return time.monotonic() - began
            time.sleep(min(left, _NAP_S))

    def _check(self) -> None:
        signal = self._hooks.stopped()
        if signal is not None:
            raise Stopped(signal)
        if self._began:
            self._hooks.progress(time.monotonic() - self._began, self._lasts)
