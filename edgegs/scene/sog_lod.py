"""The lod-meta.json of a streamed SOG scene, version 1 and before: a tree whose leaves name rows of SOG files.

Published by PlayCanvas as "The Streamed SOG Format". edgegs draws the finest level of every leaf, and the
environment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple

from edgegs.errors import SceneError
from edgegs.scene.sog_meta import MODELS, Fields, bounded, clip, plain_name

#: Bytes of a lod-meta.json: some 40,000 leaves.
MAX_INDEX_BYTES = 8 << 20
_MAX_LEVELS = 64
_MAX_NODES = 1 << 17  # a real one takes more bytes than would let it have so many
_MAX_FOLDERS = 16


@dataclass(frozen=True)
class Part:
    """A SOG scene that is drawn in part or whole.

    Attributes:
        name: path of its meta.json (or of a bundle) from the index's folder, with "/", never out of it.
        ranges: rising (start, stop) of its rows, none touching another; None: all of them.
    """

    name: str
    ranges: Optional[Tuple[Tuple[int, int], ...]]


@dataclass(frozen=True)
class Plan:
    """What of a streamed scene is drawn.

    Attributes:
        parts: in the order of the index; the environment last.
        n_rows: rows of all parts but the environment.
        model: as in ``SogMeta``; None where the index says nothing.
        warnings: one sentence each.
    """

    parts: Tuple[Part, ...]
    n_rows: int
    model: Optional[str]
    warnings: Tuple[str, ...]


def is_index(content: Dict[str, Any]) -> bool:
    """Whether a JSON object is a lod-meta.json and no meta.json."""
    return "tree" in content or "filenames" in content


def parse_index(content: Dict[str, Any], where: str) -> Plan:
    """Check a lod-meta.json and choose the finest level of every leaf; raises SceneError, ``where`` in front."""
    fields = Fields(content, where)
    if content.get("version") is not None:
        fields.whole("version", 1, 1)
    n_levels = fields.whole("lodLevels", 1, _MAX_LEVELS)
    names = content.get("filenames")
    if not isinstance(names, list):
        raise SceneError(f"{where}: filenames is missing or no list; export the scene again")
    warnings: List[str] = []
    model = fields.model(warnings) if content.get("model") is not None else None
    chosen: Dict[int, List[Tuple[int, int]]] = {}
    n_finest = n_coarser = 0
    for leaf in _leaves(fields.part("tree")):
        where_level = f"{where}: a level of the tree"
        for level in sorted(bounded(_level(key), where_level, 0, n_levels - 1) for key in leaf.content):
            entry = leaf.part(str(level))
            count = entry.whole("count")
            if not count:
                continue
            start = entry.whole("offset")
            chosen.setdefault(entry.whole("file", 0, len(names) - 1), []).append((start, start + count))
            n_finest += 0 if level else count
            n_coarser += 1 if level else 0
            break
    _check_promise(content, n_finest, where)
    if n_coarser:
        warnings.append(f"{n_coarser:,} places have no level 0: the finest that they have is drawn")
    parts = []
    for i in sorted(chosen):
        name = _inner_path(names[i], f"{where}: filenames[{i}]")
        parts.append(Part(name, _joined(chosen[i], f"{where}: the tree's ranges of {clip(name)}")))
    environment = content.get("environment")
    if environment is not None:
        parts.append(Part(_inner_path(environment, f"{where}: environment"), None))
    if len({part.name for part in parts}) < len(parts):
        raise SceneError(f"{where}: two of its files are the same; export the scene again")
    n_rows = sum(stop - start for part in parts for start, stop in part.ranges or ())
    return Plan(tuple(parts), n_rows, model, tuple(warnings))


def _leaves(tree: Fields) -> List[Fields]:
    """The ``lods`` of every leaf, in the tree's order."""
    found: List[Fields] = []
    open_nodes = [tree.content]
    n_nodes = 1
    while open_nodes:
        node = open_nodes.pop()
        children, lods = node.get("children"), node.get("lods")
        if children is not None and lods is not None:
            raise SceneError(f"{tree.where}: a node of the tree has both children and lods; export the scene again")
        if lods is not None:
            found.append(Fields(node, tree.where, "tree … ").part("lods"))
        elif children is not None:
            n_nodes += len(children) if isinstance(children, list) else 0
            if n_nodes > _MAX_NODES:
                raise SceneError(f"{tree.where}: a tree of over {_MAX_NODES:,} nodes; export it with larger chunks")
            if not isinstance(children, list) or not all(isinstance(child, dict) for child in children):
                raise SceneError(f"{tree.where}: children of a node of the tree must be a list of objects")
            open_nodes += reversed(children)
    return found


def _level(key: str) -> Any:
    return int(key) if key.isascii() and key.isdigit() and len(key) <= 3 and str(int(key)) == key else key


def _check_promise(content: Dict[str, Any], n_finest: int, where: str) -> None:
    counts = content.get("counts")
    if counts is None:  # before the format had a version
        return
    if not isinstance(counts, list) or not counts:
        raise SceneError(f"{where}: counts must be a list with one count a level")
    promised = bounded(counts[0], f"{where}: counts[0]", 0, 1 << 53)
    if promised != n_finest:
        raise SceneError(f"{where}: counts[0] promises {promised:,} splats, and the tree has {n_finest:,} of level 0")


def _inner_path(value: Any, where: str) -> str:
    """A relative path that cannot lead out of the folder."""
    steps = value.split("/") if isinstance(value, str) else [value]
    if len(steps) > _MAX_FOLDERS:
        raise SceneError(f"{where}: over {_MAX_FOLDERS} folders deep")
    for step in steps:
        plain_name(step, where)
    return "/".join(steps)


def _joined(ranges: List[Tuple[int, int]], where: str) -> Tuple[Tuple[int, int], ...]:
    """Sorted, neighbours made one: small leaves would make small blocks."""
    joined: List[Tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if joined and start < joined[-1][1]:
            raise SceneError(f"{where} overlap at row {start:,}; export the scene again")
        if joined and start == joined[-1][1]:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    return tuple(joined)


def trained_alike(plan: Plan, models: List[str], where: str) -> str:
    """The one model of the scene: the index's word, or else that of the parts in the tree."""
    said = {plan.model} if plan.model is not None else set(models) or {MODELS[0]}
    if len(said) > 1:
        raise SceneError(
            f"{where}: its files were trained differently ({', '.join(sorted(map(clip, said)))}) and cannot be "
            "drawn as one scene; export them alike"
        )
    return str(said.pop())
