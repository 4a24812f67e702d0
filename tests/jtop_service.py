"""The real jtop service over a made-up Nano: run as root in a mount namespace of its own, with jetson-stats.

``unshare -m --propagation private python tests/jtop_service.py FOLDER`` lays a copy of the Nano's fixture over
``/sys``, an empty ``/run`` and a group file with group jtop, starts the service, and asks it through our collector. It
prints one JSON line: what came, what came after the service was killed, and after it was started again.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

FIXTURE = Path(__file__).parent / "data" / "sysfs" / "nano"


def lay_out(folder: Path) -> None:
    """What the service looks at beside what the fixture has."""
    sysfs = folder / "sys"
    shutil.copytree(str(FIXTURE), str(sysfs), symlinks=True)
    folders = ("class/hwmon", "class/power_supply", "devices/virtual/dmi/id", "bus/i2c/devices", "kernel", "fs/cgroup")
    for name in folders:
        (sysfs / name).mkdir(parents=True, exist_ok=True)
    (sysfs / "bus/i2c/devices/6-0040").symlink_to("../../../devices/7000c400.i2c/i2c-6/6-0040")
    gpu = sysfs / "devices/57000000.gpu"
    (gpu / "of_node").mkdir()
    (gpu / "of_node/name").write_text("gpu")
    (gpu / "devfreq/57000000.gpu/device").symlink_to("../..")
    policy = sysfs / "devices/system/cpu/cpufreq/policy0"
    for which in ("cur", "min", "max"):
        shutil.copy(str(policy / f"scaling_{which}_freq"), str(policy / f"cpuinfo_{which}_freq"))
    for line in Path("/proc/stat").read_text().splitlines():
        name = line.split()[0]
        if name.startswith("cpu") and name != "cpu":
            cpu = sysfs / "devices/system/cpu" / name
            cpu.mkdir()
            (cpu / "cpufreq").symlink_to("../cpufreq/policy0")
            (cpu / "online").write_text("1\n")
    (folder / "group").write_text(Path("/etc/group").read_text() + "jtop:x:990:\n")
    for command in (
        ["mount", "--bind", str(sysfs), "/sys"],
        ["mount", "-t", "tmpfs", "none", "/run"],
        ["mount", "--bind", str(folder / "group"), "/etc/group"],
    ):
        subprocess.run(command, check=True)


def serve(folder: Path) -> subprocess.Popen:
    with (folder / "service.log").open("ab") as log:
        service = subprocess.Popen(
            [sys.executable, "-m", "jtop.__main__", "--force"],
            env=dict(os.environ, JTOP_SERVICE="1"),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    wait_for(lambda: os.path.exists("/run/jtop.sock"))
    return service


def end(service: subprocess.Popen) -> None:
    os.killpg(service.pid, 9)
    service.wait()


def wait_for(condition) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit("waited for 30 s")
        time.sleep(0.05)


def main() -> None:
    from edgegs.telemetry.jtop_source import Jtop

    folder = Path(sys.argv[1])
    lay_out(folder)
    service = serve(folder)
    collector = Jtop(1.0, retry_s=(0.2, 1.0))
    try:
        wait_for(lambda: collector.collect().success)
        first = collector.collect()
        wait_for(lambda: collector.collect().t_mono_ns > first.t_mono_ns)
        end(service)
        wait_for(lambda: not collector.collect().success)
        lost = collector.collect()
        service = serve(folder)
        wait_for(lambda: collector.collect().success)
        again = collector.collect()
    finally:
        collector.close()
        end(service)
    told = {
        "power_mw": {rail: round(power.watts * 1e3) for rail, power in first.power_w.items()},
        "total_rail": first.total_rail,
        "temp_c": first.temp_c,
        "clk_hz": first.clk_hz,
        "clk_limits_hz": first.clk_limits_hz,
        "load": first.load,
        "ram": sorted(first.ram_bytes),
        "lost": [lost.state, lost.cause, sorted(lost.power_w)],
        "again": sorted(again.power_w),
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main()
