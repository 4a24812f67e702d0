"""Behind the live file: closed files are compressed, what a crash left is mended, the cap over all runs is kept.

Nothing is touched but files and folders named like ours, never a live file, and no link is followed. One file that
cannot be handled (another user's, a bad sector) does not keep the others from it: it is reported, and they go on.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gzip
import os
from typing import Callable, Iterator, List, Set

from edgegs.telemetry import runlog
from edgegs.telemetry.runlog import LogFile

_CHUNK = 1 << 16

#: Errors of the disk as a whole: the next file would meet the same one.
_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)

Report = Callable[[OSError], None]


class Stopped(Exception):
    """Compression was asked to stop half-way."""


@contextlib.contextmanager
def turn(log_dir: str) -> Iterator[bool]:
    """Whether it is this process's turn to compress: two must not write the same gzip. Raises OSError."""
    descriptor = os.open(log_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            ours = True
        except BlockingIOError:
            ours = False
        except OSError:  # a file system without locks
            ours = True
        yield ours
    finally:
        os.close(descriptor)


def closed_files(log_dir: str, own: str, report: Report) -> List[LogFile]:
    """All files that no process writes to, oldest first; ``own`` is the folder of this process's run."""
    found = []
    for number, folder in runlog.runs(log_dir):
        try:
            files = runlog.every_file(folder, number)
        except OSError as error:
            _tell(report, error)
            continue
        found += [file for file in files if not _is_live(file, own)]
    return found


def _is_live(file: LogFile, own: str) -> bool:
    if file.part != runlog.LAST or file.packed:
        return False
    return os.path.dirname(file.path) == own or runlog.is_live(file.path)


def mend(log_dir: str, own: str, report: Report) -> None:
    """Remove what a crash may leave: half-written gzip files, logs without a byte, folders without a log."""
    for _, folder in runlog.runs(log_dir):
        with _each(report):
            for path in runlog.temporaries(folder):
                os.unlink(path)
    for file in closed_files(log_dir, own, report):
        if file.size == 0:
            with _each(report):
                os.unlink(file.path)
    for _, folder in runlog.runs(log_dir):
        if folder != own:
            with contextlib.suppress(OSError):  # it holds something
                os.rmdir(folder)


def compress_all(log_dir: str, own: str, between: Callable[[], None], report: Report) -> None:
    """Compress every closed file. ``between`` is called every few milliseconds and may raise Stopped, as this does."""
    for file in closed_files(log_dir, own, report):
        if file.packed or _is_live(file, own):  # asked again: it may have been locked a moment after it was made
            continue
        try:
            compress(file.path, between)
        except OSError as error:
            _tell(report, error)
            if error.errno in _OF_THE_DISK:
                return


def compress(path: str, between: Callable[[], None]) -> None:
    """Replace a closed file by its gzip. Power loss at any moment leaves the source, the whole gzip, or both.

    Raises:
        OSError: as it happens; the source is untouched then. Stopped: ``between`` said so.
    """
    target, temporary = path + ".gz", path + ".gz.tmp"
    try:
        with open(path, "rb") as source, open(temporary, "wb") as raw:
            os.fsync(source.fileno())  # readers take the source where both are left: a crash may have left it unsynced
            with gzip.GzipFile(filename="", mode="wb", fileobj=raw, compresslevel=6, mtime=0) as packed:
                for chunk in iter(lambda: source.read(_CHUNK), b""):
                    between()
                    packed.write(chunk)
            raw.flush()
            os.fsync(raw.fileno())
        os.rename(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    runlog.sync_folder(os.path.dirname(path))
    os.unlink(path)


def prune(log_dir: str, own: str, allowed: int, report: Report) -> int:
    """Delete the oldest closed files until all files but our live one take at most ``allowed`` bytes of the disk.

    Of more than ``MAX_RUNS`` runs the oldest go in any case; so do the folders that become empty.
    Returns the number of files deleted. Raises OSError.
    """
    closed = closed_files(log_dir, own, report)
    total = sum(file.size for file in closed) + _live_bytes(log_dir, own)
    doomed = {folder for _, folder in runlog.runs(log_dir)[: -runlog.MAX_RUNS]}
    touched: Set[str] = set(doomed)
    deleted = 0
    for file in closed:
        folder = os.path.dirname(file.path)
        if (total > allowed or folder in doomed) and not _is_live(file, own):
            with _each(report):
                os.unlink(file.path)
                deleted += 1
                total -= file.size
                touched.add(folder)
    for folder in touched - {own}:
        with contextlib.suppress(OSError):  # it still holds something
            os.rmdir(folder)
    return deleted


def _live_bytes(log_dir: str, own: str) -> int:
    """What the live files of other processes take: not ours to delete, but part of the cap."""
    total = 0
    for _, folder in runlog.runs(log_dir):
        if folder != own:
            with contextlib.suppress(OSError):
                total += sum(file.size for file in runlog.every_file(folder) if _is_live(file, own))
    return total


@contextlib.contextmanager
def _each(report: Report) -> Iterator[None]:
    """One file's failure is reported and costs only itself."""
    try:
        yield
    except FileNotFoundError:
        pass  # somebody else's cap was faster
    except OSError as error:
        report(error)


def _tell(report: Report, error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        report(error)
