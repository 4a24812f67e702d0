"""Which board this is, which software runs it, and whether its clocks are pinned."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Dict, List, Optional

#: First line: "# R32 (release), REVISION: 7.1, GCID: …".
_L4T = re.compile(r"R(\d+)\s*\(release\),\s*REVISION:\s*([\d.]+)")

_POWER_MODE = re.compile(r"<\s*POWER_MODEL\s+ID=(\d+)\s+NAME=(\S+)\s*>")


@dataclass(frozen=True)
class Board:
    """What is known about the machine; None where it does not say.

    Attributes:
        model: the device tree's model, or vendor and product of a PC.
        compatible: the device tree's compatible strings, most specific first.
        l4t: release of Jetson Linux, as "32.7.1".
        power_mode: nvpmodel's mode, as "0 (MAXN)".
        driver: version of the NVIDIA kernel module.
    """

    model: Optional[str] = None
    compatible: Optional[List[str]] = None
    l4t: Optional[str] = None
    power_mode: Optional[str] = None
    driver: Optional[str] = None

    @property
    def is_tegra(self) -> bool:
        return any(name.startswith("nvidia,tegra") for name in self.compatible or [])

    def facts(self) -> Dict[str, object]:
        """What is known, for a record."""
        names = ("model", "compatible", "l4t", "power_mode", "driver")
        known = {"board" if name == "model" else name: getattr(self, name) for name in names}
        return {name: value for name, value in known.items() if value}


def identify(
    sysfs_root: str = "/sys",
    nv_tegra_release: str = "/etc/nv_tegra_release",
    nvpmodel_status: str = "/var/lib/nvpmodel/status",
    nvpmodel_conf: str = "/etc/nvpmodel.conf",
) -> Board:
    """Read the board's identity; whatever is missing or unreadable is None. Never raises.

    ``firmware/devicetree/base`` below the sysfs root is what ``/proc/device-tree`` points to.
    """
    tree = os.path.join(sysfs_root, "firmware", "devicetree", "base")
    model = _text(os.path.join(tree, "model")).strip("\0\n ")
    compatible = [name for name in _text(os.path.join(tree, "compatible")).split("\0") if name.strip()]
    if not model:
        dmi = os.path.join(sysfs_root, "class", "dmi", "id")
        parts = (_text(os.path.join(dmi, name)).strip() for name in ("sys_vendor", "product_name"))
        model = " ".join(part for part in parts if part)
    release = _L4T.search(_text(nv_tegra_release))
    return Board(
        model=model or None,
        compatible=compatible or None,
        l4t=".".join(release.groups()) if release else None,
        power_mode=_power_mode(_text(nvpmodel_status), _text(nvpmodel_conf)),
        driver=_text(os.path.join(sysfs_root, "module", "nvidia", "version")).strip() or None,
    )


def _power_mode(status: str, configuration: str) -> Optional[str]:
    matched = re.search(r"pmode:(\d+)", status)
    if not matched:
        return None
    number = int(matched.group(1))
    names = {int(found): name for found, name in _POWER_MODE.findall(configuration)}
    return f"{number} ({names[number]})" if number in names else str(number)


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(65536)
    except OSError:
        return ""
