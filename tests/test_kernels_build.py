"""Building kernels with NVRTC, the manifest, and refusing what does not fit."""

from __future__ import annotations

import json
import shutil

import pytest
from conftest import open_backend

from edgegs.backends import create
from edgegs.cli import main
from edgegs.errors import DeviceError
from edgegs.kernels.manifest import MANIFEST, read_manifest, source_hash
from edgegs.kernels.toolchains import parse_ptxas
from edgegs.kernels.variants import BASELINE, VARIANTS, variant


@pytest.fixture(scope="module")
def nvrtc_images(kernels, tmp_path_factory):
    """sm_53 and sm_89, built by the command that users type."""
    code = main(["kernels", "build", "--toolchain", "nvrtc", "--arch", "sm_53", "--arch", "sm_89"])
    assert code == 0
    return kernels


def test_nvrtc_builds_every_entry_for_both_gpus(nvrtc_images, capsys):
    capsys.readouterr()
    assert main(["kernels", "list", "--json"]) == 0
    images = json.loads(capsys.readouterr().out)["images"]
    gpu = {(image["arch"], image["kind"]): image for image in images if image["arch"].startswith("sm_")}
    assert set(gpu) == {("sm_53", "cubin"), ("sm_53", "ptx"), ("sm_89", "cubin"), ("sm_89", "ptx")}
    needed = {entry for v in VARIANTS.values() for entry in v.entries.values()}
    for (_, kind), image in gpu.items():
        assert "baseline" in image["variant"]
        assert image["compiler"].startswith("nvrtc 1")
        assert image["current"]
        if kind == "cubin":
            assert set(image["entries"]) >= needed
            for name, entry in image["entries"].items():
                assert 0 < entry["registers"] <= 128, name  # 256 threads of the Nano's 32,768 registers
                assert entry["shared_bytes"] <= 48 * 1024, name
                assert entry["spill_bytes"] == 0, name
            assert image["registers"] == max(entry["registers"] for entry in image["entries"].values())
            assert image["spills"] == 0


def test_ptx_names_every_entry_and_its_target(nvrtc_images):
    for arch in ("sm_53", "sm_89"):
        text = (nvrtc_images / (arch + ".ptx")).read_bytes().rstrip(b"\0").decode()
        assert f".target {arch}" in text
        for entry in BASELINE.entries.values():
            assert f".entry {entry}(" in text


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


def test_building_one_keeps_the_others(own_cache):
    assert main(["kernels", "build", "--arch", "host"]) == 0
    assert {image.arch for image in read_manifest(own_cache)} >= {"host", "host-check"}
    assert all(image.source_hash == source_hash() for image in read_manifest(own_cache))


def test_the_cache_that_cannot_be_written_is_named(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EDGEGS_CACHE", str(tmp_path / "file"))
    assert main(["kernels", "build", "--arch", "host"]) == 73
    assert str(tmp_path / "file") in capsys.readouterr().err


def test_no_compiler_is_said(tmp_path, monkeypatch, kernels):
    monkeypatch.setenv("CXX", str(tmp_path / "no-such-compiler"))
    monkeypatch.setenv("EDGEGS_CACHE", str(tmp_path))
    assert main(["kernels", "build", "--arch", "host"]) == 69


def test_ptxas_words_are_read():
    log = (
        "ptxas info    : Compiling entry function 'a' for 'sm_53'\nptxas info    : Function properties for a\n"
        "    8 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads\n"
        "ptxas info    : Used 40 registers, 10240 bytes smem, 712 bytes cmem[0]\n"
    )
    assert parse_ptxas(log) == {"a": {"registers": 40, "spill_bytes": 28, "shared_bytes": 10240}}


def test_variants_by_name():
    assert variant("auto") is BASELINE
    with pytest.raises(DeviceError, match="did you mean 'baseline'"):
        variant("basline")
