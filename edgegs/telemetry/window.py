"""What the frames of one window cost: rates, percentiles of every stage, counts, drops."""

from __future__ import annotations

import threading
from typing import Any, Dict, List, Tuple

import numpy as np

from edgegs.frame import STAGES, Frame

#: Frames kept for percentiles in one window; more are counted but not kept (a window that never closes).
MAX_FRAMES = 65536

_Row = Tuple[float, Dict[str, float], int, int, int, int]


class StageWindow:
    """Collects frames; ``cut`` hands out the window and starts the next one. Thread-safe.

    Args:
        begin_ns: monotonic time at which the first window begins.
    """

    def __init__(self, begin_ns: int = 0) -> None:
        self._lock = threading.Lock()
        self._begin_ns = begin_ns
        self._rows: List[_Row] = []
        self._frames = 0
        self._redraws = 0
        self._dropped: Dict[str, Dict[str, int]] = {}

    def add(self, frame: Frame) -> None:
        """Count one drawn frame (microseconds; never waits for anything but another ``add``)."""
        row = (
            frame.frame_ms,
            frame.stage_ms,
            frame.n_splats,
            frame.n_visible,
            frame.n_instances,
            frame.redraws,
        )
        with self._lock:
            self._frames += 1
            self._redraws += frame.redraws
            if len(self._rows) < MAX_FRAMES:
                self._rows.append(row)

    def drop(self, output: str, n: int = 1, reason: str = "slow") -> None:
        """Count ``n`` frames that ``output`` did not get."""
        with self._lock:
            reasons = self._dropped.setdefault(output, {})
            reasons[reason] = reasons.get(reason, 0) + n

    def cut(self, t_ns: int) -> WindowData:
        """End the window at ``t_ns`` and begin the next; the figures are computed later, without the lock."""
        with self._lock:
            data = WindowData(self._begin_ns, t_ns, self._rows, self._frames, self._redraws, self._dropped)
            self._begin_ns = t_ns
            self._rows = []
            self._frames = self._redraws = 0
            self._dropped = {}
        return data


class WindowData:
    """The raw content of a closed window."""

    def __init__(
        self,
        begin_ns: int,
        end_ns: int,
        rows: List[_Row],
        frames: int,
        redraws: int,
        dropped: Dict[str, Dict[str, int]],
    ) -> None:
        self.begin_ns, self.end_ns = begin_ns, end_ns
        self.frames, self.redraws, self.dropped = frames, redraws, dropped
        self._rows = rows

    @property
    def seconds(self) -> float:
        """Length of the window."""
        return max(0, self.end_ns - self.begin_ns) / 1e9

    def stage_s(self) -> Dict[str, float]:
        """Seconds that the window's frames spent in each stage, all together."""
        spent: Dict[str, float] = {}
        for _, stages, _, _, _, _ in self._rows:
            for stage, milliseconds in stages.items():
                spent[stage] = spent.get(stage, 0.0) + milliseconds
        # frames beyond those kept took as long as these did
        scale = self.frames / len(self._rows) / 1e3 if self._rows else 0.0
        order = [stage for stage in STAGES if stage in spent]
        order += [stage for stage in spent if stage not in STAGES]
        return {stage: spent[stage] * scale for stage in order}

    def summary(self) -> Dict[str, Any]:
        """The window's figures.

        Returns:
            ``window_s``, ``frames``, ``fps``, ``redraws``, ``dropped`` {output: {reason: n}}; with at
            least one frame also ``frame_ms`` and ``stage_ms`` {stage: …} as {p50, p95, max, mean} in
            milliseconds (linear percentiles) and ``n_splats``, ``n_visible``, ``n_instances`` (means).
        """
        seconds = self.seconds
        result: Dict[str, Any] = {
            "window_s": round(seconds, 6),
            "frames": self.frames,
            "fps": round(self.frames / seconds, 3) if seconds > 0 else 0.0,
            "dropped": self.dropped,
            "redraws": self.redraws,
        }
        if not self._rows:
            return result
        by_stage: Dict[str, List[float]] = {}
        for _, stages, _, _, _, _ in self._rows:
            for stage, milliseconds in stages.items():
                by_stage.setdefault(stage, []).append(milliseconds)
        order = [stage for stage in STAGES if stage in by_stage]
        order += [stage for stage in by_stage if stage not in STAGES]
        result["stage_ms"] = {stage: figures(by_stage[stage]) for stage in order}
        result["frame_ms"] = figures([row[0] for row in self._rows])
        means = np.asarray([row[2:5] for row in self._rows], dtype=np.float64).mean(axis=0)
        for name, mean in zip(("n_splats", "n_visible", "n_instances"), means):
            result[name] = round(float(mean))
        return result


def figures(milliseconds: List[float]) -> Dict[str, float]:
    """p50, p95, max and mean of at least one value, rounded to a microsecond."""
    values = np.asarray(milliseconds, dtype=np.float64)
    p50, p95 = np.percentile(values, (50, 95))
    pairs = (("p50", p50), ("p95", p95), ("max", values.max()), ("mean", values.mean()))
    return {name: round(float(value), 3) for name, value in pairs}
