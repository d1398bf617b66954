"""Nets written for another trainer: they take several arguments, and give their logits in an object or a tuple."""

from typing import Any

import torch
from torch import Tensor, nn

# Encoders of transformers for which a mask for each query gives what the padding mask gives: each key is hidden or not.
_WITH_WHOLE_MASK = ("albert", "bert", "convbert", "distilbert", "electra", "mobilebert", "mpnet", "nystromformer", "roberta")
_functorch = torch._C._functorch  # pyright: ignore[reportAttributeAccessIssue]


def accept_foreign(net: nn.Module) -> None:
    """Have ``net(inputs)`` take a dict of keyword arguments or a tuple of arguments, and return only the logits.

    Logits are the tensor that the net returns, the ``logits`` of an object, as Hugging Face's nets return it, or the first of a
    tuple. Hooks do this, so the net keeps its class and the names of its weights. A call with keywords or several arguments,
    such as ``net(**batch)``, returns what it did before.
    """
    if _spread not in net._forward_pre_hooks.values():
        net.register_forward_pre_hook(_spread, with_kwargs=True)
        net.register_forward_hook(_logits, with_kwargs=True)


class _OfOneArgument(dict[str, Any]):
    """Keywords of a call with one argument, as the hook after it sees them."""


def _spread(net: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if keywords or len(arguments) != 1:
        return arguments, keywords
    (argument,) = arguments
    if isinstance(argument, dict):
        return (), _OfOneArgument(_with_whole_mask(net, argument))
    return argument if isinstance(argument, tuple) else arguments, _OfOneArgument()


def _with_whole_mask(net: nn.Module, named: dict[str, Any]) -> dict[str, Any]:
    """Under ``vmap``, the arguments of an encoder of Hugging Face with its padding mask (B, L) as one for all queries.

    There transformers asks whether the mask hides anything, which ``vmap`` cannot answer; it takes (B, 1, L, L) as it is.
    """
    mask, config = named.get("attention_mask"), getattr(net, "config", None)
    if mask is None or mask.ndim != 2 or getattr(config, "model_type", None) not in _WITH_WHOLE_MASK:
        return named
    if not _is_stacked(mask):
        return named
    dtype = next(weight.dtype for weight in net.parameters() if weight.is_floating_point())
    hidden = torch.zeros_like(mask, dtype=dtype).masked_fill(mask == 0, torch.finfo(dtype).min)
    return {**named, "attention_mask": hidden[:, None, None, :].expand(-1, -1, mask.shape[1], -1)}


def _is_stacked(tensor: Tensor) -> bool:
    """Whether ``vmap`` maps over a tensor, also around ``torch.func.grad``, which wraps all that it is given."""
    while _functorch.is_gradtrackingtensor(tensor):
        tensor = _functorch.get_unwrapped(tensor)
    return _functorch.is_batchedtensor(tensor)


def _logits(net: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any], outputs: Any) -> Any:
    if isinstance(outputs, Tensor) or not isinstance(keywords, _OfOneArgument):
        return outputs
    logits = getattr(outputs, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    return outputs[0] if isinstance(outputs, tuple) and len(outputs) > 0 and isinstance(outputs[0], Tensor) else outputs
