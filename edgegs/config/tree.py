"""YAML text -> a tree of values, each of which knows where it stands. Strict where YAML is generous.

PyYAML alone keeps the last of two equal keys, reads ``22:30`` as 1350 and expands a few hundred bytes of
aliases to millions of nodes. Here these are problems, and all problems of a text are found, not only the
first (except after a syntax error, which leaves nothing to read).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Tuple, Union

import yaml

from edgegs.config.masking import MASK, is_secret_key, mask_text, one_line
from edgegs.config.syntax import explain_syntax_error

MAX_DEPTH = 32  # mappings and lists inside each other; the deepest key of the model is at 6
MAX_NODES = 20_000  # values and keys; a thousand keyframes have 15,000
MAX_SHOWN = 1_000  # characters of a value that a message may quote from
MAX_DIGITS = 40  # of a number: more is no quantity, and Python itself refuses to read 4,301

_NULL = re.compile(r"~|null|Null|NULL|")
_BOOL = {
    word: value
    for words, value in (("yes true on", True), ("no false off", False))
    for lower in words.split()
    for word in (lower, lower.capitalize(), lower.upper())
}
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9_]*|0x[0-9a-fA-F]+|0b[01]+)")
# Unlike YAML 1.1, 1e3 and 1.5e3 without a sign are numbers, as everybody means them.
FLOAT = re.compile(r"[-+]?(?:(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?|[0-9][0-9_]*[eE][-+]?[0-9]+)")
_SURROGATE = re.compile("[\ud800-\udfff]")  # "\\uD800": YAML can spell what is no character
_NO_TEXT = ("half a character (an escape from \\ud800 to \\udfff)", None, "write the character itself")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF|nan|NaN|NAN)")


@dataclass(frozen=True)
class Origin:
    """Where a value was written. ``rank`` and ``line`` only order the report."""

    label: str
    rank: int = 0
    line: int = 1

    def __str__(self) -> str:
        return f"{self.label}:{self.line}" if self.rank == 0 else self.label

    def at(self, line: int) -> Origin:
        """The same source at ``line``; overrides have only one."""
        return Origin(self.label, self.rank, line)


@dataclass(frozen=True)
class Problem:
    """One thing wrong: a line of the final message."""

    origin: Origin
    key: str
    text: str
    got: Optional[str] = None
    suggestion: str = ""

    def __str__(self) -> str:
        line = f"{self.origin}: "
        line += f"{_shorten(mask_text(self.key), 200)}: " if self.key else ""
        line += mask_text(self.text)
        if self.got is not None:
            line += f" (got {self.got})"
        if self.suggestion:
            line += "; " + _shorten(mask_text(self.suggestion), 400)
        return one_line(line)


@dataclass
class Value:
    """A value and where it stands.

    Attributes:
        data: a dict of Values, a list of Values, or a str, int, float, bool or None.
        raw: a scalar as written, for messages. plain: written without quotes.
        origin: of the value; key_origin: of the key before it, where there is one.
        bad: already reported; nothing more is said about it.
    """

    data: Any
    origin: Origin
    raw: str = ""
    plain: bool = False
    key_origin: Optional[Origin] = None
    bad: bool = False

    def shown(self, key: str = "") -> str:
        """For "(got …)": short, one line, without secrets. ``key`` is the key the value stands under."""
        if is_secret_key(key) and (self.data is not None or self.raw):
            return MASK
        if isinstance(self.data, dict):
            return "a mapping with " + ", ".join(list(self.data)[:6]) if self.data else "an empty mapping"
        if isinstance(self.data, list):
            items = [item.shown() if not isinstance(item.data, (dict, list)) else "…" for item in self.data[:8]]
            return _shorten("[{}{}]".format(", ".join(items), ", …" if len(self.data) > 8 else ""))
        if self.data is None and self.raw == "":
            return "nothing"
        if len(self.raw) > MAX_SHOWN:  # cut before masking, a password could lose the @ that gives it away
            return f"text of {len(self.raw)} characters"
        text = _shorten(mask_text(self.raw))
        return text if self.plain else f'"{text}"'


def _shorten(text: str, length: int = 60) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def plain(value: Value) -> Any:
    """The tree as ordinary dicts, lists and scalars."""
    if isinstance(value.data, dict):
        return {key: plain(item) for key, item in value.data.items()}
    if isinstance(value.data, list):
        return [plain(item) for item in value.data]
    return value.data


def parse_yaml(text: str, origin: Origin, problems: List[Problem], key: str = "") -> Optional[Value]:
    """Read one YAML document.

    Args:
        text: without a byte order mark.
        origin: of its first line.
        problems: appended to.
        key: dotted key that the text is the value of, for an override.

    Returns:
        The tree, or None where the text cannot be read at all (a problem says why). An empty document is a
        Value of None.
    """
    loader: Optional[_Composer] = None
    try:
        loader = _Composer(text)
        node = loader.get_single_node()
    except _TooBig as error:
        problems.append(Problem(origin.at(error.line), key, error.text, None, "no configuration needs that"))
        return None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        # PyYAML lets a few Python errors through, such as chr() of "\UFFFFFFFF".
        mark = loader.get_mark() if loader is not None else None
        line_number, words, suggestion = explain_syntax_error(error, text, mark)
        problems.append(Problem(origin.at(line_number), key, words, None, suggestion))
        return None
    finally:
        if loader is not None:
            loader.dispose()
    if node is None:
        return Value(None, origin)
    return _Converter(origin, problems, loader.refused).convert(node, key)


class _TooBig(Exception):
    def __init__(self, text: str, line: int) -> None:
        super().__init__(text, line)
        self.text, self.line = text, line


class _Composer(yaml.SafeLoader):
    """Composes nodes (never constructs objects), without aliases, anchors and tags, to a limited depth."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.depth = self.nodes = 0
        #: Identity of a refused node -> what it is, as written. The nodes live as long as their tree.
        self.refused: Dict[int, Tuple[str, str]] = {}

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()
        if isinstance(event, yaml.AliasEvent):
            self.get_event()
            placeholder: Any = yaml.ScalarNode  # the stubs know one of the two kinds of marks only
            node: Any = placeholder("", "", event.start_mark, event.end_mark, style="")
            self.refused[id(node)] = ("aliases", f"*{event.anchor}")
            return node
        refused: Optional[Tuple[str, str]] = None
        if event.anchor is not None:
            refused = ("anchors", f"&{event.anchor}")
        elif event.tag is not None:
            refused = ("tags", str(event.tag))
        event.anchor = event.tag = None  # or PyYAML would act on them
        is_collection = isinstance(event, yaml.CollectionStartEvent)
        self.depth += is_collection
        self.nodes += 1
        if self.depth > MAX_DEPTH:
            text = f"mappings and lists stand more than {MAX_DEPTH} deep inside each other"
            raise _TooBig(text, event.start_mark.line + 1)
        if self.nodes > MAX_NODES:
            raise _TooBig(f"more than {MAX_NODES} keys and values", event.start_mark.line + 1)
        node = super().compose_node(parent, index)
        self.depth -= is_collection
        if refused is not None:
            self.refused[id(node)] = refused
        return node


@dataclass
class _Converter:
    """Nodes -> Values, with YAML's scalars read by the rules above."""

    origin: Origin
    problems: List[Problem]
    refused: Dict[int, Tuple[str, str]] = field(default_factory=dict)

    def convert(self, node: Any, key: str) -> Value:
        origin = self.origin.at(node.start_mark.line + 1)
        if id(node) in self.refused:
            kind, word = self.refused[id(node)]
            got = MASK if is_secret_key(key) else word
            advice = "write the value out; put it in quotes if it is text"
            self.problems.append(Problem(origin, key, f"{kind} are not allowed", got, advice))
            return Value(None, origin, bad=True)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, key, origin)
        if isinstance(node, yaml.SequenceNode):
            items = [self.convert(item, join(key, i)) for i, item in enumerate(node.value)]
            return Value(items, origin)
        is_plain = not node.style
        raw = node.value
        result = Value(raw, origin, raw, is_plain)
        if _SURROGATE.search(raw):
            self.problems.append(Problem(origin, key, *_NO_TEXT))
            result.bad = True
        if is_plain:
            data, problem, suggestion = _read_plain(raw)
            if problem:
                if is_secret_key(key):
                    problem = "YAML would misread this"
                self.problems.append(Problem(origin, key, problem, result.shown(key), suggestion))
            result = Value(data, origin, raw, True, bad=bool(problem))
        return result

    def _mapping(self, node: yaml.MappingNode, key: str, origin: Origin) -> Value:
        items: Dict[str, Value] = {}
        for key_node, value_node in node.value:
            key_origin = self.origin.at(key_node.start_mark.line + 1)
            if id(key_node) in self.refused or not isinstance(key_node, yaml.ScalarNode):
                text = "a key must be a single word"
                self.problems.append(Problem(key_origin, key, text, None, "write key: value"))
                continue
            name = key_node.value
            if _SURROGATE.search(name):
                self.problems.append(Problem(key_origin, join(key, name), *_NO_TEXT))
                continue
            dotted = join(key, name)
            value = self.convert(value_node, dotted)
            value.key_origin = key_origin
            if name == "<<" and not key_node.style:
                text = "merge keys (<<) are not allowed"
                self.problems.append(Problem(key_origin, key, text, None, "write the keys out"))
            elif name in items:
                first = items[name].key_origin
                text = "duplicate key, first given in line {}".format(first.line if first else "?")
                got = value.shown(name)
                self.problems.append(Problem(key_origin, dotted, text, got, "remove one of the two"))
            else:
                items[name] = value
        return Value(items, origin)


def join(key: str, part: Union[str, int]) -> str:
    """``camera`` and ``width`` -> ``camera.width``."""
    return f"{key}.{part}" if key else str(part)


def _read_plain(raw: str) -> Tuple[Any, str, str]:
    """A scalar without quotes -> (value, problem, suggestion)."""
    if _NULL.fullmatch(raw):
        return None, "", ""
    if raw in _BOOL:
        return _BOOL[raw], "", ""
    is_int = _INT.fullmatch(raw) is not None
    if is_int or FLOAT.fullmatch(raw):
        digits = raw.replace("_", "")
        if len(digits) > MAX_DIGITS:
            return None, f"a number of more than {MAX_DIGITS} characters", "put it in quotes if it is text"
        number = int(digits, 0) if is_int else float(digits)
        if math.isfinite(number):
            return number, "", ""
        return None, "the number is too large", "write a finite number"
    if _NOT_FINITE.fullmatch(raw):
        return None, "infinity and NaN are not allowed", "write a finite number"
    misread = _misread(raw)
    if misread is not None:
        advice = "put it in quotes if it is text, else write a plain number"
        if misread.lstrip("-").isdigit():
            return None, f"YAML would read this as the number {misread}", advice
        return None, "this looks like a number and is none", advice
    return raw, "", ""


_YAML_1_1 = yaml.SafeLoader("")


def _misread(raw: str) -> Optional[str]:
    """What YAML 1.1 makes of text that only it reads as a number (22:30, 0640), or "?"; else None."""
    tag = _YAML_1_1.resolve(yaml.ScalarNode, raw, (True, False))
    if tag not in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float"):
        return None
    if len(raw) > MAX_DIGITS:
        return "?"
    try:
        value = yaml.SafeLoader("").construct_object(yaml.ScalarNode(tag, raw))
        return str(int(value)) if value == int(value) else "?"
    except (ValueError, OverflowError):
        return "?"
