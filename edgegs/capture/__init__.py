"""The live picture behind the splats: where it comes from, and a thread that keeps the newest one at hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edgegs.capture.uri import CaptureUri, parse

if TYPE_CHECKING:
    from edgegs.capture.capture import Capture

__all__ = ["Capture", "CaptureUri", "parse"]


def __getattr__(name: str) -> Any:
    """``Capture`` when first asked for: checking a configuration needs no OpenCV."""
    if name == "Capture":
        from edgegs.capture.capture import Capture

        return Capture
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
