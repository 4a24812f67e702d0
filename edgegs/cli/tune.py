"""``edgegs tune CONFIG.yaml | SCENE``: find the fastest variant on this board, and remember it for ``auto``."""

from __future__ import annotations

import argparse
import json
import logging
import os
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from edgegs.cli.options import MAX_THREADS, size, whole
from edgegs.cli.progress import Progress
from edgegs.errors import DeviceError, InputError, UsageError

if TYPE_CHECKING:
    from edgegs.backends.base import Backend
    from edgegs.bench.tune import Row, Tuning
    from edgegs.camera import Camera
    from edgegs.config import Config
    from edgegs.kernels.variants import Variant
    from edgegs.pack import AnyScene, PackedScene
    from edgegs.tuned import Answer, Task

log = logging.getLogger(__name__)

DEFAULT_SIZE = (1280, 720)
OF_SCENES = {"size": "--size", "frame": "--frame", "max_gaussians": "--max-gaussians", "threads": "--threads"}


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "tune",
        help="find the fastest variant on this board, for render.variant: auto",
        description="Draw a scene with every variant that makes sense, side by side, from several views, compare the "
        "pictures with the exact ones, and remember the fastest that is good enough. `render.variant: auto` takes it "
        "from then on where board, kernels, scene, size and render.max_error_db are the same.",
    )
    parser.add_argument("target", metavar="CONFIG.yaml|SCENE", help="what is to be drawn")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key of CONFIG.yaml")
    parser.add_argument("--size", type=size, metavar="WxH", help="of a SCENE's picture (1280x720)")
    parser.add_argument("--frame", choices=("rdf", "rub"), help="axes of a SCENE, if not what its format says")
    parser.add_argument(
        "--max-gaussians", type=whole(1, 2**31 - 1), metavar="N", help="draw the N splats of a SCENE that matter most"
    )
    parser.add_argument("--backend", choices=("auto", "cuda", "host"), help="who draws a SCENE (the best there is)")
    parser.add_argument("--threads", type=whole(0, MAX_THREADS), metavar="N", help="of the host backend; 0 takes all")
    parser.add_argument("--views", type=whole(1, 100), default=6, metavar="N", help="to look at it from (6)")
    parser.add_argument("--warmup", type=whole(0, 1000), default=2, metavar="N", help="frames before any counts (2)")
    parser.add_argument("--repeats", type=whole(1, 10_000), default=10, metavar="N", help="frames of each view (10)")
    parser.add_argument(
        "--dry-run", action="store_true", help="measure nothing: print what would be, and what is remembered"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


class Job(NamedTuple):
    """What is to be tuned, and what is asked of it.

    Attributes:
        config: None where a scene was named.
        background: RGB, 0..1.
    """

    path: str
    task: Task
    config: Optional[Config]
    background: Sequence[float]


def main(args: argparse.Namespace) -> int:
    """Measure, print, and remember."""
    config = read_config(args)
    from edgegs.backends import create, severity
    from edgegs.scene import kind_of
    from edgegs.tuned import check_room, find

    kind_of(args.target if config is None else config.scene.path)  # what is no scene is refused before anything
    if not args.dry_run:
        check_room()
    asked = (args.backend or "auto") if config is None else config.render.backend
    threads = (args.threads or 0) if config is None else config.render.threads
    backend, why = create(asked, threads, may_compile=True)
    with backend:
        log.log(severity(asked, backend), "%s", why)
        if backend.name == "reference":
            raise DeviceError("the reference backend has nothing to tune; run `edgegs kernels build`")
        job = make_job(args, config, backend)
        if args.dry_run:
            return print_plan(args, job, backend, find(job.task, job.path, Progress("reading")))
        document = tune(args, job, backend)
    if args.json:
        print(json.dumps(document))
        return 0
    from edgegs.bench.tune import text_table

    print(text_table(document))
    print("remembered for render.variant: auto: {}".format(document["answer"]["variant"]))
    if config is not None and config.render.variant != "auto":
        log.warning("%s: render.variant is %s, so this is not used there", args.target, config.render.variant)
    return 0


def read_config(args: argparse.Namespace) -> Optional[Config]:
    """The configuration; None where a scene is named. UsageError where options of the one go with the other."""
    is_config = args.target.lower().endswith((".yaml", ".yml"))
    if not is_config:
        if args.set:
            raise UsageError(f"--set overrides keys of a configuration, and {args.target} is none (.yaml)")
        return None
    given = [name for key, name in {**OF_SCENES, "backend": "--backend"}.items() if getattr(args, key) is not None]
    if given:
        raise UsageError(f"{args.target}: the configuration says that; leave {given[0]} out, or use --set")
    from edgegs.config import load_config

    return load_config(args.target, args.set)


def make_job(args: argparse.Namespace, config: Optional[Config], backend: Backend) -> Job:
    """What is tuned on a backend."""
    from edgegs.choosing import task_of
    from edgegs.pack.prepare import Wish
    from edgegs.tuned import Board, Task

    board = Board.of(backend)
    if config is not None:
        return Job(config.scene.path, task_of(config, board), config, config.render.background)
    width, height = args.size or DEFAULT_SIZE
    wish = Wish("fp32", args.max_gaussians, args.frame)
    return Job(args.target, Task(board, width, height, wish), None, (0.0, 0.0, 0.0))


def tune(args: argparse.Namespace, job: Job, backend: Backend) -> Dict[str, Any]:
    """Measure and remember; the document that is printed."""
    from edgegs.bench import ledger
    from edgegs.bench.tune import Tuning, as_json, candidates, choose
    from edgegs.kernels.manifest import source_hash
    from edgegs.kernels.variants import suits_wide, variant
    from edgegs.tuned import Answer, keep, scene_digest

    task, progress = job.task, Progress("preparing the scene")
    digest = scene_digest(job.path, progress)
    scene, packed = read_scenes(job, backend, progress)
    for warning in scene.warnings:
        log.warning("%s", warning)
    if scene_digest(job.path, progress) != digest or not digest:
        raise InputError(f"{job.path}: was written to meanwhile; wait for that to end, and run this again")
    views, cameras = choose_cameras(job, scene, args.views)
    wide = suits_wide(scene.n_splats, task.width, task.height, backend.n_blocks)
    default = variant("auto", backend.name, scene is packed, wide, backend.prefers_tensor_cores)
    tried = candidates(task.min_psnr_db, default, backend.has_tensor_cores)
    progress.retitle(f"measuring {len(tried)} variants")
    tuning = Tuning(backend, scene, packed, cameras, job.background)
    rows = tuning.measure(tried, args.warmup, args.repeats, progress)
    chosen = choose(rows, task.min_psnr_db, default)
    is_governed = job.config is not None and any(vars(job.config.governor).values())
    if is_governed and scene is packed and chosen.variant.storage != "packed":
        log.warning("%s leaves the governor fewer steps: of SH degree it has none", chosen.variant.name)
    document = ledger.provenance(backend, scene.unpacked())
    document.update(
        kind="tune",
        kernels=source_hash(),
        width=task.width,
        height=task.height,
        max_gaussians=task.wish.max_gaussians,
        n_views=len(cameras),
        views=views,
        warmup=args.warmup,
        repeats=args.repeats,
        min_psnr_db=task.min_psnr_db,
        rows=as_json(rows, chosen, task.min_psnr_db),
        reference=reference_of(tuning),
        default=name_of(default, rows),
    )
    row = next(row for row in document["rows"] if row["is_chosen"])
    answer = Answer(
        row["name"], document["date"], round(chosen.ms, 5), row["ratio_to_baseline"], row["psnr_db"], len(cameras)
    )
    document["answer"] = answer._asdict()
    document["file"] = str(keep(task, digest, answer))
    return document


def read_scenes(job: Job, backend: Backend, progress: Progress) -> Tuple[AnyScene, PackedScene]:
    """The scene as each storage is given it; an .egs lies packed, and is both."""
    from edgegs.pack import PackedScene
    from edgegs.pack.prepare import prepare

    wish = job.task.wish
    packed = prepare(job.path, wish._replace(storage="packed"), lambda: nullcontext(backend), progress)
    assert isinstance(packed, PackedScene)
    scene = prepare(job.path, wish._replace(storage="fp32"), lambda: nullcontext(backend), progress)
    return (packed, packed) if isinstance(scene, PackedScene) else (scene, packed)


def choose_cameras(job: Job, scene: AnyScene, n: int) -> Tuple[str, List[Camera]]:
    """Where it is looked at from, in words, and at most ``n`` views: along the configured path, where there is one.

    A path that the world moves shows its home, and beside that what an orbit shows.
    """
    from edgegs.camera import build_path
    from edgegs.drawing import facts_of, make_path
    from edgegs.pack.views import scoring_views

    task, config = job.task, job.config
    if config is None:
        return "made for the scene", scoring_views(scene.unpacked(), n, task.width, task.height)
    path = make_path(config, facts_of(scene, None, "auto", task.board))
    home = path.camera_at(0.0)
    if path.period_s is not None:
        cameras = [home, *(path.camera_at(path.period_s * index / n) for index in range(1, n))]
        return "along the camera's path", cameras
    if config.camera.path is None or config.camera.path.kind == "fixed":
        return "of the camera", [home]
    camera = config.camera
    orbit = build_path(
        {"kind": "orbit", "up": scene.up}, task.width, task.height, camera.fov_y_deg, camera.near, camera.far,
        scene_bounds=scene.bounds(),
    )  # fmt: skip
    assert orbit.period_s is not None
    cameras = [home, *(orbit.camera_at(orbit.period_s * index / n) for index in range(1, n))]
    return "from the camera's home and around the scene", cameras


def reference_of(tuning: Tuning) -> str:
    """Whose picture is the exact one here."""
    return "" if tuning.reference is None else tuning.reference.name


def name_of(chosen: Variant, rows: Sequence[Row]) -> str:
    """What the rows call a variant."""
    from edgegs.bench.bench import combination

    same = (row.variant.name for row in rows if combination(row.variant) == combination(chosen))
    return next(same, chosen.name)


def print_plan(args: argparse.Namespace, job: Job, backend: Backend, answer: Optional[Answer]) -> int:
    """Say what would be measured, and what is remembered."""
    from edgegs.bench.tune import candidates
    from edgegs.kernels.variants import variant
    from edgegs.scene import kind_of

    task = job.task
    default = variant("auto", backend.name, kind_of(job.path) == "egs", tensor_cores=backend.prefers_tensor_cores)
    names = [one.name for one in candidates(task.min_psnr_db, default, backend.has_tensor_cores)]
    if args.json:
        told = {**task.facts(), "scene": job.path, "variants": names}
        print(json.dumps({**told, "answer": None if answer is None else answer._asdict()}))
        return 0
    size_and_bar = f"{task.width}x{task.height}, {task.min_psnr_db:g} dB at least"
    print(f"{os.path.basename(job.path)}, {size_and_bar}; {task.board.device}")
    print("would be measured: " + ", ".join(names))
    print("nothing is remembered" if answer is None else answer.says())
    return 0
