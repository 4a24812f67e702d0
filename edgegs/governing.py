"""The governor at work in the daemon: what it is shown once a second, and what is done with its steps."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Callable, Dict, Optional, Tuple

from edgegs.governor import Governor, Limits, board_power, hottest, rung_at

if TYPE_CHECKING:
    from edgegs.config.model import Governor as Settings
    from edgegs.drawing import Show

log = logging.getLogger(__name__)

#: Between two looks, seconds.
LOOK_S = 1.0
#: A window of telemetry that ended longer ago than this says nothing of now, seconds.
STALE_S = 5.0


class Governing:
    """Counts frames, asks the governor, and tells the show. The loop's thread owns it; ``status`` is for any.

    Args:
        snapshot: ``Telemetry.snapshot``; an empty dict where there is none.
        event: takes (kind, **fields) for the run log.
    """

    def __init__(self, snapshot: Callable[[], Dict[str, Any]], event: Callable[..., None]) -> None:
        self._snapshot, self._event = snapshot, event
        self._governor: Optional[Governor] = None
        self._show: Optional[Show] = None
        self._looked = self._stepped = 0.0
        self._n_frames = 0
        self._work_s = 0.0

    def begin(self, settings: Settings, show: Show) -> None:
        """Hold these limits from now on; what is given up already stays given up until there is room."""
        limits = Limits(settings.target_fps, settings.max_power_w, settings.max_temp_c)
        before, self._show = self._governor, show
        self._n_frames, self._work_s = 0, 0.0
        self._looked = 0.0  # what passed meanwhile is no rate of frames
        if limits == Limits():
            self._governor = show.setting = None
        else:
            ladder = show.ladder(settings.target_fps)
            if not any(rung.axis == "splats" for rung in ladder):
                log.info("governor: splats stay: the scene is not in an order of importance; see 'edgegs pack'")
            if before is None:
                self._governor = Governor(limits, ladder)
            elif (before.limits, before.as_built) != (limits, ladder):
                # by what it costs the picture: another scene's rungs are others, and more or fewer
                self._governor = Governor(limits, ladder, rung_at(ladder, before.ladder[before.rung].cost))
            assert self._governor is not None
            show.setting = self._governor.setting
        if before is not None and self._governor is not before:
            self._tell_reload(before)

    def _tell_reload(self, before: Governor) -> None:
        """Put into the log what became of the rung: no change of quality without its event."""
        now: Dict[str, Any] = {"rung": 0, "of": len(before.ladder) - 1}
        reason = "nothing is to be held any more"
        if self._governor is not None:
            now, reason = self._governor.status(), "other limits, or another scene"
        fields = {name: now.get(name) for name in ("rung", "of", "scale", "n_splats", "sh_degree", "fps_cap")}
        self._event("governor", action="reload", before=before.rung, **fields, reason=reason)

    def drawn(self, work_s: float) -> None:
        """Count a frame that took so long without the wait for its beat, seconds."""
        self._n_frames += 1
        self._work_s += work_s

    def capped(self, fps: float) -> float:
        """The rate of the loop, frames a second, 0 for none: what the configuration says, or less."""
        cap = None if self._governor is None else self._governor.setting.fps
        return fps if cap is None else min(fps or cap, cap)

    def look(self, now_s: float) -> None:
        """Once a second: show the governor what was measured, do what it says."""
        since = now_s - self._looked
        if self._governor is None or since < LOOK_S:
            return
        self._looked = now_s
        n_frames, work_s, self._n_frames, self._work_s = self._n_frames, self._work_s, 0, 0.0
        power_w, temp_c = self._readings(now_s)
        fps = n_frames / since if since < 10 * LOOK_S else None
        step = self._governor.observe(now_s, fps, 1e3 * work_s / n_frames if n_frames else None, power_w, temp_c)
        for note in self._governor.notes():
            log.warning("governor: %s: %s", note["limit"], note["reason"])
            self._event(**note)
        if step is not None and self._show is not None:
            self._show.setting, self._stepped = step.setting, now_s
            event = step.event
            log.info("governor: %s to %d of %d: %s", event["action"], step.rung, event["of"], event["reason"])
            self._event(**event)

    def _readings(self, now_s: float) -> Tuple[Optional[float], Optional[float]]:
        """(watts, degrees) of the last window of telemetry, if it is of this rung."""
        window = self._snapshot().get("window") or {}
        ended = window.get("t_mono_ns", 0) / 1e9
        if now_s - ended > STALE_S:
            return None, None
        began = ended - window.get("window_s", 0.0)
        return board_power(window) if began >= self._stepped else None, hottest(window.get("temp_c") or {})

    def status(self) -> Optional[Dict[str, Any]]:
        """The governor's part of ``/status``; None where nothing is to be held."""
        governor = self._governor
        return None if governor is None else governor.status()
