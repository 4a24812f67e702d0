"""The files of a run: its folder, the live log, rotation, compression, and the cap over all runs.

    LOG_DIR/3fa9c1d2-000012/telemetry-000001.jsonl.gz    closed and compressed
                            telemetry-000002.jsonl       closed, compressed soon
                            telemetry.jsonl              live

A run is named by the first eight digits of the boot id and a counter that rises over all boots, because
a board without a clock battery cannot be trusted with a date. The live file is locked while it is live.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gzip
import os
import re
import shutil
from typing import Callable, Iterator, List, NamedTuple, Tuple

from edgegs.errors import AccessError, EdgegsError, OutputError

LIVE = "telemetry.jsonl"

_RUN = re.compile(r"^[0-9a-f]{8}-(\d{6,})$")
_FILE = re.compile(r"^telemetry(?:-(\d{6,}))?\.jsonl(\.gz)?$")
_TEMPORARY = re.compile(r"^telemetry(-\d{6,})?\.jsonl\.gz\.tmp$")

_CHUNK = 1 << 16

#: A service that fails and restarts for days must not leave folders without end.
MAX_RUNS = 500


class LogFile(NamedTuple):
    """One log file; the tuple's order is the order in which the records were written."""

    run: int
    part: float
    path: str
    size: int


class Stopped(Exception):
    """Compression was asked to stop half-way."""


def create_run(log_dir: str, boot_id: str) -> Tuple[str, str]:
    """Make the folder of a new run.

    Returns:
        (run id, path of the folder).

    Raises:
        AccessError: the log folder may not be written to. OutputError: it cannot be made.
    """
    try:
        os.makedirs(log_dir, exist_ok=True)
        counter = 1 + max((number for number, _ in runs(log_dir)), default=0)
        while True:
            run_id = "{}-{:06d}".format(boot_id.replace("-", "")[:8], counter)
            path = os.path.join(log_dir, run_id)
            try:
                os.mkdir(path, 0o755)
                return run_id, path
            except FileExistsError:
                counter += 1
    except OSError as error:
        raise creation_error(log_dir, error) from error


def creation_error(path: str, error: OSError) -> EdgegsError:
    """The error to raise when the log's folder or first file cannot be made."""
    if isinstance(error, PermissionError):
        return AccessError(
            f"{path}: permission denied for the telemetry log (telemetry.log.dir); make the folder writable "
            "for this user or name another"
        )
    return OutputError(
        f"{path}: cannot create the telemetry log (telemetry.log.dir): {error.strerror or error}; "
        "name a folder on a mounted, writable disk"
    )


def runs(log_dir: str) -> List[Tuple[int, str]]:
    """(counter, folder) of every run below ``log_dir``, oldest first."""
    found = []
    for entry in os.scandir(log_dir):
        matched = _RUN.match(entry.name)
        if matched and entry.is_dir(follow_symlinks=False):
            found.append((int(matched.group(1)), entry.path))
    return sorted(found)


def run_files(folder: str, run: int = 0) -> List[LogFile]:
    """A run's log files in the order of their records.

    Where a crash left a compressed file and its source, only the compressed one (it is complete).
    """
    found = {}
    for entry in os.scandir(folder):
        matched = _FILE.match(entry.name)
        if not matched or not entry.is_file(follow_symlinks=False):
            continue
        part = float(matched.group(1)) if matched.group(1) else float("inf")
        if part not in found or matched.group(2):
            found[part] = LogFile(run, part, entry.path, entry.stat(follow_symlinks=False).st_size)
    return sorted(found.values())


def open_live(folder: str) -> int:
    """Open the run's live file for appending and lock it; returns the descriptor. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    descriptor = os.open(os.path.join(folder, LIVE), flags, 0o644)
    with contextlib.suppress(OSError):  # a file system without locks still takes a log
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return descriptor


def is_live(path: str) -> bool:
    """Whether some process holds the file as its live log."""
    try:
        with open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError as error:
        return error.errno in (errno.EACCES, errno.EPERM)  # cannot tell: leave it alone
    return False


def retire(folder: str) -> str:
    """Give the live file its closed name (the next number); returns the new path. Raises OSError."""
    numbers = [file.part for file in run_files(folder) if file.part != float("inf")]
    path = os.path.join(folder, f"telemetry-{int(max(numbers, default=0)) + 1:06d}.jsonl")
    os.rename(os.path.join(folder, LIVE), path)
    sync_folder(folder)
    return path


def sync_folder(folder: str) -> None:
    """Make renames in ``folder`` durable. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def compress(path: str, stopped: Callable[[], bool]) -> None:
    """Replace a closed file by its gzip, atomically: power loss leaves one or the other whole.

    Raises:
        OSError: as it happens; the source is untouched then. Stopped: ``stopped`` said so.
    """
    target, temporary = path + ".gz", path + ".gz.tmp"
    try:
        with open(path, "rb") as source, open(temporary, "wb") as raw:
            with gzip.GzipFile(filename="", mode="wb", fileobj=raw, compresslevel=6, mtime=0) as packed:
                for chunk in iter(lambda: source.read(_CHUNK), b""):
                    if stopped():
                        raise Stopped
                    packed.write(chunk)
            raw.flush()
            os.fsync(raw.fileno())
        os.rename(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    sync_folder(os.path.dirname(path))
    os.unlink(path)


def closed_files(log_dir: str, own: str) -> Iterator[LogFile]:
    """All files that no process writes to, oldest first; ``own`` is the folder of this process's run."""
    for number, folder in runs(log_dir):
        with contextlib.suppress(FileNotFoundError):
            for file in run_files(folder, number):
                live = file.part == float("inf") and file.path.endswith(LIVE)
                if live and (os.path.samefile(folder, own) or is_live(file.path)):
                    continue
                yield file


def clean_temporaries(log_dir: str) -> None:
    """Remove half-written gzip files that a crash left behind."""
    for _, folder in runs(log_dir):
        with contextlib.suppress(OSError):
            for name in os.listdir(folder):
                if _TEMPORARY.match(name):
                    os.unlink(os.path.join(folder, name))


def prune(log_dir: str, own: str, allowed: int) -> int:
    """Delete the oldest closed files until the closed ones take at most ``allowed`` bytes.

    Of more than ``MAX_RUNS`` runs the oldest go in any case; so do the folders that become empty.
    Returns the number of files deleted. Raises OSError.
    """
    files = list(closed_files(log_dir, own))
    total = sum(file.size for file in files)
    oldest = {folder for _, folder in runs(log_dir)[:-MAX_RUNS]}
    deleted = 0
    for file in files:
        folder = os.path.dirname(file.path)
        if total > allowed or folder in oldest:
            os.unlink(file.path)
            total -= file.size
            deleted += 1
            oldest.add(folder)
    for folder in oldest:
        if folder != own:
            with contextlib.suppress(OSError):  # it still holds something
                os.rmdir(folder)
    return deleted


def free_bytes(folder: str) -> int:
    """Space that an unprivileged writer still has on the folder's disk. Raises OSError."""
    return shutil.disk_usage(folder).free
