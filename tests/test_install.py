"""jetson/install.sh on made-up machines."""

from __future__ import annotations

import fcntl
import re
import shutil
import subprocess

import install_support
import pytest
from install_support import CHECKOUT, KILLED, MACHINES, debian, desktop, nano, orin

UNIT = "etc/systemd/system/edgegs.service"
DROPINS = "etc/systemd/system/edgegs.service.d"
ENVIRONMENT = "etc/edgegs/environment"


@pytest.fixture(params=sorted(MACHINES))
def machine(request, tmp_path):
    return MACHINES[request.param](tmp_path)


def dropins(machine):
    return sorted(path.name for path in (machine.root / DROPINS).iterdir())


def only(calls, part):
    (found,) = [call for call in calls if part in call]
    return found


# ---- on every machine


def test_a_dry_run_changes_nothing_and_needs_no_root(machine):
    machine.write(machine.state / "uid", "1000")
    before = machine.tree()
    done = machine.run("--dry-run", "--v4l2loopback", "--kiosk", "--csi", "--swap", "2G")
    assert machine.tree() == before
    assert machine.changes() == []
    assert "$ apt-get" in done.stdout
    assert "/opt/edgegs/venv" in done.stdout
    assert "nothing was changed" in done.stdout


def test_it_installs_and_a_second_run_changes_nothing(machine):
    machine.run("--yes")
    assert machine.calls()[-1] == "edgegs doctor"
    before = machine.tree()
    assert (machine.root / "var/lib/edgegs/scenes/room.ply").is_file()
    assert "ExecStart=/opt/edgegs/venv/bin/edgegs run /etc/edgegs/edgegs.yaml" in machine.text(UNIT)
    done = machine.run("--yes")
    assert "nothing was changed" in done.stdout
    assert machine.changes() == []
    assert machine.tree() == before


def test_killed_at_every_command_it_ends_as_if_nothing_had_been(tmp_path):
    machine = nano(tmp_path)
    options = ("--yes", "--v4l2loopback", "--swap", "2G", "--kiosk")
    machine.write(machine.state / "kill-once", "")
    runs = 0
    while machine.run(*options, check=None).returncode == KILLED:
        runs += 1
        assert runs < 80
    assert runs > 15
    machine.run(*options)
    ended = machine.tree()

    other = nano(tmp_path / "other")
    other.run(*options)
    clean = {name: words.replace(str(tmp_path / "other"), str(tmp_path)) for name, words in other.tree().items()}
    assert ended == clean


@pytest.mark.parametrize("make", [nano, desktop])
def test_uninstalling_keeps_what_is_the_users_and_purging_keeps_nothing(make, tmp_path):
    machine = make(tmp_path)
    before = machine.tree()
    machine.run("--yes", "--swap", "1G", "--kiosk")
    machine.write(machine.root / "var/lib/edgegs/runs/one.jsonl", "{}")
    machine.run("--uninstall")
    left = set(machine.tree()) - set(before)
    kept = {"etc/edgegs", "etc/edgegs/edgegs.yaml", ENVIRONMENT, "var/lib/edgegs"}
    kept |= {f"var/lib/edgegs/{name}" for name in ("scenes", "runs", "scenes/room.ply", "runs/one.jsonl")}
    assert {name for name in left if "edgegs" in name} == kept
    assert machine.text("etc/fstab") == "/dev/root / ext4\n"
    machine.run("--uninstall", "--purge")
    gone = {name for name in set(machine.tree()) - set(before) if "edgegs" in name}
    assert not gone
    assert machine.text("etc/passwd") == "root:x:0:0\n"
    assert machine.run("--uninstall").returncode == 0  # twice is no error


# ---- the Nano


def test_nano_gets_python_38_a_newer_pip_and_its_own_kernels(tmp_path):
    machine = nano(tmp_path)
    done = machine.run("--yes")
    calls = machine.calls()
    installed = only(calls, "apt-get -o DPkg::Lock::Timeout=300 install")
    for package in ("python3.8", "python3.8-venv", "python3.8-dev", "gstreamer1.0-tools"):
        assert f" {package}" in installed
    assert "python3-venv" not in installed
    assert only(calls, "-m venv").startswith("python3.8 ")
    pip = [call for call in calls if "pip install" in call]
    assert pip[0].endswith("--upgrade pip>=21.3,<=25.0.1"), "pip 9 would take no wheels for aarch64"
    assert pip[1].endswith("pycuda>=2022.1")
    assert pip[2].endswith("/opt/edgegs/build[cuda]")
    builds = [call for call in calls if call.startswith("edgegs kernels build")]
    assert builds == ["edgegs kernels build --arch host", "edgegs kernels build --arch sm_53"]
    cuda = f"{machine.root}/usr/local/cuda-10.2"
    tegra = f"-L{machine.root}/usr/lib/aarch64-linux-gnu/tegra"
    environments = (machine.state / "environments").read_text().splitlines()
    assert f"{pip[1]}|ARMV8|{cuda}|{tegra}" in environments
    assert "compilers may be killed" in done.stdout
    assert "Jetson Linux 32.7.1" in done.stdout


def test_nano_unit_has_only_groups_and_keys_that_are_there(tmp_path):
    machine = nano(tmp_path)
    machine.run("--yes")
    assert dropins(machine) == ["10-board.conf", "20-tegra.conf", "30-old-systemd.conf"]
    assert "SupplementaryGroups=video\n" in machine.text(f"{DROPINS}/10-board.conf")
    environment = machine.text(ENVIRONMENT)
    assert "PATH=/usr/local/cuda-10.2/bin:/usr" in environment
    assert "OPENBLAS_CORETYPE=ARMV8\n" in environment
    assert "stubs" not in environment
    assert "chown root:edgegs" in "\n".join(machine.calls())
    assert oct((machine.root / "etc/edgegs/edgegs.yaml").stat().st_mode)[-4:] == "0640"


def test_a_library_that_must_come_first_is_found_and_kept(tmp_path):
    machine = nano(tmp_path)
    machine.write(machine.state / "static-tls", "")
    machine.run("--yes")
    assert "LD_PRELOAD=/usr/lib/libgomp.so.1\n" in machine.text(ENVIRONMENT)
    assert "nothing was changed" in machine.run("--yes").stdout


def test_nano_swap(tmp_path):
    machine = nano(tmp_path)
    machine.run("--yes", "--swap", "2G")
    assert f"fallocate -l 2048MiB {machine.root}/var/swap-edgegs" in machine.calls()
    assert machine.text("etc/fstab").endswith("/var/swap-edgegs none swap sw,nofail 0 0\n")
    machine.run("--uninstall")
    assert not (machine.root / "var/swap-edgegs").exists()
    assert "swap-edgegs" not in machine.text("proc/swaps")


def test_nano_virtual_camera_wants_the_headers_first(tmp_path):
    machine = nano(tmp_path)
    machine.run("--yes", "--v4l2loopback")
    calls = machine.calls()
    headers = calls.index(_first(calls, "install -y", "nvidia-l4t-kernel-headers"))
    module = calls.index(_first(calls, "install -y", "v4l2loopback-dkms"))
    assert headers < module
    assert "card_label=edgegs exclusive_caps=1" in machine.text("etc/modprobe.d/edgegs-v4l2loopback.conf")
    assert machine.text("etc/modules-load.d/edgegs.conf") == "v4l2loopback\n"
    machine.run("--yes")  # what was asked for once stays
    assert (machine.root / "etc/modules-load.d/edgegs.conf").exists()


def _first(calls, *parts):
    return next(call for call in calls if all(part in call for part in parts))


def test_no_headers_for_the_kernel_is_told_before_anything_is_compiled(tmp_path):
    machine = debian(tmp_path)
    done = machine.run("--yes", "--v4l2loopback", check=1)
    assert "no headers of kernel 6.1.0-22-amd64" in done.stdout
    assert not any("dkms" in call for call in machine.calls())


# ---- others


def test_orin_takes_its_python_jtop_of_the_same_version_and_unknown_devices(tmp_path):
    machine = orin(tmp_path)
    machine.run("--yes", "--csi")
    calls = machine.calls()
    assert only(calls, "-m venv").startswith("python3 ")
    assert only(calls, "jetson-stats").endswith("jetson-stats==4.2.12")
    assert "edgegs kernels build --arch sm_87" in calls
    board = machine.text(f"{DROPINS}/10-board.conf")
    assert "SupplementaryGroups=video render jtop\n" in board
    assert re.findall(r"DeviceAllow=(\S+)", board) == ["/dev/nvgpu/igpu0/unheard-of"]
    assert dropins(machine) == ["10-board.conf", "20-tegra.conf", "40-csi.conf"]
    assert "OPENBLAS" not in machine.text(ENVIRONMENT)


def test_desktop_gets_a_toolkit_nvml_and_kernels_for_its_gpu(tmp_path):
    machine = desktop(tmp_path)
    machine.run("--yes")
    calls = machine.calls()
    installed = only(calls, "apt-get -o DPkg::Lock::Timeout=300 install")
    assert " nvidia-cuda-toolkit" in installed
    assert "libglib2.0" not in installed, "it is here, by its name of Ubuntu 24.04"
    assert _first(calls, "edgegs/build").endswith("[nvidia,cuda]")
    assert "edgegs kernels build --arch sm_89" in calls
    assert machine.text("etc/modules-load.d/edgegs.conf") == "nvidia-uvm\n"
    assert dropins(machine) == ["10-board.conf", "30-backoff.conf"]
    assert "systemctl restart edgegs.service" in calls


def test_without_its_driver_a_gpu_is_not_used(tmp_path):
    machine = desktop(tmp_path)
    (machine.root / "proc/driver/nvidia/version").unlink()
    done = machine.run("--yes")
    assert "its driver is not loaded" in done.stdout
    assert not any("sm_89" in call or "pycuda" in call for call in machine.calls())


def test_container_gets_the_host_kernels_and_no_running_service(tmp_path):
    machine = debian(tmp_path)
    done = machine.run("--yes", "--no-gstreamer", "--offline-wheels", str(tmp_path))
    calls = machine.calls()
    assert [call for call in calls if call.startswith("edgegs kernels build")] == ["edgegs kernels build --arch host"]
    assert "gstreamer" not in only(calls, "apt-get -o DPkg::Lock::Timeout=300 install")
    assert all(f"--no-index --find-links {tmp_path}" in call for call in calls if "pip install" in call)
    assert not any(call.startswith(("systemctl restart", "systemctl daemon-reload")) for call in calls)
    assert "starts at the next boot" in done.stdout


def test_another_prefix_is_in_unit_and_command(tmp_path):
    machine = debian(tmp_path)
    words = (machine.bin / "fake").read_text().replace("/opt/edgegs/build", "/srv/gs/build")
    machine.write(machine.bin / "fake", words)
    machine.run("--yes", "--prefix=/srv/gs")
    assert "ExecStart=/srv/gs/venv/bin/edgegs run" in machine.text(UNIT)
    assert (machine.root / "usr/local/bin/edgegs").is_symlink()
    machine.run("--uninstall", "--prefix", "/srv/gs")
    assert not (machine.root / "srv/gs").exists()


# ---- files of the user


def test_configuration_is_kept_and_the_new_one_put_beside_it_once(tmp_path):
    machine = debian(tmp_path)
    machine.run("--yes")
    config, beside = machine.root / "etc/edgegs/edgegs.yaml", machine.root / "etc/edgegs/edgegs.yaml.new"
    config.write_text("mine: 1\n")
    machine.run("--yes")
    assert config.read_text() == "mine: 1\n"
    assert not beside.exists(), "nothing is new"
    machine.write(machine.source / "jetson/edgegs.yaml", "shipped: 2\n")
    machine.run("--yes")
    assert (config.read_text(), beside.read_text()) == ("mine: 1\n", "shipped: 2\n")
    beside.unlink()
    machine.run("--yes")
    assert not beside.exists(), "told once"


def test_environment_follows_the_machine_until_somebody_edits_it(tmp_path):
    machine = nano(tmp_path)
    machine.run("--yes")
    shutil.rmtree(str(machine.root / "usr/local/cuda-10.2"))
    machine.nvcc("10.3")
    machine.run("--yes")
    assert "cuda-10.3" in machine.text(ENVIRONMENT)
    mine = machine.text(ENVIRONMENT) + "EDGEGS__RENDER__TARGET_FPS=10\n"
    (machine.root / ENVIRONMENT).write_text(mine)
    shutil.rmtree(str(machine.root / "usr/local/cuda-10.3"))
    machine.nvcc("10.4")
    machine.run("--yes")
    assert machine.text(ENVIRONMENT) == mine
    assert "cuda-10.4" in machine.text(ENVIRONMENT + ".new")


def test_given_configuration_is_checked_before_it_is_taken(tmp_path):
    machine = debian(tmp_path)
    machine.write(tmp_path / "wrong.yaml", "wrong\n")
    done = machine.run("--yes", "--config", str(tmp_path / "wrong.yaml"), check=1)
    assert "no configuration that edgegs can use" in done.stdout
    assert not (machine.root / "etc/edgegs/edgegs.yaml").exists()
    machine.write(tmp_path / "own.yaml", "scene: {path: /data/own.ply}\n")
    machine.run("--yes", "--config", str(tmp_path / "own.yaml"))
    assert machine.text("etc/edgegs/edgegs.yaml") == "scene: {path: /data/own.ply}\n"
    assert not any("synth" in call for call in machine.calls())


# ---- what goes wrong


#: What fails, in the order of the steps, and a part of what is told then.
FAILURES = (
    ("^apt-get .* install", "add-apt-repository universe"),
    ("^swapon", "a container has its host's swap"),
    ("-m venv", "sudo apt install python3.8-venv"),
    ("pip install .*pip>=", "no clock"),
    ("pip install .*pycuda", "--swap 4G"),
    ("pip install .*build", "--offline-wheels DIR"),
    ("^useradd", "groupdel edgegs"),
    ("kernels build --arch host", "close the desktop"),
    ("kernels build --arch sm_53", "--no-cuda"),
    ("^synth|edgegs synth", "df -h /var"),
    ("^modprobe v4l2loopback", "Secure Boot"),
    ("^systemctl enable", "systemctl status edgegs"),
    ("^systemctl restart", "journalctl -u edgegs"),
)


def test_a_failure_says_what_to_do_and_the_next_run_goes_on_from_there(tmp_path):
    machine = nano(tmp_path)
    options = ("--yes", "--swap", "1G", "--v4l2loopback")
    for what, words in FAILURES:
        machine.write(machine.state / "fail", what)
        done = machine.run(*options, check=1)
        assert words in done.stdout, what
        assert "run the same command again" in done.stdout
    (machine.state / "fail").unlink()
    machine.run(*options)
    assert machine.calls()[-1] == "edgegs doctor"
    assert [call for call in machine.changes() if "pip" in call or "kernels" in call] == [], "done by earlier runs"


def test_a_problem_found_by_the_doctor_is_a_status_of_its_own(tmp_path):
    machine = debian(tmp_path)
    words = (machine.bin / "fake").read_text().replace("'synth '*)", "doctor) exit 1 ;;\n        'synth '*)")
    machine.write(machine.bin / "fake", words)
    assert "edgegs is in place, but" in machine.run("--yes", check=3).stdout


def test_it_wants_root_apt_and_to_be_alone(tmp_path):
    machine = debian(tmp_path)
    machine.write(machine.state / "uid", "1000")
    assert "this needs root" in machine.run("--yes", check=1).stdout
    (machine.state / "uid").unlink()
    lock = machine.root / "run/lock/edgegs-install"
    machine.write(lock, "")
    with open(str(lock), "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert "another install.sh is running" in machine.run("--yes", check=1).stdout
    for name in ("apt-get", "g++"):
        (machine.bin / name).unlink()
    assert "no apt-get, and no C++ compiler" in machine.run("--yes", check=1).stdout


WRONG = ("--unknown", "--config", "--config /nowhere", "--swap lots", "--prefix /", "--prefix relative", "--purge")
WRONG += ("--prefix /opt/../etc", "--prefix=/opt/a,b", "--prefix /home/me", "--yes=1", "--offline-wheels /nowhere")
WRONG += ("--extras a;b", "--package /etc/passwd")


def test_wrong_options_are_told_before_anything_is_done(tmp_path):
    machine = debian(tmp_path)
    for options in WRONG:
        done = machine.run(*options.split(), check=2)
        assert "see --help" in done.stdout
        assert machine.calls() == []
    words = machine.run("--help").stdout
    for option in ("--dry-run", "--uninstall", "--offline-wheels", "--prefix", "--config", "--no-service", "--yes"):
        assert option in words


# ---- the files themselves


def test_shellcheck():
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed (apt install shellcheck)")
    command = ["shellcheck", "-x", "-a", "jetson/install.sh"]
    done = subprocess.run(command, cwd=str(CHECKOUT), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_made_up_machines_never_reach_the_real_one():
    """The commands that a made-up machine lends from this one change nothing by themselves."""
    assert not set(install_support._REAL) & {"systemctl", "apt-get", "mount", "useradd", "chown", "swapon"}
