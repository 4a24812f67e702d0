"""YAML's syntax errors in plain words."""

from __future__ import annotations

import re
from typing import Any, Optional, Tuple

import yaml

# What PyYAML says (pattern of its "problem"), what it means, what to do. The first match counts.
_MEANINGS: Tuple[Tuple[str, str, str], ...] = (
    (r"character '\\t'", "a tab cannot indent YAML", "use spaces"),
    (
        r"mapping values are not allowed here",
        "unexpected ':'",
        "indent with equal spaces, and put text that holds ': ' in quotes",
    ),
    (r"could not find expected ':'", "this line has no ':' after its key", "write key: value"),
    (r"unexpected end of stream", "the text ends inside quotes{context}", "close the quotes"),
    (r"unexpected document separator", "a --- inside quotes{context}", "close the quotes"),
    (
        r"expected ',' or '\]'",
        "a '[' is not closed{context}",
        "close it with ']', with commas between the items",
    ),
    (
        r"expected ',' or '\}'",
        "a '{{' is not closed{context}",
        "close it with '}}', with commas between the items",
    ),
    (r"but found another document", "more than one document", "remove the '---' line and what follows it"),
    (
        r"expected '<document start>'",
        "text after the end (...) of the document, or a line with % before it",
        "indent every key of one level equally",
    ),
    (
        r"expected <block end>",
        "this line does not fit the lines above it",
        "indent every key of one level equally, and close quotes",
    ),
    (r"cannot start any token", "a value cannot start with {character}", "put the text in quotes"),
    (r"unknown escape character", "an unknown escape sequence in double quotes", "use single quotes"),
    (r"escape sequence of", "an incomplete escape sequence in double quotes", "use single quotes"),
    (
        r"sequence entries are not allowed",
        "a '- ' list cannot start here",
        "put it on lines of its own",
    ),
    (r"block mapping keys? (are|is) not allowed|mapping keys are not allowed", "a key cannot stand here", ""),
    (
        r"expected alphabetic or numeric character",
        "'&' and '*' start anchors and aliases",
        "put text in quotes",
    ),
    (
        r"expected the node content",
        "a value is missing here, or there is a bracket too many",
        "add or remove it",
    ),
    (r"YAML document|%YAML|%TAG|directive", "a line that starts with '%' is a YAML directive", "remove it"),
    (r"tag|handle", "'!' starts a tag, and tags are not allowed", "put the text in quotes"),
    (r"comment|chomping|indentation indicator", "a wrong '|' or '>' text block", "put the text in quotes"),
)


def explain_syntax_error(error: Exception, text: str, mark: Any) -> Tuple[int, str, str]:
    """A parser's error -> (line from 1, what is wrong with its column, what to do).

    Never quotes the text itself: it may hold a secret.

    Args:
        error: a YAMLError, or another exception that PyYAML let through.
        text: what was parsed.
        mark: where the parser stood, for errors that do not say.
    """
    if isinstance(error, yaml.reader.ReaderError):
        before = text[: int(error.position)]
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        what = f"the character U+{_code(error.character):04X} is not allowed in YAML"
        return line, _at(column, what), "remove it"
    problem = str(getattr(error, "problem", None) or error)
    mark = getattr(error, "problem_mark", None) or mark
    line, column = (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)
    words, suggestion = problem, ""
    for pattern, meaning, advice in _MEANINGS:
        if re.search(pattern, problem):
            words = meaning.format(context=_opened(error, line), character=_quoted_character(problem))
            suggestion = advice.format()
            break
    else:
        if not isinstance(error, yaml.YAMLError):
            words, suggestion = "an escape sequence that is no character", "use single quotes"
    return line, _at(column, "syntax error: " + words), suggestion


def _at(column: int, words: str) -> str:
    return f"column {column}: {words}"


def _opened(error: Exception, line: int) -> str:
    """Where the quotes or brackets were opened, when that was in another line."""
    mark: Optional[Any] = getattr(error, "context_mark", None)
    return "" if mark is None or mark.line + 1 == line else f", opened in line {mark.line + 1}"


def _quoted_character(problem: str) -> str:
    match = re.search(r"character ('.'|\".\")", problem)
    return match.group(1) if match else "this character"


def _code(character: Any) -> int:
    return character if isinstance(character, int) else ord(character)
