"""Clocks from sysfs: the GPU's devfreq and the processors' cpufreq, and whether the GPU is held down."""

from __future__ import annotations

import os
import re
from typing import List, NamedTuple, Optional, Tuple

from edgegs.telemetry.reader import SensorReader, number
from edgegs.telemetry.readings import Readings
from edgegs.telemetry.sysfs import SysfsCollector, conclude, find
from edgegs.telemetry.throttle import HeldDown

#: 57000000.gpu (Nano), 17000000.gp10b / gv11b / ga10b, 17000000.gpu (JetPack 6), gpu-gpc-0 (Thor).
_GPU = re.compile(r"gpu|\.g[a-z]\d\d?b$")

#: Policies beyond these are left out: eight show a governor or a limit move, 64 would drown the log.
_MAX_POLICIES = 8


class _Domain(NamedTuple):
    name: str
    to_hz: int
    files: Tuple[str, ...]  # current, lowest allowed, highest allowed
    load: Optional[str]


class Clocks(SysfsCollector):
    """Current, lowest and highest allowed frequency of GPU and processors; the GPU's load; sign ``gpu_clock``."""

    name = "clocks"

    def __init__(self, root: str, reader: SensorReader) -> None:
        super().__init__(root, reader)
        self._domains: List[_Domain] = []
        self._held_down = HeldDown()

    def _scan(self) -> None:
        self._domains = []
        folders = find(self.root, "class/devfreq/*", "devices/*/devfreq/*", "devices/platform/*/devfreq/*")
        gpus = [folder for folder in folders if _GPU.search(os.path.basename(folder))]
        for index, folder in enumerate(gpus):
            device = os.path.dirname(os.path.dirname(os.path.realpath(folder)))
            load = os.path.join(device, "load")
            paths = [os.path.join(folder, name) for name in ("cur_freq", "min_freq", "max_freq")]
            name = "gpu" if index == 0 else os.path.basename(folder)
            self._domains.append(_Domain(name, 1, tuple(paths), load if os.path.exists(load) else None))
        policies = find(self.root, "devices/system/cpu/cpufreq/policy*")
        if not policies:
            policies = find(self.root, "devices/system/cpu/cpu[0-9]*/cpufreq")
        for folder in policies[:_MAX_POLICIES]:
            digits = re.findall(r"(?:policy|cpu)(\d+)", folder)[-1]
            names = ("scaling_cur_freq", "scaling_min_freq", "scaling_max_freq")
            paths = [os.path.join(folder, name) for name in names]
            self._domains.append(_Domain("cpu" + digits, 1000, tuple(paths), None))

    def _read(self, readings: Readings) -> None:
        self._scan_if_due()
        files: List[str] = []
        for domain in self._domains:
            files += domain.files + ((domain.load,) if domain.load else ())
        results = self.reader.read(files)
        for domain in self._domains:
            try:
                hertz = number(results[domain.files[0]]) * domain.to_hz
                if hertz <= 0:
                    raise ValueError(f"reads {hertz} Hz")
                readings.clk_hz[domain.name] = float(hertz)
            except ValueError as error:
                readings.failed[domain.name] = str(error)
            except OSError as error:
                self._fail(readings, domain.name, error)
            try:
                limits = [float(number(results[path]) * domain.to_hz) for path in domain.files[1:]]
                if 0 <= limits[0] <= limits[1]:
                    readings.clk_limits_hz[domain.name] = (limits[0], limits[1])
            except (OSError, ValueError):
                pass  # a board without these files still has a clock
            try:
                if domain.load:
                    readings.load[domain.name] = min(1.0, max(0.0, number(results[domain.load]) / 1000.0))
            except (OSError, ValueError):
                pass
        self._held_down.judge(readings)
        conclude(readings, bool(readings.clk_hz), bool(self._domains))
