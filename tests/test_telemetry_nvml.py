"""NVML: the real bindings over a library of ours, and (marked cuda) over the real one."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any, Callable, Iterator, List

import fake_nvml as fake
import pytest
import scenes
from conftest import has_gpu, open_backend

from edgegs.renderer import Renderer
from edgegs.telemetry.energy import EnergyMeter
from edgegs.telemetry.nvml import ABSENT_RETRY_S, AVERAGE_RAIL, LOST_RETRY_S, RAIL, NvmlCollector
from edgegs.telemetry.power import rail_note
from edgegs.telemetry.readings import ABSENT, UNREADABLE, USABLE, Power, Readings, Sample
from edgegs.telemetry.sampler import Sampler

pynvml = pytest.importorskip("pynvml", reason="no nvidia-ml-py: pip install 'edgegs[nvidia]'")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Callable[..., fake.FakeLibrary]:
    """Put a library with these cards below ``pynvml``."""

    def make(*cards: fake.FakeCard) -> fake.FakeLibrary:
        made = fake.FakeLibrary(*cards)
        monkeypatch.setattr(pynvml, "nvmlLib", made)
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        return made

    return make


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def collector(clock: Clock) -> Iterator[Callable[..., NvmlCollector]]:
    threads = set(threading.enumerate())
    made: List[NvmlCollector] = []

    def make(device: Any = 0, timeout_s: float = 10.0) -> NvmlCollector:
        made.append(NvmlCollector(device, timeout_s, 10.0, clock))
        return made[-1]

    yield make
    for one in made:
        one.close()
    assert set(threading.enumerate()) == threads


def after(one: NvmlCollector, clock: Clock, seconds: float) -> Readings:
    clock.now += seconds
    return one.collect()


# ---- the figures ------------------------------------------------------------------------------------


def test_a_server_card(library, collector) -> None:
    nvml = library(fake.h200())
    one = collector()
    got = one.collect()
    assert (got.collector, got.source, got.state, got.cause) == ("nvml", "nvml", USABLE, "")
    assert got.failed == {}
    assert all(rail_note(rail) for rail in got.power_w)
    assert got.power_w == {RAIL: Power(412.345, "nvml_instant"), AVERAGE_RAIL: Power(400.1, "nvml_average")}
    assert got.total_rail == RAIL
    assert got.temp_c == {"gpu": 47.0, "gpu_memory": 52.0}
    assert got.clk_hz == {"gpu": 1.98e9, "gpu_memory": 3.201e9}
    assert got.load == {"gpu": 0.98, "gpu_memory": 0.23}
    assert got.details == {"gpu_power_limit_w": 700.0, "gpu_performance_state": 0.0}
    assert got.throttle == []
    assert one.facts == {"gpu": "NVIDIA H200", "gpu_pci": "00000000:8D:00.0", "driver": "580.65.06"}
    assert "nvmlDeviceGetPowerUsage" not in nvml.asked  # the fields have it
    one.close()
    assert nvml.open == 0


def test_a_desktop_card(library, collector) -> None:
    card = fake.ada()
    nvml = library(card)
    one = collector()
    got = one.collect()
    assert got.power_w == {RAIL: Power(96.52, "nvml_instant"), AVERAGE_RAIL: Power(91.01, "nvml_average")}
    assert got.temp_c == {"gpu": 47.0}
    assert (got.failed, got.throttle) == ({}, [])
    card.use(96.0)
    assert one.collect().power_w[RAIL].energy_j is None  # no time has passed: no difference to believe
    assert nvml.open == 1


def test_an_old_card_under_an_old_driver(library, collector, clock) -> None:
    card = fake.pascal()
    nvml = library(card)
    one = collector()
    card.reasons = 0x4
    for _ in range(3):
        got = after(one, clock, 1.0)
        assert (got.state, got.failed) == (USABLE, {})
        assert got.power_w == {RAIL: Power(61.007, "nvml_usage")}
        assert got.temp_c == {"gpu": 58.0}
        assert got.throttle == ["gpu_power_cap"]
    # what it does not have is asked for once
    for name in ("nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetCurrentClocksEventReasons"):
        assert nvml.asked[name] == 1
    assert nvml.asked["nvmlDeviceGetFieldValues"] == 1  # none of its fields is left to ask for
    assert nvml.asked["nvmlDeviceGetTemperatureV"] == 1
    assert nvml.asked["nvmlDeviceGetTemperature"] == 3


@pytest.mark.parametrize(
    ("kind", "member", "value", "watts"),
    [(0, "dVal", 70_500.0, 70.5), (1, "uiVal", 70_500, 70.5), (3, "ullVal", 70_500, 70.5), (5, "siVal", 70_500, 70.5)],
)
def test_a_field_is_read_by_the_type_that_it_says(library, collector, kind, member, value, watts) -> None:
    card = fake.h200()
    card.fields[fake.INSTANT] = (kind, value)
    library(card)
    assert collector().collect().power_w[RAIL].watts == watts


# ---- energy -----------------------------------------------------------------------------------------


def test_the_counter_gives_the_joules_between_readings(library, collector, clock) -> None:
    card = fake.h200()
    library(card)
    one = collector()
    assert one.collect().power_w[RAIL].energy_j is None
    card.use(350.0)
    assert after(one, clock, 1.0).power_w[RAIL] == Power(412.345, "nvml_instant", 350.0)
    assert after(one, clock, 0.02).power_w[RAIL].energy_j == 0.0  # it counts in steps: none since then
    card.use(40.5)
    assert after(one, clock, 0.1).power_w[RAIL].energy_j == pytest.approx(40.5)


def test_a_card_with_a_counter_and_nothing_else_still_has_power(library, collector, clock) -> None:
    card = fake.h200()
    card.codes.update({fake.INSTANT: 3, fake.AVERAGE: 3, "nvmlDeviceGetPowerUsage": 3})
    library(card)
    one = collector()
    assert one.collect().power_w == {}
    card.use(600.0)
    assert after(one, clock, 2.0).power_w == {RAIL: Power(300.0, "nvml_counter", 600.0)}


def test_a_count_bridges_readings_that_failed_and_no_others(library, collector, clock) -> None:
    card = fake.h200()
    library(card)
    one = collector()
    one.collect()
    # the whole rail is away for a reading: the next count is of both seconds
    every = {fake.INSTANT: 999, fake.AVERAGE: 999, fake.ENERGY: 999}
    calls = {"nvmlDeviceGetPowerUsage": 999, "nvmlDeviceGetTotalEnergyConsumption": 999}
    card.codes.update({**every, **calls})
    card.use(100.0)
    assert after(one, clock, 1.0).power_w == {}
    card.codes.clear()
    card.use(100.0)
    assert after(one, clock, 1.0).power_w[RAIL].energy_j == pytest.approx(200.0)
    # the counter alone is away: the second without it has a power, and is not counted again with the next one
    card.codes.update({fake.ENERGY: 999, "nvmlDeviceGetTotalEnergyConsumption": 999})
    card.use(100.0)
    assert after(one, clock, 1.0).power_w[RAIL].energy_j is None
    card.codes.clear()
    card.use(100.0)
    assert after(one, clock, 1.0).power_w[RAIL].energy_j is None
    card.use(77.0)
    assert after(one, clock, 1.0).power_w[RAIL].energy_j == pytest.approx(77.0)


@pytest.mark.parametrize("joules", [-5000.0, 20_000.0])
def test_a_counter_that_was_set_anew_is_not_believed(library, collector, clock, joules) -> None:
    card = fake.h200()
    library(card)
    one = collector()
    one.collect()
    card.use(joules)
    assert after(one, clock, 1.0).power_w[RAIL].energy_j is None
    card.use(400.0)
    assert after(one, clock, 1.0).power_w[RAIL].energy_j == pytest.approx(400.0)


# ---- throttling -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bits", "causes"),
    [
        (0x1, []),
        (0x102, []),  # clocks that somebody set, which is not throttling
        (0x4, ["gpu_power_cap"]),
        (0x48, ["gpu_hw_slowdown", "gpu_hw_thermal"]),
        (0xB0, ["gpu_sync_boost", "gpu_thermal", "gpu_power_brake"]),
        (0x600, ["gpu_board_limit", "gpu_reliability"]),
    ],
)
def test_reasons_have_names(library, collector, bits, causes) -> None:
    card = fake.h200()
    card.reasons = bits
    library(card)
    got = collector().collect()
    assert got.throttle == causes
    assert set(causes) < set(got.throttle_known)


def test_clocks_held_down_between_two_readings_are_throttling(library, collector, clock) -> None:
    card = fake.h200()
    library(card)
    one = collector()
    assert one.collect().throttle == []  # what was counted before us is not of now
    card.set(fake.HELD_THERMAL, 30_000_000)
    assert after(one, clock, 1.0).throttle == ["gpu_thermal"]
    card.set(fake.HELD_POWER, card.fields[fake.HELD_POWER][1] + 1000)
    assert after(one, clock, 1.0).throttle == []  # a microsecond in a second


def test_a_card_that_tells_no_reasons_is_not_called_free(library, collector) -> None:
    card = fake.ada()
    card.codes["nvmlDeviceGetCurrentClocksEventReasons"] = fake.NOT_SUPPORTED
    card.codes["nvmlDeviceGetCurrentClocksThrottleReasons"] = fake.NOT_SUPPORTED
    library(card)
    assert collector().collect().throttle is None


# ---- what fails -------------------------------------------------------------------------------------

#: Function: what of the readings goes with it.
FIGURES = {
    "nvmlDeviceGetEnforcedPowerLimit": ("details", "gpu_power_limit_w"),
    "nvmlDeviceGetTemperatureV": ("temp_c", "gpu"),
    "nvmlDeviceGetClockInfo": ("clk_hz", "gpu"),
    "nvmlDeviceGetUtilizationRates": ("load", "gpu"),
    "nvmlDeviceGetPerformanceState": ("details", "gpu_performance_state"),
    "nvmlDeviceGetFieldValues": ("temp_c", "gpu_memory"),
}


@pytest.mark.parametrize("function", FIGURES)
def test_one_query_that_fails_costs_its_own_figure(library, collector, clock, function) -> None:
    card = fake.h200()
    card.codes[function] = fake.UNKNOWN
    nvml = library(card)
    one = collector()
    got = one.collect()
    group, name = FIGURES[function]
    assert got.state == USABLE
    assert name not in getattr(got, group)
    assert "Unknown Error" in got.failed.values()
    assert got.power_w[RAIL].watts > 0
    for other_group, other in FIGURES.values():
        if (other_group, other) != (group, name):
            assert other in getattr(got, other_group)
    card.codes.clear()
    assert name in getattr(after(one, clock, 1.0), group)  # an error may pass
    card.codes[function] = fake.NOT_SUPPORTED
    asked = nvml.asked[function]
    per_reading = 2 if function == "nvmlDeviceGetClockInfo" else 1
    for _ in range(3):
        got = after(one, clock, 1.0)
        assert name not in getattr(got, group) or function == "nvmlDeviceGetTemperatureV"  # there is an older one
        assert got.failed == {}  # it is not there, which is no failure
    assert nvml.asked[function] == asked + per_reading  # and never asked for again


@pytest.mark.parametrize(
    ("number", "value", "sensor"),
    [
        (fake.INSTANT, 0, "power_instant"),
        (fake.INSTANT, 0xFFFFFFFF, "power_instant"),
        (fake.MEMORY_TEMPERATURE, 0, "memory_temperature"),
        (fake.MEMORY_TEMPERATURE, 255, "memory_temperature"),
        (fake.ENERGY, 0, "energy"),
    ],
)
def test_numbers_that_are_none(library, collector, number, value, sensor) -> None:
    card = fake.h200()
    card.set(number, value)
    library(card)
    got = collector().collect()
    assert "reads" in got.failed[sensor]
    assert got.power_w[RAIL].method == ("nvml_average" if number == fake.INSTANT else "nvml_instant")
    assert ("gpu_memory" in got.temp_c) == (number != fake.MEMORY_TEMPERATURE)


def test_a_type_of_the_future_is_a_failure_of_that_field(library, collector) -> None:
    card = fake.h200()
    card.fields[fake.INSTANT] = (17, 70_000)
    library(card)
    got = collector().collect()
    assert got.failed == {"power_instant": "of unknown type 17"}
    assert got.power_w[RAIL].method == "nvml_average"


def test_old_bindings_lack_queries(library, collector, clock, monkeypatch) -> None:
    library(fake.h200())
    for name in ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetFieldValues"):
        monkeypatch.delattr(pynvml, name)
    one = collector()
    for _ in range(2):
        got = after(one, clock, 1.0)
        assert (got.state, got.failed) == (USABLE, {})
        assert got.power_w[RAIL].method == "nvml_usage"
        assert got.temp_c == {"gpu": 47.0}
        assert got.throttle == []


# ---- which card, and none ---------------------------------------------------------------------------


@pytest.mark.parametrize("device", [1, "0000:01:00.0", "00000000:01:00.0", "GPU-00000000-01-00.0"])
def test_the_card_that_draws_is_the_one_that_is_read(library, collector, device) -> None:
    library(fake.h200(), fake.ada())
    one = collector(device)
    assert one.collect().power_w[RAIL].watts == 96.52
    assert one.facts["gpu_pci"] == "00000000:01:00.0"


def test_another_card_can_be_selected(library, collector, clock) -> None:
    server, desktop = fake.h200(), fake.ada()
    nvml = library(server, desktop)
    one = collector()
    one.collect()
    one.select("0000:01:00.0")
    got = after(one, clock, 1.0)
    assert got.power_w[RAIL] == Power(96.52, "nvml_instant")  # no joules from the other card's counter
    assert nvml.open == 1
    one.select("0000:77:00.0")
    got = after(one, clock, 1.0)
    assert (got.state, got.power_w) == (UNREADABLE, {})
    assert "knows 2 GPUs, but not '0000:77:00.0'" in got.cause
    assert nvml.open == 0


def test_without_the_package(library, collector, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    got = collector().collect()
    assert (got.state, got.power_w, got.throttle) == (ABSENT, {}, None)
    assert "pip install 'edgegs[nvidia]'" in got.cause


def test_without_the_library(collector, monkeypatch) -> None:
    def refuse(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "CDLL", refuse)
    got = collector().collect()
    assert (got.state, got.cause) == (ABSENT, "no NVIDIA driver here (libnvidia-ml.so.1 is missing)")


@pytest.mark.parametrize(
    ("code", "state", "cause"),
    [
        (9, ABSENT, "the NVIDIA driver is not loaded"),
        (4, UNREADABLE, "permission denied"),
        (18, UNREADABLE, "reboot"),
        (999, UNREADABLE, "NVML: Unknown Error"),
    ],
)
def test_an_nvml_that_does_not_start(library, collector, clock, code, state, cause) -> None:
    nvml = library(fake.h200())
    nvml.codes["nvmlInitWithFlags"] = code
    one = collector()
    got = one.collect()
    assert (got.state, got.power_w) == (state, {})
    assert cause in got.cause
    assert after(one, clock, 5.0).cause == got.cause
    assert nvml.asked["nvmlInitWithFlags"] == 1  # not in every reading
    nvml.codes.clear()
    assert after(one, clock, ABSENT_RETRY_S).state == USABLE


def test_a_driver_without_a_card(library, collector) -> None:
    nvml = library()
    got = collector().collect()
    assert (got.state, got.cause, nvml.open) == (ABSENT, "the NVIDIA driver knows no GPU", 0)


# ---- a card that goes -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "where", [fake.INSTANT, "nvmlDeviceGetFieldValues", "nvmlDeviceGetClockInfo", "nvmlDeviceGetPerformanceState"]
)
def test_a_lost_card_is_given_up_and_found_again(library, collector, clock, where) -> None:
    card = fake.h200()
    nvml = library(card)
    one = collector()
    one.collect()
    card.codes[where] = fake.IS_LOST
    got = after(one, clock, 1.0)
    assert (got.state, got.power_w, got.temp_c, got.throttle) == (UNREADABLE, {}, {}, None)
    assert "the GPU is lost" in got.cause
    assert nvml.open == 0
    asked = dict(nvml.asked)
    assert after(one, clock, 1.0).cause == got.cause
    assert nvml.asked == asked  # a card in trouble is left alone for a while
    card.codes.clear()
    card.set(fake.ENERGY, 5000)  # the driver has begun to count anew
    card.set(fake.HELD_THERMAL, 10**12)
    got = after(one, clock, LOST_RETRY_S)
    assert (got.state, got.power_w[RAIL].energy_j, got.throttle) == (USABLE, None, [])
    card.use(400.0)
    assert after(one, clock, 1.0).power_w[RAIL].energy_j == pytest.approx(400.0)


def test_a_card_that_gives_nothing_is_unreadable(library, collector, clock) -> None:
    card = fake.h200()
    nvml = library(card)
    functions = [name for name in nvml._functions if name.startswith("nvmlDeviceGet")]
    one = collector()
    one.collect()
    card.codes.update(dict.fromkeys(functions, fake.UNKNOWN))
    got = after(one, clock, 1.0)
    assert (got.state, got.cause) == (UNREADABLE, "Unknown Error")
    card.codes.clear()
    assert after(one, clock, LOST_RETRY_S).state == USABLE


def test_a_call_that_hangs_costs_one_time_out(library, collector, clock, monkeypatch) -> None:
    card = fake.h200()
    nvml = library(card)
    one = collector(timeout_s=0.05)
    assert one.collect().state == USABLE
    nvml.hang = threading.Event()
    try:
        got = after(one, clock, 1.0)
        assert (got.state, got.power_w) == (UNREADABLE, {})
        assert got.cause.startswith("NVML has not answered for ")
        asked = dict(nvml.asked)
        waits: List[float] = []
        with monkeypatch.context() as patch:
            patch.setattr(one._errand._done, "wait", waits.append)
            for _ in range(20):
                assert after(one, clock, 1.0).state == UNREADABLE
        assert waits == []  # the time-out is not waited for again
        assert nvml.asked == asked  # and no second call piles up behind the first
    finally:
        hang, nvml.hang = nvml.hang, None
        hang.set()
    end = time.monotonic() + 10
    card.use(3.0)
    while one.collect().state != USABLE:  # what came late is thrown away, then it goes on
        assert time.monotonic() < end
    card.use(9.0)
    assert after(one, clock, 1.0).power_w[RAIL].energy_j == pytest.approx(9.0)


def test_a_closed_collector_can_be_used_again(library, collector, clock) -> None:
    nvml = library(fake.h200())
    one = collector()
    for _ in range(2):
        assert after(one, clock, 1.0).state == USABLE
        one.close()
        one.close()
        assert nvml.open == 0


# ---- on a real GPU ----------------------------------------------------------------------------------


@pytest.mark.cuda
def test_a_real_card_idle_and_drawing(request) -> None:
    if not has_gpu():
        pytest.skip("no NVIDIA GPU (or no pycuda): NVML is not tested")
    request.getfixturevalue("kernels")
    import pycuda.driver as driver

    samples: List[Sample] = []
    meter = EnergyMeter(max_gap_s=1.0)

    def sampled(sample: Sample) -> None:
        samples.append(sample)
        meter.take(sample)

    with open_backend("cuda") as backend:
        bus_id = driver.Device(0).pci_bus_id()
        collector = NvmlCollector(bus_id)
        renderer = Renderer(backend, scenes.cloud(20000, seed=3), 1280, 720, "best")
        camera = scenes.camera(1280, 720, 900.0)
        renderer.render(camera)
        sampler = Sampler([collector], 0.05, on_sample=sampled)
        sampler.start()
        windows = []
        try:
            for step in (lambda: time.sleep(0.02), lambda: renderer.render(camera)):
                for seconds in (1.5, 6.0):  # clocks and the counter settle, then it counts
                    begin_ns = time.monotonic_ns()
                    while time.monotonic_ns() < begin_ns + seconds * 1e9:
                        step()
                windows.append((begin_ns, time.monotonic_ns()))
        finally:
            sampler.stop()

    last = samples[-1]
    assert last.collectors["nvml"].state == USABLE, last.collectors["nvml"].cause
    assert last.collectors["nvml"].failed == {}
    assert collector.facts["gpu_pci"].upper().endswith(bus_id.upper()[-10:])
    assert 5.0 < last.power_w[RAIL].watts < 1500.0
    assert 10.0 < last.temp_c["gpu"] < 100.0
    assert 1e8 < last.clk_hz["gpu"] < 4e9
    assert 1e8 < last.clk_hz["gpu_memory"] < 2e10
    assert 0.0 < last.load["gpu"] <= 1.0
    assert last.power_w[RAIL].watts < 1.5 * last.details["gpu_power_limit_w"]
    assert last.throttle is not None

    idle, drawing = (meter.measure(*window)[RAIL] for window in windows)
    for one in (idle, drawing):
        assert one.invalid == ""
        if one.counter_j is None:
            pytest.skip(f"{collector.facts['gpu']} has no energy counter")
        assert one.method == "nvml_counter"
        assert one.counter_j > 0
        assert one.disagreement == pytest.approx(0.0, abs=0.10)
    assert drawing.watts > 1.05 * idle.watts
