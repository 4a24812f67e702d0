"""Real clients of the outputs that people connect to: they read as fast as it comes, count, and decode nothing."""

from __future__ import annotations

import http.client
import shutil
import subprocess
import threading
import time
from typing import Optional

from edgegs.errors import OutputError
from edgegs.sinks import OutputUri, Sink

#: A client that gets nothing for so long gives up, seconds.
READ_S = 10.0


def has_clients(uri: OutputUri) -> bool:
    """Whether the output has work only while somebody is connected to it."""
    return uri.kind in ("mjpeg", "rtsp-server")


def client_of(uri: OutputUri, sink: Sink) -> Client:
    """A client for an opened output; not started yet."""
    if uri.kind == "mjpeg":
        return HttpClient(uri.host, getattr(sink, "port", uri.port))
    host = uri.host or "127.0.0.1"
    return RtspClient("rtsp://{}:{}/{}".format(f"[{host}]" if ":" in host else host, uri.port, uri.name))


class Client(threading.Thread):
    """Reads from the output's opening to its end.

    Attributes:
        taken: released when a picture has been read. n_read: how many were. last_end: when, perf_counter seconds.
        error: why it ended early, or None.
    """

    def __init__(self) -> None:
        super().__init__(name="edgegs-bench client", daemon=True)
        self.taken = threading.Semaphore(0)
        self.n_read = 0
        self.last_end = 0.0
        self.error: Optional[str] = None

    def wait_first(self) -> None:
        """Wait for the first picture. Raises OutputError."""
        end = time.monotonic() + READ_S
        while not self.taken.acquire(timeout=0.05):
            if self.error is not None or not self.is_alive():
                raise OutputError(self.error or "the client was sent away")
            if time.monotonic() > end:
                raise OutputError(f"the client got no picture within {READ_S:g} s")

    def stop(self) -> None:
        """Wait for the client's end; the output is closed by now."""
        self.join(READ_S)

    def _read_one(self) -> None:
        self.last_end = time.perf_counter()
        self.n_read += 1
        self.taken.release()


class HttpClient(Client):
    """Reads ``/stream.mjpg``."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__()
        self._connection = http.client.HTTPConnection(host, port, timeout=READ_S)

    def run(self) -> None:
        try:
            self._connection.request("GET", "/stream.mjpg")
            answer = self._connection.getresponse()
            if answer.status != 200:
                self.error = f"the client was answered {answer.status} {answer.reason}"
                return
            with answer:
                while True:
                    length = _part_length(answer)
                    if length is None or len(answer.read(length)) < length:
                        return
                    self._read_one()
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.error = f"the client got no further: {error}"
        finally:
            self._connection.close()


def _part_length(answer: http.client.HTTPResponse) -> Optional[int]:
    """Reads the head of a part of a multipart stream; None at the stream's end."""
    length = None
    while True:
        line = answer.readline()
        if not line:
            return None
        if line.lower().startswith(b"content-length:"):
            length = int(line.split(b":", 1)[1])
        elif line == b"\r\n" and length is not None:
            return length


class RtspClient(Client):
    """``gst-launch-1.0``, which puts the pictures of the stream together again and prints a line for each."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url
        self._process: Optional[subprocess.Popen[bytes]] = None
        self._stopping = False

    def start(self) -> None:
        program = shutil.which("gst-launch-1.0")
        if program is None:
            raise OutputError("no client: gst-launch-1.0 is missing; sudo apt install gstreamer1.0-tools")
        source = ["rtspsrc", f"location={self._url}", "protocols=tcp", "latency=0", "!", "rtph264depay"]
        sink = ["video/x-h264,alignment=au", "!", "fakesink", "silent=false", "sync=false"]
        try:
            self._process = subprocess.Popen(
                [program, "-v", *source, "!", *sink],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            raise OutputError(f"no client: {program} cannot be started: {error.strerror}") from None
        super().start()

    def run(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                if b"last-message = chain" in line:
                    self._read_one()
        if not self._stopping:
            self.error = "the client got no further"

    def stop(self) -> None:
        self._stopping = True
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            super().stop()
