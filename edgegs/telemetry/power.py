"""Power from sysfs: the board's INA3221 monitors in both layouts, and RAPL energy counters on desktops."""

from __future__ import annotations

import os
import re
import time
from typing import Callable, Dict, List, NamedTuple, Optional, Tuple

from edgegs.telemetry.reader import SensorReader, number, text
from edgegs.telemetry.readings import UNREADABLE, Power, Readings, unique
from edgegs.telemetry.sysfs import SysfsCollector, conclude, find

IIO, HWMON, RAPL = "ina3221_iio", "ina3221_hwmon", "rapl_counter"

#: Rails that already are the total: the others are parts of them and must never be added. "VIN" is Thor's.
TOTAL_RAILS = ("VIN", "POM_5V_IN", "VDD_IN")

#: What a rail's figure does not contain, for reports.
RAIL_NOTES = {
    "VDD_IN": "the module's input: leaves out the carrier board, what is plugged in, and the supply's loss",
    "POM_5V_IN": "the board's 5 V input: leaves out the supply's own loss",
    "package": "the processor package only: no GPU card, no memory, no supply loss",
    "gpu": "the graphics card by its own sensor: leaves out processor, system memory and the supply's loss",
    "gpu:average": "the same card's power as its driver averages it (about a second on cards since 2020)",
}

#: The INA3221 has three channels; the driver's number 7 is the sum of their shunt voltages.
_SUM_CHANNEL = 7

#: More than any board draws: a reading above is a bus error, not a power.
_ABSURD_W = 1000.0


def rail_note(rail: str) -> str:
    """What the figure of ``rail`` leaves out; "" where nothing is known."""
    return RAIL_NOTES.get(rail, RAIL_NOTES["package"] if rail.startswith("package") else "")


def put_rail(readings: Readings, name: str, watts: float, method: str) -> None:
    """Take a rail's power, unless it is none; the total is known by its name, and never put together from parts."""
    if not 0.0 <= watts <= _ABSURD_W:
        readings.failed[name] = f"absurd: {watts:g} W"
    elif watts == 0.0 and name in TOTAL_RAILS:
        readings.failed[name] = "reads 0 W, which a running board cannot draw"
    else:
        readings.power_w[name] = Power(watts, method)
        readings.total_rail = next((total for total in TOTAL_RAILS if total in readings.power_w), None)


class _Rail(NamedTuple):
    """A rail and the files that give it: power in mW, or voltage in mV and current in mA."""

    name: str
    method: str
    files: Tuple[str, ...]


class Ina3221(SysfsCollector):
    """The monitors of a Jetson: IIO (L4T 32, has a power file) or hwmon (JetPack 5 and newer, has none)."""

    name = "ina3221"

    def __init__(self, root: str, reader: SensorReader) -> None:
        super().__init__(root, reader)
        self._rails: List[_Rail] = []
        self._devices = 0
        self._label_errors: Dict[str, Exception] = {}

    def _scan(self) -> None:
        self._rails = []
        self._label_errors = {}
        chips = find(
            self.root,
            "bus/i2c/drivers/ina3221x/*-*",
            "bus/i2c/drivers/ina3221/*-*",
            "class/hwmon/hwmon*/device",
        )
        monitors = [chip for chip in chips if "/drivers/ina3221" in chip or self._is_ina3221(chip)]
        self._devices = len(monitors)
        for chip in monitors:
            for label in find(chip, "iio:device*/rail_name_*"):
                folder, channel = os.path.dirname(label), label.rpartition("_")[2]
                power = os.path.join(folder, f"in_power{channel}_input")
                self._add(label, IIO, (power,))
            for label in find(chip, "hwmon/hwmon*/in*_label"):
                folder = os.path.dirname(label)
                matched = re.match(r"^in(\d+)_label$", os.path.basename(label))
                if matched and int(matched.group(1)) != _SUM_CHANNEL:
                    pair = (f"in{matched.group(1)}_input", f"curr{matched.group(1)}_input")
                    self._add(label, HWMON, tuple(os.path.join(folder, name) for name in pair))

    def _is_ina3221(self, device: str) -> bool:
        path = os.path.join(os.path.dirname(device), "name")
        try:
            return text(self.reader.read([path])[path]).startswith("ina3221")
        except OSError:
            return False

    def _add(self, label_path: str, method: str, files: Tuple[str, ...]) -> None:
        try:
            label = text(self.reader.read([label_path])[label_path])
        except OSError as error:
            self._label_errors[os.path.basename(label_path)] = error
            return
        unused = label.upper() == "NC" or label.lower().startswith("sum of shunt")
        if label and not unused and all(os.path.exists(path) for path in files):
            self._rails.append(_Rail(unique(label, (rail.name for rail in self._rails)), method, files))

    def _read(self, readings: Readings) -> None:
        self._scan_if_due()
        results = self.reader.read(path for rail in self._rails for path in rail.files)
        for rail in self._rails:
            try:
                values = [number(results[path]) for path in rail.files]
                watts = values[0] / 1e3 if rail.method == IIO else values[0] * values[1] / 1e6
                put_rail(readings, rail.name, watts, rail.method)
            except ValueError as error:
                readings.failed[rail.name] = str(error)
            except OSError as error:
                self._fail(readings, rail.name, error)
        for label, cause in self._label_errors.items():
            self._fail(readings, label, cause)
        conclude(readings, bool(readings.power_w), self._devices > 0)
        if readings.state == UNREADABLE and "permission denied" in readings.cause:
            readings.cause += ": this board lets only root read its power monitor; a udev rule can allow it"


class Rapl(SysfsCollector):
    """Processor packages of a desktop: mean watts between two readings of the energy counter."""

    name = "rapl"

    def __init__(self, root: str, reader: SensorReader, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(root, reader)
        self._clock = clock
        self._packages: List[Tuple[str, str, Optional[int]]] = []
        self._previous: Dict[str, Tuple[float, int]] = {}

    def _scan(self) -> None:
        self._packages = []
        for zone in find(self.root, "class/powercap/intel-rapl:*"):
            if not re.match(r"^intel-rapl:\d+$", os.path.basename(zone)):
                continue  # a part of a package
            name_path, range_path = os.path.join(zone, "name"), os.path.join(zone, "max_energy_range_uj")
            results = self.reader.read([name_path, range_path])
            try:
                name = text(results[name_path])
            except OSError:
                continue
            try:
                wrap: Optional[int] = number(results[range_path])
            except (OSError, ValueError):
                wrap = None
            if name.startswith("package"):
                name = unique(name, (taken for taken, _, _ in self._packages))
                self._packages.append((name, os.path.join(zone, "energy_uj"), wrap))

    def _read(self, readings: Readings) -> None:
        self._scan_if_due()
        counted = False
        for name, path, wrap in self._packages:
            try:
                counter = number(self.reader.read([path])[path])
            except ValueError as error:
                readings.failed[name] = str(error)
                continue
            except OSError as error:
                self._fail(readings, name, error)
                continue
            counted = True
            now = self._clock()
            before = self._previous.setdefault(name, (now, counter))
            used = counter - before[1]
            if now <= before[0] or used == 0:
                continue  # the first reading; or it has not moved yet, and the next difference bridges this moment
            self._previous[name] = (now, counter)
            if used < 0 and wrap is not None:
                used += wrap
            watts = used / 1e6 / (now - before[0])
            if 0.0 < watts <= _ABSURD_W:
                readings.power_w[name] = Power(watts, RAPL, energy_j=used / 1e6)
        conclude(readings, counted, bool(self._packages))
        if readings.state == UNREADABLE and "permission denied" in readings.cause:
            readings.cause += ": the kernel lets only root read energy_uj"
