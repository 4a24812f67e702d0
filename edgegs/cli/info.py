"""``edgegs info SCENE``: what a scene file holds, what was left out of it and why."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any, Dict, List

if TYPE_CHECKING:
    import numpy as np

    from edgegs.scene import Scene


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    parser = subparsers.add_parser("info", help="describe a scene file, and what is wrong with it")
    parser.add_argument("scene", metavar="SCENE", help="a 3DGS .ply file")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def main(args: argparse.Namespace) -> int:
    """Load, measure, print; raises SceneError, InputError, AccessError."""
    from edgegs.scene import load

    facts = describe(load(args.scene))
    print(json.dumps(facts) if args.json else _text(facts))
    return 0


def describe(scene: Scene) -> Dict[str, Any]:
    """Everything ``info`` prints, ready for JSON. Lengths are in the scene's own unit."""
    center, radius = scene.bounds()
    low, high = scene.raw_bounds()
    return {
        "path": scene.path,
        "format": scene.format,
        "n_splats": scene.n_splats,
        "n_rows": scene.n_rows,
        "sh_degree": scene.sh_degree,
        "vertical_axis": scene.vertical_axis,
        "bounds": {
            "center": _floats(center),
            "radius": float(radius),
            "low": _floats(low),
            "high": _floats(high),
        },
        "opacity": _quantiles(scene.opacities),
        "scale": _quantiles(scene.scales.max(axis=1)),
        "n_never_drawn": int((scene.opacities < 1 / 255).sum()),
        "n_giant": int(scene.giants().sum()),
        "dropped": scene.dropped,
        "device_bytes": scene.nbytes,
        "sha256": scene.sha256,
        "warnings": scene.warnings,
    }


def _floats(values: np.ndarray) -> List[float]:
    return [float(value) for value in values]


def _quantiles(values: np.ndarray) -> Dict[str, float]:
    import numpy as np

    names = ("min", "p5", "median", "p95", "max")
    return dict(zip(names, _floats(np.percentile(values.astype(np.float64), (0, 5, 50, 95, 100)))))


def _text(facts: Dict[str, Any]) -> str:
    bounds = facts["bounds"]
    lines = [
        ("scene", facts["path"]),
        ("format", f"{facts['format']}, SH degree {facts['sh_degree']}, {facts['vertical_axis']} vertical"),
        ("splats", f"{facts['n_splats']:,} of {facts['n_rows']:,} rows"),
        *(("left out", f"{count:,} {cause}") for cause, count in facts["dropped"].items()),
        ("centre", f"{_numbers(bounds['center'])}, radius {bounds['radius']:.4g} (90 % on each axis)"),
        ("extent", f"{_numbers(bounds['low'])} to {_numbers(bounds['high'])}"),
        ("opacity", _spread(facts["opacity"]) + f"; {facts['n_never_drawn']:,} under 1/255, never drawn"),
        ("sigma", _spread(facts["scale"]) + " (largest axis)"),
        ("giants", f"{facts['n_giant']:,} splats with a sigma over the radius"),
        ("memory", f"{facts['device_bytes'] / 1e6:,.1f} MB on the device as float32"),
        ("sha256", facts["sha256"]),
        *(("warning", text) for text in facts["warnings"]),
    ]
    return "\n".join(f"{name:<9}{value}" for name, value in lines)


def _numbers(values: List[float]) -> str:
    return "(" + ", ".join(f"{value:.4g}" for value in values) + ")"


def _spread(quantiles: Dict[str, float]) -> str:
    return "{min:.3g} … {p5:.3g} … median {median:.3g} … {p95:.3g} … {max:.3g}".format(**quantiles)
