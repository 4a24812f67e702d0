"""``edgegs report --parquet``, and the queries of docs/fleet.md run by a real DuckDB."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any, Dict

import pytest
from field_files import campaign, made

from edgegs.bench import field_report as report
from edgegs.cli import main
from edgegs.telemetry.records import encode

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def nano(tmp_path: Path) -> Path:
    campaign(tmp_path / "nano" / "results.jsonl")
    return tmp_path / "nano"


@pytest.fixture
def orin(tmp_path: Path) -> Path:
    path = tmp_path / "orin" / "results.jsonl"
    campaign(path, splats=(25_000, 100_000), board="NVIDIA Jetson Orin Nano Developer Kit", seed=2, speed=4, watts=1.6)
    return tmp_path / "orin"


#: fastparquet's reader leaves the file to be closed by the garbage collector; edgegs only writes.
reads_parquet = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")


def fleet_queries() -> Dict[str, str]:
    """The queries of docs/fleet.md by their heading."""
    text = (ROOT / "docs" / "fleet.md").read_text(encoding="utf-8")
    found = re.findall(r"^\*\*([^*\n]+)\*\*\n+```sql\n(.*?)```", text, re.MULTILINE | re.DOTALL)
    return dict(found)


def write_log(path: Path, run_id: str, watts: float) -> None:
    record: Dict[str, Any] = {"schema": 1, "run_id": run_id, "boot_id": "b", "clock_synced": True}
    lines = [
        encode(
            dict(
                record,
                type="start",
                seq=0,
                t_mono_ns=0,
                board="Nano " + run_id,
                interval_s=1.0,
                variant="dual",
                scene={"path": "/s/dial.ply", "sha256": "aa", "n_splats": 25000},
            )
        )
    ]
    for second in range(1, 61):
        hot = second > 50 and run_id == "a"
        lines.append(
            encode(
                dict(
                    record,
                    type="window",
                    seq=second,
                    t_mono_ns=second * 10**9,
                    t_wall=f"2025-07-01T12:00:{second % 60:02d}.000Z",
                    window_s=1.0,
                    frames=20,
                    fps=20.0,
                    dropped={"mjpeg": {"slow": 1}},
                    frame_ms={"p50": 30.0, "p95": 33.0, "max": 40.0, "mean": 31.0},
                    stage_ms={"sort": {"mean": 5.0}},
                    total_rail="POM_5V_IN",
                    energy_j={"POM_5V_IN": watts, "POM_5V_GPU": 1.0},
                    power_w={"POM_5V_IN": {"w": watts}, "POM_5V_GPU": {"w": 1.0}},
                    temp_c={"GPU": 90.0 if hot else 50.0},
                    throttle=["gpu_clock"] if hot else [],
                )
            )
        )
    path.write_bytes(b"".join(lines))


def test_parquet_and_the_documented_queries(nano: Path, orin: Path, tmp_path: Path) -> None:
    pytest.importorskip("fastparquet", reason="fastparquet is not installed (edgegs[parquet])")
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed here: docs/fleet.md's queries are not run")
    for name, watts in (("a", 5.0), ("b", 7.0)):
        write_log(tmp_path / f"{name}.jsonl", name, watts)
        assert (
            main(["report", str(tmp_path / f"{name}.jsonl"), "--parquet", str(tmp_path / f"log-{name}.parquet")]) == 0
        )
    assert main(["report", str(nano), "--parquet", str(tmp_path / "sweep-nano.parquet")]) == 0
    assert main(["report", str(orin), "--parquet", str(tmp_path / "sweep-orin.parquet")]) == 0
    connection = duckdb.connect()
    answers = {}
    queries = fleet_queries()
    assert len(queries) == 4
    for title, query in queries.items():
        asked = connection.execute(query.replace("fleet/", f"{tmp_path}/"))
        names = [column[0] for column in asked.description]
        answers[title] = [dict(zip(names, row)) for row in asked.fetchall()]
    boards = {row["board"]: row for row in answers["Every board's day"]}
    assert boards["Nano a"]["fps"] == pytest.approx(20.0)
    assert boards["Nano b"]["watts"] == pytest.approx(7.0)
    assert boards["Nano b"]["joules_per_frame"] == pytest.approx(7.0 / 20)
    assert boards["Nano a"]["throttled_s"] == pytest.approx(10.0)
    assert boards["Nano b"]["throttled_s"] == 0
    (hot,) = answers["When a board was hot"]
    assert (hot["board"], hot["hottest"]) == ("Nano a", 90.0)
    assert answers["One rail of all boards"][0]["gpu_w"] == pytest.approx(1.0)
    field = report.read([str(nano), str(orin)])
    rows = {(row["board"], row["splats"], row["width"], row["variant"]): row for row in answers["Watts against FPS"]}
    assert len(rows) == len(field.groups)
    for group in field.groups:
        row = rows[group.campaign.board, group["splats"], group["width"], group["variant"]]
        assert row["runs"] == len(group.runs)
        for column, figure in (("fps", "fps"), ("watts", "mean_w"), ("joules_per_frame", "j_per_frame")):
            assert row[column] == pytest.approx(group.of(figure).mean)  # type: ignore[union-attr]


@reads_parquet
def test_parquet_keeps_what_is_unknown_and_who_is_invalid(tmp_path: Path) -> None:
    fastparquet = pytest.importorskip("fastparquet", reason="fastparquet is not installed (edgegs[parquet])")
    one = made(tmp_path, 10.0, 11.0, power=False)
    one.run(repeat=3, rate=9.0, invalid=("throttled", "hot"), power=False)
    out = tmp_path / "out.parquet"
    assert main(["report", str(one.path), "--parquet", str(out)]) == 0
    table = fastparquet.ParquetFile(str(out)).to_pandas()
    assert list(table["counts"].astype(bool)) == [True, True, False]
    assert list(table["reasons"]) == ["", "", "throttled"]
    assert table["mean_w"].isna().all()
    assert list(table["splats"]) == [100_000] * 3


@reads_parquet
def test_parquet_in_several_lots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fastparquet = pytest.importorskip("fastparquet", reason="fastparquet is not installed (edgegs[parquet])")
    from edgegs.bench import field_parquet

    monkeypatch.setattr(field_parquet, "ROWS", 25)
    write_log(tmp_path / "a.jsonl", "a", 5.0)
    out = tmp_path / "out.parquet"
    n = field_parquet.write(
        str(out), field_parquet.window_rows([str(tmp_path / "a.jsonl")]), field_parquet.WINDOW_COLUMNS
    )
    file = fastparquet.ParquetFile(str(out))
    assert (n, file.count(), len(file.row_groups)) == (60, 60, 3)
    assert list(file.to_pandas()["seq"]) == list(range(1, 61))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl", "out.parquet"]


def test_without_fastparquet(nano: Path, tmp_path: Path, monkeypatch: Any, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setitem(sys.modules, "fastparquet", None)
    assert main(["report", str(nano), "--parquet", str(tmp_path / "x.parquet")]) == 73
    assert "pip install 'edgegs[parquet]'" in capsys.readouterr().err
