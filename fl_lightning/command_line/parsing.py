"""Parse a command line; an error is one line with the key, the value and the cure.

jsonargparse's message about a value is kept, after the key. Further messages are about the option or the class that was meant,
and about values that jsonargparse would accept silently.
"""

import difflib
import json
import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import isfunction, signature
from itertools import pairwise
from pathlib import Path
from pydoc import ErrorDuringImport, locate
from traceback import walk_tb
from typing import Any

import yaml
from jsonargparse import ArgumentError, ArgumentParser, Namespace

from fl_lightning.checks import check_range, did_you_mean
from fl_lightning.config_files.reading import SEED_KEYS, SEEDED, config_values, flat_values, options_of, shortened
from fl_lightning.state.strict_yaml import MAX_CHARACTERS, check_yaml

Classes = Callable[[str], Mapping[str, type]]
"""The classes that a key accepts by short name; empty for a key without classes."""

_FROM_THE_PROGRAM = ("params", "optimizer")  # arguments of optimizers and schedules that a user does not give
_MOST_LISTED = 40  # options in an error
_DERIVED = "or derive a loss from fl_lightning.losses.Loss"
_INSTEAD = {  # of values that are not supported
    "model.loss": f"give one for classes, labels or values, {_DERIVED}",
    "model.loss.weight": f"a loss must give one value a sample: leave it out, {_DERIVED} that multiplies each sample's value",
}
# The error of the type, among several, whose class is given: the key of its option, if known, and the message.
_IN_A_CLASS = r"""^  - Problem with given class_path '[^']*':\s+(?:Parser key "([\w.]+)":\s*)?(.*(?:\n      .*)*)"""
# By library, for model.net LIBRARY.NAME.
_NETS_OF = {"timm": "TimmModel", "transformers": "TransformersModel", "torchvision.models": "TorchvisionModel"}
# jsonargparse's words for a type, and ours for the types that it names.
_TYPE = r"Expected a (?:typing\.Literal\[(.+?)\]|<class '(\w+)'>)(?:\. Got value: .*)?"
_TYPES = {"int": "a whole number", "float": "a finite number", "bool": "true, false", "str": "a text", "NoneType": "null"}
_NO_CLASS = r"Expected a dot import path string:(?: \S+)?"
_UNKNOWN_CLASS = "no class has this name"
_NUMBER = r"[-+]?\d*\.?\d+"
_MOST_DOTS = 100  # in an import path; the search for one with 50,000 takes a minute
_LONGEST = 4000  # characters of an error; its beginning and end show the fault and the cure


def parse(parser: ArgumentParser, arguments: Sequence[str], classes: Classes = lambda key: {}) -> Namespace:
    """The values of a command line.

    Args:
        parser: with ``exit_on_error=False``.
        classes: classes to suggest for a misspelt one.

    Raises:
        ValueError: in one line, if it or a config in it cannot be parsed, an option is given for a class that another one
            replaced or before a config that sets it too, or a number is NaN, infinite or beyond 64 bits.
        FileNotFoundError: if a config is neither a file nor bundled.
    """
    arguments = [*_written_out(arguments)]
    _check_values(arguments)
    given = dict(given_values(arguments))
    options = list(options_of(arguments))
    _check_order(options)
    try:
        config = parser.parse_args(list(arguments))
    except ArgumentError as error:
        raise ValueError(_parser_line(error, _known_options(parser, given, classes), options, given, classes)) from error
    _check_nothing_dropped([key for key, _ in options], config)
    _say_what_configs_lose(options, config)
    for key, value in flat_values(config.as_dict()):
        _check_finite(key, value)
    return config


def _written_out(arguments: Sequence[str]) -> Iterator[str]:
    """A command line with ``--model.net LIBRARY.NAME`` as the class and its name."""
    for before, word in pairwise(["", *arguments]):
        option, equals, value = word.partition("=") if word.startswith("--") else (before, "", word)
        library = next((library for library in _NETS_OF if value.startswith(f"{library}.")), None)
        if option == "--model.net" and library is not None and (name := value.removeprefix(f"{library}.")):
            yield from (f"{option}=" * bool(equals) + _NETS_OF[library], "--model.net.name", name)
        else:
            yield word


def _check_values(arguments: Sequence[str]) -> None:
    """Raise a ValueError for YAML that the parser cannot handle, in the value of an option or in a file that it names."""
    for option, argument in pairwise(["", *arguments]):
        key, _, value = argument.partition("=") if argument.startswith("--") else (option, "", argument)
        key = key.removeprefix("--")
        if key in SEED_KEYS:
            raise ValueError(f"{key} is given, but {SEEDED}")
        if key.endswith("lr_scheduler") and value == "ReduceLROnPlateau":  # of torch and of Lightning: the parser cannot choose
            raise ValueError(f"{key} is ReduceLROnPlateau, but a schedule steps without a metric: use another")
        if value.count(".") > _MOST_DOTS and re.fullmatch(r"[\w.]+", value):
            raise ValueError(f"{key} is {shortened(value)}, which is not an import path: it has {value.count('.'):,} dots")
        if key != "config" and value:
            try:
                check_yaml(_text_of(value))
            except yaml.YAMLError:
                continue  # a plain text
            except (ValueError, OSError) as error:
                raise ValueError(f"{key} is {shortened(value)}, which cannot be taken: {error}") from error


def _text_of(value: str) -> str:
    """The text that the parser reads for a value: itself, or the file that it names."""
    if not value.endswith((".yaml", ".yml")) or not Path(value).is_file():
        return value
    if Path(value).stat().st_size > MAX_CHARACTERS:
        raise ValueError(f"the file has more than {MAX_CHARACTERS:,} bytes")
    return Path(value).read_text(encoding="utf-8")


def given_values(arguments: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Each option with its value, and the values of a config instead of its name."""
    for key, value in options_of(arguments):
        yield from flat_values(config_values(value)) if key == "config" and value else [(key, value)]


def parser_options(parser: ArgumentParser) -> list[str]:
    """The options of a parser, with those of its default classes: ``data.partition.alpha``."""
    keys = [re.sub(r"\.(class_path|init_args)\b", "", key) for key, _ in parser.get_defaults(skip_validation=True).items()]
    return list(dict.fromkeys(keys))


def as_one_line(text: str) -> str:
    """A text without line breaks; of a long one the beginning and the end."""
    line = re.sub(r"\S{1000,}", lambda word: shortened(word[0]), " ".join(text.split()))
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST // 2]} ... {line[-_LONGEST // 2 :]}"


def _parser_line(
    error: ArgumentError,
    known: Sequence[str],
    options: Sequence[tuple[str, str | None]],
    given: Mapping[str, Any],
    classes: Classes,
) -> str:
    """The line of the parser's innermost error, after its key, or a line about a wrong option."""
    for key, value in options:
        if value is None and key not in ("help", "print_config"):
            return f"{key} has no value: give one"
    net = given.get("model.net")
    if net in _NETS_OF.values() and "model.net.name" not in given:
        return f"model.net is {net}, which needs a name: give model.net.name"
    key, line, of_types = _key_and_lines(error)
    named = [one for one in given if one not in known and re.search(rf"\b{re.escape(one.rpartition('.')[2])}\b", line)]
    is_unknown = re.search("has no attribute|No module named", line)  # the class itself, wherever it is given
    names = [name for name, _ in options]
    for name in names:
        parent = name.rpartition(".")[0]
        is_class = "." in parent or parent == "model"  # other blocks of a config are not classes
        is_meant = name in named if named else key in (name, parent) and not is_unknown
        if is_class and is_meant and _comes_later(parent, name, names):
            return f"{name} is given before its class: give --{parent} first, then the options of that class"
    if named:
        owners = _classes_with(named[0], classes)
        return f"{named[0]} is not an option here: {f'it belongs to {owners}' if owners else _nearest(named[0], known)}"
    if not key:
        meant = next((f"did you mean --{word}?" for word in line.split() if word in known), "--help shows the options")
        return f"{line}: {meant}"
    others = {name: one for one in known for name in classes(one)}
    return _of_value(key, line, of_types, given, classes(key), others)


def _of_value(
    key: str, line: str, of_types: str, given: Mapping[str, Any], offered: Mapping[str, type], others: Mapping[str, str]
) -> str:
    if missing := re.fullmatch(r"the following arguments are required: (.+)", line):
        return _missing([f"{key}.{name}" for name in missing[1].split(", ")])
    value = given.get(key)
    text = str(value)
    said = f"{key} is {shortened(text)}" if value not in (None, "") else key
    if key == "model.loss.weight" and str(given.get("model.loss")).startswith("torch.nn."):
        return f"{said}: {_INSTEAD[key]}"
    option = next((one for one in given if one.startswith("data.source.")), None)
    if key == "data.source" and option is not None and (line == _UNKNOWN_CLASS or text.endswith(".npz")):
        return f"{said}, which takes no {option}: give a class, such as --data.source Npz or ImageFolder"
    takes_list = not offered and re.search(r"'(collections\.abc\.Sequence|list)'", of_types)
    if isinstance(value, str) and takes_list and (listed := _as_list(value)) != f"'{value}'":
        return f"{said}, must be a list: give {listed}"
    if not offered or text in offered:
        return f"{said}{'' if of_types.startswith(',') else ': '}{of_types}"
    if unknown := re.fullmatch(r"Option '(\w+)' is not accepted", line):
        return f"{key}.{unknown[1]} is given, but {text} has no such option: leave it out"
    if found := re.search(r"does not correspond to a subclass of (\w+)", line):
        return f"{said}, which does not derive from {found[1]}: {_INSTEAD.get(key, 'derive it, or give another class')}"
    if (missing := re.match(r"No module named '(\w+)'", line)) and text.startswith(f"{missing[1]}."):
        return f"{said}: there is no {missing[1]}.py in the working folder, and no package of this name: correct the name"
    if key == "model.net" and (library := next((one for one in _NETS_OF if text.startswith(f"{one}.")), None)):
        as_class = f"{{class_path: {_NETS_OF[library]}, init_args: {{name: {text.removeprefix(f'{library}.')}}}}}"
        return f"{said}, which --model.net takes on the command line: in a config give {as_class}"
    if re.fullmatch(r"(?!fl_lightning\.)\w+(\.\w+)+", text):  # our names would be no help
        return f"{said}: {line}: correct the name or its file"
    if text in others:
        plus = "+" * (others[text] == "trainer.callbacks")
        return f"{said}, which belongs to another option: give --{others[text]}{plus} {text}"
    if papers := [name for name, kind in offered.items() if (kind.__doc__ or "").startswith(f"{text}:")]:
        return f"{said}, which is {papers[0]} here: give that name"
    listed = f"there are {', '.join(sorted(offered, key=str.lower))}, or give a full import path"
    return f"{said}: {line}: {did_you_mean(text, offered, listed)}"


def _missing(keys: Sequence[str]) -> str:
    if len(keys) > 1:
        return f"{', '.join(keys)} are missing: give them"
    return f"{keys[0]} is missing: give it{', or a config, such as --config digits_tce.yaml' * (keys[0] == 'model.net')}"


def _in_words(clauses: Sequence[str]) -> str:
    """What a value must be, from jsonargparse's lines about its types: ``, must be a whole number or null``."""
    found = [one for clause in clauses if (one := re.fullmatch(_TYPE, clause)) and one[2] in (None, *_TYPES)]
    if len(found) < len(clauses):
        return ", or ".join(clauses)
    literals = dict.fromkeys(word.strip(" '") for one in found if one[1] for word in one[1].split(","))
    names = [one[2] for one in found if one[2]]
    kinds = [_TYPES[name] for name in names if name != "int" or "float" not in names]
    *first, last = ", ".join([*literals, *kinds]).split(", ")
    return f", must be {'one of ' * (len(first) > 1)}{', '.join(first)}{' or ' * bool(first)}{last}"


def _as_list(text: str) -> str:
    """A value in the form of a list that any shell and YAML read: ``'["*lora*"]'``."""
    items = (item.strip(" '\"") for item in text.strip("[] ").split(","))
    return f"'{json.dumps([yaml.safe_load(item) if re.fullmatch(_NUMBER, item) else item for item in items])}'"


def chain(error: Exception) -> Iterator[Exception]:
    """An error and those that it wraps, to the first that is not from jsonargparse."""
    yield error
    frames = list(walk_tb(error.__traceback__))
    if isinstance(error.__cause__, Exception) and frames[-1][0].f_globals["__name__"].startswith("jsonargparse"):
        yield from chain(error.__cause__)


def _key_and_lines(error: Exception) -> tuple[str, str, str]:
    """The key of the parser's error, the innermost message without it, and the same with those of a union's other types."""
    path, line, around = [], "", ""
    for one in chain(error):
        around, line = line, str(one)
        if found := re.match(r'Parser key "([\w.]+)":\s*', line):
            line = line[found.end() :]
            path += [found[1]] if found[1] not in ("config", *path[-1:]) else []
    if inner := re.search(_IN_A_CLASS, around, re.MULTILINE):
        line = as_one_line(inner[2])
        return ".".join([*path, *filter(None, [inner[1]])]), line, _in_words([line])
    of_types = re.findall(r"^\s*- (.+)$", around, re.MULTILINE)
    # A number that cannot be read is not a misspelt class.
    plain = [text for text in of_types if not re.match(_NO_CLASS, text)] or of_types
    line, *plain = (as_one_line(re.sub(_NO_CLASS, _UNKNOWN_CLASS, text)) for text in (line, *plain))
    whole = _in_words(plain if len(of_types) > 1 else [line])
    return ".".join(path), line, whole


def _known_options(parser: ArgumentParser, given: Mapping[str, Any], classes: Classes) -> list[str]:
    """The options of a parser and of the classes that are given."""
    known = [*parser_options(parser), *(name.strip("-+") for name in parser._option_string_actions)]
    for key, value in given.items():
        kind = classes(key).get(value, value) if isinstance(value, str) else None
        if isinstance(kind, str):
            kind = _located(kind) if "." in kind and not Path(kind).exists() else None
        if isinstance(kind, type) and isfunction(kind.__init__):
            known += [key, *class_options(kind, key)]
    return [option for option in dict.fromkeys(known) if option not in SEED_KEYS and not option.endswith(".help")]


def _located(path: str) -> object:
    """What an import path names; None if importing it fails, which is the parser's error."""
    try:
        return locate(path)
    except ErrorDuringImport:
        return None


def class_options(kind: type, key: str) -> list[str]:
    """The options of a class and of its parts, under a key of the parser."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(kind, key, fail_untyped=False)
    own = (option for option in parser_options(parser) if option.removeprefix(f"{key}.") not in _FROM_THE_PROGRAM)
    return [option for option in own if not option.endswith(".params")]


def _classes_with(option: str, classes: Classes) -> str:
    """The classes, of those that the option's key accepts, that have it."""
    parent, _, last = option.rpartition(".")

    def has_it(kind: type) -> bool:
        return any(last in signature(base.__init__).parameters for base in kind.__mro__)

    return ", ".join(sorted(name for name, kind in classes(parent).items() if has_it(kind)))


def _comes_later(parent: str, option: str, names: Sequence[str]) -> bool:
    """Whether an option's class is given after it, and not before; the first option is the default method."""
    return parent in names[names.index(option) :] and parent not in names[1 : names.index(option)]


def _nearest(option: str, known: Sequence[str]) -> str:
    """The option that was meant, among those of the same class if it has any: a common beginning does not count."""
    parent, _, last = option.rpartition(".")
    siblings = {one.rpartition(".")[2]: one for one in known if parent and one.rpartition(".")[0] == parent}
    listed = f"it has {', '.join(siblings.values())}" if 0 < len(siblings) < _MOST_LISTED else "--help shows those there are"
    if not siblings:
        return did_you_mean(option, known, listed)
    close = difflib.get_close_matches(last, siblings, n=1)
    return f"did you mean {siblings[close[0]]}?" if close else listed


def _check_order(options: Sequence[tuple[str, str | None]]) -> None:
    """Refuse an option before a config that sets it too: the parser would take the config's value silently."""
    for number, (key, name) in enumerate(options):
        if key == "config" and name is not None:
            of_config = dict(flat_values(config_values(name)))
            first = options[0][0] == "model"  # the default method
            if early := next((one for one, _ in options[first:number] if one in of_config), None):
                raise ValueError(f"--{early} is given before --config {name}, which sets it too: give it after")


def _check_nothing_dropped(options: Sequence[str], config: Namespace) -> None:
    """Refuse an option of a class that another one replaced: the parser would drop it silently."""
    for number, option in enumerate(options):
        later = options[number + 1 :]
        if again := next((key for key in later if option.startswith(f"{key}.") and later.count(key) > 1), None):
            raise ValueError(f"{option} is given, but {again} twice after it, which may drop it: give {again} once")
        if (other := _without(option, config)) is not None:
            raise ValueError(f"{option} is given, but {other}, given later, has no such option: drop one of them")


def _say_what_configs_lose(options: Sequence[tuple[str, str | None]], config: Namespace) -> None:
    """Warn about each option in a config whose class was replaced by one without such an option."""
    for name in (value for key, value in options if key == "config" and value is not None):
        for key, value in flat_values(config_values(name)):
            if (other := _without(key, config)) is not None:
                said = f"{key} is {shortened(str(value))} in {name}"
                warnings.warn(f"{said}, but {other} has no such option: it is left out", stacklevel=2)


def _without(option: str, config: Namespace) -> str | None:
    """The class in a parsed config that lacks an option; None if the option exists, or does not belong to a class."""
    value: Any = config
    for part in option.split("."):
        kind = value.get("class_path") if isinstance(value, Namespace) else None
        if kind is not None and part not in ("class_path", "init_args", "dict_kwargs"):
            taken = [value.get("init_args"), value.get("dict_kwargs")]
            value = next((one for one in taken if one is not None and part in one), None)
            if value is None:
                return kind.rpartition(".")[2]
        if not isinstance(value, Namespace | dict) or part not in value:
            return None
        value = value[part]
    return None


def _check_finite(key: str, value: object) -> None:
    """Refuse NaN and infinity, which count as numbers everywhere, and whole numbers that no tensor can hold."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{key} is {value}, must be a finite number")
    if isinstance(value, int):
        check_range(key, value, above=-(2**63), below=2**63)
    for part in value if isinstance(value, list | tuple) else ():
        for inner, number in flat_values(part, key):
            _check_finite(inner, number)
