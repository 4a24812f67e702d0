"""The thread that reads the sensors once an interval, so that nobody who draws ever waits for a sensor."""

from __future__ import annotations

import logging
import math
import threading
import time
from typing import Callable, List, Optional, Sequence

from edgegs.telemetry.reader import SensorReader
from edgegs.telemetry.readings import UNREADABLE, Collector, Readings, Sample, merge
from edgegs.telemetry.wake import Wakeup

log = logging.getLogger("edgegs.telemetry")


class Sampler:
    """Reads all collectors every ``interval_s`` by the monotonic clock and keeps the last sample.

    Args:
        collectors: what to read, in this order.
        interval_s: seconds from tick to tick; a late tick is not made up for.
        on_begin: called with the tick's monotonic time before the sensors are read.
        on_sample: called with the sample afterwards. Both run in the sampler's thread; what they raise
            is logged and does not end it.
        reader: closed when the sampler stops, if given.

    The last tick runs during ``stop``, so that a window that has begun is ended.
    """

    def __init__(
        self,
        collectors: Sequence[Collector],
        interval_s: float = 1.0,
        on_begin: Optional[Callable[[int], None]] = None,
        on_sample: Optional[Callable[[Sample], None]] = None,
        reader: Optional[SensorReader] = None,
    ) -> None:
        if not interval_s > 0:
            raise ValueError(f"interval_s must be above 0, not {interval_s!r}")
        self._collectors = list(collectors)
        self._interval_s = interval_s
        self._on_begin, self._on_sample = on_begin, on_sample
        self._reader = reader
        self._stop = threading.Event()
        self._wake: Optional[Wakeup] = None
        self._thread: Optional[threading.Thread] = None
        self._latest: Optional[Sample] = None

    @property
    def latest(self) -> Optional[Sample]:
        """The last complete sample; None before the first. Costs nothing."""
        return self._latest

    def sample(self) -> Sample:
        """Read every collector once, here and now."""
        now = time.monotonic_ns()
        readings: List[Readings] = []
        for collector in self._collectors:
            try:
                readings.append(collector.collect())
            except Exception as error:  # a collector is written not to raise; one that does costs only itself
                cause = f"{type(error).__name__}: {error}"
                readings.append(Readings(collector.name, now, state=UNREADABLE, cause=cause))
        return merge(now, readings)

    def start(self) -> None:
        """Start the thread; its first tick comes at once."""
        if self._thread is not None:
            raise RuntimeError("the sampler is running already")
        self._stop.clear()
        self._wake = Wakeup()
        self._thread = threading.Thread(target=self._run, name="edgegs-telemetry", daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> bool:
        """Run the last tick and end the thread; True when it has ended within the time-out."""
        thread, self._thread = self._thread, None
        self._stop.set()
        if thread is not None and self._wake is not None:
            self._wake.set()
            thread.join(timeout_s)
            if thread.is_alive():
                log.warning("the sensor thread did not end within %g s and is left behind", timeout_s)
                return False
            self._wake.close()
        for collector in self._collectors:
            collector.close()
        if self._reader is not None:
            self._reader.close()
        return True

    def _run(self) -> None:
        assert self._wake is not None
        due = time.monotonic()
        while True:
            stopping = self._stop.is_set()
            self._tick()
            if stopping:
                return
            late = time.monotonic() - (due + self._interval_s)
            due += self._interval_s * (1 + max(0, math.ceil(late / self._interval_s)))
            while not self._stop.is_set() and time.monotonic() < due:
                self._wake.wait(due - time.monotonic())

    def _tick(self) -> None:
        try:
            if self._on_begin is not None:
                self._on_begin(time.monotonic_ns())
            sample = self.sample()
            self._latest = sample
            if self._on_sample is not None:
                self._on_sample(sample)
        except Exception:
            log.exception("telemetry tick failed")
