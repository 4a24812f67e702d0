"""The recorder: append-only JSON lines that survive power loss and a full disk, and never stop the picture.

Callers only append to a bounded buffer. One thread writes it out every few seconds, rotates, compresses
and prunes; whatever the disk does to it ends there, as a count and a rate-limited complaint.
"""

from __future__ import annotations

import errno
import json
import logging
import math
import os
import threading
import time
from typing import Any, Dict, List, Optional

from edgegs.telemetry import host, runlog

log = logging.getLogger("edgegs.telemetry")

SCHEMA = 1

#: Lines waiting for the disk: about five minutes of them. More is dropped, newest first.
BUFFER_BYTES = 256 << 10

#: The writer does not wait for its interval when this much has come together.
_EAGER_BYTES = 32 << 10

#: One complaint about the disk in this time.
_COMPLAIN_S = 60.0

_ENVELOPE = ("schema", "type", "seq", "boot_id", "run_id", "t_mono_ns", "t_wall", "clock_synced")


class Recorder:
    """Writes one run's records below ``log_dir``; see ``runlog`` for the files.

    Args:
        log_dir: made if missing. boot_id: the kernel's, by default.
        max_mb: cap over all runs' files together. rotate_mb: size at which the live file is closed (at
            most a quarter of the cap, so that the cap can be kept by deleting closed files).
        flush_s: how long a record may wait before it is written.
        min_free_mb: below this much free space nothing is written.

    Raises:
        AccessError, OutputError: the run's folder or its live file cannot be created.
    """

    def __init__(
        self,
        log_dir: str,
        boot_id: Optional[str] = None,
        max_mb: float = 256.0,
        rotate_mb: float = 16.0,
        flush_s: float = 10.0,
        min_free_mb: float = 16.0,
    ) -> None:
        self.boot_id = boot_id or host.boot_id()
        self._log_dir = os.path.abspath(log_dir)
        self._max_bytes = int(max_mb * 1e6)
        self._rotate_bytes = max(1, int(min(rotate_mb, max_mb / 4) * 1e6))
        self._flush_s, self._min_free = flush_s, int(min_free_mb * 1e6)
        self.run_id, self.folder = runlog.create_run(self._log_dir, self.boot_id)
        self.path = os.path.join(self.folder, runlog.LIVE)
        # A log on a disk of its own must not move to the root disk when that disk is unmounted.
        self._mounted = _device(self._log_dir) != _device("/")
        self._descriptor: Optional[int] = None
        self._size = 0
        self._torn = False
        try:
            self._reopen()
        except OSError as error:
            raise runlog.creation_error(self.path, error) from error

        self._lock = threading.Lock()  # guards everything below
        self._pending: List[bytes] = []
        self._pending_bytes = 0
        self._seq = 0
        self._written = self._dropped = 0
        self._error = ""
        self._start_line = b""
        self._start_written = False
        self._closing = False
        self._flushes_asked = self._flushes_done = 0
        self._changed = threading.Condition(self._lock)
        self._complained = -math.inf
        self._thread = threading.Thread(target=self._run, name="edgegs-recorder", daemon=True)
        self._thread.start()

    # ---- callers' side: no disk, no exceptions -----------------------------------------------------

    def write(self, kind: str, fields: Dict[str, Any], t_mono_ns: Optional[int] = None) -> None:
        """Queue a record of type ``kind`` ("start", "window", "event", "stop"); never raises.

        Fields named like the envelope's are overwritten by it; values that JSON lacks are made strings.
        """
        try:
            with self._changed:
                record = self._envelope(kind, t_mono_ns)
                record.update((name, value) for name, value in fields.items() if name not in _ENVELOPE)
                self._seq += 1
                line = encode(record)
                if kind == "start":
                    self._start_line = encode(dict(record, repeated=True))
                if self._closing or self._pending_bytes + len(line) > BUFFER_BYTES:
                    self._dropped += 1
                    return
                self._pending.append(line)
                self._pending_bytes += len(line)
                if kind == "start" or self._pending_bytes >= _EAGER_BYTES:
                    self._flushes_asked += 1
                    self._changed.notify_all()
        except Exception:  # whatever a caller hands over, the picture goes on
            log.exception("a telemetry record could not be encoded")

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Have everything queued so far written; True when that has been tried within the time-out."""
        with self._changed:
            self._flushes_asked += 1
            ticket = self._flushes_asked
            self._changed.notify_all()
            return self._changed.wait_for(lambda: self._flushes_done >= ticket, timeout_s)

    def close(self, timeout_s: float = 5.0) -> bool:
        """Write out, fsync and close; True when that was done within the time-out."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            log.warning("the disk under %s does not answer; the end of the log may be missing", self.path)
        return not self._thread.is_alive()

    def status(self) -> Dict[str, Any]:
        """``state`` ("ok" or "failing"), ``path``, ``records`` written, ``dropped_records``, ``error``."""
        with self._lock:
            return {
                "state": "failing" if self._error else "ok",
                "path": self.path,
                "records": self._written,
                "dropped_records": self._dropped,
                "error": self._error,
            }

    def _envelope(self, kind: str, t_mono_ns: Optional[int]) -> Dict[str, Any]:
        return {
            "schema": SCHEMA,
            "type": kind,
            "seq": self._seq,
            "boot_id": self.boot_id,
            "run_id": self.run_id,
            "t_mono_ns": time.monotonic_ns() if t_mono_ns is None else t_mono_ns,
            "t_wall": host.rfc3339(time.time_ns()),
            "clock_synced": host.clock_synced(),
        }

    # ---- the writer thread -------------------------------------------------------------------------

    def _run(self) -> None:
        self._housekeep(first=True)
        closing = False
        while not closing:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or self._flushes_asked > self._flushes_done, self._flush_s)
                closing, asked = self._closing, self._flushes_asked
                lines, self._pending, self._pending_bytes = self._pending, [], 0
            rotated = self._drain(lines)
            if rotated and not closing:
                self._housekeep()
            with self._changed:
                self._flushes_done = max(self._flushes_done, asked)
                self._changed.notify_all()
        self._finish()

    def _drain(self, lines: List[bytes]) -> bool:
        """Write the lines, rotating where the live file is full; True when it rotated."""
        rotated = False
        done = 0
        try:
            if lines or self._error:
                self._check_disk()
            if not self._start_written and self._start_line and self._error:
                self._append([self._start_line])
                self._start_written = True
            while done < len(lines):
                if self._size and self._size + len(lines[done]) > self._rotate_bytes:
                    self._rotate()
                    rotated = True
                count = _fitting(lines, done, self._rotate_bytes - self._size)
                self._append(lines[done : done + count])
                done += count
                self._start_written = True
            if lines:
                self._recovered()
        except OSError as error:
            self._failed(error, len(lines) - done)
        return rotated

    def _check_disk(self) -> None:
        if self._descriptor is None or not self._is_own_file():
            self._reopen()
        if runlog.free_bytes(self.folder) < self._min_free:
            message = f"less than {self._min_free / 1e6:g} MB free"
            raise OSError(errno.ENOSPC, message)

    def _is_own_file(self) -> bool:
        """Whether the name still leads to what we write to: a disk may have been unmounted or wiped."""
        assert self._descriptor is not None
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self._descriptor))
        except OSError:
            return False

    def _reopen(self) -> None:
        self._close_descriptor()
        if self._mounted and _device(self._log_dir) == _device("/"):
            raise OSError(errno.ENODEV, "the log's disk is not mounted any more")
        os.makedirs(self.folder, exist_ok=True)
        self._descriptor = runlog.open_live(self.folder)
        self._size = os.fstat(self._descriptor).st_size

    def _append(self, lines: List[bytes]) -> None:
        assert self._descriptor is not None
        data = (b"\n" if self._torn else b"") + b"".join(lines)
        written = 0
        try:
            while written < len(data):
                written += os.write(self._descriptor, data[written:])
        except OSError:
            if written:
                self._take_back(written)
            raise
        self._torn = False
        self._size += len(data)
        with self._lock:
            self._written += len(lines)

    def _take_back(self, written: int) -> None:
        """Undo a write that stopped half-way; where that fails, the next one ends the torn line first."""
        assert self._descriptor is not None
        try:
            os.ftruncate(self._descriptor, self._size)
        except OSError:
            self._torn = True
            self._size += written

    def _rotate(self) -> None:
        assert self._descriptor is not None
        os.fsync(self._descriptor)
        runlog.retire(self.folder)
        self._prune()
        self._reopen()
        if self._start_line:  # each file says by itself what was running
            self._append([self._start_line])

    def _prune(self) -> None:
        """Keep the cap, the oldest files going first."""
        # The live file may grow to its limit, and a gzip stands beside its source for a moment.
        allowed = self._max_bytes - self._rotate_bytes - self._rotate_bytes // 2
        try:
            runlog.prune(self._log_dir, self.folder, allowed)
        except OSError as error:
            self._complain(f"cannot delete old telemetry logs in {self._log_dir}: {error}")

    def _housekeep(self, first: bool = False) -> None:
        """Compress what is closed; at the start also tidy up behind earlier runs."""
        try:
            if first:
                runlog.clean_temporaries(self._log_dir)
                self._prune()
            for file in list(runlog.closed_files(self._log_dir, self.folder)):
                if not file.path.endswith(".gz"):
                    runlog.compress(file.path, lambda: self._closing)
        except runlog.Stopped:
            pass
        except OSError as error:
            self._complain(f"cannot compress telemetry logs in {self._log_dir}: {error}")

    def _failed(self, error: OSError, lost: int) -> None:
        with self._lock:
            self._error = error.strerror or str(error)
            self._dropped += lost
            dropped = self._dropped
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            self._close_descriptor()  # a new one next time: the disk may have gone and come back
        cause = error.strerror or str(error)
        self._complain(f"{self.path}: {cause}; {dropped} records dropped so far")

    def _recovered(self) -> None:
        with self._lock:
            failed, self._error = self._error, ""
            dropped = self._dropped
        if failed:
            log.warning("%s: writing again; %d records were dropped", self.path, dropped)
            self.write("event", {"kind": "log_recovered", "error": failed, "dropped_records": dropped})

    def _complain(self, message: str) -> None:
        now = time.monotonic()
        if now - self._complained >= _COMPLAIN_S:
            self._complained = now
            log.warning("%s", message)

    def _finish(self) -> None:
        try:
            if self._descriptor is not None:
                os.fsync(self._descriptor)
        except OSError as error:
            self._failed(error, 0)
        self._close_descriptor()

    def _close_descriptor(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            try:
                os.close(descriptor)
            except OSError:
                pass


def _device(folder: str) -> int:
    """The device that holds a folder, or its nearest parent that exists."""
    while True:
        try:
            return os.stat(folder).st_dev
        except FileNotFoundError:
            folder = os.path.dirname(folder)


def _fitting(lines: List[bytes], first: int, room: int) -> int:
    """How many lines from ``first`` on fit into ``room`` bytes (at least one)."""
    count = size = 0
    for line in lines[first:]:
        if count and size + len(line) > room:
            break
        count += 1
        size += len(line)
    return count


def encode(record: Dict[str, Any]) -> bytes:
    """One line of strict JSON: no NaN, no line break inside; unknown types become strings."""
    return json.dumps(_plain(record), separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"


def _plain(value: Any, depth: int = 0) -> Any:
    """``value`` in JSON's types; a number that is not finite becomes null."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if depth > 16:  # nothing of ours is; even str() could run out of stack on it
        return "..."
    if isinstance(value, dict):
        return {str(key): _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item, depth + 1) for item in value]
    if hasattr(value, "item") and getattr(value, "size", 0) == 1:  # a NumPy scalar
        return _plain(value.item(), depth + 1)
    if hasattr(value, "tolist"):
        return _plain(value.tolist(), depth + 1)
    return str(value)
