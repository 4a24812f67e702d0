"""What ``edgegs info`` knows of a scene, ready for JSON, and what it advises."""

from __future__ import annotations

import shlex
from typing import Any, Dict, List, Optional

import numpy as np

from edgegs.bench.cost import CUDA_DEPTH
from edgegs.kernels.variants import DEFAULTS
from edgegs.pack import CHUNK, AnyScene, PackedScene, scene_bytes
from edgegs.room import renderer_bytes
from edgegs.scene import Scene
from edgegs.scene.checks import open_scene_file

Facts = Dict[str, Any]

#: Opacity below which a splat never changes an 8-bit picture.
MIN_ALPHA = 1 / 255
#: Percentiles of more values cost time and change nothing that is printed.
SAMPLE = 1 << 18
#: Multiprocessors of a GPU that is not named: the smallest board's; its share of the memory is some kilobytes.
_N_BLOCKS = 8

#: What is worth a word: shares of the splats, and lengths over the scene's robust radius.
NEVER_DRAWN_SHARE = 0.05
GIANT_SHARE = 0.001
COARSE_SIGMA = 0.1
FAR = 10.0
#: Of fewer splats, statistics say nothing.
FEW_SPLATS = 100


def describe(scene: AnyScene, width: int = 640, height: int = 480, frame: Optional[str] = None) -> Facts:
    """Everything that ``info`` knows of a scene. Lengths are in the scene's own unit.

    Args:
        width, height: of the picture that a renderer's buffers are counted for.
        frame: the axes that the file was read with, where the caller chose them.

    Raises:
        SceneError: a packed scene's checksums do not hold.
    """
    splats: Scene = scene.unpacked()
    center, radius = scene.bounds()
    low, high = scene.raw_bounds()
    largest = splats.scales.max(axis=1)
    choice = DEFAULTS["cuda"]
    facts: Facts = {
        "path": scene.path,
        "format": scene.format,
        "frame": frame,
        "n_splats": scene.n_splats,
        "n_rows": scene.n_rows,
        "sh_degree": scene.sh_degree,
        "vertical_axis": scene.vertical_axis,
        "antialiased": scene.antialiased,
        "bounds": {
            "center": _floats(center),
            "radius": float(radius),
            "low": _floats(low),
            "high": _floats(high),
        },
        "opacity": _quantiles(splats.opacities),
        "scale": _quantiles(largest),
        "flatness": _quantiles(splats.scales.min(axis=1) / largest),
        "n_never_drawn": int((splats.opacities < MIN_ALPHA).sum()),
        "n_giant": int((largest > radius).sum()),
        "dropped": scene.dropped,
        "device_bytes": scene_bytes(scene, "fp32"),
        "packed_bytes": scene_bytes(scene, "packed"),
        "renderer": {
            "variant": choice.name,
            "width": width,
            "height": height,
            "bytes": renderer_bytes(scene.n_splats, scene.sh_degree, choice, width, height, _N_BLOCKS, CUDA_DEPTH),
        },
        "sha256": scene.sha256,
        "warnings": scene.warnings,
    }
    if isinstance(scene, PackedScene):
        facts["pack"] = _pack(scene)
    return facts


def _pack(scene: PackedScene) -> Facts:
    """What a packed file holds beside the splats, once its checksums are found to hold."""
    from edgegs.scene.egs import read_info, verify

    with open_scene_file(scene.path) as file:
        header = verify(file, scene.path)
        info = read_info(file, scene.path)
    return {
        "is_scored": scene.is_scored,
        "levels": list(scene.levels),
        "n_chunks": -(-scene.n_splats // CHUNK),
        "half_scale": scene.half_scale,
        "sections": {name: section.n_bytes for name, section in header.sections.items()},
        "checksums": "verified",
        "source_format": info.about.format,
        "source_sha256": header.source_sha256,
        "about": info.about.about,
    }


def _floats(values: np.ndarray) -> List[float]:
    return [float(value) for value in values]


def _quantiles(values: np.ndarray) -> Dict[str, float]:
    """Least and largest exactly, the others of a sample where there are many."""
    sample = values[:: max(1, -(-len(values) // SAMPLE))].astype(np.float64)
    p5, median, p95 = _floats(np.percentile(sample, (5, 50, 95)))
    return {"min": float(values.min()), "p5": p5, "median": median, "p95": p95, "max": float(values.max())}


def advise(facts: Facts) -> List[str]:
    """What is worth knowing of a scene and its cost, each with what to do about it; empty where all is well."""
    return [*_of_cost(facts), *_of_splats(facts), *_of_file(facts)]


def _of_splats(facts: Facts) -> List[str]:
    n, bounds, found = facts["n_splats"], facts["bounds"], []
    if n >= FEW_SPLATS and facts["n_never_drawn"] >= NEVER_DRAWN_SHARE * n:
        share = 100 * facts["n_never_drawn"] / n
        found.append(
            f"{share:.0f} % of the splats are never drawn (opacity under 1/255): a budget drops them first"
            + ("" if "pack" in facts else f", {_packing(facts, n - facts['n_never_drawn'])}")
        )
    if facts["n_giant"] and (n < FEW_SPLATS or facts["n_giant"] >= GIANT_SHARE * n):
        found.append(
            f"{facts['n_giant']:,} splats are larger than the whole scene: each covers most of the picture and slows "
            "every frame; cut them off in an editor (SuperSplat) if they are no sky"
        )
    if n >= FEW_SPLATS and facts["scale"]["median"] > COARSE_SIGMA * bounds["radius"]:
        found.append(
            "half of the splats have a sigma over a tenth of the scene's radius: look at a picture; if it is a fog, "
            "the scales were written without the logarithm, or this is not 3DGS"
        )
    reach = max(
        max(abs(end - middle) for end, middle in zip(bounds[name], bounds["center"])) for name in ("low", "high")
    )
    if n >= FEW_SPLATS and reach > FAR * bounds["radius"]:
        found.append(
            f"the farthest splat is {reach / bounds['radius']:,.0f} radii from the centre: sky, or floaters to crop in "
            "an editor; the default camera path goes by the radius and is not led astray"
        )
    return found


def _of_file(facts: Facts) -> List[str]:
    found = []
    if facts["format"].startswith("spz") and facts["frame"] is None:
        found.append(
            "SPZ files do not say how their axes point: read as x right, y up, z back, as the format asks; if the "
            "scene stands on its head, `--frame rdf`"
        )
    if facts["antialiased"]:
        found.append(
            "trained with antialiasing (mip-splatting), and drawn so; a viewer that ignores the flag shows it bolder"
        )
    if "pack" in facts and not facts["pack"]["is_scored"]:
        found.append(
            "packed without scores, so no budget can be taken of it: pack its source again, with scores, to have one"
        )
    return found


def _of_cost(facts: Facts) -> List[str]:
    cost = facts.get("cost")
    if not cost:
        return []
    memory, n = cost["memory"], facts["n_splats"]
    found = []
    fitting = n if memory["fits"] else memory["max_splats"]
    if not memory["fits"]:
        way = f"{_packing(facts, fitting)} fits" if fitting else "the picture alone does not fit; make it smaller"
        found.append(f"too large for the memory of {cost['title']}: {way}")
    elif not memory["fits_while_loading"]:
        found.append(f"fits {cost['title']}, but not while it is loaded there: {_packing(facts)}, on a larger machine")
    if "predicted_fps" in cost and cost["predicted_fps"] < cost["target_fps"]:
        enough = min(fitting, _round_down(cost["predicted_max_splats"]))
        target = f"under {cost['target_fps']:g} FPS on {cost['title']} (predicted)"
        if enough >= FEW_SPLATS:
            found.append(f"{target}: {_packing(facts, enough)} is predicted to reach it")
        else:
            found.append(f"{target}, whatever the number of splats: make the picture smaller")
    return found


def _packing(facts: Facts, budget: Optional[int] = None) -> str:
    """The command that packs the scene. Of a packed file its budget is a setting, not another file."""
    if "pack" in facts and budget is not None and facts["pack"]["is_scored"]:
        return f"`scene.max_gaussians: {budget}`"
    command = f"edgegs pack {shlex.quote(facts['path'])} -o X.egs"
    return f"`{command}`" if budget is None else f"`{command} --budget {budget}`"


def _round_down(n: int) -> int:
    """To two digits: what is only predicted has no more."""
    unit = 10 ** max(0, len(str(n)) - 2)
    return n // unit * unit
