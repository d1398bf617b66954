"""TaskAccuracy: how well clients know the tasks that they learned one after another."""

import csv
from collections.abc import Sequence

import torch
from lightning.pytorch import Trainer
from torch import Tensor

from fl_lightning.callbacks.federated_callback import FederatedCallback, folder_of, log_figure, log_tensors
from fl_lightning.callbacks.figures import task_table
from fl_lightning.checks import check_each
from fl_lightning.functional import average_accuracy, average_forgetting, backward_transfer
from fl_lightning.module import FederatedModule
from fl_lightning.state.atomic_files import atomic_write


class TaskAccuracy(FederatedCallback):
    """Scalars of every round, and the table, of a federation on task streams; nothing for other methods.

    Means over clients, each at its position in its stream: ``tasks/accuracy``, over all tasks learned so far,
    ``tasks/forgetting``, the largest drop of each earlier task (positive is forgetting), ``tasks/backward_transfer``, the
    change since each was learned (negative is forgetting), ``tasks/learned``, tasks that are over, and ``task_accuracy/01``,
    ``/02``, ..., of the task at that position of each stream. Tasks that a client did not learn are left out.
    ``tasks/model_megabytes`` is what the models of all clients take for the tasks that they have learned, in 10^6 bytes of
    float32, without the zeros of sparse parts. In the chosen rounds and at the end ``tasks/accuracy_table`` draws accuracy
    after each task on each, the tensor ``tasks/table`` (T, T), and of each client ``tasks/client_tables`` (N, T, T).
    ``task_accuracy.csv``, written into the run's folder when the
    run ends, has that of each client: ``client,after,on,task,accuracy``, ``after`` and ``on`` being positions in its stream,
    from 1, and ``task`` the name of the one at ``on``.

    Args:
        clients: of which ``tasks/accuracy_of_client/0``, ... is logged too, over the tasks that the client has learned so far.

    Raises:
        ValueError: as a fit starts, if there is no such client.
    """

    key = "callbacks.task_accuracy"

    def __init__(self, every: int = 100, rounds: list[int] | None = None, clients: Sequence[int] = ()) -> None:
        super().__init__(every, rounds)
        self.clients = list(clients)

    def on_fit_start(self, trainer: Trainer, module: FederatedModule) -> None:
        check_each(f"{self.key}.clients", self.clients, at_least=0, at_most=module.data.num_clients - 1)

    def on_aggregate_end(self, trainer: Trainer, module: FederatedModule, round: int) -> None:
        progress = module.tasks.task_progress()
        if progress is None:
            return
        table = progress.accuracy.cpu()
        of_clients = {client: task_scalars(table[client : client + 1]) for client in self.clients}
        named = {f"tasks/accuracy_of_client/{c}": s["tasks/accuracy"] for c, s in of_clients.items() if s}
        learned = sum(progress.positions) / len(progress.positions)
        counts = {"tasks/learned": learned, "tasks/model_megabytes": 4e-6 * progress.model_values.double().sum()}
        module.log_round({**task_scalars(table), **named, **counts}, round)
        if self.due(round):
            self._draw(trainer, table, round)

    def on_train_end(self, trainer: Trainer, module: FederatedModule) -> None:
        progress = module.tasks.task_progress()
        if progress is not None and self.last_is_missing(trainer):
            self._draw(trainer, progress.accuracy.cpu(), trainer.global_step)

    def on_fit_end(self, trainer: Trainer, module: FederatedModule) -> None:
        folder, progress = folder_of(trainer, module), module.tasks.task_progress()
        if progress is None or folder is None or not trainer.is_global_zero:
            return
        table, streams = progress.accuracy.cpu(), module.data.streams
        with atomic_write(folder / "task_accuracy.csv") as path, open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["client", "after", "on", "task", "accuracy"])
            for client, after, on in (~table.isnan()).nonzero().tolist():
                name = streams.names[int(streams.order[client, on])]
                writer.writerow([client, after + 1, on + 1, name, f"{table[client, after, on]:.6f}"])

    @staticmethod
    def _draw(trainer: Trainer, table: Tensor, round: int) -> None:
        mean = table.nanmean(dim=0)
        log_tensors(trainer, {"tasks/table": mean, "tasks/client_tables": table}, round)
        log_figure(trainer, "tasks/accuracy_table", task_table(mean), round)


def task_scalars(table: Tensor) -> dict[str, Tensor]:
    """Means over clients of what their accuracies say.

    Args:
        table: (N, T, T), accuracy of each client after (or in the midst of) each task on each, NaN where it was not measured.
    """
    newest = {client: int(rows[-1]) for client, rows in enumerate(map(_known, table.transpose(1, 2))) if len(rows) > 0}
    if not newest:
        return {}
    tasks = {client: _known(table[client, row, None]) for client, row in newest.items()}
    known = [table[client][learned][:, learned] for client, learned in tasks.items()]
    scalars = {"tasks/accuracy": torch.stack([average_accuracy(client) for client in known]).mean()}
    several = [client for client in known if len(client) > 1]
    for name, score in (("forgetting", average_forgetting), ("backward_transfer", backward_transfer)):
        if several:
            scalars[f"tasks/{name}"] = torch.stack([score(client) for client in several]).mean()
    of_each = torch.stack([table[client, row] for client, row in newest.items()])
    for task in _known(of_each).tolist():
        scalars[f"task_accuracy/{task + 1:02d}"] = of_each[:, task].nanmean()
    return scalars


def _known(table: Tensor) -> Tensor:
    """Columns of which at least one entry was measured, ascending."""
    return (~table.isnan()).any(dim=0).nonzero().flatten()
