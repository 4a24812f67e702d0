"""The archive for a bug report: what the doctor found, configuration, log and versions, redacted and small.

Every part is bounded in time and size, and one that fails is a line of the manifest. No scene and no picture goes in:
each part is text that edgegs, the kernel or a system's program prints, and goes through ``redaction``.
"""

from __future__ import annotations

import collections
import contextlib
import gzip
import io
import json
import os
import platform
import sys
import tarfile
import time
from functools import partial
from pathlib import Path
from typing import Any, Callable, Deque, Dict, List, NamedTuple, Optional, Sequence, Tuple

from edgegs.doctor.machine import Machine
from edgegs.errors import AccessError, EdgegsError, OutputError
from edgegs.findings import Finding, at_once, lines
from edgegs.redaction import Redactor, for_this_machine

#: A part larger than this is cut, bytes; its end is kept.
MAX_PART = 512 << 10
#: Windows and events of the run's log.
MAX_RECORDS = 400
#: Lines of the journal and of the kernel's log.
MAX_LINES = 200
#: All parts together, side by side, seconds.
DEADLINE_S = 45.0
#: One program, seconds: the first look at GStreamer's plug-ins takes long.
PROGRAM_S = 30.0
MANIFEST = "MANIFEST.json"
#: Where the service writes, unless its configuration says otherwise.
SERVICE_RUNS = "/var/lib/edgegs/runs"

Parts = Dict[str, Callable[[], str]]


class Part(NamedTuple):
    """One file of the archive, or why there is none.

    Attributes:
        content: redacted text in UTF-8.
        cut: bytes left out at its beginning.
        error: why it is missing; "" when it is there.
    """

    name: str
    content: bytes
    cut: int = 0
    error: str = ""

    def row(self) -> Dict[str, Any]:
        row: Dict[str, Any] = {"name": self.name, "bytes": len(self.content)}
        row.update({"cut_bytes": self.cut} if self.cut else {})
        row.update({"error": self.error} if self.error else {})
        return row


def check(path: str, force: bool) -> None:
    """Raise OutputError or AccessError where ``write`` could not write."""
    if not path.endswith((".tar.gz", ".tgz")):
        raise OutputError(f"--bundle {path}: name a file that ends in .tar.gz")
    if os.path.isdir(path):
        raise OutputError(f"--bundle {path}: is a folder; name a file in it")
    if os.path.lexists(path) and not force:
        raise _exists(path)
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise OutputError(f"--bundle {path}: there is no folder {folder}; make it, or name another")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise AccessError(f"--bundle {path}: this user may not write in {folder}; name another folder")


def write(
    path: str,
    findings: Sequence[Finding],
    config: Optional[str] = None,
    force: bool = False,
    machine: Optional[Machine] = None,
    deadline_s: float = DEADLINE_S,
) -> List[Part]:
    """Collect, redact and write; returns the parts in the order of the archive, the manifest last.

    Args:
        path: the archive, made with mode 0600 in one step.
        findings: of the doctor.
        config: the configuration that the doctor looked at; None: the service's, if there is one.
        force: whether an existing file is replaced. A symbolic link is replaced, never followed.

    Raises:
        OutputError, AccessError: the archive cannot be written.
    """
    check(path, force)
    here = machine or Machine()
    loaded, why = _load(here, config)
    secret_files = [loaded.http.token_file, getattr(loaded.camera.path, "password_file", None)] if loaded else []
    redact = for_this_machine(secret_files, here.environ)
    parts = collect(_parts(here, findings, loaded, why), redact, deadline_s)
    parts.append(_manifest(parts))
    _store(path, _archive(parts), force)
    return parts


def told(path: str, parts: Sequence[Part]) -> str:
    """What is inside, for the terminal."""
    said = [f"wrote {path}:"]
    for part in parts:
        words = f"not there: {part.error}" if part.error else f"{len(part.content):>8} bytes"
        said.append(f"  {part.name:<24} {words}{', its beginning cut' if part.cut else ''}")
    said.append("Secrets, addresses and names of users and host are masked; names of files and scenes are not.")
    said.append(f"Look before you send it: tar -xzOf {path} | less")
    return "\n".join(said)


def collect(parts: Parts, redact: Redactor, deadline_s: float) -> List[Part]:
    """Each part in a thread of its own, which is left alone when it hangs; in the order of ``parts``."""

    def part(name: str, make: Callable[[], str]) -> Part:
        return _cut(name, make())

    found: List[Part] = []
    for name, result in at_once({name: partial(part, name, make) for name, make in parts.items()}, deadline_s).items():
        if result is None:
            found.append(Part(name, b"", error=f"not ready within {deadline_s:g} s"))
        elif isinstance(result, Exception):  # whatever a broken machine brings: the other parts still tell
            known = isinstance(result, (EdgegsError, OSError))
            found.append(Part(name, b"", error=(str(result) if known else f"{type(result).__name__}: {result}")[:500]))
        else:
            found.append(result)
    # redacted here, one after the other: equal addresses get equal names in all parts, in the same order every time
    return [one._replace(content=_redacted(one, redact), error=redact(one.error)) for one in found]


def _redacted(part: Part, redact: Redactor) -> bytes:
    """JSON is redacted value by value, so that it stays JSON."""
    text = part.content.decode("utf-8")
    try:
        if part.name.endswith(".json"):
            text = json.dumps(redact.document(json.loads(text)), indent=1) + "\n"
        elif part.name.endswith(".jsonl"):
            rows = [redact.document(json.loads(line)) for line in text.splitlines()]
            text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
        else:
            text = redact(text)
    except (ValueError, RecursionError):
        text = redact(text)
    return text.encode("utf-8", "backslashreplace")


def _cut(name: str, text: str) -> Part:
    """The end of a text that is too long, from the beginning of a line."""
    content = text.encode("utf-8", "backslashreplace")
    if len(content) <= MAX_PART:
        return Part(name, content)
    kept = content[-MAX_PART:]
    kept = kept[kept.find(b"\n") + 1 :].decode("utf-8", "ignore").encode("utf-8")
    return Part(name, kept, len(content) - len(kept))


def _load(machine: Machine, config: Optional[str]) -> Tuple[Any, str]:
    """The configuration, or None and why."""
    from edgegs.doctor.service import unit

    try:
        from edgegs.config import load_config

        path = config
        if path is None:
            path = machine.path(unit(machine).config)
            if not os.path.exists(path):
                return None, f"there is no {path}, and none was named (--config FILE)"
        return load_config(path, environ=machine.environ), ""
    except EdgegsError as error:
        return None, str(error)
    except ImportError as error:
        return None, f"cannot be checked: {error}"


def _parts(machine: Machine, findings: Sequence[Finding], config: Any, why: str) -> Parts:
    def effective() -> str:
        if config is None:
            # the file itself stays here: what is wrong in it may be a secret in the wrong place
            raise OutputError(why)
        from edgegs.config import effective

        return str(effective(config))

    unit = ("--no-pager", "edgegs.service")
    journal = ("-u", "edgegs", "-n", str(MAX_LINES), "-o", "short-iso", "--no-pager", "-q")
    return {
        "doctor.txt": lambda: "\n".join([*lines(findings), ""]),
        "doctor.json": lambda: json.dumps([one._asdict() for one in findings], indent=1) + "\n",
        "devices.txt": lambda: _edgegs(machine, "devices"),
        "kernels.json": lambda: _edgegs(machine, "kernels", "list", "--json"),
        "config.yaml": effective,
        "run.jsonl": lambda: _run_log(config),
        "journal.txt": lambda: _program(machine, "journalctl", *journal),
        "unit.txt": lambda: "\n".join(_program(machine, "systemctl", verb, *unit) for verb in ("cat", "show")),
        "versions.txt": _versions,
        "board.txt": lambda: _board(machine),
        "memory.txt": lambda: _file(machine, "proc/meminfo"),
        "mounts.txt": lambda: _file(machine, "proc/mounts"),
        "kernel.txt": lambda: _kernel_log(machine),
    }


# ---- the parts ---------------------------------------------------------------------------------------


def _edgegs(machine: Machine, *verb: str) -> str:
    """What a verb prints, in a process of its own: a library that crashes takes only that along."""
    source = str(Path(__file__).resolve().parent.parent)
    paths = os.pathsep.join(path for path in (source, machine.environ.get("PYTHONPATH", "")) if path)
    own = Machine(machine.root, dict(machine.environ, PYTHONPATH=paths))
    answer = own.run([sys.executable, "-m", "edgegs", *verb], PROGRAM_S)
    if answer.status is None:
        raise OutputError(answer.why)
    return answer.out


def _program(machine: Machine, *argv: str) -> str:
    answer = machine.run(argv, PROGRAM_S)
    if answer.status != 0:
        said = answer.out.strip().splitlines()
        raise OutputError(answer.why or (said[-1] if said else f"{argv[0]} fails ({answer.status})"))
    if not answer.out.strip():
        raise OutputError(f"{argv[0]} says nothing: there are no such lines, or this user may not see them")
    return answer.out


def _file(machine: Machine, name: str) -> str:
    text = machine.read(name)
    if not text:
        raise OutputError(f"/{name} cannot be read")
    return text + "\n"


def _run_log(config: Any) -> str:
    """The newest run's start record, and its last windows and events."""
    from edgegs.telemetry import runlog
    from edgegs.telemetry.readlog import LogReader

    folder = config.telemetry.log.dir if config is not None else SERVICE_RUNS
    if folder is None:
        raise OutputError("telemetry.log.dir is null: there is no log")
    runs = runlog.runs(folder)
    if not runs:
        raise OutputError(f"{folder}: no run was logged")
    files = [file.path for file in runlog.run_files(runs[-1][1])]
    start: Dict[str, Any] = {}
    records: Deque[Dict[str, Any]] = collections.deque(maxlen=MAX_RECORDS)
    for record in LogReader(files[-2:]):  # every file begins with the start record again
        if record["type"] == "start":
            start = record
        else:
            records.append(record)
    told = [json.dumps(record, separators=(",", ":")) for record in [*([start] if start else []), *records]]
    return "\n".join([*told, ""])


def _versions() -> str:
    from importlib import metadata

    from edgegs import __version__

    own = [f"edgegs {__version__}", f"python {sys.version.splitlines()[0]}", f"executable {sys.executable}"]
    own += [f"kernel {platform.release()} {platform.machine()}", f"libc {' '.join(platform.libc_ver())}"]
    names = {}
    for one in metadata.distributions():
        name = one.metadata["Name"]
        if name:
            names[str(name)] = f"{name}=={one.version}"
    return "\n".join([*own, "", *sorted(names.values(), key=str.lower), ""])


def _board(machine: Machine) -> str:
    texts = [("model", machine.model), ("compatible", machine.compatible.replace("\0", " "))]
    for name in ("etc/nv_tegra_release", "etc/os-release", "proc/version", "proc/driver/nvidia/version", "proc/uptime"):
        texts.append((name, machine.read(name, 8192)))
    texts.append(("processor", "\n".join(machine.read("proc/cpuinfo", 8192).splitlines()[:30])))
    return "\n".join(f"[{name}]\n{text}\n" for name, text in texts if text)


def _kernel_log(machine: Machine) -> str:
    from edgegs.doctor.kernel_log import messages

    written, why = messages(machine)
    if not written:
        raise OutputError(why)
    return "\n".join([*written[-MAX_LINES:], ""])


# ---- the archive -------------------------------------------------------------------------------------


def _manifest(parts: Sequence[Part]) -> Part:
    from edgegs import __version__

    document = {
        "edgegs": __version__,
        "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "parts": [part.row() for part in parts],
        "masked": "secrets, credentials in URIs, Authorization headers, private keys; names of users, homes and host; "
        "hardware and IP addresses, e-mail addresses, serial numbers, UUIDs of disks",
    }
    return Part(MANIFEST, (json.dumps(document, indent=1) + "\n").encode("utf-8"))


def _archive(parts: Sequence[Part]) -> bytes:
    """The same parts give the same bytes: no owners, no times."""
    raw = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as packed:
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
            for part in parts:
                if part.error:
                    continue
                info = tarfile.TarInfo("edgegs-bundle/" + part.name)
                info.size, info.mode = len(part.content), 0o600
                archive.addfile(info, io.BytesIO(part.content))
    return raw.getvalue()


def _store(path: str, content: bytes, force: bool) -> None:
    """Write in one step, for this user's eyes only; an existing file survives unless ``force``."""
    temporary = f"{path}.{os.getpid()}.new"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(temporary, flags, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            if force:
                os.replace(temporary, path)
            else:
                _place(temporary, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
    except FileExistsError:
        raise _exists(path) from None
    except PermissionError:
        raise AccessError(f"--bundle {path}: permission denied; name a folder of yours") from None
    except OSError as error:
        raise OutputError(f"--bundle {path}: cannot be written ({error.strerror or error}); name another") from None


def _place(temporary: str, path: str) -> None:
    """Give the file its name, unless there is one of that name already."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:  # a disk without hard links, such as a USB stick's
        if os.path.lexists(path):
            raise FileExistsError(path) from None
        os.rename(temporary, path)


def _exists(path: str) -> OutputError:
    return OutputError(f"--bundle {path}: is there already; name another, or add --force")
