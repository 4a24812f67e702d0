"""Backends: who runs the kernels. ``create`` takes the one asked for, or the best there is, and says why."""

from __future__ import annotations

from typing import Tuple

from edgegs.backends.base import Backend, Buffer, Params
from edgegs.errors import DeviceError, UsageError

__all__ = ["BACKENDS", "Backend", "Buffer", "Params", "create"]

BACKENDS = ("auto", "host", "reference")


def create(name: str = "auto", threads: int = 0, may_compile: bool = False) -> Tuple[Backend, str]:
    """Open a backend; returns it and one sentence that says which was taken and why.

    Args:
        name: ``auto`` (host, then reference), ``host`` or ``reference``.
        threads: operating-system threads of the host backend; 0 takes all that the process may use.
        may_compile: build the host kernels if they are missing or stale (never in the daemon).

    Raises:
        DeviceError: the backend asked for cannot be used here; the message says what to run.
    """
    if name not in BACKENDS:
        if name == "cuda":
            raise DeviceError("the cuda backend is not part of this version; use --backend host")
        raise UsageError("no backend {!r} (there are: {})".format(name, ", ".join(BACKENDS)))
    if name in ("auto", "host"):
        from edgegs.backends.host import HostBackend

        try:
            if may_compile:
                _build_if_stale()
            backend: Backend = HostBackend(threads)
            why = "asked for" if name == "host" else "no GPU backend in this version"
            return backend, f"backend host ({why}): {backend.device}"
        except DeviceError as error:
            if name == "host":
                raise
            missing = str(error)
    else:
        missing = "asked for"
    from edgegs.backends.reference import ReferenceBackend

    backend = ReferenceBackend()
    return backend, f"backend reference ({missing}): slow, {backend.device}"


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
