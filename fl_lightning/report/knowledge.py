"""New knowledge against old: accuracy on the federation's data, and on reference sets that no client has."""

import re
from collections.abc import Iterator
from typing import Literal

import numpy as np
from matplotlib.axes import Axes

from fl_lightning.report import figures
from fl_lightning.report.figures import INK, Drawing, Palette
from fl_lightning.report.groups import Group
from fl_lightning.report.study import Spread, Study
from fl_lightning.report.tables import Table, means_and_sds, spread

_SHARE = r"wise_ft/([\d.]+)/test"


def reference_sets(study: Study) -> list[str]:
    """Names of the reference sets of finished runs."""
    names = {name for group in study.finished for run in group.runs for name in run.log.scalars}
    return sorted(found[1] for name in names if (found := re.fullmatch(r"reference/(\w+)/accuracy", name)))


def planes(study: Study, palette: Palette) -> Iterator[Drawing]:
    """A plane for each reference set: a point a method, and a line through its nets between the start and the end."""
    for name in reference_sets(study):

        def draw(axes: Axes, group: Group, name: str = name) -> None:
            before, old, new = _on(group, name, "_before"), _on(group, name), _last(group, study.metric)
            if not old.values:
                return
            axes.axhline(before.mean, color=INK, linewidth=0.6, linestyle=":")
            of_new, of_old = ([np.nan_to_num(one.deviation)] for one in (new, old))
            style = {"fmt": "o", "capsize": 2, "color": palette[group], "label": group.method}
            axes.errorbar([new.mean], [old.mean], of_old, of_new, **style)
            if len(mixed := _mixed(group, name)):
                axes.plot(*mixed.T, color=palette[group], linewidth=0.8, linestyle="--", marker=".")

        shown = study.shown()
        caption = (
            f"Up is more of the old knowledge, right more of the new: accuracy on {name} against {study.metric_name}, after "
            f"the last round. Means over seeds, bars of one standard deviation. Dotted: accuracy on {name} before round 1. "
        )
        if any(len(_mixed(group, name)) for groups in shown.values() for group in groups):
            caption += "Dashed: nets between the initial and the final weights (WiSE-FT). "
        figure = figures.by_condition(shown, draw, study.metric_name, f"accuracy on {name}")
        yield Drawing(f"knowledge_{name}", f"New knowledge against {name}", caption + figures.panels_note(shown), figure)


def table(study: Study) -> Table:
    """New and old knowledge of each method, and what it forgot."""
    names = reference_sets(study)
    measured = {f"reference/{name}/accuracy" for name in names}
    groups = [group for group in study.finished if any(measured & run.log.scalars.keys() for run in group.runs)]
    columns, scores = [study.metric_name], [[_last(group, study.metric)] for group in groups]
    for name in names:
        columns += [f"accuracy on {name}", f"{name} before", f"forgetting of {name}"]
        for group, row in zip(groups, scores, strict=True):
            row += [_on(group, name), _on(group, name, "_before"), _drop(group, name)]
    note = "After the last round, means ± standard deviation over seeds. Forgetting is the drop since before round 1: positive "
    note += "is forgetting."
    records = [{"method": group.label} | means_and_sds(columns, row) for group, row in zip(groups, scores, strict=True)]
    rows = [[group.label, *map(spread, row)] for group, row in zip(groups, scores, strict=True)]
    return Table("knowledge", "New and old knowledge", note, ["method", *columns], rows, records)


def _on(group: Group, name: str, when: Literal["", "_before"] = "") -> Spread:
    """Accuracy on a reference set by seed, at the end or before round 1."""
    return _last(group, f"reference/{name}/accuracy{when}")


def _drop(group: Group, name: str) -> Spread:
    """Accuracy that was lost; a resumed run that began without the set lacks the accuracy before."""
    before, old = f"reference/{name}/accuracy_before", f"reference/{name}/accuracy"
    logs = [run.log for run in group.runs if {before, old} <= run.log.scalars.keys()]
    return Spread.of_all((log.newest(before) - log.newest(old) for log in logs), len(group.runs))


def _last(group: Group, scalar: str) -> Spread:
    return Spread.of_all((run.log.newest(scalar) for run in group.runs if scalar in run.log.scalars), len(group.runs))


def _mixed(group: Group, name: str) -> np.ndarray:
    """(shares, 2): new and old accuracy of the nets between start and end, means over seeds, by share of the end."""
    shares = sorted((found[1] for tag in group.runs[0].log.scalars if (found := re.fullmatch(_SHARE, tag))), key=float)
    pairs = [[_last(group, f"wise_ft/{share}/{what}").mean for what in ("test", name)] for share in shares]
    return np.array(pairs).reshape(-1, 2)
