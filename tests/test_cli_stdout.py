"""A stdout that is closed, full or no longer read: one message or silence, and an exit code that is true."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import scenes

from edgegs.scene import write_ply

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = dict(os.environ, PYTHONPATH=str(ROOT))
#: Written at once, a failure meets the verb (or argparse); buffered, it comes when all is done.
BUFFERED = pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])


@pytest.fixture
def ply(tmp_path):
    write_ply(str(tmp_path / "cloud.ply"), scenes.cloud(30))
    return str(tmp_path / "cloud.ply")


def run(redirection, *arguments, cwd=None, **environment):
    """The command in a shell, which does what ``redirection`` says."""
    script = 'exec "$@" ' + redirection
    return subprocess.run(
        ["sh", "-c", script, "sh", sys.executable, "-m", "edgegs", *arguments],
        cwd=cwd,
        env=dict(ENVIRONMENT, **environment),
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(("redirection", "words"), [(">&-", "closed"), (">/dev/full", "No space left")])
@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["info", "PLY"], ["info", "PLY", "--json"]])
@BUFFERED
def test_what_cannot_be_printed_is_one_error(ply, arguments, redirection, words, unbuffered):
    done = run(redirection, *[ply if word == "PLY" else word for word in arguments], PYTHONUNBUFFERED=unbuffered)
    assert done.returncode == 73
    assert done.stderr.startswith("edgegs: error: standard output ")
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["info", "PLY"]])
@BUFFERED
def test_a_reader_that_has_gone_is_no_error(ply, arguments, unbuffered):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "edgegs", *[ply if word == "PLY" else word for word in arguments]]
    environment = dict(ENVIRONMENT, PYTHONUNBUFFERED=unbuffered)
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, env=environment)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("redirection", [">&-", ">/dev/full", "2>&-", ">&- 2>&-", "2>/dev/full"])
def test_the_first_error_decides(tmp_path, redirection):
    assert run(redirection, "info", str(tmp_path / "none.ply")).returncode == 66


def test_with_stdout_closed_nothing_is_printed_into_files(kernels, ply, tmp_path):
    out = tmp_path / "out.png"
    done = run(">&-", "render", ply, "-o", str(out), "--size", "32x32", "--backend", "host", PYTHONUNBUFFERED="1")
    assert done.returncode == 73
    assert out.read_bytes().startswith(b"\x89PNG")
    assert out.read_bytes().rstrip().endswith(b"IEND\xaeB`\x82")


def test_letters_that_stdout_lacks_become_escapes(ply):
    done = run("", "info", ply, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\\u2026" in done.stdout


def test_a_deleted_working_folder(kernels, ply, tmp_path):
    config = tmp_path / "edgegs.yaml"
    config.write_text('scene: {path: cloud.ply}\ncamera: {width: 32, height: 32}\noutputs: ["null:"]\n')
    gone = tmp_path / "gone"
    gone.mkdir()
    command = 'rmdir "$PWD" && exec "$0" -m edgegs run "$1" --frames 1'
    done = subprocess.run(
        ["sh", "-c", command, sys.executable, str(config)],
        cwd=str(gone),
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert f"log: {tmp_path}/runs/" in done.stdout
