"""What only a GPU can show: images of different architectures agree, memory does not grow, frames overlap."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import numpy as np
import pytest
import scenes
from conftest import open_backend
from images import psnr

from edgegs.backends.reference import ReferenceBackend
from edgegs.kernels.select import candidates
from edgegs.renderer import Renderer
from edgegs.scene import write_ply

pytestmark = pytest.mark.cuda


@pytest.fixture
def cuda(kernels):
    with open_backend("cuda") as backend:
        yield backend


@pytest.mark.parametrize("name", ["baseline", "roofgs", "best", "wide"])
def test_every_image_that_runs_here_draws_the_same_picture(cuda, name):
    scene, camera = scenes.cloud(2000, seed=5), scenes.camera(320, 240, 300.0)
    files = {candidate.image.file for candidate in candidates(cuda.compute_capability)}
    assert len(files) >= 2, "build images for sm_53 and sm_89 first: `edgegs kernels build`"
    drawn = {}
    for file in sorted(files):
        with open_backend("cuda:" + file) as backend:
            drawn[file] = Renderer(backend, scene, 320, 240, name, keep_float=True).render(camera)
    first, *others = drawn.values()
    for other in others:
        assert np.abs(first.image.astype(int) - other.image).max() <= 1
        assert psnr(first.image_f32, other.image_f32) >= 60


def test_a_renderer_that_was_dropped_leaves_nothing_to_the_next(cuda):
    # the driver gives the addresses of one to the other, whose buffers have other shapes
    scene, camera = scenes.cloud(33), scenes.camera(97, 81)
    behind = np.random.default_rng(1).integers(0, 256, (81, 97, 3), dtype=np.uint8)
    drawn = {}
    for _ in range(3):
        for name in ("baseline", "best", "roofgs"):
            renderer = Renderer(cuda, scene, 97, 81, name, keep_float=True, takes_backdrop=True)
            image = renderer.render(camera, behind).image
            np.testing.assert_array_equal(image, drawn.setdefault(name, image))


def test_ten_thousand_frames_take_no_more_memory_than_a_hundred(cuda):
    renderer = Renderer(cuda, scenes.cloud(300), 64, 48, "best")
    cameras = [scenes.camera(64, 48, focal) for focal in (50.0, 60.0, 70.0)]

    def draw(n):
        ticket = renderer.submit(cameras[0])
        for i in range(1, n):
            following = renderer.submit(cameras[i % 3])
            renderer.collect(ticket)
            ticket = following
        renderer.collect(ticket)
        return cuda.free_memory()

    before = draw(100)
    assert draw(10_000) >= before


def test_overlapping_frames_are_the_frames_drawn_alone(cuda):
    scene = scenes.cloud(5000, seed=9)
    cameras = [scenes.camera(320, 240, focal) for focal in np.linspace(100, 500, 12)]
    renderer = Renderer(cuda, scene, 320, 240, "best")
    alone = [renderer.render(camera) for camera in cameras]
    tickets, together = [], []
    for camera in cameras:
        tickets.append(renderer.submit(camera))
        if len(tickets) == cuda.depth:
            together.append(renderer.collect(tickets.pop(0)))
    together += [renderer.collect(ticket) for ticket in tickets]
    for a, b in zip(alone, together):
        np.testing.assert_array_equal(a.image, b.image)
        assert (a.n_visible, a.n_instances) == (b.n_visible, b.n_instances)


@pytest.mark.parametrize("name", ["baseline", "best"])
def test_growing_while_another_frame_is_under_way(cuda, name):
    cloud = scenes.cloud(5000, seed=1, sh_degree=0)
    cloud.means[:, 2] = np.linspace(1, 2, 5000)
    cloud.means[:, :2] = 0
    cloud.scales[:] = 3
    cloud.opacities[:] = 0.01
    renderer = Renderer(cuda, cloud, 96, 80, name)
    first, second = renderer.submit(scenes.camera()), renderer.submit(scenes.camera())
    a, b = renderer.collect(first), renderer.collect(second)
    assert (a.redraws, b.redraws) == (1, 1)
    expected = Renderer(ReferenceBackend(), cloud, 96, 80, name).render(scenes.camera())
    np.testing.assert_array_equal(a.image, b.image)
    assert np.abs(a.image.astype(int) - expected.image).max() <= 1


def test_stage_times_are_the_gpus_own(cuda):
    frame = Renderer(cuda, scenes.cloud(2000), 320, 240, "baseline").render(scenes.camera(320, 240))
    assert all(ms > 0 for ms in frame.stage_ms.values())
    assert sum(frame.stage_ms.values()) <= frame.frame_ms


def test_a_fault_of_the_device_is_survived_by_a_new_process(kernels, tmp_path):
    """A real one: after a kernel has read an address that is none, CUDA gives this process no context any more."""
    with open_backend("cuda"):
        pass  # there is a GPU
    write_ply(str(tmp_path / "cloud.ply"), scenes.cloud(300))
    (tmp_path / "c.yaml").write_text(
        "scene: {path: cloud.ply}\ncamera: {width: 96, height: 80, path: {kind: fixed, eye: [0, 0, -1], "
        "target: [0, 0, 3]}}\nrender: {backend: cuda, target_fps: 50}\n"
        "outputs: ['file://latest.png']\ntelemetry: {log: {dir: runs, flush_s: 0}}\n"
    )
    # the program as it is, with one fault planted: the fifth frame of the first process reads from nowhere
    program = tmp_path / "edgegs_with_a_fault.py"
    program.write_text(FAULTY)
    process = subprocess.Popen(
        [sys.executable, str(program), "run", str(tmp_path / "c.yaml")],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)),
    )
    try:
        until = time.monotonic() + 60
        while len(list((tmp_path / "runs").glob("*"))) < 2 and time.monotonic() < until:
            time.sleep(0.05)
        picture = tmp_path / "latest.png"
        seen = picture.stat().st_mtime_ns
        while picture.stat().st_mtime_ns == seen and time.monotonic() < until:
            time.sleep(0.05)
        assert picture.stat().st_mtime_ns > seen, "it draws again"
    finally:
        process.terminate()
        err = process.communicate(timeout=30)[1]
    assert process.returncode == 0, err
    assert "illegal memory access" in err
    assert "starting over in a new process" in err
    assert err.count("opening the device again (1 of 3)") == 1


FAULTY = """
import sys
from edgegs.backends.base import Buffer
from edgegs.drawing import Show
from edgegs.cli import main
begin, begun = Show.begin, []
def sabotage(self, *arguments):
    begun.append(1)
    if len(begun) == 5:
        self._renderer._frame.set(splat_means=Buffer("nowhere", (1,), "f4", None, 1 << 20))
    return begin(self, *arguments)
Show.begin = sabotage
sys.exit(main())
"""
