"""Boards that are not at hand: their file, the memory a scene takes there (exactly) and its time (predicted)."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import scenes

from edgegs.backends.base import Backend
from edgegs.bench import counting
from edgegs.bench.boards import Boards, load_boards
from edgegs.bench.cost import cost, efficiency, memory, predict
from edgegs.bench.counting import Counts, count_frame
from edgegs.camera import Camera
from edgegs.errors import ConfigError, DeviceError, UsageError
from edgegs.kernels.variants import BASELINE, BEST, EXACT, FUSED, variant
from edgegs.pack import quantise
from edgegs.renderer import Renderer
from edgegs.room import C, renderer_bytes
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
        ("{exact: 47, fast: 38}", "{exact: 47, fast: 0}", "issue_slots.block.fast: must be a number from 1 to 1,000"),
        ("{exact: 47, fast: 38}", "{exact: 47, quick: 38}", "issue_slots.block.quick: unknown key (got 38)"),
        ("fps: 15.6", "fps: 15.6\n  fps: 15.6", "calibration.fps: duplicate key"),
        ("  board: nano\n", "  board: nono\n", "calibration.board: no such board in this file (got nono)"),
        ("fp32-ref64-radius-fast-block", "fastest", "calibration.variant: no such variant (got fastest)"),
        ("ref64-radius-fast-block", "ref64-radius-bits-block", "calibration.variant: issue_slots has no block.bits"),
        ("fps: 15.6", "fps: [15.6", "syntax error"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_told_by_line_and_key(tmp_path: Path, old: str, new: str, words: str) -> None:
    told = spoiled(tmp_path, old, new)
    assert told.count("\n") == 0
    assert words in told
    line = line_of(old) + (1 if "duplicate" in words else 0)
    assert told.startswith(f"boards.yaml:{line}: ") or "syntax" in words, told


def test_a_missing_key_and_a_missing_file(tmp_path: Path) -> None:
    assert "boards.nano.shared: is missing; add it" in spoiled(tmp_path, "    shared: true\n", "")
    assert "issue_slots: is missing; add it" in spoiled(tmp_path, "issue_slots:", "x:")
    assert "boards: must be a mapping" in spoiled(tmp_path, "boards:\n  nano:", "boards: 3\nx:\n  nano:")
    with pytest.raises(ConfigError, match=r"none\.yaml: No such file or directory; reinstall edgegs"):
        load_boards(tmp_path / "none.yaml")


# --- memory: exact ---


@pytest.mark.parametrize("name", ["baseline", "exact", "roofgs", "fused", "best", "packed-ref64-tight-fast-dual"])
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
    for index in range(3):
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


def evaluations_by_hand(renderer: Renderer, raster: str) -> int:
    """Warps as the kernels run them, pixel by pixel and splat by splat."""
    starts, splats = renderer.read("tile_starts").astype(int), renderer.read("instance_splats")
    with np.errstate(all="ignore"):  # what belongs to splats out of sight was never written
        means2d, conics = renderer.read("splat_means2d").astype(float), renderer.read("splat_conics").astype(float)
    n_tiles_x, rows, total = -(-renderer.width // 16), counting.WARP_ROWS[raster], 0
    for tile in range(len(starts) - 1):
        ids = splats[starts[tile] : starts[tile + 1]]
        for piece in range(16 // rows):
            pixels = []
            for row in range(rows):
                for column in range(16):
                    x, y = tile % n_tiles_x * 16 + column, tile // n_tiles_x * 16 + piece * rows + row
                    pixels.append([x + 0.5, y + 0.5, 1.0, x < renderer.width and y < renderer.height])
            busy = True
            for k, splat in enumerate(ids):
                if raster != "warp" or k % 32 == 0:
                    busy = any(pixel[3] for pixel in pixels)
                if not busy:
                    break
                reached = False
                for pixel in pixels:
                    dx, dy = pixel[0] - means2d[splat, 0], pixel[1] - means2d[splat, 1]
                    xx, xy, yy, opacity = conics[splat]
                    alpha = min(0.99, opacity * math.exp(-0.5 * (xx * dx * dx + yy * dy * dy) - xy * dx * dy))
                    if alpha < C["ALPHA_MIN"]:
                        continue
                    reached = True
                    if pixel[3] and pixel[2] * (1 - alpha) < C["TRANSMITTANCE_MIN"]:
                        pixel[3] = False
                    elif pixel[3]:
                        pixel[2] *= 1 - alpha
                if reached or raster != "warp":
                    total += rows * 16
    return total


@pytest.mark.parametrize("name", ["fp32-ref64-radius-fast-block", FUSED.name, BEST.name])
def test_evaluations_are_those_of_the_warps(host: Backend, name: str) -> None:
    scene = scenes.cloud(400, size=0.15)
    bright = dataclasses.replace(scene, opacities=np.sqrt(scene.opacities))  # so that many pixels finish
    camera = scenes.camera(40, 37, 40)
    counts = count_frame(host, bright, variant(name), camera)
    renderer = Renderer(host, bright, 40, 37, name)
    frame = renderer.render(camera)
    assert (counts.n_visible, counts.n_instances) == (frame.n_visible, frame.n_instances)
    assert counts.n_tiles_counted == counts.n_tiles
    by_hand = evaluations_by_hand(renderer, variant(name).raster)
    assert counts.n_evaluations == pytest.approx(by_hand, rel=0.01), "float32 against float64 at the thresholds"
    assert counts.n_evaluations < 0.9 * counts.n_evaluations_max
    renderer.close()


def test_a_sample_of_tiles_stands_for_all(host: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    scene, camera = scenes.cloud(6000, size=0.05), scenes.camera(320, 240, 200)
    monkeypatch.setattr(counting, "MAX_LOOKED_AT", 1 << 40)
    exact = count_frame(host, scene, BEST, camera)
    assert exact.n_tiles_counted == exact.n_tiles
    monkeypatch.setattr(counting, "MAX_LOOKED_AT", exact.n_evaluations_max // 4)
    sampled = count_frame(host, scene, BEST, camera)
    assert sampled.n_tiles_counted == pytest.approx(exact.n_tiles / 4, rel=0.05)
    assert sampled.n_evaluations == pytest.approx(exact.n_evaluations, rel=0.1)
    assert count_frame(host, scene, BEST, camera) == sampled, "the same tiles each time"


def test_a_view_of_nothing_counts_nothing(host: Backend, known: Boards) -> None:
    behind = scenes.one(mean=(0, 0, -5))
    counts = count_frame(host, behind, BEST, scenes.camera())
    assert (counts.n_visible, counts.n_instances, counts.n_evaluations, counts.n_tiles) == (0, 0, 0, 0)
    assert predict(known, known.board("nano"), BEST, counts).frame_ms > 0, "launches are left"


# --- time: predicted ---


def dial_counts(host: Backend, name: str) -> Counts:
    viewmat, K = dial_camera()
    return count_frame(host, dial(50_000), variant(name), Camera(viewmat=viewmat, K=K, width=640, height=480))


def test_the_calibration_is_counted_again(host: Backend, known: Boards) -> None:
    calibration = known.calibration
    counts = dial_counts(host, calibration.variant)
    for name in ("width", "height", "sh_degree", "n_splats", "n_visible", "n_instances"):
        assert getattr(counts, name) == getattr(calibration, name), name
    assert counts.n_evaluations == pytest.approx(calibration.n_evaluations, rel=0.03), "of a sample of the tiles"


def test_the_model_gives_back_what_it_was_calibrated_on(known: Boards) -> None:
    calibration = known.calibration
    found = predict(known, known.board(calibration.board), variant(calibration.variant), calibration)
    assert found.frame_ms == pytest.approx(1e3 / calibration.fps, rel=0.001)
    assert found.stage_ms["rasterize"] == pytest.approx(calibration.rasterize_ms, rel=0.001)
    # The report's shares: render 75 %, sort 19 %, the rest 6 %. Its three numbers were not used.
    assert found.stage_ms["rasterize"] / found.frame_ms == pytest.approx(0.75, abs=0.05)
    assert found.stage_ms["sort"] / found.frame_ms == pytest.approx(0.19, abs=0.06)


def test_the_other_published_figure_is_met(known: Boards) -> None:
    """expf instead of __expf: 53.0 ms and 14.0 FPS, not used for the calibration either."""
    exact = predict(known, known.board("nano"), BASELINE, known.calibration)
    assert exact.stage_ms["rasterize"] == pytest.approx(53.0, rel=0.1)
    assert 1e3 / exact.frame_ms == pytest.approx(14.0, rel=0.1)


def test_the_efficiencies_are_possible(known: Boards) -> None:
    for share in efficiency(known):
        assert 0.1 < share < 1


def test_a_prediction_grows_with_what_it_counts(known: Boards) -> None:
    counts = Counts(640, 480, 3, 50_000, 40_000, 300_000, 50_000_000, 80_000_000, 1200, 1200)
    nano = known.board("nano")
    ms = predict(known, nano, BEST, counts)
    for name, stage in (
        ("n_splats", "project"), ("n_visible", "duplicate"), ("n_instances", "sort"), ("n_evaluations", "rasterize"),
    ):  # fmt: skip
        more = predict(known, nano, BEST, dataclasses.replace(counts, **{name: 2 * getattr(counts, name)}))
        assert more.stage_ms[stage] > ms.stage_ms[stage], name
    assert predict(known, nano, FUSED, counts).stage_ms["duplicate"] == 0
    assert predict(known, known.board("orin-nano"), BEST, counts).frame_ms < ms.frame_ms / 4


def test_a_loop_that_was_never_counted_is_not_predicted(known: Boards) -> None:
    counts = Counts(640, 480, 3, 5, 5, 5, 5, 5, 1, 1)
    with pytest.raises(UsageError, match="variant exact: no count of instructions for raster dual with exponential ex"):
        predict(known, known.board("nano"), EXACT, counts)


def test_every_figure_of_time_is_called_predicted(host: Backend, known: Boards) -> None:
    scene = scenes.cloud(500)
    counts = count_frame(host, scene, BEST, scenes.camera(640, 480, 500))
    found = cost(scene, "nano", 640, 480, counts)
    times = {name for name in found if name.endswith(("_ms", "_fps", "_splats"))}
    assert times == {"predicted_ms", "predicted_frame_ms", "predicted_fps", "target_fps", "predicted_max_splats"}
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
