"""``fl-lightning report RUNS... --out report/``: tables and figures from the logs of any number of runs."""

import sys
from collections.abc import Sequence
from pathlib import Path

from jsonargparse import ArgumentParser

from fl_lightning.checks import check_range
from fl_lightning.command_line.one_line_errors import parse
from fl_lightning.command_line.plain_help import PlainFormatter
from fl_lightning.report.figures import drawing_style
from fl_lightning.report.page import Report, check_out, write_report
from fl_lightning.report.runs import read_runs
from fl_lightning.report.safe_text import one_line, shortened
from fl_lightning.report.sections import missing_rounds, sections
from fl_lightning.report.study import Study, build_study
from fl_lightning.report.tables import overview, settings

_LONGEST = 200  # characters of a setting that all runs share


def run(arguments: Sequence[str]) -> None:
    """Read the runs, write the report and say where it lies, and on standard error what was skipped.

    Raises:
        FileNotFoundError: if a folder is missing or holds no run that can be read.
        ValueError: if the runs cannot be compared, an option is wrong, or ``--out`` holds something else.
        OSError: if a file cannot be written.
    """
    options = parse(_parser(), arguments)
    if not options.runs:
        raise ValueError("RUNS are missing: give folders of runs, as in fl-lightning report runs")
    if options.target is not None:
        check_range("--target", options.target, above=0, at_most=1, hint="0.9 is 90 %")
    out = Path(options.out)
    check_out(out)
    runs, remarks = read_runs([Path(path) for path in options.runs])
    study, said = build_study(runs, options.baseline, options.target)
    with drawing_style():
        found = list(sections(study, options.rounds))
        remarks += said + missing_rounds(study, options.rounds)
        read = [overview(study), *settings(study)]
        write_report(Report(_title(study), _lead(study), found, read, remarks, _shared(study)), out)
    for remark in remarks:
        print(one_line(remark), file=sys.stderr)
    print(f"Report of {_count(study)}: {out / 'report.html'}")


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="fl-lightning report",
        description="Tables and figures from the logs of runs: report.html, report.md, tables/*.csv, figures/*.png and *.svg.",
        formatter_class=PlainFormatter,
        exit_on_error=False,
        allow_abbrev=False,
    )
    parser.add_argument("runs", metavar="RUNS", nargs="*", type=str, help="folders of runs, at any depth")
    parser.add_argument("--out", type=str, default="report", help="folder of the report")
    parser.add_argument(
        "--baseline", type=str | None, help="label of the method that the others are tested against; by default FedAvg's"
    )
    parser.add_argument(
        "--target",
        type=float | None,
        help="accuracy whose rounds are counted; by default the largest of the runs' callbacks.summary.targets, else 95 %% of "
        "the highest accuracy of any run",
    )
    parser.add_argument(
        "--rounds",
        type=list[int],
        default=[],
        help="rounds of the who-forgets heatmaps, such as [1,2000,4000]; by default the last measured",
    )
    return parser


def _title(study: Study) -> str:
    first = study.groups[0]
    source = Path(str(first.config.get("data.source"))).name
    if source in ("image_folder", "leaf"):  # which says how the data lies, not what it is
        source = Path(str(first.runs[0].config.get("data.root"))).name
    return f"{len(study.groups)} methods on {source}" if len(study.groups) > 1 else f"{first.label} on {source}"


def _count(study: Study) -> str:
    runs, methods = sum(len(group.runs) for group in study.groups), len(study.groups)
    return f"{runs} run{'s' * (runs > 1)} of {methods} method{'s' * (methods > 1)}"


def _lead(study: Study) -> list[str]:
    runs = [len(group.runs) for group in study.groups]
    seeds = f"{min(runs)} to {max(runs)} seeds" if min(runs) < max(runs) else f"{runs[0]} seed{'s' * (runs[0] > 1)}"
    lead = [
        f"{_count(study)}, {seeds} each, compared by {study.metric_name}. A method here is runs that differ in the seed alone."
    ]
    if max(runs) == 1:
        lead.append("With one seed nothing can be said of chance: no figure has an interval and no table a deviation.")
    return lead


def _shared(study: Study) -> list[tuple[str, str]]:
    """Settings that are the same in all groups."""
    common = set.intersection(*(set(group.config.items()) for group in study.groups))
    return sorted((key, shortened(str(value), _LONGEST)) for key, value in common)
