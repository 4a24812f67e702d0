"""Boards that are not at hand: their file, the memory a scene takes there (exactly) and its time (predicted)."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Tuple

import numpy as np
import pytest
import scenes

from edgegs.backends.base import Backend
from edgegs.bench import counting
from edgegs.bench.boards import Boards, load_boards
from edgegs.bench.cost import cost, memory
from edgegs.bench.counting import bucket_turns, count_frame, list_ranges
from edgegs.bench.model import predict
from edgegs.camera import Camera
from edgegs.errors import ConfigError, DeviceError, UsageError
from edgegs.kernels.variants import BASELINE, BEST, variant
from edgegs.pack import quantise
from edgegs.renderer import Renderer
from edgegs.room import C, renderer_bytes
from edgegs.scene import Scene
from edgegs.scene.synth import dial, dial_camera

MIB = 1 << 20


@pytest.fixture(scope="module")
def known() -> Boards:
    return load_boards()


# --- the file ---


def test_the_shipped_file_says_what_is_known_of_a_nano(known: Boards) -> None:
    nano = known.board("nano")
    assert (nano.arch, nano.n_sms, nano.n_blocks, nano.shared) == ("sm_53", 1, 8, True)
    assert nano.issue_rate == pytest.approx(3.6864e9)
    assert nano.bandwidth == 25.6e9
    assert nano.free_bytes == (nano.memory_mib - nano.system_mib - nano.process_mib) * MIB
    assert {"nano", "nano-2gb", "orin-nano", "xavier-nx", "rtx4090"} <= set(known.boards)
    for name, board in known.boards.items():
        assert board.name == name
        assert board.free_bytes > 500 * MIB
    assert known.board("xavier-nx").issue_rate == 6 * 2 * 1.1e9, "its multiprocessors have 64 lanes"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("nanoo", "nano"), ("Jetson Nano", "nano"), ("orin_nano", "orin-nano"), ("RTX4090", "rtx4090"),
        ("xavier", "xavier-nx"),
    ],
)  # fmt: skip
def test_an_unknown_board_is_told_with_what_was_meant(known: Boards, name: str, meant: str) -> None:
    with pytest.raises(UsageError, match=f"no board '{name}'; did you mean '{meant}'\\? \\(there are: nano, "):
        known.board(name)


def test_dashes_in_a_name_do_not_matter(known: Boards) -> None:
    assert known.board("rtx-4090") is known.board("rtx4090")
    assert known.board("orinnano") is known.board("orin-nano")


def test_no_suggestion_for_what_resembles_none(known: Boards) -> None:
    with pytest.raises(UsageError, match=r"no board 'zzzz' \(there are: nano, "):
        known.board("zzzz")


def spoiled(tmp_path: Path, old: str, new: str) -> str:
    """The message for the shipped file with one change; the file's name in it is cut to its last part."""
    text = (Path(__file__).parent.parent / "jetson" / "boards.yaml").read_text(encoding="utf-8")
    assert old in text
    path = tmp_path / "boards.yaml"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_boards(path)
    return str(caught.value).replace(str(path), "boards.yaml")


def line_of(words: str) -> int:
    text = (Path(__file__).parent.parent / "jetson" / "boards.yaml").read_text(encoding="utf-8")
    return text[: text.index(words)].count("\n") + 1


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("n_sms: 1 ", "n_sms: one ", "boards.nano.n_sms: must be a whole number from 1 to 1,000 (got one)"),
        ("n_sms: 1 ", "n_sms: 1.5 ", "boards.nano.n_sms: must be a whole number from 1 to 1,000 (got 1.5)"),
        ("n_sms: 1 ", "n_sms: true ", "boards.nano.n_sms: must be a whole number from 1 to 1,000 (got true)"),
        ("n_sms: 1 ", "n_sm: 1 ", "boards.nano.n_sm: unknown key (got 1); did you mean n_sms?"),
        ("clock_mhz: 921.6 ", "clock_mhz: .nan ", "boards.nano.clock_mhz: infinity and NaN are not allowed (got .nan)"),
        ("clock_mhz: 921.6 ", "clock_mhz: 921.6e6 ", "boards.nano.clock_mhz: must be a number from 50 to 10,000"),
        ("arch: sm_53 ", "arch: maxwell ", "boards.nano.arch: must be an architecture such as sm_53 (got maxwell)"),
        ("shared: true", "shared: 1", "boards.nano.shared: must be true or false (got 1)"),
        ("title: Jetson Nano\n", "title: 7\n", "boards.nano.title: must be text (got 7)"),
        ("{slots: 43.0,", "{slots: 0,", "rasterize_block_fast.slots: must be a number from 1 to 100,000"),
        ("{slots: 43.0,", "{slot: 43.0,", "rasterize_block_fast.slot: unknown key (got 43.0); did you mean slots?"),
        ("    rasterize_block_fast: {", "    rasterize_quick: {", "kernels.loops.rasterize_quick: unknown key"),
        ("registers: 64,", "registers: 64.5,", "registers: must be a whole number from 1 to 255 (got 64.5)"),
        ("    exact: {slots: 47", "    quick: {slots: 47", "calibration.loop.quick: unknown key"),
        ("{exponential: exact,", "{exponential: exakt,", "50k-expf.exponential: must be one of exact, fast, bits (got"),
        ("{exponential: exact,", "{exponential: bits,", "dial-50k-expf.exponential: calibration.loop has no bits"),
        ("rasterize_ms: 53.0,", "rasterize_ms: 80.0,", "is no less than the frame's 1000 / fps (got 80.0)"),
        ("n_reached: 36983456, r", "n_reached: 96983456, r", "n_reached: is more than n_evaluations (got 96983456)"),
        ("fps: 15.6", "fps: 15.6, fps: 15.6", "calibration.cases.dial-50k-__expf.fps: duplicate key"),
        ("  board: nano\n", "  board: nono\n", "calibration.board: no such board in this file (got nono)"),
        ("fp32-ref64-radius-fast-block", "fastest", "calibration.variant: no such variant (got fastest)"),
        ("fp32-ref64-radius-fast-block", "best", "calibration.variant: has no front end like the original's"),
        ("fps: 15.6", "fps: [15.6", "syntax error"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_told_by_line_and_key(tmp_path: Path, old: str, new: str, words: str) -> None:
    told = spoiled(tmp_path, old, new)
    assert told.count("\n") == 0
    assert words in told
    assert told.startswith(f"boards.yaml:{line_of(old)}: ") or "syntax" in words, told


def test_a_missing_key_and_a_missing_file(tmp_path: Path) -> None:
    assert "boards.nano.shared: is missing; add it" in spoiled(tmp_path, "    shared: true\n", "")
    assert "kernels: is missing; add it" in spoiled(tmp_path, "\nkernels:", "\nx:")
    told = spoiled(tmp_path, "    rasterize_dual_bits: {", "    #")
    assert "kernels.loops.rasterize_dual_bits: is missing; add it" in told
    assert "boards: must be a mapping" in spoiled(tmp_path, "boards:\n  nano:", "boards: 3\nx:\n  nano:")
    with pytest.raises(ConfigError, match=r"none\.yaml: No such file or directory; reinstall edgegs"):
        load_boards(tmp_path / "none.yaml")


# --- memory: exact ---


@pytest.mark.parametrize("name", ["baseline", "exact", "roofgs", "best", "wide", "packed-ref64-tight-fast-dual"])
@pytest.mark.parametrize(
    ("n", "degree", "width", "height"), [(2, 0, 16, 16), (1, 1, 17, 31), (700, 2, 97, 81), (5000, 3, 320, 240)]
)
def test_memory_is_that_of_the_renderer(host: Backend, name: str, n: int, degree: int, width: int, height: int) -> None:
    scene, choice = scenes.cloud(n, sh_degree=degree, size=0.2), variant(name)
    expected = (n, degree, choice, width, height, host.n_blocks, host.depth)
    renderer = Renderer(host, scene, width, height, name)
    assert renderer_bytes(*expected) == renderer.device_bytes
    frame = renderer.render(scenes.camera(width, height))
    assert renderer_bytes(*expected, n_instances=frame.n_instances) == renderer.device_bytes
    if n == 5000:
        assert frame.redraws == 1, "the instance buffer has grown"
    renderer.close()
    for index in range(2 if choice.key == "bins" else 3):  # scores are added up tile by tile
        backdrop, keeps_float, keeps_scores = (index == i for i in range(3))
        renderer = Renderer(host, scene, width, height, name, (0, 0, 0), keeps_float, backdrop, keeps_scores)
        assert renderer_bytes(*expected, 0, backdrop, keeps_float, keeps_scores) == renderer.device_bytes
        renderer.close()


def test_a_scene_without_room_is_refused_before_anything_is_allocated(
    host: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = scenes.cloud(5000, sh_degree=1)
    needed = renderer_bytes(5000, 1, BEST, 64, 48, host.n_blocks, host.depth)
    real = host.alloc
    monkeypatch.setattr(host, "alloc", lambda *_: pytest.fail("it was not refused before"))
    monkeypatch.setattr(host, "free_memory", lambda: needed - 1)
    with pytest.raises(DeviceError, match=r"scene\.max_gaussians: 4999 would fit"):
        Renderer(host, scene, 64, 48, BEST.name)
    monkeypatch.setattr(host, "free_memory", lambda: 1000)
    with pytest.raises(DeviceError, match="make the picture smaller"):
        Renderer(host, scene, 64, 48, BEST.name)
    monkeypatch.setattr(host, "alloc", real)
    monkeypatch.setattr(host, "free_memory", lambda: needed)
    Renderer(host, scene, 64, 48, BEST.name).close()


def board_of(known: Boards, free_bytes: int, shared: bool = False) -> Boards:
    """The boards with a tiny one, whose free memory is rounded up to whole MiB."""
    tiny = dataclasses.replace(
        known.board("nano"), name="tiny", memory_mib=-(-free_bytes // MIB), system_mib=0, process_mib=0, shared=shared
    )
    return known._replace(boards={**known.boards, "tiny": tiny})


def test_the_verdict_turns_where_the_memory_ends(known: Boards) -> None:
    scene = scenes.cloud(60_000, sh_degree=3)
    board = board_of(known, 8 * MIB).board("tiny")
    found = memory(board, scene, BEST, 64, 48, 0)
    assert not found["fits"]
    assert 0 < found["max_splats"] < 60_000
    just = renderer_bytes(found["max_splats"], 3, BEST, 64, 48, board.n_blocks, 2)
    over = renderer_bytes(found["max_splats"] + 1, 3, BEST, 64, 48, board.n_blocks, 2)
    assert just <= 8 * MIB < over
    fitting = memory(board_of(known, found["running_bytes"]).board("tiny"), scene, BEST, 64, 48, 0)
    assert fitting["fits"]
    assert fitting["max_splats"] == 60_000
    assert memory(board, scene, BEST, 8192, 8192, 0)["max_splats"] == 0


def test_loading_counts_where_the_processor_shares_the_memory(known: Boards) -> None:
    scene = scenes.cloud(60_000, sh_degree=3)
    alone = memory(board_of(known, 1).board("tiny"), scene, BEST, 64, 48, 0)
    assert alone["loading_bytes"] == alone["running_bytes"]
    shared = memory(board_of(known, alone["running_bytes"], shared=True).board("tiny"), scene, BEST, 64, 48, 0)
    assert shared["fits"]
    assert not shared["fits_while_loading"]
    assert shared["loading_bytes"] == alone["running_bytes"] + 60_000 * (236 + 76)
    packed = memory(board_of(known, 1, shared=True).board("tiny"), quantise(scene), BEST, 64, 48, 0)
    assert packed["loading_bytes"] == alone["running_bytes"] + 60_000 * (76 + 4)


# --- counts: against a plain loop ---


def evaluations_by_hand(renderer: Renderer, raster: str) -> Tuple[int, int]:
    """Warps as the kernels run them, pixel by pixel and splat by splat: evaluations, and those that reach a pixel."""
    starts, splats = renderer.read("tile_starts").astype(int), renderer.read("instance_splats")
    with np.errstate(all="ignore"):  # what belongs to splats out of sight was never written
        means2d, conics = renderer.read("splat_means2d").astype(float), renderer.read("splat_conics").astype(float)
    n_tiles_x, rows, total, n_reached = -(-renderer.width // 16), counting.WARP_ROWS[raster], 0, 0
    for tile in range(len(starts) - 1):
        ids = splats[starts[tile] : starts[tile + 1]]
        for piece in range(16 // rows):
            pixels = []
            for row in range(rows):
                for column in range(16):
                    x, y = tile % n_tiles_x * 16 + column, tile // n_tiles_x * 16 + piece * rows + row
                    pixels.append([x + 0.5, y + 0.5, 1.0, x < renderer.width and y < renderer.height])
            for splat in ids:
                if not any(pixel[3] for pixel in pixels):
                    break
                reached = False
                for pixel in (one for one in pixels if one[3]):
                    dx, dy = pixel[0] - means2d[splat, 0], pixel[1] - means2d[splat, 1]
                    xx, xy, yy, opacity = conics[splat]
                    alpha = min(0.99, opacity * math.exp(-0.5 * (xx * dx * dx + yy * dy * dy) - xy * dx * dy))
                    if alpha < C["ALPHA_MIN"]:
                        continue
                    reached = True
                    if pixel[2] * (1 - alpha) < C["TRANSMITTANCE_MIN"]:
                        pixel[3] = False
                    else:
                        pixel[2] *= 1 - alpha
                total += rows * 16
                n_reached += rows * 16 * reached
    return total, n_reached


def bright_cloud() -> Scene:
    scene = scenes.cloud(400, size=0.15)
    return dataclasses.replace(scene, opacities=np.sqrt(scene.opacities))  # so that many pixels finish


@pytest.mark.parametrize("name", ["fp32-ref64-radius-fast-block", "roofgs"])
def test_evaluations_are_those_of_the_warps(host: Backend, name: str) -> None:
    bright, camera = bright_cloud(), scenes.camera(40, 37, 40)
    counts = count_frame(host, bright, variant(name), camera)
    renderer = Renderer(host, bright, 40, 37, name)
    frame = renderer.render(camera)
    assert (counts.n_visible, counts.n_instances) == (frame.n_visible, frame.n_instances)
    assert counts.n_tiles_counted == counts.n_tiles
    total, reached = evaluations_by_hand(renderer, variant(name).raster)
    assert counts.n_evaluations == pytest.approx(total, rel=0.01), "float32 against float64 at the thresholds"
    assert counts.n_reached == pytest.approx(reached, rel=0.01)
    assert reached < 0.9 * total
    assert counts.n_evaluations < 0.9 * counts.n_evaluations_max
    renderer.close()


@pytest.mark.parametrize("name", ["best", "wide"])
def test_patches_are_counted_by_the_kernels(host: Backend, name: str) -> None:
    bright, camera = bright_cloud(), scenes.camera(70, 37, 40)
    counts = count_frame(host, bright, variant(name), camera)
    renderer = Renderer(host, bright, 70, 37, name)
    frame = renderer.render(camera)
    found, starts, lists = renderer.patch_counts(), renderer.read("bin_starts"), renderer.read("bin_lists")
    pixels = 64 if name == "best" else 128
    assert (counts.n_visible, counts.n_instances) == (frame.n_visible, frame.n_instances)
    assert (counts.n_walked, counts.n_picked) == (found["walked"], found["picked"])
    assert counts.n_evaluations == counts.n_reached == found["blended"] * pixels
    assert counts.n_entries == starts[-1] <= counts.n_instances
    assert counts.n_patches == -(-70 // (pixels // 8)) * 5, "37 rows are five patches high"
    in_lists = {int(splat) for splat in lists[: starts[-1], 0]}
    assert counts.n_busy == len({splat // 32 for splat in in_lists})
    if name == "wide":  # 37 rows: one bin high; every entry is looked at by the patches of its bin, at most
        assert counts.n_evaluations_max == (int(starts[1]) * 4 + int(starts[2] - starts[1])) * 5 * pixels
    picked_at_most = sum(bin(int(mask)).count("1") for mask in lists[: starts[-1], 1])
    assert 0 < counts.n_picked <= picked_at_most
    assert counts.n_sorted == counts.n_tiles == np.count_nonzero(np.diff(starts.astype(int)))
    assert counts.n_scanned == 0
    assert counts.n_entries / 32 <= counts.n_turns <= counts.n_entries, "a splat's own bucket holds it"
    renderer.close()


def test_long_lists_are_sorted_range_by_range() -> None:
    assert list_ranges(np.array([0, 1, 4096])) == (2, 0)
    assert list_ranges(np.array([4097])) == (2, 2 * 4097)
    assert list_ranges(np.array([8_000, 5])) == (3 + 1, 3 * 8_000), "ranges of 3,072"
    assert list_ranges(np.array([10_000, 5])) == (5 + 1, 10_000), "parts of 2,048"
    assert list_ranges(np.array([10_000, 5_000, 5]), np.array([4, 2, 1])) == (5 + 3 + 1, 4 * 10_000 + 2 * 5_000)


def test_turns_of_the_loop_over_a_bucket() -> None:
    spread = np.arange(2048, dtype=np.uint32) * 4096
    assert bucket_turns(spread, np.array([2048])) == 64, "one a row of 32"
    assert bucket_turns(spread[:40], np.array([0, 20, 0, 20])) == 2
    crowd = np.r_[np.zeros(60), 4_000_000, 8_000_000].astype(np.uint32)  # 60 in the first bucket
    assert bucket_turns(crowd, np.array([62])) == 60 + 60
    assert bucket_turns(np.r_[crowd, crowd], np.array([62, 62])) == 240
    even = np.arange(3 * 4096, dtype=np.uint32) * 1000
    assert bucket_turns(even[::-1].copy(), np.array([3 * 4096])) == 3 * 4096 / 32, "a long list part by part"
    assert bucket_turns(spread[:0], np.array([0, 0])) == 0


def test_a_sample_of_tiles_stands_for_all(host: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    scene, camera = scenes.cloud(6000, size=0.05), scenes.camera(320, 240, 200)
    monkeypatch.setattr(counting, "MAX_LOOKED_AT", 1 << 40)
    exact = count_frame(host, scene, BASELINE, camera)
    assert exact.n_tiles_counted == exact.n_tiles
    monkeypatch.setattr(counting, "MAX_LOOKED_AT", exact.n_evaluations_max // 4)
    sampled = count_frame(host, scene, BASELINE, camera)
    assert sampled.n_tiles_counted == pytest.approx(exact.n_tiles / 4, rel=0.05)
    assert sampled.n_evaluations == pytest.approx(exact.n_evaluations, rel=0.1)
    assert count_frame(host, scene, BASELINE, camera) == sampled, "the same tiles each time"


def test_a_view_of_nothing_counts_nothing(host: Backend, known: Boards) -> None:
    behind = scenes.one(mean=(0, 0, -5))
    counts = count_frame(host, behind, BEST, scenes.camera())
    assert (counts.n_visible, counts.n_instances, counts.n_evaluations, counts.n_tiles) == (0, 0, 0, 0)
    assert predict(known, known.board("nano"), BEST, counts).frame_ms > 0, "launches are left"


# --- time: predicted (the model itself: test_model.py) ---


@pytest.mark.parametrize("n", [25_000, 50_000])
def test_the_calibration_is_counted_again(host: Backend, known: Boards, n: int) -> None:
    calibration = known.calibration
    viewmat, K = dial_camera()
    camera = Camera(viewmat=viewmat, K=K, width=640, height=480)
    counts = count_frame(host, dial(n), variant(calibration.variant), camera)
    cases = [case for case in calibration.cases.values() if case.n_splats == n]
    assert len(cases) == 2
    for case in cases:
        for name in ("n_visible", "n_instances"):
            assert getattr(counts, name) == getattr(case, name), name
        assert counts.n_evaluations == pytest.approx(case.n_evaluations, rel=0.03), "of a sample of the tiles"
        assert counts.n_reached == pytest.approx(case.n_reached, rel=0.03)
    assert (counts.width, counts.height, counts.sh_degree) == (calibration.width, calibration.height, 3)


def test_every_figure_of_time_is_called_predicted(host: Backend, known: Boards) -> None:
    scene = scenes.cloud(500)
    counts = count_frame(host, scene, BEST, scenes.camera(640, 480, 500))
    found = cost(scene, "nano", 640, 480, counts)
    times = {name for name in found if name.endswith(("_ms", "_fps", "_splats"))}
    assert times == {"predicted_ms", "predicted_frame_ms", "predicted_fps", "target_fps", "predicted_max_splats"}
    low, high = found["predicted_fps_range"]
    assert low < found["predicted_fps"] < high
    assert sum(found["predicted_ms"].values()) == pytest.approx(found["predicted_frame_ms"], abs=1e-3)
    assert found["predicted_fps"] == pytest.approx(1e3 / found["predicted_frame_ms"], rel=1e-3)
    assert not found["calibration"]["extrapolated"]
    assert cost(scene, "orin-nano", 640, 480, counts)["calibration"]["extrapolated"]
    without = cost(scene, "nano", 640, 480)
    assert "predicted_fps" not in without
    assert without["memory"]["fits"]


def test_the_number_of_splats_for_a_rate(host: Backend, known: Boards) -> None:
    scene = scenes.cloud(2000)
    counts = count_frame(host, scene, BEST, scenes.camera(320, 240, 200))
    found = cost(scene, "nano", 320, 240, counts, target_fps=1.0)
    assert found["predicted_max_splats"] == 2000
    fast = 2 * found["predicted_fps"]
    fewer = cost(scene, "nano", 320, 240, counts, target_fps=fast)["predicted_max_splats"]
    assert 100 < fewer < 1000, "half the time, less what launches take"
    assert cost(scene, "nano", 320, 240, counts, target_fps=1e6)["predicted_max_splats"] == 0


def test_what_does_not_fit_here_is_an_error(host: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "free_memory", lambda: 1 << 20)
    with pytest.raises(DeviceError, match=r"scene\.max_gaussians"):
        count_frame(host, scenes.cloud(50_000), BEST, scenes.camera())
