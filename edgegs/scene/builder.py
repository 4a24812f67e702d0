"""From a file's raw values to a Scene: activations, the rows that may not be drawn, and the budget.

Readers hand over blocks of raw values with one meaning (ln sigma, logit of opacity, quaternion w first,
SH coefficients); everything after that is the same for every format and happens here, once.
"""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Optional, Tuple

import numpy as np

from edgegs.errors import EdgegsError, SceneError
from edgegs.memory import available as available_memory
from edgegs.scene.frames import turn_means, turn_quats, turn_sh
from edgegs.scene.model import Scene

#: Logits are clamped to ± this. Infinite opacity is legal (exporters write alpha 255 as +inf, and so the
#: most opaque splats), and float32 cannot hold sigmoid(17) apart from 1.
LOGIT_LIMIT = 16.0
#: Least sigma. ln sigma = -inf is legal too (a 2D splat); its covariance must stay a normal float32.
MIN_SIGMA = 1e-9
#: Largest ln sigma whose square, a covariance entry, is finite in float32.
MAX_LOG_SIGMA = 0.5 * float(np.log(np.finfo(np.float32).max))
_MIN_QUAT_NORM = 1e-12
_LARGE_SIGMA = 20.0
_SMALLER = "make it smaller on a larger machine: `edgegs pack SCENE -o SCENE.egs --budget N`"
_SPARE_ROWS = 1 << 16  # so that a small budget does not prune after every few rows


class TooLarge(SceneError):
    """The scene does not fit this machine's memory."""


def check_memory(path: str, n_splats: int, n_bytes: int, advice: str = _SMALLER) -> None:
    """Raise TooLarge if ``n_splats`` that take ``n_bytes`` do not fit into what memory and swap are free."""
    free = available_memory()
    if free is not None and n_bytes > free:
        raise TooLarge(
            f"{path}: its {n_splats:,} splats take {n_bytes / 1e6:,.0f} MB of memory, and {free / 1e6:,.0f} MB are "
            f"free; {advice}"
        )


class RawBlock(NamedTuple):
    """n rows as a file means them, float32 or float64."""

    means: np.ndarray  # (n, 3)
    log_scales: np.ndarray  # (n, 3) ln sigma
    quats: np.ndarray  # (n, 4) w first, any norm
    logits: np.ndarray  # (n,) logit of opacity
    sh: np.ndarray  # (n, K, 3)


class SceneBuilder:
    """Collects blocks in file order. Memory: the rows kept, plus one block.

    With ``max_gaussians`` it holds little more than twice that many rows and prunes as it goes; the outcome is the
    same as of one sort over the whole file, since the order (score, then row) is total.
    """

    def __init__(
        self,
        path: str,
        file_format: str,
        n_rows: int,
        sh_degree: int,
        max_gaussians: Optional[int] = None,
        vertical_axis: str = "y",
        antialiased: bool = False,
        frame: str = "rdf",
    ) -> None:
        """``frame``: the axes of the blocks (see frames.py); the others as in ``Scene``."""
        self._path, self._format, self._antialiased = path, file_format, antialiased
        self._turned = frame != "rdf"
        self._n_rows, self._sh_degree, self._vertical_axis = n_rows, sh_degree, vertical_axis
        self._budget = max_gaussians if max_gaussians is not None and max_gaussians < n_rows else None
        self._n = 0
        self._n_usable = 0
        self._dropped: Dict[str, int] = {}
        self._all_log_scales_positive = True
        self._warnings: List[str] = []
        capacity = n_rows if self._budget is None else min(n_rows, 2 * self._budget + _SPARE_ROWS)
        k = (sh_degree + 1) ** 2
        check_memory(path, n_rows, 4 * capacity * (11 + 3 * k))
        try:
            # Pages that no row is ever written to cost nothing: a file of bad rows stays cheap.
            self._arrays = [np.empty((capacity, *shape), np.float32) for shape in ((3,), (3,), (4,), (), (k, 3))]
        except MemoryError as error:
            raise EdgegsError(f"{path}: not enough memory for {capacity:,} splats; set scene.max_gaussians") from error

    def warn(self, text: str) -> None:
        self._warnings.append(text)

    def add(self, raw: RawBlock) -> None:
        """Take a block: activate it, leave out what cannot be drawn, and count it by its first cause."""
        with np.errstate(all="ignore"):
            rows, faults = _activate(raw)
        keep = np.ones(len(raw.logits), bool)
        for cause, bad in faults:
            n_bad = int(np.count_nonzero(bad & keep))
            if n_bad:
                self._dropped[cause] = self._dropped.get(cause, 0) + n_bad
                keep &= ~bad
        if not keep.all():
            rows = [array[keep] for array in rows]
        if self._turned:
            rows[0], rows[2], rows[4] = turn_means(rows[0]), turn_quats(rows[2]), turn_sh(rows[4])
        n_kept = len(rows[0])
        self._n_usable += n_kept
        self._all_log_scales_positive &= bool((raw.log_scales[keep] > 0).all())
        start = 0
        while start < n_kept:
            if self._n == len(self._arrays[0]):
                self._prune()
            stop = min(n_kept, start + len(self._arrays[0]) - self._n)
            for array, new in zip(self._arrays, rows):
                array[self._n : self._n + stop - start] = new[start:stop]
            self._n += stop - start
            start = stop

    def _prune(self) -> None:
        """Keep the ``max_gaussians`` rows with the largest opacity · (largest scale)², in file order."""
        assert self._budget is not None
        if self._n <= self._budget:
            return
        n = self._n
        scale = self._arrays[1][:n].max(axis=1).astype(np.float64)
        score = self._arrays[3][:n] * scale * scale
        kept = np.sort(np.argsort(-score, kind="stable")[: self._budget])
        for array in self._arrays:
            array[: self._budget] = array[kept]
        self._n = self._budget

    def finish(self, sha256: str) -> Scene:
        """The scene, or SceneError when not one row was usable."""
        causes = ", ".join(f"{count:,} {cause}" for cause, count in self._dropped.items())
        if not self._n_usable:
            raise SceneError(
                f"{self._path}: none of its {self._n_rows:,} rows can be drawn ({causes}); export the scene again"
            )
        if self._dropped:
            n_dropped = sum(self._dropped.values())
            self.warn(f"{n_dropped:,} of {self._n_rows:,} rows left out: {causes}")
        if self._budget is not None and self._n_usable > self._budget:
            self._prune()
            self.warn(
                f"max_gaussians {self._budget:,}: left out {self._n_usable - self._n:,} splats, those "
                "with the least opacity · (largest scale)²"
            )
        for array in self._arrays:
            array.resize((self._n, *array.shape[1:]), refcheck=False)  # in place: no second copy
        means, scales, quats, opacities, sh = self._arrays
        if self._all_log_scales_positive and self._n_usable > 100:
            self.warn("every ln sigma is positive: were the scales written without the logarithm?")
        elif float(np.median(scales)) > _LARGE_SIGMA:
            self.warn(f"half of the scales exceed {_LARGE_SIGMA:g} units: a scene in millimetres, or not 3DGS?")
        return Scene(
            means, scales, quats, opacities, sh, self._sh_degree, self._path, self._format, self._n_rows,
            dict(self._dropped), list(self._warnings), sha256, self._vertical_axis, self._antialiased,
        )  # fmt: skip


def _activate(raw: RawBlock) -> Tuple[List[np.ndarray], List[Tuple[str, np.ndarray]]]:
    """Arrays as in Scene, and (cause, (n,) bool) for every way in which a row can be unusable."""
    means = raw.means.astype(np.float32, copy=False)
    sh = raw.sh.astype(np.float32, copy=False)
    quats = raw.quats.astype(np.float64)
    norm = np.sqrt((quats * quats).sum(axis=1))
    scales = np.exp(np.clip(raw.log_scales, np.log(MIN_SIGMA), MAX_LOG_SIGMA))
    logits = np.clip(raw.logits, -LOGIT_LIMIT, LOGIT_LIMIT)
    opacities = 1 / (1 + np.exp(-logits))
    flat_sh = raw.sh.reshape(len(sh), -1)
    faults = [
        ("with a non-finite position", ~np.isfinite(raw.means).all(axis=1)),
        ("with a position beyond float32", ~np.isfinite(means).all(axis=1)),
        ("with a non-finite rotation", ~np.isfinite(quats).all(axis=1)),
        ("with a zero rotation", ~(norm >= _MIN_QUAT_NORM)),
        ("with a rotation beyond float64", ~np.isfinite(norm)),
        ("with a non-finite scale", ~(raw.log_scales < np.inf).all(axis=1)),
        ("with a scale too large for float32", ~(raw.log_scales <= MAX_LOG_SIGMA).all(axis=1)),
        ("with a non-finite opacity", np.isnan(raw.logits)),
        ("with a non-finite colour", ~np.isfinite(flat_sh).all(axis=1)),
        ("with a colour beyond float32", ~np.isfinite(sh.reshape(len(sh), -1)).all(axis=1)),
    ]
    unit = (quats / norm[:, None]).astype(np.float32)
    return [means, scales.astype(np.float32), unit, opacities.astype(np.float32), sh], faults
