"""``python -m studies NAME OUT``: run a study, or what is left of it, and write its page in docs/results.

``python -m studies next OUT`` does so with the studies of ``catalogue.ORDER``, one after the other, each in ``OUT/NAME``.
There ``--data.root DIR`` holds a folder for each dataset: a study of CIFAR-10 reads ``DIR/cifar10``.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from fl_lightning.checks import check_range
from fl_lightning.config_files.reading import config_values, flat_values
from studies.catalogue import ORDER, STUDIES
from studies.declaration import Study
from studies.runner import is_complete, run_study

_NEXT = "next"
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
        if given.name not in (_NEXT, *STUDIES):
            raise ValueError(f"NAME is {given.name}, which is not a study: give {_NEXT} or one of {', '.join(STUDIES)}")
        check_range("--jobs", given.jobs, at_least=0)
        if given.name == _NEXT:
            signals = _run_next(given)
        else:
            signals = _run(given, given.name, given.out, _data(given, STUDIES[given.name]))
    except (ValueError, OSError) as error:
        print(_one_line(error), file=sys.stderr)
        return 1
    if signals:
        print("studies: stopped: run the same command to resume", file=sys.stderr)
        return 128 + signals[0]
    return 0


def _run_next(given: argparse.Namespace) -> list[int]:
    """Run the studies of the list that are not complete; one that fails does not keep those behind it from their turn.

    Raises:
        ValueError: in one line, naming the studies that failed, after all others.
    """
    if (source := getattr(given, "data.source")) is not None:
        raise ValueError(f"--data.source is {source}, but next reads each study's data from DIR/<source>: leave it out")
    failed = []
    for name in ORDER:
        try:
            done = is_complete(STUDIES[name], given.results / name, given.retry_failed)
            signals = [] if done else _run(given, name, given.out / name, _where(STUDIES[name], getattr(given, "data.root")))
        except ValueError as error:
            print(_one_line(error), file=sys.stderr)
            failed.append(name)
            continue
        if signals:
            return signals
    if failed:
        raise ValueError(f"{', '.join(failed)} did not complete: the lines above say why, and what to do")
    return []


def _where(study: Study, root: str | None) -> list[str]:
    """The options of a study whose data is in the folder of its source's name, in lower case; none without such a folder."""
    source = _settings(study)["data.source"]
    folder = Path(root or "", study.images or source.rpartition(".")[2].lower())
    if root is None or not folder.is_dir():
        return []
    reads_class_folders = (folder / "train").is_dir() and not study.images
    return [f"--data.root={folder}", *(["--data.source=image_folder"] if reads_class_folders else [])]


def _data(given: argparse.Namespace, study: Study) -> list[str]:
    """The options that say where the data is.

    Raises:
        ValueError: if ``--data.source`` would replace a source that chooses from another one.
    """
    source = getattr(given, "data.source")
    settings = _settings(study)
    if source is not None and any(key.startswith("data.source.source") for key in settings):
        raise ValueError(
            f"--data.source is {source}, which would replace {settings['data.source']} of {study.name}: give only --data.root"
        )
    options = {option: getattr(given, option) for option in ("data.source", "data.root")}
    return [f"--{option}={value}" for option, value in options.items() if value is not None]


def _settings(study: Study) -> dict[str, Any]:
    """Those of the config of its first sweep, by key."""
    return dict(flat_values(config_values(study.sweeps[0].settings.config)))


def _run(given: argparse.Namespace, name: str, out: Path, data: list[str]) -> list[int]:
    signals = run_study(STUDIES[name], out, given.results / name, given.jobs, data, given.retry_failed)
    print(f"Results: {given.results / name}")
    return signals


def _one_line(error: Exception) -> str:
    return f"studies: error: {' '.join(str(error).split())}"


def _parser() -> argparse.ArgumentParser:
    names = ", ".join([f"{_NEXT} (those that are not complete, in their order, each in OUT/NAME)", *STUDIES])
    parser = _Parser(prog="python -m studies", description=f"Run a study. NAME: {names}.", allow_abbrev=False)
    add, cores = parser.add_argument, len(os.sched_getaffinity(0))
    add("name", metavar="NAME", help="the study")
    add("out", metavar="OUT", type=Path, help="folder of its runs; the same command resumes them")
    add("--jobs", type=int, default=cores, metavar="N", help="runs at once; 0 runs none and writes what there is")
    add("--results", type=Path, default=_RESULTS, metavar="FOLDER", help="its page goes to FOLDER/NAME; default docs/results")
    add("--retry-failed", action="store_true", help="try runs again that failed")
    add("--data.source", metavar="SOURCE", help="how the data is read, such as image_folder; default that of the configs")
    add("--data.root", metavar="DIR", help="folder of the data; of next, a folder of folders such as cifar10")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
