"""Which program listens at a port, by /proc/net: nothing is opened to find out."""

from __future__ import annotations

import ipaddress
import os
import re
import sys
from typing import List, NamedTuple

from edgegs.doctor.machine import Machine

_LISTEN = "0A"


class Listener(NamedTuple):
    """A socket that is bound: its address, its port, and its inode."""

    address: str
    port: int
    inode: str


def listeners(machine: Machine, kind: str) -> List[Listener]:
    """All listening "tcp" or bound "udp" sockets."""
    found = []
    for name in (kind, kind + "6"):
        for line in machine.read(f"proc/net/{name}", 4 << 20).splitlines()[1:]:
            words = line.split()
            if len(words) < 10 or (kind == "tcp" and words[3] != _LISTEN):
                continue
            match = re.fullmatch(r"([0-9A-Fa-f]{8}|[0-9A-Fa-f]{32}):([0-9A-Fa-f]{4})", words[1])
            if match:
                found.append(Listener(_address(match.group(1)), int(match.group(2), 16), words[9]))
    return found


def _address(digits: str) -> str:
    """/proc/net writes each 32-bit word of an address in the machine's byte order."""
    raw = bytes.fromhex(digits)
    if sys.byteorder == "little":
        raw = b"".join(raw[i : i + 4][::-1] for i in range(0, len(raw), 4))
    address = ipaddress.ip_address(raw)
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


def taken_by(machine: Machine, kind: str, host: str, port: int) -> List[Listener]:
    """Those that keep another program from binding ``host`` (a name counts as any address) and ``port``."""
    try:
        wanted = ipaddress.ip_address(host or "0.0.0.0")
    except ValueError:
        wanted = ipaddress.ip_address("127.0.0.1" if host == "localhost" else "0.0.0.0")
    found = []
    for one in listeners(machine, kind):
        if one.port != port:
            continue
        there = ipaddress.ip_address(one.address)
        if there == wanted or there.is_unspecified or wanted.is_unspecified:
            found.append(one)
    return found


def owner(machine: Machine, inode: str) -> str:
    """"PID (command line)" of who holds a socket; "" where we may not see it."""
    target = f"socket:[{inode}]"
    for pid in machine.names("proc"):
        if not pid.isdigit():
            continue
        for descriptor in machine.names(f"proc/{pid}/fd")[:4096]:
            try:
                held = os.readlink(machine.path(f"proc/{pid}/fd/{descriptor}"))
            except OSError:
                continue
            if held == target:
                command = machine.read(f"proc/{pid}/cmdline", 4096).replace("\0", " ")
                return f"{pid} ({command[:100]})"
    return ""
