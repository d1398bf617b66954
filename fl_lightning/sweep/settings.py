"""The command line of ``fl-lightning sweep``."""

import difflib
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn, get_args

from fl_lightning.checks import check_range
from fl_lightning.sweep.points import SET_BY_THE_SWEEP, Axis, Drawn, Range, parse_axes, parse_seeds

_EXAMPLE = """example:
  fl-lightning sweep --config digits_tce.yaml --set model.loss=CrossEntropy,TruncatedCrossEntropy \\
      --set model.optimizer.lr=0.01,0.03,0.1 --seeds 3 --jobs 2 --trainer.max_steps 100

Every other option goes to each fl-lightning fit. Run the same command again to resume a sweep that stopped."""
_Search = Literal["grid", Drawn]


@dataclass(frozen=True)
class Settings:
    """The settings of one command."""

    config: str
    axes: Sequence[Axis]
    seeds: Sequence[int]
    jobs: int
    out: Path
    search: _Search
    trials: int | None  # points to draw; None for a grid
    prune: bool
    retry_failed: bool
    options: Sequence[str]  # for every fit


def parse_settings(arguments: Sequence[str]) -> Settings:
    """Read the options, except for those of ``fit``.

    Raises:
        ValueError: naming the option, if one is missing or malformed, or does not combine with the others.
    """
    given, options = _parser().parse_known_args(arguments)
    for name in ("jobs", "trials"):
        if (value := getattr(given, name)) is not None:
            check_range(f"--{name}", value, at_least=1)
    axes = parse_axes(given.set)
    _check_search(given.search, given.trials, axes)
    _check_options(options, axes)
    if len(given.config) > 1:
        both, base = " and ".join(given.config), ", ".join(given.config)
        raise ValueError(f"--config is {both}, but a sweep takes one: give a file that has base: [{base}]")
    (config,) = given.config
    return Settings(
        config=config,
        axes=axes,
        seeds=parse_seeds(given.seeds),
        jobs=given.jobs,
        out=given.out or Path("sweeps") / Path(config).stem,
        search=given.search,
        trials=given.trials,
        prune=given.prune,
        retry_failed=given.retry_failed,
        options=options,
    )


class OptionParser(ArgumentParser):
    """The parser of a command that passes its other options on to ``fit``; an error is a ValueError in one line."""

    def __init__(self, command: str, description: str, example: str) -> None:
        how = {"formatter_class": RawDescriptionHelpFormatter, "allow_abbrev": False}
        super().__init__(f"fl-lightning {command}", description=description, epilog=example, **how)

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}: {self.prog} --help shows the options")


def _parser() -> ArgumentParser:
    parser = OptionParser("sweep", "Train every combination of values and seeds, each in a separate process.", _EXAMPLE)
    add = parser.add_argument
    add("--config", action="append", required=True, metavar="NAME.yaml", help="the config of all runs, a file or a bundled one")
    add("--set", action="append", default=[], metavar="KEY=VALUES", help="a key to vary: A,B,C, or 0.001..0.1:log for a range")
    add("--seeds", default="1", metavar="SEEDS", help="how many (3 is 1, 2 and 3) or which (1,2,5); default 1")
    add("--jobs", type=int, default=1, metavar="N", help="runs at once; default 1")
    add("--out", type=Path, metavar="FOLDER", help="folder of the sweep; default sweeps/<name of the config>")
    add("--search", choices=get_args(_Search), default="grid", help="all combinations, or points drawn by Optuna")
    add("--trials", type=int, metavar="N", help="points to draw with --search random or tpe")
    add("--prune", action="store_true", help="end a run whose validation accuracy is below the median of earlier ones")
    add("--retry-failed", action="store_true", help="try runs again that failed")
    return parser


def _check_search(search: str, trials: int | None, axes: Sequence[Axis]) -> None:
    ranges = [axis.key for axis in axes if isinstance(axis, Range)]
    if search == "grid" and ranges:
        raise ValueError(f"--set {ranges[0]} is a range, which a grid cannot list: give values, or --search random or tpe")
    if search == "grid" and trials is not None:
        raise ValueError(f"--trials is {trials}, but a grid tries all its points: leave it out, or give --search random")
    if search != "grid" and trials is None:
        raise ValueError(f"--search is {search}, which draws without end: give --trials N, the number of points")
    if search != "grid" and not axes:
        raise ValueError(f"--search is {search}, but nothing is varied: give --set KEY=VALUES")


def _check_options(options: Sequence[str], axes: Sequence[Axis]) -> None:
    given = {option.removeprefix("--").split("=", 1)[0] for option in options if option.startswith("--")}
    known = [name.replace("_", "-") for name in vars(_parser().parse_args(["--config", ""]))]
    for name in sorted(given):
        if "." not in name and (close := difflib.get_close_matches(name, known, n=1, cutoff=0.8)):
            raise ValueError(f"--{name} is not an option of a sweep: did you mean --{close[0]}?")
    for key, instead in SET_BY_THE_SWEEP.items():
        if key in given:
            raise ValueError(f"--{key} is set by the sweep: give {instead}")
    if both := [axis.key for axis in axes if axis.key in given]:
        raise ValueError(f"--{both[0]} is given, and varied by --set {both[0]}: leave one out")
