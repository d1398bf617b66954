"""LossIncrease: what a round's local fits do to the loss on the training data of the round before."""

import torch
from lightning.pytorch import Trainer
from torch import Tensor

from fl_lightning.callbacks.federated_callback import FederatedCallback, log_tensors
from fl_lightning.evaluation.refits import refit_by_fedavg
from fl_lightning.functional import loss_increase
from fl_lightning.module import FederatedModule
from fl_lightning.protocol import CohortModels, RoundReport, overridden


class LossIncrease(FederatedCallback):
    """Mean cross entropy on the training data of the last round's clients, before and after this round's local fits.

    Xu et al., "Acceleration of Federated Learning with Alleviated Forgetting in Local Training", ICLR 2022, Figures 1 and 2 and
    Appendix B.1. For a client i of round t - 1 with training data D_i the loss before is that of the global model that round t
    starts from on D_i, and the loss after is the mean over the clients j of round t of that of client j's model on D_i.
    ``forgetting/loss_before``, ``forgetting/loss_after`` and ``forgetting/loss_increase``, after less before, are their means
    over i, in nats; the increases by model and data are the tensor ``clients/loss_increase`` (K, clients of round t - 1).
    Data are not augmented; on a stream, D_i is what client i has in round t. Round 1 has no round before it. Models whose
    logits are not finite are left out, as they are of the round. Where clients keep personal models, the loss before is the
    mean over these. Every model is asked for all samples of those clients, and all its logits are held at once.

    For its comparison of methods the paper sets FedReg's gamma to 1 and starts the clients of FedAvg in every round from
    FedReg's global model. With ``fedavg`` the due rounds of a run of FedReg fit their clients a second time, from the weights
    that they received and on the same batches, by FedAvg's local steps: with the run's loss, local optimizer and number of
    steps, and DP-SGD where the run has it. ``forgetting/loss_after_fedavg`` and ``forgetting/loss_increase_fedavg`` are then
    what they would be with those models; the loss before is the same. The run is what it is without.

    Args:
        every, rounds: rounds in which this is done.
        fedavg: measure FedAvg from FedReg's global models too. These fits are one after another under every engine.

    Raises:
        ValueError: in ``setup``, if ``fedavg`` is asked for and the method makes no pseudo data, as FedReg does.
    """

    kept = ("_previous",)

    def __init__(self, every: int = 100, rounds: list[int] | None = None, fedavg: bool = False) -> None:
        super().__init__(every, rounds)
        self.fedavg = fedavg
        self._previous: list[int] = []  # clients of the round before

    def setup(self, trainer: Trainer, module: FederatedModule, stage: str) -> None:
        if self.fedavg and not overridden(module, FederatedModule.pseudo_data):
            raise ValueError(
                f"callback LossIncrease: fedavg is true and model is {type(module).__name__}, but FedAvg is compared "
                "only with FedReg: leave fedavg out"
            )
        super().setup(trainer, module, stage)

    def reads_clients(self, module: FederatedModule) -> bool:
        return self.chooses

    def wants_models(self, round: int) -> bool:
        return self.due(round) and len(self._previous) > 0

    def on_cohort_fit_end(self, trainer: Trainer, module: FederatedModule, round: int, models: CohortModels) -> None:
        inputs, targets, owner = module.data.evaluation.training_samples(self._previous)

        def mean_losses(logits: Tensor) -> Tensor:
            return module.data.objective.loss_by_owner(logits, targets, owner, len(self._previous))

        if module.keeps_models:
            before = mean_losses(models.predict_before(inputs)).nanmean(dim=0)
        else:
            before = mean_losses(models.predict_received(inputs))
        means = {"before": before.mean()}
        fits = {"": models}
        if self.fedavg:
            fits["_fedavg"] = refit_by_fedavg(module, module.engine.context, round, models.clients)
        for name, fitted in fits.items():
            after = mean_losses(fitted.predict(inputs))
            means |= {
                f"after{name}": loss_increase(torch.zeros_like(before), after),
                f"increase{name}": loss_increase(before, after),
            }
            if not name:
                log_tensors(trainer, {"clients/loss_increase": after - before}, round)
        module.log_round({f"forgetting/loss_{name}": mean for name, mean in means.items()}, round)

    def on_round_end(self, trainer: Trainer, module: FederatedModule, round: int, report: RoundReport) -> None:
        self._previous = report.clients
