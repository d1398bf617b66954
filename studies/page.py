"""The page of a study, ``report.md``: the claim, the paper's sentence, the commands, and the contents of the results file."""

import shlex
import textwrap
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from fl_lightning.callbacks.forgetting_names import forgetting_sign
from fl_lightning.functional.accuracy_curves import FINAL_IS
from fl_lightning.report.figures import drawing_style
from fl_lightning.report.study import SPREAD_IS
from fl_lightning.state.atomic_files import atomic_write
from fl_lightning.sweep.points import short_keys
from studies.declaration import Study, Sweep
from studies.results_file import COLLAPSED_IS, Result
from studies.table import Group, all_runs, compared, compared_within, groups, label, tag

PAGE = "report.md"
_INCHES, _RESOLUTION = 5.5, 150  # width of the figure, and dots an inch
_WIDTH = 128
_CODE_WIDTH = 88  # which a page of the site shows whole
_JOINT = "\N{NO-BREAK SPACE}"  # where a line does not end


def write_page(study: Study, results: Sequence[Result], folder: Path) -> None:
    """Write ``report.md`` and, once a run is done, ``figure.png``."""
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_write(folder / PAGE) as path:
        path.write_text(page(study, results), encoding="utf-8")
    if any(result.ended == "done" for result in results):
        with atomic_write(folder / "figure.png") as path, drawing_style(_INCHES):
            draw(study, groups(results)).savefig(path, format="png", dpi=_RESOLUTION)


def page(study: Study, results: Sequence[Result]) -> str:
    """Markdown."""
    found = groups(results)
    done = sum(result.ended == "done" for result in results)
    commands = "\n".join(_command(sweep) for sweep in study.sweeps)
    sections = [
        f"# {study.title}",
        _wrapped(f"**Claim.** {study.claim}"),
        _wrapped(f"**The paper.** {study.paper}"),
        *([_wrapped(f"**Remark.** {study.remark}")] if study.remark else []),
        f"```\npython -m studies {study.name} OUT\n```",
        _wrapped(
            "runs these sweeps and writes this page from [runs.csv](runs.csv), which has a row for each run. "
            + (f"All {done} runs are done." if done == study.total else f"{done} of {study.total} runs are done.")
        ),
        *([_pretrained(study.pretraining)] if study.pretraining else []),
        f"```\n{commands}\n```",
        *([_attacked(study)] if study.attack else []),
        *(_measured(study, found, results) if done else []),
        *([_failures(results)] if any(result.error for result in results) else []),
    ]
    return "\n\n".join(sections) + "\n"


def draw(study: Study, found: Sequence[Group]) -> Figure:
    """Draw the first of the measures that most settings have: each run as a point, the mean and its interval."""
    measure, heading = max(study.measures.items(), key=lambda one: sum(bool(group.by_seed(one[0])) for group in found))
    shown = [group for group in found if group.by_seed(measure)]
    figure = Figure(figsize=(_INCHES, 0.8 + 0.2 * max(len(shown), 1)), layout="constrained")
    axes = figure.subplots()
    for row, group in enumerate(shown):
        values, of_all = list(group.by_seed(measure).values()), group.over_all(measure)
        interval = np.clip(of_all.interval, 0, 1) if "accuracy" in measure else of_all.interval
        axes.plot(interval, [row, row], color="C0")
        axes.plot(values, [row] * len(values), "o", color="C0", alpha=0.4)
        axes.plot([of_all.mean], [row], "|", color="C0", ms=10)
    axes.set(xlabel=heading, yticks=range(len(shown)), yticklabels=[label(study, group) for group in shown])
    axes.invert_yaxis()
    return figure


def _measured(study: Study, found: Sequence[Group], results: Sequence[Result]) -> list[str]:
    differences, within = compared(study, found), compared_within(study, found)
    return [
        all_runs(study, found),
        _wrapped(f"{_how(study, found)} Final is the {FINAL_IS}. {_provenance(results)}"),
        *([_against(study, results), differences] if differences else []),
        *(["Two measures of the same runs, by the same test:", within] if within else []),
        "![Every run, and the mean of each setting](figure.png)",
    ]


def _how(study: Study, found: Sequence[Group]) -> str:
    """What the numbers of the table are."""
    collapsed = any(run.has_collapsed for group in found for run in group.done)
    said = SPREAD_IS
    if any(forgetting_sign(tag(measure)) < 0 for measure in study.measures):
        said += " Positive forgetting is a loss of accuracy; runs.csv has F_ki with the papers' sign, by which it is negative."
    said += " Where a run of a setting lacks a number, the table shows how many have it, and no mean."
    return said + f" A run has collapsed if {COLLAPSED_IS}." * collapsed


def _against(study: Study, results: Sequence[Result]) -> str:
    baseline = " and ".join(f"{key.rsplit('.', 1)[-1]} {value}" for key, value in study.baseline.items())
    names = "the values under *less*" if study.further else baseline
    key = short_keys({study.chosen: ""})[0] if study.chosen else ""
    return _wrapped(
        f"The measures that the claim names, less those of the runs with {names}, over the seeds that both have"
        + f", each with the {key} of the highest mean final validation accuracy" * bool(key)
        + " so far" * (len(results) < study.total)
        + "; p is that of Student's paired t test, two-sided, then corrected for all tests of this table by Holm's method:"
    )


def _command(sweep: Sweep) -> str:
    """As it is typed, on several lines, an option and its value on one; each sweep of several has a folder."""
    folder = f" --out {shlex.quote(sweep.name)}" if sweep.name else ""
    options = f"fl-lightning sweep {sweep.arguments}{folder}".split(" --")
    text = textwrap.fill(" --".join(option.replace(" ", _JOINT) for option in options), _CODE_WIDTH - 6, break_on_hyphens=False)
    return text.replace(_JOINT, " ").replace("\n", " \\\n    ")


def _pretrained(sweep: Sweep) -> str:
    begin = "The runs begin with the final weights of another, `--model.initial_weights CKPT`:"
    return f"{begin}\n\n```\n{_command(sweep)}\n```\n\nThen"


def _attacked(study: Study) -> str:
    return f"Each run is then attacked:\n\n```\nfl-lightning attack --ckpt_path CKPT {study.attack}\n```"


def _provenance(results: Sequence[Result]) -> str:
    """Of the runs that are done: commits, versions, data."""
    done = [result for result in results if result.ended == "done"]
    codes = ", ".join(dict.fromkeys(result.code for result in done))
    sources = ", ".join(dict.fromkeys(f"`{result.source}`" for result in done))
    rows = "The rows are of different code:" if "," in codes else "All rows are of"
    return f"{rows} fl-lightning {codes}; the data was read by {sources}."


def _failures(results: Sequence[Result]) -> str:
    failed = [(result, f", {result.code}" if result.version else "") for result in results if result.error]
    return "\n".join(["Failed:", "", *(f"- `{result.command}`{code}: {result.error}" for result, code in failed)])


def _wrapped(text: str) -> str:
    return textwrap.fill(text, _WIDTH, break_long_words=False, break_on_hyphens=False)
