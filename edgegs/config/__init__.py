"""The configuration: one strict YAML file, overridden by environment and command line.

    tree      YAML text -> values that know their line; refuses what YAML would silently misread
    syntax    YAML's syntax errors in plain words
    fields, camera_paths, model   every key: its type, default and limits (pydantic)
    explain   pydantic's errors -> one plain line each, with a suggestion
    load      file, ``EDGEGS__SECTION__KEY``, ``--set key=value`` -> Config
    masking   what may be shown of it

``configs/default.yaml`` is the commented reference of every key.
"""

from __future__ import annotations

from edgegs.config.camera_paths import CamerasJsonPath, FixedPath, KeyframesPath, OrbitPath
from edgegs.config.load import load_config
from edgegs.config.masking import mask_text
from edgegs.config.model import Config, Output, effective

__all__ = [
    "CamerasJsonPath",
    "Config",
    "FixedPath",
    "KeyframesPath",
    "OrbitPath",
    "Output",
    "effective",
    "load_config",
    "mask_text",
]
