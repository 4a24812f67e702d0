"""What a scene costs on a board that is not at hand: device memory, exactly; time, predicted (see model.py).

Nothing of it was measured on the board asked about; every figure of time is named *predicted*.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Dict, Optional

from edgegs.bench.boards import Board, Boards, load_boards
from edgegs.bench.counting import Counts
from edgegs.bench.model import Kernels, efficiency, fixed_ms, predict, splats_for_fps
from edgegs.kernels.variants import Variant, gpu_default
from edgegs.pack import AnyScene, PackedScene
from edgegs.pack.upload import splat_bytes
from edgegs.room import most_splats, renderer_bytes

#: Frames that the cuda backend has under way.
CUDA_DEPTH = 2
#: A reader takes this times the scene's arrays while it reads, at most.
READING_PEAK = 1.5


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


def cost(
    scene: AnyScene,
    board_name: str,
    width: int,
    height: int,
    counts: Optional[Counts] = None,
    choice: Optional[Variant] = None,
    known: Optional[Boards] = None,
    target_fps: float = 25.0,
    kernels: Optional[Kernels] = None,
) -> Dict[str, Any]:
    """What ``edgegs info --board`` says of a board, ready for JSON.

    Args:
        counts: of a frame of that size and variant; None: memory only.
        choice: None: what ``auto`` takes on a GPU.
        kernels: what was counted in the rasterizers; None: what the file of boards keeps.

    Raises:
        UsageError: no such board.
        ConfigError: the file of boards is wrong.
    """
    known = load_boards() if known is None else known
    board = known.board(board_name)
    choice = gpu_default(scene.n_splats, width, height, board.n_sms) if choice is None else choice
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
    prediction, reached = predict(known, board, choice, counts, kernels), efficiency(known)
    calibration = known.calibration
    fastest = max(calibration.cases.values(), key=lambda case: (case.rasterize_ms > 0, case.fps))
    fixed = fixed_ms(known, board, choice, counts, kernels)
    result.update(
        counts=asdict(counts),
        predicted_ms={stage: round(ms, 4) for stage, ms in prediction.stage_ms.items()},
        predicted_frame_ms=round(prediction.frame_ms, 4),
        predicted_fps=round(1e3 / prediction.frame_ms, 2),
        predicted_fps_range=[round(1e3 / prediction.high_ms, 2), round(1e3 / prediction.low_ms, 2)],
        predicted_max_splats=splats_for_fps(prediction, scene.n_splats, fixed, target_fps),
        target_fps=target_fps,
        calibration={
            "board": calibration.board,
            "variant": calibration.variant,
            "fps": fastest.fps,
            "issue_efficiency": round(reached.issue, 4),
            "issue_efficiency_range": [round(reached.issue_low, 4), round(reached.issue_high, 4)],
            "memory_efficiency": round(reached.memory, 4),
            "extrapolated": board.arch != known.boards[calibration.board].arch,
        },
    )
    return result
