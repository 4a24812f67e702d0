"""How figures are said to people, the same way everywhere."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """A time as people say it: "0.3 s", "45 s", "1 min 30 s", "50 min", "2 h 05 min"."""
    if seconds < 9.95:
        return f"{round(seconds, 1):g} s"
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest} s"
    if minutes < 60:
        return f"{minutes} min {rest:02d} s" if rest else f"{minutes} min"
    return "{} h {:02d} min".format(*divmod(round(seconds / 60), 60))
