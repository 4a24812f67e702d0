"""A board to try a governor on: what it draws, what that takes, how warm it gets. A model, not a measurement.

Heat flows from the die through the heat sink to the air (two resistances, two capacities); above the trip points of its
device tree the board lowers its clocks. Figures of a Jetson Nano, and where they come from:

- Trip points: the device tree of a Nano developer kit B01 of July 2020 (xen-devel, 24 July 2020, "Porting Xen to Jetson
  Nano", jetson-nano-b00.dts): GPU-therm ``gpu_throttle`` 97.5 C (passive, gpu-balanced, looked at every 500 ms),
  ``gpu_heavy`` 101 C, ``gpu_critical`` 102.5 C. Unconfirmed on hardware: ``cat
  /sys/class/thermal/thermal_zone*/trip_point_*_{type,temp}``.
- Die to air: tegrastats lines of two Nanos, idle at 0.88 W and 28 C and after hours at 7.87 W and 58.5 C, which is 4.3
  degrees a watt if their rooms were equally warm and the heat sink was bare. With a fan, and in a closed case: guesses.
  Unconfirmed on hardware: ``edgegs sweep`` with two FPS caps gives the slope of temperature over power.
- Capacity: some 100 g of aluminium and board. A guess; it gives a time constant of 6 minutes.
- Power: 17 FPS of 50,000 splats at 863x480 keep the GPU busy (the Nano report); 7.5 W is then what people see on
  POM_5V_IN. Split into board, frames and GPU by guess.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional

import numpy as np

from edgegs.governor import Governor, Setting

#: GPU-therm of the device tree, degrees.
THROTTLE_C, HEAVY_C, CRITICAL_C = 97.5, 101.0, 102.5
#: The GPU's clock has 12 steps of 76.8 MHz; the kernel takes or gives back one at each look.
CLOCK_STEPS = 12
TICK_S = 0.5
#: Heat sink to air, degrees a watt.
OPEN_AIR, CLOSED_CASE, FAN = 3.5, 8.0, 1.6


@dataclass
class Plant:
    """A board that draws. Everything but ``full`` may be changed while it runs.

    Attributes:
        full: the best setting, which ``work_ms`` is for.
        work_ms: of a frame at full clock. fixed_ms: the part of it that nothing makes less.
        exponent: how the rest grows with pixels times splats.
        loop_fps: beat of the loop; 0: none.
        ambient_c, sink_r: of the air, and degrees a watt from the heat sink to it.
        idle_w, frame_j, gpu_w: of the board, of the processor's part in a frame, of a busy GPU at full clock.
        noise: standard deviation of measured rates and watts, as a share.
        swing, swing_s: how much the work goes up and down as the camera goes round, as a share; seconds of a round.
    """

    full: Setting
    work_ms: float = 58.0
    fixed_ms: float = 4.0
    exponent: float = 0.75
    loop_fps: float = 30.0
    ambient_c: float = 22.0
    sink_r: float = OPEN_AIR
    idle_w: float = 1.6
    frame_j: float = 0.055
    gpu_w: float = 5.0
    noise: float = 0.02
    swing: float = 0.0
    swing_s: float = 20.0
    die_r: float = 0.8
    die_c: float = 4.0
    sink_c: float = 110.0
    power_works: bool = True
    temp_works: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        self.t_s = 0.0
        self.setting = self.full
        self.clock_step = CLOCK_STEPS
        self.is_dead = False
        self.die_t = self.sink_t = self.ambient_c
        self._rng = np.random.default_rng(self.seed)

    def frame_s(self) -> float:
        """What a frame takes now."""
        area_splats = self.setting.scale**2 * self.setting.n_splats / self.full.n_splats
        colour = (1 + 0.03 * self.setting.sh_degree) / (1 + 0.03 * self.full.sh_degree)
        swing = 1 + self.swing * math.sin(2 * math.pi * self.t_s / self.swing_s)
        work_ms = self.fixed_ms + (self.work_ms - self.fixed_ms) * area_splats**self.exponent * colour * swing
        return work_ms / 1e3 * CLOCK_STEPS / self.clock_step

    def fps(self) -> float:
        caps = [rate for rate in (self.loop_fps, self.setting.fps) if rate]
        return min([1 / self.frame_s(), *caps])

    def power_w(self) -> float:
        fps, clock = self.fps(), self.clock_step / CLOCK_STEPS
        return self.idle_w + self.frame_j * fps + self.gpu_w * fps * self.frame_s() * clock**2

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / TICK_S)):
            into_sink = (self.die_t - self.sink_t) / self.die_r
            into_air = (self.sink_t - self.ambient_c) / self.sink_r
            self.die_t += TICK_S * (self.power_w() - into_sink) / self.die_c
            self.sink_t += TICK_S * (into_sink - into_air) / self.sink_c
            if self.die_t >= HEAVY_C:
                self.clock_step = CLOCK_STEPS // 4
            elif self.die_t >= THROTTLE_C:
                self.clock_step = max(1, self.clock_step - 1)
            else:
                self.clock_step = min(CLOCK_STEPS, self.clock_step + 1)
            self.is_dead |= self.die_t >= CRITICAL_C
            self.t_s += TICK_S

    def measure(self) -> Dict[str, Optional[float]]:
        """What ``Governor.observe`` takes, as sensors give it: degrees in halves, the rest noisy."""
        fps = self.fps() * (1 + self.noise * self._rng.standard_normal())
        watts = self.power_w() * (1 + self.noise * self._rng.standard_normal())
        return {
            "fps": fps,
            "work_ms": self.frame_s() * 1e3 * (1 + self.noise * self._rng.standard_normal()),
            "power_w": round(watts, 3) if self.power_works else None,
            "temp_c": round(2 * self.die_t) / 2 if self.temp_works else None,
        }

    def end_temp_c(self, setting: Setting) -> float:
        """How warm the die gets in the end, if it draws that and its clocks stay."""
        kept, self.setting = self.setting, setting
        step, self.clock_step = self.clock_step, CLOCK_STEPS
        end = self.ambient_c + self.power_w() * (self.die_r + self.sink_r)
        self.setting, self.clock_step = kept, step
        return end


@dataclass
class Run:
    """What happened: one row a second, every step, every other event."""

    rows: List[Dict[str, Any]]
    steps: List[Dict[str, Any]]
    notes: List[Dict[str, Any]]

    def column(self, name: str, start_s: float = 0.0, end_s: float = math.inf) -> np.ndarray:
        return np.array([row[name] for row in self.rows if start_s <= row["t_s"] < end_s], np.float64)

    def steps_between(self, start_s: float, end_s: float = math.inf) -> List[Dict[str, Any]]:
        return [step for step in self.steps if start_s <= step["t_s"] < end_s]


def simulate(
    plant: Plant,
    governor: Optional[Governor],
    seconds: int,
    script: Optional[Mapping[int, Callable[[Plant], None]]] = None,
) -> Run:
    """Let a plant run, changed as ``script`` says (second -> what happens), with a governor that looks every second."""
    run = Run([], [], [])
    for second in range(seconds):
        if script and second in script:
            script[second](plant)
        plant.run(1.0)
        if governor is not None:
            step = governor.observe(plant.t_s, **plant.measure())
            if step is not None:
                plant.setting = step.setting
                run.steps.append(dict(step.event, t_s=plant.t_s))
            run.notes += [dict(note, t_s=plant.t_s) for note in governor.notes()]
        run.rows.append(
            {
                "t_s": plant.t_s,
                "power_w": plant.power_w(),
                "temp_c": plant.die_t,
                "fps": plant.fps(),
                "clock": plant.clock_step / CLOCK_STEPS,
                "rung": governor.rung if governor is not None else 0,
                "ambient_c": plant.ambient_c,
            }
        )
    return run


def change(**values: Any) -> Callable[[Plant], None]:
    """A script's entry: set these attributes."""

    def apply(plant: Plant) -> None:
        for name, value in values.items():
            assert hasattr(plant, name), name
            setattr(plant, name, value)

    return apply
