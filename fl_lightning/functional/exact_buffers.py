"""Buffers that a trainer's half precision does not round."""

from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn


class ExactBuffers(nn.Module):
    """A module that keeps the precision of its own buffers, such as counts, in every conversion; its submodules are converted.

    Example::

        >>> module = ExactBuffers()
        >>> module.register_buffer("count", torch.tensor(2049.0))
        >>> module.bfloat16().count
        tensor(2049.)
    """

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        before = dict(self._buffers)
        super()._apply(fn, recurse)
        for name, buffer in before.items():
            now = self._buffers[name]
            if buffer is None or now is None or not buffer.is_floating_point():
                continue
            if torch.finfo(now.dtype).eps > torch.finfo(buffer.dtype).eps:
                self._buffers[name] = buffer.to(now.device)
        return self
