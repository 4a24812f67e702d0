"""Streamed SOG scenes, and scenes made one."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import weakref
from pathlib import Path
from typing import Any, Dict, Iterator, List

import numpy as np
import pytest
from sog_files import ARRAYS, Sog, check, read, refused, same

from edgegs.errors import SceneError
from edgegs.scene import Scene
from edgegs.scene.merge import concatenate


class Streamed:
    """Three parts and an environment: level 0 of degrees 1 and 0, a coarser level, a bundle."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.parts = [Sog(20, 1, 1), Sog(10, 0, 2), Sog(6, 1, 3), Sog(5, 1, 4)]
        folder.mkdir(parents=True)
        for name, sog in zip(("0_0", "0_1", "1_0"), self.parts):
            sog.folder(folder / name)
        self.parts[3].zip(folder / "env.sog")

        def leaf(**lods: Any) -> Dict[str, Any]:
            keys = ("file", "offset", "count")
            return {"bound": {}, "lods": {name[1:]: dict(zip(keys, values)) for name, values in lods.items()}}

        self.index: Dict[str, Any] = {
            "version": 1, "asset": {}, "count": 35, "counts": [30, 5], "lodLevels": 2, "environment": "env.sog",
            "filenames": ["0_0/meta.json", "0_1/meta.json", "1_0/meta.json"],
            "tree": {"bound": {}, "children": [
                leaf(_0=(0, 12, 8), _1=(2, 0, 2)),
                {"children": [leaf(_0=(1, 0, 10)), leaf(_1=(2, 3, 2), _0=(0, 0, 0))]},
                leaf(_0=(0, 0, 12)),
            ]},
        }  # fmt: skip

    def write(self) -> Path:
        (self.folder / "lod-meta.json").write_text(json.dumps(self.index))
        return self.folder / "lod-meta.json"


def test_a_streamed_scene(tmp_path: Path) -> None:
    streamed = Streamed(tmp_path / "scene")
    scene = read(streamed.write())
    assert (scene.format, scene.sh_degree, scene.n_rows) == ("sog streamed", 1, 37)
    want = [sog.expected() for sog in streamed.parts]
    want[1]["sh"] = np.concatenate([want[1]["sh"], np.zeros((10, 3, 3))], axis=1)
    rows = [slice(0, 20), slice(0, 10), slice(3, 5), slice(0, 5)]
    check(scene, {name: np.concatenate([w[name][part] for w, part in zip(want, rows)]) for name in ARRAYS})
    assert scene.warnings == ["1 places have no level 0: the finest that they have is drawn"]
    same(read(tmp_path / "scene"), scene)
    assert read(tmp_path / "scene").file_sha256 == scene.file_sha256
    del streamed.index["version"], streamed.index["counts"], streamed.index["count"]
    streamed.index["environment"] = None
    early = read(streamed.write())
    assert early.n_rows == 32
    assert early.file_sha256 != scene.file_sha256


def test_models_of_a_streamed_scene(tmp_path: Path) -> None:
    streamed = Streamed(tmp_path / "scene")
    streamed.parts[0].meta["model"] = "antialiased"
    (streamed.folder / "0_0" / "meta.json").write_text(json.dumps(streamed.parts[0].meta))
    refused(streamed.write(), "trained differently ('antialiased', 'default')")
    streamed.index["model"] = "antialiased"
    assert read(streamed.write()).antialiased


def deep(levels: int) -> Dict[str, Any]:
    node: Dict[str, Any] = {"lods": {}}
    for _ in range(levels):
        node = {"children": [node]}
    return node


def one_leaf(file: Any = 0, offset: Any = 0, count: Any = 20, level: str = "0") -> Dict[str, Any]:
    return {"tree": {"lods": {level: {"file": file, "offset": offset, "count": count}}}, "counts": None}


STREAMED: Dict[str, Any] = {
    "version 2": ({"version": 2}, "version must be a whole number from 1 to 1, not 2"),
    "no levels": ({"lodLevels": 0}, "lodLevels must be a whole number from 1 to 64, not 0"),
    "no names": ({"filenames": {}}, "filenames is missing or no list"),
    "no tree": ({"tree": []}, "tree is missing or no object"),
    "empty tree": ({"tree": {}, "counts": None, "environment": None}, "the tree: a scene of zero splats"),
    "deep tree": ({"tree": deep(5000)}, "nested too deeply"),
    "both": ({"tree": {"children": [], "lods": {}}}, "both children and lods"),
    "children": ({"tree": {"children": [5]}}, "must be a list of objects"),
    "wide tree": ({"tree": {"children": [{}] * 140_000}}, "a tree of over 131,072 nodes"),
    "level": (one_leaf(level="00"), "a level of the tree must be a whole number from 0 to 1, not '00'"),
    "level 2": (one_leaf(level="2"), "a level of the tree must be a whole number from 0 to 1, not 2"),
    "file": (one_leaf(file=3), "lods.0.file must be a whole number from 0 to 2, not 3"),
    "offset": (one_leaf(offset=-1), "lods.0.offset must be a whole number"),
    "count": (one_leaf(count=21), "wants rows up to 21 of '0_0/meta.json', which has 20"),
    "huge": (one_leaf(count=10**15), "wants rows up to 1,000,000,000,000,000 of"),
    "counts": ({"counts": [29, 5]}, "counts[0] promises 29 splats, and the tree has 30 of level 0"),
    "overlap": (
        {"tree": {"children": [one_leaf()["tree"], one_leaf(offset=19, count=1)["tree"]]}, "counts": None},
        "overlap at row 19",
    ),
    "same file": ({"environment": "0_0/meta.json"}, "two of its files are the same"),
    "escape": ({"filenames": ["../0_0/meta.json"] * 3}, "must be the plain name of a file"),
    "absolute": ({"environment": "/etc/passwd"}, "environment must be a file name"),
    "too deep": ({"environment": "a/" * 20 + "b"}, "over 16 folders deep"),
    "missing": ({"environment": "sky/meta.json"}, "'sky/meta.json': is missing"),
    "no text": ({"filenames": [5, 5, 5]}, "filenames[0] must be a file name, not 5"),
}


@pytest.mark.parametrize("name", sorted(STREAMED))
def test_wrong_streamed_scenes(tmp_path: Path, name: str) -> None:
    change, words = STREAMED[name]
    streamed = Streamed(tmp_path / "scene")
    if name == "deep tree":  # deeper than json writes
        text = json.dumps({**streamed.index, "tree": None})
        path = streamed.write()
        path.write_text(text.replace('"tree": null', '"tree": ' + '{"children":[' * 5000 + "]}" * 5000))
    else:
        streamed.index.update(change)
        path = streamed.write()
    refused(path, words)


def test_wrong_parts_of_streamed_scenes(tmp_path: Path) -> None:
    streamed = Streamed(tmp_path / "scene")
    path = streamed.write()
    with pytest.raises(SceneError, match="promises 37 splats, and the limit is 36"):
        read(path, cap=36)
    with pytest.raises(SceneError, match="its 4 files promises 41 splats, and the limit is 40"):
        read(path, cap=40)
    (streamed.folder / "0_1" / "sh0.webp").unlink()
    with pytest.raises(SceneError, match=r"0_1.meta.json: 'sh0.webp': is missing") as caught:
        read(path)
    message = str(caught.value)
    assert str(streamed.folder) in message
    (streamed.folder / "0_1" / "meta.json").write_text(json.dumps(Sog(10, 0, version=1).meta))
    with pytest.raises(SceneError, match="SOG 1 in a streamed scene"):
        read(path)
    (streamed.folder / "0_1" / "meta.json").unlink()
    os.mkfifo(streamed.folder / "0_1" / "meta.json")
    refused(path, "'0_1/meta.json': is a FIFO")
    with open(path, "wb") as file:
        file.truncate((8 << 20) + 1)
    refused(path, "8,388,609 bytes; the limit of a lod-meta.json is 8,388,608")


def test_scenes_as_one(tmp_path: Path) -> None:
    sogs = [Sog(20, 1, 1), Sog(10, 0, 2), Sog(7, 2, 3, version=1)]
    sogs[1].meta["sh0"]["codebook"][9] = None
    sogs[1].pixels["sh0"][0, 0, 0] = 9
    paths = [sog.zip(tmp_path / f"{i}.sog") for i, sog in enumerate(sogs)]
    scenes = [read(path) for path in paths]
    whole = concatenate(scenes)
    assert (whole.n_splats, whole.sh_degree, whole.n_rows) == (sum(s.n_splats for s in scenes), 2, 37)
    assert whole.dropped == scenes[1].dropped
    assert whole.warnings == [f"1.sog: {warning}" for warning in scenes[1].warnings]
    assert len(whole.warnings) == 2
    assert whole.format == "sog v2 + sog v1"
    assert whole.path == ", ".join(map(str, paths))
    digests = b"".join(bytes.fromhex(scene.sha256) for scene in scenes)
    assert whole.sha256 == hashlib.sha256(digests).hexdigest()
    for name in ARRAYS[:4]:
        np.testing.assert_array_equal(getattr(whole, name), np.concatenate([getattr(s, name) for s in scenes]))
    start = 0
    for scene in scenes:
        rows = slice(start, start + scene.n_splats)
        k = scene.sh.shape[1]
        np.testing.assert_array_equal(whole.sh[rows, :k], scene.sh)
        assert not whole.sh[rows, k:].any()
        start = rows.stop
    one_by_one = concatenate(read(path) for path in paths)
    same(one_by_one, whole)
    assert one_by_one.sha256 == whole.sha256
    same(concatenate(reversed(scenes)), concatenate(scenes[::-1]))
    same(concatenate(scenes[:1]), scenes[0])


def test_one_scene_at_a_time() -> None:
    """What was copied is let go of before the next is loaded."""
    alive: List[Any] = []

    def loaded() -> Iterator[Scene]:
        for seed in range(4):
            assert [reference() for reference in alive] == [None] * seed
            means = np.full((5, 3), seed, np.float32)
            alive.append(weakref.ref(means))
            yield Scene(means, *_rest(5), 0, "x", "synth", 5)
            del means

    whole = concatenate(loaded())
    assert whole.means[:, 0].tolist() == [seed for seed in range(4) for _ in range(5)]


def _rest(n: int) -> Any:
    return (np.ones((n, 3), np.float32), np.ones((n, 4), np.float32), np.ones(n, np.float32),
            np.ones((n, 1, 3), np.float32))  # fmt: skip


def test_scenes_that_cannot_be_one() -> None:
    scene = Scene(np.ones((5, 3), np.float32), *_rest(5), 0, "a.sog", "synth", 5)
    with pytest.raises(SceneError, match="no scene"):
        concatenate([])
    with pytest.raises(SceneError, match=r"b.sog: trained with antialiasing: yes, and a.sog: no; such scenes"):
        concatenate([scene, dataclasses.replace(scene, path="b.sog", antialiased=True)])
    with pytest.raises(SceneError, match=r"b.sog: vertical axis: z, and a.sog: y; such scenes"):
        concatenate(iter([scene, dataclasses.replace(scene, path="b.sog", vertical_axis="z")]))
    assert concatenate([scene, scene], cap=10).n_splats == 10
    for scenes in ([scene, scene], iter([scene, scene])):
        with pytest.raises(SceneError, match="makes 10 splats in all, and the limit is 9"):
            concatenate(scenes, cap=9)
