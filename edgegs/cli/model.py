"""``edgegs model --board nano [SCENE.ply | dial | room]``: how fast a board that is not at hand draws it, predicted."""

from __future__ import annotations

import argparse
import json
import logging
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Sequence

from edgegs.cli.options import MAX_THREADS, bounded, naming_variants, size, whole
from edgegs.errors import DeviceError, UsageError

if TYPE_CHECKING:
    from edgegs.bench.boards import Board, Boards
    from edgegs.bench.model import Kernels
    from edgegs.camera import Camera
    from edgegs.kernels.variants import Variant
    from edgegs.scene import Scene

log = logging.getLogger(__name__)

#: Predicted where no --variant is given: what all ratios are to, and what ``auto`` may take.
VARIANTS = ("baseline", "best", "wide")
#: Without a size of one's own.
SIZE = (640, 480)
_BAR_WORDS = {
    "slots": "issue slots per pixel and splat",
    "registers": "registers",
    "spills": "bytes spilled",
    "barriers": "block barriers in the loop",
}


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    from edgegs.cli.bench import add_scene_options

    parser: argparse.ArgumentParser = subparsers.add_parser(
        "model",
        help="predict how fast a board that is not at hand draws a scene",
        description="Count one frame on this machine and predict each stage's time on a board that is not at hand, "
        "from the issue slots of the kernels' loops and the bytes they move, calibrated on published measurements of a "
        "Jetson Nano. Nothing is measured: every figure is called predicted.",
    )
    parser.add_argument("scene", nargs="?", metavar="SCENE.ply|dial|room", help="a scene, or one made here (dial)")
    parser.add_argument(
        "--board", metavar="NAME", default="nano", help="nano (default), orin-nano, xavier-nx, rtx-4090 …"
    )
    add_scene_options(parser)
    parser.add_argument("--size", type=size, metavar="WxH", help="of the picture (default 640x480)")
    parser.add_argument("--view", metavar="CAMERAS.json:INDEX", help="default: the scene's own, or its orbit's first")
    parser.add_argument(
        "--variant", action="append", metavar="NAME", help=f"may be repeated (default: {', '.join(VARIANTS)})"
    )
    parser.add_argument("--fps", type=bounded(0.1, 10_000), default=25.0, metavar="N", help="to reach (default 25)")
    parser.add_argument(
        "--threads", type=whole(0, MAX_THREADS), default=0, metavar="N", help="that count the frame; 0 takes all"
    )
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--json", action="store_true", help="print one JSON object")
    shown.add_argument("--sass", metavar="KERNEL", help="print the disassembled loop of a rasterizer's image instead")
    return parser


def main(args: argparse.Namespace) -> int:
    """Count, predict, print; raises UsageError for an unknown board or variant, and what reading a scene raises."""
    from edgegs.bench.boards import load_boards
    from edgegs.bench.model import find_kernels
    from edgegs.kernels.variants import BLOCKS_PER_MULTIPROCESSOR, suits_wide

    known = load_boards()
    board = known.board(args.board)
    if args.sass is not None:
        print(listing(args.sass, board.arch))
        return 0
    choose_variants(args.variant or VARIANTS)  # wrong names are told before anything is read
    kernels = find_kernels(known, board.arch)
    scene, camera = choose_scene(args)
    wide = suits_wide(scene.n_splats, camera.width, camera.height, BLOCKS_PER_MULTIPROCESSOR * board.n_sms)
    chosen = choose_variants(args.variant or VARIANTS, wide)
    document = predict_all(known, board, kernels, scene, camera, chosen, args)
    print(json.dumps(document) if args.json else text(document))
    return 0


def listing(kernel: str, arch: str) -> str:
    """The loop that blends, as text: the second of a pair that is issued together is marked with +."""
    from edgegs.bench import disassembly
    from edgegs.bench.model import count_loop, rasterizers
    from edgegs.kernels.select import every_image, read_image

    if kernel not in rasterizers():
        raise UsageError(f"--sass: no rasterizer {kernel!r} (there are: {', '.join(rasterizers())})")
    reasons = []
    for candidate in every_image()[0]:
        if (candidate.image.arch, candidate.image.kind) == (arch, "cubin"):
            try:
                found = disassembly.disassemble(read_image(candidate), [kernel])[kernel]
                loop, counted = disassembly.blend_loop(found), count_loop(found)
            except DeviceError as error:
                reasons.append(str(error))
                continue
            head = f"{kernel} of {candidate.path}: {loop.n_instructions} instructions, {loop.n_slots} issue slots for "
            head += f"{loop.pixel_splats} pixels x splats ({counted.slots:.2f} each), {counted.registers} registers"
            names = ", ".join(f"{n} {name}" for name, n in sorted(loop.names.items(), key=lambda item: -item[1]))
            return f"{head}\n{names}\n{disassembly.listing(found, loop)}"
    build = f"run `edgegs kernels build --arch {arch} --toolchain nvrtc`"
    raise DeviceError(f"no image for {arch} can be disassembled: {'; '.join(reasons) or 'none is here'}; {build}")


def choose_variants(names: Sequence[str], prefers_wide: bool = False) -> List[Variant]:
    """The variants of those names, each once; UsageError for a wrong one.

    Args:
        prefers_wide: see ``edgegs.kernels.variants.suits_wide``.
    """
    from edgegs.kernels.variants import variant

    found = []
    for name in dict.fromkeys(names):
        with naming_variants():
            found.append(variant(name, "cuda", False, prefers_wide))
        if found[-1].needs_tensor_cores:
            raise UsageError(f"--variant: {name}: the tensor rasters are not modelled (docs/model.md)")
    return list(dict.fromkeys(found))


def choose_scene(args: argparse.Namespace) -> Any:
    """The scene named, or made, and its camera, as ``edgegs bench`` takes them."""
    from edgegs.cli import bench

    if args.preset != "default" and args.scene != "room":
        raise UsageError(f"--preset {args.preset} is room's; write `edgegs model room --preset {args.preset}`")
    asked = argparse.Namespace(**{**vars(args), "backend": "host", "size": [args.size or SIZE]})
    if args.view and args.size is None:
        asked.size = None
    scene = bench.choose_scene(asked)
    for warning in scene.warnings:
        log.warning("%s", warning)
    return scene, bench.choose_cameras(asked, scene)[0]


def predict_all(
    known: Boards,
    board: Board,
    kernels: Kernels,
    scene: Scene,
    camera: Camera,
    chosen: Sequence[Variant],
    args: argparse.Namespace,
) -> Dict[str, Any]:
    """The document: everything of it that is a time is named predicted, or published."""
    from edgegs.backends import create
    from edgegs.bench.counting import count_frame
    from edgegs.bench.model import BARS, efficiency, model_case

    rows = []
    with create("host", args.threads, may_compile=True)[0] as backend:
        for choice in chosen:
            log.info("counting a frame of %s", choice.name)
            counts = count_frame(backend, scene, choice, camera)
            rows.append(_row(known, board, kernels, choice, counts, args.fps))
    reached, calibration = efficiency(known), known.calibration
    return {
        "kind": "model",
        "board": board.name,
        "title": board.title,
        "arch": board.arch,
        "extrapolated": board.arch != known.boards[calibration.board].arch,
        "issue_rate": board.issue_rate,
        "bandwidth": board.bandwidth,
        "scene": scene.path,
        "n_splats": scene.n_splats,
        "sh_degree": scene.sh_degree,
        "width": camera.width,
        "height": camera.height,
        "target_fps": args.fps,
        "kernels": {"origin": kernels.origin, "is_read": kernels.is_read, "why_not": kernels.why_not},
        "variants": rows,
        "bars": dict(BARS),
        "calibration": {
            "board": calibration.board,
            "issue_efficiency_range": [reached.issue_low, reached.issue_high],
            "memory_efficiency": reached.memory,
            "cases": {
                name: {
                    "published_rasterize_ms": case.rasterize_ms or None,
                    "published_fps": case.fps,
                    **{f"predicted_{key}": value for key, value in model_case(known, case).items()},
                }
                for name, case in calibration.cases.items()
            },
        },
        "confirm": _confirm(args, max(rows, key=lambda row: row["predicted_fps"])["variant"]),
    }


def _row(
    known: Boards, board: Board, kernels: Kernels, choice: Variant, counts: Any, fps: float
) -> Dict[str, Any]:
    from dataclasses import asdict

    from edgegs.bench.model import fixed_ms, judge, predict, splats_for_fps

    found = predict(known, board, choice, counts, kernels)
    loop = kernels.loops[choice.entries["rasterize"]]
    fixed = fixed_ms(known, board, choice, counts, kernels)
    return {
        "variant": choice.name,
        "kernel": choice.entries["rasterize"],
        "loop": asdict(loop),
        "within_bars": judge(loop),
        "counts": asdict(counts),
        "stages": {
            stage: {
                "slots": one.slots,
                "bytes": one.n_bytes,
                "launches": one.n_launches,
                "bound": one.bound,
                "predicted_ms": one.ms,
                "predicted_low_ms": one.low_ms,
                "predicted_high_ms": one.high_ms,
            }
            for stage, one in found.stages.items()
        },
        "predicted_frame_ms": found.frame_ms,
        "predicted_fps": 1e3 / found.frame_ms,
        "predicted_fps_range": [1e3 / found.high_ms, 1e3 / found.low_ms],
        "predicted_max_splats": splats_for_fps(found, counts.n_splats, fixed, fps),
    }


def _confirm(args: argparse.Namespace, name: str) -> str:
    """What to run on the board itself."""
    words = ["edgegs bench", args.scene or "dial"]
    words += ["-n", str(args.n)] if args.n else []
    words += ["--preset", args.preset] if args.preset != "default" else []
    words += ["--seed", str(args.seed)] if args.seed else []
    words += ["--view", args.view] if args.view else []
    if args.size or not args.view:
        words += ["--size", "{}x{}".format(*(args.size or SIZE))]
    return " ".join([*words, "--backend cuda", "--variant", name])


def text(document: Dict[str, Any]) -> str:
    """The document for people."""
    return "\n".join([*_head(document), *_variants(document), *_bars(document), *_calibration(document)])


def _head(document: Dict[str, Any]) -> Iterator[str]:
    d = document
    yield f"PREDICTED for {d['title']} ({d['arch']}), which is not here: nothing below was measured on one by edgegs"
    yield f"scene      {d['scene']}: {d['n_splats']:,} splats, SH degree {d['sh_degree']}, {d['width']}x{d['height']}"
    yield f"ceilings   {d['issue_rate'] / 1e9:.2f} G issue slots/s, {d['bandwidth'] / 1e9:.1f} GB/s"
    yield f"loops      {d['kernels']['origin']}"
    if d["kernels"]["why_not"]:
        yield f"           because {d['kernels']['why_not']}"
    if d["extrapolated"]:
        yield "           another architecture than the calibration's, so a rougher guess: see docs/model.md"


def _variants(document: Dict[str, Any]) -> Iterator[str]:
    for row in document["variants"]:
        low, high = row["predicted_fps_range"]
        counts = row["counts"]
        yield ""
        yield (
            f"{row['variant']}: {_fps(row['predicted_fps'])} FPS predicted ({_fps(low)} to {_fps(high)}), "
            f"{row['predicted_frame_ms']:.2f} ms a frame"
        )
        words = f"{counts['n_visible']:,} visible, {counts['n_instances']:,} instances"
        if counts["n_patches"]:
            words += f", {counts['n_entries']:,} in lists; {counts['n_walked']:,} walked, {counts['n_picked']:,} picked"
        words += f"; {counts['n_evaluations'] / 1e6:,.1f} M pixels x splats evaluated"
        if counts["n_tiles_counted"] < counts["n_tiles"]:
            words += f" (counted in {counts['n_tiles_counted']:,} of {counts['n_tiles']:,} tiles)"
        yield f"  {words}"
        yield f"  {'stage':<10} {'M slots':>8} {'MB':>8}  {'bound':<7} predicted ms"
        for stage, one in row["stages"].items():
            if not one["launches"]:
                continue
            slots = f"{one['slots'] / 1e6:.2f}" if one["slots"] else "-"
            spread = ""
            if one["predicted_high_ms"] - one["predicted_low_ms"] > 0.005:
                spread = f" ({one['predicted_low_ms']:.2f} to {one['predicted_high_ms']:.2f})"
            yield (
                f"  {stage:<10} {slots:>8} {one['bytes'] / 1e6:>8.1f}  {one['bound']:<7} "
                f"{one['predicted_ms']:.2f}{spread}"
            )
        budget, target = row["predicted_max_splats"], document["target_fps"]
        if budget < counts["n_splats"]:
            reached = f"about {budget:,} of these splats, by proportion" if budget else "no number of splats"
            yield f"  {target:g} FPS predicted with {reached}"


def _bars(document: Dict[str, Any]) -> Iterator[str]:
    bars = document["bars"]
    yield ""
    yield "blend loop " + ", ".join(f"{_BAR_WORDS[name]} <= {bar:g}" for name, bar in bars.items())
    for row in document["variants"]:
        kept, loop = row["within_bars"], row["loop"]
        found = ", ".join(f"{name} {loop[name]:.4g}{'' if kept[name] else ' MISSES'}" for name in bars)
        yield f"  {row['kernel']:<24} {found}"


def _calibration(document: Dict[str, Any]) -> Iterator[str]:
    calibration = document["calibration"]
    low, high = calibration["issue_efficiency_range"]
    yield ""
    yield (
        f"calibrated on a published report of the original pipeline on a Jetson Nano: {low:.2f} to {high:.2f} of the "
        f"issue rate, {calibration['memory_efficiency']:.2f} of the bandwidth"
    )
    yield f"  {'case':<18} published: render, frame ms   model at full issue: render   model: render, frame ms"
    for name, case in calibration["cases"].items():
        published = case["published_rasterize_ms"]
        yield (
            f"  {name:<18} {f'{published:.1f}' if published else '-':>17} {1e3 / case['published_fps']:>10.1f} "
            f"{case['predicted_full_issue_ms']:>28.1f} {case['predicted_rasterize_ms']:>16.1f} "
            f"{case['predicted_frame_ms']:>9.1f}"
        )
    yield f"to confirm, on the board: {document['confirm']}"


def _fps(fps: float) -> str:
    return f"{fps:,.0f}" if fps >= 100 else f"{fps:.1f}"
