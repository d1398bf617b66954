"""``fl-lightning figures RUN OUT``: the pictures of one run as files for a paper."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import get_args

from jsonargparse import ArgumentParser
from matplotlib.figure import Figure

from fl_lightning.callbacks.loggers import file_name
from fl_lightning.checks import check_choice, check_range
from fl_lightning.command_line.one_line_errors import parse
from fl_lightning.command_line.plain_help import PlainFormatter
from fl_lightning.report.figure_files import WIDTHS, Format, fit_to_width, write_figure_file
from fl_lightning.report.figures import drawing_style
from fl_lightning.report.run_figures import Picture, pictures
from fl_lightning.report.runs import read_runs
from fl_lightning.report.safe_text import one_line
from fl_lightning.report.sections import drawings_over_rounds
from fl_lightning.report.study import Study, build_study

_NAMED_ROUNDS = 10  # in an error


def run(arguments: Sequence[str]) -> None:
    """Draw what a run recorded, and on standard error say what could not be read.

    Raises:
        FileNotFoundError: if RUN is no folder or holds no run that can be read.
        ValueError: if RUN holds several runs, OUT is a file, or an option is wrong.
        OSError: if a file cannot be written.
    """
    options = parse(_parser(), arguments)
    if options.out is None:
        raise ValueError("OUT is missing: give a run's folder and one for the files, as in fl-lightning figures runs/a figures")
    check_choice("--format", options.format, Format)
    width, out = _inches(options.width), Path(options.out)
    if any(folder.exists() and not folder.is_dir() for folder in (out, *out.parents)):
        raise ValueError(f"OUT is {out}, which is a file or lies in one: give a folder")
    if not Path(options.run).is_dir():
        raise FileNotFoundError(f"RUN is {options.run}, which is no folder: give that of a run")
    runs, remarks = read_runs([Path(options.run)])
    if len(runs) > 1:
        raise ValueError(f"RUN is {options.run}, which holds {len(runs)} runs: give one of them, such as {runs[0].folder}")
    study, said = build_study(runs, None, None)
    shown = pictures(runs[0].log)
    _check_rounds(options.rounds, shown)
    count = 0
    for name, figure in (*_curves(study), *_drawn(shown, options.rounds)):
        if width is not None:
            fit_to_width(figure, width)
        write_figure_file(figure, out / f"{name}.{options.format}", options.format)
        count += 1
    for remark in (*remarks, *said):
        print(one_line(remark), file=sys.stderr)
    print(f"{count} figure{'s' * (count > 1)} of {runs[0].folder}: {out}")


def _check_rounds(asked: Sequence[int], shown: Sequence[Picture]) -> None:
    measured = sorted({round for picture in shown if not picture.of_the_run for round in picture.rounds})
    if missing := [round for round in asked if round not in measured]:
        more = f" and {len(measured) - _NAMED_ROUNDS} more" if len(measured) > _NAMED_ROUNDS else ""
        there = f"there are {', '.join(map(str, measured[:_NAMED_ROUNDS]))}{more}" if measured else "leave it out"
        raise ValueError(f"--rounds has {missing[0]}, of which RUN has no heatmap: {there}")


def _curves(study: Study) -> Iterator[tuple[str, Figure]]:
    """Those of a report, with their names."""
    with drawing_style():
        yield from [(drawing.name, drawing.figure) for drawing in drawings_over_rounds(study)]


def _drawn(shown: Sequence[Picture], rounds: Sequence[int]) -> Iterator[tuple[str, Figure]]:
    """Those of callbacks, with the names that :class:`CSVLogger` gives their files."""
    for picture in shown:
        for round in picture.chosen(rounds):
            yield file_name(picture.tag, round), picture.draw(round)


def _inches(width: str | None) -> float | None:
    """A width, by its number or by a paper's style; None for that of each figure."""
    if width is None or width in WIDTHS:
        return None if width is None else WIDTHS[width]
    try:
        inches = float(width)
    except ValueError:
        check_choice("--width", width, list(WIDTHS), hint="or a number of inches")
        raise
    check_range("--width", inches, at_least=1, at_most=40, hint="in inches")
    return inches


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="fl-lightning figures",
        description="The pictures of one run as files, at the width of a paper's column. Curves as in a report: accuracy, "
        "forgetting, tasks and bytes. And all that callbacks drew, if its numbers were logged: client forgetting, accuracy "
        "by class and its drops, one round by class, personal models, labels of clients and of cohorts, and the accuracy, "
        "confusion, classes and attention of tasks.",
        formatter_class=PlainFormatter,
        exit_on_error=False,
        allow_abbrev=False,
    )
    parser.add_argument("run", metavar="RUN", nargs="?", type=str, help="folder of one run")
    parser.add_argument("out", metavar="OUT", nargs="?", type=str, help="folder of the files")
    parser.add_argument("--format", type=str, default="pdf", help=f"one of {', '.join(get_args(Format))}")
    columns = ", ".join(f"{name} ({width})" for name, width in WIDTHS.items())
    parser.add_argument("--width", type=str | None, help=f"inches, or a paper's column: {columns}; by default the figure's")
    parser.add_argument(
        "--rounds", type=list[int], default=[], help="rounds of the heatmaps; by default the last measured of each"
    )
    return parser
