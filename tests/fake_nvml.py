"""A libnvidia-ml that is no library: it stands below the real ``pynvml``, which calls it with its own ctypes values.

Shapes (types of the fields' numbers, codes of what a card lacks) are those of real drivers.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any, Callable, Dict, List, Optional, Tuple

NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, INVALID_ARGUMENT = 3, 4, 6, 2
FUNCTION_NOT_FOUND, IS_LOST, UNKNOWN = 13, 15, 999

INSTANT, AVERAGE, ENERGY, MEMORY_TEMPERATURE = 186, 185, 83, 82
HELD_POWER, HELD_THERMAL = 74, 75

#: Members of nvmlValue_t by the number of their type.
_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
_UINT, _ULONGLONG = 1, 3


class FakeCard:
    """One GPU: what each query answers. ``fields`` {number: (type, value)}; ``codes`` {function or field: error}."""

    def __init__(self, bus_id: str, name: str = "NVIDIA H200") -> None:
        self.bus_id, self.name, self.uuid = bus_id, name, "GPU-" + bus_id.replace(":", "-")
        self.fields: Dict[int, Tuple[int, Any]] = {
            INSTANT: (_UINT, 412_345),
            AVERAGE: (_UINT, 400_100),
            ENERGY: (_ULONGLONG, 9_000_000_000_000),
            MEMORY_TEMPERATURE: (_UINT, 52),
            74: (_ULONGLONG, 5_000_000),
            75: (_ULONGLONG, 0),
            76: (_ULONGLONG, 0),
            77: (_ULONGLONG, 0),
            79: (_ULONGLONG, 0),
        }
        self.codes: Dict[Any, int] = {}
        self.usage_mw, self.limit_mw = 399_900, 700_000
        self.celsius, self.sm_mhz, self.memory_mhz = 47, 1980, 3201
        self.gpu_percent, self.memory_percent = 98, 23
        self.state, self.reasons = 0, 0

    def set(self, number: int, value: Any) -> None:
        self.fields[number] = (self.fields[number][0], value)

    def use(self, joules: float) -> None:
        """Let the energy counter rise."""
        self.set(ENERGY, self.fields[ENERGY][1] + round(joules * 1e3))


def h200() -> FakeCard:
    """A server card with every figure."""
    return FakeCard("00000000:8D:00.0")


def ada() -> FakeCard:
    """A desktop card: no counters of held clocks, no memory temperature."""
    card = FakeCard("00000000:01:00.0", "NVIDIA GeForce RTX 4070")
    card.fields[INSTANT] = (_UINT, 96_520)
    card.fields[AVERAGE] = (_UINT, 91_010)
    card.codes.update({number: NOT_SUPPORTED for number in (MEMORY_TEMPERATURE, 74, 75, 76, 77, 79)})
    card.limit_mw = 200_000
    return card


def pascal() -> FakeCard:
    """An old desktop card under an old driver: the fields of power are unknown, and there is no energy counter."""
    card = FakeCard("00000000:02:00.0", "NVIDIA GeForce GTX 1060")
    card.codes.update({INSTANT: INVALID_ARGUMENT, AVERAGE: INVALID_ARGUMENT, ENERGY: NOT_SUPPORTED})
    card.codes.update({number: NOT_SUPPORTED for number in (MEMORY_TEMPERATURE, 74, 75, 76, 77, 79)})
    card.codes["nvmlDeviceGetTotalEnergyConsumption"] = NOT_SUPPORTED
    card.codes["nvmlDeviceGetTemperatureV"] = FUNCTION_NOT_FOUND
    card.codes["nvmlDeviceGetCurrentClocksEventReasons"] = FUNCTION_NOT_FOUND
    card.usage_mw, card.celsius = 61_007, 58
    return card


class FakeLibrary:
    """Assign to ``pynvml.nvmlLib``. ``asked`` counts the calls; ``hang`` makes every query of a card wait for it."""

    def __init__(self, *cards: FakeCard) -> None:
        self.cards = list(cards)
        self.asked: Dict[str, int] = {}
        self.codes: Dict[str, int] = {}
        self.open = 0
        self.hang: Optional[threading.Event] = None
        self._functions: Dict[str, Callable[..., int]] = {
            "nvmlInitWithFlags": self._init,
            "nvmlShutdown": self._shutdown,
            "nvmlDeviceGetCount_v2": lambda out: _set(out, len(self.cards)),
            "nvmlDeviceGetHandleByIndex_v2": lambda index, out: self._handle(index.value, out),
            "nvmlDeviceGetHandleByPciBusId_v2": self._by_bus_id,
            "nvmlDeviceGetHandleByUUID": self._by_uuid,
            "nvmlSystemGetDriverVersion": lambda out, length: _text(out, "580.65.06"),
            "nvmlDeviceGetName": lambda card, out, length: _text(out, card.name),
            "nvmlDeviceGetPciInfo_v3": self._pci,
            "nvmlDeviceGetFieldValues": self._fields,
            "nvmlDeviceGetPowerUsage": lambda card, out: _set(out, card.usage_mw),
            "nvmlDeviceGetTotalEnergyConsumption": lambda card, out: _set(out, card.fields[ENERGY][1]),
            "nvmlDeviceGetEnforcedPowerLimit": lambda card, out: _set(out, card.limit_mw),
            "nvmlDeviceGetTemperature": lambda card, sensor, out: _set(out, card.celsius),
            "nvmlDeviceGetTemperatureV": self._temperature_v,
            "nvmlDeviceGetClockInfo": lambda card, kind, out: _set(
                out, {1: card.sm_mhz, 2: card.memory_mhz}[kind.value]
            ),
            "nvmlDeviceGetUtilizationRates": self._utilization,
            "nvmlDeviceGetPerformanceState": lambda card, out: _set(out, card.state),
            "nvmlDeviceGetCurrentClocksEventReasons": lambda card, out: _set(out, card.reasons),
            "nvmlDeviceGetCurrentClocksThrottleReasons": lambda card, out: _set(out, card.reasons),
        }

    def __getattr__(self, name: str) -> Callable[..., int]:
        if name.startswith("_") or name not in self._functions:
            raise AttributeError(name)

        def call(*arguments: Any) -> int:
            self.asked[name] = self.asked.get(name, 0) + 1
            if name in self.codes:
                return self.codes[name]
            given = list(arguments)
            if given and isinstance(given[0], ctypes._Pointer):  # a handle
                if self.hang is not None:
                    self.hang.wait(20)
                given[0] = self.cards[ctypes.cast(given[0], ctypes.c_void_p).value - 1]
                if name in given[0].codes:
                    return given[0].codes[name]
            return self._functions[name](*given)

        return call

    def _init(self, flags: int) -> int:
        self.open += 1
        return 0

    def _shutdown(self) -> int:
        self.open -= 1
        return 0

    def _handle(self, index: int, out: Any) -> int:
        if not 0 <= index < len(self.cards):
            return INVALID_ARGUMENT
        ctypes.c_void_p.from_buffer(out._obj).value = index + 1
        return 0

    def _by_bus_id(self, bus_id: Any, out: Any) -> int:
        wanted = bus_id.value.decode().upper().split(":")[-2:]
        found = [n for n, card in enumerate(self.cards) if card.bus_id.split(":")[-2:] == wanted]
        return self._handle(found[0], out) if found else NOT_FOUND

    def _by_uuid(self, uuid: Any, out: Any) -> int:
        found = [n for n, card in enumerate(self.cards) if card.uuid == uuid.value.decode()]
        return self._handle(found[0], out) if found else NOT_FOUND

    @staticmethod
    def _pci(card: FakeCard, out: Any) -> int:
        out._obj.busId = card.bus_id.encode()
        return 0

    @staticmethod
    def _temperature_v(card: FakeCard, out: Any) -> int:
        out._obj.temperature = card.celsius
        return 0

    @staticmethod
    def _utilization(card: FakeCard, out: Any) -> int:
        out._obj.gpu, out._obj.memory = card.gpu_percent, card.memory_percent
        return 0

    @staticmethod
    def _fields(card: FakeCard, count: Any, out: Any) -> int:
        fields: List[Any] = out._obj
        assert len(fields) == count.value
        for one in fields:
            if one.fieldId in card.codes or one.fieldId not in card.fields:
                one.nvmlReturn = card.codes.get(one.fieldId, INVALID_ARGUMENT)
                continue
            one.valueType, value = card.fields[one.fieldId]
            setattr(one.value, _MEMBERS[one.valueType] if one.valueType < len(_MEMBERS) else "ullVal", value)
        return 0


def _set(out: Any, value: int) -> int:
    out._obj.value = value
    return 0


def _text(out: Any, value: str) -> int:
    out.value = value.encode()
    return 0
