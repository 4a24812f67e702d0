"""What the collectors hand over: one ``Readings`` a collector and tick, merged into one ``Sample`` a tick.

A value that could not be read is absent from its dictionary. It is never 0, never -256 and never the
previous value.
"""

from __future__ import annotations

import logging
import re
import time
from dataclasses import dataclass, field
from typing import Dict, Iterable, List, Optional, Tuple

log = logging.getLogger("edgegs.telemetry")

#: Something was read; the hardware is there but nothing could be read; the hardware is not there.
USABLE, UNREADABLE, ABSENT = "usable", "unreadable", "absent"


@dataclass(frozen=True)
class Power:
    """One rail's power.

    Attributes:
        watts: at the moment of reading.
        method: how it was measured: "ina3221_iio", "jtop", "nvml_instant" … One that ends in "_counter" tells that the
            watts are ``energy_j``'s own mean, and so how long these joules took.
        energy_j: joules since the previous reading, where the hardware counts energy itself.
    """

    watts: float
    method: str
    energy_j: Optional[float] = None


@dataclass
class Readings:
    """What one collector read in one tick.

    Attributes:
        collector: the collector's name.
        t_mono_ns: monotonic time in the middle of the read; of a source that sends, when its values came.
        state: ``USABLE``, ``UNREADABLE`` or ``ABSENT``; ``cause`` says why it is not usable.
        power_w: by the board's own rail names. total_rail: the rail that already is the board's total.
        temp_c, clk_hz, load: degrees Celsius, hertz, and 0..1, by sensor or clock domain.
        clk_limits_hz: (lowest, highest) frequency that is allowed now, by clock domain.
        throttle: causes seen now; empty when none, None when this collector cannot tell.
        throttle_known: causes that this collector looked for, seen or not.
        throttle_counts: throttling events that the hardware counted since the previous reading.
        failed: sensors that exist but gave no value, with the cause.
        details: other figures, by a name that says the unit ("gpu_power_limit_w").
        ram_bytes: memory of the whole machine, "used" and "total".
        source: where the values come from ("sysfs", "jtop", "tegrastats", "nvml"); "": the collector's name.
    """

    collector: str
    t_mono_ns: int = 0
    state: str = ABSENT
    cause: str = ""
    power_w: Dict[str, Power] = field(default_factory=dict)
    total_rail: Optional[str] = None
    temp_c: Dict[str, float] = field(default_factory=dict)
    clk_hz: Dict[str, float] = field(default_factory=dict)
    clk_limits_hz: Dict[str, Tuple[float, float]] = field(default_factory=dict)
    load: Dict[str, float] = field(default_factory=dict)
    throttle: Optional[List[str]] = None
    throttle_known: List[str] = field(default_factory=list)
    throttle_counts: Dict[str, int] = field(default_factory=dict)
    failed: Dict[str, str] = field(default_factory=dict)
    details: Dict[str, float] = field(default_factory=dict)
    ram_bytes: Dict[str, float] = field(default_factory=dict)
    source: str = ""

    @property
    def success(self) -> bool:
        return self.state == USABLE


class Collector:
    """One kind of sensor. A subclass fills ``Readings`` in ``_read``; what that raises becomes a cause."""

    name = ""
    #: As ``Readings.source``.
    source = ""
    #: What ``collect`` gave last.
    latest: Optional[Readings] = None

    def collect(self) -> Readings:
        """Read once. Never raises: a failure is ``success == False`` with its cause."""
        before = time.monotonic_ns()
        readings = Readings(self.name, before, source=self.source)
        try:
            self._read(readings)
        except Exception as error:
            log.debug("collector %s failed", self.name, exc_info=True)
            readings = Readings(self.name, before, state=UNREADABLE, source=self.source)
            readings.cause = f"{type(error).__name__}: {error}"
        readings.t_mono_ns = (before + time.monotonic_ns()) // 2
        self.latest = readings
        return readings

    def _read(self, readings: Readings) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Let go of what the collector holds open."""


@dataclass
class Sample:
    """All collectors' readings of one tick; ``collectors`` keeps them apart, the rest is merged.

    Attributes:
        sources: where each value comes from: {"temp_c": {"CPU-therm": "sysfs"}}; of throttling causes, too.
    """

    t_mono_ns: int
    collectors: Dict[str, Readings] = field(default_factory=dict)
    power_w: Dict[str, Power] = field(default_factory=dict)
    power_t_ns: Dict[str, int] = field(default_factory=dict)
    total_rail: Optional[str] = None
    temp_c: Dict[str, float] = field(default_factory=dict)
    clk_hz: Dict[str, float] = field(default_factory=dict)
    clk_limits_hz: Dict[str, Tuple[float, float]] = field(default_factory=dict)
    load: Dict[str, float] = field(default_factory=dict)
    throttle: Optional[List[str]] = None
    throttle_known: List[str] = field(default_factory=list)
    throttle_counts: Dict[str, int] = field(default_factory=dict)
    details: Dict[str, float] = field(default_factory=dict)
    ram_bytes: Dict[str, float] = field(default_factory=dict)
    sources: Dict[str, Dict[str, str]] = field(default_factory=dict)


#: Sources that read the same sensors of a board, and call some of them by the first word of the kernel's name only.
_BOARD_SOURCES = ("sysfs", "jtop", "tegrastats")

_VALUES = ("power_w", "temp_c", "clk_hz", "clk_limits_hz", "load", "details", "ram_bytes")


def merge(t_mono_ns: int, readings: Iterable[Readings]) -> Sample:
    """One ``Sample`` from the readings of a tick; of two equal names the first collector's stands.

    A sensor of a board keeps the kernel's name, where sysfs shows it, whichever source reads it: "AO" of jtop is
    "AO-therm", so that it is neither there twice nor another one when its source fails.
    """
    sample = Sample(t_mono_ns)
    readings = list(readings)
    kernel_names = _kernel_names(readings)
    for one in readings:
        sample.collectors[one.collector] = one
        source = one.source or one.collector
        if sample.total_rail is None:
            sample.total_rail = one.total_rail
        for kind in _VALUES:
            merged = getattr(sample, kind)
            for key, value in getattr(one, kind).items():
                if kind == "temp_c" and source in _BOARD_SOURCES[1:]:
                    key = kernel_names.get(_first_word(key), key)
                if key not in merged:
                    merged[key] = value
                    sample.sources.setdefault(kind, {})[key] = source
                    if kind == "power_w":
                        sample.power_t_ns[key] = one.t_mono_ns
        if one.throttle is not None:
            seen = sample.throttle or []
            sample.throttle = seen + [cause for cause in one.throttle if cause not in seen]
            for cause in one.throttle:
                sample.sources.setdefault("throttle", {}).setdefault(cause, source)
        sample.throttle_known += [cause for cause in one.throttle_known if cause not in sample.throttle_known]
        for cause, count in one.throttle_counts.items():
            sample.throttle_counts[cause] = sample.throttle_counts.get(cause, 0) + count
    return sample


def _kernel_names(readings: List[Readings]) -> Dict[str, str]:
    """{first word: name} of the sensors that sysfs shows, whether it could read them or not."""
    names: Dict[str, str] = {}
    for one in readings:
        if one.collector in ("thermal", "hwmon"):
            for name in (*one.temp_c, *one.failed):
                names.setdefault(_first_word(name), name)
    return names


def _first_word(name: str) -> str:
    return re.split(r"[-_: #]", name, maxsplit=1)[0].lower()


def unique(name: str, taken: Iterable[str]) -> str:
    """``name``, or ``name#2``, ``name#3`` … where a sensor of that name is there already."""
    names = set(taken)
    candidate, number = name, 1
    while candidate in names:
        number += 1
        candidate = f"{name}#{number}"
    return candidate
