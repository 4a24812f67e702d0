"""The meta.json of a SOG scene, v1 and v2: read strictly, every number bounded before anybody uses it."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple

import numpy as np

from edgegs.errors import SceneError

#: Bytes of a meta.json; real ones have 16 to 25 KB.
MAX_META_BYTES = 1 << 20
#: Centroids that 16 bits of label can name.
MAX_PALETTE = 1 << 16
#: Centroids in a row of their plane.
PALETTE_COLUMNS = 64
MODELS = ("default", "antialiased", "2dgs")

_MAX_INT = 1 << 53  # beyond this, what wrote the number did not know it exactly
_OPACITY_MARGIN = 1e-6  # alpha 0 and 255 stand for "almost": their logits stay finite
_DEVICE = re.compile(r"(CON|PRN|AUX|NUL|CONIN\$|CONOUT\$|CLOCK\$|COM[0-9]|LPT[0-9])", re.IGNORECASE)
_FORBIDDEN = re.compile('[\x00-\x1f\x7f-\x9f\ud800-\udfff/\\\\:*?"<>|]')


@dataclass(frozen=True)
class SogMeta:
    """What meta.json says. Both versions look up a byte in a table; only the tables are made differently.

    Attributes:
        version: 1 or 2.
        count: splats, at least 1.
        low, high: (3,) float64 ends of the range of the positions' signed logarithm.
        means: names of the planes with the low and the high bytes.
        scales, quats, sh0: names of their planes.
        centroids, labels: names of the planes of the higher SH bands; empty without them.
        bands: SH degree; None: the width of the centroids' plane says it (v1).
        palette: centroids there are; None: as many as the plane holds (v1).
        scale_table: (256, 3) float32 ln sigma of a byte, by axis.
        color_table: (256, 3) float32 f_dc of a byte, by channel.
        logit_table: (256,) float32 logit of opacity of a byte.
        sh_table: (256,) float32 SH coefficient of a byte.
        model: how the scene was trained, one of MODELS or whatever was written there.
        warnings: one sentence each.
    """

    version: int
    count: int
    low: np.ndarray
    high: np.ndarray
    means: Tuple[str, str]
    scales: str
    quats: str
    sh0: str
    centroids: str
    labels: str
    bands: Optional[int]
    palette: Optional[int]
    scale_table: np.ndarray
    color_table: np.ndarray
    logit_table: np.ndarray
    sh_table: np.ndarray
    model: str
    warnings: Tuple[str, ...]


def parse_json(data: bytes, where: str) -> Dict[str, Any]:
    """The object in ``data``; ``where`` (the file) begins the message of a SceneError."""
    try:
        found = json.loads(data.decode("utf-8-sig"), parse_int=_int, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        what = "is nested too deeply" if isinstance(error, RecursionError) else f"is no valid JSON ({error})"
        raise SceneError(f"{where}: {what}; is the copy or download complete?") from None
    if not isinstance(found, dict):
        raise SceneError(f"{where}: holds no JSON object; not a SOG scene")
    return found


def _int(digits: str) -> float:
    """An int; a float where no count is that large: Python reads long ones in quadratic time."""
    return int(digits) if len(digits) < 20 else float(digits)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def parse_meta(meta: Dict[str, Any], where: str) -> SogMeta:
    """Check a meta.json; raises SceneError that begins with ``where`` and names the field."""
    fields = Fields(meta, where)
    if "means" not in meta:
        raise SceneError(f"{where}: lacks 'means'; not the meta.json of a SOG scene")
    version = fields.whole("version", low=1) if "version" in meta else 1
    if version not in (1, 2) or (version == 1 and "version" in meta):
        raise SceneError(
            f"{where}: version {version}; edgegs reads SOG 2, and 1 (which has no version key). Convert it, "
            "e.g. with splat-transform"
        )
    means, scales, quats, sh0 = (fields.part(name) for name in ("means", "scales", "quats", "sh0"))
    sh_n = fields.part("shN") if meta.get("shN") is not None else None
    warnings: List[str] = []
    bands: Optional[int] = 0
    palette: Optional[int] = 0
    sh_table = np.zeros(256, np.float32)
    if version == 1:
        count = _v1_count(means)
        scale_table = _ramp(scales.numbers("mins", 3), scales.numbers("maxs", 3))
        ramp = _ramp(sh0.numbers("mins", 4), sh0.numbers("maxs", 4))
        color_table, logit_table = np.ascontiguousarray(ramp[:, :3]), np.ascontiguousarray(ramp[:, 3])
        if sh_n is not None:
            bands = palette = None
            sh_table = _ramp([sh_n.number("mins")], [sh_n.number("maxs")])[:, 0]
    else:
        count = fields.whole("count")
        scale_table = np.repeat(scales.codebook(warnings)[:, None], 3, axis=1)
        color_table = np.repeat(sh0.codebook(warnings)[:, None], 3, axis=1)
        alphas = np.clip(np.arange(256) / 255, _OPACITY_MARGIN, 1 - _OPACITY_MARGIN)
        logit_table = np.log(alphas / (1 - alphas)).astype(np.float32)
        if sh_n is not None:
            bands = sh_n.whole("bands", 0, 3)
            if bands:
                palette = sh_n.whole("count", 1, MAX_PALETTE)
                sh_table = sh_n.codebook(warnings)
            else:
                sh_n = None
    low, high = means.files(2)
    centroids, labels = sh_n.files(2) if sh_n is not None else ("", "")
    return SogMeta(
        version, count, np.array(means.numbers("mins", 3)), np.array(means.numbers("maxs", 3)), (low, high),
        scales.files(1)[0], quats.files(1)[0], sh0.files(1)[0], centroids, labels, bands, palette,
        scale_table, color_table, logit_table, sh_table, fields.model(warnings), tuple(warnings),
    )  # fmt: skip


def _v1_count(means: Fields) -> int:
    shape = means.content.get("shape")
    if not isinstance(shape, list) or not 1 <= len(shape) <= 2:
        raise SceneError(
            f"{means.where}: no version, so it is SOG 1, whose {means.name}shape holds the count; "
            "it is missing or no such list"
        )
    return bounded(shape[0], f"{means.where}: {means.name}shape[0]", 0, _MAX_INT)


def _ramp(low: List[float], high: List[float]) -> np.ndarray:
    """(256, len(low)) float32: byte 0 is ``low``, 255 is ``high``."""
    start = np.array(low)
    with np.errstate(over="ignore", invalid="ignore"):  # beyond float32: the rows that use it are left out
        return (start + (np.array(high) - start) * (np.arange(256) / 255)[:, None]).astype(np.float32)


class Fields:
    """A JSON object whose members are fetched with their type checked; every failure is a SceneError."""

    def __init__(self, content: Dict[str, Any], where: str, name: str = "") -> None:
        """``name`` is the way to the object, with a dot at its end."""
        self.content, self.where, self.name = content, where, name

    def part(self, key: str) -> Fields:
        """The object under ``key``."""
        found = self.content.get(key)
        if not isinstance(found, dict):
            raise SceneError(f"{self.where}: {self.name}{key} is missing or no object; export the scene again")
        return Fields(found, self.where, f"{self.name}{key}.")

    def whole(self, key: str, low: int = 0, high: int = _MAX_INT) -> int:
        return bounded(self.content.get(key), f"{self.where}: {self.name}{key}", low, high)

    def number(self, key: str) -> float:
        return _finite(self.content.get(key), f"{self.where}: {self.name}{key}")

    def numbers(self, key: str, n: int) -> List[float]:
        """A list of n finite numbers."""
        found = self._list(key, n, "numbers")
        return [_finite(value, f"{self.where}: {self.name}{key}[{i}]") for i, value in enumerate(found)]

    def _list(self, key: str, n: int, kind: str) -> List[Any]:
        found = self.content.get(key)
        if not isinstance(found, list) or len(found) != n:
            has = f"{len(found)} entries" if isinstance(found, list) else "missing or no list"
            raise SceneError(f"{self.where}: {self.name}{key} must be {n} {kind}, and is {has}")
        return found

    def codebook(self, warnings: List[str]) -> np.ndarray:
        """(256,) float32. Exporters write null for what they could not compute.

        A first entry that is null continues the others' mean step downwards, as PlayCanvas's engine has it; any
        other becomes NaN, and the rows that use it are left out.
        """
        found = self._list("codebook", 256, "numbers")
        where = f"{self.where}: {self.name}codebook"
        values = np.array([np.nan if v is None else _finite(v, f"{where}[{i}]") for i, v in enumerate(found)])
        with np.errstate(over="ignore", invalid="ignore"):  # beyond float32: the rows that use it are left out
            if np.isnan(values[0]):
                values[0] = values[1] + (values[1] - values[255]) / 255
            n_nulls = int(np.count_nonzero(np.isnan(values)))
            if n_nulls:
                name = f"{self.name}codebook"
                warnings.append(f"{n_nulls} of the 256 entries of {name} are null: splats that use them are left out")
            return values.astype(np.float32)

    def files(self, n: int) -> List[str]:
        """n plain file names."""
        found = self._list("files", n, "file names" if n > 1 else "file name")
        return [plain_name(value, f"{self.where}: {self.name}files[{i}]") for i, value in enumerate(found)]

    def model(self, warnings: List[str]) -> str:
        """How the scene was trained: "default" where nothing is said."""
        found = self.content.get("model")
        if found is None:
            return MODELS[0]
        if not isinstance(found, str):
            raise SceneError(f"{self.where}: {self.name}model must be a text, not {clip(found)}")
        if found not in MODELS:
            warnings.append(f"trained as {clip(found)}, which edgegs does not know: drawn as an ordinary scene")
        elif found == "2dgs":
            warnings.append("trained as flat splats (2DGS): drawn as very thin ordinary ones")
        return found


def bounded(value: Any, where: str, low: int, high: int) -> int:
    """``value`` as an int between two bounds; 3.0 is as good as 3."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not low <= value <= high or value != int(value):
        limit = f"from {low} to {high:,}" if high < _MAX_INT else f"from {low} to 2^53"
        raise SceneError(f"{where} must be a whole number {limit}, not {clip(value)}")
    return int(value)


def _finite(value: Any, where: str) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
        raise SceneError(f"{where} must be a finite number, not {clip(value)}")
    return float(value)


def clip(value: Any) -> str:
    """A value from the file as messages show it."""
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    if value is None:
        return "missing or null"
    return ascii(value)[:40]


def plain_name(value: Any, where: str) -> str:
    """A name that can only mean a file beside meta.json, on any system: no folder and no device."""
    if not isinstance(value, str) or not value.strip():
        raise SceneError(f"{where} must be a file name, not {clip(value)}")
    stem = value.split(".")[0].rstrip(" ")
    is_plain = value.strip(" ") == value and value.strip(".") and not value.endswith(".") and len(value) <= 255
    if not is_plain or _FORBIDDEN.search(value) or _DEVICE.fullmatch(stem):
        raise SceneError(f"{where} must be the plain name of a file beside meta.json, not {clip(value)}")
    return value
