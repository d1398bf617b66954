"""FedReg: clients rehearse the global model's knowledge on pseudo data that they make themselves.

C. Xu, Z. Hong, M. Huang, T. Jiang: Acceleration of Federated Learning with Alleviated Forgetting in Local Training. ICLR 2022.
arXiv 2203.02645. Cross entropies are the authors' code's, ``-sum_c q_c log(softmax_c + 1e-12)``. Departures: the clamp of the
pseudo data, which the authors' code computes and drops, is left out; inner products are added up in float64, since near the
received weights numerator and denominator are both of second order. Modified gradients take a sample's pseudo data from the
pass before the fit, where its augmentation may have been different.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from fl_lightning.checks import check_range
from fl_lightning.engines.net_behaviour import draws, mixes_samples
from fl_lightning.functional.loss_reductions import at_least_float32
from fl_lightning.losses import CrossEntropy
from fl_lightning.models.federated_net import copied_net
from fl_lightning.module import ArgumentsButWeighting, FederatedModule, Net, ServerWeighting
from fl_lightning.protocol import Batch, Client, DataNeeds, Needs, State, mean_gradient
from fl_lightning.protocol.learner import objective_gradients
from fl_lightning.run.refused_data import check_groups

_BLOCK = 1 << 16  # values
_TINY = 1e-30  # keeps a gradient of zero from being divided by
_LOG_FLOOR = math.log(1e-12)
_NONE = ("momentum", "weight_decay")


class FedReg(FederatedModule):
    """Every local step is followed by two projections that keep the losses on pseudo and perturbed data from rising.

    Pseudo data are a client's samples after ``num_perturbations`` steps up the received model's loss, with that model's
    predictions as soft labels. Perturbed data are the samples after much smaller steps, with the true labels. ``loss`` is the
    loss for true labels.

    Round:
        clients: two projections after each step, from pseudo and perturbed data
        server: uniform mean

    Args:
        gamma: position of the gradient, ``gamma * w + (1 - gamma) * w_t``, in [0, 1].
        pseudo_step: eta_s, length of a step towards pseudo data, above 0.
        perturbed_step: eta_p; by default a hundredth of ``pseudo_step``.
        num_perturbations: E, number of these steps.
        modified_gradients: the MG variant, which removes from every gradient on the batch its component along the gradient on
            the batch's pseudo data with uniform labels, a gradient that needs only the images and no label.

    Raises:
        ValueError: if a value is out of range, the local optimizer is not plain SGD or its rate changes within a visit, the net
            draws or mixes samples, or inputs are whole numbers that are not images.
    """

    needs = Needs(data=DataNeeds(classes=True))
    unprotected = ("the gradients that make pseudo and perturbed data and those on them",)

    def __init__(
        self,
        net: Net,
        gamma: float = 0.5,
        pseudo_step: float = 0.1,
        perturbed_step: float | None = None,
        num_perturbations: int = 10,
        modified_gradients: bool = False,
        server_weighting: ServerWeighting = "uniform",
        **common: Unpack[ArgumentsButWeighting],
    ) -> None:
        super().__init__(net, server_weighting=server_weighting, **common)
        check_range("model.gamma", gamma, at_least=0, at_most=1, hint="the paper uses 0.25 to 0.5")
        self.gamma, self.pseudo_step, self.num_perturbations = gamma, pseudo_step, num_perturbations
        self.modified_gradients = modified_gradients
        self.needs = replace(self.needs, sample_indices=modified_gradients)
        self.perturbed_step = pseudo_step / 100 if perturbed_step is None else perturbed_step
        for name in ("pseudo_step", "perturbed_step", "num_perturbations"):
            check_range(f"model.{name}", getattr(self, name), above=0)
        optimizer = self.optimizer([nn.Parameter(torch.zeros(1))])
        plain = type(optimizer) is torch.optim.SGD and not any(optimizer.param_groups[0][key] for key in _NONE)
        if not plain or self.clip_local_gradients is not None:
            raise ValueError(
                f"model.optimizer is {type(optimizer).__name__} with its settings, but FedReg projects steps of plain SGD: "
                "use it without momentum, weight_decay and model.clip_local_gradients"
            )
        if self.visit_lr_scheduler is not None:
            raise ValueError(
                "model.visit_lr_scheduler is given, but FedReg projects steps of one rate: leave it out, or use "
                "model.client_lr_scheduler"
            )

    def check_data(self) -> None:
        super().check_data()
        check_groups(self, "lr", *_NONE)
        inputs = self.data.first_inputs(2)
        if not isinstance(inputs, Tensor) or not inputs.is_floating_point():
            kind = "whole numbers that are not images and have no gradients"
            kind = kind if isinstance(inputs, Tensor) else "several tensors a sample"
            raise ValueError(
                f"data.source gives {kind}, but FedReg makes its pseudo data with gradients: use another method, or give "
                "one tensor of floats"
            )
        net = copied_net(self).train()  # as clients train it, whatever the mode of the net that was given
        for name, layer in net.named_modules():
            uses_more = isinstance(layer, nn.modules.batchnorm._BatchNorm | nn.modules.dropout._DropoutNd)
            if uses_more and layer.training and getattr(layer, "p", 1) > 0:  # a frozen BatchNorm does not train
                raise ValueError(
                    f"model.net has the layer {name}, {type(layer).__name__}, but FedReg needs a net with an output that "
                    "depends only on the sample: use group norm or none, and no dropout"
                )
        if draws(net, inputs) or mixes_samples(net, inputs):
            raise ValueError(
                f"model.net is {type(net).__name__}: its outputs in training depend on chance or on other samples, but FedReg "
                "needs outputs that depend only on the sample: use another net"
            )

    def client_start(self, net: nn.Module, client: Client) -> dict[str, Any]:
        """Pseudo and perturbed data, a row for each batch of one pass over the client's samples in an order drawn for it.

        A visit with fewer steps than batches makes only the rows that it rehearses; modified gradients need all samples'.
        """
        carry = super().client_start(net, client)
        net.eval()
        batches = islice(client.epoch("pseudo data"), None if self.modified_gradients else client.num_steps)
        rows = [self._perturbed(net, batch, client) for batch in batches]
        net.train()
        rehearsal = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
        if self.modified_gradients:
            # Where the pseudo data of each sample are, by its index in the shard: padding samples come last.
            indices = torch.where(rehearsal["real"], rehearsal.pop("sample_indices"), torch.iinfo(torch.int64).max)
            rehearsal["found_at"] = indices.flatten().argsort()
        return {**carry, "rehearsal": rehearsal}

    def pseudo_data(self, client: Client) -> State:
        rehearsal = client.carry["rehearsal"]
        return {"inputs": rehearsal["pseudo"][rehearsal["real"]], "labels": rehearsal["labels"][rehearsal["real"]]}

    def _perturbed(self, net: nn.Module, batch: Batch, client: Client) -> State:
        pseudo, perturbed = (self._climb(net, batch, client, length) for length in (self.pseudo_step, self.perturbed_step))
        with torch.no_grad():
            labels = net(pseudo).softmax(dim=-1)
        row = {"pseudo": pseudo, "labels": labels, "perturbed": perturbed, "targets": batch.targets, "real": batch.real}
        return row if batch.sample_indices is None else {**row, "sample_indices": batch.sample_indices}

    def _climb(self, net: nn.Module, batch: Batch, client: Client, length: float) -> Tensor:
        """Inputs after steps of this length along the sign of the loss's gradient."""
        inputs = batch.inputs
        for _ in range(self.num_perturbations):
            inputs = inputs.detach().requires_grad_()
            loss = self._hard_loss(net(inputs), batch.targets, client).sum()
            (gradient,) = torch.autograd.grad(loss, inputs)
            inputs = inputs.detach() + length * gradient.sign()
        return inputs

    def client_loss(self, net: nn.Module, batch: Batch, client: Client) -> Tensor:
        return self._hard_loss(net(batch.inputs), batch.targets, client)

    def _hard_loss(self, logits: Tensor, targets: Tensor, client: Client) -> Tensor:
        """Of true labels, (B,)."""
        if type(self.loss) is CrossEntropy:
            return -_log_probabilities(logits).gather(-1, targets.unsqueeze(-1)).squeeze(-1)
        return self.loss(logits, targets, client.label_counts)

    def client_step(self, net: nn.Module, batch: Batch, client: Client) -> Tensor:
        """One step on the batch, then the projections, handed to the optimizer as one gradient."""
        rate, received = client.learning_rate, [client.received_state[name] for name in self.trained_weights(net)]
        weights = [weight.detach() for weight in self.trained_weights(net).values()]
        slow = [self.gamma * weight + (1 - self.gamma) * start for weight, start in zip(weights, received, strict=True)]
        gradient, loss = objective_gradients(self, net, batch, client, at=slow)
        if self.modified_gradients and len(batch.targets) > 0:  # Poisson batches may have none
            gradient = self._without_semantics(gradient, net, batch, client, slow)
        moved = [weight - rate * g for weight, g in zip(weights, gradient, strict=True)]
        middle = [(weight + start) / 2 for weight, start in zip(moved, received, strict=True)]
        rehearsed = self._row(client)

        def pseudo_loss() -> Tensor:
            return -(rehearsed["labels"] * _log_probabilities(net(rehearsed["pseudo"]))).sum(dim=-1)

        def perturbed_loss() -> Tensor:
            return self._hard_loss(net(rehearsed["perturbed"]), rehearsed["targets"], client)

        old = Batch(rehearsed["pseudo"], rehearsed["targets"], rehearsed["real"])
        g_s, _ = mean_gradient(net, old, client, pseudo_loss, at=middle)
        g_p, _ = mean_gradient(net, old, client, perturbed_loss, at=middle)
        delta = [weight - start for weight, start in zip(moved, received, strict=True)]
        w_s = _multiplier(delta, g_s)
        delta = [d - w_s * g for d, g in zip(delta, g_s, strict=True)]
        w_p = _multiplier(delta, g_p)
        divisor = rate + (rate == 0)  # at a rate of 0 nothing moves, and both multipliers are 0
        client.apply([g + (w_s * s + w_p * p) / divisor for g, s, p in zip(gradient, g_s, g_p, strict=True)])
        return loss

    def _without_semantics(
        self, gradient: Sequence[Tensor], net: nn.Module, batch: Batch, client: Client, slow: Sequence[Tensor]
    ) -> list[Tensor]:
        """MG: ``g - <g, u> / ||u||^2 * u``, u the gradient on the batch's pseudo data with uniform labels.

        Without augmentation a sample's pseudo data depend only on the sample and the received weights, so those made when the
        visit began are the batch's.
        """
        found_at = client.carry["rehearsal"]["found_at"].index_select(0, batch.sample_indices)
        pseudo = client.carry["rehearsal"]["pseudo"].flatten(0, 1).index_select(0, found_at)
        semantic, _ = mean_gradient(net, batch, client, lambda: -_log_probabilities(net(pseudo)).mean(dim=-1), at=slow)
        share = _inner_product(gradient, semantic) / (_inner_product(semantic, semantic) + _TINY)
        return [g - share.to(g.dtype) * u for g, u in zip(gradient, semantic, strict=True)]

    def _row(self, client: Client) -> State:
        """The pseudo and perturbed data of this step: row after row, from the start again after the last."""
        carry = {name: rows for name, rows in client.carry["rehearsal"].items() if name != "found_at"}
        num_rows = len(carry["real"])
        if isinstance(client.step, int):  # views, where a tensor would have to be brought to the device and rows be copied
            return {name: rows[client.step % num_rows] for name, rows in carry.items()}
        row = (client.step % num_rows).reshape(1)
        return {name: rows.index_select(0, row)[0] for name, rows in carry.items()}


def _log_probabilities(logits: Tensor) -> Tensor:
    """``log(softmax + 1e-12)``, (B, C), also where the softmax itself would be rounded to 0."""
    log_softmax = at_least_float32(logits).log_softmax(dim=-1)
    return torch.logaddexp(log_softmax, log_softmax.new_full((), _LOG_FLOOR))


def _multiplier(delta: Sequence[Tensor], gradient: Sequence[Tensor]) -> Tensor:
    """``max(0, <delta, gradient> / ||gradient||^2)`` over all weights together: how far the half-space is."""
    product, square = _inner_product(delta, gradient), _inner_product(gradient, gradient)
    return (product / (square + _TINY)).clamp_min(0).to(gradient[0].dtype)


def _inner_product(first: Sequence[Tensor], second: Sequence[Tensor]) -> Tensor:
    """Added up in float64, a block at a time: copies of whole weights in float64 would not stay in the processor's cache."""
    blocks = [
        (a.double() * b.double()).sum()
        for one, other in zip(first, second, strict=True)
        for a, b in zip(*(_blocks(tensor) for tensor in (one, other)), strict=True)
    ]
    return torch.stack(blocks).sum()


def _blocks(tensor: Tensor) -> tuple[Tensor, ...]:
    return tensor.reshape(-1).split(_BLOCK if tensor.device.type == "cpu" else max(tensor.numel(), 1))
