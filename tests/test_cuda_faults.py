"""The CUDA backend when the GPU fails it: a stand-in for pycuda's driver, which fails where it is told to."""

from __future__ import annotations

import hashlib
from types import SimpleNamespace

import numpy as np
import pytest
import scenes

from edgegs.backends import create, cuda
from edgegs.errors import DeviceError
from edgegs.kernels.manifest import Image, source_hash, store
from edgegs.renderer import Renderer


class FakeError(Exception):
    pass


class FakeMemoryError(FakeError):
    pass


class Memory(int):
    def free(self):
        pass


class FakeDriver:
    """As much of pycuda.driver as the backend uses; ``fails`` names what goes wrong."""

    Error, MemoryError = FakeError, FakeMemoryError
    ctx_flags = SimpleNamespace(SCHED_BLOCKING_SYNC=4)
    device_attribute = SimpleNamespace(INTEGRATED="integrated", MULTIPROCESSOR_COUNT="multiprocessors")

    def __init__(self, fails="", capability=(8, 9), free=10**9):
        self.fails, self.capability, self.free = fails, capability, free
        self.calls = []
        outer = self

        class Device:
            def __init__(self, index):
                pass

            @staticmethod
            def count():
                return 0 if outer.fails == "no device" else 1

            def make_context(self, flags):
                outer.calls.append("make_context")
                return SimpleNamespace(
                    pop=lambda: outer.calls.append("pop"), detach=lambda: outer.calls.append("detach")
                )

            def compute_capability(self):
                return outer.capability

            def get_attribute(self, name):
                return 0 if name == "integrated" else 2

            def name(self):
                return "Fake GPU"

            def pci_bus_id(self):
                return "0000:00:06.0"

        self.Device = Device

    def init(self):
        if self.fails == "init":
            raise FakeError("cuInit failed: no CUDA-capable device is detected")

    def module_from_buffer(self, content):
        if self.fails == "every image" or (self.fails == "cubin" and b"cubin" in content):
            raise FakeError("device kernel image is invalid")
        return SimpleNamespace(get_function=self.get_function)

    def get_function(self, name):
        def launch(*_):
            if self.fails == "launch":
                raise FakeError("cuLaunchKernel failed: the launch timed out and was terminated")

        return SimpleNamespace(prepare=lambda types: None, prepared_async_call=launch)

    def Stream(self):
        return SimpleNamespace(synchronize=self.synchronize, wait_for_event=lambda event: None)

    def Event(self):
        return SimpleNamespace(record=lambda stream: None, synchronize=self.synchronize, time_since=lambda start: 0.1)

    def synchronize(self):
        if self.fails == "lost":
            raise FakeError("cuStreamSynchronize failed: an illegal memory access was encountered")

    def mem_alloc(self, n_bytes):
        if n_bytes > self.free:
            raise FakeMemoryError("cuMemAlloc failed: out of memory")
        return Memory(4096)

    def mem_get_info(self):
        return self.free, 2 * 10**9

    def memcpy_htod(self, *_):
        pass

    def memcpy_dtoh_async(self, *_):
        if self.fails == "lost":
            raise FakeError("cuMemcpyDtoHAsync failed: an illegal memory access was encountered")

    def memcpy_dtoh(self, *_):
        pass

    def pagelocked_empty(self, shape, dtype):
        return np.zeros(shape, dtype)


@pytest.fixture
def images(tmp_path, monkeypatch):
    """A cache with a made-up cubin and PTX for sm_89."""
    folder = tmp_path / "kernels"
    folder.mkdir()
    for kind in ("cubin", "ptx"):
        content = f"a {kind}".encode()
        digest = hashlib.sha256(content).hexdigest()
        row = Image(f"sm_89.{kind}", "sm_89", kind, ["baseline"], "made up", [], source_hash(), digest)
        store(folder, row, content)
    monkeypatch.setenv("EDGEGS_CACHE", str(tmp_path))
    return folder


@pytest.fixture
def fake(monkeypatch):
    def install(**options):
        driver = FakeDriver(**options)
        monkeypatch.setattr(cuda, "driver", driver)
        return driver

    return install


def refused(**options):
    with pytest.raises(DeviceError) as caught:
        cuda.CudaBackend(**options)
    return str(caught.value)


def test_no_pycuda(monkeypatch):
    monkeypatch.setattr(cuda, "driver", None)
    monkeypatch.setattr(cuda, "missing", "libcuda.so.1: cannot open shared object file")
    text = refused()
    assert "libcuda.so.1" in text
    assert "edgegs[cuda]" in text


@pytest.mark.parametrize("fails", ["init", "no device"])
def test_no_gpu(fake, images, fails):
    fake(fails=fails)
    assert "0 CUDA devices" in refused() if fails == "no device" else "no CUDA-capable device" in refused()


def test_no_gpu_falls_back_to_the_host_and_says_so(fake, kernels):
    fake(fails="init")
    backend, why = create("auto")
    assert backend.name == "host"
    assert "no CUDA-capable device" in why
    backend.close()
    with pytest.raises(DeviceError, match="no CUDA-capable device"):
        create("cuda")


def test_an_image_that_the_driver_refuses_is_passed_over(fake, images):
    fake(fails="cubin")
    backend = cuda.CudaBackend()
    assert backend.image == "sm_89.ptx"
    backend.close()


def test_no_image_that_runs(fake, images):
    driver = fake(fails="every image")
    text = refused()
    assert "sm_89.cubin: device kernel image is invalid" in text
    assert "edgegs kernels build --arch sm_89" in text
    assert driver.calls == ["make_context", "pop", "detach"]  # the context is given back


def test_a_gpu_without_an_image(fake, images):
    fake(capability=(5, 3))
    text = refused()
    assert "none is built for it" in text
    assert "edgegs kernels build --arch sm_53" in text


def test_damaged_and_stale_images(fake, images):
    fake()
    (images / "sm_89.cubin").write_bytes(b"something else")
    (images / "sm_89.ptx").unlink()
    text = refused()
    assert "damaged" in text
    assert "sm_89.ptx" in text


def test_a_failing_launch_names_kernel_shape_and_image(fake, images):
    fake(fails="launch")
    with cuda.CudaBackend() as backend, pytest.raises(DeviceError) as caught:
        Renderer(backend, scenes.cloud(100), 96, 80, "baseline").render(scenes.camera())
    text = str(caught.value)
    assert "project_fp32_radius <<<16, 256>>> of sm_89.cubin" in text
    assert "timed out" in text


def test_a_device_lost_mid_frame_is_an_error_of_the_backend(fake, images):
    driver = fake()
    with cuda.CudaBackend() as backend:
        renderer = Renderer(backend, scenes.cloud(100), 96, 80, "baseline")
        ticket = renderer.submit(scenes.camera())
        driver.fails = "lost"
        with pytest.raises(DeviceError, match="illegal memory access"):
            renderer.collect(ticket)
    assert driver.calls[-2:] == ["pop", "detach"]


@pytest.mark.parametrize("doing", ["submit", "read"])
def test_a_lost_device_is_an_error_of_the_backend_at_every_call(fake, images, doing):
    driver = fake()
    with cuda.CudaBackend() as backend:
        renderer = Renderer(backend, scenes.cloud(100), 96, 80, "baseline")
        driver.fails = "lost"
        with pytest.raises(DeviceError, match=r"the GPU failed while reading .*illegal memory access"):
            renderer.submit(scenes.camera()) if doing == "submit" else renderer.read("splat_depths")


def test_too_little_memory_says_what_would_fit(fake, images):
    fake(free=3_000_000)
    with cuda.CudaBackend() as backend, pytest.raises(DeviceError) as caught:
        Renderer(backend, scenes.cloud(20_000), 96, 80, "baseline")
    text = str(caught.value)
    assert "20,000 splats need" in text
    assert "3 MB are free" in text
    fits = int(text.split("scene.max_gaussians: ")[1].split()[0])
    assert 1000 < fits < 20_000
    with cuda.CudaBackend() as backend:
        Renderer(backend, scenes.cloud(fits), 96, 80, "baseline")


def test_memory_that_runs_out_later_names_the_array(fake, images):
    driver = fake()
    with cuda.CudaBackend() as backend:
        renderer = Renderer(backend, scenes.cloud(100), 96, 80, "baseline")
        driver.free = 1000
        with pytest.raises(DeviceError, match="instance_keys: 8 MB of GPU memory asked, 0 of 2000 MB are free"):
            renderer._grow(1_000_000)
