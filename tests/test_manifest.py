"""Folders of images: manifests that are damaged, images that are gone, builds at the same time."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from edgegs.cli import main
from edgegs.errors import DeviceError
from edgegs.kernels import manifest, select
from edgegs.kernels.manifest import MANIFEST, Image, read_manifest, source_hash, store
from edgegs.kernels.select import candidates, find_library

ROOT = Path(__file__).resolve().parent.parent


def image(name="host.so", arch="host", kind="so", **fields):
    made = Image(name, arch, kind, ["baseline"], "fake 1.0", ["-O3"], source_hash(), "")
    for field, value in fields.items():
        setattr(made, field, value)
    return made


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """This user's folder, and the installation's with good images in it."""
    own, installed = tmp_path / "own", tmp_path / "installed"
    for folder in (own, installed):
        folder.mkdir()
    store(installed, image(), b"library")
    store(installed, image("sm_53.cubin", "sm_53", "cubin"), b"code")
    monkeypatch.setattr(select, "image_dirs", lambda: [own, installed])
    return own, installed


def spoil(**fields):
    def change(folder):
        store(folder, image(), b"own")
        document = json.loads((folder / MANIFEST).read_text())
        document["images"][0].update(fields)
        (folder / MANIFEST).write_text(json.dumps(document))

    return change


def text(content):
    return lambda folder: (folder / MANIFEST).write_bytes(content)


DAMAGES = {
    "cut off": text(b"{"),
    "empty": text(b""),
    "no object": text(b"[]"),
    "null": text(b"null"),
    "no text": text(b"\xff\xfe\x00"),
    "deep": text(b"[" * 100_000),
    "another schema": text(b'{"schema": 99, "images": []}'),
    "images null": text(b'{"schema": 1, "images": null}'),
    "image null": text(b'{"schema": 1, "images": [null]}'),
    "image empty": text(b'{"schema": 1, "images": [{}]}'),
    "a folder": lambda folder: (folder / MANIFEST).mkdir(),
    "a FIFO": lambda folder: os.mkfifo(str(folder / MANIFEST)),
    "a link to nothing else": lambda folder: (folder / MANIFEST).symlink_to(folder / MANIFEST),
    "flags null": spoil(cpu_flags=None),
    "flags of numbers": spoil(flags=[1]),
    "arch a number": spoil(arch=53),
    "arch unknown": spoil(arch="sm_"),
    "kind unknown": spoil(kind="exe"),
    "path": spoil(file="../other.so"),
    "dots": spoil(file=".."),
    "NUL": spoil(file="a\0b"),
    "entries a list": spoil(entries=["k"]),
    "entries of texts": spoil(entries={"k": {"registers": "many"}}),
    "hash null": spoil(sha256=None),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=list(DAMAGES))
def test_a_damaged_manifest_does_not_hide_the_installations_images(folders, damage, capsys, caplog):
    own, installed = folders
    damage(own)
    with pytest.raises(DeviceError, match="run `edgegs kernels build`") as caught:
        read_manifest(own)
    assert str(own / MANIFEST) in str(caught.value)
    assert find_library() == installed / "host.so"
    assert [one.path for one in candidates((5, 3))] == [installed / "sm_53.cubin"]
    assert str(own / MANIFEST) in caplog.text, "what was passed over is told"
    assert main(["kernels", "list"]) == 0
    out, err = capsys.readouterr()
    assert str(installed / "host.so") in out
    assert str(own / MANIFEST) in err


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=list(DAMAGES))
def test_every_reason_is_told_when_nothing_is_left(folders, damage):
    own, installed = folders
    damage(own)
    (installed / MANIFEST).write_text("]")
    for look in (find_library, lambda: candidates((5, 3))):
        with pytest.raises(DeviceError) as caught:
            look()
        assert str(own / MANIFEST) in str(caught.value)
        assert str(installed / MANIFEST) in str(caught.value)


@pytest.mark.parametrize("damage", ["cut off", "flags null", "null"])
def test_building_repairs(folders, damage):
    own, _ = folders
    DAMAGES[damage](own)
    store(own, image(), b"new")
    assert find_library() == own / "host.so"


def test_unknown_fields_of_a_later_edgegs_are_no_damage(folders):
    own, _ = folders
    spoil(colour="blue")(own)
    assert find_library() == own / "host.so"


@pytest.mark.parametrize("state", ["gone", "changed", "folder", "stale", "foreign"])
def test_an_image_that_cannot_be_used_gives_way_to_the_installations(folders, state):
    own, installed = folders
    store(own, image(), b"own")
    assert find_library() == own / "host.so"
    if state == "gone":
        (own / "host.so").unlink()
    elif state == "changed":
        (own / "host.so").write_bytes(b"oww")
    elif state == "folder":
        (own / "host.so").unlink()
        (own / "host.so").mkdir()
    elif state == "stale":
        spoil(source_hash="0" * 64)(own)
    else:
        spoil(cpu_flags=["avx4096"])(own)
    assert find_library() == installed / "host.so"
    (installed / "host.so").unlink()
    words = {"changed": "damaged", "folder": "unreadable", "stale": "another version", "foreign": "avx4096"}
    with pytest.raises(DeviceError) as caught:
        find_library()
    assert words.get(state, "is gone") in str(caught.value)
    assert "missing (" in str(caught.value)


def test_a_folder_that_may_not_be_read_is_a_reason(tmp_path):
    """As another user, because root may read everything."""
    if os.getuid() != 0:
        pytest.skip("not root: cannot become another user")
    closed = tmp_path / "closed" / "kernels"
    closed.mkdir(parents=True)
    store(closed, image(), b"library")
    (tmp_path / "closed").chmod(0o700)
    script = (
        f"import os, sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from edgegs.kernels.select import every_image\n"
        "os.setuid(54321)\n"
        "print(every_image())"
    )
    environment = dict(os.environ, EDGEGS_CACHE=str(tmp_path / "closed"))
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "permission denied" in done.stdout


def test_builds_at_the_same_time_lose_nothing(tmp_path):
    """Sixteen writers of one folder, two for each name."""
    failures = []

    def write(number):
        try:
            name = f"sm_{50 + number // 2}.cubin"
            store(tmp_path, image(name, name[:5], "cubin"), bytes([number]) * 100_000)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    images = read_manifest(tmp_path)
    assert sorted(one.file for one in images) == [f"sm_{50 + number}.cubin" for number in range(8)]
    for one in images:
        assert hashlib.sha256((tmp_path / one.file).read_bytes()).hexdigest() == one.sha256
    assert {path.name for path in tmp_path.iterdir()} == {MANIFEST, *(one.file for one in images)}


def test_files_can_be_read_by_the_service(tmp_path):
    store(tmp_path, image(), b"library")
    for path in tmp_path.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_only_images_of_this_source_stay(tmp_path):
    store(tmp_path, image("sm_53.ptx", "sm_53", "ptx", source_hash="0" * 64), b"old")
    store(tmp_path, image("sm_89.ptx", "sm_89", "ptx"), b"new")
    store(tmp_path, image(), b"library")
    assert [one.file for one in read_manifest(tmp_path)] == ["sm_89.ptx", "host.so"]


def test_worst_ignores_what_an_entry_does_not_say():
    made = image(entries={"a": {"registers": 3}, "b": {"spill_bytes": 8}, "c": {"registers": 9}})
    assert made.worst("registers") == 9
    assert made.worst("spill_bytes") == 8
    assert made.worst("shared_bytes") is None


def test_image_dirs_without_a_home_are_the_installations(monkeypatch):
    for name in ("EDGEGS_CACHE", "CACHE_DIRECTORY", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/somebody")
    assert str(manifest.image_dirs()[0]) == "/somebody/.cache/edgegs/kernels"
    monkeypatch.setattr(Path, "home", classmethod(lambda cls: (_ for _ in ()).throw(RuntimeError("no home"))))
    assert len(manifest.image_dirs()) == 1
