"""Building the real kernels, the host backend's library, and falling back where neither can be had."""

from __future__ import annotations

import json
import logging
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import open_backend

from edgegs.backends import create, severity
from edgegs.backends.host import HostBackend
from edgegs.cli import main
from edgegs.errors import AccessError, DeviceError, OutputError, UsageError
from edgegs.kernels import manifest
from edgegs.kernels.build import build
from edgegs.kernels.manifest import MANIFEST, Image, read_manifest, source_hash, store
from edgegs.kernels.variants import BASELINE, VARIANTS, drawable, variant

#: The two default ones, and the first whose launches are chained.
NVRTC_ARCHS = ("sm_53", "sm_89", "sm_90")


@pytest.fixture(scope="module")
def nvrtc_images(kernels, tmp_path_factory):
    """sm_53, sm_89 and sm_90, built by the command that users type."""
    code = main(["kernels", "build", "--toolchain", "nvrtc", *(f"--arch={arch}" for arch in NVRTC_ARCHS)])
    assert code == 0
    return kernels


def test_list_marks_the_library_that_this_machine_takes(nvrtc_images, monkeypatch, capsys):
    from edgegs.kernels import gpu

    monkeypatch.setattr(gpu, "detect", lambda: (None, "no driver"))
    capsys.readouterr()
    assert main(["kernels", "list", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    rows = {Path(row["path"]).name: row for row in document["images"]}
    assert rows["host.so"]["selected"]
    assert rows["host.so"]["why"] == "runs on this processor"
    assert rows["sm_53.cubin"]["selected"] is False
    assert "no driver" in rows["sm_53.cubin"]["why"]
    assert set(document["variants"]) == set(VARIANTS)
    assert document["gpu"] is None

    found = gpu.Gpu("made up", (5, 3), 4 << 30, "10.2")
    monkeypatch.setattr(gpu, "detect", lambda: (found, ""))
    assert main(["kernels", "list"]) == 0
    out = capsys.readouterr().out
    assert "* sm_53                cubin" in out
    assert "  sm_89                cubin" in out
    assert "for another GPU than this sm_53" in out
    assert "built for this GPU" in out
    assert "* host " in out


def test_clang_builds_the_same_pictures(kernels, tmp_path, monkeypatch):
    """The fast build, by the other compiler: every byte of every variant."""
    if shutil.which("clang++") is None:
        pytest.skip("no clang++: its build of the kernels is not tested")
    import numpy as np
    import scenes

    from edgegs.renderer import Renderer

    def pictures():
        for name in (one.name for one in drawable(VARIANTS.values(), tensor_cores=False)):
            with open_backend("host") as backend:
                renderer = Renderer(backend, scenes.cloud(700, seed=4), 97, 81, name)
                yield name, renderer.render(scenes.camera(97, 81)).image.copy()

    expected = dict(pictures())
    monkeypatch.setenv("CXX", "clang++")
    monkeypatch.setenv("EDGEGS_CACHE", str(tmp_path))
    (outcome,) = build(["host"])
    assert outcome.image is not None, outcome.reason
    assert "clang" in outcome.image.compiler
    for name, picture in pictures():
        np.testing.assert_array_equal(picture, expected[name], err_msg=name)


def test_nvrtc_builds_every_entry_for_each_gpu(nvrtc_images, capsys):
    capsys.readouterr()
    assert main(["kernels", "list", "--json"]) == 0
    images = json.loads(capsys.readouterr().out)["images"]
    gpu = {(image["arch"], image["kind"]): image for image in images if image["arch"].startswith("sm_")}
    assert set(gpu) == {(arch, kind) for arch in NVRTC_ARCHS for kind in ("cubin", "ptx")}
    for (arch, kind), image in gpu.items():
        drawn = drawable(VARIANTS.values(), tensor_cores=arch != "sm_53")
        assert image["variant"].split(", ") == [one.name for one in drawn]
        needed = {entry for one in drawn for entry in one.entries.values()}
        assert "baseline" in image["variant"]
        assert image["compiler"].startswith("nvrtc 1")
        assert image["current"]
        if kind == "cubin":
            assert set(image["entries"]) >= needed
            for name, entry in image["entries"].items():
                assert 0 < entry["registers"] <= 128, name  # 256 threads of the Nano's 32,768 registers
                assert entry["shared_bytes"] <= 48 * 1024, name
                assert entry["spill_bytes"] == 0 or arch == "sm_90", name  # a few words of what is seldom run
            assert image["registers"] == max(entry["registers"] for entry in image["entries"].values())
            assert image["spills"] == sum(entry["spill_bytes"] for entry in image["entries"].values())


def test_ptx_names_every_entry_and_its_target(nvrtc_images):
    for arch in NVRTC_ARCHS:
        text = (nvrtc_images / (arch + ".ptx")).read_bytes().rstrip(b"\0").decode()
        assert f".target {arch}" in text
        for entry in BASELINE.entries.values():
            assert f".entry {entry}(" in text


def test_chained_kernels_wait_for_the_launch_before_them_and_no_others(nvrtc_images):
    waiting = {}
    for arch in NVRTC_ARCHS:
        text = (nvrtc_images / (arch + ".ptx")).read_bytes().rstrip(b"\0").decode()
        entries = re.split(r"\.entry (\w+)\(", text)
        waiting[arch] = {name for name, body in zip(entries[1::2], entries[2::2]) if "griddepcontrol.wait" in body}
    assert waiting["sm_53"] == waiting["sm_89"] == set()
    assert {name for name in waiting["sm_90"] if not name.startswith("count_patch")} == {
        entry for v in VARIANTS.values() if v.key == "bins" for entry in v.entries.values()
    }


def test_an_architecture_that_the_compiler_does_not_know_is_a_row_with_its_reason(kernels, capsys):
    assert main(["kernels", "build", "--toolchain", "nvrtc", "--arch", "sm_10"]) == 69
    out = capsys.readouterr().out
    assert "not built" in out
    assert "cannot compile for sm_10" in out


def test_a_wrong_architecture_is_a_usage_error(kernels, capsys):
    assert main(["kernels", "build", "--arch", "maxwell"]) == 2
    assert "expected sm_NN" in capsys.readouterr().err


@pytest.fixture
def own_cache(kernels, tmp_path, monkeypatch):
    """A copy of the built host kernels that a test may spoil."""
    folder = tmp_path / "kernels"
    folder.mkdir()
    for name in (MANIFEST, "host.so", "host-check.so"):
        shutil.copy(str(kernels / name), str(folder / name))
    monkeypatch.setenv("EDGEGS_CACHE", str(tmp_path))
    return folder


def change_manifest(folder, **fields):
    document = json.loads((folder / MANIFEST).read_text())
    for image in document["images"]:
        image.update(fields)
    (folder / MANIFEST).write_text(json.dumps(document))


def refused():
    with pytest.raises(DeviceError) as caught:
        open_backend("host")
    assert "edgegs kernels build" in str(caught.value)
    return str(caught.value)


def test_images_of_another_source_are_refused(own_cache):
    change_manifest(own_cache, source_hash="0" * 64)
    assert "another version of the source" in refused()


def test_damaged_images_are_refused(own_cache):
    with (own_cache / "host.so").open("r+b") as file:
        file.truncate(1000)
    assert "damaged" in refused()


def test_missing_images_are_refused(own_cache):
    (own_cache / "host.so").unlink()
    assert "is gone" in refused()


def test_images_for_another_processor_are_refused(own_cache):
    change_manifest(own_cache, cpu_flags=["avx4096"])
    assert "avx4096" in refused()


def test_damaged_manifests_are_refused_and_repaired_by_building(own_cache):
    (own_cache / MANIFEST).write_text("{")
    assert "cannot be read" in refused()
    assert main(["kernels", "build", "--arch", "host"]) == 0
    open_backend("host").close()


def test_nothing_built_falls_back_to_the_reference_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("EDGEGS_CACHE", str(tmp_path / "empty"))
    assert "not built" in refused()
    backend, why = create("auto")
    assert backend.name == "reference"
    assert "not built" in why
    assert "edgegs kernels build" in why


def test_building_one_keeps_the_others(own_cache, monkeypatch):
    monkeypatch.setenv("CXX", str(fake_compiler(own_cache.parent)))
    assert main(["kernels", "build", "--arch", "host"]) == 0
    assert {image.arch for image in read_manifest(own_cache)} >= {"host", "host-check"}
    assert all(image.source_hash == source_hash() for image in read_manifest(own_cache))


def test_the_cache_that_cannot_be_written_is_named(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EDGEGS_CACHE", str(tmp_path / "file"))
    assert main(["kernels", "build", "--arch", "host"]) == 73
    assert str(tmp_path / "file") in capsys.readouterr().err


def test_a_cache_without_permission_is_named_and_auto_falls_back(monkeypatch, capsys):
    """/sys refuses root, too."""
    monkeypatch.setenv("EDGEGS_CACHE", "/sys/edgegs-cache")
    assert main(["kernels", "build", "--arch", "host"]) == 77
    assert "/sys/edgegs-cache/kernels: permission denied; set EDGEGS_CACHE" in capsys.readouterr().err
    with pytest.raises(AccessError, match="set EDGEGS_CACHE"):
        create("host", may_compile=True)
    backend, why = create("auto", may_compile=True)
    assert backend.name == "reference"
    assert "/sys/edgegs-cache" in why
    assert severity("auto", backend) == logging.WARNING
    assert severity("reference", backend) == logging.INFO


def no_home(monkeypatch):
    """A user whom the system does not know, in an environment without HOME."""
    import pwd

    for name in ("EDGEGS_CACHE", "CACHE_DIRECTORY", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)

    def unknown(uid):
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr(pwd, "getpwuid", unknown)


def test_without_a_home_folder_reading_goes_on_and_building_says_what_to_set(monkeypatch, capsys):
    no_home(monkeypatch)
    assert "not built" in refused()
    assert main(["kernels", "list"]) == 0
    assert main(["kernels", "build", "--arch", "host"]) == 77
    assert "set EDGEGS_CACHE" in capsys.readouterr().err
    backend, why = create("auto", may_compile=True)
    assert backend.name == "reference"
    assert "set EDGEGS_CACHE" in why


def full(*_, **__):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("where", ["scratch", "image"])
def test_a_full_disk_is_named_and_leaves_what_was_there(own_cache, monkeypatch, where, capsys):
    before = {path.name: path.read_bytes() for path in own_cache.iterdir()}
    monkeypatch.setenv("CXX", str(fake_compiler(own_cache.parent)))
    if where == "scratch":
        monkeypatch.setattr("edgegs.kernels.build.tempfile.TemporaryDirectory", full)
    else:
        monkeypatch.setattr(manifest.os, "fchmod", full)  # the image is written, and then the disk is full
    assert main(["kernels", "build", "--arch", "host"]) == 73
    err = capsys.readouterr().err
    assert f"{own_cache}: cannot be written (No space left on device)" in err
    assert {path.name: path.read_bytes() for path in own_cache.iterdir()} == before


def fake_compiler(folder):
    path = folder / "fake-c++"
    path.write_text('#!/bin/sh\nwhile [ "$1" ]; do [ "$1" = -o ] && echo fake > "$2"; shift; done\necho fake 1.0\n')
    path.chmod(0o755)
    return path


def test_a_compiler_that_fails_lets_auto_fall_back_with_its_words(tmp_path, monkeypatch):
    monkeypatch.setenv("EDGEGS_CACHE", str(tmp_path))
    monkeypatch.setenv("CXX", str(tmp_path / "none"))
    backend, why = create("auto", may_compile=True)
    assert backend.name == "reference"
    assert str(tmp_path / "none") in why


def test_no_compiler_is_said(tmp_path, monkeypatch, kernels):
    monkeypatch.setenv("CXX", str(tmp_path / "no-such-compiler"))
    monkeypatch.setenv("EDGEGS_CACHE", str(tmp_path))
    assert main(["kernels", "build", "--arch", "host"]) == 69


def test_variants_by_name():
    assert variant("auto") in VARIANTS.values()
    assert variant("baseline") is BASELINE
    with pytest.raises(DeviceError, match="did you mean 'baseline'"):
        variant("basline")


@pytest.mark.parametrize("threads", [-1, 1025, 10**9])
def test_absurd_numbers_of_threads_are_refused(kernels, threads):
    with pytest.raises(UsageError, match="expected 0"):
        HostBackend(threads=threads)


def test_blocks_are_a_few_a_thread_but_not_without_limit(kernels):
    for threads, blocks in ((1, 8), (2, 16), (70, 512)):
        with HostBackend(threads=threads) as backend:
            assert backend.n_blocks == blocks


def test_threads_that_cannot_be_started_are_a_device_error(tmp_path, monkeypatch):
    source = tmp_path / "none.c"
    functions = ("destroy", "launch", "kernel")
    source.write_text(
        "void *edgegs_host_create(int n) { return (void *)(long)(n < 0); }"
        + "".join(f"void edgegs_host_{name}(void) {{}}" for name in functions)
    )
    library = tmp_path / "none.so"
    subprocess.run(["g++", "-x", "c", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    monkeypatch.setenv("EDGEGS_CACHE", str(tmp_path))
    (tmp_path / "kernels").mkdir()
    image = Image("host.so", "host", "so", [], "fake", [], source_hash(), "")
    store(tmp_path / "kernels", image, library.read_bytes())
    with pytest.raises(DeviceError, match="1000 threads cannot be started"):
        HostBackend(threads=1000)
    backend, why = create("auto", threads=1000)
    assert backend.name == "reference"
    assert "1000 threads" in why


@pytest.mark.parametrize("error", [RuntimeError("a compiler gone mad"), AccessError("no"), OutputError("full")])
def test_installing_survives_whatever_happens_to_the_kernels(monkeypatch, tmp_path, capsys, error):
    setuptools = pytest.importorskip("setuptools")
    from setuptools.command.build_py import build_py

    import edgegs.kernels.build

    given = {}
    monkeypatch.setattr(setuptools, "setup", lambda **keywords: given.update(keywords))
    monkeypatch.setattr(build_py, "run", lambda self: None)
    monkeypatch.setattr(sys, "path", list(sys.path))
    runpy.run_path(str(Path(__file__).resolve().parent.parent / "setup.py"))
    command = given["cmdclass"]["build_py"](given["distclass"]())
    command.editable_mode, command.build_lib = False, str(tmp_path)

    def fail(**_):
        raise error

    monkeypatch.setattr(edgegs.kernels.build, "build", fail)
    command.run()
    out = capsys.readouterr().out
    assert str(error) in out
    assert "edgegs kernels build" in out
