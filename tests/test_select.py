"""Which image each GPU takes, against folders of made-up manifests."""

from __future__ import annotations

import itertools

import pytest

from edgegs.errors import DeviceError
from edgegs.kernels import select
from edgegs.kernels.manifest import Image, source_hash, store
from edgegs.kernels.select import Candidate, candidates, capability_of, every_image, read_image, verdicts

CAPABILITIES = [(5, 3), (6, 2), (7, 2), (7, 5), (8, 7), (8, 9), (9, 0), (11, 0), (12, 0)]


def put(folder, *names, source=None):
    """Images by their file names, such as sm_53.cubin; their bytes are their own path."""
    folder.mkdir(exist_ok=True)
    for name in names:
        arch, _, kind = name.partition(".")
        made = Image(name, arch, kind, ["baseline"], "fake 1.0", [], source or source_hash(), "")
        store(folder, made, str(folder / name).encode())


@pytest.fixture
def folders(tmp_path, monkeypatch):
    own, installed = tmp_path / "own", tmp_path / "installed"
    monkeypatch.setattr(select, "image_dirs", lambda: [own, installed])
    return own, installed


def names(found):
    return [one.image.file for one in found]


#: With the two cubins and two PTX of a default build: who takes what, in order.
DEFAULT = {
    (5, 3): ["sm_53.cubin", "sm_53.ptx"],
    (6, 2): ["sm_53.ptx"],
    (7, 2): ["sm_53.ptx"],
    (7, 5): ["sm_53.ptx"],
    (8, 7): ["sm_53.ptx"],
    (8, 9): ["sm_89.cubin", "sm_89.ptx", "sm_53.ptx"],
    (9, 0): ["sm_89.ptx", "sm_53.ptx"],
    (11, 0): ["sm_89.ptx", "sm_53.ptx"],
    (12, 0): ["sm_89.ptx", "sm_53.ptx"],
}


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_a_default_build_serves_every_gpu(folders, capability):
    put(folders[1], "sm_53.cubin", "sm_53.ptx", "sm_89.cubin", "sm_89.ptx")
    assert names(candidates(capability)) == DEFAULT[capability]


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_without_ptx_only_cubins_of_the_same_major_are_left(folders, capability):
    put(folders[1], "sm_53.cubin", "sm_89.cubin")
    expected = {(5, 3): ["sm_53.cubin"], (8, 9): ["sm_89.cubin"]}
    assert names(candidates(capability)) == expected.get(capability, [])


EVERYTHING = {
    (5, 3): ["53.cubin", "50.cubin", "53.ptx", "50.ptx"],
    (6, 2): ["61.cubin", "60.cubin", "61.ptx", "60.ptx", "53.ptx", "50.ptx"],
    (7, 2): ["72.cubin", "70.cubin", "72.ptx", "70.ptx"],
    (7, 5): ["75.cubin", "72.cubin", "70.cubin", "75.ptx", "72.ptx"],
    (8, 7): ["87.cubin", "80.cubin", "87.ptx", "80.ptx", "75.ptx"],
    (8, 9): ["89.cubin", "87.cubin", "80.cubin", "89.ptx"],
    (9, 0): ["90.cubin", "90.ptx", "89.ptx"],
    (11, 0): ["110.cubin", "110.ptx", "100.ptx", "90.ptx"],
    (12, 0): ["120.cubin", "120.ptx", "110.ptx", "100.ptx"],
}


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_exact_then_lower_minor_then_highest_ptx(folders, capability):
    archs = (121, 120, 110, 100, 90, 89, 87, 80, 75, 72, 70, 61, 60, 53, 50)
    put(folders[0], *(f"sm_{arch}.{kind}" for arch in archs for kind in ("ptx", "cubin")))
    expected = ["sm_" + name for name in EVERYTHING[capability]]
    assert names(candidates(capability))[: len(expected)] == expected


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_no_order_of_the_manifest_changes_the_choice(folders, capability, monkeypatch):
    put(folders[0], "sm_53.ptx", "sm_80.cubin", "sm_89.cubin", "sm_89.ptx")
    found, _ = every_image()
    orders = [[one.image.file for one in select.ranked(list(p), capability)] for p in itertools.permutations(found)]
    assert all(order == orders[0] for order in orders)


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_no_cubin_of_a_newer_gpu_or_another_major_and_no_newer_ptx(folders, capability):
    put(
        folders[0],
        *(f"sm_{a}{b}.{kind}" for a, b in [*CAPABILITIES, (5, 0), (8, 0), (12, 1)] for kind in ("cubin", "ptx")),
    )
    for one in candidates(capability):
        built_for = capability_of(one.image.arch)
        assert built_for <= capability
        assert one.image.kind == "ptx" or built_for[0] == capability[0]


def test_this_users_build_comes_before_the_installations_and_both_stand_in_the_list(folders):
    own, installed = folders
    put(installed, "sm_53.cubin", "sm_53.ptx")
    put(own, "sm_53.cubin", "sm_53.ptx")
    assert [one.folder for one in candidates((5, 3))] == [own, installed, own, installed]
    assert read_image(candidates((5, 3))[1]) == str(installed / "sm_53.cubin").encode()


def test_an_exact_image_of_the_installation_beats_a_lesser_one_of_this_users(folders):
    own, installed = folders
    put(own, "sm_80.cubin", "sm_89.ptx")
    put(installed, "sm_89.cubin")
    assert names(candidates((8, 9))) == ["sm_89.cubin", "sm_80.cubin", "sm_89.ptx"]


def test_one_image_can_be_asked_for(folders):
    put(folders[0], "sm_53.cubin", "sm_53.ptx")
    assert names(candidates((5, 3), "sm_53.ptx")) == ["sm_53.ptx"]
    assert candidates((5, 3), "sm_99.ptx") == []


def test_host_images_are_never_a_gpus(folders):
    put(folders[0], "host.so", "host-check.so")
    assert candidates((12, 0)) == []


def test_folders_that_are_not_there_hold_nothing(folders):
    assert every_image() == ([], [])
    assert candidates((5, 3)) == []


def test_a_stale_image_is_refused_with_the_command_to_run(folders):
    put(folders[0], "sm_53.cubin", source="0" * 64)
    (one,) = candidates((5, 3))
    with pytest.raises(DeviceError, match="another version of the source; run `edgegs kernels build`"):
        read_image(one)


@pytest.mark.parametrize(("content", "words"), [(None, "is gone"), (b"other", "damaged")])
def test_a_spoilt_image_is_refused_with_the_command_to_run(folders, content, words):
    put(folders[0], "sm_53.cubin")
    (one,) = candidates((5, 3))
    one.path.unlink()
    if content:
        one.path.write_bytes(content)
    with pytest.raises(DeviceError, match=f"{words}.*run `edgegs kernels build`"):
        read_image(one)


@pytest.mark.parametrize(("arch", "capability"), [("sm_53", (5, 3)), ("sm_120", (12, 0)), ("sm_103", (10, 3))])
def test_architectures_are_read(arch, capability):
    assert capability_of(arch) == capability


def judged(capability, no_gpu=""):
    found, _ = every_image()
    return {(path.parent.name, path.name): verdict for path, verdict in verdicts(found, capability, no_gpu).items()}


def test_verdicts_for_a_gpu(folders):
    put(folders[0], "sm_89.cubin", source="0" * 64)
    put(folders[1], "sm_89.cubin", "sm_89.ptx", "sm_53.cubin", "host.so", "sm_90.ptx")
    result = judged((8, 9))
    assert [key for key, verdict in result.items() if verdict.selected] == [
        ("installed", "host.so"),
        ("installed", "sm_89.cubin"),
    ]
    assert "another version" in result["own", "sm_89.cubin"].why
    assert result["installed", "sm_89.cubin"].why == "built for this GPU"
    assert result["installed", "sm_89.ptx"].why.startswith("next")
    assert result["installed", "sm_53.cubin"].why == "for another GPU than this sm_89"
    assert result["installed", "sm_90.ptx"].why == "for another GPU than this sm_89"
    assert len(result) == len(every_image()[0])


def test_verdicts_for_the_nearest(folders):
    put(folders[0], "sm_53.ptx", "sm_53.cubin")
    assert judged((7, 2))["own", "sm_53.ptx"] == (True, "the nearest to this GPU")


def test_verdicts_without_a_gpu(folders):
    put(folders[0], "sm_53.cubin", "host.so", "host-check.so")
    put(folders[1], "host.so")
    result = judged(None, "no driver")
    assert result["own", "sm_53.cubin"] == (False, "no driver")
    assert result["own", "host.so"].selected
    assert result["own", "host-check.so"].selected
    assert result["installed", "host.so"] == (False, "an earlier folder has one")


def test_a_candidate_knows_its_file(tmp_path):
    put(tmp_path, "sm_53.cubin")
    assert Candidate(Image("a.ptx", "sm_53", "ptx", [], "", [], "", ""), tmp_path).path == tmp_path / "a.ptx"
