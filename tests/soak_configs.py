"""The configurations that a soak reloads, good and broken."""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any, Callable, Dict, List, Sequence

TOKEN = "0123456789abcdef-soak"
#: Quota of the run logs.
LOG_MB = 2
#: Names for ``Configurations.write`` beside "home"; files are broken more often than by mistake.
AWAY = ("few", "fixed", "stream", "size", "telemetry", "replaced", "broken", "broken", "second")


def free_ports(kinds: Sequence[int]) -> List[int]:
    """Ports that nobody has now, one for each type of socket; below those that the kernel gives to clients, one of
    which might else have it when edgegs wants it back."""
    opened: List[socket.socket] = []
    choice = random.SystemRandom()
    for kind in kinds:
        one = socket.socket(socket.AF_INET, kind)
        for attempt in range(100):
            try:
                one.bind(("127.0.0.1", choice.randrange(20000, 30000)))
                break
            except OSError:
                if attempt == 99:
                    raise
        opened.append(one)
    ports = [int(one.getsockname()[1]) for one in opened]
    for one in opened:
        one.close()
    return ports


def can_stream() -> bool:
    """Whether GStreamer can encode H.264 here."""
    inspect = shutil.which("gst-inspect-1.0")
    if inspect is None or shutil.which("gst-launch-1.0") is None:
        return False
    return subprocess.run([inspect, "--exists", "x264enc"], timeout=60).returncode == 0


class Configurations:
    """What the file says, by name; ``write`` puts it there in one step."""

    def __init__(self, folder: Path, fps: float, rng: random.Random, scenes: Sequence[bytes]) -> None:
        self.path = folder / "edgegs.yaml"
        self._folder, self._fps, self._rng, self._scenes = folder, fps, rng, scenes
        kinds = (socket.SOCK_STREAM, socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_DGRAM)
        self.web, self.second, self.rtp, self.poses = free_ports(kinds)
        self.streams = can_stream()
        for name, content in zip("ab", scenes):
            (folder / f"{name}.ply").write_bytes(content)
        (folder / "token").write_text(TOKEN + "\n")

    def config(self, name: str) -> Dict[str, Any]:
        """As a dict. "home" has an output of each kind, with a rate of its own, so that each is made anew."""
        web: Dict[str, Any] = {"uri": f"mjpeg://127.0.0.1:{self.web}", "name": "web", "max_clients": 4}
        web["required"] = True
        second: Dict[str, Any] = {"uri": f"mjpeg://127.0.0.1:{self.second}", "name": "second", "max_clients": 2}
        latest: Dict[str, Any] = {"uri": "file://latest.jpg", "fps": 20}
        numbered: Dict[str, Any] = {"uri": "file://numbered/frame_%06d.png", "fps": 5}
        video: Dict[str, Any] = {"uri": "file://video/out.avi", "fps": 30}
        rtp = [{"uri": f"rtp://127.0.0.1:{self.rtp}", "fps": 25, "name": "rtp"}] if self.streams else []
        outputs: List[Any] = ["null:", web]
        orbit: Dict[str, Any] = {"kind": "orbit", "period_s": 5}
        fixed: Dict[str, Any] = {"kind": "fixed", "eye": [0, 0, -3], "target": [0, 0, 0]}
        udp: Dict[str, Any] = {"kind": "udp", "port": self.poses, "hold_s": 0.2, "return_s": 0.2}
        scene, path, width, interval_s = "a.ply", orbit, 64, 0.25
        if name == "home":
            outputs += [dict(one, fps=one.get("fps", 50) + 1) for one in (second, latest, numbered, video, *rtp)]
            path = udp
        elif name == "few":
            scene = "b.ply"
        elif name == "fixed":
            path, outputs = fixed, [*outputs, video, latest]
        elif name == "stream":
            scene, outputs = "b.ply", [*outputs, *rtp, numbered]
        elif name == "size":
            width, outputs = 80, [*outputs, second, video]
        elif name == "telemetry":
            interval_s, path = 0.5, udp
        elif name == "replaced":
            outputs.append(latest)
        elif name == "second":
            path, outputs = udp, [*outputs, second, numbered]
        log = {"dir": "runs", "max_mb": LOG_MB, "rotate_mb": 1, "flush_s": 1}
        return {
            "scene": {"path": scene},
            "camera": {"width": width, "height": 48, "path": path},
            "render": {"backend": "host", "target_fps": self._fps, "threads": 1},
            "outputs": outputs,
            "telemetry": {"interval_s": interval_s, "log": log},
            "http": {"token_file": "token"},
        }

    def write(self, name: str) -> bool:
        """Write one; returns whether it is good."""
        good = name != "broken"
        text = self._broken() if not good else json.dumps(self.config(name), indent=1)
        if name == "replaced":  # another file of the same name and content: its scene is loaded again
            self._put(self._folder / "a.ply", self._scenes[0])
        self._put(self.path, text.encode("utf-8"))
        return good

    def _broken(self) -> str:
        config = self.config(self._rng.choice(("home", "size", "stream")))
        scene, camera = config["scene"], config["camera"]
        (self._folder / "bad.ply").write_bytes(self._scenes[0][: self._rng.randrange(1, len(self._scenes[0]) - 1)])
        change: Callable[[], Any] = self._rng.choice(
            (
                lambda: config.update(colour="red"),
                lambda: scene.update(path="nowhere.ply"),
                lambda: scene.update(path="bad.ply"),
                lambda: camera.update(width=-1),
                lambda: config["http"].update(token_file="edgegs.yaml"),
                lambda: config["outputs"].append(config["outputs"][1]),
                lambda: config["render"].update(threads=2),
                lambda: config["render"].update(variant="fastest"),
            )
        )
        change()
        text = json.dumps(config)
        return text[: len(text) // 2] if self._rng.random() < 0.2 else text

    def _put(self, path: Path, content: bytes) -> None:
        temporary = path.with_name(path.name + ".new")
        temporary.write_bytes(content)
        os.replace(str(temporary), str(path))
