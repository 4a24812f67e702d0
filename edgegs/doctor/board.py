"""What a Jetson has besides its GPU: power mode, clocks, jtop's service; and the wall clock of any machine."""

from __future__ import annotations

import ctypes
import os
import re
import time
from typing import List, Optional

from edgegs.doctor.machine import Machine
from edgegs.findings import OK, Finding, note, warning

#: A clock before this release of edgegs was never set, seconds since 1970.
LEAST_TIME = 1_700_000_000
#: Governors that hold the GPU's clock down, or wherever somebody left it.
_HOLDING = ("powersave", "userspace")
_TIME_ERROR = 5  # adjtimex(2): the clock is not synchronised


def board(machine: Machine) -> List[Finding]:
    """Power mode and clocks of a Jetson; nothing on other machines."""
    if not machine.is_tegra:
        return []
    return [*_power_mode(machine), *_clocks(machine), *_jtop(machine)]


def _power_mode(machine: Machine) -> List[Finding]:
    matched = re.search(r"pmode:(\d+)", machine.read("var/lib/nvpmodel/status"))
    if matched is None:
        return []
    number = int(matched.group(1))
    conf = machine.read("etc/nvpmodel.conf")
    names = dict(re.findall(r"<\s*POWER_MODEL\s+ID=(\d+)\s+NAME=(\S+)\s*>", conf))
    mode = f"{number} ({names[str(number)]})" if str(number) in names else str(number)
    if number == 0 or not machine.is_nano:
        return [Finding("board", OK, f"power mode {mode}")]
    says = f"power mode {mode}: two of four cores are off, and the GPU is held to 640 MHz of 921"
    return [warning("board", "power-mode", says, "sudo nvpmodel -m 0 (needs a supply of 5 V, 4 A)")]


def _clocks(machine: Machine) -> List[Finding]:
    findings: List[Finding] = []
    seen = set()
    patterns = ("sys/class/devfreq/*", "sys/devices/*/devfreq/*", "sys/devices/platform/*/devfreq/*")
    for folder in [path for pattern in patterns for path in machine.find(pattern)]:
        name = os.path.basename(folder)
        if name in seen or not re.search(r"gpu|\.g[a-z]\d\d?b$", name):
            continue
        seen.add(name)
        governor = machine.read(f"{folder}/governor")
        low, high = machine.number(f"{folder}/min_freq"), machine.number(f"{folder}/max_freq")
        if governor in _HOLDING and low != high:
            offered = machine.read(f"{folder}/available_governors").split()
            usual = "nvhost_podgov" if "nvhost_podgov" in offered else "simple_ondemand"
            says = f"the governor of {name} is {governor}: the GPU does not clock up under load"
            findings.append(warning("board", "gpu-governor", says, f"echo {usual} | sudo tee {folder}/governor"))
        elif low is not None and high is not None and low < high:
            who = governor or "its governor"
            says = f"{name} clocks from {low / 1e6:.0f} to {high / 1e6:.0f} MHz as {who} sees fit"
            fix = "sudo jetson_clocks (until the next boot): only for figures that can be compared"
            findings.append(note("board", "clocks-not-pinned", says, fix))
        elif low is not None and low == high:
            findings.append(Finding("board", OK, f"{name} is pinned to {low / 1e6:.0f} MHz"))
    return findings


def _jtop(machine: Machine) -> List[Finding]:
    """jtop is an extra: where it fails, edgegs reads sysfs."""
    from edgegs.doctor.software import _version

    client = _version("jetson-stats", "jtop")
    if client is None:
        return []
    status = machine.stat("run/jtop.sock")
    restart = "sudo systemctl restart jtop"
    if status is None:
        says = f"jetson-stats {client} is installed, but its service does not run (no /run/jtop.sock)"
        return [warning("jtop", "jtop-dead", says, restart)]
    if not os.access(machine.path("run/jtop.sock"), os.R_OK | os.W_OK):
        says = "this user may not ask jtop (/run/jtop.sock)"
        return [warning("jtop", "jtop-group", says, "sudo usermod -aG jtop $USER, then log in again")]
    pattern = "usr/local/lib/python3*/*-packages/jetson_stats-*"
    served = {re.sub(r".*/jetson_stats-([0-9.]+[0-9]).*", r"\1", path) for path in machine.find(pattern)}
    if client and served and client not in served:
        says = f"jetson-stats {client} here, {' and '.join(sorted(served))} in the service: jtop wants them equal"
        fix = f"sudo -H pip3 install 'jetson-stats=={client}' && {restart}"
        return [warning("jtop", "jtop-version", says, fix)]
    return [Finding("jtop", OK, f"jetson-stats {client}, its service answers at /run/jtop.sock")]


def clock(machine: Machine) -> List[Finding]:
    """The wall clock: records and certificates need it; edgegs' own timers do not."""
    now = time.time()
    stamp = time.strftime("%Y-%m-%d", time.gmtime(now))
    set_it = "sudo timedatectl set-ntp true (without a network: sudo date -s 'YYYY-MM-DD hh:mm')"
    if now < LEAST_TIME:
        says = f"the clock says {stamp}: it was never set, and certificates, pip and apt fail"
        return [warning("clock", "clock-wrong", says, set_it)]
    has_rtc = bool(machine.names("sys/class/rtc"))
    synced = _synchronised(machine)
    if synced:
        return [Finding("clock", OK, f"synchronised ({stamp})")]
    battery = "" if has_rtc else "; there is no clock that runs on while the power is off"
    if synced is None or not (machine.is_tegra or has_rtc) or machine.in_container:
        return [Finding("clock", OK, f"{stamp}, whether synchronised is not told")]
    says = f"the clock ({stamp}) is not synchronised{battery}: dates in logs cannot be compared"
    return [(warning if machine.is_tegra else note)("clock", "clock-unsynchronised", says, set_it)]


def _synchronised(machine: Machine) -> Optional[bool]:
    if machine.exists("run/systemd/timesync/synchronized"):
        return True
    if not machine.is_real:
        return False
    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(512))  # modes = 0: only reads
    except (AttributeError, OSError):
        return None
    return None if state < 0 else bool(state != _TIME_ERROR)
