"""Progress: silent while work is quick, a bar on a terminal, a line now and then elsewhere; the time left is right."""

from __future__ import annotations

import io
import sys

import pytest

import edgegs.cli.progress
from edgegs.cli.progress import Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 100.0

    monkeypatch.setattr(edgegs.cli.progress.time, "monotonic", lambda: Clock.now)
    return Clock


def run(monkeypatch, clock, stream, n, seconds_each, progress=None):
    monkeypatch.setattr(sys, "stderr", stream)
    progress = progress or Progress("scoring", "view")
    for done in range(1, n + 1):
        clock.now += seconds_each
        progress(done, n)
    return progress


def test_what_is_quick_says_nothing(monkeypatch, clock):
    for stream in (io.StringIO(), Terminal()):
        run(monkeypatch, clock, stream, 10, 0.05)
        assert stream.getvalue() == ""


def test_lines_come_now_and_then_with_the_time_left(monkeypatch, clock):
    stream = io.StringIO()
    run(monkeypatch, clock, stream, 100, 1.0)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 9
    assert lines[0] == "edgegs: scoring: view 11 of 100, 1 min 29 s left"
    assert lines[-1] == "edgegs: scoring: view 91 of 100, 9 s left"


def test_a_terminal_gets_one_line_that_changes_and_ends(monkeypatch, clock):
    stream = Terminal()
    run(monkeypatch, clock, stream, 100, 1.0)
    text = stream.getvalue()
    assert text.count("\n") == 1
    assert text.endswith("scoring: view 100 of 100 [" + "#" * 24 + "]\x1b[K\n")
    assert "50 of 100, 50 s left [############............]" in text


def test_one_object_serves_several_steps(monkeypatch, clock):
    stream = io.StringIO()
    progress = run(monkeypatch, clock, stream, 20, 1.0)
    progress.retitle("merging")
    run(monkeypatch, clock, stream, 20, 2.0, progress)
    lines = stream.getvalue().splitlines()
    assert lines[-1].startswith("edgegs: merging: view ")
    assert lines[-1].endswith(" s left") or lines[-1].endswith("20 of 20")
