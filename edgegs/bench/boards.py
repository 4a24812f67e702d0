"""The boards that predictions are made for: ``jetson/boards.yaml``, read strictly."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from edgegs.backends.cuda import BLOCKS_PER_MULTIPROCESSOR
from edgegs.config.tree import Origin, Problem, Value, parse_yaml
from edgegs.errors import ConfigError, DeviceError, UsageError
from edgegs.kernels.variants import AXES, combinations, variant
from edgegs.paths import shipped

_MIB = 1 << 20
#: Warp instructions that a multiprocessor starts in a clock, at most: one a scheduler (sm_50 and later).
SCHEDULERS = 4


@dataclass(frozen=True)
class Board:
    """One board. Attributes as in the file, which says where each number comes from."""

    name: str
    title: str
    arch: str
    n_sms: int
    cores_per_sm: int
    clock_mhz: float
    bandwidth_gb_s: float
    memory_mib: int
    shared: bool
    system_mib: int
    process_mib: int

    @property
    def issue_rate(self) -> float:
        """FP32 warp instructions a second, at most."""
        return self.n_sms * min(SCHEDULERS, self.cores_per_sm / 32) * self.clock_mhz * 1e6

    @property
    def bandwidth(self) -> float:
        """Bytes a second, at most."""
        return self.bandwidth_gb_s * 1e9

    @property
    def free_bytes(self) -> int:
        """Memory that is left for a scene and its buffers."""
        return max(0, self.memory_mib - self.system_mib - self.process_mib) * _MIB

    @property
    def n_blocks(self) -> int:
        """As ``Backend.n_blocks`` of the cuda backend there."""
        return BLOCKS_PER_MULTIPROCESSOR * self.n_sms


@dataclass(frozen=True)
class LoopCount:
    """Issue slots of a rasterizer's blend loop per pixel and splat, and what the kernel takes besides; see the file."""

    slots: float
    skipped: float
    alone: float
    registers: int
    spills: int
    barriers: int


@dataclass(frozen=True)
class PatchCount:
    """Issue slots of a patch raster's warp besides blending; see the file."""

    walk: float
    stage: float
    patch: float


@dataclass(frozen=True)
class FrontCount:
    """Issue slots of key ``bins``' other kernels; see the file."""

    splat: float
    culled: float
    instance: float
    patch_row: float
    fill: float
    sort: float
    sort_turn: float
    sort_range: float
    scan: float


@dataclass(frozen=True)
class KernelCounts:
    """What was counted in the kernels' disassembly: by ``source`` (start of the sources' hash), on the day ``read``."""

    source: str
    read: str
    loops: Dict[str, LoopCount]
    patches: Dict[str, PatchCount]
    front: FrontCount


@dataclass(frozen=True)
class LoopSlots:
    """Issue slots of the loop that was measured, and where no pixel of a warp is reached."""

    slots: float
    skipped: float


@dataclass(frozen=True)
class Case:
    """One published measurement: what was drawn, by the counts' names in ``Counts``; 0 ms: only FPS was published."""

    exponential: str
    n_splats: int
    n_visible: int
    n_instances: int
    n_evaluations: int
    n_reached: int
    rasterize_ms: float
    fps: float


@dataclass(frozen=True)
class Calibration:
    """Published measurements, and the counts of what they drew; see the file."""

    board: str
    variant: str
    width: int
    height: int
    sh_degree: int
    launch_us: float
    loop: Dict[str, LoopSlots]
    cases: Dict[str, Case]


class Boards(NamedTuple):
    """What the file holds."""

    boards: Dict[str, Board]
    kernels: KernelCounts
    calibration: Calibration

    def board(self, name: str) -> Board:
        """The board of that name; UsageError, with a suggestion, where there is none."""
        for known, board in self.boards.items():
            if known.replace("-", "") == name.replace("-", ""):
                return board
        wanted = re.sub(r"[\s_]+|^jetson[\s_-]*", "-", name.lower()).strip("-")
        if wanted in self.boards:
            hint = f"; did you mean {wanted!r}?"
        else:
            close = difflib.get_close_matches(wanted, self.boards, 1, 0.5)
            hint = f"; did you mean {close[0]!r}?" if close else ""
        raise UsageError(f"no board {name!r}{hint} (there are: {', '.join(self.boards)})")


def load_boards(path: Optional[Path] = None) -> Boards:
    """Read the boards; raises ConfigError that names file, line and key of everything wrong."""
    path = shipped("jetson") / "boards.yaml" if path is None else path
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "is no UTF-8 text"
        raise ConfigError(f"{path}: {reason}; reinstall edgegs") from None
    problems: List[Problem] = []
    tree = parse_yaml(text, Origin(str(path)), problems)
    if tree is not None:
        reader = _Reader(problems)
        found = reader.boards(tree)
        if found is not None and not problems:
            return found
    problems.sort(key=lambda problem: problem.origin.line)
    raise ConfigError("\n".join(str(problem) for problem in problems))


#: Least and most that a number of the file may be: what is beyond is a slip of the pen.
_RANGES: Dict[str, Tuple[float, float]] = {
    "n_sms": (1, 1000), "cores_per_sm": (32, 1024), "clock_mhz": (50, 10_000), "bandwidth_gb_s": (1, 100_000),
    "memory_mib": (256, 1 << 22), "system_mib": (0, 1 << 22), "process_mib": (0, 1 << 22),
    "width": (16, 16384), "height": (16, 16384), "sh_degree": (0, 3),
    "n_splats": (1, 10**9), "n_visible": (1, 10**9), "n_instances": (1, 10**11), "n_evaluations": (1, 10**13),
    "n_reached": (0, 10**13), "rasterize_ms": (0, 1e6), "fps": (1e-3, 1e6), "launch_us": (0, 1e4),
    "registers": (1, 255), "spills": (0, 1 << 20), "barriers": (0, 100),
}  # fmt: skip
#: Of issue slots.
_SLOTS = (1, 100_000)


#: Kernels that blend, and those of them that have patches.
_RASTERS = tuple(dict.fromkeys(one.entries["rasterize"] for one in combinations()))
_PARTS: Dict[str, Any] = {kind.__name__: kind for kind in (LoopCount, PatchCount, FrontCount, LoopSlots, Case)}
#: The keys that tables of the file may have; empty: any.
_TABLES: Dict[str, Tuple[str, ...]] = {
    "kernels.loops": _RASTERS,
    "kernels.patches": tuple(name for name in _RASTERS if "_patch" in name),
    "calibration.loop": AXES["exponential"],
    "calibration.cases": (),
}


class _Reader:
    """A tree of values -> Boards; what is wrong goes to ``problems``."""

    def __init__(self, problems: List[Problem]) -> None:
        self._problems = problems

    def boards(self, tree: Value) -> Optional[Boards]:
        parts = self._mapping(tree, "", ("boards", "kernels", "calibration"))
        if len(parts) < 3:
            return None
        names = self._mapping(parts["boards"], "boards")
        boards = {name: self._record(Board, value, f"boards.{name}", name=name) for name, value in names.items()}
        if not names:
            self._say(parts["boards"], "boards", "no board is described", "write one, as `nano: {title: …}`")
        kernels = self._record(KernelCounts, parts["kernels"], "kernels")
        calibration = self._record(Calibration, parts["calibration"], "calibration")
        if self._problems or kernels is None or calibration is None:
            return None
        result = Boards({name: board for name, board in boards.items() if board}, kernels, calibration)
        self._agree(result, parts["calibration"], parts["kernels"])
        return result

    def _agree(self, found: Boards, value: Value, kernels: Value) -> None:
        """Report what names things that the file or the kernels do not have."""
        calibration = found.calibration
        if calibration.board not in found.boards:
            self._say(value.data["board"], "calibration.board", "no such board in this file", "name one of boards")
        try:
            if variant(calibration.variant, "cuda").key == "bins":
                self._say(value.data["variant"], "calibration.variant", "has no front end like the original's")
        except DeviceError:
            self._say(value.data["variant"], "calibration.variant", "no such variant", "see `edgegs kernels list`")
        used = []
        for name, case in calibration.cases.items():
            key, part = f"calibration.cases.{name}", value.data["cases"].data[name]
            if case.exponential not in calibration.loop:
                text = f"calibration.loop has no {case.exponential}, which this case needs"
                self._say(part.data["exponential"], key + ".exponential", text, "add it")
            if case.n_reached > case.n_evaluations:
                self._say(part.data["n_reached"], key + ".n_reached", "is more than n_evaluations")
            if case.rasterize_ms >= 1e3 / case.fps:
                self._say(part.data["rasterize_ms"], key + ".rasterize_ms", "is no less than the frame's 1000 / fps")
            used.append(case.rasterize_ms > 0)
        if not any(used):
            text = "none has rasterize_ms, which the calibration is made from"
            self._say(value.data["cases"], "calibration.cases", text, "add one")
        for name in _RASTERS:
            if name not in found.kernels.loops:
                self._say(kernels.data["loops"], f"kernels.loops.{name}", "is missing", "add it")
            elif "_patch" in name and name not in found.kernels.patches:
                self._say(kernels.data["patches"], f"kernels.patches.{name}", "is missing", "add it")

    def _record(self, kind: Any, value: Value, key: str, **given: Any) -> Any:
        wanted = {field.name: str(field.type) for field in fields(kind) if field.name not in given}
        parts = self._mapping(value, key, tuple(wanted))
        if len(parts) < len(wanted):
            return None
        for name, part in parts.items():
            dotted = f"{key}.{name}"
            if wanted[name] in _PARTS:
                given[name] = self._record(_PARTS[wanted[name]], part, dotted)
            elif wanted[name].startswith("Dict["):
                known, of = _TABLES[dotted], _PARTS[wanted[name][len("Dict[str, ") : -1]]
                rows = self._mapping(part, dotted, None, known)
                given[name] = {row: self._record(of, one, f"{dotted}.{row}") for row, one in rows.items()}
            elif wanted[name] == "str":
                given[name] = self._text(part, dotted)
            elif wanted[name] == "bool":
                given[name] = part.data
                if not isinstance(part.data, bool):
                    self._say(part, dotted, "must be true or false")
            else:
                given[name] = self._number(part, dotted, *_RANGES.get(name, _SLOTS), wanted[name] == "int")
        return kind(**given)

    def _mapping(
        self, value: Value, key: str, wanted: Optional[Tuple[str, ...]] = None, known: Tuple[str, ...] = ()
    ) -> Dict[str, Value]:
        """The values of a mapping that must have the keys ``wanted``, or only keys that are ``known``."""
        if not isinstance(value.data, dict):
            self._say(value, key, "must be a mapping", "write key: value lines")
            return {}
        allowed, meant = wanted or known, set()
        for name in value.data if allowed else ():
            if name not in allowed:
                close = difflib.get_close_matches(name, allowed, 1)
                meant.update(close)
                advice = f"did you mean {close[0]}?" if close else "known here: " + ", ".join(allowed)
                self._say(value.data[name], f"{key}.{name}".strip("."), "unknown key", advice)
        for name in wanted or ():
            if name not in value.data and name not in meant:
                self._say(value, f"{key}.{name}".strip("."), "is missing", "add it")
        return {name: part for name, part in value.data.items() if not allowed or name in allowed}

    def _number(self, value: Value, key: str, low: float, high: float, whole: bool) -> Any:
        number = value.data
        is_number = isinstance(number, int if whole else (int, float)) and not isinstance(number, bool)
        if not is_number or not low <= number <= high:
            kind = "whole number" if whole else "number"
            self._say(value, key, f"must be a {kind} from {low:,.6g} to {high:,.6g}")
        return number

    def _text(self, value: Value, key: str) -> str:
        if not isinstance(value.data, str) or not value.data.strip():
            self._say(value, key, "must be text")
        elif key.endswith(".exponential") and value.data not in AXES["exponential"]:
            self._say(value, key, "must be one of " + ", ".join(AXES["exponential"]))
        elif key.endswith(".arch") and not re.fullmatch(r"sm_\d{2,3}", value.data):
            self._say(value, key, "must be an architecture such as sm_53")
        return str(value.data)

    def _say(self, value: Value, key: str, text: str, advice: str = "") -> None:
        if value.bad:
            return
        is_leaf = not isinstance(value.data, (dict, list))
        origin = value.origin if is_leaf or value.key_origin is None else value.key_origin
        self._problems.append(Problem(origin, key, text, value.shown() if is_leaf else None, advice))
