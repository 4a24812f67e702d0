"""The kinds of camera paths: what ``camera.path`` may hold. ``edgegs.camera.build_path`` makes them move."""

from __future__ import annotations

import math
from typing import Optional, Tuple, Union

from pydantic import BeforeValidator, Field, model_validator
from typing_extensions import Annotated, Literal

from edgegs.config.fields import (
    Y_DOWN_UP,
    Coordinate,
    Direction,
    Fov,
    Host,
    Path,
    Period,
    Point,
    Port,
    Seconds,
    Section,
    frozen_list,
    problem,
)


class OrbitPath(Section):
    """A circle around a centre. What is None comes from the scene's bounds (see ``edgegs.camera.Orbit``)."""

    kind: Literal["orbit"]
    period_s: Period = 20.0
    center: Optional[Point] = None
    radius: Optional[Annotated[float, Field(gt=0, le=1e9)]] = None
    height: Optional[Coordinate] = None
    up: Direction = Y_DOWN_UP
    start_deg: Annotated[float, Field(ge=-360, le=360)] = 0.0
    look_down_deg: Optional[Annotated[float, Field(ge=-89, le=89)]] = None


class FixedPath(Section):
    """A camera that stands still."""

    kind: Literal["fixed"]
    eye: Point
    target: Point
    up: Direction = Y_DOWN_UP

    @model_validator(mode="after")
    def _looks_somewhere(self) -> FixedPath:
        _check_sight(self.eye, self.target)
        return self


class Key(Section):
    """One pose of a keyframes path."""

    eye: Point
    target: Point
    time_s: Optional[Annotated[float, Field(ge=0, le=86400)]] = None
    fov_y_deg: Optional[Fov] = None

    @model_validator(mode="after")
    def _looks_somewhere(self) -> Key:
        _check_sight(self.eye, self.target)
        return self


class KeyframesPath(Section):
    """A smooth flight through poses."""

    kind: Literal["keyframes"]
    keys: Annotated[Tuple[Key, ...], BeforeValidator(frozen_list), Field(min_length=2, max_length=1000)]
    loop: bool = True
    period_s: Optional[Period] = None
    up: Direction = Y_DOWN_UP

    @model_validator(mode="after")
    def _times_rise(self) -> KeyframesPath:
        timed = [key.time_s for key in self.keys if key.time_s is not None]
        if not timed:
            return self
        for i, key in enumerate(self.keys):
            if key.time_s is None:
                raise problem("time_s is missing", "give every key a time_s, or none", f"keys.{i}")
        if timed[0] != 0:
            raise problem("the first key's time_s must be 0", "start at 0", "keys.0.time_s")
        for i in range(1, len(timed)):
            if timed[i] <= timed[i - 1]:
                text = f"must be more than the {timed[i - 1]:g} of the key before it"
                raise problem(text, "order the keys by time", f"keys.{i}.time_s")
        if self.period_s is not None and not self.loop:
            raise problem("period_s has no meaning with time_s and loop: false", "remove it", "period_s")
        if self.period_s is not None and self.period_s <= timed[-1]:
            text = f"must be more than the last key's time_s, {timed[-1]:g}"
            raise problem(text, "it includes the way back to the first key", "period_s")
        return self


class CamerasJsonPath(Section):
    """The views of a 3DGS training, one after the other."""

    kind: Literal["cameras_json"]
    path: Path
    view_s: Annotated[float, Field(ge=0.01, le=86400)] = 2.0
    loop: bool = True
    smooth: bool = True


class Home(Section):
    """Where a camera that the world moves stands while nothing moves it."""

    eye: Point
    target: Point

    @model_validator(mode="after")
    def _looks_somewhere(self) -> Home:
        _check_sight(self.eye, self.target)
        return self


class LivePath(Section):
    """What cameras that the world moves have in common; see ``edgegs.camera.live``."""

    home: Optional[Home] = None
    up: Direction = Y_DOWN_UP


class ReceivedPath(LivePath):
    """Poses that come over a network."""

    hold_s: Seconds = 1.0
    return_s: Seconds = 2.0
    smooth_s: Annotated[float, Field(ge=0, le=10)] = 0.05


class UdpPath(ReceivedPath):
    """One JSON object a datagram."""

    kind: Literal["udp"]
    host: Host = "127.0.0.1"
    port: Port = 5151


class MqttPath(ReceivedPath):
    """One JSON object a message."""

    kind: Literal["mqtt"]
    host: Host = "127.0.0.1"
    port: Port = 1883
    topic: Annotated[str, Field(min_length=1, max_length=1000)] = "edgegs/pose"
    username: Optional[Annotated[str, Field(min_length=1, max_length=1000)]] = None
    password_file: Optional[Path] = None
    tls: bool = False

    @model_validator(mode="after")
    def _may_log_in(self) -> MqttPath:
        if self.password_file is not None and self.username is None:
            raise problem("a password without a user", "add username", "password_file")
        return self


class InteractivePath(LivePath):
    """Keys and mouse in the window of a ``display:`` output."""

    kind: Literal["interactive"]
    speed: Optional[Annotated[float, Field(gt=0, le=1e9)]] = None


def _check_sight(eye: Tuple[float, float, float], target: Tuple[float, float, float]) -> None:
    if math.sqrt(sum((a - b) ** 2 for a, b in zip(eye, target))) < 1e-9 * max(1.0, *(abs(a) for a in eye)):
        raise problem("target must differ from eye", "write the point to look at", "target")


CameraPath = Annotated[
    Union[OrbitPath, FixedPath, KeyframesPath, CamerasJsonPath, UdpPath, MqttPath, InteractivePath],
    Field(discriminator="kind"),
]
