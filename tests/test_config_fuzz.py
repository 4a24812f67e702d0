"""Whatever a configuration holds, it is accepted or refused with a message; nothing else ever happens."""

from __future__ import annotations

from pathlib import Path
from typing import Any, List, Sequence

import yaml
from config_texts import MINIMAL
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgegs.config import Config, load_config
from edgegs.errors import ConfigError

MARKS = list("-[]{},:?&*!|>'\"%@`#~\\ \t\n1\u2028\x85\ud800")
WORDS = [
    "scene", "camera", "outputs", "render", "path", "width", "kind", "orbit", "keys", "eye", "null:", "---", "...",
    "<<", "yes", "no", "22:30", "0640", ".nan", "1e999", "&a", "*a", "!!str", "1.5", "\n  ", ": ", "- ",
]  # fmt: skip
FUZZ = settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


def only_config_error(path: Path, raw: bytes, overrides: Sequence[str] = ()) -> None:
    path.write_bytes(raw)
    message = ""
    try:
        assert isinstance(load_config(path, overrides, {}), Config)
    except ConfigError as error:
        message = str(error) or "an empty message \0"
    assert all(line.isprintable() for line in message.split("\n"))


@FUZZ
@given(raw=st.binary(max_size=200))
def test_fuzz_bytes(tmp_path_factory: Any, raw: bytes) -> None:
    only_config_error(tmp_path_factory.getbasetemp() / "fuzz.yaml", raw)


@FUZZ
@given(words=st.lists(st.one_of(st.sampled_from(WORDS + MARKS), st.text(max_size=4))))
def test_fuzz_yaml_words(tmp_path_factory: Any, words: List[str]) -> None:
    raw = "".join(words).encode("utf-8", "surrogatepass")
    only_config_error(tmp_path_factory.getbasetemp() / "fuzz.yaml", raw)


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["orbit", "null:"]),
)
KEYS_KNOWN = st.sampled_from(
    [
        "scene",
        "camera",
        "outputs",
        "render",
        "telemetry",
        "http",
        "path",
        "width",
        "kind",
        "keys",
        "uri",
        "log",
        "eye",
    ]
)
TREES = st.recursive(
    SCALARS,
    lambda below: st.one_of(
        st.lists(below, max_size=4),
        st.dictionaries(st.one_of(KEYS_KNOWN, st.text(max_size=3)), below, max_size=4),
    ),
    max_leaves=20,
)


@FUZZ
@given(tree=st.dictionaries(KEYS_KNOWN, TREES, max_size=6))
def test_fuzz_trees(tmp_path_factory: Any, tree: Any) -> None:
    raw = yaml.safe_dump(tree, allow_unicode=False).encode()
    only_config_error(tmp_path_factory.getbasetemp() / "fuzz.yaml", raw)


@FUZZ
@given(
    key=st.one_of(st.text(max_size=6), st.sampled_from(["camera.path", "outputs.0", "http.token_file"])),
    value=TREES,
)
def test_fuzz_overrides(tmp_path_factory: Any, key: str, value: Any) -> None:
    override = key + "=" + yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10**9)
    only_config_error(tmp_path_factory.getbasetemp() / "fuzz.yaml", MINIMAL.encode(), [override])
