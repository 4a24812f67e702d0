"""Joules of a window and of a picture, whole and above the idle baseline; and when a baseline is due."""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, Optional, Sequence, Tuple

from edgegs.bench.validity import Evidence
from edgegs.telemetry.energy import ATTRIBUTION, EnergyMeter, Idle, RailEnergy, by_stage, per_frame
from edgegs.telemetry.readings import Sample

#: A baseline that is invalid is tried again before the next runs, so often; then it is given up for its time.
_TRIES = 3


def energy_of(samples: Sequence[Sample], begin_ns: int, end_ns: int, max_gap_s: float) -> Dict[str, RailEnergy]:
    """Energy of every rail over exactly the window."""
    meter = EnergyMeter(max_gap_s)
    for sample in samples:
        meter.take(sample)
    return meter.measure(begin_ns, end_ns)


def energy_fields(
    evidence: Evidence,
    rail: Optional[str],
    idle: Optional[Dict[str, Any]] = None,
    stage_s: Optional[Dict[str, float]] = None,
) -> Optional[Dict[str, Any]]:
    """What the rail that counts drew, and a picture's share of it; None where that is not known.

    Args:
        idle: line of the baseline that the net figures start from, if there is one.
        stage_s: seconds of the window that each stage took.
    """
    if rail is None or rail not in evidence.energy_j:
        return None
    joules, window_s = evidence.energy_j[rail], evidence.window_s
    fields: Dict[str, Any] = {"rail": rail, "mean_w": round(joules / window_s, 5), "energy_j": round(joules, 5)}
    if evidence.frames is None:
        return fields
    fields.update(dict.fromkeys(("j_per_frame", "idle_id", "idle_w", "net_w", "net_j_per_frame", "net_j_spread")))
    base: Optional[Idle] = None
    drawn = ((idle or {}).get("power") or {}).get(rail)
    if idle is not None and drawn is not None:
        base = Idle(drawn["mean_w"], drawn["sd_w"] or 0.0, drawn["n"])
        fields.update(idle_id=idle["idle_id"], idle_w=base.watts, net_w=round(joules / window_s - base.watts, 5))
    each = per_frame(joules, window_s, evidence.frames, base)
    if each is not None:
        fields["j_per_frame"] = round(each.gross, 6)
        if each.net is not None and each.net_spread is not None:
            fields.update(net_j_per_frame=round(each.net, 6), net_j_spread=round(each.net_spread, 6))
    shares = by_stage(joules, window_s, stage_s or {})
    fields["stage_j"] = {stage: round(share, 5) for stage, share in shares.items()}
    fields["stage_j_method"] = ATTRIBUTION
    return fields


class Baselines:
    """The idle baseline of each power mode: one before the first run, and a new one when it is ``every_s`` old.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, every_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._every_s, self._clock = every_s, clock
        self._valid: Dict[Optional[int], Dict[str, Any]] = {}
        self._tried: Dict[Optional[int], Tuple[float, int]] = {}  # when the first of these tries was, and how many

    def is_due(self, mode: Optional[int]) -> bool:
        """Whether to measure one now."""
        return self._is_old(mode) or (mode not in self._valid and self._tried[mode][1] < _TRIES)

    def _is_old(self, mode: Optional[int]) -> bool:
        return mode not in self._tried or self._clock() - self._tried[mode][0] >= self._every_s

    def take(self, mode: Optional[int], record: Dict[str, Any]) -> None:
        """One was measured."""
        if self._is_old(mode):
            self._valid.pop(mode, None)
            self._tried[mode] = (self._clock(), 0)
        first, tries = self._tried[mode]
        self._tried[mode] = (first, tries + 1)
        if record["valid"]:
            self._valid[mode] = record

    def of(self, mode: Optional[int]) -> Optional[Dict[str, Any]]:
        """The valid one of a mode; None where there is none."""
        return self._valid.get(mode)
