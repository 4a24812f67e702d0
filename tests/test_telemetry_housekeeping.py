"""What happens to old runs, and where a log may live: the cap, leftovers of crashes, disks that come and go."""

from __future__ import annotations

import errno
import fcntl
import gzip
import os
import shutil
import subprocess
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List

import numpy as np
import pytest

from edgegs.telemetry import housekeeping, livefile, runlog
from edgegs.telemetry import recorder as recorder_module
from edgegs.telemetry.livefile import LiveFile
from edgegs.telemetry.readlog import read_log
from edgegs.telemetry.recorder import Recorder
from edgegs.telemetry.records import encode, with_run_id
from edgegs.telemetry.wake import Wakeup

BOOT = "3fa9c1d2-77aa-4b01-9d2e-0a1b2c3d4e5f"


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Callable[..., Recorder]]:
    """Make recorders that are closed at the end; no thread and no descriptor left."""
    threads, descriptors = set(threading.enumerate()), len(os.listdir("/proc/self/fd"))
    made: List[Recorder] = []

    def make(**settings: Any) -> Recorder:
        settings = dict({"boot_id": BOOT, "flush_s": 3600.0, "min_free_mb": 0.0}, **settings)
        made.append(Recorder(settings.pop("log_dir", str(tmp_path / "runs")), **settings))
        return made[-1]

    yield make
    for one in made:
        assert one.close()
    assert set(threading.enumerate()) == threads
    assert len(os.listdir("/proc/self/fd")) == descriptors


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Callable[..., bool]]:
    """Mount a small tmpfs, where this user may; unmounted at the end."""
    if os.geteuid() != 0 or not shutil.which("mount"):
        pytest.skip("only root may mount a tmpfs")
    points: List[str] = []

    def make(point: Path, options: str = "size=256k") -> None:
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(point)], capture_output=True)
        if done.returncode:
            pytest.skip("may not mount a tmpfs here")
        points.append(str(point))

    yield make
    for point in points:
        subprocess.run(["umount", "-l", point], check=False, capture_output=True)


def wait_for(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "waited for 20 s"
        time.sleep(0.005)


def window(number: int, **fields: Any) -> Dict[str, Any]:
    return dict({"window_s": 1.0, "frames": 30, "number": number}, **fields)


def fill(log: Recorder, count: int, first: int = 0) -> None:
    rng = np.random.default_rng(first)
    for number in range(first, first + count):
        log.write("window", window(number, noise=rng.bytes(60).hex()))
        if number % 20 == 19:
            assert log.flush()


def numbers(path: Any) -> List[int]:
    return [one["number"] for one in read_log(str(path)) if one["type"] == "window"]


def old_run(log_dir: Path, number: int, **files: bytes) -> Path:
    folder = log_dir / f"ffffffff-{number:06d}"
    folder.mkdir(parents=True)
    for name, data in files.items():
        (folder / name.replace("__", "-").replace("_", ".")).write_bytes(data)
    return folder


def line(number: int) -> bytes:
    return encode({"schema": 1, "type": "window", "run_id": "ffffffff-000001", "number": number})


# ---- the cap ----------------------------------------------------------------------------------------


def test_a_thousand_tiny_old_runs_are_capped_in_number_and_bytes(tmp_path: Path, record) -> None:
    runs = tmp_path / "runs"
    for number in range(1, 1001):
        old_run(runs, number, telemetry_jsonl=line(number))
    log = record(max_mb=1.0)
    fill(log, 20)
    assert log.flush()
    left = runlog.runs(str(runs))
    assert len(left) <= runlog.MAX_RUNS
    kept = [number for number, _ in left]
    assert kept == list(range(kept[0], 1002))  # the oldest went
    used = sum(file.size for _, folder in left for file in runlog.every_file(folder))
    assert used <= 1_000_000
    # by what they take of the disk, not by their hundred bytes: a block each
    assert len(kept) < 300
    assert all(os.listdir(folder) for _, folder in left)  # no empty folder stayed


def test_the_cap_takes_a_runs_oldest_file_not_all_of_them(record) -> None:
    log = record(max_mb=0.08)
    counts = []
    for step in range(40):
        fill(log, 40, first=40 * step)
        counts.append(len(runlog.every_file(log.folder)))
    assert min(counts[10:]) > 3
    assert max(counts) - min(counts[10:]) <= 2


def test_what_cannot_be_deleted_does_not_keep_the_rest(tmp_path: Path, record, monkeypatch, caplog) -> None:
    stuck = old_run(tmp_path / "runs", 1, telemetry_jsonl_gz=gzip.compress(b"x" * 9000))
    gone = old_run(tmp_path / "runs", 2, telemetry_jsonl_gz=os.urandom(9000))
    real = os.unlink

    def unlink(path: Any, **named: Any) -> None:
        if str(path).startswith(str(stuck)):
            raise PermissionError(errno.EPERM, "Operation not permitted")
        real(path, **named)

    monkeypatch.setattr(os, "unlink", unlink)
    log = record(max_mb=0.01)
    fill(log, 20)
    assert not gone.exists()
    assert os.listdir(str(stuck)) == ["telemetry.jsonl.gz"]
    assert caplog.text.count("cannot delete old telemetry logs") == 1


def test_nothing_but_our_own_files_is_touched(tmp_path: Path, record) -> None:
    runs = tmp_path / "runs"
    folder = old_run(runs, 1, telemetry_jsonl=line(1), telemetry__000001_jsonl_gz_tmp=b"half", notes_txt=b"mine")
    (folder / "telemetry.jsonl.gz.tmp.bak").write_bytes(b"mine")
    (folder / "telemetry-1.jsonl").write_bytes(b"mine")  # not six digits
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "telemetry.jsonl").write_bytes(line(9))
    (runs / "ffffffff-000002").symlink_to(outside)
    (folder / "telemetry-000007.jsonl").symlink_to(outside / "telemetry.jsonl")
    foreign = runs / "holiday"
    foreign.mkdir()
    (foreign / "telemetry.jsonl").write_bytes(b"x" * 50_000)
    (runs / "empty").mkdir()
    log = record(max_mb=0.001)
    fill(log, 40)
    assert sorted(os.listdir(str(folder))) == [
        "notes.txt", "telemetry-000007.jsonl", "telemetry-1.jsonl", "telemetry.jsonl.gz.tmp.bak",
    ]  # fmt: skip
    assert (outside / "telemetry.jsonl").read_bytes() == line(9)
    assert (foreign / "telemetry.jsonl").stat().st_size == 50_000
    assert (runs / "empty").is_dir()


# ---- leftovers of a power cut -----------------------------------------------------------------------


def test_leftovers_of_every_kind_are_mended_at_the_next_start(tmp_path: Path, record) -> None:
    runs = tmp_path / "runs"
    whole = b"".join(line(number) for number in range(9))
    both = old_run(runs, 1, telemetry__000001_jsonl=whole, telemetry__000001_jsonl_gz=gzip.compress(whole))
    torn = old_run(runs, 2, telemetry__000001_jsonl=whole, telemetry__000001_jsonl_gz=gzip.compress(whole)[:-20])
    half = old_run(runs, 3, telemetry_jsonl=whole + line(9)[:-4], telemetry_jsonl_gz_tmp=b"\x1f\x8b")
    empty = old_run(runs, 4, telemetry_jsonl=b"")
    bare = old_run(runs, 5)
    for folder in (both, torn, half):
        assert numbers(folder) == list(range(9))  # before it is mended, too
    log = record()
    assert log.flush()
    for folder in (both, torn):
        assert os.listdir(str(folder)) == ["telemetry-000001.jsonl.gz"]
        assert numbers(folder) == list(range(9))
    assert os.listdir(str(half)) == ["telemetry.jsonl.gz"]
    assert numbers(half) == list(range(9))
    assert not empty.exists()
    assert not bare.exists()
    assert log.run_id == "3fa9c1d2-000006"


def test_a_file_that_cannot_be_read_does_not_keep_the_rest(tmp_path: Path, record, monkeypatch, caplog) -> None:
    runs = tmp_path / "runs"
    bad = old_run(runs, 1, telemetry_jsonl=line(1))
    good = old_run(runs, 2, telemetry_jsonl=line(2))
    real = housekeeping.compress

    def compress(path: str, between: Any) -> None:
        if path.startswith(str(bad)):
            raise OSError(errno.EIO, "Input/output error")
        real(path, between)

    monkeypatch.setattr(housekeeping, "compress", compress)
    assert record().flush()
    assert os.listdir(str(bad)) == ["telemetry.jsonl"]
    assert os.listdir(str(good)) == ["telemetry.jsonl.gz"]
    assert caplog.text.count("cannot compress telemetry logs") == 1


def test_two_processes_do_not_compress_at_once(tmp_path: Path, record) -> None:
    runs = tmp_path / "runs"
    folder = old_run(runs, 1, telemetry_jsonl=line(1), telemetry__000002_jsonl_gz_tmp=b"the other's work")
    with housekeeping.turn(str(runs)) as ours:
        assert ours
        with housekeeping.turn(str(runs)) as other:
            assert not other
        log = record()
        fill(log, 20)
        assert log.flush()
        assert sorted(os.listdir(str(folder))) == ["telemetry-000002.jsonl.gz.tmp", "telemetry.jsonl"]
    assert record().flush()
    assert os.listdir(str(folder)) == ["telemetry.jsonl.gz"]


def test_a_reader_that_meets_compression_loses_nothing(tmp_path: Path) -> None:
    folder = old_run(tmp_path, 1, telemetry__000001_jsonl=line(1), telemetry_jsonl=line(2))
    reader = read_log(str(folder))
    housekeeping.compress(str(folder / "telemetry-000001.jsonl"), lambda: None)
    assert [one["number"] for one in reader] == [1, 2]
    assert reader.problems == []


def test_a_reader_that_meets_rotation_loses_nothing(record) -> None:
    log = record(rotate_mb=0.004, max_mb=10)
    fill(log, 40)
    assert log.flush()
    reader = read_log(log.folder)
    found = [next(reader)["number"]]
    fill(log, 60, first=40)
    assert log.flush()
    found += [one["number"] for one in reader]
    assert found == list(range(100))
    assert reader.files == [file.path for file in runlog.run_files(log.folder)]


# ---- the live file ----------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [1, 20])
def test_a_disk_that_comes_back_with_a_torn_end_costs_only_that_line(tmp_path: Path, cut: int) -> None:
    live = LiveFile(str(tmp_path), str(tmp_path / "ffffffff-000001"))
    live.ensure()
    live.append([line(1), line(2)])
    live.close()
    os.truncate(live.path, live.size - cut)
    live.ensure()
    live.append([line(3)])
    live.close()
    assert numbers(live.path) == ([1, 2, 3] if cut == 1 else [1, 3])


def test_a_lock_that_somebody_looks_at_is_waited_for(tmp_path: Path, monkeypatch) -> None:
    folder = tmp_path / "ffffffff-000001"
    folder.mkdir()
    path = folder / runlog.LIVE
    path.write_bytes(b"")
    holder = path.open("rb")
    fcntl.flock(holder, fcntl.LOCK_SH)
    naps: List[float] = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 3:
            holder.close()

    monkeypatch.setattr(livefile.time, "sleep", nap)
    live = LiveFile(str(tmp_path), str(folder))
    live.ensure()
    assert len(naps) == 3
    assert runlog.is_live(live.path)
    live.close()
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        with pytest.raises(OSError, match="another process"):
            live.ensure()


def test_what_was_written_before_the_file_was_locked_is_not_lost(tmp_path: Path, monkeypatch) -> None:
    """Between making and locking, another process may take the file for an old run's empty one and delete it."""
    real = fcntl.flock
    deleted: List[str] = []
    live = LiveFile(str(tmp_path), str(tmp_path / "ffffffff-000001"))

    def flock(file: Any, what: int) -> None:
        if not deleted:
            deleted.append(live.path)
            os.unlink(live.path)
        real(file, what)

    monkeypatch.setattr(livefile.fcntl, "flock", flock)
    live.ensure()
    live.append([line(1)])
    live.close()
    assert deleted
    assert numbers(live.path) == [1]


def test_a_write_costs_one_call_and_no_fsync_before_its_time(record, monkeypatch) -> None:
    calls = {"write": 0, "fsync": 0}
    for name in calls:
        real = getattr(os, name)

        def counted(*args: Any, name: str = name, real: Callable[..., Any] = real) -> Any:
            calls[name] += 1
            return real(*args)

        monkeypatch.setattr(os, name, counted)
    log = record(sync_s=3600.0)
    log.write("start", {})
    assert log.flush()
    assert log.status()["synced_records"] == 1  # the start is durable at once
    begun = dict(calls)
    for number in range(40):
        for part in range(10):
            log.write("window", window(number, part=part))
        assert log.flush()
    assert (calls["write"] - begun["write"], calls["fsync"] - begun["fsync"]) == (40, 0)
    assert log.status()["synced_records"] == 1
    log.close()
    assert calls["fsync"] - begun["fsync"] == 1
    assert log.status()["synced_records"] == 401


def test_what_was_written_is_durable_in_time_even_when_nothing_follows(record) -> None:
    log = record(sync_s=0.05)
    log.write("start", {})
    log.write("window", window(1))
    assert log.flush()
    wait_for(lambda: log.status()["synced_records"] == 2)


def test_without_an_interval_records_are_written_at_once_and_the_thread_sleeps(record, monkeypatch) -> None:
    naps: List[float] = []
    real = Wakeup.wait
    monkeypatch.setattr(Wakeup, "wait", lambda self, seconds: (naps.append(seconds), real(self, seconds))[1])
    log = record(flush_s=0.0, sync_s=3600.0)
    for number in range(5):
        log.write("window", window(number))
        wait_for(lambda number=number: log.status()["records"] == number + 1)
    assert numbers(log.path) == list(range(5))
    assert len(naps) <= 8
    assert min(naps) > 1.0


# ---- disks that come and go -------------------------------------------------------------------------


def test_the_writer_outlives_what_nobody_thought_of(record, monkeypatch, caplog) -> None:
    log = record()
    monkeypatch.setattr(runlog, "free_bytes", lambda folder: 1 // 0)
    log.write("window", window(0))
    assert log.flush()
    assert log.status()["state"] == "failing"
    assert "division" in log.status()["error"]
    monkeypatch.undo()
    log.write("window", window(1))
    assert log.flush()
    assert log.status()["state"] == "ok"
    assert numbers(log.path) == [1]
    assert "ZeroDivisionError" in caplog.text


def test_a_folder_name_that_no_system_takes_is_told(record) -> None:
    log = record(log_dir="/tmp/a\0b")
    assert log.status()["state"] == "waiting"
    assert "null byte" in log.status()["error"] or "null character" in log.status()["error"]
    assert log.flush()


def test_states_are_told_once_each(record, monkeypatch) -> None:
    told: List[Any] = []

    def tell(kind: str, fields: Dict[str, Any]) -> None:
        told.append((kind, fields))
        raise RuntimeError("a listener's own trouble")

    free = [0]
    monkeypatch.setattr(runlog, "free_bytes", lambda folder: free[0])
    log = record(min_free_mb=1, on_state=tell)
    for number in range(4):
        log.write("window", window(number))
        assert log.flush()
    free[0] = 10**9
    assert log.flush()  # without a record, too
    assert log.flush()
    cause = {"error": "less than 1 MB free"}
    assert told == [("log_failing", cause), ("log_recovered", dict(cause, dropped_records=4))]
    events = [one for one in read_log(log.path) if one["type"] == "event"]
    assert [(one["kind"], one["dropped_records"]) for one in events] == [("log_recovered", 4)]


def test_a_failing_disk_is_tried_at_growing_intervals(record, monkeypatch) -> None:
    monkeypatch.setattr(runlog, "free_bytes", lambda folder: 0)
    clock = [1000.0]
    tries: List[float] = []
    real = Recorder._check_disk

    def check(self: Recorder) -> None:
        tries.append(clock[0])
        real(self)

    log = record(flush_s=3600.0, min_free_mb=1)
    assert log.flush()
    monkeypatch.setattr(Recorder, "_check_disk", check)
    monkeypatch.setattr(recorder_module.time, "monotonic", lambda: clock[0])
    log._retry_at = 0.0
    for _ in range(200):
        log.write("window", window(0))
        log._drain(forced=False)
        clock[0] += 1.0
    gaps = np.diff(tries)
    assert list(gaps[:6]) == [1, 2, 4, 8, 16, 30]
    assert set(gaps[6:]) == {30}
    assert log.status()["dropped_records"] == 200
    monkeypatch.undo()


def test_a_full_disk_gets_its_log_back_when_there_is_room(tmp_path: Path, mount, record, caplog) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount(disk, "size=1m")
    log = record(log_dir=str(disk / "runs"), min_free_mb=0.3, flush_s=0.0)
    log.write("start", {"board": "Nano"})
    log.write("window", window(0))
    wait_for(lambda: log.status()["records"] == 2)
    (disk / "filler").write_bytes(b"\0" * 800_000)
    log.write("window", window(1))
    wait_for(lambda: log.status()["state"] == "failing")
    assert log.status()["error"] == "less than 0.3 MB free"
    assert runlog.free_bytes(str(disk)) < 300_000
    assert log.status()["synced_records"] == 2  # what is there is safe
    (disk / "filler").unlink()
    wait_for(lambda: log.status()["state"] == "ok")  # by itself, without a record to write
    log.write("window", window(2))
    wait_for(lambda: numbers(log.path) == [0, 2])
    assert log.status()["dropped_records"] == 1


def test_a_mount_that_comes_later_gets_the_whole_run(tmp_path: Path, mount, record) -> None:
    point = tmp_path / "usb"
    point.mkdir()
    fstab = tmp_path / "fstab"
    fstab.write_text(f"LABEL=logs {point} ext4 nofail 0 2\n")
    log = record(log_dir=str(point / "runs"), fstab=str(fstab), flush_s=0.0)
    log.write("start", {"board": "Nano"})
    log.write("window", window(0))
    assert log.status()["state"] == "waiting"
    assert os.listdir(str(point)) == []
    mount(point)
    wait_for(lambda: log.status()["state"] == "ok")
    log.write("window", window(1))
    wait_for(lambda: numbers(log.path) == [0, 1])
    assert log.path.startswith(str(point))
    assert [one["board"] for one in read_log(log.path) if one["type"] == "start"] == ["Nano"]
    assert log.status()["dropped_records"] == 0


@pytest.mark.parametrize("later", ["at the start", "while it runs"])
def test_a_read_only_disk_costs_the_log_until_it_is_writable(tmp_path: Path, mount, record, later: str) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount(disk)

    def remount(mode: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{mode}", str(disk)], check=True)

    if later == "at the start":
        remount("ro")
    log = record(log_dir=str(disk / "runs"), flush_s=3600.0)
    log.write("start", {})
    assert log.flush()
    if later == "while it runs":
        log._live.close()  # the kernel refuses ro while a file is open for writing
        remount("ro")
    log.write("window", window(0))
    assert log.flush()
    assert log.status()["error"] == "Read-only file system"
    assert log.status()["state"] == ("waiting" if later == "at the start" else "failing")
    remount("rw")
    log.write("window", window(1))
    assert log.flush()
    assert log.status()["state"] == "ok"
    assert numbers(log.path) == ([0, 1] if later == "at the start" else [1])


def test_a_folder_without_permission_is_told_and_tried_again(tmp_path: Path) -> None:
    """Root may write everywhere: a child with another user's rights finds the folder closed, then open."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user to be refused")
    runs = tmp_path / "runs"
    runs.mkdir(mode=0o755)
    for folder in (tmp_path, *tmp_path.parents):
        if not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o011)  # pytest's own folders, for the way in
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setuid(65534)
            log = Recorder(str(runs), boot_id=BOOT, flush_s=3600.0, min_free_mb=0.0)
            log.write("window", window(0))
            refused = log.status()["state"] == "waiting" and log.status()["error"] == "Permission denied"
            log.close()
            code = 0 if refused and log.status()["dropped_records"] == 1 else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert os.listdir(str(runs)) == []


# ---- small parts ------------------------------------------------------------------------------------


def test_a_run_id_is_filled_in_once_and_only_in_the_envelope() -> None:
    made = encode({"schema": 1, "type": '"run_id":""', "run_id": "", "x": {"run_id": ""}})
    assert b'"run_id":"a-1","x":{"run_id":""}' in with_run_id(made, "a-1")
    named = encode({"run_id": "b", "text": '"run_id":""'})
    assert with_run_id(named, "a-1") == named


def test_a_wakeup_wakes_once_and_needs_nobody() -> None:
    wake = Wakeup()
    assert not wake.wait(0.0)
    assert not wake.wait(-5.0)
    for _ in range(100_000):
        wake.set()  # more than a pipe holds, without blocking
    assert wake.wait(10.0)
    assert not wake.wait(0.001)
    threading.Timer(0.01, wake.set).start()
    assert wake.wait(10.0)
    wake.close()
    wake.set()
    wake.close()
