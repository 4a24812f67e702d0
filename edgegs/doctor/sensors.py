"""What the collectors of the telemetry can read on this machine, and whether it is held down now."""

from __future__ import annotations

import os
import time
from typing import Any, List

from edgegs.doctor.machine import Machine
from edgegs.findings import OK, Finding, note, warning

#: A sensor that takes longer hangs, seconds.
SENSOR_TIMEOUT_S = 0.3


#: Collectors that may know a board's power.
_POWER_SOURCES = ("ina3221", "rapl", "nvml", "jtop", "tegrastats")


def sensors(machine: Machine) -> List[Finding]:
    from edgegs.telemetry.board import Board
    from edgegs.telemetry.facade import make_collectors
    from edgegs.telemetry.reader import SensorReader
    from edgegs.telemetry.readings import ABSENT, UNREADABLE, USABLE, merge

    sysfs = machine.path("sys")
    reader = SensorReader(SENSOR_TIMEOUT_S)
    collectors = make_collectors("auto", sysfs, reader, Board(compatible=machine.compatible.split("\0")))
    try:
        sample = merge(time.monotonic_ns(), [collector.collect() for collector in collectors])
    finally:
        hung = reader.hung()
        for collector in collectors:
            collector.close()
    usable = [name for name, one in sample.collectors.items() if one.state == USABLE]
    counts = [f"{len(sample.temp_c)} temperatures", f"{len(sample.clk_hz)} clocks"]
    counts += ["power of " + ", ".join(sample.power_w)] if sample.power_w else []
    says = "{} ({})".format(", ".join(usable), ", ".join(counts)) if usable else "none is found here"
    findings = [Finding("sensors", OK, says)]
    for name, one in sample.collectors.items():
        if one.state == UNREADABLE:
            findings.append(_unreadable(name, one.cause))
        elif one.state == USABLE and one.failed and name == "thermal":
            silent = ", ".join(f"{zone} ({why})" for zone, why in one.failed.items())
            fix = "nothing, where the board has put these parts to sleep"
            findings.append(note("sensors", "thermal-offline", f"without a value: {silent}", fix))
    if hung:
        names = ", ".join("/" + os.path.relpath(path, machine.root) for path in hung)
        fix = "reboot; edgegs goes on without it (or set telemetry.source to none)"
        findings.append(warning("sensors", "sensor-hangs", f"no answer from {names}", fix))
    findings += _held_down(machine, sample)
    power = [one for name, one in sample.collectors.items() if name in _POWER_SOURCES]
    if all(one.state == ABSENT for one in power):
        findings.append(_no_power(machine))
    return findings


def _unreadable(name: str, cause: str) -> Finding:
    says = f"{name} is here, but cannot be read: {cause}"
    if name == "ina3221":
        fix = "sudo jetson/install.sh (its udev rule lets the group edgegs read it); sudo usermod -aG edgegs $USER"
        return warning("sensors", "power-unreadable", says, fix)
    if name == "rapl":  # every current kernel keeps it from users; no first run needs it
        fix = "sudo chmod o+r /sys/class/powercap/intel-rapl:*/energy_uj (until the next boot)"
        return note("sensors", "rapl-unreadable", says, fix)
    if name == "kernel_log":
        fix = "sudo dmesg | grep -i soctherm shows what edgegs then cannot count"
        return note("sensors", "kernel-log-unreadable", says, fix)
    fix = "run as root to compare, or let the service's user read it" if "permission" in cause else "reboot"
    return warning("sensors", "sensor-unreadable", says, fix)


def _held_down(machine: Machine, sample: Any) -> List[Finding]:
    findings = []
    if sample.throttle:
        warmest = sorted(sample.temp_c.items(), key=lambda item: -item[1])[:2]
        degrees = ", ".join(f"{name} {value:.0f} C" for name, value in warmest)
        says = f"held down now: {', '.join(sample.throttle)}" + (f" ({degrees})" if degrees else "")
        fix = "add a fan or a heat sink; a lower power mode (sudo nvpmodel -q shows it) is steadier than throttling"
        findings.append(warning("sensors", "throttling", says, fix))
    counts = {path: machine.number(path) or 0 for path in machine.find("sys/class/hwmon/hwmon*/oc[123]_event_cnt")}
    events = sum(count for count in counts.values() if count > 0)
    if events:
        says = f"the board has been held down {events} times since boot for over-current or low voltage"
        fix = "use the supply that the board's maker names, with a short cable"
        findings.append(warning("sensors", "over-current", says, fix))
    return findings


def _no_power(machine: Machine) -> Finding:
    says = "nothing here tells power: the log will have no watts"
    if machine.is_tegra and "2GB" not in machine.model and not machine.in_container:
        fix = "sudo modprobe ina3221 (L4T 32: its driver is part of the kernel; was the kernel replaced?)"
        return warning("sensors", "power-absent", says, fix)
    return note("sensors", "power-absent", says)
