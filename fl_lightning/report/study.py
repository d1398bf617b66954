"""A study: groups of runs that can be compared, the accuracy they are compared by, the baseline and the target."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.stats import bootstrap, ttest_rel

from fl_lightning.functional import final_accuracy, rounds_to_target
from fl_lightning.report.events import Curve
from fl_lightning.report.groups import RATE, Group, default_baseline, find_group, group_runs, is_condition
from fl_lightning.report.runs import Run

TASKS = "tasks/accuracy"
# Where classes arrive, a run has all three: test accuracy is of few classes first and of all at last, which no mean compares.
_METRICS = {TASKS: "accuracy on the tasks so far", "test/accuracy": "test accuracy", "val/accuracy": "validation accuracy"}
_OF_THE_BEST = 0.95  # the target if nobody names one: Table 1 of the Flashback paper
_NO_VARIATION = 1e-9  # of accuracies: less is rounding
_SHOWN = 10  # methods in one panel of a figure
_FEWEST = 3  # values of an interval


@dataclass(frozen=True)
class Spread:
    """A number over seeds."""

    values: tuple[float, ...]  # one a run

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
        """95 % interval of the mean, by the percentiles of a bootstrap over runs; NaN for fewer than three.

        B. Efron: Bootstrap Methods: Another Look at the Jackknife. The Annals of Statistics 7, 1979.
        """
        if len(self.values) < _FEWEST:
            return float("nan"), float("nan")
        if np.ptp(self.values) == 0:
            return self.mean, self.mean
        drawn = bootstrap((self.values,), np.mean, method="percentile", rng=np.random.default_rng(0))
        return float(drawn.confidence_interval.low), float(drawn.confidence_interval.high)


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

    def final(self, run: Run) -> float:
        """The final accuracy, as in the run's ``results.json``; on task streams the last one, after all tasks."""
        return final_value(self.accuracy(run), self.metric)

    def final_of(self, group: Group) -> Spread:
        """The final accuracies of a group, over its seeds."""
        return Spread(tuple(self.final(run) for run in group.runs))

    def rounds_to(self, run: Run, target: float) -> int | None:
        """The first evaluated round whose accuracy is at least ``target``."""
        curve = self.accuracy(run)
        evaluations = rounds_to_target(curve.values.tolist(), target)
        return None if evaluations is None else int(curve.rounds[evaluations - 1])

    def counterpart(self, group: Group) -> Group | None:
        """The baseline under the conditions of a group; None for the baseline itself and where there is none."""
        wanted = {key: (group if is_condition(key) else self.baseline).config.get(key) for key in group.label_keys}
        for other in self.finished:
            if all(other.config.get(key) == value for key, value in wanted.items()):
                return None if other is group else other
        return None

    def paired_test(self, group: Group, other: Group) -> tuple[Spread, float]:
        """Differences of the final accuracies seed by seed, and the p value of Student's paired t test, two-sided.

        NaN with fewer than two common seeds, and where all differences are the same.
        """
        ours, theirs = ({run.seed: self.final(run) for run in one.runs} for one in (group, other))
        return paired_test(ours, theirs)

    def best(self, groups: Sequence[Group]) -> Group:
        """The group of the highest mean final accuracy."""
        return max(groups, key=lambda group: self.final_of(group).mean)

    @property
    def tries_rates(self) -> bool:
        """Whether groups differ in the learning rate alone."""
        return len({group.setting(RATE) for group in self.groups}) < len(self.groups)

    def at_best_rate(self, groups: Sequence[Group]) -> list[Group]:
        """Of groups that differ in the learning rate alone the best one; finished before unfinished."""
        families: dict[frozenset, list[Group]] = defaultdict(list)
        for group in groups:
            families[group.setting(RATE)].append(group)
        return [self.best([group for group in family if group.finished] or family) for family in families.values()]

    def shown(self, *, finished: bool = True) -> dict[str, list[Group]]:
        """Condition -> what figures show of it: each method at its best learning rate, the ten best with the baseline."""
        conditions: dict[str, list[Group]] = defaultdict(list)
        for group in self.at_best_rate(self.finished if finished else self.groups):
            conditions[group.condition].append(group)
        for condition, groups in conditions.items():
            ranked = sorted(groups, key=lambda group: (group is not self.baseline, -self.final_of(group).mean))
            conditions[condition] = [group for group in groups if group in ranked[:_SHOWN]]
        return dict(conditions)


def final_value(accuracy: Curve, metric: str) -> float:
    """What counts of a run's accuracy, as in its ``results.json``; on task streams the last value, after all tasks."""
    if metric == TASKS:
        return float(accuracy.values[-1])
    return final_accuracy(dict(zip(accuracy.rounds.tolist(), accuracy.values.tolist(), strict=True)))


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
    chance of any false rejection is bounded, whatever the tests have in common. NaN stays NaN and is no test.
    """
    tests = sorted((p, i) for i, p in enumerate(p_values) if p == p)
    corrected, largest = list(p_values), 0.0
    for smaller, (p, i) in enumerate(tests):
        corrected[i] = largest = max(largest, min(1.0, (len(tests) - smaller) * p))
    return corrected


def common_curve(curves: Sequence[Curve]) -> tuple[np.ndarray, np.ndarray]:
    """Rounds (n,) that all curves have, and the values (curves, n) in them."""
    rounds = curves[0].rounds
    for curve in curves[1:]:
        rounds = np.intersect1d(rounds, curve.rounds)
    return rounds, np.stack([curve.at(rounds) for curve in curves])


def build_study(runs: Sequence[Run], baseline: str | None, target: float | None) -> tuple[Study, list[str]]:
    """Group runs, and choose accuracy, baseline and target; with remarks on the runs left out.

    Raises:
        ValueError: if the runs are of several data sets or have no accuracy in common, or ``baseline`` is no label.
    """
    measured = [run for run in runs if any(len(run.log.scalars[name].after(0)) for name in _METRICS if name in run.log.scalars)]
    remarks = [f"{run.folder}: left out, it has logged no accuracy" for run in runs if run not in measured]
    if not measured:
        raise ValueError(f"no run has logged an accuracy ({', '.join(_METRICS)}): wait for the first evaluation")
    check_same_data(measured)
    metric = common_metric(measured)
    groups, said = group_runs(measured)
    study = Study(tuple(groups), metric, groups[0], {}, "")
    scores = {group.label: study.final_of(group).mean for group in groups}
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
    where = "of any run" + " under the condition" * (len(conditions) > 1)
    return {
        condition: _OF_THE_BEST * float(top) for condition, top in highest.items()
    }, f"{_OF_THE_BEST:.0%} of the best {where}"


def check_same_data(runs: Sequence[Run]) -> None:
    """Refuse runs on several data sets, whose accuracies no table compares.

    Raises:
        ValueError: naming the sources, or the runs whose classes differ.
    """
    by_source, by_classes = defaultdict(list), defaultdict(list)
    for run in runs:
        by_source[Path(str(run.config.get("data.source"))).name].append(run)
        classes = frozenset(name for name in run.log.scalars if name.startswith("class_accuracy/"))
        if classes and not run.log.remarks:  # a log that is cut off may lack some
            by_classes[classes].append(run)
    if len(by_source) > 1:
        said = "; ".join(f"data.source is {source} in {_names(of)}" for source, of in by_source.items())
        raise ValueError(f"RUNS mix data sets: {said}. Give the runs of one data set at a time")
    if len(by_classes) > 1:
        said = " and ".join(f"those of {_names(of)}" for of in by_classes.values())
        raise ValueError(f"RUNS mix data sets: the classes differ between {said}. Give the runs of one data set at a time")


def common_metric(runs: Sequence[Run]) -> str:
    """The tag of the accuracy that all runs have logged: that on tasks before that on the test set, validation last.

    Raises:
        ValueError: naming the runs by what they have logged, if there is none.
    """
    for metric in _METRICS:
        if all(metric in run.log.scalars for run in runs):
            return metric
    kinds = defaultdict(list)
    for run in runs:
        kinds[next(metric for metric in _METRICS if metric in run.log.scalars)].append(run)
    said = "; ".join(f"{metric} in {_names(of)}" for metric, of in kinds.items())
    raise ValueError(f"RUNS have no accuracy in common: {said}. Give runs that log the same one")


def _names(runs: Sequence[Run]) -> str:
    more = f" and {len(runs) - 2} more" if len(runs) > 2 else ""
    return ", ".join(str(run.folder) for run in runs[:2]) + more
