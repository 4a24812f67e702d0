"""`edgegs doctor` on made-up machines: what it finds, what it advises, and that nothing missing makes it fail."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

import pytest
from machines import nano, of, only, write

from edgegs import doctor
from edgegs.cli import main
from edgegs.findings import OK, PROBLEM, WARNING, Finding, ask_python

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def machine(tmp_path):
    """A machine with nothing in it: an empty root."""
    root = tmp_path / "root"
    root.mkdir()
    return root


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
    found = doctor.packages()
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
    assert {one.state for one in doctor.packages()} == {OK}, "all can be imported, though none says its version"


def test_the_nanos_numpy_needs_a_setting(machine, monkeypatch):
    nano(machine)
    monkeypatch.delenv("OPENBLAS_CORETYPE", raising=False)
    assert doctor.python(str(machine))[1].fix == "export OPENBLAS_CORETYPE=ARMV8"
    monkeypatch.setenv("OPENBLAS_CORETYPE", "ARMV8")
    assert [one.state for one in doctor.python(str(machine))] == [OK]


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
        ("YES", "NO", None, [OK, WARNING]),
        ("NO", "NO", None, [OK, WARNING, WARNING]),
        ("NO", "YES (1.14.5)", None, [OK]),
    ],
)
def test_opencv(monkeypatch, ffmpeg, gstreamer, launcher, states):
    words = BUILD.format(ffmpeg=ffmpeg, gstreamer=gstreamer)
    monkeypatch.setattr(doctor, "ask_python", lambda text, timeout_s: (json.dumps(["4.5.1", words]), ""))
    monkeypatch.setattr(shutil, "which", lambda name: launcher)
    found = doctor.opencv()
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
    monkeypatch.setattr(doctor, "ask_python", lambda text, timeout_s: ("", reason))
    (one,) = doctor.opencv()
    assert one.state == PROBLEM
    assert reason in one.says
    assert fix in one.fix


def test_sensors_of_a_nano(machine):
    for index, (kind, value) in enumerate((("CPU-therm", "41500\n"), ("PMIC-Die", "100000\n"))):
        zone = machine / f"sys/class/thermal/thermal_zone{index}"
        write(zone / "type", kind + "\n")
        write(zone / "temp", value)
    monitor = machine / "sys/bus/i2c/drivers/ina3221x/6-0040/iio:device0"
    for name, value in (
        ("rail_name_0", "POM_5V_IN"),
        ("in_power0_input", "3000"),
        ("in_voltage0_input", "5000"),
        ("in_current0_input", "600"),
    ):
        write(monitor / name, value + "\n")
    (one,) = doctor.sensors(str(machine))
    assert one.state == OK
    assert "thermal" in one.says
    assert "1 temperatures" in one.says
    assert "power of POM_5V_IN" in one.says


def test_no_sensors(machine):
    none, power = doctor.sensors(str(machine))
    assert (none.state, none.says) == (OK, "none is found here")
    assert (power.state, power.says) == (WARNING, "nothing here tells power: the log will have no watts")


def test_a_sensor_that_cannot_be_read(machine):
    zone = machine / "sys/class/thermal/thermal_zone0"
    write(zone / "type", "CPU-therm\n")
    write(zone / "temp", "-256000\n")
    found = doctor.sensors(str(machine))
    assert any(one.state == WARNING and one.says.startswith("thermal is here, but cannot be read") for one in found)


def test_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("EDGEGS_CACHE", str(tmp_path / "not" / "there" / "yet"))
    (one,) = doctor.cache()
    assert one.state == OK
    assert not (tmp_path / "not").exists(), "nothing is made by looking"

    monkeypatch.setattr(doctor.os, "access", lambda path, mode: False)
    (one,) = doctor.cache()
    assert one.state == WARNING
    assert f"{tmp_path} is not writable" in one.says
    monkeypatch.undo()

    monkeypatch.setenv("EDGEGS_CACHE", str(tmp_path / "file"))
    write(tmp_path / "file", "")
    (one,) = doctor.cache()
    assert one.state == WARNING
    assert one.fix == f"rm {tmp_path / 'file'}"

    monkeypatch.setenv("EDGEGS_CACHE", str(tmp_path))
    usage = shutil.disk_usage(str(tmp_path))._replace(free=7_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    (one,) = doctor.cache()
    assert one.state == WARNING
    assert "only 7 MB" in one.says


def test_the_cache_of_a_user_without_a_home(monkeypatch):
    for name in ("EDGEGS_CACHE", "CACHE_DIRECTORY", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def none(cls):
        raise RuntimeError("no home")

    monkeypatch.setattr(Path, "home", classmethod(none))
    (one,) = doctor.cache()
    assert one.state == WARNING
    assert "EDGEGS_CACHE" in one.fix


@pytest.mark.parametrize(
    ("total", "available", "swap", "n_warnings"),
    [
        (16_000_000, 8_000_000, 0, 0),
        (4_059_000, 3_000_000, 4_000_000, 0),
        (4_059_000, 3_000_000, 0, 1),
        (4_059_000, 200_000, 0, 2),
    ],
)
def test_memory(machine, total, available, swap, n_warnings):
    write(machine / "proc/meminfo", f"MemTotal: {total} kB\nMemAvailable: {available} kB\nSwapTotal: {swap} kB\n")
    found = doctor.memory(str(machine))
    assert [one.state for one in found] == [OK] + n_warnings * [WARNING]
    assert all(one.fix for one in found[1:])


def test_memory_that_is_not_told(machine):
    assert [one.state for one in doctor.memory(str(machine))] == [WARNING]


def test_a_check_that_breaks_or_hangs_is_a_finding_and_the_others_go_on(monkeypatch):
    def broken(*_):
        raise ZeroDivisionError("of all things")

    monkeypatch.setattr(doctor, "packages", broken)
    monkeypatch.setattr(doctor, "opencv", lambda: time.sleep(5))
    for name in ("_gpu_and_images", "sensors"):
        monkeypatch.setattr(doctor, name, lambda root: [Finding("quick", OK, "")])
    monkeypatch.setattr(doctor, "_toolchains", list)
    found = doctor.examine(deadline_s=0.5)
    assert only(found, "packages").says == "cannot be examined: ZeroDivisionError: of all things"
    assert only(found, "opencv") == Finding("opencv", PROBLEM, "no answer within 0.5 s")
    assert found[0].check == "python"
    assert len(of(found, "quick")) == 2


@pytest.mark.parametrize(("states", "code"), [([OK], 0), ([OK, WARNING], 0), ([PROBLEM, OK], 1)])
def test_exit_code_and_json(monkeypatch, capsys, states, code):
    listed = [Finding("a", state, "two\nlines", "mend it" if state != OK else "") for state in states]
    monkeypatch.setattr(doctor, "examine", lambda: listed)
    assert main(["doctor", "--json"]) == code
    document = json.loads(capsys.readouterr().out)
    assert [one["state"] for one in document["findings"]] == states
    assert set(document["findings"][0]) == {"check", "state", "says", "fix"}
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


def test_the_real_thing_here(kernels):
    """This machine, with the host kernels built: everything answers, and each warning says what it is about."""
    found = doctor.examine()
    assert not [one for one in found if "no answer" in one.says or "cannot be examined" in one.says]
    assert any("the host backend takes" in one.says for one in of(found, "images"))
    assert all(one.state in (OK, WARNING, PROBLEM) and one.says for one in found)
    assert os.environ["EDGEGS_CACHE"] in only(found, "cache").says
