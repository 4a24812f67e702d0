"""Several scenes as one: the tiles of a town, say."""

from __future__ import annotations

import hashlib
import os
from typing import Dict, Iterable, List, Sequence, Tuple

import numpy as np

from edgegs.errors import EdgegsError, SceneError
from edgegs.scene.model import ARRAYS, Scene
from edgegs.scene.reading import DEFAULT_CAP


def concatenate(scenes: Iterable[Scene], cap: int = DEFAULT_CAP) -> Scene:
    """All splats of some scenes, in their order, as one scene.

    Of a sequence the result is allocated once. Of an iterator each scene is taken, copied and let go of before the
    next, so that ``concatenate(load(path) for path in paths)`` never holds more than the result and one scene; while
    a scene of higher SH degree than all before joins, the coefficients exist twice.

    Args:
        scenes: at least one; coefficients that a scene of lower SH degree lacks become zeros.
        cap: refuse more splats than this in all.

    Returns:
        A scene whose ``path`` lists the paths, whose ``dropped`` are sums and whose ``warnings`` begin with the file's
        name; ``file_sha256`` is the digest of the digests, in order.

    Raises:
        SceneError: none given; more splats than ``cap``; or they differ in ``antialiased`` or ``vertical_axis``.
    """
    n_rows_ahead, degree_ahead = _ahead(scenes)
    joined = _Joined(n_rows_ahead, degree_ahead, cap)
    iterator = iter(scenes)
    del scenes
    while True:
        scene = next(iterator, None)
        if scene is None:
            break
        joined.add(scene)
        del scene  # before the next one is loaded
    return joined.finish()


def _ahead(scenes: Iterable[Scene]) -> Tuple[int, int]:
    """Splats and SH degree of all, where they can be known ahead."""
    if not isinstance(scenes, Sequence) or not scenes:
        return 0, 0
    return sum(scene.n_splats for scene in scenes), max(scene.sh_degree for scene in scenes)


class _Joined:
    """The scene under construction: ``_n`` rows of the arrays are filled."""

    def __init__(self, capacity: int, sh_degree: int, cap: int) -> None:
        self._cap, self._sh_degree, self._n, self._n_rows = cap, sh_degree, 0, 0
        self._arrays: List[np.ndarray] = []
        self._digest = hashlib.sha256()
        self._dropped: Dict[str, int] = {}
        self._warnings: List[str] = []
        self._paths: List[str] = []
        self._formats: List[str] = []
        self._antialiased, self._vertical_axis = False, "y"
        self._reserve(min(capacity, cap))

    def _reserve(self, capacity: int) -> None:
        k = (self._sh_degree + 1) ** 2
        try:
            if not self._arrays:
                self._arrays = [np.empty((capacity, *shape), np.float32) for shape in ((3,), (3,), (4,), (), (k, 3))]
            elif capacity > len(self._arrays[0]):
                for array in self._arrays:  # in place: the system moves pages, and copies nothing
                    array.resize((capacity, *array.shape[1:]), refcheck=False)
            if self._arrays[4].shape[1] != k:
                wider = np.zeros((len(self._arrays[0]), k, 3), np.float32)
                wider[: self._n, : self._arrays[4].shape[1]] = self._arrays[4][: self._n]
                self._arrays[4] = wider
        except MemoryError as error:
            raise EdgegsError(f"not enough memory for {capacity:,} splats in one scene; reduce them first") from error

    def add(self, scene: Scene) -> None:
        if not self._paths:
            self._antialiased, self._vertical_axis = scene.antialiased, scene.vertical_axis
        yes_no = {True: "yes", False: "no"}
        for what, mine, theirs in (
            ("trained with antialiasing", yes_no[self._antialiased], yes_no[scene.antialiased]),
            ("vertical axis", self._vertical_axis, scene.vertical_axis),
        ):
            if mine != theirs:
                raise SceneError(
                    f"{scene.path}: {what}: {theirs}, and {self._paths[0]}: {mine}; such scenes cannot "
                    "be one: export them alike"
                )
        stop = self._n + scene.n_splats
        if stop > self._cap:
            raise SceneError(
                f"{scene.path}: makes {stop:,} splats in all, and the limit is {self._cap:,}; reduce the scenes first"
            )
        self._sh_degree = max(self._sh_degree, scene.sh_degree)
        self._reserve(stop)
        rows = slice(self._n, stop)
        for name, array in zip(ARRAYS[:4], self._arrays):
            array[rows] = getattr(scene, name)
        k = scene.sh.shape[1]
        self._arrays[4][rows, :k] = scene.sh
        self._arrays[4][rows, k:] = 0
        self._n = stop
        self._n_rows += scene.n_rows
        self._paths.append(scene.path)
        if scene.format not in self._formats:
            self._formats.append(scene.format)
        self._digest.update(bytes.fromhex(scene.sha256))
        for cause, count in scene.dropped.items():
            self._dropped[cause] = self._dropped.get(cause, 0) + count
        self._warnings += [f"{os.path.basename(scene.path) or scene.path}: {warning}" for warning in scene.warnings]

    def finish(self) -> Scene:
        if not self._paths:
            raise SceneError("no scene to make one of; name at least one file")
        means, scales, quats, opacities, sh = self._arrays
        return Scene(
            means, scales, quats, opacities, sh, self._sh_degree, ", ".join(self._paths), " + ".join(self._formats),
            self._n_rows, self._dropped, self._warnings, self._digest.hexdigest(), self._vertical_axis,
            self._antialiased,
        )  # fmt: skip
