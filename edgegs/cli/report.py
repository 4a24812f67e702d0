"""``edgegs report LOG… [-o OUT.html]``: what a run cost, as a table and as a page."""

from __future__ import annotations

import argparse
import json
import sys


def add_parser(subparsers: argparse._SubParsersAction) -> argparse.ArgumentParser:
    """Add the verb to the command line."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "report",
        help="sum up telemetry logs as a table and a web page",
        description="Print stage times, frame rate, temperature and power of recorded runs; with -o, write a "
        "self-contained HTML page with charts over time.",
    )
    parser.add_argument("logs", metavar="LOG", nargs="+", help="a run's folder, its telemetry.jsonl, or a .jsonl.gz")
    parser.add_argument("-o", "--output", metavar="OUT.html", help="write a page with charts")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    return parser


def main(args: argparse.Namespace) -> int:
    """Read the logs, print the table (or JSON), and write the page."""
    from edgegs.bench import report

    logs = [report.read(path) for path in args.logs]
    for log in logs:
        for line in report.problems_text(log):
            print("edgegs: warning: " + line, file=sys.stderr)
    if args.json:
        runs = [dict(report.summary(run), log=log.path) for log in logs for run in log.runs]
        unusable = {log.path: {"torn": log.torn, "garbage": log.garbage} for log in logs}
        print(json.dumps({"runs": runs, "unusable_lines": unusable}, indent=2))
    else:
        print("\n\n".join(report.table(log, run) for log in logs for run in log.runs))
    if args.output:
        missing = report.write_page(args.output, logs)
        if missing:
            print(f"edgegs: warning: {args.output}: {missing}", file=sys.stderr)
        print(f"edgegs: wrote {args.output}", file=sys.stderr)
    return 0
