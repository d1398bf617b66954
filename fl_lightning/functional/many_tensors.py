"""Operations on many tensors at once, in one launch of a GPU if types and memory formats allow it."""

from collections.abc import Collection, Iterable, Mapping, Sequence

import torch
from torch import Tensor


def copy_all(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy tensors into others of their shapes, in place; one call on a GPU for all of the same types and memory order.

    Example::

        >>> import torch
        >>> target = torch.zeros(2)
        >>> copy_all([target], [torch.tensor([1.0, 2.0])])
        >>> target
        tensor([1., 2.])
    """
    groups: dict[object, tuple[list[Tensor], list[Tensor]]] = {}
    for target, source in zip(targets, sources, strict=True):
        # Lists of several kinds are copied one by one. On a CPU all are.
        kind = None if target.is_cpu else (target.dtype, source.dtype, lie_alike(target, source))
        held, new = groups.setdefault(kind, ([], []))
        held.append(target)
        new.append(source)
    for held, new in groups.values():
        torch._foreach_copy_(held, new)  # pyright: ignore[reportPrivateImportUsage]


def lie_alike(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors of one shape have the same memory order; strides of dimensions of size 1 do not matter.

    Example::

        >>> import torch
        >>> weight = torch.ones(4, 3, 1, 1)
        >>> lie_alike(weight, weight.contiguous(memory_format=torch.channels_last))
        True
        >>> lie_alike(torch.ones(2, 3), torch.ones(3, 2).t())
        False
    """
    if one.stride() == other.stride():
        return True
    steps = zip(one.shape, one.stride(), other.stride(), strict=True)
    return all(size == 1 or step == other_step for size, step, other_step in steps)


def norm_of(tensors: Iterable[Tensor]) -> Tensor:
    """The Euclidean norm of all tensors together, ().

    Example::

        >>> import torch
        >>> norm_of([torch.tensor([3.0]), torch.tensor([[4.0]])])
        tensor(5.)
    """
    return torch.stack([tensor.norm() for tensor in tensors]).norm()


def set_gradients(weights: Mapping[str, Tensor], gradients: Sequence[Tensor | None], resting: Collection[str] = ()) -> None:
    """Hand gradients to an optimizer, in the memory format of their weights: fused optimizers rely on it unchecked.

    Fixed weights get none: momentum and weight decay would still move them with a gradient of zeros.

    Args:
        weights: by name.
        gradients: in the order of ``weights``; None: a weight that gets none.
        resting: names of fixed weights.

    Example::

        >>> import torch
        >>> weight = torch.zeros(2)
        >>> set_gradients({"w": weight}, [torch.ones(2)])
        >>> weight.grad
        tensor([1., 1.])
    """
    for (name, weight), gradient in zip(weights.items(), gradients, strict=True):
        if name in resting or gradient is None:
            weight.grad = None
        else:
            weight.grad = gradient if lie_alike(gradient, weight) else torch.empty_like(weight).copy_(gradient)
