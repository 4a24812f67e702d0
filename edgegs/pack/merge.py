"""Fewer splats by merging neighbours into one, without training.

What a splat adds to a picture is a 2D Gaussian of its colour. Two splats i, j become one that has the same mass
(opacity x the size of the shadow), and of the two as one distribution the same mean and covariance:

    m = m_i + m_j,  t = m_i / m,   mean = t mu_i + (1-t) mu_j,   colour = t c_i + (1-t) c_j
    covariance = t S_i + (1-t) S_j + t (1-t) d d^T,   d = mu_j - mu_i

A merge costs what it changes in the picture: the squared difference between the two Gaussians and the one, integrated
over three planes at right angles (each a sum of products of Gaussians, in closed form), blurred as a pixel blurs them,
and times how visible the two are. Visibility comes from the splats' scores: the share of its unhindered sum of
(T alpha)^2 that a splat really has. It also weighs the masses: what nobody sees has no say in a colour.

Rounds: candidates are neighbours along a Morton curve, turned from round to round; the cheapest disjoint pairs merge,
at most ``ROUND_SHARE`` of all splats at once, so that each round sees the outcome of the one before.
Moment-matched merging of splat pairs: NanoGS, arXiv 2603.16103; the closed form: product of Gaussians.
"""

from __future__ import annotations

import dataclasses
from typing import Callable, List, Optional, Tuple, Union

import numpy as np

from edgegs.pack.gaussians import covariances, rotation_matrices, shapes
from edgegs.pack.order import morton, sizes
from edgegs.scene.builder import MAX_LOG_SIGMA, MIN_SIGMA
from edgegs.scene.model import Scene
from edgegs.scene.reading import SH_C0

#: Splats that together have less than this share of the whole score are left out before anything is merged. Measured
#: at 10 to 34 % kept: +1 dB on playbot, much of which lies hidden; within 0.3 dB on the others.
UNSEEN_SHARE = 3e-4
#: Neighbours of a splat that it may merge with: so many after it on the curve.
WINDOW = 16
ROUND_SHARE = 0.3
#: Candidate pairs that are looked at for each pair wanted: of the cheapest, many share a splat.
EDGES_PER_MERGE = 6
#: Most opaque outcome: two opaque splats in one place are no more opaque than one.
MAX_OPACITY = 0.99
#: Standard deviation of what a pixel blurs, in radii of the scene: half a pixel where it just fills 400 rows.
PIXEL_SIGMA = 0.0024
#: Weight of the opacity against the three colours, whatever lies behind.
OPACITY_WEIGHT = 1.0
#: A splat is as visible as the best, at most: of a tiny or hardly touched one the quotient means little.
VISIBLE_PERCENT = 98
#: Visibility of what was never seen, as a weight: enough to have a mean.
MIN_WEIGHT = 1e-6
#: No splat counts as larger than this many radii, or as farther away than that many: products of them must stay within
#: float32. Its own arrays stay.
MAX_SIGMA, MAX_DISTANCE = 1e4, 1e9
_MAX_SIGMA = np.exp(MAX_LOG_SIGMA - 1e-6)  # room for rounding to float32
_BLOCK = 1 << 15  # pairs at once: their arrays fit a cache
#: A symmetric matrix as six rows, and its three 2x2 blocks: what a splat is when seen along an axis.
_ENTRIES = ((0, 0), (1, 1), (2, 2), (0, 1), (0, 2), (1, 2))
_PLANES = ((0, 1, 3), (0, 2, 4), (1, 2, 5))

Progress = Callable[[int, int], None]


def merge(
    scene: Scene, n: int, scores: Optional[np.ndarray] = None, progress: Optional[Progress] = None
) -> Scene:
    """The scene with exactly n splats (all of them, if it has no more): neighbours merged where it shows least.

    Splats that were not merged stay as they are, bit for bit. Deterministic.

    Args:
        n: at least 1.
        scores: (N,) finite, not negative: each splat's sum of (T alpha)^2 over views and pixels, in any unit
            (``edgegs.pack.importance``). What has next to none of it is left out first. None: all are seen alike.
        progress: called as ``progress(splats_gone, splats_to_go)`` after each round; what it raises ends the merging.

    Raises:
        ValueError: n or the scores are not as above.
    """
    if n < 1:
        raise ValueError(f"a scene is merged to at least 1 splat, not {n}")
    if scores is not None and (scores.shape != (scene.n_splats,) or not ((scores >= 0) & (scores < np.inf)).all()):
        raise ValueError(f"scores must be one finite number >= 0 for each of the {scene.n_splats} splats")
    if n >= scene.n_splats:
        return scene
    with np.errstate(all="ignore"):  # underflow, and what a guard below takes care of
        rows = np.arange(scene.n_splats) if scores is None else _seen(scene, scores, n)
        visibility = np.ones(scene.n_splats) if scores is None else _visibilities(scene, scores)
        cloud = _Cloud(scene, rows, visibility[rows])
        n_to_go = scene.n_splats - n
        turn = 0
        while cloud.n > n:
            cloud.reduce(min(cloud.n - n, max(1, int(ROUND_SHARE * cloud.n))), turn)
            turn += 1
            if progress is not None:
                progress(scene.n_splats - cloud.n, n_to_go)
        return cloud.scene()


def _seen(scene: Scene, scores: np.ndarray, n: int) -> np.ndarray:
    """Rows, rising, without those that share the last ``UNSEEN_SHARE`` of the score; never fewer than n."""
    ranked = np.lexsort((-sizes(scene), -scores))
    share = np.cumsum(scores[ranked])
    n_seen = int(np.searchsorted(share, (1 - UNSEEN_SHARE) * share[-1])) + 1 if share[-1] > 0 else len(ranked)
    return np.sort(ranked[: max(n, n_seen)])


def _visibilities(scene: Scene, scores: np.ndarray) -> np.ndarray:
    """(N,) 0..1: score over what an unhindered splat would have, its opacity squared times its footprint."""
    blur = np.float32(PIXEL_SIGMA**2)
    footprint = np.zeros(scene.n_splats)
    for start in range(0, scene.n_splats, _BLOCK):
        part = slice(start, start + _BLOCK)
        _, cov = _standard(scene, part)
        for x, y, xy in _PLANES:
            sharp = np.maximum(cov[x] * cov[y] - cov[xy] ** 2, 0)
            footprint[part] += sharp / np.sqrt((cov[x] + blur) * (cov[y] + blur) - cov[xy] ** 2)
    footprint = np.maximum(footprint, 1e-3 * np.median(footprint))
    share = scores / max(scores.max(), 1e-300) / np.maximum(scene.opacities.astype(np.float64) ** 2 * footprint, 1e-300)
    seen = np.sort(share[share > 0])
    if not len(seen):
        return np.ones(scene.n_splats)
    best = seen[len(seen) * VISIBLE_PERCENT // 100]
    return np.minimum(share / best, 1)


def _standard(scene: Scene, rows: Union[np.ndarray, slice]) -> Tuple[np.ndarray, np.ndarray]:
    """Means (n, 3) and covariances (6, n), float32, in units of the scene's radius from its centre."""
    center, radius = scene.bounds()
    radius = max(radius, 1e-30)
    means = np.clip((scene.means[rows].astype(np.float64) - center) / radius, -MAX_DISTANCE, MAX_DISTANCE)
    matrices = covariances(
        np.minimum(scene.scales[rows].astype(np.float64) / radius, MAX_SIGMA), scene.quats[rows].astype(np.float64)
    )
    return means.astype(np.float32), np.stack([matrices[:, i, j] for i, j in _ENTRIES]).astype(np.float32)


def shadows(covariance: np.ndarray) -> np.ndarray:
    """(n,) root mean square, over all directions, of the product of a shadow's two sigmas, of (6, n) covariances.

    Seen along a unit vector v, the square of that product is v^T adj(S) v; its mean is a third of adj(S)'s trace.
    """
    squares = [np.maximum(covariance[x] * covariance[y] - covariance[xy] ** 2, 0) for x, y, xy in _PLANES]
    return np.sqrt((squares[0] + squares[1] + squares[2]) / 3)


class _Cloud:
    """The splats that there are so far, in units of the scene's radius; one column or row for each.

    ``rows`` are the scene's, for splats that were not merged, and -1 for those that were.
    """

    def __init__(self, scene: Scene, rows: np.ndarray, visibility: np.ndarray) -> None:
        self._source = scene
        self.rows = rows
        self.means, self.cov = _standard(scene, rows)
        self.opacities = scene.opacities[rows]
        self.visibility = visibility.astype(np.float32)
        self.sh = scene.sh[rows]
        self.shadows = shadows(self.cov)
        self.colors = np.maximum(self.sh[:, 0].T * np.float32(SH_C0) + np.float32(0.5), 0)
        self.weights = self._weights(np.arange(self.n))

    @property
    def n(self) -> int:
        return len(self.opacities)

    def _weights(self, which: np.ndarray) -> np.ndarray:
        """Visible mass, never 0."""
        mass = self.opacities[which] * self.shadows[which]
        return np.maximum(mass * (self.visibility[which] + np.float32(MIN_WEIGHT)), np.float32(1e-30))

    def reduce(self, n_wanted: int, turn: int) -> None:
        """Merge at most ``n_wanted`` disjoint pairs, the cheapest there are, and at least one."""
        order = np.argsort(morton(self.means @ _turned(turn)), kind="stable").astype(np.int32)  # 16 x 2 copies follow
        first = np.concatenate([order[:-step] for step in range(1, min(WINDOW, self.n - 1) + 1)])
        second = np.concatenate([order[step:] for step in range(1, min(WINDOW, self.n - 1) + 1)])
        costs = np.empty(len(first), np.float32)
        for start in range(0, len(first), _BLOCK):
            part = slice(start, start + _BLOCK)
            costs[part] = self._costs(first[part], second[part])
        n_edges = min(len(costs), EDGES_PER_MERGE * n_wanted)
        # The n cheapest, of equal ones the first: the order of a partition is no promise of NumPy's.
        limit = np.partition(costs, n_edges - 1)[n_edges - 1]
        edges = np.flatnonzero(costs <= limit)
        edges = edges[np.argsort(costs[edges], kind="stable")][:n_edges]
        chosen = edges[disjoint(first[edges], second[edges], self.n)[:n_wanted]]
        self._merge(first[chosen], second[chosen])

    def _costs(self, i: np.ndarray, j: np.ndarray) -> np.ndarray:
        """(m,) what merging i[k] with j[k] changes in the picture; infinite where it cannot be told."""
        t, d, cov = self._moments(i, j)
        s, blur = 1 - t, np.float32(PIXEL_SIGMA**2)
        opacity_i, opacity_j, opacity = self.opacities[i], self.opacities[j], self._opacity(i, j, cov)
        color_i, color_j = self.colors[:, i], self.colors[:, j]
        color = t * color_i + s * color_j
        ii, jj = opacity_i * opacity_i * _dot(color_i, color_i), opacity_j * opacity_j * _dot(color_j, color_j)
        ij, mm = opacity_i * opacity_j * _dot(color_i, color_j), opacity * opacity * _dot(color, color)
        im, jm = opacity_i * opacity * _dot(color_i, color), opacity_j * opacity * _dot(color_j, color)
        cov_i, cov_j = self.cov[:, i], self.cov[:, j]
        cost = np.zeros(len(i), np.float32)
        for x, y, xy in _PLANES:
            u, v = _AXES_OF[xy]
            shape_i, shape_j, shape_m = (_Blurred(c[x], c[y], c[xy], blur) for c in (cov_i, cov_j, cov))
            cost += 0.5 * (ii * shape_i.square + jj * shape_j.square + mm * shape_m.square)
            cost += 2 * ij * shape_i.product(shape_j, d[u], d[v])
            cost -= 2 * im * shape_i.product(shape_m, s * d[u], s * d[v])
            cost -= 2 * jm * shape_j.product(shape_m, t * d[u], t * d[v])
        cost = np.maximum(cost, 0) * (t * self.visibility[i] + s * self.visibility[j])
        return np.where(np.isfinite(cost), cost, np.inf)

    def _moments(self, i: np.ndarray, j: np.ndarray) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Share of i (m,), from i to j (3, m), and the covariance of both (6, m)."""
        t = self.weights[i] / (self.weights[i] + self.weights[j])
        s = 1 - t
        d = (self.means[j] - self.means[i]).T
        cov = t * self.cov[:, i] + s * self.cov[:, j]
        for row, (x, y) in enumerate(_ENTRIES):
            cov[row] += t * s * d[x] * d[y]
        return t, d, cov

    def _opacity(self, i: np.ndarray, j: np.ndarray, cov: np.ndarray) -> np.ndarray:
        """(m,) so that opacity times shadow is what it was."""
        mass = self.opacities[i] * self.shadows[i] + self.opacities[j] * self.shadows[j]
        return np.minimum(mass / np.maximum(shadows(cov), np.float32(1e-30)), np.float32(MAX_OPACITY))

    def _merge(self, i: np.ndarray, j: np.ndarray) -> None:
        """Put the outcome in i's place, and take j out."""
        t, d, cov = self._moments(i, j)
        s = 1 - t
        opacities = self._opacity(i, j, cov)
        self.means[i] += (s * d).T
        self.sh[i] = t[:, None, None] * self.sh[i] + s[:, None, None] * self.sh[j]
        self.visibility[i] = t * self.visibility[i] + s * self.visibility[j]
        self.cov[:, i], self.opacities[i], self.rows[i] = cov, opacities, -1
        self.shadows[i] = shadows(cov)
        self.colors[:, i] = np.maximum(self.sh[i, 0].T * np.float32(SH_C0) + np.float32(0.5), 0)
        self.weights[i] = self._weights(i)
        kept = np.ones(self.n, bool)
        kept[j] = False
        for name in ("rows", "means", "opacities", "visibility", "sh", "shadows", "weights"):
            setattr(self, name, getattr(self, name)[kept])
        self.cov, self.colors = self.cov[:, kept], self.colors[:, kept]

    def scene(self) -> Scene:
        """The splats as a scene, in the order of the source's, a merged one where the first of its splats was."""
        center, radius = self._source.bounds()
        merged = self.rows < 0
        taken = self._source.take(np.maximum(self.rows, 0))
        matrices = np.empty((int(merged.sum()), 3, 3))
        for row, (x, y) in enumerate(_ENTRIES):
            matrices[:, x, y] = matrices[:, y, x] = self.cov[row, merged]
        scales, quats = shapes(matrices, MIN_SIGMA / max(radius, 1e-30))
        taken.means[merged] = self.means[merged].astype(np.float64) * radius + center
        taken.scales[merged], taken.quats[merged] = np.minimum(scales * radius, _MAX_SIGMA), quats
        taken.opacities[merged], taken.sh[merged] = self.opacities[merged], self.sh[merged]
        note = f"{self._source.n_splats:,} splats merged to {self.n:,}"
        return dataclasses.replace(taken, warnings=[*self._source.warnings, note])


#: The two axes of the plane whose covariance is that row.
_AXES_OF = {3: (0, 1), 4: (0, 2), 5: (1, 2)}


class _Blurred:
    """2D Gaussians of height 1, blurred by a pixel: wider and as much lower."""

    def __init__(self, xx: np.ndarray, yy: np.ndarray, xy: np.ndarray, blur: np.ndarray) -> None:
        self.xx, self.yy, self.xy = xx + blur, yy + blur, xy
        self.det = self.xx * self.yy - xy * xy
        self.height = np.sqrt(np.maximum(xx * yy - xy * xy, 0) / self.det)

    @property
    def square(self) -> np.ndarray:
        """Integral of the square, over 2 pi, times 2."""
        return self.height * self.height * np.sqrt(self.det)

    def product(self, other: _Blurred, dx: np.ndarray, dy: np.ndarray) -> np.ndarray:
        """Integral of the product with others whose centres are (dx, dy) away, over 2 pi."""
        xx, yy, xy = self.xx + other.xx, self.yy + other.yy, self.xy + other.xy
        det = xx * yy - xy * xy
        power = (yy * dx * dx - 2 * xy * dx * dy + xx * dy * dy) / det
        return self.height * other.height * np.sqrt(self.det * other.det / det) * np.exp(-0.5 * power)


def _dot(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return one[0] * other[0] + one[1] * other[1] + one[2] * other[2] + np.float32(OPACITY_WEIGHT)


def _turned(turn: int) -> np.ndarray:
    """(3, 3) float32 rotation, another for each turn: where one curve parts neighbours, the next does not."""
    if turn == 0:
        return np.eye(3, dtype=np.float32)
    q = np.array([1.0, *(np.mod(turn * np.array([0.7549, 0.5698, 0.4302]), 1) - 0.5)])
    return rotation_matrices(q[None] / np.linalg.norm(q))[0].astype(np.float32)


def disjoint(first: np.ndarray, second: np.ndarray, n: int) -> np.ndarray:
    """The pairs that a walk along all of them takes when it leaves out those that share a member with one it took.

    Args:
        first, second: (m,) members of each pair, each below n; the best pair comes first.

    Returns:
        Indices of the pairs taken, rising.
    """
    taken: List[np.ndarray] = []
    left = np.arange(len(first))
    is_free = np.ones(n, bool)
    while len(left):
        # A pair that comes first for both of its members is taken by the walk, whatever else there is.
        best = np.full(n, len(first))
        np.minimum.at(best, first[left], left)
        np.minimum.at(best, second[left], left)
        won = left[(best[first[left]] == left) & (best[second[left]] == left)]
        taken.append(won)
        is_free[first[won]] = is_free[second[won]] = False
        left = left[is_free[first[left]] & is_free[second[left]]]
    return np.sort(np.concatenate(taken)) if taken else np.zeros(0, np.int64)
