"""When to try again, and how often to say so."""

from __future__ import annotations

from typing import Optional


class Backoff:
    """Waits of 1, 2, 4 … up to a longest one, in seconds.

    It starts over only after an output has been up for as long as the longest wait: a device that opens and
    fails at once again must not be opened every second for days.
    """

    def __init__(self, first_s: float = 1.0, longest_s: float = 30.0) -> None:
        if not 0 < first_s <= longest_s:
            raise ValueError("expected 0 < first_s <= longest_s")
        self._first_s, self._longest_s = first_s, longest_s
        self._wait_s = first_s
        self._opened_at = 0.0

    def opened(self, now: float) -> None:
        self._opened_at = now

    def failed(self, now: float) -> None:
        """The output failed after it had been opened."""
        if now - self._opened_at >= self._longest_s:
            self._wait_s = self._first_s

    def next_wait(self) -> float:
        wait, self._wait_s = self._wait_s, min(2 * self._wait_s, self._longest_s)
        return wait


class LogLimiter:
    """Lets ``burst`` lines through at once and one more every ``period_s``; counts the others."""

    def __init__(self, burst: int = 3, period_s: float = 60.0) -> None:
        self._burst, self._period_s = burst, period_s
        self._left = float(burst)
        self._at: Optional[float] = None
        self._kept_back = 0

    def allow(self, now: float) -> Optional[int]:
        """None: keep the line back. Else say it; the number tells how many were kept back since the last."""
        if self._at is not None:
            self._left = min(float(self._burst), self._left + (now - self._at) / self._period_s)
        self._at = now
        if self._left < 1.0:
            self._kept_back += 1
            return None
        self._left -= 1.0
        kept_back, self._kept_back = self._kept_back, 0
        return kept_back
