"""The program of the process that owns a ``display://`` window; started by ``display_child``.

A process of its own, because OpenCV's Qt ends the process when it finds no X server or loses it. It takes

    argv     file descriptors of the control socket and of the shared memory, and the parent's process id
    control  one JSON object a packet. From the parent: the settings first; {"frame": slot}: a picture lies in that
             slot; {"overlay": [line, …]}: what the overlay shows; end of file: close. To the parent: {"ready": text},
             {"taken": n}: the n-th picture is being drawn, so the slot before it is free; {"key": …}, {"drag": …},
             {"wheel": …}: what people did; {"overlay": bool}; {"say": text} for the log; {"error": text} before the end
    memory   ``SLOTS`` pictures, (height, width, 3) uint8 BGR each

The window is OpenCV's; its place, keys, pointer and cursor are handled over an X connection of this process
(``x11``): Qt goes full-screen only where a window manager does it, zooms by the wheel, and has no way through OpenCV
to hide the cursor. An invisible window over it takes all input.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import os
import re
import selectors
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import numpy as np

from edgegs.sinks import x11
from edgegs.sinks.display_input import Inputs
from edgegs.sinks.display_overlay import Overlay, turn

SLOTS = 2
#: Between two looks at monitors, connectors and the window's place, seconds.
_LOOK_S = 1.0
#: A window manager that puts the window elsewhere so many times in a row gets its way.
_TRIES = 5
_APPEAR_S = 4.0
#: Between two rounds of Qt's own events while no frame comes, seconds.
_IDLE_S = 0.03
#: Drawn before the first picture: black to the eye, and yet told from a window that Qt has not painted.
_NEARLY_BLACK = 3


class WindowError(Exception):
    """The window cannot be shown: the reason, and what to do."""


def gui(build_information: str) -> str:
    """The window system that OpenCV was built for, from ``cv2.getBuildInformation()``; "" for none."""
    line = re.search(r"^ *GUI: *(\S*)", build_information, re.MULTILINE)
    named = line.group(1) if line else ""
    if not named:  # releases before 4.5.3 list them below
        match = re.search(r"^ *(QT|GTK\+?)(?: 2\.x| 3\.x)?: *YES", build_information, re.MULTILINE)
        named = match.group(1) if match else ""
    return "" if named.upper() == "NONE" else named


def connectors(root: str) -> Dict[str, str]:
    """What the kernel says of each video connector, such as {"HDMI-A-1": "connected"}; root: /sys/class/drm."""
    found = {}
    for path in sorted(Path(root).glob("card*-*/status")):
        with contextlib.suppress(OSError):
            found[path.parent.name.partition("-")[2]] = path.read_text().strip()
    return found


def fit(width: int, height: int, canvas_width: int, canvas_height: int) -> Tuple[int, int, int, int]:
    """The largest x, y, width, height of a picture in the middle of a canvas that keep its aspect ratio."""
    scale = min(canvas_width / width, canvas_height / height)
    w = min(canvas_width, max(1, round(width * scale)))
    h = min(canvas_height, max(1, round(height * scale)))
    return (canvas_width - w) // 2, (canvas_height - h) // 2, w, h


class Window:
    """The window and what happens to it.

    Args:
        settings: display, index, width, height, rotation_deg, overlay, keys, drm_root (see ``DisplaySink``).
    """

    def __init__(self, settings: Dict[str, Any], control: socket.socket, memory: int) -> None:
        self._settings, self._control = settings, control
        width, height = settings["width"], settings["height"]
        shared = mmap.mmap(memory, SLOTS * height * width * 3)
        self._slots = np.frombuffer(shared, np.uint8).reshape(SLOTS, height, width, 3)
        self._rotation = settings["rotation_deg"]
        self._overlay, self._overlay_on = Overlay(self._rotation), settings["overlay"]
        self._shown: Optional[int] = None  # the slot on the screen
        self._taken = 0
        self._monitor: Optional[x11.Monitor] = None
        self._connectors = connectors(settings["drm_root"])
        self._tries = 0
        self._canvas = np.zeros((1, 1, 3), np.uint8)
        self._inputs = Inputs(self._rotation)
        self._title = f"edgegs display://{settings['index']} {os.getpid()}"

    # ---- opening and placing ----------------------------------------------------------------------------

    def open(self) -> None:
        self._x = x11.X11(self._settings["display"])
        monitor = self._find_monitor()
        if monitor is None:
            raise WindowError(f"the X server has no monitor {self._settings['index']} any more")
        import cv2

        self._cv2 = cv2
        if not gui(cv2.getBuildInformation()):
            raise WindowError(
                "this OpenCV has no windows (opencv-python-headless?); run `pip uninstall opencv-python-headless` and "
                "`pip install --force-reinstall opencv-python`"
            )
        fonts = os.environ.get("QT_QPA_FONTDIR", "")
        if fonts and not os.path.isdir(fonts):
            del os.environ["QT_QPA_FONTDIR"]  # set by the wheel, which no longer brings fonts: Qt would complain
        cv2.namedWindow(self._title, cv2.WINDOW_NORMAL | cv2.WINDOW_GUI_NORMAL | cv2.WINDOW_FREERATIO)
        cv2.moveWindow(self._title, monitor.x, monitor.y)
        self._imshow(np.full((monitor.height, monitor.width, 3), _NEARLY_BLACK, np.uint8))
        self._window = self._wait_for_window()
        self._x.listen(self._window, x11.ON_KEY | x11.ON_STRUCTURE)
        self._x.cover(self._window)
        self._monitor = monitor
        until = time.monotonic() + _APPEAR_S
        while not self._covers() and self._tries < _TRIES:
            self._place()
            for _ in range(20):
                self._pump()
                if self._covers() or time.monotonic() > until:
                    break
                time.sleep(0.01)
        self._make_sure_of_paint()
        while time.monotonic() < until:
            area = self._x.area(self._window)
            if area is None or tuple(cv2.getWindowImageRect(self._title)[2:]) == area[2:]:
                break
            self._pump()  # Qt has not heard of its window's new size yet
        self._fit_canvas()
        self._send({"ready": f"monitor {monitor}"})

    def _wait_for_window(self) -> int:
        until = time.monotonic() + _APPEAR_S
        while time.monotonic() < until:
            self._pump()
            window = self._x.find(self._title)
            if window is not None and self._x.is_viewable(window):
                return window
            time.sleep(0.02)
        platform = os.environ.get("QT_QPA_PLATFORM", "xcb")
        more = "" if platform == "xcb" else f"; unset QT_QPA_PLATFORM={platform}"
        raise WindowError(f"its window did not appear within {_APPEAR_S:g} s{more}")

    def _make_sure_of_paint(self) -> None:
        """Qt sometimes (one start in fifteen, on a bare X server) takes its window for hidden and paints nothing.

        Nothing but hiding and showing it again helps; without a window that is painted this goes on in the end.
        """
        for _ in range(_TRIES):
            for _ in range(10):
                self._pump()
                if self._x.pixel(self._window, 0, 0) in (None, [_NEARLY_BLACK] * 3):
                    return
            self._x.show(self._window, False)
            self._pump()
            self._x.show(self._window, True)
            self._pump()
            if not self._x.has_window_manager():
                self._x.focus(self._window)
        self._send({"say": "the window seems not to be painted"})

    def _find_monitor(self) -> Optional[x11.Monitor]:
        found = [monitor for monitor in self._x.monitors() if monitor.number == self._settings["index"]]
        return found[0] if found else None

    def _covers(self) -> bool:
        area = self._x.area(self._window)
        if area is None:
            raise WindowError("the window was closed")
        return self._monitor is None or area == self._monitor[2:]

    def _place(self) -> None:
        """Cover the monitor: by the window manager where there is one, else by moving the window itself."""
        assert self._monitor is not None
        self._tries += 1
        monitor, cv2 = self._monitor, self._cv2
        managed = self._x.has_window_manager()
        if managed and self._tries > 1:  # full screen on the wrong monitor: leave it, move, enter it again
            cv2.setWindowProperty(self._title, cv2.WND_PROP_FULLSCREEN, cv2.WINDOW_NORMAL)
            self._pump()
            cv2.moveWindow(self._title, monitor.x, monitor.y)
            self._pump()
        cv2.setWindowProperty(self._title, cv2.WND_PROP_FULLSCREEN, cv2.WINDOW_FULLSCREEN)
        self._pump()
        if not managed:
            self._x.place(self._window, *monitor[2:])
            self._x.focus(self._window)

    def _look(self) -> None:
        """Follow the monitor: gone, back, of another size, or the window is no longer on it."""
        monitor, plugged = self._find_monitor(), connectors(self._settings["drm_root"])
        back = any(state == "connected" != self._connectors.get(name) for name, state in plugged.items())
        if plugged != self._connectors:
            changed = [f"{name} {state}" for name, state in plugged.items() if state != self._connectors.get(name)]
            self._send({"say": "connector " + ", ".join(changed)})
        self._connectors = plugged
        if monitor != self._monitor:
            self._send({"say": f"monitor {monitor} is there" if monitor else f"monitor {self._monitor} is gone"})
        if back or monitor != self._monitor:
            self._monitor, self._tries = monitor, 0
        if monitor is not None and (back or not self._covers()) and self._tries < _TRIES:
            self._place()
            if self._tries == _TRIES:
                self._send({"say": f"the window manager keeps the window off monitor {monitor}"})
        elif self._covers():
            self._tries = 0
        self._pump()
        if self._fit_canvas() or back:
            self._draw()

    def _fit_canvas(self) -> bool:
        """Make the canvas as large as the window; whether that changed it."""
        _, _, width, height = self._cv2.getWindowImageRect(self._title)
        if width <= 0 or height <= 0 or self._canvas.shape == (height, width, 3):
            return False
        self._canvas = np.zeros((height, width, 3), np.uint8)
        return True

    # ---- drawing ----------------------------------------------------------------------------------------

    def _draw(self) -> None:
        if self._shown is None:
            return
        picture = turn(self._slots[self._shown], self._rotation)
        canvas_height, canvas_width = self._canvas.shape[:2]
        x, y, width, height = fit(picture.shape[1], picture.shape[0], canvas_width, canvas_height)
        if picture.shape == self._canvas.shape and not self._overlay_on:
            self._imshow(picture)
            return
        inside = self._canvas[y : y + height, x : x + width]
        if picture.shape == inside.shape:
            inside[:] = picture
        else:
            cv2 = self._cv2
            how = cv2.INTER_AREA if picture.shape[1] > width else cv2.INTER_LINEAR
            cv2.resize(picture, (width, height), dst=inside, interpolation=how)
        if self._overlay_on:
            bars = self._canvas.copy() if (width, height) != (canvas_width, canvas_height) else self._canvas
            self._overlay.draw(bars)  # never on the canvas's own bars: the next picture does not clear them
            self._imshow(bars)
        else:
            self._imshow(self._canvas)

    def _imshow(self, image: np.ndarray) -> None:
        self._cv2.imshow(self._title, image)
        self._pump()

    def _pump(self) -> None:
        self._cv2.waitKey(1)  # lets Qt paint; keys come over the X connection

    # ---- what people do ---------------------------------------------------------------------------------

    def _input(self, events: List[x11.Event]) -> None:
        if not self._settings["keys"]:
            return
        for message in self._inputs.messages(events, self._x.keyboard, self._side()):
            if message.get("key") == "o":
                self._overlay_on = not self._overlay_on
                message = {"overlay": self._overlay_on}
                self._draw()
            self._send(message)

    def _side(self) -> int:
        """Height of the picture as it is on the screen, in pixels, along its own vertical."""
        turned = self._rotation % 180 != 0
        height, width = self._slots.shape[1:3]
        size = (height, width) if turned else (width, height)
        _, _, w, h = fit(*size, self._canvas.shape[1], self._canvas.shape[0])
        return w if turned else h

    # ---- the loop ---------------------------------------------------------------------------------------

    def run(self) -> None:
        """Until the parent closes its end."""
        selector = selectors.DefaultSelector()
        selector.register(self._control, selectors.EVENT_READ)
        selector.register(self._x, selectors.EVENT_READ)
        looked = time.monotonic()
        while True:
            selector.select(_IDLE_S)
            if not self._messages():
                return
            events = self._x.events()
            self._pump()
            if self._fit_canvas():
                self._draw()
            self._input(events)
            now = time.monotonic()
            if now - looked > _LOOK_S or any(event.kind in (x11.CONFIGURE, x11.DESTROY) for event in events):
                looked = now
                self._look()

    def _messages(self) -> bool:
        """Do what the parent asks; False when it wants the end, or is no more."""
        while True:
            try:
                packet = self._control.recv(65536, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return True
            except OSError:
                return False
            if not packet:
                return False
            message = json.loads(packet.decode("utf-8"))
            if "frame" in message:
                self._taken += 1
                self._shown = message["frame"]
                self._send({"taken": self._taken})
                self._draw()
            if "overlay" in message:
                self._overlay.say(message["overlay"])
                if self._overlay_on:
                    self._draw()

    def _send(self, message: Dict[str, Any]) -> None:
        send(self._control, message, wait="taken" in message)


def send(control: socket.socket, message: Dict[str, Any], wait: bool = True) -> None:
    """One packet to the parent, which may be gone. Without ``wait`` it is dropped where the parent does not listen."""
    with contextlib.suppress(OSError):
        control.send(json.dumps(message).encode("utf-8"), 0 if wait else socket.MSG_DONTWAIT)


def die_with(parent: int) -> None:
    """Let the kernel end this process with its parent, however that ends."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(0)


def main(arguments: List[str]) -> int:
    control_fd, memory, parent = (int(argument) for argument in arguments)
    die_with(parent)
    control = socket.socket(fileno=control_fd)
    settings = control.recv(65536)
    if not settings:
        return 0
    os.environ.setdefault("QT_QPA_PLATFORM", "xcb")
    os.environ.update(QT_AUTO_SCREEN_SCALE_FACTOR="0", QT_ENABLE_HIGHDPI_SCALING="0", QT_SCALE_FACTOR="1")
    os.environ.pop("QT_SCREEN_SCALE_FACTORS", None)  # a window is as many pixels as its monitor
    try:
        window = Window(json.loads(settings.decode("utf-8")), control, memory)
        window.open()
        window.run()
    except (x11.X11Error, WindowError) as error:
        send(control, {"error": str(error)})
        return 1
    except Exception as error:  # OpenCV's own, such as a GTK build that finds no display
        send(control, {"error": f"{type(error).__name__}: " + " ".join(str(error).split())})
        return 1
    return 0


def start() -> None:
    """The whole program; does not return."""
    status = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(status)  # without Qt's own tidying up, which may wait for a server that is gone
