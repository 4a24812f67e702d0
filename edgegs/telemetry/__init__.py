"""Temperatures, power, clocks and throttling beside the time of every stage, recorded while it runs."""

from __future__ import annotations

from edgegs.telemetry.facade import Telemetry
from edgegs.telemetry.readlog import LogReader, read_log
from edgegs.telemetry.sampler import Sampler
from edgegs.telemetry.window import StageWindow

__all__ = ["LogReader", "Sampler", "StageWindow", "Telemetry", "read_log"]
