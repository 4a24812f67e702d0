"""The roofline: each stage's bytes and operations over its time, as per cent of what the device was measured to do.

A stage's time is the lower of two. *Events*: the median over frames of the time between two marks around the stage,
which adds a few microseconds to a short kernel. *Back to back*: the stage's launches repeated between two marks behind
a kernel that keeps the device busy until all are queued, where repeating does no harm; a stage whose kernels must be
reset by later ones is the difference of two such sequences, with and without it (``SEQUENCES``).
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from edgegs.backends.base import Backend
from edgegs.bench.bench import arranged, choices_of, combination
from edgegs.bench.ceilings import COPY_BYTES, Bench, Ceilings
from edgegs.bench.counting import bucket_turns, count_frame, is_dealt, list_ranges
from edgegs.bench.roofline_work import Counters, Work, work_of
from edgegs.camera import Camera
from edgegs.errors import DeviceError
from edgegs.frame import STAGES
from edgegs.kernels.headers import constants
from edgegs.kernels.variants import Variant
from edgegs.pipelines import Launch
from edgegs.renderer import Renderer
from edgegs.scene import Scene

Row = Dict[str, Any]
C = constants()

#: Key -> stage -> stages launched again and again, and those of them whose time is taken off. Each pass does the work
#: of the one before: lists_sort clears what project_bins and lists_fill count with; ranges_packed32 the fused kernel's
#: chain (and takes as long in keys that are not sorted); a radix sort is given its unsorted keys again. Others are
#: timed by events: the launches of split's sort and duplicate take turns.
SEQUENCES: Dict[str, Dict[str, Tuple[Tuple[str, ...], Tuple[str, ...]]]] = {
    "bins": {
        "project": (("project", "duplicate", "sort"), ("duplicate", "sort")),
        "duplicate": (("duplicate", "sort"), ("sort",)),
        "sort": (("sort",), ()),
        "rasterize": (("rasterize",), ()),
    },
    "ref64": {
        "project": (("project",), ()),
        "duplicate": (("duplicate",), ()),
        "sort": (("duplicate", "sort"), ("duplicate",)),
        "ranges": (("ranges",), ()),
        "rasterize": (("rasterize",), ()),
    },
    "packed32": {
        "project": (("project", "ranges"), ("ranges",)),
        "sort": (("project", "sort", "ranges"), ("project", "ranges")),
        "ranges": (("ranges",), ()),
        "rasterize": (("rasterize",), ()),
    },
    "split": {"project": (("project",), ()), "ranges": (("ranges",), ()), "rasterize": (("rasterize",), ())},
}
#: Back to back: milliseconds that a sequence should take in all; most passes; launches that a device queues; tries.
SEQUENCE_MS = {"cuda": 20.0, "host": 100.0}
MAX_PASSES, MAX_QUEUED, SEQUENCE_REPEATS = 100, 400, 5
#: Milliseconds in which the host queues one launch, at most.
QUEUE_MS = 0.03
#: What may bound a stage.
BANDWIDTH, MULTIPLY_ADD, EXP2, ISSUE, SHARED = "bandwidth", "multiply-add", "2^x", "issue", "shared memory"
#: Per cent of every ceiling below which a stage waits, for memory or other threads, more than it works; where not all
#: of its instructions were counted (``slots``), it may as well be bound by the others.
LATENCY_BOUND = 50.0
LATENCY, UNKNOWN = "latency", "latency or other instructions"


class Timing(NamedTuple):
    """Milliseconds of a stage. ``repeated`` is None where only events were taken; ``how``: which one ``ms`` is."""

    ms: float
    event: float
    repeated: Optional[float]
    how: str


def measure(
    backend: Backend,
    scene: Scene,
    camera: Camera,
    variant: Variant,
    ceilings: Ceilings,
    warmup: int,
    repeats: int,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Tuple[Row, List[Dict[str, Any]]]:
    """One row: every stage of this view by this variant; and the stages' times frame by frame.

    Raises:
        DeviceError: it does not fit the device.
    """
    if variant.storage == "packed":
        scene = arranged(scene)  # as `edgegs bench` draws it
    # the tiles' evaluations are counted by a renderer of their own: one at a time in memory
    evaluations = (0, 0)
    if variant.key != "bins":
        counted = count_frame(backend, scene, variant, camera)
        evaluations = counted.n_evaluations, counted.n_reached
    renderer = Renderer(backend, scene, camera.width, camera.height, combination(variant))
    try:
        samples: List[Dict[str, float]] = []
        for index in range(warmup + repeats):
            progress(index, warmup + repeats)
            frame = renderer.render(camera)
            if index >= warmup:
                samples.append(frame.stage_ms)
        progress(warmup + repeats, warmup + repeats)
        launches = renderer.launches
        n = counters_of(renderer, scene.sh_degree, frame.n_visible, frame.n_instances, evaluations)
        timings = time_stages(backend, launches, variant.key, samples, not_repeated(renderer))
    finally:
        renderer.close()
    work = work_of(variant, n, warps=ceilings.warp_width > 1)
    row = make_row(variant, n, work, timings, launches, ceilings)
    which = {"width": camera.width, "height": camera.height, "name": variant.name}
    return row, [{**which, "stage_ms": {stage: round(ms, 5) for stage, ms in one.items()}} for one in samples]


def counters_of(
    renderer: Renderer, sh_degree: int, n_visible: int, n_instances: int, evaluations: Tuple[int, int]
) -> Counters:
    """Of the frame drawn last. ``evaluations``: of key bins not looked at."""
    common = {
        "width": renderer.width, "height": renderer.height, "sh_degree": sh_degree, "n_splats": renderer.n_splats,
        "n_visible": n_visible, "n_instances": n_instances, "n_blocks": renderer.backend.n_blocks,
        "n_evaluations": evaluations[0], "n_reached": evaluations[1],
    }  # fmt: skip
    if renderer.variant.key != "bins":
        starts = renderer.read("tile_starts")
        return Counters(**common, n_listed=int(starts[-1]), n_lists=len(starts) - 1, n_scanned=0, n_turns=0)
    sizes, sharers = lists_of(renderer)
    n_listed = int(sizes.sum())
    masks = renderer.read("bin_lists")[:n_listed, 1]
    columns = int(C["BIN_COLUMNS"])
    row_mask = np.uint32((1 << columns) - 1)
    n_rows = sum(int(np.count_nonzero(masks >> np.uint32(bit) & row_mask)) for bit in range(0, 32, columns))
    found = renderer.patch_counts()
    return Counters(
        **common, n_listed=n_listed, n_lists=len(sizes), n_rows=n_rows, n_scanned=list_ranges(sizes, sharers)[1],
        n_turns=bucket_turns(renderer.read("list_entries")[:n_listed, 0], sizes),
        walked=found["walked"], picked=found["picked"], blended=found["blended"],
    )  # fmt: skip


def lists_of(renderer: Renderer) -> Tuple[np.ndarray, np.ndarray]:
    """Of key bins, of the frame drawn last: entries of each list, and how many blocks sorted it; (B,) int64 each."""
    starts = renderer.read("bin_starts").astype(np.int64)
    sharers = np.ones(len(starts) - 1, np.int64)
    begin, end, share, n_shares = renderer.read("list_shares").T
    firsts = (share == 0) & (end > begin)
    sharers[np.searchsorted(starts, begin[firsts], side="right") - 1] = n_shares[firsts]
    return np.diff(starts), sharers


class Plug:
    """Keeps a GPU busy while the host queues what is to run without a pause; on the host nothing: launches wait."""

    def __init__(self, backend: Backend) -> None:
        self._bench = Bench(backend, COPY_BYTES) if backend.name == "cuda" else None
        self._ms = 1.0
        if self._bench is not None:
            self._repeats = self._bench.repeats_for("fma_per_s", self._ms)

    def insert(self, ms: float) -> None:
        if self._bench is not None:
            self._bench.launch("fma_per_s", int(self._repeats * ms / self._ms) + 1)

    def close(self) -> None:
        if self._bench is not None:
            self._bench.close()


def time_stages(
    backend: Backend,
    launches: Sequence[Launch],
    key: str,
    samples: Sequence[Dict[str, float]],
    once: Sequence[str] = (),
) -> Dict[str, Timing]:
    """Stage -> time, of the stages that the launches have.

    Args:
        once: stages that cannot be part of a sequence without those before them: by events.
    """
    stages = [stage for stage in STAGES if any(launch.stage == stage for launch in launches)]
    events = {stage: float(np.median([sample[stage] for sample in samples])) for stage in stages}
    plug, known = Plug(backend), {}  # type: Plug, Dict[Tuple[str, ...], float]

    def repeated(chosen: Tuple[str, ...]) -> float:
        if chosen and chosen not in known:
            expected = sum(events[stage] for stage in chosen if stage in events)
            part = [launch for launch in launches if launch.stage in chosen]
            known[chosen] = time_sequence(backend, part, expected, plug)
            for launch in launches:  # the next sequence finds what a frame leaves
                backend.launch(launch.kernel, launch.n_blocks, launch.params)
        return known[chosen] if chosen else 0.0

    timings = {}
    try:
        for stage in stages:
            event, again = events[stage], None  # type: float, Optional[float]
            if stage in SEQUENCES[key] and stage not in once:
                with_it, without = SEQUENCES[key][stage]
                again = repeated(with_it) - repeated(without)
            if again is None or not 0 < again < event:  # both are from above; a difference may also be lost in noise
                timings[stage] = Timing(event, event, again, "events")
            else:
                timings[stage] = Timing(again, event, again, "difference" if without else "back to back")
    finally:
        plug.close()
    return timings


def not_repeated(renderer: Renderer) -> Sequence[str]:
    """Stages that the frame drawn last lets not be repeated: long lists are dealt into the instances they came from."""
    if renderer.variant.key != "bins":
        return ()
    return ("project", "duplicate") if is_dealt(*lists_of(renderer)).any() else ()


def time_sequence(backend: Backend, launches: Sequence[Launch], expected_ms: float, plug: Plug) -> float:
    """Milliseconds of one pass through the launches, of many without a pause; the median of some tries."""
    passes = int(SEQUENCE_MS[backend.name] / max(expected_ms, 1e-3))
    passes = max(1, min(passes, MAX_PASSES, MAX_QUEUED // max(1, len(launches))))
    n_launches = passes * len(launches)
    times = []
    for _ in range(SEQUENCE_REPEATS):
        plug.insert(1.0 + QUEUE_MS * n_launches)
        start = backend.mark()
        for _ in range(passes):
            for launch in launches:
                backend.launch(launch.kernel, launch.n_blocks, launch.params)
        end = backend.mark()
        _wait(backend)
        times.append(backend.elapsed_ms(start, end) / passes)
    return float(np.median(times))


def _wait(backend: Backend) -> None:
    word = backend.alloc("waited for", (1,), "u4")
    try:
        backend.download(word)
    finally:
        backend.free(word)


def make_row(
    variant: Variant,
    n: Counters,
    work: Dict[str, Work],
    timings: Dict[str, Timing],
    launches: Sequence[Launch],
    ceilings: Ceilings,
) -> Row:
    """Everything about one view by one variant, as plain JSON."""
    stages = []
    for stage, timing in timings.items():
        kernels: Dict[str, int] = {}
        for launch in launches:
            if launch.stage == stage:
                kernels[launch.kernel] = kernels.get(launch.kernel, 0) + 1
        stages.append({"stage": stage, "kernels": kernels, **rates(work[stage], timing, ceilings)})
    return {
        "width": n.width,
        "height": n.height,
        "name": variant.name,
        "choices": choices_of(variant),
        "counters": asdict(n),
        "stages": stages,
        "total_ms": round(sum(timing.ms for timing in timings.values()), 5),
    }


def rates(work: Work, timing: Timing, ceilings: Ceilings) -> Dict[str, Any]:
    """What a stage reached, and what bounds it: the ceiling that it comes nearest to.

    Above 100 % of bandwidth the bytes came from a cache: the ceiling is memory's.
    """
    if not timing.ms > 0:
        raise DeviceError(f"a stage took {timing.ms} ms: the clock is too coarse, take a larger scene")
    seconds = timing.ms * 1e-3
    against = {
        BANDWIDTH: (work.bytes, ceilings.bytes_per_s),
        MULTIPLY_ADD: (work.fp32, ceilings.fma_per_s),
        EXP2: (work.exp2, ceilings.exp2_per_s),
        ISSUE: (work.slots, ceilings.slots_per_s),
        SHARED: (work.shared_loads, ceilings.shared_loads_per_s),
    }
    percent = {
        name: round(100.0 * amount / seconds / ceiling, 2)
        for name, (amount, ceiling) in against.items()
        if amount is not None
    }
    nearest = max(percent, key=lambda name: percent[name])
    return {
        "ms": round(timing.ms, 6),
        "how": timing.how,
        "event_ms": round(timing.event, 6),
        "repeated_ms": None if timing.repeated is None else round(timing.repeated, 6),
        "bytes": round(work.bytes),
        "fp32": round(work.fp32),
        "exp2": round(work.exp2),
        "slots": None if work.slots is None else round(work.slots),
        "shared_loads": None if work.shared_loads is None else round(work.shared_loads),
        "fp32_per_byte": round(work.fp32 / work.bytes, 5) if work.bytes else None,
        "bytes_per_s": work.bytes / seconds,
        "fp32_per_s": work.fp32 / seconds,
        "exp2_per_s": work.exp2 / seconds,
        "slots_per_s": None if work.slots is None else work.slots / seconds,
        "percent": percent,
        "nearest": nearest,
        "bound": nearest if percent[nearest] >= LATENCY_BOUND else (LATENCY if ISSUE in percent else UNKNOWN),
    }
