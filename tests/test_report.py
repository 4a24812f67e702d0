"""``edgegs report``: figures, page and errors, from logs made record by record."""

from __future__ import annotations

import argparse
import errno
import html.parser
import json
import os
import random
import re
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import numpy as np
import pytest

from edgegs.bench import report, report_data, report_plots
from edgegs.bench.report_series import MAX_BINS, MAX_NAMES, Distribution, TimeBins
from edgegs.cli import report as verb
from edgegs.errors import EdgegsError
from edgegs.frame import STAGES, Frame
from edgegs.telemetry import Telemetry
from edgegs.telemetry.recorder import encode
from edgegs.telemetry.window import figures

SECOND = 10**9
STAGE_MS = {"project": 2.0, "duplicate": 1.0, "sort": 5.0, "ranges": 0.5, "rasterize": 10.0}


class LogMaker:
    """Writes the records of one run to a file."""

    def __init__(self, path: Path, run_id: str = "3fa9c1d2-000012") -> None:
        self.path, self.run_id, self.seq = path, run_id, 0
        path.write_bytes(b"")

    def add(self, record_type: str, second: float, **fields: Any) -> None:
        record = {
            "schema": 1,
            "type": record_type,
            "seq": self.seq,
            "boot_id": "3fa9c1d2-77aa-4b01-9d2e-0a1b2c3d4e5f",
            "run_id": self.run_id,
            "t_mono_ns": int((500 + second) * SECOND),
            "t_wall": "2025-07-01T12:00:00.000Z",
            "clock_synced": True,
        }
        self.seq += 1
        with self.path.open("ab") as file:
            file.write(encode(dict(record, **fields)))

    def window(self, second: float, frames: int = 50, factor: float = 1.0, **fields: Any) -> None:
        def all_equal(value: float) -> Dict[str, float]:
            return dict.fromkeys(("p50", "p95", "max", "mean"), value)

        record: Dict[str, Any] = {
            "window_s": 1.0,
            "frames": frames,
            "dropped": {},
            "redraws": 0,
            "stage_ms": {stage: all_equal(value * factor) for stage, value in STAGE_MS.items()},
            "frame_ms": all_equal(20.0 * factor),
            "power_w": {"POM_5V_IN": {"w": 5.0, "method": "ina3221_iio"}, "POM_5V_GPU": {"w": 2.0}},
            "energy_j": {"POM_5V_IN": 5.0, "POM_5V_GPU": 2.0},
            "total_rail": "POM_5V_IN",
            "temp_c": {"CPU-therm": 40.0, "GPU-therm": 38.5},
            "clk_hz": {"gpu": 921600000},
            "throttle": [],
            "mem": {"rss_bytes": 100_000_000},
        }
        self.add("window", second, **dict(record, **fields))


@pytest.fixture
def log(tmp_path: Path) -> LogMaker:
    return LogMaker(tmp_path / "telemetry.jsonl")


@pytest.fixture
def steady(log: LogMaker) -> LogMaker:
    """130 s: 100 s at 50 FPS, then 30 s at 25 FPS; a client was too slow, the buffer grew once."""
    log.add("start", 0, board="NVIDIA Jetson Nano Developer Kit", scene={"path": "/s/dial.ply", "n_splats": 25000},
            backend="cuda", variant="baseline", interval_s=1.0)  # fmt: skip
    for second in range(1, 131):
        slow = second > 100
        log.window(
            second,
            frames=25 if slow else 50,
            factor=2.0 if slow else 1.0,
            redraws=1 if second == 1 else 0,
            dropped={"mjpeg": {"slow": 2}} if second % 10 == 0 else {},
            temp_c={"CPU-therm": 40.0 + second / 100, "GPU-therm": 38.5},
        )
    log.add("stop", 130.5, reason="SIGTERM")
    return log


def run(*arguments: Any) -> int:
    """The verb as the command line runs it; a deliberate error gives its exit code."""
    parser = argparse.ArgumentParser()
    verb.add_parser(parser.add_subparsers()).set_defaults(main=verb.main)
    args = parser.parse_args(["report", *map(str, arguments)])
    try:
        return args.main(args)
    except EdgegsError as error:
        print(str(error).replace("\n", " two lines "), file=sys.stderr)
        return error.exit_code


# ---- figures ----------------------------------------------------------------------------------------


def test_figures_of_a_steady_run(steady: LogMaker) -> None:
    got = report.summary(report.read(str(steady.path)).runs[0])
    frames = 100 * 50 + 30 * 25
    assert (got["frames"], got["seconds"], got["redraws"]) == (frames, 130.0, 1)
    assert got["fps"] == pytest.approx(frames / 130, abs=1e-3)
    assert got["dropped"] == {"mjpeg": {"slow": 26}}
    mean = (5000 * 20 + 750 * 40) / frames
    assert got["frame_ms"] == {"p50": 20.0, "p95": 40.0, "max": 40.0, "mean": pytest.approx(mean, abs=1e-3)}
    assert list(got["stage_ms"]) == list(STAGES)
    for stage, value in STAGE_MS.items():
        assert got["stage_ms"][stage]["p50"] == value
        assert got["stage_ms"][stage]["p95"] == 2 * value
        assert got["stage_share"][stage] == pytest.approx(value / 20, abs=1e-4)
    assert got["temp_c"]["CPU-therm"]["min"] == pytest.approx(40.01)
    assert got["temp_c"]["CPU-therm"]["max"] == pytest.approx(41.3)
    power = got["power"]["POM_5V_IN"]
    assert (power["mean_w"], power["energy_j"], power["method"]) == (5.0, 650.0, "ina3221_iio")
    assert power["joules_per_frame"] == pytest.approx(650 / frames, abs=1e-5)
    assert got["total_rail"] == "POM_5V_IN"  # 5 W, not 5 + 2
    assert (got["power_doubts"], got["throttled_s"], got["lost_records"], got["gaps"]) == ([], 0.0, 0, 0)
    assert got["ended"] == "SIGTERM"


def test_the_table_says_the_same(steady: LogMaker, capsys: pytest.CaptureFixture) -> None:
    assert run(steady.path) == 0
    out = capsys.readouterr().out
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line.strip()}
    assert rows["sort"] == ["5.00", "10.00", "10.00", "5.65", "25.0%"]
    assert rows["frame"] == ["20.00", "40.00", "40.00", "22.61", "100.0%"]
    assert rows["other"] == ["1.70", "7.5%"]
    assert "44.23 mean, 5750 frames, 1 redraws" in out
    assert "mjpeg: 26 (26 slow)" in out
    assert "CPU-therm: 40.0 to 41.3 C" in out
    assert "POM_5V_IN: 5.000 W mean, 0.1130 J a frame" in out
    assert "total is POM_5V_IN" in out
    assert "INVALID" not in out
    assert "never seen" in out


def test_json_is_one_object(steady: LogMaker, capsys: pytest.CaptureFixture) -> None:
    assert run(steady.path, "--json") == 0
    got = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert got["runs"][0]["frames"] == 5750
    assert got["unusable_lines"] == {str(steady.path): {"torn": 0, "garbage": 0}}


def test_pooled_percentiles_are_close_to_those_of_all_frames() -> None:
    rng = np.random.default_rng(17)
    everything: List[float] = []
    pooled = Distribution()
    for second in range(200):
        level = 20 + 8 * np.sin(second / 30)
        frames = rng.gamma(60, level / 60, rng.integers(10, 60))
        everything += list(frames)
        pooled.add(figures(list(frames)), len(frames))
    assert pooled.frames == len(everything)
    for share in (0.5, 0.95):
        assert pooled.percentile(share) == pytest.approx(np.percentile(everything, 100 * share), rel=0.03)
    assert pooled.max == pytest.approx(max(everything), abs=1e-3)
    assert pooled.mean == pytest.approx(np.mean(everything), rel=1e-4)


def test_one_frame_a_window_is_exact() -> None:
    rng = np.random.default_rng(23)
    frames = rng.uniform(300, 900, 101)
    pooled = Distribution()
    for value in frames:
        pooled.add(figures([float(value)]), 1)
    for share in (0.5, 0.95):
        exact = np.sort(frames)[int(np.ceil(share * 101)) - 1]
        assert pooled.percentile(share) == pytest.approx(exact, rel=6e-4)


def test_without_power_it_says_absent_or_unreadable(log: LogMaker, capsys: pytest.CaptureFixture) -> None:
    log.add("start", 0)
    log.window(1, power_w={}, energy_j={}, total_rail=None, temp_c={}, throttle=None)
    assert run(log.path) == 0
    out = capsys.readouterr().out
    assert "power        absent: no power monitor" in out
    assert "temperature  absent" in out
    assert "throttled    unknown" in out
    assert " W mean" not in out
    other = LogMaker(log.path.parent / "other.jsonl")
    other.add("start", 0, sensors={"ina3221": {"state": "unreadable", "cause": "permission denied"}})
    other.window(1, power_w={}, energy_j={})
    assert run(other.path) == 0
    assert "power        unreadable: permission denied" in capsys.readouterr().out


def test_rails_without_a_total_are_not_added(log: LogMaker, capsys: pytest.CaptureFixture) -> None:
    rails = {"VDD_GPU_SOC": 4.0, "VDD_CPU_CV": 2.0, "VIN_SYS_5V0": 3.0}
    log.window(1, energy_j=rails, power_w={rail: {"w": w, "method": "m"} for rail, w in rails.items()}, total_rail=None)
    got = report.summary(report.read(str(log.path)).runs[0])
    assert {rail: one["mean_w"] for rail, one in got["power"].items()} == rails
    assert got["total_rail"] is None
    assert run(log.path) == 0
    assert "rails are not added" in capsys.readouterr().out


def test_energy_counts_only_windows_that_have_it(log: LogMaker) -> None:
    log.window(1)
    log.window(2, energy_j={}, power_w={})
    log.window(3)
    power = report.summary(report.read(str(log.path)).runs[0])["power"]["POM_5V_IN"]
    assert (power["mean_w"], power["seconds"], power["joules_per_frame"]) == (5.0, 2.0, 0.1)


@pytest.mark.parametrize(
    ("spoil", "doubt"),
    [
        ({"throttle": ["cooling:gpu-balanced"]}, r"throttled for 20 of 130 s \(cooling:gpu-balanced\)"),
        ({"clk_hz": {"gpu": 614400000}}, "clock moved although it was pinned"),
        ({"temp_c": {"CPU-therm": 60.0}}, r"not settled: CPU-therm rose by 20\.0 C"),
        (None, "gaps of more than three windows"),
    ],
)
def test_reasons_to_doubt_the_power(log: LogMaker, spoil: Optional[Dict[str, Any]], doubt: str) -> None:
    log.add("start", 0, gpu_clock_pinned=True, interval_s=1.0)
    for second in range(1, 131):
        log.window(second + (5 if spoil is None and second > 60 else 0), **(spoil or {} if second > 110 else {}))
    doubts = report.summary(report.read(str(log.path)).runs[0])["power_doubts"]
    assert len(doubts) == 1
    assert re.search(doubt, doubts[0])


def test_a_short_run_is_doubted(log: LogMaker) -> None:
    log.window(1)
    assert report.read(str(log.path)).runs[0].power_doubts() == ["only 1 s measured, fewer than 120"]


def test_missing_numbers_are_lost_records(log: LogMaker) -> None:
    log.window(1)
    log.seq += 7
    log.window(2)
    assert report.summary(report.read(str(log.path)).runs[0])["lost_records"] == 7


def test_a_rotated_run_is_one_run(tmp_path: Path) -> None:
    folder = tmp_path / "3fa9c1d2-000012"
    folder.mkdir()
    first = LogMaker(folder / "telemetry-000001.jsonl")
    first.add("start", 0, board="Nano")
    first.window(1)
    second = LogMaker(folder / "telemetry.jsonl")
    second.add("start", 0, board="Nano", repeated=True)
    second.seq = 2
    second.window(2)
    runs = report.read(str(folder)).runs
    assert [(one.frames, one.lost, one.start["board"]) for one in runs] == [(100, 0, "Nano")]


def test_a_log_without_a_stop_says_what_that_may_mean(log: LogMaker) -> None:
    log.window(1)
    assert "without power" in report.summary(report.read(str(log.path)).runs[0])["ended"]


def test_curves_join_their_points_and_keep_their_means() -> None:
    bins = TimeBins()
    values = np.random.default_rng(2).uniform(10, 30, 5000)
    for second, value in enumerate(values):
        bins.add(second + 0.5, ("fps", ""), float(value), 1.0)
    times, extents = bins.curve("fps", "")
    assert len(times) <= MAX_BINS
    assert bins.width_s == 16.0
    assert extents[0].mean == pytest.approx(values[:16].mean())
    assert (extents[3].low, extents[3].high) == (values[48:64].min(), values[48:64].max())


# ---- bad input --------------------------------------------------------------------------------------


def test_exit_codes(tmp_path: Path, steady: LogMaker, capsys: pytest.CaptureFixture, monkeypatch) -> None:
    assert run(tmp_path / "none.jsonl") == 66
    assert "none.jsonl: no such log" in capsys.readouterr().err
    empty = tmp_path / "empty.jsonl"
    empty.write_bytes(b"")
    assert run(empty) == 65
    assert "it is empty" in capsys.readouterr().err
    empty.write_bytes(b"not json\n")
    assert run(empty) == 65
    assert "empty.jsonl:1" in capsys.readouterr().err
    assert run(steady.path, "-o", tmp_path / "no" / "such" / "out.html") == 73
    assert run(steady.path, "-o", tmp_path) == 73  # a folder
    assert "cannot write the report" in capsys.readouterr().err

    def denied(*_: Any, **__: Any) -> Tuple[int, str]:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(report.tempfile, "mkstemp", denied)
    assert run(steady.path, "-o", tmp_path / "out.html") == 77
    assert "two lines" not in capsys.readouterr().err
    assert [name for name in os.listdir(str(tmp_path)) if name.startswith(".")] == []


def test_torn_and_garbage_lines_are_counted_and_named(steady: LogMaker, capsys: pytest.CaptureFixture) -> None:
    lines = steady.path.read_bytes().splitlines(keepends=True)
    lines.insert(5, b"garbage\n")
    steady.path.write_bytes(b"".join(lines)[:-20])
    assert run(steady.path) == 0
    captured = capsys.readouterr()
    assert "1 torn and 1 unusable lines" in captured.err
    assert "telemetry.jsonl:6: no JSON record" in captured.err
    assert "telemetry.jsonl:133: the last line is torn" in captured.err
    assert "5750 frames" in captured.out


def test_a_log_cannot_steer_the_terminal(log: LogMaker, capsys: pytest.CaptureFixture) -> None:
    log.run_id = "\x1b[2Jrun\n"
    log.add("start", 0, board="\x1b]0;title\x07", scene={"path": "a\rb"})
    log.window(1, temp_c={"\x1b[31mred": 40.0}, dropped={"out\x9b": {"slow\x07": 1}})
    assert run(log.path) == 0
    out = capsys.readouterr().out
    assert all(char.isprintable() or char == "\n" for char in out)


JUNK = [None, True, -1, 0, 1e308, -5.5, 1 << 70, "", "x" * 500, "<b>&\"'", [], [1, "a"], {}, {"a": {"b": []}}]


def spoil(value: Any, rng: random.Random) -> Any:
    """``value`` with some of its parts replaced by something else."""
    if rng.random() < 0.15:
        return rng.choice(JUNK)
    if isinstance(value, dict):
        return {(key if rng.random() < 0.9 else "<k>" * rng.randrange(40)): spoil(v, rng) for key, v in value.items()}
    if isinstance(value, list):
        return [spoil(item, rng) for item in value]
    return value


@pytest.mark.parametrize("seed", range(12))
def test_any_record_whatsoever_makes_a_report(steady: LogMaker, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    lines = []
    for line in steady.path.read_bytes().splitlines()[:60]:
        record = json.loads(line)
        record.update(throttle=["a", "b"], gpu_clock_pinned=True, width=640, height=480, sensors={"ina3221": {}})
        spoiled = spoil(record, rng)
        if isinstance(spoiled, dict):
            spoiled.setdefault("schema", 1)
            lines.append(encode(spoiled))
    lines.append(steady.path.read_bytes().splitlines(keepends=True)[-2])
    path = tmp_path / "spoiled.jsonl"
    path.write_bytes(b"".join(lines))
    assert run(path) == 0
    assert run(path, "--json") == 0
    if seed < 2:  # drawing takes a second
        assert run(path, "-o", tmp_path / "out.html") == 0
        Page((tmp_path / "out.html").read_text(encoding="utf-8"))


def test_names_do_not_grow_without_limit(log: LogMaker) -> None:
    for second in range(1, 30):
        log.window(
            second,
            temp_c={f"t{second}-{n}": 40.0 for n in range(40)},
            dropped={f"o{second}-{n}": {"slow": 1} for n in range(40)},
            energy_j={f"r{second}-{n}": 1.0 for n in range(40)},
        )
        log.add("event", second, kind="k" * 5000, detail="d" * 100000)
    one = report.read(str(log.path)).runs[0]
    assert len(one.temps) == len(one.dropped) == len(one.rails) == MAX_NAMES
    assert len(one.events[0].detail) <= report_data.MAX_DETAIL


# ---- the page ---------------------------------------------------------------------------------------


class Page(html.parser.HTMLParser):
    """Parses a page strictly: every tag closed in order, ids unique, nothing loaded, no script."""

    VOID = ("meta", "br", "path", "use", "rect")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text, self.stack, self.ids, self.tags = text, [], [], []  # type: ignore[var-annotated]
        self.references: List[str] = []
        self.cells: List[List[str]] = []
        self.feed(text)
        self.close()
        assert self.stack == []
        assert len(self.ids) == len(set(self.ids))
        assert set(self.references) <= set(self.ids)
        for word in ("http:", "https:", "//www", "src=", "@import", "<script", "javascript:"):
            assert word not in text.lower(), word

    def handle_starttag(self, tag: str, attrs: List[Tuple[str, Optional[str]]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            assert not name.startswith("on"), name
            if name == "id":
                self.ids.append(value)
            if name == "href":
                assert value is not None
                assert value.startswith("#")
                self.references.append(value[1:])
            self.references += re.findall(r"url\(#([^)]+)\)", value or "")
        if tag == "tr":
            self.cells.append([])
        if tag == "td":
            self.cells[-1].append("")
        if tag not in self.VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag: str, attrs: List[Tuple[str, Optional[str]]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.stack.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.stack.pop() == tag

    def handle_data(self, data: str) -> None:
        if "td" in self.stack:
            self.cells[-1][-1] += data

    def row(self, first: str) -> List[str]:
        return next(row for row in self.cells if row and row[0].strip() == first)


def test_the_page_has_the_figures_and_charts(steady: LogMaker, tmp_path: Path, capsys) -> None:
    out = tmp_path / "out.html"
    assert run(steady.path, "-o", out) == 0
    assert "wrote" in capsys.readouterr().err
    assert oct(out.stat().st_mode & 0o777) == "0o644"
    page = Page(out.read_text(encoding="utf-8"))
    assert page.row("sort") == ["sort", "5.00", "10.00", "10.00", "5.65", "25.0 %"]
    assert page.row("frame")[1:5] == ["20.00", "40.00", "40.00", "22.61"]
    assert page.row("POM_5V_IN total")[1:] == ["5.00", "5.00–5.00", "650.0", "0.1130"]
    assert page.row("CPU-therm") == ["CPU-therm", "40.0", "40.7", "41.3"]
    assert page.row("mjpeg") == ["mjpeg", "26", "slow"]
    assert page.tags.count("svg") == 5 * len(report_plots.SIZES)
    assert "prefers-color-scheme: dark" in page.text
    assert 'name="viewport"' in page.text
    assert "0f0f" not in page.text  # every placeholder colour became the page's own
    for stage in STAGES:
        assert f"</i>{stage}</li>" in page.text


def test_everything_from_the_log_is_escaped(log: LogMaker, tmp_path: Path) -> None:
    evil = "</td><script>alert(1)</script>\"'&$x^2$"
    log.run_id = evil
    log.add("start", 0, board=evil, scene={"path": evil, "n_splats": 1, "sha256": evil}, variant=evil, version=evil)
    log.add("event", 0.5, kind=evil, field=evil, **{evil: 1})
    one = dict.fromkeys(("p50", "p95", "max", "mean"), 1.0)
    log.window(
        1,
        stage_ms={evil: one},
        temp_c={evil: 40.0},
        clk_hz={evil: 1e9},
        energy_j={evil: 1.0},
        power_w={evil: {"method": evil}},
        total_rail=evil,
        dropped={evil: {evil: 1}},
        throttle=[evil],
    )
    log.add("stop", 2, reason=evil)
    out = tmp_path / "out.html"
    assert run(log.path, "-o", out) == 0
    page = Page(out.read_text(encoding="utf-8"))
    assert "&lt;script&gt;" in page.text
    assert "alert(1)</script>" not in page.text


def test_throttling_is_shaded_and_events_are_numbered(steady: LogMaker, tmp_path: Path) -> None:
    steady.window(131, throttle=["gpu_clock"])
    steady.add("event", 131, kind="throttle_on", cause="gpu_clock")
    steady.add("event", 131, kind="reload", ok=False)
    told = {"splats": 25000, "scale": 0.8999999761581421, "hz": 921600000.0, "cause": None, "to": [1, 2]}
    steady.add("event", 131, kind="governor", **told)
    out = tmp_path / "out.html"
    assert run(steady.path, "-o", out) == 0
    page = Page(out.read_text(encoding="utf-8"))
    assert page.row("2")[2:] == ["reload", "ok no"]
    assert page.row("3")[2:] == ["governor", "splats 25000, scale 0.9, hz 921,600,000, to [1, 2]"]
    assert len(re.findall(r"fill: var\(--hot\)", page.text)) >= 10
    assert report_plots.marks(report.read(str(steady.path)).runs[0]) == [(2, 131.0), (3, 131.0)]
    assert "not valid for comparison" in page.text


def governed(log: LogMaker) -> None:
    """A run of 40 s: from step 2 to 6 of 14 after 10 s, to 5 after 30 s; watts are not measured."""
    for second in range(1, 41):
        if second == 5:
            log.add("event", second, kind="governor", action="limit_off", rung=2, of=14, limit="power", bound=6.0)
        if second == 11:
            log.add("event", second - 0.9, kind="governor", action="down", rung=6, of=14, before=2, axis="scale+splats",
                    scale=0.7, n_splats=17500, sh_degree=3, fps_cap=None, limit="temp", value=61.328125, bound=60.0,
                    reason="61.3 C, at most 60 C")  # fmt: skip
        if second == 20:
            log.add("event", second, kind="governor", action="unheld", rung=6, of=14, limit="temp", bound=60.0)
        if second == 31:
            log.add("event", second - 0.9, kind="governor", action="up", rung=5, of=14, before=6)
        log.window(second)


def test_the_governors_steps_are_summed_up_over_time(log: LogMaker, capsys: pytest.CaptureFixture) -> None:
    governed(log)
    assert report.summary(report.read(str(log.path)).runs[0])["governor"] == {
        "steps": {"down": 1, "up": 1},
        "rung": 5,
        "mean_rung": (10 * 2 + 20 * 6 + 10 * 5) / 40,
        "worst_rung": 6,
        "last_rung": 14,
        "unheld": ["temp"],
        "unmeasured": ["power"],
    }
    assert run(log.path) == 0
    text = "steps: 1 down, 1 up; at worst 6 of 14, on average 4.8; could not hold temp; not measured: power"
    assert f"  governor     {text}\n" in capsys.readouterr().out


def test_the_governors_chart_is_there_where_the_log_has_its_records(
    log: LogMaker, steady: LogMaker, tmp_path: Path
) -> None:
    out = tmp_path / "out.html"
    assert run(steady.path, "-o", out) == 0
    assert "Governor" not in Page(out.read_text(encoding="utf-8")).text
    log = LogMaker(tmp_path / "governed.jsonl")
    governed(log)
    assert run(log.path, "-o", out) == 0
    page = Page(out.read_text(encoding="utf-8"))
    assert page.tags.count("svg") == 6 * len(report_plots.SIZES)
    assert "<span>Governor, steps of quality given up, of 14</span>" in page.text
    assert "Governor, mean step" in page.text
    assert "could not hold at some time: temp." in page.text
    assert "had no reading of: power." in page.text
    down = page.row("2")[3]
    assert "61.33" in down
    assert "61.328125" not in page.text
    assert "None" not in page.text
    (one,) = report.read(str(log.path)).runs
    assert [number for number, _ in report_plots.marks(one)] == [1, 2, 3, 4]


@pytest.mark.parametrize("rung", [None, -1, 15, "3", 1e308, True])
def test_a_governor_record_that_cannot_be_is_left_out(log: LogMaker, rung: Any) -> None:
    log.window(1)
    log.add("event", 1, kind="governor", action="down", rung=rung, of=14, before=-3, limit="x" * 500)
    log.window(2)
    got = report.summary(report.read(str(log.path)).runs[0])
    assert (got["governor"], got["events"]) == (None, 1)


def test_without_matplotlib_the_page_has_tables_and_says_what_to_install(
    steady: LogMaker, tmp_path: Path, monkeypatch, capsys
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    out = tmp_path / "out.html"
    assert run(steady.path, "-o", out) == 0
    assert "pip install 'edgegs[report]'" in capsys.readouterr().err
    page = Page(out.read_text(encoding="utf-8"))
    assert "svg" not in page.tags
    assert "edgegs[report]" in page.text
    assert page.row("sort")[1] == "5.00"


def test_several_logs_stand_side_by_side(steady: LogMaker, tmp_path: Path, capsys) -> None:
    other = LogMaker(tmp_path / "other.jsonl", "3fa9c1d2-000013")
    other.window(1, energy_j={}, power_w={}, total_rail=None)
    out = tmp_path / "out.html"
    assert run(steady.path, other.path, "-o", out) == 0
    assert capsys.readouterr().out.count("run 3fa9c1d2-0000") == 2
    page = Page(out.read_text(encoding="utf-8"))
    assert page.row("3fa9c1d2-000012")[2:] == ["44.2", "40.0", "5.00", "0.1130", "yes"]
    assert page.row("3fa9c1d2-000013")[4:] == ["absent", "absent", "–"]


def test_a_run_that_drew_nothing(log: LogMaker, tmp_path: Path, capsys) -> None:
    log.add("start", 0)
    out = tmp_path / "out.html"
    assert run(log.path, "-o", out) == 0
    assert "no frame was drawn" in capsys.readouterr().out
    assert "nothing was measured" in Page(out.read_text(encoding="utf-8")).text


def test_a_report_that_fails_leaves_the_old_page(steady: LogMaker, tmp_path: Path, monkeypatch) -> None:
    out = tmp_path / "out.html"
    out.write_text("old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(report.os, "fsync", full)
    assert run(steady.path, "-o", out) == 73
    assert out.read_text() == "old"
    assert sorted(os.listdir(str(tmp_path))) == ["out.html", "telemetry.jsonl"]


def test_from_a_recorded_run(tmp_path: Path) -> None:
    root = Path(__file__).parent / "data" / "sysfs" / "orin_nano"
    telemetry = Telemetry(str(root), "sysfs", 0.02, str(tmp_path / "runs"), min_free_mb=0)
    telemetry.start({"scene": {"path": "dial.ply", "n_splats": 10}, "variant": "baseline", "backend": "host"})
    image = np.zeros((1, 1, 3), np.uint8)
    for index in range(30):
        telemetry.frame(Frame(image, index, 0, 20.0, dict(STAGE_MS)))
    telemetry.stop("done")
    assert telemetry.log_path is not None
    got = report.summary(report.read(os.path.dirname(telemetry.log_path)).runs[0])
    assert got["frames"] == 30
    assert got["stage_ms"]["sort"]["p95"] == 5.0
    assert got["power"]["VDD_IN"]["mean_w"] == pytest.approx(6.3988, rel=0.01)
    assert got["total_rail"] == "VDD_IN"
    assert got["facts"]["variant"] == "baseline"
    assert got["ended"] == "done"
    assert run(os.path.dirname(telemetry.log_path), "-o", tmp_path / "out.html") == 0
    page = Page((tmp_path / "out.html").read_text(encoding="utf-8"))
    assert "leaves out the carrier board" in page.text
