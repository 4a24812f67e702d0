"""Every scene of ../shared/data (see its MANIFEST.md) by the only way in: what it holds, or that it is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Dict, Iterable, Optional, Tuple

import numpy as np
import pytest
from plyfile import PlyData
from scene_files import write_rows

from edgegs.errors import SceneError
from edgegs.scene import Scene, load

ARRAYS = ("means", "scales", "quats", "opacities", "sh")
Facts = Tuple[int, int, str]  # splats, SH degree that is drawn, format

PLY = "ply binary_little_endian"
SCENES: Dict[str, Facts] = {
    "ply/leica-sofort-top8192.ply": (8_192, 3, PLY),
    "ply/plant_114k_sh0.ply": (113_648, 0, PLY),
    "ply/playbot_lod1_250k_sh2.ply": (250_000, 2, PLY),
    "ply/playbot_lod3_31k_sh2.ply": (31_000, 2, PLY),
    "ply/tarot_115k_sh0.ply": (114_865, 0, PLY),
    "ply/yashica-t4-top8192.ply": (8_192, 3, PLY),
    "compressed_ply/playbot_lod3_31k_sh2.compressed.ply": (31_000, 2, "compressed.ply"),
    "splat/academic_tarot_cards_academic_tarot_cards.splat": (114_865, 0, "splat"),
    "splat/plant_plant.splat": (113_648, 0, "splat"),
    "spz/leica-sofort-top8192.spz": (8_192, 3, "spz v2"),
    "spz/metal3.spz": (3, 3, "spz v3"),
    "spz/yashica-t4-top8192.spz": (8_192, 3, "spz v2"),
    "sog/karangkidul_tile3.sog": (524_320, 3, "sog v2"),
    "sog/karangkidul_tile4.sog": (524_624, 3, "sog v2"),
    "sog/karangkidul_tile5.sog": (524_471, 3, "sog v2"),
    "sog/karangkidul_tile6.sog": (524_320, 3, "sog v2"),
    "sog/leica-sofort-top8192.sog": (8_192, 3, "sog v2"),
    "sog/playbot_lod0.sog": (500_000, 2, "sog v2"),
    "sog/playbot_lod1.sog": (250_000, 2, "sog v2"),
    "sog/playbot_lod3.sog": (31_000, 2, "sog v2"),
    "sog/playbot_lod4.sog": (8_406, 2, "sog v2"),
    "sog/playbot_lod5.sog": (3_000, 2, "sog v2"),
    "sog/playbot_lod6.sog": (1_873, 2, "sog v2"),
    "sog/yashica-t4-top8192.sog": (8_192, 3, "sog v2"),
    "equivalence/equiv-degree1-offgrid-binary-le.ply": (3, 1, PLY),
    "equivalence/equiv-degree1-offgrid-v2.spz": (3, 1, "spz v2"),
    "equivalence/equiv-degree1-offgrid.sog": (3, 1, "sog v2"),
    "equivalence/equiv-degree3-exact-binary-le.ply": (4, 3, PLY),
    "equivalence/equiv-degree3-exact-v2.spz": (4, 3, "spz v2"),
    "equivalence/equiv-degree3-exact-v3.spz": (4, 3, "spz v3"),
    "equivalence/equiv-degree3-exact.sog": (4, 3, "sog v2"),
}

#: Small made-up files, the good ones among the bad; None is refused (its words: see the tests of each reader).
HOSTILE: Dict[str, Dict[str, Optional[Facts]]] = {
    "gaussian-ply": {
        "degree-1-sh.ply": (1, 1, "ply ascii"),
        "degree-2-sh.ply": (1, 2, "ply ascii"),
        "degree-3-sh.ply": (1, 3, "ply ascii"),
        "degree-4-sh.ply": (1, 3, "ply ascii"),
        "one-gaussian-ascii.ply": (1, 0, "ply ascii"),
        "one-gaussian-binary-le.ply": (1, 0, PLY),
        "reordered-properties.ply": (1, 1, "ply ascii"),
        "three-gaussian-binary-le.ply": (3, 1, PLY),
        **dict.fromkeys(
            ("duplicate-sh-index.ply", "empty-vertex.ply", "invalid-sh-name.ply", "list-property.ply",
             "mesh-not-gaussian.ply", "missing-opacity.ply", "nan-opacity-binary-le.ply", "non-contiguous-sh.ply",
             "out-of-range-double.ply", "overflow-scale.ply", "sh-count-not-rgb.ply", "sh-invalid-degree.ply",
             "truncated-binary-le.ply"),
        ),
    },
    "gaussian-spz": {
        "decode-degree1-v2.spz": (2, 1, "spz v2"),
        "decode-degree3-v2.spz": (2, 3, "spz v2"),
        "decode-degree4-v2.spz": (1, 3, "spz v2"),
        "decode-v1.spz": (1, 0, "spz v1"),
        "decode-v3.spz": (1, 0, "spz v3"),
        "degree3-v2.spz": (1, 3, "spz v2"),
        "degree4-v2.spz": (1, 3, "spz v2"),
        "extensions-v2.spz": (1, 0, "spz v2"),
        "header-fields-v2.spz": (1, 0, "spz v2"),
        "long-fname-v2.spz": (1, 0, "spz v2"),
        "minimal-v1.spz": (1, 0, "spz v1"),
        "minimal-v2.spz": (1, 0, "spz v2"),
        "minimal-v3.spz": (1, 0, "spz v3"),
        "three-points-degree1-v2.spz": (3, 1, "spz v2"),
        **dict.fromkeys(
            ("bad-crc-v2.spz", "bad-fhcrc-v2.spz", "bad-isize-v2.spz", "corrupt-deflate.spz",
             "count-exceeds-stream-v2.spz", "decode-nonfinite-v1.spz", "empty-points-v2.spz", "gzip-not-spz.spz",
             "huge-count-v2.spz", "not-spz.spz", "plaintext-v2.spz", "plaintext-v4.spz", "sh-degree-5-v2.spz",
             "short-stream.spz", "trailing-after-member-v2.spz", "trailing-decompressed-v2.spz",
             "truncated-deflate-v2.spz", "truncated-gzip-header.spz", "truncated-payload-v2.spz", "version-0.spz",
             "version-5.spz"),
        ),
    },
    "gaussian-sog": {
        "bad-quat-tag.sog": (1, 0, "sog v2"),
        "decode-degree1.sog": (2, 1, "sog v2"),
        "kit-multi-degree3-deflated.sog": (3, 3, "sog v2"),
        "kit-multi-degree3.sog": (3, 3, "sog v2"),
        "kit-one-degree0.sog": (1, 0, "sog v2"),
        "labels-out-of-range.sog": (2, 1, "sog v2"),
        "unbundled-kit-multi-degree3": (3, 3, "sog v2"),
        **dict.fromkeys(
            ("bad-bands.sog", "bad-zip.sog", "corrupt-plane.sog", "count-exceeds-plane.sog", "device-plane-name.sog",
             "empty-count.sog", "escaping-plane-name.sog", "huge-bands.sog", "huge-count.sog",
             "huge-palette-count.sog", "huge-version.sog", "lossy-plane.sog", "malformed-meta.sog",
             "missing-plane.sog", "no-meta.sog", "not-sog.json", "not-sog.sog", "short-codebook.sog",
             "unbundled-missing-plane", "version-1.sog", "version-3.sog"),
        ),
    },
}  # fmt: skip

FILES: Dict[str, Optional[Facts]] = {
    **SCENES,
    **{f"hostile/{folder}/{name}": facts for folder, files in HOSTILE.items() for name, facts in files.items()},
    "photos/snowmiku/points3d.ply": None,
}

_INRIA = ("x", "y", "z", "nx", "ny", "nz", "f_dc_0", "f_dc_1", "f_dc_2", *(f"f_rest_{i}" for i in range(45)), "opacity",
          "scale_0", "scale_1", "scale_2", "rot_0", "rot_1", "rot_2", "rot_3")  # fmt: skip


def test_the_table_is_whole(shared_data: Path) -> None:
    folders = {name.rpartition("/")[0] for name in FILES if not name.startswith("photos/")}
    there = {f"{folder}/{path.name}" for folder in folders for path in (shared_data / folder).iterdir()}
    assert {name for name in there if not name.endswith(".usda")} == set(FILES) - {"photos/snowmiku/points3d.ply"}
    manifest = (shared_data / "MANIFEST.md").read_text("utf-8")
    files = "\n".join(line.split("|")[1] for line in manifest.splitlines() if line.startswith("| "))
    named = set(re.findall(r"(?:^|[ ,;])(\w+)/", files, re.MULTILINE))
    assert named == {name.split("/")[0] for name in FILES}


@pytest.mark.parametrize("name", FILES)
def test_each_file(shared_data: Path, name: str) -> None:
    path = shared_data / name
    facts = FILES[name]
    if facts is None:
        with pytest.raises(SceneError) as error:
            load(path)
        assert str(error.value).startswith(str(path))
        return
    scene = load(path)
    assert (scene.n_splats, scene.sh_degree, scene.format) == facts
    assert (scene.n_rows, scene.dropped) == (facts[0], {})
    assert len(scene.warnings) == (name.endswith(("degree-4-sh.ply", "degree4-v2.spz", "extensions-v2.spz")))
    for array in ARRAYS:
        assert np.isfinite(getattr(scene, array)).all()
    np.testing.assert_allclose((scene.quats * scene.quats).sum(axis=1), 1, atol=1e-6)
    assert scene.scales.min() > 0
    assert 0 < scene.opacities.min() <= scene.opacities.max() < 1


def alike(one: Scene, two: Scene, steps: Dict[str, float]) -> None:
    """The same splats, row by row, as far apart as the coarser of two formats rounds them."""
    np.testing.assert_allclose(one.means, two.means, rtol=1e-4, atol=steps["means"])
    np.testing.assert_allclose(np.log(one.scales), np.log(two.scales), atol=steps["scales"])
    assert np.abs((one.quats * two.quats).sum(axis=1)).min() > 0.9999  # 8 to 10 bits a component; q is as good as -q
    np.testing.assert_allclose(one.opacities, two.opacities, atol=0.5 / 255 + 1e-6)
    np.testing.assert_allclose(one.sh[:, 0], two.sh[:, 0], atol=steps["colours"])
    np.testing.assert_allclose(one.sh[:, 1:], two.sh[:, 1:], atol=steps["harmonics"])


_SPZ = {"means": 0.5 / 4096, "scales": 0.5 / 16 + 1e-5, "colours": 0.5 / 255 / 0.15 + 1e-6, "harmonics": 0.5 / 128}
_SOG = {"means": 2e-4, "scales": 1e-5, "colours": 1e-6, "harmonics": 1e-6}  # but for places its codebooks have all


@pytest.mark.parametrize(
    ("name", "others"),
    [("equiv-degree1-offgrid", ("-v2.spz", ".sog")), ("equiv-degree3-exact", ("-v2.spz", "-v3.spz", ".sog"))],
)
def test_one_scene_in_every_format(shared_data: Path, name: str, others: Iterable[str]) -> None:
    """Frames included: these SPZ are right, up, back, and the others right, down, forward."""
    folder = shared_data / "equivalence"
    ply = load(folder / f"{name}-binary-le.ply")
    for other in others:
        steps = _SOG if other.endswith("sog") else _SPZ
        if other.endswith("spz") and name.endswith("exact"):  # values that SPZ has, to the bit
            steps = {"means": 1e-6, "scales": 2e-6, "colours": 1e-6, "harmonics": 1e-6}
        alike(load(folder / f"{name}{other}"), ply, steps)


@pytest.mark.parametrize("name", ["leica-sofort-top8192", "yashica-t4-top8192"])
def test_the_order_of_properties_changes_nothing(shared_data: Path, tmp_path: Path, name: str) -> None:
    """Brush writes them by the alphabet and without normals, Inria's trainer in its own order."""
    path = shared_data / "ply" / f"{name}.ply"
    brush = PlyData.read(str(path))["vertex"].data
    assert list(brush.dtype.names) == sorted(brush.dtype.names)
    inria = np.zeros(len(brush), [(column, "<f4") for column in _INRIA])
    for column in brush.dtype.names:
        inria[column] = brush[column]
    one, two = load(path), load(write_rows(tmp_path / "a.ply", inria))
    for array in ARRAYS:
        np.testing.assert_array_equal(getattr(one, array), getattr(two, array))
