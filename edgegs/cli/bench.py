"""``edgegs bench [SCENE.ply | dial | room]``: what each stage costs, variant beside variant; and ``edgegs bench
--outputs URI …``: how fast each output delivers."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import re
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Tuple, cast

from edgegs.cli.ask import DEFAULT_URL, add_options
from edgegs.cli.options import MAX_THREADS, bounded, naming_variants, size, whole
from edgegs.cli.progress import Progress
from edgegs.errors import DeviceError, SceneError, UsageError

if TYPE_CHECKING:
    from edgegs.backends.base import Backend
    from edgegs.bench.bench import Contender
    from edgegs.camera import Camera
    from edgegs.kernels.variants import Variant
    from edgegs.scene import Scene
    from edgegs.sinks import OutputUri

log = logging.getLogger(__name__)

KINDS = ("dial", "room")
DEFAULT_N = 50_000
DEFAULT_SIZE = (640, 480)
MAX_SPLATS = 10_000_000
#: Of --outputs.
OUTPUT_SIZE, OUTPUT_FPS, OUTPUT_S = (1280, 720), 30.0, 10.0
#: Options that mean nothing where nothing is drawn, and their names on the command line.
OF_DRAWING = {
    "scene": "scene",
    "n": "-n",
    "seed": "--seed",
    "preset": "--preset",
    "view": "--view",
    "backend": "--backend",
    "threads": "--threads",
    "variant": "--variant",
    "ladder": "--ladder",
    "peer": "--peer",
    "warmup": "--warmup",
    "repeats": "--repeats",
}


def add_scene_options(parser: argparse.ArgumentParser) -> None:
    """How many splats of which scene; ``choose_scene`` reads them."""
    parser.add_argument("-n", type=_count, metavar="N", help="splats to make (50k), or to keep of a file")
    parser.add_argument("--seed", type=whole(0, 2**31 - 1), default=0, metavar="S", help="of a scene made here")
    parser.add_argument("--preset", choices=("default", "h200"), default="default", help="of room")


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "bench",
        help="measure what each stage costs, variant beside variant",
        description="Draw one view again and again and print p50 of every stage. Variants take turns, frame by frame, "
        "and `baseline` is always among them: a speed-up is a ratio within one run. With --outputs nothing is drawn: "
        "pictures made beforehand are offered to one output after the other, as fast as it takes them and at --fps.",
    )
    parser.add_argument("scene", nargs="?", metavar="SCENE.ply|dial|room", help="a 3DGS .ply, or one made here (dial)")
    add_scene_options(parser)
    parser.add_argument(
        "--size", type=size, action="append", metavar="WxH", help="640x480 (outputs: 1280x720); may be repeated"
    )
    parser.add_argument("--view", metavar="CAMERAS.json:INDEX", help="default: the scene's own, or its orbit's first")
    parser.add_argument("--backend", choices=("auto", "cuda", "host", "reference"), default="auto", help="who draws")
    parser.add_argument(
        "--threads", type=whole(0, MAX_THREADS), default=0, metavar="N", help="of the host backend; 0 takes all"
    )
    parser.add_argument(
        "--variant", action="append", metavar="NAME", help="auto; may be repeated; see `edgegs kernels list`"
    )
    parser.add_argument("--ladder", action="store_true", help="every rung from baseline to the best")
    parser.add_argument("--peer", choices=("gsplat",), help="draw with this renderer, too, where it is installed")
    parser.add_argument("--warmup", type=whole(0, 10**6), default=10, metavar="N", help="frames before any counts (10)")
    parser.add_argument("--repeats", type=whole(1, 10**6), default=50, metavar="N", help="frames measured of each (50)")
    parser.add_argument("--outputs", nargs="+", metavar="URI", help="draw nothing: measure how fast these deliver")
    parser.add_argument("--fps", type=bounded(0.1, 1000), metavar="N", help="offered to outputs in a second (30)")
    parser.add_argument("--duration", type=bounded(0.05, 3600), metavar="S", help="of both phases of outputs (10)")
    parser.add_argument(
        "--watch",
        action="store_true",
        help="live view of a running edgegs (see --url), measuring nothing; with a scene: of the measurement",
    )
    add_options(parser)
    parser.add_argument("--ledger", metavar="NAME", help="keep the figures in jetson/ledger/NAME (or a path with a /)")
    parser.add_argument("--from-ledger", metavar="NAME", help="measure nothing: print what a ledger folder holds")
    parser.set_defaults(defaults={key: parser.get_default(key) for key in (*OF_DRAWING, "size", "ledger")})
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--json", action="store_true", help="print one JSON object")
    shown.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    return parser


def main(args: argparse.Namespace) -> int:
    """Measure (or read a ledger), print, and keep."""
    from edgegs.bench import ledger

    if args.from_ledger is not None:
        if args.scene or args.variant or args.ladder or args.peer or args.ledger or args.outputs:
            raise UsageError(
                "--from-ledger measures nothing; leave scene, --variant, --ladder, --peer, --ledger, --outputs out"
            )
        folder = ledger.folder_of(args.from_ledger)
        document = ledger.read(folder)
        try:
            _print(args, document)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise SceneError(f"{folder}: row.json is damaged ({type(error).__name__}: {error})") from None
        return 0
    measures = any(getattr(args, key) != args.defaults[key] for key in (*OF_DRAWING, "size", "ledger"))
    if args.watch and (args.outputs or args.json or args.markdown or args.fps is not None):
        raise UsageError("--watch is a view of drawing; leave --outputs, --fps, --json and --markdown out")
    if (args.url != DEFAULT_URL or args.token_file is not None) and (measures or not args.watch):
        raise UsageError("--url and --token-file are of a running edgegs: `edgegs bench --watch`, without a scene")
    if args.watch and not measures:
        from edgegs.cli.watch_view import watch

        return watch(args, args.duration)
    if args.outputs:
        return main_outputs(args)
    if args.fps is not None or args.duration is not None:
        raise UsageError("--fps and --duration are of outputs; add --outputs URI …, or leave them out")
    choose_variants(args)  # a wrong name is told before anything is read
    kept = None if args.ledger is None else ledger.folder_of(args.ledger)
    if kept is not None:
        ledger.check_new(kept)
    scene = choose_scene(args)
    for warning in scene.warnings:
        log.warning("%s", warning)
    from edgegs.backends import create, severity

    backend, why = create(args.backend, args.threads, may_compile=True)
    log.log(severity(args.backend, backend), "%s", why)
    with backend:
        document, raw = run(args, backend, scene, choose_variants(args, backend))
    if kept is not None:
        ledger.write(kept, document, raw)
        log.info("wrote %s", kept)
    _print(args, document)
    return 0


def main_outputs(args: argparse.Namespace) -> int:
    """Measure the delivery of outputs, print, and keep."""
    from edgegs.bench import delivery, ledger

    given = [name for key, name in OF_DRAWING.items() if getattr(args, key) != args.defaults[key]]
    if given:
        raise UsageError("--outputs draws nothing; leave {} out".format(", ".join(given)))
    uris = choose_outputs(args.outputs)
    kept = None if args.ledger is None else ledger.folder_of(args.ledger)
    if kept is not None:
        ledger.check_new(kept)
    sizes = list(dict.fromkeys(args.size or [OUTPUT_SIZE]))
    document, raw = delivery.document_of(uris, sizes, args.fps or OUTPUT_FPS, args.duration or OUTPUT_S, log.info)
    if kept is not None:
        ledger.write(kept, document, raw)
        log.info("wrote %s", kept)
    _print(args, document)
    return 0


def choose_outputs(texts: List[str]) -> List[OutputUri]:
    """The outputs named; every wrong one is told before any is opened."""
    from edgegs.errors import ConfigError
    from edgegs.sinks import create_sink
    from edgegs.sinks.uri import UriError, parse

    uris = []
    for text in dict.fromkeys(texts):
        try:
            uris.append(parse(text))
            create_sink(uris[-1])
        except UriError as error:
            raise UsageError(f"--outputs {text!r}: {error.text}; {error.suggestion}") from None
        except ConfigError as error:
            raise UsageError(f"--outputs: {error}") from None
        except ImportError:
            pass  # a row with its reason: the others are still measured
    return uris


def run(
    args: argparse.Namespace, backend: Backend, scene: Scene, chosen: List[Variant]
) -> Tuple[Dict[str, Any], List[Dict[str, Any]]]:
    """Measure at every size; the document (rows and provenance) and the record of every frame."""
    from edgegs.bench import ladder, ledger
    from edgegs.bench.bench import VariantContender, arranged, measure
    from edgegs.cli.watch_view import BenchView, Screen

    document = ledger.provenance(backend, scene)
    document.update(warmup=args.warmup, repeats=args.repeats, seed=args.seed, view=args.view, peers={}, rows=[])
    raw: List[Dict[str, Any]] = []
    drawn = {"fp32": scene}  # by storage
    if any(one.storage == "packed" for one in chosen):
        drawn["packed"] = arranged(scene)
    for camera in choose_cameras(args, scene):
        with contextlib.ExitStack() as stack:
            # the peer first: where nothing else was asked for, its absence is the answer
            peer = _open_peer(args, backend.name, scene, camera, document)
            if peer:
                stack.callback(peer.close)
            contenders: List[Contender] = []
            for one in chosen:
                try:
                    contenders.append(VariantContender(backend, drawn[one.storage], camera, one))
                except DeviceError as error:
                    beside = f" (beside {len(contenders)} variants that hold memory, too)" if contenders else ""
                    raise DeviceError(f"{error}{beside}") from None
                stack.callback(contenders[-1].close)
            title = f"{camera.width}x{camera.height}, {len(contenders)} variants"
            if peer:
                contenders.append(peer)
                title += f" and {peer.name}"
            progress: Callable[[int, int], None] = Progress(title, "round")
            if args.watch:
                progress = BenchView(title, contenders, stack.enter_context(Screen()))
                contenders = cast("List[Contender]", progress.watched)
            measurements = measure(contenders, args.warmup, args.repeats, progress)
            if ladder.twin_is_affordable(scene, camera):
                log.info("drawing with the float64 twin, to compare")
            document["rows"] += ladder.make_rows(measurements, scene, camera, args.ladder)
            raw += ledger.raw_records(measurements, camera)
    return document, raw


def _open_peer(
    args: argparse.Namespace, backend_name: str, scene: Scene, camera: Camera, document: Dict[str, Any]
) -> Optional[Contender]:
    if not args.peer or args.peer in document["peers"]:
        return None
    from edgegs.bench.peers import open_peer

    try:
        return open_peer(args.peer, backend_name, scene, camera)
    except DeviceError as error:
        if not args.ladder and not args.variant:
            raise
        log.warning("%s", error)
        document["peers"][args.peer] = str(error)
        return None


def choose_variants(args: argparse.Namespace, backend: Optional[Backend] = None) -> List[Variant]:
    """What is measured: baseline, the ladder if asked for, and what --variant names (else the backend's ``auto``).

    Without a backend only the names are looked at.
    """
    from edgegs.bench.bench import resolve
    from edgegs.bench.ladder import unique
    from edgegs.kernels.variants import BASELINE, LADDER, drawable

    on, prefers, has = "host", False, False
    if backend is not None:
        on, prefers, has = backend.name, backend.prefers_tensor_cores, backend.has_tensor_cores
    rungs = drawable(LADDER, has) if args.ladder else []
    named = []
    for name in args.variant or ([] if args.ladder else ["auto"]):
        with naming_variants():
            named.append(resolve(name, on, tensor_cores=prefers))
    return unique([BASELINE, *rungs, *named])


def choose_scene(args: argparse.Namespace) -> Scene:
    """The scene named, or made."""
    kind = args.scene or "dial"
    if args.preset != "default" and kind != "room":
        raise UsageError(f"--preset {args.preset} is room's; write `edgegs bench room --preset {args.preset}`")
    if kind not in KINDS:
        from edgegs.backends import create
        from edgegs.pack.prepare import Wish, prepare

        # baseline needs it as float32, and all are measured on the same splats
        return prepare(kind, Wish(max_gaussians=args.n), lambda: create(args.backend, args.threads)[0]).unpacked()
    from edgegs.scene.synth import dial, room

    n = args.n or DEFAULT_N
    return dial(n, args.seed) if kind == "dial" else room(n, args.seed, args.preset)


def choose_cameras(args: argparse.Namespace, scene: Scene) -> List[Camera]:
    """One a size: the view asked for, else the one that belongs to the scene."""
    from edgegs.camera import Camera
    from edgegs.cli.render import choose_camera
    from edgegs.scene.synth import dial_camera, room_camera

    sizes: List[Any] = list(dict.fromkeys(args.size or [None if args.view else DEFAULT_SIZE]))
    cameras = []
    for one in sizes:
        if args.view or (args.scene or "dial") not in KINDS:
            wanted = argparse.Namespace(view=args.view, size=one, up=None, eye=None, target=None, fov=None)
            cameras.append(choose_camera(wanted, scene))
        elif args.scene == "room":
            cameras.append(Camera(*room_camera(one[0], one[1], args.preset), *one))
        else:
            cameras.append(Camera(*dial_camera(*one), *one))
    return cameras


def _print(args: argparse.Namespace, document: Dict[str, Any]) -> None:
    if document.get("kind") == "roofline":
        from edgegs.bench import roofline_table

        print(json.dumps(document) if args.json else roofline_table.text(document))
        return
    if document.get("kind") == "delivery":
        from edgegs.bench import delivery_table as tables
    else:
        from edgegs.bench import ladder as tables  # type: ignore[no-redef]
    if args.json:
        print(json.dumps(document))
    else:
        print(tables.markdown(document) if args.markdown else tables.text_table(document))


def _count(text: str) -> int:
    match = re.fullmatch(r"([0-9]{1,9})([kKmM]?)", text)
    n = int(match.group(1)) * {"": 1, "k": 1000, "m": 1_000_000}[match.group(2).lower()] if match else 0
    if not 1 <= n <= MAX_SPLATS:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number from 1 to {MAX_SPLATS:,}, such as 100k")
    return n
