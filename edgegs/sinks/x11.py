"""The little of the X11 protocol that a kiosk's window needs, over a socket of one's own.

Why not Xlib: it ends the whole process when the server dies and waits for ever for one that hangs; libXrandr,
libXfixes and ``xrandr`` may be missing on a board. Here every wait has an end, and every failure is an
``X11Error`` that says what to do. Requests and events are those of the core protocol and of RandR 1.5:
https://www.x.org/releases/X11R7.7/doc/xproto/x11protocol.html, randrproto.txt. Numbers are little-endian.
"""

from __future__ import annotations

import collections
import contextlib
import os
import re
import socket
import struct
import time
from typing import Deque, Dict, List, NamedTuple, Optional, Tuple

from edgegs.sinks.x11_auth import cookie, padded, round4

SOCKETS = "/tmp/.X11-unix"
#: The kernel's list of sockets; one without a file has "@" before its name.
PROC_UNIX = "/proc/net/unix"
KEY_PRESS, KEY_RELEASE, BUTTON_PRESS, BUTTON_RELEASE, MOTION, DESTROY, CONFIGURE, MAPPING = 2, 3, 4, 5, 6, 17, 22, 34
ON_KEY, ON_BUTTON, ON_MOTION, ON_STRUCTURE = 3 << 0, 3 << 2, 1 << 6, 1 << 17
_DISPLAY = re.compile(r"(?:unix/|tcp/)?([A-Za-z0-9._-]*|\[[0-9A-Fa-f:]+\]):([0-9]{1,5})(?:\.([0-9]{1,3}))?")
_ATOM_ANY = 0


class X11Error(Exception):
    """No connection to an X server, or none any more: the reason, and what to do. ``refused``: for want of a right."""

    def __init__(self, text: str, refused: bool = False) -> None:
        super().__init__(text)
        self.refused = refused


class Monitor(NamedTuple):
    """One monitor as ``xrandr --listmonitors`` shows it: its place in that list, its name, and its pixels."""

    number: int
    name: str
    x: int
    y: int
    width: int
    height: int

    def __str__(self) -> str:
        return f"{self.number} ({self.name}, {self.width}x{self.height} at {self.x},{self.y})"


class Event(NamedTuple):
    """A core event: its kind (``KEY_PRESS`` …); key code or button; the server's milliseconds; pointer; modifiers."""

    kind: int
    detail: int
    time: int
    x: int
    y: int
    state: int


def answering(timeout_s: float = 0.5) -> List[str]:
    """Names of the X servers of this machine that answer, such as ``[":0"]``; refusing one counts as well."""
    numbers: List[str] = []
    with contextlib.suppress(OSError):
        numbers += re.findall("^X([0-9]{1,5})$", "\n".join(os.listdir(SOCKETS)), re.MULTILINE)
    with contextlib.suppress(OSError):  # a service with a /tmp of its own (PrivateTmp) sees no file, but can connect
        with open(PROC_UNIX, encoding="utf-8", errors="replace") as file:
            numbers += re.findall(f"@{re.escape(SOCKETS)}/X([0-9]{{1,5}})$", file.read(), re.MULTILINE)
    found = []
    for number in sorted(set(map(int, numbers))):
        try:
            X11(f":{number}", timeout_s).close()
        except X11Error as error:
            if not error.refused:
                continue
        found.append(f":{number}")
    return found


class X11:
    """One connection.

    Args:
        display: as in DISPLAY: ``:0``, ``:0.1`` or ``host:0``.
        timeout_s: the longest wait for the server, for each answer.

    Raises:
        X11Error: from every method.
    """

    def __init__(self, display: str, timeout_s: float = 3.0) -> None:
        match = _DISPLAY.fullmatch(display)
        if match is None:
            raise X11Error(f"{display!r} is no X display; write :0")
        self.display, self._timeout_s = display, timeout_s
        self._host, self._number = match.group(1).strip("[]"), int(match.group(2))
        self._buffer = b""
        self._sequence = 0
        self._events: Deque[bytes] = collections.deque()
        self._extensions: Dict[str, int] = {}
        self._atoms: Dict[str, int] = {}
        self._socket = self._connect()
        try:
            self._set_up(int(match.group(3) or 0))
        except BaseException:
            self._socket.close()
            raise

    def close(self) -> None:
        self._socket.close()

    def fileno(self) -> int:
        return self._socket.fileno()

    # ---- connecting -------------------------------------------------------------------------------------

    def _connect(self) -> socket.socket:
        local = self._host in ("", "unix")
        path = f"{SOCKETS}/X{self._number}"
        try:
            if not local:
                return socket.create_connection((self._host, 6000 + self._number), self._timeout_s)
            for address in ("\0" + path, path):
                made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                made.settimeout(self._timeout_s)
                try:
                    made.connect(address)
                    return made
                except OSError:
                    made.close()
                    if address == path:
                        raise
            raise AssertionError
        except FileNotFoundError:
            why = f"there is no X server {self.display}"
        except ConnectionRefusedError:
            why = f"nobody answers at X display {self.display}" + (f" ({path} was left behind)" if local else "")
        except PermissionError:
            raise X11Error(f"this user may not use {path}", refused=True) from None
        except (OSError, OverflowError, UnicodeError) as error:
            why = f"X display {self.display} cannot be reached ({error})"
        raise X11Error(why)

    def _set_up(self, screen: int) -> None:
        name, data = cookie(self._socket, self._number)
        hello = struct.pack("<cxHHHHxx", b"l", 11, 0, len(name), len(data)) + padded(name) + padded(data)
        self._send(hello)
        status, reason_length, _, _, words = struct.unpack("<BBHHH", self._take(8))
        body = self._take(4 * words)
        if status != 1:
            reason = body[:reason_length] if status == 0 else body
            text = " ".join(reason.decode("latin-1").replace("\0", " ").split()) or "no reason given"
            raise X11Error(
                f"the X server {self.display} refuses this user ({text}); set XAUTHORITY to the file that its session "
                "uses, or run `xhost +si:localuser:USER` in it", refused=True,
            )  # fmt: skip
        self._next_id, self._id_mask, vendor_length, screens, formats = (
            *struct.unpack_from("<II", body, 4), *struct.unpack_from("<H", body, 16), body[20], body[21]
        )  # fmt: skip
        self._big_endian = body[22] != 0
        self._min_key, self._max_key = body[26], body[27]
        at = 32 + round4(vendor_length) + 8 * formats
        if screen >= screens:
            raise X11Error(f"the X server {self.display} has no screen {screen}; leave .{screen} out")
        for i in range(screens):
            if i == screen:
                self.root = struct.unpack_from("<I", body, at)[0]
                self.width, self.height = struct.unpack_from("<HH", body, at + 20)
            depths = body[at + 39]
            at += 40
            for _ in range(depths):
                at += 8 + 24 * struct.unpack_from("<H", body, at + 2)[0]

    # ---- bytes ------------------------------------------------------------------------------------------

    def _lost(self, why: object) -> X11Error:
        return X11Error(f"the X server {self.display} is gone ({why})")

    def _send(self, data: bytes) -> None:
        try:
            self._socket.settimeout(self._timeout_s)
            self._socket.sendall(data)
        except socket.timeout:
            raise X11Error(f"the X server {self.display} does not answer within {self._timeout_s:g} s") from None
        except OSError as error:
            raise self._lost(error.strerror or error) from None

    def _take(self, count: int) -> bytes:
        """The next ``count`` bytes from the server."""
        until = time.monotonic() + self._timeout_s
        while len(self._buffer) < count:
            self._receive(max(0.001, until - time.monotonic()))
            if len(self._buffer) < count and time.monotonic() > until:
                raise X11Error(f"the X server {self.display} does not answer within {self._timeout_s:g} s")
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        return taken

    def _receive(self, timeout_s: float) -> bool:
        """Read what there is; False when there is nothing."""
        try:
            self._socket.settimeout(timeout_s)
            data = self._socket.recv(65536)
        except (socket.timeout, BlockingIOError):
            return False
        except OSError as error:
            raise self._lost(error.strerror or error) from None
        if not data:
            raise self._lost("connection closed")
        self._buffer += data
        return True

    def _packet(self) -> bytes:
        packet = self._take(32)
        if packet[0] in (1, 35):  # a reply or a generic event may be longer
            packet += self._take(4 * struct.unpack_from("<I", packet, 4)[0])
        return packet

    def request(self, opcode: int, body: bytes = b"", data: int = 0) -> None:
        """Send a request without an answer. What the server dislikes about it is not reported."""
        self._send(struct.pack("<BBH", opcode, data, 1 + len(body) // 4) + body)
        self._sequence = (self._sequence + 1) & 0xFFFF

    def ask(self, opcode: int, body: bytes = b"", data: int = 0) -> Optional[bytes]:
        """Send a request and wait for its reply; None when the server answers with an error."""
        self.request(opcode, body, data)
        while True:
            packet = self._packet()
            ours = struct.unpack_from("<H", packet, 2)[0] == self._sequence
            if packet[0] > 1:
                self._events.append(packet)
            elif ours:
                return packet if packet[0] == 1 else None

    def events(self) -> List[Event]:
        """The events that have come, without waiting."""
        while self._receive(0.0):
            pass
        while len(self._buffer) >= 32:
            packet = self._packet()
            if packet[0] > 1:
                self._events.append(packet)
        found = []
        for packet in self._events:
            x, y, _, _, state = struct.unpack_from("<hhhhH", packet, 20)
            found.append(Event(packet[0] & 0x7F, packet[1], struct.unpack_from("<I", packet, 4)[0], x, y, state))
        self._events.clear()
        return found

    def new_id(self) -> int:
        taken = self._next_id
        self._next_id += self._id_mask & -self._id_mask
        return taken

    # ---- what is on the screen --------------------------------------------------------------------------

    def monitors(self) -> List[Monitor]:
        """The monitors that are on, in the order of ``xrandr --listmonitors``."""
        randr = self._extension("RANDR")
        newer = randr and self._newer_randr(randr)
        reply = self.ask(randr, struct.pack("<IBxxx", self.root, 0), 42) if newer else None
        if reply is None:
            return [Monitor(0, "the whole screen", 0, 0, self.width, self.height)]
        found, at = [], 32
        for i in range(struct.unpack_from("<I", reply, 12)[0]):
            atom, outputs, x, y, width, height = struct.unpack_from("<IxxHhhHH", reply, at)
            at += 24 + 4 * outputs
            if width and height:
                found.append(Monitor(i, self._atom_name(atom), x, y, width, height))
        return found

    def has_monitors(self) -> bool:
        """Whether the server can tell monitors apart (RandR 1.5)."""
        randr = self._extension("RANDR")
        return bool(randr) and self._newer_randr(randr)

    def _newer_randr(self, randr: int) -> bool:
        reply = self.ask(randr, struct.pack("<II", 1, 5), 0)
        return reply is not None and struct.unpack_from("<II", reply, 8) >= (1, 5)

    def _extension(self, name: str) -> int:
        if name not in self._extensions:
            reply = self.ask(98, struct.pack("<Hxx", len(name)) + padded(name.encode()))
            self._extensions[name] = reply[9] if reply and reply[8] else 0
        return self._extensions[name]

    def _atom_name(self, atom: int) -> str:
        reply = self.ask(17, struct.pack("<I", atom))
        if reply is None:
            return "?"
        return reply[32 : 32 + struct.unpack_from("<H", reply, 8)[0]].decode("latin-1")

    def property(self, window: int, name: str) -> bytes:
        """The first 1024 bytes of a window's property; empty without it."""
        atom = self._atoms.get(name, 0)
        if not atom:  # not asked for yet, or nobody had made it
            reply = self.ask(16, struct.pack("<Hxx", len(name)) + padded(name.encode()), 1)
            atom = self._atoms[name] = struct.unpack_from("<I", reply, 8)[0] if reply else 0
        reply = self.ask(20, struct.pack("<IIIII", window, atom, _ATOM_ANY, 0, 256)) if atom else None
        if reply is None:
            return b""
        bits, length = reply[1], struct.unpack_from("<I", reply, 16)[0]
        return reply[32 : 32 + length * bits // 8]

    def has_window_manager(self) -> bool:
        name = "_NET_SUPPORTING_WM_CHECK"
        owner = self.property(self.root, name)
        return len(owner) == 4 and self.property(struct.unpack("<I", owner)[0], name) == owner  # not one that ended

    def find(self, title: str) -> Optional[int]:
        """The window of this title, at any depth; None without one."""
        level = [self.root]
        while level:
            below: List[int] = []
            for window in level:
                reply = self.ask(15, struct.pack("<I", window))
                count = struct.unpack_from("<H", reply, 16)[0] if reply else 0
                children = struct.unpack_from(f"<{count}I", reply, 32) if reply else ()
                for child in children:
                    if self.property(child, "WM_NAME") == title.encode("latin-1"):
                        return child
                below.extend(children)
            level = below
        return None

    def is_viewable(self, window: int) -> bool:
        """Whether the window is on the screen (it may be covered by others)."""
        reply = self.ask(3, struct.pack("<I", window))
        return reply is not None and reply[26] == 2

    def area(self, window: int) -> Optional[Tuple[int, int, int, int]]:
        """x and y on the screen, width and height of a window without its border; None when it is gone."""
        size = self.ask(14, struct.pack("<I", window))
        place = self.ask(40, struct.pack("<IIhh", window, self.root, 0, 0))
        if size is None or place is None:
            return None
        x, y = struct.unpack_from("<hh", place, 12)
        width, height = struct.unpack_from("<HH", size, 16)
        return x, y, width, height

    def pixel(self, window: int, x: int, y: int) -> Optional[List[int]]:
        """The three colour bytes of a pixel as it is on the screen, sorted; None where that cannot be told."""
        reply = self.ask(73, struct.pack("<IhhHHI", window, x, y, 1, 1, 0xFFFFFFFF), 2)
        if reply is None or reply[1] not in (24, 32):
            return None
        return sorted(reply[33:36] if self._big_endian else reply[32:35])

    # ---- changing it ------------------------------------------------------------------------------------

    def place(self, window: int, x: int, y: int, width: int, height: int) -> None:
        """Move, resize and raise a window; a window manager may think otherwise."""
        self.request(12, struct.pack("<IHxx5i", window, 0x4F, x, y, width, height, 0))

    def show(self, window: int, visible: bool) -> None:
        """Map or unmap a window."""
        self.request(8 if visible else 10, struct.pack("<I", window))

    def listen(self, window: int, mask: int) -> None:
        """Ask for a window's events (``ON_KEY`` …)."""
        self.request(2, struct.pack("<III", window, 1 << 11, mask))

    def focus(self, window: int) -> None:
        """Give a window the keyboard."""
        self.request(42, struct.pack("<II", window, 0), 1)

    def blank_cursor(self) -> int:
        """A cursor that shows nothing."""
        pixmap, cursor = self.new_id(), self.new_id()
        context = self.new_id()
        self.request(53, struct.pack("<IIHH", pixmap, self.root, 1, 1), 1)
        self.request(55, struct.pack("<IIII", context, pixmap, 1, 0))  # GC function: clear
        self.request(70, struct.pack("<IIhhHH", pixmap, context, 0, 0, 1, 1))
        self.request(93, struct.pack("<III6Hhh", cursor, pixmap, pixmap, 0, 0, 0, 0, 0, 0, 0, 0))
        self.request(60, struct.pack("<I", context))
        self.request(54, struct.pack("<I", pixmap))
        return cursor

    def cover(self, window: int) -> int:
        """Lay an invisible window over all of ``window``: it takes keys, buttons and motion, and hides the cursor."""
        made = self.new_id()
        values = struct.pack("<II", ON_KEY | ON_BUTTON | ON_MOTION, self.blank_cursor())
        # class InputOnly; event mask and cursor are given; clipped to its parent, so of any size
        body = struct.pack("<IIhhHHHHII", made, window, 0, 0, 32767, 32767, 0, 2, 0, 1 << 11 | 1 << 14)
        self.request(1, body + values)
        self.show(made, True)
        return made

    def keyboard(self) -> Dict[int, Tuple[int, ...]]:
        """The keysyms of every key code."""
        count = self._max_key - self._min_key + 1
        reply = self.ask(101, struct.pack("<BBxx", self._min_key, count))
        if reply is None:
            return {}
        each = reply[1]
        syms = struct.unpack_from(f"<{each * count}I", reply, 32)
        return {self._min_key + i: syms[i * each : (i + 1) * each] for i in range(count)}
