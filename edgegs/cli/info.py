"""``edgegs info SCENE``: what a scene holds, what was left out of it and why, and what it costs on a board."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Tuple

from edgegs.cli.options import MAX_THREADS, add_scene_options, size, whole

if TYPE_CHECKING:
    from edgegs.pack import AnyScene

_WIDTH = 11  # of the names before the lines


#: Frames shorter than this wait for the processor: about 20 launches, predicted for a board's processor.
LAUNCHES_MS = 3.0


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    parser = subparsers.add_parser("info", help="describe a scene, what is wrong with it and what it costs on a board")
    add_scene_options(parser)
    parser.add_argument("--board", metavar="NAME", help="predict memory and time there: nano, orin-nano, rtx4090 …")
    parser.add_argument("--size", type=size, metavar="WxH", default=(640, 480), help="of the picture (default 640x480)")
    parser.add_argument(
        "--threads", type=whole(0, MAX_THREADS), default=0, metavar="N", help="that count the frame; 0 takes all"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def main(args: argparse.Namespace) -> int:
    """Load, measure, print; raises SceneError, InputError, AccessError, and UsageError for an unknown board."""
    from edgegs.bench.boards import load_boards
    from edgegs.cli.progress import Progress
    from edgegs.cli.scene_facts import advise, describe
    from edgegs.scene import load

    if args.board is not None:
        load_boards().board(args.board)  # before seconds are spent on the scene
    width, height = args.size
    scene = load(args.scene, progress=Progress("reading the scene"), frame=args.frame)
    facts = describe(scene, width, height, args.frame)
    if args.board is not None:
        facts["cost"] = board_cost(scene, args.board, width, height, args.threads)
    facts["advice"] = advise(facts)
    print(json.dumps(facts) if args.json else text(facts))
    return 0


def board_cost(scene: AnyScene, board: str, width: int, height: int, threads: int = 0) -> Dict[str, Any]:
    """``edgegs.bench.cost.cost`` of the first view of the orbit that ``edgegs run`` makes.

    Where the kernels cannot be run here there is no prediction of time, and ``not_predicted`` says why.
    """
    from edgegs.backends import create
    from edgegs.bench.boards import load_boards
    from edgegs.bench.cost import cost
    from edgegs.bench.counting import count_frame
    from edgegs.camera import build_path
    from edgegs.errors import AccessError, DeviceError, OutputError
    from edgegs.kernels.variants import gpu_default

    orbit = {"kind": "orbit", "up": scene.up}
    camera = build_path(orbit, width, height, 60.0, scene_bounds=scene.bounds()).camera_at(0.0)
    try:
        with create("host", threads, may_compile=True)[0] as backend:
            choice = gpu_default(scene.n_splats, width, height, load_boards().board(board).n_sms)
            counts = count_frame(backend, scene, choice, camera)
    except (DeviceError, AccessError, OutputError) as error:
        return {**cost(scene, board, width, height), "not_predicted": str(error)}
    return cost(scene, board, width, height, counts)


def text(facts: Dict[str, Any]) -> str:
    """The facts for people, a line each."""
    lines = [*_scene(facts), *(_pack(facts["pack"]) if "pack" in facts else ())]
    lines += _device(facts)
    lines += _board(facts["cost"]) if "cost" in facts else ()
    lines += [("warning", words) for words in facts["warnings"]]
    lines += [("advice", words) for words in facts["advice"]]
    return "\n".join(f"{name:<{_WIDTH}}{words}" for name, words in lines)


def _scene(facts: Dict[str, Any]) -> Iterator[Tuple[str, str]]:
    bounds = facts["bounds"]
    frame = f", read as {facts['frame']}" if facts["frame"] else ""
    yield "scene", facts["path"]
    yield "format", f"{facts['format']}, SH degree {facts['sh_degree']}, {facts['vertical_axis']} vertical{frame}"
    yield "splats", f"{facts['n_splats']:,} of {facts['n_rows']:,} rows"
    for cause, count in facts["dropped"].items():
        yield "left out", f"{count:,} {cause}"
    yield "centre", f"{_numbers(bounds['center'])}, radius {bounds['radius']:.4g} (90 % on each axis)"
    yield "extent", f"{_numbers(bounds['low'])} to {_numbers(bounds['high'])}"
    yield "opacity", _spread(facts["opacity"]) + f"; {facts['n_never_drawn']:,} under 1/255, never drawn"
    yield "sigma", _spread(facts["scale"]) + " (largest axis)"
    yield "giants", f"{facts['n_giant']:,} splats with a sigma over the radius"


def _pack(pack: Dict[str, Any]) -> Iterator[Tuple[str, str]]:
    levels = pack["levels"]
    order = "by place alone, without scores"
    if pack["is_scored"]:
        steps = f"levels: {levels[0]:,} … {levels[-1]:,}" if len(levels) > 1 else "level"
        order = f"by importance, {len(levels)} {steps}"
    yield "pack", f"of {pack['source_format']}; {order}; {pack['n_chunks']:,} chunks; checksums verified"
    yield "sections", ", ".join(f"{name} {_bytes(n_bytes)}" for name, n_bytes in pack["sections"].items())


def _device(facts: Dict[str, Any]) -> Iterator[Tuple[str, str]]:
    drawn = facts["renderer"]
    of_scene = f"{_bytes(facts['device_bytes'])} as float32, {_bytes(facts['packed_bytes'])} packed"
    buffers = f"{drawn['width']}x{drawn['height']} by variant {drawn['variant']}"
    yield "memory", f"{of_scene}; {_bytes(drawn['bytes'])} with all buffers of {buffers}"
    yield "sha256", facts["sha256"]


def _board(cost: Dict[str, Any]) -> Iterator[Tuple[str, str]]:
    memory = cost["memory"]
    yield "board", f"{cost['title']} ({cost['arch']}), {cost['width']}x{cost['height']}, variant {cost['variant']}"
    verdict = "fits" if memory["fits"] else "DOES NOT FIT"
    if memory["fits"] and not memory["fits_while_loading"]:
        verdict = "fits, but NOT WHILE LOADING"
    needs = f"{_bytes(memory['running_bytes'])} of {_bytes(memory['free_bytes'])} free there"
    loading = f", {_bytes(memory['loading_bytes'])} while loading"
    yield "", f"{verdict}: {needs}{loading if memory['loading_bytes'] > memory['running_bytes'] else ''}"
    if "predicted_fps" not in cost:
        yield "predicted", f"memory only: {cost['not_predicted']}"
        return
    counts, calibration = cost["counts"], cost["calibration"]
    stages = ", ".join(f"{stage} {_ms(ms)}" for stage, ms in cost["predicted_ms"].items())
    yield "predicted", f"{_ms(cost['predicted_frame_ms'])} ms a frame, {_fps(cost['predicted_fps'])} FPS ({stages})"
    if cost["predicted_frame_ms"] < LAUNCHES_MS:
        yield "", "of the GPU alone: starting a frame's kernels from Python may take longer than that"
    is_sample = counts["n_tiles_counted"] < counts["n_tiles"]
    sampled = f", counted in {counts['n_tiles_counted']:,} of {counts['n_tiles']:,} tiles" if is_sample else ""
    yield "", (
        f"of the orbit's first view: {counts['n_visible']:,} visible, {counts['n_instances']:,} splat-tile pairs, "
        f"{counts['n_evaluations'] / 1e6:,.1f} M evaluations{sampled}"
    )
    yield "", (
        f"a model, calibrated on {1e3 / calibration['fps']:.0f} ms published for a Jetson Nano: "
        f"{100 * calibration['issue_efficiency']:.0f} % of the issue rate, "
        f"{100 * calibration['memory_efficiency']:.0f} % of the bandwidth"
        + ("; another architecture, so a rougher guess" if calibration["extrapolated"] else "")
    )


def _numbers(values: List[float]) -> str:
    return "(" + ", ".join(f"{value:.4g}" for value in values) + ")"


def _spread(quantiles: Dict[str, float]) -> str:
    return "{min:.3g} … {p5:.3g} … median {median:.3g} … {p95:.3g} … {max:.3g}".format(**quantiles)


def _bytes(n: int) -> str:
    return f"{n / 1e3:,.1f} kB" if n < 1e5 else f"{n / 1e6:,.1f} MB"


def _ms(ms: float) -> str:
    return f"{ms:.1f}" if ms >= 1 else f"{ms:.2f}"


def _fps(fps: float) -> str:
    return f"{fps:,.0f}" if fps >= 10 else f"{fps:.1f}"
