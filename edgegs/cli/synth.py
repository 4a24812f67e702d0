"""``edgegs synth KIND -n N -o OUT.ply``: write a synthetic scene."""

from __future__ import annotations

import argparse
import re
import sys
import time
from typing import Any

from edgegs.errors import UsageError

#: As in edgegs.scene.synth, which is not imported here: the command line has to start fast.
KINDS = ("dial", "room")
PRESETS = ("default", "h200")
MAX_SPLATS = 10_000_000


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "synth",
        help="write a synthetic scene",
        description="dial: splats through the whole view frustum, a load with one knob (13 tiles a splat, any N). "
        "room: a furnished room in late sun, z up; with --preset h200 a plain room with the statistics of "
        "trained scenes.",
    )
    parser.add_argument("kind", metavar="KIND", choices=KINDS, help=" | ".join(KINDS))
    parser.add_argument(
        "-n", dest="n", metavar="N", required=True, help=f"splats, 1 to {MAX_SPLATS}; 100k and 2M are understood"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="same seed, same file (default 0)")
    parser.add_argument("--preset", choices=PRESETS, default="default")
    parser.add_argument("--sh-degree", type=int, choices=range(4), default=3, metavar="D", help="0 to 3 (default)")
    parser.add_argument("-o", "--output", metavar="OUT.ply", required=True)
    return parser


def main(args: argparse.Namespace) -> int:
    """Generate, write, and say what was written; raises UsageError, OutputError, AccessError."""
    n = _count(args.n)
    if args.seed < 0:
        raise UsageError(f"--seed {args.seed}: must not be negative")
    from edgegs.camera import Camera
    from edgegs.files import check_output
    from edgegs.scene import write_ply
    from edgegs.scene.synth import dial, dial_camera, room, tiles_per_splat, with_sh_degree

    check_output(args.output)
    began = time.monotonic()
    if sys.stderr.isatty():
        print(f"edgegs: generating {n:,} splats …", file=sys.stderr)
    scene = dial(n, args.seed) if args.kind == "dial" else room(n, args.seed, args.preset)
    scene = with_sh_degree(scene, args.sh_degree)
    write_ply(args.output, scene, [f"edgegs synth {args.kind} -n {n} --seed {args.seed} --preset {args.preset}"])
    print(
        f"{args.output}: {args.kind}, {n:,} splats, seed {args.seed}, SH degree {scene.sh_degree}, "
        f"{scene.nbytes / 1e6:.1f} MB on the device, {time.monotonic() - began:.1f} s"
    )
    if args.kind == "dial":
        viewmat, K = dial_camera(640, 480)
        tiles = tiles_per_splat(scene, Camera(viewmat, K, 640, 480))
        print(f"{tiles.mean():.2f} tiles of 16x16 a splat at 640x480, by the 3-sigma rule")
    return 0


def _count(text: str) -> int:
    match = re.fullmatch(r"(\d{1,12})([kKmM]?)", text.replace("_", ""))
    n = int(match.group(1)) * {"": 1, "k": 1000, "m": 1_000_000}[match.group(2).lower()] if match else 0
    if not 1 <= n <= MAX_SPLATS:
        raise UsageError(f"-n {text}: must be a whole number from 1 to {MAX_SPLATS:,}, such as 100k")
    return n
