"""Which GPU is here, asked of the driver in a process of its own."""

from __future__ import annotations

import json
from typing import NamedTuple, Optional, Tuple

from edgegs.findings import ask_python

#: The first call into the driver of a machine with many GPUs takes seconds.
TIMEOUT_S = 10.0

_ASK = """
import json, sys
from edgegs.backends import cuda
if cuda.driver is None:
    sys.exit("pycuda cannot be imported (" + cuda.missing + ")")
try:
    cuda.driver.init()
    if cuda.driver.Device.count() == 0:
        sys.exit("the driver knows no GPU")
    device = cuda.driver.Device(0)
    version = cuda.driver.get_driver_version()
    facts = {"name": device.name(), "capability": list(device.compute_capability()),
             "memory_bytes": device.total_memory(), "cuda": "%d.%d" % (version // 1000, version % 1000 // 10)}
except cuda.driver.Error as error:
    sys.exit("the driver refuses: " + str(error))
print(json.dumps(facts))
"""


class Gpu(NamedTuple):
    """The first CUDA device: its name, compute capability, memory, and the CUDA release its driver knows."""

    name: str
    capability: Tuple[int, int]
    memory_bytes: int
    cuda: str


def detect(timeout_s: float = TIMEOUT_S) -> Tuple[Optional[Gpu], str]:
    """The GPU that the CUDA backend would take; or None, and why. Never raises."""
    answer, reason = ask_python(_ASK, timeout_s)
    if reason:
        return None, reason
    try:
        facts = json.loads(answer)
        major, minor = facts["capability"]
        gpu = Gpu(str(facts["name"]), (int(major), int(minor)), int(facts["memory_bytes"]), str(facts["cuda"]))
    except (ValueError, KeyError, TypeError):
        return None, "the answer of the driver cannot be read"
    return gpu, ""
