"""A soak: ``edgegs run`` for many frames, with reloads, clients and outputs that vanish; does anything grow?

    python tests/soak.py --frames 200000 --reloads 200 --clients 500 --seed 0 --json soak.json --raw soak.jsonl.gz

A tiny scene on the host backend. Every eighth reload leads home: the same configuration with every output up and no
client, where descriptors, threads and children must be the same numbers each time, and memory is measured at rest.
Between two rests, at random but the same for a seed: other scenes, paths, sizes and outputs, files that are broken, a
recording's folder that is taken away, a port that somebody else has, encoders that are killed, clients in waves,
datagrams good and bad. Exit code 0 when it passed, 1 when not; everything that it opens is on the loopback address.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import gzip
import json
import os
import platform
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Counter, Dict, List, Optional, Sequence

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # this checkout's edgegs, installed or not

import soak_clients  # noqa: E402
from soak_configs import AWAY, LOG_MB, TOKEN, Configurations  # noqa: E402
from soak_judge import END_S, judge  # noqa: E402
from soak_process import Service  # noqa: E402

#: Seconds between two samples; for an answer; until all outputs are up at home; until the counts stand still there.
SAMPLE_S, ANSWER_S, HOME_S, STILL_S = 1.0, 30.0, 60.0, 10.0
#: A wave: so many clients at once, for so long.
WAVE, WAVE_S = 50, 0.8
#: Every so many reloads lead home.
HOME_EVERY = 8


class Soak:
    """Drives one run from its first frame to its end."""

    def __init__(self, args: argparse.Namespace, folder: Path, command: Sequence[str]) -> None:
        self.args, self.folder = args, folder
        self.rng = random.Random(args.seed)
        scenes = [self._synth(seed) for seed in (1, 2)]
        self.configs = Configurations(folder, args.fps, self.rng, scenes)
        self.samples: List[Dict[str, Any]] = []
        self.happened: Counter[str] = collections.Counter()
        self.answers: Dict[str, Counter[str]] = {kind: collections.Counter() for kind in soak_clients.KINDS}
        self.missed: List[str] = []
        self.zombies = 0
        self._holder: Optional[socket.socket] = None
        self._began = self._sampled = time.monotonic()
        self._frames = self._cycle = 0
        self.configs.write("home")
        environment = {"MALLOC_ARENA_MAX": str(args.arenas)} if args.arenas else {}
        self.service = Service([*command, "run", str(self.configs.path)], folder, environment)

    def _synth(self, seed: int) -> bytes:
        path = self.folder / "synth.ply"
        command = [sys.executable, "-m", "edgegs", "synth", "dial", "-n", "300", "--seed", str(seed), "-o", str(path)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=120)
        content = path.read_bytes()
        path.unlink()
        return content

    # ---- waiting and sampling -------------------------------------------------------------------------------

    def tick(self) -> None:
        """Listen; once a second take a sample. Raises RuntimeError when the service has ended."""
        self.service.listen()
        if not self.service.runs:
            raise RuntimeError("it ended by itself")
        # USR1 would end a Python program that has not got as far as handling it
        if time.monotonic() - self._sampled >= SAMPLE_S and self.service.notices.get("READY"):
            self.sample("tick")

    def sample(self, kind: str, **others: Any) -> None:
        self._sampled = time.monotonic()
        status = self.service.status()
        self._frames = status.get("frames", self._frames)
        descriptors, threads = self.service.counts()
        children = self.service.children()
        record = {
            "kind": kind,
            "t_s": round(time.monotonic() - self._began, 2),
            "frames": self._frames,
            "cycle": self._cycle,
            **self.service.memory(),
            "descriptors": descriptors,
            "threads": threads,
            "children": len(children),
            "zombies": sum(state == "Z" for _, _, state in children),
            "up": sum(output["state"] == "up" for output in status.get("outputs", [])),
        }
        self.samples.append({**record, **others})

    def nap(self, seconds: float) -> None:
        self.until(lambda: False, seconds)

    def until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait for something, at most so long; False when it did not come about."""
        limit = time.monotonic() + seconds
        while not condition():
            if time.monotonic() >= limit:
                return False
            self.tick()
            time.sleep(0.02)
        return True

    # ---- what happens to it -----------------------------------------------------------------------------------

    def reload(self, name: str) -> None:
        """Write a configuration, send HUP and wait for the answer, which must be the right one."""
        good = self.configs.write(name)
        self.service.listen()
        taken, refused = self.service.taken, self.service.refused
        self.service.send(signal.SIGHUP)
        if not self.until(lambda: self.service.taken + self.service.refused > taken + refused, ANSWER_S):
            self.missed.append(f"reload {self._cycle} ({name}): no answer within {ANSWER_S:g} s")
        elif (self.service.taken > taken) != good:
            self.missed.append(f"reload {self._cycle} ({name}): was {'refused' if good else 'taken'}")
        self.happened["reload " + name] += 1

    def harm(self) -> None:
        """Take something away from the outputs, or give it back."""
        video, what = self.folder / "video", self.rng.randrange(6)
        if what == 0 and video.is_dir():
            shutil.rmtree(str(video))  # edgegs makes it again
            self.happened["folder removed"] += 1
        elif what == 1 and video.is_dir():
            shutil.rmtree(str(video))
            video.write_text("in the way")
            self.happened["folder replaced by a file"] += 1
        elif what == 2 and self._holder is None:
            holder = socket.socket()
            try:
                holder.bind(("127.0.0.1", self.configs.second))
                holder.listen(1)
                self._holder = holder
                self.happened["port taken"] += 1
            except OSError:  # edgegs has it
                holder.close()
        elif what == 3:
            # not gst-inspect: that it was killed is taken for "not installed", for half a minute
            children = [child for child in self.service.children() if child[1] != "gst-inspect-1.0"]
            if children:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.rng.choice(children)[0], signal.SIGKILL)
                    self.happened["child killed"] += 1
        elif what == 4:
            for path in (self.folder / "numbered").glob("*.png"):
                path.unlink()
            self.happened["pictures removed"] += 1
        else:
            self.mend()

    def mend(self) -> None:
        """Give everything back."""
        video = self.folder / "video"
        if video.is_file():
            video.unlink()
        if self._holder is not None:
            self._holder.close()
            self._holder = None

    def wave(self, n: int) -> None:
        ports = [self.configs.web, self.configs.web, self.configs.second]
        for kind, answers in soak_clients.wave(ports, TOKEN, n, WAVE_S, self.rng, self.tick).items():
            self.answers[kind].update(answers)

    def rest(self) -> None:
        """Come home, wait until all is up and nothing moves, and measure."""
        self.mend()
        self.reload("home")
        limit, up = time.monotonic() + HOME_S, False
        while not up and time.monotonic() < limit:
            status = self.service.status()
            up = bool(status) and all(output["state"] == "up" for output in status["outputs"])
            up = up and status.get("camera", {}).get("link") == "up"
            self.nap(0.1)
        if not up:
            self.missed.append(f"reload {self._cycle}: after {HOME_S:g} s at home not everything is up: {status}")
        if soak_clients.ask(self.configs.web, "/healthz", TOKEN) is None:
            self.missed.append(f"reload {self._cycle}: /healthz is not answered")
        seen: List[Any] = []
        limit = time.monotonic() + STILL_S
        while (len(seen) < 8 or len(set(seen[-8:])) > 1) and time.monotonic() < limit:
            children = self.service.children()
            seen.append((*self.service.counts(), len(children), sum(state == "Z" for _, _, state in children)))
            self.nap(0.1)
        # what moves still, as a file that is just being compressed, only adds
        descriptors, threads, children_, zombies = (min(values) for values in zip(*seen[-8:]))
        self.zombies += zombies
        self.sample("rest", descriptors=descriptors, threads=threads, children=children_, zombies=zombies)

    # ---- the run ------------------------------------------------------------------------------------------------

    def drive(self) -> None:
        args = self.args
        plan: List[str] = []
        while len(plan) < args.reloads:
            plan += [self.rng.choice(AWAY) for _ in range(HOME_EVERY - 1)] + ["home"]
        del plan[: len(plan) - args.reloads]
        n_waves = -(-args.clients // WAVE)
        waves = {round((i + 0.5) / n_waves * args.reloads): min(WAVE, args.clients - i * WAVE) for i in range(n_waves)}
        if not self.until(lambda: self.service.notices.get("READY", 0) > 0, 60):
            raise RuntimeError("it was not ready within 60 s")
        for self._cycle, name in enumerate(plan):
            if self._cycle in waves:
                self.wave(waves[self._cycle])
            soak_clients.send_poses(self.configs.poses, 20, self.rng)
            self.harm()
            if name == "home":
                self.rest()
            else:
                self.reload(name)
                if self.rng.random() < 0.5:
                    self.harm()
                for page in ("/metrics", "/status", "/history"):  # as somebody who watches it does
                    soak_clients.ask(self.configs.web, page, TOKEN)
            due = args.frames * (self._cycle + 1) / args.reloads
            while self._frames < due:
                self.nap(min(2.0, max(0.05, (due - self._frames) / (args.fps or 1000.0))))
                self._frames = self.service.status().get("frames", self._frames)

    def run(self) -> Dict[str, Any]:
        """All of it; the result without the verdict."""
        try:
            self.drive()
            self.sample("tick")
        except (RuntimeError, AssertionError, OSError) as error:  # an OSError: its /proc folder is gone
            code_now = self.service.process.poll()
            self.missed.append(str(error) if code_now is None else f"it ended by itself, with exit code {code_now}")
        finally:
            self.mend()
            code, end_s = self.service.finish(2 * END_S)
            self.service.kill()
        if self.service.longest_silence_s > 20.0:
            self.missed.append(f"the watchdog heard nothing for {self.service.longest_silence_s:.1f} s")
        args = self.args
        return {
            "cpus": len(os.sched_getaffinity(0)),
            "asked": {"frames": args.frames, "reloads": args.reloads, "clients": args.clients, "seed": args.seed},
            "fps_asked": args.fps,
            "malloc_arena_max": args.arenas or None,
            "frames": self._frames,
            "wall_s": round(time.monotonic() - self._began, 1),
            "reloads": {"taken": self.service.taken, "refused": self.service.refused},
            "http": {
                "clients": sum(sum(answers.values()) for answers in self.answers.values()),
                "answers": {kind: dict(sorted(answers.items())) for kind, answers in self.answers.items()},
            },
            "happened": dict(sorted(self.happened.items())),
            "streams": self.configs.streams,
            "notices": self.service.notices,
            "longest_silence_s": round(self.service.longest_silence_s, 2),
            "exit_code": code,
            "end_s": round(end_s, 2),
            "tracebacks": self.service.tracebacks(),
            "zombies": self.zombies,
            "orphans": self.service.orphans(),
            "log": read_logs(self.folder / "runs"),
            "missed": self.missed,
        }


def read_logs(folder: Path) -> Dict[str, Any]:
    """What the logs of all runs hold, read as edgegs reads them, and how much of the disk they take."""
    from edgegs.telemetry.readlog import read_log

    found: Dict[str, Any] = {"runs": 0, "records": 0, "frames": 0, "torn": 0, "garbage": 0, "stopped": True}
    size = 0
    for run in sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else ():
        reader = read_log(str(run))
        last = ""
        for record in reader:
            found["records"] += 1
            found["frames"] += record.get("frames", 0) if record["type"] == "window" else 0
            last = record["type"]
        found["runs"] += 1
        found["torn"] += reader.torn
        found["garbage"] += reader.garbage
        found["stopped"] = found["stopped"] and last == "stop"
        size += sum(file.stat().st_size for file in run.iterdir())
    return {**found, "bytes": size, "quota_bytes": LOG_MB * 10**6}


def origin() -> Dict[str, Any]:
    """Which edgegs, where."""
    from edgegs.bench.ledger import origin as of_edgegs

    machine = {"machine": platform.machine(), "kernel": platform.release(), "libc": " ".join(platform.libc_ver())}
    return {**of_edgegs(), "kind": "soak", "python": platform.python_version(), **machine}


def main(arguments: Optional[Sequence[str]] = None) -> int:
    parser = argparse.ArgumentParser(description="Soak edgegs and judge whether anything grows.")
    parser.add_argument("--frames", type=int, default=200_000)
    parser.add_argument("--reloads", type=int, default=200)
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fps", type=float, default=600.0, help="frames a second to hold; 0: as fast as possible")
    parser.add_argument("--slope-kb", type=float, default=1.0, help="most growth of RSS, KB a 1,000 frames")
    parser.add_argument("--arenas", type=int, default=0, help="MALLOC_ARENA_MAX for edgegs; 0: not set")
    parser.add_argument("--program", help="a Python file to run instead of edgegs; takes the same arguments")
    parser.add_argument("--json", metavar="OUT", help="the result")
    parser.add_argument("--raw", metavar="OUT", help="the series, JSON lines, compressed")
    parser.add_argument("--keep", action="store_true", help="leave the folder of the run")
    args = parser.parse_args(arguments)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    folder = Path(tempfile.mkdtemp(prefix="edgegs-soak-"))
    try:
        command = [sys.executable, args.program] if args.program else [sys.executable, "-m", "edgegs"]
        soak = Soak(args, folder, command)
        try:
            result = {**origin(), **judge(soak.run(), soak.samples, args.slope_kb)}
        finally:
            soak.service.kill()
        if not result["passed"]:
            sys.stderr.write(soak.service.stderr_path.read_text(encoding="utf-8", errors="replace")[-4000:])
    finally:
        if args.keep:
            print(f"left: {folder}", file=sys.stderr)
        else:
            shutil.rmtree(str(folder), ignore_errors=True)
    if args.raw:
        with gzip.GzipFile(args.raw, "wb", mtime=0) as file:
            file.write("".join(json.dumps(sample) + "\n" for sample in soak.samples).encode("utf-8"))
    text = json.dumps(result, indent=1)
    if args.json:
        Path(args.json).write_text(text + "\n", encoding="utf-8")
    print(text)
    print("passed" if result["passed"] else "FAILED: " + "; ".join(result["failures"]), file=sys.stderr)
    return 0 if result["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
