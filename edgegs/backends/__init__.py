"""Backends: who runs the kernels. ``create`` takes the one asked for, or the best there is, and says why."""

from __future__ import annotations

import logging
from typing import List, Tuple

from edgegs.backends.base import Backend, Buffer, Params
from edgegs.errors import AccessError, DeviceError, OutputError, UsageError

__all__ = ["BACKENDS", "Backend", "Buffer", "Params", "create", "severity"]

BACKENDS = ("auto", "cuda", "host", "reference")


def create(name: str = "auto", threads: int = 0, may_compile: bool = False) -> Tuple[Backend, str]:
    """Open a backend; returns it and one sentence that says which was taken and why.

    Args:
        name: ``auto`` (cuda, then host, then reference), or one of those.
        threads: operating-system threads of the host backend; 0 takes all that the process may use.
        may_compile: build the host kernels if they are missing or stale (never in the daemon).

    Raises:
        UsageError: no such backend, or a number of threads that no machine has.
        DeviceError: the backend asked for cannot be used here; the message says what to run.
        AccessError, OutputError: ``host`` was asked for and must be built, but the cache cannot be written.
    """
    if name not in BACKENDS:
        raise UsageError(f"no backend {name!r} (there are: {', '.join(BACKENDS)})")
    missing: List[str] = []
    if name in ("auto", "cuda"):
        from edgegs.backends.cuda import CudaBackend

        try:
            return _opened(CudaBackend(), name, missing)
        except DeviceError as error:
            if name == "cuda":
                raise
            missing.append(f"no cuda: {error}")
    if name in ("auto", "host"):
        from edgegs.backends.host import HostBackend

        try:
            if may_compile:
                _build_if_stale()
            return _opened(HostBackend(threads), name, missing)
        except (DeviceError, AccessError, OutputError) as error:
            if name == "host":
                raise
            missing.append(f"no host: {error}")
    from edgegs.backends.reference import ReferenceBackend

    return _opened(ReferenceBackend(), name, missing)


def severity(asked: str, backend: Backend) -> int:
    """The level at which the sentence of ``create`` is worth logging: a warning where ``auto`` came down to the
    reference, which is many times slower than what was meant."""
    return logging.WARNING if asked == "auto" and backend.name == "reference" else logging.INFO


def _opened(backend: Backend, asked: str, missing: List[str]) -> Tuple[Backend, str]:
    why = "; ".join(missing) or ("asked for" if asked == backend.name else "the best there is")
    return backend, f"backend {backend.name}, {backend.device} ({why})"


def _build_if_stale() -> None:
    """Compile the host kernels when there are none of this source; a failure is told by opening them."""
    from edgegs.backends.host import find_library
    from edgegs.kernels.build import build

    try:
        find_library()
    except DeviceError:
        (outcome,) = build(["host"])
        if outcome.image is None:
            raise DeviceError(outcome.reason) from None
