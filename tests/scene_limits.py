"""What a load takes: in a process of its own, under limits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Tuple

ROOT = Path(__file__).resolve().parent.parent

# Loads argv[1] with a budget of argv[2]; 8 s of processor time kill it.
_LIMITED = """
import resource, sys, time
resource.setrlimit(resource.RLIMIT_CPU, (8, 8))
from edgegs.errors import EdgegsError
from edgegs.scene import load

def peak():  # of this program alone; ru_maxrss would begin with its parent's
    return next(int(line.split()[1]) // 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))

before, began = peak(), time.process_time()
try:
    print(load(sys.argv[1], int(sys.argv[2]) or None).n_splats)
except EdgegsError as error:
    print(error)
seconds = time.process_time() - began
print(peak(), peak() - before)
print(seconds)
"""


def limited(path: Path, max_gaussians: int = 0) -> Tuple[str, int, int, float]:
    """(count or message, peak MiB, MiB above the bare interpreter, processor seconds) of a load in its own process."""
    command = [sys.executable, "-c", _LIMITED, str(path), str(max_gaussians)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    message, memory, seconds = done.stdout.splitlines()
    peak, grown = memory.split()
    return message, int(peak), int(grown), float(seconds)
