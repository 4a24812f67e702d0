"""``rtp://`` and ``rtsp://``: H.264 through a GStreamer child that is fed raw frames.

    rtp://192.168.1.20:5000           RTP to one machine, or to a multicast group (224.0.0.0/4, ff00::/8)
    rtsp://@:8554/live                serves; everybody who asks for rtsp://THIS-MACHINE:8554/live watches
    rtsp://192.168.1.20:8554/live     publishes to a server such as MediaMTX, which passes it on to browsers

Serving is done by gst-rtsp-server, the library of the GStreamer project, in a child run by the system's Python
(``rtsp_server.py``): session handling, transports and time-outs of RTSP are no place for code of one's own, and
it is packaged for every board. It takes whoever can reach the port: there is no password, so bind it to an
address of a trusted network (``rtsp://@192.168.1.5:8554/live``), or publish to a server that has users.
An empty host means every IPv4 address.

RTP time stamps follow the wall clock: each frame is stamped when it reaches the child, however irregularly frames
come. Published streams count frames of the nominal rate instead; a late frame is repeated to fill the time before it,
and one beyond that rate is left out.
The key-frame interval is counted in frames of the nominal rate: at half the rate it lasts twice as long elsewhere.
4:2:0 colour needs an even size: the last row or column of an odd one is not sent.

A child that takes no frame for ``STALL_S`` seconds, or has ended, is an error of the next write; the runner then
starts another. How to receive each of them: docs/streams.md.
"""

from __future__ import annotations

import errno
import logging
import socket
import time
from pathlib import Path
from typing import Any, ClassVar, List, Optional

import numpy as np

from edgegs.errors import AccessError, DeviceError, EdgegsError, OutputError
from edgegs.frame import Frame
from edgegs.sinks import encoders, gst_pipeline
from edgegs.sinks.base import Sink
from edgegs.sinks.gst_child import Child
from edgegs.sinks.h264 import CALL_S, START_S, Settings, Slots, empty_i420, launch, to_i420
from edgegs.sinks.uri import OutputUri, is_loopback

_log = logging.getLogger("edgegs.sinks")

#: Seconds without progress after which a child counts as stalled.
STALL_S = 5.0
#: Seconds that a child has to say good-bye to its server.
FINISH_S = 2.0
#: Seconds until a server to publish to must have answered; below ``CALL_S``, so that the reason can be given.
CONNECT_S = 10.0
#: … and so long to be reached at all.
REACH_S = 5.0
#: A viewer over TCP that takes nothing for so many seconds loses its connection to the RTSP server.
VIEWER_STALL_S = 5.0
#: What gst-launch-1.0 prints when a pipeline plays.
_CLOCK = "New clock"
_SERVER = Path(__file__).with_name("rtsp_server.py")


class StreamSink(Sink):
    """One H.264 stream.

    Options:
        encoder: "auto", or one of ``encoders.ENCODERS``.
        bitrate_kbps: 50..200000; default ``gst_pipeline.default_bitrate_kbps``.
        keyframe_interval_s: 0.1..60 seconds; whoever starts to watch waits for so long at most.
    """

    OPTIONS = ("encoder", "bitrate_kbps", "keyframe_interval_s")
    live: ClassVar[bool] = True
    stall_s: ClassVar[float] = CALL_S

    def __init__(
        self,
        uri: OutputUri,
        encoder: str = "auto",
        bitrate_kbps: Optional[int] = None,
        keyframe_interval_s: float = 1.0,
    ) -> None:
        super().__init__(uri.text)
        self._parts = uri
        self._settings = Settings(uri.text, encoder, bitrate_kbps, keyframe_interval_s)
        self._child: Optional[Child] = None
        self._yuv: Optional[np.ndarray] = None
        self._warned = False
        self._slots: Optional[Slots] = None  # of a stream whose time is counted in frames

    @classmethod
    def from_uri(cls, uri: OutputUri, **options: Any) -> Sink:
        return cls(uri, **options)

    def open(self, width: int, height: int, fps: float) -> None:
        try:
            self._open(width, height, fps)
        except EdgegsError as error:
            self._drop()
            raise type(error)(f"output {self.uri}: {error}") from error

    def _open(self, width: int, height: int, fps: float) -> None:
        video = self._settings.video(width, height, fps, encoders.choose(self._settings.encoder))
        self._yuv = empty_i420(video)
        uri = self._parts
        if uri.kind == "rtsp-server":
            self._serve(video)
            return
        if uri.kind == "rtp":
            pipeline = gst_pipeline.rtp(video, _resolve(uri.host, uri.port), uri.port)
        else:
            check_answers(uri.host, uri.port)
            pipeline = gst_pipeline.rtsp_client(video, uri.host, uri.port, uri.name)
        self._child = launch(pipeline, STALL_S)
        if uri.kind == "rtsp-client":
            self._slots = Slots(fps)
            self._introduce(self._child, self._yuv)
        else:
            self._child.wait_said(_CLOCK, START_S)  # frames that come before have no time stamp

    def _introduce(self, child: Child, yuv: np.ndarray) -> None:
        """Show the server black pictures until it has taken the stream.

        rtspclientsink speaks to its server when it has seen what it will send, for which some encoders need a few.
        """
        yuv[: yuv.shape[0] * 2 // 3] = 16
        yuv[yuv.shape[0] * 2 // 3 :] = 128
        deadline = time.monotonic() + CONNECT_S
        while time.monotonic() < deadline:
            child.feed(yuv.data.cast("B"))
            if child.says(_CLOCK, min(0.5, CONNECT_S)):
                return
        raise child.not_ready(CONNECT_S)

    def _serve(self, video: gst_pipeline.Video) -> None:
        uri = self._parts
        address = uri.host or "0.0.0.0"
        if not self._warned and not is_loopback(address):
            self._warned = True
            _log.warning("output %s: whoever reaches this port can watch; let a firewall decide", self.uri)
        check_listen(address, uri.port)
        media = gst_pipeline.rtsp_media(video)
        encoders.need(gst_pipeline.elements(media))
        python = encoders.rtsp_python()
        numbers = [str(video.frame_bytes), str(VIEWER_STALL_S)]
        command: List[str] = [python, "-I", str(_SERVER), address, str(uri.port), uri.name, *numbers, *media]
        self._child = Child(command, "the RTSP server", STALL_S)
        self._child.wait_said("edgegs-rtsp: ready", START_S)

    def write(self, frame: Frame) -> Optional[bool]:
        child, yuv = self._child, self._yuv
        if child is None or yuv is None:
            raise OutputError(f"output {self.uri}: not open")
        try:
            copies = 1 if self._slots is None else self._slots.copies(frame.t_mono_ns)
            if copies == 0:
                return False
            data = to_i420(frame.image, yuv)
            for _ in range(copies):
                child.feed(data)
        except OutputError as error:
            raise OutputError(f"output {self.uri}: {error}") from error
        return None

    def close(self) -> None:
        child = self._child
        if child is None:
            return
        try:
            child.finish(FINISH_S, live=True)
        except OutputError as error:
            raise OutputError(f"output {self.uri}: {error}") from error
        finally:
            self._drop()

    def interrupt(self) -> None:
        child = self._child
        if child is not None:
            child.kill()

    def _drop(self) -> None:
        child, self._child = self._child, None
        self._yuv = None
        if child is not None:
            child.reap()


def check_answers(host: str, port: int) -> None:
    """Find out why a server cannot be reached, before GStreamer says it in words of its own; raises DeviceError."""
    try:
        socket.create_connection((host, port), timeout=REACH_S).close()
    except socket.gaierror as error:
        raise DeviceError(f"{host} is not a known machine: {error.strerror}") from error
    except ConnectionRefusedError as error:
        raise DeviceError(f"nothing listens at {host}:{port}; is the RTSP server running?") from error
    except OSError as error:
        raise DeviceError(f"{host}:{port} cannot be reached: {error.strerror or 'no answer'}") from error


def check_listen(address: str, port: int) -> None:
    """Find out why a port cannot be listened on, before a child says only that it cannot.

    Raises:
        DeviceError: taken, or not an address of this machine. AccessError: not for this user.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((address, port))
    except socket.gaierror as error:
        raise DeviceError(f"{address} is not a known address: {error.strerror}") from error
    except PermissionError as error:
        raise AccessError(f"this user may not open port {port}; choose one from 1024 up") from error
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise DeviceError(f"port {port} is in use; see by whom: ss -ltnp 'sport = :{port}'") from error
        raise DeviceError(f"cannot listen on {address}: {error.strerror}; see: ip address") from error


def _resolve(host: str, port: int) -> str:
    """The numeric address of a host: GStreamer says nothing of one that it does not find, and sends nowhere."""
    try:
        return str(socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0][4][0])
    except OSError as error:
        raise DeviceError(f"{host} is not a known address: {error.strerror}") from error
