"""``edgegs run [CONFIG]``: the daemon, in the foreground."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from typing import TYPE_CHECKING, Any, List

from edgegs.cli.options import bounded, whole
from edgegs.errors import DeviceLost

if TYPE_CHECKING:
    from edgegs.config import Config

#: Taken when no configuration is named.
SERVICE_CONFIG = "/etc/edgegs/edgegs.yaml"
#: Hands the moments of device faults on to the process that goes on.
FAULTS = "_EDGEGS_DEVICE_FAULTS"

log = logging.getLogger(__name__)


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

    def read() -> Config:
        return load_config(args.config, args.set)

    config = read()
    from edgegs.daemon import Daemon

    daemon = Daemon(config, read, _faults_before())
    try:
        code = daemon.run(args.frames, args.duration)
    except DeviceLost as error:
        if args.frames is None and args.duration is None:
            _start_over(daemon.faults, error)
        raise
    print(daemon.summary())
    if daemon.log_path:
        print("log: " + _from_here(daemon.log_path))
    return code


def _start_over(faults: List[float], error: DeviceLost) -> None:
    """Become a new process of the same number, to which the device is new; a service manager notices nothing."""
    log.warning("%s; starting over in a new process", error)
    os.environ[FAULTS] = ",".join(f"{moment:.3f}" for moment in faults)
    sys.stdout.flush()
    try:
        os.execv(sys.executable, [sys.executable, "-m", "edgegs", *sys.argv[1:]])
    except OSError as refused:
        log.error("that failed: %s", refused.strerror)


def _faults_before() -> List[float]:
    """When the device failed in the process before this one, monotonic seconds."""
    try:
        return [float(moment) for moment in os.environ.pop(FAULTS, "").split(",") if moment]
    except ValueError:
        return []


def _from_here(path: str) -> str:
    try:
        return os.path.relpath(path)
    except OSError:  # the folder that the run was started in has been deleted
        return path
