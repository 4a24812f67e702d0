"""What a soak showed: robust slopes, counts that must not move, and the verdict in words."""

from __future__ import annotations

import math
from statistics import median
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

#: Share of the frames in which bounded buffers, caches and the allocator fill.
WARM_UP = 0.2
#: All samples are judged by the medians of so many equal blocks: neighbours in time are not independent.
BLOCKS = 40
#: Seconds for a clean end.
END_S = 10.0


class Fit(NamedTuple):
    """A slope and its 95 % interval, in units of y a unit of x; NaN where there are too few points."""

    slope: float
    low: float
    high: float
    n: int

    def shown(self) -> Dict[str, Any]:
        figures = {"slope": self.slope, "low": self.low, "high": self.high}
        return {**{k: None if math.isnan(v) else round(v, 4) for k, v in figures.items()}, "n": self.n}


def theil_sen(points: Sequence[Tuple[float, float]]) -> Fit:
    """The median of the slopes of all pairs, with the interval of Sen (1968): by ranks, whatever the noise is like."""
    n = len(points)
    slopes = sorted(
        (points[j][1] - points[i][1]) / (points[j][0] - points[i][0])
        for i in range(n)
        for j in range(i + 1, n)
        if points[j][0] != points[i][0]
    )
    if not slopes:
        return Fit(math.nan, math.nan, math.nan, n)
    reach = 1.96 * math.sqrt(n * (n - 1) * (2 * n + 5) / 18.0)
    low = max(0, round((len(slopes) - reach) / 2.0))
    high = min(len(slopes) - 1, round((len(slopes) + reach) / 2.0))
    return Fit(median(slopes), slopes[low], slopes[high], n)


def blocks(points: Sequence[Tuple[float, float]], n_blocks: int = BLOCKS) -> List[Tuple[float, float]]:
    """The medians of x and of y in so many blocks of equal length in x."""
    if not points:
        return []
    first, last = points[0][0], points[-1][0]
    found: Dict[int, List[Tuple[float, float]]] = {}
    for x, y in points:
        found.setdefault(min(n_blocks - 1, int((x - first) / max(1e-9, last - first) * n_blocks)), []).append((x, y))
    return [(median(x for x, _ in block), median(y for _, y in block)) for _, block in sorted(found.items())]


def slopes(samples: Sequence[Dict[str, Any]], kind: str, warm_up: float) -> Dict[str, Any]:
    """KB a 1,000 frames of each measure of memory, after ``warm_up`` frames."""
    chosen = [sample for sample in samples if sample["kind"] == kind and sample["frames"] >= warm_up]
    found = {}
    for key in ("rss_kb", "anon_kb", "pss_kb"):
        points = [(sample["frames"] / 1000.0, float(sample[key])) for sample in chosen if sample.get(key) is not None]
        found[key] = theil_sen(points if kind == "rest" else blocks(points)).shown()
    return found


def quarters(samples: Sequence[Dict[str, Any]], key: str, warm_up: float) -> Tuple[List[int], List[int]]:
    """The values of ``key`` at rest in the first and in the last quarter of the rests after the warm-up."""
    rests = [sample[key] for sample in samples if sample["kind"] == "rest" and sample["frames"] >= warm_up]
    n = max(1, len(rests) // 4)
    return sorted(set(rests[:n])), sorted(set(rests[-n:]))


def judge(result: Dict[str, Any], samples: Sequence[Dict[str, Any]], most_kb: float) -> Dict[str, Any]:
    """Adds ``memory``, ``counts`` and ``failures`` to what the driver found out.

    Args:
        result: ``frames``, ``asked`` {frames, reloads, clients}, ``reloads`` {taken, refused}, ``exit_code``,
            ``end_s``, ``tracebacks``, ``zombies``, ``orphans``, ``log``, ``missed`` (what did not come about in time).
        samples: the series; ``kind`` is tick or rest.
        most_kb: KB a 1,000 frames that are no leak.
    """
    warm_up = WARM_UP * result["frames"]
    failures: List[str] = list(result["missed"])
    memory = {kind: slopes(samples, kind, warm_up) for kind in ("rest", "tick")}
    for kind, words in (("rest", "at rest"), ("tick", "over all samples")):
        slope = memory[kind]["rss_kb"]["slope"]
        if slope is None or not slope < most_kb:
            failures.append(f"memory: RSS {words} grows by {slope} KB a 1,000 frames; allowed are {most_kb:g}")
    counts = {}
    for key in ("descriptors", "threads", "children"):
        first, last = quarters(samples, key, warm_up)
        counts[key] = {"first": first, "last": last}
        if first != last or not first:
            failures.append(f"{key}: {first} at rest in the first quarter, {last} in the last")
    asked, reloads = result["asked"], result["reloads"]
    if result["frames"] < asked["frames"]:
        failures.append(f"{result['frames']} frames instead of {asked['frames']}")
    if sum(reloads.values()) < asked["reloads"]:
        failures.append(f"{sum(reloads.values())} reloads were answered, of {asked['reloads']}")
    if result["http"]["clients"] < asked["clients"]:
        failures.append(f"{result['http']['clients']} HTTP clients instead of {asked['clients']}")
    if result["exit_code"] != 0:
        failures.append(f"exit code {result['exit_code']}")
    if not result["end_s"] <= END_S:
        failures.append(f"the end took {result['end_s']:.1f} s; allowed are {END_S:g}")
    for key, what in (
        ("tracebacks", "tracebacks in the log of the service"),
        ("zombies", "zombies at rest"),
        ("orphans", "children that outlived it"),
    ):
        if result[key]:
            failures.append(f"{what}: {result[key]}")
    run_log = result["log"]
    if run_log["torn"] or run_log["garbage"] or not run_log["stopped"]:
        failures.append(f"the run log cannot be read whole: {run_log}")
    if run_log["bytes"] > run_log["quota_bytes"]:
        failures.append(f"the run log takes {run_log['bytes']} bytes; its quota is {run_log['quota_bytes']}")
    return dict(result, memory=memory, counts=counts, failures=failures, passed=not failures)
