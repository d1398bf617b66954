"""Parsers with plain help and bundled names for ``--config``, and a parser made from a function."""

import re
from argparse import Action
from collections.abc import Callable, Sequence
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, get_args

import docstring_parser
import yaml
from jsonargparse import (
    ActionConfigFile,  # pyright: ignore[reportPrivateImportUsage]  # documented, yet not in __all__
    ArgumentParser,
    DefaultHelpFormatter,
    Namespace,
)
from jsonargparse._loaders_dumpers import get_yaml_default_loader

from fl_lightning.command_line.parsing import parse
from fl_lightning.config_files.reading import config_values, shortened
from fl_lightning.state.strict_yaml import leave_times

leave_times(get_yaml_default_loader())  # by which every parser reads numbers
# Of enumerations, such as the default of an option of Lightning's Timer, they write the text.
yaml.SafeDumper.add_multi_representer(str, yaml.representer.SafeRepresenter.represent_str)


def plain(text: str) -> str:
    """A text without the markup of Sphinx and of types, which a terminal does not render: ``:class:`~a.B``` is a.B."""
    text = re.sub(r":\w+(?::\w+)*:`~?\.?([^`]+)`", r"\1", text)
    text = re.sub(r"`([^`<]+?)\s*<[^`>]*>`_+", r"\1", text)
    text = re.sub(r"`{1,2}([^`]+)`{1,2}", r"\1", text)
    return re.sub(r"<class '(\w+)'>", r"\1", text)


class PlainFormatter(DefaultHelpFormatter):
    """jsonargparse's formatter, without markup."""

    def add_text(self, text: str | None) -> None:
        """Add a paragraph, without markup."""
        super().add_text(plain(text) if isinstance(text, str) else text)

    def start_section(self, heading: str | None) -> None:
        """Begin a section under a heading, without markup."""
        super().start_section(plain(heading) if isinstance(heading, str) else heading)

    def _expand_help(self, action: Action) -> str:
        return plain(super()._expand_help(action))


class CommandParser(ArgumentParser):
    """The parser of ``fl-lightning COMMAND``. It raises errors, also for a misspelt option.

    jsonargparse makes parsers of the same type for the help of classes, so every argument has a default.
    """

    def __init__(self, *args: Any, command: str | None = None, **given: Any) -> None:
        named = {} if command is None else {"prog": f"fl-lightning {command}"}
        fixed = {"formatter_class": PlainFormatter, "exit_on_error": False, "allow_abbrev": False}
        super().__init__(*args, **{**fixed, **named, **given})
        self._negative_number_matcher = re.compile(r"-[\d.in]")  # -inf and -.nan are values too, with a line about them


class ConfigOption(ActionConfigFile):
    """``--config NAME``: a file or a bundled config, with its bases; the name stays in the parsed config."""

    def __call__(self, parser: ArgumentParser, cfg: Namespace, values: str, option_string: str | None = None) -> None:
        """Add the config's values to those before it."""
        super().__call__(parser, cfg, yaml.safe_dump(config_values(values), sort_keys=False), option_string)
        cfg[self.dest][-1] = values


def arguments_of(command: Callable[..., None], line: Sequence[str]) -> dict[str, Any]:
    """The arguments of a function from a command line: words for those without a default, options for the others.

    Args:
        command: its docstring is the help, and has a section *Example* with a command line if there are words.
        line: the words after the command.

    Raises:
        ValueError: in one line, if a word is missing or cannot be parsed.
    """
    doc = docstring_parser.parse(command.__doc__ or "")
    help = {part.arg_name: part.description or "" for part in doc.params}
    parameters = signature(command).parameters.values()
    words = [one for one in parameters if one.default is Parameter.empty]
    parser = CommandParser(command=command.__name__, description=doc.description)
    for word in words:
        one = get_args(word.annotation)  # of a list
        kind, number = (one[0], "*") if one else (word.annotation, "?")
        parser.add_argument(word.name, metavar=word.name.upper(), type=kind, nargs=number, help=help[word.name])
    parser.add_function_arguments(command, skip={word.name for word in words}, as_group=False)
    given = parse(parser, line).as_dict()
    if missing := [word.name for word in words if not given[word.name]]:
        name, verb = missing[-1], "are" if given[missing[-1]] == [] else "is"
        example = f"{help[name].rstrip('.')}, as in {doc.examples[0].description}"
        raise ValueError(f"{name.upper()} {verb} missing: give {example}")
    for word in words:
        _check_paths(word.name.upper(), given[word.name])
    return given


def _check_paths(name: str, given: object) -> None:
    """Raise a ValueError for a path that the system refuses, such as one that is too long; the path need not exist."""
    for path in given if isinstance(given, list) else [given]:
        try:
            Path(str(path)).stat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            said = f"{name} is {shortened(str(path))}, which cannot be used"
            raise ValueError(f"{said} ({error.strerror}): give another path") from error
