"""PerClassAccuracy: which classes the global model knows, round by round and within one round."""

import torch
from lightning.pytorch import Trainer
from torch import Tensor

from fl_lightning.callbacks.class_names import class_names
from fl_lightning.callbacks.federated_callback import FederatedCallback, log_figure, log_tensors
from fl_lightning.callbacks.figures import one_round, over_rounds
from fl_lightning.checks import check_whole
from fl_lightning.module import FederatedModule
from fl_lightning.protocol import CohortModels, predict_in_batches


class PerClassAccuracy(FederatedCallback):
    """A curve for each class, a class-by-round heatmap, and a picture of single rounds; all on the test set.

    All of the global model: without one there are none.

    Curves (``class_accuracy/<class>``) get a point whenever the test set is evaluated. In the chosen rounds and at the
    end the heatmap ``class_accuracy/heatmap`` (Flashback, Figures 1b and 5) is drawn up to now.

    Args:
        every, rounds: rounds of the heatmap.
        clients_every: rounds of ``class_accuracy/one_round`` (Figure 2): the global model before, each client after its fit,
            the global model after, both without averages over rounds. It asks every client's model for the whole test set. 0,
            the default, for never. Its numbers are the tensors ``clients/class_accuracy`` (1 + K + 1, C) and
            ``clients/class_cohort`` (K,), the clients.
    """

    key = "callbacks.per_class_accuracy"
    kept = ("_history",)

    def __init__(self, every: int = 100, rounds: list[int] | None = None, clients_every: int = 0) -> None:
        super().__init__(every, rounds)
        check_whole(f"{self.key}.clients_every", clients_every, at_least=0, hint="rounds, 0 is never")
        self.clients_every = clients_every
        self._history: dict[int, Tensor] = {}  # round -> (C,)
        self._within: Tensor | None = None  # (1 + K, C) of the present round

    def wants_models(self, round: int) -> bool:
        return self.clients_every > 0 and round % self.clients_every == 0

    def on_cohort_fit_end(self, trainer: Trainer, module: FederatedModule, round: int, models: CohortModels) -> None:
        if module.data.evaluation.monitors_test and module.has_global_model:
            inputs, targets = module.data.evaluation.test_inputs(), module.data.evaluation.test_targets()
            before = models.predict_received(inputs)[None]
            logits = torch.cat([before, models.predict(inputs)])
            self._within = module.data.objective.score_by_unit(logits, targets, len(module.data.classes))
            self._clients = models.clients

    def on_aggregate_end(self, trainer: Trainer, module: FederatedModule, round: int) -> None:
        if self._within is None:
            return
        logits = predict_in_batches(module.net, module.data.eval_batch_size, module.data.evaluation.test_inputs())
        after = module.data.objective.score_by_unit(logits, module.data.evaluation.test_targets(), len(module.data.classes))
        values = torch.cat([self._within, after[None]])
        tensors = {"clients/class_accuracy": values, "clients/class_cohort": torch.tensor(self._clients)}
        log_tensors(trainer, tensors, round)
        log_figure(trainer, "class_accuracy/one_round", one_round(values, self._clients, module.data.classes, round), round)
        self._within = None

    def on_validation_end(self, trainer: Trainer, module: FederatedModule) -> None:
        if trainer.state.fn != "fit" or trainer.sanity_checking or "test" not in module.evaluation.scores:
            return
        round, scores = trainer.global_step, module.evaluation.scores["test"].class_accuracy
        self._history[round] = scores.cpu()
        measured = {
            name: scores[label] for label, name in enumerate(module.data.classes) if not self._history[round][label].isnan()
        }
        module.log_round({f"class_accuracy/{name}": value for name, value in measured.items()}, round)
        if round > 0 and self.due_or_last(trainer, round):
            values = torch.stack(list(self._history.values()), dim=1)
            figure = over_rounds(values, class_names(module), list(self._history), "Accuracy of the global model by class")
            log_figure(trainer, "class_accuracy/heatmap", figure, round)
