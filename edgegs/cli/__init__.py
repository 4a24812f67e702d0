"""The command line: one verb a file, each with ``add_parser(subparsers)`` and ``main(args) -> int``."""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import sys
from typing import List, Optional

from edgegs import __version__
from edgegs.errors import EdgegsError

VERBS = ("run", "render", "check_config", "synth", "info", "kernels", "report")


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="edgegs",
        description="Render 3D Gaussian Splatting scenes on small NVIDIA boards, unattended, and measure it.",
        epilog="exit codes: 0 clean stop, 1 runtime fault, 2 usage, 65 bad scene, 66 input missing, "
        "69 device unavailable, 73 cannot create output, 77 permission, 78 configuration",
    )
    parser.add_argument("--version", action="version", version="edgegs " + __version__)
    subparsers = parser.add_subparsers(dest="verb", metavar="VERB")
    for verb in VERBS:
        module = importlib.import_module("edgegs.cli." + verb)
        module.add_parser(subparsers).set_defaults(main=module.main)
    return parser


def main(argv: Optional[List[str]] = None) -> int:
    """Run one verb and return its exit code; a deliberate error becomes one message on stderr."""
    parser = build_parser()
    args = parser.parse_args(argv)
    if args.verb is None:
        parser.print_help(sys.stderr)
        return 2
    if not logging.getLogger().handlers:
        logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="edgegs: %(message)s")
    try:
        return int(args.main(args) or 0)
    except EdgegsError as error:
        print(f"edgegs: error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("edgegs: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `edgegs info … | head`: the reader has gone, which is no fault of ours
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except MemoryError:
        print("edgegs: error: out of memory; lower scene.max_gaussians or the picture size", file=sys.stderr)
        return 1
