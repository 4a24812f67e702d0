"""The configuration: what is accepted, how it is overridden and shown; the shipped files."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Dict

import pytest
import yaml
from config_texts import MINIMAL, add, load, output, problems
from pydantic import ValidationError

from edgegs import camera
from edgegs.config import Config, effective, load_config
from edgegs.config.camera_paths import (
    CamerasJsonPath,
    FixedPath,
    InteractivePath,
    Key,
    KeyframesPath,
    MqttPath,
    OrbitPath,
    UdpPath,
)
from edgegs.config.masking import MASK, is_secret_key, mask_text, one_line
from edgegs.config.model import Background, Camera, Http, Log, Output, Render, Scene, Telemetry
from edgegs.errors import AccessError, InputError
from edgegs.scene import synth

CONFIGS = Path(__file__).resolve().parent.parent / "configs"


# ---- what is accepted


def test_minimal(tmp_path: Path) -> None:
    config = load(tmp_path, b"\xef\xbb\xbf" + MINIMAL.replace("\n", "\r\n").encode())
    assert config.scene == Scene(path=str(tmp_path / "a.ply"))
    assert config.camera == Camera(width=640, height=480)
    assert (config.camera.near, config.camera.far) == (camera.NEAR, camera.FAR)
    assert config.render == Render()
    assert config.telemetry.log.dir == str(tmp_path / "runs")
    assert config.http == Http()
    assert [out.uri.text for out in config.outputs] == ["null:"]


def test_numbers_as_people_write_them(tmp_path: Path) -> None:
    config = load(tmp_path, add("telemetry: {interval_s: 2, log: {max_mb: 1_000, flush_s: 1e3, rotate_mb: 0x10}}"))
    assert config.telemetry.interval_s == 2.0
    assert config.telemetry.log.model_dump() == {
        "dir": str(tmp_path / "runs"), "max_mb": 1000, "flush_s": 1000.0, "min_free_mb": 64, "rotate_mb": 16,
    }  # fmt: skip


def test_relative_paths_start_at_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "c.yaml").write_text(MINIMAL + "http: {token_file: /t}\n")
    monkeypatch.chdir(tmp_path)
    config = load_config("etc/c.yaml", ["scene.path=../b.ply"], {"EDGEGS__TELEMETRY__LOG__DIR": "runs"})
    assert config.scene.path == str(tmp_path / "b.ply")
    assert config.telemetry.log.dir == str(tmp_path / "etc" / "runs")
    assert config.http.token_file == "/t"


def test_config_is_frozen_and_comparable(tmp_path: Path) -> None:
    config = load(tmp_path, MINIMAL)
    with pytest.raises(ValidationError):
        config.render.threads = 3  # type: ignore[misc]
    assert config == load(tmp_path, MINIMAL + "render: {threads: 0}\n")
    assert config != load(tmp_path, MINIMAL + "render: {threads: 1}\n")


# ---- files that are none


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no-such.yaml: no such file") as caught:
        load_config(tmp_path / "no-such.yaml", environ={})
    assert caught.value.exit_code == 66


@pytest.mark.parametrize("path", ["", "a\0b", "x" * 5000])
def test_impossible_names(path: str) -> None:
    with pytest.raises(InputError):
        load_config(path, environ={})


def test_folder_device_and_fifo(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path, words in (
        (tmp_path, "is a folder, not a regular file"),
        (tmp_path / "fifo", "not a regular"),
        ("/dev/zero", "not a regular"),
    ):
        with pytest.raises(InputError, match=words):
            load_config(path, environ={})


def test_unreadable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*args: Any) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("edgegs.files.os.open", denied)  # root, as which tests may run, is never denied
    with pytest.raises(AccessError, match=r"c.yaml: permission denied") as caught:
        load_config(tmp_path / "c.yaml", environ={})
    assert caught.value.exit_code == 77


# ---- overrides


def test_set_wins_over_environment_wins_over_file(tmp_path: Path) -> None:
    text = add("render: {threads: 1, target_fps: 1, variant: baseline}")
    environ = {
        "EDGEGS__RENDER__TARGET_FPS": "2",
        "EDGEGS__RENDER__VARIANT": "exact",
        "EDGEGS_CACHE": "/x",
        "PATH": "/",
    }
    render = load(tmp_path, text, ["render.variant=wide"], environ).render
    assert (render.threads, render.target_fps, render.variant) == (1, 2.0, "wide")


def test_overrides_reach_everything(tmp_path: Path) -> None:
    text = output('\n  - {uri: "null:"}').replace("480}", "480, path: null}")
    overrides = [
        "camera.path.kind=orbit",
        "camera.path.center=[1, 2, 3]",
        "outputs.0.required=true",
        "telemetry.log.max_mb=99",
        "http={token_file: x}",
        "scene.path=a=b.ply",
        "camera.width=1",
        "camera.width=800",
    ]
    config = load(tmp_path, text, overrides)
    assert isinstance(config.camera.path, OrbitPath)
    assert config.camera.path.center == (1.0, 2.0, 3.0)
    assert config.outputs[0].required
    assert config.telemetry.log.max_mb == 99
    assert config.http.token_file == str(tmp_path / "x")
    assert config.scene.path == str(tmp_path / "a=b.ply")
    assert config.camera.width == 800
    assert [o.uri.text for o in load(tmp_path, text, ['outputs=["file:///b.mp4"]']).outputs] == ["file:///b.mp4"]


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("camera.widht=3", "--set camera.widht: camera.widht: unknown key (got 3); did you mean width?"),
        ("camera.width=wide", "--set camera.width: camera.width: must be a whole number (got wide)"),
        ("camera.width=22:30", "--set camera.width: camera.width: YAML would read this as the number 1350"),
        ("camera.width=[1", "--set camera.width: camera.width: column 3: syntax error: a '[' is not closed"),
        ("camera.width=*a", "--set camera.width: camera.width: aliases are not allowed"),
        ("camera.width=", "--set camera.width: camera.width: has no value"),
        ("camera.width", "--set camera.width: not of the form key=value"),
        ("=3", "--set : not of the form key=value"),
        ("camera..width=3", "--set camera..width: not of the form key=value"),
        ("camera.width.x=3", "--set camera.width.x: camera.width.x: camera.width is 640, which has no keys"),
        ("outputs.1.name=x", "--set outputs.1.name: outputs.1.name: outputs is a list of 1"),
        ("outputs.first=x", "--set outputs.first: outputs.first: outputs is a list of 1"),
        ("outputs.0.name=x", '--set outputs.0.name: outputs.0.name: outputs.0 is "null:", which has no keys'),
        ("render=", "--set render: render: has no value"),
        ("a.b.c=1", "--set a.b.c: a: unknown key"),
    ],
)
def test_bad_override(tmp_path: Path, override: str, line: str) -> None:
    (found,) = problems(tmp_path, MINIMAL, [override])
    assert found.startswith(line)


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("EDGEGS__CAMERA__WIDHT", "3", "camera.widht: unknown key (got 3); did you mean width?"),
        ("EDGEGS__CAMERA__WIDTH", "no", "camera.width: must be a whole number (got no)"),
        ("EDGEGS__CAMERA", "", "camera: has no value"),
        ("EDGEGS__CAMERA____WIDTH", "3", "not of the form EDGEGS__SECTION__KEY"),
        ("EDGEGS__", "3", "not of the form EDGEGS__SECTION__KEY"),
        ("EDGEGS__camera__WIDTH", "3", "not of the form EDGEGS__SECTION__KEY, in capitals"),
        ("EDGEGS__SCENE__PATH", "\udcff", "U+DCFF is not allowed"),
    ],
)
def test_bad_variable(tmp_path: Path, variable: str, value: str, words: str) -> None:
    (found,) = problems(tmp_path, MINIMAL, (), {variable: value})
    assert found.startswith(f"environment variable {variable}: ")
    assert words in found


def test_a_broken_file_does_not_hide_broken_overrides(tmp_path: Path) -> None:
    found = problems(tmp_path, "a: [", ["camera.width=[", "x"])
    assert [line.split(":")[0] for line in found] == ["c.yaml", "--set camera.width", "--set x"]


# ---- what is shown


def test_secrets_are_masked(tmp_path: Path) -> None:
    text = add(
        """\
        http:
          token: hunter2
          password: 0640
          api_key: *hunter2
          auth: {user: hunter2}
        render: {variant: "rtsp://me:hunter2@h/x?token=hunter2"}
        """
    )
    found = "\n".join(problems(tmp_path, text, ["http.secret=hunter2"], {"EDGEGS__HTTP__TOKEN": "hunter2"}))
    assert "hunter2" not in found
    assert "0640" not in found
    assert "416" not in found
    assert found.count(MASK) >= 6
    assert "rtsp://***@h/x?token=***" in found


def test_mask_text() -> None:
    assert mask_text("rtsp://me:p/w@d@host/x") == "rtsp://***@host/x"
    assert mask_text("mjpeg://127.0.0.1:80/?a=1&access_token=x y") == "mjpeg://127.0.0.1:80/?a=1&access_token=*** y"
    for text in ("file:///data/a@b.png", "rtsp://@:8554/x", "mjpeg://127.0.0.1:80", "a@b", ""):
        assert mask_text(text) == text
    for key in ("token", "http.token", "a_password", "tokens.0", "API_KEY"):
        assert is_secret_key(key)
    for key in ("token_file", "tok", "tokenizer", "width"):
        assert not is_secret_key(key)
    assert one_line("a\tb\n\x9bü\ud800") == "a\\tb\\n\\x9bü\\ud800"


EVERYTHING = """\
scene: {path: a.ply}
camera:
  width: 640
  height: 480
  far: 1e12
  path: {kind: keyframes, keys: [{eye: [0, 0, 1e-7], target: [1, 0, 0]}, {eye: [0, 1, 1], target: [1, 0, 0]}]}
render: {variant: wide, background: [1, 0.5, 0]}
outputs:
  - "null:"
  - {uri: "file://a/b.png", name: "1e3"}
  - {uri: "file://a/%d.png", name: "007", required: true, fps: 0.5}
telemetry: {interval_s: 0.1, log: {dir: null}}
"""


def test_effective_round_trip(tmp_path: Path) -> None:
    for text in (MINIMAL, EVERYTHING):
        config = load(tmp_path, text)
        shown = effective(config)
        again = load(tmp_path, shown)
        assert again == config
        assert effective(again) == shown
        assert again.sha256() == config.sha256()
        assert set(yaml.safe_load(shown)) == set(Config.model_fields)


def test_sha256(tmp_path: Path) -> None:
    digest = load(tmp_path, MINIMAL).sha256()
    assert re.fullmatch("[0-9a-f]{64}", digest)
    assert digest == load(tmp_path, "# other\nrender: {background: [0, 0, 0.0]}\n" + MINIMAL).sha256()
    assert digest == load(tmp_path, MINIMAL.replace("640", "800"), ["camera.width=640"]).sha256()
    assert digest != load(tmp_path, MINIMAL, ["camera.width=641"]).sha256()


# ---- the shipped files


def fields(model: Any, value: Any) -> Dict[str, Any]:
    """Check that ``value`` has exactly the model's keys; return those of sections as a mapping."""
    assert set(value) == set(model.model_fields), model.__name__
    return dict(value)


def test_default_yaml_is_complete_and_says_the_defaults() -> None:
    text = (CONFIGS / "default.yaml").read_text(encoding="utf-8")
    config = load_config(CONFIGS / "default.yaml", environ={})
    top = fields(Config, yaml.safe_load(text))
    fields(Scene, top["scene"])
    fields(Camera, top["camera"])
    fields(Render, top["render"])
    fields(Log, fields(Telemetry, top["telemetry"])["log"])
    fields(Http, top["http"])
    (out,) = top["outputs"]
    fields(Output, out)

    context = {"base_dir": str(CONFIGS)}
    minimal = {
        "scene": {"path": top["scene"]["path"]},
        "camera": {key: top["camera"][key] for key in ("width", "height")},
        "outputs": [out["uri"]],
    }
    assert config == Config.model_validate(minimal, context=context)


def test_default_yaml_shows_every_camera_path(tmp_path: Path) -> None:
    text = (CONFIGS / "default.yaml").read_text(encoding="utf-8")
    blocks = re.findall(r"^  # path:\n(?:  #  .*\n)+", text, re.MULTILINE)
    models = {
        "orbit": OrbitPath,
        "fixed": FixedPath,
        "keyframes": KeyframesPath,
        "cameras_json": CamerasJsonPath,
        "udp": UdpPath,
        "mqtt": MqttPath,
        "interactive": InteractivePath,
    }
    seen = []
    for block in blocks:
        uncommented = re.sub(r"^  # ", "  ", block, flags=re.MULTILINE)
        assert "  path: null\n" in text
        shown = text.replace("  path: null\n", uncommented)
        if "interactive" in uncommented:  # moved by the keys of a window
            shown = shown.replace("mjpeg://127.0.0.1:8080\n    # Whether", "display://0\n    # Whether")
        config = load(tmp_path, shown)
        written = yaml.safe_load(uncommented)["path"]
        kind = written["kind"]
        seen.append(kind)
        fields(models[kind], written)
        for key in written.get("keys", []):
            fields(Key, key)
        path = config.camera.path
        assert path is not None
        settings = path.model_dump()
        for name, field in models[kind].model_fields.items():
            if not field.is_required():
                assert settings[name] == field.default, name
    assert seen == list(models)


def test_default_yaml_shows_the_background(tmp_path: Path) -> None:
    text = (CONFIGS / "default.yaml").read_text(encoding="utf-8")
    (block,) = re.findall(r"^  # background:\n(?:  #   .*\n)+", text, re.MULTILINE)
    uncommented = re.sub(r"^  # ", "  ", block, flags=re.MULTILINE)
    config = load(tmp_path, text.replace("  background: null\n", uncommented))
    written = fields(Background, yaml.safe_load(uncommented)["background"])
    assert config.camera.background == Background.model_validate(written)
    assert config.camera.background == Background.model_validate(written["uri"]), "the defaults"


def test_demo_yaml() -> None:
    config = load_config(CONFIGS / "demo.yaml", environ={})
    out = CONFIGS.parent / "out"
    assert config.scene.path == str(out / "room.ply")
    assert [output.uri.text for output in config.outputs] == ["mjpeg://127.0.0.1:8080", f"file://{out}/demo.mp4"]
    assert config.telemetry.log.dir == str(out / "runs")
    assert (config.camera.width, config.camera.height) == (640, 360)
    path, inside = config.camera.path, synth.room_orbit()
    assert isinstance(path, OrbitPath)
    assert (path.center, path.radius, path.height, path.up) == tuple(inside)


def test_camera_path_settingsare_what_build_path_takes(tmp_path: Path) -> None:
    for path in (
        "{kind: orbit}",
        "{kind: fixed, eye: [0, 0, -1], target: [0, 0, 0]}",
        "{kind: keyframes, keys: [{eye: [0, 0, 1], target: [0, 0, 0]}, {eye: [1, 0, 0], target: [0, 1, 0]}]}",
    ):
        settings = load(tmp_path, MINIMAL.replace("480}", f"480, path: {path}}}")).camera.path
        assert settings is not None
        made = camera.build_path(settings.model_dump(), 640, 480, scene_bounds=((0.0, 0.0, 0.0), 1.0))
        assert made.camera_at(1.0).width == 640
