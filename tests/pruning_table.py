"""The pruning table: how much of a scene's picture is left when only some of its splats are kept, by which rule.

    python tests/pruning_table.py --scene a.ply --scene b.sog --json table.json

For each scene, each share kept and each rule: PSNR against the whole scene over held-out views (edgegs.pack.views),
none of which took part in the scores. Prints one Markdown table for each scene; the JSON has every view's figure, and
the seconds that merging took. A measurement, not a test: run it by hand, on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, List

import numpy as np

from edgegs import __version__
from edgegs.backends import create
from edgegs.backends.base import Backend
from edgegs.cli.options import size
from edgegs.pack import views
from edgegs.pack.importance import importance
from edgegs.pack.merge import merge
from edgegs.pack.quality import Judge
from edgegs.scene import Scene, load

KEEP = (0.75, 0.5, 0.34, 0.2, 0.1)
SEED = 1


def volume(scene: Scene) -> np.ndarray:
    return np.prod(scene.scales.astype(np.float64), axis=1)


#: Rules that need no picture: the score by which the least are left out.
RULES: Dict[str, Callable[[Scene], np.ndarray]] = {
    "random": lambda scene: np.random.default_rng(SEED).random(scene.n_splats),
    "opacity": lambda scene: scene.opacities.astype(np.float64),
    "opacity x volume": lambda scene: scene.opacities * volume(scene),
}
SEEN, MERGED = "sum (T alpha)^2", "merge"


def pruned(scene: Scene, n: int, scores: np.ndarray) -> Scene:
    """The n best, in the order of the file."""
    return scene.take(np.sort(np.argsort(-scores, kind="stable")[:n]))


def measure(path: str, backend: Backend, args: argparse.Namespace) -> Dict[str, Any]:
    """All figures of one scene."""
    scene = load(path).unpacked()
    width, height = args.size
    layout = views.layout_of(scene)
    scored = views.scoring_views(scene, args.views, width, height, layout)
    started = time.perf_counter()
    seen = importance(scene, scored, backend)
    score_s = time.perf_counter() - started
    judge = Judge(scene, views.held_out_views(scene, args.held_out, width, height, layout), backend)
    rules = {**{name: rule(scene) for name, rule in RULES.items()}, SEEN: seen}
    results: List[Dict[str, Any]] = []

    def judged(rule: str, keep: float, made: Callable[[int], Scene]) -> None:
        started = time.perf_counter()
        reduced = made(max(1, round(keep * scene.n_splats)))
        seconds = time.perf_counter() - started
        report = judge.compare(reduced)
        row = {"rule": rule, "keep": keep, "n": reduced.n_splats, "psnr_db": round(report.psnr_db, 3)}
        results.append({**row, "views_db": [round(db, 3) for db in report.views_db], "seconds": round(seconds, 2)})
        print(f"{Path(path).name}: {rule}, {keep:.0%}: {report.psnr_db:.2f} dB, {seconds:.1f} s", file=sys.stderr)

    for keep in args.keep:
        for rule, scores in rules.items():
            judged(rule, keep, lambda n, scores=scores: pruned(scene, n, scores))  # type: ignore[misc]
        judged(MERGED, keep, lambda n: merge(scene, n, seen))
    return {
        "scene": Path(path).name,
        "sha256": scene.sha256,
        "n_splats": scene.n_splats,
        "sh_degree": scene.sh_degree,
        "layout": layout,
        "score_seconds": round(score_s, 2),
        "results": results,
    }


def markdown(measured: Dict[str, Any], keep: List[float]) -> str:
    """One table: a rule a row, a share kept a column, dB."""
    found = {(row["rule"], row["keep"]): row["psnr_db"] for row in measured["results"]}
    lines = [
        f"| {measured['scene']}, {measured['n_splats']:,} | " + " | ".join(f"{share:.0%}" for share in keep) + " |",
        "|---|" + "---|" * len(keep),
    ]
    for rule in (*RULES, SEEN, MERGED):
        lines.append(f"| {rule} | " + " | ".join(f"{found[rule, share]:.1f}" for share in keep) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="PSNR of scenes of which only some splats are kept")
    parser.add_argument("--scene", action="append", required=True, metavar="FILE")
    parser.add_argument("--json", metavar="OUT", help="write every figure")
    parser.add_argument("--keep", type=lambda text: [float(part) for part in text.split(",")], default=list(KEEP))
    parser.add_argument("--size", type=size, default=(480, 320), metavar="WxH")
    parser.add_argument("--views", type=int, default=24, help="to score from")
    parser.add_argument("--held-out", type=int, default=8, help="views to judge by")
    parser.add_argument("--backend", default="auto")
    args = parser.parse_args()
    backend, why = create(args.backend, may_compile=True)
    print(why, file=sys.stderr)
    with backend:
        scenes = []
        for path in args.scene:
            scenes.append(measure(path, backend, args))
            print(markdown(scenes[-1], args.keep) + "\n", flush=True)
        report = {
            "edgegs": __version__, "backend": backend.name, "device": backend.device, "size": list(args.size),
            "views": args.views, "held_out": args.held_out, "seed": SEED, "scenes": scenes,
        }  # fmt: skip
    if args.json:
        Path(args.json).write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
