"""``null:``: takes every frame and keeps none; for benchmarks, and for a renderer without an audience."""

from __future__ import annotations

from typing import Any

from edgegs.frame import Frame
from edgegs.sinks.base import Sink
from edgegs.sinks.uri import OutputUri


class NullSink(Sink):
    """Delivers frames nowhere, successfully."""

    @classmethod
    def from_uri(cls, uri: OutputUri, **options: Any) -> NullSink:
        return cls(uri.text)

    def open(self, width: int, height: int, fps: float) -> None:
        pass

    def write(self, frame: Frame) -> None:
        pass
