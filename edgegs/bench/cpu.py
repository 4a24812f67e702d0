"""Processor time of edgegs and of the programs that it feeds."""

from __future__ import annotations

import contextlib
import os
import resource
from typing import Dict, Iterator, Tuple


def cpu_s() -> float:
    """Processor seconds of this process and of all that it started, living or ended."""
    own, ended = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    # What a child has used moves from the sum over the living to the ended when it is reaped: nothing is lost.
    return own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime + sum(_cpu_of_descendants())


def _cpu_of_descendants() -> Iterator[float]:
    tick = float(os.sysconf("SC_CLK_TCK"))
    processes: Dict[int, Tuple[int, float]] = {}  # of each: its parent, and its seconds
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):  # gone meanwhile
                with open(f"/proc/{name}/stat", "rb") as file:
                    words = file.read().rsplit(b")", 1)[1].split()
                processes[int(name)] = (int(words[1]), sum(map(int, words[11:15])) / tick)
    for number, (_, seconds) in processes.items():
        above = number
        while above in processes:
            above = processes[above][0]
            if above == os.getpid():
                yield seconds
                break
