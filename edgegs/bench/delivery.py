"""How fast each output delivers, without a renderer: pictures made beforehand, offered as the daemon offers its frames.

One output at a time, in two phases, each with the output opened anew:

flat_out  the next frame is offered when the last was taken, so that one always waits: what the output can do
paced     frames are offered at a given rate: what the loop's thread spends in ``offer``, and what is dropped

An output that people connect to (``mjpeg:``, and ``rtsp:`` that serves) encodes nothing while nobody does: it is
measured without a client and with a real one. With a client a frame is "taken" and delivered when its last byte has
been read; the next one is offered only then.

A row of the result: ``output``, ``width``, ``height``, ``clients`` (None where there are none), ``reason`` (why it was
not measured, or what failed; None), and the phases, None where not measured:

flat_out  seconds, frames; fps; frame_ms p50, p95: of one write, with a client from the offer to the last byte;
          cpu_ms a frame
paced     seconds, frames offered; fps offered; delivered, delivered_fps; dropped; offer_us p50, p95, max; frame_ms of
          the writes; cpu_ms a frame delivered

``cpu_ms`` is the processor time of this process and of every child, loop and client included; what an X server or a
driver does elsewhere is not in it.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np

from edgegs.bench.cpu import cpu_s
from edgegs.bench.delivery_clients import Client, client_of, has_clients
from edgegs.bench.delivery_pictures import pictures
from edgegs.bench.delivery_table import Row, name_of
from edgegs.errors import EdgegsError, OutputError
from edgegs.frame import Frame
from edgegs.outputs import PacedOutput
from edgegs.sinks import OutputUri, Sink, SinkRunner, create_sink
from edgegs.sinks.pictures import encode

N_PICTURES = 8
#: Enough for percentiles; some outputs take a hundred thousand a second.
MAX_FRAMES = 5_000
#: An output that has taken no frame after so long is not measured, seconds.
OPEN_S = 20.0
STOP_S = 5.0

Records = List[Dict[str, Any]]


class TimedSink(Sink):
    """Passes everything on to another sink, and keeps the time of every write.

    Attributes:
        inner: the other one. taken: released when a write begins. write_ms: of each write that went well.
    """

    def __init__(self, inner: Sink) -> None:
        super().__init__(inner.uri)
        self.inner = inner
        self.queue, self.stall_s = inner.queue, inner.stall_s  # type: ignore[misc]
        self.taken = threading.Semaphore(0)
        self.write_ms: List[float] = []
        self.last_end = 0.0

    @classmethod
    def from_uri(cls, uri: OutputUri, **options: Any) -> Sink:
        return cls(create_sink(uri, **options))

    def open(self, width: int, height: int, fps: float) -> None:
        self.inner.open(width, height, fps)

    def write(self, frame: Frame) -> Optional[bool]:
        self.taken.release()
        start = time.perf_counter()
        taken = self.inner.write(frame)
        end = time.perf_counter()
        self.last_end = end
        self.write_ms.append((end - start) * 1e3)
        return taken

    def close(self) -> None:
        self.inner.close()

    def interrupt(self) -> None:
        self.inner.interrupt()


class _Opened:
    """An output that has taken its first frame, and the client that has read it, where one is wanted."""

    def __init__(self, uri: OutputUri, width: int, height: int, fps: float, clients: Optional[int]) -> None:
        self.sink = TimedSink(create_sink(uri))
        self.runner = SinkRunner(self.sink, width, height, fps)
        self.output = PacedOutput(self.runner, uri.text, None)
        self.uri = uri
        self.reader: Optional[Client] = None
        self._wants_reader = bool(clients)

    def start(self, picture: np.ndarray) -> None:
        self.runner.start()
        self.output.offer(Frame(picture, 0, time.monotonic_ns(), 0.0), time.monotonic())
        end = time.monotonic() + OPEN_S
        while not self.runner.wait_delivered(0.05):
            self.check()
            if time.monotonic() > end:
                raise OutputError(f"took no frame within {OPEN_S:g} s")
        if self._wants_reader:
            self.reader = client_of(self.uri, self.sink.inner)
            self.reader.start()
            self.reader.wait_first()
            while self.reader.taken.acquire(blocking=False):
                pass
        while self.sink.taken.acquire(blocking=False):
            pass
        self.sink.write_ms.clear()

    def check(self) -> None:
        """Raise what the output or its client failed of."""
        text = self.runner.status()["last_error"] or (self.reader.error if self.reader else None)
        if text:
            raise OutputError(text)

    def wait_taken(self, end: float) -> bool:
        """Wait until the frame offered last was taken, or ``end`` (seconds, monotonic) has come."""
        taken = (self.reader or self.sink).taken
        while not taken.acquire(timeout=0.05):
            self.check()
            if time.monotonic() >= end:
                return False
        return True

    def n_delivered(self) -> int:
        return self.reader.n_read if self.reader else len(self.sink.write_ms)

    def stop(self) -> Optional[str]:
        """Close everything; what the output failed of while it closed, or None."""
        hung = not self.runner.stop(STOP_S)
        if self.reader is not None:
            self.reader.stop()
        if hung:
            return f"did not close within {STOP_S:g} s"
        status = self.runner.status()
        return status["last_error"] or ("failed, and was opened again" if status["reconnects"] else None)


def document_of(
    uris: Sequence[OutputUri],
    sizes: Sequence[Tuple[int, int]],
    fps: float,
    duration_s: float,
    say: Callable[[str], None],
) -> Tuple[Dict[str, Any], Records]:
    """What a ledger keeps: the rows of every size with where they come from, and the records."""
    from edgegs.backends.host import processor
    from edgegs.bench.ledger import origin

    n_cores = len(os.sched_getaffinity(0))
    document: Dict[str, Any] = {
        **origin(),
        "kind": "delivery",
        "device": "{}, {} core{}".format(processor(), n_cores, "" if n_cores == 1 else "s"),
        "fps": fps,
        "duration_s": duration_s,
        "pictures": N_PICTURES,
        "jpeg_kb": {},
        "rows": [],
    }
    records: Records = []
    for size in sizes:
        n_bytes = [len(encode(image, ".jpg", 80)) for image in pictures(*size, N_PICTURES)]
        document["jpeg_kb"]["{}x{}".format(*size)] = round(sum(n_bytes) / len(n_bytes) / 1000, 2)
        rows, raw = measure(uris, size, fps, duration_s, say)
        document["rows"] += rows
        records += [{"width": size[0], "height": size[1], **one} for one in raw]
    return document, records


def measure(
    uris: Sequence[OutputUri],
    size: Tuple[int, int],
    fps: float,
    duration_s: float,
    say: Callable[[str], None],
) -> Tuple[List[Row], Records]:
    """A row an output (two where there are clients), and a record of every single write and offer.

    Args:
        size: width and height of the pictures.
        fps: of the paced phase, and what outputs are told.
        duration_s: of each phase; flat out at most ``MAX_FRAMES``.
        say: gets a line of progress before each row.
    """
    images = pictures(*size, N_PICTURES)
    rows: List[Row] = []
    records: Records = []
    for uri in uris:
        for clients in (0, 1) if has_clients(uri) else (None,):
            row: Row = {"output": uri.text, "width": size[0], "height": size[1], "clients": clients, "reason": None}
            say(name_of(row))
            for phase, run in (("flat_out", _flat_out), ("paced", _paced)):
                row[phase] = None
                if row["reason"] is None:
                    _measure_phase(row, phase, run, uri, images, fps, duration_s, records)
            rows.append(row)
    return rows, records


def _measure_phase(
    row: Row,
    phase: str,
    run: Callable[..., Tuple[Dict[str, Any], Records]],
    uri: OutputUri,
    images: List[np.ndarray],
    fps: float,
    duration_s: float,
    records: Records,
) -> None:
    height, width = images[0].shape[:2]
    try:
        opened = _Opened(uri, width, height, fps, row["clients"])
    except (EdgegsError, ImportError) as error:
        row["reason"] = str(error)
        return
    try:
        opened.start(images[0])
        row[phase], raw = run(opened, images, fps, duration_s)
        records += [{"output": row["output"], "clients": row["clients"], "phase": phase, **one} for one in raw]
        opened.check()
    except EdgegsError as error:
        row["reason"] = str(error)
    finally:
        failure = opened.stop()
        row["reason"] = row["reason"] or failure


def _flat_out(
    opened: _Opened, images: List[np.ndarray], fps: float, duration_s: float
) -> Tuple[Dict[str, Any], Records]:
    """As fast as the output takes them."""
    taken_ms: List[float] = []
    cpu_before, start, start_ns = cpu_s(), time.perf_counter(), time.monotonic_ns()
    n_before, end = opened.n_delivered(), time.monotonic() + duration_s
    for n in range(1, MAX_FRAMES + 1):
        # Stamped as if they came at the nominal rate: a video leaves out what is beyond it.
        frame = Frame(images[n % len(images)], n, start_ns + int(n / fps * 1e9), 0.0)
        offered = time.perf_counter()
        opened.output.offer(frame, time.monotonic())
        if not opened.wait_taken(end):
            break
        if opened.reader is not None:
            taken_ms.append((opened.reader.last_end - offered) * 1e3)
        if time.monotonic() >= end:
            break
    last = (opened.reader or opened.sink).last_end
    delivered, cpu = opened.n_delivered() - n_before, cpu_s() - cpu_before
    times = taken_ms if opened.reader else list(opened.sink.write_ms)
    if not times or delivered < 1:
        raise OutputError(f"took no frame in {duration_s:g} s")
    seconds = max(last - start, 1e-9)
    figures = {
        "seconds": round(seconds, 4),
        "frames": delivered,
        "fps": round(delivered / seconds, 3),
        "frame_ms": _percentiles(times, 5),
        "cpu_ms": round(cpu / delivered * 1e3, 4),
    }
    return figures, [{"frame_ms": round(ms, 5)} for ms in times]


def _paced(opened: _Opened, images: List[np.ndarray], fps: float, duration_s: float) -> Tuple[Dict[str, Any], Records]:
    """At a fixed rate, kept as the daemon keeps it."""
    offer_us: List[float] = []
    n_before, dropped_before = opened.n_delivered(), opened.runner.status()["frames_dropped"]
    cpu_before = cpu_s()
    started = next_tick = time.monotonic()
    while True:
        now = time.monotonic()
        if now - started >= duration_s:
            break
        n = len(offer_us) + 1
        frame = Frame(images[n % len(images)], n, time.monotonic_ns(), 0.0)
        before = time.perf_counter()
        opened.output.offer(frame, now)
        offer_us.append((time.perf_counter() - before) * 1e6)
        next_tick = max(next_tick + 1.0 / fps, time.monotonic())
        time.sleep(max(0.0, next_tick - time.monotonic()))
    seconds = time.monotonic() - started
    delivered, cpu = opened.n_delivered() - n_before, cpu_s() - cpu_before
    times = list(opened.sink.write_ms)
    figures = {
        "seconds": round(seconds, 4),
        "frames": len(offer_us),
        "fps": round(len(offer_us) / seconds, 3),
        "delivered": delivered,
        "delivered_fps": round(delivered / seconds, 3),
        "dropped": opened.runner.status()["frames_dropped"] - dropped_before,
        "offer_us": {**_percentiles(offer_us, 2), "max": round(max(offer_us), 2)},
        "frame_ms": _percentiles(times, 5) if times else None,
        "cpu_ms": round(cpu / delivered * 1e3, 4) if delivered else None,
    }
    return figures, [{"offer_us": round(us, 2)} for us in offer_us]


def _percentiles(values: Sequence[float], digits: int) -> Dict[str, float]:
    p50, p95 = np.percentile(values, (50, 95))
    return {"p50": round(float(p50), digits), "p95": round(float(p95), digits)}
