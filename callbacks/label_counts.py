"""LabelCounts: what the clients hold."""

import torch
from lightning.pytorch import Trainer

from fl_lightning.callbacks.federated_callback import FederatedCallback, log_figure, log_tensors
from fl_lightning.callbacks.figures import cohort_shares, label_shares
from fl_lightning.module import FederatedModule
from fl_lightning.protocol import RoundReport

_CLIENTS_IN_PICTURE = 10  # as in the paper's figure


class LabelCounts(FederatedCallback):
    """Class shares of the clients: of the federation, of the cohort in the chosen rounds.

    ``label_counts/partition`` shows the first ten clients and the federation (Legate et al., Figure 4), drawn before round 1
    and, where classes arrive, before each task. Its numbers are the tensor ``label_counts/first_clients``, a row a client, the
    last one all of them. In the chosen rounds ``label_counts/cohort`` shows the cohort's clients, the cohort and the federation
    as bars. Its numbers are the tensor ``label_counts/clients`` (K, C): a curve for each class would tell less and bury the
    others.
    """

    key = "callbacks.label_counts"

    def reads_clients(self, module: FederatedModule) -> bool:
        return self.chooses

    def on_train_start(self, trainer: Trainer, module: FederatedModule) -> None:
        if trainer.global_step == 0:
            self._draw_first_clients(trainer, module, 0)

    def on_round_start(self, trainer: Trainer, module: FederatedModule, round: int) -> None:
        progress = module.tasks.class_progress()
        if progress is not None and round > 1 and (round - 1) % progress.rounds_per_task == 0:
            self._draw_first_clients(trainer, module, round - 1)

    def _draw_first_clients(self, trainer: Trainer, module: FederatedModule, after: int) -> None:
        if not self.chooses:
            return
        data, progress, whose = module.data, module.tasks.class_progress(), "the clients"
        if progress is not None:
            whose = f"the clients in task {progress.task + 1}"
        elif data.tasks is not None:
            whose = "the clients' first tasks"
        clients = list(range(min(_CLIENTS_IN_PICTURE, data.num_clients)))
        labels = [*(f"client {client}" for client in clients), "all clients"]
        shown = torch.cat([data.label_counts[clients], data.label_counts.sum(dim=0, keepdim=True)])
        log_tensors(trainer, {"label_counts/first_clients": shown}, after)
        title = f"Labels of {whose}, {data.tasks or data.partition!r}"
        log_figure(trainer, "label_counts/partition", label_shares(shown, labels, data.classes, title), after)

    def on_round_end(self, trainer: Trainer, module: FederatedModule, round: int, report: RoundReport) -> None:
        if not self.due(round):
            return
        everyone, some = module.data.label_counts, module.data.label_counts[report.clients]
        log_tensors(trainer, {"label_counts/clients": some}, round)
        figure = cohort_shares(some, everyone.sum(dim=0), report.clients, module.data.classes, round)
        log_figure(trainer, "label_counts/cohort", figure, round)
