"""How far long work has come, and how long it will still take, on stderr."""

from __future__ import annotations

import sys
import time
from typing import Optional

from edgegs.words import duration

#: Seconds before the first word: what is quick needs none.
_QUIET_S = 1.0
#: Seconds between two lines where there is no terminal.
LINE_EVERY_S = 10.0
_REDRAW_S = 0.1
_BAR = 24


class Progress:
    """Called as ``progress(done, of)``: a bar that changes on a terminal, a line now and then elsewhere.

    Begins anew where ``done`` falls back or ``of`` changes: the same object serves several steps.

    Args:
        title: what is being done.
        unit: of what is counted, such as "round".
    """

    def __init__(self, title: str, unit: str = "") -> None:
        self._title, self._unit = title, unit + " " if unit else ""
        self._on_terminal = sys.stderr.isatty()
        self._of: Optional[int] = None
        self._done = 0
        self._began = self._said = time.monotonic()
        self._is_drawn = False

    def retitle(self, title: str) -> None:
        """What is being done from now on."""
        self._title, self._of = title, None

    def __call__(self, done: int, of: int) -> None:
        now = time.monotonic()
        if of != self._of or done < self._done:
            self._of, self._began, self._said, self._is_drawn = of, now, now, False
            self._first = done
        self._done = done
        is_last = done >= of
        if now - self._began < _QUIET_S or (is_last and not self._is_drawn):
            return
        if self._on_terminal and (is_last or now - self._said >= _REDRAW_S):
            n = _BAR * done // max(of, 1)
            line = f"\r{self._text(now)} [{'#' * n}{'.' * (_BAR - n)}]\x1b[K"
            print(line, end="\n" if is_last else "", file=sys.stderr, flush=True)
        elif not self._on_terminal and now - self._said >= LINE_EVERY_S:
            print(self._text(now), file=sys.stderr, flush=True)
        else:
            return
        self._said, self._is_drawn = now, True

    def _text(self, now: float) -> str:
        assert self._of is not None
        text = f"edgegs: {self._title}: {self._unit}{self._done:,} of {self._of:,}"
        n_done = self._done - self._first
        if n_done > 0 and self._done < self._of:
            text += f", {duration((now - self._began) * (self._of - self._done) / n_done)} left"
        return text
