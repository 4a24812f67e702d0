"""What systemd is told: ready after a frame, alive only by frames, reloading, stopping."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import scenes

import edgegs.notify
from edgegs.notify import Notifier
from edgegs.scene import write_ply

ROOT = Path(__file__).resolve().parent.parent
WAIT = 20.0


class Manager:
    """systemd's end of the socket."""

    def __init__(self, address):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address)
        self.socket.settimeout(WAIT)
        self.heard = []

    def next(self):
        """The next message, as a list of its lines."""
        self.heard.append(self.socket.recv(65536).decode().split("\n"))
        return self.heard[-1]

    def until(self, line):
        """Read on until a message has this line; returns that message."""
        while True:
            message = self.next()
            if line in message:
                return message

    def pending(self):
        self.socket.setblocking(False)
        found = []
        try:
            while True:
                found.append(self.socket.recv(65536).decode())
        except BlockingIOError:
            return found
        finally:
            self.socket.settimeout(WAIT)


@pytest.fixture
def manager(tmp_path):
    made = Manager(str(tmp_path / "notify"))
    yield made
    made.socket.close()


def test_without_a_socket_nothing_happens():
    notifier = Notifier({})
    assert not notifier.is_heard
    for call in (notifier.alive, notifier.progress, notifier.reloading, notifier.close):
        call()
    notifier.ready("x")
    notifier.status("x")
    notifier.stopping("x")
    assert not notifier.is_due()


@pytest.mark.parametrize("address", ["", "relative", "/nowhere/there", "@nobody-listens-here"])
def test_a_socket_that_nobody_listens_at_is_no_fault(address, caplog):
    notifier = Notifier({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "1"})
    notifier.ready("x")
    notifier.alive()
    assert len(caplog.records) == (1 if address[:1] in "/@" and address else 0)


def test_messages(manager, tmp_path):
    notifier = Notifier({"NOTIFY_SOCKET": str(tmp_path / "notify")})
    notifier.reloading()  # not before it is ready
    notifier.ready("drawing\nREADY=0")
    notifier.ready("drawing")
    notifier.reloading()
    notifier.reloading()
    notifier.ready("drawing")
    notifier.stopping("SIGTERM")
    notifier.close()
    notifier.stopping("SIGTERM")  # nobody hears it
    assert manager.next() == ["READY=1", "STATUS=drawing READY=0"]
    reloading, moment = manager.next()
    assert reloading == "RELOADING=1"
    assert 0 <= time.monotonic_ns() // 1000 - int(moment.split("=")[1]) < WAIT * 1e6
    assert manager.next() == ["READY=1", "STATUS=drawing"]
    assert manager.next() == ["STOPPING=1", "STATUS=SIGTERM"]
    assert manager.pending() == []


def test_an_abstract_socket():
    name = f"edgegs-test-{os.getpid()}"
    manager = Manager("\0" + name)
    notifier = Notifier({"NOTIFY_SOCKET": "@" + name})
    notifier.status("hello")
    notifier.close()
    assert manager.next() == ["STATUS=hello"]
    manager.socket.close()


class Clock:
    now = 100.0

    def monotonic(self):
        return self.now


def test_the_watchdog_is_pinged_at_half_of_its_time_and_only_when_alive(manager, tmp_path, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(edgegs.notify, "time", clock)
    environ = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}
    notifier = Notifier(environ)
    pings = []
    for _ in range(600):
        clock.now += 0.1
        notifier.alive()
        pings += manager.pending()
    assert pings == ["WATCHDOG=1"] * 4
    notifier.close()
    for wrong in ({"WATCHDOG_PID": "1"}, {"WATCHDOG_USEC": "x"}, {"WATCHDOG_USEC": "0"}):
        other = Notifier({**environ, **wrong})
        other.alive()
        other.close()
    assert manager.pending() == []


def test_loading_is_given_time_while_it_gets_on_and_not_for_ever(manager, tmp_path, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(edgegs.notify, "time", clock)
    notifier = Notifier({"NOTIFY_SOCKET": str(tmp_path / "notify")})
    sent = []
    for _ in range(4000):
        clock.now += 1.0
        notifier.progress()
        sent += manager.pending()
    notifier.close()
    assert sent == ["EXTEND_TIMEOUT_USEC=30000000"] * 360


@pytest.fixture
def service(tmp_path, manager, kernels):
    """``edgegs run`` as systemd would start it."""
    write_ply(str(tmp_path / "cloud.ply"), scenes.cloud(300))
    config = tmp_path / "edgegs.yaml"
    started = []

    def start(outputs='["null:"]', extra=""):
        config.write_text(
            "scene: {path: cloud.ply}\ncamera: {width: 96, height: 80}\nrender: {target_fps: 50}\n"
            f"outputs: {outputs}\ntelemetry: {{interval_s: 0.2, log: {{dir: runs, flush_s: 0}}}}\n{extra}"
        )
        (tmp_path / "run").mkdir(exist_ok=True)
        process = subprocess.Popen(
            [sys.executable, "-m", "edgegs", "run", str(config)],
            cwd=str(ROOT),
            env=dict(
                os.environ,
                NOTIFY_SOCKET=str(tmp_path / "notify"),
                WATCHDOG_USEC="400000",
                RUNTIME_DIRECTORY=str(tmp_path / "run"),
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    start.config = config
    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_service_from_start_to_stop(service, manager, tmp_path):
    process = service()
    manager.until("READY=1")
    assert not any(line.startswith(("RELOADING", "STOPPING")) for message in manager.heard for line in message)
    manager.until("WATCHDOG=1")
    manager.until("WATCHDOG=1")
    process.send_signal(signal.SIGHUP)
    manager.until("RELOADING=1")
    manager.until("READY=1")
    good = service.config.read_text()
    service.config.write_text("scene: [")
    process.send_signal(signal.SIGHUP)
    manager.until("RELOADING=1")
    manager.until("READY=1")
    service.config.write_text(good)
    process.send_signal(signal.SIGUSR1)
    status = tmp_path / "run" / "status.json"
    until = time.monotonic() + WAIT
    while not status.exists() and time.monotonic() < until:
        time.sleep(0.01)
    assert '"fps"' in status.read_text()
    process.send_signal(signal.SIGTERM)
    manager.until("STOPPING=1")
    err = process.communicate(timeout=WAIT)[1]
    assert process.returncode == 0, err
    assert err.count("the configuration in use stays: ") == 1
    assert "Traceback" not in err


def test_it_is_not_ready_before_a_frame_is_out(service, manager, tmp_path):
    process = service('["file:///nowhere/at/all/out.png"]')
    # alive, because frames are drawn; but nobody has got one
    for _ in range(5):
        manager.until("WATCHDOG=1")
    assert not any("READY=1" in message for message in manager.heard)
    process.send_signal(signal.SIGTERM)
    manager.until("STOPPING=1")


def test_a_loop_that_hangs_stops_the_pings(service, manager):
    process = service()
    manager.until("READY=1")
    manager.until("WATCHDOG=1")
    process.send_signal(signal.SIGSTOP)
    time.sleep(0.1)
    manager.pending()
    time.sleep(0.6)
    assert manager.pending() == []
    process.send_signal(signal.SIGCONT)
    manager.until("WATCHDOG=1")
