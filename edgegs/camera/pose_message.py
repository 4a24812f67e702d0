"""One pose, as robots and scripts send it: a JSON object of at most 2 KiB.

    {"position": [0, -1.5, -4], "look_at": [0, -1, 0]}
    {"position": [0, -1.5, -4], "quaternion": [1, 0, 0, 0], "fov_y_deg": 70, "seq": 17}

Strict, as the configuration is: what a sender misspells is refused and named, not ignored. Nothing of a message is
shown in an error but a shortened, printable form of its keys and values: it comes from a network.
"""

from __future__ import annotations

import difflib
import json
import math
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from edgegs.camera.pose import look_at, quaternion
from edgegs.errors import UsageError

MAX_BYTES = 2048
MAX_COORDINATE = 1e9  # scene units, as in the configuration
FOV_DEG = (1.0, 170.0)
MAX_SEQ = 2**63 - 1

_KEYS = ("position", "quaternion", "look_at", "up", "fov_y_deg", "seq")
_EXAMPLE = '{"position": [x, y, z], "look_at": [x, y, z]}'


class PoseMessageError(ValueError):
    """What is wrong with a message and what to send instead, in one line."""


class PoseMessage(NamedTuple):
    """A pose that passed every check.

    Attributes:
        position: (3,) float64, the camera's centre in the world, scene units.
        quaternion: (4,) float64 of length 1, w first: camera (x right, y down, z forward) to world.
        fov_y_deg: vertical field of view, degrees; None: the configured one.
        seq: the sender's counter; None where it does not count.
    """

    position: np.ndarray
    quaternion: np.ndarray
    fov_y_deg: Optional[float] = None
    seq: Optional[int] = None


def parse_pose(raw: bytes, up: Sequence[float] = (0.0, -1.0, 0.0)) -> PoseMessage:
    """Read one message.

    Args:
        raw: UTF-8 JSON; white space around the object is ignored.
        up: (3,) the world's upward direction, for a ``look_at`` without ``up``.

    Raises:
        PoseMessageError: anything is wrong with it.
    """
    message = _object(raw)
    for key in message:
        if key not in _KEYS:
            close = difflib.get_close_matches(key, _KEYS, 1, cutoff=0.5)
            hint = f"did you mean {close[0]}?" if close else "known are " + ", ".join(_KEYS)
            raise PoseMessageError(f"unknown key {_shown(key)}; {hint}")
    if "position" not in message:
        raise PoseMessageError(f"position is missing; send {_EXAMPLE}")
    if ("quaternion" in message) == ("look_at" in message):
        count = "both" if "look_at" in message else "neither"
        raise PoseMessageError(f"{count} of quaternion and look_at; send one of them")
    position = _numbers(message, "position", 3)
    if "quaternion" in message:
        if "up" in message:
            raise PoseMessageError("up goes with look_at; a quaternion holds it already")
        turn = _numbers(message, "quaternion", 4)
        length = float(np.linalg.norm(turn))
        if not length > 1e-9:
            raise PoseMessageError("quaternion is zero; without a rotation it is [1, 0, 0, 0], w first")
        turn = turn / length
    else:
        upward = _numbers(message, "up", 3) if "up" in message else np.asarray(up, dtype=np.float64)
        if not np.linalg.norm(upward) > 1e-9:
            raise PoseMessageError("up is zero; send a direction, such as [0, -1, 0]")
        try:
            turn = quaternion(look_at(position, _numbers(message, "look_at", 3), upward)[:3, :3].T)
        except UsageError:
            raise PoseMessageError("look_at is where the camera stands; send a point in front of it") from None
    return PoseMessage(position, turn, _fov(message), _seq(message))


def _object(raw: bytes) -> Dict[str, Any]:
    if len(raw) > MAX_BYTES:
        raise PoseMessageError(f"larger than {MAX_BYTES} bytes; send one pose a message")
    try:
        message = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise PoseMessageError(f"byte {error.start} is not UTF-8; send {_EXAMPLE}") from None
    except json.JSONDecodeError as error:
        raise PoseMessageError(f"not JSON at character {error.pos}; send {_EXAMPLE}") from None
    except RecursionError:
        raise PoseMessageError(f"brackets nest too deep; send {_EXAMPLE}") from None
    if not isinstance(message, dict):
        raise PoseMessageError(f"not a JSON object; send {_EXAMPLE}")
    return message


def _unique(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    found: Dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise PoseMessageError(f"{_shown(key)} stands there twice; send it once")
        found[key] = value
    return found


def _refuse_constant(name: str) -> None:
    raise PoseMessageError(f"{name} is no finite number")


def _is_number(value: Any, low: float, high: float) -> bool:
    # The comparison comes before any conversion: an integer of a thousand digits has no float.
    return isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high


def _numbers(message: Dict[str, Any], key: str, n: int) -> np.ndarray:
    value = message[key]
    if not isinstance(value, list) or len(value) != n:
        words = "four numbers, w first" if n == 4 else "three numbers"
        raise PoseMessageError(f"{key} is {_shown(value)}; it must be {words}")
    for number in value:
        if not _is_number(number, -MAX_COORDINATE, MAX_COORDINATE):
            raise PoseMessageError(f"{key} holds {_shown(number)}; expected numbers from -1e9 to 1e9")
    return np.array([float(number) for number in value])


def _fov(message: Dict[str, Any]) -> Optional[float]:
    if "fov_y_deg" not in message:
        return None
    value = message["fov_y_deg"]
    if not _is_number(value, *FOV_DEG):
        raise PoseMessageError(f"fov_y_deg is {_shown(value)}; expected {FOV_DEG[0]:g} to {FOV_DEG[1]:g} degrees")
    return float(value)


def _seq(message: Dict[str, Any]) -> Optional[int]:
    if "seq" not in message:
        return None
    value = message["seq"]
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_SEQ:
        raise PoseMessageError(f"seq is {_shown(value)}; expected a whole number from 0 to 2^63 - 1")
    return value


def _shown(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return "a number without end"
    text = ascii(value)
    return text if len(text) <= 40 else text[:39] + "…"
