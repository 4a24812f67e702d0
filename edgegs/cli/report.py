"""``edgegs report LOG… [-o OUT.html]``: what runs and sweeps cost, as a table and as a page."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from typing import List

from edgegs.errors import UsageError


def add_parser(subparsers: argparse._SubParsersAction) -> argparse.ArgumentParser:
    """Add the verb to the command line."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "report",
        help="sum up logs of runs, or results of sweeps, as a table and a web page",
        description="Print stage times, frame rate, temperature and power of recorded runs, or FPS against watts of "
        "the sweeps of one or many boards; with -o, write a self-contained HTML page with charts.",
    )
    parser.add_argument(
        "logs",
        metavar="LOG",
        nargs="+",
        help="a run's folder, its telemetry.jsonl, or a .jsonl.gz; or a sweep's folder, or its results.jsonl",
    )
    parser.add_argument("-o", "--output", metavar="OUT.html", help="write a page with charts")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    parser.add_argument("--parquet", metavar="OUT.parquet", help="write a row a run (sweeps) or a window (logs)")
    of_sweeps = parser.add_argument_group("of sweeps")
    of_sweeps.add_argument("--csv", metavar="OUT.csv", help="write a row a configuration, with intervals")
    of_sweeps.add_argument("--png", metavar="FOLDER", help="write every chart as a PNG file")
    of_sweeps.add_argument(
        "--compare",
        nargs=2,
        metavar=("A", "B"),
        help="say how B does against A; each is a configuration, named by its runs' id without -rN, on several boards "
        "BOARD:ID (default: every variant against baseline, every board against the first)",
    )
    return parser


def main(args: argparse.Namespace) -> int:
    """Read the logs, print the table (or JSON), and write the files."""
    from edgegs.bench import field_data

    check_targets(args)
    sweeps = [path for path in args.logs if field_data.is_sweep(path)]
    if not sweeps:
        given = [name for name in ("csv", "png", "compare") if getattr(args, name) is not None]
        if given:
            raise UsageError(f"--{given[0]} is of sweeps, and none of these logs is one's results")
        return main_runs(args)
    if len(sweeps) < len(args.logs):
        other = next(path for path in args.logs if path not in sweeps)
        raise UsageError(f"{sweeps[0]} is of a sweep and {other} is not: make a report of each kind")
    return main_sweeps(args)


def check_targets(args: argparse.Namespace) -> None:
    """Refuse to write over what the report is made from."""
    kept = set()
    for log in args.logs:
        kept.add(os.path.realpath(log))
        folder = log if os.path.isdir(log) else os.path.dirname(log) or "."
        with contextlib.suppress(OSError):
            names = [name for name in os.listdir(folder) if name.startswith(("results.", "telemetry."))]
            kept.update(os.path.realpath(os.path.join(folder, name)) for name in names)
    for option in ("output", "csv", "parquet"):
        target = getattr(args, option)
        if target is not None and os.path.realpath(target) in kept:
            name = "-o" if option == "output" else f"--{option}"
            raise UsageError(f"{name} {target}: belongs to what the report is made from; name another file")


def main_runs(args: argparse.Namespace) -> int:
    """Of daemons' logs."""
    from edgegs.bench import report

    logs = [report.read(path) for path in args.logs]
    _warn([line for log in logs for line in report.problems_text(log)])
    if args.json:
        runs = [dict(report.summary(run), log=log.path) for log in logs for run in log.runs]
        unusable = {log.path: {"torn": log.torn, "garbage": log.garbage} for log in logs}
        print(json.dumps({"runs": runs, "unusable_lines": unusable}, indent=2))
    else:
        print("\n\n".join(report.table(log, run) for log in logs for run in log.runs))
    if args.output:
        missing = report.write_page(args.output, logs)
        if missing:
            _warn([f"{args.output}: {missing}"])
        _wrote(args.output)
    if args.parquet:
        from edgegs.bench import field_parquet as parquet

        n = parquet.write(args.parquet, parquet.window_rows(args.logs), parquet.WINDOW_COLUMNS)
        _wrote(f"{args.parquet} ({n:,} windows)")
    return 0


def main_sweeps(args: argparse.Namespace) -> int:
    """Of sweeps' results."""
    from edgegs.bench import field_report as report

    field = report.read(args.logs, args.compare)
    _warn(report.problems(field))
    print(json.dumps(report.summary(field), indent=2) if args.json else report.table(field))
    if args.output:
        missing = report.write_page(args.output, field)
        if missing:
            _warn([f"{args.output}: {missing}"])
        _wrote(args.output)
    if args.csv:
        report.write_csv(args.csv, field)
        _wrote(args.csv)
    if args.png:
        written = report.write_png(args.png, field)
        _wrote(f"{len(written)} charts into {args.png}")
    if args.parquet:
        from edgegs.bench import field_parquet as parquet

        n = parquet.write(args.parquet, parquet.run_rows(field.campaigns), parquet.RUN_COLUMNS)
        _wrote(f"{args.parquet} ({n:,} runs)")
    return 0


def _warn(lines: List[str]) -> None:
    for line in lines:
        print("edgegs: warning: " + line, file=sys.stderr)


def _wrote(what: str) -> None:
    print(f"edgegs: wrote {what}", file=sys.stderr)
