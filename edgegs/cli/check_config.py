"""``edgegs check-config CONFIG``: is the configuration right, and what does it come to?"""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Any, Optional

from edgegs.errors import ConfigError

if TYPE_CHECKING:
    from edgegs.config import Config


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "check-config",
        help="check a configuration, and print all that is wrong with it",
        description="Check a configuration without starting anything. Prints every problem, one a line, with "
        "file, line, key, value and a suggestion.",
        epilog="exit codes: 0 right, 78 wrong, 66 no such file, 77 not readable",
    )
    parser.add_argument("config", metavar="CONFIG", help="the YAML file")
    parser.add_argument(
        "--effective",
        action="store_true",
        help="print the whole configuration as YAML, defaults and overrides filled in, secrets masked",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="overrides",
        metavar="KEY=VALUE",
        help="override a key, such as camera.width=800 (again for more)",
    )
    return parser


def main(args: argparse.Namespace) -> int:
    """Print ``CONFIG: ok`` (or the effective configuration) and return 0, or the problems and 78."""
    from edgegs.config import effective, load_config
    from edgegs.config.masking import one_line

    try:
        config = load_config(args.config, args.overrides)
    except ConfigError as error:
        # Not through the general handler: each line starts with file:line, so that editors can jump there.
        print(error, file=sys.stderr)
        return error.exit_code
    needed = {
        "scene.path": config.scene.path,
        "camera.background": _background(config),
        "telemetry.textfile": os.path.dirname(config.telemetry.textfile or "") or None,
    }
    for key, path in needed.items():
        if path is not None and not os.path.exists(path):
            print(f"{one_line(args.config)}: warning: {key}: there is no {one_line(path)} yet", file=sys.stderr)
    if args.effective:
        text = f"# {one_line(args.config)}: sha256 {config.sha256()}\n{effective(config)}"
    else:
        text = f"{one_line(args.config)}: ok\n"
    sys.stdout.write(text)
    return 0


def _background(config: Config) -> Optional[str]:
    """The file or device behind the scene, if any."""
    background = config.camera.background
    return background.uri.path or None if background is not None else None
