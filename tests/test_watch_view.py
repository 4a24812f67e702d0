"""``edgegs bench --watch``: as a page in a terminal, as lines elsewhere, of a running edgegs and of a measurement."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Tuple

import numpy as np
import pytest
import web_support

from edgegs.bench.bench import Sample, measure
from edgegs.cli import main, watch_view
from edgegs.cli.watch_view import BenchView, History, Screen, line, page, spark

ROOT = Path(__file__).resolve().parent.parent
STATUS: Dict[str, Any] = {
    "scene": "/s/lobby.ply",
    "state": "drawing",
    "backend": "cuda",
    "device": "NVIDIA Tegra X1",
    "variant": "dual",
    "width": 640,
    "height": 480,
    "fps": 29.84,
    "frame_ms": {"p50": 31.2, "p95": 33.0, "max": 40.0, "mean": 31.3},
    "stages": {"sort": {"p50": 5.25, "p95": 6.0}, "rasterize": {"p50": 20.1, "p95": 22.0}, "project": {"p50": 2.0}},
    "temp_c": {"CPU-therm": 50.5, "GPU-therm": 88.0},
    "power_w": {"POM_5V_IN": 6.82},
    "throttle": ["gpu_clock"],
    "outputs": [
        {"name": "lobby", "state": "up", "frames_written": 812, "frames_dropped": 3},
        {"uri": "display://0", "state": "retrying", "frames_written": 0, "last_error": "no screen [bold]"},
    ],
}


def rendered(drawn: Any, width: int = 110) -> str:
    console = pytest.importorskip("rich.console", reason="rich is not installed: the page is not tested")
    file = io.StringIO()
    console.Console(file=file, width=width, force_terminal=False).print(drawn)
    return file.getvalue()


# ---- what is shown ---------------------------------------------------------------------------------------------


def test_a_line_tells_what_matters() -> None:
    assert line(STATUS)[9:] == (
        "drawing, 29.8 FPS, 31.2 ms, stages project 2.00 sort 5.25 rasterize 20.10, POM_5V_IN 6.82 W, "
        "GPU-therm 88.0 °C, THROTTLED: gpu_clock, 1 of 2 outputs up (display://0 not)"
    )


GOVERNED: Dict[str, Any] = dict(
    STATUS,
    governor={
        "rung": 3, "of": 14, "scale": 0.85, "n_splats": 175000, "sh_degree": 2, "fps_cap": None, "reason": "x",
        "steps": {"down": 1, "up": 0},
        "limits": {
            "temp": {"bound": 80.0, "value": None, "state": "absent", "held": None},
            "power": {"bound": 6.0, "value": 6.8216, "state": "present", "held": False},
            "fps": {"bound": 25.0, "value": 29.84, "state": "present", "held": True},
        },
    },
)  # fmt: skip


def test_a_line_tells_what_the_governor_does() -> None:
    assert (
        "governor: step 3 of 14, 85 % of the size, 175,000 splats, SH degree 2, temp at most 80 °C, not measured, "
        "power at most 6 W, now 6.8, NOT HELD, fps at least 25 FPS, now 29.8, 1 of 2 outputs up"
    ) in line(GOVERNED)
    assert "governor: nothing given up," in line(dict(GOVERNED, governor=dict(GOVERNED["governor"], rung=0)))
    assert "governor" not in line(STATUS)


def test_a_page_tells_what_the_governor_does() -> None:
    text = rendered(page(GOVERNED, History()))
    for part in ("step 3 of 14, 85 % of the size", "at most 80 °C, not measured", "now 6.8, NOT HELD", "now 29.8\n"):
        assert part in re.sub(" +\n", "\n", text), part


def test_a_page_tells_all() -> None:
    history = History()
    history.add(STATUS, 100.0)
    later = json.loads(json.dumps(STATUS))
    later["outputs"][0]["frames_written"] = 842
    history.add(later, 101.0)
    text = rendered(page(later, history))
    for part in ("drawing", "lobby.ply", "640×480", "29.8 FPS", "31.2 ms (p95 33.0)", "6.82 W", "88.0 °C", "gpu_clock"):
        assert part in text, part
    rows = {row.split()[0]: row for row in text.splitlines() if row.strip()}
    assert list(rows).index("project") < list(rows).index("sort") < list(rows).index("rasterize")
    assert rows["rasterize"].count("█") == 28
    assert rows["sort"].count("█") == round(28 * 5.25 / 20.1)
    assert rows["lobby"].split()[1:5] == ["up", "842", "30.0", "3"]
    assert "no screen [bold]" in text  # not taken as markup


@pytest.mark.parametrize(
    "status",
    [
        {},
        {"fps": None, "stages": [], "outputs": 7, "power_w": {"a": None}, "temp_c": "x", "throttle": 3, "state": 1},
        {"stages": {"sort": 5, "x\x1b[2J": {"p50": 1.0}}, "outputs": [None, {}], "governor": {"step": 2, "x": []}},
        {"governor": {"rung": 1, "of": 2, "scale": None, "limits": {"\x1b[2J": {"bound": 1, "state": 3}, "x": None}}},
        {"governor": {"rung": 1, "of": "\x1b", "limits": {"fps": {"bound": 5, "state": "present", "held": "\x1b"}}}},
        {"state": "loading \x1b[31m", "temp_c": {"\x1b]0;x": 1e300}, "power_w": {"n": float("nan")}},
    ],
)
def test_what_is_not_as_it_should_be_is_left_out(status: Dict[str, Any]) -> None:
    history = History()
    history.add(status, 1.0)
    history.add(status, 2.0)
    for text in (line(status), rendered(page(status, history))):
        assert "\x1b" not in text


def test_small_charts() -> None:
    assert spark([0, 5, 10]) == "▁▄█"
    assert spark([None, 1.0]) == " █"
    assert spark([25.0, 27.5, 30.0]) == "▂▅█"  # small changes are seen
    assert spark([]) == spark([0.0, 0.0]) == ""
    assert len(spark([1.0] * 100)) == 30
    history = History()
    for second in range(2 * watch_view.KEPT):
        history.add({"fps": float(second)}, float(second))
    assert len(history.series["fps"]) == watch_view.KEPT


def test_a_restarted_output_has_no_negative_rate() -> None:
    history = History()
    for second, written in enumerate((100, 130, 2, 32)):
        history.add({"outputs": [{"name": "a", "frames_written": written}]}, float(second))
        assert history.rates.get("a") in (None, 30.0)
    assert history.rates == {"a": 30.0}


# ---- of a running edgegs ---------------------------------------------------------------------------------------


def test_lines_where_there_is_no_terminal(capsys: pytest.CaptureFixture) -> None:
    with web_support.serving() as start:
        sink = start(status=lambda: STATUS)
        assert main(["bench", "--watch", "--url", f"http://127.0.0.1:{sink.port}", "--duration", "0.1"]) == 0
    (told,) = capsys.readouterr().out.splitlines()
    assert re.match(r"\d\d:\d\d:\d\d drawing, 29\.8 FPS", told)


def test_nothing_runs_there(capsys: pytest.CaptureFixture) -> None:
    with web_support.serving() as start:
        port = start(status=lambda: STATUS).port
    assert main(["bench", "--watch", "--url", f"http://127.0.0.1:{port}"]) == 69
    assert "nothing listens there" in capsys.readouterr().err


def test_one_that_goes_away_is_waited_for(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: List[Any] = [STATUS, watch_view.DeviceError("it is gone"), STATUS]

    def fetch(_: Any) -> Dict[str, Any]:
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr("edgegs.cli.status.fetch", fetch)
    monkeypatch.setattr(
        watch_view.Screen,
        "__init__",
        lambda self: self.__dict__.update(_line_every_s=0.0, _said=float("-inf"), _live=None),
    )
    assert watch_view.watch(None, duration_s=0.2, every_s=0.03) == 0  # type: ignore[arg-type]
    told = capsys.readouterr().out.splitlines()
    assert told[1] == "it is gone"
    assert "29.8 FPS" in told[0]
    assert "29.8 FPS" in told[2]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--watch", "--outputs", "null:"], "leave --outputs"),
        (["--watch", "--json"], "--json"),
        (["--url", "http://127.0.0.1:1"], "of a running edgegs"),
        (["dial", "--watch", "--token-file", "x"], "without a scene"),
    ],
)
def test_what_does_not_go_together(arguments: List[str], says: str, capsys: pytest.CaptureFixture) -> None:
    assert main(["bench", *arguments]) == 2
    assert says in capsys.readouterr().err


def test_a_page_in_a_real_terminal() -> None:
    """A pseudo-terminal: the page is drawn on a screen of its own, and the terminal is as before afterwards."""
    pytest.importorskip("rich", reason="rich is not installed: the page is not tested")
    with web_support.serving() as start:
        sink = start(status=lambda: STATUS)
        command = [sys.executable, "-m", "edgegs", "bench", "--watch", "--duration", "0.3"]
        command += ["--url", f"http://127.0.0.1:{sink.port}"]
        code, out = _in_terminal(command)
    assert code == 0
    assert "29.8 FPS" in out
    assert "rasterize" in out
    assert out.index("\x1b[?1049h") < out.index("29.8 FPS") < out.index("\x1b[?1049l")
    assert "Traceback" not in out


def _in_terminal(command: List[str]) -> Tuple[int, str]:
    ours, theirs = pty.openpty()
    environment = dict(os.environ, TERM="xterm-256color", COLUMNS="100", LINES="40", PYTHONPATH=str(ROOT))
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
    )
    os.close(theirs)
    seen, limit = b"", time.monotonic() + 60
    try:
        while time.monotonic() < limit:
            if not select.select([ours], [], [], 1.0)[0]:
                continue
            try:
                part = os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            seen += part
        return process.wait(30), seen.decode("utf-8", "replace")
    finally:
        process.kill()
        process.wait()
        os.close(ours)


# ---- of a measurement ------------------------------------------------------------------------------------------


class Contender:
    in_flight = 1

    def __init__(self, name: str, sort_ms: float) -> None:
        self.name, self._sort_ms = name, sort_ms
        self.drawn = 0

    def draw(self) -> Sample:
        self.drawn += 1
        return Sample({"sort": self._sort_ms, "rasterize": 10.0}, self._sort_ms + 10.0, 20.0)

    def queued_ms(self, n_frames: int) -> None:
        return None

    def picture(self) -> np.ndarray:
        return np.zeros((1, 1, 3), np.uint8)


def test_a_measurement_is_watched_and_not_changed() -> None:
    pytest.importorskip("rich", reason="rich is not installed: the page is not tested")
    plain, watched = ([Contender("baseline", 8.0), Contender("best", 2.0)] for _ in range(2))
    pages: List[str] = []

    class Kept(Screen):
        def show(self, make_page: Any, make_line: Any) -> None:
            pages.append(rendered(make_page()) + make_line())

    view = BenchView("64x48, 2 variants", watched, Kept())
    seen = measure(view.watched, 2, 25, view)  # type: ignore[arg-type]
    expected = measure(plain, 2, 25)  # type: ignore[arg-type]
    assert [one.samples for one in seen] == [one.samples for one in expected]
    assert [one.rounds for one in seen] == [one.rounds for one in expected]
    assert [one.drawn for one in watched] == [one.drawn for one in plain]
    assert seen[1].contender.name == "best"
    assert len(pages) >= 3
    assert re.search(r"baseline\s+18\.00 ms", pages[-1])
    assert "best 12.00 ms" in pages[-1]
    assert re.search(r"sort\s+2\.00 ms", pages[-1])
