"""The newest picture of a camera, video or picture file, kept at hand by a thread of its own.

States::

    starting ──first picture──► up ──source fails or falls silent──► retrying ──picture──► up
        └───────open fails─────────────────────────────────────────────► │ waits 1, 2, 4 … 30 s between attempts
                                                                    any ──close()──► stopped

A driver that hangs in a call holds up nobody but that thread: the picture is withdrawn after ``LOST_S``, and the
state says so until the call returns.
"""

from __future__ import annotations

import collections
import logging
import threading
from typing import Any, Deque, Dict, Optional, Tuple

import numpy as np

from edgegs.capture.base import Source, Timing
from edgegs.capture.fit import FITS, fit
from edgegs.capture.sources import create
from edgegs.capture.uri import CaptureUri
from edgegs.errors import EdgegsError
from edgegs.sinks.backoff import Backoff, LogLimiter
from edgegs.sinks.runner import RETRYING, STARTING, STOPPED, UP, Clock

_log = logging.getLogger("edgegs.capture")

#: A picture this old, without a word from its source, is not shown any more, seconds.
LOST_S = 2.0
#: A source that needs longer to its first picture is reported as silent, seconds. Argus needs three.
SLOW_S = 10.0
#: ``close`` waits for the thread no longer than this, seconds.
CLOSE_S = 3.0
#: ``status`` measures the rate over so many pictures.
_RATE_OVER = 31


class Capture:
    """Keeps the newest picture of a source, at the size of the render. Every method may be called by any thread.

    Args:
        uri: the source.
        width, height: of the pictures that ``latest`` gives, pixels.
        fit: "cover" (fill, the longer sides are cut off), "contain" (all of it, black bars) or "stretch".
        fps: pictures a second that are wanted; more than these are left out before they cost much. A video keeps its
            own rate.
        clock: for tests.
        source: for tests; else what the URI says.
    """

    def __init__(
        self,
        uri: CaptureUri,
        width: int,
        height: int,
        *,
        fit: str = "cover",
        fps: float = 30.0,
        clock: Optional[Clock] = None,
        source: Optional[Source] = None,
    ) -> None:
        if fit not in FITS:
            raise ValueError(f"fit is {fit!r}; expected one of {', '.join(FITS)}")
        if width < 1 or height < 1 or not 0 < fps < float("inf"):
            raise ValueError(f"{width} x {height} pixels at {fps} a second")
        self.uri = uri
        self._size, self._how = (width, height), fit
        self._clock = clock or Clock()
        timing = Timing(self._clock.now, self._pause)
        self._source = source or create(uri, width, height, fit, fps, timing)
        self._backoff = Backoff()
        self._limiter = LogLimiter()
        self._said_up = False
        self._thread = threading.Thread(target=self._run, name=f"edgegs-capture {uri}", daemon=True)
        #: The picture, and when its source last gave or confirmed it: replaced as one, so that no reader needs a lock.
        self._newest: Optional[Tuple[np.ndarray, float]] = None

        self._changed = threading.Condition()  # guards everything below
        self._state = STARTING
        self._stopping = False
        self._busy_since: Optional[float] = None  # start of the present attempt, until its first picture
        self._error: Optional[str] = None
        self._frames = self._reconnects = 0
        self._times: Deque[float] = collections.deque(maxlen=_RATE_OVER)

    def start(self) -> None:
        """Start the thread; a source that is not there is tried again and again."""
        self._thread.start()

    def latest(self) -> Optional[np.ndarray]:
        """The newest picture; O(1), never waits.

        Returns:
            (height, width, 3) uint8 BGR, C-contiguous, never written to again. None before the first picture, and
            when the source has been silent for more than ``LOST_S``: a frozen picture would look alive.
        """
        newest = self._newest
        if newest is None or self._stopping or self._clock.now() - newest[1] > LOST_S:
            return None
        return newest[0]

    def status(self) -> Dict[str, Any]:
        """A snapshot.

        Returns:
            uri; state; fps: pictures a second lately, 0.0 when there are none; frames: so far; reconnects;
            last_error: None while up; age_s: since the source last gave or confirmed a picture, None before the first.
        """
        with self._changed:
            now, state, error = self._clock.now(), self._state, self._error
            age = None if self._newest is None else now - self._newest[1]
            if state == UP and age is not None and age > LOST_S:
                state, error = RETRYING, f"no picture for {age:.0f} s"
            elif self._busy_since is not None and now - self._busy_since > SLOW_S and state != STOPPED:
                state, error = RETRYING, f"does not answer for {now - self._busy_since:.0f} s"
            times = self._times
            span = times[-1] - times[0] if len(times) > 1 else 0.0
            moving = state == UP and span > 0
            return {
                "uri": self.uri.text,
                "state": state,
                "fps": round((len(times) - 1) / span, 2) if moving else 0.0,
                "frames": self._frames,
                "reconnects": self._reconnects,
                "last_error": error,
                "age_s": None if age is None else round(age, 3),
            }

    def close(self) -> None:
        """End the thread and let go of the source, within ``CLOSE_S`` in any case; harmless when closed.

        A driver that hangs is left behind: its daemon thread does not keep the process alive.
        """
        with self._changed:
            first, self._stopping = not self._stopping, True
            self._state = STOPPED
            self._changed.notify_all()
        if not first or self._thread.ident is None:
            return
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            _log.warning("background %s: did not close within %g s; leaving it", self.uri, CLOSE_S)

    # ---- the thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping:
            failure = self._stream()
            if failure is not None and not self._stopping:
                self._fell(failure)
                self._pause(self._backoff.next_wait())

    def _stream(self) -> Optional[Exception]:
        """Publish pictures until the source fails (returns why) or the capture is closed (None)."""
        with self._changed:
            self._busy_since = self._clock.now()
        was_up = False
        try:
            self._source.open()
            while not self._stopping:
                image = self._source.read()
                if image is not None:
                    self._publish(fit(image, *self._size, self._how))
                    if not was_up:
                        was_up = True
                        self._rose()
                elif self._newest is not None and was_up:
                    self._newest = (self._newest[0], self._clock.now())
            return None
        except Exception as error:
            if was_up:
                self._backoff.failed(self._clock.now())
            return error
        finally:
            try:
                self._source.close()
            except Exception:
                _log.debug("background %s: close", self.uri, exc_info=True)
            with self._changed:
                self._busy_since = None

    def _publish(self, image: np.ndarray) -> None:
        now = self._clock.now()
        with self._changed:
            self._newest = (image, now)
            self._frames += 1
            if self._times and now - self._times[-1] > LOST_S:
                self._times.clear()
            self._times.append(now)

    def _rose(self) -> None:
        self._backoff.opened(self._clock.now())
        with self._changed:
            self._reconnects += int(self._frames > 1)
            self._busy_since = None
            if not self._stopping:
                self._state, self._error = UP, None
        if not self._said_up:
            self._said_up = True
            _log.info("background %s: up", self.uri)

    def _fell(self, error: Exception) -> None:
        text = self._text(error)
        with self._changed:
            if not self._stopping:
                self._state, self._error = RETRYING, text
        unsaid = self._limiter.allow(self._clock.now())
        if unsaid is not None:
            # "up" is logged only after a "down" that was, so that the log never ends on the wrong one for long
            self._said_up = False
            more = f" ({unsaid} more like this not logged)" if unsaid else ""
            _log.warning("background %s: %s; retrying%s", self.uri, text, more)
        if not isinstance(error, (EdgegsError, OSError)):
            _log.debug("background %s", self.uri, exc_info=error)

    def _text(self, error: Exception) -> str:
        """One line that says what failed, without naming the source again."""
        text = " ".join(str(error).split())
        if not isinstance(error, (EdgegsError, OSError)):
            return f"{type(error).__name__}: {text}"
        prefix = self._source.shown + ": "
        return (text[len(prefix) :] if text.startswith(prefix) else text) or type(error).__name__

    def _pause(self, seconds: float) -> bool:
        """Wait, less when closed; False when closed."""
        until = self._clock.now() + seconds
        with self._changed:
            while not self._stopping:
                left = until - self._clock.now()
                if left <= 0:
                    return True
                self._clock.wait(self._changed, left)
        return False
