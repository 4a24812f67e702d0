"""Hold frames a second, watts or degrees by giving up quality, in steps.

    ladder    settings ordered by what they cost the picture: each rung gives up one thing more than the one before
    limits    what is measured against a limit: what presses, and whether a better rung may be tried
    sensors   which of a board's readings a limit is about
    control   ``Governor``: one observation a second in, at most one step out

Pure: no clock, no sensor, no renderer of its own. The daemon feeds it and does what it says.
"""

from __future__ import annotations

from edgegs.governor.control import Governor, Step
from edgegs.governor.ladder import Ladder, Rung, Setting, build_ladder, rung_at
from edgegs.governor.limits import Limits
from edgegs.governor.sensors import board_power, hottest

__all__ = [
    "Governor",
    "Ladder",
    "Limits",
    "Rung",
    "Setting",
    "Step",
    "board_power",
    "build_ladder",
    "hottest",
    "rung_at",
]
