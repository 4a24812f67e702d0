"""A scene packed for a board: ordered by importance and, where it has to be smaller, cut in the way that shows least.

Pictures decide. Each way to meet a budget is tried: the least important splats left out; below ``MERGE_BELOW`` also
splats merged with their neighbours; with a budget of bytes also fewer bands of SH, and so more splats. What differs
least from the whole scene, on views that took no part in the choice, is taken.
"""

from __future__ import annotations

from typing import Callable, List, NamedTuple, Optional, Sequence

import numpy as np

from edgegs.backends.base import Backend
from edgegs.camera import Camera
from edgegs.pack.importance import importance
from edgegs.pack.merge import merge
from edgegs.pack.order import arrange, sizes
from edgegs.pack.packed import PackedScene, quantise
from edgegs.pack.quality import Judge
from edgegs.pack.upload import splat_bytes
from edgegs.scene import Scene

#: Merging is tried where a smaller share of the splats is kept. Measured: at 75 % it is from 0.7 dB worse to 10 dB
#: better than leaving out, by the scene; it takes seconds.
MERGE_BELOW = 0.9
WAYS = ("auto", "prune", "merge")

Progress = Callable[[int, int], None]
Say = Callable[[str], Progress]


class Budget(NamedTuple):
    """What a packed scene may take: at most ``n`` splats, and at most ``n_bytes`` on the device; None: no limit."""

    n: Optional[int] = None
    n_bytes: Optional[int] = None

    def splats(self, n_splats: int, sh_degree: int) -> int:
        """Splats of that degree that it allows, of so many; 0 where not one fits."""
        n = n_splats if self.n is None else min(n_splats, self.n)
        return n if self.n_bytes is None else min(n, self.n_bytes // splat_bytes(sh_degree, "packed"))


class Candidate(NamedTuple):
    """One way to meet a budget.

    Attributes:
        how: "all", "prune", "merge", or one of those and "distill".
        scene: before quantisation.
        scores: (N,) of its splats.
        packed: as it would be written.
        psnr_db: of pictures of ``packed`` against the whole scene, over the held-out views; inf where they are equal.
    """

    how: str
    scene: Scene
    scores: np.ndarray
    packed: PackedScene
    psnr_db: float


class Reducer:
    """Makes and judges packed forms of one scene.

    Args:
        backend: draws and scores; stays the caller's.
        scored, held_out: views to choose by, and views to judge by.
        say: called with what is done next, returns where its progress goes.

    Raises:
        DeviceError: the scene does not fit.
    """

    def __init__(
        self, scene: Scene, backend: Backend, scored: Sequence[Camera], held_out: Sequence[Camera], say: Say
    ) -> None:
        self.scene, self._backend, self._scored, self._say = scene, backend, scored, say
        self.scores = self._importance(scene, f"scoring {scene.n_splats:,} splats")
        self._judge = Judge(scene, held_out, backend)

    def candidates(self, budget: Budget, way: str = "auto", sh_degree: int = 3) -> List[Candidate]:
        """Every way to meet a budget that is worth trying, best first.

        Args:
            way: "prune" or "merge" for that alone; "auto" for both where both may be best.
            sh_degree: highest degree that is kept.

        Raises:
            ValueError: not one splat fits.
        """
        degree = min(sh_degree, self.scene.sh_degree)
        n_all = self.scene.n_splats
        plans = [(budget.splats(n_all, degree), degree)]
        if budget.n_bytes is not None:  # fewer bands leave room for more splats
            plans += [(budget.splats(n_all, lower), lower) for lower in range(degree) if plans[0][0] < n_all]
        plans = [(n, d) for n, d in plans if n]
        if not plans:
            raise ValueError("not one splat fits the budget")
        if way == "merge" and plans[0][0] < n_all:
            return [self._merged(*plans[0])]
        found = [self._pruned(n, d) for n, d in plans]
        if way == "auto":
            best = max(found, key=lambda candidate: candidate.psnr_db)
            n, d = best.packed.n_splats, best.packed.sh_degree
            found += [self._merged(n, d)] if n < MERGE_BELOW * n_all else []
        return sorted(found, key=lambda candidate: -candidate.psnr_db)

    def pack(self, how: str, scene: Scene, scores: np.ndarray, n: Optional[int], sh_degree: int) -> Candidate:
        """Order, quantise and judge."""
        order, levels = arrange(scene.means, scores, sizes(scene), n)
        packed = quantise(scene, order, levels, sh_degree)
        return Candidate(how, scene, scores, packed, self._judge.psnr_db(packed))

    def rescored(self, how: str, scene: Scene, sh_degree: int) -> Candidate:
        """A scene made from the whole one by other means: scored, packed and judged."""
        return self.pack(how, scene, self._importance(scene, f"scoring {scene.n_splats:,} splats"), None, sh_degree)

    def _pruned(self, n: int, sh_degree: int) -> Candidate:
        how = "all" if n == self.scene.n_splats else "prune"
        return self.pack(how, self.scene, self.scores, None if how == "all" else n, sh_degree)

    def _merged(self, n: int, sh_degree: int) -> Candidate:
        merged = merge(self.scene, n, self.scores, self._say(f"merging to {n:,}"))
        return self.rescored("merge", merged, sh_degree)

    def _importance(self, scene: Scene, what: str) -> np.ndarray:
        return importance(scene, self._scored, self._backend, self._say(what))
