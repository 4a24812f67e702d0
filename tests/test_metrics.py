"""The exposition as a whole, against a golden text; what is counted, and what is left out."""

from __future__ import annotations

import math
import re
import threading
from pathlib import Path
from typing import Any, Dict

import numpy as np
import pytest
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

from edgegs.frame import Frame
from edgegs.telemetry import Telemetry
from edgegs.telemetry.history import History
from edgegs.telemetry.metrics import STALE_S, Metrics

GOLDEN = Path(__file__).parent / "data" / "metrics.txt"
IMAGE = np.zeros((1, 1, 3), np.uint8)
NOW_NS = 100_000_000_000
STATUS: Dict[str, Any] = {
    "version": "1.2.3",
    "backend": "cuda",
    "variant": "dual",
    "device": 'NVIDIA "Tegra" X1',
    "image": "sm_53",
    "n_splats": 298431,
    "gpu_memory_bytes": 123456789,
    "device_faults": 2,
    "last_reload": {"successful": False, "error": "no such file"},
    "governor": {
        "rung": 3,
        "of": 11,
        "scale": 0.8,
        "n_splats": 200000,
        "sh_degree": 2,
        "fps_cap": 15.0,
        "steps": {"down": 4, "up": 1},
        "reason": "6.8 W",
        "limits": {
            "power": {"bound": 6.5, "value": 6.82, "state": "present", "held": False},
            "fps": {"bound": 15.0, "value": None, "state": "missing", "held": None},
        },
    },
    "outputs": [
        {
            "uri": "display://0",
            "name": "lobby",
            "state": "retrying",
            "frames_written": 812,
            "dropped": {"slow": 1, "down": 2977},
            "reconnects": 3,
        },
        {"uri": "null:", "name": "null:", "state": "up", "frames_written": 3790, "dropped": {"slow": 0, "down": 0}},
        {"uri": "null:", "name": "null:", "state": "up", "frames_written": 3791, "dropped": {"slow": 4, "down": 0}},
    ],
}
SNAPSHOT: Dict[str, Any] = {
    "window": {
        "t_mono_ns": NOW_NS - 400_000_000,
        "window_s": 1.0,
        "power_w": {"POM_5V_IN": {"w": 6.82, "method": "ina3221_iio"}},
        "temp_c": {"GPU-therm": 48.5, "x\\y\n\udcff": -2.0},
        "clk_hz": {"gpu": 921600000},
        "load": {"gpu": 0.97},
    },
    "sensors": {
        "thermal": {"state": "usable"},
        "ina3221": {"state": "unreadable", "cause": "permission denied"},
        "rapl": {"state": "absent"},
    },
    "totals": {"energy_j": {"POM_5V_IN": 25406.118}, "throttle_events": {"cooling:gpu-balanced": 2, "gpu_clock": 0}},
    "log": {"state": "failing", "dropped_records": 7},
}


def frame(index: int, frame_ms: float = 30.0, **fields: Any) -> Frame:
    stages = fields.pop("stage_ms", {"project": 0.01, "rasterize": 19.7})
    return Frame(IMAGE, index, index, frame_ms, stages, 10, 9, 8, **fields)


@pytest.fixture
def proc(tmp_path: Path) -> str:
    """A proc of one process with known figures."""
    me = tmp_path / "self"
    (me / "fd").mkdir(parents=True)
    for number in range(4):
        (me / "fd" / str(number)).touch()
    for number in range(3):
        (me / "task" / str(number)).mkdir(parents=True)
    after_name = ["S"] + ["0"] * 10 + ["250", "50"] + ["0"] * 6 + ["4200", "104857600", "12800"] + ["0"] * 28
    (me / "stat").write_text("77 (edgegs) " + " ".join(after_name) + "\n")
    (me / "limits").write_text("Max open files            1024                 4096                 files\n")
    (tmp_path / "stat").write_text("btime 1700000000\n")
    return str(tmp_path)


def metrics(proc: str, status: Dict[str, Any] = STATUS, snapshot: Any = SNAPSHOT) -> Metrics:
    return Metrics(lambda: status, lambda: snapshot, proc=proc, clock_ns=lambda: NOW_NS)


def series(text: bytes) -> Dict[Any, float]:
    """{(name, labels as sorted pairs): value}."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text.decode("utf-8"))
        for sample in family.samples
    }


def test_the_whole_exposition(proc: str) -> None:
    told = metrics(proc)
    told.frame(frame(0, 30.0, redraws=1))
    told.frame(frame(1, 17.0))
    told.frame(frame(2, 7000.0, stage_ms={"sort": 6.8}))
    text = told.render().decode("utf-8")
    # what the machine says of itself: length of a page and of a clock tick
    machine = "edgegs_process_(resident_memory_bytes|cpu_seconds_total|start_time_seconds)"
    text = re.sub(f"(?m)^({machine}) .*", r"\1 N", text)
    assert text == GOLDEN.read_text(encoding="utf-8")


def test_names_units_and_helps_are_as_prometheus_wants_them(proc: str) -> None:
    told = metrics(proc)
    told.frame(frame(0))
    text = told.render().decode("utf-8")
    families = list(text_string_to_metric_families(text))
    assert len({family.name for family in families}) == len(families) > 20
    for family in families:
        assert re.fullmatch("edgegs_[a-z_]+", family.name)
        assert family.documentation.endswith(".") or "process" in family.name
        assert family.type in ("counter", "gauge", "histogram")
        assert not re.search("(milli|kilo|_ms|_percent|_mb|_total_|_(count|sum|bucket)$)", family.name)
        for sample in family.samples:
            if family.type == "counter":
                assert sample.name == family.name + "_total"
                assert sample.value >= 0
            elif family.type == "gauge":
                assert not sample.name.endswith("_total")
    found = series(told.render())
    assert len(found) == text.count("\n") - text.count("\n# ") - 1  # no series twice
    assert not list(REGISTRY.get_sample_value(name) for (name, _) in found if REGISTRY.get_sample_value(name))


def test_histograms_are_cumulative_and_agree_with_their_count(proc: str) -> None:
    told = metrics(proc)
    for index in range(100):
        told.frame(frame(index, 0.5 * index))
    found = series(told.render())
    buckets = sorted(
        (float(dict(labels)["le"]), value)
        for (name, labels), value in found.items()
        if name == "edgegs_frame_duration_seconds_bucket"
    )
    values = [value for _, value in buckets]
    assert values == sorted(values)
    for bound, value in buckets:
        assert value == sum(1 for index in range(100) if 0.0005 * index <= bound * (1 + 1e-12))
    assert buckets[-1] == (math.inf, 100.0)
    assert found["edgegs_frame_duration_seconds_count", ()] == 100
    assert found["edgegs_frame_duration_seconds_sum", ()] == pytest.approx(0.0005 * sum(range(100)))
    assert found["edgegs_frames_rendered_total", ()] == 100


def test_nothing_known_is_nothing_said(proc: str, tmp_path: Path) -> None:
    text = Metrics(dict, None, proc=str(tmp_path / "none")).render().decode("utf-8")
    assert {line.split("{")[0].split(" ")[0] for line in text.splitlines() if not line.startswith("#")} <= {
        "edgegs_build_info",
        "edgegs_frames_rendered_total",
        "edgegs_frame_redraws_total",
        *("edgegs_frame_duration_seconds_" + part for part in ("bucket", "count", "sum")),
        "edgegs_process_max_fds",  # prometheus_client asks the kernel for this one
    }


def test_figures_of_an_old_window_are_not_told_as_todays(proc: str) -> None:
    old = dict(SNAPSHOT, window=dict(SNAPSHOT["window"], t_mono_ns=NOW_NS - int((STALE_S + 1) * 1e9)))
    found = {name for name, _ in series(metrics(proc, snapshot=old).render())}
    assert not found & {"edgegs_power_watts", "edgegs_temperature_celsius", "edgegs_clock_hertz", "edgegs_load_ratio"}
    assert {"edgegs_energy_joules_total", "edgegs_throttle_events_total"} <= found
    slow = dict(old, window=dict(old["window"], window_s=10.0))  # the same age, but windows of ten seconds
    assert "edgegs_power_watts" in {name for name, _ in series(metrics(proc, snapshot=slow).render())}


def test_broken_times_are_not_counted(proc: str) -> None:
    told = metrics(proc)
    told.frame(frame(0, math.nan, stage_ms={"sort": math.inf, "ranges": -1.0}))
    found = series(told.render())
    assert found["edgegs_frames_rendered_total", ()] == 1
    assert found["edgegs_frame_duration_seconds_count", ()] == 0
    assert found["edgegs_stage_duration_seconds_sum", (("stage", "sort"),)] == 0


def test_frames_are_counted_while_others_ask(proc: str) -> None:
    told = metrics(proc)
    counting = [threading.Thread(target=lambda: [told.frame(frame(n)) for n in range(500)]) for _ in range(4)]
    for thread in counting:
        thread.start()
    seen = [series(told.render())["edgegs_frames_rendered_total", ()] for _ in range(5)]
    for thread in counting:
        thread.join()
    assert seen == sorted(seen)
    found = series(told.render())
    assert found["edgegs_frames_rendered_total", ()] == found["edgegs_frame_duration_seconds_count", ()] == 2000


def test_a_real_board_of_the_fixtures(proc: str) -> None:
    telemetry = Telemetry(sysfs_root=str(Path(__file__).parent / "data" / "sysfs" / "nano"), interval_s=0.02)
    told = Metrics(dict, telemetry.snapshot, proc=proc)
    telemetry.start({})
    try:
        before: Dict[Any, float] = {}
        for index in range(400):
            told.frame(frame(index))
            found = series(told.render())
            energy = {key: value for key, value in found.items() if key[0] == "edgegs_energy_joules_total"}
            assert all(value >= before.get(key, 0.0) for key, value in energy.items())
            before = energy
            if len(telemetry.history()["t"]) and energy and max(energy.values()) > 0:
                break
            threading.Event().wait(0.01)
    finally:
        telemetry.stop()
    kept = telemetry.history()
    assert kept["total_rail"] == "POM_5V_IN"
    watts = found["edgegs_power_watts", (("rail", "POM_5V_IN"),)]
    assert watts == pytest.approx(kept["power_w"]["POM_5V_IN"][0], rel=0.2)
    degrees = {dict(labels)["sensor"]: value for (name, labels), value in found.items() if "temperature" in name}
    assert set(degrees) == set(kept["temp_c"])
    assert min(degrees.values()) > -100


# ---- the history of the page ----------------------------------------------------------------------------


def record(fps: float, **rails: float) -> Dict[str, Any]:
    return {"fps": fps, "power_w": {rail: {"w": watts} for rail, watts in rails.items()}, "temp_c": {"CPU": 40.0 + fps}}


def test_history_keeps_one_a_second_of_the_last_minutes() -> None:
    history = History(span_s=10.0, period_s=1.0, clock=lambda: 1234.567)
    for tenth in range(400):
        history.add(tenth * 100_000_000, record(tenth))
    kept = history.since()
    assert kept["now"] == 1234.57
    assert kept["span_s"] == 10.0
    assert len(kept["t"]) == len(kept["fps"]) == len(kept["temp_c"]["CPU"]) <= 12
    assert kept["t"][-1] - kept["t"][0] <= 10.0
    assert all(later - sooner >= 0.9 for sooner, later in zip(kept["t"], kept["t"][1:]))
    assert 0 <= 39.9 - kept["t"][-1] < 1.0


def test_history_of_a_jittering_second_loses_none() -> None:
    history = History()
    for second in range(600):
        history.add(int((second + 0.04 * (-1) ** second) * 1e9), record(1.0))
    assert len(history.since()["t"]) == 600


def test_history_since_and_missing_values() -> None:
    history = History()
    history.add(1_000_000_000, record(1.0, a=5.0))
    history.add(2_000_000_000, {})
    history.add(3_000_000_000, record(3.0, b=6.0, a=7.0))
    assert history.since()["power_w"] == {"a": [5.0, None, 7.0], "b": [None, None, 6.0]}
    assert history.since()["fps"] == [1.0, None, 3.0]
    later = history.since(2.0)
    assert later["t"] == [3.0]
    assert later["power_w"] == {"b": [6.0], "a": [7.0]}
    assert history.since(3.0)["t"] == []
    assert History().since()["t"] == []
