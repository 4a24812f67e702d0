"""A program: serves the frames on its standard input over RTSP. Started by ``StreamSink``, never imported.

    python3 rtsp_server.py ADDRESS PORT NAME FRAME_BYTES PIPELINE...

It runs in the system's Python, whose packages hold gst-rtsp-server, and which is 3.6 on JetPack 4.6: so it is
written in that language and imports nothing of edgegs. Frames are encoded only while somebody watches, once for
all who do. It says "ready" when it listens, and ends when its input does.
"""

import ctypes
import os
import signal
import sys
import threading

import gi  # type: ignore[import-not-found]

gi.require_version("Gst", "1.0")
gi.require_version("GstRtspServer", "1.0")
from gi.repository import GLib, Gst, GstRtspServer  # type: ignore[import-not-found]  # noqa: E402

#: Clients at a time, and seconds after which one that has vanished without a word is forgotten.
MAX_CLIENTS = 32
CLEAN_UP_S = 10
#: Frames that may wait for the encoder.
MAX_WAITING = 2
EXIT_PORT_TAKEN = 3


def say(text):
    print("edgegs-rtsp: " + text, flush=True)


class Feed:
    """Hands frames from the reading thread to the pipeline that exists while somebody watches."""

    def __init__(self, frame_bytes):
        self._frame_bytes = frame_bytes
        self._lock = threading.Lock()
        self._source = None
        self._latest = None

    def on_media_configure(self, factory, media):
        """Called when the first client comes: its pipeline has been built."""
        media.connect("unprepared", self._on_unprepared)
        with self._lock:
            self._source = media.get_element().get_by_name("frames")
            latest = self._latest
        if latest is not None:
            self._push(latest)  # a client is answered at once, however slowly frames come

    def _on_unprepared(self, media):
        """Called when the last client has left. A newer pipeline may have taken this one's place."""
        gone = media.get_element().get_by_name("frames")
        with self._lock:
            if self._source is not None and self._source == gone:
                self._source = None

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


def main(arguments):
    # edgegs ties this process to itself; the tie is renewed because a change of program may undo it.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
    address, port, name, frame_bytes = arguments[0], arguments[1], arguments[2], int(arguments[3])
    pipeline = " ".join(arguments[4:])
    Gst.init(None)
    server = GstRtspServer.RTSPServer()
    server.set_address(address)
    server.set_service(port)
    server.get_session_pool().set_max_sessions(MAX_CLIENTS)

    feed = Feed(frame_bytes)
    factory = GstRtspServer.RTSPMediaFactory()
    factory.set_launch("( " + pipeline + " )")
    factory.set_shared(True)
    factory.connect("media-configure", feed.on_media_configure)
    server.get_mount_points().add_factory("/" + name, factory)

    if server.attach(None) == 0:
        say(f"cannot listen on port {port} of {address}")
        return EXIT_PORT_TAKEN

    def clean_up():
        server.get_session_pool().cleanup()
        return True

    GLib.timeout_add_seconds(CLEAN_UP_S, clean_up)
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
