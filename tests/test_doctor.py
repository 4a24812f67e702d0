"""`edgegs doctor` on made-up machines: Python, packages, OpenCV; all checks together, and the command."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from importlib import metadata
from pathlib import Path

import pytest
from machines import World, nano, of, only, run_cases

from edgegs import doctor
from edgegs.cli import main
from edgegs.doctor import software
from edgegs.doctor.machine import Machine
from edgegs.findings import OK, PROBLEM, WARNING, Finding, ask_python
from edgegs.kernels.manifest import Image, source_hash, store

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def world(tmp_path, monkeypatch):
    """A machine with nothing in it."""
    return World(tmp_path, monkeypatch)


# ---- one case of each finding ------------------------------------------------------------------------


def _reason(world, reason):
    world.patch.setattr(software, "ask_python", lambda script, timeout_s: ("", reason))


def _version(world, **versions):
    known = metadata.version

    def version(name):
        if name in versions and versions[name] is None:
            raise metadata.PackageNotFoundError(name)
        return versions[name] if name in versions else known(name)

    world.patch.setattr(metadata, "version", version)
    world.patch.setattr("importlib.util.find_spec", lambda name: None)


def _coretype(world):
    nano(world.root)
    return software.python(world.machine)


def _illegal(world):
    _reason(world, "ended by signal 4")
    return software.numpy()


def _numpy_broken(world):
    _reason(world, "ImportError: numpy.core.multiarray failed to import")
    return software.numpy()


def _package(**versions):
    def case(world):
        _version(world, **versions)
        world.patch.setattr(metadata, "requires", lambda name: ["numpy>=1.24", "plyfile>=1.0.3"])
        return software.packages(world.machine)

    return case


def _python(**versions):
    def case(world):
        _version(world, **versions)
        return software.python(world.machine)

    return case


def _preload(world):
    world.environ["LD_PRELOAD"] = "/usr/lib/libgone.so.1"
    return software.python(world.machine)


def _opencv(reason):
    def case(world):
        _reason(world, reason)
        return software.opencv()

    return case


def _no_video(world):
    answer = json.dumps(["4.5.1", "FFMPEG: NO"])
    world.patch.setattr(software, "ask_python", lambda script, timeout_s: (answer, ""))
    return software.opencv()


def _cuda_headers(world):
    nano(world.root)
    return software.pycuda_build(world.machine)


def _python_headers(world):
    world.write("usr/local/cuda-10.2/include/cuda.h")
    world.patch.setattr(sysconfig, "get_paths", lambda: {"include": str(world.tmp_path)})
    return software.pycuda_build(world.machine)


def _only_memory(world):
    for name in ("_gpu_and_images", "_toolchains", "_sensors", "_service", "_configuration"):
        world.patch.setattr(doctor, name, lambda *_: [])
    for name in ("python", "packages", "opencv"):
        world.patch.setattr(software, name, lambda *_: [])


def _check_failed(world):
    _only_memory(world)
    world.patch.setattr(doctor.storage, "memory", lambda machine: 1 / 0)
    return of(doctor.examine(machine=world.machine), "memory")


def _check_hangs(world):
    _only_memory(world)
    world.patch.setattr(doctor.storage, "memory", lambda machine: time.sleep(5))
    return of(doctor.examine(machine=world.machine, deadline_s=0.2), "memory")


CASES = {
    "openblas-coretype": _coretype,
    "illegal-instruction": _illegal,
    "numpy-broken": _numpy_broken,
    "package-missing": _package(plyfile=None),
    "package-old": _package(plyfile="0.7"),
    "package-unknown": _python(UNKNOWN="0.0.0"),
    "pip-old": _python(pip="9.0.1"),
    "ld-preload-missing": _preload,
    "static-tls": _opencv("ImportError: /usr/lib/libgomp.so.1: cannot allocate memory in static TLS block"),
    "opencv-libraries": _opencv("ImportError: libGL.so.1: cannot open shared object file"),
    "opencv-broken": _opencv("ImportError: undefined symbol"),
    "opencv-no-video": _no_video,
    "cuda-headers-missing": _cuda_headers,
    "python-headers-missing": _python_headers,
    "check-failed": _check_failed,
    "check-hangs": _check_hangs,
}


@pytest.mark.parametrize("code", CASES)
def test_each_finding(code, tmp_path, monkeypatch):
    run_cases(CASES, code, tmp_path, monkeypatch)


# ---- Python and packages -----------------------------------------------------------------------------


def test_packages_are_compared_with_what_is_asked_for(monkeypatch):
    versions = {"numpy": "1.9.5", "PyYAML": "6.0", "plyfile": "1.0.3", "pydantic": "2.10.0rc1", "pycuda": "2021.1"}
    needs = ["numpy>=1.24", "PyYAML>=6.0", "plyfile>=1.0.3", "pydantic>=2.10", 'pycuda>=2022.1; extra == "cuda"']
    needs += ["prometheus-client>=0.21"]

    def version(name):
        if name not in versions:
            raise metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(metadata, "requires", lambda name: needs)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    found = software.packages(Machine())
    assert [(one.state, one.says) for one in found[1:]] == [
        (PROBLEM, "numpy 1.9.5 is older than 1.24"),
        (PROBLEM, "prometheus-client is missing"),
        (WARNING, "pycuda 2021.1 is older than 2022.1"),
    ]
    assert found[1].fix.endswith("-m pip install --upgrade 'numpy>=1.24'")
    assert found[2].fix.endswith("-m pip install 'prometheus-client>=0.21'")
    assert "plyfile 1.0.3" in found[0].says
    assert "paho-mqtt (edgegs[mqtt])" in found[0].says


def test_packages_of_a_bare_checkout_and_of_the_system(monkeypatch):
    def unknown(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", unknown)
    monkeypatch.setattr(metadata, "requires", unknown)
    assert {one.state for one in software.packages(Machine())} == {OK}, "all can be imported"


def test_the_nanos_numpy_needs_a_setting(world):
    nano(world.root)
    assert software.python(world.machine)[1].fix == "export OPENBLAS_CORETYPE=ARMV8"
    world.environ["OPENBLAS_CORETYPE"] = "ARMV8"
    assert [one.state for one in software.python(world.machine)] == [OK]


BUILD = """
  Video I/O:
    FFMPEG:                      {ffmpeg}
      avcodec:                   YES (59.37.100)
    GStreamer:                   {gstreamer}
  Media I/O:
    JPEG:                        build-libjpeg-turbo (ver 2.1.3-62)
"""


@pytest.mark.parametrize(
    ("ffmpeg", "gstreamer", "launcher", "states"),
    [
        ("YES", "YES (1.20.3)", None, [OK]),
        ("YES", "NO", "/usr/bin/gst-launch-1.0", [OK]),
        ("YES", "NO", None, [OK, OK]),
        ("NO", "NO", None, [OK, WARNING, OK]),
        ("NO", "YES (1.14.5)", None, [OK]),
    ],
)
def test_opencv(monkeypatch, ffmpeg, gstreamer, launcher, states):
    words = BUILD.format(ffmpeg=ffmpeg, gstreamer=gstreamer)
    monkeypatch.setattr(software, "ask_python", lambda text, timeout_s: (json.dumps(["4.5.1", words]), ""))
    monkeypatch.setattr(shutil, "which", lambda name: launcher)
    found = software.opencv()
    assert [one.state for one in found] == states
    assert f"cv2 4.5.1, GStreamer {gstreamer}; " in found[0].says
    assert "avcodec YES (59.37.100)" in found[0].says
    assert all(one.fix for one in found[1:])


@pytest.mark.parametrize(
    ("reason", "fix"),
    [
        ("ImportError: libGL.so.1: cannot open shared object file", "sudo apt install libgl1 libglib2.0-0"),
        (
            "ImportError: /usr/lib/libgomp.so.1: cannot allocate memory in static TLS block",
            "LD_PRELOAD=/usr/lib/libgomp.so.1",
        ),
        ("ended by signal 4", "OPENBLAS_CORETYPE"),
        ("ModuleNotFoundError: No module named 'cv2'", "-m pip install opencv-python"),
        ("no answer within 6 s", "--force-reinstall"),
    ],
)
def test_opencv_that_cannot_be_imported(monkeypatch, reason, fix):
    monkeypatch.setattr(software, "ask_python", lambda text, timeout_s: ("", reason))
    (one,) = software.opencv()
    assert one.state == PROBLEM
    assert reason in one.says
    assert fix in one.fix


def test_a_check_that_breaks_or_hangs_is_a_finding_and_the_others_go_on(world):
    def broken(*_):
        raise ZeroDivisionError("of all things")

    world.patch.setattr(software, "packages", broken)
    world.patch.setattr(software, "opencv", lambda: time.sleep(5))
    for name in ("_gpu_and_images", "_sensors"):
        world.patch.setattr(doctor, name, lambda root: [Finding("quick", OK, "")])
    for name in ("_toolchains", "_service", "_configuration"):
        world.patch.setattr(doctor, name, lambda *_: [])
    found = doctor.examine(machine=world.machine, deadline_s=0.5)
    assert only(found, "packages").says == "cannot be examined: ZeroDivisionError: of all things"
    late = only(found, "opencv")
    assert (late.state, late.says, late.code) == (PROBLEM, "no answer within 0.5 s", "check-hangs")
    assert found[0].check == "python"
    assert len(of(found, "quick")) == 2


@pytest.mark.parametrize(("states", "code"), [([OK], 0), ([OK, WARNING], 0), ([PROBLEM, OK], 1)])
def test_exit_code_and_json(monkeypatch, capsys, states, code):
    listed = [Finding("a", state, "two\nlines", "mend it" if state != OK else "") for state in states]
    monkeypatch.setattr(doctor, "examine", lambda config=None: listed)
    assert main(["doctor", "--json"]) == code
    document = json.loads(capsys.readouterr().out)
    assert [one["state"] for one in document["findings"]] == states
    assert set(document["findings"][0]) == {"check", "state", "says", "fix", "code"}
    assert document["n_problems"] == states.count(PROBLEM)
    assert document["n_warnings"] == states.count(WARNING)
    assert main(["doctor"]) == code
    out = capsys.readouterr().out
    assert "two lines" in out
    assert ("-> mend it" in out) == (states != [OK])


def test_asking_a_python_of_its_own():
    assert ask_python("print('yes')", 20) == ("yes\n", "")
    assert ask_python("import os; os.abort()", 20)[1].endswith("ended by signal 6")
    assert ask_python("import sys; sys.exit('a reason')", 20) == ("", "a reason")
    assert ask_python("raise SystemExit(3)", 20) == ("", "ended with status 3")
    assert ask_python("import time; time.sleep(30)", 0.2) == ("", "no answer within 0.2 s")
    assert ask_python("import edgegs; print(edgegs.__version__)", 20)[1] == ""


def test_the_real_thing_without_packages_and_without_home(tmp_path):
    """Only the standard library, no environment: findings, not a traceback."""
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}
    command = [sys.executable, "-S", "-m", "edgegs", "doctor", "--json"]
    done = subprocess.run(command, cwd=str(tmp_path), env=environment, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    found = [Finding(**row) for row in json.loads(done.stdout)["findings"]]
    assert any(one.state == PROBLEM and one.says == "numpy is missing" for one in found)
    assert {"python", "packages", "gpu", "toolchains", "opencv", "sensors", "cache", "memory"} <= {
        one.check for one in found
    }
    assert list(tmp_path.iterdir()) == []


def test_the_real_thing_here(tmp_path, monkeypatch):
    """This machine, with an image for the host: everything answers, and each warning says what it is about."""
    monkeypatch.setenv("EDGEGS_CACHE", str(tmp_path))
    (tmp_path / "kernels").mkdir()
    store(tmp_path / "kernels", Image("host.so", "host", "so", [], "fake 1.0", [], source_hash(), ""), b"image")
    found = doctor.examine()
    assert not [one for one in found if "no answer" in one.says or "cannot be examined" in one.says]
    assert any("the host backend takes" in one.says for one in of(found, "images"))
    assert all(one.state in (OK, WARNING, PROBLEM) and one.says for one in found)
    assert all(one.code and one.fix for one in found if one.state != OK)
    assert os.environ["EDGEGS_CACHE"] in only(found, "cache").says
