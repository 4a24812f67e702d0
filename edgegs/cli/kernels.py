"""``edgegs kernels build | list``: compile the kernels, and say which images are there."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any, Dict, List


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    parser = subparsers.add_parser("kernels", help="compile the kernels, or list what is compiled")
    verbs = parser.add_subparsers(dest="kernels_verb", metavar="build|list", required=True)
    build = verbs.add_parser("build", help="compile for this machine, sm_53 and sm_89, or what --arch names")
    build.add_argument(
        "--arch", action="append", metavar="ARCH", help="host, host-check, sm_53, sm_89, …; may be repeated"
    )
    build.add_argument(
        "--toolchain",
        choices=("auto", "nvcc", "nvrtc"),
        default="auto",
        help="compiler of the GPU images (default: the first that can compile for the architecture)",
    )
    build.add_argument("--json", action="store_true", help="print what was built as JSON")
    listing = verbs.add_parser("list", help="the images that are there, which this machine takes, and the variants")
    listing.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def main(args: argparse.Namespace) -> int:
    return _build(args) if args.kernels_verb == "build" else _list(args)


def _row(image: Any, folder: str, current: bool) -> Dict[str, Any]:
    return {
        "arch": image.arch,
        "kind": image.kind,
        "variant": ", ".join(image.variants),
        "compiler": image.compiler,
        "ptxas": image.ptxas,
        "registers": image.worst("registers"),
        "spills": image.worst("spill_bytes"),
        "shared_bytes": image.worst("shared_bytes"),
        "current": current,
        "path": folder + "/" + image.file,
        "sha256": image.sha256,
        "source_hash": image.source_hash,
        "flags": image.flags,
        "entries": image.entries,
    }


def _build(args: argparse.Namespace) -> int:
    from edgegs.kernels.build import DEFAULT_ARCHS, build, table
    from edgegs.paths import cache_dir

    archs: List[str] = args.arch or list(DEFAULT_ARCHS)
    outcomes = build(archs, args.toolchain, progress=lambda line: print("edgegs: " + line, file=sys.stderr))
    folder = str(cache_dir() / "kernels")
    if args.json:
        rows = [_row(o.image, folder, True) for o in outcomes if o.image is not None]
        missing = [{"arch": o.arch, "kind": o.kind, "reason": o.reason} for o in outcomes if o.image is None]
        print(json.dumps({"folder": folder, "images": rows, "not_built": missing}))
    else:
        print(f"kernels in {folder}:")
        print(table(outcomes))
    for outcome in outcomes:
        if outcome.image is None and "\n" in outcome.reason:
            print(f"edgegs: {outcome.arch} {outcome.kind}: {outcome.reason}", file=sys.stderr)
    # a partial build is a success: a board has no use for most images, and the table says what is missing
    asked_missing = bool(args.arch) and any(o.image is None for o in outcomes)
    return 69 if asked_missing or all(o.image is None for o in outcomes) else 0


def _list(args: argparse.Namespace) -> int:
    from edgegs.kernels import gpu
    from edgegs.kernels.manifest import REBUILD, is_gpu_arch, source_hash
    from edgegs.kernels.select import every_image, verdicts
    from edgegs.kernels.variants import VARIANTS

    found, reasons = every_image()
    device, no_gpu = gpu.detect() if any(is_gpu_arch(one.image.arch) for one in found) else (None, "")
    capability = device.capability if device else None
    judged = verdicts(found, capability, f"no GPU to run it: {no_gpu}")
    rows = []
    for one in found:
        row = _row(one.image, str(one.folder), one.image.source_hash == source_hash())
        verdict = judged[one.path]
        rows.append(dict(row, selected=verdict.selected, why=verdict.why))
    if args.json:
        variants = {name: {"entries": v.entries, "says": v.says} for name, v in VARIANTS.items()}
        gpu_facts = device._asdict() if device else None
        print(json.dumps({"images": rows, "variants": variants, "gpu": gpu_facts, "unreadable": reasons}))
        return 0
    for reason in reasons:
        print(f"edgegs: warning: {reason}", file=sys.stderr)
    print("images (* is what this machine takes):" if rows else f"no kernels are built; {REBUILD}")
    for row in rows:
        used = "" if row["registers"] is None else ", up to {registers} registers, {spills} bytes spilled".format(**row)
        stale = "" if row["current"] else f"  STALE: {REBUILD}"
        mark = "*" if row["selected"] else " "
        print("{0} {arch:<20} {kind:<5}  {compiler}{1}{2}".format(mark, used, stale, **row))
        print("{:<29}{}; {}".format("", row["why"], row["path"]))
    print("variants:")
    for name, v in VARIANTS.items():
        print(f"  {name:<11} {v.says}")
    return 0
