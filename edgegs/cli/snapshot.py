"""``edgegs snapshot -o OUT.jpg``: the picture that a running edgegs shows now."""

from __future__ import annotations

import argparse
from typing import Any

from edgegs.cli.ask import add_options, ask, base_url, foreign
from edgegs.errors import UsageError
from edgegs.files import write_at_once


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "snapshot",
        help="save the picture that a running edgegs shows now",
        description="Asks a running edgegs, at its mjpeg: output, for its latest frame.",
        epilog="exit codes: 0 saved, 69 not running or no frame yet, 73 cannot write it, 77 permission or token",
    )
    parser.add_argument("-o", "--output", metavar="OUT.jpg", required=True, help="picture to write, a JPEG")
    add_options(parser)
    return parser


def main(args: argparse.Namespace) -> int:
    if not args.output.lower().endswith((".jpg", ".jpeg")):
        raise UsageError(f"-o {args.output}: the picture is a JPEG; the name must end in .jpg or .jpeg")
    answer = ask(args, "/snapshot.jpg")
    if answer.content_type != "image/jpeg" or not answer.body.startswith(b"\xff\xd8"):
        raise foreign(base_url(args.url), "sends no JPEG")
    write_at_once(args.output, answer.body)
    print(args.output)
    return 0
