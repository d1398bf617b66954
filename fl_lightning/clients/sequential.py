"""One client after another in one working copy of the net."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from fl_lightning.clients.client import Client, Visit
from fl_lightning.clients.cohort import CohortFit, CohortModels, RoundReport
from fl_lightning.clients.reduction import Reduction
from fl_lightning.functional.aggregation import State
from fl_lightning.streams import stream_seed

if TYPE_CHECKING:
    from fl_lightning.module import FederatedModule


class SequentialEngine:
    """Runs a cohort through a method's hooks, client by client.

    The working copy, its optimizer and their memory live as long as the engine; a visit overwrites them in place.

    Args:
        method: whose hooks are called; its ``net`` holds the global weights and is never changed here.
    """

    name = "sequential"

    def __init__(self, method: "FederatedModule") -> None:
        self.method = method
        self.net = copy.deepcopy(method.net)
        self.trainable = [parameter for parameter in self.net.parameters() if parameter.requires_grad]
        self.optimizer = method.local_optimizer(self.trainable)
        self._rates = [group["lr"] for group in self.optimizer.param_groups]

    def run(self, round: int, visits: Sequence[Visit], keep_models: bool) -> CohortFit:
        """Fit this process's share of the cohort and reduce over all processes."""
        method, strategy = self.method, self.method.trainer.strategy
        rank, world_size = method.global_rank, method.trainer.world_size
        reduced = Reduction(method.device)
        # One row a visit: mean loss, finite or not, bytes down, bytes up.
        stats = torch.zeros(len(visits), 4, dtype=torch.float64, device=method.device)
        kept: dict[int, State] = {}
        probes: dict[int, dict[str, Tensor]] = {}
        visited: dict[int, State] = {}
        for position in range(rank, len(visits), world_size):
            client = self._receive(round, visits[position])
            with _named_in_errors(client), self._seeded_layers(client), torch.enable_grad():
                stats[position, 0] = self._fit(client)
                upload = method.client_result(self.net, client)
                probes[position] = method.probe(self.net, client)
            if visits[position].sends:
                stats[position, 1] = reduced.add(upload)
                stats[position, 3] = sum(_num_bytes(sent.tensors) for sent in upload.values())
            if visits[position].receives:
                stats[position, 2] = _num_bytes(client.broadcast) + self._download_bytes()
            client.state.update(self._personal_state())
            visited[client.index] = client.state
            if keep_models:
                kept[position] = {name: tensor.clone() for name, tensor in self.net.state_dict().items()}
        if world_size > 1:
            _share_layouts(reduced, len(visits) < world_size)
            stats = reduced.sum_over_ranks(stats, partial(strategy.reduce, reduce_op="sum"))
            visited, probes = _share_objects(visited, probes)
        method.client_states.update({client: state for client, state in visited.items() if state})
        models = self._models(visits, kept) if keep_models else None
        return CohortFit(reduced, _report(round, visits, stats), models, [probes[i] for i in sorted(probes)])

    def _receive(self, round: int, visit: Visit) -> Client:
        """Bring the working copy to the client: global weights, then what the client kept for itself."""
        method, data = self.method, self.method.data
        state = method.client_states.get(visit.client, {})
        if visit.receives or not state:
            self.load(method.net.state_dict())
        kept = {name.removeprefix("net."): tensor for name, tensor in state.items() if name.startswith("net.")}
        if kept:
            self.load(kept)
        self.optimizer.state.clear()
        factor = method.client_learning_rate(round, visit.client)
        for group, rate in zip(self.optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * factor
        num_steps = method.num_local_steps(visit.client)
        return Client(
            index=visit.client,
            round=round,
            num_train=data.num_train(visit.client),
            num_steps=num_steps,
            label_counts=data.label_counts[visit.client],
            train_label_counts=data.train_label_counts[visit.client],
            received=tuple(parameter.detach() for parameter in method.net.parameters()),
            batches=partial(data.batches, visit.client, round, num_steps),
            apply=self._apply,
            broadcast=method.broadcast(visit.client) if visit.receives else {},
            state=dict(state),
        )

    def _fit(self, client: Client) -> Tensor:
        """The local fit; returns the mean loss over its steps."""
        self.net.train()
        client.carry = self.method.client_start(self.net, client)
        losses = [self.method.client_step(self.net, batch, client) for batch in client.batches()]
        return torch.stack(losses).double().mean()

    def _apply(self, gradients: Sequence[Tensor]) -> None:
        for parameter, gradient in zip(self.trainable, gradients, strict=True):
            parameter.grad = gradient
        self.optimizer.step()
        # Autocast keeps half-precision copies of weights and does not notice that they changed in place.
        torch.clear_autocast_cache()

    def load(self, state: State) -> None:
        """Copy weights and buffers into the working copy, in place; names that are missing stay as they are."""
        own = self.net.state_dict()
        torch._foreach_copy_([own[name] for name in state], list(state.values()))
        torch.clear_autocast_cache()

    def _personal_state(self) -> State:
        """Copies of what stays with the client, under ``net.<name>``."""
        own = self.net.state_dict()
        return {f"net.{name}": tensor.clone() for name, tensor in own.items() if self.method.is_personal(name)}

    def _download_bytes(self) -> int:
        return _num_bytes({name: tensor for name, tensor in self.net.state_dict().items() if not self.method.is_personal(name)})

    @contextmanager
    def _seeded_layers(self, client: Client) -> Iterator[None]:
        """Layers such as dropout draw from the global generator, here and only here: seeded for this visit, restored after."""
        device = self.method.device
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(stream_seed(self.method.seed, client.round, client.index, "layers"))
            yield

    def _models(self, visits: Sequence[Visit], kept: dict[int, State]) -> CohortModels:
        predict_one = {position: partial(self._predict, state) for position, state in kept.items()}
        predict_received = partial(predict_in_batches, self.method.net, self.method.data.eval_batch_size)
        add_up = partial(self.method.trainer.strategy.reduce, reduce_op="sum")
        return CohortModels([visit.client for visit in visits], predict_one, predict_received, add_up)

    def _predict(self, state: State, inputs: Tensor) -> Tensor:
        self.load(state)
        return predict_in_batches(self.net, self.method.data.eval_batch_size, inputs)


@contextmanager
def _named_in_errors(client: Client) -> Iterator[None]:
    """Let an error in a client's fit say whose fit it was."""
    try:
        yield
    except Exception as error:
        error.add_note(f"(client {client.index}, round {client.round})")
        raise


@torch.no_grad()
def predict_in_batches(net: nn.Module, batch_size: int, inputs: Tensor) -> Tensor:
    """Logits (samples, classes), in evaluation mode; the net's mode is put back."""
    training = net.training
    net.eval()
    logits = torch.cat([net(part) for part in inputs.split(batch_size)])
    net.train(training)
    return logits


def _num_bytes(tensors: State) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def _share_layouts(reduced: Reduction, some_rank_is_idle: bool) -> None:
    """Let a process that fitted nobody know what the others count."""
    if some_rank_is_idle:
        layouts: list[dict] = [{} for _ in range(torch.distributed.get_world_size())]
        torch.distributed.all_gather_object(layouts, reduced.layouts)
        for others in layouts:
            reduced.reserve(others)


def _share_objects(visited: dict[int, State], probes: dict[int, dict[str, Tensor]]) -> tuple[dict, dict]:
    """Every process gets all client states and probes; what is empty does not travel."""
    to_cpu = partial(torch.utils._pytree.tree_map, lambda value: value.cpu() if isinstance(value, Tensor) else value)
    mine = to_cpu(({k: v for k, v in visited.items() if v}, probes))
    everyone: list = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(everyone, mine)
    return {k: v for states, _ in everyone for k, v in states.items()}, {k: v for _, some in everyone for k, v in some.items()}


def _report(round: int, visits: Sequence[Visit], stats: Tensor) -> RoundReport:
    rows = stats.tolist()  # the one transfer of the round
    clients = [visit.client for visit in visits]
    return RoundReport(
        round=round,
        clients=clients,
        losses=[row[0] for row in rows],
        num_updates=int(sum(row[1] for row in rows)),
        left_out=[visit.client for visit, row in zip(visits, rows, strict=True) if visit.sends and row[1] == 0],
        bytes_down=int(sum(row[2] for row in rows)),
        bytes_up=int(sum(row[3] for row in rows)),
    )
