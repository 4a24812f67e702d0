"""Memory, swap, disks, the folders that are written to, and what wears an SD card."""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
from typing import List, Optional

from edgegs.doctor.machine import Machine, is_below, nearest
from edgegs.errors import AccessError
from edgegs.findings import OK, Finding, note, warning

#: A cache of all images takes some 20 MB; the root file system needs as much for anything at all.
LOW_DISK_BYTES = 100e6
#: nvcc's intermediate files of one image.
LOW_TMP_BYTES = 200e6
#: Under this, memory and swap together, compilers are killed on a board.
LOW_MEMORY_BYTES = 5.5e9
#: Under this, free memory, a scene of half a million splats does not fit.
LOW_FREE_BYTES = 400e6

SWAP = "sudo fallocate -l 4G /swapfile && sudo chmod 600 /swapfile && sudo mkswap /swapfile && sudo swapon /swapfile"


def memory(machine: Machine) -> List[Finding]:
    """Memory and swap."""
    words = machine.read("proc/meminfo")
    sizes = {name: int(kb) * 1024 for name, kb in re.findall(r"^(\w+):\s+(\d{1,15}) kB", words, re.MULTILINE)}
    if "MemTotal" not in sizes:
        return [warning("memory", "memory-unknown", "/proc/meminfo does not tell", "sudo mount -t proc proc /proc")]
    total, swap = sizes["MemTotal"], sizes.get("SwapTotal", 0)
    free = sizes.get("MemAvailable", sizes.get("MemFree", total))
    says = f"{total / 1e9:.1f} GB, {free / 1e9:.1f} GB available, swap {swap / 1e9:.1f} GB"
    findings = [Finding("memory", OK, says)]
    if total + swap < LOW_MEMORY_BYTES:
        says = "compilers may be killed for want of memory while kernels are built"
        findings.append(warning("memory", "swap-missing", says, SWAP))
    if free < LOW_FREE_BYTES:
        says = "little memory is free: a large scene may not fit"
        fix = "sudo systemctl isolate multi-user.target (closes the desktop), or lower scene.max_gaussians"
        findings.append(warning("memory", "memory-low", says, fix))
    return findings


def cache() -> List[Finding]:
    """Whether kernels can be built into the cache."""
    from edgegs.paths import cache_dir

    try:
        folder = cache_dir()
    except AccessError as error:
        return [warning("cache", "cache-no-home", str(error), "export EDGEGS_CACHE=/var/cache/edgegs")]
    there = nearest(str(folder))
    if not os.path.isdir(there):
        return [warning("cache", "cache-in-the-way", f"{there} is in the way of {folder}: no folder", f"rm {there}")]
    if not os.access(there, os.W_OK | os.X_OK):
        fix = f"sudo chown $USER {there}, or export EDGEGS_CACHE to a folder of yours"
        says = f"{folder}: kernels cannot be built, {there} is not writable"
        return [warning("cache", "cache-not-writable", says, fix)]
    kernels = folder / "kernels"
    if kernels.exists() and not os.access(str(kernels), os.W_OK | os.X_OK):
        says = f"{kernels} belongs to another user (was edgegs run with sudo?): kernels cannot be built again"
        return [warning("cache", "cache-owner", says, f"sudo chown -R $USER {folder}")]
    free = shutil.disk_usage(there).free
    if free < LOW_DISK_BYTES:
        says = f"{folder}: only {free / 1e6:.0f} MB are free there"
        return [warning("cache", "cache-disk-full", says, f"du -sh {there}/*")]
    return [Finding("cache", OK, f"{folder} can be written, {free / 1e9:.1f} GB free")]


def disks(machine: Machine) -> List[Finding]:
    """The root file system, the folder for temporary files, and what is in /etc/fstab but not mounted."""
    findings = [*_root(machine), *_unmounted(machine), *_temporary(), *_journal(machine)]
    return findings


def _root(machine: Machine) -> List[Finding]:
    root = next((mount for mount in reversed(machine.mounts()) if mount.point == "/"), None)
    if root is not None and "ro" in root.options:
        says = f"the root file system ({root.device}) is mounted read-only"
        fix = "fine when meant; else sudo mount -o remount,rw / (and see storage-errors: the kernel does it on errors)"
        return [note("disk", "root-read-only", says, fix)]
    try:
        usage = shutil.disk_usage(machine.root)
        files = os.statvfs(machine.root)
    except OSError as error:
        return [warning("disk", "disk-full", f"/ cannot be asked: {error.strerror}", "df -h /")]
    if usage.free < LOW_DISK_BYTES:
        says = f"only {usage.free / 1e6:.0f} MB are free on /"
        fix = "sudo apt clean && sudo journalctl --vacuum-size=50M; sudo du -xh / | sort -h | tail shows the largest"
        return [warning("disk", "disk-full", says, fix)]
    if files.f_files and files.f_favail < 1000:
        says = f"only {files.f_favail} more files fit on / (no inodes)"
        return [warning("disk", "disk-full", says, "df -i /; sudo du --inodes -x / | sort -n | tail")]
    return [Finding("disk", OK, f"{usage.free / 1e9:.1f} GB free on /")]


def not_mounted_below(machine: Machine, path: Optional[str] = None) -> List[str]:
    """Mount points of /etc/fstab that nothing is mounted on; with ``path`` only those that it lies below."""
    mounted = {mount.point for mount in machine.mounts()}
    if not mounted:
        return []
    found = []
    for line in machine.read("etc/fstab").splitlines():
        words = line.split("#")[0].split()
        if len(words) < 4 or not words[1].startswith("/") or words[2] == "swap" or "noauto" in words[3].split(","):
            continue
        point = os.path.normpath(words[1].replace("\\040", " "))
        if point not in mounted and (path is None or is_below(path, point)):
            found.append(point)
    return found


def _unmounted(machine: Machine) -> List[Finding]:
    if machine.in_container:
        return []
    findings = []
    for point in not_mounted_below(machine):
        says = f"{point} is in /etc/fstab, but nothing is mounted there"
        findings.append(warning("disk", "disk-not-mounted", says, f"sudo mount {point}"))
    return findings


def _temporary() -> List[Finding]:
    """Compilers and encoders write there."""
    try:
        folder = tempfile.gettempdir()
    except OSError:  # FileNotFoundError: none can be written
        says = "no folder for temporary files can be written (TMPDIR, /tmp, /var/tmp)"
        return [warning("tmp", "tmp-not-writable", says, "sudo chmod 1777 /tmp, or export TMPDIR to a folder of yours")]
    free = shutil.disk_usage(folder).free
    if free < LOW_TMP_BYTES:
        says = f"{folder}: only {free / 1e6:.0f} MB are free there; compilers need some 200 while kernels are built"
        return [warning("tmp", "tmp-full", says, f"sudo rm -r {folder}/tmp*, or export TMPDIR=/var/tmp")]
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK | os.X_OK):
        return [warning("tmp", "tmp-not-writable", f"{folder} is not writable", "sudo chmod 1777 /tmp")]
    return []


def _journal(machine: Machine) -> List[Finding]:
    """A journal on an SD card wears it, and a loss of power may damage it."""
    root = next((mount for mount in reversed(machine.mounts()) if mount.point == "/"), None)
    if root is None or not root.device.startswith("/dev/mmcblk") or not machine.is_tegra:
        return []
    storage = ""
    files = ["etc/systemd/journald.conf", *machine.find("etc/systemd/journald.conf.d/*.conf")]
    for name in files:
        for found in re.findall(r"^\s*Storage\s*=\s*(\w+)", machine.read(name), re.MULTILINE):
            storage = found.lower()
    folder = machine.stat("var/log/journal")
    kept = folder is not None and stat.S_ISDIR(folder.st_mode)
    if storage in ("volatile", "none") or not (kept or storage == "persistent"):
        return []
    says = f"the system's journal is written to {root.device}: it wears the card"
    fix = (
        "printf '[Journal]\\nStorage=volatile\\n' | sudo tee /etc/systemd/journald.conf.d/edgegs.conf "
        "(sudo mkdir -p that folder first), then sudo systemctl restart systemd-journald"
    )
    return [warning("disk", "journal-on-card", says, fix)]
