"""``edgegs report --parquet``: many boards' results as one Parquet file, for DuckDB and its like.

Sweeps give a row a run, daemon logs a row a window. Columns are the same for every board: what boards call by their
own names (rails, sensors, clocks) stands in JSON text columns.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence

from edgegs.bench.field_data import PARAMS, Campaign
from edgegs.bench.field_stats import FIGURES
from edgegs.bench.report_series import mapping, number
from edgegs.errors import OutputError
from edgegs.files import check_output
from edgegs.frame import STAGES
from edgegs.telemetry.readlog import read_log

#: Rows that are held at a time; each lot becomes a row group of the file.
ROWS = 50_000

#: column -> "text", "float", "int" or "bool"; unknown values are null. A row a run:
RUN_COLUMNS: Dict[str, str] = {
    **dict.fromkeys(("log", "board", "campaign", "run_id"), "text"),
    **dict.fromkeys(("attempt", "repeat", "order"), "int"),
    "counts": "bool",
    "valid": "bool",
    "reasons": "text",
    "t_wall": "text",
    **dict(zip(PARAMS, ("text", "int", "int", "int", "text", "float", "text"))),
    **dict.fromkeys(("board_power_mode", "scene_sha256", "backend", "device", "driver", "l4t", "version"), "text"),
    "image_sha256": "text",
    "window_s": "float",
    "frames": "int",
    **dict.fromkeys(FIGURES, "float"),
    **{f"{stage}_ms": "float" for stage in STAGES},
    **dict.fromkeys(("rail", "rails_w", "temp_c", "clk_hz", "throttle"), "text"),
}
#: A row a window of a daemon:
WINDOW_COLUMNS: Dict[str, str] = {
    **dict.fromkeys(("log", "board", "run_id", "boot_id", "t_wall"), "text"),
    "clock_synced": "bool",
    "seq": "int",
    "t_mono_ns": "int",
    **dict.fromkeys(("version", "scene", "scene_sha256", "variant", "backend", "config_hash", "power_mode"), "text"),
    "window_s": "float",
    "frames": "int",
    "fps": "float",
    "dropped": "int",
    **dict.fromkeys(("frame_p50_ms", "frame_p95_ms", "frame_max_ms"), "float"),
    **{f"{stage}_ms": "float" for stage in STAGES},
    **dict.fromkeys(("n_splats", "n_visible", "n_instances"), "int"),
    "rail": "text",
    **dict.fromkeys(("mean_w", "energy_j", "hottest_c", "rss_bytes"), "float"),
    **dict.fromkeys(("rails_w", "temp_c", "clk_hz"), "text"),
    "throttled": "bool",
    "throttle": "text",
}


def run_rows(campaigns: Sequence[Campaign]) -> Iterator[Dict[str, Any]]:
    """One row a measured run, invalid ones too (``counts``: valid, and the last attempt)."""
    for campaign in campaigns:
        for run in campaign.measured:
            if run.kind != "run":
                continue
            session = campaign.session_of(run)
            row: Dict[str, Any] = {name: session.get(name) for name in RUN_COLUMNS}
            row.update(zip(PARAMS, run.key))
            row.update({name: figure(run) for name, figure in FIGURES.items()})
            row.update({f"{stage}_ms": run.stage_ms.get(stage) for stage in STAGES})
            row.update({name: getattr(run, name) for name in ("run_id", "attempt", "repeat", "order", "t_wall")})
            row.update({name: getattr(run, name) for name in ("valid", "window_s", "frames")})
            row.update(
                log=campaign.path,
                board=campaign.board,
                campaign=campaign.name,
                counts=run.counts(),
                reasons=" ".join(reason.code for reason in run.reasons),
                board_power_mode=run.board_power_mode,
                scene_sha256=run.scene.get("sha256"),
                rail=run.energy.rail if run.energy else None,
                rails_w=_json(run.rails),
                temp_c=_json({name: course.get("mean") for name, course in run.temp_c.items()}),
                clk_hz=_json({name: course.get("mean") for name, course in run.clk_hz.items()}),
                throttle=None if run.throttle is None else json.dumps(run.throttle),
            )
            yield row


def window_rows(paths: Iterable[str]) -> Iterator[Dict[str, Any]]:
    """One row a window of daemons' logs. Raises InputError, AccessError: no such log, or not readable."""
    for path in paths:
        starts: Dict[str, Dict[str, Any]] = {}
        for record in read_log(path):
            run_id = str(record.get("run_id"))
            if record["type"] == "start" and len(starts) < 1000:
                starts[run_id] = record
            elif record["type"] == "window":
                yield _window(path, record, starts.get(run_id, {}))


def _window(path: str, record: Dict[str, Any], start: Dict[str, Any]) -> Dict[str, Any]:
    scene = start.get("scene")
    scene = scene if isinstance(scene, dict) else {"path": scene, "sha256": start.get("scene_sha256")}
    frame, stages = mapping(record.get("frame_ms")), mapping(record.get("stage_ms"))
    rail, seconds = record.get("total_rail"), number(record.get("window_s"))
    energy = mapping(record.get("energy_j"))
    joules = number(energy.get(rail)) if isinstance(rail, str) else None
    temps = {name: value for name, value in mapping(record.get("temp_c")).items() if number(value) is not None}
    causes = record.get("throttle")
    dropped = [number(n) or 0 for one in mapping(record.get("dropped")).values() for n in mapping(one).values()]
    row: Dict[str, Any] = {name: record.get(name, start.get(name)) for name in WINDOW_COLUMNS}
    row.update({f"frame_{figure}_ms": frame.get(figure) for figure in ("p50", "p95", "max")})
    row.update({f"{stage}_ms": mapping(stages.get(stage)).get("mean") for stage in STAGES})
    row.update(
        log=path,
        scene=scene.get("path"),
        scene_sha256=scene.get("sha256"),
        dropped=sum(dropped),
        rail=rail,
        energy_j=joules,
        mean_w=joules / seconds if joules is not None and seconds else None,
        hottest_c=max(temps.values(), default=None),
        rss_bytes=mapping(record.get("mem")).get("rss_bytes"),
        rails_w=_json({name: mapping(one).get("w") for name, one in mapping(record.get("power_w")).items()}),
        temp_c=_json(temps),
        clk_hz=_json(mapping(record.get("clk_hz"))),
        throttled=bool(causes) if isinstance(causes, list) else None,
        throttle=" ".join(map(str, causes[:32])) if isinstance(causes, list) else None,
    )
    return row


def _json(values: Dict[str, Any]) -> Optional[str]:
    return json.dumps(values) if values else None


_CHECKS: Dict[str, Callable[[Any], Any]] = {
    "text": lambda value: None if value is None else str(value)[:4000].encode("utf-8", "replace").decode("utf-8"),
    "float": number,
    "int": lambda value: int(value) if number(value) is not None and abs(value) < 1 << 62 else None,
    "bool": lambda value: value if isinstance(value, bool) else None,
}
_TYPES = {"text": "object", "float": "float64", "int": "Int64", "bool": "boolean"}


def write(path: str, rows: Iterable[Dict[str, Any]], columns: Dict[str, str]) -> int:
    """Write the rows, whole or not at all; returns how many. Memory is bounded by ``ROWS``.

    Raises:
        OutputError: fastparquet is not installed, there is no row, or it cannot be written. AccessError.
    """
    try:
        import fastparquet  # noqa: F401
    except ImportError:
        raise OutputError(
            f"{path}: Parquet needs fastparquet, which is not installed; get it with: pip install 'edgegs[parquet]'"
        ) from None
    check_output(path)
    temporary = f"{os.path.realpath(path)}.{os.getpid()}.part"
    lot: List[Dict[str, Any]] = []
    total = 0
    try:
        for row in rows:
            lot.append(row)
            if len(lot) == ROWS:
                _append(temporary, lot, columns, total > 0)
                total, lot = total + len(lot), []
        if lot:
            _append(temporary, lot, columns, total > 0)
            total += len(lot)
        if not total:
            raise OutputError(f"{path}: the logs hold nothing to write")
        os.replace(temporary, os.path.realpath(path))
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror or error}; name another place") from None
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
    return total


def _append(path: str, lot: List[Dict[str, Any]], columns: Dict[str, str], append: bool) -> None:
    import fastparquet
    import pandas

    data = {}
    for name, kind in columns.items():
        check = _CHECKS[kind]
        data[name] = pandas.Series([check(row.get(name)) for row in lot], dtype=_TYPES[kind])
    texts = {name: "utf8" for name, kind in columns.items() if kind == "text"}
    fastparquet.write(
        path, pandas.DataFrame(data), compression="GZIP", object_encoding=texts, has_nulls=True, append=append,
        write_index=False, stats=False,
    )  # fmt: skip
