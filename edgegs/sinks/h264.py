"""H.264 through a GStreamer child: what streams and files have in common, and the writer of files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, List, Optional, Sequence

import cv2
import numpy as np

from edgegs.errors import ConfigError
from edgegs.sinks import encoders, gst_pipeline
from edgegs.sinks.base import check_int
from edgegs.sinks.gst_child import Child
from edgegs.sinks.gst_pipeline import Video

#: Seconds until a child must be ready: GStreamer's first start on a board reads all its plug-ins.
START_S = 30.0
#: Seconds that a whole call may last: an opening, with the look-up of encoders before it, is the longest.
CALL_S = encoders.INSPECT_S + START_S + 5.0
#: A disk may be slow: seconds without progress after which the child of a file counts as stalled.
FILE_STALL_S = 8.0
#: Seconds to encode and write what is left at the end of a file.
FILE_FINISH_S = 20.0


@dataclass(frozen=True)
class Settings:
    """The options that every H.264 output has; checked when made.

    Attributes:
        uri: the output, for messages.
        encoder: "auto", one of ``encoders.ENCODERS``, or of ``others``.
        bitrate_kbps: 50..200000; None for ``gst_pipeline.default_bitrate_kbps``.
        keyframe_interval_s: 0.1..60 seconds.

    Raises:
        ConfigError: a value is none of these.
    """

    uri: str
    encoder: str = "auto"
    bitrate_kbps: Optional[int] = None
    keyframe_interval_s: float = 1.0
    others: Sequence[str] = ()

    def __post_init__(self) -> None:
        encoders.check_encoder(self.uri, self.encoder, self.others)
        if self.bitrate_kbps is not None:
            check_int(self.uri, "bitrate_kbps", self.bitrate_kbps, 50, 200_000)
        value: Any = self.keyframe_interval_s
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.1 <= value <= 60:
            raise ConfigError(f"output {self.uri}: keyframe_interval_s is {value!r}; expected seconds from 0.1 to 60")

    def video(self, width: int, height: int, fps: float, encoder: str) -> Video:
        """What is encoded of pictures of this size; the last row or column of an odd size is not."""
        width, height = width // 2 * 2, height // 2 * 2
        bitrate = self.bitrate_kbps or gst_pipeline.default_bitrate_kbps(width, height, fps)
        return Video(width, height, fps, encoder, bitrate, float(self.keyframe_interval_s))


#: A longer silence (another scene being loaded) is cut, seconds.
LONGEST_GAP_S = 2.0


class Slots:
    """How often each frame must be written so that a video of a fixed rate keeps step with the clock."""

    def __init__(self, fps: float) -> None:
        self._fps = fps
        self._given = 0
        self._began_ns = 0  # time of the first frame, moved on by long gaps

    def copies(self, t_ns: int) -> int:
        """Slots of the frame of time ``t_ns`` (monotonic).

        A frame that comes up to one slot early still gets a slot of its own: jitter loses nothing. A late one fills the
        time before it. After a gap of more than ``LONGEST_GAP_S`` the video goes on as if there had been none.
        """
        if self._given == 0:
            self._began_ns = t_ns
        due = round((t_ns - self._began_ns) * 1e-9 * self._fps) + 1
        if due - self._given > LONGEST_GAP_S * self._fps:
            self._began_ns = t_ns - int(self._given / self._fps * 1e9)
            due = self._given + 1
        copies = max(due - self._given, 1 if self._given <= due else 0)
        self._given += copies
        return copies


def launch(pipeline: List[str], stall_s: float, pass_fds: Sequence[int] = ()) -> Child:
    """Start ``gst-launch-1.0`` for a pipeline.

    Raises:
        DeviceError: it, or an element, is not installed. OutputError: it cannot be started.
    """
    program = encoders.program("gst-launch-1.0")
    encoders.need(gst_pipeline.elements(pipeline))
    return Child([program, *pipeline], "GStreamer", stall_s, pass_fds)


def to_i420(image: np.ndarray, yuv: np.ndarray) -> memoryview:
    """Convert (height, width, 3) uint8 BGR into ``yuv``, (height * 3/2, width) uint8, whose bytes are returned.

    An odd last row or column of the image is left out.
    """
    height, width = yuv.shape[0] * 2 // 3, yuv.shape[1]
    return cv2.cvtColor(image[:height, :width], cv2.COLOR_BGR2YUV_I420, dst=yuv).data.cast("B")


def empty_i420(video: Video) -> np.ndarray:
    """A buffer for ``to_i420``."""
    return np.empty((video.height * 3 // 2, video.width), np.uint8)


class FileWriter:
    """Writes one video file, with the methods of ``cv2.VideoWriter`` that ``VideoSink`` uses.

    Args:
        descriptor: an empty regular file, open for reading and writing; stays the caller's.
        suffix: ".mp4" or ".mkv".

    Raises:
        DeviceError, OutputError: as ``launch``.
    """

    def __init__(self, video: Video, suffix: str, descriptor: int) -> None:
        self._yuv = empty_i420(video)
        self._child = launch(gst_pipeline.file(video, suffix, descriptor), FILE_STALL_S, (descriptor,))

    def wait_ready(self) -> None:
        """Wait until the encoder can take frames; OutputError when it cannot."""
        self._child.wait_said("PREROLL", START_S)

    @property
    def pid(self) -> int:
        return self._child.pid

    def write(self, image: np.ndarray) -> None:
        """Hand one frame, (height, width, 3) uint8 BGR, to the encoder; OutputError when it has ended or stalled."""
        self._child.feed(to_i420(image, self._yuv))

    def release(self) -> None:
        """Finish the file; OutputError when that fails."""
        self._child.finish(FILE_FINISH_S)

    def abandon(self) -> None:
        """End the child without finishing the file."""
        self._child.reap()

    def kill(self) -> None:
        """Make every other call return at once. From any thread."""
        self._child.kill()
