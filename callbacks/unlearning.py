"""Unlearning: what the global model still does on the samples of one client, which it is to forget."""

import torch
from lightning.pytorch import Trainer
from torch import Tensor

from fl_lightning.callbacks.federated_callback import FederatedCallback
from fl_lightning.checks import check_whole
from fl_lightning.evaluation.reference_sets import check_global_model, evaluated_weights
from fl_lightning.functional.aggregation import State
from fl_lightning.functional.membership import membership_auc
from fl_lightning.module import FederatedModule
from fl_lightning.protocol import Inputs, RoundReport, predict_in_batches
from fl_lightning.run.warm_start import check_same_net, stored_weights

_KEY = "callback Unlearning: retrained"


class Unlearning(FederatedCallback):
    """The global model on the training samples of a client that is to be forgotten, before round 1 and in the chosen rounds.

    ``unlearning/forget_accuracy`` is the accuracy on that client's training samples, ``unlearning/rest_accuracy`` on those of
    all others. ``unlearning/membership_auc`` is :func:`fl_lightning.functional.membership.membership_auc` of the client's
    training samples among the test samples. ``unlearning/distance`` is the Euclidean distance of the trained weights from those
    of a run that never had the client. None of these proves that a client is forgotten: compare each with that run's.

    Args:
        client: its index.
        retrained: checkpoint or state dict of the run without the client; by default there is none, and no distance.
        every, rounds: the chosen rounds; the last round is measured too.

    Raises:
        ValueError: as a fit starts, if there is no such client or no other, no test set or no global model, or ``retrained``
            holds another net.
        FileNotFoundError: if ``retrained`` is not a file.
    """

    needs_classes = True
    cure_at_sites = "leave it out"

    def __init__(self, client: int, retrained: str | None = None, every: int = 1, rounds: list[int] | None = None) -> None:
        super().__init__(every, rounds)
        self.client, self.retrained = client, retrained
        self._retrained: State = {}

    def reads_clients(self, module: FederatedModule) -> bool:
        return True

    def on_fit_start(self, trainer: Trainer, module: FederatedModule) -> None:
        check_forgotten(self, self.client, module)
        if not module.data.evaluation.has_test:
            raise ValueError(
                "callback Unlearning compares losses with test samples, and data.source has none: give it a test set"
            )
        if self.retrained is not None:
            self._retrained, _ = stored_weights(self.retrained, module.data.samples.input_record, _KEY)
            holder = f"{_KEY} is {self.retrained}, which"
            check_same_net(self._retrained, module.net.state_dict(), holder, "give weights of this net")

    def on_round_start(self, trainer: Trainer, module: FederatedModule, round: int) -> None:
        if round == 1 and self.chooses:
            self._measure(trainer, module, 0)

    def on_round_end(self, trainer: Trainer, module: FederatedModule, round: int, report: RoundReport) -> None:
        if self.due(round):
            with evaluated_weights(trainer, module):
                self._measure(trainer, module, round)

    def on_train_end(self, trainer: Trainer, module: FederatedModule) -> None:
        if self.last_is_missing(trainer):
            with evaluated_weights(trainer, module):
                self._measure(trainer, module, trainer.global_step)

    def _measure(self, trainer: Trainer, module: FederatedModule, round: int) -> None:
        evaluation, objective = module.data.evaluation, module.data.objective
        others = [client for client in range(module.data.num_clients) if client != self.client]

        def logits(inputs: Inputs) -> Tensor:
            with trainer.precision_plugin.val_step_context():
                return predict_in_batches(module.net, module.data.eval_batch_size, inputs)

        inputs, targets, _ = evaluation.training_samples([self.client])
        rest_inputs, rest_targets, _ = evaluation.training_samples(others)
        known, test_targets = logits(inputs), evaluation.test_targets()
        member_losses = objective.losses(known, targets)
        test_losses = objective.losses(logits(evaluation.test_inputs()), test_targets)
        scalars = {
            "forget_accuracy": objective.score(known, targets),
            "rest_accuracy": objective.score(logits(rest_inputs), rest_targets),
            "membership_auc": membership_auc(member_losses, test_losses, targets, test_targets),
        }
        if self._retrained:
            weights = module.trained_weights(module.net).items()
            apart = [(weight.detach() - self._retrained[name].to(weight)).double().norm() for name, weight in weights]
            scalars["distance"] = torch.stack(apart).norm()
        module.log_round({f"unlearning/{name}": value for name, value in scalars.items()}, round)


def check_forgotten(callback: FederatedCallback, client: int, module: FederatedModule) -> None:
    """Check that a client can be forgotten by a global model.

    Raises:
        ValueError: if there is no such client or no other, there is no global model, or clients learn tasks.
    """
    name, count = type(callback).__name__, module.data.num_clients
    check_whole(f"{name}.client", client)
    if not 0 <= client < count or count == 1:
        raise ValueError(f"{name}.client is {client}, must be one of several clients, between 0 and {count - 1}")
    check_global_model(name, module)
    if module.data.tasks is not None:
        raise ValueError(
            f"callback {name}: data.tasks is {module.data.tasks!r}, which changes clients' samples: set it to null"
        )
