"""The doctor's look at GPU, driver, compilers and images, on made-up machines."""

from __future__ import annotations

import shutil

import pytest
from fake_compilers import script
from machines import desktop, nano, of, only, write

from edgegs.errors import DeviceError
from edgegs.findings import OK, PROBLEM, WARNING, Finding
from edgegs.kernels import gpu, health, select
from edgegs.kernels.manifest import Image, source_hash, store
from edgegs.kernels.toolchains import Toolchains

NANO = gpu.Gpu("NVIDIA Tegra X1", (5, 3), 4_156_682_240, "10.2")


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with nothing in it: an empty root, no images, no GPU, no programs."""
    root, own = tmp_path / "root", tmp_path / "images"
    root.mkdir()
    own.mkdir()
    monkeypatch.setattr(select, "image_dirs", lambda: [own])
    monkeypatch.setattr(gpu, "detect", lambda timeout_s: (None, "pycuda cannot be imported (No module named 'pycuda')"))
    monkeypatch.setattr(shutil, "which", lambda name, **_: None)
    return root


def put(folder, name, **fields):
    arch, _, kind = name.partition(".")
    made = Image(name, arch, kind, [], "fake 1.0", [], source_hash(), "")
    store(folder, made, b"image")


def test_a_machine_with_nothing(machine):
    found = health.gpu_and_images(str(machine))
    assert only(found, "gpu") == Finding("gpu", OK, "no NVIDIA GPU here: the host backend draws")
    image = only(found, "images")
    assert (image.state, image.fix) == (PROBLEM, "edgegs kernels build --arch host")
    assert "not built" in image.says
    assert of(found, "driver") == of(found, "board") == []


def test_a_stray_device_node_is_no_gpu(machine):
    write(machine / "dev/nvidiactl", "")
    assert only(health.gpu_and_images(str(machine)), "gpu").state == OK


def test_a_nano_that_works(machine, monkeypatch):
    nano(machine)
    put(select.image_dirs()[0], "sm_53.cubin")
    put(select.image_dirs()[0], "sm_89.cubin")
    put(select.image_dirs()[0], "host.so")
    monkeypatch.setattr(gpu, "detect", lambda timeout_s: (NANO, ""))
    found = health.gpu_and_images(str(machine))
    assert {one.state for one in found} == {OK}
    assert only(found, "gpu").says == "NVIDIA Tegra X1, sm_53, 4.2 GB; the driver knows CUDA 10.2"
    assert "NVIDIA Jetson Nano Developer Kit, Jetson Linux 32.7.1" in only(found, "board").says
    on_gpu, on_host = of(found, "images")
    assert "sm_53.cubin, built for this GPU (by fake 1.0)" in on_gpu.says
    assert "host.so" in on_host.says


def test_a_nano_without_pycuda_is_told_how_to_get_it(machine):
    nano(machine)
    one = only(health.gpu_and_images(str(machine)), "gpu")
    assert one.state == WARNING
    assert "NVIDIA Jetson Nano" in one.says
    assert "/usr/local/cuda/bin" in one.fix


def test_a_gpu_whose_nodes_this_user_may_not_open(machine, monkeypatch):
    nano(machine)
    monkeypatch.setattr(gpu, "detect", lambda timeout_s: (None, "the driver refuses: cuInit failed"))
    monkeypatch.setattr(health.os, "access", lambda path, mode: not path.endswith("nvmap"))
    one = only(health.gpu_and_images(str(machine)), "gpu")
    assert one.state == PROBLEM
    assert one.says.endswith("may not open " + str(machine / "dev/nvmap"))
    assert "usermod -aG video" in one.fix


@pytest.mark.parametrize("board", [nano, desktop])
def test_a_gpu_that_the_driver_refuses(machine, monkeypatch, board):
    board(machine)
    monkeypatch.setattr(gpu, "detect", lambda timeout_s: (None, "the driver refuses: cuInit failed: unknown error"))
    one = only(health.gpu_and_images(str(machine)), "gpu")
    assert one.state == PROBLEM
    assert "cuInit failed: unknown error" in one.says
    assert one.fix


def test_a_desktop_without_its_driver(machine):
    desktop(machine, driver="")
    one = only(health.gpu_and_images(str(machine)), "driver")
    assert one.state == PROBLEM
    assert "modprobe nvidia" in one.fix


@pytest.mark.parametrize(
    ("words", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12", "535.183.01"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build", "570.86.15"),
    ],
)
def test_the_drivers_version(machine, words, version):
    desktop(machine, words + "\n")
    assert only(health.gpu_and_images(str(machine)), "driver").says == "NVIDIA kernel module " + version


@pytest.mark.parametrize(
    ("program", "state", "fix"),
    [
        ("echo 'RTX 4090, 535.183.01'", OK, ""),
        ("echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18", WARNING, "reboot"),
        ("exit 9", WARNING, "nvidia-smi"),
    ],
)
def test_nvidia_smi(machine, monkeypatch, tmp_path, program, state, fix):
    desktop(machine)
    path = script(tmp_path / "nvidia-smi", f"#!/bin/sh\n{program}\n")
    monkeypatch.setattr(shutil, "which", lambda name, **_: str(path) if name == "nvidia-smi" else None)
    one = only(health.gpu_and_images(str(machine)), "nvidia-smi")
    assert one.state == state
    assert fix in one.fix


def test_a_gpu_without_an_image_is_told_what_to_build(machine, monkeypatch):
    put(select.image_dirs()[0], "sm_89.cubin")
    put(select.image_dirs()[0], "host.so")
    monkeypatch.setattr(gpu, "detect", lambda timeout_s: (NANO, ""))
    on_gpu, on_host = of(health.gpu_and_images(str(machine)), "images")
    assert (on_gpu.state, on_gpu.fix) == (PROBLEM, "edgegs kernels build --arch sm_53")
    assert "sm_89.cubin: for another GPU than this sm_53" in on_gpu.says
    assert on_host.state == OK


def test_with_a_gpu_image_the_hosts_is_not_needed(machine, monkeypatch):
    put(select.image_dirs()[0], "sm_53.ptx")
    monkeypatch.setattr(gpu, "detect", lambda timeout_s: (NANO, ""))
    assert [one.state for one in of(health.gpu_and_images(str(machine)), "images")] == [OK, WARNING]


def test_a_damaged_manifest_is_a_warning_with_its_repair(machine):
    (select.image_dirs()[0] / "manifest.json").write_text("{")
    first = of(health.gpu_and_images(str(machine)), "images")[0]
    assert (first.state, first.fix) == (WARNING, "edgegs kernels build")
    assert "manifest.json: cannot be read" in first.says


class Compiler:
    name, path, ptxas = "nvcc 13.0", "/opt/nvcc", "13.0.88"

    def __init__(self, *known):
        self.known = known

    def architectures(self):
        return list(self.known)


def test_each_compiler_says_for_which_gpus(monkeypatch):
    compilers = [Compiler("sm_75", "sm_89", "sm_121"), Compiler()]
    monkeypatch.setattr(health, "find_toolchains", lambda which, timeout_s: Toolchains(compilers, ["/x is broken"]))
    full, silent, broken = of(health.toolchains(), "toolchains")
    assert full.says == "nvcc 13.0 (/opt/nvcc), ptxas 13.0.88: sm_75 to sm_121; sm_53 no, sm_89 yes"
    assert "does not tell" in silent.says
    assert (broken.state, broken.says) == (WARNING, "/x is broken")


def test_no_compilers_at_all(monkeypatch):
    absent = Toolchains([], ["NVRTC not found: …", "nvcc not found: …"])
    monkeypatch.setattr(health, "find_toolchains", lambda which, timeout_s: absent)

    def none(timeout_s):
        raise DeviceError("no C++ compiler found")

    monkeypatch.setattr(health, "HostCompiler", none)
    monkeypatch.delenv("CXX", raising=False)
    gpus, host = health.toolchains()
    assert (gpus.state, host.state) == (OK, WARNING)
    assert host.fix == "sudo apt install g++"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (("", "the driver knows no GPU"), (None, "the driver knows no GPU")),
        (("[]", ""), (None, "the answer of the driver cannot be read")),
        (("no JSON", ""), (None, "the answer of the driver cannot be read")),
        (
            ('{"name": "X", "capability": [8, 9], "memory_bytes": 5, "cuda": "12.4"}', ""),
            (gpu.Gpu("X", (8, 9), 5, "12.4"), ""),
        ),
    ],
)
def test_what_the_driver_answers(monkeypatch, answer, expected):
    monkeypatch.setattr(gpu, "ask_python", lambda text, timeout_s: answer)
    assert gpu.detect() == expected


FAKE_PYCUDA = """
class Error(Exception): pass
class Device:
    @staticmethod
    def count(): return {count}
    def __init__(self, index): pass
    def name(self): return "Made up"
    def compute_capability(self): return (7, 2)
    def total_memory(self): return 8 << 30
def init():
    {init}
def get_driver_version(): return 11040
"""


@pytest.mark.parametrize(
    ("count", "init", "expected"),
    [
        (1, "pass", (gpu.Gpu("Made up", (7, 2), 8 << 30, "11.4"), "")),
        (0, "pass", (None, "the driver knows no GPU")),
        (1, "raise Error('cuInit failed')", (None, "the driver refuses: cuInit failed")),
    ],
)
def test_asking_pycuda(monkeypatch, tmp_path, count, init, expected):
    write(tmp_path / "pycuda/__init__.py", "")
    write(tmp_path / "pycuda/driver.py", FAKE_PYCUDA.format(count=count, init=init))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert gpu.detect(30) == expected
