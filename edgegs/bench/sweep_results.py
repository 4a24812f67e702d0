"""The results of a sweep: ``results.jsonl``, to which a line is added and synced at a time, and the table made of it.

docs/field.md describes the lines. A line is complete with its line break; what a power cut left behind the last one
is cut off when the file is opened again.
"""

from __future__ import annotations

import contextlib
import csv
import fcntl
import io
import json
import os
import time
from typing import Any, Dict, List, Optional, Set, Tuple

from edgegs.bench.field_data import KIND, RESULTS, SCHEMA
from edgegs.bench.validity import Reason
from edgegs.errors import AccessError, ConfigError, EdgegsError, OutputError
from edgegs.files import open_regular, write_at_once
from edgegs.frame import STAGES
from edgegs.telemetry import host, runlog
from edgegs.telemetry.records import encode

TABLE = "results.csv"
#: What must be the same in all sessions of a campaign: otherwise one table would hold figures of two machines.
SAME = ("version", "backend", "device", "driver", "image_sha256", "board", "l4t", "kernel", "machine", "rail")

_FIGURES = ("p50", "p95", "p99", "max", "mean")

#: What every line begins with.
_BEGINNING = b'{"schema"'


class Results:
    """The file of one campaign, open for adding; nobody else can add meanwhile.

    Args:
        folder: made if only it is missing, not the folder above it.
        campaign: hash of the settings.
        header: fields of the first line; ``settings`` among them.

    Attributes:
        records: all lines so far, without their ``series``, which would fill the memory of a small board.
        torn: bytes of an unfinished line that were cut off.

    Raises:
        ConfigError: the file belongs to another campaign. OutputError, AccessError: it cannot be written.
    """

    def __init__(self, folder: str, campaign: str, header: Dict[str, Any]) -> None:
        self.folder, self.campaign = folder, campaign
        self.path = os.path.join(folder, RESULTS)
        self.records: List[Dict[str, Any]] = []
        self.torn = 0
        self._boot_id = host.boot_id()
        self._file = self._open()
        try:
            self._lock()
            self._read()
            if self.records:
                _check(self.path, self.records[0], campaign, header["settings"])
            else:
                self.append("campaign", header)
        except BaseException:
            self.close()
            raise

    def _open(self) -> Any:
        try:
            runlog.prepare(self.folder)
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
            runlog.sync_folder(self.folder)
            return os.fdopen(descriptor, "r+b", buffering=0)
        except OSError as error:
            raise self._error(error) from None

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise OutputError(f"{self.path}: another `edgegs sweep` is writing it; wait for it, or end it") from None

    def _read(self) -> None:
        content = self._file.read()
        self.records, end = _whole_lines(self.path, content)
        self.torn = len(content) - end
        if self.torn:
            os.ftruncate(self._file.fileno(), end)
            os.fsync(self._file.fileno())

    def append(self, kind: str, fields: Dict[str, Any]) -> Dict[str, Any]:
        """Add a line; it is on the disk when this returns. Returns the record.

        Raises:
            OutputError: the disk is full, or gone; the file ends with the line before.
        """
        record: Dict[str, Any] = {
            "schema": SCHEMA,
            "kind": KIND,
            "type": kind,
            "seq": len(self.records),
            "campaign": self.campaign,
            "boot_id": self._boot_id,
            "t_mono_ns": time.monotonic_ns(),
            "t_wall": host.rfc3339(time.time_ns()),
            "clock_synced": host.clock_synced(),
        }
        line = encode(dict(record, **fields))
        size = os.fstat(self._file.fileno()).st_size
        try:
            if self._file.write(line) != len(line):
                raise OSError(28, "No space left on device")
            os.fsync(self._file.fileno())
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file.fileno(), size)
            raise self._error(error) from None
        self.records.append(_kept(json.loads(line)))
        return self.records[-1]

    def end(self, reason: str, n_planned: int) -> None:
        """Add the line that says how the command ended. Raises OutputError."""
        runs = self.latest().values()
        counts = {"done": len(runs), "of": n_planned, "invalid": sum(not run["valid"] for run in runs)}
        self.append("end", dict(counts, reason=reason, session=len(self.of("session"))))

    def of(self, kind: str) -> List[Dict[str, Any]]:
        """The lines of that type."""
        return [record for record in self.records if record["type"] == kind]

    def check_session(self, facts: Dict[str, Any]) -> None:
        """Refuse to go on with another machine, another edgegs or other kernels.

        Raises:
            ConfigError: it differs from the session before.
        """
        sessions = self.of("session")
        if not any(record["type"] == "run" for record in self.records):
            return
        for key in SAME:
            before, now = sessions[-1].get(key), facts.get(key)
            if before != now:
                raise ConfigError(
                    f"{self.path}: was measured with {key} {before}, and this is {now}; figures of both do not belong "
                    "into one table: give the campaign another out"
                )

    def check_scene(self, path: str, sha256: str) -> None:
        """Refuse to go on with a scene's file that was changed meanwhile. Raises ConfigError."""
        for run in self.of("run"):
            scene = run.get("scene") or {}
            if scene.get("path") == path and scene["sha256"] != sha256:
                raise ConfigError(
                    f"{path}: is not the file that {self.path} was measured with; put it back, or give the campaign "
                    "another out"
                )

    def latest(self) -> Dict[str, Dict[str, Any]]:
        """run_id -> the last attempt."""
        return {run["run_id"]: run for run in self.of("run")}

    def done(self, retry_invalid: bool = False) -> Set[str]:
        """Ids of the runs that need not be made again."""
        return _done(self.records, retry_invalid)

    def write_table(self) -> str:
        """Write ``results.csv`` anew; returns its path. Raises OutputError, AccessError."""
        path = os.path.join(self.folder, TABLE)
        write_at_once(path, table(list(self.latest().values())).encode("utf-8"))
        return path

    def close(self) -> None:
        self._file.close()

    def _error(self, error: OSError) -> EdgegsError:
        if isinstance(error, PermissionError):
            return AccessError(f"{self.path}: permission denied; let this user write there, or name another out")
        cause = runlog.cause(error)
        return OutputError(f"{self.path}: cannot be written: {cause}; name an out on a mounted, writable disk")


def look(folder: str, campaign: str, settings: Dict[str, Any], retry_invalid: bool = False) -> Set[str]:
    """``Results.done`` of a folder that may hold results, or not be there; nothing is made, and nothing is changed.

    Raises:
        ConfigError: what it holds is of another campaign, or not of a sweep. InputError, AccessError: not readable.
    """
    path = os.path.join(folder, RESULTS)
    if not os.path.lexists(path):
        return set()
    with open_regular(path, path) as file:
        records, _ = _whole_lines(path, file.readall())
    if records:
        _check(path, records[0], campaign, settings)
    return _done(records, retry_invalid)


def _done(records: List[Dict[str, Any]], retry_invalid: bool) -> Set[str]:
    latest = {record["run_id"]: record for record in records if record["type"] == "run"}
    return {run_id for run_id, run in latest.items() if run["valid"] or not retry_invalid}


def _whole_lines(path: str, content: bytes) -> Tuple[List[Dict[str, Any]], int]:
    """The records of a file, and where the last of its whole lines ends. Raises ConfigError: it is not a sweep's."""
    end = content.rfind(b"\n") + 1
    lines = content[:end].split(b"\n")[:-1]
    parsed = [_parse(line) for line in lines]
    # zeros, where the disk had the length but not the bytes
    while parsed and parsed[-1] is None and b"\0" in lines[-1]:
        end -= len(lines.pop()) + 1
        parsed.pop()
    if parsed[0] is None if parsed else not _may_be_ours(content):
        raise ConfigError(f"{path}: is not of `edgegs sweep`; give the campaign another out")
    if None in parsed:
        n = parsed.index(None) + 1
        raise ConfigError(f"{path}:{n}: is damaged in the middle; keep it, and give the campaign another out")
    return [record for record in parsed if record is not None], end


def _check(path: str, first: Dict[str, Any], campaign: str, settings: Dict[str, Any]) -> None:
    """Raises ConfigError: a file's first line is not this campaign's."""
    if first.get("type") != "campaign" or first.get("kind") != KIND or first.get("schema") != SCHEMA:
        raise ConfigError(f"{path}: is not of this version's `edgegs sweep`; give the campaign another out")
    if first.get("campaign") == campaign:
        return
    keys = _differing(first.get("settings") or {}, settings)
    raise ConfigError(
        f"{path}: holds results of a campaign that differs in {', '.join(keys) or 'its settings'}; "
        "figures of two campaigns do not belong into one table: give this one another out, or undo the change"
    )


def _kept(record: Dict[str, Any]) -> Dict[str, Any]:
    record.pop("series", None)
    return record


def _may_be_ours(content: bytes) -> bool:
    """Whether a file without one whole line can be what a power cut left of a first one."""
    begun = content.rstrip(b"\0")
    return b"\0" in begun or begun.startswith(_BEGINNING[: len(begun)])


def _parse(line: bytes) -> Optional[Dict[str, Any]]:
    try:
        record = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    return _kept(record) if isinstance(record, dict) and "type" in record else None


def _differing(old: Dict[str, Any], new: Dict[str, Any], above: str = "") -> List[str]:
    found: List[str] = []
    for key in sorted(set(old) | set(new)):
        a, b = old.get(key), new.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            found += _differing(a, b, f"{above}{key}.")
        elif a != b:
            found.append(above + key)
    return found


def reasons_as_plain(reasons: List[Reason]) -> List[Dict[str, str]]:
    """As they stand in a line."""
    return [reason._asdict() for reason in reasons]


def in_words(run: Dict[str, Any]) -> str:
    """A run's line for people."""
    parts = []
    if "fps" in run:
        parts.append(f"{run['fps']:.1f} FPS")
    if run.get("energy"):
        parts.append("{:.2f} W, {:.3g} J a frame".format(run["energy"]["mean_w"], run["energy"]["j_per_frame"]))
    parts.append("valid" if run["valid"] else "INVALID: " + "; ".join(one["text"] for one in run["reasons"]))
    return "{}: {}".format(run["run_id"], ", ".join(parts))


def _columns(run: Dict[str, Any]) -> List[Tuple[str, Any]]:
    params, energy = run["params"], run.get("energy") or {}
    columns: List[Tuple[str, Any]] = []
    columns += [(key, run.get(key)) for key in ("run_id", "attempt", "repeat", "order", "session")]
    columns += [("scene", params["scene"]), ("n_splats", (run.get("scene") or {}).get("n_splats"))]
    columns += [(key, params[key]) for key in ("width", "height", "variant", "fps_cap", "power_mode")]
    columns += [("board_power_mode", run.get("board_power_mode")), ("valid", int(run["valid"]))]
    columns += [("reasons", " ".join(reason["code"] for reason in run["reasons"]))]
    columns += [(key, run.get(key)) for key in ("window_s", "frames", "fps")]
    for kind in ("frame_ms", "interval_ms"):
        columns += [(f"{kind[:-3]}_{figure}_ms", (run.get(kind) or {}).get(figure)) for figure in _FIGURES]
    stages = run.get("stage_ms") or {}
    columns += [(f"{stage}_p50_ms", (stages.get(stage) or {}).get("p50")) for stage in STAGES]
    names = ("rail", "mean_w", "energy_j", "j_per_frame", "idle_w", "net_w", "net_j_per_frame")
    columns += [(name, energy.get(name)) for name in names]
    hottest = [course["max"] for course in (run.get("temp_c") or {}).values()]
    gpu = (run.get("clk_hz") or {}).get("gpu") or {}
    columns += [("hottest_c", max(hottest, default=None)), ("gpu_mean_hz", gpu.get("mean"))]
    columns += [("other_load", run.get("other_load")), ("t_wall", run["t_wall"])]
    return columns


def table(runs: List[Dict[str, Any]]) -> str:
    """Runs as CSV, a line each in the order measured, with a head; what is not known is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for i, run in enumerate(sorted(runs, key=lambda one: int(one["seq"]))):
        columns = _columns(run)
        if i == 0:
            writer.writerow([name for name, _ in columns])
        writer.writerow(["" if value is None else value for _, value in columns])
    return text.getvalue()
