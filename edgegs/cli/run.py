"""``edgegs run [CONFIG]``: the daemon, in the foreground."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from edgegs.cli.options import bounded
from edgegs.errors import ConfigError, UsageError

#: Taken when no configuration is named.
SERVICE_CONFIG = "/etc/edgegs/edgegs.yaml"


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    parser = subparsers.add_parser("run", help="draw what a configuration says, until stopped")
    parser.add_argument(
        "config", metavar="CONFIG", nargs="?", default=SERVICE_CONFIG, help="default: " + SERVICE_CONFIG
    )
    parser.add_argument("--frames", type=int, metavar="N", help="stop after N frames")
    parser.add_argument("--duration", type=bounded(0, 1e9), metavar="S", help="stop after S seconds")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override a key of the configuration"
    )
    return parser


def main(args: argparse.Namespace) -> int:
    if args.frames is not None and args.frames < 1:
        raise UsageError(f"--frames {args.frames}: must be at least 1")
    from edgegs.config import load_config

    config = load_config(args.config, args.set)
    if config.render.variant != "auto":
        _check_variant(config.render.variant, args.config)
    from edgegs.daemon import Daemon

    daemon = Daemon(config)
    code = daemon.run(args.frames, args.duration)
    print(daemon.summary())
    if daemon.log_path:
        print("log: " + os.path.relpath(daemon.log_path))
    sys.stdout.flush()
    return code


def _check_variant(name: str, file: str) -> None:
    from edgegs.errors import DeviceError
    from edgegs.kernels.variants import variant

    try:
        variant(name)
    except DeviceError as error:
        raise ConfigError(f"{file}: {error}") from None
