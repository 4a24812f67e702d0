"""The host-check build finds what CUDA leaves undefined; and the kernels run clean under sanitizers."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from edgegs.kernels.toolchains import HostCompiler
from edgegs.paths import shipped

#: Kernels with one fault each (and one without), in the words of platform.cuh.
FAULTY = r"""
#include "platform.cuh"
#include <cstdint>
namespace edgegs {
struct Out { uint32 *out; };
struct Numbers { uint32 values[128]; };
}
using namespace edgegs;
typedef edgegs::Out OutParams;
namespace edgegs { typedef Out OutParams; }

KERNEL(sound, OutParams, 128) {
    SHARED(Numbers, shared);
    shared.values[127 - thread_rank()] = thread_rank();
    block_sync();
    p.out[thread_rank()] = shared.values[thread_rank()] + warp_ballot(thread_rank() % 2 == 0);
}
KERNEL(early_return, OutParams, 128) {
    if (thread_rank() == 5) return;
    block_sync();
    p.out[thread_rank()] = 1;
}
KERNEL(divergent_ballot, OutParams, 128) {
    uint32 bits;
    if (thread_rank() < 40) bits = warp_ballot(true);
    else bits = warp_ballot(false);
    p.out[thread_rank()] = bits;
}
KERNEL(unequal_trips, OutParams, 128) {
    for (int i = 0; i < (thread_rank() == 64 ? 2 : 1); ++i) block_sync();
    p.out[thread_rank()] = 1;
}
KERNEL(missing_barrier, OutParams, 128) {
    SHARED(Numbers, shared);
    shared.values[thread_rank()] = thread_rank();
    p.out[thread_rank()] = shared.values[thread_rank() == 0 ? 0 : thread_rank() - 1];
}
KERNEL(reads_before_writing, OutParams, 128) {
    SHARED(Numbers, shared);
    p.out[thread_rank()] = shared.values[thread_rank()];
}
"""


@pytest.fixture(scope="module")
def faulty(tmp_path_factory):
    """The faulty kernels, built as host-check is; returns launch(name, seed) -> (error, out)."""
    folder = tmp_path_factory.mktemp("faulty")
    (folder / "faulty.cu").write_text(FAULTY)
    compiler, sources = HostCompiler(), shipped("cuda")
    library = folder / "faulty.so"
    command = [compiler.command, *compiler.flags(True, False), "-shared", "-o", str(library), "-I" + str(sources)]
    command += [str(sources / "host" / name) for name in ("runtime.cpp", "fibers.cpp")] + [
        "-x",
        "c++",
        str(folder / "faulty.cu"),
    ]
    subprocess.run(command, check=True)
    lib = ctypes.CDLL(str(library))
    lib.edgegs_host_create.restype = ctypes.c_void_p
    pool = ctypes.c_void_p(lib.edgegs_host_create(1))

    def launch(name, seed=0):
        out = np.full(128, 7, np.uint32)
        params = np.array([out.ctypes.data], np.uint64)
        message = ctypes.create_string_buffer(512)
        lib.edgegs_host_shuffle(ctypes.c_uint64(seed))
        failed = lib.edgegs_host_launch(
            pool,
            name.encode(),
            1,
            ctypes.c_void_p(params.ctypes.data),
            ctypes.c_size_t(8),
            message,
            ctypes.c_size_t(512),
        )
        return (message.value.decode() if failed else None), out

    yield launch
    lib.edgegs_host_destroy(pool)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_sound_kernel_runs(faulty, seed):
    error, out = faulty("sound", seed)
    assert error is None
    np.testing.assert_array_equal(out, 127 - np.arange(128) + 0x55555555)


def line_of(text):
    return 1 + FAULTY.splitlines().index(next(line for line in FAULTY.splitlines() if text in line))


@pytest.mark.parametrize("seed", [0, 3])
def test_an_early_return_before_a_barrier_is_named(faulty, seed):
    error, _ = faulty("early_return", seed)
    assert "collective mismatch in kernel early_return, block 0" in error
    assert "thread 5 is at exit" in error or "thread 5 at exit" in error
    assert "block_sync" in error
    assert "faulty.cu:" in error


def test_a_divergent_collective_is_named_with_both_lines(faulty):
    error, _ = faulty("divergent_ballot")
    assert "warp_ballot" in error
    assert "faulty.cu:{}".format(line_of("bits = warp_ballot(true)")) in error
    assert "faulty.cu:{}".format(line_of("else bits = warp_ballot(false)")) in error


def test_unequal_trips_are_named(faulty):
    error, _ = faulty("unequal_trips")
    assert "thread 64" in error
    assert "exit" in error


def test_a_missing_barrier_shows_in_shuffled_order(faulty):
    natural = faulty("missing_barrier")[1]
    np.testing.assert_array_equal(natural, np.maximum(np.arange(128) - 1, 0))  # which is why order is shuffled
    assert any((faulty("missing_barrier", seed)[1] != natural).any() for seed in (1, 2, 3))


def test_shared_memory_is_poisoned(faulty):
    error, out = faulty("reads_before_writing")
    assert error is None
    assert (out == 0xFFFFFFFF).all()


def test_unknown_kernels_and_wrong_sizes_are_refused(faulty, host):
    error, _ = faulty("no_such_kernel")
    assert "no kernel named no_such_kernel" in error


SANITIZED = """
import sys
sys.path[:0] = {paths!r}
import numpy as np, scenes
from edgegs.backends.host import HostBackend
from edgegs.renderer import Renderer
for seed in (0, 5):
    with HostBackend(arch="host-check-sanitized", threads=2, shuffle_seed=seed) as backend:
        for variant in {variants!r}:
            renderer = Renderer(backend, scenes.cloud(300, seed=4), 97, 81, variant, keep_float=True)
            if renderer.variant.key == "bins":
                renderer.render(scenes.camera(97, 81))
                renderer.patch_counts()
            np.save({out!r} + variant + str(seed) + ".npy", renderer.render(scenes.camera(97, 81)).image_f32)
print("drawn")
"""


def test_address_and_undefined_behaviour_sanitizers_find_nothing(host, tmp_path):
    import scenes

    from edgegs.kernels.build import build
    from edgegs.renderer import Renderer

    (outcome,) = build(["host-check-sanitized"])
    assert outcome.image is not None, outcome.reason
    library = subprocess.run(
        [HostCompiler().command, "-print-file-name=libasan.so"], stdout=subprocess.PIPE, check=True, text=True
    ).stdout.strip()
    here = Path(__file__).resolve().parent
    # among them every kernel but the other exponentials
    variants = ["baseline", "exact", "roofgs", "best", "fp32-bins-tight-fast-patch16"]
    script = SANITIZED.format(paths=[str(here.parent), str(here)], out=str(tmp_path / "frame"), variants=variants)
    environment = dict(
        os.environ, LD_PRELOAD=library, ASAN_OPTIONS="detect_leaks=0", UBSAN_OPTIONS="print_stacktrace=1"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, done.stdout
    assert done.stdout.strip() == "drawn"
    for variant in variants:
        renderer = Renderer(host, scenes.cloud(300, seed=4), 97, 81, variant, keep_float=True)
        expected = renderer.render(scenes.camera(97, 81)).image_f32
        for seed in (0, 5):
            got = np.load(str(tmp_path / f"frame{variant}{seed}.npy"))
            np.testing.assert_allclose(got, expected, atol=1e-6)


def test_the_sanitized_build_does_find_faults(tmp_path):
    """An out-of-bounds write and an overflow, in the same harness: the flags must be able to fail."""
    source = tmp_path / "bad.cpp"
    source.write_text("int main(int n, char **) { int *a = new int[n]; a[n] = 1; return 0; }")
    compiler = HostCompiler()
    subprocess.run([compiler.command, *compiler.SANITIZERS, str(source), "-o", str(tmp_path / "bad")], check=True)
    done = subprocess.run([str(tmp_path / "bad")], stderr=subprocess.PIPE, text=True)
    assert done.returncode != 0
    assert "heap-buffer-overflow" in done.stderr
