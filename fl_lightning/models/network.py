"""The common base of the papers' networks, and their refusals of inputs."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

SEEN = "num_seen"
"""A buffer of nets that learn arriving classes: how many have arrived."""
PERSONAL_HEAD = "personal_head"
"""FedRoD's second class layer in a net."""
_CLASS_LAYERS = ("classifier", "score", "classification_head", "head", "heads", "fc", "lm_head")  # in libraries
_FOUND = "_class_layer"  # attribute of a net: the name of its class layer
_USED = "_uses_class_layer"  # attribute of a net with a class layer that something relies on


class Network(nn.Module):
    """A classifier built from ``(input_shape, num_classes, ...)``; your own nets need not derive from it.

    It returns ``net.classifier(net.features(inputs))``.
    """

    features: Any  # of a subclass: a module or a method
    classifier: Any
    name: str | None = None
    """The name of a net by name, in its library."""

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


def find_class_layer(net: nn.Module, given: str | None = None) -> None:
    """Note in a net, as an attribute, which of its layers is the class layer, if it has one of a name in well-known libraries.

    A net with the parts ``features`` and ``classifier`` gives ``net.classifier(net.features(inputs))``, unless ``given``.

    Args:
        given: the name of the class layer, the last layer of the net; None: it is found by its name.

    Raises:
        ValueError: if the net has no layer ``given``.
    """
    for earlier in (_FOUND, _USED):  # of another method with this net
        net.__dict__.pop(earlier, None)
    layers = dict(net.named_modules())
    if given is not None and (not given or given not in layers):
        last = ", ".join([*layers][-5:])
        raise ValueError(f"model.class_layer is {given!r}, no layer of model.net {type(net).__name__}: the last are {last}")
    if given is None and not _has_parts(net):
        configured = getattr(net, "default_cfg", None)  # of timm
        of_timm = configured.get("classifier") if isinstance(configured, dict) else None
        given = next((name for name in (of_timm, *_CLASS_LAYERS) if isinstance(name, str) and name in layers), None)
    if given is not None:
        setattr(net, _FOUND, given)


def class_layer(net: nn.Module, why: str) -> str:
    """The name of a net's class layer, after :func:`find_class_layer`; the net notes that it is used.

    Args:
        why: who needs it, for the error.

    Raises:
        ValueError: if none was found.
    """
    name = getattr(net, _FOUND, None)
    if name is None and not _has_parts(net):
        known = ", ".join(_CLASS_LAYERS)
        raise ValueError(
            f"model.net {type(net).__name__} has a class layer of none of the names {known}, {why}: set model.class_layer"
        )
    setattr(net, _USED, True)
    return name or "classifier"


def of_class_layer(net: nn.Module, patterns: Sequence[str]) -> tuple[str, ...]:
    """Name patterns of weights with those of the class layer instead of ``classifier.*``, whatever its name is."""
    name = getattr(net, _FOUND, "classifier")
    if "classifier.*" in patterns:
        setattr(net, _USED, True)
    return tuple(f"{name}.*" if pattern == "classifier.*" else pattern for pattern in patterns)


def classifier_of(net: nn.Module) -> nn.Module:
    """The class layer of a net, or the net itself if none was found."""
    name: Any = getattr(net, _FOUND, None)
    return getattr(net, "classifier", net) if name is None else net.get_submodule(name)


def tied_layer(net: nn.Module, name: str) -> str | None:
    """The name of a layer that shares a weight with another one, such as the embedding of many language models; None: none.

    Args:
        name: of the other one, in which layers can be.
    """
    layer = net.get_submodule(name)
    weights, within = {*map(id, layer.parameters())}, {*layer.modules()}
    others = ((other, one) for other, one in net.named_modules() if one not in within)
    return next((other for other, one in others if weights & {*map(id, one.parameters(recurse=False))}), None)


def features_of(net: Any, inputs: Any) -> Tensor:
    """The inputs of a net's class layer: by ``net.features``, or, if that layer was found by its name, after
    :func:`expose_features`."""
    return outputs_and_features(net, inputs)[1] if getattr(net, _FOUND, None) else net.features(inputs)


def uses_class_layer(net: nn.Module) -> bool:
    """Whether anything relies on the class layer of a net that has one."""
    return hasattr(net, _USED) and (hasattr(net, _FOUND) or _has_parts(net))


def expose_features(net: nn.Module, why: str) -> str:
    """Prepare a net for :func:`outputs_and_features`, by a hook, as compiled steps cannot add one: :func:`class_layer`."""
    name = class_layer(net, why)
    layer: Any = net.get_submodule(name)
    if _catch not in layer._forward_pre_hooks.values():
        layer._caught_inputs = None  # the list that inputs are added to, while there is one
        layer.register_forward_pre_hook(_catch)
    return name


def outputs_and_features(net: Any, inputs: Any) -> tuple[Tensor, Tensor]:
    """The outputs of a net and the inputs of its class layer, in one pass, after :func:`expose_features`."""
    layer: Any = classifier_of(net)
    layer._caught_inputs = []
    try:
        outputs = net(inputs)
        return outputs, layer._caught_inputs[-1]
    finally:
        layer._caught_inputs = None


def _catch(layer: Any, arguments: tuple[Tensor, ...]) -> None:
    if layer._caught_inputs is not None:
        layer._caught_inputs.append(arguments[0])


def inputs_of(layer: nn.Module, net: nn.Module, inputs: Any) -> Tensor:
    """The inputs of a layer of a net for some samples."""
    caught: list[Tensor] = []
    hook = layer.register_forward_pre_hook(lambda _, arguments: caught.append(arguments[0]))
    try:
        net(inputs)
    finally:
        hook.remove()
    return caught[-1]


def _has_parts(net: nn.Module) -> bool:
    return hasattr(net, "features") and isinstance(getattr(net, "classifier", None), nn.Module)
