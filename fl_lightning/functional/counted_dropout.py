"""Dropout with masks that are read from counters.

torch's dropout draws its masks one after the other from a generator, so that padding of a batch, or other clients that
``torch.vmap`` runs next to it, would change them. A mask that is a function of its place is the same however a client is run.
"""

import math
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fl_lightning.functional.random_streams import random_bits

_CALLS = 40  # a counter's bits for entries; those above count calls
_WORD = 31  # bits of each of the two numbers that are taken from a draw


class CountedDropout(TorchFunctionMode):
    """Dropout within this mode: an entry's mask is a function of a key, the number of the call and the entry's index.

    It acts on ``F.dropout``, ``F.dropout1d`` to ``F.dropout3d``, attention's dropout, and layers made of these. Whatever else
    draws, draws as always. Entries count in row-major order: a sample that is added to a batch changes no other's mask.

    Args:
        key: int64, (), as from :func:`~fl_lightning.functional.random_streams.random_bits`; in ``torch.vmap`` one for each row.

    Example::

        >>> def dropped(rows):
        ...     with CountedDropout(torch.tensor(7)):
        ...         return F.dropout(torch.ones(rows, 4), 0.5)
        >>> torch.equal(dropped(2), dropped(3)[:2])
        True
    """

    def __init__(self, key: Tensor) -> None:
        super().__init__()
        self.shapes: list[tuple[int, ...]] = []
        """Shapes of the masks that were made."""
        self._key = key

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch's, or what stands for it here."""
        kwargs = kwargs or {}
        if func is F.multi_head_attention_forward:
            with self:
                return _multi_head_attention(*args, **kwargs)
        if func is F.scaled_dot_product_attention and (any(args[4:5]) or kwargs.get("dropout_p")):
            return self._attention(*args, **kwargs)
        if func in _DIMS:
            return self._dropout(func, *args, **kwargs)
        return func(*args, **kwargs)

    def _dropout(
        self, function: Callable[..., Tensor], input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        dims = _DIMS[function]
        if not training or not 0 < p < 1 or (dims is not None and input.dim() != dims):
            return function(input, p, training, inplace)
        shape = input.shape if dims is None else (*input.shape[:2], *[1] * (dims - 2))
        mask = self._mask(shape, p, input)
        return input.mul_(mask) if inplace else input * mask

    def _attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """Attention as torch's documentation of ``scaled_dot_product_attention`` defines it."""
        if enable_gqa:
            key, value = (part.repeat_interleave(query.shape[-3] // part.shape[-3], -3) for part in (key, value))
        scores = query @ key.transpose(-2, -1) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
        if is_causal:
            attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
        if attn_mask is not None:
            is_bool = attn_mask.dtype == torch.bool
            scores = scores.masked_fill(~attn_mask, -math.inf) if is_bool else scores + attn_mask
            sees_none = (scores == -math.inf).all(dim=-1, keepdim=True)  # as of padding on the left; attends with 0 to all
            shares = scores.masked_fill(sees_none, 0.0).softmax(dim=-1).masked_fill(sees_none, 0.0)
        else:
            shares = scores.softmax(dim=-1)
        return self._dropout(F.dropout, shares, dropout_p) @ value

    def _mask(self, shape: tuple[int, ...], p: float, like: Tensor) -> Tensor:
        """0 with probability p, else 1 / (1 - p)."""
        first, count = len(self.shapes) << _CALLS, math.prod(shape)
        self.shapes.append(tuple(shape))
        draws = random_bits(self._key, torch.arange(first, first + (count + 1) // 2, device=like.device))
        words = torch.stack([draws & ((1 << _WORD) - 1), draws >> (63 - _WORD)], dim=-1).flatten()[:count]
        return (words >= int(p * (1 << _WORD))).to(like.dtype).div_(1 - p).view(shape)


# Dimensions of a batch, from which such a function drops whole channels; None: single entries, of any shape.
_DIMS: dict[Any, int | None] = {F.dropout: None, F.dropout1d: 3, F.dropout2d: 4, F.dropout3d: 5}
# It is written in Python: what it calls must come to the mode, and it must not come back itself.
_multi_head_attention = FunctionType(
    F.multi_head_attention_forward.__code__,
    {**vars(F), "has_torch_function": lambda _: False},
    argdefs=F.multi_head_attention_forward.__defaults__,
)
