"""The time of a frame on a board that is not at hand, predicted from counts: see docs/model.md.

Each stage takes the longer of two times: its issue slots over multiprocessors x schedulers x clock, and its bytes over
the bandwidth; each divided by the share of that ceiling that published measurements of a Jetson Nano reached. The two
published exponentials give two shares of the issue rate: their spread is the prediction's interval.
"""

from __future__ import annotations

import logging
from dataclasses import fields, replace
from typing import Any, Dict, List, NamedTuple, Optional

from edgegs.bench import disassembly
from edgegs.bench.boards import Board, Boards, Case, LoopCount, PatchCount
from edgegs.bench.counting import PATCH_PIXELS
from edgegs.errors import DeviceError
from edgegs.frame import STAGES
from edgegs.kernels.manifest import source_hash
from edgegs.kernels.select import every_image, read_image
from edgegs.kernels.variants import Variant, combinations, digit_plan, variant
from edgegs.pack.upload import splat_bytes
from edgegs.pipelines import DEPTH_KEY_BITS
from edgegs.room import (
    BIN_INSTANCE,
    COLOUR,
    CONIC,
    DEPTH,
    EXTENT,
    LIST_ENTRY,
    MEANS2D,
    RECORD,
    RECT,
    SORTED_ENTRY,
    TILE_COUNT,
    C,
    n_tiles,
)

log = logging.getLogger(__name__)

#: Bytes of a splat besides its SH: what is read of one that is not drawn.
_BODY = {"fp32": 44, "packed": 28}
#: Architectures from this on start one instruction a clock and scheduler; before, some start in pairs.
_NO_PAIRS_FROM = 70
#: What a raster on sm_53 should keep to: issue slots per pixel and splat, registers, bytes spilled, block barriers.
BARS = {"slots": 10.0, "registers": 64, "spills": 0, "barriers": 0}


class Kernels(NamedTuple):
    """What was counted in the rasterizers, by kernel.

    Attributes:
        origin: where it was read, in words. is_read: from an image that is here, not from the file of boards.
        why_not: why no image could be read.
    """

    loops: Dict[str, LoopCount]
    patches: Dict[str, PatchCount]
    origin: str
    is_read: bool
    why_not: str = ""


class Efficiency(NamedTuple):
    """The shares of a board's issue rate and bandwidth that the calibration's measurements reached."""

    issue_low: float
    issue_high: float
    memory: float

    @property
    def issue(self) -> float:
        return (self.issue_low + self.issue_high) / 2


class StageTime(NamedTuple):
    """One stage: what it takes, and its milliseconds, predicted: at the middle efficiency, the best and the worst.

    Attributes:
        slots: issue slots of all warps; 0 where they were not counted.
        n_bytes: as the kernels ask for them: caches are the calibration's matter.
    """

    slots: float
    n_bytes: float
    n_launches: int
    bound: str  # issue or memory
    ms: float
    low_ms: float
    high_ms: float


class Prediction(NamedTuple):
    """A frame, stage by stage; drawing only, without outputs."""

    stages: Dict[str, StageTime]

    @property
    def stage_ms(self) -> Dict[str, float]:
        return {stage: one.ms for stage, one in self.stages.items()}

    @property
    def frame_ms(self) -> float:
        return sum(one.ms for one in self.stages.values())

    @property
    def low_ms(self) -> float:
        return sum(one.low_ms for one in self.stages.values())

    @property
    def high_ms(self) -> float:
        return sum(one.high_ms for one in self.stages.values())


# --- what the kernels take ---


def rasterizers() -> List[str]:
    """The kernels that blend."""
    return list(dict.fromkeys(one.entries["rasterize"] for one in combinations()))


def stored_kernels(known: Boards, why_not: str = "") -> Kernels:
    """The counts that the file of boards keeps."""
    kept = known.kernels
    origin = f"counts of {kept.read} kept in boards.yaml, sources {kept.source}"
    if not source_hash().startswith(kept.source):
        origin += " (the sources have changed since)"
    return Kernels(kept.loops, kept.patches, origin, False, why_not)


def find_kernels(known: Boards, arch: str) -> Kernels:
    """The counts from the disassembly of this machine's image for ``arch``; those of the file where that fails."""
    found, reasons = every_image()
    for candidate in found:
        if (candidate.image.arch, candidate.image.kind) != (arch, "cubin"):
            continue
        try:
            names = rasterizers()
            kernels = disassembly.disassemble(read_image(candidate), names)
            loops = {name: count_loop(kernels[name]) for name in names}
            patches = {name: count_patch(kernels[name]) for name in names if "_patch" in name}
        except DeviceError as error:
            reasons.append(str(error))
            continue
        origin = f"disassembly of {candidate.path}, built by {candidate.image.compiler}"
        return Kernels(loops, patches, origin, True)
    build = f"no usable image for {arch} here: run `edgegs kernels build --arch {arch} --toolchain nvrtc`"
    return stored_kernels(known, "; ".join(dict.fromkeys(reasons)) or build)


def count_loop(kernel: disassembly.Kernel) -> LoopCount:
    """The counts of a rasterizer's blend loop; raises DeviceError where there is none."""
    loop, used = disassembly.blend_loop(kernel), kernel.usage
    return LoopCount(
        slots=loop.slots,
        skipped=loop.slots_skipped,
        alone=loop.n_instructions / loop.pixel_splats,
        registers=used.registers,
        spills=used.stack_bytes + used.local_bytes,
        barriers=loop.n_barriers,
    )


def count_patch(kernel: disassembly.Kernel) -> PatchCount:
    """What a patch raster takes besides; raises DeviceError where its loops are others."""
    parts = disassembly.patch_parts(kernel)
    return PatchCount(parts.walk, parts.stage, parts.patch)


def judge(loop: LoopCount) -> Dict[str, bool]:
    """Which of ``BARS`` a loop keeps to."""
    return {name: bool(getattr(loop, name) <= bar) for name, bar in BARS.items()}


def blend_slots(loop: LoopCount, counts: Any, arch: str = "sm_53") -> float:
    """Issue slots of all passes of a blend loop.

    Args:
        counts: with ``n_evaluations`` and ``n_reached``.
    """
    full, skipped = loop.slots, loop.skipped
    if int(arch[len("sm_") :]) >= _NO_PAIRS_FROM:
        full, skipped = loop.alone, loop.skipped * loop.alone / loop.slots
    return (counts.n_reached * full + (counts.n_evaluations - counts.n_reached) * skipped) / 32


def stage_slots(known: Boards, kernels: Kernels, choice: Variant, counts: Any, arch: str) -> Dict[str, float]:
    """Issue slots of each stage; 0 for what was not counted: of the other keys all but rasterize."""
    slots = dict.fromkeys(STAGES, 0.0)
    entry = choice.entries["rasterize"]
    slots["rasterize"] = blend_slots(kernels.loops[entry], counts, arch)
    if choice.key != "bins":
        return slots
    front, patch = known.kernels.front, kernels.patches[entry]
    n_rows = choice.bin_size // int(C["PATCH_HEIGHT"])
    slots["project"] = counts.n_busy * front.splat + (counts.n_splats / 32 - counts.n_busy) * front.culled
    slots["project"] += counts.n_instances / 32 * (front.instance + n_rows * front.patch_row)
    slots["duplicate"] = counts.n_instances / 32 * front.fill
    slots["sort"] = counts.n_entries / 32 * front.sort + counts.n_sorted * front.sort_range
    slots["sort"] += counts.n_scanned / 32 * front.scan + counts.n_turns * front.sort_turn
    # the last step of a patch is half full, in the mean
    walks = counts.n_walked / (32 * int(C["WALK_ROWS"])) + counts.n_patches / 2
    stagings = counts.n_picked / 32 + counts.n_patches / 2
    slots["rasterize"] += walks * patch.walk + stagings * patch.stage + counts.n_patches * patch.patch
    return slots


def stage_bytes(choice: Variant, counts: Any) -> Dict[str, float]:
    """Bytes that each stage moves, as the kernels ask for them, but for lists that are sorted: caches are the
    calibration's matter.

    Args:
        counts: anything with the counts of ``Counts``; those of key ``bins`` only for that.
    """
    n, visible, instances = counts.n_splats, counts.n_visible, counts.n_instances
    moved = dict.fromkeys(STAGES, 0.0)
    if choice.key == "bins":
        body = _BODY[choice.storage]
        moved["project"] = n * body + visible * (splat_bytes(counts.sh_degree, choice.storage) - body + RECORD)
        moved["project"] += instances * BIN_INSTANCE
        moved["duplicate"] = instances * BIN_INSTANCE + counts.n_entries * LIST_ENTRY
        # a block reads its list again and again: 64 KB at most, which every board's second-level cache holds
        moved["sort"] = counts.n_entries * (LIST_ENTRY + SORTED_ENTRY) + counts.n_scanned * LIST_ENTRY
        moved["rasterize"] = counts.n_walked * SORTED_ENTRY + counts.n_picked * RECORD
        moved["rasterize"] += 3 * counts.width * counts.height
        return moved
    projected = MEANS2D + DEPTH + CONIC + COLOUR
    key = choice.key_bits // 8
    emitted = instances * (key + 4)
    moved["project"] = n * splat_bytes(counts.sh_degree, choice.storage) + visible * projected
    if choice.key == "packed32":
        moved["project"] += emitted
    else:
        shape = RECT + (MEANS2D + CONIC + EXTENT if choice.culling == "tight" else DEPTH)
        moved["project"] += n * TILE_COUNT + visible * RECT
        moved["duplicate"] = n * TILE_COUNT + visible * shape + emitted
    moved["sort"] = _passes(choice, counts) * instances * _sorted_bytes(key)
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
    if choice.key == "bins":
        n["ranges"] = 0
        return n
    n["sort"] = 3 * _passes(choice, counts)
    if choice.key == "packed32":
        n["duplicate"] = 0
    if choice.key == "split":
        n["duplicate"] += 1
        n["sort"] += 1 + 3 * _depth_passes()
    return n


# --- the calibration ---


def case_slots(known: Boards, case: Case) -> float:
    """Issue slots of the loop that was measured."""
    loop = known.calibration.loop[case.exponential]
    return (case.n_reached * loop.slots + (case.n_evaluations - case.n_reached) * loop.skipped) / 32


def efficiency(known: Boards) -> Efficiency:
    """What the calibration's measurements reached of its board's ceilings."""
    calibration = known.calibration
    board = known.boards[calibration.board]
    used = [case for case in calibration.cases.values() if case.rasterize_ms]
    issue = [1e3 * case_slots(known, case) / board.issue_rate / case.rasterize_ms for case in used]
    memory = []
    for case in used:
        others = _others(known, case)
        left_ms = 1e3 / case.fps - case.rasterize_ms - others.launches_ms
        memory.append(1e3 * others.n_bytes / board.bandwidth / left_ms)
    return Efficiency(min(issue), max(issue), sum(memory) / len(memory))


class _Others(NamedTuple):
    """All stages but rasterize, and all launches."""

    n_bytes: float
    launches_ms: float


def _others(known: Boards, case: Case) -> _Others:
    calibration = known.calibration
    choice, counts = variant(calibration.variant, "cuda"), _Drawn(calibration, case)
    moved = stage_bytes(choice, counts)
    launches = sum(stage_launches(choice, counts).values())
    return _Others(sum(moved.values()) - moved["rasterize"], launches * calibration.launch_us / 1e3)


class _Drawn:
    """A case's counts and its calibration's sizes, as one object with the counts of ``Counts``."""

    def __init__(self, calibration: Any, case: Case) -> None:
        self.__dict__.update({**vars(case), **{k: getattr(calibration, k) for k in ("width", "height", "sh_degree")}})


def model_case(known: Boards, case: Case) -> Dict[str, float]:
    """What the model says of a published measurement, in ms: at full issue, and a frame at the calibrated shares."""
    board, reached, others = known.boards[known.calibration.board], efficiency(known), _others(known, case)
    full_ms = 1e3 * case_slots(known, case) / board.issue_rate
    left_ms = 1e3 * others.n_bytes / (board.bandwidth * reached.memory) + others.launches_ms
    return {
        "full_issue_ms": full_ms,
        "rasterize_ms": full_ms / reached.issue,
        "rasterize_low_ms": full_ms / reached.issue_high,
        "rasterize_high_ms": full_ms / reached.issue_low,
        "frame_ms": full_ms / reached.issue + left_ms,
    }


# --- the prediction ---


def predict(
    known: Boards, board: Board, choice: Variant, counts: Any, kernels: Optional[Kernels] = None
) -> Prediction:
    """The time of each stage of a frame on a board.

    Args:
        counts: of ``count_frame``.
        kernels: None: those that the file of boards keeps.
    """
    kernels = stored_kernels(known) if kernels is None else kernels
    reached = efficiency(known)
    slots = stage_slots(known, kernels, choice, counts, board.arch)
    moved, launches = stage_bytes(choice, counts), stage_launches(choice, counts)
    stages = {}
    for stage in STAGES:
        memory_ms = 1e3 * moved[stage] / (board.bandwidth * reached.memory)
        full_ms = 1e3 * slots[stage] / board.issue_rate
        launch_ms = launches[stage] * known.calibration.launch_us / 1e3
        shares = (reached.issue, reached.issue_high, reached.issue_low)
        ms = [max(memory_ms, full_ms / share) + launch_ms for share in shares]
        bound = "issue" if full_ms / reached.issue > memory_ms else "memory"
        stages[stage] = StageTime(slots[stage], moved[stage], launches[stage], bound, *ms)
    return Prediction(stages)


def fixed_ms(known: Boards, board: Board, choice: Variant, counts: Any, kernels: Optional[Kernels] = None) -> float:
    """What is left of a frame's predicted time when there is nothing to draw: launches, empty patches and lists."""
    fixed = ("width", "height", "sh_degree", "n_patches", "n_tiles", "n_tiles_counted", "n_sorted")
    nothing = replace(counts, **{field.name: 0 for field in fields(counts) if field.name not in fixed})
    return predict(known, board, choice, nothing, kernels).frame_ms


def splats_for_fps(prediction: Prediction, n_splats: int, fixed: float, fps: float) -> int:
    """About how many of the splats reach ``fps``, if all counts fall as theirs; 0 where none do.

    Args:
        fixed: ms that the number of splats does not change.
    """
    wanted_ms, per_splat = 1e3 / fps - fixed, (prediction.frame_ms - fixed) / max(1, n_splats)
    return max(0, min(n_splats, int(wanted_ms / per_splat))) if per_splat > 0 else n_splats


def patch_pixels(choice: Variant) -> int:
    """Pixels of a patch; 0 for rasters without."""
    return PATCH_PIXELS.get(choice.raster, 0)
