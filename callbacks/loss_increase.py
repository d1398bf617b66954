"""LossIncrease: what a round's local fits do to the loss on the training data of the round before."""

from typing import Any

from lightning.pytorch import Trainer

from fl_lightning.callbacks.base import FederatedCallback
from fl_lightning.clients import CohortModels, RoundReport
from fl_lightning.metrics import loss_by_owner
from fl_lightning.module import FederatedModule


class LossIncrease(FederatedCallback):
    """Mean cross entropy on the training data of the last round's clients, before and after this round's local fits.

    Xu et al., "Acceleration of Federated Learning with Alleviated Forgetting in Local Training", ICLR 2022, Figures 1 and 2 and
    Appendix B.1. For a client i of round t - 1 with training data D_i the loss before is that of the global model that round t
    starts from on D_i, and the loss after is the mean over the clients j of round t of that of client j's model on D_i.
    ``forgetting/loss_before``, ``forgetting/loss_after`` and ``forgetting/loss_increase``, after less before, are their means
    over i, in nats. Data are not augmented. Round 1 has no round before it. Models whose logits are not finite are left out, as
    they are of the round. Every model is asked for all samples of those clients, and all its logits are held at once.

    For its comparison of methods the paper sets FedReg's gamma to 1 and starts every round of FedAvg from FedReg's global
    model; here a run follows its own.
    """

    def __init__(self, every: int = 100, rounds: list[int] | None = None) -> None:
        super().__init__(every, rounds)
        self._previous: list[int] = []  # clients of the round before

    def wants_models(self, round: int) -> bool:
        return self.due(round) and len(self._previous) > 0

    def on_cohort_fit_end(self, trainer: Trainer, module: FederatedModule, round: int, models: CohortModels) -> None:
        if not self.wants_models(round):
            return
        inputs, targets, owner = module.data.training_samples(self._previous)
        before = loss_by_owner(models.predict_received(inputs), targets, owner, len(self._previous))
        after = loss_by_owner(models.predict(inputs), targets, owner, len(self._previous))
        after = after.where(after.isfinite(), float("nan")).nanmean(dim=0)
        means = {"before": before.mean(), "after": after.mean(), "increase": (after - before).mean()}
        module.log_round({f"forgetting/loss_{name}": mean for name, mean in means.items()}, round)

    def on_round_end(self, trainer: Trainer, module: FederatedModule, round: int, report: RoundReport) -> None:
        self._previous = report.clients

    def state_dict(self) -> dict[str, Any]:
        return {"previous": self._previous}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._previous = state_dict["previous"]
