"""Power, energy, clocks, load and throttling of an NVIDIA GPU through NVML (extra ``nvidia``).

A call into the driver may take seconds, or never return once a GPU has fallen off its bus. The calls are therefore
made in a thread of their own; the collector waits a bounded time for it and goes on without.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from typing import Any, Callable, Dict, NamedTuple, Optional, Union

from edgegs.telemetry.nvml_card import ABSURD_W, REASONS, Card, CardValues, Device, NoCard, load
from edgegs.telemetry.readings import ABSENT, UNREADABLE, USABLE, Collector, Power, Readings
from edgegs.telemetry.wake import Wakeup

log = logging.getLogger("edgegs.telemetry")

#: The card's rail, and the same rail as the driver averages it. They are one power, never to be added.
RAIL, AVERAGE_RAIL = "gpu", "gpu:average"

#: Methods of a power. "usage" is nvmlDeviceGetPowerUsage: an average on cards since 2020, instant on older ones.
INSTANT, AVERAGE, USAGE, COUNTER = "nvml_instant", "nvml_average", "nvml_usage", "nvml_counter"

#: A card that is not there is looked for this often, and one that was lost this often, seconds.
ABSENT_RETRY_S, LOST_RETRY_S = 60.0, 10.0

#: Clocks held down for less than this between two readings are not called throttling, nanoseconds.
_MIN_HELD_NS = 1_000_000


class _Taken(NamedTuple):
    """Values with the time at which they were read (seconds) and the number of the opening of the card."""

    at: float
    opening: int
    values: CardValues

    def joules_since(self, before: Optional[_Taken]) -> Optional[float]:
        """What the energy counter has grown by; None where it cannot tell."""
        if before is None or before.opening != self.opening:
            return None
        now, then = self.values.values.get("energy"), before.values.values.get("energy")
        if now is None or then is None:
            return None
        # one that runs backwards was set to zero: by a reset, or by the driver's loading
        return now - then if 0.0 <= now - then <= ABSURD_W * (self.at - before.at) else None


class NvmlCollector(Collector):
    """One GPU through NVML.

    Rail ``gpu`` has the instant power where the card gives it (else the average one), and the joules of the card's
    own counter; ``gpu:average`` is the driver's average beside it. Throttling causes begin with ``gpu_``: those that
    hold the clocks down at the moment of reading, and those whose counters have risen since the previous one.

    Args:
        device: the GPU that draws: its PCI bus id, its UUID, or NVML's number of it. See ``select``.
        timeout_s: how long a reading may take. open_timeout_s: how long the very first may, which starts NVML.
        clock: seconds, monotonic.
    """

    name = source = "nvml"

    def __init__(
        self,
        device: Device = 0,
        timeout_s: float = 0.5,
        open_timeout_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._device = device
        self._timeout_s, self._timeout_next_s = timeout_s, open_timeout_s
        self._clock = clock
        self._errand: Optional[_Errand] = None
        self._counted: Optional[_Taken] = None  # where the energy counter's next difference begins
        self._before: Optional[_Taken] = None
        self._facts: Dict[str, str] = {}

        # touched by the errand's thread alone
        self._card: Optional[Card] = None
        self._opened: Optional[Device] = None
        self._openings = 0
        self._refusal: Optional[NoCard] = None
        self._retry_at = 0.0

    @property
    def facts(self) -> Dict[str, str]:
        """``gpu`` (name), ``gpu_pci`` and ``driver`` of the open card; empty before the first reading."""
        return dict(self._facts)

    def select(self, device: Device) -> None:
        """Read another GPU from the next reading on. From any thread."""
        self._device = device

    def close(self) -> None:
        """End the thread and give NVML back; a thread stuck in the driver is left behind."""
        errand, self._errand = self._errand, None
        if errand is not None:
            errand.end(self._timeout_s)

    def _read(self, readings: Readings) -> None:
        if self._errand is None:
            self._errand = _Errand(self._query, self._drop)
        timeout_s, self._timeout_next_s = self._timeout_next_s, self._timeout_s
        try:
            result = self._errand.run(timeout_s)
        except TimeoutError as late:
            readings.state, readings.cause = UNREADABLE, f"NVML {late}"
            return
        if isinstance(result, NoCard):
            readings.state, readings.cause = result.state, result.cause
        elif isinstance(result, Exception):
            raise result
        else:
            self._fill(readings, result)

    # ---- in the thread that may hang -------------------------------------------------------------------

    def _query(self) -> Union[_Taken, NoCard]:
        device = self._device
        if self._opened != device:
            self._drop()
            self._refusal = None
        if self._refusal is not None and self._clock() < self._retry_at:
            return self._refusal
        try:
            if self._card is None:
                self._opened = device
                self._card = Card(load(), device)
                self._openings += 1
                self._facts = self._card.facts
            values = self._card.read()
            if not values.values:
                causes = sorted(set(values.failed.values()))
                raise NoCard(UNREADABLE, "; ".join(causes) or "the card gives no figure")
        except NoCard as refusal:
            self._drop()
            self._refusal = refusal
            self._retry_at = self._clock() + (ABSENT_RETRY_S if refusal.state == ABSENT else LOST_RETRY_S)
            return refusal
        self._refusal = None
        return _Taken(self._clock(), self._openings, values)

    def _drop(self) -> None:
        card, self._card = self._card, None
        if card is not None:
            card.close()

    # ---- what the figures mean ---------------------------------------------------------------------------

    def _fill(self, readings: Readings, taken: _Taken) -> None:
        values = taken.values.values
        readings.state = USABLE
        readings.failed.update(taken.values.failed)
        self._fill_power(readings, taken)
        for target, key, name in (
            (readings.temp_c, "gpu", "temperature"),
            (readings.temp_c, "gpu_memory", "memory_temperature"),
            (readings.clk_hz, "gpu", "sm_clock"),
            (readings.clk_hz, "gpu_memory", "memory_clock"),
            (readings.load, "gpu", "gpu_load"),
            (readings.load, "gpu_memory", "memory_load"),
            (readings.details, "gpu_power_limit_w", "power_limit"),
            (readings.details, "gpu_performance_state", "performance_state"),
        ):
            if name in values:
                target[key] = values[name]
        self._fill_throttle(readings, taken)

    def _fill_power(self, readings: Readings, taken: _Taken) -> None:
        values, before = taken.values.values, self._counted
        joules = taken.joules_since(before)
        for name, method in (("power_instant", INSTANT), ("power_average", AVERAGE), ("power_usage", USAGE)):
            if name in values:
                readings.power_w[RAIL] = Power(values[name], method, joules)
                break
        else:
            if before is not None and joules:
                readings.power_w[RAIL] = Power(joules / (taken.at - before.at), COUNTER, joules)
            elif joules is not None or "energy" not in values:
                return  # no reading, and the next one's count bridges this moment
        self._counted = taken
        if RAIL in readings.power_w:
            readings.total_rail = RAIL
        if "power_instant" in values and "power_average" in values:
            readings.power_w[AVERAGE_RAIL] = Power(values["power_average"], AVERAGE)

    def _fill_throttle(self, readings: Readings, taken: _Taken) -> None:
        before, self._before = self._before, taken
        values = taken.values
        if values.reasons is None and not values.held_ns:
            return  # the card cannot tell
        causes = list(values.reasons or [])
        if before is not None and before.opening == taken.opening:
            for cause, held in values.held_ns.items():
                grown = held - before.values.held_ns.get(cause, held)
                if grown >= _MIN_HELD_NS and cause not in causes:
                    causes.append(cause)
        readings.throttle = causes
        named = [] if values.reasons is None else list(REASONS.values())
        readings.throttle_known = list(dict.fromkeys([*named, *values.held_ns]))


class _Errand:
    """Runs a function again and again in a thread that may be left behind.

    Args:
        function: what to run. last: what to run when the errand ends.
    """

    def __init__(self, function: Callable[[], Any], last: Callable[[], None]) -> None:
        self._function, self._last = function, last
        self._orders: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._done = Wakeup()
        self._ready = False
        self._result: Any = None
        self._since: Optional[float] = None
        self._thread = threading.Thread(target=self._work, name="edgegs-nvml", daemon=True)
        self._thread.start()

    def run(self, timeout_s: float) -> Any:
        """What the function returned, or the exception that it raised.

        Raises:
            TimeoutError: it is not back yet. A result that comes too late is thrown away, so that nobody takes it for
                one of now; until it is there, further calls raise at once.
        """
        if self._since is None or self._ready:
            self._begin()
        else:
            timeout_s = 0.0
        assert self._since is not None
        end = time.monotonic() + timeout_s
        while not self._ready and time.monotonic() < end:
            self._done.wait(end - time.monotonic())
        if not self._ready:
            raise TimeoutError(f"has not answered for {time.monotonic() - self._since:.1f} s")
        self._since = None
        return self._result

    def _begin(self) -> None:
        self._ready = False
        self._since = time.monotonic()
        self._orders.put(True)

    def end(self, timeout_s: float) -> None:
        """Run ``last`` and end the thread, or leave it behind where it is stuck."""
        self._orders.put(False)
        self._thread.join(timeout_s)
        self._done.close()

    def _work(self) -> None:
        while self._orders.get():
            try:
                result: Any = self._function()
            except Exception as error:
                result = error
            self._result = result
            self._ready = True
            self._done.set()
        try:
            self._last()
        except Exception:
            log.debug("NVML was not closed in order", exc_info=True)
