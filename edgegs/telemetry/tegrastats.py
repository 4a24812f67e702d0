"""``tegrastats``, NVIDIA's own program on Jetson boards: its lines read, and a child of ours that prints them.

The forms of Nano, Nano 2GB, TX1, TX2, Xavier, Orin and Thor are known, from public logs. Unconfirmed on hardware:
``tegrastats --interval 1000`` on the board shows whether its lines look like one of those in the tests.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from dataclasses import dataclass, field
from typing import Dict, List, Optional, Tuple

from edgegs.children import TiedChild
from edgegs.telemetry.background import RETRY_S, Background, Life
from edgegs.telemetry.power import put_rail
from edgegs.telemetry.readings import Readings
from edgegs.telemetry.sysfs import NOT_A_SENSOR, put_temperature

METHOD = "tegrastats"

#: Seconds between two lines that may be asked for.
MIN_PERIOD_S, MAX_PERIOD_S = 0.2, 10.0

#: A child that prints nothing that can be read for so many periods, and seconds, is replaced.
_SILENT_PERIODS, _SILENT_S = 5.0, 10.0

_RAM = re.compile(r"\bRAM (\d+)/(\d+)MB")
_CPU = re.compile(r"\bCPU \[([^\]]*)\](?:@(\d+))?", re.IGNORECASE)
_CORE = re.compile(r"^(\d+)%(?:@(\d+))?$")
#: "12%@76", "12%", "12%@[510,510]" (one clock a cluster), "@[314,314]" (JetPack 7.0: the load is not known).
_ENGINE = r"(?:_FREQ)? (?:(\d+)%)?(?:@\[?(\d+(?:,\d+)*)\]?)?(?=\s|$)"
_GPU = re.compile(r"\bGR3D" + _ENGINE)
_EMC = re.compile(r"\bEMC" + _ENGINE)
_TEMPERATURE = re.compile(r"(?:^|(?<=\s))([A-Za-z][\w.-]*)@(-?\d+(?:\.\d+)?)C(?=\s|$)")
#: "POM_5V_IN 933/933", "VDD_IN 5336mW/4970mW": now, and the mean since the program's start.
_RAIL = re.compile(r"(?:^|(?<=\s))([A-Za-z]\w*) (-?\d+)(mW)?/(-?\d+)(mW)?(?=\s|$)")

#: No rails: an input of the power monitor that nothing is connected to, and memory, of a line that was cut off.
_NOT_A_RAIL = ("NC", "RAM", "SWAP", "IRAM")


@dataclass
class Line:
    """What one line says, in its own units; what it does not say is None or absent.

    Attributes:
        ram_mb: used and total.
        cores: (load in percent, MHz) of each core; None for one that is off. MHz is None where it is not said.
        gpu, emc: (load in percent, MHz); of several clocks the highest. A clock of 0, of a part asleep, is None.
        temp_c: all that the line names, also those that are none (-256 for a part asleep, PMIC for a constant).
        rails_mw: (now, mean since the program's start) by the board's own rail names.
    """

    ram_mb: Optional[Tuple[int, int]] = None
    cores: List[Optional[Tuple[int, Optional[int]]]] = field(default_factory=list)
    gpu: Tuple[Optional[int], Optional[int]] = (None, None)
    emc: Tuple[Optional[int], Optional[int]] = (None, None)
    temp_c: Dict[str, float] = field(default_factory=dict)
    rails_mw: Dict[str, Tuple[int, int]] = field(default_factory=dict)


def parse(text: str) -> Line:
    """Read one line.

    Raises:
        ValueError: it is no line of tegrastats.
    """
    line = Line()
    matched = _RAM.search(text)
    if matched:
        line.ram_mb = (int(matched.group(1)), int(matched.group(2)))
    matched = _CPU.search(text)
    if matched:
        line.cores = [_core(part, matched.group(2)) for part in matched.group(1).split(",") if part.strip()]
    line.gpu, line.emc = _engine(_GPU, text), _engine(_EMC, text)
    for name, degrees in _TEMPERATURE.findall(text):
        line.temp_c[name] = float(degrees)
    for name, now, unit, mean, mean_unit in _RAIL.findall(text):
        if unit == mean_unit and name not in _NOT_A_RAIL:
            line.rails_mw[name] = (int(now), int(mean))
    if line.ram_mb is None and not line.cores:
        raise ValueError("no line of tegrastats: " + text[:80])
    return line


def _core(part: str, clock: Optional[str]) -> Optional[Tuple[int, Optional[int]]]:
    matched = _CORE.match(part.strip())
    if not matched:
        return None
    mhz = matched.group(2) or clock
    return int(matched.group(1)), int(mhz) if mhz else None


def _engine(pattern: re.Pattern[str], text: str) -> Tuple[Optional[int], Optional[int]]:
    matched = pattern.search(text)
    if not matched:
        return None, None
    load, clocks = matched.groups()
    mhz = max(int(clock) for clock in clocks.split(",")) if clocks else 0
    return int(load) if load else None, mhz or None


def fill(readings: Readings, line: Line) -> None:
    """Put a line's values into ``readings``, in SI units. Of a rail's two figures the one of now."""
    for name, (now, _) in line.rails_mw.items():
        put_rail(readings, name, now / 1e3, METHOD)
    for name, degrees in line.temp_c.items():
        if not NOT_A_SENSOR.match(name):
            put_temperature(readings, name, degrees)
    for name, (load, mhz) in (("gpu", line.gpu), ("emc", line.emc)):
        if load is not None:
            readings.load[name] = min(1.0, load / 100.0)
        if mhz is not None:
            readings.clk_hz[name] = mhz * 1e6
    loads: List[int] = []
    for index, core in enumerate(line.cores):
        if core is None:
            continue
        load, mhz = core
        if mhz and not loads:  # one core's clock stands for all, as sysfs has one a cluster
            readings.clk_hz[f"cpu{index}"] = mhz * 1e6
        loads.append(load)
    if loads:
        readings.load["cpu"] = min(1.0, sum(loads) / len(loads) / 100.0)
    if line.ram_mb is not None:
        used, total = line.ram_mb
        readings.ram_bytes = {"used": float(used << 20), "total": float(total << 20)}


class Tegrastats(Background):
    """Values from a ``tegrastats --interval`` child, which never outlives this process.

    As a user other than root the program leaves fields out; a Nano 2GB has no power to tell. What a line does not say
    is absent. The program ignores a closed pipe, so it is killed and reaped, not left to notice.

    Args:
        period_s: seconds between two lines. path: the program, searched for on PATH unless it is a path.
        retry_s: the first and the longest wait before it is started again.
    """

    name = source = "tegrastats"

    def __init__(
        self, period_s: float = 1.0, path: str = "tegrastats", retry_s: Tuple[float, float] = RETRY_S
    ) -> None:
        super().__init__(min(max(period_s, MIN_PERIOD_S), MAX_PERIOD_S), retry_s)
        self._path = path

    def _session(self, life: Life) -> None:
        program = shutil.which(self._path)
        if program is None:
            raise FileNotFoundError(f"{self._path} is not installed: it comes with Jetson Linux (nvidia-l4t-tools)")
        command = [program, "--interval", str(round(self.period_s * 1000))]
        child = TiedChild(command, os.path.basename(program))
        try:
            self._listen(life, child)
        finally:
            child.reap()

    def _listen(self, life: Life, child: TiedChild) -> None:
        silent_s = max(_SILENT_S, _SILENT_PERIODS * self.period_s)
        heard_at = time.monotonic()
        other: List[str] = []
        while not life.stopping:
            ended = child.ended()
            child.listen(0.1)
            while child.lines:
                text = child.lines.popleft()
                try:
                    line = parse(text)
                except ValueError:
                    other = [*other[-4:], text]  # perhaps it says why it cannot
                    continue
                readings = self._new()
                fill(readings, line)
                self._put(life, readings)
                heard_at = time.monotonic()
            if ended or child.log is None:
                child.lines.extend(other)
                raise RuntimeError(child.last_words("closed its output"))
            if time.monotonic() - heard_at > silent_s:
                child.lines.extend(other)
                raise RuntimeError(f"tegrastats has printed no line of its own for {silent_s:.0f} s{child.words()}")
