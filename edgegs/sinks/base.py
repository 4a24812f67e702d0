"""The interface of an output."""

from __future__ import annotations

import abc
from typing import Any, ClassVar, Optional, Tuple

from edgegs.errors import ConfigError
from edgegs.frame import Frame
from edgegs.sinks.uri import OutputUri


class Sink(abc.ABC):
    """One output. Made cheaply, opened and driven by one ``SinkRunner`` thread.

    Order of calls: ``open``, ``write`` any number of times, ``close``; then perhaps ``open`` again. All
    come from the runner's thread and may block; ``interrupt`` alone comes from another one. A subclass
    keeps no thread and no file between ``close`` and ``open``.

    Attributes:
        OPTIONS: names of the keyword arguments of ``from_uri``.
        live: whether people watch it now, so that it shows a placeholder while a scene loads. What is kept (files)
            never holds one.
        stall_s: a call that takes longer is taken for hanging, and interrupted; seconds.
        queue: frames that a runner may hold for this sink. 1: the newest replaces the one before it.
    """

    OPTIONS: ClassVar[Tuple[str, ...]] = ()
    live: ClassVar[bool] = False
    stall_s: ClassVar[float] = 10.0
    queue: int = 1

    def __init__(self, uri: str) -> None:
        self.uri = uri

    @classmethod
    @abc.abstractmethod
    def from_uri(cls, uri: OutputUri, **options: Any) -> Sink:
        """Make a sink. Checks everything that needs neither file, device nor network; raises ConfigError."""

    @abc.abstractmethod
    def open(self, width: int, height: int, fps: float) -> None:
        """Make the output ready for pictures of ``width`` x ``height`` at about ``fps`` a second.

        Raises:
            OutputError, DeviceError, AccessError: it cannot be opened now; the runner tries again.
            ConfigError: it never can; the runner gives up. Whatever was opened half is closed again.
        """

    @abc.abstractmethod
    def write(self, frame: Frame) -> Optional[bool]:
        """Deliver one frame, of the size given to ``open``. Returns when the frame has left edgegs' hands.

        Returns:
            False when the frame was left out, because the output's own rate is lower than that of the frames.

        Raises:
            OutputError, OSError: the output is gone; the runner closes it and opens it again.
        """

    def close(self) -> None:  # noqa: B027 (a sink may have nothing to close)
        """Finish what was written and let go of everything. Harmless when not open.

        Raises:
            OutputError, OSError: what was written could not be finished.
        """

    def interrupt(self) -> None:  # noqa: B027
        """Make a blocked ``open``, ``write`` or ``close`` return (kill the child, shut the socket), at once.

        Called from another thread after a call has taken too long. Must not block; may do nothing.
        """


def check_int(uri: str, name: str, value: Any, low: int, high: int) -> int:
    """``value`` if it is an integer in ``low..high``; else ConfigError naming output and option."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigError(f"output {uri}: {name} is {value!r}; expected a whole number from {low} to {high}")
    return value
