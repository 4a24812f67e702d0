"""The compilers: finding them, what each can do, and the ways in which one can fail, with stand-ins for releases."""

from __future__ import annotations

import os
import shutil
import time

import pytest
from fake_compilers import NVCC_10_2, NVCC_11_8, NVCC_13_0, fake_nvcc, fake_nvrtc, fake_ptxas, script

from edgegs.cli import main
from edgegs.errors import DeviceError, UsageError
from edgegs.kernels import nvcc, nvrtc, toolchains
from edgegs.kernels.build import build, table
from edgegs.kernels.manifest import read_manifest
from edgegs.kernels.toolchains import HostCompiler, by_version, find_toolchains, is_tegra, parse_ptxas


@pytest.fixture
def bare(tmp_path, monkeypatch):
    """A machine with no GPU compiler at all, and an empty cache; returns a folder for stand-ins."""
    for name in ("nvcc", "ptxas", "toolkits"):
        (tmp_path / name).mkdir()
    path = [folder for folder in os.environ["PATH"].split(os.pathsep) if not os.path.exists(folder + "/nvcc")]
    for tool in ("sh", "cat", "g++", "sleep"):  # the system's nvcc may lie beside these
        (tmp_path / "nvcc" / tool).symlink_to(shutil.which(tool))
    monkeypatch.setenv("PATH", os.pathsep.join([str(tmp_path / "nvcc"), *path]))
    pattern = str(tmp_path / "toolkits" / "cuda-*" / "bin" / "nvcc")
    monkeypatch.setattr(nvcc.find_nvcc, "__defaults__", (nvcc.PROBE_TIMEOUT_S, (pattern,)))
    pattern = str(tmp_path / "toolkits" / "cuda-*" / "lib64" / "libnvrtc.so*")
    monkeypatch.setattr(nvrtc.find_nvrtc, "__defaults__", ((pattern,),))
    monkeypatch.setattr(nvrtc, "_wheel_folders", list)
    monkeypatch.setattr(toolchains, "is_tegra", lambda: False)
    monkeypatch.setenv("EDGEGS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "toolkits"


def built(outcomes):
    return {(o.arch, o.kind): o.image.compiler if o.image else o.reason for o in outcomes}


def test_the_boards_nvcc_builds_its_own_gpu_and_says_why_not_the_other(bare):
    fake_nvcc(bare / "cuda-10.2", "10.2", NVCC_10_2, can_list=False)
    rows = built(build(["sm_53", "sm_89"], "nvcc"))
    assert rows["sm_53", "cubin"] == rows["sm_53", "ptx"] == "nvcc 10.2"
    assert rows["sm_89", "cubin"] == rows["sm_89", "ptx"]
    assert rows["sm_89", "ptx"] == "nvcc 10.2 cannot compile for sm_89 (it knows sm_30 to sm_75)"


def test_nvcc_13_says_that_it_has_left_the_nano_behind(bare):
    fake_nvcc(bare / "cuda-13.0", "13.0", NVCC_13_0)
    rows = built(build(["sm_53", "sm_89"], "nvcc"))
    assert rows["sm_53", "cubin"] == "nvcc 13.0 cannot compile for sm_53 (it knows sm_75 to sm_121)"
    assert rows["sm_89", "cubin"] == "nvcc 13.0"


def test_each_architecture_takes_the_first_toolkit_that_can(bare):
    for release, archs in (("9.2", NVCC_10_2), ("11.8", NVCC_11_8), ("13.0", NVCC_13_0)):
        fake_nvcc(bare / ("cuda-" + release), release, archs)
    rows = built(build(["sm_53", "sm_89", "sm_121", "sm_99"], "nvcc"))
    assert [rows[arch, "cubin"] for arch in ("sm_53", "sm_89", "sm_121")] == ["nvcc 11.8", "nvcc 13.0", "nvcc 13.0"]
    for release in ("9.2", "11.8", "13.0"):
        assert f"nvcc {release} cannot compile for sm_99" in rows["sm_99", "ptx"]


def test_an_image_says_by_what_it_was_made(bare):
    fake_nvcc(bare / "cuda-11.8", "11.8", NVCC_11_8)
    outcomes = build(["sm_53"], "nvcc")
    assert "built by nvcc 11.8 (ptxas 11.8.89)" in table(outcomes)
    images = {image.kind: image for image in read_manifest(bare.parent / "cache" / "kernels")}
    cubin, ptx = images["cubin"], images["ptx"]
    assert (cubin.compiler, cubin.ptxas, ptx.ptxas) == ("nvcc 11.8", "11.8.89", "")
    assert cubin.entries == {"k": {"registers": 31, "spill_bytes": 12, "shared_bytes": 2048}}
    assert ptx.entries == {}
    assert "-arch=sm_53" in cubin.flags
    assert "-std=c++14" in cubin.flags
    assert "-arch=compute_53" in ptx.flags
    content = (bare.parent / "cache" / "kernels" / "sm_53.ptx").read_bytes()
    assert content.startswith(b"ptx compute_53 ")
    assert content.endswith(b"\0")  # where the driver stops reading


def test_each_nvcc_runs_with_the_ptxas_of_its_own_release(bare, tmp_path):
    fake_ptxas(tmp_path / "nvcc", "13.0")  # first on PATH
    own = fake_nvcc(bare / "cuda-11.8", "11.8", NVCC_11_8)
    build(["sm_53"], "nvcc")
    content = (tmp_path / "cache" / "kernels" / "sm_53.cubin").read_text()
    assert content.split()[2] == str(own.parent / "ptxas")


def test_a_ptxas_that_lies_elsewhere_is_found_by_its_release(bare, tmp_path, monkeypatch):
    """Debian keeps nvcc and ptxas in different folders, and another toolkit may stand before both."""
    fake_ptxas(tmp_path / "nvcc", "13.0")
    fake_nvcc(bare / "cuda-11.8", "11.8", NVCC_11_8, with_ptxas=False)
    fake_ptxas(tmp_path / "late", "11.8")
    monkeypatch.setenv("PATH", os.environ["PATH"] + os.pathsep + str(tmp_path / "late"))
    assert built(build(["sm_53"], "nvcc"))["sm_53", "cubin"] == "nvcc 11.8"
    content = (tmp_path / "cache" / "kernels" / "sm_53.cubin").read_text()
    assert content.split()[2] == str(tmp_path / "late" / "ptxas")


def test_an_nvcc_with_only_another_releases_ptxas_is_not_used(bare, tmp_path):
    fake_ptxas(tmp_path / "nvcc", "13.0")
    fake_nvcc(bare / "cuda-10.2", "10.2", NVCC_10_2, with_ptxas=False)
    reason = built(build(["sm_53"], "nvcc"))["sm_53", "cubin"]
    assert "has no ptxas of its release" in reason
    assert "is 13.0.89" in reason


def test_a_script_on_path_and_the_program_that_it_calls_are_one(bare, tmp_path):
    real = fake_nvcc(bare / "cuda-13.0", "13.0", NVCC_13_0)
    script(tmp_path / "nvcc" / "nvcc", f'#!/bin/sh\nexec {real} "$@"\n')
    found, missing = find_toolchains("nvcc")
    assert [compiler.name for compiler in found] == ["nvcc 13.0"]
    assert found[0].path == str(tmp_path / "nvcc" / "nvcc")
    assert missing == []


def test_a_source_that_no_compiler_takes_shows_the_words_of_each(bare, capsys):
    for release in ("11.8", "12.9"):
        fail = f"echo 'edgegs.cu(7): error: {release} is confused' >&2; exit 2"
        fake_nvcc(bare / ("cuda-" + release), release, NVCC_11_8, before=fail)
    assert main(["kernels", "build", "--toolchain", "nvcc", "--arch", "sm_53"]) == 69
    out, err = capsys.readouterr()
    assert "not built: nvcc 12.9 cannot compile edgegs.cu for sm_53; nvcc 11.8 cannot" in out
    assert "error: 11.8 is confused" in err
    assert "error: 12.9 is confused" in err


@pytest.mark.parametrize(
    ("before", "words"),
    [
        ("exit 0", "wrote no file"),
        (': > "$output"; exit 0', "wrote no file"),
        ("kill -9 $$", "killed by signal 9"),
        ("exit 3", "exit status 3"),
        ("printf '\\377\\n' >&2; exit 1", "\ufffd"),
        ("echo 'error: -- unsupported GNU version! gcc versions later than 8' >&2; exit 1", "-ccbin"),
    ],
)
def test_every_way_in_which_nvcc_fails_is_a_reason(bare, before, words):
    fake_nvcc(bare / "cuda-11.8", "11.8", NVCC_11_8, before=before)
    reason = built(build(["sm_53"], "nvcc"))["sm_53", "cubin"]
    assert reason.startswith("nvcc 11.8 cannot compile edgegs.cu for sm_53:\n")
    assert words in reason


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("#!/bin/sh\necho hello\n", "does not say which release it is"),
        ("#!/bin/sh\necho broken >&2; exit 1\n", "broken"),
        ("#!/bin/sh\nexec sleep 30\n", "does not answer within 0.2 s"),
        ("\0not a program", "does not run"),
    ],
)
def test_what_is_no_nvcc_is_a_reason(bare, text, words):
    script(bare / "cuda-1.0" / "bin" / "nvcc", text)
    found, missing = find_toolchains("nvcc", timeout_s=0.2)
    assert found == []
    assert len(missing) == 1
    assert words in missing[0]


def test_an_nvcc_that_cannot_tell_what_it_knows_is_tried(bare):
    home = fake_nvcc(bare / "cuda-10.2", "10.2", NVCC_10_2, can_list=False).parent
    (home / "help.txt").write_text("no such list")
    rows = built(build(["sm_53", "sm_89"], "nvcc"))
    assert rows["sm_53", "cubin"] == "nvcc 10.2"
    assert "Unsupported gpu architecture 'sm_89'" in rows["sm_89", "cubin"]


def test_no_room_for_scratch_files_is_a_reason(bare, monkeypatch):
    fake_nvcc(bare / "cuda-11.8", "11.8", NVCC_11_8)

    def full(**_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(nvcc.tempfile, "TemporaryDirectory", full)
    assert "No space left on device" in built(build(["sm_53"], "nvcc"))["sm_53", "cubin"]


def test_nothing_found_says_what_to_install(bare):
    reason = built(build(["sm_53"], "auto"))["sm_53", "cubin"]
    assert "nvidia-cuda-nvrtc" in reason
    assert "nvcc not found" in reason
    assert "nvcc" not in built(build(["sm_53"], "nvrtc"))["sm_53", "cubin"]


def test_an_old_nvrtc_gives_ptx_for_what_it_knows(bare):
    """NVRTC 10.2, as on JetPack 4.6: no nvrtcGetCUBIN, no nvrtcGetNumSupportedArchs."""
    fake_nvrtc(bare / "cuda-10.2" / "lib64" / "libnvrtc.so.10.2", 10, 2)
    rows = built(build(["sm_53", "sm_89"], "nvrtc"))
    assert rows["sm_53", "cubin"] == "nvrtc 10.2 makes PTX only (11.1 is the first that makes cubins)"
    assert rows["sm_53", "ptx"] == "nvrtc 10.2"
    assert "nvrtc 10.2 refuses edgegs.cu for sm_89" in rows["sm_89", "ptx"]
    assert "bad architecture" in rows["sm_89", "ptx"]


def test_auto_fills_in_what_an_old_nvrtc_cannot_do(bare):
    fake_nvrtc(bare / "cuda-10.2" / "lib64" / "libnvrtc.so.10.2", 10, 2)
    fake_nvcc(bare / "cuda-10.2", "10.2", NVCC_10_2, can_list=False)
    rows = built(build(["sm_53", "sm_89"]))
    assert rows["sm_53", "cubin"] == "nvcc 10.2"
    assert rows["sm_53", "ptx"] == "nvrtc 10.2"
    assert "nvrtc 10.2" in rows["sm_89", "ptx"]
    assert "nvcc 10.2 cannot compile for sm_89" in rows["sm_89", "ptx"]


def test_a_board_asks_its_own_nvcc_first(bare, monkeypatch):
    fake_nvrtc(bare / "cuda-10.2" / "lib64" / "libnvrtc.so.10.2", 10, 2)
    fake_nvcc(bare / "cuda-10.2", "10.2", NVCC_10_2)
    monkeypatch.setattr(toolchains, "is_tegra", lambda: True)
    assert built(build(["sm_53"]))["sm_53", "ptx"] == "nvcc 10.2"


@pytest.mark.parametrize(("count", "known"), [(0, []), (3, ["sm_58", "sm_59", "sm_60"])])
def test_a_list_of_architectures_may_be_empty(bare, count, known):
    fake_nvrtc(bare / "cuda-11.2" / "lib64" / "libnvrtc.so.11.2", 11, 2, f"-DARCHS={count}")
    (compiler,) = find_toolchains("nvrtc").found
    assert compiler.architectures() == known
    if known:
        assert built(build(["sm_53"], "nvrtc"))["sm_53", "ptx"].endswith("(it knows sm_58 to sm_60)")


def test_what_is_no_nvrtc_is_passed_over_with_a_reason(bare):
    lib = bare / "cuda-12.0" / "lib64"
    fake_nvrtc(lib / "libnvrtc.so.1", 12, 0, "-DnvrtcVersion=other")
    (lib / "libnvrtc.so.2").write_text("not a library")
    (lib / "libnvrtc-builtins.so.12.0").write_text("never looked at")
    found, missing = find_toolchains("nvrtc")
    assert found == []
    assert len(missing) == 2
    assert all("cannot be loaded as NVRTC" in reason for reason in missing)


def test_newer_toolkits_come_first_by_number(bare):
    for release in ("9.2", "12.9", "12.10"):
        major, minor = (int(part) for part in release.split("."))
        library = bare / ("cuda-" + release) / "lib64" / "libnvrtc.so"
        fake_nvrtc(library.with_name("libnvrtc.so." + release), major, minor)
        library.symlink_to(library.with_name("libnvrtc.so." + release))
    assert [one.name for one in find_toolchains("nvrtc").found] == ["nvrtc 12.10", "nvrtc 12.9", "nvrtc 9.2"]
    paths = ["/cuda-9.2/bin", "/cuda-12.9/bin", "/cuda-12.10/bin", "/cuda/bin"]
    assert by_version(paths) == ["/cuda-12.10/bin", "/cuda-12.9/bin", "/cuda-9.2/bin", "/cuda/bin"]


def test_wheels_of_either_layout_are_looked_for(monkeypatch, tmp_path):
    for name in ("nvidia/cuda_nvrtc", "nvidia/cu13"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.syspath_prepend(str(tmp_path))
    import sys

    for name in [name for name in sys.modules if name.split(".")[0] == "nvidia"]:
        monkeypatch.delitem(sys.modules, name)
    folders = nvrtc._wheel_folders()
    assert str(tmp_path / "nvidia" / "cuda_nvrtc") in folders
    assert str(tmp_path / "nvidia" / "cu13") in folders


@pytest.mark.parametrize("arch", ["maxwell", "sm_\u00b2", "sm_5", "sm_53\n", "sm_", "sm_5300", "SM_53", "sm_90a", ""])
def test_what_is_no_architecture_is_refused(arch):
    with pytest.raises(UsageError, match="expected sm_NN"):
        build([arch])


def test_an_unknown_toolchain_is_refused():
    with pytest.raises(UsageError, match="expected one of auto, nvcc, nvrtc"):
        build(["host"], "clang")


def test_a_tegra_board_is_known_by_its_device_tree(tmp_path):
    assert not is_tegra(str(tmp_path / "none"))
    (tmp_path / "compatible").write_bytes(b"nvidia,p3450-0000\0nvidia,tegra210\0")
    assert is_tegra(str(tmp_path / "compatible"))


def test_ptxas_words_are_read():
    log = (
        "ptxas info    : Compiling entry function 'a' for 'sm_53'\nptxas info    : Function properties for a\n"
        "    8 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads\n"
        "ptxas info    : Used 40 registers, 10240 bytes smem, 712 bytes cmem[0]\n"
        "ptxas info    : Compiling entry function 'b' for 'sm_89'\n"
        "ptxas info    : Used 8 registers, used 1 barriers, 256 bytes smem, 368 bytes cmem[0]\n"
    )
    assert parse_ptxas(log) == {
        "a": {"registers": 40, "spill_bytes": 28, "shared_bytes": 10240},
        "b": {"registers": 8, "spill_bytes": 0, "shared_bytes": 256},
    }


WRITE = 'while [ "$1" != -o ]; do seen="$seen $1"; shift; done; echo "$seen" > "$2"'


@pytest.mark.parametrize("options", ["", " -O2", " '-DNAME=a b'"])
def test_cxx_may_be_a_command_line(tmp_path, monkeypatch, options):
    monkeypatch.setenv("EDGEGS_CACHE", str(tmp_path / "cache"))
    script(tmp_path / "c++", '#!/bin/sh\ncase "$*" in *--version) echo fake 1.0; exit;; esac\n' + WRITE)
    monkeypatch.setenv("CXX", str(tmp_path / "c++") + options)
    (outcome,) = build(["host"])
    assert outcome.image is not None
    assert outcome.image.compiler == "fake 1.0"
    content = (tmp_path / "cache" / "kernels" / "host.so").read_text()
    assert content.startswith(options.replace("'", "") or " -std=c++14")


@pytest.mark.parametrize(
    ("version", "then", "words"),
    [
        (":", "exit 0", "wrote no file"),  # and prints no version
        ("echo fake", "echo 'oops.cu:1: error' >&2; exit 1", "oops.cu:1: error"),
        ("echo fake", "kill -9 $$", "killed by signal 9"),
        ("exit 4", ":", "cannot be used"),
    ],
)
def test_every_way_in_which_a_host_compiler_fails_is_a_reason(tmp_path, monkeypatch, version, then, words):
    monkeypatch.setenv("EDGEGS_CACHE", str(tmp_path / "cache"))
    script(tmp_path / "c++", f'#!/bin/sh\n[ "$1" = --version ] && {{ {version}; exit 0; }}\n{then}\n')
    monkeypatch.setenv("CXX", str(tmp_path / "c++"))
    (outcome,) = build(["host"])
    assert outcome.image is None
    assert words in outcome.reason
    assert [path.name for path in (tmp_path / "cache" / "kernels").iterdir()] == []


@pytest.mark.parametrize("command", ["'", "/no/such/compiler", "/"])
def test_a_cxx_that_cannot_run_is_named(monkeypatch, command):
    monkeypatch.setenv("CXX", command)
    with pytest.raises(DeviceError, match=r"CXX|C\+\+ compiler") as caught:
        HostCompiler()
    assert command in str(caught.value)


def test_a_compiler_without_a_version_goes_by_its_command(tmp_path, monkeypatch):
    script(tmp_path / "c++", "#!/bin/sh\n")
    monkeypatch.setenv("CXX", str(tmp_path / "c++"))
    assert HostCompiler().name == str(tmp_path / "c++")


def test_a_compiler_that_hangs_is_left(tmp_path, monkeypatch):
    script(tmp_path / "c++", "#!/bin/sh\nexec sleep 30\n")
    monkeypatch.setenv("CXX", str(tmp_path / "c++"))
    before = time.monotonic()
    with pytest.raises(DeviceError, match="does not answer within"):
        HostCompiler(timeout_s=0.2)
    assert time.monotonic() - before < 20


def test_no_compiler_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(DeviceError, match="apt install g"):
        HostCompiler()
