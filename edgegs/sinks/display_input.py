"""What people do at the window: from X11 events to the messages that the window's process sends."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Tuple

from edgegs.sinks import x11

_ONCE = (" ", "q", "o")  # keys that do not repeat while they are held
_BUTTONS = {1: "left", 2: "middle", 3: "right"}
_UP, _DOWN = 4, 5  # the wheel, as buttons
_NAMES = {
    0xFF51: "left", 0xFF52: "up", 0xFF53: "right", 0xFF54: "down", 0xFF1B: "escape",
    0xFF96: "left", 0xFF97: "up", 0xFF98: "right", 0xFF99: "down",
}  # fmt: skip


class Inputs:
    """Keeps which buttons are down, and where the pointer was.

    Args:
        rotation_deg: by which the picture is shown, clockwise: drags are told as movements in the picture.
    """

    def __init__(self, rotation_deg: int) -> None:
        self._rotation_deg = rotation_deg
        self._keys: Dict[int, Tuple[int, ...]] = {}
        self._pressed: Dict[int, Tuple[int, int]] = {}  # buttons, and where the pointer was last
        self._released = (0, 0)  # the key that went up last, and when

    def messages(
        self, events: List[x11.Event], keyboard: Callable[[], Dict[int, Tuple[int, ...]]], side: int
    ) -> List[Dict[str, Any]]:
        """One message for each key, one for what each button dragged, and one for the wheel.

        Args:
            keyboard: asks for the keysyms of every key code.
            side: height of the picture on the screen, pixels.
        """
        made: List[Dict[str, Any]] = []
        moved: Dict[str, Tuple[int, int]] = {}
        steps = 0
        for event in events:
            if event.kind == x11.KEY_PRESS:
                self._keys = self._keys or keyboard()
                name = key_name(self._keys.get(event.detail, ()), event.state)
                repeated = self._released == (event.detail, event.time)  # the server releases and presses at once
                if name and not (repeated and name in _ONCE):
                    made.append({"key": name})
            elif event.kind == x11.KEY_RELEASE:
                self._released = (event.detail, event.time)
            elif event.kind == x11.MAPPING:
                self._keys = {}
            elif event.kind == x11.BUTTON_PRESS and event.detail in _BUTTONS:
                self._pressed[event.detail] = (event.x, event.y)
            elif event.kind == x11.BUTTON_PRESS and event.detail in (_UP, _DOWN):
                steps += 1 if event.detail == _UP else -1
            elif event.kind in (x11.MOTION, x11.BUTTON_RELEASE):
                for button, (x, y) in list(self._pressed.items())[:1]:  # the one that was pressed first
                    dx, dy = moved.get(_BUTTONS[button], (0, 0))
                    moved[_BUTTONS[button]] = (dx + event.x - x, dy + event.y - y)
                    self._pressed[button] = (event.x, event.y)
                if event.kind == x11.BUTTON_RELEASE:
                    self._pressed.pop(event.detail, None)
        for name, (dx, dy) in moved.items():
            if dx or dy:
                made.append({"drag": [*to_picture(dx / side, dy / side, self._rotation_deg), name]})
        if steps:
            made.append({"wheel": steps})
        return made


def to_picture(dx: float, dy: float, rotation_deg: int) -> Tuple[float, float]:
    """A movement on the screen as a movement in the picture, which is shown rotated clockwise."""
    return {0: (dx, dy), 90: (dy, -dx), 180: (-dx, -dy), 270: (-dy, dx)}[rotation_deg]


def key_name(syms: Tuple[int, ...], state: int) -> str:
    """What an ``InputEvent`` calls this key; "" for one that it has no name for.

    Args:
        syms: keysyms of the key: plain and shifted, twice when there are two layouts.
        state: modifiers of the event.
    """
    group = 2 if state >> 13 & 3 and len(syms) > 3 and syms[2] else 0
    plain = syms[group] if len(syms) > group else 0
    shifted = syms[group + 1] if len(syms) > group + 1 else 0
    sym = shifted if state & 1 and shifted else plain
    if plain in _NAMES:
        return _NAMES[plain]
    if 0xFFAA <= sym <= 0xFFB9:  # keypad
        return chr(sym - 0xFF80)
    if state & 4 or not (0x20 <= sym <= 0x7E or 0xA0 <= sym <= 0xFF or sym >> 24 == 1):
        return ""  # with Ctrl it is a command, not a character
    character = chr(min(sym & 0xFFFFFF, 0x10FFFF)).lower()
    return character if character.isprintable() else ""
