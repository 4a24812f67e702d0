"""``edgegs sweep CAMPAIGN.yaml``: power against FPS, measured over every combination of a campaign."""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import logging
import os
import sys
from typing import TYPE_CHECKING, Any, List, Optional

from edgegs.cli.progress import Progress
from edgegs.errors import UsageError
from edgegs.words import duration

if TYPE_CHECKING:
    from edgegs.bench.campaign import Campaign
    from edgegs.bench.sweep_results import Results

log = logging.getLogger(__name__)

_EXIT = {"complete": 0, "SIGINT": 130, "SIGTERM": 143}


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "sweep",
        help="measure power against FPS over a campaign of scenes, sizes and variants",
        description="Draw every combination of a campaign several times in random order, with the sensors read beside "
        "it, and keep one line a run. The same command goes on where it was stopped, by Ctrl-C or by a power cut.",
    )
    parser.add_argument("campaign", metavar="CAMPAIGN.yaml", help="what to measure; start from configs/field.yaml")
    parser.add_argument("--dry-run", action="store_true", help="print the runs that are left, and how long they take")
    parser.add_argument("--retry-invalid", action="store_true", help="make runs that were invalid once more")
    parser.add_argument(
        "--allow-power-modes",
        action="store_true",
        help="let power modes and clocks be switched, by jetson/power-mode.sh with sudo, and restored at the end",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    return parser


def main(args: argparse.Namespace) -> int:
    """Make the runs that are left, and say where the results are."""
    from edgegs.bench.campaign import load_campaign

    campaign = load_campaign(args.campaign)
    _check_scenes(campaign)
    _check_variants(campaign)
    if args.dry_run:
        return _print_plan(args, campaign)
    if campaign.needs_helper and not args.allow_power_modes:
        raise UsageError(
            f"{args.campaign}: power_modes and pin_clocks change the whole board, as root; add --allow-power-modes to "
            "let jetson/power-mode.sh do that, and restore it at the end; or leave both out"
        )
    if args.allow_power_modes and not campaign.needs_helper:
        raise UsageError(f"{args.campaign}: names no power_modes and no pin_clocks; leave --allow-power-modes out")
    return _sweep(args, campaign)


def _check_scenes(campaign: Campaign) -> None:
    """A missing file is told before anything is measured."""
    from edgegs.bench.campaign import MADE
    from edgegs.scene import kind_of

    for scene in campaign.scenes:
        if scene.path not in MADE:
            kind_of(scene.path)


def _check_variants(campaign: Campaign) -> None:
    from edgegs.bench.bench import resolve
    from edgegs.errors import ConfigError, DeviceError

    for name in campaign.variants:
        try:
            resolve(name)
        except DeviceError as error:
            raise ConfigError("variants: {}".format(str(error).partition(": ")[2])) from None


def _print_plan(args: argparse.Namespace, campaign: Campaign) -> int:
    from edgegs.bench.sweep_results import look

    plan = campaign.plan()
    done = look(campaign.out, campaign.sha256(), campaign.settings(), args.retry_invalid)
    left = [planned for planned in plan if planned.run_id not in done]
    left_s = campaign.lasts_s(campaign.run_s * len(left), len({planned.power_mode for planned in left}))
    if args.json:
        runs = [dict(one.params(), run_id=one.run_id, order=one.order) for one in left]
        told = {"runs": runs, "done": len(plan) - len(left), "of": len(plan), "seconds": round(left_s)}
        print(json.dumps(dict(told, campaign=campaign.sha256())))
    else:
        for one in left:
            print(f"{one.order:>4}  {one.run_id}")
        there = f" of {len(plan)}, the others are there" if done else ""
        time_left = f"at least {duration(left_s)}" if left else "nothing to do"
        print(f"{len(left)} runs{there}; {time_left}; results: {campaign.out}")
    return 0


def _sweep(args: argparse.Namespace, campaign: Campaign) -> int:
    from edgegs.backends import create, severity
    from edgegs.bench.sweep import Hooks, Sweep
    from edgegs.bench.sweep_modes import PowerModes, helper_command
    from edgegs.bench.sweep_results import Results
    from edgegs.signals import Signals

    plan = campaign.plan()
    header = {
        "name": os.path.basename(args.campaign),
        "settings": campaign.settings(),
        "n_runs": len(plan),
        "n_configurations": len(campaign.configurations()) * max(1, len(campaign.power_modes)),
    }
    asked: List[str] = []
    shown = _Shown()
    hooks = Hooks(lambda: asked[0] if asked else None, shown.began, shown.progress, shown.finished)
    with contextlib.closing(Results(campaign.out, campaign.sha256(), header)) as results:
        if results.torn:
            log.warning("%s: its last line was not finished, by a power cut, say; that run is made again", results.path)
        reason = "complete"
        done = results.done(args.retry_invalid)
        if any(planned.run_id not in done for planned in plan):
            if done:
                log.info("%s: %d of %d runs are there; going on", results.path, len(done), len(plan))
            signals = Signals(asked.append)
            signals.handle()
            try:
                with contextlib.ExitStack() as stack:
                    backend, why = create(campaign.backend, campaign.threads, may_compile=True)
                    stack.enter_context(backend)
                    log.log(severity(campaign.backend, backend), "%s", why)
                    modes: Optional[PowerModes] = None
                    if campaign.needs_helper:
                        modes = stack.enter_context(PowerModes(helper_command(), campaign.pin_clocks))
                    reason = Sweep(campaign, results, backend, modes, args.retry_invalid, hooks).run()
            finally:
                signals.restore()
                shown.clear()
                results.write_table()
        else:
            log.info("%s: all %d runs are there; nothing is left to measure", results.path, len(plan))
            if results.records[-1].get("reason") != "complete":  # cut off behind its last run
                results.end("complete", len(plan))
            results.write_table()
        return _finish(args, results, len(plan), reason)


def _finish(args: argparse.Namespace, results: Results, n_planned: int, reason: str) -> int:
    runs = results.latest()
    causes = collections.Counter(one["code"] for run in runs.values() for one in run["reasons"])
    n_invalid = sum(not run["valid"] for run in runs.values())
    if args.json:
        summary = {"results": results.path, "reason": reason, "done": len(runs), "of": n_planned, "invalid": n_invalid}
        print(json.dumps(dict(summary, causes=dict(causes))))
    else:
        why = " ({})".format(", ".join(f"{code} {n}" for code, n in causes.most_common())) if causes else ""
        again = "; --retry-invalid makes these once more" if n_invalid else ""
        print(f"{len(runs)} of {n_planned} runs measured, {n_invalid} of them invalid{why}{again}")
        print(f"{results.path}\nedgegs report {results.path} -o report.html")
    if reason != "complete":
        log.warning("stopped by %s; the same command goes on from here", reason)
    elif runs and n_invalid == len(runs):
        log.error(
            "every run is invalid: there is nothing to publish; mend the cause (see docs/field.md), then run the same "
            "command with --retry-invalid"
        )
        return 1
    return _EXIT[reason]


class _Shown:
    """How far it has come: a line a run, and on a terminal a bar within it.

    A terminal that goes away (a connection that breaks) must not end an hour's measurement.
    """

    def __init__(self) -> None:
        self._bar = Progress("sweep", "second") if sys.stderr.isatty() else None

    def began(self, number: int, of: int, label: str, left_s: float) -> None:
        log.info("run %d of %d: %s; about %s left", number, of, label, duration(left_s))
        if self._bar is not None:
            self._bar.retitle(f"run {number} of {of}")

    def progress(self, done_s: float, of_s: float) -> None:
        if self._bar is not None:
            with contextlib.suppress(OSError):
                # never full: a warm-up may take longer, and a bar at its end is a line of its own
                self._bar(min(int(done_s), int(of_s)), int(of_s) + 1)

    def finished(self, words: str) -> None:
        self.clear()
        log.info("%s", words)

    def clear(self) -> None:
        """Take the bar away, so that a line begins at its beginning."""
        if self._bar is not None:
            with contextlib.suppress(OSError):
                print("\r\x1b[K", end="", file=sys.stderr, flush=True)
