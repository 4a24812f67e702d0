"""What a run prints at its end: the times of its last frames, stage by stage, and what became of each output."""

from __future__ import annotations

import dataclasses
from typing import Sequence

import numpy as np

from edgegs.frame import STAGES, Frame
from edgegs.outputs import PacedOutput


def figures(frame: Frame) -> Frame:
    """The frame without its pictures: a run keeps thousands for its summary."""
    return dataclasses.replace(frame, image=np.empty((0, 0, 3), np.uint8), image_f32=None, transmittance=None)


def summary(frames: Sequence[Frame], n_frames: int, n_redraws: int, outputs: Sequence[PacedOutput]) -> str:
    """A table for people.

    Args:
        frames: the last ones of the run, oldest first.
        n_frames: of the whole run, whatever scenes it drew.
        n_redraws: how often a frame of the run was drawn again, because the instance buffer had to grow.
        outputs: one line each.
    """
    if not frames:
        return "no frame was drawn"
    last = frames[-1]
    seconds = (last.t_mono_ns - frames[0].t_mono_ns) / 1e9
    fps = (len(frames) - 1) / seconds if seconds > 0 else 0.0
    redraws = f", {n_redraws} redraws" if n_redraws else ""
    lines = [
        f"{n_frames} frames; the last {len(frames)}: {fps:.1f} FPS, {last.n_splats} splats, "
        f"{last.n_visible} visible, {last.n_instances} instances{redraws}",
        "{:<10} {:>9} {:>9} {:>9} {:>7}".format("stage", "p50 ms", "p95 ms", "max ms", "share"),
    ]
    total = sum(frame.frame_ms for frame in frames)
    for stage in (*STAGES, "frame"):
        ms = np.array([f.frame_ms if stage == "frame" else f.stage_ms[stage] for f in frames])
        p50, p95 = np.percentile(ms, (50, 95))
        row = "{:<10} {:>9.2f} {:>9.2f} {:>9.2f} {:>6.1f}%"
        lines.append(row.format(stage, p50, p95, ms.max(), 100 * ms.sum() / total))
    for output in outputs:
        status = output.status()
        fault = f"; {status['last_error']}" if status["last_error"] else ""
        written, dropped = status["frames_written"], status["frames_dropped"]
        lines.append(f"{output.label}: {written} frames written, {dropped} dropped{fault}")
    return "\n".join(lines)
