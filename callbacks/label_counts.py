"""LabelCounts: what the clients hold."""

import torch
from lightning.pytorch import Trainer

from fl_lightning.callbacks.federated_callback import FederatedCallback, log_figure, log_tensors
from fl_lightning.callbacks.figures import label_shares
from fl_lightning.exchange import RoundReport
from fl_lightning.module import FederatedModule

_CLIENTS_IN_PICTURE = 10  # as in the paper's figure


class LabelCounts(FederatedCallback):
    """Class shares of the clients: of the federation once, of the cohort in the chosen rounds.

    ``label_counts/partition`` shows the first ten clients and the federation (Legate et al., Figure 4), drawn before round 1.
    Its numbers are the tensor ``label_counts/first_clients``, a row a client, the last one all of them.
    In the chosen rounds ``label_counts/cohort`` shows the cohort's clients, the cohort and the federation as bars. Its numbers
    are the tensor ``label_counts/clients`` (K, C): a curve for each class would tell less and bury the others.
    """

    key = "callbacks.label_counts"

    def __init__(self, every: int = 100, rounds: list[int] | None = None) -> None:
        super().__init__(every, rounds)

    def on_train_start(self, trainer: Trainer, module: FederatedModule) -> None:
        if trainer.global_step == 0 and (self.every > 0 or self.rounds):
            clients = list(range(min(_CLIENTS_IN_PICTURE, module.data.num_clients)))
            whose, how = "the clients", module.data.partition
            if module.data.tasks is not None:
                whose, how = "the clients' first tasks", module.data.tasks
            shown = torch.cat([module.data.label_counts[clients], module.data.label_counts.sum(dim=0, keepdim=True)])
            log_tensors(trainer, {"label_counts/first_clients": shown}, 0)
            self._draw(trainer, module, "label_counts/partition", clients, 0, f"Labels of {whose}, {how!r}")

    def on_round_end(self, trainer: Trainer, module: FederatedModule, round: int, report: RoundReport) -> None:
        if not self.due(round):
            return
        log_tensors(trainer, {"label_counts/clients": module.data.label_counts[report.clients]}, round)
        self._draw(trainer, module, "label_counts/cohort", report.clients, round, f"Labels of the cohort, round {round}")

    def _draw(self, trainer: Trainer, module: FederatedModule, name: str, clients: list[int], round: int, title: str) -> None:
        everyone, some = module.data.label_counts, module.data.label_counts[clients]
        rows = [some, everyone.sum(dim=0, keepdim=True)]
        labels = [*(f"client {client}" for client in clients), "all clients"]
        if round > 0:
            rows.insert(1, some.sum(dim=0, keepdim=True))
            labels.insert(-1, "cohort")
        log_figure(trainer, name, label_shares(torch.cat(rows), labels, module.data.classes, title), round)
