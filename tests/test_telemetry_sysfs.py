"""Collectors over fixture trees: every board's golden readings, and what goes wrong with real sensors."""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
from pathlib import Path
from typing import Callable, Dict, Iterator

import pytest

from edgegs.errors import ConfigError
from edgegs.telemetry import reader as reader_module
from edgegs.telemetry.board import identify
from edgegs.telemetry.clocks import Clocks
from edgegs.telemetry.facade import make_collectors
from edgegs.telemetry.power import Ina3221, Rapl, put_rail
from edgegs.telemetry.reader import SensorReader
from edgegs.telemetry.readings import ABSENT, UNREADABLE, USABLE, Collector, Readings
from edgegs.telemetry.sampler import Sampler
from edgegs.telemetry.sysfs import HwmonTemperatures, ThermalZones
from edgegs.telemetry.throttle import Cooling, KernelAlarms, OverCurrent

FIXTURES = Path(__file__).parent / "data" / "sysfs"
ZONES = "devices/virtual/thermal"
NANO_INA = "devices/7000c400.i2c/i2c-6/6-0040/iio:device0"
ORIN_INA = "devices/platform/bus@0/c240000.i2c/i2c-1/1-0040/hwmon/hwmon1"


@pytest.fixture
def reader() -> Iterator[SensorReader]:
    made = SensorReader(timeout_s=0.2)
    yield made
    made.close()


@pytest.fixture
def board(tmp_path: Path) -> Callable[[str], Path]:
    """A copy of a fixture tree that a test may change."""

    def copy(name: str) -> Path:
        shutil.copytree(str(FIXTURES / name), str(tmp_path / name), symlinks=True)
        return tmp_path / name

    return copy


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], None]:
    """Make reads of paths that contain a text fail with an errno (chmod means nothing to root)."""
    rules: Dict[str, int] = {}
    real = reader_module._read_file

    def read(path: str) -> reader_module.Result:
        for part, number in rules.items():
            if part in path:
                return OSError(number, os.strerror(number), path)
        return real(path)

    monkeypatch.setattr(reader_module, "_read_file", read)
    return rules.__setitem__


def sample(root: Path, reader: SensorReader):
    return Sampler(make_collectors("sysfs", str(root), reader, identify(str(root)))).sample()


# ---- golden -----------------------------------------------------------------------------------------


def test_nano(reader: SensorReader) -> None:
    got = sample(FIXTURES / "nano", reader)
    assert {rail: (power.watts, power.method) for rail, power in got.power_w.items()} == {
        "POM_5V_IN": (5.084, "ina3221_iio"),
        "POM_5V_GPU": (1.685, "ina3221_iio"),
        "POM_5V_CPU": (1.003, "ina3221_iio"),
    }
    assert got.total_rail == "POM_5V_IN"
    assert got.temp_c == {
        "AO-therm": 44.5,
        "CPU-therm": 41.0,
        "GPU-therm": 39.5,
        "PLL-therm": 40.0,
        "thermal-fan-est": 40.25,
    }
    assert got.clk_hz == {"gpu": 921.6e6, "cpu0": 1479e6}
    assert got.clk_limits_hz == {"gpu": (76.8e6, 921.6e6), "cpu0": (102e6, 1479e6)}
    assert got.load == {"gpu": 0.987}
    assert got.throttle == []  # the fan is at work, which limits no clock
    states = {name: readings.state for name, readings in got.collectors.items()}
    assert states == {
        "thermal": USABLE,
        "hwmon": ABSENT,
        "ina3221": USABLE,
        "rapl": ABSENT,
        "clocks": USABLE,
        "cooling": USABLE,
        "over_current": ABSENT,
    }


def test_orin_nano(reader: SensorReader) -> None:
    got = sample(FIXTURES / "orin_nano", reader)
    assert {rail: round(power.watts, 6) for rail, power in got.power_w.items()} == {
        "VDD_IN": 6.398784,
        "VDD_CPU_GPU_CV": 2.026944,
        "VDD_SOC": 1.470528,
    }  # the sum of shunt voltages is no rail
    assert {power.method for power in got.power_w.values()} == {"ina3221_hwmon"}
    assert got.total_rail == "VDD_IN"
    assert got.temp_c == {
        "cpu-thermal": 51.187,
        "gpu-thermal": 52.468,
        "soc0-thermal": 49.25,
        "soc1-thermal": 50.125,
        "soc2-thermal": 49.781,
        "tj-thermal": 52.468,
        "nvme:Composite": 38.85,
    }  # no CV zone at -256, and no zone a second time as its own hwmon
    assert sorted(got.collectors["thermal"].failed) == ["cv0-thermal", "cv1-thermal", "cv2-thermal"]
    assert got.clk_hz == {"gpu": 624.75e6, "cpu0": 1510.4e6, "cpu4": 1510.4e6}
    assert got.load == {"gpu": 0.734}
    assert got.throttle == []  # hot-surface-alert and the fan limit nothing; oc3 did not grow
    assert got.collectors["over_current"].success


@pytest.mark.parametrize(
    ("name", "model", "l4t", "mode", "soc"),
    [
        ("nano", "NVIDIA Jetson Nano Developer Kit", "32.7.1", "0 (MAXN)", "nvidia,tegra210"),
        ("orin_nano", "NVIDIA Jetson Orin Nano Developer Kit", "36.4.3", "0 (15W)", "nvidia,tegra234"),
    ],
)
def test_board_identity(name: str, model: str, l4t: str, mode: str, soc: str) -> None:
    root = FIXTURES / name
    etc = root / "etc"
    board = identify(str(root), str(etc / "nv_tegra_release"), str(etc / "nvpmodel_status"), str(etc / "nvpmodel.conf"))
    assert (board.model, board.l4t, board.power_mode) == (model, l4t, mode)
    assert board.compatible is not None
    assert board.compatible[-1] == soc
    assert board.is_tegra


def test_unknown_machine_has_no_identity_and_no_sensors(tmp_path: Path, reader: SensorReader) -> None:
    board = identify(str(tmp_path), str(tmp_path / "a"), str(tmp_path / "b"), str(tmp_path / "c"))
    assert board.facts() == {}
    assert not board.is_tegra
    got = sample(tmp_path, reader)
    assert {readings.state for readings in got.collectors.values()} == {ABSENT}
    assert (got.power_w, got.temp_c, got.clk_hz) == ({}, {}, {})
    assert got.throttle is None  # unknown, not "none"


def test_pc_names_itself_by_dmi(tmp_path: Path) -> None:
    dmi = tmp_path / "class/dmi/id"
    dmi.mkdir(parents=True)
    (dmi / "sys_vendor").write_text("ACME\n")
    (dmi / "product_name").write_text("Tower 9\n")
    (tmp_path / "module/nvidia").mkdir(parents=True)
    (tmp_path / "module/nvidia/version").write_text("550.54.14\n")
    board = identify(str(tmp_path), "/nowhere", "/nowhere", "/nowhere")
    assert (board.model, board.driver, board.is_tegra) == ("ACME Tower 9", "550.54.14", False)


def test_source_none_reads_nothing_and_an_unknown_one_is_refused(reader: SensorReader) -> None:
    board = identify(str(FIXTURES / "nano"))
    assert make_collectors("none", str(FIXTURES / "nano"), reader, board) == []
    with pytest.raises(ConfigError, match=r"telemetry\.source.*'jtopp'"):
        make_collectors("jtopp", "/sys", reader, board)


# ---- temperatures -----------------------------------------------------------------------------------


def test_zones_are_known_by_type_when_numbers_move(board, reader: SensorReader) -> None:
    root = board("nano")
    before = ThermalZones(str(root), reader).collect().temp_c
    for number in reversed(range(6)):  # a Wi-Fi card took number 0
        (root / ZONES / f"thermal_zone{number}").rename(root / ZONES / f"thermal_zone{number + 1}")
    wifi = root / ZONES / "thermal_zone0"
    wifi.mkdir()
    (wifi / "type").write_text("iwlwifi\n")
    (wifi / "temp").write_text("39000\n")
    (root / "class/thermal/thermal_zone6").symlink_to(root / ZONES / "thermal_zone6")
    after = ThermalZones(str(root), reader).collect().temp_c
    assert after.pop("iwlwifi") == 39.0
    assert after == before


@pytest.mark.parametrize("constant", ["100000", "50000"])
def test_pmic_die_is_never_used(board, reader: SensorReader, constant: str) -> None:
    root = board("nano")
    (root / ZONES / "thermal_zone4/temp").write_text(constant + "\n")
    assert (root / ZONES / "thermal_zone4/type").read_text().strip() == "PMIC-Die"
    got = sample(root, reader)
    assert "PMIC-Die" not in got.temp_c
    assert max(got.temp_c.values()) < 50
    assert "PMIC-Die" not in got.collectors["thermal"].failed


@pytest.mark.parametrize("content", ["-256000", "127000", "999999999", "-40000", "", "n/a", "12.5.1"])
def test_absurd_temperatures_are_absent(board, reader: SensorReader, content: str) -> None:
    root = board("nano")
    (root / ZONES / "thermal_zone1/temp").write_text(content + "\n")
    got = ThermalZones(str(root), reader).collect()
    assert "CPU-therm" not in got.temp_c
    assert "CPU-therm" in got.failed
    assert got.temp_c["GPU-therm"] == 39.5
    assert got.success


def test_a_zone_that_says_eagain_is_offline(board, refuse, reader: SensorReader) -> None:
    refuse("thermal_zone2/temp", errno.EAGAIN)
    got = ThermalZones(str(board("nano")), reader).collect()
    assert "GPU-therm" not in got.temp_c
    assert got.failed == {"GPU-therm": "offline (EAGAIN)"}


def test_zones_of_one_type_are_kept_apart(board, reader: SensorReader) -> None:
    root = board("nano")
    (root / ZONES / "thermal_zone2/type").write_text("CPU-therm\n")
    got = ThermalZones(str(root), reader).collect()
    assert (got.temp_c["CPU-therm"], got.temp_c["CPU-therm#2"]) == (41.0, 39.5)


def test_a_desktops_cores_are_left_out_of_the_record(tmp_path: Path, reader: SensorReader) -> None:
    chip = tmp_path / "class/hwmon/hwmon0"
    chip.mkdir(parents=True)
    (chip / "name").write_text("coretemp\n")
    for number, label, value in ((1, "Package id 0", 61000), (2, "Core 0", 60000), (3, "Core 1", 59000)):
        (chip / f"temp{number}_label").write_text(label + "\n")
        (chip / f"temp{number}_input").write_text(f"{value}\n")
    assert HwmonTemperatures(str(tmp_path), reader).collect().temp_c == {"coretemp:Package id 0": 61.0}


# ---- power ------------------------------------------------------------------------------------------


def test_nano_2gb_has_no_power_and_says_so(board, reader: SensorReader) -> None:
    root = board("nano")
    shutil.rmtree(str(root / "devices/7000c400.i2c"))
    (root / "bus/i2c/drivers/ina3221x/6-0040").unlink()
    got = Ina3221(str(root), reader).collect()
    assert (got.state, got.success, got.power_w, got.total_rail) == (ABSENT, False, {}, None)


def test_a_monitor_for_root_only_is_unreadable_not_absent(board, refuse, reader: SensorReader) -> None:
    refuse("in_power", errno.EACCES)
    got = Ina3221(str(board("nano")), reader).collect()
    assert (got.state, got.power_w) == (UNREADABLE, {})
    assert "permission denied" in got.cause
    assert "udev" in got.cause


def test_a_monitor_without_readable_labels_is_unreadable(board, refuse, reader: SensorReader) -> None:
    refuse("rail_name", errno.EACCES)
    assert Ina3221(str(board("nano")), reader).collect().state == UNREADABLE


def test_one_failing_rail_does_not_cost_the_others(board, refuse, reader: SensorReader) -> None:
    refuse("in_power0_input", errno.EIO)
    got = Ina3221(str(board("nano")), reader).collect()
    assert sorted(got.power_w) == ["POM_5V_CPU", "POM_5V_GPU"]
    assert got.total_rail is None  # never put together from the parts
    assert list(got.failed) == ["POM_5V_IN"]


def test_a_total_of_zero_is_no_measurement_but_an_idle_part_may_be_zero(board, reader: SensorReader) -> None:
    root = board("nano")
    (root / NANO_INA / "in_power0_input").write_text("0\n")
    (root / NANO_INA / "in_power1_input").write_text("0\n")
    got = Ina3221(str(root), reader).collect()
    assert "POM_5V_IN" not in got.power_w
    assert got.power_w["POM_5V_GPU"].watts == 0.0


@pytest.mark.parametrize("value", ["-5", "99999999", "x"])
def test_absurd_power_is_absent(board, reader: SensorReader, value: str) -> None:
    root = board("nano")
    (root / NANO_INA / "in_power0_input").write_text(value + "\n")
    got = Ina3221(str(root), reader).collect()
    assert "POM_5V_IN" not in got.power_w
    assert "POM_5V_IN" in got.failed


def test_the_iio_index_is_not_fixed(board, reader: SensorReader) -> None:
    root = board("nano")
    (root / NANO_INA).rename(root / NANO_INA.replace("device0", "device7"))
    assert Ina3221(str(root), reader).collect().power_w["POM_5V_IN"].watts == 5.084


def test_unconnected_channels_are_skipped(board, reader: SensorReader) -> None:
    root = board("orin_nano")
    (root / ORIN_INA / "in3_label").write_text("NC\n")
    (root / ORIN_INA / "in7_label").write_text("VDD_LOOKS_REAL\n")  # channel 7 is never a rail
    (root / ORIN_INA / "curr7_input").write_text("100\n")
    assert sorted(Ina3221(str(root), reader).collect().power_w) == ["VDD_CPU_GPU_CV", "VDD_IN"]


def test_a_board_without_a_single_total_has_none(board, reader: SensorReader) -> None:
    root = board("orin_nano")
    for number, label in enumerate(("VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0"), 1):
        (root / ORIN_INA / f"in{number}_label").write_text(label + "\n")
    got = Ina3221(str(root), reader).collect()
    assert sorted(got.power_w) == ["VDD_CPU_CV", "VDD_GPU_SOC", "VIN_SYS_5V0"]
    assert got.total_rail is None


def powercap(root: Path, energy: int) -> Path:
    zone = root / "class/powercap/intel-rapl:0"
    part = root / "class/powercap/intel-rapl:0:0"
    for folder, name in ((zone, "package-0"), (part, "core")):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "name").write_text(name + "\n")
        (folder / "energy_uj").write_text(f"{energy}\n")
        (folder / "max_energy_range_uj").write_text("1000000\n")
    return zone / "energy_uj"


def test_rapl_is_the_growth_of_the_counter(tmp_path: Path, reader: SensorReader) -> None:
    counter = powercap(tmp_path, 100000)
    collector = Rapl(str(tmp_path), reader, iter([10.0, 10.5, 11.0]).__next__)
    first = collector.collect()
    assert (first.state, first.power_w) == (USABLE, {})  # one reading of a counter is no power
    counter.write_text("350000\n")
    second = collector.collect()
    assert list(second.power_w) == ["package-0"]  # parts of the package are not added
    assert second.power_w["package-0"].energy_j == pytest.approx(0.25)
    assert second.power_w["package-0"].method == "rapl_counter"
    assert second.power_w["package-0"].watts == pytest.approx(0.5)
    assert second.total_rail is None
    counter.write_text("50000\n")  # wrapped at 1 J
    third = collector.collect().power_w["package-0"]
    assert (third.energy_j, third.watts) == (pytest.approx(0.7), pytest.approx(1.4))


def test_a_rapl_counter_that_has_not_moved_yet_loses_no_time(tmp_path: Path, reader: SensorReader) -> None:
    counter = powercap(tmp_path, 100000)
    collector = Rapl(str(tmp_path), reader, iter([10.0, 10.5, 11.0]).__next__)
    collector.collect()
    assert collector.collect().power_w == {}
    counter.write_text("350000\n")
    got = collector.collect().power_w["package-0"]
    assert (got.energy_j, got.watts) == (pytest.approx(0.25), pytest.approx(0.25))


def test_thors_input_rail_is_its_total() -> None:
    got = Readings("x")
    for name, watts in (("VDD_IN", 7.0), ("VIN", 9.0), ("VDD_GPU", 3.0)):
        put_rail(got, name, watts, "ina3221_hwmon")
    assert (got.total_rail, len(got.power_w)) == ("VIN", 3)


def test_a_load_without_limits_is_still_a_load(board, refuse, reader: SensorReader) -> None:
    root = board("nano")
    refuse("min_freq", errno.EACCES)
    got = Clocks(str(root), reader).collect()
    assert ("gpu" in got.clk_limits_hz, got.load) == (False, {"gpu": 0.987})


def test_rapl_for_root_only(tmp_path: Path, refuse, reader: SensorReader) -> None:
    powercap(tmp_path, 1)
    refuse("energy_uj", errno.EACCES)
    got = Rapl(str(tmp_path), reader).collect()
    assert got.state == UNREADABLE
    assert "root" in got.cause


# ---- clocks and throttling --------------------------------------------------------------------------


def test_gpu_below_its_limit_under_full_load_is_throttling_from_the_second_reading(board, reader) -> None:
    root = board("nano")
    gpu = root / "devices/57000000.gpu"
    (gpu / "devfreq/57000000.gpu/cur_freq").write_text("614400000\n")
    clocks = Clocks(str(root), reader)
    assert [clocks.collect().throttle, clocks.collect().throttle] == [[], ["gpu_clock"]]
    (gpu / "load").write_text("400\n")  # not busy: the governor saves power
    assert clocks.collect().throttle == []


def test_a_governor_at_its_limit_is_no_throttling(board, reader: SensorReader) -> None:
    root = board("nano")
    folder = root / "devices/57000000.gpu/devfreq/57000000.gpu"
    for name in ("cur_freq", "max_freq"):  # nvpmodel's 5 W mode
        (folder / name).write_text("640000000\n")
    clocks = Clocks(str(root), reader)
    clocks.collect()
    assert clocks.collect().throttle == []


def test_cooling_device_at_work_is_throttling(board, reader: SensorReader) -> None:
    root = board("nano")
    (root / ZONES / "cooling_device1/cur_state").write_text("7\n")
    assert Cooling(str(root), reader).collect().throttle == ["cooling:gpu-balanced"]


def test_powerclamp_idles_at_minus_one(board, reader: SensorReader) -> None:
    root = board("nano")
    (root / ZONES / "cooling_device1/type").write_text("intel_powerclamp\n")
    (root / ZONES / "cooling_device1/cur_state").write_text("-1\n")
    assert Cooling(str(root), reader).collect().throttle == []


def test_over_current_counts_what_is_new(board, reader: SensorReader) -> None:
    root = board("orin_nano")
    counter = root / "devices/platform/soctherm-oc-event/hwmon/hwmon3/oc3_event_cnt"
    collector = OverCurrent(str(root), reader)
    assert collector.collect().throttle == []  # 37 events before we came are not ours
    counter.write_text("40\n")
    got = collector.collect()
    assert (got.throttle, got.throttle_counts) == (["over_current_peak"], {"over_current_peak": 3})
    assert collector.collect().throttle == []


def test_kernel_alarms_count_new_lines_only(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_bytes(b"3,1,1,-;soctherm: OC ALARM 0x00000001\n")
    collector = KernelAlarms(str(log))
    try:
        assert collector.collect().throttle == []
        with log.open("ab") as file:
            file.write(b"6,2,2,-;usb 1-2: new device\n3,3,3,-;soctherm: OC ALARM 0x00000001\n")
        got = collector.collect()
        assert (got.throttle, got.throttle_counts) == (["oc_alarm"], {"oc_alarm": 1})
        assert collector.collect().throttle == []
    finally:
        collector.close()
    assert KernelAlarms(str(tmp_path / "none")).collect().state == ABSENT


# ---- hanging and failing ----------------------------------------------------------------------------


def release(fifo: Path, content: bytes) -> None:
    """Let a read that waits for the FIFO's writer return."""
    descriptor = os.open(str(fifo), os.O_WRONLY)
    os.write(descriptor, content)
    os.close(descriptor)


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end, "waited for 10 s"
        time.sleep(0.005)


def test_a_hanging_zone_is_left_alone_until_it_returns(board, reader: SensorReader) -> None:
    root = board("nano")
    fifo = root / ZONES / "thermal_zone2/temp"
    fifo.unlink()
    os.mkfifo(str(fifo))
    threads = threading.active_count()
    zones = ThermalZones(str(root), reader)
    got = zones.collect()
    assert "GPU-therm" not in got.temp_c
    assert "no answer" in got.failed["GPU-therm"]
    assert got.temp_c["thermal-fan-est"] == 40.25  # the zone behind it was still read
    assert got.success
    assert [Path(path).parent.name for path in reader.hung()] == ["thermal_zone2"]
    stuck = threading.active_count()
    for _ in range(5):
        assert "no answer" in zones.collect().failed["GPU-therm"]
    assert threading.active_count() == stuck  # it is not tried again, so nothing piles up
    release(fifo, b"48000\n")
    wait_for(lambda: not reader.hung())
    fifo.unlink()
    fifo.write_text("48500\n")
    assert zones.collect().temp_c["GPU-therm"] == 48.5
    reader.close()
    wait_for(lambda: threading.active_count() == threads)


def test_many_hanging_files_cost_a_bounded_number_of_threads_and_time(tmp_path: Path) -> None:
    fifos = []
    for number in range(12):
        fifos.append(tmp_path / f"sensor{number:02d}")
        os.mkfifo(str(fifos[-1]))
    good = tmp_path / "zgood"
    good.write_text("1\n")
    slow = SensorReader(timeout_s=0.02, max_hung=3)
    try:
        for _ in range(6):
            results = slow.read([str(path) for path in [*fifos, good]])
            assert all(isinstance(results[str(path)], OSError) for path in fifos)
        assert len(slow.hung()) == 3
    finally:
        for path in slow.hung():
            release(Path(path), b"0\n")
        wait_for(lambda: not slow.hung())
        slow.close()


def test_a_collector_that_raises_is_a_failure_with_a_cause() -> None:
    class Broken(Collector):
        name = "broken"

        def _read(self, readings: Readings) -> None:
            readings.temp_c["half"] = 1.0
            raise RuntimeError("bus on fire")

    got = Broken().collect()
    assert (got.success, got.state, got.temp_c) == (False, UNREADABLE, {})
    assert got.cause == "RuntimeError: bus on fire"


def test_the_sampler_survives_a_collector_without_manners() -> None:
    class Rude(Collector):
        name = "rude"

        def collect(self) -> Readings:
            raise KeyError("x")

    got = Sampler([Rude()]).sample()
    assert got.collectors["rude"].cause == "KeyError: 'x'"


def test_hardware_that_disappears_is_looked_for_again(board, reader: SensorReader) -> None:
    root = board("nano")
    zones = ThermalZones(str(root), reader)
    zones.collect()
    shutil.rmtree(str(root / ZONES / "thermal_zone1"))
    (root / "class/thermal/thermal_zone1").unlink()
    assert "CPU-therm" in zones.collect().failed
    assert "CPU-therm" not in zones.collect().failed
