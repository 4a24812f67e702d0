"""``display://N``: the picture on the N-th monitor of an X server, over all of it.

    display://0      the first monitor of ``xrandr --listmonitors``

The picture keeps its aspect ratio; bars beside it are black. The cursor is hidden. Keys: "o" shows and hides the
overlay (frames a second, watts, degrees); every other one is passed on, with drags and the wheel ("q" and the space
bar mean something to the daemon, nothing to the window). Where anybody can reach the keyboard, ``keys: false`` makes
the window deaf to all of them.

The window lives in a process of its own (``display_child``, ``display_window``), because OpenCV's Qt ends its process
when there is no X server, or no longer. So every failure is an error here, which says why, and the runner tries
again: the X server may come up later than the service, or be restarted. A monitor that is unplugged costs nothing:
drawing goes on, and the window covers it again when it is back.
"""

from __future__ import annotations

import logging
import os
import time
from typing import Any, Callable, Dict, List, Optional

from edgegs.camera.inputs import InputEvent
from edgegs.errors import AccessError, ConfigError, DeviceError, OutputError
from edgegs.findings import OK, PROBLEM, WARNING, Finding, ask_python
from edgegs.frame import Frame
from edgegs.sinks import x11
from edgegs.sinks.base import Sink
from edgegs.sinks.display_child import ChildError, WindowProcess
from edgegs.sinks.display_overlay import overlay_lines
from edgegs.sinks.display_window import connectors
from edgegs.sinks.uri import OutputUri

_log = logging.getLogger("edgegs.sinks")

#: Where the kernel tells of video connectors.
DRM_ROOT = "/sys/class/drm"
#: Below the runner's own patience, seconds: importing OpenCV from an SD card takes a while.
_READY_S, _TAKE_S = 9.0, 5.0
#: How often the overlay's figures are sent, seconds.
_STATUS_S = 0.5


class DisplaySink(Sink):
    """One monitor.

    Options:
        rotation_deg: 0, 90, 180 or 270: the picture turned clockwise, for a monitor that is mounted turned.
        overlay: whether the overlay is shown at first.
        keys: False: neither keys nor drags nor the wheel do anything, "o" included.
        x_display: the X server, such as ":0"; None for the environment's DISPLAY.
        status: returns the daemon's status, of which the overlay shows ``fps``, ``power_w`` and ``temp_c``.
        on_input: called, from a thread of this sink, with what people do at the window. It must not wait.
    """

    OPTIONS = ("rotation_deg", "overlay", "keys", "x_display", "status", "on_input")
    live = True

    def __init__(
        self,
        uri: str,
        index: int,
        *,
        rotation_deg: int = 0,
        overlay: bool = False,
        keys: bool = True,
        x_display: Optional[str] = None,
        status: Optional[Callable[[], Dict[str, Any]]] = None,
        on_input: Optional[Callable[[InputEvent], None]] = None,
    ) -> None:
        super().__init__(uri)
        if isinstance(rotation_deg, bool) or rotation_deg not in (0, 90, 180, 270):
            raise ConfigError(f"output {uri}: rotation_deg is {rotation_deg!r}; expected 0, 90, 180 or 270")
        for name, value in (("overlay", overlay), ("keys", keys)):
            if not isinstance(value, bool):
                raise ConfigError(f"output {uri}: {name} is {value!r}; expected true or false")
        if x_display is not None and not (isinstance(x_display, str) and ":" in x_display):
            raise ConfigError(f'output {uri}: x_display is {x_display!r}; expected an X server, such as ":0"')
        self._index, self._rotation_deg, self._x_display = index, int(rotation_deg), x_display
        self._keys = keys
        self._overlay = overlay  # as it is now: it outlives the window
        self._status, self._on_input = status, on_input
        self._child: Optional[WindowProcess] = None
        self._told_at = float("-inf")
        self._size = (0, 0)

    @classmethod
    def from_uri(cls, uri: OutputUri, **options: Any) -> DisplaySink:
        return cls(uri.text, uri.index, **options)

    def open(self, width: int, height: int, fps: float) -> None:
        display = self._find_display()
        settings = {
            "display": display,
            "index": self._index,
            "width": width,
            "height": height,
            "rotation_deg": self._rotation_deg,
            "overlay": self._overlay,
            "keys": self._keys,
            "drm_root": DRM_ROOT,
        }
        self._size, self._told_at = (width, height), float("-inf")
        try:
            self._child = WindowProcess(display, settings, self._heard)
            self._child.wait_ready(_READY_S)
        except (ChildError, OSError) as error:
            self.close()
            raise DeviceError(f"output {self.uri}: {error}") from error
        self._tell()

    def write(self, frame: Frame) -> None:
        child = self._child
        if child is None:
            raise OutputError(f"output {self.uri}: not open")
        height, width = frame.image.shape[:2]
        if (width, height) != self._size:
            raise OutputError(f"output {self.uri}: a frame of {width}x{height} in a window of %dx%d" % self._size)
        try:
            child.show(frame.image, _TAKE_S)
        except ChildError as error:
            raise OutputError(f"output {self.uri}: {error}") from error
        if time.monotonic() - self._told_at >= _STATUS_S:
            self._tell()

    def close(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.stop()

    def interrupt(self) -> None:
        child = self._child
        if child is not None:
            child.kill()

    def _find_display(self) -> str:
        """The X server to use, once it has answered and has the monitor."""
        display = self._x_display or os.environ.get("DISPLAY", "")
        if not display:
            raise DeviceError(f"output {self.uri}: DISPLAY is not set; {_which_displays()}")
        try:
            server = x11.X11(display)
            try:
                monitors, tells = server.monitors(), server.has_monitors()
            finally:
                server.close()
        except x11.X11Error as error:
            kind = AccessError if error.refused else DeviceError
            advice = "" if error.refused else "; " + _which_displays()
            raise kind(f"output {self.uri}: {error}{advice}") from error
        if self._index not in [monitor.number for monitor in monitors]:
            if self._index > 0 and not tells:
                raise DeviceError(
                    f"output {self.uri}: the X server {display} cannot tell monitors apart (no RandR 1.5); use display://0"
                )
            there = ", ".join(map(str, monitors)) or "none"
            raise DeviceError(f"output {self.uri}: the X server {display} has no monitor {self._index}; it has {there}")
        return display

    def _tell(self) -> None:
        """Send the overlay's figures, when it is shown."""
        child = self._child
        if child is None or self._status is None or not self._overlay:
            return
        self._told_at = time.monotonic()
        try:
            lines = overlay_lines(self._status())
        except Exception:  # figures are an extra: the picture goes on without them
            _log.debug("output %s: no figures for the overlay", self.uri, exc_info=True)
            return
        child.send({"overlay": lines})

    def _heard(self, message: Dict[str, Any]) -> None:
        if "overlay" in message:
            self._overlay = message["overlay"]
            self._tell()
        elif "say" in message:
            _log.info("output %s: %s", self.uri, message["say"])
        elif self._on_input is not None:
            if "key" in message:
                self._on_input(InputEvent("key", key=message["key"]))
            elif "drag" in message:
                dx, dy, button = message["drag"]
                self._on_input(InputEvent("drag", dx=dx, dy=dy, button=button))
            elif "wheel" in message:
                self._on_input(InputEvent("wheel", steps=float(message["wheel"])))


def devices(x_display: Optional[str] = None) -> List[Finding]:
    """The monitors that can be used, or why there is none; and the connectors that the kernel knows."""
    found = []
    known = connectors(DRM_ROOT)
    if known:
        plugged = any(state == "connected" for state in known.values())
        words = ", ".join(f"{name} {state}" for name, state in known.items())
        found.append(
            Finding("display", OK, f"connectors: {words}")
            if plugged
            else Finding("display", WARNING, f"no monitor is plugged in: {words}", "plug one in")
        )
    display = x_display or os.environ.get("DISPLAY", "")
    if not display:
        return [*found, Finding("display", WARNING, "DISPLAY is not set", _which_displays())]
    try:
        server = x11.X11(display)
        try:
            monitors = server.monitors()
        finally:
            server.close()
    except x11.X11Error as error:
        fix = "" if error.refused else _which_displays()
        return [*found, Finding("display", WARNING, str(error), fix)]
    said, why = ask_python(
        "import cv2; from edgegs.sinks.display_window import gui; print(gui(cv2.getBuildInformation()) or 'none')", 30.0
    )
    if said.strip() in ("", "none"):
        fix = "pip uninstall opencv-python-headless, and pip install --force-reinstall opencv-python"
        return [*found, Finding("display", PROBLEM, f"OpenCV has no windows{': ' + why if why else ''}", fix)]
    for monitor in monitors:
        size = f"{monitor.width}x{monitor.height}"
        at = f" at {monitor.x},{monitor.y}" if len(monitors) > 1 else ""
        says = f"display://{monitor.number}: {monitor.name}, {size}{at}, of X server {display}"
        found.append(Finding("display", OK, says))
    if not monitors:
        found.append(Finding("display", WARNING, f"the X server {display} has no monitor that is on", "xrandr --auto"))
    return found


def _which_displays() -> str:
    """What to do without an X server: which ones there are."""
    there = x11.answering()
    if there:
        names = " or ".join(there)
        return f'set x_display of this output (or DISPLAY) to "{names}"' if len(there) == 1 else (
            f"X servers that answer: {names}; set x_display of this output, or DISPLAY, to one of them"
        )  # fmt: skip
    return "no X server answers on this machine: start one (a desktop, or `startx`)"
