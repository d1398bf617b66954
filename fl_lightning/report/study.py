"""A study: groups of runs that can be compared, the accuracy they are compared by, the baseline and the target."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from pathlib import Path
from typing import Self

import numpy as np
from scipy.stats import t, ttest_rel

from fl_lightning.checks import counted
from fl_lightning.functional import final_accuracy
from fl_lightning.functional.accuracy_curves import first_round_reaching
from fl_lightning.report.groups import RATE, Group, default_baseline, find_group, group_runs, is_condition
from fl_lightning.report.log import Curve
from fl_lightning.report.runs import Run
from fl_lightning.report.safe_text import shortened

TASKS = "tasks/accuracy"
# Where classes arrive, a run has all three: test accuracy is of few classes first and of all at last, which no mean compares.
_METRICS = {TASKS: "accuracy on the tasks so far", "test/accuracy": "test accuracy", "val/accuracy": "validation accuracy"}
_OF_THE_BEST = 0.95  # the target if no one names one: Table 1 of the Flashback paper
_NO_VARIATION = 1e-9  # of accuracies: less is rounding
_SHOWN = 10  # methods in one panel of a figure
_LONGEST_SETTING = 200  # characters of one that all runs share
INTERVAL_IS = "by Student's t"  # a percentile bootstrap covers 75 % with three seeds and 90 % with ten
SPREAD_IS = (
    f"Mean ± sample standard deviation over seeds, in brackets the 95 % interval of the mean, {INTERVAL_IS}. A number that is "
    "the same for all seeds is given once."
)


@dataclass(frozen=True)
class Spread:
    """A number over seeds."""

    values: tuple[float, ...]  # one a run

    @classmethod
    def of_all(cls, values: Iterable[float], runs: int) -> Self:
        """Of none where one of the runs lacks the number: a mean over the others would flatter."""
        found = tuple(map(float, values))
        return cls(found if len(found) == runs else ())

    @property
    def mean(self) -> float:
        """NaN without a run."""
        return float(np.mean(self.values)) if self.values else float("nan")

    @property
    def deviation(self) -> float:
        """Of a sample, with n - 1; NaN for one run."""
        return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else float("nan")

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the mean, by Student's t; NaN for a single run."""
        count = len(self.values)
        if count < 2:
            return float("nan"), float("nan")
        half = float(t.ppf(0.975, count - 1)) * self.deviation / math.sqrt(count)
        return self.mean - half, self.mean + half


@dataclass(frozen=True)
class Study:
    """What a report is about."""

    groups: tuple[Group, ...]
    metric: str  # the scalar that methods are compared by
    baseline: Group
    targets: dict[str, float]  # condition -> accuracy whose rounds are counted
    targets_from: str  # where they come from, in words
    unfinished_too: bool = False  # whether runs that go on count as if they had ended

    @property
    def metric_name(self) -> str:
        """The metric in words."""
        return _METRICS[self.metric]

    @property
    def finished(self) -> list[Group]:
        """The groups whose runs came to their end; all with ``unfinished_too``."""
        return [group for group in self.groups if group.finished or self.unfinished_too]

    def accuracy(self, run: Run) -> Curve:
        """The run's accuracy; the untrained round 0 is left out."""
        return run.log.scalars[self.metric].after(0)

    def final_of(self, group: Group) -> Spread:
        """The final accuracies of a group, over its seeds."""
        return Spread(tuple(self.finals(group).values()))

    def rounds_to(self, run: Run, target: float) -> int | None:
        """The first evaluated round with an accuracy of at least ``target``."""
        return first_round_reaching(self.accuracy(run).by_round(), target)

    def counterpart(self, group: Group) -> Group | None:
        """The baseline under the conditions of a group; None for the baseline itself and where there is none.

        It may be tuned to another rate under each condition, unless several of its rates are in the study.
        """
        keys = [key for key in group.label_keys if key != RATE or self.rates_are]
        wanted = {key: (group if is_condition(key) else self.baseline).config.get(key) for key in keys}
        for other in self.finished:
            if all(other.config.get(key) == value for key, value in wanted.items()):
                return None if other is group else other
        return None

    def finals(self, group: Group) -> dict[int, float]:
        """The final accuracies of a group by seed."""
        return {run.seed: final_value(self.accuracy(run), self.metric) for run in group.runs}

    def against_baseline(self, group: Group, scores: Callable[[Group], Mapping[int, float]]) -> tuple[Spread, float]:
        """:func:`paired_test` of a group's scores by seed and the baseline's; no difference and NaN for the baseline.

        Nor where a run of either lacks the score: a difference over the others would flatter.
        """
        other = self.counterpart(group)
        if other is None or any(len(scores(one)) < len(one.runs) for one in (group, other)):
            return Spread(()), math.nan
        return paired_test(scores(group), scores(other))

    @cached_property
    def choosing(self) -> str:
        """The scalar that chooses learning rates: validation accuracy in place of test accuracy if all runs have it."""
        validated = all("val/accuracy" in _measured(run) for group in self.groups for run in group.runs)
        return "val/accuracy" if self.metric == "test/accuracy" and validated else self.metric

    def chosen_by(self, group: Group) -> float:
        """The mean final value, over a group's seeds, of the scalar that chooses learning rates."""
        return float(np.mean([final_value(run.log.scalars[self.choosing].after(0), self.metric) for run in group.runs]))

    @property
    def rates_are(self) -> str:
        """How learning rates were chosen, in words; empty unless groups differ only in the learning rate."""
        tried = len({group.setting(RATE) for group in self.groups}) < len(self.groups)
        return f"each at its best learning rate by {_METRICS[self.choosing]}" if tried else ""

    def at_best_rate(self, groups: Sequence[Group]) -> list[Group]:
        """Of groups that differ only in the learning rate, the best one; finished before unfinished."""
        families: dict[frozenset, list[Group]] = defaultdict(list)
        for group in groups:
            families[group.setting(RATE)].append(group)
        shown = ([group for group in family if group.finished] or family for family in families.values())
        return [max(family, key=self.chosen_by) for family in shown]

    def shown(self, *, finished: bool = True) -> dict[str, list[Group]]:
        """Condition -> what figures show of it: each method at its best learning rate, the ten best with the baseline."""
        conditions: dict[str, list[Group]] = defaultdict(list)
        for group in self.at_best_rate(self.finished if finished else self.groups):
            conditions[group.condition].append(group)
        for condition, groups in conditions.items():
            ranked = sorted(groups, key=lambda group: (group.named != self.baseline.named, -self.final_of(group).mean))
            conditions[condition] = [group for group in groups if group in ranked[:_SHOWN]]
        return dict(conditions)


def final_value(accuracy: Curve, metric: str) -> float:
    """What counts of a run's accuracy, as in its ``results.json``; on task streams the last value, after all tasks."""
    if metric == TASKS:
        return float(accuracy.values[-1])
    return final_accuracy(accuracy.by_round())


def paired_test(ours: Mapping[int, float], theirs: Mapping[int, float]) -> tuple[Spread, float]:
    """Ours less theirs at the seeds that both have, and the p value of Student's paired t test, two-sided.

    NaN with fewer than two common seeds, and where all differences are the same.
    """
    common = sorted(ours.keys() & theirs.keys())
    differences = Spread(tuple(ours[seed] - theirs[seed] for seed in common))
    if len(common) < 2 or np.ptp(differences.values) < _NO_VARIATION:
        return differences, float("nan")
    return differences, float(ttest_rel([ours[seed] for seed in common], [theirs[seed] for seed in common]).pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction for the number of tests (Scandinavian Journal of Statistics 6, 1979).

    The i-th smallest of m p values, counted from 0, becomes the largest ``(m - j) p_j`` of those up to it, at most 1. So the
    chance of any false rejection is bounded, whatever the tests have in common. NaN stays NaN and does not count as a test.
    """
    tests = sorted((p, i) for i, p in enumerate(p_values) if p == p)
    corrected, largest = list(p_values), 0.0
    for smaller, (p, i) in enumerate(tests):
        corrected[i] = largest = max(largest, min(1.0, (len(tests) - smaller) * p))
    return corrected


def common_curve(curves: Sequence[Curve]) -> tuple[np.ndarray, np.ndarray]:
    """Rounds (n,) that all curves have, and the values (curves, n) in them."""
    rounds = reduce(np.intersect1d, (curve.rounds for curve in curves))
    return rounds, np.stack([curve.at(rounds) for curve in curves])


def build_study(runs: Sequence[Run], baseline: str | None, target: float | None) -> tuple[Study, list[str]]:
    """Group runs, and choose accuracy, baseline and target; with remarks on the runs left out.

    Raises:
        ValueError: if none has logged an accuracy, the runs are of several datasets or have no accuracy in common, or
            ``baseline`` is not a label.
    """
    measured, remarks = measured_runs(runs)
    check_same_data(measured)
    metric = common_metric(measured)
    groups, said = group_runs(measured)
    study = Study(tuple(groups), metric, groups[0], {}, "")
    scores = {group.label: study.chosen_by(group) for group in groups}
    base = default_baseline(study.finished or groups, scores) if baseline is None else find_group(groups, baseline)
    return Study(tuple(groups), metric, base, *_targets(study, target)), remarks + said


def _targets(study: Study, given: float | None) -> tuple[dict[str, float], str]:
    """The target of each condition: the one asked for, that of the configs, or that of Table 1 of the Flashback paper."""
    conditions = defaultdict(list)
    for group in study.groups:
        conditions[group.condition] += group.runs
    named = [goal for runs in conditions.values() for run in runs for goal in run.config.get("callbacks.summary.targets", ())]
    if given is not None:
        return dict.fromkeys(conditions, given), "as asked for by --target"
    if named:
        return dict.fromkeys(conditions, max(named)), "the largest of the runs' callbacks.summary.targets"
    highest = {condition: max(study.accuracy(run).values.max() for run in runs) for condition, runs in conditions.items()}
    goals = {condition: _OF_THE_BEST * float(top) for condition, top in highest.items()}
    return goals, f"{_OF_THE_BEST:.0%} of the best of any run" + " under the condition" * (len(conditions) > 1)


def measured_runs(runs: Sequence[Run]) -> tuple[list[Run], list[str]]:
    """Runs that have logged an accuracy of a trained model, and remarks on the others.

    Raises:
        ValueError: if there are none.
    """
    measured = [run for run in runs if _measured(run)]
    if not measured:
        metrics = ", ".join(_METRICS)
        raise ValueError(f"no run has logged an accuracy ({metrics}) in {_names(runs)}: wait for the first evaluation")
    return measured, [f"{run.folder}: left out, it has logged no accuracy" for run in runs if run not in measured]


def _measured(run: Run) -> list[str]:
    """Tags of accuracies with a value after round 0."""
    return [metric for metric in _METRICS if metric in run.log.scalars and len(run.log.scalars[metric].after(0))]


def check_same_data(runs: Sequence[Run]) -> None:
    """Refuse runs on several datasets: no table compares their accuracies.

    Raises:
        ValueError: naming the sources, or the runs with different classes.
    """
    by_source, by_classes = defaultdict(list), defaultdict(list)
    for run in runs:
        by_source[Path(str(run.config.get("data.source"))).name].append(run)
        classes = frozenset(name for name in run.log.scalars if name.startswith("class_accuracy/"))
        if classes and not run.log.remarks:  # a log that is cut off may lack some
            by_classes[classes].append(run)
    widest = max(by_classes, key=len, default=frozenset())
    for classes in [part for part in by_classes if part < widest]:
        # Of a stream of classes a run has those that have arrived.
        if all(run.config.get("data.tasks") for run in by_classes[classes]):
            del by_classes[classes]
    if len(by_source) > 1:
        said = "; ".join(f"data.source is {source} in {_names(of)}" for source, of in by_source.items())
        raise ValueError(f"RUNS mix datasets: {said}. Give the runs of one dataset at a time")
    if len(by_classes) > 1:
        said = " and ".join(f"those of {_names(of)}" for of in by_classes.values())
        raise ValueError(f"RUNS mix datasets: the classes differ between {said}. Give the runs of one dataset at a time")


def common_metric(runs: Sequence[Run]) -> str:
    """The tag of the accuracy that all measured runs have: that on tasks before that on the test set, validation last.

    Raises:
        ValueError: naming the runs by what they have logged, if there is none.
    """
    for metric in _METRICS:
        if all(metric in _measured(run) for run in runs):
            return metric
    kinds = defaultdict(list)
    for run in runs:
        kinds[_measured(run)[0]].append(run)
    said = "; ".join(f"{metric} in {_names(of)}" for metric, of in kinds.items())
    raise ValueError(f"RUNS have no accuracy in common: {said}. Give runs that log the same one")


def _names(runs: Sequence[Run]) -> str:
    more = f" and {len(runs) - 2} more" if len(runs) > 2 else ""
    return ", ".join(str(run.folder) for run in runs[:2]) + more


def title_of(study: Study) -> str:
    """The title of a report on it."""
    first = study.groups[0]
    source = Path(str(first.config.get("data.source"))).name
    if source in ("image_folder", "leaf"):  # which is the layout of the data, not its name
        source = Path(str(first.runs[0].config.get("data.root"))).name
    return f"{len(study.groups)} methods on {source}" if len(study.groups) > 1 else f"{first.label} on {source}"


def count_of(study: Study) -> str:
    """How many runs of how many methods there are."""
    runs, methods = sum(len(group.runs) for group in study.groups), len(study.groups)
    return f"{counted(runs, 'run')} of {counted(methods, 'method')}"


def lead_of(study: Study) -> list[str]:
    """The first paragraphs of a report on it."""
    runs = [len(group.runs) for group in study.groups]
    seeds = f"{min(runs)} to {max(runs)} seeds" if min(runs) < max(runs) else counted(runs[0], "seed")
    compared = f"{count_of(study)}, {seeds} each, compared by {study.metric_name}."
    lead = [f"{compared} Runs of one method differ only in the seed."]
    if max(runs) == 1:
        lead.append("With one seed, variation cannot be estimated: figures have no intervals and tables no deviations.")
    return lead


def shared_settings(study: Study) -> list[tuple[str, str]]:
    """Settings that are the same in all groups."""
    common = set.intersection(*(set(group.config.items()) for group in study.groups))
    return sorted((key, shortened(str(value), _LONGEST_SETTING)) for key, value in common)
