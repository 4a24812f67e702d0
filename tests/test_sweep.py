"""``edgegs sweep`` end to end on the host backend, beside a made-up Nano whose sensors move while it is measured."""

from __future__ import annotations

import contextlib
import csv
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from edgegs.backends.host import HostBackend
from edgegs.bench import sweep as sweep_module
from edgegs.bench.campaign import Campaign, load_campaign
from edgegs.bench.sweep import Hooks, Sweep
from edgegs.bench.sweep_results import Results
from edgegs.cli import sweep as cli
from edgegs.errors import AccessError, ConfigError, DeviceError, InputError, OutputError, UsageError
from edgegs.scene import write_ply
from edgegs.scene.synth import dial

ROOT = Path(__file__).resolve().parent.parent
NANO = Path(__file__).parent / "data" / "sysfs" / "nano"
MONITOR = "devices/7000c400.i2c/i2c-6/6-0040/iio:device0"
GPU = "devices/57000000.gpu/devfreq/57000000.gpu"
THERMAL = "devices/virtual/thermal"

#: Short, and with limits to match: what is tested is not how long a run takes.
QUICK = """\
scenes: [dial]
splats: [60]
resolutions: [48x32]
variants: [baseline]
backend: host
threads: 1
settle_s: 0
warmup_s: 0.05
warmup_max_s: 0.4
measure_s: 0.3
repeats: 2
idle_s: 0.2
telemetry: {source: sysfs, interval_s: 0.02, sysfs_root: nano, proc_root: proc}
rules: {min_measure_s: 0.2, min_frames: 1, min_samples: 2, min_idle_samples: 2, max_gap_periods: 100}
out: out
"""


def put(path: Path, text: object) -> None:
    """A sysfs file changes at once: nobody reads half of it."""
    new = path.with_name(path.name + ".new")
    new.write_text(f"{text}\n")
    os.replace(str(new), str(path))


@pytest.fixture
def board(tmp_path):
    """A Nano with its clocks pinned, nothing throttled, and nobody else at work on its four cores."""
    root = tmp_path / "nano"
    shutil.copytree(str(NANO), str(root), symlinks=True)
    put(root / GPU / "min_freq", 921600000)
    put(root / "devices/57000000.gpu/load", 500)  # at full load a low clock would be throttling, too
    proc(tmp_path, busy=0, total=0)
    return root


def proc(tmp_path, busy, total):
    """Counters of /proc in seconds of processor time."""
    (tmp_path / "proc" / "self").mkdir(parents=True, exist_ok=True)
    ticks = os.sysconf("SC_CLK_TCK")
    put(tmp_path / "proc/stat", f"cpu  {busy * ticks:.0f} 0 0 {(total - busy) * ticks:.0f} 0 0 0 0 0 0")
    put(tmp_path / "proc/self/stat", "1 (edgegs (x)) S " + "0 " * 10 + "0 0 " + "0 " * 30)


def write(tmp_path, text=QUICK, **changes):
    lines = [line for line in text.splitlines() if line.split(":")[0] not in changes]
    lines += [f"{key}: {value}" for key, value in changes.items() if value is not None]
    path = tmp_path / "campaign.yaml"
    path.write_text("\n".join(lines) + "\n")
    return path


def lines_of(folder):
    records = [json.loads(line) for line in (folder / "results.jsonl").read_bytes().split(b"\n")[:-1]]
    assert [one["seq"] for one in records] == list(range(len(records)))
    return records


def of(folder, kind):
    return [one for one in lines_of(folder) if one["type"] == kind]


def codes(run):
    return [one["code"] for one in run["reasons"]]


def run_sweep(path, hooks=None, retry_invalid=False, **more):
    campaign = load_campaign(path)
    header = {"name": "campaign.yaml", "settings": campaign.settings(), "n_runs": len(campaign.plan())}
    with contextlib.closing(Results(campaign.out, campaign.sha256(), header)) as results, HostBackend(1) as backend:
        return Sweep(campaign, results, backend, retry_invalid=retry_invalid, hooks=hooks, **more).run()


def main(*arguments):
    import argparse

    parser = argparse.ArgumentParser()
    cli.add_parser(parser.add_subparsers())
    return cli.main(parser.parse_args(["sweep", *map(str, arguments)]))


# ---- the campaign's file -----------------------------------------------------------------------------------


def test_the_shipped_campaign_names_every_key_with_its_default(tmp_path):
    from edgegs.config.tree import Origin, parse_yaml, plain

    shown = load_campaign(ROOT / "configs" / "field.yaml")
    given = plain(parse_yaml((ROOT / "configs" / "field.yaml").read_text(), Origin("field.yaml"), []))
    assert set(given) == set(Campaign.model_fields)
    for section in ("telemetry", "rules"):
        assert set(given[section]) == set(Campaign.model_fields[section].annotation.model_fields)
    least = write(tmp_path, "scenes: [dial]\nsplats: [25000, 100000]\nresolutions: [640x480]\nout: x\n")
    assert shown.settings() == load_campaign(least).settings()
    assert len(shown.plan()) == 20


WRONG = [
    ({"repeets": 3}, "campaign.yaml:16: repeets: unknown key (got 3); did you mean repeats?"),
    ({"min_frames": 3}, "unknown key (got 3); did you mean rules.min_frames?"),
    ({"telemetry": "{sorce: sysfs}"}, "telemetry.sorce: unknown key (got sysfs); did you mean source?"),
    ({"telemetry": "{source: jetop}"}, "telemetry.source: must be one of auto, "),
    ({"scenes": "[{pth: a.ply}]"}, "scenes.0.pth: unknown key (got a.ply); did you mean path?"),
    ({"scenes": "[dial, dial]"}, "scenes.1: names path='dial' splats=None twice"),
    ({"scenes": "[~/a.ply]"}, "~ is not expanded"),
    ({"splats": "[null]"}, "splats: dial is made here and needs a number of splats"),
    ({"splats": "[60, 60]"}, "splats.1: names 60 twice (got 60); remove one"),
    ({"resolutions": "[640]"}, 'resolutions.0: must be text (got 640); YAML reads 640 as a number; put it in quotes'),
    ({"resolutions": "[640*480]"}, "not of the form WIDTHxHEIGHT"),
    ({"resolutions": "[640x8]"}, "each side must be from 16 to 8192 pixels"),
    ({"out": None}, "out: required key is missing"),
    ({"measure_s": 0.1}, "measure_s: every run would be invalid: rules.min_measure_s is 0.2"),
    ({"measure_s": 9000}, "measure_s: makes 450,020 readings in a run, and 200,000 are kept: all would be invalid"),
    ({"idle_s": 0.02}, "idle_s: gives 1 readings, and rules.min_idle_samples asks for 2"),
    ({"warmup_s": 9}, "warmup_max_s: must be at least warmup_s, 9"),
    ({"repeats": 1.5}, "repeats: must be a whole number"),
    ({"power_modes": "[-1]"}, "power_modes.0: must be at least 0"),
    ({"fps_caps": "[.nan]"}, "infinity and NaN are not allowed"),
]


@pytest.mark.parametrize(("changes", "words"), WRONG)
def test_a_wrong_campaign_is_refused_in_plain_words(tmp_path, changes, words):
    text = "\n".join(line for line in QUICK.splitlines() if line.split(":")[0] not in changes) + "\n"
    with pytest.raises(ConfigError) as caught:
        load_campaign(write(tmp_path, text, **changes))
    assert words in str(caught.value)


def test_files_that_hold_no_campaign(tmp_path):
    with pytest.raises(InputError):
        load_campaign(tmp_path / "none.yaml")
    for content, words in ((b"", "empty"), (b"- 1\n", "a mapping"), (b"a: \xff\n", "UTF-8"), (b"a: [", "1: ")):
        (tmp_path / "campaign.yaml").write_bytes(content)
        with pytest.raises(ConfigError, match=words):
            load_campaign(tmp_path / "campaign.yaml")


def test_the_plan_is_interleaved_and_follows_from_the_seed(tmp_path):
    many = {"splats": "[60, 90]", "variants": "[baseline, auto]", "fps_caps": "[0, 30]", "power_modes": "[0, 1]"}
    campaign = load_campaign(write(tmp_path, **many, repeats=3))
    plan = campaign.plan()
    assert [one.order for one in plan] == list(range(1, 49))
    assert len({one.run_id for one in plan}) == 48
    for repeat in (1, 2, 3):
        mine = [one for one in plan if one.repeat == repeat]
        assert len(mine) == 16
        assert mine == plan[16 * (repeat - 1) : 16 * repeat], "all of a repeat before the next"
        modes = [one.power_mode for one in mine]
        assert modes in ([0] * 8 + [1] * 8, [1] * 8 + [0] * 8), "one switch of modes in a repeat"
    orders = [tuple(one.label for one in plan if (one.repeat, one.power_mode) == (repeat, 0)) for repeat in (1, 2, 3)]
    assert len(set(orders)) == 3
    assert load_campaign(write(tmp_path, **many, repeats=3)).plan() == plan
    other = load_campaign(write(tmp_path, **many, repeats=3, seed=1))
    assert other.plan() != plan
    assert other.sha256() != campaign.sha256()
    assert load_campaign(write(tmp_path, **many, repeats=3, out="elsewhere")).sha256() == campaign.sha256()


def test_a_configuration_that_is_asked_for_twice_is_measured_once(tmp_path):
    path = write(tmp_path, scenes="[{path: dial, splats: [60, 90]}, {path: dial, splats: [60]}]", repeats=1)
    assert sorted(one.run_id.split("-")[1] for one in load_campaign(path).plan()) == ["60", "90"]


# ---- a Nano, end to end ------------------------------------------------------------------------------------


class Replay:
    """Sensors that move: the rails up and down around 5, 2 and 1 W, and what each run is to suffer from."""

    def __init__(self, tmp_path, root, faults):
        self.tmp_path, self.root, self.faults = tmp_path, root, faults
        self.fault = None
        self.began = time.monotonic()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._replay)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()

    def begins(self, number, of, label, left_s):
        """A run: from now on its fault shows. Whatever the one before left is put in order."""
        with self._lock:
            self.began = time.monotonic()
            self.fault = self.faults.get(number)
            for limit in ("min_freq", "max_freq"):
                put(self.root / GPU / limit, 921600000)
            put(self.root / THERMAL / "cooling_device1/cur_state", 3 if self.fault == "throttled" else 0)

    def _replay(self):
        tick = 0
        while not self._stop.wait(0.004):
            tick += 1
            with self._lock:
                self._tick(tick, time.monotonic() - self.began)

    def _tick(self, tick, elapsed_s):
        for rail, milliwatts in enumerate((5000, 2000, 1000)):
            lost = self.fault == "power_lost" and elapsed_s > 0.1
            text = "Remote I/O error" if lost else round(milliwatts * (1 + 0.2 * math.sin(0.9 * tick)))
            put(self.root / MONITOR / f"in_power{rail}_input", text)
        degrees = 45000 + (elapsed_s * 20000 if self.fault == "temperature_drift" else 0)
        for zone in (1, 2):
            put(self.root / THERMAL / f"thermal_zone{zone}/temp", round(degrees))
        put(self.root / GPU / "cur_freq", 614400000 if self.fault == "clock_moved" and tick % 2 else 921600000)
        if self.fault == "clock_limits_changed":
            for limit in ("min_freq", "max_freq"):
                put(self.root / GPU / limit, 921600000 if tick % 7 < 3 else 640000000)
        proc(self.tmp_path, tick / 100 * (0.5 if self.fault == "other_load" else 0.0), tick / 100)


def test_valid_and_invalid_runs_of_a_nano_are_told_apart(kernels, board, tmp_path):
    faults = {2: "throttled", 3: "power_lost", 4: "temperature_drift", 6: "clock_limits_changed", 7: "clock_moved"}
    faults[8] = "other_load"
    path = write(tmp_path, variants="[baseline, auto]", repeats=4, idle_s=0.3)
    with Replay(tmp_path, board, faults) as replay:
        assert run_sweep(path, Hooks(began=replay.begins)) == "complete"
    first, session, *_ = lines_of(tmp_path / "out")
    assert (first["type"], first["n_runs"], first["settings"]["repeats"]) == ("campaign", 8, 4)
    assert (session["type"], session["board"]) == ("session", "NVIDIA Jetson Nano Developer Kit")
    assert (session["rail"], session["pinned"]) == ("POM_5V_IN", ["gpu"])
    assert "5 V input" in session["rail_note"]
    (idle,) = of(tmp_path / "out", "idle")
    assert idle["valid"], idle["reasons"]
    runs = of(tmp_path / "out", "run")
    assert [run["order"] for run in runs] == list(range(1, 9))
    for run in runs:
        expected = faults.get(run["order"])
        assert run["valid"] is (expected is None), run["reasons"]
        if expected is not None:
            assert expected in codes(run)
            assert not {"throttled", "power_lost", "clock_moved", "other_load"} - {expected} & set(codes(run))
    for run in runs:
        assert "PMIC-Die" not in run["temp_c"]
        assert set(run["temp_c"]) >= {"CPU-therm", "GPU-therm"}
        assert run["frames"] >= 1
        assert run["fps"] == pytest.approx(run["frames"] / run["window_s"], rel=1e-4)
        assert run["window_s"] >= 0.3
        assert list(run["stage_ms"]) == ["project", "duplicate", "sort", "ranges", "rasterize"]
        assert run["scene"] == {
            "path": "dial",
            "format": "synth",
            "sha256": dial(60).sha256,
            "n_splats": 60,
            "sh_degree": dial(60).sh_degree,
        }
    good = [run for run in runs if run["valid"]]
    for run in [*good, idle]:
        # 5 W is what goes into the board; 8 would be with the parts of it counted twice
        assert run["energy"]["rail"] == "POM_5V_IN"
        assert run["energy"]["mean_w"] == pytest.approx(5.0, abs=0.9)
        assert set(run["power"]) == {"POM_5V_IN", "POM_5V_GPU", "POM_5V_CPU"}
        assert run["power"]["POM_5V_IN"]["mean_w"] == run["energy"]["mean_w"]
        assert run["power"]["POM_5V_IN"]["sd_w"] > 0.1
        assert run["sources"]["power_w"] == "sysfs"
        n = len(run["series"]["t_s"])
        assert n >= run["samples"]
        columns = [column for kind in ("power_w", "temp_c", "clk_hz") for column in run["series"][kind].values()]
        assert {len(column) for column in columns} == {n}
    for run in good:
        energy = run["energy"]
        assert energy["j_per_frame"] == pytest.approx(energy["energy_j"] / run["frames"], abs=1e-5)
        assert energy["net_w"] == pytest.approx(energy["mean_w"] - idle["energy"]["mean_w"], abs=1e-4)
        assert (energy["idle_id"], run["notes"]) == ("idle-1", [])
        assert sum(energy["stage_j"].values()) == pytest.approx(energy["energy_j"], abs=1e-3)
    lost = next(run for run in runs if faults.get(run["order"]) == "power_lost")
    assert (lost["power"], lost["energy"]) == ({}, None)
    assert "ina3221" in lost["power_missing"]
    end = lines_of(tmp_path / "out")[-1]
    assert {key: end[key] for key in ("type", "reason", "done", "of", "invalid")} == {
        "type": "end",
        "reason": "complete",
        "done": 8,
        "of": 8,
        "invalid": 6,
    }


def test_a_nano_2gb_has_no_power_rather_than_none_watts(kernels, board, tmp_path, capsys):
    shutil.rmtree(str(board / "bus/i2c"))
    assert main(write(tmp_path)) == 0
    for record in of(tmp_path / "out", "run") + of(tmp_path / "out", "idle"):
        assert record["valid"], record["reasons"]
        assert (record["power"], record["energy"], record["series"]["power_w"]) == ({}, None, {})
        assert record["power_missing"] == "this machine has no power monitor that edgegs can read"
        assert "no_power" in [one["code"] for one in record["notes"]]
    assert of(tmp_path / "out", "session")[0]["rail"] is None
    with open(str(tmp_path / "out/results.csv"), newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["mean_w"], row["j_per_frame"], row["rail"], row["valid"]) for row in rows] == [("", "", "", "1")] * 2
    assert all(float(row["fps"]) > 0 for row in rows)
    assert "2 of 2 runs measured, 0 of them invalid" in capsys.readouterr().out


def test_without_sensors_there_are_frame_rates(kernels, tmp_path, board):
    path = write(tmp_path, telemetry="{source: none, interval_s: 0.02}", idle_s=0, repeats=1)
    assert run_sweep(path) == "complete"
    (run,) = of(tmp_path / "out", "run")
    assert (run["temp_c"], run["power_missing"], run["throttle"]) == ({}, "telemetry.source is none", None)
    assert not {"too_few_samples", "sample_gap"} & set(codes(run))


def test_a_cap_is_kept_and_a_file_is_drawn_as_asked(kernels, board, tmp_path):
    write_ply(str(tmp_path / "a.ply"), dial(90, 1))
    changes = {"scenes": "[{path: a.ply, splats: [null, 50]}]", "fps_caps": "[20]", "repeats": 1}
    assert run_sweep(write(tmp_path, **changes)) == "complete"
    runs = {run["params"]["splats"]: run for run in of(tmp_path / "out", "run")}
    assert {splats: run["scene"]["n_splats"] for splats, run in runs.items()} == {None: 90, 50: 50}
    for run in runs.values():
        assert run["frames"] <= 20 * run["window_s"] + 2
        assert run["run_id"].startswith("a-")


# ---- going on ----------------------------------------------------------------------------------------------

EDGEGS = """
import sys
import edgegs.cli
edgegs.cli.VERBS = tuple(dict.fromkeys((*edgegs.cli.VERBS, "sweep")))
sys.exit(edgegs.cli.main(sys.argv[1:]))
"""


@contextlib.contextmanager
def started(path):
    """The command as a process of its own."""
    command = [sys.executable, "-c", EDGEGS, "sweep", str(path)]
    environ = dict(os.environ, PYTHONPATH=str(ROOT))
    with open(str(path) + ".log", "wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environ)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait_for_runs(folder, n):
    end = time.monotonic() + 60
    path = folder / "results.jsonl"
    # up to the last line break: a reader may see half of a line
    while not path.exists() or path.read_bytes().rpartition(b"\n")[0].count(b'"type":"run"') < n:
        assert time.monotonic() < end, "waited for 60 s"
        time.sleep(0.01)


def test_killed_in_the_middle_no_run_is_lost_and_none_is_doubled(kernels, board, tmp_path):
    path, out = write(tmp_path, variants="[baseline, auto]", repeats=3), tmp_path / "out"
    with started(path) as process:
        wait_for_runs(out, 2)
        process.send_signal(signal.SIGKILL)
        process.wait()
    before = of(out, "run")
    with open(str(out / "results.jsonl"), "ab") as file:  # what a power cut leaves of a line
        file.write(b'{"schema":1,"kind":"sweep","type":"run","run_id":"dial-60')
    assert 2 <= len(before) < 6
    assert not (out / "results.csv").exists()
    assert main(path) == 0
    runs = of(out, "run")
    assert runs[: len(before)] == before
    plan = load_campaign(path).plan()
    assert [run["run_id"] for run in runs] == [one.run_id for one in plan]
    assert {run["attempt"] for run in runs} == {1}
    assert [one["session"] for one in of(out, "session")] == [1, 2]
    assert [one["reason"] for one in of(out, "end")] == ["complete"]
    assert len(of(out, "idle")) == 2, "an idle baseline for each start"
    size = (out / "results.jsonl").stat().st_size
    assert main(path) == 0
    assert (out / "results.jsonl").stat().st_size == size, "nothing is left to do"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_gives_up_the_run_under_way_and_the_same_command_goes_on(kernels, board, tmp_path, number, code):
    path, out = write(tmp_path, measure_s=0.5), tmp_path / "out"
    with started(path) as process:
        wait_for_runs(out, 1)
        process.send_signal(number)
        assert process.wait(30) == code
    assert [one["reason"] for one in of(out, "end")] == [number.name]
    assert len(of(out, "run")) == 1
    with open(str(out / "results.csv"), newline="") as file:
        assert len(list(csv.DictReader(file))) == 1
    assert "the same command goes on" in Path(str(path) + ".log").read_text()
    if number == signal.SIGINT:
        return
    assert main(path) == 0
    assert len({run["run_id"] for run in of(out, "run")}) == len(of(out, "run")) == 2


@pytest.fixture
def measured(kernels, board, tmp_path):
    """A campaign of one run, done."""
    path = write(tmp_path, repeats=1, idle_s=0)
    assert main(path) == 0
    return path


def test_another_campaign_does_not_go_into_the_same_folder(measured, tmp_path):
    path = write(tmp_path, repeats=2, idle_s=0, rules=None)
    path.write_text(path.read_text() + "rules: {min_measure_s: 0.1, min_samples: 3}\n")
    with pytest.raises(ConfigError) as caught:
        main(path)
    assert "differs in repeats, rules.max_gap_periods, rules.min_frames" in str(caught.value)
    assert "another out" in str(caught.value)
    assert main(write(tmp_path, repeats=1, idle_s=0)) == 0


def test_another_machine_does_not_go_into_the_same_folder(measured, tmp_path, board):
    lines = (tmp_path / "out/results.jsonl").read_text()
    (tmp_path / "out/results.jsonl").write_text(lines.replace("-r1", "-r9"))  # so that there is something to measure
    put(board / "firmware/devicetree/base/model", "NVIDIA Jetson Nano 2GB Developer Kit")
    with pytest.raises(ConfigError, match=r"measured with board NVIDIA Jetson Nano Developer Kit, and this is .*2GB"):
        main(measured)
    assert lines_of(tmp_path / "out")[-1]["reason"] == "error"


def test_a_scene_that_was_changed_meanwhile(kernels, board, tmp_path):
    write_ply(str(tmp_path / "a.ply"), dial(60, 1))
    path = write(tmp_path, scenes="[a.ply]", splats="[null]", idle_s=0)
    count = []
    hooks = Hooks(began=lambda *_: count.append(1), stopped=lambda: "SIGTERM" if len(count) > 1 else None)
    assert run_sweep(path, hooks) == "SIGTERM"
    assert len(of(tmp_path / "out", "run")) == 1
    write_ply(str(tmp_path / "a.ply"), dial(60, 2))
    with pytest.raises(ConfigError, match=r"a\.ply: is not the file that .*results\.jsonl was measured with"):
        main(path)


def test_zeros_at_the_end_are_cut_off_and_damage_in_the_middle_is_told(measured, tmp_path):
    results = tmp_path / "out/results.jsonl"
    good = results.read_bytes()
    results.write_bytes(good + b"\0" * 700)
    assert main(measured) == 0
    assert results.read_bytes() == good
    results.write_bytes(good + b"\0" * 100 + b"\n" + b"\0" * 100)
    assert main(measured) == 0
    assert results.read_bytes() == good
    results.write_bytes(good[:40])  # cut off in its first line
    assert main(measured) == 0
    assert len(of(tmp_path / "out", "run")) == 1
    lines = good.split(b"\n")
    results.write_bytes(b"\n".join([lines[0], b"{garbage", *lines[1:]]))
    with pytest.raises(ConfigError, match=r"results\.jsonl:2: is damaged in the middle"):
        main(measured)
    results.write_bytes(b'{"type":"start","schema":1}\n')
    with pytest.raises(ConfigError, match="is not of this version's"):
        main(measured)


def test_a_campaign_that_was_cut_off_behind_its_last_run_is_complete(measured, tmp_path):
    results = tmp_path / "out/results.jsonl"
    lines = results.read_bytes().splitlines(keepends=True)
    assert b'"type":"end"' in lines[-1]
    results.write_bytes(b"".join(lines[:-1]))
    assert main(measured) == 0
    end = lines_of(tmp_path / "out")[-1]
    assert (end["type"], end["reason"], end["done"], end["of"], end["session"]) == ("end", "complete", 1, 1, 1)
    assert len(lines_of(tmp_path / "out")) == len(lines)


def test_readings_are_in_the_file_and_not_in_memory(measured, tmp_path):
    """A campaign of thousands of runs would fill a small board's."""
    campaign = load_campaign(measured)
    assert all(run["series"]["t_s"] for run in of(tmp_path / "out", "run"))
    with contextlib.closing(Results(campaign.out, campaign.sha256(), {"settings": campaign.settings()})) as results:
        assert results.append("run", {"run_id": "x", "series": {"t_s": [1]}})["run_id"] == "x"
        assert not any("series" in record for record in results.records)
    assert of(tmp_path / "out", "run")[-1]["series"] == {"t_s": [1]}


def test_what_is_left_counts_loading_and_the_baselines_to_come(tmp_path, kernels, board, monkeypatch):
    path = write(tmp_path, power_modes="[0, 1]", idle_every_s=1000, warmup_max_s=0.05)
    whole_load = sweep_module.Sweep._load
    told = []

    def slow(self, *arguments):
        time.sleep(0.1)
        return whole_load(self, *arguments)

    class Modes:
        def set(self, mode):
            pass

    monkeypatch.setattr(sweep_module.Sweep, "_load", slow)
    assert run_sweep(path, Hooks(began=lambda *said: told.append(said[3])), modes=Modes()) == "complete"
    assert len(told) == 4
    assert told[0] == pytest.approx(4 * 0.35 + 2 * 0.2)
    assert told[1] > 3 * (0.1 + 0.35) + 0.2, "the other mode has no baseline yet"


def test_power_may_go_at_any_byte(tmp_path):
    """What is whole is kept, whether the rest is missing or zeros; the next line begins a line."""
    where, header = tmp_path / "out", {"settings": {"repeats": 1}}
    with contextlib.closing(Results(str(where), "0" * 64, header)) as results:
        for number in range(3):
            results.append("run", {"run_id": f"r{number}", "valid": True, "series": {"t_s": [0.5] * 9}})
    path = where / "results.jsonl"
    good = path.read_bytes()
    ends = [i + 1 for i, byte in enumerate(good) if byte == 10]
    for cut in sorted({*range(0, len(good), 29), *ends, *(end - 1 for end in ends)}):
        for tail in (b"", b"\0" * 50):
            path.write_bytes(good[:cut] + tail)
            with contextlib.closing(Results(str(where), "0" * 64, header)) as results:
                whole = sum(end <= cut for end in ends)
                assert results.done() == {f"r{number}" for number in range(whole - 1)}
                results.append("run", {"run_id": "next", "valid": True})
            assert path.read_bytes().startswith(good[: max([end for end in ends if end <= cut], default=0)])
            kinds = [one["type"] for one in lines_of(where)]
            assert kinds == ["campaign"] + ["run"] * max(1, whole)


def test_only_one_writes(measured, tmp_path):
    campaign = load_campaign(measured)
    header = {"settings": campaign.settings()}
    with contextlib.closing(Results(campaign.out, campaign.sha256(), header)):
        with pytest.raises(OutputError, match="another `edgegs sweep` is writing it"):
            main(measured)


def test_a_full_disk_costs_the_line_and_not_the_file(measured, tmp_path, monkeypatch):
    campaign = load_campaign(measured)
    good = (tmp_path / "out/results.jsonl").read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    with contextlib.closing(Results(campaign.out, campaign.sha256(), {"settings": campaign.settings()})) as results:
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(OutputError, match="No space left on device"):
            results.append("run", {})
    assert (tmp_path / "out/results.jsonl").read_bytes() == good


def test_the_folder_above_out_is_not_made(kernels, board, tmp_path):
    with pytest.raises(OutputError, match="does not exist, and only the last folder is made"):
        main(write(tmp_path, out="no/out"))
    assert not (tmp_path / "no").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises((OutputError, AccessError)):
        main(write(tmp_path, out="file"))


def test_an_invalid_run_is_kept_and_made_again_only_when_asked_for(kernels, board, tmp_path, capsys, caplog):
    put(board / THERMAL / "cooling_device1/cur_state", 1)
    path, out = write(tmp_path, idle_s=0), tmp_path / "out"
    assert main(path) == 1, "nothing that could be published"
    assert "--retry-invalid makes these once more" in capsys.readouterr().out
    assert "with --retry-invalid" in caplog.text
    assert main(path, "--json") == 1
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (summary["done"], summary["invalid"], summary["causes"]["throttled"]) == (2, 2, 2)
    put(board / THERMAL / "cooling_device1/cur_state", 0)
    assert main(path, "--retry-invalid") == 0
    runs = of(out, "run")
    assert [(run["attempt"], run["valid"]) for run in runs] == [(1, False), (1, False), (2, True), (2, True)]
    assert {run["run_id"] for run in runs[:2]} == {run["run_id"] for run in runs[2:]}
    with open(str(out / "results.csv"), newline="") as file:
        assert [row["attempt"] for row in csv.DictReader(file)] == ["2", "2"]


def test_a_configuration_that_cannot_be_drawn_does_not_stop_the_others(kernels, board, tmp_path, monkeypatch):
    whole_renderer = sweep_module.Renderer

    def small(backend, scene, *arguments):
        if scene.n_splats > 60:
            raise DeviceError("the scene needs 9 GB, and the device has 4")
        return whole_renderer(backend, scene, *arguments)

    monkeypatch.setattr(sweep_module, "Renderer", small)
    assert main(write(tmp_path, splats="[60, 90]", repeats=1, idle_s=0)) == 0
    runs = {run["params"]["splats"]: run for run in of(tmp_path / "out", "run")}
    assert runs[60]["valid"]
    assert runs[90]["reasons"] == [{"code": "failed", "text": "the scene needs 9 GB, and the device has 4"}]
    assert "fps" not in runs[90]


# ---- the command -------------------------------------------------------------------------------------------


def test_a_dry_run_prints_the_plan_and_touches_nothing(tmp_path, capsys):
    path = write(tmp_path, power_modes="[0, 1]")
    assert main(path, "--dry-run") == 0
    printed = capsys.readouterr().out
    assert "   1  dial-60-48x32-baseline-0fps-mode" in printed
    assert "4 runs; at least 1.8 s; results: " in printed
    assert main(path, "--dry-run", "--json") == 0
    assert [one["order"] for one in json.loads(capsys.readouterr().out)["runs"]] == [1, 2, 3, 4]
    assert not (tmp_path / "out").exists()


def test_a_dry_run_tells_what_is_left(kernels, board, tmp_path, capsys):
    path, out = write(tmp_path, idle_s=0, variants="[baseline, auto]"), tmp_path / "out"
    count = []
    hooks = Hooks(began=lambda *_: count.append(1), stopped=lambda: "SIGTERM" if len(count) > 1 else None)
    assert run_sweep(path, hooks) == "SIGTERM"
    before = (out / "results.jsonl").read_bytes()
    plan = load_campaign(path).plan()
    assert main(path, "--dry-run") == 0
    printed = capsys.readouterr().out
    assert plan[0].run_id not in printed
    assert f"   2  {plan[1].run_id}\n" in printed
    assert "3 runs of 4, the others are there; at least " in printed
    assert main(path, "--dry-run", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (len(told["runs"]), told["done"], told["of"]) == (3, 1, 4)
    (out / "results.jsonl").write_bytes(before.replace(b'"valid":true', b'"valid":false'))
    assert main(path, "--dry-run", "--retry-invalid") == 0
    assert "4 runs; " in capsys.readouterr().out
    with pytest.raises(ConfigError, match="holds results of a campaign that differs in repeats"):
        main(write(tmp_path, idle_s=0, repeats=9), "--dry-run")
    (out / "results.jsonl").write_bytes(b"my notes\n")
    with pytest.raises(ConfigError, match="is not of `edgegs sweep`"):
        main(path, "--dry-run")
    assert (out / "results.jsonl").read_bytes() == b"my notes\n"
    assert [one.name for one in out.iterdir()] == ["results.jsonl"]


def test_what_is_refused_before_anything_is_measured(tmp_path):
    for changes in ({"power_modes": "[0]"}, {"pin_clocks": "true"}):
        with pytest.raises(UsageError, match="--allow-power-modes"):
            main(write(tmp_path, **changes))
    with pytest.raises(UsageError, match="leave --allow-power-modes out"):
        main(write(tmp_path), "--allow-power-modes")
    with pytest.raises(InputError, match=r"none\.ply"):
        main(write(tmp_path, scenes="[none.ply]", splats="[null]"))
    with pytest.raises(ConfigError, match="variants: no variant 'basline'; did you mean 'baseline'"):
        main(write(tmp_path, variants="[basline]"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("content", [b"my notes\nof the day\n", b'{"a": 1}\n{"b": 2}\n', b"a,b\n1,2", b"no line end"])
def test_a_file_that_is_not_ours_is_never_cut(tmp_path, content):
    from edgegs.bench.sweep_results import Results
    from edgegs.errors import ConfigError

    (tmp_path / "results.jsonl").write_bytes(content)
    with pytest.raises(ConfigError):
        Results(str(tmp_path), "0" * 64, {"settings": {}})
    assert (tmp_path / "results.jsonl").read_bytes() == content
