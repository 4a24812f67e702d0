"""What packing costs and loses, scene by scene, by the commands that a user types: a script, not a test.

    python tests/packing_table.py --json OUT SCENE…

For each: `edgegs pack` (seconds, peak memory, PSNR of the packed scene against the scene as it was read, on held-out
views), then `edgegs render` of the pack in a new process (seconds from its start to the written picture, peak memory).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any, Dict, List, Tuple


def run(*args: str) -> Tuple[Dict[str, Any], float, float]:
    """The JSON that a verb of edgegs prints, its seconds, and its peak memory in MB."""
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "edgegs", *args, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    out, err = process.stdout.read(), process.stderr.read()  # type: ignore[union-attr]
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status) if hasattr(os, "waitstatus_to_exitcode") else status >> 8
    if process.returncode:
        raise SystemExit(f"edgegs {' '.join(args)}: {err}")
    return json.loads(out), time.monotonic() - began, usage.ru_maxrss / 1024


def measure(scene: str, folder: str) -> Dict[str, Any]:
    pack = os.path.join(folder, "scene.egs")
    facts, pack_s, pack_mb = run("pack", scene, "-o", pack, "--backend", "host")
    picture = os.path.join(folder, "x.png")
    frame, render_s, render_mb = run("render", pack, "-o", picture, "--size", "640x480", "--backend", "host")
    return {
        "scene": os.path.basename(scene),
        "n_splats": facts["n_splats"],
        "sh_degree": facts["sh_degree"],
        "source_mb": round(os.path.getsize(scene) / 1e6, 2),
        "pack_mb": round(facts["file_bytes"] / 1e6, 2),
        "psnr_db": facts["psnr_db"],
        "views": facts["views"]["from"],
        "pack_s": round(pack_s, 1),
        "pack_peak_mb": round(pack_mb),
        "render_s": round(render_s, 2),
        "render_peak_mb": round(render_mb),
        "variant": frame["variant"],
        "frame_ms": frame["frame_ms"],
    }


def main(argv: List[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenes", nargs="+", metavar="SCENE")
    parser.add_argument("--json", required=True, metavar="OUT")
    args = parser.parse_args(argv)
    rows = []
    print("| scene | splats | SH | file MB | pack MB | PSNR dB | pack s | peak MB | start to picture s | peak MB |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    for scene in args.scenes:
        with tempfile.TemporaryDirectory() as folder:
            row = measure(scene, folder)
        rows.append(row)
        print(
            "| {scene} | {n_splats:,} | {sh_degree} | {source_mb} | {pack_mb} | {psnr_db:.1f} | {pack_s} "
            "| {pack_peak_mb} | {render_s} | {render_peak_mb} |".format(**row),
            flush=True,
        )
    with open(args.json, "w", encoding="ascii") as file:
        json.dump({"load_average": os.getloadavg(), "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main(sys.argv[1:])
