"""What a kernel's loops take of a GPU's issue slots, read from the disassembly of its image (``cuobjdump -sass``).

An issue slot is one clock of one warp scheduler. Where the disassembler marks two instructions as a pair, ``{ … }``,
they are issued together and take one slot (sm_50 to sm_62; later architectures issue one at a time).
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from edgegs.errors import DeviceError
from edgegs.kernels.toolchains import ask, by_version

#: Where toolkits lie that are not on PATH, as for nvcc.
PATTERNS = tuple(
    f"{home}/bin/cuobjdump" for home in ("/usr/local/cuda", "/usr/local/cuda-*", "/usr/lib/nvidia-cuda-toolkit")
)
INSTALL = "cuobjdump not found: install a CUDA toolkit (`apt install nvidia-cuda-toolkit`), or put it on PATH"
#: The words that make one 2^x of one pixel: the hardware's, or (exponential ``bits``) a conversion to an integer.
EXPONENTIALS = ("MUFU.EX2", "F2I")

_FUNCTION = re.compile(r"^\s*Function : (\S+)\s*$")
_INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]{4,5})\*/\s+(\{)?\s*(?:(@!?U?P\w+)\s+)?([A-Z][A-Z0-9_.]*)(.*)$")
_CODE = re.compile(r"/\*\s*0x[0-9a-f]+\s*\*/\s*$")
_BRANCH = re.compile(r"(?:^|\s|`\()(0x[0-9a-f]+)")
_USAGE = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")
#: Instructions that end a skippable part for all lanes (sm_5x: reconverge; later ones: BSYNC).
_JOINS = ("SYNC", "BSYNC")


class Instruction(NamedTuple):
    """``paired``: issued together with the one before it. ``target``: where a branch goes."""

    address: int
    guard: str
    name: str
    operands: str
    paired: bool
    target: Optional[int]

    @property
    def is_exit(self) -> bool:
        """Whether some lanes may leave here for what comes later."""
        forward = self.target is not None and self.target > self.address
        return bool(self.guard) and (self.name.split(".")[0] in (*_JOINS, "BRK") or (self.name == "BRA" and forward))


class Loop(NamedTuple):
    """A loop of a kernel, from the target of a backward branch to the branch.

    Attributes:
        pixel_splats: 2^x in it: pixels of a thread times splats of a pass.
        n_instructions, n_slots: of one pass, inner loops once.
        n_skippable: slots of those that a warp leaves out where no pixel reaches 1/255.
        n_barriers: block barriers. n_local: loads and stores of spilled registers.
    """

    begin: int
    end: int
    pixel_splats: int
    n_instructions: int
    n_slots: int
    n_skippable: int
    n_barriers: int
    n_local: int
    names: Dict[str, int]

    @property
    def slots(self) -> float:
        """Issue slots per pixel and splat."""
        return self.n_slots / self.pixel_splats

    @property
    def slots_skipped(self) -> float:
        """The same where no pixel of the warp is reached."""
        return (self.n_slots - self.n_skippable) / self.pixel_splats


class Usage(NamedTuple):
    """Registers of a thread, and bytes of its stack and local memory (spills) and of a block's shared memory."""

    registers: int
    stack_bytes: int
    shared_bytes: int
    local_bytes: int


class Kernel(NamedTuple):
    """One disassembled kernel."""

    name: str
    usage: Usage
    instructions: List[Instruction]

    @property
    def n_pairs(self) -> int:
        return sum(one.paired for one in self.instructions)


def find_cuobjdump(patterns: Sequence[str] = PATTERNS) -> List[str]:
    """The disassemblers of this machine: on PATH first, then the newest toolkit's; none is a DeviceError."""
    on_path = shutil.which("cuobjdump")
    paths = [on_path] if on_path else []
    for pattern in patterns:
        paths += by_version([path for path in glob.glob(pattern) if os.access(path, os.X_OK)])
    if not paths:
        raise DeviceError(INSTALL)
    return list(dict.fromkeys(os.path.realpath(path) for path in paths))


def disassemble(image: bytes, names: Sequence[str], timeout_s: float = 60.0) -> Dict[str, Kernel]:
    """The kernels of a cubin, by name.

    A disassembler knows the architectures of its toolkit's time (sm_53: up to CUDA 12.9), so each one here is asked.

    Raises:
        DeviceError: there is none, or none can read the image, or a kernel is not in it.
    """
    reasons = []
    with tempfile.TemporaryDirectory(prefix="edgegs-sass-") as scratch:
        path = str(Path(scratch) / "image.cubin")
        Path(path).write_bytes(image)
        for program in find_cuobjdump():
            try:
                usage = parse_usage(ask([program, "-res-usage", path], timeout_s=timeout_s))
                words = ask([program, "-sass", "-fun", ",".join(names), path], timeout_s=timeout_s)
                return _kernels(parse_sass(words), usage, names)
            except DeviceError as error:
                reasons.append(str(error))
    raise DeviceError("; ".join(dict.fromkeys(reasons)))


def _kernels(
    functions: Dict[str, List[Instruction]], usage: Dict[str, Usage], names: Sequence[str]
) -> Dict[str, Kernel]:
    missing = [name for name in names if not functions.get(name) or name not in usage]
    if missing:
        raise DeviceError("no disassembly of " + ", ".join(missing))
    return {name: Kernel(name, usage[name], functions[name]) for name in names}


def parse_sass(text: str) -> Dict[str, List[Instruction]]:
    """The instructions of each function, from the words of ``cuobjdump -sass``."""
    functions: Dict[str, List[Instruction]] = {}
    current: Optional[List[Instruction]] = None
    in_pair = False
    for line in text.splitlines():
        named = _FUNCTION.match(line)
        if named:
            current, in_pair = functions.setdefault(named.group(1), []), False
            continue
        found = _INSTRUCTION.match(line)
        if current is None or found is None:
            continue
        address, opens, guard, name, rest = found.groups()
        operands = _CODE.sub("", rest).strip()
        target = _BRANCH.search(operands) if name.split(".")[0] in ("BRA", "SSY", "PBK") else None
        current.append(
            Instruction(
                int(address, 16), guard or "", name, operands.rstrip(" };"), in_pair,
                int(target.group(1), 16) if target else None,
            )
        )  # fmt: skip
        in_pair = bool(opens)  # the one after it is its second half
    return functions


def parse_usage(text: str) -> Dict[str, Usage]:
    """Registers and memory of each function, from the words of ``cuobjdump -res-usage``."""
    found: Dict[str, Usage] = {}
    name = ""
    for line in text.splitlines():
        named = re.match(r"^\s*Function (\S+):\s*$", line)
        name = named.group(1) if named else name
        used = _USAGE.search(line)
        if used and name:
            registers, stack, shared, local = (int(number) for number in used.groups())
            found[name] = Usage(registers, stack, shared, local)
    return found


def loops(instructions: Sequence[Instruction]) -> List[Loop]:
    """Every loop of a kernel, the innermost first; a jump to itself, where nothing comes after it, is none."""
    found = []
    for one in instructions:
        if one.name == "BRA" and one.target is not None and one.target < one.address and _goes_round(one, instructions):
            body = [other for other in instructions if one.target <= other.address <= one.address]
            found.append(_loop(body))
    return sorted(found, key=lambda loop: (loop.end - loop.begin, loop.begin))


def _goes_round(branch: Instruction, instructions: Sequence[Instruction]) -> bool:
    """Whether a backward branch closes a loop: control words before a target move it by less than an instruction."""
    return branch.address - (branch.target or 0) > 8 or len(instructions) == 1


def _loop(body: List[Instruction]) -> Loop:
    names: Dict[str, int] = {}
    for one in body:
        names[one.name.split(".")[0]] = names.get(one.name.split(".")[0], 0) + 1
    exponentials = [index for index, one in enumerate(body) if one.name == EXPONENTIALS[0]]
    exponentials = exponentials or [i for i, one in enumerate(body) if one.name.startswith(EXPONENTIALS[1] + ".")]
    return Loop(
        begin=body[0].address,
        end=body[-1].address,
        pixel_splats=len(exponentials),
        n_instructions=len(body),
        n_slots=_slots(body),
        n_skippable=sum(_skippable(body, index) for index in exponentials),
        n_barriers=names.get("BAR", 0),
        n_local=names.get("LDL", 0) + names.get("STL", 0),
        names=names,
    )


def _slots(part: Sequence[Instruction]) -> int:
    return sum(not one.paired for one in part)


def _skippable(body: List[Instruction], exponential: int) -> int:
    """Slots between the last exit before a 2^x and where the lanes meet again; 0 where there is no exit."""
    first = exponential
    while first > 0 and not body[first - 1].is_exit:
        first -= 1
        if not body[first].guard and body[first].name in _JOINS:
            return 0
    if first == 0:
        return 0
    last = exponential
    while last < len(body) and (body[last].guard or body[last].name not in _JOINS):
        last += 1
    return _slots(body[first : last + 1])


def blend_loop(kernel: Kernel) -> Loop:
    """The loop that evaluates splats at pixels: of those with a 2^x in them the innermost.

    Raises:
        DeviceError: the kernel has no such loop.
    """
    found = [loop for loop in loops(kernel.instructions) if loop.pixel_splats]
    if not found:
        raise DeviceError(f"{kernel.name}: no loop with {' or '.join(EXPONENTIALS)} in its disassembly")
    # a loop that was unrolled has a remainder of one splat behind it or before it: the longer one is the hot one
    innermost = [one for one in found if not any(_holds(one, other) for other in found if other != one)]
    return max(innermost, key=lambda loop: loop.pixel_splats)


class PatchParts(NamedTuple):
    """Issue slots of what a warp of a patch raster does besides blending.

    Attributes:
        walk: to look at ``WALK_ROWS`` rows of a list. stage: to fold a row of splats, and go round once more.
        patch: the rest of one patch: its start and its pixels' writing, both ways to write among it.
    """

    walk: int
    stage: int
    patch: int


def patch_parts(kernel: Kernel) -> PatchParts:
    """The parts of a ``rasterize_patch*`` kernel, told apart by what each loop must have.

    Raises:
        DeviceError: the loops are not those that are known.
    """
    found, blend = loops(kernel.instructions), blend_loop(kernel)
    walk = [one for one in found if one.names.get("VOTE") and one.names.get("LDG") and not one.pixel_splats]
    stage = [one for one in found if one.names.get("STS") and one.names.get("LDG") and not one.names.get("VOTE")]
    around = [one for one in found if one != blend and _holds(one, blend)]
    if len(walk) != 1 or len(stage) != 1 or len(around) < 2:
        raise DeviceError(f"{kernel.name}: its loops are not those of a patch raster")
    batch, patch = around[-2:]
    again = batch.n_slots - blend.n_slots - walk[0].n_slots
    return PatchParts(walk[0].n_slots, again, patch.n_slots - batch.n_slots)


def _holds(outer: Loop, inner: Loop) -> bool:
    return outer.begin <= inner.begin and inner.end <= outer.end


def listing(kernel: Kernel, loop: Loop) -> str:
    """The loop as text, an instruction a line; the second of a pair is marked with ``+``."""
    lines: List[Tuple[Instruction, str]] = [
        (one, "+" if one.paired else " ") for one in kernel.instructions if loop.begin <= one.address <= loop.end
    ]
    return "\n".join(
        f"{one.address:05x} {mark} {one.guard + ' ' if one.guard else ''}{one.name} {one.operands}".rstrip()
        for one, mark in lines
    )
