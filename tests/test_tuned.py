"""What `edgegs tune` found holds for exactly what it was measured on; whatever the folder holds, nothing breaks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import scenes

import edgegs.tuned
from edgegs.errors import AccessError, OutputError
from edgegs.pack.prepare import Wish
from edgegs.scene import write_ply
from edgegs.tuned import Answer, Board, Task, find, keep, scene_digest

ROOT = Path(__file__).resolve().parent.parent
BOARD = Board("host", "a processor, 2 threads")
TASK = Task(BOARD, 64, 48)
ANSWER = Answer("best", "2026-11-30T18:00:00Z", 7.5, 2.0, 58.25, 6)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(edgegs.tuned, "cache_dir", lambda: tmp_path / "cache")
    return tmp_path / "cache" / "tuned"


@pytest.fixture
def scene(tmp_path):
    path = str(tmp_path / "scene.ply")
    write_ply(path, scenes.cloud(20))
    return path


def test_what_was_kept_is_found(scene, folder):
    assert find(TASK, scene) is None
    assert keep(TASK, scene_digest(scene), ANSWER).parent == folder
    assert find(TASK, scene) == ANSWER
    assert find(TASK, scene, digest=scene_digest(scene)) == ANSWER
    newer = ANSWER._replace(variant="exact", ratio_to_baseline=None, psnr_db=None)
    keep(TASK, scene_digest(scene), newer)
    assert find(TASK, scene) == newer
    assert len(list(folder.iterdir())) == 1


@pytest.mark.parametrize(
    "other",
    [
        TASK._replace(width=65),
        TASK._replace(height=64),
        TASK._replace(board=BOARD._replace(backend="cuda")),
        TASK._replace(board=BOARD._replace(device="a processor, 1 thread")),
        TASK._replace(board=BOARD._replace(driver="550.54")),
        TASK._replace(board=Board()),
        TASK._replace(min_psnr_db=60.0),
        TASK._replace(wish=Wish(max_gaussians=10)),
        TASK._replace(wish=Wish(frame="rub")),
        TASK._replace(wish=Wish(max_gaussians=10, views=[scenes.camera()])),
    ],
)
def test_it_holds_for_nothing_else(scene, other):
    keep(TASK, scene_digest(scene), ANSWER)
    assert find(other, scene) is None
    if other.board.device:
        keep(other, scene_digest(scene), ANSWER._replace(psnr_db=70.0))
        assert find(other, scene).psnr_db == 70.0
    assert find(TASK, scene) == ANSWER


def test_the_storage_that_is_wished_does_not_matter(scene):
    keep(TASK._replace(wish=Wish("packed")), scene_digest(scene), ANSWER)
    assert find(TASK._replace(wish=Wish("fp32")), scene) == ANSWER


def test_other_kernels_and_another_scene_know_it_not(scene, monkeypatch):
    keep(TASK, scene_digest(scene), ANSWER)
    with monkeypatch.context() as patched:
        patched.setattr(edgegs.tuned, "source_hash", lambda: "0" * 64)
        assert find(TASK, scene) is None
    assert find(TASK, scene) == ANSWER
    write_ply(scene, scenes.cloud(20, seed=1))
    assert find(TASK, scene) is None


def test_a_scene_is_only_read_where_there_is_an_answer_for_the_rest(scene, monkeypatch):
    keep(TASK._replace(width=99), scene_digest(scene), ANSWER)
    monkeypatch.setattr(edgegs.tuned, "digest_of", lambda *_: pytest.fail("the scene was read"))
    assert find(TASK, scene) is None


def test_reading_it_tells_how_far_it_is_and_can_be_ended(scene):
    class Stop(Exception):
        pass

    def progress(done, of):
        raise Stop

    keep(TASK, scene_digest(scene), ANSWER)
    with pytest.raises(Stop):
        find(TASK, scene, progress)


def test_a_folder_is_told_by_its_describing_file(tmp_path):
    (tmp_path / "sog").mkdir()
    assert scene_digest(str(tmp_path / "sog")) == ""
    (tmp_path / "sog" / "meta.json").write_text("{}")
    assert scene_digest(str(tmp_path / "sog")) == scene_digest(str(tmp_path / "sog" / "meta.json")) != ""
    assert scene_digest(str(tmp_path / "none.ply")) == ""
    assert find(TASK, str(tmp_path / "none.ply")) is None


DAMAGE = {
    "empty": b"",
    "cut": b'{"schema": 1, "back',
    "no text": b"\xff\xfe\x00",
    "a list": b"[1, 2]",
    "deep": b"[" * 30_000,
    "long": b'{"a": "' + b"a" * edgegs.tuned.MAX_BYTES + b'"}',
    "foreign": b'{"name": "somebody else"}',
}
CHANGES = [
    {"schema": 2},
    {"kernels": "0" * 64},
    {"scene": "0" * 64},
    {"width": 63},
    {"min_psnr_db": 30},
    {"variant": "auto"},
    {"variant": "nope"},
    {"variant": None},
    {"variant": ["best"]},
    {"variant": "packed-bins-radius-fast-patch8"},
    {"variant": "roofgs"},
    {"psnr_db": 48.8},
    {"psnr_db": float("nan")},
    {"psnr_db": "70"},
    {"total_ms": 0},
    {"total_ms": None},
    {"total_ms": float("inf")},
    {"ratio_to_baseline": -1},
    {"n_views": 0},
    {"date": 5},
]


@pytest.mark.parametrize("content", [*DAMAGE.values(), *CHANGES], ids=[*DAMAGE, *(str(one) for one in CHANGES)])
def test_what_is_damaged_or_foreign_is_left_aside_with_a_word(scene, caplog, content):
    file = keep(TASK, scene_digest(scene), ANSWER)
    if isinstance(content, dict):
        content = json.dumps({**json.loads(file.read_text()), **content}).encode()
    file.write_bytes(content)
    assert find(TASK, scene) is None
    (record,) = caplog.records
    assert str(file) in record.getMessage()
    assert "edgegs tune" in record.getMessage()
    keep(TASK, scene_digest(scene), ANSWER)
    assert find(TASK, scene) == ANSWER


def test_bits_are_an_answer_only_where_they_are_allowed(scene):
    worse = TASK._replace(min_psnr_db=45.0)
    keep(worse, scene_digest(scene), ANSWER._replace(variant="roofgs", psnr_db=46.0))
    assert find(worse, scene).variant == "roofgs"


def test_a_fifo_in_its_place_keeps_nobody_waiting(scene, folder):
    file = keep(TASK, scene_digest(scene), ANSWER)
    file.unlink()
    os.mkfifo(str(file))
    assert find(TASK, scene) is None


def test_without_a_folder_there_are_no_answers(scene, monkeypatch, tmp_path):
    def homeless():
        raise AccessError("no home")

    monkeypatch.setattr(edgegs.tuned, "cache_dir", homeless)
    assert find(TASK, scene) is None
    with pytest.raises(AccessError):
        keep(TASK, "0", ANSWER)
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(edgegs.tuned, "cache_dir", lambda: tmp_path / "file")
    assert find(TASK, scene) is None
    with pytest.raises(OutputError, match="file"):
        keep(TASK, "0", ANSWER)


def test_the_ones_used_longest_ago_go_first(scene, folder, monkeypatch):
    monkeypatch.setattr(edgegs.tuned, "KEPT", 3)
    digest = scene_digest(scene)
    for width in range(3):
        os.utime(str(keep(TASK._replace(width=width), digest, ANSWER)), (width + 1, width + 1))
    assert find(TASK._replace(width=0), scene) == ANSWER  # used now
    (folder / ".begun.part").write_bytes(b"now")
    (folder / ".killed.part").write_bytes(b"long ago")
    os.utime(str(folder / ".killed.part"), (time.time() - 2 * 24 * 3600,) * 2)
    keep(TASK._replace(width=9), digest, ANSWER)
    left = {width: find(TASK._replace(width=width), scene) for width in (0, 1, 2, 9)}
    assert {width for width, found in left.items() if found} == {0, 2, 9}
    assert {path.name for path in folder.iterdir() if path.suffix == ".part"} == {".begun.part"}


WRITER = """
import sys
from edgegs.tuned import *
board = Board("host", "a processor, 2 threads")
for i in range(40):
    for width in (64, 65):
        keep(Task(board, width, 48), sys.argv[1], Answer("best", sys.argv[2] * 500, 1.0 + i, None, 60.0, 1))
"""


def test_two_processes_write_and_a_third_reads(scene, folder, tmp_path, caplog):
    digest = scene_digest(scene)
    keep(TASK, digest, ANSWER)
    environment = dict(os.environ, EDGEGS_CACHE=str(tmp_path / "cache"), PYTHONPATH=str(ROOT))
    command = [sys.executable, "-c", WRITER, digest]
    writers = [
        subprocess.Popen([*command, name], env=environment, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
        for name in "ab"
    ]
    n_read = 0
    while any(writer.poll() is None for writer in writers):
        found = find(TASK, scene, digest=digest)
        assert found is not None
        assert found == ANSWER or found.date in ("a" * 500, "b" * 500)
        n_read += 1
    for writer in writers:
        assert writer.communicate(timeout=20)[1] == b""
        assert writer.returncode == 0
    assert n_read > 10
    assert not caplog.records
    assert len(list(folder.iterdir())) == 2, "nothing half written is left"
    assert find(TASK._replace(width=65), scene).total_ms == 40.0


def test_the_board_of_a_backend(host):
    board = Board.of(host)
    assert board == Board("host", host.device, "")
    assert "thread" in board.device, "another number of threads is another board"
