"""``edgegs check-config``: what it prints where, and how it exits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from config_texts import MINIMAL

from edgegs.cli import main
from edgegs.config import load_config

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A right configuration; nothing of this machine's environment overrides it."""
    for variable in list(os.environ):
        if variable.startswith("EDGEGS__"):
            monkeypatch.delenv(variable)
    path = tmp_path / "c.yaml"
    path.write_text(MINIMAL)
    (tmp_path / "a.ply").touch()
    return str(path)


def test_ok(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-config", file]) == 0
    captured = capsys.readouterr()
    assert captured.out == f"{file}: ok\n"
    assert captured.err == ""


@pytest.mark.parametrize("name", ["wid", "packed-bins-tight-exact-patch8"])
def test_a_variant_that_there_is_not_is_wrong(file: str, capsys: pytest.CaptureFixture[str], name: str) -> None:
    Path(file).write_text(MINIMAL + f"render:\n  threads: 2\n  variant: {name}\n")
    assert main(["check-config", file]) == 78
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"{file}:6: render.variant: ")
    assert name in captured.err


def test_files_that_are_not_there_yet_are_a_warning(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path(file).write_text(MINIMAL.replace("a.ply", "b.ply").replace("480}", "480, background: file://loop.mp4}"))
    assert main(["check-config", file]) == 0
    captured = capsys.readouterr()
    assert captured.out == f"{file}: ok\n"
    folder = os.path.dirname(file)
    assert captured.err.splitlines() == [
        f"{file}: warning: scene.path: there is no {folder}/b.ply yet",
        f"{file}: warning: camera.background: there is no {folder}/loop.mp4 yet",
    ]


def test_a_textfile_without_a_folder_is_a_warning(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = os.path.dirname(file)
    warned = f": warning: telemetry.textfile: there is no {folder}/none yet"
    for name, told in (("none/edgegs.prom", warned), ("e.prom", "")):
        assert main(["check-config", file, "--set", f"telemetry.textfile={name}"]) == 0
        captured = capsys.readouterr()
        assert captured.out == f"{file}: ok\n"
        assert captured.err == (f"{file}{told}\n" if told else "")


def test_problems_go_to_stderr_one_a_line(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path(file).write_text(MINIMAL.replace("640", "8") + "rendr: {}\n")
    assert main(["check-config", file]) == 78
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert len(lines) == 2
    assert lines[0] == f"{file}:2: camera.width: must be at least 16 (got 8)"
    assert lines[1].startswith(f"{file}:4: rendr: unknown key")
    assert lines[1].endswith("did you mean render?")


def test_effective_is_a_configuration_again(file: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["check-config", file, "--effective", "--set", "camera.width=800", "--set", "render.threads=2"]) == 0
    shown = capsys.readouterr().out
    again = tmp_path / "again.yaml"
    again.write_text(shown)
    config = load_config(again, environ={})
    assert config == load_config(file, ["camera.width=800", "render.threads=2"], {})
    assert shown.startswith(f"# {file}: sha256 {config.sha256()}\n")
    assert yaml.safe_load(shown)["camera"]["width"] == 800


def test_effective_of_a_wrong_file_prints_no_configuration(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-config", file, "--effective", "--set", "camera.width=x"]) == 78
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("--set camera.width: camera.width: must be a whole number (got x)")


def test_environment_overrides(file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEGS__RENDER__THREADS", "3")
    assert main(["check-config", file, "--effective"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["render"]["threads"] == 3
    monkeypatch.setenv("EDGEGS__RENDER__THREDS", "3")
    assert main(["check-config", file]) == 78
    assert "environment variable EDGEGS__RENDER__THREDS: render.threds: unknown key" in capsys.readouterr().err


def test_file_errors_have_their_own_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-config", str(tmp_path / "none.yaml")]) == 66
    assert main(["check-config", str(tmp_path)]) == 66
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "none.yaml: no such file" in captured.err
    assert "a folder" in captured.err


def test_no_argument_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["check-config"])
    assert caught.value.code == 2
    assert "CONFIG" in capsys.readouterr().err


def test_shipped_configurations_are_right() -> None:
    for path in sorted((ROOT / "configs").glob("*.yaml")):
        if path.name == "field.yaml":  # a campaign
            assert main(["sweep", str(path), "--dry-run"]) == 0
        else:
            assert main(["check-config", str(path)]) == 0


def test_process_with_odd_names_and_a_plain_terminal(file: str) -> None:
    """In the C locale, with a name that is no text and bytes that are none: messages, never a traceback."""
    folder = os.fsencode(os.path.dirname(file)) + b"/\xfe\xc3\xb6"
    os.mkdir(folder)
    Path(os.fsdecode(folder), "a.ply").touch()
    good, bad = folder + b"/\xff\xc3\xa9\n.yaml", folder + b"/bad.yaml"
    with open(good, "wb") as out:
        out.write(MINIMAL.encode())
    with open(bad, "wb") as out:
        out.write((MINIMAL + '"\\e[31m\u00e9\\uD800": 1\n').encode())
    env = {key: value for key, value in os.environ.items() if not key.startswith("EDGEGS__")}
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), env.get("PYTHONPATH", "")])
    env.update(LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0", PYTHONIOENCODING="ascii")
    command = [sys.executable, "-m", "edgegs", "check-config"]
    done = subprocess.run([*command, good], env=env, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.endswith(b".yaml: ok\n")
    assert done.stdout.count(b"\n") == 1
    shown = subprocess.run([*command, good, "--effective"], env=env, capture_output=True, timeout=60, check=False)
    assert (shown.returncode, shown.stderr) == (0, b"")
    done = subprocess.run([*command, bad], env=env, capture_output=True, timeout=60, check=False)
    assert done.returncode == 78
    assert b"half a character" in done.stderr
    assert b"Traceback" not in done.stderr
    assert b"\x1b" not in done.stderr
