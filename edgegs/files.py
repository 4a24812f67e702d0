"""Reading a whole small file without ever hanging on something that only looks like one."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from edgegs.errors import AccessError, InputError


def read_regular(path: Path, max_bytes: int, what: str) -> bytes:
    """At most the first ``max_bytes`` of a regular file.

    A caller that wants to refuse longer files asks for one byte more than it accepts.

    Args:
        path: followed through symbolic links.
        max_bytes: most bytes read.
        what: the kind of file, for messages.

    Raises:
        InputError: missing, a folder, FIFO, device or socket, or unreadable. AccessError: no permission.
    """
    shown = f"{what} {ascii(str(path))[1:-1]}"
    try:
        # Without O_NONBLOCK the open itself would wait for a FIFO's writer.
        descriptor = os.open(str(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise InputError(f"{shown}: no such file; check the path") from None
    except PermissionError:
        raise AccessError(f"{shown}: permission denied; let this user read it") from None
    except (OSError, ValueError) as error:
        raise InputError("{}: {}".format(shown, getattr(error, "strerror", None) or error)) from None
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            kind = "a folder" if stat.S_ISDIR(mode) else "not a regular file"
            raise InputError(f"{shown}: {kind}; name a file")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(max_bytes)
    except OSError as error:
        raise InputError(f"{shown}: {error.strerror}") from None
    finally:
        os.close(descriptor)
