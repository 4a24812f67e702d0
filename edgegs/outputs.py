"""The outputs of a run together: how many frames each gets, whether they work, and how they end."""

from __future__ import annotations

import threading
from typing import Any, Dict, Optional, Sequence, Type

from edgegs.errors import AccessError, EdgegsError, OutputError
from edgegs.frame import Frame
from edgegs.sinks import SinkRunner

#: An output that took no frame for so long is not ready, seconds.
READY_S = 5.0
#: A frame may come early, and may count as on time when late, by this share of the period: no frame comes exactly
#: on the beat, and at a limit equal to the frame rate none should be lost.
SLACK = 0.25


class PacedOutput:
    """One output of the configuration: its runner, and at most ``fps`` of the frames."""

    def __init__(self, runner: SinkRunner, label: str, fps: Optional[float]) -> None:
        self.runner = runner
        self.label = label
        self._period = 0.0 if fps is None else 1.0 / fps
        self._next: Optional[float] = None
        self._reported: Dict[str, int] = {}

    def offer(self, frame: Frame, now: float) -> None:
        """Hand a frame that was begun at ``now`` (seconds, monotonic) to the output, unless it comes too soon."""
        slack = SLACK * self._period
        if self._next is None or now - self._next > self._period:
            self._next = now  # the first frame, or the first after a gap: beats that were missed are not made up for
        if now < self._next - slack:
            return
        # from beat to beat, not from frame to frame, which would lower the mean rate
        self._next = max(self._next, now - slack) + self._period
        self.runner.offer(frame)

    def new_drops(self) -> Dict[str, int]:
        """Frames dropped since the last call, by reason."""
        dropped = self.runner.status()["dropped"]
        new = {reason: n - self._reported.get(reason, 0) for reason, n in dropped.items()}
        self._reported = dropped
        return {reason: n for reason, n in new.items() if n > 0}

    def status(self) -> Dict[str, Any]:
        return dict(self.runner.status(), name=self.label)


def counting(outputs: Sequence[PacedOutput]) -> Sequence[PacedOutput]:
    """The outputs by which a run is judged: the required ones; all, where none is required."""
    return [output for output in outputs if output.runner.required] or outputs


def not_ready(outputs: Sequence[PacedOutput]) -> Optional[str]:
    """None when every required output (or any, if none is required) took a frame lately; else the reason."""
    reasons = []
    for output in counting(outputs):
        age = output.runner.status()["last_write_age_s"]
        if age is not None and age <= READY_S:
            if not output.runner.required:
                return None
        else:
            reasons.append(
                "{}: {}".format(output.label, "no frame yet" if age is None else f"no frame for {age:.0f} s")
            )
    return "; ".join(reasons) or None


def undelivered(outputs: Sequence[PacedOutput], finished: bool) -> Optional[EdgegsError]:
    """What a run failed of: a required output (or every one, if none is required) that wrote no frame at all.

    Args:
        finished: the run came to its own end. One that was told to stop may have left an output no time: then only
            an output that met an error counts.

    Returns:
        An error with the exit code of what the first such output died of; None when the run delivered.
    """
    judged = counting(outputs)
    silent = [output for output in judged if output.runner.status()["frames_written"] == 0]
    if len(silent) < len(judged) and not judged[0].runner.required:
        return None
    failed = [output for output in silent if finished or output.runner.error is not None]
    if not failed:
        return None
    first, others = failed[0], len(failed) - 1
    cause, text = first.runner.error, first.runner.status()["last_error"]
    kind: Type[EdgegsError] = AccessError if isinstance(cause, PermissionError) else OutputError
    if isinstance(cause, EdgegsError):
        kind = type(cause)
    more = f" (nor to {others} more)" if others else ""
    return kind(f"no frame was delivered to {first.label}{more}: {text or 'it took none'}")


def stop(outputs: Sequence[PacedOutput], timeout_s: float) -> None:
    """Finish all outputs side by side: one that hangs must not use up the others' time."""
    stopping = [threading.Thread(target=output.runner.stop, args=(timeout_s,)) for output in outputs]
    for thread in stopping:
        thread.start()
    for thread in stopping:
        thread.join()
