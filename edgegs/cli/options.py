"""Options and parsers that several verbs share."""

from __future__ import annotations

import argparse
import contextlib
import re
from typing import Iterator, Sequence, Tuple

from edgegs.errors import DeviceError, UsageError

#: As for render.threads of a configuration.
MAX_THREADS = 1024


def size(text: str) -> Tuple[int, int]:
    """``640x480`` -> (640, 480)."""
    match = re.match(r"^(\d{1,5})[xX](\d{1,5})$", text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r}: expected WIDTHxHEIGHT, such as 640x480")
    width, height = int(match.group(1)), int(match.group(2))
    if not (1 <= width <= 8192 and 1 <= height <= 8192):
        raise argparse.ArgumentTypeError(f"{text!r}: each side must be from 1 to 8192 pixels")
    return width, height


@contextlib.contextmanager
def naming_variants() -> Iterator[None]:
    """What is wrong with a variant's name, told of --variant: the message begins with the configuration's key."""
    try:
        yield
    except DeviceError as error:
        raise UsageError("--variant: " + re.sub(r"^render\.variant: ", "", str(error))) from None


def triple(text: str) -> Tuple[float, float, float]:
    """``1,2,-3.5`` -> (1.0, 2.0, -3.5)."""
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if len(values) != 3 or not all(abs(value) < 1e30 for value in values):
        raise argparse.ArgumentTypeError(f"{text!r}: expected three numbers x,y,z")
    return values[0], values[1], values[2]


def bounded(low: float, high: float) -> _Bounded:
    """A parser for a number of a range."""
    return _Bounded(low, high)


class _Bounded:
    def __init__(self, low: float, high: float) -> None:
        self.low, self.high = low, high

    def __call__(self, text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not self.low <= value <= self.high:
            raise argparse.ArgumentTypeError(f"{text!r}: expected a number from {self.low:g} to {self.high:g}")
        return value


def whole(low: int, high: int) -> _Whole:
    """A parser for a whole number of a range."""
    return _Whole(low, high)


class _Whole:
    def __init__(self, low: int, high: int) -> None:
        self.low, self.high = low, high

    def __call__(self, text: str) -> int:
        value = int(text) if re.fullmatch(r"[+-]?\d{1,18}", text, re.ASCII) else None
        if value is None or not self.low <= value <= self.high:
            raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number from {self.low} to {self.high}")
        return value


def add_scene_options(parser: argparse.ArgumentParser, several: bool = False) -> None:
    """The scene and the axes that it is read with."""
    kinds = ".ply, .compressed.ply, .splat, .spz, .sog or its folder, .glb, .gltf, .egs"
    parser.add_argument("scene", metavar="SCENE", nargs="+" if several else None, help=f"a scene: {kinds}")
    parser.add_argument(
        "--frame", choices=("rdf", "rub"), help="axes that the file was written in, if not what its format says"
    )


def add_backend_options(
    parser: argparse.ArgumentParser, backends: Sequence[str] = ("auto", "cuda", "host", "reference")
) -> None:
    parser.add_argument("--backend", choices=backends, default="auto", help="who draws (default: the best there is)")
    parser.add_argument("--variant", default="auto", help="see `edgegs kernels list`")
    parser.add_argument(
        "--threads", type=whole(0, MAX_THREADS), default=0, metavar="N", help="of the host backend; 0 takes all"
    )
