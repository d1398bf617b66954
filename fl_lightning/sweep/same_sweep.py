"""Whether a command line asks for the sweep that a folder holds, or for more of it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fl_lightning.state.strict_yaml import load_yaml
from fl_lightning.sweep.settings import Settings


def described(settings: Settings, config: str) -> dict[str, Any]:
    """What makes a sweep, as its folder keeps it.

    Args:
        settings: what the command line asks for.
        config: text of the config that all runs share.
    """
    varied = {axis.key: list(axis.values) for axis in settings.axes}
    return {
        "config": load_yaml(config),
        "options": list(settings.options),
        "search": settings.search,
        "set": varied,
        "seeds": list(settings.seeds),
    }


def check_same(old: dict[str, Any], new: dict[str, Any], out: Path) -> None:
    """Whether ``new`` is the sweep in the folder, or more of it.

    Raises:
        ValueError: naming what differs.
    """
    if not old:
        return
    cure = "give the same, or another --out"
    if old["config"] != new["config"]:
        raise ValueError(f"out is {out}, which holds a sweep of another config, or of this one before it was changed: {cure}")
    if _by_key(old["options"]) != _by_key(new["options"]):
        before, now = (" ".join(options) or "none" for options in (old["options"], new["options"]))
        raise ValueError(f"out is {out}, which holds another sweep: its options for fit are {before}, here {now}: {cure}")
    if old["search"] != new["search"] or list(old["set"]) != list(new["set"]):
        before, now = (f"--search {one['search']} over {', '.join(one['set']) or 'nothing'}" for one in (old, new))
        raise ValueError(f"out is {out}, which holds another sweep: {before}, here {now}: {cure}")
    for name, before, now in [("--seeds", old["seeds"], new["seeds"]), *((k, v, new["set"][k]) for k, v in old["set"].items())]:
        fixed = new["search"] != "grid" and name != "--seeds"
        if not set(before) <= set(now) or (fixed and before != now):
            has, may = (", ".join(map(str, values)) for values in (before, now))
            raise ValueError(
                f"out is {out}, whose sweep has {has} for {name}, here {may}: "
                + ("a search keeps its values" if fixed else "it may gain values, and lose none")
                + f": {cure}"
            )


def _by_key(options: Sequence[str]) -> list[list[str]]:
    """Options for ``fit`` with their values, in an order that is the same however options of different keys were mixed.

    Options of a key and of what lies below it stay in their order, in which ``fit`` reads them.
    """
    given: list[list[str]] = []
    for word in options:
        if word.startswith("--"):
            given.append(word.split("=", 1))
        else:
            given[-1].append(word)
    return sorted(given, key=lambda option: option[0].rstrip("+").split(".")[:2])
