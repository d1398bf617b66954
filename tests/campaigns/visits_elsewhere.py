"""A federation of some clients' samples, and a process that makes visits to them for a server elsewhere.

A separate module: the other process imports it by name, which it cannot do with a test.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection

import torch
from torch import Tensor, nn

from fl_lightning import MOON, SCAFFOLD, Ditto, FedAvg, FedPer, FedReg, Needs
from fl_lightning.engines.run_context import RunContext
from fl_lightning.engines.sequential import SequentialEngine
from fl_lightning.functional.random_streams import torch_stream
from fl_lightning.losses import TruncatedCrossEntropy
from fl_lightning.models import MLP
from fl_lightning.processes.process_group import from_bytes, to_bytes
from fl_lightning.protocol import Batch, Client, ClientState, Request, Visit, pack, unpack

CLIENTS = 4


class GoesOn(FedAvg):
    """Clients that hear of the server now and then, and keep their weights but not their biases."""

    needs = Needs(client_weights=True)

    def cohort(self, round: int) -> list[Visit]:
        return [Visit(client, receives=(round + client) % 3 == 0) for client in self.sampled_clients(round)]

    def client_penalty(self, net: nn.Module, client: Client) -> Tensor:
        pairs = zip(net.parameters(), client.received, strict=True)
        return torch.stack([(weight - received).square().sum() for weight, received in pairs]).sum()

    def kept_state(self, client: Client, state: ClientState) -> ClientState:
        return replace(state, weights={name: tensor for name, tensor in state.weights.items() if "bias" not in name})


METHODS = {method.__name__: method for method in (FedAvg, SCAFFOLD, FedReg, FedPer, MOON, Ditto, GoesOn)}
Samples = dict[int, tuple[Tensor, Tensor]]  # by client, inputs and classes


class Shards:
    """A federation that is nothing but some clients' samples: no data module."""

    classes, input_shape, batch_size, eval_batch_size, num_clients = ("a", "b", "c"), (4,), 4, 16, CLIENTS

    def __init__(self, samples: Samples) -> None:
        self.samples = samples
        self.label_counts = {client: targets.bincount(minlength=3) for client, (_, targets) in samples.items()}
        self.train_label_counts = self.label_counts

    def cohort(self, round: int) -> list[int]:
        return [client for client in range(CLIENTS) if client != round % CLIENTS]

    def num_train(self, client: int) -> int:
        return len(self.samples[client][1])

    def steps_per_epoch(self, client: int) -> int:
        return -(-self.num_train(client) // self.batch_size)

    def first_inputs(self, count: int) -> Tensor:
        return next(iter(self.samples.values()))[0][:count]

    def client_batches(self, sample_indices=False, poisson=False, batch_size=None) -> "Shards":
        return self

    def expected_size(self, client: int) -> None:
        return None

    def batches(self, client: int, round: int, steps: int, full: bool = False) -> Iterator[Batch]:
        return (self._batch(client, round, f"step {step}") for step in range(steps))

    def epoch(self, client: int, round: int, purpose: str) -> Iterator[Batch]:
        steps = (f"{purpose} {step}" for step in range(self.steps_per_epoch(client)))
        return (self._batch(client, round, step)._replace(real=torch.ones(self.batch_size, dtype=torch.bool)) for step in steps)

    def client_samples(self, client: int) -> Iterator[Batch]:
        yield Batch(*self.samples[client])

    def _batch(self, client: int, round: int, purpose: str) -> Batch:
        chosen = torch.randperm(self.num_train(client), generator=torch_stream(0, round, client, purpose))[: self.batch_size]
        return Batch(*(part[chosen] for part in self.samples[client]))


def samples() -> Samples:
    """Clients of 5, 7, 9 and 11 samples, of two classes each."""
    generator = torch.Generator().manual_seed(0)
    drawn = ((client, 5 + 2 * client) for client in range(CLIENTS))
    return {
        client: (torch.randn(size, 4, generator=generator), (torch.arange(size) % 2 + client) % 3) for client, size in drawn
    }


def engine_of(name: str, shards: Samples, kind: type[SequentialEngine] = SequentialEngine) -> SequentialEngine:
    optimizer = partial(torch.optim.SGD, lr=0.1)
    method = METHODS[name](partial(MLP, hidden=[6]), loss=TruncatedCrossEntropy(), optimizer=optimizer, local_steps=3, seed=5)
    method.join(Shards(shards))
    return kind(method, RunContext())


def serve(connection: Connection, shards: Samples) -> None:
    """The other process: each client is a site of its own, with its samples alone."""
    torch.set_num_threads(1)
    sites: dict[tuple[str, int], SequentialEngine] = {}
    while name := connection.recv():
        request = unpack(Request, from_bytes(torch.frombuffer(bytearray(connection.recv_bytes()), dtype=torch.uint8)))
        site = name, request.client
        if site not in sites:
            sites[site] = engine_of(name, {request.client: shards[request.client]})
        connection.send_bytes(to_bytes(pack(sites[site].visit(request))).numpy().tobytes())
