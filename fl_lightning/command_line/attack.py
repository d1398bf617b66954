"""``fl-lightning attack``: the images of a run's clients that their updates reveal."""

from collections.abc import Sequence
from dataclasses import fields

from fl_lightning.attacks.attack import Target, attack
from fl_lightning.attacks.inversion import Inversion
from fl_lightning.command_line.parsers import CommandParser, ConfigOption
from fl_lightning.command_line.parsing import parse


def run(arguments: Sequence[str]) -> None:
    """Attack the run of the command line.

    Raises:
        FileNotFoundError, ValueError: in one line, if it cannot be attacked.
    """
    config = parse(_parser(), arguments)
    target, inversion = ({part.name: config[part.name] for part in fields(kind)} for kind in (Target, Inversion))
    attack(Target(**target), Inversion(**inversion), config["data.root"])


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
