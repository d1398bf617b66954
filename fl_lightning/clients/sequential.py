"""One client after another in one working copy of the net."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from fl_lightning.clients.client import Client, Visit
from fl_lightning.clients.cohort import CohortFit, CohortModels, RoundReport
from fl_lightning.clients.reduction import Reduction, are_finite
from fl_lightning.functional.aggregation import State
from fl_lightning.streams import seeded_layers

if TYPE_CHECKING:
    from fl_lightning.module import FederatedModule


class SequentialEngine:
    """Runs a cohort through a method's hooks, client by client.

    The working copy, its optimizer and their memory live as long as the engine; a visit overwrites them in place.

    Args:
        method: whose hooks are called; its ``net`` holds the global weights and is never changed here.
    """

    def __init__(self, method: "FederatedModule") -> None:
        self.method = method
        self.net = copy.deepcopy(method.net)
        # Both nets only ever change in place: their tensors are looked up once.
        self._own, self._global = _tensors(self.net), _tensors(method.net)
        self._received_global = tuple(weight.detach() for weight in method.net.parameters())
        self.trainable = [parameter for parameter in self.net.parameters() if parameter.requires_grad]
        self.optimizer = method.local_optimizer(self.trainable)
        self._rates = [group["lr"] for group in self.optimizer.param_groups]

    def run(self, round: int, visits: Sequence[Visit], keep_models: bool) -> CohortFit:
        """Fit this process's share of the cohort and reduce over all processes."""
        method = self.method
        share = _Share(Reduction(method.device), torch.zeros(len(visits), 4, dtype=torch.float64, device=method.device))
        for position in range(method.global_rank, len(visits), method.trainer.world_size):
            self._visit(round, visits[position], position, share)
            if keep_models:
                share.models[position] = {name: tensor.clone() for name, tensor in self._own.items()}
        if method.trainer.world_size > 1:
            self._gather(share)
        report = _report(round, visits, share.stats)
        self._store_states(visits, share.states, report)
        models = self._models(visits, share.models) if keep_models else None
        return CohortFit(share.reduced, report, models, [share.probes[position] for position in sorted(share.probes)])

    def _visit(self, round: int, visit: Visit, position: int, share: "_Share") -> None:
        """One client from receiving to sending."""
        method = self.method
        with _named_in_errors(visit, round), seeded_layers(method.seed, round, visit.client, "layers", method.device):
            client = self._receive(round, visit)
            loss = self._fit(client)
            upload = method.client_result(self.net, client)
            share.probes[position] = method.probe(self.net, client)
        state = {**client.state, **self._kept_weights()}
        finite, bytes_down, bytes_up = are_finite(state), 0, 0
        # On the CPU, wherever the run goes: population times state would not fit a GPU.
        share.states[position] = {name: tensor.detach().to("cpu", copy=True) for name, tensor in state.items()}
        if visit.receives:
            bytes_down = _num_bytes(client.broadcast) + self._download_bytes()
        if visit.sends:
            finite = share.reduced.add(upload, finite)
            bytes_up = sum(_num_bytes(sent.tensors) for sent in upload.values())
        share.stats[position, 0], share.stats[position, 1] = loss, finite
        share.stats[position, 2], share.stats[position, 3] = bytes_down, bytes_up

    def _receive(self, round: int, visit: Visit) -> Client:
        """Bring the working copy to the client: the global weights, then what the client kept for itself."""
        method, data = self.method, self.method.data
        state = {
            name: tensor.to(method.device, copy=True) for name, tensor in method.client_states.get(visit.client, {}).items()
        }
        self.load(self._global)
        own = {name.removeprefix("net."): state.pop(name) for name in list(state) if name.startswith("net.")}
        self.load({name: tensor for name, tensor in own.items() if not visit.receives or method.is_personal(name)})
        if not visit.receives and not method.keeps_weights:
            raise ValueError(f"{type(method).__name__}.cohort has a client that does not receive: set keeps_weights = True")
        num_steps = method.num_local_steps(visit.client)
        return Client(
            index=visit.client,
            round=round,
            num_train=data.num_train(visit.client),
            num_steps=num_steps,
            label_counts=data.label_counts[visit.client],
            train_label_counts=data.train_label_counts[visit.client],
            received=self._received(is_global=not own),
            batches=partial(data.batches, visit.client, round, num_steps),
            apply=self._apply,
            broadcast=method.broadcast(visit.client) if visit.receives else {},
            state=state,
        )

    def _received(self, is_global: bool) -> tuple[Tensor, ...]:
        """The weights that the fit starts from; a copy only where they are not simply the global ones."""
        return self._received_global if is_global else tuple(weight.detach().clone() for weight in self.net.parameters())

    def _fit(self, client: Client) -> Tensor:
        """The local fit; returns the mean loss over its steps."""
        self.net.train()
        client.carry = self.method.client_start(self.net, client)
        client.learning_rate = self._start_optimizer(client)
        losses = [self.method.client_step(self.net, batch, client) for batch in client.batches()]
        return torch.stack(losses).double().mean()

    def _start_optimizer(self, client: Client) -> float:
        """A fresh optimizer at this visit's rate, which is returned (that of the first group, where there are several)."""
        self.optimizer.state.clear()
        factor = self.method.client_learning_rate(client.round, client.index)
        for group, rate in zip(self.optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * factor
        return self.optimizer.param_groups[0]["lr"]

    def _apply(self, gradients: Sequence[Tensor]) -> None:
        for parameter, gradient in zip(self.trainable, gradients, strict=True):
            parameter.grad = gradient
        self.optimizer.step()
        # Autocast keeps half-precision copies of weights and does not notice that they changed in place.
        torch.clear_autocast_cache()

    def load(self, state: State) -> None:
        """Copy weights and buffers into the working copy, in place; names that are missing stay as they are."""
        if state:
            torch._foreach_copy_([self._own[name] for name in state], list(state.values()))
            torch.clear_autocast_cache()

    def _kept_weights(self) -> State:
        """What of the net stays with the client until its next visit, under ``net.<name>``; the net's own tensors."""
        keeps_all, is_personal = self.method.keeps_weights, self.method.is_personal
        return {f"net.{name}": tensor for name, tensor in self._own.items() if keeps_all or is_personal(name)}

    def _store_states(self, visits: Sequence[Visit], states: dict[int, State], report: RoundReport) -> None:
        """Take over the clients' states, except of those whose fit was not finite: they keep what they had."""
        for position, state in states.items():
            client = visits[position].client
            if client not in report.nonfinite:
                self.method.client_states.pop(client, None)
                if state:
                    self.method.client_states[client] = state

    def _gather(self, share: "_Share") -> None:
        """Every process gets all states and probes, and the sums over all processes."""
        everyone: list = [None] * self.method.trainer.world_size
        mine = tree_map_only(Tensor, Tensor.cpu, (share.reduced.layouts, share.states, share.probes))
        torch.distributed.all_gather_object(everyone, mine)
        for layouts, states, probes in everyone:
            share.reduced.reserve(layouts)
            share.states.update(states)
            share.probes.update(tree_map_only(Tensor, lambda tensor: tensor.to(self.method.device), probes))
        share.stats = share.reduced.sum_over_ranks(share.stats, partial(self.method.trainer.strategy.reduce, reduce_op="sum"))

    def _download_bytes(self) -> int:
        return _num_bytes({name: tensor for name, tensor in self._own.items() if not self.method.is_personal(name)})

    def _models(self, visits: Sequence[Visit], kept: dict[int, State]) -> CohortModels:
        predict_one = {position: partial(self._predict, state) for position, state in kept.items()}
        predict_received = partial(predict_in_batches, self.method.net, self.method.data.eval_batch_size)
        add_up = partial(self.method.trainer.strategy.reduce, reduce_op="sum")
        return CohortModels([visit.client for visit in visits], predict_one, predict_received, add_up)

    def _predict(self, state: State, inputs: Tensor) -> Tensor:
        self.load(state)
        return predict_in_batches(self.net, self.method.data.eval_batch_size, inputs)


@dataclass
class _Share:
    """What this process's part of a cohort adds up to; the dicts are by position in the cohort."""

    reduced: Reduction
    stats: Tensor  # one row a visit: mean loss, finite or not, bytes down, bytes up
    states: dict[int, State] = field(default_factory=dict)
    probes: dict[int, dict[str, Tensor]] = field(default_factory=dict)
    models: dict[int, State] = field(default_factory=dict)


@contextmanager
def _named_in_errors(visit: Visit, round: int) -> Iterator[None]:
    """Let an error in a client's fit say whose fit it was."""
    try:
        yield
    except Exception as error:
        error.add_note(f"(client {visit.client}, round {round})")
        raise


@torch.no_grad()
def predict_in_batches(net: nn.Module, batch_size: int, inputs: Tensor) -> Tensor:
    """Logits (samples, classes), in evaluation mode; the net's mode is put back."""
    training = net.training
    net.eval()
    logits = torch.cat([net(part) for part in inputs.split(batch_size)])
    net.train(training)
    return logits


def _tensors(net: nn.Module) -> State:
    """All weights and buffers, those that a state dict leaves out too; shares memory with the net."""
    return {name: tensor.detach() for name, tensor in (*net.named_parameters(), *net.named_buffers())}


def _num_bytes(tensors: State) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def _report(round: int, visits: Sequence[Visit], stats: Tensor) -> RoundReport:
    rows = stats.tolist()  # the one transfer of the round
    clients = [visit.client for visit in visits]
    nonfinite = [visit.client for visit, row in zip(visits, rows, strict=True) if row[1] == 0]
    return RoundReport(
        round=round,
        clients=clients,
        losses=[row[0] for row in rows],
        num_updates=sum(visit.sends and row[1] == 1 for visit, row in zip(visits, rows, strict=True)),
        nonfinite=nonfinite,
        bytes_down=int(sum(row[2] for row in rows)),
        bytes_up=int(sum(row[3] for row in rows)),
    )
