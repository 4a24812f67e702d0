"""Ledger folders: ``row.json``, and every frame's times in ``raw.jsonl.gz`` beside it. jetson/ledger/README.md
describes the fields."""

from __future__ import annotations

import ctypes
import gzip
import io
import json
import os
import re
import subprocess
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from edgegs import __version__
from edgegs.backends.base import Backend
from edgegs.bench.bench import Measurement
from edgegs.camera import Camera
from edgegs.errors import AccessError, OutputError, SceneError
from edgegs.files import read_regular
from edgegs.kernels.manifest import source_hash
from edgegs.kernels.select import every_image
from edgegs.paths import shipped
from edgegs.scene import Scene

SCHEMA = 1
ROW, RAW = "row.json", "raw.jsonl.gz"
MAX_ROW_BYTES = 16 << 20
#: What a reader of a row relies on, by the document's ``kind`` (that of the ladder has none).
REQUIRED = {
    None: ("scene", "device", "driver", "commit", "warmup", "repeats", "rows"),
    "roofline": ("ceilings", "scene", "device", "rows"),
    "delivery": ("device", "commit", "fps", "duration_s", "pictures", "jpeg_kb", "rows"),
}


def folder_of(name: str) -> Path:
    """A ledger folder: of that name in the checkout's ``jetson/ledger``, or a path if ``name`` holds a slash."""
    return Path(name) if "/" in name else shipped("jetson") / "ledger" / name


def check_new(folder: Path) -> None:
    """Refuse, before minutes are spent on measuring, a folder that cannot be made or would be overwritten.

    Raises:
        OutputError: it exists, or its parent does not. AccessError: no permission.
    """
    try:
        if os.path.lexists(str(folder)):
            raise OutputError(f"{folder}: exists; a ledger folder is never written again, take another name")
        if not folder.parent.is_dir():
            raise OutputError(f"{folder}: there is no folder {folder.parent}; create it, or name a path such as ./row")
    except OSError as error:
        raise OutputError(f"{folder}: cannot be used ({error.strerror})") from None
    if not os.access(str(folder.parent), os.W_OK | os.X_OK):
        raise AccessError(f"{folder.parent}: permission denied; let this user write there")


def provenance(backend: Backend, scene: Scene) -> Dict[str, Any]:
    """Everything but the figures: what was drawn, by what, where. What cannot be known is null."""
    images = [one.image for one in every_image()[0] if one.image.source_hash == source_hash()]
    image = next((one for one in images if one.file == Path(backend.image).name), None)
    return {
        **origin(),
        "backend": backend.name,
        "device": backend.device,
        "driver": driver() if backend.name == "cuda" else None,
        "image": backend.image,
        "image_sha256": image.sha256 if image else None,
        "compiler": image.compiler if image else None,
        "compiler_flags": image.flags if image else None,
        "scene": {
            "path": scene.path if scene.format == "synth" else os.path.basename(scene.path),
            "sha256": scene.sha256,
            "n_splats": scene.n_splats,
            "sh_degree": scene.sh_degree,
        },
    }


def origin() -> Dict[str, Any]:
    """What every document begins with: format, time, and which edgegs."""
    return {
        "schema": SCHEMA,
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "version": __version__,
        "commit": commit(),
    }


def commit(root: Optional[Path] = None) -> Optional[str]:
    """The checkout's commit, with ``-dirty`` behind it when files differ; None outside of a checkout or without git."""
    root = root or Path(__file__).resolve().parent.parent.parent
    top = _git(root, "rev-parse", "--show-toplevel")
    # an installed package may lie in a virtual environment within somebody else's checkout
    if not top or os.path.realpath(top) != os.path.realpath(str(root)):
        return None
    head = _git(root, "rev-parse", "HEAD")
    if not head:
        return None
    return head + ("-dirty" if _git(root, "status", "--porcelain") else "")


def _git(root: Path, *arguments: str) -> Optional[str]:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=30,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode("utf-8", "replace").strip() if done.returncode == 0 else None


def driver() -> Optional[str]:
    """The NVIDIA driver's version and the CUDA release that it supports, such as ``550.54.14 (CUDA 12.4)``."""
    version = ""
    for path, pattern in (
        ("/sys/module/nvidia/version", r"^([0-9.]+)"),
        ("/proc/driver/nvidia/version", r"Kernel Module[^\n]*?\s([0-9]+\.[0-9.]+)\s"),
        ("/etc/nv_tegra_release", r"^# (R\d+ \(release\), REVISION: [0-9.]+)"),
    ):
        try:
            match = re.search(pattern, Path(path).read_text(encoding="utf-8", errors="replace"))
        except OSError:
            continue
        if match:
            version = match.group(1)
            break
    number = ctypes.c_int(0)
    try:
        if ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(number)) == 0:
            cuda = f"CUDA {number.value // 1000}.{number.value % 1000 // 10}"
            return f"{version} ({cuda})" if version else cuda
    except (OSError, AttributeError):
        pass
    return version or None


def raw_records(measurements: Sequence[Measurement], camera: Camera) -> List[Dict[str, Any]]:
    """One record a measured frame, one a burst, one a queue of frames that nobody reads; in its own order."""
    records: List[Dict[str, Any]] = []
    for measurement in measurements:
        which = {"width": camera.width, "height": camera.height, "name": measurement.contender.name}
        for round_, sample in zip(measurement.rounds, measurement.samples):
            stages = {stage: round(ms, 5) for stage, ms in sample.stage_ms.items()}
            times = {"stage_ms": stages, "total_ms": round(sample.total_ms, 5), "frame_ms": round(sample.frame_ms, 5)}
            records.append({**which, "round": round_, **times})
        for round_, fps in enumerate(measurement.burst_fps):
            records.append({**which, "round": round_, "burst_fps": round(fps, 3)})
        for round_, ms in enumerate(measurement.queued_ms):
            records.append({**which, "round": round_, "queued_ms": round(ms, 5)})
    return records


def write(folder: Path, document: Dict[str, Any], raw: Sequence[Dict[str, Any]]) -> None:
    """Make the folder with both files; ``row.json`` comes last, so a folder that has it is complete."""
    check_new(folder)
    lines = "".join(json.dumps(record) + "\n" for record in raw)
    try:
        folder.mkdir()
        # no time stamp inside: same records, same bytes
        (folder / RAW).write_bytes(_gzip(lines.encode()))
        (folder / ROW).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    except PermissionError:
        raise AccessError(f"{folder}: permission denied") from None
    except OSError as error:
        raise OutputError(f"{folder}: cannot be written ({error.strerror})") from None


def _gzip(content: bytes) -> bytes:
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as file:
        file.write(content)
    return buffer.getvalue()


def read(folder: Path) -> Dict[str, Any]:
    """The document of a ledger folder.

    Raises:
        InputError, AccessError: there is no row.json, or it cannot be read. SceneError (65): it is not one of ours.
    """
    path = folder / ROW
    content = read_regular(path, MAX_ROW_BYTES, "ledger row")
    try:
        document = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise SceneError(f"{path}: is not JSON ({error})") from None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise SceneError(f"{path}: is not of schema {SCHEMA}; it was not written by `edgegs bench` of this version")
    kind = document.get("kind")
    if not isinstance(kind, (str, type(None))) or kind not in REQUIRED:
        raise SceneError(f"{path}: holds {kind!r}, which this version does not know; update edgegs")
    missing = [name for name in REQUIRED[kind] if name not in document]
    if missing or not document["rows"]:
        raise SceneError("{}: lacks {}; measure again".format(path, ", ".join(missing) or "rows"))
    return document
