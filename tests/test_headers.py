"""The numbers and structs that Python reads from the kernels' headers."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

import edgegs
from edgegs.kernels.headers import constants, struct_dtype, structs
from edgegs.kernels.toolchains import HostCompiler
from edgegs.paths import shipped


def test_every_define_is_read_and_used():
    text = (shipped("cuda") / "constants.h").read_text(encoding="utf-8")
    defined = re.findall(r"^#define (\w+)", text, re.MULTILINE)
    assert list(constants()) == defined
    kernels = [path for path in shipped("cuda").rglob("*") if path.suffix in (".cuh", ".cu", ".hpp")]
    host = [path for path in Path(edgegs.__file__).parent.rglob("*.py") if "twin" not in path.name]
    used = "".join(path.read_text(encoding="utf-8") for path in (*kernels, *host))
    for name in defined:
        assert re.search(rf"\b{name}\b", used), f"{name} is used by no kernel, nor by what feeds them"


def test_derived_constants_agree():
    c = constants()
    assert c["TILE_PIXELS"] == c["TILE_SIZE"] ** 2 == c["RASTERIZE_THREADS"]
    assert c["SORT_DIGITS"] == 2 ** c["SORT_DIGIT_BITS"]
    assert c["ALPHA_MIN"] == pytest.approx(1 / 255, rel=1e-7)
    assert c["LOG2_255"] == pytest.approx(np.log2(255), rel=1e-7)
    assert c["OPACITY_STEPS"] * c["LOG2_255"] < 2**16 - 1
    assert c["LIST_BUCKETS"] == 2 ** c["LIST_BUCKET_BITS"]
    assert c["LIST_BUCKETS"] % c["LIST_THREADS"] == c["LIST_CAPACITY"] % c["LIST_THREADS"] == 0
    assert c["FLUSH_BIAS"] == pytest.approx(126 - np.log2(255), abs=1e-7)
    assert c["FLUSH_SCALE"] == pytest.approx(2.0**126 / 255, rel=1e-7)
    assert c["FLUSH_SCALE"] == pytest.approx(2.0 ** c["FLUSH_BIAS"], rel=1e-6)
    assert np.log(c["ALPHA_MIN"]) - 1e-4 < c["POWER_MIN"] < np.log(c["ALPHA_MIN"]) - 1e-5


@pytest.mark.parametrize("struct", sorted(structs()))
def test_dtype_is_laid_out_as_the_compiler_lays_it_out(struct, tmp_path):
    dtype = struct_dtype(struct)
    prints = "".join(f'std::printf("%zu\\n", offsetof(edgegs::{struct}, {name}));' for name in dtype.names)
    source = tmp_path / "offsets.cpp"
    source.write_text(
        "#include <cstddef>\n#include <cstdio>\nnamespace edgegs {{ typedef unsigned char uint8; typedef "
        "unsigned short "
        'uint16;\ntypedef unsigned int uint32; typedef unsigned long long uint64; }}\n#include "{}"\n'
        'int main() {{ {} std::printf("%zu\\n", sizeof(edgegs::{})); }}'.format(
            shipped("cuda") / "params.h", prints, struct
        )
    )
    subprocess.run([HostCompiler().command, "-std=c++14", str(source), "-o", str(tmp_path / "offsets")], check=True)
    done = subprocess.run([str(tmp_path / "offsets")], stdout=subprocess.PIPE, check=True, text=True)
    *offsets, size = [int(line) for line in done.stdout.split()]
    assert offsets == [dtype.fields[name][1] for name in dtype.names]
    assert size == dtype.itemsize
    assert size % 8 == 0  # nothing depends on how a driver pads the last word


def test_pointers_come_first():
    for fields in structs().values():
        pointers = [field.is_pointer for field in fields]
        assert pointers == sorted(pointers, reverse=True)


def test_the_cuda_backend_launches_every_kernel_with_the_threads_that_it_is_written_for():
    from edgegs.backends.cuda import THREADS

    text = (shipped("cuda") / "edgegs.cu").read_text(encoding="utf-8")
    kernels = re.findall(r"^(?:DENSE_)?KERNEL\((\w+), \w+, (\w+)[,)]", text, re.MULTILINE)
    assert len(kernels) == text.count("KERNEL(") > 30
    for kernel, threads in kernels:
        assert next((name for start, name in THREADS.items() if kernel.startswith(start)), None) == threads, kernel
