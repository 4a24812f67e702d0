"""Views to score and to judge by: which layout a scene gets, and what the cameras of each see."""

from __future__ import annotations

import json
from pathlib import Path
from typing import List

import numpy as np
import pytest
import scenes

from edgegs.camera import Camera
from edgegs.errors import UsageError
from edgegs.pack import views
from edgegs.pack.occupancy import Occupancy
from edgegs.scene import Scene, load
from edgegs.scene.synth import dial, room

OUTSIDE = (
    "ply/playbot_lod3_31k_sh2.ply",
    "ply/plant_114k_sh0.ply",
    "ply/tarot_115k_sh0.ply",
    "ply/leica-sofort-top8192.ply",
    "ply/yashica-t4-top8192.ply",
    "sog/karangkidul_tile4.sog",
    "sog/karangkidul_tile6.sog",  # of the tiles the one that looks most like a room
)


@pytest.mark.parametrize("name", OUTSIDE)
def test_real_objects_and_towns_are_looked_at_from_outside(shared_data: Path, name: str) -> None:
    if name.endswith(".sog"):
        pytest.importorskip("PIL", reason="SOG needs Pillow")
    assert views.layout_of(load(shared_data / name).unpacked()) == "outside"


@pytest.mark.parametrize(("n", "seed", "preset"), [(5000, 0, "default"), (30_000, 3, "default"), (30_000, 0, "h200")])
def test_rooms_are_looked_at_from_inside(n: int, seed: int, preset: str) -> None:
    assert views.layout_of(room(n, seed, preset)) == "inside"


def test_what_is_no_room() -> None:
    assert views.layout_of(dial(20_000)) == "outside"  # a haze
    assert views.layout_of(scenes.one()) == "outside"
    assert views.layout_of(scenes.join(*[scenes.one()] * 3)) == "outside"


def test_layout_does_not_depend_on_unit_or_place() -> None:
    scene = room(20_000)
    for factor, shift in ((1e-3, 0.0), (1e3, 5e4)):
        moved = scenes.scene(
            scene.means * factor + shift, scene.scales * factor, scene.quats, scene.opacities, scene.sh[:, :1]
        )
        assert views.layout_of(moved) == "inside"


@pytest.fixture(scope="module")
def small_room() -> Scene:
    return room(5000)


def nearest(ones: List[Camera], others: List[Camera]) -> float:
    """Least distance between a camera's eye of the one list and of the other."""
    a, b = (np.array([camera.eye for camera in cameras]) for cameras in (ones, others))
    return float(np.linalg.norm(a[:, None] - b[None], axis=2).min())


@pytest.mark.parametrize(("n", "n_held_out"), [(1, 1), (8, 8), (48, 12)])
@pytest.mark.parametrize("layout", views.LAYOUTS)
def test_held_out_views_are_others(small_room: Scene, layout: str, n: int, n_held_out: int) -> None:
    scene = small_room
    scored = views.scoring_views(scene, n, 48, 32, layout)
    held_out = views.held_out_views(scene, n_held_out, 48, 32, layout)
    assert (len(scored), len(held_out)) == (n, n_held_out)
    assert nearest(scored, held_out) > 0.01 * scene.bounds()[1]
    again = views.scoring_views(scene, n, 48, 32, layout)
    assert all(np.array_equal(a.viewmat, b.viewmat) and np.array_equal(a.K, b.K) for a, b in zip(scored, again))
    assert all((camera.width, camera.height) == (48, 32) for camera in scored + held_out)


def test_orbit_holds_the_scene_and_respects_up() -> None:
    for scene in (scenes.cloud(3000), room(3000)):  # up is -y, up is +z
        center, radius = scene.bounds()
        up = np.array(scene.up)
        cameras = views.scoring_views(scene, 24, 60, 40, "outside")
        heights = np.array([(camera.eye - center) @ up / np.linalg.norm(camera.eye - center) for camera in cameras])
        assert heights.max() > 0.9
        assert np.ptp(heights) > 0.7
        for camera in cameras:
            assert np.linalg.norm(camera.eye - center) > radius
            middle = camera.K @ (camera.viewmat[:3, :3] @ center + camera.viewmat[:3, 3])
            assert np.abs(middle[:2] / middle[2] - [30, 20]).max() < 1e-6
            assert -camera.viewmat[1, :3] @ up > 0  # upright
        farthest = max(cameras, key=lambda camera: float(np.linalg.norm(camera.eye - center)))
        points = scene.means @ farthest.viewmat[:3, :3].T + farthest.viewmat[:3, 3]
        pixels = points @ farthest.K.T
        pixels = pixels[:, :2] / pixels[:, 2:]
        assert ((pixels >= 0) & (pixels <= [60, 40])).all(axis=1).mean() > 0.9


def test_a_flat_scene_is_not_looked_at_from_below() -> None:
    flat = scenes.cloud(2000)
    flat = scenes.scene(flat.means * [1, 0.02, 1], flat.scales, flat.quats, flat.opacities, flat.sh)
    up = np.array(flat.up)
    assert all((c.eye - flat.bounds()[0]) @ up > 0 for c in views.scoring_views(flat, 24, 60, 40, "outside"))
    ball = scenes.cloud(2000)
    assert any((c.eye - ball.bounds()[0]) @ up < 0 for c in views.scoring_views(ball, 24, 60, 40, "outside"))


def test_a_tiny_scene_is_before_the_near_plane() -> None:
    tiny = scenes.cloud(500)
    tiny = scenes.scene(tiny.means * 1e-3, tiny.scales * 1e-3, tiny.quats, tiny.opacities, tiny.sh)
    center, radius = tiny.bounds()
    for camera in views.scoring_views(tiny, 6, 60, 40, "outside"):
        assert np.linalg.norm(camera.eye - center) - radius > camera.near


def test_places_inside_are_free_and_see_all_round() -> None:
    scene = room(30_000)
    cameras = views.scoring_views(scene, 24, 60, 40) + views.held_out_views(scene, 8, 60, 40)
    eyes = np.array([camera.eye for camera in cameras])
    occupancy = Occupancy(scene)
    assert occupancy.is_free(eyes).all()
    assert (eyes > occupancy.low).all()
    assert (eyes < occupancy.high).all()
    distances = np.sqrt(((eyes[:, None] - scene.means[None, ::20]) ** 2).sum(axis=2)).min(axis=1)
    assert distances.min() > 0.1  # metres
    ways = np.array([camera.viewmat[2, :3] for camera in cameras[:24]])
    assert (ways @ np.array([[1, 0, 0], [-1, 0, 0], [0, 1, 0], [0, -1, 0.0]]).T).max(axis=0).min() > 0.7


def test_occupancy_sees_a_wall() -> None:
    rng = np.random.default_rng(0)
    wall = np.column_stack([rng.uniform(-1, 1, (20_000, 2)), np.where(rng.random(20_000) < 0.5, -1.0, 1.0)])
    scene = scenes.scene(
        wall, np.full((20_000, 3), 0.02), np.tile([1.0, 0, 0, 0], (20_000, 1)), np.full(20_000, 0.95),
        np.zeros((20_000, 1, 3)),
    )  # fmt: skip
    occupancy = Occupancy(scene)
    blocked, distances = occupancy.look(np.zeros((1, 3)), np.array([[0, 0, 1.0], [0, 0, -1], [1, 0, 0]]))
    assert blocked[0, :2].min() > 0.95
    assert blocked[0, 2] == 0
    assert np.abs(distances[0, :2] - 1).max() < 2 * occupancy.cell
    assert distances[0, 2] == np.inf
    assert occupancy.is_free(np.array([[0, 0, 0.0], [0, 0, 1], [50, 0, 0]])).tolist() == [True, False, True]


def write_cameras(path: Path, n: int, width: int = 989, height: int = 742) -> Path:
    entries = [
        {"id": i, "img_name": f"{i:03}", "width": width, "height": height, "position": [i, 0, 0],
         "rotation": np.eye(3).tolist(), "fx": 900.0, "fy": 900.0}
        for i in range(n)
    ]  # fmt: skip
    path.write_text(json.dumps(entries))
    return path


def test_training_views_hold_out_every_eighth(tmp_path: Path) -> None:
    scored, held_out = views.training_views(write_cameras(tmp_path / "cameras.json", 20), 320)
    assert [camera.name for camera in held_out] == ["000", "008", "016"]
    assert len(scored) == 17
    assert nearest(scored, held_out) == 1
    assert {(c.width, c.height) for c in scored} == {(320, 240)}
    assert held_out[0].K[0, 0] == pytest.approx(900 * 240 / 742)
    small, _ = views.training_views(tmp_path / "cameras.json", 2000)
    assert {(c.width, c.height) for c in small} == {(989, 742)}  # never enlarged
    scored, held_out = views.training_views(tmp_path / "cameras.json", 320, max_views=8)
    assert len(scored) == 7
    assert [camera.name for camera in held_out] == ["000"]
    scored, held_out = views.training_views(write_cameras(tmp_path / "one.json", 1), 320)
    assert len(scored) == len(held_out) == 1


def test_training_views_of_real_cameras(shared_data: Path) -> None:
    scored, held_out = views.training_views(shared_data / "photos" / "snowmiku" / "cameras.json", 480)
    assert (len(scored), len(held_out)) == (84, 13)
    assert nearest(scored, held_out) > 0


def test_bad_layout_and_nothing_to_see() -> None:
    with pytest.raises(UsageError, match="no layout 'beside' of views"):
        views.scoring_views(scenes.one(), 3, 60, 40, "beside")
    assert views.scoring_views(scenes.one(), 0, 60, 40) == []
    empty = scenes.scene(np.zeros((0, 3)), np.zeros((0, 3)), np.zeros((0, 4)), np.zeros(0), np.zeros((0, 1, 3)))
    assert views.scoring_views(empty, 4, 60, 40) == []
    assert len(views.scoring_views(scenes.one(), 4, 60, 40, "inside")) == 4
