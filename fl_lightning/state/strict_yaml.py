"""YAML without its traps: repeated keys, aliases that contain themselves or multiply, endless nesting, megabytes, base 60."""

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

MAX_CHARACTERS = 2**22
"""A config has some kilobytes, or with thousands of cohorts some megabytes."""
_MAX_DEPTH = 50
_MAX_NODES = 1_000_000  # an alias counts as all the nodes that it stands for

_TIME = re.compile(r"[-+]?\d[\d_]*(:[0-5]?\d)+(\.[\d_]*)?$")


def leave_times(loader: Any) -> None:
    """Make a loader take ``1:00:00:00`` as a text. To YAML 1.1 it is 216000, a number in base 60."""
    loader.yaml_implicit_resolvers = {
        first: [("tag:yaml.org,2002:str", _TIME), *resolvers] for first, resolvers in loader.yaml_implicit_resolvers.items()
    }


# A class of its own, of libyaml's loader where PyYAML was built with it.
_Loader: Any = type("_Loader", (getattr(yaml, "CSafeLoader", yaml.SafeLoader),), {})
leave_times(_Loader)


@dataclass
class _Open:
    """A mapping or a list whose end has not been read yet."""

    anchor: str | None
    is_mapping: bool
    num_children: int = 0
    num_nodes: int = 1
    keys: set[str] = field(default_factory=set)


def load_yaml(text: str) -> Any:
    """The value of a YAML document, as from ``yaml.safe_load``.

    Raises:
        ValueError: if it has one of the traps.
        yaml.YAMLError: if it is not YAML.
    """
    check_yaml(text)
    return yaml.load(text, _Loader)


def check_yaml(text: str) -> None:
    """Read a document as a stream of events, which takes neither memory nor recursion, before it is built.

    Raises:
        ValueError: if a key is given twice, an alias is part of itself, or the document is too long, too deep or, with aliases
            resolved, too large.
        yaml.YAMLError: if it is not YAML.
    """
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"it has {len(text):,} characters, must be at most {MAX_CHARACTERS:,}")
    sizes: dict[str, int] = {}  # number of nodes of each anchor
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
    """Count a node in its parent, and refuse a key that the parent already has."""
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
