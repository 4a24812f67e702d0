"""Configurations for tests, and the problems they have."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path
from typing import Any, List, Sequence

import pytest

from edgegs.config import Config, load_config
from edgegs.errors import ConfigError

#: What every configuration needs, a section a line.
MINIMAL = 'scene: {path: a.ply}\ncamera: {width: 640, height: 480}\noutputs: ["null:"]\n'


def load(tmp_path: Path, text: Any, overrides: Sequence[str] = (), environ: Any = None) -> Config:
    path = tmp_path / "c.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
    return load_config(path, overrides, environ or {})


def problems(tmp_path: Path, text: Any, overrides: Sequence[str] = (), environ: Any = None) -> List[str]:
    """The lines of the ConfigError, without the folder's name."""
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text, overrides, environ)
    assert caught.value.exit_code == 78
    return str(caught.value).replace(str(tmp_path) + os.sep, "").split("\n")


def add(text: str) -> str:
    return MINIMAL + textwrap.dedent(text)


def output(text: str) -> str:
    return MINIMAL.replace('["null:"]', text)
