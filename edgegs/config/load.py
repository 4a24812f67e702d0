"""File, environment and command line -> one checked configuration, or all that is wrong with them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Type, TypeVar, Union

from pydantic import BaseModel, ValidationError

from edgegs.config.explain import explain, problem_at
from edgegs.config.masking import one_line
from edgegs.config.model import (
    Camera,
    Config,
    Governor,
    Http,
    Output,
    Render,
    Telemetry,
    check_camera,
    check_governor,
    check_outputs,
)
from edgegs.config.tree import Origin, Problem, Value, parse_yaml, plain
from edgegs.errors import ConfigError
from edgegs.files import read_regular

MAX_BYTES = 1 << 20
MAX_REPORTED = 100
_Model = TypeVar("_Model", bound=BaseModel)
ENV_PREFIX = "EDGEGS__"


def load_config(
    path: Union[str, os.PathLike[str]],
    overrides: Sequence[str] = (),
    environ: Mapping[str, str] = os.environ,
) -> Config:
    """Read and check a configuration.

    Args:
        path: the YAML file. Relative paths in the configuration start at its folder, also those that come
            from the other two sources.
        overrides: ``key=value`` with a dotted key (``camera.width=800``, ``outputs.0.required=true``) and a
            value in YAML (``camera.path={kind: orbit}``). A later one wins.
        environ: ``EDGEGS__SECTION__KEY=value`` in it overrides the file, and is overridden by ``overrides``.

    Raises:
        ConfigError: one line for every problem: ``file:line: key: problem (got value); suggestion``.
        InputError: the file is missing, no regular file or cannot be read. AccessError: no permission.
    """
    name = one_line(os.fspath(path))
    problems: List[Problem] = []
    tree = _read_file(path, name, problems)
    for variable in sorted(environ):
        if variable.startswith(ENV_PREFIX):
            _apply_variable(tree, variable, environ[variable], problems)
    for override in overrides:
        _apply_set(tree, override, problems)
    base_dir = os.path.dirname(os.path.abspath(path))
    config = None
    if not tree.bad:
        config = _validate(tree, base_dir, problems)
    if problems or config is None:
        raise ConfigError(_report(problems))
    return config


def _read_file(path: Union[str, os.PathLike[str]], name: str, problems: List[Problem]) -> Value:
    """The file's tree; a bad, empty one after a problem that leaves nothing to read."""
    origin = Origin(name)
    raw = read_regular(Path(path), MAX_BYTES + 1, "configuration")
    text: Optional[str] = None
    if len(raw) > MAX_BYTES:
        problems.append(Problem(origin, "", "the file is larger than 1 MiB", None, "is this a configuration?"))
    elif raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        problems.append(Problem(origin, "", "the file is in UTF-16", None, "save it as UTF-8"))
    else:
        try:
            text = raw.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = raw.count(b"\n", 0, error.start) + 1
            words = f"byte 0x{raw[error.start]:02x} is not UTF-8"
            problems.append(Problem(origin.at(line), "", words, None, "save the file as UTF-8"))
    tree = parse_yaml(text, origin, problems) if text is not None else None
    if tree is not None and not tree.bad:
        if isinstance(tree.data, dict):
            return tree
        words, got = "the file is empty", None
        if tree.data is not None:
            words, got = "the file must be a mapping of keys", tree.shown()
        problems.append(Problem(tree.origin, "", words, got, "start with scene: {path: SCENE.ply}"))
    return Value({}, origin, bad=True)


def _apply_variable(tree: Value, variable: str, text: str, problems: List[Problem]) -> None:
    origin = Origin("environment variable " + one_line(variable), 1)
    parts = variable[len(ENV_PREFIX) :].split("__")
    if variable != variable.upper() or not all(parts):
        words = "not of the form EDGEGS__SECTION__KEY, in capitals"
        problems.append(Problem(origin, "", words, None, "rename or unset it"))
        return
    _apply(tree, [part.lower() for part in parts], text, origin, problems)


def _apply_set(tree: Value, override: str, problems: List[Problem]) -> None:
    key, equals, text = override.partition("=")
    key = key.strip()
    parts = key.split(".")
    origin = Origin("--set " + one_line(key)[:100], 2)
    if not equals or not all(parts):
        problems.append(Problem(origin, "", "not of the form key=value", None, "write --set camera.width=640"))
        return
    _apply(tree, parts, text, origin, problems)


def _apply(tree: Value, parts: List[str], text: str, origin: Origin, problems: List[Problem]) -> None:
    """Put the value ``text`` at the dotted key ``parts``, making the mappings on the way to it."""
    dotted = ".".join(parts)
    value = parse_yaml(text, origin, problems, dotted)
    if value is None:
        value = Value(None, origin, bad=True)
    value.key_origin = origin
    target = tree
    for i, part in enumerate(parts):
        is_last = i == len(parts) - 1
        if target.bad and target is not tree:
            return
        if isinstance(target.data, list):
            if not part.isdigit() or int(part) >= len(target.data):
                words = "{} is a list of {}".format(".".join(parts[:i]), len(target.data))
                remedy = "number its items from 0"
                problems.append(Problem(origin, dotted, words, None, remedy))
                return
            if is_last:
                target.data[int(part)] = value
            target = target.data[int(part)]
        elif isinstance(target.data, dict):
            if is_last:
                target.data[part] = value
            elif part not in target.data or target.data[part].data is None:
                target.data[part] = Value({}, origin, key_origin=origin)
            target = target.data[part]
        else:
            words = "{} is {}, which has no keys".format(".".join(parts[:i]), target.shown(parts[i - 1]))
            problems.append(Problem(origin, dotted, words, None, "override it as a whole"))
            return


def _validate(tree: Value, base_dir: str, problems: List[Problem]) -> Optional[Config]:
    data = plain(tree)
    context = {"base_dir": base_dir}
    config: Optional[Config] = None
    try:
        config = Config.model_validate(data, context=context)
    except ValidationError as error:
        problems.extend(explain(error.errors(include_url=False, include_input=False), tree))
    # Rules across sections hold for what is right by itself, whatever else is wrong.
    http = _valid(Http, data.get("http", {}), context)
    items = data.get("outputs")
    outputs = [_valid(Output, item, context) for item in items] if isinstance(items, list) else []
    camera = _valid(Camera, data.get("camera"), context)
    governor = _valid(Governor, data.get("governor", {}), context)
    render = _valid(Render, data.get("render", {}), context)
    telemetry = _valid(Telemetry, data.get("telemetry", {}), context)
    breaches = check_outputs(outputs, http) + check_camera(camera, outputs)
    breaches += check_governor(governor, render, telemetry)
    for dotted, text, suggestion in breaches:
        key: Tuple[Union[str, int], ...] = tuple(int(p) if p.isdigit() else p for p in dotted.split("."))
        found = problem_at(tree, key, text, suggestion)
        if found is not None:
            problems.append(found)
    return config


def _valid(model: Type[_Model], data: Any, context: Dict[str, str]) -> Optional[_Model]:
    try:
        return model.model_validate(data, context=context)
    except ValidationError:
        return None


def _report(problems: List[Problem]) -> str:
    ordered = sorted(problems, key=lambda problem: (problem.origin.rank, problem.origin.line))
    lines: Dict[str, None] = {str(problem): None for problem in ordered}  # in order, each once
    shown = list(lines)[:MAX_REPORTED]
    if len(lines) > len(shown):
        shown.append(f"… and {len(lines) - len(shown)} more problems")
    return "\n".join(shown)
