"""Plots of the governor on the simulated board, and the figures behind them: ``python tests/governor_plots.py FOLDER``.

Writes ``SCENARIO.png`` for each scenario (power, temperature, frames a second and rung over time, with and without the
governor), ``row.json`` (what was asked and what came out) and ``raw.jsonl.gz`` (one line a simulated second or event).
A simulation of ``thermal_plant.py``'s board, not a measurement: what only a board can confirm stands there.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from pathlib import Path
from typing import Any, Callable, Dict, Mapping, NamedTuple, Optional

import numpy as np

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent.parent)]

from thermal_plant import CLOSED_CASE, CRITICAL_C, FAN, THROTTLE_C, Plant, Run, change, simulate  # noqa: E402

from edgegs import __version__  # noqa: E402
from edgegs.governor import Governor, Limits, build_ladder  # noqa: E402
from edgegs.pack.order import level_ends  # noqa: E402

N_SPLATS, SH_DEGREE, LOOP_FPS = 50_000, 3, 30.0
WITH, WITHOUT, LIMIT, HOT = "#1b6ca8", "#b0b0b0", "#c0392b", "#7f3fbf"
GIVEN_BACK = "#2e8b57"


class Scenario(NamedTuple):
    """What happens to a board, and what is to be held."""

    title: str
    limits: Limits
    seconds: int
    plant: Mapping[str, Any]
    script: Mapping[int, Callable[[Plant], None]]
    marks: Mapping[int, str]


SCENARIOS: Dict[str, Scenario] = {
    "hot-ambient": Scenario(
        "A closed case without a fan in a room of 45 C; at most 80 C",
        Limits(max_temp_c=80.0),
        2 * 3600,
        dict(ambient_c=45.0, sink_r=CLOSED_CASE),
        {},
        {},
    ),
    "fan-failure": Scenario(
        "A fan that fails after 20 minutes and is mended after 90; 35 C around; at most 80 C, at least 15 FPS",
        Limits(target_fps=15.0, max_temp_c=80.0),
        2 * 3600,
        dict(ambient_c=35.0, sink_r=FAN),
        {1200: change(sink_r=CLOSED_CASE), 5400: change(sink_r=FAN)},
        {1200: "fan fails", 5400: "mended"},
    ),
    "scene-and-watts": Scenario(
        "Twice the work from minute 10 to 30, a camera that goes round; at most 6.5 W, at least 20 FPS",
        Limits(target_fps=20.0, max_power_w=6.5),
        3600,
        dict(swing=0.15, noise=0.03),
        {600: change(work_ms=116.0), 1800: change(work_ms=58.0)},
        {600: "work doubles", 1800: "and halves"},
    ),
}


def play(scenario: Scenario, governed: bool) -> Run:
    """One run of a scenario."""
    ladder = build_ladder(N_SPLATS, level_ends(N_SPLATS), SH_DEGREE, LOOP_FPS, scenario.limits.target_fps)
    plant = Plant(ladder[0].setting, loop_fps=LOOP_FPS, seed=1, **scenario.plant)
    return simulate(plant, Governor(scenario.limits, ladder) if governed else None, scenario.seconds, scenario.script)


def figures(run: Run, limits: Limits) -> Dict[str, Any]:
    """What a run came to; times beyond the limits are of what the plant did, not of what sensors said."""
    temp, power, fps, rung = (run.column(name) for name in ("temp_c", "power_w", "fps", "rung"))
    calm = np.arange(len(temp)) >= 60
    result: Dict[str, Any] = {
        "temp_max_c": round(float(temp.max()), 2),
        "power_mean_w": round(float(power.mean()), 3),
        "energy_wh": round(float(power.sum() / 3600), 3),
        "fps_mean": round(float(fps.mean()), 2),
        "fps_p5": round(float(np.percentile(fps, 5)), 2),
        "throttled_s": int((run.column("clock") < 1).sum()),
        "steps_down": sum(step["action"] == "down" for step in run.steps),
        "steps_up": sum(step["action"] == "up" for step in run.steps),
        "rung_last": int(rung[-1]),
        "rung_worst": int(rung.max()),
    }
    if limits.max_temp_c is not None:
        result["over_temp_s"] = int((temp > limits.max_temp_c + 0.5).sum())
    if limits.max_power_w is not None:
        result["over_power_s"] = int((power > 1.01 * limits.max_power_w)[calm].sum())
    if limits.target_fps is not None:
        result["under_fps_s"] = int((fps < 0.95 * limits.target_fps)[calm].sum())
    return result


def plot(scenario: Scenario, free: Run, held: Run, path: Path) -> None:
    """Four charts above each other, time in minutes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    limits = scenario.limits
    charts = (
        ("power_w", "power, W", limits.max_power_w),
        ("temp_c", "temperature, °C", limits.max_temp_c),
        ("fps", "frames a second", limits.target_fps),
        ("rung", "rung (0: all quality)", None),
    )
    figure, axes = plt.subplots(len(charts), 1, figsize=(9.5, 10), sharex=True, constrained_layout=True)
    minutes = held.column("t_s") / 60
    for axis, (name, label, limit) in zip(axes, charts):
        if name != "rung":
            axis.plot(minutes, free.column(name), color=WITHOUT, linewidth=1.4, label="without the governor")
        shape = "steps-post" if name == "rung" else "default"
        axis.plot(minutes, held.column(name), color=WITH, linewidth=1.6, drawstyle=shape, label="with it")
        if limit is not None:
            axis.axhline(limit, color=LIMIT, linestyle="--", linewidth=1.1, label=f"limit, {limit:g}")
        if name == "temp_c" and free.column(name).max() > THROTTLE_C - 8:
            axis.axhline(THROTTLE_C, color=HOT, linestyle=":", linewidth=1.1, label=f"throttling, {THROTTLE_C:g}")
        for second, text in scenario.marks.items():
            axis.axvline(second / 60, color="#555555", linewidth=0.8, linestyle=":")
            if axis is axes[0]:
                axis.annotate(text, (second / 60, 1.0), xycoords=("data", "axes fraction"), va="bottom", fontsize=8)
        axis.set_ylabel(label)
        axis.grid(alpha=0.25)
        axis.set_xlim(0, minutes[-1])
        if name != "rung":
            axis.legend(loc="best", fontsize=8, framealpha=0.9)
    for step in held.steps:
        colour = LIMIT if step["action"] == "down" else GIVEN_BACK
        axes[-1].axvline(step["t_s"] / 60, color=colour, alpha=0.35, linewidth=0.8)
    axes[-1].invert_yaxis()
    axes[-1].set_xlabel("minutes (red: a step down, green: a step up)")
    figure.suptitle(scenario.title + "\nsimulated (tests/thermal_plant.py), not measured", fontsize=10)
    figure.savefig(str(path), dpi=110)
    plt.close(figure)


def main(folder: Path, date: Optional[str], commit: Optional[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    with gzip.GzipFile(str(folder / "raw.jsonl.gz"), "wb", mtime=0) as raw:
        for name, scenario in SCENARIOS.items():
            free, held = play(scenario, False), play(scenario, True)
            plot(scenario, free, held, folder / (name + ".png"))
            for governed, run in ((False, free), (True, held)):
                for kind, lines in (("second", run.rows), ("event", run.steps), ("event", run.notes)):
                    for line in lines:
                        named = dict(scenario=name, governed=governed, type=kind, **_rounded(line))
                        raw.write(json.dumps(named).encode() + b"\n")
            rows.append(
                {
                    "scenario": name,
                    "title": scenario.title,
                    "limits": scenario.limits._asdict(),
                    "without": figures(free, scenario.limits),
                    "with": figures(held, scenario.limits),
                    "events": [_rounded(event) for event in sorted(held.steps + held.notes, key=lambda e: e["t_s"])],
                }
            )
    document = {
        "schema": 1,
        "kind": "sim-governor",
        "date": date,
        "version": __version__,
        "commit": commit,
        "device": "simulated Jetson Nano (tests/thermal_plant.py); unconfirmed on hardware",
        "throttle_c": THROTTLE_C,
        "critical_c": CRITICAL_C,
        "scene": {"n_splats": N_SPLATS, "sh_degree": SH_DEGREE, "loop_fps": LOOP_FPS},
        "rows": rows,
    }
    (folder / "row.json").write_text(json.dumps(document, indent=1) + "\n")
    for row in rows:
        print(row["scenario"], json.dumps(row["with"]))


def _rounded(line: Mapping[str, Any]) -> Dict[str, Any]:
    return {name: round(value, 3) if isinstance(value, float) else value for name, value in line.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Plots of the governor on a simulated board.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--date", help="for row.json: UTC, as 2026-11-30T16:00:00Z")
    parser.add_argument("--commit", help="for row.json")
    given = parser.parse_args()
    main(given.folder, given.date, given.commit)
