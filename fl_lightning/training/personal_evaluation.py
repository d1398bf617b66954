"""How personal models do on their own samples."""

import copy
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl_lightning.algorithm import FederatedAlgorithm
from fl_lightning.data import FederatedDataModule
from fl_lightning.data.evaluation_data import EvaluationName
from fl_lightning.state.client_states import ClientStates


class PersonalScores(NamedTuple):
    """Of N clients, each one's personal model on its own samples."""

    accuracy: Tensor  # (N,), NaN for clients without samples
    loss: Tensor  # (N,), mean cross entropy, likewise
    samples: Tensor  # (N,)

    @classmethod
    def of_counts(cls, counts: Tensor) -> "PersonalScores":
        """From (N, 3): samples, hits and summed losses."""
        samples, hits, losses = counts.unbind(dim=1)
        return cls(hits / samples, losses / samples, samples)


class PersonalModels:
    """Personal models, one after another in one copy of the net.

    Args:
        method: whose clients they are; its net holds the newest global weights.
        states: what the clients keep.
    """

    def __init__(self, method: FederatedAlgorithm, states: ClientStates) -> None:
        self.method, self._states = method, states
        self.net = copy.deepcopy(method.net).eval()
        self._shared, self._held = (
            {name: tensor.detach() for name, tensor in (*net.named_parameters(), *net.named_buffers())}
            for net in (method.net, self.net)
        )
        self._device = next(iter(self._shared.values())).device

    @torch.no_grad()
    def load(self, client: int) -> nn.Module:
        """A client's personal model in evaluation mode, until the next one is loaded."""
        state = self._states.read(client).map(lambda tensor: tensor.to(self._device))
        model = self.method.personal_model(self._shared, state)
        torch._foreach_copy_(  # pyright: ignore[reportPrivateImportUsage]
            [self._held[name] for name in model], list(model.values())
        )
        return self.net.eval()


@torch.no_grad()
def count_hits(net: nn.Module, data: FederatedDataModule, name: EvaluationName, clients: Sequence[int]) -> Tensor:
    """(K, 3) float64: of K clients that use one model their samples, its hits on them and the summed cross entropy."""
    inputs, targets, owner = data.evaluation.client_samples(name, clients)
    size = data.eval_batch_size
    counts = torch.zeros(len(clients), 3, dtype=torch.float64, device=targets.device)
    for part, labels, whose in zip(inputs.split(size), targets.split(size), owner.split(size), strict=True):
        logits = net(part)
        hits, losses = logits.argmax(dim=1) == labels, F.cross_entropy(logits.double(), labels, reduction="none")
        counts.index_add_(0, whose, torch.stack([torch.ones_like(losses), hits, losses], dim=1))
    return counts
