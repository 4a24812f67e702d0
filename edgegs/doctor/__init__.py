"""`edgegs doctor`: look at everything that a run needs, and name the command that mends what is missing.

Checks run side by side, each in a thread that is left alone when it hangs, and each failure of a check is a finding.
Nothing is built, written, opened for writing or changed. Every finding that is not plainly well has a code, which is
its heading in docs/troubleshooting.md.

    machine        files below a root, programs and environment, each look bounded
    software       Python, pip, packages, NumPy, OpenCV
    board          a Jetson's power mode, clocks, jtop; the wall clock
    sensors        what the telemetry can read
    kernel_log     supply, memory, storage and GPU in the kernel's log
    storage        memory, swap, disks, cache, /tmp, journal
    service        the systemd unit
    configuration  a configuration and what it names (ports: who listens)
    outputs        screens, cameras, encoders

GPU, compilers and images: ``edgegs.kernels.health``.
"""

from __future__ import annotations

from typing import Callable, Dict, List, Optional

from edgegs.doctor import board, kernel_log, software, storage
from edgegs.doctor.machine import Machine
from edgegs.findings import Finding, side_by_side

#: All checks together may take so long; what has not answered by then is a problem of its own, seconds.
DEADLINE_S = 20.0
#: What to do where a check itself has failed.
_FIXES = {
    "check-failed": "mend the other problems first; if it stays: edgegs doctor --bundle report.tar.gz, and report it",
    "check-hangs": "sudo dmesg | tail (it may name the driver or disk that hangs), and reboot",
}


def examine(
    root: str = "/", deadline_s: float = DEADLINE_S, config: Optional[str] = None, machine: Optional[Machine] = None
) -> List[Finding]:
    """All findings, in a fixed order; never raises, and takes at most ``deadline_s``.

    Args:
        root: where ``dev``, ``proc``, ``sys`` and ``etc`` lie.
        config: a configuration to look at; by default the service's, where it is there.
        machine: in place of ``root``.
    """
    here = machine or Machine(root)
    checks: Dict[str, Callable[[], List[Finding]]] = {
        "python": lambda: software.python(here),
        "packages": lambda: software.packages(here),
        "gpu": lambda: _gpu_and_images(here.root),
        "toolchains": lambda: _toolchains(),
        "opencv": lambda: software.opencv(),
        "sensors": lambda: _sensors(here),
        "board": lambda: board.board(here),
        "cache": lambda: storage.cache(),
        "memory": lambda: storage.memory(here),
        "disk": lambda: storage.disks(here),
        "clock": lambda: board.clock(here),
        "kernel": lambda: kernel_log.kernel_log(here),
        "service": lambda: _service(here),
        "config": lambda: _configuration(here, config),
    }
    found = side_by_side(checks, deadline_s, failed_code="check-failed", late_code="check-hangs")
    return [one._replace(fix=_FIXES.get(one.code, one.fix)) for one in found]


def _gpu_and_images(root: str) -> List[Finding]:
    from edgegs.kernels.health import gpu_and_images

    return gpu_and_images(root)


def _toolchains() -> List[Finding]:
    from edgegs.kernels.health import toolchains

    return toolchains()


def _sensors(machine: Machine) -> List[Finding]:
    from edgegs.doctor.sensors import sensors

    return sensors(machine)


def _service(machine: Machine) -> List[Finding]:
    from edgegs.doctor.service import service

    return service(machine)


def _configuration(machine: Machine, path: Optional[str]) -> List[Finding]:
    """The configuration and all that it names; the outputs without one."""
    from edgegs.doctor.configuration import configuration, is_of_service, load
    from edgegs.doctor.outputs import outputs
    from edgegs.doctor.service import Unit, unit

    its = unit(machine)
    findings: List[Finding] = []
    config = None
    file = path or (machine.path(its.config) if machine.exists(its.config) else None)
    if file is not None:
        config, findings = load(machine, file, path is not None)
    if config is not None and file is not None:
        findings += configuration(machine, file, config, its)
        its = its if is_of_service(machine, file, its) else Unit({})
    return findings + outputs(machine, config, its)
