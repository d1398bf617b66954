"""The scores of clients' models on the tasks that they learn."""

from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from fl_lightning.data import EvaluationInputs
from fl_lightning.functional.aggregation import State
from fl_lightning.module import FederatedModule
from fl_lightning.protocol import Client


class HasTaskWeights(Protocol):
    """A learner's access to its clients' models."""

    method: FederatedModule

    def task_weights(self, net: nn.Module, client: Client, position: int) -> State:
        """All weights and buffers of a client's model for the task at a position of its sequence."""
        ...


class TaskModels:
    """Clients' models, each with the weights of a task that its client learns, or has learned.

    Args:
        learner: provides these weights.
    """

    def __init__(self, learner: HasTaskWeights) -> None:
        self._learner = learner

    def predict(self, net: nn.Module, client: Client, position: int, inputs: EvaluationInputs) -> Tensor:
        """Logits (samples, classes of a task) in evaluation mode.

        Args:
            net: the client's, at its present task.
            position: position of the task in the client's sequence.
        """
        batch_size = self._learner.method.data.eval_batch_size

        def predict(frozen: nn.Module) -> Tensor:
            with parametrize.cached():  # composed weights, for all parts
                return torch.cat([frozen(part) for part in inputs.split(batch_size)])

        return client.evaluate(self._learner.task_weights(net, client, position), predict)

    def validation_loss(self, net: nn.Module, client: Client, position: int) -> float:
        """Mean loss on a client's validation samples of a task."""
        data = self._learner.method.data
        inputs, targets = data.evaluation.samples_at(data.streams.indices(client.index, position, "validation"))
        logits = self.predict(net, client, position, inputs)
        return float(self._learner.method.loss(logits, targets, client.label_counts).mean())

    def accuracy(self, net: nn.Module, client: Client, position: int) -> Tensor:
        """Accuracy on a task's test samples, a float64 scalar."""
        data = self._learner.method.data
        inputs, targets = data.evaluation.samples_at(data.streams.indices(client.index, position, "test"))
        hits = self.predict(net, client, position, inputs).argmax(dim=1) == targets
        return hits.double().mean()
