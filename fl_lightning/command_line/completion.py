"""``fl-lightning completion``: a script that has a shell complete command lines, without starting Python.

It holds what the installed version takes: subcommands, options, those of all our classes included, and values where they are
known. zsh reads it through its ``bashcompinit``.
"""

import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.metadata import version
from inspect import isfunction
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from jsonargparse import ArgumentParser, Namespace, capture_parser
from lightning.pytorch import Trainer

from fl_lightning.command_line.bundled_configs import bundled_configs
from fl_lightning.command_line.cli import COMMANDS
from fl_lightning.command_line.config_files import SEED_KEYS
from fl_lightning.command_line.federated_cli import FederatedCLI, run_cli
from fl_lightning.command_line.known_classes import CLASS_KEYS, known_classes
from fl_lightning.command_line.named_checkpoint import NAMED
from fl_lightning.command_line.one_line_errors import parse
from fl_lightning.command_line.plain_help import PlainFormatter
from fl_lightning.command_line.subcommands import SUBCOMMANDS
from fl_lightning.command_line.unknown_option import class_options, parser_options
from fl_lightning.data import FederatedDataModule
from fl_lightning.data.sources import source_names
from fl_lightning.sweep.settings import option_names

_SCRIPT = """\
# Completes command lines of fl-lightning {version}.
if [[ -n ${{ZSH_VERSION-}} ]]; then autoload -Uz compinit bashcompinit; (( $+functions[compdef] )) || compinit; bashcompinit; fi
_fl_lightning() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} option=${{COMP_WORDS[COMP_CWORD-1]}} words=""
  if [[ $word == "=" ]]; then  # bash makes three words of --KEY=VALUE
    word=""
  elif [[ $option == "=" ]]; then
    option=${{COMP_WORDS[COMP_CWORD-2]}}
  fi
  if (( COMP_CWORD == 1 )); then
    words="{subcommands}"
  elif [[ $word == -* ]]; then
    case ${{COMP_WORDS[1]}} in
{options}
    esac
  else
    case $option in
{values}
    esac
    if [[ $option == --config ]]; then words+=" $(compgen -f -X '!*.yaml' -- "$word")"; fi
  fi
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _fl_lightning fl-lightning
"""


class _Options(FederatedCLI):
    """The options of a subcommand; nothing is parsed, built or run."""

    def parse_arguments(self, parser: ArgumentParser, args: None) -> None:
        self.config = Namespace(subcommand=sys.argv[1])

    def _set_seed(self) -> None:
        """Nothing."""

    def before_instantiate_classes(self) -> None:
        """Nothing."""

    def instantiate_classes(self) -> None:
        """Nothing."""

    def _run_subcommand(self, subcommand: str) -> None:
        self.names = parser_options(self._parser(subcommand))


def run(arguments: Sequence[str]) -> None:
    """Print the script.

    Raises:
        ValueError: in one line, if there is an argument.
    """
    parser = ArgumentParser(
        prog="fl-lightning completion",
        description="Print a script that has bash or zsh complete the command lines of this version of fl-lightning.",
        formatter_class=PlainFormatter,
        exit_on_error=False,
    )
    parse(parser, arguments)
    print(script(), end="")


def script() -> str:
    """What bash or zsh reads to complete command lines."""
    options = {name: " ".join(f"--{option}" for option in dict.fromkeys(listed)) for name, listed in _options().items()}
    values = {f"--{option}": " ".join(names) for option, names in _values().items()}
    return _SCRIPT.format(
        version=version("fl-lightning"), subcommands=" ".join(SUBCOMMANDS), options=_cases(options), values=_cases(values)
    )


def _cases(words: dict[str, str]) -> str:
    return "\n".join(f'      {pattern}) words="{listed}" ;;' for pattern, listed in words.items())


def _options() -> dict[str, list[str]]:
    """Subcommand -> its options."""
    of_classes = [*_class_options(), "print_config"]
    options = {name: [*run_cli([name], _Options).names, *of_classes] for name in FederatedCLI.subcommands()}
    for name, module in COMMANDS.items():
        if name != "sweep":
            parser = capture_parser(import_module(module).run, [])
            help = parser.format_help()
            options[name] = [option for option in parser_options(parser) if f"--{option}" in help]
    options["sweep"] = [*option_names(), *options["fit"]]
    return {name: [*options.get(name, []), "help"] for name in SUBCOMMANDS}


def _class_options() -> list[str]:
    """Those of all classes that an option takes."""
    options = list(CLASS_KEYS)
    for key, kind in _known():
        options += class_options(f"{kind.__module__}.{kind.__qualname__}", key.removesuffix("+"))
    return [option for option in options if option not in SEED_KEYS]


def _known() -> Iterator[tuple[str, type]]:
    """Every option that takes a class, with each class."""
    for key in CLASS_KEYS:
        for kind in known_classes(key).values():
            yield key, kind


def _values() -> dict[str, list[str]]:
    """Option -> the values that it is known to take."""
    classes = [*_known(), ("data", FederatedDataModule), ("trainer", Trainer)]
    hints = ((f"{key.removesuffix('+')}.{name}", hint) for key, kind in classes for name, hint in _hints(kind))
    return {
        **{option: choices for option, hint in hints if (choices := _choices(hint))},
        **{key: list(known_classes(key)) for key in CLASS_KEYS},
        "config": bundled_configs(),
        "ckpt_path": [*NAMED],
        "data.source": source_names(),
    }


def _hints(kind: type) -> Iterator[tuple[str, Any]]:
    """Arguments of a class and its bases with their types."""
    for base in reversed(kind.__mro__):
        if isfunction(base.__init__):
            yield from get_type_hints(base.__init__).items()


def _choices(hint: Any) -> list[str]:
    """What a type allows, if it is one of some names, or true or false."""
    if hint is bool:
        return ["true", "false"]
    if get_origin(hint) is Literal:
        return [str(value) for value in get_args(hint)]
    return [choice for part in get_args(hint) for choice in _choices(part)] if get_origin(hint) in (Union, UnionType) else []
