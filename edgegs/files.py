"""Files that people name: what a path may look like, opening one without ever hanging, writing one in one step."""

from __future__ import annotations

import contextlib
import io
import os
import re
import secrets
import stat
import time
from pathlib import Path
from typing import BinaryIO, Callable, Iterator, Optional, Tuple

from edgegs.errors import AccessError, EdgegsError, InputError, OutputError

#: Control characters, and what is no character: half a surrogate pair.
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
    (stat.S_ISSOCK, "a socket"),
)


def check_path(path: str) -> Optional[Tuple[str, str]]:
    """What is wrong with a path that somebody wrote, and what to do; None when nothing is. Looks at no file."""
    if not path.strip():
        return "an empty path", "write a path"
    if CONTROL.search(path):
        return "the path holds a control character", "remove it"
    if path.startswith("~"):
        return "~ is not expanded", "write the folder's full path"
    if "$" in path:
        return "variables ($…) are not expanded", "write the full path"
    return None


def open_regular(path: str, shown: str) -> io.FileIO:
    """Open a regular file for reading, unbuffered; never waits for a FIFO's writer.

    Args:
        path: followed through symbolic links.
        shown: the file, as messages name it.

    Raises:
        InputError: missing, a folder, FIFO, device or socket, or unreadable. AccessError: no permission.
    """
    try:
        # Without O_NONBLOCK the open itself would wait for a FIFO's writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise InputError(f"{shown}: no such file; check the path") from None
    except PermissionError:
        raise AccessError(f"{shown}: permission denied; let this user read it (see 'ls -l', 'id')") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{shown}: cannot be opened: {reason}; check the path") from None
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            kind = next((text for test, text in _KINDS if test(mode)), "something else")
            raise InputError(f"{shown}: is {kind}, not a regular file; name a file")
        return os.fdopen(descriptor, "rb", buffering=0)
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(path: Path, max_bytes: int, what: str) -> bytes:
    """At most the first ``max_bytes`` of a regular file.

    A caller that wants to refuse longer files asks for one byte more than it accepts.

    Args:
        path: followed through symbolic links.
        max_bytes: most bytes read.
        what: the kind of file, for messages.

    Raises:
        InputError, AccessError: as ``open_regular``.
    """
    shown = f"{what} {ascii(str(path))[1:-1]}"
    with io.BufferedReader(open_regular(str(path), shown)) as file:
        try:
            return file.read(max_bytes)
        except OSError as error:
            raise InputError(f"{shown}: cannot be read: {error.strerror}; check the disk") from None


def write_at_once(path: str, content: bytes) -> None:
    """Write a file in one step: it appears whole under its name, or not at all.

    Raises:
        AccessError, OutputError: it cannot be written.
    """
    try:
        replace(path, content, f"{path}.{os.getpid()}.new")
    except PermissionError:
        raise AccessError(f"{path}: permission denied; let this user write there, or name another place") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise OutputError(f"{path}: cannot be written ({reason}); name another place") from None


def replace(path: str, content: bytes, temporary: str, mode: Optional[int] = None) -> None:
    """Write a file in one step, by way of ``temporary``, which lies in the same folder.

    Args:
        mode: the file's permissions, whatever the umask; None leaves them to the umask.

    Raises:
        OSError, ValueError: ``path`` is as it was, and nothing of ours is left.
    """
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)  # of a run that was cut off; or a link that somebody planted there: never written through
    file = open(temporary, "xb")  # noqa: SIM115 (what was there before it is not ours to remove)
    try:
        with file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def check_output(path: str) -> None:
    """Raise OutputError or AccessError now if a file cannot be written there, before the work and not after."""
    target = os.path.realpath(path)
    folder = os.path.dirname(target)
    effective = os.access in os.supports_effective_ids
    try:
        if not stat.S_ISDIR(os.stat(folder).st_mode):
            raise OutputError(f"{path}: {folder} is not a folder")
        with contextlib.suppress(FileNotFoundError):
            os.lstat(target)  # a name that is too long, for one, is refused here
    except FileNotFoundError as error:
        raise OutputError(f"{path}: there is no folder {folder}; create it first") from error
    except PermissionError as error:
        raise AccessError(f"{path}: no permission to look into {folder}") from error
    except (OSError, ValueError) as error:
        raise OutputError(f"{path}: cannot be written: {getattr(error, 'strerror', None) or error}") from error
    if os.path.isdir(target):
        raise OutputError(f"{path}: is a directory; name a file in it")
    if os.path.lexists(target) and not os.path.isfile(target):
        # Renaming over it would replace /dev/null or a FIFO by a file.
        raise OutputError(f"{path}: exists and is not a regular file; name another output")
    if not os.access(folder, os.W_OK | os.X_OK, effective_ids=effective):
        raise AccessError(f"{path}: no permission to write in {folder}")


@contextlib.contextmanager
def replacing(path: str) -> Iterator[BinaryIO]:
    """A new file for large content: it takes its name when the block ends, whole and on the disk, or never.

    Use: ``with replacing(path) as file: file.write(…)``. After an error ``path`` is as it was and nothing of ours is
    left. A link is followed, not replaced; permissions are the umask's.

    Raises:
        OutputError, AccessError: it cannot be written; what can be known of that beforehand, beforehand.
    """
    check_output(path)
    target = os.path.realpath(path)
    folder, name = os.path.split(target)
    # In the same folder, since only there a rename is one step; cut, since names have at most 255 bytes.
    start = os.fsdecode(os.fsencode(name)[:128])
    temporary = os.path.join(folder, f".{start}.{secrets.token_hex(8)}.part")
    try:
        file = open(temporary, "xb")  # noqa: SIM115 (closed below, by the block that also removes it)
    except OSError as error:
        raise _unwritable(path, error) from error
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError):
            raise _unwritable(path, error) from error
        raise
    with contextlib.suppress(OSError):  # some file systems know no sync of folders; the content is safe in any case
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def forget_oldest(kept: Path, n_kept: int, used: Callable[[os.stat_result], int], abandoned_s: float) -> None:
    """Of a cache folder, remove what was used longest ago, and what was never finished (``.part``).

    Other processes may do the same at the same time; files that they are reading stay readable.

    Args:
        kept: the newest file, never removed: a board's clock may be wrong. Files with its suffix are counted.
        used: when a file was used last.
    """
    found = []
    for path in kept.parent.glob("*"):  # those that begin with a dot as well
        with contextlib.suppress(OSError):
            facts = path.stat()
            if path.suffix == kept.suffix and path != kept:
                found.append((used(facts), path))
            elif path.suffix == ".part" and time.time() - facts.st_mtime > abandoned_s:
                path.unlink()
    for _, path in sorted(found)[: max(0, len(found) - n_kept + 1)]:
        with contextlib.suppress(OSError):
            path.unlink()


def _unwritable(path: str, error: OSError) -> EdgegsError:
    kind = AccessError if isinstance(error, PermissionError) else OutputError
    return kind(f"{path}: cannot be written: {error.strerror or error}")
