"""The sections of a report: those that the runs have something to say about."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from fl_lightning.callbacks.forgetting_names import forgetting_name, forgetting_sign
from fl_lightning.report import costs, figures, forgetting, knowledge, probes, scores
from fl_lightning.report.definitions import defined_forgetting
from fl_lightning.report.figures import Drawing, Palette
from fl_lightning.report.groups import RATE, Group
from fl_lightning.report.log import Curve
from fl_lightning.report.measured_rounds import class_names
from fl_lightning.report.run_figures import PROBES, Picture, pages, pictures
from fl_lightning.report.runs import Run, is_number
from fl_lightning.report.study import TASKS, Study, common_curve
from fl_lightning.report.tables import Table, capitalised

# What runs are compared over, and its name on the axis.
_ABLATIONS = {
    "data.partition.alpha": "alpha",
    "data.clients_per_round": "clients per round",
    "model.local_steps": "local steps",
    "model.local_epochs": "local epochs",
    RATE: "learning rate",
}
# Title of a report's heatmaps, by the tag of the picture.
_WHO = {"forgetting/clients": "Who forgets whose data", "class_accuracy/one_round": "One round by class"}
# Totals so far, which accuracy is drawn against: their unit, their axis, the file of the figure, and they in words.
_COSTS = {
    "communication/total_up": (1e6, "MB sent by the clients", "communication", "what the clients had sent up by then"),
    "communication/total_seconds": (1, "simulated seconds", "simulated_time", "the simulated time so far (data.devices)"),
}
_MOST_FAMILIES = 10  # lines of an ablation
_MOST_HEATMAPS = 12  # methods in one figure


@dataclass(frozen=True)
class Section:
    """A heading with figures and tables."""

    title: str
    drawings: list[Drawing] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)


def sections(study: Study, rounds: Sequence[int], definitions: Sequence[str] = ()) -> Iterator[Section]:
    """All sections that have content.

    Args:
        rounds: of the who-forgets heatmaps, by default the last one measured.
        definitions: of forgetting, by name, for a table of their own.
    """
    palette = _palette(study)
    yield from _learning(study, palette)
    if definitions and study.finished:
        yield Section("Forgetting by definition", tables=[defined_forgetting(study, definitions)])
    yield from _classes(study)
    yield from _who_forgets(study, rounds)
    yield from _why(study, rounds)
    yield from _spent(study, palette)


def drawings_over_rounds(study: Study) -> Iterator[Drawing]:
    """The figures of all sections but heatmaps, of runs that go on too."""
    study = replace(study, unfinished_too=True)
    palette = _palette(study)
    for section in (*_learning(study, palette), *_spent(study, palette)):
        yield from section.drawings


def _palette(study: Study) -> Palette:
    return Palette([group for groups in study.shown(finished=False).values() for group in groups])


def _learning(study: Study, palette: Palette) -> Iterator[Section]:
    """Accuracy and forgetting, as curves and tables."""
    accuracy = _over_rounds(study, palette, study.metric, study.metric_name, "accuracy", finished=False)
    yield Section("Accuracy over rounds", [accuracy])
    if study.finished:
        yield Section("Final accuracy", tables=[scores.final_accuracy(study)])
        if study.metric != TASKS:
            yield Section("Rounds to a target accuracy", tables=[scores.rounds_to_target(study)])
        yield from _ablations(study, palette)
        yield from _tasks(study, palette)
        yield from _forgetting(study, palette)
        if knowledge.reference_sets(study):
            yield Section("New and old knowledge", [*knowledge.planes(study, palette)], [knowledge.table(study)])


def _spent(study: Study, palette: Palette) -> Iterator[Section]:
    """Bytes and time."""
    if study.finished:
        yield from _communication(study, palette)
        yield Section("Time", tables=[costs.timing(study)])


def _selection(study: Study, shown: dict[str, list[Group]], *, finished: bool = True) -> str:
    """A sentence where a figure shows only a part of the methods; with ``finished`` only those with finished runs count."""
    count, groups = sum(map(len, shown.values())), study.finished if finished else study.groups
    if count == len(groups):
        return ""
    rates = f"{study.rates_are}, " if study.rates_are else ""
    best = "the ten best of each condition, if all their runs logged it"
    return f"The figure has {count} of {len(groups)} methods: {rates}{best}. "


def _ablations(study: Study, palette: Palette) -> Iterator[Section]:
    if rates := scores.rate_robustness(study):
        yield Section(rates.title, tables=[rates])
    for key, name in _ABLATIONS.items():
        groups = study.finished if key == RATE else study.at_best_rate(study.finished)
        families = defaultdict(list)
        for group in groups:
            if is_number(group.config.get(key)):
                families[group.setting(key, RATE)].append(group)
        several = [sorted(family, key=lambda group: group.config[key]) for family in families.values() if len(family) > 1]
        if several:
            table = scores.ablation(study, key, name, several)
            figure = figures.draw_ablation(study, key, name, several[:_MOST_FAMILIES], palette)
            rates = f", {study.rates_are}" if key != RATE and study.rates_are else ""
            caption = f"Mean over seeds{rates}, bars of one standard deviation. "
            caption += figures.runs_behind("point", chain(*several[:_MOST_FAMILIES]))
            if len(several) > _MOST_FAMILIES:
                caption += f" The first {_MOST_FAMILIES} of {len(several)} lines."
            yield Section(f"Ablation: {name}", [Drawing(table.name, f"Accuracy by {name}", caption, figure)], [table])


def _tasks(study: Study, palette: Palette) -> Iterator[Section]:
    tables = forgetting.tasks(study)
    if not tables:
        return
    curves = {"tasks/accuracy": "accuracy on the tasks so far", "tasks/forgetting": "forgetting of earlier tasks"}
    names = [name for name in curves if name != study.metric and _drawn(study, name)]
    drawn = [_over_rounds(study, palette, name, curves[name], f"{name.replace('/', '_')}_over_rounds") for name in names]
    yield Section(tables[0].title, drawn, tables)


def _over_rounds(study: Study, palette: Palette, name: str, label: str, file: str, *, finished: bool = True) -> Drawing:
    """The curves of a scalar; without ``finished`` those of runs that go on too."""

    def draw(axes: Axes, group: Group) -> None:
        curves = [run.log.scalars[name].after(0) for run in group.runs]
        curves = [Curve(curve.rounds, forgetting_sign(name) * curve.values) for curve in curves]
        if all(map(len, curves)):
            end = "" if group.finished else " (not finished)"
            figures.draw_band(axes, *common_curve(curves), palette[group], f"{group.method}{end}", dashed=not group.finished)

    shown = _drawn(study, name, finished=finished)
    sign = " Positive is forgetting." if "forgetting" in name else ""
    caption = f"{capitalised(label)}, mean over seeds; the band is ± one standard deviation, and there is none with one seed."
    caption += f"{sign} {_selection(study, shown, finished=finished)}{figures.panels_note(shown)}"
    both_signs = forgetting_sign(name) < 0  # what is learned from others is below 0, what is forgotten above
    figure = figures.by_condition(shown, draw, "round", label, zero_line=both_signs)
    return Drawing(file, f"{capitalised(label)} over rounds", caption, figure)


def _drawn(study: Study, name: str, *, finished: bool = True, tensor: bool = False) -> dict[str, list[Group]]:
    """What figures show of a scalar, or a tensor: groups with it in all runs, as a mean over some seeds would flatter."""

    def has(run: Run) -> bool:
        return name in (run.log.tensors if tensor else run.log.scalars)

    shown = study.shown(finished=finished).items()
    measured = {condition: [group for group in groups if all(map(has, group.runs))] for condition, groups in shown}
    return {condition: groups for condition, groups in measured.items() if groups}


def _forgetting(study: Study, palette: Palette) -> Iterator[Section]:
    name, gap = _round_forgetting_name(study)
    names = [name] * (gap > 0) + ["forgetting/local_mean", "forgetting/client_mean"]
    names = [name for name in names if any(name in run.log.scalars for group in study.finished for run in group.runs)]
    if not names:
        return
    files = {name: f"{name.replace('/', '_')}_over_rounds" for name in names if _drawn(study, name)}
    drawn = [_over_rounds(study, palette, name, forgetting_name(name), file) for name, file in files.items()]
    if gap and (shown := _drawn(study, name)):
        what = "Round forgetting F_t: mean drop in the global model's accuracy by class from one round to the next"
        what = what if gap == 1 else what.replace("one round to the next", f"one evaluation to the next, {gap} rounds later")
        points = partial(_round_points, name=name)
        drawn.append(_distribution(study, shown, palette, "forgetting_round", "Distribution of round forgetting", what, points))
    if shown := _drawn(study, "forgetting/local", tensor=True):
        what = "Local forgetting F_kt: mean drop in accuracy by class from the global model to a client's, in steps of 1/200"
        drawn.append(
            _distribution(study, shown, palette, "forgetting_local", "Distribution of local forgetting", what, _local_points)
        )
    columns = {name: f"{forgetting_name(name)}, mean" for name in names}
    yield Section("Forgetting", drawn, forgetting.forgetting(study, columns))


def _round_forgetting_name(study: Study) -> tuple[str, int]:
    """The scalar of the gap between evaluations that most values have, then of the smallest, and that gap in rounds.

    A last round off the interval has another gap than all others. The gap is 0 if there is none.
    """
    values = Counter[int]()
    for run in (run for group in study.finished for run in group.runs):
        for name, curve in run.log.scalars.items():
            if match := re.fullmatch("forgetting/(?:round|every_([0-9]{1,9}))", name):
                values[int(match[1] or 1)] += len(curve.rounds)
    gap = max(values, key=lambda gap: (values[gap], -gap), default=0)
    return "forgetting/round" if gap == 1 else f"forgetting/every_{gap}", gap


def _round_points(group: Group, name: str) -> NDArray:
    """(n, 2): the values of all seeds and rounds but round 1, each once."""
    joined = np.concatenate([run.log.scalars[name].after(1).values for run in group.runs])
    return np.stack([joined, np.ones_like(joined)], axis=1)


def _local_points(group: Group) -> NDArray:
    """(n, 2): upper edges of the logged distributions, of all seeds and rounds but round 1, and their counts of clients."""
    logged = [run.log.tensors["forgetting/local"] for run in group.runs]
    return np.concatenate([np.empty((0, 2)), *(buckets for one in logged for round, buckets in one.items() if round > 1)])


def _distribution(
    study: Study,
    shown: dict[str, list[Group]],
    palette: Palette,
    name: str,
    title: str,
    what: str,
    points: Callable[[Group], NDArray],
) -> Drawing:
    def draw(axes: Axes, group: Group) -> None:
        if len(counted := points(group)):
            values, counts = counted.T
            figures.draw_distribution(axes, values, counts, palette[group], group.method)

    caption = f"{what}. Share of the values, of all rounds but round 1 and all seeds, that are at most this; further left is "
    caption += f"less forgetting. {_selection(study, shown)}{figures.panels_note(shown)}"
    figure = figures.by_condition(shown, draw, "mean drop in accuracy by class", "share of values")
    return Drawing(name, title, caption, figure)


def _classes(study: Study) -> Iterator[Section]:
    groups = [group for some in study.shown(finished=False).values() for group in some]
    classes = max((class_names(group.runs[0].log) for group in groups), key=len, default=[])
    needed = {f"class_accuracy/{name}" for name in classes}
    groups = [group for group in groups if needed and all(needed <= run.log.scalars.keys() for run in group.runs)]
    if not groups:
        return
    more = f" The first {_MOST_HEATMAPS} of {len(groups)}." if len(groups) > _MOST_HEATMAPS else ""
    groups, over = groups[:_MOST_HEATMAPS], "mean over seeds"
    if any(class_names(run.log) != classes for group in groups for run in group.runs):
        groups = [replace(group, runs=group.runs[:1]) for group in groups]
        over = "one run of each method, as classes arrive in another order with another seed"
    caption = f"Accuracy of the global model by class and round, {over}. {figures.runs_behind('point', groups)}{more}"
    figure = figures.draw_classes(groups, classes)
    yield Section("Accuracy by class", [Drawing("class_accuracy", "Accuracy by class", caption, figure)])


def _who_forgets(study: Study, rounds: Sequence[int]) -> Iterator[Section]:
    if drawn := [*_of_first_seeds(study, rounds, _WHO)]:
        yield Section("Who forgets", drawn)


def _why(study: Study, rounds: Sequence[int]) -> Iterator[Section]:
    found = probes.table(study)
    if found is not None:
        yield Section("Why clients forget", [*_of_first_seeds(study, rounds, PROBES)], [found])


def _of_first_seeds(study: Study, rounds: Sequence[int], titles: Mapping[str, str]) -> Iterator[Drawing]:
    """Heatmaps of the first seed of each method, under the baseline's condition; ``titles``: by tag."""
    shown = study.shown().get(study.baseline.condition, [])
    found = {group: {picture.tag: picture for picture in pictures(group.runs[0].log)} for group in shown}
    for tag, title in titles.items():
        measured = {group: of_group[tag] for group, of_group in found.items() if tag in of_group}
        for round in rounds or sorted({round for picture in measured.values() for round in picture.rounds})[-1:]:
            yield from _heatmaps(title, {group: one for group, one in measured.items() if round in one.rounds}, round)


def _heatmaps(title: str, shown: Mapping[Group, Picture], round: int) -> Iterator[Drawing]:
    """Drawings of some methods each: as few as have room on a page."""
    drawn = list(pages(shown, round)) if shown else []
    for number, (page, figure) in enumerate(drawn, 1):
        seeds = ", ".join(sorted({str(group.seeds[0]) for group in page}))
        where = f", {page[0].condition}" if page[0].condition else ""
        caption = f"{title} in round {round}{where}. One run of each method, seed {seeds}."
        name, heading = f"{title.lower().replace(' ', '_')}_{round}", f"{title}, round {round}"
        if len(drawn) > 1:
            name, heading = f"{name}_{number}", f"{heading}, {number} of {len(drawn)}"
        yield Drawing(name, heading, caption, figure)


def _communication(study: Study, palette: Palette) -> Iterator[Section]:
    table = costs.communication(study)
    if table is None:
        return

    drawn = [_over_cost(study, palette, name) for name in _COSTS if _drawn(study, name)]
    sizes = {round(costs.model_megabytes(run), 6) for group in study.finished for run in group.runs}
    if len(sizes) > 1 and not any(map(np.isnan, sizes)):
        groups = [group for some in study.shown().values() for group in some]
        caption = "Final accuracy against the size of the model; bars of one standard deviation over seeds."
        drawn.append(Drawing("model_size", "Accuracy by model size", caption, figures.draw_sizes(study, groups, palette)))
    yield Section("Communication and model size", drawn, [table])


def _over_cost(study: Study, palette: Palette, name: str) -> Drawing:
    """Accuracy against a total so far."""
    unit, axis, file, said = _COSTS[name]

    def draw(axes: Axes, group: Group) -> None:
        curves = [_against(study, run, name, unit) for run in group.runs]
        rounds, values = common_curve([accuracy for accuracy, _ in curves])
        spent = np.mean([total.at(rounds) for _, total in curves], axis=0)
        figures.draw_band(axes, spent, values, palette[group], group.method)

    shown = _drawn(study, name)
    caption = f"{capitalised(study.metric_name)} against {said}, mean over seeds. {_selection(study, shown)}"
    figure = figures.by_condition(shown, draw, axis, study.metric_name)
    return Drawing(file, f"Accuracy by {file.replace('_', ' ')}", f"{caption}{figures.panels_note(shown)}", figure)


def _against(study: Study, run: Run, name: str, unit: float) -> tuple[Curve, Curve]:
    """The accuracy, and in its rounds a total by then; NaN, which is not drawn, outside of the logged rounds."""
    accuracy, total = study.accuracy(run), run.log.scalars[name]
    spent = np.interp(accuracy.rounds, total.rounds, total.values, left=np.nan, right=np.nan)
    return accuracy, Curve(accuracy.rounds, spent / unit)


def missing_rounds(study: Study, rounds: Sequence[int]) -> list[str]:
    """A remark for each asked-for round without a heatmap."""
    shown, tags = study.shown().get(study.baseline.condition, []), {*_WHO, *PROBES}
    found = (picture for group in shown for picture in pictures(group.runs[0].log) if picture.tag in tags)
    measured = sorted({round for picture in found for round in picture.rounds})
    there = f"give {', '.join(map(str, measured))}" if measured else "the runs logged none"
    missing = [round for round in rounds if round not in measured]
    return [f"--rounds has {round}, but this round has no heatmap: {there}" for round in missing]
