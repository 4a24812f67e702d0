"""The memory of key ``bins``, counted before it is made: exactly what the renderer then takes."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import scenes

from edgegs.errors import DeviceError
from edgegs.kernels.variants import combinations, variant
from edgegs.renderer import Renderer
from edgegs.room import (
    MAX_INSTANCES,
    MIN_INSTANCES,
    first_capacity,
    grown_capacity,
    instance_bytes,
    most_splats,
    renderer_bytes,
    splat_stage_bytes,
)

BINS = ("best", "wide", "fp32-bins-tight-fast-patch8", "fp32-bins-tight-fast-patch16")


@pytest.mark.parametrize("name", BINS)
@pytest.mark.parametrize(
    ("n", "degree", "width", "height"), [(0, 0, 16, 16), (1, 1, 33, 65), (700, 2, 97, 81), (5000, 3, 320, 240)]
)
def test_bytes_are_those_of_the_renderer(host, name, n, degree, width, height):
    scene, choice = scenes.cloud(n, sh_degree=degree, size=0.2), variant(name)
    expected = (n, degree, choice, width, height, host.n_blocks, host.depth)
    renderer = Renderer(host, scene, width, height, name)
    before = renderer.device_bytes
    assert renderer_bytes(*expected) == before
    frame = renderer.render(scenes.camera(width, height))
    assert renderer_bytes(*expected, n_instances=frame.n_instances) == renderer.device_bytes
    renderer.patch_counts()
    assert renderer.device_bytes == renderer_bytes(*expected, n_instances=frame.n_instances)
    if n == 5000 and choice.bin_size == 32:
        assert frame.redraws == 1, "the instances' buffers have grown"
        assert renderer.device_bytes == before + 40 * (grown_capacity(frame.n_instances) - first_capacity(n, "bins"))
    renderer.close()
    for backdrop, keeps_float in ((True, False), (False, True)):
        renderer = Renderer(host, scene, width, height, name, (0, 0, 0), keeps_float, backdrop)
        assert renderer_bytes(*expected, 0, backdrop, keeps_float) == renderer.device_bytes
        renderer.close()


@pytest.mark.parametrize("choice", combinations(), ids=lambda choice: choice.name)
def test_every_choice_is_counted(host, choice):
    scene = scenes.cloud(300, sh_degree=1)
    renderer = Renderer(host, scene, 70, 50, choice.name)
    assert renderer_bytes(300, 1, choice, 70, 50, host.n_blocks, host.depth) == renderer.device_bytes
    renderer.close()


def test_what_a_splat_and_an_instance_take():
    assert {(splat_stage_bytes(variant(name)), instance_bytes(variant(name))) for name in BINS} == {(32, 40)}
    assert (splat_stage_bytes(variant("baseline")), instance_bytes(variant("baseline"))) == (52, 24)
    assert (splat_stage_bytes(variant("exact")), instance_bytes(variant("exact"))) == (76, 12)
    assert (splat_stage_bytes(variant("roofgs")), instance_bytes(variant("roofgs"))) == (40, 16)


@pytest.mark.parametrize("name", ["best", "exact"])
def test_room_is_a_quarter_more_than_was_wanted_and_never_more_than_can_be_counted(host, monkeypatch, name):
    assert (first_capacity(0, "bins"), first_capacity(10**6, "bins")) == (MIN_INSTANCES, 2 * 10**6)
    assert first_capacity(10**6, "split") == 4 * 10**6
    assert grown_capacity(100_001) == 125_002
    assert grown_capacity(MAX_INSTANCES - 1) == MAX_INSTANCES
    assert grown_capacity(MAX_INSTANCES + 5) == MAX_INSTANCES + 5, "which the renderer then refuses"
    scene = scenes.cloud(400, size=0.2)
    renderer = Renderer(host, scene, 96, 80, name)
    renderer._grow(16)
    needed = renderer.render(scenes.camera()).n_instances
    assert renderer._capacity == grown_capacity(needed)
    renderer._grow(16)
    monkeypatch.setattr("edgegs.renderer.MAX_INSTANCES", needed - 1)
    with pytest.raises(DeviceError, match=r"more than .*; lower scene\.max_gaussians"):
        renderer.render(scenes.camera())


@pytest.mark.parametrize("name", BINS)
def test_a_scene_without_room_is_refused_before_anything_is_allocated(host, monkeypatch, name):
    scene = scenes.cloud(5000, sh_degree=1)
    needed = renderer_bytes(5000, 1, variant(name), 64, 48, host.n_blocks, host.depth)
    real = host.alloc
    monkeypatch.setattr(host, "alloc", lambda *_: pytest.fail("it was not refused before"))
    monkeypatch.setattr(host, "free_memory", lambda: needed - 1)
    with pytest.raises(DeviceError, match=r"scene\.max_gaussians: 4999 would fit"):
        Renderer(host, scene, 64, 48, name)
    monkeypatch.setattr(host, "alloc", real)
    Renderer(host, dataclasses.replace(scene, **_first(scene, 4999)), 64, 48, name).close()


def _first(scene, n):
    return {field: getattr(scene, field)[:n] for field in ("means", "scales", "quats", "opacities", "sh")}


def test_the_most_that_fits_is_found():
    assert [most_splats(100, lambda n, limit=limit: n <= limit) for limit in (-1, 0, 1, 57, 99, 100, 200)] == [
        0, 0, 1, 57, 99, 100, 100,
    ]  # fmt: skip
    sizes = np.cumsum(np.random.default_rng(0).integers(1, 9, 1000))
    assert most_splats(999, lambda n: sizes[n] <= sizes[412]) == 412
