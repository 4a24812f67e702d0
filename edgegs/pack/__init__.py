"""Scenes made ready for a board: quantised, ordered by importance and place, cut to a budget, kept in one file."""

from __future__ import annotations

from edgegs.pack.packed import CHUNK, PackedScene, quantise
from edgegs.pack.upload import AnyScene, scene_bytes, upload

__all__ = ["CHUNK", "AnyScene", "PackedScene", "quantise", "scene_bytes", "upload"]
