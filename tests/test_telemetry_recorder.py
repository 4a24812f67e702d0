"""The log on disk: its records, and what power loss, a full disk and old runs do to it."""

from __future__ import annotations

import errno
import fcntl
import gzip
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List

import numpy as np
import pytest

from edgegs.errors import InputError
from edgegs.telemetry import housekeeping, readlog, runlog
from edgegs.telemetry import recorder as recorder_module
from edgegs.telemetry.readlog import read_log
from edgegs.telemetry.recorder import BUFFER_BYTES, Recorder
from edgegs.telemetry.records import encode

BOOT = "3fa9c1d2-77aa-4b01-9d2e-0a1b2c3d4e5f"


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Callable[..., Recorder]]:
    """Make recorders that are closed at the end; one thread each, none left."""
    before = set(threading.enumerate())
    made: List[Recorder] = []

    def make(**settings: Any) -> Recorder:
        settings.setdefault("boot_id", BOOT)
        settings.setdefault("flush_s", 3600.0)
        settings.setdefault("min_free_mb", 0.0)
        made.append(Recorder(settings.pop("log_dir", str(tmp_path / "runs")), **settings))
        return made[-1]

    yield make
    for one in made:
        assert one.close()
    assert set(threading.enumerate()) == before


def window(number: int, **fields: Any) -> Dict[str, Any]:
    return dict({"window_s": 1.0, "frames": 30, "number": number}, **fields)


def numbers(path: Any) -> List[int]:
    return [one["number"] for one in read_log(str(path)) if one["type"] == "window"]


# ---- records ----------------------------------------------------------------------------------------


def test_a_record_has_the_envelope_and_strict_json(record) -> None:
    log = record()
    log.write("start", {"board": "x"})
    log.write("window", window(1, bad=float("nan"), worse=[float("inf")], n=np.int64(3), f=np.float32(0.5)))
    log.write("event", {"kind": "reload", "type": "forged", "seq": -1, "run_id": "forged", "what": object})
    log.write("stop", {"reason": "line\nbreak"}, t_mono_ns=77)
    log.close()
    lines = Path(log.path).read_text().splitlines()
    assert len(lines) == 4
    records = [json.loads(line, parse_constant=pytest.fail) for line in lines]
    assert [one["type"] for one in records] == ["start", "window", "event", "stop"]
    assert [one["seq"] for one in records] == [0, 1, 2, 3]
    for one in records:
        assert list(one)[:8] == [
            "schema", "type", "seq", "boot_id", "run_id", "t_mono_ns", "t_wall", "clock_synced",
        ]  # fmt: skip
        assert (one["schema"], one["boot_id"], one["run_id"]) == (1, BOOT, log.run_id)
        assert one["clock_synced"] in (True, False, None)
        assert one["t_wall"].endswith("Z")
        assert len(one["t_wall"]) == len("2025-07-01T12:00:00.000Z")
    assert (records[1]["bad"], records[1]["worse"], records[1]["n"], records[1]["f"]) == (None, [None], 3, 0.5)
    assert records[3]["t_mono_ns"] == 77
    assert records[0]["t_mono_ns"] <= records[1]["t_mono_ns"]


def test_a_record_that_cannot_be_encoded_costs_only_itself(record, caplog) -> None:
    class Awkward:
        def __str__(self) -> str:
            raise RuntimeError("no")

    log = record()
    log.write("event", {"kind": Awkward()})
    log.write("window", window(1))
    log.flush()
    assert numbers(log.path) == [1]
    assert "could not be encoded" in caplog.text


def test_deep_values_are_cut_not_followed() -> None:
    value: Any = []
    for _ in range(2000):
        value = [value]
    assert len(encode({"deep": value})) < 20000


def test_runs_are_named_by_boot_and_a_counter_that_rises_over_boots(tmp_path: Path, record) -> None:
    assert record().run_id == "3fa9c1d2-000001"
    other = record(boot_id="00000000-1111-2222-3333-444444444444")
    assert other.run_id == "00000000-000002"
    made = tmp_path / "3fa9c1d2-000041"  # moved there whole: those two clear empty folders away
    made.mkdir()
    (made / "telemetry.jsonl.gz").write_bytes(gzip.compress(b"{}\n"))
    made.rename(tmp_path / "runs" / made.name)
    (tmp_path / "runs" / "unrelated").mkdir()
    assert record().run_id == "3fa9c1d2-000042"


def test_two_that_start_together_get_two_runs(tmp_path: Path, record, monkeypatch) -> None:
    real = runlog.runs
    monkeypatch.setattr(runlog, "runs", lambda folder: [])  # both looked before either made its folder
    ids = {record().run_id for _ in range(3)}
    monkeypatch.setattr(runlog, "runs", real)
    assert ids == {"3fa9c1d2-000001", "3fa9c1d2-000002", "3fa9c1d2-000003"}


def test_a_folder_that_cannot_be_made_is_told_with_its_cause(tmp_path: Path, record, monkeypatch, caplog) -> None:
    (tmp_path / "file").write_text("")
    log = record(log_dir=str(tmp_path / "file" / "runs"))
    assert (log.run_id, log.path, log.status()["path"]) == ("", "", None)
    assert log.status()["state"] == "waiting"
    assert "file/runs: cannot create the telemetry log" in caplog.text

    def denied(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    (tmp_path / "runs").mkdir()
    monkeypatch.setattr(os, "mkdir", denied)
    for name in ("runs", "new"):
        caplog.clear()
        log = record(log_dir=str(tmp_path / name))
        assert log.status()["error"] == "Permission denied"
        assert f"{name}: permission denied for the telemetry log" in caplog.text
    log.write("window", window(0))
    assert log.flush()
    assert log.status()["dropped_records"] == 0  # it waits in the buffer
    monkeypatch.undo()
    assert log.flush()
    assert numbers(log.path) == [0]
    assert log.status()["state"] == "ok"


def test_a_live_file_that_cannot_be_made_leaves_no_folders(tmp_path: Path, record, monkeypatch) -> None:
    real = os.open

    def full(path: Any, flags: int, *rest: Any, **named: Any) -> int:
        if str(path).endswith(runlog.LIVE):
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(path, flags, *rest, **named)

    monkeypatch.setattr(os, "open", full)
    log = record()
    for _ in range(3):
        assert log.flush()
    assert log.status()["state"] == "waiting"
    assert os.listdir(str(tmp_path / "runs")) == []
    monkeypatch.undo()
    assert log.flush()
    assert log.run_id == "3fa9c1d2-000001"


def test_an_empty_mount_point_is_not_filled(tmp_path: Path, record) -> None:
    point = tmp_path / "my disk"
    (point / "edgegs").mkdir(parents=True)  # left from a day when it was not mounted: the parent alone cannot tell
    fstab = tmp_path / "fstab"
    fstab.write_text(
        "# UUID=1 /commented ext4\n\nproc\nUUID=2 none swap sw 0 0\nUUID=3 / ext4 defaults 0 1\n"
        f"LABEL=logs {str(point).replace(' ', chr(92) + '040')}/ ext4 nofail 0 2\n"
    )
    log = record(log_dir=str(point / "edgegs" / "runs"), fstab=str(fstab))
    assert log.status()["error"] == f"nothing is mounted on {point}, which {fstab} names"
    assert os.listdir(str(point / "edgegs")) == []
    assert runlog.unmounted(str(tmp_path / "my disk 2"), str(fstab)) is None
    assert runlog.unmounted(str(point), str(tmp_path / "no such fstab")) is None
    if os.geteuid() == 0:
        (tmp_path / "link").symlink_to(point)
        assert runlog.unmounted(str(tmp_path / "link" / "x"), str(fstab)) == str(point)
    fstab.write_text("")
    assert log.flush()
    assert log.status()["state"] == "ok"


# ---- power loss -------------------------------------------------------------------------------------


def test_a_tail_torn_at_any_byte_is_dropped_and_nothing_else(tmp_path: Path, record) -> None:
    log = record()
    for number in range(3):
        log.write("window", window(number, text='quote " and {brace}'))
    log.close()
    data = Path(log.path).read_bytes()
    last = data.rindex(b"\n", 0, len(data) - 1) + 1
    torn = tmp_path / "torn.jsonl"
    for cut in range(last, len(data) + 1):
        torn.write_bytes(data[:cut])
        reader = read_log(str(torn))
        got = [one["number"] for one in reader]
        complete = cut >= len(data) - 1  # only the line break is missing: the record is whole
        assert got == ([0, 1, 2] if complete else [0, 1]), cut
        assert reader.torn == (0 if complete or cut == last else 1), cut
        assert reader.garbage == 0


def test_garbage_is_skipped_counted_and_named(tmp_path: Path) -> None:
    good = encode({"schema": 1, "type": "window", "number": 1})
    lines = [
        good,
        b"\n",
        b"\0\0\0\0\n",
        b"[1, 2]\n",
        b'{"schema": 1}\n',
        b'{"schema": 2, "type": "window"}\n',
        b'{"schema": 1, "type": "window", "x": NaN}\n',
        b"\xff\xfe\n",
        b"[" * 100000 + b"\n",
        b'{"a": ' + b"9" * 200000 + b"}\n",
        b"x" * (readlog.MAX_LINE + 5) + b"\n",
        good,
        b"\0" * 4096,
    ]
    path = tmp_path / "telemetry.jsonl"
    path.write_bytes(b"".join(lines))
    reader = read_log(str(path))
    assert [one["number"] for one in reader] == [1, 1]
    assert (reader.garbage, reader.torn) == (9, 1)
    assert reader.problems[0] == (str(path), 3, reader.problems[0][2])
    assert any("schema 2" in what for _, _, what in reader.problems)
    assert any("1 MiB" in what for _, _, what in reader.problems)


def test_problems_are_counted_beyond_those_that_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "telemetry.jsonl"
    path.write_bytes(b"junk\n" * 5000)
    reader = read_log(str(path))
    assert list(reader) == []
    assert reader.garbage == 5000
    assert len(reader.problems) == readlog.MAX_PROBLEMS


def test_a_torn_gzip_gives_what_is_whole(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    lines = b"".join(
        encode({"schema": 1, "type": "window", "number": n, "noise": rng.bytes(40).hex()}) for n in range(200)
    )
    packed = gzip.compress(lines)
    path = tmp_path / "telemetry-000001.jsonl.gz"
    for cut in (5, 100, len(packed) // 2, len(packed) - 4):
        path.write_bytes(packed[:cut])
        reader = read_log(str(path))
        got = [one["number"] for one in reader]
        assert got == list(range(len(got)))
        assert reader.torn == 1
    path.write_bytes(b"this is no gzip")
    reader = read_log(str(path))
    assert list(reader) == []
    assert reader.torn == 1


def test_missing_logs_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such log"):
        read_log(str(tmp_path / "none.jsonl"))
    with pytest.raises(InputError, match="no telemetry log in this folder"):
        read_log(str(tmp_path))
    (tmp_path / "3fa9c1d2-000007").mkdir()
    with pytest.raises(InputError, match=r"newest is .*3fa9c1d2-000007"):
        read_log(str(tmp_path))
    os.mkfifo(str(tmp_path / "fifo"))
    with pytest.raises(InputError, match="neither"):
        read_log(str(tmp_path / "fifo"))


# ---- rotation, compression, cap ---------------------------------------------------------------------


def fill(log: Recorder, count: int, first: int = 0) -> None:
    rng = np.random.default_rng(first)
    for number in range(first, first + count):
        log.write("window", window(number, noise=rng.bytes(60).hex()))
        if number % 20 == 19:
            assert log.flush()


def test_rotation_compresses_and_loses_nothing(record) -> None:
    log = record(rotate_mb=0.008, max_mb=10)
    log.write("start", {"board": "Nano"})
    fill(log, 200)
    assert log.flush()
    files = runlog.run_files(log.folder)
    assert len(files) > 4
    assert [file.path.endswith(".jsonl.gz") for file in files] == [True] * (len(files) - 1) + [False]
    assert os.path.getsize(log.path) <= 8000
    for file in files[:-1]:
        with gzip.open(file.path, "rb") as packed:
            data = packed.read()
        assert len(data) <= 8000
        assert json.loads(data.splitlines()[0])["type"] == "start"  # each file says what was running
    records = list(read_log(log.folder))
    assert [one["number"] for one in records if one["type"] == "window"] == list(range(200))
    starts = [one for one in records if one["type"] == "start"]
    assert [bool(one.get("repeated")) for one in starts] == [False] + [True] * (len(files) - 1)
    assert log.status()["dropped_records"] == 0


def test_a_name_noted_before_compression_still_reads(record) -> None:
    log = record(rotate_mb=0.004, max_mb=10)
    fill(log, 60)
    assert log.flush()
    first = runlog.run_files(log.folder)[0].path
    assert first.endswith(".gz")
    assert numbers(first[: -len(".gz")])[0] == 0


def test_the_cap_deletes_the_oldest_closed_files_first(tmp_path: Path, record) -> None:
    old = record(boot_id="ffffffff-0000-0000-0000-000000000000")
    fill(old, 40)
    old.close()
    foreign = tmp_path / "runs" / "ffffffff-000001" / "notes.txt"
    foreign.write_text("mine")
    log = record(max_mb=0.02)
    limit = 20_000
    deleted = []
    for step in range(12):
        fill(log, 20, first=step * 20)
        sizes = [file.size for _, folder in runlog.runs(str(tmp_path / "runs")) for file in runlog.run_files(folder)]
        assert sum(sizes) <= limit, step
        deleted.append(numbers(log.folder)[0] > 0)
    assert not os.path.exists(old.path)
    assert not os.path.exists(old.path + ".gz")
    assert foreign.exists()  # what is not ours stays, and so does its folder
    assert deleted[-1]
    assert numbers(log.path)[-1] == 239  # never the live one
    got = numbers(log.folder)
    assert got == list(range(got[0], 240))  # gone from the old end, without holes


def test_runs_of_a_restarting_service_do_not_pile_up(tmp_path: Path, record, monkeypatch) -> None:
    monkeypatch.setattr(runlog, "MAX_RUNS", 3)
    for _ in range(7):
        log = record()
        log.write("window", window(0))
        log.close()
    names = sorted(os.listdir(str(tmp_path / "runs")))
    assert names == ["3fa9c1d2-000005", "3fa9c1d2-000006", "3fa9c1d2-000007"]


def test_another_process_live_log_is_never_touched(tmp_path: Path, record) -> None:
    other = tmp_path / "runs" / "aaaaaaaa-000001"
    other.mkdir(parents=True)
    live = other / runlog.LIVE
    live.write_bytes(b"x" * 60_000)
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import fcntl, sys; f = open(sys.argv[1], 'ab'); fcntl.flock(f, fcntl.LOCK_EX);"
            "print('locked', flush=True); sys.stdin.read()",
            str(live),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        log = record(max_mb=0.05)
        fill(log, 100)
        assert live.stat().st_size == 60_000
    finally:
        holder.communicate(b"")
    assert not runlog.is_live(str(live))
    fill(log, 100, first=100)
    assert not live.exists()  # its process is gone: now it is an old run


def test_leftovers_of_a_crash_are_tidied_up(tmp_path: Path, record) -> None:
    old = record()
    fill(old, 20)
    old.close()
    temporary = Path(old.folder) / "telemetry-000001.jsonl.gz.tmp"
    temporary.write_bytes(b"half")
    log = record()
    log.write("window", window(0))
    assert log.flush()
    assert not temporary.exists()
    assert not os.path.exists(old.path)
    assert numbers(old.folder) == list(range(20))
    assert sorted(os.listdir(old.folder)) == [runlog.LIVE + ".gz"]


def test_a_source_left_beside_its_gzip_is_not_read_twice(record, tmp_path: Path) -> None:
    log = record()
    fill(log, 5)
    log.close()
    copy = Path(log.folder) / "telemetry-000001.jsonl"
    shutil.copy(log.path, str(copy))
    with gzip.open(str(copy) + ".gz", "wb") as packed:
        packed.write(copy.read_bytes())
    os.unlink(log.path)
    assert numbers(log.folder) == list(range(5))


def test_compression_that_fails_leaves_the_source(record, monkeypatch) -> None:
    log = record()
    fill(log, 5)
    log.close()
    path = runlog.closed_name(log.folder)
    os.rename(log.path, path)
    before = Path(path).read_bytes()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def stop() -> None:
        raise housekeeping.Stopped

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        housekeeping.compress(path, lambda: None)
    assert Path(path).read_bytes() == before
    monkeypatch.undo()
    with pytest.raises(housekeeping.Stopped):
        housekeeping.compress(path, stop)
    assert os.listdir(log.folder) == [os.path.basename(path)]


# ---- disks that fail --------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB, where this user may mount one."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    if os.geteuid() != 0 or not shutil.which("mount") or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("may not mount a tmpfs here: the interposed write covers the full disk")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=False, capture_output=True)


def test_a_full_disk_drops_telemetry_and_recovers(small_disk: Path, record, caplog) -> None:
    log = record(log_dir=str(small_disk / "runs"), max_mb=100)
    log.write("start", {"board": "Nano"})
    log.write("window", window(0))
    assert log.flush()
    filler = small_disk / "filler"
    with filler.open("wb", buffering=0) as file:
        while runlog.free_bytes(str(small_disk)):
            file.write(b"\0" * 4096)
    fill(log, 39, first=1)  # twice more than fits into what is left of the log's last page
    status = log.status()
    assert status["state"] == "failing"
    assert "space" in status["error"].lower()
    assert status["dropped_records"] > 0
    filler.unlink()
    log.write("window", window(1000))
    assert log.flush()
    assert log.flush()
    status = log.status()
    assert (status["state"], status["error"]) == ("ok", "")
    reader = read_log(log.path)
    records = list(reader)
    assert (reader.torn, reader.garbage) == (0, 0)  # the write that stopped half-way was taken back
    got = [one["number"] for one in records if one["type"] == "window"]
    assert got[0] == 0
    assert got[-1] == 1000
    recovered = [one for one in records if one.get("kind") == "log_recovered"]
    assert [one["dropped_records"] for one in recovered] == [status["dropped_records"]]
    assert len([one for one in caplog.records if "dropped so far" in one.getMessage()]) == 1  # rate-limited


def test_a_disk_that_is_unmounted_does_not_move_the_log_to_the_root_disk(small_disk: Path, record) -> None:
    log = record(log_dir=str(small_disk / "runs"))
    log.write("window", window(0))
    assert log.flush()
    subprocess.run(["umount", "-l", str(small_disk)], check=True)
    log.write("window", window(1))
    assert log.flush()
    assert "not mounted" in log.status()["error"]
    assert os.listdir(str(small_disk)) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EIO])
@pytest.mark.parametrize("can_truncate", [True, False])
def test_a_write_that_stops_half_way(record, monkeypatch, caplog, number: int, can_truncate: bool) -> None:
    log = record()
    log.write("window", window(0))
    assert log.flush()
    real_write, real_truncate = os.write, os.ftruncate
    failing = {"on": True, "calls": 0}

    def write(descriptor: int, data: bytes) -> int:
        if not failing["on"]:
            return real_write(descriptor, data)
        failing["calls"] += 1
        if failing["calls"] % 2:
            return real_write(descriptor, data[: len(data) // 3])
        raise OSError(number, os.strerror(number))

    def truncate(descriptor: int, size: int) -> None:
        if not can_truncate:
            raise OSError(number, os.strerror(number))
        real_truncate(descriptor, size)

    monkeypatch.setattr(recorder_module.os, "write", write)
    monkeypatch.setattr(recorder_module.os, "ftruncate", truncate)
    for attempt in (1, 2):
        log.write("window", window(attempt))
        assert log.flush()
    assert log.status()["state"] == "failing"
    assert log.status()["dropped_records"] == 2
    failing["on"] = False
    log.write("window", window(3))
    assert log.flush()
    reader = read_log(log.path)
    assert [one["number"] for one in reader if one["type"] == "window"] == [0, 3]
    assert reader.torn == 0
    assert (reader.garbage > 0) == (not can_truncate)
    assert len([one for one in caplog.records if "dropped so far" in one.getMessage()]) == 1


def test_the_start_record_is_not_lost_with_the_disk(record, monkeypatch) -> None:
    real_write = os.write
    failing = [True]

    def write(descriptor: int, data: bytes) -> int:
        if failing[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real_write(descriptor, data)

    monkeypatch.setattr(recorder_module.os, "write", write)
    log = record()
    log.write("start", {"board": "Nano"})
    assert log.flush()
    failing[0] = False
    log.write("window", window(1))
    assert log.flush()
    assert [one["type"] for one in read_log(log.path)][:2] == ["start", "window"]


def test_too_little_free_space_is_left_to_others(record, monkeypatch) -> None:
    free = [10**6]
    monkeypatch.setattr(runlog, "free_bytes", lambda folder: free[0])
    log = record(min_free_mb=5)
    log.write("window", window(0))
    assert log.flush()
    assert "less than 5 MB free" in log.status()["error"]
    free[0] = 10**9
    log.write("window", window(1))
    assert log.flush()
    assert numbers(log.path) == [1]


def test_a_deleted_log_folder_is_made_again(record) -> None:
    log = record()
    log.write("window", window(0))
    assert log.flush()
    shutil.rmtree(log.folder)
    log.write("window", window(1))
    assert log.flush()
    assert numbers(log.path) == [1]


def test_a_disk_that_hangs_blocks_nobody(record, monkeypatch, caplog) -> None:
    blocked, entered = threading.Event(), threading.Event()
    real_write = os.write

    def write(descriptor: int, data: bytes) -> int:
        entered.set()
        blocked.wait(20)
        return real_write(descriptor, data)

    log = record()
    monkeypatch.setattr(recorder_module.os, "write", write)
    log.write("start", {})
    assert entered.wait(10)
    for number in range(4000):
        log.write("window", window(number, pad="x" * 100))
    assert log._pending_bytes <= BUFFER_BYTES
    assert log.status()["dropped_records"] > 0
    assert not log.flush(timeout_s=0.01)
    assert not log.close(timeout_s=0.01)
    assert "does not answer" in caplog.text
    blocked.set()


def test_after_close_records_are_counted_not_raised(record) -> None:
    log = record()
    log.close()
    log.write("window", window(0))
    assert log.status()["dropped_records"] == 1


def test_closing_makes_the_log_durable(record, monkeypatch) -> None:
    synced = []
    real = os.fsync
    monkeypatch.setattr(recorder_module.os, "fsync", lambda descriptor: (synced.append(descriptor), real(descriptor)))
    log = record()
    log.write("window", window(0))
    log.close()
    assert synced
    assert numbers(log.path) == [0]
    with open(log.path, "rb") as file:  # the lock went with the descriptor
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
