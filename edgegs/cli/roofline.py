"""``edgegs roofline [SCENE | dial | room]``: how near each stage comes to what the device can do; what bounds it."""

from __future__ import annotations

import argparse
import json
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

from edgegs.cli import bench as bench_cli
from edgegs.cli.options import MAX_THREADS, naming_variants, size, whole
from edgegs.cli.progress import Progress
from edgegs.errors import DeviceError, InputError, SceneError, UsageError

if TYPE_CHECKING:
    from edgegs.backends.base import Backend
    from edgegs.camera import Camera
    from edgegs.kernels.variants import Variant
    from edgegs.scene import Scene

log = logging.getLogger(__name__)

KIND = "roofline"
MAX_DOCUMENT_BYTES = 16 << 20
#: Options that mean nothing where nothing is measured, and their names on the command line.
OF_MEASURING = {
    "scene": "SCENE", "n": "-n", "seed": "--seed", "preset": "--preset", "size": "--size", "view": "--view",
    "backend": "--backend", "threads": "--threads", "variant": "--variant", "warmup": "--warmup",
    "repeats": "--repeats", "draw": "--draw", "ledger": "--ledger",
}  # fmt: skip


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "roofline",
        help="how near each stage comes to what the device can do, and what bounds it",
        description="Measure what the device can do (copied bytes, multiply-adds, 2^x), count what each stage of a "
        "frame must move and compute, and print what it reached of that. docs/roofline.md says how.",
    )
    parser.add_argument("scene", nargs="?", metavar="SCENE|dial|room", help="a scene's file, or one made here (dial)")
    bench_cli.add_scene_options(parser)
    parser.add_argument("--size", type=size, action="append", metavar="WxH", help="640x480; may be repeated")
    parser.add_argument("--view", metavar="CAMERAS.json:INDEX", help="default: the scene's own, or its orbit's first")
    parser.add_argument("--backend", choices=("auto", "cuda", "host"), default="auto", help="who draws")
    parser.add_argument(
        "--threads", type=whole(0, MAX_THREADS), default=0, metavar="N", help="of the host backend; 0 takes all"
    )
    parser.add_argument(
        "--variant", action="append", metavar="NAME", help="auto; may be repeated; see `edgegs kernels list`"
    )
    parser.add_argument("--warmup", type=whole(0, 10**6), default=5, metavar="N", help="frames before any counts (5)")
    parser.add_argument("--repeats", type=whole(1, 10**6), default=20, metavar="N", help="frames timed (20)")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the roofline (needs the extra `report`)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--ledger", metavar="NAME", help="keep the figures in jetson/ledger/NAME (or a path with a /)")
    parser.add_argument(
        "--compare-ncu", type=Path, metavar="FILE.csv", help="print what ncu measured (--csv --page raw) beside it"
    )
    parser.add_argument(
        "--from", dest="source", type=Path, metavar="FILE.json|FOLDER",
        help="measure nothing: show what --json or --ledger wrote",
    )  # fmt: skip
    parser.add_argument("--draw", type=whole(1, 10**6), metavar="N", help="only draw N frames, for a profiler")
    parser.set_defaults(defaults={key: parser.get_default(key) for key in OF_MEASURING})
    return parser


def main(args: argparse.Namespace) -> int:
    """Measure (or read), print, compare, draw, and keep."""
    from edgegs.bench import ledger, roofline_plot

    if args.plot is not None:
        roofline_plot.check(args.plot)
    runs = None
    if args.compare_ncu is not None:
        from edgegs.bench import roofline_ncu

        runs = roofline_ncu.read(args.compare_ncu)  # a wrong file is told before anything is measured
    if args.source is not None:
        given = [name for key, name in OF_MEASURING.items() if getattr(args, key) != args.defaults[key]]
        if given:
            raise UsageError("--from measures nothing; leave {} out".format(", ".join(given)))
        document = read(args.source)
        try:
            show(args, document, runs)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise SceneError(f"{args.source}: is damaged ({type(error).__name__}: {error}); measure again") from None
        return 0
    if args.draw is not None and (args.plot or args.json or args.ledger or runs is not None):
        raise UsageError("--draw measures nothing; leave --plot, --json, --ledger and --compare-ncu out")
    choose_variants(args)  # a wrong name is told before anything is read
    kept = None if args.ledger is None else ledger.folder_of(args.ledger)
    if kept is not None:
        ledger.check_new(kept)
    scene = bench_cli.choose_scene(args)
    for warning in scene.warnings:
        log.warning("%s", warning)
    from edgegs.backends import create
    from edgegs.bench.ceilings import check_backend

    backend, why = create(args.backend, args.threads, may_compile=True)
    log.info("%s", why)
    with backend:
        check_backend(backend)
        if args.draw is not None:
            draw(args, backend, scene)
            return 0
        document, raw = run(args, backend, scene)
    if kept is not None:
        ledger.write(kept, document, raw)
        log.info("wrote %s", kept)
    show(args, document, runs)
    return 0


def run(args: argparse.Namespace, backend: Backend, scene: Scene) -> Tuple[Dict[str, Any], List[Dict[str, Any]]]:
    """Measure the ceilings, then every variant at every size: the document, and what it was made from."""
    from edgegs.bench import ceilings, ledger, roofline

    cameras = bench_cli.choose_cameras(args, scene)  # a wrong view is told before anything is measured
    found, samples = ceilings.measure(backend, progress=Progress("ceilings"))
    document = ledger.provenance(backend, scene)
    document.update(kind=KIND, warmup=args.warmup, repeats=args.repeats, seed=args.seed, view=args.view)
    document.update(ceilings=found._asdict(), rows=[])
    raw: List[Dict[str, Any]] = [{"ceiling": name, "values": values} for name, values in samples.items()]
    for camera in cameras:
        for variant in choose_variants(args, backend, scene, camera):
            progress = Progress(f"{camera.width}x{camera.height}, {variant.name}", "frame")
            try:
                row, frames = roofline.measure(
                    backend, scene, camera, variant, found, args.warmup, args.repeats, progress
                )
            except DeviceError as error:
                raise DeviceError(f"{variant.name}: {error}") from None
            document["rows"].append(row)
            raw += frames
    return document, raw


def draw(args: argparse.Namespace, backend: Backend, scene: Scene) -> None:
    """The frames that a profiler is to look at, of the first size and variant."""
    from edgegs.bench.bench import arranged, combination
    from edgegs.renderer import Renderer

    camera: Camera = bench_cli.choose_cameras(args, scene)[0]
    variant = choose_variants(args, backend, scene, camera)[0]
    drawn = arranged(scene) if variant.storage == "packed" else scene
    renderer = Renderer(backend, drawn, camera.width, camera.height, combination(variant))
    try:
        for _ in range(args.draw):
            frame = renderer.render(camera)
        kernels = [launch.kernel for launch in renderer.launches]
    finally:
        renderer.close()
    print(f"{args.draw} frames of {variant.name}, {len(kernels)} launches each: {', '.join(dict.fromkeys(kernels))}")
    if frame.redraws:
        log.warning("the last frame was drawn %d times: its buffers grew; draw more", frame.redraws + 1)


def choose_variants(
    args: argparse.Namespace,
    backend: Optional[Backend] = None,
    scene: Optional[Scene] = None,
    camera: Optional[Camera] = None,
) -> List[Variant]:
    """What --variant names, else the backend's ``auto`` for that view; without them only the names are looked at."""
    from edgegs.bench.bench import resolve
    from edgegs.bench.ladder import unique
    from edgegs.kernels.variants import suits_wide

    wide = tensor_cores = False
    if backend is not None and scene is not None and camera is not None:
        wide = suits_wide(scene.n_splats, camera.width, camera.height, backend.n_blocks)
        tensor_cores = backend.prefers_tensor_cores
    on = "host" if backend is None else backend.name
    chosen = []
    for name in args.variant or ["auto"]:
        with naming_variants():
            chosen.append(resolve(name, on, wide, tensor_cores))
    return unique(chosen)


def read(path: Path) -> Dict[str, Any]:
    """A document that --json printed or a ledger folder holds.

    Args:
        path: of the document, or of the folder.

    Raises:
        InputError, AccessError: it cannot be read. SceneError (65): it is not one.
    """
    from edgegs.bench.ledger import ROW, SCHEMA
    from edgegs.files import read_regular

    if os.path.isdir(path):
        if os.access(path, os.X_OK) and not os.path.lexists(path / ROW):
            raise InputError(f"{path}: holds no {ROW}; name a folder that `edgegs roofline --ledger` wrote, or a file")
        path = path / ROW
    content = read_regular(path, MAX_DOCUMENT_BYTES, "roofline")
    try:
        document = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise SceneError(f"{path}: is not JSON ({error})") from None
    if not isinstance(document, dict) or document.get("kind") != KIND or document.get("schema") != SCHEMA:
        raise SceneError(f"{path}: was not written by `edgegs roofline` of this version (by --json or --ledger)")
    missing = [name for name in ("ceilings", "rows", "scene", "device") if not document.get(name)]
    if missing:
        raise SceneError("{}: lacks {}; measure again".format(path, ", ".join(missing)))
    return document


def show(args: argparse.Namespace, document: Dict[str, Any], runs: Optional[List[Any]]) -> None:
    """Print the document, with ncu's figures if there are any, and draw it if asked."""
    from edgegs.bench import roofline_ncu, roofline_plot, roofline_table

    compared = None
    if runs is not None:
        if len(document["rows"]) != 1:
            raise UsageError("--compare-ncu is of one frame: one --size, one --variant")
        compared = roofline_ncu.compare(document["rows"][0], runs)
    if args.json:
        print(json.dumps(document if compared is None else {**document, "ncu": compared}))
    else:
        print(roofline_table.text(document))
        if compared is not None:
            print("\n" + roofline_ncu.text(compared))
    if args.plot is not None:
        roofline_plot.draw(document, args.plot)
        log.info("wrote %s", args.plot)
