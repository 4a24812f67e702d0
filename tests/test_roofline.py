"""``edgegs roofline``: ceilings, counts worked by hand, sequences that leave the device as it was, pictures, ncu's CSV.

No time is judged.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import scenes

from edgegs.backends.host import HostBackend
from edgegs.backends.reference import ReferenceBackend
from edgegs.bench import ceilings, roofline, roofline_ncu, roofline_plot, roofline_table
from edgegs.bench.bench import combination, resolve
from edgegs.bench.ceilings import CHAINS, COPY_BYTES, STEPS, Bench, Ceilings
from edgegs.bench.counting import Counts, FrameCounts
from edgegs.bench.roofline import Timing, counters_of, rates, time_stages
from edgegs.bench.roofline_work import Counters, Work, colour_fp32, work_of
from edgegs.cli import main
from edgegs.errors import DeviceError, SceneError, UsageError
from edgegs.frame import STAGES
from edgegs.kernels.variants import KEY_BITS, VARIANTS
from edgegs.renderer import Renderer

SAMPLE = Path(__file__).parent / "data" / "ncu_raw.csv"
GPU = Ceilings(bytes_per_s=4e12, fma_per_s=32e12, exp2_per_s=4e12, shared_loads_per_s=2e11, warp_width=32)
#: Of each key, and both rasters of patches.
EVERY_KEY = ("baseline", "roofgs", "packed-split-tight-fast-dual", "best", "wide")


@pytest.fixture
def host(kernels):
    with HostBackend(threads=2) as backend:
        yield backend


@pytest.fixture(scope="module")
def quick():
    """Small buffers and short launches: what is tested is not the machine."""
    patch = pytest.MonkeyPatch()
    patch.setattr(ceilings, "LARGEST_COPY", {"cuda": 1 << 20, "host": 1 << 20})
    patch.setattr(ceilings, "measure", partial(ceilings.measure, repeats=3, launch_ms=1.0))
    patch.setattr(roofline, "SEQUENCE_MS", {"cuda": 1.0, "host": 1.0})
    yield
    patch.undo()


TINY = ["dial", "-n", "60", "--size", "40x30", "--backend", "host", "--warmup", "1", "--repeats", "3"]


@pytest.fixture(scope="module")
def document(kernels, quick, tmp_path_factory):
    """What a run kept: two variants of one tiny scene."""
    folder = tmp_path_factory.mktemp("roofline") / "row"
    assert main(["roofline", *TINY, "--variant", "best", "--variant", "baseline", "--ledger", str(folder)]) == 0
    return folder / "row.json"


# --- ceilings ---
def test_ceilings_are_plausible(host):
    found, samples = ceilings.measure(host, repeats=3, launch_ms=2.0, copy_bytes=8 << 20)
    assert 1e8 < found.bytes_per_s < 1e12
    assert 1e7 < found.exp2_per_s < found.fma_per_s < 1e13, "2^x is several operations on a processor"
    assert 1e6 < found.shared_loads_per_s < 1e12
    assert found.warp_width == 1
    assert {len(values) for values in samples.values()} == {3}
    assert found.bytes_per_s == max(samples["bytes_per_s"])


def test_issue_is_a_thirty_second_of_the_lanes():
    assert GPU.slots_per_s == 1e12


@pytest.mark.parametrize("arch", ["host", "host-check"])
def test_what_the_kernels_compute(kernels, arch):
    """What they tell of themselves is what the rates are made of."""
    with HostBackend(threads=1, arch=arch) as backend, Bench(backend, 3 * COPY_BYTES) as bench:
        assert bench.n_steps == 3
        bench.launch("bytes_per_s", 2)
        copied = backend.download(bench._to)
        assert np.array_equal(copied[:2], bench._content[:2])
        assert not copied[2].any(), "only so many steps"
        threads = 1 if arch == "host" else 256
        results = bench._buffers[2]
        backend.upload(results, np.full(results.shape, np.nan))
        for name, each in (("fma_per_s", 1.0), ("exp2_per_s", 0.6411857)):  # the fixed points of x/4 + 1/4 … and 2^-x
            bench.launch(name, 3)
            n_workers = int(backend.download(bench._n_workers)[0])
            n_threads = threads * backend.n_blocks
            pack, rest = divmod(n_workers, n_threads)
            assert rest == 0
            assert pack in ((1,) if arch == "host-check" else (4, 8))
            sums = backend.download(results).reshape(-1)[:n_threads]
            assert sums == pytest.approx(np.full(n_threads, CHAINS * pack * each), rel=2e-3), name
        bench.launch("shared_loads_per_s", 3)
        assert int(backend.download(bench._n_workers)[0]) == backend.n_blocks * max(1, threads // 32)
        assert backend.download(results).any()


def test_a_copy_that_came_out_wrong_is_told(host, monkeypatch):
    monkeypatch.setattr(host, "download", lambda buffer, download=host.download: download(buffer) * 0 + 1)
    with Bench(host, COPY_BYTES) as bench, pytest.raises(DeviceError, match="came out wrong"):
        bench.samples("bytes_per_s", 1, 1.0)


def test_every_repeat_counts_the_whole_loop(host, monkeypatch):
    monkeypatch.setattr(Bench, "repeats_for", lambda self, name, ms: self.time_ms(name, 1) and 7)
    monkeypatch.setattr(host, "elapsed_ms", lambda start, end: 2.0)
    with Bench(host, COPY_BYTES) as bench:
        (rate,) = bench.samples("exp2_per_s", 1, 1.0)
        n_workers = int(host.download(bench._n_workers)[0])
        assert rate == n_workers * CHAINS * STEPS * 7 / 2e-3
        assert bench.samples("bytes_per_s", 2, 1.0) == [2 * COPY_BYTES / 2e-3] * 2


def test_a_backend_without_kernels_is_refused():
    with pytest.raises(DeviceError, match="runs no kernels"):
        ceilings.measure(ReferenceBackend())


# --- counts ---
def test_counts_of_one_splat_by_hand(host):
    """A round splat of 4.5 pixels in the middle of 32x32: one bin, all of its 16 patches."""
    scene, camera = scenes.one(), scenes.camera(32, 32, 90.0)
    with_it = Renderer(host, scene, 32, 32, "best")
    frame = with_it.render(camera)
    n = counters_of(with_it, scene.sh_degree, frame.n_visible, frame.n_instances, (0, 0))
    with_it.close()
    assert (n.n_visible, n.n_instances, n.n_listed, n.n_lists) == (1, 1, 1, 1)
    assert (n.walked, n.picked, n.blended, n.n_rows) == (16, 16, 16 * 8, 4)
    work = work_of(VARIANTS["best"], n, warps=False)
    # mean 12, FP16 shape 16, three bytes of SH in a word; record, instance; blocks' counts; the bin's count and start
    assert work["project"].bytes == 12 + 16 + 4 + 32 + 16 + 16 * host.n_blocks + 4 + 4
    # transform; covariance; ellipse; colour: direction 12, three coefficients to float, by basis, by scale; bin, 4 rows
    assert work["project"].fp32 == 15 + 94 + 22 + (12 + 3 + 3 + 3) + (17 + 4 * 19)
    assert work["duplicate"] == Work(16 + 16 + 3 * 4 + 16 + 16)
    assert work["sort"] == Work(16 + 8 + 16 + 4, 3)
    # the entry, the record, the bin's list, the picture
    assert work["rasterize"].bytes == 8 + 32 + 16 + 32 * 32 * 3
    assert work["rasterize"].exp2 == 16 * 8 * 64
    # two pixels of each lane: 3 for the splat, 13 for a pair of rows
    assert work["rasterize"].fp32 == 16 * 8 * 32 * (3 + 13) + 16 * 17 + 32 * 32 * 13
    assert work["rasterize"].slots is None, "a processor has no warps"


def counters(**changed):
    common = {"width": 16, "height": 8, "sh_degree": 3, "n_splats": 64, "n_visible": 40, "n_instances": 100}
    evaluations = {"n_evaluations": 0, "n_reached": 0, "n_scanned": 0, "n_turns": 0}
    return Counters(**{**common, **evaluations, "n_blocks": 2, "n_listed": 100, "n_lists": 4, **changed})


def test_what_predictions_count_too_is_declared_once():
    assert issubclass(Counters, FrameCounts)
    assert issubclass(Counts, FrameCounts)
    own = [set(kind.__annotations__) for kind in (FrameCounts, Counts, Counters)]
    assert sum(map(len, own)) == len(set.union(*own))


@pytest.mark.parametrize(("name", "of_thread", "n_patches"), [("best", 2, 2), ("wide", 4, 1)])
def test_slots_of_warps_by_hand(name, of_thread, n_patches):
    n = counters(n_lists=1, walked=64, picked=40, blended=48)
    work = work_of(VARIANTS[name], n, warps=True)["rasterize"]
    # six steps of eight splats: FP32, a 2^x a pixel, three loads, and 13 for the step
    blend = 6 * (8 * (3 + 13 * of_thread // 2 + of_thread + 3) + 13)
    # two rows walked; batches with a half one for each patch; start and end
    assert work.slots == blend + 2 * 25 + (40 / 32 + n_patches / 2) * 90 + n_patches * (90 + 60 * of_thread)
    assert work.exp2 == 48 * 32 * of_thread
    assert work.shared_loads == 48 * 3


@pytest.mark.parametrize(("name", "of_thread", "n_patches"), [("tensor", 2, 2), ("tensor-wide", 4, 1)])
def test_slots_of_tensor_cores_by_hand(name, of_thread, n_patches):
    n = counters(n_lists=1, walked=64, picked=40, blended=48)
    work = work_of(VARIANTS[name], n, warps=True)["rasterize"]
    # of a pixel and splat: 2^x, two of FP32, half a conversion, four eighths of a product; a load a splat
    blend = 6 * (8 * (1 + 4 * of_thread) + 13)
    assert work.slots == blend + 2 * 25 + (40 / 32 + n_patches / 2) * 160 + n_patches * (90 + 60 * of_thread)
    assert work.exp2 == 48 * 32 * of_thread
    assert work.shared_loads == 48


@pytest.mark.parametrize(("name", "coloured"), [("best", 40), ("fp32-bins-tight-fast-patch8", 64)])
def test_slots_of_project_by_hand(name, coloured):
    chosen = resolve(name)
    n = counters(n_lists=1, n_listed=50, n_rows=100)
    slots = work_of(chosen, n, warps=True)["project"].slots
    colour = 70 + 1.5 * colour_fp32(chosen.storage, 3)
    # an instance: 143, and two rows of patches
    assert slots == pytest.approx((64 * 399 + coloured * colour + 100 * (143 + 2 * 37)) / 32)


def test_slots_of_a_sort_by_hand():
    n = counters(n_lists=3, n_listed=64, n_turns=10, n_scanned=320)
    assert work_of(resolve("best"), n, warps=True)["sort"].slots == 2 * 107 + 10 * 6 + 10 * 90 + 3 * 4000


def test_an_original_frame_by_hand():
    n = counters(n_evaluations=5000, n_reached=2000)
    work = work_of(VARIANTS["baseline"], n, warps=True)
    shape, sh = 12 + 12 + 16 + 4, 4 * 3 * 16
    # 2D mean, depth, conic, colour, rectangle; tiles of every splat; counts of two blocks
    assert work["project"].bytes == 64 * shape + 40 * sh + 40 * (8 + 4 + 16 + 12 + 8) + 64 * 4 + 2 * 16
    assert work["duplicate"].bytes == 64 * 4 + 40 * (4 + 8) + 100 * (8 + 4) + 2 * 32
    # tiles 2 bits and depth 32: five passes; keys read twice and written, values read and written; the table four times
    assert work["sort"].bytes == 5 * (100 * (3 * 8 + 2 * 4) + 4 * 4 * 256 * 2)
    assert work["ranges"].bytes == 4 * 5 + 8 * min(100, 5 * 7)
    assert work["rasterize"].bytes == 4 * 5 + 4 * 100 + 40 * 36 + 16 * 8 * 3
    assert work["rasterize"].fp32 == 5000 * 7 + 2000 * (7 + 5) + 16 * 8 * 13 + 100 * 3
    assert work["rasterize"].exp2 == 2000


@pytest.mark.parametrize(
    ("storage", "degree", "fp32"),
    [
        ("fp32", 0, 12 + 3),
        ("fp32", 3, 12 + 38 + 48),
        ("packed", 1, 12 + 3 + 12 + 12 + 6),
        ("packed", 3, 12 + 38 + 96 + 12),
    ],
)
def test_colour(storage, degree, fp32):
    assert colour_fp32(storage, degree) == fp32


@pytest.mark.parametrize("name", EVERY_KEY)
def test_every_stage_that_is_launched_is_counted(host, name):
    chosen, scene, camera = resolve(name), scenes.cloud(200), scenes.camera()
    row, raw = roofline.measure(host, scene, camera, chosen, GPU._replace(warp_width=1), 1, 2)
    renderer = Renderer(host, scene, camera.width, camera.height, combination(chosen))
    launched = {launch.stage for launch in renderer.launches}
    renderer.close()
    assert {one["stage"] for one in row["stages"]} == launched
    assert all(one["bytes"] > 0 and one["ms"] > 0 for one in row["stages"])
    assert [set(one["stage_ms"]) >= launched for one in raw] == [True, True]
    final = row["stages"][-1]
    assert final["stage"] == "rasterize"
    assert final["fp32"] > 0
    # bits have no 2^x
    assert (final["exp2"] > 0) == (name != "roofgs")


# --- times ---
@pytest.mark.parametrize("name", EVERY_KEY)
def test_sequences_leave_the_device_as_after_a_frame(host, name, monkeypatch):
    monkeypatch.setattr(roofline, "SEQUENCE_MS", {"host": 1.0})
    scene, camera = scenes.cloud(300), scenes.camera()
    renderer = Renderer(host, scene, camera.width, camera.height, combination(resolve(name)))
    before = renderer.render(camera)
    starts = "bin_starts" if renderer.variant.key == "bins" else "tile_starts"
    expected, time_sequence = renderer.read(starts), roofline.time_sequence

    def checked(*arguments):
        assert np.array_equal(renderer.read(starts), expected)
        return time_sequence(*arguments)

    monkeypatch.setattr(roofline, "time_sequence", checked)
    # events that took for ever: all sequences are used
    timings = time_stages(host, renderer.launches, renderer.variant.key, [dict.fromkeys(STAGES, 1e6)])
    listed = renderer.read("bin_lists" if renderer.variant.key == "bins" else "instance_splats")
    after = renderer.render(camera)
    again = renderer.read("bin_lists" if renderer.variant.key == "bins" else "instance_splats")
    n = counters_of(renderer, 3, after.n_visible, after.n_instances, (0, 0)).n_listed
    renderer.close()
    assert np.array_equal(listed[:n], again[:n])
    assert np.array_equal(before.image, after.image)
    assert after.redraws == 0
    assert (before.n_visible, before.n_instances) == (after.n_visible, after.n_instances)
    for stage, timing in timings.items():
        assert (timing.repeated is not None) == (stage in roofline.SEQUENCES[renderer.variant.key])
    assert timings["rasterize"].how == "back to back"
    assert timings["rasterize"].ms == timings["rasterize"].repeated
    assert timings["rasterize"].ms < 1e6


@pytest.mark.parametrize("name", EVERY_KEY)
def test_each_sequence_does_a_frame_s_work(host, name, monkeypatch):
    """What one pass does is what the frame did: counters that are not cleared would give the next another amount."""
    monkeypatch.setattr(roofline, "SEQUENCE_MS", {"host": 3.0})
    renderer = Renderer(host, scenes.cloud(300), 96, 80, combination(resolve(name)))
    renderer.render(scenes.camera())
    key, launches, plug = renderer.variant.key, renderer.launches, roofline.Plug(host)
    counters = ["n_instances", "n_visible"]
    counters += {"bins": ["bin_starts", "bin_counts", "instance_ticket", "block_ticket"]}.get(key, [])
    counters += {"packed32": ["block_chain", "block_ticket"]}.get(key, [])
    before = {one: renderer.read(one) for one in counters}
    for with_it, _ in roofline.SEQUENCES[key].values():
        roofline.time_sequence(host, [one for one in launches if one.stage in with_it], 1.0, plug)
        for one in counters:
            assert np.array_equal(renderer.read(one), before[one]), (with_it, one)
    renderer.close()


def test_every_key_has_its_sequences():
    assert set(roofline.SEQUENCES) == set(KEY_BITS)


def test_a_difference_lost_in_noise_gives_way_to_events(host, monkeypatch):
    monkeypatch.setattr(roofline, "time_sequence", lambda backend, launches, expected, plug: 1.0)
    renderer = Renderer(host, scenes.one(), 32, 32, "best")
    renderer.render(scenes.camera(32, 32))
    timings = time_stages(host, renderer.launches, "bins", [dict.fromkeys(STAGES, 3.0), dict.fromkeys(STAGES, 5.0)])
    renderer.close()
    assert timings["project"] == Timing(4.0, 4.0, 0.0, "events")
    assert timings["sort"] == Timing(1.0, 4.0, 1.0, "back to back")


@pytest.mark.parametrize(("n", "once"), [(100, ()), (30_000, ("project", "duplicate"))])
def test_lists_that_are_dealt_are_not_filled_again(host, monkeypatch, n, once):
    """Dealing writes over the instances that filling reads: repeating it alone would count other splats."""
    # on a busy machine a difference of two measured sequences may be lost in noise
    monkeypatch.setattr(roofline, "time_sequence", lambda backend, launches, expected, plug: float(len(launches)))
    cloud = scenes.cloud(n, seed=2, sh_degree=0, size=0.01)
    cloud.means[:, :2] *= 0.01  # into one bin
    renderer = Renderer(host, cloud, 32, 32, "best")
    renderer.render(scenes.camera(32, 32))
    assert roofline.not_repeated(renderer) == once
    timings = time_stages(host, renderer.launches, "bins", [dict.fromkeys(STAGES, 1e6)], once)
    assert {stage for stage, timing in timings.items() if timing.how == "events"} == set(once)
    renderer.close()


def test_a_gpu_is_kept_busy_while_launches_are_queued(host, monkeypatch):
    launched = []
    launch = host.launch

    def noted(kernel, *rest):
        launched.append(kernel)
        launch(kernel, *rest)

    monkeypatch.setattr(host, "launch", noted)
    monkeypatch.setattr(roofline, "SEQUENCE_MS", {"cuda": 4.0})
    renderer = Renderer(host, scenes.one(), 32, 32, "best")
    renderer.render(scenes.camera(32, 32))
    monkeypatch.setattr(host, "name", "cuda")
    plug = roofline.Plug(host)
    launched.clear()
    part = [one for one in renderer.launches if one.stage in ("duplicate", "sort")]
    roofline.time_sequence(host, part, 1.0, plug)
    plug.close()
    renderer.close()
    assert launched == ["ceiling_multiply_add", *["lists_fill", "lists_sort"] * 4] * roofline.SEQUENCE_REPEATS


# --- per cent ---
def test_per_cents_and_what_bounds():
    work = Work(bytes=2e9, fp32=8e9, exp2=1e9, slots=1e8, shared_loads=1e7)
    found = rates(work, Timing(1.0, 1.5, 1.0, "back to back"), GPU)
    assert found["percent"] == {"bandwidth": 50, "multiply-add": 25, "2^x": 25, "issue": 10, "shared memory": 5}
    assert (found["nearest"], found["bound"]) == ("bandwidth", "bandwidth")
    assert (found["bytes_per_s"], found["fp32_per_s"], found["fp32_per_byte"]) == (2e12, 8e12, 4)
    assert (found["ms"], found["event_ms"], found["repeated_ms"]) == (1.0, 1.5, 1.0)


def test_what_is_far_from_every_ceiling_says_so():
    busy = Work(bytes=1e6, slots=4.9e8)
    found = rates(busy, Timing(1.0, 1.0, None, "events"), GPU)
    assert (found["nearest"], found["bound"]) == ("issue", "latency")
    assert roofline_table.bound(found) == "latency (49 % of issue)"
    found = rates(busy._replace(slots=None), Timing(1.0, 1.0, None, "events"), GPU)
    assert roofline_table.bound(found) == "latency or other instructions (0 % of bandwidth)"
    found = rates(Work(bytes=8e9), Timing(1.0, 1.0, None, "events"), GPU)
    assert roofline_table.bound(found) == "bandwidth, in cache"


def test_a_clock_too_coarse_is_no_division_by_zero():
    with pytest.raises(DeviceError, match="too coarse"):
        rates(Work(1), Timing(0.0, 0.0, None, "events"), GPU)


# --- the command ---
def test_the_document_holds_what_the_table_is_made_of(document, capsys):
    content = json.loads(document.read_text())
    assert content["kind"] == "roofline"
    assert content["backend"] == "host"
    assert set(content["ceilings"]) == set(Ceilings._fields)
    assert [row["name"] for row in content["rows"]] == ["best", "baseline"]
    for row in content["rows"]:
        assert row["counters"]["n_splats"] == 60
        assert row["total_ms"] == pytest.approx(sum(stage["ms"] for stage in row["stages"]), abs=1e-4)
        for stage in row["stages"]:
            assert stage["bytes_per_s"] == pytest.approx(stage["bytes"] / stage["ms"] * 1e3, rel=1e-2)
            assert stage["slots"] is None
            assert "issue" not in stage["percent"]
    assert [stage["kernels"] for stage in content["rows"][0]["stages"]][1:3] == [{"lists_fill": 1}, {"lists_sort": 1}]
    assert content["rows"][1]["stages"][2]["kernels"]["sort_scatter_64"] >= 4
    raw = document.parent / "raw.jsonl.gz"
    assert raw.is_file()
    assert main(["roofline", "--from", str(document)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("ceilings: copy ")
    for word in ("best; ", "baseline; ", "60 splats, 40x30", "rasterize", "ms in all", "bound by"):
        assert word in said
    for source in (document, document.parent):
        assert main(["roofline", "--from", str(source), "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == content


def test_the_plot_is_a_picture(document, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    import cv2

    picture = tmp_path / "roofline.png"
    assert main(["roofline", "--from", str(document), "--plot", str(picture)]) == 0
    image = cv2.imread(str(picture))
    assert image is not None
    assert image.shape[0] > 500
    assert image.shape[1] > 900
    assert len(np.unique(image.reshape(-1, 3), axis=0)) > 50
    for bgr in ((0xDE, 0x6F, 0x2F), (0x00, 0x8A, 0xE0)):  # a point of each row
        assert (image == bgr).all(axis=2).sum() > 50


def test_points_are_fp32_unless_every_instruction_was_counted(document):
    content = json.loads(document.read_text())
    unit, found, none = roofline_plot.points(content)
    assert unit.startswith("FP32")
    assert "ranges" in none
    assert {(point.stage, point.row) for point in found} >= {("project", 0), ("rasterize", 1)}
    for row in content["rows"]:
        for stage in row["stages"]:
            stage["slots"] = 10
    content["ceilings"]["warp_width"] = 32
    unit, found, none = roofline_plot.points(content)
    first = content["rows"][0]["stages"][0]
    assert unit.startswith("instructions")
    assert not none
    assert found[0].intensity == 320 / first["bytes"]
    assert found[0].rate == pytest.approx(320 / first["ms"] * 1e3)


def test_labels_do_not_cover_one_another():
    found = [roofline_plot.Point("rasterize", row, 10.0, 1e9 * (1 + row / 100)) for row in range(4)]
    drops = roofline_plot._drops(found, ["rasterize 50 %"] * 4, (0.1, 100.0), (1e8, 1e10))
    below = sorted(drops)
    assert drops[3] == 0, "the highest keeps its place"
    assert all(lower - upper > 8 for upper, lower in zip(below, below[1:]))


def test_draw_is_for_a_profiler(kernels, capsys):
    made = ["dial", "-n", "60", "--size", "40x30", "--backend", "host"]
    assert main(["roofline", *made, "--variant", "best", "--draw", "2"]) == 0
    assert capsys.readouterr().out.startswith("2 frames of best, 4 launches each: project_bins_packed, lists_fill")


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--variant", "fast"], 2, "no variant"),
        (["--plot", "x.svg"], 2, "name it something.png"),
        (["--plot", "/nowhere/x.png"], 73, "no folder"),
        (["--compare-ncu", "/nowhere.csv"], 66, "/nowhere.csv"),
        (["--from", "/nowhere.json"], 66, "/nowhere.json"),
        (["--from", "x.json", "--size", "40x30"], 2, "leave --size out"),
        (["--from", "."], 66, ".: holds no row.json; name a folder that `edgegs roofline --ledger` wrote"),
        (["--draw", "2", "--json"], 2, "--draw measures nothing"),
        (["--ledger", "/nowhere/row"], 73, "no folder"),
        (["dial", "--view", "x.json:0", "-n", "10", "--backend", "host"], 66, "x.json"),
    ],
)
def test_wrong_use_is_told(arguments, code, says, capsys, kernels, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["roofline", *arguments]) == code
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("content", ["", "[]", "{", '{"schema": 1, "rows": []}', '{"schema": 1, "kind": "roofline"}'])
def test_other_documents_are_refused(content, tmp_path, capsys):
    path = tmp_path / "row.json"
    path.write_text(content)
    for source in (path, tmp_path):
        assert main(["roofline", "--from", str(source)]) == 65
        assert str(path) in capsys.readouterr().err


def test_a_damaged_document_is_told(document, tmp_path, capsys):
    content = json.loads(document.read_text())
    del content["rows"][0]["stages"][0]["percent"]
    path = tmp_path / "row.json"
    path.write_text(json.dumps(content))
    assert main(["roofline", "--from", str(path)]) == 65
    assert "damaged" in capsys.readouterr().err


# --- ncu ---
def test_ncu_launches_are_read():
    runs = roofline_ncu.read(SAMPLE)
    frame = ["project_bins_packed", "lists_fill", "lists_sort", "rasterize_patch8_fast"]
    assert [run.kernel for run in runs] == frame * 2
    first = runs[0].metrics
    assert first["dram__bytes.sum"] == pytest.approx(5.42e6)
    assert first["gpu__time_duration.sum"] == pytest.approx(16.64e-6)
    assert first["smsp__inst_executed.sum"] == 1_204_512
    assert first["sm__throughput.avg.pct_of_peak_sustained_elapsed"] == 38.2


def one_row(document):
    content = json.loads(document.read_text())
    content["rows"] = content["rows"][:1]
    return content


def test_ncu_stands_beside_the_counts(document, tmp_path, capsys):
    path = tmp_path / "row.json"
    content = one_row(document)
    content["rows"][0]["stages"][3].update(slots=4_560_220, fp32=112_050_000)
    path.write_text(json.dumps(content))
    assert main(["roofline", "--from", str(path), "--compare-ncu", str(SAMPLE), "--json"]) == 0
    compared = json.loads(capsys.readouterr().out)["ncu"]
    assert [one["stage"] for one in compared] == ["project", "duplicate", "sort", "rasterize"]
    measured = compared[3]["measured"]
    # two frames in the file: the mean of them
    assert measured["ms"] == pytest.approx(0.03104)
    assert measured["bytes"] == pytest.approx(1.4e6)
    assert measured["cache_bytes"] == pytest.approx(40.21e6)
    assert measured["slots"] == 9_120_440
    assert measured["fp32"] == 224_100_000
    assert measured["sm_percent"] == pytest.approx(61.3)
    assert compared[3]["counted"]["slots"] == 4_560_220
    assert main(["roofline", "--from", str(path), "--compare-ncu", str(SAMPLE)]) == 0
    rasterize = [line for line in capsys.readouterr().out.splitlines() if line.startswith("rasterize")][-1].split()
    assert rasterize.count("0.50") == 2, "counted over measured"


def test_launches_of_a_kernel_that_a_frame_repeats_are_added_up():
    runs = [roofline_ncu.KernelRun("sort_scatter_64", {roofline_ncu.TIME: ms}) for ms in (1.0, 2.0, 3.0, 4.0)]
    stage = {"stage": "sort", "kernels": {"sort_scatter_64": 2}, "ms": 1, "bytes": 1, "slots": None, "fp32": 0}
    (compared,) = roofline_ncu.compare({"stages": [stage]}, runs)  # of two frames
    assert compared["measured"]["ms"] == 5e3
    assert compared["measured"]["bytes"] is None
    assert compared["measured"]["sm_percent"] is None
    roofline_ncu.text([compared])


def test_ncu_of_another_variant_is_told(document, capsys):
    content = json.loads(document.read_text())
    with pytest.raises(UsageError, match="take the same variant"):
        roofline_ncu.compare(content["rows"][1], roofline_ncu.read(SAMPLE))
    assert main(["roofline", "--from", str(document), "--compare-ncu", str(SAMPLE)]) == 2
    assert "one --size, one --variant" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("==PROF== nothing\n", "Kernel Name"),
        ('"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"\n', "--page raw"),
        ('"ID","Kernel Name","dram__bytes.sum"\n"","","byte"\n', "gpu__time_duration.sum"),
        ('"ID","Kernel Name","gpu__time_duration.sum"\n"","","us"\n', "holds no launch"),
        ('"ID","Kernel Name","gpu__time_duration.sum"\n"","","us"\n"0","lists_sort"\n', ":3: has 2 columns"),
        ('"ID","Kernel Name","gpu__time_duration.sum"\n"","","us"\n"0","lists_sort","n/a"\n', ":3: .* no number"),
        ('"ID","Kernel Name","gpu__time_duration.sum"\n"","","hour"\n"0","lists_sort","1"\n', "print-units"),
    ],
)
def test_other_csv_files_are_refused(content, says, tmp_path):
    path = tmp_path / "ncu.csv"
    path.write_text(content)
    with pytest.raises(SceneError, match=says):
        roofline_ncu.read(path)


def test_the_docs_name_every_metric_and_option():
    text = (Path(__file__).parent.parent / "docs" / "roofline.md").read_text(encoding="utf-8")
    for metric in roofline_ncu.COMPARED - set(roofline_ncu.DRAM_PARTS):
        assert metric in text, metric
    from edgegs.cli import roofline as verb

    parser = verb.add_parser(argparse.ArgumentParser().add_subparsers())
    for action in parser._actions:
        for option in action.option_strings:
            if option.startswith("--") and option not in ("--help", "--seed", "--preset", "--threads", "--warmup"):
                assert option in text, option
