"""Sources that send, or that may block: asked in a thread of their own, so that the sampler never waits for them."""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from typing import Optional, Tuple

from edgegs.sinks.backoff import Backoff
from edgegs.telemetry.readings import ABSENT, UNREADABLE, USABLE, Collector, Readings
from edgegs.telemetry.wake import Wakeup

log = logging.getLogger("edgegs.telemetry")

#: A value is given for so many periods after it came; then it is stale, and absent.
STALE_PERIODS = 2.5

#: A source that has just been started is not called unreadable before so many seconds without an answer.
PATIENCE_S = 8.0

#: Between two attempts, seconds: the first wait and the longest.
RETRY_S = (1.0, 30.0)

#: How long ``close`` waits for the thread; one that a service holds is left behind.
_CLOSE_S = 2.0


class Life:
    """One run of a source's thread: whether it is to end, and how it waits."""

    def __init__(self) -> None:
        self.stopping = False
        self.heard = False
        self._wake = Wakeup()

    def wait(self, timeout_s: float) -> bool:
        """Wait; True when the thread is to end."""
        end = time.monotonic() + timeout_s
        while not self.stopping and time.monotonic() < end:
            self._wake.wait(end - time.monotonic())
        return self.stopping

    def stop(self) -> None:
        self.stopping = True
        self._wake.set()

    def end(self) -> None:
        self._wake.close()


class Background(Collector):
    """A collector whose values come from a thread: the last ones count until they are stale.

    A subclass's ``_session`` connects and calls ``_put`` whenever there are values, until ``life.stopping``. What it
    raises is the cause that ``collect`` tells; the next session follows after a wait that grows from 1 to 30 s. Each
    has a thread of its own: multiprocessing's clients keep a connection a thread, also one whose server has gone.

    Args:
        period_s: how often the source has new values. retry_s: the first and the longest wait between two sessions.
    """

    def __init__(self, period_s: float, retry_s: Tuple[float, float] = RETRY_S) -> None:
        self.period_s = period_s
        self._retry_s = retry_s
        self._lock = threading.Lock()  # guards which thread is the present one
        self._thread: Optional[threading.Thread] = None
        self._life: Optional[Life] = None
        self._began_s = 0.0
        # each is replaced as a whole, by the thread; whoever reads one gets an old or a new one
        self._values: Optional[Readings] = None
        self._cause = ""

    @property
    def stale_s(self) -> float:
        """Age at which a value is absent, seconds."""
        return STALE_PERIODS * self.period_s

    def collect(self) -> Readings:
        """The last values while they are fresh; ``t_mono_ns`` is when they came. Never waits; starts the thread."""
        thread = self._current()
        if thread is None or not thread.is_alive():
            self._start()
        now = time.monotonic_ns()
        values, cause = self._values, self._cause
        age_s = (now - values.t_mono_ns) / 1e9 if values is not None else 0.0
        if values is not None and age_s <= self.stale_s:
            readings = dataclasses.replace(values)
        else:
            readings = Readings(self.name, now, source=self.source, state=UNREADABLE)
            if cause:
                readings.cause = cause
            elif values is not None:
                readings.cause = f"no news for {age_s:.1f} s"
            elif now / 1e9 - self._began_s <= PATIENCE_S:
                readings.state, readings.cause = ABSENT, "has just been started"
            else:
                readings.cause = f"no answer for {now / 1e9 - self._began_s:.0f} s"
        self.latest = readings
        return readings

    def close(self) -> None:
        """End the thread; ``collect`` would start it again. One that its source holds is left behind."""
        self.rest()
        thread, joined = self._current(), None
        while thread is not joined and thread is not None:  # it may just have handed over to the next one
            thread.join(_CLOSE_S)
            if thread.is_alive():
                log.warning("the thread of telemetry source %s is held by it and left behind", self.name)
                return  # kept, so that ``collect`` starts no second one beside it
            thread, joined = self._current(), thread
        self._thread = self._life = self._values = None

    def rest(self) -> None:
        """Have the thread end, without waiting for it; ``collect`` starts another one when it has."""
        if self._life is not None:
            self._life.stop()

    def _session(self, life: Life) -> None:
        raise NotImplementedError

    def _put(self, life: Life, readings: Readings) -> None:
        """Take values that have just come."""
        if life.stopping:
            return
        readings.t_mono_ns = time.monotonic_ns()
        readings.state = USABLE
        life.heard = True
        self._values, self._cause = readings, ""

    def _new(self) -> Readings:
        return Readings(self.name, source=self.source)

    def _current(self) -> Optional[threading.Thread]:
        with self._lock:
            return self._thread

    def _start(self) -> None:
        self._values, self._cause = None, ""
        self._began_s = time.monotonic()
        self._life = Life()
        self._next(self._life, Backoff(*self._retry_s), 0.0)

    def _next(self, life: Life, backoff: Backoff, wait_s: float) -> None:
        thread = threading.Thread(
            target=self._run, args=(life, backoff, wait_s), name=f"edgegs-{self.name}", daemon=True
        )
        with self._lock:
            thread.start()
            self._thread = thread

    def _run(self, life: Life, backoff: Backoff, wait_s: float) -> None:
        if life.wait(wait_s):
            life.end()
            return
        life.heard = False
        began = time.monotonic()
        try:
            self._session(life)
            cause = "has ended"
        except Exception as error:
            log.debug("telemetry source %s failed", self.name, exc_info=True)
            cause = " ".join(str(error).split()) or type(error).__name__
        if life.stopping:
            life.end()
            return
        self._cause = cause
        if life.heard:
            backoff.opened(began)
            backoff.failed(time.monotonic())
        self._next(life, backoff, backoff.next_wait())
