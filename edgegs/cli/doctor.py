"""``edgegs doctor``: what this machine has, what is missing, and the command that mends it."""

from __future__ import annotations

import argparse
import json
from typing import Any, Dict


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "doctor",
        help="examine this machine, and name the command that mends what is missing",
        description="Looks at Python, packages, GPU and driver, compilers, kernel images, OpenCV, sensors, board, "
        "disks, memory, kernel log, service, configuration and what it names. Changes nothing. "
        "docs/troubleshooting.md explains each finding.",
        epilog="exit codes: 0 no problem was found (warnings do not count), 1 there is a problem, "
        "73 or 77 the archive cannot be written",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="look at this configuration and all that it names (default: the service's, where there is one)",
    )
    parser.add_argument(
        "--bundle",
        metavar="OUT.tar.gz",
        help="also write an archive for a bug report: findings, configuration, log, versions; secrets and names masked",
    )
    parser.add_argument("--force", action="store_true", help="with --bundle: replace an existing file")
    return parser


def main(args: argparse.Namespace) -> int:
    """Examine, print; 1 when a problem was found."""
    from edgegs.doctor import examine
    from edgegs.errors import UsageError
    from edgegs.findings import PROBLEM, WARNING, count, print_findings

    if args.force and args.bundle is None:
        raise UsageError("--force: is for --bundle OUT.tar.gz")
    if args.bundle is not None:
        from edgegs import bundle

        bundle.check(args.bundle, args.force)  # before anybody waits
    findings = examine(config=args.config)
    n_problems = sum(one.state == PROBLEM for one in findings)
    n_warnings = sum(one.state == WARNING for one in findings)
    document: Dict[str, Any] = {
        "findings": [one._asdict() for one in findings],
        "n_problems": n_problems,
        "n_warnings": n_warnings,
    }
    if not args.json:
        print_findings(findings)
        print("{}, {}".format(count(n_problems, "problem"), count(n_warnings, "warning")))
    if args.bundle is not None:
        parts = bundle.write(args.bundle, findings, args.config, args.force)
        document["bundle"] = {"path": args.bundle, "parts": [part.row() for part in parts]}
        if not args.json:
            print(bundle.told(args.bundle, parts))
    if args.json:
        print(json.dumps(document))
    return 1 if n_problems else 0
