"""Power cuts: recorders killed at any moment, files cut at any byte, and disks that forget what was not synced.

EDGEGS_POWER_CUTS sets the number of kills (1,000 by default; about 25 ms each).
"""

from __future__ import annotations

import builtins
import contextlib
import copy
import gzip
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import pytest

from edgegs.bench import report
from edgegs.cli import main
from edgegs.errors import SceneError
from edgegs.telemetry import housekeeping, runlog
from edgegs.telemetry.livefile import LiveFile
from edgegs.telemetry.readlog import read_log
from edgegs.telemetry.recorder import Recorder

BOOT = "3fa9c1d2-77aa-4b01-9d2e-0a1b2c3d4e5f"
KILLS = int(os.environ.get("EDGEGS_POWER_CUTS", "1000"))
ROOT = Path(__file__).parent.parent


def recorder(log_dir: Path, **settings: Any) -> Recorder:
    settings = dict({"boot_id": BOOT, "flush_s": 3600.0, "min_free_mb": 0.0}, **settings)
    return Recorder(str(log_dir), **settings)


def numbers(path: Any) -> List[int]:
    reader = read_log(str(path))
    found = [one["number"] for one in reader if one["type"] == "window"]
    assert reader.garbage == 0, reader.problems
    return found


# ---- kills ------------------------------------------------------------------------------------------


@pytest.fixture
def fast_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: a kill does not care for the disk, and an fsync would take most of
    the time in which it may come."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    folder = tempfile.mkdtemp(prefix="edgegs-", dir="/dev/shm")
    yield Path(folder)
    shutil.rmtree(folder, ignore_errors=True)


def test_killed_at_any_moment_it_loses_nothing_that_was_acknowledged(fast_folder: Path, capsys) -> None:
    runs = fast_folder / "runs"
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("power_cuts.py")), str(runs), str(KILLS), "20250701"],
        env=dict(os.environ, PYTHONPATH=str(ROOT), OPENBLAS_NUM_THREADS="1"),  # no threads: it forks
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120 + KILLS,
    )
    assert done.returncode == 0, done.stderr
    met = json.loads(done.stdout)
    with capsys.disabled():
        print(f"\n{KILLS} kills met {met}")
    if KILLS >= 500:  # it hit what it was meant to hit
        assert min(met["temporaries"], met["empty"], met["pruned"]) > 0, met
        assert met["records"] > 10 * KILLS

    # the last run is read by the command, too, and the next start leaves everything whole and tidy
    log = recorder(runs, max_mb=0.15, rotate_mb=0.006)
    log.write("start", {})
    log.write("window", {"number": 0, "window_s": 1.0})
    assert log.flush(60.0)  # mended and compressed
    assert log.close()
    assert runlog.runs(str(runs))[-1][1] == log.folder
    for _, folder in runlog.runs(str(runs)):
        names = os.listdir(folder)
        assert names
        if folder != log.folder:
            assert all(name.endswith(".jsonl.gz") for name in names), names
        # a run may be left with "start" alone; it is still a log
        assert main(["report", folder, "-o", str(fast_folder / "report.html")]) == 0


# ---- cuts at any byte -------------------------------------------------------------------------------


def test_a_live_file_cut_at_every_byte_of_its_last_record(tmp_path: Path) -> None:
    log = recorder(tmp_path / "runs")
    log.write("start", {"interval_s": 1.0})
    for number in range(3):
        log.write("window", {"number": number, "window_s": 1.0, "text": 'quote " and {brace} \\ é'})
    assert log.close()
    data = Path(log.path).read_bytes()
    last = data.rindex(b"\n", 0, -1) + 1
    assert len(data) - last > 200
    for cut in range(last, len(data) + 1):
        for tail in (b"", b"\0" * 7):  # some file systems give back zeros where data should be
            Path(log.path).write_bytes(data[:cut] + tail)
            whole = cut == len(data) or (cut == len(data) - 1 and not tail)
            kept = [0, 1, 2] if whole else [0, 1]
            assert numbers(log.path) == kept, cut
            assert report.summary(report.read(log.folder).runs[0])["seconds"] == len(kept), cut
            if cut % 16 == 0:  # compressed at the next start, it is the same log
                folder = tmp_path / f"cut-{cut}-{len(tail)}" / "ffffffff-000001"
                shutil.copytree(log.folder, str(folder))
                recorder(folder.parent).close()
                housekeeping.compress_all(str(folder.parent), "", lambda: None, lambda error: pytest.fail(str(error)))
                assert os.listdir(str(folder)) == ["telemetry.jsonl.gz"]
                assert numbers(folder) == kept, cut
    # appended to by the same run, as after a disk that went and came back, only the torn record is lost
    for cut in range(last + 1, len(data)):
        Path(log.path).write_bytes(data[:cut])
        live = LiveFile(str(tmp_path / "runs"), log.folder)
        live.ensure()
        live.append([data[last:].replace(b'"number":2', b'"number":9')])
        live.close()
        found = [one["number"] for one in read_log(log.path) if one["type"] == "window"]
        assert found == ([0, 1, 2, 9] if cut == len(data) - 1 else [0, 1, 9]), cut


def test_a_compressed_file_cut_at_every_byte(tmp_path: Path) -> None:
    log = recorder(tmp_path / "runs")
    log.write("start", {"interval_s": 1.0})
    for number in range(12):
        log.write("window", {"number": number, "window_s": 1.0})
    assert log.close()
    housekeeping.compress(log.path, lambda: None)
    packed = Path(log.path + ".gz")
    data = packed.read_bytes()
    before = 0
    for cut in range(len(data) + 1):
        packed.write_bytes(data[:cut])
        found = numbers(packed)
        assert found == list(range(len(found)))
        assert len(found) >= before  # a longer rest gives at least as much
        before = len(found)
        if cut % 8 == 0:
            if found:
                assert report.summary(report.read(log.folder).runs[0])["seconds"] == len(found)
            else:  # at most the start record was left
                with contextlib.suppress(SceneError):
                    report.summary(report.read(log.folder).runs[0])
    assert found == list(range(12))
    # a source that a cut left beside it is the whole log, whatever became of the gzip
    plain = gzip.decompress(data)
    Path(log.path).write_bytes(plain)
    for cut in range(0, len(data), 16):
        packed.write_bytes(data[:cut])
        assert numbers(log.folder) == list(range(12))


# ---- disks that forget what was not synced ----------------------------------------------------------


class Moment:
    """What the disk holds for certain, what it may hold, and what was promised, before one call."""

    def __init__(self, disk: Disk, promised: int) -> None:
        self.names = copy.deepcopy(disk.names)
        self.pending = copy.deepcopy(disk.pending)
        self.synced = dict(disk.synced)
        self.lengths = {inode: os.path.getsize(path) for inode, path in disk.kept.items()}
        self.promised = promised


class Disk:
    """Follows what a program does with its files: fsync makes content durable, fsync of a folder its names.

    Everything else may or may not have reached the disk at a cut: of each folder's changes a beginning of any length,
    of each file's bytes a beginning not shorter than what was synced, and zeros behind it.

    Args:
        ignore: calls of os.fsync that do nothing, by path: a program that forgot them.
    """

    def __init__(self, monkeypatch: Any, root: Path, attic: Path, ignore: Callable[[str], bool]) -> None:
        self.root, self.attic, self.ignore = str(root), attic, ignore
        self.names: Dict[str, Dict[str, Optional[int]]] = {self.root: {}}  # folder -> name -> inode; None: a folder
        self.pending: Dict[str, List[Tuple[Any, ...]]] = {self.root: []}
        self.synced: Dict[int, int] = {}
        self.kept: Dict[int, str] = {}  # a hard link to each file ever made: unlinked ones may come back
        self.moments: List[Moment] = []
        self.promised: Callable[[], int] = lambda: 0
        attic.mkdir()
        for name in ("mkdir", "rmdir", "rename", "unlink", "fsync", "open"):
            monkeypatch.setattr(os, name, self._wrapped(getattr(os, name), getattr(self, "_" + name)))
        monkeypatch.setattr(housekeeping, "open", self._wrapped(builtins.open, self._builtin_open), raising=False)

    def _wrapped(self, real: Callable[..., Any], follow: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            target = str(os.readlink(f"/proc/self/fd/{args[0]}") if isinstance(args[0], int) else args[0])
            if not target.startswith(self.root):
                return real(*args, **named)
            self.moments.append(Moment(self, self.promised()))
            return follow(real, target, *args, **named)

        return call

    def _change(self, path: str, *change: Any) -> None:
        self.pending[os.path.dirname(path)].append(change)

    def _mkdir(self, real: Any, path: str, *args: Any) -> None:
        real(*args)
        self._change(path, "add", os.path.basename(path), None)
        self.names[path], self.pending[path] = {}, []

    def _rmdir(self, real: Any, path: str, *args: Any) -> None:
        real(*args)
        self._change(path, "remove", os.path.basename(path))

    def _rename(self, real: Any, path: str, source: str, target: str) -> None:
        inode = os.stat(source).st_ino
        real(source, target)
        self._change(path, "rename", os.path.basename(source), os.path.basename(target), inode)

    def _unlink(self, real: Any, path: str, *args: Any) -> None:
        real(*args)
        self._change(path, "remove", os.path.basename(path))

    def _fsync(self, real: Any, path: str, descriptor: int) -> None:
        if self.ignore(path):
            return
        if os.path.isdir(path):
            apply(self.names[path], self.pending[path])
            self.pending[path] = []
        else:
            state = os.fstat(descriptor)
            self.synced[state.st_ino] = state.st_size

    def _open(self, real: Any, path: str, *args: Any, **named: Any) -> int:
        new = not os.path.exists(path)
        descriptor: int = real(*args, **named)
        if new:
            self._made(path)
        return descriptor

    def _builtin_open(self, real: Any, path: str, *args: Any, **named: Any) -> Any:
        new = not os.path.exists(path)
        file = real(*args, **named)
        if new:
            self._made(path)
        return file

    def _made(self, path: str) -> None:
        inode = os.stat(path).st_ino
        self.kept[inode] = str(self.attic / str(inode))
        os.link(path, self.kept[inode])
        self.synced[inode] = 0
        self._change(path, "add", os.path.basename(path), inode)

    def after(self, moment: Moment, rng: random.Random, folder: Path) -> None:
        """Lay out in ``folder`` what the disk holds after a cut at that moment."""
        extent = rng.choice((0.0, 1.0, None))  # nothing unsynced arrived, all of it, or anything between

        def between(low: int, high: int) -> int:
            return rng.randint(low, high) if extent is None else low + int(extent * (high - low))

        def lay(source: str, target: Path) -> None:
            target.mkdir()
            names = dict(moment.names[source])
            changes = moment.pending[source]
            apply(names, changes[: between(0, len(changes))])
            for name, inode in names.items():
                if inode is None:
                    lay(os.path.join(source, name), target / name)
                    continue
                length = between(moment.synced[inode], moment.lengths[inode])
                with builtins.open(self.kept[inode], "rb") as file:
                    data = file.read(length)
                zeros = rng.choice((0, moment.lengths[inode] - length))
                (target / name).write_bytes(data + b"\0" * zeros)

        lay(self.root, folder)


def apply(names: Dict[str, Optional[int]], changes: List[Tuple[Any, ...]]) -> None:
    for kind, name, *rest in changes:
        if kind == "add":
            names[name] = rest[0]
        else:
            names.pop(name, None)
            if kind == "rename":
                names[rest[0]] = rest[1]


def cut_everywhere(
    tmp_path: Path, sync_s: float, max_mb: float, ignore: Callable[[str], bool] = lambda path: False
) -> Dict[str, int]:
    """Record with rotations; cut the power before every call that changes the disk; look at what is left."""
    met = {"cuts": 0, "lost": 0, "twins": 0, "temporaries": 0, "torn": 0, "promised": 0}
    order: List[int] = []  # the window numbers in the order of all lines written; -1 for others
    root = tmp_path / "disk"
    root.mkdir()
    with pytest.MonkeyPatch.context() as monkeypatch:
        disk = Disk(monkeypatch, root, tmp_path / "attic", ignore)
        real = LiveFile.append

        def append(live: LiveFile, lines: List[bytes]) -> None:
            disk.moments.append(Moment(disk, disk.promised()))
            real(live, lines)
            order.extend(json.loads(line).get("number", -1) for line in lines)

        monkeypatch.setattr(LiveFile, "append", append)
        number = 0
        for _ in range(2):  # the second run mends and compresses what the first left
            first = len(order)
            log = recorder(root / "runs", rotate_mb=0.003, max_mb=max_mb, sync_s=sync_s)
            disk.promised = lambda log=log, first=first: first + log.status()["synced_records"]  # type: ignore[misc]
            log.write("start", {"interval_s": 1.0})
            for _ in range(12):
                for _ in range(5):
                    log.write("window", {"number": number, "window_s": 1.0, "noise": os.urandom(20).hex()})
                    number += 1
                assert log.flush()
            assert log.close()
            assert log.status()["synced_records"] == len(order) - first
    rng = random.Random(7)
    for index, moment in enumerate(disk.moments):
        met["cuts"] += 1
        left = tmp_path / "left"
        disk.after(moment, rng, left)
        promised = max((one for one in order[: moment.promised]), default=-1)
        met["promised"] = max(met["promised"], promised)
        met["lost"] += not whole(left / "runs", promised, max_mb > 1, met)
        if index % 8 == 0:
            recorder(left / "runs", max_mb=10.0).close()
            log = recorder(left / "runs", max_mb=10.0)  # nothing of what was left is lost by mending
            assert log.flush()
            assert log.close()
            met["lost"] += not whole(left / "runs", promised, max_mb > 1, dict(met))
            for _, folder in runlog.runs(str(left / "runs"))[:-1]:
                names = os.listdir(folder)
                assert all(name.endswith(".jsonl.gz") for name in names), names
        shutil.rmtree(str(left))
    return met


def whole(runs: Path, promised: int, from_zero: bool, met: Dict[str, int]) -> bool:
    """Whether the log reads without a hole, and up to what was promised at least."""
    found: List[int] = []
    if runs.is_dir():
        for _, folder in runlog.runs(str(runs)):
            names = os.listdir(folder)
            met["twins"] += any(name + ".gz" in names for name in names)
            met["temporaries"] += any(name.endswith(".tmp") for name in names)
            if not runlog.run_files(folder):
                continue
            reader = read_log(folder)
            # a gzip whose blocks did not arrive may decode into lines that nobody wrote: those have no number
            found += [one.get("number", -2) for one in reader if one["type"] == "window"]
            met["torn"] += reader.torn
            if reader.garbage:
                return False
    if not found:
        return promised < 0
    first = 0 if from_zero else found[0]
    # unsynced records at a run's end may be gone, and the next run goes on behind them
    holes = [after for before, after in zip(found, found[1:]) if after != before + 1]
    return found[0] == first and len(holes) <= 1 and found == sorted(found) and found[-1] >= promised


@pytest.mark.parametrize("max_mb", [10.0, 0.014])
@pytest.mark.parametrize("sync_s", [0.0, 3600.0])
def test_a_disk_that_forgets_what_was_not_synced_keeps_what_was_promised(
    tmp_path: Path, sync_s: float, max_mb: float
) -> None:
    met = cut_everywhere(tmp_path, sync_s, max_mb)
    assert met["lost"] == 0, met
    assert met["cuts"] > 150
    assert met["promised"] > 100
    assert min(met["twins"], met["temporaries"], met["torn"]) > 0, met


@pytest.mark.parametrize(
    ("forgotten", "what"),
    [
        (lambda path: path.endswith(".gz.tmp"), "a gzip's content before its name"),
        (lambda path: path.endswith(runlog.LIVE), "the live file"),
        (os.path.isdir, "every folder"),
    ],
)
def test_the_cuts_find_a_program_that_forgets_to_sync(tmp_path: Path, forgotten: Any, what: str) -> None:
    assert cut_everywhere(tmp_path, 0.0, 10.0, forgotten)["lost"] > 0, what
