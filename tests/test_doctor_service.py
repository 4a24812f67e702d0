"""The doctor's look at the service, by a systemctl of the tests' own; and at GPU and images."""

from __future__ import annotations

import os
import shutil

import pytest
from fake_compilers import script
from machines import World, desktop, nano, only, recorded_nano, run_cases

from edgegs.doctor.service import EXITS, service, unit
from edgegs.errors import DeviceError
from edgegs.findings import OK, PROBLEM
from edgegs.kernels import gpu, health, select
from edgegs.kernels.manifest import Image, source_hash, store
from edgegs.kernels.toolchains import Toolchains


@pytest.fixture
def world(tmp_path, monkeypatch):
    return World(tmp_path, monkeypatch)


# ---- one case of each finding ------------------------------------------------------------------------


def _unit(nodes=False, **properties):
    def case(world):
        recorded_nano(world.root)
        world.unit(**{"Environment": "OPENBLAS_CORETYPE=ARMV8", **properties})
        for node in ("nvmap", "nvhost-ctrl-gpu", "nvhost-gpu"):
            path = world.root / "dev" / node
            if nodes:
                os.chmod(str(path), 0o660)
            else:
                path.unlink()
        return service(world.machine)

    return case


def _gpu(reason, prepare=None, board=nano):
    def case(world):
        board(world.root)
        world.patch.setattr(gpu, "detect", lambda timeout_s: (None, reason))
        world.patch.setattr(shutil, "which", lambda name, **_: None)
        if prepare:
            prepare(world)
        return health.gpu_and_images(str(world.root))

    return case


def _closed(world):
    world.patch.setattr(health.os, "access", lambda path, mode: not path.endswith("nvmap"))


def _container(world):
    for node in ("nvmap", "nvhost-ctrl-gpu", "nvhost-gpu"):
        (world.root / "dev" / node).unlink()
    world.write(".dockerenv")


def _stub(world):
    world.patch.setenv("LD_LIBRARY_PATH", "/usr/local/cuda/lib64:/usr/local/cuda/lib64/stubs")


def _smi(words):
    def case(world):
        desktop(world.root)
        path = script(world.tmp_path / "nvidia-smi", f"#!/bin/sh\n{words}; exit 9\n")
        world.patch.setattr(gpu, "detect", lambda timeout_s: (None, "the driver refuses"))
        world.patch.setattr(shutil, "which", lambda name, **_: str(path) if name == "nvidia-smi" else None)
        return health.gpu_and_images(str(world.root))

    return case


def _images(*images, device=True, manifest=None):
    """Args: images: (file, compiler, whether of this source)."""

    def case(world):
        own = world.tmp_path / "images"
        own.mkdir()
        world.patch.setattr(select, "image_dirs", lambda: [own])
        found = (gpu.Gpu("NVIDIA Tegra X1", (5, 3), 4 << 30, "10.2"), "") if device else (None, "no GPU")
        world.patch.setattr(gpu, "detect", lambda timeout_s: found)
        for name, compiler, current in images:
            arch, _, kind = name.partition(".")
            made = Image(name, arch, kind, [], compiler, [], source_hash() if current else "0" * 64, "")
            if current:
                store(own, made, b"image")
                continue
            with world.patch.context() as patch:  # stored by an edgegs of another source
                patch.setattr("edgegs.kernels.manifest.source_hash", lambda: "0" * 64)
                store(own, made, b"image")
        if manifest is not None:
            (own / "manifest.json").write_text(manifest)
        return health.gpu_and_images(str(world.root))

    return case


def _toolchains(found, missing, compiler=True):
    def case(world):
        world.patch.setattr(health, "find_toolchains", lambda which, timeout_s: Toolchains(found, missing))

        def none(timeout_s):
            raise DeviceError("no C++ compiler found")

        if not compiler:
            world.patch.setattr(health, "HostCompiler", none)
        return health.toolchains()

    return case


_FAILED = {"ActiveState": "failed", "SubState": "failed", "Result": "exit-code", "ExecMainCode": "1"}
_REFUSED = "the driver refuses: cuInit failed: unknown error"
_NO_PYCUDA = "pycuda cannot be imported (No module named 'pycuda')"

CASES = {
    "service-not-installed": _unit(LoadState="not-found", ActiveState="inactive"),
    "service-masked": _unit(LoadState="masked"),
    "service-bad-unit": _unit(LoadState="bad-setting", FragmentPath="/etc/systemd/system/edgegs.service"),
    "service-reload": _unit(NeedDaemonReload="yes"),
    "service-disabled": _unit(UnitFileState="disabled"),
    "service-stopped": _unit(ActiveState="inactive", SubState="dead"),
    "service-failed": _unit(**_FAILED, ExecMainStatus="78"),
    "service-gave-up": _unit(**{**_FAILED, "Result": "start-limit-hit"}, ExecMainStatus="69"),
    "service-restarts": _unit(NRestarts="41", ExecMainCode="1", ExecMainStatus="69"),
    "service-watchdog": _unit(**{**_FAILED, "Result": "watchdog", "ExecMainCode": "3"}, ExecMainStatus="6"),
    "service-timeout": _unit(**{**_FAILED, "Result": "timeout"}),
    "service-killed": _unit(**{**_FAILED, "Result": "oom-kill", "ExecMainCode": "2"}, ExecMainStatus="9"),
    "service-user-missing": _unit(User="edgegs-that-nobody-made"),
    "service-group-missing": _unit(User="edgegs", SupplementaryGroups="video jtop"),
    "service-groups": _unit(nodes=True, User="edgegs", SupplementaryGroups="video"),
    "service-hides-gpu": _unit(nodes=True, DeviceAllow="/dev/nvmap rw\n/dev/nvhost-gpu rw", DevicePolicy="closed"),
    "service-write-execute": _unit(nodes=True, MemoryDenyWriteExecute="yes"),
    "service-coretype": _unit(Environment="PATH=/usr/bin"),
    "service-cuda-cache": _unit(nodes=True, ProtectHome="yes"),
    "pycuda-missing": _gpu(_NO_PYCUDA),
    "pycuda-broken": _gpu("pycuda cannot be imported (undefined symbol: cuDevicePrimaryCtxReset)"),
    "libcuda-missing": _gpu("pycuda cannot be imported (libcuda.so.1: cannot open shared object file)"),
    "stub-library": _gpu(_REFUSED, _stub),
    "gpu-permission": _gpu(_REFUSED, _closed),
    "gpu-refused": _gpu(_REFUSED),
    "gpu-not-in-container": _gpu(_REFUSED, _container),
    "uvm-missing": _gpu(_REFUSED, board=desktop),
    "driver-missing": _gpu(_NO_PYCUDA, board=lambda root: desktop(root, driver="")),
    "driver-mismatch": _smi("echo 'Failed to initialize NVML: Driver/library version mismatch'"),
    "nvidia-smi-fails": _smi("echo 'No devices were found'"),
    "images-unreadable": _images(manifest="{"),
    "gpu-image-missing": _images(("host.so", "g++", True)),
    "gpu-image-stale": _images(("sm_53.cubin", "nvcc 10.2", False)),
    "image-newer-than-driver": _images(("sm_53.cubin", "nvcc 11.8", True)),
    "host-image-missing": _images(device=False),
    "host-image-stale": _images(("host.so", "g++ 7.5", False), device=False),
    "toolchain-missing": _toolchains([], ["nvcc not found: …"]),
    "toolchain-broken": _toolchains([], ["/usr/bin/nvcc --version fails: exit status 1"]),
    "ptxas-mixed": _toolchains([], ["nvcc 11.8 (/usr/bin/nvcc) has no ptxas of its release; ptxas is 13.0.88"]),
    "compiler-missing": _toolchains([], [], compiler=False),
}


@pytest.mark.parametrize("code", CASES)
def test_each_finding(code, tmp_path, monkeypatch):
    run_cases(CASES, code, tmp_path, monkeypatch)


# ---- the service -------------------------------------------------------------------------------------


def test_a_service_that_is_well(world):
    recorded_nano(world.root)
    for node in ("nvmap", "nvhost-ctrl-gpu", "nvhost-gpu"):
        (world.root / "dev" / node).chmod(0o666)
    world.unit(
        User="edgegs",
        SupplementaryGroups="video",
        Environment="OPENBLAS_CORETYPE=ARMV8 CUDA_CACHE_PATH=/var/cache/edgegs/nv",
        ProtectHome="yes",
        DevicePolicy="closed",
        DeviceAllow="char-nvhost* rw\n/dev/nvmap rw",
    )
    (one,) = service(world.machine)
    assert (one.state, one.says) == (OK, "edgegs.service is active (running)")


@pytest.mark.parametrize("status", [1, 2, 65, 66, 69, 73, 77, 78, 203, 216, 217, 226, 228])
def test_each_exit_status_says_what_it_means(world, status):
    recorded_nano(world.root)
    world.unit(**_FAILED, ExecMainStatus=str(status), Environment="OPENBLAS_CORETYPE=ARMV8")
    one = next(one for one in service(world.machine) if one.code == "service-failed")
    assert one.state == PROBLEM
    assert f"exit status {status}, {EXITS[status][0]}" in one.says
    assert "{" not in one.fix
    assert one.fix


@pytest.mark.parametrize(("number", "name"), [("4", "SIGILL"), ("31", "SIGSYS"), ("11", "SIGSEGV"), ("99", "99")])
def test_each_signal(world, number, name):
    world.unit(**{**_FAILED, "Result": "core-dump", "ExecMainCode": "3"}, ExecMainStatus=number)
    assert f"ended by {name}" in service(world.machine)[0].says


@pytest.mark.parametrize(
    "words", ["echo 'System has not been booted with systemd as init system'; exit 1", "exit 1", "exec sleep 60"]
)
def test_without_systemd(world, words, monkeypatch):
    monkeypatch.setattr("edgegs.doctor.machine.PROGRAM_S", 0.2)
    world.environ["PATH"] += ":/usr/bin:/bin"
    world.program("systemctl", words + "\n")
    here = world.machine
    monkeypatch.setattr(here, "run", lambda argv, timeout_s=0.3: type(here).run(here, argv, timeout_s))
    (one,) = service(here)
    assert one.state == OK
    assert "systemd does not run here" in one.says


def test_what_is_no_property_does_no_harm(world):
    text = "LoadState=loaded\\nNRestarts=many\\nExecMainStatus=\\nEnvironment=\"open\\n\\377\\n"
    world.program("systemctl", f"printf '{text}'")
    assert all(one.says for one in service(world.machine))
    assert unit(world.machine).environment(world.machine) == {}


def test_the_environment_of_files_counts(world):
    recorded_nano(world.root)
    for node in ("nvmap", "nvhost-ctrl-gpu", "nvhost-gpu"):
        (world.root / "dev" / node).unlink()
    text = "# the board's\nOPENBLAS_CORETYPE=ARMV8\nLD_PRELOAD='/usr/lib/libgomp.so.1'\n"
    world.write("etc/edgegs/environment", text)
    files = "/etc/edgegs/environment (ignore_errors=yes)\n/etc/edgegs/more (ignore_errors=no)"
    world.unit(Environment="DISPLAY=:0", EnvironmentFiles=files)
    assert [one.code for one in service(world.machine)] == [""]
    assert unit(world.machine).environment(world.machine)["LD_PRELOAD"] == "/usr/lib/libgomp.so.1"
    (world.root / "etc/edgegs/environment").unlink()
    assert [one.code for one in service(world.machine)] == ["", "service-coretype"]


def test_the_units_configuration(world):
    world.unit(ExecStart="{ path=/x ; argv[]=/x run --set a=b /srv/kiosk.yml ; ignore_errors=no ; }")
    assert unit(world.machine).config == "/srv/kiosk.yml"
    world.unit(ExecStart="")
    assert unit(world.machine).config == "/etc/edgegs/edgegs.yaml"


def test_strict_protection_names_where_the_service_may_write(world):
    world.unit(ProtectSystem="strict", StateDirectory="edgegs", ReadWritePaths="/data -/mnt/usb", PrivateTmp="yes")
    its = unit(world.machine)
    for path in ("/var/lib/edgegs/runs", "/data/out", "/mnt/usb", "/tmp/x"):
        assert its.may_write(path), path
    for path in ("/var/lib/other", "/database", "/srv", "/"):
        assert not its.may_write(path), path


# ---- the GPU -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "compiler", "knows", "newer"),
    [
        ("sm_53.cubin", "nvcc 10.2", "10.2", False),
        ("sm_53.cubin", "nvcc 11.8", "10.2", True),
        ("sm_53.cubin", "nvrtc 12.9", "12.2", False),  # a cubin runs on any driver of its major release
        ("sm_53.ptx", "nvrtc 12.9", "12.2", True),
        ("sm_53.ptx", "nvcc 11.8", "12.2", False),
        ("sm_53.cubin", "a compiler", "12.2", False),
    ],
)
def test_an_image_that_the_driver_may_not_know(file, compiler, knows, newer):
    made = Image(file, "sm_53", file.partition(".")[2], [], compiler, [], "", "")
    assert bool(health._newer_than(gpu.Gpu("X", (5, 3), 1, knows), made)) == newer


def test_a_container_without_the_gpu_is_told_once(world):
    found = _gpu(_REFUSED, _container)(world)
    assert only(found, "gpu").code == "gpu-not-in-container"
