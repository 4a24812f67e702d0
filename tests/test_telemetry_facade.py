"""Telemetry as the daemon uses it: over fixture boards, with a real log, real threads and real failures."""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List

import numpy as np
import pytest

from edgegs.frame import STAGES, Frame
from edgegs.telemetry import Telemetry, read_log
from edgegs.telemetry import recorder as recorder_module

FIXTURES = Path(__file__).parent / "data" / "sysfs"
IMAGE = np.zeros((1, 1, 3), np.uint8)


def frame(index: int) -> Frame:
    return Frame(
        IMAGE,
        index,
        time.monotonic_ns(),
        20.0,
        {stage: float(number + 1) for number, stage in enumerate(STAGES)},
        n_splats=1000,
        n_visible=600,
        n_instances=4000,
        redraws=1 if index == 0 else 0,
    )


@pytest.fixture
def telemetry(tmp_path: Path) -> Iterator[Callable[..., Telemetry]]:
    """Make telemetry over a fixture board; stopped at the end, with no thread and no descriptor left."""
    threads, descriptors = set(threading.enumerate()), len(os.listdir("/proc/self/fd"))
    made: List[Telemetry] = []

    def make(root: Path = FIXTURES / "nano", **settings: Any) -> Telemetry:
        etc = root / "etc"
        defaults: Dict[str, Any] = {
            "sysfs_root": str(root),
            "source": "sysfs",
            "interval_s": 0.02,
            "log_dir": str(tmp_path / "runs"),
            "flush_s": 3600.0,
            "min_free_mb": 0.0,
            "read_timeout_s": 0.1,
            "nv_tegra_release": str(etc / "nv_tegra_release"),
            "nvpmodel_status": str(etc / "nvpmodel_status"),
            "nvpmodel_conf": str(etc / "nvpmodel.conf"),
        }
        made.append(Telemetry(**dict(defaults, **settings)))
        return made[-1]

    yield make
    for one in made:
        one.stop("end of test")
    wait_for(lambda: set(threading.enumerate()) == threads)
    assert len(os.listdir("/proc/self/fd")) == descriptors


def wait_for(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end, "waited for 10 s"
        time.sleep(0.002)


def windows_seen(telemetry: Telemetry, count: int) -> None:
    """Wait until ``count`` more windows have ended."""
    for _ in range(count):
        last = telemetry.snapshot()["window"].get("t_mono_ns")
        wait_for(lambda last=last: telemetry.snapshot()["window"].get("t_mono_ns") not in (None, last))


def logged(telemetry: Telemetry, kind: str) -> List[Dict[str, Any]]:
    assert telemetry.log_path is not None
    reader = read_log(telemetry.log_path)
    found = [record for record in reader if record["type"] == kind]
    assert (reader.torn, reader.garbage) == (0, 0)
    return found


@pytest.fixture
def board(tmp_path: Path) -> Path:
    shutil.copytree(str(FIXTURES / "nano"), str(tmp_path / "nano"), symlinks=True)
    return tmp_path / "nano"


def test_a_run_from_start_to_stop(telemetry) -> None:
    run = telemetry()
    run.start({"scene": {"path": "dial.ply", "n_splats": 1000, "sha256": "ab"}, "variant": "baseline", "version": "9"})
    for index in range(40):
        run.frame(frame(index))
        time.sleep(0.002)
    run.dropped("mjpeg", 3, "client slow")
    run.event("output_up", output="mjpeg")
    windows_seen(run, 2)
    run.stop("SIGTERM")

    start = logged(run, "start")
    assert len(start) == 1
    assert start[0]["board"] == "NVIDIA Jetson Nano Developer Kit"
    assert (start[0]["l4t"], start[0]["power_mode"]) == ("32.7.1", "0 (MAXN)")
    assert (start[0]["variant"], start[0]["version"], start[0]["scene"]["sha256"]) == ("baseline", "9", "ab")
    assert start[0]["numpy"] == np.__version__
    assert start[0]["kernel"]
    assert start[0]["total_rail"] == "POM_5V_IN"
    assert start[0]["gpu_clock_pinned"] is False
    assert start[0]["sensors"]["ina3221"] == {"state": "usable"}

    found = logged(run, "window")
    assert sum(one["frames"] for one in found) == 40
    for one in found:
        assert one["temp_c"]["CPU-therm"] == 41.0
        assert one["clk_hz"] == {"gpu": 921600000, "cpu0": 1479000000}
        assert (one["throttle"], one["total_rail"]) == ([], "POM_5V_IN")
        assert one["mem"]["rss_bytes"] > 1e6
        assert one["mem"]["threads"] >= 3
        assert one["mem"]["descriptors"] > 3
        for rail, watts in (("POM_5V_IN", 5.084), ("POM_5V_GPU", 1.685), ("POM_5V_CPU", 1.003)):
            assert one["power_w"][rail] == {"w": pytest.approx(watts, abs=1e-3), "method": "ina3221_iio"}
            assert one["energy_j"][rail] == pytest.approx(watts * one["window_s"], abs=1e-3)
        if one["frames"]:
            assert one["stage_ms"]["sort"] == {"p50": 3.0, "p95": 3.0, "max": 3.0, "mean": 3.0}
            assert (one["n_splats"], one["n_visible"], one["n_instances"]) == (1000, 600, 4000)
    assert found[0]["window_s"] >= 0.02  # the first tick, which comes at once, ends no window
    for before, after in zip(found, found[1:]):  # windows meet: no frame falls between them
        assert after["t_mono_ns"] - before["t_mono_ns"] == pytest.approx(after["window_s"] * 1e9, abs=1e5)

    stop = logged(run, "stop")[0]
    assert (stop["reason"], stop["frames"], stop["redraws"]) == ("SIGTERM", 40, 1)
    assert stop["dropped"] == {"mjpeg": {"client slow": 3}}
    total = sum(one["energy_j"]["POM_5V_IN"] for one in found)
    assert stop["energy_j"]["POM_5V_IN"] == pytest.approx(total, abs=1e-2)
    assert logged(run, "event")[0]["kind"] == "output_up"


def test_the_snapshot_shows_the_run(telemetry) -> None:
    run = telemetry(FIXTURES / "orin_nano")
    assert run.snapshot()["running"] is False
    run.start({"variant": "baseline"})
    run.frame(frame(0))
    run.dropped("display", 2)
    run.event("reload", ok=True)
    windows_seen(run, 2)
    got = run.snapshot()
    assert got["running"] is True
    assert got["run_id"] == run.run_id
    assert got["uptime_s"] > 0
    assert got["info"]["board"] == "NVIDIA Jetson Orin Nano Developer Kit"
    assert got["window"]["temp_c"]["tj-thermal"] == 52.468 or got["window"]["temp_c"]["tj-thermal"] == 52.47
    assert got["sensors"]["thermal"]["failed"]["cv0-thermal"].startswith("offline")
    assert (got["totals"]["frames"], got["totals"]["dropped"]) == (1, {"display": {"slow": 2}})
    assert got["totals"]["energy_j"]["VDD_IN"] > 0
    assert got["events"][-1]["kind"] == "reload"
    assert (got["log"]["state"], got["log"]["error"]) == ("ok", "")


def test_without_sensors_there_are_frames_and_no_invented_values(telemetry) -> None:
    run = telemetry(source="none")
    run.start({})
    run.frame(frame(0))
    windows_seen(run, 2)
    run.stop()
    for one in logged(run, "window"):
        assert not {"power_w", "energy_j", "temp_c", "clk_hz", "load", "throttle", "total_rail"} & set(one)
    assert sum(one["frames"] for one in logged(run, "window")) == 1


def test_without_a_log_everything_else_works(telemetry) -> None:
    run = telemetry(log_dir=None)
    run.start({})
    run.event("x")
    run.frame(frame(0))
    windows_seen(run, 1)
    got = run.snapshot()
    assert (got["run_id"], got["log"], run.log_path) == (None, None, None)
    run.stop()
    assert run.snapshot()["totals"]["frames"] == 1


def test_a_log_whose_disk_is_missing_is_kept_from_when_it_comes(tmp_path: Path, telemetry, caplog) -> None:
    disk = tmp_path / "usb" / "edgegs"
    run = telemetry(log_dir=str(disk / "runs"))
    run.start({"variant": "baseline"})
    run.frame(frame(0))
    windows_seen(run, 2)
    got = run.snapshot()
    assert (got["run_id"], run.log_path, got["log"]["path"]) == (None, None, None)
    assert (got["log"]["state"], got["log"]["dropped_records"]) == ("waiting", 0)
    assert "usb/edgegs does not exist" in got["log"]["error"]
    assert [one["kind"] for one in got["events"]] == ["log_failing"]
    assert "no run log is kept, for now" in caplog.text
    assert not (tmp_path / "usb").exists()  # nothing is made below a mount point

    disk.mkdir(parents=True)
    wait_for(lambda: run.snapshot()["log"]["state"] == "ok")  # the first retries come within seconds
    run.stop()
    got = run.snapshot()
    assert [one["kind"] for one in got["events"]] == ["log_failing", "log_recovered"]
    assert run.log_path == got["log"]["path"]
    records = list(read_log(run.log_path))
    assert {one["run_id"] for one in records} == {run.run_id}  # those that waited, too
    assert (records[0]["type"], records[0]["variant"], records[-1]["type"]) == ("start", "baseline", "stop")
    assert [one["seq"] for one in records] == list(range(len(records)))  # none was lost
    assert [one["kind"] for one in logged(run, "event")] == ["log_recovered"]


def test_a_log_that_never_can_be_made_costs_only_itself(tmp_path: Path, telemetry) -> None:
    (tmp_path / "file").write_text("")
    run = telemetry(log_dir=str(tmp_path / "file"))
    run.start({})
    run.frame(frame(0))
    windows_seen(run, 1)
    run.stop()
    got = run.snapshot()
    assert got["totals"]["frames"] == 1
    assert (got["log"]["state"], got["log"]["error"]) == ("waiting", "it is not a folder")
    assert got["log"]["dropped_records"] >= 3


def test_a_hanging_sensor_stops_neither_frames_nor_windows(telemetry, board: Path) -> None:
    fifo = board / "devices/virtual/thermal/thermal_zone2/temp"
    fifo.unlink()
    os.mkfifo(str(fifo))
    run = telemetry(board)
    run.start({})
    for index in range(20):
        run.frame(frame(index))
    windows_seen(run, 3)
    # on a busy machine a window may end before the rails were read twice
    wait_for(lambda: "power_w" in run.snapshot()["window"])
    got = run.snapshot()
    assert "no answer" in got["sensors"]["thermal"]["failed"]["GPU-therm"]
    assert "GPU-therm" not in got["window"]["temp_c"]
    assert got["window"]["temp_c"]["CPU-therm"] == 41.0
    assert got["totals"]["frames"] == 20
    assert got["window"]["power_w"]["POM_5V_IN"]["w"] == pytest.approx(5.084, abs=1e-3)
    run.stop()
    descriptor = os.open(str(fifo), os.O_WRONLY)
    os.write(descriptor, b"1\n")
    os.close(descriptor)


def test_a_failing_disk_never_reaches_the_caller(telemetry, monkeypatch) -> None:
    run = telemetry(flush_s=0.01)
    run.start({})
    windows_seen(run, 1)

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(recorder_module.os, "write", full)
    wait_for(lambda: run.snapshot()["log"]["state"] == "failing")
    run.frame(frame(0))
    run.event("anything")
    windows_seen(run, 2)
    got = run.snapshot()
    assert got["totals"]["frames"] == 1
    assert got["log"]["dropped_records"] > 0
    monkeypatch.undo()
    wait_for(lambda: run.snapshot()["log"]["state"] == "ok")


def test_a_clock_step_is_an_event_and_moves_nothing_else(telemetry) -> None:
    shift = [0]
    run = telemetry(wall_ns=lambda: time.time_ns() + shift[0])
    run.start({})
    windows_seen(run, 2)
    shift[0] = -3600 * 10**9
    windows_seen(run, 2)
    run.stop()
    steps = [one for one in logged(run, "event") if one["kind"] == "clock_step"]
    assert [one["step_s"] for one in steps] == [pytest.approx(-3600, abs=0.2)]
    times = [one["t_mono_ns"] for one in logged(run, "window")]
    assert times == sorted(times)
    assert all(one["window_s"] < 5 for one in logged(run, "window"))


def test_throttling_and_limits_become_events_once(telemetry, board: Path) -> None:
    state = board / "devices/virtual/thermal/cooling_device1/cur_state"
    limit = board / "devices/57000000.gpu/devfreq/57000000.gpu/max_freq"
    run = telemetry(board)
    run.start({})
    windows_seen(run, 2)
    state.write_text("3\n")
    limit.write_text("940800000\n")
    wait_for(lambda: run.snapshot()["window"].get("throttle"))
    windows_seen(run, 2)
    assert run.snapshot()["totals"]["throttle_events"]["cooling:gpu-balanced"] == 1
    state.write_text("0\n")
    wait_for(lambda: run.snapshot()["window"].get("throttle") == [])
    run.stop()
    got = [(one["kind"], one.get("cause")) for one in logged(run, "event") if one["kind"].startswith("throttle")]
    assert got.count(("throttle_on", "cooling:gpu-balanced")) == 1
    assert got.count(("throttle_off", "cooling:gpu-balanced")) == 1
    limits = [one for one in logged(run, "event") if one["kind"] == "clock_limits"]
    assert [(one["domain"], one["max_hz"]) for one in limits] == [("gpu", 940800000)]


def test_a_sensor_that_goes_is_an_event(telemetry, board: Path) -> None:
    run = telemetry(board)
    run.start({})
    windows_seen(run, 1)
    for rail in range(3):
        (board / "devices/7000c400.i2c/i2c-6/6-0040/iio:device0" / f"in_power{rail}_input").write_text("broken\n")
    wait_for(lambda: run.snapshot()["sensors"]["ina3221"]["state"] == "unreadable")
    windows_seen(run, 2)
    assert "power_w" not in run.snapshot()["window"]
    run.stop()
    events = [one for one in logged(run, "event") if one["kind"] == "sensor"]
    assert [(one["collector"], one["state"]) for one in events] == [("ina3221", "unreadable")]


def test_a_window_record_stays_small(telemetry) -> None:
    run = telemetry(FIXTURES / "orin_nano")
    run.start({})
    for index in range(5):
        run.frame(frame(index))
    windows_seen(run, 3)
    run.stop()
    lines = [line for line in Path(run.log_path).read_text().splitlines() if '"type":"window"' in line]
    assert max(map(len, lines)) < 1600


def test_stop_is_safe_before_start_and_twice(telemetry) -> None:
    run = telemetry()
    run.stop()
    run.stop()
    other = telemetry()
    other.start({})
    other.stop("once")
    other.stop("twice")
    assert [one["reason"] for one in logged(other, "stop")] == ["once"]


def test_frames_events_and_snapshots_from_many_threads(telemetry) -> None:
    run = telemetry()
    run.start({})
    errors = []

    def work(number: int) -> None:
        try:
            for index in range(100):
                run.frame(frame(index + 1))
                run.dropped(f"out{number}")
                run.event("tick", number=number)
                run.snapshot()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    run.stop()
    assert errors == []
    totals = run.snapshot()["totals"]
    assert totals["frames"] == 400
    assert totals["dropped"] == {f"out{number}": {"slow": 100} for number in range(4)}
    records = list(read_log(run.log_path))
    assert [one["seq"] for one in records] == list(range(len(records)))
    assert len([one for one in records if one.get("kind") == "tick"]) == 400
