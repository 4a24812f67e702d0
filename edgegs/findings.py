"""What `edgegs doctor` and `edgegs devices` find, one sentence each; checks that may hang, side by side; and how a
Python of its own is asked about packages that may crash."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Callable, Dict, List, Mapping, NamedTuple, Sequence, Tuple, TypeVar, Union

T = TypeVar("T")

OK, WARNING, PROBLEM = "ok", "warning", "problem"


class Finding(NamedTuple):
    """One line of a report.

    Attributes:
        check: what was looked at, such as "gpu".
        state: ``OK``; ``WARNING``: something is missing that a first run does without; ``PROBLEM``: drawing fails or
            is very slow until it is mended.
        says: what is there, or the cause.
        fix: the command that mends it, or what to do; empty where there is nothing to mend.
        code: its heading in docs/troubleshooting.md; empty where there is nothing to look up.
    """

    check: str
    state: str
    says: str
    fix: str = ""
    code: str = ""


def note(check: str, code: str, says: str, fix: str = "") -> Finding:
    """Something that is no fault here, but that one who misses something should know."""
    return Finding(check, OK, says, fix, code)


def warning(check: str, code: str, says: str, fix: str) -> Finding:
    """Something that a first run does without; see ``Finding``."""
    return Finding(check, WARNING, says, fix, code)


def problem(check: str, code: str, says: str, fix: str) -> Finding:
    """Something without which drawing fails; see ``Finding``."""
    return Finding(check, PROBLEM, says, fix, code)


def side_by_side(
    checks: Dict[str, Callable[[], List[Finding]]], deadline_s: float, failed_code: str = "", late_code: str = ""
) -> List[Finding]:
    """The findings of all checks, in their order; never raises, and takes at most ``deadline_s``.

    Each check has a thread of its own, which is left alone when it hangs: that is a finding, too, as is its failure.

    Args:
        failed_code, late_code: the codes of these two findings.
    """
    found: List[Finding] = []
    for name, result in at_once(checks, deadline_s).items():
        if isinstance(result, Exception):  # whatever a broken machine brings: the other checks still tell
            says = f"cannot be examined: {type(result).__name__}: {result}"
            found.append(Finding(name, WARNING, says, code=failed_code))
        elif result is None:
            found.append(Finding(name, PROBLEM, f"no answer within {deadline_s:g} s", code=late_code))
        else:
            found += result
    return found


def at_once(jobs: Mapping[str, Callable[[], T]], deadline_s: float) -> Dict[str, Union[T, Exception, None]]:
    """What each job returned or raised, in their order; None of one that was not ready in time.

    Each has a thread of its own, which is left alone when it hangs.
    """
    results: Dict[str, Union[T, Exception]] = {}

    def work(name: str, job: Callable[[], T]) -> None:
        try:
            results[name] = job()
        except Exception as error:
            results[name] = error

    threads = [threading.Thread(target=work, args=item, daemon=True) for item in jobs.items()]
    for thread in threads:
        thread.start()
    end = time.monotonic() + deadline_s
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    return {name: results.get(name) for name in jobs}


def print_findings(findings: Sequence[Finding]) -> None:
    for line in lines(findings):
        print(line)


def lines(findings: Sequence[Finding]) -> List[str]:
    """One line a finding, and below it what mends it."""
    told = []
    for one in findings:
        told.append(f"{one.state:<8} {one.check:<11} {one_line(one.says)}")
        if one.fix:
            told.append(f"{'':<20} -> {one_line(one.fix)}")
    return told


def one_line(text: str) -> str:
    """What a library, a driver or another machine says, without line breaks and without what a terminal obeys."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in " ".join(text.split()))


def count(n: int, what: str) -> str:
    """"no problems", "1 problem", "2 problems"."""
    return f"{n or 'no'} {what}{'' if n == 1 else 's'}"


def python_command(script: str, *arguments: str) -> List[str]:
    """What runs a script in a Python of its own, which finds nothing in the working directory: -c would look there
    first, and a stray cv2.py be taken for OpenCV. (-P forbids that only from Python 3.11 on.)"""
    return [sys.executable, "-c", 'import sys\nif "" in sys.path:\n    sys.path.remove("")\n' + script, *arguments]


def python_environment() -> Dict[str, str]:
    """The environment in which a Python of its own finds this edgegs."""
    paths = [str(Path(__file__).resolve().parent.parent), os.environ.get("PYTHONPATH", "")]
    return dict(os.environ, PYTHONPATH=os.pathsep.join(path for path in paths if path))


def ask_python(script: str, timeout_s: float) -> Tuple[str, str]:
    """Run a script in a Python of its own: what it prints, or "" and why it failed. Never raises.

    A library that hangs, aborts or uses an unknown instruction takes only that process along.
    """
    try:
        done = subprocess.run(
            python_command(script),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=python_environment(),
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
