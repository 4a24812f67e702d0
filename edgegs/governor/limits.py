"""What is measured against a limit: whether it presses, and whether a better rung may be tried."""

from __future__ import annotations

import collections
import math
import statistics
from typing import Deque, Iterable, List, NamedTuple, Optional, Tuple

from edgegs.governor.ladder import Setting, rate_ratio, work_ratio

#: Values of the first seconds after a step say little of the new rung, seconds.
SETTLE_S = 2.5
#: So are those of the first seconds of all, when clocks rise and caches fill.
START_S = 6.0
#: Rates and watts are judged over so long, and not before so many values.
WINDOW_S, MIN_VALUES = 8.0, 4
#: A better rung is tried only after values of so long have left room for it: a camera that goes round, in 20 s where
#: nobody says otherwise, has shown the dear side of the scene by then.
ROOM_S = 30.0
#: A rate counts as held down to this share of its target: no beat is met to the last frame.
FPS_TOLERANCE = 0.95
#: A loop that could draw so many times its target and does not is held up by something else: less quality is no help.
FPS_IDLE = 1.15
#: What a better rung is expected to leave free of its limit, as a share.
FPS_MARGIN, POWER_MARGIN = 0.05, 0.04
#: What tells that conditions are better than when a trial failed, as a share.
FPS_IMPROVED, POWER_IMPROVED = 0.15, 0.06
#: About half of a board's power does not change with what is drawn.
POWER_SHARE = 0.5
#: How work grows with pixels × splats (exponent) and with each degree of colour: as expected, and at the very most.
EXPECTED, MOST = (0.7, 0.05), (1.0, 0.2)

#: A temperature is the mean of so long, which averages what a sensor of half degrees rounds, seconds.
TEMP_WINDOW_S = 4.0
#: A line is laid through the temperatures of so long; over less than ``MIN_SPAN_S`` it is a guess.
SLOPE_S, MIN_SPAN_S = 45.0, 20.0
#: Above the limit there is less time to look, and a shorter line must do.
HOT_SPAN_S = 8.0
#: A limit that the line crosses within so long presses already. A heat sink nears its end temperature exponentially,
#: and a line looks beyond that only where the horizon is longer than the time constant: minutes, for a heat sink.
HORIZON_S = 60.0
#: Colder than this below the limit nobody looks ahead: it is further than a heat sink warms within the horizon.
NEAR_C = 25.0
#: Warmer than this below the limit nothing better is tried, degrees.
TEMP_HYSTERESIS_C = 4.0
#: A board that still warms faster than this is not settled, degrees a second.
SETTLED_C_S = 0.01
#: After a failed trial it must be so much cooler before time alone, degrees.
COOLER_C = 3.0
#: The longest of these windows.
KEPT_S = max(WINDOW_S, ROOM_S, SLOPE_S) + 1.0
#: Time constant that is expected of a heat sink, seconds; near the limit a step is judged only after so long.
SINK_S = 300.0
#: A sensor that gave nothing for so long is lost; one that never gave anything for so long is not there, seconds.
LOST_S, ABSENT_S = 5.0, 15.0


class Limits(NamedTuple):
    """What to hold; None: not limited."""

    target_fps: Optional[float] = None
    max_power_w: Optional[float] = None
    max_temp_c: Optional[float] = None


class Pressure(NamedTuple):
    """A limit that presses.

    Attributes:
        amount: how hard, 1 for a tenth beyond the limit, or ten degrees; to compare limits by.
        n_rungs: how many rungs to go at once; 0: none, less quality is no help.
        urgent: whether damage or throttling is near: a short dwell.
        value: what presses, over the span that the limit is judged by, in the limit's unit.
        reason: the same in words, for the log.
    """

    amount: float
    n_rungs: int
    urgent: bool
    value: float
    reason: str


class Watch:
    """The values of one limit since the last step.

    Attributes:
        bound: the limit.
        state: "waiting" (nothing seen yet), "absent" (never was), "present" or "lost".
        dwell_s, up_dwell_s: how long a rung is kept before this limit leaves it for a worse or a better one.
        settling_s: how long values still follow from the step; twice as long where that has deceived.
        back_off_s: a rung that failed is not tried again for so long, and twice as long after each further failure,
            unless what is measured says that conditions have changed.
        trial_s: a rung that is left within so long after it was tried has failed.
    """

    name = ""
    dwell_s = 6.0
    up_dwell_s = 30.0
    settling_s = 0.0
    back_off_s = 600.0
    trial_s = 600.0

    def __init__(self, bound: float) -> None:
        self.bound = bound
        self.state = "waiting"
        self.latest: Optional[float] = None
        self._values: Deque[Tuple[float, float]] = collections.deque()
        self._since = self._seen = -math.inf

    def begin(self, now_s: float) -> None:
        """The first observation, or the first after a gap: what was seen before says nothing."""
        self.restart(now_s + START_S)
        self._seen = now_s

    def restart(self, now_s: float) -> None:
        """A step was made: values of the rung before do not count."""
        self._forget()
        self._since = now_s

    def _forget(self) -> None:
        self._values.clear()

    def add(self, now_s: float, value: Optional[float]) -> None:
        """Take a value, or note that there is none."""
        self.latest = value if value is not None and math.isfinite(value) else None
        if self.latest is not None:
            self.state, self._seen = "present", now_s
            _keep(self._values, now_s, self.latest, self._since)
        elif self.state == "waiting" and now_s - self._seen >= ABSENT_S:
            self.state = "absent"
        elif self.state == "present" and now_s - self._seen >= LOST_S:
            self.state = "lost"
            self._forget()

    def settled(self, now_s: float) -> Optional[float]:
        """What this rung gives now; None: too few values."""
        values = _last(self._values, now_s, WINDOW_S, MIN_VALUES)
        return self._middle(values) if len(values) >= MIN_VALUES else None

    def typical(self, now_s: float) -> Optional[float]:
        """What ``ratio`` compares of two rungs."""
        return self.settled(now_s)

    def _middle(self, values: List[float]) -> float:
        return sum(values) / len(values)

    # each limit's own
    def pressure(self, now_s: float, setting: Setting) -> Optional[Pressure]:
        """Whether a worse rung is needed."""
        raise NotImplementedError

    def level(self, now_s: float) -> Optional[float]:
        """What this rung gives at its worst, for long enough to try a better one; None: not that long."""
        raise NotImplementedError

    def expected(self, better: Setting, worse: Setting, fps: float) -> float:
        """How many times harder the better setting is expected to make this limit, 1 or more."""
        return 1.0

    def most(self, better: Setting, worse: Setting, fps: float) -> float:
        """The same at the very most: what was measured beyond it was not the setting's doing."""
        return 1.0

    def ratio(self, better: float, worse: float) -> float:
        """The same by what was measured on both."""
        return 1.0

    def room(self, level: float, better: Setting, ratio: float) -> bool:
        """Whether the better setting, ``ratio`` times harder, is expected to hold this limit."""
        raise NotImplementedError

    def improved(self, level: float, tried: float) -> bool:
        """Whether conditions are better than when a trial began that failed, at a level of ``tried``."""
        raise NotImplementedError


class FpsWatch(Watch):
    """Frames a second, at least ``bound``. What is drawn presses; what could be drawn makes room."""

    name = "fps"

    def __init__(self, bound: float) -> None:
        super().__init__(bound)
        self._possible: Deque[Tuple[float, float]] = collections.deque()

    def _forget(self) -> None:
        super()._forget()
        self._possible.clear()

    def add_possible(self, now_s: float, fps: float) -> None:
        """Frames a second that there would be if none waited for the beat."""
        if math.isfinite(fps):
            _keep(self._possible, now_s, fps, self._since)

    def wanted(self, setting: Setting) -> float:
        """A rate that the ladder itself caps is not asked for on that rung."""
        return self.bound if setting.fps is None else min(self.bound, setting.fps)

    def _middle(self, values: List[float]) -> float:
        return statistics.median(values)  # one stutter is no rate

    def pressure(self, now_s: float, setting: Setting) -> Optional[Pressure]:
        value, wanted = self.settled(now_s), self.wanted(setting)
        if value is None or value >= FPS_TOLERANCE * wanted:
            return None
        short = 1 - value / wanted
        n_rungs = 1 + (short > 0.2) + 2 * (short > 0.4)
        reason = f"{value:.1f} frames a second, {wanted:g} are to be held"
        possible, idle = self.typical(now_s) or 0.0, FPS_IDLE * wanted
        if possible >= idle:
            if (self.level(now_s) or 0.0) < idle:
                return None  # not for long: the scene may just have become more work
            n_rungs, reason = 0, f"{reason}, {possible:.1f} could be drawn: something else holds them up"
        return Pressure(10 * short, n_rungs, False, value, reason)

    def typical(self, now_s: float) -> Optional[float]:
        values = _last(self._possible, now_s, WINDOW_S, MIN_VALUES)
        return statistics.median(values) if len(values) >= MIN_VALUES else None

    def level(self, now_s: float) -> Optional[float]:
        return _quantile(self._possible, now_s, 0.1)

    def expected(self, better: Setting, worse: Setting, fps: float) -> float:
        return work_ratio(better, worse, *EXPECTED)

    def most(self, better: Setting, worse: Setting, fps: float) -> float:
        return work_ratio(better, worse, *MOST)

    def ratio(self, better: float, worse: float) -> float:
        return worse / better if better > 0 else 1.0

    def room(self, level: float, better: Setting, ratio: float) -> bool:
        return level / ratio >= (1 + FPS_MARGIN) * self.wanted(better)

    def improved(self, level: float, tried: float) -> bool:
        return level >= (1 + FPS_IMPROVED) * tried


class PowerWatch(Watch):
    """Watts, at most ``bound``."""

    name = "power"

    def pressure(self, now_s: float, setting: Setting) -> Optional[Pressure]:
        value = self.settled(now_s)
        if value is None or value <= self.bound:
            return None
        over = value / self.bound - 1
        reason = f"{value:.2f} W, at most {self.bound:g} W"
        return Pressure(10 * over, 1 + (over > 0.1) + (over > 0.25), False, value, reason)

    def level(self, now_s: float) -> Optional[float]:
        return _quantile(self._values, now_s, 0.9)

    def expected(self, better: Setting, worse: Setting, fps: float) -> float:
        return 1 + POWER_SHARE * (work_ratio(better, worse, *EXPECTED) * rate_ratio(better, worse, fps) - 1)

    def most(self, better: Setting, worse: Setting, fps: float) -> float:
        return work_ratio(better, worse, *MOST) * rate_ratio(better, worse, fps)

    def ratio(self, better: float, worse: float) -> float:
        return better / worse if worse > 0 else 1.0

    def room(self, level: float, better: Setting, ratio: float) -> bool:
        return level * ratio <= (1 - POWER_MARGIN) * self.bound

    def improved(self, level: float, tried: float) -> bool:
        return level <= tried - POWER_IMPROVED * self.bound


class TempWatch(Watch):
    """Degrees Celsius, at most ``bound``: slow, so that one looks ahead."""

    name = "temp"
    dwell_s = 30.0
    up_dwell_s = 60.0
    settling_s = 600.0
    back_off_s = 1200.0
    trial_s = 3600.0

    def settled(self, now_s: float) -> Optional[float]:
        values = _last(self._values, now_s, TEMP_WINDOW_S)
        return self._middle(values) if values else None

    def slope(self, now_s: float, min_span_s: float = MIN_SPAN_S) -> Optional[float]:
        """Degrees a second by least squares over the last ``SLOPE_S`` on this rung; None: too few, too short."""
        n, oldest = 0, now_s
        sum_t = sum_v = sum_tt = sum_tv = 0.0
        for t, value in self._values:
            if now_s - t <= SLOPE_S:
                n, oldest = n + 1, min(oldest, t)
                t, value = t - now_s, value - self.bound  # small numbers: their squares lose nothing
                sum_t, sum_v, sum_tt, sum_tv = sum_t + t, sum_v + value, sum_tt + t * t, sum_tv + t * value
        if n < MIN_VALUES or self._values[-1][0] - oldest < min_span_s:
            return None
        return (n * sum_tv - sum_t * sum_v) / (n * sum_tt - sum_t * sum_t)

    def pressure(self, now_s: float, setting: Setting) -> Optional[Pressure]:
        value = self.settled(now_s)
        if value is None:
            return None
        over = value - self.bound
        if over < -NEAR_C:
            return None
        slope = self.slope(now_s, HOT_SPAN_S if over > 0 else MIN_SPAN_S)
        if over > 0:
            if slope is not None and over + HORIZON_S * slope <= 0:
                return None  # it cools, and fast enough
            reason = f"{value:.1f} C, at most {self.bound:g} C"
            return Pressure(1 + over / 10, 1 + (over > 3) + 2 * (over > 6), True, value, reason)
        if slope is None or slope <= SETTLED_C_S or over + HORIZON_S * slope <= 0:
            return None
        ahead = over + HORIZON_S * slope
        reason = f"{value:.1f} C and {60 * slope:+.1f} C a minute: {self.bound:g} C in {abs(over / slope):.0f} s"
        return Pressure(ahead / 10, 1 + (ahead > 4) + (ahead > 8), False, value, reason)

    def level(self, now_s: float) -> Optional[float]:
        value, slope = self.settled(now_s), self.slope(now_s)
        if value is None or slope is None or slope > SETTLED_C_S:
            return None
        if value > self.bound - 2 * TEMP_HYSTERESIS_C and now_s - self._since < SINK_S:
            return None
        return value + SINK_S * max(slope, 0.0)  # where it is going to, if a heat sink takes as long as most

    def room(self, level: float, better: Setting, ratio: float) -> bool:
        return level <= self.bound - TEMP_HYSTERESIS_C

    def improved(self, level: float, tried: float) -> bool:
        return level <= tried - COOLER_C


def _keep(values: Deque[Tuple[float, float]], now_s: float, value: float, since_s: float) -> None:
    """Add a value, unless it is of the seconds after a step; forget those that nothing looks at any more."""
    if now_s - since_s >= SETTLE_S:
        values.append((now_s, value))
    while values and now_s - values[0][0] > KEPT_S:
        values.popleft()


def _last(values: Iterable[Tuple[float, float]], now_s: float, window_s: float, at_least: int = 1) -> List[float]:
    """Those of the window; of longer, where frames take so long that these are fewer than ``at_least``."""
    found = [value for t, value in values if now_s - t < window_s]
    return found if len(found) >= at_least else [value for _, value in values][-at_least:]


def _quantile(values: Deque[Tuple[float, float]], now_s: float, share: float) -> Optional[float]:
    """Of the last ``ROOM_S``; None where they are not full."""
    if not values or now_s - values[0][0] < ROOM_S - SETTLE_S - 1.0:
        return None
    ordered = sorted(_last(values, now_s, ROOM_S, MIN_VALUES))
    return ordered[int(share * (len(ordered) - 1) + 0.5)] if len(ordered) >= MIN_VALUES else None
