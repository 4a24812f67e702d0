"""A child process that writes raw pictures to a pipe, and the camera on a Jetson's ribbon connector behind one.

OpenCV's wheels have no GStreamer, and only NVIDIA's elements reach this camera: so ``gst-launch-1.0`` does.

*unconfirmed on hardware*: no such camera was at hand. On a board, these confirm the pipeline and the source::

    gst-launch-1.0 nvarguscamerasrc sensor-id=0 num-buffers=60 ! 'video/x-raw(memory:NVMM),width=1280,height=720' ! \\
        nvvidconv ! video/x-raw,format=BGRx,width=1280,height=720 ! fakesink
    python3 -c "
    import logging, time; from edgegs.capture import Capture, parse
    logging.basicConfig(level=logging.INFO)
    capture = Capture(parse('csi://0'), 1280, 720); capture.start()
    while True: time.sleep(1); print(capture.status(), capture.latest() is not None)"
"""

from __future__ import annotations

import os
import select
import shutil
import time
from pathlib import Path
from typing import Callable, Optional, Sequence, Tuple

import numpy as np

from edgegs.capture.base import Source, Timing
from edgegs.capture.fit import as_bgr
from edgegs.capture.uri import CaptureUri
from edgegs.children import TiedChild, widen
from edgegs.errors import DeviceError

#: In a pipeline, the number of the descriptor to write to. Not 1: NVIDIA's elements chat on stdout.
FD = "{fd}"
#: Where nvargus-daemon listens.
ARGUS_SOCKET = "/tmp/argus_socket"
#: The child may need so long to its first picture, and to each later one, seconds.
FIRST_S, NEXT_S = 15.0, 3.0
#: A child that is asked to end gets so long before it is killed, seconds. Argus keeps a camera that was not let go of.
_END_S = 1.5
_LOOK_S = 0.2


class ChildSource(Source):
    """Pictures of one size from a child's pipe; a child that ends or falls silent is an error.

    Args:
        command: the program and its arguments; ``FD`` in them is replaced by the descriptor's number.
        width, height: of the pictures that it writes, four bytes a pixel (BGRx), rows without padding.
        check: raises what hinders the start.
        first_s, next_s: longest waits for the first picture and for later ones, seconds.
    """

    def __init__(
        self,
        uri: CaptureUri,
        timing: Timing,
        command: Sequence[str],
        width: int,
        height: int,
        check: Callable[[], None] = lambda: None,
        first_s: float = FIRST_S,
        next_s: float = NEXT_S,
    ) -> None:
        super().__init__(uri, timing)
        self._command = list(command)
        self._shape = (height, width, 4)
        self._check = check
        self._first_s, self._next_s = first_s, next_s
        self._child: Optional[TiedChild] = None
        self._pipe = -1
        self._limit_s = first_s

    def open(self) -> None:
        self._check()
        program = shutil.which(self._command[0])
        if program is None:
            raise DeviceError(f"{self.shown}: {self._command[0]} is not installed; `apt install gstreamer1.0-tools`")
        self._pipe, writing = os.pipe()
        try:
            widen(self._pipe)
            command = [program, *(part.replace(FD, str(writing)) for part in self._command[1:])]
            self._child = TiedChild(command, os.path.basename(self._command[0]), pass_fds=(writing,))
        except OSError as error:
            raise DeviceError(f"{self.shown}: {program} cannot be started: {error.strerror}") from None
        finally:
            os.close(writing)
        os.set_blocking(self._pipe, False)
        self._limit_s = self._first_s

    def read(self) -> Optional[np.ndarray]:
        child = self._child
        if child is None:
            raise DeviceError(f"{self.shown}: not open")
        picture = np.empty(self._shape, np.uint8)
        left = memoryview(picture.data).cast("B")
        by = time.monotonic() + self._limit_s  # of real pipes: no test's clock moves them
        while left:
            if not self.timing.pause(0.0):
                return None
            if not self._wait(child, max(0.0, min(_LOOK_S, by - time.monotonic()))):
                if time.monotonic() >= by:
                    raise DeviceError(f"{self.shown}: no picture for {self._limit_s:g} s{child.words()}")
                continue
            try:
                n_read = os.readv(self._pipe, [left])
            except BlockingIOError:
                continue
            if n_read == 0:
                raise DeviceError(f"{self.shown}: {child.last_words('wrote half a picture and closed its pipe')}")
            left = left[n_read:]
        self._limit_s = self._next_s
        return as_bgr(picture)

    def _wait(self, child: TiedChild, seconds: float) -> bool:
        """Wait for bytes of a picture; keeps what the child says meanwhile."""
        poll = select.poll()
        poll.register(self._pipe, select.POLLIN)
        if child.log is not None:
            poll.register(child.log, select.POLLIN)
        ready = [descriptor for descriptor, _ in poll.poll(1000 * seconds)]
        if any(descriptor != self._pipe for descriptor in ready):
            child.read_log()
        return self._pipe in ready

    def close(self) -> None:
        child, self._child = self._child, None
        pipe, self._pipe = self._pipe, -1
        try:
            if child is not None:
                child.interrupt(_END_S)
                child.reap(_END_S / 2)
        finally:
            if pipe >= 0:
                os.close(pipe)


def csi_source(uri: CaptureUri, timing: Timing, width: int, height: int, fit: str, fps: float) -> ChildSource:
    """The camera ``csi://N``, scaled by the board's own scaler to what ``fit`` needs."""
    sensor, out = csi_sizes(width, height, fit)
    command = [
        *("gst-launch-1.0", "-q", "nvarguscamerasrc", f"sensor-id={uri.index}", "!"),
        "video/x-raw(memory:NVMM),width={},height={},framerate={}/1".format(*sensor, max(2, min(30, round(fps)))),
        # the newest picture only: a slow reader makes the queue drop
        *("!", "queue", "max-size-buffers=1", "leaky=downstream", "!", "nvvidconv", "!"),
        "video/x-raw,format=BGRx,width={},height={}".format(*out),
        *("!", "fdsink", f"fd={FD}", "sync=false"),
    ]

    def check() -> None:
        if not Path(ARGUS_SOCKET).exists():
            raise DeviceError(
                f"background {uri}: nvargus-daemon is not there (no {ARGUS_SOCKET}): `systemctl restart nvargus-daemon`"
                ", and no PrivateTmp in the unit; cameras on a ribbon connector need a Jetson"
            )

    return ChildSource(uri, timing, command, *out, check=check)


def csi_sizes(width: int, height: int, fit: str) -> Tuple[Tuple[int, int], Tuple[int, int]]:
    """The size to ask the sensor for, and the one to scale to before ``fit``: (width, height) each.

    Both 1280x720 and 1920x1080 are modes of the usual sensors (IMX219, IMX477). Never enlarges; even numbers.
    """
    sensor = (1280, 720) if width <= 1280 and height <= 720 else (1920, 1080)
    scales = (width / sensor[0], height / sensor[1])
    if fit == "stretch":
        across, down = scales
    else:
        across = down = max(scales) if fit == "cover" else min(scales)
    return sensor, (_even(sensor[0] * min(1.0, across)), _even(sensor[1] * min(1.0, down)))


def _even(pixels: float) -> int:
    """Up to the next even number: scalers want chroma in pairs."""
    return max(16, 2 * int(-(-pixels // 2)))
