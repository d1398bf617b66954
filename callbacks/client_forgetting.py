"""ClientForgetting: what a client's fit does to the data of the others."""

import warnings
from functools import partial

import torch
from lightning.pytorch import Trainer
from torch import Tensor

from fl_lightning.callbacks.federated_callback import FederatedCallback, log_figure, log_tensors
from fl_lightning.callbacks.figures import client_forgetting_picture
from fl_lightning.functional import client_forgetting
from fl_lightning.module import FederatedModule
from fl_lightning.protocol import CohortModels


class ClientForgetting(FederatedCallback):
    """F_ki between the clients of a round, on their validation parts (Legate et al., Figures 1 and 5-7).

    In the chosen rounds every client's model is asked for every other client's validation part. ``forgetting/client_mean`` is
    the mean of ``Acc_k(w^i) - Acc_k(w)`` over i and k other than i, with the paper's sign: negative is forgetting, while
    tables and figures show F_ki, with the other. ``forgetting/client_worst`` is the lowest mean over i, of the client k with
    the most forgotten data. ``forgetting/clients`` is the picture, with the means of both kinds. Its numbers are the tensors
    ``clients/cohort`` (K,), ``clients/accuracy_before`` (K,) and ``clients/accuracy_after`` (K, K), row i the model of client
    i, column k the data of client k. Where clients keep personal models, the model before is that of client i too, and
    ``clients/accuracy_before`` (K, K).

    Args:
        every, rounds: the chosen rounds.
        at_sites: with ``model.engine flower``, measure at the clients' sites, which have their validation parts: the server
            sends every model of the round to every site of the round, in K (K + 1) messages. Without it such a run refuses the
            callback.
    """

    key = "callbacks.client_forgetting"
    cure_at_sites = "set every to 0, or at_sites to true"

    def __init__(self, every: int = 100, rounds: list[int] | None = None, at_sites: bool = False) -> None:
        super().__init__(every, rounds)
        self.at_sites = at_sites

    def reads_clients(self, module: FederatedModule) -> bool:
        return self.chooses and not self.at_sites

    @property
    def evaluates_at_sites(self) -> bool:
        return self.at_sites

    def on_fit_start(self, trainer: Trainer, module: FederatedModule) -> None:
        if not self.due_by(trainer.max_steps):
            return
        why = None
        if module.needs.data.task_streams:
            why = "clients that learn tasks of their own have no validation parts: leave it out, TaskAccuracy measures them"
        elif not module.data.has_validation:
            why = "there are no validation samples: set data.val_fraction above 0"
        elif module.data.participation.size == 1:
            why = "it needs two clients in a round: set data.clients_per_round above 1"
        if why is not None:
            warnings.warn(f"callback ClientForgetting measures nothing, as {why}", stacklevel=1)

    def on_cohort_fit_end(self, trainer: Trainer, module: FederatedModule, round: int, models: CohortModels) -> None:
        if not module.data.has_validation:
            return
        before, after = (models.accuracies_at_sites or partial(_accuracies_here, module, models))()
        scores = client_forgetting(before, after)
        if len(models.clients) > 1 and not scores.per_data.isnan().all():
            worst = scores.per_data.nanquantile(0)  # the lowest; clients without validation data are left out of both
            scalars = {"mean": scores.per_data.nanmean(), "worst": worst}
            module.log_round({f"forgetting/client_{name}": value for name, value in scalars.items()}, round)
        cohort = torch.tensor(models.clients)
        numbers = {"cohort": cohort, "accuracy_before": before, "accuracy_after": after}
        log_tensors(trainer, {f"clients/{name}": tensor for name, tensor in numbers.items()}, round)
        figure = client_forgetting_picture(before, after, scores, models.clients, round)
        log_figure(trainer, "forgetting/clients", figure, round)


def _accuracies_here(module: FederatedModule, models: CohortModels) -> tuple[Tensor, Tensor]:
    """Accuracies on validation parts that the server has: before the fits, (K,) or (K, K), and after them, (K, K)."""
    inputs, targets, owner = module.data.evaluation.validation_samples(models.clients)
    received = models.predict_before(inputs) if module.keeps_models else models.predict_received(inputs)
    score = module.data.objective.score_by_owner
    before = score(received, targets, owner, len(models.clients))
    return before, score(models.predict(inputs), targets, owner, len(models.clients))
