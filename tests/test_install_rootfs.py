"""jetson/install.sh in a real, minimal Debian: installed, killed in every step, run again, taken away."""

from __future__ import annotations

import re
import signal
import subprocess
import time

import pytest
import rootfs

OPTIONS = ("--yes", "--offline-wheels", "/wheels", "--no-gstreamer")
SCRIPT = "/src/jetson/install.sh"
#: Where a run is killed: a heading of the script, and how long after it, seconds.
KILLS = (
    ("Python environment", 1.0),  # pip is being unpacked into the environment
    ("Python packages", 0.5),
    ("Python packages", 5.0),  # wheels are being installed
    ("kernels", 2.0),  # the compiler runs
    ("a scene to begin with", 1.0),
)

pytestmark = pytest.mark.slow


def run_until(root, heading, delay_s):
    """Start the installer; kill all of it some time after it printed a heading. Whether it printed that heading."""
    process = subprocess.Popen(
        rootfs.nspawn(root, SCRIPT, *OPTIONS),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        came_so_far = any(line.strip() == "== " + heading for line in process.stdout)
        time.sleep(delay_s)
    finally:
        process.send_signal(signal.SIGKILL)  # the container ends with it
        process.stdout.close()
        process.wait(timeout=30)
    return came_so_far


def listing(root):
    """Paths, owners, modes and times below what the installer made."""
    where = "/opt/edgegs /etc /var/lib/edgegs /var/cache/edgegs /usr/local"
    words = f"find {where} -name __pycache__ -prune -o -path /etc/resolv.conf -o -path /etc -o"
    words += r" -type d -printf '%p %u:%g %m\n' -o -printf '%p %u:%g %m %T@ %l\n' | sort"
    done = subprocess.run(rootfs.nspawn(root, "sh", "-c", words), capture_output=True, text=True, timeout=60)
    return done.stdout


def test_install_kill_resume_repeat_uninstall(tmp_path):
    root = rootfs.fresh(tmp_path)
    for heading, delay_s in KILLS:
        assert run_until(root, heading, delay_s), heading

    done = rootfs.run(root, SCRIPT, *OPTIONS)
    # the doctor may find that a container lacks something: that is not the installer's fault, and no step failed
    assert done.returncode in (0, 3), done.stdout
    assert "== doctor" in done.stdout
    before = listing(root)
    assert "/etc/edgegs/edgegs.yaml root:edgegs 640 " in before
    assert re.search(r"/var/cache/edgegs/kernels/host\.so edgegs:edgegs 644 ", before)
    assert not re.search(r"\.edgegs-new|/opt/edgegs/build|/\.room", before), "no half-made file is left"
    assert (root / "etc/systemd/system/multi-user.target.wants/edgegs.service").is_symlink()

    again = rootfs.run(root, SCRIPT, *OPTIONS)
    assert again.returncode == done.returncode
    assert re.findall(r"^     \$ (\S+)", again.stdout, re.MULTILINE) == ["runuser"], "only the doctor ran"
    assert listing(root) == before

    drawing = ["render", "/var/lib/edgegs/scenes/room.ply", "--size", "64x48", "--backend", "host"]
    drawing += ["-o", "/tmp/room.png"]
    as_service = ["runuser", "-u", "edgegs", "--", "env", "EDGEGS_CACHE=/var/cache/edgegs"]
    drawn = rootfs.run(root, *as_service, "edgegs", *drawing)
    assert drawn.returncode == 0, drawn.stdout
    checked = rootfs.run(root, "systemd-analyze", "verify", "/etc/systemd/system/edgegs.service")
    assert checked.returncode == 0, checked.stdout
    assert rootfs.run(root, "systemd-tmpfiles", "--create", "/etc/tmpfiles.d/edgegs.conf").returncode == 0

    gone = rootfs.run(root, SCRIPT, "--uninstall")
    assert gone.returncode == 0, gone.stdout
    left = {line.split()[0] for line in listing(root).splitlines() if "edgegs" in line.split()[0]}
    assert not {path for path in left if path.startswith(("/opt", "/usr", "/etc/systemd", "/etc/udev", "/var/cache"))}
    assert {"/etc/edgegs/edgegs.yaml", "/var/lib/edgegs/scenes/room.ply"} <= left
    assert rootfs.run(root, SCRIPT, "--uninstall", "--purge").returncode == 0
    assert rootfs.run(root, "id", "edgegs").returncode != 0
    assert not (root / "var/lib/edgegs").exists()
