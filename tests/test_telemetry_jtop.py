"""jtop: the shapes of 4.3.2 and 7.2.2, a client that fails in all its ways, and the real service where it can run.

The shapes of a Nano were recorded from the real client and service of both versions over our made-up Nano (see
``jtop_service.py``); those of other boards follow jetson-stats' sources.
"""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List

import pytest

from edgegs.telemetry import background, jtop_source
from edgegs.telemetry.jtop_source import Jtop, fill
from edgegs.telemetry.readings import ABSENT, UNREADABLE, USABLE, Readings

ROOT = Path(__file__).resolve().parent.parent


def rail(power: int, **more: Any) -> Dict[str, Any]:
    return {"volt": 5016, "curr": power // 5, "power": power, "online": True, "avg": 17, **more}


CORE = {"online": True, "governor": "schedutil", "freq": {"min": 102000, "max": 1479000, "cur": 1428000}}
NANO_4 = {
    "power": {
        "rail": {"POM_5V_CPU": rail(1003), "POM_5V_GPU": rail(1685)},
        "tot": rail(5084, name="POM_5V_IN"),
    },
    "temperature": {
        "AO": {"temp": 44.5, "online": True},
        "CPU": {"temp": 41.0, "online": True},
        "GPU": {"temp": 39.5, "online": True},
        "PMIC": {"temp": 100.0, "online": True},  # 4.3.2 leaves it out; older ones do not
        "thermal": {"temp": 40.25, "online": True},
    },
    "gpu": {
        "gpu": {
            "type": "integrated",
            "status": {"load": 98.7},
            "freq": {"governor": "nvhost_podgov", "cur": 921600, "max": 921600, "min": 76800},
        }
    },
    "cpu": {"total": {"idle": 44.2}, "cpu": [CORE, CORE, {"online": False}, {"online": False}]},
    "memory": {"RAM": {"tot": 4059000, "used": 1372664, "free": 2001100}, "SWAP": {"tot": 0, "used": 0}},
}
NANO_7 = copy.deepcopy(NANO_4)
NANO_7["gpu"]["gpu"]["status"] = {"3d_scaling": False, "load": 98.7}
NANO_7["memory"]["RAM"]["shared_label"] = "Shared"
ORIN_NANO_7 = {
    "power": {
        "rail": {"VDD_CPU_GPU_CV": rail(2027, warn=32760, crit=32760), "VDD_SOC": rail(1470)},
        "tot": rail(6399, warn=4800, name="VDD_IN"),
    },
    "temperature": {
        "cpu": {"temp": 51.187, "max": -256, "crit": -256, "online": True},
        "cv0": {"temp": -256, "online": False},
        "tj": {"temp": 52.468, "online": True},
        "nvme Composite": {"temp": 38.85, "max": 84.8, "crit": 84.8, "online": True},
    },
    "gpu": {
        "ga10b": {
            "type": "integrated",
            "status": {"railgate": False, "3d_scaling": True, "load": 12.5},
            "freq": {"governor": "nvhost_podgov", "cur": 624750, "max": 624750, "min": 306000, "GPC": [624750]},
        }
    },
    "cpu": {"total": {}, "cpu": [{**CORE, "freq": {"min": 115200, "max": 1510400, "cur": 1510400}}] * 6},
    "memory": {"RAM": {"tot": 7802000, "used": 3140000}},
}
#: 4.3.2 counts a USB-C port's offer as a rail, and adds it to the sum that it calls a total.
AGX_ORIN_4: Dict[str, Any] = dict(
    ORIN_NANO_7,
    power={
        "rail": {
            "VDD_GPU_SOC": rail(2390),
            "VDD_CPU_CV": rail(400),
            "VIN_SYS_5V0": rail(4032),
            "2-00081": rail(15000, status="Unknown"),
        },
        "tot": {"power": 21822, "avg": 21822},
    },
)
THOR_7: Dict[str, Any] = dict(
    ORIN_NANO_7,
    power={"rail": {"VDD_GPU": rail(3000), "VIN_SYS_5V0": rail(6520)}, "tot": rail(23100, name="VIN")},
    gpu={
        "Thor": {
            "type": "integrated",
            "status": {"load": 40.0, "3d_scaling": None, "railgate": None, "tpc_pg_mask": None},
            "freq": {"governor": "nvml", "cur": 1098, "max": 1575, "min": 0},
            "power_control": "nvml",
        }
    },
)
#: What a board without a power monitor has.
NANO_2GB_4: Dict[str, Any] = dict(NANO_4, power={})


class Client:
    """A jtop client: shows ``shape``; each look at it is a new set of values, unless it is frozen."""

    def __init__(self, shape: Any) -> None:
        self.shape = shape
        self.frozen = self.gone = self.closed = False
        self.error: Any = None
        self._beats = 0

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["shape"][name]
        except KeyError:
            raise AttributeError(name) from None

    @property
    def uptime(self) -> float:
        self._beats += not self.frozen
        return float(self._beats)

    def ok(self, spin: bool = False) -> bool:
        assert spin, "it would block"
        if self.error is not None:
            raise self.error
        return not self.gone

    def close(self) -> None:
        self.closed = True


def read(shape: Dict[str, Any]) -> Readings:
    readings = Readings("jtop")
    fill(readings, Client(shape))
    return readings


def watts(readings: Readings) -> Dict[str, float]:
    return {name: power.watts for name, power in readings.power_w.items()}


# ---- shapes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [NANO_4, NANO_7], ids=["4.3.2", "7.2.2"])
def test_a_nano(shape: Dict[str, Any]) -> None:
    got = read(shape)
    assert watts(got) == {"POM_5V_IN": 5.084, "POM_5V_GPU": 1.685, "POM_5V_CPU": 1.003}  # not "avg"
    assert {power.method for power in got.power_w.values()} == {"jtop"}
    assert got.total_rail == "POM_5V_IN"
    assert got.temp_c == {"AO": 44.5, "CPU": 41.0, "GPU": 39.5, "thermal": 40.25}
    assert got.clk_hz == {"gpu": 921.6e6, "cpu0": 1428e6}
    assert got.clk_limits_hz == {"gpu": (76.8e6, 921.6e6), "cpu0": (102e6, 1479e6)}
    assert got.load == {"gpu": 0.987}
    assert got.ram_bytes == {"used": 1372664 * 1024.0, "total": 4059000 * 1024.0}


def test_an_orin_nano() -> None:
    got = read(ORIN_NANO_7)
    assert watts(got) == {"VDD_IN": 6.399, "VDD_CPU_GPU_CV": 2.027, "VDD_SOC": 1.47}
    assert got.total_rail == "VDD_IN"
    assert got.temp_c == {"cpu": 51.187, "tj": 52.468, "nvme Composite": 38.85}
    assert list(got.failed) == ["cv0"]
    assert got.clk_hz == {"gpu": 624.75e6, "cpu0": 1510.4e6}
    assert got.load == {"gpu": 0.125}


def test_a_sum_of_rails_is_no_total_and_an_offer_no_power() -> None:
    got = read(AGX_ORIN_4)
    assert watts(got) == {"VDD_GPU_SOC": 2.39, "VDD_CPU_CV": 0.4, "VIN_SYS_5V0": 4.032}
    assert got.total_rail is None


def test_a_clock_that_nvml_told_is_in_megahertz() -> None:
    got = read(THOR_7)
    assert got.clk_hz["gpu"] == 1098e6
    assert got.clk_limits_hz["gpu"] == (0.0, 1575e6)
    assert (got.total_rail, got.power_w["VIN"].watts) == ("VIN", 23.1)


def test_a_nano_2gb_has_no_power() -> None:
    got = read(NANO_2GB_4)
    assert (got.power_w, got.total_rail) == ({}, None)
    assert got.temp_c["CPU"] == 41.0


@pytest.mark.parametrize(
    ("change", "left"),
    [
        (lambda shape: shape["power"]["tot"].update(power=0), {"POM_5V_GPU", "POM_5V_CPU"}),
        (lambda shape: shape["power"]["rail"]["POM_5V_GPU"].update(power=-1), {"POM_5V_IN", "POM_5V_CPU"}),
        (lambda shape: shape["power"]["rail"]["POM_5V_GPU"].update(online=False), {"POM_5V_IN", "POM_5V_CPU"}),
        (lambda shape: shape["power"]["rail"]["POM_5V_GPU"].pop("power"), {"POM_5V_IN", "POM_5V_CPU"}),
        (lambda shape: shape["power"].update(rail=None, tot=None), set()),
        (lambda shape: shape.update(power=7, temperature=[], gpu=None, cpu={"cpu": [None, 3]}, memory="x"), set()),
    ],
)
def test_what_is_not_there_is_absent(change: Callable[[Dict[str, Any]], Any], left: set) -> None:
    shape = copy.deepcopy(NANO_4)
    change(shape)
    assert set(read(shape).power_w) == left


# ---- the client -------------------------------------------------------------------------------------


def wait_for(condition: Callable[[], Any]) -> Any:
    end = time.monotonic() + 10
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < end, "waited for 10 s"
        time.sleep(0.005)


class Service:
    """Hands out clients; may be made to fail or to hang."""

    def __init__(self) -> None:
        self.clients: List[Client] = []
        self.intervals: List[float] = []
        self.error: Any = None
        self.hang: Any = None

    def connect(self, interval_s: float) -> Client:
        self.intervals.append(interval_s)
        if self.hang is not None:
            self.hang.wait(10)
        if self.error is not None:
            raise self.error
        self.clients.append(Client(NANO_7))
        return self.clients[-1]


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def jtop(service: Service, monkeypatch: pytest.MonkeyPatch) -> Iterator[Jtop]:
    """A collector that is quicker than the real one may be; at the end no thread and no descriptor is left."""
    threads, descriptors = set(threading.enumerate()), len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(jtop_source, "MIN_PERIOD_S", 0.04)
    one = Jtop(0.04, service.connect, retry_s=(0.02, 0.04))
    yield one
    one.close()
    wait_for(lambda: set(threading.enumerate()) == threads)
    assert len(os.listdir("/proc/self/fd")) == descriptors


def usable(one: Jtop) -> Any:
    got = one.collect()
    return got if got.state == USABLE else None


def unreadable(one: Jtop) -> Any:
    got = one.collect()
    return got if got.state == UNREADABLE else None


def test_it_is_never_asked_more_often_than_once_a_second() -> None:
    assert (Jtop(0.1).period_s, Jtop(2.0).period_s, Jtop(3600.0).period_s) == (1.0, 2.0, 10.0)


def test_the_last_values_and_when_they_came(jtop: Jtop, service: Service) -> None:
    first = jtop.collect()
    assert first.state in (ABSENT, USABLE)
    got = wait_for(lambda: usable(jtop))
    assert (got.source, got.power_w["POM_5V_IN"].watts) == ("jtop", 5.084)
    assert got.t_mono_ns <= time.monotonic_ns()
    wait_for(lambda: jtop.collect().t_mono_ns > got.t_mono_ns)
    assert service.intervals == [0.04]


def test_values_handed_out_again_are_stale(jtop: Jtop, service: Service) -> None:
    wait_for(lambda: usable(jtop))
    service.clients[0].frozen = True
    got = wait_for(lambda: unreadable(jtop))
    assert (got.power_w, got.temp_c) == ({}, {})
    assert got.cause.startswith("no news for 0.1")
    service.clients[0].frozen = False
    wait_for(lambda: usable(jtop))
    assert len(service.clients) == 1


@pytest.mark.parametrize("how", ["gone", "raises"])
def test_a_service_that_dies_is_connected_to_again(jtop: Jtop, service: Service, how: str) -> None:
    wait_for(lambda: usable(jtop))
    service.error = ConnectionRefusedError("The jtop.service is not active.\nPlease run: sudo jtop --install-service")
    if how == "gone":
        service.clients[0].gone = True
    else:
        service.clients[0].error = BrokenPipeError(32, "Broken pipe")
    wait_for(lambda: len(service.intervals) >= 3)
    got = wait_for(lambda: unreadable(jtop))
    assert got.cause == "The jtop.service is not active. Please run: sudo jtop --install-service"
    assert service.clients[0].closed
    service.error = None
    wait_for(lambda: usable(jtop))


def test_every_connection_has_a_thread_of_its_own(jtop: Jtop, service: Service) -> None:
    """Proxies of multiprocessing keep one connection a thread, and use it again when its server has long gone."""
    names = threading.local()
    seen = []
    connect = jtop._connect

    def note(interval_s: float) -> Client:
        seen.append(getattr(names, "used", False))
        names.used = True
        return connect(interval_s)

    jtop._connect = note
    service.error = ConnectionResetError("x")
    wait_for(lambda: jtop.collect() and len(seen) >= 4)
    assert not any(seen)


def test_a_service_that_hangs_holds_nobody(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_CLOSE_S", 0.02)
    monkeypatch.setattr(background, "PATIENCE_S", 0.05)
    service.hang = threading.Event()
    one = Jtop(1.0, service.connect)
    try:
        began = time.monotonic()
        assert one.collect().state == ABSENT
        assert time.monotonic() - began < 5
        got = wait_for(lambda: unreadable(one))
        assert got.cause.startswith("no answer for")
        one.close()  # left behind
        threads = threading.active_count()
        for _ in range(5):
            one.collect()
        assert threading.active_count() == threads  # and no second one beside it
    finally:
        service.hang.set()
        wait_for(lambda: "edgegs-jtop" not in {thread.name for thread in threading.enumerate()})
        one.close()


def test_a_gpu_held_down_is_a_sign(jtop: Jtop, service: Service) -> None:
    wait_for(lambda: usable(jtop))
    assert jtop.collect().throttle == []
    shape = copy.deepcopy(NANO_7)
    shape["gpu"]["gpu"]["freq"]["cur"] = 614400
    service.clients[0].shape = shape
    wait_for(lambda: jtop.collect().throttle == ["gpu_clock"])


def test_without_the_package_the_cause_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jtop_source, "installed", lambda: False)
    one = Jtop(1.0)
    try:
        got = wait_for(lambda: unreadable(one))
        assert got.cause == "jetson-stats is not installed: pip install 'edgegs[jetson]'"
    finally:
        one.close()


def test_without_its_service_nothing_is_imported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(jtop_source, "installed", lambda: True)
    monkeypatch.setattr(jtop_source, "SOCKET", str(tmp_path / "jtop.sock"))
    with pytest.raises(ConnectionError, match=r"service does not run .*: sudo systemctl restart jtop"):
        jtop_source.connect(1.0)
    (tmp_path / "jtop.sock").write_text("")
    monkeypatch.setattr(jtop_source.os, "access", lambda path, mode: False)
    with pytest.raises(PermissionError, match="sudo usermod -aG jtop"):
        jtop_source.connect(1.0)
    assert "jtop" not in sys.modules


def test_it_is_not_imported_to_find_out_whether_it_is_there() -> None:
    script = (
        "import sys\n"
        "import edgegs.telemetry\n"
        "from edgegs.telemetry import jtop_source\n"
        "jtop_source.installed()\n"
        "assert 'jtop' not in sys.modules and 'multiprocessing.managers' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, env=dict(os.environ, PYTHONPATH=str(ROOT)), timeout=60)


# ---- the real one -----------------------------------------------------------------------------------


def packages() -> List[str]:
    """Folders with jetson-stats: of EDGEGS_TEST_JTOP, else this Python's own."""
    given = os.environ.get("EDGEGS_TEST_JTOP")
    if given:
        return given.split(":")
    return [""] if jtop_source.installed() else []


@pytest.mark.parametrize("folder", packages() or [None])
def test_the_real_client_against_the_real_service(folder: Any, tmp_path: Path) -> None:
    if folder is None:
        pytest.skip("no jetson-stats (pip install it somewhere and name its site-packages in EDGEGS_TEST_JTOP)")
    unshare = [shutil.which("unshare") or "unshare", "-m", "--propagation", "private", "--fork", "--kill-child"]
    if os.getuid() != 0 or not shutil.which("unshare") or subprocess.run([*unshare, "true"], check=False).returncode:
        pytest.skip("its service wants root, and we a mount namespace of our own (unshare -m)")
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, [str(ROOT), folder])))
    command = [*unshare, sys.executable, str(ROOT / "tests/jtop_service.py"), str(tmp_path)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, timeout=120, check=True)
    got = json.loads(done.stdout)
    assert got["power_mw"] == {"POM_5V_IN": 5084, "POM_5V_GPU": 1685, "POM_5V_CPU": 1003}
    assert got["total_rail"] == "POM_5V_IN"
    assert got["temp_c"] == {"AO": 44.5, "CPU": 41.0, "GPU": 39.5, "PLL": 40.0, "thermal": 40.25}
    assert got["clk_hz"] == {"gpu": 921.6e6, "cpu0": 1479e6}
    assert got["clk_limits_hz"]["gpu"] == [76.8e6, 921.6e6]
    assert got["load"] == {"gpu": 0.987}
    assert got["ram"] == ["total", "used"]
    state, cause, rails = got["lost"]
    assert (state, rails) == ("unreadable", [])
    assert cause
    assert got["again"] == sorted(got["power_mw"])
