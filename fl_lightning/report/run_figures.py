"""The pictures that callbacks drew, drawn again from what was logged: of one run, or of several runs on pages."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from fl_lightning.callbacks import figures
from fl_lightning.callbacks.class_names import with_rounds
from fl_lightning.functional import client_forgetting, task_confusion
from fl_lightning.report.groups import Group
from fl_lightning.report.log import Log
from fl_lightning.report.measured_rounds import (
    class_curves,
    class_labels,
    class_names,
    client_forgetting_rounds,
    cohort,
    ends_of_domains,
    logged_clients,
    logged_tensor,
    one_round_rounds,
    rounds_of_clients,
)
from fl_lightning.report.safe_text import one_line

PROBES = {
    "head/logits": "Change of mean logits by class",
    "head/norms": "Relative change of the head norms",
    "drift/classes": "Drift of features by class",
    "cka/clients": "CKA by layer",
    "events/classes": "Forgetting events by class",
}
"""Tag of a probe's picture -> its title."""
_ATTENTION, _FOREIGN = "tasks/attention_of_client_", "tasks/foreign_of_client_"
_PAGE = 8.5  # inches: the height of the text on a page


@dataclass(frozen=True)
class Picture:
    """What a callback draws under one tag.

    ``draw`` raises a ValueError if the numbers of a round do not fit each other. Where there is a ``size``, it also takes a
    label, and axes on which it draws in place of a new figure.
    """

    tag: str  # such as forgetting/clients
    rounds: Sequence[int]  # that it can be drawn of, ascending, at least one
    draw: Callable[..., Figure]  # of one of them
    of_the_run: bool = False  # whether it shows all rounds, so that the last picture holds what the others do
    # Of a round, on a page with those of other runs: panels, and rows of names in each.
    size: Callable[[int], tuple[int, int]] | None = None

    def chosen(self, rounds: Sequence[int]) -> list[int]:
        """Those of some rounds that it can be drawn of; the last one without any, and always where it shows the run."""
        if self.of_the_run or not rounds:
            return [self.rounds[-1]]
        return sorted(set(rounds) & set(self.rounds))


def pictures(log: Log) -> list[Picture]:
    """The pictures that a log has the numbers of."""
    found = [
        _client_forgetting(log),
        _one_round(log),
        *_over_rounds(log),
        Picture("personal/distribution", _logged(log, "clients/personal_accuracy"), partial(_personal, log)),
        *_labels(log),
        *_tasks(log),
        *_attention(log),
        *_heads(log),
        _drift(log),
        _similarity(log),
        _events(log),
    ]
    return [picture for picture in found if len(picture.rounds) > 0]


def pages(shown: Mapping[Group, Picture], round: int) -> Iterator[tuple[Sequence[Group], Figure]]:
    """Figures with a round's picture of each group, which has a size, as many groups in one as fit on a page."""
    groups, sizes = list(shown), [picture.size(round) for picture in shown.values() if picture.size is not None]
    count, height = max(panels for panels, _ in sizes), figures.height_of(max(rows for _, rows in sizes))
    most = max(1, int(_PAGE / height) * figures.panels_in_a_row() // count)
    for start in range(0, len(groups), most):
        page = groups[start : start + most]
        figure, grid = figures.panels(count * len(page), height)
        for at, group in enumerate(page):
            axes = grid[count * at : count * (at + 1)]
            while len(axes) > sizes[start + at][0]:  # next to methods whose clients have models of their own
                axes.pop().remove()
            shown[group].draw(round, group.label, axes)
        figure.suptitle(f"Round {round}")
        yield page, figure


def _logged(log: Log, *names: str) -> list[int]:
    """Rounds that have each of some tensors."""
    return sorted(set.intersection(*(set(log.tensors.get(name, ())) for name in names)))


def _fitting(log: Log, *asked: tuple[str, int, str]) -> list[Tensor]:
    """Tensors by name, round and a letter for each dimension, which stands for one size in all of them, at least 1.

    Raises:
        ValueError: naming the first that does not fit, as in a damaged record.
    """
    sizes: dict[str, int] = {}
    for name, round, letters in asked:
        shape = log.tensors[name][round].shape
        sizes = {letter: max(size, 1) for letter, size in zip(letters, shape, strict=True)} | sizes
        expected = tuple(sizes[letter] for letter in letters)
        if shape != expected:
            raise ValueError(f"{name} of round {round} has shape {shape}, not {expected}")
    return [logged_tensor(log, name, round) for name, round, _ in asked]


def _arriving(log: Log, count: int) -> list[str]:
    """Names of the classes; of those that arrive with the rounds in which they came and went."""
    names, logged = class_labels(log, count), _logged(log, "tasks/class_rounds")
    if not logged or len(rounds := logged_tensor(log, "tasks/class_rounds", logged[-1])) != count:
        return names
    return with_rounds(names, rounds)


def _client_forgetting(log: Log) -> Picture:
    def accuracies(round: int) -> list[Tensor]:
        return [logged_tensor(log, f"clients/accuracy_{when}", round) for when in ("before", "after")]

    def draw(round: int, label: str = "", on: Sequence[Axes] = ()) -> Figure:
        before, after = accuracies(round)
        clients, scores = logged_clients(log, "clients/cohort", round), client_forgetting(before, after)
        return figures.client_forgetting_picture(before, after, scores, clients, round, label, on)

    def size(round: int) -> tuple[int, int]:
        before, after = accuracies(round)
        return before.ndim + 1, len(after) + 3

    return Picture("forgetting/clients", client_forgetting_rounds(log), draw, size=size)


def _one_round(log: Log) -> Picture:
    def draw(round: int, label: str = "", on: Sequence[Axes] = ()) -> Figure:
        values = logged_tensor(log, "clients/class_accuracy", round)
        clients = logged_clients(log, "clients/class_cohort", round)
        return figures.one_round(values, clients, class_labels(log, values.shape[1]), round, label, *on)

    return Picture("class_accuracy/one_round", one_round_rounds(log), draw, size=_rows(log, "clients/class_accuracy"))


def _rows(log: Log, name: str, without: int = 0) -> Callable[[int], tuple[int, int]]:
    """The size of a heatmap of a tensor."""
    return lambda round: (1, len(log.tensors[name][round]) - without)


def _over_rounds(log: Log) -> Iterator[Picture]:
    """Accuracy by class and its drops, which scalars hold; NaN where a class had not come."""
    rounds, found = class_curves(log, class_names(log))
    if not len(rounds):
        return
    values, names, last = torch.from_numpy(found), _arriving(log, len(found)), rounds[-1:].tolist()

    def accuracy(round: int) -> Figure:
        return figures.over_rounds(values, names, rounds.tolist(), "Accuracy of the global model by class")

    trained = np.flatnonzero(rounds)  # the untrained model has nothing to forget

    def drops(round: int) -> Figure:
        after = torch.from_numpy(found[:, trained])
        title = "Drop in accuracy since the evaluation before"
        ends = ends_of_domains(log)  # after which the test set is another
        grown = torch.tensor([any(a <= end < b for end in ends) for a, b in pairwise(rounds[trained].tolist())])
        fallen = (after[:, :-1] - after[:, 1:]).clamp_min(0).masked_fill(grown, torch.nan)
        return figures.over_rounds(fallen, names, rounds[trained][1:].tolist(), title, diverging=True)

    yield Picture("class_accuracy/heatmap", last, accuracy, of_the_run=True)
    if len(trained) > 1:
        yield Picture("forgetting/drops", last, drops, of_the_run=True)


def _heads(log: Log) -> Iterator[Picture]:
    """Of clients less the global model, whose row comes first; of norms relative to it."""
    for tag, name in (("head/logits", "head/logit"), ("head/norms", "head/norm")):

        def changes(round: int, name: str = name) -> Tensor:
            before, after = logged_tensor(log, name, round).tensor_split([1])
            return (after - before) / before if name == "head/norm" else after - before

        rounds = rounds_of_clients(log, name, "head/cohort", more=1)
        yield Picture(tag, rounds, _of_classes(log, tag, "head", changes), size=_rows(log, name, without=1))


def _drift(log: Log) -> Picture:
    draw = _of_classes(log, "drift/classes", "drift", partial(logged_tensor, log, "drift/class"))
    return Picture("drift/classes", rounds_of_clients(log, "drift/class", "drift/cohort"), draw, size=_rows(log, "drift/class"))


def _of_classes(log: Log, tag: str, probe: str, values_of: Callable[[int], Tensor]) -> Callable[..., Figure]:
    """How a probe's values (K, C) are drawn; the frames need ``<probe>/holds``, which records of older runs lack."""

    def draw(round: int, label: str = "", on: Sequence[Axes] = ()) -> Figure:
        values, holds = values_of(round), log.tensors.get(f"{probe}/holds", {}).get(round)
        framed = torch.zeros_like(values) if holds is None or holds.shape != values.shape else torch.from_numpy(holds)
        clients, names = logged_clients(log, f"{probe}/cohort", round), class_labels(log, values.shape[1])
        return figures.client_class_change(values, framed > 0, clients, names, label or _title(tag, round), *on)

    return draw


def _similarity(log: Log) -> Picture:
    def draw(round: int, label: str = "", on: Sequence[Axes] = ()) -> Figure:
        values, clients = logged_tensor(log, "cka/clients", round), logged_clients(log, "cka/cohort", round)
        names = [one_line(name.removeprefix("cka/")) for name in log.scalars if name.startswith("cka/")]
        layers = names if len(names) == values.shape[1] else list(map(str, range(values.shape[1])))
        return figures.similarity_by_layer(values, clients, layers, round, label or _title("cka/clients", round), *on)

    rounds = rounds_of_clients(log, "cka/clients", "cka/cohort")
    return Picture("cka/clients", rounds, draw, size=_rows(log, "cka/clients"))


def _events(log: Log) -> Picture:
    """A column for each measurement up to the round."""
    logged = log.tensors.get("events/class", {})

    def draw(round: int, label: str = "", on: Sequence[Axes] = ()) -> Figure:
        count = len(logged[round])
        columns = {one: values for one, values in sorted(logged.items()) if one <= round and len(values) == count}
        values, title = torch.from_numpy(np.stack([*columns.values()], axis=1)), label or _title("events/classes", round)
        return figures.over_rounds(values, class_labels(log, count), [*columns], title, *on)

    rounds = sorted(round for round, values in logged.items() if len(values))
    return Picture("events/classes", rounds, draw, size=_rows(log, "events/class"))


def _title(tag: str, round: int) -> str:
    return f"{PROBES[tag]}, round {round}"


def _personal(log: Log, round: int) -> Figure:
    return figures.accuracy_of_clients(
        logged_tensor(log, "clients/personal_accuracy", round), f"Personal models, round {round}"
    )


def _labels(log: Log) -> Iterator[Picture]:
    """Class shares of the federation's first clients, where tasks arrive before each of them, and of cohorts."""
    begun = _logged(log, "label_counts/first_clients")
    if not begun:
        return

    def partition(after: int) -> Figure:
        (first,) = _fitting(log, ("label_counts/first_clients", after, "NC"))
        rows = [*(f"client {client}" for client in range(len(first) - 1)), "all clients"]
        title = f"Labels of the clients from round {after + 1} on" if len(begun) > 1 else "Labels of the clients"
        return figures.label_shares(first, rows, class_labels(log, first.shape[1]), title)

    def of_cohort(round: int) -> Figure:
        before = max((after for after in begun if after < round), default=begun[0])
        first, some = _fitting(log, ("label_counts/first_clients", before, "NC"), ("label_counts/clients", round, "KC"))
        return figures.cohort_shares(some, first[-1], cohort(log, round) or (), class_labels(log, some.shape[1]), round)

    yield Picture("label_counts/partition", begun, partition, of_the_run=len(begun) == 1)
    counted = [
        round
        for round in _logged(log, "label_counts/clients")
        if 0 < len(cohort(log, round) or ()) == len(log.tensors["label_counts/clients"][round])
    ]
    yield Picture("label_counts/cohort", counted, of_cohort)


def _tasks(log: Log) -> Iterator[Picture]:
    """Of tasks: accuracy, which one samples are taken for, and what classes have lost."""
    whose = "accuracy of the global model" if "tasks/class_table" in log.tensors else "accuracy, mean over clients"

    def table(round: int) -> Figure:
        (known,) = _fitting(log, ("tasks/table", round, "TT"))
        return figures.task_table(known, whose)

    def confusion(round: int) -> Figure:
        parts = ("tasks/table", "TT"), ("tasks/counts", "CC"), ("tasks/class_task", "C")
        known, counts, class_task = _fitting(log, *((name, round, letters) for name, letters in parts))
        if not ((class_task >= 0) & (class_task < len(known))).all():
            raise ValueError(f"tasks/class_task of round {round} names a task that is none of the {len(known)}")
        shares = task_confusion(counts, class_task.long(), len(known))
        return figures.task_confusion_table(shares, int((~known.isnan()).any(dim=1).sum()) - 1)

    def classes(round: int) -> Figure:
        values, _ = _fitting(log, ("tasks/class_table", round, "TC"), ("tasks/class_rounds", round, "C2"))
        return figures.classes_after_tasks(values.T, _arriving(log, values.shape[1]))

    yield Picture("tasks/accuracy_table", _logged(log, "tasks/table"), table)
    yield Picture("tasks/confusion", _logged(log, "tasks/table", "tasks/counts", "tasks/class_task"), confusion)
    yield Picture("tasks/classes", _logged(log, "tasks/class_table", "tasks/class_rounds"), classes)


def _attention(log: Log) -> Iterator[Picture]:
    """Tasks by their positions in clients' streams: names are not logged."""

    def table(round: int, client: int) -> Figure:
        values, foreign = _fitting(log, (f"{_ATTENTION}{client}", round, "TF"), (f"{_FOREIGN}{client}", round, "F2"))
        columns = [f"{position + 1} of client {other}" for other, position in foreign.int().tolist()]
        return figures.attention_table(values, list(map(str, range(1, len(values) + 1))), columns, client)

    for client in sorted(int(name.removeprefix(_ATTENTION)) for name in log.tensors if name.startswith(_ATTENTION)):
        rounds = _logged(log, f"{_ATTENTION}{client}", f"{_FOREIGN}{client}")
        yield Picture(f"tasks/attention/client_{client}", rounds, partial(table, client=client))
