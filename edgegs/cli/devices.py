"""``edgegs devices``: the monitors, cameras, virtual cameras and encoders of this machine, and how to name them."""

from __future__ import annotations

import argparse
import importlib
import json
from functools import partial
from typing import TYPE_CHECKING, Any, List

if TYPE_CHECKING:
    from edgegs.findings import Finding

#: What is looked at -> the module whose ``devices()`` looks.
PROBES = {
    "display": "edgegs.sinks.display",
    "video": "edgegs.sinks.v4l2_devices",
    "encoder": "edgegs.sinks.encoders",
}
#: All probes together may take so long, seconds: an X server that hangs, and GStreamer's first look at its plugins.
DEADLINE_S = 20.0


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "devices",
        help="list displays, cameras, virtual cameras and encoders, and what is usable",
        description="Lists monitors, cameras, virtual cameras (v4l2loopback) and H.264 encoders: what a configuration "
        "calls each, and why one cannot be used. Changes nothing.",
        epilog="exit codes: 0 looked (nothing usable is no fault), 1 no part of it answered",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def main(args: argparse.Namespace) -> int:
    """Look, print; 1 only when no probe could look."""
    from edgegs.findings import print_findings

    failed: List[str] = []
    findings = look(failed)
    if args.json:
        print(json.dumps({"devices": [one._asdict() for one in findings]}))
    else:
        print_findings(findings)
    return 1 if len(failed) == len(PROBES) else 0


def look(failed: List[str]) -> List[Finding]:
    """All findings, in the order of ``PROBES``; never raises, and takes at most ``DEADLINE_S``.

    Args:
        failed: gets the names of the probes that did not answer.
    """
    from edgegs.findings import side_by_side

    answered = set()

    def ask(name: str, module: str) -> List[Finding]:
        found: List[Finding] = importlib.import_module(module).devices()
        answered.add(name)
        return found

    findings = side_by_side({name: partial(ask, name, module) for name, module in PROBES.items()}, DEADLINE_S)
    failed.extend(name for name in PROBES if name not in answered)
    return findings
