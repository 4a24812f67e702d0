"""The last minutes of a run, kept for whoever opens the page later."""

from __future__ import annotations

import collections
import threading
import time
from typing import Any, Callable, Deque, Dict, List, NamedTuple, Optional

#: How far back, and how close together samples are kept: 600 of them, about 100 KB.
SPAN_S, PERIOD_S = 600.0, 1.0

#: A window may end this much sooner after the one before and still be kept, share of the period.
_EARLY = 0.1


class _Point(NamedTuple):
    t_s: float
    fps: Optional[float]
    power_w: Dict[str, float]
    temp_c: Dict[str, float]


class History:
    """A ring of window figures, at most one a second. Thread-safe."""

    def __init__(
        self, span_s: float = SPAN_S, period_s: float = PERIOD_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._span_s, self._period_s, self._clock = span_s, period_s, clock
        self._lock = threading.Lock()
        self._points: Deque[_Point] = collections.deque(maxlen=int(span_s / period_s / (1 - _EARLY)) + 1)

    def add(self, t_ns: int, record: Dict[str, Any]) -> None:
        """Keep the figures of the window record that ended at monotonic ``t_ns``, unless it comes too soon."""
        power = {rail: figures["w"] for rail, figures in record.get("power_w", {}).items()}
        point = _Point(round(t_ns / 1e9, 2), record.get("fps"), power, record.get("temp_c", {}))
        with self._lock:
            if self._points and point.t_s - self._points[-1].t_s < (1 - _EARLY) * self._period_s:
                return
            self._points.append(point)
            while self._points[0].t_s < point.t_s - self._span_s:
                self._points.popleft()

    def since(self, after_s: Optional[float] = None) -> Dict[str, Any]:
        """What was kept, or only what is newer than ``after_s`` (monotonic seconds), as columns of equal length.

        Returns:
            ``now`` and ``span_s`` in seconds; ``t`` [monotonic seconds, rising]; ``fps`` [frames a second];
            ``power_w`` {rail: [watts]}; ``temp_c`` {sensor: [degrees]}. None stands where there was no value.
        """
        with self._lock:
            points = [point for point in self._points if after_s is None or point.t_s > after_s]
        return {
            "now": round(self._clock(), 2),
            "span_s": self._span_s,
            "t": [point.t_s for point in points],
            "fps": [point.fps for point in points],
            "power_w": _columns([point.power_w for point in points]),
            "temp_c": _columns([point.temp_c for point in points]),
        }


def _columns(rows: List[Dict[str, float]]) -> Dict[str, List[Optional[float]]]:
    names = dict.fromkeys(name for row in rows for name in row)  # a set would lose their order
    return {name: [row.get(name) for row in rows] for name in names}
