"""tegrastats: lines in the forms of every board, and the child that prints them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Callable, Iterator, List

import pytest

from edgegs.telemetry import tegrastats as module
from edgegs.telemetry.readings import ABSENT, UNREADABLE, USABLE, Readings
from edgegs.telemetry.tegrastats import Tegrastats, fill, parse

ROOT = Path(__file__).resolve().parent.parent

NANO = (
    "RAM 1331/3964MB (lfb 402x4MB) SWAP 0/1982MB (cached 0MB) IRAM 0/252kB(lfb 252kB) CPU [34%@1479,12%@1479,off,off] "
    "EMC_FREQ 21%@1600 GR3D_FREQ 98%@921 APE 25 PLL@40.5C CPU@43.5C PMIC@100C GPU@42.5C AO@47.5C thermal@43C "
    "POM_5V_IN 7933/5120 POM_5V_GPU 2800/1400 POM_5V_CPU 984/505"
)
#: The same program for a user other than root, and on the board without a power monitor.
NANO_2GB = (
    "RAM 613/1972MB (lfb 34x4MB) SWAP 12/986MB (cached 0MB) CPU [2%@102,1%@102,0%@102,0%@102] EMC_FREQ 0% GR3D_FREQ 0% "
    "PLL@39C CPU@40.5C PMIC@50C GPU@41C AO@46C thermal@41C"
)
TX1 = (
    "RAM 1179/3983MB (lfb 120x4MB) cpu [1%,4%,off,0%]@307 EMC 7%@408 GR3D 12%@76 AO@42.5C PMIC@100C "
    "VDD_IN 2532/2698 VDD_CPU 76/178"
)
XAVIER_NX = (
    "RAM 2387/7774MB (lfb 961x4MB) SWAP 0/3887MB (cached 0MB) CPU [14%@1190,9%@1190,2%@1190,1%@1344,off,off] "
    "EMC_FREQ 1%@1600 GR3D_FREQ 7%@[510] VIC_FREQ 0%@115 APE 150 MTS fg 0% bg 3% AO@31C GPU@31.5C PMIC@100C AUX@31.5C "
    "CPU@33C thermal@31.95C VDD_IN 3528/3569 VDD_CPU_GPU_CV 410/426 VDD_SOC 1107/1115"
)
AGX_XAVIER = (
    "RAM 1903/15692MB (lfb 3251x4MB) CPU [1%@1190,1%@1190,2%@1190,0%@1190] EMC_FREQ 0% GR3D_FREQ 0% AO@32.5C GPU@32C "
    "Tboard@32C Tdiode@34.75C PMIC@100C GPU 0/0 CPU 216/210 SOC 864/860 CV 0/0 VDDRQ 144/144 SYS5V 1889/1880"
)
ORIN_NANO = (
    "11-29-2025 10:14:02 RAM 3140/7620MB (lfb 12x4MB) SWAP 0/3810MB (cached 0MB) CPU [40%@1510,33%@1510,22%@1510,"
    "15%@1510,off,off] EMC_FREQ 18%@2133 GR3D_FREQ 61%@[624] NVDEC off NVJPG off VIC off OFA off APE 200 cpu@48.906C "
    "soc2@47.531C soc0@46.812C gpu@47.25C tj@48.906C soc1@47.156C VDD_IN 8942mW/8130mW VDD_CPU_GPU_CV 3001mW/2920mW "
    "VDD_SOC 1870mW/1869mW"
)
AGX_ORIN = (
    "04-24-2023 00:01:24 RAM 1282/62795MB (lfb 15152x4MB) SWAP 0/31398MB (cached 0MB) CPU [0%@729,4%@729,off] "
    "EMC_FREQ 0%@2133 GR3D_FREQ 12%@[1300,1290] VIC_FREQ 729 APE 174 CV0@-256C CPU@42.593C Tboard@32C SOC2@39.343C "
    "GPU@-256C tj@42.593C VDD_GPU_SOC 2390mW/2399mW VDD_CPU_CV 400mW/400mW VIN_SYS_5V0 4032mW/4032mW NC 0mW/0mW "
    "VDDQ_VDD2_1V8AO 301mW/301mW NC 0mW/0mW"
)
THOR = (
    "10-01-2025 09:00:00 RAM 9000/125772MB (lfb 2x4MB) CPU [0%@2601,3%@2601] EMC_FREQ 2%@4266 GR3D_FREQ @[314,315,314] "
    "cpu@40.5C tj@41C VDD_GPU 0mW/0mW VDD_CPU_SOC_MSS 6510mW/6500mW VIN_SYS_5V0 6520mW/6500mW VIN 23100mW/23000mW"
)
BOARDS = [NANO, NANO_2GB, TX1, XAVIER_NX, AGX_XAVIER, ORIN_NANO, AGX_ORIN, THOR]


def read(text: str) -> Readings:
    readings = Readings("tegrastats")
    fill(readings, parse(text))
    return readings


def watts(readings: Readings) -> Any:
    return {rail: power.watts for rail, power in readings.power_w.items()}


# ---- lines ------------------------------------------------------------------------------------------


def test_a_nano() -> None:
    got = read(NANO)
    assert watts(got) == {"POM_5V_IN": 7.933, "POM_5V_GPU": 2.8, "POM_5V_CPU": 0.984}
    assert {power.method for power in got.power_w.values()} == {"tegrastats"}
    assert got.total_rail == "POM_5V_IN"  # it has the others in it
    assert got.temp_c == {"PLL": 40.5, "CPU": 43.5, "GPU": 42.5, "AO": 47.5, "thermal": 43.0}
    assert got.clk_hz == {"gpu": 921e6, "emc": 1600e6, "cpu0": 1479e6}
    assert got.load == {"gpu": 0.98, "emc": 0.21, "cpu": 0.23}  # two cores are off
    assert got.ram_bytes == {"used": 1331 * 2.0**20, "total": 3964 * 2.0**20}
    assert got.throttle is None  # it does not say


def test_a_nano_2gb_has_no_power_and_no_clock_it_does_not_tell() -> None:
    got = read(NANO_2GB)
    assert (got.power_w, got.total_rail) == ({}, None)
    assert got.clk_hz == {"cpu0": 102e6}
    assert got.load["gpu"] == 0.0  # that is what it measured


@pytest.mark.parametrize(
    ("line", "rails", "total", "gpu_hz", "gpu_load"),
    [
        (TX1, {"VDD_IN": 2.532, "VDD_CPU": 0.076}, "VDD_IN", 76e6, 0.12),
        (XAVIER_NX, {"VDD_IN": 3.528, "VDD_CPU_GPU_CV": 0.41, "VDD_SOC": 1.107}, "VDD_IN", 510e6, 0.07),
        (
            AGX_XAVIER,
            {"GPU": 0.0, "CPU": 0.216, "SOC": 0.864, "CV": 0.0, "VDDRQ": 0.144, "SYS5V": 1.889},
            None,
            None,
            0.0,
        ),
        (ORIN_NANO, {"VDD_IN": 8.942, "VDD_CPU_GPU_CV": 3.001, "VDD_SOC": 1.87}, "VDD_IN", 624e6, 0.61),
        (
            AGX_ORIN,
            {"VDD_GPU_SOC": 2.39, "VDD_CPU_CV": 0.4, "VIN_SYS_5V0": 4.032, "VDDQ_VDD2_1V8AO": 0.301},
            None,
            1300e6,
            0.12,
        ),
        (
            THOR,
            {"VDD_GPU": 0.0, "VDD_CPU_SOC_MSS": 6.51, "VIN_SYS_5V0": 6.52, "VIN": 23.1},
            "VIN",
            315e6,
            None,
        ),
    ],
    ids=["tx1", "xavier-nx", "agx-xavier", "orin-nano", "agx-orin", "thor"],
)
def test_rails_and_gpu_of_other_boards(line, rails, total, gpu_hz, gpu_load) -> None:
    got = read(line)
    assert (watts(got), got.total_rail) == (rails, total)
    assert (got.clk_hz.get("gpu"), got.load.get("gpu")) == (gpu_hz, gpu_load)


@pytest.mark.parametrize("line", BOARDS)
def test_constants_and_parts_asleep_are_no_temperature(line: str) -> None:
    got = read(line)
    assert got.temp_c
    assert not [name for name in got.temp_c if name.upper().startswith(("PMIC", "CV"))]
    assert all(20 < degrees < 60 for degrees in got.temp_c.values())


def test_a_part_asleep_is_told_as_failed() -> None:
    assert sorted(read(AGX_ORIN).failed) == ["CV0", "GPU"]
    assert "GPU" not in read(AGX_ORIN).temp_c


def test_the_mean_since_its_start_is_read_and_not_used() -> None:
    assert parse(NANO).rails_mw["POM_5V_IN"] == (7933, 5120)


@pytest.mark.parametrize(
    ("line", "part", "changed", "left"),
    [
        (NANO, "POM_5V_IN 7933/5120", "POM_5V_IN 0/0", {"POM_5V_GPU", "POM_5V_CPU"}),
        (THOR, "VDD_GPU 0mW/0mW", "VDD_GPU -392mW/-392mW", {"VDD_CPU_SOC_MSS", "VIN_SYS_5V0", "VIN"}),
        (NANO, "POM_5V_GPU 2800/1400", "POM_5V_GPU 999999999/1", {"POM_5V_IN", "POM_5V_CPU"}),
        (NANO, "POM_5V_GPU 2800/1400", "POM_5V_GPU 2800mW/1400", {"POM_5V_IN", "POM_5V_CPU"}),
    ],
)
def test_what_cannot_be_a_power_is_absent(line: str, part: str, changed: str, left: set) -> None:
    assert part in line
    assert set(read(line.replace(part, changed)).power_w) == left


@pytest.mark.parametrize(
    "text", ["", "tegrastats: error", "POM_5V_IN 1/2", "RAM full", "CPU []", "RAM \u0661/\u0662GB", "@" * 5000]
)
def test_other_lines_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no line of tegrastats"):
        parse(text)


def test_a_line_cut_anywhere_is_read_or_refused_and_invents_nothing() -> None:
    for line in BOARDS:
        whole = read(line)
        for length in range(len(line)):
            try:
                got = read(line[:length])
            except ValueError:
                continue
            assert set(got.power_w) <= set(whole.power_w)
            assert set(got.temp_c) <= set(whole.temp_c)


def test_a_hostile_line_takes_no_time() -> None:
    began = time.process_time()
    for text in ("A" * 1000, "A " * 500, "1/" * 500, "CPU [" + "1%," * 300, "a@-" * 300, "RAM 1/2MB " + "9" * 900):
        try:
            read(text)
        except ValueError:
            pass
    assert time.process_time() - began < 1.0


# ---- the child --------------------------------------------------------------------------------------


def wait_for(condition: Callable[[], Any]) -> Any:
    end = time.monotonic() + 10
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < end, "waited for 10 s"
        time.sleep(0.01)


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], str]:
    """A tegrastats of our own: a shell script that notes its process's number and its arguments."""

    def write(body: str) -> str:
        path = tmp_path / "tegrastats"
        path.write_text(f"#!/bin/sh\necho $$ >> {tmp_path}/pids\necho \"$@\" >> {tmp_path}/args\n{body}")
        path.chmod(0o755)
        return str(path)

    return write


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[Callable[..., Tegrastats]]:
    """Make collectors; at the end none has left a thread, a descriptor or a child."""
    threads, descriptors = set(threading.enumerate()), len(os.listdir("/proc/self/fd"))
    made: List[Tegrastats] = []

    def make(path: str, period_s: float = 0.2, **options: Any) -> Tegrastats:
        made.append(Tegrastats(period_s, path, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()
    assert set(threading.enumerate()) == threads
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert not [pid for pid in pids(tmp_path) if alive(pid)]


def pids(tmp_path: Path) -> List[int]:
    try:
        return [int(line) for line in (tmp_path / "pids").read_text().split()]
    except FileNotFoundError:
        return []


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def usable(one: Tegrastats) -> Any:
    got = one.collect()
    return got if got.state == USABLE else None


def test_values_come_from_a_child_that_ends_with_the_collector(tmp_path: Path, program, collector) -> None:
    one = collector(program(f"while :; do echo '{NANO}'; sleep 0.05; done\n"))
    before = time.monotonic_ns()
    first = one.collect()
    assert (first.state, first.power_w) == (ABSENT, {})  # it has only just been started, and nobody waits
    got = wait_for(lambda: usable(one))
    assert got.power_w["POM_5V_IN"].watts == 7.933
    assert (got.source, got.collector) == ("tegrastats", "tegrastats")
    assert before < got.t_mono_ns < time.monotonic_ns()
    assert (tmp_path / "args").read_text().split() == ["--interval", "200"]
    assert wait_for(lambda: one.collect().t_mono_ns > got.t_mono_ns)
    assert alive(pids(tmp_path)[0])


def test_what_is_stale_is_absent(program, collector) -> None:
    one = collector(program(f"echo '{NANO}'; exec sleep 60\n"), period_s=0.3)
    wait_for(lambda: usable(one))
    got = wait_for(lambda: one.collect() if one.collect().state == UNREADABLE else None)
    assert (got.power_w, got.temp_c) == ({}, {})
    assert got.cause.startswith("no news for 0.")


def test_a_child_that_ends_is_started_again(tmp_path: Path, program, collector) -> None:
    one = collector(program(f"echo '{NANO}'\n"), retry_s=(0.05, 0.1))
    wait_for(lambda: one.collect() and len(pids(tmp_path)) >= 3)
    wait_for(lambda: usable(one))


def test_why_it_ended_is_told(program, collector) -> None:
    one = collector(program("echo 'tegrastats: cannot open /dev/nvmap: Permission denied' >&2; exit 3\n"))
    got = wait_for(lambda: one.collect() if one.collect().state == UNREADABLE else None)
    assert got.cause == "tegrastats ended with status 3: tegrastats: cannot open /dev/nvmap: Permission denied"


def test_a_child_that_prints_other_things_is_replaced(tmp_path: Path, program, collector, monkeypatch) -> None:
    monkeypatch.setattr(module, "_SILENT_S", 0.2)
    monkeypatch.setattr(module, "_SILENT_PERIODS", 0.5)
    one = collector(program("while :; do echo 'error: no such board'; sleep 0.05; done\n"), retry_s=(0.05, 0.1))
    wait_for(lambda: one.collect() and len(pids(tmp_path)) >= 2)
    got = one.collect()
    assert "printed no line of its own" in got.cause
    assert "no such board" in got.cause


def test_lines_without_end_take_no_memory(tmp_path: Path, program, collector) -> None:
    body = f"echo '{NANO}'; while :; do head -c 100000 /dev/zero | tr '\\0' 'x'; sleep 0.01; done\n"
    one = collector(program(body))
    wait_for(lambda: usable(one))
    time.sleep(0.2)
    assert alive(pids(tmp_path)[0])  # nobody blocks on it


def test_a_program_that_is_not_there_is_a_cause(collector) -> None:
    one = collector("/nowhere/tegrastats")
    got = wait_for(lambda: one.collect() if one.collect().state == UNREADABLE else None)
    assert got.cause.startswith("/nowhere/tegrastats is not installed: it comes with Jetson Linux")


def test_no_child_outlives_a_process_that_is_killed(tmp_path: Path, program) -> None:
    path = program(f"trap '' TERM HUP PIPE; while :; do echo '{NANO}'; sleep 0.05; done\n")
    script = (
        "import sys, time\n"
        "from edgegs.telemetry.tegrastats import Tegrastats\n"
        "one = Tegrastats(0.2, sys.argv[1])\n"
        "while one.collect().state != 'usable': time.sleep(0.01)\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    command = [sys.executable, "-c", script, path]
    environment = dict(os.environ, PYTHONPATH=str(ROOT))
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ready\n"
        (pid,) = pids(tmp_path)
        assert alive(pid)
        parent.send_signal(signal.SIGKILL)
    wait_for(lambda: not alive(pid))
