"""The service under a real systemd, booted in a minimal Debian: ready, watched, restarted, reloaded, stopped."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time

import pytest
import rootfs

pytestmark = pytest.mark.slow

UNIT = "edgegs.service"
CONFIG = """\
scene: {path: /var/lib/edgegs/scenes/room.ply}
camera: {width: 64, height: 48}
render: {backend: host, target_fps: 20}
outputs: ["file:///var/lib/edgegs/latest.jpg", "mjpeg://127.0.0.1:8080"]
telemetry: {log: {dir: /var/lib/edgegs/runs}}
"""
#: The waits of the unit, shortened.
SHORT = "[Service]\nWatchdogSec=3\nRestartSec=1\n"


class Machine:
    """A booted Debian with edgegs installed."""

    def __init__(self, root):
        self.root = root
        options = ["--quiet", "--boot", "--register=no", "--keep-unit", "--machine=edgegs-test", "--console=pipe"]
        self.process = subprocess.Popen(
            ["systemd-nspawn", "-D", str(root), *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.init = None
        wait("its init", self._find_init)
        # not is-system-running, which waits for edgegs, too
        wait("its basic target", lambda: self.run("systemctl", "is-active", "basic.target").stdout.strip() == "active")

    def _find_init(self):
        assert self.process.poll() is None, "systemd-nspawn ended"
        done = subprocess.run(["pgrep", "-P", str(self.process.pid)], capture_output=True, text=True)
        pids = done.stdout.split()
        self.init = pids[0] if pids else None
        return self.init is not None

    def run(self, *command, timeout_s=60):
        return subprocess.run(
            ["nsenter", "-t", self.init, "-a", *command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    def show(self, *names):
        """Properties of the unit, by name; one alone as it is."""
        done = self.run("systemctl", "show", UNIT, "--property=" + ",".join(names))
        found = dict(line.split("=", 1) for line in done.stdout.splitlines())
        return found[names[0]] if len(names) == 1 else found

    def state(self):
        return self.show("ActiveState")

    def configure(self, text):
        (self.root / "etc/edgegs/edgegs.yaml").write_text(text)

    def ask(self):
        """What `edgegs status` says inside."""
        done = self.run("edgegs", "status", "--json")
        return json.loads(done.stdout) if done.returncode == 0 else {}

    def journal(self):
        return self.run("journalctl", "--unit", UNIT, "--output=cat", "--no-pager").stdout

    def signal(self, number):
        self.run("kill", f"-{int(number)}", self.show("MainPID"))

    def close(self):
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def wait(what, condition, timeout_s=60):
    until = time.monotonic() + timeout_s
    while True:
        try:
            if condition():
                return
        except (subprocess.TimeoutExpired, KeyError, ValueError):
            pass
        assert time.monotonic() < until, f"{what} never came"
        time.sleep(0.2)


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    root = rootfs.fresh(tmp_path_factory.mktemp("systemd"))
    done = rootfs.run(root, "/src/jetson/install.sh", "--yes", "--offline-wheels", "/wheels", "--no-gstreamer")
    assert done.returncode in (0, 3), done.stdout
    drop_in = root / "etc/systemd/system/edgegs.service.d"
    drop_in.mkdir(exist_ok=True)
    (drop_in / "test.conf").write_text(SHORT)
    # nobody gets a frame of this one: its folder is missing
    nowhere = CONFIG.replace(', "mjpeg://127.0.0.1:8080"', "").replace("latest.jpg", "no/such/latest.jpg")
    (root / "etc/edgegs/edgegs.yaml").write_text(nowhere)
    made = Machine(root)
    yield made
    made.close()
    rootfs.remove_all([root])


@pytest.fixture
def running(machine):
    """The service, with the good configuration, active."""
    machine.configure(CONFIG)
    if machine.state() != "active" or machine.ask().get("state") != "drawing":
        machine.run("systemctl", "restart", "--no-block", UNIT)
    wait("a service that is active", lambda: machine.state() == "active" and machine.ask().get("frames", 0) > 0)
    return machine


def test_it_is_ready_only_after_a_frame_is_out(machine):
    """First, because it needs a service that has just been booted."""
    wait("frames that are drawn", lambda: "retrying" in machine.journal())
    time.sleep(3)
    assert machine.show("ActiveState", "SubState") == {"ActiveState": "activating", "SubState": "start"}
    assert machine.show("NRestarts") == "0", "it is alive: the watchdog leaves it alone"
    machine.configure(CONFIG)
    machine.run("kill", "-HUP", machine.show("MainPID"))
    wait("a service that is active", lambda: machine.state() == "active")
    assert "drawing" in machine.show("StatusText")
    assert (machine.root / "var/lib/edgegs/latest.jpg").is_file()


def test_the_unit_is_well_formed_and_hardened(running):
    verified = running.run("systemd-analyze", "verify", "/etc/systemd/system/" + UNIT)
    assert (verified.returncode, verified.stderr) == (0, "")
    shown = running.run("systemd-analyze", "security", "--no-pager", UNIT).stdout
    score = float(re.search(r"Overall exposure level for edgegs.service: ([\d.]+)", shown).group(1))
    assert score <= 2.0, shown
    assert running.run("stat", "-c", "%U", f"/proc/{running.show('MainPID')}").stdout.strip() == "edgegs"


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_it_is_restarted_when_it_hangs_and_when_it_is_killed(running, number):
    before = running.show("MainPID", "NRestarts")
    running.signal(number)
    wait("a restart", lambda: int(running.show("NRestarts")) > int(before["NRestarts"]))
    wait("a service that is active", lambda: running.state() == "active" and running.ask().get("frames", 0) > 0)
    assert running.show("MainPID") != before["MainPID"]


def test_reload_takes_a_good_file_and_refuses_a_bad_one(running):
    process = running.show("MainPID")
    running.configure(CONFIG.replace("width: 64", "width: 80"))
    assert running.run("systemctl", "reload", UNIT).returncode == 0
    wait("the new size", lambda: running.ask().get("width") == 80)
    running.configure("scene: [")
    running.run("systemctl", "reload", UNIT)
    wait("a refusal", lambda: running.ask()["last_reload"] and not running.ask()["last_reload"]["successful"])
    assert running.ask()["width"] == 80
    assert running.state() == "active"
    assert running.show("MainPID") == process
    assert "the configuration in use stays" in running.journal()


def test_it_stops_within_ten_seconds(running):
    began = time.monotonic()
    assert running.run("systemctl", "stop", UNIT).returncode == 0
    assert time.monotonic() - began < 10
    assert running.show("ActiveState", "Result", "ExecMainStatus") == {
        "ActiveState": "inactive",
        "Result": "success",
        "ExecMainStatus": "0",
    }


def test_a_wrong_configuration_ends_it_once(running):
    restarts = running.show("NRestarts")
    running.configure("scene: {path: a.ply}\nrendr: {}\n")
    running.run("systemctl", "restart", "--no-block", UNIT)
    wait("the end of it", lambda: running.state() == "failed")
    time.sleep(4)
    assert running.show("ActiveState", "ExecMainStatus") == {"ActiveState": "failed", "ExecMainStatus": "78"}
    assert int(running.show("NRestarts")) <= int(restarts)
