"""ReferenceAccuracy: what training does to knowledge that the federation does not train on."""

from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch import Trainer
from torch import Tensor

from fl_lightning.callbacks.federated_callback import FederatedCallback, log_figure
from fl_lightning.callbacks.figures import heatmap, one_panel
from fl_lightning.evaluation.reference_sets import (
    ReferenceSamples,
    ReferenceSource,
    evaluated_weights,
    held_references,
    named_sources,
)
from fl_lightning.module import FederatedModule
from fl_lightning.protocol import CohortModels, predict_in_batches


class ReferenceAccuracy(FederatedCallback):
    """Accuracy and loss on reference sets, such as the test samples of what a pretrained net knew.

    Of the global model before round 1, after the chosen rounds and after the last: ``reference/NAME/accuracy`` and
    ``reference/NAME/loss``, mean cross entropy in nats; the first accuracy is ``reference/NAME/accuracy_before`` too. In
    the chosen rounds also of each client's model after its fit: ``reference/NAME/cohort_accuracy`` is the mean over the
    cohort, ``forgetting/reference_NAME`` that less the accuracy of the global model that the clients received (negative is
    forgetting), and ``reference/forgetting`` the heatmap of clients and sets, in which positive is forgetting.

    Args:
        sets: by name, the sources of the reference sets, of which the test samples count; their classes are among those of
            ``data.source``.
        root: folder of the sources; None: ``data.root``.
        every, rounds: the chosen rounds.

    Raises:
        ValueError: if there is no set, or a name is not one word; as a fit starts, if a set has no test sample, another shape
            or a class that the federation lacks, or there is no global model.
    """

    def __init__(
        self, sets: Mapping[str, ReferenceSource], root: str | None = None, every: int = 10, rounds: list[int] | None = None
    ) -> None:
        super().__init__(every, rounds)
        self.sets = named_sources("ReferenceAccuracy.sets", sets)
        self.root = root
        self._held: dict[str, ReferenceSamples] = {}

    def on_fit_start(self, trainer: Trainer, module: FederatedModule) -> None:
        self._held = held_references(type(self).__name__, self.sets, self.root, module, module.data)

    def on_round_start(self, trainer: Trainer, module: FederatedModule, round: int) -> None:
        if round == 1 and self.chooses:
            self._measure(trainer, module, 0)
            begun = {f"reference/{name}/accuracy_before": module.newest[f"reference/{name}/accuracy"] for name in self._held}
            module.log_round(begun, 0)

    def on_cohort_fit_end(self, trainer: Trainer, module: FederatedModule, round: int, models: CohortModels) -> None:
        held, score = self._held.values(), module.data.objective.score
        before = torch.stack([score(models.predict_received(one.inputs), one.targets) for one in held])
        after = torch.stack([score(models.predict(one.inputs), one.targets) for one in held], dim=1)
        scalars: dict[str, Tensor] = {}
        for column, name in enumerate(self._held):
            scalars[f"reference/{name}/cohort_accuracy"] = after[:, column].mean()
            scalars[f"forgetting/reference_{name}"] = (after[:, column] - before[column]).mean()
        module.log_round(scalars, round)
        clients = [str(client) for client in models.clients]
        figure = heatmap(
            one_panel(len(clients)),
            before - after,
            clients,
            list(self._held),
            title=f"Forgetting of reference sets by each client's fit, round {round}",
            row_title="client",
            column_title="reference set",
            diverging=True,
        )
        log_figure(trainer, "reference/forgetting", figure, round)

    def on_train_batch_end(self, trainer: Trainer, module: FederatedModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self.due(trainer.global_step):
            with evaluated_weights(trainer, module):
                self._measure(trainer, module, trainer.global_step)

    def on_train_end(self, trainer: Trainer, module: FederatedModule) -> None:
        if self.last_is_missing(trainer):
            with evaluated_weights(trainer, module):
                self._measure(trainer, module, trainer.global_step)

    def _measure(self, trainer: Trainer, module: FederatedModule, round: int) -> None:
        """The global model's accuracy and loss on every set."""
        scalars: dict[str, Tensor] = {}
        with trainer.precision_plugin.val_step_context():
            for name, held in self._held.items():
                logits, targets = predict_in_batches(module.net, module.data.eval_batch_size, held.inputs), held.targets
                scalars[f"reference/{name}/accuracy"] = module.data.objective.score(logits, targets)
                scalars[f"reference/{name}/loss"] = module.data.objective.mean_loss(logits, targets)
        module.log_round(scalars, round)
