"""A misspelt option: which one was meant."""

import difflib
import re
from collections.abc import Iterable, Sequence
from importlib import import_module

from jsonargparse import ArgumentParser

_FIRST = ("params", "optimizer")  # arguments that an optimizer and a schedule get from the program


def unknown_option(key: str, option: str, message: str, given: Sequence[str], known: Sequence[str]) -> str:
    """One line on an option that does not exist.

    Args:
        key: of the class whose argument it should be; empty if it belongs to none.
        option: what was not found.
        message: the parser's, which names the class.
        given: the command line.
        known: the options of the command.
    """
    name = option.removeprefix("--").partition("=")[0]
    full = ".".join(filter(None, (key, name)))
    class_path = _class_path(message)
    if class_path is None:
        if option in given and not option.startswith("-"):
            return f"{option} belongs to no option: an option is given as --KEY VALUE"
        cure = _of_the_same_name(full, known) or _nearest(full, known) or "--help shows those there are"
        return f"{full} is no option here: {cure}"
    kind = class_path.rpartition(".")[2]
    if _class_follows(key, name, given):
        return f"{full} is given before its class: give --{key} first, then the options of that class"
    options = [f"{key}.{one}" for one in class_options(class_path)]
    cure = _nearest(full, options) or f"it has {', '.join(options) or 'none at all'}"
    return f"{full} is no option here, {kind} has none of that name: {cure}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``did you mean NAME?``, or nothing where no name is near."""
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]}?" if close else ""


def _nearest(full: str, known: Sequence[str]) -> str:
    """As :func:`did_you_mean`, among the options of the same class if there are some: a common beginning is no nearness."""
    prefix, _, last = full.rpartition(".")
    siblings = [key.rpartition(".")[2] for key in known if key.rpartition(".")[0] == prefix]
    if not siblings:
        return did_you_mean(full, known)
    close = [*(one for one in siblings if _abbreviates(one, last)), *difflib.get_close_matches(last, siblings, n=1)]
    return f"did you mean {'.'.join(filter(None, (prefix, close[0])))}?" if close else ""


def _abbreviates(one: str, other: str) -> bool:
    """Whether one name is the first letters of the other's words: ``lr`` of ``learning_rate``."""
    letters = [(short, "".join(word[:1] for word in long.split("_"))) for short, long in ((one, other), (other, one))]
    return any(short == initials and len(short) > 1 for short, initials in letters)


def class_options(class_path: str, key: str | None = None) -> list[str]:
    """The options of a class and of its parts, as the parser takes them.

    Args:
        class_path: where it is imported from.
        key: that the options stand under.
    """
    module, _, name = class_path.rpartition(".")
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(getattr(import_module(module), name), key, fail_untyped=False)
    return [option for option in parser_options(parser) if option not in _FIRST and not option.endswith(".params")]


def parser_options(parser: ArgumentParser) -> list[str]:
    """The options of a parser, those of the classes among its defaults included: ``data.partition.alpha``."""
    keys = (re.sub(r"\.(class_path|init_args)\b", "", key) for key, _ in parser.get_defaults(skip_validation=True).items())
    return list(dict.fromkeys(keys))


def _class_path(message: str) -> str | None:
    """The class that does not have the option."""
    newest = None
    for line in message.splitlines():
        if found := re.search(r"given class_path '([\w.]+)'", line):
            newest = found[1]
        if "' is not accepted" in line:
            named = re.search(r"class_path='([\w.]+)'", line)
            return named[1] if named else newest
    return None


def _class_follows(key: str, name: str, given: Sequence[str]) -> bool:
    """Whether ``--KEY CLASS`` stands behind ``--KEY.NAME VALUE``."""
    keys = [one.partition("=")[0] for one in given]
    option = f"--{key}.{name}"
    return option in keys and f"--{key}" in keys[keys.index(option) :]


def _of_the_same_name(full: str, known: Sequence[str]) -> str:
    """``max_steps`` is trainer.max_steps; among several, one under a key that is spelt nearly so."""
    last = full.rpartition(".")[2]
    same = [key for key in known if key.rpartition(".")[2] == last]
    if len(same) > 1 and (near := did_you_mean(full, same)):
        return near
    return f"did you mean {' or '.join(same)}?" if 0 < len(same) < 5 else ""
