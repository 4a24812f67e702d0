"""Fixtures shared by all tests."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The real scenes and hostile files that lie beside the checkout (``../shared/data``, see its manifest)."""
    folder = Path(__file__).resolve().parent.parent.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("no ../shared/data beside the checkout: real scenes are not tested")
    return folder
