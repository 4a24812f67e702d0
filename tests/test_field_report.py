"""``edgegs report`` of sweeps: intervals and verdicts against known figures, the page, and files for other programs."""

from __future__ import annotations

import csv
import gzip
import html.parser
import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, List

import cv2
import numpy as np
import pytest
from chromium import CHROMIUM, MISSING, Browser
from field_files import STAGES, SweepMaker, campaign, made

from edgegs.bench import field_course, field_data, field_labels, field_plots, field_stats
from edgegs.bench import field_report as report
from edgegs.cli import main
from edgegs.telemetry.records import encode

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def nano(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("nano") / "results.jsonl"
    campaign(path)
    return path


@pytest.fixture(scope="module")
def orin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("orin") / "results.jsonl"
    campaign(path, splats=(25_000, 100_000), board="NVIDIA Jetson Orin Nano Developer Kit", seed=2, speed=4, watts=1.6)
    return path


def only(path: Path) -> field_stats.Group:
    (group,) = field_stats.groups(field_data.load([str(path)]))
    return group


# ---- figures ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("df", "t"),
    [(1, 12.7062047), (2, 4.30265273), (4, 2.77644511), (9, 2.26215716), (30, 2.04227246), (1e4, 1.96020124)],
)
def test_quantiles_are_those_of_the_tables(df: float, t: float) -> None:
    assert field_stats.t_quantile(df) == pytest.approx(t, rel=1e-6)
    assert field_stats.t_quantile(4, 0.99) == pytest.approx(4.60409487, rel=1e-6)


def test_an_interval_holds_the_truth_as_often_as_it_says() -> None:
    random = np.random.default_rng(5)
    held = 0
    for _ in range(2000):
        found = field_stats.interval(list(random.normal(10.0, 2.0, 5)))
        assert found is not None
        held += found.low <= 10.0 <= found.high  # type: ignore[operator]
    assert held / 2000 == pytest.approx(0.95, abs=0.015)


def test_means_are_of_valid_last_attempts_only(tmp_path: Path) -> None:
    one = made(tmp_path, 10.0, 11.0, 12.0)
    one.run(repeat=4, rate=99.0, invalid=("throttled", "it was hot"))
    one.run(repeat=5, rate=50.0, invalid=("throttled", "it was hot"))
    one.run(repeat=5, rate=11.0, attempt=2)
    group = only(one.path)
    found = group.of("fps")
    assert found is not None
    assert (found.mean, found.n) == (11.0, 4)
    half = 3.182446 * math.sqrt(2 / 3) / 2
    assert (found.low, found.high) == (pytest.approx(11 - half, rel=1e-6), pytest.approx(11 + half, rel=1e-6))
    assert [run.fps for run in group.invalid] == [99.0]
    assert group.name == "dial-100000-640x480-baseline-0fps-current"


def test_shares_add_up(nano: Path) -> None:
    for group in field_stats.groups(field_data.load([str(nano)])):
        assert list(group.stage_share) == list(STAGES)
        assert sum(group.stage_share.values()) == pytest.approx(1.0)
        if group["splats"] == 500_000:
            assert group.stage_share["sort"] == pytest.approx(0.38)


# ---- verdicts --------------------------------------------------------------------------------------------------


def verdict(tmp_path: Path, first: Any, second: Any, figure: str = "fps") -> field_stats.Comparison:
    field = report.read([str(made(tmp_path, *first, best=second).path)])
    (found,) = [one for one in field.comparisons if one.figure == figure]
    assert (found.a["variant"], found.b["variant"]) == ("baseline", "best")
    return found


def test_a_verdict_where_the_interval_allows_one(tmp_path: Path) -> None:
    found = verdict(tmp_path, (10.0, 10.1, 9.9), (12.0, 12.1, 11.9))
    assert found.decided
    assert found.verdict == "20.0 % faster"
    assert found.ratio is not None
    # Welch on the logarithms, by hand: both variances 1e-4 and 6.94e-5 over three
    assert found.ratio.low == pytest.approx(1.1758, abs=2e-3)
    assert found.ratio.high == pytest.approx(1.2248, abs=2e-3)
    assert verdict(tmp_path, (12.0, 12.1, 11.9), (10.0, 10.1, 9.9)).verdict == "16.7 % slower"
    assert verdict(tmp_path, (10.0, 10.1, 9.9), (25.0, 25.1, 24.9)).verdict == "2.50 times as fast"


@pytest.mark.parametrize(
    ("first", "second", "says"),
    [
        ((10.0, 11.0, 9.0), (10.5, 11.5, 9.5), "no verdict: 0 % lies within the interval"),
        ((10.0, 10.1), (20.0, 20.1), "no verdict: fewer than 3 valid runs of one"),
        ((10.0, 10.1, 9.9), (20.0,), "no verdict: a single valid run of one"),
        ((10.0, 10.0, 10.0), (11.0, 11.0, 11.0), r"no verdict: the repeats do not differ at all; is a sensor stuck\?"),
    ],
)
def test_no_verdict_where_it_does_not(tmp_path: Path, first: Any, second: Any, says: str) -> None:
    found = verdict(tmp_path, first, second)
    assert not found.decided
    assert re.fullmatch(says, found.verdict)


def test_equal_boards_are_rarely_told_apart(tmp_path: Path) -> None:
    """Two boards that are the same: one comparison in twenty may say otherwise, as the report warns."""
    random = np.random.default_rng(3)
    wrong = 0
    group = only(made(tmp_path, 10.0).path)
    for _ in range(400):
        pair = [field_stats.Group(group.campaign, group.key, name) for name in "ab"]
        for one in pair:
            one.runs = [_with_fps(group.runs[0], value) for value in random.normal(10.0, 0.3, 5)]
        wrong += field_stats.compare(pair[0], pair[1], "fps").decided
    assert 4 <= wrong <= 36


def _with_fps(run: field_data.Measured, fps: float) -> field_data.Measured:
    import dataclasses

    return dataclasses.replace(run, fps=fps)


def test_two_that_somebody_names(nano: Path, orin: Path, capsys: pytest.CaptureFixture) -> None:
    names = ("dial-25000-640x480-best-0fps-current", "dial-100000-640x480-best-0fps-current-r1")
    field = report.read([str(nano)], names)
    assert [one.figure for one in field.comparisons] == ["fps", "mean_w", "j_per_frame"]
    assert field.comparisons[0].verdict.endswith("slower")
    assert main(["report", str(nano), str(orin), "--compare", *names]) == 2
    assert "several boards ('Jetson Nano', 'Jetson Orin Nano')" in capsys.readouterr().err
    boards = ["Jetson Nano:" + names[0], "Jetson Orin Nano:" + names[0]]
    assert main(["report", str(nano), str(orin), "--compare", *boards]) == 0
    told = capsys.readouterr().out
    assert re.search("Jetson Orin Nano against Jetson Nano, .*: fps .*: [34].[0-9]+ times as fast", told)
    assert main(["report", str(nano), "--compare", "dial-1", names[0]]) == 2
    assert "no such configuration in these files; there are: dial-25000-" in capsys.readouterr().err


def test_it_is_said_which_is_against_which(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    one = made(tmp_path, 10.0, 10.1, 9.9, best=(12.0, 12.1, 11.9))
    names = [f"dial-100000-640x480-{variant}-0fps-current" for variant in ("best", "baseline")]
    assert main(["report", str(one.path), "--compare", *names, "-o", str(tmp_path / "o.html")]) == 0
    told = capsys.readouterr().out
    assert "--compare A B: B against A" in told
    assert re.search("baseline against best, .*: fps .*: 16.7 % slower", told), "B, baseline, is the slower one"
    assert "--compare A B: B against A" in (tmp_path / "o.html").read_text(encoding="utf-8")
    assert main(["report", str(made(tmp_path / "few", 10.0).path)]) == 0
    assert "against" not in capsys.readouterr().out, "there is nothing to compare"


# ---- reading ---------------------------------------------------------------------------------------------------


def test_torn_and_foreign_lines_are_left_out_and_told(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    one = made(tmp_path, 10.0, 10.0, 10.0)
    lines = one.path.read_bytes().splitlines(keepends=True)
    lines[3:3] = [
        b"not json\n",
        b'{"schema":9,"kind":"sweep","type":"run"}\n',
        b'{"schema":1,"type":"window"}\n',
        b"[]\n",
    ]
    lines.append(lines[-2][:200])
    one.path.write_bytes(b"".join(lines))
    assert main(["report", str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert "1 torn and 4 unusable lines left out" in said.err
    assert f"{one.path}:4: no record of a sweep" in said.err
    assert "schema 9 is not known" in said.err
    assert "3/3" in said.out


@pytest.mark.parametrize(
    "key",
    [
        "fps",
        "frames",
        "window_s",
        "energy",
        "stage_ms",
        "series",
        "temp_c",
        "params",
        "reasons",
        "scene",
        "throttle",
        "power",
        "clk_hz",
        "session",
        "run_id",
        "valid",
    ],
)
@pytest.mark.parametrize("value", [None, -1, 1e308, "<script>", [1, {}], {"a": [1]}, {"t_s": ["x"]}, True])
def test_any_field_may_be_anything(tmp_path: Path, key: str, value: Any) -> None:
    one = SweepMaker(tmp_path / "results.jsonl")
    one.run(repeat=1)
    one.run(repeat=2, **{key: value})
    field = report.read([str(one.path)])
    assert "<script>" not in json.dumps([run.rails for run in field.campaigns[0].runs])
    report.table(field)
    json.dumps(report.summary(field), allow_nan=False)
    assert all(plan.title for plan in field_plots.plans(field.campaigns, field.groups))


def test_a_run_that_failed_is_told_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """It has no figures at all, and does not say how many splats it would have drawn."""
    one = made(tmp_path, 10.0, 10.1)
    name = "dial-100000-640x480-baseline-0fps-current-r3"
    params = {"scene": "dial", "splats": None, "width": 640, "height": 480, "variant": "baseline"}
    reasons = [{"code": "failed", "text": "out of memory"}]
    one.add("run", run_id=name, params=params, repeat=3, attempt=1, session=1, valid=False, reasons=reasons, notes=[])
    group = only(one.path)
    assert (len(group.runs), len(group.invalid), group["splats"]) == (2, 1, 100_000)
    assert main(["report", str(one.path), "-o", str(tmp_path / "o.html")]) == 0
    said = capsys.readouterr()
    assert f"INVALID {name}: out of memory" in said.out
    assert "unusable" not in said.err
    assert "2/3" in said.out


def test_a_file_that_is_given_twice_counts_once(tmp_path: Path) -> None:
    """A folder and the file in it, as a shell's pattern gives them: doubled runs would make intervals too narrow."""
    one = made(tmp_path, 10.0, 11.0)
    field = report.read([str(tmp_path), str(one.path), str(tmp_path / "." / "results.jsonl")])
    (group,) = field.groups
    assert (len(field.campaigns), len(group.runs), group.campaign.board) == (1, 2, "Jetson Nano")


def test_errors_name_the_file(tmp_path: Path, nano: Path, capsys: pytest.CaptureFixture) -> None:
    empty = SweepMaker(tmp_path / "empty" / "results.jsonl")
    assert main(["report", str(empty.path)]) == 65
    assert f"{empty.path}: holds no measured run" in capsys.readouterr().err
    other = tmp_path / "telemetry.jsonl"
    start = {"schema": 1, "type": "start", "t_mono_ns": 1, "run_id": "a", "boot_id": "b", "seq": 0}
    other.write_bytes(encode(start))
    assert main(["report", str(nano), str(other)]) == 2
    assert "make a report of each kind" in capsys.readouterr().err
    assert main(["report", str(other), "--csv", "x.csv"]) == 2
    assert "--csv is of sweeps" in capsys.readouterr().err
    assert main(["report", str(tmp_path / "none")]) == 66
    assert main(["report", str(nano), "-o", str(tmp_path / "no" / "x.html")]) == 73
    assert "there is no folder" in capsys.readouterr().err


def test_compressed_and_several_boards_of_one_name(tmp_path: Path) -> None:
    first = made(tmp_path / "a", 10.0)
    second = made(tmp_path / "b", 10.0)
    packed = tmp_path / "b" / "results.jsonl.gz"
    packed.write_bytes(gzip.compress(second.path.read_bytes()))
    assert field_data.is_sweep(str(packed))
    loaded = field_data.load([str(first.path), str(packed)])
    assert [one.board for one in loaded] == ["Jetson Nano (a)", "Jetson Nano (b)"]


# ---- the page and the files ------------------------------------------------------------------------------------


class Page(html.parser.HTMLParser):
    """Rows and text of a page; fails on what would fetch something or run."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: List[List[str]] = []
        self.text, self.ids, self.n_svg = text, set(), 0
        self._cell = False
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        assert tag not in ("script", "link", "iframe", "img", "object")
        for name, value in attributes:
            assert not name.startswith("on")
            assert name not in ("src",)
            if name == "href":
                assert value.startswith("#")
            if name == "id":
                assert value not in self.ids
                self.ids.add(value)
        self.n_svg += tag == "svg"
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self._cell = True
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        self._cell = self._cell and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self._cell:
            self.rows[-1][-1] += data


def test_the_page_of_two_boards(nano: Path, orin: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.html"
    assert main(["report", str(nano), str(orin), "-o", str(out)]) == 0
    page = Page(out.read_text(encoding="utf-8"))
    for figure in ("fps-watts", "joules", "fps", "stages-1", "stages-8", "temp-1", "clk-1", "power-1", "temp-2"):
        assert figure in page.ids
    field = report.read([str(nano), str(orin)])
    rows = {row[0]: row for row in page.rows if row}
    for group in field.groups:
        row = rows[
            "{} · {}×{} · {} · {}k splats".format(
                group.campaign.board, group["width"], group["height"], group["variant"], group["splats"] // 1000
            )
        ]
        found = group.of("fps")
        assert row[1] == f"{len(group.runs)} of 5"
        assert row[2] == f"{found.mean:.2f} ±{found.high - found.mean:.2f}"  # type: ignore
    (bad,) = [run for group in field.groups for run in group.invalid if group.campaign is field.campaigns[0]]
    assert rows[f"Jetson Nano: {bad.run_id}"][1].startswith("throttled: gpu_clock in 9 of 120 readings")
    assert "&lt;b&gt;" in page.text  # the settings' hostile key, escaped
    assert rows["kernel image sha256"][1] == "e3b0"
    assert rows["Jetson Linux"][1] == "32.7.1"
    assert rows["best"] == ["best", "storage fp32"]
    assert "leaves out the supply" in page.text
    assert "2 runs are invalid and in no mean" in page.text
    assert not re.search(r"https?://", page.text)


def test_rules_that_were_loosened_stand_at_the_top(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    one = made(tmp_path, 10.0, 11.0, 12.0)
    rules = {"min_measure_s": 5, "max_other_load": 0.5, "max_temp_drift_c": 1, "min_frames": 1000, "min_samples": "x"}
    text = one.path.read_text().replace('"settings":{', '"settings":{"rules":' + json.dumps(rules) + ",")
    one.path.write_text(text)
    assert main(["report", str(one.path), "-o", str(tmp_path / "o.html")]) == 0
    words = "validity rules were loosened: min_measure_s 5 instead of 120, max_other_load 0.5 instead of 0.1"
    assert f"  {words}\n" in capsys.readouterr().out
    page = (tmp_path / "o.html").read_text(encoding="utf-8")
    assert 0 < page.index(f"Jetson Nano: {words}.") < page.index("<table")
    assert report.summary(report.read([str(one.path)]))["campaigns"][0]["loosened"] == words
    assert report.loosened(field_data.read(str(made(tmp_path / "strict", 10.0).path))) == ""


def test_what_all_have_in_common_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    one = SweepMaker(tmp_path / "results.jsonl")
    for scene in ("dial", "room"):
        for variant in ("baseline", "best"):
            for repeat in (1, 2, 3):
                params = {"scene": scene, "splats": 9, "width": 64, "height": 48, "variant": variant, "fps_cap": 0}
                one.run(repeat=repeat, run_id=f"{scene}-{variant}-r{repeat}", params=params)
    one.end()
    field = report.read([str(one.path)])
    assert report.names(field, *field.groups[:2])[1] == "dial · 100k splats"
    titles = [plan.title for plan in field_plots.plans(field.campaigns, field.groups)]
    assert "Frames a second: dial" in titles
    assert main(["report", str(one.path)]) == 0
    assert "  best against baseline, dial · 100k splats: fps " in capsys.readouterr().out


def scenes(path: Path, board: str, *files: Any) -> SweepMaker:
    """A campaign that draws these (path, sha256) three times each."""
    one = SweepMaker(path / "results.jsonl", board=board)
    for number, (file, sha256) in enumerate(files):
        scene = {"path": file, "format": "ply", "sha256": sha256, "n_splats": 9, "sh_degree": 3}
        params = {"scene": file, "splats": None, "width": 64, "height": 48, "variant": "best", "fps_cap": 0}
        for repeat in (1, 2, 3):
            one.run(repeat=repeat, run_id=f"s{number}-r{repeat}", params=params, scene=scene)
    one.end()
    return one


def test_scenes_whose_files_have_one_name_are_told_apart(tmp_path: Path) -> None:
    """As trainers write them: point_cloud/iteration_30000/point_cloud.ply."""
    files = [(f"/d/{name}/it/point_cloud.ply", name) for name in ("garden", "room")]
    field = report.read([str(scenes(tmp_path, "Nano", *files).path)])
    assert [one.scene_name for one in field.groups] == ["garden/…/point_cloud.ply", "room/…/point_cloud.ply"]
    assert report.table(field).count("garden/…/point_cloud.ply") == 1
    assert len(field_plots.plans(field.campaigns, field.groups)[0].legend) == 1, "a chart for each"


def test_boards_are_compared_where_they_drew_the_same_file(tmp_path: Path) -> None:
    """Not where they have another file in the same place."""
    a = scenes(tmp_path / "a", "Nano", ("/home/a/hall.ply", "x" * 64), ("/d/lobby.ply", "y" * 64))
    b = scenes(tmp_path / "b", "Orin", ("/home/b/hall.ply", "x" * 64), ("/d/lobby.ply", "z" * 64))
    field = report.read([str(a.path), str(b.path)])
    assert {(one.a["scene"], one.b["scene"]) for one in field.comparisons} == {("/home/a/hall.ply", "/home/b/hall.ply")}
    told = {one.scene_name for one in field.groups}
    assert told == {"hall.ply", "lobby.ply (yyyyyyyy)", "lobby.ply (zzzzzzzz)"}


def test_a_mode_that_the_board_did_not_take_keeps_its_name(tmp_path: Path) -> None:
    one = SweepMaker(tmp_path / "results.jsonl")
    for mode, said in ((0, "0 (MAXN)"), (1, "0 (MAXN)"), (2, "2 (10W)"), (None, "0 (MAXN)")):
        params = {"scene": "dial", "width": 64, "height": 48, "variant": "best", "fps_cap": 0, "power_mode": mode}
        one.run(run_id=f"mode{mode}-r1", params=params, board_power_mode=said)
    groups = report.read([str(one.path)]).groups
    assert sorted(field_labels.word(group, "power_mode") for group in groups) == [
        "mode 0 (MAXN)",
        "mode 0 (MAXN)",
        "mode 1",
        "mode 2 (10W)",
    ]


@pytest.mark.parametrize(("rate", "told"), [(2.0, r"[0-9]\.\d\d "), (20.0, r"0\.2\d{3} "), (2000.0, r"0\.002\d{3} ")])
def test_small_joules_have_more_decimals(tmp_path: Path, rate: float, told: str) -> None:
    lines = report.table(report.read([str(made(tmp_path, rate, rate, rate).path)])).splitlines()
    (row,) = [line for line in lines if " 3/3 " in line]
    assert re.search(r" 3/3 .* " + told, row)


def test_facts_are_for_people(nano: Path) -> None:
    (loaded,) = field_data.load([str(nano)])
    session = dict(loaded.sessions[1], compiler_flags=["-O3", "-g"], compatible=["a", "b"])
    session["clk_limits_hz"] = {"gpu": [76.8e6, 921.6e6], "cpu0": [1479e6, 1479e6], "x": "?", "y": [None, "z"]}
    told = report.facts(session)
    assert told["clock limits, MHz"] == "gpu 77 to 922, cpu0 1479, x , y ?"
    assert (told["compiler flags"], told["compatible"]) == ("-O3 -g", "a, b")


def test_notes_of_runs_are_counted(tmp_path: Path) -> None:
    one = SweepMaker(tmp_path / "results.jsonl")
    for repeat, fps in enumerate((28.5, 29.0, 30.0), 1):
        notes = [{"code": "cap_not_reached", "text": f"{fps} FPS: missed"}] if fps < 29.5 else []
        one.run(repeat=repeat, rate=fps, notes=[*notes, {"code": "clocks_not_pinned", "text": "free"}])
    one.end()
    assert main(["report", str(one.path), "-o", str(tmp_path / "o.html")]) == 0
    page = (tmp_path / "o.html").read_text(encoding="utf-8")
    assert "2 of 3 runs: such as: 28.5 FPS: missed." in page
    assert "3 of 3 runs: free." in page


def test_throttling_invalid_and_idle_are_marked_in_the_course(nano: Path) -> None:
    (loaded,) = field_data.load([str(nano)])
    course = field_course.course_of(loaded.measured)
    assert course is not None
    (bad,) = [run for run in loaded.runs if not run.valid]
    begin = bad.t_end_s - bad.window_s
    zero = min(one.t_end_s - one.window_s + one.series["t_s"][0] for one in loaded.measured)
    assert course.invalid == [(pytest.approx(begin - zero), pytest.approx(bad.t_end_s - zero))]
    assert course.throttled == [(pytest.approx(begin - zero + 59), pytest.approx(begin - zero + 68))]
    assert len(course.idle) == 1
    gpu = course.columns["clk_hz"]["gpu"]
    assert np.nanmin(gpu) == 614400000
    times, values = field_course.thinned(course.times, gpu)
    assert len(times) == field_course.MAX_POINTS
    assert np.isnan(values).any()  # the pause between two runs is no line


def test_without_power_there_are_no_watts_and_the_reason(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    one = made(tmp_path, 10.0, 10.1, 9.9, best=(20.0, 20.1, 19.9), power=False)
    out = tmp_path / "out.html"
    assert main(["report", str(one.path), "-o", str(out), "--csv", str(tmp_path / "out.csv")]) == 0
    assert "power: no power monitor was found" in capsys.readouterr().out
    page = Page(out.read_text(encoding="utf-8"))
    assert "No watts: no power monitor was found" in page.text
    assert "fps-watts" not in page.ids
    assert "fps" in page.ids
    for row in csv.DictReader((tmp_path / "out.csv").read_text().splitlines()):
        assert row["mean_w"] == row["j_per_frame"] == ""  # not 0


def test_without_matplotlib(nano: Path, tmp_path: Path, monkeypatch: Any, capsys: pytest.CaptureFixture) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    out = tmp_path / "out.html"
    assert main(["report", str(nano), "-o", str(out)]) == 0
    assert "pip install 'edgegs[report]'" in capsys.readouterr().err
    assert Page(out.read_text(encoding="utf-8")).n_svg == 0
    assert main(["report", str(nano), "--png", str(tmp_path / "png")]) == 73


def test_csv_and_png(tmp_path: Path) -> None:
    one = made(tmp_path, 10.0, 11.0, 12.0, best=(30.0, 31.0, 32.0))
    assert main(["report", str(one.path), "--csv", str(tmp_path / "o.csv"), "--png", str(tmp_path / "png")]) == 0
    rows = list(csv.DictReader((tmp_path / "o.csv").read_text().splitlines()))
    assert [row["variant"] for row in rows] == ["baseline", "best"]
    assert float(rows[0]["fps"]) == 11.0
    assert float(rows[0]["fps_high"]) == pytest.approx(11 + 4.302653 / math.sqrt(3), abs=1e-5)
    assert (rows[0]["n_valid"], rows[0]["board"], rows[0]["splats"]) == ("3", "Jetson Nano", "100000")
    assert sum(float(rows[0][f"share_{stage}"]) for stage in STAGES) == pytest.approx(1, abs=1e-4)
    pictures = {path.stem: cv2.imread(str(path)) for path in (tmp_path / "png").glob("*.png")}
    assert {"fps-watts", "joules", "fps", "stages-1", "temp", "clk", "power"} <= set(pictures)
    for picture in pictures.values():
        assert picture.shape[1] >= 900
        assert picture.std() > 10


@pytest.mark.skipif(CHROMIUM is None, reason=MISSING)
def test_in_a_browser(tmp_path: Path) -> None:
    one = made(tmp_path, 10.0, 11.0, 12.0, best=(30.0, 31.0, 32.0))
    out = tmp_path / "out.html"
    assert main(["report", str(one.path), "-o", str(out)]) == 0
    (tmp_path / "profile").mkdir()
    with Browser(tmp_path / "profile") as browser:
        for width, mobile, dark in ((1200, False, False), (390, True, True)):
            page = browser.page(out.as_uri(), width, 800, mobile, dark)
            page.wait('document.readyState == "complete"')
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert page.evaluate("[...document.querySelectorAll('figure svg')].filter(e => e.clientWidth).length") >= 6
            assert page.problems() == []
            assert (page.screenshot().mean() < 100) == dark


def test_nothing_heavy_is_imported_for_a_table(nano: Path) -> None:
    script = "import sys; from edgegs.cli import main; main(['report', sys.argv[1]])\n"
    script += "assert not {'matplotlib', 'pandas', 'fastparquet', 'duckdb', 'rich'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", script, str(nano)], cwd=str(ROOT), capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.parametrize("option", ["-o", "--csv", "--parquet"])
def test_what_a_report_is_made_from_is_never_written_over(tmp_path, capsys, option):
    folder = tmp_path / "field"
    folder.mkdir()
    (folder / "results.jsonl").write_text('{"schema": 1, "kind": "sweep", "type": "campaign"}\n')
    (folder / "results.csv").write_text("kept\n")
    for target in ("results.jsonl", "results.csv"):
        before = (folder / target).read_bytes()
        for given in (folder, folder / "results.jsonl"):
            assert main(["report", str(given), option, str(folder / target)]) == 2
            assert "name another file" in capsys.readouterr().err
        assert (folder / target).read_bytes() == before
