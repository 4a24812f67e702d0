"""The recorder: append-only JSON lines that survive power loss and a full disk, and never stop the picture.

Callers only append to a bounded buffer. One thread writes it out every few seconds, makes it durable, rotates,
compresses and prunes; whatever the disk does to it ends there, as a state, a count and a rare complaint.

What holds, as long as the state is "ok":

- Killed (SIGKILL, out of memory): every record older than ``flush_s`` is there.
- Power cut: every record older than ``sync_s + flush_s`` is there, and so is the start record after the first
  seconds. What is younger may be lost; the last line may be torn, and reading drops it.
- At any moment: a closed file is never lost while it is renamed, compressed or replaced; only the cap deletes.
- A disk that is missing at the start is tried again for as long as the run lasts, and records wait in the buffer
  (five minutes of them). One that fails later (full, read-only, broken, unmounted) costs the records of that time.

What it costs an SD card at the defaults, with a Nano's record of 1.2 kB a second (an hour's records on an ext4 image,
counted by strace and the block device): 360 writes and 60 fsyncs an hour; 107 MB of records a day, 12 MB of them
compressed; 146 MB a day written to the device with the file system's journal, 158 MB with the compression.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from edgegs.sinks.backoff import Backoff
from edgegs.telemetry import host, housekeeping, runlog
from edgegs.telemetry.livefile import LiveFile
from edgegs.telemetry.records import encode, fitting, is_start, with_run_id
from edgegs.telemetry.wake import Wakeup

log = logging.getLogger("edgegs.telemetry")

SCHEMA = 1

#: Lines waiting for the disk: about five minutes of them. More is dropped, newest first.
BUFFER_BYTES = 256 << 10

#: The writer does not wait for its interval when this much has come together.
_EAGER_BYTES = 32 << 10

#: The same complaint once in the longer time, another one at least the shorter after the last.
_SAME_S, _OTHER_S = 3600.0, 60.0

#: The longest sleep of the writer when no time is set.
_IDLE_S = 60.0
_ENVELOPE = ("schema", "type", "seq", "boot_id", "run_id", "t_mono_ns", "t_wall", "clock_synced")


class Recorder:
    """Writes one run's records below ``log_dir``; see ``runlog`` for the files and where the folder may be.

    A disk that is not there, full or broken is no error but a state; see ``status``.

    Args:
        log_dir: made if missing; the folder above it must exist. boot_id: the kernel's, by default.
        max_mb: cap over all runs' files together. rotate_mb: size at which the live file is closed (at
            most a quarter of the cap, so that the cap can be kept by deleting closed files).
        flush_s: how long a record may wait before it is written; 0 writes each at once.
        min_free_mb: below this much free space nothing is written.
        sync_s: how long what was written may wait before it is made durable.
        start_wait_s: how long the constructor waits for the disk; the run is opened later otherwise.
        fstab: where it is written down what should be mounted.
        on_state: called in the writer's thread with ("log_failing", {"error": …}) and
            ("log_recovered", {"error": …, "dropped_records": n}); the latter also becomes a record.

    Attributes:
        run_id, folder, path: the run's name, its folder and its live file; "" until the run is opened.
    """

    def __init__(
        self,
        log_dir: str,
        boot_id: Optional[str] = None,
        max_mb: float = 256.0,
        rotate_mb: float = 16.0,
        flush_s: float = 10.0,
        min_free_mb: float = 64.0,
        sync_s: float = 60.0,
        start_wait_s: float = 2.0,
        fstab: str = runlog.FSTAB,
        on_state: Optional[Callable[[str, Dict[str, Any]], None]] = None,
    ) -> None:
        self.boot_id = boot_id or host.boot_id()
        self.run_id = self.folder = self.path = ""
        self._log_dir = os.path.abspath(log_dir)
        self._fstab = fstab
        self._max_bytes = int(max_mb * 1e6)
        self._rotate_bytes = max(1, int(min(rotate_mb, max_mb / 4) * 1e6))
        self._flush_s, self._sync_s, self._min_free = flush_s, sync_s, int(min_free_mb * 1e6)
        self._on_state = on_state

        self._lock = threading.Lock()  # guards what follows
        self._flushed = threading.Condition(self._lock)
        self._pending: List[bytes] = []
        self._pending_bytes = 0
        self._seq = 0
        self._written = self._synced = self._dropped = 0
        self._error = ""
        self._start_line = b""
        self._closing = False
        self._flushes_asked = self._flushes_done = 0

        # the writer's own
        self._live: Optional[LiveFile] = None
        self._start_written = False
        self._drained_at = self._synced_at = self._retry_at = float("-inf")
        self._backoff = Backoff()
        self._rotated = False
        self._complaints: Dict[str, Tuple[str, float]] = {}
        self._wake = Wakeup()
        self._tried = threading.Event()
        self._thread = threading.Thread(target=self._run, name="edgegs-recorder", daemon=True)
        self._thread.start()
        self._tried.wait(start_wait_s)

    # ---- callers' side: no disk, no exceptions -----------------------------------------------------

    def write(self, kind: str, fields: Dict[str, Any], t_mono_ns: Optional[int] = None) -> None:
        """Queue a record of type ``kind`` ("start", "window", "event", "stop"); never raises.

        Fields named like the envelope's are overwritten by it; values that JSON lacks are made strings.
        """
        try:
            with self._lock:
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
                at_once = kind == "start" or self._flush_s <= 0 or self._pending_bytes >= _EAGER_BYTES
            if at_once:
                self._wake.set()
        except Exception:  # whatever a caller hands over, the picture goes on
            log.exception("a telemetry record could not be encoded")

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Have everything queued so far written, now; True when that has been tried within the time-out."""
        with self._flushed:
            self._flushes_asked += 1
            ticket = self._flushes_asked
            self._wake.set()
            return self._flushed.wait_for(lambda: self._flushes_done >= ticket, timeout_s)

    def close(self, timeout_s: float = 5.0) -> bool:
        """Write out, make durable and close; True when that was done within the time-out."""
        with self._lock:
            self._closing = True
        self._wake.set()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            log.warning("the disk under %s does not answer; the end of the log may be missing", self._log_dir)
        return not self._thread.is_alive()

    def status(self) -> Dict[str, Any]:
        """``state``: "ok"; "waiting" (no run could be opened yet) or "failing", with the ``error``. ``path`` of the
        live file or None; counts of ``records`` written, ``synced_records`` that no power cut can take any more,
        ``dropped_records``.
        """
        with self._lock:
            return {
                "state": "ok" if not self._error else "failing" if self.run_id else "waiting",
                "path": self.path or None,
                "records": self._written,
                "synced_records": self._synced,
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
        closing = tidied = False
        while not closing:
            with self._lock:
                closing, asked = self._closing, self._flushes_asked
                forced = closing or asked > self._flushes_done
            self._drain(forced, closing)
            self._tried.set()
            if self.run_id and not closing and (self._rotated or not tidied):
                self._housekeep(first=not tidied)
                tidied = True
            with self._flushed:
                self._flushes_done = asked
                self._flushed.notify_all()
            if not closing:
                self._wake.wait(self._pause())
        if self._live is not None:
            self._live.close()
        with self._lock:
            self._dropped += len(self._pending)
            self._pending, self._pending_bytes = [], 0
        self._wake.close()

    def _pause(self) -> float:
        """Seconds until there is something to do that nobody wakes the writer for."""
        now = time.monotonic()
        pause = self._flush_s if self._flush_s > 0 else _IDLE_S
        if self._error:
            pause = min(pause, self._retry_at - now)
        elif self._live is not None and self._live.dirty:
            pause = min(pause, self._synced_at + self._sync_s - now)
        return pause

    def _drain(self, forced: bool, closing: bool = False) -> None:
        """Write what waits; before its time, a disk that failed is only tried again when ``forced``."""
        self._drained_at = now = time.monotonic()
        resting = bool(self._error) and now < self._retry_at and not forced
        if not self.run_id and (resting or not self._open()):
            return  # the records wait
        with self._lock:
            lines, self._pending, self._pending_bytes = self._pending, [], 0
        if resting:
            with self._lock:
                self._dropped += len(lines)
            return
        done = 0
        try:
            if lines or self._error:
                self._check_disk()
            while done < len(lines):
                done += self._append_some(lines, done)
            if closing or now >= self._synced_at + self._sync_s:
                self._sync()
            self._recovered()
        except Exception as error:  # an OSError; anything else must not end the log for good, either
            self._failed(error, len(lines) - done)

    def _open(self) -> bool:
        """Make the run's folder and live file; False when the disk is not ready for that."""
        folder = ""
        try:
            runlog.prepare(self._log_dir, self._fstab)
            run_id, folder = runlog.create_run(self._log_dir, self.boot_id)
            live = LiveFile(self._log_dir, folder)
            live.ensure()
        except Exception as error:
            if folder:
                with contextlib.suppress(OSError):
                    os.rmdir(folder)
            self._note_failure(error)
            self._complain("open", "no run log is kept, for now: " + runlog.explain(self._log_dir, error))
            return False
        self._live = live
        with self._lock:
            self.run_id, self.folder, self.path = run_id, live.folder, live.path
        self._recovered()
        return True

    def _check_disk(self) -> None:
        assert self._live is not None
        self._live.ensure()
        if runlog.free_bytes(self.folder) < self._min_free:
            self._sync()  # what was written while there was room
            raise OSError(errno.ENOSPC, f"less than {self._min_free / 1e6:g} MB free")

    def _append_some(self, lines: List[bytes], done: int) -> int:
        """Append as many lines from ``done`` on as fit into the live file, or begin the next one; returns how many."""
        assert self._live is not None
        if self._live.size and self._live.size + len(lines[done]) > self._rotate_bytes:
            self._sync()
            self._live.rotate()
            self._rotated = True
            self._prune()
        fresh = self._live.size == 0 and self._start_written  # each file says by itself what was running
        if self._start_line and (fresh or (self._error and not self._start_written)):
            self._append([self._start_line])
            self._start_written = True
        count = fitting(lines, done, self._rotate_bytes - self._live.size)
        self._append(lines[done : done + count])
        if not self._start_written:
            self._start_written = any(is_start(line) for line in lines[done : done + count])
        return count

    def _append(self, lines: List[bytes]) -> None:
        assert self._live is not None
        self._live.append([with_run_id(line, self.run_id) for line in lines])
        with self._lock:
            self._written += len(lines)

    def _sync(self) -> None:
        """Make what was written durable."""
        if self._live is None or not self._live.dirty:
            return
        self._live.ensure()
        self._live.sync()
        self._synced_at = time.monotonic()
        with self._lock:
            self._synced = self._written

    # ---- behind the live file ----------------------------------------------------------------------

    def _prune(self) -> None:
        """Keep the cap, the oldest files going first."""
        # The live file may grow to its limit, and a gzip stands beside its source for a moment.
        allowed = self._max_bytes - self._rotate_bytes - self._rotate_bytes // 2
        try:
            housekeeping.prune(self._log_dir, self.folder, allowed, self._cannot_delete)
        except OSError as error:
            self._cannot_delete(error)

    def _housekeep(self, first: bool) -> None:
        """Compress what is closed; at the start also mend and prune what earlier runs left."""
        self._rotated = False
        try:
            with housekeeping.turn(self._log_dir) as ours:
                if first:
                    if ours:
                        housekeeping.mend(self._log_dir, self.folder, self._cannot_delete)
                    self._prune()
                if ours and runlog.free_bytes(self._log_dir) >= self._min_free:
                    housekeeping.compress_all(self._log_dir, self.folder, self._between, self._cannot_compress)
        except housekeeping.Stopped:
            pass
        except Exception as error:
            self._cannot_compress(error)

    def _between(self) -> None:
        """While a large file is compressed, which takes a small board seconds, records are written in time."""
        if self._closing:
            raise housekeeping.Stopped
        if time.monotonic() >= self._drained_at + max(self._flush_s, 1.0):
            self._drain(forced=False)

    # ---- failures ----------------------------------------------------------------------------------

    def _failed(self, error: Exception, lost: int) -> None:
        with self._lock:
            self._dropped += lost
        if not isinstance(error, OSError):
            log.error("the telemetry log cannot be written", exc_info=error)
        if self._live is not None and getattr(error, "errno", None) not in (errno.ENOSPC, errno.EDQUOT):
            self._live.close()  # a new descriptor next time: the disk may have gone and come back
        self._note_failure(error)
        self._complain("write", f"{self.path}: {runlog.cause(error)}", f"; {self._dropped} records dropped so far")

    def _note_failure(self, error: Exception) -> None:
        """Set the state and the time of the next try."""
        now = time.monotonic()
        with self._lock:
            before, self._error = self._error, runlog.cause(error)
        if not before:
            self._backoff.failed(now)
            self._tell("log_failing", {"error": self._error})
        self._retry_at = now + self._backoff.next_wait()

    def _recovered(self) -> None:
        with self._lock:
            failed, self._error = self._error, ""
            dropped = self._dropped
        if not failed:
            return
        self._backoff.opened(time.monotonic())
        log.warning("%s: writing again; %d records were dropped", self.path, dropped)
        fields = {"error": failed, "dropped_records": dropped}
        self.write("event", dict(fields, kind="log_recovered"))
        self._tell("log_recovered", fields)

    def _tell(self, kind: str, fields: Dict[str, Any]) -> None:
        try:
            if self._on_state is not None:
                self._on_state(kind, fields)
        except Exception:
            log.exception("telling the log's state failed")

    def _cannot_delete(self, error: Exception) -> None:
        self._complain("delete", f"cannot delete old telemetry logs in {self._log_dir}: {error}")

    def _cannot_compress(self, error: Exception) -> None:
        self._complain("compress", f"cannot compress telemetry logs in {self._log_dir}: {error}")

    def _complain(self, topic: str, message: str, detail: str = "") -> None:
        """Warn, rarely: a disk that stays full for months must not fill the system's log, too."""
        now = time.monotonic()
        said, at = self._complaints.get(topic, ("", float("-inf")))
        if now - at >= (_SAME_S if message == said else _OTHER_S):
            self._complaints[topic] = (message, now)
            log.warning("%s", message + detail)
