"""The commands of this room as functions: ``fl-lightning report``, ``figures`` and ``compare``.

torch takes seconds to import: a function imports what it needs when it is called, so that its help does not.
"""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from fl_lightning.checks import check_range, counted
from fl_lightning.report.safe_text import one_line


def report(
    runs: list[Path],
    *,
    out: Path = Path("report"),
    baseline: str | None = None,
    target: float | None = None,
    width: float = 5.5,
    rounds: list[int] = [],  # noqa: B006  # the parser shows it as the default, and no one changes it
    forgetting: str | None = None,
) -> None:
    """Write tables and figures of any number of runs.

    They are ``report.html``, ``report.md``, ``tables/*.csv`` and ``*.tex``, and ``figures/*.png``, ``*.svg`` and ``*.pdf``.

    Args:
        runs: folders of runs, at any depth.
        out: folder of the report.
        baseline: label of the method that the others are tested against; by default FedAvg's.
        target: accuracy whose rounds are counted; by default the largest of the runs' callbacks.summary.targets, else 95 % of
            the highest accuracy under each condition.
        width: of the figures in inches: 3.25 is a column of ICML or CVPR, 5.5 the text of NeurIPS, 6.75 both columns of ICML.
        rounds: rounds of the heatmaps of clients, such as [1,2000,4000]; by default the last measured.
        forgetting: more definitions of forgetting for a table of their own, such as chaudhry,mammoth: names of
            fl_lightning.forgetting.DEFINITIONS that need no other run.

    Raises:
        FileNotFoundError: if a folder is missing or has no run that can be read.
        ValueError: if the runs cannot be compared, an option is wrong, or ``--out`` holds something else.
        OSError: if a file cannot be written.

    Example:
        fl-lightning report runs
    """
    from fl_lightning.report.definitions import definitions_named, missing_matrices
    from fl_lightning.report.figures import drawing_style
    from fl_lightning.report.page import Report, check_out, write_report
    from fl_lightning.report.runs import read_runs
    from fl_lightning.report.sections import missing_rounds, sections
    from fl_lightning.report.study import build_study, count_of, lead_of, shared_settings, title_of
    from fl_lightning.report.tables import overview, settings

    if target is not None:
        check_range("--target", target, above=0, at_most=1, hint="0.9 is 90 %")
    _check_width(width)
    _check_out("--out", out)
    check_out(out)
    definitions = definitions_named(forgetting) if forgetting is not None else []
    read, remarks = read_runs(runs)
    study, said = build_study(read, baseline, target)
    with drawing_style(width):
        found = list(sections(study, rounds, definitions))
        remarks += said + missing_rounds(study, rounds) + missing_matrices(study, definitions)
        tables = [overview(study), *settings(study)]
        write_report(Report(title_of(study), lead_of(study), found, tables, remarks, shared_settings(study)), out)
    _say_left_out(remarks)
    print(f"Report of {count_of(study)}: {out / 'report.html'}")


def figures(
    run: Path,
    out: Path,
    *,
    format: Literal["png", "svg", "pdf"] = "pdf",
    width: float = 5.5,
    rounds: list[int] = [],  # noqa: B006  # as above
) -> None:
    """Draw the pictures of one run as files for a paper.

    Of the width of a paper's column, with text of 7 points or larger. Curves as in a report: accuracy, forgetting, tasks and
    bytes. And all that callbacks drew, if its numbers were logged: client forgetting, accuracy by class and its drops, one
    round by class, probes, personal models, labels of clients and of cohorts, and the accuracy, confusion, classes and
    attention of tasks.

    Args:
        run: the folder of one run.
        out: the folder of the files.
        format: of the files.
        width: in inches: 3.25 is a column of ICML or CVPR, 5.5 the text of NeurIPS, 6.75 both columns of ICML.
        rounds: rounds of the heatmaps; by default the last measured of each.

    Raises:
        FileNotFoundError: if RUN is not a folder or has no run that can be read.
        ValueError: if RUN holds several runs, OUT is a file, or an option is wrong; after all other pictures are drawn, if the
            numbers of one do not fit each other.
        OSError: if a file cannot be written.

    Example:
        fl-lightning figures runs/a figures
    """
    from fl_lightning.report.figure_files import draw_run, write_figure_file
    from fl_lightning.report.figures import drawing_style
    from fl_lightning.report.runs import read_runs

    _check_width(width)
    _check_out("OUT", out)
    if not run.is_dir():
        raise FileNotFoundError(f"RUN is {run}, which is not a folder: give that of a run")
    runs, remarks = read_runs([run])
    if len(runs) > 1:
        raise ValueError(f"RUN is {run}, which holds {len(runs)} runs: give one of them, such as {runs[0].folder}")
    drawn, said = draw_run(runs[0], rounds)
    _say_left_out([*remarks, *said])
    count = 0
    with drawing_style(width):
        for name, figure in drawn:
            write_figure_file(figure, out / f"{name}.{format}", format)
            count += 1
    print(f"{counted(count, 'figure')} of {runs[0].folder}: {out}")


def compare(first: Path, second: Path, *, out: Path | None = None) -> None:
    """Compare two runs or sweeps: the settings in which they differ, and their results.

    Args:
        first: a run's folder, or one of many runs, at any depth.
        second: what it is compared with.
        out: folder of the tables as CSV and LaTeX; by default they are only printed.

    Raises:
        FileNotFoundError: if a folder is missing or has no run that can be read.
        ValueError: if the sides cannot be compared, or ``--out`` is a file.
        OSError: if a file cannot be written.

    Example:
        fl-lightning compare runs/a runs/b
    """
    from fl_lightning.report.comparison import compare, show
    from fl_lightning.report.runs import read_runs
    from fl_lightning.report.table_files import write_table

    if out is not None:
        _check_out("--out", out)
    (ours, remarks), (theirs, more) = read_runs([first]), read_runs([second])
    settings, outcome, said = compare(ours, theirs)
    show(settings, outcome)
    if out is not None:
        for table in (settings, outcome):
            write_table(table, out)
    _say_left_out([*remarks, *more, *said])


def _check_width(width: float) -> None:
    check_range("--width", width, at_least=2, at_most=40, hint="the width of figures in inches")


def _check_out(key: str, out: Path) -> None:
    if any(folder.exists() and not folder.is_dir() for folder in (out, *out.parents)):
        raise ValueError(f"{key} is {out}, which is a file or is inside one: give a folder")


def _say_left_out(remarks: Iterable[str]) -> None:
    for remark in remarks:
        print(one_line(remark), file=sys.stderr)
