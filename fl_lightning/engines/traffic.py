"""Bytes that a visit sends down and up."""

from typing import Any

from torch.utils._pytree import tree_leaves

from fl_lightning.functional.aggregation import State
from fl_lightning.protocol import Request
from fl_lightning.protocol.client_state import num_bytes


class Traffic:
    """Counts the bytes of a real exchange.

    Args:
        shared: the server's tensors that go down to a client that receives, by name.
        nonzeros_alone: whether only values that are not 0 are sent.
    """

    def __init__(self, shared: State, nonzeros_alone: bool) -> None:
        self._shared, self._nonzeros_alone = shared, nonzeros_alone
        self._whole = num_bytes(shared)

    def down(self, request: Request) -> int:
        """Bytes down: the shared weights and the broadcast; 0 if the client receives nothing."""
        if not request.receives:
            return 0
        weights = self.sent(self._shared) if self._nonzeros_alone else self._whole
        return weights + self.sent(request.broadcast)

    def sent(self, tensors: dict[str, Any]) -> int:
        """Bytes of some tensors, by name or by group and name, when sent: all their values, or those that are not 0."""
        if self._nonzeros_alone:
            return int(sum(tensor.count_nonzero() * tensor.element_size() for tensor in tree_leaves(tensors)))
        return num_bytes(tensors)
