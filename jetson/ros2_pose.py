#!/usr/bin/env python3
"""ROS 2 to edgegs: sends a robot's pose to ``camera.path: {kind: udp}``, one JSON datagram a pose.

    source /opt/ros/humble/setup.bash
    python3 jetson/ros2_pose.py --topic /odom --mount 0.2 0 0.5 --map-to-scene map_to_scene.json

Reads nav_msgs/Odometry, geometry_msgs/PoseStamped or tf. docs/poses.md tells about the frames and how to find
``map_to_scene.json``. Needs rclpy (and tf2_ros for tf) and nothing else: it runs on the robot, without edgegs.

The arithmetic is tested; the ROS side is unconfirmed: no ROS 2 here. What confirms it, in three terminals:
    ros2 topic pub -r 20 /odom nav_msgs/msg/Odometry '{pose: {pose: {position: {x: 1.0}, orientation: {w: 1.0}}}}'
    python3 jetson/ros2_pose.py --topic /odom
    nc -lu 127.0.0.1 5151      # 20 lines a second: "position":[1.0,0.0,0.0],"quaternion":[0.5,-0.5,0.5,-0.5]
"""

from __future__ import annotations

import argparse
import json
import math
import socket
import sys
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

Vector = Tuple[float, float, float]
Quaternion = Tuple[float, float, float, float]  # w first
Similarity = Tuple[float, Quaternion, Vector]  # scale, rotation, translation: p -> scale * rotation p + translation

#: Turns the axes of ROS's bodies (x forward, y left, z up) into those of a camera (x right, y down, z forward).
BODY_FROM_CAMERA: Quaternion = (0.5, -0.5, 0.5, -0.5)
IDENTITY: Similarity = (1.0, (1.0, 0.0, 0.0, 0.0), (0.0, 0.0, 0.0))


# ---- arithmetic: no ROS, no NumPy


def normalised(q: Sequence[float]) -> Quaternion:
    """``q`` at length 1. ValueError where it has no direction, as in a message that nobody filled in."""
    length = math.sqrt(sum(x * x for x in q))
    if not math.isfinite(length) or length < 1e-9:
        raise ValueError("the orientation is no rotation (all zero, or not finite)")
    w, x, y, z = (c / length for c in q)
    return (w, x, y, z)


def multiply(a: Quaternion, b: Quaternion) -> Quaternion:
    """The rotation ``b``, then ``a``."""
    aw, ax, ay, az = a
    bw, bx, by, bz = b
    return (
        aw * bw - ax * bx - ay * by - az * bz,
        aw * bx + ax * bw + ay * bz - az * by,
        aw * by - ax * bz + ay * bw + az * bx,
        aw * bz + ax * by - ay * bx + az * bw,
    )


def rotate(q: Quaternion, v: Sequence[float]) -> Vector:
    w, x, y, z = q
    _, a, b, c = multiply(multiply(q, (0.0, v[0], v[1], v[2])), (w, -x, -y, -z))
    return (a, b, c)


def from_rpy(roll_deg: float, pitch_deg: float, yaw_deg: float) -> Quaternion:
    """ROS's roll, pitch, yaw: about x, then about the fixed y, then about the fixed z; degrees."""
    halves = [math.radians(angle) / 2 for angle in (roll_deg, pitch_deg, yaw_deg)]
    (sr, cr), (sp, cp), (sy, cy) = ((math.sin(half), math.cos(half)) for half in halves)
    return multiply(multiply((cy, 0.0, 0.0, sy), (cp, 0.0, sp, 0.0)), (cr, sr, 0.0, 0.0))


def from_matrix(m: Sequence[Sequence[float]]) -> Quaternion:
    """The quaternion of a rotation matrix (3, 3)."""
    candidates = [
        (1 + m[0][0] + m[1][1] + m[2][2], m[2][1] - m[1][2], m[0][2] - m[2][0], m[1][0] - m[0][1]),
        (m[2][1] - m[1][2], 1 + m[0][0] - m[1][1] - m[2][2], m[1][0] + m[0][1], m[0][2] + m[2][0]),
        (m[0][2] - m[2][0], m[1][0] + m[0][1], 1 - m[0][0] + m[1][1] - m[2][2], m[2][1] + m[1][2]),
        (m[1][0] - m[0][1], m[0][2] + m[2][0], m[2][1] + m[1][2], 1 - m[0][0] - m[1][1] + m[2][2]),
    ]
    # Four forms of one quaternion; that with the largest component never loses digits.
    best = max(range(4), key=lambda i: candidates[i][i])
    return normalised(candidates[best])


def similarity(matrix: Any) -> Similarity:
    """A 4x4 matrix, rows first, that scales evenly, rotates and shifts. ValueError for any other."""
    rows_ok = isinstance(matrix, list) and len(matrix) == 4 and all(isinstance(r, list) and len(r) == 4 for r in matrix)
    if not rows_ok or not all(
        isinstance(x, (int, float)) and not isinstance(x, bool) and math.isfinite(x) for row in matrix for x in row
    ):
        raise ValueError("expected 4 rows of 4 finite numbers")
    if any(abs(a - b) > 1e-9 for a, b in zip(matrix[3], (0, 0, 0, 1))):
        raise ValueError("the last row must be 0, 0, 0, 1")
    m = [row[:3] for row in matrix[:3]]
    columns = list(zip(*m))
    scale = math.sqrt(sum(x * x for x in columns[0]))
    if not scale > 1e-12:
        raise ValueError("the first column is zero")
    rotation = [[x / scale for x in row] for row in m]
    for i in range(3):
        for j in range(i, 3):
            product = sum(row[i] * row[j] for row in rotation)
            if abs(product - (i == j)) > 1e-3:
                raise ValueError("the upper left 3x3 must be a rotation times one scale")
    a, b, c = rotation
    determinant = sum(a[i] * (b[i - 2] * c[i - 1] - b[i - 1] * c[i - 2]) for i in range(3))
    if determinant < 0:
        raise ValueError("the matrix mirrors; swap no axes, turn them")
    return (scale, from_matrix(rotation), (float(matrix[0][3]), float(matrix[1][3]), float(matrix[2][3])))


def camera_pose(
    position: Sequence[float],
    orientation: Sequence[float],
    mount: Sequence[float] = (0.0, 0.0, 0.0),
    mount_rotation: Quaternion = (1.0, 0.0, 0.0, 0.0),
    optical: bool = False,
    map_to_scene: Similarity = IDENTITY,
) -> Tuple[Vector, Quaternion]:
    """Where the camera is in the scene: position, and quaternion (w first) camera to scene.

    Args:
        position, orientation: of the robot's frame in its map; the orientation's w first.
        mount, mount_rotation: of the camera in the robot's frame, in that frame's axes.
        optical: whether the robot's frame is a camera's already (``…_optical_frame``: z forward, y down).
        map_to_scene: from ``similarity``.
    """
    body = normalised(orientation)
    offset = rotate(body, mount)
    turn = multiply(body, mount_rotation)
    if not optical:
        turn = multiply(turn, BODY_FROM_CAMERA)
    scale, rotation, shift = map_to_scene
    x, y, z = rotate(rotation, [p + o for p, o in zip(position, offset)])
    placed = (scale * x + shift[0], scale * y + shift[1], scale * z + shift[2])
    if not all(math.isfinite(c) for c in placed):
        raise ValueError("the position is not finite")
    return placed, normalised(multiply(rotation, turn))


def datagram(position: Vector, quaternion: Quaternion, seq: int, fov_y_deg: Optional[float] = None) -> bytes:
    message: Dict[str, Any] = {"position": position, "quaternion": quaternion, "seq": seq}
    if fov_y_deg is not None:
        message["fov_y_deg"] = fov_y_deg
    return json.dumps(message, separators=(",", ":"), allow_nan=False).encode()


class Pace:
    """Says when the next datagram may leave: at most ``rate_hz`` a second."""

    def __init__(self, rate_hz: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._period, self._clock = 1.0 / rate_hz, clock
        self._next = -math.inf

    def due(self) -> bool:
        now = self._clock()
        # Half a millisecond early is on time: a source of the very same rate must not lose every other pose.
        if now < self._next - 0.0005:
            return False
        self._next = max(self._next + self._period, now)
        return True


class Sender:
    """Turns poses into datagrams. What cannot be sent now is dropped: the next pose is better."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options, self._pace = options, Pace(options.rate)
        found = socket.getaddrinfo(options.host, options.port, type=socket.SOCK_DGRAM)[0]
        self._socket, self._address = socket.socket(found[0], found[1]), found[4]
        self._socket.setblocking(False)
        self._seq = 0
        self._said: Optional[str] = None

    def send(self, position: Sequence[float], orientation: Sequence[float]) -> None:
        """``orientation``: w first."""
        if not self._pace.due():
            return
        options = self._options
        try:
            placed, turn = camera_pose(
                position, orientation, options.mount, from_rpy(*options.mount_rpy), options.optical, options.similarity
            )
            self._socket.sendto(datagram(placed, turn, self._seq, options.fov), self._address)
            self._seq += 1
            self._say(None)
        except (OSError, ValueError) as error:
            self._say(f"pose not sent: {error}")

    def close(self) -> None:
        self._socket.close()

    def _say(self, text: Optional[str]) -> None:
        """A fault is told when it begins, not every time."""
        if text is not None and text != self._said:
            print(f"ros2_pose: {text}", file=sys.stderr)
        self._said = text


# ---- command line and ROS


def read_similarity(file: str) -> Similarity:
    try:
        with open(file, encoding="utf-8") as opened:
            return similarity(json.load(opened))
    except (OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"{file}: {error}") from None


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError
    return value


def _rate(text: str) -> float:
    value = _finite(text)
    if not 0.1 <= value <= 1000:
        raise argparse.ArgumentTypeError("expected 0.1 to 1000 a second")
    return value


def parse_options(argv: Optional[List[str]] = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Send a ROS 2 robot's pose to edgegs (camera.path: {kind: udp}).")
    parser.add_argument("--type", choices=("odometry", "pose", "tf"), default="odometry", help="what to read")
    parser.add_argument("--topic", default="/odom", help="of odometry or pose (default: /odom)")
    parser.add_argument("--map-frame", default="map", help="tf: the fixed frame (default: map)")
    parser.add_argument("--robot-frame", default="base_link", help="tf: the moving frame (default: base_link)")
    parser.add_argument("--host", default="127.0.0.1", help="where edgegs runs (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=5151, help="its camera.path.port (default: 5151)")
    parser.add_argument("--rate", type=_rate, default=30.0, help="most poses a second (default: 30)")
    parser.add_argument(
        "--mount", type=_finite, nargs=3, default=(0.0, 0.0, 0.0), metavar=("X", "Y", "Z"),
        help="the camera's place in the robot's frame, metres",
    )  # fmt: skip
    parser.add_argument(
        "--mount-rpy", type=_finite, nargs=3, default=(0.0, 0.0, 0.0), metavar=("ROLL", "PITCH", "YAW"),
        help="how it is turned there, degrees; a positive pitch looks down",
    )  # fmt: skip
    parser.add_argument("--optical", action="store_true", help="the pose is that of an optical frame (z forward)")
    parser.add_argument(
        "--map-to-scene", dest="similarity", type=read_similarity, default=IDENTITY, metavar="FILE",
        help="JSON, 4 rows of 4 numbers: map coordinates to the scene's",
    )  # fmt: skip
    parser.add_argument("--fov", type=_finite, help="vertical field of view, degrees (default: edgegs' own)")
    return parser.parse_args(argv)


def main(argv: Optional[List[str]] = None) -> int:
    options = parse_options(argv)
    try:
        import rclpy
        from rclpy.executors import ExternalShutdownException
        from rclpy.qos import qos_profile_sensor_data
    except ImportError as error:
        print(f"ros2_pose: {error}; source /opt/ros/DISTRIBUTION/setup.bash first", file=sys.stderr)
        return 69
    try:
        sender = Sender(options)
    except OSError as error:
        print(f"ros2_pose: {options.host}: {error}", file=sys.stderr)
        return 69

    def forward(pose: Any) -> None:
        p, q = pose.position, pose.orientation
        sender.send((p.x, p.y, p.z), (q.w, q.x, q.y, q.z))

    rclpy.init()
    node = rclpy.create_node("edgegs_pose")
    if options.type == "odometry":
        from nav_msgs.msg import Odometry

        # Best effort takes poses from reliable senders, too.
        node.create_subscription(Odometry, options.topic, lambda m: forward(m.pose.pose), qos_profile_sensor_data)
    elif options.type == "pose":
        from geometry_msgs.msg import PoseStamped

        node.create_subscription(PoseStamped, options.topic, lambda m: forward(m.pose), qos_profile_sensor_data)
    else:
        keep = _follow_tf(node, options, sender)  # noqa: F841 (its listener works while somebody holds it)
    try:
        rclpy.spin(node)
    except (KeyboardInterrupt, ExternalShutdownException):
        pass
    finally:
        node.destroy_node()
        rclpy.try_shutdown()
        sender.close()
    return 0


def _follow_tf(node: Any, options: argparse.Namespace, sender: Sender) -> Any:
    """Ask tf ``rate`` times a second; send what is new, so that a robot that fell silent ages in edgegs."""
    import tf2_ros
    from rclpy.time import Time

    buffer = tf2_ros.Buffer()
    listener = tf2_ros.TransformListener(buffer, node)
    last: List[Any] = [None]

    def look() -> None:
        try:
            found = buffer.lookup_transform(options.map_frame, options.robot_frame, Time())
        except tf2_ros.TransformException as error:
            node.get_logger().warning(str(error), throttle_duration_sec=10.0)
            return
        stamp = (found.header.stamp.sec, found.header.stamp.nanosec)
        if stamp == last[0]:
            return
        last[0] = stamp
        t, q = found.transform.translation, found.transform.rotation
        sender.send((t.x, t.y, t.z), (q.w, q.x, q.y, q.z))

    node.create_timer(1.0 / options.rate, look)
    return listener


if __name__ == "__main__":
    sys.exit(main())
