"""The machine that the doctor looks at: files below a root, programs, environment; every look is bounded.

Tests put a folder in the place of ``/`` and programs of their own on PATH. Nothing here raises.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import selectors
import shutil
import signal
import stat
import subprocess
import time
from typing import Dict, FrozenSet, List, Mapping, NamedTuple, Optional, Sequence, Tuple

#: A file of /proc or /sys is a few pages; more of one is not looked at, bytes.
MAX_FILE = 256 << 10
#: How long one program may take, seconds.
PROGRAM_S = 5.0
#: More of what a program says is not read, bytes.
MAX_OUTPUT = 1 << 20


class Answer(NamedTuple):
    """What a program said: exit status (-signal where one ended it), both its outputs, and why it has no status."""

    status: Optional[int]
    out: str
    why: str = ""


class Mount(NamedTuple):
    """One line of /proc/mounts."""

    device: str
    point: str
    kind: str
    options: FrozenSet[str]


class Account(NamedTuple):
    """A user and all groups that a process of it has; uid None: some user without a name of its own (DynamicUser)."""

    name: str
    uid: Optional[int]
    gids: FrozenSet[int]

    def may(self, status: os.stat_result, bits: int) -> bool:
        """Whether the permission bits (4 read, 2 write, 1 enter) are granted; access lists are not looked at."""
        if self.uid == 0:
            return True
        shift = 0
        if self.uid is not None and status.st_uid == self.uid:
            shift = 6
        elif status.st_gid in self.gids:
            shift = 3
        return status.st_mode >> shift & bits == bits


class Machine:
    """
    Args:
        root: where ``dev``, ``proc``, ``sys``, ``etc``, ``run``, ``usr`` and ``var`` lie.
        environ: the environment of those checks that look at it.
    """

    def __init__(self, root: str = "/", environ: Optional[Mapping[str, str]] = None) -> None:
        self.root = root
        self.environ: Mapping[str, str] = os.environ if environ is None else environ

    @property
    def is_real(self) -> bool:
        """Whether this is the machine that the program runs on: only then system calls tell about it."""
        return os.path.abspath(self.root) == "/"

    def path(self, name: str) -> str:
        return os.path.join(self.root, name.lstrip("/"))

    def read(self, name: str, max_bytes: int = MAX_FILE) -> str:
        """Text of a regular file, stripped of white space and NULs at its ends; "" where there is none."""
        return self.read_bytes(name, max_bytes).decode("utf-8", "replace").strip("\0 \t\r\n")

    def read_bytes(self, name: str, max_bytes: int = MAX_FILE) -> bytes:
        """At most ``max_bytes`` of a regular file; empty where there is none, or it may not be read."""
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
        try:
            descriptor = os.open(self.path(name), flags)
        except (OSError, ValueError):
            return b""
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return b""
            parts: List[bytes] = []
            left = max_bytes
            while left > 0:
                part = os.read(descriptor, min(left, 1 << 16))
                if not part:
                    break
                parts.append(part)
                left -= len(part)
            return b"".join(parts)
        except OSError:
            return b""
        finally:
            os.close(descriptor)

    def number(self, name: str) -> Optional[int]:
        """The file's content as an integer; None where it is none."""
        text = self.read(name, 64)
        return int(text) if re.fullmatch(r"-?[0-9]{1,18}", text) else None

    def exists(self, name: str) -> bool:
        return os.path.exists(self.path(name))

    def stat(self, name: str) -> Optional[os.stat_result]:
        try:
            return os.stat(self.path(name))
        except (OSError, ValueError):
            return None

    def names(self, folder: str) -> List[str]:
        """What lies in a folder, sorted; empty where it cannot be listed."""
        try:
            return sorted(os.listdir(self.path(folder)))
        except OSError:
            return []

    def find(self, pattern: str) -> List[str]:
        """Paths below the root that match, without the root, sorted."""
        found = sorted(glob.glob(os.path.join(glob.escape(self.root), pattern.lstrip("/"))))
        return ["/" + os.path.relpath(path, self.root) for path in found]

    def which(self, program: str) -> Optional[str]:
        return shutil.which(program, path=self.environ.get("PATH", os.defpath))

    def run(self, argv: Sequence[str], timeout_s: float = PROGRAM_S, max_bytes: int = MAX_OUTPUT) -> Answer:
        """Run a program without a shell; it and its children are gone at the end."""
        program = self.which(argv[0])
        if program is None:
            return Answer(None, "", f"{argv[0]} not found")
        try:
            child = subprocess.Popen(
                [program, *argv[1:]],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=dict(self.environ, LC_ALL="C", SYSTEMD_COLORS="0"),
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            return Answer(None, "", f"{argv[0]} does not run: {getattr(error, 'strerror', None) or error}")
        try:
            out, ended = _read_until(child, time.monotonic() + timeout_s, max_bytes)
        finally:
            with contextlib.suppress(OSError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            assert child.stdout is not None
            child.stdout.close()
        text = out.decode("utf-8", "replace")
        if not ended:
            return Answer(None, text, f"{argv[0]} gives no answer within {timeout_s:g} s")
        return Answer(child.returncode, text)

    # ---- facts that several checks need ------------------------------------------------------------

    @property
    def compatible(self) -> str:
        return self._device_tree("compatible")

    @property
    def model(self) -> str:
        return self._device_tree("model")

    def _device_tree(self, name: str) -> str:
        return self.read(f"proc/device-tree/{name}", 4096) or self.read(f"sys/firmware/devicetree/base/{name}", 4096)

    @property
    def is_tegra(self) -> bool:
        return "nvidia,tegra" in self.compatible

    @property
    def is_nano(self) -> bool:
        """Whether this is a Tegra X1: the Nano, and the TX1."""
        return "nvidia,tegra210" in self.compatible

    @property
    def in_container(self) -> bool:
        return any(self.exists(name) for name in (".dockerenv", "run/.containerenv", "run/systemd/container"))

    def mounts(self) -> List[Mount]:
        found = []
        for line in self.read("proc/mounts").splitlines():
            words = line.split(" ")
            if len(words) >= 4:
                found.append(Mount(_plain(words[0]), _plain(words[1]), words[2], frozenset(words[3].split(","))))
        return found

    def mount_of(self, path: str) -> Optional[Mount]:
        """The mount that a path (as the machine itself sees it) lies on; the last of equal ones covers the others."""
        on_it = [mount for mount in self.mounts() if is_below(path, mount.point)]
        return max(enumerate(on_it), key=lambda pair: (len(pair[1].point), pair[0]))[1] if on_it else None

    def groups(self) -> Dict[str, Tuple[int, List[str]]]:
        """Each group's number and members, of /etc/group."""
        found: Dict[str, Tuple[int, List[str]]] = {}
        for line in self.read("etc/group").splitlines():
            words = line.split(":")
            if len(words) >= 4 and words[2].isdigit():
                found[words[0]] = int(words[2]), [name for name in words[3].split(",") if name]
        return found

    def users(self) -> Dict[str, Tuple[int, int]]:
        """Each user's number and main group, of /etc/passwd."""
        found: Dict[str, Tuple[int, int]] = {}
        for line in self.read("etc/passwd").splitlines():
            words = line.split(":")
            if len(words) >= 4 and words[2].isdigit() and words[3].isdigit():
                found[words[0]] = int(words[2]), int(words[3])
        return found

    def groups_of(self, user: str) -> List[str]:
        """Names of the groups that a user is a member of."""
        main = self.users().get(user, (-1, -1))[1]
        return [name for name, (gid, members) in self.groups().items() if gid == main or user in members]


def is_below(path: str, folder: str) -> bool:
    """Whether an absolute path is ``folder`` or lies in it; symbolic links are not followed."""
    path, folder = os.path.normpath(path), os.path.normpath(folder)
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def nearest(path: str) -> str:
    """The path itself where it exists, else the nearest folder above it that does."""
    there = os.path.abspath(path)
    while not os.path.lexists(there) and there != os.path.dirname(there):
        there = os.path.dirname(there)
    return there


def _plain(word: str) -> str:
    """/proc/mounts writes blanks as \\040."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), word)


def _read_until(child: subprocess.Popen[bytes], end: float, max_bytes: int) -> Tuple[bytes, bool]:
    """What the child says, and whether it ended by itself in time; too long an answer counts as ended."""
    assert child.stdout is not None
    parts: List[bytes] = []
    left = max_bytes
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ)
        while True:
            if not selector.select(max(0.0, end - time.monotonic())):
                return b"".join(parts), False
            part = os.read(child.stdout.fileno(), min(left, 1 << 16))
            parts.append(part)
            left -= len(part)
            if not part:
                break
            if left <= 0:
                return b"".join(parts), True
    try:
        child.wait(max(0.0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        return b"".join(parts), False
    return b"".join(parts), True
