"""The command line: one verb a file, each with ``add_parser(subparsers)`` and ``main(args) -> int``."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import logging
import os
import sys
from typing import Any, Callable, List, Optional

from edgegs import __version__
from edgegs.errors import EdgegsError, OutputError

VERBS = (
    "run",
    "render",
    "check_config",
    "synth",
    "info",
    "pack",
    "kernels",
    "report",
    "bench",
    "roofline",
    "model",
    "tune",
    "sweep",
    "doctor",
    "devices",
    "status",
    "snapshot",
)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="edgegs",
        description="Render 3D Gaussian Splatting scenes on small NVIDIA boards, unattended, and measure it.",
        epilog="exit codes: 0 clean stop, 1 runtime fault, 2 usage, 65 bad scene, 66 input missing, "
        "69 device unavailable, 73 cannot create output, 77 permission, 78 configuration",
    )
    parser.add_argument("--version", action="version", version="edgegs " + __version__)
    subparsers = parser.add_subparsers(dest="verb", metavar="VERB")
    for verb in VERBS:
        module = importlib.import_module("edgegs.cli." + verb)
        module.add_parser(subparsers).set_defaults(main=module.main)
    return parser


def main(argv: Optional[List[str]] = None) -> int:
    """Run one verb and return its exit code; a deliberate error becomes one message on stderr."""
    _fill_standard_descriptors()
    stdout = _Stdout(sys.stdout)
    with contextlib.redirect_stdout(stdout):  # type: ignore[type-var]  # of older mypys
        try:
            code = _exit_code(lambda: _run_verb(argv))
        except SystemExit as stop:  # argparse has said what it had to
            if stop.code:
                raise
            code = 0
        # here, because a failure of the interpreter's own flush can no longer be told
        return code or _exit_code(stdout.flush)


def _exit_code(function: Callable[[], Optional[int]]) -> int:
    try:
        return int(function() or 0)
    except EdgegsError as error:
        _say(f"error: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        _say("interrupted")
        return 130
    except _ReaderGone:  # `edgegs info … | head`: no fault of ours
        return 0
    except MemoryError:
        _say("error: out of memory; lower scene.max_gaussians or the picture size")
        return 1


def _run_verb(argv: Optional[List[str]]) -> int:
    parser = build_parser()
    args = parser.parse_args(argv)
    if args.verb is None:
        parser.print_help(sys.stderr)
        return 2
    if not logging.getLogger().handlers:
        logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="edgegs: %(message)s")
    return int(args.main(args) or 0)


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # nobody listens; the exit code still tells
        print("edgegs: " + text, file=sys.stderr, flush=True)


def _fill_standard_descriptors() -> None:
    """After ``edgegs … >&-`` the next file opened would take descriptor 1, and what libraries print would go in."""
    descriptor = os.open(os.devnull, os.O_RDWR)
    while descriptor < 3:
        descriptor = os.open(os.devnull, os.O_RDWR)
    os.close(descriptor)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)


class _ReaderGone(Exception):
    """Whoever read stdout has closed it."""


class _Stdout:
    """What verbs print to: letters that it lacks become escapes, and a write that fails has an exit code.

    Args:
        file: the process's stdout; None when that is closed.
    """

    def __init__(self, file: Any) -> None:
        self._file = file

    def write(self, text: str) -> int:
        if self._file is None:
            raise OutputError("standard output is closed; send it to a file, or to /dev/null")
        encoding = self._file.encoding or "ascii"
        return self._call(self._file.write, text.encode(encoding, "backslashreplace").decode(encoding))

    def flush(self) -> None:
        if self._file is not None:
            self._call(self._file.flush)

    def _call(self, function: Any, *arguments: str) -> Any:
        try:
            return function(*arguments)
        except OSError as error:
            # what is left in the buffer must not fail once more when the interpreter ends
            with contextlib.suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._file.fileno())
            if isinstance(error, BrokenPipeError):
                raise _ReaderGone from None
            raise OutputError(f"standard output cannot be written: {error.strerror or error}") from None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
