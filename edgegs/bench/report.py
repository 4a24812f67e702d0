"""Turn telemetry logs into a report: a table for the terminal, a dictionary for JSON, a page to hand on."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import tempfile
from typing import Any, Dict, List, NamedTuple, Optional

from edgegs.bench.report_data import Run, load
from edgegs.bench.report_series import Rail
from edgegs.errors import AccessError, OutputError, SceneError
from edgegs.telemetry.power import rail_note
from edgegs.telemetry.readlog import read_log
from edgegs.words import duration


class Log(NamedTuple):
    """One log file or run folder: its runs, and what in it could not be used ("torn" and "garbage" lines)."""

    path: str
    runs: List[Run]
    torn: int
    garbage: int
    problems: List[str]


def read(path: str) -> Log:
    """Read a log file or a run's folder.

    Raises:
        InputError: no such log. AccessError: not readable. SceneError (65): it holds no record.
    """
    reader = read_log(path)
    runs = load(reader)
    problems = ["{}{}: {}".format(file, f":{line}" if line else "", what) for file, line, what in reader.problems]
    if not runs:
        unusable = reader.garbage + reader.torn
        reason = f"{unusable} unusable lines, first: {problems[0]}" if problems else "it is empty"
        raise SceneError(f"{path}: no telemetry record ({reason})")
    return Log(path, runs, reader.torn, reader.garbage, problems)


def summary(run: Run) -> Dict[str, Any]:
    """A run's figures as plain values; what is not known is None or absent."""
    total = run.total()
    return {
        "run_id": run.run_id,
        "boot_id": run.boot_id,
        "facts": facts(run),
        "started": run.wall_first,
        "clock_synced": run.synced,
        "seconds": round(run.seconds, 3),
        "ended": ended(run),
        "frames": run.frames,
        "fps": round(run.fps, 3),
        "redraws": run.redraws,
        "dropped": run.dropped,
        "frame_ms": _figures(run.frame),
        "stage_ms": {name: _figures(run.stages[name]) for name in run.stage_names()},
        "stage_share": {name: round(share(run, name), 4) for name in run.stage_names()},
        "temp_c": {
            name: {"min": round(extent.low, 2), "max": round(extent.high, 2), "mean": round(extent.mean, 2)}
            for name, extent in run.temps.items()
        },
        "clk_hz": {
            name: {"min": extent.low, "max": extent.high, "mean": round(extent.mean)}
            for name, extent in run.clocks.items()
        },
        "power": {name: _power(rail) for name, rail in run.rails.items()},
        "total_rail": run.total_rail if total else None,
        "power_doubts": run.power_doubts(),
        "throttled_s": round(run.throttled_s, 3) if run.throttle_known else None,
        "throttle_causes_s": {name: round(seconds, 3) for name, seconds in run.throttled.items()},
        "governor": _governor(run),
        "events": run.n_events,
        "lost_records": run.lost,
        "gaps": run.gaps,
    }


def _figures(distribution: Any) -> Optional[Dict[str, float]]:
    if not distribution.frames:
        return None
    return {
        "p50": round(distribution.percentile(0.50), 4),
        "p95": round(distribution.percentile(0.95), 4),
        "max": round(distribution.max, 4),
        "mean": round(distribution.mean, 4),
    }


def _governor(run: Run) -> Optional[Dict[str, Any]]:
    governed, rungs = run.governed, run.rungs()
    if governed is None:
        return None
    return {
        "steps": dict(governed.steps),
        "rung": governed.rung,
        "mean_rung": round(rungs.mean, 3) if rungs.weight else None,
        "worst_rung": int(rungs.high) if rungs.weight else None,
        "last_rung": governed.of,
        "unheld": list(governed.unheld),
        "unmeasured": list(governed.unmeasured),
    }


def _governor_text(run: Run) -> str:
    """What the governor did, in words; "" where it did nothing or there was none."""
    governed, rungs = run.governed, run.rungs()
    if governed is None:
        return ""
    parts = ["steps: {down} down, {up} up".format(**governed.steps)]
    if rungs.weight:
        parts.append(f"at worst {rungs.high:.0f} of {governed.of}, on average {rungs.mean:.1f}")
    parts += ["could not hold " + ", ".join(governed.unheld)] if governed.unheld else []
    parts += ["not measured: " + ", ".join(governed.unmeasured)] if governed.unmeasured else []
    return "; ".join(parts)


def _power(rail: Rail) -> Dict[str, Any]:
    per_frame = rail.joules_per_frame
    return {
        "mean_w": round(rail.mean_w, 4),
        "min_w": round(rail.watts.low, 4),
        "max_w": round(rail.watts.high, 4),
        "energy_j": round(rail.joules, 3),
        "joules_per_frame": round(per_frame, 5) if per_frame is not None else None,
        "seconds": round(rail.seconds, 3),
        "method": rail.method,
    }


def share(run: Run, stage: str) -> float:
    """The stage's part of the frame time, 0..1."""
    return run.stages[stage].mean / run.frame.mean if run.frame.mean > 0 else 0.0


def facts(run: Run) -> Dict[str, str]:
    """What the start record says was running, for display, in a fixed order; unknown ones are absent."""
    start = run.start
    scene = start.get("scene")
    if isinstance(scene, dict):
        scene_text, n_splats = scene.get("path"), scene.get("n_splats")
        sha = scene.get("sha256")
    else:
        scene_text, n_splats, sha = scene, start.get("n_splats"), start.get("scene_sha256")
    width, height, pinned = start.get("width"), start.get("height"), start.get("gpu_clock_pinned")
    pairs = [
        ("board", start.get("board")),
        ("Jetson Linux", start.get("l4t")),
        ("power mode", start.get("power_mode")),
        ("GPU clock", "pinned" if pinned is True else "not pinned" if pinned is False else None),
        ("scene", os.path.basename(str(scene_text)) if scene_text else None),
        ("splats", f"{n_splats:,}" if isinstance(n_splats, int) else None),
        ("scene sha256", sha),
        ("picture", f"{width}x{height}" if isinstance(width, int) and isinstance(height, int) else None),
        ("backend", start.get("backend")),
        ("device", start.get("device")),
        ("variant", start.get("variant")),
        ("kernel image", start.get("image")),
        ("configuration", start.get("config_hash")),
        ("edgegs", start.get("version") or start.get("edgegs")),
        ("driver", start.get("driver")),
        ("kernel", start.get("kernel")),
        ("Python", start.get("python")),
        ("NumPy", start.get("numpy")),
    ]
    return {name: str(value)[:200] for name, value in pairs if value not in (None, "", {})}


def ended(run: Run) -> str:
    """How the run ended, in words."""
    if run.stop:
        return str(run.stop.get("reason") or "stopped")[:200]
    return "no stop record: still running, killed, or without power"


def power_absent(run: Run) -> str:
    """Why there is no power figure."""
    sensors = run.start.get("sensors")
    monitor = sensors.get("ina3221") if isinstance(sensors, dict) else None
    if isinstance(monitor, dict) and monitor.get("state") == "unreadable":
        return "unreadable: {}".format(str(monitor.get("cause"))[:200])
    return "absent: no power monitor was read on this board"


def total_note(run: Run) -> str:
    """Which rail is the total, or that there is none; and what it leaves out."""
    if run.total():
        note = rail_note(run.total_rail or "")
        return "total is {}{}".format(run.total_rail, f" ({note})" if note else "")
    notes = sorted({rail_note(name) for name in run.rails} - {""})
    return "no rail is the board's total; rails are not added" + "".join("; " + note for note in notes)


def table(log: Log, run: Run) -> str:
    """The run as a plain table."""
    known = facts(run)
    told = [known[name] for name in ("board", "scene", "backend", "variant") if name in known]
    clock = {True: "", False: " (clock not synchronised)", None: ""}[run.synced]
    lines = [
        "run {}{}".format(run.run_id, "".join(" | " + one for one in told)),
        "  {}{}, {} recorded, ended: {}".format(
            run.wall_first or "time unknown", clock, duration(run.seconds), ended(run)
        ),
        "",
    ]
    if run.frame.frames:
        lines.append("  {:<12}{:>10}{:>10}{:>10}{:>10}{:>8}".format("ms", "p50", "p95", "max", "mean", "share"))
        for name in run.stage_names():
            lines.append(_row(name, run.stages[name], share(run, name)))
        if run.frame.mean > 0 and run.stages:
            rest = run.other_ms()
            lines.append("  {:<12}{:>40.2f}{:>7.1f}%".format("other", rest, 100 * rest / run.frame.mean))
        lines += [_row("frame", run.frame, 1.0), ""]
    else:
        lines += ["  no frame was drawn", ""]
    lines.append(f"  FPS          {run.fps:.2f} mean, {run.frames} frames, {run.redraws} redraws")
    for output, reasons in run.dropped.items():
        told_reasons = ", ".join(f"{n} {reason}" for reason, n in reasons.items())
        lines.append(f"  dropped      {output}: {sum(reasons.values())} ({told_reasons})")
    for name, extent in run.temps.items():
        lines.append(f"  temperature  {name}: {extent.low:.1f} to {extent.high:.1f} C")
    if not run.temps:
        lines.append("  temperature  absent: no sensor was read")
    for name, rail in run.rails.items():
        per_frame = rail.joules_per_frame
        told_joules = f"{per_frame:.4f} J a frame" if per_frame is not None else "no frame"
        spent = f"{rail.joules:.1f} J in {duration(rail.seconds)}"
        lines.append(f"  power        {name}: {rail.mean_w:.3f} W mean, {told_joules}, {spent} ({rail.method})")
    lines.append(f"  power        {total_note(run) if run.rails else power_absent(run)}")
    lines += [f"  power        INVALID for comparison: {doubt}" for doubt in run.power_doubts()]
    if run.throttle_known:
        causes = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in run.throttled.items())
        lines.append("  throttled    {}".format(causes or "never seen"))
    else:
        lines.append("  throttled    unknown: no sign could be read")
    governed = _governor_text(run)
    lines += [f"  governor     {governed}"] if governed else []
    if run.n_events:
        lines.append(f"  events       {run.n_events}")
    if run.lost:
        lines.append(f"  lost         {run.lost} records (numbers missing in the log)")
    return "\n".join(_printable(line) for line in lines)


def problems_text(log: Log) -> List[str]:
    """What of the log could not be used, for a warning."""
    if not log.torn and not log.garbage:
        return []
    first = f"{log.path}: {log.torn} torn and {log.garbage} unusable lines left out"
    return [_printable(first)] + ["  " + _printable(problem) for problem in log.problems]


def _row(name: str, distribution: Any, part: float) -> str:
    values = (
        distribution.percentile(0.5),
        distribution.percentile(0.95),
        distribution.max,
        distribution.mean,
    )
    cells = "".join(f"{value:>10.2f}" for value in values)
    return f"  {name[:12]:<12}{cells}{100 * part:>7.1f}%"


def _printable(line: str) -> str:
    """Without control characters: a log must not steer the terminal that shows it."""
    return "".join(char if char.isprintable() else "?" for char in line)


def write_page(path: str, logs: List[Log]) -> Optional[str]:
    """Write the HTML page, whole or not at all.

    Returns:
        What is missing in it and how to get it (charts without matplotlib), else None.

    Raises:
        AccessError, OutputError: the page cannot be written.
    """
    from edgegs.bench.report_html import page

    folder = os.path.dirname(os.path.abspath(path))
    temporary = None
    try:
        if os.path.isdir(path):
            raise IsADirectoryError(errno.EISDIR, "it is a folder")
        descriptor, temporary = tempfile.mkstemp(prefix=".edgegs-report-", dir=folder)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            text, missing = page(logs)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        if isinstance(error, PermissionError):
            raise AccessError(f"{path}: permission denied; name a file you may write") from error
        raise OutputError(f"{path}: cannot write the report: {error.strerror or error}") from error
    return missing


def finite(value: float, form: str, missing: str = "–") -> str:
    """``value`` formatted, or a dash where it is not a number."""
    return form.format(value) if math.isfinite(value) else missing
