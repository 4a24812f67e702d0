"""``edgegs devices``: what the probes find, and that one that fails or hangs takes nothing along."""

from __future__ import annotations

import json
import sys
import threading
import types

import pytest

from edgegs.cli import devices, main
from edgegs.findings import OK, PROBLEM, WARNING, Finding, one_line


@pytest.fixture
def probes(monkeypatch):
    """Gives a function that puts others in the place of the three probes."""

    def put(**functions):
        for name, module in devices.PROBES.items():
            stand_in = types.ModuleType(module)
            stand_in.devices = functions.get(name, list)
            monkeypatch.setitem(sys.modules, module, stand_in)

    return put


def failing():
    raise RuntimeError("of all things")


def listed(capsys, code=0):
    assert main(["devices", "--json"]) == code
    document = json.loads(capsys.readouterr().out)
    assert list(document) == ["devices"]
    return [Finding(**one) for one in document["devices"]]


def test_findings_of_all_probes_in_their_order(probes, capsys):
    found = {
        "display": [Finding("display", OK, "monitor 0, HDMI-0 1920x1080; use display://0")],
        "video": [Finding("camera", OK, "none"), Finding("loopback", WARNING, "no virtual camera", "sudo modprobe it")],
        "encoder": [Finding("encoder", OK, "x264enc")],
    }
    probes(**{name: (lambda rows=rows: rows) for name, rows in found.items()})
    assert listed(capsys) == [*found["display"], *found["video"], *found["encoder"]]
    assert main(["devices"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["ok", "display"],
        ["ok", "camera"],
        ["warning", "loopback"],
        ["->", "sudo"],
        ["ok", "encoder"],
    ]
    assert lines[0].endswith("use display://0")


def test_a_probe_that_fails_and_one_that_hangs(probes, capsys, monkeypatch):
    monkeypatch.setattr(devices, "DEADLINE_S", 0.3)
    let_go = threading.Event()
    probes(display=let_go.wait, video=failing, encoder=lambda: [Finding("encoder", OK, "x264enc")])
    try:
        assert listed(capsys) == [
            Finding("display", PROBLEM, "no answer within 0.3 s"),
            Finding("video", WARNING, "cannot be examined: RuntimeError: of all things"),
            Finding("encoder", OK, "x264enc"),
        ]
    finally:
        let_go.set()


def test_a_probe_that_cannot_be_imported(probes, capsys, monkeypatch):
    probes()
    monkeypatch.setitem(sys.modules, devices.PROBES["display"], None)
    (one,) = listed(capsys)
    assert (one.check, one.state) == ("display", WARNING)
    assert "cannot be examined" in one.says


def test_nothing_usable_is_no_fault_but_no_answer_is(probes, capsys):
    probes(**{name: (lambda: [Finding("a", WARNING, "nothing here")]) for name in devices.PROBES})
    assert len(listed(capsys)) == 3
    probes(**{name: failing for name in devices.PROBES})
    assert len(listed(capsys, code=1)) == 3


def test_what_a_device_calls_itself_does_not_reach_the_terminal(probes, capsys):
    probes(video=lambda: [Finding("camera", OK, "Cam\x1b[31m\nera", "fix\x07 it")])
    assert main(["devices"]) == 0
    out = capsys.readouterr().out
    assert "Cam\\x1b[31m era" in out
    assert "-> fix\\x07 it" in out
    assert one_line("grün\u202e") == "grün\\u202e"


def test_this_machine(capsys):
    """Whatever is here or not: it looks, and each line says something."""
    found = listed(capsys)
    assert {one.check for one in found} >= {"display", "encoder"}
    assert all(one.state in (OK, WARNING, PROBLEM) and one.says for one in found)
    assert not [one for one in found if "cannot be examined" in one.says or "no answer" in one.says]
