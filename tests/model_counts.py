"""Reads the kernels' issue slots from this machine's image for sm_53 into jetson/boards.yaml, so that `edgegs model`
has them where no disassembler is. What was counted by hand (``front``) stays.

    edgegs kernels build --arch sm_53 --toolchain nvrtc
    PYTHONPATH=. python tests/model_counts.py
"""

from __future__ import annotations

import dataclasses
import datetime
import re
import sys
from pathlib import Path
from typing import Any

from edgegs.bench.boards import load_boards
from edgegs.bench.model import find_kernels
from edgegs.kernels.manifest import source_hash

BOARDS = Path(__file__).parent.parent / "jetson" / "boards.yaml"


def row(counts: Any) -> str:
    """A flow mapping of its numbers."""
    return "{" + ", ".join(f"{field.name}: {getattr(counts, field.name)}" for field in dataclasses.fields(counts)) + "}"


def main() -> int:
    known = load_boards(BOARDS)
    found = find_kernels(known, known.boards[known.calibration.board].arch)
    if not found.is_read:
        print(found.why_not, file=sys.stderr)
        return 1
    text = BOARDS.read_text(encoding="utf-8")
    text = re.sub(r'(\n  source: )"[^"]*"', rf'\g<1>"{source_hash()[:12]}"', text)
    text = re.sub(r'(\n  read: )"[^"]*"', rf'\g<1>"{datetime.date.today().isoformat()}"', text)
    for rows in (found.loops, found.patches):
        for name, counts in rows.items():
            words = " *".join(re.escape(field.name) + ":[^,}]*,?" for field in dataclasses.fields(counts))
            text, n = re.subn(rf"(\n    {name}: ){{{words}}}", rf"\g<1>{row(counts)}", text)
            if n != 1:
                print(f"{BOARDS} has no row {name} of the known form", file=sys.stderr)
                return 1
    BOARDS.write_text(text, encoding="utf-8")
    load_boards(BOARDS)
    print(f"{BOARDS}: from {found.origin}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
