"""One received pose: what is taken, what is refused and in which words, and whatever else a network may bring."""

from __future__ import annotations

import json
import math
from typing import Any, Dict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgegs.camera.pose import look_at, rotation_matrix
from edgegs.camera.pose_message import MAX_BYTES, PoseMessage, PoseMessageError, parse_pose

GOOD: Dict[str, Any] = {"position": [1, -2.5, 3], "quaternion": [1, 0, 0, 0]}
AHEAD: Dict[str, Any] = {"position": [0, 0, 0], "look_at": [0, 0, 2]}


def parse(message: Any, **more: Any) -> PoseMessage:
    return parse_pose(json.dumps(message).encode(), **more)


def without(key: str) -> Dict[str, Any]:
    return {k: v for k, v in GOOD.items() if k != key}


# ---- what is taken


def test_quaternion_is_normalised_and_the_rest_is_optional() -> None:
    message = parse({**GOOD, "quaternion": [0, 0, 3, 4]})
    np.testing.assert_array_equal(message.position, [1, -2.5, 3])
    np.testing.assert_allclose(message.quaternion, [0, 0, 0.6, 0.8], rtol=0, atol=1e-15)
    assert message.fov_y_deg is None
    assert message.seq is None
    full = parse({**GOOD, "fov_y_deg": 70, "seq": 2**63 - 1})
    assert (full.fov_y_deg, full.seq) == (70.0, 2**63 - 1)


def test_white_space_around_it_is_what_netcat_sends() -> None:
    assert parse_pose(b" " + json.dumps(GOOD).encode() + b"\r\n").seq is None


def test_axes_are_right_down_forward() -> None:
    """Looking along +z with -y up is the world itself; with +y up it is turned half round."""
    np.testing.assert_allclose(rotation_matrix(parse(AHEAD).quaternion), np.eye(3), atol=1e-12)
    turned = parse({**AHEAD, "up": [0, 5, 0]})
    np.testing.assert_allclose(rotation_matrix(turned.quaternion), np.diag([-1, -1, 1]), atol=1e-12)
    np.testing.assert_array_equal(parse(AHEAD, up=(0, 1, 0)).quaternion, turned.quaternion)


coordinates = st.floats(-1e3, 1e3)
points = st.tuples(coordinates, coordinates, coordinates)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(points, points, points, st.floats(1e-3, 1e3))
def test_quaternion_and_look_at_of_one_view_agree(eye: Any, target: Any, up: Any, length: float) -> None:
    if math.dist(eye, target) < 1e-3 or np.linalg.norm(up) < 1e-3:
        return
    seen = parse({"position": eye, "look_at": target, "up": up})
    viewmat = look_at(eye, target, up)
    np.testing.assert_allclose(rotation_matrix(seen.quaternion), viewmat[:3, :3].T, rtol=0, atol=1e-9)
    given_ = parse({"position": eye, "quaternion": (length * seen.quaternion).tolist()})
    np.testing.assert_allclose(given_.quaternion, seen.quaternion, rtol=0, atol=1e-12)


# ---- what is refused: the words say what and what to do


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({}, "position is missing; send {"),
        (without("position"), "position is missing"),
        (without("quaternion"), "neither of quaternion and look_at"),
        ({**GOOD, "look_at": [0, 0, 0]}, "both of quaternion and look_at; send one"),
        ({**GOOD, "up": [0, 1, 0]}, "up goes with look_at"),
        ({**GOOD, "quaternoin": 1}, "unknown key 'quaternoin'; did you mean quaternion?"),
        ({**GOOD, "zzz": 1}, "unknown key 'zzz'; known are position, quaternion"),
        ({**GOOD, "\ud800\n": 1}, r"unknown key '\ud800\n'"),
        ({**GOOD, "position": [1, 2]}, "position is [1, 2]; it must be three numbers"),
        ({**GOOD, "position": None}, "position is None; it must be three numbers"),
        ({**GOOD, "position": {"x": 1}}, "it must be three numbers"),
        ({**GOOD, "position": [1, 2, "3"]}, "position holds '3'; expected numbers"),
        ({**GOOD, "position": [1, 2, True]}, "position holds True"),
        ({**GOOD, "position": [1, 2, 1.0001e9]}, "expected numbers from -1e9 to 1e9"),
        ({**GOOD, "position": [1, 2, 10**1000]}, "position holds 1000"),
        ({**GOOD, "quaternion": [0, 0, 0, 0]}, "quaternion is zero"),
        ({**GOOD, "quaternion": [1e-200, 0, 0, 0]}, "quaternion is zero"),
        ({**GOOD, "quaternion": [1, 0, 0]}, "it must be four numbers, w first"),
        ({**AHEAD, "look_at": [0, 0, 0]}, "look_at is where the camera stands"),
        ({**AHEAD, "up": [0, 0, 0]}, "up is zero"),
        ({**GOOD, "fov_y_deg": 0.5}, "fov_y_deg is 0.5; expected 1 to 170 degrees"),
        ({**GOOD, "fov_y_deg": 171}, "expected 1 to 170"),
        ({**GOOD, "fov_y_deg": "60"}, "fov_y_deg is '60'"),
        ({**GOOD, "seq": -1}, "seq is -1; expected a whole number"),
        ({**GOOD, "seq": 1.0}, "seq is 1.0"),
        ({**GOOD, "seq": True}, "seq is True"),
        ({**GOOD, "seq": 2**63}, "seq is 9223372036854775808"),
        ([GOOD], "not a JSON object"),
        ("x", "not a JSON object"),
    ],
)
def test_refused(message: Any, words: str) -> None:
    with pytest.raises(PoseMessageError) as caught:
        parse(message)
    assert words in str(caught.value)
    assert str(caught.value).isascii() or "…" in str(caught.value)
    assert len(str(caught.value)) < 200
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "not JSON at character 0; send {"),
        (b"hello", "not JSON"),
        (b'{"position": [0, 0, 0]', "not JSON at character 22"),
        (b"\xef\xbb\xbf{}", "not JSON"),
        (b'{"position": "\xff"}', "byte 14 is not UTF-8"),
        (b'{"seq": 1, "seq": 2}', "'seq' stands there twice"),
        (b'{"position": [NaN, 0, 0]}', "NaN is no finite number"),
        (b'{"position": [0, -Infinity, 0]}', "-Infinity is no finite number"),
        (b'{"position": [0, 1e999, 0], "quaternion": [1, 0, 0, 0]}', "position holds a number without end"),
        (b"[" * 2000, "brackets nest too deep"),
        (b'{"a":' * 400, "not JSON"),
        (json.dumps(GOOD).encode().ljust(MAX_BYTES + 1), "larger than 2048 bytes"),
    ],
)
def test_bytes_refused(raw: bytes, words: str) -> None:
    with pytest.raises(PoseMessageError) as caught:
        parse_pose(raw)
    assert words in str(caught.value)


def test_two_kibibytes_are_not_too_large() -> None:
    assert parse_pose(json.dumps(GOOD).encode().ljust(MAX_BYTES)).seq is None


# ---- fuzz: its own error, or a pose that a camera can be made of


def check(raw: bytes) -> None:
    message, complaint = None, ""
    try:
        message = parse_pose(raw)
    except PoseMessageError as error:
        complaint = str(error)
    assert complaint.isprintable()
    assert len(complaint) < 250
    if message is None:
        assert complaint
        return
    assert np.isfinite(message.position).all()
    assert abs(np.linalg.norm(message.quaternion) - 1) < 1e-12
    assert message.fov_y_deg is None or 1 <= message.fov_y_deg <= 170
    assert message.seq is None or message.seq >= 0


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.binary(max_size=2100))
def test_any_bytes(raw: bytes) -> None:
    check(raw)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
numbers = st.floats() | st.integers() | st.sampled_from([0, 1, -0.0, 1e-320, 1e9, 1e300, 10**400])


@settings(max_examples=400, deadline=None, derandomize=True)
@given(
    st.fixed_dictionaries(
        {"position": st.lists(numbers, min_size=3, max_size=3) | anything},
        optional={
            "quaternion": st.lists(numbers, min_size=4, max_size=4) | anything,
            "look_at": st.lists(numbers, min_size=3, max_size=3) | anything,
            "up": st.lists(numbers, min_size=3, max_size=3) | anything,
            "fov_y_deg": numbers | anything,
            "seq": st.integers() | anything,
        },
    )
)
def test_any_values(message: Any) -> None:
    check(json.dumps(message).encode())


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.integers(0, 200), st.binary(min_size=1, max_size=3), st.booleans())
def test_a_good_message_with_some_bytes_changed(at: int, patch: bytes, insert: bool) -> None:
    raw = json.dumps({**AHEAD, "up": [0, -1, 0], "fov_y_deg": 60.5, "seq": 12}).encode()
    at = at % len(raw)
    check(raw[:at] + patch + raw[at + (0 if insert else len(patch)) :])
