"""The results of sweeps (``results.jsonl``, see docs/field.md), read and checked.

Files come from boards that lost power and may come from strangers: every value is checked before use, what does not
fit is left out, and what could not be read is counted.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import zlib
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Dict, Iterator, List, NamedTuple, Optional, Tuple

from edgegs.bench.report_series import MAX_NAME, mapping, number
from edgegs.errors import SceneError
from edgegs.files import open_regular
from edgegs.frame import STAGES

KIND, SCHEMA, RESULTS = "sweep", 1, "results.jsonl"
#: A run's line holds its readings: an hour of ten a second from forty sensors is about this long.
MAX_LINE = 32 << 20
#: Runs of one file, and problems that are kept with their line; all problems are counted.
MAX_RUNS, MAX_PROBLEMS = 100_000, 20
_MAX_TEXT, _MAX_READINGS = 400, 200_000

#: What makes a configuration, in the order in which it is written, and how.
PARAMS = ("scene", "splats", "width", "height", "variant", "fps_cap", "power_mode")


class Reason(NamedTuple):
    """Why a run is not valid, or what is to be known about it."""

    code: str
    text: str


@dataclass
class Energy:
    """Of the board's rail: watts, and joules a frame, gross and net of idle (None without a valid baseline)."""

    rail: str
    mean_w: float
    j_per_frame: float
    idle_w: Optional[float] = None
    net_j_per_frame: Optional[float] = None


@dataclass
class Measured:
    """A measured run, or (``kind`` "idle") a baseline. Times in s and ms, clocks in Hz, temperatures in °C.

    Attributes:
        key: the configuration: a tuple in the order of ``PARAMS``; ``splats`` is what was drawn.
        t_end_s, boot_id: monotonic time of the measurement's end, and in which boot.
        series: columns over ``t_s`` (0 is the measurement's beginning), each {name: [value or None]}.
        throttle: cause -> readings that saw it; None where nothing can tell.
        latest: False where a later attempt counts in its place.
    """

    kind: str
    run_id: str
    key: Tuple[Any, ...]
    session: int
    repeat: int
    attempt: int
    order: int
    valid: bool
    reasons: List[Reason]
    notes: List[Reason]
    window_s: float
    frames: int
    fps: float
    t_end_s: float
    boot_id: str
    t_wall: str
    energy: Optional[Energy] = None
    power_missing: str = ""
    board_power_mode: str = ""
    frame_ms: Dict[str, float] = field(default_factory=dict)
    stage_ms: Dict[str, float] = field(default_factory=dict)
    temp_c: Dict[str, Dict[str, float]] = field(default_factory=dict)
    clk_hz: Dict[str, Dict[str, float]] = field(default_factory=dict)
    rails: Dict[str, float] = field(default_factory=dict)
    scene: Dict[str, Any] = field(default_factory=dict)
    choices: Dict[str, str] = field(default_factory=dict)
    throttle: Optional[Dict[str, int]] = None
    series: Dict[str, Any] = field(default_factory=dict)
    latest: bool = True

    @property
    def hottest_c(self) -> Optional[float]:
        highest = [course["max"] for course in self.temp_c.values() if "max" in course]
        return max(highest, default=None)

    def counts(self) -> bool:
        """Whether its figures go into means."""
        return self.kind == "run" and self.valid and self.latest


@dataclass
class Campaign:
    """One file of results.

    Attributes:
        board: a name for people, told apart from other files' by ``load``.
        torn: a last line was cut off. garbage: lines that are no record. problems: the first of these, in words.
    """

    path: str
    board: str = ""
    name: str = ""
    settings: Dict[str, Any] = field(default_factory=dict)
    sessions: Dict[int, Dict[str, Any]] = field(default_factory=dict)
    measured: List[Measured] = field(default_factory=list)
    n_runs: Optional[int] = None
    ended: str = ""
    torn: int = 0
    garbage: int = 0
    problems: List[str] = field(default_factory=list)

    @property
    def runs(self) -> List[Measured]:
        """The measured runs of which each is the last attempt."""
        return [one for one in self.measured if one.kind == "run" and one.latest]

    def session_of(self, one: Measured) -> Dict[str, Any]:
        return self.sessions.get(one.session, {})


def is_sweep(path: str) -> bool:
    """Whether a log is a sweep's (a folder with results.jsonl, or a file of that kind); raises nothing."""
    try:
        if os.path.isdir(path):
            return os.path.isfile(os.path.join(path, RESULTS))
        with open_regular(path, path) as raw, _unpacked(raw, path) as file:
            return re.search(rb'"kind":\s*"sweep"', file.read(4096).split(b"\n", 1)[0]) is not None
    except Exception:  # whatever is wrong with it, the reader that it is given to says so
        return False


def load(paths: List[str]) -> List[Campaign]:
    """Read the files, each once; boards of the same name get their folder's name behind it.

    Raises:
        InputError, AccessError: a file cannot be opened. SceneError (65): one holds no measured run.
    """
    files: Dict[str, str] = {}
    for path in paths:  # a folder and its file, say: the same runs twice would make intervals too narrow
        file = os.path.join(path, RESULTS) if os.path.isdir(path) else path
        files.setdefault(os.path.realpath(file), file)
    campaigns = [read(file) for file in files.values()]
    for one in campaigns:
        facts = next(iter(one.sessions.values()), {})
        one.board = str(facts.get("board") or facts.get("device") or facts.get("machine") or "unknown board")
        one.board = one.board.replace("NVIDIA ", "").replace(" Developer Kit", "")[:MAX_NAME]
    names = [one.board for one in campaigns]
    for index, one in enumerate(campaigns):
        if names.count(one.board) > 1 or one.board in names[:index]:
            folder = os.path.dirname(os.path.abspath(one.path))
            stem = os.path.basename(one.path).split(".")[0]
            one.board += " ({})".format(os.path.basename(folder) if stem == "results" else stem)
    for index, one in enumerate(campaigns):
        if one.board in [other.board for other in campaigns[:index]]:
            one.board += f" #{index + 1}"
    return campaigns


def read(path: str) -> Campaign:
    """One file; see ``load``."""
    found = Campaign(path)
    with open_regular(path, path) as raw, _unpacked(raw, path) as file:
        for record in _records(file, found):
            _take(found, record)
    if not any(one.kind == "run" for one in found.measured):
        unusable = f", {found.garbage + found.torn} unusable lines" if found.garbage + found.torn else ""
        raise SceneError(f"{path}: holds no measured run{unusable}; let `edgegs sweep` measure some first")
    latest: Dict[str, Measured] = {}
    for one in found.measured:
        if one.kind != "run":
            continue
        before = latest.get(one.run_id)
        if before is None or one.attempt >= before.attempt:
            latest[one.run_id] = one
    for one in found.measured:
        one.latest = one.kind != "run" or latest[one.run_id] is one
    return found


def _unpacked(raw: Any, path: str) -> Any:
    return gzip.GzipFile(fileobj=raw) if path.endswith(".gz") else contextlib.nullcontext(raw)


def _records(file: BinaryIO, found: Campaign) -> Iterator[Dict[str, Any]]:
    import io

    buffered = io.BufferedReader(file, 1 << 20)  # type: ignore[type-var]
    line_number = 0
    while True:
        line_number += 1
        try:
            line = buffered.readline(MAX_LINE)
        except (EOFError, OSError, zlib.error) as error:
            found.torn += 1
            _complain(found, line_number, f"cannot be read on: {error}")
            break
        if not line:
            break
        if not line.endswith(b"\n"):
            if len(line) < MAX_LINE:
                found.torn += 1
                _complain(found, line_number, "the last line is torn and was left out")
                break
            found.garbage += 1
            _complain(found, line_number, f"is longer than {MAX_LINE >> 20} MiB")
            while line and not line.endswith(b"\n"):
                line = buffered.readline(MAX_LINE)
            continue
        try:
            record = json.loads(line.decode("utf-8"), parse_constant=_no_constant) if line.strip() else None
            if record is not None:
                _check(record)
                yield record
        except (ValueError, RecursionError) as error:
            found.garbage += 1
            _complain(found, line_number, f"no record of a sweep: {str(error)[:80]}")
    buffered.detach()


def _check(record: Any) -> None:
    if not isinstance(record, dict) or record.get("kind") != KIND or not isinstance(record.get("type"), str):
        raise ValueError('it has no kind "sweep" and type')
    if record.get("schema") != SCHEMA:
        raise ValueError("schema {!r} is not known to this edgegs (knows {})".format(record.get("schema"), SCHEMA))


def _complain(found: Campaign, line: int, what: str) -> None:
    if len(found.problems) < MAX_PROBLEMS:
        found.problems.append(f"{found.path}:{line}: {what}")


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


def _take(found: Campaign, record: Dict[str, Any]) -> None:
    kind = record["type"]
    if kind == "campaign":
        found.name = found.name or _text(record.get("name"))
        found.settings = found.settings or (record["settings"] if isinstance(record.get("settings"), dict) else {})
        found.n_runs = _whole(record.get("n_runs"))
    elif kind == "session":
        found.sessions[_whole(record.get("session")) or len(found.sessions) + 1] = record
        found.ended = ""
    elif kind == "end":
        found.ended = _text(record.get("reason"))
    elif kind in ("run", "idle") and len(found.measured) < MAX_RUNS:
        one = _measured(kind, record)
        if one is None:
            found.garbage += 1
            _complain(found, _whole(record.get("seq")) or 0, f"a {kind} without its figures was left out")
        else:
            found.measured.append(one)


def _measured(kind: str, record: Dict[str, Any]) -> Optional[Measured]:
    params, scene = mapping(record.get("params")), mapping(record.get("scene"))
    window_s, t_ns = number(record.get("window_s")), number(record.get("t_mono_ns"))
    fps = 0.0 if kind == "idle" else number(record.get("fps"))
    if record.get("valid") is False and record.get("reasons") and "window_s" not in record:
        window_s = fps = 0.0  # it failed: nothing was measured, and why is all there is to know
    if window_s is None or not 0 <= window_s < 1e7 or fps is None or not 0 <= fps < 1e6 or t_ns is None:
        return None
    values = dict(params, splats=scene.get("n_splats", params.get("splats")))
    key = tuple(values[name] if isinstance(values.get(name), (str, int, float)) else None for name in PARAMS)
    throttle = record.get("throttle")
    return Measured(
        kind=kind,
        run_id=_text(record.get("run_id" if kind == "run" else "idle_id")) or "?",
        key=tuple(one[:_MAX_TEXT] if isinstance(one, str) else one for one in key),
        session=_whole(record.get("session")) or 1,
        repeat=_whole(record.get("repeat")) or 1,
        attempt=_whole(record.get("attempt")) or 1,
        order=_whole(record.get("order")) or 0,
        valid=record.get("valid") is True,
        reasons=_reasons(record.get("reasons")),
        notes=_reasons(record.get("notes")),
        window_s=window_s,
        frames=_whole(record.get("frames")) or 0,
        fps=fps,
        t_end_s=t_ns / 1e9,
        boot_id=_text(record.get("boot_id")),
        t_wall=_text(record.get("t_wall")),
        energy=_energy(mapping(record.get("energy"))) if kind == "run" else None,
        power_missing=_text(record.get("power_missing")),
        board_power_mode=_text(record.get("board_power_mode")),
        frame_ms=_numbers(record.get("frame_ms"), 1e9),
        stage_ms=_stages(record.get("stage_ms")),
        temp_c={name: _numbers(course, 1e3) for name, course in mapping(record.get("temp_c")).items()},
        clk_hz={name: _numbers(course, 1e12) for name, course in mapping(record.get("clk_hz")).items()},
        rails=_means(record.get("power")),
        scene={name: scene[name] for name in ("path", "format", "sha256", "n_splats", "sh_degree") if name in scene},
        choices={axis: _text(choice) for axis, choice in mapping(record.get("choices")).items()},
        throttle=_numbers_as_int(throttle) if isinstance(throttle, dict) else None,
        series=_series(mapping(record.get("series"))),
    )


def _energy(record: Dict[str, Any]) -> Optional[Energy]:
    mean_w, joules = number(record.get("mean_w")), number(record.get("j_per_frame"))
    if mean_w is None or joules is None or not 0 <= mean_w < 1e5 or not 0 <= joules < 1e9:
        return None
    idle_w, net = number(record.get("idle_w")), number(record.get("net_j_per_frame"))
    return Energy(_text(record.get("rail"))[:MAX_NAME], mean_w, joules, idle_w, net)


def _stages(value: Any) -> Dict[str, float]:
    means = {name: number(mapping(figures).get("mean")) for name, figures in mapping(value).items()}
    known = {name: mean for name, mean in means.items() if mean is not None and 0 <= mean < 1e9}
    order = [name for name in STAGES if name in known] + [name for name in known if name not in STAGES]
    return {name: known[name] for name in order}


def _means(value: Any) -> Dict[str, float]:
    means = {name: number(mapping(figures).get("mean_w")) for name, figures in mapping(value).items()}
    return {name: mean for name, mean in means.items() if mean is not None and 0 <= mean < 1e5}


def _series(record: Dict[str, Any]) -> Dict[str, Any]:
    """The columns that are as long as ``t_s``; empty where there is no time."""
    times = _column(record.get("t_s"))
    if times is None or any(t is None for t in times):
        return {}
    kept: Dict[str, Any] = {"t_s": times}
    for kind in ("power_w", "temp_c", "clk_hz"):
        columns = {name: _column(column) for name, column in mapping(record.get(kind)).items()}
        kept[kind] = {name: column for name, column in columns.items() if column and len(column) == len(times)}
    fps = _column(record.get("fps"))
    kept["fps"] = {"": fps} if fps and len(fps) == len(times) else {}
    seen = record.get("throttle")
    right = isinstance(seen, list) and len(seen) == len(times)
    kept["throttle"] = [bool(one) if isinstance(one, list) else None for one in seen] if right else []  # type: ignore
    return kept


def _column(value: Any) -> Optional[List[Optional[float]]]:
    if not isinstance(value, list) or len(value) > _MAX_READINGS:
        return None
    return [number(one) for one in value]


def _numbers(value: Any, limit: float) -> Dict[str, float]:
    found = {name: number(one) for name, one in mapping(value).items()}
    return {name: one for name, one in found.items() if one is not None and abs(one) < limit}


def _numbers_as_int(value: Any) -> Dict[str, int]:
    return {name: int(one) for name, one in _numbers(value, 1e9).items()}


def _reasons(value: Any) -> List[Reason]:
    found = [mapping(one) for one in value[:32]] if isinstance(value, list) else []
    return [Reason(_text(one.get("code"))[:MAX_NAME], _text(one.get("text"))) for one in found]


def _text(value: Any) -> str:
    return value[:_MAX_TEXT] if isinstance(value, str) else ""


def _whole(value: Any) -> Optional[int]:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53 else None
