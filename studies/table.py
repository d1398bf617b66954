"""Tables of a study, from only the rows of its results file."""

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from fl_lightning.callbacks.forgetting_names import forgetting_sign
from fl_lightning.report.study import Spread, holm, paired_test
from fl_lightning.report.tables import DASH, markdown, not_all, number, spread_and_interval
from fl_lightning.sweep.points import short_keys
from studies.declaration import SWEEP, Study
from studies.results_file import Result

_VALIDATION = "val_accuracy"


@dataclass(frozen=True)
class Group:
    """Runs of a study that differ only in the seed."""

    setting: dict[str, str]  # the sweep's name and what the study varies
    runs: tuple[Result, ...]

    @property
    def done(self) -> list[Result]:
        """Those that have not failed."""
        return [run for run in self.runs if run.ended == "done"]

    @property
    def said(self) -> str:
        """How many runs there are, and how many of them have failed or collapsed."""
        counts = {"failed": len(self.runs) - len(self.done), "collapsed": sum(run.has_collapsed for run in self.done)}
        return ", ".join([f"{len(self.runs)}", *(f"{count} {what}" for what, count in counts.items() if count)])

    @property
    def seeds(self) -> set[int]:
        """Of all runs."""
        return {run.seed for run in self.runs}

    def by_seed(self, scalar: str) -> dict[int, float]:
        """A scalar in the runs that have it, with the sign by which positive is forgetting."""
        sign = forgetting_sign(tag(scalar))
        return {run.seed: sign * run.scalars[scalar] for run in self.done if scalar in run.scalars}

    def over_all(self, scalar: str) -> Spread:
        """A scalar over all runs, of none where one lacks it."""
        return Spread.of_all(self.by_seed(scalar).values(), len(self.runs))

    def without(self, keys: Iterable[str]) -> frozenset[tuple[str, Hashable]]:
        """The setting but some keys, to be compared."""
        return frozenset((key, value) for key, value in self.setting.items() if key not in keys)


def tag(scalar: str) -> str:
    """What a run logged that a column of the results file is of, such as ``.../last`` or ``.../mean``."""
    return scalar.rpartition("/")[0] if scalar.startswith("forgetting/") else scalar


def groups(results: Sequence[Result]) -> list[Group]:
    """In the order of the results."""
    members: dict[tuple, list[Result]] = defaultdict(list)
    for result in results:
        members[result.sweep, *result.point.items()].append(result)
    return [Group({SWEEP: of[0].sweep, **of[0].point}, tuple(of)) for of in members.values()]


def all_runs(study: Study, found: Sequence[Group]) -> str:
    """Every setting with every measure: mean ± sample standard deviation over seeds, with the interval of the mean."""
    codes = {run.code for group in found for run in group.done}
    columns = ["runs", *study.measures.values(), *(["code"] if len(codes) > 1 else [])]
    rows = []
    for group in found:
        cells = [
            not_all(len(group.by_seed(name)), len(group.runs)) or spread_and_interval(group.over_all(name))
            for name in study.measures
        ]
        code = [", ".join(dict.fromkeys(run.code for run in group.done)) or DASH] if len(codes) > 1 else []
        rows.append([*_names(study, group), group.said, *cells, *code])
    return markdown([*_headings(study), *columns], rows)


def compared(study: Study, found: Sequence[Group]) -> str:
    """The tested measures at the chosen values less those of other runs, over the seeds that both have; empty without any."""
    tested = {measure: study.measures[measure] for measure in study.tested}
    return _tests(
        study,
        [
            _Difference(group, heading, group.by_seed(measure), other.by_seed(measure), group.seeds & other.seeds, less)
            for group, other, less in _pairs(study, found)
            for measure, heading in tested.items()
        ],
    )


def compared_within(study: Study, found: Sequence[Group]) -> str:
    """Measures less others of the same runs; empty where the study declares none."""
    pairs = [(group, one, other) for group in found for one, other in study.within.items() if group.by_seed(one)]
    heading = {one: f"{study.measures[one]}, less: {study.measures[other]}" for one, other in study.within.items()}
    return _tests(
        study,
        [
            _Difference(group, heading[one], group.by_seed(one), group.by_seed(other), group.seeds, "")
            for group, one, other in pairs
        ],
    )


class _Difference(NamedTuple):
    """What is tested: a measure of a group by seed, less another number of the same seed."""

    group: Group
    heading: str
    ours: dict[int, float]
    theirs: dict[int, float]
    seeds: set[int]  # that must have both
    less: str  # the name of what the other number is of; empty where all rows have the same

    def test(self) -> tuple[Spread, float]:
        """The differences, and p by Student's paired t test, two-sided; NaN where a seed lacks a number."""
        difference, p = paired_test(self.ours, self.theirs)
        return difference, p if len(difference.values) == len(self.seeds) else math.nan


def _tests(study: Study, differences: Sequence[_Difference]) -> str:
    """A row each; p values are corrected for all tests of the table by Holm's method."""
    results = [difference.test() for difference in differences]
    corrected = holm([p for _, p in results])
    rows = []
    for of, (values, p), p_holm in zip(differences, results, corrected, strict=True):
        change = not_all(len(values.values), len(of.seeds)) or spread_and_interval(values, sign="+")
        tested = [*filter(None, [of.less]), of.heading, str(len(of.seeds)), change, number(p, ".2g"), number(p_holm, ".2g")]
        rows.append([*_names(study, of.group), *tested])
    less = ["less"] if any(of.less for of in differences) else []
    return markdown([*_headings(study), *less, "measure", "pairs", "difference", "p", "p (Holm)"], rows) if rows else ""


def _pairs(study: Study, found: Sequence[Group]) -> list[tuple[Group, Group, str]]:
    """Groups with what they are compared with, both at the chosen value, and its name where the study has further pairs."""
    kept, apart = chosen(study, found), [*filter(None, [study.chosen])]
    by_setting = {group.without(apart): group for group in kept}
    pairs = []
    for ours, theirs in study.comparisons:
        for group in (group for group in kept if group.setting.items() >= ours.items()):
            other = by_setting.get(replace(group, setting=group.setting | theirs).without(apart))
            if other is not None and other is not group:
                pairs.append((group, other, ", ".join(theirs.values()) if study.further else ""))
    return pairs


def chosen(study: Study, found: Sequence[Group]) -> list[Group]:
    """Of groups that differ only in the chosen key, the one of the highest mean validation accuracy; without a key all."""
    done = [group for group in found if group.done]
    if study.chosen is None:
        return done
    families: dict[Hashable, list[Group]] = defaultdict(list)
    for group in done:
        families[group.without([study.chosen])].append(group)
    return [max(family, key=_validation) for family in families.values()]


def _validation(group: Group) -> float:
    """Mean final validation accuracy; that of a setting with a failed run is below all."""
    mean = group.over_all(_VALIDATION).mean
    return -math.inf if math.isnan(mean) else mean


def label(study: Study, group: Group) -> str:
    """What sets a group apart, for a figure."""
    return ", ".join(name for name in _names(study, group) if name != DASH) or study.name


def _named_keys(study: Study) -> list[str]:
    return [*([SWEEP] if len(study.sweeps) > 1 else []), *study.keys]


def _headings(study: Study) -> list[str]:
    named = _named_keys(study)
    return ["run" if key == SWEEP else short for key, short in zip(named, short_keys(dict.fromkeys(named, "")), strict=True)]


def _names(study: Study, group: Group) -> list[str]:
    return [group.setting.get(key, DASH) for key in _named_keys(study)]
