"""What a run says about itself: pieces of the dict behind ``/status``, one line of it, and the file it is left in."""

from __future__ import annotations

import json
import logging
import os
from typing import Any, Dict

from edgegs.errors import AccessError, OutputError
from edgegs.files import write_at_once

log = logging.getLogger(__name__)

#: Where a running service leaves its status, in systemd's RUNTIME_DIRECTORY (memory, not the SD card).
STATUS_FILE = "status.json"


def window_figures(snapshot: Dict[str, Any]) -> Dict[str, Any]:
    """The last window's figures, out of ``Telemetry.snapshot``."""
    window = snapshot["window"]
    return {
        "fps": window.get("fps"),
        "frame_ms": window.get("frame_ms"),
        "stages": window.get("stage_ms"),
        "temp_c": window.get("temp_c"),
        "power_w": {rail: power["w"] for rail, power in window.get("power_w", {}).items()},
        "throttle": window.get("throttle"),
        "sources": window.get("sources"),
        "run_id": snapshot["run_id"],
        "log": snapshot["log"],
    }


def in_a_line(status: Dict[str, Any]) -> str:
    """The status in a few words."""
    up = sum(output["state"] == "up" for output in status["outputs"])
    fps = status.get("fps")
    rate = "" if fps is None else f", {fps:.1f} FPS"
    return f"{status['state']} {os.path.basename(status['scene'])}{rate}, {up} of {len(status['outputs'])} outputs up"


def leave(status: Dict[str, Any]) -> bool:
    """Leave the status where ``edgegs status`` finds it without a port; False where there is no such place."""
    folder = os.environ.get("RUNTIME_DIRECTORY", "").split(":")[0]
    if not folder:
        return False
    try:
        write_at_once(os.path.join(folder, STATUS_FILE), json.dumps(status, default=str).encode("utf-8"))
    except (OutputError, AccessError) as error:
        log.debug("%s", error)
        return False
    return True
