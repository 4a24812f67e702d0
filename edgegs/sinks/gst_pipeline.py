"""Builds the pipelines of GStreamer children, as argument lists.

    fdsrc ─► rawvideoparse ─► capssetter ─► queue ─► encoder ─► h264parse ─► rtph264pay ─► udpsink        rtp
                                                                     ├─► rtspclientsink                   rtsp, sent
    appsrc ─► … the same …                                           ├─► rtph264pay name=pay0             rtsp, served
    fdsrc ─► … the same …                                            └─► mp4mux or matroskamux ─► fdsink  file

Nothing that a user wrote becomes part of a pipeline, except a host, port and stream name that ``uri.parse`` has
checked: ``gst-launch-1.0`` parses its arguments a second time. A file is opened by edgegs and handed over as a
descriptor, so its path needs no quoting and an existing file cannot be overwritten.

Frames arrive as I420, converted by OpenCV: at 1280x720 on two x86 cores 0.4 ms, where BGR through GStreamer's
``videoconvert`` costs the child 4 ms more, and half the bytes cross the pipe. x264enc and nvvidconv take it.
OpenCV's matrix is BT.601; GStreamer would take pictures above 576 lines for BT.709, so ``capssetter`` says what
they are, and x264 writes it into the stream.

**Unconfirmed on hardware**: the pipelines of nvv4l2h264enc and omxh264enc. Their properties are those of pipelines that
people published for Jetson boards; that each L4T release has all of them was not checked on a board. This checks the
first (and, with ``omxh264enc control-rate=2 bitrate=4000000 iframeinterval=30`` in the encoder's place, the second)::

    gst-launch-1.0 videotestsrc num-buffers=90 ! video/x-raw,format=I420,width=1280,height=720 ! nvvidconv ! \
        'video/x-raw(memory:NVMM),format=NV12' ! nvv4l2h264enc bitrate=4000000 insert-sps-pps=true \
        idrinterval=30 iframeinterval=30 maxperf-enable=true ! h264parse ! fakesink
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import List

from edgegs.errors import ConfigError
from edgegs.sinks.encoders import NVV4L2, OMX, X264

#: Bits a pixel and frame of the default bit rate, and the least, kbit/s: 2.8 Mbit/s at 1280x720 and 30 a second.
BITS_PER_PIXEL = 0.1
LEAST_KBPS = 500
#: Milliseconds of an .mp4 that are lost at most when the power fails, beside what the encoder holds.
FRAGMENT_MS = 1000
#: A value inside a pipeline: no space, quote, "!" or anything else that gst-launch would interpret.
_PLAIN = re.compile(r"[A-Za-z0-9._:/\[\]-]+")


@dataclass(frozen=True)
class Video:
    """What goes through a pipeline.

    Attributes:
        width, height: pixels, both even: colours are kept for blocks of 2x2 (4:2:0).
        fps: nominal frames a second.
        encoder: one of ``encoders.ENCODERS``.
        bitrate_kbps: 1000 bits a second.
        keyframe_interval_s: counted in frames of the nominal rate.
    """

    width: int
    height: int
    fps: float
    encoder: str
    bitrate_kbps: int
    keyframe_interval_s: float

    @property
    def frame_bytes(self) -> int:
        """Bytes of one I420 frame: Y of (height, width), then U and V of (height/2, width/2), without padding."""
        return self.width * self.height * 3 // 2

    @property
    def rate(self) -> Fraction:
        """``fps`` as GStreamer takes it: 29.97 is 30000/1001."""
        ntsc = round(self.fps * 1001 / 1000) * Fraction(1000, 1001)
        if ntsc > 0 and abs(float(ntsc) - self.fps) < 0.005 and abs(round(self.fps) - self.fps) > 1e-6:
            return ntsc
        return max(Fraction(self.fps).limit_denominator(1000), Fraction(1, 1000))

    @property
    def keyframe_frames(self) -> int:
        return max(1, round(self.fps * self.keyframe_interval_s))


def default_bitrate_kbps(width: int, height: int, fps: float) -> int:
    """``BITS_PER_PIXEL`` of each frame, and at least ``LEAST_KBPS``."""
    return max(LEAST_KBPS, round(BITS_PER_PIXEL * width * height * fps / 1000))


def rtp(video: Video, address: str, port: int) -> List[str]:
    """Sends RTP to an address (a numeric one; a multicast group is joined by its receivers, one router hop)."""
    return [
        *_from_stdin(stamped=True),
        *_encoded(video, live=True),
        "!",
        *_payloader(),
        "!",
        "udpsink",
        "host=" + _plain(address),
        f"port={int(port)}",
        "auto-multicast=true",
        "ttl-mc=1",
        # What is live is sent when it is ready; and no waiting for a first frame before the clock runs.
        "sync=false",
        "async=false",
    ]


def rtsp_client(video: Video, host: str, port: int, name: str) -> List[str]:
    """Publishes to an RTSP server. Over TCP: passes firewalls, and no key frame is lost on the way to the server."""
    shown = f"[{host}]" if ":" in host else host
    return [
        # No stamps at arrival: the clock starts after the first frame here, and a first frame without a stamp makes
        # x264enc shift those of all later ones by 1000 hours, for which this sink, unlike udpsink, would wait.
        *_from_stdin(stamped=False),
        *_encoded(video, live=True),
        "!",
        "rtspclientsink",
        "location=" + _plain(f"rtsp://{shown}:{int(port)}/{name}"),
        "protocols=tcp",
    ]


def rtsp_media(video: Video) -> List[str]:
    """What ``rtsp_server.py`` builds while somebody watches; frames enter at ``frames``, RTP leaves at ``pay0``."""
    return [
        "appsrc",
        "name=frames",
        "is-live=true",
        "do-timestamp=true",
        "max-bytes=0",  # the server counts what waits itself, and drops frames instead of waiting
        *_encoded(video, live=True),
        "!",
        *_payloader(),
        "name=pay0",
    ]


def file(video: Video, suffix: str, descriptor: int) -> List[str]:
    """Writes a video into an open file. Both formats stay readable up to the cut when the power fails."""
    muxer = ["mp4mux", f"fragment-duration={FRAGMENT_MS}"] if suffix == ".mp4" else ["matroskamux"]
    return [
        *_from_stdin(stamped=False),
        *_encoded(video, live=False),
        "!",
        *muxer,
        "!",
        "fdsink",
        f"fd={int(descriptor)}",
        "sync=false",
    ]


def elements(arguments: List[str]) -> List[str]:
    """The names of a pipeline's elements, in order; caps are none."""
    starts = [arguments[0]] + [word for before, word in zip(arguments, arguments[1:]) if before == "!"]
    return [word for word in starts if "/" not in word]


def _from_stdin(stamped: bool) -> List[str]:
    # A stamp at arrival makes RTP follow the wall clock. Without one, rawvideoparse counts frames; then late frames
    # must have been written several times before (``h264.Slots``).
    return ["fdsrc", "fd=0", "blocksize=1048576", f"do-timestamp={_yes(stamped)}"]


def _encoded(video: Video, live: bool) -> List[str]:
    width, height, rate = video.width, video.height, video.rate
    return [
        "!",
        "rawvideoparse",
        "format=i420",
        f"width={width}",
        f"height={height}",
        f"framerate={rate.numerator}/{rate.denominator}",
        f"plane-strides=<{width},{width // 2},{width // 2}>",  # its own guess rounds rows up to 4 bytes
        f"plane-offsets=<0,{width * height},{width * height * 5 // 4}>",
        "!",
        "capssetter",
        "caps=video/x-raw,colorimetry=bt601",
        "!",
        # Not leaky: a slow encoder holds the writer up, and SinkRunner drops and counts whole frames before they are
        # converted. After the encoder, a queue that leaks would break the picture until the next key frame.
        "queue",
        "max-size-buffers=2",
        "max-size-bytes=0",
        "max-size-time=0",
        "!",
        *_encoder(video, live),
        "!",
        "h264parse",
        "config-interval=-1",  # parameter sets with every key frame: whoever comes late can start there
    ]


def _encoder(video: Video, live: bool) -> List[str]:
    bits, frames = video.bitrate_kbps * 1000, video.keyframe_frames
    to_chip = ["nvvidconv", "!", "video/x-raw(memory:NVMM),format=NV12", "!"]
    if video.encoder == NVV4L2:
        return [
            *to_chip,
            NVV4L2,
            f"bitrate={bits}",
            f"iframeinterval={frames}",
            f"idrinterval={frames}",
            "insert-sps-pps=true",
            "maxperf-enable=true",
        ]
    if video.encoder == OMX:
        return [*to_chip, OMX, "control-rate=2", f"bitrate={bits}", f"iframeinterval={frames}"]
    if video.encoder != X264:
        raise ConfigError(f"encoder is {video.encoder!r}; expected one of {NVV4L2}, {OMX}, {X264}")
    common = [X264, f"bitrate={video.bitrate_kbps}", f"key-int-max={frames}", "bframes=0"]
    if live:
        return [*common, "tune=zerolatency", "speed-preset=ultrafast"]
    # Looking a few frames ahead improves the picture; each one is also lost when the power fails.
    return [*common, "speed-preset=superfast", "rc-lookahead=10"]


def _payloader() -> List[str]:
    return ["rtph264pay", "pt=96", "mtu=1400"]


def _plain(value: str) -> str:
    if not _PLAIN.fullmatch(value):
        raise ConfigError(f"{value!r} cannot be part of a pipeline; use letters, digits and . _ - only")
    return value


def _yes(value: bool) -> str:
    return "true" if value else "false"
