"""What the kernel has written since boot about supply, memory, storage and GPU."""

from __future__ import annotations

import os
import re
import stat
import time
from typing import Dict, List, Tuple

from edgegs.doctor.machine import Machine
from edgegs.findings import OK, Finding, note, warning

#: The kernel's ring is at most a few MB; all of it is read within this time, seconds.
READ_S = 2.0
MAX_LINES = 20_000

#: Check, code, what a line looks like, what it means, what to do. The first that fits counts.
SIGNS: Tuple[Tuple[str, str, str, str, str], ...] = (
    (
        "supply",
        "supply-weak",
        r"soctherm: OC ALARM|[Uu]nder-?voltage detected",
        "the 5 V supply sagged, and the board slowed itself down",
        "use a 5 V, 4 A supply at the barrel jack (jumper J48 on a Nano), with a short cable",
    ),
    (
        "memory",
        "memory-killed",
        r"Out of memory: Kill|oom-kill:|oom_reaper: reaped",
        "the kernel killed a program for want of memory",
        "add swap (see memory), close the desktop, or lower scene.max_gaussians",
    ),
    (
        "storage",
        "storage-errors",
        r"(?:EXT4-fs|BTRFS|XFS|F2FS-fs)\b.*\berror|Remounting filesystem read-only"
        r"|(?:blk_update_request|I/O error).*(?:mmcblk|sd[a-z]|nvme)|mmc\d+: .*(?:error -|timed? ?out)",
        "a disk or card fails",
        "copy what you need from it, then sudo touch /forcefsck and reboot; replace the card if it comes back",
    ),
    (
        "gpu",
        "gpu-timeout",
        r"NVRM: Xid .*: 8,|(?:gk20a|nvgpu|gm20b).*(?:channel|ctxsw|pbdma).*time-?out|kernel launch timed out",
        "the driver ended a kernel that ran for too long, as it does while a desktop runs",
        "sudo systemctl isolate multi-user.target (closes the desktop), or lower scene.max_gaussians or camera.width",
    ),
    (
        "gpu",
        "gpu-faults",
        r"NVRM: Xid |(?:gk20a|nvgpu).*(?:mmu fault|gr exception|sm exception)",
        "the driver reports faults of the GPU",
        "edgegs doctor --bundle report.tar.gz, then reboot; if it comes back: cooling, supply, or a broken GPU",
    ),
)


def messages(machine: Machine) -> Tuple[List[str], str]:
    """Lines of the kernel's log, oldest first, without their stamps; and why there are none."""
    path = machine.path("dev/kmsg")
    why = ""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as error:
        why = f"/dev/kmsg: {error.strerror}"
    else:
        try:
            kind = os.fstat(descriptor).st_mode
            lines = _records(descriptor) if stat.S_ISCHR(kind) or stat.S_ISREG(kind) else []
        finally:
            os.close(descriptor)
        if lines:
            return lines, ""
    if machine.is_real:
        answer = machine.run(["journalctl", "-k", "-b", "-n", "5000", "-o", "cat", "--no-pager", "-q"])
        lines = answer.out.splitlines() if answer.status == 0 else []
        if lines:
            return lines, ""
    return [], why or "the kernel's log is empty"


def _records(descriptor: int) -> List[str]:
    """One read of /dev/kmsg gives one record ("6,341,16081,-;text"); of a file, many."""
    lines: List[str] = []
    end = time.monotonic() + READ_S
    left = b""
    while len(lines) < MAX_LINES and time.monotonic() < end:
        try:
            chunk = os.read(descriptor, 8192)
        except BrokenPipeError:  # lines were overwritten while we read
            continue
        except OSError:
            break
        if not chunk:
            break
        *whole, left = (left + chunk).split(b"\n")
        left = left[-8192:]
        for record in whole:
            text = record.decode("utf-8", "replace")
            if not text.startswith(" "):  # a continuation line: device properties
                lines.append(text.partition(";")[2] if re.match(r"\d+,\d+,\d+,", text) else text)
    return lines


def kernel_log(machine: Machine) -> List[Finding]:
    """Each sign once, with how often it is there and its last line."""
    lines, why = messages(machine)
    if not lines:
        if not machine.is_tegra:
            return []
        return [note("kernel", "kernel-log-unreadable", f"the kernel's log is not read ({why})", "sudo edgegs doctor")]
    counts: Dict[str, int] = {}
    last: Dict[str, str] = {}
    patterns = [(sign[1], re.compile(sign[2])) for sign in SIGNS]
    for line in lines:
        code = next((code for code, pattern in patterns if pattern.search(line[:1000])), None)
        if code is not None:
            counts[code] = counts.get(code, 0) + 1
            last[code] = line[:200]
    findings = []
    for check, code, _, says, fix in SIGNS:
        if code in counts:
            times = "once" if counts[code] == 1 else f"{counts[code]} times"
            findings.append(warning(check, code, f"{says} ({times} in the kernel's log, last: {last[code]})", fix))
    return findings or [Finding("kernel", OK, f"{len(lines)} lines of its log, none of a fault")]
