"""What a status says, checked: versions differ, and names come from outside. What does not fit is left out."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple

from edgegs.findings import one_line

_UNITS = {"fps": "FPS", "power": "W", "temp": "°C"}


def number(value: Any) -> Optional[float]:
    """A sensible number, else None."""
    known = isinstance(value, (int, float)) and not isinstance(value, bool) and -1e15 < value < 1e15
    return float(value) if known else None


def mapping(value: Any) -> Dict[str, Any]:
    return value if isinstance(value, dict) else {}


def figures(value: Any) -> Dict[str, float]:
    """The entries that are numbers."""
    found = {one_line(str(name))[:40]: number(one) for name, one in mapping(value).items()}
    return {name: one for name, one in found.items() if one is not None}


def stages(value: Any) -> List[Tuple[str, float, Optional[float]]]:
    """(stage, p50, p95) in the pipeline's order."""
    from edgegs.frame import STAGES  # NumPy comes with it, and the command line must start without

    found = {name: figures(one) for name, one in mapping(value).items()}
    order = [name for name in STAGES if name in found] + [name for name in found if name not in STAGES]
    return [(one_line(name)[:20], found[name]["p50"], found[name].get("p95")) for name in order if "p50" in found[name]]


def outputs(status: Dict[str, Any]) -> List[Dict[str, Any]]:
    listed = status.get("outputs")
    return [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []


def throttled(status: Dict[str, Any]) -> Optional[List[str]]:
    """The causes; None where nothing can tell."""
    causes = status.get("throttle")
    return [one_line(str(one))[:40] for one in causes] if isinstance(causes, list) else None


def given_up(status: Dict[str, Any]) -> str:
    """What the governor has given up, in words; "" where there is none."""
    governor = mapping(status.get("governor"))
    known = figures(governor)
    if not {"rung", "of"} <= set(known):
        return ""
    if known["rung"] == 0:
        return "nothing given up"
    parts = [f"{100 * known['scale']:.0f} % of the size"] if known.get("scale", 1) < 1 else []
    parts += [f"{known['n_splats']:,.0f} splats"] if "n_splats" in known else []
    parts += [f"SH degree {known['sh_degree']:.0f}"] if "sh_degree" in known else []
    parts += [f"at most {known['fps_cap']:g} FPS"] if "fps_cap" in known else []
    return "step {:.0f} of {:.0f}".format(known["rung"], known["of"]) + "".join(f", {part}" for part in parts)


def limits(status: Dict[str, Any]) -> List[Tuple[str, str, Optional[bool]]]:
    """(name, text, held) of what the governor is to hold; ``held`` None: not measured, so not known."""
    found = []
    for name, limit in mapping(mapping(status.get("governor")).get("limits")).items():
        limit, unit = mapping(limit), _UNITS.get(name, "")
        bound, value, state, held = number(limit.get("bound")), number(limit.get("value")), limit.get("state"), None
        if bound is None:
            continue
        text = "{} {:g} {}".format("at least" if name == "fps" else "at most", bound, unit).strip()
        if state == "present":
            held = limit.get("held") is not False
            text += ("" if value is None else f", now {value:.1f}") + ("" if held else ", NOT HELD")
        else:
            text += ", reading lost" if state == "lost" else ", not measured"
        found.append((one_line(str(name))[:20], text, held))
    return found
