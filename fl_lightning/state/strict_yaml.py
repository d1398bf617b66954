"""YAML without its traps: keys given twice, aliases of themselves or that multiply, nesting without end, megabytes."""

from dataclasses import dataclass, field
from typing import Any

import yaml

MAX_CHARACTERS = 2**22
"""A config has some kilobytes, one that names thousands of cohorts some megabytes."""
_MAX_DEPTH = 50
_MAX_NODES = 1_000_000  # with every alias counted as all that it stands for

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's, where PyYAML was built with it


@dataclass
class _Open:
    """A mapping or a list whose end was not read yet."""

    anchor: str | None
    is_mapping: bool
    num_children: int = 0
    num_nodes: int = 1
    keys: set[str] = field(default_factory=set)


def load_yaml(text: str) -> Any:
    """The value of a YAML document, as ``yaml.safe_load`` gives it.

    Raises:
        ValueError: if it holds one of the traps.
        yaml.YAMLError: if it is no YAML.
    """
    check_yaml(text)
    return yaml.load(text, _Loader)


def check_yaml(text: str) -> None:
    """Read a document as a stream of events, which takes neither memory nor recursion, before anybody builds it.

    Raises:
        ValueError: if a key is given twice, an alias stands for what it is part of, or the document is too long, too deep or,
            aliases resolved, too large.
        yaml.YAMLError: if it is no YAML.
    """
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"it has {len(text):,} characters, must be at most {MAX_CHARACTERS:,}")
    sizes: dict[str, int] = {}  # nodes of what each anchor stands for
    above: list[_Open] = []
    for event in yaml.parse(text, _Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            above.append(_Open(event.anchor, isinstance(event, yaml.MappingStartEvent)))
            if len(above) > _MAX_DEPTH:
                raise ValueError(f"it is nested deeper than {_MAX_DEPTH} levels in line {event.start_mark.line + 1}")
        elif isinstance(event, yaml.CollectionEndEvent):
            ended = above.pop()
            if ended.anchor is not None:
                sizes[ended.anchor] = ended.num_nodes
            _add(above, ended.num_nodes, None)
        elif isinstance(event, yaml.ScalarEvent):
            if event.anchor is not None:
                sizes[event.anchor] = 1
            _add(above, 1, event)
        elif isinstance(event, yaml.AliasEvent):
            if any(one.anchor == event.anchor for one in above):
                raise ValueError(f"the alias *{event.anchor} in line {event.start_mark.line + 1} is part of itself")
            _add(above, sizes.get(event.anchor, 1), None)


def _add(above: list[_Open], num_nodes: int, scalar: yaml.ScalarEvent | None) -> None:
    """Count a node, the key of a mapping or not, in what it is part of."""
    if not above:
        return
    parent = above[-1]
    if parent.is_mapping and parent.num_children % 2 == 0 and scalar is not None:
        if scalar.value in parent.keys:
            raise ValueError(f"the key {scalar.value} is given twice, the second time in line {scalar.start_mark.line + 1}")
        parent.keys.add(scalar.value)
    parent.num_children += 1
    parent.num_nodes += num_nodes
    if parent.num_nodes > _MAX_NODES:
        raise ValueError(f"it holds more than {_MAX_NODES:,} values, those that its aliases stand for included")
