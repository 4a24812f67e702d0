"""``cameras.json`` as 3DGS trainings write it: where the training photographs were taken."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any, List, Union

import numpy as np

from edgegs.camera.pose import Camera, orthonormal, view_matrix
from edgegs.errors import SceneError
from edgegs.files import read_regular

MAX_BYTES = 64 << 20  # a view takes 400 bytes
MAX_SIDE = 1 << 16
ROTATION_TOLERANCE = 1e-3  # of an entry; trainings write float64, converters sometimes float32 or five digits


def load_cameras_json(path: Union[str, os.PathLike[str]]) -> List[Camera]:
    """Read the views of a training, at the sizes of their photographs, in the order of the file.

    A view is ``{id, img_name, width, height, position, rotation, fx, fy}``: ``position`` is the camera's
    centre, the columns of ``rotation`` are the camera's right, down and forward in the world; the principal
    point is the centre of the picture. Other keys are ignored. ``Camera.with_size`` changes the size.

    Raises:
        InputError, AccessError: the file cannot be read. SceneError: its content is wrong (says which view
        and which field).
    """
    raw = read_regular(Path(path), MAX_BYTES + 1, "cameras")
    file = ascii(os.fspath(path))[1:-1]
    if len(raw) > MAX_BYTES:
        raise SceneError(f"{file}: larger than {MAX_BYTES >> 20} MiB; is this a cameras.json?")
    try:
        data = json.loads(raw.decode("utf-8-sig"), parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        where = f"{file}:{error.lineno}: column {error.colno}"
        raise SceneError(f"{where}: not JSON: {error.msg}; export the cameras again") from None
    except (ValueError, RecursionError) as error:
        raise SceneError(f"{file}: not a cameras.json: {error}; export the cameras again") from None
    if not isinstance(data, list) or not data:
        raise SceneError(f"{file}: expected a list of views, as 3DGS trainings write it")
    return [_View(file, i, view).camera() for i, view in enumerate(data)]


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no finite number")


class _View:
    """One entry, and the errors that name it."""

    def __init__(self, file: str, index: int, view: Any) -> None:
        self.where = f"{file}: view {index}"
        if not isinstance(view, dict):
            raise SceneError(f"{self.where}: expected an object with position, rotation, fx, fy, …")
        self.view = view

    def camera(self) -> Camera:
        width, height = self._side("width"), self._side("height")
        fx, fy = self._focal("fx"), self._focal("fy")
        position = self._array("position", (3,))
        rotation, error = orthonormal(self._array("rotation", (3, 3)))
        if not error <= ROTATION_TOLERANCE:
            raise self._wrong("rotation", "is no rotation (its axes are not of length 1 and at right angles)")
        if np.linalg.det(rotation) < 0:
            raise self._wrong("rotation", "mirrors; expected columns right, down, forward")
        K = np.array([[fx, 0, width / 2], [0, fy, height / 2], [0, 0, 1]])
        name = self.view.get("img_name", "")
        return Camera(view_matrix(position, rotation.T), K, width, height, name=str(name)[:256])

    def _wrong(self, field: str, text: str) -> SceneError:
        return SceneError(f"{self.where}: {field} {text}")

    def _field(self, field: str) -> Any:
        if field not in self.view:
            raise self._wrong(field, "is missing")
        return self.view[field]

    def _side(self, field: str) -> int:
        value = self._field(field)
        if not _is_numbers(value, ()) or value != int(value) or not 1 <= value <= MAX_SIDE:
            raise self._wrong(field, f"is {_shown(value)}; expected 1 to {MAX_SIDE} whole pixels")
        return int(value)

    def _focal(self, field: str) -> float:
        value = float(self._array(field, ()))
        if not 1e-3 <= value <= 1e9:
            raise self._wrong(field, f"is {value:.6g}; expected a focal length in pixels")
        return value

    def _array(self, field: str, shape: Any) -> np.ndarray:
        value = self._field(field)
        if not _is_numbers(value, shape):
            kind = " x ".join(str(n) for n in shape) + " numbers" if shape else "a number"
            raise self._wrong(field, f"must be {kind}, each finite and below 1e12")
        return np.array(value, dtype=np.float64)


def _shown(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 40 else text[:39] + "…"


def _is_numbers(value: Any, shape: Any) -> bool:
    if not shape:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return is_number and abs(value) < 1e12 and math.isfinite(value)
    return isinstance(value, list) and len(value) == shape[0] and all(_is_numbers(v, shape[1:]) for v in value)
