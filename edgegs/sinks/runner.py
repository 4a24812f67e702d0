"""One thread per output: hands frames over, opens the output again when it fails, and never holds up a frame.

States::

    starting ──open──► up ──write or open fails──► retrying ──open──► up
                        │                             │ waits 1, 2, 4 … 30 s between attempts
                        └──a call hangs, or the error cannot heal──► failed        any ──stop()──► stopped

A hung call is ``failed`` only as long as it hangs. Frames that come while an output is slow or away replace
one another; each one lost is counted with its reason.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import logging
import threading
import time
from typing import Any, Deque, Dict, Optional, Tuple

from edgegs.errors import ConfigError, EdgegsError, OutputError, UsageError
from edgegs.frame import Frame
from edgegs.sinks.backoff import Backoff, LogLimiter
from edgegs.sinks.base import Sink

_log = logging.getLogger("edgegs.sinks")

STARTING, UP, RETRYING, FAILED, STOPPED = "starting", "up", "retrying", "failed", "stopped"
#: Share of ``stop``'s time-out that a sink may use in peace before ``interrupt`` is called.
_GRACE = 0.8
_NO_ANSWER = "does not answer"


class Clock:
    """Monotonic time and waiting, in one place so that a test can replace both."""

    def now(self) -> float:
        """Seconds, monotonic."""
        return time.monotonic()

    def wait(self, condition: threading.Condition, timeout: float) -> None:
        """Let go of ``condition`` (held by the caller) for a while, at most ``timeout`` seconds.

        Not ``condition.wait``, whose time-outs follow the wall clock before Python 3.11: setting that back by an hour
        would keep an output down for as long.
        """
        condition.release()
        try:
            time.sleep(min(timeout, 0.1))
        finally:
            condition.acquire()


class SinkRunner:
    """Drives one sink from one thread; every public method may be called from any thread.

    Args:
        sink: not open yet. The runner alone opens, writes and closes it.
        width, height: size of the output's pictures in pixels. It stays the same for the life of the output
            (a virtual camera's reader freezes when it changes); a frame of another size is scaled to it.
        fps: nominal frames a second, for outputs that must say so beforehand.
        required: passed through to ``status``: whether the daemon depends on this output.
        backoff_s: first and longest wait between attempts to open, seconds.
        stall_s: a call to the sink that takes longer is reported as ``failed``, and interrupted once; None for the
            sink's own.
    """

    def __init__(
        self,
        sink: Sink,
        width: int,
        height: int,
        fps: float,
        *,
        required: bool = False,
        backoff_s: Tuple[float, float] = (1.0, 30.0),
        stall_s: Optional[float] = None,
        clock: Optional[Clock] = None,
    ) -> None:
        self.sink = sink
        self.uri = sink.uri
        self.required = required
        #: Set once the first frame has reached the output.
        self.first_delivery = threading.Event()
        self.fps = fps
        self._width, self._height = width, height
        self._stall_s = sink.stall_s if stall_s is None else stall_s
        self._clock = clock or Clock()
        self._backoff = Backoff(*backoff_s)
        self._limiter, self._fall_limiter = LogLimiter(), LogLimiter(burst=5, period_s=30.0)
        self._said_up = False
        self._thread = threading.Thread(target=self._run, name="edgegs-sink " + sink.uri, daemon=True)
        self._attempted = threading.Event()

        self._changed = threading.Condition()  # guards everything below
        self._waiting: Deque[Frame] = collections.deque()
        self._state = STARTING
        self._stopping = False
        self._stop_by = float("inf")
        self._busy_since: Optional[float] = None  # start of the call to the sink that is in progress
        self._interrupted = False
        self._error: Optional[Exception] = None
        self._written = self._reconnects = 0
        self._dropped = {"slow": 0, "down": 0}
        self._last_write: Optional[float] = None

    # ---- for the render loop and the daemon -------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def offer(self, frame: Frame) -> None:
        """Hand over a frame: O(1), never waits for the sink. When there is no room the oldest gives way."""
        interrupt = False
        with self._changed:
            if self._stopping:
                return
            if len(self._waiting) >= self.sink.queue and not self._waiting.popleft().placeholder:
                self._dropped["slow" if self._state == UP else "down"] += 1
            self._waiting.append(frame)
            if self._stalled_s() is not None and not self._interrupted:
                self._interrupted = interrupt = True
            self._changed.notify_all()
        if interrupt:
            self._say_down(f"{_NO_ANSWER} for {self._stall_s:g} s; interrupting it")
            self._interrupt()

    def wait_attempted(self, timeout: Optional[float] = None) -> bool:
        """Wait until the first attempt to open has ended, well or not (see ``error``); False on time-out."""
        return self._attempted.wait(timeout)

    def wait_delivered(self, timeout: Optional[float] = None) -> bool:
        """Wait until the first frame has reached the output; False on time-out."""
        return self.first_delivery.wait(timeout)

    def stop(self, timeout: float = 5.0) -> bool:
        """Write what waits, close the sink and end the thread, within ``timeout`` seconds in any case.

        Returns:
            False when the sink hung and was left behind: its daemon thread does not keep the process alive.
        """
        with self._changed:
            self._stopping = True
            self._stop_by = self._clock.now() + _GRACE * timeout
            self._changed.notify_all()
        if self._thread.ident is None:
            return True
        self._thread.join(_GRACE * timeout)
        if self._thread.is_alive():
            self._interrupt()
            self._thread.join((1.0 - _GRACE) * timeout)
        if self._thread.is_alive():
            _log.warning("output %s: did not close within %g s; leaving it", self.uri, timeout)
            return False
        return True

    @property
    def state(self) -> str:
        """``starting``, ``up``, ``retrying``, ``failed`` or ``stopped``."""
        with self._changed:
            return FAILED if self._stalled_s() is not None else self._state

    @property
    def gave_up(self) -> bool:
        """Whether the output failed for good: no retry can help, and its thread has ended."""
        with self._changed:
            return self._state == FAILED

    @property
    def error(self) -> Optional[Exception]:
        """What made the output fail last, None while it is up; an EdgegsError has an ``exit_code``."""
        with self._changed:
            stalled = self._stalled_s()
            if stalled is not None:
                return OutputError(f"output {self.uri}: {_NO_ANSWER} for {stalled:.0f} s")
            return self._error

    def status(self) -> Dict[str, Any]:
        """A snapshot for ``/status`` and metrics; ``last_write_age_s`` is None before the first frame."""
        error = self.error
        with self._changed:
            age = None if self._last_write is None else round(self._clock.now() - self._last_write, 3)
            return {
                "uri": self.uri,
                "state": FAILED if self._stalled_s() is not None else self._state,
                "required": self.required,
                "frames_written": self._written,
                "frames_dropped": sum(self._dropped.values()),
                "dropped": dict(self._dropped),
                "reconnects": self._reconnects,
                "last_error": None if error is None else self._text(error),
                "last_write_age_s": age,
            }

    # ---- the thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            opened_before = False
            while not self._stopping:
                if self._open():
                    with self._changed:
                        self._reconnects += int(opened_before)
                    opened_before = True
                    self._deliver()
                if self._stopping or self._state == FAILED:
                    break
                self._pause(self._backoff.next_wait())
        finally:
            self._attempted.set()
            with self._changed:
                self._dropped["down"] += sum(not frame.placeholder for frame in self._waiting)
                self._waiting.clear()
                if self._state != FAILED:
                    self._state = STOPPED

    def _open(self) -> bool:
        try:
            with self._call():
                self.sink.open(self._width, self._height, self.fps)
        except Exception as error:
            self._close()
            self._fell(error)
            return False
        with self._changed:
            self._state, self._error = UP, None
        self._backoff.opened(self._clock.now())
        self._attempted.set()
        if not self._said_up:
            self._said_up = True
            _log.info("output %s: up", self.uri)
        return True

    def _deliver(self) -> None:
        """Write frames until the output fails or the runner stops; closes the sink either way."""
        failure: Optional[Exception] = None
        while failure is None:
            frame = self._next_frame()
            if frame is None:
                break
            try:
                with self._call():
                    taken = self.sink.write(self._fit(frame))
            except Exception as error:
                failure = error
                with self._changed:
                    self._dropped["down"] += not frame.placeholder
            else:
                if frame.placeholder:
                    continue  # shown, but no delivery: an output is ready when the scene is on it
                with self._changed:
                    if taken is False:
                        self._dropped["rate"] = self._dropped.get("rate", 0) + 1
                    else:
                        self._written += 1
                    self._last_write = self._clock.now()
                self.first_delivery.set()
        closing = self._close()
        if failure is not None or closing is not None:
            self._backoff.failed(self._clock.now())
            self._fell(failure or closing or OutputError("closed"))

    def _next_frame(self) -> Optional[Frame]:
        """The next frame to write; None when stopping and nothing waits, or no time is left."""
        with self._changed:
            while not self._waiting and not self._stopping:
                self._changed.wait()
            if not self._waiting or self._clock.now() > self._stop_by:
                return None
            return self._waiting.popleft()

    def _fit(self, frame: Frame) -> Frame:
        height, width = frame.image.shape[:2]
        if (width, height) == (self._width, self._height):
            return frame
        import cv2  # only here: most outputs are given frames of their own size

        interpolation = cv2.INTER_AREA if width > self._width else cv2.INTER_LINEAR
        image = cv2.resize(frame.image, (self._width, self._height), interpolation=interpolation)
        return dataclasses.replace(frame, image=image)

    def _close(self) -> Optional[Exception]:
        try:
            with self._call():
                self.sink.close()
        except Exception as error:
            return error
        return None

    def _fell(self, error: Exception) -> None:
        """Note that the output is down: for good when no retry can help, or else until the next attempt."""
        for_good = isinstance(error, (ConfigError, UsageError))
        with self._changed:
            self._state, self._error = (FAILED if for_good else RETRYING), error
        self._attempted.set()
        self._say_down(self._text(error) + ("" if for_good or self._stopping else "; retrying"))
        if not isinstance(error, (EdgegsError, OSError)):
            _log.debug("output %s", self.uri, exc_info=error)

    def _pause(self, seconds: float) -> None:
        until = self._clock.now() + seconds
        with self._changed:
            while not self._stopping:
                left = until - self._clock.now()
                if left <= 0:
                    return
                self._clock.wait(self._changed, left)

    @contextlib.contextmanager
    def _call(self) -> Any:
        """Marks a call to the sink, so that one that hangs can be seen from outside."""
        with self._changed:
            self._busy_since, self._interrupted = self._clock.now(), False
        try:
            yield
        finally:
            with self._changed:
                self._busy_since = None

    def _stalled_s(self) -> Optional[float]:
        """Seconds for which the present call has hung, or None. The caller holds ``_changed``."""
        if self._busy_since is None:
            return None
        busy = self._clock.now() - self._busy_since
        return busy if busy > self._stall_s else None

    def _interrupt(self) -> None:
        try:
            self.sink.interrupt()
        except Exception as error:  # this may be the render loop: it must not fall with an output
            self._say_down("interrupt: " + self._text(error))

    def _say_down(self, text: str) -> None:
        """Log that the output is down; one that stays down is logged a few times, then once a minute.

        "up" is logged only after a "down" that was, so that the log never ends on the wrong one for long. The first
        "down" after an "up" has an allowance of its own.
        """
        with self._changed:  # the render loop says so of a hanging call, the output's own thread of a failed one
            limiter = self._fall_limiter if self._said_up else self._limiter
            unsaid = limiter.allow(self._clock.now())
        if unsaid is not None:
            self._said_up = False
            more = f" ({unsaid} more like this not logged)" if unsaid else ""
            _log.warning("output %s: %s%s", self.uri, text, more)

    def _text(self, error: Exception) -> str:
        """One line that says what failed, without naming the output again."""
        text = " ".join(str(error).split())
        if not isinstance(error, (EdgegsError, OSError)):
            return f"{type(error).__name__}: {text}"
        prefix = f"output {self.uri}: "
        return (text[len(prefix) :] if text.startswith(prefix) else text) or type(error).__name__
