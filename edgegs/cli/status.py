"""``edgegs status``: what a running edgegs says about itself."""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any, Dict, List, Optional

from edgegs.cli.ask import DEFAULT_URL, MAX_BYTES, add_options, ask, base_url, foreign
from edgegs.cli.status_parts import given_up, limits
from edgegs.errors import DeviceError, EdgegsError
from edgegs.files import read_regular
from edgegs.findings import one_line
from edgegs.words import duration

#: Where systemd's RuntimeDirectory of the service lies; and how old what it left there may be, seconds.
SERVICE_FOLDER, FRESH_S = "/run/edgegs", 30.0


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "status",
        help="show what a running edgegs draws, how fast, how warm, and its outputs",
        description="Asks a running edgegs, at its mjpeg: output; without one, reads what the service leaves in "
        "/run/edgegs.",
        epilog="exit codes: 0 it answered, 69 it is not running, 77 a token is needed or wrong",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object: all that it says")
    add_options(parser)
    return parser


def main(args: argparse.Namespace) -> int:
    status = fetch(args)
    if args.json:
        print(json.dumps(status))
    else:
        print("\n".join(f"{name:<12} {one_line(text)}".rstrip() for name, text in lines(status)))
    return 0


def fetch(args: argparse.Namespace) -> Dict[str, Any]:
    """What it says: over HTTP, or what the service left. Raises DeviceError and others as ``ask`` does."""
    try:
        body = ask(args, "/status").body
    except DeviceError:
        left = _left_by_service() if args.url == DEFAULT_URL else None
        if left is None:
            raise
        body = left
    try:
        status = json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError):
        status = None
    if not isinstance(status, dict):
        raise foreign(base_url(args.url), "sends no JSON object")
    return status


def _left_by_service() -> Optional[bytes]:
    """What a running service without a port of its own leaves every few seconds; None where there is none."""
    for folder in (os.environ.get("RUNTIME_DIRECTORY", ""), SERVICE_FOLDER):
        path = os.path.join(folder, "status.json")
        try:
            fresh = time.time() - os.stat(path).st_mtime < FRESH_S
            if folder and fresh:
                return read_regular(Path(path), MAX_BYTES, "status")
        except (OSError, EdgegsError):
            continue
    return None


def lines(status: Dict[str, Any]) -> List[List[str]]:
    """Name and text of each line. What is missing, or is not what it should be, is left out: versions differ."""
    from edgegs.frame import STAGES

    told: List[List[str]] = []

    def tell(name: str, *parts: str) -> None:
        text = ", ".join(part for part in parts if part)
        if text:
            told.append([name, text])

    counts = [(_number(status, f"n_{what}"), what) for what in ("splats", "visible", "instances")]
    splats = [f"{n:.0f} {what}" for n, what in counts if n is not None]
    not_ready = _text(status, "not_ready")
    tell("state", _text(status, "state"), "not ready: " + not_ready if not_ready else "")
    tell("scene", _text(status, "scene"), *splats)
    tell("drawn by", _text(status, "backend"), _text(status, "device"), _text(status, "variant"))
    size = [_number(status, side) for side in ("width", "height")]
    fps, uptime = _number(status, "fps"), _number(status, "uptime_s")
    tell(
        "picture",
        "{:.0f}x{:.0f}".format(*size) if None not in size else "",
        "" if fps is None else f"{fps:.1f} FPS",
        _times(status.get("frame_ms"), "a frame"),
        "" if uptime is None else f"up {duration(uptime)}",
    )
    stages = _dict(status, "stages")
    for stage in [*STAGES, *(name for name in stages if name not in STAGES)]:
        tell("  " + stage, _times(stages.get(stage), ""))
    tell("temperature", *_figures(_dict(status, "temp_c"), "{} {:.1f} °C"))
    tell("power", *_figures(_dict(status, "power_w"), "{} {:.2f} W"))
    tell("sources", *_scalars(_dict(status, "sources")))
    tell("governor", given_up(status), *(f"{name} {text}" for name, text, _ in limits(status)))
    tell("camera", *_scalars(_dict(status, "camera")))
    tell("background", *_scalars(_dict(status, "background")))
    throttle = status.get("throttle")
    tell("throttled", *([str(one) for one in throttle] if isinstance(throttle, list) else []))
    outputs = status.get("outputs")
    for output in outputs if isinstance(outputs, list) else []:
        if isinstance(output, dict):
            told.append(["output", _output(output)])
    log = _dict(status, "log")
    tell("log", _text(log, "path"), _text(log, "error"))
    return told


def _output(output: Dict[str, Any]) -> str:
    written, dropped = _number(output, "frames_written"), _number(output, "frames_dropped")
    parts = [
        "{}: {}".format(_text(output, "name") or _text(output, "uri") or "?", _text(output, "state") or "?"),
        "required" if output.get("required") is True else "",
        "" if written is None else f"{written:.0f} frames",
        f"{dropped:.0f} dropped" if dropped else "",
    ]
    error = _text(output, "last_error")
    return ", ".join(part for part in parts if part) + (f"; {error}" if error else "")


def _text(status: Dict[str, Any], key: str) -> str:
    value = status.get(key)
    return value if isinstance(value, str) else ""


def _number(status: Dict[str, Any], key: str) -> Any:
    value = status.get(key)
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _dict(status: Dict[str, Any], key: str) -> Dict[str, Any]:
    value = status.get(key)
    return value if isinstance(value, dict) else {}


def _times(value: Any, what: str) -> str:
    """p50 and p95, of a dict that has them."""
    figures = value if isinstance(value, dict) else {}
    p50, p95 = _number(figures, "p50"), _number(figures, "p95")
    if p50 is None:
        return ""
    return " ".join(word for word in (f"{p50:.2f} ms", what, "" if p95 is None else f"(p95 {p95:.2f})") if word)


def _figures(values: Dict[str, Any], form: str) -> List[str]:
    return [form.format(name, _number(values, name)) for name in values if _number(values, name) is not None]


def _scalars(values: Dict[str, Any]) -> List[str]:
    known = {name: value for name, value in values.items() if isinstance(value, (str, int, float)) and value != ""}
    return [f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}" for name, value in known.items()]
