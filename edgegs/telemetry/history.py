"""The last minutes of a run, kept for whoever opens the page later."""

from __future__ import annotations

import threading
import time
from typing import Any, Callable, Dict, List, Optional

import numpy as np

#: How far back, and how close together samples are kept: 600 of them, 5 KB a column.
SPAN_S, PERIOD_S = 600.0, 1.0

#: A window may end this much sooner after the one before and still be kept, share of the period.
_EARLY = 0.1


class History:
    """A ring of window figures, at most one a second. Thread-safe.

    Each column is allocated whole when its first value comes: the ring takes no more memory after ten minutes than
    after one.
    """

    def __init__(
        self, span_s: float = SPAN_S, period_s: float = PERIOD_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._span_s, self._period_s, self._clock = span_s, period_s, clock
        self._lock = threading.Lock()
        self._length = int(span_s / period_s / (1 - _EARLY)) + 1
        self._n = 0  # samples so far; the newest stands at (n - 1) % length
        self._t_s, self._fps = self._column(), self._column()
        self._power_w: Dict[str, np.ndarray] = {}
        self._temp_c: Dict[str, np.ndarray] = {}

    def _column(self) -> np.ndarray:
        return np.full(self._length, np.nan)

    def add(self, t_ns: int, record: Dict[str, Any]) -> None:
        """Keep the figures of the window record that ended at monotonic ``t_ns``, unless it comes too soon."""
        t_s = round(t_ns / 1e9, 2)
        with self._lock:
            if self._n and t_s - self._t_s[(self._n - 1) % self._length] < (1 - _EARLY) * self._period_s:
                return
            place = self._n % self._length
            self._n += 1
            fps = record.get("fps")
            self._t_s[place], self._fps[place] = t_s, np.nan if fps is None else fps
            power = {rail: figures["w"] for rail, figures in record.get("power_w", {}).items()}
            self._put(self._power_w, place, power)
            self._put(self._temp_c, place, record.get("temp_c", {}))

    def _put(self, columns: Dict[str, np.ndarray], place: int, values: Dict[str, float]) -> None:
        for name in values:
            if name not in columns:
                columns[name] = self._column()
        for name, column in columns.items():
            column[place] = values.get(name, np.nan)

    def since(self, after_s: Optional[float] = None) -> Dict[str, Any]:
        """What was kept, or only what is newer than ``after_s`` (monotonic seconds), as columns of equal length.

        Returns:
            ``now`` and ``span_s`` in seconds; ``t`` [monotonic seconds, rising]; ``fps`` [frames a second];
            ``power_w`` {rail: [watts]}; ``temp_c`` {sensor: [degrees]}. None stands where there was no value.
        """
        with self._lock:
            places = np.arange(max(0, self._n - self._length), self._n) % self._length
            times = self._t_s[places]
            if len(times):
                begin = times[-1] - self._span_s
                places = places[(times >= begin) & (times > (begin - 1 if after_s is None else after_s))]
            return {
                "now": round(self._clock(), 2),
                "span_s": self._span_s,
                "t": self._t_s[places].tolist(),
                "fps": _plain(self._fps[places]),
                "power_w": _columns(self._power_w, places),
                "temp_c": _columns(self._temp_c, places),
            }


def _plain(values: np.ndarray) -> List[Optional[float]]:
    return [None if value != value else value for value in values.tolist()]


def _columns(columns: Dict[str, np.ndarray], places: np.ndarray) -> Dict[str, List[Optional[float]]]:
    """Those that have a value there, as lists."""
    shown = {name: _plain(column[places]) for name, column in columns.items()}
    return {name: values for name, values in shown.items() if any(value is not None for value in values)}
