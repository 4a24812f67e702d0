"""Kills recorders at random moments and looks at what is left. A program of its own, because it forks.

    python tests/power_cuts.py FOLDER KILLS SEED      prints what it met as JSON; fails with a message

A child ("life") records as fast as it can into files of a few kilobytes, so that it is mostly rotating, compressing
and pruning, or mending what the life before left. It notes in shared memory which record is acknowledged: ``flush``
has returned and the recorder's state is "ok". Then it is killed, at a moment that nobody chose.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import random
import signal
import struct
import sys
import time
from pathlib import Path
from typing import Dict, List

from edgegs.bench import report
from edgegs.errors import EdgegsError
from edgegs.telemetry import runlog
from edgegs.telemetry.readlog import read_log
from edgegs.telemetry.recorder import Recorder

MAX_MB, ROTATE_MB = 0.15, 0.006

#: Kills come this late, seconds: after the fork, or, every other time, after the first acknowledged record.
LATEST_S = 0.015

_DEATH_SIGNAL = 1  # prctl(2): PR_SET_PDEATHSIG


def live(log_dir: str, life: int, shared: mmap.mmap) -> None:
    """Record until killed."""
    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)
    recorder = Recorder(log_dir, max_mb=MAX_MB, rotate_mb=ROTATE_MB, flush_s=0.001, min_free_mb=0.0, sync_s=0.0)
    noise = random.Random(life)
    recorder.write("start", {"life": life, "interval_s": 1.0})
    number, end = 0, time.monotonic() + 10
    while time.monotonic() < end:
        for _ in range(noise.randrange(1, 20)):
            filler = f"{noise.getrandbits(512):0128x}"
            recorder.write("window", {"life": life, "number": number, "window_s": 1.0, "filler": filler})
            number += 1
        if not recorder.flush() or recorder.status()["state"] != "ok" or recorder.status()["dropped_records"]:
            os._exit(3)
        struct.pack_into("q", shared, 0, number)
    os._exit(4)


def check(log_dir: Path, acknowledged: List[int], met: Dict[str, int]) -> None:
    """Everything that is left is readable and whole, and lacks at most what the cap took from the old end."""
    lives: Dict[int, List[int]] = {}
    size = 0
    for _, folder in runlog.runs(str(log_dir)):
        names = os.listdir(folder)
        size += sum(os.path.getsize(os.path.join(folder, name)) for name in names)
        met["temporaries"] += any(name.endswith(".tmp") for name in names)
        met["twins"] += any(name + ".gz" in names for name in names)
        met["empty"] += not any(os.path.getsize(os.path.join(folder, name)) for name in names)
        if not runlog.run_files(folder):
            continue
        reader = read_log(folder)
        for record in reader:
            if record["type"] == "window":
                lives.setdefault(record["life"], []).append(record["number"])
        met["torn"] += reader.torn
        assert reader.garbage == 0, reader.problems
        assert reader.torn <= 1, reader.problems
        assert all(path.endswith(runlog.LIVE) or "gz" in path for path, _, _ in reader.problems), reader.problems
    assert size <= MAX_MB * 1e6, f"{size} bytes"
    if not lives:
        assert not any(acknowledged)
        return
    oldest = min(lives)
    met["pruned"] += oldest > 0 or lives[oldest][0] > 0
    for life, count in enumerate(acknowledged):
        found = lives.get(life, [])
        if life < oldest:
            continue
        first = found[0] if life == oldest and found else 0
        assert found == list(range(first, first + len(found))), f"life {life} has holes: {found}"
        assert first + len(found) >= count, f"life {life} lost acknowledged records: {len(found)} of {count}"


def report_on(folder: str, count: int) -> None:
    """``edgegs report`` reads it; a run without a record may say so, if none was acknowledged."""
    try:
        got = report.summary(report.read(folder).runs[0])
    except EdgegsError:
        assert count == 0, f"{folder}: no report, of {count} records"
        return
    assert got["lost_records"] == 0
    assert got["ended"]


def main(log_dir: Path, kills: int, seed: int) -> Dict[str, int]:
    moments = random.Random(seed)
    shared = mmap.mmap(-1, 8)
    acknowledged: List[int] = []
    met = dict.fromkeys(("temporaries", "twins", "empty", "torn", "pruned", "records"), 0)
    for life in range(kills):
        struct.pack_into("q", shared, 0, 0)
        child = os.fork()
        if child == 0:
            try:
                live(str(log_dir), life, shared)
            finally:
                os._exit(5)
        end = time.monotonic() + 10
        while life % 2 and not struct.unpack_from("q", shared, 0)[0] and time.monotonic() < end:
            time.sleep(0.0005)
        time.sleep(moments.uniform(0.0, LATEST_S))
        os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
        assert os.WIFSIGNALED(status), f"life {life} ended by itself: {os.WEXITSTATUS(status)}"
        acknowledged.append(struct.unpack_from("q", shared, 0)[0])
        met["records"] += acknowledged[-1]
        if log_dir.is_dir():
            check(log_dir, acknowledged, met)
            found = runlog.runs(str(log_dir))
            if found and (acknowledged[-1] or life % 10 == 0):
                report_on(found[-1][1], acknowledged[-1])
    return met


if __name__ == "__main__":
    json.dump(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])), sys.stdout)
