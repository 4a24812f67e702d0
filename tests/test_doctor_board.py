"""The doctor's look at board, sensors, kernel log, memory, disks and clock, on made-up machines."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import time
from importlib import metadata
from pathlib import Path

import pytest
from machines import World, nano, of, recorded_nano, run_cases, write

from edgegs.doctor import board, kernel_log, sensors, storage
from edgegs.findings import OK, WARNING


@pytest.fixture
def world(tmp_path, monkeypatch):
    return World(tmp_path, monkeypatch)


# ---- one case of each finding ------------------------------------------------------------------------


def _nano_with(look, **files):
    """A Nano in good order, in which some files (double underscores for slashes) hold something else."""

    def case(world):
        recorded_nano(world.root)
        for name, text in files.items():
            world.write(name.replace("__", "/"), text)
        return look(world.machine)

    return case


def _governor(world):
    recorded_nano(world.root)
    world.write("sys/devices/57000000.gpu/devfreq/57000000.gpu/governor", "powersave\n")
    return board.board(world.machine)


def _jtop(version="4.3.2", served="", socket_there=True, closed=False):
    def case(world):
        recorded_nano(world.root)
        world.patch.setattr(metadata, "version", lambda name: version)
        if socket_there:
            world.write("run/jtop.sock")
        if served:
            world.write(f"usr/local/lib/python3.6/dist-packages/jetson_stats-{served}.dist-info/METADATA")
        if closed:
            world.patch.setattr(board.os, "access", lambda path, mode: False)
        return board.board(world.machine)

    return case


def _clock_wrong(world):
    world.patch.setattr(time, "time", lambda: 1000.0)
    return board.clock(world.machine)


def _unsynchronised(world):
    recorded_nano(world.root)
    (world.root / "run/systemd/timesync/synchronized").unlink()
    return board.clock(world.machine)


def _throttling(world):
    recorded_nano(world.root)
    world.write("sys/class/thermal/cooling_device0/cur_state", "2\n")
    return sensors.sensors(world.machine)


def _over_current(world):
    recorded_nano(world.root)
    world.write("sys/class/hwmon/hwmon3/oc1_event_cnt", "7\n")
    return sensors.sensors(world.machine)


def _unreadable_power(world):
    recorded_nano(world.root)
    world.write("sys/bus/i2c/drivers/ina3221x/6-0040/iio:device0/in_power0_input", "no number\n")
    return sensors.sensors(world.machine)


def _no_power(world):
    recorded_nano(world.root)
    shutil.rmtree(str(world.root / "sys/bus"))
    return sensors.sensors(world.machine)


def _rapl(world):
    zone = "sys/class/powercap/intel-rapl:0"
    world.write(f"{zone}/name", "package-0\n")
    world.write(f"{zone}/energy_uj", "closed\n")
    return sensors.sensors(world.machine)


def _offline(world):
    recorded_nano(world.root)
    world.write("sys/class/thermal/thermal_zone1/temp", "-256000\n")
    return sensors.sensors(world.machine)


def _unreadable(world):
    recorded_nano(world.root)
    for zone in (0, 1):
        world.write(f"sys/class/thermal/thermal_zone{zone}/temp", "-256000\n")
    return sensors.sensors(world.machine)


def _hangs(world):
    recorded_nano(world.root)
    path = world.root / "sys/class/thermal/thermal_zone1/temp"
    path.unlink()
    os.mkfifo(str(path))
    world.patch.setattr(sensors, "SENSOR_TIMEOUT_S", 0.05)
    try:
        return sensors.sensors(world.machine)
    finally:  # lets the reader go that still waits
        os.close(os.open(str(path), os.O_RDWR | os.O_NONBLOCK))


def _kernel(line):
    def case(world):
        recorded_nano(world.root)
        world.write("dev/kmsg", f"4,900,1000,-;all is well\n4,901,1000,-;{line}\n")
        return kernel_log.kernel_log(world.machine)

    return case


def _no_kernel_log(world):
    nano(world.root)
    return kernel_log.kernel_log(world.machine)


def _disk(free=50_000_000, files=None):
    def case(world):
        recorded_nano(world.root)
        usage = shutil.disk_usage(str(world.root))._replace(free=free)
        world.patch.setattr(shutil, "disk_usage", lambda path: usage)
        return storage.disks(world.machine)

    return case


def _no_temporary(world):
    def none():
        raise FileNotFoundError(2, "No usable temporary directory found")

    world.patch.setattr(tempfile, "gettempdir", none)
    return storage.disks(world.machine)


def _persistent(world):
    recorded_nano(world.root)
    world.write("var/log/journal/0123/system.journal")
    return storage.disks(world.machine)


def _cache(prepare):
    def case(world):
        folder = world.tmp_path / "cache"
        world.patch.setenv("EDGEGS_CACHE", str(folder))
        prepare(world, folder)
        return storage.cache()

    return case


def _no_access_to(name):
    def prepare(world, folder):
        (folder / "kernels").mkdir(parents=True)
        allowed = os.access
        world.patch.setattr(os, "access", lambda path, mode: os.path.basename(path) != name and allowed(path, mode))

    return prepare


def _full_cache(world, folder):
    folder.mkdir()
    usage = shutil.disk_usage(str(folder))._replace(free=7_000_000)
    world.patch.setattr(shutil, "disk_usage", lambda path: usage)


def _no_home(world):
    for name in ("EDGEGS_CACHE", "CACHE_DIRECTORY", "XDG_CACHE_HOME"):
        world.patch.delenv(name, raising=False)

    def none(cls):
        raise RuntimeError("no home")

    world.patch.setattr(Path, "home", classmethod(none))
    return storage.cache()


_MEMORY = "MemTotal: 4059000 kB\nMemAvailable: {} kB\nSwapTotal: {} kB\n"

CASES = {
    "power-mode": _nano_with(board.board, var__lib__nvpmodel__status="pmode:0001\n"),
    "clocks-not-pinned": _nano_with(board.board),
    "gpu-governor": _governor,
    "jtop-dead": _jtop(socket_there=False),
    "jtop-group": _jtop(closed=True),
    "jtop-version": _jtop(served="4.2.8"),
    "clock-wrong": _clock_wrong,
    "clock-unsynchronised": _unsynchronised,
    "throttling": _throttling,
    "over-current": _over_current,
    "power-unreadable": _unreadable_power,
    "power-absent": _no_power,
    "rapl-unreadable": _rapl,
    "sensor-unreadable": _unreadable,
    "sensor-hangs": _hangs,
    "thermal-offline": _offline,
    "kernel-log-unreadable": _no_kernel_log,
    "supply-weak": _kernel("soctherm: OC ALARM 0x00000001"),
    "memory-killed": _kernel("Out of memory: Kill process 4321 (cc1plus) score 650 or sacrifice child"),
    "storage-errors": _kernel("blk_update_request: I/O error, dev mmcblk0, sector 123456"),
    "gpu-timeout": _kernel("NVRM: Xid (PCI:0000:01:00): 8, pid=77, name=python3"),
    "gpu-faults": _kernel("NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus."),
    "memory-unknown": lambda world: storage.memory(world.machine),
    "memory-low": _nano_with(storage.memory, proc__meminfo=_MEMORY.format(200_000, 4_000_000)),
    "swap-missing": _nano_with(storage.memory, proc__meminfo=_MEMORY.format(3_000_000, 0)),
    "disk-full": _disk(),
    "root-read-only": _nano_with(storage.disks, proc__mounts="/dev/mmcblk0p1 / ext4 ro,relatime 0 0\n"),
    "disk-not-mounted": _nano_with(storage.disks, etc__fstab="UUID=12-34 /data ext4 defaults,nofail 0 2\n"),
    "tmp-full": _disk(free=150_000_000),
    "tmp-not-writable": _no_temporary,
    "journal-on-card": _persistent,
    "cache-no-home": _no_home,
    "cache-in-the-way": _cache(lambda world, folder: write(folder, "")),
    "cache-not-writable": _cache(_no_access_to("cache")),
    "cache-owner": _cache(_no_access_to("kernels")),
    "cache-disk-full": _cache(_full_cache),
}


@pytest.mark.parametrize("code", CASES)
def test_each_finding(code, tmp_path, monkeypatch):
    run_cases(CASES, code, tmp_path, monkeypatch)


# ---- what is well, and what is none of our business --------------------------------------------------


def test_a_nano_in_good_order(world):
    recorded_nano(world.root)
    here = world.machine
    looks = (board.board, board.clock, sensors.sensors, kernel_log.kernel_log, storage.memory, storage.disks)
    found = [one for look in looks for one in look(here)]
    assert {one.state for one in found} == {OK}
    says = " | ".join(one.says for one in found)
    assert "power mode 0 (MAXN)" in says
    assert "1 temperatures" not in says
    assert "2 temperatures" in says
    assert "power of POM_5V_IN" in says
    assert "2 lines of its log, none of a fault" in says


def test_a_desktop_is_not_told_of_what_only_boards_need(world):
    world.write("proc/meminfo", "MemTotal: 32000000 kB\nMemAvailable: 20000000 kB\nSwapTotal: 0 kB\n")
    world.write("proc/mounts", "/dev/nvme0n1p2 / ext4 rw 0 0\n")
    world.write("var/log/journal/0123/system.journal")
    here = world.machine
    looks = (board.board, board.clock, sensors.sensors, kernel_log.kernel_log, storage.memory, storage.disks)
    assert {one.state for look in looks for one in look(here)} == {OK}


def test_a_nano_2gb_has_no_power_monitor(world):
    recorded_nano(world.root)
    shutil.rmtree(str(world.root / "sys/bus"))
    world.write("proc/device-tree/model", "NVIDIA Jetson Nano 2GB Developer Kit\0")
    (one,) = [one for one in sensors.sensors(world.machine) if one.code == "power-absent"]
    assert one.state == OK


def test_pinned_clocks_and_other_power_modes(world):
    recorded_nano(world.root)
    gpu = "sys/devices/57000000.gpu/devfreq/57000000.gpu"
    world.write(f"{gpu}/min_freq", "921600000\n")
    assert any(one.says == "57000000.gpu is pinned to 922 MHz" for one in board.board(world.machine))
    for tree in ("proc/device-tree", "sys/firmware/devicetree/base"):
        world.write(f"{tree}/compatible", "nvidia,p3767-0005\0nvidia,tegra234\0")
    world.write("var/lib/nvpmodel/status", "pmode:0002\n")
    assert "power mode 2" in [one.says for one in board.board(world.machine)]


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("EXT4-fs error (device mmcblk0p1): ext4_find_entry:1455: inode #2", "storage-errors"),
        ("EXT4-fs (mmcblk0p1): Remounting filesystem read-only", "storage-errors"),
        ("mmc0: error -110 whilst initialising SD card", "storage-errors"),
        ("oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,task=nvcc", "memory-killed"),
        ("gk20a 57000000.gpu: gr_gk20a_wait_idle: channel 505 timeout, ctxsw busy", "gpu-timeout"),
        ("nvgpu: 57000000.gpu gk20a_fifo_handle_mmu_fault:1721 mmu fault on engine 0", "gpu-faults"),
        ("hwmon hwmon1: Undervoltage detected!", "supply-weak"),
    ],
)
def test_signs_in_the_kernels_log(world, line, code):
    world.write("dev/kmsg", f"4,1,1,-;{line}\n4,2,2,-;{line}\n")
    (one,) = kernel_log.kernel_log(world.machine)
    assert (one.code, one.state) == (code, WARNING)
    assert "2 times" in one.says
    assert line in one.says


@pytest.mark.parametrize(
    "line", ["EXT4-fs (mmcblk0p1): mounted filesystem with ordered data mode", "mmc0: new SDHC card", "NVRM: ok"]
)
def test_ordinary_lines_are_no_signs(world, line):
    world.write("dev/kmsg", f"4,1,1,-;{line}\n")
    assert [one.state for one in kernel_log.kernel_log(world.machine)] == [OK]


def test_the_clock_without_a_battery(world):
    recorded_nano(world.root)
    (world.root / "run/systemd/timesync/synchronized").unlink()
    shutil.rmtree(str(world.root / "sys/class/rtc"))
    (one,) = board.clock(world.machine)
    assert "no clock that runs on" in one.says


def test_a_volatile_journal_wears_no_card(world):
    recorded_nano(world.root)
    world.write("var/log/journal/0123/system.journal")
    world.write("etc/systemd/journald.conf.d/edgegs.conf", "[Journal]\nStorage=volatile\n")
    assert not [one for one in storage.disks(world.machine) if one.code]


def test_a_cache_that_is_not_there_yet_is_not_made(monkeypatch, tmp_path):
    monkeypatch.setenv("EDGEGS_CACHE", str(tmp_path / "not" / "there" / "yet"))
    (one,) = storage.cache()
    assert one.state == OK
    assert not (tmp_path / "not").exists(), "nothing is made by looking"


def test_nothing_is_left_open_or_running(world):
    recorded_nano(world.root)
    before = set(os.listdir("/proc/self/fd"))
    for look in (board.board, board.clock, sensors.sensors, kernel_log.kernel_log, storage.memory, storage.disks):
        look(world.machine)
    assert set(os.listdir("/proc/self/fd")) == before
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(world.root / "dev/odd"))
        assert of(kernel_log.kernel_log(world.machine), "kernel")
