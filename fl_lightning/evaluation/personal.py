"""Scores of clients' personal models on their clients' samples."""

import copy
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl_lightning.algorithm import FederatedAlgorithm
from fl_lightning.data import FederatedDataModule
from fl_lightning.functional.many_tensors import copy_all
from fl_lightning.functional.transfers import to_device
from fl_lightning.protocol import EvaluationName
from fl_lightning.state.client_states import ClientStates

Adapt = Callable[[nn.Module, int], None]  # changes a copy of a client's model, as fine-tuning does


class PersonalModels:
    """Clients' personal models, one after another in one copy of the net.

    Args:
        method: the clients' method; its net holds the newest global weights.
        data: the clients' samples.
        states: the clients' states, at least those with ``client % world_size == rank``.
        rank, world_size: those of this process.
    """

    def __init__(
        self, method: FederatedAlgorithm, data: FederatedDataModule, states: ClientStates, rank: int, world_size: int
    ) -> None:
        self._method, self._data, self._states, self._rank, self._world_size = method, data, states, rank, world_size
        self._net = copy.deepcopy(method.net).eval()
        self._shared, self._held = (
            {name: tensor.detach() for name, tensor in (*net.named_parameters(), *net.named_buffers())}
            for net in (method.net, self._net)
        )
        self._device = next(iter(self._shared.values())).device

    def count(self, names: Sequence[EvaluationName], clients: Sequence[int], adapt: Adapt | None = None) -> Tensor:
        """(parts, N, 3) float64: samples, hits and summed cross entropy of this process's clients, 0 for all others."""
        counts = torch.zeros(len(names), self._data.num_clients, 3, dtype=torch.float64, device=self._device)
        for alike in self._with_one_model(clients, together=adapt is None):
            net = self._load(alike[0])
            if adapt is not None:
                adapt(net, alike[0])
            for row, name in enumerate(names):
                counts[row, alike] = self._count(net, name, alike)
        return counts

    def _with_one_model(self, clients: Sequence[int], together: bool) -> list[list[int]]:
        """This process's clients; those without state, which use the same model, together if requested."""
        here = [client for client in clients if client % self._world_size == self._rank]
        kept = set(self._states.clients()) if together else set(here)
        others = [client for client in here if client not in kept]
        return [[client] for client in here if client in kept] + ([others] if others else [])

    @torch.no_grad()
    def _load(self, client: int) -> nn.Module:
        """A client's personal model in evaluation mode, until the next one is loaded."""
        state = self._states.read(client).map(lambda tensor: to_device(tensor, self._device))
        model = self._method.personal_model(self._shared, state)
        copy_all([self._held[name] for name in model], list(model.values()))
        return self._net.eval()

    @torch.no_grad()
    def _count(self, net: nn.Module, name: EvaluationName, clients: Sequence[int]) -> Tensor:
        inputs, targets, owner = self._data.evaluation.client_samples(name, clients)
        size = self._data.eval_batch_size
        counts = torch.zeros(len(clients), 3, dtype=torch.float64, device=targets.device)
        for part, labels, whose in zip(inputs.split(size), targets.split(size), owner.split(size), strict=True):
            logits = net(_in_fast_layout(part))
            hits, losses = logits.argmax(dim=1) == labels, F.cross_entropy(logits.double(), labels, reduction="none")
            counts.index_add_(0, whose, torch.stack([torch.ones_like(losses), hits, losses], dim=1))
        return counts


def _in_fast_layout(inputs: Tensor) -> Tensor:
    """The same values; images on a CPU with their channels last, because convolutions of few samples are faster so."""
    if inputs.ndim == 4 and inputs.device.type == "cpu":
        return inputs.contiguous(memory_format=torch.channels_last)
    return inputs
