"""Chained launches: which kernels, what the driver is told, and that frames drawn so are the same frames."""

import ctypes
import re
import subprocess

import numpy as np
import pytest
import scenes
from conftest import open_backend

from edgegs.backends import chain
from edgegs.backends.chain import CAPABILITY, CHAINED, Chain
from edgegs.errors import DeviceError
from edgegs.kernels.variants import VARIANTS, combinations
from edgegs.paths import shipped
from edgegs.renderer import Renderer

#: A driver that takes a launch to pieces, with the structs as cuda.h of CUDA 12.9 has them.
DRIVER = r"""
#include <string.h>
typedef struct { int id; char pad[8 - sizeof(int)]; union { char pad[64]; int allowed; } value; } Attribute;
typedef struct {
    unsigned x, y, z, block_x, block_y, block_z, shared;
    void *stream; Attribute *attributes; unsigned n_attributes;
} Config;
static char names[64];
unsigned long long seen[12]; /* grid, block, shared, stream, attributes, its id, its value, function */
unsigned char params[8];
int fails;
int cuModuleLoadData(void **module, const char *image) {
    *module = (void *)0x77;
    return strcmp(image, "image") ? 200 : 0;
}
int cuModuleGetFunction(void **function, void *module, const char *name) {
    if (module != (void *)0x77) return 201;
    strcpy(names, name);
    *function = names;
    return strncmp(name, "lists", 5) ? 500 : 0;
}
int cuGetErrorName(int result, const char **name) { *name = result == 719 ? "LAUNCH_FAILED" : "OTHER"; return 0; }
#ifdef CHAINS
int cuLaunchKernelEx(const Config *c, void *function, void **kernel_params, void **extra) {
    unsigned long long now[12] = {c->x, c->y, c->z, c->block_x, c->block_y, c->block_z, c->shared,
        (unsigned long long)c->stream, c->n_attributes, c->attributes->id, c->attributes->value.allowed,
        function == names && !extra};
    memcpy(seen, now, sizeof now);
    memcpy(params, kernel_params[0], 8);
    return fails ? 719 : 0;
}
#endif
"""


@pytest.fixture(params=[True])
def driver(request, tmp_path, monkeypatch):
    source, library = tmp_path / "driver.c", tmp_path / "libdriver.so"
    source.write_text(DRIVER)
    flags = ["-DCHAINS"] if request.param else []
    command = ["g++", "-x", "c", "-shared", "-fPIC", *flags, str(source), "-o", str(library)]
    subprocess.run(command, check=True)
    loaded = ctypes.CDLL(str(library))
    monkeypatch.setattr(chain.ctypes, "CDLL", lambda name: loaded)
    return loaded


def test_a_launch_as_the_driver_sees_it(driver):
    params = np.arange(8, dtype=np.uint8)
    launches = Chain(b"image", 0x123456789A)
    for n_blocks in (300, 5):
        launches.launch("lists_sort", n_blocks, 512, params.ctypes.data)
        seen = list((ctypes.c_ulonglong * 12).in_dll(driver, "seen"))
        assert seen == [n_blocks, 1, 1, 512, 1, 1, 0, 0x123456789A, 1, 6, 1, 1]
        assert bytes((ctypes.c_ubyte * 8).in_dll(driver, "params")) == params.tobytes()


def test_what_the_driver_says_is_the_error(driver):
    launches = Chain(b"image", 0)
    with pytest.raises(DeviceError, match=r"OTHER \(500\)"):
        launches.launch("rasterize_patch8_fast", 1, 128, 0)
    ctypes.c_int.in_dll(driver, "fails").value = 1
    with pytest.raises(DeviceError, match=r"LAUNCH_FAILED \(719\)"):
        launches.launch("lists_fill", 1, 128, np.zeros(8, np.uint8).ctypes.data)
    with pytest.raises(DeviceError, match=r"OTHER \(200\)"):
        Chain(b"no image", 0)


@pytest.mark.parametrize("driver", [False], indirect=True)
def test_a_driver_without_such_launches(driver):
    with pytest.raises(DeviceError, match=r"cannot chain launches: .*cuLaunchKernelEx"):
        Chain(b"image", 0)


def test_no_driver(monkeypatch):
    def missing(name):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(chain.ctypes, "CDLL", missing)
    with pytest.raises(DeviceError, match=r"libcuda\.so\.1"):
        Chain(b"image", 0)


def test_the_kernels_of_key_bins_are_chained_and_no_others():
    text = (shipped("cuda") / "edgegs.cu").read_text(encoding="utf-8")
    kernels = re.findall(r"^(?:DENSE_)?KERNEL\((\w+),", text, re.MULTILINE)
    of_bins = {e for v in combinations(tensor_cores=True) if v.key == "bins" for e in v.entries.values()}
    assert {kernel for kernel in kernels if kernel.startswith(CHAINED)} == of_bins


@pytest.mark.cuda
@pytest.mark.parametrize("name", ["best", "wide", "best-fp32", "tensor", "tensor-wide"])
def test_frames_one_upon_the_other_are_the_frame_drawn_alone(name, kernels):
    with open_backend("cuda") as backend:
        draw_queued(backend, name)


def draw_queued(cuda, name):
    if VARIANTS[name].needs_tensor_cores and not cuda.has_tensor_cores:
        pytest.skip("no tensor cores")
    assert (cuda._chain is not None) == (cuda.compute_capability >= CAPABILITY and "sm_9" in cuda.image)
    for n_splats in (40, 5_000, 60_000):  # fewer steps than blocks, one each, more
        renderer = Renderer(cuda, scenes.cloud(n_splats), 320, 240, name)
        alone = renderer.render(scenes.camera(320, 240))
        for _ in range(20):
            before = {key: renderer.read(key) for key in ("bin_starts", "n_visible", "n_instances")}
            renderer.queued_ms(25)
            assert all(np.array_equal(renderer.read(key), array) for key, array in before.items())
            again = renderer.render(scenes.camera(320, 240))
            assert np.array_equal(again.image, alone.image)
            assert again.redraws == 0
        renderer.close()
