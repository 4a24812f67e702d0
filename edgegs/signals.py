"""Signals of a run: each handler only notes what is asked for, and the loop looks."""

from __future__ import annotations

import os
import signal
from typing import Any, Callable, Set


class Signals:
    """TERM and INT end the run, HUP reads the configuration again, USR1 writes the status.

    A second INT ends the process at once, whatever it is doing. Between ``handle`` and ``restore``, which only the main
    thread may call.

    Args:
        stop: called with the name of the signal that asks for the end.
    """

    def __init__(self, stop: Callable[[str], None]) -> None:
        self._stop = stop
        self._n_interrupts = 0
        self._asked: Set[int] = set()
        self._before: Any = {}

    def handle(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, self._end)
        for number in (signal.SIGHUP, signal.SIGUSR1):
            self._before[number] = signal.signal(number, self._note)

    def restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def take(self, number: int) -> bool:
        """Whether HUP or USR1 came since the last call."""
        if number not in self._asked:
            return False
        self._asked.discard(number)
        return True

    def _end(self, number: int, _: Any) -> None:
        self._n_interrupts += number == signal.SIGINT
        if self._n_interrupts > 1:
            os._exit(130)
        self._stop(signal.Signals(number).name)

    def _note(self, number: int, _: Any) -> None:
        self._asked.add(number)
