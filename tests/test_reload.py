"""HUP: another configuration is loaded beside the loop and swapped in; a bad one changes nothing."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import numpy as np
import pytest
import scenes

import edgegs.drawing
import edgegs.outputs
import edgegs.pack.cache
import edgegs.pack.prepare
import edgegs.reload
from edgegs.cli import main
from edgegs.cli.run import FAULTS
from edgegs.config import load_config
from edgegs.daemon import Daemon
from edgegs.errors import ConfigError, DeviceError, DeviceLost
from edgegs.pack import quantise
from edgegs.pack.egs import write_egs
from edgegs.scene import write_ply
from edgegs.sinks import Sink

WAIT = 20.0  # seconds until a test that would hang fails instead


class Watcher(Sink):
    """Keeps what it was given."""

    def __init__(self, uri):
        super().__init__(uri)
        self.frames, self.opened, self.closed = [], 0, 0

    @classmethod
    def from_uri(cls, uri, **options):
        return cls(uri.text)

    def open(self, width, height, fps):
        self.opened += 1

    def write(self, frame):
        self.frames.append(frame)

    def close(self):
        self.closed += 1


@pytest.fixture
def running(tmp_path, monkeypatch, kernels):
    """A daemon in this thread, driven from another one by a script of (configuration, what to wait for)."""
    write_ply(str(tmp_path / "a.ply"), scenes.cloud(300, seed=1))
    write_ply(str(tmp_path / "b.ply"), scenes.cloud(200, seed=2))
    made = []

    def create_sink(uri, **options):
        made.append(Watcher(uri.text))
        return made[-1]

    monkeypatch.setattr(edgegs.outputs, "create_sink", create_sink)
    path = tmp_path / "edgegs.yaml"

    def text(scene="a.ply", width=48, outputs='["null:"]', extra=""):
        return (
            f"scene: {{path: {scene}}}\ncamera: {{width: {width}, height: 32, path: {{kind: fixed, eye: [0, 0, -1], "
            f"target: [0, 0, 3]}}}}\nrender: {{backend: host, target_fps: 100}}\noutputs: {outputs}\n"
            f"telemetry: {{interval_s: 0.1, log: {{dir: null}}}}\n{extra}"
        )

    def run(script, first=None):
        path.write_text(first or text())
        daemon = Daemon(load_config(str(path)), lambda: load_config(str(path)))
        failures = []

        def drive():
            try:
                wait(lambda: daemon.frame is not None)
                script(daemon)
            except BaseException as error:
                failures.append(error)
            finally:
                daemon.stop("scripted")

        driver = threading.Thread(target=drive)
        driver.start()
        code = daemon.run()
        driver.join(WAIT)
        if failures:
            raise failures[0]
        return code

    def hup(daemon, content=None):
        """Write a configuration, send the signal and wait for the end; returns what /status says of it."""
        if content is not None:
            path.write_text(content)
        daemon._reload_result = {}
        os.kill(os.getpid(), signal.SIGHUP)
        wait(lambda: daemon._reload_result)
        seen = daemon._n_frames
        wait(lambda: daemon._n_frames > seen + 2)
        return daemon.status()["last_reload"]

    run.hup, run.text, run.made, run.path = hup, text, made, tmp_path
    return run


def wait(condition):
    until = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < until, "it never happened"
        time.sleep(0.002)


def test_another_scene_is_drawn_and_the_outputs_go_on(running):
    def script(daemon):
        assert daemon.status()["n_splats"] == 300
        assert running.hup(daemon, running.text("b.ply")) == {"successful": True, "error": None}
        status = daemon.status()
        assert status["n_splats"] == 200
        assert status["scene"].endswith("b.ply")

    assert running(script) == 0
    (sink,) = running.made
    assert (sink.opened, sink.closed) == (1, 1)
    assert {frame.n_splats for frame in sink.frames} == {300, 200}
    order = [frame.n_splats for frame in sink.frames]
    assert order == sorted(order, reverse=True), "never back to the old scene"


def test_the_old_scene_draws_until_the_new_one_is_there(running, monkeypatch):
    gate, real = threading.Event(), edgegs.drawing.load_scene

    def load_scene(*arguments):
        assert gate.wait(WAIT)
        return real(*arguments)

    def script(daemon):
        monkeypatch.setattr(edgegs.reload, "load_scene", load_scene)
        (running.path / "edgegs.yaml").write_text(running.text("b.ply"))
        os.kill(os.getpid(), signal.SIGHUP)
        wait(lambda: daemon._reload is not None)
        seen = daemon._n_frames
        wait(lambda: daemon._n_frames > seen + 20)
        assert daemon.frame.n_splats == 300
        gate.set()
        wait(lambda: daemon.frame.n_splats == 200)

    assert running(script) == 0


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("scene: [", "edgegs.yaml:"),
        ("nonsense", "nonsense"),
        (None, "render.backend cannot change"),
        (None, "no such file"),
        (None, "not a PLY"),
        (None, "needs http.token_file"),
    ],
)
def test_a_bad_configuration_changes_nothing(running, content, says, caplog):
    if says == "render.backend cannot change":
        content = running.text().replace("backend: host", "backend: reference")
    elif says == "no such file":
        content = running.text("missing.ply")
    elif says == "not a PLY":
        (running.path / "junk.ply").write_bytes(b"junk" * 100)
        content = running.text("junk.ply")
    elif says == "needs http.token_file":
        content = running.text(outputs='["mjpeg://0.0.0.0:8080"]')

    def script(daemon):
        before = dict(daemon.status(), frames=0, uptime_s=0)
        result = running.hup(daemon, content)
        assert result["successful"] is False
        after = daemon.status()
        for key in ("scene", "variant", "width", "height", "n_splats"):
            assert after[key] == before[key]
        # and a good one afterwards is taken
        assert running.hup(daemon, running.text("b.ply"))["successful"] is True
        assert daemon.frame.n_splats == 200

    assert running(script) == 0
    assert any("the configuration in use stays" in record.message for record in caplog.records)
    (sink,) = running.made
    assert sink.opened == 1


def test_a_scene_that_does_not_fit_beside_the_old_one_is_refused(running, monkeypatch):
    def no_room(backend, scene, config):
        raise DeviceError("200 splats need 9 MB of device memory, 1 MB are free")

    def script(daemon):
        monkeypatch.setattr(edgegs.drawing, "make_renderer", no_room)
        result = running.hup(daemon, running.text("b.ply"))
        assert result["error"] == "200 splats need 9 MB of device memory, 1 MB are free"
        assert daemon.frame.n_splats == 300
        assert daemon.config.scene.path.endswith("a.ply")

    assert running(script) == 0


def test_a_file_that_was_replaced_is_read_again_and_an_equal_one_is_not(running, monkeypatch):
    loads = []
    real = edgegs.drawing.load_scene
    monkeypatch.setattr(edgegs.reload, "load_scene", lambda *arguments: (loads.append(1), real(*arguments))[1])

    def script(daemon):
        assert running.hup(daemon, running.text())["successful"] is True
        assert loads == []
        write_ply(str(running.path / "new.ply"), scenes.cloud(123, seed=3))
        os.replace(str(running.path / "new.ply"), str(running.path / "a.ply"))
        assert running.hup(daemon)["successful"] is True
        assert daemon.frame.n_splats == 123

    assert running(script) == 0
    assert loads == [1]


def test_a_packed_scene_takes_over_and_a_damaged_one_does_not(running):
    packed = quantise(scenes.cloud(600, seed=3), np.arange(600), (256, 600))
    write_egs(str(running.path / "c.egs"), packed)
    damaged = (running.path / "c.egs").read_bytes()
    (running.path / "d.egs").write_bytes(damaged[: len(damaged) // 2])

    def script(daemon):
        assert running.hup(daemon, running.text("c.egs"))["successful"] is True
        status = daemon.status()
        assert (status["n_splats"], status["variant"]) == (600, "packed-bins-tight-fast-patch8")
        result = running.hup(daemon, running.text("d.egs"))
        assert result["successful"] is False
        assert "d.egs" in result["error"]
        assert daemon.frame.n_splats == 600
        part = running.text("c.egs").replace("c.egs", "c.egs, max_gaussians: 256")
        assert running.hup(daemon, part)["successful"] is True
        assert daemon.frame.n_splats == 256

    assert running(script) == 0


def test_a_budget_is_chosen_beside_the_loop_which_goes_on_drawing(running, monkeypatch, host, tmp_path):
    monkeypatch.setattr(edgegs.pack.prepare, "N_VIEWS", 6)
    monkeypatch.setattr(edgegs.pack.prepare, "VIEW_SIZE", (64, 48))
    monkeypatch.setattr(edgegs.pack.cache, "cache_dir", lambda: tmp_path / "cache")
    drawn = []
    real = edgegs.pack.prepare.importance

    def importance(*args):
        before = running.daemon._n_frames
        wait(lambda: running.daemon._n_frames > before + 3)
        drawn.append(threading.current_thread().name)
        return real(*args)

    monkeypatch.setattr(edgegs.pack.prepare, "importance", importance)

    def script(daemon):
        running.daemon = daemon
        text = running.text("b.ply").replace("b.ply", "b.ply, max_gaussians: 150")
        assert running.hup(daemon, text)["successful"] is True
        assert daemon.frame.n_splats == 150

    assert running(script) == 0
    assert drawn == ["edgegs-reload"]


def test_outputs_come_and_go_and_the_others_do_not_notice(running):
    two = '[{uri: "null:", name: first}, {uri: "null:", name: second}]'
    other = '[{uri: "null:", name: third}, {uri: "null:", name: first}]'

    def script(daemon):
        assert running.hup(daemon, running.text(outputs=other))["successful"] is True
        wait(lambda: [output["state"] for output in daemon.status()["outputs"]] == ["up", "up"])
        assert [output["name"] for output in daemon.status()["outputs"]] == ["third", "first"]
        wait(lambda: running.made[1].closed == 1)
        wait(lambda: running.made[2].frames)

    assert running(script, running.text(outputs=two)) == 0
    first, second, third = running.made
    assert [sink.opened for sink in running.made] == [1, 1, 1]
    assert third.frames[0].index > first.frames[0].index
    assert second.frames[-1].index < first.frames[-1].index


def test_another_size_makes_every_output_anew(running):
    def script(daemon):
        assert running.hup(daemon, running.text(width=64))["successful"] is True
        assert daemon.status()["width"] == 64
        wait(lambda: len(running.made) == 2 and running.made[1].frames)

    assert running(script) == 0
    first, second = running.made
    assert {frame.image.shape for frame in first.frames} == {(32, 48, 3)}
    assert {frame.image.shape for frame in second.frames} == {(32, 64, 3)}


def test_another_path_moves_the_camera_without_loading(running, monkeypatch):
    monkeypatch.setattr(edgegs.reload, "load_scene", lambda *_: pytest.fail("the scene was read again"))

    def script(daemon):
        before = daemon.frame.image
        moved = running.text().replace("eye: [0, 0, -1]", "eye: [1, 0, -1]")
        assert running.hup(daemon, moved)["successful"] is True
        assert not np.array_equal(daemon.frame.image, before)

    assert running(script) == 0


@pytest.mark.parametrize(
    ("before", "after", "again"),
    [
        ("frame: rdf", "frame: rub", True),
        ("max_gaussians: 100", "max_gaussians: 101", True),
        ("max_gaussians: 100, path_a", "max_gaussians: 100, path_b", True),  # other views choose other splats
        ("max_gaussians: 100, path_a", "max_gaussians: 100, path_a", False),
        ("max_gaussians: 100, path_a", "max_gaussians: 100", True),
        ("path_a", "path_b", False),
    ],
)
def test_what_decides_which_splats_are_drawn_loads_the_scene_again(tmp_path, before, after, again):
    write_ply(str(tmp_path / "a.ply"), scenes.cloud(10))

    def config(words):
        settings = [word for word in words.split(", ") if not word.startswith("path")]
        moves = [f"path: {{kind: cameras_json, path: {word[-1]}.json}}" for word in words.split(", ") if "path" in word]
        camera = ", ".join(["width: 32", "height: 32", *moves])
        file = tmp_path / "c.yaml"
        scene = ", ".join(["path: a.ply", *settings])
        file.write_text(f"scene: {{{scene}}}\ncamera: {{{camera}}}\noutputs: ['null:']\n")
        return load_config(str(file))

    signature = edgegs.drawing.signature(str(tmp_path / "a.ply"))
    facts = edgegs.drawing.SceneFacts("a.ply", "", 10, (np.zeros(3), 1.0), (0, -1, 0), signature)
    assert edgegs.reload.needs_renderer(config(before), config(after), facts) is again


def test_without_a_file_to_read_again_hup_is_refused_and_the_run_goes_on(tmp_path, kernels):
    write_ply(str(tmp_path / "a.ply"), scenes.cloud(10))
    (tmp_path / "c.yaml").write_text(
        "scene: {path: a.ply}\ncamera: {width: 32, height: 32}\noutputs: ['null:']\ntelemetry: {log: {dir: null}}\n"
    )
    daemon = Daemon(load_config(str(tmp_path / "c.yaml")))
    daemon._hup = True
    assert daemon.run(frames=5) == 0
    assert daemon.status()["last_reload"]["error"] == "this run's configuration cannot be read again"


def test_a_run_that_ends_does_not_wait_for_a_reload(running, monkeypatch):
    def endless(config, backend_name, open_scorer, progress):
        for row in range(10**9):
            progress(row, 10**9)
            time.sleep(0.001)

    def script(daemon):
        monkeypatch.setattr(edgegs.reload, "load_scene", endless)
        (running.path / "edgegs.yaml").write_text(running.text("b.ply"))
        os.kill(os.getpid(), signal.SIGHUP)
        wait(lambda: daemon._reload is not None)
        threads.append(daemon._reload._thread)

    threads = []
    began = time.monotonic()
    assert running(script) == 0
    assert time.monotonic() - began < WAIT
    threads[0].join(WAIT)
    assert not threads[0].is_alive()


# ---- a device that fails --------------------------------------------------------------------------------


def test_a_device_that_fails_is_opened_again_with_the_scene(running, monkeypatch):
    def script(daemon):
        renderer = daemon._show._renderer
        monkeypatch.setattr(renderer, "submit", lambda *_: (_ for _ in ()).throw(DeviceError("launch timed out")))
        wait(lambda: daemon._show._renderer not in (None, renderer))
        seen = daemon._n_frames
        wait(lambda: daemon._n_frames > seen + 3)
        status = daemon.status()
        assert status["device_faults"] == 1
        assert status["n_splats"] == 300

    assert running(script) == 0
    (sink,) = running.made
    assert sink.opened == 1, "outputs go on"
    assert np.array_equal(sink.frames[0].image, sink.frames[-1].image)


def test_a_device_that_fails_again_and_again_ends_the_run(running, monkeypatch):
    def broken(self, *_):
        raise DeviceError("an illegal address was accessed")

    def script(daemon):
        monkeypatch.setattr(edgegs.daemon.time, "sleep", lambda seconds: None)
        monkeypatch.setattr(edgegs.renderer.Renderer, "submit", broken)
        wait(lambda: daemon._stop_reason is not None)

    says = "an illegal address was accessed; it failed 4 times within 10 minutes"
    with pytest.raises(DeviceError, match=says) as caught:
        running(script)
    assert caught.value.exit_code == 69


def test_a_device_that_this_process_cannot_open_again_is_left_to_another(running, monkeypatch):
    def refused(*_):
        raise DeviceError("cuCtxCreate failed")

    def script(daemon):
        monkeypatch.setattr(edgegs.drawing, "create", refused)
        monkeypatch.setattr(daemon._show._renderer, "submit", refused)
        wait(lambda: daemon._stop_reason is not None)
        assert len(daemon.faults) == 1

    with pytest.raises(DeviceLost, match="cuCtxCreate failed"):
        running(script)


def test_what_comes_after_auto_is_the_same_backend(running, monkeypatch):
    asked = []
    real = edgegs.drawing.create

    def script(daemon):
        def create(name, threads):
            asked.append(name)
            return real(name, threads)

        monkeypatch.setattr(edgegs.drawing, "create", create)
        renderer = daemon._show._renderer
        monkeypatch.setattr(renderer, "submit", lambda *_: (_ for _ in ()).throw(DeviceError("gone")))
        wait(lambda: asked)

    assert running(script, running.text().replace("backend: host", "backend: auto")) == 0
    assert asked == ["host"], "a GPU that failed is not replaced by a processor"


@pytest.fixture
def start_over(monkeypatch, tmp_path, kernels):
    """``edgegs run`` whose device is lost at the third frame; returns what it would have become."""
    write_ply(str(tmp_path / "a.ply"), scenes.cloud(30))
    (tmp_path / "c.yaml").write_text(
        "scene: {path: a.ply}\ncamera: {width: 32, height: 32}\noutputs: ['null:']\nrender: {backend: host}\n"
        "telemetry: {log: {dir: null}}\n"
    )
    became = []

    def begin(self, *_):
        raise DeviceError("the launch timed out")

    def reopen(self):
        raise DeviceLost("no context")

    def execv(program, arguments):
        became.append((arguments, os.environ.get(FAULTS)))
        raise OSError(8, "not here")

    monkeypatch.setattr(edgegs.drawing.Show, "begin", begin)
    monkeypatch.setattr(edgegs.drawing.Show, "reopen_device", reopen)
    monkeypatch.setattr(os, "execv", execv)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["edgegs", "run", str(tmp_path / "c.yaml"), *arguments])
        try:
            return main(sys.argv[1:]), became
        finally:
            os.environ.pop(FAULTS, None)

    return run


def test_a_service_starts_over_as_the_same_process(start_over, monkeypatch, capsys):
    monkeypatch.delenv(FAULTS, raising=False)
    code, became = start_over()
    ((arguments, faults),) = became
    assert code == 69, "what it ends with where even that fails"
    assert arguments[:3] == [sys.executable, "-m", "edgegs"]
    assert arguments[3] == "run"
    assert abs(float(faults) - time.monotonic()) < WAIT


def test_it_does_not_start_over_for_ever_nor_in_a_bounded_run(start_over, monkeypatch, capsys):
    assert start_over("--frames", "5") == (69, [])
    lately = ",".join([str(time.monotonic())] * 3)
    monkeypatch.setenv(FAULTS, lately)
    assert start_over() == (69, [])
    assert "it failed 4 times within 10 minutes" in capsys.readouterr().err


def test_what_only_a_restart_can_change():
    def config(render):
        return type("C", (), {"render": type("R", (), render)})

    with pytest.raises(ConfigError, match=r"render\.threads cannot change from 0 to 2 while edgegs runs"):
        edgegs.reload.check_change(config({"backend": "host", "threads": 0}), config({"backend": "host", "threads": 2}))
