"""Hand-made SOG files (random bytes in lossless WebP planes, and what they mean), and ways to read them."""

from __future__ import annotations

import io
import json
import math
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any, Dict, List

import numpy as np
import pytest
from PIL import Image

from edgegs.errors import SceneError
from edgegs.scene import Scene
from edgegs.scene.reading import Reading
from edgegs.scene.sog import read_sog, read_sog_folder, read_sog_json

ROOT = Path(__file__).resolve().parent.parent
ARRAYS = ("means", "scales", "quats", "opacities", "sh")

NAMES = ("means_l", "means_u", "scales", "quats", "sh0")
K = (0, 3, 8, 15)


def webp(pixels: np.ndarray, **options: Any) -> bytes:
    """(h, w, 3 or 4) uint8 as lossless WebP; colours of transparent pixels kept."""
    out = io.BytesIO()
    options = {"lossless": True, "exact": True, "quality": 0, "method": 0, **options}
    Image.fromarray(pixels).save(out, "WEBP", **options)
    return out.getvalue()


class Sog:
    """A scene of random bytes. ``pixels`` holds each plane's (h, w, c); ``meta`` the content of meta.json."""

    def __init__(
        self, n: int, degree: int = 0, seed: int = 0, version: int = 2, width: int = 8, palette: int = 70
    ) -> None:
        rng = np.random.default_rng(seed)
        self.n, self.degree, self.version = n, degree, version
        shape = (-(-n // width), width)
        self.pixels: Dict[str, np.ndarray] = {
            name: rng.integers(0, 256, (*shape, 4 if name in ("quats", "sh0") else 3), np.uint8) for name in NAMES
        }
        self.pixels["quats"][..., 3] = rng.integers(250, 256, shape)  # two of six are no tag
        names = {name: f"{name}.webp" for name in (*NAMES, "shN_centroids", "shN_labels")}
        low, high = [-1.5, -0.25, 0.5], [2.0, 0.75, 0.5]
        self.meta: Dict[str, Any] = {
            "means": {"mins": low, "maxs": high, "files": [names["means_l"], names["means_u"]]},
            "scales": {"files": [names["scales"]]},
            "quats": {"files": [names["quats"]]},
            "sh0": {"files": [names["sh0"]]},
        }
        if version == 2:
            self.meta.update({"version": 2, "count": n})
            self.meta["scales"]["codebook"] = [float(v) for v in np.sort(rng.normal(-4, 2, 256))]
            self.meta["sh0"]["codebook"] = [float(v) for v in np.sort(rng.normal(0, 1, 256))]
        else:
            self.meta["means"]["shape"] = [n, 3]
            self.meta["scales"].update({"mins": [-9.0, -8.0, -7.0], "maxs": [-1.0, -2.0, 0.5]})
            self.meta["sh0"].update({"mins": [-2.0, -1.0, -0.5, -6.0], "maxs": [3.0, 2.0, 1.0, 7.0]})
        if degree:
            k = K[degree]
            rows = -(-palette // 64)
            self.pixels["shN_centroids"] = rng.integers(0, 256, (rows, 64 * k, 3), np.uint8)
            self.pixels["shN_labels"] = np.zeros((*shape, 3), np.uint8)
            labels = rng.integers(0, palette + 70, shape)  # some beyond the palette
            self.pixels["shN_labels"][..., 0], self.pixels["shN_labels"][..., 1] = labels & 255, labels >> 8
            files = [names["shN_centroids"], names["shN_labels"]]
            if version == 2:
                book = [float(v) for v in np.sort(rng.normal(0, 0.3, 256))]
                self.meta["shN"] = {"count": palette, "bands": degree, "codebook": book, "files": files}
            else:
                self.meta["shN"] = {"mins": -0.75, "maxs": 0.5, "files": files}

    def files(self) -> Dict[str, bytes]:
        """File name -> bytes, meta.json first."""
        found = {"meta.json": json.dumps(self.meta).encode()}
        found.update({f"{name}.webp": webp(pixels) for name, pixels in self.pixels.items()})
        return found

    def zip(self, path: Path, method: int = zipfile.ZIP_STORED) -> Path:
        return write_zip(path, self.files(), method)

    def folder(self, path: Path) -> Path:
        path.mkdir(parents=True)
        for name, data in self.files().items():
            (path / name).write_bytes(data)
        return path

    def expected(self) -> Dict[str, np.ndarray]:
        """The specification in plain Python numbers."""
        out: Dict[str, List[Any]] = {"means": [], "scales": [], "quats": [], "opacities": [], "sh": []}
        for i in range(self.n):
            pixel = {
                name: [int(v) for v in pixels.reshape(-1, pixels.shape[2])[i]]
                for name, pixels in self.pixels.items()
                if name != "shN_centroids"
            }
            for name, values in self._splat(pixel).items():
                out[name].append(values)
        return {name: np.array(values) for name, values in out.items()}

    def _splat(self, pixel: Dict[str, List[int]]) -> Dict[str, Any]:
        mean = []
        for c in range(3):
            low, high = self.meta["means"]["mins"][c], self.meta["means"]["maxs"][c]
            n = low + (high - low) * (pixel["means_l"][c] | pixel["means_u"][c] << 8) / 65535
            mean.append(math.copysign(math.exp(abs(n)) - 1, n))
        three = [(v / 255 * 2 - 1) / math.sqrt(2) for v in pixel["quats"][:3]]
        quat = list(three)
        tag = pixel["quats"][3] if len(pixel["quats"]) == 4 else 255
        if tag < 252:
            quat = [1.0, 0.0, 0.0, 0.0]
        else:
            quat.insert(tag - 252, math.sqrt(max(0.0, 1 - sum(v * v for v in three))))
        norm = math.sqrt(sum(v * v for v in quat))
        scale = [math.exp(self._number("scales", c, pixel["scales"][c])) for c in range(3)]
        alpha = pixel["sh0"][3] if len(pixel["sh0"]) == 4 else 255
        if self.version == 2:
            opacity = min(max(alpha / 255, 1e-6), 1 - 1e-6)
        else:
            opacity = 1 / (1 + math.exp(-self._number("sh0", 3, alpha)))
        sh = [[self._number("sh0", c, pixel["sh0"][c]) for c in range(3)], *self._bands(pixel)]
        return {"means": mean, "scales": scale, "quats": [v / norm for v in quat], "opacities": opacity, "sh": sh}

    def _bands(self, pixel: Dict[str, List[int]]) -> List[List[float]]:
        if not self.degree:
            return []
        k = K[self.degree]
        centroids = self.pixels["shN_centroids"]
        label = pixel["shN_labels"][0] | pixel["shN_labels"][1] << 8
        if label >= self.meta["shN"].get("count", 64 * len(centroids)):
            return [[0.0, 0.0, 0.0]] * k
        row = centroids[label // 64, label % 64 * k : (label % 64 + 1) * k]
        return [[self._number("shN", 0, int(v)) for v in rgb[:3]] for rgb in row]

    def _number(self, name: str, channel: int, byte: int) -> float:
        part = self.meta[name]
        if self.version == 2:
            return float(part["codebook"][byte])
        low, high = (part[end] if name == "shN" else part[end][channel] for end in ("mins", "maxs"))
        return float(low + (high - low) * byte / 255)


def write_zip(path: Path, files: Dict[str, bytes], method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def read(path: Path, **how: Any) -> Scene:
    reading = Reading(**how)
    if path.is_dir():
        return read_sog_folder(str(path), reading)
    with open(path, "rb", buffering=0) as file:
        return (read_sog_json if path.suffix == ".json" else read_sog)(file, str(path), reading)


def refused(path: Path, words: str, **how: Any) -> str:
    with pytest.raises(SceneError) as caught:
        read(path, **how)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert words in message
    assert message.isprintable()
    assert len(message) < 500
    return message


def check(scene: Scene, expected: Dict[str, np.ndarray]) -> None:
    for name in ARRAYS:
        np.testing.assert_allclose(getattr(scene, name), expected[name], rtol=2e-6, atol=2e-7, err_msg=name)


def same(one: Scene, two: Scene) -> None:
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name), err_msg=name)


# Reads what argv names one by one under a limit of processor time; prints the peak memory, and a line for each.
_LIMITED = """
import os, resource, sys, time
resource.setrlimit(resource.RLIMIT_CPU, (30, 30))
from edgegs.errors import EdgegsError
from edgegs.scene.reading import Reading
from edgegs.scene.sog import read_sog, read_sog_folder, read_sog_json

def peak():  # of this program alone; ru_maxrss would begin with its parent's
    return next(int(line.split()[1]) // 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))

def read(path):
    if os.path.isdir(path):
        return read_sog_folder(path, Reading())
    with open(path, "rb", buffering=0) as file:
        return (read_sog_json if path.endswith(".json") else read_sog)(file, path, Reading())

import PIL.WebPImagePlugin
before = peak()
for path in sys.argv[1:]:
    began = time.process_time()
    try:
        scene = read(path)
        outcome = f"{scene.nbytes} {scene.n_splats} {scene.sh_degree}"
    except EdgegsError as error:
        outcome = str(error)
    print(time.process_time() - began, outcome)
print(before, peak())
"""


def limited(*paths: Path) -> List[Any]:
    """[seconds and outcome of each, ...], peak MiB, and MiB above the bare interpreter."""
    command = [sys.executable, "-c", _LIMITED, *map(str, paths)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    *lines, memory = done.stdout.splitlines()
    before, peak = map(int, memory.split())
    pairs = [line.split(" ", 1) for line in lines]
    return [[(float(seconds), outcome) for seconds, outcome in pairs], peak, peak - before]
