"""Wrong SOG files: archives, folders and whatever bytes, each in one clear message, soon and in little memory."""

from __future__ import annotations

import json
import os
import struct
import sys
import zipfile
from pathlib import Path
from typing import Any, Callable, Dict, Optional

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sog_files import ARRAYS, Sog, check, limited, read, refused, write_zip

from edgegs.errors import AccessError, EdgegsError, InputError, SceneError
from edgegs.scene import builder
from edgegs.scene.builder import TooLarge
from edgegs.scene.reading import Reading
from edgegs.scene.sog import read_sog_folder, read_sog_json

#: File of ../shared/data/hostile/gaussian-sog -> SH degree and count where it is good, else words of the message.
SHARED: Dict[str, Any] = {
    "bad-bands.sog": "shN.bands must be a whole number from 0 to 3, not 4",
    "bad-quat-tag.sog": (0, 1),
    "bad-zip.sog": "damaged zip archive (File is not a zip file)",
    "corrupt-plane.sog": "'scales.webp': ends after 32 of 118 bytes",
    "count-exceeds-plane.sog": "'means_l.webp': 1 x 1 pixels are too few for the 4,096 splats",
    "decode-degree1.sog": (1, 2),
    "device-plane-name.sog": "scales.files[0] must be the plain name of a file beside meta.json, not 'NUL.webp'",
    "empty-count.sog": "a scene of zero splats",
    "escaping-plane-name.sog": "must be the plain name of a file beside meta.json, not '../scales.webp'",
    "huge-bands.sog": "shN.bands must be a whole number from 0 to 3, not 1e+300",
    "huge-count.sog": "count must be a whole number from 0 to 2^53, not 1e+300",
    "huge-palette-count.sog": "shN.count must be a whole number from 1 to 65,536, not 1e+300",
    "huge-version.sog": "version must be a whole number from 1 to 2^53, not 1e+300",
    "kit-multi-degree3-deflated.sog": (3, 3),
    "kit-multi-degree3.sog": (3, 3),
    "kit-one-degree0.sog": (0, 1),
    "labels-out-of-range.sog": (1, 2),
    "lossy-plane.sog": "'scales.webp': a lossy WebP picture",
    "malformed-meta.sog": "meta.json: is no valid JSON (Unterminated string",
    "missing-plane.sog": "'scales.webp': is not in the archive; scales.files[0] names it",
    "no-meta.sog": "a zip archive without meta.json",
    "not-sog.json": "lacks 'means'; not the meta.json of a SOG scene",
    "not-sog.sog": "damaged zip archive",
    "short-codebook.sog": "scales.codebook must be 256 numbers, and is 255 entries",
    "unbundled-kit-multi-degree3": (3, 3),
    "unbundled-missing-plane": "'sh0.webp': is missing; sh0.files[0] names it",
    "version-1.sog": "no version, so it is SOG 1, whose means.shape holds the count",
    "version-3.sog": "version 3; edgegs reads SOG 2, and 1",
}


def test_the_table_covers_the_folder(shared_data: Path) -> None:
    there = {path.name for path in (shared_data / "hostile" / "gaussian-sog").iterdir()}
    assert set(SHARED) == there - {"decode-degree1.sog.golden.usda"}


@pytest.mark.parametrize("name", sorted(SHARED))
def test_shared_hostile_files(shared_data: Path, name: str) -> None:
    path = shared_data / "hostile" / "gaussian-sog" / name
    if isinstance(SHARED[name], str):
        refused(path, SHARED[name])
    else:
        scene = read(path)
        assert (scene.sh_degree, scene.n_splats) == SHARED[name]
        assert (scene.format, scene.dropped, scene.warnings) == ("sog v2", {}, [])


def test_shared_hostile_files_take_little(shared_data: Path) -> None:
    results, peak, _ = limited(*(shared_data / "hostile" / "gaussian-sog" / name for name in sorted(SHARED)))
    assert len(results) == len(SHARED)
    assert max(seconds for seconds, _ in results) < 2
    assert peak < 300


def rewrite(path: Path, change: Callable[[zipfile.ZipInfo], object], name: str = "sh0.webp") -> Path:
    """Write the list of contents again, with one entry changed: local headers and data stay."""
    with zipfile.ZipFile(path, "a") as archive:
        change(archive.getinfo(name))
        archive.comment = b"x"  # makes zipfile write it
    return path


def test_archives_that_lie(tmp_path: Path) -> None:
    def case(change: Callable[[zipfile.ZipInfo], object], words: str, method: int = zipfile.ZIP_STORED) -> None:
        refused(rewrite(Sog(12).zip(tmp_path / "bad.sog", method), change), words)

    case(lambda info: setattr(info, "flag_bits", info.flag_bits | 1), "'sh0.webp': is encrypted")
    case(lambda info: setattr(info, "compress_type", 97), "compressed by method 97; edgegs reads stored and deflated")
    case(lambda info: setattr(info, "CRC", 1), "cannot be unpacked (Bad CRC-32")
    case(lambda info: setattr(info, "file_size", info.file_size - 1), "'sh0.webp': ")
    case(lambda info: setattr(info, "file_size", info.file_size + 1), "'sh0.webp': ")
    case(lambda info: setattr(info, "file_size", 1 << 40), "1,099,511,627,776 bytes or more, and what it should hold")
    case(lambda info: setattr(info, "header_offset", 1 << 30), "'sh0.webp': cannot be unpacked (points to byte")
    case(lambda info: setattr(info, "header_offset", 3), "'sh0.webp': cannot be unpacked (Bad magic number")
    case(lambda info: setattr(info, "file_size", 300_000), "'sh0.webp': ", zipfile.ZIP_DEFLATED)
    bzip = write_zip(tmp_path / "bzip.sog", Sog(12).files(), zipfile.ZIP_BZIP2)
    refused(bzip, "compressed by method 12; edgegs reads stored and deflated")


def test_a_zip_bomb(tmp_path: Path) -> None:
    sog = Sog(12)
    sog.meta["count"] = 15_000_000  # lets a plane be as large as this
    files = {**sog.files(), "means_l.webp": bytes(70_000_000)}
    path = write_zip(tmp_path / "bomb.sog", files, zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 200_000
    [[(seconds, message)], peak, _] = limited(path)
    assert "a zip bomb" in message
    assert seconds < 2
    assert peak < 100


def test_planes_that_the_memory_cannot_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused by the count, before a plane is fetched; and by the pixels, before one is decoded."""
    sog = Sog(12)
    path = sog.zip(tmp_path / "a.sog")
    monkeypatch.setattr(builder, "available_memory", lambda: 500)
    with pytest.raises(TooLarge, match="its 12 splats take 0 MB of memory"):
        read(path)
    monkeypatch.setattr(builder, "available_memory", lambda: 12 * 43)
    with pytest.raises(TooLarge, match="edgegs pack"):
        read(path)


def test_a_webp_of_many_parts(tmp_path: Path) -> None:
    sog = Sog(12)
    files = sog.files()
    for n_more, fits in ((63, True), (64, False)):
        body = files["quats.webp"][12:] + b"XTRA\0\0\0\0" * n_more
        plane = b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WEBP" + body
        path = write_zip(tmp_path / "a.sog", {**files, "quats.webp": plane})
        if fits:
            assert read(path).n_splats == 12
        else:
            refused(path, "quats.webp': a WebP of over 64 parts")


def test_a_long_list_of_contents(tmp_path: Path) -> None:
    path = tmp_path / "many.sog"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in Sog(3).files().items():
            archive.writestr(name, data)
        for i in range(5000):
            archive.writestr(f"{i:0250d}", b"")
    refused(path, "damaged zip archive (a list of contents of 1,4")


def test_duplicate_and_misplaced_names(tmp_path: Path) -> None:
    sog = Sog(3)
    files = sog.files()
    path = sog.zip(tmp_path / "twice.sog")
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("sh0.webp", files["sh0.webp"])
    refused(path, "holds 'sh0.webp' more than once")
    inside = write_zip(tmp_path / "inside.sog", {f"scene/{name}": data for name, data in files.items()})
    refused(inside, "meta.json lies in a folder of the archive ('scene/meta.json'); unpack it")
    refused(write_zip(tmp_path / "streamed.sog", {"lod-meta.json": b"{}"}), "a zipped streamed SOG scene; unpack it")
    case = write_zip(tmp_path / "case.sog", {"META.JSON": files["meta.json"], "meta.json ": files["meta.json"]})
    refused(case, "a zip archive without meta.json")
    # zipfile would take "meta.json\0…" for meta.json.
    data = write_zip(tmp_path / "nul.sog", {"meta.jsonX": files["meta.json"]}).read_bytes()
    (tmp_path / "nul.sog").write_bytes(data.replace(b"meta.jsonX", b"meta.json\0"))
    refused(tmp_path / "nul.sog", "a zip archive without meta.json")


def test_every_cut_of_an_archive(tmp_path: Path) -> None:
    data = Sog(3).zip(tmp_path / "a.sog").read_bytes()
    path = tmp_path / "cut.sog"
    for length in [*range(1, 60), *range(60, len(data), 97)]:
        path.write_bytes(data[:length])
        refused(path, ": ")


def test_an_archive_with_something_in_front_and_behind(tmp_path: Path) -> None:
    sog = Sog(3)
    data = sog.zip(tmp_path / "a.sog").read_bytes()
    (tmp_path / "b.sog").write_bytes(b"front" * 100 + data)
    check(read(tmp_path / "b.sog"), sog.expected())


def test_folders_of_things_that_are_no_files(tmp_path: Path) -> None:
    folder = Sog(3).folder(tmp_path / "scene")
    plane = folder / "sh0.webp"
    plane.unlink()
    os.mkfifo(plane)  # must not wait for a writer
    refused(folder / "meta.json", "'sh0.webp': is a FIFO, not a regular file")
    plane.unlink()
    plane.symlink_to("/dev/zero")
    refused(folder / "meta.json", "'sh0.webp': is a character device")
    plane.unlink()
    plane.symlink_to("nowhere")
    refused(folder / "meta.json", "'sh0.webp': no such file")
    plane.unlink()
    plane.mkdir()
    refused(folder / "meta.json", "'sh0.webp': is a folder")
    plane.rmdir()
    with open(plane, "wb") as file:
        file.truncate(1 << 40)
    refused(folder / "meta.json", "'sh0.webp': 1,099,511,627,776 bytes or more")
    plane.unlink()
    plane.touch()
    refused(folder / "meta.json", "'sh0.webp': no WebP picture")


def test_no_permission(tmp_path: Path) -> None:
    folder = Sog(3).folder(tmp_path / "scene")
    (folder / "means_l.webp").chmod(0)
    user = os.geteuid()
    with open(folder / "meta.json", "rb", buffering=0) as file:
        if user == 0:
            os.seteuid(65534)  # root may read everything
        try:
            with pytest.raises(AccessError, match=r"'means_l.webp': permission denied"):
                read_sog_json(file, str(folder / "meta.json"), Reading())
            if user == 0:  # and not that there is no scene in it
                with pytest.raises(AccessError, match=r"lod-meta.json: permission denied"):
                    read_sog_folder(str(folder), Reading())
        finally:
            os.seteuid(user)


def test_a_folder_without_a_scene(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"holds neither meta.json nor lod-meta.json"):
        read(tmp_path)
    (tmp_path / "meta.json").mkdir()
    with pytest.raises(InputError, match="is a folder"):
        read(tmp_path)


def test_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sog = Sog(3)
    monkeypatch.chdir(sog.folder(tmp_path / "scene"))
    check(read(Path("meta.json")), sog.expected())


def test_an_archive_that_changes_while_it_is_read(tmp_path: Path) -> None:
    path = Sog(12).zip(tmp_path / "a.sog")
    with pytest.raises(SceneError, match="changed while it was read"):
        read(path, progress=lambda done, total: os.utime(path, ns=(1, done)))


def test_without_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Sog(3).zip(tmp_path / "a.sog")
    monkeypatch.setitem(sys.modules, "PIL", None)
    message = refused(path, "SOG scenes need Pillow (")
    assert message.endswith("pip install 'edgegs[sog]'")


def test_a_pillow_without_webp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import features

    monkeypatch.setattr(features, "check", lambda name: name != "webp")
    refused(Sog(3).zip(tmp_path / "a.sog"), "this Pillow was built without WebP; pip install")


def test_pillows_own_limit_of_pixels_is_not_in_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import Image

    path = Sog(1024, width=32).zip(tmp_path / "a.sog")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 600)  # Image.open would warn above, and refuse above twice this
    assert read(path).n_splats == 1024
    assert Image.MAX_IMAGE_PIXELS == 600


class Small:
    """A scene's files, made once: encoding takes longer than reading."""

    _files: Optional[Dict[str, bytes]] = None

    @classmethod
    def files(cls) -> Dict[str, bytes]:
        if cls._files is None:
            cls._files = Sog(12, 1).files()
        return dict(cls._files)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    | st.sampled_from(["sh0.webp", "..", "a/b"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
FIELDS = [
    (key,) for key in ("version", "count", "means", "scales", "quats", "sh0", "shN", "model")
] + [
    ("means", "mins"), ("means", "maxs"), ("means", "files"), ("scales", "codebook"), ("sh0", "codebook"),
    ("quats", "files"), ("shN", "count"), ("shN", "bands"), ("shN", "codebook"), ("shN", "files"),
    ("means", "mins", 1), ("scales", "codebook", 9), ("shN", "codebook", 0), ("means", "files", 0), ("sh0", "files", 0),
]  # fmt: skip
FEW = settings(
    max_examples=120, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
)


def survives(path: Path) -> None:
    """A scene with numbers in it, or one clear error."""
    try:
        scene = read(path)
    except EdgegsError as error:
        assert isinstance(error, (SceneError, InputError))  # noqa: PT017
        assert str(error).startswith(str(path))  # noqa: PT017
        assert str(error).isprintable()  # noqa: PT017
    else:
        assert all(np.isfinite(getattr(scene, name)).all() for name in ARRAYS)


@FEW
@given(field=st.sampled_from(FIELDS), value=JSON_VALUES)
def test_mutations_of_meta(tmp_path_factory: pytest.TempPathFactory, field: Any, value: Any) -> None:
    files = Small.files()
    meta = json.loads(files["meta.json"])
    at = meta
    for step in field[:-1]:
        at = at[step]
    at[field[-1]] = value
    files["meta.json"] = json.dumps(meta).encode()
    survives(write_zip(tmp_path_factory.getbasetemp() / "mutated.sog", files))


@FEW
@given(data=st.data())
def test_mutations_of_planes(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    """The archive's checksum is right: the decoder sees the bytes."""
    files = Small.files()
    name = data.draw(st.sampled_from([name for name in files if name.endswith(".webp")]))
    spoiled = bytearray(files[name])
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, min(60, len(spoiled) - 1)) | st.integers(0, len(spoiled) - 1))
        spoiled[at] = data.draw(st.integers(0, 255))
    files[name] = bytes(spoiled)
    survives(write_zip(tmp_path_factory.getbasetemp() / "planes.sog", files))


@FEW
@given(data=st.data())
def test_mutations_of_archives(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    path = tmp_path_factory.getbasetemp() / "spoiled.sog"
    spoiled = bytearray(write_zip(path, Small.files(), data.draw(st.sampled_from([0, 8]))).read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        # meta.json, in front, is most of the file: the rest is what this is about.
        at = data.draw(st.integers(len(spoiled) * 6 // 10, len(spoiled) - 1) | st.integers(0, len(spoiled) - 1))
        spoiled[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, 40))
    path.write_bytes(spoiled[: len(spoiled) - cut * (cut < 8)])
    survives(path)


@FEW
@given(data=st.binary(max_size=200), head=st.sampled_from([b"", b"PK\x03\x04", b"PK\x05\x06" + bytes(18), b"{"]))
def test_any_bytes(tmp_path_factory: pytest.TempPathFactory, data: bytes, head: bytes) -> None:
    for name in ("any.sog", "any.json"):
        path = tmp_path_factory.getbasetemp() / name
        path.write_bytes(head + data)
        survives(path)


