"""Files spoiled in the ways that files are spoiled, for hypothesis."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Callable, List, Sequence, Tuple

import numpy as np
from hypothesis import strategies as st

from edgegs.errors import SceneError
from edgegs.scene import Scene, load

_NUMBERS = (b"0", b"1", b"2", b"255", b"256", b"257", b"65536", b"4294967295", b"99999999999999999", b"-1", b"1e3", b"")


def mutations(files: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """One of the files after one to four changes: bytes, cuts, repeats, lines moved, numbers of the header."""

    @st.composite
    def spoiled(draw: Callable) -> bytes:
        data = draw(st.sampled_from(list(files)))
        for _ in range(draw(st.integers(1, 4))):
            at, length = draw(st.integers(0, len(data))), draw(st.integers(0, 64))
            how = draw(st.sampled_from(("bytes", "cut", "remove", "repeat", "line", "number")))
            if how == "bytes":
                data = data[:at] + draw(st.binary(min_size=1, max_size=8)) + data[at + length % 9 :]
            elif how == "cut":
                data = data[:at]
            elif how == "remove":
                data = data[:at] + data[at + length :]
            elif how == "repeat":
                data = data[:at] + data[at : at + length] + data[at:]
            else:
                data = _in_header(draw, data, how)
        return data

    return spoiled()


def _in_header(draw: Callable, data: bytes, how: str) -> bytes:
    head, end, body = data.partition(b"end_header\n")
    if how == "number":
        found: List[Tuple[int, int]] = [match.span() for match in re.finditer(rb"\d+", head)]
        if found:
            start, stop = draw(st.sampled_from(found))
            head = head[:start] + draw(st.sampled_from(_NUMBERS)) + head[stop:]
        return head + end + body
    lines = head.split(b"\n")
    line = lines.pop(draw(st.integers(0, len(lines) - 1)))
    if draw(st.booleans()):
        lines.insert(draw(st.integers(0, len(lines))), line)
    return b"\n".join(lines) + end + body


def loaded_or_refused(path: Path, data: bytes) -> None:
    """Either a scene that can be drawn, or one printable line that names the file."""
    path.write_bytes(data)
    try:
        scene = load(path)
    except SceneError as error:
        assert str(error).startswith(f"{path}: ")  # noqa: PT017
        assert str(error).isprintable()  # noqa: PT017
        return
    assert isinstance(scene, Scene)
    assert 0 < scene.n_splats <= scene.n_rows
    assert scene.n_splats + sum(scene.dropped.values()) == scene.n_rows
    for array in (scene.means, scene.scales, scene.quats, scene.opacities, scene.sh):
        assert np.isfinite(array).all()
    assert (scene.scales > 0).all()
    assert ((scene.opacities > 0) & (scene.opacities < 1)).all()
    assert np.abs(np.linalg.norm(scene.quats, axis=1) - 1).max() < 1e-5
