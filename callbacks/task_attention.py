"""TaskAttention: whose tasks a client of FedWeIT builds on."""

from collections.abc import Mapping, Sequence

import torch
from lightning.pytorch import Trainer
from torch import Tensor

from fl_lightning.callbacks.federated_callback import FederatedCallback, log_figure, log_tensors
from fl_lightning.callbacks.figures import attention_table
from fl_lightning.checks import check_choice, check_range
from fl_lightning.module import FederatedModule
from fl_lightning.protocol import LearnedTask


class TaskAttention(FederatedCallback):
    """Heatmaps ``tasks/attention/client_K`` of FedWeIT's attention between tasks (Yoon et al., Figure 8); nothing for others.

    A row is a task that the client has learned, a column a task of another client that one of them was given; the value is
    ``alpha`` of a layer, or its mean over layers, which may be negative. Drawn in the chosen rounds and when the run ends, for
    clients whose states the first process holds. Its numbers are the tensors ``tasks/attention_of_client_K`` (T, F) and
    ``tasks/foreign_of_client_K`` (F, 2), client and position of each column.

    Args:
        every, rounds: rounds of the heatmaps.
        num_clients: the first so many clients.
        layer: name of the layer; by default the mean over all. Figure 8 shows the first fully connected layer, ``features.9``
            of ``LeNet``.

    Raises:
        ValueError: if ``num_clients`` is below 1; when the fit starts, if the net has no such layer with attention.
    """

    key = "callbacks.task_attention"

    def __init__(
        self, every: int = 100, rounds: list[int] | None = None, num_clients: int = 5, layer: str | None = None
    ) -> None:
        super().__init__(every, rounds)
        check_range(f"{self.key}.num_clients", num_clients, at_least=1)
        self.num_clients, self.layer = num_clients, layer

    def on_fit_start(self, trainer: Trainer, module: FederatedModule) -> None:
        if self.layer is not None and (layers := list(module.tasks.attention_tensors())):
            check_choice(f"{self.key}.layer", self.layer, layers, hint="null is their mean")

    def on_aggregate_end(self, trainer: Trainer, module: FederatedModule, round: int) -> None:
        if self.due(round):
            self._draw(trainer, module, round)

    def on_train_end(self, trainer: Trainer, module: FederatedModule) -> None:
        if self.last_is_missing(trainer):
            self._draw(trainer, module, trainer.global_step)

    def _draw(self, trainer: Trainer, module: FederatedModule, round: int) -> None:
        tensors = module.tasks.attention_tensors()
        if not tensors:
            return
        tasks, chosen = module.data.streams, list(tensors.values()) if self.layer is None else [tensors[self.layer]]
        for client in sorted(module.stored.states.clients())[: self.num_clients]:
            table, columns = attention(module.stored.states.read(client).tasks, tasks.num_tasks, chosen)
            if columns:
                local = [tasks.names[task] for task in tasks.order[client].tolist()]
                foreign = [f"{tasks.names[int(tasks.order[other, position])]} of client {other}" for other, position in columns]
                numbers = {"attention": table, "foreign": torch.tensor(columns)}
                log_tensors(trainer, {f"tasks/{name}_of_client_{client}": part for name, part in numbers.items()}, round)
                log_figure(trainer, f"tasks/attention/client_{client}", attention_table(table, local, foreign, client), round)


def attention(tasks: Mapping[int, LearnedTask], num_tasks: int, names: Sequence[str]) -> tuple[Tensor, list[tuple[int, int]]]:
    """What the tasks that a client has learned say of its attention.

    Args:
        names: of the tensors with the attention of a layer, whose mean it is.

    Returns:
        (T, F), NaN where a task was not given a foreign one, and the F foreign tasks: client and position.
    """
    rows = {position: [] if task.known is None else task.known.tolist() for position, task in tasks.items()}
    columns = sorted({tuple(known) for row in rows.values() for known in row})
    table = torch.full((num_tasks, len(columns)), float("nan"))
    for position, row in rows.items():
        if not row:
            continue
        of_layers = [tasks[position].tensors[name] for name in names]
        for slot, known in enumerate(row):
            table[position, columns.index(tuple(known))] = torch.stack([one[slot] for one in of_layers]).mean()
    return table, columns
