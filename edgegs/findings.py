"""What `edgegs doctor` finds, one sentence each, and how it asks a Python of its own about packages that may crash."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple, Tuple

OK, WARNING, PROBLEM = "ok", "warning", "problem"


class Finding(NamedTuple):
    """One line of the doctor's report.

    Attributes:
        check: what was looked at, such as "gpu".
        state: ``OK``; ``WARNING``: something is missing that a first run does without; ``PROBLEM``: drawing fails or
            is very slow until it is mended.
        says: what is there, or the cause.
        fix: the command that mends it, or what to do; empty where there is nothing to mend.
    """

    check: str
    state: str
    says: str
    fix: str = ""


def ask_python(script: str, timeout_s: float) -> Tuple[str, str]:
    """Run a script in a Python of its own: what it prints, or "" and why it failed. Never raises.

    A library that hangs, aborts or uses an unknown instruction takes only that process along.
    """
    paths = [str(Path(__file__).resolve().parent.parent), os.environ.get("PYTHONPATH", "")]
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(path for path in paths if path))
    try:
        done = subprocess.run(
            [sys.executable, "-c", script],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=environment,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        return "", f"no answer within {timeout_s:g} s"
    except (OSError, ValueError) as error:
        return "", f"Python cannot be started ({error})"
    if done.returncode == 0:
        return done.stdout.decode("utf-8", "replace"), ""
    words = done.stderr.decode("utf-8", "replace").strip().splitlines()
    if done.returncode < 0:
        words.append(f"ended by signal {-done.returncode}")
    return "", words[-1] if words else f"ended with status {done.returncode}"
