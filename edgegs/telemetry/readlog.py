"""Read a telemetry log back: plain or compressed, of a run that may have ended by power loss."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import zlib
from typing import Any, BinaryIO, Dict, Iterator, List, Tuple

from edgegs.errors import AccessError, InputError
from edgegs.telemetry import runlog
from edgegs.telemetry.recorder import SCHEMA

#: A record is about a kilobyte; a "line" this long is none.
MAX_LINE = 1 << 20

#: Problems that are kept with file and line; all are counted.
MAX_PROBLEMS = 20


class LogReader:
    """Iterates over the records (dictionaries) of a log, once.

    A torn last line of a file is dropped, and so is what is no record of ours; both are counted.

    Attributes:
        files: the files read, in order; ``whole_run``: they are all of one run, which may be under way.
        torn: files that end in the middle of a record. garbage: lines that are no record.
        problems: (file, line number, what is wrong) of the first ones.
    """

    def __init__(self, files: List[str], whole_run: bool = False) -> None:
        self.files = files
        self._whole_run = whole_run
        self.torn = self.garbage = 0
        self.problems: List[Tuple[str, int, str]] = []
        self._records = self._read()

    def __iter__(self) -> Iterator[Dict[str, Any]]:
        return self

    def __next__(self) -> Dict[str, Any]:
        return next(self._records)

    def _read(self) -> Iterator[Dict[str, Any]]:
        for path in self._paths():
            try:
                if not os.path.exists(path) and os.path.exists(path + ".gz"):
                    path += ".gz"  # it was compressed since the folder was listed
                with open(path, "rb") as raw:
                    if path.endswith(".gz"):
                        with gzip.GzipFile(fileobj=raw) as packed:
                            yield from self._lines(path, packed)  # type: ignore[arg-type]
                    else:
                        yield from self._lines(path, raw)
            except PermissionError as error:
                raise _no_access(path) from error
            except FileNotFoundError:
                self._problem(path, 0, "is gone: the cap on the logs has deleted it")
            except OSError as error:
                self.torn += 1
                self._problem(path, 0, f"cannot be read: {error}")

    def _paths(self) -> Iterator[str]:
        """The files; before the live one also those that were closed since, while the others were read."""
        seen = {_plain(path) for path in self.files}
        for path in list(self.files):
            if self._whole_run and os.path.basename(path) == runlog.LIVE:
                with contextlib.suppress(OSError):
                    for file in runlog.run_files(os.path.dirname(path)):
                        if _plain(file.path) not in seen:
                            self.files.insert(-1, file.path)
                            yield file.path
            yield path

    def _lines(self, path: str, file: BinaryIO) -> Iterator[Dict[str, Any]]:
        number = 0
        while True:
            number += 1
            try:
                line = file.readline(MAX_LINE)
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                self.torn += 1
                self._problem(path, number, f"the compressed file is torn: {error}")
                return
            if not line:
                return
            whole = line.endswith(b"\n")
            if not whole and len(line) == MAX_LINE:
                self.garbage += 1
                self._problem(path, number, "the line is longer than 1 MiB")
                while line and not line.endswith(b"\n"):
                    line = file.readline(MAX_LINE)
                continue
            try:
                record = parse(line)
            except ValueError as error:
                if whole:
                    self.garbage += 1
                    self._problem(path, number, str(error))
                else:
                    self.torn += 1
                    self._problem(path, number, "the last line is torn and was dropped")
                continue
            if record:
                yield record

    def _problem(self, path: str, line: int, what: str) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append((path, line, what))


def read_log(path: str) -> LogReader:
    """The records of a log file, a compressed one (``.gz``), or the folder of a run.

    Raises:
        InputError: there is no such log. AccessError: it may not be read.
    """
    try:
        if os.path.isdir(path):
            files = [file.path for file in runlog.run_files(path)]
            if not files:
                raise InputError(_no_log_in(path))
        elif os.path.isfile(path):
            files = [path]
        elif os.path.isfile(path + ".gz"):  # it was compressed since its name was noted down
            files = [path + ".gz"]
        elif os.path.exists(path):
            raise InputError(f"{path}: is neither a regular file nor a folder")
        else:
            raise InputError(f"{path}: no such log; give a run's folder or its telemetry.jsonl")
        for file in files:
            if not os.access(file, os.R_OK):
                raise _no_access(file)
    except PermissionError as error:
        raise _no_access(path) from error
    return LogReader(files, os.path.isdir(path))


def _plain(path: str) -> str:
    return path[: -len(".gz")] if path.endswith(".gz") else path


def parse(line: bytes) -> Dict[str, Any]:
    """One line as a record; empty for a blank line. Raises ValueError when it is no record of ours."""
    if not line.strip():
        return {}
    try:
        record = json.loads(line.decode("utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"no JSON record: {str(error)[:80]}") from error
    if not isinstance(record, dict) or not isinstance(record.get("type"), str):
        raise ValueError("no telemetry record: it has no type")
    schema = record.get("schema")
    if not isinstance(schema, int) or not 1 <= schema <= SCHEMA:
        raise ValueError(f"schema {schema!r} is not known to this edgegs (knows {SCHEMA})")
    return record


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


def _no_access(path: str) -> AccessError:
    return AccessError(f"{path}: permission denied; read it as edgegs's own user or with sudo")


def _no_log_in(folder: str) -> str:
    try:
        found = runlog.runs(folder)
    except OSError:
        found = []
    if found:
        return f"{folder}: holds {len(found)} runs; name one, the newest is {found[-1][1]}"
    return f"{folder}: no telemetry log in this folder"
