"""Tables of what the models learned, and how fast."""

import math
from collections import defaultdict
from collections.abc import Sequence

from fl_lightning.functional.accuracy_curves import FINAL_IS
from fl_lightning.report.groups import RATE, Group
from fl_lightning.report.study import INTERVAL_IS, TASKS, Spread, Study, holm
from fl_lightning.report.tables import (
    DASH,
    Table,
    baseline_note,
    best_and_second,
    capitalised,
    compared,
    interval,
    mean_and_sd,
    not_all,
    spread,
)

_FRACTIONS = (0.75, 0.9, 1.0)  # of the target accuracy
_TOLERANCES = (0.02, 0.03, 0.05)  # of the best accuracy, in absolute points as Table 2 of the TCE paper has them
_ROUNDING = 1e-9  # .78 is within .02 of .8, and .6 is three quarters of it


def final_accuracy(study: Study) -> Table:
    """Final, last and best accuracy, and the paired test against the baseline."""
    rows, records = [], []
    tests = [study.against_baseline(group, study.finals) for group in study.finished]
    corrected = holm([p for _, p in tests])
    has_best = study.metric != TASKS  # of tasks that arrive, the best accuracy is that of the first
    has_intervals = any(not math.isnan(study.final_of(group).interval[0]) for group in study.finished)
    for group, (differences, p), p_holm in zip(study.finished, tests, corrected, strict=True):
        other = study.counterpart(group)
        final = study.final_of(group)
        curves = [study.accuracy(run).values for run in group.runs]
        last, best = Spread(tuple(float(curve[-1]) for curve in curves)), Spread(tuple(float(curve.max()) for curve in curves))
        between = [interval(final)] if has_intervals else []
        texts = [str(len(group.runs)), spread(final), *between, spread(last), *([spread(best)] if has_best else [])]
        rows.append([group.label, *texts, *compared(differences, p_holm)])
        records.append(
            {"method": group.label, "runs": len(group.runs)}
            | mean_and_sd("final", final)
            | dict(zip(("final_low", "final_high"), final.interval, strict=True))
            | mean_and_sd("last", last)
            | (mean_and_sd("best", best) if has_best else {})
            | {"baseline": other.label if other else "", "pairs": len(differences.values)}
            | {"difference": differences.mean, "p": p, "p_holm": p_holm}
        )
    between = ["its 95 % interval"] if has_intervals else []
    chosen = ["best round"] if has_best else []
    columns = ["method", "runs", "final", *between, "last", *chosen, "against the baseline (pairs)", "p (Holm)"]
    conditions = [group.condition for group in study.finished]
    bold, underlined = best_and_second(conditions, {2: [study.final_of(group).mean for group in study.finished]})
    note = _final_note(study, sum(not math.isnan(p) for _, p in tests), has_intervals)
    return Table("final_accuracy", "Final accuracy", note, columns, rows, records, bold, underlined)


def _final_note(study: Study, tests: int, has_intervals: bool) -> str:
    final = "last evaluation, after all tasks" if study.metric == TASKS else FINAL_IS
    condition = " under each condition" if any(group.condition for group in study.groups) else ""
    between = f"; its interval is that of the mean, {INTERVAL_IS}" if has_intervals else ""
    best = "" if study.metric == TASKS else "; the best round is chosen on the same curve"
    return (
        f"{capitalised(study.metric_name)}, mean ± standard deviation over seeds; no deviation with one seed. Final is the "
        f"{final}{between}{best}. Bold is the best final accuracy{condition}, underlined "
        f"the second. {baseline_note(study, tests, ' in final accuracy')} {DASH} where there are fewer than "
        "two such seeds, no baseline under the same condition, or no variation."
    )


def rounds_to_target(study: Study) -> Table:
    """Rounds until 0.75, 0.9 and 1 of the target accuracy."""
    rows, records = [], []
    for group in study.finished:
        texts = []
        for fraction in _FRACTIONS:
            goal = fraction * study.targets[group.condition]
            reached = [round for run in group.runs if (round := study.rounds_to(run, goal - _ROUNDING)) is not None]
            of_all = Spread.of_all(reached, len(group.runs))
            deviation = f" ± {of_all.deviation:.0f}" if len(of_all.values) > 1 else ""
            texts.append(not_all(len(reached), len(group.runs)) or f"{of_all.mean:.0f}{deviation}")
            counts = {"method": group.label, "fraction": fraction, "accuracy": goal, "runs": len(group.runs)}
            records.append(counts | {"reached": len(reached)} | mean_and_sd("rounds", of_all))
        rows.append([group.label, str(len(group.runs)), f"{study.targets[group.condition]:.3f}", *texts])
    note = (
        f"The first evaluated round whose {study.metric_name} is at least this part of the target, mean ± standard deviation "
        f"over seeds. {DASH} where not every run reached it; in brackets how many did. The target is {study.targets_from}."
    )
    columns = ["method", "runs", "target", *(f"{100 * fraction:g} % of target" for fraction in _FRACTIONS)]
    return Table("rounds_to_target", "Rounds to a target accuracy", note, columns, rows, records)


def rate_robustness(study: Study) -> Table | None:
    """Learning rates whose accuracy is near that of the best; None unless runs of a method differ in it."""
    families = defaultdict(list)
    for group in study.finished:
        if RATE in group.config:
            families[group.setting(RATE)].append(group)
    rows, records = [], []
    for groups in families.values():
        if len(groups) < 2:
            continue
        best = max(groups, key=lambda group: study.final_of(group).mean)
        top = study.final_of(best).mean
        label, rate = best.label_without(RATE), best.config[RATE]
        near = [[group for group in groups if top - study.final_of(group).mean <= within + _ROUNDING] for within in _TOLERANCES]
        texts = [", ".join(f"{group.config[RATE]:g}" for group in some) for some in near]
        rows.append([label, f"{top:.3f} ({rate:g})", str(len(groups)), *texts])
        records += [
            {"method": label, "learning_rate": group.config[RATE], **mean_and_sd("final", study.final_of(group))}
            | {f"within_{within:g}": group in some for within, some in zip(_TOLERANCES, near, strict=True)}
            for group in groups
        ]
    note = "Rates whose final accuracy, mean over seeds, is at most 2, 3 and 5 percentage points below the best of the method."
    columns = ["method", "best (its rate)", "rates tried", "within 2 %", "within 3 %", "within 5 %"]
    return Table("learning_rates", "Robustness to the learning rate", note, columns, rows, records) if rows else None


def ablation(study: Study, key: str, name: str, families: Sequence[Sequence[Group]]) -> Table:
    """Final accuracy of families of groups that differ in only one key."""
    records = [
        {"method": group.label_without(key, RATE), name: group.config[key], "learning_rate": group.config.get(RATE, "")}
        | {"runs": len(group.runs)}
        | mean_and_sd("final", study.final_of(group))
        for family in families
        for group in family
    ]
    values = sorted({group.config[key] for family in families for group in family})
    rows = []
    for family in families:
        at = {group.config[key]: spread(study.final_of(group)) for group in family}
        rows.append([family[0].label_without(key, RATE), *(at.get(value, DASH) for value in values)])
    columns = ["method", *(f"{name} {value:g}" for value in values)]
    rates = f", {study.rates_are}" if key != RATE and study.rates_are else ""
    note = f"Final accuracy, mean ± standard deviation over seeds{rates}."
    return Table(f"ablation_{name.replace(' ', '_')}", f"Final accuracy by {name}", note, columns, rows, records)
