"""The mode under which ``device="cuda"`` makes pretended tensors, and ``to`` brings them there."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from pretended import tensor as pretended
from pretended.counts import launch, transfer, wait
from pretended.generators import DeviceGenerator, drawing_on_the_device
from pretended.tensor import DEVICE, PretendedTensor, WrongDevice, is_host, is_pretended, parse_to, values

FROM_VALUES = {torch.tensor, torch.as_tensor, torch.asarray}
# What autocast computes in float32 on a GPU, and on a CPU does not.
IN_FLOAT32 = {F.group_norm, F.layer_norm, F.softmax, F.log_softmax, F.cross_entropy}
SAYS = {"device": DEVICE, "is_cuda": True, "is_cpu": False}


class PretendedGPU(TorchFunctionMode):
    """Sees every call of torch's from Python."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "")
        first = args[0] if args else None
        if name == "__get__" and function.__self__.__name__ in SAYS and is_pretended(first):
            return SAYS[function.__self__.__name__]  # within a transform, where C++ answers
        if name == "pin_memory" or kwargs.get("pin_memory"):
            kwargs = {key: value for key, value in kwargs.items() if key != "pin_memory"}
            return pretended.pin(first.clone() if name == "pin_memory" else function(*args, **kwargs))
        if name == "is_pinned" and is_host(first):
            return pretended.is_pinned(first)
        if name in ("to", "cuda") and is_host(first):
            return _up(function, name, args, kwargs)
        if name in ("to", "cpu") and is_pretended(first) and not isinstance(first, PretendedTensor):
            return _to_within(name, args, kwargs)
        if function is F.one_hot and is_pretended(first):
            return _one_hot(*args, **kwargs)
        if name == "new_tensor" and is_pretended(first):
            return _made(torch.tensor, name, args[1:], {"dtype": first.dtype, **kwargs})
        if _is_cuda(kwargs.get("device")):
            return _made(function, name, args, {key: value for key, value in kwargs.items() if key != "device"})
        if function in IN_FLOAT32 and torch.is_autocast_enabled("cpu") and is_pretended(first):
            args = (first.float(), *args[1:])
        return function(*args, **kwargs)


def _is_cuda(device: Any) -> bool:
    return device is not None and torch.device(device).type == "cuda"


def _up(function: Callable[..., Any], name: str, args: tuple, kwargs: dict[str, Any]) -> Tensor:
    """A tensor of the host is moved, perhaps to the device."""
    source = args[0]
    if name == "cuda":
        return _Up.apply(source, source.dtype, torch.preserve_format, False)
    settings = {key: value for key, value in kwargs.items() if key != "copy"}
    device, dtype, non_blocking, layout = parse_to(args[1:], settings)
    if device is None or device.type != "cuda":
        return function(*args, **kwargs)
    return _Up.apply(source, dtype or source.dtype, layout or torch.preserve_format, non_blocking)


class _Up(torch.autograd.Function):
    """A copy on the device; the gradient goes back to the host."""

    @staticmethod
    def forward(ctx, source, dtype, layout, non_blocking):
        ctx.dtype = source.dtype
        transfer("up", "to", waits=not (non_blocking and pretended.is_pinned(source)))
        return PretendedTensor(source.detach().to(dtype, copy=True, memory_format=layout))

    @staticmethod
    def backward(ctx, gradient):
        return gradient.to("cpu", ctx.dtype), None, None, None


def _to_within(name: str, args: tuple, kwargs: dict[str, Any]) -> Tensor:
    """A tensor of the device, within a transform."""
    source, copy = args[0], kwargs.get("copy", False)
    settings = {key: value for key, value in kwargs.items() if key != "copy"}
    device, dtype, non_blocking, layout = parse_to(args[1:], settings) if name == "to" else (torch.device("cpu"), *[None] * 3)
    if device is not None and device.type == "cpu":
        raise WrongDevice("a tensor of cuda:0 goes to the CPU within a transform")
    more = {} if layout is None else {"memory_format": layout}
    return pretended.BARE_TO(source, dtype or source.dtype, non_blocking, copy, **more)


def _one_hot(classes: Tensor, num_classes: int = -1) -> Tensor:
    """C++ would make its zeros on the CPU, and look at the values, which on a GPU its kernels do."""
    if num_classes < 0:
        wait("one_hot without num_classes")
        num_classes = int(pretended.within(classes).held.max()) + 1
    return (classes.unsqueeze(-1) == PretendedTensor(torch.arange(num_classes))).long()


def _made(function: Callable[..., Any], name: str, args: tuple, kwargs: dict[str, Any]) -> Tensor:
    """A new tensor on the device."""
    generator = kwargs.get("generator")
    if generator is not None and not isinstance(generator, DeviceGenerator):
        raise WrongDevice(f"{name}: a generator of the CPU draws for cuda:0")
    if any(isinstance(value, Tensor) for value in tree_leaves((args, kwargs))):
        return _made_of_tensors(function, name, args, kwargs)
    wants_gradient = kwargs.pop("requires_grad", False)
    with drawing_on_the_device(name.startswith("rand")):
        made = PretendedTensor(pretended.within(function(*args, **kwargs)))
    if function in FROM_VALUES:
        transfer("up", name)
    elif not name.startswith("empty"):
        launch(name)
    return made.requires_grad_() if wants_gradient else made


def _made_of_tensors(function: Callable[..., Any], name: str, args: tuple, kwargs: dict[str, Any]) -> Tensor:
    first = args[0]
    if function in FROM_VALUES and isinstance(first, Tensor):
        dtype = kwargs.get("dtype") or first.dtype
        return first.to(dtype) if is_pretended(first) else _Up.apply(first, dtype, torch.preserve_format, False)
    if function in FROM_VALUES:
        wait(f"{name} of tensors")
        return PretendedTensor(function(*values(args), **kwargs))
    if is_pretended(first):  # new_zeros, zeros_like and the like
        return function(*args, **kwargs)
    return PretendedTensor(function(*args, **kwargs))  # of a tensor on the CPU, as zeros_like
