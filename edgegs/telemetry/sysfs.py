"""Temperatures from sysfs: thermal zones by their type, and hwmon chips."""

from __future__ import annotations

import glob
import os
import re
import time
from typing import Dict, List, Optional, Tuple

from edgegs.telemetry.reader import SensorReader, describe, number, text
from edgegs.telemetry.readings import ABSENT, UNREADABLE, USABLE, Collector, Readings, unique

#: No sensor on these boards works outside; an offline Orin zone says -256 and a missing probe often 127.
TEMP_MIN_C, TEMP_MAX_C = -40.0, 126.0

#: PMIC-Die, PMIC to jtop and tegrastats: a constant (100 or 50 C, by release), not a measurement.
NOT_A_SENSOR = re.compile(r"^pmic([-_]?die)?$", re.IGNORECASE)

#: One core of a desktop's many: the package temperature beside them says enough.
_ONE_CORE = re.compile(r"^Core \d+$")

#: Zones and chips may appear later (a Wi-Fi card, a module that loads): look again this often.
RESCAN_S = 60.0


def natural(path: str) -> List[object]:
    """Sort key that puts thermal_zone10 behind thermal_zone9."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path)]


def find(root: str, *patterns: str) -> List[str]:
    """Existing paths below ``root`` that match any pattern, each device once, in natural order."""
    found: Dict[str, str] = {}
    for pattern in patterns:
        for path in sorted(glob.glob(os.path.join(glob.escape(root), pattern)), key=natural):
            found.setdefault(os.path.realpath(path), path)
    return list(found.values())


def put_temperature(readings: Readings, name: str, degrees: float) -> None:
    """Take a temperature in Celsius, unless no sensor of a board can have it."""
    if TEMP_MIN_C < degrees < TEMP_MAX_C:
        readings.temp_c[name] = degrees
    else:
        readings.failed[name] = f"offline or absurd: reads {degrees:g} C"


class SysfsCollector(Collector):
    """A collector over files below a sysfs root; it looks for its files now and then, not in every tick."""

    source = "sysfs"

    def __init__(self, root: str, reader: SensorReader) -> None:
        self.root = root
        self.reader = reader
        self._scanned: Optional[float] = None

    def _scan(self) -> None:
        raise NotImplementedError

    def _scan_if_due(self) -> None:
        now = time.monotonic()
        if self._scanned is None or now - self._scanned >= RESCAN_S:
            self._scan()
            self._scanned = now

    def _fail(self, readings: Readings, sensor: str, error: Exception) -> None:
        readings.failed[sensor] = describe(error)
        if isinstance(error, FileNotFoundError):  # the hardware has changed
            self._scanned = None


class TemperatureCollector(SysfsCollector):
    """Degrees from a list of (name, file in millidegrees) that a subclass finds."""

    def __init__(self, root: str, reader: SensorReader) -> None:
        super().__init__(root, reader)
        self._sensors: List[Tuple[str, str]] = []

    def _read(self, readings: Readings) -> None:
        self._scan_if_due()
        results = self.reader.read(path for _, path in self._sensors)
        for name, path in self._sensors:
            try:
                put_temperature(readings, name, number(results[path]) / 1000.0)
            except ValueError as error:
                readings.failed[name] = str(error)
            except OSError as error:
                self._fail(readings, name, error)
        conclude(readings, bool(readings.temp_c), bool(self._sensors))


class ThermalZones(TemperatureCollector):
    """``class/thermal/thermal_zone*``, named by ``type``: their numbers move when hardware is added."""

    name = "thermal"

    def _scan(self) -> None:
        self._sensors = []
        zones = find(self.root, "class/thermal/thermal_zone*")
        types = self.reader.read(os.path.join(zone, "type") for zone in zones)
        for zone in zones:
            try:
                kind = text(types[os.path.join(zone, "type")])
            except OSError:
                continue
            if kind and not NOT_A_SENSOR.match(kind):
                name = unique(kind, (taken for taken, _ in self._sensors))
                self._sensors.append((name, os.path.join(zone, "temp")))


class HwmonTemperatures(TemperatureCollector):
    """``class/hwmon/hwmon*/tempN_input``, named ``chip:label``; a thermal zone's own hwmon is left out."""

    name = "hwmon"

    def _scan(self) -> None:
        self._sensors = []
        chips = [
            chip for chip in find(self.root, "class/hwmon/hwmon*") if "/thermal_zone" not in os.path.realpath(chip)
        ]
        names = self.reader.read(os.path.join(chip, "name") for chip in chips)
        for chip in chips:
            try:
                chip_name = text(names[os.path.join(chip, "name")])
            except OSError:
                continue
            if NOT_A_SENSOR.match(chip_name):
                continue
            inputs = find(chip, "temp*_input")
            labels = self.reader.read(path[: -len("input")] + "label" for path in inputs)
            for path in inputs:
                label = os.path.basename(path)[: -len("_input")]
                try:
                    label = text(labels[path[: -len("input")] + "label"]) or label
                except OSError:
                    pass
                if not _ONE_CORE.match(label):
                    name = unique(f"{chip_name}:{label}", (taken for taken, _ in self._sensors))
                    self._sensors.append((name, path))


def conclude(readings: Readings, read_any: bool, exists: bool) -> None:
    """Set the state: usable when anything was read, unreadable when it is there, else absent."""
    if read_any:
        readings.state = USABLE
    elif exists:
        readings.state = UNREADABLE
        causes = sorted(set(readings.failed.values()))
        readings.cause = "; ".join(causes) or "nothing could be read"
    else:
        readings.state = ABSENT
        readings.cause = "no such hardware here"
