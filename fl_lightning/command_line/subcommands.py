"""What the command line answers without importing torch: the overview, the version, the bundled configs, a wrong subcommand."""

import difflib
from collections.abc import Sequence

from fl_lightning import __version__
from fl_lightning.command_line.bundled_configs import describe_configs

SUBCOMMANDS = {
    "fit": "train a federation",
    "validate": "evaluate a checkpoint on the clients' validation parts",
    "test": "evaluate a checkpoint on the test set",
    "predict": "write a checkpoint's predictions on the test set to a file",
    "partition": "write, draw and measure who would hold which samples, without training",
    "export": "write a checkpoint's net as a program that runs without fl-lightning",
    "attack": "recover images of clients from the updates that they send",
    "report": "write tables and figures of any number of runs",
    "figures": "draw the pictures of one run as files for a paper",
    "compare": "say in which settings two runs or sweeps differ, and in what came out",
    "watch": "serve a page of running and finished runs to a browser of this machine",
    "sweep": "train every combination of values and seeds",
    "configs": "list the bundled configs",
    "completion": "print a script that completes command lines in bash and zsh",
}

_USAGE = "usage: fl-lightning SUBCOMMAND [options]"


def quick_answer(arguments: Sequence[str]) -> str | None:
    """What to print where nothing needs to be trained, parsed or read; None where a subcommand is to run.

    Raises:
        ValueError: naming all subcommands, if the first word is none of them; if configs is given an argument, or report none.
    """
    first, rest = (arguments[0], arguments[1:]) if arguments else ("--help", [])
    if first in ("--help", "-h"):
        return _overview()
    if first == "--version":
        return f"fl-lightning {__version__}"
    if first == "configs":
        return _configs(rest)
    if first == "report" and not rest:
        raise ValueError("RUNS are missing: give folders of runs, as in fl-lightning report runs")
    if first not in SUBCOMMANDS:
        raise ValueError(_no_subcommand(first, rest))
    return None


def _overview() -> str:
    width = max(map(len, SUBCOMMANDS))
    lines = [f"  {name:{width}}  {what}" for name, what in SUBCOMMANDS.items()]
    return "\n".join(
        (
            _USAGE,
            "",
            "Federated learning that shows what a model forgets.",
            "",
            "subcommands:",
            *lines,
            "",
            "options:",
            f"  {'--help':{width}}  show this overview; after a subcommand, its options",
            f"  {'--version':{width}}  show the version",
            "",
            "A first run: fl-lightning fit --config digits_tce.yaml",
        )
    )


def _configs(rest: Sequence[str]) -> str:
    if not rest:
        return describe_configs()
    if rest[0] in ("--help", "-h"):
        return "usage: fl-lightning configs\n\nList the bundled configs, which --config takes by name."
    raise ValueError(f"configs takes no arguments, but {' '.join(rest)} is given: leave it out")


def _no_subcommand(first: str, rest: Sequence[str]) -> str:
    names = ", ".join(SUBCOMMANDS)
    if first.startswith("-"):
        return f"{first} stands where the subcommand must: give one of {names} first, as in fl-lightning fit {first}"
    close = difflib.get_close_matches(first, SUBCOMMANDS, n=1)
    cure = f"did you mean {close[0]}?" if close else "fl-lightning --help says what each does"
    return f"subcommand is {first}, must be one of {names}: {cure}"
