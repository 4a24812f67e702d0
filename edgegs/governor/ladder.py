"""The ladder: settings in the order in which quality is given up, what costs the picture least first."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

# Costs are decibels (PSNR) below 40 against the full picture: the mean of playbot_lod1_250k_sh2 and tarot_115k_sh0 at
# 640x480, six held-out views each, smaller pictures scaled up as the outputs do, splats in the order of importance.
#: (share of the picture's width and height, cost): drawn smaller, and scaled up to the outputs' size.
SCALES = ((0.85, 2.8), (0.7, 7.2), (0.6, 9.9), (0.5, 12.3))
#: (share of the splats, cost): the most important ones, see ``PackedScene.levels``.
BUDGETS = ((0.7, 3.3), (0.5, 10.6), (0.35, 14.2), (0.25, 16.9))
#: Degree of view-dependent colour that is left -> cost: twice its decibels, because only one stage gets faster. What
#: leaving out the third degree costs was not measured, and is a guess.
DEGREES = {2: 7.0, 1: 9.6, 0: 19.0}
#: (share of the frame rate, cost): below the rate that was asked for, last of all: a picture that stutters is seen by
#: everybody. A rate above ``governor.target_fps`` is given up first of all instead: nobody asked for it.
RATES = ((0.8, 20.0), (0.65, 22.0), (0.5, 24.0), (0.33, 26.0))
LUXURY_RATE_COST = 1.0
#: A rung must spare at least so much of the splats, else it is not worth a visible step.
MIN_CUT = 0.08
#: Below so many splats no budget is tried.
MIN_SPLATS = 1024

AXES = ("scale", "splats", "sh_degree", "fps")


class Setting(NamedTuple):
    """What is drawn.

    Attributes:
        scale: of the drawn picture's sides against the outputs', above 0 to 1.
        n_splats: how many of the scene's splats, the most important.
        sh_degree: of view-dependent colour.
        fps: most frames a second; None: what the configuration says.
    """

    scale: float
    n_splats: int
    sh_degree: int
    fps: Optional[float]


class Rung(NamedTuple):
    """One setting, the axis that it changes against the rung before ("" on the first), and what that costs."""

    setting: Setting
    axis: str
    cost: float


Ladder = Tuple[Rung, ...]


def build_ladder(
    n_splats: int,
    levels: Sequence[int] = (),
    sh_degree: int = 0,
    fps: float = 0.0,
    target_fps: Optional[float] = None,
    axes: Sequence[str] = AXES,
) -> Ladder:
    """The rungs that a scene and a renderer allow.

    Args:
        n_splats: of the scene.
        levels: rising counts of splats at which a prefix is the best choice of that many; without them, and where the
            scene holds too few, the budget stays.
        sh_degree: of the scene.
        fps: frames a second that the loop holds; 0: as many as it can.
        target_fps: the rate to hold, where there is one.
        axes: those that the renderer can change.
    """
    steps: List[Tuple[float, str, float]] = []
    if "scale" in axes:
        steps += [(cost, "scale", scale) for scale, cost in SCALES]
    if "splats" in axes:
        last = n_splats
        for share, cost in BUDGETS:
            n = snap(levels, share * n_splats)
            if MIN_SPLATS <= n <= (1 - MIN_CUT) * last:
                steps.append((cost, "splats", n))
                last = n
    if "sh_degree" in axes:
        steps += [(cost, "sh_degree", degree) for degree, cost in DEGREES.items() if degree < sh_degree]
    if "fps" in axes:
        steps += _rates(fps, target_fps)
    setting = Setting(1.0, n_splats, sh_degree, None)
    rungs = [Rung(setting, "", 0.0)]
    for cost, axis, value in sorted(steps):
        change: Dict[str, Any] = {"n_splats" if axis == "splats" else axis: value}
        setting = setting._replace(**change)
        rungs.append(Rung(setting, axis, cost))
    return tuple(rungs)


def _rates(fps: float, target_fps: Optional[float]) -> List[Tuple[float, str, float]]:
    base = target_fps or fps or 60.0
    luxury = target_fps is not None and (fps == 0 or fps > 1.05 * target_fps)
    first = [(LUXURY_RATE_COST, "fps", base)] if luxury else []
    return first + [(cost, "fps", round(max(1.0, share * base), 2)) for share, cost in RATES if share * base >= 1]


def snap(levels: Sequence[int], n: float) -> int:
    """The level nearest to n; 0 where there is none."""
    return min(levels, key=lambda level: abs(level - n), default=0)


def rung_at(ladder: Ladder, cost: float) -> int:
    """The worst rung that costs the picture no more than this."""
    return max(index for index, rung in enumerate(ladder) if rung.cost <= cost)


def with_ceiling(ladder: Ladder, fps: float) -> Ladder:
    """The same rungs with at most ``fps`` frames a second from the second one on, and the caps below in proportion."""
    caps = [rung.setting.fps for rung in ladder if rung.setting.fps is not None]
    base = max(caps) / RATES[0][0] if caps else fps

    def lowered(setting: Setting) -> Setting:
        return setting._replace(fps=round(fps if setting.fps is None else setting.fps * min(1.0, fps / base), 2))

    return (ladder[0], *(rung._replace(setting=lowered(rung.setting)) for rung in ladder[1:]))


def work_ratio(better: Setting, worse: Setting, exponent: float, per_degree: float) -> float:
    """How many times the work of a frame grows from one setting to a better one.

    Args:
        exponent: of pixels times splats: 1 where all work grows with both, less where some does not.
        per_degree: share that each degree of colour adds.
    """
    area = (better.scale / worse.scale) ** 2
    splats = better.n_splats / worse.n_splats if worse.n_splats else 1.0
    colour = (1 + per_degree * better.sh_degree) / (1 + per_degree * worse.sh_degree)
    return float((area * splats) ** exponent * colour)


def rate_ratio(better: Setting, worse: Setting, fps: float) -> float:
    """How many times as many frames a better setting may draw; ``fps`` is what is drawn now."""
    if worse.fps is None or better.fps == worse.fps:
        return 1.0
    if better.fps is None:  # back to what the configuration says, which may be anything: assume what was seen at most
        return max(1.0, fps / worse.fps)
    return better.fps / worse.fps
