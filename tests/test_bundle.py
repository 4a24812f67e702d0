"""`edgegs doctor --bundle`: what goes in, what never does, and how the archive comes to its name."""

from __future__ import annotations

import gzip
import json
import os
import re
import stat
import subprocess
import sys
import tarfile
import threading
import time
from pathlib import Path

import pytest
from config_texts import MINIMAL
from machines import World, recorded_nano

from edgegs import bundle, doctor
from edgegs.bundle import Part
from edgegs.cli import main
from edgegs.errors import AccessError, OutputError
from edgegs.findings import OK, WARNING, Finding
from edgegs.redaction import Redactor, for_this_machine

TOKEN = "tok-6f1c0de5ecb7a90d42"
PASSWORD = "br0ker/pass\"word"
KEY = "AKIA99SECRETKEY"
HOST, USER = "kiosk-lobby-17", "magdalena"
MAC, PUBLIC, PRIVATE, SIX = "00:04:4b:c5:01:fe", "93.184.216.34", "192.168.44.23", "2a02:8108:9640:1f::7"
EMAIL = "magda.l@museum.example"
SERIAL = "1424519032871"
NAMES_THE_OWNER = (TOKEN, PASSWORD, "pass\\\"word", KEY, HOST, USER, MAC, PUBLIC, PRIVATE, SIX, EMAIL, SERIAL)

PLANTED = f"""\
Nov 30 12:00:01 {HOST} edgegs[77]: opened rtsp://{USER}:{KEY}@{PUBLIC}:554/live?token={TOKEN}&x=1
Nov 30 12:00:02 {HOST} edgegs[77]: Authorization: Bearer {TOKEN}
Nov 30 12:00:03 {HOST} edgegs[77]: http://{PRIVATE}:8080 password={KEY} mail {EMAIL}
Nov 30 12:00:04 {HOST} kernel: eth0: link up, {MAC}, usb 1-2: SerialNumber: {SERIAL}
Nov 30 12:00:05 {HOST} edgegs[77]: {{"token": "{KEY}", "note": "a \\"password\\": \\"{KEY}\\" inside"}}
Nov 30 12:00:06 {HOST} edgegs[77]: /home/{USER}/scenes/a.ply [{SIX}]:8080 on 127.0.0.1 and 0.0.0.0 and ::1
"""


@pytest.fixture
def world(tmp_path, monkeypatch):
    """A Nano whose programs, logs, files and environment are full of secrets."""
    world = World(tmp_path, monkeypatch)
    recorded_nano(world.root)
    monkeypatch.setattr(bundle, "_edgegs", lambda machine, *verb: PLANTED)  # the real ones: test_the_real_thing
    world.environ["PATH"] += ":/usr/bin:/bin"
    world.environ.update(USER=USER, HOME=f"/home/{USER}", BROKER_PASSWORD=KEY)
    monkeypatch.setattr("socket.gethostname", lambda: HOST + ".museum.example")
    world.write("journal.txt", PLANTED)
    world.program("journalctl", f"cat '{world.root}/journal.txt'\n")
    world.unit(Environment=f"MQTT_PASSWORD={KEY} DISPLAY=:0", ReadWritePaths=f"/home/{USER}/out")
    world.write("dev/kmsg", "".join(f"4,{i},1,-;{line}\n" for i, line in enumerate(PLANTED.splitlines())))
    world.write("proc/mounts", f"//{PRIVATE}/share /home/{USER}/share cifs rw,username={USER},password={KEY} 0 0\n")
    world.write("etc/edgegs/token", TOKEN + "\n")
    world.write("etc/edgegs/broker", PASSWORD + "\n")
    camera = f"path: {{kind: mqtt, host: {PRIVATE}, username: {USER}, password_file: broker}}"
    text = MINIMAL.replace("height: 480", "height: 480, " + camera) + "http: {token_file: token}\n"
    world.config = str(world.write("etc/edgegs/edgegs.yaml", text))
    start = {"type": "start", "schema": 1, "host": HOST, "note": f'the "password={PASSWORD}"', "token": TOKEN}
    windows = [{"type": "window", "schema": 1, "seq": i, "fps": 30.5, "said": ""} for i in range(900)]
    windows[-1]["said"] = PLANTED
    run = world.root / "etc/edgegs/runs/0123abcd-000002"
    lines = "".join(json.dumps(record) + "\n" for record in [start, *windows])
    world.write("etc/edgegs/runs/0123abcd-000001/telemetry.jsonl", '{"type":"window","schema":1,"old":1}\n')
    run.mkdir()
    (run / "telemetry.jsonl").write_text(lines + '{"type":"win')
    return world


FINDINGS = [
    Finding("display", WARNING, f"{HOST}: none for {USER} ({MAC})", f"xhost +si:localuser:{USER}", "display-dead"),
    Finding("log", OK, f'/home/{USER}/runs, "token={TOKEN}"'),
]


def read(path):
    with tarfile.open(str(path)) as archive:
        return {one.name.partition("/")[2]: archive.extractfile(one).read().decode() for one in archive.getmembers()}


def write(world, name="out.tar.gz", **options):
    path = world.tmp_path / name
    return path, bundle.write(str(path), FINDINGS, world.config, machine=world.machine, **options)


def test_no_secret_and_nobody_is_in_it(world):
    path, parts = write(world)
    inside = read(path)
    for name, text in inside.items():
        for secret in NAMES_THE_OWNER:
            assert secret not in text, f"{secret} in {name}"
        assert "***" in text or name not in ("journal.txt", "kernel.txt", "mounts.txt", "unit.txt", "run.jsonl")
    raw = gzip.decompress(path.read_bytes())
    assert not [secret for secret in NAMES_THE_OWNER if secret.encode() in raw]
    # and what helps is still there
    assert "/home/USER/scenes/a.ply" in inside["journal.txt"]
    assert "127.0.0.1 and 0.0.0.0 and ::1" in inside["journal.txt"]
    assert "rtsp://***@IP-" in inside["journal.txt"]
    assert "DISPLAY=:0" in inside["unit.txt"]
    assert "token_file" in inside["config.yaml"]
    assert json.loads(inside["doctor.json"])[0]["code"] == "display-dead"
    assert {part.name: part.error for part in parts if part.error} == {}


def test_the_run_is_its_start_and_its_end(world):
    path, _ = write(world)
    rows = [json.loads(line) for line in read(path)["run.jsonl"].splitlines()]
    assert rows[0]["type"] == "start"
    assert rows[0]["token"] == "***"
    assert [row["seq"] for row in rows[1:]] == list(range(900 - len(rows) + 1, 900))
    assert len(rows) <= 1 + bundle.MAX_RECORDS
    assert rows[-1]["fps"] == 30.5


def test_everything_is_small_ordered_and_nobodys(world):
    path, parts = write(world)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.stat().st_size < 300_000
    assert all(len(part.content) <= 2 * bundle.MAX_PART for part in parts)
    with tarfile.open(str(path)) as archive:
        members = archive.getmembers()
    assert [one.name for one in members] == [f"edgegs-bundle/{part.name}" for part in parts]
    assert parts[-1].name == bundle.MANIFEST
    assert all(one.isreg() and (one.uid, one.gid, one.mtime, one.mode) == (0, 0, 0, 0o600) for one in members)
    listed = json.loads(read(path)[bundle.MANIFEST])["parts"]
    assert [row["name"] for row in listed] == [part.name for part in parts[:-1]]
    again = [Part("a", b"1"), Part("b", b"", error="gone")]
    assert bundle._archive(again) == bundle._archive(again)


def test_no_scene_and_no_picture(world):
    world.write("etc/edgegs/a.ply", "ply\nSPLATS-OF-THE-OWNER")
    world.write("etc/edgegs/latest.jpg", "PICTURE-OF-THE-OWNER")
    path, _ = write(world)
    assert not [text for text in read(path).values() if "OF-THE-OWNER" in text]


def test_a_part_that_fails_or_hangs_is_a_line_of_the_manifest():
    let_go = threading.Event()

    def failing():
        raise ValueError(f"of {USER}")

    def refusing():
        raise OutputError("not here")

    parts = {"good": lambda: "text\n", "hung": lambda: let_go.wait(20) and "", "bad": failing, "none": refusing}
    try:
        made = bundle.collect(parts, Redactor(names=[USER]), 0.3)
    finally:
        let_go.set()
    assert [(part.name, part.content, part.error) for part in made] == [
        ("good", b"text\n", ""),
        ("hung", b"", "not ready within 0.3 s"),
        ("bad", b"", "ValueError: of USER"),
        ("none", b"", "not here"),
    ]
    manifest = json.loads(bundle._manifest(made).content)
    assert [row.get("error", "") for row in manifest["parts"]] == [part.error for part in made]


def test_a_machine_where_nothing_works(tmp_path, monkeypatch):
    world = World(tmp_path, monkeypatch)
    world.environ["PATH"] = str(world.bin)
    path = tmp_path / "out.tar.gz"
    parts = bundle.write(str(path), FINDINGS, machine=world.machine)
    missing = {part.name for part in parts if part.error}
    assert missing >= {"config.yaml", "run.jsonl", "journal.txt", "unit.txt", "memory.txt", "mounts.txt", "kernel.txt"}
    assert set(read(path)) == {part.name for part in parts} - missing
    told = bundle.told(str(path), parts)
    assert "not there: journalctl not found" in told
    assert "Look before you send it" in told


def test_a_wrong_configuration_stays_here(world):
    world.write("etc/edgegs/edgegs.yaml", f"scene: {{path: a.ply}}\npassword: {KEY}\n")
    path, parts = write(world)
    (config,) = [part for part in parts if part.name == "config.yaml"]
    assert "camera" in config.error
    assert KEY not in config.error
    assert "config.yaml" not in read(path)


def test_long_parts_keep_their_end():
    part = bundle._cut("x", "".join(f"line {i} é\n" for i in range(100_000)))
    assert len(part.content) <= bundle.MAX_PART
    assert part.content.endswith("line 99999 é\n".encode())
    assert part.content.startswith(b"line ")
    assert part.cut > 0
    assert part.row()["cut_bytes"] == part.cut
    assert len(bundle._cut("x", "é" * 2_000_000).content) <= bundle.MAX_PART


# ---- the archive's name ------------------------------------------------------------------------------


def test_an_existing_file_survives(world):
    path = world.tmp_path / "out.tar.gz"
    path.write_text("mine")
    with pytest.raises(OutputError, match="--force"):
        write(world)
    assert path.read_text() == "mine"
    write(world, force=True)
    assert read(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_one_that_appears_meanwhile_survives_too(tmp_path):
    path = tmp_path / "out.tar.gz"
    path.write_text("mine")
    with pytest.raises(OutputError, match="is there already"):
        bundle._store(str(path), b"ours", force=False)
    assert path.read_text() == "mine"
    assert [one.name for one in tmp_path.iterdir()] == ["out.tar.gz"]


@pytest.mark.parametrize("there", [False, True])
def test_a_disk_without_hard_links(tmp_path, monkeypatch, there):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    path = tmp_path / "out.tar.gz"
    if there:
        path.write_text("mine")
        with pytest.raises(OutputError, match="is there already"):
            bundle._store(str(path), b"ours", force=False)
    else:
        bundle._store(str(path), b"ours", force=False)
    assert path.read_bytes() == (b"mine" if there else b"ours")


@pytest.mark.parametrize("force", [False, True])
def test_a_symbolic_link_is_never_followed(tmp_path, force):
    target, path = tmp_path / "target", tmp_path / "out.tar.gz"
    target.write_text("mine")
    path.symlink_to(target)
    if force:
        bundle._store(str(path), b"ours", force=True)
        assert path.read_bytes() == b"ours"
        assert not path.is_symlink()
    else:
        with pytest.raises(OutputError, match="is there already"):
            bundle._store(str(path), b"ours", force=False)
    assert target.read_text() == "mine"


def test_a_trap_under_the_temporary_name(tmp_path):
    """Another user who can write in the folder must not make us write elsewhere."""
    target = tmp_path / "target"
    target.write_text("mine")
    (tmp_path / f"out.tar.gz.{os.getpid()}.new").symlink_to(target)
    with pytest.raises(OutputError):
        bundle._store(str(tmp_path / "out.tar.gz"), b"ours", force=True)
    assert target.read_text() == "mine"


def test_a_full_disk_leaves_nothing_behind(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match="No space left"):
        bundle._store(str(tmp_path / "out.tar.gz"), b"ours", force=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "words"), [("out.zip", "ends in .tar.gz"), ("gone/out.tar.gz", "there is no folder")])
def test_names_that_are_refused_before_anybody_waits(tmp_path, name, words):
    with pytest.raises(OutputError, match=words):
        bundle.check(str(tmp_path / name), False)


def test_a_closed_folder_and_a_folder_of_that_name(tmp_path, monkeypatch):
    (tmp_path / "d.tar.gz").mkdir()
    with pytest.raises(OutputError, match="is a folder"):
        bundle.check(str(tmp_path / "d.tar.gz"), True)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(AccessError):
        bundle.check(str(tmp_path / "out.tar.gz"), False)


# ---- what is masked ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("token=abc,def x", "token=*** x"),
        ('API_KEY="a b \\" c" d', 'API_KEY="***" d'),
        ("passphrase: correct horse battery", "passphrase: ***"),
        ("client_secret='x y'; z", "client_secret='***'; z"),
        ('{"auth_token": "abc", "n": 1}', '{"auth_token": "***", "n": 1}'),
        ('password="never ends', "password=***"),
        ("token_file: /etc/edgegs/token", "token_file: /etc/edgegs/token"),
        ("token: null", "token: null"),
        ("author: me", "author: me"),
        ("curl -H 'Authorization: Basic dXNlcjpwYXNz'", "curl -H 'Authorization: ***'"),
        ("Bearer eyJhbGciOi.J9", "Bearer ***"),
        ("rtsp://u:p@ss/w@host:554/x", "rtsp://***@host:554/x"),
        ("http://h/p?api_key=1&sig=2#f", "http://h/p?api_key=***&sig=***"),
        ("mjpeg://127.0.0.1:8080", "mjpeg://127.0.0.1:8080"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----\nx", "***\nx"),
        ("from 10.0.0.5 to 10.0.0.5, 8.8.8.8", "from IP-1 to IP-1, IP-2"),
        ("fe80::1%eth0 and 2001:db8::5", "IP-1 and IP-2"),
        ("239.1.2.3 224.0.0.251 ff02::1", "239.1.2.3 224.0.0.251 ff02::1"),
        ("opencv-python==4.10.0.84", "opencv-python==4.10.0.84"),
        ("libnvrtc.so.11.8.89.1 at 12:30:45", "libnvrtc.so.11.8.89.1 at 12:30:45"),
        ("aa-bb-cc-dd-ee-ff 00:11:22:33:44:55", "MAC MAC"),
        ("sha256 " + "ab" * 32, "sha256 " + "ab" * 32),
        ("mail a.b@c.example to user@1000.service", "mail EMAIL to user@1000.service"),
        ("root=PARTUUID=1234abcd-02 UUID=0a1b-2c3d", "root=PARTUUID=*** UUID=***"),
        ("iSerial: XYZ, Serial : 00000000", "iSerial: ***, Serial : ***"),
        ("kiosk7.lan KIOSK7 kiosk77", "HOST.lan HOST kiosk77"),
        ("/home/anna/x /media/anna/y /home/anna", "/home/USER/x /media/USER/y /home/USER"),
        ("anna's annals", "USER's annals"),
    ],
)
def test_each_rule(text, expected):
    assert Redactor(names=["anna", "root", "pi"], hosts=["kiosk7", "localhost"])(text) == expected


def test_a_known_secret_in_every_form():
    redact = Redactor(['p"a/s s'])
    for text in ('p"a/s s', 'p\\"a/s s', "p%22a%2Fs%20s", "p%22a%2Fs+s"):
        assert redact(f"<{text}>") == "<***>"
    assert Redactor(["abc"])("abc") == "abc", "too short: it would wreck ordinary words"


def test_documents_stay_documents():
    value = {"token": "x", "says": ['password="abc"', 5, None, True], "n": {"10.1.2.3": "10.1.2.3"}}
    assert Redactor().document(value) == {
        "token": "***",
        "says": ['password="***"', 5, None, True],
        "n": {"IP-1": "IP-1"},
    }


def test_long_texts_take_no_time():
    """No rule is quadratic: each gets much of what it likes best."""
    redact = Redactor(["secretsecret"], ["anna"], ["kiosk7"])
    units = ("a", "a.", "token", "token=", '\\"', "a://", "a://@", "1.", "ab:", "x@", "?key=", "=", "password: ")
    for unit in (*units, "-----BEGIN PRIVATE KEY-----"):
        redact(unit * (60_000 // len(unit)))


def test_this_machines_own_secrets(tmp_path, monkeypatch):
    (tmp_path / "token").write_text("0123456789abcdef\n")
    os.mkfifo(str(tmp_path / "fifo"))
    files = [str(tmp_path / "token"), str(tmp_path / "fifo"), str(tmp_path / "gone"), None]
    redact = for_this_machine(files, {"DB_PASSWORD": "hunter2hunter2", "USER": "gertrud"})
    assert redact("0123456789abcdef hunter2hunter2 gertrud") == "*** *** USER"


# ---- the command -------------------------------------------------------------------------------------


def test_the_command(world, monkeypatch, capsys):
    monkeypatch.setattr(doctor, "examine", lambda config=None: FINDINGS)
    monkeypatch.setattr(bundle, "Machine", lambda *a: world.machine if not a else type(world.machine)(*a))
    path = world.tmp_path / "report.tar.gz"
    arguments = ["doctor", "--config", world.config, "--bundle", str(path)]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "no problems, 1 warning" in out
    assert f"wrote {path}:" in out
    assert "Look before you send it" in out
    assert main(arguments) == 73
    assert "--force" in capsys.readouterr().err
    assert main([*arguments, "--force", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["bundle"]["path"] == str(path)
    assert [row["name"] for row in document["bundle"]["parts"]] == [*read(path)]


def test_where_packages_are_missing_a_bug_report_is_wanted_most(tmp_path):
    """Only the standard library."""
    root = Path(__file__).resolve().parent.parent
    environment = {"PYTHONPATH": str(root), "PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "LC_ALL": "C"}
    command = [sys.executable, "-S", "-m", "edgegs", "doctor", "--bundle", "b.tar.gz"]
    done = subprocess.run(command, cwd=str(tmp_path), env=environment, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    inside = read(tmp_path / "b.tar.gz")
    assert "numpy is missing" in inside["doctor.txt"]
    assert {"doctor.json", "versions.txt", bundle.MANIFEST} <= set(inside)


def test_the_real_thing(tmp_path):
    """This machine, from outside: an archive, and nothing else in the folder."""
    root = Path(__file__).resolve().parent.parent
    environment = {"PYTHONPATH": str(root), "PATH": os.environ["PATH"], "EDGEGS_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "edgegs", "doctor", "--bundle", "b.tar.gz"]
    folder = tmp_path / "here"
    folder.mkdir()
    begun = time.monotonic()
    done = subprocess.run(command, cwd=str(folder), env=environment, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    assert "Traceback" not in done.stderr
    assert [one.name for one in folder.iterdir()] == ["b.tar.gz"]
    inside = read(folder / "b.tar.gz")
    assert {"doctor.txt", "doctor.json", "devices.txt", "kernels.json", "versions.txt", bundle.MANIFEST} <= set(inside)
    assert re.search(r"^numpy==\d", inside["versions.txt"], re.MULTILINE)
    assert isinstance(json.loads(inside["kernels.json"])["images"], list)
    assert time.monotonic() - begun < doctor.DEADLINE_S + bundle.DEADLINE_S + 30
