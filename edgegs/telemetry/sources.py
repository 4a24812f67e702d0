"""Which source gives what: the setting ``telemetry.source`` as collectors, in the order in which they count.

Of a value that several sources give, the first one's counts, tick by tick: where jtop has gone, sysfs gives the very
same tick's value. Every value says which source it came from (``Sample.sources``).
"""

from __future__ import annotations

import logging
import os
import time
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Set

from edgegs.errors import ConfigError
from edgegs.telemetry.background import Background
from edgegs.telemetry.board import Board
from edgegs.telemetry.clocks import Clocks
from edgegs.telemetry.power import Ina3221, Rapl
from edgegs.telemetry.reader import SensorReader
from edgegs.telemetry.readings import ABSENT, Collector, Readings
from edgegs.telemetry.sysfs import HwmonTemperatures, ThermalZones
from edgegs.telemetry.throttle import Cooling, CpuThrottle, KernelAlarms, OverCurrent

log = logging.getLogger("edgegs.telemetry")

SOURCES = ("auto", "jtop", "sysfs", "tegrastats", "nvml", "none")

#: Seconds: a standby that answers but is of no use for TRIAL_S, or is no longer needed for LINGER_S, is stopped; one
#: that was of no use is tried again after RETRY_S, then after twice that, and so on.
TRIAL_S, LINGER_S, RETRY_S, LONGEST_RETRY_S = 15.0, 60.0, 600.0, 86400.0

#: How long a second standby leaves the first one alone, seconds.
SECOND_PATIENCE_S = 10.0


def make_collectors(
    source: str,
    sysfs_root: str,
    reader: SensorReader,
    board: Board,
    interval_s: float = 1.0,
    tegrastats: str = "tegrastats",
    connect_jtop: Optional[Callable[[float], Any]] = None,
) -> List[Collector]:
    """The collectors of a source.

    - "sysfs": the kernel's files alone.
    - "jtop", "tegrastats": that one first, and sysfs for what it does not tell, or when it fails.
    - "nvml": sysfs, and the graphics card.
    - "auto": what works now. sysfs first, which needs no other program and tells when a value was read. On a desktop
      the graphics card, if it has NVML. On a Jetson jtop (if it is installed), then tegrastats, are started while
      those before them leave power, temperatures or the GPU's clock and load out: where only root may read them.
    - "none": none.

    A source that was asked for and cannot be used is an unreadable collector with a cause, never an error: the picture
    does not depend on it.

    Args:
        sysfs_root: where sysfs is mounted. "auto" asks no program about a made-up root.
        interval_s: distance of the readings. tegrastats: the program. connect_jtop: replaces ``jtop_source.connect``.

    Raises:
        ConfigError: there is no such source.
    """
    if source not in SOURCES:
        raise ConfigError("telemetry.source: {!r} is not one of {}".format(source, ", ".join(SOURCES)))
    if source == "none":
        return []
    sysfs = _sysfs(sysfs_root, reader, board)
    real = os.path.realpath(sysfs_root) == "/sys"
    if source == "jtop":
        return [_jtop(interval_s, connect_jtop), *sysfs]
    if source == "tegrastats":
        return [_tegrastats(interval_s, tegrastats), *sysfs]
    if source == "nvml" or (source == "auto" and real and not board.is_tegra):
        from edgegs.telemetry.nvml import NvmlCollector

        return [*sysfs, NvmlCollector()]
    if source == "auto" and board.is_tegra and (real or connect_jtop is not None or tegrastats != "tegrastats"):
        return _with_standbys(sysfs, interval_s, tegrastats, connect_jtop)
    return sysfs


def _sysfs(root: str, reader: SensorReader, board: Board) -> List[Collector]:
    kinds = (ThermalZones, HwmonTemperatures, Ina3221, Rapl, Clocks, Cooling, OverCurrent)
    collectors: List[Collector] = [kind(root, reader) for kind in kinds]
    if not board.is_tegra:
        collectors.append(CpuThrottle(root, reader))
    elif os.path.realpath(root) == "/sys":
        collectors.append(KernelAlarms())
    return collectors


def _jtop(interval_s: float, connect: Optional[Callable[[float], Any]]) -> Background:
    from edgegs.telemetry import jtop_source

    return jtop_source.Jtop(interval_s, connect or jtop_source.connect)


def _tegrastats(interval_s: float, path: str) -> Background:
    from edgegs.telemetry.tegrastats import Tegrastats

    return Tegrastats(interval_s, path)


def _with_standbys(
    sysfs: List[Collector], interval_s: float, tegrastats: str, connect: Optional[Callable[[float], Any]]
) -> List[Collector]:
    import shutil

    from edgegs.telemetry import jtop_source

    collectors = list(sysfs)
    if connect is not None or jtop_source.installed():
        collectors.append(Standby(_jtop(interval_s, connect), collectors))
    if shutil.which(tegrastats):
        patience_s = SECOND_PATIENCE_S if len(collectors) > len(sysfs) else 0.0
        collectors.append(Standby(_tegrastats(interval_s, tegrastats), collectors, patience_s))
    return collectors


class Standby(Collector):
    """A source that runs only while those before it leave out something that it can give.

    Asking it costs the board work, and with it the measurement; so it does not run beside a source that gives all. It
    is started when something has been missing in two readings in a row, and at once when it was there before.

    Args:
        inner: the source. before: those that count before it, read earlier in each tick.
        patience_s: how long something must have been missing that was never there.
    """

    def __init__(
        self,
        inner: Background,
        before: Sequence[Collector],
        patience_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name, self.source = inner.name, inner.source
        self._inner, self._before, self._patience_s, self._clock = inner, tuple(before), patience_s, clock
        self._had: Set[str] = set()
        self._missing_since: Optional[float] = None
        self._running = self._was_of_use = False
        self._useful_at = self._retry_at = 0.0
        self._retry_s = RETRY_S

    def collect(self) -> Readings:
        now = self._clock()
        given = _given(one.latest for one in self._before)
        missing = _WANTED - given
        lost = missing & self._had
        self._had |= given
        if not self._running and not self._is_due(now, missing, lost):
            self.latest = Readings(self.name, time.monotonic_ns(), source=self.source, state=ABSENT, cause="stands by")
            return self.latest
        if not self._running:
            log.info("telemetry: %s is asked for %s", self.name, ", ".join(sorted(missing)))
            self._running, self._was_of_use, self._useful_at = True, False, now
        self.latest = readings = self._inner.collect()
        if missing & _given([readings]):
            self._was_of_use, self._useful_at = True, now
        elif missing and not readings.success:
            self._useful_at = now  # nobody knows yet; what fails costs next to nothing, and may come back
        elif now - self._useful_at > (LINGER_S if self._was_of_use else TRIAL_S):
            self._rest(now, missing)
        return readings

    def close(self) -> None:
        self._inner.close()

    def _is_due(self, now: float, missing: Set[str], lost: Set[str]) -> bool:
        if not missing:
            self._missing_since = None
            return False
        if self._missing_since is None:
            self._missing_since = now
        waited_s = now - self._missing_since
        return now >= self._retry_at and bool(lost or (waited_s > 0 and waited_s >= self._patience_s))

    def _rest(self, now: float, missing: Set[str]) -> None:
        self._inner.rest()
        self._running, self._missing_since = False, None
        if self._was_of_use or not missing:
            self._retry_s = RETRY_S
            return
        self._retry_at = now + self._retry_s
        self._retry_s = min(2 * self._retry_s, LONGEST_RETRY_S)


#: What every Jetson has, except a Nano 2GB its power.
_WANTED = {"power", "temperatures", "the GPU's clock", "the GPU's load"}


def _given(readings: Iterable[Optional[Readings]]) -> Set[str]:
    given: Set[str] = set()
    for one in readings:
        if one is not None:
            given |= {"power"} if one.power_w else set()
            given |= {"temperatures"} if one.temp_c else set()
            given |= {"the GPU's clock"} if "gpu" in one.clk_hz else set()
            given |= {"the GPU's load"} if "gpu" in one.load else set()
    return given


def told(sources: Dict[str, Dict[str, str]]) -> Dict[str, str]:
    """``Sample.sources`` for a record: {"temp_c": "sysfs"}, and {"temp_c/gpu": "nvml"} for one from elsewhere."""
    result: Dict[str, str] = {}
    for kind, by_name in sources.items():
        given = list(by_name.values())
        most = max(dict.fromkeys(given), key=given.count)
        result[kind] = most
        result.update({f"{kind}/{name}": source for name, source in by_name.items() if source != most})
    return result
