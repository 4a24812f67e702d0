"""``edgegs render SCENE -o OUT.png``: draw one picture of a scene."""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, List, Optional, Tuple

from edgegs.cli.options import add_backend_options, add_scene_options, bounded, naming_variants, size, triple, whole
from edgegs.cli.progress import Progress
from edgegs.errors import InputError, UsageError

if TYPE_CHECKING:
    from edgegs.camera import Camera
    from edgegs.pack import AnyScene

log = logging.getLogger(__name__)

FORMATS = (".png", ".jpg", ".jpeg")
DEFAULT_SIZE = (1280, 720)
JPEG_QUALITY = 95  # OpenCV's own default: a picture asked for by hand is kept


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    parser = subparsers.add_parser("render", help="draw one picture of a scene")
    add_scene_options(parser)
    parser.add_argument("-o", "--output", metavar="OUT", help="picture to write: .png or .jpg")
    parser.add_argument("--size", type=size, metavar="WxH", help="default 1280x720, or the view's own size")
    parser.add_argument("--fov", type=bounded(1, 170), metavar="DEG", help="vertical field of view (default 60)")
    parser.add_argument("--view", metavar="CAMERAS.json:INDEX", help="a view of a 3DGS training's cameras.json")
    parser.add_argument("--eye", type=triple, metavar="x,y,z", help="where the camera stands")
    parser.add_argument("--target", type=triple, metavar="x,y,z", help="what it looks at (default: the scene's centre)")
    parser.add_argument("--up", type=triple, metavar="x,y,z", help="default: as the scene's file says, else 0,-1,0")
    parser.add_argument("--background", type=triple, metavar="r,g,b", default=(0.0, 0.0, 0.0), help="0..1 each")
    parser.add_argument(
        "--max-gaussians", type=whole(1, 2**31 - 1), metavar="N", help="draw the N splats that matter most"
    )
    parser.add_argument(
        "--repeat", type=whole(1, 10**9), metavar="N", default=1, help="draw N times and report the last"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object about the frame")
    add_backend_options(parser)
    return parser


def main(args: argparse.Namespace) -> int:
    check_arguments(args)
    from edgegs.backends import create, severity
    from edgegs.kernels.variants import variant
    from edgegs.pack.prepare import Wish, prepare
    from edgegs.renderer import Renderer
    from edgegs.scene import kind_of
    from edgegs.tuned import Board, Task, find

    kind_of(args.scene)  # what is no scene is refused before anything is built
    backend, why = create(args.backend, args.threads, may_compile=True)
    with backend:
        progress = Progress("preparing the scene")
        width, height = choose_size(args)
        wish = Wish("fp32", args.max_gaussians, args.frame)
        if args.variant == "auto":
            answer = find(Task(Board.of(backend), width, height, wish), args.scene, progress)
            if answer is not None:
                log.info("%s", answer.says())
                args.variant = answer.variant
        wish = wish._replace(storage=variant(args.variant, backend.name).storage)
        scene = prepare(args.scene, wish, lambda: nullcontext(backend), progress)
        log.log(severity(args.backend, backend), "%s", why)
        for warning in scene.warnings:
            log.warning("%s", warning)
        camera = choose_camera(args, scene)
        renderer = Renderer(backend, scene, camera.width, camera.height, args.variant, args.background)
        for _ in range(args.repeat):
            frame = renderer.render(camera)
        if args.output:
            write_picture(args.output, frame.image)
        summary = {
            "backend": backend.name,
            "device": backend.device,
            "variant": renderer.variant.name,
            "width": camera.width,
            "height": camera.height,
            "n_splats": frame.n_splats,
            "n_visible": frame.n_visible,
            "n_instances": frame.n_instances,
            "redraws": frame.redraws,
            "stage_ms": {stage: round(ms, 4) for stage, ms in frame.stage_ms.items()},
            "frame_ms": round(frame.frame_ms, 4),
            "output": args.output,
        }
    if args.json:
        print(json.dumps(summary))
    else:
        stages = ", ".join(f"{stage} {ms:.1f}" for stage, ms in frame.stage_ms.items())
        counts = f"{frame.n_splats} splats, {frame.n_visible} visible, {frame.n_instances} instances"
        print(f"{counts}; {frame.frame_ms:.1f} ms ({stages})")
        if args.output:
            print(args.output)
    return 0


def check_arguments(args: argparse.Namespace) -> None:
    """What can be refused before anything is read."""
    if not args.output and not args.json:
        raise UsageError("render: nothing to do; name a picture with -o OUT.png, or ask for --json")
    if args.output and not args.output.lower().endswith(FORMATS):
        raise UsageError("-o {}: the name must end in {}".format(args.output, ", ".join(FORMATS)))
    if args.view and (args.eye or args.target or args.fov):
        raise UsageError("--view brings its own eye, target and field of view; leave --eye, --target, --fov out")
    if args.target and not args.eye:
        raise UsageError("--target needs --eye")
    if not all(0 <= value <= 1 for value in args.background):
        raise UsageError("--background: each value must be from 0 to 1")
    from edgegs.kernels.variants import variant

    with naming_variants():
        variant(args.variant)


def choose_camera(args: argparse.Namespace, scene: AnyScene) -> Camera:
    """The view asked for; with none, the first of the orbit that ``edgegs run`` would make."""
    from edgegs.camera import build_path

    view = _view(args)
    if view is not None:
        return view.with_size(*args.size) if args.size else view
    width, height = args.size or DEFAULT_SIZE
    up = args.up or scene.up
    path = {"kind": "orbit", "up": up}
    if args.eye:
        target = args.target if args.target else tuple(float(value) for value in scene.bounds()[0])
        path = {"kind": "fixed", "eye": args.eye, "target": target, "up": up}
    return build_path(path, width, height, args.fov or 60.0, scene_bounds=scene.bounds()).camera_at(0.0)


def choose_size(args: argparse.Namespace) -> Tuple[int, int]:
    """Width and height of ``choose_camera``'s picture, known before there is a scene."""
    if args.size:
        return int(args.size[0]), int(args.size[1])
    view = _view(args)
    return DEFAULT_SIZE if view is None else (view.width, view.height)


def _view(args: argparse.Namespace) -> Optional[Camera]:
    from edgegs.camera import load_cameras_json

    if not args.view:
        return None
    file, colon, index = args.view.rpartition(":")
    if not colon or not re.fullmatch(r"\d{1,9}", index, re.ASCII):
        raise UsageError(f"--view {args.view}: expected CAMERAS.json:INDEX, such as cameras.json:0")
    views: List[Camera] = load_cameras_json(file)
    if int(index) >= len(views):
        raise InputError(f"{file}: has views 0 to {len(views) - 1}, not {index}")
    return views[int(index)]


def write_picture(path: str, image: Any) -> None:
    """Write a picture (height, width, 3) uint8 BGR, .png or .jpg; the file is never half written."""
    from edgegs.files import write_at_once
    from edgegs.sinks.pictures import encode

    write_at_once(path, encode(image, os.path.splitext(path)[1].lower(), JPEG_QUALITY))
