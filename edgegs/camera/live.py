"""Cameras that the world moves: how a received pose becomes a steady picture, and what happens when none comes.

    home ── message ──► live ── quiet ──► holding ── hold_s ──► returning ── return_s ──► home
                         ▲                   │                      │
                         └───── message ─────┴──────────────────────┘

A listener's thread takes messages (``Received._take``), the render thread asks ``camera_at``; they share a lock that is
held for a few microseconds. A message is parsed outside of it.
"""

from __future__ import annotations

import abc
import logging
import math
import threading
import time
from typing import Any, Callable, Dict, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from edgegs.camera.paths import Lens, PosePath
from edgegs.camera.pose import Camera, quaternion, rotation_matrix, view_matrix
from edgegs.camera.pose_message import PoseMessage, PoseMessageError, parse_pose
from edgegs.errors import ConfigError, EdgegsError
from edgegs.sinks.backoff import Backoff, LogLimiter

_log = logging.getLogger("edgegs.camera")

#: States of the pose, and of the link that poses come over.
LIVE, HOLDING, RETURNING, HOME = "live", "holding", "returning", "home"
CLOSED, UP, RETRYING, FAILED = "closed", "up", "retrying", "failed"

QUIET_S = 0.5  # without a message for so long, the state says "holding"
SEQ_MEMORY_S = 1.0  # after so long without a good message, any seq is taken: the sender was restarted
SEQ_RESTART = 1000  # no network delays a message by so many: the sender was restarted
BURST = 4  # of messages that come at once, so many are looked at: the newest
ROUND_S = 0.005  # shortest time between two looks; both bound what a flood may cost the render loop
_CLOSE_S = 2.0


class Pose(NamedTuple):
    """A place and a view.

    Attributes:
        eye: (3,) float64, scene units.
        turn: (4,) float64 unit quaternion, w first, camera to world.
        fov_y_deg: vertical field of view, degrees.
    """

    eye: np.ndarray
    turn: np.ndarray
    fov_y_deg: float


def slerp(a: np.ndarray, b: np.ndarray, share: float) -> np.ndarray:
    """(4,) unit quaternion at ``share`` (0..1) of the shorter way from ``a`` to ``b``, both (4,) of length 1."""
    cosine = float(a @ b)
    if cosine < 0.0:
        b, cosine = -b, -cosine
    angle = math.acos(min(cosine, 1.0))
    if angle < 1e-4:  # the sine would lose digits, and the chord is the arc
        mixed = (1.0 - share) * a + share * b
    else:
        mixed = (math.sin((1.0 - share) * angle) * a + math.sin(share * angle) * b) / math.sin(angle)
    return mixed / np.linalg.norm(mixed)


def blend(a: Pose, b: Pose, share: float) -> Pose:
    """The pose at ``share`` (0..1) of the way from ``a`` to ``b``; exactly ``b`` at 1."""
    if share >= 1.0:
        return b
    fov_y_deg = a.fov_y_deg + share * (b.fov_y_deg - a.fov_y_deg)
    return Pose(a.eye + share * (b.eye - a.eye), slerp(a.turn, b.turn, share), fov_y_deg)


class Received(PosePath):
    """A camera at the pose that was received last.

    It follows its messages with a low-pass of time constant ``smooth_s``, so that it starts from wherever it is and
    never jumps (with 0: at once). Without a good message for ``hold_s`` it flies home within ``return_s``.

    Args:
        address: what it listens to, for messages and ``status``.
        lens: of all its cameras; a message's ``fov_y_deg`` holds for that message.
        home: the view before the first message and after the last one.
        up: (3,) upward direction, for messages that look at a point.
        hold_s, return_s, smooth_s: seconds, 0 or more.
        clock: seconds that never go back.
    """

    def __init__(
        self,
        address: str,
        lens: Lens,
        home: Camera,
        up: Sequence[float],
        hold_s: float = 1.0,
        return_s: float = 2.0,
        smooth_s: float = 0.05,
        clock: Callable[[], float] = time.monotonic,
        backoff_s: Tuple[float, float] = (1.0, 30.0),
    ) -> None:
        self.address = address
        self._lens, self._up, self._clock = lens, tuple(up), clock
        self._hold_s, self._return_s, self._smooth_s = hold_s, return_s, smooth_s
        self._home_camera = home
        self._home = Pose(home.eye, quaternion(home.viewmat[:3, :3].T), lens.fov_y_deg)
        self._backoff = Backoff(*backoff_s)
        self._bad_limiter, self._link_limiter = LogLimiter(), LogLimiter()
        self._said_up = False
        self._thread: Optional[threading.Thread] = None
        self._stopping = threading.Event()

        self._lock = threading.Lock()  # guards everything below
        self._shown = self._home
        self._moved_at: Optional[float] = None  # when _shown was right
        self._target: Optional[Pose] = None  # None: at home
        self._return_from: Optional[Pose] = None
        self._heard_at: Optional[float] = None  # last good message
        self._seq: Optional[int] = None
        self._counts = {"received": 0, "bad": 0, "late": 0, "skipped": 0}
        self._link = CLOSED
        self._link_error: Optional[str] = None
        self._bad_error: Optional[str] = None

    # ---- for the render loop and the daemon -------------------------------------------------------------

    def camera_at(self, t_s: float) -> Camera:
        """The camera now; ``t_s`` has no meaning here."""
        with self._lock:
            self._move(self._clock())
            pose = self._shown
        if pose is self._home:
            return self._home_camera
        viewmat = view_matrix(pose.eye, rotation_matrix(pose.turn).T)
        return self._lens.camera(viewmat, None if pose.fov_y_deg == self._lens.fov_y_deg else pose.fov_y_deg)

    def open(self) -> None:
        if self._thread is not None:
            return
        self._stopping = stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(stopping,), name="edgegs-pose", daemon=True)
        self._thread.start()

    def close(self) -> None:
        thread, self._thread = self._thread, None
        self._stopping.set()
        if thread is not None:
            self._wake()
            thread.join(_CLOSE_S)
            if thread.is_alive():
                _log.warning("camera %s: did not close within %g s; leaving it", self.address, _CLOSE_S)
        with self._lock:
            self._link = CLOSED

    def status(self) -> Dict[str, Any]:
        """A snapshot for ``/status``.

        ``state``: of the pose; ``link``: closed, up, retrying or failed; ``age_s``: since the last good message, None
        before the first. Of ``received`` messages, ``bad`` ones were refused, ``late`` ones had been overtaken, and
        ``skipped`` ones came in a burst behind which there were newer ones.
        """
        with self._lock:
            now = self._clock()
            return {
                "source": self.address,
                "state": self._state(now),
                "link": self._link,
                **self._counts,
                "age_s": None if self._heard_at is None else round(now - self._heard_at, 3),
                "last_error": self._link_error or self._bad_error,
            }

    # ---- the pose; the caller holds the lock ------------------------------------------------------------

    def _state(self, now: float) -> str:
        if self._heard_at is None:
            return HOME
        age = now - self._heard_at
        if age <= self._hold_s:
            return LIVE if age <= QUIET_S else HOLDING
        return RETURNING if age < self._hold_s + self._return_s else HOME

    def _move(self, now: float) -> None:
        before, self._moved_at = self._moved_at, now
        if self._target is None or self._heard_at is None:
            return
        stale_at = self._heard_at + self._hold_s
        if self._return_from is None:
            # Before the first picture there is nothing to start from smoothly.
            passed = math.inf if before is None else max(0.0, min(now, stale_at) - before)
            share = 1.0 if self._smooth_s == 0.0 else -math.expm1(-passed / self._smooth_s)
            self._shown = blend(self._shown, self._target, share)
            if now <= stale_at:
                return
            self._return_from = self._shown
        share = (now - stale_at) / self._return_s if self._return_s > 0.0 else 1.0
        if share >= 1.0:
            self._shown, self._target, self._return_from = self._home, None, None
        else:
            self._shown = blend(self._return_from, self._home, share * share * (3.0 - 2.0 * share))

    def _accept(self, message: PoseMessage, now: float) -> None:
        if message.seq is not None:
            forgotten = self._heard_at is None or now - self._heard_at > SEQ_MEMORY_S
            if self._seq is not None and not forgotten and 0 < self._seq - message.seq <= SEQ_RESTART:
                self._counts["late"] += 1
                return
            self._seq = message.seq
        fov_y_deg = self._lens.fov_y_deg if message.fov_y_deg is None else message.fov_y_deg
        self._target = Pose(message.position, message.quaternion, fov_y_deg)
        self._return_from, self._heard_at = None, now

    # ---- for listeners, from their thread ---------------------------------------------------------------

    @abc.abstractmethod
    def _listen(self, stopping: threading.Event) -> None:
        """Connect, call ``_is_up``, and ``_take`` what comes until ``stopping``.

        Raises:
            EdgegsError, OSError: it does not work now; called again after a while. ConfigError: it never will.
        """

    @abc.abstractmethod
    def _wake(self) -> None:
        """Make ``_listen`` look at ``stopping`` soon. From another thread; must not block."""

    def _take(self, newest: Sequence[Tuple[bytes, str]], n: int) -> None:
        """Look at messages and their senders' names, in the order of their arrival.

        Args:
            newest: at most ``BURST`` of those that came.
            n: how many came, with those that nobody looks at.
        """
        with self._lock:
            self._counts["received"] += n
            self._counts["skipped"] += n - len(newest)
        for raw, sender in newest:
            try:
                message = parse_pose(raw, self._up)
            except PoseMessageError as error:
                self._complain(f"bad message from {sender}: {error}")
                continue
            with self._lock:
                self._accept(message, self._clock())

    def _complain(self, text: str) -> None:
        with self._lock:
            self._counts["bad"] += 1
            self._bad_error = text
        self._say(self._bad_limiter, text)

    def _say(self, limiter: LogLimiter, text: str) -> bool:
        """Log a warning, a few times, then once a minute; returns whether it was logged."""
        unsaid = limiter.allow(self._clock())
        if unsaid is None:
            return False
        more = f" ({unsaid} more like this not logged)" if unsaid else ""
        _log.warning("camera %s: %s%s", self.address, text, more)
        return True

    def _is_up(self) -> None:
        self._backoff.opened(self._clock())
        with self._lock:
            self._link, self._link_error = UP, None
        if not self._said_up:
            self._said_up = True
            _log.info("camera %s: listening", self.address)

    def _run(self, stopping: threading.Event) -> None:
        while not stopping.is_set():
            try:
                self._listen(stopping)
            except Exception as error:  # the picture must outlive its pose source, whatever that dies of
                if stopping.is_set():
                    return
                for_good = isinstance(error, ConfigError)
                self._fell(error, FAILED if for_good else RETRYING)
                if for_good:
                    return
                stopping.wait(self._backoff.next_wait())

    def _fell(self, error: Exception, link: str) -> None:
        text = " ".join(str(error).split()) or type(error).__name__
        prefix = f"camera {self.address}: "
        text = text[len(prefix) :] if text.startswith(prefix) else text
        if not isinstance(error, (EdgegsError, OSError)):
            text = f"{type(error).__name__}: {text}"
            _log.debug("camera %s", self.address, exc_info=error)
        with self._lock:
            if self._link == UP:
                self._backoff.failed(self._clock())
            self._link, self._link_error = link, text
        if self._say(self._link_limiter, text if link == FAILED else text + "; retrying"):
            self._said_up = False  # "listening" is said again only after a "down" that was
