"""RoundForgetting: what the global model loses from one evaluation to the next, and what clients lose within a round."""

import warnings

import torch
from lightning.pytorch import Trainer
from torch import Tensor

from fl_lightning.callbacks.class_names import class_names
from fl_lightning.callbacks.federated_callback import FederatedCallback, log_distribution, log_figure, log_tensors
from fl_lightning.callbacks.figures import over_rounds
from fl_lightning.checks import check_whole
from fl_lightning.functional import forgetting_from_best, local_forgetting, round_forgetting
from fl_lightning.module import FederatedModule
from fl_lightning.protocol import CohortModels


class RoundForgetting(FederatedCallback):
    """F_t and F of the Flashback paper on the test set, and on request the clients' local F_kt.

    Whenever the test set is evaluated, the drops in per-class accuracy since the evaluation before are averaged over classes:
    ``forgetting/round`` if that was one round earlier, ``forgetting/every_K`` if it was K rounds. The chosen rounds and the
    last draw the class-by-round heatmap of the drops, ``forgetting/drops``; a class that arrives has the rounds in which it
    came and went. ``forgetting/from_best`` is F, equation 2: the mean over classes of the drop from the best of the evaluations
    before. The untrained model, which has nothing to forget, takes part in none of these. Where the test set grows, as with
    domains that arrive, only evaluations of the same samples of a class are compared.

    Args:
        every, rounds: rounds of the heatmap.
        clients_every: rounds in which every client's model is measured against the one that it started from, the global one or
            its personal one, on the whole test set: ``forgetting/local_mean``, the mean of F_kt over the cohort, and their
            distribution, ``forgetting/local``. The changes by class are the tensor ``clients/local_change`` (K, C). 0, the
            default, for never.
    """

    key = "callbacks.round_forgetting"
    kept = ("_previous", "best", "_drops", "_num_tests")

    def __init__(self, every: int = 100, rounds: list[int] | None = None, clients_every: int = 0) -> None:
        super().__init__(every, rounds)
        check_whole(f"{self.key}.clients_every", clients_every, at_least=0, hint="rounds, 0 is never")
        self.clients_every = clients_every
        self._previous: tuple[int, Tensor] | None = None  # round, per-class accuracy (C,)
        self.best: Tensor | None = None  # (C,), highest accuracy of each class before the newest evaluation, without round 0
        self._drops: dict[int, Tensor] = {}  # round -> (C,)
        self._num_tests: Tensor | None = None  # (C,), test samples of each class; None: they are the same in all rounds

    def on_fit_end(self, trainer: Trainer, module: FederatedModule) -> None:
        evaluation = module.data.evaluation
        if self.due_by(trainer.global_step) and self.best is None and evaluation.monitors_test and module.has_global_model:
            every = module.data.monitor_test
            warnings.warn(
                f"callback RoundForgetting measured nothing, as the test set was evaluated in fewer than two rounds: set "
                f"data.monitor_test, which is {every}, and trainer.val_check_interval to fewer rounds",
                stacklevel=1,
            )

    def wants_models(self, round: int) -> bool:
        return self.clients_every > 0 and round % self.clients_every == 0

    def on_cohort_fit_end(self, trainer: Trainer, module: FederatedModule, round: int, models: CohortModels) -> None:
        if not module.data.evaluation.monitors_test:
            return
        inputs, targets = module.data.evaluation.test_inputs(), module.data.evaluation.test_targets()
        num_classes = len(module.data.classes)
        after = module.data.objective.score_by_unit(models.predict(inputs), targets, num_classes)
        received = models.predict_before(inputs) if module.keeps_models else models.predict_received(inputs)
        before = module.data.objective.score_by_unit(received, targets, num_classes)
        local = local_forgetting(before, after)
        module.log_round({"forgetting/local_mean": local.mean()}, round)
        log_distribution(trainer, "forgetting/local", local, round)
        log_tensors(trainer, {"clients/local_change": after - before}, round)

    def on_validation_end(self, trainer: Trainer, module: FederatedModule) -> None:
        if trainer.state.fn != "fit" or trainer.sanity_checking or "test" not in module.evaluation.scores:
            return
        round, accuracy = trainer.global_step, module.evaluation.scores["test"].class_accuracy.cpu()
        if round == 0:
            return
        self._forget_smaller_tests(module)
        if self._previous is not None:
            gap, before = round - self._previous[0], self._previous[1]
            name = "forgetting/round" if gap == 1 else f"forgetting/every_{gap}"
            self._drops[round] = (before - accuracy).clamp_min(0)
            if not self._drops[round].isnan().all():
                module.log_round({name: round_forgetting(before, accuracy)}, round)
        self.best = self.best_before(round)
        if self.best is not None and not (self.best - accuracy).isnan().all():
            module.log_round({"forgetting/from_best": forgetting_from_best(torch.stack([self.best, accuracy]))}, round)
        self._previous = (round, accuracy)
        if self._drops and self.due_or_last(trainer, round):
            values = torch.stack(list(self._drops.values()), dim=1)
            title = "Drop in accuracy since the evaluation before"
            figure = over_rounds(values, class_names(module), list(self._drops), title, diverging=True)
            log_figure(trainer, "forgetting/drops", figure, round)

    def _forget_smaller_tests(self, module: FederatedModule) -> None:
        """Drop the accuracies of classes that have more test samples than before, as when a domain arrives."""
        if module.data.evaluation.arriving is None:
            return
        num_tests = torch.bincount(module.data.evaluation.test_targets().cpu(), minlength=len(module.data.classes))
        if self._num_tests is not None and (grown := num_tests > self._num_tests).any() and self._previous is not None:
            round, accuracy = self._previous
            self._previous = (round, accuracy.masked_fill(grown, torch.nan))
            self.best = None if self.best is None else self.best.masked_fill(grown, torch.nan)
        self._num_tests = num_tests

    def best_before(self, round: int) -> Tensor | None:
        """(C,), highest accuracy of each class in the evaluations before a round that is the newest or later; None: of none."""
        if self._previous is None or self._previous[0] == round:
            return self.best
        return self._previous[1] if self.best is None else torch.fmax(self.best, self._previous[1])
