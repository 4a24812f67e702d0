"""A program: serves the frames on its standard input over RTSP. Started by ``StreamSink``, never imported.

    python3 rtsp_server.py ADDRESS PORT NAME FRAME_BYTES STALL_S PIPELINE...

It runs in the system's Python, whose packages hold gst-rtsp-server, and which is 3.6 on JetPack 4.6: so it is
written in that language and imports nothing of edgegs. Frames are encoded only while somebody watches, once for
all who do. It says "ready" when it listens, and ends when its input does.

No viewer may hold up another. gst-rtsp-server stops the one pipeline of all while none of the viewers over TCP can
take more, those over UDP included. So what waits for TCP is bounded here and thrown away up to the next key frame
(``Overflow``), and a connection that takes nothing, or asks for nothing, is closed (``Clients``).
"""

import ctypes
import fcntl
import os
import signal
import socket
import struct
import sys
import termios
import threading
import time

import gi  # type: ignore[import-not-found]

gi.require_version("Gst", "1.0")
gi.require_version("GstRtspServer", "1.0")
from gi.repository import GLib, Gst, GstRtspServer  # type: ignore[import-not-found]  # noqa: E402

#: Connections at a time; whoever comes beyond is closed at once.
MAX_CLIENTS = 32
#: A connection that acknowledges less than this in STALL_S seconds, while more waits for it, is closed: a stream of the
#: lowest bit rate, 50 kbit/s, has five times as much in the usual five seconds.
LEAST_BYTES = 6250
#: So is one that belongs to no session for so many seconds.
IDLE_S = 30.0
#: Seconds between looks at the connections, and at the sessions that have timed out.
LOOK_S = 1
#: What may wait for viewers over TCP while others watch over UDP: nanoseconds of video, and bytes.
TCP_WAITING_NS, TCP_WAITING_BYTES = 1000 * 1000 * 1000, 4 << 20
#: Frames that may wait for the encoder.
MAX_WAITING = 2
EXIT_PORT_TAKEN = 3
_BYTES_ACKED = 120  # offset of tcpi_bytes_acked in struct tcp_info, since Linux 4.1


def say(text):
    print("edgegs-rtsp: " + text, flush=True)


class Feed:
    """Hands frames from the reading thread to the pipeline that exists while somebody watches."""

    def __init__(self, frame_bytes):
        self._frame_bytes = frame_bytes
        self._lock = threading.Lock()
        self._source = None
        self._latest = None
        self._tcp_sinks = []

    def on_media_configure(self, factory, media):
        """Called when the first client comes: its pipeline has been built."""
        media.connect("unprepared", self._on_unprepared)
        media.get_element().get_parent().connect("element-added", self._on_element_added)
        with self._lock:
            self._source = media.get_element().get_by_name("frames")
            self._tcp_sinks = []
            latest = self._latest
        if latest is not None:
            self._push(latest)  # a client is answered at once, however slowly frames come

    def _on_element_added(self, pipeline, element):
        """Called for what the library adds to send to another client."""
        kind = element.get_factory().get_name()
        if kind == "appsink":
            with self._lock:
                self._tcp_sinks.append(element)
        elif kind == "queue":
            kinds = Gst.PadProbeType.BUFFER | Gst.PadProbeType.BUFFER_LIST
            element.get_static_pad("sink").add_probe(kinds, Overflow(element).on_data)

    def _on_unprepared(self, media):
        """Called when the last client has left. A newer pipeline may have taken this one's place."""
        gone = media.get_element().get_by_name("frames")
        with self._lock:
            if self._source is not None and self._source == gone:
                self._source = None
                self._tcp_sinks = []

    def set_dropping(self, dropping):
        """Whether data for TCP is dropped where it would wait.

        Needed for a moment when a connection has been closed: the library looks for who can take data when new data
        comes only, and none comes after what waited for that one.
        """
        with self._lock:
            sinks = list(self._tcp_sinks)
        for sink in sinks:
            sink.set_property("drop", dropping)

    def _push(self, data):
        with self._lock:
            source = self._source
        if source is None or source.get_property("current-level-bytes") >= MAX_WAITING * self._frame_bytes:
            return
        # Not OK while the pipeline is being taken down: the frame is lost with it.
        source.emit("push-buffer", Gst.Buffer.new_wrapped(data))

    def read_all(self, stream):
        """Read frames until the input ends."""
        while True:
            data = stream.read(self._frame_bytes)
            if len(data) < self._frame_bytes:
                return
            self._latest = data
            self._push(data)


class Overflow:
    """Keeps the library's queue before its TCP sink from filling up: a full one would stop the pipeline of all.

    The library puts a queue there when some watch over UDP and some over TCP. Where all watch over TCP, the slowest
    of one sets the rate instead, which suits it better than gaps, and of several each has a backlog of its own.
    """

    def __init__(self, queue):
        self._queue = queue
        self._bounded = False
        self._dropping = False

    def on_data(self, pad, info):
        """Called before data enters the queue."""
        queue = self._queue
        if not self._bounded:
            sink = queue.get_static_pad("src").get_peer()
            if sink is None or sink.get_parent_element().get_factory().get_name() != "appsink":
                return Gst.PadProbeReturn.REMOVE  # UDP: nothing waits there
            for bound in ("max-size-buffers", "max-size-bytes", "max-size-time"):
                queue.set_property(bound, 0)
            self._bounded = True
        full = (
            queue.get_property("current-level-time") >= TCP_WAITING_NS
            or queue.get_property("current-level-bytes") >= TCP_WAITING_BYTES
        )
        if full:
            self._dropping = True
        elif self._dropping:
            parts = info.get_buffer_list()
            first = info.get_buffer() if parts is None else parts.get(0)
            self._dropping = first.has_flags(Gst.BufferFlags.DELTA_UNIT)  # without what it builds upon
        return Gst.PadProbeReturn.DROP if self._dropping else Gst.PadProbeReturn.OK


class Connection:
    """One client's connection, through a descriptor of its own: the library may close its one at any time."""

    def __init__(self, client):
        descriptor = client.get_connection().get_write_socket().get_fd()
        self._socket = socket.socket(fileno=os.dup(descriptor))
        self._acked = 0
        self._moved = self._used = time.monotonic()

    def why_close(self, has_session, stall_s):
        """None, or why it must be closed."""
        now = time.monotonic()
        unsent = struct.unpack("i", fcntl.ioctl(self._socket.fileno(), termios.TIOCOUTQ, b"\0" * 4))[0]
        acked = struct.unpack_from("Q", self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256), _BYTES_ACKED)
        if unsent == 0 or acked[0] - self._acked >= LEAST_BYTES:
            self._acked, self._moved = acked[0], now
        if has_session:
            self._used = now
        if now - self._moved > stall_s:
            return f"a viewer took nothing for {stall_s:g} s"
        return f"a connection was idle for {IDLE_S:g} s" if now - self._used > IDLE_S else None

    def end(self, reset=False):
        """Make the library see its end, in its own thread; with ``reset``, what waits to be sent is thrown away."""
        try:
            if reset:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the client was faster

    def let_go(self):
        self._socket.close()


class Clients:
    """Bounds the number of connections, and for how long one may do nothing."""

    def __init__(self, stall_s):
        self._stall_s = stall_s
        self._lock = threading.Lock()  # clients come in the main thread and go in the library's
        self._known = {}
        self._n_gone = 0

    def on_connected(self, server, client):
        connection = Connection(client)
        with self._lock:
            welcome = len(self._known) < MAX_CLIENTS
            if welcome:
                self._known[client] = connection
        if welcome:
            client.connect("closed", self._on_closed)
        else:
            connection.end()
            connection.let_go()

    def _on_closed(self, client):
        with self._lock:
            self._known.pop(client).let_go()
            self._n_gone += 1

    def look(self):
        """End the connections that have done nothing for too long; returns how many have gone since the last look."""
        with self._lock:
            known = list(self._known)
            n_gone, self._n_gone = self._n_gone, 0
        for client in known:
            has_session = bool(client.session_filter(None))  # not under the lock: it takes the library's
            with self._lock:
                connection = self._known.get(client)
                if connection is None:  # it has gone meanwhile
                    continue
                why = connection.why_close(has_session, self._stall_s)
                if why is not None:
                    say(why + "; closed")
                    connection.end(reset=True)
        return n_gone


def main(arguments):
    # edgegs ties this process to itself; the tie is renewed because a change of program may undo it.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
    address, port, name, frame_bytes = arguments[0], arguments[1], arguments[2], int(arguments[3])
    pipeline = " ".join(arguments[5:])
    Gst.init(None)
    server = GstRtspServer.RTSPServer()
    server.set_address(address)
    server.set_service(port)
    server.get_session_pool().set_max_sessions(MAX_CLIENTS)
    clients = Clients(float(arguments[4]))
    server.connect("client-connected", clients.on_connected)

    feed = Feed(frame_bytes)
    factory = GstRtspServer.RTSPMediaFactory()
    factory.set_launch("( " + pipeline + " )")
    factory.set_shared(True)
    factory.connect("media-configure", feed.on_media_configure)
    server.get_mount_points().add_factory("/" + name, factory)

    if server.attach(None) == 0:
        print(f"ERROR: cannot listen on port {port} of {address}", flush=True)
        return EXIT_PORT_TAKEN

    def look():
        server.get_session_pool().cleanup()
        feed.set_dropping(clients.look() > 0)
        return True

    GLib.timeout_add_seconds(LOOK_S, look)
    loop = GLib.MainLoop()

    def reading():
        try:
            feed.read_all(sys.stdin.buffer)
        finally:
            loop.quit()

    threading.Thread(target=reading, daemon=True).start()
    say("ready")
    loop.run()
    sys.stdout.flush()
    os._exit(0)  # not through destructors of pipelines whose threads still run


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
