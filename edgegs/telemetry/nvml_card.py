"""One NVIDIA GPU through NVML: every figure asked for by itself, so that one that fails costs only itself.

NVML (``libnvidia-ml.so.1``) comes with the driver of desktops and servers. Jetson boards have it from JetPack 7 on, and
which of these figures it gives there is unconfirmed on hardware: ``nvidia-smi -q -d POWER,CLOCK,PERFORMANCE`` shows it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, Callable, Dict, List, Optional, Set, Tuple, Union

from edgegs.telemetry.readings import ABSENT, UNREADABLE
from edgegs.telemetry.sysfs import TEMP_MAX_C, TEMP_MIN_C

#: NVML's number of a GPU, its PCI bus id ("0000:65:00.0") or its UUID ("GPU-…").
Device = Union[int, str]

#: Numbers of nvml.h, which are part of the driver's interface; old bindings lack the names of some.
_POWER_INSTANT, _POWER_AVERAGE, _ENERGY, _MEMORY_TEMPERATURE = 186, 185, 83, 82

#: Nanoseconds for which the clocks have been held down, by cause, counted by the driver.
_HELD_FIELDS = {
    74: "gpu_power_cap",
    75: "gpu_thermal",
    76: "gpu_sync_boost",
    77: "gpu_board_limit",
    79: "gpu_reliability",
}

#: Bits of the clocks' event reasons. Left out: idle (1), clocks set by the user (2) and by a display (0x100).
REASONS = {
    0x4: "gpu_power_cap",
    0x8: "gpu_hw_slowdown",
    0x10: "gpu_sync_boost",
    0x20: "gpu_thermal",
    0x40: "gpu_hw_thermal",
    0x80: "gpu_power_brake",
    0x200: "gpu_board_limit",
    0x400: "gpu_reliability",
}

#: More than any card draws: above is a bus error, or a "not available" that came as a number.
ABSURD_W = 10_000.0

_UNINITIALIZED, _INVALID_ARGUMENT, _NOT_SUPPORTED, _NO_PERMISSION, _NOT_FOUND = 1, 2, 3, 4, 6
_DRIVER_NOT_LOADED, _LIBRARY_NOT_FOUND, _FUNCTION_NOT_FOUND, _IS_LOST, _RESET_REQUIRED = 9, 12, 13, 15, 16
_VERSION_MISMATCH, _GPU_NOT_FOUND = 18, 28

_NEVER = (_NOT_SUPPORTED, _FUNCTION_NOT_FOUND)
#: After these no query of this handle can succeed any more.
_LOST = {
    _UNINITIALIZED: "NVML was shut down",
    _DRIVER_NOT_LOADED: "the NVIDIA driver was unloaded",
    _IS_LOST: "the GPU is lost: it no longer answers on its bus; `dmesg | grep -i xid` says more, and a reboot helps",
    _RESET_REQUIRED: "the GPU must be reset; a reboot does that",
    _VERSION_MISMATCH: "the NVIDIA driver was changed under the running system; reboot",
    _GPU_NOT_FOUND: "the GPU is gone",
}


class NoCard(Exception):
    """There is no card to read, or no longer; ``state`` is ``ABSENT`` or ``UNREADABLE``."""

    def __init__(self, state: str, cause: str) -> None:
        super().__init__(cause)
        self.state, self.cause = state, cause


@dataclass
class CardValues:
    """What one round of queries gave.

    Attributes:
        values: by name: power_instant, power_average, power_usage, power_limit (watts), energy (joules since the driver
            was loaded), temperature, memory_temperature (C), sm_clock, memory_clock (Hz), gpu_load, memory_load
            (0..1), performance_state (0 is the fastest). One that the card does not have is absent.
        reasons: what holds the clocks down at this moment; None when the card cannot tell.
        held_ns: nanoseconds, ever rising, for which the clocks were held down, by cause.
        failed: figures that the card has but did not give, with the cause.
    """

    values: Dict[str, float] = field(default_factory=dict)
    reasons: Optional[List[str]] = None
    held_ns: Dict[str, int] = field(default_factory=dict)
    failed: Dict[str, str] = field(default_factory=dict)


def load() -> Any:
    """The ``pynvml`` module. Raises NoCard when it is not installed."""
    try:
        import pynvml
    except ImportError:
        raise NoCard(ABSENT, "nvidia-ml-py is not installed: pip install 'edgegs[nvidia]'") from None
    return pynvml


class Card:
    """An open GPU. Not thread-safe; any call may take as long as the driver likes.

    Args:
        nvml: the ``pynvml`` module.
        device: which GPU. CUDA counts GPUs in another order than NVML, so a PCI bus id is the safe name.

    Raises:
        NoCard: no driver, no such GPU, no permission.
    """

    def __init__(self, nvml: Any, device: Device = 0) -> None:
        self._nvml = nvml
        self._never: Set[str] = set()
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            raise _refused(error) from None
        try:
            self._handle = self._find(device)
            self.facts = self._identify()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give NVML back."""
        try:
            self._nvml.nvmlShutdown()
        except self._nvml.NVMLError:
            pass  # the driver has gone before us

    def read(self) -> CardValues:
        """Ask for everything once.

        Raises:
            NoCard: the GPU or its driver has gone; open the card anew later.
        """
        nvml, handle = self._nvml, self._handle
        got = CardValues()
        self._read_fields(got)
        if "power_instant" not in got.values and "power_average" not in got.values:
            self._take(got, "power_usage", lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1e3, _watts)
        if "energy" not in got.values:
            self._take(got, "energy", lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3, _positive)
        self._take(got, "power_limit", lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3, _watts)
        self._take(got, "temperature", self._temperature, _degrees)
        for name, kind in (("sm_clock", nvml.NVML_CLOCK_SM), ("memory_clock", nvml.NVML_CLOCK_MEM)):
            self._take(got, name, partial(self._clock, kind), _positive)
        use = self._ask(got, "load", lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
        if use is not None:
            self._take(got, "gpu_load", lambda: use.gpu / 100.0, _share)
            self._take(got, "memory_load", lambda: use.memory / 100.0, _share)
        state = self._ask(got, "performance_state", lambda: nvml.nvmlDeviceGetPerformanceState(handle))
        if state is not None and 0 <= state <= 15:  # 32 stands for unknown
            got.values["performance_state"] = float(state)
        self._read_reasons(got)
        return got

    # ---- single figures ------------------------------------------------------------------------------

    def _read_fields(self, got: CardValues) -> None:
        """Power, energy and the counters of held clocks, in one call, so that they are of one moment."""
        wanted: Dict[int, Tuple[str, float, Optional[Callable[[float], float]]]] = {
            _POWER_INSTANT: ("power_instant", 1e3, _watts),
            _POWER_AVERAGE: ("power_average", 1e3, _watts),
            _ENERGY: ("energy", 1e3, _positive),
            _MEMORY_TEMPERATURE: ("memory_temperature", 1.0, _warm),
        }
        wanted.update({number: ("held:" + cause, 1.0, None) for number, cause in _HELD_FIELDS.items()})
        ids = [number for number, (name, _, _) in wanted.items() if "field:" + name not in self._never]
        fields = self._ask(got, "fields", lambda: self._nvml.nvmlDeviceGetFieldValues(self._handle, ids)) if ids else []
        for one in fields or []:
            name, divisor, check = wanted[int(one.fieldId)]
            if one.nvmlReturn in (*_NEVER, _INVALID_ARGUMENT):  # an older driver does not know the number
                self._never.add("field:" + name)
            elif one.nvmlReturn in _LOST:
                raise NoCard(UNREADABLE, _LOST[one.nvmlReturn])
            elif one.nvmlReturn != 0:
                got.failed[name] = str(self._nvml.NVMLError(one.nvmlReturn))
            elif check is None:
                got.held_ns[name.partition(":")[2]] = int(_number(one))
            else:
                self._take(got, name, partial(_number, one, divisor), check)

    def _clock(self, kind: int) -> float:
        return self._nvml.nvmlDeviceGetClockInfo(self._handle, kind) * 1e6

    def _temperature(self) -> float:
        nvml = self._nvml
        sensor = nvml.NVML_TEMPERATURE_GPU
        if hasattr(nvml, "nvmlDeviceGetTemperatureV") and "temperature_v" not in self._never:
            try:
                return float(nvml.nvmlDeviceGetTemperatureV(self._handle, sensor))
            except nvml.NVMLError as error:
                if error.value not in (*_NEVER, _INVALID_ARGUMENT, 25):  # 25: another version of the structure
                    raise
                self._never.add("temperature_v")
        return float(nvml.nvmlDeviceGetTemperature(self._handle, sensor))

    def _read_reasons(self, got: CardValues) -> None:
        for function in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"):
            if hasattr(self._nvml, function):  # the second is the first's older name
                bits = self._ask(got, function, partial(getattr(self._nvml, function), self._handle))
                if bits is not None:
                    got.reasons = [cause for bit, cause in REASONS.items() if bits & bit]
                    return

    def _take(
        self, got: CardValues, name: str, query: Callable[[], float], check: Callable[[float], float]
    ) -> None:
        """Put what ``query`` gives into ``got.values`` if it is there and ``check`` lets it pass."""
        value = self._ask(got, name, lambda: check(query()))
        if value is not None:
            got.values[name] = value

    def _ask(self, got: CardValues, name: str, query: Callable[[], Any]) -> Any:
        """What ``query`` returns; None when it fails, or failed for good before."""
        if name in self._never:
            return None
        try:
            return query()
        except self._nvml.NVMLError as error:
            if error.value in _LOST:
                raise NoCard(UNREADABLE, _LOST[error.value]) from None
            if error.value in _NEVER or (name == "fields" and error.value == _INVALID_ARGUMENT):
                self._never.add(name)
            else:
                got.failed[name] = str(error)
        except AttributeError:  # bindings older than the query
            self._never.add(name)
        except ValueError as error:
            got.failed[name] = str(error)
        except Exception as error:  # bindings and driver of different age: structures that do not fit
            got.failed[name] = f"{type(error).__name__}: {error}"
        return None

    # ---- which card ----------------------------------------------------------------------------------

    def _find(self, device: Device) -> Any:
        nvml = self._nvml
        try:
            count = nvml.nvmlDeviceGetCount()
            if count == 0:
                raise NoCard(ABSENT, "the NVIDIA driver knows no GPU")
            if isinstance(device, int):
                return nvml.nvmlDeviceGetHandleByIndex(device)
            if device.startswith(("GPU-", "MIG-")):
                return nvml.nvmlDeviceGetHandleByUUID(device.encode("ascii"))
            return nvml.nvmlDeviceGetHandleByPciBusId(device.encode("ascii"))
        except nvml.NVMLError as error:
            if error.value in (_NOT_FOUND, _INVALID_ARGUMENT):
                raise NoCard(UNREADABLE, f"NVML knows {count} GPUs, but not {device!r}; `nvidia-smi -L`") from None
            raise _refused(error) from None

    def _identify(self) -> Dict[str, str]:
        nvml, got = self._nvml, CardValues()
        found = {
            "gpu": self._ask(got, "name", lambda: nvml.nvmlDeviceGetName(self._handle)),
            "gpu_pci": self._ask(got, "pci", lambda: nvml.nvmlDeviceGetPciInfo(self._handle).busId),
            "driver": self._ask(got, "driver", nvml.nvmlSystemGetDriverVersion),
        }
        return {name: _text(value) for name, value in found.items() if value}


def _refused(error: Any) -> NoCard:
    """Why NVML would not start."""
    causes = {
        _LIBRARY_NOT_FOUND: (ABSENT, "no NVIDIA driver here (libnvidia-ml.so.1 is missing)"),
        _DRIVER_NOT_LOADED: (ABSENT, "the NVIDIA driver is not loaded"),
        _NO_PERMISSION: (UNREADABLE, "permission denied: /dev/nvidiactl is closed to this user"),
        _VERSION_MISMATCH: (UNREADABLE, "the NVIDIA library is not of the loaded driver's version; reboot"),
    }
    state, cause = causes.get(error.value, (UNREADABLE, _LOST.get(error.value, f"NVML: {error}")))
    return NoCard(state, cause)


def _number(value: Any, divisor: float = 1.0) -> float:
    """The number in a field's union, by the type that the driver says it has, divided by ``divisor``."""
    members = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
    if not 0 <= value.valueType < len(members):
        raise ValueError(f"of unknown type {value.valueType}")
    return float(getattr(value.value, members[value.valueType])) / divisor


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _watts(value: float) -> float:
    if not 0.0 < value <= ABSURD_W:
        raise ValueError(f"reads {value:g} W")
    return value


def _degrees(value: float) -> float:
    if not TEMP_MIN_C < value < TEMP_MAX_C:
        raise ValueError(f"offline or absurd: reads {value:g} C")
    return value


def _warm(value: float) -> float:
    if value == 0.0:  # what a card without the sensor may say
        raise ValueError("offline: reads 0 C")
    return _degrees(value)


def _positive(value: float) -> float:
    if not 0.0 < value < 1e18:
        raise ValueError(f"reads {value:g}")
    return value


def _share(value: float) -> float:
    return min(1.0, max(0.0, value))
