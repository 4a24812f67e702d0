"""The Grafana dashboard: every query names series and labels that the exposition has, and is PromQL."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Dict, Iterator, List, Set, Tuple

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).resolve().parent.parent
DASHBOARD = ROOT / "jetson" / "grafana" / "edgegs.json"
#: The golden text of tests/test_metrics.py: what edgegs/telemetry/metrics.py says when everything is known.
GOLDEN = ROOT / "tests" / "data" / "metrics.txt"
#: What Prometheus itself adds.
TARGET_LABELS = {"instance", "job"}
FUNCTIONS = {"rate", "increase", "sum", "min", "max", "count", "histogram_quantile", "vector"}
WORDS = {"by", "on", "group_left", "or", "and", "le"}


@pytest.fixture(scope="module")
def exposition() -> Dict[str, Set[str]]:
    """{series: its labels}."""
    found: Dict[str, Set[str]] = {}
    text = re.sub("(?m) N$", " 1", GOLDEN.read_text(encoding="utf-8"))  # what is the machine's own
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


@pytest.fixture(scope="module")
def dashboard() -> dict:
    return json.loads(DASHBOARD.read_text(encoding="utf-8"))


def targets(dashboard: dict) -> Iterator[Tuple[str, dict]]:
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target


def series_of(expression: str) -> Tuple[Set[str], Set[str]]:
    """(series, labels) that a query names."""
    labels = set(re.findall(r"(\w+)\s*(?:=~|!~|=|!=)\s*\"", expression))
    text = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\"[^\"]*\"", " ", expression)
    for group in re.findall(r"\b(?:by|on|group_left)\s*\(([^)]*)\)", text):
        labels.update(re.findall(r"\w+", group))
    text = re.sub(r"\b(?:by|on|group_left)\s*\([^)]*\)", " ", text)
    names = set(re.findall(r"\b[a-zA-Z_:][\w:]*", text)) - WORDS
    return names - FUNCTIONS, labels


def test_a_query_is_taken_apart() -> None:
    names, labels = series_of('sum by (le, x) (rate(a_bucket{b=~"$c", d!="e_total"}[5m])) / on (f) g or vector(0)')
    assert names == {"a_bucket", "g"}
    assert labels == {"le", "x", "b", "d", "f"}


def test_every_query_names_series_that_exist(dashboard: dict, exposition: Dict[str, Set[str]]) -> None:
    used: Set[str] = set()
    for title, target in targets(dashboard):
        names, labels = series_of(target["expr"])
        assert names, title
        assert names <= set(exposition), f"{title}: {names - set(exposition)}"
        known = set().union(*(exposition[name] for name in names)) | TARGET_LABELS
        assert labels <= known, f"{title}: {labels - known}"
        shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        assert shown <= known, f"{title}: {shown - known}"
        used |= names
    families = {re.sub("_(bucket|sum|count)$", "", name) for name in exposition}
    left_out = families - {re.sub("_(bucket|sum|count)$", "", name) for name in used}
    # what nobody looks at over time
    assert left_out == {
        "edgegs_process_virtual_memory_bytes",
        "edgegs_process_start_time_seconds",
        "edgegs_process_max_fds",
        "edgegs_governor_limit",
        "edgegs_governor_sh_degree",
        "edgegs_governor_fps_cap",
    }


def test_counters_are_never_shown_raw(dashboard: dict) -> None:
    for title, target in targets(dashboard):
        for name in re.findall(r"\w+_(?:total|bucket|sum|count)\b", target["expr"]):
            assert re.search(rf"(rate|increase)\({name}\b", target["expr"]), title


def test_variables_panels_and_layout(dashboard: dict, exposition: Dict[str, Set[str]]) -> None:
    variables = {one["name"]: one for one in dashboard["templating"]["list"]}
    asked = re.fullmatch(r"label_values\((\w+), (\w+)\)", variables["instance"]["query"]["query"])
    assert asked is not None
    assert asked.group(1) in exposition
    for title, target in targets(dashboard):
        assert set(re.findall(r"\$(\w+)", target["expr"])) <= {"instance", "__rate_interval"}, title
        assert target["datasource"]["uid"] == "${datasource}"
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids) > 20
    cells: List[Tuple[int, int]] = []
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells += [(x, y) for x in range(place["x"], place["x"] + place["w"])
                  for y in range(place["y"], place["y"] + place["h"])]  # fmt: skip
    assert len(set(cells)) == len(cells)  # no panel lies on another


def test_every_query_is_promql(dashboard: dict, tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool here (package prometheus): the queries' syntax is not checked")
    rules = []
    for number, (_, target) in enumerate(targets(dashboard)):
        expression = target["expr"].replace("$__rate_interval", "5m").replace("$instance", ".*")
        rules.append({"record": f"panel:{number}", "expr": expression})
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = subprocess.run([promtool, "check", "rules", str(path)], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(rules)} rules" in done.stdout
