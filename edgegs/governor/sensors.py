"""Which of a board's readings a limit is about."""

from __future__ import annotations

import re
from typing import Any, Mapping, Optional

#: Warm parts that drawing less does not cool.
_NOT_OURS = re.compile(r"iwl|wifi|wlan|ath\d|mt7|nvme|battery|charg|acpitz|pch|pmic", re.IGNORECASE)


def board_power(window: Mapping[str, Any]) -> Optional[float]:
    """Watts of the whole board over a window of telemetry; None where no rail is the total.

    Rails are never added up: some are parts of others, and what none of them sees would be missing.
    """
    power = (window.get("power_w") or {}).get(window.get("total_rail"))
    return None if power is None else power.get("w")


def hottest(temp_c: Mapping[str, float]) -> Optional[float]:
    """The highest temperature of what draws, degrees Celsius; of all sensors, where none is known to be that."""
    ours = [value for name, value in temp_c.items() if not _NOT_OURS.search(name)]
    return max(ours or temp_c.values(), default=None)
