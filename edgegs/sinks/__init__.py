"""Outputs: where finished frames go.

A *sink* is one output: it opens, takes frames and closes, and may fail at any of them. A *runner* gives
each sink a thread of its own, so that neither the renderer nor another sink ever waits for a slow one, and
opens it again when it fails. The daemon talks to runners only::

    runner = SinkRunner(create_sink("mjpeg://127.0.0.1:8080", status=status), width, height, fps)
    runner.start()
    runner.offer(frame)          # from the render loop: O(1), never blocks
    runner.stop(timeout=5)

A new kind of output is one module with a ``Sink`` subclass, and one line in ``uri.SCHEMES``. A URI is taken
apart once, by ``uri.parse``.
"""

from __future__ import annotations

import importlib
import re
from typing import Any, Tuple, Type, Union

from edgegs.errors import ConfigError
from edgegs.sinks.base import Sink
from edgegs.sinks.runner import SinkRunner
from edgegs.sinks.uri import SCHEMES, OutputUri, UriError, parse

__all__ = ["SCHEMES", "OutputUri", "Sink", "SinkRunner", "create_sink", "sink_options"]


def create_sink(uri: Union[str, OutputUri], **options: Any) -> Sink:
    """Make the sink for ``uri``; it is not opened yet.

    Args:
        uri: such as ``null:``, ``file:///var/lib/edgegs/out.mkv`` or ``mjpeg://127.0.0.1:8080``; or one that was
            parsed before.
        options: what ``sink_options(uri)`` names; see the sink's class for each one's meaning.

    Raises:
        ConfigError: a wrong URI, an option the sink does not have, or a value it cannot use.
    """
    parsed = _parsed(uri)
    sink_class = _sink_class(parsed)
    unknown = sorted(set(options) - set(sink_class.OPTIONS))
    if unknown:
        raise ConfigError(
            "output {}: unknown option {}; {}: outputs have {}".format(
                parsed, ", ".join(unknown), parsed.scheme, ", ".join(sink_class.OPTIONS) or "no options"
            )
        )
    return sink_class.from_uri(parsed, **options)


def sink_options(uri: Union[str, OutputUri]) -> Tuple[str, ...]:
    """Names of the options that ``create_sink`` takes for this URI."""
    return _sink_class(_parsed(uri)).OPTIONS


def _parsed(uri: Union[str, OutputUri]) -> OutputUri:
    if isinstance(uri, OutputUri):
        return uri
    try:
        return parse(uri)
    except UriError as error:
        shown = re.sub("//.*@", "//***@", str(uri), flags=re.DOTALL)  # no password in a log
        if not shown or not shown.isprintable():
            shown = ascii(shown)
        raise ConfigError(f"output {shown}: {error.text}; {error.suggestion}") from None


def _sink_class(uri: OutputUri) -> Type[Sink]:
    module, _, name = SCHEMES[uri.scheme].sink.partition(":")
    return getattr(importlib.import_module(module), name)
