"""Spoilt scene files by the thousand: whatever a file holds, it is decoded or refused with a message, soon and in
little memory, and nothing is written anywhere.

    python tests/fuzz_scenes.py --reader all --n 1000000 --seed 1 --corpus DIR --json OUT
    python tests/fuzz_scenes.py --reader spz --seed 1 --index 4711       # one input again, with its traceback
    python tests/fuzz_scenes.py --reader spz --n 1000000 --atheris       # guided by coverage (pip install atheris)

Input number i of a reader is the same on every run with one seed and the same files to start from. Further ones lie in
DIR/READER, where inputs are kept that broke something, or that led atheris to new lines.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import json
import os
import platform
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path
from typing import Any, Dict, Iterator, List, NoReturn, Optional, Sequence, Tuple

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from fuzz_mutate import MUTATORS, spoil  # noqa: E402

SHARED = ROOT.parent / "shared" / "data"
MAX_SECONDS = 2.0  # of processor time: the machine may be busy
HANG_SECONDS = 20
MAX_GROWN_MB = 300
MAX_MESSAGE = 1000
_KEPT_OF_A_KIND = 5
_ADDRESS_SPACE = 1 << 30

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_FORBIDDEN = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod",
              "os.chown", "os.utime", "os.system", "os.exec", "os.fork", "os.posix_spawn", "subprocess.Popen",
              "socket.connect", "socket.bind")  # fmt: skip
_events: Optional[List[str]] = None  # what the interpreter reports while an input is loaded; None: nobody asks
_hooked = False


def _audit(event: str, args: Tuple[Any, ...]) -> None:
    if _events is None:
        return
    if event == "open":
        if isinstance(args[2], int) and args[2] & _WRITING:
            _events.append(f"opened {args[0]!r} for writing")
    elif event in _FORBIDDEN:
        _events.append(f"{event} {args!r}"[:200])


class Hang(BaseException):
    """An input took so long that it was broken off."""


def _hang(signum: int, frame: Any) -> NoReturn:
    raise Hang(f"over {HANG_SECONDS} s")


class Harness:
    """Loads inputs of one reader from one file in memory, and keeps a record of what came of them."""

    def __init__(self, reader: str, folder: str, corpus: Optional[str] = None, shared: Optional[Path] = SHARED) -> None:
        """``folder``: an empty one, best in memory; ``corpus``: see above."""
        global _hooked
        from fuzz_seeds import seeds

        from edgegs.errors import EdgegsError
        from edgegs.scene import load

        self._load, self._expected = load, EdgegsError
        self.reader = reader
        found = seeds(reader, shared if shared is not None and shared.is_dir() else None)
        self.seeds = list(found.files)
        self.corpus = os.path.join(corpus, reader.replace(" ", "-")) if corpus else None
        if self.corpus is not None:
            os.makedirs(self.corpus, exist_ok=True)
            for name in sorted(os.listdir(self.corpus)):
                path = os.path.join(self.corpus, name)
                if os.path.isfile(path) and os.path.getsize(path) < 1 << 20:
                    self.seeds.append(Path(path).read_bytes())
        for name, data in found.beside.items():
            Path(folder, name).write_bytes(data)
        self.path = os.path.join(folder, found.file_name)
        self._folder = folder
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        self._good = [data for data in self.seeds if self._decodes(data)]
        self._listing = sorted(os.listdir(folder))
        self._status = os.open("/proc/self/status", os.O_RDONLY)
        with contextlib.suppress(OSError):  # where it is refused, growth below the highest so far goes unseen
            Path("/proc/self/clear_refs").write_text("5")  # the peak is what is taken now
        self._before_mb = self._peak_mb()
        if not _hooked:
            sys.addaudithook(_audit)  # cannot be taken away again: it does nothing while nobody asks
            _hooked = True
        self.max_seconds, self.max_grown_mb = MAX_SECONDS, float(MAX_GROWN_MB)
        self.n_inputs = self.n_decoded = 0
        self._began = time.process_time()
        self.refused: Dict[str, Dict[str, int]] = {}
        self.failures: Dict[str, Dict[str, Any]] = {}
        self.slowest: Dict[str, Any] = {"seconds": 0.0}
        self.grown_mb = 0.0

    def close(self) -> None:
        os.close(self._descriptor)
        os.close(self._status)

    def _decodes(self, data: bytes) -> bool:
        self._write(data)
        try:
            self._load(self.path)
        except Exception:  # of whatever kind: it will be tried, and looked at, as an input
            return False
        return True

    def _write(self, data: bytes) -> None:
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, data, 0)

    def input(self, seed: int, index: int) -> bytes:
        """Input number ``index``: the seeds themselves first, then what is made of them."""
        if index < len(self.seeds):
            return self.seeds[index]
        rng = random.Random(f"{seed} {self.reader} {index}")
        data = rng.choice(self._good if self._good and rng.random() < 0.7 else self.seeds)
        if rng.random() < 0.05:
            other = rng.choice(self.seeds)
            return spoil(rng, data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other) + 1) :])
        return MUTATORS[self.reader](rng, data)

    def attempt(self, data: bytes, index: int = -1) -> Optional[str]:
        """Load one input; what was wrong with how that went, None when nothing was."""
        global _events
        self._write(data)
        before = os.fstat(self._descriptor)
        fault, detail = None, ""
        self.n_inputs += 1
        _events = events = []
        began = time.process_time()
        try:
            scene = self._load(self.path)
            fault = self._wrong_scene(scene)
            self.n_decoded += 1
        except self._expected as error:
            fault = self._refusal(error)
        except Hang as error:
            fault = f"hung: {error}"
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            own = [f for f in traceback.extract_tb(error.__traceback__) if "edgegs/" in f.filename]
            place = own[-1] if own else where
            fault = f"{type(error).__name__} at {os.path.basename(place.filename)}:{place.lineno}"
            detail = traceback.format_exc()
        seconds = time.process_time() - began
        _events = None
        after = os.fstat(self._descriptor)
        if seconds > self.slowest["seconds"]:
            self.slowest = {"seconds": round(seconds, 4), "index": index, "sha256": _name(data)}
        grown = self._peak_mb() - self._before_mb
        if grown > self.grown_mb:
            self.grown_mb = grown
            if grown > self.max_grown_mb:
                fault = fault or f"grew by {grown:.0f} MB"
                self._before_mb += grown  # the peak stays: only what exceeds it again is news
                self.grown_mb = 0.0
        if seconds > self.max_seconds:
            fault = fault or f"slow: {seconds:.1f} s"
        if events:
            fault = fault or f"wrote: {events[0]}"
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            fault = fault or "wrote to the file"
        if sorted(os.listdir(self._folder)) != self._listing:
            fault = fault or "left something in the folder"
            self._listing = sorted(os.listdir(self._folder))
        if fault is not None:
            self._keep(fault, detail, data, index)
        return fault

    def _wrong_scene(self, packed: Any) -> Optional[str]:
        import numpy as np

        scene = packed.unpacked()
        if not 0 < scene.n_splats <= scene.n_rows:
            return f"a scene of {scene.n_splats} of {scene.n_rows} rows"
        if packed is not scene:  # the bytes of a packed scene are whatever they are; the kernels take them
            return None
        for name in ("means", "scales", "quats", "opacities", "sh"):
            if not np.isfinite(getattr(scene, name)).all():
                return f"non-finite {name}"
        if not (scene.scales > 0).all() or not ((scene.opacities > 0) & (scene.opacities < 1)).all():
            return "a scale or opacity out of range"
        if abs(np.sqrt((scene.quats.astype(np.float64) ** 2).sum(axis=1)) - 1).max() > 1e-5:
            return "a quaternion that is no unit quaternion"
        if not all(text.isprintable() and len(text) < MAX_MESSAGE for text in scene.warnings):
            return "a warning that cannot be printed"
        return None

    def _refusal(self, error: Exception) -> Optional[str]:
        text = str(error)
        cause = re.sub(r"'[^']*'", "'…'", text.replace(self.path, "").replace(self._folder, ""))
        cause = re.sub(r"[0-9][0-9,.]*", "#", cause).strip(": ")[:90]
        causes = self.refused.setdefault(type(error).__name__, {})
        if cause in causes or len(causes) < 500:
            causes[cause] = causes.get(cause, 0) + 1
        if not text.isprintable():
            return f"a message that cannot be printed: {cause!a}"
        if len(text) > MAX_MESSAGE:
            return f"a message of {len(text)} characters: {cause!a}"
        if not text.startswith(self._folder):
            return f"a message that does not begin with the file: {cause!a}"
        return None

    def _peak_mb(self) -> float:
        status = os.pread(self._status, 4096, 0)
        at = status.index(b"VmHWM:") + 6
        return int(status[at : status.index(b"kB", at)]) / 1024

    def _keep(self, fault: str, detail: str, data: bytes, index: int) -> None:
        kind = re.sub(r"[0-9]+(\.[0-9]+)? (s|MB)$", r"# \2", fault)
        kept = self.failures.setdefault(kind, {"count": 0, "detail": detail, "inputs": []})
        kept["count"] += 1
        if len(kept["inputs"]) >= _KEPT_OF_A_KIND:
            return
        kept["inputs"].append({"index": index, "sha256": _name(data), "bytes": len(data)})
        if self.corpus is not None:
            Path(self.corpus, f"crash-{_name(data)}").write_bytes(data)

    def report(self, seconds: float) -> Dict[str, Any]:
        """The record; ``seconds``: how long it took, of which this program had the processor for some."""
        busy = time.process_time() - self._began
        return {
            "inputs": self.n_inputs,
            "seeds": len(self.seeds),
            "seconds": round(seconds, 1),
            "per_second": round(self.n_inputs / max(seconds, 1e-9)),
            "per_processor_second": round(self.n_inputs / max(busy, 1e-9)),
            "decoded": self.n_decoded,
            "refused": {
                kind: dict(sorted(causes.items(), key=lambda item: -item[1])) for kind, causes in self.refused.items()
            },
            "slowest": self.slowest,
            "grown_mb": round(self.grown_mb, 1),
            "failures": self.failures,
        }


def _name(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


@contextlib.contextmanager
def harness(reader: str, corpus: Optional[str] = None, shared: Optional[Path] = SHARED) -> Iterator[Harness]:
    """A harness in a folder of its own, in memory where there is room, with warnings turned into errors."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = tempfile.mkdtemp(prefix="edgegs-fuzz-", dir=memory)
    made = None
    try:
        made = Harness(reader, folder, corpus, shared)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            yield made
    finally:
        if made is not None:
            made.close()
        shutil.rmtree(folder)


def missing(reader: str) -> Optional[str]:
    """Why a reader cannot be tried, None when it can."""
    from edgegs.scene.formats import _READERS

    if reader not in _READERS:
        return "edgegs.scene.formats does not know it"
    module, name = _READERS[reader]
    try:
        getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        return f"no {module}.{name}: {error}"
    return None


def fuzz(reader: str, n: int, seed: int, corpus: Optional[str] = None, indices: Optional[Sequence[int]] = None) -> Any:
    """Try ``n`` inputs (or those with the given numbers) of a reader; returns the report."""
    with harness(reader, corpus) as made:
        began = shown = time.monotonic()
        for index in range(n) if indices is None else indices:
            if threaded_alarm():
                signal.alarm(HANG_SECONDS)
            fault = made.attempt(made.input(seed, index), index)
            if indices is not None:
                outcome = next(iter(made.failures.values()))["detail"] if fault and made.failures else made.refused
                print(f"{reader} {index}: {fault or 'as it should be'}\n{outcome}")
            if time.monotonic() - shown > 10:
                shown = time.monotonic()
                text = f"{made.n_inputs / (shown - began):,.0f} a second, {len(made.failures)} kinds of failure"
                print(f"{reader}: {made.n_inputs:,} inputs, {text}", file=sys.stderr, flush=True)
        if threaded_alarm():
            signal.alarm(0)
        return made.report(time.monotonic() - began)


def threaded_alarm() -> bool:
    """Whether ``Hang`` is what SIGALRM raises here: it is when this program runs as one."""
    return signal.getsignal(signal.SIGALRM) is _hang


def _guided(reader: str, n: int, seed: int, corpus: Optional[str], out: Optional[str]) -> NoReturn:
    """Let atheris choose: inputs that reach new lines of the readers are kept and changed further."""
    import atheris

    with atheris.instrument_imports(include=["edgegs.scene", "edgegs.pack"]):
        reason = missing(reader)
    if reason:
        raise SystemExit(f"{reader}: {reason}")
    with harness(reader, corpus) as made, tempfile.TemporaryDirectory() as temporary:
        start = made.corpus or temporary  # what reaches new lines is kept there, for the next run
        for i, data in enumerate(made.seeds):
            Path(start, f"seed-{i:03}").write_bytes(data)
        began = time.monotonic()

        def one(data: bytes) -> None:
            signal.alarm(HANG_SECONDS)
            made.attempt(bytes(data), made.n_inputs)
            if made.n_inputs >= n:
                signal.alarm(0)
                _finish({reader: made.report(time.monotonic() - began)}, {}, seed, out)
                sys.stdout.flush()
                shutil.rmtree(os.path.dirname(made.path))
                shutil.rmtree(temporary)
                os._exit(1 if made.failures else 0)  # libFuzzer ends only so

        def change(data: bytes, max_size: int, random_seed: int) -> bytes:
            rng = random.Random(random_seed)
            if rng.random() < 0.3 or not data:
                return atheris.Mutate(data, max_size)
            return MUTATORS[reader](rng, bytes(data))[:max_size]

        options = [sys.argv[0], f"-seed={seed}", "-max_len=100000", "-timeout=60", "-rss_limit_mb=0", "-verbosity=0"]
        atheris.Setup([*options, start], one, custom_mutator=change)
        atheris.Fuzz()
    raise SystemExit(0)


def _finish(readers: Dict[str, Any], skipped: Dict[str, str], seed: int, out: Optional[str]) -> bool:
    for reader, report in readers.items():
        n_causes = sum(len(causes) for causes in report["refused"].values())
        print(f"{reader}: {report['inputs']:,} inputs, {report['per_second']:,} a second "
              f"({report['per_processor_second']:,} of the processor's); "
              f"{report['decoded']:,} decoded, the others refused for {n_causes} reasons; "
              f"slowest {report['slowest']['seconds']} s, grew by {report['grown_mb']} MB")  # fmt: skip
        for kind, kept in report["failures"].items():
            print(f"  FAILED {kept['count']:,} times: {kind}; inputs {[i['index'] for i in kept['inputs']]}")
    for reader, reason in skipped.items():
        print(f"{reader}: SKIPPED, {reason}")
    if out:
        about = {"python": platform.python_version(), "seed": seed, "readers": readers, "skipped": skipped}
        Path(out).write_text(json.dumps(about, indent=1, ensure_ascii=True))
    return not any(report["failures"] for report in readers.values())


def main(arguments: Optional[Sequence[str]] = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reader", default="all", choices=["all", *MUTATORS])
    parser.add_argument("--n", type=int, default=100_000, help="inputs a reader")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--corpus", help="folder of further files to start from, and of what broke something")
    parser.add_argument("--json", help="file to write the record to")
    parser.add_argument("--index", type=int, help="try this input alone, and print what came of it")
    parser.add_argument("--atheris", action="store_true", help="let atheris guide the changes by coverage (one reader)")
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGALRM, _hang)
    if given.atheris:
        if given.reader == "all":
            parser.error("--atheris takes one --reader")
        _guided(given.reader, given.n, given.seed, given.corpus, given.json)
    readers = list(MUTATORS) if given.reader == "all" else [given.reader]
    skipped = {reader: reason for reader in readers for reason in [missing(reader)] if reason}
    # Room for what is loaded by now and 1 GiB more: who asks for gigabytes gets a MemoryError, and is found.
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + _ADDRESS_SPACE, resource.getrlimit(resource.RLIMIT_AS)[1]))
    indices = None if given.index is None else [given.index]
    reports = {
        reader: fuzz(reader, given.n, given.seed, given.corpus, indices) for reader in readers if reader not in skipped
    }
    return 0 if _finish(reports, skipped, given.seed, given.json) else 1


if __name__ == "__main__":
    sys.exit(main())
