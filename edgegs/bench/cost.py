"""What a scene costs on a board that is not at hand: device memory, exactly; time, predicted.

The time is a model: bytes of the first stages over the board's bandwidth, issue slots of the blend loop over its issue
rate, each divided by the share of it that one published measurement of a Jetson Nano reached (``calibration`` in
jetson/boards.yaml). Nothing of it was measured on the board asked about; every figure is named *predicted*.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Dict, NamedTuple, Optional

from edgegs.bench.boards import Board, Boards, Calibration, load_boards
from edgegs.bench.counting import Counts
from edgegs.errors import UsageError
from edgegs.frame import STAGES
from edgegs.kernels.variants import DEFAULTS, Variant, digit_plan, variant
from edgegs.pack import AnyScene, PackedScene
from edgegs.pack.upload import splat_bytes
from edgegs.renderer import DEPTH_KEY_BITS
from edgegs.room import (
    COLOUR,
    CONIC,
    DEPTH,
    EXTENT,
    MEANS2D,
    RECT,
    TILE_COUNT,
    C,
    most_splats,
    n_tiles,
    renderer_bytes,
)

#: Frames that the cuda backend has under way.
CUDA_DEPTH = 2
#: A reader takes this times the scene's arrays while it reads, at most.
READING_PEAK = 1.5


class Prediction(NamedTuple):
    """Milliseconds of each of ``STAGES``, predicted."""

    stage_ms: Dict[str, float]

    @property
    def frame_ms(self) -> float:
        return sum(self.stage_ms.values())


class Efficiency(NamedTuple):
    """The shares of a board's issue rate and bandwidth that the calibration's measurement reached."""

    issue: float
    memory: float


def memory(board: Board, scene: AnyScene, choice: Variant, width: int, height: int, n_instances: int) -> Dict[str, Any]:
    """Whether a scene fits a board, in bytes, and how many of its splats would.

    Where the processor shares the memory, loading takes the scene's own arrays beside what is on the device: those of a
    pack are small.
    """

    def running(n: int) -> int:
        of_them = n_instances * n // max(1, scene.n_splats)
        arguments = (scene.sh_degree, choice, width, height, board.n_blocks, CUDA_DEPTH, of_them)
        return renderer_bytes(n, *arguments)

    def loading(n: int) -> int:
        if not board.shared:
            return running(n)
        arrays, quantised = (n * splat_bytes(scene.sh_degree, storage) for storage in ("fp32", "packed"))
        if isinstance(scene, PackedScene):
            return running(n) + quantised + 4 * n + (arrays if choice.storage == "fp32" else 0)
        return max(round(READING_PEAK * arrays), arrays + (quantised if choice.storage == "packed" else 0) + running(n))

    n, free = scene.n_splats, board.free_bytes
    return {
        "board_bytes": board.memory_mib << 20,
        "free_bytes": free,
        "running_bytes": running(n),
        "loading_bytes": loading(n),
        "fits": running(n) <= free,
        "fits_while_loading": loading(n) <= free,
        "max_splats": most_splats(n, lambda count: running(count) <= free),
    }


def stage_bytes(choice: Variant, counts: Any) -> Dict[str, float]:
    """Bytes that each stage moves, as the kernels ask for them: caches are the calibration's matter.

    Args:
        counts: anything with the counts of ``Counts``.
    """
    n, visible, instances = counts.n_splats, counts.n_visible, counts.n_instances
    projected = MEANS2D + DEPTH + CONIC + COLOUR
    key = choice.key_bits // 8
    emitted = instances * (key + 4)
    moved = dict.fromkeys(STAGES, 0.0)
    moved["project"] = n * splat_bytes(counts.sh_degree, choice.storage) + visible * projected
    if choice.key == "packed32":
        moved["project"] += emitted
    else:
        shape = RECT + (MEANS2D + CONIC + EXTENT if choice.culling == "tight" else DEPTH)
        moved["project"] += n * TILE_COUNT + visible * RECT
        moved["duplicate"] = n * TILE_COUNT + visible * shape + emitted
    passes = _passes(choice, counts)
    moved["sort"] = passes * instances * _sorted_bytes(key)
    if choice.key == "split":
        moved["sort"] += n * TILE_COUNT + visible * (4 + 4) + _depth_passes() * visible * _sorted_bytes(4)
        moved["duplicate"] += visible * (4 + TILE_COUNT)
    moved["rasterize"] = instances * (4 + MEANS2D + CONIC + COLOUR)
    return moved


def _sorted_bytes(key: int) -> int:
    """Of an item in a pass of the radix sort: its key is counted, then it is read and written."""
    return key + 2 * (key + 4)


def _passes(choice: Variant, counts: Any) -> int:
    bits = choice.sort_bits(n_tiles(counts.width, counts.height))
    return len(digit_plan(bits, int(C["SORT_DIGIT_BITS"])))


def _depth_passes() -> int:
    return len(digit_plan(DEPTH_KEY_BITS, int(C["SORT_DIGIT_BITS"])))


def stage_launches(choice: Variant, counts: Any) -> Dict[str, int]:
    """Kernel launches of each stage."""
    n = dict.fromkeys(STAGES, 1)
    n["sort"] = 3 * _passes(choice, counts)
    if choice.key == "packed32":
        n["duplicate"] = 0
    if choice.key == "split":
        n["duplicate"] += 1
        n["sort"] += 1 + 3 * _depth_passes()
    return n


def blend_slots(known: Boards, choice: Variant, n_evaluations: int) -> float:
    """Warp instructions of the blend loop; UsageError for a loop whose instructions were never counted."""
    loops = known.issue_slots.get(choice.raster, {})
    if choice.exponential not in loops:
        counted = ", ".join(f"{raster} {name}" for raster, names in known.issue_slots.items() for name in names)
        raise UsageError(
            f"variant {choice.name}: no count of instructions for raster {choice.raster} with exponential "
            f"{choice.exponential} (there are: {counted}); predict another variant, such as best"
        )
    return n_evaluations / 32 * loops[choice.exponential]


def efficiency(known: Boards) -> Efficiency:
    """What the calibration's measurement reached of its board's ceilings."""
    measured: Calibration = known.calibration
    board, choice = known.boards[measured.board], variant(measured.variant, "cuda")
    slots = blend_slots(known, choice, measured.n_evaluations)
    moved = stage_bytes(choice, measured)
    others_ms = 1e3 / measured.fps - measured.rasterize_ms
    others_ms -= sum(stage_launches(choice, measured).values()) * measured.launch_us / 1e3
    return Efficiency(
        issue=1e3 * slots / board.issue_rate / measured.rasterize_ms,
        memory=1e3 * (sum(moved.values()) - moved["rasterize"]) / board.bandwidth / others_ms,
    )


def predict(known: Boards, board: Board, choice: Variant, counts: Any) -> Prediction:
    """The time of each stage of a frame on a board, from its counts; drawing only, without outputs.

    Raises:
        UsageError: the variant's blend loop was never counted.
    """
    reached = efficiency(known)
    moved, launches = stage_bytes(choice, counts), stage_launches(choice, counts)
    ms = {stage: 1e3 * moved[stage] / (board.bandwidth * reached.memory) for stage in STAGES}
    slots = blend_slots(known, choice, counts.n_evaluations)
    ms["rasterize"] = max(ms["rasterize"], 1e3 * slots / (board.issue_rate * reached.issue))
    return Prediction({stage: ms[stage] + launches[stage] * known.calibration.launch_us / 1e3 for stage in STAGES})


def splats_for_fps(prediction: Prediction, n_splats: int, launches_ms: float, fps: float) -> int:
    """About how many of the splats reach ``fps``, if all counts fall as theirs; 0 where none do."""
    wanted_ms, per_splat = 1e3 / fps - launches_ms, (prediction.frame_ms - launches_ms) / max(1, n_splats)
    return max(0, min(n_splats, int(wanted_ms / per_splat))) if per_splat > 0 else n_splats


def cost(
    scene: AnyScene,
    board_name: str,
    width: int,
    height: int,
    counts: Optional[Counts] = None,
    choice: Optional[Variant] = None,
    known: Optional[Boards] = None,
    target_fps: float = 25.0,
) -> Dict[str, Any]:
    """What ``edgegs info --board`` says of a board, ready for JSON.

    Args:
        counts: of a frame of that size and variant; None: memory only.
        choice: None: what ``auto`` takes on a GPU.

    Raises:
        UsageError: no such board, or a variant that cannot be predicted.
        ConfigError: the file of boards is wrong.
    """
    known = load_boards() if known is None else known
    board, choice = known.board(board_name), DEFAULTS["cuda"] if choice is None else choice
    result: Dict[str, Any] = {
        "board": board.name,
        "title": board.title,
        "arch": board.arch,
        "variant": choice.name,
        "width": width,
        "height": height,
        "memory": memory(board, scene, choice, width, height, counts.n_instances if counts else 0),
    }
    if counts is None:
        return result
    prediction, reached = predict(known, board, choice, counts), efficiency(known)
    launches_ms = sum(stage_launches(choice, counts).values()) * known.calibration.launch_us / 1e3
    result.update(
        counts=asdict(counts),
        predicted_ms={stage: round(ms, 4) for stage, ms in prediction.stage_ms.items()},
        predicted_frame_ms=round(prediction.frame_ms, 4),
        predicted_fps=round(1e3 / prediction.frame_ms, 2),
        predicted_max_splats=splats_for_fps(prediction, scene.n_splats, launches_ms, target_fps),
        target_fps=target_fps,
        calibration={
            **asdict(known.calibration),
            "issue_efficiency": round(reached.issue, 4),
            "memory_efficiency": round(reached.memory, 4),
            "extrapolated": board.arch != known.boards[known.calibration.board].arch,
        },
    )
    return result
