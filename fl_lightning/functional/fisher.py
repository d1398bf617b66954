"""How much each weight matters to some data."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

_GRADIENT_VALUES = 1 << 25  # of single samples that are held at a time


def empirical_fisher(
    net: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], batches: Iterable[tuple[Tensor, Tensor]]
) -> dict[str, Tensor]:
    """Diagonal of the empirical Fisher information: the mean over samples of the squared gradient of a sample's loss.

    Kirkpatrick et al., "Overcoming catastrophic forgetting in neural networks", PNAS 2017, with the true labels in the place of
    drawn ones. The net is put into evaluation mode meanwhile.

    Args:
        net: whose trainable weights.
        loss: logits (B, C) and targets to one value a sample, (B,).
        batches: inputs (B, ...) and targets, (B,) or, for soft labels, (B, C).

    Returns:
        By name of the trainable weight, in its shape.
    """
    was_training = net.training
    net.eval()
    weights = {name: weight.detach() for name, weight in net.named_parameters() if weight.requires_grad}
    others = {name: weight.detach() for name, weight in net.named_parameters() if not weight.requires_grad}
    others |= dict(net.named_buffers())

    def loss_of_one(weights: dict[str, Tensor], sample: Tensor, target: Tensor) -> Tensor:
        return loss(functional_call(net, {**weights, **others}, (sample[None],)), target[None])[0]

    # Under autocast torch.vmap cannot take BatchNorm.
    in_own_precision = torch.autocast(next(iter(weights.values())).device.type, enabled=False)
    gradients_of = in_own_precision(vmap(grad(loss_of_one), in_dims=(None, 0, 0)))
    fisher, count = {name: torch.zeros_like(weight) for name, weight in weights.items()}, 0
    at_a_time = max(_GRADIENT_VALUES // sum(weight.numel() for weight in weights.values()), 1)
    for inputs, targets in batches:
        for some, labels in zip(inputs.split(at_a_time), targets.split(at_a_time), strict=True):
            for name, gradients in gradients_of(weights, some, labels).items():
                fisher[name] += gradients.square().sum(dim=0)
        count += len(targets)
    net.train(was_training)
    return {name: total / count for name, total in fisher.items()}
