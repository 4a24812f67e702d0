"""``edgegs bench``: fair turns, ratios that can be recomputed, ledgers, and bad input. No time is judged."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import scenes

from edgegs.bench import bench, ladder, ledger, peers
from edgegs.bench.bench import BURST, TURN, Contender, Sample, VariantContender, compare, measure, resolve
from edgegs.cli import main
from edgegs.errors import DeviceError
from edgegs.frame import STAGES
from edgegs.kernels.variants import LADDER, drawable
from edgegs.scene import write_ply

ROOT = Path(__file__).resolve().parent.parent
TINY = ["dial", "-n", "60", "--size", "40x30", "--backend", "host", "--warmup", "1", "--repeats", "3"]
#: Of the ladder, those that the host draws.
RUNGS = drawable(LADDER, tensor_cores=False)


@pytest.fixture
def ledger_folder(kernels, tmp_path):
    """A ladder measured and kept; and what it printed as JSON lies in its row."""
    folder = tmp_path / "ladder"
    assert main(["bench", *TINY, "--ladder", "--ledger", str(folder)]) == 0
    return folder


class Fake(Contender):
    """Costs ``share`` of a clock that ticks slower and slower."""

    def __init__(self, name, log, share=1.0, in_flight=1):
        self.name, self.log, self.share, self.in_flight = name, log, share, in_flight

    def draw(self):
        self.log.append(self.name)
        ms = self.share * (1 + 0.01 * len(self.log))
        return Sample({"sort": ms / 4, "rasterize": ms * 3 / 4}, ms, 2 * ms)

    def burst(self, n_frames):
        self.log.append(self.name + " burst")
        return float(n_frames)

    def picture(self):
        return np.zeros((30, 40, 3), np.uint8)


def test_contenders_take_turns():
    log = []
    measure([Fake("a", log), Fake("b", log, in_flight=2)], warmup=2, repeats=TURN + 1)
    turn_a, turn_b = ["a"] * (1 + TURN), ["b"] * (1 + TURN)
    expected = ["a"] * 2 + ["b"] * 2 + turn_a + turn_b + ["b burst"] + ["b"] * 2 + ["b burst"] + ["a"] * 2
    assert log == expected


def test_drift_hits_all_alike():
    log = []
    contenders = [Fake(name, log) for name in "abc"]
    measurements = measure(contenders, warmup=3, repeats=12 * TURN)
    medians = [np.median([sample.total_ms for sample in m.samples]) for m in measurements]
    # the clock has slowed to a third in the meantime; one contender after the other would differ by that
    assert medians[0] > 2
    assert max(medians) / min(medians) < 1.05


@pytest.mark.parametrize("repeats", [1, TURN - 1, TURN, 2 * TURN + 1])
def test_only_what_was_asked_for_is_kept(repeats):
    calls = []
    (measured,) = measure([Fake("a", [])], 4, repeats, lambda done, n: calls.append((done, n)))
    assert len(measured.samples) == len(measured.rounds) == repeats
    assert measured.samples[0].total_ms == pytest.approx(1.06), "four to warm up and one to settle come before"
    n = -(-repeats // TURN)
    assert calls == [(done, n) for done in range(n + 1)]


def test_a_burst_keeps_the_device_busy(monkeypatch):
    log = []

    class FakeRenderer:
        def __init__(self, *_):
            self.n = 0

        def submit(self, camera):
            self.n += 1
            log.append(("submit", self.n))
            return self.n

        def collect(self, ticket):
            log.append(("collect", ticket))

    monkeypatch.setattr(bench, "Renderer", FakeRenderer)
    contender = VariantContender(SimpleNamespace(depth=2), None, SimpleNamespace(width=1, height=1), LADDER[0])
    assert contender.burst(BURST) > 0
    assert [n for what, n in log if what == "collect"] == list(range(1, BURST + 1))
    under_way = np.cumsum([1 if what == "submit" else -1 for what, _ in log])
    assert under_way.max() == 2
    assert log.index(("submit", 2)) < log.index(("collect", 1))


@pytest.mark.parametrize("chosen", RUNGS, ids=lambda v: v.name)
def test_memory_is_counted_and_given_back(host, chosen):
    scene = scenes.cloud(50)
    contender = VariantContender(host, scene, scenes.camera(), chosen)
    contender.draw()
    n_floats = 59 if chosen.storage == "fp32" else 19
    assert contender.memory_bytes > 4 * n_floats * scene.n_splats
    contender.close()
    assert contender._meter.n_bytes == 0


def test_names():
    assert resolve("+tight").culling == "tight"
    assert resolve("auto", "cuda") == resolve("best")
    assert resolve("auto", "host") == resolve("best-fp32")
    assert resolve("fp32-split-radius-fast-dual").key == "split"
    twice = [resolve("baseline"), resolve("fp32-ref64-radius-exact-block"), resolve("best"), resolve("auto", "cuda")]
    assert [v.name for v in ladder.unique(twice)] == ["baseline", "best"]


def test_compare():
    picture = np.full((4, 5, 3), 100, np.uint8)
    assert compare(picture, picture) == (None, 0)
    other = picture.copy()
    other[0, 0, 0] = 85
    psnr_db, step = compare(picture, other)
    assert step == 15
    assert psnr_db == pytest.approx(10 * np.log10(255**2 / (15**2 / 60)))


def document_of(capsys, *arguments):
    assert main(["bench", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_ladder_can_be_recomputed(kernels, capsys):
    document = document_of(capsys, *TINY, "--ladder", "--variant", "fp32-split-radius-exact-dual")
    rows = document["rows"]
    assert [row["name"] for row in rows] == [*(rung.name for rung in RUNGS), "fp32-split-radius-exact-dual"]
    for index, (row, before) in enumerate(zip(rows, [None, *rows])):
        assert set(row["stage_ms"]) == set(STAGES)
        assert all(0 <= stage["p50"] <= stage["p95"] for stage in row["stage_ms"].values())
        assert row["total_ms"] == pytest.approx(sum(stage["p50"] for stage in row["stage_ms"].values()))
        assert row["frame_ms"]["p50"] <= row["frame_ms"]["p95"]
        assert row["ratio_to_baseline"] == pytest.approx(rows[0]["total_ms"] / row["total_ms"], abs=1e-4)
        if row["is_rung"] and index:
            assert row["ratio_to_previous"] == pytest.approx(before["total_ms"] / row["total_ms"], abs=1e-4)
        else:
            assert row["ratio_to_previous"] is None
        assert row["psnr_to"] == "twin"
        assert row["psnr_db"] is None or row["psnr_db"] > 40
        assert 0 < row["n_visible"] <= 60
        assert row["n_instances"] >= row["n_visible"]
        assert row["fps"] == pytest.approx(1e3 / row["frame_ms"]["p50"], rel=1e-2)
        assert row["choices"]["storage"] in ("fp32", "packed")
    assert rows[0]["choices"]["culling"] == "radius"
    assert document["scene"]["n_splats"] == 60
    assert document["compiler"]


def test_baseline_is_always_measured_and_sizes_stand_apart(kernels, capsys):
    document = document_of(capsys, *TINY, "--size", "64x16", "--variant", "+tight", "--variant", "roofgs")
    which = [(row["width"], row["height"], row["name"]) for row in document["rows"]]
    names = ["baseline", "+tight", "roofgs"]
    assert which == [(40, 30, name) for name in names] + [(64, 16, name) for name in names]
    assert all(row["ratio_to_previous"] is None for row in document["rows"])


def test_large_scenes_are_compared_with_baseline(kernels, capsys, monkeypatch):
    monkeypatch.setattr(ladder, "MAX_TWIN_SPLATS", 59)
    monkeypatch.setattr(ladder, "twin_picture", None)
    rows = document_of(capsys, *TINY)["rows"]
    assert [row["psnr_to"] for row in rows] == [None, "baseline"]
    assert rows[0]["psnr_db"] is None


@pytest.mark.parametrize("scene", [["room", "--preset", "h200"], ["room"], ["PLY"]])
def test_scenes_and_their_views(kernels, capsys, tmp_path, scene):
    write_ply(str(tmp_path / "cloud.ply"), scenes.cloud(80))
    named = [str(tmp_path / "cloud.ply") if word == "PLY" else word for word in scene]
    document = document_of(capsys, *named, *TINY[1:])
    assert document["scene"]["n_splats"] == 60
    assert document["rows"][0]["n_visible"] > 0


def test_a_view_of_a_training_brings_its_size(kernels, capsys, shared_data, tmp_path):
    write_ply(str(tmp_path / "cloud.ply"), scenes.cloud(20))
    view = f"{shared_data / 'photos' / 'snowmiku' / 'cameras.json'}:3"
    arguments = [str(tmp_path / "cloud.ply"), "--view", view, "--backend", "host", "--warmup", "0", "--repeats", "1"]
    assert document_of(capsys, *arguments)["rows"][0]["width"] == 989


def test_a_ledger_folder_can_be_checked(ledger_folder, capsys):
    row = json.loads((ledger_folder / "row.json").read_text())
    with gzip.open(ledger_folder / "raw.jsonl.gz", "rt") as file:
        raw = [json.loads(line) for line in file]
    assert len(raw) == 3 * len(RUNGS)
    for one in row["rows"]:
        frames = [record for record in raw if record["name"] == one["name"]]
        for stage, figures in one["stage_ms"].items():
            times = [record["stage_ms"][stage] for record in frames]
            assert figures["p50"] == pytest.approx(np.percentile(times, 50), abs=1e-5)
            assert figures["p95"] == pytest.approx(np.percentile(times, 95), abs=1e-5)
    for name in ("schema", "date", "commit", "device", "driver", "compiler", "image", "warmup", "repeats"):
        assert name in row
    assert len(row["scene"]["sha256"]) == 64


def test_tables_from_a_ledger(ledger_folder, capsys):
    capsys.readouterr()
    assert main(["bench", "--from-ledger", str(ledger_folder), "--markdown"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("| ms | project | duplicate | sort | ranges | rasterize | total |")
    assert [line.split("`")[1] for line in lines if line.startswith("| `")] == [rung.name for rung in RUNGS]
    assert len({line.count("|") for line in lines if line.startswith("|")}) == 1
    assert "60 splats, 40x30" in lines[-1]
    assert main(["bench", "--from-ledger", str(ledger_folder)]) == 0
    table = capsys.readouterr().out
    assert all(rung.name in table for rung in RUNGS)
    assert main(["bench", "--from-ledger", str(ledger_folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads((ledger_folder / "row.json").read_text())


def test_a_folder_is_never_written_again(ledger_folder, capsys):
    before = (ledger_folder / "row.json").read_bytes()
    assert main(["bench", *TINY, "--ledger", str(ledger_folder)]) == 73
    assert "exists" in capsys.readouterr().err
    assert (ledger_folder / "row.json").read_bytes() == before


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "is not JSON"),
        ("7", "not of schema"),
        ('{"schema": 2}', "not of schema"),
        ('{"schema": 1, "rows": []}', "lacks"),
        (
            '{"schema":1,"scene":{},"device":"","driver":"","commit":"","warmup":1,"repeats":1,"rows":[{"width":1}]}',
            "damaged",
        ),
    ],
)
def test_damaged_ledgers(tmp_path, capsys, content, words):
    (tmp_path / "row.json").write_text(content)
    assert main(["bench", "--from-ledger", str(tmp_path)]) == 65
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


BAD_ARGUMENTS = [
    (["--variant", "bset"], 2, "did you mean 'best'"),
    (["--variant", "+tigth"], 2, "no variant '+tigth'"),
    (["--variant", "fp32-split"], 2, "no variant"),
    (["--size", "640"], 2, "expected WIDTHxHEIGHT"),
    (["--size", "0x9"], 2, "from 1 to 8192"),
    (["-n", "0"], 2, "whole number"),
    (["-n", "11M"], 2, "whole number"),
    (["--repeats", "0"], 2, "whole number"),
    (["--warmup", "-1"], 2, "whole number"),
    (["--peer", "splatfacto"], 2, "invalid choice"),
    (["--json", "--markdown"], 2, "not allowed with"),
    (["--preset", "h200"], 2, "bench room --preset h200"),
    (["--view", "cameras.json"], 2, "CAMERAS.json:INDEX"),
    (["/nowhere/scene.ply"], 66, "/nowhere/scene.ply"),
    (["--ledger", "/nowhere/row"], 73, "no folder /nowhere"),
    (["--from-ledger", "/nowhere/row"], 66, "/nowhere/row/row.json"),
    (["--from-ledger", "./row", "--ladder"], 2, "measures nothing"),
]


@pytest.mark.parametrize(("arguments", "code", "words"), BAD_ARGUMENTS, ids=lambda value: str(value)[:40])
def test_bad_input_is_one_clear_error(kernels, capsys, arguments, code, words):
    try:
        got = main(["bench", *arguments])
    except SystemExit as stop:  # argparse
        got = stop.code
    assert got == code
    error = capsys.readouterr().err
    assert words in error
    assert "Traceback" not in error


def test_a_missing_peer_is_told_and_the_rest_measured(kernels, capsys, caplog):
    assert main(["bench", *TINY, "--peer", "gsplat"]) == 69
    assert "peer gsplat: not measured" in capsys.readouterr().err
    document = document_of(capsys, *TINY, "--ladder", "--peer", "gsplat")
    assert "not measured" in document["peers"]["gsplat"]
    assert len(document["rows"]) == len(RUNGS)
    assert sum("not measured" in message for message in caplog.messages) == 1


FAKE_TORCH = """
import numpy as np
from contextlib import nullcontext as no_grad
from types import SimpleNamespace

uint8 = np.uint8

class Tensor(np.ndarray):
    cuda = cpu = contiguous = lambda self: self
    numpy = lambda self: np.array(self)
    clamp = lambda self, low, high: np.clip(self, low, high)
    to = lambda self, dtype: self.astype(dtype)
    flip = lambda self, axis: np.flip(self, axis)
    numel = lambda self: self.size

class Event:
    def __init__(self, enable_timing): pass
    def record(self): pass
    def elapsed_time(self, other): return 1.5

from_numpy = lambda array: array.view(Tensor)
cuda = SimpleNamespace(is_available=lambda: AVAILABLE, Event=Event, max_memory_allocated=lambda: 12345)
"""
FAKE_GSPLAT = """
import numpy as np, torch
__version__ = "9"
def rasterization(means, quats, scales, opacities, colors, viewmats, Ks, width, height, near_plane, far_plane,
                  sh_degree, packed):
    n = len(means)
    assert (quats.shape, scales.shape, opacities.shape, colors.shape) == ((n, 4), (n, 3), (n,), (n, 16, 3))
    assert (viewmats.shape, Ks.shape, sh_degree) == ((1, 4, 4), (1, 3, 3), 3)
    print("noise on stdout")
    picture = np.zeros((1, height, width, 3), np.float32) + np.float32([1, 0.5, -3])
    return torch.from_numpy(picture), None, {"flatten_ids": torch.from_numpy(np.zeros(77))}
"""


def fake_packages(monkeypatch, folder, available):
    (folder / "torch.py").write_text(FAKE_TORCH.replace("AVAILABLE", str(available)))
    (folder / "gsplat.py").write_text(FAKE_GSPLAT)
    monkeypatch.syspath_prepend(str(folder))


def test_a_peer_draws_in_a_process_of_its_own(monkeypatch, tmp_path, capfd):
    fake_packages(monkeypatch, tmp_path, True)
    scene, camera = scenes.cloud(9), scenes.camera(20, 10)
    peer = peers.open_peer("gsplat", "cuda", scene, camera)
    try:
        (measured,) = measure([peer], warmup=1, repeats=4)
        (row,) = ladder.make_rows([measured], scene, camera, ladder=True)
        picture = peer.picture()
    finally:
        peer.close()
    assert row["name"].startswith("gsplat 9 ")
    assert (row["kind"], row["choices"], row["stage_ms"], row["total_ms"]) == ("peer", None, {}, 1.5)
    assert (row["n_instances"], row["memory_bytes"], row["ratio_to_baseline"]) == (77, 12345, None)
    assert picture.shape == (10, 20, 3)
    assert picture[0, 0].tolist() == [0, 128, 255]
    assert capfd.readouterr().out == ""
    assert not peer._process.is_alive()


def test_a_torch_without_cuda_is_told(monkeypatch, tmp_path):
    fake_packages(monkeypatch, tmp_path, False)
    with pytest.raises(DeviceError, match="not measured: RuntimeError: this torch sees no CUDA device"):
        peers.open_peer("gsplat", "cuda", scenes.cloud(9), scenes.camera())


def test_commit(tmp_path, monkeypatch):
    assert ledger.commit(tmp_path) is None
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    assert ledger.commit(tmp_path) is None
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "file").write_text("a")
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "a"], check=True)
    head = ledger.commit(tmp_path)
    assert len(head) == 40
    assert ledger.commit(tmp_path / "sub") is None, "a package inside somebody else's checkout has no commit"
    (tmp_path / "sub" / "file").write_text("b")
    assert ledger.commit(tmp_path) == head + "-dirty"
    monkeypatch.setenv("PATH", "")
    assert ledger.commit(tmp_path) is None


def test_bench_needs_few_packages(kernels):
    script = (
        "import sys\n"
        "for name in 'cv2 pydantic matplotlib yaml prometheus_client paho.mqtt'.split(): sys.modules[name] = None\n"
        "from edgegs.cli import main\n"
        f"sys.exit(main(['bench', *{TINY!r}]))"
    )
    environment = dict(os.environ, PYTHONPATH=str(ROOT))
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    assert "baseline" in done.stdout
