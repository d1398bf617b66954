"""Tables of what the models forgot: means, the best of them, and tests against the baseline."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fl_lightning.callbacks.forgetting_names import forgetting_sign
from fl_lightning.functional.forgetting import mean_over_rounds
from fl_lightning.report.groups import Group
from fl_lightning.report.runs import Run
from fl_lightning.report.study import INTERVAL_IS, TASKS, Spread, Study, holm
from fl_lightning.report.tables import (
    DASH,
    Table,
    baseline_note,
    best_and_second,
    compared,
    interval,
    mean_and_sd,
    means_and_sds,
    spread,
)

_MORE_IS_BETTER = (TASKS, "tasks/backward_transfer")
_SIZE = "tasks/model_megabytes"  # no score


@dataclass(frozen=True)
class Measure:
    """One scalar of runs as a score."""

    scalar: str  # its tag
    label: str  # what a table calls it
    of: Callable[[Run, str], float]  # its score in a run that has logged it

    @property
    def column(self) -> str:
        """What files call it: its tag, or where its sign is the other one, that with ``_positive``."""
        return self.scalar if forgetting_sign(self.scalar) > 0 else f"{self.scalar}_positive"

    def by_seed(self, group: Group) -> dict[int, float]:
        """Scores of the runs of a group that have logged it."""
        return {run.seed: self.of(run, self.scalar) for run in group.runs if self.scalar in run.log.scalars}

    def over_seeds(self, group: Group) -> Spread:
        """The same as a spread."""
        return Spread.of_all(self.by_seed(group).values(), len(group.runs))

    def rank(self, group: Group) -> float:
        """The mean with the sign by which more is better; NaN where nothing was logged, or where it is not a score."""
        mean = math.nan if self.scalar == _SIZE else self.over_seeds(group).mean
        return mean if self.scalar in _MORE_IS_BETTER else -mean


def forgetting(study: Study, names: dict[str, str]) -> list[Table]:
    """Means over rounds of what was measured, and their tests; ``names``: scalar -> what it is called."""
    measures = [Measure(name, label, forgotten) for name, label in names.items()]
    groups = [group for group in study.finished if any(measure.by_seed(group) for measure in measures)]
    note = "Means over all measured rounds but round 1, mean ± standard deviation over seeds; positive is forgetting."
    table = _scores("forgetting", "Forgetting", note, "the least forgetting", groups, measures)
    return [table, *_tests(study, table, groups, measures)]


def mean_after_first(run: Run, name: str) -> float:
    """Mean over the rounds of a run, see :func:`mean_over_rounds`."""
    return mean_over_rounds(run.log.scalars[name].by_round())


def forgotten(run: Run, name: str) -> float:
    """:func:`mean_after_first` with the sign by which more is more forgetting."""
    return forgetting_sign(name) * mean_after_first(run, name)


def tasks(study: Study) -> list[Table]:
    """What clients that learn tasks one after another know at the end, and tests of what they forgot; none for other runs."""
    names = {
        TASKS: "accuracy",
        "tasks/forgetting": "forgetting",
        "tasks/backward_transfer": "backward transfer",
        _SIZE: "models, MB",
    }
    measures = [Measure(name, label, lambda run, name: run.log.newest(name)) for name, label in names.items()]
    groups = [group for group in study.finished if all(TASKS in run.log.scalars for run in group.runs)]
    if not groups:
        return []
    note = (
        "After the last round, means over seeds and, where each client learns tasks, over clients, ± standard deviation over "
        "seeds. Forgetting is the mean drop from the best accuracy on each earlier task (positive is forgetting), backward "
        "transfer the change since it was learned (negative is forgetting)."
    )
    table = _scores("tasks", "Task streams", note, "the best", groups, measures)
    return [table, *_tests(study, table, groups, measures[1:3])]  # accuracy's are those of the final accuracy


def _scores(name: str, title: str, note: str, best: str, groups: Sequence[Group], measures: Sequence[Measure]) -> Table:
    """A row for each group, a column for each measure; ``best``: what bold marks."""
    scalars = [measure.column for measure in measures]
    spreads = [[measure.over_seeds(group) for measure in measures] for group in groups]
    records = [{"method": group.label} | means_and_sds(scalars, scores) for group, scores in zip(groups, spreads, strict=True)]
    rows = [[group.label, *map(spread, scores)] for group, scores in zip(groups, spreads, strict=True)]
    ranks = {column: [measure.rank(group) for group in groups] for column, measure in enumerate(measures, 1)}
    marked = best_and_second([group.condition for group in groups], ranks)
    condition = " under each condition" if any(group.condition for group in groups) else ""
    note = f"{note} Bold is {best}{condition}, underlined the second."
    return Table(name, title, note, ["method", *(measure.label for measure in measures)], rows, records, *marked)


def _tests(study: Study, table: Table, groups: Sequence[Group], measures: Sequence[Measure]) -> list[Table]:
    """Intervals of the means, and paired tests against the baseline; no table where there is neither."""
    scored = [(group, measure, *study.against_baseline(group, measure.by_seed)) for group in groups for measure in measures]
    scored = [one for one in scored if one[1].by_seed(one[0])]
    corrected = holm([p for *_, p in scored])
    spreads = [measure.over_seeds(group) for group, measure, *_ in scored]
    if all(math.isnan(value) for value in (*corrected, *(values.interval[0] for values in spreads))):
        return []
    rows, records = [], []
    for (group, measure, differences, p), p_holm, values in zip(scored, corrected, spreads, strict=True):
        rows.append([group.label, measure.label, spread(values), interval(values), *compared(differences, p_holm)])
        records.append(
            {"method": group.label, "measure": measure.column}
            | mean_and_sd("score", values)
            | dict(zip(("low", "high"), values.interval, strict=True))
            | {"pairs": len(differences.values), "difference": differences.mean, "p": p, "p_holm": p_holm}
        )
    columns = ["method", "measure", "mean", "its 95 % interval", "against the baseline (pairs)", "p (Holm)"]
    tests = baseline_note(study, sum(not math.isnan(p) for p in corrected))
    note = f"Mean ± standard deviation over seeds; the interval is that of the mean, {INTERVAL_IS}. {tests} {DASH} where there "
    note += "are too few seeds, no baseline under the same condition, or no variation."
    return [Table(f"{table.name}_tests", f"{table.title}: intervals and tests", note, columns, rows, records, texts=2)]
