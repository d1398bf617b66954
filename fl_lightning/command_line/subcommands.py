"""What the command line answers without importing torch: the overview, the version, the bundled configs, a wrong subcommand."""

from collections.abc import Sequence

from fl_lightning import __version__
from fl_lightning.checks import did_you_mean
from fl_lightning.command_line.commands import SUBCOMMANDS
from fl_lightning.config_files.bundled import describe_configs
from fl_lightning.config_files.reading import config_text

_OVERVIEW = """\
usage: fl-lightning SUBCOMMAND [options]

Federated learning that shows what a model forgets.

subcommands:
{}

options:
{}

A first run: fl-lightning fit --config digits_wsm.yaml"""
_OPTIONS = {"--help": "show this overview; after a subcommand, its options", "--version": "show the version"}


def quick_answer(arguments: Sequence[str]) -> str | None:
    """What to print where nothing needs to be trained, parsed or read; None where a subcommand is to run.

    Raises:
        ValueError: naming all subcommands, if the first word is none of them; if configs is given several names.
        FileNotFoundError: if there is no config of the name that configs is given.
    """
    first, rest = (arguments[0], arguments[1:]) if arguments else ("--help", [])
    if first in ("--help", "-h"):
        return _overview()
    if first == "--version":
        return f"fl-lightning {__version__}"
    if first == "configs":
        return _configs(rest)
    if first not in SUBCOMMANDS:
        raise ValueError(_no_subcommand(first, rest))
    return None


def _overview() -> str:
    width = max(map(len, SUBCOMMANDS))
    lists = ("\n".join(f"  {name:{width}}  {what}" for name, what in of.items()) for of in (SUBCOMMANDS, _OPTIONS))
    return _OVERVIEW.format(*lists)


def _configs(rest: Sequence[str]) -> str:
    if not rest:
        return describe_configs()
    if rest[0] in ("--help", "-h"):
        return "usage: fl-lightning configs [NAME]\n\nList the bundled configs, which --config takes by name, or print one."
    if len(rest) > 1:
        raise ValueError(f"configs takes one name, but {' '.join(rest)} is given: ask for one after the other")
    return config_text(rest[0])


def _no_subcommand(first: str, rest: Sequence[str]) -> str:
    names = ", ".join(SUBCOMMANDS)
    if first.startswith("-"):
        return f"{first} stands where the subcommand must: give one of {names} first, as in fl-lightning fit {first}"
    cure = did_you_mean(first, SUBCOMMANDS, otherwise="fl-lightning --help says what each does")
    return f"subcommand is {first}, must be one of {names}: {cure}"
