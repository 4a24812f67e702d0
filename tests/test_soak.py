"""The short form of the soak, and what must fail it. ``make soak`` is the long one; its result is in the ledger."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from soak_judge import blocks, judge, quarters, theil_sen

SOAK = Path(__file__).resolve().with_name("soak.py")

#: Runs edgegs with a fault of each kind that a soak is there to find: with each reload a descriptor and a thread more,
#: and with each frame of the null: output memory that is never given back.
LEAKY = """
import os, sys, threading
import edgegs.daemon, edgegs.sinks.null
from edgegs.cli import main

kept = []

def write(self, frame):
    kept.append(bytearray(os.urandom(20000)))

def reloaded(self, *arguments, original=edgegs.daemon.Daemon._reloaded):
    kept.append(os.open("/dev/null", os.O_RDONLY))
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    original(self, *arguments)

edgegs.sinks.null.NullSink.write = write
edgegs.daemon.Daemon._reloaded = reloaded
sys.exit(main())
"""


def soak(tmp_path, *arguments):
    """(exit code, result, what it said) of a soak."""
    files = ["--json", str(tmp_path / "soak.json"), "--raw", str(tmp_path / "soak.jsonl.gz")]
    done = subprocess.run([sys.executable, str(SOAK), *arguments, *files], capture_output=True, timeout=180)
    assert (tmp_path / "soak.json").is_file(), done.stderr.decode()[-4000:]
    return done.returncode, json.loads((tmp_path / "soak.json").read_text()), done.stderr.decode()[-4000:]


def test_a_short_soak_passes(tmp_path, kernels):
    # caches still fill within so few frames: of memory only a gross leak shows here
    code, result, said = soak(
        tmp_path, "--frames", "3200", "--reloads", "17", "--clients", "60", "--fps", "400", "--slope-kb", "3000"
    )
    assert code == 0, said
    assert result["reloads"]["taken"] > 0
    assert result["reloads"]["taken"] + result["reloads"]["refused"] == 17
    assert result["http"]["answers"]["no-token"].get("401", 0) > 0
    assert result["http"]["answers"]["reader"].get("200", 0) > 0
    assert result["notices"]["READY"] == 18
    assert result["log"]["frames"] >= 3200


def test_leaks_do_not_pass(tmp_path, kernels):
    program = tmp_path / "leaky.py"
    program.write_text(LEAKY)
    asked = ("--frames", "1600", "--reloads", "16", "--clients", "0", "--slope-kb", "3000")
    code, result, _ = soak(tmp_path, *asked, "--program", str(program))
    assert code == 1
    found = " ".join(result["failures"])
    for what in ("RSS at rest", "RSS over all samples", "descriptors:", "threads:"):
        assert what in found, result["failures"]
    assert result["memory"]["rest"]["rss_kb"]["slope"] > 10000


@pytest.mark.parametrize(("leak_kb", "is_leak"), [(0.0, False), (0.5, False), (1.5, True), (2.0, True)])
def test_a_slope_of_the_bar_is_seen_in_noise(leak_kb, is_leak):
    rng = random.Random(7)
    points = []
    for i in range(300):
        spike = 900.0 if rng.random() < 0.1 else 0.0  # a wave of clients
        points.append((i * 0.6, 90000.0 + leak_kb * i * 0.6 + rng.gauss(0.0, 8.0) + spike))
    fit = theil_sen(blocks(points))
    assert (fit.slope >= 1.0) == is_leak
    assert fit.low <= leak_kb <= fit.high


def test_slopes_of_few_points():
    assert theil_sen([]).shown() == {"slope": None, "low": None, "high": None, "n": 0}
    assert theil_sen([(1.0, 2.0)]).shown()["slope"] is None
    assert theil_sen([(1.0, 2.0), (1.0, 3.0)]).shown()["slope"] is None
    assert theil_sen([(0.0, 0.0), (1.0, 2.0), (2.0, 4.0)]).slope == 2.0
    assert blocks([]) == []
    assert len(blocks([(float(i), 1.0) for i in range(1000)])) == 40


def rests(values):
    return [
        {"kind": "rest", "frames": 1000 * (i + 1), "descriptors": value, "threads": 9, "children": 1, "rss_kb": 90000}
        for i, value in enumerate(values)
    ]


def test_counts_are_compared_at_rest_after_the_warm_up():
    assert quarters(rests([40, 17, 17, 17, 17, 17, 17, 17, 17]), "descriptors", 2000) == ([17], [17])
    assert quarters(rests([17] * 8 + [18]), "descriptors", 2000) == ([17], [17, 18])
    assert quarters([], "descriptors", 0) == ([], [])


GOOD = {
    "asked": {"frames": 9000, "reloads": 9, "clients": 50},
    "frames": 9100,
    "reloads": {"taken": 7, "refused": 2},
    "http": {"clients": 50},
    "exit_code": 0,
    "end_s": 0.4,
    "tracebacks": 0,
    "zombies": 0,
    "orphans": [],
    "log": {"torn": 0, "garbage": 0, "stopped": True, "bytes": 10, "quota_bytes": 20},
    "missed": [],
}


def series(growth_kb=0.0):
    found = rests([17] * 9)
    found += [dict(one, kind="tick") for one in found]
    return [dict(one, rss_kb=90000 + growth_kb * one["frames"] / 1000.0) for one in found]


def test_a_good_run_passes():
    assert judge(GOOD, series(), 1.0)["passed"]
    assert judge(GOOD, series(0.9), 1.0)["passed"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"exit_code": 1}, "exit code 1"),
        ({"exit_code": None}, "exit code None"),
        ({"end_s": 10.5}, "the end took 10.5 s"),
        ({"tracebacks": 1}, "tracebacks"),
        ({"zombies": 2}, "zombies"),
        ({"orphans": ["gst-launch-1.0"]}, "outlived"),
        ({"frames": 8999}, "8999 frames instead of 9000"),
        ({"reloads": {"taken": 7, "refused": 1}}, "8 reloads"),
        ({"http": {"clients": 49}}, "49 HTTP clients"),
        ({"log": dict(GOOD["log"], torn=1)}, "cannot be read whole"),
        ({"log": dict(GOOD["log"], stopped=False)}, "cannot be read whole"),
        ({"log": dict(GOOD["log"], bytes=21)}, "its quota is 20"),
        ({"missed": ["reload 3 (size): was refused"]}, "was refused"),
    ],
)
def test_every_fault_fails_it(change, words):
    result = judge({**GOOD, **change}, series(), 1.0)
    assert not result["passed"]
    assert len(result["failures"]) == 1
    assert words in result["failures"][0]


def test_growth_fails_it():
    failures = judge(GOOD, series(1.0), 1.0)["failures"]
    assert len(failures) == 2
    assert all("grows by 1.0 KB a 1,000 frames; allowed are 1" in failure for failure in failures)


def test_it_ends_with_what_ends_by_itself(tmp_path, kernels):
    program = tmp_path / "short.py"
    program.write_text("import sys\nsys.exit(3)\n")
    code, result, _ = soak(tmp_path, "--frames", "100", "--reloads", "1", "--clients", "0", "--program", str(program))
    assert code == 1
    assert "it ended by itself, with exit code 3" in result["failures"]
