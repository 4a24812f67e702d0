"""``Governor``: one observation a second in, at most one step out."""

from __future__ import annotations

import collections
import dataclasses
import math
import statistics
from typing import Any, Deque, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from edgegs.governor.ladder import Ladder, Setting, with_ceiling
from edgegs.governor.limits import ROOM_S, FpsWatch, Limits, PowerWatch, Pressure, TempWatch, Watch

#: Between two steps away from a temperature above its limit, seconds: as long as it takes to see whether it falls.
URGENT_DWELL_S = 10.0
#: A rung that fails again and again is tried again after so long at most, seconds.
MAX_BACK_OFF_S = 4 * 3600.0
#: Between two observations so far apart anything may have happened: the values before say nothing, seconds.
GAP_S = 10.0
#: A limit that could not be held counts as held again after so long without pressing, seconds.
HELD_AGAIN_S = 300.0
#: What one rung was measured to cost holds for this scene and view; later what is expected of any counts, seconds.
RATIO_S = 900.0

_SENSORS = {"power": "power", "temp": "temperature", "fps": "frame rate"}
_UNITS = {"power": "W", "temp": "C", "fps": "FPS"}


class Step(NamedTuple):
    """A change of rung: what to draw from now on, and why.

    Attributes:
        rung: of the ladder, from now on. before: the rung that is left.
        setting: what to draw.
        event: for the log: kind, action ("down" or "up"), rung, of (the last rung), before, axis (what the steps
            change), scale, n_splats, sh_degree, fps_cap, limit, value, bound, reason.
    """

    rung: int
    before: int
    setting: Setting
    event: Dict[str, Any]


@dataclasses.dataclass
class _Failure:
    """A rung that was tried and did not hold.

    Attributes:
        watch: the limit. n: trials that failed. at: when the last did.
        until: not tried before, unless conditions are better.
        tried: the level at which the last trial began. better_since: when conditions became better than that.
    """

    watch: Watch
    n: int
    at: float
    until: float
    tried: float
    better_since: Optional[float] = None


@dataclasses.dataclass
class _Trial:
    """A rung that was stepped up to: when, and the level of each limit before."""

    at: float
    levels: Dict[str, float]


class Governor:
    """Holds limits by moving along a ladder: down when one presses, up again when all leave room.

    Args:
        limits: what to hold.
        ladder: see ``build_ladder``.
        rung: where to begin.

    Attributes:
        rung: in use now; 0 is the best.
        as_built: the ladder that was given. ladder: the one in use: the same, perhaps with fewer frames a second.
    """

    def __init__(self, limits: Limits, ladder: Ladder, rung: int = 0) -> None:
        self.limits = limits
        self.as_built = self.ladder = ladder
        self._rates: Deque[float] = collections.deque(maxlen=8)  # frames a second of the last observations
        self.rung = min(max(rung, 0), len(ladder) - 1)
        self.n_steps = {"down": 0, "up": 0}
        self._fps = None if limits.target_fps is None else FpsWatch(limits.target_fps)
        self._power = None if limits.max_power_w is None else PowerWatch(limits.max_power_w)
        self._temp = None if limits.max_temp_c is None else TempWatch(limits.max_temp_c)
        self._watches: List[Watch] = [w for w in (self._temp, self._power, self._fps) if w is not None]
        self._last = self._stepped = -math.inf
        self._trials: Dict[int, _Trial] = {}
        self._failures: Dict[int, _Failure] = {}
        self._ratios: Dict[Tuple[int, str], Tuple[float, float]] = {}  # (rung, limit) -> measured when, and what
        self._compared: Optional[Tuple[int, Dict[str, float]]] = None  # the rung left last, and what it gave
        self._unheld: Dict[str, float] = {}  # limit -> when it last pressed on the last rung that could help
        self._notes: List[Dict[str, Any]] = []
        self._reason: Optional[str] = None

    @property
    def setting(self) -> Setting:
        """What to draw now."""
        return self.ladder[self.rung].setting

    def observe(
        self,
        now_s: float,
        fps: Optional[float],
        work_ms: Optional[float] = None,
        power_w: Optional[float] = None,
        temp_c: Optional[float] = None,
    ) -> Optional[Step]:
        """Take what was measured since the last observation, about once a second.

        Args:
            now_s: monotonic; an observation that is not later than the last one is left out.
            fps: frames a second that were drawn; None: not known (nothing was drawn: a reload, a device that failed).
            work_ms: what a frame would take if it did not wait for the beat, milliseconds; None: not known.
            power_w: of the board. temp_c: the warmest sensor that matters. None: no reading.

        Returns:
            The step to take, which counts as taken; None: stay.
        """
        if now_s <= self._last:
            return None
        if now_s - self._last > GAP_S:
            for watch in self._watches:
                watch.begin(now_s)
            self._unheld = dict.fromkeys(self._unheld, now_s)
        self._last = now_s
        self._take(now_s, fps, work_ms, power_w, temp_c)
        self._learn(now_s)
        pressing: List[Tuple[Pressure, Watch]] = []
        for watch in self._watches:
            pressure = watch.pressure(now_s, self.setting)
            if pressure is not None:
                pressing.append((pressure, watch))
        pressing.sort(key=lambda item: -item[0].amount)
        self._tell_held(now_s, {watch.name for _, watch in pressing})
        if any(pressure.n_rungs for pressure, _ in pressing):
            return self._down(now_s, pressing)
        for pressure, watch in pressing:
            self._tell_unheld(now_s, watch, pressure.reason)
        return self._up(now_s, fps or 0.0)

    def notes(self) -> List[Dict[str, Any]]:
        """Events that are no steps, since the last call: sensors lost and back, limits that cannot be held."""
        notes, self._notes = self._notes, []
        return notes

    def status(self) -> Dict[str, Any]:
        """For ``/status``: rung, setting, limits with what is measured, and the last step's reason.

        A limit is ``held`` until it presses and nothing is left to give up; None: not known, nothing is measured.
        """
        rung = self.rung  # once: another thread may ask while a step is made
        setting = self.ladder[rung].setting
        return {
            "rung": rung,
            "of": len(self.ladder) - 1,
            "scale": setting.scale,
            "n_splats": setting.n_splats,
            "sh_degree": setting.sh_degree,
            "fps_cap": setting.fps,
            "steps": dict(self.n_steps),
            "reason": self._reason,
            "limits": {
                watch.name: {
                    "bound": watch.bound,
                    "value": watch.latest,
                    "state": watch.state,
                    "held": watch.name not in self._unheld if watch.state == "present" else None,
                }
                for watch in self._watches
            },
        }

    # ---- what was measured -------------------------------------------------------------------------------

    def _take(
        self,
        now_s: float,
        fps: Optional[float],
        work_ms: Optional[float],
        power_w: Optional[float],
        temp_c: Optional[float],
    ) -> None:
        for watch, value in ((self._fps, fps), (self._power, power_w), (self._temp, temp_c)):
            if watch is not None:
                before = watch.state
                watch.add(now_s, value)
                if watch.state != before:
                    self._say_state(watch, before)
        if fps is not None and math.isfinite(fps):
            self._rates.append(fps)
        if self._fps is not None and fps is not None:
            # frames that overlap are more than the work of one lets expect
            self._fps.add_possible(now_s, max(fps, 1000.0 / work_ms if work_ms else 0.0))

    def _say_state(self, watch: Watch, before: str) -> None:
        sensor = _SENSORS[watch.name]
        if watch.state == "lost":
            self._note("sensor_lost", watch, f"no {sensor} any more: no quality is given back until there is")
        elif watch.state == "absent":
            self._note("limit_off", watch, f"no {sensor} can be read here: this limit is not held")
        elif before == "lost":
            self._note("sensor_back", watch, f"the {sensor} can be read again")
        elif before == "absent":
            self._note("limit_on", watch, f"the {sensor} can be read: this limit is held from now on")

    def _note(self, action: str, watch: Watch, reason: str) -> None:
        event = {"kind": "governor", "action": action, "rung": self.rung, "of": len(self.ladder) - 1}
        self._notes.append(dict(event, limit=watch.name, bound=watch.bound, reason=reason))

    def _learn(self, now_s: float) -> None:
        """Remember what one rung more costs; see whether conditions have become better than when a trial failed."""
        if self._compared is not None:
            other, values = self._compared
            here = {watch.name: watch.typical(now_s) for watch in self._watches if watch.name in values}
            if all(value is not None for value in here.values()):
                self._compared = None
                for watch in self._watches:
                    mine, theirs = here.get(watch.name), values.get(watch.name)
                    if mine is not None and theirs is not None:
                        pair = (mine, theirs) if self.rung < other else (theirs, mine)
                        self._ratios[min(self.rung, other), watch.name] = (now_s, watch.ratio(*pair))
        trial, failure = self._trials.get(self.rung), self._failures.get(self.rung)
        if trial is not None and failure is not None and now_s - trial.at > failure.watch.trial_s:
            del self._failures[self.rung]  # it holds
        failure = self._failures.get(self.rung - 1)
        if failure is not None:
            level = failure.watch.level(now_s)
            if level is not None and now_s - failure.at < failure.watch.settling_s * 2.0 ** (failure.n - 1):
                failure.tried = min(failure.tried, level)  # it still cools by what was given up, and by nothing else
            if level is None or not failure.watch.improved(level, failure.tried):
                failure.better_since = None
            elif failure.better_since is None:
                failure.better_since = now_s

    # ---- steps -------------------------------------------------------------------------------------------

    def _tell_held(self, now_s: float, pressing: Set[str]) -> None:
        for watch in self._watches:
            if watch.name in pressing or watch.state != "present":  # what is not measured is not known to be held
                if watch.name in self._unheld:
                    self._unheld[watch.name] = now_s
            elif now_s - self._unheld.get(watch.name, now_s) >= HELD_AGAIN_S:
                del self._unheld[watch.name]
                self._note("held", watch, "this limit is held again")

    def _tell_unheld(self, now_s: float, watch: Watch, reason: str) -> None:
        if watch.name not in self._unheld:
            self._unheld[watch.name] = now_s
            self._note("unheld", watch, reason)

    def _down(self, now_s: float, pressing: Sequence[Tuple[Pressure, Watch]]) -> Optional[Step]:
        for pressure, watch in pressing:
            if not pressure.n_rungs:
                self._tell_unheld(now_s, watch, pressure.reason)
                continue
            target = self._worse(watch, pressure.n_rungs)
            if target == self.rung:
                self._tell_unheld(now_s, watch, f"{pressure.reason}: nothing is left to give up for it")
                continue
            dwell = URGENT_DWELL_S if pressure.urgent else watch.dwell_s
            if now_s - self._stepped < dwell:
                continue  # another limit may not have to wait that long
            self._remember(now_s, watch)
            if watch is not self._fps:
                self._limit_rate()
            return self._step(now_s, target, pressure.reason, watch, pressure.value)
        return None

    def _limit_rate(self) -> None:
        """Let no more frames be drawn than now, as long as quality is given up for watts or degrees.

        Where the device was busy all the time, each step would else buy more frames, and save nothing.
        """
        if self.rung == 0 and self._fps is None and self._rates:
            self.ladder = with_ceiling(self.as_built, max(1.0, statistics.median(self._rates)))

    def _worse(self, watch: Watch, n_rungs: int) -> int:
        """``n_rungs`` further down, counting those that help this limit: a lower cap makes no frame faster."""
        target = self.rung
        for rung in range(self.rung + 1, len(self.ladder)):
            if watch is self._fps and self.ladder[rung].axis == "fps":
                continue
            target, n_rungs = rung, n_rungs - 1
            if n_rungs == 0:
                break
        return target

    def _remember(self, now_s: float, watch: Watch) -> None:
        """This rung does not hold; where it was tried lately, that trial has failed."""
        trial = self._trials.pop(self.rung, None)
        if trial is None or now_s - trial.at > watch.trial_s or watch.name not in trial.levels:
            return
        before = self._failures.get(self.rung)
        n = before.n + 1 if before is not None else 1
        back_off_s = min(watch.back_off_s * 2.0 ** (n - 1), MAX_BACK_OFF_S)
        self._failures[self.rung] = _Failure(watch, n, now_s, now_s + back_off_s, trial.levels[watch.name])

    def _up(self, now_s: float, fps: float) -> Optional[Step]:
        watches = [watch for watch in self._watches if watch.state != "absent"]
        if self.rung == 0 or not self._watches:
            return None
        if now_s - self._stepped < max(watch.up_dwell_s for watch in watches or self._watches):
            return None
        target = self.rung - 1
        levels: Dict[str, float] = {}
        for watch in watches:
            level = watch.level(now_s)
            if level is None or not watch.room(level, self.ladder[target].setting, self._ratio(now_s, watch, fps)):
                return None
            levels[watch.name] = level
        if not self._may_try(now_s, target):
            return None
        self._trials[target] = _Trial(now_s, levels)
        reason = "there is room: " + ", ".join(f"{levels[w.name]:.1f} {_UNITS[w.name]}" for w in watches)
        return self._step(now_s, target, reason if watches else "none of the limits can be measured here")

    def _ratio(self, now_s: float, watch: Watch, fps: float) -> float:
        """How many times harder the next better rung is for a limit: as measured lately, else as expected."""
        better, worse = self.ladder[self.rung - 1].setting, self.setting
        at, ratio = self._ratios.get((self.rung - 1, watch.name), (-math.inf, 1.0))
        if now_s - at > RATIO_S:
            return watch.expected(better, worse, fps)
        return min(max(ratio, 1.0), watch.most(better, worse, fps))

    def _may_try(self, now_s: float, rung: int) -> bool:
        """Whether a rung that failed has waited long enough, or been better off: twice as long after each failure."""
        failure = self._failures.get(rung)
        if failure is None or now_s >= failure.until:
            return True
        return failure.better_since is not None and now_s - failure.better_since >= ROOM_S * (2.0**failure.n - 1)

    def _step(
        self, now_s: float, rung: int, reason: str, watch: Optional[Watch] = None, value: Optional[float] = None
    ) -> Step:
        before, self.rung = self.rung, rung
        action = "down" if rung > before else "up"
        crossed = self.ladder[before + 1 : rung + 1] if rung > before else self.ladder[rung + 1 : before + 1]
        self.n_steps[action] += 1
        self._reason = reason
        setting = self.setting
        event = {
            "kind": "governor",
            "action": action,
            "rung": rung,
            "of": len(self.ladder) - 1,
            "before": before,
            "axis": "+".join(sorted({crossing.axis for crossing in crossed})),
            "scale": setting.scale,
            "n_splats": setting.n_splats,
            "sh_degree": setting.sh_degree,
            "fps_cap": setting.fps,
            "limit": None if watch is None else watch.name,
            "value": None if value is None else round(value, 3),
            "bound": None if watch is None else watch.bound,
            "reason": reason,
        }
        self._stepped, self._compared = now_s, None
        if abs(rung - before) == 1:
            values = {each.name: each.typical(now_s) for each in self._watches}
            self._compared = before, {name: value for name, value in values.items() if value is not None}
        for each in self._watches:
            each.restart(now_s)
        return Step(rung, before, setting, event)
