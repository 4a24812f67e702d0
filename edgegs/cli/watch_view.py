"""``edgegs bench --watch``: a live view in the terminal, of a running edgegs or of a measurement under way.

A terminal and rich (``pip install 'edgegs[watch]'``) give a page that changes in place; otherwise a line now and then.
"""

from __future__ import annotations

import argparse
import collections
import statistics
import sys
import time
from typing import Any, Callable, Deque, Dict, List, Optional, Sequence, Tuple

from edgegs.cli.status_parts import figures, given_up, limits, number, outputs, stages, throttled
from edgegs.errors import AccessError, DeviceError
from edgegs.findings import one_line

#: Seconds between two looks, and between two lines where there is no page.
EVERY_S, LINE_EVERY_S = 1.0, 2.0
#: Figures behind the small charts; samples behind a stage's median.
KEPT, SAMPLES = 60, 200
MISSING = "lines instead of a page: rich is not installed; get it with: pip install 'edgegs[watch]'"

_BLOCKS = " ▁▂▃▄▅▆▇█"
_COLOURS = ("blue", "yellow", "green", "magenta", "cyan", "red", "white")


# ---- what is shown, without a terminal -------------------------------------------------------------------------


def line(status: Dict[str, Any]) -> str:
    """The status in one line."""
    fps, frame = number(status.get("fps")), figures(status.get("frame_ms"))
    parts = [one_line(str(status.get("state") or "?"))]
    if fps is not None:
        parts.append(f"{fps:.1f} FPS")
    if "p50" in frame:
        parts.append("{:.1f} ms".format(frame["p50"]))
    told = [f"{name} {p50:.2f}" for name, p50, _ in stages(status.get("stages"))]
    parts += ["stages " + " ".join(told)] if told else []
    parts += [f"{name} {watts:.2f} W" for name, watts in figures(status.get("power_w")).items()]
    degrees = figures(status.get("temp_c"))
    if degrees:
        hottest = max(degrees, key=lambda name: degrees[name])
        parts.append(f"{hottest} {degrees[hottest]:.1f} °C")
    causes = throttled(status)
    parts += ["THROTTLED: " + " ".join(causes)] if causes else []
    governed = given_up(status)
    parts += [f"governor: {governed}"] if governed else []
    parts += [f"{name} {text}" for name, text, _ in limits(status)]
    listed = outputs(status)
    up = sum(one.get("state") == "up" for one in listed)
    down = [one_line(str(one.get("name") or one.get("uri") or "?")) for one in listed if one.get("state") != "up"]
    parts.append(f"{up} of {len(listed)} outputs up" + (f" ({', '.join(down)} not)" if down else ""))
    return time.strftime("%H:%M:%S ") + ", ".join(parts)


def spark(values: Sequence[Optional[float]], width: int = 30) -> str:
    """The last values as a row of blocks, from the lowest (at most 0.8 of the highest) to the highest.

    What is missing is a space.
    """
    shown = list(values)[-width:]
    known = [max(0.0, one) for one in shown if one is not None]
    top = max(known, default=0.0)
    if top <= 0:
        return ""
    low = min(0.8 * top, min(known))
    return "".join(
        " " if one is None else _BLOCKS[1 + int(7.999 * (max(0.0, one) - low) / (top - low))] for one in shown
    )


class History:
    """The last figures of a status, for the small charts; and how fast outputs take frames."""

    def __init__(self) -> None:
        self.series: Dict[str, Deque[Optional[float]]] = {}
        self.rates: Dict[str, float] = {}
        self._before: Dict[str, Tuple[float, float]] = {}

    def add(self, status: Dict[str, Any], now: float) -> None:
        values: Dict[str, Optional[float]] = {"fps": number(status.get("fps"))}
        values.update({"W " + name: watts for name, watts in figures(status.get("power_w")).items()})
        values.update({"C " + name: degrees for name, degrees in figures(status.get("temp_c")).items()})
        for name in [*values, *(name for name in self.series if name not in values)][:64]:
            self.series.setdefault(name, collections.deque(maxlen=KEPT)).append(values.get(name))
        rates = {}
        for one in outputs(status):
            name, written = str(one.get("name") or one.get("uri")), number(one.get("frames_written"))
            if written is None:
                continue
            then, before = self._before.get(name, (now, written))
            if now > then and written >= before:
                rates[name] = (written - before) / (now - then)
            self._before[name] = (now, written)
        self.rates = rates

    def chart(self, name: str) -> str:
        return spark(self.series.get(name, ()))


# ---- pages -----------------------------------------------------------------------------------------------------


def page(status: Dict[str, Any], history: History, problem: str = "") -> Any:
    """The status as something rich can draw."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    def text(value: Any, style: str = "") -> Text:
        return Text(one_line(str(value)), style=style)  # never as markup: names come from outside

    fps, frame = number(status.get("fps")), figures(status.get("frame_ms"))
    head = Table.grid(padding=(0, 2))
    width, height = number(status.get("width")), number(status.get("height"))
    said = [status.get(key) for key in ("scene", "backend", "device", "variant")]
    told = [one_line(str(one)) for one in said if one]
    told += [f"{width:.0f}×{height:.0f}"] if width is not None and height is not None else []
    head.add_row(text(status.get("state") or "?", "bold"), text(" · ".join(told)))
    if fps is not None:
        p50 = "{:.1f} ms (p95 {:.1f})".format(frame["p50"], frame.get("p95", frame["p50"])) if "p50" in frame else ""
        head.add_row(text(f"{fps:.1f} FPS", "bold green"), text(f"{history.chart('fps')}  {p50}"))
    parts: List[Any] = [head]
    if problem:
        parts.append(text(problem, "bold red"))
    parts.append(_stage_table([("", stages(status.get("stages")))]))
    sensors = Table.grid(padding=(0, 2))
    for name, watts in figures(status.get("power_w")).items():
        sensors.add_row(text(name), text(f"{watts:.2f} W", "bold"), text(history.chart("W " + name), "yellow"))
    for name, degrees in sorted(figures(status.get("temp_c")).items(), key=lambda item: -item[1])[:6]:
        style = "red" if degrees >= 85 else "yellow" if degrees >= 70 else "green"
        sensors.add_row(text(name), text(f"{degrees:.1f} °C", style), text(history.chart("C " + name), style))
    causes = throttled(status)
    if causes:
        sensors.add_row(text("throttled", "bold red"), text(", ".join(causes), "bold red"))
    elif causes is not None:
        sensors.add_row(text("throttled"), text("no", "green"))
    governed = given_up(status)
    if governed:
        sensors.add_row(text("governor"), text(governed, "bold"))
    for name, told_limit, held in limits(status):
        style = {True: "green", False: "bold red", None: "yellow"}[held]
        sensors.add_row(text(f"limit {name}"), text(told_limit, style))
    parts.append(sensors)
    table = Table("output", "state", "frames", "FPS", "dropped", "", box=None, pad_edge=False)
    for one in outputs(status):
        name = str(one.get("name") or one.get("uri") or "?")
        rate, state = history.rates.get(name), str(one.get("state") or "?")
        cells = [name, state, one.get("frames_written", ""), "" if rate is None else f"{rate:.1f}"]
        cells += [one.get("frames_dropped", ""), one.get("last_error") or ""]
        styles = ["", "green" if state == "up" else "bold red", "", "", "", "red"]
        table.add_row(*[text(cell, style) for cell, style in zip(cells, styles)])
    if table.row_count:
        parts.append(table)
    return Group(*_spaced(parts))


def _stage_table(rows: Sequence[Tuple[str, List[Tuple[str, float, Optional[float]]]]]) -> Any:
    """Stages with bars, for one or several who draw."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    top = max((p50 for _, found in rows for _, p50, _ in found), default=0.0)
    for title, found in rows:
        if title:
            total = sum(p50 for _, p50, _ in found)
            table.add_row(Text(title, style="bold"), Text(f"{total:.2f} ms" if found else "", style="bold"))
        for index, (name, p50, p95) in enumerate(found):
            bar = "█" * max(1, round(28 * p50 / top)) if top > 0 else ""
            cells = [Text(name), Text(f"{p50:8.2f} ms"), Text(bar, style=_COLOURS[index % len(_COLOURS)])]
            table.add_row(*cells, Text("" if p95 is None else f"p95 {p95:.2f}", style="dim"))
    return table


def _spaced(parts: Sequence[Any]) -> List[Any]:
    spaced: List[Any] = []
    for part in parts:
        spaced += [part, ""]
    return spaced[:-1]


class Screen:
    """A page that changes in place, or lines: what this terminal and this Python can do.

    Use as a context manager; ``show`` takes functions, of which one is called.
    """

    def __init__(self, line_every_s: float = LINE_EVERY_S) -> None:
        self._line_every_s = line_every_s
        self._said = float("-inf")
        self._live = _live()

    @property
    def is_page(self) -> bool:
        return self._live is not None

    def __enter__(self) -> Screen:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, make_page: Callable[[], Any], make_line: Callable[[], str]) -> None:
        now = time.monotonic()
        if self._live is not None:
            self._live.update(make_page(), refresh=True)
        elif now - self._said >= self._line_every_s:
            print(make_line(), flush=True)
            self._said = now


def _live() -> Any:
    """rich's, or None where there is no terminal, or no rich (said once)."""
    isatty = getattr(sys.stdout, "isatty", None)
    if isatty is None or not isatty():
        return None
    try:
        from rich.console import Console
        from rich.live import Live
    except ImportError:
        print("edgegs: " + MISSING, file=sys.stderr)
        return None
    console = Console(file=sys.stdout)  # type: ignore[arg-type]
    if console.is_dumb_terminal:
        return None
    return Live(console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)


# ---- of a running edgegs ---------------------------------------------------------------------------------------


def watch(args: argparse.Namespace, duration_s: Optional[float] = None, every_s: float = EVERY_S) -> int:
    """Show a running edgegs until interrupted, or for so long; one that goes away is waited for.

    Args:
        args: ``url``, ``token_file`` and ``timeout``, as ``edgegs status`` has them.

    Raises:
        DeviceError (69): nothing runs there. AccessError, UsageError, InputError: as ``edgegs status``.
    """
    from edgegs.cli.status import fetch

    status, history, problem = fetch(args), History(), ""
    end = None if duration_s is None else time.monotonic() + duration_s
    try:
        with Screen() as screen:
            while True:
                if not problem:
                    history.add(status, time.monotonic())
                shown, why = status, problem
                screen.show(lambda: page(shown, history, why), lambda: why or line(shown))  # noqa: B023
                left = every_s if end is None else min(every_s, end - time.monotonic())
                if left <= 0:
                    return 0
                time.sleep(left)
                try:
                    status, problem = fetch(args), ""
                except (DeviceError, AccessError) as error:
                    problem = one_line(str(error))
    except KeyboardInterrupt:
        return 0  # how one leaves


# ---- of a measurement under way --------------------------------------------------------------------------------


class Watched:
    """A contender whose samples can be looked at while it is measured; costs an append a frame."""

    def __init__(self, contender: Any) -> None:
        self._contender = contender
        self.seen: Deque[Any] = collections.deque(maxlen=SAMPLES)

    def draw(self) -> Any:
        sample = self._contender.draw()
        self.seen.append(sample)
        return sample

    def __getattr__(self, name: str) -> Any:
        return getattr(self._contender, name)


class BenchView:
    """Called as ``view(done, of)`` between rounds, as ``Progress`` is: nothing is drawn while frames are timed.

    Args:
        title: what is measured.
        contenders: those to be measured; measure ``watched`` in their place.
    """

    def __init__(self, title: str, contenders: Sequence[Any], screen: Screen) -> None:
        self._title, self._screen = title, screen
        self.watched = [Watched(one) for one in contenders]

    def __call__(self, done: int, of: int) -> None:
        self._screen.show(lambda: self._page(done, of), lambda: self._line(done, of))

    def _medians(self, one: Watched) -> List[Tuple[str, float, Optional[float]]]:
        samples = [sample.stage_ms for sample in one.seen]
        names = dict.fromkeys(name for sample in samples for name in sample)
        found = [(name, [sample[name] for sample in samples if name in sample]) for name in names]
        return [(name, statistics.median(values), None) for name, values in found]

    def _page(self, done: int, of: int) -> Any:
        from rich.console import Group
        from rich.text import Text

        head = Text(f"{self._title}: round {done:,} of {of:,}, median stages so far", style="bold")
        return Group(head, "", _stage_table([(str(one.name), self._medians(one)) for one in self.watched]))

    def _line(self, done: int, of: int) -> str:
        told = [f"{one.name} {sum(p50 for _, p50, _ in self._medians(one)):.2f} ms" for one in self.watched]
        return f"{self._title}: round {done:,} of {of:,}: " + ", ".join(told)
