"""Less of a scene: smaller pictures, fewer splats, less colour; and a daemon that gives them up when it must."""

from __future__ import annotations

import dataclasses
import json

import cv2
import numpy as np
import pytest
import scenes
from conftest import open_backend
from images import psnr

from edgegs.config import load_config
from edgegs.config.model import Governor as Settings
from edgegs.daemon import Daemon
from edgegs.errors import ConfigError
from edgegs.governing import Governing
from edgegs.governor import build_ladder
from edgegs.pack import quantise
from edgegs.pack.egs import write_egs
from edgegs.pack.order import arrange, level_ends, prefix, sizes
from edgegs.renderer import Renderer

N = 4096
SIZE = (128, 96)
VARIANTS = ("best", "wide", "packed-packed32-tight-fast-dual", "packed-ref64-radius-exact-block")


@pytest.fixture(scope="module")
def packed():
    scene = scenes.cloud(N, seed=3)
    order, levels = arrange(scene.means, sizes(scene), sizes(scene))
    return quantise(scene, order, levels)


@pytest.fixture(params=["host", pytest.param("cuda", marks=pytest.mark.cuda)])
def drawer(request, kernels):
    with open_backend(request.param) as backend:
        yield backend


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_prefix_is_what_a_scene_of_only_that_would_be(drawer, packed, variant):
    camera, n = scenes.camera(*SIZE), packed.levels[3]
    whole = Renderer(drawer, packed, *SIZE, variant)
    less = whole.collect(whole.submit(camera, n_splats=n))
    alone = Renderer(drawer, prefix(packed, n), *SIZE, variant).render(camera)
    assert (less.n_splats, less.n_visible, less.n_instances) == (n, alone.n_visible, alone.n_instances)
    if "packed32" not in variant:  # its depths are quantised over the whole scene's extent
        assert np.array_equal(less.image, alone.image)
    assert psnr(less.image, alone.image) > 45
    again = whole.render(camera)
    assert again.n_splats == N
    assert np.array_equal(again.image, Renderer(drawer, packed, *SIZE, variant).render(camera).image)


@pytest.mark.parametrize("variant", [*VARIANTS, "baseline", "exact"])
@pytest.mark.parametrize("size", [(64, 48), (110, 82), (16, 16), (2, 2)])
def test_a_smaller_picture_is_what_a_smaller_renderer_draws(drawer, packed, variant, size):
    whole = Renderer(drawer, packed, *SIZE, variant, keep_float=True)
    before = whole.render(scenes.camera(*SIZE))
    small = whole.render(scenes.camera(*size))
    alone = Renderer(drawer, packed, *size, variant, keep_float=True).render(scenes.camera(*size))
    assert small.image.shape == (size[1], size[0], 3)
    assert small.image.flags.c_contiguous
    for name in ("image", "image_f32", "transmittance"):
        assert np.array_equal(getattr(small, name), getattr(alone, name)), name
    assert np.array_equal(whole.render(scenes.camera(*SIZE)).image, before.image)


def test_a_lower_degree_is_the_scene_without_its_higher_bands(drawer, packed):
    assert packed.sh_degree == 3
    camera = scenes.camera(*SIZE)
    whole = Renderer(drawer, packed, *SIZE, VARIANTS[0])
    frames = [whole.collect(whole.submit(camera, sh_degree=degree)) for degree in range(4)]
    scene = packed.unpacked()
    for degree, frame in enumerate(frames[:3]):
        sh = scene.sh.copy()
        sh[:, (degree + 1) ** 2 :] = 0
        bare = Renderer(drawer, dataclasses.replace(scene, sh=sh), *SIZE, "fp32-bins-tight-fast-patch8").render(camera)
        assert psnr(frame.image, bare.image) > 45
    assert not np.array_equal(frames[0].image, frames[3].image)


def test_two_frames_of_different_quality_may_be_under_way(drawer, packed):
    drawer.depth = 2
    whole = Renderer(drawer, packed, *SIZE, VARIANTS[0])
    tickets = [whole.submit(scenes.camera(64, 48), n_splats=512), whole.submit(scenes.camera(*SIZE))]
    small, large = (whole.collect(ticket) for ticket in tickets)
    assert (small.image.shape, small.n_splats) == ((48, 64, 3), 512)
    assert (large.image.shape, large.n_splats) == ((96, 128, 3), N)


def test_a_backdrop_is_of_the_pictures_size(drawer, packed):
    whole = Renderer(drawer, packed, *SIZE, VARIANTS[0], takes_backdrop=True)
    backdrop = np.random.default_rng(0).integers(0, 255, (48, 64, 3), np.uint8)
    small = whole.render(scenes.camera(64, 48), backdrop)
    alone = Renderer(drawer, packed, 64, 48, VARIANTS[0], takes_backdrop=True).render(scenes.camera(64, 48), backdrop)
    assert np.array_equal(small.image, alone.image)


def test_what_cannot_be_drawn_with_less_says_so(drawer, packed):
    renderer = Renderer(drawer, packed, *SIZE, "baseline")
    assert renderer.axes == ("scale", "splats")
    with pytest.raises(ValueError, match="cannot draw less"):
        renderer.submit(scenes.camera(*SIZE), sh_degree=0)
    with pytest.raises(ValueError, match="256x96"):
        renderer.submit(scenes.camera(256, 96))
    with open_backend("reference") as reference:
        assert Renderer(reference, packed, *SIZE, "exact").axes == ()


# ---- the daemon -----------------------------------------------------------------------------------------


def write_config(folder, governor, more=""):
    path = folder / "edgegs.yaml"
    path.write_text(
        "scene: {path: cloud.egs}\ncamera: {width: 128, height: 96}\n"
        'outputs: ["file://last.png"]\n'
        f"telemetry: {{interval_s: 0.2, log: {{dir: runs, flush_s: 0}}}}\ngovernor: {governor}\n{more}"
    )
    return str(path)


@pytest.mark.parametrize(
    ("governor", "more", "says"),
    [
        ("{target_fps: 60}", "", "governor.target_fps: the loop draws at most render.target_fps, 30"),
        ("{max_temp_c: 80}", "telemetry: {source: none}", "governor.max_temp_c: nothing is measured"),
        ("{max_power_w: 5}", "telemetry: {interval_s: 10}", "governor.max_power_w: cannot be held with a reading"),
        ("{max_temp: 80}", "", "did you mean max_temp_c"),
        ("{max_power_w: 0}", "", "must be more than 0"),
    ],
)
def test_limits_that_cannot_be_held_are_problems(tmp_path, governor, more, says):
    path = tmp_path / "edgegs.yaml"
    text = 'scene: {path: a.ply}\ncamera: {width: 64, height: 64}\noutputs: ["null:"]\n'
    path.write_text(f"{text}governor: {governor}\n{more}\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path, environ={})
    assert says in str(caught.value)


def test_a_daemon_gives_quality_up_in_steps_and_says_why(tmp_path, kernels, packed, monkeypatch):
    write_egs(str(tmp_path / "cloud.egs"), packed)
    config = load_config(write_config(tmp_path, "{target_fps: 25}"), environ={})
    daemon = Daemon(config)
    sizes_drawn, budgets = set(), set()
    # a minute in seconds: the loop is shown a slow board and a fast clock
    clock = {"now": 1000.0}
    look = Governing.look

    def hurried(self, now_s):
        clock["now"] += 1.0
        self._n_frames, self._work_s = 10, 1.0
        look(self, clock["now"])

    def collect(ticket, inner=daemon._show.collect):
        frame = inner(ticket)
        sizes_drawn.add(frame.image.shape[:2])
        budgets.add(frame.n_splats)
        return frame

    monkeypatch.setattr(Governing, "look", hurried)
    monkeypatch.setattr(daemon._show, "collect", collect)
    assert daemon.run(frames=60) == 0
    assert (96, 128) in sizes_drawn
    assert len(sizes_drawn) > 2
    assert len(budgets) > 1
    status = daemon.status()["governor"]
    assert status["rung"] > 4
    assert status["limits"]["fps"]["held"] is False
    (run,) = (tmp_path / "runs").iterdir()
    records = [json.loads(line) for line in (run / "telemetry.jsonl").read_text().splitlines()]
    events = [record for record in records if record.get("kind") == "governor"]
    assert [event["action"] for event in events if event["action"] != "unheld"] == ["down"] * status["steps"]["down"]
    assert all("frames a second" in event["reason"] for event in events)
    text = daemon._metrics.render().decode()
    assert f"edgegs_governor_rung {float(status['rung'])}" in text
    assert 'edgegs_governor_steps_total{direction="down"}' in text
    assert 'edgegs_governor_limit_held{limit="fps"} 0.0' in text
    assert cv2.imread(str(tmp_path / "last.png")).shape == (96, 128, 3), "outputs keep their size"


def test_without_limits_nothing_is_watched(tmp_path, kernels, packed):
    write_egs(str(tmp_path / "cloud.egs"), packed)
    daemon = Daemon(load_config(write_config(tmp_path, "{}"), environ={}))
    assert daemon.run(frames=3) == 0
    assert "governor" not in daemon.status()
    assert "edgegs_governor" not in daemon._metrics.render().decode()


class Scene:
    """A show of which only the ladder is real."""

    def __init__(self, n_splats, levels, sh_degree):
        self.setting, self._of = None, (n_splats, levels, sh_degree)

    def ladder(self, target_fps):
        return build_ladder(*self._of, 30.0, target_fps)


def governed(temp_c):
    """A Governing on a board of so many degrees, what it told the log, and a function that lets seconds pass."""
    events, clock = [], {"now": 1000.0}
    window = {"window_s": 1.0, "temp_c": {"GPU-therm": temp_c}}
    governing = Governing(
        lambda: {"window": dict(window, t_mono_ns=int(clock["now"] * 1e9))},
        lambda kind, **fields: events.append(dict(fields, kind=kind)),
    )

    def wait(seconds):
        for _ in range(seconds):
            clock["now"] += 1.0
            for _ in range(30):
                governing.drawn(0.02)
            governing.look(clock["now"])

    return governing, events, wait


def test_a_reload_keeps_what_is_given_up_and_says_so():
    governing, events, wait = governed(temp_c=72.0)
    packed, plain = Scene(50_000, level_ends(50_000), 3), Scene(50_000, (), 0)
    governing.begin(Settings(max_temp_c=60), packed)
    wait(20)
    before = governing.status()
    assert before["rung"] == 8
    assert (packed.setting.fps, packed.setting.scale) == (30.0, 0.5)
    governing.begin(Settings(max_temp_c=60), packed)
    assert governing.status() == before, "nothing changed: nothing is forgotten"
    assert {event["action"] for event in events} == {"down"}
    governing.begin(Settings(max_temp_c=60), plain)
    assert (plain.setting.fps, plain.setting.scale) == (None, 0.5), "not as many steps: as much of the picture"
    assert events[-1]["action"] == "reload"
    assert (events[-1]["before"], events[-1]["rung"]) == (before["rung"], governing.status()["rung"])
    governing.begin(Settings(), plain)
    assert (plain.setting, governing.status()) == (None, None)
    assert (events[-1]["action"], events[-1]["rung"]) == ("reload", 0)


def test_a_reload_that_took_seconds_is_no_rate_of_frames():
    governing, _, wait = governed(temp_c=40.0)
    scene = Scene(50_000, level_ends(50_000), 3)
    governing.begin(Settings(target_fps=25), scene)
    wait(20)
    assert governing.status()["limits"]["fps"]["value"] == 30.0
    governing.begin(Settings(target_fps=25), scene)
    governing.drawn(0.02)
    governing.look(1025.0)
    assert governing.status()["limits"]["fps"]["value"] is None
