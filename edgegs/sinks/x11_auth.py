"""The cookie by which an X server knows this user: the entry of its display in the authority file (Xau)."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from pathlib import Path
from typing import Tuple

_COOKIE = b"MIT-MAGIC-COOKIE-1"
#: Families of addresses in the file: this host's name, and any address.
_LOCAL, _WILD = 256, 65535


def cookie(connection: socket.socket, number: int) -> Tuple[bytes, bytes]:
    """Name and data of the entry for display ``number`` behind ``connection``.

    The file is XAUTHORITY's, or else ~/.Xauthority. Both are empty where it cannot be read or has no such entry: the
    server may let this user in all the same, and says why when it does not.
    """
    path = os.environ.get("XAUTHORITY") or os.path.expanduser("~/.Xauthority")
    try:
        data = Path(path).read_bytes()
    except (OSError, ValueError):
        return b"", b""
    own = _address(connection)
    at = 0
    with contextlib.suppress(struct.error):  # a torn file ends here
        while at < len(data):
            family = struct.unpack_from(">H", data, at)[0]
            at += 2
            fields = []
            for _ in range(4):
                length = struct.unpack_from(">H", data, at)[0]
                fields.append(data[at + 2 : at + 2 + length])
                at += 2 + length
            address, display, name, value = fields
            of_us = family == _WILD or (family, address) == own
            if of_us and display in (b"", str(number).encode()) and name == _COOKIE:
                return name, value
    return b"", b""


def _address(connection: socket.socket) -> Tuple[int, bytes]:
    """Family and address under which the file names this server."""
    local = (_LOCAL, socket.gethostname().encode())
    if connection.family == socket.AF_UNIX:
        return local
    peer = connection.getpeername()[0]
    if peer in ("127.0.0.1", "::1"):
        return local
    return (6 if connection.family == socket.AF_INET6 else 0), socket.inet_pton(connection.family, peer)


def round4(count: int) -> int:
    """The next multiple of four: every field of the protocol is as long."""
    return count + 3 & ~3


def padded(data: bytes) -> bytes:
    return data + bytes(round4(len(data)) - len(data))
