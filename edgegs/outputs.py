"""The outputs of a run together: how many frames each gets, whether they work, and how they end."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Sequence, Tuple, Type

from edgegs.errors import AccessError, ConfigError, EdgegsError, InputError, OutputError
from edgegs.files import read_regular
from edgegs.frame import Frame
from edgegs.sinks import SinkRunner, create_sink, sink_options

if TYPE_CHECKING:
    from edgegs.config import Config, Output

#: An output that took no frame for so long (or for three periods of its own) is not ready, seconds.
READY_S = 5.0
#: A frame may come early, and may count as on time when late, by this share of the period: no frame comes exactly
#: on the beat, and at a limit equal to the frame rate none should be lost.
SLACK = 0.25
#: Outputs get so long to finish, all together, seconds: the run has to end within the unit's TimeoutStopSec of 15,
#: and the frame under way, the run log and the device need their time, too.
STOP_S = 5.0
#: A token file holds one line.
MAX_TOKEN_BYTES = 4096


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


class OutputSet:
    """All outputs of a run. The loop's thread owns it; ``status`` may be asked from any.

    Args:
        offered: what the run has to give to sinks that take it as an option.
    """

    def __init__(self, offered: Dict[str, Any]) -> None:
        self.all: List[PacedOutput] = []
        self._offered = offered
        self._settings: Tuple[Output, ...] = ()
        self._token: Optional[str] = None
        self._replacing: Optional[threading.Thread] = None

    def make(self, config: Config) -> None:
        """Make the outputs of a configuration; none is open yet. Raises ConfigError or AccessError."""
        self._token = read_token(config.http.token_file)
        self.all = [self._make(config, settings, self._token) for settings in config.outputs]
        self._settings = config.outputs

    def _make(self, config: Config, settings: Output, token: Optional[str]) -> PacedOutput:
        options = {**self._offered, "token": token, **settings.options()}
        known = sink_options(settings.uri)
        sink = create_sink(settings.uri, **{name: value for name, value in options.items() if name in known})
        target_fps = config.render.target_fps or 30.0
        fps = min(target_fps, settings.fps or target_fps)
        runner = SinkRunner(sink, config.camera.width, config.camera.height, fps, required=settings.required)
        return PacedOutput(runner, settings.label, settings.fps)

    def start(self, live: bool) -> None:
        """Open the outputs that people watch, or the others: those begin with the first frame of the scene."""
        for output in self.all:
            if output.runner.sink.live == live:
                output.runner.start()

    def plan(self, old: Config, new: Config) -> Callable[[], None]:
        """What takes the outputs of another configuration into use; those that stand in both go on untouched.

        Raises:
            ConfigError, AccessError: of the new outputs; nothing has changed.
        """
        token = read_token(new.http.token_file)
        same = (old.camera.width, old.camera.height, old.render.target_fps) == (
            new.camera.width,
            new.camera.height,
            new.render.target_fps,
        )
        kept = {
            settings: output
            for settings, output in zip(self._settings, self.all)
            if same and settings in new.outputs and (token == self._token or settings.uri.kind != "mjpeg")
        }
        made = {settings: self._make(new, settings, token) for settings in new.outputs if settings not in kept}

        def use() -> None:
            gone = [output for output in self.all if output not in kept.values()]
            self.all = [kept[settings] if settings in kept else made[settings] for settings in new.outputs]
            self._settings, self._token = new.outputs, token
            if gone or made:
                self._replace(gone, list(made.values()))

        return use

    def _replace(self, gone: List[PacedOutput], started: List[PacedOutput]) -> None:
        """Stop outputs and start others, which may want the same port: in this order, and beside the loop."""
        before = self._replacing

        def replace() -> None:
            if before is not None:
                before.join()
            stop(gone, STOP_S)
            for output in started:
                output.runner.start()

        self._replacing = threading.Thread(target=replace, name="edgegs-replace", daemon=True)
        self._replacing.start()

    def stop(self) -> None:
        """Finish all outputs, those that are being replaced, too."""
        if self._replacing is not None:
            self._replacing.join(STOP_S)
        stop(self.all, STOP_S)


def read_token(file: Optional[str]) -> Optional[str]:
    """The token in ``http.token_file``; None without one. Raises ConfigError or AccessError."""
    if file is None:
        return None
    try:
        raw = read_regular(Path(file), MAX_TOKEN_BYTES + 1, "http.token_file")
    except InputError as error:
        raise ConfigError(str(error)) from None
    token = raw.decode("ascii", "replace").strip()
    if len(raw) > MAX_TOKEN_BYTES or len(token) < 16 or not all("!" <= letter <= "~" for letter in token):
        raise ConfigError(
            f"http.token_file {file}: must hold one line of at least 16 printable ASCII characters without spaces; "
            "`openssl rand -hex 16 > FILE` makes one"
        )
    return token


def counting(outputs: Sequence[PacedOutput]) -> Sequence[PacedOutput]:
    """The outputs by which a run is judged: the required ones; all, where none is required."""
    return [output for output in outputs if output.runner.required] or outputs


def not_ready(outputs: Sequence[PacedOutput]) -> Optional[str]:
    """None when every required output (or any, if none is required) took a frame lately; else the reason."""
    reasons = []
    for output in counting(outputs):
        age = output.runner.status()["last_write_age_s"]
        if age is not None and age <= max(READY_S, 3.0 / output.runner.fps):
            if not output.runner.required:
                return None
        else:
            reasons.append(
                "{}: {}".format(output.label, "no frame yet" if age is None else f"no frame for {age:.0f} s")
            )
    return "; ".join(reasons) or None


def check_hope(outputs: Sequence[PacedOutput]) -> None:
    """Raise the error of an output that is needed (a required one; the last, where none is) and failed for good."""
    judged = counting(outputs)
    lost = [output for output in judged if output.runner.gave_up]
    if not lost or (len(lost) < len(judged) and not lost[0].runner.required):
        return
    cause = lost[0].runner.error
    if isinstance(cause, EdgegsError):
        raise cause
    raise OutputError(f"output {lost[0].label}: {cause}")


def undelivered(outputs: Sequence[PacedOutput], finished: bool) -> Optional[EdgegsError]:
    """What a run failed of: a required output (or every one, if none is required) that wrote no frame at all; or a
    required one that was down at the end.

    Args:
        finished: the run came to its own end. One that was told to stop may have left an output no time: then only
            an output that met an error and never wrote counts.

    Returns:
        An error with the exit code of what the first such output died of; None when the run delivered.
    """
    judged = counting(outputs)
    silent = [output for output in judged if output.runner.status()["frames_written"] == 0]
    if len(silent) < len(judged) and not judged[0].runner.required:
        return None
    failed = [output for output in silent if finished or output.runner.error is not None]
    if finished:
        failed += [
            output
            for output in judged
            if output not in silent and output.runner.required and output.runner.error is not None
        ]
    if not failed:
        return None
    first, others = failed[0], len(failed) - 1
    cause, text = first.runner.error, first.runner.status()["last_error"]
    kind: Type[EdgegsError] = AccessError if isinstance(cause, PermissionError) else OutputError
    if isinstance(cause, EdgegsError):
        kind = type(cause)
    more = f" (nor to {others} more)" if others else ""
    what = "no frame was delivered to" if first in silent else "frames were lost at the end of"
    return kind(f"{what} {first.label}{more}: {text or 'it took none'}")


def stop(outputs: Sequence[PacedOutput], timeout_s: float) -> None:
    """Finish all outputs side by side: one that hangs must not use up the others' time."""
    stopping = [threading.Thread(target=output.runner.stop, args=(timeout_s,)) for output in outputs]
    for thread in stopping:
        thread.start()
    for thread in stopping:
        thread.join()
