"""jetson/power-mode.sh, and a sweep that has it switch power modes, on a made-up Jetson: stand-ins for nvpmodel and
jetson_clocks that remember what they were told."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
import test_sweep
from test_sweep import of, put, write

from edgegs.backends.host import HostBackend
from edgegs.bench import sweep_modes
from edgegs.bench.campaign import load_campaign
from edgegs.bench.sweep import Hooks, Places, Sweep
from edgegs.bench.sweep_modes import PowerModes, helper_command
from edgegs.bench.sweep_results import Results
from edgegs.errors import DeviceError

SCRIPT = Path(__file__).resolve().parent.parent / "jetson" / "power-mode.sh"
board = test_sweep.board

#: As the real ones: -q ends with the number; -m asks before a reboot (mode 3); --store asks before it overwrites.
NVPMODEL = """#!/bin/sh
echo "nvpmodel $*" >>"$JETSON/log"
case $1 in
    -q) printf 'NVPM WARN: fan mode is not set!\\nNV Power Mode: X\\n%s\\n' "$(cat "$JETSON/mode")" ;;
    -m)
        if [ "$2" = 3 ]; then
            echo "Reboot required. DO YOU WANT TO REBOOT NOW? enter YES/yes to confirm:"
            read -r answer && [ "$answer" = yes ] && echo reboot >>"$JETSON/log"
            exit 0
        fi
        [ "$2" -le 2 ] || exit 1
        [ ! -e "$JETSON/stuck" ] || exit 1
        echo "$2" >"$JETSON/mode"
        printf 'pmode:%04d\\n' "$2" >"$JETSON/status"
        echo free >"$JETSON/clocks" ;;
esac
"""
CLOCKS = """#!/bin/sh
echo "jetson_clocks $*" | sed "s|$JETSON||" >>"$JETSON/log"
case ${1:-} in
    --store) if [ -e "$2" ]; then read -r answer || exit 1; fi; cat "$JETSON/clocks" >"$2" ;;
    --restore) cat "$2" >"$JETSON/clocks" ;;
    *) echo pinned >"$JETSON/clocks" ;;
esac
"""


class Jetson:
    """A folder with the two tools, what they did, and the helper's environment."""

    def __init__(self, tmp_path):
        self.root = tmp_path / "jetson"
        self.bin = self.root / "bin"
        self.bin.mkdir(parents=True)
        for name, text in (("nvpmodel", NVPMODEL), ("jetson_clocks", CLOCKS), ("id", "#!/bin/sh\necho 0\n")):
            (self.bin / name).write_text(text)
            (self.bin / name).chmod(0o755)
        self.set("mode", "0")
        self.set("clocks", "free")
        self.set("status", "pmode:0000")
        self.set("log", "")
        self.state = self.root / "var/lib/edgegs-power-mode"
        self.environ = dict(
            os.environ,
            PATH=f"{self.bin}:/usr/bin:/bin",
            JETSON=str(self.root),
            EDGEGS_POWER_MODE_ROOT=str(self.root),
        )

    def set(self, name, text):
        (self.root / name).write_text(text + "\n")

    def get(self, name):
        return (self.root / name).read_text().strip()

    def now(self):
        return self.get("mode"), self.get("clocks")

    def call(self, *arguments):
        """Run the helper to its end -> (status, what it said, what it did)."""
        (self.root / "log").write_text("")
        done = subprocess.run(
            ["sh", str(SCRIPT), *arguments], env=self.environ, stdin=subprocess.DEVNULL, capture_output=True, timeout=30
        )
        assert done.stdout == b"" or "--help" in arguments
        did = [line for line in self.get("log").splitlines() if line != "nvpmodel -q"]
        return done.returncode, (done.stdout + done.stderr).decode(), did


@pytest.fixture
def jetson(tmp_path):
    return Jetson(tmp_path)


def test_a_mode_is_taken_and_what_was_there_comes_back(jetson):
    jetson.set("clocks", "mine")
    status, said, did = jetson.call("--set", "1")
    assert (status, jetson.now()) == (0, ("1", "free"))
    assert "found mode 0" in said
    assert "$ nvpmodel -m 1" in said, "every command is shown before it is run"
    assert did == ["jetson_clocks --store /var/lib/edgegs-power-mode/clocks", "nvpmodel -m 1"]
    assert jetson.call("--set", "2")[0] == 0
    assert "mode 0 is to be restored" in jetson.call("--show")[1]
    status, said, did = jetson.call("--restore")
    assert (status, jetson.now()) == (0, ("0", "mine"))
    assert did == ["nvpmodel -m 0", "jetson_clocks --restore /var/lib/edgegs-power-mode/clocks"]
    assert not jetson.state.exists()
    status, said, did = jetson.call("--restore")
    assert (status, did) == (0, [])
    assert "nothing is to be restored" in said


def test_pinned_clocks_are_let_go_before_the_mode_changes(jetson):
    assert jetson.call("--set", "1", "--pin")[0] == 0
    assert jetson.now() == ("1", "pinned")
    status, _, did = jetson.call("--set", "2", "--pin")
    folder = "/var/lib/edgegs-power-mode"
    assert did == [
        f"jetson_clocks --restore {folder}/pinned",
        "nvpmodel -m 2",
        f"jetson_clocks --store {folder}/pinned",
        "jetson_clocks",
    ]
    assert (status, jetson.now()) == (0, ("2", "pinned"))
    assert jetson.call("--restore")[0] == 0
    assert jetson.now() == ("0", "free")


def test_a_dry_run_shows_and_changes_nothing(jetson):
    (jetson.bin / "id").write_text("#!/bin/sh\necho 1000\n")
    status, said, did = jetson.call("--dry-run", "--set", "1", "--pin")
    assert (status, did, jetson.now()) == (0, [], ("0", "free"))
    assert "$ nvpmodel -m 1" in said
    assert "$ jetson_clocks" in said
    assert not jetson.state.exists()


@pytest.mark.parametrize("mode", ["3", "7"])
def test_a_mode_that_the_board_does_not_take(jetson, mode):
    status, said, did = jetson.call("--set", mode)
    assert status == 1
    assert f"the board is in mode 0, not {mode}: there is no such mode, or it needs a reboot" in said
    assert "reboot" not in did
    assert jetson.call("--restore")[0] == 0


def test_what_cannot_be_restored_is_kept_for_another_try(jetson):
    assert jetson.call("--set", "1", "--pin")[0] == 0
    jetson.set("stuck", "")
    status, said, _ = jetson.call("--restore")
    assert (status, jetson.get("mode")) == (1, "1")
    assert "the board is in mode 1, not 0" in said
    (jetson.root / "stuck").unlink()
    assert jetson.call("--restore")[0] == 0
    assert jetson.now() == ("0", "free")


def test_who_may_not_and_what_is_not_understood(jetson):
    for arguments in (
        (),
        ("--set",),
        ("--set", "x"),
        ("--set", "1;reboot"),
        ("--show", "--pin"),
        ("--set", "1", "--restore"),
        ("--dry-run", "--serve"),
        ("--force",),
    ):
        assert jetson.call(*arguments)[0] == 2, arguments
    assert "--restore" in jetson.call("--help")[1]
    (jetson.bin / "id").write_text("#!/bin/sh\necho 1000\n")
    status, said, did = jetson.call("--set", "1")
    assert (status, did) == (77, [])
    assert "this needs root: sudo" in said
    (jetson.bin / "nvpmodel").unlink()
    assert "power modes are a Jetson's" in jetson.call("--show")[1]


def test_a_board_whose_mode_is_not_known_is_left_alone(jetson):
    (jetson.bin / "nvpmodel").write_text("#!/bin/sh\necho 'NVPM ERROR: cannot open'\n")
    status, said, did = jetson.call("--set", "1")
    assert (status, did) == (1, [])
    assert "names no mode" in said


def test_clocks_cannot_be_pinned_without_jetson_clocks(jetson):
    (jetson.bin / "jetson_clocks").unlink()
    status, said, did = jetson.call("--set", "1", "--pin")
    assert (status, did) == (1, [])
    assert "no jetson_clocks here" in said
    assert jetson.call("--set", "1")[0] == 0
    assert jetson.call("--restore")[0] == 0


# ---- the sweep's side --------------------------------------------------------------------------------------


@pytest.fixture
def helper(jetson, monkeypatch):
    """The helper as the sweep starts it, as root on that Jetson."""
    for name in ("PATH", "JETSON", "EDGEGS_POWER_MODE_ROOT"):
        monkeypatch.setenv(name, jetson.environ[name])
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return helper_command()


def test_the_helper_restores_when_its_input_ends(jetson, helper):
    with PowerModes(helper, pin=True) as modes:
        modes.set(1)
        assert jetson.now() == ("1", "pinned")
        modes.set(1)
        modes.set(2)
        assert jetson.now() == ("2", "pinned")
    assert jetson.now() == ("0", "free")
    assert not jetson.state.exists()
    assert jetson.get("log").count("nvpmodel -m 1") == 1


def test_a_mode_that_fails_ends_the_sweep_with_the_cause(jetson, helper):
    with PowerModes(helper, pin=False) as modes:
        modes.set(1)
        with pytest.raises(DeviceError, match="power modes: the board is in mode 1, not 3"):
            modes.set(3)
    assert jetson.now() == ("0", "free")


def test_a_helper_that_was_killed_leaves_what_the_next_one_tells(jetson, helper):
    modes = PowerModes(helper, pin=False)
    modes.set(1)
    modes._process.send_signal(signal.SIGKILL)
    modes._process.wait()
    with pytest.raises(DeviceError, match="has ended"):
        modes.set(2)
    modes.close()
    with pytest.raises(DeviceError, match=r"an earlier run was not restored; run `sudo sh .*--restore` first"):
        PowerModes(helper, pin=False)
    assert jetson.get("mode") == "1"
    assert jetson.call("--restore")[0] == 0
    assert jetson.now() == ("0", "free")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGHUP])
def test_however_the_sweep_ends_the_mode_comes_back(jetson, number):
    """The helper's parent is killed; and what a terminal sends to all in it does not stop the helper."""
    parent = subprocess.Popen(
        ["sh", "-c", f"cat | sh '{SCRIPT}' --serve"],
        env=jetson.environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        bufsize=0,
    )
    assert parent.stdout.readline() == b"ok found mode 0\n"
    parent.stdin.write(b"set 1\n")
    assert parent.stdout.readline() == b"ok mode 1\n"
    if number == signal.SIGKILL:
        parent.kill()
    else:
        os.killpg(parent.pid, number)
    parent.stdin.close()
    assert parent.stdout.read() == b"ok restored mode 0\n"
    parent.stdout.close()
    parent.wait(30)
    assert jetson.now() == ("0", "free")


def test_words_that_it_does_not_know_change_nothing(jetson, helper):
    process = subprocess.Popen(helper, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    words = b"reboot\nset\nset 1 now\nset 1 pin x\nset 1;reboot\nset 123\n"
    answers = process.communicate(words, timeout=30)[0].splitlines()
    assert answers[0] == b"ok found mode 0"
    assert [answer.split()[0] for answer in answers[1:]] == [b"error"] * 6 + [b"ok"]
    assert "nvpmodel -m" not in jetson.get("log")


def test_where_no_mode_was_changed_nobody_is_told_to_restore_one(jetson, helper, caplog):
    (jetson.root / "bin" / "nvpmodel").unlink()
    with pytest.raises(DeviceError, match=r"^power modes: there is no nvpmodel here: power modes are a Jetson's"):
        PowerModes(helper, pin=False)
    assert caplog.records == []


def test_through_sudo_unless_this_is_root_and_only_where_it_is_there(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    command = helper_command()
    assert command[0] == "sudo"
    assert command[-3:] == ["/bin/sh", str(SCRIPT), "--serve"]
    with pytest.raises(DeviceError, match="cannot be started"):
        PowerModes(["/no/such/sudo"], pin=False)
    with pytest.raises(DeviceError, match="is sudo allowed"):
        PowerModes(["false"], pin=False)
    monkeypatch.setattr(sweep_modes, "shipped", lambda _: tmp_path)
    with pytest.raises(DeviceError, match="from a checkout of edgegs"):
        helper_command()


def test_a_sweep_over_two_modes(kernels, board, jetson, helper, tmp_path):
    path = write(tmp_path, power_modes="[0, 1]", pin_clocks="true")
    campaign = load_campaign(path)
    put(jetson.root / "nvpmodel.conf", "< POWER_MODEL ID=0 NAME=MAXN >\n< POWER_MODEL ID=1 NAME=5W >")
    places = Places(nvpmodel_status=str(jetson.root / "status"), nvpmodel_conf=str(jetson.root / "nvpmodel.conf"))
    header = {"settings": campaign.settings()}
    seen = []
    hooks = Hooks(progress=lambda *_: seen.append(jetson.now()))
    with contextlib.ExitStack() as stack:
        results = stack.enter_context(contextlib.closing(Results(campaign.out, campaign.sha256(), header)))
        backend = stack.enter_context(HostBackend(1))
        modes = stack.enter_context(PowerModes(helper, campaign.pin_clocks))
        assert Sweep(campaign, results, backend, modes, hooks=hooks, places=places).run() == "complete"
    assert jetson.now() == ("0", "free")
    assert {("0", "pinned"), ("1", "pinned")} <= set(seen)
    runs = of(tmp_path / "out", "run")
    names = {0: "0 (MAXN)", 1: "1 (5W)"}
    assert sorted(run["params"]["power_mode"] for run in runs) == [0, 0, 1, 1]
    for run in runs:
        assert run["board_power_mode"] == names[run["params"]["power_mode"]]
        assert "power_mode_changed" not in [one["code"] for one in run["reasons"]]
        assert f"-mode{run['params']['power_mode']}-" in run["run_id"]
    baselines = of(tmp_path / "out", "idle")
    assert {one["params"]["power_mode"] for one in baselines} == {0, 1}, "one for each mode"


def test_shellcheck():
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed (apt install shellcheck)")
    done = subprocess.run(["shellcheck", "-a", str(SCRIPT)], stdout=subprocess.PIPE, timeout=60)
    assert (done.returncode, done.stdout) == (0, b"")
