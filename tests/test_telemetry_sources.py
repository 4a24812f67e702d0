"""Which source gives what: their order, one standing in for another within a tick, and what records say of it."""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List

import pytest
from test_telemetry_jtop import NANO_2GB_4, NANO_7, ORIN_NANO_7, Client
from test_telemetry_tegrastats import NANO, NANO_2GB

from edgegs.errors import ConfigError
from edgegs.telemetry import Telemetry, jtop_source, read_log
from edgegs.telemetry import reader as reader_module
from edgegs.telemetry import tegrastats as tegrastats_module
from edgegs.telemetry.background import Background
from edgegs.telemetry.board import Board, identify
from edgegs.telemetry.reader import SensorReader
from edgegs.telemetry.readings import ABSENT, UNREADABLE, USABLE, Collector, Power, Readings, merge
from edgegs.telemetry.sampler import Sampler
from edgegs.telemetry.sources import LINGER_S, RETRY_S, TRIAL_S, Standby, make_collectors, told
from edgegs.telemetry.throttle import CpuThrottle, HeldDown, OverCurrent

FIXTURES = Path(__file__).parent / "data" / "sysfs"
NANO_INA = "devices/7000c400.i2c/i2c-6/6-0040"
TEGRA = Board(compatible=["nvidia,jetson-nano", "nvidia,tegra210"])
KINDS = ("power_w", "temp_c", "clk_hz", "load")


class Jtops:
    """A jtop service: hands out clients, or refuses."""

    def __init__(self, shape: Dict[str, Any]) -> None:
        self.shape, self.refuses = shape, False
        self.clients: List[Client] = []

    def connect(self, interval_s: float) -> Client:
        if self.refuses:
            raise ConnectionRefusedError("The jtop.service is not active")
        self.clients.append(Client(self.shape))
        return self.clients[-1]

    def die(self) -> None:
        self.refuses = True
        for client in self.clients:
            client.gone = True


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jtop_source, "MIN_PERIOD_S", 0.04)
    monkeypatch.setattr(tegrastats_module, "MIN_PERIOD_S", 0.1)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    threads, descriptors = set(threading.enumerate()), len(os.listdir("/proc/self/fd"))
    yield
    wait_for(lambda: set(threading.enumerate()) == threads)
    assert len(os.listdir("/proc/self/fd")) == descriptors


@pytest.fixture
def board(tmp_path: Path) -> Callable[[str], Path]:
    """A copy of a fixture tree that a test may change."""

    def copy(name: str) -> Path:
        shutil.copytree(str(FIXTURES / name), str(tmp_path / name), symlinks=True)
        return tmp_path / name

    return copy


@pytest.fixture
def sampler() -> Iterator[Callable[..., Sampler]]:
    made: List[Sampler] = []

    def make(source: str, root: Path, **options: Any) -> Sampler:
        reader = SensorReader(timeout_s=0.2)
        collectors = make_collectors(source, str(root), reader, identify(str(root)), 0.04, **options)
        made.append(Sampler(collectors, reader=reader))
        return made[-1]

    yield make
    for one in made:
        one.stop()


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Make reads of paths that contain a text fail as for a user who is not root."""
    parts: List[str] = []
    real = reader_module._read_file

    def read(path: str) -> reader_module.Result:
        if any(part in path for part in parts):
            return OSError(errno.EACCES, os.strerror(errno.EACCES), path)
        return real(path)

    monkeypatch.setattr(reader_module, "_read_file", read)
    return parts.append


def script(tmp_path: Path, line: str) -> str:
    path = tmp_path / "tegrastats"
    path.write_text(f"#!/bin/sh\necho $$ >> {tmp_path}/pids\nwhile :; do echo '{line}'; sleep 0.05; done\n")
    path.chmod(0o755)
    return str(path)


def wait_for(condition: Callable[[], Any]) -> Any:
    end = time.monotonic() + 10
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < end, "waited for 10 s"
        time.sleep(0.005)


def sampled(one: Sampler, condition: Callable[[Any], Any]) -> Any:
    """The first sample of which something holds."""

    def look() -> Any:
        sample = one.sample()
        return sample if condition(sample) else None

    return wait_for(look)


def names(collectors: List[Collector]) -> List[str]:
    return [one.name for one in collectors]


# ---- which collectors -------------------------------------------------------------------------------


SYSFS = ["thermal", "hwmon", "ina3221", "rapl", "clocks", "cooling", "over_current"]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("none", []),
        ("sysfs", SYSFS),
        ("jtop", ["jtop", *SYSFS]),
        ("tegrastats", ["tegrastats", *SYSFS]),
        ("nvml", [*SYSFS, "nvml"]),
        ("auto", SYSFS),  # of a made-up root nobody else knows anything
    ],
)
def test_sources_in_their_order(source: str, expected: List[str]) -> None:
    reader = SensorReader()
    assert names(make_collectors(source, str(FIXTURES / "nano"), reader, TEGRA)) == expected


def test_auto_on_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(jtop_source, "installed", lambda: True)
    monkeypatch.setenv("PATH", str(tmp_path) + os.pathsep + os.environ["PATH"])
    script(tmp_path, NANO)
    reader = SensorReader()
    jetson = names(make_collectors("auto", "/sys", reader, TEGRA))
    assert jetson == [*SYSFS, "kernel_log", "jtop", "tegrastats"]
    desktop = names(make_collectors("auto", "/sys", reader, Board()))
    assert desktop == [*SYSFS, "cpu_throttle", "nvml"]
    monkeypatch.setattr(jtop_source, "installed", lambda: False)
    assert "jtop" not in names(make_collectors("auto", "/sys", reader, TEGRA))


def test_an_unknown_source_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"telemetry\.source: 'smi' is not one of auto, jtop, sysfs"):
        make_collectors("smi", "/sys", SensorReader(), TEGRA)


def test_a_source_that_cannot_be_used_is_a_cause_and_sysfs_gives(sampler) -> None:
    one = sampler("tegrastats", FIXTURES / "nano", tegrastats="/nowhere/tegrastats")
    got = sampled(one, lambda sample: sample.collectors["tegrastats"].state == UNREADABLE)
    assert "is not installed" in got.collectors["tegrastats"].cause
    assert got.power_w["POM_5V_IN"].method == "ina3221_iio"
    assert told(got.sources)["power_w"] == "sysfs"


# ---- one for another --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["nano", "orin_nano"])
def test_no_sample_is_lost_when_jtop_dies_and_comes_back(sampler, name: str) -> None:
    service = Jtops(NANO_7 if name == "nano" else ORIN_NANO_7)
    one = sampler("jtop", FIXTURES / name, connect_jtop=service.connect)
    samples = [sampled(one, lambda sample: told(sample.sources).get("power_w") == "jtop")]
    service.die()
    while told(samples[-1].sources)["power_w"] == "jtop":
        samples.append(one.sample())
        time.sleep(0.002)
    service.refuses = False
    while told(samples[-1].sources)["power_w"] == "sysfs":
        samples.append(one.sample())
        assert len(samples) < 5000
        time.sleep(0.002)
    first = samples[0]
    for sample in samples:
        for kind in KINDS:
            assert set(getattr(first, kind)) <= set(getattr(sample, kind)), kind
        assert sample.total_rail == first.total_rail
        assert sample.throttle is not None  # cooling devices are told by sysfs alone
    assert {told(sample.sources)["power_w"] for sample in samples} == {"jtop", "sysfs"}


def test_of_each_value_the_first_source_counts(sampler) -> None:
    service = Jtops(NANO_7)
    service.shape = dict(NANO_7, power={"rail": {"POM_5V_GPU": {"power": 1}}, "tot": {}})
    one = sampler("jtop", FIXTURES / "nano", connect_jtop=service.connect)
    got = sampled(one, lambda sample: sample.collectors["jtop"].state == USABLE)
    assert got.power_w["POM_5V_GPU"] == Power(0.001, "jtop")
    assert got.power_w["POM_5V_IN"] == Power(5.084, "ina3221_iio")  # what it left out
    assert got.sources["power_w"] == {"POM_5V_GPU": "jtop", "POM_5V_IN": "sysfs", "POM_5V_CPU": "sysfs"}
    assert got.total_rail == "POM_5V_IN"
    assert sorted(got.power_w) == ["POM_5V_CPU", "POM_5V_GPU", "POM_5V_IN"]  # nothing is put together


def test_a_sensor_keeps_the_kernels_name_and_is_there_once(sampler, tmp_path: Path) -> None:
    one = sampler("tegrastats", FIXTURES / "nano", tegrastats=script(tmp_path, NANO))
    got = sampled(one, lambda sample: sample.collectors["tegrastats"].state == USABLE)
    assert got.temp_c == {
        "AO-therm": 47.5,
        "CPU-therm": 43.5,
        "GPU-therm": 42.5,
        "PLL-therm": 40.5,
        "thermal-fan-est": 43.0,
    }
    assert told(got.sources)["temp_c"] == "tegrastats"


def test_pmic_die_comes_from_no_source(sampler, tmp_path: Path) -> None:
    one = sampler("tegrastats", FIXTURES / "nano", tegrastats=script(tmp_path, NANO))
    got = sampled(one, lambda sample: sample.collectors["tegrastats"].state == USABLE)
    assert not [name for name in got.temp_c if "pmic" in name.lower()]


def no_monitor(root: Path) -> Path:
    """The board without a power monitor, as the Nano 2GB is."""
    shutil.rmtree(str(root / "devices/7000c400.i2c"))
    (root / "bus/i2c/drivers/ina3221x/6-0040").unlink()
    return root


@pytest.mark.parametrize("source", ["sysfs", "jtop", "tegrastats", "auto"])
def test_a_nano_2gb_has_no_power_from_any_source(sampler, board, tmp_path: Path, source: str) -> None:
    service = Jtops(NANO_2GB_4)
    root = no_monitor(board("nano"))
    one = sampler(source, root, connect_jtop=service.connect, tegrastats=script(tmp_path, NANO_2GB))
    if source != "sysfs":
        asked = "tegrastats" if source == "tegrastats" else "jtop"
        sampled(one, lambda sample: sample.collectors[asked].state == USABLE)
    got = one.sample()
    assert (got.power_w, got.total_rail, got.sources.get("power_w")) == ({}, None, None)
    assert got.temp_c["CPU-therm"] > 20


# ---- auto -------------------------------------------------------------------------------------------


def test_auto_asks_nobody_while_sysfs_gives_all(sampler, tmp_path: Path) -> None:
    service = Jtops(NANO_7)
    one = sampler("auto", FIXTURES / "nano", connect_jtop=service.connect, tegrastats=script(tmp_path, NANO))
    for _ in range(5):
        got = one.sample()
    assert [got.collectors[name].state for name in ("jtop", "tegrastats")] == [ABSENT, ABSENT]
    assert (service.clients, (tmp_path / "pids").exists()) == ([], False)
    assert set(told(got.sources).values()) == {"sysfs"}


def test_auto_takes_from_jtop_what_only_root_may_read(sampler, refuse, tmp_path: Path) -> None:
    refuse("in_power")
    service = Jtops(NANO_7)
    one = sampler("auto", FIXTURES / "nano", connect_jtop=service.connect, tegrastats=script(tmp_path, NANO))
    got = sampled(one, lambda sample: sample.power_w)
    assert got.power_w["POM_5V_IN"] == Power(5.084, "jtop")
    assert got.collectors["ina3221"].state == UNREADABLE
    assert {kind: told(got.sources)[kind] for kind in KINDS} == {
        "power_w": "jtop",
        "temp_c": "sysfs",
        "clk_hz": "sysfs",
        "load": "sysfs",
    }
    assert got.temp_c["CPU-therm"] == 41.0
    assert not (tmp_path / "pids").exists()


def test_auto_goes_from_jtop_to_tegrastats(sampler, refuse, tmp_path: Path) -> None:
    refuse("in_power")
    service = Jtops(NANO_7)
    one = sampler("auto", FIXTURES / "nano", connect_jtop=service.connect, tegrastats=script(tmp_path, NANO))
    sampled(one, lambda sample: told(sample.sources).get("power_w") == "jtop")
    service.die()
    got = sampled(one, lambda sample: told(sample.sources).get("power_w") == "tegrastats")
    assert got.power_w["POM_5V_IN"].watts == 7.933
    assert got.collectors["jtop"].state == UNREADABLE
    service.refuses = False
    sampled(one, lambda sample: told(sample.sources).get("power_w") == "jtop")


class Given(Collector):
    """Gives what the test says."""

    name = source = "sysfs"

    def __init__(self) -> None:
        self.power: Dict[str, Power] = {}

    def _read(self, readings: Readings) -> None:
        readings.state = USABLE
        readings.power_w = dict(self.power)
        readings.temp_c, readings.clk_hz, readings.load = {"CPU-therm": 40.0}, {"gpu": 1e6}, {"gpu": 0.5}


class Spare(Background):
    """A source that counts how often it is asked and closed; it has no thread."""

    name = source = "spare"

    def __init__(self) -> None:
        super().__init__(1.0)
        self.power: Dict[str, Power] = {}
        self.state = USABLE
        self.asked = self.rests = 0

    def collect(self) -> Readings:
        self.asked += 1
        return Readings(self.name, state=self.state, source=self.source, power_w=dict(self.power))

    def rest(self) -> None:
        self.rests += 1


WATTS = {"POM_5V_IN": Power(5.0, "x")}


class Rig:
    """A standby behind a source, and a clock."""

    def __init__(self, patience_s: float = 0.0) -> None:
        self.now = 1000.0
        self.first, self.spare = Given(), Spare()
        self.standby = Standby(self.spare, [self.first], patience_s, lambda: self.now)

    def tick(self, seconds: float = 1.0) -> bool:
        """Whether the spare was asked."""
        self.now += seconds
        asked = self.spare.asked
        self.first.collect()
        self.standby.collect()
        return self.spare.asked > asked


def test_a_single_reading_starts_no_standby() -> None:
    rig = Rig()
    assert [rig.tick(), rig.tick()] == [False, True]  # the doctor takes one


def test_what_was_there_is_replaced_at_once() -> None:
    rig = Rig(patience_s=10.0)
    rig.first.power = WATTS
    assert rig.tick() is False
    rig.first.power = {}
    assert rig.tick() is True


def test_a_second_standby_gives_the_first_its_time() -> None:
    rig = Rig(patience_s=10.0)
    assert [rig.tick() for _ in range(12)] == [False] * 10 + [True] * 2


def test_a_standby_of_no_use_rests_and_is_tried_again_ever_more_rarely() -> None:
    rig = Rig()
    rig.tick()
    for wait_s in (RETRY_S, 2 * RETRY_S, 4 * RETRY_S):
        ticks = 0
        while rig.tick():
            ticks += 1
        assert TRIAL_S < ticks <= TRIAL_S + 2
        assert rig.spare.rests
        assert rig.tick(wait_s - 10.0) is False
        assert rig.tick(10.0) is True


def test_a_standby_that_is_needed_stays_and_rests_when_it_is_not() -> None:
    rig = Rig()
    rig.spare.power = WATTS
    rig.tick()
    assert all(rig.tick(10.0) for _ in range(100))
    rig.first.power = WATTS
    assert [rig.tick(LINGER_S / 2), rig.tick(LINGER_S), rig.tick()] == [True, True, False]
    assert rig.spare.rests == 1
    rig.first.power = {}
    assert rig.tick() is True


def test_a_standby_that_fails_is_kept_for_when_it_is_back() -> None:
    rig = Rig()
    rig.spare.state = UNREADABLE
    rig.tick()
    assert all(rig.tick(100.0) for _ in range(20))
    rig.spare.state, rig.spare.power = USABLE, WATTS
    rig.tick()
    assert rig.standby.latest is not None
    assert rig.standby.latest.power_w == WATTS


# ---- records ----------------------------------------------------------------------------------------


def test_records_say_which_source_gave_the_most_and_what_the_others_gave() -> None:
    sources = {
        "power_w": {"package-0": "sysfs", "gpu": "nvml"},
        "temp_c": {"a": "nvml", "b": "sysfs", "c": "sysfs"},
        "load": {"gpu": "nvml"},
    }
    assert told(sources) == {
        "power_w": "sysfs",
        "power_w/gpu": "nvml",
        "temp_c": "sysfs",
        "temp_c/a": "nvml",
        "load": "nvml",
    }


def test_a_collector_without_a_source_is_its_own() -> None:
    sample = merge(0, [Readings("nvml", state=USABLE, throttle=["gpu_thermal"], load={"gpu": 1.0})])
    assert told(sample.sources) == {"load": "nvml", "throttle": "nvml"}


@pytest.fixture
def telemetry(tmp_path: Path) -> Iterator[Callable[..., Telemetry]]:
    made: List[Telemetry] = []

    def make(source: str, root: Path, **options: Any) -> Telemetry:
        made.append(
            Telemetry(
                sysfs_root=str(root),
                source=source,
                interval_s=0.05,
                log_dir=str(tmp_path / "runs"),
                min_free_mb=0.0,
                read_timeout_s=0.2,
                **options,
            )
        )
        return made[-1]

    yield make
    for one in made:
        one.stop("end of test")


def windows(one: Telemetry) -> List[Dict[str, Any]]:
    return [record for record in read_log(one.log_path) if record["type"] == "window"]


def test_power_over_windows_has_no_hole_when_the_source_changes(telemetry) -> None:
    """jtop's values come when they come; the window's energy is that of its whole length nevertheless."""
    service = Jtops(NANO_7)
    run = telemetry("jtop", FIXTURES / "nano", connect_jtop=service.connect)
    run.start({})
    source = lambda: run.snapshot()["window"].get("sources", {}).get("power_w")  # noqa: E731
    wait_for(lambda: source() == "jtop")
    time.sleep(0.3)
    service.die()
    wait_for(lambda: source() == "sysfs")
    time.sleep(0.15)
    run.stop()
    found = windows(run)
    for one in found:
        assert one["power_w"]["POM_5V_IN"]["w"] == pytest.approx(5.084, abs=1e-3)
        assert one["energy_j"]["POM_5V_IN"] == pytest.approx(5.084 * one["window_s"], rel=1e-3)
        assert sorted(one["temp_c"]) == ["AO-therm", "CPU-therm", "GPU-therm", "PLL-therm", "thermal-fan-est"]
        assert one["sources"]["power_w"] in ("jtop", "sysfs")
        assert one["power_w"]["POM_5V_IN"]["method"] == {"jtop": "jtop", "sysfs": "ina3221_iio"}[
            one["sources"]["power_w"]
        ]
    assert {one["sources"]["power_w"] for one in found} == {"jtop", "sysfs"}
    assert next(one for one in found if one["sources"]["temp_c"] == "jtop")["ram_bytes"]["total"] == 4059000 * 1024


def test_a_change_of_source_is_an_event_and_a_line_in_the_log(telemetry, caplog) -> None:
    service = Jtops(NANO_7)
    run = telemetry("jtop", FIXTURES / "nano", connect_jtop=service.connect)
    run.start({})
    wait_for(lambda: run.snapshot()["window"].get("sources", {}).get("power_w") == "jtop")
    assert run.snapshot()["sensors"]["jtop"]["state"] == USABLE
    wait_for(lambda: run.snapshot()["sensors"]["jtop"].get("age_s"))  # how old the values are
    service.die()
    wait_for(lambda: run.snapshot()["window"].get("sources", {}).get("power_w") == "sysfs")
    shown = run.snapshot()["sensors"]["jtop"]
    causes = ("its service has gone", "The jtop.service is not active")
    assert shown["state"] == UNREADABLE
    assert shown["cause"] in causes
    run.stop()
    records = list(read_log(run.log_path))
    assert records[0]["source"] == "jtop"
    assert records[0]["sources"]["temp_c"] in ("jtop", "sysfs")  # as quick as jtop is with its first answer
    events = [one for one in records if one.get("kind") == "source" and one["values"] == "power_w"]
    assert [(one["before"], one["source"]) for one in events][-1] == ("jtop", "sysfs")
    said = "telemetry: power from sysfs, no longer from jtop ({})"
    assert any(said.format(cause) in caplog.text for cause in causes)


def test_a_source_that_answers_slowly_is_not_counted_twice(telemetry) -> None:
    """Ten windows from one value: each is held to its end, and the next value joins where the hold ended."""
    shape = dict(NANO_7, power={"rail": {}, "tot": {"power": 4000, "name": "POM_5V_IN"}})
    service = Jtops(shape)
    run = telemetry("jtop", FIXTURES / "nano", connect_jtop=service.connect)
    run.start({})
    wait_for(lambda: run.snapshot()["window"].get("power_w", {}).get("POM_5V_IN", {}).get("w") == 4.0)
    service.clients[0].shape = dict(NANO_7, power={"rail": {}, "tot": {"power": 6000, "name": "POM_5V_IN"}})
    wait_for(lambda: run.snapshot()["window"].get("power_w", {}).get("POM_5V_IN", {}).get("w") == 6.0)
    run.stop()
    for one in windows(run)[1:]:
        watts = one["power_w"]["POM_5V_IN"]["w"]
        assert 3.99 < watts < 6.01
        assert one["energy_j"]["POM_5V_IN"] == pytest.approx(watts * one["window_s"], abs=1e-3)


# ---- signs of throttling ----------------------------------------------------------------------------


@pytest.fixture
def reader() -> Iterator[SensorReader]:
    made = SensorReader(timeout_s=0.2)
    yield made
    made.close()


def test_an_alarm_of_the_power_monitor_is_a_sign(board, reader: SensorReader) -> None:
    root = board("orin_nano")
    monitor = root / "devices/platform/bus@0/c240000.i2c/i2c-1/1-0040/hwmon/hwmon1"
    if not (root / "class/hwmon/hwmon1").exists():
        (root / "class/hwmon/hwmon1").symlink_to(monitor)
    for name, value in (("curr1_crit_alarm", 0), ("curr1_max_alarm", 1), ("curr3_crit_alarm", 0)):
        (monitor / name).write_text(f"{value}\n")
    (monitor / "name").write_text("ina3221\n")
    collector = OverCurrent(str(root), reader)
    assert collector.collect().throttle == ["current_alarm:VDD_IN"]
    (monitor / "curr1_max_alarm").write_text("0\n")
    assert collector.collect().throttle == []


def test_a_desktops_processor_slowed_by_heat_is_counted_once_a_package(tmp_path: Path, reader: SensorReader) -> None:
    for core in (0, 1):
        folder = tmp_path / f"devices/system/cpu/cpu{core}/thermal_throttle"
        folder.mkdir(parents=True)
        for name in ("core_throttle_count", "package_throttle_count"):
            (folder / name).write_text("7\n")
    collector = CpuThrottle(str(tmp_path), reader)
    assert collector.collect().throttle == []
    for core in (0, 1):
        (tmp_path / f"devices/system/cpu/cpu{core}/thermal_throttle/package_throttle_count").write_text("9\n")
    got = collector.collect()
    assert (got.throttle, got.throttle_counts) == (["cpu_thermal"], {"cpu_thermal": 2})


def test_held_down_wants_two_readings_and_all_three_figures() -> None:
    judge = HeldDown()
    slow = Readings("x", clk_hz={"gpu": 600.0}, clk_limits_hz={"gpu": (0.0, 900.0)}, load={"gpu": 1.0})
    without = Readings("x", clk_hz={"gpu": 600.0}, load={"gpu": 1.0})
    told: List[Any] = []
    for one in (slow, slow, without, slow):
        judge.judge(one)
        told.append(one.throttle)
    assert told == [[], ["gpu_clock"], None, []]
    assert (slow.throttle_known, without.throttle_known) == (["gpu_clock"], [])


def test_throttling_is_counted_and_timed_from_the_start(telemetry, board) -> None:
    root = board("nano")
    state = root / "devices/virtual/thermal/cooling_device1/cur_state"
    state.write_text("2\n")
    run = telemetry("sysfs", root)
    run.start({})
    cause = "cooling:gpu-balanced"
    wait_for(lambda: run.snapshot()["totals"]["throttle_s"].get(cause, 0.0) > 0.15)
    state.write_text("0\n")
    wait_for(lambda: run.snapshot()["window"].get("throttle") == [])
    spent = run.snapshot()["totals"]["throttle_s"][cause]
    time.sleep(0.15)
    totals = run.snapshot()["totals"]
    # what was looked for and not seen counts from 0: Prometheus sees no growth in a series that begins with 1
    others = ("gpu_clock", "cooling:cpu-balanced", "cooling:emergency-balanced")
    assert totals["throttle_events"] == {cause: 1, **dict.fromkeys(others, 0)}
    assert totals["throttle_s"] == {cause: spent}
    run.stop()
    kinds = [one["kind"] for one in read_log(run.log_path) if one["type"] == "event"]
    assert kinds == ["throttle_on", "throttle_off"]
    window = next(one for one in windows(run) if one["throttle"])
    assert window["sources"]["throttle"] == "sysfs"
