"""A layer of a net from its features to the space of class names, next to its class layer."""

from typing import Any

from torch import Tensor, nn

from fl_lightning.functional.aggregation import State
from fl_lightning.models.network import classifier_of, features_of

_NAME = "anchor_projection"  # submodule of the net


def add_projection(net: nn.Module, width: int, learner: str) -> None:
    """Add the layer, linear with a bias, to a net with a linear class layer.

    Args:
        width: of the space.
        learner: its name, for the error.

    Raises:
        ValueError: if the net is a ``Sequential``, which would run the layer after the others.
    """
    if isinstance(net, nn.Sequential):
        raise ValueError(
            f"model.net is {type(net).__name__}, which would run the layer that {learner} adds after its class layer: make it "
            "the part features of a net, with a part classifier"
        )
    head: Any = classifier_of(net)
    net.add_module(_NAME, nn.Linear(head.in_features, width).to(head.weight.device, head.weight.dtype))


def projection_tensors(net: nn.Module) -> State:
    """Its weight and bias, by their names in the net; shares memory."""
    return {name: tensor.detach() for name, tensor in net.get_submodule(_NAME).named_parameters(prefix=_NAME)}


def without_projection(model: State, net: nn.Module) -> State:
    """A model by name, without the layer that another run's learner added, if a net does not have it."""
    own = {name for name, _ in net.named_children()}
    return {name: tensor for name, tensor in model.items() if _NAME in own or not name.startswith(f"{_NAME}.")}


def projected(net: nn.Module, inputs: Any, classes: slice) -> tuple[Tensor, Tensor]:
    """Logits of some classes, (B, classes), and projected features, (B, width), in one pass."""
    features = features_of(net, inputs)
    return classifier_of(net)(features)[:, classes], net.get_submodule(_NAME)(features)
