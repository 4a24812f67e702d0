"""Results of made-up sweeps, as docs/field.md describes them, for the tests of the field report."""

from __future__ import annotations

import random

from edgegs.telemetry.records import encode

STAGES = ("project", "duplicate", "sort", "ranges", "rasterize")
#: How the stages share a frame with few and with many splats.
SHARES = {"few": (0.05, 0.05, 0.15, 0.02, 0.73), "many": (0.12, 0.13, 0.38, 0.02, 0.35)}


class SweepMaker:
    """Writes a campaign line by line.

    Args:
        path: of the file. board: its name. seed: of the noise. speed, watts: factors of the made-up board.
        noise: relative spread of a run's figures.
    """

    def __init__(self, path, board="NVIDIA Jetson Nano Developer Kit", seed=1, speed=1.0, watts=1.0, noise=0.01):
        self.path, self.seq, self.now = path, 0, 1000.0
        self.random = random.Random(seed)
        self.speed, self.watts, self.noise = speed, watts, noise
        self.boot_id = f"boot-{seed}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
        self.add("campaign", name="field.yaml", settings={"repeats": 5, "<b>": "&"}, n_runs=None, n_configurations=2)
        self.add(
            "session", session=1, version="0.7", commit="abc", backend="cuda", device="NVIDIA Tegra X1",
            image="sm_53", image_sha256="e3b0", board=board, l4t="32.7.1", power_mode="0 (MAXN)", interval_s=1.0,
            clk_limits_hz={"gpu": [76800000, 921600000]}, pinned=[], rail="POM_5V_IN",
            rail_note="the board's 5 V input: leaves out the supply's own loss",
        )  # fmt: skip

    def add(self, kind, **fields):
        record = {"schema": 1, "kind": "sweep", "type": kind, "seq": self.seq, "campaign": "0" * 64}
        record.update(boot_id=self.boot_id, t_mono_ns=int(self.now * 1e9), clock_synced=True)
        record["t_wall"] = f"2025-07-01T{int(self.now / 3600) % 24:02d}:{int(self.now / 60) % 60:02d}:00.000Z"
        self.seq += 1
        with self.path.open("ab") as file:
            file.write(encode(dict(record, **fields)))

    def noisy(self, value):
        return value * self.random.gauss(1.0, self.noise)

    def run(self, splats=100_000, width=640, height=480, variant="baseline", repeat=1, attempt=1, seconds=120.0,
            power=True, invalid=None, rate=None, throttle=None, **fields):  # fmt: skip
        """One run; ``invalid``: (code, text). ``rate``: FPS, else made up. ``fields`` replace the record's."""
        self.now += seconds + 30
        gain = {"baseline": 1.0, "best": 3.0}.get(variant, 1.0)
        area = width * height / (640 * 480)
        fps = self.noisy(self.speed * gain * 2.4e6 / (splats + 150_000) / area**0.7) if rate is None else rate
        watts = self.noisy(self.watts * (4.0 + 1.6 * min(1.0, splats / 400_000) + (0.6 if gain > 1 else 0)))
        few, many = (SHARES[kind] for kind in ("few", "many"))
        part = min(1.0, splats / 500_000)
        frame = 1000.0 / fps
        stage_ms = {}
        for stage, a, b in zip(STAGES, few, many):
            mean = frame * 0.97 * (a * (1 - part) + b * part)
            stage_ms[stage] = {"p50": mean, "p95": 1.1 * mean, "p99": 1.2 * mean, "max": 1.3 * mean, "mean": mean}
        n = round(seconds) + 20
        times = [second - 20.0 for second in range(n)]
        temps = [50.0 + 6.0 * (1 - 0.97 ** (second + 21)) + self.random.random() / 2 for second in range(n)]
        frames = round(fps * seconds)
        params = {"scene": "dial", "splats": splats, "width": width, "height": height, "variant": variant}
        params.update(fps_cap=0, power_mode=None)
        name = f"dial-{splats}-{width}x{height}-{variant}-0fps-current-r{repeat}"
        record = {
            "run_id": name, "params": params, "repeat": repeat, "attempt": attempt, "order": self.seq, "session": 1,
            "scene": {"path": "dial", "format": "synth", "sha256": "ab" * 32, "n_splats": splats, "sh_degree": 3},
            "choices": {"storage": "fp32"}, "board_power_mode": "0 (MAXN)", "valid": invalid is None,
            "reasons": [] if invalid is None else [{"code": invalid[0], "text": invalid[1]}], "notes": [],
            "settle_s": 20.0, "warmup_s": 20.0, "window_s": seconds, "frames": frames, "fps": fps,
            "frame_ms": {"p50": frame, "p95": frame * 1.1, "p99": frame * 1.2, "max": frame * 1.4, "mean": frame},
            "interval_ms": {"p50": frame, "p95": frame * 1.1, "p99": frame * 1.2, "max": frame * 2, "mean": frame},
            "stage_ms": stage_ms, "in_flight": 1, "n_visible": splats, "n_instances": splats * 3, "samples": n - 20,
            "power": {}, "power_missing": "no power monitor was found", "energy": None,
            "temp_c": {"GPU-therm": {"start": 50, "end": 56, "min": 50, "max": max(temps), "mean": 55}},
            "clk_hz": {"gpu": {"min": 921600000, "max": 921600000, "mean": 921600000}},
            "throttle": {} if throttle is None else {"gpu_clock": 9},
            "series": {
                "t_s": times, "temp_c": {"GPU-therm": temps, "CPU-therm": [one + 2 for one in temps]},
                "clk_hz": {"gpu": [614400000 if throttle and 60 <= t < 69 else 921600000 for t in times]},
                "throttle": [["gpu_clock"] if throttle and 60 <= t < 69 else [] for t in times],
                "fps": [fps] * n, "power_w": {},
            },
        }  # fmt: skip
        if power:
            del record["power_missing"]
            joules = watts * seconds
            figures = {"mean_w": watts, "sd_w": 0.1, "min_w": watts, "max_w": watts, "n": n, "energy_j": joules}
            record["power"] = {"POM_5V_IN": dict(figures, method="ina3221_iio")}
            record["energy"] = {
                "rail": "POM_5V_IN", "mean_w": watts, "energy_j": joules, "j_per_frame": joules / frames,
                "idle_id": "idle-1", "idle_w": 1.9, "net_w": watts - 1.9,
                "net_j_per_frame": (watts - 1.9) * seconds / frames,
            }  # fmt: skip
            record["series"]["power_w"] = {"POM_5V_IN": [self.noisy(watts) for _ in times]}
        self.add("run", **dict(record, **fields))
        return name

    def idle(self):
        self.now += 90
        n = 60
        series = {"t_s": [float(t) for t in range(n)], "power_w": {"POM_5V_IN": [1.9] * n},
                  "temp_c": {"GPU-therm": [45.0] * n}, "clk_hz": {}, "throttle": [[]] * n}  # fmt: skip
        self.add(
            "idle", idle_id="idle-1", session=1, params={"scene": "dial", "splats": 100_000, "power_mode": None},
            window_s=60.0, samples=n, energy={"rail": "POM_5V_IN", "mean_w": 1.9, "energy_j": 114.0}, valid=True,
            reasons=[], notes=[], temp_c={}, clk_hz={}, throttle={}, series=series,
        )  # fmt: skip

    def end(self, reason="complete"):
        self.add("end", reason=reason, session=1, done=1, of=1, invalid=0)


def campaign(path, splats=(25_000, 100_000, 500_000), sizes=((640, 480), (1280, 720)), variants=("baseline", "best"),
             repeats=5, **maker):  # fmt: skip
    """A whole campaign in random order with one throttled run."""
    made = SweepMaker(path, **maker)
    made.idle()
    runs = [(n, size, variant, repeat) for n in splats for size in sizes for variant in variants
            for repeat in range(1, repeats + 1)]  # fmt: skip
    made.random.shuffle(runs)
    for number, (n, (width, height), variant, repeat) in enumerate(runs):
        bad = ("throttled", "throttled: gpu_clock in 9 of 120 readings; cool it better") if number == 3 else None
        made.run(n, width, height, variant, repeat, invalid=bad, throttle=bad)
    made.end()
    return made


def made(folder, *rates, best=(), **fields):
    """A campaign of `baseline` with a run for each of these rates, and of `best` with those."""
    one = SweepMaker(folder / "results.jsonl")
    for variant, values in (("baseline", rates), ("best", best)):
        for repeat, value in enumerate(values, 1):
            one.run(variant=variant, repeat=repeat, rate=value, **fields)
    one.end()
    return one
