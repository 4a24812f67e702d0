"""Smooth curves through given values."""

from __future__ import annotations

from typing import Optional, Sequence, Tuple

import numpy as np
from numpy.typing import ArrayLike


class Spline:
    """Piecewise cubic through values at given times, with a continuous first derivative (Catmull-Rom).

    Args:
        times: (n,) rising from 0, n >= 2.
        values: (n, d).
        period: of a loop, more than the last time; None for a path that stays at its last value.
        signless: ``v`` and ``-v`` mean the same (quaternions): neighbours are brought to one side first.
    """

    def __init__(self, times: ArrayLike, values: np.ndarray, period: Optional[float], signless: bool = False) -> None:
        self._times, self._values = np.asarray(times, dtype=np.float64), np.asarray(values, dtype=np.float64)
        self._period, self._signless = period, signless

    def _knot(self, i: int) -> Tuple[float, np.ndarray]:
        n = len(self._times)
        if self._period is not None:
            return float(self._times[i % n] + self._period * (i // n)), self._values[i % n]
        return float(self._times[min(max(i, 0), n - 1)]), self._values[min(max(i, 0), n - 1)]

    def at(self, t_s: float) -> np.ndarray:
        """(d,) at a time; wraps around in a loop, else clamps."""
        t = t_s % self._period if self._period is not None else min(max(t_s, 0.0), float(self._times[-1]))
        i = int(np.searchsorted(self._times, t, side="right")) - 1
        if self._period is None:
            i = min(i, len(self._times) - 2)
        knots = [self._knot(k) for k in (i - 1, i, i + 1, i + 2)]
        times, values = [k[0] for k in knots], [k[1] for k in knots]
        if self._signless:
            for k, neighbour in ((0, 1), (2, 1), (3, 2)):
                values[k] = values[k] if values[k] @ values[neighbour] >= 0 else -values[k]
        step = times[2] - times[1]
        u = (t - times[1]) / step
        # Slope at a knot: of the parabola through it and its neighbours; at an end, of the one leg there is.
        begin, end = (_slope(times[k : k + 3], values[k : k + 3]) for k in (0, 1))
        return (
            (2 * u**3 - 3 * u**2 + 1) * values[1]
            + (u**3 - 2 * u**2 + u) * step * begin
            + (3 * u**2 - 2 * u**3) * values[2]
            + (u**3 - u**2) * step * end
        )


def _slope(times: Sequence[float], values: Sequence[np.ndarray]) -> np.ndarray:
    before, after = times[1] - times[0], times[2] - times[1]
    if before == 0 or after == 0:
        return (values[2] - values[0]) / (before + after)
    left, right = (values[1] - values[0]) / before, (values[2] - values[1]) / after
    return (left * after + right * before) / (before + after)
