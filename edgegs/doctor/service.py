"""The systemd service: installed, started, how it last ended, and whether its unit keeps it from what it needs."""

from __future__ import annotations

import fnmatch
import os
import pwd
import re
import shlex
import signal
from dataclasses import dataclass
from typing import Dict, List, Optional, Tuple

from edgegs.doctor.machine import Account, Machine, is_below
from edgegs.findings import OK, Finding, note, problem, warning

UNIT = "edgegs.service"
CONFIG = "/etc/edgegs/edgegs.yaml"
#: Restarts that are no accident any more.
MANY_RESTARTS = 3
#: What a GPU program opens, on a PC and on a Jetson; those that are there must be allowed.
GPU_NODES = (
    *("nvidiactl", "nvidia0", "nvidia-uvm"),
    *("nvmap", "nvhost-ctrl", "nvhost-ctrl-gpu", "nvhost-gpu", "nvhost-as-gpu", "nvhost-prof-gpu", "nvhost-dbg-gpu"),
    *("nvhost-tsg-gpu", "nvhost-sched-gpu", "nvhost-ctxsw-gpu"),
)

_PROPERTIES = (  # noqa: SIM905
    "LoadState ActiveState SubState UnitFileState Result ExecMainCode ExecMainStatus NRestarts NeedDaemonReload "
    "FragmentPath ExecStart User Group DynamicUser SupplementaryGroups Environment EnvironmentFiles PrivateDevices "
    "DevicePolicy DeviceAllow MemoryDenyWriteExecute ProtectHome ProtectSystem PrivateTmp StateDirectory "
    "CacheDirectory LogsDirectory RuntimeDirectory ReadWritePaths"
).split()

#: Exit status -> what it means, and the command that tells more. Above 199: systemd itself, before edgegs started.
EXITS: Dict[int, Tuple[str, str]] = {
    1: ("a runtime fault", ""),
    2: ("a wrong command line in ExecStart", "systemctl cat edgegs"),
    65: ("the scene file is damaged or of another kind", "edgegs info SCENE"),
    66: ("an input is missing or cannot be read", "edgegs doctor --config {config}"),
    69: ("a device, GPU, kernel image or port is not usable", "sudo edgegs doctor --config {config}"),
    73: ("an output or the log cannot be created", "edgegs doctor --config {config}"),
    77: ("a permission is missing", "sudo edgegs doctor --config {config}"),
    78: ("the configuration is wrong", "sudo edgegs check-config {config}"),
    200: ("its working folder cannot be entered", "systemctl cat edgegs"),
    203: ("the program in ExecStart is missing or cannot be executed", "sudo jetson/install.sh"),
    216: ("a group of the unit does not exist", "systemctl show edgegs -p Group,SupplementaryGroups"),
    217: ("the unit's user does not exist", "sudo systemd-sysusers"),
    218: ("a capability cannot be set", "systemctl cat edgegs"),
    226: ("a folder that the unit names does not exist, or the kernel lacks name spaces", "systemctl cat edgegs"),
    228: ("the kernel refuses the unit's system call filter", "systemctl cat edgegs"),
    233: ("/run/edgegs cannot be made", "systemctl cat edgegs"),
    238: ("/var/lib/edgegs cannot be made", "ls -ld /var/lib/edgegs; findmnt -T /var/lib"),
    239: ("/var/cache/edgegs cannot be made", "ls -ld /var/cache/edgegs; findmnt -T /var/cache"),
}
JOURNAL = "sudo journalctl -u edgegs -e"


@dataclass(frozen=True)
class Unit:
    """The unit's properties, as systemctl shows them; a property of several lines is joined by line breaks."""

    properties: Dict[str, str]
    why: str = ""

    def __getitem__(self, name: str) -> str:
        return self.properties.get(name, "")

    def yes(self, name: str) -> bool:
        return self.properties.get(name) == "yes"

    @property
    def is_loaded(self) -> bool:
        return self["LoadState"] == "loaded"

    def environment(self, machine: Machine) -> Dict[str, str]:
        """Of Environment= and the files of EnvironmentFile=; those that this user may not read are left out."""
        found = _assignments(self["Environment"])
        for name in self.environment_files:
            for line in machine.read(name).splitlines():
                found.update({} if line.lstrip().startswith(("#", ";")) else _assignments(line))
        return found

    @property
    def environment_files(self) -> List[str]:
        return re.findall(r"^(/.*?)(?: \(ignore_errors=\w+\))?$", self["EnvironmentFiles"], re.MULTILINE)

    @property
    def config(self) -> str:
        """The configuration that its command line names."""
        match = re.search(r"argv\[\]=([^;]*)", self["ExecStart"])
        words = match.group(1).split() if match else []
        return next((word for word in words if word.endswith((".yaml", ".yml"))), CONFIG)

    @property
    def groups(self) -> List[str]:
        return [name for name in [self["Group"], *self["SupplementaryGroups"].split()] if name]

    def account(self, machine: Machine) -> Account:
        """The user that the service runs as."""
        user = self["User"] or "root"
        known = machine.groups()
        names = [*self.groups, *machine.groups_of(user)]
        gids = frozenset(known[name][0] for name in names if name in known)
        if self.yes("DynamicUser"):
            return Account("the service's own user", None, gids)
        uid = 0 if user == "root" else _uid(machine, user)
        return Account(user, uid, gids)

    def may_write(self, path: str) -> bool:
        """Whether ProtectSystem=strict lets the service write there, by the folders that the unit names."""
        if self["ProtectSystem"] != "strict":
            return True
        roots = {"StateDirectory": "/var/lib", "CacheDirectory": "/var/cache", "LogsDirectory": "/var/log"}
        folders = [os.path.join("/run", name) for name in self["RuntimeDirectory"].split()]
        for name, base in roots.items():
            folders += [os.path.join(base, one) for one in self[name].split()]
        folders += [one.lstrip("-+") for one in self["ReadWritePaths"].split()]
        folders += ["/dev", "/proc", "/sys"] + (["/tmp", "/var/tmp"] if self.yes("PrivateTmp") else [])
        return any(is_below(path, folder) for folder in folders)


def unit(machine: Machine) -> Unit:
    """What systemd says about the unit."""
    answer = machine.run(["systemctl", "show", UNIT, "--no-pager", "--property=" + ",".join(_PROPERTIES)])
    if answer.status != 0:
        lines = answer.out.strip().splitlines()
        return Unit({}, answer.why or (lines[0] if lines else f"systemctl fails ({answer.status})"))
    properties: Dict[str, str] = {}
    for line in answer.out.splitlines():
        name, equals, value = line.partition("=")
        if equals:
            properties[name] = f"{properties[name]}\n{value}" if name in properties else value
    return Unit(properties)


def service(machine: Machine) -> List[Finding]:
    its = unit(machine)
    if its.why:
        return [Finding("service", OK, f"systemd does not run here ({its.why})")]
    state = its["LoadState"]
    if state == "not-found" or not state:
        fix = "sudo jetson/install.sh, where edgegs shall start with the machine"
        return [note("service", "service-not-installed", f"{UNIT} is not installed", fix)]
    if state == "masked":
        fix = "sudo systemctl unmask edgegs"
        return [problem("service", "service-masked", f"{UNIT} is masked: it cannot be started", fix)]
    if not its.is_loaded:
        says = f"{its['FragmentPath'] or UNIT}: systemd cannot read it ({state})"
        return [problem("service", "service-bad-unit", says, f"systemd-analyze verify {UNIT}")]
    return [*_state(its), *_account(machine, its), *_devices(machine, its), *_environment(machine, its)]


def _state(its: Unit) -> List[Finding]:
    findings = []
    active, ended = its["ActiveState"], _ended(its)
    if its.yes("NeedDaemonReload"):
        says = "the unit's file was changed after systemd read it"
        fix = "sudo systemctl daemon-reload && sudo systemctl restart edgegs"
        findings.append(warning("service", "service-reload", says, fix))
    if its["UnitFileState"] == "disabled":
        says = "it does not start with the machine (disabled)"
        findings.append(warning("service", "service-disabled", says, "sudo systemctl enable edgegs"))
    if its["Result"] == "watchdog":
        says = "no frame for so long that systemd's watchdog ended it"
        findings.append(problem("service", "service-watchdog", says, JOURNAL + "; edgegs doctor shows GPU and outputs"))
    elif its["Result"] == "oom-kill" or (its["Result"] == "signal" and its["ExecMainStatus"] == "9"):
        says = "it was killed (signal 9), as the kernel or MemoryMax= does for want of memory"
        fix = "sudo journalctl -k -b | grep -i 'out of memory'; lower scene.max_gaussians, or add swap"
        findings.append(problem("service", "service-killed", says, fix))
    elif its["Result"] == "timeout":
        says = "it took too long to start or to stop, and systemd ended it"
        findings.append(problem("service", "service-timeout", says, JOURNAL))
    elif its["Result"] == "start-limit-hit":
        says = f"it failed too often in a short time, and systemd gave up (last: {ended[0]})"
        fix = f"{ended[1]}; then sudo systemctl reset-failed edgegs && sudo systemctl start edgegs"
        findings.append(problem("service", "service-gave-up", says, fix))
    elif active == "failed":
        findings.append(problem("service", "service-failed", f"it failed: {ended[0]}", ended[1]))
    restarts = int(its["NRestarts"]) if its["NRestarts"].isdigit() else 0
    if restarts >= MANY_RESTARTS or (active == "activating" and its["SubState"] == "auto-restart"):
        says = f"systemd has restarted it {restarts} times; the last run: {ended[0]}"
        findings.append(warning("service", "service-restarts", says, ended[1]))
    if active == "inactive" and its["Result"] in ("success", ""):
        fix = "sudo systemctl start edgegs"
        findings.append(note("service", "service-stopped", "installed, and not running", fix))
    return findings or [Finding("service", OK, f"{UNIT} is {active} ({its['SubState']})")]


def _ended(its: Unit) -> Tuple[str, str]:
    """How the last run ended, in words, and the command that tells more."""
    status = int(its["ExecMainStatus"]) if its["ExecMainStatus"].isdigit() else 0
    if its["ExecMainCode"] in ("2", "3"):  # CLD_KILLED, CLD_DUMPED
        try:
            name = signal.Signals(status).name
        except ValueError:
            name = str(status)
        words = {
            "SIGILL": "an instruction that this processor lacks: see illegal-instruction",
            "SIGSYS": "a system call that the unit forbids",
            "SIGSEGV": "a fault in a library",
            "SIGABRT": "a library aborted, or the watchdog",
        }
        return f"ended by {name}" + (f", {words[name]}" if name in words else ""), JOURNAL
    says, command = EXITS.get(status, ("", ""))
    return f"exit status {status}" + (f", {says}" if says else ""), command.format(config=its.config) or JOURNAL


def _account(machine: Machine, its: Unit) -> List[Finding]:
    findings = []
    user = its["User"]
    if user and not its.yes("DynamicUser") and _uid(machine, user) is None:
        says = f"the unit's user {user} does not exist: it cannot start (217)"
        fix = f"sudo systemd-sysusers, or sudo useradd --system --no-create-home {user}"
        findings.append(problem("service", "service-user-missing", says, fix))
    known = machine.groups()
    missing = [name for name in its.groups if known and name not in known and not name.isdigit() and name != user]
    for name in missing:
        says = f"the unit's group {name} does not exist: it cannot start (216)"
        fix = f"sudo groupadd --system {name}, or take it out of SupplementaryGroups="
        findings.append(problem("service", "service-group-missing", says, fix))
    return findings


def _devices(machine: Machine, its: Unit) -> List[Finding]:
    nodes = [f"dev/{name}" for name in GPU_NODES if machine.exists(f"dev/{name}")]
    if not nodes:
        return []
    if its.yes("PrivateDevices"):
        says = "PrivateDevices=yes hides the GPU from the service"
        return [problem("service", "service-hides-gpu", says, "sudo systemctl edit edgegs: PrivateDevices=no")]
    findings = []
    allowed = [line.split()[0] for line in its["DeviceAllow"].splitlines() if line.split()]
    if allowed or its["DevicePolicy"] in ("closed", "strict"):
        hidden = ["/" + node for node in nodes if not _is_allowed(machine, node, allowed)]
        if hidden:
            says = f"the unit's DeviceAllow= leaves out {', '.join(hidden)}"
            fix = "sudo systemctl edit edgegs: " + " ".join(f"DeviceAllow={node} rw" for node in hidden)
            findings.append(problem("service", "service-hides-gpu", says, fix))
    if its.yes("MemoryDenyWriteExecute"):
        says = "MemoryDenyWriteExecute=yes keeps the GPU's driver from compiling PTX"
        fix = "sudo systemctl edit edgegs: MemoryDenyWriteExecute=no"
        findings.append(problem("service", "service-write-execute", says, fix))
    account = its.account(machine)
    names = {gid: name for name, (gid, _) in machine.groups().items()}
    wanting: Dict[str, str] = {}
    for node in nodes:
        status = machine.stat(node)
        if status is not None and not account.may(status, 6):
            wanting.setdefault(names.get(status.st_gid, str(status.st_gid)), "/" + node)
    for group, node in wanting.items():
        says = f"{account.name} may not open {node}: it is not in the group {group}"
        fix = f"sudo systemctl edit edgegs: SupplementaryGroups={group}"
        findings.append(problem("service", "service-groups", says, fix))
    return findings


def _is_allowed(machine: Machine, node: str, allowed: List[str]) -> bool:
    """DeviceAllow= names a node, or ``char-PATTERN``: the names of drivers in /proc/devices."""
    if "/" + node in allowed:
        return True
    patterns = [entry[len("char-") :] for entry in allowed if entry.startswith("char-")]
    status = machine.stat(node)
    major = str(os.major(status.st_rdev)) if status is not None and status.st_rdev else ""
    drivers = [words[1] for words in map(str.split, machine.read("proc/devices").splitlines()) if words[:1] == [major]]
    if not drivers:  # the driver's name is mostly the beginning of the node's
        drivers = [os.path.basename(node)]
    pairs = [(driver, pattern) for driver in drivers for pattern in patterns]
    return any(fnmatch.fnmatch(driver, pattern) or driver.startswith(pattern) for driver, pattern in pairs)


def _environment(machine: Machine, its: Unit) -> List[Finding]:
    findings = []
    environment = its.environment(machine)
    for name in its.environment_files:
        if machine.exists(name) and not os.access(machine.path(name), os.R_OK):
            return []  # what is in it decides
    if machine.is_nano and environment.get("OPENBLAS_CORETYPE") != "ARMV8":
        says = "the unit does not set OPENBLAS_CORETYPE: NumPy may die with 'Illegal instruction' (ended by SIGILL)"
        fix = "sudo systemctl edit edgegs: Environment=OPENBLAS_CORETYPE=ARMV8"
        findings.append(warning("service", "service-coretype", says, fix))
    hidden = its["ProtectHome"] in ("yes", "read-only", "tmpfs")
    if hidden and "CUDA_CACHE_PATH" not in environment and any(machine.exists(f"dev/{name}") for name in GPU_NODES):
        says = "ProtectHome= hides ~/.nv, and CUDA_CACHE_PATH is not set: PTX is compiled again at every start"
        fix = "sudo systemctl edit edgegs: Environment=CUDA_CACHE_PATH=/var/cache/edgegs/nv"
        findings.append(note("service", "service-cuda-cache", says, fix))
    return findings


def _assignments(text: str) -> Dict[str, str]:
    try:
        words = shlex.split(text)
    except ValueError:
        words = text.split()
    return dict(word.split("=", 1) for word in words if "=" in word)


def _uid(machine: Machine, user: str) -> Optional[int]:
    if user.isdigit():
        return int(user)
    known = machine.users()
    if user in known:
        return known[user][0]
    if machine.is_real:  # users of a directory service are not in the file
        try:
            return pwd.getpwnam(user).pw_uid
        except KeyError:
            pass
    return None
