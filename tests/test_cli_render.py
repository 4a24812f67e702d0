"""``edgegs render``: the picture, the JSON object, and every kind of bad input."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
import scenes

from edgegs.cli import main
from edgegs.kernels.variants import DEFAULTS
from edgegs.scene import write_ply

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def ply(tmp_path):
    path = tmp_path / "cloud.ply"
    write_ply(str(path), scenes.cloud(300))
    return str(path)


@pytest.mark.parametrize("backend", ["host", "reference"])
def test_json_reports_the_frame(kernels, ply, tmp_path, capsys, backend):
    out = str(tmp_path / "out.png")
    assert main(["render", ply, "-o", out, "--size", "97x81", "--backend", backend, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["backend"] == backend
    assert report["variant"] == DEFAULTS[backend].name
    assert (report["width"], report["height"], report["n_splats"]) == (97, 81, 300)
    assert 0 < report["n_visible"] <= 300
    assert report["n_instances"] >= report["n_visible"]
    assert set(report["stage_ms"]) == {"project", "duplicate", "sort", "ranges", "rasterize"}
    assert report["frame_ms"] > 0
    image = cv2.imread(out)
    assert image.shape == (81, 97, 3)
    assert image.max() > 100


def test_backends_and_repeats_draw_the_same_picture(kernels, ply, tmp_path):
    pictures = []
    for name, backend, repeat in (("a", "host", "1"), ("b", "reference", "1"), ("c", "host", "3")):
        out = str(tmp_path / (name + ".png"))
        assert main(["render", ply, "-o", out, "--size", "64x48", "--backend", backend, "--repeat", repeat]) == 0
        pictures.append(cv2.imread(out).astype(int))
    assert np.abs(pictures[0] - pictures[1]).max() <= 1
    np.testing.assert_array_equal(pictures[0], pictures[2])


def test_views_of_a_training(kernels, ply, tmp_path, shared_data, capsys):
    view = f"{shared_data / 'photos' / 'snowmiku' / 'cameras.json'}:3"
    assert main(["render", ply, "-o", str(tmp_path / "a.jpg"), "--view", view, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["width"], report["height"]) == (989, 742)
    assert main(["render", ply, "-o", str(tmp_path / "a.jpg"), "--view", view, "--size", "320x240", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["width"] == 320


def test_eye_and_target(kernels, tmp_path):
    path = str(tmp_path / "one.ply")
    write_ply(path, scenes.one(mean=(3, 1, 2), scale=(0.05, 0.05, 0.05), opacity=0.99, colour=(1, 1, 1)))
    out = str(tmp_path / "out.png")
    assert main(["render", path, "-o", out, "--size", "65x65", "--eye", "3,1,-1", "--target", "3,1,2"]) == 0
    image = cv2.imread(out)
    assert np.unravel_index(image[..., 0].argmax(), (65, 65)) == (32, 32)


BAD_ARGUMENTS = [
    (["--size", "640"], 2, "expected WIDTHxHEIGHT"),
    (["--size", "99999x1"], 2, "8192"),
    (["--fov", "200"], 2, "from 1 to 170"),
    (["--fov", "nan"], 2, "from 1 to 170"),
    (["--eye", "1,2"], 2, "three numbers"),
    (["--eye", "1,2,nan"], 2, "three numbers"),
    (["--target", "1,2,3"], 2, "needs --eye"),
    (["--eye", "1,2,3", "--target", "1,2,3"], 2, ""),
    (["--view", "cameras.json"], 2, "CAMERAS.json:INDEX"),
    (["--view", "no-such-file.json:0"], 66, "no-such-file.json"),
    (["--view", "cameras.json:²"], 2, "CAMERAS.json:INDEX"),
    (["--view", "cameras.json:--5"], 2, "CAMERAS.json:INDEX"),
    (["--view", "cameras.json:-1"], 2, "CAMERAS.json:INDEX"),
    (["--view", "cameras.json:" + "9" * 5000], 2, "CAMERAS.json:INDEX"),
    (["--repeat", "0"], 2, "from 1 to"),
    (["--background", "2,0,0"], 2, "from 0 to 1"),
    (["--variant", "basline"], 2, "error: --variant: no variant 'basline'; did you mean 'baseline'"),
    (["--threads", "-1"], 2, "from 0 to 1024"),
    (["--threads", "1025"], 2, "from 0 to 1024"),
    (["--threads", "99999999999999999999"], 2, "from 0 to 1024"),
    (["--threads", "1.5"], 2, "from 0 to 1024"),
    (["--backend", "vulkan"], 2, "invalid choice"),
    (["--max-gaussians", "0"], 2, "from 1 to"),
    (["--max-gaussians", "1" + "0" * 30], 2, "from 1 to"),
]


@pytest.mark.parametrize(("arguments", "code", "words"), BAD_ARGUMENTS)
def test_bad_arguments(kernels, ply, tmp_path, capsys, arguments, code, words):
    try:
        got = main(["render", ply, "-o", str(tmp_path / "out.png"), *arguments])
    except SystemExit as stop:  # argparse's own refusals
        got = stop.code
    assert got == code
    captured = capsys.readouterr()
    assert words in captured.err
    assert "Traceback" not in captured.err
    assert not (tmp_path / "out.png").exists()


def test_outputs_that_cannot_be_written(kernels, ply, tmp_path, capsys):
    assert main(["render", ply]) == 2
    assert main(["render", ply, "-o", str(tmp_path / "out.bmp2")]) == 2
    assert main(["render", ply, "-o", str(tmp_path / "none" / "out.png")]) == 73
    assert "none/out.png" in capsys.readouterr().err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cloud.ply"]


def test_a_failure_leaves_nothing_behind(kernels, ply, tmp_path, capsys):
    (tmp_path / "out.png").mkdir()
    assert main(["render", ply, "-o", str(tmp_path / "out.png"), "--size", "32x32", "--backend", "host"]) == 73
    assert "out.png" in capsys.readouterr().err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cloud.ply", "out.png"]


def test_an_unknown_variant_is_refused_before_the_scene_is_read(tmp_path, capsys):
    assert main(["render", str(tmp_path / "none.ply"), "--json", "--variant", "nope"]) == 2
    assert "render.variant" not in capsys.readouterr().err


@pytest.mark.parametrize(("asked", "level"), [("auto", logging.WARNING), ("reference", logging.INFO)])
def test_falling_back_to_the_reference_is_a_warning(ply, tmp_path, monkeypatch, caplog, asked, level):
    from edgegs.backends.reference import ReferenceBackend

    monkeypatch.setattr("edgegs.backends.create", lambda *_, **__: (ReferenceBackend(), "backend reference (why)"))
    with caplog.at_level(logging.INFO):
        assert main(["render", ply, "--json", "--size", "32x32", "--backend", asked]) == 0
    assert [record.levelno for record in caplog.records if record.message == "backend reference (why)"] == [level]


def header(
    count,
    properties=(
        "x",
        "y",
        "z",
        "f_dc_0",
        "f_dc_1",
        "f_dc_2",
        "opacity",
        "scale_0",
        "scale_1",
        "scale_2",
        "rot_0",
        "rot_1",
        "rot_2",
        "rot_3",
    ),
    rows=b"",
):
    lines = ["ply", "format binary_little_endian 1.0", f"element vertex {count}"]
    lines += [f"property float {name}" for name in properties] + ["end_header", ""]
    return "\n".join(lines).encode() + rows


ROW = np.array([0, 0, 2, 1, 1, 1, 2, -3, -3, -3, 1, 0, 0, 0], "<f4").tobytes()
NAN = np.full(14, np.nan, "<f4").tobytes()
MESH = (
    b"ply\nformat ascii 1.0\nelement vertex 1\nproperty float x\nproperty float y\nproperty float z\n"
    b"element face 1\nproperty list uchar int vertex_indices\nend_header\n0 0 0\n3 0 0 0\n"
)
WITHOUT_OPACITY = (
    "x",
    "y",
    "z",
    "f_dc_0",
    "f_dc_1",
    "f_dc_2",
    "scale_0",
    "scale_1",
    "scale_2",
    "rot_0",
    "rot_1",
    "rot_2",
    "rot_3",
)

BAD_SCENES = {
    "truncated": (header(3, rows=ROW * 2 + ROW[:9]), 65, "2"),
    "too-many": (header(5, rows=ROW), 65, "5"),
    "10^12": (header(10**12, rows=ROW), 65, "1,000,000,000,000"),
    "negative": (header(-1, rows=ROW), 65, "-1"),
    "without-opacity": (header(1, WITHOUT_OPACITY, ROW), 65, "opacity"),
    "mesh": (MESH, 65, "mesh"),
    "empty": (b"", 65, "empty"),
    "zero-splats": (header(0), 65, "zero splats"),
    "all-nan": (header(2, rows=NAN * 2), 65, "non-finite"),
    "not-a-ply": (b"hello", 65, "ply"),
}


def run(*arguments):
    """The command as a user runs it."""
    command = [sys.executable, "-m", "edgegs", *arguments]
    return subprocess.run(command, cwd=str(ROOT), capture_output=True, text=True)


@pytest.mark.parametrize("name", sorted(BAD_SCENES))
def test_bad_scenes_are_refused_in_one_line(tmp_path, name):
    content, code, words = BAD_SCENES[name]
    path = tmp_path / (name + ".ply")
    path.write_bytes(content)
    assert_refused(path, code, words)


def test_directories_and_fifos_and_missing_files_are_refused(tmp_path):
    os.mkfifo(str(tmp_path / "fifo.ply"))
    (tmp_path / "folder.ply").mkdir()
    assert_refused(tmp_path / "fifo.ply", 66, "FIFO")
    assert_refused(tmp_path / "folder.ply", 66, "is a folder")
    assert_refused(tmp_path / "missing.ply", 66, "missing.ply")


def assert_refused(path, code, words):
    script = (
        "import re, sys, time; from edgegs.cli import main; start = time.monotonic();"
        f"code = main(['render', {str(path)!r}, '-o', {str(path) + '.png'!r}]);"
        # its own peak: ru_maxrss would include that of the process that it was forked from
        "status = open('/proc/self/status').read();"
        "print(time.monotonic() - start, int(re.search(r'VmHWM:\\s+(\\d+)', status).group(1)) / 1024); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=str(ROOT),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == code, done.stderr
    assert done.stderr.startswith("edgegs: error: ")
    assert len(done.stderr.strip().splitlines()) == 1
    assert path.name in done.stderr
    assert words.lower() in done.stderr.lower()
    seconds, megabytes = (float(value) for value in done.stdout.split())
    assert seconds < 2, "a bad file must not cost time"
    assert megabytes < 300, "a bad file must not cost memory"


def test_version_and_usage():
    done = run("--version")
    assert done.returncode == 0
    assert done.stdout.startswith("edgegs 0.")
    done = run()
    assert done.returncode == 2
    assert "usage" in done.stderr
