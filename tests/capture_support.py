"""What the tests of live pictures share."""

from __future__ import annotations

import threading

from edgegs.capture import CaptureUri
from edgegs.capture.base import Timing

WAIT = 20.0  # seconds until a test that would hang fails instead


def file_uri(path, kind):
    """The URI of a file of any name: "video" or "picture"."""
    return CaptureUri(f"file://{path}", kind, str(path))


class FakeTime:
    """Time that goes on only when somebody waits, or grabs a picture."""

    def __init__(self):
        self.time = 50.0
        self.closing = False
        self.timing = Timing(lambda: self.time, self.pause)

    def pause(self, seconds):
        self.time += seconds
        return not self.closing


def wait_for(condition):
    ended = threading.Event()
    for _ in range(int(WAIT / 0.005)):
        if condition():
            return
        ended.wait(0.005)
    raise AssertionError("did not happen")
