"""``edgegs pack SCENE -o OUT.egs``: make a scene ready for a board: ordered, quantised and, if need be, smaller."""

from __future__ import annotations

import argparse
import json
import logging
import os
import time
from typing import TYPE_CHECKING, Any, Dict, List, Tuple

from edgegs.cli.options import add_backend_options, add_scene_options, bounded, whole
from edgegs.cli.progress import Progress
from edgegs.errors import UsageError

if TYPE_CHECKING:
    from edgegs.camera import Camera
    from edgegs.pack.reduce import Candidate, Reducer
    from edgegs.scene import Scene

log = logging.getLogger(__name__)

N_HELD_OUT = 8


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    parser = subparsers.add_parser("pack", help="make a scene ready for a board, and smaller if need be")
    add_scene_options(parser, several=True)
    parser.add_argument("-o", "--output", metavar="OUT.egs", required=True, help="file to write")
    budget = parser.add_mutually_exclusive_group()
    budget.add_argument("--budget", type=whole(1, 2**31 - 1), metavar="N", help="at most N splats")
    budget.add_argument("--budget-mb", type=bounded(0.001, 1e6), metavar="M", help="at most M MB on the device")
    parser.add_argument("--sh-degree", type=whole(0, 3), metavar="D", default=3, help="leave out SH above degree D")
    parser.add_argument(
        "--reduce", choices=("auto", "prune", "merge"), default="auto",
        help="how a budget is met: the least important splats left out, or splats merged; auto takes what looks better",
    )  # fmt: skip
    parser.add_argument("--views", metavar="CAMERAS.json", help="views that matter (default: made for the scene)")
    parser.add_argument(
        "--n-views", type=whole(1, 1000), metavar="N",
        help="views to choose by (default 48, or those of the file); what none sees may go",
    )  # fmt: skip
    parser.add_argument(
        "--distill", type=whole(1, 1_000_000), metavar="STEPS", nargs="?", const=2000,
        help="fine-tune a reduced scene against the whole one (needs PyTorch, gsplat and a GPU; default 2000 steps)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_backend_options(parser)
    return parser


def main(args: argparse.Namespace) -> int:
    check_arguments(args)
    from edgegs.backends import create, severity
    from edgegs.pack.egs import write_egs
    from edgegs.pack.reduce import Budget, Reducer

    began = time.monotonic()
    progress = Progress("reading")
    scene = read(args, progress)
    for warning in scene.warnings:
        log.warning("%s", warning)
    layout, scored, held_out = choose_views(args, scene)
    backend, why = create(args.backend, args.threads, may_compile=True)
    log.log(severity(args.backend, backend), "%s", why)

    def say(what: str) -> Progress:
        progress.retitle(what)
        return progress

    with backend:
        reducer = Reducer(scene, backend, scored, held_out, say)
        if not reducer.scores.any():
            raise UsageError(f"{args.views or 'the views'}: not one of {len(scored)} views sees any of the scene")
        budget = Budget(args.budget, None if args.budget_mb is None else int(args.budget_mb * 1e6))
        try:
            candidates = reducer.candidates(budget, args.reduce, args.sh_degree)
        except ValueError as error:
            if args.budget_mb is None:
                raise
            raise UsageError(f"--budget-mb {args.budget_mb:g}: {error}") from None
        if args.distill and candidates[0].packed.n_splats < scene.n_splats:
            candidates.insert(0, distilled(reducer, candidates[0], scored, args.distill, progress))
            candidates.sort(key=lambda candidate: -candidate.psnr_db)
    best = candidates[0]
    write_egs(args.output, best.packed, about(best, layout, len(scored)), say("writing"))
    print_report(args, scene, candidates, layout, scored, held_out, time.monotonic() - began)
    return 0


def check_arguments(args: argparse.Namespace) -> None:
    """What can be refused before anything is read."""
    from edgegs.files import check_output

    if not args.output.lower().endswith(".egs"):
        raise UsageError(f"-o {args.output}: the name must end in .egs")
    check_output(args.output)
    sources = [os.path.realpath(path) for path in args.scene]
    if os.path.realpath(args.output) in sources:
        raise UsageError(f"-o {args.output}: is the scene itself; name another file")
    if args.reduce == "merge" and args.budget is None and args.budget_mb is None:
        raise UsageError("--reduce merge needs --budget or --budget-mb")
    if args.distill and args.budget is None and args.budget_mb is None:
        raise UsageError("--distill needs --budget or --budget-mb: the whole scene needs no fine-tuning")
    if args.distill:
        from edgegs.pack.distill import check_installed

        check_installed()


def read(args: argparse.Namespace, progress: Progress) -> Scene:
    """The scene; several files are one scene, side by side."""
    from edgegs.scene import load
    from edgegs.scene.merge import concatenate

    if len(args.scene) == 1:
        return load(args.scene[0], frame=args.frame, progress=progress).unpacked()
    # one by one: only the sum and one of them are in memory
    return concatenate(load(path, frame=args.frame, progress=progress).unpacked() for path in args.scene)


def choose_views(args: argparse.Namespace, scene: Scene) -> Tuple[str, List[Camera], List[Camera]]:
    """What they are, the views to score by and those to judge by."""
    from edgegs.pack.prepare import MAX_VIEWS, N_VIEWS, VIEW_SIZE
    from edgegs.pack.views import held_out_views, layout_of, scoring_views, training_views

    if args.views:
        scored, held_out = training_views(args.views, max_views=args.n_views or MAX_VIEWS)
        return f"of {os.path.basename(args.views)}", scored, held_out
    layout = layout_of(scene)
    scored = scoring_views(scene, args.n_views or N_VIEWS, *VIEW_SIZE, layout)
    return f"from {layout}", scored, held_out_views(scene, N_HELD_OUT, *VIEW_SIZE, layout)


def distilled(
    reducer: Reducer, candidate: Candidate, scored: List[Camera], steps: int, progress: Progress
) -> Candidate:
    """A candidate fine-tuned against the whole scene."""
    from edgegs.pack.distill import distill

    reduced = candidate.scene
    if candidate.how == "prune":
        reduced = reduced.take(candidate.packed.rows)
    progress.retitle("fine-tuning")
    tuned = distill(reducer.scene, reduced, scored, steps, progress)
    return reducer.rescored(f"{candidate.how} and distill", tuned, candidate.packed.sh_degree)


def about(best: Candidate, layout: str, n_views: int) -> Dict[str, Any]:
    """What the file tells of how it came to be; the same for the same scene and options."""
    psnr = None if best.psnr_db == float("inf") else round(best.psnr_db, 1)
    return {"reduced": best.how, "views": f"{n_views} {layout}", "psnr_db": psnr}


def print_report(
    args: argparse.Namespace,
    scene: Scene,
    candidates: List[Candidate],
    layout: str,
    scored: List[Camera],
    held_out: List[Camera],
    seconds: float,
) -> None:
    best = candidates[0]
    facts = {
        "path": args.output,
        "source": args.scene,
        "source_splats": scene.n_splats,
        "n_splats": best.packed.n_splats,
        "sh_degree": best.packed.sh_degree,
        "device_bytes": best.packed.nbytes,
        "file_bytes": os.path.getsize(args.output),
        "levels": len(best.packed.levels),
        "reduced": best.how,
        "psnr_db": _finite(best.psnr_db),
        "candidates": [_facts(candidate) for candidate in candidates],
        "views": {"scored": len(scored), "held_out": len(held_out), "from": layout},
        "seconds": round(seconds, 2),
    }
    if args.json:
        print(json.dumps(facts))
        return
    print(f"{best.packed.n_splats:,} of {scene.n_splats:,} splats, SH degree {best.packed.sh_degree}; "
          f"{_size(best.packed.nbytes)} on the device ({_size(scene.nbytes)} as float32)")  # fmt: skip
    others = "the same" if scored[0] is held_out[0] else f"{len(held_out)} others"  # a file with one view
    print(f"views: {len(scored)} {layout} to choose by; PSNR against the whole scene on {others}:")
    for c in candidates:
        chosen = "  <- written" if c is best and len(candidates) > 1 else ""
        splats = f"{c.packed.n_splats:>10,} splats, degree {c.packed.sh_degree}"
        print(f"  {c.how:<18} {splats}: {c.psnr_db:6.2f} dB{chosen}")
    if 0 < best.packed.n_splats < 0.5 * scene.n_splats and best.psnr_db < 35:
        print("under half of the scene is left: look at it (`edgegs render`), or give it a larger budget")
    print(f"{args.output}: {_size(os.path.getsize(args.output))}, {seconds:.0f} s")


def _size(n_bytes: int) -> str:
    return f"{n_bytes / 1e6:.1f} MB" if n_bytes >= 1e5 else f"{n_bytes / 1e3:.1f} kB"


def _facts(candidate: Candidate) -> Dict[str, Any]:
    return {
        "reduced": candidate.how,
        "n_splats": candidate.packed.n_splats,
        "sh_degree": candidate.packed.sh_degree,
        "psnr_db": _finite(candidate.psnr_db),
    }


def _finite(psnr_db: float) -> Any:
    return None if psnr_db == float("inf") else round(psnr_db, 3)
