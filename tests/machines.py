"""Made-up machines for the doctor's tests: folders that stand for /proc, /sys, /etc and /dev."""

from __future__ import annotations

from edgegs.doctor.machine import Machine
from edgegs.findings import OK, PROBLEM, WARNING


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def nano(root):
    for tree in (root / "proc/device-tree", root / "sys/firmware/devicetree/base"):
        write(tree / "compatible", "nvidia,jetson-nano\0nvidia,tegra210\0")
        write(tree / "model", "NVIDIA Jetson Nano Developer Kit\0")
    write(root / "etc/nv_tegra_release", "# R32 (release), REVISION: 7.1, GCID: 1\n")
    for node in ("nvmap", "nvhost-ctrl-gpu", "nvhost-gpu"):
        write(root / "dev" / node, "")


def desktop(root, driver="NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12\n"):
    write(root / "sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n")
    write(root / "sys/bus/pci/devices/0000:01:00.0/class", "0x030000\n")
    write(root / "sys/bus/pci/devices/0000:01:00.1/vendor", "0x10de\n")  # its sound
    write(root / "sys/bus/pci/devices/0000:01:00.1/class", "0x040300\n")
    if driver:
        write(root / "proc/driver/nvidia/version", driver)


def of(found, check):
    return [one for one in found if one.check == check]


def only(found, check):
    (one,) = of(found, check)
    return one


class World:
    """A made-up machine for one test: its root, a folder of programs that is all of PATH, and an environment."""

    def __init__(self, tmp_path, monkeypatch):
        self.tmp_path = tmp_path
        self.patch = monkeypatch
        self.root = tmp_path / "root"
        self.bin = tmp_path / "bin"
        self.root.mkdir()
        self.bin.mkdir()
        self.environ = {"PATH": str(self.bin)}

    @property
    def machine(self):
        return Machine(str(self.root), self.environ)

    def write(self, name, text=""):
        write(self.root / name, text)
        return self.root / name

    def program(self, name, text):
        path = self.bin / name
        path.write_text("#!/bin/sh\n" + text)
        path.chmod(0o755)
        return path

    def unit(self, **properties):
        """A systemctl that knows edgegs.service."""
        shown = {
            "LoadState": "loaded",
            "ActiveState": "active",
            "SubState": "running",
            "UnitFileState": "enabled",
            "Result": "success",
            "ExecMainCode": "0",
            "ExecMainStatus": "0",
            "NRestarts": "0",
            "ExecStart": "{ path=/opt/edgegs ; argv[]=/opt/edgegs run /etc/edgegs/edgegs.yaml ; }",
            **properties,
        }
        lines = [f"{name}={line}" for name, value in shown.items() for line in value.split("\n")]
        self.write("../systemctl.txt", "\n".join(lines) + "\n")
        self.program("systemctl", f"PATH=/usr/bin:/bin; cat '{self.root}/../systemctl.txt'\n")


def recorded_nano(root):
    """A Nano in good order, as far as the doctor looks at files."""
    nano(root)
    zones = (("CPU-therm", "41500"), ("GPU-therm", "40000"), ("PMIC-Die", "100000"))
    for index, (kind, value) in enumerate(zones):
        write(root / f"sys/class/thermal/thermal_zone{index}/type", kind + "\n")
        write(root / f"sys/class/thermal/thermal_zone{index}/temp", value + "\n")
    write(root / "sys/class/thermal/cooling_device0/type", "gpu-balanced\n")
    write(root / "sys/class/thermal/cooling_device0/cur_state", "0\n")
    monitor = root / "sys/bus/i2c/drivers/ina3221x/6-0040/iio:device0"
    for name, value in (("rail_name_0", "POM_5V_IN"), ("in_power0_input", "3000")):
        write(monitor / name, value + "\n")
    gpu = root / "sys/devices/57000000.gpu/devfreq/57000000.gpu"
    freqs = (("cur", 76800000), ("min", 76800000), ("max", 921600000))
    for name, value in freqs:
        write(gpu / f"{name}_freq", f"{value}\n")
    write(gpu / "governor", "nvhost_podgov\n")
    write(gpu / "available_governors", "userspace nvhost_podgov performance\n")
    write(root / "sys/devices/57000000.gpu/load", "0\n")
    write(root / "proc/meminfo", "MemTotal: 4059000 kB\nMemAvailable: 3000000 kB\nSwapTotal: 4000000 kB\n")
    write(root / "proc/mounts", "/dev/mmcblk0p1 / ext4 rw,relatime 0 0\ntmpfs /run tmpfs rw 0 0\n")
    write(root / "etc/fstab", "/dev/root / ext4 defaults 0 1\n")
    write(root / "etc/group", "root:x:0:\nvideo:x:44:edgegs\n")
    write(root / "etc/passwd", "root:x:0:0::/root:/bin/sh\nedgegs:x:990:990::/:/bin/false\n")
    write(root / "var/lib/nvpmodel/status", "pmode:0000\n")
    write(root / "etc/nvpmodel.conf", "< POWER_MODEL ID=0 NAME=MAXN >\n< POWER_MODEL ID=1 NAME=5W >\n")
    write(root / "run/systemd/timesync/synchronized", "")
    write(root / "sys/class/rtc/rtc0/name", "max77620-rtc\n")
    write(root / "dev/kmsg", "6,1,100,-;Booting Linux on physical CPU 0x0\n SUBSYSTEM=cpu\n6,2,200,-;nvgpu: ready\n")
    write(root / "proc/net/tcp", "  sl  local_address rem_address   st\n")
    write(root / "proc/devices", "Character devices:\n  1 mem\n")


def run_cases(cases, code, tmp_path, monkeypatch):
    """Have one case of a table found, and check what every finding with a code must be."""
    found = cases[code](World(tmp_path, monkeypatch))
    mine = [one for one in found if one.code == code]
    assert mine, f"{code} is not among {found}"
    assert all(one.says and one.state in (OK, WARNING, PROBLEM) for one in mine)
    assert all(one.fix for one in found if one.state != OK), "each fault has something that mends it"
    assert all(one.code for one in found if one.state != OK)
    return mine
