"""Tables of a study, from the rows of its results file alone."""

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from fl_lightning.report.study import Spread
from fl_lightning.sweep.points import short_keys
from studies.declaration import SWEEP, Study
from studies.results_file import Result

DASH = "-"
_VALIDATION = "val_accuracy"


@dataclass(frozen=True)
class Group:
    """Runs of a study that differ in the seed alone."""

    setting: dict[str, str]  # the sweep's name and what the study varies
    done: tuple[Result, ...]
    failed: int

    def spread(self, scalar: str) -> Spread:
        """A scalar over the seeds that have it."""
        return Spread(tuple(run.scalars[scalar] for run in self.done if scalar in run.scalars))

    def without(self, keys: Iterable[str]) -> frozenset[tuple[str, Hashable]]:
        """The setting but some keys, to be compared."""
        return frozenset((key, value) for key, value in self.setting.items() if key not in keys)


def groups(results: Sequence[Result]) -> list[Group]:
    """In the order of the results."""
    members: dict[tuple, list[Result]] = defaultdict(list)
    for result in results:
        members[result.sweep, *result.point.items()].append(result)
    return [
        Group(
            {SWEEP: of[0].sweep, **of[0].point},
            tuple(result for result in of if result.ended == "done"),
            sum(result.ended == "failed" for result in of),
        )
        for of in members.values()
    ]


def all_runs(study: Study, found: Sequence[Group]) -> str:
    """Every setting with every measure: mean ± sample standard deviation over seeds, of three or more with their interval."""
    columns = ["runs", *study.measures.values()]
    rows = []
    for group in found:
        runs = f"{len(group.done)}" + (f", {group.failed} failed" if group.failed else "")
        cells = [_counted(group.spread(scalar), len(group.done)) for scalar in study.measures]
        rows.append([*_names(study, group), runs, *cells])
    return _markdown([*_headings(study), *columns], rows)


def compared(study: Study, found: Sequence[Group]) -> str:
    """The first measure at the chosen values less that of the baseline, over the seeds that both have; empty without one."""
    measure, heading = next(iter(study.measures.items()))
    kept = chosen(study, found)
    apart = {*study.baseline, *filter(None, [study.chosen])}
    others = {group.without(apart): group for group in kept if group.setting.items() >= study.baseline.items()}
    rows = []
    for group in kept:
        other = others.get(group.without(apart))
        if study.baseline and other is not None and other is not group:
            difference = paired(group, other, measure)
            rows.append([*_names(study, group), str(len(difference.values)), _text(difference, sign="+")])
    return _markdown([*_headings(study), "pairs", f"{heading}, difference"], rows) if rows else ""


def chosen(study: Study, found: Sequence[Group]) -> list[Group]:
    """Of groups that differ in the chosen key alone the one of the highest mean validation accuracy; without a key all."""
    done = [group for group in found if group.done]
    if study.chosen is None:
        return done
    families: dict[Hashable, list[Group]] = defaultdict(list)
    for group in done:
        families[group.without([study.chosen])].append(group)
    return [max(family, key=lambda group: group.spread(_VALIDATION).mean) for family in families.values()]


def paired(group: Group, other: Group, measure: str) -> Spread:
    """Differences of a measure over the seeds that both groups have."""
    theirs = {run.seed: run.scalars[measure] for run in other.done if measure in run.scalars}
    ours = {run.seed: run.scalars[measure] for run in group.done if measure in run.scalars}
    return Spread(tuple(value - theirs[seed] for seed, value in ours.items() if seed in theirs))


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


def _counted(values: Spread, runs: int) -> str:
    """With how many runs have it, where others have not, as those that never reach a target."""
    few = f" ({len(values.values)} of {runs})" if 0 < len(values.values) < runs else ""
    return _text(values) + few


def _text(values: Spread, sign: str = "") -> str:
    if not values.values:
        return DASH
    form = f"{sign}z.{_digits(values)}f"
    text = format(values.mean, form)
    if len(values.values) > 1:
        text += f" ± {values.deviation:.{_digits(values)}f}"
    low, high = values.interval
    return text if math.isnan(low) else f"{text} ({low:{form}} to {high:{form}})"


def _digits(values: Spread) -> int:
    """Accuracies have three decimals, bytes and seconds fewer."""
    largest = max(map(abs, values.values))
    return 3 if largest < 10 else 1 if largest < 1000 else 0


def _markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
