"""jtop (package jetson-stats, extra ``jetson``): what its service reads as root, for users who may not.

This is the one file that imports it: it is AGPL-3.0, so it is imported only where it is installed and wanted. Its
service dies under the very load that is measured, so nothing waits for it: it is asked in a thread of its own, its
values are absent once they are stale, and it is connected to again.

Tried against the real client and service of 4.3.2 and 7.2.2 with a made-up Nano below ``/sys``. Unconfirmed on
hardware: ``python3 -c "from jtop import jtop; j = jtop(); j.start(); print(j.power, j.temperature)"``.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import re
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from edgegs.telemetry.background import RETRY_S, Background, Life
from edgegs.telemetry.power import put_rail
from edgegs.telemetry.readings import Readings
from edgegs.telemetry.sysfs import NOT_A_SENSOR, put_temperature
from edgegs.telemetry.throttle import HeldDown

METHOD = "jtop"

SOCKET = "/run/jtop.sock"

#: Seconds between two values. jtop ends its own connections when it is asked more often.
MIN_PERIOD_S, MAX_PERIOD_S = 1.0, 10.0

#: Rails begin with a letter. "2-00081" is a USB-C port of 4.x: the power that it offers, not what is drawn.
_RAIL = re.compile(r"^[A-Za-z]")

#: Its service's clock of the GPU is in kHz, but what NVML told it is in MHz.
_NVML_GOVERNOR = "nvml"


def installed() -> bool:
    """Whether jetson-stats can be imported; imports nothing."""
    try:
        return importlib.util.find_spec("jtop") is not None
    except (ImportError, ValueError):
        return False


def connect(interval_s: float) -> Any:
    """A started client of the service. May take seconds, or hang with a service that hangs.

    Raises:
        Exception: jetson-stats is not installed, its service does not run or has another version, or the user is not
            in group jtop.
    """
    if not installed():
        raise ImportError("jetson-stats is not installed: pip install 'edgegs[jetson]'")
    # Looked at first: a client starts programs of its own to find out about libraries, whether it connects or not.
    if not os.path.exists(SOCKET):
        raise ConnectionError(f"jtop's service does not run (no {SOCKET}): sudo systemctl restart jtop")
    if not os.access(SOCKET, os.R_OK | os.W_OK):
        raise PermissionError(f"this user may not ask jtop ({SOCKET}): sudo usermod -aG jtop $USER, then log in again")
    method = multiprocessing.get_start_method(allow_none=True)
    from jtop import jtop

    # jtop's import makes "fork" the way in which all of this process begins others
    multiprocessing.set_start_method(method, force=True)
    client = jtop(interval=interval_s)
    client.start()
    return client


def fill(readings: Readings, client: Any) -> None:
    """Put a client's ``power``, ``temperature``, ``gpu``, ``cpu`` and ``memory`` into ``readings``, in SI units.

    The shapes of 4.x and 7.x. Whatever is missing, or is not of these shapes, is absent.
    """
    _fill_power(readings, _mapping(client.power))
    for name, sensor in _mapping(client.temperature).items():
        _fill_temperature(readings, str(name), _mapping(sensor))
    for gpu in list(_mapping(client.gpu).values())[:1]:  # a Jetson has one
        _fill_gpu(readings, _mapping(gpu))
    _fill_cpu(readings, _mapping(client.cpu).get("cpu"))
    ram = _mapping(_mapping(client.memory).get("RAM"))
    used, total = _number(ram.get("used")), _number(ram.get("tot"))
    if used is not None and total is not None:
        readings.ram_bytes = {"used": used * 1024, "total": total * 1024}


def _fill_power(readings: Readings, power: Mapping[str, Any]) -> None:
    """``{"rail": {name: rail}, "tot": rail}`` in mW. "tot" has a name where the board has a total, else it is a sum.

    "avg" of a rail is half of it and half of the "avg" before, no mean: it is not used.
    """
    rails = dict(_mapping(power.get("rail")))
    total = _mapping(power.get("tot"))
    if total.get("name"):  # the board's own total, which jtop takes out of the rails
        rails[total["name"]] = total
    for name, rail in rails.items():
        rail = _mapping(rail)
        milliwatts = _number(rail.get("power"))
        if not isinstance(name, str) or not _RAIL.match(name) or rail.get("online") is False:
            continue
        if milliwatts is None:
            readings.failed[name] = "has no power"
        else:
            put_rail(readings, name, milliwatts / 1e3, METHOD)


def _fill_temperature(readings: Readings, name: str, sensor: Mapping[str, Any]) -> None:
    degrees = _number(sensor.get("temp"))
    if NOT_A_SENSOR.match(name):
        return
    if degrees is None or sensor.get("online") is False:
        readings.failed[name] = "offline"
    else:
        put_temperature(readings, name, degrees)


def _fill_gpu(readings: Readings, gpu: Mapping[str, Any]) -> None:
    freq, status = _mapping(gpu.get("freq")), _mapping(gpu.get("status"))
    to_hz = 1e6 if freq.get("governor") == _NVML_GOVERNOR else 1e3
    hertz = {key: (_number(freq.get(key)) or 0.0) * to_hz for key in ("cur", "min", "max")}
    if hertz["cur"] > 0:
        readings.clk_hz["gpu"] = hertz["cur"]
    if 0 <= hertz["min"] <= hertz["max"] and hertz["max"] > 0:
        readings.clk_limits_hz["gpu"] = (hertz["min"], hertz["max"])
    load = _number(status.get("load"))
    if load is not None:
        readings.load["gpu"] = min(1.0, max(0.0, load / 100.0))


def _fill_cpu(readings: Readings, cores: Any) -> None:
    """The clock of the first core, and of each whose limits differ from those before: one a cluster, as in sysfs."""
    seen: List[Tuple[Any, Any]] = []
    for index, core in enumerate(cores if isinstance(cores, (list, tuple)) else []):
        freq = _mapping(_mapping(core).get("freq"))
        low, high, now = _number(freq.get("min")), _number(freq.get("max")), _number(freq.get("cur"))
        if _mapping(core).get("online") is False or not now or (low, high) in seen:
            continue
        seen.append((low, high))
        readings.clk_hz[f"cpu{index}"] = now * 1e3
        if low is not None and high is not None and 0 <= low <= high:
            readings.clk_limits_hz[f"cpu{index}"] = (low * 1e3, high * 1e3)


class Jtop(Background):
    """Values of jtop's service.

    Throttling sign ``gpu_clock`` as of ``Clocks``; cooling devices and alarms are not told by jtop.

    Args:
        period_s: seconds between two values, raised to 1. connect: makes a started client for an interval in seconds.
        retry_s: the first and the longest wait before it is connected to again.
    """

    name = source = "jtop"

    def __init__(
        self,
        period_s: float = 1.0,
        connect: Callable[[float], Any] = connect,
        retry_s: Tuple[float, float] = RETRY_S,
    ) -> None:
        super().__init__(min(max(period_s, MIN_PERIOD_S), MAX_PERIOD_S), retry_s)
        self._connect = connect
        self._poll_s = self.period_s / 4
        self._held_down = HeldDown()

    def _session(self, life: Life) -> None:
        client = self._connect(self.period_s)
        try:
            beat: Optional[Any] = None
            while True:
                if not client.ok(spin=True):
                    raise ConnectionError("its service has gone")
                # After a time-out the client hands out its last values again; the uptime in them tells.
                now = client.uptime
                if now != beat:
                    beat = now
                    readings = self._new()
                    fill(readings, client)
                    self._held_down.judge(readings)
                    self._put(life, readings)
                if life.wait(self._poll_s):
                    return
        finally:
            client.close()


def _mapping(value: Any) -> Mapping[str, Any]:
    """``value`` if it is like a dict (jtop's own classes are, too), else an empty one."""
    empty: Dict[str, Any] = {}
    return value if callable(getattr(value, "items", None)) and callable(getattr(value, "get", None)) else empty


def _number(value: Any) -> Optional[float]:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
