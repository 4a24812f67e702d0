"""The host's words for number formats, compiled with and without the processor's own conversions."""

from __future__ import annotations

import ctypes
import platform
import subprocess

import numpy as np
import pytest

from edgegs.kernels.toolchains import HostCompiler
from edgegs.paths import shipped

WORDS = r"""
#include "platform.cuh"
namespace edgegs { struct NoParams {}; }
using namespace edgegs;
extern "C" void halves_from_floats(const float *values, unsigned short *halves, size_t n) {
    for (size_t i = 0; i < n; ++i) halves[i] = half_from_float(values[i]);
}
extern "C" void floats_from_halves(const unsigned short *halves, float *values, size_t n) {
    for (size_t i = 0; i < n; ++i) values[i] = float_from_half(halves[i]);
}
extern "C" void floats_from_bytes(const unsigned *words, float *values, size_t n) {
    for (size_t i = 0; i < 4 * n; ++i) values[i] = signed_byte_to_float(words[i / 4], int(i % 4));
}
extern "C" void floats_from_numbers(const unsigned *numbers, float *values, size_t n) {
    for (size_t i = 0; i < n; ++i) values[i] = small_to_float(numbers[i]);
}
extern "C" int converts_itself() {
#if defined(__F16C__)
    return 1;
#else
    return 0;
#endif
}
"""


@pytest.fixture(scope="module", params=["native", "plain"])
def words(request, tmp_path_factory):
    """``words(name, array, out)`` runs one of the functions above."""
    more = []
    if request.param == "plain":
        if platform.machine() != "x86_64":
            pytest.skip("only x86-64 processors have a conversion to do without")
        more = ["-mno-f16c", "-mno-avx512f"]
    folder = tmp_path_factory.mktemp("words")
    (folder / "words.cpp").write_text(WORDS)
    compiler, sources = HostCompiler(), shipped("cuda")
    command = [compiler.command, *compiler.flags(False, False), *more, "-shared", "-o", str(folder / "words.so")]
    command += ["-I" + str(sources), str(sources / "host" / "runtime.cpp"), str(folder / "words.cpp")]
    subprocess.run(command, check=True)
    lib = ctypes.CDLL(str(folder / "words.so"))
    if request.param == "plain":
        assert not lib.converts_itself()

    def call(name, values, out):
        function = getattr(lib, name)
        function(*(ctypes.c_void_p(a.ctypes.data) for a in (values, out)), ctypes.c_size_t(len(values)))
        return out

    return call


def halves_of(words, values):
    return words("halves_from_floats", np.ascontiguousarray(values, np.float32), np.empty(len(values), np.uint16))


def test_every_half_goes_to_a_float_and_back(words):
    halves = np.arange(65536).astype(np.uint16)
    floats = words("floats_from_halves", halves, np.empty(65536, np.float32))
    expected = halves.view(np.float16).astype(np.float32)
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(floats[finite].view(np.uint32), expected[finite].view(np.uint32))
    back = halves_of(words, expected)
    numbers = ~np.isnan(expected)
    np.testing.assert_array_equal(back[numbers], halves[numbers])
    assert np.isnan(back[~numbers].view(np.float16)).all()


def test_floats_are_rounded_to_the_nearest_half_and_ties_to_even(words):
    halves = np.arange(0x7C00).astype(np.uint16).view(np.float16).astype(np.float64)
    middles = ((halves[:-1] + halves[1:]) / 2).astype(np.float32)  # exact in a float
    around = [np.nextafter(middles, np.float32(side), dtype=np.float32) for side in (-np.inf, np.inf)]
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**32, 200_000, dtype=np.uint64).astype(np.uint32).view(np.float32)
    edges = np.float32([65504, 65519.996, 65520, 65536, 1e30, np.inf, 5.96e-8, 2.98e-8, 2.980233e-8, 1e-45, 0, -0.0])
    values = np.concatenate([middles, *around, bits[~np.isnan(bits)], edges, -edges, rng.uniform(0, 2, 100_000)])
    values = values.astype(np.float32)
    with np.errstate(over="ignore", under="ignore"):
        expected = values.astype(np.float16)
    np.testing.assert_array_equal(halves_of(words, values), expected.view(np.uint16))


def test_the_bytes_of_a_word_are_signed_numbers(words):
    stored = np.concatenate([np.arange(-128, 128), np.random.default_rng(1).integers(-128, 128, 4000)]).astype(np.int8)
    values = words("floats_from_bytes", stored.view(np.uint32), np.empty(len(stored), np.float32))
    np.testing.assert_array_equal(values, stored.astype(np.float32))


def test_small_numbers_are_exact(words):
    numbers = np.concatenate([np.arange(5000), 2**23 - 1 - np.arange(5000)]).astype(np.uint32)
    np.testing.assert_array_equal(words("floats_from_numbers", numbers, np.empty(10_000, np.float32)), numbers)
