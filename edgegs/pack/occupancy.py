"""Where a scene's matter is, coarsely: a grid of optical depth, and rays through it. NumPy alone."""

from __future__ import annotations

from typing import Tuple

import numpy as np

from edgegs.pack.gaussians import mean_shadows, rotation_matrices
from edgegs.scene.model import BOUNDS_PERCENTILES, Scene

#: Cells of the grid, about: enough to tell a wall from what stands before it, few enough to take a second.
N_CELLS = 1 << 18
#: Splats looked at, at most: the rest are as these.
N_SAMPLE = 1 << 17
#: The box reaches this much beyond the scene's percentiles on each side, in parts of their distance. Walls lie at the
#: percentiles themselves.
MARGIN = 0.15
#: No side of the box is thinner than this part of the longest.
MIN_SIDE = 0.02
#: A splat spreads over its centre and the ends of its axes, this many standard deviations away.
SPREAD = 1.3
#: An opaque splat stops light, but not more than this: e^-3.
MAX_DEPTH = 3.0
#: A cell with less optical depth than this is free.
FREE_DEPTH = 0.05


class Occupancy:
    """A grid over the middle of a scene.

    Attributes:
        low, high: (3,) float64: corners of its box.
        cell: edge of a cell, scene units.
        depth: (X, Y, Z) float64: mean optical depth of a cell, seen from any side.
    """

    def __init__(self, scene: Scene) -> None:
        step = max(1, -(-scene.n_splats // N_SAMPLE))
        means = scene.means[::step].astype(np.float64)
        low, high = np.percentile(means, BOUNDS_PERCENTILES, axis=0)
        extent = np.maximum(high - low, max(MIN_SIDE * float((high - low).max()), 1e-9))
        center, half = (low + high) / 2, (0.5 + MARGIN) * extent
        self.cell = float((np.prod(2 * half) / N_CELLS) ** (1 / 3))
        self._dims = np.maximum(1, np.ceil(2 * half / self.cell)).astype(np.int64)
        self.low = center - self._dims * self.cell / 2
        self.high = self.low + self._dims * self.cell
        self.depth = self._fill(scene, step, means).reshape(self._dims)

    def _fill(self, scene: Scene, step: int, means: np.ndarray) -> np.ndarray:
        scales = scene.scales[::step].astype(np.float64)
        axes = rotation_matrices(scene.quats[::step].astype(np.float64)) * scales[:, None]
        area = 2 * np.pi * mean_shadows(scales)
        depth = np.minimum(-np.log1p(-np.minimum(scene.opacities[::step], 0.999)), MAX_DEPTH)
        share = depth * area * (step / self.cell**2 / 7)
        cells = np.zeros(int(self._dims.prod()))
        ends = SPREAD * np.concatenate([np.zeros((1, 3)), np.eye(3), -np.eye(3)])
        for end in ends:
            index, is_inside = self._index(means + axes @ end)
            cells += np.bincount(index, weights=share[is_inside], minlength=len(cells))
        return cells

    def _index(self, points: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
        """Flat cell indices of the points inside the box, and which of the points (n,) those are."""
        cells = np.floor((points - self.low) / self.cell)
        is_inside = ((cells >= 0) & (cells < self._dims)).all(axis=1)
        return np.ravel_multi_index(cells[is_inside].astype(np.int64).T, self._dims), is_inside

    def is_free(self, points: np.ndarray) -> np.ndarray:
        """(n,) bool: whether there is next to nothing in the cells of points (n, 3); outside the box there is not."""
        free = np.ones(len(points), bool)
        index, is_inside = self._index(points)
        free[is_inside] = self.depth.reshape(-1)[index] < FREE_DEPTH
        return free

    def look(self, eyes: np.ndarray, directions: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
        """What rays meet before they leave the box.

        Args:
            eyes: (n, 3), inside the box. directions: (m, 3), unit.

        Returns:
            (n, m) float64: the share of light that is stopped. (n, m) float64: the distance at which half of it is,
            scene units; infinite where less is stopped.
        """
        origins = np.repeat(eyes, len(directions), axis=0)
        rays = np.tile(directions, (len(eyes), 1))
        through = np.ones(len(rays))
        distances = np.full(len(rays), np.inf)
        flat = self.depth.reshape(-1)
        alive = np.arange(len(rays))
        n_steps = int(np.ceil(np.linalg.norm(self._dims))) + 1
        for step in range(1, n_steps + 1):  # from the next cell on: an eye stands in a free one
            index, is_inside = self._index(origins[alive] + (step * self.cell) * rays[alive])
            alive = alive[is_inside]
            before = through[alive]
            after = before * np.exp(-flat[index])
            distances[alive[(before > 0.5) & (after <= 0.5)]] = step * self.cell
            through[alive] = after
            alive = alive[after > 1e-2]
            if not len(alive):
                break
        shape = (len(eyes), len(directions))
        return 1 - through.reshape(shape), distances.reshape(shape)
