"""Fine-tuning: some steps of a client on its training samples."""

from collections.abc import Set
from dataclasses import dataclass
from fnmatch import fnmatch

import torch
from torch import nn

from fl_lightning.algorithm import FederatedAlgorithm
from fl_lightning.data import FederatedDataModule
from fl_lightning.functional.many_tensors import copy_all
from fl_lightning.functional.random_streams import seeded_layers
from fl_lightning.functional.stateless import tensors_of

_BEFORE_ALL_ROUNDS = 0  # rounds count from 1: no other draw has this address


@dataclass(frozen=True)
class FineTuning:
    """Plain local training, with the method's loss and its local optimizer at the rate of a round.

    For a client that never took part, one pass without gradients over its training samples sets its personal running statistics
    before the first step: the initial ones come from no data at all.
    """

    method: FederatedAlgorithm  # decides which weights are trained: its own choice, and the names in `fine_tuned`
    data: FederatedDataModule
    round: int  # that sets the learning rate
    epochs: int  # passes over a client's training samples
    steps: int | None = None  # local steps instead of epochs; None: the epochs count
    new: Set[int] = frozenset()  # clients that never took part

    def __call__(self, net: nn.Module, client: int) -> None:
        """Fine-tune a client's model in place. With BatchNorm, which cannot take one sample, such a batch is left out."""
        if client in self.new:
            self._welcome(net)
            self._estimate_statistics(net, client)
        self._train(net, client)

    @torch.no_grad()
    def _welcome(self, net: nn.Module) -> None:
        held, model = tensors_of(net), self.method.newcomer_model(tensors_of(self.method.net))
        copy_all([held[name] for name in model], list(model.values()))

    @torch.no_grad()
    def _estimate_statistics(self, net: nn.Module, client: int) -> None:
        """Estimate statistics of BatchNorm layers that stay with clients; a single sample has none."""
        tracking = [(name, layer) for name, layer in _norms(net) if layer.track_running_stats]
        buffers = ((f"{name}.running_mean", layer) for name, layer in tracking)
        constant = self.method.constant_names
        layers = [layer for name, layer in buffers if self.method.is_personal(name) and name not in constant]
        momenta = [layer.momentum for layer in layers]
        net.eval()
        for layer in layers:
            layer.get_buffer("num_batches_tracked").zero_()  # the first batch replaces the previous values
            layer.momentum = None  # a plain mean over batches
            layer.train()
        for batch in self.data.client_batches().client_samples(client):
            if len(batch.targets) > 1:
                net(batch.inputs)
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
        net.eval()

    @torch.enable_grad()
    def _train(self, net: nn.Module, client: int) -> None:
        method, counts = self.method, self.data.label_counts[client]
        for name, weight in net.named_parameters():
            weight.requires_grad_(name in method.trained_names or any(fnmatch(name, part) for part in method.fine_tuned))
        optimizer = method.optimizer([weight for weight in net.parameters() if weight.requires_grad])
        for group in optimizer.param_groups:
            group["lr"] *= method.client_learning_rate(self.round, client)
        steps = self.epochs * self.data.steps_per_epoch(client) if self.steps is None else self.steps
        smallest = 2 if _norms(net) else 1
        net.train()
        with seeded_layers(method.seed, _BEFORE_ALL_ROUNDS, client, "fine-tuning", counts.device):
            for batch in self.data.client_batches().batches(client, _BEFORE_ALL_ROUNDS, steps):
                if len(batch.targets) >= smallest:
                    optimizer.zero_grad()
                    method.loss(net(batch.inputs), batch.targets, counts).mean().backward()
                    optimizer.step()
        net.eval()


def _norms(net: nn.Module) -> list[tuple[str, nn.modules.batchnorm._BatchNorm]]:
    """The BatchNorm layers of a net by name."""
    return [(name, layer) for name, layer in net.named_modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
