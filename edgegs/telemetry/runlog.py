"""The files of a run: their names and order, the folder of a new run, and where a log may be put.

    LOG_DIR/3fa9c1d2-000012/telemetry-000001.jsonl.gz    closed and compressed
                            telemetry-000002.jsonl       closed, compressed soon
                            telemetry.jsonl              live

A run is named by the first eight digits of the boot id and a counter that rises over all boots, because
a board without a clock battery cannot be trusted with a date. The live file is locked while it is live.

Only LOG_DIR itself is made, never the folder above it: a log for a disk that is not mounted (yet) must not fill the
root disk below an empty mount point. So a folder on the disk belongs between the two, as in /mnt/usb/edgegs/runs; or
the mount point stands in /etc/fstab, which is asked, too.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
from typing import Iterator, List, NamedTuple, Optional, Tuple

LIVE = "telemetry.jsonl"
FSTAB = "/etc/fstab"

_RUN = re.compile(r"^[0-9a-f]{8}-(\d{6,})$")
_FILE = re.compile(r"^telemetry(?:-(\d{6,}))?\.jsonl(\.gz)?$")
_TEMPORARY = re.compile(r"^telemetry(-\d{6,})?\.jsonl\.gz\.tmp$")

#: The part of the live file: behind all closed ones.
LAST = float("inf")

#: A service that fails and restarts for days must not leave folders without end.
MAX_RUNS = 500


class LogFile(NamedTuple):
    """One log file; the tuple's order is the order in which the records were written. ``size``: bytes on disk."""

    run: int
    part: float
    path: str
    size: int

    @property
    def packed(self) -> bool:
        return self.path.endswith(".gz")


def prepare(log_dir: str, fstab: str = FSTAB) -> None:
    """Make the folder of all runs, where that may be.

    Raises:
        OSError: a mount point above it is not mounted, the folder above it is missing, or as the disk says.
    """
    waiting = unmounted(log_dir, fstab)
    if waiting is not None:
        raise OSError(errno.ENODEV, f"nothing is mounted on {waiting}, which {fstab} names")
    try:
        os.mkdir(log_dir, 0o755)
    except FileExistsError:
        if not os.path.isdir(log_dir):
            raise NotADirectoryError(errno.ENOTDIR, "it is not a folder") from None
    except FileNotFoundError:
        above = os.path.dirname(log_dir)
        raise FileNotFoundError(errno.ENOENT, f"{above} does not exist, and only the last folder is made") from None
    else:
        sync_folder(os.path.dirname(log_dir))


def unmounted(path: str, fstab: str = FSTAB) -> Optional[str]:
    """The mount point above ``path`` that ``fstab`` names and nothing is mounted on; None when there is none."""
    try:
        with open(fstab, encoding="utf-8", errors="replace") as file:
            lines = [line.split() for line in file]
    except OSError:
        return None
    path = os.path.realpath(path)
    for fields in lines:
        if len(fields) < 2 or fields[0].startswith("#") or not fields[1].startswith("/"):
            continue
        # fstab(5): blanks and the backslash are written as octal numbers
        point = re.sub(r"\\([0-7]{3})", lambda digits: chr(int(digits.group(1), 8)), fields[1])
        point = os.path.normpath(point)
        if _is_below(path, point) and not os.path.ismount(point):
            return point
    return None


def mount_point(path: str) -> str:
    """Where the file system that holds ``path`` is mounted."""
    path = os.path.realpath(path)
    while not os.path.ismount(path):
        path = os.path.dirname(path)
    return path


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def create_run(log_dir: str, boot_id: str) -> Tuple[str, str]:
    """Make the folder of a new run; returns (run id, path of the folder). Raises OSError."""
    counter = 1 + max((number for number, _ in runs(log_dir)), default=0)
    while True:
        run_id = "{}-{:06d}".format(boot_id.replace("-", "")[:8], counter)
        path = os.path.join(log_dir, run_id)
        try:
            os.mkdir(path, 0o755)
        except FileExistsError:
            counter += 1
            continue
        sync_folder(log_dir)
        return run_id, path


def explain(path: str, error: Exception) -> str:
    """Why no log can be made at ``path``, and what to do."""
    if isinstance(error, PermissionError):
        return (
            f"{path}: permission denied for the telemetry log (telemetry.log.dir); make the folder writable "
            "for this user or name another"
        )
    return (
        f"{path}: cannot create the telemetry log (telemetry.log.dir): {cause(error)}; "
        "name a folder on a mounted, writable disk"
    )


def cause(error: Exception) -> str:
    """What went wrong, in a few words."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


def runs(log_dir: str) -> List[Tuple[int, str]]:
    """(counter, folder) of every run below ``log_dir``, oldest first."""
    found = []
    for entry in os.scandir(log_dir):
        matched = _RUN.match(entry.name)
        if matched and entry.is_dir(follow_symlinks=False):
            found.append((int(matched.group(1)), entry.path))
    return sorted(found)


def every_file(folder: str, run: int = 0) -> List[LogFile]:
    """A run's log files in the order of their records; a source and its gzip, where a crash left both, are two."""
    found = []
    for entry in os.scandir(folder):
        matched = _FILE.match(entry.name)
        if matched and entry.is_file(follow_symlinks=False):
            part = float(matched.group(1)) if matched.group(1) else LAST
            with contextlib.suppress(FileNotFoundError):  # somebody else's cap has just deleted it
                state = entry.stat(follow_symlinks=False)
                found.append(LogFile(run, part, entry.path, max(state.st_size, state.st_blocks * 512)))
    return sorted(found)


def run_files(folder: str, run: int = 0) -> List[LogFile]:
    """A run's log files in the order of their records, each once.

    Where a crash left a source beside its gzip, the source: it goes only after the gzip is complete and on the disk.
    """
    found = {file.part: file for file in reversed(every_file(folder, run))}  # the gzip sorts behind its source
    return sorted(found.values())


def temporaries(folder: str) -> Iterator[str]:
    """Half-written gzip files of a run. Raises OSError."""
    for name in os.listdir(folder):
        if _TEMPORARY.match(name):
            yield os.path.join(folder, name)


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


def closed_name(folder: str) -> str:
    """The name that the live file gets when it is closed: the next number. Raises OSError."""
    numbers = [file.part for file in every_file(folder) if file.part != LAST]
    return os.path.join(folder, f"telemetry-{int(max(numbers, default=0)) + 1:06d}.jsonl")


def sync_folder(folder: str) -> None:
    """Make new names, renames and deletions in ``folder`` durable. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a file system that cannot, as some network ones
            raise
    finally:
        os.close(descriptor)


def free_bytes(folder: str) -> int:
    """Space that an unprivileged writer still has on the folder's disk. Raises OSError."""
    return shutil.disk_usage(folder).free
