"""Any classification model of torchvision, and the loading of files of its weights."""

import difflib
import re
from collections.abc import Sequence
from typing import Any

import torch
import torchvision
from torch import Tensor, nn
from torchvision.models import SqueezeNet, get_model, list_models

from fl_lightning.checks import check_file
from fl_lightning.checks.extras import needing_extra
from fl_lightning.functional.aggregation import State
from fl_lightning.models.network import Network

# Auxiliary heads would make the outputs in train mode a tuple.
_NO_AUXILIARY_HEADS = {
    "googlenet": {"aux_logits": False, "init_weights": True},
    "inception_v3": {"aux_logits": False, "init_weights": True},
}
_WRAPPERS = ("module.", "_orig_mod.")  # what DataParallel and torch.compile put before the names of a net


class TorchvisionModel(Network):
    """A classification model of torchvision with a class layer for ``num_classes``.

    Its last linear layer is ``classifier``, everything before it ``features``; of a SqueezeNet, ``classifier`` is the final
    layers. ``--model.net torchvision.models.NAME`` is short for it.

    Args:
        input_shape: (3, height, width).
        num_classes: at least 1.
        name: name of its function in ``torchvision.models``, such as ``resnet50``.
        options: further arguments of that function, such as ``image_size`` of ``vit_b_16``.
        weights: local file with a state dict of this model, such as one from download.pytorch.org. A class layer of another
            size is left out. By default, random weights.

    Raises:
        ValueError: if the name or an option is unknown, the images are not in colour, or the weights belong to another net.
        FileNotFoundError: if there is no such file.
    """

    def __init__(
        self,
        input_shape: Sequence[int],
        num_classes: int,
        name: str,
        options: dict[str, Any] | None = None,
        weights: str | None = None,
    ) -> None:
        super().__init__()
        self.name = name
        known = list_models(module=torchvision.models)
        if name not in known:
            close = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0)[0]
            raise ValueError(f"model.net.name is {name!r}, no classification model of torchvision: did you mean {close}?")
        if len(input_shape) != 3 or input_shape[0] != 3:
            raise ValueError(
                f"model.net TorchvisionModel needs colour images, the data gives shape {tuple(input_shape)}: "
                "add fl_lightning.data.ToRGB to data.augment"
            )
        fixed = {"weights": None, "num_classes": num_classes, **_NO_AUXILIARY_HEADS.get(name, {})}
        try:
            net = get_model(name, **fixed, **(options or {}))
        except (TypeError, ValueError, AssertionError) as error:
            raise ValueError(f"model.net.options is {options}, which {name} does not take ({error}): change them") from error
        class_layer = [key for key, layer in net.named_modules() if isinstance(layer, nn.Linear | nn.Conv2d)][-1]
        if weights is not None:
            state = read_state_dict(weights)
            for key in [key for key in state if name in _NO_AUXILIARY_HEADS and key.lower().startswith("aux")]:
                del state[key]
            load_all_but_class_layer(net, state, class_layer, weights)
        if isinstance(net, SqueezeNet):  # its class layer is a convolution, followed by ReLU and pooling
            self.features, self.classifier = net.features, nn.Sequential(net.classifier, nn.Flatten())
        else:
            self.classifier = net.get_submodule(class_layer)
            net.set_submodule(class_layer, nn.Identity())
            self.features = net


def read_state_dict(file: str, key: str = "model.net.weights") -> State:
    """The state dict in a local file of torch, or of safetensors where it is named so. Code in a file never runs.

    Args:
        key: the option that gives the file, for messages.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it holds anything else.
    """
    check_file(key, file, "give a local file")
    cure = "save the net's state_dict() with torch.save"
    if file.endswith(".safetensors"):
        with needing_extra("transformers", key):
            from safetensors import SafetensorError
            from safetensors.torch import load_file
        try:
            return load_file(file)
        except (SafetensorError, OSError) as error:
            cure = "put it back from a copy, or save the net's state_dict() with safetensors.torch.save_file"
            raise ValueError(f"{key} is {file}, which is not a safetensors file, or not all of it ({error}): {cure}") from error
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a file of another kind can raise anything in the unpickler
        raise ValueError(f"{key} is {file}, which torch cannot read as plain weights: {cure}") from error
    if not isinstance(state, dict) or not state or not all(isinstance(value, Tensor) for value in state.values()):
        raise ValueError(f"{key} is {file}, which holds more than weights, or none: {cure}")
    return state


def check_finite_values(stored: State, present: State, where: str, cure: str) -> None:
    """Refuse stored weights with values that are not finite. What is not finite in the net itself may be so.

    Args:
        stored, present: tensors by name, of the file and of the net that takes them; compared where both have the name.
        where: the beginning of the message, such as ``ckpt_path holds a net where``.
    """
    for name in sorted(stored.keys() & present.keys()):
        # Values that start as NaN, such as those of a table to be filled, can be NaN.
        if present[name].isfinite().all() and not stored[name].isfinite().all():
            raise ValueError(f"{where} {name} has values that are not finite: {cure}")


def check_no_wrapper(stored: State, present: State, holder: str) -> None:
    """Refuse the weights of a net in ``DataParallel`` or ``torch.compile``, which begin all names with ``module.`` or so.

    Args:
        stored, present: tensors by name, of the file and of the net.
        holder: the beginning of the message: the option and the file.
    """
    for prefix in _WRAPPERS:
        if stored and all(name.startswith(prefix) for name in stored) and not any(name.startswith(prefix) for name in present):
            raise ValueError(
                f"{holder} holds names that all begin with {prefix}, as of a wrapped net: remove this from them, or save the "
                "state_dict() of the net in the wrapper"
            )


def load_all_but_class_layer(net: nn.Module, state: State, class_layer: str, file: str) -> None:
    """Load weights into a net of torchvision; its class layer too, if the file has one of that size.

    Args:
        net: changed in place.
        state: changed in place; it keeps the version numbers that torch stores with a state dict.
        file: the file of ``state``, for the errors.

    Raises:
        ValueError: if a name is missing, unknown or of another shape, other than in the class layer, or a value is not finite.
    """
    for key in list(state):  # torchvision's files of DenseNets have names from before PyTorch 0.4
        state[re.sub(r"(denselayer\d+\.(?:norm|conv))\.([12]\.)", r"\1\2", key)] = state.pop(key)
    current = net.state_dict()
    check_no_wrapper(state, current, f"model.net.weights is {file}, which")
    head = [key for key in current if key.startswith(f"{class_layer}.")]
    if not all(key in state and state[key].shape == current[key].shape for key in head):
        for key in head:
            state.pop(key, None)
    cure = f"give weights of this net, {type(net).__name__}"
    for key in current.keys() & state.keys():
        if current[key].shape != state[key].shape:
            there, here = tuple(state[key].shape), tuple(current[key].shape)
            raise ValueError(f"model.net.weights is {file}, where {key} is {there} and must be {here}: {cure}")
    check_finite_values(state, current, f"model.net.weights is {file}, where", "give an older file, or other weights")
    missing, unexpected = net.load_state_dict(state, strict=False)
    for key in missing:
        if key not in head:
            raise ValueError(f"model.net.weights is {file}, where {key} is missing: {cure}")
    if unexpected:
        raise ValueError(f"model.net.weights is {file}, where {unexpected[0]} is unknown: {cure}")
