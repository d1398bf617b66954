"""Fine-tuning: what a client makes of a model with some steps on its training samples."""

from dataclasses import dataclass

import torch
from torch import nn

from fl_lightning.algorithm import FederatedAlgorithm
from fl_lightning.data import FederatedDataModule
from fl_lightning.random_streams import seeded_layers

_BEFORE_ALL_ROUNDS = 0  # rounds count from 1: what is drawn here is drawn nowhere else


@dataclass(frozen=True)
class FineTuning:
    """Plain local training, with the method's loss and its local optimizer at the rate of a round.

    Args:
        method: whose ``fine_tunes`` says which weights are trained.
        data: who has which samples.
        round: whose learning rate it is.
        epochs: passes over a client's training samples.
        steps: or local steps; None: the epochs count.
    """

    method: FederatedAlgorithm
    data: FederatedDataModule
    round: int
    epochs: int
    steps: int | None = None

    @torch.enable_grad()
    def __call__(self, net: nn.Module, client: int) -> None:
        """Fine-tune a client's model in place. A batch of one sample, which BatchNorm cannot take, is left out there."""
        method, counts = self.method, self.data.label_counts[client]
        for name, weight in net.named_parameters():
            weight.requires_grad_(method.fine_tunes(name))
        optimizer = method.local_optimizer([weight for weight in net.parameters() if weight.requires_grad])
        for group in optimizer.param_groups:
            group["lr"] *= method.client_learning_rate(self.round, client)
        steps = self.epochs * self.data.steps_per_epoch(client) if self.steps is None else self.steps
        smallest = 2 if any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in net.modules()) else 1
        net.train()
        with seeded_layers(method.seed, _BEFORE_ALL_ROUNDS, client, "fine-tuning", counts.device):
            for batch in self.data.client_batches().batches(client, _BEFORE_ALL_ROUNDS, steps):
                if len(batch.targets) >= smallest:
                    optimizer.zero_grad()
                    method.loss(net(batch.inputs), batch.targets, counts).mean().backward()
                    optimizer.step()
        net.eval()
