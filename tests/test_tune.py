"""``edgegs tune``: measured on the host backend, within the image bar; and ``auto`` draws with what was found.

No time is judged: where one has to win, it is given out by the test.
"""

from __future__ import annotations

import json
import logging
import time
from contextlib import nullcontext

import numpy as np
import pytest
import scenes

import edgegs.bench.tune
import edgegs.reload
import edgegs.tuned
from edgegs.bench.bench import BURST, Sample, choices_of, compared_ms
from edgegs.bench.tune import Row, Tuning, ViewContender, candidates, choose
from edgegs.cli import main
from edgegs.cli.tune import choose_cameras, make_job
from edgegs.config import load_config
from edgegs.drawing import Show, load_scene, signature
from edgegs.errors import ConfigError, DeviceError, DeviceLost, UsageError
from edgegs.frame import STAGES
from edgegs.kernels.variants import BASELINE, BEST, DEFAULTS, EXACT, ROOFGS, VARIANTS, WIDE, drawable, variant
from edgegs.pack import PackedScene, quantise
from edgegs.pack.egs import write_egs
from edgegs.renderer import Renderer
from edgegs.scene import Scene, write_ply
from edgegs.tuned import Answer, Board, find, keep, scene_digest

PACKED = "packed-split-tight-fast-dual"
DEFAULT = DEFAULTS["host"]
QUICK = ["--views", "2", "--repeats", "2", "--warmup", "0"]
ANSWER = Answer(PACKED, "2026-11-30T18:00:00Z", 7.5, 2.0, 58.25, 6)


@pytest.fixture
def folder(kernels, tmp_path, monkeypatch):
    """Where answers are kept: not where other tests look for some."""
    monkeypatch.setattr(edgegs.tuned, "cache_dir", lambda: tmp_path / "cache")
    return tmp_path / "cache" / "tuned"


@pytest.fixture
def ply(folder, tmp_path):
    path = str(tmp_path / "scene.ply")
    write_ply(path, scenes.cloud(150))
    return path


@pytest.fixture
def config(ply, tmp_path):
    """Writes a configuration and returns its path."""

    def write(render="", camera="path: {kind: fixed, eye: [0, 0, -1], target: [0, 0, 3]}"):
        path = tmp_path / "edgegs.yaml"
        path.write_text(
            f"scene: {{path: scene.ply}}\ncamera: {{width: 48, height: 32, {camera}}}\n"
            f"render: {{backend: host, target_fps: 0{render}}}\noutputs: ['null:']\n"
            "telemetry: {interval_s: 0.1, log: {dir: runs}}\n"
        )
        return str(path)

    return write


@pytest.fixture
def given(monkeypatch):
    """Frames of a variant cost what it is given here, others 10 ms; pictures are spoilt by so many steps."""
    costs, spoilt = {}, {}
    draw = ViewContender.draw

    def fake(self):
        sample = draw(self)
        if self.name in spoilt:
            self._image = np.clip(self._image.astype(int) + spoilt[self.name], 0, 255).astype(np.uint8)
        ms = costs.get(self.name, 10.0)
        return Sample(dict.fromkeys(STAGES, ms / len(STAGES)), ms, sample.frame_ms)

    monkeypatch.setattr(ViewContender, "draw", fake)
    return costs, spoilt


def tuned(capsys, *arguments):
    """Run ``edgegs tune --json`` and return its document."""
    assert main(["tune", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def rows_of(document):
    return {row["name"]: row for row in document["rows"]}


def remembered(path, config, host, answer=ANSWER):
    """Put an answer where the configuration's task looks for one."""
    from edgegs.choosing import task_of

    keep(task_of(load_config(config), Board.of(host)), scene_digest(path), answer)


# ---- measuring


def test_a_scene_is_measured_and_the_answer_kept(ply, folder, capsys, host):
    document = tuned(capsys, ply, "--size", "40x30", "--backend", "host", "--threads", "2", *QUICK)
    rows = rows_of(document)
    assert set(rows) == {one.name for one in candidates(48.9, DEFAULT)}
    assert {"baseline", "exact", "best", "wide", PACKED, "fp32-bins-tight-fast-patch16"} <= set(rows)
    assert "roofgs" not in rows
    assert document["n_views"] == 2
    assert document["reference"] == "baseline"
    assert rows["baseline"]["psnr_db"] is None, "equal to itself"
    base = rows["baseline"]["total_ms"]
    for row in rows.values():
        assert row["total_ms"] > 0
        assert set(row["stage_ms"]) == set(STAGES)
        assert row["stage_ms"]["rasterize"] > 0
        assert row["ratio_to_baseline"] == pytest.approx(base / row["total_ms"], rel=1e-2)
        assert row["is_good"] == (row["psnr_db"] is None or row["psnr_db"] >= 48.9)
        if row["name"] != "baseline":
            assert row["psnr_db"] > 40, "the same scene, seen from the same places"
    (chosen,) = [row for row in rows.values() if row["is_chosen"]]
    assert chosen["total_ms"] <= 1.02 * min(row["total_ms"] for row in rows.values() if row["is_good"])
    assert document["answer"]["variant"] == chosen["name"]
    (file,) = folder.iterdir()
    assert str(file) == document["file"]
    assert json.loads(file.read_text())["variant"] == chosen["name"]
    capsys.readouterr()
    assert main(["tune", ply, "--size", "40x30", "--backend", "host", "--threads", "2", "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["answer"] == document["answer"]


def test_the_table(config, capsys, given):
    costs, spoilt = given
    costs.update({"best": 2.0, "wide": 1.0})
    spoilt["wide"] = 20
    assert main(["tune", config(), *QUICK]) == 0
    out = capsys.readouterr().out
    lines = {line.split()[0]: line for line in out.splitlines() if line.split()}
    assert "1 view of the camera, 2 frames of each" in out
    assert lines["best"].endswith("chosen")
    assert " 5.00 " in lines["best"]
    assert lines["wide"].endswith("below 48.9 dB")
    assert lines[DEFAULT.name].endswith("the default")
    assert "exact" in lines["baseline"].split()
    assert "remembered for render.variant: auto: best" in out


def test_the_bar_excludes_what_spoils_the_picture_however_fast(ply, capsys, given):
    costs, spoilt = given
    costs.update({"best": 0.1, "wide": 1.0})
    spoilt["best"] = 4  # 36 dB
    document = tuned(capsys, ply, "--size", "40x30", "--backend", "host", *QUICK)
    rows = rows_of(document)
    assert rows["best"]["psnr_db"] < 40
    assert (rows["best"]["is_good"], rows["best"]["is_chosen"]) == (False, False)
    assert document["answer"]["variant"] == "wide"


def test_the_worst_view_decides(host, monkeypatch, given):
    """One bad view among good ones is enough."""
    draw = ViewContender.draw

    def bad_from_behind(self):
        sample = draw(self)
        if self.name == "best" and self.camera is cameras[1]:
            self._image = np.full_like(self._image, 255)
        return sample

    monkeypatch.setattr(ViewContender, "draw", bad_from_behind)
    scene = scenes.cloud(150)
    cameras = [scenes.camera(40, 30, 30.0) for _ in range(3)]
    rows = Tuning(host, scene, quantise(scene), cameras).measure([BASELINE, BEST], 0, 1)
    first, second, third = rows[1].views_db
    assert first == third > 48.9 > second
    assert rows[1].psnr_db == second
    assert choose(rows, 48.9).variant is BASELINE


def test_a_configuration_may_allow_more_error_and_bits(config, capsys, given):
    costs, spoilt = given
    costs.update({"best": 0.2, "roofgs": 0.1})
    spoilt["best"] = 4
    path = config(", max_error_db: 35")
    document = tuned(capsys, path, *QUICK)
    assert "roofgs" in rows_of(document)
    assert document["answer"]["variant"] == "roofgs"
    spoilt["roofgs"] = 30
    document = tuned(capsys, path, *QUICK)
    assert rows_of(document)["roofgs"]["is_good"] is False
    assert document["answer"]["variant"] == "best"
    document = tuned(capsys, config(", max_error_db: 100"), *QUICK)
    assert {name for name, row in rows_of(document).items() if row["is_good"]} <= {"baseline", "exact"}
    assert ROOFGS not in candidates(48.9, DEFAULT)
    assert ROOFGS not in candidates(60, DEFAULT)


@pytest.mark.parametrize(("value", "words"), [("29.9", "at least 30"), ("100.5", "at most 100"), ("low", "number")])
def test_wrong_errors_are_told(config, value, words):
    with pytest.raises(ConfigError, match=rf"render\.max_error_db.*{words}"):
        load_config(config(f", max_error_db: {value}"))


def test_who_wins():
    def row(name, ms, *views_db, refusal=""):
        return Row(variant(name), ms=ms, views_db=list(views_db), refusal=refusal)

    inf = float("inf")
    slow, fast = row("baseline", 10.0, inf, inf), row("best", 2.0, 60.0, 55.0)
    assert choose([slow, fast], 48.9) is fast
    assert choose([slow, fast], 58.0) is slow
    near = row(PACKED, 2.01, 70.0, 56.0)
    assert choose([slow, fast, near], 48.9) is near, "as fast, and better"
    assert choose([slow, fast, row(PACKED, 2.1, 70.0)], 48.9) is fast
    default = row(PACKED, 2.02, 50.0)
    assert choose([slow, fast, default], 48.9, variant(PACKED)) is default, "1 % is noise"
    default.ms = 2.04
    assert choose([slow, fast, default], 48.9, variant(PACKED)) is fast
    default.ms = 2.0
    assert choose([slow, fast, default], 51.0, variant(PACKED)) is fast, "the default misses the bar"
    assert choose([row("exact", float("inf"), refusal="no room"), slow], 48.9) is slow
    with pytest.raises(DeviceError, match="no room"):
        choose([row("exact", 0.0, refusal="no room")], 48.9)
    with pytest.raises(DeviceError):
        choose([row("best", 1.0, float("nan"))], 48.9)


@pytest.fixture
def queue(monkeypatch):
    """Gives out what a frame takes in a queue, by the raster that draws it: patch16 wins, whatever marks say."""
    asked, costs = [], {"patch16": 2.0, "patch8": 3.0}

    def queued(self, n_frames):
        asked.append((self.backend, n_frames))
        return costs.get(self.variant.raster, 8.0)

    monkeypatch.setattr(Renderer, "queued_ms", queued)
    return asked


def test_a_gpu_is_judged_by_frames_in_a_queue(host, monkeypatch, given, queue):
    """What marks between the stages of frames that are waited for say is only told."""
    monkeypatch.setattr(host, "depth", 2)  # as a GPU: works on a frame while another is read
    given[0].update({"best": 1.0, "wide": 5.0})
    scene = scenes.cloud(150)
    cameras = [scenes.camera(40, 30, 30.0) for _ in range(2)]
    rows = Tuning(host, scene, quantise(scene), cameras).measure([BASELINE, BEST, WIDE], 0, 1)
    assert [(row.total_ms, row.queued_ms) for row in rows] == [(10.0, 8.0), (1.0, 3.0), (5.0, 2.0)]
    assert queue == [(host, BURST)] * 6, "once a round, variant and view"
    chosen = choose(rows, 48.9)
    assert chosen.variant is WIDE
    found = edgegs.bench.tune.as_json(rows, chosen, 48.9)
    assert [row["ratio_to_baseline"] for row in found] == [1.0, 2.6667, 4.0]
    assert [(row["total_ms"], row["queued_ms"]) for row in found][2] == (5.0, 2.0)


def test_a_gpu_s_answer_says_what_was_compared(ply, capsys, host, monkeypatch, given, queue):
    monkeypatch.setattr(type(host), "depth", 2)
    given[0]["best"] = 1.0
    assert main(["tune", ply, "--size", "40x30", "--backend", "host", *QUICK]) == 0
    out = capsys.readouterr().out
    line = next(line for line in out.splitlines() if line.startswith("wide "))
    assert line.split()[1 + len(STAGES) :][:3] == ["10.0", "2.000", "4.00"], "total, queued, ×baseline"
    document = tuned(capsys, ply, "--size", "40x30", "--backend", "host", *QUICK)
    answer = document["answer"]
    assert rows_of(document)[answer["variant"]]["choices"]["raster"] == "patch16"
    assert (answer["total_ms"], answer["ratio_to_baseline"]) == (2.0, 4.0)


def test_a_processor_is_judged_by_its_stages(host, given, queue):
    given[0]["best"] = 1.0
    scene = scenes.cloud(150)
    rows = Tuning(host, scene, quantise(scene), [scenes.camera(40, 30, 30.0)]).measure([BASELINE, BEST, WIDE], 0, 1)
    assert queue == []
    assert [(row.ms, row.queued_ms) for row in rows] == [(10.0, None), (1.0, None), (10.0, None)]
    assert choose(rows, 48.9).variant is BEST


def test_queued_and_other_times_are_never_compared():
    assert compared_ms([2.0, 3.0], [5.0, 1.0]) == [2.0, 3.0]
    assert compared_ms([2.0, None], [5.0, 1.0]) == [5.0, 1.0]
    assert compared_ms([0.0, 3.0], [5.0, 1.0]) == [5.0, 1.0], "a clock too coarse"
    assert compared_ms([], []) == []


def test_a_packed_file_is_both_scenes_and_what_auto_takes_for_it_a_candidate(folder, tmp_path, capsys):
    path = str(tmp_path / "scene.egs")
    write_egs(path, quantise(scenes.cloud(150)))
    document = tuned(capsys, path, "--size", "40x30", "--backend", "host", *QUICK)
    rows = rows_of(document)
    assert rows[document["default"]]["choices"] == choices_of(variant("auto", "host", is_packed=True))
    write_ply(str(tmp_path / "scene.ply"), scenes.cloud(150))
    whole = rows_of(tuned(capsys, str(tmp_path / "scene.ply"), "--size", "40x30", "--backend", "host", *QUICK))
    assert rows[PACKED]["psnr_db"] > whole[PACKED]["psnr_db"], "what packing costs was paid before"


class Crowded:
    """A backend with room for so many renderers at once, of some variants for none."""

    def __init__(self, monkeypatch, room, never=()):
        self.open = self.most = 0
        real, close = ViewContender.__init__, ViewContender.close

        def init(contender, backend, scene, camera, chosen, background):
            if self.open >= room or chosen in never:
                raise DeviceError(f"{chosen.name}: no room")
            real(contender, backend, scene, camera, chosen, background)
            self.open += 1
            self.most = max(self.most, self.open)

        def closed(contender):
            self.open -= 1
            close(contender)

        monkeypatch.setattr(ViewContender, "__init__", init)
        monkeypatch.setattr(ViewContender, "close", closed)


def measured(host, tried):
    scene = scenes.cloud(100)
    tuning = Tuning(host, scene, quantise(scene), [scenes.camera(40, 30, 30.0)])
    return tuning, tuning.measure(tried, 0, 1)


def test_what_finds_no_room_beside_the_others_comes_after_them(host, monkeypatch):
    crowd = Crowded(monkeypatch, 2)
    _, rows = measured(host, candidates(48.9, DEFAULT))
    assert [row.variant for row in rows] == candidates(48.9, DEFAULT)
    assert all(row.total_ms < float("inf") and not row.refusal for row in rows)
    assert (crowd.open, crowd.most) == (0, 2)


def test_what_finds_none_alone_is_left_out(host, monkeypatch, given):
    given[0]["best"] = 0.1
    crowd = Crowded(monkeypatch, 3, never=[BEST])
    tuning, rows = measured(host, [BASELINE, BEST, EXACT])
    assert [row.refusal for row in rows] == ["", "best: no room", ""]
    assert choose(rows, 48.9).variant is not BEST
    assert crowd.open == 0
    assert tuning.reference is BASELINE


def test_without_room_for_baseline_another_exact_one_is_the_measure(host, monkeypatch):
    Crowded(monkeypatch, 9, never=[BASELINE])
    tuning, rows = measured(host, [BASELINE, EXACT, BEST])
    assert tuning.reference is EXACT
    assert rows[1].psnr_db == float("inf") > rows[2].psnr_db > 40
    (_, exact, best) = edgegs.bench.tune.as_json(rows, rows[2], 48.9)
    assert exact["ratio_to_baseline"] is best["ratio_to_baseline"] is None
    assert best["is_chosen"]


def test_without_anything_exact_there_is_no_answer(host, monkeypatch):
    Crowded(monkeypatch, 9, never=[BASELINE, EXACT])
    _, rows = measured(host, [BASELINE, EXACT, BEST])
    assert "no exact variant" in rows[2].refusal
    with pytest.raises(DeviceError, match="baseline: no room"):
        choose(rows, 48.9)


def test_a_lost_device_ends_it(host, monkeypatch):
    def lost(self):
        raise DeviceLost("gone")

    monkeypatch.setattr(ViewContender, "draw", lost)
    with pytest.raises(DeviceLost):
        measured(host, [BASELINE, EXACT])


@pytest.mark.parametrize("after", [1, 6, 20])
def test_ctrl_c_leaves_the_old_answer_and_nothing_else(config, ply, folder, capsys, host, monkeypatch, after):
    path = config(", threads: 2")
    remembered(ply, path, host)
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    draw, drawn, closed = ViewContender.draw, [], []

    def interrupted(self):
        drawn.append(self)
        if len(drawn) == after:
            raise KeyboardInterrupt
        return draw(self)

    monkeypatch.setattr(ViewContender, "draw", interrupted)
    close = ViewContender.close
    monkeypatch.setattr(ViewContender, "close", lambda self: (closed.append(self), close(self)))
    assert main(["tune", path, *QUICK]) == 130
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    assert set(map(id, closed)) == set(map(id, drawn)), "all were let go of"


def test_a_scene_that_changes_meanwhile_gives_no_answer(ply, folder, capsys, monkeypatch):
    import edgegs.cli.tune

    read = edgegs.cli.tune.read_scenes

    def replaced(*arguments):
        found = read(*arguments)
        write_ply(ply, scenes.cloud(150, seed=5))
        return found

    monkeypatch.setattr(edgegs.cli.tune, "read_scenes", replaced)
    assert main(["tune", ply, "--size", "40x30", "--backend", "host", *QUICK]) == 66
    assert "was written to meanwhile" in capsys.readouterr().err
    assert not list(folder.iterdir())


# ---- the command line


def test_a_dry_run_measures_and_keeps_nothing(config, ply, folder, capsys, host, monkeypatch):
    monkeypatch.setattr(edgegs.bench.tune, "Renderer", lambda *_: pytest.fail("something was drawn"))
    path = config(", threads: 2")
    assert main(["tune", path, "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "scene.ply, 48x32, 48.9 dB at least" in out
    assert "would be measured: baseline, exact, " in out
    assert out.endswith("nothing is remembered\n")
    assert not folder.exists()
    remembered(ply, path, host)
    assert main(["tune", path, "--dry-run", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert "wide" in told["variants"]
    assert told["answer"] == ANSWER._asdict()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["CONFIG", "--size", "64x48"], 2, "leave --size out"),
        (["CONFIG", "--backend", "host"], 2, "leave --backend out"),
        (["CONFIG", "--set", "render.max_error_db=5"], 78, "render.max_error_db"),
        (["CONFIG", "--set", "render.backend=reference"], 69, "edgegs kernels build"),
        (["CONFIG", "--set", "scene.path=/none.ply"], 66, "/none.ply"),
        (["PLY", "--set", "camera.width=64"], 2, "--set"),
        (["PLY", "--size", "0x0"], 2, "1 to 8192"),
        (["PLY", "--views", "0"], 2, "from 1"),
        (["none.ply"], 66, "none.ply"),
        (["none.yaml"], 66, "none.yaml"),
    ],
)
def test_bad_arguments(config, ply, folder, capsys, arguments, code, words):
    named = {"CONFIG": config(), "PLY": ply}
    try:
        got = main(["tune", *(named.get(argument, argument) for argument in arguments)])
    except SystemExit as stop:  # argparse's own refusals
        got = stop.code
    assert got == code
    err = capsys.readouterr().err
    assert words in err
    assert "Traceback" not in err
    assert not folder.exists() or not list(folder.iterdir())


def test_without_a_place_for_the_answer_nothing_is_measured(ply, tmp_path, capsys, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(edgegs.tuned, "cache_dir", lambda: tmp_path / "file")
    monkeypatch.setattr(edgegs.bench.tune, "Renderer", lambda *_: pytest.fail("something was drawn"))
    assert main(["tune", ply, "--size", "40x30", "--backend", "host"]) == 73
    assert "file/tuned" in capsys.readouterr().err


def test_a_camera_that_sees_nothing_gives_no_answer(config, folder, capsys):
    path = config(camera="path: {kind: fixed, eye: [0, 0, -50], target: [0, 0, -90]}")
    assert main(["tune", path, *QUICK]) == 2
    assert "not one of 1 views sees any" in capsys.readouterr().err
    assert not list(folder.iterdir())


def test_a_configuration_that_names_its_variant_is_told(config, caplog, given):
    path = config(", variant: exact")
    with caplog.at_level(logging.WARNING):
        assert main(["tune", path, *QUICK]) == 0
    assert f"{path}: render.variant is exact, so this is not used there" in caplog.messages


@pytest.mark.parametrize(
    ("camera", "n", "words"),
    [
        ("path: {kind: orbit, period_s: 8}", 4, "along"),
        ("path: {kind: keyframes, loop: false, keys: [{eye: [0, 0, -1], target: [0, 0, 3]}, "
         "{eye: [1, 0, -1], target: [0, 0, 3]}]}", 4, "along"),
        ("path: {kind: fixed, eye: [0, 0, -1], target: [0, 0, 3]}", 1, "of the camera"),
        ("path: {kind: interactive}", 4, "home and around"),
        ("fov_y_deg: 70", 4, "along"),
    ],
)  # fmt: skip
def test_views_are_those_of_the_camera(config, host, camera, n, words):
    job = make_job(None, load_config(config(camera=camera), ["outputs=['display://0']"]), host)
    found, cameras = choose_cameras(job, scenes.cloud(150), 4)
    assert words in found
    assert len(cameras) == n
    assert len({camera.viewmat.tobytes() for camera in cameras}) == n, "no view twice"
    assert {(camera.width, camera.height) for camera in cameras} == {(48, 32)}


# ---- auto


def test_render_draws_with_the_answer(ply, folder, tmp_path, capsys, caplog, host):
    from edgegs.tuned import Task

    keep(Task(Board.of(host), 64, 48), scene_digest(ply), ANSWER)
    drawing = ["render", ply, "--json", "--backend", "host", "--threads", "2"]

    def drawn(*arguments):
        assert main([*drawing, *arguments]) == 0
        return json.loads(capsys.readouterr().out)["variant"]

    with caplog.at_level(logging.INFO):
        assert drawn("--size", "64x48") == PACKED
    assert any(PACKED in message and ANSWER.date in message for message in caplog.messages)
    assert drawn("--size", "64x47") == DEFAULT.name
    assert drawn("--size", "64x48", "--variant", "baseline") == "baseline"
    assert drawn("--size", "64x48", "--max-gaussians", "149") == DEFAULT.name
    assert drawn("--size", "64x48", "--threads", "1") == DEFAULT.name


def show_of(config):
    return Show(load_config(config, ["render.threads=2"]), lambda done, of: None)


def test_a_show_prepares_and_draws_with_the_answer(config, ply, host, caplog):
    path = config(", threads: 2")

    def opened():
        show = show_of(path)
        show.open_backend()
        scene = show.load()
        show.open_inputs()
        show.bring(scene)
        return show, scene

    show, scene = opened()
    assert isinstance(scene, Scene)
    assert (show.facts["variant"], show.scene.variant) == (DEFAULT.name, "auto")
    show.close()
    remembered(ply, path, host)
    with caplog.at_level(logging.INFO):
        show, scene = opened()
    try:
        assert isinstance(scene, PackedScene), "decided before the scene was prepared"
        assert (show.facts["variant"], show.scene.variant) == (PACKED, PACKED)
        assert show.collect(show.begin(0.0)).n_visible > 0
        assert any(PACKED in message and ANSWER.date in message for message in caplog.messages)
        show.reopen_device()
        assert show.facts["variant"] == PACKED
    finally:
        show.close()
    other = Show(load_config(path, ["camera.width=64"]), lambda done, of: None)
    other.open_backend()
    assert isinstance(other.load(), Scene)
    other.close()


def test_a_run_says_it_in_its_log(config, ply, host, tmp_path):
    path = config(", threads: 2")
    remembered(ply, path, host)
    assert main(["run", path, "--frames", "2"]) == 0
    (log,) = (tmp_path / "runs").glob("*/telemetry.jsonl")
    start = next(record for record in map(json.loads, log.read_text().splitlines()) if record["type"] == "start")
    assert start["variant"] == PACKED


def test_a_reload_takes_an_answer_that_came_meanwhile(config, ply, host):
    path = config(", threads: 2")
    settings = load_config(path)

    def loaded():
        return load_scene(settings, Board.of(host), lambda: nullcontext(host), lambda done, of: None)[1]

    facts = loaded()
    assert facts.variant == "auto"
    assert not edgegs.reload.needs_renderer(settings, settings, facts)
    remembered(ply, path, host)
    assert edgegs.reload.needs_renderer(settings, settings, facts)
    reload = edgegs.reload.Reload(lambda: settings, settings, facts, "host")
    until = time.monotonic() + 20
    while not reload.is_done:
        assert time.monotonic() < until
        time.sleep(0.002)
    assert reload.error is None
    assert isinstance(reload.scene, PackedScene)
    assert reload.facts.variant == PACKED
    assert reload.facts.signature == signature(ply)
    assert not edgegs.reload.needs_renderer(settings, settings, reload.facts)
    stricter = load_config(path, ["render.max_error_db=60"])
    assert edgegs.reload.needs_renderer(settings, stricter, reload.facts), "nothing was measured within that"
    named = load_config(path, ["render.variant=exact"])
    assert edgegs.reload.needs_renderer(settings, named, reload.facts)


def test_a_swap_draws_with_what_the_reload_decided(config, ply, host):
    path = config(", threads: 2")
    show = show_of(path)
    show.open_backend()
    scene = show.load()
    show.open_inputs()
    show.bring(scene)
    try:
        remembered(ply, path, host)
        scene, facts = load_scene(show.config, show.scene.board, lambda: nullcontext(host), lambda done, of: None)
        show.swap(show.config, scene, facts)
        assert show.facts["variant"] == PACKED
        assert show.config.render.variant == "auto", "the configuration stays what it says"
    finally:
        show.close()


def test_a_named_variant_asks_no_answers(config, ply, host, monkeypatch):
    path = config(", threads: 2, variant: baseline")
    monkeypatch.setattr("edgegs.choosing.find", lambda *_: pytest.fail("it was named"))
    _, facts = load_scene(load_config(path), Board.of(host), lambda: nullcontext(host), lambda done, of: None)
    assert facts.variant == "baseline"


def test_every_candidate_can_be_named():
    default = variant("packed-split-radius-fast-dual")
    tried = candidates(30, default)
    assert [variant(one.name) for one in tried] == tried
    assert {*drawable(VARIANTS.values(), tensor_cores=False), default} <= set(tried)
    assert set(candidates(30, default, tensor_cores=True)) - set(tried) == {variant("tensor"), variant("tensor-wide")}
    assert tried[0] is BASELINE
    assert tried[1] is EXACT
    assert len(candidates(48.9, variant("roofgs"))) == len(tried) - 2, "not even as the default"


def test_the_answer_of_a_scene_file_serves_a_configuration(ply, config, capsys, host, given):
    given[0]["best"] = 1.0
    tuned(capsys, ply, "--size", "48x32", "--backend", "host", "--threads", "2", *QUICK)
    task = make_job(None, load_config(config(", threads: 2")), host).task
    assert find(task, ply).variant == "best"


def test_no_view_sees_any(host):
    scene = scenes.one(mean=(0, 0, -5))
    with pytest.raises(UsageError, match="sees any"):
        Tuning(host, scene, quantise(scene), [scenes.camera(40, 30, 30.0)]).measure([BASELINE], 0, 1)
