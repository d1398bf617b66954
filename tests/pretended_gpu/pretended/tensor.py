"""A tensor that says ``cuda:0`` and holds its values on the CPU; an operator that is given both kinds raises as on a GPU.

For C++ it lies on the CPU, so that neither autograd nor ``torch.func`` asks for a driver; Python code sees a GPU.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from pretended.counts import comes_later, launch, line, transfer, wait
from pretended.generators import DeviceGenerator, drawing_on_the_device

aten = torch.ops.aten
DEVICE = torch.device("cuda", 0)
BARE_TO, BARE_DATA = torch._C.TensorBase.to, torch._C.TensorBase.data

# The rules by which torch.vmap stacks norms make weights of ones where C++ takes the device to be.
MAY_MIX = {aten.native_batch_norm.default, aten.native_batch_norm_backward.default}
INDEXING = {aten.index.Tensor, aten._unsafe_index.Tensor, aten.index_put.default, aten.index_put_.default}
INDEXING |= {aten._index_put_impl_.default}
# The values decide what comes out: a number, or how many.
WAITING = {aten._local_scalar_dense, aten.equal, aten.nonzero, aten.masked_select, aten._unique2, aten.unique_dim}
WAITING |= {aten.unique_consecutive, aten.bincount, aten.is_nonzero, aten.histc}
NO_KERNEL = {
    aten.detach,
    aten.alias,
    aten.lift_fresh,
    aten.lift,
    aten.empty,
    aten.empty_strided,
    aten.empty_like,
    aten.new_empty,
}
NO_KERNEL |= {aten.new_empty_strided, aten._unsafe_view, aten._reshape_alias, aten._local_scalar_dense}


class WrongDevice(RuntimeError):
    """What a GPU refuses; names the line of ours that asked for it."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}, at {line()}")


class PretendedTensor(Tensor):
    """Args: ``held``, the values, on the CPU."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "PretendedTensor":
        made = Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            layout=held.layout,
            device="cpu",
        )
        made.held = held
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, operator, types, args=(), kwargs=None):
        return run(operator, args, kwargs or {})

    device = property(lambda self: DEVICE)
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)

    def get_device(self) -> int:
        return 0

    def is_pinned(self, *_: Any) -> bool:
        return False

    def to(self, *args: Any, **kwargs: Any) -> Tensor:
        copy = kwargs.pop("copy", False)
        device, dtype, non_blocking, layout = parse_to(args, kwargs)
        if device is not None and device.type == "cpu":
            return _Down.apply(self, dtype or self.dtype, non_blocking)
        if layout is None and not copy and dtype in (None, self.dtype):
            return self
        more = {} if layout is None else {"memory_format": layout}
        return BARE_TO(self, dtype or self.dtype, non_blocking, copy, **more)

    def cpu(self, *_: Any) -> Tensor:
        return self.to("cpu")

    def cuda(self, *_: Any, **__: Any) -> Tensor:
        return self

    def tolist(self) -> Any:
        transfer("down", "tolist")
        return self.held.tolist()

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise WrongDevice("a tensor of cuda:0 is asked for its NumPy array: copy it to the CPU first")

    __array__ = numpy

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.held.untyped_storage()

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    @property
    def data(self) -> "PretendedTensor":
        return PretendedTensor(self.held.detach())

    @data.setter
    def data(self, other: Tensor) -> None:
        if not isinstance(other, PretendedTensor):
            raise WrongDevice("the data of a tensor on cuda:0 are set to a tensor on the CPU")
        self.become(other.held)

    def become(self, held: Tensor) -> None:
        """Have these values, and their shape."""
        with torch._C.DisableTorchFunction():
            BARE_DATA.__set__(self, PretendedTensor(held))
        self.held = held

    def __repr__(self, *, tensor_contents: None = None) -> str:
        return f"PretendedTensor({self.held!r})"

    def __reduce_ex__(self, protocol: int) -> Any:
        """Files hold the values alone: that a reader names the device for them is not pretended."""
        transfer("down", "saved")
        values = self.held.detach()
        return (torch.nn.Parameter(values, self.requires_grad) if _is_parameter(self) else values).__reduce_ex__(protocol)

    def __deepcopy__(self, memo: dict[int, Any]) -> "PretendedTensor":
        if id(self) not in memo:
            copied = PretendedTensor(self.held.detach().clone(memory_format=torch.preserve_format))
            copied.requires_grad_(self.requires_grad)
            if _is_parameter(self):
                copied._is_param = True
            if self.grad is not None:
                copied.grad = self.grad.__deepcopy__(memo)
            memo[id(self)] = copied
        return memo[id(self)]


class _Down(torch.autograd.Function):
    """A copy on the host; the gradient goes back to the device."""

    @staticmethod
    def forward(ctx, tensor, dtype, non_blocking):
        ctx.dtype = tensor.dtype
        transfer("down", "to", waits=not non_blocking)
        values = tensor.held.detach().to(dtype, copy=True)
        return pin(comes_later(values)) if non_blocking else values

    @staticmethod
    def backward(ctx, gradient):
        transfer("up", "gradient")
        return PretendedTensor(gradient.to(ctx.dtype)), None, None


def _is_parameter(tensor: Tensor) -> bool:
    return getattr(tensor, "_is_param", False)


def parse_to(args: tuple, kwargs: dict[str, Any]) -> tuple:
    """Device, dtype, whether not to wait, and memory format that ``Tensor.to`` is asked for; None where it is not."""
    other = kwargs.get("other", args[0] if args and isinstance(args[0], Tensor) else None)
    if other is not None:
        return DEVICE if is_pretended(other) else other.device, other.dtype, False, None
    return torch._C._nn._parse_to(*args, **kwargs)


def within(tensor: Any) -> Any:
    """What the transforms of ``torch.func`` have wrapped."""
    while isinstance(tensor, Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


def is_pretended(value: Any) -> bool:
    """Whether it is on the device, in a transform or not."""
    return isinstance(within(value), PretendedTensor)


def is_host(value: Any) -> bool:
    """Whether it is a tensor on the CPU, in a transform or not."""
    return isinstance(value, Tensor) and not is_pretended(value)


def values(tree: Any) -> Any:
    """The same with the values of all tensors of the device."""
    return tree_map(lambda value: value.held if isinstance(value, PretendedTensor) else value, tree)


def run(operator: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """An operator of which an argument lies on the device."""
    # In inference mode what is made of other operators arrives whole.
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "CompositeImplicitAutograd")
    if composite and operator.overloadpacket not in NO_KERNEL:
        result = operator.decompose(*args, **kwargs)
        if result is not NotImplemented:
            return result
    tensors = [value for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
    check_devices(operator, args, kwargs, tensors)
    count(operator, args, kwargs)
    with drawing_on_the_device(torch.Tag.nondeterministic_seeded in operator.tags):
        result = operator(*values(args), **values(kwargs))
    return _wrapped(result, tensors, on_device=operator is not aten.copy_.default or isinstance(args[0], PretendedTensor))


def _wrapped(result: Any, tensors: list[Tensor], on_device: bool) -> Any:
    """The result on the device; arguments that were changed in place stay the objects that they are."""
    known = {id(tensor.held): tensor for tensor in tensors if isinstance(tensor, PretendedTensor)}

    def wrap(value: Any) -> Any:
        if not isinstance(value, Tensor) or not on_device:
            return value
        tensor = known.get(id(value))
        if tensor is None:
            return PretendedTensor(value)
        if tensor.shape != value.shape or tensor.stride() != value.stride():  # squeeze_ and the like
            tensor.become(value)
        return tensor

    return tree_map(wrap, result)


def check_devices(operator: Any, args: tuple, kwargs: dict[str, Any], tensors: list[Tensor]) -> None:
    """Refuse what a GPU refuses: numbers may lie on either device, and an index on the CPU is brought over.

    Raises:
        WrongDevice: with the line that asked.
    """
    generator = kwargs.get("generator")
    if generator is not None and not isinstance(generator, DeviceGenerator):
        raise WrongDevice(f"{operator}: a generator of the CPU draws for a tensor of cuda:0")
    if operator in MAY_MIX or operator.overloadpacket in (aten.copy_, aten._foreach_copy_):
        return
    others = [tensor for tensor in tensors if is_host(tensor) and tensor.dim() > 0]
    if operator in INDEXING:
        others = [] if isinstance(args[0], PretendedTensor) else [args[0]]
        others += [value for value in args[2:] if is_host(value) and value.dim() > 0]
    if others:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in others)
        raise WrongDevice(f"{operator}: a tensor on the CPU, of shape {shapes}, meets one on cuda:0")


def count(operator: Any, args: tuple, kwargs: dict[str, Any]) -> None:
    """What the operator costs the host."""
    packet = operator.overloadpacket
    if packet in (aten.copy_, aten._foreach_copy_):
        pairs = [(args[0], args[1])] if packet is aten.copy_ else list(zip(args[0], args[1], strict=True))
        crossing = [target for target, source in pairs if is_pretended(target) != is_pretended(source)]
        for target in crossing:
            transfer("up" if is_pretended(target) else "down", packet.__name__, waits=not _is_quiet(args, kwargs))
        if len(crossing) == len(pairs):
            return
    if operator in INDEXING:
        for index in args[1]:
            if is_host(index):
                transfer("up", "an index on the CPU")
            elif isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8):
                wait("a mask as index")
    if packet in WAITING or (packet is aten.repeat_interleave and kwargs.get("output_size") is None):
        wait(packet.__name__)
    if packet not in NO_KERNEL and not _is_view(operator):
        for _ in range(_kernels(packet.__name__, args)):
            launch(packet.__name__)


def _kernels(name: str, args: tuple) -> int:
    """One for whole lists of tensors, where all of a list are of one type and those that meet lie alike; else one a tensor."""
    lists = [part for part in args if isinstance(part, (list, tuple)) and part and isinstance(part[0], Tensor)]
    if not name.startswith("_foreach_") or not lists:
        return 1
    types = [{tensor.dtype for tensor in part} for part in lists]
    of_one_type = len(set.union(*types)) == 1 or (name == "_foreach_copy_" and all(len(part) == 1 for part in types))
    alike = all(len({_strides(tensor) for tensor in tensors}) == 1 for tensors in zip(*lists, strict=True))
    return 1 if of_one_type and alike else len(lists[0])


def _strides(tensor: Tensor) -> tuple[tuple[int, int], ...]:
    return tuple((size, stride) for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size != 1)


def _is_quiet(args: tuple, kwargs: dict[str, Any]) -> bool:
    """Whether a ``copy_`` returns at once: it is asked to, and the memory of the host is pinned."""
    non_blocking = kwargs.get("non_blocking", args[2] if len(args) > 2 else False)
    return bool(non_blocking) and all(is_pretended(tensor) or is_pinned(tensor) for tensor in args[:2])


_views: dict[Callable[..., Any], bool] = {}


def _is_view(operator: Any) -> bool:
    if operator not in _views:
        aliases = [value.alias_info for value in operator._schema.returns]
        _views[operator] = any(alias is not None and not alias.is_write for alias in aliases)
    return _views[operator]


_pinned: dict[int, torch.UntypedStorage] = {}  # kept, so that no other memory comes to have the address


def pin(tensor: Tensor) -> Tensor:
    """Have the memory of a tensor on the CPU count as pinned."""
    storage = tensor.untyped_storage()
    _pinned[storage.data_ptr()] = storage
    return tensor


def is_pinned(tensor: Tensor) -> bool:
    return tensor.untyped_storage().data_ptr() in _pinned


def forget_pinned() -> None:
    _pinned.clear()
