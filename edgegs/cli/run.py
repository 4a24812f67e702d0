"""``edgegs run [CONFIG]``: the daemon, in the foreground."""

from __future__ import annotations

import argparse
import os
from typing import Any

from edgegs.cli.options import bounded, whole
from edgegs.errors import ConfigError

#: Taken when no configuration is named.
SERVICE_CONFIG = "/etc/edgegs/edgegs.yaml"


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    parser = subparsers.add_parser("run", help="draw what a configuration says, until stopped")
    parser.add_argument(
        "config", metavar="CONFIG", nargs="?", default=SERVICE_CONFIG, help="default: " + SERVICE_CONFIG
    )
    parser.add_argument("--frames", type=whole(1, 10**12), metavar="N", help="stop after N frames")
    parser.add_argument("--duration", type=bounded(0, 1e9), metavar="S", help="stop after S seconds")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override a key of the configuration"
    )
    return parser


def main(args: argparse.Namespace) -> int:
    from edgegs.config import load_config

    config = load_config(args.config, args.set)
    if config.render.variant != "auto":
        _check_variant(config.render.variant, args.config)
    from edgegs.daemon import Daemon

    daemon = Daemon(config)
    code = daemon.run(args.frames, args.duration)
    print(daemon.summary())
    if daemon.log_path:
        print("log: " + _from_here(daemon.log_path))
    return code


def _from_here(path: str) -> str:
    try:
        return os.path.relpath(path)
    except OSError:  # the folder that the run was started in has been deleted
        return path


def _check_variant(name: str, file: str) -> None:
    from edgegs.errors import DeviceError
    from edgegs.kernels.variants import variant

    try:
        variant(name)
    except DeviceError as error:
        raise ConfigError(f"{file}: {error}") from None
