"""pydantic's errors -> problems in plain words, at their line, with a suggestion."""

from __future__ import annotations

import difflib
import inspect
import re
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple, Type, Union

from pydantic import BaseModel
from typing_extensions import get_args

from edgegs.config.model import Config
from edgegs.config.tree import Problem, Value, join
from edgegs.kernels.variants import VARIANTS

Key = Tuple[Union[str, int], ...]

MAX_ADVISED = 1000  # problems that are looked up in all the model's keys; the report shows fewer

#: What to write for a missing key.
_EXAMPLES = {
    "scene": "add scene: {path: SCENE.ply}",
    "camera": "add camera: {width: 640, height: 480}",
    "outputs": 'add outputs: ["mjpeg://127.0.0.1:8080"]',
    "scene.path": "add path: SCENE.ply below scene",
}
_KINDS = "orbit, fixed, keyframes, cameras_json, udp, mqtt, interactive"
_ADVICE = {
    "render.variant": "write auto, or one of {}".format(", ".join(VARIANTS)),
    "render.background": "colours are red, green, blue from 0 to 1, not to 255",
    "camera.path": f"write path: {{kind: orbit}}, or another of {_KINDS}",
    "outputs": 'write a list: outputs: ["mjpeg://127.0.0.1:8080"]',
}
_LIMITS = {
    "greater_than_equal": ("must be at least {}", "ge"),
    "greater_than": ("must be more than {}", "gt"),
    "less_than_equal": ("must be at most {}", "le"),
    "less_than": ("must be less than {}", "lt"),
}
_TYPES = {
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "string_unicode": "must be valid text",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "model_type": "must be a mapping",
    "model_attributes_type": "must be a mapping",
    "dict_type": "must be a mapping",
    "string_pattern_mismatch": "must be 1 to 64 letters, digits, '.', '_' or '-', the first no mark",
}


def explain(errors: Sequence[Any], tree: Value) -> List[Problem]:
    """What ``ValidationError.errors()`` says about ``tree``, less what is known to be bad already."""
    problems: List[Problem] = []
    for error in errors:
        problem = _explain_one(error, tree, advise=len(problems) < MAX_ADVISED)
        if problem is not None:
            problems.append(problem)
    return problems


def problem_at(tree: Value, key: Key, text: str, suggestion: str) -> Optional[Problem]:
    """A problem with the value at ``key``, or, where that is not written, with what stands above it."""
    walked, value, parent, bad = _find(key, tree)
    if bad:
        return None
    return _problem(walked, value, parent, text, suggestion)


def _explain_one(error: Any, tree: Value, advise: bool) -> Optional[Problem]:
    kind: str = error["type"]
    context: Dict[str, Any] = error.get("ctx") or {}
    loc: Key = tuple(error["loc"])
    if kind == "edgegs" and context["key"]:
        loc += tuple(int(part) if part.isdigit() else part for part in context["key"].split("."))
    elif kind in ("union_tag_invalid", "union_tag_not_found"):
        loc += ("kind",)
    key, value, parent, bad = _find(loc, tree)
    if kind == "extra_forbidden":  # a key is unknown whatever is wrong with its value
        bad = _find(loc[:-1], tree)[3]
    if bad:
        return None
    dotted = _dotted(key)
    leaf = str(key[-1]) if key else ""
    if kind == "edgegs":
        return _problem(key, value, parent, context["text"], context["suggestion"])
    if kind in ("missing", "union_tag_not_found"):
        example = _EXAMPLES.get(dotted, "add it")
        if kind == "union_tag_not_found":
            example = f"add kind: with one of {_KINDS}"
        return _problem(key, None, parent, "required key is missing", example)
    if kind == "extra_forbidden":
        at = value.key_origin if value is not None and value.key_origin is not None else parent.origin
        got = value.shown(leaf) if value is not None else None
        return Problem(at, dotted, "unknown key", got, _did_you_mean(key, tree) if advise else "")
    if value is not None and value.data is None and not context.get("expected"):
        remedy = "give it a value, or remove the line"
        if kind.startswith(("model", "dict")):
            remedy = "indent its keys below it, or remove the line"
        return _problem(key, value, parent, "has no value", remedy)
    text, suggestion = _words(kind, context, error["msg"], value)
    advice = next((advice for start, advice in _ADVICE.items() if _covers(start, dotted, kind)), "")
    return _problem(key, value, parent, text, suggestion or advice)


def _words(kind: str, context: Dict[str, Any], message: str, value: Optional[Value]) -> Tuple[str, str]:
    """-> (problem, suggestion) for a value of the wrong type or outside its limits."""
    if kind in _LIMITS:
        words, limit = _LIMITS[kind]
        return words.format(_number(context[limit])), ""
    if kind in ("literal_error", "union_tag_invalid"):
        expected = str(context.get("expected") or context.get("expected_tags"))
        allowed = re.findall(r"'([^']*)'", expected) or re.findall(r"[0-9]+", expected)
        return "must be one of " + ", ".join(allowed), _close(value.raw if value else "", allowed)
    if kind in ("too_short", "too_long"):
        limit = "at least {}".format(context.get("min_length"))
        if kind == "too_long":
            limit = "at most {}".format(context.get("max_length"))
        return "must have {} item{}".format(limit, "" if limit.endswith(" 1") else "s"), ""
    text = _TYPES.get(kind, message[:1].lower() + message[1:])
    return text, _type_advice(kind, value)


def _type_advice(kind: str, value: Optional[Value]) -> str:
    if value is None or isinstance(value.data, (dict, list)):
        return ""
    data, raw = value.data, value.raw
    if kind == "string_type":
        quoted = f'put it in quotes: "{raw}"'
        if isinstance(data, bool):
            return f"YAML reads the bare word {raw} as {str(data).lower()}; {quoted}"
        return f"YAML reads {raw} as a number; {quoted}"
    if kind == "bool_type":
        return "write true or false without quotes"
    if kind in ("int_type", "int_from_float", "float_type"):
        if isinstance(data, bool) and value.plain:
            return f"YAML reads the bare word {raw} as {str(data).lower()}; write a number"
        try:
            number = float(raw)
        except ValueError:
            return ""
        if kind != "float_type" and not number.is_integer():
            return "write a number without a fraction"
        plain = str(int(number)) if number.is_integer() and abs(number) < 1e15 else raw
        return f"write {plain}, without quotes" if not value.plain else f"write {plain}"
    return ""


def _covers(start: str, dotted: str, kind: str) -> bool:
    """Whether the advice for ``start`` fits: for a colour at each component, else at the value itself."""
    if start == "render.background":
        return dotted.startswith(start)
    return dotted == start and kind not in ("too_short", "too_long")


def _find(loc: Key, tree: Value) -> Tuple[Key, Optional[Value], Value, bool]:
    """Follow pydantic's location through what was written.

    Returns:
        key: as the user wrote it: without a union's tag, and ending at a scalar that stands for a mapping.
        value: found there, or None where it is not written.
        parent: the nearest value above it that is written.
        bad: whether it, or something above it, has been reported already.
    """
    key: Key = ()
    value: Optional[Value] = tree
    parent = tree
    bad = tree.bad
    tag_seen = False
    for part in loc:
        if key == ("camera", "path") and not tag_seen and value is not None and part == _tag(value):
            tag_seen = True
            continue
        if value is not None:
            stands_for_mapping = not isinstance(value.data, (dict, list)) and value.data is not None
            if stands_for_mapping and not value.bad:
                break
            parent = value
            value = _child(value, part)
            bad = bad or (value is not None and value.bad)
        key = (*key, part)
    return key, value, parent, bad


def _tag(value: Value) -> Any:
    kind = _child(value, "kind")
    return kind.data if kind is not None else None


def _child(value: Value, part: Union[str, int]) -> Optional[Value]:
    if isinstance(value.data, dict):
        return value.data.get(part)
    if isinstance(value.data, list) and isinstance(part, int) and part < len(value.data):
        return value.data[part]
    return None


def _problem(key: Key, value: Optional[Value], parent: Value, text: str, suggestion: str) -> Problem:
    leaf = next((part for part in reversed(key) if isinstance(part, str)), "")
    if value is None:
        return Problem(parent.key_origin or parent.origin, _dotted(key), text, "nothing", suggestion)
    origin = value.key_origin if isinstance(value.data, (dict, list)) and value.key_origin else value.origin
    return Problem(origin, _dotted(key), text, value.shown(leaf), suggestion)


def _dotted(key: Key) -> str:
    dotted = ""
    for part in key:
        dotted = join(dotted, part)
    return dotted


def _number(limit: Any) -> str:
    return f"{limit:g}" if isinstance(limit, float) else str(limit)


def _close(word: str, known: Sequence[str], cutoff: float = 0.6) -> str:
    found = _closest(word, known, cutoff)
    return f"did you mean {found}?" if found else ""


def _closest(word: str, known: Sequence[str], cutoff: float = 0.6) -> Optional[str]:
    return next(iter(difflib.get_close_matches(word.lower(), list(known), 1, cutoff)), None)


def _did_you_mean(key: Key, tree: Value) -> str:
    """For an unknown key: a sibling of about that name, else elsewhere; else what is known here."""
    *above, last = key
    word = str(last).lower().replace("-", "_")
    model = _model_at(tuple(above), tree)
    siblings = list(model.model_fields) if model is not None else []
    parts = set(word.split("_"))
    found = next((name for name in siblings if parts <= set(name.split("_"))), None) or _closest(word, siblings)
    if found is not None:
        return f"did you mean {found}?"
    index = dict(_leaves(Config, ""))
    elsewhere = index.get(word) or index.get(_closest(word, list(index), 0.8) or "")
    if elsewhere is not None:
        return f"did you mean {elsewhere}?"
    return "known here: " + ", ".join(siblings)


def _model_at(key: Key, tree: Value) -> Optional[Type[BaseModel]]:
    models: List[Type[BaseModel]] = [Config]
    value: Optional[Value] = tree
    for part in key:
        value = _child(value, part) if value is not None else None
        if isinstance(part, int):
            continue
        fields = [model.model_fields[part] for model in models if part in model.model_fields]
        models = [model for field in fields for model in _models_in(field.annotation)]
        if len(models) > 1 and value is not None and isinstance(value.data, dict):
            models = [model for model in models if _tag(value) in get_args(model.model_fields["kind"].annotation)]
    return models[0] if models else None


def _models_in(annotation: Any) -> Iterator[Type[BaseModel]]:
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)


def _leaves(model: Type[BaseModel], above: str) -> Iterator[Tuple[str, str]]:
    """(name, where it belongs) of every key below ``model``; of equal names, the last one counts."""
    kind = get_args(model.model_fields["kind"].annotation)[0] if "kind" in model.model_fields else ""
    for name, field in model.model_fields.items():
        below = list(_models_in(field.annotation))
        dotted = join(above, name)
        for inner in below:
            many = "Tuple" in str(field.annotation) or "tuple" in str(field.annotation)
            yield from _leaves(inner, join(dotted, "N") if many else dotted)
        yield name, dotted + (f" (of kind {kind})" if kind else "")
