"""A field campaign: what is measured, how often, in which order. The YAML file, its model, and its plan.

As strict as the configuration (edgegs/config): an unknown key is refused with its line and a suggestion.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import random
import re
from pathlib import Path as FilePath
from typing import Any, Dict, List, NamedTuple, Optional, Tuple, Type, TypeVar, Union

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, ValidationError, ValidationInfo, model_validator
from typing_extensions import Annotated, Literal, get_args

from edgegs.config.explain import explain
from edgegs.config.fields import Fps, Name, Path, Section, defaults, frozen_list, problem
from edgegs.config.masking import one_line
from edgegs.config.tree import Origin, Problem, Value, join, parse_yaml, plain
from edgegs.errors import ConfigError
from edgegs.files import check_path, read_regular
from edgegs.telemetry.readings import unique

#: Scenes that are made here, by the number of their splats.
MADE = ("dial", "room")
MAX_BYTES = 1 << 20
MAX_RUNS = 10_000
#: Readings of the sensors that are kept of a run: a day of them at the fastest rate would fill a small board's memory.
MAX_READINGS = 200_000
_SIZE = re.compile(r"([0-9]{1,4})[xX]([0-9]{1,4})", re.ASCII)


def _scene_path(value: str, info: ValidationInfo) -> str:
    if value in MADE:
        return value
    wrong = check_path(value)
    if wrong is not None:
        raise problem(*wrong)
    base = info.context.get("base_dir") if isinstance(info.context, dict) else None
    return value if base is None else os.path.normpath(os.path.join(base, value))


def _resolution(value: str) -> str:
    matched = _SIZE.fullmatch(value)
    if matched is None:
        raise problem("not of the form WIDTHxHEIGHT", "write one such as 640x480")
    if not all(16 <= int(side) <= 8192 for side in matched.groups()):
        raise problem("each side must be from 16 to 8192 pixels")
    return "{}x{}".format(*(int(side) for side in matched.groups()))


def _different(values: Tuple[Any, ...]) -> Tuple[Any, ...]:
    for i, value in enumerate(values):
        if value in values[:i]:
            raise problem(f"names {'null' if value is None else value} twice", "remove one", str(i))
    return values


T = TypeVar("T")
#: Lists without repetitions, of at least one item, and of any number.
Some = Annotated[
    Tuple[T, ...], BeforeValidator(frozen_list), Field(min_length=1, max_length=64), AfterValidator(_different)
]
Few = Annotated[Tuple[T, ...], BeforeValidator(frozen_list), Field(max_length=64), AfterValidator(_different)]
Count = Annotated[int, Field(ge=1, le=10_000_000)]
Counts = Some[Optional[Count]]
Span = Annotated[float, Field(ge=0, le=86400)]


class SceneChoice(Section):
    """A scene; a plain string in the file is its ``path``. ``splats`` stands before the campaign's."""

    path: Annotated[str, AfterValidator(_scene_path)]
    splats: Optional[Counts] = None

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return {"path": value} if isinstance(value, str) else value


def _known_source(value: str) -> str:
    from edgegs.telemetry.sources import SOURCES

    if value not in SOURCES:
        close = difflib.get_close_matches(value, SOURCES, 1)
        raise problem("must be one of " + ", ".join(SOURCES), f"did you mean {close[0]}?" if close else "")
    return value


class Sensing(Section):
    """Where the sensors are read. ``rail``: whose watts count; auto: the board's total, or the only rail there is."""

    source: Annotated[str, AfterValidator(_known_source)] = "auto"
    interval_s: Annotated[float, Field(ge=0.02, le=60)] = 1.0
    rail: str = "auto"
    sysfs_root: Path = "/sys"
    proc_root: Path = "/proc"


class Rules(Section):
    """Limits beyond which a run is invalid; see ``edgegs.bench.validity``."""

    min_measure_s: Span = 120.0
    min_frames: Annotated[int, Field(ge=1, le=10**7)] = 100
    min_samples: Annotated[int, Field(ge=2, le=10**6)] = 60
    min_idle_samples: Annotated[int, Field(ge=2, le=10**6)] = 30
    max_gap_periods: Annotated[float, Field(ge=1.5, le=100)] = 3.0
    max_temp_slope_c_per_min: Annotated[float, Field(gt=0, le=1000)] = 2.0
    max_temp_drift_c: Annotated[float, Field(gt=0, le=100)] = 3.0
    max_clock_change: Annotated[float, Field(ge=0, le=1)] = 0.01
    max_other_load: Annotated[float, Field(ge=0, le=1)] = 0.1


class Campaign(Section):
    """The whole file. ``fps_caps``: 0 is none. ``power_modes``: numbers of nvpmodel; none: the current mode only."""

    scenes: Some[SceneChoice]
    splats: Counts = (None,)
    resolutions: Some[Annotated[str, AfterValidator(_resolution)]]
    variants: Some[Name] = ("baseline", "auto")
    fps_caps: Some[Fps] = (0.0,)
    power_modes: Few[Annotated[int, Field(ge=0, le=63)]] = ()
    pin_clocks: bool = False
    backend: Literal["auto", "cuda", "host", "reference"] = "auto"
    threads: Annotated[int, Field(ge=0, le=1024)] = 0
    settle_s: Span = 10.0
    warmup_s: Span = 20.0
    warmup_max_s: Span = 180.0
    measure_s: Annotated[float, Field(ge=0.05, le=86400)] = 120.0
    repeats: Annotated[int, Field(ge=1, le=1000)] = 5
    idle_s: Span = 60.0
    idle_every_s: Annotated[float, Field(ge=1, le=10**6)] = 3600.0
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    telemetry: Sensing = Field(default_factory=defaults)
    rules: Rules = Field(default_factory=defaults)
    out: Path

    @model_validator(mode="after")
    def _can_be_valid(self) -> Campaign:
        """Refuse what would measure for an hour and find every run invalid."""
        for i, scene in enumerate(self.scenes):
            if scene.path in MADE and None in (scene.splats or self.splats):
                text = f"{scene.path} is made here and needs a number of splats"
                raise problem(text, "write splats: [25000, 100000]", f"scenes.{i}" if scene.splats else "splats")
        if self.warmup_max_s < self.warmup_s:
            raise problem(f"must be at least warmup_s, {self.warmup_s:g}", "", "warmup_max_s")
        if self.measure_s < self.rules.min_measure_s:
            text = f"every run would be invalid: rules.min_measure_s is {self.rules.min_measure_s:g}"
            raise problem(text, "measure longer, or lower that rule and say so with the figures", "measure_s")
        for key, least in (("measure_s", self.rules.min_samples), ("idle_s", self.rules.min_idle_samples)):
            n = getattr(self, key) / self.telemetry.interval_s
            if self.telemetry.source != "none" and n and n < least:
                rule = "min_samples" if key == "measure_s" else "min_idle_samples"
                text = f"gives {int(n)} readings, and rules.{rule} asks for {least}: all would be invalid"
                raise problem(text, "measure longer, or lower telemetry.interval_s", key)
        n = (self.warmup_max_s + self.measure_s) / self.telemetry.interval_s
        if n > MAX_READINGS:
            text = f"makes {n:,.0f} readings in a run, and {MAX_READINGS:,} are kept: all would be invalid"
            raise problem(text, "measure shorter, or raise telemetry.interval_s", "measure_s")
        n_runs = len(self.configurations()) * max(1, len(self.power_modes)) * self.repeats
        if n_runs > MAX_RUNS:
            raise problem(f"that makes {n_runs:,} runs, more than {MAX_RUNS:,}", "leave something out", "repeats")
        return self

    def configurations(self) -> List[Configuration]:
        """Every combination but the power mode, in the file's order; one that is asked for twice stands once."""
        sizes = [tuple(int(side) for side in one.split("x")) for one in self.resolutions]
        found = (
            Configuration(scene.path, splats, width, height, variant, fps_cap)
            for scene in self.scenes
            for splats in (scene.splats or self.splats)
            for width, height in sizes
            for variant in self.variants
            for fps_cap in self.fps_caps
        )
        return list(dict.fromkeys(found))

    def plan(self) -> List[Planned]:
        """All runs in their order: in each repeat every configuration once.

        The modes of a repeat come one after the other, in random order, and the configurations of a mode in random
        order: a switch of modes for each run would spend the hour on settling.
        """
        random_ = random.Random(self.seed)
        modes: List[Optional[int]] = list(self.power_modes) or [None]
        names = self._names()
        planned: List[Planned] = []
        for repeat in range(1, self.repeats + 1):
            random_.shuffle(modes)
            for mode in modes:
                configurations = self.configurations()
                random_.shuffle(configurations)
                for one in configurations:
                    planned.append(Planned(len(planned) + 1, repeat, mode, one, one.label(names, mode)))
        return planned

    def _names(self) -> Dict[str, str]:
        """Scene -> a short name of its own."""
        names: Dict[str, str] = {}
        for scene in self.scenes:
            word = re.sub(r"[^A-Za-z0-9._]+", "_", os.path.splitext(os.path.basename(scene.path))[0])
            names.setdefault(scene.path, unique(word or "scene", names.values()))
        return names

    def settings(self) -> Dict[str, Any]:
        """All that decides about the figures, with every default filled in; where they are put does not."""
        shown: Dict[str, Any] = self.model_dump(mode="json", exclude={"out"})
        return shown

    def sha256(self) -> str:
        """Hex digest of ``settings``."""
        text = json.dumps(self.settings(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode("utf-8")).hexdigest()

    @property
    def run_s(self) -> float:
        """Seconds that a run takes at least."""
        return self.settle_s + self.warmup_s + self.measure_s

    def lasts_s(self, runs_s: float, n_baselines: int) -> float:
        """Seconds of runs with their idle baselines: so many at first, and new ones when these are old."""
        idle_s = self.settle_s + self.idle_s if self.idle_s else 0.0
        return runs_s + idle_s * (n_baselines + runs_s // self.idle_every_s)

    @property
    def needs_helper(self) -> bool:
        """Whether power modes or clocks are to be changed, which only root may."""
        return bool(self.power_modes) or self.pin_clocks


class Configuration(NamedTuple):
    """What is drawn. ``splats``: None takes all of a file's. ``fps_cap``: 0 is none."""

    scene: str
    splats: Optional[int]
    width: int
    height: int
    variant: str
    fps_cap: float

    def label(self, names: Dict[str, str], power_mode: Optional[int]) -> str:
        """The configuration as one word."""
        mode = "current" if power_mode is None else f"mode{power_mode}"
        splats = "all" if self.splats is None else self.splats
        size = f"{self.width}x{self.height}"
        return f"{names[self.scene]}-{splats}-{size}-{self.variant}-{self.fps_cap:g}fps-{mode}"


class Planned(NamedTuple):
    """A run to be made. ``order``, ``repeat``: from 1."""

    order: int
    repeat: int
    power_mode: Optional[int]
    configuration: Configuration
    label: str

    @property
    def run_id(self) -> str:
        return f"{self.label}-r{self.repeat}"

    def params(self) -> Dict[str, Any]:
        """The parameters as they stand in the results."""
        return dict(self.configuration._asdict(), power_mode=self.power_mode)


def load_campaign(path: Union[str, os.PathLike[str]]) -> Campaign:
    """Read and check a campaign; its relative paths start at its folder.

    Raises:
        ConfigError: one line for every problem: ``file:line: key: problem (got value); suggestion``.
        InputError: the file is missing, no regular file or cannot be read. AccessError: no permission.
    """
    name = one_line(os.fspath(path))
    problems: List[Problem] = []
    tree = _read(path, Origin(name), problems)
    campaign: Optional[Campaign] = None
    if tree is not None:
        try:
            context = {"base_dir": os.path.dirname(os.path.abspath(path))}
            campaign = Campaign.model_validate(plain(tree), context=context)
        except ValidationError as error:
            problems += _explain(error, tree)
    if problems or campaign is None:
        ordered = sorted(problems, key=lambda one: one.origin.line)
        raise ConfigError("\n".join(dict.fromkeys(str(one) for one in ordered)))
    return campaign


def _read(path: Union[str, os.PathLike[str]], origin: Origin, problems: List[Problem]) -> Optional[Value]:
    raw = read_regular(FilePath(path), MAX_BYTES + 1, "campaign")
    if len(raw) > MAX_BYTES:
        problems.append(Problem(origin, "", "the file is larger than 1 MiB", None, "is this a campaign?"))
        return None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        words = f"byte 0x{raw[error.start]:02x} is not UTF-8"
        problems.append(Problem(origin.at(line), "", words, None, "save the file as UTF-8"))
        return None
    tree = parse_yaml(text, origin, problems)
    if tree is None or tree.bad:
        return None
    if not isinstance(tree.data, dict):
        words = "the file is empty" if tree.data is None else "the file must be a mapping of keys"
        problems.append(Problem(tree.origin, "", words, None, "start from configs/field.yaml"))
        return None
    return tree


def _explain(error: ValidationError, tree: Value) -> List[Problem]:
    """As ``edgegs.config.explain.explain``, with suggestions from the campaign's own keys."""
    unknown: List[Any] = []
    others: List[Any] = []
    for one in error.errors(include_url=False, include_input=False):
        (unknown if one["type"] == "extra_forbidden" else others).append(one)
    problems = explain(others, tree)
    for one in unknown:
        value: Any = tree
        for part in one["loc"]:
            above, value = value, value.data[part]
        dotted = ""
        for part in one["loc"]:
            dotted = join(dotted, part)
        at = value.key_origin or above.origin
        got = value.shown(str(one["loc"][-1]))
        problems.append(Problem(at, dotted, "unknown key", got, _did_you_mean(one["loc"])))
    return problems


def _did_you_mean(loc: Tuple[Union[int, str], ...]) -> str:
    model: Type[BaseModel] = Campaign
    for part in loc[:-1]:
        if isinstance(part, str):
            model = _model_in(model.model_fields[part].annotation)
    word, known = str(loc[-1]).lower().replace("-", "_"), list(model.model_fields)
    close = difflib.get_close_matches(word, known, 1)
    if close:
        return f"did you mean {close[0]}?"
    for section in ("telemetry", "rules"):
        fields = list(_model_in(Campaign.model_fields[section].annotation).model_fields)
        close = difflib.get_close_matches(word, fields, 1, 0.8)
        if close:
            return f"did you mean {section}.{close[0]}?"
    return "known here: " + ", ".join(known)


def _model_in(annotation: Any) -> Type[BaseModel]:
    """The model that a field holds, alone or in a list."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(_model_in(one) for one in get_args(annotation) if one is not Ellipsis)
