"""Power modes are root's: they are switched by jetson/power-mode.sh, which a sweep starts once and speaks with.

The helper lives as long as its standard input is open. However the sweep ends, the helper sees the end of its input
and restores the mode and the clocks that it found.

Unconfirmed on hardware. On a Jetson: ``sudo jetson/power-mode.sh --dry-run --set 1`` shows the commands, and
``sudo jetson/power-mode.sh --set 1 && sudo nvpmodel -q && sudo jetson/power-mode.sh --restore`` tries them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import subprocess
import time
from typing import List, Optional, Sequence

from edgegs.errors import DeviceError
from edgegs.paths import shipped

log = logging.getLogger(__name__)

SCRIPT = "power-mode.sh"
#: Long enough to type a password; and for nvpmodel, which waits for the clocks.
_START_S, _SWITCH_S = 300.0, 120.0


def helper_command() -> List[str]:
    """How the helper is started: through sudo, unless this is root already.

    Raises:
        DeviceError: it was not installed.
    """
    script = shipped("jetson") / SCRIPT
    if not script.is_file():
        raise DeviceError(f"{script}: is not there; run the sweep from a checkout of edgegs, or leave power_modes out")
    command = ["/bin/sh", str(script), "--serve"]
    return command if os.geteuid() == 0 else ["sudo", "-p", "sudo, to switch power modes: ", *command]


class PowerModes:
    """The running helper; a context that restores at its end.

    Args:
        command: see ``helper_command``.
        pin: whether each mode's clocks are pinned to their highest with jetson_clocks.

    Raises:
        DeviceError: it does not start; the message says what to do.
    """

    def __init__(self, command: Sequence[str], pin: bool) -> None:
        self._pin = pin
        self._has_asked = False
        self._taken: List[Optional[int]] = []  # the mode that was set last, if any was
        self._buffer = b""
        try:
            # in our session: sudo asks on the terminal
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        except OSError as error:
            raise DeviceError(f"{command[0]}: cannot be started ({error.strerror}); leave power_modes out") from None
        try:
            log.info("power modes: %s", self._answer(_START_S))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> PowerModes:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def set(self, mode: Optional[int]) -> None:
        """Take a mode; None leaves the mode as it was found. Raises DeviceError: the board did not take it."""
        if self._taken == [mode]:
            return
        wanted = "keep" if mode is None else str(mode)
        self._ask(f"set {wanted}{' pin' if self._pin else ''}")
        self._taken = [mode]

    def _ask(self, words: str) -> None:
        assert self._process.stdin is not None
        self._has_asked = True
        try:
            self._process.stdin.write(words.encode("ascii") + b"\n")
        except OSError:
            raise DeviceError(f"the helper for power modes has ended; {RESTORE}") from None
        log.info("power modes: %s", self._answer(_SWITCH_S))

    def _answer(self, timeout_s: float) -> str:
        """One line: ``ok …``, or the cause of a failure."""
        assert self._process.stdout is not None
        end = time.monotonic() + timeout_s
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, end - time.monotonic()))
            chunk = os.read(self._process.stdout.fileno(), 4096) if ready else None
            if chunk is None:
                raise DeviceError(f"the helper for power modes gave no answer within {timeout_s:g} s; {RESTORE}")
            if not chunk:
                raise DeviceError("the helper for power modes has ended, see its message above; is sudo allowed?")
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        word, _, rest = line.decode("utf-8", "replace").partition(" ")
        if word != "ok":
            raise DeviceError(f"power modes: {rest or word}")
        return rest

    def close(self) -> None:
        """Have mode and clocks restored, and wait for it; a failure is logged, with the command that mends it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        with contextlib.suppress(DeviceError, OSError):
            log.info("power modes: %s", self._answer(_SWITCH_S))
        try:
            status: Optional[int] = self._process.wait(_SWITCH_S)
        except subprocess.TimeoutExpired:
            status = None  # root's process: only root can end it
        self._process.stdout.close()
        if status != 0 and self._has_asked:  # before that, nothing was changed
            log.error("the power mode may not be as it was before; %s", RESTORE)


RESTORE = f"run `sudo sh {shipped('jetson') / SCRIPT} --restore`"
