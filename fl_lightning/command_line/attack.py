"""``fl-lightning attack``: the images of a run's clients that their updates reveal."""

from collections.abc import Sequence
from dataclasses import fields
from typing import TypeVar

from jsonargparse import Namespace

from fl_lightning.attacks.attack import Target, attack
from fl_lightning.attacks.inversion import Inversion
from fl_lightning.command_line.parsers import CommandParser, ConfigOption
from fl_lightning.command_line.parsing import parse

Options = TypeVar("Options", Target, Inversion)


def run(arguments: Sequence[str]) -> None:
    """Attack the run of the command line.

    Raises:
        FileNotFoundError, ValueError: in one line, if it cannot be attacked.
    """
    config = parse(_parser(), arguments)
    attack(_taken(Target, config), _taken(Inversion, config), config["data.root"])


def _taken(kind: type[Options], config: Namespace) -> Options:
    """The arguments of a class, from those of the command line."""
    return kind(**{part.name: config[part.name] for part in fields(kind)})


def _parser() -> CommandParser:
    parser = CommandParser(
        command="attack",
        description="Recover the images of a run's clients from the updates that they send (docs/privacy.md).",
        epilog="Bundled configs: invert_dlg.yaml, invert_geiping.yaml and, as in the FedReg paper, invert_fedreg_*.yaml.",
    )
    parser.add_argument("--config", action=ConfigOption, help="a YAML file with any of these options")
    parser.add_argument("--data.root", type=str, help="folder of the data, if it is not where the run had it")
    parser.add_class_arguments(Target)
    parser.add_class_arguments(Inversion)
    return parser
