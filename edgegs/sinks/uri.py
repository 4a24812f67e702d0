"""Output URIs: ``scheme:``, ``scheme:///path`` and ``scheme://host:port``."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Iterable, Optional

from edgegs.errors import ConfigError

_FORM = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(//)?(.*)")


@dataclass(frozen=True)
class OutputUri:
    """An output URI in its parts.

    Attributes:
        text: as it was written.
        scheme: in lower case.
        rest: what follows ``scheme:`` or ``scheme://``, verbatim. Never percent-decoded: in
            ``file:///data/frame_%06d.png`` the percent sign belongs to the pattern.
    """

    text: str
    scheme: str
    rest: str

    def host_port(self) -> HostPort:
        """Read ``rest`` as ``HOST:PORT``, ``[IPV6]:PORT`` with an optional final slash.

        Raises:
            ConfigError: no host, no port, or something else beside them.
        """
        text = self.rest[:-1] if self.rest.endswith("/") else self.rest
        match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+)):([0-9]{1,5})", text)
        port = int(match.group(3)) if match else -1
        if match is None or not 0 <= port <= 65535:
            raise ConfigError(
                f"output {self.text}: expected {self.scheme}://HOST:PORT with a port up to 65535, "
                f"such as {self.scheme}://127.0.0.1:8080"
            )
        return HostPort(match.group(1) or match.group(2), port)


@dataclass(frozen=True)
class HostPort:
    host: str
    port: int


def parse(uri: str, schemes: Iterable[str]) -> OutputUri:
    """Split ``uri``; ConfigError when it has no form of a URI or a scheme not in ``schemes``."""
    known = sorted(schemes)
    supported = "supported: " + ", ".join(name + ":" for name in known)
    if not isinstance(uri, str) or not uri:
        raise ConfigError(f"output {uri!r}: expected a URI; {supported}")
    if any(ord(char) < 32 or ord(char) == 127 for char in uri):
        raise ConfigError(f"output {uri!r}: control characters are not allowed")
    match = _FORM.fullmatch(uri)
    if match is None:
        raise ConfigError(f"output {uri}: not a URI; write file://{uri} for a file ({supported})")
    scheme = match.group(1).lower()
    if scheme not in known:
        raise ConfigError(
            f"output {uri}: scheme {scheme}: is not supported by this version"
            f"{_did_you_mean(scheme, known)}; {supported}"
        )
    return OutputUri(text=uri, scheme=scheme, rest=match.group(3))


def _did_you_mean(word: str, known: Iterable[str]) -> str:
    close: Optional[str] = next(iter(difflib.get_close_matches(word, list(known), n=1)), None)
    return "" if close is None else f" (did you mean {close}:?)"
