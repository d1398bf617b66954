"""The common base of the papers' networks, and their refusals of inputs."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

_CLASS_LAYERS = ("classifier", "score", "classification_head", "head", "heads", "fc")  # in well-known libraries


class Network(nn.Module):
    """A classifier built from ``(input_shape, num_classes, ...)``; your own nets need not derive from it.

    It returns ``net.classifier(net.features(inputs))``.
    """

    features: Any  # of a subclass: a module or a method
    classifier: Any

    def forward(self, inputs: Tensor) -> Tensor:
        return self.classifier(self.features(inputs))


def image_shape(net: str, input_shape: Sequence[int], smallest: int = 1, *, cure: str) -> tuple[int, int, int]:
    """The shape of the data's images, (channels, height, width).

    Raises:
        ValueError: if they are not images, or a side is below ``smallest``.
    """
    shape = tuple(input_shape)
    if len(shape) != 3 or min(shape[1:]) < smallest:
        size = f" of at least {smallest}x{smallest}" if smallest > 1 else ""
        raise ValueError(f"model.net {net} needs images{size}, the data gives shape {shape}: {cure}")
    return shape


def check_colour(net: str, input_shape: Sequence[int]) -> None:
    """Refuse data that are not images with three channels.

    Raises:
        ValueError: with the cure.
    """
    if len(input_shape) != 3 or input_shape[0] != 3:
        raise ValueError(
            f"model.net {net} needs colour images, the data gives shape {tuple(input_shape)}: "
            "add fl_lightning.data.ToRGB to data.augment"
        )


def class_layer(net: nn.Module, cure: str) -> str:
    """The name of a net's class layer, one of those in well-known libraries.

    Args:
        cure: what to do without one, for the error.

    Raises:
        ValueError: if there is no layer of a known name.
    """
    head = next((name for name, _ in net.named_children() if name in _CLASS_LAYERS), None)
    if head is None:
        known = ", ".join(_CLASS_LAYERS)
        raise ValueError(f"model.net {type(net).__name__} has a class layer of none of the names {known}, {cure}")
    return head
