"""``python -m studies NAME OUT``: run a study, or what is left of it, and write its page in docs/results."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from fl_lightning.checks import check_range
from studies.catalogue import STUDIES
from studies.runner import run_study

_RESULTS = Path(__file__).parent.parent / "docs" / "results"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}: python -m studies --help shows the options; the settings of a study are fixed")


def main(arguments: Sequence[str]) -> int:
    """Run the command; an error is one line.

    Returns:
        the exit code: 0, 1 after an error or a failed run, 130 or 143 after Ctrl-C or SIGTERM.
    """
    try:
        given = _parser().parse_args(arguments)
        if given.name not in STUDIES:
            raise ValueError(f"NAME is {given.name}, which is no study: give one of {', '.join(STUDIES)}")
        check_range("--jobs", given.jobs, at_least=0)
        data = [
            f"--data.{name}={value}" for name in ("source", "root") if (value := getattr(given, f"data.{name}")) is not None
        ]
        folder = given.results / given.name
        signals = run_study(STUDIES[given.name], given.out, folder, given.jobs, data, given.retry_failed)
    except (ValueError, OSError) as error:
        print(f"studies: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    print(f"Results: {folder}")
    if signals:
        print("studies: stopped: the same command goes on from here", file=sys.stderr)
        return 128 + signals[0]
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m studies", description=f"Run a study. NAME: {', '.join(STUDIES)}.", allow_abbrev=False)
    add = parser.add_argument
    add("name", metavar="NAME", help="the study")
    add("out", metavar="OUT", type=Path, help="folder of its runs; the same command, given again, goes on from there")
    add("--jobs", type=int, default=_cores(), metavar="N", help="runs at once; 0 runs none and writes what there is")
    add("--results", type=Path, default=_RESULTS, metavar="FOLDER", help="its page goes to FOLDER/NAME; default docs/results")
    add("--retry-failed", action="store_true", help="try runs again that failed")
    add("--data.source", metavar="SOURCE", help="how the data is read, such as image_folder; default that of the configs")
    add("--data.root", metavar="DIR", help="where the data lies")
    return parser


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
