"""A short run of the fuzzer over every reader, and proofs that it can fail. The long run: tests/fuzz_scenes.py."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any, Callable, List

import fuzz_scenes
import numpy as np
import pytest
from fuzz_mutate import MUTATORS
from fuzz_seeds import seeds

from edgegs.errors import SceneError
from edgegs.memory import tidy
from edgegs.scene import formats

N = 300


@pytest.mark.parametrize("reader", sorted(MUTATORS))
def test_whatever_a_file_holds(reader: str, tmp_path: Path) -> None:
    reason = fuzz_scenes.missing(reader)
    if reason:
        pytest.skip(f"{reader}: {reason}")
    report = fuzz_scenes.fuzz(reader, N, seed=5, corpus=str(tmp_path))
    assert not report["failures"], f"{report['failures']}; inputs: {tmp_path}"
    assert report["inputs"] == N
    # Both ways have to be gone often, or the changes reach nothing.
    assert report["decoded"] > 3
    assert sum(len(causes) for causes in report["refused"].values()) > 4


def test_every_reader_is_tried() -> None:
    assert set(MUTATORS) == set(formats._READERS)


@pytest.mark.parametrize("reader", sorted(MUTATORS))
def test_inputs_are_the_same_every_time_and_seeds_are_right(reader: str) -> None:
    if fuzz_scenes.missing(reader):
        pytest.skip(f"no reader of {reader} yet")
    with fuzz_scenes.harness(reader, shared=None) as made:
        first = [made.input(1, i) for i in range(60)]
        assert first == [made.input(1, i) for i in range(60)]
        assert first != [made.input(2, i) for i in range(60)]
        n = len(seeds(reader, None).files)
        for data in first[:n]:
            assert made.attempt(data) is None
        assert made.n_decoded == n, made.refused


def broken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, read: Callable[..., Any]) -> Any:
    """The report of a run over .splat files with a reader that misbehaves."""
    monkeypatch.setattr("edgegs.scene.splat.read_splat", read)
    return fuzz_scenes.fuzz("splat", 5, seed=1, corpus=str(tmp_path / "corpus"))


def raising(error: BaseException) -> Callable[..., Any]:
    def read(file: Any, path: str, how: Any) -> Any:
        raise error

    return read


def test_it_can_fail(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    report = broken(monkeypatch, tmp_path, raising(ValueError("no such thing")))
    (kind, kept), = report["failures"].items()
    assert kind.startswith("ValueError at ")
    assert "no such thing" in kept["detail"]
    names = {f"crash-{found['sha256']}" for found in kept["inputs"]}
    assert names
    assert names == set(os.listdir(tmp_path / "corpus" / "splat"))
    with fuzz_scenes.harness("splat", str(tmp_path / "corpus")) as made:  # and is tried again by the next run
        kept_bytes = (tmp_path / "corpus" / "splat" / min(names)).read_bytes()
        assert kept_bytes in made.seeds


def test_what_else_it_notices(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def warning(file: Any, path: str, how: Any) -> Any:
        warnings.warn("careful", stacklevel=1)
        np.log(np.zeros(1))

    def creating(file: Any, path: str, how: Any) -> Any:
        Path(path).with_name("left").touch()
        raise SceneError(f"{path}: refused")

    def elsewhere(file: Any, path: str, how: Any) -> Any:
        (tmp_path / "there").touch()
        raise SceneError(f"{path}: refused")

    def writing(file: Any, path: str, how: Any) -> Any:
        os.close(os.open(path, os.O_WRONLY))
        raise SceneError(f"{path}: refused")

    def starting(file: Any, path: str, how: Any) -> Any:
        subprocess.run([sys.executable, "-c", ""], check=False)
        raise SceneError(f"{path}: refused")

    def unscaled(file: Any, path: str, how: Any) -> Any:
        scene = read_splat(file, path, how)
        scene.quats[:] *= 2
        return scene

    from edgegs.scene.splat import read_splat

    cases = [
        (warning, "UserWarning"), (creating, "wrote: "), (elsewhere, "wrote: "), (writing, "wrote: "),
        (starting, "wrote: subprocess.Popen"), (unscaled, "a quaternion that is no unit"),
        (raising(SceneError("no file named")), "a message that does not begin with the file"),
        (raising(MemoryError()), "MemoryError at "), (raising(SystemExit(1)), None),
    ]  # fmt: skip
    for read, expected in cases:
        if expected is None:
            with pytest.raises(SystemExit):
                broken(monkeypatch, tmp_path, read)
            continue
        kinds: List[str] = list(broken(monkeypatch, tmp_path, read)["failures"])
        assert [kind for kind in kinds if kind.startswith(expected)], (expected, kinds)


def test_messages_that_cannot_be_printed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def read(file: Any, path: str, how: Any) -> Any:
        raise SceneError(f"{path}: \x1b[31m")

    assert any("cannot be printed" in kind for kind in broken(monkeypatch, tmp_path, read)["failures"])


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(file: Any, path: str, how: Any) -> Any:
        end = time.process_time() + 0.05
        while time.process_time() < end:
            pass
        raise SceneError(f"{path}: refused")

    def large(file: Any, path: str, how: Any) -> Any:
        if made.n_inputs > 1:
            np.ones(245 << 20, np.uint8)
        raise SceneError(f"{path}: refused")

    tidy()  # what other tests left would hide the growth
    for read, words in ((slow, "slow: "), (large, "grew by ")):
        monkeypatch.setattr("edgegs.scene.splat.read_splat", read)
        with fuzz_scenes.harness("splat") as made:
            assert made.attempt(made.input(1, 0)) is None
            made.max_seconds, made.max_grown_mb = (0.04, 300) if read is slow else (9, 30)
            assert (made.attempt(made.input(1, 1)) or "").startswith(words)


def test_as_a_program(tmp_path: Path) -> None:
    out, script = tmp_path / "out.json", str(Path(fuzz_scenes.__file__))
    command = [sys.executable, script, "--reader", "splat", "--n", "40", "--json", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    record = json.loads(out.read_text())["readers"]["splat"]
    assert record["inputs"] == 40
    assert record["decoded"] + sum(sum(c.values()) for c in record["refused"].values()) == 40
    done = subprocess.run([*command, "--index", "7"], capture_output=True, text=True, timeout=120, check=False)
    assert "splat 7: as it should be" in done.stdout


def test_changes_change(tmp_path: Path) -> None:
    """Nearly every input differs from what it was made of."""
    for reader, change in MUTATORS.items():
        if fuzz_scenes.missing(reader):
            continue
        data = seeds(reader, None).files[0]
        rng = random.Random(3)
        assert sum(change(rng, data) != data for _ in range(40)) > 25, reader
