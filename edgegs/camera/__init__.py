"""Where the picture is taken from: one camera, and the paths that move it.

    pose          Camera, look_at, intrinsics
    paths         orbit, fixed, keyframes, views: a time in seconds -> Camera
    spline        smooth curves through given values
    cameras_json  the views of a 3DGS training
    live          cameras that the world moves: udp, mqtt, interactive; pose_message is what they are sent
    inputs        keys, drags and the wheel of a window

Arguments are plain numbers, arrays and dicts: nothing here knows the configuration file.
"""

from __future__ import annotations

from edgegs.camera.cameras_json import load_cameras_json
from edgegs.camera.inputs import InputEvent, PathClock
from edgegs.camera.paths import Fixed, Keyframes, Lens, Orbit, PosePath, Views, build_path
from edgegs.camera.pose import FAR, NEAR, Camera, intrinsics, look_at

__all__ = [
    "FAR",
    "NEAR",
    "Camera",
    "Fixed",
    "InputEvent",
    "Keyframes",
    "Lens",
    "Orbit",
    "PathClock",
    "PosePath",
    "Views",
    "build_path",
    "intrinsics",
    "load_cameras_json",
    "look_at",
]
