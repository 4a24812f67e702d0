"""A configuration and everything that it names: scene, token, folders, log, ports; for this user and for the service.

The service's user is looked at where the file is the one that the unit starts edgegs with.
"""

from __future__ import annotations

import os
import shutil
import stat
from typing import TYPE_CHECKING, List, Optional, Tuple

from edgegs.doctor.machine import Account, Machine, is_below, nearest
from edgegs.doctor.ports import owner, taken_by
from edgegs.doctor.service import Unit
from edgegs.doctor.storage import not_mounted_below
from edgegs.errors import AccessError, ConfigError, EdgegsError, InputError, SceneError
from edgegs.findings import OK, Finding, note, problem, warning

if TYPE_CHECKING:
    from edgegs.config import Config

#: The recorder writes nothing below this; see ``telemetry.Recorder``.
LOG_FLOOR_BYTES = 16e6
#: Of an output folder; a minute of video.
LOW_OUTPUT_BYTES = 50e6


def load(machine: Machine, path: str, named: bool) -> Tuple[Optional[Config], List[Finding]]:
    """
    Args:
        path: of the configuration.
        named: whether the user has asked for it; the service's own may be missing or closed to this user.
    """
    from edgegs.config import load_config

    tell = problem if named else note
    try:
        config = load_config(path, environ=machine.environ)
    except ConfigError as error:
        check = f"edgegs check-config {path}"
        lines = str(error).splitlines()
        found = [problem("config", "config-invalid", line, check) for line in lines[:8]]
        if len(lines) > 8:
            found.append(problem("config", "config-invalid", f"and {len(lines) - 8} more problems", check))
        return None, found
    except AccessError:
        says = f"{path}: this user may not read it"
        return None, [tell("config", "config-unreadable", says, f"sudo edgegs doctor --config {path}")]
    except InputError as error:
        fix = "name an existing file: --config FILE; configs/ holds examples"
        return None, [tell("config", "config-missing", str(error), fix)]
    says = f"{path}: right, {len(config.outputs)} outputs, sha256 {config.sha256()[:12]}"
    return config, [Finding("config", OK, says)]


def configuration(machine: Machine, path: str, config: Config, its: Unit) -> List[Finding]:
    """What the configuration names, in its order."""
    account = its.account(machine) if is_of_service(machine, path, its) else None
    looks = _Looks(machine, its, account)
    if account is not None:
        looks.readable(path, "the configuration", f"sudo chgrp {_group(its)} {path} && sudo chmod 640 {path}")
    looks.scene(config)
    looks.secrets(config)
    looks.folders(config)
    looks.log(config)
    looks.ports(config)
    return looks.findings


class _Looks:
    """Args: account: the service's user, where this is the service's configuration."""

    def __init__(self, machine: Machine, its: Unit, account: Optional[Account]) -> None:
        self.machine = machine
        self.its = its
        self.account = account
        self.findings: List[Finding] = []

    # ---- what is read -------------------------------------------------------------------------------

    def scene(self, config: Config) -> None:
        path = config.scene.path
        try:
            says = _scene(path)
        except SceneError as error:
            fix = f"edgegs info {path} (it reads all of it), or export the scene again"
            self.findings.append(problem("scene", "scene-invalid", str(error), fix))
            return
        except AccessError as error:
            self.findings.append(problem("scene", "scene-unreadable", str(error), f"sudo chmod a+r {path}"))
            return
        except (InputError, OSError) as error:
            fix = f"ls -l {os.path.dirname(path)}; correct scene.path"
            self.findings.append(problem("scene", "scene-missing", str(error), fix))
            return
        self.findings.append(Finding("scene", OK, f"{path}: {says}"))
        self.readable(path, "the scene", f"sudo chmod a+r {path} (and a+x on the folders above it)")

    def secrets(self, config: Config) -> None:
        from edgegs.outputs import read_token

        files = [("http.token_file", config.http.token_file)]
        files += [("camera.path.password_file", getattr(config.camera.path, "password_file", None))]
        for key, path in files:
            if path is None:
                continue
            try:
                if key == "http.token_file":
                    read_token(path)
                mode = os.stat(path).st_mode
            except (EdgegsError, OSError) as error:
                if isinstance(error, (AccessError, PermissionError)):
                    fix = f"sudo edgegs doctor (this user may not read it; the service's user must: ls -l {path})"
                    says = f"{key} {path}: permission denied"
                    self.findings.append(warning("secrets", "token-unreadable", says, fix))
                    continue
                fix = f"(umask 077; openssl rand -hex 16 > {path})"
                self.findings.append(problem("secrets", "token-invalid", f"{key} {path}: {error}", fix))
                continue
            self.readable(path, key, f"sudo chgrp {_group(self.its)} {path} && sudo chmod 640 {path}")
            if mode & stat.S_IROTH:
                says = f"{key} {path}: every user of this machine can read it"
                self.findings.append(warning("secrets", "token-readable-by-all", says, f"chmod o-rwx {path}"))
            else:
                self.findings.append(Finding("secrets", OK, f"{key} {path}"))

    def readable(self, path: str, what: str, fix: str) -> None:
        """Whether the service's user can get there and read it."""
        if self.account is None:
            return
        hidden = _hidden_from(self.its, path)
        if hidden:
            says = f"{what}: {hidden} hides {path} from the service"
            folder = "/var/lib/edgegs"
            self.findings.append(problem("service", "service-hides-files", says, f"move it to {folder}"))
            return
        where = _closed(self.account, path)
        if where:
            says = f"{what}: the service's user {self.account.name} may not read {where}"
            self.findings.append(problem("service", "service-cannot-read", says, fix))

    # ---- what is written ----------------------------------------------------------------------------

    def folders(self, config: Config) -> None:
        for output in config.outputs:
            if not output.uri.is_file:
                continue
            tell = problem if output.required else warning
            folder = os.path.dirname(output.uri.path) or "/"
            there = nearest(folder)
            if there != folder:
                says = f"{output.label}: the folder {folder} is not there"
                self.findings.append(tell("outputs", "output-folder-missing", says, f"mkdir -p {folder}"))
                continue
            if not os.path.isdir(folder):
                says = f"{output.label}: {folder} is no folder"
                self.findings.append(tell("outputs", "output-folder-missing", says, f"rm {folder}; mkdir -p {folder}"))
                continue
            closed = self._cannot_write(folder)
            if closed:
                says = f"{output.label}: {closed}"
                self.findings.append(tell("outputs", "output-folder-closed", says, self._open(folder, closed)))
                continue
            free = shutil.disk_usage(folder).free
            if free < LOW_OUTPUT_BYTES:
                says = f"{output.label}: only {free / 1e6:.0f} MB are free there"
                self.findings.append(tell("outputs", "output-disk-full", says, f"df -h {folder}; du -sh {folder}/*"))

    def log(self, config: Config) -> None:
        folder = config.telemetry.log.dir
        if folder is None:
            return
        missing = not_mounted_below(self.machine, folder)
        if missing:
            says = f"telemetry.log.dir {folder}: its disk {missing[-1]} is not mounted, the log would fill another"
            self.findings.append(warning("log", "log-disk-not-mounted", says, f"sudo mount {missing[-1]}"))
            return
        mount = self.machine.mount_of(folder)
        there = nearest(folder)
        if mount is not None and "ro" in mount.options:
            says = f"telemetry.log.dir {folder}: {mount.point} is mounted read-only"
            fix = f"sudo mount -o remount,rw {mount.point}, or name another folder; null: no log"
            self.findings.append(problem("log", "log-read-only", says, fix))
            return
        closed = self._cannot_write(there)
        if closed or not os.path.isdir(there):
            fix = f"sudo mkdir -p {folder}; {self._open(folder, closed)}"
            says = f"telemetry.log.dir {folder}: {closed or there + ' is no folder'}"
            self.findings.append(problem("log", "log-not-writable", says, fix))
            return
        free = shutil.disk_usage(there).free
        if free < LOG_FLOOR_BYTES + 1e6:
            says = f"telemetry.log.dir {folder}: only {free / 1e6:.0f} MB are free: nothing is logged below 16"
            fix = f"du -sh {there}/*; or lower telemetry.log.max_mb, now {config.telemetry.log.max_mb}"
            self.findings.append(warning("log", "log-disk-full", says, fix))
            return
        self.findings.append(Finding("log", OK, f"{folder}: {free / 1e9:.1f} GB free"))

    def _cannot_write(self, folder: str) -> str:
        """Why the service's user (else this one) cannot write in an existing folder; "" when it can."""
        if self.account is None:
            return "" if os.access(folder, os.W_OK | os.X_OK) else f"this user may not write in {folder}"
        hidden = _hidden_from(self.its, folder)
        if hidden:
            return f"{hidden} hides {folder} from the service"
        if not self.its.may_write(folder):
            return f"ProtectSystem=strict: the unit names {folder} in no StateDirectory= or ReadWritePaths="
        where = _closed(self.account, folder, 3)
        return f"the service's user {self.account.name} may not write in {where}" if where else ""

    def _open(self, folder: str, closed: str) -> str:
        """The command that lets edgegs write there."""
        if "ProtectSystem" in closed or "hides" in closed:
            return f"sudo systemctl edit edgegs: ReadWritePaths={folder}, or name a folder below /var/lib/edgegs"
        return f"sudo chown {self.account.name if self.account and self.account.uid else '$USER'} {folder}"

    # ---- addresses ----------------------------------------------------------------------------------

    def ports(self, config: Config) -> None:
        wanted = [
            ("tcp", output.uri.host, output.uri.port, output.label, problem if output.required else warning)
            for output in config.outputs
            if output.uri.kind in ("mjpeg", "rtsp-server") and output.uri.port
        ]
        path = config.camera.path
        if path is not None and path.kind == "udp":
            wanted.append(("udp", path.host, path.port, f"camera.path udp {path.host}:{path.port}", problem))
        for kind, host, port, label, tell in wanted:
            holders = [owner(self.machine, one.inode) for one in taken_by(self.machine, kind, host, port)]
            if holders and all("edgegs" in who for who in holders):
                self.findings.append(Finding("ports", OK, f"{label}: edgegs itself holds it, {holders[0]}"))
            elif holders:
                flag = "t" if kind == "tcp" else "u"
                who = next((who for who in holders if who), "another program")
                fix = f"sudo ss -lnp{flag} 'sport = :{port}' shows whose it is; end it, or name another port"
                says = f"{label}: port {port} is in use by {who}"
                self.findings.append(tell("ports", "port-in-use", says, fix))
            elif port < self._first_free_port() and (self.account.uid if self.account else os.geteuid()) != 0:
                says = f"{label}: ports below 1024 are for root"
                self.findings.append(tell("ports", "port-privileged", says, "name a port from 1024 on, such as 8080"))
        if path is not None and path.kind == "mqtt":
            from edgegs.doctor.software import _version

            if _version("paho-mqtt", "paho.mqtt") is None:
                says = "camera.path mqtt: the package paho-mqtt is missing"
                self.findings.append(problem("config", "mqtt-missing", says, "pip install 'edgegs[mqtt]'"))

    def _first_free_port(self) -> int:
        first = self.machine.number("proc/sys/net/ipv4/ip_unprivileged_port_start")
        return 1024 if first is None else first


def is_of_service(machine: Machine, path: str, its: Unit) -> bool:
    """Whether the installed service is started with this configuration."""
    return its.is_loaded and os.path.abspath(path) == os.path.abspath(machine.path(its.config))


def _scene(path: str) -> str:
    """What a scene file is by its first bytes, and a .ply by its header: that may be a point cloud's.

    Raises:
        SceneError, InputError, AccessError: it is none.
    """
    from edgegs.scene import kind_of
    from edgegs.scene.checks import open_scene_file
    from edgegs.scene.ply_header import MAX_HEADER_BYTES, parse_header
    from edgegs.scene.ply_layout import layout_of
    from edgegs.scene.reading import Reading

    kind = kind_of(path)
    if kind != "ply":
        return f"a scene ({kind})"
    with open_scene_file(path) as file:
        head = os.pread(file.fileno(), MAX_HEADER_BYTES, 0)
    layout = layout_of(parse_header(head, path), path)
    Reading().check_count(layout.vertex.count, path, f"header line {layout.vertex.line}")
    return f"{layout.vertex.count:,} splats of SH degree {layout.sh_degree} (ply)"


def _group(its: Unit) -> str:
    return its["Group"] or its["User"] or "edgegs"


def _hidden_from(its: Unit, path: str) -> str:
    """The setting of the unit that puts other folders in the place of these."""
    if its["ProtectHome"] in ("yes", "tmpfs") and any(is_below(path, top) for top in ("/home", "/root", "/run/user")):
        return f"ProtectHome={its['ProtectHome']}"
    if its.yes("PrivateTmp") and any(is_below(path, top) for top in ("/tmp", "/var/tmp")):
        return "PrivateTmp=yes"
    return ""


def _closed(account: Account, path: str, bits: int = 4) -> str:
    """The first folder that the user may not enter, or the path itself when ``bits`` are not granted; "" if all is
    open. Access lists are not looked at."""
    path = os.path.realpath(path)
    parts = path.strip("/").split("/")
    for i in range(len(parts)):
        folder = "/" + "/".join(parts[:i])
        try:
            if not account.may(os.stat(folder), 1):
                return folder
        except OSError:
            return ""  # this user cannot tell
    try:
        return "" if account.may(os.stat(path), bits) else path
    except OSError:
        return ""
