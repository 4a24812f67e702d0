"""``edgegs doctor``: what this machine has, what is missing, and the command that mends it."""

from __future__ import annotations

import argparse
import json
from typing import Any


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "doctor",
        help="examine this machine, and name the command that mends what is missing",
        description="Looks at Python, packages, GPU and driver, compilers, kernel images, OpenCV, sensors, cache "
        "folder, memory and swap. Changes nothing.",
        epilog="exit codes: 0 no problem was found (warnings do not count), 1 there is a problem",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def main(args: argparse.Namespace) -> int:
    """Examine, print; 1 when a problem was found."""
    from edgegs.doctor import examine
    from edgegs.findings import PROBLEM, WARNING, count, print_findings

    findings = examine()
    n_problems = sum(one.state == PROBLEM for one in findings)
    n_warnings = sum(one.state == WARNING for one in findings)
    if args.json:
        rows = [one._asdict() for one in findings]
        print(json.dumps({"findings": rows, "n_problems": n_problems, "n_warnings": n_warnings}))
    else:
        print_findings(findings)
        print("{}, {}".format(count(n_problems, "problem"), count(n_warnings, "warning")))
    return 1 if n_problems else 0
