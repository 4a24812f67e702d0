"""Energy by rail: the power readings integrated by the trapezoid rule over exactly a window.

A rail that has its own energy counter contributes the counter's joules instead. A gap between two
readings that is too long to be bridged contributes nothing, and a window that is not covered by at
least nine tenths has no energy: absent is better than invented.
"""

from __future__ import annotations

from typing import Dict, List, NamedTuple

from edgegs.telemetry.readings import Power

#: Share of a window that must lie between readings that belong together.
MIN_COVERAGE = 0.9


class _Segment(NamedTuple):
    """Power running linearly from ``w0`` at ``t0`` to ``w1`` at ``t1`` (nanoseconds, watts)."""

    t0: int
    w0: float
    t1: int
    w1: float

    def joules(self, begin: int, end: int) -> float:
        """Integral over the part between begin and end; both must lie inside the segment."""
        slope = (self.w1 - self.w0) / (self.t1 - self.t0)
        first = self.w0 + slope * (begin - self.t0)
        last = self.w0 + slope * (end - self.t0)
        return (first + last) / 2 * (end - begin) / 1e9


class EnergyMeter:
    """Collects readings and gives the joules of any window that has not been asked for yet.

    Args:
        max_gap_s: two readings further apart than this are not joined.
    """

    def __init__(self, max_gap_s: float) -> None:
        self._max_gap_ns = int(max_gap_s * 1e9)
        self._last: Dict[str, _Segment] = {}
        self._segments: Dict[str, List[_Segment]] = {}

    def add(self, rail: str, t_ns: int, power: Power) -> None:
        """Take one reading of a rail (``t_ns`` monotonic nanoseconds, rising)."""
        before = self._last.get(rail)
        self._last[rail] = _Segment(t_ns, power.watts, t_ns, power.watts)
        if before is None or t_ns <= before.t1:
            return
        if power.energy_j is not None:
            watts = power.energy_j / ((t_ns - before.t1) / 1e9)
            segment = _Segment(before.t1, watts, t_ns, watts)
        elif t_ns - before.t1 <= self._max_gap_ns:
            segment = _Segment(before.t1, before.w1, t_ns, power.watts)
        else:
            return
        self._segments.setdefault(rail, []).append(segment)

    def window(self, begin_ns: int, end_ns: int) -> Dict[str, float]:
        """Joules by rail between two monotonic times; then everything before ``end_ns`` is forgotten."""
        joules: Dict[str, float] = {}
        for rail, segments in self._segments.items():
            total, covered = 0.0, 0
            for segment in segments:
                begin, end = max(begin_ns, segment.t0), min(end_ns, segment.t1)
                if end > begin:
                    total += segment.joules(begin, end)
                    covered += end - begin
            if end_ns > begin_ns and covered >= MIN_COVERAGE * (end_ns - begin_ns):
                # The edges that no reading brackets (milliseconds at the start) count as the rest did.
                joules[rail] = total * (end_ns - begin_ns) / covered
        self._segments = {
            rail: [segment for segment in segments if segment.t1 > end_ns] for rail, segments in self._segments.items()
        }
        return joules
