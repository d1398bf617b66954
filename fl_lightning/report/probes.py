"""Why clients forget: what the probes measured, as a table of scalars and as heatmaps of the models of one round."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from fl_lightning.callbacks.figures import draw_client_class_change, heatmap, height_of
from fl_lightning.report.figures import pages
from fl_lightning.report.groups import Group
from fl_lightning.report.log import Log
from fl_lightning.report.measured_rounds import class_labels, logged_tensor
from fl_lightning.report.safe_text import one_line
from fl_lightning.report.study import INTERVAL_IS, Spread, Study
from fl_lightning.report.tables import Table, interval, mean_and_sd, spread

_PREFIXES = ("head/", "drift/", "cka/", "cka_rounds/", "events/")


def table(study: Study) -> Table | None:
    """The newest value of each scalar of a probe, over seeds, methods below each other; None if no run has any."""
    logs = [run.log for group in study.finished for run in group.runs]
    names = dict.fromkeys(name for prefix in _PREFIXES for log in logs for name in log.scalars if name.startswith(prefix))
    rows, records = [], []
    for name in names:
        for group in study.finished:
            found = [run.log.newest(name) for run in group.runs if name in run.log.scalars]
            if found:
                values = Spread.of_all(found, len(group.runs))
                rows.append([group.label, name, spread(values), interval(values)])
                ends = dict(zip(("low", "high"), values.interval, strict=True))
                records.append({"method": group.label, "scalar": name} | mean_and_sd("value", values) | ends)
    note = "The newest measurement of each run, mean ± standard deviation over seeds; the interval is that of the mean, "
    note += f"{INTERVAL_IS}."
    columns = ["method", "scalar", "mean", "its 95 % interval"]
    return Table("probes", "Probes", note, columns, rows, records) if rows else None


@dataclass(frozen=True)
class Heatmap:
    """A picture of a probe in one round.

    Attributes:
        tag: of the callback's picture.
        title: of the picture.
        rounds: of a log that it can be drawn of, ascending.
        rows: how many it has in a round.
        draw: on axes, of a log in a round, under a title.
    """

    tag: str
    title: str
    rounds: Callable[[Log], list[int]]
    rows: Callable[[Log, int], int]
    draw: Callable[[Axes, Log, int, str], None]

    def pages(self, groups: Sequence[Group], round: int) -> Iterator[tuple[Sequence[Group], Figure]]:
        """Figures of the first run of each group, no higher than a page, each with its groups."""
        logs = [group.runs[0].log for group in groups]

        def draw(axes: list[Axes], at: int) -> None:
            self.draw(axes[0], logs[at], round, groups[at].label)

        return pages(groups, round, 1, height_of(max(self.rows(log, round) for log in logs)), draw)


def _of_clients(tag: str, title: str, name: str, draw: Callable[[Axes, Log, int, str], None]) -> Heatmap:
    """With a row for each client of the cohort; the tensors of the head have the global model's before them."""
    cohort = f"{name.split('/')[0]}/cohort"
    received = int(cohort == "head/cohort")

    def rounds(log: Log) -> list[int]:
        values, clients = log.tensors.get(name, {}), log.tensors.get(cohort, {})
        common = values.keys() & clients.keys()
        return sorted(round for round in common if len(values[round]) == len(clients[round]) + received > received)

    return Heatmap(tag, title, rounds, lambda log, round: len(log.tensors[cohort][round]), draw)


def _head(kind: str, *, relative: bool) -> Callable[[Axes, Log, int, str], None]:
    def draw(axes: Axes, log: Log, round: int, title: str) -> None:
        before, after = logged_tensor(log, f"head/{kind}", round).tensor_split([1])
        _by_class(axes, log, "head", round, (after - before) / before if relative else after - before, title)

    return draw


def _drift(axes: Axes, log: Log, round: int, title: str) -> None:
    _by_class(axes, log, "drift", round, logged_tensor(log, "drift/class", round), title)


def _by_class(axes: Axes, log: Log, probe: str, round: int, values: Tensor, title: str) -> None:
    """Frames need ``<probe>/holds``, which records of older runs lack."""
    holds = log.tensors.get(f"{probe}/holds", {}).get(round)
    framed = torch.zeros_like(values) if holds is None or holds.shape != values.shape else torch.from_numpy(holds)
    clients = log.tensors[f"{probe}/cohort"][round].astype(int).tolist()
    draw_client_class_change(axes, values, framed > 0, clients, class_labels(log, values.shape[1]), title)


def _similarity(axes: Axes, log: Log, round: int, title: str) -> None:
    values = logged_tensor(log, "cka/clients", round)
    rows = [f"client {client}" for client in log.tensors["cka/cohort"][round].astype(int).tolist()]
    names = [one_line(name.removeprefix("cka/")) for name in log.scalars if name.startswith("cka/")]
    layers = names if len(names) == values.shape[1] else list(map(str, range(values.shape[1])))
    heatmap(axes, values, rows, layers, title=title, row_title="", column_title="layer")


def _events(axes: Axes, log: Log, round: int, title: str) -> None:
    """A column for each measurement up to the round."""
    newest = log.tensors["events/class"][round]
    measured = {one: values for one, values in sorted(log.tensors["events/class"].items()) if one <= round}
    columns = {one: values for one, values in measured.items() if len(values) == len(newest)}
    values = torch.from_numpy(np.stack(list(columns.values()), axis=1))
    rounds = list(map(str, columns))
    heatmap(axes, values, class_labels(log, len(newest)), rounds, title=title, row_title="class", column_title="round")


HEATMAPS = (
    _of_clients("head/logits", "Change of mean logits by class", "head/logit", _head("logit", relative=False)),
    _of_clients("head/norms", "Relative change of the head norms", "head/norm", _head("norm", relative=True)),
    _of_clients("drift/classes", "Drift of features by class", "drift/class", _drift),
    _of_clients("cka/clients", "CKA by layer", "cka/clients", _similarity),
    Heatmap(
        "events/classes",
        "Forgetting events by class",
        lambda log: sorted(round for round, values in log.tensors.get("events/class", {}).items() if len(values)),
        lambda log, round: len(log.tensors["events/class"][round]),
        _events,
    ),
)
