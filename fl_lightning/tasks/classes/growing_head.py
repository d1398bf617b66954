"""A class layer with a row for every class from the start; the rows of the classes seen so far take part."""

from typing import Any

import torch
from torch import Tensor, nn

from fl_lightning.functional.random_streams import torch_stream
from fl_lightning.models.network import SEEN, classifier_of, expose_features


class GrowingHead:
    """A growing head with constant shapes: the net gives minus infinity for classes not seen yet.

    Args:
        net: with a linear class layer.

    Raises:
        ValueError: if it has none.
    """

    def __init__(self, net: nn.Module) -> None:
        name = expose_features(net, "which gets a row for each class")
        layer = classifier_of(net)
        if not isinstance(layer, nn.Linear):
            raise ValueError(
                f"model.net is {type(net).__name__}, whose class layer {name} is {type(layer).__name__}, must be linear, "
                "with a row for each class: set model.class_layer"
            )
        self._layer = layer
        self.names = frozenset(layer.state_dict(prefix=f"{name}."))
        # Sent like a counter of BatchNorm.
        net.register_buffer(SEEN, torch.zeros((), dtype=torch.int64, device=layer.weight.device))
        net.register_forward_hook(_without_unseen)

    def of(self, net: nn.Module) -> dict[str, Tensor]:
        """How many classes a net has seen, by the name of its buffer; shares memory."""
        return {SEEN: net.get_buffer(SEEN)}

    def see(self, net: nn.Module, count: int) -> None:
        """Set the number of classes of a net; nothing waits for the device."""
        net.get_buffer(SEEN).fill_(count)

    @torch.no_grad()
    def clear(self, first: int) -> None:
        """Set the rows from ``first`` on to 0, where weight decay leaves them: no state of server or clients has them in it."""
        for tensor in self._layer.parameters():
            tensor[first:] = 0

    @torch.no_grad()
    def draw(self, rows: slice, seed: int, task: int) -> None:
        """Draw the rows of new classes, the same for all clients. Not earlier, as weight decay would shrink them."""
        weight, bias = self._layer.weight, self._layer.bias
        drawn = torch.rand(weight[rows].shape, generator=torch_stream(seed, task, -1, "rows of the head"), dtype=torch.float64)
        weight[rows] = ((2 * drawn - 1) / self._layer.in_features**0.5).to(weight)
        if bias is not None:
            bias[rows] = 0


def _without_unseen(net: nn.Module, inputs: Any, logits: Any) -> Any:
    """A hook: logits of classes not seen yet become minus infinity, but not in an object, which a call by keywords returns."""
    if not isinstance(logits, Tensor):
        return logits
    unseen = torch.arange(logits.shape[-1], device=logits.device) >= net.get_buffer(SEEN)
    return logits.masked_fill(unseen, float("-inf"))
