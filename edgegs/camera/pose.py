"""One camera: where it stands, how it looks, what it sees.

World and camera are right-handed; in the camera x points right, y down, z forward. float64 throughout.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Tuple

import numpy as np
from numpy.typing import ArrayLike

from edgegs.errors import UsageError

NEAR = 0.2  # scene units; the original renderer's near plane
FAR = 1e10  # scene units; in effect none

_TINY = 1e-12


@dataclass(frozen=True, eq=False)
class Camera:
    """A pinhole camera.

    Attributes:
        viewmat: (4, 4) float64, world to camera, row-major (a point: ``viewmat @ [x, y, z, 1]``). Read-only.
        K: (3, 3) float64 in pixels; the centre of the first pixel lies at (0.5, 0.5). Read-only.
        width, height: of the picture, pixels.
        near, far: depths between which splats are drawn, scene units.
        name: of the photograph that was taken here, if any.
    """

    viewmat: np.ndarray
    K: np.ndarray
    width: int
    height: int
    near: float = NEAR
    far: float = FAR
    name: str = ""

    def __post_init__(self) -> None:
        for field, shape in (("viewmat", (4, 4)), ("K", (3, 3))):
            array = np.array(getattr(self, field), dtype=np.float64)
            if array.shape != shape:
                raise ValueError(f"{field} has shape {array.shape}, not {shape}")
            array.setflags(write=False)
            object.__setattr__(self, field, array)

    @property
    def eye(self) -> np.ndarray:
        """(3,) float64: where the camera stands in the world."""
        return -self.viewmat[:3, :3].T @ self.viewmat[:3, 3]

    @property
    def fov_y_deg(self) -> float:
        """Vertical field of view of the whole picture, degrees."""
        focal, centre = self.K[1, 1], self.K[1, 2]
        return float(np.degrees(np.arctan(centre / focal) + np.arctan((self.height - centre) / focal)))

    def with_size(self, width: int, height: int) -> Camera:
        """The same view at another size.

        The vertical field of view and the pixels' shape stay: a wider picture shows more at the sides, a
        narrower one less.
        """
        scale = height / self.height
        K = self.K.copy()
        K[0, 0] *= scale
        K[0, 1] *= scale
        K[1, 1] *= scale
        K[0, 2] = width / 2 + (self.K[0, 2] - self.width / 2) * scale
        K[1, 2] = self.K[1, 2] * scale
        return dataclasses.replace(self, K=K, width=int(width), height=int(height))

    def with_planes(self, near: float, far: float) -> Camera:
        """The same view with other near and far planes."""
        return dataclasses.replace(self, near=float(near), far=float(far))


def look_at(eye: ArrayLike, target: ArrayLike, up: ArrayLike = (0.0, -1.0, 0.0)) -> np.ndarray:
    """View matrix of a camera at ``eye`` that sees ``target`` in the middle of its picture.

    Args:
        eye, target: (3,) world coordinates.
        up: (3,) the world's upward direction, any length. Where it is zero or parallel to the line of sight,
            another axis takes its place, so that the result is always a rotation.

    Returns:
        (4, 4) float64, world to camera.

    Raises:
        UsageError: ``eye`` and ``target`` are the same point, or a coordinate is not finite.
    """
    eye_, target_, up_ = (np.asarray(v, dtype=np.float64).reshape(3) for v in (eye, target, up))
    if not np.isfinite(np.concatenate([eye_, target_, up_])).all():
        raise UsageError("camera: eye, target and up must be finite numbers")
    forward = target_ - eye_
    distance = np.linalg.norm(forward)
    if distance <= _TINY * max(1.0, float(np.abs(eye_).max())):
        raise UsageError("camera: eye and target are the same point; move one of them")
    return view_matrix(eye_, facing(forward / distance, up_))


def facing(forward: np.ndarray, up: np.ndarray) -> np.ndarray:
    """(3, 3) rotation world to camera, rows right, down, forward; ``forward`` has unit length."""
    right = np.cross(forward, up)
    length = np.linalg.norm(right)
    if length <= 1e-9 * max(float(np.linalg.norm(up)), _TINY):
        right = np.cross(forward, np.eye(3)[np.argmin(np.abs(forward))])
        length = np.linalg.norm(right)
    right = right / length
    return np.stack([right, np.cross(forward, right), forward])


def view_matrix(eye: np.ndarray, rotation: np.ndarray) -> np.ndarray:
    """(4, 4) world to camera from a position (3,) and a rotation (3, 3) world to camera."""
    viewmat = np.eye(4)
    viewmat[:3, :3] = rotation
    viewmat[:3, 3] = -rotation @ eye
    return viewmat


def intrinsics(width: int, height: int, fov_y_deg: float) -> np.ndarray:
    """(3, 3) float64 K for square pixels, principal point in the middle, and this vertical field of view.

    Raises:
        UsageError: the size is not positive, or the angle is not between 0 and 180 degrees.
    """
    if width < 1 or height < 1:
        raise UsageError(f"camera: a picture of {width}x{height} has no pixels")
    if not 0 < fov_y_deg < 180:
        raise UsageError(f"camera: a field of view of {fov_y_deg} degrees; it must be between 0 and 180")
    focal = height / 2 / np.tan(np.radians(fov_y_deg) / 2)
    return np.array([[focal, 0, width / 2], [0, focal, height / 2], [0, 0, 1]], dtype=np.float64)


def quaternion(rotation: np.ndarray) -> np.ndarray:
    """(4,) unit quaternion, w first, of a rotation matrix (3, 3)."""
    m = rotation
    # Of the four ways to divide, the one by the largest component never loses digits.
    squares = np.array(
        [1 + m[0, 0] + m[1, 1] + m[2, 2], 1 + m[0, 0] - m[1, 1] - m[2, 2],
         1 - m[0, 0] + m[1, 1] - m[2, 2], 1 - m[0, 0] - m[1, 1] + m[2, 2]]
    )  # fmt: skip
    products = np.array(
        [
            [squares[0], m[2, 1] - m[1, 2], m[0, 2] - m[2, 0], m[1, 0] - m[0, 1]],
            [m[2, 1] - m[1, 2], squares[1], m[1, 0] + m[0, 1], m[0, 2] + m[2, 0]],
            [m[0, 2] - m[2, 0], m[1, 0] + m[0, 1], squares[2], m[2, 1] + m[1, 2]],
            [m[1, 0] - m[0, 1], m[0, 2] + m[2, 0], m[2, 1] + m[1, 2], squares[3]],
        ]
    )
    q = products[int(np.argmax(squares))]
    return q / np.linalg.norm(q)


def rotation_matrix(q: np.ndarray) -> np.ndarray:
    """(3, 3) rotation of a quaternion (4,), w first, of any length but zero."""
    w, x, y, z = q / np.linalg.norm(q)
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )


def orthonormal(rotation: np.ndarray) -> Tuple[np.ndarray, float]:
    """The rotation nearest to a matrix (3, 3), and how far off its largest entry was.

    Of a mirroring matrix the result mirrors, too: see the sign of its determinant.
    """
    u, _, vt = np.linalg.svd(rotation)
    nearest = u @ vt
    return nearest, float(np.abs(nearest - rotation).max())
