"""Everything edgegs raises on purpose, and the exit code each ends the program with.

    EdgegsError            1   runtime fault
    ├── UsageError         2   the command line is wrong
    ├── SceneError        65   the scene file's content is wrong
    ├── InputError        66   an input is missing or cannot be read
    ├── DeviceError       69   no usable backend, GPU, kernel image or port
    │   └── DeviceLost    69   this process can never use its device again, another one may
    ├── OutputError       73   an output or log cannot be created
    ├── AccessError       77   permission denied
    └── ConfigError       78   the configuration is wrong

A message is one line (``ConfigError`` may have one per problem) that names the file, the line or
field, and what to do about it.
"""

from __future__ import annotations


class EdgegsError(Exception):
    """Base of every deliberate error; ``exit_code`` is the process's exit status."""

    exit_code = 1


class UsageError(EdgegsError):
    exit_code = 2


class SceneError(EdgegsError):
    exit_code = 65


class InputError(EdgegsError):
    exit_code = 66


class DeviceError(EdgegsError):
    exit_code = 69


class DeviceLost(DeviceError):
    pass


class OutputError(EdgegsError):
    exit_code = 73


class AccessError(EdgegsError):
    exit_code = 77


class ConfigError(EdgegsError):
    exit_code = 78
