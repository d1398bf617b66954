"""Uploads that are held one by one: some are replaced by those of hostile clients, and a rule combines them."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fl_lightning.algorithm import FederatedAlgorithm
from fl_lightning.checks import ArgumentError, in_code_of
from fl_lightning.functional.aggregation import State
from fl_lightning.functional.stateless import tensors_of
from fl_lightning.protocol import Gathered, Reduction, Reply
from fl_lightning.robustness import Aggregation, Hostile

_PARTS = ("weights", "buffers")
_WEIGHT = "weight in the mean"


def booked(method: FederatedAlgorithm, reply: Reply) -> Reply:
    """A reply as the server books it: if the method needs each upload, with weights and buffers to be held, not summed.

    Raises:
        ArgumentError: if the method sends something that the rule or the attack would miss.
    """
    if not method.needs.each_upload or not reply.upload:
        return reply
    upload = reply.upload
    probed = ["outputs on public samples"] if method.needs.data.public_samples else []
    used = [*(name for name in upload if name not in _PARTS), *probed]
    if method.aggregation is not None and used:
        raise ArgumentError(
            "model.aggregation",
            f"is {type(method.aggregation).__name__}, but the server of {type(method).__name__} also uses each client's "
            f"{', '.join(used)}, which the rule does not protect: use a method that needs only the mean of the weights, "
            "such as FedAvg, FedProx or MOON",
        )
    if "weights" not in upload:
        raise ArgumentError(
            "model.hostile",
            f"is {type(method.hostile).__name__}, but {type(method).__name__} sends no weights: use LabelFlip or "
            "another method",
        )
    derived = [*(name for name, part in upload.items() if part.derived), *probed]
    if method.hostile is not None and method.hostile.corrupts_uploads and derived:
        raise ArgumentError(
            "model.hostile",
            f"is {type(method.hostile).__name__}, but {type(method).__name__} computes {', '.join(derived)} from the weights "
            "before they are attacked: use LabelFlip, or a method such as FedAvg, FedProx or MOON",
        )
    if reply.weight == 0:
        return replace(reply, upload={name: part for name, part in upload.items() if name not in _PARTS})
    weight = Gathered({_WEIGHT: reply.loss.new_full((), reply.weight, dtype=torch.float64)})
    held = {name: Gathered(upload[name].tensors) for name in _PARTS if name in upload}
    return replace(reply, upload={**upload, **held, _WEIGHT: weight})


class CombinedUploads(Reduction):
    """A round's reduction with the result of ``method.aggregation`` in place of the mean of weights and buffers."""

    def __init__(self, method: FederatedAlgorithm, reduced: Reduction) -> None:
        self._method, self._reduced = method, reduced
        self._clients = list(reduced.gathered(_WEIGHT))
        self._weights = torch.stack([tensors[_WEIGHT] for tensors in reduced.gathered(_WEIGHT).values()])

    @property
    def names(self) -> Collection[str]:
        return {*self._reduced.names, *_PARTS}

    def mean(self, name: str) -> State:
        return self._combined[name] if name in _PARTS else self._reduced.mean(name)

    def total_weight(self, name: str) -> Tensor:
        return self._weights.sum() if name in _PARTS else self._reduced.total_weight(name)

    def gathered(self, name: str) -> dict[int, State]:
        return self._reduced.gathered(name)

    @cached_property
    def _combined(self) -> dict[str, State]:
        """Weights and buffers in float64, by part."""
        method = self._method
        sent = {part: self._reduced.gathered(part) for part in _PARTS}
        names = {part: list(next(iter(states.values()), {})) for part, states in sent.items()}
        old = tensors_of(method.net)
        hostile = None
        if method.hostile is not None and method.hostile.corrupts_uploads:
            named = set(method.hostile.clients(method.data.num_clients, method.seed))
            flags = torch.tensor([client in named for client in self._clients], device=self._weights.device)
            hostile = flags, method.hostile
        states = [{**sent["weights"][client], **sent["buffers"].get(client, {})} for client in self._clients]
        changes = _Changes(states, old, names["weights"], hostile)
        if method.aggregation is None:
            combined = {name: self._weights / self._weights.sum() @ changes[name] for name in changes}
        else:
            with in_code_of("model.aggregation", method.aggregation):
                combined = method.aggregation.combine(changes, names["weights"])
            _check_combined(method.aggregation, combined, changes)
        new = {name: old[name].double() + change.view(old[name].shape) for name, change in combined.items()}
        return {part: {name: new[name] for name in of_part} for part, of_part in names.items()}


def _check_combined(rule: Aggregation, combined: Any, changes: Mapping[str, Tensor]) -> None:
    hook = f"{type(rule).__name__}.combine"
    if not isinstance(combined, Mapping) or combined.keys() != set(changes):
        raise ArgumentError(hook, "must return a dict with exactly the names that it is given")
    for name, change in combined.items():
        shape = tuple(changes[name].shape[1:])
        if not isinstance(change, Tensor):
            raise ArgumentError(hook, f"gives {name!r} as {type(change).__name__}, must be a tensor {shape}")
        if change.shape != shape:
            raise ArgumentError(hook, f"gives {name!r} of shape {tuple(change.shape)}, must be {shape}: without the clients")


class _Changes(Mapping[str, Tensor]):
    """Changes of K clients, (K, n) float64 by name: made one name at a time, as all of them would be a second copy.

    Args:
        hostile: which clients are hostile, (K,), and how they change weights; None: all are honest.
    """

    def __init__(
        self, states: Sequence[State], old: State, weights: Collection[str], hostile: tuple[Tensor, Hostile] | None
    ) -> None:
        self._states, self._old, self._weights, self._hostile = states, old, weights, hostile

    def __getitem__(self, name: str) -> Tensor:
        stacked = torch.stack([state[name].reshape(-1) for state in self._states])
        changes = stacked.double() - self._old[name].reshape(-1).double()
        if self._hostile is not None and name in self._weights:
            are_hostile, hostile = self._hostile
            own, honest = changes[are_hostile], changes[~are_hostile]
            if len(own) > 0:
                changes[are_hostile] = hostile.changes(own, honest if len(honest) > 0 else own)
        return changes

    def __iter__(self) -> Iterator[str]:
        return iter(self._states[0])

    def __len__(self) -> int:
        return len(self._states[0])
