"""Signs of throttling: clocks under load, cooling devices, counters and alarms of the hardware, the kernel's log.

A cause is told as long as it is seen; what the hardware counts itself is counted as the hardware does.
Unconfirmed on hardware are the files of Orin: ``grep . /sys/class/hwmon/hwmon*/{oc*_event_cnt,curr*_alarm}``.
"""

from __future__ import annotations

import errno
import os
import re
from typing import Dict, List, Optional, Tuple

from edgegs.telemetry.reader import SensorReader, number, text
from edgegs.telemetry.readings import ABSENT, UNREADABLE, USABLE, Collector, Readings
from edgegs.telemetry.sysfs import SysfsCollector, conclude, find

#: Cooling devices whose state limits no clock: fans, displays, radios, a surface warning, a fixed offset.
_NO_LIMIT = re.compile(r"fan|lcd|backlight|hot-surface|iwl|wifi|ath1|tcc|charg|battery", re.IGNORECASE)

#: The GPU counts as held down when it is this busy and still this far below what it is allowed.
_BUSY, _BELOW = 0.95, 0.95

#: soctherm_oc counters of Orin, by what the hardware reacts to.
_OVER_CURRENT = {"oc1": "under_voltage", "oc2": "over_current_average", "oc3": "over_current_peak"}

_ALARM = re.compile(rb"soctherm: OC ALARM")

#: Lines of kernel log taken in one tick, so that a flooding kernel cannot hold the sampler.
_MAX_LINES = 256


class HeldDown:
    """Sign ``gpu_clock``: the GPU was fully busy in two readings in a row and ran below the frequency it is allowed.

    One reading may just be a governor on its way up.
    """

    def __init__(self) -> None:
        self._before = False

    def judge(self, readings: Readings) -> None:
        """Set ``throttle`` by a reading's GPU clock, limits and load; nobody can tell where one of them is missing."""
        limits = readings.clk_limits_hz.get("gpu")
        if limits is None or "gpu" not in readings.clk_hz or "gpu" not in readings.load:
            self._before = False
            return
        before = self._before
        self._before = readings.load["gpu"] >= _BUSY and readings.clk_hz["gpu"] < _BELOW * limits[1]
        _tell(readings, {"gpu_clock": self._before and before})


class Cooling(SysfsCollector):
    """``class/thermal/cooling_device*``: a state above 0 is cause ``cooling:TYPE``."""

    name = "cooling"

    def __init__(self, root: str, reader: SensorReader) -> None:
        super().__init__(root, reader)
        self._devices: List[Tuple[str, str]] = []

    def _scan(self) -> None:
        self._devices = []
        folders = find(self.root, "class/thermal/cooling_device*")
        types = self.reader.read(os.path.join(folder, "type") for folder in folders)
        for folder in folders:
            try:
                kind = text(types[os.path.join(folder, "type")])
            except OSError:
                continue
            if kind and not _NO_LIMIT.search(kind):
                self._devices.append((kind, os.path.join(folder, "cur_state")))

    def _read(self, readings: Readings) -> None:
        self._scan_if_due()
        results = self.reader.read(path for _, path in self._devices)
        known: Dict[str, bool] = {}  # whether each cause is seen now
        for kind, path in self._devices:
            try:
                cause, state = "cooling:" + kind, number(results[path])
                known[cause] = known.get(cause, False) or state > 0
            except ValueError as error:
                readings.failed[kind] = str(error)
            except OSError as error:
                self._fail(readings, kind, error)
        _tell(readings, known)
        conclude(readings, bool(known), bool(self._devices))


class Counters(SysfsCollector):
    """Event counters of the hardware: what they grew by since the previous reading."""

    def __init__(self, root: str, reader: SensorReader) -> None:
        super().__init__(root, reader)
        self._counters: List[Tuple[str, str]] = []  # cause, file
        self._alarms: List[Tuple[str, str]] = []
        self._previous: Dict[str, int] = {}

    def _read(self, readings: Readings) -> None:
        self._scan_if_due()
        results = self.reader.read(path for _, path in (*self._counters, *self._alarms))
        known: Dict[str, bool] = {}  # whether each cause is seen now
        for cause, path in (*self._counters, *self._alarms):
            try:
                value = number(results[path])
            except ValueError as error:
                readings.failed[cause] = str(error)
                continue
            except OSError as error:
                self._fail(readings, cause, error)
                continue
            if (cause, path) in self._alarms:
                seen = value > 0
            else:
                grown = value - self._previous.get(path, value)
                self._previous[path] = value
                seen = grown > 0
                if seen:
                    readings.throttle_counts[cause] = readings.throttle_counts.get(cause, 0) + grown
            known[cause] = known.get(cause, False) or seen
        _tell(readings, known)
        conclude(readings, bool(known), bool(self._counters or self._alarms))


class OverCurrent(Counters):
    """``soctherm_oc`` event counters, and the alarms of the power monitor, as ``current_alarm:RAIL``."""

    name = "over_current"

    def _scan(self) -> None:
        self._counters = [
            (_OVER_CURRENT[os.path.basename(path)[:3]], path)
            for path in find(self.root, "class/hwmon/hwmon*/oc[123]_event_cnt")
        ]
        self._alarms = []
        alarms = find(self.root, "class/hwmon/hwmon*/curr[123]_crit_alarm", "class/hwmon/hwmon*/curr[123]_max_alarm")
        chips = sorted({os.path.dirname(path) for path in alarms})
        names = self.reader.read(os.path.join(chip, "name") for chip in chips)
        for path in alarms:
            chip, channel = os.path.dirname(path), os.path.basename(path)[len("curr") :][:1]
            label = os.path.join(chip, f"in{channel}_label")
            try:
                rail = text(self.reader.read([label])[label])
                if text(names[os.path.join(chip, "name")]).startswith("ina3221") and rail and rail.upper() != "NC":
                    self._alarms.append(("current_alarm:" + rail, path))
            except OSError:
                continue


class CpuThrottle(Counters):
    """A desktop's counters of processors that were slowed because they were hot, cause ``cpu_thermal``."""

    name = "cpu_throttle"

    def _scan(self) -> None:
        # every core of a package shows the package's counter: the first core's stands for all of them
        package = "devices/system/cpu/cpu0/thermal_throttle/package_throttle_count"
        cores = "devices/system/cpu/cpu[0-9]*/thermal_throttle/core_throttle_count"
        self._counters = [("cpu_thermal", path) for path in find(self.root, package) or find(self.root, cores)]


class KernelAlarms(Collector):
    """``soctherm: OC ALARM`` lines of the kernel log (a weak 5 V supply of a Nano), cause ``oc_alarm``.

    Only lines that come after the collector's start count. The log may be closed to us: then unreadable.
    """

    name = "kernel_log"

    def __init__(self, path: str = "/dev/kmsg") -> None:
        self._path = path
        self._descriptor: Optional[int] = None

    def _read(self, readings: Readings) -> None:
        if self._descriptor is None and not self._open(readings):
            return
        alarms = self._count()
        readings.state = USABLE
        _tell(readings, {"oc_alarm": alarms > 0})
        if alarms:
            readings.throttle_counts["oc_alarm"] = alarms

    def _open(self, readings: Readings) -> bool:
        try:
            self._descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._descriptor, 0, os.SEEK_END)
            return True
        except FileNotFoundError:
            readings.state, readings.cause = ABSENT, "no " + self._path
        except OSError as error:
            self.close()
            readings.state, readings.cause = UNREADABLE, f"{self._path}: {error.strerror}"
        return False

    def _count(self) -> int:
        assert self._descriptor is not None
        alarms = 0
        for _ in range(_MAX_LINES):
            try:
                chunk = os.read(self._descriptor, 8192)
            except OSError as error:
                if error.errno == errno.EPIPE:  # lines were overwritten before we came
                    continue
                if error.errno == errno.EAGAIN:
                    break
                raise
            if not chunk:
                break
            alarms += len(_ALARM.findall(chunk))
        return alarms

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _tell(readings: Readings, known: Dict[str, bool]) -> None:
    """Take {cause: whether it is seen now}; with none that could be read nothing is known."""
    if known:
        readings.throttle_known = list(known)
        readings.throttle = [cause for cause, seen in known.items() if seen]
