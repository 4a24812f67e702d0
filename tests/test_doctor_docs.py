"""docs/troubleshooting.md, the code and the tests know the same findings; and whatever files hold, the doctor ends."""

from __future__ import annotations

import ast
import os
import re
import time
from pathlib import Path

import pytest
import test_doctor
import test_doctor_board
import test_doctor_config
import test_doctor_service
from machines import World, recorded_nano

from edgegs import doctor
from edgegs.doctor import board, kernel_log, sensors, service, software, storage
from edgegs.findings import OK, PROBLEM, WARNING

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/troubleshooting.md"
MODULES = [*sorted((ROOT / "edgegs/doctor").glob("*.py")), ROOT / "edgegs/kernels/health.py"]
TESTS = (test_doctor, test_doctor_board, test_doctor_config, test_doctor_service)
#: What makes a finding with a code; the code is the second argument.
MAKERS = {"note", "warning", "problem", "tell"}


def rows():
    return re.findall(r"^\| `([a-z0-9-]+)` \|(.*)\|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


def texts(node):
    return {one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)}


def codes_of(path):
    """Literal codes of a module: arguments of the makers, or what the name ``code`` is set to."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and len(node.args) > 2:
            names = {one.id for one in ast.walk(node.func) if isinstance(one, ast.Name)}
            if names & MAKERS:
                found |= texts(node.args[1])
        elif isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "code":
            found |= {text for text in texts(node.value) if re.fullmatch("[a-z-]+", text)}
        elif isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple) and len(node.value.elts) == 3:
            found |= {text for text in texts(node.value.elts[0]) if re.fullmatch("[a-z-]+", text)}
    return found


def test_page_code_and_tests_know_the_same_findings():
    on_page = [code for code, _ in rows()]
    assert len(on_page) == len(set(on_page)), "a finding has one row"
    in_code = set().union(*map(codes_of, MODULES)) | {sign[1] for sign in kernel_log.SIGNS} | set(doctor._FIXES)
    in_tests = [code for module in TESTS for code in module.CASES]
    assert len(in_tests) == len(set(in_tests))
    assert in_code == set(on_page)
    assert set(in_tests) == set(on_page)


def test_each_row_has_what_one_sees_a_cause_and_a_command():
    for code, rest in rows():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", rest)]
        assert len(cells) == 3, code
        sees, _, command = cells  # the cause may be plain from what one sees
        assert sees, code
        assert command, code


# ---- whatever the files hold -------------------------------------------------------------------------


def garbage(path):
    path.write_bytes(bytes(range(256)) * 40)


def nothing(path):
    path.write_bytes(b"")


def fifo(path):
    path.unlink()
    os.mkfifo(str(path))


def folder(path):
    path.unlink()
    path.mkdir()


def endless(path):
    path.unlink()
    path.symlink_to("/dev/zero")


def loop(path):
    path.unlink()
    path.symlink_to(path.name)


def huge_number(path):
    path.write_text("9" * 4000 + "\n")


DEADLINE_S = 4.0


def look_everywhere(world):
    """All checks that read files below the root."""
    return doctor.examine(machine=world.machine, deadline_s=DEADLINE_S)


@pytest.mark.parametrize("spoil", [garbage, nothing, fifo, folder, endless, loop, huge_number])
def test_each_file_spoilt(spoil, tmp_path, monkeypatch):
    """One file after another is replaced: the doctor ends, and no check fails or hangs."""
    world = World(tmp_path, monkeypatch)
    recorded_nano(world.root)
    monkeypatch.setattr(sensors, "SENSOR_TIMEOUT_S", 0.02)
    for name in ("_gpu_and_images", "_toolchains", "_configuration"):
        monkeypatch.setattr(doctor, name, lambda *_: [])
    for name in ("packages", "opencv"):
        monkeypatch.setattr(software, name, lambda *_: [])
    world.unit()
    fifos = []
    files = sorted(path for path in world.root.rglob("*") if path.is_file())
    assert len(files) > 30
    for path in files:
        saved = path.read_bytes()
        spoil(path)
        if spoil is fifo:
            fifos.append(os.open(str(path), os.O_RDWR | os.O_NONBLOCK))
        begun = time.monotonic()
        found = look_everywhere(world)
        assert time.monotonic() - begun < DEADLINE_S + 1, path
        assert all(one.state in (OK, WARNING, PROBLEM) and one.says for one in found)
        assert {one.check for one in found} >= {"python", "memory", "clock", "sensors"}, path
        failed = [one for one in found if one.code in doctor._FIXES]
        assert not failed, (path, failed)
        for descriptor in fifos:
            os.close(descriptor)
        fifos.clear()
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        else:
            path.unlink()
        path.write_bytes(saved)


def test_a_root_that_is_not_there(tmp_path, monkeypatch):
    world = World(tmp_path, monkeypatch)
    world.root.rmdir()
    here = world.machine
    looks = (board.board, board.clock, sensors.sensors, kernel_log.kernel_log, storage.memory, storage.disks)
    assert all(one.says for look in (*looks, service.service) for one in look(here))


def test_programs_that_hang_flood_or_leave_children(tmp_path, monkeypatch):
    world = World(tmp_path, monkeypatch)
    world.environ["PATH"] += ":/usr/bin:/bin"
    world.program("hangs", "echo a word; sleep 60\n")
    world.program("floods", "yes\n")
    world.program("leaves", f"sleep 60 & echo $! > '{tmp_path}/child'; echo done\n")
    world.program("ignores", "trap '' TERM INT; while :; do sleep 1; done\n")
    here = world.machine
    hung = here.run(["hangs"], 0.3)
    assert (hung.status, hung.out) == (None, "a word\n")
    assert "no answer within 0.3 s" in hung.why
    assert len(here.run(["floods"], 20, 5000).out) == 5000
    assert here.run(["ignores"], 0.2).status is None
    here.run(["leaves"], 0.3)
    child = int((tmp_path / "child").read_text())
    for _ in range(200):
        try:
            state = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            break
        if state == "Z":
            break
        time.sleep(0.01)
    else:
        raise AssertionError("a child was left behind")
    assert here.run(["none-of-that-name"]).why == "none-of-that-name not found"
