"""A real Prometheus: the exposition is clean, a running daemon is scraped, and the fleet's configuration is valid.

And the textfile mode for boards that open no port.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, Dict, Iterator, List

import pytest
import scenes
import yaml

from edgegs.scene import write_ply
from edgegs.telemetry import textfile
from edgegs.telemetry.textfile import Textfile
from edgegs.telemetry.wake import Wakeup

ROOT = Path(__file__).resolve().parent.parent
FIXTURE = ROOT / "tests" / "data" / "sysfs" / "nano"
PROMETHEUS, PROMTOOL = shutil.which("prometheus"), shutil.which("promtool")
WAIT = 60.0  # seconds until a test that would hang fails instead

needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="no promtool here (package prometheus)")
needs_prometheus = pytest.mark.skipif(PROMETHEUS is None, reason="no Prometheus here (package prometheus)")


def until(condition: Any) -> Any:
    limit = time.monotonic() + WAIT
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < limit, "never came"
        time.sleep(0.05)


def get(url: str) -> bytes:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=10) as answer:
        return answer.read()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextlib.contextmanager
def child(command: List[str], log: Path) -> Iterator[subprocess.Popen]:
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, cwd=str(ROOT), stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, kernels: Path) -> Iterator[int]:
    """The port of an edgegs that draws on the host, with the sensors of a Nano's fixture."""
    folder = tmp_path_factory.mktemp("daemon")
    write_ply(str(folder / "cloud.ply"), scenes.cloud(300))
    port = free_port()
    (folder / "edgegs.yaml").write_text(
        "scene: {path: cloud.ply}\ncamera: {width: 96, height: 80}\nrender: {backend: host, target_fps: 20}\n"
        f'outputs: ["mjpeg://127.0.0.1:{port}", "null:"]\n'
        f"telemetry: {{source: sysfs, sysfs_root: {FIXTURE}, interval_s: 0.2, log: {{dir: null}}}}\n"
    )
    command = [sys.executable, "-m", "edgegs", "run", str(folder / "edgegs.yaml")]
    with child(command, folder / "log") as process:

        def draws() -> bool:
            assert process.poll() is None, (folder / "log").read_text()
            with contextlib.suppress(OSError):
                return b"edgegs_power_watts{" in get(f"http://127.0.0.1:{port}/metrics")
            return False

        until(draws)
        yield port


@needs_promtool
def test_the_exposition_of_a_running_daemon_is_clean(daemon: int) -> None:
    text = get(f"http://127.0.0.1:{daemon}/metrics")
    done = subprocess.run([str(PROMTOOL), "check", "metrics"], input=text, capture_output=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    for family in ("edgegs_stage_duration_seconds_bucket", "edgegs_energy_joules_total", "edgegs_build_info"):
        assert family.encode() in text


def test_the_names_that_dashboards_rest_on(daemon: int) -> None:
    """Names are an interface: a renamed series empties people's dashboards and silences their alarms."""
    text = get(f"http://127.0.0.1:{daemon}/metrics").decode("utf-8")
    # what only some machines have, or only some runs see, stands in the golden text of tests/test_metrics.py
    text += (ROOT / "tests" / "data" / "metrics.txt").read_text(encoding="utf-8")
    for name, labels in (
        ("frames_rendered_total", ""),
        ("frames_dropped_total", "output,reason"),
        ("frame_duration_seconds_bucket", "le"),
        ("stage_duration_seconds_bucket", "le,stage"),
        ("power_watts", "rail"),
        ("energy_joules_total", "rail"),
        ("temperature_celsius", "sensor"),
        ("clock_hertz", "domain"),
        ("throttle_events_total", "cause"),
        ("output_up", "output"),
        ("output_reconnects_total", "output"),
        ("scene_gaussians", ""),
        ("gpu_memory_bytes", ""),
        ("sensor_read_success", "sensor"),
        ("build_info", "backend,device,image,variant,version"),
    ):
        found = re.findall(rf"(?m)^edgegs_{name}(?:{{(.*)}})? [-+.\w]+$", text)
        assert labels in {",".join(sorted(re.findall(r"(\w+)=", one))) for one in found}, name


@needs_promtool
def test_promtool_would_complain(daemon: int) -> None:
    text = get(f"http://127.0.0.1:{daemon}/metrics").replace(b"edgegs_frames_rendered_total", b"edgegs_frames_rendered")
    done = subprocess.run([str(PROMTOOL), "check", "metrics"], input=text, capture_output=True, timeout=30)
    assert done.returncode != 0


@needs_prometheus
def test_prometheus_scrapes_a_daemon_found_through_a_file(daemon: int, tmp_path: Path) -> None:
    """The fleet's own configuration, with a shorter interval and this daemon in its list of boards."""
    config = yaml.safe_load((ROOT / "jetson" / "prometheus" / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "200ms", "scrape_timeout": "200ms"}
    job = config["scrape_configs"][0]
    del config["scrape_configs"][1:]
    (tmp_path / "token").write_text("any")
    job["authorization"]["credentials_file"] = str(tmp_path / "token")
    (tmp_path / "targets").mkdir()
    (target,) = yaml.safe_load((ROOT / "jetson/prometheus/targets/edgegs.example.yml").read_text())[:1]
    target["targets"] = [f"127.0.0.1:{daemon}"]
    (tmp_path / "targets" / "edgegs.yml").write_text(yaml.safe_dump([target]))
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    port = free_port()
    command = [str(PROMETHEUS), f"--config.file={tmp_path / 'prometheus.yml'}", "--log.level=warn"]
    command += [f"--storage.tsdb.path={tmp_path / 'data'}", f"--web.listen-address=127.0.0.1:{port}"]
    with child(command, tmp_path / "log") as process:

        def ask(expression: str) -> List[Dict[str, Any]]:
            asked = urllib.parse.urlencode({"query": expression})
            return json.loads(get(f"http://127.0.0.1:{port}/api/v1/query?{asked}"))["data"]["result"]

        def query(expression: str) -> List[Dict[str, Any]]:
            assert process.poll() is None, (tmp_path / "log").read_text()
            try:
                return ask(expression)
            except OSError:
                return []  # it still starts

        stage = "edgegs_stage_duration_seconds"
        stages = until(lambda: query(f"rate({stage}_sum[5s]) / rate({stage}_count[5s]) > 0"))
        assert {one["metric"]["stage"] for one in stages} >= {"project", "sort", "rasterize"}
        assert all(0 < float(one["value"][1]) < 1 for one in stages)
        (watts,) = query('edgegs_power_watts{rail="POM_5V_IN"}')
        assert watts["metric"]["instance"] == "lobby"
        assert watts["metric"]["site"] == "berlin"
        assert float(watts["value"][1]) == pytest.approx(_fixture_watts(), rel=0.01)
        joules = until(lambda: query(
            "rate(edgegs_energy_joules_total[5s]) / on (instance) group_left () rate(edgegs_frames_rendered_total[5s])"
        ))  # fmt: skip
        assert {one["metric"]["rail"] for one in joules} >= {"POM_5V_IN"}
        # a series that began with its first event would show no growth
        quiet = query('increase(edgegs_throttle_events_total{cause="gpu_clock"}[5s])')
        assert [float(one["value"][1]) for one in quiet] == [0.0]
        assert query("up") != []
        assert all(one["value"][1] == "1" for one in query("up"))
        # labels that do not match are found only when a query is run
        shown = set()
        for panel in json.loads((ROOT / "jetson" / "grafana" / "edgegs.json").read_text(encoding="utf-8"))["panels"]:
            for target in panel.get("targets", ()):
                if ask(target["expr"].replace("$__rate_interval", "5s").replace("$instance", "lobby")):
                    shown.add(panel["title"])
        assert shown >= {"Power of all", "Frame time", "Where a frame's time goes", "Energy a frame", "Throttling"}
        assert not shown & {"Step of quality", "What is wrong now"}


def _fixture_watts() -> float:
    """The Nano's input rail as the fixture has it."""
    for name in FIXTURE.rglob("rail_name_*"):
        if name.read_text().strip() == "POM_5V_IN":
            channel = name.name.rpartition("_")[2]
            return float((name.parent / f"in_power{channel}_input").read_text()) / 1000
    raise AssertionError("the fixture has no POM_5V_IN")


@needs_promtool
def test_the_fleets_configuration_is_valid(tmp_path: Path) -> None:
    shutil.copytree(str(ROOT / "jetson" / "prometheus"), str(tmp_path / "prometheus"))
    folder = tmp_path / "prometheus"
    for kind in ("edgegs", "node"):
        (folder / "targets" / f"{kind}.example.yml").rename(folder / "targets" / f"{kind}.yml")
    (folder / "token").write_text("x")
    text = (folder / "prometheus.yml").read_text().replace("/etc/prometheus/edgegs.token", str(folder / "token"))
    (folder / "prometheus.yml").write_text(text)
    command = [str(PROMTOOL), "check", "config", str(folder / "prometheus.yml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCESS" in done.stdout
    assert "WARN" not in done.stdout


# ---- the textfile ----------------------------------------------------------------------------------------------


def test_a_textfile_is_written_whole_again_and_again_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "edgegs.prom"
    calls: List[int] = []

    def render() -> bytes:
        calls.append(len(calls))
        return b"edgegs_frames_rendered_total %d\n" % len(calls) * 2000

    one = Textfile(str(path), render, interval_s=0.1)
    one.start()
    until(path.exists)
    seen = set()
    limit = time.monotonic() + WAIT
    while len(calls) < 4:
        lines = path.read_bytes().splitlines()
        assert len(lines) == 2000
        assert len(set(lines)) == 1  # never a part of one and a part of the next
        seen.add(lines[0])
        assert time.monotonic() < limit
    one.stop()
    assert len(seen) >= 2
    assert os.listdir(str(tmp_path)) == []
    assert one.error is None
    assert not [thread for thread in threading.enumerate() if thread.name == "edgegs-textfile"]


def test_the_file_beside_it_is_not_read_by_the_collector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """node_exporter reads *.prom; what is being written must not be called that."""
    used: List[str] = []

    def keep(path: str, content: bytes, temporary: str, mode: int) -> None:
        used.append(temporary)

    monkeypatch.setattr(textfile, "replace", keep)
    assert Textfile(str(tmp_path / "edgegs.prom"), lambda: b"x 1\n").write()
    (name,) = used
    assert os.path.dirname(name) == str(tmp_path)
    assert not re.fullmatch(r".*\.prom", name)


def test_a_disk_that_answers_after_the_end_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(textfile, "_STOP_S", 0.01)
    begun, answers = threading.Event(), threading.Event()

    def render() -> bytes:
        begun.set()
        assert answers.wait(WAIT)
        return b"x 1\n"

    one = Textfile(str(tmp_path / "edgegs.prom"), render)
    one.start()
    assert begun.wait(WAIT)
    one.stop()
    answers.set()
    one._thread.join(WAIT)
    assert os.listdir(str(tmp_path)) == []


def test_a_textfile_is_for_the_collectors_user_too(tmp_path: Path) -> None:
    """node_exporter is another user; a service with UMask=0077 must not lock it out."""
    path = tmp_path / "edgegs.prom"
    before = os.umask(0o077)
    try:
        assert Textfile(str(path), lambda: b"x 1\n").write()
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_stepped_clock_cannot_stretch_the_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's own waits are deadlines of the wall clock before 3.11; see ``Wakeup``."""
    naps: List[float] = []
    real = Wakeup.wait
    monkeypatch.setattr(Wakeup, "wait", lambda self, seconds: (naps.append(seconds), real(self, seconds))[1])
    one = Textfile(str(tmp_path / "edgegs.prom"), lambda: b"x 1\n", interval_s=0.1)
    one.start()
    until(lambda: len(naps) >= 2)
    one.stop()
    assert set(naps) == {0.1}


def test_a_textfile_that_fails_is_tried_again_and_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "later"
    answers: List[Any] = [b"x 1\n"]

    def render() -> bytes:
        if isinstance(answers[0], Exception):
            raise answers[0]
        return answers[0]

    one = Textfile(str(folder / "edgegs.prom"), render)
    with caplog.at_level("INFO"):
        assert not one.write()
        assert not one.write()
        assert len(caplog.records) == 1
        assert "No such file or directory" in str(one.error)
        folder.mkdir()
        assert one.write()
        assert (one.error, len(caplog.records)) == (None, 2)
        answers[0] = RuntimeError("a sensor")
        assert not one.write()
        assert "RuntimeError: a sensor" in str(one.error)
    assert (folder / "edgegs.prom").read_bytes() == b"x 1\n"  # the old one stays whole
    one.stop()  # never started
    assert os.listdir(str(folder)) == []


def test_names_that_the_collector_would_not_read() -> None:
    assert textfile.fault("/var/lib/node_exporter/edgegs.prom") is None
    assert "end in .prom" in str(textfile.fault("/var/lib/node_exporter/edgegs.txt"))
