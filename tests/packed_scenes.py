"""Packed scenes made of whole numbers, their files in memory, and how those are refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, BinaryIO, Callable, Optional, Tuple

import numpy as np
import pytest

from edgegs.errors import SceneError
from edgegs.pack import PackedScene
from edgegs.pack.egs import write_egs
from edgegs.scene.egs import read_egs, verify
from edgegs.scene.reading import Reading


def packed(n: int = 700, degree: int = 3, scored: bool = True, levels: Optional[Tuple[int, ...]] = None) -> PackedScene:
    """A packed scene made of whole numbers alone, so that it is the same everywhere."""
    i = np.arange(n)
    halves = np.stack([1 + i % 3, i % 5, -(i % 2), i % 7, 1 + i % 11, 1 + i % 13, 1 + i % 17, i % 16 / 16], axis=1)
    n_sh = 3 * (degree + 1) ** 2
    sh_bytes = np.zeros((n, -(-n_sh // 4) * 4), np.int8)
    sh_bytes[:, :n_sh] = np.arange(n * n_sh).reshape(n, n_sh) * 37 % 255 - 127
    means = (np.stack([i * 7 % 101, i * 11 % 97, i * 13 % 89], axis=1) / 8).astype(np.float32)
    return PackedScene(
        means, halves.astype(np.float16), sh_bytes, np.arange(12, dtype=np.float32).reshape(4, 3) / 256, 2.0**-9,
        ((i * 3 + 1) % (2 * n)).astype(np.uint32), degree,
        levels or ((n // 4, n // 2, n) if scored and n > 3 else (n,)), scored,
        np.array([6.25, 6.0, 5.5]), 9.75, means.min(axis=0), means.max(axis=0),
        "/somewhere/on/this/machine.ply", "ply binary_little_endian", 2 * n, {"with a zero rotation": n // 2, "a": 1},
        ["something to hear"], "5a" * 32, "z", True,
    )  # fmt: skip


ABOUT = {"views": 48, "psnr_db": [41.5, 1e-7], "zürich": {"b": None, "a": True}}


def written(folder: Path, scene: Optional[PackedScene] = None, about: Any = None) -> bytes:
    path = folder / "scene.egs"
    write_egs(str(path), scene or packed(), ABOUT if about is None else about)
    return path.read_bytes()


def in_memory(content: bytes) -> BinaryIO:
    """An open file of that content, without a folder."""
    descriptor = os.memfd_create("egs")
    os.write(descriptor, content)
    return os.fdopen(descriptor, "rb", buffering=0)


def read(content: bytes, max_gaussians: Optional[int] = None, **how: Any) -> PackedScene:
    with in_memory(content) as file:
        return read_egs(file, "x.egs", Reading(max_gaussians, **how))


def check(content: bytes) -> None:
    with in_memory(content) as file:
        verify(file, "x.egs")


def refusal(content: bytes, function: Callable[..., Any] = read, **how: Any) -> str:
    with pytest.raises(SceneError) as caught:
        function(content, **how)
    message = str(caught.value)
    assert message.startswith("x.egs: ")
    assert "\n" not in message
    return message
