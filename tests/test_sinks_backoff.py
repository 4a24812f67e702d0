"""When an output is tried again, and how often that is logged."""

from __future__ import annotations

import pytest

from edgegs.sinks.backoff import Backoff, LogLimiter


def test_back_off_starts_over_only_after_a_long_time_up():
    backoff = Backoff(1, 30)
    assert [backoff.next_wait() for _ in range(4)] == [1, 2, 4, 8]
    backoff.opened(100)
    backoff.failed(101)
    assert backoff.next_wait() == 16
    backoff.opened(200)
    backoff.failed(230)
    assert backoff.next_wait() == 1
    with pytest.raises(ValueError):
        Backoff(0, 1)


def test_log_limiter_counts_what_it_keeps_back():
    limiter = LogLimiter(burst=2, period_s=60)
    assert [limiter.allow(0), limiter.allow(0), limiter.allow(0), limiter.allow(30)] == [0, 0, None, None]
    assert limiter.allow(60) == 2
    assert limiter.allow(61) is None
    assert [limiter.allow(1000), limiter.allow(1000), limiter.allow(1000)] == [1, 0, None]
