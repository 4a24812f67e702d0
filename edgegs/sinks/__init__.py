"""Outputs: where finished frames go.

A *sink* is one output: it opens, takes frames and closes, and may fail at any of them. A *runner* gives
each sink a thread of its own, so that neither the renderer nor another sink ever waits for a slow one, and
opens it again when it fails. The daemon talks to runners only::

    runner = SinkRunner(create_sink("mjpeg://127.0.0.1:8080", status=status), width, height, fps)
    runner.start()
    runner.offer(frame)          # from the render loop: O(1), never blocks
    runner.stop(timeout=5)

A new kind of output is one module with a ``Sink`` subclass, and one line in ``SCHEMES``.
"""

from __future__ import annotations

import importlib
from typing import Any, Dict, Tuple, Type

from edgegs.errors import ConfigError
from edgegs.sinks.base import Sink
from edgegs.sinks.runner import SinkRunner
from edgegs.sinks.uri import OutputUri, parse

__all__ = ["SCHEMES", "OutputUri", "Sink", "SinkRunner", "create_sink", "parse_uri", "sink_options"]

#: Scheme of an output URI -> "module:class". Imported when first used: ``null:`` needs no OpenCV.
SCHEMES: Dict[str, str] = {
    "null": "edgegs.sinks.null:NullSink",
    "file": "edgegs.sinks.file:FileSink",
    "mjpeg": "edgegs.sinks.web:MjpegSink",
}


def parse_uri(uri: str) -> OutputUri:
    """Split an output URI and check its form, touching neither file nor network.

    Raises:
        ConfigError: not a URI, or of a scheme that is not in ``SCHEMES`` (the message lists them).
    """
    return parse(uri, SCHEMES)


def create_sink(uri: str, **options: Any) -> Sink:
    """Make the sink for ``uri``; it is not opened yet.

    Args:
        uri: such as ``null:``, ``file:///var/lib/edgegs/out.mkv`` or ``mjpeg://127.0.0.1:8080``.
        options: what ``sink_options(uri)`` names; see the sink's class for each one's meaning.

    Raises:
        ConfigError: a wrong URI, an option the sink does not have, or a value it cannot use.
    """
    parsed = parse_uri(uri)
    sink_class = _sink_class(parsed.scheme)
    unknown = sorted(set(options) - set(sink_class.OPTIONS))
    if unknown:
        raise ConfigError(
            "output {}: unknown option {}; {}: outputs have {}".format(
                uri, ", ".join(unknown), parsed.scheme, ", ".join(sink_class.OPTIONS) or "no options"
            )
        )
    return sink_class.from_uri(parsed, **options)


def sink_options(uri: str) -> Tuple[str, ...]:
    """Names of the options that ``create_sink`` takes for this URI."""
    return _sink_class(parse_uri(uri).scheme).OPTIONS


def _sink_class(scheme: str) -> Type[Sink]:
    module, _, name = SCHEMES[scheme].partition(":")
    return getattr(importlib.import_module(module), name)
